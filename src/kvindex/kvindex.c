/* SPDX-License-Identifier: Apache-2.0 */
#include "kvindex/kvindex.h"

#include <assert.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/error.h"
#include "kvindex/hash.h"
#include "kvindex/impl.h"

/* Blocks of an event are known beforehand, so the lines of later ones are fetched while earlier
 * ones are worked on. What a line holds says which line comes next: each stage begins where the one
 * before it has had AHEAD blocks' time, enough for a miss of some 150 ns. */
#define AHEAD 5
#define RING 16 /* blocks under way: more than 3 * AHEAD, a power of two for the sake of `%` */

static void retire_segment(struct fl_table *table, uint64_t packed)
{
    struct fl_kvindex *index = table->owner;
    fl_kvindex_limbo(index, table == &index->by_seq ? LIMBO_BY_SEQ : LIMBO_BY_NAME, packed);
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
    fl_table_init(&index->by_seq, seed, &index->space);
    fl_table_init(&index->by_name, fl_mix64(seed + 1), &index->space);
    index->by_seq.hash_of = seq_hash_of;
    index->by_name.hash_of = fl_holders_name_hash;
    index->by_seq.prefetch = index->by_name.prefetch = prefetch_entry;
    index->by_seq.retire = index->by_name.retire = retire_segment;
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
    free_workers(index);
    fl_map_u64_fini(&index->holes);
    fl_space_fini(&index->space);
    fl_free(index->slots);
    fl_free(index->free_nodes);
    fl_free(index->free_slots);
    fl_free(index->dead_slots);
    fl_free(index->scratch);
    fl_free(index->seen);
    free(index);
}

/* One block of a store, hashes for both tables included. */
struct block {
    uint64_t seq, local, name;
    uint64_t seq_hash, name_hash;
};

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
    fl_kvindex_release_unused(index, node);
}

/* ---- the common case: a block of one rank, without children, below a block of that rank alone
 * ---- */

#define ONE_KID (UINT64_C(1) << 16)
#define ONE_CHILD_NODE (UINT64_C(1) << 32)

/* The parent's word if `slot` alone holds it and its count of children is a true one, else 0. */
static uint64_t sole_parent(const struct fl_kvindex *index, uint32_t parent, uint32_t slot)
{
    uint64_t word = word_of(index, parent);
    uint32_t kids = (uint32_t)(word >> 16 & 0xffff);
    bool is_sole = !is_list(word) && slot_of(word) == slot && kids < KIDS_MAX - 1;
    return is_sole ? word : 0;
}

static void set_parent(struct fl_kvindex *index, uint32_t parent, uint64_t word)
{
    atomic_store_explicit(&node_at(index, parent)->holders, word, memory_order_release);
}

/* A block that nobody has stored yet, under a name the rank does not use. False: the index is full.
 */
static bool store_new(struct fl_kvindex *index, struct fl_kvindex_rank *rank, uint32_t parent,
                      const struct block *block, uint32_t *made)
{
    if (!fl_table_reserve(&index->by_seq, block->seq_hash) ||
        !fl_table_reserve(&index->by_name, block->name_hash))
        return false;
    uint32_t node = fl_kvindex_node_new(index, block->seq, block->local, parent);
    if (node == NO_NODE)
        return false;
    struct node *fresh = node_at(index, node);
    set_node_tag(index, node, block->name);
    atomic_store_explicit(&fresh->holders, rank->slot, memory_order_relaxed);
    if (parent != NO_NODE) {
        uint64_t word = sole_parent(index, parent, rank->slot);
        if (word != 0) {
            set_parent(index, parent, word + ONE_KID + ONE_CHILD_NODE);
        } else {
            parent_gains(index, rank, parent);
            fl_holders_add_child_node(index, parent, 1);
        }
    }
    fl_table_insert(&index->by_name, block->name_hash, node);
    fl_table_insert(&index->by_seq, block->seq_hash, node); /* from here on it is seen, whole */
    rank->held[FL_TIER_DEVICE]++;
    *made = node;
    return true;
}

/* False if this is not the common case: nothing was done. */
static bool leave_leaf(struct fl_kvindex *index, struct fl_kvindex_rank *rank, uint32_t node,
                       uint64_t name_hash)
{
    struct node *leaf = node_at(index, node);
    uint64_t word = 0;
    uint32_t parent = *parent_of(index, node);
    if (word_of(index, node) != rank->slot) /* alone, no kids, no child nodes */
        return false;
    if (parent != NO_NODE) {
        word = sole_parent(index, parent, rank->slot);
        if (word == 0 || (word >> 16 & 0xffff) == 0)
            return false;
    }
    uint64_t seq = atomic_load_explicit(&leaf->seq, memory_order_relaxed);
    fl_table_remove(&index->by_name, name_hash, node);
    fl_table_remove(&index->by_seq, fl_table_hash(&index->by_seq, seq), node);
    atomic_store_explicit(&leaf->holders, NO_SLOT, memory_order_seq_cst);
    fl_kvindex_limbo(index, LIMBO_NODE, node);
    if (parent != NO_NODE)
        set_parent(index, parent, word - ONE_KID - ONE_CHILD_NODE);
    rank->held[FL_TIER_DEVICE]--;
    return true;
}

/* ---- store ---- */

static void ensure_scratch(struct fl_kvindex *index, size_t count)
{
    if (count <= index->scratch_cap)
        return;
    index->scratch_cap = count;
    index->scratch = fl_realloc(index->scratch, count, sizeof(*index->scratch));
}

/* Up to 32 names: a bitmap tells at once that all differ, unless two names happen to share a bit.
 */
static bool may_have_equal(const struct fl_kvindex_store *event)
{
    uint64_t bits[64] = {0};
    bool may = false;
    for (size_t i = 0; i < event->count; i++) {
        uint64_t bit = (event->external[i] * UINT64_C(0x9e3779b97f4a7c15)) >> 52;
        may |= (bits[bit / 64] >> bit % 64 & 1) != 0;
        may |= event->has_parent && event->external[i] == event->parent;
        bits[bit / 64] |= UINT64_C(1) << bit % 64;
    }
    return may;
}

static bool has_equal_small(const struct fl_kvindex_store *event)
{
    if (!may_have_equal(event))
        return false;
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

/* I6 */
static bool has_equal_names(struct fl_kvindex *index, const struct fl_kvindex_store *event)
{
    return event->count <= 32 ? has_equal_small(event) : has_equal_large(index, event);
}

/* The node of this block below `parent`, made without a holder if it is new; NO_NODE when the index
 * is full. */
static uint32_t node_below(struct fl_kvindex *index, uint32_t node, uint32_t parent,
                           const struct block *block)
{
    if (node != NO_NODE) {
        /* Two prefixes with one 64-bit sequence hash: the later one is refused, as the counts of
         * children must not go to another parent. */
        if (*parent_of(index, node) != parent || node_at(index, node)->local != block->local)
            return NO_NODE;
        return node;
    }
    if (!fl_table_reserve(&index->by_seq, block->seq_hash))
        return NO_NODE;
    node = fl_kvindex_node_new(index, block->seq, block->local, parent);
    if (node == NO_NODE)
        return NO_NODE;
    if (parent != NO_NODE)
        fl_holders_add_child_node(index, parent, 1);
    fl_table_insert(&index->by_seq, block->seq_hash, node);
    return node;
}

/* `named`: the node that the rank knows by this name so far, or NO_NODE. */
static bool store_at(struct fl_kvindex *index, struct fl_kvindex_rank *rank, uint32_t node,
                     uint32_t named, uint64_t name, struct fl_kvindex_stored *done)
{
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

/* The block's node, now held by the rank; NO_NODE when the index is full. */
static uint32_t store_block(struct fl_kvindex *index, struct fl_kvindex_rank *rank, uint32_t parent,
                            const struct block *block, struct fl_kvindex_stored *done)
{
    uint32_t node = find_seq(index, block->seq_hash, block->seq);
    uint32_t named = fl_holders_find_name(index, rank->slot, block->name_hash, block->name);
    if (node == NO_NODE && named == NO_NODE) {
        if (!store_new(index, rank, parent, block, &node))
            return NO_NODE;
        done->added++;
        return node;
    }
    node = node_below(index, node, parent, block);
    if (node != NO_NODE && !store_at(index, rank, node, named, block->name, done)) {
        fl_kvindex_release_unused(index, node);
        return NO_NODE;
    }
    return node;
}

/* Prepares block `i` of the event and fetches its buckets. */
static void prepare(const struct fl_kvindex *index, const struct fl_kvindex_store *event, size_t i,
                    struct block *block)
{
    if (i >= event->count)
        return;
    block->seq = index->scratch[i];
    block->local = event->local[i];
    block->name = event->external[i];
    block->seq_hash = fl_table_hash(&index->by_seq, block->seq);
    block->name_hash = fl_table_hash(&index->by_name, block->name);
    fl_table_prefetch(&index->by_seq, block->seq_hash);
    fl_table_prefetch(&index->by_name, block->name_hash);
}

static int store_device(struct fl_kvindex *index, struct fl_kvindex_rank *rank,
                        const struct fl_kvindex_store *event, struct fl_kvindex_stored *done)
{
    struct block ring[RING];
    uint32_t parent = NO_NODE;
    uint64_t before = 0;
    if (event->has_parent) {
        parent = fl_holders_find_name(index, rank->slot,
                                      fl_table_hash(&index->by_name, event->parent), event->parent);
        if (parent == NO_NODE)
            return FL_ENOT_FOUND;
        before = atomic_load_explicit(&node_at(index, parent)->seq, memory_order_relaxed);
    }
    ensure_scratch(index, event->count);
    fl_block_chain_all(event->has_parent ? &before : NULL, event->local, event->count,
                       index->scratch);

    for (size_t i = 0; i < 2 * AHEAD; i++)
        prepare(index, event, i, &ring[i % RING]);
    for (size_t i = 0; i < event->count; i++) {
        prepare(index, event, i + 2 * AHEAD, &ring[(i + 2 * AHEAD) % RING]);
        if (i + AHEAD < event->count) {
            uint32_t there = fl_table_first(&index->by_seq, ring[(i + AHEAD) % RING].seq_hash);
            if (there != NO_NODE)
                __builtin_prefetch(node_at(index, there), 1);
        }
        parent = store_block(index, rank, parent, &ring[i % RING], done);
        if (parent == NO_NODE)
            return FL_ELIMIT;
    }
    return 0;
}

/* Counters that anyone may read, once an event. */
static void publish(struct fl_kvindex *index, const struct fl_kvindex_rank *rank,
                    uint64_t held_before)
{
    stat_add(&index->stat_held[FL_TIER_DEVICE],
             (int64_t)(rank->held[FL_TIER_DEVICE] - held_before));
    atomic_store_explicit(&index->stat_nodes, index->by_seq.count, memory_order_relaxed);
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
    uint64_t held = rank->held[FL_TIER_DEVICE];
    int rc = store_device(index, rank, event, done);
    publish(index, rank, held);
    return rc;
}

/* One name of a removal on its way through the stages. */
struct leaving {
    uint64_t name_hash;
    uint32_t node; /* the likely one; verified when its turn comes */
};

/* First stage: the name's bucket. */
static void seek_bucket(const struct fl_kvindex *index, const uint64_t *external, size_t count,
                        size_t i, struct leaving *leaving)
{
    if (i >= count)
        return;
    leaving->name_hash = fl_table_hash(&index->by_name, external[i]);
    leaving->node = NO_NODE;
    fl_table_prefetch(&index->by_name, leaving->name_hash);
}

/* Second stage: the node. */
static void seek_node(const struct fl_kvindex *index, struct leaving *leaving)
{
    leaving->node = fl_table_first(&index->by_name, leaving->name_hash);
    if (leaving->node == NO_NODE)
        return;
    __builtin_prefetch(node_at(index, leaving->node), 1);
    __builtin_prefetch(parent_of(index, leaving->node));
}

/* Third stage: the bucket of its sequence hash. */
static void seek_seq(const struct fl_kvindex *index, const struct leaving *leaving)
{
    if (leaving->node == NO_NODE)
        return;
    uint64_t seq = atomic_load_explicit(&node_at(index, leaving->node)->seq, memory_order_relaxed);
    fl_table_prefetch(&index->by_seq, fl_table_hash(&index->by_seq, seq));
}

static bool remove_one(struct fl_kvindex *index, struct fl_kvindex_rank *rank, uint64_t name,
                       const struct leaving *leaving)
{
    uint32_t node = leaving->node;
    bool is_it =
        node != NO_NODE && word_of(index, node) == rank->slot && tag_of(index, node) == name;
    if (!is_it)
        node = fl_holders_find_name(index, rank->slot, leaving->name_hash, name);
    if (node == NO_NODE)
        return false;
    if (!leave_leaf(index, rank, node, leaving->name_hash))
        leave(index, rank, node, fl_holders_find(index, node, rank->slot));
    return true;
}

size_t fl_kvindex_remove(struct fl_kvindex *index, struct fl_kvindex_rank *rank, enum fl_tier tier,
                         const uint64_t *external, size_t count)
{
    struct leaving ring[RING];
    size_t removed = 0;
    uint64_t held = rank->held[FL_TIER_DEVICE];
    if (tier != FL_TIER_DEVICE)
        return 0;
    for (size_t i = 0; i < 3 * AHEAD; i++)
        seek_bucket(index, external, count, i, &ring[i % RING]);
    for (size_t i = 0; i < 2 * AHEAD && i < count; i++)
        seek_node(index, &ring[i % RING]);
    for (size_t i = 0; i < count; i++) {
        seek_bucket(index, external, count, i + 3 * AHEAD, &ring[(i + 3 * AHEAD) % RING]);
        if (i + 2 * AHEAD < count)
            seek_node(index, &ring[(i + 2 * AHEAD) % RING]);
        if (i + AHEAD < count)
            seek_seq(index, &ring[(i + AHEAD) % RING]);
        removed += remove_one(index, rank, external[i], &ring[i % RING]) ? 1 : 0;
    }
    publish(index, rank, held);
    return removed;
}

bool fl_kvindex_has(const struct fl_kvindex *index, const struct fl_kvindex_rank *rank,
                    enum fl_tier tier, uint64_t external)
{
    return tier == FL_TIER_DEVICE &&
           fl_holders_find_name(index, rank->slot, fl_table_hash(&index->by_name, external),
                                external) != NO_NODE;
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
