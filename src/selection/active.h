/* SPDX-License-Identifier: Apache-2.0 */
/* Active prompt blocks: which blocks do the requests in flight on each rank hold, each counted once
 * (selection.md 7.7)?
 *
 * A sequence hash names the whole prompt up to its block, so prompts that agree at position i agree
 * at every position before it. The prompts in flight form a forest, kept with equal runs merged:
 *
 *     booking 1:  a b c d e f            [a b c]--+--[d e f]      ends: 1      segment = run of
 * positions booking 2:  a b c x y                       +--[x y]        ends: 2, 3   [from, to) of
 * one prompt's booking 3:  a b c x y                                                    own array
 * of hashes booking 4:  a b c                  ends: 4 in [a b c]
 *
 * Every segment carries a small set of (rank, references). A rank's references to a segment are the
 * bookings of that rank that end there plus the child segments it holds, so booking and freeing
 * climb towards the root only until the rank is found to hold what is above anyway.
 *
 * A hash table finds segments: by their first hash, and inside long ones by a checkpoint at every
 * position that is a multiple of FL_ACTIVE_STRIDE. The nodes of the table lie in the segment (first
 * hash) and in the prompt whose array the segment uses (checkpoints); nothing is allocated to
 * insert.
 *
 * Invariants (fl_active_check):
 *  - a segment that is not a leaf has two children or a booking that ends there; hence at most
 *    2 x bookings - 1 segments, however many prompts have come and gone
 *  - to > from; a child starts where its parent ends; root segments start at 0
 *  - ranks(child) is a subset of ranks(parent)
 *  - a segment's checkpoints are exactly the positions p in (from, to), p % FL_ACTIVE_STRIDE == 0,
 * and their nodes are those of the segment's own prompt
 *  - a prompt lives while its booking or a segment uses it
 *
 * Costs, for a prompt of n blocks whose path has k segments: match O(log n) probes + the segments
 * between the deepest checkpoint and the answer + those climbed until every rank was seen; book
 * (n - matched)/64 + 2 inserts; free the same of removals.
 *
 * Not thread-safe: every call with a `struct fl_active` is made inside the partition's section.
 * Memory comes from slabs given by fl_active_donate() outside hot moments; running dry falls back
 * to the heap and is counted in `heap_allocs`. What a free leaves over is handed back in a list, to
 * be freed after the section. */
#ifndef FL_SELECTION_ACTIVE_H
#define FL_SELECTION_ACTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "selection/slab.h"

#define FL_ACTIVE_STRIDE 64

struct fl_segment;

/* A node of the hash table. */
struct fl_active_node {
    struct fl_active_node *next, **prev; /* prev NULL: not in the table */
    uint64_t hash;
    struct fl_segment *segment;
};

/* A booking's own array of sequence hashes and its checkpoints: one allocation, made before the
 * section, immutable but for the nodes. */
struct fl_prompt_blocks {
    struct fl_prompt_blocks *next_garbage;
    uint32_t refs; /* its booking, and every segment that uses it; changed in the section only */
    uint32_t count;
    struct fl_active_node *checkpoints; /* of position FL_ACTIVE_STRIDE * (i + 1) */
    uint64_t hashes[];
};

/* Copies. NULL without memory (the size is the client's: fl_try_alloc). */
struct fl_prompt_blocks *fl_prompt_blocks_new(const uint64_t *hashes, size_t count);
/* Frees a whole list, or one that was never booked. NULL allowed. Outside the section. */
void fl_prompt_blocks_free(struct fl_prompt_blocks *list);

struct fl_active {
    struct fl_active_node **buckets;     /* power of two */
    struct fl_active_node **old_buckets; /* while growing: those from `moved` on are still in use */
    uint32_t bucket_count, old_bucket_count, moved;
    uint32_t node_count, segment_count;
    struct fl_segment *roots; /* list of root segments */
    uint64_t seed;            /* of the buckets: HTTP callers choose their hashes */
    uint64_t inserts;         /* into the table, ever */
    struct fl_slab slab;
};

void fl_active_init(struct fl_active *active);
/* Idempotent. Bookings left inside are forgotten; their prompts are freed. */
void fl_active_fini(struct fl_active *active);

/* Outside hot moments: what the structure would like to be given (0: nothing). */
struct fl_active_wish {
    size_t slab_bytes;
    uint32_t buckets;
};
struct fl_active_wish fl_active_wants(const struct fl_active *active);
/* Takes both (NULL allowed): heap memory of fl_alloc(), `buckets` zeroed. */
void fl_active_donate(struct fl_active *active, void *slab, size_t slab_bytes,
                      struct fl_active_node **buckets, uint32_t bucket_count);

/* Where a prompt leaves what is active. Valid until the next change of `active`. */
struct fl_active_match {
    struct fl_segment *segment; /* deepest one shared, NULL: none */
    struct fl_segment *root;    /* of its path */
    uint32_t shared;            /* leading blocks shared with any rank */
};
struct fl_active_match fl_active_match(const struct fl_active *active, const uint64_t *hashes,
                                       size_t count);

/* Leading blocks each rank shares: writes by_rank[rank] for every rank with any and lists those
 * ranks; returns how many. `by_rank` is zero before; who reads it zeroes the listed entries again.
 * Both have room for every rank number in use. */
uint32_t fl_active_ranks(const struct fl_active_match *match, uint32_t *by_rank, uint32_t *ranks);

/* What a booking holds. Zeroed: nothing. */
struct fl_active_hold {
    struct fl_prompt_blocks *prompt;
    struct fl_segment *end;
};

/* Books `prompt` (takes it; count > 0) on `rank`; `match` is that of its hashes. Returns by how
 * many blocks the rank's unique blocks grew. */
uint32_t fl_active_book(struct fl_active *active, struct fl_prompt_blocks *prompt, uint32_t rank,
                        struct fl_active_match match, struct fl_active_hold *hold);
/* Ends it; returns by how many blocks the rank's unique blocks shrank. Prompts nobody uses any more
 * are put before `*garbage`. Zeroes `hold`; harmless on a zeroed one. */
uint32_t fl_active_free(struct fl_active *active, struct fl_active_hold *hold, uint32_t rank,
                        struct fl_prompt_blocks **garbage);
/* Blocks at the end of the booking's prompt that no other booking of `rank` holds. */
uint32_t fl_active_unshared(const struct fl_active_hold *hold, uint32_t rank);

/* Walks everything and asserts the invariants (tests). */
void fl_active_check(const struct fl_active *active);

#endif
