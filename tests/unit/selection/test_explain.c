/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "codec/json.h"
#include "selection/explain.h"

static void write_pick(struct fl_explain *ring, const char *id, uint64_t worker, uint32_t count)
{
    struct fl_scoring scoring = {.weights = {.credit = 1, .prefill_scale = 1},
                                 .isl_tokens = 512,
                                 .block_tokens = 16,
                                 .request_blocks = 32,
                                 .prompt_blocks = 32,
                                 .tracks_prefill = true,
                                 .tracks_blocks = true};
    static _Thread_local struct fl_candidates c;
    c = (struct fl_candidates){.count = count, .has_overlap = true};
    for (uint32_t i = 0; i < count; i++) {
        /* Every number of a row follows from its worker, so a torn row shows. */
        c.worker_id[i] = worker + i;
        c.prefill_tokens[i] = (double)(16 * worker);
        c.blocks[i] = (double)worker;
        c.requests[i] = (double)worker;
        c.cost[i] = (double)(worker + i);
        c.device[i] = (uint32_t)worker;
    }
    struct fl_pick pick = {.id = fl_bytes_of(id),
                           .model_name = FL_BYTES("m"),
                           .routing_group = FL_BYTES("default"),
                           .policy = "kv-cost",
                           .time_ms = 1700000000123,
                           .isl_tokens = 512,
                           .worker_id = worker,
                           .ties = 1};
    fl_explain_write(ring, &pick, &scoring, &c);
}

static struct fl_bytes read_all(struct fl_explain *ring, uint32_t limit, const char *id,
                                struct fl_buf *out)
{
    struct fl_explain_filter filter = {.limit = limit, .id = fl_bytes_of(id)};
    fl_buf_clear(out);
    assert_int_equal(fl_explain_write_json(ring, &filter, out), 0);
    return fl_buf_bytes(out);
}

static void assert_text(struct fl_bytes actual, const char *expected)
{
    if (!fl_bytes_eq(actual, fl_bytes_of(expected)))
        fail_msg("got      %.*s\nexpected %s", FL_FMT(actual), expected);
}

/* selection.md 9.8: the members of the example, in its order and types */
static void row_has_the_documented_members(void **state)
{
    (void)state;
    struct fl_explain *ring = fl_explain_new();
    struct fl_buf out = {0};
    assert_text(read_all(ring, 20, NULL, &out), "[]");

    struct fl_scoring scoring = {.weights = {.credit = 1, .prefill_scale = 1},
                                 .isl_tokens = 512,
                                 .block_tokens = 16,
                                 .request_blocks = 32,
                                 .prompt_blocks = 32,
                                 .tracks_prefill = true,
                                 .tracks_blocks = true};
    static struct fl_candidates c;
    c.count = 2;
    c.worker_id[0] = 11;
    c.blocks[0] = 10;
    c.requests[0] = 1;
    c.cost[0] = 74;
    c.worker_id[1] = 12;
    c.filter[1] = FL_FILTER_TAINT;
    struct fl_pick pick = {.id = FL_BYTES("r-77"),
                           .model_name = FL_BYTES("m"),
                           .routing_group = FL_BYTES("default"),
                           .policy = "kv-cost",
                           .time_ms = 1700000000123,
                           .isl_tokens = 512,
                           .worker_id = 11,
                           .ties = 1};
    fl_explain_write(ring, &pick, &scoring, &c);
    struct fl_bytes text = read_all(ring, 20, NULL, &out);
    struct fl_json doc = {0};
    assert_int_equal(fl_json_parse(&doc, text, NULL), 0);
    fl_json_fini(&doc);
    static const char *const parts[] = {
        "\"id\":\"r-77\",\"time_ms\":1700000000123,\"model_name\":\"m\",\"routing_group\":"
        "\"default\","
        "\"policy\":\"kv-cost\",\"isl_tokens\":512,\"request_blocks\":32,\"worker_id\":11,"
        "\"dp_rank\":0,\"ties\":1,\"temperature\":",
        "\"queued_ms\":0,\"candidates_left_out\":0,\"candidates\":[{\"worker_id\":11,\"dp_rank\":0,"
        "\"device_blocks\":0,\"host_blocks\":0,\"disk_blocks\":0,\"active_prefill_tokens\":0,"
        "\"raw\":32",
        "\"decode_blocks\":42,\"active_requests\":1,\"cost\":74",
        "{\"worker_id\":12,\"dp_rank\":0,\"filtered\":\"taint\"}]}]",
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(parts); i++)
        if (fl_bytes_find(text, fl_bytes_of(parts[i])) == text.n)
            fail_msg("no %s in %.*s", parts[i], FL_FMT(text));
    fl_buf_fini(&out);
    fl_explain_free(ring);
}

static size_t count_of(struct fl_bytes text, const char *needle)
{
    size_t count = 0;
    struct fl_bytes what = fl_bytes_of(needle);
    for (size_t at; (at = fl_bytes_find(text, what)) < text.n; count++)
        text = fl_bytes_skip(text, at + what.n);
    return count;
}

/* selection.md 9.8: 4,096 rows, newest first, limit and id */
static void ring_keeps_the_newest(void **state)
{
    (void)state;
    struct fl_explain *ring = fl_explain_new();
    struct fl_buf out = {0};
    char id[16];
    for (uint32_t i = 1; i <= FL_EXPLAIN_ROWS + 10; i++) {
        snprintf(id, sizeof id, "r%u", i);
        write_pick(ring, id, i, 1);
    }
    struct fl_bytes text = read_all(ring, FL_EXPLAIN_ROWS, NULL, &out);
    assert_int_equal(count_of(text, "\"id\":"), FL_EXPLAIN_ROWS);
    text = read_all(ring, 2, NULL, &out);
    assert_int_equal(count_of(text, "\"id\":"), 2);
    snprintf(id, sizeof id, "[{\"id\":\"r%u\"", FL_EXPLAIN_ROWS + 10);
    assert_true(fl_bytes_has_prefix(text, fl_bytes_of(id)));
    assert_int_equal(count_of(read_all(ring, 20, "r11", &out), "\"id\":\"r11\""), 1);
    assert_text(read_all(ring, 20, "r10", &out), "[]"); /* just overwritten */
    struct fl_explain_filter filter = {.limit = 20, .has_worker = true, .worker_id = 50};
    fl_buf_clear(&out);
    assert_int_equal(fl_explain_write_json(ring, &filter, &out), 0);
    assert_int_equal(count_of(fl_buf_bytes(&out), "\"id\":\"r50\""), 1);
    fl_buf_fini(&out);
    fl_explain_free(ring);
}

/* epp.md 19.6: the chosen one first, then the cheapest; the filtered last */
static void candidates_are_ordered_when_read(void **state)
{
    (void)state;
    struct fl_explain *ring = fl_explain_new();
    struct fl_scoring scoring = {.block_tokens = 16};
    static struct fl_candidates c;
    static const double costs[] = {9, 7, 0, 3, 0, 5};
    static const uint64_t expected[] = {0, 3, 5, 1, 2, 4};
    c.count = 6;
    for (uint32_t i = 0; i < 6; i++) {
        c.worker_id[i] = i;
        c.cost[i] = costs[i];
        c.filter[i] = i == 2 || i == 4 ? FL_FILTER_NOT_ALLOWED : FL_FILTER_NONE;
    }
    struct fl_pick pick = {.id = FL_BYTES("r"), .policy = "kv-cost"};
    fl_explain_write(ring, &pick, &scoring, &c);
    struct fl_buf out = {0};
    struct fl_bytes rest = read_all(ring, 1, NULL, &out);
    rest = fl_bytes_skip(rest, fl_bytes_find(rest, FL_BYTES("candidates\":[")));
    for (size_t i = 0; i < FL_ARRAY_LEN(expected); i++) {
        static const char key[] = "\"worker_id\":";
        rest = fl_bytes_skip(rest, fl_bytes_find(rest, fl_bytes_of(key)) + strlen(key));
        assert_int_equal(rest.p[0] - '0', expected[i]);
    }
    fl_buf_fini(&out);
    fl_explain_free(ring);
}

struct writers {
    struct fl_explain *ring;
};

static void *writer(void *arg)
{
    struct writers *w = arg;
    char id[16];
    for (uint32_t i = 1; i <= 4000; i++) {
        snprintf(id, sizeof id, "w%u", i);
        write_pick(w->ring, id, i, 8);
    }
    return NULL;
}

/* acceptance test 18: four threads writing while one reads; a row that is being overwritten is
 * skipped */
static void reader_never_sees_a_torn_row(void **state)
{
    (void)state;
    struct writers w = {.ring = fl_explain_new()};
    pthread_t threads[4];
    for (int t = 0; t < 4; t++)
        pthread_create(&threads[t], NULL, writer, &w);
    struct fl_buf out = {0};
    for (int round = 0; round < 25; round++) {
        struct fl_bytes text = read_all(w.ring, 100, NULL, &out);
        struct fl_json doc = {0};
        assert_int_equal(fl_json_parse(&doc, text, NULL), 0);
        fl_json_fini(&doc);
        while (text.n > 0) {
            size_t at = fl_bytes_find(text, FL_BYTES("{\"id\":\"w"));
            if (at == text.n)
                break;
            text = fl_bytes_skip(text, at + 8);
            char chosen[40];
            size_t digits = fl_bytes_index(text, '"');
            snprintf(chosen, sizeof chosen, "\"worker_id\":%.*s,", (int)digits,
                     (const char *)text.p);
            size_t end = fl_bytes_find(text, FL_BYTES("]}"));
            struct fl_bytes row = fl_bytes_head(text, end);
            assert_int_equal(count_of(row, chosen), 2); /* the choice, the first candidate */
            snprintf(chosen, sizeof chosen, "\"active_requests\":%.*s,", (int)digits,
                     (const char *)text.p);
            assert_int_equal(count_of(row, chosen), 8);
            text = fl_bytes_skip(text, end);
        }
    }
    for (int t = 0; t < 4; t++)
        pthread_join(threads[t], NULL);
    fl_buf_fini(&out);
    fl_explain_free(w.ring);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_has_the_documented_members),
        cmocka_unit_test(ring_keeps_the_newest),
        cmocka_unit_test(candidates_are_ordered_when_read),
        cmocka_unit_test(reader_never_sees_a_torn_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
