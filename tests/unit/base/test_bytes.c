/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/rng.h"

static void comparison_without_case_is_ascii_only(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        struct fl_bytes a, b;
        bool equal;
    } rows[] = {
        {"letters of both cases", FL_BYTES("Content-Length"), FL_BYTES("content-LENGTH"), true},
        {"'@' is 'A' - 1 and not a letter", FL_BYTES("@"), FL_BYTES("`"), false},
        {"'[' is 'Z' + 1 and not a letter", FL_BYTES("["), FL_BYTES("{"), false},
        {"bytes above ASCII compare exactly", FL_BYTES("\xc4"), FL_BYTES("\xe4"), false},
        {"NUL is a byte like others", FL_BYTES("a\0B"), FL_BYTES("A\0b"), true},
        {"lengths differ", FL_BYTES("ab"), FL_BYTES("abc"), false},
        {"absent equals empty", {NULL, 0}, FL_BYTES(""), true},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        if (fl_bytes_eq_nocase(rows[i].a, rows[i].b) != rows[i].equal)
            fail_msg("row %zu: %s", i, rows[i].why);
    }
}

static void order_puts_the_shorter_prefix_first(void **state)
{
    (void)state;
    static const struct {
        struct fl_bytes a, b;
        int sign;
    } rows[] = {
        {FL_BYTES("a"), FL_BYTES("b"), -1},
        {FL_BYTES("b"), FL_BYTES("a"), 1},
        {FL_BYTES("a"), FL_BYTES("ab"), -1},
        {FL_BYTES("ab"), FL_BYTES("a"), 1},
        {FL_BYTES("a"), FL_BYTES("a"), 0},
        {{NULL, 0}, FL_BYTES("a"), -1},
        {FL_BYTES(""), {NULL, 0}, 0},
        {FL_BYTES("\xff"), FL_BYTES("a"), 1},
        {FL_BYTES("a\0b"), FL_BYTES("a\0c"), -1},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        int order = fl_bytes_cmp(rows[i].a, rows[i].b);
        if ((order > 0) - (order < 0) != rows[i].sign)
            fail_msg("row %zu: %d", i, order);
    }
}

static void prefixes_and_suffixes(void **state)
{
    (void)state;
    assert_true(fl_bytes_has_prefix(FL_BYTES("abc"), FL_BYTES("ab")));
    assert_true(fl_bytes_has_prefix(FL_BYTES("abc"), FL_BYTES("")));
    assert_true(fl_bytes_has_prefix(FL_BYTES("abc"), FL_BYTES("abc")));
    assert_false(fl_bytes_has_prefix(FL_BYTES("abc"), FL_BYTES("abcd")));
    assert_false(fl_bytes_has_prefix(FL_BYTES("abc"), FL_BYTES("b")));
    assert_true(fl_bytes_has_suffix(FL_BYTES("abc"), FL_BYTES("bc")));
    assert_true(fl_bytes_has_suffix(FL_BYTES("abc"), FL_BYTES("")));
    assert_false(fl_bytes_has_suffix(FL_BYTES("abc"), FL_BYTES("ab")));
    assert_false(fl_bytes_has_suffix(FL_BYTES("c"), FL_BYTES("bc")));
    assert_true(fl_bytes_has_prefix((struct fl_bytes){NULL, 0}, FL_BYTES("")));
}

static void head_and_skip_stay_inside(void **state)
{
    (void)state;
    struct fl_bytes b = FL_BYTES("abcd");
    assert_true(fl_bytes_eq(fl_bytes_head(b, 2), FL_BYTES("ab")));
    assert_true(fl_bytes_eq(fl_bytes_head(b, 9), b));
    assert_true(fl_bytes_eq(fl_bytes_skip(b, 2), FL_BYTES("cd")));
    assert_int_equal(fl_bytes_skip(b, 9).n, 0);
    assert_non_null(fl_bytes_skip(b, 9).p); /* empty, not absent */
    assert_true(fl_bytes_is_absent(fl_bytes_skip((struct fl_bytes){NULL, 0}, 3)));
}

static void search_gives_the_first_place_or_the_length(void **state)
{
    (void)state;
    assert_int_equal(fl_bytes_index(FL_BYTES("abca"), 'a'), 0);
    assert_int_equal(fl_bytes_index(FL_BYTES("abca"), 'c'), 2);
    assert_int_equal(fl_bytes_index(FL_BYTES("abca"), 'x'), 4);
    assert_int_equal(fl_bytes_index(FL_BYTES("a\0b"), 0), 1);
    assert_int_equal(fl_bytes_index((struct fl_bytes){NULL, 0}, 'a'), 0);
    assert_int_equal(fl_bytes_find(FL_BYTES("ababc"), FL_BYTES("abc")), 2);
    assert_int_equal(fl_bytes_find(FL_BYTES("ababc"), FL_BYTES("abd")), 5);
    assert_int_equal(fl_bytes_find(FL_BYTES("ab"), FL_BYTES("")), 0);
    assert_int_equal(fl_bytes_find(FL_BYTES("ab"), FL_BYTES("abc")), 2);
    assert_int_equal(fl_bytes_find((struct fl_bytes){NULL, 0}, FL_BYTES("a")), 0);
}

static void trimming_takes_blanks_and_tabs_only(void **state)
{
    (void)state;
    assert_true(fl_bytes_eq(fl_bytes_trim(FL_BYTES(" \ta b\t ")), FL_BYTES("a b")));
    assert_true(fl_bytes_eq(fl_bytes_trim(FL_BYTES("\na\r")), FL_BYTES("\na\r")));
    assert_int_equal(fl_bytes_trim(FL_BYTES(" \t ")).n, 0);
    assert_int_equal(fl_bytes_trim((struct fl_bytes){NULL, 0}).n, 0);
}

static void lists_are_walked_item_by_item(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        struct fl_bytes list;
        const char *items; /* joined with '|' */
    } rows[] = {
        {"three items", FL_BYTES("a,b,c"), "a|b|c|"},
        {"an empty list has one empty item", FL_BYTES(""), "|"},
        {"a separator at the end announces an empty one", FL_BYTES("a,"), "a||"},
        {"only a separator", FL_BYTES(","), "||"},
        {"an absent list has none", {NULL, 0}, ""},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        char seen[64];
        size_t n = 0;
        struct fl_bytes rest = rows[i].list, item;
        while (fl_bytes_next(&rest, ',', &item)) {
            memcpy(seen + n, item.p, item.n);
            n += item.n;
            seen[n++] = '|';
        }
        if (!fl_bytes_eq(fl_bytes(seen, n), fl_bytes_of(rows[i].items)))
            fail_msg("row %zu: %s: %.*s", i, rows[i].why, (int)n, seen);
    }
}

static void numbers_are_digits_up_to_a_maximum(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        struct fl_bytes text;
        uint64_t max;
        bool ok;
        uint64_t value;
    } rows[] = {
        {"zero", FL_BYTES("0"), 10, true, 0},
        {"the maximum itself", FL_BYTES("65535"), 65535, true, 65535},
        {"one above the maximum", FL_BYTES("65536"), 65535, false, 0},
        {"leading zeros are digits", FL_BYTES("007"), 7, true, 7},
        {"the largest number", FL_BYTES("18446744073709551615"), UINT64_MAX, true, UINT64_MAX},
        {"one above the largest", FL_BYTES("18446744073709551616"), UINT64_MAX, false, 0},
        {"far above, wrapping once", FL_BYTES("99999999999999999999"), UINT64_MAX, false, 0},
        {"a digit above a one-digit maximum", FL_BYTES("9"), 8, false, 0},
        {"maximum 0 allows 0", FL_BYTES("00"), 0, true, 0},
        {"empty", FL_BYTES(""), 10, false, 0},
        {"absent", {NULL, 0}, 10, false, 0},
        {"a sign", FL_BYTES("+1"), 10, false, 0},
        {"a blank", FL_BYTES("1 "), 10, false, 0},
        {"hexadecimal", FL_BYTES("0x1"), 10, false, 0},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        uint64_t value = 77;
        bool ok = fl_bytes_to_u64(rows[i].text, rows[i].max, &value);
        if (ok != rows[i].ok || value != (ok ? rows[i].value : 77))
            fail_msg("row %zu: %s", i, rows[i].why);
    }
}

static void utf8_follows_rfc_3629(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        struct fl_bytes text;
        bool valid;
    } rows[] = {
        {"empty", FL_BYTES(""), true},
        {"absent", {NULL, 0}, true},
        {"ASCII of 40 bytes", FL_BYTES("0123456789012345678901234567890123456789"), true},
        {"NUL and DEL", FL_BYTES("\0\x7f"), true},
        {"first of two bytes, U+0080", FL_BYTES("\xc2\x80"), true},
        {"last of two bytes, U+07FF", FL_BYTES("\xdf\xbf"), true},
        {"overlong NUL", FL_BYTES("\xc0\x80"), false},
        {"overlong slash", FL_BYTES("\xc1\xaf"), false},
        {"first of three bytes, U+0800", FL_BYTES("\xe0\xa0\x80"), true},
        {"overlong in three bytes", FL_BYTES("\xe0\x9f\xbf"), false},
        {"last before the surrogates, U+D7FF", FL_BYTES("\xed\x9f\xbf"), true},
        {"first surrogate", FL_BYTES("\xed\xa0\x80"), false},
        {"last surrogate", FL_BYTES("\xed\xbf\xbf"), false},
        {"first after the surrogates, U+E000", FL_BYTES("\xee\x80\x80"), true},
        {"U+FFFF", FL_BYTES("\xef\xbf\xbf"), true},
        {"first of four bytes, U+10000", FL_BYTES("\xf0\x90\x80\x80"), true},
        {"overlong in four bytes", FL_BYTES("\xf0\x8f\xbf\xbf"), false},
        {"the last, U+10FFFF", FL_BYTES("\xf4\x8f\xbf\xbf"), true},
        {"one above the last", FL_BYTES("\xf4\x90\x80\x80"), false},
        {"lead byte F5", FL_BYTES("\xf5\x80\x80\x80"), false},
        {"lead byte FF", FL_BYTES("\xff"), false},
        {"continuation alone", FL_BYTES("\x80"), false},
        {"two bytes, cut", FL_BYTES("a\xc3"), false},
        {"three bytes, cut", FL_BYTES("\xe2\x82"), false},
        {"four bytes, cut", FL_BYTES("\xf0\x9f\x98"), false},
        {"third byte no continuation", FL_BYTES("\xe2\x82\x41"), false},
        {"bad byte behind 16 of ASCII", FL_BYTES("0123456789abcdef\xff"), false},
        {"bad byte as the 16th",
         FL_BYTES("0123456789abcde\xff"
                  "0123"),
         false},
        {"good character across the 16th", FL_BYTES("0123456789abcde\xc3\xa4xyz"), true},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        if (fl_bytes_is_utf8(rows[i].text) != rows[i].valid)
            fail_msg("row %zu: %s", i, rows[i].why);
    }
}

static void a_bad_byte_is_found_wherever_it_stands(void **state)
{
    (void)state;
    char text[50];
    for (size_t n = 1; n <= sizeof(text); n++) {
        for (size_t at = 0; at < n; at++) {
            memset(text, 'a', n);
            assert_true(fl_bytes_is_utf8(fl_bytes(text, n)));
            text[at] = (char)0x80;
            if (fl_bytes_is_utf8(fl_bytes(text, n)))
                fail_msg("at %zu of %zu", at, n);
        }
    }
}

/* RFC 3629 by its definition: decode, then ask whether the number may be written so. */
static bool is_utf8_naive(const uint8_t *p, size_t n)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    for (size_t i = 0; i < n;) {
        size_t len = p[i] < 0x80       ? 1
                     : p[i] >> 5 == 6  ? 2
                     : p[i] >> 4 == 14 ? 3
                     : p[i] >> 3 == 30 ? 4
                                       : 0;
        if (len == 0 || len > n - i)
            return false;
        uint32_t code = len == 1 ? p[i] : p[i] & (0x7fu >> len);
        for (size_t k = 1; k < len; k++) {
            if (p[i + k] >> 6 != 2)
                return false;
            code = code << 6 | (p[i + k] & 0x3fu);
        }
        if (code < least[len] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
            return false;
        i += len;
    }
    return true;
}

static void utf8_agrees_with_the_definition_on_random_bytes(void **state)
{
    (void)state;
    struct fl_rng rng;
    fl_rng_seed(&rng, 7);
    /* Bytes at the edges of the rules, so that valid and nearly valid text is common. */
    static const uint8_t edges[] = {'a',  0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc1, 0xc2,
                                    0xdf, 0xe0, 0xe1, 0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xf5};
    size_t valid = 0;
    for (unsigned round = 0; round < 200000; round++) {
        uint8_t text[24];
        size_t n = fl_rng_below(&rng, 8), lead = fl_rng_below(&rng, 17);
        memset(text, 'x', lead);
        for (size_t i = 0; i < n; i++)
            text[lead + i] = edges[fl_rng_below(&rng, sizeof(edges))];
        bool expected = is_utf8_naive(text, lead + n);
        valid += expected;
        if (fl_bytes_is_utf8(fl_bytes(text, lead + n)) != expected)
            fail_msg("round %u of seed 7", round);
    }
    assert_in_range(valid, 10000, 190000); /* both answers were really asked for */
}

static void c_strings_fit_or_are_refused(void **state)
{
    (void)state;
    char out[4] = "zzz";
    assert_true(fl_bytes_to_cstr(FL_BYTES("abc"), out, sizeof(out)));
    assert_string_equal(out, "abc");
    assert_false(fl_bytes_to_cstr(FL_BYTES("abcd"), out, sizeof(out)));
    assert_false(fl_bytes_to_cstr(FL_BYTES("a\0b"), out, sizeof(out)));
    assert_false(fl_bytes_to_cstr(FL_BYTES(""), out, 0));
    assert_true(fl_bytes_to_cstr((struct fl_bytes){NULL, 0}, out, 1));
    assert_string_equal(out, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comparison_without_case_is_ascii_only),
        cmocka_unit_test(order_puts_the_shorter_prefix_first),
        cmocka_unit_test(prefixes_and_suffixes),
        cmocka_unit_test(head_and_skip_stay_inside),
        cmocka_unit_test(search_gives_the_first_place_or_the_length),
        cmocka_unit_test(trimming_takes_blanks_and_tabs_only),
        cmocka_unit_test(lists_are_walked_item_by_item),
        cmocka_unit_test(numbers_are_digits_up_to_a_maximum),
        cmocka_unit_test(utf8_follows_rfc_3629),
        cmocka_unit_test(a_bad_byte_is_found_wherever_it_stands),
        cmocka_unit_test(utf8_agrees_with_the_definition_on_random_bytes),
        cmocka_unit_test(c_strings_fit_or_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
