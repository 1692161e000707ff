/* SPDX-License-Identifier: Apache-2.0 */
#include "extproc/mutation.h"

#include <string.h>

/* Names that no mutation touches: they belong to this hop, or are consumed. */
static bool is_ignored(struct fl_bytes name)
{
    return (name.n > 0 && name.p[0] == ':') || fl_http_is_hop_by_hop(name) ||
           fl_bytes_eq_nocase(name, FL_BYTES("content-length")) ||
           fl_bytes_eq_nocase(name, FL_BYTES("host")) ||
           fl_bytes_eq_nocase(name, FL_BYTES(FL_EXTPROC_DESTINATION));
}

static bool is_valid(const struct fl_extproc_set *set)
{
    return !set->is_dropped && fl_http_is_token(set->name) && fl_http_is_value(set->value);
}

bool fl_mutation_may_set(const struct fl_extproc_set *set)
{
    return !is_ignored(set->name) && is_valid(set);
}

void fl_mutated_init(struct fl_mutated *mutated, const struct fl_fields *original,
                     struct fl_arena *arena)
{
    *mutated = (struct fl_mutated){.fields = *original, .arena = arena};
}

static void own_table(struct fl_mutated *mutated)
{
    struct fl_fields copy = {0};

    if (mutated->is_changed)
        return;
    mutated->is_changed = true;
    for (uint32_t i = 0; i < mutated->fields.count; i++)
        fl_fields_add(&copy, mutated->arena, mutated->fields.items[i].name,
                      mutated->fields.items[i].value);
    mutated->fields = copy;
}

static int copy_bytes(struct fl_mutated *mutated, struct fl_bytes from, struct fl_bytes *to)
{
    if (from.n > FL_MUTATION_MAX_BYTES - mutated->copied_bytes)
        return FL_ELIMIT;
    mutated->copied_bytes += from.n;
    *to = fl_arena_copy(mutated->arena, from);
    return 0;
}

static int add_line(struct fl_mutated *mutated, const struct fl_extproc_set *set)
{
    struct fl_bytes name, value;

    if (mutated->fields.count >= FL_MUTATION_MAX_FIELDS)
        return FL_ELIMIT;
    int rc = copy_bytes(mutated, set->name, &name);
    if (rc == 0)
        rc = copy_bytes(mutated, set->value, &value);
    if (rc < 0)
        return rc;
    own_table(mutated);
    fl_fields_add(&mutated->fields, mutated->arena, name, value);
    return 0;
}

static uint32_t count_lines(const struct fl_fields *fields, struct fl_bytes name, uint32_t *first)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < fields->count; i++) {
        if (!fl_bytes_eq_nocase(fields->items[i].name, name))
            continue;
        if (count++ == 0)
            *first = i;
    }
    return count;
}

/* The first line gets the value where it stands, the others go. */
static int overwrite(struct fl_mutated *mutated, const struct fl_extproc_set *set, uint32_t first,
                     uint32_t count)
{
    struct fl_bytes value;

    if (count == 1 && fl_bytes_eq(mutated->fields.items[first].value, set->value))
        return 0;
    int rc = copy_bytes(mutated, set->value, &value);
    if (rc < 0)
        return rc;
    own_table(mutated);
    struct fl_fields *fields = &mutated->fields;
    fields->bytes += value.n - fields->items[first].value.n; /* wraps back when it shrinks */
    fields->items[first].value = value;
    uint32_t kept = first + 1;
    for (uint32_t i = first + 1; i < fields->count; i++) {
        if (fl_bytes_eq_nocase(fields->items[i].name, set->name))
            fields->bytes -= fields->items[i].name.n + fields->items[i].value.n + 32;
        else
            fields->items[kept++] = fields->items[i];
    }
    fields->count = kept;
    return 0;
}

enum effect { OVERWRITE, OVERWRITE_EXISTING, ADD_ABSENT, APPEND, NOTHING };

static enum effect effect_of(const struct fl_extproc_set *set)
{
    if (set->has_append && set->append)
        return APPEND;
    switch (set->action) {
    case FL_EXTPROC_APPEND_IF_EXISTS_OR_ADD: /* proto3 cannot tell 0 from unset: overwrite */
    case FL_EXTPROC_OVERWRITE_IF_EXISTS_OR_ADD:
        return OVERWRITE;
    case FL_EXTPROC_ADD_IF_ABSENT:
        return ADD_ABSENT;
    case FL_EXTPROC_OVERWRITE_IF_EXISTS:
        return OVERWRITE_EXISTING;
    default:
        return NOTHING;
    }
}

static int apply_set(struct fl_mutated *mutated, const struct fl_extproc_set *set)
{
    uint32_t first = 0;
    uint32_t count = count_lines(&mutated->fields, set->name, &first);

    switch (effect_of(set)) {
    case APPEND:
        return add_line(mutated, set);
    case OVERWRITE:
        return count > 0 ? overwrite(mutated, set, first, count) : add_line(mutated, set);
    case OVERWRITE_EXISTING:
        return count > 0 ? overwrite(mutated, set, first, count) : 0;
    case ADD_ABSENT:
        return count > 0 ? 0 : add_line(mutated, set);
    case NOTHING:
        mutated->dropped++;
        break;
    }
    return 0;
}

/* Pickers that hand every request header back name a repeated one as often as it stands there.
 * Taken literally the last line would replace all; it is an echo if the values are those there, in
 * order. */
static bool is_echo_of_lines(const struct fl_fields *fields,
                             const struct fl_extproc_mutation *mutation, struct fl_bytes name)
{
    uint32_t line = 0;

    for (uint32_t i = 0; i < mutation->set_count; i++) {
        const struct fl_extproc_set *set = &mutation->sets[i];
        if (!fl_bytes_eq_nocase(set->name, name))
            continue;
        while (line < fields->count && !fl_bytes_eq_nocase(fields->items[line].name, name))
            line++;
        if (line == fields->count || effect_of(set) != OVERWRITE ||
            !fl_bytes_eq(fields->items[line].value, set->value))
            return false;
        line++;
    }
    for (; line < fields->count; line++) {
        if (fl_bytes_eq_nocase(fields->items[line].name, name))
            return false;
    }
    return true;
}

int fl_mutated_apply(struct fl_mutated *mutated, const struct fl_extproc_mutation *mutation)
{
    for (uint32_t i = 0; i < mutation->remove_count; i++) {
        struct fl_bytes name = mutation->removes[i];
        if (is_ignored(name) || fl_fields_find(&mutated->fields, name) == NULL)
            continue;
        own_table(mutated);
        fl_fields_remove(&mutated->fields, name);
    }
    for (uint32_t i = 0; i < mutation->set_count; i++) {
        const struct fl_extproc_set *set = &mutation->sets[i];
        uint32_t first = 0;
        if (is_ignored(set->name))
            continue;
        if (!is_valid(set)) {
            mutated->dropped++;
            continue;
        }
        /* An empty value is not a removal: pickers have remove_headers for that. */
        if (set->value.n == 0 && !set->keep_empty)
            continue;
        if (count_lines(&mutated->fields, set->name, &first) > 1 &&
            is_echo_of_lines(&mutated->fields, mutation, set->name))
            continue;
        int rc = apply_set(mutated, set);
        if (rc < 0)
            return rc;
    }
    return 0;
}
