/* SPDX-License-Identifier: Apache-2.0 */
#include "apps/engine/engine.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "codec/hash.h"

/* A request whose body is being read. */
struct intake {
    struct engine *engine;
    struct fl_exchange *x;
    struct fl_buf body;
    void (*serve)(struct intake *intake);
    bool is_chat, is_refused;
    uint64_t read_ns;
    struct fl_timer late; /* --fault late */
};

static void intake_free(struct intake *intake)
{
    fl_loop_timer_stop(intake->engine->loop, &intake->late);
    fl_buf_fini(&intake->body);
    fl_free(intake);
}

void engine_respond_error(struct engine *engine, struct fl_exchange *x, int status,
                          const char *type, const char *message)
{
    struct fl_buf out = {0};
    struct fl_fields extra = {0};
    struct fl_json_writer json;
    fl_json_writer_init(&json, &out);
    fl_json_write_object(&json);
    fl_json_write_key(&json, "error");
    fl_json_write_object(&json);
    fl_json_write_key(&json, "message");
    fl_json_write_cstr(&json, message);
    fl_json_write_key(&json, "type");
    fl_json_write_cstr(&json, type);
    fl_json_write_key(&json, "param");
    fl_json_write_null(&json);
    fl_json_write_key(&json, "code");
    fl_json_write_i64(&json, status);
    fl_json_write_object_end(&json);
    fl_json_write_object_end(&json);
    if (engine->digest[0] != '\0')
        fl_fields_add_copy(&extra, fl_exchange_arena(x), FL_BYTES("x-fairlead-engine-body-sha256"),
                           fl_bytes_of(engine->digest));
    if (fl_json_writer_end(&json) == 0)
        fl_exchange_respond(x, status, "application/json", fl_buf_bytes(&out), &extra);
    fl_buf_fini(&out);
}

static void serve_models(struct intake *intake)
{
    struct fl_buf out = {0};
    struct fl_json_writer json;
    fl_json_writer_init(&json, &out);
    fl_json_write_object(&json);
    fl_json_write_key(&json, "object");
    fl_json_write_cstr(&json, "list");
    fl_json_write_key(&json, "data");
    fl_json_write_array(&json);
    fl_json_write_object(&json);
    fl_json_write_key(&json, "id");
    fl_json_write_cstr(&json, intake->engine->config.model);
    fl_json_write_key(&json, "object");
    fl_json_write_cstr(&json, "model");
    fl_json_write_key(&json, "owned_by");
    fl_json_write_cstr(&json, "fairlead");
    fl_json_write_object_end(&json);
    fl_json_write_array_end(&json);
    fl_json_write_object_end(&json);
    if (fl_json_writer_end(&json) == 0)
        fl_exchange_respond(intake->x, 200, "application/json", fl_buf_bytes(&out), NULL);
    fl_buf_fini(&out);
}

static void serve_health(struct intake *intake)
{
    fl_exchange_respond(intake->x, 200, "text/plain", FL_BYTES(""), NULL);
}

static void serve_metrics(struct intake *intake)
{
    struct fl_buf out = {0};
    if (engine_write_metrics(intake->engine, &out) == 0)
        fl_exchange_respond(intake->x, 200, "text/plain; version=0.0.4; charset=utf-8",
                            fl_buf_bytes(&out), NULL);
    fl_buf_fini(&out);
}

static void serve_generation(struct intake *intake)
{
    /* The generation becomes the exchange's handler and this intake ends; an error answer leaves
     * both. */
    struct engine *engine = intake->engine;
    if (engine_generate(engine, intake->x, intake->is_chat, fl_buf_bytes(&intake->body),
                        intake->read_ns))
        intake_free(intake);
}

/* vLLM's shapes: one object for a chat, a list for completions (epp.md 9.2). */
static void write_rendered(struct fl_json_writer *json, const struct engine *engine, uint64_t id,
                           bool is_chat, const struct engine_prompt *prompt)
{
    char text[48];
    snprintf(text, sizeof(text), "%s-render-%llu", is_chat ? "chatcmpl" : "cmpl",
             (unsigned long long)id);
    fl_json_write_object(json);
    fl_json_write_key(json, "request_id");
    fl_json_write_cstr(json, text);
    fl_json_write_key(json, "token_ids");
    fl_json_write_array(json);
    for (size_t i = 0; i < prompt->count; i++)
        fl_json_write_u64(json, prompt->tokens[i]);
    fl_json_write_array_end(json);
    fl_json_write_key(json, "features");
    fl_json_write_null(json);
    fl_json_write_key(json, "model");
    fl_json_write_cstr(json, engine->config.model);
    fl_json_write_object_end(json);
}

static void serve_render(struct intake *intake)
{
    struct engine *engine = intake->engine;
    struct engine_prompt *prompts = fl_calloc(ENGINE_MAX_PROMPTS, sizeof(*prompts));
    struct fl_json doc = {0};
    struct fl_error err = {0};
    struct fl_buf out = {0};
    struct fl_json_writer json;
    size_t count = 0;

    int rc = fl_json_parse(&doc, fl_buf_bytes(&intake->body), &err);
    if (rc == 0)
        rc = engine_read_prompts(fl_json_root(&doc), intake->is_chat, prompts, &count, &err);
    if (rc < 0) {
        fl_metric_add(&engine->metrics, 0, ENGINE_REFUSED, 0, 1);
        engine_respond_error(intake->engine, intake->x, 400, "BadRequestError", err.text);
        goto out;
    }
    struct fl_bytes model;
    if (fl_json_get_string(fl_json_root(&doc), "model", &model, NULL) == 0 &&
        !fl_bytes_eq(model, fl_bytes_of(engine->config.model))) {
        fl_metric_add(&engine->metrics, 0, ENGINE_REFUSED, 0, 1);
        engine_respond_error(intake->engine, intake->x, 404, "NotFoundError",
                             "The model does not exist.");
        goto out;
    }
    fl_json_writer_init(&json, &out);
    if (!intake->is_chat)
        fl_json_write_array(&json);
    for (size_t i = 0; i < count; i++)
        write_rendered(&json, engine, engine->next_id++, intake->is_chat, &prompts[i]);
    if (!intake->is_chat)
        fl_json_write_array_end(&json);
    if (fl_json_writer_end(&json) == 0)
        fl_exchange_respond(intake->x, 200, "application/json", fl_buf_bytes(&out), NULL);
    fl_metric_add(&engine->metrics, 0, ENGINE_RENDERED, 0, 1);
out:
    for (size_t i = 0; i < count; i++)
        engine_prompt_fini(&prompts[i]);
    fl_free(prompts);
    fl_json_fini(&doc);
    fl_buf_fini(&out);
}

static const struct route {
    const char *method, *path;
    void (*serve)(struct intake *intake);
    bool is_chat;
} routes[] = {
    {"GET", "/health", serve_health, false},
    {"GET", "/v1/models", serve_models, false},
    {"GET", "/metrics", serve_metrics, false},
    {"POST", "/v1/chat/completions", serve_generation, true},
    {"POST", "/v1/completions", serve_generation, false},
    {"POST", "/v1/chat/completions/render", serve_render, true},
    {"POST", "/v1/completions/render", serve_render, false},
};

/* Answers in the way of --fault; false: the fault leaves this request alone. */
static bool serve_fault(struct intake *intake)
{
    static const char not_json[] = "{\"token_ids\": [1, 2,";
    struct fl_buf out = {0};
    if (intake->serve != serve_generation && intake->serve != serve_render)
        return false;
    switch ((enum engine_fault)intake->engine->config.fault) {
    case ENGINE_FAULT_ERROR:
        engine_respond_error(intake->engine, intake->x, 500, "InternalServerError",
                             "the engine has a fault");
        return true;
    case ENGINE_FAULT_BUSY:
        engine_respond_error(intake->engine, intake->x, 503, "ServiceUnavailableError",
                             "the engine is busy");
        return true;
    case ENGINE_FAULT_SILENT:
        return true;
    case ENGINE_FAULT_WRONG:
        fl_exchange_respond(intake->x, 200, "application/json", FL_BYTES(not_json), NULL);
        return true;
    case ENGINE_FAULT_HUGE:
        fl_buf_append(&out, FL_BYTES("{\"request_id\":\"huge\",\"token_ids\":[1"));
        while (fl_buf_size(&out) < 17 * 1024 * 1024)
            fl_buf_append(&out, FL_BYTES(",1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"));
        fl_buf_append(&out, FL_BYTES("]}"));
        fl_exchange_respond(intake->x, 200, "application/json", fl_buf_bytes(&out), NULL);
        fl_buf_fini(&out);
        return true;
    case ENGINE_FAULT_CLOSE:
        fl_exchange_abort(intake->x, 2);
        return true;
    case ENGINE_FAULT_NONE:
    case ENGINE_FAULT_LATE:
    case ENGINE_FAULT_CUT:
        break;
    }
    return false;
}

/* For the answer that is about to be made: what the body's SHA-256 was when it arrived (--digest).
 */
static void take_digest(struct engine *engine, struct fl_bytes body)
{
    uint8_t digest[FL_SHA256_BYTES];
    engine->digest[0] = '\0';
    if (engine->sha == NULL || fl_sha256_of(engine->sha, body, digest) < 0)
        return;
    for (size_t i = 0; i < FL_SHA256_BYTES; i++)
        snprintf(engine->digest + 2 * i, 3, "%02x", digest[i]);
}

static void serve_now(struct intake *intake)
{
    take_digest(intake->engine, fl_buf_bytes(&intake->body));
    if (!serve_fault(intake))
        intake->serve(intake);
}

static void on_late(struct fl_timer *timer)
{
    serve_now(FL_CONTAINER_OF(timer, struct intake, late));
}

static void on_complete(struct intake *intake)
{
    struct engine *engine = intake->engine;
    intake->read_ns = fl_clock_ns();
    if (engine->config.fault == ENGINE_FAULT_LATE)
        fl_loop_timer_start(engine->loop, &intake->late, engine->config.fault_ms);
    else
        serve_now(intake);
}

static void on_head(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    struct intake *intake = owner;
    struct fl_bytes path, query;
    bool has_path = false;

    fl_target_split(head->target, &path, &query);
    for (size_t i = 0; i < FL_ARRAY_LEN(routes); i++) {
        if (!fl_bytes_eq(path, fl_bytes_of(routes[i].path)))
            continue;
        has_path = true;
        if (fl_bytes_eq(head->method, fl_bytes_of(routes[i].method))) {
            intake->serve = routes[i].serve;
            intake->is_chat = routes[i].is_chat;
        }
    }
    if (intake->serve == NULL) {
        intake->is_refused = true;
        intake->engine->digest[0] = '\0';
        engine_respond_error(intake->engine, x, has_path ? 405 : 404, "NotFoundError",
                             has_path ? "Method Not Allowed" : "Not Found");
        return;
    }
    if (head->expect_continue)
        fl_exchange_send_informational(x, 100, NULL);
    if (is_end)
        on_complete(intake);
}

static void on_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
{
    struct intake *intake = owner;
    if (!intake->is_refused && fl_buf_append(&intake->body, fl_slice_bytes(slice)) < 0) {
        intake->is_refused = true;
        fl_buf_fini(&intake->body);
        fl_metric_add(&intake->engine->metrics, 0, ENGINE_REFUSED, 0, 1);
        fl_exchange_close_after(x);
        engine_respond_error(intake->engine, x, 413, "BadRequestError", "request body too large");
    }
    fl_exchange_consume(x, slice.n);
    fl_slice_unref(&slice);
}

static void on_end(void *owner, struct fl_exchange *x, const struct fl_fields *trailers)
{
    struct intake *intake = owner;
    (void)x;
    (void)trailers;
    if (!intake->is_refused)
        on_complete(intake);
}

static void on_close(void *owner, struct fl_exchange *x, int rc)
{
    struct intake *intake = owner;
    (void)x;
    (void)rc;
    intake_free(intake);
}

static const struct fl_exchange_handler intake_handler = {
    .on_head = on_head,
    .on_body = on_body,
    .on_end = on_end,
    .on_close = on_close,
};

void engine_on_request(void *owner, struct fl_exchange *x)
{
    struct intake *intake = fl_calloc(1, sizeof(*intake));
    intake->engine = owner;
    intake->x = x;
    fl_buf_init(&intake->body, ENGINE_MAX_BODY_BYTES);
    fl_timer_init(&intake->late, on_late);
    fl_exchange_set_handler(x, &intake_handler, intake);
}
