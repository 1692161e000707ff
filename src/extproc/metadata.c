/* SPDX-License-Identifier: Apache-2.0 */
/* The values we know inside metadata: looked up in wire form, which fl_pb_check() has passed. */
#include <string.h>

#include "codec/pb.h"
#include "extproc/message.h"
#include "extproc/schema.h"

#define METADATA_FILTER 1 /* Metadata.filter_metadata: map<string, Struct> */
#define STRUCT_FIELDS 1   /* Struct.fields: map<string, Value> */
#define LIST_VALUES 1     /* ListValue.values */

#define NAMESPACE_SUBSET FL_BYTES("envoy.lb.subset_hint")
#define NAMESPACE_LB FL_BYTES("envoy.lb")

/* The member of a Value that stands; 0 also for a Value without any. */
static int read_value(struct fl_arena *arena, struct fl_bytes value, struct fl_pb_field *member)
{
    return fl_pb_gather_oneof(arena, value, &fl_extproc_value_type, VALUE_NULL, VALUE_LIST, member);
}

/* fields[key] of a Struct: 1, 0 or an error. A key whose Value has no member is there, as number 0.
 */
static int struct_get(struct fl_arena *arena, struct fl_bytes fields, struct fl_bytes key,
                      struct fl_pb_field *member)
{
    struct fl_bytes value;

    *member = (struct fl_pb_field){0};
    int rc = fl_pb_map_get(arena, fields, STRUCT_FIELDS, key, &value);
    if (rc <= 0)
        return rc;
    rc = read_value(arena, value, member);
    return rc < 0 ? rc : 1;
}

/* filter_metadata[space][key]. */
static int metadata_get(struct fl_arena *arena, struct fl_bytes metadata, struct fl_bytes space,
                        struct fl_bytes key, struct fl_pb_field *member)
{
    struct fl_bytes fields;

    int rc = fl_pb_map_get(arena, metadata, METADATA_FILTER, space, &fields);
    return rc <= 0 ? rc : struct_get(arena, fields, key, member);
}

/* Calls `on_text` for each string of a list value; other members are ignored (gaie.md 2.1). */
static int each_string(struct fl_arena *arena, struct fl_bytes list,
                       int (*on_text)(void *owner, struct fl_bytes text), void *owner)
{
    struct fl_pb_reader reader;
    struct fl_pb_field field, member;
    int rc;

    fl_pb_reader_init(&reader, list);
    while ((rc = fl_pb_next(&reader, &field)) > 0) {
        if (field.number != LIST_VALUES || field.wire != FL_PB_BYTES)
            continue;
        rc = read_value(arena, field.bytes, &member);
        if (rc > 0 && member.number == VALUE_STRING)
            rc = on_text(owner, member.bytes);
        if (rc < 0)
            return rc;
    }
    return rc;
}

struct subset_build {
    struct fl_extproc_subset *subset;
    struct fl_arena *arena;
    uint32_t cap;
};

/* One string of the hint: itself a comma list in some peers. */
static int add_items(void *owner, struct fl_bytes text)
{
    struct subset_build *build = owner;
    struct fl_extproc_subset *subset = build->subset;
    struct fl_bytes item;

    while (fl_bytes_next(&text, ',', &item)) {
        item = fl_bytes_trim(item);
        if (item.n == 0)
            continue;
        if (subset->count >= FL_EXTPROC_MAX_SUBSET)
            return FL_ELIMIT;
        if (subset->count == build->cap) {
            build->cap = build->cap == 0 ? 16 : 2 * build->cap;
            struct fl_bytes *items = fl_arena_alloc(build->arena, build->cap * sizeof(*items));
            if (subset->count > 0)
                memcpy(items, subset->items, subset->count * sizeof(*items));
            subset->items = items;
        }
        subset->items[subset->count++] = item;
    }
    return 0;
}

int fl_extproc_read_subset(struct fl_bytes metadata, struct fl_arena *arena,
                           struct fl_extproc_subset *subset)
{
    struct subset_build build = {.subset = subset, .arena = arena};
    struct fl_pb_field member;

    *subset = (struct fl_extproc_subset){0};
    int rc = metadata_get(arena, metadata, NAMESPACE_SUBSET, FL_BYTES(FL_EXTPROC_SUBSET), &member);
    if (rc <= 0)
        return rc;
    subset->is_present = true;
    switch (member.number) {
    case VALUE_STRING:
        return add_items(&build, member.bytes);
    case VALUE_LIST:
        return each_string(arena, member.bytes, add_items, &build);
    default:
        subset->is_wrong_type = true;
        return 0;
    }
}

static int keep_last_item(void *owner, struct fl_bytes text)
{
    struct fl_bytes *last = owner;
    struct fl_bytes item;

    while (fl_bytes_next(&text, ',', &item)) {
        item = fl_bytes_trim(item);
        if (item.n > 0)
            *last = item;
    }
    return 0;
}

static int keep_last_string(void *owner, struct fl_bytes text)
{
    struct fl_bytes *last = owner;
    text = fl_bytes_trim(text);
    if (text.n > 0)
        *last = text;
    return 0;
}

int fl_extproc_read_served(struct fl_bytes metadata, struct fl_arena *arena,
                           struct fl_bytes *endpoint)
{
    struct fl_pb_field member;

    *endpoint = (struct fl_bytes){0};
    int rc = metadata_get(arena, metadata, NAMESPACE_LB, FL_BYTES(FL_EXTPROC_SERVED), &member);
    if (rc <= 0)
        return rc;
    if (member.number == VALUE_STRING)
        return keep_last_item(endpoint, member.bytes);
    if (member.number == VALUE_LIST)
        return each_string(arena, member.bytes, keep_last_string, endpoint);
    return 0;
}

int fl_extproc_read_destination(struct fl_bytes dynamic_metadata, struct fl_arena *arena,
                                struct fl_bytes *destination)
{
    struct fl_pb_field member, inner;

    *destination = (struct fl_bytes){0};
    int rc = struct_get(arena, dynamic_metadata, NAMESPACE_LB, &member);
    if (rc <= 0 || member.number != VALUE_STRUCT)
        return rc < 0 ? rc : 0;
    rc = struct_get(arena, member.bytes, FL_BYTES(FL_EXTPROC_DESTINATION), &inner);
    if (rc > 0 && inner.number == VALUE_STRING)
        *destination = inner.bytes;
    return rc < 0 ? rc : 0;
}
