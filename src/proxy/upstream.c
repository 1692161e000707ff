/* SPDX-License-Identifier: Apache-2.0 */
/* The endpoint's side of a forwarded pair: candidates, attempts, the relay of the answer. */
#include <assert.h>
#include <string.h>

#include "proxy/forward_impl.h"

/* A plain rule's body is kept up to here for the one retry of gateway.md 8.4, after the endpoint
 * has taken some of it. */
#define RETRY_BYTES 65536

static void open_upstream(struct fl_forward *f, bool is_fresh);

static uint64_t now_ms(const struct fl_forward *f)
{
    return fl_loop_now_ms(f->proxy->loop);
}

/* The booking of the attempt under way ends; harmless without one. */
static void unbook(struct fl_forward *f)
{
    if (f->is_booked)
        fl_rule_done(f->rule, f->endpoint);
    f->is_booked = false;
}

void fl_forward_drop_upstream(struct fl_forward *f)
{
    unbook(f);
    if (f->upstream != NULL && !f->is_upstream_dropped) {
        f->is_upstream_dropped = true;
        fl_exchange_abort(f->upstream, 8);
    }
}

/* ---- choosing ---- */

static bool was_tried(const struct fl_forward *f, uint32_t endpoint)
{
    for (uint32_t i = 0; i < f->attempts; i++) {
        if (f->tried[i] == endpoint)
            return true;
    }
    return false;
}

static void reject(struct fl_forward *f, enum fl_proxy_rejection reason)
{
    fl_metric_add(f->proxy->config->metrics, f->proxy->index, FL_PROXY_EPP_REJECTED, reason, 1);
}

/* An endpoint that the picker names may have weight 0 (gateway.md 9.5): weight belongs to the
 * selector. */
static bool is_usable_when_named(const struct fl_forward *f, uint32_t endpoint)
{
    const struct fl_rule_endpoint *named = &f->rule->endpoints[endpoint];
    if (named->weight > 0)
        return fl_rule_is_usable(f->rule, endpoint, now_ms(f));
    return !atomic_load_explicit(&named->live->is_inactive, memory_order_relaxed);
}

/* The next of the picker's candidates that may be tried, or FL_RULE_NO_ENDPOINT. */
static uint32_t next_candidate(struct fl_forward *f)
{
    while (f->next_candidate < f->caller->candidate_count) {
        struct fl_bytes name = fl_bytes_of(f->caller->candidates[f->next_candidate++]);
        uint32_t endpoint = fl_rule_find_endpoint(f->rule, name);
        if (endpoint == FL_RULE_NO_ENDPOINT)
            reject(f, FL_PROXY_REJECT_UNKNOWN);
        else if (was_tried(f, endpoint))
            continue;
        else if (!is_usable_when_named(f, endpoint))
            reject(f, FL_PROXY_REJECT_UNHEALTHY);
        else
            return endpoint;
    }
    return FL_RULE_NO_ENDPOINT;
}

static void give_up(struct fl_forward *f)
{
    /* The picker named nobody who answers; in FailOpen the selector goes on below. */
    if (f->is_named) {
        fl_forward_named_nobody(f);
        return;
    }
    fl_forward_refuse(f,
                      f->attempts > 0 ? FL_PROXY_BACKEND_UNREACHABLE : FL_PROXY_NO_HEALTHY_BACKEND);
}

void fl_forward_connect(struct fl_forward *f)
{
    uint32_t endpoint = FL_RULE_NO_ENDPOINT;

    if (f->attempts < FL_RULE_MAX_TRIED) {
        if (f->is_named) {
            endpoint = next_candidate(f);
            if (endpoint != FL_RULE_NO_ENDPOINT)
                fl_rule_take(f->rule, endpoint);
        } else {
            endpoint = fl_rule_select(f->rule, f->tried, f->attempts, now_ms(f));
        }
    }
    if (endpoint == FL_RULE_NO_ENDPOINT) {
        give_up(f);
        return;
    }
    f->is_booked = true;
    f->endpoint = endpoint;
    f->tried[f->attempts++] = endpoint;
    f->is_retried = false;
    open_upstream(f, false);
}

/* ---- sending the request ---- */

static struct fl_addr address_of(const struct fl_rule_endpoint *endpoint)
{
    struct fl_addr addr = {0};
    if (endpoint->ip.family == 6) {
        addr.v6.sin6_family = AF_INET6;
        addr.v6.sin6_port = htons((uint16_t)endpoint->port);
        memcpy(&addr.v6.sin6_addr, endpoint->ip.bytes, 16);
        addr.len = sizeof(addr.v6);
    } else {
        addr.v4.sin_family = AF_INET;
        addr.v4.sin_port = htons((uint16_t)endpoint->port);
        memcpy(&addr.v4.sin_addr, endpoint->ip.bytes, 4);
        addr.len = sizeof(addr.v4);
    }
    return addr;
}

static void send_end(struct fl_forward *f)
{
    fl_exchange_send_end(f->upstream, f->trailers);
    fl_forward_start_timer(f, FL_FORWARD_TIMER_HEAD, fl_forward_data_timeout_ms(f));
}

static void send_chain(struct fl_forward *f, const struct fl_chain *chain)
{
    for (uint32_t i = 0; i < chain->count; i++)
        fl_exchange_send_body(f->upstream, fl_slice_ref(fl_chain_at(chain, i)));
    f->sent_bytes += chain->bytes;
}

/* The request in one piece, as the picker left it. */
static void send_kept(struct fl_forward *f, struct fl_head *head)
{
    bool is_mutated = f->is_named;
    const struct fl_chain *body =
        is_mutated && f->caller->is_body_replaced ? &f->caller->new_body : &f->kept;
    if (head->body != FL_BODY_NONE || body->bytes > 0) {
        head->body = FL_BODY_LENGTH;
        head->content_length = body->bytes;
    }
    if (is_mutated && f->caller->mutated.is_changed)
        head->fields = f->caller->mutated.fields;
    bool is_end = body->bytes == 0;
    fl_exchange_send_head(f->upstream, head, is_end);
    if (is_end) {
        fl_forward_start_timer(f, FL_FORWARD_TIMER_HEAD, fl_forward_data_timeout_ms(f));
        return;
    }
    send_chain(f, body);
    send_end(f);
}

static void send_streamed(struct fl_forward *f, struct fl_head *head)
{
    if (head->body == FL_BODY_STREAM)
        head->body = head->content_length != UINT64_MAX ? FL_BODY_LENGTH : FL_BODY_CHUNKED;
    bool is_end = f->is_received && f->body_bytes == 0 && f->trailers == NULL;
    fl_exchange_send_head(f->upstream, head, is_end);
    if (is_end) {
        fl_forward_start_timer(f, FL_FORWARD_TIMER_HEAD, fl_forward_data_timeout_ms(f));
        return;
    }
    send_chain(f, &f->kept);
    if (f->is_received)
        send_end(f);
}

/* The endpoint has taken something: the client may send more. */
static void give_window(struct fl_forward *f)
{
    if (f->unconsumed == 0 || fl_exchange_queued(f->upstream) > FL_EXCHANGE_HIGH_BYTES)
        return;
    if (!f->is_taken && fl_exchange_queued(f->upstream) >= f->sent_bytes)
        return; /* perhaps not even connected: the kept bytes may be needed elsewhere */
    f->is_taken = true;
    if (f->kept.bytes > RETRY_BYTES || f->is_kept_cut) {
        fl_chain_fini(&f->kept);
        f->is_kept_cut = true;
    }
    fl_exchange_consume(f->client, f->unconsumed);
    f->unconsumed = 0;
}

void fl_forward_stream_body(struct fl_forward *f, struct fl_slice slice)
{
    f->unconsumed += slice.n;
    if (f->upstream == NULL || f->is_upstream_dropped) {
        /* Between two attempts: the next one sends what is kept. */
        fl_chain_push(&f->kept, slice);
        return;
    }
    if (!f->is_kept_cut)
        fl_chain_push(&f->kept, fl_slice_ref(slice));
    f->sent_bytes += slice.n;
    fl_exchange_send_body(f->upstream, slice);
    give_window(f);
}

void fl_forward_stream_end(struct fl_forward *f)
{
    if (f->upstream == NULL || f->is_upstream_dropped)
        return;
    if (f->state == FL_FORWARD_RELAYING)
        fl_exchange_send_end(f->upstream, f->trailers);
    else
        send_end(f);
}

/* ---- the answer ---- */

static void on_informational(void *owner, struct fl_exchange *x, const struct fl_head *head)
{
    struct fl_forward *f = owner;
    (void)x;
    if (f->is_upstream_dropped || f->client == NULL || f->traits.is_http_1_0)
        return;
    if (head->status == 100 && f->has_continued)
        return;
    struct fl_fields fields = head->fields;
    fl_exchange_send_informational(f->client, head->status, &fields);
}

static void end_response(struct fl_forward *f)
{
    f->is_response_ended = true;
    fl_forward_stop_timer(f);
    fl_forward_tap_end(f);
    unbook(f);
    /* An answer before the end of the request: the rest of it interests nobody. */
    if (!f->is_received) {
        fl_forward_drop_upstream(f);
        fl_forward_leave_body(f);
    }
}

static void watch_silence(struct fl_forward *f)
{
    /* A stream may be silent for long between tokens; its whole length is bounded instead. */
    if (f->is_stream)
        fl_forward_start_timer(f, FL_FORWARD_TIMER_STREAM, f->rule->max_stream_s * 1000);
    else
        fl_forward_start_timer(f, FL_FORWARD_TIMER_BODY, fl_forward_data_timeout_ms(f));
}

static void on_head(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    struct fl_forward *f = owner;
    (void)x;
    if (f->is_upstream_dropped || f->client == NULL)
        return;
    fl_forward_set_state(f, FL_FORWARD_RELAYING);
    fl_rule_connect_worked(f->rule, f->endpoint);
    if (f->shard != NULL)
        fl_proxy_observe_ttfb(f->shard, (fl_clock_ns() - f->received_ns) / 1000);
    fl_rule_count(f->rule, f->endpoint, f->proxy->index, 1, 0);
    /* From here on nothing is tried again. */
    if (f->keeps_all || f->is_received)
        fl_chain_fini(&f->kept);
    f->is_kept_cut = true;
    f->status = head->status;
    f->is_stream = fl_proxy_is_stream(head);
    fl_forward_settle_outcome(f);
    fl_forward_tap_head(f, head);
    fl_proxy_clean_response(head, &f->traits);
    if (!f->is_received || f->proxy->is_draining)
        fl_exchange_close_after(f->client);
    fl_exchange_send_head(f->client, head, is_end);
    if (is_end)
        end_response(f);
    else
        watch_silence(f);
}

static void on_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
{
    struct fl_forward *f = owner;
    struct fl_metrics *metrics = f->proxy->config->metrics;
    if (f->is_upstream_dropped || f->client == NULL) {
        fl_exchange_consume(x, slice.n);
        fl_slice_unref(&slice);
        return;
    }
    size_t n = slice.n;
    f->response_bytes += n;
    fl_rule_count(f->rule, f->endpoint, f->proxy->index, 0, n);
    fl_metric_add(metrics, f->proxy->index, FL_PROXY_RELAY_READS, 0, 1);
    fl_forward_tap_body(f, slice);
    fl_exchange_send_body(f->client, slice);
    fl_metric_add(metrics, f->proxy->index, FL_PROXY_RELAY_WRITES, 0, 1);
    f->unread += n;
    if (fl_exchange_queued(f->client) <= FL_EXCHANGE_HIGH_BYTES) {
        fl_exchange_consume(x, f->unread);
        f->unread = 0;
    }
    if (!f->is_stream)
        watch_silence(f);
}

static void on_end(void *owner, struct fl_exchange *x, const struct fl_fields *trailers)
{
    struct fl_forward *f = owner;
    (void)x;
    if (f->is_upstream_dropped || f->client == NULL)
        return;
    fl_exchange_send_end(f->client, f->traits.takes_trailers ? trailers : NULL);
    end_response(f);
}

static void on_writable(void *owner, struct fl_exchange *x)
{
    struct fl_forward *f = owner;
    (void)x;
    if (!f->is_upstream_dropped && f->client != NULL && !f->keeps_all)
        give_window(f);
}

static bool is_idempotent(struct fl_bytes method)
{
    return fl_bytes_eq(method, FL_BYTES("GET")) || fl_bytes_eq(method, FL_BYTES("HEAD")) ||
           fl_bytes_eq(method, FL_BYTES("OPTIONS"));
}

/* gateway.md 8.4: the endpoint closed a kept connection while we took it into use. A request that
 * was written whole may have been carried out, and is sent twice only if that does no harm. */
static bool may_retry(const struct fl_forward *f, const struct fl_exchange *x)
{
    return !f->is_retried && !f->is_kept_cut && fl_exchange_is_reused_and_silent(x) &&
           (!fl_exchange_is_sent(x) || is_idempotent(f->head->method));
}

static void on_close(void *owner, struct fl_exchange *x, int rc)
{
    struct fl_forward *f = owner;
    bool was_dropped = f->is_upstream_dropped;
    f->upstream = NULL;
    f->is_upstream_dropped = false;
    if (f->state == FL_FORWARD_OVER) {
        fl_forward_free_if_closed(f);
        return;
    }
    if (was_dropped || f->client == NULL || f->is_response_ended)
        return;
    if (f->state == FL_FORWARD_RELAYING) {
        fl_forward_cut(f);
        return;
    }
    fl_forward_stop_timer(f);
    if (may_retry(f, x)) {
        f->is_retried = true;
        open_upstream(f, true);
        return;
    }
    bool never_connected = rc == FL_ECONNECT || (rc == FL_ETIMEOUT && !fl_exchange_is_sent(x));
    unbook(f);
    if (!never_connected || f->is_kept_cut) {
        fl_forward_refuse(f, FL_PROXY_BACKEND_PROTOCOL_ERROR);
        return;
    }
    fl_rule_connect_failed(f->rule, f->endpoint, now_ms(f));
    if (f->is_named)
        reject(f, FL_PROXY_REJECT_CONNECT_FAILED);
    fl_forward_connect(f);
}

static const struct fl_exchange_handler upstream_handler = {
    .on_informational = on_informational,
    .on_head = on_head,
    .on_body = on_body,
    .on_end = on_end,
    .on_writable = on_writable,
    .on_close = on_close,
};

static void open_upstream(struct fl_forward *f, bool is_fresh)
{
    const struct fl_rule_endpoint *endpoint = &f->rule->endpoints[f->endpoint];
    const struct fl_web_target target = {
        .addr = address_of(endpoint),
        .protocol = FL_WEB_HTTP1,
        .connect_timeout_ms = f->rule->connect_timeout_ms,
        .keepalive_s = (uint32_t)f->rule->keepalive_s,
    };
    assert(f->upstream == NULL);
    f->sent_bytes = 0;
    f->is_taken = false;
    f->upstream = fl_web_pool_open(f->proxy->pool, &target, is_fresh, &upstream_handler, f);
    struct fl_head head = *f->head;
    head.keep_alive = true;
    head.is_h2 = false;
    head.minor = 1;
    if (f->keeps_all)
        send_kept(f, &head);
    else
        send_streamed(f, &head);
}
