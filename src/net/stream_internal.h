/* SPDX-License-Identifier: Apache-2.0 */
/* A stream's insides, shared by stream.c (life and events), stream_read.c and stream_write.c. */
#ifndef FL_NET_STREAM_INTERNAL_H
#define FL_NET_STREAM_INTERNAL_H

#include "net/loop_internal.h"
#include "net/poll.h"
#include "net/stream.h"
#include "net/tls_session.h"

enum state {
    ST_CONNECTING, /* connect() is under way */
    ST_HANDSHAKE,  /* TLS */
    ST_OPEN,
    ST_LINGER, /* fl_stream_close(): writing what is queued, then waiting for the peer's FIN */
    ST_CLOSED, /* the socket is closed; on_closed is due */
    ST_TOLD    /* on_closed was called */
};

struct fl_stream {
    struct fl_poll poll;
    struct fl_loop *loop;
    const struct fl_stream_ops *ops;
    void *owner;
    struct fl_tls_session *tls; /* NULL: plain */
    char *why;                  /* NULL: no words */
    uint8_t *in;                /* a block of the loop's while anything is read ahead */
    struct fl_chain out;        /* waits for the socket, before what is joined */
    struct fl_chunk *join;      /* small writes, [join_from, join_to) not yet in `out` */
    uint32_t join_from, join_to;
    struct fl_timer timer;
    struct fl_deferred wake; /* on_closed, or reading on without an event */
    struct fl_deferred flush;
    struct fl_disposable dispose;
    struct fl_addr peer, local;
    int fd;
    int rc; /* of on_closed */
    uint16_t in_head, in_tail;
    uint8_t state; /* enum state */
    bool is_connector : 1;
    bool has_poll : 1;
    bool is_told : 1;
    bool is_checked_for_tls : 1; /* the first bytes were looked at, or need not be */
    bool is_reading : 1;
    bool is_asked : 1;   /* the owner wants on_readable for what it left */
    bool is_full : 1;    /* reading stopped for want of room, not of bytes */
    bool is_paused : 1;  /* and the socket is not polled for reading */
    bool is_hung_up : 1; /* the peer ended while we were paused */
    bool is_ended : 1;   /* the peer's end was read */
    bool is_failing : 1; /* broken; what the kernel still holds is being read */
    bool is_blocked : 1; /* writing waits for the socket */
    bool is_high : 1;    /* on_writable is owed */
    bool is_quick : 1;   /* close without lingering */
    bool fin_wanted : 1;
    bool fin_sent : 1;
    bool read_wants_write : 1; /* TLS */
    bool write_wants_read : 1;
};

/* ---- stream.c ---- */

/* Words for fl_stream_why(). The first ones stay: what follows is a consequence. */
void fl_stream_set_why(struct fl_stream *stream, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
int fl_stream_rc_of_errno(int error);
/* Every ending comes here; only the first counts. No callback is called from here. */
void fl_stream_finish(struct fl_stream *stream, int rc);
/* Both directions have ended properly and the owner has everything. */
void fl_stream_finish_if_clean(struct fl_stream *stream);
void fl_stream_update_mask(struct fl_stream *stream);
/* One side speaks TLS, the other does not; why is set. */
void fl_stream_tls_mismatch(struct fl_stream *stream);

/* ---- stream_read.c ---- */

static inline size_t fl_stream_in_size(const struct fl_stream *stream)
{
    return (size_t)(stream->in_tail - stream->in_head);
}

void fl_stream_drop_in(struct fl_stream *stream);
/* Tells the owner of what is there. False: it has closed the stream. */
bool fl_stream_deliver(struct fl_stream *stream);
/* Reads what the socket has, within bounds, and tells the owner. */
void fl_stream_read_on(struct fl_stream *stream);
/* The connection is broken: offers what had arrived, then finishes. */
void fl_stream_fail(struct fl_stream *stream, int rc);
/* After fl_stream_close(). */
void fl_stream_read_away(struct fl_stream *stream);

/* ---- stream_write.c ---- */

void fl_stream_drop_out(struct fl_stream *stream);
void fl_stream_flush_now(struct fl_stream *stream);
void fl_stream_on_flush(struct fl_deferred *flush);
/* Something was queued. */
void fl_stream_flush_later(struct fl_stream *stream);

#endif
