/* SPDX-License-Identifier: Apache-2.0 */
#include "kvindex/kvindex.h"

#include <assert.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/error.h"
#include "kvindex/hash.h"
#include "kvindex/impl.h"

/* Blocks of an event are known beforehand, so the lines of later ones are fetched while earlier ones are
 * worked on. What a line holds says which line comes next: each stage begins where the one before it
 * has had AHEAD blocks' time, enough for a miss of some 150 ns. */
#define AHEAD 6

static void retire_table(void *owner, void *memory)
{
    fl_kvindex_limbo(owner, LIMBO_TABLE, (uint64_t)(uintptr_t)memory);
}

static void prefetch_entry(const void *owner, uint32_t node)
{
    __builtin_prefetch(node_at(owner, node));
}

static uint64_t seq_hash_of(const void *owner, uint32_t node, uint32_t segment, uint8_t tag,
                            uint32_t nth)
{
    (void)segment, (void)tag, (void)nth; /* a node has one sequence hash */
    const struct fl_kvindex *index = owner;
    return fl_table_hash(&index->by_seq,
                         atomic_load_explicit(&node_at(index, node)->seq, memory_order_relaxed));
}

struct fl_kvindex *fl_kvindex_new(struct fl_epoch *epoch)
{
    size_t bytes = (sizeof(struct fl_kvindex) + 63) / 64 * 64;
    struct fl_kvindex *index = aligned_alloc(64, bytes);
    if (index == NULL)
        abort(); /* as fl_alloc(), which does not align this far */
    uint64_t seed;
    fl_random_bytes(&seed, sizeof(seed));

    *index = (struct fl_kvindex){.epoch = epoch};
    index->slots = fl_calloc(FL_KVINDEX_RANKS_MAX, sizeof(*index->slots));
    index->free_slots = fl_alloc(FL_KVINDEX_RANKS_MAX * sizeof(*index->free_slots));
    index->dead_slots = fl_alloc(FL_KVINDEX_RANKS_MAX * sizeof(*index->dead_slots));
    fl_table_init(&index->by_seq, seed);
    fl_table_init(&index->by_name, fl_mix64(seed + 1));
    index->by_seq.hash_of = seq_hash_of;
    index->by_name.hash_of = fl_holders_name_hash;
    index->by_seq.prefetch = index->by_name.prefetch = prefetch_entry;
    index->by_seq.retire = index->by_name.retire = retire_table;
    index->by_seq.owner = index->by_name.owner = index;
    return index;
}

static void free_workers(struct fl_kvindex *index)
{
    uint32_t at = 0;
    uint64_t key;
    void *value;
    while (fl_map_u64_next(&index->workers, &at, &key, &value)) {
        struct worker *worker = value;
        for (uint32_t i = 0; i < worker->count; i++)
            fl_free(worker->ranks[i]);
        fl_free(worker->ranks);
        fl_free(worker);
    }
    fl_map_u64_fini(&index->workers);
}

void fl_kvindex_free(struct fl_kvindex *index)
{
    if (index == NULL)
        return;
    fl_kvindex_limbo_flush(index);
    while (index->limbo_out > 0) {
        fl_epoch_synchronize(index->epoch);
        fl_epoch_reclaim(index->epoch, SIZE_MAX);
    }
    for (uint32_t node = 0; node < index->nodes_made; node++) {
        uint64_t word = word_of(index, node);
        if (is_list(word))
            fl_free(list_of(word));
    }
    for (uint32_t i = 0; i * NODE_CHUNK < index->nodes_made; i++)
        free(atomic_load_explicit(&index->chunk[i], memory_order_relaxed));
    free_workers(index);
    fl_map_u64_fini(&index->holes);
    fl_table_fini(&index->by_seq);
    fl_table_fini(&index->by_name);
    fl_free(index->slots);
    fl_free(index->free_nodes);
    fl_free(index->free_slots);
    fl_free(index->dead_slots);
    fl_free(index->scratch);
    fl_free(index->seen);
    free(index);
}

/* ---- holes: blocks a rank does not hold while it holds some of their children ---- */

static uint64_t hole_key(uint32_t slot, uint32_t node)
{
    return (uint64_t)slot << 32 | node;
}

static void set_state(struct fl_kvindex *index, const struct fl_kvindex_rank *rank)
{
    bool is_holed = rank->orphans > 0 || rank->is_crowded;
    struct slot *slot = &index->slots[rank->slot];
    enum slot_state state = is_holed ? SLOT_HOLED : SLOT_LIVE;
    if (atomic_load_explicit(&slot->state, memory_order_relaxed) != state)
        atomic_store_explicit(&slot->state, state, memory_order_seq_cst);
}

static void hole_add(struct fl_kvindex *index, struct fl_kvindex_rank *rank, uint32_t node,
                     uint32_t orphans)
{
    if (orphans == KIDS_MAX) {
        rank->is_crowded = true;
    } else {
        void *was = fl_map_u64_put(&index->holes, hole_key(rank->slot, node),
                                   (void *)(uintptr_t)orphans); // NOLINT(performance-no-int-to-ptr)
        assert(was == NULL);
        (void)was;
        rank->orphans += orphans;
        stat_add(&index->stat_holes, orphans);
    }
    set_state(index, rank);
}

/* The rank is about to hold `node`: how many children below it does it hold already? */
static uint32_t hole_take(struct fl_kvindex *index, struct fl_kvindex_rank *rank, uint32_t node)
{
    if (rank->orphans == 0)
        return 0;
    uint32_t orphans =
        (uint32_t)(uintptr_t)fl_map_u64_take(&index->holes, hole_key(rank->slot, node));
    rank->orphans -= orphans;
    stat_add(&index->stat_holes, -(int64_t)orphans);
    return orphans;
}

/* An orphan below `node` is gone. */
static void hole_drop_one(struct fl_kvindex *index, struct fl_kvindex_rank *rank, uint32_t node)
{
    uint32_t orphans = hole_take(index, rank, node);
    if (orphans > 1)
        hole_add(index, rank, node, orphans - 1);
    else
        set_state(index, rank);
}

/* ---- membership ---- */

static void parent_gains(struct fl_kvindex *index, struct fl_kvindex_rank *rank, uint32_t parent)
{
    if (parent == NO_NODE)
        return;
    int64_t at = fl_holders_find(index, parent, rank->slot);
    assert(at >= 0); /* I2: a store goes below what the rank holds */
    uint32_t kids = fl_holders_kids(index, parent, at);
    if (kids < KIDS_MAX)
        fl_holders_set_kids(index, parent, at, kids + 1);
}

static void parent_loses(struct fl_kvindex *index, struct fl_kvindex_rank *rank, uint32_t parent)
{
    if (parent == NO_NODE)
        return;
    int64_t at = fl_holders_find(index, parent, rank->slot);
    if (at < 0) {
        hole_drop_one(index, rank, parent);
        return;
    }
    uint32_t kids = fl_holders_kids(index, parent, at);
    /* 0 only for a crowded rank, whose counts mean nothing any more. */
    assert(kids > 0 || rank->is_crowded);
    if (kids > 0 && kids < KIDS_MAX)
        fl_holders_set_kids(index, parent, at, kids - 1);
}

static bool join(struct fl_kvindex *index, struct fl_kvindex_rank *rank, uint32_t node,
                 uint64_t name)
{
    uint32_t kids = hole_take(index, rank, node);
    if (!fl_holders_add(index, node, rank->slot, kids, name)) {
        if (kids > 0)
            hole_add(index, rank, node, kids);
        return false;
    }
    parent_gains(index, rank, *parent_of(index, node));
    /* Only now may lookups skip again: the hole is filled. */
    if (kids > 0)
        set_state(index, rank);
    rank->held[FL_TIER_DEVICE]++;
    stat_add(&index->stat_held[FL_TIER_DEVICE], 1);
    return true;
}

static void leave(struct fl_kvindex *index, struct fl_kvindex_rank *rank, uint32_t node, int64_t at)
{
    uint32_t kids = fl_holders_kids(index, node, at);
    uint32_t parent = *parent_of(index, node);
    if (kids > 0)
        hole_add(index, rank, node, kids); /* before: lookups must not skip over the hole */
    fl_holders_remove(index, node, at);
    parent_loses(index, rank, parent);
    rank->held[FL_TIER_DEVICE]--;
    stat_add(&index->stat_held[FL_TIER_DEVICE], -1);
    fl_kvindex_release_unused(index, node);
}

/* ---- store ---- */

static void ensure_scratch(struct fl_kvindex *index, size_t count)
{
    if (count <= index->scratch_cap)
        return;
    index->scratch_cap = count;
    index->scratch = fl_realloc(index->scratch, count, sizeof(*index->scratch));
}

static bool has_equal_small(const struct fl_kvindex_store *event)
{
    for (size_t i = 0; i < event->count; i++) {
        if (event->has_parent && event->external[i] == event->parent)
            return true;
        for (size_t j = 0; j < i; j++)
            if (event->external[i] == event->external[j])
                return true;
    }
    return false;
}

/* Open addressing over positions + 1; 0 is free. */
static bool has_equal_large(struct fl_kvindex *index, const struct fl_kvindex_store *event)
{
    size_t cap = 64;
    while (cap < event->count * 2)
        cap *= 2;
    if (cap > index->seen_cap) {
        fl_free(index->seen);
        index->seen = fl_alloc(cap * sizeof(*index->seen));
        index->seen_cap = cap;
    }
    for (size_t i = 0; i < cap; i++)
        index->seen[i] = 0;
    for (size_t i = 0; i < event->count; i++) {
        uint64_t name = event->external[i];
        if (event->has_parent && name == event->parent)
            return true;
        size_t at = fl_table_hash(&index->by_name, name) & (cap - 1);
        for (; index->seen[at] != 0; at = (at + 1) & (cap - 1))
            if (event->external[index->seen[at] - 1] == name)
                return true;
        index->seen[at] = (uint32_t)i + 1;
    }
    return false;
}

/* I6. Quadratic for the usual sizes: 32 blocks are 500 compares, less than filling a table. */
static bool has_equal_names(struct fl_kvindex *index, const struct fl_kvindex_store *event)
{
    return event->count <= 32 ? has_equal_small(event) : has_equal_large(index, event);
}

/* The node of this block below `parent`, made if it is new; NO_NODE when the index is full. */
static uint32_t node_below(struct fl_kvindex *index, uint32_t parent, uint64_t hash, uint64_t seq,
                           uint64_t local)
{
    uint32_t node = find_seq(index, hash, seq);
    if (node != NO_NODE) {
        /* Two prefixes with one 64-bit sequence hash: the later one is refused, as the counts of
         * children must not go to another parent. */
        if (*parent_of(index, node) != parent || node_at(index, node)->local != local)
            return NO_NODE;
        return node;
    }
    if (!fl_table_reserve(&index->by_seq, hash))
        return NO_NODE;
    node = fl_kvindex_node_new(index, seq, local, parent);
    if (node == NO_NODE)
        return NO_NODE;
    if (parent != NO_NODE)
        fl_holders_add_child_node(index, parent, 1);
    fl_table_insert(&index->by_seq, hash, node);
    return node;
}

static bool store_block(struct fl_kvindex *index, struct fl_kvindex_rank *rank, uint32_t node,
                        uint64_t name, struct fl_kvindex_stored *done)
{
    uint32_t named = fl_holders_find_name(index, rank->slot, name);
    if (named == node) {
        done->repeated++;
        return true;
    }
    int64_t at = fl_holders_find(index, node, rank->slot);
    if (at >= 0) { /* held under another name: the newest is the one its removal will use */
        if (!fl_holders_rename(index, node, at, name))
            return false;
        done->repeated++;
    } else {
        if (!join(index, rank, node, name))
            return false;
        done->added++;
    }
    /* After joining: were the old place a child of the new one, it would still keep it alive. */
    if (named != NO_NODE) {
        leave(index, rank, named, fl_holders_find(index, named, rank->slot));
        done->moved++;
    }
    return true;
}

static void prefetch_buckets(const struct fl_kvindex *index, const struct fl_kvindex_store *event,
                             size_t i)
{
    if (i >= event->count)
        return;
    fl_table_prefetch(&index->by_seq, fl_table_hash(&index->by_seq, index->scratch[i]));
    fl_table_prefetch(&index->by_name, fl_table_hash(&index->by_name, event->external[i]));
}

/* The node, if there is one already. */
static void prefetch_stored(const struct fl_kvindex *index, const struct fl_kvindex_store *event,
                            size_t i)
{
    if (i >= event->count)
        return;
    uint64_t hash = fl_table_hash(&index->by_seq, index->scratch[i]);
    uint32_t node = fl_table_first(&index->by_seq, hash);
    if (node != NO_NODE)
        __builtin_prefetch(node_at(index, node), 1);
}

static int store_device(struct fl_kvindex *index, struct fl_kvindex_rank *rank,
                        const struct fl_kvindex_store *event, struct fl_kvindex_stored *done)
{
    uint32_t parent = NO_NODE;
    uint64_t before = 0;
    if (event->has_parent) {
        parent = fl_holders_find_name(index, rank->slot, event->parent);
        if (parent == NO_NODE)
            return FL_ENOT_FOUND;
        before = atomic_load_explicit(&node_at(index, parent)->seq, memory_order_relaxed);
    }
    ensure_scratch(index, event->count);
    fl_block_chain_all(event->has_parent ? &before : NULL, event->local, event->count,
                       index->scratch);

    for (size_t i = 0; i < event->count && i < 2 * AHEAD; i++)
        prefetch_buckets(index, event, i);
    for (size_t i = 0; i < event->count; i++) {
        prefetch_buckets(index, event, i + 2 * AHEAD);
        prefetch_stored(index, event, i + AHEAD);
        uint64_t seq = index->scratch[i];
        uint32_t node =
            node_below(index, parent, fl_table_hash(&index->by_seq, seq), seq, event->local[i]);
        if (node == NO_NODE)
            return FL_ELIMIT;
        if (!store_block(index, rank, node, event->external[i], done)) {
            fl_kvindex_release_unused(index, node);
            return FL_ELIMIT;
        }
        parent = node;
    }
    return 0;
}

int fl_kvindex_store(struct fl_kvindex *index, struct fl_kvindex_rank *rank,
                     const struct fl_kvindex_store *event, struct fl_kvindex_stored *done)
{
    struct fl_kvindex_stored ignored;
    if (done == NULL)
        done = &ignored;
    *done = (struct fl_kvindex_stored){0};
    if (event->tier != FL_TIER_DEVICE)
        return FL_EUNSUPPORTED;
    if (event->count > FL_KVINDEX_EVENT_BLOCKS_MAX || has_equal_names(index, event))
        return FL_EBAD_REQUEST;
    return store_device(index, rank, event, done);
}

/* What the removal of a name will touch, in three stages: its bucket, its node, the node's own bucket. */
static void prefetch_removed(const struct fl_kvindex *index, const uint64_t *external, size_t count,
                             size_t i)
{
    if (i + 3 * AHEAD < count)
        fl_table_prefetch(&index->by_name,
                          fl_table_hash(&index->by_name, external[i + 3 * AHEAD]));
    if (i + 2 * AHEAD < count) {
        uint32_t node = fl_table_first(
            &index->by_name, fl_table_hash(&index->by_name, external[i + 2 * AHEAD]));
        if (node != NO_NODE) {
            __builtin_prefetch(node_at(index, node), 1);
            __builtin_prefetch(parent_of(index, node));
        }
    }
    if (i + AHEAD < count) {
        uint32_t node = fl_holders_peek_name(index, external[i + AHEAD]);
        if (node != NO_NODE)
            fl_table_prefetch(&index->by_seq,
                              fl_table_hash(&index->by_seq,
                                            atomic_load_explicit(&node_at(index, node)->seq,
                                                                 memory_order_relaxed)));
    }
}

size_t fl_kvindex_remove(struct fl_kvindex *index, struct fl_kvindex_rank *rank, enum fl_tier tier,
                         const uint64_t *external, size_t count)
{
    size_t removed = 0;
    if (tier != FL_TIER_DEVICE)
        return 0;
    for (size_t i = 0; i < count && i < 3 * AHEAD; i++)
        fl_table_prefetch(&index->by_name, fl_table_hash(&index->by_name, external[i]));
    for (size_t i = 0; i < count; i++) {
        prefetch_removed(index, external, count, i);
        uint32_t node = fl_holders_find_name(index, rank->slot, external[i]);
        if (node == NO_NODE)
            continue;
        leave(index, rank, node, fl_holders_find(index, node, rank->slot));
        removed++;
    }
    return removed;
}

bool fl_kvindex_has(const struct fl_kvindex *index, const struct fl_kvindex_rank *rank,
                    enum fl_tier tier, uint64_t external)
{
    return tier == FL_TIER_DEVICE && fl_holders_find_name(index, rank->slot, external) != NO_NODE;
}

void fl_kvindex_stats(const struct fl_kvindex *index, struct fl_kvindex_stats *stats)
{
    stats->nodes = atomic_load_explicit(&index->stat_nodes, memory_order_relaxed);
    stats->ranks = atomic_load_explicit(&index->stat_ranks, memory_order_relaxed);
    stats->dead_ranks = atomic_load_explicit(&index->stat_dead, memory_order_relaxed);
    stats->holes = atomic_load_explicit(&index->stat_holes, memory_order_relaxed);
    for (size_t i = 0; i < FL_TIER_COUNT; i++)
        stats->held[i] = atomic_load_explicit(&index->stat_held[i], memory_order_relaxed);
}
