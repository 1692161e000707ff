/* SPDX-License-Identifier: Apache-2.0 */
/* YAML: any text is read or refused with a sentence; a tree keeps the limits and its shape. */
#include <assert.h>
#include <stdint.h>

#include "codec/yaml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Walks the subtree; returns the nodes in it. */
static uint32_t walk(const struct fl_json_node *node, uint32_t depth)
{
    uint32_t nodes = 1, children = 0;
    uint64_t u;
    double d;

    assert(depth <= FL_YAML_MAX_DEPTH + 1);
    if (node->type == FL_JSON_NUMBER && fl_json_to_u64(node, &u))
        assert(fl_json_to_double(node, &d));
    if (node->type == FL_JSON_ARRAY || node->type == FL_JSON_OBJECT) {
        for (const struct fl_json_node *c = fl_json_first(node); c != NULL;
             c = fl_json_next(node, c)) {
            assert(fl_bytes_is_absent(c->key) == (node->type == FL_JSON_ARRAY));
            nodes += walk(c, depth + 1);
            children++;
        }
    } else {
        assert(!fl_bytes_is_absent(node->text) || node->type == FL_JSON_NULL);
    }
    assert(children == node->count && nodes == node->skip);
    return nodes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fl_bytes text = {data, size};
    struct fl_json one = {0}, all = {0};
    struct fl_error err = {0};

    int rc = fl_yaml_parse(&one, text, &err);
    if (rc < 0)
        assert(err.code == rc && err.text[0] != '\0' && fl_json_root(&one) == NULL);
    else
        assert(walk(fl_json_root(&one), 1) == one.node_count);
    int rc_all = fl_yaml_parse_stream(&all, text, &err);
    if (rc == 0)
        assert(rc_all == 0 && fl_json_root(&all)->count <= 1);
    if (rc_all == 0)
        assert(walk(fl_json_root(&all), 0) == all.node_count);
    fl_json_fini(&one);
    fl_json_fini(&all);
    return 0;
}
