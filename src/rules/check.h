/* SPDX-License-Identifier: Apache-2.0 */
/* Steps 2 to 6 of gateway.md 4.5, in that order; the first failure is answered. Private to rules/.
 */
#ifndef FL_RULES_CHECK_H
#define FL_RULES_CHECK_H

#include "rules/rule.h"

/* `rule` was read (step 1) and its endpoints merged; fills in what follows from several members:
 * VIP, EPP host and port, defaults that depend on others, monitor. 0, or the status in `answer`. */
int fl_rule_check(struct fl_rule *rule, struct fl_rest_answer *answer);
/* Step 4 for one endpoint: address in canonical form. */
int fl_rule_check_endpoint(struct fl_rule *rule, struct fl_rule_endpoint *endpoint,
                           struct fl_rest_answer *answer);

#endif
