/* SPDX-License-Identifier: Apache-2.0 */
/* What is written is read back by a strict reader of the text format: names, labels, escapes and
 * numbers by their grammar, one HELP and TYPE a family before its samples, families in one piece,
 * histograms cumulative and closed by +Inf. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/metric.h"

/* ---- the reader ---- */

enum { FAMILIES_MAX = 32, SAMPLES_MAX = 400 };

struct sample {
    char name[96];
    char labels[256]; /* as written, without le */
    double le, value;
    bool has_le;
    size_t family;
};

struct page {
    struct {
        char name[96], type[16];
        bool has_help;
    } families[FAMILIES_MAX];
    size_t family_count;
    struct sample samples[SAMPLES_MAX];
    size_t sample_count;
};

static const char *read_name(const char *at, char *out, size_t room, bool colon)
{
    size_t n = 0;
    while ((*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') || *at == '_' ||
           (colon && *at == ':') || (n > 0 && *at >= '0' && *at <= '9')) {
        assert_true(n + 1 < room);
        out[n++] = *at++;
    }
    out[n] = 0;
    assert_true(n > 0);
    return at;
}

static const char *read_number(const char *at, double *value)
{
    if (strncmp(at, "+Inf", 4) == 0) {
        *value = INFINITY;
        return at + 4;
    }
    if (strncmp(at, "-Inf", 4) == 0) {
        *value = -INFINITY;
        return at + 4;
    }
    if (strncmp(at, "NaN", 3) == 0) {
        *value = NAN;
        return at + 3;
    }
    size_t n = strspn(at, "0123456789.eE+-");
    char *end;
    assert_true(n > 0);
    *value = strtod(at, &end);
    assert_ptr_equal(end, at + n);
    return end;
}

static const char *read_labels(const char *at, struct sample *sample)
{
    size_t n = 0;
    do {
        char label[64], text[96];
        at = read_name(at + 1, label, sizeof(label), false);
        assert_int_equal(at[0], '=');
        assert_int_equal(at[1], '"');
        const char *from = at += 2;
        while (*at != '"') {
            assert_true(*at != 0 && *at != '\n');
            if (*at == '\\') {
                at++;
                assert_true(*at == '\\' || *at == '"' || *at == 'n');
            }
            at++;
        }
        snprintf(text, sizeof(text), "%.*s", (int)(at - from), from);
        if (strcmp(label, "le") == 0) {
            assert_false(sample->has_le);
            sample->has_le = true;
            const char *end = read_number(text, &sample->le);
            assert_int_equal(*end, 0);
        } else {
            n += (size_t)snprintf(sample->labels + n, sizeof(sample->labels) - n, "%s=%s;", label,
                                  text);
            assert_true(n < sizeof(sample->labels));
        }
        at++;
    } while (*at == ',');
    assert_int_equal(*at, '}');
    return at + 1;
}

static void read_head(struct page *page, const char *line)
{
    char name[96];
    bool help = strncmp(line, "# HELP ", 7) == 0;
    assert_true(help || strncmp(line, "# TYPE ", 7) == 0);
    const char *rest = read_name(line + 7, name, sizeof(name), true);
    assert_int_equal(*rest, ' ');
    if (help) {
        for (size_t i = 0; i < page->family_count; i++)
            assert_string_not_equal(page->families[i].name, name);
        for (const char *at = rest; *at != 0; at++) {
            if (*at == '\\') {
                at++;
                assert_true(*at == '\\' || *at == 'n');
            }
        }
        assert_true(page->family_count < FAMILIES_MAX);
        memcpy(page->families[page->family_count].name, name, sizeof(name));
        page->families[page->family_count++].has_help = true;
        return;
    }
    assert_true(page->family_count > 0);
    assert_string_equal(page->families[page->family_count - 1].name, name);
    assert_int_equal(page->families[page->family_count - 1].type[0], 0); /* once */
    assert_true(strcmp(rest + 1, "counter") == 0 || strcmp(rest + 1, "gauge") == 0 ||
                strcmp(rest + 1, "histogram") == 0);
    snprintf(page->families[page->family_count - 1].type, 16, "%s", rest + 1);
}

static void read_sample(struct page *page, const char *line)
{
    assert_true(page->sample_count < SAMPLES_MAX && page->family_count > 0);
    struct sample *sample = &page->samples[page->sample_count++];
    *sample = (struct sample){.family = page->family_count - 1};
    const char *at = read_name(line, sample->name, sizeof(sample->name), true);
    if (*at == '{')
        at = read_labels(at, sample);
    assert_int_equal(*at, ' ');
    at = read_number(at + 1, &sample->value);
    assert_int_equal(*at, 0);

    /* It belongs to the family whose head came last. */
    const char *family = page->families[sample->family].name;
    const char *type = page->families[sample->family].type;
    assert_true(type[0] != 0);
    size_t n = strlen(family);
    assert_int_equal(strncmp(sample->name, family, n), 0);
    const char *suffix = sample->name + n;
    if (strcmp(type, "histogram") != 0)
        assert_string_equal(suffix, "");
    else
        assert_true(strcmp(suffix, "_sum") == 0 || strcmp(suffix, "_count") == 0 ||
                    (strcmp(suffix, "_bucket") == 0 && sample->has_le));
    for (size_t i = 0; i + 1 < page->sample_count; i++) {
        const struct sample *other = &page->samples[i];
        bool same = strcmp(other->name, sample->name) == 0 &&
                    strcmp(other->labels, sample->labels) == 0 && other->has_le == sample->has_le &&
                    !(other->le < sample->le) && !(other->le > sample->le);
        assert_false(same);
    }
}

static double find(const struct page *page, const char *name, const char *labels)
{
    for (size_t i = 0; i < page->sample_count; i++) {
        const struct sample *sample = &page->samples[i];
        if (strcmp(sample->name, name) == 0 && strcmp(sample->labels, labels) == 0 &&
            !sample->has_le)
            return sample->value;
    }
    fail_msg("no sample %s{%s}", name, labels);
    return 0;
}

static double find_bucket(const struct page *page, const char *name, const char *labels, double le)
{
    for (size_t i = 0; i < page->sample_count; i++) {
        const struct sample *sample = &page->samples[i];
        if (strcmp(sample->name, name) == 0 && strcmp(sample->labels, labels) == 0 &&
            sample->has_le && !(sample->le < le) && !(sample->le > le))
            return sample->value;
    }
    fail_msg("no bucket %s{%s}", name, labels);
    return 0;
}

/* Buckets of one series follow each other, rise in bound and count and end with +Inf = _count. */
static void check_histograms(const struct page *page)
{
    for (size_t i = 0; i < page->sample_count; i++) {
        const struct sample *sample = &page->samples[i];
        if (!sample->has_le)
            continue;
        const struct sample *next = &page->samples[i + 1];
        assert_true(i + 1 < page->sample_count);
        if (isinf(sample->le)) {
            assert_false(next->has_le);
            assert_non_null(strstr(next->name, "_sum"));
            next++;
            assert_non_null(strstr(next->name, "_count"));
            assert_string_equal(next->labels, sample->labels);
            assert_true(!(next->value < sample->value) && !(next->value > sample->value));
        } else {
            assert_true(next->has_le && next->le > sample->le && next->value >= sample->value);
            assert_string_equal(next->labels, sample->labels);
        }
    }
}

static struct page *read_page(struct fl_buf *buf)
{
    struct page *page = fl_calloc(1, sizeof(*page));
    assert_true(fl_buf_size(buf) > 0);
    assert_int_equal(buf->tail[-1], '\n'); /* the last line ends too */
    assert_int_equal(fl_buf_append_byte(buf, 0), 0);
    char *line = (char *)buf->head;
    while (*line != 0) {
        char *end = strchr(line, '\n');
        *end = 0;
        if (line[0] == '#')
            read_head(page, line);
        else
            read_sample(page, line);
        line = end + 1;
    }
    for (size_t i = 0; i < page->family_count; i++)
        assert_true(page->families[i].has_help && page->families[i].type[0] != 0);
    check_histograms(page);
    return page;
}

static void expect(const struct page *page, const char *name, const char *labels, double value)
{
    double got = find(page, name, labels);
    if (got < value || got > value)
        fail_msg("%s{%s} is %g, not %g", name, labels, got, value);
}

/* ---- a table with one of each ---- */

enum { PICKS, FAILURES, OPEN, SECONDS, STEP_SECONDS, COUNT };

static const char *const reasons[] = {"no_endpoints", "odd \"\\\n value", NULL};
static const char *const steps[] = {"read", "score", NULL};
static const double few_bounds[] = {0.1, 1};

static const struct fl_metric_desc descs[COUNT] = {
    [PICKS] = {.kind = FL_COUNTER, .name = "t_picks_total", .help = "Decisions sent."},
    [FAILURES] = {.kind = FL_COUNTER,
                  .name = "t_failures_total",
                  .help = "Failures, \"quoted\", a \\ and\na line.",
                  .label = "reason",
                  .values = reasons},
    [OPEN] = {.kind = FL_GAUGE, .name = "t_open", .help = "Open streams."},
    [SECONDS] = {.kind = FL_HISTOGRAM, .name = "t_pick_seconds", .help = "Time of a pick."},
    [STEP_SECONDS] = {.kind = FL_HISTOGRAM,
                      .name = "t_step_seconds",
                      .help = "Time of a step.",
                      .label = "step",
                      .values = steps,
                      .bounds = few_bounds,
                      .bound_count = 2},
};

static void shards_add_up_in_the_text(void **state)
{
    (void)state;
    struct fl_metrics metrics;
    struct fl_buf buf = {0};
    fl_metrics_init(&metrics, descs, COUNT, 3, NULL);
    fl_metric_add(&metrics, 0, PICKS, 0, 2);
    fl_metric_add(&metrics, 2, PICKS, 0, 40);
    fl_metric_add(&metrics, 1, FAILURES, 1, 7);
    fl_metric_gauge_add(&metrics, 0, OPEN, 0, 5);
    fl_metric_gauge_add(&metrics, 1, OPEN, 0, -8); /* opened on one loop, closed on another */
    fl_metric_observe(&metrics, 0, STEP_SECONDS, 1, 0.05);
    fl_metric_observe(&metrics, 1, STEP_SECONDS, 1, 0.1); /* le: a bound belongs to its bucket */
    fl_metric_observe(&metrics, 2, STEP_SECONDS, 1, 0.5);
    fl_metric_observe(&metrics, 2, STEP_SECONDS, 1, 100);

    assert_int_equal(fl_metric_sum(&metrics, PICKS, 0), 42);
    assert_int_equal(fl_metric_sum(&metrics, FAILURES, 0), 0);
    assert_int_equal(fl_metric_sum(&metrics, FAILURES, 1), 7);
    assert_int_equal(fl_metric_gauge(&metrics, OPEN, 0), -3);
    assert_int_equal(fl_metric_sum(&metrics, STEP_SECONDS, 1), 4);
    assert_int_equal(fl_metric_sum(&metrics, STEP_SECONDS, 0), 0);

    assert_int_equal(fl_metrics_write(&metrics, &buf), 0);
    struct page *page = read_page(&buf);
    assert_int_equal(page->family_count, COUNT);
    expect(page, "t_picks_total", "", 42);
    expect(page, "t_failures_total", "reason=no_endpoints;",
           0); /* known values show from the start */
    expect(page, "t_failures_total", "reason=odd \\\"\\\\\\n value;", 7);
    expect(page, "t_open", "", -3);
    expect(page, "t_step_seconds_count", "step=score;", 4);
    expect(page, "t_step_seconds_count", "step=read;", 0);
    expect(page, "t_step_seconds_sum", "step=score;", 100.65);
    assert_true(find_bucket(page, "t_step_seconds_bucket", "step=score;", 0.1) == 2);
    assert_true(find_bucket(page, "t_step_seconds_bucket", "step=score;", 1) == 3);
    assert_true(find_bucket(page, "t_step_seconds_bucket", "step=score;", INFINITY) == 4);
    fl_free(page);
    fl_buf_fini(&buf);
    fl_metrics_fini(&metrics);
    fl_metrics_fini(&metrics);
}

static void the_default_bounds_run_from_50_us_to_60_s(void **state)
{
    (void)state;
    struct fl_metrics metrics;
    struct fl_buf buf = {0};
    fl_metrics_init(&metrics, descs, COUNT, 1, NULL);
    fl_metric_observe(&metrics, 0, SECONDS, 0, 50e-6);
    fl_metric_observe(&metrics, 0, SECONDS, 0, 60);
    fl_metric_observe(&metrics, 0, SECONDS, 0, 60.001);
    fl_metric_observe(&metrics, 0, SECONDS, 0, -1); /* a clock that jumped */
    fl_metric_observe(&metrics, 0, SECONDS, 0, NAN);
    assert_int_equal(fl_metrics_write(&metrics, &buf), 0);
    struct page *page = read_page(&buf);
    assert_true(find_bucket(page, "t_pick_seconds_bucket", "", 50e-6) == 3);
    assert_true(find_bucket(page, "t_pick_seconds_bucket", "", 60) == 4);
    expect(page, "t_pick_seconds_count", "", 5);
    expect(page, "t_pick_seconds_sum", "", 50e-6 + 60 + 60.001);
    fl_free(page);
    fl_buf_fini(&buf);
    fl_metrics_fini(&metrics);
}

static void instances_of_one_table_share_their_heads(void **state)
{
    (void)state;
    struct fl_metrics prefill, decode;
    struct fl_buf buf = {0};
    fl_metrics_init(&prefill, descs, COUNT, 1, "role=\"prefill\",model=\"m\"");
    fl_metrics_init(&decode, descs, COUNT, 2, "role=\"decode\",model=\"m\"");
    fl_metric_add(&prefill, 0, PICKS, 0, 1);
    fl_metric_add(&decode, 1, PICKS, 0, 2);
    fl_metric_add(&decode, 0, FAILURES, 0, 3);
    const struct fl_metrics *const both[] = {&prefill, &decode};
    assert_int_equal(fl_metrics_write_all(both, 2, &buf), 0);
    struct page *page = read_page(&buf); /* fails on a second HELP or a family in two pieces */
    assert_int_equal(page->family_count, COUNT);
    expect(page, "t_picks_total", "role=prefill;model=m;", 1);
    expect(page, "t_picks_total", "role=decode;model=m;", 2);
    expect(page, "t_failures_total", "role=decode;model=m;reason=no_endpoints;", 3);
    assert_true(find_bucket(page, "t_step_seconds_bucket", "role=decode;model=m;step=read;",
                            INFINITY) == 0);
    fl_free(page);
    fl_buf_fini(&buf);
    fl_buf_init(&buf, 0);
    assert_int_equal(fl_metrics_write_all(NULL, 0, &buf), 0);
    fl_metrics_fini(&prefill);
    fl_metrics_fini(&decode);
}

static void a_page_that_does_not_fit_is_not_begun(void **state)
{
    (void)state;
    struct fl_metrics metrics;
    struct fl_buf whole = {0};
    fl_metrics_init(&metrics, descs, COUNT, 1, "role=\"x\"");
    assert_int_equal(fl_metrics_write(&metrics, &whole), 0);
    size_t n = fl_buf_size(&whole);
    for (size_t cap = 1; cap < n + 20; cap += cap < n ? 37 : 1) {
        struct fl_buf buf;
        fl_buf_init(&buf, cap + 1);
        assert_int_equal(fl_buf_append_byte(&buf, '#'), 0);
        int rc = fl_metrics_write(&metrics, &buf);
        /* A line is refused as a whole, so a cap near the end may refuse as well. */
        assert_int_equal(rc, cap >= n ? 0 : FL_ELIMIT);
        assert_int_equal(fl_buf_size(&buf), cap >= n ? n + 1 : 1);
        fl_buf_fini(&buf);
    }
    fl_buf_fini(&whole);
    fl_metrics_fini(&metrics);
}

static void collectors_write_families_by_hand(void **state)
{
    (void)state;
    struct fl_buf buf = {0};
    fl_metric_write_head(&buf, "t_info", "Help.", FL_GAUGE);
    fl_metric_write_sample(&buf, "t_info", "", 3);
    fl_metric_write_sample(&buf, "t_info", "a=\"1\"", 0.1);
    fl_metric_write_sample(&buf, "t_info", "a=\"2\"", 1e15);
    fl_metric_write_sample(&buf, "t_info", "a=\"3\"", INFINITY);
    fl_metric_write_sample(&buf, "t_info", "a=\"4\"", -INFINITY);
    fl_metric_write_sample(&buf, "t_info", "a=\"5\"", NAN);
    fl_metric_write_sample(&buf, "t_info", "a=\"6\"", 1e300);
    fl_metric_write_sample(&buf, "t_info", "a=\"7\"", -0.25);
    fl_metric_write_sample(&buf, "t_info", "a=\"8\"", 1.0 / 3);
    fl_buf_append_byte(&buf, 0);
    assert_string_equal((char *)buf.head,
                        "# HELP t_info Help.\n# TYPE t_info gauge\nt_info 3\nt_info{a=\"1\"} 0.1\n"
                        "t_info{a=\"2\"} 1000000000000000\nt_info{a=\"3\"} +Inf\n"
                        "t_info{a=\"4\"} -Inf\nt_info{a=\"5\"} NaN\nt_info{a=\"6\"} 1e+300\n"
                        "t_info{a=\"7\"} -0.25\nt_info{a=\"8\"} 0.3333333333333333\n");
    buf.tail--;
    fl_free(read_page(&buf));
    fl_buf_clear(&buf);
    assert_int_equal(fl_metric_escape(&buf, FL_BYTES("a\\b\"c\nd")), 0);
    assert_true(fl_bytes_eq(fl_buf_bytes(&buf), FL_BYTES("a\\\\b\\\"c\\nd")));
    fl_buf_fini(&buf);
}

/* ---- one writer a shard, a reader beside them ---- */

enum { THREADS = 4, ROUNDS = 20000 };

struct worker {
    struct fl_metrics *metrics;
    size_t shard;
};

static void *count_and_observe(void *arg)
{
    struct worker *worker = arg;
    for (int i = 0; i < ROUNDS; i++) {
        fl_metric_add(worker->metrics, worker->shard, PICKS, 0, 1);
        fl_metric_observe(worker->metrics, worker->shard, SECONDS, 0, 0.25);
        fl_metric_gauge_add(worker->metrics, worker->shard, OPEN, 0, i % 2 == 0 ? 1 : -1);
    }
    return NULL;
}

static void nothing_is_lost_while_others_read(void **state)
{
    (void)state;
    struct fl_metrics metrics;
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    uint64_t last = 0;

    fl_metrics_init(&metrics, descs, COUNT, THREADS, NULL);
    for (size_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){&metrics, i};
        assert_int_equal(pthread_create(&threads[i], NULL, count_and_observe, &workers[i]), 0);
    }
    for (int i = 0; i < 20; i++) {
        struct fl_buf buf = {0};
        assert_int_equal(fl_metrics_write(&metrics, &buf), 0);
        fl_free(read_page(&buf)); /* every scrape is valid, whatever the writers do */
        fl_buf_fini(&buf);
        uint64_t now = fl_metric_sum(&metrics, PICKS, 0);
        assert_true(now >= last);
        last = now;
    }
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(fl_metric_sum(&metrics, PICKS, 0), THREADS * ROUNDS);
    assert_int_equal(fl_metric_sum(&metrics, SECONDS, 0), THREADS * ROUNDS);
    assert_int_equal(fl_metric_gauge(&metrics, OPEN, 0), 0);
    struct fl_buf buf = {0};
    assert_int_equal(fl_metrics_write(&metrics, &buf), 0);
    struct page *page = read_page(&buf);
    expect(page, "t_pick_seconds_sum", "", 0.25 * THREADS * ROUNDS);
    fl_free(page);
    fl_buf_fini(&buf);
    fl_metrics_fini(&metrics);
}

static void shards_lie_on_lines_of_their_own(void **state)
{
    (void)state;
    struct fl_metrics metrics;
    fl_metrics_init(&metrics, descs, 1, 4, NULL);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal((uintptr_t)metrics.shards[i] % 64, 0);
        for (size_t k = 0; k < i; k++)
            assert_ptr_not_equal(metrics.shards[i], metrics.shards[k]);
    }
    fl_metrics_fini(&metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_add_up_in_the_text),
        cmocka_unit_test(the_default_bounds_run_from_50_us_to_60_s),
        cmocka_unit_test(instances_of_one_table_share_their_heads),
        cmocka_unit_test(a_page_that_does_not_fit_is_not_begun),
        cmocka_unit_test(collectors_write_families_by_hand),
        cmocka_unit_test(nothing_is_lost_while_others_read),
        cmocka_unit_test(shards_lie_on_lines_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
