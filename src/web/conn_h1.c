/* SPDX-License-Identifier: Apache-2.0 */
#include "web/conn_h1.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "web/exchange_h1.h"

/* Under the address sanitizer memory is given back at once, so that it sees who uses it too long.
 */
#if defined(__SANITIZE_ADDRESS__)
static const uint32_t spares_max = 0;
#else
static const uint32_t spares_max = FL_WEB_SPARES_MAX;
#endif

/* ---- lives ---- */

static struct fl_h1_exchange *exchange_new(struct fl_h1_conn *conn)
{
    struct fl_link *spare = fl_link_pop_head(&conn->reader->spares);
    struct fl_h1_exchange *x;

    if (spare != NULL) {
        x = FL_CONTAINER_OF(spare, struct fl_h1_exchange, spare);
        conn->reader->spare_count--;
    } else {
        x = fl_alloc(sizeof(*x));
    }
    memset(x, 0, offsetof(struct fl_h1_exchange, room));
    x->base.ops = &fl_h1_exchange_ops;
    x->conn = conn;
    x->begun_ms = fl_loop_now_ms(conn->loop);
    x->is_reused = conn->served > 0;
    x->in_keeps = x->out_keeps = true;
    fl_arena_init_with(&x->arena, 0, x->room, sizeof(x->room));
    conn->x = x;
    return x;
}

/* The only way an exchange ends. From the loop, never from inside a command. */
static void exchange_end(struct fl_h1_exchange *x, int rc)
{
    struct fl_h1_conn *conn = x->conn;

    conn->x = NULL;
    conn->served++;
    if (x->is_announced)
        x->base.handler->on_close(x->base.owner, &x->base, rc);
    fl_arena_fini(&x->arena);
    if (conn->hooks == NULL || conn->reader->spare_count >= spares_max) {
        fl_free(x);
        return;
    }
    fl_link_init(&x->spare);
    fl_link_push_head(&conn->reader->spares, &x->spare);
    conn->reader->spare_count++;
}

static void conn_free(struct fl_disposable *dispose)
{
    struct fl_h1_conn *conn = FL_CONTAINER_OF(dispose, struct fl_h1_conn, dispose);
    fl_http1_parser_fini(&conn->parser);
    fl_free(conn);
}

static void stop_reading(struct fl_h1_conn *conn)
{
    conn->is_closing = true;
    fl_loop_timer_stop(conn->loop, &conn->timer);
}

/* Lets the peer have what was written. */
static void close_gently(struct fl_h1_conn *conn)
{
    if (conn->is_closing)
        return;
    stop_reading(conn);
    fl_stream_close(conn->stream, FL_WEB_LINGER_MS);
}

/* So that the peer sees that something is missing. */
static void close_hard(struct fl_h1_conn *conn)
{
    struct fl_h1_exchange *x = conn->x;

    if (conn->is_closing)
        return;
    /* Under a length or chunks a FIN shows the truncation, and what was sent still arrives. */
    bool is_visible =
        conn->is_server && x != NULL && x->out == OUT_BODY && x->out_framing != FL_BODY_UNTIL_CLOSE;
    if (is_visible) {
        close_gently(conn);
        return;
    }
    stop_reading(conn);
    fl_stream_abort(conn->stream, true);
}

void fl_h1_give_up(struct fl_h1_exchange *x, int rc)
{
    if (x->rc == 0)
        x->rc = rc;
    x->is_aborted = true;
    close_hard(x->conn);
}

void fl_h1_work_later(struct fl_h1_conn *conn)
{
    if (!conn->is_pumping)
        fl_loop_defer(conn->loop, &conn->work);
}

/* ---- reading ---- */

/* The request cannot be served: answered if nothing was yet, then the connection ends. */
static void refuse(struct fl_h1_conn *conn, int status, const char *word, int rc)
{
    struct fl_h1_exchange *x = conn->x;
    struct fl_arena *arena = &x->arena;

    if (x->out == OUT_NONE && !x->is_aborted) {
        struct fl_buf body = {0};
        const char *content_type = "text/plain";
        if (conn->hooks->on_bad_request != NULL)
            conn->hooks->on_bad_request(conn, status, word, &body, &content_type);
        struct fl_head head = {
            .status = (uint16_t)status,
            .body = FL_BODY_LENGTH,
            .content_length = fl_buf_size(&body),
            .arena = arena,
        };
        fl_fields_add(&head.fields, arena, FL_BYTES("content-type"), fl_bytes_of(content_type));
        struct fl_buf *scratch = fl_h1_scratch(conn);
        struct fl_http1_framing framing;
        if (fl_http1_write_response(scratch, &head, x->request, false, &framing) == 0) {
            if (framing.body == FL_BODY_LENGTH)
                (void)fl_buf_append(scratch, fl_buf_bytes(&body));
            fl_h1_write_scratch(conn, scratch);
        }
        fl_buf_fini(&body);
        x->is_aborted = true;
        if (x->rc == 0)
            x->rc = rc;
        close_gently(conn);
        return;
    }
    fl_h1_give_up(x, rc);
}

static void take_request(struct fl_h1_conn *conn, const struct fl_http1_event *ev)
{
    struct fl_h1_exchange *x = conn->x;

    x->request = ev->head;
    if (fl_bytes_is_absent(ev->head->scheme))
        ev->head->scheme = fl_stream_is_tls(conn->stream) ? FL_BYTES("https") : FL_BYTES("http");
    x->in = ev->is_end ? IN_DONE : IN_BODY;
    x->in_keeps = ev->head->keep_alive;
    x->out_minor = ev->head->minor;
    x->body_ms = fl_loop_now_ms(conn->loop);
    x->takes_trailers =
        fl_fields_has_token(&ev->head->fields, FL_BYTES("te"), FL_BYTES("trailers"));
    x->is_announced = true;
    conn->hooks->on_request(conn, &x->base);
    assert(x->base.handler != NULL);
    if (!x->is_aborted)
        x->base.handler->on_head(x->base.owner, &x->base, ev->head, ev->is_end);
}

static void take_response(struct fl_h1_conn *conn, const struct fl_http1_event *ev)
{
    struct fl_h1_exchange *x = conn->x;

    x->in = ev->is_end ? IN_DONE : IN_BODY;
    x->in_keeps = ev->head->keep_alive;
    x->base.handler->on_head(x->base.owner, &x->base, ev->head, ev->is_end);
}

static void take_body(struct fl_h1_conn *conn, struct fl_slice slice)
{
    struct fl_h1_exchange *x = conn->x;

    if (slice.n == 0 || x->is_aborted) {
        fl_slice_unref(&slice);
        return;
    }
    x->held += slice.n;
    x->body_ms = fl_loop_now_ms(conn->loop);
    x->base.handler->on_body(x->base.owner, &x->base, slice);
}

static void take_bad(struct fl_h1_conn *conn, const struct fl_http1_event *ev)
{
    if (conn->is_server && ev->defect != fl_http1_cut)
        refuse(conn, ev->defect->status, ev->defect->word, FL_EPROTO);
    else
        fl_h1_give_up(conn->x, ev->defect == fl_http1_cut ? FL_ECLOSED : FL_EPROTO);
}

/* Anything but BODY. */
static void take_event(struct fl_h1_conn *conn, enum fl_http1_result result,
                       const struct fl_http1_event *ev)
{
    struct fl_h1_exchange *x = conn->x;

    switch (result) {
    case FL_HTTP1_HEAD:
        if (conn->is_server)
            take_request(conn, ev);
        else
            take_response(conn, ev);
        break;
    case FL_HTTP1_INFORMATIONAL:
        if (x->base.handler->on_informational != NULL)
            x->base.handler->on_informational(x->base.owner, &x->base, ev->head);
        break;
    case FL_HTTP1_END:
        x->in = IN_DONE;
        x->base.handler->on_end(x->base.owner, &x->base, ev->trailers);
        break;
    case FL_HTTP1_BAD:
        take_bad(conn, ev);
        break;
    case FL_HTTP1_BODY:
    case FL_HTTP1_MORE:
        break;
    }
}

static bool adjoins(struct fl_slice a, struct fl_slice b)
{
    return a.chunk != NULL && a.chunk == b.chunk && a.p + a.n == b.p;
}

/* Feeds `in`, which lies in the read-ahead buffer (is_ahead) or is the first of the reader's room.
 * Stops when the message is complete: what follows it stays read ahead. Runs of small chunks are
 * handed on as one slice. */
static void feed(struct fl_h1_conn *conn, struct fl_bytes in, bool is_ahead)
{
    struct fl_h1_exchange *x = conn->x;
    struct fl_slice pending = {0};

    while (!x->is_aborted && x->in != IN_DONE) {
        struct fl_http1_event ev;
        enum fl_http1_result result = fl_http1_feed(&conn->parser, &x->arena, in, &ev);
        if (result == FL_HTTP1_BODY) {
            struct fl_slice slice = is_ahead ? fl_web_reader_copy(conn->reader, ev.body)
                                             : fl_web_reader_take(conn->reader, ev.body.n);
            if (slice.p == NULL) {
                refuse(conn, 503, "overloaded", FL_ENOMEM);
                break;
            }
            if (adjoins(pending, slice)) {
                pending.n += slice.n;
                fl_slice_unref(&slice);
            } else {
                take_body(conn, pending);
                pending = slice;
            }
        }
        /* What the event shows lies elsewhere by now. */
        if (is_ahead) {
            fl_stream_consume(conn->stream, ev.consumed);
            in = fl_stream_peek(conn->stream);
        } else {
            in = fl_bytes_skip(in, ev.consumed);
        }
        if (result == FL_HTTP1_BODY)
            continue;
        take_body(conn, pending);
        pending = (struct fl_slice){0};
        if (result == FL_HTTP1_MORE)
            return;
        if (!x->is_aborted)
            take_event(conn, result, &ev);
    }
    take_body(conn, pending);
}

/* One read. False: nothing is there now. */
static bool read_some(struct fl_h1_conn *conn)
{
    struct fl_h1_exchange *x = conn->x;
    uint64_t left = x->in == IN_BODY ? fl_http1_body_left(&conn->parser) : 0;

    if (left == 0) {
        struct fl_bytes in = fl_stream_peek(conn->stream);
        if (in.n == 0)
            return false;
        x->is_heard = true;
        feed(conn, in, true);
        return true;
    }
    size_t room;
    uint8_t *at = fl_web_reader_room(conn->reader, &room);
    if (at == NULL) {
        refuse(conn, 503, "overloaded", FL_ENOMEM);
        return false;
    }
    int64_t n = fl_stream_read(conn->stream, at, left < room ? (size_t)left : room);
    if (n <= 0)
        return false; /* on_eof and on_closed tell why */
    feed(conn, fl_bytes(at, (size_t)n), false);
    return true;
}

static void take_eof(struct fl_h1_conn *conn)
{
    struct fl_h1_exchange *x = conn->x;
    struct fl_http1_event ev;

    if (x->in == IN_DONE) {
        /* A client that has left, or half-closed: we cannot tell, and an engine that works for
         * nobody costs more than a client which shuts down its side early (gateway.md 8.6). */
        if (conn->is_server && x->out != OUT_DONE)
            fl_h1_give_up(x, FL_ECLOSED);
        return;
    }
    enum fl_http1_result result = fl_http1_feed_eof(&conn->parser, &ev);
    if (result == FL_HTTP1_MORE)
        fl_h1_give_up(x, FL_ECLOSED);
    else
        take_event(conn, result, &ev);
}

static void restart_timer(struct fl_h1_conn *conn, uint64_t delay_ms)
{
    uint64_t due_ms = fl_loop_now_ms(conn->loop) + delay_ms;

    /* Only towards an earlier time: the timer finds out by itself when it has fired too soon. */
    if (!fl_timer_is_running(&conn->timer) || conn->timer.deadline_ms > due_ms)
        fl_loop_timer_start(conn->loop, &conn->timer, delay_ms);
}

/* Both messages have ended, or one in a way that ends the other. True: the connection goes on. */
static bool finish(struct fl_h1_conn *conn)
{
    struct fl_h1_exchange *x = conn->x;
    bool is_whole = x->in == IN_DONE && x->out == OUT_DONE;
    bool keeps = is_whole && x->in_keeps && x->out_keeps && !conn->is_last && !conn->is_closing &&
                 !conn->is_eof;

    if (x->is_aborted) {
        exchange_end(x, x->rc);
        return false;
    }
    if (!keeps)
        close_gently(conn);
    exchange_end(x, 0);
    conn->last_ms = fl_loop_now_ms(conn->loop);
    if (!keeps || conn->is_closing)
        return false;
    if (!conn->hooks->keep(conn)) {
        close_gently(conn);
        return false;
    }
    return true;
}

static bool is_finished(const struct fl_h1_exchange *x)
{
    if (x->is_aborted)
        return true;
    return x->conn->is_server ? x->out == OUT_DONE : x->in == IN_DONE;
}

/* True if a request may begin. */
static bool begin_request(struct fl_h1_conn *conn)
{
    /* A client that asks on but does not read must not make our queue grow. */
    if (!conn->is_server || conn->is_last || fl_stream_queued(conn->stream) > FL_STREAM_LOW_BYTES)
        return false;
    if (fl_stream_peek(conn->stream).n == 0)
        return false;
    exchange_new(conn);
    return true;
}

/* Reads and acts until there is nothing more to do now. Called by the loop only. */
static void pump(struct fl_h1_conn *conn)
{
    conn->is_pumping = true;
    while (!conn->is_closing || conn->x != NULL) {
        struct fl_h1_exchange *x = conn->x;
        if (x == NULL) {
            if (!begin_request(conn))
                break;
            continue;
        }
        if (is_finished(x)) {
            if (!finish(conn))
                break;
            continue;
        }
        if (conn->is_eof && conn->is_server && x->in == IN_DONE) {
            take_eof(conn);
            continue;
        }
        if (conn->is_closing || x->in == IN_DONE || x->held >= FL_STREAM_HIGH_BYTES ||
            (!conn->is_server && x->out == OUT_NONE))
            break;
        if (!read_some(conn) && !x->is_aborted) {
            if (!conn->is_eof)
                break;
            take_eof(conn);
        }
    }
    conn->is_pumping = false;
}

/* After a pump: what is now to be waited for. */
static void settle(struct fl_h1_conn *conn)
{
    struct fl_h1_exchange *x = conn->x;

    if (conn->is_closing)
        return;
    if (x == NULL) {
        bool is_at_rest = fl_stream_peek(conn->stream).n == 0;
        /* A server's unsolicited bytes would be taken for the next answer. */
        if (!conn->is_server && !is_at_rest)
            close_gently(conn);
        else if (conn->is_eof && is_at_rest)
            close_gently(conn);
        else if (conn->is_server)
            restart_timer(conn, conn->idle_timeout_ms);
        return;
    }
    if (!conn->is_server)
        return;
    if (x->in == IN_HEAD && fl_http1_is_idle(&conn->parser)) {
        /* Blank lines only: no message has begun. */
        exchange_end(x, 0);
        conn->served--;
        return;
    }
    restart_timer(conn, x->in == IN_HEAD ? conn->head_timeout_ms : conn->idle_timeout_ms);
}

static void run(struct fl_h1_conn *conn)
{
    pump(conn);
    settle(conn);
}

static void on_work(struct fl_deferred *work)
{
    run(FL_CONTAINER_OF(work, struct fl_h1_conn, work));
}

/* ---- the stream ---- */

static void on_readable(void *owner, struct fl_stream *stream)
{
    struct fl_h1_conn *conn = owner;
    (void)stream;
    conn->last_ms = fl_loop_now_ms(conn->loop);
    run(conn);
}

static void on_eof(void *owner, struct fl_stream *stream)
{
    struct fl_h1_conn *conn = owner;
    (void)stream;

    conn->is_eof = true;
    run(conn);
}

static void on_writable(void *owner, struct fl_stream *stream)
{
    struct fl_h1_conn *conn = owner;
    struct fl_h1_exchange *x = conn->x;
    (void)stream;

    if (x != NULL && x->is_high && !x->is_aborted) {
        x->is_high = false;
        if (x->base.handler != NULL && x->base.handler->on_writable != NULL)
            x->base.handler->on_writable(x->base.owner, &x->base);
    }
    run(conn);
}

static void on_closed(void *owner, struct fl_stream *stream, int rc)
{
    struct fl_h1_conn *conn = owner;
    struct fl_h1_exchange *x = conn->x;
    (void)stream;

    stop_reading(conn);
    if (x != NULL) {
        if (x->rc == 0)
            x->rc = rc < 0 ? rc : FL_ECLOSED;
        exchange_end(x, x->rc);
    }
    fl_loop_undefer(&conn->work);
    if (conn->hooks != NULL)
        conn->hooks->on_gone(conn);
    fl_loop_dispose(conn->loop, &conn->dispose, conn_free);
}

static const struct fl_stream_ops stream_ops = {
    .on_readable = on_readable,
    .on_eof = on_eof,
    .on_writable = on_writable,
    .on_closed = on_closed,
};

/* ---- time (server) ---- */

static uint64_t min_ms(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* How long until `limit_ms` have passed since `since_ms`; 0: they have. */
static uint64_t left_ms(uint64_t now_ms, uint64_t since_ms, uint64_t limit_ms)
{
    uint64_t passed_ms = now_ms > since_ms ? now_ms - since_ms : 0;
    return passed_ms >= limit_ms ? 0 : limit_ms - passed_ms;
}

static void on_timer(struct fl_timer *timer)
{
    struct fl_h1_conn *conn = FL_CONTAINER_OF(timer, struct fl_h1_conn, timer);
    struct fl_h1_exchange *x = conn->x;
    uint64_t now_ms = fl_loop_now_ms(conn->loop);
    uint64_t next_ms = conn->idle_timeout_ms;
    uint64_t left;

    if (x == NULL) {
        uint64_t limit_ms = conn->served == 0 ? conn->head_timeout_ms : conn->idle_timeout_ms;
        left = left_ms(now_ms, conn->last_ms, limit_ms);
        if (left == 0) {
            close_gently(conn);
            return;
        }
        next_ms = left;
    } else if (x->in == IN_HEAD) {
        left = left_ms(now_ms, x->begun_ms, conn->head_timeout_ms);
        if (left == 0)
            refuse(conn, 408, "request_timeout", FL_ETIMEOUT);
        next_ms = left;
    } else if (x->in == IN_BODY && x->held < FL_STREAM_HIGH_BYTES) {
        left = left_ms(now_ms, x->body_ms, conn->idle_timeout_ms);
        if (left == 0)
            refuse(conn, 408, "request_timeout", FL_ETIMEOUT);
        next_ms = left;
    }
    if (x != NULL && !x->is_aborted) {
        uint64_t stalled_ms = fl_web_stall_ms(&conn->stall, conn->stream, now_ms);
        if (stalled_ms >= conn->idle_timeout_ms)
            fl_h1_give_up(x, FL_ETIMEOUT);
        else
            next_ms = min_ms(next_ms, conn->idle_timeout_ms - stalled_ms);
    }
    if (x != NULL && x->is_aborted)
        run(conn);
    else
        fl_loop_timer_start(conn->loop, &conn->timer, next_ms);
}

/* ---- making and ending ---- */

static struct fl_h1_conn *conn_new(struct fl_loop *loop, struct fl_web_reader *reader,
                                   const struct fl_h1_hooks *hooks, void *owner)
{
    struct fl_h1_conn *conn = fl_calloc(1, sizeof(*conn));

    conn->loop = loop;
    conn->reader = reader;
    conn->hooks = hooks;
    conn->owner = owner;
    conn->last_ms = fl_loop_now_ms(loop);
    fl_link_init(&conn->link);
    fl_link_init(&conn->pool_link);
    fl_timer_init(&conn->timer, on_timer);
    fl_deferred_init(&conn->work, on_work);
    return conn;
}

struct fl_h1_conn *fl_h1_server_new(struct fl_loop *loop, struct fl_stream *stream,
                                    struct fl_web_reader *reader,
                                    const struct fl_http1_limits *limits,
                                    const struct fl_h1_hooks *hooks, void *owner,
                                    uint64_t head_timeout_ms, uint64_t idle_timeout_ms)
{
    struct fl_h1_conn *conn = conn_new(loop, reader, hooks, owner);

    conn->is_server = true;
    conn->stream = stream;
    conn->head_timeout_ms = head_timeout_ms;
    conn->idle_timeout_ms = idle_timeout_ms;
    fl_http1_parser_init(&conn->parser, FL_HTTP1_REQUESTS, limits);
    fl_stream_set_owner(stream, &stream_ops, conn);
    return conn;
}

void fl_h1_conn_start(struct fl_h1_conn *conn)
{
    fl_loop_timer_start(conn->loop, &conn->timer, conn->head_timeout_ms);
    run(conn);
}

struct fl_h1_conn *fl_h1_client_new(struct fl_loop *loop, const struct fl_addr *addr,
                                    const struct fl_stream_config *config,
                                    struct fl_web_reader *reader,
                                    const struct fl_http1_limits *limits,
                                    const struct fl_h1_hooks *hooks, void *owner)
{
    struct fl_h1_conn *conn = conn_new(loop, reader, hooks, owner);

    fl_http1_parser_init(&conn->parser, FL_HTTP1_RESPONSES, limits);
    conn->stream = fl_stream_connect(loop, addr, config, &stream_ops, conn);
    return conn;
}

struct fl_exchange *fl_h1_client_open(struct fl_h1_conn *conn,
                                      const struct fl_exchange_handler *handler, void *owner)
{
    assert(conn->x == NULL && !conn->is_closing);
    struct fl_h1_exchange *x = exchange_new(conn);
    x->base.handler = handler;
    x->base.owner = owner;
    x->is_announced = true;
    return &x->base;
}

void fl_h1_conn_drain(struct fl_h1_conn *conn)
{
    conn->is_last = true;
    if (conn->x == NULL)
        close_gently(conn);
}

void fl_h1_conn_kill(struct fl_h1_conn *conn)
{
    struct fl_h1_exchange *x = conn->x;

    stop_reading(conn);
    conn->hooks = NULL;
    fl_loop_undefer(&conn->work);
    if (x != NULL) {
        int rc = x->rc != 0 ? x->rc : FL_ECANCELLED;
        x->is_aborted = true;
        exchange_end(x, rc);
    }
    fl_stream_abort(conn->stream, true);
}

void fl_h1_conn_close(struct fl_h1_conn *conn)
{
    assert(conn->x == NULL);
    if (conn->is_closing)
        return;
    stop_reading(conn);
    fl_stream_close(conn->stream, 0);
}
