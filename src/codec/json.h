/* SPDX-License-Identifier: Apache-2.0 */
/* JSON (RFC 8259): reading into an arena tree whose strings are views of the input, splicing,
 * writing.
 *
 * Reading. fl_json_parse() checks the whole text (UTF-8, escapes, depth, nothing but blanks after
 * the value) and builds nodes in one array: a container's children follow it, `skip` leads past
 * them.
 *
 *   {"a":[1,2],"b":"x"}   ->   OBJ | "a" ARR | 1 | 2 | "b" "x"
 *
 * Numbers keep their source text and are converted on demand, so 64-bit ids survive. Strings
 * without escapes are views of the input (which must outlive the doc); others are unescaped into
 * the arena. Duplicate keys: order is kept, the last wins in lookups, `has_duplicates` tells. Caps:
 * depth FL_JSON_MAX_DEPTH; the text's length is the caller's cap, at most FL_JSON_MAX_TEXT; nodes
 * cost 40 bytes each and their number is bounded by the text: one per two bytes at worst.
 *
 * Scanning (fl_json_scan_members): one pass over the top object without building anything, for
 * request bodies. Splicing (fl_json_splice_member): replace or insert one member of the top object
 * and keep every other byte.
 *
 * Pure; a doc belongs to one thread. Oracle: Python's json (tests/interop). */
#ifndef FL_CODEC_JSON_H
#define FL_CODEC_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "base/error.h"

#define FL_JSON_MAX_DEPTH 128 /* design.md section 8 */
/* So that counts of nodes fit their fields; every caller's own cap (32 MiB at most) is far below.
 */
#define FL_JSON_MAX_TEXT ((size_t)1 << 30)

enum fl_json_type {
    FL_JSON_NULL,
    FL_JSON_FALSE,
    FL_JSON_TRUE,
    FL_JSON_NUMBER,
    FL_JSON_STRING,
    FL_JSON_ARRAY,
    FL_JSON_OBJECT,
};

struct fl_json_node {
    struct fl_bytes
        text;            /* number: source text; string: unescaped value; containers: source text */
    struct fl_bytes key; /* of a member, unescaped; absent in arrays and at the top */
    uint32_t skip;       /* nodes from here to the next sibling */
    uint32_t count : 29; /* children of a container */
    uint32_t type : 3;   /* enum fl_json_type */
};

struct fl_json {
    struct fl_json_node *nodes;
    uint32_t node_count;
    bool has_duplicates; /* some object repeats a key */
    struct fl_arena arena;
};

/* Parses one value. `doc` is zeroed or was finished. 0; FL_EPROTO (malformed; `err` says what and
 * at which byte), FL_EDEPTH, FL_ELIMIT (too long), FL_ENOMEM; then the doc is empty. `text` is
 * borrowed until fl_json_fini(). */
int fl_json_parse(struct fl_json *doc, struct fl_bytes text, struct fl_error *err);
/* Idempotent; a zeroed doc is fine. */
void fl_json_fini(struct fl_json *doc);

const struct fl_json_node *fl_json_root(const struct fl_json *doc);

/* Member of an object by exact key, the last one wins; NULL if missing or `object` is none (NULL
 * allowed). */
const struct fl_json_node *fl_json_get(const struct fl_json_node *object, struct fl_bytes key);
/* ASCII-case-insensitive; an exact match wins if both occur (gateway.md section 3). */
const struct fl_json_node *fl_json_get_nocase(const struct fl_json_node *object,
                                              struct fl_bytes key);

/* Children in order: for (c = fl_json_first(n); c; c = fl_json_next(n, c)). */
const struct fl_json_node *fl_json_first(const struct fl_json_node *container);
const struct fl_json_node *fl_json_next(const struct fl_json_node *container,
                                        const struct fl_json_node *child);

/* Numbers. True only if the source text is an integer without fraction or exponent within range
 * (u64/i64), or any number (double: finite). */
bool fl_json_to_u64(const struct fl_json_node *node, uint64_t *value);
bool fl_json_to_i64(const struct fl_json_node *node, int64_t *value);
bool fl_json_to_double(const struct fl_json_node *node, double *value);

/* Convenience over an object: 0, FL_ENOT_FOUND, FL_ETYPE or FL_ERANGE; `err` names the key. */
int fl_json_get_u64(const struct fl_json_node *object, const char *key, uint64_t min, uint64_t max,
                    uint64_t *value, struct fl_error *err);
int fl_json_get_string(const struct fl_json_node *object, const char *key, struct fl_bytes *value,
                       struct fl_error *err);
int fl_json_get_bool(const struct fl_json_node *object, const char *key, bool *value,
                     struct fl_error *err);

/* Fast path of token arrays: parses `[1, 2, ...]` (an array node's text) of integers 0..4294967295
 * into `out` (room for `max`). Count, or FL_ETYPE / FL_ERANGE / FL_ELIMIT (more than max). */
int64_t fl_json_read_u32_array(struct fl_bytes array_text, uint32_t *out, size_t max);

/* ---- one pass over the top object ---- */

struct fl_json_member {
    struct fl_bytes key;   /* raw between the quotes, escapes not resolved */
    struct fl_bytes value; /* raw source text, blanks trimmed */
    uint8_t type;          /* enum fl_json_type of the value */
};

/* Calls on_member for each member of the top object, in order, while validating the whole text like
 * fl_json_parse(). A negative return of on_member stops and is returned. 0, FL_EPROTO, FL_EDEPTH,
 * FL_ETYPE (top value is no object). No allocation. */
int fl_json_scan_members(struct fl_bytes text,
                         int (*on_member)(void *owner, const struct fl_json_member *member),
                         void *owner);

/* Validates a whole text (any top value). 0, FL_EPROTO or FL_EDEPTH. No allocation. */
int fl_json_check(struct fl_bytes text);

/* True if `raw` (as in fl_json_member.key, valid JSON) spells `plain`, escapes resolved. */
bool fl_json_raw_eq(struct fl_bytes raw, struct fl_bytes plain);

/* Unescapes raw string content (between quotes) into `arena`; a view of `raw` if nothing is
 * escaped. FL_EPROTO on a bad escape, FL_ENOMEM beyond the arena's cap. */
int fl_json_unescape(struct fl_arena *arena, struct fl_bytes raw, struct fl_bytes *value);

/* Appends to `out` the text with top-level member `key` (plain ASCII) set to `value` (JSON text):
 * every occurrence of that key is replaced in place, or it is inserted as first member; every other
 * byte is kept. A value that is absent or no JSON is refused. 0, FL_EPROTO, FL_EDEPTH, FL_ETYPE (no
 * object), or the buffer's error; a failure appends nothing. */
int fl_json_splice_member(struct fl_buf *out, struct fl_bytes text, struct fl_bytes key,
                          struct fl_bytes value);

/* ---- writing ---- */

/* Commas and quotes are placed by the writer; the caller opens and closes. The first error of the
 * buffer sticks and is returned by fl_json_writer_end(). */
struct fl_json_writer {
    struct fl_buf *out;
    int rc;
    uint8_t depth;
    bool comma;     /* a value stands before the next one */
    bool after_key; /* the next value belongs to a key */
};

void fl_json_writer_init(struct fl_json_writer *writer, struct fl_buf *out);
void fl_json_write_object(struct fl_json_writer *writer);
void fl_json_write_object_end(struct fl_json_writer *writer);
void fl_json_write_array(struct fl_json_writer *writer);
void fl_json_write_array_end(struct fl_json_writer *writer);
void fl_json_write_key(struct fl_json_writer *writer, const char *key);
void fl_json_write_key_bytes(struct fl_json_writer *writer, struct fl_bytes key);
/* Invalid UTF-8 is written as U+FFFD. */
void fl_json_write_string(struct fl_json_writer *writer, struct fl_bytes value);
void fl_json_write_cstr(struct fl_json_writer *writer, const char *value);
void fl_json_write_u64(struct fl_json_writer *writer, uint64_t value);
void fl_json_write_i64(struct fl_json_writer *writer, int64_t value);
/* Shortest text that reads back equal; NaN and infinities as null. */
void fl_json_write_double(struct fl_json_writer *writer, double value);
void fl_json_write_bool(struct fl_json_writer *writer, bool value);
void fl_json_write_null(struct fl_json_writer *writer);
/* JSON text, unchecked. */
void fl_json_write_raw(struct fl_json_writer *writer, struct fl_bytes text);
/* 0 or the first error. Asserts that everything opened was closed. */
int fl_json_writer_end(struct fl_json_writer *writer);

#endif
