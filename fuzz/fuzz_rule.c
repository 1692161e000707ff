/* SPDX-License-Identifier: Apache-2.0 */
/* Rule entries: a refusal says something; what is taken survives being written and read again. */
#include <stdlib.h>

#include "rules/rule.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fl_rest_answer answer = {0};
    struct fl_buf out = {0};
    struct fl_rule *rule = fl_rule_new(fl_bytes(data, size), 0, &answer);
    if (rule == NULL) {
        if (answer.status < 400 || answer.message[0] == 0 || fl_rest_write(&out, &answer) < 0)
            abort();
    } else {
        struct fl_rule *copy = fl_rule_copy(rule, 0);
        if (!fl_rule_eq(rule, copy) || !fl_bytes_eq(rule->key, copy->key))
            abort();
        fl_rule_unref(copy);
    }
    fl_rule_unref(rule);
    fl_buf_fini(&out);
    return 0;
}
