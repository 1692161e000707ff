/* SPDX-License-Identifier: Apache-2.0 */
/* Rows, slots and what they carry. Choosing is choose.c. */
#include "selection/selector.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "selection/state.h"

#define DEFAULT_CAPACITY 10000000 /* selection.md 8.1 */

void fl_selector_config_init(struct fl_selector_config *config)
{
    *config = (struct fl_selector_config){
        .weights = {.credit = 1, .prefill_scale = 1, .host = 0.75, .disk = 0.25},
        .track_active_blocks = true,
    };
}

static void slots_grow(struct fl_selector *selector)
{
    uint32_t cap = selector->slot_cap == 0 ? 16 : 2 * selector->slot_cap;
    selector->slots = fl_realloc(selector->slots, cap, sizeof *selector->slots);
    memset(selector->slots + selector->slot_cap, 0,
           (cap - selector->slot_cap) * sizeof *selector->slots);
    fl_free(selector->shared_by_slot);
    selector->shared_by_slot = fl_calloc(cap, sizeof(uint32_t));
    selector->shared_slots = fl_realloc(selector->shared_slots, cap, sizeof(uint32_t));
    selector->slot_cap = cap;
}

static void *grown(void *array, uint32_t from, uint32_t to, size_t size)
{
    uint8_t *bytes = fl_realloc(array, to, size);
    memset(bytes + from * size, 0, (to - from) * size);
    return bytes;
}

static void rows_grow(struct fl_selector *selector)
{
    uint32_t from = selector->row_cap, to = from == 0 ? 2 * FL_ROW_LANES : 2 * from;
    selector->prefill = grown(selector->prefill, from, to, sizeof(double));
    selector->blocks = grown(selector->blocks, from, to, sizeof(double));
    selector->requests = grown(selector->requests, from, to, sizeof(double));
    selector->worker_id = grown(selector->worker_id, from, to, sizeof(uint64_t));
    selector->dp_rank = grown(selector->dp_rank, from, to, sizeof(uint32_t));
    selector->slot = grown(selector->slot, from, to, sizeof(uint32_t));
    selector->facts = grown(selector->facts, from, to, sizeof *selector->facts);
    selector->cost = grown(selector->cost, from, to, sizeof(double));
    selector->weight = grown(selector->weight, from, to, sizeof(double));
    selector->filter = grown(selector->filter, from, to, sizeof(uint8_t));
    selector->mark = grown(selector->mark, from, to, sizeof(uint32_t));
    selector->touched = grown(selector->touched, from, to, sizeof *selector->touched);
    selector->row_cap = to;
}

struct fl_selector *fl_selector_new(const struct fl_selector_config *config)
{
    struct fl_selector *selector = fl_calloc(1, sizeof *selector);
    selector->config = *config;
    if (config->policy == NULL)
        selector->config.policy = &fl_policy_kv_cost;
    selector->block_tokens = 1;
    selector->rng = config->seed;
    fl_active_init(&selector->active);
    rows_grow(selector);
    slots_grow(selector);
    return selector;
}

void fl_selector_delete(struct fl_selector *selector)
{
    if (selector == NULL)
        return;
    fl_active_fini(&selector->active);
    for (uint32_t i = 0; i < selector->slot_count; i++)
        fl_free((void *)(uintptr_t)selector->slots[i].endpoint.p);
    fl_free(selector->slots);
    fl_free(selector->shared_by_slot);
    fl_free(selector->shared_slots);
    fl_free(selector->prefill);
    fl_free(selector->blocks);
    fl_free(selector->requests);
    fl_free(selector->worker_id);
    fl_free(selector->dp_rank);
    fl_free(selector->slot);
    fl_free(selector->facts);
    fl_free(selector->cost);
    fl_free(selector->weight);
    fl_free(selector->filter);
    fl_free(selector->mark);
    fl_free(selector->touched);
    fl_free(selector);
}

void fl_selector_set_block_tokens(struct fl_selector *selector, uint32_t block_tokens)
{
    assert(block_tokens > 0);
    selector->block_tokens = block_tokens;
}

/* ---- ranks ---- */

/* The first row not before (worker, rank). */
static uint32_t lower_row(const struct fl_selector *selector, uint64_t worker_id, uint32_t dp_rank)
{
    uint32_t low = 0, high = selector->row_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uint64_t id = selector->worker_id[middle];
        if (id < worker_id || (id == worker_id && selector->dp_rank[middle] < dp_rank))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint32_t fl_selector_find_row(const struct fl_selector *selector, uint64_t worker_id,
                              uint32_t dp_rank)
{
    uint32_t row = lower_row(selector, worker_id, dp_rank);
    if (row < selector->row_count && selector->worker_id[row] == worker_id &&
        selector->dp_rank[row] == dp_rank)
        return row;
    return FL_NO_ROW;
}

/* Moves rows [from, row_count) to start at `to`. */
static void rows_move(struct fl_selector *selector, uint32_t to, uint32_t from)
{
    size_t n = selector->row_count - from;
#define MOVE(array)                                                                                \
    memmove(&selector->array[to], &selector->array[from], n * sizeof *selector->array)
    MOVE(prefill);
    MOVE(blocks);
    MOVE(requests);
    MOVE(worker_id);
    MOVE(dp_rank);
    MOVE(slot);
    MOVE(facts);
#undef MOVE
}

static void rows_renumber(struct fl_selector *selector, uint32_t from)
{
    for (uint32_t row = from; row < selector->row_count; row++)
        selector->slots[selector->slot[row]].row = row;
}

static uint32_t slot_take(struct fl_selector *selector, const struct fl_rank_info *info)
{
    uint32_t unused = selector->slot_count;
    for (uint32_t i = 0; i < selector->slot_count; i++) {
        struct fl_slot *slot = &selector->slots[i];
        if (!slot->is_used) {
            unused = i;
        } else if (slot->row == FL_NO_ROW && slot->worker_id == info->worker_id &&
                   slot->dp_rank == info->dp_rank && fl_bytes_eq(slot->endpoint, info->endpoint)) {
            selector->tombstone_count--;
            return i;
        }
    }
    if (unused == selector->slot_count) {
        if (selector->slot_count == selector->slot_cap)
            slots_grow(selector);
        selector->slot_count++;
    }
    selector->slots[unused] = (struct fl_slot){
        .worker_id = info->worker_id,
        .dp_rank = info->dp_rank,
        .is_used = true,
        .endpoint = fl_bytes(fl_strndup(info->endpoint.p, info->endpoint.n), info->endpoint.n),
    };
    return unused;
}

static void slot_give_back(struct fl_selector *selector, uint32_t number)
{
    fl_free((void *)(uintptr_t)selector->slots[number].endpoint.p);
    selector->slots[number] = (struct fl_slot){.row = FL_NO_ROW};
}

static void set_facts(struct fl_row_facts *facts, const struct fl_rank_info *info)
{
    *facts = (struct fl_row_facts){
        .prefill_capacity = info->prefill_capacity != 0 ? info->prefill_capacity : DEFAULT_CAPACITY,
        .total_kv_blocks = info->total_kv_blocks,
        .taints = info->taints,
        .taint_count = info->taint_count,
        .owner = info->owner,
    };
}

uint32_t fl_selector_add_rank(struct fl_selector *selector, const struct fl_rank_info *info)
{
    uint32_t row = lower_row(selector, info->worker_id, info->dp_rank);
    assert(row == selector->row_count || selector->worker_id[row] != info->worker_id ||
           selector->dp_rank[row] != info->dp_rank);
    if (selector->row_count == selector->row_cap)
        rows_grow(selector);
    uint32_t number = slot_take(selector, info);
    struct fl_slot *slot = &selector->slots[number];

    rows_move(selector, row + 1, row);
    selector->row_count++;
    selector->prefill[row] = slot->prefill;
    selector->blocks[row] = slot->blocks;
    selector->requests[row] = slot->requests;
    selector->worker_id[row] = info->worker_id;
    selector->dp_rank[row] = info->dp_rank;
    selector->slot[row] = number;
    set_facts(&selector->facts[row], info);
    rows_renumber(selector, row);
    return number;
}

static uint32_t row_of(const struct fl_selector *selector, uint32_t number)
{
    assert(number < selector->slot_count && selector->slots[number].row != FL_NO_ROW);
    return selector->slots[number].row;
}

void fl_selector_update_rank(struct fl_selector *selector, uint32_t number,
                             const struct fl_rank_info *info)
{
    uint32_t row = row_of(selector, number);
    assert(selector->worker_id[row] == info->worker_id && selector->dp_rank[row] == info->dp_rank);
    selector->fenced_count -= selector->facts[row].is_fenced;
    set_facts(&selector->facts[row], info);
}

void fl_selector_fence_rank(struct fl_selector *selector, uint32_t number)
{
    struct fl_row_facts *facts = &selector->facts[row_of(selector, number)];
    selector->fenced_count += !facts->is_fenced;
    facts->is_fenced = true;
}

bool fl_selector_remove_rank(struct fl_selector *selector, uint32_t number)
{
    uint32_t row = row_of(selector, number);
    struct fl_slot *slot = &selector->slots[number];
    slot->prefill = selector->prefill[row];
    slot->blocks = selector->blocks[row];
    slot->requests = selector->requests[row];
    slot->row = FL_NO_ROW;
    selector->fenced_count -= selector->facts[row].is_fenced;
    rows_move(selector, row, row + 1);
    selector->row_count--;
    rows_renumber(selector, row);
    if (slot->holds > 0) {
        selector->tombstone_count++;
        return true;
    }
    slot_give_back(selector, number);
    return false;
}

uint32_t fl_selector_rank_count(const struct fl_selector *selector)
{
    return selector->row_count;
}

uint32_t fl_selector_tombstone_count(const struct fl_selector *selector)
{
    return selector->tombstone_count;
}

struct fl_rank_state fl_selector_rank_at(const struct fl_selector *selector, uint32_t row)
{
    assert(row < selector->row_count);
    return (struct fl_rank_state){
        .worker_id = selector->worker_id[row],
        .dp_rank = selector->dp_rank[row],
        .slot = selector->slot[row],
        .prefill_tokens = selector->prefill[row],
        .decode_blocks = round(selector->blocks[row]),
        .requests = selector->requests[row],
        .prefill_capacity = selector->facts[row].prefill_capacity,
        .total_kv_blocks = selector->facts[row].total_kv_blocks,
        .owner = selector->facts[row].owner,
    };
}

/* ---- holding ---- */

/* Where the loads of a slot are: in its row, or in itself once it is a tombstone. */
struct load {
    double *prefill, *blocks, *requests;
};

static struct load load_of(struct fl_selector *selector, uint32_t number)
{
    struct fl_slot *slot = &selector->slots[number];
    uint32_t row = slot->row;
    if (row == FL_NO_ROW)
        return (struct load){&slot->prefill, &slot->blocks, &slot->requests};
    return (struct load){&selector->prefill[row], &selector->blocks[row], &selector->requests[row]};
}

static void lower(struct fl_selector *selector, double *value, double by)
{
    if (*value < by) {
        selector->load_underflows++; /* selection.md 7.2: a bug of ours, shown by a counter */
        *value = 0;
    } else {
        *value -= by;
    }
}

static void book(struct fl_selector *selector, const struct fl_ask *ask, uint32_t number,
                 uint64_t prefill_tokens, struct fl_active_match match,
                 struct fl_prompt_blocks *blocks, struct fl_hold *hold)
{
    struct load load = load_of(selector, number);
    *hold = (struct fl_hold){.is_held = true, .slot = number};
    selector->slots[number].holds++;
    *load.requests += 1;
    if (ask->track_prefill) {
        hold->is_prefilling = true;
        hold->prefill_tokens = prefill_tokens;
        *load.prefill += (double)prefill_tokens;
    }
    if (!selector->config.track_active_blocks) {
        assert(blocks == NULL);
    } else if (blocks != NULL) {
        *load.blocks += fl_active_book(&selector->active, blocks, number, match, &hold->active);
    } else if (!ask->assume_kv_reuse) {
        hold->own_blocks = ask->hash_count;
        *load.blocks += (double)ask->hash_count;
    }
}

void fl_selector_book(struct fl_selector *selector, const struct fl_ask *ask,
                      const struct fl_choice *choice, struct fl_prompt_blocks *blocks,
                      struct fl_hold *hold)
{
    book(selector, ask, choice->slot, choice->effective_prefill_tokens, choice->match, blocks,
         hold);
}

int fl_selector_book_on(struct fl_selector *selector, const struct fl_ask *ask, uint64_t worker_id,
                        uint32_t dp_rank, uint64_t effective_prefill_tokens,
                        struct fl_prompt_blocks *blocks, struct fl_hold *hold,
                        struct fl_choice *choice)
{
    uint32_t row = fl_selector_find_row(selector, worker_id, dp_rank);
    if (row == FL_NO_ROW)
        return FL_ENO_ENDPOINTS;
    struct fl_active_match match = {0};
    if (blocks != NULL)
        match = fl_active_match(&selector->active, blocks->hashes, blocks->count);
    const struct fl_row_facts *facts = &selector->facts[row];
    choice->slot = selector->slot[row];
    choice->worker_id = worker_id;
    choice->dp_rank = dp_rank;
    choice->owner = facts->owner;
    choice->active_prefill_tokens = selector->prefill[row];
    choice->prefill_capacity = facts->prefill_capacity;
    choice->total_kv_blocks = facts->total_kv_blocks;
    choice->effective_prefill_tokens = effective_prefill_tokens;
    book(selector, ask, choice->slot, effective_prefill_tokens, match, blocks, hold);
    choice->potential_decode_blocks = (uint64_t)round(selector->blocks[row]);
    return 0;
}

bool fl_selector_prefill_complete(struct fl_selector *selector, struct fl_hold *hold)
{
    if (!hold->is_held || !hold->is_prefilling)
        return false;
    hold->is_prefilling = false;
    lower(selector, load_of(selector, hold->slot).prefill, (double)hold->prefill_tokens);
    return hold->prefill_tokens > 0;
}

void fl_selector_add_output_block(struct fl_selector *selector, struct fl_hold *hold, double decay)
{
    if (!hold->is_held || !selector->config.track_output_blocks)
        return;
    double *blocks = load_of(selector, hold->slot).blocks;
    hold->output_blocks++;
    *blocks += 1;
    if (decay < 0)
        return;
    uint64_t own =
        hold->output_blocks + hold->own_blocks + fl_active_unshared(&hold->active, hold->slot);
    /* In 65,536ths, so that sums stay exact and a rank ends at exactly 0. */
    double fraction = round(decay * 65536) / 65536;
    double discount = (double)own * (1 - fraction);
    *blocks += hold->discount - discount;
    hold->discount = discount;
}

bool fl_selector_free(struct fl_selector *selector, struct fl_hold *hold,
                      struct fl_prompt_blocks **garbage)
{
    if (!hold->is_held)
        return false;
    fl_selector_prefill_complete(selector, hold);
    uint32_t number = hold->slot;
    struct fl_slot *slot = &selector->slots[number];
    struct load load = load_of(selector, number);
    double shrunk = fl_active_free(&selector->active, &hold->active, number, garbage);
    lower(selector, load.blocks,
          shrunk + (double)hold->own_blocks + hold->output_blocks - hold->discount);
    lower(selector, load.requests, 1);
    *hold = (struct fl_hold){0};

    bool is_tombstone = slot->row == FL_NO_ROW;
    assert(slot->holds > 0);
    if (--slot->holds == 0 && is_tombstone) {
        selector->tombstone_count--;
        slot_give_back(selector, number);
    }
    return is_tombstone;
}

/* ---- memory and counters ---- */

struct fl_active_wish fl_selector_wants(const struct fl_selector *selector)
{
    return fl_active_wants(&selector->active);
}

void fl_selector_donate(struct fl_selector *selector, void *slab, size_t slab_bytes,
                        struct fl_active_node **buckets, uint32_t bucket_count)
{
    fl_active_donate(&selector->active, slab, slab_bytes, buckets, bucket_count);
}

struct fl_selector_counters fl_selector_counters(const struct fl_selector *selector)
{
    return (struct fl_selector_counters){
        .load_underflows = selector->load_underflows,
        .heap_allocs = selector->active.slab.heap_allocs,
        .table_inserts = selector->active.inserts,
    };
}

void fl_selector_check(const struct fl_selector *selector)
{
    fl_active_check(&selector->active);
    uint32_t tombstones = 0, rows = 0;
    for (uint32_t i = 0; i < selector->slot_count; i++) {
        const struct fl_slot *slot = &selector->slots[i];
        if (!slot->is_used)
            continue;
        if (slot->row == FL_NO_ROW) {
            assert(slot->holds > 0);
            tombstones++;
            continue;
        }
        rows++;
        assert(selector->slot[slot->row] == i);
        assert(selector->worker_id[slot->row] == slot->worker_id);
        assert(selector->requests[slot->row] == slot->holds);
    }
    assert(rows == selector->row_count && tombstones == selector->tombstone_count);
    for (uint32_t row = 0; row < selector->row_cap; row++)
        assert(selector->mark[row] == 0);
    for (uint32_t i = 0; i < selector->slot_cap; i++)
        assert(selector->shared_by_slot[i] == 0);
}
