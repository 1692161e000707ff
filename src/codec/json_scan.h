/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON grammar, once: used by parse, check, scan, splice (private to codec/json_*.c and their
 * test).
 *
 * fl_json_walk() reads a whole text without recursion and tells its events what it meets. It is an
 * inline function that each user calls with a constant table, so the compiler makes one specialised
 * loop per user and the accepted language cannot differ between them.
 *
 * Strings are the bulk of a request. fl_json_skip_plain() passes over bytes that need no look
 * (ASCII without quote, backslash, control character), 16 at a time where SSE2 exists; its scalar
 * twin gives the same answer, which test_json_scan proves. */
#ifndef FL_CODEC_JSON_SCAN_H
#define FL_CODEC_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "codec/json.h"

/* First byte in [p, end) that is a quote, a backslash, below 0x20 or above 0x7f; `end` if none. */
const uint8_t *fl_json_skip_plain(const uint8_t *p, const uint8_t *end);
const uint8_t *fl_json_skip_plain_scalar(const uint8_t *p, const uint8_t *end);

/* Length of the UTF-8 sequence of a non-ASCII character at `p`; 0 if malformed or cut (RFC 3629).
 */
size_t fl_json_utf8_len(const uint8_t *p, const uint8_t *end);

/* What and where a text is wrong. */
struct fl_json_fault {
    const char *why;
    const uint8_t *at;
};

/* `p` stands behind the opening quote. Returns the closing quote, or NULL with `fault` filled. */
const uint8_t *fl_json_scan_string(const uint8_t *p, const uint8_t *end, bool *has_escapes,
                                   struct fl_json_fault *fault);

/* Value of four hexadecimal digits, or -1. */
int32_t fl_json_hex4(const uint8_t *p);

static inline bool fl_json_is_digit(uint8_t c)
{
    return (uint8_t)(c - '0') < 10;
}

static inline const uint8_t *fl_json_skip_blanks(const uint8_t *p, const uint8_t *end)
{
    /* The first test alone decides in compact JSON. */
    while (p < end && *p <= ' ' && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
        p++;
    return p;
}

/* The digits at `p`. Token ids have one to six of them, of unpredictable number, which would cost a
 * loop a mispredicted branch each: eight bytes are looked at in one word. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
/* High bit of each byte of `word` that is no digit. */
static inline uint64_t fl_json_non_digits(uint64_t word)
{
    uint64_t x = word ^ UINT64_C(0x3030303030303030); /* '0'..'9' become 0..9 */
    /* 10 or more overflows the low seven bits, other bytes have bit 7 set already. */
    return (((x & UINT64_C(0x7f7f7f7f7f7f7f7f)) + UINT64_C(0x7676767676767676)) | x) &
           UINT64_C(0x8080808080808080);
}

static inline const uint8_t *fl_json_skip_digits(const uint8_t *p, const uint8_t *end)
{
    while (end - p >= 8) {
        uint64_t word;
        memcpy(&word, p, sizeof(word));
        uint64_t other = fl_json_non_digits(word);
        if (other != 0)
            return p + __builtin_ctzll(other) / 8;
        p += 8;
    }
    while (p < end && fl_json_is_digit(*p))
        p++;
    return p;
}
#else
static inline const uint8_t *fl_json_skip_digits(const uint8_t *p, const uint8_t *end)
{
    while (p < end && fl_json_is_digit(*p))
        p++;
    return p;
}
#endif

/* `p` stands at a minus sign or digit. Returns the byte after the number, or NULL. */
static inline const uint8_t *fl_json_scan_number(const uint8_t *p, const uint8_t *end)
{
    if (*p == '-')
        p++;
    if (p == end || !fl_json_is_digit(*p))
        return NULL;
    p = *p == '0' ? p + 1 : fl_json_skip_digits(p, end);
    if (p < end && *p == '.') {
        const uint8_t *first = ++p;
        p = fl_json_skip_digits(p, end);
        if (p == first)
            return NULL;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        if (p < end && (*p == '+' || *p == '-'))
            p++;
        const uint8_t *first = p;
        p = fl_json_skip_digits(p, end);
        if (p == first)
            return NULL;
    }
    return p;
}

/* What a walk tells. A negative answer stops it and is returned. `depth` counts the open containers
 * around the thing: 0 at the top, 1 for the members of the top object. */
struct fl_json_events {
    int (*on_key)(void *owner, uint32_t depth, struct fl_bytes raw, bool has_escapes);
    /* strings: raw text between the quotes; others: source text */
    int (*on_scalar)(void *owner, uint32_t depth, enum fl_json_type type, struct fl_bytes text,
                     bool has_escapes);
    int (*on_open)(void *owner, uint32_t depth, enum fl_json_type type, const uint8_t *at);
    /* `end` stands behind the closing bracket. */
    int (*on_close)(void *owner, uint32_t depth, const uint8_t *end);
};

static inline int fl_json_fail(struct fl_json_fault *fault, const char *why, const uint8_t *at)
{
    *fault = (struct fl_json_fault){why, at};
    return FL_EPROTO;
}

/* Passes one of the three literals at `p`; NULL if it is none. */
static inline const uint8_t *fl_json_scan_literal(const uint8_t *p, const uint8_t *end,
                                                  enum fl_json_type *type)
{
    size_t n = (size_t)(end - p);

    if (n >= 4 && memcmp(p, "true", 4) == 0) {
        *type = FL_JSON_TRUE;
        return p + 4;
    }
    if (n >= 5 && memcmp(p, "false", 5) == 0) {
        *type = FL_JSON_FALSE;
        return p + 5;
    }
    if (n >= 4 && memcmp(p, "null", 4) == 0) {
        *type = FL_JSON_NULL;
        return p + 4;
    }
    return NULL;
}

/* Walks one text: a value, blanks around it, nothing else. 0, FL_EPROTO or FL_EDEPTH (`fault`
 * filled), or what an event returned. */
static inline __attribute__((always_inline)) int fl_json_walk(struct fl_bytes text,
                                                              const struct fl_json_events *events,
                                                              void *owner,
                                                              struct fl_json_fault *fault)
{
    const uint8_t *p = text.p;
    const uint8_t *const end = text.n == 0 ? text.p : text.p + text.n; /* p may be NULL then */
    uint8_t open[FL_JSON_MAX_DEPTH];                                   /* '{' or '[' */
    uint32_t depth = 0;
    int rc;

value:
    p = fl_json_skip_blanks(p, end);
    if (p == end)
        return fl_json_fail(fault, "a value is missing", p);
    if (*p == '"') {
        bool has_escapes = false;
        const uint8_t *first = p + 1;
        p = fl_json_scan_string(first, end, &has_escapes, fault);
        if (p == NULL)
            return FL_EPROTO;
        rc = events->on_scalar(owner, depth, FL_JSON_STRING, fl_bytes(first, (size_t)(p - first)),
                               has_escapes);
        if (rc < 0)
            return rc;
        p++;
    } else if (*p == '-' || fl_json_is_digit(*p)) {
        const uint8_t *first = p;
        p = fl_json_scan_number(first, end);
        if (p == NULL)
            return fl_json_fail(fault, "malformed number", first);
        rc = events->on_scalar(owner, depth, FL_JSON_NUMBER, fl_bytes(first, (size_t)(p - first)),
                               false);
        if (rc < 0)
            return rc;
    } else if (*p == '{' || *p == '[') {
        const uint8_t bracket = *p;
        if (depth == FL_JSON_MAX_DEPTH) {
            *fault = (struct fl_json_fault){"nesting too deep", p};
            return FL_EDEPTH;
        }
        rc = events->on_open(owner, depth, bracket == '{' ? FL_JSON_OBJECT : FL_JSON_ARRAY, p);
        if (rc < 0)
            return rc;
        open[depth++] = bracket;
        p = fl_json_skip_blanks(p + 1, end);
        if (p < end && *p == (bracket == '{' ? '}' : ']'))
            goto close;
        if (bracket == '{')
            goto key;
        goto value;
    } else {
        const uint8_t *first = p;
        enum fl_json_type type;
        p = fl_json_scan_literal(first, end, &type);
        if (p == NULL)
            return fl_json_fail(fault, "a value is expected", first);
        rc = events->on_scalar(owner, depth, type, fl_bytes(first, (size_t)(p - first)), false);
        if (rc < 0)
            return rc;
    }

after_value:
    p = fl_json_skip_blanks(p, end);
    if (depth == 0)
        return p == end ? 0 : fl_json_fail(fault, "something follows the value", p);
    if (p == end)
        return fl_json_fail(fault, "the text ends inside an object or array", p);
    if (open[depth - 1] == '[') {
        if (*p == ',') {
            p++;
            goto value;
        }
        if (*p != ']')
            return fl_json_fail(fault, "a comma or ] is expected", p);
        goto close;
    }
    if (*p == '}')
        goto close;
    if (*p != ',')
        return fl_json_fail(fault, "a comma or } is expected", p);
    p = fl_json_skip_blanks(p + 1, end);

key:
    if (p == end || *p != '"')
        return fl_json_fail(fault, "a key is expected", p);
    {
        bool has_escapes = false;
        const uint8_t *first = p + 1;
        p = fl_json_scan_string(first, end, &has_escapes, fault);
        if (p == NULL)
            return FL_EPROTO;
        rc = events->on_key(owner, depth, fl_bytes(first, (size_t)(p - first)), has_escapes);
        if (rc < 0)
            return rc;
        p = fl_json_skip_blanks(p + 1, end);
    }
    if (p == end || *p != ':')
        return fl_json_fail(fault, "a colon is expected", p);
    p++;
    goto value;

close:
    p++;
    depth--;
    rc = events->on_close(owner, depth, p);
    if (rc < 0)
        return rc;
    goto after_value;
}

#endif
