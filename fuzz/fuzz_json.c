/* SPDX-License-Identifier: Apache-2.0 */
/* JSON: parse, check and scan agree on any text; what parses survives being written and read again,
 * and splicing keeps it well-formed. */
#include <assert.h>
#include <stdint.h>

#include "codec/json.h"
#include "codec/json_scan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void dump(struct fl_json_writer *w, const struct fl_json_node *node)
{
    if (!fl_bytes_is_absent(node->key))
        fl_json_write_key_bytes(w, node->key);
    switch ((enum fl_json_type)node->type) {
    case FL_JSON_NULL:
        fl_json_write_null(w);
        break;
    case FL_JSON_FALSE:
    case FL_JSON_TRUE:
        fl_json_write_bool(w, node->type == FL_JSON_TRUE);
        break;
    case FL_JSON_NUMBER:
        fl_json_write_raw(w, node->text);
        break;
    case FL_JSON_STRING:
        fl_json_write_string(w, node->text);
        break;
    case FL_JSON_ARRAY:
        fl_json_write_array(w);
        for (const struct fl_json_node *c = fl_json_first(node); c != NULL;
             c = fl_json_next(node, c))
            dump(w, c);
        fl_json_write_array_end(w);
        break;
    case FL_JSON_OBJECT:
        fl_json_write_object(w);
        for (const struct fl_json_node *c = fl_json_first(node); c != NULL;
             c = fl_json_next(node, c))
            dump(w, c);
        fl_json_write_object_end(w);
        break;
    }
}

static void check_same(const struct fl_json *a, const struct fl_json *b)
{
    assert(a->node_count == b->node_count && a->has_duplicates == b->has_duplicates);
    for (uint32_t i = 0; i < a->node_count; i++) {
        const struct fl_json_node *x = &a->nodes[i], *y = &b->nodes[i];
        assert(x->type == y->type && x->skip == y->skip && x->count == y->count);
        assert(fl_bytes_eq(x->key, y->key));
        if (x->type == FL_JSON_STRING || x->type == FL_JSON_NUMBER)
            assert(fl_bytes_eq(x->text, y->text));
    }
}

static void read_numbers(const struct fl_json *doc)
{
    for (uint32_t i = 0; i < doc->node_count; i++) {
        uint64_t u = 0;
        int64_t s = 0;
        double d = 0;
        uint32_t ids[16];
        const struct fl_json_node *node = &doc->nodes[i];
        bool has_u = fl_json_to_u64(node, &u);
        bool has_s = fl_json_to_i64(node, &s);
        if (has_u && has_s)
            assert(u == (uint64_t)s);
        if (has_u || has_s)
            assert(fl_json_to_double(node, &d));
        else
            (void)fl_json_to_double(node, &d);
        if (node->type != FL_JSON_ARRAY)
            continue;
        int64_t n = fl_json_read_u32_array(node->text, ids, FL_ARRAY_LEN(ids));
        if (n >= 0) {
            const struct fl_json_node *c = fl_json_first(node);
            assert(n == node->count);
            for (int64_t k = 0; k < n; k++, c = fl_json_next(node, c))
                assert(fl_json_to_u64(c, &u) && u == ids[k]);
        }
    }
}

static int on_member(void *owner, const struct fl_json_member *member)
{
    struct fl_arena arena = {0};
    struct fl_bytes key;
    uint32_t *members = owner;

    ++*members;
    /* A raw key equals what it means, and a member's value is a JSON text of its own. */
    assert(fl_json_unescape(&arena, member->key, &key) == 0);
    assert(fl_json_raw_eq(member->key, key));
    assert(fl_json_check(member->value) == 0);
    fl_arena_fini(&arena);
    return 0;
}

static void splice(struct fl_bytes text)
{
    struct fl_buf out = {0};
    struct fl_json doc = {0};

    assert(fl_json_splice_member(&out, text, FL_BYTES("model"), FL_BYTES("\"x\"")) == 0);
    assert(fl_json_parse(&doc, fl_buf_bytes(&out), NULL) == 0);
    const struct fl_json_node *model = fl_json_get(fl_json_root(&doc), FL_BYTES("model"));
    assert(model != NULL && fl_bytes_eq(model->text, FL_BYTES("x")));
    fl_json_fini(&doc);
    fl_buf_fini(&out);
}

/* Raw string content that nobody checked before. */
static void unescape_any(struct fl_bytes raw)
{
    struct fl_arena arena = {0};
    struct fl_bytes value;

    if (fl_json_unescape(&arena, raw, &value) == 0) {
        assert(value.n <= raw.n);
        assert(fl_json_raw_eq(raw, value));
    }
    fl_arena_fini(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fl_bytes text = {data, size};
    struct fl_json doc = {0}, again = {0};
    struct fl_buf out = {0};
    struct fl_json_writer w;
    struct fl_error err = {0};
    uint32_t members = 0;

    const uint8_t *end = size > 0 ? data + size : data;
    assert(fl_json_skip_plain(data, end) == fl_json_skip_plain_scalar(data, end));
    unescape_any(text);
    int rc = fl_json_parse(&doc, text, &err);
    assert(fl_json_check(text) == rc);
    int scanned = fl_json_scan_members(text, on_member, &members);
    if (rc < 0) {
        assert(err.code == rc);
        assert(scanned == rc || scanned == FL_ETYPE);
        return 0;
    }
    const struct fl_json_node *root = fl_json_root(&doc);
    assert(scanned == (root->type == FL_JSON_OBJECT ? 0 : FL_ETYPE));
    assert(root->skip == doc.node_count);
    if (root->type == FL_JSON_OBJECT) {
        assert(members == root->count);
        splice(text);
    }
    read_numbers(&doc);
    fl_json_writer_init(&w, &out);
    dump(&w, root);
    assert(fl_json_writer_end(&w) == 0);
    assert(fl_json_parse(&again, fl_buf_bytes(&out), NULL) == 0);
    check_same(&doc, &again);
    fl_json_fini(&doc);
    fl_json_fini(&again);
    fl_buf_fini(&out);
    return 0;
}
