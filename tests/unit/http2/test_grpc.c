/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "http2/grpc.h"

static struct fl_slice slice_of(const void *p, size_t n)
{
    return fl_slice_copy(fl_bytes(p, n), NULL);
}

static void feed_cut(struct fl_grpc_reader *reader, const uint8_t *p, size_t n, size_t piece)
{
    for (size_t at = 0; at < n; at += piece)
        fl_grpc_reader_feed(reader, slice_of(p + at, n - at < piece ? n - at : piece));
}

/* gaie.md 1.1, message frame: 1 byte flag, 4 bytes big-endian length, message */
static void messages_come_out_whole_wherever_they_are_cut(void **state)
{
    (void)state;
    static const char *const messages[] = {"first", "", "the third message", "x"};
    uint8_t stream[256];
    size_t n = 0;
    for (size_t i = 0; i < FL_ARRAY_LEN(messages); i++) {
        struct fl_slice frame = fl_grpc_frame(fl_bytes_of(messages[i]));
        memcpy(stream + n, frame.p, frame.n);
        n += frame.n;
        fl_slice_unref(&frame);
    }
    for (size_t piece = 1; piece <= n; piece++) {
        struct fl_grpc_reader reader;
        struct fl_chain message = {0};
        fl_grpc_reader_init(&reader, 100, NULL);
        feed_cut(&reader, stream, n, piece);
        for (size_t i = 0; i < FL_ARRAY_LEN(messages); i++) {
            struct fl_slice flat;
            assert_false(fl_grpc_reader_is_between(&reader));
            assert_int_equal(fl_grpc_reader_next(&reader, &message), 1);
            assert_int_equal(fl_grpc_flatten(&message, NULL, &flat), 0);
            assert_non_null(flat.p);
            assert_true(fl_bytes_eq(fl_slice_bytes(flat), fl_bytes_of(messages[i])));
            fl_slice_unref(&flat);
        }
        assert_int_equal(fl_grpc_reader_next(&reader, &message), 0);
        assert_true(fl_grpc_reader_is_between(&reader));
        fl_grpc_reader_fini(&reader);
        fl_chain_fini(&message);
    }
}

/* A message is asked for between any two bytes. */
static void next_says_more_until_the_last_byte(void **state)
{
    (void)state;
    struct fl_slice frame = fl_grpc_frame(FL_BYTES("hello"));
    struct fl_grpc_reader reader;
    struct fl_chain message = {0};
    fl_grpc_reader_init(&reader, 5, NULL);
    for (size_t i = 0; i < frame.n; i++) {
        assert_int_equal(fl_grpc_reader_next(&reader, &message), 0);
        fl_grpc_reader_feed(&reader, slice_of(frame.p + i, 1));
    }
    assert_int_equal(fl_grpc_reader_next(&reader, &message), 1);
    assert_true(fl_chain_eq_bytes(&message, FL_BYTES("hello")));
    fl_chain_fini(&message);
    fl_slice_unref(&frame);
    fl_grpc_reader_fini(&reader);
}

/* gaie.md 1.1: over the limit status 8, compressed status 12; dependencies of both on the prefix
 * alone */
static void prefix_is_judged_at_once(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        uint8_t prefix[5];
        int rc;
        int grpc_status;
    } rows[] = {
        {"one below the cap", {0, 0, 0, 3, 0xe7}, 0, 0},
        {"at the cap", {0, 0, 0, 3, 0xe8}, 0, 0},
        {"one above", {0, 0, 0, 3, 0xe9}, FL_ELIMIT, 8},
        {"the largest", {0, 0xff, 0xff, 0xff, 0xff}, FL_ELIMIT, 8},
        {"compressed", {1, 0, 0, 0, 1}, FL_EUNSUPPORTED, 12},
        {"no such flag", {2, 0, 0, 0, 1}, FL_EPROTO, 3},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_grpc_reader reader;
        struct fl_chain message = {0};
        fl_grpc_reader_init(&reader, 1000, NULL);
        fl_grpc_reader_feed(&reader, slice_of(rows[i].prefix, 5));
        int rc = fl_grpc_reader_next(&reader, &message);
        if (rc != rows[i].rc)
            fail_msg("%s: %d", rows[i].why, rc);
        if (rc < 0) {
            assert_int_equal(fl_error_row(rc)->grpc_status, rows[i].grpc_status);
            /* final */
            struct fl_slice good = fl_grpc_frame(FL_BYTES("ok"));
            fl_grpc_reader_feed(&reader, good);
            assert_int_equal(fl_grpc_reader_next(&reader, &message), rc);
        }
        fl_grpc_reader_fini(&reader);
    }
}

/* design.md 5: nothing is concatenated: a message within one slice is a view of it, one over
 * several refers to each */
static void large_messages_are_not_copied(void **state)
{
    (void)state;
    struct fl_chunk *chunk = fl_chunk_new(60000, NULL);
    struct fl_grpc_reader reader;
    struct fl_chain message = {0};
    struct fl_slice flat;
    fl_grpc_write_prefix(chunk->data, 40000);
    memset(chunk->data + 5, 'm', 40000);
    fl_grpc_reader_init(&reader, 100000, NULL);
    fl_chunk_ref(chunk);
    fl_grpc_reader_feed(&reader, (struct fl_slice){chunk, chunk->data, 40005});
    assert_int_equal(fl_grpc_reader_next(&reader, &message), 1);
    assert_int_equal(fl_grpc_flatten(&message, NULL, &flat), 0);
    assert_ptr_equal(flat.p, chunk->data + 5);
    fl_slice_unref(&flat);
    /* in three slices of other chunks */
    struct fl_slice parts[3];
    for (int i = 0; i < 3; i++) {
        uint8_t piece[10005];
        memset(piece, 'a' + i, sizeof(piece));
        if (i == 0)
            fl_grpc_write_prefix(piece, 30010);
        parts[i] = slice_of(piece, sizeof(piece));
        fl_grpc_reader_feed(&reader, fl_slice_ref(parts[i]));
    }
    assert_int_equal(fl_grpc_reader_next(&reader, &message), 1);
    assert_int_equal(message.bytes, 30010);
    assert_int_equal(message.count, 3);
    assert_ptr_equal(fl_chain_at(&message, 1).p, parts[1].p);
    assert_int_equal(fl_grpc_flatten(&message, NULL, &flat), 0);
    assert_int_equal(flat.n, 30010);
    assert_int_equal(flat.p[0], 'a');
    assert_int_equal(flat.p[10000], 'b');
    assert_int_equal(flat.p[30009], 'c');
    assert_int_equal(message.bytes, 0);
    fl_slice_unref(&flat);
    for (int i = 0; i < 3; i++)
        fl_slice_unref(&parts[i]);
    fl_chunk_unref(chunk);
    fl_grpc_reader_fini(&reader);
}

/* A byte a frame must not make a message cost a slice a byte. */
static void crumbs_are_joined(void **state)
{
    (void)state;
    struct fl_budget budget = {.cap_bytes = 1 << 20};
    struct fl_grpc_reader reader;
    struct fl_chain message = {0};
    uint8_t prefix[5];
    fl_grpc_reader_init(&reader, 100000, &budget);
    fl_grpc_write_prefix(prefix, 50000);
    fl_grpc_reader_feed(&reader, slice_of(prefix, 5));
    for (uint32_t i = 0; i < 50000; i++) {
        uint8_t byte = (uint8_t)(i * 7);
        fl_grpc_reader_feed(&reader, slice_of(&byte, 1));
        assert_true(reader.pending.count < 64);
    }
    assert_true(fl_budget_held(&budget) < 60000);
    assert_int_equal(fl_grpc_reader_next(&reader, &message), 1);
    uint8_t *out = fl_alloc(50000);
    fl_chain_copy_out(&message, 0, out, 50000);
    for (uint32_t i = 0; i < 50000; i++)
        assert_int_equal(out[i], (uint8_t)(i * 7));
    fl_free(out);
    fl_chain_fini(&message);
    fl_grpc_reader_fini(&reader);
    assert_int_equal(fl_budget_held(&budget), 0);
}

/* Model: random messages in random pieces give the same messages. */
static void random_cuts_change_nothing(void **state)
{
    (void)state;
    uint64_t seed = (uint64_t)time(NULL);
    struct fl_rng rng;
    fl_rng_seed(&rng, seed);
    for (int round = 0; round < 50; round++) {
        struct fl_buf wire = {0};
        uint32_t sizes[20];
        for (int i = 0; i < 20; i++) {
            uint8_t prefix[5];
            sizes[i] = (uint32_t)fl_rng_below(&rng, fl_rng_below(&rng, 3) == 0 ? 9000 : 40);
            fl_grpc_write_prefix(prefix, sizes[i]);
            fl_buf_append(&wire, fl_bytes(prefix, 5));
            for (uint32_t k = 0; k < sizes[i]; k++)
                fl_buf_append_byte(&wire, (uint8_t)(i + (int)k));
        }
        struct fl_grpc_reader reader;
        struct fl_chain message = {0};
        fl_grpc_reader_init(&reader, 10000, NULL);
        int got = 0;
        struct fl_bytes left = fl_buf_bytes(&wire);
        while (left.n > 0) {
            size_t n = 1 + fl_rng_below(&rng, 1500);
            n = n < left.n ? n : left.n;
            fl_grpc_reader_feed(&reader, slice_of(left.p, n));
            left = fl_bytes_skip(left, n);
            while (fl_grpc_reader_next(&reader, &message) == 1) {
                if (message.bytes != sizes[got])
                    fail_msg("seed %llu: message %d", (unsigned long long)seed, got);
                for (uint32_t k = 0; k < sizes[got]; k++) {
                    uint8_t byte;
                    fl_chain_copy_out(&message, k, &byte, 1);
                    if (byte != (uint8_t)(got + (int)k))
                        fail_msg("seed %llu: byte %u of %d", (unsigned long long)seed, k, got);
                    if (k > 50)
                        k += 97;
                }
                fl_chain_fini(&message);
                got++;
            }
        }
        assert_int_equal(got, 20);
        fl_grpc_reader_fini(&reader);
        fl_buf_fini(&wire);
    }
}

static void flatten_without_memory_keeps_the_message(void **state)
{
    (void)state;
    struct fl_budget budget = {.cap_bytes = 10};
    struct fl_chain message = {0};
    struct fl_slice flat;
    fl_chain_push(&message, slice_of("0123456", 7));
    fl_chain_push(&message, slice_of("789abcd", 7));
    assert_int_equal(fl_grpc_flatten(&message, &budget, &flat), FL_ENOMEM);
    assert_true(fl_chain_eq_bytes(&message, FL_BYTES("0123456789abcd")));
    fl_alloc_fail_at(1);
    assert_int_equal(fl_grpc_flatten(&message, NULL, &flat), FL_ENOMEM);
    fl_alloc_fail_at(0);
    assert_int_equal(fl_grpc_flatten(&message, NULL, &flat), 0);
    fl_slice_unref(&flat);
}

/* gaie.md 1.1: grpc-timeout units H M S m u n */
static void timeouts(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool ok;
        uint64_t ms;
    } rows[] = {
        {"10S", true, 10000},
        {"500m", true, 500},
        {"1H", true, 3600000},
        {"2M", true, 120000},
        {"1u", true, 1},
        {"1500u", true, 2},
        {"1n", true, 1},
        {"0S", true, 0},
        {"99999999H", true, UINT64_C(359999996400000)},
        {"100000000S", false, 0},
        {"S", false, 0},
        {"", false, 0},
        {"10", false, 0},
        {"10s", false, 0},
        {"-1S", false, 0},
        {" 1S", false, 0},
        {"1 S", false, 0},
        {"1.5S", false, 0},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        uint64_t ms = 77;
        bool ok = fl_grpc_timeout_parse(fl_bytes_of(rows[i].text), &ms);
        if (ok != rows[i].ok || ms != (ok ? rows[i].ms : 77))
            fail_msg("\"%s\": %d %llu", rows[i].text, ok, (unsigned long long)ms);
    }
}

/* gaie.md 1.1: accept any application/grpc* */
static void content_types(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool ok;
    } rows[] = {
        {"application/grpc", true},
        {"application/grpc+proto", true},
        {"Application/GRPC", true},
        {"application/grpc; charset=utf-8", true},
        {"application/grp", false},
        {"application/json", false},
        {"", false},
        {NULL, false},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++)
        assert_int_equal(fl_grpc_is_content_type(fl_bytes_of(rows[i].text)), rows[i].ok);
}

/* gaie.md 1.1: grpc-message is percent-encoded */
static void status_travels_in_fields(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *message, *encoded;
    } rows[] = {
        {0, "", NULL},
        {3, "plain words, ~ and space", "plain words, ~ and space"},
        {13, "100% \n caf\xc3\xa9", "100%25 %0A caf%C3%A9"},
        {16, "\x7f", "%7F"},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_arena arena = {0};
        struct fl_fields fields = {0};
        struct fl_head head = {.status = 200};
        struct fl_bytes message;
        fl_grpc_add_status(&fields, &arena, rows[i].status, fl_bytes_of(rows[i].message));
        assert_true(fl_bytes_eq(fl_fields_get(&fields, FL_BYTES("grpc-message")),
                                fl_bytes_of(rows[i].encoded)));
        assert_int_equal(fl_grpc_read_status(&head, &fields, &arena, &message), rows[i].status);
        assert_true(fl_bytes_eq(message, fl_bytes_of(rows[i].message)));
        assert_int_equal(fl_bytes_is_absent(message), rows[i].encoded == NULL);
        /* trailers-only */
        head.fields = fields;
        assert_int_equal(fl_grpc_read_status(&head, NULL, &arena, NULL), rows[i].status);
        fl_arena_fini(&arena);
    }
}

static void message_is_cut_at_its_cap(void **state)
{
    (void)state;
    static char text[FL_GRPC_MESSAGE_MAX + 2];
    memset(text, 'm', sizeof(text) - 1);
    for (size_t n = FL_GRPC_MESSAGE_MAX - 1; n <= FL_GRPC_MESSAGE_MAX + 1; n++) {
        struct fl_arena arena = {0};
        struct fl_fields fields = {0};
        fl_grpc_add_status(&fields, &arena, 2, fl_bytes(text, n));
        size_t want = n < FL_GRPC_MESSAGE_MAX ? n : FL_GRPC_MESSAGE_MAX;
        assert_int_equal(fl_fields_get(&fields, FL_BYTES("grpc-message")).n, want);
        fl_arena_fini(&arena);
    }
}

static void answers_without_a_status_are_judged_by_http(void **state)
{
    (void)state;
    static const struct {
        int http;
        const char *status;
        int grpc;
    } rows[] = {
        {200, NULL, 2},  {400, NULL, 13}, {401, NULL, 16}, {403, NULL, 7},  {404, NULL, 12},
        {429, NULL, 14}, {502, NULL, 14}, {503, NULL, 14}, {504, NULL, 14}, {500, NULL, 2},
        {503, "8", 8},   {200, "17", 2},  {200, "x", 2},   {200, "", 2},    {200, "0", 0},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_arena arena = {0};
        struct fl_head head = {.status = (uint16_t)rows[i].http};
        if (rows[i].status != NULL)
            fl_fields_add(&head.fields, &arena, FL_BYTES("grpc-status"),
                          fl_bytes_of(rows[i].status));
        if (fl_grpc_read_status(&head, NULL, &arena, NULL) != rows[i].grpc)
            fail_msg("HTTP %d, grpc-status %s", rows[i].http, rows[i].status);
        fl_arena_fini(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_come_out_whole_wherever_they_are_cut),
        cmocka_unit_test(next_says_more_until_the_last_byte),
        cmocka_unit_test(prefix_is_judged_at_once),
        cmocka_unit_test(large_messages_are_not_copied),
        cmocka_unit_test(crumbs_are_joined),
        cmocka_unit_test(random_cuts_change_nothing),
        cmocka_unit_test(flatten_without_memory_keeps_the_message),
        cmocka_unit_test(timeouts),
        cmocka_unit_test(content_types),
        cmocka_unit_test(status_travels_in_fields),
        cmocka_unit_test(message_is_cut_at_its_cap),
        cmocka_unit_test(answers_without_a_status_are_judged_by_http),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
