/* SPDX-License-Identifier: Apache-2.0 */
/* One HTTP/2 connection, either side, and its exchanges. Of web/ alone.
 *
 * Commands and received bytes only mark the connection; `flush` drains the session once at the end
 * of the turn, so that all streams of a turn leave with one system call. No more is drained while
 * FL_H2_DRAIN_BYTES wait in the socket's queue.
 *
 * A client exchange may exist without a stream: until its head is sent, and while it waits in the
 * pool because all connections are at the peer's limit. What is sent meanwhile is kept and
 * submitted later. */
#ifndef FL_WEB_CONN_H2_H
#define FL_WEB_CONN_H2_H

#include "http2/h2.h"
#include "web/internal.h"

struct fl_h2_conn;
struct fl_h2_exchange;

struct fl_h2_hooks {
    /* Server: sets the handler of a new exchange. */
    void (*on_request)(struct fl_h2_conn *conn, struct fl_exchange *x);
    /* Client: a stream ended, or the peer's SETTINGS or GOAWAY came: others may be opened now, or
     * never again. */
    void (*on_change)(struct fl_h2_conn *conn);
    void (*on_gone)(struct fl_h2_conn *conn);
};

struct fl_h2_conn {
    const struct fl_h2_hooks *hooks; /* NULL: killed */
    void *owner;
    struct fl_link link; /* the owner's */
    struct fl_loop *loop;
    struct fl_stream *stream;
    struct fl_web_reader *reader;
    struct fl_h2 *h2;
    struct fl_timer timer;
    struct fl_deferred flush;
    struct fl_disposable dispose;
    struct fl_web_stall stall;
    uint64_t head_timeout_ms; /* server: until the first stream or SETTINGS */
    uint64_t idle_timeout_ms; /* without streams; UINT64_MAX: kept */
    uint64_t quiet_ms;        /* without streams since */
    uint32_t served;          /* streams that have ended */
    uint32_t generation;      /* the pool's */
    bool is_server, is_closing, is_draining, is_last_word; /* the final GOAWAY is out */
    bool is_heard;                                         /* a frame came */
    bool is_silent; /* client: no longer told to anybody (pool gone) */
};

/* Takes over an open stream. */
struct fl_h2_conn *fl_h2_server_new(struct fl_loop *loop, struct fl_stream *stream,
                                    struct fl_web_reader *reader, const struct fl_h2_config *config,
                                    const struct fl_h2_hooks *hooks, void *owner,
                                    uint64_t head_timeout_ms, uint64_t idle_timeout_ms);
void fl_h2_conn_start(struct fl_h2_conn *conn);

struct fl_h2_conn *fl_h2_client_new(struct fl_loop *loop, const struct fl_addr *addr,
                                    const struct fl_stream_config *stream_config,
                                    struct fl_web_reader *reader, const struct fl_h2_config *config,
                                    const struct fl_h2_hooks *hooks, void *owner,
                                    uint64_t idle_timeout_ms);

/* Who finds connections for client exchanges: the pool. */
struct fl_h2_placer {
    /* Once, when the head is sent: puts the exchange on a connection (fl_h2_exchange_submit), or
     * keeps it waiting in its link. */
    void (*place)(void *placer, struct fl_h2_exchange *x);
    /* It was aborted while it had no stream; its end comes later. */
    void (*abandon)(void *placer, struct fl_h2_exchange *x);
    /* It has ended; the pointer is dead after the call. */
    void (*ended)(void *placer, struct fl_h2_exchange *x);
};

/* A client exchange without a stream. */
struct fl_h2_exchange *fl_h2_exchange_new(struct fl_loop *loop,
                                          const struct fl_exchange_handler *handler, void *owner,
                                          const struct fl_h2_placer *ops, void *placer);
struct fl_exchange *fl_h2_exchange_face(struct fl_h2_exchange *x);
struct fl_link *fl_h2_exchange_wait_link(struct fl_h2_exchange *x);
struct fl_h2_exchange *fl_h2_exchange_of_link(struct fl_link *link);
/* fl_h2_can_open(conn->h2) holds. What the exchange has kept is submitted. */
void fl_h2_exchange_submit(struct fl_h2_exchange *x, struct fl_h2_conn *conn);
/* No connection will be found: on_close(rc) at the end of the turn. */
void fl_h2_exchange_fail(struct fl_h2_exchange *x, int rc);
/* The same, from inside this call (pool gone); for an exchange without a stream. */
void fl_h2_exchange_kill(struct fl_h2_exchange *x, int rc);

/* Client: may take another stream. */
bool fl_h2_conn_can_open(const struct fl_h2_conn *conn);
/* Client: never again. */
bool fl_h2_conn_is_spent(const struct fl_h2_conn *conn);
/* Server: GOAWAY in two steps. Client: closes as soon as no stream is open. */
void fl_h2_conn_drain(struct fl_h2_conn *conn);
/* As fl_h1_conn_kill(). */
void fl_h2_conn_kill(struct fl_h2_conn *conn);

#endif
