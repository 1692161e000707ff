/* SPDX-License-Identifier: Apache-2.0 */
/* One HTTP/1.1 connection, either side: one exchange at a time. Of web/ alone.
 *
 * Between exchanges (idle) a connection owns this struct and its stream, no buffers: the exchange
 * with its arena is made when the first byte of a message arrives (server) or when one is opened
 * (client), and freed when both messages have ended.
 *
 *   server:  idle -> HEAD -> (BODY ->) DONE  incoming         NONE -> BODY -> DONE  outgoing
 *            both DONE: on_close(0), then idle again or close
 *            outgoing DONE first: the rest of the request is not read, the connection closes
 *   client:  the same with the sides changed; incoming DONE first: the connection closes
 *
 * Nothing is called back from inside the commands of an exchange: they mark, and `work` goes on at
 * the end of the turn. */
#ifndef FL_WEB_CONN_H1_H
#define FL_WEB_CONN_H1_H

#include "http1/http1.h"
#include "web/internal.h"

struct fl_h1_conn;
struct fl_h1_exchange;

/* What the owner of the connection decides. */
struct fl_h1_hooks {
    /* Server: sets the handler of a new exchange. */
    void (*on_request)(struct fl_h1_conn *conn, struct fl_exchange *x);
    /* Server: words the answer to a request that cannot be served. */
    void (*on_bad_request)(struct fl_h1_conn *conn, int status, const char *word,
                           struct fl_buf *body, const char **content_type);
    /* The exchange is over and the connection could be used again: true to keep it. */
    bool (*keep)(struct fl_h1_conn *conn);
    /* The stream is gone; the struct goes after this turn. */
    void (*on_gone)(struct fl_h1_conn *conn);
};

struct fl_h1_conn {
    const struct fl_h1_hooks *hooks;
    void *owner;                    /* server or pool entry */
    struct fl_link link, pool_link; /* the owner's */
    struct fl_loop *loop;
    struct fl_stream *stream;
    struct fl_web_reader *reader;
    struct fl_http1_parser parser;
    struct fl_h1_exchange *x; /* NULL: idle */
    struct fl_timer timer;    /* server only */
    struct fl_deferred work;
    struct fl_disposable dispose;
    struct fl_web_stall stall;
    uint64_t head_timeout_ms, idle_timeout_ms;
    uint64_t last_ms;    /* idle since, or last byte of the peer */
    uint32_t served;     /* exchanges that have ended */
    uint32_t generation; /* the pool's, when connected */
    bool is_server;
    bool is_closing; /* nothing is read, written or reused any more */
    bool is_pumping;
    bool is_eof;
    bool is_last; /* no further exchange */
};

/* Takes over an open stream whose first bytes may be read ahead; call fl_h1_conn_start() then. */
struct fl_h1_conn *fl_h1_server_new(struct fl_loop *loop, struct fl_stream *stream,
                                    struct fl_web_reader *reader,
                                    const struct fl_http1_limits *limits,
                                    const struct fl_h1_hooks *hooks, void *owner,
                                    uint64_t head_timeout_ms, uint64_t idle_timeout_ms);
void fl_h1_conn_start(struct fl_h1_conn *conn);

/* Connects. */
struct fl_h1_conn *fl_h1_client_new(struct fl_loop *loop, const struct fl_addr *addr,
                                    const struct fl_stream_config *config,
                                    struct fl_web_reader *reader,
                                    const struct fl_http1_limits *limits,
                                    const struct fl_h1_hooks *hooks, void *owner);
/* On an idle or new client connection. */
struct fl_exchange *fl_h1_client_open(struct fl_h1_conn *conn,
                                      const struct fl_exchange_handler *handler, void *owner);

/* Ends as soon as no exchange runs. */
void fl_h1_conn_drain(struct fl_h1_conn *conn);
/* At once: an exchange gets its on_close from inside this call, no hook is called any more, memory
 * goes when the stream is closed. */
void fl_h1_conn_kill(struct fl_h1_conn *conn);
/* An idle connection: closed. */
void fl_h1_conn_close(struct fl_h1_conn *conn);

#endif
