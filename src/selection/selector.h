/* SPDX-License-Identifier: Apache-2.0 */
/* The selector of one partition: which rank should take this prompt, and what does each rank carry?
 *
 *     fl_selector_add_rank  ... rows in ascending (worker_id, dp_rank)
 *     fl_selector_choose    ask -> choice       reads loads, scores, draws; changes only the tie
 * generator fl_selector_book      ask, choice -> hold load of the chosen rank rises
 *     fl_selector_prefill_complete, fl_selector_free
 *
 * Pure: given hashes, overlaps and configuration it computes, without a clock, a thread or an
 * allocation (but when ranks are added). Not thread-safe: the service calls it inside the
 * partition's critical section, the simulator from its one thread. choose and book belong into one
 * section, so that two requests never see the same free slot.
 *
 * Ranks that leave while requests still run on them become tombstones: no row, no picks, but their
 * load stays with their slot until the last hold is freed (selection.md 4.4).
 *
 * Loads and costs are doubles (selection.md 9.2); all counts are integers below 2^53 and exact. */
#ifndef FL_SELECTION_SELECTOR_H
#define FL_SELECTION_SELECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "kvindex/kvindex.h"
#include "selection/active.h"

struct fl_selector;
struct fl_policy;

/* selection.md 9.2. */
struct fl_weights {
    double credit, credit_decay; /* c, d */
    double prefill_scale;        /* s */
    double request_weight;       /* q */
    double host, disk;           /* tier weights */
    double temperature;
};

struct fl_selector_config {
    const struct fl_policy *policy; /* fl_policy_find(); NULL: kv-cost */
    struct fl_weights weights;
    bool is_decode;           /* the decode row of selection.md 9.3 */
    bool track_active_blocks; /* false: no block accounting at all */
    bool track_output_blocks;
    uint64_t seed; /* of the tie generator, selection.md 9.5 */
};

/* Defaults of selection.md 16: kv-cost, weights 1 0 1 0 0.75 0.25 0, blocks tracked, seed 0. */
void fl_selector_config_init(struct fl_selector_config *config);

struct fl_selector *fl_selector_new(const struct fl_selector_config *config);
/* Every hold was freed before. NULL allowed. */
void fl_selector_delete(struct fl_selector *selector);
/* Tokens a block; set before the first ask and while no hold exists. */
void fl_selector_set_block_tokens(struct fl_selector *selector, uint32_t block_tokens);

/* ---- ranks ---- */

struct fl_rank_info {
    uint64_t worker_id;
    uint32_t dp_rank;
    uint64_t prefill_capacity; /* tokens; 0: 10,000,000 (selection.md 8.1) */
    uint64_t total_kv_blocks;  /* 0: unknown */
    struct fl_bytes endpoint;  /* copied: a tombstone is revived only by the same endpoint */
    const uint64_t *taints;    /* hashes of the worker's taints; lent until the rank is removed */
    size_t taint_count;
    void *owner; /* given back in a choice; the caller keeps it alive while the rank has a row */
};

/* Slots are small numbers that stay with a rank until it and its last hold are gone. (worker_id,
 * dp_rank) has no row yet: asserted. A tombstone of the same worker, rank and endpoint is revived
 * with the load it left. */
uint32_t fl_selector_add_rank(struct fl_selector *selector, const struct fl_rank_info *info);
/* Other facts of a rank that stays; identity, endpoint and load are kept. */
void fl_selector_update_rank(struct fl_selector *selector, uint32_t slot,
                             const struct fl_rank_info *info);
/* True: it became a tombstone. */
bool fl_selector_remove_rank(struct fl_selector *selector, uint32_t slot);
/* A fenced rank takes no new pick (lifecycle `draining`). */
void fl_selector_fence_rank(struct fl_selector *selector, uint32_t slot);

uint32_t fl_selector_rank_count(const struct fl_selector *selector);
uint32_t fl_selector_tombstone_count(const struct fl_selector *selector);

struct fl_rank_state {
    uint64_t worker_id;
    uint32_t dp_rank, slot;
    double prefill_tokens, decode_blocks, requests;
    uint64_t prefill_capacity, total_kv_blocks;
    void *owner;
};
/* Row `row` of fl_selector_rank_count(), ascending. */
struct fl_rank_state fl_selector_rank_at(const struct fl_selector *selector, uint32_t row);

/* ---- choosing ---- */

struct fl_taint_wish {
    uint64_t taint;
    double weight;
};

struct fl_ask {
    uint64_t isl_tokens;    /* > 0 */
    const uint64_t *hashes; /* of the full blocks; may be none */
    size_t hash_count;
    /* As the index answers, in any order; ranks without blocks may be left out. `row` is the slot,
     * a hint: a wrong one costs a search. Ranks that have no row here are ignored. */
    const struct fl_kvindex_match *overlaps;
    size_t overlap_count;
    struct fl_weights weights; /* those of the config, with the request's overrides */
    bool track_prefill, assume_kv_reuse;

    bool has_pinned, has_affinity;
    uint64_t pinned_worker, affinity_worker;
    uint32_t pinned_rank, affinity_rank;
    bool has_allowed;
    const uint64_t *allowed; /* ascending worker ids */
    size_t allowed_count;
    const uint64_t *required_taints; /* hashes */
    size_t required_taint_count;
    const struct fl_taint_wish *preferred_taints;
    size_t preferred_taint_count;
    bool has_busy_threshold; /* 8.1: a pool that is busy for this request is refused */
    double busy_threshold;   /* fraction of capacity */
    bool wants_candidates;   /* fill choice.candidates (explain ring) */
};

/* Zeroed but for the selector's weights, prefill tracking and reuse on. */
void fl_ask_init(struct fl_ask *ask, const struct fl_selector *selector);

enum fl_filter { /* selection.md 9.1, in order */
                 FL_FILTER_NONE,
                 FL_FILTER_NOT_ALLOWED,
                 FL_FILTER_DRAINING,
                 FL_FILTER_UNKNOWN,
                 FL_FILTER_RANK,
                 FL_FILTER_TAINT,
                 FL_FILTER_OVERLOADED,
                 FL_FILTER_COUNT
};
/* "not_allowed", ...; "" for NONE. */
const char *fl_filter_name(enum fl_filter filter);

#define FL_CANDIDATES_MAX 64 /* selection.md 9.8 */

/* What every candidate was judged by. Arrays, because copying them is all that happens inside the
 * section; fl_candidates_terms() computes the rest when somebody asks. */
struct fl_candidates {
    uint32_t count, left_out;
    uint32_t chosen;  /* its number among them */
    bool has_overlap; /* false: the last four arrays are not filled, all are 0 */
    uint64_t worker_id[FL_CANDIDATES_MAX];
    uint32_t dp_rank[FL_CANDIDATES_MAX];
    uint8_t filter[FL_CANDIDATES_MAX]; /* enum fl_filter */
    double prefill_tokens[FL_CANDIDATES_MAX], blocks[FL_CANDIDATES_MAX];
    double requests[FL_CANDIDATES_MAX]; /* all before this request */
    double cost[FL_CANDIDATES_MAX];
    uint32_t active_shared[FL_CANDIDATES_MAX];
    uint32_t device[FL_CANDIDATES_MAX], host[FL_CANDIDATES_MAX], disk[FL_CANDIDATES_MAX];
};

/* What is the same for every candidate of one ask (selection.md 9.2). */
struct fl_scoring {
    struct fl_weights weights;
    double isl_tokens, block_tokens, request_blocks, prompt_blocks;
    double least_prefill; /* Pmin */
    bool tracks_prefill, tracks_blocks, is_decode;
};

struct fl_terms {
    double cached, effective_prefill, raw, credit, decode_blocks, cost;
};
struct fl_terms fl_candidates_terms(const struct fl_candidates *candidates, uint32_t i,
                                    const struct fl_scoring *scoring);

struct fl_choice {
    uint32_t slot;
    uint64_t worker_id;
    uint32_t dp_rank;
    void *owner;
    uint32_t device, host, disk; /* blocks found on the chosen rank */
    uint32_t best_device;        /* most device blocks of any eligible rank */
    uint64_t cached_tokens, effective_prefill_tokens;
    uint64_t potential_decode_blocks;
    double active_prefill_tokens; /* before this request */
    uint64_t prefill_capacity, total_kv_blocks;
    uint32_t ties;
    struct fl_active_match match; /* private: for book, in the same section */
    struct fl_scoring scoring;
    struct fl_candidates candidates; /* filled if asked for; count 0 otherwise */
};

/* 0, FL_EBAD_REQUEST (pinned worker not allowed), FL_ENO_ENDPOINTS, FL_EOVERLOADED, or
 * FL_EQUEUE_REJECTED when the threshold is set and the pool is busy. */
int fl_selector_choose(struct fl_selector *selector, const struct fl_ask *ask,
                       struct fl_choice *choice);

/* ---- holding ---- */

/* What one booking holds of a rank. Zeroed: nothing. */
struct fl_hold {
    bool is_held, is_prefilling;
    uint32_t slot;
    uint64_t prefill_tokens;
    uint64_t own_blocks;    /* not shared: assume_kv_reuse=false */
    uint32_t output_blocks; /* 7.4 */
    double discount;        /* blocks' weight taken off by decay */
    struct fl_active_hold active;
};

/* In the section of the choice. `blocks` (taken) holds the ask's hashes; NULL when there are none,
 * when blocks are not tracked, or without reuse. */
void fl_selector_book(struct fl_selector *selector, const struct fl_ask *ask,
                      const struct fl_choice *choice, struct fl_prompt_blocks *blocks,
                      struct fl_hold *hold);
/* Books on a named rank without choosing; FL_ENO_ENDPOINTS if it has no row.
 * `effective_prefill_tokens` as told. */
int fl_selector_book_on(struct fl_selector *selector, const struct fl_ask *ask, uint64_t worker_id,
                        uint32_t dp_rank, uint64_t effective_prefill_tokens,
                        struct fl_prompt_blocks *blocks, struct fl_hold *hold,
                        struct fl_choice *choice);
/* Repeats change nothing. True: load went down (there may be room now). */
bool fl_selector_prefill_complete(struct fl_selector *selector, struct fl_hold *hold);
/* One more output block; no effect unless tracked. `decay` < 0: none given. */
void fl_selector_add_output_block(struct fl_selector *selector, struct fl_hold *hold, double decay);
/* True: the rank was a tombstone. `*garbage` receives what to free after the section
 * (fl_prompt_blocks_free). */
bool fl_selector_free(struct fl_selector *selector, struct fl_hold *hold,
                      struct fl_prompt_blocks **garbage);

/* ---- memory of the section (fl_active) ---- */

struct fl_active_wish fl_selector_wants(const struct fl_selector *selector);
void fl_selector_donate(struct fl_selector *selector, void *slab, size_t slab_bytes,
                        struct fl_active_node **buckets, uint32_t bucket_count);

struct fl_selector_counters {
    uint64_t load_underflows, heap_allocs, table_inserts;
};
struct fl_selector_counters fl_selector_counters(const struct fl_selector *selector);
/* Asserts the invariants (tests). */
void fl_selector_check(const struct fl_selector *selector);

#endif
