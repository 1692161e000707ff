/* SPDX-License-Identifier: Apache-2.0 */
/* One choice: eligibility (selection.md 9.1), what each rank shares with the prompt, the policy,
 * and what the explain ring needs. Runs inside the section: no allocation, no clock. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "selection/state.h"

void fl_ask_init(struct fl_ask *ask, const struct fl_selector *selector)
{
    *ask = (struct fl_ask){
        .weights = selector->config.weights, .track_prefill = true, .assume_kv_reuse = true};
}

const char *fl_filter_name(enum fl_filter filter)
{
    static const char *const names[FL_FILTER_COUNT] = {
        [FL_FILTER_NONE] = "",
        [FL_FILTER_NOT_ALLOWED] = "not_allowed",
        [FL_FILTER_DRAINING] = "draining",
        [FL_FILTER_UNKNOWN] = "unknown",
        [FL_FILTER_RANK] = "rank",
        [FL_FILTER_TAINT] = "taint",
        [FL_FILTER_OVERLOADED] = "overloaded",
    };
    return names[filter];
}

/* ---- eligibility ---- */

bool fl_row_has_taint(const struct fl_row_facts *facts, uint64_t taint)
{
    for (size_t i = 0; i < facts->taint_count; i++)
        if (facts->taints[i] == taint)
            return true;
    return false;
}

static bool has_required_taints(const struct fl_ask *ask, const struct fl_row_facts *facts)
{
    for (size_t i = 0; i < ask->required_taint_count; i++)
        if (!fl_row_has_taint(facts, ask->required_taints[i]))
            return false;
    return true;
}

/* Rows and allowed ids both ascend: one walk over both, or a search per id when few are allowed. */
static void filter_allowed(struct fl_selector *selector, const struct fl_ask *ask)
{
    size_t at = 0;
    for (uint32_t row = 0; row < selector->row_count; row++) {
        uint64_t id = selector->worker_id[row];
        while (at < ask->allowed_count && ask->allowed[at] < id)
            at++;
        if (at == ask->allowed_count || ask->allowed[at] != id)
            selector->filter[row] = FL_FILTER_NOT_ALLOWED;
    }
}

/* Fills filter[] and eligible_count; the first failing test of 9.1 names the filter. Workers that
 * are unknown and ranks that do not exist have no row, so tests 3 and 4 show only for a pinned one.
 */
static void filter_rows(struct fl_selector *selector, const struct fl_ask *ask)
{
    memset(selector->filter, FL_FILTER_NONE, selector->row_count);
    selector->eligible_count = selector->row_count;
    bool is_plain =
        !ask->has_allowed && selector->fenced_count == 0 && ask->required_taint_count == 0;
    if (is_plain)
        return;

    if (ask->has_allowed)
        filter_allowed(selector, ask);
    selector->eligible_count = 0;
    for (uint32_t row = 0; row < selector->row_count; row++) {
        uint8_t *filter = &selector->filter[row];
        const struct fl_row_facts *facts = &selector->facts[row];
        if (*filter == FL_FILTER_NONE && facts->is_fenced)
            *filter = FL_FILTER_DRAINING;
        if (*filter == FL_FILTER_NONE && !has_required_taints(ask, facts))
            *filter = FL_FILTER_TAINT;
        selector->eligible_count += *filter == FL_FILTER_NONE;
    }
}

static bool is_allowed(const struct fl_ask *ask, uint64_t worker_id)
{
    if (!ask->has_allowed)
        return true;
    size_t low = 0, high = ask->allowed_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ask->allowed[middle] < worker_id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < ask->allowed_count && ask->allowed[low] == worker_id;
}

/* A pinned request has one eligible rank, or none; another worker never takes it. */
static int filter_pinned(struct fl_selector *selector, const struct fl_ask *ask, uint32_t *row)
{
    if (!is_allowed(ask, ask->pinned_worker))
        return FL_EBAD_REQUEST;
    *row = fl_selector_find_row(selector, ask->pinned_worker, ask->pinned_rank);
    if (*row == FL_NO_ROW)
        return FL_ENO_ENDPOINTS;
    const struct fl_row_facts *facts = &selector->facts[*row];
    if (facts->is_fenced || !has_required_taints(ask, facts))
        return FL_ENO_ENDPOINTS;
    memset(selector->filter, FL_FILTER_NONE, selector->row_count);
    selector->eligible_count = 1;
    return 0;
}

/* selection.md 8.1, without a ratio: busy when every eligible rank is. */
static bool is_pool_busy(const struct fl_selector *selector, double threshold, uint32_t pinned)
{
    for (uint32_t row = 0; row < selector->row_count; row++) {
        if (pinned != FL_NO_ROW ? row != pinned : selector->filter[row] != FL_FILTER_NONE)
            continue;
        if (!(selector->prefill[row] > threshold * (double)selector->facts[row].prefill_capacity))
            return false;
    }
    return true;
}

/* ---- what ranks share with the prompt ---- */

static struct fl_touched *touch(struct fl_selector *selector, uint32_t row)
{
    if (selector->mark[row] == 0) {
        selector->touched[selector->touched_count++] = (struct fl_touched){.row = row};
        selector->mark[row] = selector->touched_count;
    }
    return &selector->touched[selector->mark[row] - 1];
}

static uint32_t row_of_match(const struct fl_selector *selector,
                             const struct fl_kvindex_match *match)
{
    if (match->row < selector->slot_count) {
        const struct fl_slot *slot = &selector->slots[match->row];
        if (slot->row != FL_NO_ROW && slot->worker_id == match->worker_id &&
            slot->dp_rank == match->dp_rank)
            return slot->row;
    }
    return fl_selector_find_row(selector, match->worker_id, match->dp_rank);
}

static struct fl_active_match touch_all(struct fl_selector *selector, const struct fl_ask *ask)
{
    selector->touched_count = 0;
    if (selector->config.policy->uses_index) {
        for (size_t i = 0; i < ask->overlap_count; i++) {
            const struct fl_kvindex_match *match = &ask->overlaps[i];
            uint32_t row = row_of_match(selector, match);
            if (row == FL_NO_ROW)
                continue; /* seen in events, never registered (12.4); or just gone */
            struct fl_touched *touched = touch(selector, row);
            touched->device = match->blocks[FL_TIER_DEVICE];
            touched->host = match->blocks[FL_TIER_HOST_PINNED];
            touched->disk = match->blocks[FL_TIER_DISK] + match->blocks[FL_TIER_EXTERNAL];
        }
    }
    struct fl_active_match match = {0};
    if (!selector->config.track_active_blocks || !ask->assume_kv_reuse || ask->hash_count == 0)
        return match;
    match = fl_active_match(&selector->active, ask->hashes, ask->hash_count);
    uint32_t count = fl_active_ranks(&match, selector->shared_by_slot, selector->shared_slots);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = selector->shared_slots[i];
        uint32_t row = selector->slots[number].row;
        if (row != FL_NO_ROW)
            touch(selector, row)->active_shared = selector->shared_by_slot[number];
        selector->shared_by_slot[number] = 0;
    }
    return match;
}

static void untouch(struct fl_selector *selector)
{
    for (uint32_t i = 0; i < selector->touched_count; i++)
        selector->mark[selector->touched[i].row] = 0;
}

static const struct fl_touched *touched_of(const struct fl_selector *selector, uint32_t row)
{
    static const struct fl_touched nothing = {0};
    uint32_t mark = selector->mark[row];
    return mark != 0 ? &selector->touched[mark - 1] : &nothing;
}

/* ---- candidates ---- */

/* A max-heap of rows by cost: the cheapest ones seen so far, the dearest on top. */
static void sift_down(const double *cost, uint32_t *heap, uint32_t count)
{
    for (uint32_t at = 0;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count)
            return;
        if (child + 1 < count && cost[heap[child + 1]] > cost[heap[child]])
            child++;
        if (cost[heap[at]] >= cost[heap[child]])
            return;
        uint32_t row = heap[at];
        heap[at] = heap[child];
        heap[child] = row;
        at = child;
    }
}

static void sift_up(const double *cost, uint32_t *heap, uint32_t at)
{
    while (at > 0) {
        uint32_t parent = (at - 1) / 2;
        if (cost[heap[parent]] >= cost[heap[at]])
            return;
        uint32_t row = heap[at];
        heap[at] = heap[parent];
        heap[parent] = row;
        at = parent;
    }
}

#define OTHERS_MAX (FL_CANDIDATES_MAX - 1)
#define SAMPLE 128
#define SUSPECTS_MAX 512

/* A cost that some 128 rows do not exceed, from a sample; a guess. */
static double guess_limit(const struct fl_selector *selector)
{
    double low[SAMPLE];
    uint32_t stride = selector->row_count / SAMPLE;
    uint32_t wanted = SAMPLE * 2 * FL_CANDIDATES_MAX / selector->row_count + 2, held = 0;
    if (stride == 0 || wanted > SAMPLE / 4)
        return INFINITY; /* few rows: every one is a suspect */
    assert(wanted > 0 && wanted <= SAMPLE);
    for (uint32_t i = 0; i < SAMPLE; i++) {
        double cost = selector->cost[i * stride];
        if (held == wanted && cost >= low[held - 1])
            continue;
        uint32_t at = held < wanted ? held++ : held - 1;
        for (; at > 0 && low[at - 1] > cost; at--)
            low[at] = low[at - 1];
        low[at] = cost;
    }
    return low[held - 1];
}

/* The cheapest rows but `chosen`, in no order. Most of many rows fail one comparison with a guessed
 * limit; if the guess was bad, all rows are looked at. */
static uint32_t cheapest_rows(const struct fl_selector *selector, uint32_t chosen, uint32_t *heap)
{
    const double *cost = selector->cost;
    uint32_t suspects[SUSPECTS_MAX + 1], count = 0;
    double limit = guess_limit(selector);
    for (uint32_t row = 0; row < selector->row_count && count <= SUSPECTS_MAX; row++) {
        suspects[count] = row;
        count += cost[row] <= limit && selector->filter[row] == FL_FILTER_NONE;
    }
    bool is_bad = count > SUSPECTS_MAX || (count <= OTHERS_MAX && limit < INFINITY);
    uint32_t held = 0, seen = is_bad ? selector->row_count : count;
    for (uint32_t i = 0; i < seen; i++) {
        uint32_t row = is_bad ? i : suspects[i];
        if (row == chosen || selector->filter[row] != FL_FILTER_NONE)
            continue;
        if (held < OTHERS_MAX) {
            heap[held] = row;
            sift_up(cost, heap, held++);
        } else if (cost[row] < cost[heap[0]]) {
            heap[0] = row;
            sift_down(cost, heap, held);
        }
    }
    return held;
}

static void fill_overlap(const struct fl_touched *touched, struct fl_candidates *c, uint32_t i)
{
    c->active_shared[i] = touched->active_shared;
    c->device[i] = touched->device;
    c->host[i] = touched->host;
    c->disk[i] = touched->disk;
}

static void fill_one(const struct fl_selector *selector, uint32_t row, struct fl_candidates *c,
                     uint32_t i)
{
    c->worker_id[i] = selector->worker_id[row];
    c->dp_rank[i] = selector->dp_rank[row];
    c->filter[i] = selector->filter[row];
    c->prefill_tokens[i] = selector->prefill[row];
    c->blocks[i] = selector->blocks[row];
    c->requests[i] = selector->requests[row];
    c->cost[i] = selector->cost[row];
    if (c->has_overlap)
        fill_overlap(touched_of(selector, row), c, i);
}

/* Few enough rows: all of them, array by array. */
static void fill_all(const struct fl_selector *selector, struct fl_candidates *c)
{
    uint32_t n = c->count = selector->row_count;
#define COPY(to, from) memcpy(c->to, selector->from, n * sizeof *selector->from)
    COPY(worker_id, worker_id);
    COPY(dp_rank, dp_rank);
    COPY(filter, filter);
    COPY(prefill_tokens, prefill);
    COPY(blocks, blocks);
    COPY(requests, requests);
    COPY(cost, cost);
#undef COPY
    if (!c->has_overlap)
        return;
    memset(c->active_shared, 0, n * sizeof *c->active_shared);
    memset(c->device, 0, n * sizeof *c->device);
    memset(c->host, 0, n * sizeof *c->host);
    memset(c->disk, 0, n * sizeof *c->disk);
    for (uint32_t i = 0; i < selector->touched_count; i++)
        fill_overlap(&selector->touched[i], c, selector->touched[i].row);
}

/* The chosen one, the cheapest others, then filtered ones while there is room. */
static void fill_candidates(const struct fl_selector *selector, uint32_t chosen, bool is_pinned,
                            struct fl_candidates *c)
{
    c->has_overlap = selector->touched_count > 0;
    if (!is_pinned && selector->row_count <= FL_CANDIDATES_MAX) {
        c->chosen = chosen;
        fill_all(selector, c);
        return;
    }
    uint32_t rows[FL_CANDIDATES_MAX], count = 1;
    rows[0] = chosen;
    c->chosen = 0;
    if (!is_pinned) {
        count += cheapest_rows(selector, chosen, rows + 1);
        for (uint32_t row = 0; row < selector->row_count && count < FL_CANDIDATES_MAX; row++)
            if (selector->filter[row] != FL_FILTER_NONE)
                rows[count++] = row;
        c->left_out = selector->row_count - count;
    }
    c->count = count;
    for (uint32_t i = 0; i < count; i++)
        fill_one(selector, rows[i], c, i);
}

/* ---- the choice ---- */

static double least_prefill(const struct fl_selector *selector)
{
    double least = INFINITY;
    for (uint32_t row = 0; row < selector->row_count; row++)
        if (selector->filter[row] == FL_FILTER_NONE && selector->prefill[row] < least)
            least = selector->prefill[row];
    return least;
}

static struct fl_scoring scoring_of(const struct fl_selector *selector, const struct fl_ask *ask)
{
    struct fl_scoring scoring = {
        .weights = ask->weights,
        .isl_tokens = (double)ask->isl_tokens,
        .block_tokens = selector->block_tokens,
        .request_blocks = ceil((double)ask->isl_tokens / selector->block_tokens),
        .prompt_blocks = (double)ask->hash_count,
        .tracks_prefill = ask->track_prefill,
        .tracks_blocks = selector->config.track_active_blocks,
        .is_decode = selector->config.is_decode,
    };
    if (!selector->config.policy->uses_index)
        scoring.weights.credit = 0;
    if (scoring.weights.credit_decay > 0)
        scoring.least_prefill = least_prefill(selector);
    return scoring;
}

static void describe(const struct fl_selector *selector, uint32_t row, struct fl_choice *choice)
{
    const struct fl_touched *touched = touched_of(selector, row);
    const struct fl_row_facts *facts = &selector->facts[row];
    struct fl_terms terms = fl_cost_terms(&choice->scoring, selector->prefill[row],
                                          selector->blocks[row], selector->requests[row], touched);
    choice->slot = selector->slot[row];
    choice->worker_id = selector->worker_id[row];
    choice->dp_rank = selector->dp_rank[row];
    choice->owner = facts->owner;
    choice->device = touched->device;
    choice->host = touched->host;
    choice->disk = touched->disk;
    choice->cached_tokens = (uint64_t)terms.cached;
    choice->effective_prefill_tokens = (uint64_t)terms.effective_prefill;
    choice->potential_decode_blocks = (uint64_t)round(terms.decode_blocks);
    choice->active_prefill_tokens = selector->prefill[row];
    choice->prefill_capacity = facts->prefill_capacity;
    choice->total_kv_blocks = facts->total_kv_blocks;
    choice->best_device = 0;
    for (uint32_t i = 0; i < selector->touched_count; i++) {
        const struct fl_touched *t = &selector->touched[i];
        if (selector->filter[t->row] == FL_FILTER_NONE && t->device > choice->best_device)
            choice->best_device = t->device;
    }
}

/* The wished rank if it may take the request, FL_NO_ROW otherwise. */
static uint32_t wished_row(const struct fl_selector *selector, const struct fl_ask *ask)
{
    if (!ask->has_affinity)
        return FL_NO_ROW;
    uint32_t row = fl_selector_find_row(selector, ask->affinity_worker, ask->affinity_rank);
    return row != FL_NO_ROW && selector->filter[row] == FL_FILTER_NONE ? row : FL_NO_ROW;
}

int fl_selector_choose(struct fl_selector *selector, const struct fl_ask *ask,
                       struct fl_choice *choice)
{
    assert(ask->isl_tokens > 0);
    uint32_t row = FL_NO_ROW;
    choice->candidates.count = choice->candidates.left_out = choice->candidates.chosen = 0;
    if (ask->has_pinned) {
        int rc = filter_pinned(selector, ask, &row);
        if (rc < 0)
            return rc;
    } else {
        filter_rows(selector, ask);
    }
    if (selector->eligible_count == 0)
        return FL_ENO_ENDPOINTS;
    if (ask->has_busy_threshold && is_pool_busy(selector, ask->busy_threshold, row))
        return FL_EQUEUE_REJECTED;

    selector->ask = ask;
    choice->scoring = scoring_of(selector, ask);
    choice->match = touch_all(selector, ask);
    choice->ties = 1;
    if (ask->has_pinned) {
        /* Preferred taints do not touch a pinned worker (9.4). */
        selector->cost[row] =
            fl_cost_terms(&choice->scoring, selector->prefill[row], selector->blocks[row],
                          selector->requests[row], touched_of(selector, row))
                .cost;
    } else if ((row = wished_row(selector, ask)) != FL_NO_ROW) {
        fl_cost_fill(selector, &choice->scoring);
    } else {
        row = selector->config.policy->choose(selector, &choice->scoring, &choice->ties);
    }
    if (row != FL_NO_ROW) {
        describe(selector, row, choice);
        if (ask->wants_candidates)
            fill_candidates(selector, row, ask->has_pinned, &choice->candidates);
    }
    untouch(selector);
    selector->ask = NULL;
    return row != FL_NO_ROW ? 0 : FL_ENO_ENDPOINTS;
}
