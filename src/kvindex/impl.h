/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the index share; see kvindex.h for the picture. Not for other folders.
 *
 * Holders of a node are one word, written by the writer alone and read whole by lookups:
 *
 *   none, one   0 | child nodes 31 | children held by the rank 16 | rank slot 16 (NO_SLOT: none)
 *   list        1 | address of a struct fl_holders
 *
 * A list is changed in place only by appending and by overwriting a member that leaves with
 * NO_SLOT: members never move under a reader, so one that stays is always seen. */
#ifndef FL_KVINDEX_IMPL_H
#define FL_KVINDEX_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/map.h"
#include "base/rng.h"
#include "kvindex/kvindex.h"
#include "kvindex/table.h"

#define NO_NODE UINT32_MAX
#define NO_SLOT 0xffffu
#define KIDS_MAX 0xffffu /* this many or more: the true number is lost, see struct rank */
#define NODE_CHUNK 16384 /* nodes allocated together */
#define NODE_CHUNKS (FL_KVINDEX_NODES_MAX / NODE_CHUNK)

/* One half of a cache line. */
struct node {
    _Alignas(32) _Atomic uint64_t seq;
    _Atomic uint64_t holders;
    uint64_t local;
    /* One holder: the name it uses. A list: the xor of its members' slot_signature(), so that equal
     * sets have equal numbers and a lookup need not read the list to see that nobody has dropped
     * out. */
    _Atomic uint64_t tag;
};

struct node_chunk {
    struct node node[NODE_CHUNK];
    uint32_t parent[NODE_CHUNK]; /* apart: within the node it would cost four bytes of padding */
};

struct fl_holders {
    uint64_t common;       /* the name all members use, unless has_own (writer only) */
    _Atomic uint32_t used; /* entries of `member`, those that left included */
    /* writer only */
    uint32_t cap : 31;
    uint32_t has_own : 1; /* names differ: they follow the members, see own_names() */
    uint32_t live;
    uint32_t child_nodes;
    _Atomic uint32_t member[]; /* rank slot | children held << 16; slot NO_SLOT: has left */
};

#define LIST_BIT (UINT64_C(1) << 63)

/* Two ranks' slots never share a signature; 64 random bits, like every hash here. */
static inline uint64_t slot_signature(uint32_t slot)
{
    return fl_mix64(UINT64_C(0x5bf03635d1c5d4a7) + slot * UINT64_C(0x9e3779b97f4a7c15));
}

static inline struct fl_holders *list_of(uint64_t word)
{
    return (struct fl_holders *)(uintptr_t)(word & ~LIST_BIT); // NOLINT(performance-no-int-to-ptr)
}

static inline bool is_list(uint64_t word)
{
    return (word & LIST_BIT) != 0;
}

/* Of a word that is no list. */
static inline uint32_t slot_of(uint64_t word)
{
    return (uint32_t)(word & 0xffff);
}

enum slot_state {
    SLOT_FREE,
    SLOT_LIVE,
    SLOT_HOLED, /* holds a block whose parent it does not hold: walk, do not skip */
    SLOT_DEAD,  /* cleared or removed: lookups pass over it until it is swept */
};

/* What lookups read of a rank. Written when ranks come, go or lose a block in the middle. */
struct slot {
    _Atomic uint64_t worker_id;
    _Atomic uint32_t dp_rank;
    _Atomic uint32_t row;
    _Atomic uint32_t state;
};

struct fl_kvindex_rank {
    uint64_t worker_id;
    uint32_t dp_rank;
    uint32_t row;
    uint32_t slot;
    /* More children under one block than KIDS_MAX: orphans can no longer be counted, so the rank is
     * walked until it is cleared. */
    bool is_crowded;
    uint64_t orphans; /* blocks held whose parent is not */
    uint64_t held[FL_TIER_COUNT];
};

struct worker {
    uint64_t worker_id;
    struct fl_kvindex_rank **ranks;
    uint32_t count, cap;
};

/* Things readers may still look at, gathered so that they are retired together. */
enum limbo_kind { LIMBO_NODE, LIMBO_SLOT, LIMBO_LIST, LIMBO_BY_SEQ, LIMBO_BY_NAME };
#define LIMBO_BATCH 250

struct limbo {
    struct fl_retired retired;
    struct fl_kvindex *index;
    uint32_t count;
    uint64_t item[LIMBO_BATCH]; /* kind << 60 | number, address or packed segment */
};

struct fl_kvindex {
    /* read by lookups; changed when the index grows */
    struct fl_epoch *epoch;
    struct slot *slots; /* FL_KVINDEX_RANKS_MAX of them, untouched pages cost nothing */
    struct fl_table by_seq;
    _Atomic(struct node_chunk *) chunk[NODE_CHUNKS];

    /* writer only */
    _Alignas(64) struct fl_table by_name;
    struct fl_space space; /* of table segments and nodes */
    uint32_t nodes_made;   /* numbers below are in use, free or in limbo */
    uint32_t *free_nodes, free_node_count, free_node_cap; /* a stack */
    struct fl_map_u64 workers;                            /* by worker id */
    struct fl_map_u64
        holes; /* slot << 32 | node -> children the rank holds below a node it does not */
    uint32_t slots_made;
    uint32_t *free_slots, free_slot_count;
    uint32_t *dead_slots, dead_slot_count;
    uint32_t pass_slots; /* the first so many dead slots are being swept: */
    uint32_t sweep_at, sweep_end;
    struct limbo *limbo; /* being filled */
    uint64_t limbo_out;  /* batches retired, not yet run */
    uint64_t *scratch;   /* sequence hashes of the event at hand */
    size_t scratch_cap;
    uint32_t *seen; /* hash set of positions, to find equal hashes in an event */
    size_t seen_cap;

    /* written by the writer, read by anyone now and then */
    _Alignas(64) _Atomic uint64_t stat_nodes, stat_ranks, stat_dead, stat_holes;
    _Atomic uint64_t stat_held[FL_TIER_COUNT];
};

static inline void stat_add(_Atomic uint64_t *stat, int64_t n)
{
    uint64_t value = atomic_load_explicit(stat, memory_order_relaxed);
    atomic_store_explicit(stat, value + (uint64_t)n, memory_order_relaxed);
}

static inline struct node_chunk *chunk_of(const struct fl_kvindex *index, uint32_t node)
{
    return atomic_load_explicit(&index->chunk[node / NODE_CHUNK], memory_order_acquire);
}

static inline struct node *node_at(const struct fl_kvindex *index, uint32_t node)
{
    return &chunk_of(index, node)->node[node % NODE_CHUNK];
}

static inline uint32_t *parent_of(const struct fl_kvindex *index, uint32_t node)
{
    return &chunk_of(index, node)->parent[node % NODE_CHUNK];
}

/* The writer's view; lookups load seq_cst. */
static inline uint64_t word_of(const struct fl_kvindex *index, uint32_t node)
{
    return atomic_load_explicit(&node_at(index, node)->holders, memory_order_relaxed);
}

struct seq_probe {
    const struct fl_kvindex *index;
    uint64_t seq;
};

static inline bool node_is(const void *ctx, uint32_t node)
{
    const struct seq_probe *probe = ctx;
    return atomic_load_explicit(&node_at(probe->index, node)->seq, memory_order_relaxed) ==
           probe->seq;
}

/* Any thread, inside the epoch. NO_NODE if the block is unknown. */
static inline uint32_t find_seq(const struct fl_kvindex *index, uint64_t hash, uint64_t seq)
{
    struct seq_probe probe = {index, seq};
    return fl_table_find(&index->by_seq, hash, node_is, &probe);
}

static inline uint64_t tag_of(const struct fl_kvindex *index, uint32_t node)
{
    return atomic_load_explicit(&node_at(index, node)->tag, memory_order_relaxed);
}

static inline void set_node_tag(struct fl_kvindex *index, uint32_t node, uint64_t tag)
{
    atomic_store_explicit(&node_at(index, node)->tag, tag, memory_order_relaxed);
}

/* ---- pool.c: nodes, slots and what waits for readers ---- */

void fl_kvindex_limbo(struct fl_kvindex *index, enum limbo_kind kind, uint64_t value);
void fl_kvindex_limbo_flush(struct fl_kvindex *index);
/* NO_NODE at the cap. The node has no holder and stands in no table. */
uint32_t fl_kvindex_node_new(struct fl_kvindex *index, uint64_t seq, uint64_t local,
                             uint32_t parent);
/* Frees `node`, then its ancestors, as far as they have neither holder nor child (I12). */
void fl_kvindex_release_unused(struct fl_kvindex *index, uint32_t node);
/* NO_SLOT when none is left. */
uint32_t fl_kvindex_slot_new(struct fl_kvindex *index);

/* ---- holders.c: who holds a node, and under which name (writer) ---- */

/* Where `slot` stands among the node's holders, or -1. */
int64_t fl_holders_find(const struct fl_kvindex *index, uint32_t node, uint32_t slot);
/* Adds a holder that is not there. False when the table of names is full: nothing changed. */
bool fl_holders_add(struct fl_kvindex *index, uint32_t node, uint32_t slot, uint32_t kids,
                    uint64_t name);
/* Gives the holder at `at` another name. It never looks absent meanwhile. False as above. */
bool fl_holders_rename(struct fl_kvindex *index, uint32_t node, int64_t at, uint64_t name);
/* Takes the holder at `at` away, its name with it. */
void fl_holders_remove(struct fl_kvindex *index, uint32_t node, int64_t at);
uint32_t fl_holders_kids(const struct fl_kvindex *index, uint32_t node, int64_t at);
void fl_holders_set_kids(struct fl_kvindex *index, uint32_t node, int64_t at, uint32_t kids);
uint64_t fl_holders_name(const struct fl_kvindex *index, uint32_t node, int64_t at);
uint32_t fl_holders_count(const struct fl_kvindex *index, uint32_t node);
uint32_t fl_holders_child_nodes(const struct fl_kvindex *index, uint32_t node);
void fl_holders_add_child_node(struct fl_kvindex *index, uint32_t node, int32_t n);
/* The node at which `slot` uses this name, or NO_NODE. */
uint32_t fl_holders_find_name(const struct fl_kvindex *index, uint32_t slot, uint64_t hash,
                              uint64_t name);
/* `hash_of` of the table of names. */
uint64_t fl_holders_name_hash(const void *index, uint32_t node, uint32_t segment, uint8_t tag,
                              uint32_t nth);

#endif
