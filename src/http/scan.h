/* SPDX-License-Identifier: Apache-2.0 */
/* Byte classes of RFC 9110 and the two scans that every head goes through.
 *
 * A field value ends at the first byte that may not stand in it, which in a good message is CR. The
 * scan looks at 16 bytes at once where SSE2 exists (all of x86-64), else by table; both give the
 * same index. */
#ifndef FL_HTTP_SCAN_H
#define FL_HTTP_SCAN_H

#include <stddef.h>
#include <stdint.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define FL_HTTP_TCHAR 1   /* RFC 9110 5.6.2 */
#define FL_HTTP_CONTROL 2 /* not in a field value: 0-31 but HTAB, and DEL */
#define FL_HTTP_TARGET 4  /* visible ASCII without '#': a request target */
#define FL_HTTP_REGNAME                                                                            \
    8 /* RFC 3986 unreserved, sub-delims: a host name ('%' is checked apart)                       \
       */

extern const uint8_t fl_http_class[256];

/* Index of the first byte in [p, p + n) that is no token character, or n. */
static inline size_t fl_http_scan_token(const uint8_t *p, size_t n)
{
    size_t i = 0;
    while (i < n && (fl_http_class[p[i]] & FL_HTTP_TCHAR) != 0)
        i++;
    return i;
}

/* The same for bytes that may stand in a target. */
static inline size_t fl_http_scan_target(const uint8_t *p, size_t n)
{
    size_t i = 0;
    while (i < n && (fl_http_class[p[i]] & FL_HTTP_TARGET) != 0)
        i++;
    return i;
}

static inline size_t fl_http_scan_value_slowly(const uint8_t *p, size_t n, size_t i)
{
    while (i < n && (fl_http_class[p[i]] & FL_HTTP_CONTROL) == 0)
        i++;
    return i;
}

/* Index of the first control byte other than HTAB, or n. */
#if defined(__SSE2__)
static inline size_t fl_http_scan_value(const uint8_t *p, size_t n)
{
    const __m128i last_control = _mm_set1_epi8(0x1f);
    const __m128i tab = _mm_set1_epi8('\t');
    const __m128i del = _mm_set1_epi8(0x7f);
    size_t i = 0;
    for (; n - i >= 16; i += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(p + i));
        /* min(x, 0x1f) == x says x <= 0x1f as unsigned, which SSE2 cannot compare directly. */
        __m128i low = _mm_cmpeq_epi8(_mm_min_epu8(bytes, last_control), bytes);
        __m128i bad = _mm_or_si128(_mm_andnot_si128(_mm_cmpeq_epi8(bytes, tab), low),
                                   _mm_cmpeq_epi8(bytes, del));
        unsigned mask = (unsigned)_mm_movemask_epi8(bad);
        if (mask != 0)
            return i + (size_t)__builtin_ctz(mask);
    }
    return fl_http_scan_value_slowly(p, n, i);
}
#else
static inline size_t fl_http_scan_value(const uint8_t *p, size_t n)
{
    return fl_http_scan_value_slowly(p, n, 0);
}
#endif

#endif
