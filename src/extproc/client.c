/* SPDX-License-Identifier: Apache-2.0 */
#include "extproc/client.h"

#include <assert.h>

#include "base/alloc.h"
#include "http2/grpc.h"

enum { H2_CANCEL = 8 }; /* RFC 9113 section 7 */

struct fl_extproc_peer {
    struct fl_loop *loop;
    struct fl_web_pool *pool;
    struct fl_web_target target;
    char *server_name, *authority, *user_agent;
    uint32_t refs;          /* the owner's and one for each call */
    uint64_t down_until_ms; /* a dial failed: until then questions fail at once */
    uint32_t silent;        /* deadlines in a row without a frame */
    struct fl_extproc_peer_figures figures;
};

enum call_state {
    CALL_ASKING,  /* the decision is owed */
    CALL_DECIDED, /* it was given; the owner holds the call */
    CALL_LEAVING, /* the owner let go; the stream may finish by itself */
};

struct fl_extproc_call {
    enum call_state state;
    struct fl_extproc_peer *peer;
    const struct fl_extproc_call_ops *ops;
    void *owner;
    struct fl_extproc_question question; /* as asked, for the retry */
    struct fl_caller caller;
    struct fl_exchange *x; /* NULL: no stream (any more) */
    struct fl_grpc_reader reader;
    struct fl_timer timer;    /* the deadline; later the wait for the picker's end */
    struct fl_deferred later; /* a decision made inside a command */
    const struct fl_head *reply;
    int grpc_status;
    bool is_body_complete;
    bool has_heard; /* a frame came: the peer lives */
    bool is_retried;
    bool is_decision_owed; /* on_decision is to come, from the loop */
};

/* ---- peers ---- */

struct fl_extproc_peer *fl_extproc_peer_new(struct fl_loop *loop, struct fl_web_pool *pool,
                                            const struct fl_extproc_peer_config *config)
{
    struct fl_extproc_peer *peer = fl_calloc(1, sizeof(*peer));

    assert(config->target.protocol == FL_WEB_H2);
    peer->loop = loop;
    peer->pool = pool;
    peer->target = config->target;
    if (config->target.server_name != NULL)
        peer->server_name = fl_strdup(config->target.server_name);
    peer->target.server_name = peer->server_name;
    peer->authority = fl_strdup(config->authority);
    peer->user_agent = fl_strdup(config->user_agent);
    peer->refs = 1;
    return peer;
}

static void unref_peer(struct fl_extproc_peer *peer)
{
    if (--peer->refs > 0)
        return;
    fl_free(peer->server_name);
    fl_free(peer->authority);
    fl_free(peer->user_agent);
    fl_free(peer);
}

void fl_extproc_peer_free(struct fl_extproc_peer *peer)
{
    if (peer != NULL)
        unref_peer(peer);
}

void fl_extproc_peer_set_addr(struct fl_extproc_peer *peer, const struct fl_addr *addr)
{
    if (fl_addr_eq(&peer->target.addr, addr))
        return;
    peer->target.addr = *addr;
    peer->down_until_ms = 0;
    peer->silent = 0;
}

void fl_extproc_peer_figures(const struct fl_extproc_peer *peer,
                             struct fl_extproc_peer_figures *figures)
{
    *figures = peer->figures;
}

/* gateway.md 9.1: right after a failed dial a question fails at once; later it dials itself.
 * Questions that come during a dial share it. */
static bool may_dial(const struct fl_extproc_peer *peer)
{
    return fl_loop_now_ms(peer->loop) >= peer->down_until_ms;
}

static bool is_dial_failure(int rc)
{
    return rc == FL_ECONNECT || rc == FL_ETLS || rc == FL_ETIMEOUT;
}

static void note_frame(struct fl_extproc_call *call)
{
    call->has_heard = true;
    call->peer->down_until_ms = 0;
    call->peer->silent = 0;
}

/* ---- the end of a call ---- */

/* Nothing refers to it any more: the owner let go and the stream is closed. */
static void free_call(struct fl_extproc_call *call)
{
    assert(call->state == CALL_LEAVING && call->x == NULL);
    fl_loop_timer_stop(call->peer->loop, &call->timer);
    fl_loop_undefer(&call->later);
    fl_grpc_reader_fini(&call->reader);
    unref_peer(call->peer);
    fl_free(call);
}

/* The stream is of no use any more. Its on_close comes later and finds nobody. */
static void drop_stream(struct fl_extproc_call *call);

/* ---- the decision ---- */

static void tell_decision(struct fl_extproc_call *call)
{
    call->is_decision_owed = false;
    call->state = CALL_DECIDED;
    fl_loop_timer_stop(call->peer->loop, &call->timer);
    if (call->caller.state != FL_CALLER_DECIDED)
        drop_stream(call); /* an immediate response is the picker's last word, too */
    call->ops->on_decision(call->owner, call); /* last: the owner may end the call */
}

static void run_later(struct fl_deferred *deferred)
{
    struct fl_extproc_call *call = FL_CONTAINER_OF(deferred, struct fl_extproc_call, later);
    if (call->is_decision_owed)
        tell_decision(call);
}

/* After the caller heard something, in a callback of the loop. */
static void look_at_caller(struct fl_extproc_call *call, enum fl_caller_state before)
{
    enum fl_caller_state now = call->caller.state;

    if (now == before)
        return;
    if (before == FL_CALLER_ASKING) {
        tell_decision(call);
    } else if (now == FL_CALLER_EVICTED) {
        drop_stream(call);
        call->ops->on_eviction(call->owner, call);
    }
}

/* The question has failed, in a callback of the loop. */
static void fail_question(struct fl_extproc_call *call, int rc)
{
    enum fl_caller_state before = call->caller.state;
    fl_caller_hear_end(&call->caller, rc);
    look_at_caller(call, before);
}

/* ---- the stream ---- */

static void send_out(struct fl_extproc_call *call, struct fl_chain *out)
{
    struct fl_slice slice;

    while (fl_chain_pop(out, &slice)) {
        if (call->x != NULL)
            fl_exchange_send_body(call->x, slice);
        else
            fl_slice_unref(&slice);
    }
    fl_chain_fini(out);
}

static void read_messages(struct fl_extproc_call *call)
{
    int rc = 0;

    while (call->x != NULL && call->state != CALL_LEAVING) {
        struct fl_chain message = {0};
        rc = fl_grpc_reader_next(&call->reader, &message);
        if (rc <= 0) {
            fl_chain_fini(&message);
            break;
        }
        enum fl_caller_state before = call->caller.state;
        fl_caller_hear(&call->caller, &message);
        if (call->caller.state != before) {
            /* The owner may end the call in there: look at it no more. */
            look_at_caller(call, before);
            return;
        }
    }
    if (rc < 0) {
        drop_stream(call);
        fail_question(call, rc == FL_ELIMIT ? FL_ELIMIT : FL_EPROTO);
    }
}

static void on_head(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    struct fl_extproc_call *call = owner;

    note_frame(call);
    call->reply = head;
    bool is_grpc = head->status == 200 &&
                   fl_grpc_is_content_type(fl_fields_get(&head->fields, FL_BYTES("content-type")));
    if (is_grpc && !is_end)
        return;
    call->grpc_status = fl_grpc_read_status(head, NULL, fl_exchange_arena(x), NULL);
    if (!is_end)
        drop_stream(call);
    if (call->state == CALL_ASKING)
        fail_question(call, FL_ECLOSED);
    else
        call->caller.is_gone = true;
}

static void on_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
{
    struct fl_extproc_call *call = owner;

    note_frame(call);
    fl_exchange_consume(x, slice.n); /* small answers; the message cap bounds what is kept */
    if (call->state == CALL_LEAVING) {
        fl_slice_unref(&slice);
        return;
    }
    fl_grpc_reader_feed(&call->reader, slice);
    read_messages(call);
}

/* Whatever the status, also OK: without a decision it is a failure, with one it does not matter. */
static void on_end(void *owner, struct fl_exchange *x, const struct fl_fields *trailers)
{
    struct fl_extproc_call *call = owner;

    note_frame(call);
    call->grpc_status = fl_grpc_read_status(call->reply, trailers, fl_exchange_arena(x), NULL);
    if (call->state == CALL_ASKING)
        fail_question(call, FL_ECLOSED);
    else
        call->caller.is_gone = true;
}

static bool open_stream(struct fl_extproc_call *call);

static void on_close(void *owner, struct fl_exchange *x, int rc)
{
    struct fl_extproc_call *call = owner;
    (void)x;

    call->x = NULL;
    if (call->state == CALL_LEAVING) {
        free_call(call);
        return;
    }
    call->caller.is_gone = true; /* of a decided call */
    if (call->state != CALL_ASKING || call->is_decision_owed)
        return;
    if (is_dial_failure(rc) && !call->has_heard) {
        call->peer->down_until_ms = fl_loop_now_ms(call->peer->loop) + FL_EXTPROC_REDIAL_MS;
        call->peer->figures.dial_failures++;
    }
    if (rc == FL_EREFUSED && !call->is_retried) {
        /* GOAWAY or REFUSED_STREAM: the peer has done nothing with it. */
        call->is_retried = true;
        call->peer->figures.retries++;
        if (open_stream(call))
            return;
    }
    fail_question(call, rc < 0 ? rc : FL_ECLOSED);
}

static const struct fl_exchange_handler stream_handler = {
    .on_head = on_head, .on_body = on_body, .on_end = on_end, .on_close = on_close};

/* ---- streams nobody waits for ---- */

static void drop_head(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    (void)owner, (void)x, (void)head, (void)is_end;
}

static void drop_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
{
    (void)owner;
    fl_exchange_consume(x, slice.n);
    fl_slice_unref(&slice);
}

static void drop_end(void *owner, struct fl_exchange *x, const struct fl_fields *trailers)
{
    (void)owner, (void)x, (void)trailers;
}

static void drop_close(void *owner, struct fl_exchange *x, int rc)
{
    (void)owner, (void)x, (void)rc;
}

static const struct fl_exchange_handler dropped = {
    .on_head = drop_head, .on_body = drop_body, .on_end = drop_end, .on_close = drop_close};

static void drop_stream(struct fl_extproc_call *call)
{
    if (call->x == NULL)
        return;
    fl_exchange_set_handler(call->x, &dropped, NULL);
    fl_exchange_abort(call->x, H2_CANCEL);
    call->x = NULL;
    call->caller.is_gone = true;
}

/* ---- asking ---- */

static void send_request_head(struct fl_extproc_call *call)
{
    const struct fl_extproc_peer *peer = call->peer;
    struct fl_arena *arena = fl_exchange_arena(call->x);
    struct fl_head head;

    fl_grpc_request_head(&head, arena,
                         peer->target.tls != NULL ? FL_BYTES("https") : FL_BYTES("http"),
                         fl_bytes_of(peer->authority), FL_BYTES(FL_EXTPROC_PATH));
    fl_fields_add(&head.fields, arena, FL_BYTES("user-agent"), fl_bytes_of(peer->user_agent));
    fl_exchange_send_head(call->x, &head, false);
}

/* Opens a stream and says everything that is known so far. False: not now. */
static bool open_stream(struct fl_extproc_call *call)
{
    const struct fl_extproc_question *question = &call->question;
    struct fl_chain out = {0};

    if (!may_dial(call->peer))
        return false;
    fl_caller_fini(&call->caller);
    fl_caller_init(&call->caller, &question->caller, question->arena);
    fl_grpc_reader_fini(&call->reader);
    fl_grpc_reader_init(&call->reader,
                        (uint32_t)(question->caller.max_body_bytes + FL_CALLER_MARGIN), NULL);
    call->reply = NULL;
    call->x = fl_web_pool_open(call->peer->pool, &call->peer->target, false, &stream_handler, call);
    send_request_head(call);
    fl_caller_ask(&call->caller, &out, question->head, question->scheme, question->kept,
                  question->subset, question->subset_count);
    if (question->kept != NULL)
        fl_caller_ask_body(&call->caller, &out, call->is_body_complete);
    send_out(call, &out);
    return true;
}

/* The deadline of the decision; behind the end, the picker's time to finish. */
static void on_timer(struct fl_timer *timer)
{
    struct fl_extproc_call *call = FL_CONTAINER_OF(timer, struct fl_extproc_call, timer);
    struct fl_extproc_peer *peer = call->peer;

    if (call->state == CALL_LEAVING) {
        drop_stream(call);
        free_call(call);
        return;
    }
    if (call->state != CALL_ASKING || call->is_decision_owed)
        return;
    if (!call->has_heard) {
        peer->figures.silent_deadlines++;
        if (++peer->silent >= FL_EXTPROC_SILENT_MAX) {
            peer->silent = 0;
            fl_web_pool_forget(peer->pool, &peer->target);
        }
    }
    drop_stream(call);
    fail_question(call, FL_ETIMEOUT);
}

static void start_deadline(struct fl_extproc_call *call)
{
    if (call->state == CALL_ASKING)
        fl_loop_timer_start(call->peer->loop, &call->timer, call->question.timeout_ms);
}

struct fl_extproc_call *fl_extproc_call_open(struct fl_extproc_peer *peer,
                                             const struct fl_extproc_question *question,
                                             const struct fl_extproc_call_ops *ops, void *owner)
{
    struct fl_extproc_call *call = fl_calloc(1, sizeof(*call));

    call->peer = peer;
    peer->refs++;
    peer->figures.questions++;
    call->ops = ops;
    call->owner = owner;
    call->question = *question;
    call->grpc_status = -1;
    call->is_body_complete = question->kept == NULL;
    fl_timer_init(&call->timer, on_timer);
    fl_deferred_init(&call->later, run_later);
    fl_caller_init(&call->caller, &question->caller, question->arena);
    if (call->is_body_complete)
        start_deadline(call);
    if (!open_stream(call)) {
        fl_caller_hear_end(&call->caller, FL_ECONNECT);
        call->is_decision_owed = true;
        fl_loop_defer(peer->loop, &call->later);
    }
    return call;
}

void fl_extproc_call_body(struct fl_extproc_call *call, bool is_end)
{
    struct fl_chain out = {0};

    if (call->state != CALL_ASKING || call->is_body_complete)
        return;
    call->is_body_complete = is_end;
    if (is_end)
        start_deadline(call);
    if (call->x == NULL) /* the failure is on its way */
        return;
    fl_caller_ask_body(&call->caller, &out, is_end);
    send_out(call, &out);
}

struct fl_caller *fl_extproc_call_caller(struct fl_extproc_call *call)
{
    return &call->caller;
}

int fl_extproc_call_grpc_status(const struct fl_extproc_call *call)
{
    return call->grpc_status;
}

/* ---- telling ---- */

void fl_extproc_call_tell_head(struct fl_extproc_call *call, int status,
                               const struct fl_fields *fields, struct fl_bytes served)
{
    struct fl_chain out = {0};
    fl_caller_tell_head(&call->caller, &out, status, fields, served);
    send_out(call, &out);
}

static size_t waiting_bytes(const struct fl_extproc_call *call)
{
    return call->x != NULL ? fl_exchange_queued(call->x) : 0;
}

void fl_extproc_call_tell_body(struct fl_extproc_call *call, struct fl_slice slice)
{
    struct fl_chain out = {0};
    fl_caller_tell_body(&call->caller, &out, slice, waiting_bytes(call));
    send_out(call, &out);
}

void fl_extproc_call_cut_tap(struct fl_extproc_call *call)
{
    fl_caller_cut_tap(&call->caller);
}

/* ---- letting go ---- */

static void leave(struct fl_extproc_call *call)
{
    call->state = CALL_LEAVING;
    call->is_decision_owed = false;
    fl_loop_timer_stop(call->peer->loop, &call->timer);
    fl_loop_undefer(&call->later);
    fl_caller_fini(&call->caller);
}

void fl_extproc_call_end(struct fl_extproc_call *call)
{
    struct fl_chain out = {0};
    bool is_told = call->caller.is_head_told;

    if (is_told) {
        fl_caller_tell_end(&call->caller, &out, waiting_bytes(call));
        send_out(call, &out);
    }
    leave(call);
    if (call->x == NULL || !is_told) {
        drop_stream(call);
        free_call(call);
        return;
    }
    fl_exchange_send_end(call->x, NULL);
    fl_loop_timer_start(call->peer->loop, &call->timer, FL_EXTPROC_FINISH_MS);
}

void fl_extproc_call_cancel(struct fl_extproc_call *call)
{
    drop_stream(call);
    leave(call);
    free_call(call);
}
