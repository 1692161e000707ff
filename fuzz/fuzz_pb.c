/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a protobuf message: the reader, the check against a recursive schema, and the
 * lookups, which must agree with each other. */
#include <stdint.h>
#include <stdlib.h>

#include "base/arena.h"
#include "codec/pb.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A crash that a fuzzer can see, also where assertions are off. */
static void must(int holds)
{
    if (!holds)
        abort();
}

static const struct fl_pb_type node_type;
static const struct fl_pb_row entry_rows[] = {
    {.number = 1, .kind = FL_PB_KIND_STRING, .name = "key"},
    {.number = 2, .kind = FL_PB_KIND_MESSAGE, .name = "value", .type = &node_type},
};
static const struct fl_pb_type entry_type = {.name = "Entry", .rows = entry_rows, .row_count = 2};
static const struct fl_pb_row node_rows[] = {
    {.number = 1, .kind = FL_PB_KIND_STRING, .name = "text"},
    {.number = 2, .kind = FL_PB_KIND_BYTES, .name = "bytes"},
    {.number = 3, .kind = FL_PB_KIND_MESSAGE, .name = "child", .type = &node_type},
    {.number = 4, .kind = FL_PB_KIND_VARINT, .name = "number"},
    {.number = 5, .kind = FL_PB_KIND_MESSAGE, .name = "other", .type = &node_type},
    {.number = 6, .kind = FL_PB_KIND_FIXED64, .name = "wide"},
    {.number = 7, .kind = FL_PB_KIND_MESSAGE, .name = "map", .type = &entry_type},
    {.number = 8, .kind = FL_PB_KIND_FIXED32, .name = "narrow"},
};
static const struct fl_pb_type node_type = {
    .name = "Node", .rows = node_rows, .row_count = FL_ARRAY_LEN(node_rows)};

/* Walks all fields; every view must lie inside the message. */
static int walk(struct fl_bytes message)
{
    struct fl_pb_reader reader;
    struct fl_pb_field field;
    int rc;

    fl_pb_reader_init(&reader, message);
    while ((rc = fl_pb_next(&reader, &field)) > 0) {
        must(field.number > 0 && field.number <= FL_PB_MAX_FIELD_NUMBER);
        if (field.wire == FL_PB_BYTES)
            must(field.bytes.p >= message.p && field.bytes.n <= message.n &&
                 field.bytes.p + field.bytes.n <= message.p + message.n);
        static const enum fl_pb_wire elements[] = {FL_PB_VARINT, FL_PB_FIXED32, FL_PB_FIXED64};
        for (size_t i = 0; i < FL_ARRAY_LEN(elements); i++) {
            struct fl_pb_scalars scalars;
            uint64_t value, count = 0;
            fl_pb_scalars_init(&scalars, &field, elements[i]);
            while (fl_pb_scalars_next(&scalars, &value) > 0)
                count++;
            must(count <= field.bytes.n + 1);
        }
    }
    return rc;
}

/* Fields written again, last to first, and read again: the same numbers in reverse order. The whole
 * becomes a message around a gap, whose sizes must add up. */
static void rewrite(struct fl_bytes message)
{
    struct fl_pb_reader reader;
    struct fl_pb_field field;
    struct fl_pb_writer writer;
    uint8_t scratch[16];
    size_t count = 0, again = 0;

    fl_pb_writer_init(&writer, scratch, sizeof(scratch));
    fl_pb_reader_init(&reader, message);
    while (fl_pb_next(&reader, &field) > 0) {
        if (field.wire == FL_PB_BYTES && (field.number & 1) != 0)
            fl_pb_put_lower(&writer, field.number, field.bytes);
        else if (field.wire == FL_PB_BYTES)
            fl_pb_put_bytes(&writer, field.number, field.bytes);
        else if (field.wire == FL_PB_VARINT)
            fl_pb_put_varint(&writer, field.number, field.value);
        else if (field.wire == FL_PB_FIXED64)
            fl_pb_put_double(&writer, field.number, fl_pb_double(field.value));
        else
            continue;
        count++;
    }
    fl_pb_reader_init(&reader, fl_pb_writer_prefix(&writer));
    while (fl_pb_next(&reader, &field) > 0)
        again++;
    must(count == again);

    size_t size = fl_pb_writer_size(&writer);
    fl_pb_put_gap(&writer, 2, message.n);
    fl_pb_put_message(&writer, 3, 0);
    must(fl_pb_writer_suffix(&writer).n == size);
    must(fl_pb_writer_size(&writer) ==
         fl_pb_writer_prefix(&writer).n + message.n + fl_pb_writer_suffix(&writer).n);
    fl_pb_writer_fini(&writer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fl_bytes message = {data, size};
    struct fl_arena arena;
    struct fl_bytes content;
    struct fl_pb_field field;

    int walked = walk(message);
    int checked = fl_pb_check(message, &node_type);
    must(walked == 0 || checked < 0); /* the check sees at least what the reader sees */
    fl_arena_init(&arena, 1 << 20);
    if (checked == 0) {
        for (uint32_t number = 1; number <= 9; number++) {
            must(fl_pb_gather(&arena, message, number, &content) >= FL_ENOMEM);
            if (fl_pb_gather(&arena, message, 3, &content) == 1)
                must(fl_pb_check(content, &node_type) == 0); /* merging keeps a message valid */
        }
        if (fl_pb_gather_oneof(&arena, message, &node_type, 3, 6, &field) == 1)
            must(field.number >= 3 && field.number <= 6);
        if (fl_pb_map_get(&arena, message, 7, FL_BYTES("a"), &content) == 1)
            must(fl_pb_check(content, &node_type) == 0);
        rewrite(message);
    }
    fl_arena_fini(&arena);
    return 0;
}
