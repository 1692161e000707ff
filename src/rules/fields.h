/* SPDX-License-Identifier: Apache-2.0 */
/* The members of a rule and of an endpoint as tables: name, type, bounds, default and place in the
 * struct. Reading, comparing and writing follow from a row, so a new member is one new row.
 *
 * Private to rules/. */
#ifndef FL_RULES_FIELDS_H
#define FL_RULES_FIELDS_H

#include <stddef.h>

#include "rules/rule.h"

enum fl_field_type {
    FL_FIELD_STRING, /* struct fl_bytes; max: bytes, 0: checked elsewhere */
    FL_FIELD_INT,    /* uint64_t within min..max */
    FL_FIELD_BOOL,   /* bool */
    FL_FIELD_WORD,   /* uint64_t: index into words; "" is absent */
    FL_FIELD_RAW,    /* struct fl_bytes: JSON text of any scalar */
};

/* When a member is written (4.7). */
enum fl_field_emit { FL_EMIT_NOT_ZERO, FL_EMIT_ALWAYS, FL_EMIT_NOT_DEFAULT, FL_EMIT_NEVER };

/* Members that exist only together with another one. */
enum fl_field_group { FL_GROUP_RULE, FL_GROUP_EPP, FL_GROUP_PICKER };

struct fl_rule_field {
    const char *name;
    uint8_t type, emit, group;
    bool required;    /* absent: 422 code 602 */
    bool zero_counts; /* 0 is a value of its own although the default is not 0 */
    bool is_opaque;   /* says nothing about the rule: not compared */
    size_t off;
    uint64_t min, max, def;
    const char *const *words; /* NULL-terminated */
};

extern const struct fl_rule_field fl_rule_fields[], fl_rule_endpoint_fields[];

/* Fills `base` from `object`; `path` is "attr.serviceArguments". 0, or 422 in `answer`. Strings are
 * copied. */
int fl_fields_read(const struct fl_rule_field *rows, void *base, const struct fl_json_node *object,
                   const char *path, struct fl_arena *arena, struct fl_rest_answer *answer);
/* 4.1: a key of the epp or picker family that `rows` (NULL: none) do not know is 400. */
int fl_fields_check_unknown(const struct fl_rule_field *rows, const struct fl_json_node *object,
                            struct fl_rest_answer *answer);
/* Puts the defaults of a group's rows back. */
void fl_fields_reset(const struct fl_rule_field *rows, void *base, enum fl_field_group group);
/* First row of `group` whose value is not the default, or NULL. */
const struct fl_rule_field *fl_fields_first_set(const struct fl_rule_field *rows, const void *base,
                                                enum fl_field_group group);
bool fl_fields_eq(const struct fl_rule_field *rows, const void *a, const void *b);
/* Writes the members of `group`. */
void fl_fields_write(const struct fl_rule_field *rows, const void *base, enum fl_field_group group,
                     struct fl_json_writer *writer);

#endif
