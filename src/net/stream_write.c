/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "net/stream_internal.h"

/* One flush makes at most so many system calls before others have their turn. */
#define WRITE_ROUNDS 16
/* Vectors a write: an HTTP/2 connection's turn has tens of pieces; the kernel takes 1,024. */
#define WRITE_VECTORS 64
/* A slice up to this size is copied: a vector and a reference cost about as much as the copy. */
#define JOIN_MAX_BYTES 512
/* TLS: pieces below this are gathered into one record of at most 16 KiB. */
#define TLS_RECORD_BYTES 16384
#define TLS_GATHER_BYTES 8192

static void release_join(struct fl_stream *stream)
{
    if (stream->join != NULL)
        fl_loop_chunk_give(stream->loop, stream->join);
    stream->join = NULL;
    stream->join_from = stream->join_to = 0;
}

void fl_stream_drop_out(struct fl_stream *stream)
{
    fl_chain_fini(&stream->out);
    release_join(stream);
}

size_t fl_stream_queued(const struct fl_stream *stream)
{
    return stream->out.bytes + (stream->join_to - stream->join_from);
}

static void consume_out(struct fl_stream *stream, size_t n)
{
    size_t of_chain = n < stream->out.bytes ? n : stream->out.bytes;
    fl_chain_consume(&stream->out, of_chain);
    stream->join_from += (uint32_t)(n - of_chain);
}

/* Bytes written (0: blocked), or a code. */
static int64_t write_plain(struct fl_stream *stream)
{
    struct iovec iov[WRITE_VECTORS];
    int count = fl_chain_iov(&stream->out, iov, WRITE_VECTORS - 1);
    if ((uint32_t)count == stream->out.count && stream->join_to > stream->join_from)
        iov[count++] = (struct iovec){stream->join->data + stream->join_from,
                                      stream->join_to - stream->join_from};
    size_t wanted = 0;
    for (int i = 0; i < count; i++)
        wanted += iov[i].iov_len;

    struct msghdr message = {.msg_iov = iov, .msg_iovlen = (size_t)count};
    ssize_t n;
    do {
        n = sendmsg(stream->fd, &message, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            stream->is_blocked = true;
            return 0;
        }
        fl_stream_set_why(stream, "write: %s", strerror(errno));
        return fl_stream_rc_of_errno(errno);
    }
    /* A short write has filled the socket: spares the write that would say so. */
    stream->is_blocked = (size_t)n < wanted;
    return n;
}

static int64_t write_tls(struct fl_stream *stream)
{
    uint8_t record[TLS_RECORD_BYTES];
    struct fl_bytes bytes;
    struct fl_slice first = {0};
    size_t done = 0;

    /* A repeated write sees the same front of the queue, or a longer one: same choice, same bytes.
     */
    if (stream->out.count > 0)
        first = fl_chain_at(&stream->out, 0);
    if (first.n >= TLS_GATHER_BYTES) {
        bytes = fl_slice_bytes(first);
    } else {
        size_t n = stream->out.bytes < sizeof(record) ? stream->out.bytes : sizeof(record);
        size_t of_join = stream->join_to - stream->join_from;
        fl_chain_copy_out(&stream->out, 0, record, n);
        if (of_join > sizeof(record) - n)
            of_join = sizeof(record) - n;
        if (of_join > 0)
            memcpy(record + n, stream->join->data + stream->join_from, of_join);
        bytes = fl_bytes(record, n + of_join);
    }
    switch (fl_tls_session_write(stream->tls, bytes.p, bytes.n, &done)) {
    case FL_TLS_DONE:
        return (int64_t)done;
    case FL_TLS_WANT_WRITE:
        stream->is_blocked = true;
        return 0;
    case FL_TLS_WANT_READ:
        stream->write_wants_read = true;
        return 0;
    case FL_TLS_ENDED:
    case FL_TLS_CUT:
        fl_stream_set_why(stream, "TLS: cut off by the peer");
        return FL_ECLOSED;
    case FL_TLS_FAILED:
        break;
    }
    fl_stream_set_why(stream, "%s", fl_tls_session_why(stream->tls));
    return FL_ETLS;
}

static void send_fin(struct fl_stream *stream)
{
    if (stream->tls != NULL) {
        enum fl_tls_result result = fl_tls_session_shutdown(stream->tls);
        if (result == FL_TLS_WANT_WRITE) {
            stream->is_blocked = true;
            return;
        }
    }
    shutdown(stream->fd, SHUT_WR); /* an error of the socket shows when it is read */
    stream->fin_sent = true;
    fl_stream_finish_if_clean(stream);
    if (stream->state == ST_LINGER && stream->is_ended)
        fl_stream_finish(stream, 0);
}

/* True while the stream is alive. */
static bool write_queue(struct fl_stream *stream)
{
    for (int round = 0; fl_stream_queued(stream) > 0; round++) {
        if (stream->is_blocked || stream->write_wants_read)
            return true;
        if (round == WRITE_ROUNDS) {
            fl_loop_defer_flush(stream->loop, &stream->flush);
            return true;
        }
        int64_t n = stream->tls != NULL ? write_tls(stream) : write_plain(stream);
        if (n < 0) {
            fl_stream_fail(stream, (int)n);
            return false;
        }
        consume_out(stream, (size_t)n);
    }
    release_join(stream);
    if (stream->out.cap > 16)
        fl_chain_fini(&stream->out); /* an idle connection keeps no long ring */
    if (stream->fin_wanted && !stream->fin_sent && !stream->is_blocked)
        send_fin(stream);
    return stream->state < ST_CLOSED;
}

void fl_stream_flush_now(struct fl_stream *stream)
{
    if (stream->state != ST_OPEN && stream->state != ST_LINGER)
        return;
    if (!write_queue(stream))
        return;
    if (stream->state == ST_LINGER && stream->is_quick) {
        fl_stream_finish(stream, fl_stream_queued(stream) > 0 ? FL_ETIMEOUT : 0);
        return;
    }
    if (stream->is_high && fl_stream_queued(stream) <= FL_STREAM_LOW_BYTES) {
        stream->is_high = false;
        if (stream->state == ST_OPEN && stream->ops->on_writable != NULL)
            stream->ops->on_writable(stream->owner, stream);
    }
    fl_stream_update_mask(stream);
}

void fl_stream_on_flush(struct fl_deferred *flush)
{
    fl_stream_flush_now(FL_CONTAINER_OF(flush, struct fl_stream, flush));
}

void fl_stream_flush_later(struct fl_stream *stream)
{
    if (fl_stream_queued(stream) > FL_STREAM_LOW_BYTES)
        stream->is_high = true;
    /* Before the stream is open, and while the socket is full, an event flushes. */
    if (stream->state >= ST_OPEN && !stream->is_blocked && !stream->write_wants_read)
        fl_loop_defer_flush(stream->loop, &stream->flush);
}

/* What was joined goes before what is written next. */
static void seal_join(struct fl_stream *stream)
{
    if (stream->join_to == stream->join_from)
        return;
    fl_chunk_ref(stream->join);
    fl_chain_push(&stream->out,
                  (struct fl_slice){stream->join, stream->join->data + stream->join_from,
                                    stream->join_to - stream->join_from});
    stream->join_from = stream->join_to;
}

static void join_bytes(struct fl_stream *stream, struct fl_bytes bytes)
{
    while (bytes.n > 0) {
        if (stream->join != NULL && stream->join_to == stream->join->room) {
            seal_join(stream);
            release_join(stream);
        }
        if (stream->join == NULL) {
            stream->join =
                bytes.n <= FL_LOOP_JOIN_BYTES
                    ? fl_loop_chunk_take(stream->loop)
                    : fl_chunk_new(bytes.n < FL_CHUNK_MAX_BYTES ? bytes.n : FL_CHUNK_MAX_BYTES,
                                   NULL);
            if (stream->join == NULL) {
                fl_stream_set_why(stream, "out of memory");
                fl_stream_finish(stream, FL_ENOMEM);
                return;
            }
        }
        size_t n = stream->join->room - stream->join_to;
        n = n < bytes.n ? n : bytes.n;
        memcpy(stream->join->data + stream->join_to, bytes.p, n);
        stream->join_to += (uint32_t)n;
        bytes = fl_bytes_skip(bytes, n);
    }
}

static bool takes_writes(const struct fl_stream *stream)
{
    assert(!stream->fin_wanted || stream->state >= ST_LINGER);
    return stream->state < ST_LINGER && !stream->is_failing;
}

void fl_stream_write(struct fl_stream *stream, struct fl_slice slice)
{
    if (!takes_writes(stream)) {
        fl_slice_unref(&slice);
        return;
    }
    if (slice.n <= JOIN_MAX_BYTES) {
        join_bytes(stream, fl_slice_bytes(slice));
        fl_slice_unref(&slice);
    } else {
        seal_join(stream);
        fl_chain_push(&stream->out, slice);
    }
    fl_stream_flush_later(stream);
}

void fl_stream_write_copy(struct fl_stream *stream, struct fl_bytes bytes)
{
    if (!takes_writes(stream))
        return;
    join_bytes(stream, bytes);
    fl_stream_flush_later(stream);
}

void fl_stream_shutdown(struct fl_stream *stream)
{
    if (stream->state >= ST_LINGER || stream->fin_wanted)
        return;
    stream->fin_wanted = true;
    fl_stream_flush_later(stream);
}
