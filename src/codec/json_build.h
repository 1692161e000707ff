/* SPDX-License-Identifier: Apache-2.0 */
/* Building the node array of struct fl_json in document order (private to codec/): JSON text and
 * YAML events become the same tree. */
#ifndef FL_CODEC_JSON_BUILD_H
#define FL_CODEC_JSON_BUILD_H

#include "codec/json.h"

struct fl_json_builder {
    struct fl_json *doc;
    uint32_t room;       /* nodes allocated */
    struct fl_bytes key; /* of the node to come; absent in arrays and at the top */
    uint32_t depth;      /* open containers, at most FL_JSON_MAX_DEPTH */
    uint32_t open[FL_JSON_MAX_DEPTH];
    uint32_t children[FL_JSON_MAX_DEPTH];
};

/* A new last node, child of the innermost open container, which takes the key; NULL without memory.
 * Lent until the next one. */
struct fl_json_node *fl_json_builder_add(struct fl_json_builder *builder, enum fl_json_type type);
/* The same, and what follows is inside it. */
struct fl_json_node *fl_json_builder_open(struct fl_json_builder *builder, enum fl_json_type type);
/* Ends the innermost container and returns it. */
struct fl_json_node *fl_json_builder_close(struct fl_json_builder *builder);

/* Finds a member whose key an earlier member has: *repeat is that member or NULL. 0 or FL_ENOMEM.
 */
int fl_json_find_repeat(const struct fl_json_node *object, const struct fl_json_node **repeat);

#endif
