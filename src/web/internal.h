/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of web/ share: the two faces of an exchange behind one table, and the memory that
 * all connections of a loop read into. Not for other folders. */
#ifndef FL_WEB_INTERNAL_H
#define FL_WEB_INTERNAL_H

#include "http2/h2.h"
#include "http2/joint.h"
#include "web/exchange.h"

/* After our last byte the peer has so long to take it and to close; then the socket goes. */
#define FL_WEB_LINGER_MS 1000

/* One row for HTTP/1 (both sides), one for HTTP/2. */
struct fl_exchange_ops {
    struct fl_arena *(*arena)(struct fl_exchange *x);
    struct fl_loop *(*loop)(const struct fl_exchange *x);
    struct fl_stream *(*stream)(const struct fl_exchange *x); /* NULL: it has none yet */
    void (*send_head)(struct fl_exchange *x, const struct fl_head *head, bool is_end);
    void (*send_informational)(struct fl_exchange *x, int status, const struct fl_fields *fields);
    void (*send_body)(struct fl_exchange *x, struct fl_slice slice);
    void (*send_end)(struct fl_exchange *x, const struct fl_fields *trailers);
    void (*consume)(struct fl_exchange *x, size_t n);
    size_t (*queued)(const struct fl_exchange *x);
    void (*abort)(struct fl_exchange *x, uint32_t h2_error);
    void (*close_after)(struct fl_exchange *x);
    bool (*is_reused_and_silent)(const struct fl_exchange *x);
    bool (*is_sent)(const struct fl_exchange *x);
};

/* First member of the exchange of either version. */
struct fl_exchange {
    const struct fl_exchange_ops *ops;
    const struct fl_exchange_handler *handler;
    void *owner;
};

/* ---- reading ---- */

/* Connections of a server or pool read into one chunk in turn. What is large enough stays there by
 * reference; what is small is copied to a joint, so that a slow sender cannot pin a large chunk
 * with a byte. */
struct fl_web_reader {
    struct fl_chunk *chunk;
    uint32_t used;
    struct fl_budget *budget;
    struct fl_joint joint;
    struct fl_buf scratch;       /* heads being written; empty between uses */
    struct fl_h2_cache h2_cache; /* memory of ended HTTP/2 streams */
    struct fl_link spares;       /* ... and of HTTP/1 exchanges (their first member) */
    uint32_t spare_count;
};

#define FL_WEB_SPARES_MAX 128 /* 300 KiB a server or pool */

void fl_web_reader_init(struct fl_web_reader *reader, struct fl_budget *budget);
void fl_web_reader_fini(struct fl_web_reader *reader);
/* Room to read into, at least 8 KiB. NULL: the budget or memory is gone. */
uint8_t *fl_web_reader_room(struct fl_web_reader *reader, size_t *room);
/* The first `n` bytes of the room, as a slice. p == NULL without memory. */
struct fl_slice fl_web_reader_take(struct fl_web_reader *reader, size_t n);
/* A slice of bytes that lie elsewhere. p == NULL without memory. */
struct fl_slice fl_web_reader_copy(struct fl_web_reader *reader, struct fl_bytes bytes);

/* ---- stalls ---- */

/* Sees whether a peer takes what is written to it. */
struct fl_web_stall {
    uint64_t written; /* all that was queued on the stream, ever */
    uint64_t taken;   /* of that, gone when last looked */
    uint64_t since_ms;
};

/* How long the peer has taken nothing although something waits; 0: it takes, or nothing waits. */
uint64_t fl_web_stall_ms(struct fl_web_stall *stall, const struct fl_stream *stream,
                         uint64_t now_ms);

#endif
