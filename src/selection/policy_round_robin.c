/* SPDX-License-Identifier: Apache-2.0 */
/* round-robin: the next eligible rank in ascending (worker_id, dp_rank), one counter a partition.
 */
#include "selection/state.h"

static uint32_t choose(struct fl_selector *selector, const struct fl_scoring *scoring,
                       uint32_t *ties)
{
    fl_cost_fill(selector, scoring); /* for the explain ring: what the others would have cost */
    *ties = 1;
    uint32_t start = (uint32_t)(selector->round_robin % selector->row_count);
    for (uint32_t i = 0; i < selector->row_count; i++) {
        uint32_t row = (start + i) % selector->row_count;
        if (selector->filter[row] == FL_FILTER_NONE) {
            selector->round_robin = (uint64_t)row + 1;
            return row;
        }
    }
    return FL_NO_ROW;
}

const struct fl_policy fl_policy_round_robin = {
    .name = "round-robin", .uses_index = true, .choose = choose};
