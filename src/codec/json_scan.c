/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/json_scan.h"

#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* 1: inside a string this byte is passed without a look. */
static bool is_plain(uint8_t c)
{
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

const uint8_t *fl_json_skip_plain_scalar(const uint8_t *p, const uint8_t *end)
{
    while (p < end && is_plain(*p))
        p++;
    return p;
}

#if defined(__SSE2__)
static inline const uint8_t *skip_plain(const uint8_t *p, const uint8_t *end)
{
    const __m128i quote = _mm_set1_epi8('"');
    const __m128i backslash = _mm_set1_epi8('\\');
    const __m128i space = _mm_set1_epi8(0x20);

    while (end - p >= 16) {
        __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
        /* The comparison is signed: bytes above 0x7f are negative, hence below a space too. */
        __m128i stop =
            _mm_or_si128(_mm_cmplt_epi8(x, space),
                         _mm_or_si128(_mm_cmpeq_epi8(x, quote), _mm_cmpeq_epi8(x, backslash)));
        unsigned mask = (unsigned)_mm_movemask_epi8(stop);
        if (mask != 0)
            return p + __builtin_ctz(mask);
        p += 16;
    }
    return fl_json_skip_plain_scalar(p, end);
}
#else
static inline const uint8_t *skip_plain(const uint8_t *p, const uint8_t *end)
{
    return fl_json_skip_plain_scalar(p, end);
}
#endif

const uint8_t *fl_json_skip_plain(const uint8_t *p, const uint8_t *end)
{
    return skip_plain(p, end);
}

static inline bool is_tail(uint8_t c)
{
    return (c & 0xc0) == 0x80;
}

static inline size_t utf8_len(const uint8_t *p, const uint8_t *end)
{
    size_t n = (size_t)(end - p);
    uint8_t lead = p[0];

    if (lead < 0xc2) /* a continuation byte, or an overlong form */
        return 0;
    if (lead < 0xe0)
        return n >= 2 && is_tail(p[1]) ? 2 : 0;
    if (lead < 0xf0) {
        if (n < 3 || !is_tail(p[1]) || !is_tail(p[2]))
            return 0;
        /* e0 80..9f is overlong, ed a0..bf a surrogate */
        if ((lead == 0xe0 && p[1] < 0xa0) || (lead == 0xed && p[1] > 0x9f))
            return 0;
        return 3;
    }
    if (lead > 0xf4 || n < 4 || !is_tail(p[1]) || !is_tail(p[2]) || !is_tail(p[3]))
        return 0;
    /* f0 80..8f is overlong, f4 90..bf above U+10FFFF */
    if ((lead == 0xf0 && p[1] < 0x90) || (lead == 0xf4 && p[1] > 0x8f))
        return 0;
    return 4;
}

/* Passes three-byte characters, the bulk of most non-Latin scripts, with one comparison each; stops
 * at anything else, and when fewer than four bytes are left. */
static inline const uint8_t *skip_wide(const uint8_t *p, const uint8_t *end)
{
    while (end - p >= 4) {
        uint32_t c = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
        if ((c & 0xf0c0c0) != 0xe08080)
            break;
        uint32_t top = c & 0x0f2000; /* zero: overlong (e0 80..9f); 0d2000: surrogate (ed a0..bf) */
        if (top == 0 || top == 0x0d2000)
            break;
        p += 3;
    }
    return p;
}

size_t fl_json_utf8_len(const uint8_t *p, const uint8_t *end)
{
    return utf8_len(p, end);
}

static int hex_value(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int32_t fl_json_hex4(const uint8_t *p)
{
    int32_t value = 0;

    for (int i = 0; i < 4; i++) {
        int digit = hex_value(p[i]);
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static const uint8_t *fail_string(struct fl_json_fault *fault, const char *why, const uint8_t *at)
{
    *fault = (struct fl_json_fault){why, at};
    return NULL;
}

/* `p` stands at the backslash. Returns the byte behind the escape (behind both halves of a pair).
 */
static const uint8_t *scan_escape(const uint8_t *p, const uint8_t *end, struct fl_json_fault *fault)
{
    if (end - p < 2)
        return fail_string(fault, "the text ends inside a string", end);
    switch (p[1]) {
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't':
        return p + 2;
    case 'u':
        break;
    default:
        return fail_string(fault, "unknown escape", p);
    }
    if (end - p < 6)
        return fail_string(fault, "malformed \\u escape", p);
    int32_t unit = fl_json_hex4(p + 2);
    if (unit < 0)
        return fail_string(fault, "malformed \\u escape", p);
    if (unit < 0xd800 || unit > 0xdfff)
        return p + 6;
    /* dependencies.md 4.3: half a surrogate pair is no character */
    if (unit > 0xdbff || end - p < 12 || p[6] != '\\' || p[7] != 'u')
        return fail_string(fault, "unpaired surrogate", p);
    int32_t low = fl_json_hex4(p + 8);
    if (low < 0xdc00 || low > 0xdfff)
        return fail_string(fault, "unpaired surrogate", p);
    return p + 12;
}

const uint8_t *fl_json_scan_string(const uint8_t *p, const uint8_t *end, bool *has_escapes,
                                   struct fl_json_fault *fault)
{
    for (;;) {
        p = skip_plain(p, end);
        if (p == end)
            return fail_string(fault, "the text ends inside a string", p);
        if (*p == '"')
            return p;
        if (*p == '\\') {
            *has_escapes = true;
            p = scan_escape(p, end, fault);
            if (p == NULL)
                return NULL;
        } else if (*p < 0x20) {
            return fail_string(fault, "control character in a string", p);
        } else {
            /* Non-ASCII comes in runs. skip_wide() never goes to the end: what is cut stays. */
            do {
                p = skip_wide(p, end);
                if (*p < 0x80)
                    break;
                size_t n = utf8_len(p, end);
                if (n == 0)
                    return fail_string(fault, "invalid UTF-8", p);
                p += n;
            } while (p < end && *p >= 0x80);
        }
    }
}

static int ignore_key(void *owner, uint32_t depth, struct fl_bytes raw, bool has_escapes)
{
    (void)owner, (void)depth, (void)raw, (void)has_escapes;
    return 0;
}

static int ignore_scalar(void *owner, uint32_t depth, enum fl_json_type type, struct fl_bytes text,
                         bool has_escapes)
{
    (void)owner, (void)depth, (void)type, (void)text, (void)has_escapes;
    return 0;
}

static int ignore_open(void *owner, uint32_t depth, enum fl_json_type type, const uint8_t *at)
{
    (void)owner, (void)depth, (void)type, (void)at;
    return 0;
}

static int ignore_close(void *owner, uint32_t depth, const uint8_t *end)
{
    (void)owner, (void)depth, (void)end;
    return 0;
}

int fl_json_check(struct fl_bytes text)
{
    static const struct fl_json_events events = {
        .on_key = ignore_key,
        .on_scalar = ignore_scalar,
        .on_open = ignore_open,
        .on_close = ignore_close,
    };
    struct fl_json_fault fault;

    return fl_json_walk(text, &events, NULL, &fault);
}

struct member_scan {
    int (*on_member)(void *owner, const struct fl_json_member *member);
    void *owner;
    struct fl_json_member member; /* being read */
};

static int member_key(void *owner, uint32_t depth, struct fl_bytes raw, bool has_escapes)
{
    struct member_scan *scan = owner;

    (void)has_escapes;
    if (depth == 1)
        scan->member.key = raw;
    return 0;
}

static int member_scalar(void *owner, uint32_t depth, enum fl_json_type type, struct fl_bytes text,
                         bool has_escapes)
{
    struct member_scan *scan = owner;

    (void)has_escapes;
    if (depth > 1)
        return 0;
    if (depth == 0)
        return FL_ETYPE;
    /* The source text of a string has its quotes. */
    scan->member.value = type == FL_JSON_STRING ? (struct fl_bytes){text.p - 1, text.n + 2} : text;
    scan->member.type = (uint8_t)type;
    return scan->on_member(scan->owner, &scan->member);
}

static int member_open(void *owner, uint32_t depth, enum fl_json_type type, const uint8_t *at)
{
    struct member_scan *scan = owner;

    if (depth == 0 && type != FL_JSON_OBJECT)
        return FL_ETYPE;
    if (depth == 1) {
        scan->member.value.p = at;
        scan->member.type = (uint8_t)type;
    }
    return 0;
}

static int member_close(void *owner, uint32_t depth, const uint8_t *end)
{
    struct member_scan *scan = owner;

    if (depth != 1)
        return 0;
    scan->member.value.n = (size_t)(end - scan->member.value.p);
    return scan->on_member(scan->owner, &scan->member);
}

int fl_json_scan_members(struct fl_bytes text,
                         int (*on_member)(void *owner, const struct fl_json_member *member),
                         void *owner)
{
    static const struct fl_json_events events = {
        .on_key = member_key,
        .on_scalar = member_scalar,
        .on_open = member_open,
        .on_close = member_close,
    };
    struct member_scan scan = {.on_member = on_member, .owner = owner};
    struct fl_json_fault fault;

    return fl_json_walk(text, &events, &scan, &fault);
}
