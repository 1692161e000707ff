/* SPDX-License-Identifier: Apache-2.0 */
/* The picker's side of a forwarded pair: question, decision, failure modes, telling of the response
 * (gateway.md 9). */
#include <assert.h>

#include "base/log.h"
#include "proxy/forward_impl.h"

static void add_gauge(_Atomic uint64_t *gauge, uint64_t n)
{
    /* The loop's own cell; see metrics.h. Unsigned wraps, so that adding -1 subtracts. */
    uint64_t old = atomic_load_explicit(gauge, memory_order_relaxed);
    atomic_store_explicit(gauge, old + n, memory_order_relaxed);
}

void fl_forward_count_outcome(struct fl_forward *f, enum fl_proxy_epp_outcome outcome)
{
    f->is_outcome_due = false;
    fl_metric_add(f->proxy->config->metrics, f->proxy->index, FL_PROXY_EPP_REQUESTS, outcome, 1);
}

void fl_forward_settle_outcome(struct fl_forward *f)
{
    if (f->is_outcome_due)
        fl_forward_count_outcome(f, FL_PROXY_EPP_OK);
}

/* ---- books: every question that begins ends here ---- */

static void begin_question(struct fl_forward *f)
{
    f->is_waiting = true;
    f->asked_ns = fl_clock_ns();
    if (f->shard != NULL)
        add_gauge(&f->shard->epp_inflight, 1);
}

/* It has its decision, or is given up. */
static void end_question(struct fl_forward *f)
{
    if (!f->is_waiting)
        return;
    f->is_waiting = false;
    atomic_fetch_sub_explicit(f->proxy->config->epp_inflight, 1, memory_order_relaxed);
    if (f->shard != NULL)
        add_gauge(&f->shard->epp_inflight, (uint64_t)-1);
}

/* The stream is not ours any more. */
static struct fl_extproc_call *take_call(struct fl_forward *f)
{
    struct fl_extproc_call *call = f->call;
    f->call = NULL;
    f->caller = NULL;
    if (call != NULL && f->shard != NULL)
        add_gauge(&f->shard->epp_streams, (uint64_t)-1);
    return call;
}

static void end_call(struct fl_forward *f)
{
    struct fl_extproc_call *call = take_call(f);
    if (call != NULL)
        fl_extproc_call_end(call);
}

void fl_forward_ask_cancel(struct fl_forward *f)
{
    fl_link_unlink(&f->wait.link);
    fl_loop_timer_stop(f->proxy->loop, &f->wait_timer);
    end_question(f);
    struct fl_extproc_call *call = take_call(f);
    if (call != NULL)
        fl_extproc_call_cancel(call);
}

/* ---- failure modes ---- */

static void fail_over(struct fl_forward *f, enum fl_proxy_error error, enum fl_proxy_fallback cause)
{
    if (f->rule->epp_failure == FL_EPP_FAIL_CLOSE) {
        fl_forward_refuse(f, error);
        return;
    }
    /* Original fields and body: nothing of the answer is applied (gateway.md 9.7). */
    f->is_named = false;
    if (f->shard != NULL)
        fl_proxy_count_fallback(f->shard, cause);
    if (!f->is_received) {
        fl_forward_set_state(f, FL_FORWARD_HOLDING);
        return;
    }
    fl_forward_set_state(f, FL_FORWARD_CONNECTING);
    fl_forward_connect(f);
}

static void fail(struct fl_forward *f, enum fl_proxy_epp_outcome outcome, const char *why)
{
    fl_log_limited(&f->proxy->picker_limit, fl_loop_now_ms(f->proxy->loop), 1000, FL_LOG_WARN,
                   "picker did not answer", "epp=%s why=%s request_id=%s",
                   fl_log_value(f->rule->epp_endpoint).text, why,
                   fl_log_value(f->traits.request_id).text);
    fl_forward_count_outcome(f, outcome);
    fail_over(f, FL_PROXY_EPP_UNAVAILABLE, FL_PROXY_FALLBACK_UNAVAILABLE);
}

void fl_forward_named_nobody(struct fl_forward *f)
{
    fl_forward_count_outcome(f, FL_PROXY_EPP_NONE_USABLE);
    /* At once, so that the picker frees what it booked. */
    fl_forward_ask_cancel(f);
    fail_over(f, FL_PROXY_EPP_NO_ENDPOINT, FL_PROXY_FALLBACK_NO_ENDPOINT);
}

/* ---- answers ---- */

/* gateway.md 9.6 */
static void relay_immediate(struct fl_forward *f)
{
    struct fl_caller *caller = f->caller;
    struct fl_arena *arena = fl_exchange_arena(f->client);
    struct fl_bytes type = FL_BYTES("Content-Type");
    struct fl_head head = {
        .status = (uint16_t)caller->immediate_status,
        .minor = 1,
        .keep_alive = true,
        .body = FL_BODY_LENGTH,
        .content_length = caller->immediate_body.bytes,
        .fields = caller->immediate_fields,
        .arena = arena,
    };
    bool has_body = caller->immediate_body.bytes > 0;
    bool is_told = has_body && !fl_bytes_eq(f->head->method, FL_BYTES("HEAD"));
    if (head.status == 204 || head.status == 304) {
        has_body = is_told = false;
        head.body = FL_BODY_NONE;
    }
    if (has_body && fl_fields_find(&head.fields, type) == NULL)
        fl_fields_add(&head.fields, arena, type,
                      fl_chain_at(&caller->immediate_body, 0).p[0] == '{'
                          ? FL_BYTES("application/json")
                          : FL_BYTES("text/plain"));
    fl_fields_set(&head.fields, arena, FL_BYTES("X-Request-Id"), f->traits.request_id);
    fl_forward_leave_body(f);
    fl_exchange_send_head(f->client, &head, !is_told);
    if (is_told) {
        for (uint32_t i = 0; i < caller->immediate_body.count; i++)
            fl_exchange_send_body(f->client, fl_slice_ref(fl_chain_at(&caller->immediate_body, i)));
        fl_exchange_send_end(f->client, NULL);
    }
    int status = head.status;
    end_call(f);
    fl_forward_answered(f, status);
}

static void decide(struct fl_forward *f)
{
    f->is_named = true;
    f->is_outcome_due = true;
    if (f->caller->is_destination_conflict)
        fl_log_limited(&f->proxy->picker_limit, fl_loop_now_ms(f->proxy->loop), 1000, FL_LOG_WARN,
                       "picker's header and metadata name different endpoints",
                       "epp=%s request_id=%s", fl_log_value(f->rule->epp_endpoint).text,
                       fl_log_value(f->traits.request_id).text);
    /* The rest of an upload may still be coming: an answer may stand before the last byte. */
    if (!f->is_received) {
        fl_forward_set_state(f, FL_FORWARD_HOLDING);
        return;
    }
    fl_forward_set_state(f, FL_FORWARD_CONNECTING);
    fl_forward_connect(f);
}

static void on_decision(void *owner, struct fl_extproc_call *call)
{
    struct fl_forward *f = owner;
    struct fl_metrics *metrics = f->proxy->config->metrics;
    (void)call;
    assert(f->state == FL_FORWARD_ASKING);
    end_question(f);
    if (f->caller->state == FL_CALLER_FAILED) {
        int rc = f->caller->rc;
        end_call(f);
        fail(f, rc == FL_ETOO_LARGE ? FL_PROXY_EPP_BODY_TOO_LARGE : FL_PROXY_EPP_ERROR,
             fl_error_row(rc)->word);
        return;
    }
    fl_metric_observe(metrics, f->proxy->index, FL_PROXY_EPP_SECONDS, 0,
                      (double)(fl_clock_ns() - f->asked_ns) / 1e9);
    if (f->caller->state == FL_CALLER_DECIDED) {
        decide(f);
        return;
    }
    fl_forward_count_outcome(f, FL_PROXY_EPP_IMMEDIATE);
    relay_immediate(f);
}

/* The picker sheds a request that it had admitted (gateway.md 9.6). */
static void on_eviction(void *owner, struct fl_extproc_call *call)
{
    struct fl_forward *f = owner;
    (void)call;
    fl_forward_settle_outcome(f);
    fl_forward_count_outcome(f, FL_PROXY_EPP_EVICTED);
    if (f->state != FL_FORWARD_RELAYING) {
        relay_immediate(f);
        return;
    }
    end_call(f);
    fl_forward_cut(f);
}

static const struct fl_extproc_call_ops call_ops = {
    .on_decision = on_decision,
    .on_eviction = on_eviction,
};

/* ---- asking ---- */

static enum fl_caller_tap tap_of(const struct fl_rule *rule)
{
    static const enum fl_caller_tap taps[] = {
        [FL_EPP_BODY_EDGES] = FL_CALLER_TAP_EDGES,
        [FL_EPP_BODY_ALL] = FL_CALLER_TAP_ALL,
        [FL_EPP_BODY_FIRST] = FL_CALLER_TAP_FIRST,
        [FL_EPP_BODY_NONE] = FL_CALLER_TAP_NONE,
    };
    return taps[rule->epp_response_body];
}

static void open_call(struct fl_forward *f, struct fl_extproc_peer *peer)
{
    bool has_body = f->head->body != FL_BODY_NONE && !(f->is_received && f->body_bytes == 0);
    const struct fl_extproc_question question = {
        .caller = {.max_body_bytes = f->proxy->config->max_body_bytes,
                   .sends_protocol_config = f->proxy->config->sends_protocol_config,
                   .tap = tap_of(f->rule)},
        .head = f->head,
        .scheme = fl_exchange_is_tls(f->client) ? FL_BYTES("https") : FL_BYTES("http"),
        .arena = fl_exchange_arena(f->client),
        .kept = has_body ? &f->kept : NULL,
        .subset = f->subset,
        .subset_count = f->subset_count,
        .timeout_ms = f->rule->epp_timeout_ms,
    };
    f->call = fl_extproc_call_open(peer, &question, &call_ops, f);
    f->caller = fl_extproc_call_caller(f->call);
    if (f->shard != NULL)
        add_gauge(&f->shard->epp_streams, 1);
    if (has_body && (f->body_bytes > 0 || f->is_received))
        fl_extproc_call_body(f->call, f->is_received);
}

static void on_peer(struct fl_picker_wait *wait, struct fl_extproc_peer *peer)
{
    struct fl_forward *f = FL_CONTAINER_OF(wait, struct fl_forward, wait);
    fl_loop_timer_stop(f->proxy->loop, &f->wait_timer);
    if (peer != NULL) {
        open_call(f, peer);
        return;
    }
    end_question(f);
    fail(f, FL_PROXY_EPP_ERROR, "no_address");
}

static void on_wait_timer(struct fl_timer *timer)
{
    struct fl_forward *f = FL_CONTAINER_OF(timer, struct fl_forward, wait_timer);
    fl_link_unlink(&f->wait.link);
    end_question(f);
    fail(f, FL_PROXY_EPP_ERROR, "no_address_in_time");
}

void fl_forward_ask_init(struct fl_forward *f)
{
    fl_link_init(&f->wait.link);
    f->wait.ready = on_peer;
    fl_timer_init(&f->wait_timer, on_wait_timer);
}

/* The endpoints that may be named: usable now. */
static void list_subset(struct fl_forward *f)
{
    uint64_t now_ms = fl_loop_now_ms(f->proxy->loop);
    struct fl_bytes *subset = fl_arena_alloc(fl_exchange_arena(f->client),
                                             (f->rule->endpoint_count + 1) * sizeof(*subset));
    for (uint32_t i = 0; i < f->rule->endpoint_count; i++) {
        if (fl_rule_is_usable(f->rule, i, now_ms))
            subset[f->subset_count++] = f->rule->endpoints[i].address;
    }
    f->subset = subset;
}

void fl_forward_ask(struct fl_forward *f)
{
    const struct fl_proxy_config *config = f->proxy->config;

    list_subset(f);
    if (f->subset_count == 0) {
        /* No question: there is nothing to choose from (gateway.md 9.2). */
        fail_over(f, FL_PROXY_EPP_NO_ENDPOINT, FL_PROXY_FALLBACK_NO_ENDPOINT);
        return;
    }
    if (atomic_fetch_add_explicit(config->epp_inflight, 1, memory_order_relaxed) >=
        config->epp_max_inflight) {
        atomic_fetch_sub_explicit(config->epp_inflight, 1, memory_order_relaxed);
        fail(f, FL_PROXY_EPP_ERROR, "too_many_in_flight");
        return;
    }
    begin_question(f);
    struct fl_extproc_peer *peer = fl_proxy_picker(f->proxy, f->rule, &f->wait);
    if (peer != NULL) {
        open_call(f, peer);
    } else if (!fl_link_is_alone(&f->wait.link)) {
        fl_loop_timer_start(f->proxy->loop, &f->wait_timer, f->rule->epp_timeout_ms);
    } else {
        end_question(f);
        fail(f, FL_PROXY_EPP_ERROR, "no_peer");
    }
}

void fl_forward_ask_body(struct fl_forward *f, bool is_end)
{
    if (f->call != NULL)
        fl_extproc_call_body(f->call, is_end);
}

/* ---- telling ---- */

void fl_forward_tap_head(struct fl_forward *f, const struct fl_head *head)
{
    if (f->call != NULL)
        fl_extproc_call_tell_head(f->call, head->status, &head->fields,
                                  f->rule->endpoints[f->endpoint].address);
}

void fl_forward_tap_body(struct fl_forward *f, struct fl_slice slice)
{
    if (f->call == NULL)
        return;
    if (!fl_budget_is_easy(f->proxy->config->budget))
        fl_extproc_call_cut_tap(f->call);
    fl_extproc_call_tell_body(f->call, slice);
}

void fl_forward_tap_end(struct fl_forward *f)
{
    if (f->call == NULL)
        return;
    if (f->caller->is_tap_cut)
        fl_metric_add(f->proxy->config->metrics, f->proxy->index, FL_PROXY_EPP_TAP_TRUNCATED, 0, 1);
    end_call(f);
}
