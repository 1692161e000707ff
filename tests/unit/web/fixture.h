/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of web/ share: one loop with a server and a pool on it, a recording handler for
 * either face, and raw sockets for peers that speak what they like. Everything waits for a
 * condition with a deadline. */
#ifndef FL_TEST_WEB_FIXTURE_H
#define FL_TEST_WEB_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "web/exchange.h"

#define WAIT_MS 10000

/* ---- one exchange, recorded ---- */

struct seen {
    struct fl_exchange *x; /* NULL once closed */
    struct fixture *fixture;
    bool is_server;
    int heads, informationals, ends, closes, writables;
    int status, rc;
    char method[16], target[256], authority[128], last_informational[64];
    bool is_end_at_head, has_trailers, was_reused_and_silent;
    char trailer[128]; /* value of "x-sum" */
    char field[128];   /* value of "x-test" */
    char alpn_is_tls;
    uint64_t content_length;
    uint8_t body_kind;
    struct fl_buf body;
    size_t held;    /* not consumed, if keeps */
    size_t biggest; /* slice */
    uint32_t slices;
    bool keeps; /* does not consume */
};

/* What a server does with a request, by its path. */
struct fixture {
    struct fl_loop *loop;
    struct fl_listener *listener;
    struct fl_web_server *server;
    struct fl_web_pool *pool;
    struct fl_addr addr;
    struct fl_budget budget;
    struct seen requests[64]; /* in order of arrival */
    int request_count;
    uint32_t accepted;
    bool answers_late; /* the test answers */
    bool keeps_bodies; /* nothing is consumed by the server's side */
    struct fl_web_server_config server_config;
    struct fl_web_pool_config pool_config;
};

static inline uint64_t now_ms(void)
{
    return fl_clock_ns() / 1000000;
}

#define TURN_UNTIL(fixture, condition)                                                             \
    do {                                                                                           \
        uint64_t deadline_ = now_ms() + WAIT_MS;                                                   \
        while (!(condition)) {                                                                     \
            if (now_ms() > deadline_)                                                              \
                fail_msg("%s:%d: waited in vain for: %s", __FILE__, __LINE__, #condition);         \
            fl_loop_turn((fixture)->loop, 5);                                                      \
        }                                                                                          \
    } while (0)

/* A few turns in which nothing is expected to happen. */
static inline void turn_some(struct fixture *f)
{
    for (int i = 0; i < 20; i++)
        fl_loop_turn(f->loop, 1);
}

static inline void copy_text(char *out, size_t room, struct fl_bytes bytes)
{
    size_t n = bytes.n < room - 1 ? bytes.n : room - 1;
    if (n > 0)
        memcpy(out, bytes.p, n);
    out[n] = '\0';
}

static inline void seen_on_informational(void *owner, struct fl_exchange *x,
                                         const struct fl_head *head)
{
    struct seen *seen = owner;
    assert_ptr_equal(x, seen->x);
    seen->informationals++;
    snprintf(seen->last_informational, sizeof(seen->last_informational), "%d", head->status);
}

static inline void serve(struct seen *seen);

static inline void seen_on_head(void *owner, struct fl_exchange *x, struct fl_head *head,
                                bool is_end)
{
    struct seen *seen = owner;
    assert_ptr_equal(x, seen->x);
    assert_int_equal(seen->closes, 0);
    seen->heads++;
    seen->status = head->status;
    seen->body_kind = head->body;
    seen->content_length = head->content_length;
    seen->is_end_at_head = is_end;
    copy_text(seen->method, sizeof(seen->method), head->method);
    copy_text(seen->target, sizeof(seen->target), head->target);
    copy_text(seen->authority, sizeof(seen->authority), head->authority);
    copy_text(seen->field, sizeof(seen->field), fl_fields_get(&head->fields, FL_BYTES("x-test")));
    if (is_end)
        seen->ends++;
    if (seen->is_server && head->expect_continue)
        fl_exchange_send_informational(x, 100, NULL);
    if (is_end && seen->is_server)
        serve(seen);
}

static inline void seen_on_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
{
    struct seen *seen = owner;
    assert_ptr_equal(x, seen->x);
    assert_true(slice.n > 0);
    assert_int_equal(seen->ends, 0);
    fl_buf_append(&seen->body, fl_slice_bytes(slice));
    seen->slices++;
    if (slice.n > seen->biggest)
        seen->biggest = slice.n;
    if (seen->keeps)
        seen->held += slice.n;
    else
        fl_exchange_consume(x, slice.n);
    fl_slice_unref(&slice);
}

static inline void seen_on_end(void *owner, struct fl_exchange *x, const struct fl_fields *trailers)
{
    struct seen *seen = owner;
    assert_ptr_equal(x, seen->x);
    assert_int_equal(seen->ends, 0);
    seen->ends++;
    seen->has_trailers = trailers != NULL;
    if (trailers != NULL)
        copy_text(seen->trailer, sizeof(seen->trailer), fl_fields_get(trailers, FL_BYTES("x-sum")));
    if (seen->is_server)
        serve(seen);
}

static inline void seen_on_writable(void *owner, struct fl_exchange *x)
{
    struct seen *seen = owner;
    assert_ptr_equal(x, seen->x);
    seen->writables++;
}

static inline void seen_on_close(void *owner, struct fl_exchange *x, int rc)
{
    struct seen *seen = owner;
    assert_ptr_equal(x, seen->x);
    assert_int_equal(seen->closes, 0);
    seen->was_reused_and_silent = fl_exchange_is_reused_and_silent(x);
    seen->closes++;
    seen->rc = rc;
    seen->x = NULL;
}

static const struct fl_exchange_handler seen_handler = {
    .on_informational = seen_on_informational,
    .on_head = seen_on_head,
    .on_body = seen_on_body,
    .on_end = seen_on_end,
    .on_writable = seen_on_writable,
    .on_close = seen_on_close,
};

static inline void seen_reset(struct seen *seen)
{
    fl_buf_fini(&seen->body);
    *seen = (struct seen){0};
}

/* The tests' service: the whole request is there. */
static inline void serve(struct seen *seen)
{
    struct fl_exchange *x = seen->x;
    struct fl_arena *arena = fl_exchange_arena(x);

    if (seen->fixture->answers_late)
        return;
    if (strcmp(seen->target, "/echo") == 0) {
        /* of unknown length, with trailers */
        struct fl_head head = {
            .status = 200, .body = FL_BODY_STREAM, .content_length = UINT64_MAX, .arena = arena};
        struct fl_fields trailers = {0};
        fl_fields_add(&head.fields, arena, FL_BYTES("X-Test"), FL_BYTES("echo"));
        fl_fields_add(&trailers, arena, FL_BYTES("x-sum"), FL_BYTES("42"));
        fl_exchange_send_head(x, &head, false);
        fl_exchange_send_body_copy(x, fl_buf_bytes(&seen->body));
        fl_exchange_send_end(x, &trailers);
    } else if (strcmp(seen->target, "/close") == 0) {
        fl_exchange_close_after(x);
        fl_exchange_respond(x, 200, "text/plain", FL_BYTES("bye"), NULL);
    } else if (strcmp(seen->target, "/nothing") == 0) {
        fl_exchange_respond(x, 204, NULL, FL_BYTES(""), NULL);
    } else if (strcmp(seen->target, "/not-modified") == 0) {
        fl_exchange_respond(x, 304, NULL, FL_BYTES("must not be sent"), NULL);
    } else {
        fl_exchange_respond(x, 200, "text/plain", FL_BYTES("hello"), NULL);
    }
}

static inline void fixture_on_request(void *owner, struct fl_exchange *x)
{
    struct fixture *f = owner;
    struct seen *seen = &f->requests[f->request_count++];
    assert_true(f->request_count <= 64);
    seen->x = x;
    seen->fixture = f;
    seen->is_server = true;
    seen->keeps = f->keeps_bodies;
    fl_exchange_set_handler(x, &seen_handler, seen);
}

static inline void fixture_on_accept(void *owner, int fd, const struct fl_addr *peer)
{
    struct fixture *f = owner;
    (void)peer;
    f->accepted++;
    fl_web_server_accept(f->server, fd);
}

/* ---- the fixture ---- */

static inline void fixture_init(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    f->loop = fl_loop_new(0);
    f->server_config = (struct fl_web_server_config){
        .http1 = true,
        .http2 = true,
        .max_header_bytes = 65536,
        .max_headers = 200,
        .head_timeout_ms = 10000,
        .idle_timeout_ms = 60000,
        .max_connections = 100,
        .h2_max_streams = 1000,
        .on_request = fixture_on_request,
        .owner = f,
    };
    f->pool_config = (struct fl_web_pool_config){
        .max_idle_per_target = 4,
        .max_idle_ms = 55000,
        .max_header_bytes = 65536,
        .max_headers = 200,
    };
}

/* Listens on a free port; with a server unless a raw one is to be played. */
static inline void fixture_listen(struct fixture *f, bool has_server)
{
    struct fl_addr any;
    struct fl_error err = {0};
    assert_int_equal(fl_addr_parse(FL_BYTES("127.0.0.1:0"), true, &any, &err), 0);
    assert_int_equal(fl_listener_open(&any, false, &f->listener, &err), 0);
    f->addr = *fl_listener_addr(f->listener);
    f->pool = fl_web_pool_new(f->loop, &f->pool_config);
    if (!has_server)
        return;
    f->server = fl_web_server_new(f->loop, &f->server_config);
    fl_listener_start(f->listener, f->loop, fixture_on_accept, f);
}

static inline void fixture_fini(struct fixture *f)
{
    fl_web_pool_free(f->pool);
    fl_web_server_free(f->server);
    if (f->server != NULL)
        fl_listener_stop(f->listener);
    f->server = NULL;
    fl_listener_close(f->listener);
    fl_loop_free(f->loop);
    for (int i = 0; i < f->request_count; i++) {
        assert_int_equal(f->requests[i].closes, 1);
        fl_buf_fini(&f->requests[i].body);
    }
    assert_int_equal(fl_budget_held(&f->budget), 0);
}

static inline struct fl_web_target target_of(struct fixture *f, enum fl_web_protocol protocol)
{
    return (struct fl_web_target){
        .addr = f->addr, .protocol = protocol, .connect_timeout_ms = 2000};
}

/* Sends a request on the pool; `body` NULL: GET. */
static inline void ask(struct fixture *f, struct seen *seen, enum fl_web_protocol protocol,
                       const char *path, const char *body)
{
    struct fl_web_target target = target_of(f, protocol);
    seen->fixture = f;
    seen->x = fl_web_pool_open(f->pool, &target, false, &seen_handler, seen);
    struct fl_head head = {
        .method = body != NULL ? FL_BYTES("POST") : FL_BYTES("GET"),
        .scheme = FL_BYTES("http"),
        .authority = FL_BYTES("test"),
        .target = fl_bytes_of(path),
        .arena = fl_exchange_arena(seen->x),
        .content_length = UINT64_MAX,
    };
    if (body != NULL) {
        head.body = FL_BODY_LENGTH;
        head.content_length = strlen(body);
    }
    fl_fields_add(&head.fields, head.arena, FL_BYTES("te"), FL_BYTES("trailers"));
    fl_exchange_send_head(seen->x, &head, body == NULL);
    if (body != NULL) {
        fl_exchange_send_body_copy(seen->x, fl_bytes_of(body));
        fl_exchange_send_end(seen->x, NULL);
    }
}

#define assert_body(seen, text)                                                                    \
    do {                                                                                           \
        struct fl_bytes got_ = fl_buf_bytes(&(seen)->body);                                        \
        if (!fl_bytes_eq(got_, fl_bytes_of(text)))                                                 \
            fail_msg("%s:%d: body is \"%.*s\", not \"%s\"", __FILE__, __LINE__, (int)got_.n,       \
                     (const char *)got_.p, text);                                                  \
    } while (0)

/* ---- raw peers ---- */

struct raw {
    int fd;
    char in[262144];
    size_t n;
    bool is_eof, is_reset;
};

static inline void raw_connect(struct raw *raw, struct fixture *f)
{
    memset(raw, 0, sizeof(*raw));
    raw->fd = socket(f->addr.sa.sa_family, SOCK_STREAM, 0);
    assert_true(raw->fd >= 0);
    assert_int_equal(connect(raw->fd, &f->addr.sa, f->addr.len), 0);
    fcntl(raw->fd, F_SETFL, O_NONBLOCK);
}

static inline void raw_send_n(struct fixture *f, struct raw *raw, const void *p, size_t n)
{
    const char *at = p;
    uint64_t deadline_ms = now_ms() + WAIT_MS;
    while (n > 0) {
        ssize_t got = send(raw->fd, at, n, MSG_NOSIGNAL);
        if (got > 0) {
            at += got;
            n -= (size_t)got;
        } else if (errno != EAGAIN || now_ms() > deadline_ms) {
            return; /* closed by the peer: what follows will show */
        }
        fl_loop_turn(f->loop, 0);
    }
}

static inline void raw_send(struct fixture *f, struct raw *raw, const char *text)
{
    raw_send_n(f, raw, text, strlen(text));
}

/* Takes what is there. */
static inline void raw_recv(struct raw *raw)
{
    while (!raw->is_eof && raw->n < sizeof(raw->in) - 1) {
        ssize_t n = recv(raw->fd, raw->in + raw->n, sizeof(raw->in) - 1 - raw->n, 0);
        if (n > 0) {
            raw->n += (size_t)n;
            raw->in[raw->n] = '\0';
        } else if (n == 0) {
            raw->is_eof = true;
        } else if (errno == EAGAIN) {
            return;
        } else {
            raw->is_eof = raw->is_reset = true;
        }
    }
}

static inline bool raw_has(struct raw *raw, const char *text)
{
    raw_recv(raw);
    return strstr(raw->in, text) != NULL;
}

static inline bool raw_ended(struct raw *raw)
{
    raw_recv(raw);
    return raw->is_eof;
}

static inline int raw_count(struct raw *raw, const char *text)
{
    int count = 0;
    raw_recv(raw);
    for (const char *at = raw->in; (at = strstr(at, text)) != NULL; at += strlen(text))
        count++;
    return count;
}

static inline void raw_close(struct raw *raw)
{
    if (raw->fd >= 0)
        close(raw->fd);
    raw->fd = -1;
}

/* Plays the server: takes the next connection of the fixture's listener. */
static inline void raw_on_accept(void *owner, int fd, const struct fl_addr *peer)
{
    struct raw *raws = owner;
    (void)peer;
    for (int i = 0; i < 8; i++) {
        if (raws[i].fd == 0) {
            raws[i].fd = fd;
            return;
        }
    }
    close(fd);
}

/* `raws`: 8, zeroed. */
static inline void raw_listen(struct fixture *f, struct raw *raws)
{
    fl_listener_start(f->listener, f->loop, raw_on_accept, raws);
}

#endif
