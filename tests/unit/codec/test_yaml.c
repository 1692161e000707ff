/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "codec/yaml.h"

/* The tree as JSON text. */
static void dump(struct fl_json_writer *w, const struct fl_json_node *node)
{
    if (!fl_bytes_is_absent(node->key))
        fl_json_write_key_bytes(w, node->key);
    if (node->type == FL_JSON_STRING) {
        fl_json_write_string(w, node->text);
    } else if (node->type == FL_JSON_NUMBER) {
        fl_json_write_raw(w, node->text);
    } else if (node->type == FL_JSON_NULL) {
        fl_json_write_null(w);
    } else if (node->type == FL_JSON_TRUE || node->type == FL_JSON_FALSE) {
        fl_json_write_bool(w, node->type == FL_JSON_TRUE);
    } else {
        if (node->type == FL_JSON_OBJECT)
            fl_json_write_object(w);
        else
            fl_json_write_array(w);
        uint32_t children = 0;
        for (const struct fl_json_node *c = fl_json_first(node); c != NULL;
             c = fl_json_next(node, c)) {
            dump(w, c);
            children++;
        }
        assert_int_equal(children, node->count);
        if (node->type == FL_JSON_OBJECT)
            fl_json_write_object_end(w);
        else
            fl_json_write_array_end(w);
    }
}

static void check_tree(const char *why, const struct fl_json *doc, const char *expected)
{
    struct fl_buf out = {0};
    struct fl_json_writer w;

    fl_json_writer_init(&w, &out);
    dump(&w, fl_json_root(doc));
    assert_int_equal(fl_json_writer_end(&w), 0);
    assert_int_equal(fl_json_root(doc)->skip, doc->node_count);
    if (!fl_bytes_eq(fl_buf_bytes(&out), fl_bytes_of(expected)))
        fail_msg("%s: %.*s", why, FL_FMT(fl_buf_bytes(&out)));
    fl_buf_fini(&out);
}

static void yaml_becomes_the_tree_that_json_gives(void **state)
{
    (void)state;
    static const struct {
        const char *why, *text, *json;
    } rows[] = {
        {"nothing", "", "null"},
        {"comment only", "# nothing\n", "null"},
        {"empty document", "---\n...\n", "null"},
        {"scalar", "a b", "\"a b\""},
        {"block mapping", "a: 1\nb:\n  c: x\n  d:\n", "{\"a\":1,\"b\":{\"c\":\"x\",\"d\":null}}"},
        {"block list", "- a\n- - b\n  - c\n- {}\n- []\n", "[\"a\",[\"b\",\"c\"],{},[]]"},
        {"list in a mapping", "w:\n- name: x\n  port: 1\n- name: y\n",
         "{\"w\":[{\"name\":\"x\",\"port\":1},{\"name\":\"y\"}]}"},
        {"flow", "{a: [1, two], b: {c: 'd'}}", "{\"a\":[1,\"two\"],\"b\":{\"c\":\"d\"}}"},
        {"JSON is YAML", "{\"a\": [1, \"two\", null, true], \"b\": \"\\u00e9\"}",
         "{\"a\":[1,\"two\",null,true],\"b\":\"\xc3\xa9\"}"},
        {"addresses", "e: tcp://10.0.0.5:5557\nf: 10.0.0.6:8000\n",
         "{\"e\":\"tcp://10.0.0.5:5557\",\"f\":\"10.0.0.6:8000\"}"},
        {"literal and folded", "a: |\n  x\n  y\nb: >\n  x\n  y\n",
         "{\"a\":\"x\\ny\\n\",\"b\":\"x y\\n\"}"},
        {"a literal is never a number", "a: |-\n  1\n", "{\"a\":\"1\"}"},
        {"keys are strings whatever they look like", "1: a\ntrue: b\n~: c\n\"\": d\n",
         "{\"1\":\"a\",\"true\":\"b\",\"~\":\"c\",\"\":\"d\"}"},
        {"the same key at two levels", "a: {a: {a: 1}}\n", "{\"a\":{\"a\":{\"a\":1}}}"},
        {"directive and end mark", "%YAML 1.1\n---\na: 1\n...\n", "{\"a\":1}"},
        {"UTF-8 and byte order mark",
         "\xef\xbb\xbf"
         "a: \xe2\x82\xac\n",
         "{\"a\":\"\xe2\x82\xac\"}"},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_json doc = {0};
        struct fl_error err = {0};
        /* The tree outlives the input. */
        char *copy = malloc(strlen(rows[i].text) + 1);
        assert_non_null(copy);
        memcpy(copy, rows[i].text, strlen(rows[i].text));
        int rc = fl_yaml_parse(&doc, fl_bytes(copy, strlen(rows[i].text)), &err);
        free(copy);
        if (rc < 0)
            fail_msg("row %zu, %s: %s", i, rows[i].why, err.text);
        check_tree(rows[i].why, &doc, rows[i].json);
        fl_json_fini(&doc);
    }
}

/* dependencies.md 3.5: scalars */
static void plain_scalars_are_typed_by_the_narrow_rules(void **state)
{
    (void)state;
    static const struct {
        const char *scalar, *json;
    } rows[] = {
        {"yes", "\"yes\""},
        {"no", "\"no\""},
        {"on", "\"on\""},
        {"off", "\"off\""},
        {"y", "\"y\""},
        {"true", "true"},
        {"True", "true"},
        {"TRUE", "true"},
        {"tRue", "\"tRue\""},
        {"false", "false"},
        {"False", "false"},
        {"FALSE", "false"},
        {"null", "null"},
        {"Null", "null"},
        {"NULL", "null"},
        {"~", "null"},
        {"", "null"},
        {"nul", "\"nul\""},
        {"0", "0"},
        {"12", "12"},
        {"-12", "-12"},
        {"1.5", "1.5"},
        {"1e3", "1e3"},
        {"-0.5E-3", "-0.5E-3"},
        {"0777", "\"0777\""},
        {"0o17", "\"0o17\""},
        {"0x1f", "\"0x1f\""},
        {"+1", "\"+1\""},
        {".5", "\".5\""},
        {"1.", "\"1.\""},
        {"1_000", "\"1_000\""},
        {"1:30", "\"1:30\""},
        {".inf", "\".inf\""},
        {".nan", "\".nan\""},
        {"1 2", "\"1 2\""},
        {"-", "[null]"},
        {"1.2.3", "\"1.2.3\""},
        {"18446744073709551615", "18446744073709551615"},
        {"'true'", "\"true\""},
        {"\"12\"", "\"12\""},
        {"'~'", "\"~\""},
        {"''", "\"\""},
        {"2024-01-01", "\"2024-01-01\""},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_json doc = {0};
        assert_int_equal(fl_yaml_parse(&doc, fl_bytes_of(rows[i].scalar), NULL), 0);
        check_tree(rows[i].scalar, &doc, rows[i].json);
        fl_json_fini(&doc);
    }
}

/* dependencies.md 3.5: anchors, aliases, duplicate keys; errors name line and column */
static void what_is_refused_is_named_with_its_place(void **state)
{
    (void)state;
    static const struct {
        const char *text, *sentence;
    } rows[] = {
        {"a: &x 1\n", "YAML: line 1, column 4: anchors are not allowed"},
        {"a: &x [1]\n", "YAML: line 1, column 4: anchors are not allowed"},
        {"a: &x {b: 1}\n", "YAML: line 1, column 4: anchors are not allowed"},
        {"a: 1\nb: *x\n", "YAML: line 2, column 4: aliases are not allowed"},
        {"a: !!str 1\n", "YAML: line 1, column 4: tags are not allowed"},
        {"a: ! 1\n", "YAML: line 1, column 4: tags are not allowed"},
        {"a: !x [1]\n", "YAML: line 1, column 4: tags are not allowed"},
        {"a: !!map {}\n", "YAML: line 1, column 4: tags are not allowed"},
        {"a: 1\n<<: {b: 1}\n", "YAML: line 2, column 1: merge keys are not allowed"},
        {"a: 1\nb: 2\na: 3\n", "YAML: line 3, column 1: key a occurs twice"},
        {"x:\n  - {p: 1, q: 2, p: 3}\n", "YAML: line 2, column 18: key p occurs twice"},
        {"a: {x: 1}\n\"a\": [2]\n", "YAML: line 2, column 1: key a occurs twice"},
        {"? [a]\n: 1\n", "YAML: line 1, column 3: a key must be a scalar"},
        {"? {a: b}\n: 1\n", "YAML: line 1, column 3: a key must be a scalar"},
        {"a: 1\n---\nb: 2\n", "YAML: line 2, column 1: only one document is allowed"},
        {"a: [1\n", "YAML: line 2, column 1: did not find expected ',' or ']'"},
        {"a: 1\n b: 2\n", "YAML: line 2, column 3: mapping values are not allowed in this context"},
        {"a: \"x\n", "YAML: line 2, column 1: found unexpected end of stream"},
        {"a: 'b' c\n", "YAML: line 1, column 8: did not find expected key"},
        {"\ta: 1\n", "YAML: line 1, column 1: found character that cannot start any token"},
        {"a: @x\n", "YAML: line 1, column 4: found character that cannot start any token"},
        {"a: \xff\n", "YAML: line 1 or later, byte 3: invalid leading UTF-8 octet"},
        {"a: \x01\n", "YAML: line 1 or later, byte 3: control characters are not allowed"},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_json doc = {0};
        struct fl_error err = {0};
        assert_int_equal(fl_yaml_parse(&doc, fl_bytes_of(rows[i].text), &err), FL_EPROTO);
        if (strcmp(err.text, rows[i].sentence) != 0)
            fail_msg("row %zu: %s", i, err.text);
        assert_null(fl_json_root(&doc));
        fl_json_fini(&doc);
    }
}

/* dependencies.md 3.5: depth 64 */
static void depth_is_limited(void **state)
{
    (void)state;
    static const struct {
        int depth, rc;
    } rows[] = {{63, 0}, {64, 0}, {65, FL_EDEPTH}, {900, FL_EDEPTH}};

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_buf text = {0};
        for (int d = 0; d < rows[i].depth; d++)
            fl_buf_append(&text, FL_BYTES("["));
        for (int d = 0; d < rows[i].depth; d++)
            fl_buf_append(&text, FL_BYTES("]"));
        struct fl_json doc = {0};
        struct fl_error err = {0};
        assert_int_equal(fl_yaml_parse(&doc, fl_buf_bytes(&text), &err), rows[i].rc);
        fl_json_fini(&doc);
        assert_int_equal(fl_yaml_parse_stream(&doc, fl_buf_bytes(&text), &err), rows[i].rc);
        if (rows[i].rc < 0)
            assert_string_equal(err.text, "YAML: line 1, column 65: nesting too deep, at most 64");
        fl_json_fini(&doc);
        fl_buf_fini(&text);
    }
}

/* dependencies.md 3.5: 500,000 nodes */
static void nodes_are_limited(void **state)
{
    (void)state;
    for (int extra = -1; extra <= 1; extra++) {
        /* The list and its items. */
        int items = FL_YAML_MAX_NODES - 1 + extra;
        struct fl_buf text = {0};
        fl_buf_append(&text, FL_BYTES("["));
        for (int i = 0; i < items; i++)
            fl_buf_append(&text, FL_BYTES("1,"));
        fl_buf_append(&text, FL_BYTES("]"));
        struct fl_json doc = {0};
        struct fl_error err = {0};
        int rc = fl_yaml_parse(&doc, fl_buf_bytes(&text), &err);
        assert_int_equal(rc, extra > 0 ? FL_ELIMIT : 0);
        if (rc == 0)
            assert_int_equal(doc.node_count, items + 1);
        else
            assert_non_null(strstr(err.text, "too many nodes"));
        fl_json_fini(&doc);
        fl_buf_fini(&text);
    }
}

static void keys_count_as_nodes(void **state)
{
    (void)state;
    struct fl_buf text = {0};
    struct fl_json doc = {0};

    /* 250,000 members are as many keys and values, and one mapping too much. */
    for (int i = 0; i < FL_YAML_MAX_NODES / 2; i++)
        fl_buf_printf(&text, "%x: 1\n", i);
    assert_int_equal(fl_yaml_parse(&doc, fl_buf_bytes(&text), NULL), FL_ELIMIT);
    fl_buf_fini(&text);
}

/* dependencies.md 3.5: 8 MiB */
static void bytes_are_limited(void **state)
{
    (void)state;
    static const struct {
        size_t bytes;
        int rc;
    } rows[] = {
        {FL_YAML_MAX_BYTES - 1, 0}, {FL_YAML_MAX_BYTES, 0}, {FL_YAML_MAX_BYTES + 1, FL_ELIMIT}};
    char *text = malloc(FL_YAML_MAX_BYTES + 1);

    assert_non_null(text);
    memset(text, '#', FL_YAML_MAX_BYTES + 1); /* one comment */
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_json doc = {0};
        assert_int_equal(fl_yaml_parse(&doc, fl_bytes(text, rows[i].bytes), NULL), rows[i].rc);
        fl_json_fini(&doc);
    }
    free(text);
}

/* dependencies.md 3.5: multi-document streams for manifests only */
static void a_stream_becomes_a_list_of_documents(void **state)
{
    (void)state;
    static const struct {
        const char *text, *json;
    } rows[] = {
        {"", "[]"},
        {"a: 1\n", "[{\"a\":1}]"},
        {"---\na: 1\n---\n- b\n---\n---\nc\n", "[{\"a\":1},[\"b\"],null,\"c\"]"},
        {"# head\n---\nkind: Pod\n...\n---\nkind: Service\n",
         "[{\"kind\":\"Pod\"},{\"kind\":\"Service\"}]"},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_json doc = {0};
        assert_int_equal(fl_yaml_parse_stream(&doc, fl_bytes_of(rows[i].text), NULL), 0);
        check_tree(rows[i].text, &doc, rows[i].json);
        fl_json_fini(&doc);
    }
    struct fl_json doc = {0};
    struct fl_error err = {0};
    assert_int_equal(fl_yaml_parse_stream(&doc, FL_BYTES("a: 1\n---\nb: 1\nb: 2\n"), &err),
                     FL_EPROTO);
    assert_string_equal(err.text, "YAML: line 4, column 1: key b occurs twice");
}

static void running_out_of_memory_is_an_error(void **state)
{
    (void)state;
    struct fl_buf text = {0};
    uint64_t n = 1;

    for (int i = 0; i < 40; i++)
        fl_buf_printf(&text, "k%d: [a]\n", i);
    for (;; n++) {
        struct fl_json doc = {0};
        struct fl_error err = {0};
        fl_alloc_fail_at(n);
        int rc = fl_yaml_parse_stream(&doc, fl_buf_bytes(&text), &err);
        fl_alloc_fail_at(0);
        if (rc == 0) {
            fl_json_fini(&doc);
            break;
        }
        assert_int_equal(rc, FL_ENOMEM);
        assert_string_equal(err.text, "YAML: out of memory");
        assert_null(fl_json_root(&doc));
    }
    assert_true(n > 4);
    fl_buf_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(yaml_becomes_the_tree_that_json_gives),
        cmocka_unit_test(plain_scalars_are_typed_by_the_narrow_rules),
        cmocka_unit_test(what_is_refused_is_named_with_its_place),
        cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(nodes_are_limited),
        cmocka_unit_test(keys_count_as_nodes),
        cmocka_unit_test(bytes_are_limited),
        cmocka_unit_test(a_stream_becomes_a_list_of_documents),
        cmocka_unit_test(running_out_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
