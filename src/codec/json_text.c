/* SPDX-License-Identifier: Apache-2.0 */
/* Raw string content (between the quotes): unescaping and comparing. */
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "codec/json.h"
#include "codec/json_scan.h"

static size_t put_utf8(uint8_t *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (uint8_t)(0xc0 | (c >> 6));
        out[1] = (uint8_t)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (uint8_t)(0xe0 | (c >> 12));
        out[1] = (uint8_t)(0x80 | ((c >> 6) & 0x3f));
        out[2] = (uint8_t)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | (c >> 18));
    out[1] = (uint8_t)(0x80 | ((c >> 12) & 0x3f));
    out[2] = (uint8_t)(0x80 | ((c >> 6) & 0x3f));
    out[3] = (uint8_t)(0x80 | (c & 0x3f));
    return 4;
}

/* The character of a \u escape whose backslash stands at `p`, with its second half if it has one.
 * Returns the bytes of the escape, 0 if malformed or unpaired. */
static size_t read_unicode_escape(const uint8_t *p, const uint8_t *end, uint32_t *c)
{
    if (end - p < 6)
        return 0;
    int32_t unit = fl_json_hex4(p + 2);
    if (unit < 0)
        return 0;
    if (unit < 0xd800 || unit > 0xdfff) {
        *c = (uint32_t)unit;
        return 6;
    }
    if (unit > 0xdbff || end - p < 12 || p[6] != '\\' || p[7] != 'u')
        return 0;
    int32_t low = fl_json_hex4(p + 8);
    if (low < 0xdc00 || low > 0xdfff)
        return 0;
    *c = 0x10000 + ((uint32_t)(unit - 0xd800) << 10) + (uint32_t)(low - 0xdc00);
    return 12;
}

/* What the short escapes mean, by the byte behind the backslash; 0: no such escape. */
static const uint8_t short_escapes[256] = {
    ['"'] = '"',  ['\\'] = '\\', ['/'] = '/',  ['b'] = '\b',
    ['f'] = '\f', ['n'] = '\n',  ['r'] = '\r', ['t'] = '\t',
};

/* The bytes that the escape at `p` stands for. Returns the escape's length, 0 if malformed. */
static inline size_t read_escape(const uint8_t *p, const uint8_t *end, uint8_t out[4], size_t *n)
{
    uint32_t c;

    if (end - p < 2)
        return 0;
    if (p[1] == 'u') {
        size_t used = read_unicode_escape(p, end, &c);
        if (used > 0)
            *n = put_utf8(out, c);
        return used;
    }
    out[0] = short_escapes[p[1]];
    *n = 1;
    return out[0] == 0 ? 0 : 2;
}

/* Copies up to the next backslash (or `end`) and returns it; *to moves along. At `to` there is room
 * for as much as is left of the input. */
#if defined(__SSE2__)
static inline const uint8_t *copy_plain(const uint8_t *p, const uint8_t *end, uint8_t **to)
{
    const __m128i backslash = _mm_set1_epi8('\\');

    while (end - p >= 16) {
        __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
        /* All sixteen are stored; what lies behind a backslash is written over later. */
        _mm_storeu_si128((__m128i *)(void *)*to, x);
        unsigned mask = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(x, backslash));
        unsigned n = mask != 0 ? (unsigned)__builtin_ctz(mask) : 16;
        p += n;
        *to += n;
        if (mask != 0)
            return p;
    }
    while (p < end && *p != '\\')
        *(*to)++ = *p++;
    return p;
}
#else
static inline const uint8_t *copy_plain(const uint8_t *p, const uint8_t *end, uint8_t **to)
{
    while (p < end && *p != '\\')
        *(*to)++ = *p++;
    return p;
}
#endif

int fl_json_unescape(struct fl_arena *arena, struct fl_bytes raw, struct fl_bytes *value)
{
    const uint8_t *p = raw.p;
    const uint8_t *end = raw.n == 0 ? p : p + raw.n;

    if (raw.n == 0 || memchr(p, '\\', raw.n) == NULL) {
        *value = raw;
        return 0;
    }
    uint8_t *out = fl_arena_try_alloc(arena, raw.n); /* an escape never grows */
    if (out == NULL)
        return FL_ENOMEM;
    uint8_t *to = out;
    for (;;) {
        size_t n = 0;
        uint8_t bytes[4];
        p = copy_plain(p, end, &to);
        if (p == end)
            break;
        size_t used = read_escape(p, end, bytes, &n);
        if (used == 0)
            return FL_EPROTO;
        memcpy(to, bytes, n); /* n <= used: the output never catches up with its room */
        to += n;
        p += used;
    }
    *value = (struct fl_bytes){out, (size_t)(to - out)};
    return 0;
}

bool fl_json_raw_eq(struct fl_bytes raw, struct fl_bytes plain)
{
    if (raw.n == plain.n) /* an escape is longer than what it means */
        return fl_bytes_eq(raw, plain) && (raw.n == 0 || memchr(raw.p, '\\', raw.n) == NULL);
    if (raw.n < plain.n)
        return false;

    const uint8_t *p = raw.p;
    const uint8_t *end = p + raw.n;
    size_t at = 0;
    while (p < end) {
        uint8_t bytes[4] = {*p};
        size_t n = 1;
        size_t used = *p == '\\' ? read_escape(p, end, bytes, &n) : 1;
        if (used == 0 || plain.n - at < n || memcmp(plain.p + at, bytes, n) != 0)
            return false;
        at += n;
        p += used;
    }
    return at == plain.n;
}
