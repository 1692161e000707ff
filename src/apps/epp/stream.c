/* SPDX-License-Identifier: Apache-2.0 */
/* One ext_proc stream: what the picker protocol asks becomes a pick; what the pick books is held
 * here and freed exactly once, when the stream closes, whatever the ending
 * (epp.md 10.4, 10.5, 12.3). */
#include <stdio.h>
#include <string.h>

#include "apps/epp/epp.h"
#include "base/alloc.h"
#include "base/log.h"
#include "openai/usage.h"

struct epp_stream {
    struct epp_loop *loop;
    struct fl_extproc_stream *stream;
    struct fl_pick *pick; /* NULL: none under way */
    struct fl_pick_request request;
    struct fl_booking booking;
    uint64_t record; /* number in the log; 0: none */
    char picked[FL_ADDR_TEXT];
    struct fl_usage_scan usage;
    uint64_t started_ns, answered_ns;
    int rc;     /* of the pick */
    int status; /* of the response; 0: none came */
    bool is_scanning, is_routed;
};

static struct fl_metrics *metrics_of(struct epp_stream *stream)
{
    return &stream->loop->epp->metrics;
}

static void count(struct epp_stream *stream, size_t metric, size_t value, uint64_t n)
{
    fl_metric_add(metrics_of(stream), stream->loop->index, metric, value, n);
}

static struct epp_stream *stream_of(struct epp_loop *loop, struct fl_extproc_stream *x)
{
    struct epp_stream *stream = fl_extproc_stream_user(x);
    if (stream != NULL)
        return stream;
    stream = fl_calloc(1, sizeof(*stream));
    stream->loop = loop;
    stream->stream = x;
    stream->started_ns = fl_clock_ns();
    fl_extproc_stream_set_user(x, stream);
    fl_metric_gauge_add(&loop->epp->metrics, loop->index, EPP_STREAMS, 0, 1);
    return stream;
}

static void count_rejection(struct epp_stream *stream, int rc)
{
    const struct fl_metric_desc *desc = &epp_metric_descs[EPP_REJECTIONS];
    const char *word = fl_error_row(rc)->word;
    for (size_t i = 0; desc->values[i] != NULL; i++) {
        if (strcmp(desc->values[i], word) == 0)
            count(stream, EPP_REJECTIONS, i, 1);
    }
}

static void on_picked(void *owner, struct fl_pick_outcome *outcome)
{
    struct epp_stream *stream = owner;
    stream->pick = NULL;
    stream->rc = outcome->rc;
    stream->record = outcome->record;
    stream->booking = fl_booking_take(&outcome->booking);
    stream->answered_ns = fl_clock_ns();
    if (outcome->rc < 0) {
        count_rejection(stream, outcome->rc);
        fl_extproc_stream_fail(stream->stream, outcome->rc, 0);
        return;
    }
    stream->is_routed = true;
    snprintf(stream->picked, sizeof(stream->picked), "%s", outcome->authority);
    struct fl_picker_decision decision = {.endpoint = fl_bytes_of(outcome->authority)};
    fl_extproc_stream_answer(stream->stream, &decision);
}

static void on_pick(void *owner, struct fl_extproc_stream *x,
                    const struct fl_picker_question *question)
{
    struct epp_loop *loop = owner;
    struct epp_stream *stream = stream_of(loop, x);
    stream->request = (struct fl_pick_request){
        .method = question->method,
        .path = question->path,
        .fields = question->headers,
        .body = question->has_body ? question->body : NULL,
        .request_id = question->request_id,
        .has_subset = question->subset.is_present,
        .subset = question->subset.items,
        .subset_count = question->subset.count,
    };
    struct fl_pick *pick = fl_pick_start(&loop->env, &stream->request, on_picked, stream);
    if (pick != NULL)
        stream->pick = pick;
}

static void on_pick_cancelled(void *owner, struct fl_extproc_stream *x)
{
    struct epp_stream *stream = fl_extproc_stream_user(x);
    (void)owner;
    if (stream == NULL || stream->pick == NULL)
        return;
    fl_pick_cancel(stream->pick, FL_FREE_CLIENT_GONE);
    stream->pick = NULL;
}

/* epp.md 5.4: a proxy that went elsewhere is told in words and counted. */
static void on_response(void *owner, struct fl_extproc_stream *x, int status,
                        const struct fl_fields *headers, struct fl_bytes served)
{
    struct epp_loop *loop = owner;
    struct epp_stream *stream = stream_of(loop, x);
    struct fl_bytes type = fl_fields_get(headers, FL_BYTES("content-type"));
    stream->status = status;
    fl_usage_scan_init(&stream->usage, fl_bytes_find(type, FL_BYTES("text/event-stream")) < type.n);
    stream->is_scanning = true;
    if (served.n == 0 || fl_bytes_eq(served, fl_bytes_of(stream->picked)))
        return;
    char text[FL_ADDR_TEXT];
    count(stream, EPP_MISMATCHES, 0, 1);
    if (fl_bytes_to_cstr(served, text, sizeof(text)))
        fl_pick_log_after(&loop->epp->log, stream->record, text, -1, -1, NULL);
    FL_LOG(FL_LOG_WARN, "served by another endpoint", "picked=%s served=%s", stream->picked,
           fl_log_value(served).text);
}

static void on_first_token(void *owner, struct fl_extproc_stream *x)
{
    struct epp_loop *loop = owner;
    struct epp_stream *stream = stream_of(loop, x);
    double seconds = (double)(fl_clock_ns() - stream->answered_ns) / 1e9;
    if (fl_booking_prefilled(&stream->booking))
        count(stream, EPP_LIFECYCLE, 0, 1);
    fl_metric_observe(metrics_of(stream), loop->index, EPP_FIRST_BODY_SECONDS, 0, seconds);
    fl_pick_log_after(&loop->epp->log, stream->record, NULL, -1, seconds * 1000, NULL);
}

static void on_response_body(void *owner, struct fl_extproc_stream *x, struct fl_bytes piece)
{
    struct epp_stream *stream = stream_of(owner, x);
    if (stream->is_scanning)
        fl_usage_scan_feed(&stream->usage, piece);
}

static void take_usage(struct epp_stream *stream)
{
    struct fl_usage usage;
    if (!stream->is_scanning)
        return;
    stream->is_scanning = false;
    if (fl_usage_scan_finish(&stream->usage, &usage)) {
        fl_metric_observe(metrics_of(stream), stream->loop->index, EPP_CACHED_TOKENS, 0,
                          (double)usage.cached_tokens);
        count(stream, EPP_REUSE_TOKENS, 0, usage.cached_tokens);
        count(stream, EPP_REUSE_TOKENS, 1, usage.prompt_tokens);
        fl_pick_log_after(&stream->loop->epp->log, stream->record, NULL,
                          (int64_t)usage.cached_tokens, -1, NULL);
    }
    fl_usage_scan_fini(&stream->usage);
}

static enum fl_free_cause cause_of(const struct epp_stream *stream, enum fl_extproc_end end)
{
    switch (end) {
    case FL_EXTPROC_END_DONE:
        return FL_FREE_DONE;
    case FL_EXTPROC_END_UPSTREAM:
    case FL_EXTPROC_END_FAILED:
        return FL_FREE_ERROR;
    case FL_EXTPROC_END_GONE:
        return FL_FREE_CLIENT_GONE;
    case FL_EXTPROC_END_SHUTDOWN:
        return FL_FREE_SHUTDOWN;
    case FL_EXTPROC_END_REFUSED:
        break;
    }
    return stream->is_routed ? FL_FREE_CLIENT_GONE : FL_FREE_ERROR;
}

static enum epp_outcome outcome_of(enum fl_extproc_end end)
{
    switch (end) {
    case FL_EXTPROC_END_DONE:
        return EPP_RESPONSE_EOS;
    case FL_EXTPROC_END_UPSTREAM:
        return EPP_UPSTREAM_HTTP_ERROR;
    case FL_EXTPROC_END_REFUSED:
        return EPP_EARLY_REJECT;
    case FL_EXTPROC_END_FAILED:
        return EPP_EXT_PROC_ERROR;
    case FL_EXTPROC_END_GONE:
    case FL_EXTPROC_END_SHUTDOWN:
        break;
    }
    return EPP_INCOMPLETE;
}

static void on_close(void *owner, struct fl_extproc_stream *x, enum fl_extproc_end end)
{
    struct epp_stream *stream = fl_extproc_stream_user(x);
    (void)owner;
    if (stream == NULL)
        return; /* never came as far as a pick */
    struct epp_loop *loop = stream->loop;
    enum fl_free_cause cause = cause_of(stream, end);
    enum epp_outcome outcome = outcome_of(end);
    if (stream->pick != NULL)
        fl_pick_cancel(stream->pick, FL_FREE_CLIENT_GONE);
    take_usage(stream);
    if (fl_booking_free(&stream->booking, cause)) {
        count(stream, EPP_LIFECYCLE, 1, 1);
        fl_pick_log_after(&loop->epp->log, stream->record, NULL, -1, -1, fl_free_cause_name(cause));
    }
    count(stream, EPP_REQUESTS, outcome, 1);
    fl_metric_observe(metrics_of(stream), loop->index, EPP_REQUEST_SECONDS, outcome,
                      (double)(fl_clock_ns() - stream->started_ns) / 1e9);
    fl_metric_gauge_add(metrics_of(stream), loop->index, EPP_STREAMS, 0, -1);
    FL_LOG(FL_LOG_DEBUG, "stream ended", "request_id=%.*s outcome=%s endpoint=%s status=%d",
           FL_FMT(fl_picker_request_id(fl_extproc_stream_picker(x))),
           epp_metric_descs[EPP_REQUESTS].values[outcome], stream->picked, stream->status);
    fl_free(stream);
}

/* Health is served on the ext_proc port too (epp.md 1.4). */
static bool on_other(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    struct epp_loop *loop = owner;
    return fl_health_take(loop->health, x, head, is_end);
}

const struct fl_extproc_server_ops epp_stream_ops = {
    .on_pick = on_pick,
    .on_pick_cancelled = on_pick_cancelled,
    .on_response = on_response,
    .on_first_token = on_first_token,
    .on_response_body = on_response_body,
    .on_close = on_close,
    .on_other = on_other,
};
