/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/base64.h"

#include <stdint.h>

#include "base/error.h"

size_t fl_base64_size(size_t n)
{
    return (n + 2) / 3 * 4;
}

static int no_room(const struct fl_buf *out, size_t n)
{
    return out->max_bytes != 0 && fl_buf_size(out) + n > out->max_bytes ? FL_ELIMIT : FL_ENOMEM;
}

int fl_base64_encode(struct fl_buf *out, struct fl_bytes bytes)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t size = fl_base64_size(bytes.n);

    if (size == 0)
        return 0;
    uint8_t *to = fl_buf_reserve(out, size);
    if (to == NULL)
        return no_room(out, size);
    for (size_t i = 0; i < bytes.n; i += 3) {
        size_t have = bytes.n - i;
        uint32_t group = (uint32_t)bytes.p[i] << 16;
        if (have > 1)
            group |= (uint32_t)bytes.p[i + 1] << 8;
        if (have > 2)
            group |= bytes.p[i + 2];
        to[0] = (uint8_t)alphabet[group >> 18];
        to[1] = (uint8_t)alphabet[(group >> 12) & 63];
        to[2] = have > 1 ? (uint8_t)alphabet[(group >> 6) & 63] : '=';
        to[3] = have > 2 ? (uint8_t)alphabet[group & 63] : '=';
        to += 4;
    }
    fl_buf_commit(out, size);
    return 0;
}

/* 0..63, or -1. */
static int value_of(uint8_t c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    if (c == '+')
        return 62;
    return c == '/' ? 63 : -1;
}

/* Decodes four characters that stand for `n` bytes (1 to 3), the others being padding. */
static bool decode_group(const uint8_t *text, size_t n, uint8_t *to)
{
    uint32_t group = 0;

    for (size_t i = 0; i < 4; i++) {
        int value = i <= n ? value_of(text[i]) : 0;
        if (value < 0)
            return false;
        group = group << 6 | (uint32_t)value;
    }
    if ((group & ((1U << (8 * (3 - n))) - 1)) != 0) /* bits that no encoder sets */
        return false;
    for (size_t i = 0; i < n; i++)
        to[i] = (uint8_t)(group >> (16 - 8 * i));
    return true;
}

int fl_base64_decode(struct fl_buf *out, struct fl_bytes text)
{
    if (text.n % 4 != 0)
        return FL_EPROTO;
    if (text.n == 0)
        return 0;

    size_t padding = 0;
    if (text.p[text.n - 1] == '=')
        padding = text.p[text.n - 2] == '=' ? 2 : 1;
    size_t size = text.n / 4 * 3 - padding;
    uint8_t *to = fl_buf_reserve(out, size);
    if (to == NULL)
        return no_room(out, size);
    for (size_t at = 0; at < text.n; at += 4) {
        size_t n = at + 4 == text.n ? 3 - padding : 3;
        if (!decode_group(text.p + at, n, to))
            return FL_EPROTO; /* reserved, but not committed */
        to += n;
    }
    fl_buf_commit(out, size);
    return 0;
}
