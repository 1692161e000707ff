/* SPDX-License-Identifier: Apache-2.0 */
/* Policies: the choice among eligible ranks (selection.md 9.7). Eligibility, pins, admission,
 * booking and accounting are the same for all; a new policy is one file with one row here. */
#ifndef FL_SELECTION_POLICY_H
#define FL_SELECTION_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fl_selector;
struct fl_scoring;

#define FL_NO_ROW UINT32_MAX

struct fl_policy {
    const char *name;
    bool uses_index; /* false: every overlap is taken as 0 and no lookup is made */
    /* A row whose filter is NONE, and how many were equally good; FL_NO_ROW if none can be judged.
     * At least one row is eligible. Fills selector->cost. */
    uint32_t (*choose)(struct fl_selector *selector, const struct fl_scoring *scoring,
                       uint32_t *ties);
};

extern const struct fl_policy fl_policy_kv_cost, fl_policy_load_only;
extern const struct fl_policy fl_policy_round_robin, fl_policy_random;

/* NULL: unknown. */
const struct fl_policy *fl_policy_find(const char *name);
/* All, in the order of documentation. */
const struct fl_policy *const *fl_policies(size_t *count);

#endif
