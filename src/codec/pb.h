/* SPDX-License-Identifier: Apache-2.0 */
/* Protobuf wire format: reading without copies, checking against a schema, writing back to front.
 *
 * Reading. A message is a view of bytes; fl_pb_next() walks its fields. Length-delimited fields
 * come as views of the input. Groups (wire types 3 and 4) are skipped inside and never shown. What
 * a field means is the caller's business: a known number with another wire type counts as unknown,
 * like in every protobuf runtime.
 *
 * Checking. fl_pb_check() walks a whole message by a table of rows before anyone looks at it, so
 * that malformed bytes deep inside a part nobody reads are refused all the same: UTF-8 of strings,
 * bounds, wire types, and a depth of at most FL_PB_MAX_DEPTH nested messages and groups.
 *
 * Merging. A singular message that occurs twice is merged, and merging is concatenation of the
 * encodings: fl_pb_gather() returns one view, copied into an arena only if there really are
 * several.
 *
 * Writing. Fields are put last to first, so that the length of a message is known when its head is
 * written: no size pass. A field whose bytes follow by reference (a body) is put with
 * fl_pb_put_gap(): the caller sends before-gap, the bytes themselves, after-gap.
 *
 *     memory:   [ free | head of message ][ suffix ]        sent: head, body slices, suffix
 *                      ^at               ^gap_at    ^end
 *
 * dependencies.md 4.1 has the rules. Pure; oracle: python3-protobuf. */
#ifndef FL_CODEC_PB_H
#define FL_CODEC_PB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/bytes.h"
#include "base/error.h"

/* Messages and groups inside the outermost message; the default of the C++, Java and Python
 * runtimes. */
#define FL_PB_MAX_DEPTH 100
#define FL_PB_MAX_FIELD_NUMBER 536870911u /* 2^29 - 1 */

enum fl_pb_wire { FL_PB_VARINT = 0, FL_PB_FIXED64 = 1, FL_PB_BYTES = 2, FL_PB_FIXED32 = 5 };

struct fl_pb_field {
    uint32_t number;
    uint8_t wire;          /* enum fl_pb_wire */
    uint64_t value;        /* varint, fixed32, fixed64 */
    struct fl_bytes bytes; /* FL_PB_BYTES: a view; p is never NULL */
};

/* A cursor. `depth` is that of the message it walks; the outermost one has 0. */
struct fl_pb_reader {
    const uint8_t *p, *end;
    unsigned depth;
};

void fl_pb_reader_init(struct fl_pb_reader *reader, struct fl_bytes message);
/* 1 and the next field; 0 at the end; FL_EPROTO (cut short, varint over 10 bytes or 2^64, field
 * number 0 or too large, wire type 6 or 7, group end without its start) or FL_EDEPTH. After an
 * error the cursor is at the end. */
int fl_pb_next(struct fl_pb_reader *reader, struct fl_pb_field *field);

/* One value of a repeated scalar: packed (FL_PB_BYTES) and unpacked forms alike. `left` starts as
 * the field's bytes for the packed form. 1, 0 at the end, FL_EPROTO. */
struct fl_pb_scalars {
    struct fl_bytes left;
    uint64_t single;
    uint8_t wire;
    bool has_single;
};
/* `wire` is that of one element: FL_PB_VARINT, FL_PB_FIXED32 or FL_PB_FIXED64. A field of a third
 * wire type has no values. */
void fl_pb_scalars_init(struct fl_pb_scalars *scalars, const struct fl_pb_field *field,
                        enum fl_pb_wire wire);
int fl_pb_scalars_next(struct fl_pb_scalars *scalars, uint64_t *value);

/* sint32, sint64. */
static inline int64_t fl_pb_zigzag(uint64_t value)
{
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

/* int32, enums: the low 32 bits, as every runtime takes them. */
static inline int32_t fl_pb_int32(uint64_t value)
{
    return (int32_t)(uint32_t)value;
}

double fl_pb_double(uint64_t value);

/* ---- schema ---- */

enum fl_pb_kind {
    FL_PB_KIND_VARINT,
    FL_PB_KIND_FIXED32,
    FL_PB_KIND_FIXED64,
    FL_PB_KIND_BYTES,
    FL_PB_KIND_STRING,
    FL_PB_KIND_MESSAGE
};

struct fl_pb_row {
    uint32_t number;
    uint8_t kind;                  /* enum fl_pb_kind */
    const char *name;              /* as in the .proto, for tests and logs */
    const struct fl_pb_type *type; /* of a message */
};

/* Rows by ascending number. Map entries are types {1 key, 2 value}. */
struct fl_pb_type {
    const char *name;
    const struct fl_pb_row *rows;
    size_t row_count;
};

/* 0, FL_EPROTO or FL_EDEPTH. Fields without a row are skipped. */
int fl_pb_check(struct fl_bytes message, const struct fl_pb_type *type);

/* ---- lookups in a message that fl_pb_check() has passed ---- */

/* The merged content of singular message field `number`: 1 and a view of the input, or of `arena`
 * if it occurs more than once; 0 if it does not occur; FL_ENOMEM beyond the arena's cap. */
int fl_pb_gather(struct fl_arena *arena, struct fl_bytes message, uint32_t number,
                 struct fl_bytes *content);

/* The member of a oneof that stands: the last one seen. Members are the rows of `type` whose number
 * is within [first, last]. 1 and `field` (a message member's bytes merged as above: occurrences
 * after the last other member), 0 if none, FL_ENOMEM. */
int fl_pb_gather_oneof(struct fl_arena *arena, struct fl_bytes message,
                       const struct fl_pb_type *type, uint32_t first, uint32_t last,
                       struct fl_pb_field *field);

/* Map field `number` with string keys and message values: the last entry with `key`. 1 and its
 * value (empty if the entry has none), 0 or FL_ENOMEM. */
int fl_pb_map_get(struct fl_arena *arena, struct fl_bytes message, uint32_t number,
                  struct fl_bytes key, struct fl_bytes *value);

/* ---- writing ---- */

struct fl_pb_writer {
    uint8_t *start, *at, *end; /* written: [at, end) */
    uint8_t *heap;             /* what to free, or NULL while the caller's memory suffices */
    size_t gap_bytes;          /* that are not here */
    size_t suffix_bytes;       /* written before the gap, so standing behind it */
    bool has_gap;
};

/* Uses the caller's memory (NULL, 0 allowed) first, then the heap. */
void fl_pb_writer_init(struct fl_pb_writer *writer, void *memory, size_t room);
/* Idempotent. */
void fl_pb_writer_fini(struct fl_pb_writer *writer);

/* Bytes of everything put so far, the gap included: the mark to hand to fl_pb_put_message(). */
size_t fl_pb_writer_size(const struct fl_pb_writer *writer);

void fl_pb_put_varint(struct fl_pb_writer *writer, uint32_t number, uint64_t value);
void fl_pb_put_bytes(struct fl_pb_writer *writer, uint32_t number, struct fl_bytes bytes);
/* The same with ASCII letters in lower case. */
void fl_pb_put_lower(struct fl_pb_writer *writer, uint32_t number, struct fl_bytes bytes);
void fl_pb_put_double(struct fl_pb_writer *writer, uint32_t number, double value);
/* Makes what was put since `mark` the content of message field `number`. */
void fl_pb_put_message(struct fl_pb_writer *writer, uint32_t number, size_t mark);
/* A bytes field of `n` bytes that are sent by reference; at most one in a writer. */
void fl_pb_put_gap(struct fl_pb_writer *writer, uint32_t number, size_t n);
/* Raw bytes before everything else (a frame's head). */
void fl_pb_put_raw(struct fl_pb_writer *writer, struct fl_bytes bytes);

/* What stands before the gap (everything without one), and behind it. Lent until the next put. */
struct fl_bytes fl_pb_writer_prefix(const struct fl_pb_writer *writer);
struct fl_bytes fl_pb_writer_suffix(const struct fl_pb_writer *writer);

#endif
