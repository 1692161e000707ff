/* SPDX-License-Identifier: Apache-2.0 */
/* Building snapshots from lists of rules. Private to rules/. */
#ifndef FL_RULES_SNAPSHOT_H
#define FL_RULES_SNAPSHOT_H

#include "rules/rules.h"

/* References every rule of the list. */
struct fl_rules_snapshot *fl_rules_snapshot_new(struct fl_rule *const *list, uint32_t count,
                                                uint64_t generation, uint32_t loops);
/* NULL allowed. */
void fl_rules_snapshot_free(struct fl_rules_snapshot *snapshot);

#endif
