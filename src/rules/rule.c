/* SPDX-License-Identifier: Apache-2.0 */
#include "rules/rule.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "rules/check.h"
#include "rules/fields.h"

#define ANNOTATION_BYTES 256

/* ---- reading: step 1 of 4.5 ---- */

static const char *const no_path = "attr";

/* A member that must be an array or absent; *array is NULL when it is absent, null or empty. */
static int take_array(const struct fl_json_node *entry, const char *name,
                      const struct fl_json_node **array, struct fl_rest_answer *answer)
{
    const struct fl_json_node *node = fl_json_get_nocase(entry, fl_bytes_of(name));
    *array = NULL;
    if (node == NULL || node->type == FL_JSON_NULL)
        return 0;
    if (node->type != FL_JSON_ARRAY)
        return fl_rest_violation(answer, 601, "%s.%s in body must be of type array", no_path, name);
    if (node->count > 0)
        *array = node;
    return 0;
}

static int read_endpoints(struct fl_rule *rule, const struct fl_json_node *entry,
                          struct fl_rest_answer *answer)
{
    const struct fl_json_node *array;
    int status = take_array(entry, "endpoints", &array, answer);
    if (status != 0 || array == NULL)
        return status;
    rule->endpoint_count = array->count;
    if (array->count > FL_RULE_MAX_ENDPOINTS)
        return 0; /* refused in step 3; nothing of that size is read */
    rule->endpoints = fl_arena_calloc(&rule->arena, array->count, sizeof(*rule->endpoints));
    uint32_t i = 0;
    for (const struct fl_json_node *item = fl_json_first(array); item != NULL && status == 0;
         item = fl_json_next(array, item), i++) {
        char path[32];
        snprintf(path, sizeof(path), "%s.endpoints.%u", no_path, i);
        if (item->type != FL_JSON_OBJECT)
            return fl_rest_violation(answer, 601, "%s in body must be of type object", path);
        status = fl_fields_check_unknown(NULL, item, answer);
        if (status == 0)
            status = fl_fields_read(fl_rule_endpoint_fields, &rule->endpoints[i], item, path,
                                    &rule->arena, answer);
    }
    return status;
}

static int by_name(const void *a, const void *b)
{
    const struct fl_rule_pair *left = a;
    const struct fl_rule_pair *right = b;
    return fl_bytes_cmp(left->name, right->name);
}

static int read_annotations(struct fl_rule *rule, const struct fl_json_node *service,
                            struct fl_rest_answer *answer)
{
    const struct fl_json_node *node = fl_json_get_nocase(service, FL_BYTES("annotations"));
    static const char where[] = "attr.serviceArguments.annotations in body";
    if (node == NULL || node->type == FL_JSON_NULL)
        return 0;
    if (node->type != FL_JSON_OBJECT)
        return fl_rest_violation(answer, 601, "%s must be of type object", where);
    if (node->count > FL_RULE_MAX_ANNOTATIONS)
        return fl_rest_violation(answer, 608, "%s should have at most %d keys", where,
                                 FL_RULE_MAX_ANNOTATIONS);
    rule->annotations = fl_arena_calloc(&rule->arena, node->count, sizeof(*rule->annotations));
    for (const struct fl_json_node *item = fl_json_first(node); item != NULL;
         item = fl_json_next(node, item)) {
        if (item->type != FL_JSON_STRING)
            return fl_rest_violation(answer, 601, "%s must hold values of type string", where);
        if (item->text.n > ANNOTATION_BYTES || item->key.n > ANNOTATION_BYTES)
            return fl_rest_violation(answer, 603, "%s should hold at most %d chars each", where,
                                     ANNOTATION_BYTES);
        rule->annotations[rule->annotation_count++] = (struct fl_rule_pair){
            fl_arena_copy(&rule->arena, item->key), fl_arena_copy(&rule->arena, item->text)};
    }
    if (rule->annotation_count > 1)
        qsort(rule->annotations, rule->annotation_count, sizeof(*rule->annotations), by_name);
    return 0;
}

static bool read_cidr(struct fl_rule *rule, struct fl_bytes text, struct fl_rule_source *source)
{
    size_t slash = fl_bytes_index(text, '/');
    uint64_t bits;
    if (!fl_rule_ip_parse(fl_bytes_head(text, slash), &source->ip))
        return false;
    uint64_t most = source->ip.family == 4 ? 32 : 128;
    if (slash == text.n)
        bits = most;
    else if (!fl_bytes_to_u64(fl_bytes_skip(text, slash + 1), most, &bits))
        return false;
    source->bits = (uint8_t)bits;
    source->text = fl_arena_copy(&rule->arena, text);
    return true;
}

/* {"prefix": cidr} each. */
static int read_sources(struct fl_rule *rule, const struct fl_json_node *entry,
                        struct fl_rest_answer *answer)
{
    const struct fl_json_node *array;
    int status = take_array(entry, "allowedSources", &array, answer);
    if (status != 0 || array == NULL)
        return status;
    if (array->count > FL_RULE_MAX_SOURCES)
        return fl_rest_refuse(answer, 400, "allowedSources-args error: more than %d",
                              FL_RULE_MAX_SOURCES);
    rule->sources = fl_arena_calloc(&rule->arena, array->count, sizeof(*rule->sources));
    for (const struct fl_json_node *item = fl_json_first(array); item != NULL;
         item = fl_json_next(array, item)) {
        const struct fl_json_node *prefix = fl_json_get_nocase(item, FL_BYTES("prefix"));
        if (prefix == NULL || prefix->type != FL_JSON_STRING ||
            !read_cidr(rule, prefix->text, &rule->sources[rule->source_count]))
            return fl_rest_refuse(answer, 400, "allowedSources-args error");
        rule->source_count++;
    }
    return 0;
}

static int check_secondaries(const struct fl_json_node *entry, struct fl_rest_answer *answer)
{
    static const char *const names[] = {"secondaryIPs", "secondaryVIPs"};
    for (size_t i = 0; i < FL_ARRAY_LEN(names); i++) {
        const struct fl_json_node *array;
        int status = take_array(entry, names[i], &array, answer);
        if (status != 0)
            return status;
        if (array != NULL)
            return fl_rest_refuse(answer, 400, "secondaryIP-args error");
    }
    return 0;
}

static int read_rule(struct fl_rule *rule, const struct fl_json_node *entry,
                     struct fl_rest_answer *answer)
{
    static const char path[] = "attr.serviceArguments";
    if (entry == NULL || entry->type != FL_JSON_OBJECT)
        return fl_rest_violation(answer, 601, "attr in body must be of type object");
    const struct fl_json_node *service = fl_json_get_nocase(entry, FL_BYTES("serviceArguments"));
    if (service == NULL || service->type == FL_JSON_NULL)
        return fl_rest_violation(answer, 602, "%s in body is required", path);
    if (service->type != FL_JSON_OBJECT)
        return fl_rest_violation(answer, 601, "%s in body must be of type object", path);
    int status = fl_fields_check_unknown(NULL, entry, answer);
    if (status == 0)
        status = fl_fields_check_unknown(fl_rule_fields, service, answer);
    if (status == 0)
        status = fl_fields_read(fl_rule_fields, rule, service, path, &rule->arena, answer);
    if (status == 0)
        status = read_annotations(rule, service, answer);
    if (status == 0)
        status = read_endpoints(rule, entry, answer);
    if (status == 0)
        status = check_secondaries(entry, answer);
    if (status == 0)
        status = read_sources(rule, entry, answer);
    return status;
}

/* ---- what follows from a checked rule ---- */

struct fl_bytes fl_rule_bare_host(struct fl_bytes host)
{
    size_t end = host.n;
    if (end > 0 && host.p[0] == '[') {
        size_t close = fl_bytes_index(host, ']');
        end = close < host.n ? close + 1 : host.n;
    } else {
        end = fl_bytes_index(host, ':');
    }
    if (end > 0 && host.p[end - 1] == '.')
        end--;
    return fl_bytes_head(host, end);
}

static struct fl_bytes lower(struct fl_rule *rule, struct fl_bytes text)
{
    uint8_t *copy = fl_arena_alloc(&rule->arena, text.n + 1);
    for (size_t i = 0; i < text.n; i++)
        copy[i] = text.p[i] >= 'A' && text.p[i] <= 'Z' ? text.p[i] | 0x20 : text.p[i];
    return fl_bytes(copy, text.n);
}

/* The parts of the key with NUL between them, which none of them can hold... but strings from JSON
 * can; so each is preceded by its length. */
static void make_key(struct fl_rule *rule)
{
    struct fl_buf text = {0};
    const struct fl_bytes parts[] = {rule->external_ip, rule->match_host, rule->path_prefix,
                                     rule->model_name};
    int rc = fl_buf_printf(&text, "%u %u %u %u", (unsigned)rule->port, (unsigned)rule->protocol,
                           (unsigned)rule->block, (unsigned)rule->path_match_mode);
    for (size_t i = 0; i < FL_ARRAY_LEN(parts) && rc == 0; i++) {
        rc = fl_buf_printf(&text, " %zu:", parts[i].n);
        if (rc == 0)
            rc = fl_buf_append(&text, parts[i]);
    }
    assert(rc == 0); /* no cap, and small */
    rule->key = fl_arena_copy(&rule->arena, fl_buf_bytes(&text));
    fl_buf_fini(&text);
}

void fl_rule_set_endpoints(struct fl_rule *rule, struct fl_rule_endpoint *endpoints, uint32_t count)
{
    rule->endpoints = endpoints;
    rule->endpoint_count = count;
    rule->primaries = fl_arena_calloc(&rule->arena, count + 1, sizeof(uint32_t));
    rule->backups = fl_arena_calloc(&rule->arena, count + 1, sizeof(uint32_t));
    rule->primary_count = rule->backup_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (endpoints[i].weight == 0)
            continue;
        if (endpoints[i].backup)
            rule->backups[rule->backup_count++] = i;
        else
            rule->primaries[rule->primary_count++] = i;
    }
}

/* One endpoint per address: the first keeps its place, the last one's values win (4.4). */
static void merge_endpoints(struct fl_rule *rule)
{
    uint32_t given = rule->endpoint_count;
    rule->endpoint_count = 0;
    for (uint32_t i = 0; i < given; i++) {
        struct fl_rule_endpoint endpoint = rule->endpoints[i];
        uint32_t at = fl_rule_index_of(rule, &endpoint);
        rule->endpoints[at == UINT32_MAX ? rule->endpoint_count++ : at] = endpoint;
    }
    fl_rule_set_endpoints(rule, rule->endpoints, rule->endpoint_count);
}

struct fl_rule *fl_rule_new_from(const struct fl_json_node *entry, uint64_t now_unix_ms,
                                 struct fl_rest_answer *answer)
{
    struct fl_rule *rule = fl_calloc(1, sizeof(*rule));
    rule->refs = 1;
    rule->updated_unix_ms = now_unix_ms;
    int status = read_rule(rule, entry, answer);
    if (status == 0)
        status = fl_rule_check(rule, answer);
    if (status != 0) {
        fl_rule_unref(rule);
        return NULL;
    }
    rule->port_max = 0; /* equal to port by now, or absent: the same */
    rule->match_host = lower(rule, fl_rule_bare_host(rule->host));
    merge_endpoints(rule);
    make_key(rule);
    fl_rest_success(answer);
    return rule;
}

struct fl_rule *fl_rule_new(struct fl_bytes json, uint64_t now_unix_ms,
                            struct fl_rest_answer *answer)
{
    struct fl_json doc = {0};
    struct fl_error err = {0};
    struct fl_rule *rule = NULL;
    if (fl_json_parse(&doc, json, &err) < 0) {
        *answer = (struct fl_rest_answer){.status = 400, .code = 400};
        snprintf(answer->message, sizeof(answer->message),
                 "parsing attr body from \"\" failed, because %.200s", err.text);
    } else {
        rule = fl_rule_new_from(fl_json_root(&doc), now_unix_ms, answer);
    }
    fl_json_fini(&doc);
    return rule;
}

/* ---- rule files ---- */

/* Puts "entry 3: " in front of what the entry was refused for. */
static void name_entry(struct fl_rest_answer *answer, uint32_t i)
{
    char *text = answer->result[0] != 0 ? answer->result : answer->message;
    char copy[sizeof(answer->message)];
    snprintf(copy, sizeof(copy), "%s", text);
    snprintf(text, sizeof(answer->message), "entry %u: %.280s", i, copy);
}

static bool has_key(struct fl_rule *const *rules, uint32_t count, struct fl_bytes key)
{
    for (uint32_t i = 0; i < count; i++) {
        if (fl_bytes_eq(rules[i]->key, key))
            return true;
    }
    return false;
}

/* Appends the rule of one entry. */
static int add_entry(const struct fl_json_node *entry, uint64_t now_unix_ms, struct fl_rule **rules,
                     uint32_t *count, struct fl_rest_answer *answer)
{
    struct fl_rule *rule = fl_rule_new_from(entry, now_unix_ms, answer);
    if (rule == NULL)
        return answer->status;
    if (has_key(rules, *count, rule->key)) {
        fl_rule_unref(rule);
        return fl_rest_refuse(answer, 409, "the same rule stands twice");
    }
    rules[(*count)++] = rule;
    return 0;
}

int fl_rule_read_list(struct fl_bytes json, uint64_t now_unix_ms, struct fl_rule ***rules,
                      uint32_t *count, struct fl_rest_answer *answer)
{
    struct fl_json doc = {0};
    struct fl_error err = {0};
    *rules = NULL;
    *count = 0;
    if (fl_json_parse(&doc, json, &err) < 0) {
        fl_json_fini(&doc);
        return fl_rest_refuse(answer, 400, "%.200s", err.text);
    }
    const struct fl_json_node *root = fl_json_root(&doc);
    const struct fl_json_node *list = fl_json_get_nocase(root, FL_BYTES("lbAttr"));
    if (list == NULL)
        list = root;
    bool is_list = list->type == FL_JSON_ARRAY;
    struct fl_rule **read = fl_calloc(is_list ? list->count + 1 : 1, sizeof(void *));
    uint32_t n = 0;
    int status = 0;
    if (!is_list)
        status = add_entry(list, now_unix_ms, read, &n, answer);
    for (const struct fl_json_node *entry = is_list ? fl_json_first(list) : NULL;
         entry != NULL && status == 0; entry = fl_json_next(list, entry)) {
        status = add_entry(entry, now_unix_ms, read, &n, answer);
        if (status != 0)
            name_entry(answer, n);
    }
    fl_json_fini(&doc);
    if (status != 0) {
        while (n > 0)
            fl_rule_unref(read[--n]);
        fl_free(read);
        return status;
    }
    fl_rest_success(answer);
    *rules = read;
    *count = n;
    return 0;
}

void fl_rule_ref(struct fl_rule *rule)
{
    rule->refs++;
}

void fl_rule_unref(struct fl_rule *rule)
{
    if (rule == NULL || --rule->refs > 0)
        return;
    if (rule->live != NULL) {
        for (uint32_t i = 0; i < rule->endpoint_count; i++)
            fl_endpoint_live_unref(rule->endpoints[i].live);
        fl_rule_live_unref(rule->live);
    }
    fl_arena_fini(&rule->arena);
    fl_free(rule);
}

/* ---- comparing and copying ---- */

uint32_t fl_rule_index_of(const struct fl_rule *rule, const struct fl_rule_endpoint *endpoint)
{
    for (uint32_t i = 0; i < rule->endpoint_count; i++) {
        if (rule->endpoints[i].port == endpoint->port &&
            fl_rule_ip_eq(&rule->endpoints[i].ip, &endpoint->ip))
            return i;
    }
    return UINT32_MAX;
}

bool fl_rule_endpoint_eq(const struct fl_rule_endpoint *a, const struct fl_rule_endpoint *b)
{
    return fl_fields_eq(fl_rule_endpoint_fields, a, b);
}

static bool are_endpoints_eq(const struct fl_rule *a, const struct fl_rule *b)
{
    /* Addresses are unique in each list, so equal counts and all of `a` found in `b` suffice. */
    if (a->endpoint_count != b->endpoint_count)
        return false;
    for (uint32_t i = 0; i < a->endpoint_count; i++) {
        uint32_t at = fl_rule_index_of(b, &a->endpoints[i]);
        if (at == UINT32_MAX || !fl_rule_endpoint_eq(&a->endpoints[i], &b->endpoints[at]))
            return false;
    }
    return true;
}

bool fl_rule_eq(const struct fl_rule *a, const struct fl_rule *b)
{
    if (!fl_fields_eq(fl_rule_fields, a, b) || a->annotation_count != b->annotation_count ||
        a->source_count != b->source_count || (b->id.n > 0 && !fl_bytes_eq(a->id, b->id)))
        return false;
    for (uint32_t i = 0; i < a->annotation_count; i++) {
        if (!fl_bytes_eq(a->annotations[i].name, b->annotations[i].name) ||
            !fl_bytes_eq(a->annotations[i].value, b->annotations[i].value))
            return false;
    }
    for (uint32_t i = 0; i < a->source_count; i++) {
        if (!fl_bytes_eq(a->sources[i].text, b->sources[i].text))
            return false;
    }
    return are_endpoints_eq(a, b);
}

struct fl_rule_endpoint fl_rule_copy_endpoint(struct fl_rule *rule,
                                              const struct fl_rule_endpoint *endpoint)
{
    struct fl_rule_endpoint copy = *endpoint;
    struct fl_bytes *const texts[] = {
        &copy.address,  &copy.ip_text,        &copy.monitor_address, &copy.http_method,
        &copy.url_path, &copy.expected_codes, &copy.http_version,    &copy.domain,
        &copy.subnet,   &copy.role,
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(texts); i++)
        *texts[i] = fl_bytes(fl_arena_cstr(&rule->arena, *texts[i]), texts[i]->n);
    return copy;
}

struct fl_rule *fl_rule_copy(const struct fl_rule *rule, uint64_t now_unix_ms)
{
    /* Through its own output form: whatever a rule is made of, that form holds it (the snapshot
     * file depends on it too), so a member cannot be forgotten here. */
    struct fl_buf text = {0};
    struct fl_json_writer writer;
    struct fl_rest_answer answer;
    fl_json_writer_init(&writer, &text);
    fl_rule_write(&writer, rule, false);
    int rc = fl_json_writer_end(&writer);
    struct fl_rule *copy = rc < 0 ? NULL : fl_rule_new(fl_buf_bytes(&text), now_unix_ms, &answer);
    assert(copy != NULL); /* our own output */
    fl_buf_fini(&text);
    return copy;
}

/* ---- sources ---- */

static bool is_inside(const struct fl_rule_source *source, const struct fl_rule_ip *peer)
{
    size_t whole = source->bits / 8;
    unsigned rest = source->bits % 8;
    if (source->ip.family != peer->family || memcmp(source->ip.bytes, peer->bytes, whole) != 0)
        return false;
    unsigned mask = 0xffu << (8 - rest) & 0xffu;
    return rest == 0 || ((source->ip.bytes[whole] ^ peer->bytes[whole]) & mask) == 0;
}

bool fl_rule_allows(const struct fl_rule *rule, const struct fl_rule_ip *peer)
{
    for (uint32_t i = 0; i < rule->source_count; i++) {
        if (is_inside(&rule->sources[i], peer))
            return true;
    }
    return rule->source_count == 0;
}
