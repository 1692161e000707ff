/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers: conversion on demand, and the fast reader of token arrays. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "codec/json.h"
#include "codec/json_scan.h"

bool fl_json_to_u64(const struct fl_json_node *node, uint64_t *value)
{
    return node != NULL && node->type == FL_JSON_NUMBER &&
           fl_bytes_to_u64(node->text, UINT64_MAX, value);
}

bool fl_json_to_i64(const struct fl_json_node *node, int64_t *value)
{
    uint64_t n;

    if (node == NULL || node->type != FL_JSON_NUMBER)
        return false;
    if (node->text.p[0] != '-') {
        if (!fl_bytes_to_u64(node->text, INT64_MAX, &n))
            return false;
        *value = (int64_t)n;
        return true;
    }
    const uint64_t lowest = (uint64_t)INT64_MAX + 1;
    if (!fl_bytes_to_u64(fl_bytes_skip(node->text, 1), lowest, &n))
        return false;
    *value = n == lowest ? INT64_MIN : -(int64_t)n;
    return true;
}

bool fl_json_to_double(const struct fl_json_node *node, double *value)
{
    char small[64];
    char *text = small;

    if (node == NULL || node->type != FL_JSON_NUMBER)
        return false;
    size_t n = node->text.n;
    if (n >= sizeof(small)) {
        text = fl_try_alloc(n + 1);
        if (text == NULL)
            return false;
    }
    memcpy(text, node->text.p, n);
    text[n] = '\0';
    double x = strtod(text, NULL); /* the program stays in the "C" locale */
    if (text != small)
        fl_free(text);
    if (!isfinite(x))
        return false;
    *value = x;
    return true;
}

/* One unsigned integer at *p. FL_ETYPE when there is something else, FL_ERANGE when it is a
 * negative integer or above 2^32 - 1. */
static int read_u32_slow(const uint8_t **p, const uint8_t *end, uint32_t *value)
{
    const uint8_t *first = *p;

    if (first == end || !(*first == '-' || fl_json_is_digit(*first)))
        return FL_ETYPE;
    const uint8_t *last = fl_json_scan_number(first, end);
    if (last == NULL)
        return FL_ETYPE;
    for (const uint8_t *q = first; q < last; q++) {
        if (*q == '.' || *q == 'e' || *q == 'E')
            return FL_ETYPE;
    }
    uint64_t n = 0;
    for (const uint8_t *q = first; q < last; q++) {
        if (*q == '-')
            return FL_ERANGE;
        n = n * 10 + (uint64_t)(*q - '0');
        if (n > UINT32_MAX)
            return FL_ERANGE;
    }
    *value = (uint32_t)n;
    *p = last;
    return 0;
}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
/* Up to seven digits at once, in one 64-bit word. Returns their count, or 0 when there are none,
 * more, or a leading zero: the general reader decides then. Needs 8 readable bytes. */
static inline unsigned read_digits(const uint8_t *p, uint32_t *value)
{
    uint64_t word;

    memcpy(&word, p, sizeof(word));
    uint64_t other = fl_json_non_digits(word);
    if (other == 0)
        return 0;
    unsigned n = (unsigned)__builtin_ctzll(other) / 8;
    if (n == 0 || (p[0] == '0' && n > 1))
        return 0;
    /* Digits move to the top of the word (last digit highest), zeros fill in below. */
    uint64_t digits = (word ^ UINT64_C(0x3030303030303030)) << (64 - 8 * n);
    digits = digits * 10 + (digits >> 8); /* pairs, in every second byte */
    digits = ((digits & UINT64_C(0x000000ff000000ff)) * UINT64_C(0x000f424000000064) +
              ((digits >> 16) & UINT64_C(0x000000ff000000ff)) * UINT64_C(0x0000271000000001)) >>
             32;
    *value = (uint32_t)digits;
    return n;
}
#else
static inline unsigned read_digits(const uint8_t *p, uint32_t *value)
{
    (void)p, (void)value;
    return 0; /* the general reader does it */
}
#endif

int64_t fl_json_read_u32_array(struct fl_bytes array_text, uint32_t *out, size_t max)
{
    const uint8_t *p = array_text.p;
    const uint8_t *end = array_text.n == 0 ? p : p + array_text.n;
    size_t count = 0;

    if (p == end || *p != '[')
        return FL_ETYPE;
    p = fl_json_skip_blanks(p + 1, end);
    if (p < end && *p == ']')
        return p + 1 == end ? 0 : FL_ETYPE;
    for (;;) {
        uint32_t value = 0;
        unsigned n = end - p >= 8 ? read_digits(p, &value) : 0;
        if (n > 0 && (p[n] == ',' || p[n] == ']' || p[n] == ' ')) {
            p += n;
        } else {
            int rc = read_u32_slow(&p, end, &value);
            if (rc < 0)
                return rc;
        }
        if (count == max)
            return FL_ELIMIT;
        out[count++] = value;

        p = fl_json_skip_blanks(p, end);
        if (p == end)
            return FL_ETYPE;
        if (*p != ',')
            return *p == ']' && p + 1 == end ? (int64_t)count : FL_ETYPE;
        p = fl_json_skip_blanks(p + 1, end);
    }
}
