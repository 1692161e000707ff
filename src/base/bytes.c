/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"

static uint8_t lower(uint8_t byte)
{
    return byte >= 'A' && byte <= 'Z' ? (uint8_t)(byte | 0x20) : byte;
}

bool fl_bytes_eq_nocase(struct fl_bytes a, struct fl_bytes b)
{
    if (a.n != b.n)
        return false;
    for (size_t i = 0; i < a.n; i++) {
        if (lower(a.p[i]) != lower(b.p[i]))
            return false;
    }
    return true;
}

int fl_bytes_cmp(struct fl_bytes a, struct fl_bytes b)
{
    size_t n = a.n < b.n ? a.n : b.n;
    int order = n == 0 ? 0 : memcmp(a.p, b.p, n);
    if (order != 0)
        return order;
    return (a.n > b.n) - (a.n < b.n);
}

bool fl_bytes_has_prefix(struct fl_bytes b, struct fl_bytes prefix)
{
    return prefix.n <= b.n && fl_bytes_eq(fl_bytes_head(b, prefix.n), prefix);
}

bool fl_bytes_has_suffix(struct fl_bytes b, struct fl_bytes suffix)
{
    return suffix.n <= b.n && fl_bytes_eq(fl_bytes_skip(b, b.n - suffix.n), suffix);
}

size_t fl_bytes_index(struct fl_bytes b, uint8_t byte)
{
    const uint8_t *found = b.n == 0 ? NULL : memchr(b.p, byte, b.n);
    return found == NULL ? b.n : (size_t)(found - b.p);
}

size_t fl_bytes_find(struct fl_bytes b, struct fl_bytes needle)
{
    if (needle.n == 0)
        return 0;
    if (needle.n > b.n)
        return b.n;
    const uint8_t *found = memmem(b.p, b.n, needle.p, needle.n);
    return found == NULL ? b.n : (size_t)(found - b.p);
}

struct fl_bytes fl_bytes_trim(struct fl_bytes b)
{
    while (b.n > 0 && (b.p[0] == ' ' || b.p[0] == '\t'))
        b = fl_bytes_skip(b, 1);
    while (b.n > 0 && (b.p[b.n - 1] == ' ' || b.p[b.n - 1] == '\t'))
        b.n--;
    return b;
}

bool fl_bytes_next(struct fl_bytes *rest, uint8_t separator, struct fl_bytes *item)
{
    if (fl_bytes_is_absent(*rest))
        return false;
    size_t end = fl_bytes_index(*rest, separator);
    *item = fl_bytes_head(*rest, end);
    /* A separator at the very end announces one more, empty item; the end of the list none. */
    *rest = end < rest->n ? fl_bytes_skip(*rest, end + 1) : (struct fl_bytes){NULL, 0};
    return true;
}

bool fl_bytes_to_u64(struct fl_bytes b, uint64_t max, uint64_t *value)
{
    uint64_t sum = 0;

    if (b.n == 0)
        return false;
    for (size_t i = 0; i < b.n; i++) {
        if (b.p[i] < '0' || b.p[i] > '9')
            return false;
        uint64_t digit = (uint64_t)(b.p[i] - '0');
        if (digit > max || sum > (max - digit) / 10)
            return false;
        sum = sum * 10 + digit;
    }
    *value = sum;
    return true;
}

/* Length of the run of ASCII at `p`, looked at 16 bytes a time; may stop up to 15 bytes early. */
static size_t ascii_run(const uint8_t *p, size_t n)
{
    size_t at = 0;
    while (n - at >= 16) {
        uint64_t pair[2];
        memcpy(pair, p + at, 16);
        if (((pair[0] | pair[1]) & UINT64_C(0x8080808080808080)) != 0)
            break;
        at += 16;
    }
    return at;
}

/* Length of the well-formed multi-byte sequence at `p`, or 0. Rows of RFC 3629 section 4: the
 * second byte's range keeps out overlong forms, surrogates and what lies above U+10FFFF. */
static size_t utf8_sequence(const uint8_t *p, size_t n)
{
    uint8_t low = 0x80, high = 0xbf;
    size_t len;

    if (p[0] >= 0xc2 && p[0] <= 0xdf) {
        len = 2;
    } else if (p[0] >= 0xe0 && p[0] <= 0xef) {
        len = 3;
        if (p[0] == 0xe0)
            low = 0xa0;
        else if (p[0] == 0xed)
            high = 0x9f;
    } else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        len = 4;
        if (p[0] == 0xf0)
            low = 0x90;
        else if (p[0] == 0xf4)
            high = 0x8f;
    } else {
        return 0;
    }
    if (n < len || p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    }
    return len;
}

bool fl_bytes_is_utf8(struct fl_bytes b)
{
    size_t at = 0;
    while (at < b.n) {
        if (b.p[at] < 0x80) {
            size_t run = ascii_run(b.p + at, b.n - at);
            at += run > 0 ? run : 1;
            continue;
        }
        size_t len = utf8_sequence(b.p + at, b.n - at);
        if (len == 0)
            return false;
        at += len;
    }
    return true;
}

bool fl_bytes_to_cstr(struct fl_bytes b, char *out, size_t room)
{
    if (b.n >= room || fl_bytes_index(b, 0) != b.n)
        return false;
    if (b.n > 0)
        memcpy(out, b.p, b.n);
    out[b.n] = 0;
    return true;
}
