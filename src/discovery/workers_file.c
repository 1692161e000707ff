/* SPDX-License-Identifier: Apache-2.0 */
#include "discovery/workers_file.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "codec/json.h"
#include "codec/yaml.h"
#include "discovery/worker_id.h"

#define NAME_MAX_BYTES 253 /* a DNS subdomain, as pod names are */

struct reader {
    struct fl_worker_set *set;
    const char *file_name;
    const struct fl_workers_defaults *defaults;
    const struct fl_json_node *file_defaults; /* NULL: none */
    const struct fl_json_node *entry;
    uint32_t index;
    void (*complain)(void *owner, bool is_bad, const char *sentence);
    void *owner;
    struct fl_map_bytes names, endpoints; /* of the entries taken so far */
    struct fl_map_u64 ids;
    uint32_t block_size; /* of the first worker of the set */
};

static const char *const members[] = {
    "name",
    "namespace",
    "endpoint",
    "host",
    "address",
    "port",
    "ports",
    "model",
    "model_name",
    "lora_names",
    "role",
    "backend",
    "kv_events_endpoint",
    "kv_events_endpoints",
    "replay_endpoint",
    "block_size",
    "data_parallel_size",
    "data_parallel_start_rank",
    "max_num_batched_tokens",
    "total_kv_blocks",
    "is_eagle",
    "labels",
    "taints",
    "topology_domains",
    "ready",
    "instance",
};

/* Members that belong to one worker: never taken from `defaults`. */
static bool is_own(const char *key)
{
    static const char *const own[] = {"name",  "host",     "address", "port",
                                      "ports", "endpoint", "instance"};
    for (size_t i = 0; i < FL_ARRAY_LEN(own); i++) {
        if (strcmp(own[i], key) == 0)
            return true;
    }
    return false;
}

static const struct fl_json_node *member(const struct reader *reader, const char *key)
{
    const struct fl_json_node *node = fl_json_get(reader->entry, fl_bytes_of(key));
    if (node == NULL && reader->file_defaults != NULL && !is_own(key))
        node = fl_json_get(reader->file_defaults, fl_bytes_of(key));
    return node == NULL || node->type == FL_JSON_NULL ? NULL : node;
}

/* 0 and *value absent when the member is not there. */
static int read_string(const struct reader *reader, const char *key, size_t max_bytes,
                       struct fl_bytes *value, struct fl_error *err)
{
    const struct fl_json_node *node = member(reader, key);
    *value = (struct fl_bytes){0};
    if (node == NULL)
        return 0;
    if (node->type != FL_JSON_STRING || node->text.n == 0 || node->text.n > max_bytes ||
        memchr(node->text.p, 0, node->text.n) != NULL)
        return fl_error_set(err, FL_ECONFIG, "%s is no text of 1 to %zu bytes", key, max_bytes);
    *value = fl_arena_copy(&reader->set->arena, node->text);
    return 0;
}

static int read_u64(const struct reader *reader, const char *key, uint64_t min, uint64_t max,
                    uint64_t otherwise, uint64_t *value, struct fl_error *err)
{
    const struct fl_json_node *node = member(reader, key);
    *value = otherwise;
    if (node == NULL)
        return 0;
    bool is_number = node->type == FL_JSON_STRING ? fl_bytes_to_u64(node->text, UINT64_MAX, value)
                                                  : fl_json_to_u64(node, value);
    if (!is_number || *value < min || *value > max)
        return fl_error_set(err, FL_ECONFIG, "%s %.*s is not %llu..%llu", key, FL_FMT(node->text),
                            (unsigned long long)min, (unsigned long long)max);
    return 0;
}

static int read_bool(const struct reader *reader, const char *key, bool otherwise, bool *value,
                     struct fl_error *err)
{
    const struct fl_json_node *node = member(reader, key);
    *value = otherwise;
    if (node == NULL)
        return 0;
    if (node->type != FL_JSON_TRUE && node->type != FL_JSON_FALSE)
        return fl_error_set(err, FL_ECONFIG, "%s is neither true nor false", key);
    *value = node->type == FL_JSON_TRUE;
    return 0;
}

static int read_list(const struct reader *reader, const char *key, struct fl_bytes **items,
                     uint32_t *count, struct fl_error *err)
{
    const struct fl_json_node *node = member(reader, key);
    *count = 0;
    if (node == NULL)
        return 0;
    if (node->type != FL_JSON_ARRAY)
        return fl_error_set(err, FL_ECONFIG, "%s is no list", key);
    *items = fl_arena_calloc(&reader->set->arena, node->count + 1, sizeof(**items));
    for (const struct fl_json_node *item = fl_json_first(node); item != NULL;
         item = fl_json_next(node, item)) {
        if (item->type != FL_JSON_STRING || item->text.n == 0)
            return fl_error_set(err, FL_ECONFIG, "%s holds something that is no text", key);
        (*items)[(*count)++] = fl_arena_copy(&reader->set->arena, item->text);
    }
    return 0;
}

static int read_word(const struct reader *reader, const char *key, const char *const *words,
                     int otherwise, int *value, bool *is_there, struct fl_error *err)
{
    const struct fl_json_node *node = member(reader, key);
    *value = otherwise;
    *is_there = node != NULL;
    if (node == NULL)
        return 0;
    for (int i = 0; node->type == FL_JSON_STRING && words[i] != NULL; i++) {
        if (fl_bytes_eq_nocase(fl_bytes_trim(node->text), fl_bytes_of(words[i]))) {
            *value = i;
            return 0;
        }
    }
    return fl_error_set(err, FL_ECONFIG, "%s %.*s is not known", key, FL_FMT(node->text));
}

/* `endpoint`, or `host` (alias `address`) and `port` or a list of one `ports`. */
static int read_address(const struct reader *reader, struct fl_worker_spec *spec,
                        struct fl_error *err)
{
    struct fl_bytes endpoint = {0}, host = {0}, alias = {0};
    uint64_t port = 0;
    const struct fl_json_node *ports = member(reader, "ports");
    char text[FL_ADDR_TEXT + 16];

    int rc = read_string(reader, "endpoint", 128, &endpoint, err);
    if (rc == 0)
        rc = read_string(reader, "host", 64, &host, err);
    if (rc == 0)
        rc = read_string(reader, "address", 64, &alias, err);
    if (rc == 0)
        rc = read_u64(reader, "port", 1, 65535, 0, &port, err);
    if (rc < 0)
        return rc;
    if (host.n == 0)
        host = alias;
    if (ports != NULL) {
        if (ports->type != FL_JSON_ARRAY || ports->count == 0 || port != 0)
            return fl_error_set(err, FL_ECONFIG, "ports is no list beside which port is absent");
        if (ports->count > 1)
            return fl_error_set(err, FL_ECONFIG,
                                "ports has %u entries: ranks above 0 cannot be addressed yet; "
                                "name one port, or run one endpoint per rank",
                                ports->count);
        if (!fl_json_to_u64(fl_json_first(ports), &port) || port == 0 || port > 65535)
            return fl_error_set(err, FL_ECONFIG, "ports: not 1..65535");
    }
    if (endpoint.n > 0) {
        if (host.n > 0 || port != 0)
            return fl_error_set(err, FL_ECONFIG, "endpoint excludes host and port");
        if (fl_bytes_has_prefix(endpoint, FL_BYTES("http://")))
            endpoint = fl_bytes_skip(endpoint, 7);
        if (endpoint.n > 0 && endpoint.p[endpoint.n - 1] == '/')
            endpoint.n--;
        rc = fl_addr_parse(endpoint, false, &spec->addr, err);
    } else if (host.n == 0 || port == 0) {
        return fl_error_set(err, FL_ECONFIG, "has neither an endpoint nor host and port");
    } else {
        bool is_bare_v6 = fl_bytes_index(host, ':') < host.n && host.p[0] != '[';
        snprintf(text, sizeof(text), is_bare_v6 ? "[%.*s]:%u" : "%.*s:%u", FL_FMT(host),
                 (unsigned)port);
        rc = fl_addr_parse(fl_bytes_of(text), false, &spec->addr, err);
    }
    if (rc < 0)
        return FL_ECONFIG;
    fl_addr_format(&spec->addr, text);
    spec->authority = fl_arena_copy(&reader->set->arena, fl_bytes_of(text));
    return 0;
}

/* tcp://<host of the engine>:<port> */
static struct fl_bytes derived_socket(const struct reader *reader,
                                      const struct fl_worker_spec *spec, uint16_t port)
{
    char text[FL_ADDR_TEXT + 16];
    size_t host_bytes = spec->authority.n;
    if (port == 0)
        return (struct fl_bytes){0};
    while (host_bytes > 0 && spec->authority.p[host_bytes - 1] != ':')
        host_bytes--;
    snprintf(text, sizeof(text), "tcp://%.*s%u", (int)host_bytes, (const char *)spec->authority.p,
             port);
    return fl_arena_copy(&reader->set->arena, fl_bytes_of(text));
}

static int check_socket(struct fl_bytes *value, const char *key, struct fl_error *err)
{
    if (fl_bytes_eq(*value, FL_BYTES("none"))) {
        *value = (struct fl_bytes){0};
        return 0;
    }
    if (value->n == 0 || fl_bytes_has_prefix(*value, FL_BYTES("tcp://")) ||
        fl_bytes_has_prefix(*value, FL_BYTES("ipc://")))
        return 0;
    return fl_error_set(err, FL_ECONFIG, "%s %.*s is no tcp:// or ipc:// address and not none", key,
                        FL_FMT(*value));
}

static int read_sockets(const struct reader *reader, struct fl_worker_spec *spec,
                        struct fl_error *err)
{
    const struct fl_json_node *by_rank = member(reader, "kv_events_endpoints");
    int rc = read_string(reader, "kv_events_endpoint", 256, &spec->kv_events, err);
    if (rc == 0)
        rc = read_string(reader, "replay_endpoint", 256, &spec->replay, err);
    if (rc < 0)
        return rc;
    if (by_rank != NULL && by_rank->type == FL_JSON_OBJECT && by_rank->count > 0) {
        const struct fl_json_node *first = fl_json_get(by_rank, FL_BYTES("0"));
        if (by_rank->count > 1 || first == NULL || first->type != FL_JSON_STRING)
            return fl_error_set(err, FL_ECONFIG,
                                "kv_events_endpoints: ranks above 0 cannot be addressed yet");
        spec->kv_events = fl_arena_copy(&reader->set->arena, first->text);
    } else if (by_rank != NULL && by_rank->type != FL_JSON_OBJECT) {
        return fl_error_set(err, FL_ECONFIG, "kv_events_endpoints is no map");
    }
    if (spec->kv_events.n == 0 && spec->role != FL_WORKER_DECODE)
        spec->kv_events = derived_socket(reader, spec, reader->defaults->kv_event_port);
    if (spec->replay.n == 0 && spec->kv_events.n > 0)
        spec->replay = derived_socket(reader, spec, reader->defaults->kv_replay_port);
    rc = check_socket(&spec->kv_events, "kv_events_endpoint", err);
    return rc < 0 ? rc : check_socket(&spec->replay, "replay_endpoint", err);
}

static int read_texts(const struct reader *reader, struct fl_worker_spec *spec,
                      struct fl_error *err)
{
    static const char *const roles[] = {"aggregated", "prefill", "decode", NULL};
    static const char *const backends[] = {"vllm", "sglang", "trtllm", NULL};
    struct fl_bytes alias = {0};
    int role = FL_WORKER_AGGREGATED, backend = FL_BACKEND_VLLM;
    bool has_backend = false;

    int rc = read_string(reader, "name", NAME_MAX_BYTES, &spec->name, err);
    if (rc == 0)
        rc = read_string(reader, "namespace", NAME_MAX_BYTES, &spec->ns, err);
    if (rc == 0)
        rc = read_string(reader, "instance", 256, &spec->instance, err);
    if (rc == 0)
        rc = read_string(reader, "model", 256, &spec->model, err);
    if (rc == 0)
        rc = read_string(reader, "model_name", 256, &alias, err);
    if (rc == 0)
        rc = read_list(reader, "lora_names", &spec->lora_names, &spec->lora_count, err);
    if (rc == 0)
        rc = read_list(reader, "taints", &spec->taints, &spec->taint_count, err);
    if (rc == 0)
        rc = read_word(reader, "role", roles, FL_WORKER_AGGREGATED, &role, &spec->has_role, err);
    if (rc == 0)
        rc = read_word(reader, "backend", backends, FL_BACKEND_VLLM, &backend, &has_backend, err);
    if (rc < 0)
        return rc;
    spec->role = (enum fl_worker_role)role;
    spec->backend = (enum fl_worker_backend)backend;
    if (spec->ns.n == 0)
        spec->ns = FL_BYTES("default");
    if (spec->model.n == 0)
        spec->model = alias;
    if (spec->model.n == 0)
        spec->model = reader->defaults->model;
    else if (reader->defaults->model.n > 0 && !fl_bytes_eq(spec->model, reader->defaults->model))
        return fl_error_set(err, FL_ECONFIG, "model %.*s is not %.*s, which is served here",
                            FL_FMT(spec->model), FL_FMT(reader->defaults->model));
    return 0;
}

static int read_numbers(struct reader *reader, struct fl_worker_spec *spec, struct fl_error *err)
{
    uint64_t block_size = 0, dp_size = 1, dp_start = 0;
    int rc =
        read_u64(reader, "block_size", 1, 65536, reader->defaults->block_size, &block_size, err);
    if (rc == 0)
        rc = read_u64(reader, "data_parallel_size", 1, 1024, 1, &dp_size, err);
    if (rc == 0)
        rc = read_u64(reader, "data_parallel_start_rank", 0, 0, 0, &dp_start, err);
    if (rc == 0)
        rc = read_u64(reader, "max_num_batched_tokens", 1, UINT32_MAX,
                      reader->defaults->max_num_batched_tokens, &spec->max_num_batched_tokens, err);
    if (rc == 0)
        rc = read_u64(reader, "total_kv_blocks", 1, UINT32_MAX, reader->defaults->total_kv_blocks,
                      &spec->total_kv_blocks, err);
    if (rc == 0)
        rc = read_bool(reader, "is_eagle", reader->defaults->is_eagle, &spec->is_eagle, err);
    if (rc == 0)
        rc = read_bool(reader, "ready", true, &spec->is_ready, err);
    if (rc < 0)
        return rc;
    if (dp_size > 1)
        return fl_error_set(err, FL_ECONFIG,
                            "data_parallel_size=%llu: ranks above 0 cannot be addressed yet; set "
                            "1, or run one endpoint per rank",
                            (unsigned long long)dp_size);
    if (block_size == 0)
        return fl_error_set(err, FL_ECONFIG, "has no block_size, and no default gives one");
    if (reader->block_size != 0 && reader->block_size != block_size)
        return fl_error_set(err, FL_ECONFIG, "block_size %llu differs from %u of the first worker",
                            (unsigned long long)block_size, reader->block_size);
    spec->block_size = (uint32_t)block_size;
    return 0;
}

static int read_entry(struct reader *reader, struct fl_worker_spec *spec, struct fl_error *err)
{
    *spec = (struct fl_worker_spec){0};
    if (reader->entry->type != FL_JSON_OBJECT)
        return fl_error_set(err, FL_ECONFIG, "is no map");
    int rc = read_texts(reader, spec, err);
    if (rc == 0)
        rc = read_address(reader, spec, err);
    if (rc == 0)
        rc = read_sockets(reader, spec, err);
    if (rc == 0)
        rc = read_numbers(reader, spec, err);
    if (rc < 0)
        return rc;
    spec->label = spec->name.n > 0 ? spec->name : spec->authority;
    spec->worker_id = fl_worker_id(spec->label);
    if (spec->name.n > 0 && fl_map_bytes_find(&reader->names, spec->name) != NULL)
        return fl_error_set(err, FL_ECONFIG, "name %.*s stands there twice", FL_FMT(spec->name));
    if (fl_map_bytes_find(&reader->endpoints, spec->authority) != NULL)
        return fl_error_set(err, FL_ECONFIG, "endpoint %.*s stands there twice",
                            FL_FMT(spec->authority));
    if (fl_map_u64_find(&reader->ids, spec->worker_id) != NULL)
        return fl_error_set(err, FL_ECONFIG, "has the id of another worker");
    return 0;
}

static void tell(const struct reader *reader, bool is_bad, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void tell(const struct reader *reader, bool is_bad, const char *format, ...)
{
    char sentence[FL_ERROR_TEXT + 512];
    va_list args;
    if (reader->complain == NULL)
        return;
    va_start(args, format);
    vsnprintf(sentence, sizeof(sentence), format, args);
    va_end(args);
    reader->complain(reader->owner, is_bad, sentence);
}

static void warn_unknown(const struct reader *reader, const struct fl_json_node *object,
                         const char *where)
{
    if (object == NULL || object->type != FL_JSON_OBJECT)
        return;
    for (const struct fl_json_node *item = fl_json_first(object); item != NULL;
         item = fl_json_next(object, item)) {
        bool is_known = false;
        for (size_t i = 0; i < FL_ARRAY_LEN(members) && !is_known; i++)
            is_known = fl_bytes_eq(item->key, fl_bytes_of(members[i]));
        if (!is_known)
            tell(reader, false, "workers file %s: %s: unknown member %.*s is ignored",
                 reader->file_name, where, FL_FMT(fl_bytes_head(item->key, 64)));
    }
}

static void take_entry(struct reader *reader)
{
    struct fl_worker_set *set = reader->set;
    struct fl_worker_spec *spec = &set->items[set->count];
    struct fl_error err = {0};
    char where[64];

    snprintf(where, sizeof(where), "workers[%u]", reader->index);
    warn_unknown(reader, reader->entry, where);
    if (read_entry(reader, spec, &err) < 0) {
        struct fl_bytes name = spec->name.n > 0 ? spec->name : FL_BYTES("no name");
        tell(reader, true, "workers file %s: workers[%u] (%.*s): %s", reader->file_name,
             reader->index, FL_FMT(name), err.text);
        /* A bare endpoint that is known keeps its record, whichever member was bad: so its address
         * is read even if the entry failed before it. */
        if (spec->name.n == 0 && spec->authority.n == 0 && reader->entry->type == FL_JSON_OBJECT)
            read_address(reader, spec, NULL);
        set->bad_labels[set->bad++] = spec->name.n > 0 ? spec->name : spec->authority;
        return;
    }
    reader->block_size = spec->block_size;
    if (spec->name.n > 0)
        fl_map_bytes_put(&reader->names, spec->name, spec);
    fl_map_bytes_put(&reader->endpoints, spec->authority, spec);
    fl_map_u64_put(&reader->ids, spec->worker_id, spec);
    set->count++;
}

static int read_root(struct reader *reader, const struct fl_json_node *root, struct fl_error *err)
{
    uint64_t version = 1;
    const struct fl_json_node *node = fl_json_get(root, FL_BYTES("version"));
    if (root->type != FL_JSON_OBJECT)
        return fl_error_set(err, FL_ECONFIG, "is no map at the top");
    if (node != NULL && (!fl_json_to_u64(node, &version) || version != 1))
        return fl_error_set(err, FL_ECONFIG, "version is not 1");
    reader->file_defaults = fl_json_get(root, FL_BYTES("defaults"));
    if (reader->file_defaults != NULL && reader->file_defaults->type != FL_JSON_OBJECT)
        return fl_error_set(err, FL_ECONFIG, "defaults is no map");
    warn_unknown(reader, reader->file_defaults, "defaults");
    node = fl_json_get(root, FL_BYTES("workers"));
    if (node == NULL)
        node = fl_json_get(root, FL_BYTES("endpoints"));
    if (node == NULL || node->type != FL_JSON_ARRAY)
        return fl_error_set(err, FL_ECONFIG, "workers is missing or no list");
    if (node->count > FL_WORKERS_FILE_MAX_WORKERS)
        return fl_error_set(err, FL_ECONFIG, "%u workers, at most %d", node->count,
                            FL_WORKERS_FILE_MAX_WORKERS);
    reader->set->items =
        fl_arena_calloc(&reader->set->arena, node->count + 1, sizeof(*reader->set->items));
    reader->set->bad_labels =
        fl_arena_calloc(&reader->set->arena, node->count + 1, sizeof(*reader->set->bad_labels));
    for (reader->entry = fl_json_first(node); reader->entry != NULL;
         reader->entry = fl_json_next(node, reader->entry)) {
        take_entry(reader);
        reader->index++;
    }
    return 0;
}

static bool is_json(struct fl_bytes text)
{
    while (text.n > 0 && strchr(" \t\r\n", text.p[0]) != NULL)
        text = fl_bytes_skip(text, 1);
    return text.n > 0 && (text.p[0] == '{' || text.p[0] == '[');
}

int fl_workers_file_read(struct fl_worker_set *set, const char *file_name, struct fl_bytes text,
                         const struct fl_workers_defaults *defaults,
                         void (*complain)(void *owner, bool is_bad, const char *sentence),
                         void *owner, struct fl_error *err)
{
    struct reader reader = {.set = set,
                            .file_name = file_name,
                            .defaults = defaults,
                            .complain = complain,
                            .owner = owner};
    struct fl_json doc = {0};
    int rc;

    fl_arena_init(&set->arena, 0);
    if (text.n > FL_WORKERS_FILE_MAX_BYTES)
        rc = fl_error_set(err, FL_ECONFIG, "%zu bytes, at most %d", text.n,
                          FL_WORKERS_FILE_MAX_BYTES);
    else if (is_json(text))
        rc = fl_json_parse(&doc, text, err);
    else
        rc = fl_yaml_parse(&doc, text, err);
    if (rc == 0)
        rc = read_root(&reader, fl_json_root(&doc), err);
    fl_json_fini(&doc);
    fl_map_bytes_fini(&reader.names);
    fl_map_bytes_fini(&reader.endpoints);
    fl_map_u64_fini(&reader.ids);
    if (rc < 0) {
        fl_error_prefix(err, "workers file %s", file_name);
        fl_worker_set_fini(set);
        return FL_ECONFIG;
    }
    return 0;
}

void fl_worker_set_fini(struct fl_worker_set *set)
{
    fl_arena_fini(&set->arena);
    *set = (struct fl_worker_set){0};
}

static void move_list(struct fl_bytes **items, uint32_t count, struct fl_arena *arena)
{
    struct fl_bytes *moved = fl_arena_calloc(arena, (size_t)count + 1, sizeof(*moved));
    for (uint32_t i = 0; i < count; i++)
        moved[i] = fl_arena_copy(arena, (*items)[i]);
    *items = moved;
}

void fl_worker_spec_move(struct fl_worker_spec *spec, struct fl_arena *arena)
{
    struct fl_bytes *const texts[] = {&spec->name,   &spec->ns,        &spec->label,
                                      &spec->model,  &spec->authority, &spec->kv_events,
                                      &spec->replay, &spec->instance};
    for (size_t i = 0; i < FL_ARRAY_LEN(texts); i++) {
        if (texts[i]->n > 0)
            *texts[i] = fl_arena_copy(arena, *texts[i]);
    }
    move_list(&spec->lora_names, spec->lora_count, arena);
    move_list(&spec->taints, spec->taint_count, arena);
}

static bool lists_eq(const struct fl_bytes *a, uint32_t a_count, const struct fl_bytes *b,
                     uint32_t b_count)
{
    if (a_count != b_count)
        return false;
    for (uint32_t i = 0; i < a_count; i++) {
        if (!fl_bytes_eq(a[i], b[i]))
            return false;
    }
    return true;
}

bool fl_worker_spec_eq(const struct fl_worker_spec *a, const struct fl_worker_spec *b)
{
    return a->worker_id == b->worker_id && fl_bytes_eq(a->authority, b->authority) &&
           fl_bytes_eq(a->model, b->model) && a->role == b->role && a->backend == b->backend &&
           fl_bytes_eq(a->kv_events, b->kv_events) && fl_bytes_eq(a->replay, b->replay) &&
           a->block_size == b->block_size &&
           a->max_num_batched_tokens == b->max_num_batched_tokens &&
           a->total_kv_blocks == b->total_kv_blocks && a->is_eagle == b->is_eagle &&
           a->is_ready == b->is_ready && fl_bytes_eq(a->instance, b->instance) &&
           lists_eq(a->lora_names, a->lora_count, b->lora_names, b->lora_count) &&
           lists_eq(a->taints, a->taint_count, b->taints, b->taint_count);
}
