/* SPDX-License-Identifier: Apache-2.0 */
#include "http/message.h"

#include <stddef.h>

/* What a field costs beyond its bytes: RFC 9113 6.5.2. */
#define FIELD_OVERHEAD_BYTES 32
/* Room for the fields of a usual request, so that a list grows at most once or twice. */
#define FIRST_CAP 16

static size_t cost_of(const struct fl_field *field)
{
    return field->name.n + field->value.n + FIELD_OVERHEAD_BYTES;
}

static bool is_named(const struct fl_field *field, struct fl_bytes name)
{
    return field->name.n == name.n && fl_bytes_eq_nocase(field->name, name);
}

void fl_fields_add(struct fl_fields *fields, struct fl_arena *arena, struct fl_bytes name,
                   struct fl_bytes value)
{
    if (fields->count == fields->cap) {
        uint32_t cap = fields->cap == 0 ? FIRST_CAP : fields->cap * 2;
        struct fl_field *items = fl_arena_alloc(arena, (size_t)cap * sizeof(*items));
        if (fields->count > 0)
            memcpy(items, fields->items, fields->count * sizeof(*items));
        fields->items = items;
        fields->cap = cap;
    }
    struct fl_field *field = &fields->items[fields->count++];
    field->name = name;
    field->value = value;
    fields->bytes += cost_of(field);
}

void fl_fields_add_copy(struct fl_fields *fields, struct fl_arena *arena, struct fl_bytes name,
                        struct fl_bytes value)
{
    fl_fields_add(fields, arena, fl_arena_copy(arena, name), fl_arena_copy(arena, value));
}

const struct fl_field *fl_fields_find(const struct fl_fields *fields, struct fl_bytes name)
{
    for (uint32_t i = 0; i < fields->count; i++) {
        if (is_named(&fields->items[i], name))
            return &fields->items[i];
    }
    return NULL;
}

struct fl_bytes fl_fields_get(const struct fl_fields *fields, struct fl_bytes name)
{
    const struct fl_field *field = fl_fields_find(fields, name);
    return field == NULL ? (struct fl_bytes){NULL, 0} : field->value;
}

/* Keeps the fields for which `keep` holds, in order; returns how many went. */
static uint32_t filter(struct fl_fields *fields,
                       bool (*keep)(const struct fl_field *field, const void *ctx), const void *ctx)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < fields->count; i++) {
        if (keep(&fields->items[i], ctx))
            fields->items[kept++] = fields->items[i];
        else
            fields->bytes -= cost_of(&fields->items[i]);
    }
    uint32_t removed = fields->count - kept;
    fields->count = kept;
    return removed;
}

static bool is_named_otherwise(const struct fl_field *field, const void *ctx)
{
    return !is_named(field, *(const struct fl_bytes *)ctx);
}

uint32_t fl_fields_remove(struct fl_fields *fields, struct fl_bytes name)
{
    return filter(fields, is_named_otherwise, &name);
}

void fl_fields_set(struct fl_fields *fields, struct fl_arena *arena, struct fl_bytes name,
                   struct fl_bytes value)
{
    fl_fields_remove(fields, name);
    fl_fields_add(fields, arena, name, value);
}

bool fl_fields_has_token(const struct fl_fields *fields, struct fl_bytes name,
                         struct fl_bytes token)
{
    for (uint32_t i = 0; i < fields->count; i++) {
        if (!is_named(&fields->items[i], name))
            continue;
        struct fl_bytes rest = fields->items[i].value;
        struct fl_bytes item;
        while (fl_bytes_next(&rest, ',', &item)) {
            if (fl_bytes_eq_nocase(fl_bytes_trim(item), token))
                return true;
        }
    }
    return false;
}

static bool is_end_to_end(const struct fl_field *field, const void *ctx)
{
    (void)ctx;
    return !fl_http_is_hop_by_hop(field->name);
}

void fl_fields_strip_hop_by_hop(struct fl_fields *fields)
{
    /* The names are views of values, which stay where they are while the list shrinks; Connection
     * itself must outlive the walk, so what it lists goes first and the fixed names after it. */
    uint32_t i = 0;
    while (i < fields->count) {
        if (!is_named(&fields->items[i], FL_BYTES("connection"))) {
            i++;
            continue;
        }
        struct fl_bytes rest = fields->items[i].value;
        struct fl_bytes item;
        /* Taken off at once: removing other fields moves the list under the index. */
        fields->bytes -= cost_of(&fields->items[i]);
        fields->count--;
        memmove(&fields->items[i], &fields->items[i + 1],
                (fields->count - i) * sizeof(fields->items[0]));
        bool is_moved = false;
        while (fl_bytes_next(&rest, ',', &item)) {
            item = fl_bytes_trim(item);
            /* "Connection: connection" would take the other Connection lines unread. */
            if (item.n > 0 && !fl_bytes_eq_nocase(item, FL_BYTES("connection")))
                is_moved |= fl_fields_remove(fields, item) > 0;
        }
        if (is_moved)
            i = 0;
    }
    filter(fields, is_end_to_end, NULL);
}
