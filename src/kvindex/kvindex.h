/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix index: which (worker, rank) holds which block of KV cache, and for how many leading
 * blocks of a prompt (selection.md section 12). One index per partition.
 *
 * Meaning: a tree of blocks, reached from the root by local hashes; each node knows its holders;
 * each rank maps the engine's external hash to a node. Layout: no tree is walked. A node is found
 * by its sequence hash alone, and those come from the request, so all probe addresses are known
 * beforehand.
 *
 *   sequence hash -> [bucket of 12 tags and node numbers, one cache line] -> node
 *   external hash -> [the same kind of table, writer only]                -> node
 *
 *   node (32 B, half a cache line):  sequence hash | holders: none, one rank inline, or a list |
 *                                    local hash | name of the one holder, or signature of the set
 *   apart (4 B):                     parent
 *   list:                            members (rank slot, children this rank holds below) | own
 * external hashes, only when a rank names the block differently
 *
 * Long matches are not walked either. A rank without holes that holds block i holds all before it,
 * so the lookup searches for the positions where the set of holders changes: full matches of any
 * length cost two probes. A rank that lost a block in the middle but keeps deeper ones has a hole
 * count > 0 and is walked block by block until the hole is filled or the deeper blocks go. Both
 * ways give exactly the longest run from block 0 without a gap.
 *
 * Invariants (fl_kvindex_check() walks them; I1-I17 of the spec page are tests):
 *   - a node has a holder or a child; its parent outlives it; each is in the sequence table once;
 *   - each (rank, node) membership has exactly one external name, the newest given; each name in
 * use at a node stands once in the external table;
 *   - a member's child count is the number of that node's children the rank holds, and holes[rank,
 *     node] the same for a node it does not hold; a rank's orphans are the sum of its holes.
 *
 * Threads: one writer (the runtime's event thread) calls everything but the lookups. Lookups run on
 * any thread, wait-free under `epoch`, and write no line that another thread reads. Beside a
 * running writer an answer may mix before and after: never less than what the rank held during the
 * whole lookup, never more than it ever stored. At rest it is exact.
 *
 * Cost: store and remove O(1) a block; lookup O(changes x log n) probes; clearing a rank or
 * removing a worker O(1) at once (lookups skip it from then on), its memory comes back in slices by
 * fl_kvindex_maintain(). About 52 B for a block's first holder, 4 B plus slack for each further one
 * that uses the same external hash. */
#ifndef FL_KVINDEX_KVINDEX_H
#define FL_KVINDEX_KVINDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/epoch.h"

/* Ranks of one index that are alive or still being swept (selection.md 13.3 caps a dump's owners
 * alike). Beyond it a new rank is refused with FL_ELIMIT. */
#define FL_KVINDEX_RANKS_MAX 65535
/* Distinct blocks of one index: 2^28 x 64 B is the memory of a large machine. Stores beyond it fail
 * with FL_ELIMIT. */
#define FL_KVINDEX_NODES_MAX (UINT32_C(1) << 28)
/* Blocks of one store event: 4 Mi tokens of 64-token blocks. A longer one is FL_EBAD_REQUEST. */
#define FL_KVINDEX_EVENT_BLOCKS_MAX 65536

/* Storage tiers, in the order in which a match goes on (selection.md 12.3). */
enum fl_tier { FL_TIER_DEVICE, FL_TIER_HOST_PINNED, FL_TIER_DISK, FL_TIER_EXTERNAL, FL_TIER_COUNT };

struct fl_kvindex;
struct fl_kvindex_rank; /* one (worker, rank) as the index knows it; lives until it is removed */

/* `epoch` is shared with everything else the writer thread retires, and outlives the index. */
struct fl_kvindex *fl_kvindex_new(struct fl_epoch *epoch);
/* Writer; no reader inside. NULL allowed. */
void fl_kvindex_free(struct fl_kvindex *index);

/* ---- writer: ranks ---- */

/* `row` of a rank nobody has given one: a rank seen only in events is indexed but never eligible.
 */
#define FL_KVINDEX_NO_ROW UINT32_MAX

/* The rank, made if it is new. NULL when FL_KVINDEX_RANKS_MAX are there. Lent until it is removed.
 */
struct fl_kvindex_rank *fl_kvindex_rank_get(struct fl_kvindex *index, uint64_t worker_id,
                                            uint32_t dp_rank);
/* NULL if unknown. */
struct fl_kvindex_rank *fl_kvindex_rank_find(const struct fl_kvindex *index, uint64_t worker_id,
                                             uint32_t dp_rank);
/* A number of the caller's choice that comes back in every match of this rank, so that who scores
 * needs no map from worker to its own row. A hint: it may be one change late, so compare worker_id.
 */
void fl_kvindex_rank_set_row(struct fl_kvindex *index, struct fl_kvindex_rank *rank, uint32_t row);
/* Blocks it holds in `tier`. */
uint64_t fl_kvindex_rank_blocks(const struct fl_kvindex_rank *rank, enum fl_tier tier);

/* I10: all blocks of this rank, in all tiers, go; the rank stays. */
void fl_kvindex_clear(struct fl_kvindex *index, struct fl_kvindex_rank *rank);
/* I11: the rank and all its blocks go; `rank` is gone. */
void fl_kvindex_remove_rank(struct fl_kvindex *index, struct fl_kvindex_rank *rank);
/* I11: every rank of the worker, also those seen only in events. Returns how many. */
uint32_t fl_kvindex_remove_worker(struct fl_kvindex *index, uint64_t worker_id);

/* ---- writer: events ---- */

/* A store event: blocks[i] follows blocks[i-1], the first follows `parent` (absent: the root). All
 * pointers are borrowed. */
struct fl_kvindex_store {
    enum fl_tier tier;
    bool has_parent;
    uint64_t parent; /* external hash */
    size_t count;
    const uint64_t *external; /* the engine's hash of each block */
    const uint64_t *local;    /* ours */
};

/* What a store did, block by block: the three add up to `count` of a successful one. */
struct fl_kvindex_stored {
    uint32_t added;    /* new memberships */
    uint32_t repeated; /* I4: was there already, under this name or (newest wins) another */
    uint32_t moved; /* of both: the name stood for another block before, which was given up (I5) */
};

/* 0; FL_ENOT_FOUND: parent unknown to this rank (I3); FL_EBAD_REQUEST: parent or a hash twice (I6),
 * or longer than the cap; FL_ELIMIT: the index is full, or another prefix has the same 64-bit
 * sequence hash (what was stored before that block stays); FL_EUNSUPPORTED: a lower tier, as long
 * as only the device tier is kept. `done` may be NULL. */
int fl_kvindex_store(struct fl_kvindex *index, struct fl_kvindex_rank *rank,
                     const struct fl_kvindex_store *event, struct fl_kvindex_stored *done);

/* I7, I8. Of a lower tier nothing is known. Returns how many of `external` were known and are
 * removed. */
size_t fl_kvindex_remove(struct fl_kvindex *index, struct fl_kvindex_rank *rank, enum fl_tier tier,
                         const uint64_t *external, size_t count);

/* Is this external hash known to the rank in the tier? */
bool fl_kvindex_has(const struct fl_kvindex *index, const struct fl_kvindex_rank *rank,
                    enum fl_tier tier, uint64_t external);

/* Gives back what cleared ranks held and what readers have left, at most about `budget` steps (a
 * thousand take well under a millisecond). True while there is more to do: call again soon. */
bool fl_kvindex_maintain(struct fl_kvindex *index, size_t budget);

/* ---- readers: any thread ---- */

struct fl_kvindex_match {
    uint64_t worker_id;
    uint32_t dp_rank;
    uint32_t row;                   /* fl_kvindex_rank_set_row() */
    uint32_t blocks[FL_TIER_COUNT]; /* device: run from block 0; others: extension of it (L2) */
};

/* The caller's, one per thread, reused over lookups so that none allocates in the steady state.
 * Zeroed is valid. `at[0..count)` is lent until the next lookup into it; no order is promised. */
struct fl_kvindex_matches {
    struct fl_kvindex_match *at;
    uint32_t count;
    /* private */
    uint32_t cap;
    struct fl_kvindex_scratch *scratch;
};

/* Idempotent. */
void fl_kvindex_matches_fini(struct fl_kvindex_matches *matches);

/* I13: for every rank that holds block 0, the number of consecutive leading blocks among the
 * sequence hashes seq[0..count). Device tier only; lower tiers' counts are 0. */
void fl_kvindex_lookup(const struct fl_kvindex *index, const uint64_t *seq, size_t count,
                       struct fl_kvindex_matches *matches);
/* The same for a caller that is inside a section of the index's epoch already (sections do not
 * nest). */
void fl_kvindex_lookup_inside(const struct fl_kvindex *index, const uint64_t *seq, size_t count,
                              struct fl_kvindex_matches *matches);

struct fl_kvindex_stats {
    uint64_t nodes; /* distinct device blocks, those kept only for children included */
    uint64_t held[FL_TIER_COUNT]; /* memberships of living ranks */
    uint64_t ranks;
    uint64_t dead_ranks; /* cleared or removed, memory not all back yet */
    uint64_t holes;      /* holes of living ranks: non-zero slows their lookups */
};

/* Relaxed reads, any thread. */
void fl_kvindex_stats(const struct fl_kvindex *index, struct fl_kvindex_stats *stats);

/* ---- writer: tests, dumps ---- */

/* Walks everything and verifies the invariants above; NULL or a sentence about the first violation.
 * Slow. */
const char *fl_kvindex_check(const struct fl_kvindex *index);

#endif
