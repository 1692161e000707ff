/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/forward.h"

#include <assert.h>

#include "base/alloc.h"
#include "base/log.h"
#include "proxy/forward_impl.h"

/* Under pressure of --max-buffered-bytes only small declared bodies are read on; the others wait a
 * moment, then are refused (gateway.md 8.9). */
#define SMALL_BODY_BYTES 65536
#define PAUSE_MS 2000
#define PAUSE_LOOK_MS 50

static struct fl_forward *forward_of_timer(struct fl_timer *timer)
{
    return FL_CONTAINER_OF(timer, struct fl_forward, timer);
}

void fl_forward_set_state(struct fl_forward *f, enum fl_forward_state state)
{
    /* OVER is final: what comes later finds nothing to do. */
    assert(f->state != FL_FORWARD_OVER);
    f->state = state;
}

void fl_forward_start_timer(struct fl_forward *f, enum fl_forward_timer purpose, uint64_t delay_ms)
{
    f->timer_purpose = purpose;
    fl_loop_timer_start(f->proxy->loop, &f->timer, delay_ms);
}

void fl_forward_stop_timer(struct fl_forward *f)
{
    fl_loop_timer_stop(f->proxy->loop, &f->timer);
}

/* ---- ends ---- */

static void free_forward(struct fl_disposable *disposable)
{
    struct fl_forward *f = FL_CONTAINER_OF(disposable, struct fl_forward, disposable);
    fl_chain_fini(&f->kept);
    fl_free(f);
}

void fl_forward_free_if_closed(struct fl_forward *f)
{
    if (f->state != FL_FORWARD_OVER || f->is_disposed || f->client != NULL || f->upstream != NULL)
        return;
    f->is_disposed = true;
    fl_loop_dispose(f->proxy->loop, &f->disposable, free_forward);
}

static void count(struct fl_forward *f)
{
    if (f->rule == NULL)
        return;
    uint64_t now = fl_clock_ns();
    atomic_fetch_sub_explicit(&f->rule->live->requests, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&f->rule->live->bytes_in, f->body_bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&f->rule->live->bytes_out, f->response_bytes, memory_order_relaxed);
    if (f->shard != NULL)
        fl_proxy_count_request(f->shard, f->status, (now - f->started_ns) / 1000);
}

static void release_rules(struct fl_forward *f)
{
    struct fl_proxy *proxy = f->proxy;
    f->rule = NULL;
    f->shard = NULL;
    if (f->snapshot != NULL && fl_rules_release(f->snapshot, proxy->index))
        proxy->give_back(proxy->owner, f->snapshot);
    f->snapshot = NULL;
}

/* The one end of a request. `status` is what the client got, or 499. */
static void finish(struct fl_forward *f, int status)
{
    struct fl_proxy *proxy = f->proxy;
    f->status = status;
    fl_forward_set_state(f, FL_FORWARD_OVER);
    fl_forward_stop_timer(f);
    fl_forward_settle_outcome(f);
    fl_forward_ask_cancel(f);
    fl_forward_drop_upstream(f);
    FL_LOG(FL_LOG_DEBUG, "request", "request_id=%s status=%d attempts=%u",
           fl_log_value(f->traits.request_id).text, status, f->attempts);
    count(f);
    release_rules(f);
    fl_chain_fini(&f->kept);
    fl_link_unlink(&f->link);
    proxy->forward_count--;
    fl_forward_free_if_closed(f);
    if (proxy->is_draining && proxy->forward_count == 0)
        proxy->on_quiet(proxy->owner);
}

/* No more of the request is wanted; what still comes is thrown away. */
static void stop_reading(struct fl_forward *f)
{
    if (!f->is_received)
        fl_exchange_close_after(f->client);
    if (f->unconsumed > 0)
        fl_exchange_consume(f->client, f->unconsumed);
    f->unconsumed = 0;
    f->is_dropping = true;
    fl_chain_fini(&f->kept);
}

void fl_forward_leave_body(struct fl_forward *f)
{
    stop_reading(f);
}

void fl_forward_refuse(struct fl_forward *f, enum fl_proxy_error error)
{
    struct fl_bytes model = error == FL_PROXY_MODEL_UNAVAILABLE ? f->model : (struct fl_bytes){0};
    int status = error == FL_PROXY_NO_ROUTE ? f->proxy->config->no_route_status : 0;

    fl_forward_stop_timer(f);
    fl_forward_settle_outcome(f);
    fl_forward_ask_cancel(f);
    fl_forward_drop_upstream(f);
    stop_reading(f);
    if (error == FL_PROXY_GATEWAY_OVERLOADED || f->proxy->is_draining)
        fl_exchange_close_after(f->client);
    fl_proxy_respond_error(f->client, error, status, model, f->traits.request_id);
    f->status = status != 0 ? status : fl_proxy_error_row(error)->status;
    fl_forward_set_state(f, FL_FORWARD_ANSWERED);
}

void fl_forward_answered(struct fl_forward *f, int status)
{
    fl_forward_stop_timer(f);
    fl_forward_drop_upstream(f);
    f->status = status;
    fl_forward_set_state(f, FL_FORWARD_ANSWERED);
}

void fl_forward_cut(struct fl_forward *f)
{
    fl_forward_stop_timer(f);
    fl_forward_ask_cancel(f);
    fl_forward_drop_upstream(f);
    /* Without a proper end: the client must see that something is missing. */
    f->is_cut = true;
    fl_exchange_abort(f->client, 2);
}

/* ---- timers ---- */

static bool may_read(const struct fl_forward *f)
{
    return fl_budget_is_easy(f->proxy->config->budget) ||
           (f->head->body == FL_BODY_LENGTH && f->head->content_length <= SMALL_BODY_BYTES);
}

static void on_pause(struct fl_forward *f)
{
    if (may_read(f)) {
        fl_exchange_consume(f->client, f->unconsumed);
        f->unconsumed = 0;
        f->paused_ms = 0;
        return;
    }
    f->paused_ms += PAUSE_LOOK_MS;
    if (f->paused_ms < PAUSE_MS) {
        fl_forward_start_timer(f, FL_FORWARD_TIMER_PAUSE, PAUSE_LOOK_MS);
        return;
    }
    fl_metric_add(f->proxy->config->metrics, f->proxy->index, FL_PROXY_BUFFER_REJECTIONS, 0, 1);
    fl_forward_refuse(f, FL_PROXY_GATEWAY_OVERLOADED);
}

static void on_timer(struct fl_timer *timer)
{
    struct fl_forward *f = forward_of_timer(timer);
    switch (f->timer_purpose) {
    case FL_FORWARD_TIMER_PAUSE:
        on_pause(f);
        break;
    case FL_FORWARD_TIMER_HEAD:
        /* The endpoint's time starts when it has the whole request. */
        if (f->upstream != NULL && !fl_exchange_is_sent(f->upstream))
            fl_forward_start_timer(f, FL_FORWARD_TIMER_HEAD, fl_forward_data_timeout_ms(f));
        else
            fl_forward_refuse(f, FL_PROXY_BACKEND_TIMEOUT);
        break;
    case FL_FORWARD_TIMER_BODY:
    case FL_FORWARD_TIMER_STREAM:
        fl_forward_cut(f);
        break;
    }
}

uint64_t fl_forward_data_timeout_ms(const struct fl_forward *f)
{
    return f->rule->data_timeout_ms > 0 ? f->rule->data_timeout_ms
                                        : f->rule->inactive_timeout_s * 1000;
}

/* ---- the client's side ---- */

/* The rule of the request, or NULL after a refusal. */
static const struct fl_rule *route(struct fl_forward *f)
{
    struct fl_bytes path, query;
    enum fl_rules_miss miss = FL_RULES_NO_ROUTE;
    const struct fl_rule *rule = NULL;

    const struct fl_rules_listener *listener =
        fl_rules_listener(f->snapshot, &f->entry->ip, f->entry->port);
    fl_target_split(f->head->target, &path, &query);
    f->model = fl_fields_get(&f->head->fields, FL_BYTES("X-Model"));
    if (listener != NULL)
        rule = fl_rules_match(listener, f->head->authority, path, f->model, &miss);
    if (rule != NULL)
        return rule;
    fl_forward_refuse(f, miss == FL_RULES_MODEL_UNAVAILABLE ? FL_PROXY_MODEL_UNAVAILABLE
                                                            : FL_PROXY_NO_ROUTE);
    return NULL;
}

static void begin(struct fl_forward *f)
{
    const struct fl_proxy_config *config = f->proxy->config;

    if (!f->rule->admin_state_up) {
        fl_forward_refuse(f, FL_PROXY_SERVICE_PAUSED);
        return;
    }
    if (!fl_rule_has_epp(f->rule)) {
        fl_forward_set_state(f, FL_FORWARD_CONNECTING);
        fl_forward_connect(f);
        return;
    }
    if (f->head->body == FL_BODY_LENGTH && f->head->content_length > config->max_body_bytes) {
        fl_forward_refuse(f, FL_PROXY_REQUEST_TOO_LARGE);
        return;
    }
    f->keeps_all = true;
    if (f->head->expect_continue) {
        /* The body is wanted here, before any endpoint is known. */
        fl_exchange_send_informational(f->client, 100, NULL);
        f->has_continued = true;
    }
    fl_fields_remove(&f->head->fields, FL_BYTES("Expect"));
    fl_forward_set_state(f, FL_FORWARD_ASKING);
    fl_forward_ask(f);
}

static void on_head(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    struct fl_forward *f = owner;
    struct fl_proxy *proxy = f->proxy;

    f->head = head;
    f->is_received = is_end;
    f->received_ns = f->started_ns = fl_clock_ns();
    if (proxy->is_draining)
        fl_exchange_close_after(x);
    if (proxy->snapshot != NULL) {
        f->snapshot = proxy->snapshot;
        fl_rules_hold(f->snapshot, proxy->index);
        f->rule = route(f);
    } else {
        fl_forward_refuse(f, FL_PROXY_NO_ROUTE);
    }
    if (f->rule == NULL)
        return;
    f->shard = fl_proxy_rule_shard(proxy, f->rule);
    atomic_fetch_add_explicit(&f->rule->live->requests, 1, memory_order_relaxed);
    const struct fl_proxy_forwarding how = {
        .peer = fl_exchange_peer(x),
        .local = fl_exchange_local(x),
        .is_tls = fl_exchange_is_tls(x),
        .trusts_client = proxy->config->trusts_forwarded,
        .has_epp = fl_rule_has_epp(f->rule),
        .strip = proxy->config->strip,
    };
    fl_proxy_clean_request(head, &how, &f->traits);
    begin(f);
}

/* Gives the client its window back, or lets it wait while too many bodies are held. */
static void consume_kept(struct fl_forward *f, size_t n)
{
    f->unconsumed += n;
    if (f->paused_ms > 0 || fl_timer_is_running(&f->timer))
        return;
    if (may_read(f)) {
        fl_exchange_consume(f->client, f->unconsumed);
        f->unconsumed = 0;
    } else {
        fl_forward_start_timer(f, FL_FORWARD_TIMER_PAUSE, PAUSE_LOOK_MS);
    }
}

static void keep_body(struct fl_forward *f, struct fl_slice slice)
{
    size_t n = slice.n;
    if (f->body_bytes > f->proxy->config->max_body_bytes) {
        fl_slice_unref(&slice);
        f->unconsumed += n;
        if (f->call != NULL && f->state == FL_FORWARD_ASKING)
            fl_forward_count_outcome(f, FL_PROXY_EPP_BODY_TOO_LARGE);
        fl_forward_refuse(f, FL_PROXY_REQUEST_TOO_LARGE);
        return;
    }
    fl_chain_push(&f->kept, slice);
    if (f->state == FL_FORWARD_ASKING)
        fl_forward_ask_body(f, false);
    if (f->state == FL_FORWARD_ASKING || f->state == FL_FORWARD_HOLDING)
        consume_kept(f, n);
    else
        fl_exchange_consume(f->client, n);
}

static void on_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
{
    struct fl_forward *f = owner;
    f->body_bytes += slice.n;
    if (f->is_dropping || f->state == FL_FORWARD_OVER) {
        fl_exchange_consume(x, slice.n);
        fl_slice_unref(&slice);
    } else if (f->keeps_all) {
        keep_body(f, slice);
    } else {
        fl_forward_stream_body(f, slice);
    }
}

static void on_end(void *owner, struct fl_exchange *x, const struct fl_fields *trailers)
{
    struct fl_forward *f = owner;
    (void)x;
    f->is_received = true;
    f->received_ns = fl_clock_ns();
    if (f->is_dropping)
        return;
    if (f->timer_purpose == FL_FORWARD_TIMER_PAUSE)
        fl_forward_stop_timer(f);
    switch (f->state) {
    case FL_FORWARD_ASKING:
        fl_forward_ask_body(f, true);
        break;
    case FL_FORWARD_HOLDING:
        fl_forward_set_state(f, FL_FORWARD_CONNECTING);
        fl_forward_connect(f);
        break;
    case FL_FORWARD_CONNECTING:
    case FL_FORWARD_RELAYING:
        f->trailers = trailers;
        if (!f->keeps_all)
            fl_forward_stream_end(f);
        break;
    default:
        break;
    }
}

static void on_writable(void *owner, struct fl_exchange *x)
{
    struct fl_forward *f = owner;
    (void)x;
    if (f->upstream != NULL && f->unread > 0) {
        fl_exchange_consume(f->upstream, f->unread);
        f->unread = 0;
    }
}

static void on_close(void *owner, struct fl_exchange *x, int rc)
{
    struct fl_forward *f = owner;
    (void)x;
    f->client = NULL;
    if (f->state == FL_FORWARD_OVER) {
        fl_forward_free_if_closed(f);
        return;
    }
    bool is_answered = f->state == FL_FORWARD_ANSWERED || f->is_response_ended || f->is_cut;
    if (rc == 0 || is_answered)
        finish(f, f->status != 0 ? f->status : 499);
    else
        finish(f, rc == FL_ETIMEOUT && f->status == 0 ? 408 : 499);
}

static const struct fl_exchange_handler client_handler = {
    .on_head = on_head,
    .on_body = on_body,
    .on_end = on_end,
    .on_writable = on_writable,
    .on_close = on_close,
};

void fl_forward_on_request(void *owner, struct fl_exchange *x)
{
    const struct fl_proxy_entry *entry = owner;
    struct fl_forward *f = fl_calloc(1, sizeof(*f));
    f->proxy = entry->proxy;
    f->entry = entry;
    f->client = x;
    f->endpoint = FL_RULE_NO_ENDPOINT;
    fl_timer_init(&f->timer, on_timer);
    fl_forward_ask_init(f);
    fl_link_init(&f->link);
    fl_link_push_tail(&f->proxy->forwards, &f->link);
    f->proxy->forward_count++;
    fl_exchange_set_handler(x, &client_handler, f);
}

void fl_forward_end(struct fl_link *link)
{
    struct fl_forward *f = FL_CONTAINER_OF(link, struct fl_forward, link);
    if (f->client != NULL)
        fl_exchange_abort(f->client, 8);
}
