/* SPDX-License-Identifier: Apache-2.0 */
/* The catalog: workers in and out (selection.md 4.4).
 *
 * One writer at a time (the catalog lock, control paths only). What selections see is the rows of
 * their partition's selector, changed in one section a worker, and the record a row points to,
 * which is immutable: a pick reads the endpoint of the very record it chose by. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "service/impl.h"

struct worker {
    uint64_t id;
    struct fl_record *record;
    struct fl_partition *partition;
    uint32_t *slots; /* of ranks start_rank ..., NULL while it has no rows */
};

/* ---- rows ---- */

static struct fl_rank_info info_of(struct fl_record *record, uint32_t dp_rank)
{
    const struct fl_worker *worker = &record->worker;
    return (struct fl_rank_info){
        .worker_id = worker->worker_id,
        .dp_rank = dp_rank,
        .prefill_capacity = worker->max_num_batched_tokens.value,
        .total_kv_blocks = worker->total_kv_blocks.value,
        .endpoint = worker->endpoint,
        .taints = record->taints,
        .taint_count = worker->taint_count,
        .owner = record,
    };
}

static bool has_rank(const struct fl_record *record, uint32_t dp_rank)
{
    return dp_rank >= record->start_rank && dp_rank - record->start_rank < record->rank_count;
}

/* Draining first: from the moment of the fence no pick goes there, then the rows go. */
static void rows_remove(struct worker *worker)
{
    if (worker->slots == NULL)
        return;
    struct fl_partition *partition = worker->partition;
    uint32_t count = worker->record->rank_count;
    fl_section_lock(partition);
    for (uint32_t i = 0; i < count; i++)
        fl_selector_fence_rank(partition->selector, worker->slots[i]);
    fl_section_unlock(partition);

    fl_events_remove_worker(partition, worker->id);
    fl_section_lock(partition);
    for (uint32_t i = 0; i < count; i++)
        fl_selector_remove_rank(partition->selector, worker->slots[i]);
    fl_section_unlock(partition);
    fl_free(worker->slots);
    worker->slots = NULL;
    atomic_fetch_sub(&partition->service->schedulable, 1);
}

static void rows_add(struct worker *worker, struct fl_record *record)
{
    struct fl_partition *partition = worker->partition;
    worker->slots = fl_calloc(record->rank_count, sizeof *worker->slots);
    fl_section_lock(partition);
    for (uint32_t i = 0; i < record->rank_count; i++) {
        struct fl_rank_info info = info_of(record, record->start_rank + i);
        worker->slots[i] = fl_selector_add_rank(partition->selector, &info);
    }
    fl_section_unlock(partition);
    for (uint32_t i = 0; i < record->rank_count; i++)
        fl_events_add_rank(partition, record, record->start_rank + i, worker->slots[i]);
    atomic_fetch_add(&partition->service->schedulable, 1);
}

static bool has_same_events(const struct fl_record *a, const struct fl_record *b, uint32_t dp_rank)
{
    return fl_bytes_eq(fl_record_endpoint(a, dp_rank), fl_record_endpoint(b, dp_rank)) &&
           fl_bytes_eq(a->worker.replay_endpoint, b->worker.replay_endpoint);
}

/* The same worker at the same endpoint with other facts or ranks: what stays keeps load and blocks.
 */
static void rows_change(struct worker *worker, struct fl_record *record)
{
    struct fl_partition *partition = worker->partition;
    const struct fl_record *old = worker->record;
    uint32_t *slots = fl_calloc(record->rank_count, sizeof *slots);
    fl_section_lock(partition);
    for (uint32_t i = 0; i < old->rank_count; i++)
        if (!has_rank(record, old->start_rank + i))
            fl_selector_remove_rank(partition->selector, worker->slots[i]);
    for (uint32_t i = 0; i < record->rank_count; i++) {
        uint32_t rank = record->start_rank + i;
        struct fl_rank_info info = info_of(record, rank);
        if (has_rank(old, rank)) {
            slots[i] = worker->slots[rank - old->start_rank];
            fl_selector_update_rank(partition->selector, slots[i], &info);
        } else {
            slots[i] = fl_selector_add_rank(partition->selector, &info);
        }
    }
    fl_section_unlock(partition);

    for (uint32_t i = 0; i < old->rank_count; i++) {
        uint32_t rank = old->start_rank + i;
        if (!has_rank(record, rank) || !has_same_events(old, record, rank))
            fl_events_remove_rank(partition, worker->id, rank);
    }
    for (uint32_t i = 0; i < record->rank_count; i++) {
        uint32_t rank = record->start_rank + i;
        if (!has_rank(old, rank) || !has_same_events(old, record, rank))
            fl_events_add_rank(partition, record, rank, slots[i]);
    }
    fl_free(worker->slots);
    worker->slots = slots;
}

/* ---- upsert ---- */

/* The first schedulable worker fixes block size and layout; others must agree. */
static void agree_with_partition(struct fl_partition *partition, struct fl_record *record)
{
    const struct fl_worker *worker = &record->worker;
    if (record->reason_count > 0)
        return;
    uint32_t block_tokens = atomic_load(&partition->block_tokens);
    bool is_eagle = atomic_load(&partition->is_eagle);
    if (block_tokens == 0) {
        fl_section_lock(partition);
        fl_selector_set_block_tokens(partition->selector, worker->block_size);
        fl_section_unlock(partition);
        atomic_store(&partition->is_eagle, worker->is_eagle.value);
        atomic_store_explicit(&partition->block_tokens, worker->block_size, memory_order_release);
    } else if (block_tokens != worker->block_size) {
        fl_record_add_reason(record,
                             "reconciliation failed: block_size %u differs from the partition's %u",
                             worker->block_size, block_tokens);
    } else if (is_eagle != worker->is_eagle.value) {
        fl_record_add_reason(record,
                             "reconciliation failed: is_eagle differs from the partition's");
    }
}

static struct worker *worker_get(struct fl_selection *service, uint64_t id)
{
    struct worker *worker = fl_map_u64_find(&service->workers, id);
    if (worker == NULL) {
        worker = fl_calloc(1, sizeof *worker);
        worker->id = id;
        fl_map_u64_put(&service->workers, id, worker);
    }
    return worker;
}

static int upsert(struct fl_selection *service, struct fl_record *record, struct fl_error *err)
{
    struct fl_partition *partition =
        fl_partition_get(service, record->worker.model_name, record->worker.routing_group);
    if (partition == NULL)
        return fl_error_set(err, FL_EBAD_REQUEST, "worker: more than %d models and routing groups",
                            FL_PARTITIONS_MAX);
    agree_with_partition(partition, record);
    bool is_schedulable = record->reason_count == 0;
    record->lifecycle = is_schedulable ? FL_LIFECYCLE_SCHEDULABLE : FL_LIFECYCLE_INCOMPLETE;

    struct worker *worker = worker_get(service, record->worker.worker_id);
    bool stays = is_schedulable && worker->slots != NULL && worker->partition == partition &&
                 fl_bytes_eq(worker->record->worker.endpoint, record->worker.endpoint);
    if (stays) {
        rows_change(worker, record);
    } else {
        rows_remove(worker);
        worker->partition = partition;
        if (is_schedulable)
            rows_add(worker, record);
    }
    /* Rows no longer point to the old record; picks that chose by it hold references of their own.
     */
    fl_record_unref(worker->record);
    worker->record = fl_record_ref(record);
    return 0;
}

int fl_selection_upsert_worker(struct fl_selection *service, const struct fl_worker *worker,
                               struct fl_worker_record *out, struct fl_error *err)
{
    if (atomic_load(&service->is_stopping))
        return fl_error_set(err, FL_ESHUTDOWN, "selection service is stopping");
    struct fl_record *record = NULL;
    int rc = fl_record_new(worker, &service->config, service->taint_seed, &record, err);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&service->catalog);
    rc = upsert(service, record, err);
    pthread_mutex_unlock(&service->catalog);
    if (rc == 0 && out != NULL)
        fl_record_lend(record, out);
    fl_record_unref(record);
    return rc;
}

static void worker_free(struct worker *worker)
{
    fl_record_unref(worker->record);
    fl_free(worker->slots);
    fl_free(worker);
}

int fl_selection_delete_worker(struct fl_selection *service, uint64_t worker_id,
                               struct fl_worker_record *out)
{
    pthread_mutex_lock(&service->catalog);
    struct worker *worker = fl_map_u64_take(&service->workers, worker_id);
    if (worker != NULL)
        rows_remove(worker);
    pthread_mutex_unlock(&service->catalog);
    if (worker == NULL)
        return FL_ENOT_FOUND;
    if (out != NULL) {
        struct fl_record *gone = fl_record_with(worker->record, FL_LIFECYCLE_UNSCHEDULABLE);
        fl_record_lend(gone, out);
        fl_record_unref(gone);
    }
    worker_free(worker);
    return 0;
}

/* ---- listing ---- */

static int by_name_and_id(const void *left, const void *right)
{
    const struct fl_worker *a = &((const struct fl_worker_record *)left)->worker;
    const struct fl_worker *b = &((const struct fl_worker_record *)right)->worker;
    int order = fl_bytes_cmp(a->model_name, b->model_name);
    if (order == 0)
        order = fl_bytes_cmp(a->routing_group, b->routing_group);
    return order != 0 ? order : (a->worker_id > b->worker_id) - (a->worker_id < b->worker_id);
}

int fl_selection_list_workers(struct fl_selection *service, struct fl_bytes model_name,
                              struct fl_bytes routing_group, struct fl_worker_list *list)
{
    *list = (struct fl_worker_list){0};
    pthread_mutex_lock(&service->catalog);
    list->records = fl_calloc(service->workers.count, sizeof *list->records);
    uint32_t at = 0;
    uint64_t id;
    void *value;
    while (fl_map_u64_next(&service->workers, &at, &id, &value)) {
        struct worker *worker = value;
        const struct fl_worker *w = &worker->record->worker;
        if ((model_name.n == 0 || fl_bytes_eq(model_name, w->model_name)) &&
            (routing_group.n == 0 || fl_bytes_eq(routing_group, w->routing_group)))
            fl_record_lend(worker->record, &list->records[list->count++]);
    }
    pthread_mutex_unlock(&service->catalog);
    if (list->count > 0)
        qsort(list->records, list->count, sizeof *list->records, by_name_and_id);
    return 0;
}

void fl_worker_list_fini(struct fl_worker_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        fl_worker_record_fini(&list->records[i]);
    fl_free(list->records);
    *list = (struct fl_worker_list){0};
}

void fl_catalog_count(struct fl_selection *service, uint32_t counts[FL_LIFECYCLE_COUNT])
{
    memset(counts, 0, FL_LIFECYCLE_COUNT * sizeof *counts);
    pthread_mutex_lock(&service->catalog);
    uint32_t at = 0;
    uint64_t id;
    void *value;
    while (fl_map_u64_next(&service->workers, &at, &id, &value))
        counts[((struct worker *)value)->record->lifecycle]++;
    pthread_mutex_unlock(&service->catalog);
}

void fl_catalog_fini(struct fl_selection *service)
{
    uint32_t at = 0;
    uint64_t id;
    void *value;
    while (fl_map_u64_next(&service->workers, &at, &id, &value))
        worker_free(value);
    fl_map_u64_fini(&service->workers);
}
