/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/yaml.h"

#include <string.h>
#include <yaml.h>

#include "base/alloc.h"
#include "codec/json_build.h"
#include "codec/json_scan.h"

struct place {
    uint32_t line, column; /* from 0, as libyaml counts */
};

struct composer {
    struct fl_json_builder builder;
    struct fl_error *err;
    struct place *places; /* of each node's key, or of the node itself */
    uint32_t place_room;
    struct place key_place;
    bool is_key_next[FL_JSON_MAX_DEPTH]; /* by depth: an object expects a key */
    uint32_t counted;                    /* nodes and keys */
    bool is_stream;                      /* documents are children of one array */
    uint32_t documents;
};

static struct place place_of(yaml_mark_t mark)
{
    return (struct place){(uint32_t)mark.line, (uint32_t)mark.column};
}

static int refuse(struct composer *c, int code, struct place at, const char *why)
{
    return fl_error_set(c->err, code, "YAML: line %u, column %u: %s", at.line + 1, at.column + 1,
                        why);
}

static int out_of_memory(struct composer *c)
{
    return fl_error_set(c->err, FL_ENOMEM, "YAML: out of memory");
}

/* Counts one node or key against the limit. */
static int count_one(struct composer *c, struct place at)
{
    if (c->counted == FL_YAML_MAX_NODES)
        return refuse(c, FL_ELIMIT, at, "too many nodes, at most 500000");
    c->counted++;
    return 0;
}

/* Notes where the node that was just added stands. */
static int note_place(struct composer *c, struct place at)
{
    if (c->place_room < c->builder.room) {
        struct place *places = fl_try_realloc(c->places, c->builder.room, sizeof(*places));
        if (places == NULL)
            return out_of_memory(c);
        c->places = places;
        c->place_room = c->builder.room;
    }
    bool has_key = !fl_bytes_is_absent(c->builder.doc->nodes[c->builder.doc->node_count - 1].key);
    c->places[c->builder.doc->node_count - 1] = has_key ? c->key_place : at;
    return 0;
}

static bool is_in_object(const struct composer *c)
{
    uint32_t depth = c->builder.depth;

    return depth > 0 && c->builder.doc->nodes[c->builder.open[depth - 1]].type == FL_JSON_OBJECT;
}

/* True if the next node is a key; what follows it is then a value, and the other way round. */
static bool take_turn(struct composer *c)
{
    if (!is_in_object(c))
        return false;
    bool *is_key = &c->is_key_next[c->builder.depth - 1];
    bool was_key = *is_key;
    *is_key = !was_key;
    return was_key;
}

static bool is_one_of(struct fl_bytes text, const char *const *words)
{
    for (; *words != NULL; words++) {
        if (fl_bytes_eq(text, fl_bytes_of(*words)))
            return true;
    }
    return false;
}

/* dependencies.md 3.5 */
static enum fl_json_type plain_type(struct fl_bytes text)
{
    static const char *const nulls[] = {"null", "Null", "NULL", "~", "", NULL};
    static const char *const trues[] = {"true", "True", "TRUE", NULL};
    static const char *const falses[] = {"false", "False", "FALSE", NULL};

    if (is_one_of(text, nulls))
        return FL_JSON_NULL;
    if (is_one_of(text, trues))
        return FL_JSON_TRUE;
    if (is_one_of(text, falses))
        return FL_JSON_FALSE;
    const uint8_t *end = text.p + text.n;
    if ((text.p[0] == '-' || fl_json_is_digit(text.p[0])) &&
        fl_json_scan_number(text.p, end) == end)
        return FL_JSON_NUMBER;
    return FL_JSON_STRING;
}

static int copy_text(struct composer *c, struct fl_bytes text, struct fl_bytes *copy)
{
    /* An empty key is present, not absent. */
    uint8_t *p = fl_arena_try_alloc(&c->builder.doc->arena, text.n > 0 ? text.n : 1);

    if (p == NULL)
        return out_of_memory(c);
    if (text.n > 0)
        memcpy(p, text.p, text.n);
    *copy = (struct fl_bytes){p, text.n};
    return 0;
}

static int on_scalar(struct composer *c, const yaml_event_t *event, struct place at)
{
    struct fl_bytes text = {event->data.scalar.value, event->data.scalar.length};
    bool is_plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;

    if (event->data.scalar.anchor != NULL)
        return refuse(c, FL_EPROTO, at, "anchors are not allowed");
    if (event->data.scalar.tag != NULL)
        return refuse(c, FL_EPROTO, at, "tags are not allowed");
    int rc = count_one(c, at);
    if (rc < 0)
        return rc;
    if (take_turn(c)) {
        if (is_plain && fl_bytes_eq(text, FL_BYTES("<<")))
            return refuse(c, FL_EPROTO, at, "merge keys are not allowed");
        c->key_place = at;
        return copy_text(c, text, &c->builder.key);
    }
    struct fl_json_node *node =
        fl_json_builder_add(&c->builder, is_plain ? plain_type(text) : FL_JSON_STRING);
    if (node == NULL)
        return out_of_memory(c);
    rc = copy_text(c, text, &node->text);
    return rc < 0 ? rc : note_place(c, at);
}

static int on_open(struct composer *c, enum fl_json_type type, const yaml_char_t *anchor,
                   const yaml_char_t *tag, struct place at)
{
    uint32_t depth = c->builder.depth - (c->is_stream ? 1 : 0);

    if (anchor != NULL)
        return refuse(c, FL_EPROTO, at, "anchors are not allowed");
    if (tag != NULL)
        return refuse(c, FL_EPROTO, at, "tags are not allowed");
    if (depth == FL_YAML_MAX_DEPTH)
        return refuse(c, FL_EDEPTH, at, "nesting too deep, at most 64");
    int rc = count_one(c, at);
    if (rc < 0)
        return rc;
    if (take_turn(c))
        return refuse(c, FL_EPROTO, at, "a key must be a scalar");
    if (fl_json_builder_open(&c->builder, type) == NULL)
        return out_of_memory(c);
    c->is_key_next[c->builder.depth - 1] = type == FL_JSON_OBJECT;
    return note_place(c, at);
}

static int on_close(struct composer *c)
{
    const struct fl_json_node *node = fl_json_builder_close(&c->builder);
    const struct fl_json_node *repeat;

    if (node->type != FL_JSON_OBJECT)
        return 0;
    if (fl_json_find_repeat(node, &repeat) < 0)
        return out_of_memory(c);
    if (repeat == NULL)
        return 0;
    struct place at = c->places[repeat - c->builder.doc->nodes];
    return fl_error_set(c->err, FL_EPROTO, "YAML: line %u, column %u: key %.*s occurs twice",
                        at.line + 1, at.column + 1, FL_FMT(fl_bytes_head(repeat->key, 80)));
}

static int on_document(struct composer *c, struct place at)
{
    if (c->documents++ > 0 && !c->is_stream)
        return refuse(c, FL_EPROTO, at, "only one document is allowed");
    return 0;
}

static int on_event(struct composer *c, const yaml_event_t *event)
{
    struct place at = place_of(event->start_mark);

    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        return on_document(c, at);
    case YAML_SCALAR_EVENT:
        return on_scalar(c, event, at);
    case YAML_SEQUENCE_START_EVENT:
        return on_open(c, FL_JSON_ARRAY, event->data.sequence_start.anchor,
                       event->data.sequence_start.tag, at);
    case YAML_MAPPING_START_EVENT:
        return on_open(c, FL_JSON_OBJECT, event->data.mapping_start.anchor,
                       event->data.mapping_start.tag, at);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return on_close(c);
    case YAML_ALIAS_EVENT:
        return refuse(c, FL_EPROTO, at, "aliases are not allowed");
    case YAML_NO_EVENT:
    case YAML_STREAM_START_EVENT:
    case YAML_STREAM_END_EVENT:
    case YAML_DOCUMENT_END_EVENT:
        break;
    }
    return 0;
}

/* libyaml says what it did not like. */
static int syntax_error(struct composer *c, const yaml_parser_t *parser)
{
    const char *problem = parser->problem != NULL ? parser->problem : "malformed";

    if (parser->error == YAML_MEMORY_ERROR)
        return out_of_memory(c);
    /* The reader fails in front of where the scanner stands and knows only the byte. */
    if (parser->error == YAML_READER_ERROR)
        return fl_error_set(c->err, FL_EPROTO, "YAML: line %zu or later, byte %zu: %s",
                            parser->mark.line + 1, parser->problem_offset, problem);
    return refuse(c, FL_EPROTO, place_of(parser->problem_mark), problem);
}

static int compose(struct composer *c, yaml_parser_t *parser)
{
    for (;;) {
        yaml_event_t event;
        if (!yaml_parser_parse(parser, &event))
            return syntax_error(c, parser);
        int rc = on_event(c, &event);
        bool is_end = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
        if (rc < 0 || is_end)
            return rc;
    }
}

static int parse(struct fl_json *doc, struct fl_bytes text, bool is_stream, struct fl_error *err)
{
    struct composer c = {.builder.doc = doc, .err = err, .is_stream = is_stream};
    yaml_parser_t parser;
    int rc = 0;

    if (text.n > FL_YAML_MAX_BYTES)
        return fl_error_set(err, FL_ELIMIT, "YAML: %zu bytes, at most %zu", text.n,
                            FL_YAML_MAX_BYTES);
    if (!yaml_parser_initialize(&parser))
        return out_of_memory(&c);
    /* Only what the rest of the program can use; UTF-16 would be guessed from the first bytes. */
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, text.n > 0 ? text.p : (const uint8_t *)"", text.n);
    if (is_stream && fl_json_builder_open(&c.builder, FL_JSON_ARRAY) == NULL)
        rc = out_of_memory(&c);
    if (rc == 0)
        rc = compose(&c, &parser);
    if (rc == 0 && is_stream)
        fl_json_builder_close(&c.builder);
    else if (rc == 0 && doc->node_count == 0 &&
             fl_json_builder_add(&c.builder, FL_JSON_NULL) == NULL)
        rc = out_of_memory(&c);
    yaml_parser_delete(&parser);
    fl_free(c.places);
    if (rc < 0)
        fl_json_fini(doc);
    return rc;
}

int fl_yaml_parse(struct fl_json *doc, struct fl_bytes text, struct fl_error *err)
{
    return parse(doc, text, false, err);
}

int fl_yaml_parse_stream(struct fl_json *doc, struct fl_bytes text, struct fl_error *err)
{
    return parse(doc, text, true, err);
}
