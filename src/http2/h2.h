/* SPDX-License-Identifier: Apache-2.0 */
/* One HTTP/2 connection, either side, without I/O: bytes are fed in, callbacks come out, and what
 * is to be sent is drained as a chain. The only file pair that includes nghttp2
 * (dependencies.md 3.1).
 *
 *   socket -> fl_h2_feed() -> on_head, on_data*, on_end, on_close     (also from fl_h2_drain())
 *   socket <- fl_h2_drain() <- fl_h2_send_head(), _data(), _end(), fl_h2_reset()
 *
 * Streams. Allocated when a request's head begins (server) or is submitted (client); its arena
 * holds heads and trailers. on_close is the last callback of a stream and comes once, whatever
 * ended it; the stream dies when it returns. Commands only queue, so they may be given from any
 * callback; fl_h2_feed() and fl_h2_drain() may not. Whoever owns the session drains it after a turn
 * in which it was fed or commanded.
 *
 * Bytes. DATA of FL_H2_REFERENCE_BYTES and more is handed on as a reference to the chunk that was
 * fed (if there was one); less is copied, joined, so that a trickle cannot pin large chunks.
 * Outgoing DATA leaves as references to what was sent in; only frame headers and small pieces are
 * copied together.
 *
 * Windows. The connection window is given back at once; a stream's only by fl_h2_consume(). So a
 * slow reader stops its own stream and no other.
 *
 * Hostile peers: caps are in struct fl_h2_config and below; the library ends the connection with
 * GOAWAY when one is passed, a single stream with RST_STREAM where that suffices. Single-threaded.
 */
#ifndef FL_HTTP2_H2_H
#define FL_HTTP2_H2_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "http/message.h"

#define FL_H2_REFERENCE_BYTES 4096
/* More than a drain gives out at once: the peer's window must not decide our memory. */
#define FL_H2_DRAIN_BYTES 262144

/* Floods that never end a stream (dependencies.md 3.1). */
#define FL_H2_MAX_CONTINUATIONS 8   /* a head of 64 KiB takes four frames */
#define FL_H2_MAX_OUTBOUND_ACK 1000 /* answers to PING and SETTINGS that wait to be sent */
#define FL_H2_MAX_SETTINGS 32       /* entries of a frame; RFC 9113 knows six */

/* RFC 9113 section 7 */
enum fl_h2_error {
    FL_H2_NO_ERROR = 0,
    FL_H2_PROTOCOL_ERROR = 1,
    FL_H2_INTERNAL_ERROR = 2,
    FL_H2_REFUSED_STREAM = 7,
    FL_H2_CANCEL = 8,
    FL_H2_ENHANCE_YOUR_CALM = 11,
};

enum fl_h2_side { FL_H2_SERVER, FL_H2_CLIENT };

struct fl_h2;
struct fl_h2_stream;

struct fl_h2_ops {
    /* Server: a request's head (call fl_h2_set_owner). Client: the final answer's head. Lives in
     * the arena. If the message has no body and no trailers, on_end follows at once. */
    void (*on_head)(void *owner, struct fl_h2_stream *stream, struct fl_head *head);
    /* Client: a 1xx head. NULL: dropped. */
    void (*on_informational)(void *owner, struct fl_h2_stream *stream, struct fl_head *head);
    /* Gives the slice's reference. Its bytes occupy the stream's window until fl_h2_consume(). */
    void (*on_data)(void *owner, struct fl_h2_stream *stream, struct fl_slice slice);
    /* The peer's message is complete; `trailers` NULL if none. */
    void (*on_end)(void *owner, struct fl_h2_stream *stream, const struct fl_fields *trailers);
    /* Last. rc 0: both messages ended; or one did and made the rest of the other pointless (an
     * answer before the end of its request), which then was reset. Else FL_ECANCELLED (we reset
     * it), FL_ECLOSED (the peer did, with CANCEL or NO_ERROR), FL_EREFUSED (never processed, safe
     * to retry), FL_EIO (reset by the peer for any other reason), FL_EPROTO (the peer's message was
     * malformed), FL_ELIMIT (an answer's head above a cap), FL_ENOMEM, or what fl_h2_fail() got. */
    void (*on_close)(void *owner, struct fl_h2_stream *stream, int rc);
    /* Bytes of the stream moved from its queue into frames. NULL allowed. */
    void (*on_sent)(void *owner, struct fl_h2_stream *stream);
    /* The peer sent SETTINGS or GOAWAY: fl_h2_can_open() may have changed. NULL allowed. */
    void (*on_change)(void *owner);
};

/* Memory of streams that have ended, for the next ones of the same loop. Zeroed is valid. */
#define FL_H2_CACHE_MAX 128 /* 300 KiB a server or pool */
struct fl_h2_cache {
    struct fl_h2_stream *first;
    uint32_t count;
};
void fl_h2_cache_fini(struct fl_h2_cache *cache);

struct fl_h2_config {
    enum fl_h2_side side;
    struct fl_h2_cache *cache;        /* outlives the session; NULL: none */
    uint32_t max_streams;             /* server: announced and enforced */
    uint32_t stream_window_bytes;     /* 1 MiB (gaie.md 1.1) */
    uint32_t connection_window_bytes; /* 16 MiB */
    size_t max_header_bytes; /* names + values + 32 each; above: 431, or FL_ELIMIT on the client */
    uint32_t max_headers;
    uint32_t reset_burst, reset_rate; /* server: streams the peer may reset at once, and per second
                                         after; beyond GOAWAY */
    struct fl_budget *budget;         /* of copied DATA */
};

/* Copies the config, borrows `ops`. The first drain gives the preface and SETTINGS. */
struct fl_h2 *fl_h2_new(const struct fl_h2_config *config, const struct fl_h2_ops *ops,
                        void *owner);
/* No callback comes: call fl_h2_fail() before, if streams are open. NULL allowed. */
void fl_h2_free(struct fl_h2 *h2);

/* 0, or FL_EPROTO / FL_ELIMIT (flood): drain once for the GOAWAY and close. `chunk` is where `in`
 * lies, NULL: all is copied. */
int fl_h2_feed(struct fl_h2 *h2, struct fl_bytes in, struct fl_chunk *chunk);
/* Appends what is to be sent to `out` until it holds `max_bytes`, or a little more. 0 or FL_EPROTO.
 */
int fl_h2_drain(struct fl_h2 *h2, struct fl_chain *out, size_t max_bytes);
/* True if a drain would give something. */
bool fl_h2_wants_drain(const struct fl_h2 *h2);
/* Nothing to read or to send any more: close the socket. */
bool fl_h2_is_over(const struct fl_h2 *h2);
/* The connection is gone: on_close(rc) for every stream. Only fl_h2_free() may follow. */
void fl_h2_fail(struct fl_h2 *h2, int rc);

uint32_t fl_h2_stream_count(const struct fl_h2 *h2);
/* Client: a request submitted now would be sent at once (no GOAWAY, below the peer's limit; 100
 * before its first SETTINGS). */
bool fl_h2_can_open(const struct fl_h2 *h2);
/* Client: the peer said GOAWAY, or ids ran out: no new stream will ever be possible. */
bool fl_h2_is_closing(const struct fl_h2 *h2);

/* Server: GOAWAY with the highest id, so that new streams of a client that has not seen it are
 * still served. */
void fl_h2_shutdown_notice(struct fl_h2 *h2);
/* GOAWAY with the last processed id: further streams are refused, open ones go on. */
void fl_h2_goaway(struct fl_h2 *h2, enum fl_h2_error error);

/* ---- streams ---- */

/* Client. The stream's id is taken at once. Fields as in fl_h2_send_head(); NULL when the head is
 * refused or ids ran out. `owner` is what the stream's callbacks get. */
struct fl_h2_stream *fl_h2_request(struct fl_h2 *h2, const struct fl_head *head, bool is_end,
                                   void *owner);
void fl_h2_set_owner(struct fl_h2_stream *stream, void *owner);
/* NULL until it was set. */
void *fl_h2_owner(const struct fl_h2_stream *stream);
/* Grows by heads and trailers, which are capped, and by what its users put there. */
struct fl_arena *fl_h2_arena(struct fl_h2_stream *stream);

/* Server: the final head. Names are lowered; connection-level and length fields are left out,
 * content-length is set from head->body and content_length. FL_EPROTO if a name or value cannot be
 * sent: nothing was. */
int fl_h2_send_head(struct fl_h2_stream *stream, const struct fl_head *head, bool is_end);
int fl_h2_send_informational(struct fl_h2_stream *stream, int status,
                             const struct fl_fields *fields);
/* Takes the slice. */
void fl_h2_send_data(struct fl_h2_stream *stream, struct fl_slice slice);
/* `trailers` is copied; NULL: none. FL_EPROTO as above. */
int fl_h2_send_end(struct fl_h2_stream *stream, const struct fl_fields *trailers);
/* Bytes sent in that no frame has taken yet. */
size_t fl_h2_queued(const struct fl_h2_stream *stream);
/* END_STREAM has gone out. */
bool fl_h2_is_sent(const struct fl_h2_stream *stream);
/* Gives `n` bytes of the stream's window back. */
void fl_h2_consume(struct fl_h2_stream *stream, size_t n);
/* RST_STREAM; what is queued is dropped, nothing but on_close follows. */
void fl_h2_reset(struct fl_h2_stream *stream, uint32_t error);

#endif
