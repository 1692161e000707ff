/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/json_build.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

#define FIRST_NODES 32
/* Above this an object's keys are sorted to find duplicates: comparing all pairs would let a peer
 * spend our time quadratically. */
#define PAIRWISE_KEYS 12

struct fl_json_node *fl_json_builder_add(struct fl_json_builder *builder, enum fl_json_type type)
{
    struct fl_json *doc = builder->doc;

    if (doc->node_count == builder->room) {
        uint32_t room = builder->room == 0 ? FIRST_NODES : builder->room * 2;
        struct fl_json_node *nodes = fl_try_realloc(doc->nodes, room, sizeof(*nodes));
        if (nodes == NULL)
            return NULL;
        doc->nodes = nodes;
        builder->room = room;
    }
    if (builder->depth > 0)
        builder->children[builder->depth - 1]++;
    struct fl_json_node *node = &doc->nodes[doc->node_count++];
    *node = (struct fl_json_node){.key = builder->key, .skip = 1, .type = (uint32_t)type & 7};
    builder->key = (struct fl_bytes){0};
    return node;
}

struct fl_json_node *fl_json_builder_open(struct fl_json_builder *builder, enum fl_json_type type)
{
    struct fl_json_node *node = fl_json_builder_add(builder, type);

    if (node == NULL)
        return NULL;
    assert(builder->depth < FL_JSON_MAX_DEPTH); /* the reader has a limit of its own */
    builder->open[builder->depth] = builder->doc->node_count - 1;
    builder->children[builder->depth] = 0;
    builder->depth++;
    return node;
}

struct fl_json_node *fl_json_builder_close(struct fl_json_builder *builder)
{
    assert(builder->depth > 0);
    uint32_t depth = --builder->depth;
    struct fl_json_node *node = &builder->doc->nodes[builder->open[depth]];

    node->skip = builder->doc->node_count - builder->open[depth];
    node->count = builder->children[depth] & ((1U << 29) - 1);
    return node;
}

/* By key, then by place in the document. */
static int compare_members(const void *a, const void *b)
{
    const struct fl_json_node *left = *(const struct fl_json_node *const *)a;
    const struct fl_json_node *right = *(const struct fl_json_node *const *)b;

    if (left->key.n != right->key.n)
        return left->key.n < right->key.n ? -1 : 1;
    int order = left->key.n == 0 ? 0 : memcmp(left->key.p, right->key.p, left->key.n);
    return order != 0 ? order : (left > right) - (left < right);
}

static const struct fl_json_node *find_repeat_pairwise(const struct fl_json_node *object)
{
    const struct fl_json_node *a, *b;

    for (a = fl_json_first(object); a != NULL; a = fl_json_next(object, a)) {
        for (b = fl_json_next(object, a); b != NULL; b = fl_json_next(object, b)) {
            if (fl_bytes_eq(a->key, b->key))
                return b;
        }
    }
    return NULL;
}

int fl_json_find_repeat(const struct fl_json_node *object, const struct fl_json_node **repeat)
{
    *repeat = NULL;
    if (object->count < 2)
        return 0;
    if (object->count <= PAIRWISE_KEYS) {
        *repeat = find_repeat_pairwise(object);
        return 0;
    }

    const struct fl_json_node **sorted = fl_try_realloc(NULL, object->count, sizeof(const void *));
    if (sorted == NULL)
        return FL_ENOMEM;
    size_t n = 0;
    for (const struct fl_json_node *c = fl_json_first(object); c != NULL;
         c = fl_json_next(object, c))
        sorted[n++] = c;
    qsort(sorted, n, sizeof(const void *), compare_members);
    for (size_t i = 1; i < n && *repeat == NULL; i++) {
        if (fl_bytes_eq(sorted[i - 1]->key, sorted[i]->key))
            *repeat = sorted[i];
    }
    fl_free(sorted);
    return 0;
}
