/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of one forwarded pair, for its own files only: forward.c has the client's side, the
 * timers and the end; upstream.c the endpoint's side; ask.c the picker's. */
#ifndef FL_PROXY_FORWARD_IMPL_H
#define FL_PROXY_FORWARD_IMPL_H

#include "base/arena.h"
#include "base/buf.h"
#include "extproc/caller.h"
#include "extproc/client.h"
#include "proxy/errors.h"
#include "proxy/forward.h"
#include "proxy/headers.h"
#include "proxy/picker.h"

/* See forward.h. */
enum fl_forward_state {
    FL_FORWARD_ROUTING,
    FL_FORWARD_ASKING,
    FL_FORWARD_HOLDING,
    FL_FORWARD_CONNECTING,
    FL_FORWARD_RELAYING,
    FL_FORWARD_ANSWERED,
    FL_FORWARD_OVER,
};

/* What the one timer of a request waits for (gateway.md 8.8). */
enum fl_forward_timer {
    FL_FORWARD_TIMER_PAUSE,  /* memory for the rest of the body */
    FL_FORWARD_TIMER_HEAD,   /* the response head, once the request is sent */
    FL_FORWARD_TIMER_BODY,   /* the next byte of a response of known length */
    FL_FORWARD_TIMER_STREAM, /* the end of a stream */
};

struct fl_forward {
    enum fl_forward_state state;
    struct fl_proxy *proxy;
    const struct fl_proxy_entry *entry;
    struct fl_link link; /* proxy->forwards until OVER */
    struct fl_disposable disposable;
    bool is_disposed;
    struct fl_timer timer;
    enum fl_forward_timer timer_purpose;

    /* client */
    struct fl_exchange *client; /* NULL once closed */
    struct fl_head *head;       /* cleaned */
    struct fl_proxy_request_traits traits;
    struct fl_bytes model;
    const struct fl_fields *trailers; /* of the request, streamed ones */
    bool is_received;                 /* the whole request is here */
    bool is_dropping;                 /* what still comes is thrown away */
    bool has_continued;               /* 100 Continue is sent */
    bool is_cut;                      /* we ended the client's exchange */
    size_t unconsumed;                /* bytes whose window the client has not got back */
    uint64_t body_bytes;              /* received */
    uint64_t paused_ms;

    /* rule; NULL before ROUTING is done and once OVER */
    struct fl_rules_snapshot *snapshot;
    const struct fl_rule *rule;
    struct fl_proxy_rule_shard *shard;

    /* body */
    bool keeps_all;   /* it goes out in one piece, after the decision */
    bool is_kept_cut; /* `kept` is not the whole request any more: no other attempt */
    struct fl_chain kept;

    /* endpoint */
    struct fl_exchange *upstream; /* NULL between attempts */
    bool is_upstream_dropped;     /* aborted by us, its close is to come */
    bool is_booked;               /* fl_rule_done() is owed */
    bool is_retried;              /* on a fresh connection, gateway.md 8.4 */
    bool is_taken;                /* some of the body is in the endpoint's socket */
    uint32_t endpoint;            /* of the attempt under way, or the last one */
    uint32_t tried[FL_RULE_MAX_TRIED], attempts;
    size_t sent_bytes; /* of the body, in this attempt */
    size_t unread;     /* response bytes whose window the endpoint has not got back */
    bool is_stream, is_response_ended;

    /* picker */
    struct fl_picker_wait wait; /* for its address */
    struct fl_timer wait_timer;
    struct fl_extproc_call *call; /* NULL: none, ended or cancelled */
    struct fl_caller *caller;     /* of the call */
    const struct fl_bytes *subset;
    size_t subset_count;
    bool is_waiting;     /* for the decision: counted in flight */
    bool is_outcome_due; /* decided, not yet known whether anybody named is usable */
    bool is_named;       /* candidates, fields and body are the picker's */
    uint32_t next_candidate;

    /* accounting */
    uint64_t started_ns, received_ns, asked_ns;
    uint64_t response_bytes;
    int status; /* what the client got, 0 before */
};

void fl_forward_set_state(struct fl_forward *f, enum fl_forward_state state);
void fl_forward_start_timer(struct fl_forward *f, enum fl_forward_timer purpose, uint64_t delay_ms);
void fl_forward_stop_timer(struct fl_forward *f);
uint64_t fl_forward_data_timeout_ms(const struct fl_forward *f);
/* The gateway's own answer; ends picker and endpoint. The client is there. */
void fl_forward_refuse(struct fl_forward *f, enum fl_proxy_error error);
/* Somebody else's answer instead of an endpoint's was sent. */
void fl_forward_answered(struct fl_forward *f, int status);
/* The response cannot go on: the client's exchange ends without a proper end. */
void fl_forward_cut(struct fl_forward *f);
/* The rest of the request body interests nobody. */
void fl_forward_leave_body(struct fl_forward *f);
void fl_forward_free_if_closed(struct fl_forward *f);
/* fl_proxy_abort(): `link` is that of one under way. */
void fl_forward_end(struct fl_link *link);

/* ---- upstream.c ---- */

/* Tries the next endpoint, or gives up. */
void fl_forward_connect(struct fl_forward *f);
/* No endpoint any more; harmless without one. */
void fl_forward_drop_upstream(struct fl_forward *f);
/* A plain rule's body on its way through. */
void fl_forward_stream_body(struct fl_forward *f, struct fl_slice slice);
void fl_forward_stream_end(struct fl_forward *f);

/* ---- ask.c ---- */

void fl_forward_ask_init(struct fl_forward *f);
/* Opens the question. What follows (ask_*, tap_*) is harmless without one. */
void fl_forward_ask(struct fl_forward *f);
/* `kept` has grown, or is complete. */
void fl_forward_ask_body(struct fl_forward *f, bool is_end);
/* Nothing is wanted from the picker any more: reset, unless the end was told. */
void fl_forward_ask_cancel(struct fl_forward *f);
/* None of the picker's candidates is usable. */
void fl_forward_named_nobody(struct fl_forward *f);
void fl_forward_count_outcome(struct fl_forward *f, enum fl_proxy_epp_outcome outcome);
/* Whatever happens from here on, the decision was good. Harmless without one. */
void fl_forward_settle_outcome(struct fl_forward *f);
void fl_forward_tap_head(struct fl_forward *f, const struct fl_head *head);
/* Borrows. */
void fl_forward_tap_body(struct fl_forward *f, struct fl_slice slice);
void fl_forward_tap_end(struct fl_forward *f);

#endif
