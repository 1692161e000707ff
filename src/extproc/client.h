/* SPDX-License-Identifier: Apache-2.0 */
/* ext_proc as a client: one question to a picker over a pool's HTTP/2 connection, and the telling
 * of the response afterwards. What is said and heard stands in caller.h; here are stream, deadline,
 * retry and the picker's health as a peer.
 *
 *   open() -> [body() ...] -> on_decision (once) -> tell_head(), tell_body() ..., tell_end()
 *                             caller->state tells      or cancel() at any time
 *
 * Deadline: `timeout_ms` from the moment the last byte of the request is there (open() without a
 * body, body() with is_end); it covers dialling, sending and waiting. Expired: state FAILED, rc
 * FL_ETIMEOUT, and the stream is reset. Retry: a stream that the peer never processed (GOAWAY,
 * REFUSED_STREAM) is asked again, once. Dial failures: for FL_EXTPROC_REDIAL_MS after one,
 * questions fail at once; the next one dials again. Dead peer: after FL_EXTPROC_SILENT_MAX
 * questions in a row that ended at the deadline without a frame, the connection is given up.
 *
 * End: the owner calls exactly one of fl_extproc_call_end() and fl_extproc_call_cancel(), in
 * whatever state; the pointer is dead then and no callback comes any more. After end() the stream
 * lingers on its own for FL_EXTPROC_FINISH_MS.
 *
 * Callbacks come from the loop, never from inside a call. Single loop. gateway.md 9.1, 9.2, 9.8. */
#ifndef FL_EXTPROC_CLIENT_H
#define FL_EXTPROC_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "extproc/caller.h"
#include "net/loop.h"
#include "web/exchange.h"

#define FL_EXTPROC_REDIAL_MS 100
#define FL_EXTPROC_SILENT_MAX 2
#define FL_EXTPROC_FINISH_MS 2000 /* for the picker to close its side after the end */

/* One picker as one loop sees it. */
struct fl_extproc_peer;

struct fl_extproc_peer_config {
    struct fl_web_target target; /* protocol FL_WEB_H2 */
    const char *authority;       /* eppEndpoint; copied */
    const char *user_agent;      /* "fairlead-gateway/<v>"; copied */
};

struct fl_extproc_peer_figures {
    uint64_t questions, dial_failures, silent_deadlines, retries;
};

struct fl_extproc_peer *fl_extproc_peer_new(struct fl_loop *loop, struct fl_web_pool *pool,
                                            const struct fl_extproc_peer_config *config);
/* Calls that are open keep what they need. NULL allowed. */
void fl_extproc_peer_free(struct fl_extproc_peer *peer);
/* After a new resolution of its name: for questions from now on. */
void fl_extproc_peer_set_addr(struct fl_extproc_peer *peer, const struct fl_addr *addr);
void fl_extproc_peer_figures(const struct fl_extproc_peer *peer,
                             struct fl_extproc_peer_figures *figures);

struct fl_extproc_call;

struct fl_extproc_call_ops {
    /* The caller's state is DECIDED, IMMEDIATE or FAILED. Once. */
    void (*on_decision)(void *owner, struct fl_extproc_call *call);
    /* An immediate response after the decision: state EVICTED. At most once. */
    void (*on_eviction)(void *owner, struct fl_extproc_call *call);
};

struct fl_extproc_question {
    struct fl_caller_config caller;
    const struct fl_head *head;    /* its fields and `arena` live until end() or cancel() */
    struct fl_bytes scheme;        /* of the client's request */
    struct fl_arena *arena;        /* what answers bring is copied there */
    const struct fl_chain *kept;   /* NULL: no body. See fl_caller_ask() */
    const struct fl_bytes *subset; /* live until the decision (a retry sends them again) */
    size_t subset_count;
    uint64_t timeout_ms;
};

/* Never fails at once. */
struct fl_extproc_call *fl_extproc_call_open(struct fl_extproc_peer *peer,
                                             const struct fl_extproc_question *question,
                                             const struct fl_extproc_call_ops *ops, void *owner);
/* The kept body has grown, or is complete. */
void fl_extproc_call_body(struct fl_extproc_call *call, bool is_end);
/* Decision, answers; lent. Its new_body may be moved away. */
struct fl_caller *fl_extproc_call_caller(struct fl_extproc_call *call);
/* How the picker ended the stream, for the log: -1 while it has not. */
int fl_extproc_call_grpc_status(const struct fl_extproc_call *call);

/* The response phase; see fl_caller_tell_*(). */
void fl_extproc_call_tell_head(struct fl_extproc_call *call, int status,
                               const struct fl_fields *fields, struct fl_bytes served);
/* Borrows the slice. */
void fl_extproc_call_tell_body(struct fl_extproc_call *call, struct fl_slice slice);
/* Memory is short: the rest of the body is not told. */
void fl_extproc_call_cut_tap(struct fl_extproc_call *call);
/* The response is complete (if a head was told): says so, half-closes, lets the picker finish. Also
 * ends a call whose answer was an immediate response or a failure. */
void fl_extproc_call_end(struct fl_extproc_call *call);
/* Resets the stream with CANCEL at once: client or endpoint gone, no usable endpoint, abort. */
void fl_extproc_call_cancel(struct fl_extproc_call *call);

#endif
