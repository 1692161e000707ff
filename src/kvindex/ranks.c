/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks: how they come, are cleared and go.
 *
 * What a rank holds is never searched for when it is cleared: its slot is marked dead, lookups pass
 * over dead slots, and the rank goes on with a fresh slot. One sweep over all nodes then takes the
 * dead slots off in slices (fl_kvindex_maintain()), however many there are; a slot that every node
 * has been looked at for is free again once no reader can still know it. */
#include <assert.h>

#include "base/alloc.h"
#include "kvindex/impl.h"

static void open_slot(struct fl_kvindex *index, const struct fl_kvindex_rank *rank)
{
    struct slot *slot = &index->slots[rank->slot];
    atomic_store_explicit(&slot->worker_id, rank->worker_id, memory_order_relaxed);
    atomic_store_explicit(&slot->dp_rank, rank->dp_rank, memory_order_relaxed);
    atomic_store_explicit(&slot->row, rank->row, memory_order_relaxed);
    atomic_store_explicit(&slot->state, SLOT_LIVE, memory_order_release);
}

/* Of the slot's holes; they are few, and gone with the rank in ordinary life. */
static void forget_holes(struct fl_kvindex *index, uint32_t slot)
{
    uint64_t *keys = fl_alloc((index->holes.count + 1) * sizeof(*keys));
    uint32_t count = 0, at = 0;
    uint64_t key;
    void *value;
    while (fl_map_u64_next(&index->holes, &at, &key, &value))
        if (key >> 32 == slot)
            keys[count++] = key;
    for (uint32_t i = 0; i < count; i++)
        fl_map_u64_take(&index->holes, keys[i]);
    fl_free(keys);
}

/* Everything the rank holds is gone for lookups from here on. */
static void kill_slot(struct fl_kvindex *index, struct fl_kvindex_rank *rank)
{
    atomic_store_explicit(&index->slots[rank->slot].state, SLOT_DEAD, memory_order_seq_cst);
    if (rank->orphans > 0)
        forget_holes(index, rank->slot);
    stat_add(&index->stat_holes, -(int64_t)rank->orphans);
    for (size_t tier = 0; tier < FL_TIER_COUNT; tier++) {
        stat_add(&index->stat_held[tier], -(int64_t)rank->held[tier]);
        rank->held[tier] = 0;
    }
    rank->orphans = 0;
    rank->is_crowded = false;
    index->dead_slots[index->dead_slot_count++] = rank->slot;
    stat_add(&index->stat_dead, 1);
}

static bool holds_any(const struct fl_kvindex_rank *rank)
{
    for (size_t tier = 0; tier < FL_TIER_COUNT; tier++)
        if (rank->held[tier] > 0)
            return true;
    return false;
}

/* ---- the sweep ---- */

static bool is_dead(const struct fl_kvindex *index, uint32_t slot)
{
    return slot != NO_SLOT &&
           atomic_load_explicit(&index->slots[slot].state, memory_order_relaxed) == SLOT_DEAD;
}

/* Where a dead slot stands among the node's holders, or -1. */
static int64_t find_dead(const struct fl_kvindex *index, uint32_t node)
{
    uint64_t word = word_of(index, node);
    if (!is_list(word))
        return is_dead(index, slot_of(word)) ? 0 : -1;
    const struct fl_holders *list = list_of(word);
    uint32_t used = atomic_load_explicit(&list->used, memory_order_relaxed);
    for (uint32_t i = 0; i < used; i++)
        if (is_dead(index, atomic_load_explicit(&list->member[i], memory_order_relaxed) & 0xffff))
            return i;
    return -1;
}

static void sweep_node(struct fl_kvindex *index, uint32_t node)
{
    int64_t at = find_dead(index, node);
    if (at < 0)
        return;
    for (; at >= 0; at = find_dead(index, node))
        fl_holders_remove(index, node, at);
    fl_kvindex_release_unused(index, node);
}

/* Every node has been looked at since these slots died. */
static void end_pass(struct fl_kvindex *index)
{
    for (uint32_t i = 0; i < index->pass_slots; i++) {
        struct slot *slot = &index->slots[index->dead_slots[i]];
        atomic_store_explicit(&slot->state, SLOT_FREE, memory_order_release);
        fl_kvindex_limbo(index, LIMBO_SLOT, index->dead_slots[i]);
    }
    stat_add(&index->stat_dead, -(int64_t)index->pass_slots);
    index->dead_slot_count -= index->pass_slots;
    for (uint32_t i = 0; i < index->dead_slot_count; i++)
        index->dead_slots[i] = index->dead_slots[i + index->pass_slots];
    index->pass_slots = 0;
}

/* Slots that die during a pass wait for the next one. */
static void sweep(struct fl_kvindex *index, size_t budget)
{
    while (budget > 0 && index->dead_slot_count > 0) {
        if (index->pass_slots == 0) {
            index->pass_slots = index->dead_slot_count;
            index->sweep_at = 0;
            index->sweep_end = index->nodes_made;
        }
        for (; budget > 0 && index->sweep_at < index->sweep_end; budget--)
            sweep_node(index, index->sweep_at++);
        if (index->sweep_at == index->sweep_end)
            end_pass(index);
    }
    atomic_store_explicit(&index->stat_nodes, index->by_seq.count, memory_order_relaxed);
}

bool fl_kvindex_maintain(struct fl_kvindex *index, size_t budget)
{
    sweep(index, budget);
    fl_kvindex_limbo_flush(index);
    size_t waiting = fl_epoch_reclaim(index->epoch, budget);
    return index->dead_slot_count > 0 || waiting > 0;
}

/* All slots are taken: gives back the dead ones at once, however long that takes. */
static uint32_t slot_by_force(struct fl_kvindex *index)
{
    while (index->dead_slot_count > 0)
        sweep(index, SIZE_MAX);
    fl_kvindex_limbo_flush(index);
    while (index->free_slot_count == 0 && index->limbo_out > 0) {
        fl_epoch_synchronize(index->epoch);
        fl_epoch_reclaim(index->epoch, SIZE_MAX);
    }
    return fl_kvindex_slot_new(index);
}

static uint32_t obtain_slot(struct fl_kvindex *index)
{
    uint32_t slot = fl_kvindex_slot_new(index);
    return slot != NO_SLOT ? slot : slot_by_force(index);
}

/* ---- ranks ---- */

static struct fl_kvindex_rank *rank_of(const struct worker *worker, uint32_t dp_rank)
{
    for (uint32_t i = 0; worker != NULL && i < worker->count; i++)
        if (worker->ranks[i]->dp_rank == dp_rank)
            return worker->ranks[i];
    return NULL;
}

struct fl_kvindex_rank *fl_kvindex_rank_find(const struct fl_kvindex *index, uint64_t worker_id,
                                             uint32_t dp_rank)
{
    return rank_of(fl_map_u64_find(&index->workers, worker_id), dp_rank);
}

struct fl_kvindex_rank *fl_kvindex_rank_get(struct fl_kvindex *index, uint64_t worker_id,
                                            uint32_t dp_rank)
{
    struct worker *worker = fl_map_u64_find(&index->workers, worker_id);
    struct fl_kvindex_rank *rank = rank_of(worker, dp_rank);
    if (rank != NULL)
        return rank;
    uint32_t slot = obtain_slot(index);
    if (slot == NO_SLOT)
        return NULL;

    if (worker == NULL) {
        worker = fl_calloc(1, sizeof(*worker));
        worker->worker_id = worker_id;
        fl_map_u64_put(&index->workers, worker_id, worker);
    }
    if (worker->count == worker->cap) {
        worker->cap = worker->cap == 0 ? 1 : worker->cap * 2;
        worker->ranks = fl_realloc(worker->ranks, worker->cap, sizeof(struct fl_kvindex_rank *));
    }
    rank = fl_calloc(1, sizeof(*rank));
    rank->worker_id = worker_id;
    rank->dp_rank = dp_rank;
    rank->row = FL_KVINDEX_NO_ROW;
    rank->slot = slot;
    worker->ranks[worker->count++] = rank;
    open_slot(index, rank);
    stat_add(&index->stat_ranks, 1);
    return rank;
}

void fl_kvindex_rank_set_row(struct fl_kvindex *index, struct fl_kvindex_rank *rank, uint32_t row)
{
    rank->row = row;
    atomic_store_explicit(&index->slots[rank->slot].row, row, memory_order_release);
}

uint64_t fl_kvindex_rank_blocks(const struct fl_kvindex_rank *rank, enum fl_tier tier)
{
    return rank->held[tier];
}

/* Lookups that are under way may still know an empty slot, from before its last block went. */
static void drop_slot(struct fl_kvindex *index, struct fl_kvindex_rank *rank)
{
    if (holds_any(rank)) {
        kill_slot(index, rank);
        return;
    }
    atomic_store_explicit(&index->slots[rank->slot].state, SLOT_FREE, memory_order_seq_cst);
    fl_kvindex_limbo(index, LIMBO_SLOT, rank->slot);
}

void fl_kvindex_clear(struct fl_kvindex *index, struct fl_kvindex_rank *rank)
{
    if (!holds_any(rank))
        return;
    kill_slot(index, rank);
    /* There is one: if nothing else is free, the slot that has just died is. */
    rank->slot = obtain_slot(index);
    assert(rank->slot != NO_SLOT);
    open_slot(index, rank);
}

static void free_rank(struct fl_kvindex *index, struct fl_kvindex_rank *rank)
{
    drop_slot(index, rank);
    stat_add(&index->stat_ranks, -1);
    fl_free(rank);
}

static void free_worker(struct fl_kvindex *index, struct worker *worker)
{
    fl_map_u64_take(&index->workers, worker->worker_id);
    fl_free(worker->ranks);
    fl_free(worker);
}

void fl_kvindex_remove_rank(struct fl_kvindex *index, struct fl_kvindex_rank *rank)
{
    struct worker *worker = fl_map_u64_find(&index->workers, rank->worker_id);
    for (uint32_t i = 0; i < worker->count; i++)
        if (worker->ranks[i] == rank) {
            worker->ranks[i] = worker->ranks[--worker->count];
            break;
        }
    free_rank(index, rank);
    if (worker->count == 0)
        free_worker(index, worker);
}

uint32_t fl_kvindex_remove_worker(struct fl_kvindex *index, uint64_t worker_id)
{
    struct worker *worker = fl_map_u64_find(&index->workers, worker_id);
    if (worker == NULL)
        return 0;
    uint32_t count = worker->count;
    for (uint32_t i = 0; i < count; i++)
        free_rank(index, worker->ranks[i]);
    free_worker(index, worker);
    return count;
}
