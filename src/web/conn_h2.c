/* SPDX-License-Identifier: Apache-2.0 */
#include "web/conn_h2.h"

#include <assert.h>
#include <stdalign.h>
#include <string.h>

#include "base/alloc.h"

/* One event reads at most so many times before others have their turn. */
#define READ_ROUNDS 8
/* When the budget is exhausted, frames are still read, from the stack: what they hold may give
 * memory back. */
#define SCRATCH_BYTES 16384
/* A client that has seen the first GOAWAY opens nothing more; one that has not is on its way for
 * about a round trip. */
#define DRAIN_STEP_MS 1000

/* A request's head as its sender builds it. */
#define CLIENT_ARENA_ROOM 1024

struct fl_h2_exchange {
    struct fl_exchange base;
    struct fl_loop *loop;
    struct fl_h2_conn *conn; /* NULL: client, not placed yet */
    struct fl_h2_stream *stream;
    size_t held;
    bool is_server;
    bool is_headless; /* server: HEAD, or an answer without body: pieces of body are dropped */
    bool is_head_sent, is_out_ended;
    bool is_bodyless; /* the incoming message ended with its head */
    bool is_high, is_aborted, is_reused, is_heard;

    /* client */
    const struct fl_h2_placer *placer_ops;
    void *placer;
    struct fl_link wait_link; /* the placer's, while there is no stream */
    struct fl_deferred fail;  /* brings on_close to an exchange without a stream */
    int rc;
    struct fl_head *kept_head;
    struct fl_chain kept_body;
    struct fl_fields *kept_trailers;
    struct fl_arena arena;
    alignas(16) uint8_t room[]; /* of the arena: CLIENT_ARENA_ROOM, or nothing */
};

static const struct fl_exchange_ops h2_exchange_ops;

static struct fl_h2_exchange *of(struct fl_exchange *x)
{
    return FL_CONTAINER_OF(x, struct fl_h2_exchange, base);
}

static const struct fl_h2_exchange *of_const(const struct fl_exchange *x)
{
    return (const struct fl_h2_exchange *)x; /* `base` is its first member */
}

static void touch(struct fl_h2_conn *conn)
{
    if (!conn->is_closing)
        fl_loop_defer(conn->loop, &conn->flush);
}

/* ---- exchanges ---- */

static struct fl_h2_exchange *exchange_new(struct fl_loop *loop, size_t room)
{
    struct fl_h2_exchange *x = fl_alloc(sizeof(*x) + room);
    memset(x, 0, sizeof(*x));
    x->base.ops = &h2_exchange_ops;
    x->loop = loop;
    fl_link_init(&x->wait_link);
    return x;
}

/* The only way an exchange ends. From the loop, never from inside a command. */
static void exchange_end(struct fl_h2_exchange *x, int rc)
{
    fl_link_unlink(&x->wait_link);
    x->base.handler->on_close(x->base.owner, &x->base, rc);
    if (!x->is_server) {
        fl_loop_undefer(&x->fail);
        x->placer_ops->ended(x->placer, x);
    }
    fl_chain_fini(&x->kept_body);
    fl_arena_fini(&x->arena);
    fl_free(x);
}

static void on_fail(struct fl_deferred *fail)
{
    struct fl_h2_exchange *x = FL_CONTAINER_OF(fail, struct fl_h2_exchange, fail);
    exchange_end(x, x->rc);
}

struct fl_h2_exchange *fl_h2_exchange_new(struct fl_loop *loop,
                                          const struct fl_exchange_handler *handler, void *owner,
                                          const struct fl_h2_placer *ops, void *placer)
{
    struct fl_h2_exchange *x = exchange_new(loop, CLIENT_ARENA_ROOM);
    fl_arena_init_with(&x->arena, 0, x->room, CLIENT_ARENA_ROOM);
    x->base.handler = handler;
    x->base.owner = owner;
    x->placer_ops = ops;
    x->placer = placer;
    fl_deferred_init(&x->fail, on_fail);
    return x;
}

struct fl_exchange *fl_h2_exchange_face(struct fl_h2_exchange *x)
{
    return &x->base;
}

struct fl_link *fl_h2_exchange_wait_link(struct fl_h2_exchange *x)
{
    return &x->wait_link;
}

struct fl_h2_exchange *fl_h2_exchange_of_link(struct fl_link *link)
{
    return FL_CONTAINER_OF(link, struct fl_h2_exchange, wait_link);
}

/* on_close comes at the end of the turn, or after the reset has gone out. */
static void give_up(struct fl_h2_exchange *x, uint32_t error, int rc)
{
    if (x->is_aborted)
        return;
    x->is_aborted = true;
    x->rc = rc;
    if (x->stream != NULL) {
        fl_h2_reset(x->stream, error);
        touch(x->conn);
    } else {
        x->placer_ops->abandon(x->placer, x);
        fl_loop_defer(x->loop, &x->fail);
    }
}

void fl_h2_exchange_fail(struct fl_h2_exchange *x, int rc)
{
    give_up(x, 0, rc);
}

void fl_h2_exchange_kill(struct fl_h2_exchange *x, int rc)
{
    exchange_end(x, x->rc != 0 ? x->rc : rc);
}

/* ---- commands ---- */

static struct fl_arena *x_arena(struct fl_exchange *base)
{
    struct fl_h2_exchange *x = of(base);
    return x->is_server ? fl_h2_arena(x->stream) : &x->arena;
}

static struct fl_loop *x_loop(const struct fl_exchange *base)
{
    return of_const(base)->loop;
}

static struct fl_stream *x_stream(const struct fl_exchange *base)
{
    const struct fl_h2_exchange *x = of_const(base);
    return x->conn != NULL ? x->conn->stream : NULL;
}

static void answer(struct fl_h2_exchange *x, const struct fl_head *head, bool is_end)
{
    bool has_no_body = head->status == 204 || head->status == 304;

    x->is_headless = x->is_headless || has_no_body;
    x->is_out_ended = is_end || x->is_headless;
    int rc = fl_h2_send_head(x->stream, head, x->is_out_ended);
    if (rc < 0) {
        give_up(x, FL_H2_INTERNAL_ERROR, rc);
        return;
    }
    touch(x->conn);
}

/* Until there is a connection; the caller's bytes are lent. */
static void keep_head(struct fl_h2_exchange *x, const struct fl_head *head)
{
    struct fl_head *kept = fl_arena_calloc(&x->arena, 1, sizeof(*kept));

    *kept = *head;
    kept->method = fl_arena_copy(&x->arena, head->method);
    kept->scheme = fl_arena_copy(&x->arena, head->scheme);
    kept->authority = fl_arena_copy(&x->arena, head->authority);
    kept->target = fl_arena_copy(&x->arena, head->target);
    kept->fields = (struct fl_fields){0};
    kept->arena = &x->arena;
    for (uint32_t i = 0; i < head->fields.count; i++)
        fl_fields_add_copy(&kept->fields, &x->arena, head->fields.items[i].name,
                           head->fields.items[i].value);
    x->kept_head = kept;
}

static void x_send_head(struct fl_exchange *base, const struct fl_head *head, bool is_end)
{
    struct fl_h2_exchange *x = of(base);

    if (x->is_aborted)
        return;
    assert(!x->is_head_sent); /* one final head */
    x->is_head_sent = true;
    if (x->is_server) {
        answer(x, head, is_end);
        return;
    }
    x->is_out_ended = is_end;
    /* Lent during the call: if the exchange can be placed now, nothing is copied. */
    x->kept_head = (struct fl_head *)(uintptr_t)head;
    x->placer_ops->place(x->placer, x);
    if (x->stream == NULL && !x->is_aborted)
        keep_head(x, head);
}

void fl_h2_exchange_submit(struct fl_h2_exchange *x, struct fl_h2_conn *conn)
{
    struct fl_slice slice;
    bool is_end = x->is_out_ended && x->kept_body.bytes == 0 && x->kept_trailers == NULL;

    fl_link_unlink(&x->wait_link);
    x->conn = conn;
    x->is_reused = conn->served > 0;
    x->stream = fl_h2_request(conn->h2, x->kept_head, is_end, x);
    if (x->stream == NULL) {
        x->conn = NULL;
        give_up(x, 0, FL_EPROTO); /* the head cannot be sent: nothing else fails here */
        return;
    }
    while (fl_chain_pop(&x->kept_body, &slice))
        fl_h2_send_data(x->stream, slice);
    fl_chain_fini(&x->kept_body);
    if (x->is_out_ended && !is_end && fl_h2_send_end(x->stream, x->kept_trailers) < 0)
        give_up(x, FL_H2_INTERNAL_ERROR, FL_EPROTO);
    touch(conn);
}

static void x_send_informational(struct fl_exchange *base, int status,
                                 const struct fl_fields *fields)
{
    struct fl_h2_exchange *x = of(base);

    assert(x->is_server);
    if (x->is_aborted || x->is_head_sent)
        return;
    if (fl_h2_send_informational(x->stream, status, fields) == 0)
        touch(x->conn);
}

static size_t x_queued(const struct fl_exchange *base)
{
    const struct fl_h2_exchange *x = of_const(base);
    return x->stream != NULL ? fl_h2_queued(x->stream) : x->kept_body.bytes;
}

static void x_send_body(struct fl_exchange *base, struct fl_slice slice)
{
    struct fl_h2_exchange *x = of(base);

    if (x->is_aborted || slice.n == 0 || x->is_headless) {
        fl_slice_unref(&slice);
        return;
    }
    assert(x->is_head_sent && !x->is_out_ended);
    if (x->stream != NULL) {
        fl_h2_send_data(x->stream, slice);
        touch(x->conn);
    } else {
        fl_chain_push(&x->kept_body, slice);
    }
    if (x_queued(base) > FL_EXCHANGE_HIGH_BYTES)
        x->is_high = true;
}

static void x_send_end(struct fl_exchange *base, const struct fl_fields *trailers)
{
    struct fl_h2_exchange *x = of(base);

    if (x->is_aborted || x->is_headless)
        return;
    assert(x->is_head_sent && !x->is_out_ended);
    x->is_out_ended = true;
    if (x->stream != NULL) {
        if (fl_h2_send_end(x->stream, trailers) < 0)
            give_up(x, FL_H2_INTERNAL_ERROR, FL_EPROTO);
        touch(x->conn);
    } else if (trailers != NULL) {
        x->kept_trailers = fl_arena_calloc(&x->arena, 1, sizeof(*x->kept_trailers));
        for (uint32_t i = 0; i < trailers->count; i++)
            fl_fields_add_copy(x->kept_trailers, &x->arena, trailers->items[i].name,
                               trailers->items[i].value);
    }
}

static void x_consume(struct fl_exchange *base, size_t n)
{
    struct fl_h2_exchange *x = of(base);

    assert(n <= x->held);
    x->held -= n;
    if (x->is_aborted || x->stream == NULL)
        return;
    fl_h2_consume(x->stream, n);
    touch(x->conn);
}

static void x_abort(struct fl_exchange *base, uint32_t h2_error)
{
    give_up(of(base), h2_error, FL_ECANCELLED);
}

static void x_close_after(struct fl_exchange *base)
{
    struct fl_h2_exchange *x = of(base);
    if (x->is_server)
        fl_h2_conn_drain(x->conn);
}

static bool x_is_reused_and_silent(const struct fl_exchange *base)
{
    const struct fl_h2_exchange *x = of_const(base);
    /* hooks: whoever ended the pool wants no retry. */
    return x->conn != NULL && !x->is_server && x->conn->hooks != NULL && x->is_reused &&
           !x->is_heard;
}

static bool x_is_sent(const struct fl_exchange *base)
{
    const struct fl_h2_exchange *x = of_const(base);
    return x->stream != NULL && fl_h2_is_sent(x->stream);
}

static const struct fl_exchange_ops h2_exchange_ops = {
    .arena = x_arena,
    .loop = x_loop,
    .stream = x_stream,
    .send_head = x_send_head,
    .send_informational = x_send_informational,
    .send_body = x_send_body,
    .send_end = x_send_end,
    .consume = x_consume,
    .queued = x_queued,
    .abort = x_abort,
    .close_after = x_close_after,
    .is_reused_and_silent = x_is_reused_and_silent,
    .is_sent = x_is_sent,
};

/* ---- what the session tells ---- */

static void on_head(void *owner, struct fl_h2_stream *stream, struct fl_head *head)
{
    struct fl_h2_conn *conn = owner;
    struct fl_h2_exchange *x = fl_h2_owner(stream);

    if (conn->is_server) {
        x = exchange_new(conn->loop, 0);
        x->is_server = true;
        x->conn = conn;
        x->stream = stream;
        x->is_headless = fl_bytes_eq(head->method, FL_BYTES("HEAD"));
        fl_h2_set_owner(stream, x);
        conn->hooks->on_request(conn, &x->base);
        assert(x->base.handler != NULL);
    }
    x->is_heard = true;
    x->is_bodyless = head->body == FL_BODY_NONE;
    if (!x->is_aborted)
        x->base.handler->on_head(x->base.owner, &x->base, head, x->is_bodyless);
}

static void on_informational(void *owner, struct fl_h2_stream *stream, struct fl_head *head)
{
    struct fl_h2_exchange *x = fl_h2_owner(stream);
    (void)owner;

    x->is_heard = true;
    if (!x->is_aborted && x->base.handler->on_informational != NULL)
        x->base.handler->on_informational(x->base.owner, &x->base, head);
}

static void on_data(void *owner, struct fl_h2_stream *stream, struct fl_slice slice)
{
    struct fl_h2_exchange *x = fl_h2_owner(stream);
    (void)owner;

    if (x->is_aborted) {
        fl_slice_unref(&slice);
        return;
    }
    x->held += slice.n;
    x->base.handler->on_body(x->base.owner, &x->base, slice);
}

static void on_end(void *owner, struct fl_h2_stream *stream, const struct fl_fields *trailers)
{
    struct fl_h2_exchange *x = fl_h2_owner(stream);
    (void)owner;

    if (!x->is_aborted && !x->is_bodyless)
        x->base.handler->on_end(x->base.owner, &x->base, trailers);
}

static void on_close(void *owner, struct fl_h2_stream *stream, int rc)
{
    struct fl_h2_conn *conn = owner;
    struct fl_h2_exchange *x = fl_h2_owner(stream);

    conn->served++;
    conn->quiet_ms = fl_loop_now_ms(conn->loop);
    exchange_end(x, x->rc != 0 ? x->rc : rc);
    if (conn->hooks != NULL && conn->hooks->on_change != NULL && !conn->is_closing)
        conn->hooks->on_change(conn);
}

static void on_sent(void *owner, struct fl_h2_stream *stream)
{
    struct fl_h2_exchange *x = fl_h2_owner(stream);
    (void)owner;

    if (!x->is_high || x->is_aborted || fl_h2_queued(stream) > FL_EXCHANGE_LOW_BYTES)
        return;
    x->is_high = false;
    if (x->base.handler->on_writable != NULL)
        x->base.handler->on_writable(x->base.owner, &x->base);
}

static void on_change(void *owner)
{
    struct fl_h2_conn *conn = owner;
    if (conn->hooks != NULL && conn->hooks->on_change != NULL && !conn->is_closing)
        conn->hooks->on_change(conn);
}

static const struct fl_h2_ops session_ops = {
    .on_head = on_head,
    .on_informational = on_informational,
    .on_data = on_data,
    .on_end = on_end,
    .on_close = on_close,
    .on_sent = on_sent,
    .on_change = on_change,
};

/* ---- the stream ---- */

static void fail_streams(struct fl_h2_conn *conn, int rc)
{
    conn->is_closing = true;
    fl_loop_timer_stop(conn->loop, &conn->timer);
    fl_loop_undefer(&conn->flush);
    fl_h2_fail(conn->h2, rc);
}

/* True if something was taken. */
static bool drain_once(struct fl_h2_conn *conn, int *rc)
{
    struct fl_chain out = {0};
    struct fl_slice slice;
    size_t room = FL_H2_DRAIN_BYTES - fl_stream_queued(conn->stream);

    *rc = fl_h2_drain(conn->h2, &out, room);
    bool is_some = out.bytes > 0;
    conn->stall.written += out.bytes;
    while (fl_chain_pop(&out, &slice))
        fl_stream_write(conn->stream, slice);
    fl_chain_fini(&out);
    return is_some;
}

/* The session will not go on: what it has still to say leaves, then the socket closes. */
static void close_over(struct fl_h2_conn *conn, int rc)
{
    int ignored;

    if (conn->is_closing)
        return;
    if (fl_stream_queued(conn->stream) < FL_H2_DRAIN_BYTES)
        (void)drain_once(conn, &ignored);
    fail_streams(conn, rc);
    fl_stream_close(conn->stream, FL_WEB_LINGER_MS);
}

static void on_flush(struct fl_deferred *flush)
{
    struct fl_h2_conn *conn = FL_CONTAINER_OF(flush, struct fl_h2_conn, flush);
    int rc = 0;

    while (rc == 0 && fl_stream_queued(conn->stream) < FL_H2_DRAIN_BYTES &&
           fl_h2_wants_drain(conn->h2))
        if (!drain_once(conn, &rc))
            break;
    if (rc < 0)
        close_over(conn, FL_EPROTO);
    else if (fl_h2_is_over(conn->h2))
        close_over(conn, FL_ECLOSED);
    else if (!conn->is_server && conn->is_draining && fl_h2_stream_count(conn->h2) == 0)
        close_over(conn, FL_ECLOSED);
}

/* Bytes read and fed; 0: nothing there. A negative rc of the session. */
static int64_t read_once(struct fl_h2_conn *conn)
{
    uint8_t scratch[SCRATCH_BYTES];
    size_t room;
    uint8_t *at = fl_web_reader_room(conn->reader, &room);
    struct fl_chunk *chunk = conn->reader->chunk;

    if (at == NULL) {
        at = scratch;
        room = sizeof(scratch);
        chunk = NULL;
    }
    int64_t n = fl_stream_read(conn->stream, at, room);
    if (n <= 0)
        return 0;
    conn->is_heard = true;
    /* Held during the feed: a callback may read for another connection of the loop. */
    if (chunk != NULL) {
        fl_chunk_ref(chunk);
        conn->reader->used += (uint32_t)n;
    }
    int rc = fl_h2_feed(conn->h2, fl_bytes(at, (size_t)n), chunk);
    if (chunk != NULL)
        fl_chunk_unref(chunk);
    return rc < 0 ? rc : n;
}

static void on_readable(void *owner, struct fl_stream *stream)
{
    struct fl_h2_conn *conn = owner;
    (void)stream;

    for (int round = 0; round < READ_ROUNDS && !conn->is_closing; round++) {
        int64_t n = read_once(conn);
        if (n < 0) {
            close_over(conn, (int)n);
            return;
        }
        if (n == 0)
            break;
    }
    touch(conn);
}

static void on_eof(void *owner, struct fl_stream *stream)
{
    struct fl_h2_conn *conn = owner;

    on_readable(owner, stream);
    /* HTTP/2 has no half-closed connections: who cannot read WINDOW_UPDATEs cannot go on. */
    if (!conn->is_closing) {
        fail_streams(conn, FL_ECLOSED);
        fl_stream_close(conn->stream, 0);
    }
}

static void on_writable(void *owner, struct fl_stream *stream)
{
    (void)stream;
    touch(owner);
}

static void on_connected(void *owner, struct fl_stream *stream)
{
    struct fl_h2_conn *conn = owner;

    /* A peer without ALPN would take our preface for a broken HTTP/1 request. */
    if (!conn->is_server && fl_stream_is_tls(stream) && strcmp(fl_stream_alpn(stream), "h2") != 0) {
        fail_streams(conn, FL_ETLS);
        fl_stream_abort(stream, false);
    }
}

static void conn_free(struct fl_disposable *dispose)
{
    struct fl_h2_conn *conn = FL_CONTAINER_OF(dispose, struct fl_h2_conn, dispose);
    fl_h2_free(conn->h2);
    fl_free(conn);
}

static void on_closed(void *owner, struct fl_stream *stream, int rc)
{
    struct fl_h2_conn *conn = owner;
    (void)stream;

    if (!conn->is_closing)
        fail_streams(conn, rc < 0 ? rc : FL_ECLOSED);
    if (conn->hooks != NULL)
        conn->hooks->on_gone(conn);
    fl_loop_dispose(conn->loop, &conn->dispose, conn_free);
}

static const struct fl_stream_ops stream_ops = {
    .on_connected = on_connected,
    .on_readable = on_readable,
    .on_eof = on_eof,
    .on_writable = on_writable,
    .on_closed = on_closed,
};

/* ---- time ---- */

static void last_word(struct fl_h2_conn *conn)
{
    conn->is_last_word = true;
    fl_h2_goaway(conn->h2, FL_H2_NO_ERROR);
    touch(conn); /* over as soon as it has gone out */
}

static void on_timer(struct fl_timer *timer)
{
    struct fl_h2_conn *conn = FL_CONTAINER_OF(timer, struct fl_h2_conn, timer);
    uint64_t now_ms = fl_loop_now_ms(conn->loop);
    uint64_t next_ms = conn->idle_timeout_ms;

    if (fl_web_stall_ms(&conn->stall, conn->stream, now_ms) >= conn->idle_timeout_ms) {
        fail_streams(conn, FL_ETIMEOUT);
        fl_stream_abort(conn->stream, true);
        return;
    }
    if (fl_h2_stream_count(conn->h2) > 0) {
        conn->quiet_ms = now_ms;
    } else if (conn->is_draining) {
        if (!conn->is_last_word)
            last_word(conn);
    } else {
        uint64_t limit_ms =
            conn->is_server && !conn->is_heard ? conn->head_timeout_ms : conn->idle_timeout_ms;
        uint64_t quiet_ms = now_ms - conn->quiet_ms;
        if (quiet_ms >= limit_ms) {
            fl_h2_conn_drain(conn);
            return;
        }
        next_ms = limit_ms - quiet_ms;
    }
    if (conn->is_draining && next_ms > DRAIN_STEP_MS)
        next_ms = DRAIN_STEP_MS;
    if (next_ms != UINT64_MAX)
        fl_loop_timer_start(conn->loop, &conn->timer, next_ms);
}

/* ---- making and ending ---- */

static struct fl_h2_conn *conn_new(struct fl_loop *loop, struct fl_web_reader *reader,
                                   const struct fl_h2_config *config,
                                   const struct fl_h2_hooks *hooks, void *owner)
{
    struct fl_h2_conn *conn = fl_calloc(1, sizeof(*conn));

    conn->loop = loop;
    conn->reader = reader;
    conn->hooks = hooks;
    conn->owner = owner;
    conn->quiet_ms = fl_loop_now_ms(loop);
    conn->stall.since_ms = conn->quiet_ms;
    fl_link_init(&conn->link);
    fl_timer_init(&conn->timer, on_timer);
    fl_deferred_init(&conn->flush, on_flush);
    conn->h2 = fl_h2_new(config, &session_ops, conn);
    return conn;
}

struct fl_h2_conn *fl_h2_server_new(struct fl_loop *loop, struct fl_stream *stream,
                                    struct fl_web_reader *reader, const struct fl_h2_config *config,
                                    const struct fl_h2_hooks *hooks, void *owner,
                                    uint64_t head_timeout_ms, uint64_t idle_timeout_ms)
{
    struct fl_h2_conn *conn = conn_new(loop, reader, config, hooks, owner);

    conn->is_server = true;
    conn->stream = stream;
    conn->head_timeout_ms = head_timeout_ms;
    conn->idle_timeout_ms = idle_timeout_ms;
    fl_stream_set_owner(stream, &stream_ops, conn);
    return conn;
}

void fl_h2_conn_start(struct fl_h2_conn *conn)
{
    uint64_t first_ms = conn->head_timeout_ms < conn->idle_timeout_ms ? conn->head_timeout_ms
                                                                      : conn->idle_timeout_ms;
    fl_loop_timer_start(conn->loop, &conn->timer, first_ms);
    on_readable(conn, conn->stream);
}

struct fl_h2_conn *fl_h2_client_new(struct fl_loop *loop, const struct fl_addr *addr,
                                    const struct fl_stream_config *stream_config,
                                    struct fl_web_reader *reader, const struct fl_h2_config *config,
                                    const struct fl_h2_hooks *hooks, void *owner,
                                    uint64_t idle_timeout_ms)
{
    struct fl_h2_conn *conn = conn_new(loop, reader, config, hooks, owner);

    conn->idle_timeout_ms = idle_timeout_ms;
    conn->stream = fl_stream_connect(loop, addr, stream_config, &stream_ops, conn);
    if (idle_timeout_ms != UINT64_MAX)
        fl_loop_timer_start(loop, &conn->timer, idle_timeout_ms);
    touch(conn);
    return conn;
}

bool fl_h2_conn_can_open(const struct fl_h2_conn *conn)
{
    return !conn->is_closing && !conn->is_draining && fl_h2_can_open(conn->h2);
}

bool fl_h2_conn_is_spent(const struct fl_h2_conn *conn)
{
    return conn->is_closing || conn->is_draining || fl_h2_is_closing(conn->h2);
}

void fl_h2_conn_drain(struct fl_h2_conn *conn)
{
    if (conn->is_draining || conn->is_closing)
        return;
    conn->is_draining = true;
    if (conn->is_server) {
        fl_h2_shutdown_notice(conn->h2);
        fl_loop_timer_start(conn->loop, &conn->timer, DRAIN_STEP_MS);
    }
    touch(conn);
}

void fl_h2_conn_kill(struct fl_h2_conn *conn)
{
    conn->hooks = NULL;
    if (!conn->is_closing)
        fail_streams(conn, FL_ECANCELLED);
    fl_stream_abort(conn->stream, true);
}
