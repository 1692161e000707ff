/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "net/loop_internal.h"
#include "net/poll.h"
#include "net/stream.h"

struct fl_listener {
    struct fl_poll poll;
    struct fl_loop *loop; /* NULL until started */
    void (*on_accept)(void *owner, int fd, const struct fl_addr *peer);
    void *owner;
    struct fl_timer rest;
    struct fl_disposable dispose;
    struct fl_addr addr;
    struct fl_log_limit log;
    _Atomic uint64_t refused;
    int fd;
    int spare_fd; /* given up to accept and refuse one client when descriptors are gone */
    bool is_accepting, is_closed;
};

static int open_spare(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static int set_options(int fd, bool reuse_port)
{
    int on = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0)
        return -1;
    if (reuse_port && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)) < 0)
        return -1;
    /* Accepted sockets inherit it, which saves a system call each. */
    return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

int fl_listener_open(const struct fl_addr *addr, bool reuse_port, struct fl_listener **listener,
                     struct fl_error *err)
{
    struct fl_addr bound;
    char text[FL_ADDR_TEXT];
    const char *what = "socket";
    int rc = 0, spare_fd = -1;

    fl_addr_format(addr, text);
    int fd = socket(addr->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        goto out;
    what = "options";
    if (set_options(fd, reuse_port) < 0)
        goto out;
    what = "bind";
    if (bind(fd, &addr->sa, addr->len) < 0)
        goto out;
    what = "listen";
    if (listen(fd, FL_LISTENER_BACKLOG) < 0)
        goto out;
    what = "address";
    memset(&bound, 0, sizeof(bound));
    bound.len = sizeof(bound.v6);
    if (getsockname(fd, &bound.sa, &bound.len) < 0)
        goto out;
    what = "spare descriptor";
    spare_fd = open_spare();
    if (spare_fd < 0)
        goto out;

    struct fl_listener *made = fl_calloc(1, sizeof(*made));
    made->fd = fd;
    made->spare_fd = spare_fd;
    made->addr = bound;
    *listener = made;
    return 0;
out:
    rc = fl_error_set(err, FL_EIO, "listen on %s: %s: %s", text, what, strerror(errno));
    if (fd >= 0)
        close(fd);
    return rc;
}

const struct fl_addr *fl_listener_addr(const struct fl_listener *listener)
{
    return &listener->addr;
}

static void rest(struct fl_listener *listener, int error)
{
    fl_poll_set(&listener->poll, 0);
    fl_loop_timer_start(listener->loop, &listener->rest, FL_LISTENER_REST_MS);
    char text[FL_ADDR_TEXT];
    fl_addr_format(&listener->addr, text);
    fl_log_limited(&listener->log, fl_loop_now_ms(listener->loop), 1000, FL_LOG_WARN,
                   "not accepting", "listen=%s rest_ms=%d refused=%llu error=\"%s\"", text,
                   FL_LISTENER_REST_MS, (unsigned long long)fl_listener_refused(listener),
                   strerror(error));
}

/* The client at the head of the queue would otherwise wait for its own timeout, and the
 * level-triggered poll would not let us sleep. */
static void refuse_one(struct fl_listener *listener)
{
    if (listener->spare_fd < 0)
        return;
    close(listener->spare_fd);
    int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) {
        close(fd);
        atomic_fetch_add_explicit(&listener->refused, 1, memory_order_relaxed);
    }
    listener->spare_fd = open_spare();
}

enum accepted { ACCEPTED, ACCEPT_LATER, ACCEPT_REST };

static enum accepted accept_one(struct fl_listener *listener)
{
    struct fl_addr peer;
    for (;;) {
        memset(&peer, 0, sizeof(peer));
        peer.len = sizeof(peer.v6);
        int fd = accept4(listener->fd, &peer.sa, &peer.len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            listener->on_accept(listener->owner, fd, &peer);
            return ACCEPTED;
        }
        switch (errno) {
        case EAGAIN:
            return ACCEPT_LATER;
        case EMFILE:
        case ENFILE:
            refuse_one(listener);
            return ACCEPT_REST;
        case ENOBUFS:
        case ENOMEM:
            return ACCEPT_REST;
        default:
            break; /* EINTR, and errors of the connection at the head (ECONNABORTED, EPROTO, ...) */
        }
    }
}

static void on_ready(struct fl_poll *poll, int events)
{
    struct fl_listener *listener = FL_CONTAINER_OF(poll, struct fl_listener, poll);
    (void)events;
    for (int i = 0; i < FL_LISTENER_ACCEPTS_A_WAKE && listener->is_accepting; i++) {
        enum accepted accepted = accept_one(listener);
        if (accepted == ACCEPTED)
            continue;
        if (accepted == ACCEPT_REST)
            rest(listener, errno == EAGAIN ? EMFILE : errno);
        return;
    }
}

static void on_rested(struct fl_timer *timer)
{
    struct fl_listener *listener = FL_CONTAINER_OF(timer, struct fl_listener, rest);
    if (listener->spare_fd < 0)
        listener->spare_fd = open_spare();
    if (listener->is_accepting)
        fl_poll_set(&listener->poll, FL_POLL_READABLE);
}

void fl_listener_start(struct fl_listener *listener, struct fl_loop *loop,
                       void (*on_accept)(void *owner, int fd, const struct fl_addr *peer),
                       void *owner)
{
    assert(!listener->is_closed && (listener->loop == NULL || listener->loop == loop));
    listener->on_accept = on_accept;
    listener->owner = owner;
    if (listener->loop == NULL) {
        fl_timer_init(&listener->rest, on_rested);
        int rc = fl_poll_open(&listener->poll, loop, listener->fd, on_ready);
        if (rc < 0) {
            /* Out of kernel memory for the poll set, at start-up or at a rule's birth. */
            fl_log(FL_LOG_ERROR, "listener cannot be watched", "fd=%d", listener->fd);
            return;
        }
        listener->loop = loop;
    }
    listener->is_accepting = true;
    if (!fl_timer_is_running(&listener->rest))
        fl_poll_set(&listener->poll, FL_POLL_READABLE);
}

void fl_listener_stop(struct fl_listener *listener)
{
    if (listener->loop == NULL || listener->is_closed)
        return;
    listener->is_accepting = false;
    fl_poll_set(&listener->poll, 0);
}

static void listener_free(struct fl_disposable *disposable)
{
    fl_free(FL_CONTAINER_OF(disposable, struct fl_listener, dispose));
}

static void on_poll_gone(struct fl_poll *poll)
{
    struct fl_listener *listener = FL_CONTAINER_OF(poll, struct fl_listener, poll);
    fl_loop_dispose(listener->loop, &listener->dispose, listener_free);
}

void fl_listener_close(struct fl_listener *listener)
{
    if (listener == NULL || listener->is_closed)
        return;
    listener->is_closed = true; /* on_accept may come back here */
    listener->is_accepting = false;
    /* Closing a listening socket resets what still sits in its queue, so that is taken first
     * (gateway.md 12). At most a full backlog: a flood must not keep the socket open. */
    if (listener->loop != NULL) {
        for (int i = 0; i <= FL_LISTENER_BACKLOG; i++) {
            if (accept_one(listener) != ACCEPTED)
                break;
        }
    }
    if (listener->spare_fd >= 0)
        close(listener->spare_fd);
    if (listener->loop == NULL) {
        close(listener->fd);
        fl_free(listener);
        return;
    }
    fl_loop_timer_stop(listener->loop, &listener->rest);
    fl_poll_close(&listener->poll, on_poll_gone);
    close(listener->fd);
}

uint64_t fl_listener_refused(const struct fl_listener *listener)
{
    return atomic_load_explicit(&listener->refused, memory_order_relaxed);
}
