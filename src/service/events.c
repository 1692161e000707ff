/* SPDX-License-Identifier: Apache-2.0 */
/* KV events of a service: listeners and index ranks, changed on the event thread. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/metric.h"
#include "service/impl.h"

struct listener {
    struct listener *next; /* of the same worker */
    struct fl_partition *partition;
    uint64_t worker_id;
    uint32_t dp_rank;
    enum fl_kv_state state;
    struct fl_kv_subscriber *subscriber;
};

enum change { ADD_RANK, REMOVE_RANK, REMOVE_WORKER };

struct task {
    struct fl_runtime_task task;
    struct fl_partition *partition;
    enum change change;
    uint64_t worker_id;
    uint32_t dp_rank, slot;
    char *endpoint, *replay; /* NULL: no listener, no replay */
};

/* ---- listeners ---- */

static void on_state(void *owner, enum fl_kv_state state)
{
    struct listener *listener = owner;
    struct fl_selection *service = listener->partition->service;
    atomic_fetch_sub_explicit(&service->listeners[listener->state], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&service->listeners[state], 1, memory_order_relaxed);
    listener->state = state;
    if (state == FL_KV_FAILED)
        FL_LOG(FL_LOG_WARN, "kv event listener failed", "worker=%llu rank=%u",
               (unsigned long long)listener->worker_id, listener->dp_rank);
}

static void listener_open(struct task *t)
{
    struct fl_partition *partition = t->partition;
    struct fl_selection *service = partition->service;
    struct listener *listener = fl_calloc(1, sizeof *listener);
    *listener = (struct listener){.partition = partition,
                                  .worker_id = t->worker_id,
                                  .dp_rank = t->dp_rank,
                                  .state = FL_KV_PENDING};
    atomic_fetch_add_explicit(&service->listeners[FL_KV_PENDING], 1, memory_order_relaxed);
    struct fl_kv_subscriber_config config = {
        .endpoint = t->endpoint,
        .replay_endpoint = t->replay,
        .index = partition->index,
        .worker_id = t->worker_id,
        .dp_rank = t->dp_rank,
        .block_tokens = atomic_load(&partition->block_tokens),
        .gap_policy = service->config.gap_keep ? FL_KV_GAP_KEEP : FL_KV_GAP_CLEAR,
        .counters = &service->kv,
        .on_state = on_state,
        .owner = listener,
    };
    struct fl_error err = {0};
    listener->subscriber = fl_kv_subscribe(fl_runtime_hub(service->runtime), &config,
                                           fl_runtime_now_ms(service->runtime), &err);
    if (listener->subscriber == NULL) {
        /* The worker stays schedulable with an index that knows nothing of it (4.4). */
        FL_LOG(FL_LOG_WARN, "kv event listener refused", "worker=%llu rank=%u why=\"%s\"",
               (unsigned long long)t->worker_id, t->dp_rank, err.text);
        on_state(listener, FL_KV_FAILED);
    }
    listener->next = fl_map_u64_find(&partition->listeners, t->worker_id);
    fl_map_u64_put(&partition->listeners, t->worker_id, listener);
}

static void listener_close(struct listener *listener)
{
    fl_kv_unsubscribe(listener->subscriber);
    atomic_fetch_sub_explicit(&listener->partition->service->listeners[listener->state], 1,
                              memory_order_relaxed);
    fl_free(listener);
}

static void close_worker(struct fl_partition *partition, uint64_t worker_id)
{
    struct listener *listener = fl_map_u64_take(&partition->listeners, worker_id);
    while (listener != NULL) {
        struct listener *next = listener->next;
        listener_close(listener);
        listener = next;
    }
}

static void close_rank(struct fl_partition *partition, uint64_t worker_id, uint32_t dp_rank)
{
    struct listener *first = fl_map_u64_take(&partition->listeners, worker_id);
    for (struct listener **place = &first; *place != NULL; place = &(*place)->next) {
        if ((*place)->dp_rank != dp_rank)
            continue;
        struct listener *gone = *place;
        *place = gone->next;
        listener_close(gone);
        break;
    }
    if (first != NULL)
        fl_map_u64_put(&partition->listeners, worker_id, first);
}

/* ---- tasks ---- */

static void add_rank(struct task *t)
{
    struct fl_kvindex *index = t->partition->index;
    struct fl_kvindex_rank *rank = fl_kvindex_rank_get(index, t->worker_id, t->dp_rank);
    if (rank == NULL) {
        FL_LOG(FL_LOG_WARN, "prefix index is full of ranks", "worker=%llu rank=%u",
               (unsigned long long)t->worker_id, t->dp_rank);
        return;
    }
    fl_kvindex_rank_set_row(index, rank, t->slot);
    if (t->endpoint != NULL)
        listener_open(t);
}

static void remove_rank(struct task *t)
{
    close_rank(t->partition, t->worker_id, t->dp_rank);
    struct fl_kvindex *index = t->partition->index;
    struct fl_kvindex_rank *rank = fl_kvindex_rank_find(index, t->worker_id, t->dp_rank);
    if (rank != NULL)
        fl_kvindex_remove_rank(index, rank);
}

static void run_task(struct fl_runtime_task *task)
{
    struct task *t = FL_CONTAINER_OF(task, struct task, task);
    switch (t->change) {
    case ADD_RANK:
        add_rank(t);
        break;
    case REMOVE_RANK:
        remove_rank(t);
        break;
    case REMOVE_WORKER:
        close_worker(t->partition, t->worker_id);
        fl_kvindex_remove_worker(t->partition->index, t->worker_id);
        break;
    }
    fl_free(t->endpoint);
    fl_free(t->replay);
    fl_free(t);
}

static struct task *task_new(struct fl_partition *partition, enum change change, uint64_t worker_id,
                             uint32_t dp_rank)
{
    struct task *t = fl_calloc(1, sizeof *t);
    t->task.run = run_task;
    t->partition = partition;
    t->change = change;
    t->worker_id = worker_id;
    t->dp_rank = dp_rank;
    return t;
}

static char *text_or_null(struct fl_bytes text)
{
    return text.n > 0 ? fl_strndup(text.p, text.n) : NULL;
}

void fl_events_add_rank(struct fl_partition *partition, const struct fl_record *record,
                        uint32_t dp_rank, uint32_t slot)
{
    if (partition->index == NULL)
        return;
    struct fl_bytes endpoint = fl_record_endpoint(record, dp_rank);
    bool is_first =
        true; /* of the worker's ranks with this endpoint: one socket carries them all */
    for (uint32_t i = 0; i < record->rank_count; i++) {
        uint32_t other = record->start_rank + i;
        if (other == dp_rank || !fl_bytes_eq(fl_record_endpoint(record, other), endpoint))
            continue;
        is_first &= other > dp_rank;
    }
    struct task *t = task_new(partition, ADD_RANK, record->worker.worker_id, dp_rank);
    t->slot = slot;
    if (is_first) {
        t->endpoint = text_or_null(endpoint);
        t->replay = text_or_null(record->worker.replay_endpoint);
    }
    fl_runtime_post(partition->service->runtime, &t->task);
}

void fl_events_remove_rank(struct fl_partition *partition, uint64_t worker_id, uint32_t dp_rank)
{
    if (partition->index != NULL)
        fl_runtime_post(partition->service->runtime,
                        &task_new(partition, REMOVE_RANK, worker_id, dp_rank)->task);
}

void fl_events_remove_worker(struct fl_partition *partition, uint64_t worker_id)
{
    if (partition->index != NULL)
        fl_runtime_post(partition->service->runtime,
                        &task_new(partition, REMOVE_WORKER, worker_id, 0)->task);
}

/* ---- partitions ---- */

static void attach(struct fl_runtime_task *task)
{
    struct task *t = FL_CONTAINER_OF(task, struct task, task);
    fl_kvevents_attach_index(fl_runtime_hub(t->partition->service->runtime), t->partition->index);
    fl_free(t);
}

void fl_events_open(struct fl_partition *partition)
{
    struct fl_runtime *runtime = partition->service->runtime;
    partition->index = fl_kvindex_new(fl_runtime_epoch(runtime));
    struct task *t = task_new(partition, ADD_RANK, 0, 0);
    t->task.run = attach;
    fl_runtime_post(runtime, &t->task);
}

static void close_on_event_thread(void *to)
{
    struct fl_partition *partition = to;
    uint32_t at = 0;
    uint64_t worker_id;
    void *first;
    while (fl_map_u64_next(&partition->listeners, &at, &worker_id, &first)) {
        close_worker(partition, worker_id);
        at = 0; /* the map has changed */
    }
    fl_map_u64_fini(&partition->listeners);
    fl_kvevents_detach_index(fl_runtime_hub(partition->service->runtime), partition->index);
    fl_kvindex_free(partition->index);
    partition->index = NULL;
}

void fl_events_close(struct fl_partition *partition)
{
    if (partition->index != NULL)
        fl_runtime_call(partition->service->runtime, close_on_event_thread, partition);
}

/* ---- metrics ---- */

static int write_events(struct fl_selection *service, struct fl_buf *out)
{
    static const char events[] = "fairlead_select_kv_events_total";
    int rc =
        fl_metric_write_head(out, events, "KV events by type and what became of them.", FL_COUNTER);
    for (int type = 0; type < FL_KV_TYPE_COUNT; type++) {
        for (int result = 0; result < FL_KV_RESULT_COUNT && rc == 0; result++) {
            uint64_t n =
                atomic_load_explicit(&service->kv.events[type][result], memory_order_relaxed);
            if (n != 0 || result == FL_KV_OK)
                rc = fl_buf_printf(out, "%s{%s,type=\"%s\",result=\"%s\"} %llu\n", events,
                                   service->labels, fl_kv_type_words[type],
                                   fl_kv_result_words[result], (unsigned long long)n);
        }
    }
    static const char gaps[] = "fairlead_select_kv_event_gaps_total";
    if (rc == 0)
        rc = fl_metric_write_head(out, gaps, "Gaps in event streams and how they ended.",
                                  FL_COUNTER);
    for (int gap = 0; gap < FL_KV_GAP_COUNT && rc == 0; gap++)
        rc = fl_buf_printf(
            out, "%s{%s,result=\"%s\"} %llu\n", gaps, service->labels, fl_kv_gap_words[gap],
            (unsigned long long)atomic_load_explicit(&service->kv.gaps[gap], memory_order_relaxed));
    return rc;
}

static int write_listeners(struct fl_selection *service, struct fl_buf *out)
{
    /* Several states share a word: buffering and catching up show as pending. */
    static const char name[] = "fairlead_select_listeners";
    int rc = fl_metric_write_head(out, name, "Event listeners by status.", FL_GAUGE);
    for (int state = 0; state <= FL_KV_FAILED && rc == 0; state++) {
        const char *word = fl_kv_state_word((enum fl_kv_state)state);
        uint32_t sum = 0;
        bool is_first = true;
        for (int other = 0; other <= FL_KV_FAILED; other++) {
            if (strcmp(fl_kv_state_word((enum fl_kv_state)other), word) != 0)
                continue;
            is_first &= other >= state;
            sum += atomic_load_explicit(&service->listeners[other], memory_order_relaxed);
        }
        if (is_first)
            rc = fl_buf_printf(out, "%s{%s,status=\"%s\"} %u\n", name, service->labels, word, sum);
    }
    return rc;
}

static int write_blocks(struct fl_selection *service, struct fl_buf *out)
{
    static const char *const tiers[FL_TIER_COUNT] = {"device", "host_pinned", "disk", "external"};
    static const char name[] = "fairlead_select_index_blocks";
    const struct fl_partition_table *table = atomic_load(&service->partitions);
    uint64_t held[FL_TIER_COUNT] = {0};
    for (size_t i = 0; table != NULL && i < table->count; i++) {
        struct fl_kvindex_stats stats;
        if (table->at[i]->index == NULL)
            continue;
        fl_kvindex_stats(table->at[i]->index, &stats);
        for (int tier = 0; tier < FL_TIER_COUNT; tier++)
            held[tier] += stats.held[tier];
    }
    int rc = fl_metric_write_head(out, name, "Blocks held by all ranks, by tier.", FL_GAUGE);
    for (int tier = 0; tier < FL_TIER_COUNT && rc == 0; tier++)
        rc = fl_buf_printf(out, "%s{%s,tier=\"%s\"} %llu\n", name, service->labels, tiers[tier],
                           (unsigned long long)held[tier]);
    return rc;
}

int fl_events_write_metrics(struct fl_selection *service, struct fl_buf *out)
{
    int rc = write_events(service, out);
    if (rc == 0)
        rc = write_listeners(service, out);
    return rc == 0 ? write_blocks(service, out) : rc;
}
