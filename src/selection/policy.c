/* SPDX-License-Identifier: Apache-2.0 */
#include "selection/policy.h"

#include <string.h>

#include "base/bytes.h"

static const struct fl_policy *const policies[] = {
    &fl_policy_kv_cost,
    &fl_policy_load_only,
    &fl_policy_round_robin,
    &fl_policy_random,
};

const struct fl_policy *fl_policy_find(const char *name)
{
    for (size_t i = 0; i < FL_ARRAY_LEN(policies); i++)
        if (strcmp(policies[i]->name, name) == 0)
            return policies[i];
    return NULL;
}

const struct fl_policy *const *fl_policies(size_t *count)
{
    *count = FL_ARRAY_LEN(policies);
    return policies;
}
