/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "net/stream_internal.h"

/* One event reads at most so many buffers before others have their turn. */
#define READ_ROUNDS 4
#define LINGER_ROUNDS 16

_Static_assert(FL_STREAM_READ_AHEAD == FL_LOOP_BLOCK_BYTES, "the buffer is a block");

enum got { GOT_BYTES, GOT_NOTHING, GOT_END, GOT_FAILURE };

static void release_in_if_empty(struct fl_stream *stream)
{
    if (stream->in == NULL || stream->in_head != stream->in_tail)
        return;
    fl_loop_block_give(stream->loop, stream->in);
    stream->in = NULL;
    stream->in_head = stream->in_tail = 0;
}

void fl_stream_drop_in(struct fl_stream *stream)
{
    stream->in_head = stream->in_tail;
    release_in_if_empty(stream);
}

/* A failure leaves its code in stream->rc. */
static enum got read_tls(struct fl_stream *stream, void *out, size_t n, size_t *done)
{
    switch (fl_tls_session_read(stream->tls, out, n, done)) {
    case FL_TLS_DONE:
        return GOT_BYTES;
    case FL_TLS_WANT_WRITE:
        stream->read_wants_write = true;
        return GOT_NOTHING;
    case FL_TLS_WANT_READ:
        return GOT_NOTHING;
    case FL_TLS_ENDED:
        return GOT_END;
    case FL_TLS_CUT:
        stream->rc = FL_ECLOSED;
        fl_stream_set_why(stream, "TLS: cut off by the peer");
        return GOT_FAILURE;
    case FL_TLS_FAILED:
        break;
    }
    stream->rc = FL_ETLS;
    fl_stream_set_why(stream, "%s", fl_tls_session_why(stream->tls));
    return GOT_FAILURE;
}

static enum got read_some(struct fl_stream *stream, void *out, size_t n, size_t *done)
{
    if (stream->tls != NULL)
        return read_tls(stream, out, n, done);
    ssize_t got;
    do {
        got = recv(stream->fd, out, n, 0);
    } while (got < 0 && errno == EINTR);
    if (got > 0) {
        *done = (size_t)got;
        return GOT_BYTES;
    }
    if (got == 0)
        return GOT_END;
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        return GOT_NOTHING;
    stream->rc = fl_stream_rc_of_errno(errno);
    fl_stream_set_why(stream, "read: %s", strerror(errno));
    return GOT_FAILURE;
}

/* Reads ahead until the buffer is full (GOT_BYTES) or the socket has no more. */
static enum got fill(struct fl_stream *stream)
{
    enum got got = GOT_BYTES;
    if (stream->in == NULL)
        stream->in = fl_loop_block_take(stream->loop);
    if (stream->in_head > 0) {
        size_t left = fl_stream_in_size(stream);
        memmove(stream->in, stream->in + stream->in_head, left);
        stream->in_head = 0;
        stream->in_tail = (uint16_t)left;
    }
    while (stream->in_tail < FL_STREAM_READ_AHEAD) {
        size_t room = FL_STREAM_READ_AHEAD - (size_t)stream->in_tail, n = 0;
        got = read_some(stream, stream->in + stream->in_tail, room, &n);
        if (got != GOT_BYTES)
            break;
        stream->in_tail = (uint16_t)(stream->in_tail + n);
        /* A short read has emptied the socket: spares the read that would say so. The poll reports
         * what comes later, unless the socket is broken. */
        if (stream->tls == NULL && n < room && !stream->is_failing) {
            got = GOT_NOTHING;
            break;
        }
    }
    release_in_if_empty(stream);
    return got;
}

static bool is_client_hello(struct fl_bytes b)
{
    return b.n >= 6 && b.p[0] == 0x16 && b.p[1] == 3 && b.p[2] <= 4 && b.p[5] == 1;
}

static bool is_tls_alert(struct fl_bytes b)
{
    return b.n >= 7 && b.p[0] == 0x15 && b.p[1] == 3 && b.p[2] <= 4 && b.p[3] == 0 && b.p[4] == 2;
}

/* The most common mistake of a set-up deserves words instead of "connection reset" (gaie.md 1.1).
 * False: the stream is finished. */
static bool check_for_tls(struct fl_stream *stream)
{
    /* fatal, handshake_failure (RFC 8446 6.2) in a record of TLS 1.0's version, which all take */
    static const uint8_t alert[] = {0x15, 3, 1, 0, 2, 2, 40};
    struct fl_bytes first = fl_stream_peek(stream);
    stream->is_checked_for_tls = true;
    if (stream->is_connector && is_tls_alert(first)) {
        fl_stream_set_why(stream, "server speaks TLS, client is plaintext");
    } else if (!stream->is_connector && is_client_hello(first)) {
        fl_stream_set_why(stream, "client speaks TLS, server is plaintext");
        (void)!send(stream->fd, alert, sizeof(alert), MSG_NOSIGNAL);
    } else {
        return true;
    }
    fl_stream_tls_mismatch(stream);
    fl_stream_finish(stream, FL_ETLS);
    return false;
}

/* Tells the owner of what is there. False: it has closed the stream. */
bool fl_stream_deliver(struct fl_stream *stream)
{
    stream->is_asked = false;
    if (stream->is_reading && fl_stream_in_size(stream) > 0 && stream->ops->on_readable != NULL)
        stream->ops->on_readable(stream->owner, stream);
    return stream->state == ST_OPEN;
}

static void end_reading(struct fl_stream *stream)
{
    stream->is_ended = true;
    if (stream->ops->on_eof != NULL)
        stream->ops->on_eof(stream->owner, stream);
    fl_stream_finish_if_clean(stream);
}

void fl_stream_read_on(struct fl_stream *stream)
{
    enum got got = GOT_BYTES;
    for (int round = 0; round < READ_ROUNDS && got == GOT_BYTES && !stream->is_ended; round++) {
        size_t before = fl_stream_in_size(stream);
        if (before == FL_STREAM_READ_AHEAD) {
            /* Not when it has only just become full: often the owner takes it within the turn. */
            stream->is_paused = stream->is_paused || round == 0;
            break;
        }
        got = fill(stream);
        if (fl_stream_in_size(stream) > before) {
            if (!stream->is_checked_for_tls && !check_for_tls(stream))
                return;
            if (!fl_stream_deliver(stream))
                return;
        }
    }
    if (got == GOT_BYTES && fl_stream_in_size(stream) == FL_STREAM_READ_AHEAD)
        stream->is_full = true;
    switch (got) {
    case GOT_BYTES:
        /* Polling does not show what the TLS session holds, nor a socket we do not poll. */
        if (fl_stream_in_size(stream) < FL_STREAM_READ_AHEAD && !stream->is_ended &&
            (stream->is_paused || (stream->tls != NULL && fl_tls_session_has_pending(stream->tls))))
            fl_loop_defer(stream->loop, &stream->wake);
        break;
    case GOT_NOTHING:
        stream->is_paused = stream->is_full = false;
        break;
    case GOT_END:
        end_reading(stream);
        break;
    case GOT_FAILURE:
        fl_stream_finish(stream, stream->rc);
        break;
    }
    fl_stream_update_mask(stream);
}

/* The connection is broken. What had arrived before is offered once more, then it ends: a server
 * that answers early and resets must not take its answer with it. */
void fl_stream_fail(struct fl_stream *stream, int rc)
{
    fl_stream_drop_out(stream);
    stream->is_failing = true;
    enum got got = stream->state == ST_OPEN && !stream->is_ended ? GOT_BYTES : GOT_END;
    while (got == GOT_BYTES) {
        size_t before = fl_stream_in_size(stream);
        if (before == FL_STREAM_READ_AHEAD)
            break;
        got = fill(stream);
        if (fl_stream_in_size(stream) > before && !fl_stream_deliver(stream))
            break;
    }
    fl_stream_finish(stream, rc);
}

/* After fl_stream_close(): nobody wants what still comes, but it must be read for the FIN behind
 * it, and for the kernel not to answer our close with a reset. */
void fl_stream_read_away(struct fl_stream *stream)
{
    uint8_t scratch[4096];
    for (int round = 0; round < LINGER_ROUNDS; round++) {
        ssize_t n = recv(stream->fd, scratch, sizeof(scratch), 0);
        if (n > 0)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        stream->is_ended = true;
        if (n < 0 && fl_stream_queued(stream) > 0)
            fl_stream_finish(stream, fl_stream_rc_of_errno(errno));
        else if (n < 0 || stream->fin_sent)
            fl_stream_finish(stream, 0);
        return;
    }
}

/* ---- the owner's calls ---- */

struct fl_bytes fl_stream_peek(const struct fl_stream *stream)
{
    if (stream->in == NULL)
        return (struct fl_bytes){NULL, 0};
    return fl_bytes(stream->in + stream->in_head, fl_stream_in_size(stream));
}

void fl_stream_consume(struct fl_stream *stream, size_t n)
{
    assert(n <= fl_stream_in_size(stream) || stream->state >= ST_LINGER);
    if (n == 0 || stream->state >= ST_LINGER)
        return;
    stream->in_head = (uint16_t)(stream->in_head + n);
    release_in_if_empty(stream);
    if (stream->is_full) {
        stream->is_full = false;
        if (stream->is_paused || stream->tls != NULL)
            fl_loop_defer(stream->loop, &stream->wake);
    }
    fl_stream_finish_if_clean(stream);
}

/* The part of fl_stream_read() beyond the buffer. Bytes, or a code. */
static int64_t read_direct(struct fl_stream *stream, uint8_t *out, size_t n)
{
    size_t taken = 0;
    enum got got = GOT_BYTES;
    while (taken < n) {
        size_t done = 0;
        got = read_some(stream, out + taken, n - taken, &done);
        if (got != GOT_BYTES)
            break;
        taken += done;
        if (stream->tls == NULL)
            break; /* a second read would mostly find nothing */
    }
    switch (got) {
    case GOT_BYTES:
        if (stream->is_paused || (stream->tls != NULL && fl_tls_session_has_pending(stream->tls)))
            fl_loop_defer(stream->loop, &stream->wake);
        break;
    case GOT_NOTHING:
        stream->is_paused = stream->is_full = false;
        fl_stream_update_mask(stream);
        break;
    case GOT_END: /* found again, and told, in fl_stream_read_on() */
        fl_loop_defer(stream->loop, &stream->wake);
        return taken > 0 ? (int64_t)taken : FL_ECLOSED;
    case GOT_FAILURE:
        fl_stream_finish(stream, stream->rc);
        return taken > 0 ? (int64_t)taken : stream->rc;
    }
    return (int64_t)taken;
}

int64_t fl_stream_read(struct fl_stream *stream, void *out, size_t n)
{
    if (stream->state >= ST_LINGER)
        return stream->state >= ST_CLOSED && stream->rc < 0 ? stream->rc : FL_ECLOSED;
    size_t taken = fl_stream_in_size(stream) < n ? fl_stream_in_size(stream) : n;
    if (taken > 0) {
        memcpy(out, stream->in + stream->in_head, taken);
        fl_stream_consume(stream, taken);
    }
    if (taken == n || stream->state != ST_OPEN)
        return (int64_t)taken;
    if (stream->is_ended)
        return taken > 0 ? (int64_t)taken : FL_ECLOSED;
    if (stream->is_failing || !stream->is_checked_for_tls)
        return (int64_t)taken;
    int64_t more = read_direct(stream, (uint8_t *)out + taken, n - taken);
    if (more < 0)
        return taken > 0 ? (int64_t)taken : more;
    return (int64_t)taken + more;
}

void fl_stream_set_reading(struct fl_stream *stream, bool is_reading)
{
    stream->is_reading = is_reading;
    if (is_reading && stream->state == ST_OPEN && fl_stream_in_size(stream) > 0) {
        stream->is_asked = true;
        fl_loop_defer(stream->loop, &stream->wake);
    }
}

bool fl_stream_is_idle_alive(struct fl_stream *stream)
{
    uint8_t byte;
    if (stream->state != ST_OPEN || stream->is_ended || stream->is_failing || stream->fin_wanted ||
        fl_stream_in_size(stream) > 0)
        return false;
    ssize_t n = recv(stream->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK;
    if (n == 0 || stream->tls == NULL)
        return false;
    /* TLS sends things of its own after the handshake (tickets). Only decrypting tells; whatever
     * else comes out is found again by fl_stream_read_on(). */
    enum got got = fill(stream);
    fl_loop_defer(stream->loop, &stream->wake);
    if (got == GOT_FAILURE)
        fl_stream_finish(stream, stream->rc);
    if (fl_stream_in_size(stream) > 0)
        stream->is_asked = true;
    return got == GOT_NOTHING && fl_stream_in_size(stream) == 0;
}
