/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/json.h"

#include <assert.h>

#include "base/alloc.h"
#include "codec/json_build.h"
#include "codec/json_scan.h"

static int build_key(void *owner, uint32_t depth, struct fl_bytes raw, bool has_escapes)
{
    struct fl_json_builder *builder = owner;

    (void)depth;
    builder->key = raw;
    return has_escapes ? fl_json_unescape(&builder->doc->arena, raw, &builder->key) : 0;
}

static int build_scalar(void *owner, uint32_t depth, enum fl_json_type type, struct fl_bytes text,
                        bool has_escapes)
{
    struct fl_json_builder *builder = owner;
    struct fl_json_node *node = fl_json_builder_add(builder, type);

    (void)depth;
    if (node == NULL)
        return FL_ENOMEM;
    node->text = text;
    return has_escapes ? fl_json_unescape(&builder->doc->arena, text, &node->text) : 0;
}

static int build_open(void *owner, uint32_t depth, enum fl_json_type type, const uint8_t *at)
{
    struct fl_json_node *node = fl_json_builder_open(owner, type);

    (void)depth;
    if (node == NULL)
        return FL_ENOMEM;
    node->text.p = at;
    return 0;
}

static int build_close(void *owner, uint32_t depth, const uint8_t *end)
{
    struct fl_json_builder *builder = owner;
    struct fl_json_node *node = fl_json_builder_close(builder);
    const struct fl_json_node *repeat;

    (void)depth;
    node->text.n = (size_t)(end - node->text.p);
    if (node->type != FL_JSON_OBJECT || builder->doc->has_duplicates)
        return 0;
    int rc = fl_json_find_repeat(node, &repeat);
    builder->doc->has_duplicates = repeat != NULL;
    return rc;
}

/* A person looks for the place by line and column, a program by byte. */
static int report_fault(struct fl_error *err, int rc, struct fl_bytes text,
                        const struct fl_json_fault *fault)
{
    size_t line = 1;
    const uint8_t *start = text.p;

    for (const uint8_t *p = text.p; err != NULL && p < fault->at; p++) {
        if (*p == '\n') {
            line++;
            start = p + 1;
        }
    }
    return fl_error_set(err, rc, "JSON: %s at byte %zu (line %zu, column %zu)", fault->why,
                        (size_t)(fault->at - text.p), line, (size_t)(fault->at - start) + 1);
}

int fl_json_parse(struct fl_json *doc, struct fl_bytes text, struct fl_error *err)
{
    static const struct fl_json_events events = {
        .on_key = build_key,
        .on_scalar = build_scalar,
        .on_open = build_open,
        .on_close = build_close,
    };
    struct fl_json_fault fault;
    struct fl_json_builder builder = {.doc = doc};

    assert(doc->nodes == NULL && doc->node_count == 0);
    if (text.n > FL_JSON_MAX_TEXT)
        return fl_error_set(err, FL_ELIMIT, "JSON: %zu bytes, at most %zu", text.n,
                            FL_JSON_MAX_TEXT);
    int rc = fl_json_walk(text, &events, &builder, &fault);
    if (rc == FL_EPROTO || rc == FL_EDEPTH)
        report_fault(err, rc, text, &fault);
    else if (rc < 0)
        fl_error_set(err, rc, "JSON: out of memory");
    if (rc < 0)
        fl_json_fini(doc);
    return rc;
}

void fl_json_fini(struct fl_json *doc)
{
    fl_free(doc->nodes);
    fl_arena_fini(&doc->arena);
    doc->nodes = NULL;
    doc->node_count = 0;
    doc->has_duplicates = false;
}

const struct fl_json_node *fl_json_root(const struct fl_json *doc)
{
    return doc->nodes; /* NULL when nothing was parsed */
}

const struct fl_json_node *fl_json_first(const struct fl_json_node *container)
{
    return container == NULL || container->count == 0 ? NULL : container + 1;
}

const struct fl_json_node *fl_json_next(const struct fl_json_node *container,
                                        const struct fl_json_node *child)
{
    const struct fl_json_node *next = child + child->skip;

    return next == container + container->skip ? NULL : next;
}

const struct fl_json_node *fl_json_get(const struct fl_json_node *object, struct fl_bytes key)
{
    const struct fl_json_node *found = NULL;

    if (object == NULL || object->type != FL_JSON_OBJECT)
        return NULL;
    for (const struct fl_json_node *c = fl_json_first(object); c != NULL;
         c = fl_json_next(object, c)) {
        if (fl_bytes_eq(c->key, key))
            found = c;
    }
    return found;
}

const struct fl_json_node *fl_json_get_nocase(const struct fl_json_node *object,
                                              struct fl_bytes key)
{
    const struct fl_json_node *exact = NULL, *other = NULL;

    if (object == NULL || object->type != FL_JSON_OBJECT)
        return NULL;
    for (const struct fl_json_node *c = fl_json_first(object); c != NULL;
         c = fl_json_next(object, c)) {
        if (fl_bytes_eq(c->key, key))
            exact = c;
        else if (fl_bytes_eq_nocase(c->key, key))
            other = c;
    }
    return exact != NULL ? exact : other;
}

/* The member named by a C string, or NULL with `err` and *rc set. */
static const struct fl_json_node *find_member(const struct fl_json_node *object, const char *key,
                                              int *rc, struct fl_error *err)
{
    const struct fl_json_node *node = fl_json_get(object, fl_bytes_of(key));

    if (node == NULL)
        *rc = fl_error_set(err, FL_ENOT_FOUND, "%s is missing", key);
    return node;
}

int fl_json_get_u64(const struct fl_json_node *object, const char *key, uint64_t min, uint64_t max,
                    uint64_t *value, struct fl_error *err)
{
    int rc = 0;
    uint64_t n;
    const struct fl_json_node *node = find_member(object, key, &rc, err);

    if (node == NULL)
        return rc;
    if (node->type != FL_JSON_NUMBER)
        return fl_error_set(err, FL_ETYPE, "%s is not a number", key);
    if (!fl_json_to_u64(node, &n)) {
        for (size_t i = 0; i < node->text.n; i++) {
            uint8_t c = node->text.p[i];
            if (c == '.' || c == 'e' || c == 'E')
                return fl_error_set(err, FL_ETYPE, "%s is not an integer", key);
        }
        /* negative or above 2^64 - 1 */
    } else if (n >= min && n <= max) {
        *value = n;
        return 0;
    }
    return fl_error_set(err, FL_ERANGE, "%s is %.*s, allowed are %llu to %llu", key,
                        FL_FMT(fl_bytes_head(node->text, 40)), (unsigned long long)min,
                        (unsigned long long)max);
}

int fl_json_get_string(const struct fl_json_node *object, const char *key, struct fl_bytes *value,
                       struct fl_error *err)
{
    int rc = 0;
    const struct fl_json_node *node = find_member(object, key, &rc, err);

    if (node == NULL)
        return rc;
    if (node->type != FL_JSON_STRING)
        return fl_error_set(err, FL_ETYPE, "%s is not a string", key);
    *value = node->text;
    return 0;
}

int fl_json_get_bool(const struct fl_json_node *object, const char *key, bool *value,
                     struct fl_error *err)
{
    int rc = 0;
    const struct fl_json_node *node = find_member(object, key, &rc, err);

    if (node == NULL)
        return rc;
    if (node->type != FL_JSON_TRUE && node->type != FL_JSON_FALSE)
        return fl_error_set(err, FL_ETYPE, "%s is neither true nor false", key);
    *value = node->type == FL_JSON_TRUE;
    return 0;
}
