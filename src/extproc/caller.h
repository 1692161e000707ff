/* SPDX-License-Identifier: Apache-2.0 */
/* The gateway's end of one ext_proc stream: what to tell the picker about a request and its
 * response, and what the picker's answers mean. Bytes only: whoever owns the stream sends what is
 * appended to `out` (framed gRPC messages, body chunks by reference), feeds what arrives, and keeps
 * the deadline.
 *
 *    ASKING   --complete answer-->      DECIDED     candidates, mutated fields, new body or none
 *             --immediate_response-->   IMMEDIATE   an answer for the client, to be relayed
 *             --anything unusable-->    FAILED      `rc` says what; the failure mode decides
 *    DECIDED  --immediate_response-->   EVICTED     likewise, but after the request was admitted
 *
 * When an answer is complete (gateway.md 9.4): on the header answer if there is no body or it
 * replaces it whole; on the last streamed piece; on a whole-body change; on a plain body answer
 * only if a destination is known or it is the answer to the last body message, because the
 * lightweight picker of GAIE answers every body message with one, all but the last before its
 * header answer.
 *
 * A body that comes back is compared with the kept one as it streams; nothing is stored before the
 * first byte that differs.
 *
 * Pure: no sockets, no clock. Single-threaded. gateway.md 9.2, 9.4, 9.6, 9.8. */
#ifndef FL_EXTPROC_CALLER_H
#define FL_EXTPROC_CALLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "extproc/endpoint.h"
#include "extproc/message.h"
#include "extproc/mutation.h"
#include "http/message.h"
#include "http2/joint.h"

#define FL_CALLER_CHUNK 65536        /* body bytes of one message, both phases */
#define FL_CALLER_TAIL_BYTES 16384   /* `edges`: how much of the end is told (usage stands there) */
#define FL_CALLER_TAP_MAX (1u << 20) /* waiting for a slow picker; then the tap is cut */
#define FL_CALLER_MARGIN (1u << 20)  /* a message may be the whole body and something around it */

/* eppResponseBody of a rule: gateway.md 9.8 */
enum fl_caller_tap {
    FL_CALLER_TAP_EDGES, /* first non-empty chunk, then the last 16 KiB and the end */
    FL_CALLER_TAP_ALL,
    FL_CALLER_TAP_FIRST,
    FL_CALLER_TAP_NONE,
};

struct fl_caller_config {
    size_t max_body_bytes;
    bool sends_protocol_config; /* {4, 4, true} in the first message */
    enum fl_caller_tap tap;
};

enum fl_caller_state {
    FL_CALLER_ASKING,
    FL_CALLER_DECIDED,
    FL_CALLER_IMMEDIATE,
    FL_CALLER_FAILED,
    FL_CALLER_EVICTED,
};

/* Read by the owner; written here. */
struct fl_caller {
    struct fl_caller_config config;
    enum fl_caller_state state;
    int rc; /* FAILED: FL_EPROTO, FL_ELIMIT, FL_ETOO_LARGE, FL_ECLOSED */

    /* DECIDED */
    char candidates[FL_ENDPOINT_CANDIDATES][FL_ENDPOINT_TEXT];
    uint32_t candidate_count;     /* 0: the picker named nothing usable */
    bool is_destination_conflict; /* header and metadata differ: the header won, to be logged */
    struct fl_mutated mutated;    /* the request's fields; is_changed tells */
    bool is_body_replaced;
    struct fl_chain new_body; /* valid if is_body_replaced */

    /* IMMEDIATE, EVICTED */
    int immediate_status;
    struct fl_fields immediate_fields;
    struct fl_chain immediate_body;

    /* while asking */
    struct fl_arena *arena;
    const struct fl_chain *kept; /* the request body as far as it has come; NULL: none will come */
    size_t sent_bytes;           /* of it */
    uint32_t body_messages, plain_answers;
    bool is_body_sent;
    bool has_pieces; /* a streamed body is being compared or stored */
    struct fl_bytes header_destination, metadata_destination;
    bool is_same; /* what came back so far equals the kept body */
    size_t same_bytes;
    uint32_t same_slice;
    size_t same_offset; /* in that slice */

    /* response phase */
    bool is_gone; /* nothing more is said: stream ended, or the end was told */
    bool is_head_told, is_end_told, is_first_told, is_tap_cut;
    struct fl_chain tail;
    struct fl_joint joint; /* small chunks of the tail share memory */
};

/* `arena` is the request's and outlives the caller: what answers bring is copied into it, capped.
 */
void fl_caller_init(struct fl_caller *caller, const struct fl_caller_config *config,
                    struct fl_arena *arena);
/* Idempotent. */
void fl_caller_fini(struct fl_caller *caller);

/* ---- asking ---- */

/* The first message. `head` is the request's (its :scheme is `scheme`), borrowed; its fields
 * outlive the caller. `kept` is the request body's chain, which the owner appends to and does not
 * shorten until the decision; NULL without a body. `subset`: endpoints usable now, never none. */
void fl_caller_ask(struct fl_caller *caller, struct fl_chain *out, const struct fl_head *head,
                   struct fl_bytes scheme, const struct fl_chain *kept,
                   const struct fl_bytes *subset, size_t subset_count);
/* The kept body has grown, or (`is_end`) is complete. Sends whole chunks, and the rest at the end;
 * may send nothing. Harmless after the decision. */
void fl_caller_ask_body(struct fl_caller *caller, struct fl_chain *out, bool is_end);

/* ---- hearing ---- */

/* One message of the picker; takes its slices. The state afterwards tells. */
void fl_caller_hear(struct fl_caller *caller, struct fl_chain *message);
/* The stream ended, whatever its status. While asking: FAILED with `rc` (negative). */
void fl_caller_hear_end(struct fl_caller *caller, int rc);

/* ---- telling: the response phase; all harmless once the stream is gone ---- */

void fl_caller_tell_head(struct fl_caller *caller, struct fl_chain *out, int status,
                         const struct fl_fields *fields, struct fl_bytes served);
/* Borrows the slice and keeps references. `waiting_bytes` is what the stream has not taken yet. */
void fl_caller_tell_body(struct fl_caller *caller, struct fl_chain *out, struct fl_slice slice,
                         size_t waiting_bytes);
/* Memory is short: nothing more of the body is told. */
void fl_caller_cut_tap(struct fl_caller *caller);
/* The response is complete: what is left of the tap, then the end message, exactly once. For an
 * abort, reset the stream instead. */
void fl_caller_tell_end(struct fl_caller *caller, struct fl_chain *out, size_t waiting_bytes);

#endif
