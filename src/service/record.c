/* SPDX-License-Identifier: Apache-2.0 */
/* Worker records: what a caller said, checked (selection.md 4.1 to 4.3). */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "codec/hash.h"
#include "service/impl.h"

/* Names, endpoints, taints: no legitimate one comes near. */
#define TEXT_MAX 1024

const char *fl_lifecycle_name(enum fl_lifecycle lifecycle)
{
    static const char *const names[FL_LIFECYCLE_COUNT] = {
        [FL_LIFECYCLE_INCOMPLETE] = "incomplete",
        [FL_LIFECYCLE_SCHEDULABLE] = "schedulable",
        [FL_LIFECYCLE_DRAINING] = "draining",
        [FL_LIFECYCLE_UNSCHEDULABLE] = "unschedulable",
    };
    return names[lifecycle];
}

void fl_record_add_reason(struct fl_record *record, const char *format, ...)
{
    if (record->reason_count == FL_REASONS_MAX)
        return; /* the first ones tell enough: a worker with 4,096 ranks lacks 4,096 endpoints */
    char *text = record->reason_texts[record->reason_count];
    va_list args;
    va_start(args, format);
    vsnprintf(text, FL_REASON_TEXT, format, args);
    va_end(args);
    record->reasons[record->reason_count++] = text;
}

/* ---- endpoints ---- */

static bool is_tcp_endpoint(struct fl_bytes rest)
{
    struct fl_bytes host, port;
    if (rest.n > 0 && rest.p[0] == '[') {
        size_t end = fl_bytes_index(rest, ']');
        if (end == rest.n || end + 1 >= rest.n || rest.p[end + 1] != ':')
            return false;
        host = fl_bytes(rest.p + 1, end - 1);
        port = fl_bytes_skip(rest, end + 2);
    } else {
        size_t colon = fl_bytes_index(rest, ':');
        host = fl_bytes_head(rest, colon);
        port = fl_bytes_skip(rest, colon + 1);
    }
    uint64_t number;
    return host.n > 0 && fl_bytes_to_u64(port, 65535, &number) && number > 0;
}

/* selection.md 4.2. */
static bool is_zmq_endpoint(struct fl_bytes text)
{
    struct fl_bytes tcp = FL_BYTES("tcp://"), ipc = FL_BYTES("ipc://"),
                    inproc = FL_BYTES("inproc://");
    if (fl_bytes_has_prefix(text, tcp))
        return is_tcp_endpoint(fl_bytes_skip(text, tcp.n));
    return (fl_bytes_has_prefix(text, ipc) && text.n > ipc.n) ||
           (fl_bytes_has_prefix(text, inproc) && text.n > inproc.n);
}

struct fl_bytes fl_record_endpoint(const struct fl_record *record, uint32_t dp_rank)
{
    const struct fl_worker *worker = &record->worker;
    for (size_t i = 0; i < worker->kv_events_endpoint_count; i++)
        if (worker->kv_events_endpoints[i].dp_rank == dp_rank)
            return worker->kv_events_endpoints[i].endpoint;
    if (worker->kv_events_endpoint_count == 0 && record->rank_count == 1 &&
        dp_rank == record->start_rank)
        return worker->kv_events_endpoint;
    return (struct fl_bytes){0};
}

static void check_endpoints(struct fl_record *record, const struct fl_router_config *config)
{
    if (!config->use_kv_events)
        return;
    for (uint32_t i = 0; i < record->rank_count; i++) {
        uint32_t rank = record->start_rank + i;
        struct fl_bytes endpoint = fl_record_endpoint(record, rank);
        if (endpoint.n == 0)
            fl_record_add_reason(record, "kv_events endpoint is required for dp_rank %u", rank);
        else if (!is_zmq_endpoint(endpoint))
            fl_record_add_reason(record, "reconciliation failed: invalid kv_events endpoint '%.*s'",
                                 FL_FMT(fl_bytes_head(endpoint, 100)));
    }
    struct fl_bytes replay = record->worker.replay_endpoint;
    if (replay.n > 0 && !is_zmq_endpoint(replay))
        fl_record_add_reason(record, "reconciliation failed: invalid replay_endpoint '%.*s'",
                             FL_FMT(fl_bytes_head(replay, 100)));
}

static void check(struct fl_record *record, const struct fl_router_config *config)
{
    const struct fl_worker *worker = &record->worker;
    if (worker->endpoint.n == 0)
        fl_record_add_reason(record, "endpoint is required");
    if (worker->block_size == 0)
        fl_record_add_reason(record, "block_size must be greater than 0");
    if (record->rank_count == 0)
        fl_record_add_reason(record, "data_parallel_size must be greater than 0");
    if (config->queue_threshold.is_set && !worker->max_num_batched_tokens.is_set)
        fl_record_add_reason(record,
                             "max_num_batched_tokens is required while queueing is enabled");
    if (worker->replay_endpoint.n > 0 && record->rank_count > 1)
        fl_record_add_reason(record, "replay_endpoint is supported only for data_parallel_size 1");
    check_endpoints(record, config);
}

/* ---- copying ---- */

static int check_text(struct fl_bytes text, const char *what, struct fl_error *err)
{
    if (text.n > TEXT_MAX)
        return fl_error_set(err, FL_EBAD_REQUEST, "worker: %s is %zu bytes, at most %d", what,
                            text.n, TEXT_MAX);
    if (!fl_bytes_is_utf8(text) || fl_bytes_index(text, 0) != text.n)
        return fl_error_set(err, FL_EBAD_REQUEST, "worker: %s is not UTF-8 without NUL", what);
    return 0;
}

static int check_caps(const struct fl_worker *worker, struct fl_error *err)
{
    if (worker->data_parallel_size.is_set && worker->data_parallel_size.value > FL_RANKS_MAX)
        return fl_error_set(err, FL_EBAD_REQUEST, "worker: data_parallel_size is %u, at most %d",
                            worker->data_parallel_size.value, FL_RANKS_MAX);
    if (worker->kv_events_endpoint_count > FL_RANKS_MAX)
        return fl_error_set(err, FL_EBAD_REQUEST,
                            "worker: kv_events_endpoints has %zu entries, at most %d",
                            worker->kv_events_endpoint_count, FL_RANKS_MAX);
    if (worker->taint_count > FL_TAINTS_MAX)
        return fl_error_set(err, FL_EBAD_REQUEST, "worker: taints has %zu entries, at most %d",
                            worker->taint_count, FL_TAINTS_MAX);
    uint64_t start = worker->data_parallel_start_rank.value;
    if (start + FL_RANKS_MAX > UINT32_MAX)
        return fl_error_set(err, FL_EBAD_REQUEST, "worker: data_parallel_start_rank is too large");
    const struct {
        const char *what;
        struct fl_bytes text;
    } texts[] = {
        {"model_name", worker->model_name},
        {"routing_group", worker->routing_group},
        {"endpoint", worker->endpoint},
        {"kv_events_endpoint", worker->kv_events_endpoint},
        {"replay_endpoint", worker->replay_endpoint},
        {"stable_routing_id", worker->stable_routing_id},
    };
    int rc = 0;
    for (size_t i = 0; i < FL_ARRAY_LEN(texts) && rc == 0; i++)
        rc = check_text(texts[i].text, texts[i].what, err);
    for (size_t i = 0; i < worker->kv_events_endpoint_count && rc == 0; i++)
        rc = check_text(worker->kv_events_endpoints[i].endpoint, "kv_events_endpoints", err);
    for (size_t i = 0; i < worker->taint_count && rc == 0; i++)
        rc = check_text(worker->taints[i], "taints", err);
    return rc;
}

/* Moves a view into the record's own text; absent stays absent. */
static void keep(uint8_t **at, struct fl_bytes *text)
{
    if (fl_bytes_is_absent(*text))
        return;
    if (text->n > 0)
        memcpy(*at, text->p, text->n);
    text->p = *at;
    *at += text->n;
}

static size_t text_bytes(const struct fl_worker *worker)
{
    size_t n = worker->model_name.n + worker->routing_group.n + worker->endpoint.n +
               worker->kv_events_endpoint.n + worker->replay_endpoint.n +
               worker->stable_routing_id.n;
    for (size_t i = 0; i < worker->kv_events_endpoint_count; i++)
        n += worker->kv_events_endpoints[i].endpoint.n;
    for (size_t i = 0; i < worker->taint_count; i++)
        n += worker->taints[i].n;
    return n;
}

static struct fl_record *record_copy(const struct fl_worker *worker)
{
    struct fl_record *record = fl_calloc(1, sizeof *record);
    record->refs = 1;
    record->worker = *worker;
    struct fl_worker *w = &record->worker;
    w->model_name = fl_name_or_default(w->model_name);
    w->routing_group = fl_name_or_default(w->routing_group);
    record->text = fl_alloc(text_bytes(w));
    record->endpoints = fl_calloc(w->kv_events_endpoint_count, sizeof *record->endpoints);
    record->taint_texts = fl_calloc(w->taint_count, sizeof *record->taint_texts);
    record->taints = fl_calloc(w->taint_count, sizeof *record->taints);

    uint8_t *at = record->text;
    keep(&at, &w->model_name);
    keep(&at, &w->routing_group);
    keep(&at, &w->endpoint);
    keep(&at, &w->kv_events_endpoint);
    keep(&at, &w->replay_endpoint);
    keep(&at, &w->stable_routing_id);
    for (size_t i = 0; i < w->kv_events_endpoint_count; i++) {
        record->endpoints[i] = worker->kv_events_endpoints[i];
        keep(&at, &record->endpoints[i].endpoint);
    }
    for (size_t i = 0; i < w->taint_count; i++) {
        record->taint_texts[i] = worker->taints[i];
        keep(&at, &record->taint_texts[i]);
    }
    w->kv_events_endpoints = record->endpoints;
    w->taints = record->taint_texts;
    record->start_rank = w->data_parallel_start_rank.is_set ? w->data_parallel_start_rank.value : 0;
    record->rank_count = w->data_parallel_size.is_set ? w->data_parallel_size.value : 1;
    return record;
}

int fl_record_new(const struct fl_worker *worker, const struct fl_router_config *config,
                  uint64_t taint_seed, struct fl_record **record, struct fl_error *err)
{
    int rc = check_caps(worker, err);
    if (rc < 0)
        return rc;
    *record = record_copy(worker);
    for (size_t i = 0; i < worker->taint_count; i++)
        (*record)->taints[i] = fl_xxh3(worker->taints[i], taint_seed);
    check(*record, config);
    return 0;
}

struct fl_record *fl_record_with(const struct fl_record *record, enum fl_lifecycle lifecycle)
{
    struct fl_record *copy = record_copy(&record->worker);
    memcpy(copy->taints, record->taints, record->worker.taint_count * sizeof *copy->taints);
    for (size_t i = 0; i < record->reason_count; i++)
        fl_record_add_reason(copy, "%s", record->reasons[i]);
    copy->lifecycle = lifecycle;
    return copy;
}

struct fl_record *fl_record_ref(struct fl_record *record)
{
    atomic_fetch_add_explicit(&record->refs, 1, memory_order_relaxed);
    return record;
}

void fl_record_unref(struct fl_record *record)
{
    if (record == NULL || atomic_fetch_sub_explicit(&record->refs, 1, memory_order_acq_rel) > 1)
        return;
    fl_free(record->text);
    fl_free(record->endpoints);
    fl_free(record->taint_texts);
    fl_free(record->taints);
    fl_free(record);
}

void fl_record_lend(struct fl_record *record, struct fl_worker_record *out)
{
    *out = (struct fl_worker_record){
        .worker = record->worker,
        .lifecycle = record->lifecycle,
        .reasons = record->reasons,
        .reason_count = record->reason_count,
        .refs = fl_record_ref(record),
    };
}

void fl_worker_record_fini(struct fl_worker_record *record)
{
    fl_record_unref(record->refs);
    *record = (struct fl_worker_record){0};
}
