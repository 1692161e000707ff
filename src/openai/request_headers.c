/* SPDX-License-Identifier: Apache-2.0 */
/* Header fields: overrides, session, metadata, and what body and headers say together. */
#include "base/error.h"
#include "openai/number.h"
#include "openai/request.h"

enum header {
    HEADER_WORKER,
    HEADER_PREFILL_WORKER,
    HEADER_RANK,
    HEADER_PREFILL_RANK,
    HEADER_PRIORITY,
    HEADER_STRICT_PRIORITY,
    HEADER_TENANT,
    HEADER_SESSION,
    HEADER_PARENT_SESSION,
    HEADER_SESSION_FINAL,
    HEADER_RETRY,
    HEADER_ENVOY_ATTEMPT,
    HEADER_COUNT
};

/* epp.md 7.4, 7.5, 7.7. Of several names for one thing the upper one wins, wherever it stands. */
static const struct {
    const char *name;
    enum header header;
} rows[] = {
    {"x-dynamo-worker-instance-id", HEADER_WORKER},
    {"x-worker-instance-id", HEADER_WORKER},
    {"x-dynamo-prefill-instance-id", HEADER_PREFILL_WORKER},
    {"x-prefill-instance-id", HEADER_PREFILL_WORKER},
    {"x-dynamo-dp-rank", HEADER_RANK},
    {"x-dp-rank", HEADER_RANK},
    {"x-data-parallel-rank", HEADER_RANK},
    {"x-dynamo-prefill-dp-rank", HEADER_PREFILL_RANK},
    {"x-prefill-dp-rank", HEADER_PREFILL_RANK},
    {"x-dynamo-request-priority", HEADER_PRIORITY},
    {"x-dynamo-request-strict-priority", HEADER_STRICT_PRIORITY},
    {"x-tenant-id", HEADER_TENANT},
    {"x-dynamo-session-affinity-id", HEADER_SESSION},
    {"x-dynamo-session-id", HEADER_SESSION},
    {"x-session-id", HEADER_SESSION},
    {"x-claude-code-session-id", HEADER_SESSION},
    {"thread-id", HEADER_SESSION},
    {"x-dynamo-parent-session-id", HEADER_PARENT_SESSION},
    {"x-dynamo-session-final", HEADER_SESSION_FINAL},
    {"x-dynamo-retry-attempt", HEADER_RETRY},
    {"x-envoy-attempt-count", HEADER_ENVOY_ATTEMPT},
};

struct heard {
    struct fl_bytes value; /* trimmed; absent: none, or only empty ones */
    size_t row;
};

/* Keeps the value if its name goes before what was heard. An empty value says nothing. */
static void hear(struct heard heard[HEADER_COUNT], size_t row, struct fl_bytes value)
{
    struct heard *slot = &heard[rows[row].header];

    value = fl_bytes_trim(value);
    if (value.n == 0)
        return;
    /* Repeated lines: the first counts, of the tenant the last. */
    bool is_last_wins = rows[row].header == HEADER_TENANT;
    if (slot->value.p == NULL || row < slot->row || (row == slot->row && is_last_wins))
        *slot = (struct heard){value, row};
}

static void hear_all(struct heard heard[HEADER_COUNT], const struct fl_fields *fields)
{
    for (uint32_t i = 0; i < fields->count; i++) {
        const struct fl_field *field = &fields->items[i];
        for (size_t row = 0; row < FL_ARRAY_LEN(rows); row++) {
            if (fl_bytes_eq_nocase(field->name, fl_bytes_of(rows[row].name))) {
                hear(heard, row, field->value);
                break;
            }
        }
    }
}

static void take_u64(const struct heard *heard, bool *has, uint64_t *value)
{
    uint64_t n;

    if (fl_bytes_to_u64(heard->value, UINT64_MAX, &n)) {
        *has = true;
        *value = n;
    }
}

static void take_u32(const struct heard *heard, uint32_t *value)
{
    uint64_t n;

    if (fl_bytes_to_u64(heard->value, UINT32_MAX, &n))
        *value = (uint32_t)n;
}

static void take_priority(const struct heard *heard, struct fl_openai_request *request)
{
    if (fl_openai_to_i32(heard->value, &request->priority))
        request->has_priority = true;
}

static void take_retry(const struct heard heard[HEADER_COUNT], struct fl_openai_request *request)
{
    uint64_t n;

    if (fl_bytes_to_u64(heard[HEADER_RETRY].value, UINT32_MAX, &n))
        request->retry_attempt = (uint32_t)n;
    else if (fl_bytes_to_u64(heard[HEADER_ENVOY_ATTEMPT].value, UINT32_MAX, &n) && n > 1)
        request->retry_attempt = (uint32_t)(n - 1);
}

/* ---- metadata (epp.md 7.5) ---- */

static bool has_metadata(const struct fl_openai_request *request, struct fl_bytes key)
{
    for (uint32_t i = 0; i < request->metadata_count; i++) {
        if (fl_bytes_eq_nocase(request->metadata[i].key, key))
            return true;
    }
    return false;
}

static bool is_credential(struct fl_bytes key, struct fl_bytes value)
{
    return fl_bytes_eq_nocase(key, FL_BYTES("authorization")) ||
           (value.n >= 7 && fl_bytes_eq_nocase(fl_bytes_head(value, 7), FL_BYTES("bearer ")));
}

/* The key of a metadata field, or absent. */
static struct fl_bytes metadata_key(struct fl_bytes name, struct fl_bytes prefix)
{
    if (name.n <= prefix.n || !fl_bytes_eq_nocase(fl_bytes_head(name, prefix.n), prefix))
        return (struct fl_bytes){0};
    return fl_bytes_skip(name, prefix.n);
}

static int read_metadata(struct fl_openai_request *request, const struct fl_fields *fields,
                         struct fl_bytes prefix, struct fl_arena *arena)
{
    size_t bytes = 0;

    for (uint32_t i = 0; i < fields->count; i++) {
        struct fl_bytes key = metadata_key(fields->items[i].name, prefix);
        struct fl_bytes value = fl_bytes_trim(fields->items[i].value);
        if (key.p == NULL || is_credential(key, value) || has_metadata(request, key))
            continue;
        bytes += key.n + value.n;
        if (request->metadata_count == FL_OPENAI_METADATA_MAX_ENTRIES ||
            bytes > FL_OPENAI_METADATA_MAX_BYTES)
            return FL_EMETADATA_LARGE;
        if (request->metadata == NULL)
            request->metadata =
                fl_arena_calloc(arena, FL_OPENAI_METADATA_MAX_ENTRIES, sizeof(*request->metadata));
        request->metadata[request->metadata_count++] = (struct fl_openai_metadata){key, value};
        if (fl_bytes_eq_nocase(key, FL_BYTES("policy-class")))
            request->policy_class = value;
    }
    return 0;
}

/* epp.md 7.3: a rank means nothing without its worker, a prefill pin nothing without that role. */
static int check_pins(const struct fl_openai_request *request,
                      const struct fl_openai_options *options)
{
    bool has_prefill_rank = request->prefill_rank != FL_OPENAI_RANK_UNSET;

    if (request->rank != FL_OPENAI_RANK_UNSET && !request->has_worker)
        return FL_EBAD_HINT;
    if (has_prefill_rank && !request->has_prefill_worker)
        return FL_EBAD_HINT;
    if ((has_prefill_rank || request->has_prefill_worker) && !options->is_disaggregated)
        return FL_EBAD_HINT;
    return 0;
}

int fl_openai_request_override(struct fl_openai_request *request, const struct fl_fields *fields,
                               const struct fl_openai_options *options, struct fl_arena *arena)
{
    struct heard heard[HEADER_COUNT] = {0};

    hear_all(heard, fields);
    take_u64(&heard[HEADER_WORKER], &request->has_worker, &request->worker_id);
    take_u64(&heard[HEADER_PREFILL_WORKER], &request->has_prefill_worker,
             &request->prefill_worker_id);
    take_u32(&heard[HEADER_RANK], &request->rank);
    take_u32(&heard[HEADER_PREFILL_RANK], &request->prefill_rank);
    take_priority(&heard[HEADER_PRIORITY], request);
    take_u32(&heard[HEADER_STRICT_PRIORITY], &request->strict_priority);
    if (heard[HEADER_TENANT].value.p != NULL) {
        request->cache_namespace = heard[HEADER_TENANT].value;
        request->namespace_source = FL_OPENAI_NAMESPACE_HEADER;
    }
    request->session_id = heard[HEADER_SESSION].value;
    request->parent_session_id = heard[HEADER_PARENT_SESSION].value;
    struct fl_bytes final = heard[HEADER_SESSION_FINAL].value;
    request->is_session_final =
        fl_bytes_eq(final, FL_BYTES("1")) || fl_bytes_eq_nocase(final, FL_BYTES("true"));
    take_retry(heard, request);

    struct fl_bytes prefix = options->metadata_prefix;
    if (fl_bytes_is_absent(prefix))
        prefix = FL_BYTES("x-dynamo-meta-");
    int rc = read_metadata(request, fields, prefix, arena);
    return rc < 0 ? rc : check_pins(request, options);
}
