/* SPDX-License-Identifier: Apache-2.0 */
#include "apps/replay/replay.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "codec/json.h"
#include "openai/usage.h"
#include "sim/words.h"
#include "web/exchange.h"

#define DEFAULT_TIMEOUT_MS 120000

struct replay {
    struct fl_loop *loop;
    const struct fl_trace *trace;
    struct replay_config config;
    struct fl_web_pool *pool;
    struct fl_precise_timer *timer;
    struct fl_link open; /* requests */
    uint64_t start_ns;
    size_t next, total;
    struct replay_result result;
    void (*on_done)(void *owner, struct replay_result *result);
    void *owner;
    bool is_done;
};

struct request {
    struct fl_link link;
    struct replay *replay;
    struct fl_exchange *x;
    struct fl_timer deadline;
    struct fl_usage_scan usage;
    uint64_t scheduled_ns, sent_ns, first_ns, read_ns;
    int status;
    bool is_complete, is_timed_out;
};

bool replay_parse_scale(const char *text, uint32_t *divisor)
{
    struct fl_bytes rest = fl_bytes_of(text);
    uint64_t value = 1;
    if (!fl_bytes_eq(rest, FL_BYTES("1")) &&
        (!fl_bytes_has_prefix(rest, FL_BYTES("1/")) ||
         !fl_bytes_to_u64(fl_bytes_skip(rest, 2), 1 << 20, &value) || value == 0))
        return false;
    *divisor = (uint32_t)value;
    return true;
}

void replay_result_fini(struct replay_result *result)
{
    fl_free(result->ttft_ms);
    fl_free(result->router_us);
    *result = (struct replay_result){0};
}

uint64_t replay_answered(const struct replay *replay)
{
    return replay->result.requests;
}

static void note_error(struct replay *replay, const struct request *request, int rc)
{
    struct replay_result *result = &replay->result;
    if (result->errors++ > 0)
        return;
    if (request->is_timed_out)
        snprintf(result->first_error, sizeof(result->first_error), "no whole answer in time");
    else if (request->status != 0 && request->status != 200)
        snprintf(result->first_error, sizeof(result->first_error), "status %d", request->status);
    else if (rc < 0)
        snprintf(result->first_error, sizeof(result->first_error), "%s (%s)",
                 fl_error_row(rc)->word, request->status == 0 ? "no answer" : "answer cut");
    else
        snprintf(result->first_error, sizeof(result->first_error), "answer without usage");
}

static void note_answer(struct replay *replay, const struct request *request,
                        const struct fl_usage *usage)
{
    struct replay_result *result = &replay->result;
    double wall_ms = (double)(request->first_ns - request->scheduled_ns) / 1e6;
    result->ttft_ms[result->ttft_count++] = wall_ms * replay->config.time_scale;
    if (request->read_ns > request->sent_ns)
        result->router_us[result->router_count++] =
            (double)(request->read_ns - request->sent_ns) / 1e3;
    result->prompt_tokens += usage->prompt_tokens;
    result->cached_tokens += usage->cached_tokens;
}

static void finish_if_done(struct replay *replay)
{
    if (replay->is_done || replay->next < replay->total || !fl_link_is_alone(&replay->open))
        return;
    replay->is_done = true;
    replay->result.duration_s = (double)(fl_clock_ns() - replay->start_ns) / 1e9;
    replay->on_done(replay->owner, &replay->result);
}

static void on_head(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    struct request *request = owner;
    struct fl_bytes stamp = fl_fields_get(&head->fields, FL_BYTES("x-fairlead-engine-read-ns"));
    (void)x;
    request->status = head->status;
    fl_bytes_to_u64(stamp, UINT64_MAX, &request->read_ns);
    request->is_complete = is_end;
}

static void on_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
{
    struct request *request = owner;
    if (request->first_ns == 0)
        request->first_ns = fl_clock_ns();
    fl_usage_scan_feed(&request->usage, fl_slice_bytes(slice));
    fl_exchange_consume(x, slice.n);
    fl_slice_unref(&slice);
}

static void on_end(void *owner, struct fl_exchange *x, const struct fl_fields *trailers)
{
    struct request *request = owner;
    (void)x;
    (void)trailers;
    request->is_complete = true;
}

static void on_close(void *owner, struct fl_exchange *x, int rc)
{
    struct request *request = owner;
    struct replay *replay = request->replay;
    struct fl_usage usage;
    bool has_usage = fl_usage_scan_finish(&request->usage, &usage);
    (void)x;

    replay->result.requests++;
    if (request->status == 200 && request->is_complete && request->first_ns != 0 && has_usage)
        note_answer(replay, request, &usage);
    else
        note_error(replay, request, rc);
    fl_usage_scan_fini(&request->usage);
    fl_loop_timer_stop(replay->loop, &request->deadline);
    fl_link_unlink(&request->link);
    fl_free(request);
    finish_if_done(replay);
}

static const struct fl_exchange_handler request_handler = {
    .on_head = on_head,
    .on_body = on_body,
    .on_end = on_end,
    .on_close = on_close,
};

static void on_deadline(struct fl_timer *timer)
{
    struct request *request = FL_CONTAINER_OF(timer, struct request, deadline);
    request->is_timed_out = true;
    fl_exchange_abort(request->x, 8);
}

static void write_body(const struct replay *replay, const struct fl_trace_record *record,
                       struct fl_buf *body)
{
    static const uint64_t no_id = 0;
    uint32_t tokens = record->input_tokens / replay->config.token_divisor;
    bool has_ids = record->id_count > 0;
    struct fl_json_writer json;

    fl_json_writer_init(&json, body);
    fl_json_write_object(&json);
    fl_json_write_key(&json, "model");
    fl_json_write_cstr(&json, replay->config.model);
    fl_json_write_key(&json, "stream");
    fl_json_write_bool(&json, true);
    fl_json_write_key(&json, "stream_options");
    fl_json_write_raw(&json, FL_BYTES("{\"include_usage\":true}"));
    fl_json_write_key(&json, "max_tokens");
    fl_json_write_u64(&json, record->output_tokens);
    fl_json_write_key(&json, "prompt");
    /* Words need no escaping: the text goes in as it is. */
    fl_json_write_raw(&json, FL_BYTES("\""));
    fl_words_write_prompt(body, has_ids ? fl_trace_ids(replay->trace, record) : &no_id,
                          has_ids ? record->id_count : 1, tokens > 0 ? tokens : 1,
                          replay->trace->block_tokens / replay->config.token_divisor);
    fl_buf_append(body, FL_BYTES("\"}"));
}

static void send_request(struct replay *replay, const struct fl_trace_record *record,
                         uint64_t scheduled_ns)
{
    struct request *request = fl_calloc(1, sizeof(*request));
    struct fl_web_target target = {.addr = replay->config.target, .protocol = FL_WEB_HTTP1};
    struct fl_buf body = {0};

    request->replay = replay;
    request->scheduled_ns = scheduled_ns;
    fl_usage_scan_init(&request->usage, true);
    fl_timer_init(&request->deadline, on_deadline);
    fl_loop_timer_start(replay->loop, &request->deadline, replay->config.timeout_ms);
    fl_link_push_tail(&replay->open, &request->link);
    write_body(replay, record, &body);

    request->x = fl_web_pool_open(replay->pool, &target, false, &request_handler, request);
    struct fl_head head = {
        .method = FL_BYTES("POST"),
        .target = fl_bytes_of(replay->config.path),
        .authority = fl_bytes_of(replay->config.host),
        .body = FL_BODY_LENGTH,
        .content_length = fl_buf_size(&body),
        .arena = fl_exchange_arena(request->x),
    };
    fl_fields_add(&head.fields, head.arena, FL_BYTES("host"), head.authority);
    fl_fields_add(&head.fields, head.arena, FL_BYTES("content-type"), FL_BYTES("application/json"));
    fl_exchange_send_head(request->x, &head, false);
    fl_exchange_send_body_copy(request->x, fl_buf_bytes(&body));
    fl_exchange_send_end(request->x, NULL);
    request->sent_ns = fl_clock_ns();
    fl_buf_fini(&body);
}

static uint64_t arrival_ns(const struct replay *replay, size_t i)
{
    double wall_s = (double)replay->trace->records[i].at_us / 1e6 /
                    (replay->config.speed * replay->config.time_scale);
    return replay->start_ns + (uint64_t)llround(wall_s * 1e9);
}

static void on_timer(void *owner)
{
    struct replay *replay = owner;
    while (replay->next < replay->total) {
        uint64_t at_ns = arrival_ns(replay, replay->next);
        if (at_ns > fl_clock_ns()) {
            fl_precise_timer_start(replay->timer, at_ns);
            return;
        }
        send_request(replay, &replay->trace->records[replay->next], at_ns);
        replay->next++;
    }
}

int replay_start(struct fl_loop *loop, const struct fl_trace *trace,
                 const struct replay_config *config,
                 void (*on_done)(void *owner, struct replay_result *result), void *owner,
                 struct replay **replay, struct fl_error *err)
{
    struct fl_web_pool_config pool = {.max_idle_per_target = 4096,
                                      .max_idle_ms = 55000,
                                      .max_header_bytes = 65536,
                                      .max_headers = 200};
    if (config->token_divisor == 0 || trace->block_tokens % config->token_divisor != 0)
        return fl_error_set(err, FL_ECONFIG,
                            "token scale 1/%u does not divide the trace's blocks of %u tokens",
                            config->token_divisor, trace->block_tokens);
    struct replay *r = fl_calloc(1, sizeof(*r));
    r->loop = loop;
    r->trace = trace;
    r->config = *config;
    if (r->config.timeout_ms == 0)
        r->config.timeout_ms = DEFAULT_TIMEOUT_MS;
    r->pool = fl_web_pool_new(loop, &pool);
    r->timer = fl_precise_timer_new(loop, on_timer, r);
    fl_link_init(&r->open);
    r->total =
        config->requests > 0 && config->requests < trace->count ? config->requests : trace->count;
    r->result.ttft_ms = fl_calloc(r->total, sizeof(double));
    r->result.router_us = fl_calloc(r->total, sizeof(double));
    r->on_done = on_done;
    r->owner = owner;
    r->start_ns = fl_clock_ns();
    fl_precise_timer_start(r->timer, r->start_ns);
    *replay = r;
    return 0;
}

void replay_free(struct replay *replay)
{
    if (replay == NULL)
        return;
    replay->is_done = true;
    fl_precise_timer_free(replay->timer);
    fl_web_pool_free(replay->pool);
    replay_result_fini(&replay->result);
    fl_free(replay);
}
