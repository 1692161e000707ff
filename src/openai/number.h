/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as bodies and headers both spell them (private to openai/). */
#ifndef FL_OPENAI_NUMBER_H
#define FL_OPENAI_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"

/* Whole `text` as ["-"] 1*DIGIT within 32 bits; false (and *value untouched) otherwise. */
static inline bool fl_openai_to_i32(struct fl_bytes text, int32_t *value)
{
    uint64_t n;
    bool is_negative = text.n > 0 && text.p[0] == '-';

    if (!fl_bytes_to_u64(is_negative ? fl_bytes_skip(text, 1) : text,
                         (uint64_t)INT32_MAX + is_negative, &n))
        return false;
    *value = (int32_t)(is_negative ? -(int64_t)n : (int64_t)n);
    return true;
}

#endif
