/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of net/ share: waiting for a condition with a deadline, and plain sockets. */
#ifndef FL_TESTS_NET_TEST_H
#define FL_TESTS_NET_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/loop.h"
#include "net/stream.h"

#define PATIENCE_MS 10000

/* Turns the loop until `condition` holds; fails the test when it never does. */
#define RUN_UNTIL(loop, condition)                                                                 \
    do {                                                                                           \
        uint64_t deadline_ns_ = fl_clock_ns() + PATIENCE_MS * UINT64_C(1000000);                   \
        while (!(condition)) {                                                                     \
            if (fl_clock_ns() > deadline_ns_)                                                      \
                fail_msg("never true: %s", #condition);                                            \
            fl_loop_turn(loop, 5);                                                                 \
        }                                                                                          \
    } while (0)

static inline struct fl_addr loopback(void)
{
    struct fl_addr addr;
    struct fl_error err = {0};
    if (fl_addr_parse(FL_BYTES("127.0.0.1:0"), true, &addr, &err) < 0)
        fail_msg("%s", err.text);
    return addr;
}

static inline struct fl_listener *listen_anywhere(void)
{
    struct fl_listener *listener = NULL;
    struct fl_addr addr = loopback();
    struct fl_error err = {0};
    if (fl_listener_open(&addr, false, &listener, &err) < 0)
        fail_msg("%s", err.text);
    return listener;
}

/* A socket of the test's own, connected to `addr`, without blocking from then on. */
static inline int dial(const struct fl_addr *addr)
{
    int fd = socket(addr->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, &addr->sa, addr->len), 0);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return fd;
}

/* A listening socket of the test's own: peers that are no fl_stream. */
static inline int raw_listen(struct fl_addr *addr, int backlog)
{
    *addr = loopback();
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, &addr->sa, addr->len), 0);
    assert_int_equal(listen(fd, backlog), 0);
    assert_int_equal(getsockname(fd, &addr->sa, &addr->len), 0);
    return fd;
}

#endif
