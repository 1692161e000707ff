/* SPDX-License-Identifier: Apache-2.0 */
#include "rules/fields.h"

#include <assert.h>

/* ---- the tables: gateway.md 4.4 and 9.10, in the order in which 4.7 writes them ---- */

#define INT_MAX_JSON UINT64_C(0x7fffffff) /* members without a bound of their own */
#define NAME_BYTES 255

static const char *const protocols[] = {"", "tcp", "udp", "sctp", "icmp", NULL};
static const char *const backend_protocols[] = {"http1", "http2", "both", NULL};
static const char *const path_matches[] = {"disabled", "prefix", "exact", NULL};
static const char *const probe_types[] = {"",     "tcp", "http", "https", "ping",
                                          "none", "udp", "sctp", NULL};
static const char *const response_bodies[] = {"edges", "all", "first", "none", NULL};
static const char *const pickers[] = {"", "embedded", NULL};
static const char *const tokenizers[] = {"vllm-render", "sglang-renderer", "trtllm-render", "none",
                                         NULL};
static const char *const failure_modes[] = {"FailClose", "FailOpen", NULL};

#define AT(member) .off = offsetof(struct fl_rule, member)
#define STRING(key, member, bytes) .name = key, .type = FL_FIELD_STRING, AT(member), .max = (bytes)
#define INT(key, member, low, high, value)                                                         \
    .name = key, .type = FL_FIELD_INT, AT(member), .min = (low), .max = (high), .def = (value)
#define BOOL(key, member) .name = key, .type = FL_FIELD_BOOL, AT(member)
#define WORD(key, member, list) .name = key, .type = FL_FIELD_WORD, AT(member), .words = list
#define EPP .group = FL_GROUP_EPP
#define PICKER .group = FL_GROUP_PICKER
#define ALWAYS .emit = FL_EMIT_ALWAYS
#define NOT_DEFAULT .emit = FL_EMIT_NOT_DEFAULT

const struct fl_rule_field fl_rule_fields[] = {
    {STRING("id", id, 64), ALWAYS, .is_opaque = true},
    {BOOL("adminStateUp", admin_state_up), ALWAYS, .def = true},
    {STRING("externalIP", external_ip, NAME_BYTES), ALWAYS},
    {INT("port", port, 0, 65535, 0), ALWAYS},
    {INT("portMax", port_max, 0, 65535, 0)},
    {WORD("protocol", protocol, protocols), ALWAYS},
    {INT("sel", sel, 0, 10, 0), ALWAYS},
    {INT("mode", mode, 0, 5, 0), ALWAYS},
    {INT("inactiveTimeOut", inactive_timeout_s, 0, INT_MAX_JSON, 0)},
    {STRING("name", name, NAME_BYTES)},
    {WORD("backend_protocol", backend_protocol, backend_protocols), ALWAYS},
    {STRING("host", host, NAME_BYTES)},
    {STRING("path_prefix", path_prefix, NAME_BYTES)},
    {WORD("path_match_mode", path_match_mode, path_matches)},
    {STRING("model_name", model_name, 127)},

    {STRING("eppEndpoint", epp_endpoint, 0), EPP, ALWAYS},
    {STRING("eppFailureMode", epp_failure_text, 0), EPP, ALWAYS},
    {INT("eppTimeoutMs", epp_timeout_ms, 0, INT_MAX_JSON, 3000), EPP, ALWAYS},
    {BOOL("eppPlaintext", epp_plaintext), EPP},
    {WORD("eppResponseBody", epp_response_body, response_bodies), EPP, NOT_DEFAULT},
    {STRING("eppCaFile", epp_ca_file, 0), EPP},
    {STRING("eppServerName", epp_server_name, 0), EPP},

    {WORD("picker", picker, pickers), PICKER, ALWAYS},
    {STRING("pickerModel", picker_model, 253), PICKER, ALWAYS},
    {WORD("pickerTokenizerProtocol", picker_tokenizer_protocol, tokenizers), PICKER, ALWAYS},
    {STRING("pickerTokenizerUrl", picker_tokenizer_url, 2048), PICKER, ALWAYS},
    {INT("pickerTokenizerTimeoutMs", picker_tokenizer_timeout_ms, 1, 600000, 2000), PICKER,
     NOT_DEFAULT},
    {INT("pickerBlockSize", picker_block_size, 1, 65536, 0), PICKER, ALWAYS},
    {INT("pickerKvEventPort", picker_kv_event_port, 0, 65535, 5557), PICKER, ALWAYS,
     .zero_counts = true},
    {INT("pickerKvReplayPort", picker_kv_replay_port, 0, 65535, 0), PICKER},
    {INT("pickerMaxNumBatchedTokens", picker_max_batched_tokens, 0, INT_MAX_JSON, 0), PICKER},
    {STRING("pickerPolicy", picker_policy, NAME_BYTES), PICKER},
    {WORD("pickerFailureMode", picker_failure_mode, failure_modes), PICKER, ALWAYS},
    {INT("pickerTimeoutMs", picker_timeout_ms, 0, 600000, 3000), PICKER, ALWAYS},

    {INT("security", security, 0, 2, 0)},
    {BOOL("monitor", monitor)},
    {WORD("probetype", probe_type, probe_types)},
    {INT("probeport", probe_port, 0, 65535, 0)},
    {STRING("probereq", probe_request, NAME_BYTES)},
    {STRING("proberesp", probe_response, NAME_BYTES)},
    {INT("probeTimeout", probe_timeout_s, 1, 86400, 60), NOT_DEFAULT},
    {INT("probeRetries", probe_retries, 1, 100, 2), NOT_DEFAULT},
    {INT("timeoutMemberConnect", connect_timeout_ms, 0, INT_MAX_JSON, 500), NOT_DEFAULT},
    {INT("timeoutMemberData", data_timeout_ms, 0, INT_MAX_JSON, 0)},
    {INT("timeoutTcpInspect", inspect_timeout_ms, 0, INT_MAX_JSON, 10000), NOT_DEFAULT},
    {BOOL("sse_mode", sse_mode)},
    {INT("max_stream_duration_sec", max_stream_s, 0, INT_MAX_JSON, 86400), NOT_DEFAULT},
    {INT("backend_keepalive_interval_sec", keepalive_s, 0, 32767, 0)},
    {BOOL("cb_enable", cb_enable)},
    {INT("connectionLimit", connection_limit, 0, INT_MAX_JSON, 0)},
    {STRING("session_header_name", session_header, NAME_BYTES)},
    {INT("chwbl_prefix_hash_level", chwbl_level, 1, 3, 1), NOT_DEFAULT},
    {INT("chwbl_prefix_hash_flags", chwbl_flags, 0, 255, 0)},
    {INT("chwbl_mean_load_factor", chwbl_load_factor, 100, 300, 125), NOT_DEFAULT},
    {INT("chwbl_replication", chwbl_replication, 1, 1024, 100), NOT_DEFAULT},
    {BOOL("chwbl_enable_cache_salt", chwbl_cache_salt)},
    {INT("oper", oper, 0, 2, 0), .emit = FL_EMIT_NEVER, .is_opaque = true},
    {BOOL("pd_disagg_mode", pd_disagg)},
    {INT("kvExactMode", kv_exact_mode, 0, INT_MAX_JSON, 0)},
    {BOOL("managed", managed)},
    {STRING("projectId", project_id, NAME_BYTES)},
    {.name = "trace_type", .type = FL_FIELD_RAW, AT(trace_type)},
    {STRING("privateIP", private_ip, NAME_BYTES)},
    {INT("block", block, 0, 65535, 0)},
    {BOOL("bgp", bgp)},
    {BOOL("snat", snat)},
    {BOOL("egress", egress)},
    {BOOL("proxyprotocolv2", proxy_protocol)},
    {.name = NULL},
};

#undef AT
#define AT(member) .off = offsetof(struct fl_rule_endpoint, member)

const struct fl_rule_field fl_rule_endpoint_fields[] = {
    {STRING("endpointIP", ip_text, NAME_BYTES), ALWAYS, .required = true},
    {INT("targetPort", port, 1, 65535, 0), ALWAYS, .required = true},
    {INT("weight", weight, 0, 255, 0), ALWAYS, .required = true},
    {BOOL("backup", backup), ALWAYS},
    {STRING("monitorAddress", monitor_address, NAME_BYTES)},
    {STRING("httpMethod", http_method, 16)},
    {STRING("urlPath", url_path, NAME_BYTES)},
    {STRING("expectedCodes", expected_codes, NAME_BYTES)},
    {STRING("httpVersion", http_version, 16)},
    {STRING("domainName", domain, NAME_BYTES)},
    {STRING("subnetId", subnet, NAME_BYTES)},
    {STRING("ep_role", role, NAME_BYTES)},
    {INT("nixl_port", nixl_port, 0, 65535, 0)},
    {.name = NULL},
};

/* ---- places ---- */

static struct fl_bytes *bytes_at(void *base, const struct fl_rule_field *row)
{
    return (struct fl_bytes *)(void *)((char *)base + row->off);
}

static uint64_t *number_at(void *base, const struct fl_rule_field *row)
{
    return (uint64_t *)(void *)((char *)base + row->off);
}

static bool *bool_at(void *base, const struct fl_rule_field *row)
{
    return (bool *)(void *)((char *)base + row->off);
}

static bool is_text(const struct fl_rule_field *row)
{
    return row->type == FL_FIELD_STRING || row->type == FL_FIELD_RAW;
}

/* The value of a row that is no text. */
static uint64_t value_of(const void *base, const struct fl_rule_field *row)
{
    const char *at = (const char *)base + row->off;
    return row->type == FL_FIELD_BOOL ? *(const bool *)(const void *)at
                                      : *(const uint64_t *)(const void *)at;
}

static struct fl_bytes text_of(const void *base, const struct fl_rule_field *row)
{
    return *(const struct fl_bytes *)(const void *)((const char *)base + row->off);
}

static void set_default(void *base, const struct fl_rule_field *row)
{
    if (is_text(row))
        *bytes_at(base, row) = FL_BYTES("");
    else if (row->type == FL_FIELD_BOOL)
        *bool_at(base, row) = row->def != 0;
    else
        *number_at(base, row) = row->def;
}

static bool is_default(const void *base, const struct fl_rule_field *row)
{
    return is_text(row) ? text_of(base, row).n == 0 : value_of(base, row) == row->def;
}

/* ---- reading ---- */

struct place {
    const struct fl_rule_field *row;
    const char *path;
    struct fl_arena *arena;
    struct fl_rest_answer *answer;
};

static const char *type_name(const struct fl_json_node *node)
{
    static const char *const names[] = {
        [FL_JSON_NULL] = "null",     [FL_JSON_FALSE] = "boolean", [FL_JSON_TRUE] = "boolean",
        [FL_JSON_NUMBER] = "number", [FL_JSON_STRING] = "string", [FL_JSON_ARRAY] = "array",
        [FL_JSON_OBJECT] = "object",
    };
    return names[node->type];
}

static int wrong_type(const struct place *place, const char *wanted,
                      const struct fl_json_node *node)
{
    return fl_rest_violation(place->answer, 601, "%s.%s in body must be of type %s: \"%s\"",
                             place->path, place->row->name, wanted, type_name(node));
}

static int out_of_bounds(const struct place *place, bool is_above)
{
    unsigned long long bound = is_above ? place->row->max : place->row->min;
    return fl_rest_violation(place->answer, is_above ? 608 : 609,
                             "%s.%s in body should be %s than or equal to %llu", place->path,
                             place->row->name, is_above ? "less" : "greater", bound);
}

static int read_string(const struct place *place, const struct fl_json_node *node,
                       struct fl_bytes *value)
{
    if (node->type != FL_JSON_STRING)
        return wrong_type(place, "string", node);
    if (place->row->max > 0 && node->text.n > place->row->max)
        return fl_rest_violation(place->answer, 603,
                                 "%s.%s in body should be at most %llu chars long", place->path,
                                 place->row->name, (unsigned long long)place->row->max);
    char *copy = fl_arena_cstr(place->arena, node->text);
    *value = fl_bytes(copy, node->text.n);
    return 0;
}

static int read_int(const struct place *place, const struct fl_json_node *node, uint64_t *value)
{
    const struct fl_rule_field *row = place->row;
    int64_t number;
    if (node->type != FL_JSON_NUMBER)
        return wrong_type(place, "integer", node);
    if (!fl_json_to_i64(node, &number)) {
        /* An integer beyond 64 bits is out of bounds; anything else has a point or an exponent. */
        size_t digits = node->text.p[0] == '-' ? 1 : 0;
        while (digits < node->text.n && node->text.p[digits] >= '0' && node->text.p[digits] <= '9')
            digits++;
        if (digits < node->text.n)
            return wrong_type(place, "integer", node);
        return out_of_bounds(place, node->text.p[0] != '-');
    }
    if (number == 0 && row->def != 0 && !row->zero_counts) {
        *value = row->def; /* Go clients send the zero value for "not set" */
        return 0;
    }
    if (number == 0 && row->def == 0 && !row->required) {
        *value = 0; /* likewise, where not set has no value within the bounds */
        return 0;
    }
    if (number < 0 || (uint64_t)number < row->min)
        return out_of_bounds(place, false);
    if ((uint64_t)number > row->max)
        return out_of_bounds(place, true);
    *value = (uint64_t)number;
    return 0;
}

static int read_word(const struct place *place, const struct fl_json_node *node, uint64_t *value)
{
    const struct fl_rule_field *row = place->row;
    char list[128];
    size_t n = 0;
    if (node->type != FL_JSON_STRING)
        return wrong_type(place, "string", node);
    if (node->text.n == 0)
        return 0; /* kube-loxilb: empty is absent */
    list[0] = 0;
    for (uint64_t i = 0; row->words[i] != NULL; i++) {
        struct fl_bytes word = fl_bytes_of(row->words[i]);
        if (fl_bytes_eq(node->text, word)) {
            *value = i;
            return 0;
        }
        if (word.n == 0 || n + word.n + 2 > sizeof(list))
            continue;
        if (n > 0)
            list[n++] = ' ';
        memcpy(list + n, word.p, word.n);
        n += word.n;
        list[n] = 0;
    }
    return fl_rest_violation(place->answer, 606, "%s.%s in body should be one of [%s]", place->path,
                             row->name, list);
}

static int read_bool(const struct place *place, const struct fl_json_node *node, bool *value)
{
    if (node->type != FL_JSON_TRUE && node->type != FL_JSON_FALSE)
        return wrong_type(place, "boolean", node);
    *value = node->type == FL_JSON_TRUE;
    return 0;
}

static int read_raw(const struct place *place, const struct fl_json_node *node,
                    struct fl_bytes *value)
{
    if (node->type == FL_JSON_ARRAY || node->type == FL_JSON_OBJECT)
        return wrong_type(place, "string", node);
    if (node->type == FL_JSON_STRING) {
        struct fl_buf quoted = {0};
        struct fl_json_writer writer;
        fl_json_writer_init(&writer, &quoted);
        fl_json_write_string(&writer, node->text);
        int rc = fl_json_writer_end(&writer);
        *value = fl_arena_copy(place->arena, fl_buf_bytes(&quoted));
        fl_buf_fini(&quoted);
        return rc < 0 ? fl_rest_refuse(place->answer, 500, "out of memory") : 0;
    }
    *value = node->type == FL_JSON_NUMBER ? fl_arena_copy(place->arena, node->text)
             : node->type == FL_JSON_TRUE ? FL_BYTES("true")
                                          : FL_BYTES("false");
    return 0;
}

static int read_value(const struct place *place, void *base, const struct fl_json_node *node)
{
    const struct fl_rule_field *row = place->row;
    switch ((enum fl_field_type)row->type) {
    case FL_FIELD_STRING:
        return read_string(place, node, bytes_at(base, row));
    case FL_FIELD_INT:
        return read_int(place, node, number_at(base, row));
    case FL_FIELD_BOOL:
        return read_bool(place, node, bool_at(base, row));
    case FL_FIELD_WORD:
        return read_word(place, node, number_at(base, row));
    case FL_FIELD_RAW:
        return read_raw(place, node, bytes_at(base, row));
    }
    assert(row->type <= FL_FIELD_RAW);
    return 0;
}

int fl_fields_read(const struct fl_rule_field *rows, void *base, const struct fl_json_node *object,
                   const char *path, struct fl_arena *arena, struct fl_rest_answer *answer)
{
    for (const struct fl_rule_field *row = rows; row->name != NULL; row++) {
        struct place place = {row, path, arena, answer};
        const struct fl_json_node *node = fl_json_get_nocase(object, fl_bytes_of(row->name));
        set_default(base, row);
        if (node == NULL || node->type == FL_JSON_NULL) {
            if (row->required)
                return fl_rest_violation(answer, 602, "%s.%s in body is required", path, row->name);
            continue;
        }
        int status = read_value(&place, base, node);
        if (status != 0)
            return status;
    }
    return 0;
}

/* "EPP_Endpoint" -> starts with "epp". */
static bool is_of_family(struct fl_bytes key, const char *family)
{
    for (size_t i = 0; i < key.n && *family != 0; i++) {
        if (key.p[i] == '_' || key.p[i] == '-')
            continue;
        if ((key.p[i] | 0x20) != (uint8_t)*family)
            return false;
        family++;
    }
    return *family == 0;
}

int fl_fields_check_unknown(const struct fl_rule_field *rows, const struct fl_json_node *object,
                            struct fl_rest_answer *answer)
{
    for (const struct fl_json_node *member = fl_json_first(object); member != NULL;
         member = fl_json_next(object, member)) {
        if (!is_of_family(member->key, "epp") && !is_of_family(member->key, "picker"))
            continue;
        const struct fl_rule_field *row = rows;
        while (row != NULL && row->name != NULL &&
               !fl_bytes_eq_nocase(member->key, fl_bytes_of(row->name)))
            row++;
        if (row == NULL || row->name == NULL)
            return fl_rest_refuse(answer, 400, "unknown field %.*s",
                                  FL_FMT(fl_bytes_head(member->key, 128)));
    }
    return 0;
}

/* ---- the other uses of a row ---- */

void fl_fields_reset(const struct fl_rule_field *rows, void *base, enum fl_field_group group)
{
    for (const struct fl_rule_field *row = rows; row->name != NULL; row++) {
        if (row->group == group)
            set_default(base, row);
    }
}

const struct fl_rule_field *fl_fields_first_set(const struct fl_rule_field *rows, const void *base,
                                                enum fl_field_group group)
{
    for (const struct fl_rule_field *row = rows; row->name != NULL; row++) {
        if (row->group == group && !is_default(base, row))
            return row;
    }
    return NULL;
}

bool fl_fields_eq(const struct fl_rule_field *rows, const void *a, const void *b)
{
    for (const struct fl_rule_field *row = rows; row->name != NULL; row++) {
        if (row->is_opaque)
            continue;
        bool is_same = is_text(row) ? fl_bytes_eq(text_of(a, row), text_of(b, row))
                                    : value_of(a, row) == value_of(b, row);
        if (!is_same)
            return false;
    }
    return true;
}

static bool is_emitted(const struct fl_rule_field *row, const void *base)
{
    switch ((enum fl_field_emit)row->emit) {
    case FL_EMIT_ALWAYS:
        return true;
    case FL_EMIT_NEVER:
        return false;
    case FL_EMIT_NOT_DEFAULT:
        return !is_default(base, row);
    case FL_EMIT_NOT_ZERO:
        return is_text(row) ? text_of(base, row).n > 0 : value_of(base, row) != 0;
    }
    return false;
}

void fl_fields_write(const struct fl_rule_field *rows, const void *base, enum fl_field_group group,
                     struct fl_json_writer *writer)
{
    for (const struct fl_rule_field *row = rows; row->name != NULL; row++) {
        if (row->group != group || !is_emitted(row, base))
            continue;
        fl_json_write_key(writer, row->name);
        switch ((enum fl_field_type)row->type) {
        case FL_FIELD_STRING:
            fl_json_write_string(writer, text_of(base, row));
            break;
        case FL_FIELD_INT:
            fl_json_write_u64(writer, value_of(base, row));
            break;
        case FL_FIELD_BOOL:
            fl_json_write_bool(writer, value_of(base, row) != 0);
            break;
        case FL_FIELD_WORD:
            fl_json_write_cstr(writer, row->words[value_of(base, row)]);
            break;
        case FL_FIELD_RAW:
            fl_json_write_raw(writer, text_of(base, row));
            break;
        }
    }
}
