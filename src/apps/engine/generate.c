/* SPDX-License-Identifier: Apache-2.0 */
/* A generation: admitted at the instant its request was read, first token when its prefill has been
 * computed, then `tokens_per_event` tokens an event, the end after the last token's decode time.
 *
 *   admitted --(prefill)--> event of token 1 --> event of tokens 2..1+k --> ... --> last event,
 * usage, [DONE]
 *
 * All open generations stand in one heap by the wall time of their next event; one precise timer
 * fires for the first. */
#include "apps/engine/engine.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "sim/words.h"

struct generation {
    struct fl_heap_node node;
    uint64_t due_ns;
    struct engine *engine;
    struct fl_exchange *x; /* NULL once closed */
    uint64_t id, seed;
    double admitted_s, first_s;
    uint32_t prompt_tokens, cached_tokens, output_tokens;
    uint32_t sent_tokens; /* reached by events so far */
    uint32_t events;
    time_t created;
    bool is_chat, is_stream, wants_usage;
    bool is_waiting; /* before its first token */
    bool is_done;
    uint64_t read_ns;
    char digest[65];
};

static struct generation *generation_of(const struct fl_heap_node *node)
{
    return FL_CONTAINER_OF(node, struct generation, node);
}

static bool due_before(const struct fl_heap_node *a, const struct fl_heap_node *b)
{
    return generation_of(a)->due_ns < generation_of(b)->due_ns;
}

double engine_now_s(const struct engine *engine)
{
    return (double)(fl_clock_ns() - engine->start_ns) / 1e9 * engine->config.time_scale;
}

uint64_t engine_wall_ns(const struct engine *engine, double model_s)
{
    return engine->start_ns + (uint64_t)llround(model_s / engine->config.time_scale * 1e9);
}

static void arm(struct engine *engine)
{
    struct fl_heap_node *first = fl_heap_peek(&engine->due);
    if (first == NULL)
        fl_precise_timer_stop(engine->timer);
    else
        fl_precise_timer_start(engine->timer, generation_of(first)->due_ns);
}

/* Tokens that the next event reaches, and when it is due. */
static uint32_t next_tokens(const struct generation *g)
{
    if (g->sent_tokens == 0)
        return g->output_tokens < 1 ? g->output_tokens : 1;
    uint32_t step = g->is_stream ? g->engine->config.tokens_per_event : g->output_tokens;
    return step < g->output_tokens - g->sent_tokens ? g->sent_tokens + step : g->output_tokens;
}

static void schedule(struct generation *g)
{
    double decode_s = g->engine->config.decode_ms / 1000;
    uint32_t tokens = next_tokens(g);
    double at_s = tokens <= 1 && g->sent_tokens == 0 ? g->first_s : g->first_s + decode_s * tokens;
    g->due_ns = engine_wall_ns(g->engine, at_s);
    fl_heap_push(&g->engine->due, &g->node);
}

static void write_head_members(struct fl_json_writer *json, const struct generation *g)
{
    char id[48];
    snprintf(id, sizeof(id), "%s-%" PRIu64, g->is_chat ? "chatcmpl" : "cmpl", g->id);
    fl_json_write_key(json, "id");
    fl_json_write_cstr(json, id);
    fl_json_write_key(json, "object");
    if (g->is_chat)
        fl_json_write_cstr(json, g->is_stream ? "chat.completion.chunk" : "chat.completion");
    else
        fl_json_write_cstr(json, "text_completion");
    fl_json_write_key(json, "created");
    fl_json_write_i64(json, g->created);
    fl_json_write_key(json, "model");
    fl_json_write_cstr(json, g->engine->config.model);
}

static void write_choice(struct fl_json_writer *json, const struct generation *g,
                         struct fl_bytes text, bool is_last)
{
    fl_json_write_key(json, "choices");
    fl_json_write_array(json);
    fl_json_write_object(json);
    fl_json_write_key(json, "index");
    fl_json_write_u64(json, 0);
    if (g->is_chat) {
        fl_json_write_key(json, g->is_stream ? "delta" : "message");
        fl_json_write_object(json);
        if (!g->is_stream || g->events == 0) {
            fl_json_write_key(json, "role");
            fl_json_write_cstr(json, "assistant");
        }
        fl_json_write_key(json, "content");
        fl_json_write_string(json, text);
        fl_json_write_object_end(json);
    } else {
        fl_json_write_key(json, "text");
        fl_json_write_string(json, text);
    }
    fl_json_write_key(json, "logprobs");
    fl_json_write_null(json);
    fl_json_write_key(json, "finish_reason");
    if (is_last)
        fl_json_write_cstr(json, "length");
    else
        fl_json_write_null(json);
    fl_json_write_object_end(json);
    fl_json_write_array_end(json);
}

static void write_usage(struct fl_json_writer *json, const struct generation *g)
{
    fl_json_write_key(json, "usage");
    fl_json_write_object(json);
    fl_json_write_key(json, "prompt_tokens");
    fl_json_write_u64(json, g->prompt_tokens);
    fl_json_write_key(json, "completion_tokens");
    fl_json_write_u64(json, g->sent_tokens);
    fl_json_write_key(json, "total_tokens");
    fl_json_write_u64(json, (uint64_t)g->prompt_tokens + g->sent_tokens);
    fl_json_write_key(json, "prompt_tokens_details");
    fl_json_write_object(json);
    fl_json_write_key(json, "cached_tokens");
    fl_json_write_u64(json, g->cached_tokens);
    fl_json_write_object_end(json);
    fl_json_write_object_end(json);
}

static void write_text(struct fl_buf *text, const struct generation *g, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        fl_words_write_generated(text, g->seed, i);
}

static void send_head(struct generation *g)
{
    struct fl_head head = {
        .status = 200, .body = FL_BODY_CHUNKED, .arena = fl_exchange_arena(g->x)};
    char stamp[24];
    snprintf(stamp, sizeof(stamp), "%" PRIu64, g->read_ns);
    fl_fields_add(&head.fields, head.arena, FL_BYTES("content-type"),
                  g->is_stream ? FL_BYTES("text/event-stream; charset=utf-8")
                               : FL_BYTES("application/json"));
    /* When the whole request had been read, on the monotonic clock all processes of a machine share
     * (design.md section 6). */
    fl_fields_add_copy(&head.fields, head.arena, FL_BYTES("x-fairlead-engine-read-ns"),
                       fl_bytes_of(stamp));
    if (g->digest[0] != '\0')
        fl_fields_add_copy(&head.fields, head.arena, FL_BYTES("x-fairlead-engine-body-sha256"),
                           fl_bytes_of(g->digest));
    fl_exchange_send_head(g->x, &head, false);
}

static void send_buffer(struct generation *g, struct fl_buf *out)
{
    fl_exchange_send_body_copy(g->x, fl_buf_bytes(out));
    fl_buf_fini(out);
}

static void send_event(struct generation *g, uint32_t from, bool is_last)
{
    struct fl_buf out = {0};
    struct fl_buf text = {0};
    struct fl_json_writer json;

    write_text(&text, g, from, g->sent_tokens);
    fl_buf_append(&out, FL_BYTES("data: "));
    fl_json_writer_init(&json, &out);
    fl_json_write_object(&json);
    write_head_members(&json, g);
    write_choice(&json, g, fl_buf_bytes(&text), is_last);
    fl_json_write_object_end(&json);
    fl_json_writer_end(&json);
    fl_buf_append(&out, FL_BYTES("\n\n"));
    if (is_last && g->wants_usage) {
        fl_buf_append(&out, FL_BYTES("data: "));
        fl_json_writer_init(&json, &out);
        fl_json_write_object(&json);
        write_head_members(&json, g);
        fl_json_write_key(&json, "choices");
        fl_json_write_array(&json);
        fl_json_write_array_end(&json);
        write_usage(&json, g);
        fl_json_write_object_end(&json);
        fl_json_writer_end(&json);
        fl_buf_append(&out, FL_BYTES("\n\n"));
    }
    if (is_last)
        fl_buf_append(&out, FL_BYTES("data: [DONE]\n\n"));
    fl_buf_fini(&text);
    send_buffer(g, &out);
}

static void send_whole(struct generation *g)
{
    struct fl_buf out = {0};
    struct fl_buf text = {0};
    struct fl_json_writer json;

    write_text(&text, g, 0, g->output_tokens);
    fl_json_writer_init(&json, &out);
    fl_json_write_object(&json);
    write_head_members(&json, g);
    write_choice(&json, g, fl_buf_bytes(&text), true);
    write_usage(&json, g);
    fl_json_write_object_end(&json);
    fl_json_writer_end(&json);
    fl_buf_fini(&text);
    send_buffer(g, &out);
}

static void finish(struct generation *g)
{
    struct engine *engine = g->engine;
    g->is_done = true;
    engine->open--;
    fl_metric_add(&engine->metrics, 0, ENGINE_FINISHED, 0, 1);
    fl_exchange_send_end(g->x, NULL);
}

/* One event is due. */
static void step(struct generation *g)
{
    struct engine *engine = g->engine;
    uint32_t from = g->sent_tokens;

    if (g->is_waiting) {
        g->is_waiting = false;
        engine->waiting--;
        fl_metric_observe(&engine->metrics, 0, ENGINE_TTFT, 0, g->first_s - g->admitted_s);
        if (g->is_stream)
            send_head(g);
    }
    g->sent_tokens = next_tokens(g);
    fl_metric_add(&engine->metrics, 0, ENGINE_GENERATION_TOKENS, 0, g->sent_tokens - from);
    bool is_last = g->sent_tokens == g->output_tokens;
    if (g->is_stream) {
        send_event(g, from, is_last);
        g->events++;
        if (engine->config.fault == ENGINE_FAULT_CUT && g->events == 2) {
            fl_exchange_abort(g->x, 2);
            return;
        }
    } else if (is_last) {
        send_head(g);
        send_whole(g);
    }
    if (is_last)
        finish(g);
    else
        schedule(g);
}

static void on_timer(void *owner)
{
    struct engine *engine = owner;
    uint64_t now_ns = fl_clock_ns();
    for (;;) {
        struct fl_heap_node *first = fl_heap_peek(&engine->due);
        if (first == NULL || generation_of(first)->due_ns > now_ns)
            break;
        fl_heap_pop(&engine->due);
        step(generation_of(first));
    }
    arm(engine);
}

static void on_close(void *owner, struct fl_exchange *x, int rc)
{
    struct generation *g = owner;
    struct engine *engine = g->engine;
    (void)x;
    (void)rc;
    if (!g->is_done) {
        /* What was queued of its prefill stays queued: the model computes first in, first out. */
        engine->open--;
        engine->waiting -= g->is_waiting;
        fl_metric_add(&engine->metrics, 0, ENGINE_ABORTED, 0, 1);
        fl_heap_remove(&engine->due, &g->node);
        arm(engine);
    }
    fl_free(g);
}

static void on_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
{
    (void)owner;
    fl_exchange_consume(x, slice.n); /* the request was complete: cannot be */
    fl_slice_unref(&slice);
}

static const struct fl_exchange_handler generation_handler = {
    .on_body = on_body,
    .on_close = on_close,
};

static uint32_t max_tokens_of(const struct fl_json_node *body)
{
    static const char *const keys[] = {"max_completion_tokens", "max_tokens"};
    uint64_t value = 16; /* the completions API's own default */
    for (size_t i = 0; i < FL_ARRAY_LEN(keys); i++) {
        if (fl_json_get_u64(body, keys[i], 0, ENGINE_MAX_OUTPUT_TOKENS, &value, NULL) == 0)
            break;
    }
    return (uint32_t)value;
}

static bool flag_of(const struct fl_json_node *object, const char *key)
{
    bool value = false;
    return fl_json_get_bool(object, key, &value, NULL) == 0 && value;
}

static void start(struct engine *engine, struct fl_exchange *x, const struct fl_json_node *body,
                  bool is_chat, const struct engine_prompt *prompt, uint64_t read_ns)
{
    struct generation *g = fl_calloc(1, sizeof(*g));
    struct fl_engine_admission admission = engine_admit(engine, prompt);

    *g = (struct generation){
        .engine = engine,
        .x = x,
        .id = engine->next_id++,
        .admitted_s = engine_now_s(engine),
        .first_s = admission.first_token_s,
        .prompt_tokens = (uint32_t)prompt->count,
        .cached_tokens = admission.matched_blocks * engine->config.block_tokens,
        .output_tokens = max_tokens_of(body),
        .created = time(NULL),
        .is_chat = is_chat,
        .is_stream = flag_of(body, "stream"),
        .is_waiting = true,
        .read_ns = read_ns,
    };
    g->seed = g->id;
    const struct fl_json_node *options = fl_json_get(body, FL_BYTES("stream_options"));
    g->wants_usage = options != NULL && flag_of(options, "include_usage");
    memcpy(g->digest, engine->digest, sizeof(g->digest));

    engine->open++;
    engine->waiting++;
    if (engine->open > engine->peak_open)
        engine->peak_open = engine->open;
    fl_metric_add(&engine->metrics, 0, ENGINE_REQUESTS, 0, 1);
    fl_metric_add(&engine->metrics, 0, ENGINE_PROMPT_TOKENS, 0, prompt->count);
    fl_metric_add(&engine->metrics, 0, ENGINE_CACHE_QUERIES, 0, prompt->count);
    fl_metric_add(&engine->metrics, 0, ENGINE_CACHE_HITS, 0, g->cached_tokens);
    fl_exchange_set_handler(x, &generation_handler, g);
    schedule(g);
    arm(engine);
}

bool engine_generate(struct engine *engine, struct fl_exchange *x, bool is_chat,
                     struct fl_bytes body, uint64_t read_ns)
{
    struct engine_prompt *prompts = fl_calloc(ENGINE_MAX_PROMPTS, sizeof(*prompts));
    struct fl_json doc = {0};
    struct fl_error err = {0};
    struct fl_bytes model = {0};
    bool is_started = false;
    size_t count = 0;

    int rc = fl_json_parse(&doc, body, &err);
    if (rc == 0)
        rc = engine_read_prompts(fl_json_root(&doc), is_chat, prompts, &count, &err);
    if (rc == 0 && count > 1)
        rc = fl_error_set(&err, FL_EBAD_BODY, "one prompt a request is generated here");
    if (rc == 0 && fl_json_get_string(fl_json_root(&doc), "model", &model, &err) < 0)
        rc = FL_EBAD_BODY;
    if (rc < 0) {
        fl_metric_add(&engine->metrics, 0, ENGINE_REFUSED, 0, 1);
        engine_respond_error(engine, x, 400, "BadRequestError", err.text);
    } else if (!fl_bytes_eq(model, fl_bytes_of(engine->config.model))) {
        fl_metric_add(&engine->metrics, 0, ENGINE_REFUSED, 0, 1);
        engine_respond_error(engine, x, 404, "NotFoundError", "The model does not exist.");
    } else {
        start(engine, x, fl_json_root(&doc), is_chat, &prompts[0], read_ns);
        is_started = true;
    }
    for (size_t i = 0; i < count; i++)
        engine_prompt_fini(&prompts[i]);
    fl_free(prompts);
    fl_json_fini(&doc);
    return is_started;
}

void engine_generate_init(struct engine *engine)
{
    fl_heap_init(&engine->due, due_before);
    engine->timer = fl_precise_timer_new(engine->loop, on_timer, engine);
}

void engine_generate_fini(struct engine *engine)
{
    fl_precise_timer_free(engine->timer);
    fl_heap_fini(&engine->due);
}
