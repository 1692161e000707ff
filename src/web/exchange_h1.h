/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange of an HTTP/1 connection: its state, its commands (exchange_h1.c), and what the
 * connection (conn_h1.c) lends them. Of these two files alone. */
#ifndef FL_WEB_EXCHANGE_H1_H
#define FL_WEB_EXCHANGE_H1_H

#include <stdalign.h>

#include "web/conn_h1.h"

/* A head of common size and what its handler adds; larger ones spill over. */
#define ARENA_ROOM 2048
enum in_state {
    IN_HEAD, /* no final head yet */
    IN_BODY,
    IN_DONE,
};

enum out_state {
    OUT_NONE, /* no final head sent */
    OUT_BODY,
    OUT_DONE,
};

struct fl_h1_exchange {
    union {
        struct fl_exchange base;
        struct fl_link spare; /* while it waits in the reader for its next use */
    };
    struct fl_h1_conn *conn;
    struct fl_head *request; /* server: what is answered */
    size_t held;
    uint64_t out_left; /* of a declared length */
    uint64_t begun_ms; /* server: first byte of the head */
    uint64_t body_ms;  /* server: last byte of the body */
    int rc;            /* set when it ends for a reason of its own; 0: none */
    uint8_t in, out;
    uint8_t out_framing;      /* enum fl_body_kind, once out is not NONE */
    uint8_t out_minor;        /* server: of the client */
    bool in_keeps, out_keeps; /* either message leaves the connection usable */
    bool takes_trailers;
    bool is_high;
    bool is_aborted; /* by its handler, or given up: nothing but on_close follows */
    bool is_reused;
    bool is_heard;     /* client: a byte of an answer came */
    bool is_announced; /* server: the handler knows it */
    struct fl_arena arena;
    alignas(16) uint8_t room[ARENA_ROOM];
};

extern const struct fl_exchange_ops fl_h1_exchange_ops;

/* ---- by exchange_h1.c ---- */

/* An empty buffer for one head, and its way out. */
struct fl_buf *fl_h1_scratch(struct fl_h1_conn *conn);
void fl_h1_write_scratch(struct fl_h1_conn *conn, struct fl_buf *scratch);

/* ---- by conn_h1.c ---- */

/* The exchange ends for the reason `rc`; the peer sees that something is missing. on_close comes
 * later. */
void fl_h1_give_up(struct fl_h1_exchange *x, int rc);
/* Goes on at the end of the turn, unless the loop's work is going on just now. */
void fl_h1_work_later(struct fl_h1_conn *conn);

#endif
