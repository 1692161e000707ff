/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "openai/request.h"

/* ---- paths ---- */

/* epp.md 7.1; gaie.md 3 */
static void kind_follows_from_the_end_of_the_path(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        enum fl_openai_kind kind;
        bool rendered, parsed, needs_model;
    } rows[] = {
        {"/v1/chat/completions", FL_OPENAI_CHAT, true, true, true},
        {"/v1/completions", FL_OPENAI_COMPLETIONS, true, true, true},
        {"/v1/responses", FL_OPENAI_RESPONSES, false, true, true},
        {"/v1/embeddings", FL_OPENAI_EMBEDDINGS, false, true, true},
        {"/v1/messages", FL_OPENAI_MESSAGES, false, true, true},
        {"/v1/score", FL_OPENAI_SCORE, false, true, true},
        {"/score", FL_OPENAI_SCORE, false, true, true},
        {"/v1/rerank", FL_OPENAI_RERANK, false, true, true},
        {"/v2/rerank", FL_OPENAI_RERANK, false, true, true},
        {"/inference/v1/generate", FL_OPENAI_GENERATE, false, true, false},
        {"/generate", FL_OPENAI_GENERATE, false, true, false},
        {"/tokenize", FL_OPENAI_TOKENIZE, false, true, false},
        {"/detokenize", FL_OPENAI_DETOKENIZE, false, true, false},
        /* the query is dropped, a prefix is fine */
        {"/v1/chat/completions?api-version=1", FL_OPENAI_CHAT, true, true, true},
        {"/v1/audio/speech?x=/v1/completions", FL_OPENAI_OTHER, false, false, false},
        {"/team/a/v1/completions", FL_OPENAI_COMPLETIONS, true, true, true},
        /* anything else goes by load, unread */
        {"/v1/chat/completions/", FL_OPENAI_OTHER, false, false, false},
        {"/V1/CHAT/COMPLETIONS", FL_OPENAI_OTHER, false, false, false},
        {"/v1/chat/completionsx", FL_OPENAI_OTHER, false, false, false},
        {"v1/completions", FL_OPENAI_OTHER, false, false, false},
        {"/v1/audio/transcriptions", FL_OPENAI_OTHER, false, false, false},
        {"/v1/models", FL_OPENAI_OTHER, false, false, false},
        {"/", FL_OPENAI_OTHER, false, false, false},
        {"", FL_OPENAI_OTHER, false, false, false},
        {NULL, FL_OPENAI_OTHER, false, false, false},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        const struct fl_openai_path *path = fl_openai_path_find(fl_bytes_of(rows[i].path));
        if (path->kind != rows[i].kind || path->is_rendered != rows[i].rendered ||
            path->is_parsed != rows[i].parsed || path->needs_model != rows[i].needs_model)
            fail_msg("row %zu: %s", i, rows[i].path);
    }
}

static void the_table_of_paths_is_sound(void **state)
{
    (void)state;
    size_t count;
    const struct fl_openai_path *paths = fl_openai_paths(&count);
    bool seen[FL_OPENAI_KIND_COUNT] = {0};

    for (size_t i = 0; i < count; i++) {
        seen[paths[i].kind] = true;
        assert_ptr_equal(fl_openai_path_find(fl_bytes_of(paths[i].suffix)), &paths[i]);
        assert_true(paths[i].is_parsed || !paths[i].is_rendered);
        assert_true(paths[i].is_parsed || !paths[i].needs_model);
    }
    for (size_t k = 0; k < FL_OPENAI_KIND_COUNT; k++)
        assert_true(seen[k]);
    assert_int_equal(paths[count - 1].kind, FL_OPENAI_OTHER);
}

/* ---- bodies ---- */

static const struct fl_openai_options plain = {0};
static const struct fl_openai_options without_nvext = {.ignore_nvext = true};
static const struct fl_openai_options disaggregated = {.is_disaggregated = true};

static int read_path(struct fl_openai_request *request, const char *path, const char *body,
                     const struct fl_openai_options *options, struct fl_arena *arena)
{
    fl_openai_request_init(request);
    return fl_openai_request_read(request, fl_openai_path_find(fl_bytes_of(path)),
                                  fl_bytes_of(body), options, arena);
}

static int read_chat(struct fl_openai_request *request, const char *body, struct fl_arena *arena)
{
    return read_path(request, "/v1/chat/completions", body, &plain, arena);
}

static bool is(struct fl_bytes bytes, const char *text)
{
    if (text == NULL)
        return fl_bytes_is_absent(bytes);
    return !fl_bytes_is_absent(bytes) && fl_bytes_eq(bytes, fl_bytes_of(text));
}

/* epp.md 7.2, 6: model absent or not a string is 400 invalid_request_body; body must be an object
 */
static void a_body_without_a_model_is_bad(void **state)
{
    (void)state;
    static const struct {
        const char *why, *body;
        int rc;
        const char *model;
    } rows[] = {
        {"a model", "{\"model\":\"m\"}", 0, "m"},
        {"an empty name is a string", "{\"model\":\"\"}", 0, ""},
        {"escaped name", "{\"model\":\"m\\u0041\\/x\"}", 0, "mA/x"},
        {"escaped key", "{\"m\\u006fdel\":\"m\"}", 0, "m"},
        {"last wins", "{\"model\":\"a\",\"model\":\"b\"}", 0, "b"},
        {"last wins, null", "{\"model\":\"a\",\"model\":null}", FL_EBAD_BODY, NULL},
        {"last wins, wrong type first", "{\"model\":1,\"model\":\"b\"}", 0, "b"},
        {"deeper is another", "{\"x\":{\"model\":\"a\"}}", FL_EBAD_BODY, NULL},
        {"none", "{\"messages\":[]}", FL_EBAD_BODY, NULL},
        {"null", "{\"model\":null}", FL_EBAD_BODY, NULL},
        {"number", "{\"model\":7}", FL_EBAD_BODY, NULL},
        {"list", "{\"model\":[\"m\"]}", FL_EBAD_BODY, NULL},
        {"top list", "[{\"model\":\"m\"}]", FL_EBAD_BODY, NULL},
        {"top string", "\"model\"", FL_EBAD_BODY, NULL},
        {"empty", "", FL_EBAD_BODY, NULL},
        {"cut", "{\"model\":\"m\"", FL_EBAD_BODY, NULL},
        {"garbage behind", "{\"model\":\"m\"}x", FL_EBAD_BODY, NULL},
        {"invalid UTF-8", "{\"model\":\"m\",\"x\":\"\xff\"}", FL_EBAD_BODY, NULL},
        {"unpaired surrogate", "{\"model\":\"m\",\"x\":\"\\ud800\"}", FL_EBAD_BODY, NULL},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_arena arena = {0};
        struct fl_openai_request request;
        int rc = read_chat(&request, rows[i].body, &arena);
        if (rc != rows[i].rc || (rc == 0 && !is(request.model, rows[i].model)))
            fail_msg("row %zu: %s gave %d", i, rows[i].why, rc);
        fl_arena_fini(&arena);
    }
}

/* gaie.md 3: engines' own routes need no model */
static void routes_of_the_engine_may_leave_the_model_out(void **state)
{
    (void)state;
    static const char *const paths[] = {"/generate", "/inference/v1/generate", "/tokenize",
                                        "/detokenize"};

    for (size_t i = 0; i < FL_ARRAY_LEN(paths); i++) {
        struct fl_arena arena = {0};
        struct fl_openai_request request;
        assert_int_equal(read_path(&request, paths[i], "{}", &plain, &arena), 0);
        assert_true(is(request.model, NULL));
        assert_int_equal(read_path(&request, paths[i], "{\"model\":1}", &plain, &arena),
                         FL_EBAD_BODY);
        fl_arena_fini(&arena);
    }
}

/* epp.md 7.2: depth limit 128 */
static void a_body_too_deep_is_bad(void **state)
{
    (void)state;
    for (int depth = 127; depth <= 129; depth++) {
        struct fl_buf body = {0};
        fl_buf_append(&body, FL_BYTES("{\"model\":\"m\",\"x\":"));
        for (int i = 1; i < depth; i++)
            fl_buf_append_byte(&body, '[');
        for (int i = 1; i < depth; i++)
            fl_buf_append_byte(&body, ']');
        fl_buf_append(&body, FL_BYTES("}"));
        struct fl_openai_request request;
        struct fl_arena arena = {0};
        fl_openai_request_init(&request);
        assert_int_equal(fl_openai_request_read(&request, fl_openai_path_find(FL_BYTES("/score")),
                                                fl_buf_bytes(&body), &plain, &arena),
                         depth <= 128 ? 0 : FL_EBAD_BODY);
        fl_arena_fini(&arena);
        fl_buf_fini(&body);
    }
}

/* gaie.md 3: the forms of prompt */
static void the_form_of_the_prompt_is_told(void **state)
{
    (void)state;
    static const struct {
        const char *prompt;
        enum fl_openai_prompt form;
    } rows[] = {
        {"\"text\"", FL_OPENAI_PROMPT_TEXT},
        {"[\"a\",\"b\"]", FL_OPENAI_PROMPT_TEXTS},
        {"[ \n\t\r \"a\"]", FL_OPENAI_PROMPT_TEXTS},
        {"[1,2,3]", FL_OPENAI_PROMPT_TOKENS},
        {"[ 0 ]", FL_OPENAI_PROMPT_TOKENS},
        {"[[1,2],[3]]", FL_OPENAI_PROMPT_TOKEN_LISTS},
        {"[]", FL_OPENAI_PROMPT_OTHER},
        {"[ ]", FL_OPENAI_PROMPT_OTHER},
        {"[-1]", FL_OPENAI_PROMPT_OTHER},
        {"[null]", FL_OPENAI_PROMPT_OTHER},
        {"{\"a\":1}", FL_OPENAI_PROMPT_OTHER},
        {"7", FL_OPENAI_PROMPT_OTHER},
        {"null", FL_OPENAI_PROMPT_NONE},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_buf body = {0};
        struct fl_arena arena = {0};
        struct fl_openai_request request;
        fl_buf_printf(&body, "{\"model\":\"m\",\"prompt\":%s}", rows[i].prompt);
        fl_openai_request_init(&request);
        assert_int_equal(fl_openai_request_read(&request,
                                                fl_openai_path_find(FL_BYTES("/v1/completions")),
                                                fl_buf_bytes(&body), &plain, &arena),
                         0);
        if (request.prompt_form != rows[i].form)
            fail_msg("row %zu: %s", i, rows[i].prompt);
        assert_true(
            is(request.prompt, rows[i].form == FL_OPENAI_PROMPT_NONE ? NULL : rows[i].prompt));
        fl_arena_fini(&arena);
        fl_buf_fini(&body);
    }
}

static void members_that_only_help_are_read_leniently(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        bool stream, include_usage, has_max;
        uint64_t max_tokens;
    } rows[] = {
        {"{\"model\":\"m\"}", false, false, false, 0},
        {"{\"model\":\"m\",\"stream\":true,\"stream_options\":{\"x\":1,\"include_usage\":true}}",
         true, true, false, 0},
        {"{\"model\":\"m\",\"stream\":false,\"stream_options\":{\"include_usage\":false}}", false,
         false, false, 0},
        {"{\"model\":\"m\",\"stream\":null,\"stream_options\":null,\"max_tokens\":null}", false,
         false, false, 0},
        {"{\"model\":\"m\",\"stream\":\"yes\",\"stream_options\":[1],\"max_tokens\":\"x\"}", false,
         false, false, 0},
        {"{\"model\":\"m\",\"max_tokens\":5}", false, false, true, 5},
        {"{\"model\":\"m\",\"max_tokens\":5,\"max_completion_tokens\":6}", false, false, true, 6},
        {"{\"model\":\"m\",\"max_output_tokens\":7}", false, false, true, 7},
        {"{\"model\":\"m\",\"max_tokens\":-1,\"max_output_tokens\":7}", false, false, true, 7},
        {"{\"model\":\"m\",\"max_tokens\":1.5}", false, false, false, 0},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_arena arena = {0};
        struct fl_openai_request request;
        assert_int_equal(read_chat(&request, rows[i].body, &arena), 0);
        if (request.stream != rows[i].stream || request.include_usage != rows[i].include_usage ||
            request.has_max_tokens != rows[i].has_max || request.max_tokens != rows[i].max_tokens)
            fail_msg("row %zu: %s", i, rows[i].body);
        fl_arena_fini(&arena);
    }
}

/* epp.md 7.3 */
static void hints_that_are_not_for_routers_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *why, *nvext;
        int rc;
    } rows[] = {
        {"empty", "{}", 0},
        {"null", "null", 0},
        {"no object", "[]", FL_EBAD_BODY},
        {"text", "\"x\"", FL_EBAD_BODY},
        {"tokens", "{\"token_data\":[1,2]}", FL_EBAD_HINT},
        {"no tokens", "{\"token_data\":null}", 0},
        {"raw prompt", "{\"use_raw_prompt\":true}", FL_EBAD_HINT},
        {"raw prompt, null", "{\"use_raw_prompt\":null}", 0},
        {"unknown member", "{\"tokens\":1}", FL_EBAD_BODY},
        {"unknown member, null", "{\"tokens\":null}", FL_EBAD_BODY},
        {"ignored members",
         "{\"router\":{\"ttft_target\":1},\"annotations\":[\"a\"],\"extra_fields\":[],"
         "\"greed_sampling\":true,\"max_thinking_tokens\":5,\"metadata_upload\":{\"url\":\"u\"},"
         "\"request_timestamp_ms\":1.5}",
         0},
        {"worker", "{\"backend_instance_id\":18446744073709551615}", 0},
        {"worker too big", "{\"backend_instance_id\":18446744073709551616}", FL_EBAD_BODY},
        {"worker negative", "{\"decode_worker_id\":-1}", FL_EBAD_BODY},
        {"worker as text", "{\"decode_worker_id\":\"1\"}", FL_EBAD_BODY},
        {"rank too big", "{\"dp_rank\":4294967296}", FL_EBAD_BODY},
        {"prefill rank as fraction", "{\"prefill_dp_rank\":1.5}", FL_EBAD_BODY},
        {"prefill worker as list", "{\"prefill_worker_id\":[]}", FL_EBAD_BODY},
        {"hints no object", "{\"agent_hints\":1}", FL_EBAD_BODY},
        {"hints null", "{\"agent_hints\":null}", 0},
        {"unknown hint", "{\"agent_hints\":{\"x\":1,\"speculative_prefill\":true}}", 0},
        {"priority lowest", "{\"agent_hints\":{\"priority\":-2147483648}}", 0},
        {"priority too low", "{\"agent_hints\":{\"priority\":-2147483649}}", FL_EBAD_BODY},
        {"priority too high", "{\"agent_hints\":{\"priority\":2147483648}}", FL_EBAD_BODY},
        {"priority as text", "{\"agent_hints\":{\"priority\":\"1\"}}", FL_EBAD_BODY},
        {"strict negative", "{\"agent_hints\":{\"strict_priority\":-1}}", FL_EBAD_BODY},
        {"osl as text", "{\"agent_hints\":{\"osl\":\"9\"}}", FL_EBAD_BODY},
        {"latency as text", "{\"agent_hints\":{\"latency_sensitivity\":\"9\"}}", FL_EBAD_BODY},
        {"latency infinite", "{\"agent_hints\":{\"latency_sensitivity\":1e999}}", FL_EBAD_BODY},
        {"salt as number", "{\"cache_salt\":1}", FL_EBAD_BODY},
        {"constraints no object", "{\"routing_constraints\":[]}", FL_EBAD_BODY},
        {"constraints null", "{\"routing_constraints\":null}", 0},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_buf body = {0};
        struct fl_arena arena = {0};
        struct fl_openai_request request;
        const struct fl_openai_path *path = fl_openai_path_find(FL_BYTES("/v1/completions"));
        fl_buf_printf(&body, "{\"nvext\":%s,\"model\":\"m\"}", rows[i].nvext);
        fl_openai_request_init(&request);
        int rc = fl_openai_request_read(&request, path, fl_buf_bytes(&body), &plain, &arena);
        if (rc != rows[i].rc)
            fail_msg("row %zu: %s gave %d", i, rows[i].why, rc);
        /* DYN_DISABLE_FRONTEND_NVEXT: not even parsed */
        fl_openai_request_init(&request);
        assert_int_equal(
            fl_openai_request_read(&request, path, fl_buf_bytes(&body), &without_nvext, &arena), 0);
        fl_arena_fini(&arena);
        fl_buf_fini(&body);
    }
}

/* epp.md 7.3 */
static void hints_are_read(void **state)
{
    (void)state;
    struct fl_arena arena = {0};
    struct fl_openai_request r;

    assert_int_equal(
        read_path(&r, "/v1/chat/completions",
                  "{\"model\":\"m\",\"nvext\":{\"backend_instance_id\":5,\"dp_rank\":3,"
                  "\"prefill_worker_id\":9,\"prefill_dp_rank\":1,\"decode_worker_id\":6,"
                  "\"agent_hints\":{\"priority\":-4,\"strict_priority\":2,\"osl\":100,"
                  "\"latency_sensitivity\":2.5},\"cache_salt\":\" s \","
                  "\"routing_constraints\":{\"required_taints\":[\"a\"]}},\"cache_salt\":\"top\"}",
                  &disaggregated, &arena),
        0);
    assert_true(r.has_worker);
    assert_int_equal(r.worker_id, 6); /* the decode role is the one that speaks here */
    assert_int_equal(r.rank, 3);
    assert_true(r.has_prefill_worker);
    assert_int_equal(r.prefill_worker_id, 9);
    assert_int_equal(r.prefill_rank, 1);
    assert_true(r.has_priority);
    assert_int_equal(r.priority, -4);
    assert_int_equal(r.strict_priority, 2);
    assert_true(r.has_output_tokens);
    assert_int_equal(r.output_tokens, 100);
    assert_true(r.has_latency_sensitivity);
    assert_true(r.latency_sensitivity > 2.4 && r.latency_sensitivity < 2.6);
    assert_true(is(r.cache_namespace, "s"));
    assert_int_equal(r.namespace_source, FL_OPENAI_NAMESPACE_NVEXT);
    assert_true(is(r.constraints, "{\"required_taints\":[\"a\"]}"));

    assert_int_equal(read_chat(&r,
                               "{\"model\":\"m\",\"nvext\":{\"backend_instance_id\":5,"
                               "\"decode_worker_id\":6}}",
                               &arena),
                     0);
    assert_int_equal(r.worker_id, 5);
    assert_int_equal(r.rank, FL_OPENAI_RANK_UNSET);
    assert_int_equal(r.prefill_rank, FL_OPENAI_RANK_UNSET);
    assert_true(is(r.constraints, NULL));
    fl_arena_fini(&arena);
}

/* ---- headers ---- */

struct header {
    const char *name, *value;
};

#define MAX_HEADERS 6

/* Reads `body` as chat, then applies the headers (up to the first without a name). */
static int read_both(struct fl_openai_request *request, const char *body,
                     const struct header *headers, const struct fl_openai_options *options,
                     struct fl_arena *arena)
{
    struct fl_fields fields = {0};

    for (size_t i = 0; i < MAX_HEADERS && headers[i].name != NULL; i++)
        fl_fields_add(&fields, arena, fl_bytes_of(headers[i].name), fl_bytes_of(headers[i].value));
    int rc = read_path(request, "/v1/chat/completions", body, options, arena);
    return rc < 0 ? rc : fl_openai_request_override(request, &fields, options, arena);
}

/* epp.md 7.4 */
static void headers_override_the_body(void **state)
{
    (void)state;
    static const char body[] =
        "{\"model\":\"m\",\"nvext\":{\"decode_worker_id\":5,\"dp_rank\":3,\"prefill_worker_id\":7,"
        "\"prefill_dp_rank\":4,\"agent_hints\":{\"priority\":1,\"strict_priority\":2}}}";
    static const struct {
        const char *why;
        struct header headers[MAX_HEADERS];
        uint64_t worker, prefill_worker;
        uint32_t rank, prefill_rank;
        int32_t priority;
        uint32_t strict;
    } rows[] = {
        {"none", {{0}}, 5, 7, 3, 4, 1, 2},
        {"all by their own names",
         {{"x-dynamo-worker-instance-id", "50"},
          {"x-dynamo-prefill-instance-id", "70"},
          {"x-dynamo-dp-rank", "30"},
          {"x-dynamo-prefill-dp-rank", "40"},
          {"x-dynamo-request-priority", "-10"},
          {"x-dynamo-request-strict-priority", "20"}},
         50,
         70,
         30,
         40,
         -10,
         20},
        {"by their aliases",
         {{"x-worker-instance-id", "50"},
          {"x-prefill-instance-id", "70"},
          {"x-dp-rank", "30"},
          {"x-prefill-dp-rank", "40"}},
         50,
         70,
         30,
         40,
         1,
         2},
        {"third name of the rank", {{"x-data-parallel-rank", "31"}}, 5, 7, 31, 4, 1, 2},
        {"the own name wins, wherever it stands",
         {{"x-worker-instance-id", "1"},
          {"x-dynamo-worker-instance-id", "2"},
          {"x-worker-instance-id", "3"}},
         2,
         7,
         3,
         4,
         1,
         2},
        {"the first of equal names wins",
         {{"x-dynamo-dp-rank", "8"}, {"x-dynamo-dp-rank", "9"}},
         5,
         7,
         8,
         4,
         1,
         2},
        {"names have no case", {{"X-Dynamo-DP-Rank", "8"}}, 5, 7, 8, 4, 1, 2},
        {"blanks around", {{"x-dynamo-dp-rank", " 8\t"}}, 5, 7, 8, 4, 1, 2},
        {"bad values are ignored",
         {{"x-dynamo-worker-instance-id", "abc"},
          {"x-dynamo-dp-rank", "-1"},
          {"x-dynamo-prefill-dp-rank", "4294967296"},
          {"x-dynamo-request-priority", "2147483648"},
          {"x-dynamo-request-strict-priority", "1.5"},
          {"x-dynamo-prefill-instance-id", "18446744073709551616"}},
         5,
         7,
         3,
         4,
         1,
         2},
        {"an empty value says nothing",
         {{"x-dynamo-worker-instance-id", " "}, {"x-worker-instance-id", "6"}},
         6,
         7,
         3,
         4,
         1,
         2},
        {"prefill rank 4294967295 means unset",
         {{"x-dynamo-prefill-dp-rank", "4294967295"}},
         5,
         7,
         3,
         FL_OPENAI_RANK_UNSET,
         1,
         2},
        {"lowest priority",
         {{"x-dynamo-request-priority", "-2147483648"}},
         5,
         7,
         3,
         4,
         INT32_MIN,
         2},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_arena arena = {0};
        struct fl_openai_request r;
        int rc = read_both(&r, body, rows[i].headers, &disaggregated, &arena);
        if (rc != 0 || r.worker_id != rows[i].worker ||
            r.prefill_worker_id != rows[i].prefill_worker || r.rank != rows[i].rank ||
            r.prefill_rank != rows[i].prefill_rank || r.priority != rows[i].priority ||
            r.strict_priority != rows[i].strict)
            fail_msg("row %zu: %s (%d)", i, rows[i].why, rc);
        fl_arena_fini(&arena);
    }
}

/* epp.md 7.3 */
static void pins_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *why, *body;
        struct header headers[MAX_HEADERS];
        int aggregated, disaggregated;
    } rows[] = {
        {"no pin", "{\"model\":\"m\"}", {{0}}, 0, 0},
        {"rank with a worker",
         "{\"model\":\"m\",\"nvext\":{\"backend_instance_id\":1,\"dp_rank\":0}}",
         {{0}},
         0,
         0},
        {"rank alone",
         "{\"model\":\"m\",\"nvext\":{\"dp_rank\":0}}",
         {{0}},
         FL_EBAD_HINT,
         FL_EBAD_HINT},
        {"rank alone, by header",
         "{\"model\":\"m\"}",
         {{"x-dynamo-dp-rank", "0"}},
         FL_EBAD_HINT,
         FL_EBAD_HINT},
        {"rank in the body, worker by header",
         "{\"model\":\"m\",\"nvext\":{\"dp_rank\":0}}",
         {{"x-dynamo-worker-instance-id", "1"}},
         0,
         0},
        {"prefill worker",
         "{\"model\":\"m\",\"nvext\":{\"prefill_worker_id\":1}}",
         {{0}},
         FL_EBAD_HINT,
         0},
        {"prefill worker by header",
         "{\"model\":\"m\"}",
         {{"x-dynamo-prefill-instance-id", "1"}},
         FL_EBAD_HINT,
         0},
        {"prefill rank alone",
         "{\"model\":\"m\",\"nvext\":{\"prefill_dp_rank\":1}}",
         {{0}},
         FL_EBAD_HINT,
         FL_EBAD_HINT},
        {"prefill rank unset",
         "{\"model\":\"m\"}",
         {{"x-dynamo-prefill-dp-rank", "4294967295"}},
         0,
         0},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_arena arena = {0};
        struct fl_openai_request r;
        if (read_both(&r, rows[i].body, rows[i].headers, &plain, &arena) != rows[i].aggregated ||
            read_both(&r, rows[i].body, rows[i].headers, &disaggregated, &arena) !=
                rows[i].disaggregated)
            fail_msg("row %zu: %s", i, rows[i].why);
        fl_arena_fini(&arena);
    }
}

/* epp.md 7.4: last x-tenant-id, nvext.cache_salt, top-level cache_salt; first that is non-empty */
static void the_cache_namespace_is_the_first_that_is_not_empty(void **state)
{
    (void)state;
    static const struct {
        const char *why, *body;
        struct header headers[MAX_HEADERS];
        const char *name;
        enum fl_openai_namespace source;
    } rows[] = {
        {"none", "{\"model\":\"m\"}", {{0}}, NULL, FL_OPENAI_NAMESPACE_NONE},
        {"top", "{\"model\":\"m\",\"cache_salt\":\"t\"}", {{0}}, "t", FL_OPENAI_NAMESPACE_BODY},
        {"top, null",
         "{\"model\":\"m\",\"cache_salt\":null}",
         {{0}},
         NULL,
         FL_OPENAI_NAMESPACE_NONE},
        {"nvext",
         "{\"model\":\"m\",\"cache_salt\":\"t\",\"nvext\":{\"cache_salt\":\"n\"}}",
         {{0}},
         "n",
         FL_OPENAI_NAMESPACE_NVEXT},
        {"nvext blank",
         "{\"model\":\"m\",\"cache_salt\":\" t \",\"nvext\":{\"cache_salt\":\"  \"}}",
         {{0}},
         "t",
         FL_OPENAI_NAMESPACE_BODY},
        {"header",
         "{\"model\":\"m\",\"cache_salt\":\"t\",\"nvext\":{\"cache_salt\":\"n\"}}",
         {{"x-tenant-id", "h"}},
         "h",
         FL_OPENAI_NAMESPACE_HEADER},
        {"last header",
         "{\"model\":\"m\"}",
         {{"x-tenant-id", "a"}, {"x-tenant-id", "b"}},
         "b",
         FL_OPENAI_NAMESPACE_HEADER},
        {"empty header ignored",
         "{\"model\":\"m\",\"cache_salt\":\"t\"}",
         {{"x-tenant-id", " "}},
         "t",
         FL_OPENAI_NAMESPACE_BODY},
        {"empty last header ignored",
         "{\"model\":\"m\"}",
         {{"x-tenant-id", "a"}, {"x-tenant-id", ""}},
         "a",
         FL_OPENAI_NAMESPACE_HEADER},
        {"escaped salt",
         "{\"model\":\"m\",\"cache_salt\":\"\\u0061\"}",
         {{0}},
         "a",
         FL_OPENAI_NAMESPACE_BODY},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_arena arena = {0};
        struct fl_openai_request r;
        int rc = read_both(&r, rows[i].body, rows[i].headers, &plain, &arena);
        if (rc != 0 || !is(r.cache_namespace, rows[i].name) || r.namespace_source != rows[i].source)
            fail_msg("row %zu: %s", i, rows[i].why);
        fl_arena_fini(&arena);
    }
    struct fl_arena arena = {0};
    struct fl_openai_request r;
    assert_int_equal(read_chat(&r, "{\"model\":\"m\",\"cache_salt\":1}", &arena), FL_EBAD_BODY);
    fl_arena_fini(&arena);
}

/* epp.md 7.6 */
static void priority_becomes_seconds(void **state)
{
    (void)state;
    static const struct {
        const char *why, *hints, *header;
        double jump_s;
    } rows[] = {
        {"nothing", "", NULL, 0},
        {"priority", "\"priority\":7", NULL, 7},
        {"negative priority", "\"priority\":-7", NULL, 0},
        {"latency sensitivity", "\"latency_sensitivity\":2.5", NULL, 2.5},
        {"negative sensitivity", "\"latency_sensitivity\":-2.5", NULL, 0},
        {"priority goes before", "\"priority\":0,\"latency_sensitivity\":2.5", NULL, 0},
        {"header goes before the body", "\"priority\":7", "9", 9},
        {"header goes before sensitivity", "\"latency_sensitivity\":2.5", "-1", 0},
        {"bad header", "\"latency_sensitivity\":2.5", "x", 2.5},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_buf body = {0};
        struct fl_arena arena = {0};
        struct fl_openai_request r;
        struct header headers[MAX_HEADERS] = {{0}};
        if (rows[i].header != NULL)
            headers[0] = (struct header){"x-dynamo-request-priority", rows[i].header};
        fl_buf_printf(&body, "{\"model\":\"m\",\"nvext\":{\"agent_hints\":{%s}}}", rows[i].hints);
        fl_buf_append_byte(&body, 0);
        assert_int_equal(
            read_both(&r, (const char *)fl_buf_bytes(&body).p, headers, &plain, &arena), 0);
        double jump_s = fl_openai_priority_jump_s(&r);
        if (jump_s < rows[i].jump_s || jump_s > rows[i].jump_s)
            fail_msg("row %zu: %s gave %g", i, rows[i].why, jump_s);
        fl_arena_fini(&arena);
        fl_buf_fini(&body);
    }
}

/* epp.md 7.7, 7.5 */
static void session_and_retry_headers_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        struct header headers[MAX_HEADERS];
        const char *session, *parent;
        bool final;
        uint32_t retry;
    } rows[] = {
        {"none", {{0}}, NULL, NULL, false, 0},
        {"order of names",
         {{"thread-id", "5"},
          {"x-claude-code-session-id", "4"},
          {"x-session-id", "3"},
          {"x-dynamo-session-id", "2"},
          {"x-dynamo-session-affinity-id", "1"}},
         "1",
         NULL,
         false,
         0},
        {"last name", {{"thread-id", " 5 "}}, "5", NULL, false, 0},
        {"empty ones are passed over",
         {{"x-dynamo-session-affinity-id", ""}, {"x-session-id", "3"}, {"thread-id", "5"}},
         "3",
         NULL,
         false,
         0},
        {"parent and end",
         {{"x-dynamo-parent-session-id", "p"}, {"x-dynamo-session-final", "true"}},
         NULL,
         "p",
         true,
         0},
        {"end as 1", {{"x-dynamo-session-final", "1"}}, NULL, NULL, true, 0},
        {"no end", {{"x-dynamo-session-final", "0"}}, NULL, NULL, false, 0},
        {"retry", {{"x-dynamo-retry-attempt", "2"}}, NULL, NULL, false, 2},
        {"Envoy counts from one", {{"x-envoy-attempt-count", "1"}}, NULL, NULL, false, 0},
        {"Envoy's second", {{"x-envoy-attempt-count", "2"}}, NULL, NULL, false, 1},
        {"ours goes before",
         {{"x-envoy-attempt-count", "9"}, {"x-dynamo-retry-attempt", "0"}},
         NULL,
         NULL,
         false,
         0},
        {"nonsense",
         {{"x-dynamo-retry-attempt", "-1"}, {"x-envoy-attempt-count", "x"}},
         NULL,
         NULL,
         false,
         0},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_arena arena = {0};
        struct fl_openai_request r;
        int rc = read_both(&r, "{\"model\":\"m\"}", rows[i].headers, &plain, &arena);
        if (rc != 0 || !is(r.session_id, rows[i].session) ||
            !is(r.parent_session_id, rows[i].parent) || r.is_session_final != rows[i].final ||
            r.retry_attempt != rows[i].retry)
            fail_msg("row %zu: %s", i, rows[i].why);
        fl_arena_fini(&arena);
    }
}

/* ---- metadata (epp.md 7.5) ---- */

static void metadata_fields_are_collected(void **state)
{
    (void)state;
    struct fl_arena arena = {0};
    struct fl_openai_request r;
    static const struct header headers[MAX_HEADERS] = {
        {"x-dynamo-meta-team", " blue "},        {"X-Dynamo-Meta-TEAM", "red"},
        {"x-dynamo-meta-authorization", "abc"},  {"x-dynamo-meta-key", "BeArEr secret"},
        {"x-dynamo-meta-policy-class", "batch"}, {"x-dynamo-meta-", "no key"},
    };

    assert_int_equal(read_both(&r, "{\"model\":\"m\"}", headers, &plain, &arena), 0);
    assert_int_equal(r.metadata_count, 2);
    assert_true(is(r.metadata[0].key, "team"));
    assert_true(is(r.metadata[0].value, "blue")); /* the first wins, trimmed */
    assert_true(is(r.metadata[1].key, "policy-class"));
    assert_true(is(r.policy_class, "batch"));

    const struct fl_openai_options other = {.metadata_prefix = FL_BYTES("x-acme-")};
    static const struct header acme[MAX_HEADERS] = {{"x-acme-a", "1"}, {"x-dynamo-meta-b", "2"}};
    assert_int_equal(read_both(&r, "{\"model\":\"m\"}", acme, &other, &arena), 0);
    assert_int_equal(r.metadata_count, 1);
    assert_true(is(r.metadata[0].key, "a"));
    assert_true(is(r.policy_class, NULL));
    fl_arena_fini(&arena);
}

/* epp.md 7.5: more than 64 entries or 65,536 bytes is 431 */
static void metadata_is_limited_in_number_and_bytes(void **state)
{
    (void)state;
    for (uint32_t count = 63; count <= 65; count++) {
        struct fl_arena arena = {0};
        struct fl_fields fields = {0};
        struct fl_openai_request r;
        for (uint32_t i = 0; i < count; i++) {
            char name[32] = "x-dynamo-meta-";
            size_t n = strlen(name);
            name[n] = (char)('a' + i / 26);
            name[n + 1] = (char)('a' + i % 26);
            fl_fields_add_copy(&fields, &arena, fl_bytes(name, n + 2), FL_BYTES("v"));
        }
        fl_openai_request_init(&r);
        assert_int_equal(fl_openai_request_override(&r, &fields, &plain, &arena),
                         count <= 64 ? 0 : FL_EMETADATA_LARGE);
        fl_arena_fini(&arena);
    }
    for (size_t bytes = 65535; bytes <= 65537; bytes++) {
        struct fl_arena arena = {0};
        struct fl_fields fields = {0};
        struct fl_openai_request r;
        char *value = malloc(bytes);
        assert_non_null(value);
        memset(value, 'v', bytes);
        fl_fields_add(&fields, &arena, FL_BYTES("x-dynamo-meta-k"), fl_bytes(value, bytes - 1));
        fl_openai_request_init(&r);
        assert_int_equal(fl_openai_request_override(&r, &fields, &plain, &arena),
                         bytes <= 65536 ? 0 : FL_EMETADATA_LARGE);
        free(value);
        fl_arena_fini(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kind_follows_from_the_end_of_the_path),
        cmocka_unit_test(the_table_of_paths_is_sound),
        cmocka_unit_test(a_body_without_a_model_is_bad),
        cmocka_unit_test(routes_of_the_engine_may_leave_the_model_out),
        cmocka_unit_test(a_body_too_deep_is_bad),
        cmocka_unit_test(the_form_of_the_prompt_is_told),
        cmocka_unit_test(members_that_only_help_are_read_leniently),
        cmocka_unit_test(hints_that_are_not_for_routers_are_refused),
        cmocka_unit_test(hints_are_read),
        cmocka_unit_test(headers_override_the_body),
        cmocka_unit_test(pins_that_make_no_sense_are_refused),
        cmocka_unit_test(the_cache_namespace_is_the_first_that_is_not_empty),
        cmocka_unit_test(priority_becomes_seconds),
        cmocka_unit_test(session_and_retry_headers_are_read),
        cmocka_unit_test(metadata_fields_are_collected),
        cmocka_unit_test(metadata_is_limited_in_number_and_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
