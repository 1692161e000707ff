/* SPDX-License-Identifier: Apache-2.0 */
/* Byte classes, URLs, targets and reasons against the words of the RFCs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "http/message.h"
#include "http/scan.h"

/* RFC 9110 5.6.2, RFC 9110 5.5, RFC 3986 3.2.2 */
static void the_class_table_is_the_grammar(void **state)
{
    (void)state;
    for (int c = 0; c < 256; c++) {
        bool alnum = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        bool tchar = alnum || (c != 0 && c < 128 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
        bool control = (c < 32 && c != 9) || c == 127;
        bool target = c > 32 && c < 127 && c != '#';
        bool regname = alnum || (c != 0 && c < 128 && strchr("-._~!$&'()*+,;=", c) != NULL);
        int expected = (tchar ? FL_HTTP_TCHAR : 0) | (control ? FL_HTTP_CONTROL : 0) |
                       (target ? FL_HTTP_TARGET : 0) | (regname ? FL_HTTP_REGNAME : 0);
        if (fl_http_class[c] != expected)
            fail_msg("byte %d: %d, expected %d", c, fl_http_class[c], expected);
    }
}

/* The fast scan against the table, with every byte at every place around a 16-byte edge. */
static void the_wide_scan_finds_what_the_table_finds(void **state)
{
    (void)state;
    for (size_t n = 0; n <= 40; n++) {
        for (size_t at = 0; at < n; at++) {
            for (int c = 0; c < 256; c++) {
                uint8_t *text = fl_alloc(n);
                memset(text, 'a', n);
                text[at] = (uint8_t)c;
                size_t slow = fl_http_scan_value_slowly(text, n, 0);
                size_t fast = fl_http_scan_value(text, n);
                fl_free(text);
                if (fast != slow)
                    fail_msg("n %zu, byte %d at %zu: %zu, expected %zu", n, c, at, fast, slow);
            }
        }
    }
}

static void names_and_values_are_told_apart(void **state)
{
    (void)state;
    assert_true(fl_http_is_token(FL_BYTES("x-A_1!")));
    assert_false(fl_http_is_token(FL_BYTES("")));
    assert_false(fl_http_is_token(FL_BYTES("a b")));
    assert_false(fl_http_is_token(FL_BYTES(":path")));
    assert_true(fl_http_is_value(FL_BYTES("")));
    assert_true(fl_http_is_value(FL_BYTES("a\tb \xff")));
    assert_false(fl_http_is_value(FL_BYTES("a\rb")));
    assert_false(fl_http_is_value(FL_BYTES("a\nb")));
    assert_false(fl_http_is_value(FL_BYTES("a\0b")));
}

static void urls_are_http_without_user_and_fragment(void **state)
{
    (void)state;
    static const struct {
        const char *text, *scheme, *host, *path, *query;
        uint16_t port;
        bool is_tls, is_ip;
    } good[] = {
        {"http://a", "http", "a", "/", NULL, 80, false, false},
        {"HTTPS://A.b/x/y?z=1", "https", "A.b", "/x/y", "z=1", 443, true, false},
        {"http://1.2.3.4:8000/", "http", "1.2.3.4", "/", NULL, 8000, false, true},
        {"http://[::1]:1?q", "http", "::1", "/", "q", 1, false, true},
        {"https://a:65535/?", "https", "a", "/", "", 65535, true, false},
        {"http://1.2.3/", "http", "1.2.3", "/", NULL, 80, false, false},
    };
    static const char *const bad[] = {
        "",
        "a",
        "http:/a",
        "http://",
        "http:///x",
        "ftp://a",
        "http://a:0",
        "http://a:",
        "http://a:65536",
        "http://a:x",
        "http://u@a",
        "http://a#f",
        "http://a b",
        "http://a/\x01",
        "http://[::1",
        "http://[1.2.3.4]",
        "http://a/\xc3\xa9",
        "//a/",
        "http://a:1:2",
        "http://[::1]x/",
        "http://a%zz/",
    };
    struct fl_url url;
    struct fl_error err;
    for (size_t i = 0; i < FL_ARRAY_LEN(good); i++) {
        if (fl_url_parse(fl_bytes_of(good[i].text), &url, &err) != 0)
            fail_msg("%s: %s", good[i].text, err.text);
        assert_true(fl_bytes_eq(url.scheme, fl_bytes_of(good[i].scheme)));
        assert_true(fl_bytes_eq(url.host, fl_bytes_of(good[i].host)));
        assert_true(fl_bytes_eq(url.path, fl_bytes_of(good[i].path)));
        assert_true(fl_bytes_eq(url.query, fl_bytes_of(good[i].query)));
        assert_int_equal(fl_bytes_is_absent(url.query), good[i].query == NULL);
        assert_int_equal(url.port, good[i].port);
        assert_int_equal(url.is_tls, good[i].is_tls);
        assert_int_equal(url.is_ip, good[i].is_ip);
    }
    for (size_t i = 0; i < FL_ARRAY_LEN(bad); i++) {
        err = (struct fl_error){0};
        if (fl_url_parse(fl_bytes_of(bad[i]), &url, &err) != FL_EBAD_REQUEST || err.text[0] == 0)
            fail_msg("\"%s\" was taken", bad[i]);
    }
}

static void a_target_has_a_path_and_perhaps_a_query(void **state)
{
    (void)state;
    static const struct {
        const char *target, *path, *query;
    } rows[] = {
        {"/a", "/a", NULL}, {"/a?", "/a", ""}, {"/a?b?c", "/a", "b?c"},
        {"*", "*", NULL},   {"?x", "", "x"},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_bytes path, query;
        fl_target_split(fl_bytes_of(rows[i].target), &path, &query);
        assert_true(fl_bytes_eq(path, fl_bytes_of(rows[i].path)));
        assert_true(fl_bytes_eq(query, fl_bytes_of(rows[i].query)));
        assert_int_equal(fl_bytes_is_absent(query), rows[i].query == NULL);
    }
}

static void escapes_are_decoded_once(void **state)
{
    (void)state;
    static const struct {
        const char *text, *decoded; /* NULL: FL_EPROTO */
    } rows[] = {
        {"", ""},       {"abc", "abc"},   {"a%20b", "a b"},       {"%41%4a%4A", "AJJ"},
        {"a+b", "a+b"}, {"%2541", "%41"}, {"%c3%a9", "\xc3\xa9"}, {"%", NULL},
        {"%4", NULL},   {"%4g", NULL},    {"%00", NULL},          {"a%2", NULL},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_arena arena = {0};
        struct fl_bytes out;
        int rc = fl_percent_decode(&arena, fl_bytes_of(rows[i].text), &out);
        if (rc != (rows[i].decoded == NULL ? FL_EPROTO : 0) ||
            (rc == 0 && !fl_bytes_eq(out, fl_bytes_of(rows[i].decoded))))
            fail_msg("%s", rows[i].text);
        fl_arena_fini(&arena);
    }
    struct fl_arena arena = {0};
    struct fl_bytes out;
    assert_int_equal(fl_percent_decode(&arena, FL_BYTES("a\0"), &out), FL_EPROTO);
    fl_arena_fini(&arena);
}

static void reasons_cover_what_we_send(void **state)
{
    (void)state;
    static const int ours[] = {100, 200, 204, 400, 401, 403, 404, 405, 408, 409, 413, 415,
                               417, 422, 429, 431, 499, 500, 501, 502, 503, 504, 505};
    for (size_t i = 0; i < FL_ARRAY_LEN(ours); i++)
        assert_string_not_equal(fl_http_reason(ours[i]), "Unknown");
    assert_string_equal(fl_http_reason(200), "OK");
    assert_string_equal(fl_http_reason(-1), "Unknown");
    assert_string_equal(fl_http_reason(299), "Unknown");
    assert_string_equal(fl_http_reason(1000), "Unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_class_table_is_the_grammar),
        cmocka_unit_test(the_wide_scan_finds_what_the_table_finds),
        cmocka_unit_test(names_and_values_are_told_apart),
        cmocka_unit_test(urls_are_http_without_user_and_fragment),
        cmocka_unit_test(a_target_has_a_path_and_perhaps_a_query),
        cmocka_unit_test(escapes_are_decoded_once),
        cmocka_unit_test(reasons_cover_what_we_send),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
