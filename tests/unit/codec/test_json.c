/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "codec/json.h"

/* A copy of exactly the text's size, so that AddressSanitizer sees a read past its end. */
static struct fl_bytes exact(struct fl_bytes text)
{
    uint8_t *p = malloc(text.n > 0 ? text.n : 1);
    assert_non_null(p);
    if (text.n > 0)
        memcpy(p, text.p, text.n);
    return (struct fl_bytes){p, text.n};
}

static void release(struct fl_bytes text)
{
    free((void *)(uintptr_t)text.p);
}

static int on_member_ignore(void *owner, const struct fl_json_member *member)
{
    (void)owner;
    assert_non_null(member->value.p);
    return 0;
}

struct verdict_row {
    const char *why;
    struct fl_bytes text;
    int rc;
};

static const struct verdict_row verdicts[] = {
    /* RFC 8259 2, 3: any value may stand at the top, blanks around it */
    {"null", FL_BYTES("null"), 0},
    {"true", FL_BYTES("true"), 0},
    {"false", FL_BYTES("false"), 0},
    {"the four blanks", FL_BYTES(" \t\r\n1\n\r\t "), 0},
    {"empty text", FL_BYTES(""), FL_EPROTO},
    {"blanks only", FL_BYTES(" \n"), FL_EPROTO},
    {"vertical tab is no blank", FL_BYTES("\v1"), FL_EPROTO},
    {"form feed is no blank", FL_BYTES("1\f"), FL_EPROTO},
    {"no-break space is no blank",
     FL_BYTES("\xc2\xa0"
              "1"),
     FL_EPROTO},
    {"a byte order mark is no blank",
     FL_BYTES("\xef\xbb\xbf"
              "1"),
     FL_EPROTO},
    {"NUL after the value", FL_BYTES("1\0"), FL_EPROTO},
    {"two values", FL_BYTES("1 2"), FL_EPROTO},
    {"closing bracket after the value", FL_BYTES("[]]"), FL_EPROTO},
    {"comma after the value", FL_BYTES("{},"), FL_EPROTO},
    {"literal cut", FL_BYTES("tru"), FL_EPROTO},
    {"literal cut", FL_BYTES("fals"), FL_EPROTO},
    {"literal cut", FL_BYTES("nul"), FL_EPROTO},
    {"literal in capitals", FL_BYTES("True"), FL_EPROTO},
    {"literal with a tail", FL_BYTES("nullx"), FL_EPROTO},
    {"NaN", FL_BYTES("NaN"), FL_EPROTO},
    {"Infinity", FL_BYTES("-Infinity"), FL_EPROTO},
    {"comment", FL_BYTES("/* */1"), FL_EPROTO},
    {"single quotes", FL_BYTES("'a'"), FL_EPROTO},
    /* RFC 8259 6 */
    {"zero", FL_BYTES("0"), 0},
    {"minus zero", FL_BYTES("-0"), 0},
    {"negative", FL_BYTES("-12"), 0},
    {"fraction", FL_BYTES("0.25"), 0},
    {"exponent", FL_BYTES("1e5"), 0},
    {"capital exponent with plus", FL_BYTES("1E+5"), 0},
    {"exponent with minus and leading zero", FL_BYTES("1e-05"), 0},
    {"fraction and exponent", FL_BYTES("-1.5e10"), 0},
    {"long integer", FL_BYTES("123456789012345678901234567890"), 0},
    {"beyond a double is still a number", FL_BYTES("1e999"), 0},
    {"leading zero", FL_BYTES("01"), FL_EPROTO},
    {"minus and leading zero", FL_BYTES("-01"), FL_EPROTO},
    {"minus alone", FL_BYTES("-"), FL_EPROTO},
    {"minus and letter", FL_BYTES("-x"), FL_EPROTO},
    {"plus", FL_BYTES("+1"), FL_EPROTO},
    {"no digit before the point", FL_BYTES(".5"), FL_EPROTO},
    {"no digit after the point", FL_BYTES("1."), FL_EPROTO},
    {"no digit between point and exponent", FL_BYTES("1.e5"), FL_EPROTO},
    {"no digit in the exponent", FL_BYTES("1e"), FL_EPROTO},
    {"sign only in the exponent", FL_BYTES("1e+"), FL_EPROTO},
    {"hexadecimal", FL_BYTES("0x10"), FL_EPROTO},
    {"underscore", FL_BYTES("1_000"), FL_EPROTO},
    /* RFC 8259 4, 5 */
    {"empty array", FL_BYTES("[]"), 0},
    {"empty array with blank", FL_BYTES("[ ]"), 0},
    {"empty object", FL_BYTES("{}"), 0},
    {"empty object with blank", FL_BYTES("{ \n}"), 0},
    {"blanks everywhere", FL_BYTES(" { \"a\" : [ 1 , { } ] , \"b\" : null } "), 0},
    {"array not closed", FL_BYTES("[1"), FL_EPROTO},
    {"array open", FL_BYTES("["), FL_EPROTO},
    {"object open", FL_BYTES("{"), FL_EPROTO},
    {"comma at the end of an array", FL_BYTES("[1,]"), FL_EPROTO},
    {"comma at the start of an array", FL_BYTES("[,1]"), FL_EPROTO},
    {"two commas", FL_BYTES("[1,,2]"), FL_EPROTO},
    {"no comma in an array", FL_BYTES("[1 2]"), FL_EPROTO},
    {"array closed by a brace", FL_BYTES("[1}"), FL_EPROTO},
    {"object closed by a bracket", FL_BYTES("{\"a\":1]"), FL_EPROTO},
    {"object with comma at the end", FL_BYTES("{\"a\":1,}"), FL_EPROTO},
    {"key only", FL_BYTES("{\"a\"}"), FL_EPROTO},
    {"no value", FL_BYTES("{\"a\":}"), FL_EPROTO},
    {"text ends after the colon", FL_BYTES("{\"a\":"), FL_EPROTO},
    {"text ends after the key", FL_BYTES("{\"a\""), FL_EPROTO},
    {"text ends in the key", FL_BYTES("{\"a"), FL_EPROTO},
    {"text ends after the comma", FL_BYTES("{\"a\":1,"), FL_EPROTO},
    {"number as key", FL_BYTES("{1:2}"), FL_EPROTO},
    {"bare word as key", FL_BYTES("{a:2}"), FL_EPROTO},
    {"equals sign", FL_BYTES("{\"a\"=1}"), FL_EPROTO},
    {"two colons", FL_BYTES("{\"a\"::1}"), FL_EPROTO},
    {"no comma in an object", FL_BYTES("{\"a\":1 \"b\":2}"), FL_EPROTO},
    {"object ends after a value", FL_BYTES("{\"a\":1"), FL_EPROTO},
    {"duplicate keys are read", FL_BYTES("{\"a\":1,\"a\":2}"), 0},
    /* RFC 8259 7 */
    {"empty string", FL_BYTES("\"\""), 0},
    {"all short escapes", FL_BYTES("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\""), 0},
    {"unicode escape", FL_BYTES("\"\\u00e9\\u20AC\""), 0},
    {"escaped NUL", FL_BYTES("\"\\u0000\""), 0},
    {"DEL needs no escape", FL_BYTES("\"\x7f\""), 0},
    {"string not closed", FL_BYTES("\"abc"), FL_EPROTO},
    {"quote alone", FL_BYTES("\""), FL_EPROTO},
    {"escape cut", FL_BYTES("\"\\"), FL_EPROTO},
    {"escaped quote does not close", FL_BYTES("\"\\\""), FL_EPROTO},
    {"unknown escape", FL_BYTES("\"\\a\""), FL_EPROTO},
    {"capital U escape", FL_BYTES("\"\\U0041\""), FL_EPROTO},
    {"hex escape", FL_BYTES("\"\\x41\""), FL_EPROTO},
    {"three digits", FL_BYTES("\"\\u004\""), FL_EPROTO},
    {"unicode escape cut by the end", FL_BYTES("\"\\u00"), FL_EPROTO},
    {"no hex digit", FL_BYTES("\"\\u00g0\""), FL_EPROTO},
    {"sign among hex digits", FL_BYTES("\"\\u+123\""), FL_EPROTO},
    {"line feed in a string", FL_BYTES("\"a\nb\""), FL_EPROTO},
    {"tab in a string", FL_BYTES("\"a\tb\""), FL_EPROTO},
    {"NUL in a string", FL_BYTES("\"a\0b\""), FL_EPROTO},
    {"0x1f in a string", FL_BYTES("\"\x1f\""), FL_EPROTO},
    {"control character far behind", FL_BYTES("\"0123456789abcdef0123456789abcdef\x01\""),
     FL_EPROTO},
    /* dependencies.md 4.3: unpaired \uD800 escapes are an error */
    {"surrogate pair", FL_BYTES("\"\\ud83d\\ude00\""), 0},
    {"high surrogate alone", FL_BYTES("\"\\ud800\""), FL_EPROTO},
    {"low surrogate alone", FL_BYTES("\"\\udc00\""), FL_EPROTO},
    {"two low surrogates", FL_BYTES("\"\\udc00\\udc00\""), FL_EPROTO},
    {"two high surrogates", FL_BYTES("\"\\ud800\\ud800\""), FL_EPROTO},
    {"high surrogate and letter", FL_BYTES("\"\\ud800abcdefgh\""), FL_EPROTO},
    {"high surrogate and other escape", FL_BYTES("\"\\ud800\\n12345\""), FL_EPROTO},
    {"high surrogate and bad digits", FL_BYTES("\"\\ud800\\uzzzz\""), FL_EPROTO},
    {"pair cut by the end", FL_BYTES("\"\\ud83d\\ude0"), FL_EPROTO},
    /* dependencies.md 4.3: overlong forms, surrogates, above U+10FFFF (RFC 3629 4) */
    {"two bytes, lowest", FL_BYTES("\"\xc2\x80\""), 0},
    {"two bytes, highest", FL_BYTES("\"\xdf\xbf\""), 0},
    {"three bytes, lowest", FL_BYTES("\"\xe0\xa0\x80\""), 0},
    {"before the surrogates", FL_BYTES("\"\xed\x9f\xbf\""), 0},
    {"after the surrogates", FL_BYTES("\"\xee\x80\x80\""), 0},
    {"three bytes, highest", FL_BYTES("\"\xef\xbf\xbf\""), 0},
    {"four bytes, lowest", FL_BYTES("\"\xf0\x90\x80\x80\""), 0},
    {"U+10FFFF", FL_BYTES("\"\xf4\x8f\xbf\xbf\""), 0},
    {"overlong slash", FL_BYTES("\"\xc0\xaf\""), FL_EPROTO},
    {"overlong c1", FL_BYTES("\"\xc1\xbf\""), FL_EPROTO},
    {"overlong three bytes", FL_BYTES("\"\xe0\x9f\xbf\""), FL_EPROTO},
    {"overlong four bytes", FL_BYTES("\"\xf0\x8f\xbf\xbf\""), FL_EPROTO},
    {"first surrogate", FL_BYTES("\"\xed\xa0\x80\""), FL_EPROTO},
    {"last surrogate", FL_BYTES("\"\xed\xbf\xbf\""), FL_EPROTO},
    {"U+110000", FL_BYTES("\"\xf4\x90\x80\x80\""), FL_EPROTO},
    {"lead f5", FL_BYTES("\"\xf5\x80\x80\x80\""), FL_EPROTO},
    {"lead ff", FL_BYTES("\"\xff\""), FL_EPROTO},
    {"continuation alone", FL_BYTES("\"\x80\""), FL_EPROTO},
    {"two bytes cut by the quote", FL_BYTES("\"\xc3\""), FL_EPROTO},
    {"three bytes cut by the quote", FL_BYTES("\"\xe2\x82\""), FL_EPROTO},
    {"three bytes, second wrong", FL_BYTES("\"\xe2x\x82\""), FL_EPROTO},
    {"four bytes cut by the quote", FL_BYTES("\"\xf0\x9f\x98\""), FL_EPROTO},
    {"four bytes, third wrong", FL_BYTES("\"\xf0\x9fx\x80\""), FL_EPROTO},
    {"cut by the end", FL_BYTES("\"\xf0\x9f\x98"), FL_EPROTO},
    {"invalid UTF-8 in a key", FL_BYTES("{\"\xff\":1}"), FL_EPROTO},
    {"invalid UTF-8 outside strings", FL_BYTES("[\xff]"), FL_EPROTO},
};

/* dependencies.md 4.3 */
static void all_readers_give_the_same_verdict(void **state)
{
    (void)state;
    for (size_t i = 0; i < FL_ARRAY_LEN(verdicts); i++) {
        const struct verdict_row *row = &verdicts[i];
        struct fl_bytes text = exact(row->text);
        struct fl_json doc = {0};

        if (fl_json_check(text) != row->rc)
            fail_msg("row %zu, check: %s", i, row->why);
        if (fl_json_parse(&doc, text, NULL) != row->rc)
            fail_msg("row %zu, parse: %s", i, row->why);
        /* The scan stops at a top value that is no object. */
        int rc = fl_json_scan_members(text, on_member_ignore, NULL);
        if (rc != row->rc && rc != FL_ETYPE)
            fail_msg("row %zu, scan: %s", i, row->why);
        fl_json_fini(&doc);
        release(text);
    }
}

/* dependencies.md 4.3 */
static void every_cut_of_a_text_is_refused(void **state)
{
    (void)state;
    struct fl_bytes whole = FL_BYTES("{\"a\":[1,-2.5e3,\"\\u00e9\\n\xe2\x82\xac\",{\"b\":true}],"
                                     "\"c\":[false,null,{}]}");

    for (size_t n = 0; n < whole.n; n++) {
        struct fl_bytes text = exact(fl_bytes_head(whole, n));
        struct fl_json doc = {0};
        if (fl_json_check(text) != FL_EPROTO || fl_json_parse(&doc, text, NULL) != FL_EPROTO)
            fail_msg("cut at %zu", n);
        assert_null(fl_json_root(&doc));
        fl_json_fini(&doc);
        release(text);
    }
    assert_int_equal(fl_json_check(whole), 0);
}

static struct fl_bytes nested(char *out, size_t depth)
{
    for (size_t i = 0; i < depth; i++) {
        out[i] = '[';
        out[2 * depth - 1 - i] = ']';
    }
    return fl_bytes(out, 2 * depth);
}

/* design.md 8: JSON depth 128 */
static void depth_is_limited(void **state)
{
    (void)state;
    static const struct {
        size_t depth;
        int rc;
    } rows[] = {{127, 0}, {128, 0}, {129, FL_EDEPTH}, {100000, FL_EDEPTH}};

    char *room = malloc(2 * 100000);
    assert_non_null(room);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_bytes text = nested(room, rows[i].depth);
        struct fl_json doc = {0};
        struct fl_error err = {0};
        assert_int_equal(fl_json_check(text), rows[i].rc);
        assert_int_equal(fl_json_parse(&doc, text, &err), rows[i].rc);
        if (rows[i].rc == 0)
            assert_int_equal(doc.node_count, rows[i].depth);
        else
            assert_string_equal(err.text,
                                "JSON: nesting too deep at byte 128 (line 1, column 129)");
        fl_json_fini(&doc);
    }
    free(room);
}

static void objects_count_as_depth_too(void **state)
{
    (void)state;
    struct fl_buf text = {0};

    for (int i = 0; i < 129; i++)
        fl_buf_append(&text, FL_BYTES("{\"a\":"));
    assert_int_equal(fl_json_check(fl_buf_bytes(&text)), FL_EDEPTH);
    fl_buf_fini(&text);
}

static void a_text_beyond_the_cap_is_refused_unread(void **state)
{
    (void)state;
    struct fl_json doc = {0};
    struct fl_error err = {0};
    uint8_t byte = '1';

    /* Only the length is looked at. */
    assert_int_equal(fl_json_parse(&doc, fl_bytes(&byte, FL_JSON_MAX_TEXT + 1), &err), FL_ELIMIT);
    assert_int_equal(fl_json_parse(&doc, FL_BYTES("1"), &err), 0);
    fl_json_fini(&doc);
}

static void a_fault_is_named_with_its_place(void **state)
{
    (void)state;
    static const struct {
        struct fl_bytes text;
        const char *sentence;
    } rows[] = {
        {FL_BYTES("[1,2"),
         "JSON: the text ends inside an object or array at byte 4 (line 1, column 5)"},
        {FL_BYTES("{\"a\" 1}"), "JSON: a colon is expected at byte 5 (line 1, column 6)"},
        {FL_BYTES("{\"a\":1 2}"), "JSON: a comma or } is expected at byte 7 (line 1, column 8)"},
        {FL_BYTES("[1;2]"), "JSON: a comma or ] is expected at byte 2 (line 1, column 3)"},
        {FL_BYTES("[01]"), "JSON: a comma or ] is expected at byte 2 (line 1, column 3)"},
        {FL_BYTES("[-]"), "JSON: malformed number at byte 1 (line 1, column 2)"},
        {FL_BYTES("[x]"), "JSON: a value is expected at byte 1 (line 1, column 2)"},
        {FL_BYTES("{x}"), "JSON: a key is expected at byte 1 (line 1, column 2)"},
        {FL_BYTES("\"\\q\""), "JSON: unknown escape at byte 1 (line 1, column 2)"},
        {FL_BYTES("\"\\u12\""), "JSON: malformed \\u escape at byte 1 (line 1, column 2)"},
        {FL_BYTES("\"a\\ud800\""), "JSON: unpaired surrogate at byte 2 (line 1, column 3)"},
        {FL_BYTES("\"a\xff\""), "JSON: invalid UTF-8 at byte 2 (line 1, column 3)"},
        {FL_BYTES("\"a\n\""), "JSON: control character in a string at byte 2 (line 1, column 3)"},
        {FL_BYTES("\"a"), "JSON: the text ends inside a string at byte 2 (line 1, column 3)"},
        {FL_BYTES("1 1"), "JSON: something follows the value at byte 2 (line 1, column 3)"},
        {FL_BYTES("{\n \"a\": 1,\n  x}"), "JSON: a key is expected at byte 13 (line 3, column 3)"},
        {FL_BYTES(" "), "JSON: a value is missing at byte 1 (line 1, column 2)"},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_json doc = {0};
        struct fl_error err = {0};
        assert_int_equal(fl_json_parse(&doc, rows[i].text, &err), FL_EPROTO);
        assert_int_equal(err.code, FL_EPROTO);
        assert_string_equal(err.text, rows[i].sentence);
    }
}

static void the_tree_is_walked_by_children_and_skips(void **state)
{
    (void)state;
    struct fl_json doc = {0};

    /* The picture of json.h. */
    assert_int_equal(fl_json_parse(&doc, FL_BYTES(" {\"a\":[1,2],\"b\":\"x\"} "), NULL), 0);
    assert_int_equal(doc.node_count, 5);
    const struct fl_json_node *root = fl_json_root(&doc);
    assert_int_equal(root->type, FL_JSON_OBJECT);
    assert_int_equal(root->count, 2);
    assert_int_equal(root->skip, 5);
    assert_true(fl_bytes_is_absent(root->key));
    assert_true(fl_bytes_eq(root->text, FL_BYTES("{\"a\":[1,2],\"b\":\"x\"}")));

    const struct fl_json_node *a = fl_json_first(root);
    assert_true(fl_bytes_eq(a->key, FL_BYTES("a")));
    assert_int_equal(a->type, FL_JSON_ARRAY);
    assert_int_equal(a->count, 2);
    assert_true(fl_bytes_eq(a->text, FL_BYTES("[1,2]")));
    const struct fl_json_node *one = fl_json_first(a);
    assert_true(fl_bytes_eq(one->text, FL_BYTES("1")));
    assert_true(fl_bytes_is_absent(one->key));
    const struct fl_json_node *two = fl_json_next(a, one);
    assert_true(fl_bytes_eq(two->text, FL_BYTES("2")));
    assert_null(fl_json_next(a, two));
    assert_null(fl_json_first(two));

    const struct fl_json_node *b = fl_json_next(root, a);
    assert_true(fl_bytes_eq(b->key, FL_BYTES("b")));
    assert_true(fl_bytes_eq(b->text, FL_BYTES("x")));
    assert_null(fl_json_next(root, b));
    assert_null(fl_json_first(NULL));
    assert_false(doc.has_duplicates);
    fl_json_fini(&doc);
    fl_json_fini(&doc);
    assert_null(fl_json_root(&doc));
}

static void strings_are_views_unless_escaped(void **state)
{
    (void)state;
    struct fl_bytes text =
        FL_BYTES("[\"plain \xe2\x82\xac\",\"\\\"\\\\\\/\\b\\f\\n\\r\\t\",\"a\\u0000b\","
                 "\"\\u00e9\\u20ac\\ud83d\\ude00\\u0041 end\"]");
    static const struct fl_bytes expected[] = {
        FL_BYTES("plain \xe2\x82\xac"),
        FL_BYTES("\"\\/\b\f\n\r\t"),
        FL_BYTES("a\0b"),
        FL_BYTES("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"
                 "A end"),
    };
    struct fl_json doc = {0};

    assert_int_equal(fl_json_parse(&doc, text, NULL), 0);
    const struct fl_json_node *root = fl_json_root(&doc);
    size_t i = 0;
    for (const struct fl_json_node *c = fl_json_first(root); c != NULL; c = fl_json_next(root, c)) {
        assert_true(fl_bytes_eq(c->text, expected[i]));
        bool is_view = c->text.p >= text.p && c->text.p < text.p + text.n;
        assert_int_equal(is_view, i == 0);
        i++;
    }
    assert_int_equal(i, 4);
    fl_json_fini(&doc);
}

/* dependencies.md 4.3: order kept, last wins for lookup, a flag tells */
static void of_duplicate_keys_the_last_wins(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        struct fl_bytes text;
        bool duplicates;
    } rows[] = {
        {"none", FL_BYTES("{\"a\":0,\"b\":9}"), false},
        {"at the top", FL_BYTES("{\"a\":1,\"b\":2,\"a\":9,\"b\":9}"), true},
        {"by escape", FL_BYTES("{\"b\":1,\"\\u0062\":9}"), true},
        {"below the top", FL_BYTES("{\"x\":[{\"y\":1,\"y\":2}],\"b\":9}"), true},
        {"the same key in two objects", FL_BYTES("{\"x\":{\"b\":1},\"b\":9}"), false},
        {"empty keys", FL_BYTES("{\"\":1,\"\":2,\"b\":9}"), true},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_json doc = {0};
        assert_int_equal(fl_json_parse(&doc, rows[i].text, NULL), 0);
        if (doc.has_duplicates != rows[i].duplicates)
            fail_msg("row %zu: %s", i, rows[i].why);
        const struct fl_json_node *b = fl_json_get(fl_json_root(&doc), FL_BYTES("b"));
        assert_non_null(b);
        assert_true(fl_bytes_eq(b->text, FL_BYTES("9")));
        fl_json_fini(&doc);
    }
}

/* Objects of every size from both sides of the switch between the two ways of finding duplicates.
 */
static void duplicates_are_found_in_objects_of_any_size(void **state)
{
    (void)state;
    for (int members = 2; members < 40; members++) {
        for (int repeat = 0; repeat < 2; repeat++) {
            struct fl_buf text = {0};
            fl_buf_append(&text, FL_BYTES("{"));
            for (int i = 0; i < members; i++) {
                int name = repeat && i == members - 1 ? members / 2 : i;
                fl_buf_printf(&text, "%s\"k%d\":%d", i == 0 ? "" : ",", name, i);
            }
            fl_buf_append(&text, FL_BYTES("}"));
            struct fl_json doc = {0};
            assert_int_equal(fl_json_parse(&doc, fl_buf_bytes(&text), NULL), 0);
            if (doc.has_duplicates != (repeat == 1 && members / 2 != members - 1))
                fail_msg("%d members, repeat %d", members, repeat);
            fl_json_fini(&doc);
            fl_buf_fini(&text);
        }
    }
}

static void many_members_cost_no_square(void **state)
{
    (void)state;
    struct fl_buf text = {0};
    struct fl_json doc = {0};
    enum { MEMBERS = 200000 };

    fl_buf_append(&text, FL_BYTES("{\"x\":0"));
    for (int i = 0; i < MEMBERS; i++)
        fl_buf_printf(&text, ",\"%06d\":0", i);
    fl_buf_append(&text, FL_BYTES("}"));
    /* Comparing all pairs would take minutes and meet the test's time limit. */
    assert_int_equal(fl_json_parse(&doc, fl_buf_bytes(&text), NULL), 0);
    assert_false(doc.has_duplicates);
    assert_int_equal(fl_json_root(&doc)->count, MEMBERS + 1);
    fl_json_fini(&doc);
    fl_buf_fini(&text);
}

static void lookup_tells_missing_from_wrong_container(void **state)
{
    (void)state;
    struct fl_json doc = {0};

    assert_int_equal(fl_json_parse(&doc, FL_BYTES("[{\"a\":{\"b\":1}},[]]"), NULL), 0);
    const struct fl_json_node *root = fl_json_root(&doc);
    assert_null(fl_json_get(root, FL_BYTES("a")));
    assert_null(fl_json_get(NULL, FL_BYTES("a")));
    assert_null(fl_json_get_nocase(root, FL_BYTES("a")));
    assert_null(fl_json_get_nocase(NULL, FL_BYTES("a")));
    const struct fl_json_node *object = fl_json_first(root);
    assert_null(fl_json_get(object, FL_BYTES("b"))); /* a grandchild is no member */
    assert_null(fl_json_get(object, FL_BYTES("A")));
    assert_non_null(fl_json_get(fl_json_get(object, FL_BYTES("a")), FL_BYTES("b")));
    fl_json_fini(&doc);
}

/* gateway.md 3: keys match without case, an exact match wins if both occur */
static void keys_match_without_case_but_exact_wins(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        struct fl_bytes text;
        const char *found;
    } rows[] = {
        {"other case", FL_BYTES("{\"BGP\":1}"), "1"},
        {"exact first", FL_BYTES("{\"bgp\":1,\"BGP\":2}"), "1"},
        {"exact last", FL_BYTES("{\"BGP\":1,\"bgp\":2}"), "2"},
        {"last of two others", FL_BYTES("{\"BGP\":1,\"Bgp\":2}"), "2"},
        {"none", FL_BYTES("{\"bg\":1}"), NULL},
        {"only ASCII folds: no Kelvin sign", FL_BYTES("{\"bgp\xe2\x84\xaa\":1}"), NULL},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_json doc = {0};
        assert_int_equal(fl_json_parse(&doc, rows[i].text, NULL), 0);
        const struct fl_json_node *node = fl_json_get_nocase(fl_json_root(&doc), FL_BYTES("bgp"));
        bool ok = rows[i].found == NULL
                      ? node == NULL
                      : node != NULL && fl_bytes_eq(node->text, fl_bytes_of(rows[i].found));
        if (!ok)
            fail_msg("row %zu: %s", i, rows[i].why);
        fl_json_fini(&doc);
    }
}

/* dependencies.md 4.3: out of range is an error at conversion */
static void numbers_convert_on_demand(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool u64, i64, f64;
        uint64_t as_u64;
        int64_t as_i64;
        double as_f64;
    } rows[] = {
        {"0", true, true, true, 0, 0, 0.0},
        {"-0", false, true, true, 0, 0, -0.0},
        {"18446744073709551615", true, false, true, UINT64_MAX, 0, 18446744073709551615.0},
        {"18446744073709551616", false, false, true, 0, 0, 18446744073709551616.0},
        {"9223372036854775807", true, true, true, INT64_MAX, INT64_MAX, 9223372036854775807.0},
        {"9223372036854775808", true, false, true, (uint64_t)INT64_MAX + 1, 0,
         9223372036854775808.0},
        {"-9223372036854775808", false, true, true, 0, INT64_MIN, -9223372036854775808.0},
        {"-9223372036854775809", false, false, true, 0, 0, -9223372036854775809.0},
        {"9007199254740993", true, true, true, 9007199254740993, 9007199254740993,
         9007199254740992.0},
        {"1.0", false, false, true, 0, 0, 1.0},
        {"1e2", false, false, true, 0, 0, 100.0},
        {"-2.5e-3", false, false, true, 0, 0, -0.0025},
        {"1e308", false, false, true, 0, 0, 1e308},
        {"1e309", false, false, false, 0, 0, 0},
        {"-1e309", false, false, false, 0, 0, 0},
        {"5e-324", false, false, true, 0, 0, 5e-324},
        {"0.1000000000000000000000000000000000000000000000000000000000000000000000001", false,
         false, true, 0, 0, 0.1},
        {"\"1\"", false, false, false, 0, 0, 0},
        {"null", false, false, false, 0, 0, 0},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_json doc = {0};
        uint64_t u = 0;
        int64_t s = 0;
        double d = 0;
        assert_int_equal(fl_json_parse(&doc, fl_bytes_of(rows[i].text), NULL), 0);
        const struct fl_json_node *root = fl_json_root(&doc);
        if (fl_json_to_u64(root, &u) != rows[i].u64 || u != rows[i].as_u64)
            fail_msg("u64 of %s", rows[i].text);
        if (fl_json_to_i64(root, &s) != rows[i].i64 || s != rows[i].as_i64)
            fail_msg("i64 of %s", rows[i].text);
        if (fl_json_to_double(root, &d) != rows[i].f64 || memcmp(&d, &rows[i].as_f64, 8) != 0)
            fail_msg("double of %s", rows[i].text);
        fl_json_fini(&doc);
    }
    uint64_t u;
    int64_t s;
    double d;
    assert_false(fl_json_to_u64(NULL, &u));
    assert_false(fl_json_to_i64(NULL, &s));
    assert_false(fl_json_to_double(NULL, &d));
}

static void getters_name_the_key_and_the_rule(void **state)
{
    (void)state;
    struct fl_json doc = {0};
    struct fl_error err = {0};
    uint64_t u = 77;
    struct fl_bytes s = FL_BYTES("before");
    bool flag = true;

    assert_int_equal(fl_json_parse(&doc,
                                   FL_BYTES("{\"n\":8,\"f\":1.5,\"e\":1e2,\"neg\":-1,\"s\":\"x\","
                                            "\"t\":true,\"no\":false,\"z\":null,"
                                            "\"big\":99999999999999999999}"),
                                   NULL),
                     0);
    const struct fl_json_node *root = fl_json_root(&doc);
    static const struct {
        const char *key;
        int rc;
        const char *sentence;
    } rows[] = {
        {"m", FL_ENOT_FOUND, "m is missing"},
        {"s", FL_ETYPE, "s is not a number"},
        {"z", FL_ETYPE, "z is not a number"},
        {"f", FL_ETYPE, "f is not an integer"},
        {"e", FL_ETYPE, "e is not an integer"},
        {"neg", FL_ERANGE, "neg is -1, allowed are 1 to 7"},
        {"n", FL_ERANGE, "n is 8, allowed are 1 to 7"},
        {"big", FL_ERANGE, "big is 99999999999999999999, allowed are 1 to 7"},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        assert_int_equal(fl_json_get_u64(root, rows[i].key, 1, 7, &u, &err), rows[i].rc);
        assert_string_equal(err.text, rows[i].sentence);
        assert_int_equal(u, 77);
    }
    assert_int_equal(fl_json_get_u64(root, "n", 8, 8, &u, &err), 0);
    assert_int_equal(u, 8);

    assert_int_equal(fl_json_get_string(root, "m", &s, &err), FL_ENOT_FOUND);
    assert_int_equal(fl_json_get_string(root, "n", &s, &err), FL_ETYPE);
    assert_string_equal(err.text, "n is not a string");
    assert_true(fl_bytes_eq(s, FL_BYTES("before")));
    assert_int_equal(fl_json_get_string(root, "s", &s, NULL), 0);
    assert_true(fl_bytes_eq(s, FL_BYTES("x")));

    assert_int_equal(fl_json_get_bool(root, "m", &flag, &err), FL_ENOT_FOUND);
    assert_int_equal(fl_json_get_bool(root, "z", &flag, &err), FL_ETYPE);
    assert_string_equal(err.text, "z is neither true nor false");
    assert_true(flag);
    assert_int_equal(fl_json_get_bool(root, "no", &flag, NULL), 0);
    assert_false(flag);
    assert_int_equal(fl_json_get_bool(root, "t", &flag, NULL), 0);
    assert_true(flag);
    fl_json_fini(&doc);
}

static void running_out_of_memory_is_an_error(void **state)
{
    (void)state;
    struct fl_buf text = {0};

    fl_buf_append(&text, FL_BYTES("{\"x\\n\":\"y\\n\""));
    for (int i = 0; i < 50; i++)
        fl_buf_printf(&text, ",\"k%d\":[%d]", i, i);
    fl_buf_append(&text, FL_BYTES("}"));
    uint64_t n = 1;
    for (;; n++) {
        struct fl_json doc = {0};
        struct fl_error err = {0};
        fl_alloc_fail_at(n);
        int rc = fl_json_parse(&doc, fl_buf_bytes(&text), &err);
        fl_alloc_fail_at(0);
        if (rc == 0) {
            fl_json_fini(&doc);
            break;
        }
        assert_int_equal(rc, FL_ENOMEM);
        assert_string_equal(err.text, "JSON: out of memory");
        assert_null(fl_json_root(&doc));
    }
    assert_true(n > 4); /* nodes several times, strings, the sorted keys */
    fl_buf_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_readers_give_the_same_verdict),
        cmocka_unit_test(every_cut_of_a_text_is_refused),
        cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(objects_count_as_depth_too),
        cmocka_unit_test(a_text_beyond_the_cap_is_refused_unread),
        cmocka_unit_test(a_fault_is_named_with_its_place),
        cmocka_unit_test(the_tree_is_walked_by_children_and_skips),
        cmocka_unit_test(strings_are_views_unless_escaped),
        cmocka_unit_test(of_duplicate_keys_the_last_wins),
        cmocka_unit_test(duplicates_are_found_in_objects_of_any_size),
        cmocka_unit_test(many_members_cost_no_square),
        cmocka_unit_test(lookup_tells_missing_from_wrong_container),
        cmocka_unit_test(keys_match_without_case_but_exact_wins),
        cmocka_unit_test(numbers_convert_on_demand),
        cmocka_unit_test(getters_name_the_key_and_the_rule),
        cmocka_unit_test(running_out_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
