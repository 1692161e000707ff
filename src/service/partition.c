/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions and their critical sections. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "codec/hash.h"
#include "service/impl.h"

void *fl_line_calloc(size_t bytes)
{
    void *p = aligned_alloc(64, bytes); /* a multiple of 64: the types ask for the alignment */
    if (p == NULL)
        abort();
    memset(p, 0, bytes);
    return p;
}

void fl_line_free(void *p)
{
    free(p);
}

/* One hash for both names: the first one's is the seed of the second's, so ("ab", "c") and ("a",
 * "bc") differ. */
static uint64_t hash_of(struct fl_bytes model_name, struct fl_bytes routing_group)
{
    return fl_xxh3(routing_group, fl_xxh3(model_name, 0));
}

struct fl_partition *fl_partition_find(struct fl_selection *service, struct fl_bytes model_name,
                                       struct fl_bytes routing_group)
{
    const struct fl_partition_table *table =
        atomic_load_explicit(&service->partitions, memory_order_acquire);
    model_name = fl_name_or_default(model_name);
    routing_group = fl_name_or_default(routing_group);
    uint64_t hash = hash_of(model_name, routing_group);
    for (size_t i = 0; table != NULL && i < table->count; i++) {
        struct fl_partition *partition = table->at[i];
        if (partition->hash == hash && fl_bytes_eq(partition->model_name, model_name) &&
            fl_bytes_eq(partition->routing_group, routing_group))
            return partition;
    }
    return NULL;
}

static struct fl_partition *partition_new(struct fl_selection *service, struct fl_bytes model_name,
                                          struct fl_bytes routing_group)
{
    struct fl_partition *partition = fl_line_calloc(sizeof *partition);
    partition->service = service;
    partition->model_text = fl_strndup(model_name.p, model_name.n);
    partition->group_text = fl_strndup(routing_group.p, routing_group.n);
    partition->model_name = fl_bytes(partition->model_text, model_name.n);
    partition->routing_group = fl_bytes(partition->group_text, routing_group.n);
    partition->hash = hash_of(model_name, routing_group);

    /* Adaptive: a section lasts a microsecond or two, less than a sleep and a wake-up. */
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(&partition->section, &attr);
    pthread_mutexattr_destroy(&attr);

    const struct fl_router_config *config = &service->config;
    struct fl_selector_config selector = {
        .policy = service->policy,
        .weights = {.credit = config->overlap_score_credit,
                    .credit_decay = config->overlap_score_credit_decay,
                    .prefill_scale = config->prefill_load_scale,
                    .request_weight = config->decode_active_request_weight,
                    .host = config->host_cache_hit_weight,
                    .disk = config->disk_cache_hit_weight,
                    .temperature = config->router_temperature},
        .is_decode = service->role == FL_ROLE_DECODE,
        .track_active_blocks = config->track_active_blocks,
        .track_output_blocks = config->track_output_blocks,
        .seed = config->seed.value,
    };
    partition->selector = fl_selector_new(&selector);
    if (service->looks_up)
        fl_events_open(partition);
    return partition;
}

struct fl_partition *fl_partition_get(struct fl_selection *service, struct fl_bytes model_name,
                                      struct fl_bytes routing_group)
{
    struct fl_partition *found = fl_partition_find(service, model_name, routing_group);
    if (found != NULL)
        return found;

    struct fl_partition_table *old = atomic_load(&service->partitions);
    size_t count = old != NULL ? old->count : 0;
    if (count == FL_PARTITIONS_MAX)
        return NULL;
    struct fl_partition_table *table = fl_alloc(sizeof *table + (count + 1) * sizeof table->at[0]);
    table->older = old;
    table->count = count + 1;
    if (old != NULL)
        memcpy(table->at, old->at, count * sizeof table->at[0]);
    table->at[count] = partition_new(service, model_name, routing_group);
    atomic_store_explicit(&service->partitions, table, memory_order_release);
    return table->at[count];
}

void fl_partitions_free(struct fl_selection *service)
{
    struct fl_partition_table *table = atomic_load(&service->partitions);
    for (size_t i = 0; table != NULL && i < table->count; i++) {
        struct fl_partition *partition = table->at[i];
        fl_selector_delete(partition->selector);
        pthread_mutex_destroy(&partition->section);
        fl_free(partition->model_text);
        fl_free(partition->group_text);
        fl_line_free(partition);
    }
    while (table != NULL) {
        struct fl_partition_table *older = table->older;
        fl_free(table);
        table = older;
    }
    atomic_store(&service->partitions, NULL);
}

/* ---- the section ---- */

/* Fresh memory of the kernel is mapped at its first touch: that too must happen outside the
 * section. */
static void *touched_memory(size_t bytes)
{
    void *memory = fl_alloc(bytes);
    memset(memory, 0, bytes);
    return memory;
}

void fl_section_lock(struct fl_partition *partition)
{
    size_t slab_bytes = 0;
    uint32_t buckets = 0;
    /* Who takes the wish fulfils it; others need not. */
    if (atomic_load_explicit(&partition->wish_slab, memory_order_relaxed) != 0)
        slab_bytes = atomic_exchange_explicit(&partition->wish_slab, 0, memory_order_relaxed);
    if (atomic_load_explicit(&partition->wish_buckets, memory_order_relaxed) != 0)
        buckets = atomic_exchange_explicit(&partition->wish_buckets, 0, memory_order_relaxed);
    void *slab = slab_bytes != 0 ? touched_memory(slab_bytes) : NULL;
    struct fl_active_node **table =
        buckets != 0 ? touched_memory(buckets * sizeof(struct fl_active_node *)) : NULL;

    pthread_mutex_lock(&partition->section);
    if (slab != NULL || table != NULL)
        fl_selector_donate(partition->selector, slab, slab_bytes, table, buckets);
}

void fl_section_unlock(struct fl_partition *partition)
{
    struct fl_active_wish wish = fl_selector_wants(partition->selector);
    if (wish.slab_bytes != 0)
        atomic_store_explicit(&partition->wish_slab, wish.slab_bytes, memory_order_relaxed);
    if (wish.buckets != 0)
        atomic_store_explicit(&partition->wish_buckets, wish.buckets, memory_order_relaxed);
    pthread_mutex_unlock(&partition->section);
}

uint64_t fl_section_enter(struct fl_partition *partition)
{
    fl_section_lock(partition);
    return fl_stats_now_ns();
}

uint64_t fl_section_leave(struct fl_partition *partition, uint64_t entered_ns)
{
    uint64_t now_ns = fl_stats_now_ns();
    fl_section_unlock(partition);
    fl_stats_section(fl_stats_here(&partition->service->stats), now_ns - entered_ns);
    return now_ns;
}
