/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"
#include "codec/sse.h"

#define SEED 7129

static int log_line(void *owner, enum fl_sse_line line, struct fl_bytes value)
{
    static const char names[] = {
        [FL_SSE_DATA] = 'D', [FL_SSE_DONE] = '!', [FL_SSE_NAME] = 'N', [FL_SSE_BLANK] = '/'};
    struct fl_buf *log = owner;

    fl_buf_append_byte(log, (uint8_t)names[line]);
    if (line == FL_SSE_DATA || line == FL_SSE_NAME)
        fl_buf_printf(log, "<%.*s>", FL_FMT(value));
    return 0;
}

/* Feeds a heap copy of exactly that size, so that AddressSanitizer sees a read past it. */
static void feed_copy(struct fl_sse *sse, struct fl_bytes bytes)
{
    uint8_t *copy = malloc(bytes.n > 0 ? bytes.n : 1);
    assert_non_null(copy);
    memcpy(copy, bytes.p, bytes.n);
    assert_int_equal(fl_sse_feed(sse, fl_bytes(copy, bytes.n)), 0);
    free(copy);
}

/* The log of `text` in pieces: whole (0), byte by byte (1), or cut at random. */
static void read_cut(struct fl_buf *log, struct fl_bytes text, int how, struct fl_rng *rng)
{
    struct fl_sse sse;

    fl_sse_init(&sse, log_line, log);
    while (text.n > 0) {
        size_t n = how == 0 ? text.n : how == 1 ? 1 : (size_t)fl_rng_below(rng, text.n + 1);
        feed_copy(&sse, fl_bytes_head(text, n));
        text = fl_bytes_skip(text, n);
    }
    assert_int_equal(fl_sse_end(&sse), 0);
    fl_sse_fini(&sse);
    fl_sse_fini(&sse);
}

/* epp.md 10.7, 4.6; gaie.md 3 */
static void lines_are_told_wherever_the_body_is_cut(void **state)
{
    (void)state;
    static const struct {
        const char *why, *text, *log;
    } rows[] = {
        {"one event", "data: {\"a\":1}\n\n", "D<{\"a\":1}>/"},
        {"CRLF", "data: 1\r\n\r\ndata: 2\r\n\r\n", "D<1>/D<2>/"},
        {"CR alone", "data: 1\r\rdata: 2\r\r", "D<1>/D<2>/"},
        {"all ends mixed", "data: 1\r\n\rdata: 2\n\r\n", "D<1>/D<2>/"},
        {"without the blank", "data:1\n\n", "D<1>/"},
        {"only one blank goes", "data:  1 \n\n", "D< 1 >/"},
        {"a tab stays", "data:\t1\n\n", "D<\t1>/"},
        {"several events in one piece", "data: 1\n\ndata: 2\n\ndata: 3\n\n", "D<1>/D<2>/D<3>/"},
        {"[DONE]", "data: 1\n\ndata: [DONE]\n\n", "D<1>/!/"},
        {"[DONE] without the blank", "data:[DONE]\r\n\r\n", "!/"},
        {"text around [DONE] is data", "data: [DONE] \n", "D<[DONE] >"},
        {"empty payload", "data:\ndata: \ndata\n", ""},
        {"names", "event: error\ndata: x\n\n", "N<error>D<x>/"},
        {"name without colon", "event\n", "N<>"},
        {"comments, ids, retry", ": ping\nid: 7\nretry: 10\ndata: x\n", "D<x>"},
        {"comment alone", ":\n\n", "/"},
        {"longer field names", "database: x\ndata-x: y\nevents: z\n", ""},
        {"field names have a case", "Data: x\nDATA: y\n", ""},
        {"blank before the field", " data: x\n", ""},
        {"colons in the payload", "data: a: b:\n", "D<a: b:>"},
        {"no end of line at the end", "data: 1\n\ndata: 2", "D<1>/D<2>"},
        {"ends in CR", "data: 1\r", "D<1>"},
        {"byte order mark",
         "\xef\xbb\xbf"
         "data: 1\n\xef\xbb\xbf"
         "data: 2\n",
         "D<1>"},
        {"two data lines", "data: 1\ndata: 2\n\n", "D<1>D<2>/"},
        {"nothing", "", ""},
        {"split characters", "data: \xf0\x9f\x98\x80\n", "D<\xf0\x9f\x98\x80>"},
    };
    struct fl_rng rng;

    fl_rng_seed(&rng, SEED);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        for (int how = 0; how < 20; how++) {
            struct fl_buf log = {0};
            read_cut(&log, fl_bytes_of(rows[i].text), how, &rng);
            if (!fl_bytes_eq(fl_buf_bytes(&log), fl_bytes_of(rows[i].log)))
                fail_msg("row %zu, %s (cut %d, seed %d): %.*s", i, rows[i].why, how, SEED,
                         FL_FMT(fl_buf_bytes(&log)));
            fl_buf_fini(&log);
        }
    }
}

static int count_line(void *owner, enum fl_sse_line line, struct fl_bytes value)
{
    size_t *bytes = owner;
    if (line == FL_SSE_DATA)
        *bytes += value.n;
    return 0;
}

/* epp.md 4.6: a line over 64 KiB is dropped, the stream goes on */
static void a_line_beyond_the_cap_is_dropped_and_reading_goes_on(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        size_t line_bytes; /* of the first line, without its end */
        size_t told;       /* payload bytes of both lines */
        uint64_t dropped;
    } rows[] = {
        {"one below", FL_SSE_MAX_LINE - 1, FL_SSE_MAX_LINE - 1 - 6 + 1, 0},
        {"at the cap", FL_SSE_MAX_LINE, FL_SSE_MAX_LINE - 6 + 1, 0},
        {"one above", FL_SSE_MAX_LINE + 1, 1, 1},
        {"far above", FL_SSE_MAX_LINE * 5 + 3, 1, 1},
    };
    static const size_t pieces[] = {1, 4096, FL_SSE_MAX_LINE, FL_SSE_MAX_LINE * 8};

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_buf text = {0};
        fl_buf_append(&text, FL_BYTES("data: "));
        while (fl_buf_size(&text) < rows[i].line_bytes)
            fl_buf_append_byte(&text, 'x');
        fl_buf_append(&text, FL_BYTES("\r\ndata: y\n"));
        for (size_t k = 0; k < FL_ARRAY_LEN(pieces); k++) {
            struct fl_sse sse;
            size_t told = 0;
            fl_sse_init(&sse, count_line, &told);
            for (struct fl_bytes rest = fl_buf_bytes(&text); rest.n > 0;
                 rest = fl_bytes_skip(rest, pieces[k]))
                fl_sse_feed(&sse, fl_bytes_head(rest, pieces[k]));
            if (told != rows[i].told || sse.dropped_lines != rows[i].dropped)
                fail_msg("%s in pieces of %zu: %zu told, %zu dropped", rows[i].why, pieces[k], told,
                         (size_t)sse.dropped_lines);
            fl_sse_fini(&sse);
        }
        fl_buf_fini(&text);
    }
}

static void an_endless_line_at_the_end_is_dropped_too(void **state)
{
    (void)state;
    struct fl_sse sse;
    size_t told = 0;
    static char junk[FL_SSE_MAX_LINE + 1];

    memset(junk, 'x', sizeof(junk));
    fl_sse_init(&sse, count_line, &told);
    fl_sse_feed(&sse, FL_BYTES("data: "));
    fl_sse_feed(&sse, fl_bytes(junk, sizeof(junk)));
    assert_int_equal(fl_buf_size(&sse.cut), 0); /* nothing is held while dropping */
    fl_sse_end(&sse);
    assert_int_equal(told, 0);
    assert_int_equal(sse.dropped_lines, 1);
    fl_sse_fini(&sse);
}

static void nothing_is_held_between_lines(void **state)
{
    (void)state;
    struct fl_sse sse;
    size_t told = 0;

    fl_sse_init(&sse, count_line, &told);
    fl_sse_feed(&sse, FL_BYTES("data: 12"));
    assert_non_null(sse.cut.start);
    fl_sse_feed(&sse, FL_BYTES("34\n\n"));
    assert_int_equal(told, 4);
    assert_null(sse.cut.start);
    fl_sse_feed(&sse, FL_BYTES("data: 1\n\n"));
    assert_null(sse.cut.start); /* a whole line was never copied */
    fl_sse_fini(&sse);
}

static void a_leading_byte_order_mark_is_noted(void **state)
{
    (void)state;
    struct fl_sse sse;
    size_t told = 0;

    fl_sse_init(&sse, count_line, &told);
    fl_sse_feed(&sse, FL_BYTES("\xef\xbb\xbf"
                               "data: 1\n"));
    assert_true(sse.has_bom);
    fl_sse_fini(&sse);
    fl_sse_init(&sse, count_line, &told);
    fl_sse_feed(&sse, FL_BYTES("data: 1\n"));
    assert_false(sse.has_bom);
    fl_sse_fini(&sse);
}

static int stop_at_done(void *owner, enum fl_sse_line line, struct fl_bytes value)
{
    int *lines = owner;
    (void)value;
    ++*lines;
    return line == FL_SSE_DONE ? FL_ECANCELLED : 0;
}

static void the_reader_stops_when_told(void **state)
{
    (void)state;
    struct fl_sse sse;
    int lines = 0;

    fl_sse_init(&sse, stop_at_done, &lines);
    assert_int_equal(fl_sse_feed(&sse, FL_BYTES("data: 1\n\ndata: [DONE]\n\ndata: 2\n")),
                     FL_ECANCELLED);
    assert_int_equal(lines, 3);
    fl_sse_fini(&sse);
}

static void without_memory_a_cut_line_is_dropped(void **state)
{
    (void)state;
    struct fl_sse sse;
    size_t told = 0;

    fl_sse_init(&sse, count_line, &told);
    fl_alloc_fail_at(1);
    fl_sse_feed(&sse, FL_BYTES("data: 12"));
    fl_alloc_fail_at(0);
    fl_sse_feed(&sse, FL_BYTES("34\ndata: 5\n"));
    assert_int_equal(told, 1);
    assert_int_equal(sse.dropped_lines, 1);
    fl_sse_fini(&sse);
}

static void written_events_read_back(void **state)
{
    (void)state;
    struct fl_buf out = {0};

    assert_int_equal(fl_sse_write(&out, (struct fl_bytes){0}, FL_BYTES("{\"a\":1}")), 0);
    assert_int_equal(fl_sse_write(&out, FL_BYTES("error"), FL_BYTES("x\ny")), 0);
    assert_int_equal(fl_sse_write(&out, (struct fl_bytes){0}, FL_BYTES("[DONE]")), 0);
    assert_true(fl_bytes_eq(fl_buf_bytes(&out),
                            FL_BYTES("data: {\"a\":1}\n\nevent: error\ndata: x\ndata: y\n\n"
                                     "data: [DONE]\n\n")));
    struct fl_buf log = {0};
    read_cut(&log, fl_buf_bytes(&out), 1, NULL);
    assert_true(fl_bytes_eq(fl_buf_bytes(&log), FL_BYTES("D<{\"a\":1}>/N<error>D<x>D<y>/!/")));
    fl_buf_fini(&log);
    fl_buf_fini(&out);

    fl_buf_init(&out, 10);
    assert_int_equal(fl_sse_write(&out, (struct fl_bytes){0}, FL_BYTES("12345")), FL_ELIMIT);
    fl_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_told_wherever_the_body_is_cut),
        cmocka_unit_test(a_line_beyond_the_cap_is_dropped_and_reading_goes_on),
        cmocka_unit_test(an_endless_line_at_the_end_is_dropped_too),
        cmocka_unit_test(nothing_is_held_between_lines),
        cmocka_unit_test(a_leading_byte_order_mark_is_noted),
        cmocka_unit_test(the_reader_stops_when_told),
        cmocka_unit_test(without_memory_a_cut_line_is_dropped),
        cmocka_unit_test(written_events_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
