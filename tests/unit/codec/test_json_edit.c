/* SPDX-License-Identifier: Apache-2.0 */
/* Scanning, splicing, writing, token arrays; and that the fast ways equal the plain ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "codec/json.h"
#include "codec/json_scan.h"

#define SEED 20240607

static bool buf_is(const struct fl_buf *buf, const char *text)
{
    return fl_bytes_eq(fl_buf_bytes(buf), fl_bytes_of(text));
}

/* ---- scanning ---- */

struct seen {
    struct fl_buf log;
    int stop_after; /* members; 0: never */
    int members;
};

static int on_member(void *owner, const struct fl_json_member *member)
{
    struct seen *seen = owner;

    fl_buf_printf(&seen->log, "%.*s|%.*s|%d;", FL_FMT(member->key), FL_FMT(member->value),
                  member->type);
    return ++seen->members == seen->stop_after ? FL_ECANCELLED : 0;
}

/* epp.md 12.5: one pass over the top object */
static void scan_gives_the_top_members_only(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int rc;
        const char *log;
    } rows[] = {
        {"{}", 0, ""},
        {" { \"a\" : 1 , \"b\" : [ 1, {\"a\":2} ] , \"c\":{ \"d\":{} } } ", 0,
         "a|1|3;b|[ 1, {\"a\":2} ]|5;c|{ \"d\":{} }|6;"},
        {"{\"t\":true,\"f\":false,\"n\":null,\"s\":\"x\\ny\"}", 0,
         "t|true|2;f|false|1;n|null|0;s|\"x\\ny\"|4;"},
        {"{\"a\":1,\"a\":2}", 0, "a|1|3;a|2|3;"},
        {"{\"m\\u006fdel\":\"\"}", 0, "m\\u006fdel|\"\"|4;"},
        {"{\"\":[]}", 0, "|[]|5;"},
        {"[{\"a\":1}]", FL_ETYPE, ""},
        {"\"a\"", FL_ETYPE, ""},
        {"7", FL_ETYPE, ""},
        {"{\"a\":1,\"b\":tru}", FL_EPROTO, "a|1|3;"},
        {"{\"a\":1} x", FL_EPROTO, "a|1|3;"},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct seen seen = {0};
        int rc = fl_json_scan_members(fl_bytes_of(rows[i].text), on_member, &seen);
        if (rc != rows[i].rc || !buf_is(&seen.log, rows[i].log))
            fail_msg("row %zu: %s gave %d and %.*s", i, rows[i].text, rc,
                     FL_FMT(fl_buf_bytes(&seen.log)));
        fl_buf_fini(&seen.log);
    }
}

static void scan_stops_when_told(void **state)
{
    (void)state;
    static const char *const texts[] = {"{\"a\":1,\"b\":2,\"c\":3}", "{\"a\":1,\"b\":[],\"c\":3}"};

    for (size_t i = 0; i < FL_ARRAY_LEN(texts); i++) {
        struct seen seen = {.stop_after = 2};
        assert_int_equal(fl_json_scan_members(fl_bytes_of(texts[i]), on_member, &seen),
                         FL_ECANCELLED);
        assert_int_equal(seen.members, 2);
        fl_buf_fini(&seen.log);
    }
}

/* dependencies.md 4.3: the scalar fallback must give identical results */
static void skipping_by_sixteen_equals_skipping_by_one(void **state)
{
    (void)state;
    static const uint8_t special[] = {'"', '\\', 0x00, 0x1f, 0x20, 0x7f, 0x80, 0xff, '!', 0x0a};
    struct fl_rng rng;
    uint8_t room[96];

    fl_rng_seed(&rng, SEED);
    for (int round = 0; round < 200000; round++) {
        size_t n = fl_rng_below(&rng, sizeof(room));
        size_t from = fl_rng_below(&rng, n + 1);
        memset(room, 'a', sizeof(room));
        for (uint64_t i = fl_rng_below(&rng, 3); i > 0; i--)
            room[fl_rng_below(&rng, sizeof(room))] =
                round % 2 == 0 ? special[fl_rng_below(&rng, sizeof(special))]
                               : (uint8_t)fl_rng_u64(&rng);
        if (fl_json_skip_plain(room + from, room + n) !=
            fl_json_skip_plain_scalar(room + from, room + n))
            fail_msg("seed %d, round %d", SEED, round);
    }
}

static void every_byte_stops_both_skips_alike(void **state)
{
    (void)state;
    uint8_t room[32];

    for (int c = 0; c < 256; c++) {
        for (size_t at = 0; at < sizeof(room); at++) {
            memset(room, 'x', sizeof(room));
            room[at] = (uint8_t)c;
            bool stops = c < 0x20 || c > 0x7f || c == '"' || c == '\\';
            const uint8_t *expected = stops ? room + at : room + sizeof(room);
            assert_ptr_equal(fl_json_skip_plain(room, room + sizeof(room)), expected);
            assert_ptr_equal(fl_json_skip_plain_scalar(room, room + sizeof(room)), expected);
        }
    }
}

/* RFC 3629 4: all code points, all leads */
static void utf8_lengths_follow_the_table(void **state)
{
    (void)state;
    for (uint32_t lead = 0x80; lead < 0x100; lead++) {
        for (uint32_t second = 0; second < 0x100; second++) {
            for (uint32_t third = 0x7f; third <= 0xc0; third++) {
                uint8_t text[4] = {(uint8_t)lead, (uint8_t)second, (uint8_t)third, 0x80};
                size_t n = fl_json_utf8_len(text, text + 4);
                if (n > 0 && !fl_bytes_is_utf8(fl_bytes(text, n)))
                    fail_msg("%02x %02x %02x accepted", lead, second, third);
                for (size_t k = 2; n == 0 && k <= 4; k++) {
                    if (fl_bytes_is_utf8(fl_bytes(text, k)))
                        fail_msg("%02x %02x %02x refused", lead, second, third);
                }
            }
        }
    }
    static const uint8_t cut[] = {0xf0, 0x9f, 0x98, 0x80};
    for (size_t n = 1; n < 4; n++)
        assert_int_equal(fl_json_utf8_len(cut, cut + n), 0);
    assert_int_equal(fl_json_utf8_len(cut, cut + 4), 4);
}

/* ---- strings ---- */

static void raw_keys_compare_by_meaning(void **state)
{
    (void)state;
    static const struct {
        const char *raw, *plain;
        bool equal;
    } rows[] = {
        {"model", "model", true},
        {"", "", true},
        {"mode", "model", false},
        {"models", "model", false},
        {"\\u006dodel", "model", true},
        {"mod\\u0065l", "model", true},
        {"mod\\u0065", "model", false},
        {"mod\\u0066l", "model", false},
        {"a\\/b", "a/b", true},
        {"a\\n", "a\n", true},
        {"a\\n", "a\\n", false},
        {"\\u00e9", "\xc3\xa9", true},
        {"\\ud83d\\ude00", "\xf0\x9f\x98\x80", true},
        {"\\ud83d\\ude00", "\xf0\x9f\x98", false},
        {"bad\\q", "bad", false},
        {"bad\\", "bad", false},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        if (fl_json_raw_eq(fl_bytes_of(rows[i].raw), fl_bytes_of(rows[i].plain)) != rows[i].equal)
            fail_msg("row %zu: %s", i, rows[i].raw);
    }
    assert_true(fl_json_raw_eq((struct fl_bytes){0}, FL_BYTES("")));
}

static void unescape_refuses_what_no_string_may_hold(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "\\",
        "x\\",
        "\\q",
        "\\u",
        "\\u12g4",
        "\\ud800",
        "\\udc00",
        "\\udc00\\udc00",
        "\\ud800\\n....",
        "\\ud800\\u0041",
        "\\ud83d\\ude0",
        "ok\\n\\u0",
        "\\ud800\\uqqqq",
    };
    struct fl_arena arena = {0};
    struct fl_bytes value;

    for (size_t i = 0; i < FL_ARRAY_LEN(bad); i++) {
        if (fl_json_unescape(&arena, fl_bytes_of(bad[i]), &value) != FL_EPROTO)
            fail_msg("%s was accepted", bad[i]);
    }
    assert_int_equal(fl_json_unescape(&arena, (struct fl_bytes){0}, &value), 0);
    assert_int_equal(value.n, 0);
    fl_arena_fini(&arena);

    /* The arena's cap is met before anything is written. */
    fl_arena_init(&arena, 64);
    char big[10000];
    memset(big, 'x', sizeof(big));
    memcpy(big, "\\n", 2);
    assert_int_equal(fl_json_unescape(&arena, fl_bytes(big, sizeof(big)), &value), FL_ENOMEM);
    fl_arena_fini(&arena);
}

/* ---- splicing ---- */

/* dependencies.md 4.3: replace or insert one member of the top object, the rest byte for byte */
static void splice_keeps_every_other_byte(void **state)
{
    (void)state;
    static const struct {
        const char *why, *text, *value, *result;
        int rc;
    } rows[] = {
        {"replace a string", "{\"model\":\"a\",\"x\":1}", "\"b\"", "{\"model\":\"b\",\"x\":1}", 0},
        {"odd blanks stay", " {\t\"x\" : 1 ,\r\n \"model\" :  \"a\"  , \"y\":[ 1 ] } ", "7",
         " {\t\"x\" : 1 ,\r\n \"model\" :  7  , \"y\":[ 1 ] } ", 0},
        {"64-bit numbers stay", "{\"seed\":9007199254740993,\"model\":1,\"f\":1.0}", "2",
         "{\"seed\":9007199254740993,\"model\":2,\"f\":1.0}", 0},
        {"replace an object", "{\"model\":{\"a\":[1,2]},\"z\":0}", "null",
         "{\"model\":null,\"z\":0}", 0},
        {"replace by an object", "{\"model\":1}", "{\"k\":[true]}", "{\"model\":{\"k\":[true]}}",
         0},
        {"every occurrence", "{\"model\":1,\"a\":2,\"model\":\"x\"}", "\"mm\"",
         "{\"model\":\"mm\",\"a\":2,\"model\":\"mm\"}", 0},
        {"escaped spelling", "{\"m\\u006fdel\":1}", "2", "{\"m\\u006fdel\":2}", 0},
        {"a deeper member is another", "{\"a\":{\"model\":1}}", "2",
         "{\"model\":2,\"a\":{\"model\":1}}", 0},
        {"a string value is no key", "{\"a\":\"model\"}", "2", "{\"model\":2,\"a\":\"model\"}", 0},
        {"insert into an empty object", " { } ", "\"b\"", " {\"model\":\"b\" } ", 0},
        {"insert first", "{ \"x\":1}", "[]", "{\"model\":[], \"x\":1}", 0},
        {"no object", "[1]", "1", "", FL_ETYPE},
        {"malformed", "{\"model\":1", "1", "", FL_EPROTO},
        {"value is no JSON", "{\"model\":1}", "x", "", FL_EPROTO},
        {"value is absent", "{\"model\":1}", NULL, "", FL_EPROTO},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_buf out = {0};
        int rc = fl_json_splice_member(&out, fl_bytes_of(rows[i].text), FL_BYTES("model"),
                                       fl_bytes_of(rows[i].value));
        if (rc != rows[i].rc || !buf_is(&out, rows[i].result))
            fail_msg("row %zu, %s: %d, %.*s", i, rows[i].why, rc, FL_FMT(fl_buf_bytes(&out)));
        fl_buf_fini(&out);
    }
}

static void splice_that_does_not_fit_changes_nothing(void **state)
{
    (void)state;
    /* The result has 11 bytes behind the 2 that stand there. */
    static const struct {
        size_t cap;
        int rc;
    } rows[] = {{12, FL_ELIMIT}, {13, 0}, {14, 0}};

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_buf out;
        fl_buf_init(&out, rows[i].cap);
        assert_int_equal(fl_buf_append(&out, FL_BYTES("ab")), 0);
        int rc = fl_json_splice_member(&out, FL_BYTES("{\"key\":123}"), FL_BYTES("key"),
                                       FL_BYTES("456"));
        assert_int_equal(rc, rows[i].rc);
        assert_true(buf_is(&out, rc == 0 ? "ab{\"key\":456}" : "ab"));
        fl_buf_fini(&out);
    }
}

/* ---- writing ---- */

static void writer_places_commas(void **state)
{
    (void)state;
    struct fl_buf out = {0};
    struct fl_json_writer w;

    fl_json_writer_init(&w, &out);
    fl_json_write_object(&w);
    fl_json_write_key(&w, "a");
    fl_json_write_array(&w);
    fl_json_write_u64(&w, 0);
    fl_json_write_u64(&w, UINT64_MAX);
    fl_json_write_i64(&w, INT64_MIN);
    fl_json_write_i64(&w, 7);
    fl_json_write_object(&w);
    fl_json_write_object_end(&w);
    fl_json_write_array(&w);
    fl_json_write_array_end(&w);
    fl_json_write_bool(&w, true);
    fl_json_write_bool(&w, false);
    fl_json_write_null(&w);
    fl_json_write_raw(&w, FL_BYTES("[1]"));
    fl_json_write_array_end(&w);
    fl_json_write_key_bytes(&w, FL_BYTES("b\""));
    fl_json_write_cstr(&w, "c");
    fl_json_write_key(&w, "");
    fl_json_write_string(&w, (struct fl_bytes){0});
    fl_json_write_object_end(&w);
    assert_int_equal(fl_json_writer_end(&w), 0);
    assert_true(buf_is(&out, "{\"a\":[0,18446744073709551615,-9223372036854775808,7,{},[],true,"
                             "false,null,[1]],\"b\\\"\":\"c\",\"\":\"\"}"));
    assert_int_equal(fl_json_check(fl_buf_bytes(&out)), 0);
    fl_buf_fini(&out);
}

static void writer_escapes_and_mends_strings(void **state)
{
    (void)state;
    static const struct {
        struct fl_bytes value;
        const char *text;
    } rows[] = {
        {FL_BYTES(""), "\"\""},
        {FL_BYTES("a/b"), "\"a/b\""},
        {FL_BYTES("\"\\\b\f\n\r\t"), "\"\\\"\\\\\\b\\f\\n\\r\\t\""},
        {FL_BYTES("\0\x01\x1f\x7f"), "\"\\u0000\\u0001\\u001f\x7f\""},
        {FL_BYTES("\xc3\xa9\xf0\x9f\x98\x80"), "\"\xc3\xa9\xf0\x9f\x98\x80\""},
        {FL_BYTES("a\xff"
                  "b"),
         "\"a\xef\xbf\xbd"
         "b\""},
        {FL_BYTES("\xed\xa0\x80"), "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
        {FL_BYTES("\xe2\x82"), "\"\xef\xbf\xbd\xef\xbf\xbd\""},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_buf out = {0};
        struct fl_json_writer w;
        fl_json_writer_init(&w, &out);
        fl_json_write_string(&w, rows[i].value);
        assert_int_equal(fl_json_writer_end(&w), 0);
        if (!buf_is(&out, rows[i].text))
            fail_msg("row %zu: %.*s", i, FL_FMT(fl_buf_bytes(&out)));
        assert_int_equal(fl_json_check(fl_buf_bytes(&out)), 0);
        fl_buf_fini(&out);
    }
}

static void written_strings_read_back(void **state)
{
    (void)state;
    struct fl_rng rng;
    static const char *const pieces[] = {"a",        "\"", "\\", "\n",           "\x01",
                                         "\xc3\xa9", "/u", "u0", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                                         " ",        "xyz"};

    fl_rng_seed(&rng, SEED);
    for (int round = 0; round < 5000; round++) {
        struct fl_buf value = {0}, out = {0};
        for (uint64_t n = fl_rng_below(&rng, 40); n > 0; n--)
            fl_buf_append(&value, fl_bytes_of(pieces[fl_rng_below(&rng, FL_ARRAY_LEN(pieces))]));
        struct fl_json_writer w;
        fl_json_writer_init(&w, &out);
        fl_json_write_string(&w, fl_buf_bytes(&value));
        assert_int_equal(fl_json_writer_end(&w), 0);
        struct fl_json doc = {0};
        assert_int_equal(fl_json_parse(&doc, fl_buf_bytes(&out), NULL), 0);
        if (!fl_bytes_eq(fl_json_root(&doc)->text, fl_buf_bytes(&value)))
            fail_msg("seed %d, round %d", SEED, round);
        fl_json_fini(&doc);
        fl_buf_fini(&value);
        fl_buf_fini(&out);
    }
}

static void doubles_are_short_and_read_back_equal(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } rows[] = {
        {0.0, "0"},
        {-0.0, "-0"},
        {1.0, "1"},
        {100000.0, "100000"},
        {0.1, "0.1"},
        {0.1 + 0.2, "0.30000000000000004"},
        {-2.5, "-2.5"},
        {1e300, "1e+300"},
        {5e-324, "5e-324"},
        {1e15, "1e+15"},
        {999999999999999, "999999999999999"},
        {NAN, "null"},
        {INFINITY, "null"},
        {-INFINITY, "null"},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_buf out = {0};
        struct fl_json_writer w;
        fl_json_writer_init(&w, &out);
        fl_json_write_double(&w, rows[i].value);
        assert_int_equal(fl_json_writer_end(&w), 0);
        if (!buf_is(&out, rows[i].text))
            fail_msg("row %zu: %.*s", i, FL_FMT(fl_buf_bytes(&out)));
        fl_buf_fini(&out);
    }

    struct fl_rng rng;
    fl_rng_seed(&rng, SEED);
    for (int round = 0; round < 20000; round++) {
        uint64_t bits = fl_rng_u64(&rng);
        double value, back = 0;
        memcpy(&value, &bits, sizeof(value));
        if (!isfinite(value))
            continue;
        struct fl_buf out = {0};
        struct fl_json_writer w;
        struct fl_json doc = {0};
        fl_json_writer_init(&w, &out);
        fl_json_write_double(&w, value);
        assert_int_equal(fl_json_parse(&doc, fl_buf_bytes(&out), NULL), 0);
        assert_true(fl_json_to_double(fl_json_root(&doc), &back));
        assert_memory_equal(&back, &value, sizeof(value));
        fl_json_fini(&doc);
        fl_buf_fini(&out);
    }
}

static void the_first_error_of_the_buffer_sticks(void **state)
{
    (void)state;
    struct fl_buf out;
    struct fl_json_writer w;

    fl_buf_init(&out, 8);
    fl_json_writer_init(&w, &out);
    fl_json_write_array(&w);
    fl_json_write_cstr(&w, "1234567890"); /* the quote fits, the text does not */
    fl_json_write_u64(&w, 1);             /* would fit, but must not be written */
    fl_json_write_array_end(&w);
    assert_int_equal(fl_json_writer_end(&w), FL_ELIMIT);
    assert_true(buf_is(&out, "[\""));
    fl_buf_fini(&out);
}

/* ---- token arrays ---- */

static void token_arrays_are_read_strictly(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t count;
        uint32_t values[12];
    } rows[] = {
        {"[]", 0, {0}},
        {"[ \n]", 0, {0}},
        {"[0]", 1, {0}},
        {"[1, 2,3 , 4\n,\t5]", 5, {1, 2, 3, 4, 5}},
        {"[1,12,123,1234,12345,123456,1234567,12345678,123456789,1234567890]",
         10,
         {1, 12, 123, 1234, 12345, 123456, 1234567, 12345678, 123456789, 1234567890}},
        {"[4294967295, 0]", 2, {4294967295, 0}},
        {"[4294967296]", FL_ERANGE, {0}},
        {"[99999999999999999999999]", FL_ERANGE, {0}},
        {"[-1]", FL_ERANGE, {0}},
        {"[-0]", FL_ERANGE, {0}},
        {"[1.0]", FL_ETYPE, {0}},
        {"[1.0, 22222222222]", FL_ETYPE, {0}},
        {"[1e2]", FL_ETYPE, {0}},
        {"[1E2, 22222222222]", FL_ETYPE, {0}},
        {"[01]", FL_ETYPE, {0}},
        {"[01,2,3,4,5,6]", FL_ETYPE, {0}},
        {"[00000001]", FL_ETYPE, {0}},
        {"[\"1\"]", FL_ETYPE, {0}},
        {"[null]", FL_ETYPE, {0}},
        {"[true]", FL_ETYPE, {0}},
        {"[[1]]", FL_ETYPE, {0}},
        {"[1,]", FL_ETYPE, {0}},
        {"[1 2]", FL_ETYPE, {0}},
        {"[1;2]", FL_ETYPE, {0}},
        {"[1", FL_ETYPE, {0}},
        {"[1,", FL_ETYPE, {0}},
        {"[", FL_ETYPE, {0}},
        {"[1] ", FL_ETYPE, {0}},
        {"[]]", FL_ETYPE, {0}},
        {"[-]", FL_ETYPE, {0}},
        {"{}", FL_ETYPE, {0}},
        {"", FL_ETYPE, {0}},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        uint32_t out[12] = {0};
        size_t n = strlen(rows[i].text);
        char *text = malloc(n + 1);
        assert_non_null(text);
        memcpy(text, rows[i].text, n);
        int64_t count = fl_json_read_u32_array(fl_bytes(text, n), out, FL_ARRAY_LEN(out));
        if (count != rows[i].count)
            fail_msg("row %zu: %s gave %lld", i, rows[i].text, (long long)count);
        if (count > 0 && memcmp(out, rows[i].values, (size_t)count * sizeof(out[0])) != 0)
            fail_msg("row %zu: %s has wrong values", i, rows[i].text);
        free(text);
    }
}

static void token_arrays_stop_at_the_callers_room(void **state)
{
    (void)state;
    uint32_t out[4];

    assert_int_equal(fl_json_read_u32_array(FL_BYTES("[1,2,3]"), out, 4), 3);
    assert_int_equal(fl_json_read_u32_array(FL_BYTES("[1,2,3,4]"), out, 4), 4);
    assert_int_equal(fl_json_read_u32_array(FL_BYTES("[1,2,3,4,5]"), out, 4), FL_ELIMIT);
    assert_int_equal(fl_json_read_u32_array(FL_BYTES("[]"), NULL, 0), 0);
}

/* The eight-at-once reader against text written digit by digit: every length, every neighbour. */
static void random_token_arrays_read_back(void **state)
{
    (void)state;
    struct fl_rng rng;
    uint32_t want[64], got[64];

    fl_rng_seed(&rng, SEED);
    for (int round = 0; round < 20000; round++) {
        struct fl_buf text = {0};
        size_t n = 1 + fl_rng_below(&rng, 64);
        fl_buf_append(&text, FL_BYTES("["));
        for (size_t i = 0; i < n; i++) {
            want[i] = (uint32_t)(fl_rng_u64(&rng) >> (32 + fl_rng_below(&rng, 32)));
            fl_buf_printf(&text, "%s%s%u", i == 0 ? "" : ",", round % 2 == 0 ? " " : "", want[i]);
        }
        fl_buf_append(&text, FL_BYTES("]"));
        assert_int_equal(fl_json_read_u32_array(fl_buf_bytes(&text), got, 64), n);
        if (memcmp(got, want, n * sizeof(got[0])) != 0)
            fail_msg("seed %d, round %d", SEED, round);
        fl_buf_fini(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scan_gives_the_top_members_only),
        cmocka_unit_test(scan_stops_when_told),
        cmocka_unit_test(skipping_by_sixteen_equals_skipping_by_one),
        cmocka_unit_test(every_byte_stops_both_skips_alike),
        cmocka_unit_test(utf8_lengths_follow_the_table),
        cmocka_unit_test(raw_keys_compare_by_meaning),
        cmocka_unit_test(unescape_refuses_what_no_string_may_hold),
        cmocka_unit_test(splice_keeps_every_other_byte),
        cmocka_unit_test(splice_that_does_not_fit_changes_nothing),
        cmocka_unit_test(writer_places_commas),
        cmocka_unit_test(writer_escapes_and_mends_strings),
        cmocka_unit_test(written_strings_read_back),
        cmocka_unit_test(doubles_are_short_and_read_back_equal),
        cmocka_unit_test(the_first_error_of_the_buffer_sticks),
        cmocka_unit_test(token_arrays_are_read_strictly),
        cmocka_unit_test(token_arrays_stop_at_the_callers_room),
        cmocka_unit_test(random_token_arrays_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
