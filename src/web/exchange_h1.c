/* SPDX-License-Identifier: Apache-2.0 */
#include "web/exchange_h1.h"

#include <assert.h>

/* What is written from one scratch buffer; larger ones give their memory back. */
#define SCRATCH_KEPT_BYTES 16384

static struct fl_h1_exchange *of(struct fl_exchange *x)
{
    return FL_CONTAINER_OF(x, struct fl_h1_exchange, base);
}

static const struct fl_h1_exchange *of_const(const struct fl_exchange *x)
{
    return (const struct fl_h1_exchange *)x; /* `base` is its first member */
}

/* ---- writing ---- */

struct fl_buf *fl_h1_scratch(struct fl_h1_conn *conn)
{
    fl_buf_clear(&conn->reader->scratch);
    return &conn->reader->scratch;
}

void fl_h1_write_scratch(struct fl_h1_conn *conn, struct fl_buf *scratch)
{
    conn->stall.written += fl_buf_size(scratch);
    fl_stream_write_copy(conn->stream, fl_buf_bytes(scratch));
    size_t n = fl_buf_size(scratch);
    fl_buf_clear(scratch);
    if (n > SCRATCH_KEPT_BYTES)
        fl_buf_trim(scratch);
}

static void write_copy(struct fl_h1_conn *conn, struct fl_bytes bytes)
{
    conn->stall.written += bytes.n;
    fl_stream_write_copy(conn->stream, bytes);
}

static void write_slice(struct fl_h1_conn *conn, struct fl_slice slice)
{
    conn->stall.written += slice.n;
    fl_stream_write(conn->stream, slice);
}

static void out_done(struct fl_h1_exchange *x)
{
    x->out = OUT_DONE;
    if (x->out_framing == FL_BODY_LENGTH && x->out_left > 0) {
        /* Less than was declared: only an early end of the connection tells the peer. */
        x->out = OUT_BODY;
        fl_h1_give_up(x, FL_EPROTO);
    }
    fl_h1_work_later(x->conn);
}

static int write_head(struct fl_h1_exchange *x, const struct fl_head *head, struct fl_buf *scratch)
{
    struct fl_h1_conn *conn = x->conn;
    struct fl_http1_framing framing;
    int rc;

    if (conn->is_server) {
        /* An answer given before the request was read: the rest of it will not be (gateway.md 7).
         */
        bool keep_alive = x->in == IN_DONE && x->in_keeps && x->out_keeps && !conn->is_last;
        rc = fl_http1_write_response(scratch, head, x->request, keep_alive, &framing);
        if (rc < 0)
            return rc;
        x->out_framing = framing.body;
        x->out_keeps = framing.keep_alive;
        return 0;
    }
    rc = fl_http1_write_request(scratch, head, true);
    if (rc < 0)
        return rc;
    if (head->body == FL_BODY_NONE || head->body == FL_BODY_LENGTH)
        x->out_framing = head->body;
    else
        x->out_framing = FL_BODY_CHUNKED;
    fl_http1_expect(&conn->parser, fl_bytes_eq(head->method, FL_BYTES("HEAD")), false);
    return 0;
}

static void h1_send_end(struct fl_exchange *base, const struct fl_fields *trailers);

static void h1_send_head(struct fl_exchange *base, const struct fl_head *head, bool is_end)
{
    struct fl_h1_exchange *x = of(base);
    struct fl_h1_conn *conn = x->conn;

    if (x->is_aborted || conn->is_closing)
        return;
    assert(x->out == OUT_NONE); /* one final head */
    struct fl_buf *scratch = fl_h1_scratch(conn);
    int rc = write_head(x, head, scratch);
    if (rc < 0) {
        fl_h1_give_up(x, rc);
        fl_h1_work_later(conn);
        return;
    }
    fl_h1_write_scratch(conn, scratch);
    x->out = OUT_BODY;
    x->out_left = x->out_framing == FL_BODY_LENGTH ? head->content_length : 0;
    if (is_end)
        h1_send_end(base, NULL);
}

static void h1_send_informational(struct fl_exchange *base, int status,
                                  const struct fl_fields *fields)
{
    struct fl_h1_exchange *x = of(base);
    struct fl_h1_conn *conn = x->conn;
    struct fl_head head = {.status = (uint16_t)status, .content_length = UINT64_MAX};

    /* A 1.0 client would take it for the answer. */
    if (x->is_aborted || conn->is_closing || x->out != OUT_NONE || x->out_minor == 0)
        return;
    assert(conn->is_server && status >= 100 && status < 200 && status != 101);
    if (fields != NULL)
        head.fields = *fields;
    struct fl_buf *scratch = fl_h1_scratch(conn);
    if (fl_http1_write_response(scratch, &head, x->request, true, NULL) == 0)
        fl_h1_write_scratch(conn, scratch);
}

static void h1_send_body(struct fl_exchange *base, struct fl_slice slice)
{
    struct fl_h1_exchange *x = of(base);
    struct fl_h1_conn *conn = x->conn;

    if (x->is_aborted || conn->is_closing || slice.n == 0 || x->out_framing == FL_BODY_NONE) {
        fl_slice_unref(&slice);
        return;
    }
    assert(x->out == OUT_BODY);
    if (x->out_framing == FL_BODY_CHUNKED) {
        uint8_t size[FL_HTTP1_CHUNK_HEAD_ROOM];
        write_copy(conn, fl_bytes(size, fl_http1_chunk_head(size, slice.n)));
        write_slice(conn, slice);
        write_copy(conn, FL_HTTP1_CHUNK_TAIL);
    } else {
        if (x->out_framing == FL_BODY_LENGTH) {
            if (slice.n > x->out_left) { /* more than was declared would be the next message */
                fl_slice_unref(&slice);
                fl_h1_give_up(x, FL_EPROTO);
                fl_h1_work_later(conn);
                return;
            }
            x->out_left -= slice.n;
        }
        write_slice(conn, slice);
    }
    if (fl_stream_queued(conn->stream) > FL_EXCHANGE_HIGH_BYTES)
        x->is_high = true;
}

static void h1_send_end(struct fl_exchange *base, const struct fl_fields *trailers)
{
    struct fl_h1_exchange *x = of(base);
    struct fl_h1_conn *conn = x->conn;

    if (x->is_aborted || conn->is_closing)
        return;
    assert(x->out == OUT_BODY);
    if (x->out_framing == FL_BODY_CHUNKED) {
        bool has_trailers =
            trailers != NULL && trailers->count > 0 && (!conn->is_server || x->takes_trailers);
        struct fl_buf *scratch = fl_h1_scratch(conn);
        if (has_trailers && fl_http1_write_trailers(scratch, trailers) == 0)
            fl_h1_write_scratch(conn, scratch);
        else
            write_copy(conn, FL_HTTP1_LAST_CHUNK);
    }
    out_done(x);
}

/* ---- the other commands ---- */

static struct fl_arena *h1_arena(struct fl_exchange *base)
{
    return &of(base)->arena;
}

static struct fl_loop *h1_loop(const struct fl_exchange *base)
{
    return of_const(base)->conn->loop;
}

static struct fl_stream *h1_stream(const struct fl_exchange *base)
{
    return of_const(base)->conn->stream;
}

static void h1_consume(struct fl_exchange *base, size_t n)
{
    struct fl_h1_exchange *x = of(base);
    bool was_full = x->held >= FL_STREAM_HIGH_BYTES;

    assert(n <= x->held);
    x->held -= n;
    if (was_full && x->held < FL_STREAM_HIGH_BYTES && !x->is_aborted) {
        x->body_ms = fl_loop_now_ms(x->conn->loop);
        fl_h1_work_later(x->conn);
    }
}

static size_t h1_queued(const struct fl_exchange *base)
{
    const struct fl_h1_exchange *x = of_const(base);
    return x->conn->is_closing ? 0 : fl_stream_queued(x->conn->stream);
}

static void h1_abort(struct fl_exchange *base, uint32_t h2_error)
{
    struct fl_h1_exchange *x = of(base);
    (void)h2_error;

    if (x->is_aborted)
        return;
    fl_h1_give_up(x, FL_ECANCELLED);
    fl_loop_defer(x->conn->loop, &x->conn->work);
}

static void h1_close_after(struct fl_exchange *base)
{
    struct fl_h1_exchange *x = of(base);
    x->out_keeps = false;
    x->conn->is_last = true;
}

static bool h1_is_reused_and_silent(const struct fl_exchange *base)
{
    const struct fl_h1_exchange *x = of_const(base);
    /* hooks: whoever ended the pool wants no retry. */
    return !x->conn->is_server && x->conn->hooks != NULL && x->is_reused && !x->is_heard;
}

static bool h1_is_sent(const struct fl_exchange *base)
{
    const struct fl_h1_exchange *x = of_const(base);
    return x->out == OUT_DONE && (x->conn->is_closing || fl_stream_queued(x->conn->stream) == 0);
}

const struct fl_exchange_ops fl_h1_exchange_ops = {
    .arena = h1_arena,
    .loop = h1_loop,
    .stream = h1_stream,
    .send_head = h1_send_head,
    .send_informational = h1_send_informational,
    .send_body = h1_send_body,
    .send_end = h1_send_end,
    .consume = h1_consume,
    .queued = h1_queued,
    .abort = h1_abort,
    .close_after = h1_close_after,
    .is_reused_and_silent = h1_is_reused_and_silent,
    .is_sent = h1_is_sent,
};
