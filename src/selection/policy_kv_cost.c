/* SPDX-License-Identifier: Apache-2.0 */
/* kv-cost: the published Dynamo cost, selection.md 9.2 to 9.5. load-only is the same with every
 * overlap taken as 0: it shows what the index earns, and serves pools without events. */
#include "selection/state.h"

static uint32_t choose(struct fl_selector *selector, const struct fl_scoring *scoring,
                       uint32_t *ties)
{
    fl_cost_fill(selector, scoring);
    return fl_cost_draw(selector, scoring->weights.temperature, ties);
}

const struct fl_policy fl_policy_kv_cost = {
    .name = "kv-cost", .uses_index = true, .choose = choose};

const struct fl_policy fl_policy_load_only = {
    .name = "load-only", .uses_index = false, .choose = choose};
