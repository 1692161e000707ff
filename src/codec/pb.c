/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/pb.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"

#define WIRE_GROUP 3
#define WIRE_GROUP_END 4
#define VARINT_MAX_BYTES 10

/* ---- reading ---- */

void fl_pb_reader_init(struct fl_pb_reader *reader, struct fl_bytes message)
{
    /* An absent message is an empty one; arithmetic on NULL is avoided. */
    static const uint8_t nothing[1];
    reader->p = message.p != NULL ? message.p : nothing;
    reader->end = reader->p + message.n;
    reader->depth = 0;
}

static int read_varint(struct fl_pb_reader *reader, uint64_t *value)
{
    const uint8_t *p = reader->p;
    uint64_t result = 0;

    if (p < reader->end && *p < 0x80) { /* tags, lengths, flags: nearly always */
        *value = *p;
        reader->p = p + 1;
        return 0;
    }
    for (unsigned i = 0; i < VARINT_MAX_BYTES && p < reader->end; i++) {
        uint8_t byte = *p++;
        /* The tenth byte has room for bit 63 alone. */
        if (i == VARINT_MAX_BYTES - 1 && byte > 1)
            return FL_EPROTO;
        result |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            *value = result;
            reader->p = p;
            return 0;
        }
    }
    return FL_EPROTO;
}

static int read_fixed(struct fl_pb_reader *reader, unsigned n, uint64_t *value)
{
    uint64_t result = 0;

    if ((size_t)(reader->end - reader->p) < n)
        return FL_EPROTO;
    for (unsigned i = 0; i < n; i++)
        result |= (uint64_t)reader->p[i] << (8 * i);
    reader->p += n;
    *value = result;
    return 0;
}

static int read_bytes(struct fl_pb_reader *reader, struct fl_bytes *bytes)
{
    uint64_t n;

    int rc = read_varint(reader, &n);
    if (rc < 0)
        return rc;
    if (n > (uint64_t)(reader->end - reader->p))
        return FL_EPROTO;
    *bytes = fl_bytes(reader->p, (size_t)n);
    reader->p += n;
    return 0;
}

static int read_tag(struct fl_pb_reader *reader, uint32_t *number, uint8_t *wire)
{
    uint64_t tag;

    int rc = read_varint(reader, &tag);
    if (rc < 0)
        return rc;
    if (tag >> 3 == 0 || tag >> 3 > FL_PB_MAX_FIELD_NUMBER)
        return FL_EPROTO;
    *number = (uint32_t)(tag >> 3);
    *wire = (uint8_t)(tag & 7);
    return 0;
}

static int read_value(struct fl_pb_reader *reader, struct fl_pb_field *field)
{
    switch (field->wire) {
    case FL_PB_VARINT:
        return read_varint(reader, &field->value);
    case FL_PB_FIXED64:
        return read_fixed(reader, 8, &field->value);
    case FL_PB_FIXED32:
        return read_fixed(reader, 4, &field->value);
    case FL_PB_BYTES:
        return read_bytes(reader, &field->bytes);
    default:
        return FL_EPROTO;
    }
}

/* Behind the start of group `number`: walks to its end. Groups nest, each must end with its own
 * number, and the depth is bounded, so the open numbers fit into an array. */
static int skip_group(struct fl_pb_reader *reader, uint32_t number)
{
    uint32_t open[FL_PB_MAX_DEPTH + 1];
    unsigned count = 0;

    if (reader->depth >= FL_PB_MAX_DEPTH)
        return FL_EDEPTH;
    open[count++] = number;
    while (count > 0) {
        struct fl_pb_field field = {0};

        int rc = read_tag(reader, &field.number, &field.wire);
        if (rc < 0)
            return rc;
        if (field.wire == WIRE_GROUP) {
            if (reader->depth + count >= FL_PB_MAX_DEPTH)
                return FL_EDEPTH;
            open[count++] = field.number;
        } else if (field.wire == WIRE_GROUP_END) {
            if (open[--count] != field.number)
                return FL_EPROTO;
        } else {
            rc = read_value(reader, &field);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

int fl_pb_next(struct fl_pb_reader *reader, struct fl_pb_field *field)
{
    int rc = 0;

    while (reader->p < reader->end) {
        *field = (struct fl_pb_field){0};
        rc = read_tag(reader, &field->number, &field->wire);
        if (rc < 0)
            break;
        if (field->wire == WIRE_GROUP) {
            rc = skip_group(reader, field->number);
            if (rc < 0)
                break;
            continue;
        }
        rc = read_value(reader, field);
        if (rc < 0)
            break;
        return 1;
    }
    reader->p = reader->end;
    return rc;
}

void fl_pb_scalars_init(struct fl_pb_scalars *scalars, const struct fl_pb_field *field,
                        enum fl_pb_wire wire)
{
    *scalars = (struct fl_pb_scalars){.wire = (uint8_t)wire};
    if (field->wire == FL_PB_BYTES) {
        scalars->left = field->bytes;
    } else if (field->wire == wire) {
        scalars->has_single = true;
        scalars->single = field->value;
    }
}

int fl_pb_scalars_next(struct fl_pb_scalars *scalars, uint64_t *value)
{
    struct fl_pb_reader reader;
    struct fl_pb_field field = {.wire = scalars->wire};

    if (scalars->has_single) {
        scalars->has_single = false;
        *value = scalars->single;
        return 1;
    }
    if (scalars->left.n == 0)
        return 0;
    fl_pb_reader_init(&reader, scalars->left);
    int rc = read_value(&reader, &field);
    scalars->left = fl_bytes(reader.p, (size_t)(reader.end - reader.p));
    if (rc < 0) {
        scalars->left = (struct fl_bytes){0};
        return rc;
    }
    *value = field.value;
    return 1;
}

double fl_pb_double(uint64_t value)
{
    double result;
    static_assert(sizeof(result) == sizeof(value), "IEEE 754 binary64");
    memcpy(&result, &value, sizeof(result));
    return result;
}

/* ---- schema ---- */

static uint8_t wire_of(uint8_t kind)
{
    switch ((enum fl_pb_kind)kind) {
    case FL_PB_KIND_VARINT:
        return FL_PB_VARINT;
    case FL_PB_KIND_FIXED32:
        return FL_PB_FIXED32;
    case FL_PB_KIND_FIXED64:
        return FL_PB_FIXED64;
    case FL_PB_KIND_BYTES:
    case FL_PB_KIND_STRING:
    case FL_PB_KIND_MESSAGE:
        break;
    }
    return FL_PB_BYTES;
}

/* NULL if unknown, which a known number with another wire type is too. Types have at most a dozen
 * rows: a scan. */
static const struct fl_pb_row *row_of(const struct fl_pb_type *type,
                                      const struct fl_pb_field *field)
{
    for (size_t i = 0; i < type->row_count; i++) {
        if (type->rows[i].number == field->number)
            return wire_of(type->rows[i].kind) == field->wire ? &type->rows[i] : NULL;
    }
    return NULL;
}

/* Recursion is bounded by FL_PB_MAX_DEPTH frames of about 100 bytes. */
static int check_at(struct fl_bytes message, const struct fl_pb_type *type, unsigned depth)
{
    struct fl_pb_reader reader;
    struct fl_pb_field field;
    int rc;

    if (depth > FL_PB_MAX_DEPTH)
        return FL_EDEPTH;
    fl_pb_reader_init(&reader, message);
    reader.depth = depth;
    while ((rc = fl_pb_next(&reader, &field)) > 0) {
        const struct fl_pb_row *row = row_of(type, &field);
        if (row == NULL)
            continue;
        if (row->kind == FL_PB_KIND_STRING && !fl_bytes_is_utf8(field.bytes))
            return FL_EPROTO;
        if (row->kind == FL_PB_KIND_MESSAGE) {
            rc = check_at(field.bytes, row->type, depth + 1);
            if (rc < 0)
                return rc;
        }
    }
    return rc;
}

int fl_pb_check(struct fl_bytes message, const struct fl_pb_type *type)
{
    return check_at(message, type, 0);
}

/* ---- lookups ---- */

/* Concatenates occurrences of bytes field `number` from `from` on, `n` bytes in all. */
static int concatenate(struct fl_arena *arena, struct fl_bytes from, uint32_t number, size_t n,
                       struct fl_bytes *content)
{
    struct fl_pb_reader reader;
    struct fl_pb_field field;
    size_t at = 0;

    uint8_t *copy = fl_arena_try_alloc(arena, n > 0 ? n : 1);
    if (copy == NULL)
        return FL_ENOMEM;
    fl_pb_reader_init(&reader, from);
    while (fl_pb_next(&reader, &field) > 0) {
        if (field.number != number || field.wire != FL_PB_BYTES)
            continue;
        assert(field.bytes.n <= n - at);
        memcpy(copy + at, field.bytes.p, field.bytes.n);
        at += field.bytes.n;
    }
    *content = fl_bytes(copy, at);
    return 1;
}

int fl_pb_gather(struct fl_arena *arena, struct fl_bytes message, uint32_t number,
                 struct fl_bytes *content)
{
    struct fl_pb_reader reader;
    struct fl_pb_field field;
    size_t count = 0, total = 0;
    int rc;

    fl_pb_reader_init(&reader, message);
    while ((rc = fl_pb_next(&reader, &field)) > 0) {
        if (field.number != number || field.wire != FL_PB_BYTES)
            continue;
        *content = field.bytes;
        total += field.bytes.n;
        count++;
    }
    if (rc < 0)
        return rc;
    if (count <= 1)
        return (int)count;
    /* Two passes, so that a message of a million empty occurrences costs a million steps. */
    return concatenate(arena, message, number, total, content);
}

int fl_pb_gather_oneof(struct fl_arena *arena, struct fl_bytes message,
                       const struct fl_pb_type *type, uint32_t first, uint32_t last,
                       struct fl_pb_field *field)
{
    struct fl_pb_reader reader;
    struct fl_pb_field seen;
    const struct fl_pb_row *standing = NULL;
    const uint8_t *run_start = NULL; /* where the run of the standing member begins */
    size_t count = 0, total = 0;
    int rc;

    fl_pb_reader_init(&reader, message);
    for (;;) {
        const uint8_t *at = reader.p;
        rc = fl_pb_next(&reader, &seen);
        if (rc <= 0)
            break;
        const struct fl_pb_row *row = row_of(type, &seen);
        if (row == NULL || row->number < first || row->number > last)
            continue;
        if (row != standing) {
            standing = row;
            run_start = at;
            count = total = 0;
        }
        *field = seen;
        total += seen.bytes.n;
        count++;
    }
    if (rc < 0 || standing == NULL)
        return rc;
    if (standing->kind == FL_PB_KIND_MESSAGE && count > 1)
        return concatenate(arena, fl_bytes(run_start, (size_t)(reader.end - run_start)),
                           standing->number, total, &field->bytes);
    return 1;
}

int fl_pb_map_get(struct fl_arena *arena, struct fl_bytes message, uint32_t number,
                  struct fl_bytes key, struct fl_bytes *value)
{
    struct fl_pb_reader reader;
    struct fl_pb_field field;
    struct fl_bytes found = {0};
    int rc;

    fl_pb_reader_init(&reader, message);
    while ((rc = fl_pb_next(&reader, &field)) > 0) {
        if (field.number != number || field.wire != FL_PB_BYTES)
            continue;
        struct fl_pb_reader entry;
        struct fl_pb_field part;
        struct fl_bytes name = {0};
        fl_pb_reader_init(&entry, field.bytes);
        while ((rc = fl_pb_next(&entry, &part)) > 0) {
            if (part.number == 1 && part.wire == FL_PB_BYTES)
                name = part.bytes;
        }
        if (rc < 0)
            return rc;
        if (fl_bytes_eq(name, key))
            found = field.bytes;
    }
    if (rc < 0 || fl_bytes_is_absent(found))
        return rc;
    rc = fl_pb_gather(arena, found, 2, value);
    if (rc == 0) {
        *value = FL_BYTES(""); /* an entry without a value has the default one */
        rc = 1;
    }
    return rc;
}

/* ---- writing ---- */

void fl_pb_writer_init(struct fl_pb_writer *writer, void *memory, size_t room)
{
    static uint8_t nothing[1];
    *writer = (struct fl_pb_writer){0};
    writer->start = memory != NULL ? memory : nothing;
    writer->at = writer->end = writer->start + (memory != NULL ? room : 0);
}

void fl_pb_writer_fini(struct fl_pb_writer *writer)
{
    fl_free(writer->heap);
    *writer = (struct fl_pb_writer){0};
}

size_t fl_pb_writer_size(const struct fl_pb_writer *writer)
{
    return (size_t)(writer->end - writer->at) + writer->gap_bytes;
}

/* Moves `at` back by `n`, growing towards the front. What is written here is ours or was capped
 * when it was read, so memory is not an error. */
static uint8_t *make_room(struct fl_pb_writer *writer, size_t n)
{
    if ((size_t)(writer->at - writer->start) < n) {
        size_t used = (size_t)(writer->end - writer->at);
        size_t room = 2 * (used + n) + 256;
        uint8_t *grown = fl_alloc(room);
        if (used > 0)
            memcpy(grown + room - used, writer->at, used);
        fl_free(writer->heap);
        writer->heap = writer->start = grown;
        writer->end = grown + room;
        writer->at = writer->end - used;
    }
    writer->at -= n;
    return writer->at;
}

static void put_varint(struct fl_pb_writer *writer, uint64_t value)
{
    uint8_t text[VARINT_MAX_BYTES];
    size_t n = 0;

    do {
        text[n] = (uint8_t)(value & 0x7f);
        value >>= 7;
        if (value != 0)
            text[n] |= 0x80;
        n++;
    } while (value != 0);
    memcpy(make_room(writer, n), text, n);
}

static void put_tag(struct fl_pb_writer *writer, uint32_t number, enum fl_pb_wire wire)
{
    assert(number > 0 && number <= FL_PB_MAX_FIELD_NUMBER);
    put_varint(writer, (uint64_t)number << 3 | (uint64_t)wire);
}

void fl_pb_put_varint(struct fl_pb_writer *writer, uint32_t number, uint64_t value)
{
    put_varint(writer, value);
    put_tag(writer, number, FL_PB_VARINT);
}

void fl_pb_put_raw(struct fl_pb_writer *writer, struct fl_bytes bytes)
{
    if (bytes.n > 0)
        memcpy(make_room(writer, bytes.n), bytes.p, bytes.n);
}

void fl_pb_put_bytes(struct fl_pb_writer *writer, uint32_t number, struct fl_bytes bytes)
{
    fl_pb_put_raw(writer, bytes);
    put_varint(writer, bytes.n);
    put_tag(writer, number, FL_PB_BYTES);
}

void fl_pb_put_lower(struct fl_pb_writer *writer, uint32_t number, struct fl_bytes bytes)
{
    uint8_t *at = make_room(writer, bytes.n);
    for (size_t i = 0; i < bytes.n; i++) {
        uint8_t byte = bytes.p[i];
        at[i] = byte >= 'A' && byte <= 'Z' ? (uint8_t)(byte | 0x20) : byte;
    }
    put_varint(writer, bytes.n);
    put_tag(writer, number, FL_PB_BYTES);
}

void fl_pb_put_double(struct fl_pb_writer *writer, uint32_t number, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    uint8_t *at = make_room(writer, 8);
    for (unsigned i = 0; i < 8; i++)
        at[i] = (uint8_t)(bits >> (8 * i));
    put_tag(writer, number, FL_PB_FIXED64);
}

void fl_pb_put_message(struct fl_pb_writer *writer, uint32_t number, size_t mark)
{
    size_t size = fl_pb_writer_size(writer);
    assert(mark <= size);
    put_varint(writer, size - mark);
    put_tag(writer, number, FL_PB_BYTES);
}

void fl_pb_put_gap(struct fl_pb_writer *writer, uint32_t number, size_t n)
{
    assert(!writer->has_gap);
    writer->has_gap = true;
    writer->suffix_bytes = (size_t)(writer->end - writer->at);
    writer->gap_bytes = n;
    put_varint(writer, n);
    put_tag(writer, number, FL_PB_BYTES);
}

struct fl_bytes fl_pb_writer_prefix(const struct fl_pb_writer *writer)
{
    return fl_bytes(writer->at, (size_t)(writer->end - writer->at) - writer->suffix_bytes);
}

struct fl_bytes fl_pb_writer_suffix(const struct fl_pb_writer *writer)
{
    return fl_bytes(writer->end - writer->suffix_bytes, writer->suffix_bytes);
}
