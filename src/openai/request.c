/* SPDX-License-Identifier: Apache-2.0 */
#include "openai/request.h"

#include <string.h>

#include "base/error.h"
#include "codec/json.h"
#include "openai/number.h"

/* ---- members by name ---- */

/* Only the last occurrence of a key counts, so an object is first collected, then read. */
struct slots {
    const char *const *names; /* NULL-terminated */
    struct fl_json_member *members;
    bool is_unknown_refused;
};

static int collect(void *owner, const struct fl_json_member *member)
{
    struct slots *slots = owner;

    for (size_t i = 0; slots->names[i] != NULL; i++) {
        if (fl_json_raw_eq(member->key, fl_bytes_of(slots->names[i]))) {
            slots->members[i] = *member;
            return 0;
        }
    }
    return slots->is_unknown_refused ? FL_EBAD_BODY : 0;
}

/* Absent and null are the same to every reader here. */
static bool is_given(const struct fl_json_member *member)
{
    return member->value.p != NULL && member->type != FL_JSON_NULL;
}

/* A member that is absent or null leaves *value as it is; another type than string is FL_EBAD_BODY.
 */
static int read_string(const struct fl_json_member *member, struct fl_arena *arena,
                       struct fl_bytes *value)
{
    if (!is_given(member))
        return 0;
    if (member->type != FL_JSON_STRING)
        return FL_EBAD_BODY;
    return fl_json_unescape(arena, fl_bytes(member->value.p + 1, member->value.n - 2), value);
}

static int read_u64(const struct fl_json_member *member, uint64_t max, bool *has, uint64_t *value)
{
    if (!is_given(member))
        return 0;
    if (member->type != FL_JSON_NUMBER || !fl_bytes_to_u64(member->value, max, value))
        return FL_EBAD_BODY;
    *has = true;
    return 0;
}

static int read_u32(const struct fl_json_member *member, bool *has, uint32_t *value)
{
    uint64_t n = *value;
    int rc = read_u64(member, UINT32_MAX, has, &n);

    *value = (uint32_t)n;
    return rc;
}

/* ---- nvext (epp.md 7.3) ---- */

enum { HINT_PRIORITY, HINT_STRICT_PRIORITY, HINT_OSL, HINT_LATENCY, HINT_COUNT };

static const char *const hint_names[HINT_COUNT + 1] = {
    [HINT_PRIORITY] = "priority",
    [HINT_STRICT_PRIORITY] = "strict_priority",
    [HINT_OSL] = "osl",
    [HINT_LATENCY] = "latency_sensitivity",
};

static int read_latency(const struct fl_json_member *member, struct fl_openai_request *request)
{
    const struct fl_json_node node = {.text = member->value, .type = FL_JSON_NUMBER};
    double value;

    if (!is_given(member))
        return 0;
    if (member->type != FL_JSON_NUMBER || !fl_json_to_double(&node, &value))
        return FL_EBAD_BODY;
    request->has_latency_sensitivity = true;
    request->latency_sensitivity = value;
    return 0;
}

static int read_hints(const struct fl_json_member *member, struct fl_openai_request *request)
{
    struct fl_json_member hints[HINT_COUNT] = {0};
    struct slots slots = {.names = hint_names, .members = hints};
    bool ignored;

    if (!is_given(member))
        return 0;
    int rc = fl_json_scan_members(member->value, collect, &slots);
    if (rc < 0)
        return rc;
    if (is_given(&hints[HINT_PRIORITY])) {
        request->has_priority = hints[HINT_PRIORITY].type == FL_JSON_NUMBER &&
                                fl_openai_to_i32(hints[HINT_PRIORITY].value, &request->priority);
        if (!request->has_priority)
            return FL_EBAD_BODY;
    }
    rc = read_u32(&hints[HINT_STRICT_PRIORITY], &ignored, &request->strict_priority);
    if (rc == 0)
        rc = read_u32(&hints[HINT_OSL], &request->has_output_tokens, &request->output_tokens);
    return rc < 0 ? rc : read_latency(&hints[HINT_LATENCY], request);
}

enum {
    NVEXT_TOKEN_DATA,
    NVEXT_RAW_PROMPT,
    NVEXT_PREFILL_WORKER,
    NVEXT_PREFILL_RANK,
    NVEXT_BACKEND_INSTANCE,
    NVEXT_DECODE_WORKER,
    NVEXT_RANK,
    NVEXT_HINTS,
    NVEXT_CACHE_SALT,
    NVEXT_CONSTRAINTS,
    /* known and ignored */
    NVEXT_ROUTER,
    NVEXT_ANNOTATIONS,
    NVEXT_EXTRA_FIELDS,
    NVEXT_GREED_SAMPLING,
    NVEXT_THINKING,
    NVEXT_UPLOAD,
    NVEXT_TIMESTAMP,
    NVEXT_COUNT
};

static const char *const nvext_names[NVEXT_COUNT + 1] = {
    [NVEXT_TOKEN_DATA] = "token_data",
    [NVEXT_RAW_PROMPT] = "use_raw_prompt",
    [NVEXT_PREFILL_WORKER] = "prefill_worker_id",
    [NVEXT_PREFILL_RANK] = "prefill_dp_rank",
    [NVEXT_BACKEND_INSTANCE] = "backend_instance_id",
    [NVEXT_DECODE_WORKER] = "decode_worker_id",
    [NVEXT_RANK] = "dp_rank",
    [NVEXT_HINTS] = "agent_hints",
    [NVEXT_CACHE_SALT] = "cache_salt",
    [NVEXT_CONSTRAINTS] = "routing_constraints",
    [NVEXT_ROUTER] = "router",
    [NVEXT_ANNOTATIONS] = "annotations",
    [NVEXT_EXTRA_FIELDS] = "extra_fields",
    [NVEXT_GREED_SAMPLING] = "greed_sampling",
    [NVEXT_THINKING] = "max_thinking_tokens",
    [NVEXT_UPLOAD] = "metadata_upload",
    [NVEXT_TIMESTAMP] = "request_timestamp_ms",
};

static int read_nvext(const struct fl_json_member *member, struct fl_openai_request *request,
                      const struct fl_openai_options *options, struct fl_arena *arena,
                      struct fl_bytes *cache_salt)
{
    struct fl_json_member m[NVEXT_COUNT] = {0};
    struct slots slots = {.names = nvext_names, .members = m, .is_unknown_refused = true};
    bool ignored;

    int rc = fl_json_scan_members(member->value, collect, &slots);
    if (rc < 0)
        return rc;
    /* Tokens from a client would be believed by the index. */
    if (is_given(&m[NVEXT_TOKEN_DATA]) || is_given(&m[NVEXT_RAW_PROMPT]))
        return FL_EBAD_HINT;
    if (is_given(&m[NVEXT_CONSTRAINTS])) {
        if (m[NVEXT_CONSTRAINTS].type != FL_JSON_OBJECT)
            return FL_EBAD_BODY;
        request->constraints = m[NVEXT_CONSTRAINTS].value;
    }
    /* Both name the worker; the one that speaks of the deployment at hand is read last and wins. */
    const int names[2] = {options->is_disaggregated ? NVEXT_BACKEND_INSTANCE : NVEXT_DECODE_WORKER,
                          options->is_disaggregated ? NVEXT_DECODE_WORKER : NVEXT_BACKEND_INSTANCE};
    for (size_t i = 0; i < 2 && rc == 0; i++)
        rc = read_u64(&m[names[i]], UINT64_MAX, &request->has_worker, &request->worker_id);
    if (rc == 0)
        rc = read_u64(&m[NVEXT_PREFILL_WORKER], UINT64_MAX, &request->has_prefill_worker,
                      &request->prefill_worker_id);
    if (rc == 0)
        rc = read_u32(&m[NVEXT_RANK], &ignored, &request->rank);
    if (rc == 0)
        rc = read_u32(&m[NVEXT_PREFILL_RANK], &ignored, &request->prefill_rank);
    if (rc == 0)
        rc = read_hints(&m[NVEXT_HINTS], request);
    return rc < 0 ? rc : read_string(&m[NVEXT_CACHE_SALT], arena, cache_salt);
}

/* ---- the body (epp.md 7.2) ---- */

enum {
    BODY_MODEL,
    BODY_PROMPT,
    BODY_STREAM,
    BODY_STREAM_OPTIONS,
    BODY_MAX_TOKENS,
    BODY_MAX_COMPLETION_TOKENS,
    BODY_MAX_OUTPUT_TOKENS,
    BODY_CACHE_SALT,
    BODY_NVEXT,
    BODY_COUNT
};

static const char *const body_names[BODY_COUNT + 1] = {
    [BODY_MODEL] = "model",
    [BODY_PROMPT] = "prompt",
    [BODY_STREAM] = "stream",
    [BODY_STREAM_OPTIONS] = "stream_options",
    [BODY_MAX_TOKENS] = "max_tokens",
    [BODY_MAX_COMPLETION_TOKENS] = "max_completion_tokens",
    [BODY_MAX_OUTPUT_TOKENS] = "max_output_tokens",
    [BODY_CACHE_SALT] = "cache_salt",
    [BODY_NVEXT] = "nvext",
};

static enum fl_openai_prompt prompt_form_of(const struct fl_json_member *member)
{
    if (member->type == FL_JSON_STRING)
        return FL_OPENAI_PROMPT_TEXT;
    if (member->type != FL_JSON_ARRAY)
        return FL_OPENAI_PROMPT_OTHER;
    /* The first item tells; whether the others are alike is for whoever reads them. */
    size_t i = 1;
    while (memchr(" \t\r\n", member->value.p[i], 4) != NULL)
        i++; /* the closing bracket ends it */
    uint8_t c = member->value.p[i];
    if (c == '"')
        return FL_OPENAI_PROMPT_TEXTS;
    if (c == '[')
        return FL_OPENAI_PROMPT_TOKEN_LISTS;
    return c >= '0' && c <= '9' ? FL_OPENAI_PROMPT_TOKENS : FL_OPENAI_PROMPT_OTHER;
}

static int on_stream_option(void *owner, const struct fl_json_member *member)
{
    struct fl_openai_request *request = owner;

    if (fl_json_raw_eq(member->key, FL_BYTES("include_usage")))
        request->include_usage = member->type == FL_JSON_TRUE;
    return 0;
}

/* Members that only help; the engine judges their types. */
static void read_extras(const struct fl_json_member *m, struct fl_openai_request *request)
{
    static const int limits[] = {BODY_MAX_COMPLETION_TOKENS, BODY_MAX_TOKENS,
                                 BODY_MAX_OUTPUT_TOKENS};

    request->stream = is_given(&m[BODY_STREAM]) && m[BODY_STREAM].type == FL_JSON_TRUE;
    if (is_given(&m[BODY_STREAM_OPTIONS]) && m[BODY_STREAM_OPTIONS].type == FL_JSON_OBJECT)
        fl_json_scan_members(m[BODY_STREAM_OPTIONS].value, on_stream_option, request);
    for (size_t i = 0; i < FL_ARRAY_LEN(limits) && !request->has_max_tokens; i++)
        (void)read_u64(&m[limits[i]], UINT64_MAX, &request->has_max_tokens, &request->max_tokens);
    if (is_given(&m[BODY_PROMPT])) {
        request->prompt = m[BODY_PROMPT].value;
        request->prompt_form = prompt_form_of(&m[BODY_PROMPT]);
    }
}

static void set_namespace(struct fl_openai_request *request, struct fl_bytes text,
                          enum fl_openai_namespace source)
{
    text = fl_bytes_trim(text);
    if (text.n == 0)
        return;
    request->cache_namespace = text;
    request->namespace_source = source;
}

/* What fl_json says about the text is, to the client, one thing. */
static int body_error(int rc)
{
    return rc == FL_EPROTO || rc == FL_EDEPTH || rc == FL_ETYPE ? FL_EBAD_BODY : rc;
}

void fl_openai_request_init(struct fl_openai_request *request)
{
    *request = (struct fl_openai_request){.rank = FL_OPENAI_RANK_UNSET,
                                          .prefill_rank = FL_OPENAI_RANK_UNSET};
}

int fl_openai_request_read(struct fl_openai_request *request, const struct fl_openai_path *path,
                           struct fl_bytes body, const struct fl_openai_options *options,
                           struct fl_arena *arena)
{
    struct fl_json_member m[BODY_COUNT] = {0};
    struct slots slots = {.names = body_names, .members = m};
    struct fl_bytes salt = {0}, nvext_salt = {0};

    int rc = fl_json_scan_members(body, collect, &slots);
    if (rc < 0)
        return body_error(rc);
    if (path->needs_model && !is_given(&m[BODY_MODEL]))
        return FL_EBAD_BODY;
    rc = read_string(&m[BODY_MODEL], arena, &request->model);
    if (rc == 0)
        rc = read_string(&m[BODY_CACHE_SALT], arena, &salt);
    if (rc == 0 && !options->ignore_nvext && is_given(&m[BODY_NVEXT]))
        rc = read_nvext(&m[BODY_NVEXT], request, options, arena, &nvext_salt);
    if (rc < 0)
        return body_error(rc);
    read_extras(m, request);
    set_namespace(request, salt, FL_OPENAI_NAMESPACE_BODY);
    set_namespace(request, nvext_salt, FL_OPENAI_NAMESPACE_NVEXT); /* before the top-level one */
    return 0;
}

double fl_openai_priority_jump_s(const struct fl_openai_request *request)
{
    double jump_s = 0;

    if (request->has_priority)
        jump_s = (double)request->priority;
    else if (request->has_latency_sensitivity)
        jump_s = request->latency_sensitivity;
    return jump_s > 0 ? jump_s : 0; /* nobody moves back in the queue */
}
