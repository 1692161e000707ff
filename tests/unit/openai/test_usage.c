/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "openai/usage.h"

#define SEED 4711

#define USAGE(p, c)                                                                                \
    "\"usage\":{\"prompt_tokens\":" #p ",\"completion_tokens\":" #c ",\"total_tokens\":99,"        \
    "\"prompt_tokens_details\":{\"audio_tokens\":3,\"cached_tokens\":4}}"

struct row {
    const char *why;
    bool is_sse;
    const char *body;
    bool found;
    uint64_t prompt, completion, total, cached;
};

/* epp.md 10.7; gaie.md 3 */
static const struct row rows[] = {
    {"unary", false, "{\"id\":\"x\",\"choices\":[]," USAGE(7, 8) "}", true, 7, 8, 99, 4},
    {"unary with blanks", false, " {\n \"usage\" : { \"prompt_tokens\" : 7 } } \n", true, 7, 0, 0,
     0},
    {"unary, details null", false,
     "{\"usage\":{\"prompt_tokens\":7,\"prompt_tokens_details\":null}}", true, 7, 0, 0, 0},
    {"unary, null", false, "{\"usage\":null}", false, 0, 0, 0, 0},
    {"unary, none", false, "{\"choices\":[]}", false, 0, 0, 0, 0},
    {"unary, no object", false, "{\"usage\":7}", false, 0, 0, 0, 0},
    {"unary, deeper is another", false, "{\"choices\":[{" USAGE(7, 8) "}]}", false, 0, 0, 0, 0},
    {"unary, last wins", false, "{" USAGE(1, 2) "," USAGE(7, 8) "}", true, 7, 8, 99, 4},
    {"unary, empty object", false, "{\"usage\":{}}", true, 0, 0, 0, 0},
    {"unary, counts that are none", false,
     "{\"usage\":{\"prompt_tokens\":-1,\"completion_tokens\":\"8\",\"total_tokens\":1.5}}", true, 0,
     0, 0, 0},
    {"unary, responses API", false,
     "{\"object\":\"response\",\"usage\":{\"input_tokens\":7,\"output_tokens\":8,\"total_tokens\":"
     "15,"
     "\"input_tokens_details\":{\"cached_tokens\":4}}}",
     true, 7, 8, 15, 4},
    {"unary, messages API", false,
     "{\"usage\":{\"input_tokens\":7,\"output_tokens\":8,\"cache_read_input_tokens\":4}}", true, 7,
     8, 0, 4},
    {"empty body", false, "", false, 0, 0, 0, 0},
    {"not JSON", false, "<html>usage</html>", false, 0, 0, 0, 0},
    /* the middle is left out */
    {"unary, middle missing", false,
     "{\"id\":\"x\",\"choices\":[{\"text\":\"so it begi and ends\"}]," USAGE(7, 8) "}", true, 7, 8,
     99, 4},
    {"unary, cut in a string", false,
     "{\"id\":\"x\",\"choices\":[{\"text\":\"ab\\tail \\\" x\"}],\"usage\": {\"prompt_tokens\": "
     "7}}",
     true, 7, 0, 0, 0},
    {"unary, the last that is one", false,
     "xx" USAGE(1, 2) "," USAGE(7, 8) ",\"a\":\"\\\"usage\\\":{}\"}", true, 7, 8, 99, 4},
    {"unary, null behind", false, "x" USAGE(7, 8) "},\"usage\":null}", true, 7, 8, 99, 4},
    {"unary, object not closed", false, "x\"usage\":{\"prompt_tokens\":7", false, 0, 0, 0, 0},
    {"unary, braces in strings", false, "x\"usage\":{\"a\":\"}\\\"}{\",\"prompt_tokens\":7}}", true,
     7, 0, 0, 0},
    {"unary, no colon", false, "x\"usage\"{\"prompt_tokens\":7}", false, 0, 0, 0, 0},
    {"unary, two colons", false, "x\"usage\"::{\"prompt_tokens\":7}", false, 0, 0, 0, 0},
    {"unary, name at the very end", false, "x\"usage\"", false, 0, 0, 0, 0},
    {"unary, nested objects", false, "x" USAGE(7, 8) "]", true, 7, 8, 99, 4},
    /* event streams */
    {"stream", true,
     "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n"
     "data: {\"choices\":[]," USAGE(7, 8) "}\n\ndata: [DONE]\n\n",
     true, 7, 8, 99, 4},
    {"stream, CRLF and no blank", true,
     "data:{\"choices\":[]," USAGE(7, 8) "}\r\n\r\ndata:[DONE]\r\n\r\n", true, 7, 8, 99, 4},
    {"stream, last that is not null wins", true,
     "data: {" USAGE(1, 2) "}\n\ndata: {" USAGE(7, 8) "}\n\ndata: {\"usage\":null}\n\n", true, 7, 8,
     99, 4},
    {"stream, the later one stands alone", true,
     "data: {" USAGE(1, 2) "}\n\ndata: {\"usage\":{\"prompt_tokens\":5}}\n\n", true, 5, 0, 0, 0},
    {"stream, none", true, "data: {\"choices\":[]}\n\ndata: [DONE]\n\n", false, 0, 0, 0, 0},
    {"stream, the word in a text", true,
     "data: {\"choices\":[{\"delta\":{\"content\":\"usage\"}}]}\n\n", false, 0, 0, 0, 0},
    {"stream, malformed line skipped", true,
     "data: {\"usage\":{\"prompt_tokens\":1}\n\ndata: {" USAGE(7, 8) "}\n\ndata: usage\n\n", true,
     7, 8, 99, 4},
    {"stream, middle missing", true,
     "data: {\"choices\":[{\"delta\":{\"cont\"x\"}}]}\n\ndata: {" USAGE(7,
                                                                        8) "}\n\ndata: [DONE]\n\n",
     true, 7, 8, 99, 4},
    {"stream without a last line end", true, "data: {" USAGE(7, 8) "}", true, 7, 8, 99, 4},
    {"stream, responses API", true,
     "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":"
     "{\"input_tokens\":7,\"output_tokens\":8}}}\n\n",
     true, 7, 8, 0, 0},
    {"stream, response without usage", true, "data: {\"response\":{\"x\":\"usage\"}}\n\n", false, 0,
     0, 0, 0},
};

static void usage_is_found_wherever_the_body_is_cut(void **state)
{
    (void)state;
    struct fl_rng rng;

    fl_rng_seed(&rng, SEED);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        for (int how = 0; how < 12; how++) {
            struct fl_usage_scan scan;
            struct fl_usage usage = {0};
            struct fl_bytes rest = fl_bytes_of(rows[i].body);
            fl_usage_scan_init(&scan, rows[i].is_sse);
            while (rest.n > 0) {
                size_t n = how == 0 ? rest.n : how == 1 ? 1 : fl_rng_below(&rng, rest.n + 1);
                fl_usage_scan_feed(&scan, fl_bytes_head(rest, n));
                rest = fl_bytes_skip(rest, n);
            }
            bool found = fl_usage_scan_finish(&scan, &usage);
            if (found != rows[i].found || usage.prompt_tokens != rows[i].prompt ||
                usage.completion_tokens != rows[i].completion ||
                usage.total_tokens != rows[i].total || usage.cached_tokens != rows[i].cached)
                fail_msg("row %zu, %s (cut %d, seed %d)", i, rows[i].why, how, SEED);
            fl_usage_scan_fini(&scan);
            fl_usage_scan_fini(&scan);
        }
    }
}

static void events_and_the_end_of_a_stream_are_counted(void **state)
{
    (void)state;
    struct fl_usage_scan scan;
    struct fl_usage usage;

    fl_usage_scan_init(&scan, true);
    fl_usage_scan_feed(&scan, FL_BYTES("data: {}\n\n: ping\n\ndata: {}\n\n"));
    assert_int_equal(scan.events, 2);
    assert_false(scan.is_done);
    fl_usage_scan_feed(&scan, FL_BYTES("data: [DONE]\n\n"));
    assert_int_equal(scan.events, 2);
    assert_true(scan.is_done);
    assert_false(fl_usage_scan_finish(&scan, &usage));
    fl_usage_scan_fini(&scan);
}

/* epp.md 4.3: at most 1 MiB of a unary body is kept; 10.7: of a longer one the end is searched */
static void a_long_unary_body_is_bounded_and_its_end_is_read(void **state)
{
    (void)state;
    static const char head[] = "{\"text\":\"";
    static const char tail[] = "\"," USAGE(7, 8) "}";
    static const struct {
        size_t bytes;
        bool is_cut;
    } sizes[] = {
        {FL_USAGE_MAX_UNARY - 1, false},
        {FL_USAGE_MAX_UNARY, false},
        {FL_USAGE_MAX_UNARY + 1, true},
        {5 * FL_USAGE_MAX_UNARY + 12345, true},
    };
    static const size_t pieces[] = {1000, 65536, 3 * FL_USAGE_MAX_UNARY, SIZE_MAX / 2};
    char *body = malloc(6 * FL_USAGE_MAX_UNARY);

    assert_non_null(body);
    for (size_t i = 0; i < FL_ARRAY_LEN(sizes); i++) {
        size_t n = sizes[i].bytes;
        memset(body, 'x', n);
        memcpy(body, head, sizeof(head) - 1);
        memcpy(body + n - (sizeof(tail) - 1), tail, sizeof(tail) - 1);
        for (size_t k = 0; k < FL_ARRAY_LEN(pieces); k++) {
            struct fl_usage_scan scan;
            struct fl_usage usage;
            fl_usage_scan_init(&scan, false);
            for (struct fl_bytes rest = fl_bytes(body, n); rest.n > 0;
                 rest = fl_bytes_skip(rest, pieces[k])) {
                fl_usage_scan_feed(&scan, fl_bytes_head(rest, pieces[k]));
                assert_true(fl_buf_size(&scan.unary) <= FL_USAGE_MAX_UNARY);
            }
            assert_int_equal(scan.is_cut, sizes[i].is_cut);
            if (!fl_usage_scan_finish(&scan, &usage) || usage.prompt_tokens != 7)
                fail_msg("%zu bytes in pieces of %zu", n, pieces[k]);
            fl_usage_scan_fini(&scan);
        }
    }
    free(body);
}

/* epp.md 4.6: a line over 64 KiB is dropped */
static void usage_behind_a_line_too_long_is_found(void **state)
{
    (void)state;
    struct fl_usage_scan scan;
    struct fl_usage usage;
    static char junk[3 * FL_SSE_MAX_LINE];

    memset(junk, 'x', sizeof(junk));
    fl_usage_scan_init(&scan, true);
    fl_usage_scan_feed(&scan, FL_BYTES("data: {\"a\":\""));
    fl_usage_scan_feed(&scan, fl_bytes(junk, sizeof(junk)));
    fl_usage_scan_feed(&scan, FL_BYTES("\"}\n\ndata: {" USAGE(7, 8) "}\n\n"));
    assert_true(fl_usage_scan_finish(&scan, &usage));
    assert_int_equal(usage.completion_tokens, 8);
    assert_int_equal(scan.sse.dropped_lines, 1);
    fl_usage_scan_fini(&scan);
}

/* Text full of what looks like usage must not cost a search each. */
static void lookalikes_end_the_search_early(void **state)
{
    (void)state;
    struct fl_usage_scan scan;
    struct fl_usage usage;

    fl_usage_scan_init(&scan, false);
    fl_usage_scan_feed(&scan, FL_BYTES("x" USAGE(7, 8) ","));
    for (int i = 0; i < 100000; i++)
        fl_usage_scan_feed(&scan, FL_BYTES("\"usage\":{"));
    assert_false(fl_usage_scan_finish(&scan, &usage));
    fl_usage_scan_fini(&scan);
}

static void without_memory_there_is_no_usage_and_no_harm(void **state)
{
    (void)state;
    struct fl_usage_scan scan;
    struct fl_usage usage;

    fl_usage_scan_init(&scan, false);
    for (uint64_t n = 1; n <= 2; n++) {
        fl_alloc_fail_at(n);
        fl_usage_scan_feed(&scan, FL_BYTES("{\"usage\":{\"prompt_tokens\":7}}"));
        fl_alloc_fail_at(0);
    }
    fl_usage_scan_finish(&scan, &usage);
    fl_usage_scan_fini(&scan);

    fl_usage_scan_init(&scan, true);
    fl_alloc_fail_at(1);
    fl_usage_scan_feed(&scan, FL_BYTES("data: {\"usage\":{\"prompt_tok"));
    fl_alloc_fail_at(0);
    fl_usage_scan_feed(&scan, FL_BYTES("ens\":1}}\n\ndata: {" USAGE(7, 8) "}\n\n"));
    assert_true(fl_usage_scan_finish(&scan, &usage));
    assert_int_equal(usage.prompt_tokens, 7);
    fl_usage_scan_fini(&scan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usage_is_found_wherever_the_body_is_cut),
        cmocka_unit_test(events_and_the_end_of_a_stream_are_counted),
        cmocka_unit_test(a_long_unary_body_is_bounded_and_its_end_is_read),
        cmocka_unit_test(usage_behind_a_line_too_long_is_found),
        cmocka_unit_test(lookalikes_end_the_search_early),
        cmocka_unit_test(without_memory_there_is_no_usage_and_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
