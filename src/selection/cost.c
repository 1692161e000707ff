/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of selection.md 9.2 and 9.3 and the draw of 9.5.
 *
 * Most rows have nothing in common with the prompt; for them the formula needs three loads and is
 * computed for all rows in one pass over lanes. The few that share blocks are computed again, with
 * the whole formula. Both give the same double for the same values: they add in the same order. */
#include <math.h>

#include "base/rng.h"
#include "selection/state.h"

static double at_least_0(double x)
{
    return x > 0 ? x : 0;
}

struct fl_terms fl_cost_terms(const struct fl_scoring *scoring, double prefill, double blocks,
                              double requests, const struct fl_touched *touched)
{
    const struct fl_weights *w = &scoring->weights;
    struct fl_terms terms = {0};
    double extension = w->host * touched->host + w->disk * touched->disk;
    terms.cached = round((touched->device + extension) * scoring->block_tokens);
    terms.effective_prefill = at_least_0(scoring->isl_tokens - terms.cached);

    double decay = 1;
    if (scoring->tracks_prefill) {
        terms.raw = (prefill + terms.effective_prefill + terms.cached) / scoring->block_tokens;
        if (w->credit_decay > 0) {
            double excess = (prefill - scoring->least_prefill) / scoring->block_tokens;
            decay = 1 / (1 + w->credit_decay * excess / scoring->request_blocks);
        }
    }
    terms.credit = w->credit * decay * touched->device + extension;
    if (scoring->tracks_blocks)
        terms.decode_blocks = blocks + (scoring->prompt_blocks - touched->active_shared);

    if (scoring->is_decode && !scoring->tracks_prefill && w->credit > 0)
        terms.cost = at_least_0(terms.decode_blocks - terms.credit) + w->request_weight * requests;
    else
        terms.cost = w->prefill_scale * at_least_0(terms.raw - terms.credit) + terms.decode_blocks +
                     w->request_weight * requests;
    return terms;
}

struct fl_terms fl_candidates_terms(const struct fl_candidates *c, uint32_t i,
                                    const struct fl_scoring *scoring)
{
    struct fl_touched touched = {0};
    if (c->has_overlap)
        touched = (struct fl_touched){.active_shared = c->active_shared[i],
                                      .device = c->device[i],
                                      .host = c->host[i],
                                      .disk = c->disk[i]};
    struct fl_terms terms =
        fl_cost_terms(scoring, c->prefill_tokens[i], c->blocks[i], c->requests[i], &touched);
    terms.cost = c->cost[i]; /* preferred taints have multiplied it */
    return terms;
}

/* Two rows at a time, on any target: arithmetic on these becomes vector instructions where there
 * are some, and each lane is computed exactly as a scalar would be. */
typedef double lanes __attribute__((vector_size(16), aligned(8), may_alias));
enum { LANES = sizeof(lanes) / sizeof(double) };
_Static_assert(FL_ROW_LANES % LANES == 0, "rows come in whole lanes");

/* `factor` divides exactly when it is a power of two, which block sizes nearly always are. */
static bool has_exact_inverse(double divisor, double *factor)
{
    int exponent;
    *factor = 1 / divisor;
    return frexp(divisor, &exponent) == 0.5;
}

/* Rows in use, up to whole lanes: a table that has just doubled is half unused. */
static size_t lane_end(const struct fl_selector *selector)
{
    return ((size_t)selector->row_count + FL_ROW_LANES - 1) / FL_ROW_LANES * FL_ROW_LANES;
}

static void fill_plain(struct fl_selector *selector, const struct fl_scoring *scoring)
{
    const double *prefill = selector->prefill, *blocks = selector->blocks;
    const double *requests = selector->requests;
    double *cost = selector->cost;
    const double scale = scoring->weights.prefill_scale, weight = scoring->weights.request_weight;
    const double isl = scoring->isl_tokens, divisor = scoring->block_tokens;
    const double more = scoring->prompt_blocks;
    double factor;
    bool multiplies = has_exact_inverse(divisor, &factor);
    for (size_t i = 0, end = lane_end(selector); i < end; i += LANES) {
        lanes raw = *(const lanes *)(prefill + i) + isl;
        raw = multiplies ? raw * factor : raw / divisor;
        *(lanes *)(cost + i) = scale * raw + (*(const lanes *)(blocks + i) + more) +
                               weight * *(const lanes *)(requests + i);
    }
}

/* selection.md 9.4. Costs are >= 0, so a wish never makes a rank worse by its sign; infinite ones
 * stay. */
static void apply_preferred_taints(struct fl_selector *selector)
{
    const struct fl_ask *ask = selector->ask;
    for (uint32_t row = 0; row < selector->row_count; row++) {
        const struct fl_row_facts *facts = &selector->facts[row];
        double sum = 0;
        bool is_matched = false;
        for (size_t i = 0; i < ask->preferred_taint_count; i++) {
            if (!fl_row_has_taint(facts, ask->preferred_taints[i].taint))
                continue;
            sum += ask->preferred_taints[i].weight;
            is_matched = true;
        }
        if (is_matched)
            selector->cost[row] *= exp(-tanh(sum));
    }
}

void fl_cost_fill(struct fl_selector *selector, const struct fl_scoring *scoring)
{
    double *cost = selector->cost;
    if (scoring->tracks_prefill && scoring->tracks_blocks) {
        fill_plain(selector, scoring);
    } else {
        static const struct fl_touched nothing = {0};
        for (uint32_t row = 0; row < selector->row_count; row++)
            cost[row] = fl_cost_terms(scoring, selector->prefill[row], selector->blocks[row],
                                      selector->requests[row], &nothing)
                            .cost;
    }
    for (uint32_t i = 0; i < selector->touched_count; i++) {
        const struct fl_touched *touched = &selector->touched[i];
        uint32_t row = touched->row;
        cost[row] = fl_cost_terms(scoring, selector->prefill[row], selector->blocks[row],
                                  selector->requests[row], touched)
                        .cost;
    }
    if (selector->ask->preferred_taint_count > 0)
        apply_preferred_taints(selector);
    for (size_t row = selector->row_count; row < lane_end(selector); row++)
        cost[row] = INFINITY;
    if (selector->eligible_count == selector->row_count)
        return;
    for (uint32_t row = 0; row < selector->row_count; row++)
        if (selector->filter[row] != FL_FILTER_NONE)
            cost[row] = INFINITY;
}

/* Minima of FL_COST_GROUP rows each go to weight[], so that who looks for rows of a given cost
 * passes over most groups. Four chains side by side: one alone would wait for itself at every row.
 */
static double least_cost(const struct fl_selector *selector)
{
    const double *cost = selector->cost;
    double least = INFINITY;
    const size_t all = lane_end(selector);
    for (size_t group = 0, i = 0; i < all; group++) {
        size_t end = i + FL_COST_GROUP < all ? i + FL_COST_GROUP : all;
        double a = INFINITY, b = INFINITY, c = INFINITY, d = INFINITY;
        for (; i < end; i += 4) {
            a = cost[i] < a ? cost[i] : a;
            b = cost[i + 1] < b ? cost[i + 1] : b;
            c = cost[i + 2] < c ? cost[i + 2] : c;
            d = cost[i + 3] < d ? cost[i + 3] : d;
        }
        a = b < a ? b : a;
        c = d < c ? d : c;
        a = c < a ? c : a;
        selector->weight[group] = a;
        least = a < least ? a : least;
    }
    return least;
}

/* Row number `k` among those that cost `least`, FL_NO_ROW beyond the last; *count of those passed.
 */
static uint32_t equal_row(const struct fl_selector *selector, double least, uint32_t k,
                          uint32_t *count)
{
    *count = 0;
    for (uint32_t i = 0, group = 0; i < selector->row_count; i += FL_COST_GROUP, group++) {
        if (selector->weight[group] != least)
            continue;
        uint32_t end =
            i + FL_COST_GROUP < selector->row_count ? i + FL_COST_GROUP : selector->row_count;
        for (uint32_t row = i; row < end; row++)
            if (selector->cost[row] == least && (*count)++ == k)
                return row;
    }
    return FL_NO_ROW;
}

uint32_t fl_selector_eligible_row(const struct fl_selector *selector, uint32_t k)
{
    if (selector->eligible_count == selector->row_count)
        return k;
    for (uint32_t row = 0;; row++)
        if (selector->filter[row] == FL_FILTER_NONE && k-- == 0)
            return row;
}

uint64_t fl_selector_draw(struct fl_selector *selector)
{
    return fl_splitmix64(&selector->rng);
}

/* p_i ~ exp(-(cost_i - min) / ((max - min) T)); infinite costs take no part. */
static uint32_t draw_softmax(struct fl_selector *selector, double min, double temperature)
{
    double max = min, sum = 0;
    for (uint32_t row = 0; row < selector->row_count; row++)
        if (isfinite(selector->cost[row]) && selector->cost[row] > max)
            max = selector->cost[row];
    /* Scaling by the largest magnitude first keeps max - min finite; costs are never negative. */
    double scale = isfinite(max - min) ? 1 : max;
    double width = max / scale - min / scale;

    for (uint32_t row = 0; row < selector->row_count; row++) {
        double x = selector->cost[row];
        double weight = 0;
        if (isfinite(x))
            weight = width > 0 ? exp(-(x / scale - min / scale) / (width * temperature)) : 1;
        selector->weight[row] = weight;
        sum += weight;
    }
    double u = (double)(fl_selector_draw(selector) >> 11) * 0x1p-53;
    double cumulative = 0;
    uint32_t last = FL_NO_ROW;
    for (uint32_t row = 0; row < selector->row_count; row++) {
        if (!isfinite(selector->cost[row]))
            continue;
        last = row;
        cumulative += selector->weight[row] / sum;
        if (cumulative >= u)
            break;
    }
    return last;
}

uint32_t fl_cost_draw(struct fl_selector *selector, double temperature, uint32_t *ties)
{
    double least = least_cost(selector);
    *ties = 0;
    if (!isfinite(least))
        return FL_NO_ROW;
    equal_row(selector, least, UINT32_MAX, ties);
    if (temperature > 0)
        return draw_softmax(selector, least, temperature);
    uint32_t k = 0, passed;
    if (*ties > 1) {
        unsigned __int128 x = fl_selector_draw(selector);
        k = (uint32_t)(x * *ties >> 64);
    }
    return equal_row(selector, least, k, &passed);
}
