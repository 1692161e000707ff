/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a selector share: its rows and the scratch of one choice. Private to
 * selection/.
 *
 *   row   0      1      2    ...   count     cap (multiple of FL_ROW_LANES)
 *        [ ranks in ascending (worker, rank) ][ unused, cost infinite ]     one array per quantity
 *          |
 *          slot[row] --> slots[ ]: stays with the rank, row or not; holds name it
 *
 * Passes over all rows read and write whole lanes, so that the compiler uses vector instructions
 * without being asked to relax floating point. */
#ifndef FL_SELECTION_STATE_H
#define FL_SELECTION_STATE_H

#include "selection/policy.h"
#include "selection/selector.h"

#define FL_ROW_LANES 8
#define FL_COST_GROUP 64 /* rows of which fl_cost_draw() keeps the least cost */

/* Facts of a row that only the chosen one, or a constrained request, needs. */
struct fl_row_facts {
    uint64_t prefill_capacity, total_kv_blocks;
    const uint64_t *taints;
    size_t taint_count;
    void *owner;
    bool is_fenced;
};

struct fl_slot {
    uint64_t worker_id;
    uint32_t dp_rank;
    uint32_t row; /* FL_NO_ROW: tombstone, or unused */
    uint32_t holds;
    bool is_used;
    double prefill, blocks, requests; /* of a tombstone; a row's own are in the arrays */
    struct fl_bytes endpoint;         /* heap */
};

/* A row that has something in common with the prompt: its cost is not the plain one. */
struct fl_touched {
    uint32_t row;
    uint32_t active_shared, device, host, disk;
};

struct fl_selector {
    struct fl_selector_config config;
    uint32_t block_tokens;
    uint64_t rng, round_robin;

    uint32_t row_count, row_cap, fenced_count;
    double *prefill, *blocks, *requests; /* selection.md 7.2 */
    uint64_t *worker_id;
    uint32_t *dp_rank, *slot;
    struct fl_row_facts *facts;

    struct fl_slot *slots;
    uint32_t slot_count, slot_cap, tombstone_count;

    struct fl_active active;
    uint64_t load_underflows;

    /* scratch of one choice, by row */
    const struct fl_ask *ask;
    double *cost, *weight;
    uint8_t *filter; /* enum fl_filter */
    uint32_t eligible_count;
    uint32_t *mark; /* index of touched + 1; 0: none */
    struct fl_touched *touched;
    uint32_t touched_count;
    /* by slot */
    uint32_t *shared_by_slot, *shared_slots;
};

/* Row of (worker, rank), or FL_NO_ROW. */
uint32_t fl_selector_find_row(const struct fl_selector *selector, uint64_t worker_id,
                              uint32_t dp_rank);
bool fl_row_has_taint(const struct fl_row_facts *facts, uint64_t taint);
uint64_t fl_selector_draw(struct fl_selector *selector);

/* ---- cost.c ---- */

/* Fills cost[] for all rows: plain ones in one pass, touched ones after. Filtered rows and the
 * unused rest become infinite. */
void fl_cost_fill(struct fl_selector *selector, const struct fl_scoring *scoring);
struct fl_terms fl_cost_terms(const struct fl_scoring *scoring, double prefill, double blocks,
                              double requests, const struct fl_touched *touched);
/* selection.md 9.5 over cost[]. */
uint32_t fl_cost_draw(struct fl_selector *selector, double temperature, uint32_t *ties);
/* The k-th row whose filter is NONE. */
uint32_t fl_selector_eligible_row(const struct fl_selector *selector, uint32_t k);

#endif
