/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "codec/pb.h"

/* "08 01" to bytes, exactly as long as they are, so that AddressSanitizer sees a read past the end.
 */
static struct fl_bytes unhex(const char *text)
{
    size_t n = 0;
    uint8_t *out = malloc(strlen(text) / 2 + 1);

    for (const char *p = text; *p != 0;) {
        if (*p == ' ') {
            p++;
            continue;
        }
        char pair[3] = {p[0], p[1], 0};
        out[n++] = (uint8_t)strtoul(pair, NULL, 16);
        p += 2;
    }
    uint8_t *exact = malloc(n > 0 ? n : 1);
    memcpy(exact, out, n);
    free(out);
    return fl_bytes(exact, n);
}

static void release(struct fl_bytes bytes)
{
    free((void *)(uintptr_t)bytes.p);
}

/* Reads all fields; the last one's value in `last`. */
static int read_all(struct fl_bytes message, struct fl_pb_field *last, int *count)
{
    struct fl_pb_reader reader;
    int rc;

    *count = 0;
    fl_pb_reader_init(&reader, message);
    struct fl_pb_field field;
    while ((rc = fl_pb_next(&reader, &field)) > 0) {
        *last = field;
        (*count)++;
    }
    return rc;
}

/* dependencies.md 4.1 */
static void wire_rules(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *hex;
        int rc, count;
        uint64_t value; /* of the last field */
    } rows[] = {
        {"an empty message has no fields", "", 0, 0, 0},
        {"varint of one byte", "08 7f", 0, 1, 127},
        {"varint of two bytes", "08 ac02", 0, 1, 300},
        {"a varint need not be the shortest", "08 8000", 0, 1, 0},
        {"ten bytes, the tenth being 1: 2^64 - 1", "08 ffffffffffffffffff01", 0, 1, UINT64_MAX},
        {"the tenth byte above 1", "08 ffffffffffffffffff02", FL_EPROTO, 0, 0},
        {"eleven bytes", "08 8080808080808080808001", FL_EPROTO, 0, 0},
        {"varint cut short", "08 80", FL_EPROTO, 0, 0},
        {"tag without a value", "08", FL_EPROTO, 0, 0},
        {"fixed64", "09 0100000000000080", 0, 1, 0x8000000000000001},
        {"fixed64 cut short", "09 01000000000000", FL_EPROTO, 0, 0},
        {"fixed32", "0d 78563412", 0, 1, 0x12345678},
        {"fixed32 cut short", "0d 785634", FL_EPROTO, 0, 0},
        {"length-delimited", "0a 02 6869", 0, 1, 0},
        {"length past the end", "0a 03 6869", FL_EPROTO, 0, 0},
        {"length of 2^64 - 1", "0a ffffffffffffffffff01 00", FL_EPROTO, 0, 0},
        {"field number 0", "00 01", FL_EPROTO, 0, 0},
        {"field number 2^29 - 1", "f8ffffff0f 05", 0, 1, 5},
        {"field number 2^29", "8080808010 05", FL_EPROTO, 0, 0},
        {"wire type 6", "0e", FL_EPROTO, 0, 0},
        {"wire type 7", "0f", FL_EPROTO, 0, 0},
        {"an empty group is skipped", "0b 0c 10 05", 0, 1, 5},
        {"a group with every wire type inside is skipped",
         "0b 0801 11 0000000000000000 1a01ff 25 00000000 0c 10 05", 0, 1, 5},
        {"groups nest", "0b 13 1b 1c 14 0c 10 05", 0, 1, 5},
        {"a group that does not end", "0b 0801", FL_EPROTO, 0, 0},
        {"a group that ends with another number", "0b 14", FL_EPROTO, 0, 0},
        {"crossed groups", "0b 13 0c 14", FL_EPROTO, 0, 0},
        {"an end without a start", "0c", FL_EPROTO, 0, 0},
        {"wire type 7 inside a group", "0b 0f 0c", FL_EPROTO, 0, 0},
        {"field number 0 inside a group", "0b 0001 0c", FL_EPROTO, 0, 0},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_bytes message = unhex(rows[i].hex);
        struct fl_pb_field last = {0};
        int count;
        int rc = read_all(message, &last, &count);
        if (rc != rows[i].rc || count != rows[i].count || last.value != rows[i].value)
            fail_msg("row %zu: %s: rc %d count %d value %llu", i, rows[i].why, rc, count,
                     (unsigned long long)last.value);
        release(message);
    }
}

/* dependencies.md 4.1 */
static void every_cut_of_a_message_is_an_error_or_whole_fields(void **state)
{
    (void)state;
    struct fl_bytes whole = unhex("08ac02 0a026869 09 0100000000000080 0d 78563412 0b08010c");

    for (size_t n = 0; n <= whole.n; n++) {
        uint8_t *exact = malloc(n > 0 ? n : 1);
        memcpy(exact, whole.p, n);
        struct fl_pb_field last;
        int count;
        int rc = read_all(fl_bytes(exact, n), &last, &count);
        bool is_edge = n == 0 || n == 3 || n == 7 || n == 16 || n == 21 || n == whole.n;
        assert_int_equal(rc, is_edge ? 0 : FL_EPROTO);
        free(exact);
    }
    release(whole);
}

/* dependencies.md 4.1 */
static void groups_are_skipped_to_depth_100(void **state)
{
    (void)state;
    uint8_t message[2 * (FL_PB_MAX_DEPTH + 1)];

    for (size_t depth = FL_PB_MAX_DEPTH - 1; depth <= FL_PB_MAX_DEPTH + 1; depth++) {
        memset(message, 0x0b, depth);
        memset(message + depth, 0x0c, depth);
        struct fl_pb_field last;
        int count;
        int rc = read_all(fl_bytes(message, 2 * depth), &last, &count);
        assert_int_equal(rc, depth <= FL_PB_MAX_DEPTH ? 0 : FL_EDEPTH);
    }
}

static void zigzag_and_narrow_integers(void **state)
{
    (void)state;
    assert_int_equal(fl_pb_zigzag(0), 0);
    assert_int_equal(fl_pb_zigzag(1), -1);
    assert_int_equal(fl_pb_zigzag(2), 1);
    assert_true(fl_pb_zigzag(UINT64_MAX - 1) == INT64_MAX);
    assert_true(fl_pb_zigzag(UINT64_MAX) == INT64_MIN);
    assert_int_equal(fl_pb_int32(UINT64_MAX), -1);
    assert_int_equal(fl_pb_int32(0x100000005), 5);
}

/* dependencies.md 4.1 */
static void repeated_scalars_packed_and_unpacked(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *hex;
        enum fl_pb_wire wire;
        int rc, count;
        uint64_t sum;
    } rows[] = {
        {"packed varints", "0a 04 01 02 ac02", FL_PB_VARINT, 0, 3, 303},
        {"unpacked varint", "08 07", FL_PB_VARINT, 0, 1, 7},
        {"packed, empty", "0a 00", FL_PB_VARINT, 0, 0, 0},
        {"packed fixed32", "0a 08 01000000 02000000", FL_PB_FIXED32, 0, 2, 3},
        {"packed fixed32, cut short", "0a 07 01000000 020000", FL_PB_FIXED32, FL_EPROTO, 1, 1},
        {"packed varint, cut short", "0a 02 01 80", FL_PB_VARINT, FL_EPROTO, 1, 1},
        {"a third wire type is an unknown field", "0d 01000000", FL_PB_VARINT, 0, 0, 0},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_bytes message = unhex(rows[i].hex);
        struct fl_pb_reader reader;
        struct fl_pb_field field;
        struct fl_pb_scalars scalars;
        uint64_t value, sum = 0;
        int rc, count = 0;
        fl_pb_reader_init(&reader, message);
        assert_int_equal(fl_pb_next(&reader, &field), 1);
        fl_pb_scalars_init(&scalars, &field, rows[i].wire);
        while ((rc = fl_pb_scalars_next(&scalars, &value)) > 0) {
            sum += value;
            count++;
        }
        if (rc != rows[i].rc || count != rows[i].count || sum != rows[i].sum)
            fail_msg("row %zu: %s: rc %d count %d", i, rows[i].why, rc, count);
        release(message);
    }
}

/* ---- schema ---- */

/* message Node { string name = 1; bytes blob = 2; Node child = 3; oneof { uint64 a = 4; Node b = 5;
 * Node c = 6; } map<string, Node> children = 7; double d = 8; fixed32 f = 9; } */
static const struct fl_pb_type node_type;
static const struct fl_pb_row entry_rows[] = {
    {.number = 1, .kind = FL_PB_KIND_STRING, .name = "key"},
    {.number = 2, .kind = FL_PB_KIND_MESSAGE, .name = "value", .type = &node_type},
};
static const struct fl_pb_type entry_type = {.name = "Entry", .rows = entry_rows, .row_count = 2};
static const struct fl_pb_row node_rows[] = {
    {.number = 1, .kind = FL_PB_KIND_STRING, .name = "name"},
    {.number = 2, .kind = FL_PB_KIND_BYTES, .name = "blob"},
    {.number = 3, .kind = FL_PB_KIND_MESSAGE, .name = "child", .type = &node_type},
    {.number = 4, .kind = FL_PB_KIND_VARINT, .name = "a"},
    {.number = 5, .kind = FL_PB_KIND_MESSAGE, .name = "b", .type = &node_type},
    {.number = 6, .kind = FL_PB_KIND_MESSAGE, .name = "c", .type = &node_type},
    {.number = 7, .kind = FL_PB_KIND_MESSAGE, .name = "children", .type = &entry_type},
    {.number = 8, .kind = FL_PB_KIND_FIXED64, .name = "d"},
    {.number = 9, .kind = FL_PB_KIND_FIXED32, .name = "f"},
};
static const struct fl_pb_type node_type = {
    .name = "Node", .rows = node_rows, .row_count = FL_ARRAY_LEN(node_rows)};

/* dependencies.md 4.1 */
static void check_refuses_what_is_malformed_deep_inside(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *hex;
        int rc;
    } rows[] = {
        {"empty", "", 0},
        {"text", "0a 02 c3a4", 0},
        {"text that is not UTF-8", "0a 01 ff", FL_EPROTO},
        {"overlong UTF-8", "0a 02 c080", FL_EPROTO},
        {"a surrogate in UTF-8", "0a 03 eda080", FL_EPROTO},
        {"NUL is valid UTF-8", "0a 01 00", 0},
        {"bytes hold anything", "12 02 ffc0", 0},
        {"child is checked", "1a 03 0a01ff", FL_EPROTO},
        {"grandchild is checked", "1a 05 1a03 0a01ff", FL_EPROTO},
        {"child cut short", "1a 02 0a02", FL_EPROTO},
        {"a map key is a string", "3a 03 0a01ff", FL_EPROTO},
        {"a map value is checked", "3a 05 1203 0a01ff", FL_EPROTO},
        {"every occurrence is checked, also those that lose", "2a 03 0a01ff 20 01", FL_EPROTO},
        {"a known number with another wire type is unknown",
         "18 01 0d 00000000 21 0000000000000000", 0},
        {"unknown fields are skipped", "fa07 03 0a01ff", 0},
        {"groups in unknown fields are skipped", "fb07 0a01ff fc07", 0},
        {"a group in place of a known field is skipped", "1b 0a01ff 1c", 0},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_bytes message = unhex(rows[i].hex);
        int rc = fl_pb_check(message, &node_type);
        if (rc != rows[i].rc)
            fail_msg("row %zu: %s: rc %d", i, rows[i].why, rc);
        release(message);
    }
}

/* A message nested `depth` deep; `path` alternates the ways to nest. */
static struct fl_bytes nested(size_t depth, bool by_map)
{
    struct fl_pb_writer writer;

    fl_pb_writer_init(&writer, NULL, 0);
    fl_pb_put_varint(&writer, 4, 1);
    for (size_t i = 0; i < depth; i++) {
        /* A map entry is a message of its own: two levels a step. */
        if (by_map)
            fl_pb_put_message(&writer, i % 2 == 0 ? 2 : 7, 0);
        else
            fl_pb_put_message(&writer, 3, 0);
    }
    struct fl_bytes view = fl_pb_writer_prefix(&writer);
    uint8_t *copy = malloc(view.n);
    memcpy(copy, view.p, view.n);
    fl_pb_writer_fini(&writer);
    return fl_bytes(copy, view.n);
}

/* gaie.md 1.2, epp.md 24.3 row 35 */
static void depth_100_is_accepted_and_101_refused(void **state)
{
    (void)state;
    for (size_t depth = 98; depth <= 102; depth++) {
        struct fl_bytes message = nested(depth, false);
        assert_int_equal(fl_pb_check(message, &node_type),
                         depth <= FL_PB_MAX_DEPTH ? 0 : FL_EDEPTH);
        release(message);
    }
    for (size_t depth = 98; depth <= 102; depth += 2) {
        struct fl_bytes message = nested(depth, true);
        assert_int_equal(fl_pb_check(message, &node_type),
                         depth <= FL_PB_MAX_DEPTH ? 0 : FL_EDEPTH);
        release(message);
    }
    /* Far beyond, as the attack on other decoders has it: refused without using the stack. */
    struct fl_bytes deep = nested(20000, false);
    assert_int_equal(fl_pb_check(deep, &node_type), FL_EDEPTH);
    release(deep);
}

/* dependencies.md 4.1 */
static void groups_count_towards_the_depth_of_the_message_around_them(void **state)
{
    (void)state;
    for (unsigned groups = 1; groups <= 2; groups++) {
        struct fl_pb_writer writer;
        fl_pb_writer_init(&writer, NULL, 0);
        for (unsigned i = 0; i < groups; i++)
            fl_pb_put_raw(&writer, FL_BYTES("\xfc\x07"));
        for (unsigned i = 0; i < groups; i++)
            fl_pb_put_raw(&writer, FL_BYTES("\xfb\x07"));
        for (unsigned i = 0; i < FL_PB_MAX_DEPTH - 1; i++)
            fl_pb_put_message(&writer, 3, 0);
        int rc = fl_pb_check(fl_pb_writer_prefix(&writer), &node_type);
        assert_int_equal(rc, groups == 1 ? 0 : FL_EDEPTH);
        fl_pb_writer_fini(&writer);
    }
}

/* ---- lookups ---- */

/* dependencies.md 4.1, gaie.md 1.2 */
static void singular_messages_merge(void **state)
{
    (void)state;
    struct fl_arena arena;
    struct fl_bytes content;
    fl_arena_init(&arena, 0);

    struct fl_bytes once = unhex("20 01 1a 02 2007 20 02");
    assert_int_equal(fl_pb_gather(&arena, once, 3, &content), 1);
    assert_true(content.p > once.p && content.p < once.p + once.n); /* a view */
    assert_true(fl_bytes_eq(content, FL_BYTES("\x20\x07")));

    struct fl_bytes twice = unhex("1a 02 2007 20 02 1a 00 1a 02 2009");
    assert_int_equal(fl_pb_gather(&arena, twice, 3, &content), 1);
    assert_true(fl_bytes_eq(content, FL_BYTES("\x20\x07\x20\x09")));

    assert_int_equal(fl_pb_gather(&arena, once, 5, &content), 0);
    struct fl_bytes other_wire = unhex("18 01");
    assert_int_equal(fl_pb_gather(&arena, other_wire, 3, &content), 0);
    release(once);
    release(twice);
    release(other_wire);
    fl_arena_fini(&arena);
}

/* gaie.md 1.2 */
static void the_last_member_of_a_oneof_stands(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *hex;
        int rc;
        uint32_t number;
        const char *content;
    } rows[] = {
        {"none", "0a 00", 0, 0, ""},
        {"a scalar", "20 05", 1, 4, ""},
        {"the later member replaces", "20 05 2a 02 2007", 1, 5, "2007"},
        {"a scalar replaces a message", "2a 02 2007 20 05", 1, 4, ""},
        {"the same message member merges", "2a 02 2007 2a 02 2008", 1, 5, "2007 2008"},
        {"what stood before another member is forgotten", "2a 02 2007 32 00 2a 02 2008", 1, 5,
         "2008"},
        {"fields outside the oneof do not part it", "2a 02 2007 0a 00 2a 02 2008", 1, 5,
         "2007 2008"},
        {"another wire type is no member", "2a 02 2007 28 01 25 00000000", 1, 5, "2007"},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_bytes message = unhex(rows[i].hex);
        struct fl_bytes content = unhex(rows[i].content);
        struct fl_pb_field field = {0};
        struct fl_arena arena;
        fl_arena_init(&arena, 0);
        int rc = fl_pb_gather_oneof(&arena, message, &node_type, 4, 6, &field);
        if (rc != rows[i].rc || field.number != rows[i].number ||
            !fl_bytes_eq(field.bytes, content))
            fail_msg("row %zu: %s", i, rows[i].why);
        fl_arena_fini(&arena);
        release(message);
        release(content);
    }
}

/* dependencies.md 4.1 */
static void map_entries_take_defaults_and_the_last_key_wins(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *hex;
        const char *key;
        int rc;
        const char *value;
    } rows[] = {
        {"found", "3a 07 0a0161 1202 2007", "a", 1, "2007"},
        {"absent", "3a 07 0a0161 1202 2007", "b", 0, ""},
        {"duplicate keys: the last", "3a 07 0a0161 1202 2007 3a 07 0a0161 1202 2008", "a", 1,
         "2008"},
        {"a later entry without a value wins with the default",
         "3a 07 0a0161 1202 2007 3a 03 0a0161", "a", 1, ""},
        {"a missing key is the empty one", "3a 04 1202 2007", "", 1, "2007"},
        {"a key given twice in one entry: the last", "3a 0a 0a0161 0a0162 1202 2007", "b", 1,
         "2007"},
        {"a value given twice in one entry merges", "3a 0b 0a0161 1202 2007 1202 2008", "a", 1,
         "2007 2008"},
        {"value before key", "3a 07 1202 2007 0a0161", "a", 1, "2007"},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_bytes message = unhex(rows[i].hex);
        struct fl_bytes value = {0};
        struct fl_bytes expected = unhex(rows[i].value);
        struct fl_arena arena;
        fl_arena_init(&arena, 0);
        int rc = fl_pb_map_get(&arena, message, 7, fl_bytes_of(rows[i].key), &value);
        if (rc != rows[i].rc || !fl_bytes_eq(value, expected))
            fail_msg("row %zu: %s: rc %d, %zu bytes", i, rows[i].why, rc, value.n);
        fl_arena_fini(&arena);
        release(message);
        release(expected);
    }
}

/* A message of many occurrences costs its length, not its square; the copy obeys the arena's cap.
 */
static void merging_beyond_the_cap_fails(void **state)
{
    (void)state;
    size_t n = 1 << 20;
    uint8_t *message = malloc(n);
    struct fl_bytes content;
    struct fl_arena arena;

    for (size_t i = 0; i < n; i += 4)
        memcpy(message + i, "\x1a\x02\x20\x07", 4);
    fl_arena_init(&arena, n);
    assert_int_equal(fl_pb_gather(&arena, fl_bytes(message, n), 3, &content), 1);
    assert_int_equal(content.n, n / 2);
    fl_arena_fini(&arena);
    fl_arena_init(&arena, 4096);
    assert_int_equal(fl_pb_gather(&arena, fl_bytes(message, n), 3, &content), FL_ENOMEM);
    fl_arena_fini(&arena);
    free(message);
}

/* ---- writing ---- */

static void assert_hex(struct fl_bytes actual, const char *hex)
{
    struct fl_bytes expected = unhex(hex);
    assert_int_equal(actual.n, expected.n);
    assert_memory_equal(actual.p, expected.p, expected.n);
    release(expected);
}

static void fields_are_written_back_to_front(void **state)
{
    (void)state;
    struct fl_pb_writer writer;
    uint8_t scratch[4]; /* too small: the writer goes on in the heap */

    fl_pb_writer_init(&writer, scratch, sizeof(scratch));
    fl_pb_put_double(&writer, 8, 1.5);
    size_t mark = fl_pb_writer_size(&writer);
    fl_pb_put_varint(&writer, 4, 300);
    fl_pb_put_lower(&writer, 1, FL_BYTES("X-Ab[z"));
    fl_pb_put_message(&writer, 3, mark);
    fl_pb_put_bytes(&writer, 2, FL_BYTES(""));
    fl_pb_put_varint(&writer, 1, UINT64_MAX);
    assert_hex(fl_pb_writer_prefix(&writer), "08 ffffffffffffffffff01 12 00"
                                             "1a 0b 0a06 782d61625b7a 20 ac02"
                                             "41 000000000000f83f");
    assert_int_equal(fl_pb_writer_suffix(&writer).n, 0);
    fl_pb_writer_fini(&writer);
    fl_pb_writer_fini(&writer);
}

/* design.md 5: a body is sent by reference, its message is written around it. */
static void a_gap_leaves_room_for_bytes_sent_by_reference(void **state)
{
    (void)state;
    struct fl_pb_writer writer;
    uint8_t scratch[64];

    fl_pb_writer_init(&writer, scratch, sizeof(scratch));
    fl_pb_put_varint(&writer, 2, 1);
    fl_pb_put_gap(&writer, 1, 65536);
    fl_pb_put_message(&writer, 4, 0);
    /* 4: length 65,536 + tag and length of field 1 (4) + field 2 (2) */
    assert_hex(fl_pb_writer_prefix(&writer), "22 868004 0a 808004");
    assert_hex(fl_pb_writer_suffix(&writer), "10 01");
    assert_int_equal(fl_pb_writer_size(&writer), 65536 + 10);
    fl_pb_writer_fini(&writer);
}

/* Random trees of fields, written and read again. */
static void what_is_written_reads_back(void **state)
{
    (void)state;
    struct fl_rng rng;
    uint64_t seed = 20261130;
    fl_rng_seed(&rng, seed);

    for (int round = 0; round < 2000; round++) {
        struct {
            uint32_t number;
            uint64_t value;
            uint8_t bytes[40];
            size_t n;
            bool is_bytes;
        } fields[12];
        size_t count = (size_t)fl_rng_below(&rng, FL_ARRAY_LEN(fields) + 1);
        struct fl_pb_writer writer;
        fl_pb_writer_init(&writer, NULL, 0);
        for (size_t i = 0; i < count; i++) {
            fields[i].number = 1 + (uint32_t)(fl_rng_u64(&rng) >> (35 + fl_rng_below(&rng, 28)));
            fields[i].is_bytes = fl_rng_below(&rng, 2) == 0;
            fields[i].value = fl_rng_u64(&rng) >> fl_rng_below(&rng, 64);
            fields[i].n = (size_t)fl_rng_below(&rng, sizeof(fields[i].bytes) + 1);
            for (size_t k = 0; k < fields[i].n; k++)
                fields[i].bytes[k] = (uint8_t)fl_rng_u64(&rng);
            if (fields[i].is_bytes)
                fl_pb_put_bytes(&writer, fields[i].number, fl_bytes(fields[i].bytes, fields[i].n));
            else
                fl_pb_put_varint(&writer, fields[i].number, fields[i].value);
        }
        struct fl_pb_reader reader;
        struct fl_pb_field field;
        fl_pb_reader_init(&reader, fl_pb_writer_prefix(&writer));
        for (size_t i = count; i-- > 0;) {
            if (fl_pb_next(&reader, &field) != 1 || field.number != fields[i].number)
                fail_msg("round %d of seed %llu", round, (unsigned long long)seed);
            if (fields[i].is_bytes)
                assert_true(fl_bytes_eq(field.bytes, fl_bytes(fields[i].bytes, fields[i].n)));
            else
                assert_true(field.value == fields[i].value);
        }
        assert_int_equal(fl_pb_next(&reader, &field), 0);
        fl_pb_writer_fini(&writer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wire_rules),
        cmocka_unit_test(every_cut_of_a_message_is_an_error_or_whole_fields),
        cmocka_unit_test(groups_are_skipped_to_depth_100),
        cmocka_unit_test(zigzag_and_narrow_integers),
        cmocka_unit_test(repeated_scalars_packed_and_unpacked),
        cmocka_unit_test(check_refuses_what_is_malformed_deep_inside),
        cmocka_unit_test(depth_100_is_accepted_and_101_refused),
        cmocka_unit_test(groups_count_towards_the_depth_of_the_message_around_them),
        cmocka_unit_test(singular_messages_merge),
        cmocka_unit_test(the_last_member_of_a_oneof_stands),
        cmocka_unit_test(map_entries_take_defaults_and_the_last_key_wins),
        cmocka_unit_test(merging_beyond_the_cap_fails),
        cmocka_unit_test(fields_are_written_back_to_front),
        cmocka_unit_test(a_gap_leaves_room_for_bytes_sent_by_reference),
        cmocka_unit_test(what_is_written_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
