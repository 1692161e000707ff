/* SPDX-License-Identifier: Apache-2.0 */
/* random: uniform over the eligible ranks, one draw a request. */
#include "selection/state.h"

static uint32_t choose(struct fl_selector *selector, const struct fl_scoring *scoring,
                       uint32_t *ties)
{
    fl_cost_fill(selector, scoring); /* for the explain ring */
    *ties = selector->eligible_count;
    unsigned __int128 x = fl_selector_draw(selector);
    return fl_selector_eligible_row(selector, (uint32_t)(x * selector->eligible_count >> 64));
}

const struct fl_policy fl_policy_random = {.name = "random", .uses_index = true, .choose = choose};
