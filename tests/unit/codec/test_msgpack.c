/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"
#include "codec/msgpack.h"

static void init(struct fl_msgpack *reader, const char *bytes, size_t n)
{
    fl_msgpack_init(reader, fl_bytes(bytes, n));
}

#define INIT(reader, literal) init(reader, literal, sizeof(literal) - 1)

/* selection.md 11.9: every first byte of the table that holds a number */
static void integers_of_every_width_and_sign_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        enum fl_msgpack_type type;
        uint64_t value; /* of a negative number, its bits */
    } rows[] = {
        {"\x00", 1, FL_MSGPACK_UINT, 0},
        {"\x7f", 1, FL_MSGPACK_UINT, 127},
        {"\xcc\xff", 2, FL_MSGPACK_UINT, 255},
        {"\xcd\xff\xfe", 3, FL_MSGPACK_UINT, 65534},
        {"\xce\xff\xff\xff\xff", 5, FL_MSGPACK_UINT, UINT32_MAX},
        {"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", 9, FL_MSGPACK_UINT, UINT64_MAX},
        {"\xe0", 1, FL_MSGPACK_INT, (uint64_t)-32},
        {"\xff", 1, FL_MSGPACK_INT, (uint64_t)-1},
        {"\xd0\x80", 2, FL_MSGPACK_INT, (uint64_t)-128},
        {"\xd0\x05", 2, FL_MSGPACK_UINT, 5},
        {"\xd1\x80\x00", 3, FL_MSGPACK_INT, (uint64_t)INT16_MIN},
        {"\xd2\x80\x00\x00\x00", 5, FL_MSGPACK_INT, (uint64_t)INT32_MIN},
        {"\xd3\x80\x00\x00\x00\x00\x00\x00\x00", 9, FL_MSGPACK_INT, (uint64_t)INT64_MIN},
        {"\xd3\x7f\xff\xff\xff\xff\xff\xff\xff", 9, FL_MSGPACK_UINT, INT64_MAX},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_msgpack reader;
        struct fl_msgpack_value value;
        init(&reader, rows[i].bytes, rows[i].n);
        assert_int_equal(fl_msgpack_next(&reader, &value), 0);
        assert_int_equal(value.type, rows[i].type);
        assert_int_equal(value.uint, rows[i].value);
        assert_int_equal(fl_msgpack_finish(&reader), 0);
        for (size_t n = 0; n < rows[i].n; n++) {
            init(&reader, rows[i].bytes, n);
            assert_int_equal(fl_msgpack_next(&reader, &value), FL_EPROTO);
        }
    }
}

static void floats_nil_and_booleans_are_read(void **state)
{
    (void)state;
    struct fl_msgpack reader;
    struct fl_msgpack_value value;
    INIT(&reader, "\x95\xca\x3f\xc0\x00\x00\xcb\xbf\xf8\x00\x00\x00\x00\x00\x00\xc0\xc2\xc3");
    fl_msgpack_next(&reader, &value);
    assert_int_equal(fl_msgpack_next(&reader, &value), 0);
    assert_true(value.type == FL_MSGPACK_FLOAT && value.real == 1.5);
    assert_int_equal(fl_msgpack_next(&reader, &value), 0);
    assert_true(value.type == FL_MSGPACK_FLOAT && value.real == -1.5);
    assert_int_equal(fl_msgpack_next(&reader, &value), 0);
    assert_int_equal(value.type, FL_MSGPACK_NIL);
    assert_int_equal(fl_msgpack_next(&reader, &value), 0);
    assert_true(value.type == FL_MSGPACK_BOOL && !value.boolean);
    assert_int_equal(fl_msgpack_next(&reader, &value), 0);
    assert_true(value.type == FL_MSGPACK_BOOL && value.boolean);
    assert_int_equal(fl_msgpack_finish(&reader), 0);
}

static void texts_bytes_and_extensions_lend_what_they_hold(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        enum fl_msgpack_type type;
        const char *text;
        size_t text_n;
    } rows[] = {
        {"\xa0", 1, FL_MSGPACK_STR, "", 0},
        {"\xa2hi", 3, FL_MSGPACK_STR, "hi", 2},
        {"\xd9\x02hi", 4, FL_MSGPACK_STR, "hi", 2},
        {"\xda\x00\x02hi", 5, FL_MSGPACK_STR, "hi", 2},
        {"\xdb\x00\x00\x00\x02hi", 7, FL_MSGPACK_STR, "hi", 2},
        {"\xc4\x02\x00\xff", 4, FL_MSGPACK_BIN, "\x00\xff", 2},
        {"\xc5\x00\x01x", 4, FL_MSGPACK_BIN, "x", 1},
        {"\xc6\x00\x00\x00\x01x", 6, FL_MSGPACK_BIN, "x", 1},
        {"\xd4\x07x", 3, FL_MSGPACK_EXT, "x", 1},
        {"\xd5\x07xy", 4, FL_MSGPACK_EXT, "xy", 2},
        {"\xd6\x07wxyz", 6, FL_MSGPACK_EXT, "wxyz", 4},
        {"\xd7\x07stuvwxyz", 10, FL_MSGPACK_EXT, "stuvwxyz", 8},
        {"\xd8\x07klmnopqrstuvwxyz", 18, FL_MSGPACK_EXT, "klmnopqrstuvwxyz", 16},
        {"\xc7\x00\x07", 3, FL_MSGPACK_EXT, "", 0},
        {"\xc8\x00\x01\x07x", 5, FL_MSGPACK_EXT, "x", 1},
        {"\xc9\x00\x00\x00\x01\x07x", 7, FL_MSGPACK_EXT, "x", 1},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_msgpack reader;
        struct fl_msgpack_value value;
        struct fl_bytes text;
        init(&reader, rows[i].bytes, rows[i].n);
        assert_int_equal(fl_msgpack_next(&reader, &value), 0);
        assert_int_equal(value.type, rows[i].type);
        assert_true(fl_bytes_eq(value.bytes, fl_bytes(rows[i].text, rows[i].text_n)));
        assert_int_equal(fl_msgpack_finish(&reader), 0);
        assert_int_equal(fl_msgpack_text(&value, &text), rows[i].type != FL_MSGPACK_EXT);
        for (size_t n = 0; n < rows[i].n; n++) {
            init(&reader, rows[i].bytes, n);
            assert_int_equal(fl_msgpack_next(&reader, &value), FL_EPROTO);
            assert_int_equal(fl_msgpack_finish(&reader), FL_EPROTO);
        }
    }
}

/* dependencies.md 4.2: counts checked against the bytes that are left, before anything is done */
static void counts_that_cannot_be_true_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *why, *bytes;
        size_t n;
        bool is_good;
    } rows[] = {
        {"268 million elements in 5 bytes", "\xdd\x10\x00\x00\x00", 5, false},
        {"4 billion elements in 5 bytes", "\xdd\xff\xff\xff\xff", 5, false},
        {"4 billion pairs", "\xdf\xff\xff\xff\xff", 5, false},
        {"4 GiB of text", "\xdb\xff\xff\xff\xff", 5, false},
        {"4 GiB of extension", "\xc9\xff\xff\xff\xff\x01", 6, false},
        {"an array of n needs n bytes: one short", "\x93\x01\x02", 3, false},
        {"an array of n needs n bytes: exactly", "\x93\x01\x02\x03", 4, true},
        {"a map of n needs 2n bytes: one short", "\x82\x01\x02\x03", 4, false},
        {"a map of n needs 2n bytes: exactly", "\x82\x01\x02\x03\x04", 5, true},
        {"16-bit counts", "\xdc\x00\x02\x01\x02", 5, true},
        {"16-bit pairs", "\xde\x00\x01\x01\x02", 5, true},
        {"the byte that means nothing", "\xc1", 1, false},
        {"trailing bytes", "\x01\x02", 2, false},
        {"trailing bytes behind a container", "\x91\x01\xc0", 3, false},
        {"nothing at all", "", 0, false},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_msgpack reader;
        init(&reader, rows[i].bytes, rows[i].n);
        bool is_good = fl_msgpack_skip(&reader) == 0 && fl_msgpack_finish(&reader) == 0;
        if (is_good != rows[i].is_good)
            fail_msg("%s", rows[i].why);
    }
}

/* selection.md 21.2: depth 16 accepted, 17 refused */
static void sixteen_containers_may_lie_inside_each_other(void **state)
{
    (void)state;
    for (size_t depth = 15; depth <= 17; depth++)
        for (unsigned is_map = 0; is_map < 2; is_map++) {
            uint8_t bytes[64];
            size_t n = 0;
            for (size_t i = 0; i < depth; i++) {
                bytes[n++] = is_map ? 0x81 : 0x91;
                if (is_map)
                    bytes[n++] = 0x01;
            }
            bytes[n++] = 0xc0;
            struct fl_msgpack reader;
            fl_msgpack_init(&reader, fl_bytes(bytes, n));
            assert_int_equal(fl_msgpack_skip(&reader), depth <= 16 ? 0 : FL_EDEPTH);
            assert_int_equal(fl_msgpack_finish(&reader), depth <= 16 ? 0 : FL_EPROTO);
            bytes[n - 1] = 0x90; /* an empty container inside counts as well */
            fl_msgpack_init(&reader, fl_bytes(bytes, n));
            assert_int_equal(fl_msgpack_skip(&reader), depth < 16 ? 0 : FL_EDEPTH);
        }
}

static void the_rest_of_a_container_can_be_skipped_from_anywhere(void **state)
{
    (void)state;
    /* [[1, {2: [3, 4]}, 5], 6] */
    static const char bytes[] = "\x92\x93\x01\x81\x02\x92\x03\x04\x05\x06";
    for (uint32_t read = 1; read <= 7; read++) {
        struct fl_msgpack reader;
        struct fl_msgpack_value value;
        init(&reader, bytes, sizeof(bytes) - 1);
        fl_msgpack_next(&reader, &value);
        for (uint32_t i = 0; i < read; i++)
            assert_int_equal(fl_msgpack_next(&reader, &value), 0);
        assert_int_equal(fl_msgpack_skip_to(&reader, 1), 0);
        assert_int_equal(fl_msgpack_next(&reader, &value), 0);
        assert_int_equal(value.uint, 6);
        assert_int_equal(fl_msgpack_finish(&reader), 0);
        assert_int_equal(fl_msgpack_next(&reader, &value), FL_EPROTO); /* nothing is left */
    }
}

/* selection.md 11.9: write only the shortest form; 21.1: i64/u64 round trip */
static void numbers_are_written_in_their_shortest_form(void **state)
{
    (void)state;
    static const struct {
        int64_t value;
        size_t bytes;
    } rows[] = {
        {0, 1},
        {127, 1},
        {128, 2},
        {255, 2},
        {256, 3},
        {65535, 3},
        {65536, 5},
        {UINT32_MAX, 5},
        {4294967296, 9},
        {INT64_MAX, 9},
        {-1, 1},
        {-32, 1},
        {-33, 2},
        {INT8_MIN, 2},
        {INT8_MIN - 1, 3},
        {INT16_MIN, 3},
        {INT16_MIN - 1, 5},
        {INT32_MIN, 5},
        {-2147483649, 9},
        {INT64_MIN, 9},
        {-3803038269031200164, 9},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_buf out = {0};
        struct fl_msgpack_writer writer = {.out = &out};
        fl_msgpack_put_int(&writer, rows[i].value);
        assert_int_equal(fl_buf_size(&out), rows[i].bytes);
        struct fl_msgpack reader;
        struct fl_msgpack_value value;
        fl_msgpack_init(&reader, fl_buf_bytes(&out));
        assert_int_equal(fl_msgpack_next(&reader, &value), 0);
        assert_int_equal(value.sint, rows[i].value);
        assert_int_equal(value.type, rows[i].value < 0 ? FL_MSGPACK_INT : FL_MSGPACK_UINT);
        fl_buf_fini(&out);
    }
}

static void heads_are_written_in_their_shortest_form(void **state)
{
    (void)state;
    static const struct {
        size_t n;
        size_t str, bin, array, map; /* bytes of the head */
    } rows[] = {
        {0, 1, 2, 1, 1},   {15, 1, 2, 1, 1},    {16, 1, 2, 3, 3},
        {31, 1, 2, 3, 3},  {32, 2, 2, 3, 3},    {255, 2, 2, 3, 3},
        {256, 3, 3, 3, 3}, {65535, 3, 3, 3, 3}, {65536, 5, 5, 5, 5},
    };
    uint8_t *bytes = fl_calloc(1, 65536);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_buf out = {0};
        struct fl_msgpack_writer writer = {.out = &out};
        fl_msgpack_put_str(&writer, fl_bytes(bytes, rows[i].n));
        assert_int_equal(fl_buf_size(&out), rows[i].str + rows[i].n);
        fl_buf_clear(&out);
        fl_msgpack_put_bin(&writer, fl_bytes(bytes, rows[i].n));
        assert_int_equal(fl_buf_size(&out), rows[i].bin + rows[i].n);
        fl_buf_clear(&out);
        fl_msgpack_put_array(&writer, (uint32_t)rows[i].n);
        assert_int_equal(fl_buf_size(&out), rows[i].array);
        fl_buf_clear(&out);
        fl_msgpack_put_map(&writer, (uint32_t)rows[i].n);
        assert_int_equal(fl_buf_size(&out), rows[i].map);
        fl_buf_fini(&out);
    }
    fl_free(bytes);
}

/* A random object, put down as it is made; *left bounds its size. */
static void put_random(struct fl_msgpack_writer *writer, struct fl_rng *rng, uint32_t depth,
                       uint32_t *left)
{
    uint8_t bytes[40];
    uint64_t kind = fl_rng_below(rng, depth < 14 && *left > 0 ? 9 : 7);
    uint32_t count = (uint32_t)fl_rng_below(rng, 20);
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)fl_rng_below(rng, 256);
    *left -= *left > 0 ? 1 : 0;
    switch (kind) {
    case 0:
        fl_msgpack_put_nil(writer);
        break;
    case 1:
        fl_msgpack_put_bool(writer, count % 2 == 0);
        break;
    case 2:
        fl_msgpack_put_uint(writer, fl_rng_u64(rng) >> fl_rng_below(rng, 64));
        break;
    case 3:
        fl_msgpack_put_int(writer, (int64_t)fl_rng_u64(rng) >> fl_rng_below(rng, 64));
        break;
    case 4:
        fl_msgpack_put_real(writer, fl_rng_double(rng));
        break;
    case 5:
        fl_msgpack_put_str(writer, fl_bytes(bytes, fl_rng_below(rng, sizeof(bytes))));
        break;
    case 6:
        fl_msgpack_put_bin(writer, fl_bytes(bytes, fl_rng_below(rng, sizeof(bytes))));
        break;
    case 7:
        fl_msgpack_put_array(writer, count);
        for (uint32_t i = 0; i < count; i++)
            put_random(writer, rng, depth + 1, left);
        break;
    default:
        fl_msgpack_put_map(writer, count);
        for (uint32_t i = 0; i < 2 * count; i++)
            put_random(writer, rng, depth + 1, left);
    }
}

/* Writes what it reads. */
static void copy(struct fl_msgpack *reader, struct fl_msgpack_writer *writer)
{
    struct fl_msgpack_value value;
    assert_int_equal(fl_msgpack_next(reader, &value), 0);
    switch (value.type) {
    case FL_MSGPACK_NIL:
        fl_msgpack_put_nil(writer);
        break;
    case FL_MSGPACK_BOOL:
        fl_msgpack_put_bool(writer, value.boolean);
        break;
    case FL_MSGPACK_UINT:
        fl_msgpack_put_uint(writer, value.uint);
        break;
    case FL_MSGPACK_INT:
        fl_msgpack_put_int(writer, value.sint);
        break;
    case FL_MSGPACK_FLOAT:
        fl_msgpack_put_real(writer, value.real);
        break;
    case FL_MSGPACK_STR:
        fl_msgpack_put_str(writer, value.bytes);
        break;
    case FL_MSGPACK_BIN:
        fl_msgpack_put_bin(writer, value.bytes);
        break;
    case FL_MSGPACK_EXT:
        fail_msg("nobody wrote that");
        break;
    case FL_MSGPACK_ARRAY:
        fl_msgpack_put_array(writer, value.count);
        for (uint32_t i = 0; i < value.count; i++)
            copy(reader, writer);
        break;
    case FL_MSGPACK_MAP:
        fl_msgpack_put_map(writer, value.count);
        for (uint32_t i = 0; i < 2 * value.count; i++)
            copy(reader, writer);
        break;
    }
}

static void what_is_written_reads_back_the_same(void **state)
{
    (void)state;
    struct fl_rng rng;
    fl_rng_seed(&rng, 42);
    for (uint32_t i = 0; i < 500; i++) {
        struct fl_buf first = {0}, second = {0};
        struct fl_msgpack_writer writer = {.out = &first}, again = {.out = &second};
        struct fl_msgpack reader;
        uint32_t left = 200;
        put_random(&writer, &rng, 0, &left);
        assert_int_equal(writer.rc, 0);
        fl_msgpack_init(&reader, fl_buf_bytes(&first));
        copy(&reader, &again);
        assert_int_equal(fl_msgpack_finish(&reader), 0);
        assert_true(fl_bytes_eq(fl_buf_bytes(&first), fl_buf_bytes(&second)));
        fl_msgpack_init(&reader, fl_buf_bytes(&first));
        assert_int_equal(fl_msgpack_skip(&reader), 0);
        assert_int_equal(fl_msgpack_finish(&reader), 0);
        fl_buf_fini(&first);
        fl_buf_fini(&second);
    }
}

static void a_full_buffer_stops_the_writer_for_good(void **state)
{
    (void)state;
    struct fl_buf out = {0};
    fl_buf_init(&out, 4);
    struct fl_msgpack_writer writer = {.out = &out};
    fl_msgpack_put_uint(&writer, 1);
    fl_msgpack_put_uint(&writer, UINT64_MAX);
    assert_int_equal(writer.rc, FL_ELIMIT);
    fl_msgpack_put_uint(&writer, 1);
    assert_int_equal(fl_buf_size(&out), 1);
    fl_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_of_every_width_and_sign_are_read),
        cmocka_unit_test(floats_nil_and_booleans_are_read),
        cmocka_unit_test(texts_bytes_and_extensions_lend_what_they_hold),
        cmocka_unit_test(counts_that_cannot_be_true_are_refused),
        cmocka_unit_test(sixteen_containers_may_lie_inside_each_other),
        cmocka_unit_test(the_rest_of_a_container_can_be_skipped_from_anywhere),
        cmocka_unit_test(numbers_are_written_in_their_shortest_form),
        cmocka_unit_test(heads_are_written_in_their_shortest_form),
        cmocka_unit_test(what_is_written_reads_back_the_same),
        cmocka_unit_test(a_full_buffer_stops_the_writer_for_good),
    };
    return cmocka_run_group_tests_name("codec/msgpack", tests, NULL, NULL);
}
