/* SPDX-License-Identifier: Apache-2.0 */
/* A whole request and a whole answer: one deadline over everything, caps, cancel. For services that
 * are asked, not proxied: tokenizer, Kubernetes, dumps, scrapes.
 *
 * The answer's body is gathered into one buffer. A 200 longer than `max_body_bytes` fails with
 * FL_ELIMIT, by its declared length at once, else while it is read; other statuses keep their first
 * `max_error_bytes` only (for a log line). Redirects are not followed. A request that ran on a
 * reused connection which closed before any byte of an answer is sent once more on a fresh one
 * (epp.md 9.1). Single loop. */
#ifndef FL_WEB_FETCH_H
#define FL_WEB_FETCH_H

#include "web/exchange.h"

struct fl_fetch_request {
    struct fl_web_target target;
    struct fl_bytes method;    /* "GET", "POST" */
    struct fl_bytes path;      /* with query */
    struct fl_bytes authority; /* Host */
    const struct fl_field *fields;
    uint32_t field_count;
    const struct fl_chain *body; /* NULL: none. References are taken, nothing is copied */
    uint64_t timeout_ms;         /* over everything, connecting included; > 0 */
    size_t max_body_bytes, max_error_bytes;
};

struct fl_fetch_result {
    /* 0: a whole answer came, whatever its status. FL_ECONNECT (refused, unreachable), FL_ETLS,
     * FL_ECLOSED, FL_EIO, FL_EPROTO, FL_ELIMIT, FL_ETIMEOUT. */
    int rc;
    int status;               /* 0: none came */
    struct fl_fields *fields; /* of the answer, lent; NULL: none came */
    struct fl_bytes body;     /* lent */
    bool is_reused;           /* the connection had served before */
};

struct fl_fetch;

/* `done` comes once, in a later turn; everything it is shown is lent for the call. Strings of the
 * request are copied. */
struct fl_fetch *fl_fetch_start(struct fl_web_pool *pool, struct fl_loop *loop,
                                const struct fl_fetch_request *request,
                                void (*done)(void *owner, const struct fl_fetch_result *result),
                                void *owner);
/* No `done` any more; the exchange is aborted. NULL allowed. The pointer is dead. */
void fl_fetch_cancel(struct fl_fetch *fetch);

#endif
