/* SPDX-License-Identifier: Apache-2.0 */
/* One HTTP message pair as its loop sees it, whichever version and side: the server's face (a
 * request came in, we answer) and the client's face (we ask, an answer comes). ext_proc streams,
 * REST calls, proxied requests, tokenizer calls and Kubernetes watches are all exchanges.
 *
 *              on_head, on_body*, on_end (incoming message)
 *   peer  <=>  exchange  <=>  handler
 *              send_head, send_body*, send_end (outgoing message)
 *
 * The two directions are independent: a server may answer before the request has ended, a gRPC
 * stream interleaves both for minutes.
 *
 * Incoming. Bytes handed to on_body count as *held* until fl_exchange_consume(); when more than the
 * receive window (FL_EXCHANGE_WINDOW_BYTES by default) is held, the sender is stopped: HTTP/2 by
 * its stream window (the connection window is always given back at once), HTTP/1 by not reading. So
 * back-pressure is one number.
 *
 * Outgoing. Sends never fail and never block: they queue. fl_exchange_queued() is what the peer has
 * not taken yet; a producer stops above FL_EXCHANGE_HIGH_BYTES and goes on at on_writable. Writes
 * of a turn leave with one system call a connection.
 *
 * Ends. on_close comes exactly once and last, whatever happened; rc 0 if both messages ended
 * properly, or if the answer was complete and made the rest of its request pointless. Else why:
 * FL_ECANCELLED (we aborted), FL_ECLOSED / FL_EIO (peer or network; a client that sends FIN while
 * it is owed an answer has left), FL_ETIMEOUT, FL_EPROTO, FL_ELIMIT, FL_ENOMEM (the budget),
 * FL_ETLS, FL_ECONNECT, FL_EREFUSED (HTTP/2 said the peer never processed it: safe to retry). After
 * on_close the pointer is dead. No callback is called from inside a call of this header: commands
 * take effect in this turn, callbacks come later (from the loop); only freeing a server or pool
 * brings its on_close calls at once. Single loop; no locks. */
#ifndef FL_WEB_EXCHANGE_H
#define FL_WEB_EXCHANGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "http/message.h"
#include "net/loop.h"
#include "net/stream.h"

#define FL_EXCHANGE_WINDOW_BYTES                                                                   \
    1048576 /* HTTP/2 stream window, gaie.md 1.1; HTTP/1 holds FL_STREAM_HIGH_BYTES */
#define FL_EXCHANGE_HIGH_BYTES 262144 /* gateway.md 7.1 */
#define FL_EXCHANGE_LOW_BYTES 65536

struct fl_exchange;

struct fl_exchange_handler {
    /* Client only: an interim answer (1xx but 101). NULL: dropped. */
    void (*on_informational)(void *owner, struct fl_exchange *x, const struct fl_head *head);
    /* The head; lent until on_close (it lies in the exchange's arena; handlers may edit its
     * fields). `is_end`: no body, no trailers follow (on_end is not called then). */
    void (*on_head)(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end);
    /* A non-empty piece of body, decoded. The callee takes the slice's reference. */
    void (*on_body)(void *owner, struct fl_exchange *x, struct fl_slice slice);
    /* The incoming message is complete; `trailers` NULL if none. */
    void (*on_end)(void *owner, struct fl_exchange *x, const struct fl_fields *trailers);
    /* queued fell to FL_EXCHANGE_LOW_BYTES or below after having been above FL_EXCHANGE_HIGH_BYTES.
     * NULL allowed. */
    void (*on_writable)(void *owner, struct fl_exchange *x);
    void (*on_close)(void *owner, struct fl_exchange *x, int rc);
};

/* ---- both faces ---- */

/* Sets who gets the callbacks; a server's on_request hands out exchanges and must call this at
 * once. */
void fl_exchange_set_handler(struct fl_exchange *x, const struct fl_exchange_handler *handler,
                             void *owner);
struct fl_loop *fl_exchange_loop(const struct fl_exchange *x);
/* Lives until on_close. */
struct fl_arena *fl_exchange_arena(struct fl_exchange *x);

/* Sends the head of our message. `head->body` says what follows: NONE, LENGTH (+content_length) or
 * CHUNKED/STREAM (unknown length; framed as the version wants, close-delimited to a 1.0 client).
 * Framing and hop-by-hop fields are the exchange's business: handlers pass none of Content-Length,
 * Transfer-Encoding, Connection; those in `fields` are skipped. Fields are copied during the call.
 * With `is_end` the message is complete. */
void fl_exchange_send_head(struct fl_exchange *x, const struct fl_head *head, bool is_end);
/* Server only: 100 Continue or another interim answer. */
void fl_exchange_send_informational(struct fl_exchange *x, int status,
                                    const struct fl_fields *fields);
/* Takes the slice. */
void fl_exchange_send_body(struct fl_exchange *x, struct fl_slice slice);
void fl_exchange_send_body_copy(struct fl_exchange *x, struct fl_bytes bytes);
/* Ends our message; `trailers` NULL if none (sent on HTTP/2 and chunked HTTP/1.1). */
void fl_exchange_send_end(struct fl_exchange *x, const struct fl_fields *trailers);
/* A whole answer with Content-Length: status, content-type, body; `extra` NULL allowed. */
void fl_exchange_respond(struct fl_exchange *x, int status, const char *content_type,
                         struct fl_bytes body, const struct fl_fields *extra);

/* `n` of the bytes held are done with; their window goes back. */
void fl_exchange_consume(struct fl_exchange *x, size_t n);
size_t fl_exchange_queued(const struct fl_exchange *x);
/* Ends both directions at once. HTTP/2: RST_STREAM `h2_error` (8 CANCEL, 0 NO_ERROR, 2
 * INTERNAL...); HTTP/1: the connection closes without a proper end, so the peer sees truncation.
 * on_close follows with FL_ECANCELLED. */
void fl_exchange_abort(struct fl_exchange *x, uint32_t h2_error);

/* Server only: the other messages of this connection end after this one (Connection: close,
 * GOAWAY). */
void fl_exchange_close_after(struct fl_exchange *x);
const struct fl_addr *
fl_exchange_peer(const struct fl_exchange *x); /* the address at the other end */
const struct fl_addr *fl_exchange_local(const struct fl_exchange *x); /* ours */
bool fl_exchange_is_tls(const struct fl_exchange *x);
/* Client only: true if it ran on a connection that had served before and no byte of an answer has
 * arrived (gateway.md 8.4 retries these). */
bool fl_exchange_is_reused_and_silent(const struct fl_exchange *x);
/* Client only: whether the whole outgoing message has been written to the socket. */
bool fl_exchange_is_sent(const struct fl_exchange *x);

/* ---- the server's face ---- */

struct fl_web_server; /* one per loop and purpose; connections live on that loop */

struct fl_web_server_config {
    bool http1, http2; /* both on a plain listener: decided by the HTTP/2 preface; on TLS by ALPN */
    struct fl_tls_context *tls; /* NULL: plain */
    size_t max_header_bytes;    /* 65536 */
    uint32_t max_headers;       /* 200 */
    uint64_t head_timeout_ms;   /* whole head; 10 s (gateway.md timeoutTcpInspect) */
    uint64_t idle_timeout_ms;   /* keep-alive, and a body that stalls */
    uint32_t max_connections;   /* of this server; beyond: answered 503 and closed, or left in the
                                   backlog by the caller */
    uint32_t h2_max_streams;    /* 1000; ext_proc port 10000 */
    uint32_t h2_reset_burst, h2_reset_rate; /* dependencies.md 3.1 */
    struct fl_budget *budget;               /* body chunks are charged to it; NULL: none */
    /* For every request as soon as its head is read; the callee must set a handler. on_head follows
     * in the same turn. */
    void (*on_request)(void *owner, struct fl_exchange *x);
    /* HTTP/1 only, NULL: the built-in answer. Fills the body and content type of an answer that
     * then closes the connection: to a head or body that could not be parsed (status and word of
     * struct fl_http1_defect), 408 "request_timeout", 503 "overloaded" (max_connections, or the
     * budget is exhausted). */
    void (*on_bad_request)(void *owner, int status, const char *word, struct fl_buf *body,
                           const char **content_type);
    void *owner;
};

struct fl_web_server *fl_web_server_new(struct fl_loop *loop,
                                        const struct fl_web_server_config *config);
/* Takes an accepted socket. */
void fl_web_server_accept(struct fl_web_server *server, int fd);
/* Stops reading new requests: keep-alive connections end after their current message, HTTP/2 gets
 * GOAWAY; streams go on. */
void fl_web_server_drain(struct fl_web_server *server);
/* Aborts what is left and frees; every on_close has come by then. */
void fl_web_server_free(struct fl_web_server *server);
uint32_t fl_web_server_connections(const struct fl_web_server *server);

/* ---- the client's face: a pool per loop ---- */

struct fl_web_pool;

enum fl_web_protocol {
    FL_WEB_HTTP1,
    FL_WEB_H2 /* prior knowledge on plain, ALPN h2 required on TLS */
};

struct fl_web_target {
    struct fl_addr addr;
    enum fl_web_protocol protocol;
    struct fl_tls_context *tls; /* NULL: plain; identity is part of the pool's key */
    const char *server_name;    /* SNI; NULL: none. Copied; part of the key */
    uint64_t connect_timeout_ms;
    uint32_t user_timeout_ms, keepalive_s;
};

struct fl_web_pool_config {
    uint32_t max_idle_per_target; /* HTTP/1: max(4, 64/loops) */
    uint64_t max_idle_ms;         /* 55 s (gateway.md 8.1) */
    size_t max_header_bytes;
    uint32_t max_headers;
    struct fl_budget *budget;
};

struct fl_web_pool *fl_web_pool_new(struct fl_loop *loop, const struct fl_web_pool_config *config);
/* Aborts what is left. */
void fl_web_pool_free(struct fl_web_pool *pool);
/* Opens an exchange: on the most recently used idle HTTP/1 connection that is alive, on the
 * target's HTTP/2 connection, or on a new one. Never fails at once; connect errors arrive as
 * on_close. `fresh`: never reuse (the retry of gateway.md 8.4). Send the head at once. */
struct fl_exchange *fl_web_pool_open(struct fl_web_pool *pool, const struct fl_web_target *target,
                                     bool fresh, const struct fl_exchange_handler *handler,
                                     void *owner);
/* Closes connections to that target as soon as they are idle, HTTP/2 ones take no new streams (dead
 * peer, gateway.md 9.1). */
void fl_web_pool_forget(struct fl_web_pool *pool, const struct fl_web_target *target);

#endif
