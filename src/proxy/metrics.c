/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/metrics.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"

const char *const fl_proxy_epp_outcomes[] = {
    "ok", "no_endpoint", "body_too_large", "immediate", "error", "evicted", NULL};
static const char *const rejections[] = {"unknown", "unhealthy", "connect_failed", "malformed",
                                         NULL};
static const char *const fallbacks[] = {"unavailable", "no_endpoint"};
static const char *const codes[] = {"1xx", "2xx", "3xx", "4xx", "5xx", "499"};
static const char *const kinds[] = {"bad_request",
                                    "request_timeout",
                                    "expectation_failed",
                                    "header_too_large",
                                    "not_implemented",
                                    "http_version",
                                    NULL};

/* gateway.md 13. */
static const double decision_bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                         0.25,  0.5,    1,     2.5,  5,     10};

/* Up to 300 s: an answer of a long generation. */
static const double request_bounds[FL_PROXY_BOUNDS] = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 100, 300};

const struct fl_metric_desc fl_proxy_metric_descs[FL_PROXY_METRIC_COUNT] = {
    [FL_PROXY_EPP_REQUESTS] = {.kind = FL_COUNTER,
                               .name = "loxilb_ai_epp_requests_total",
                               .help = "Questions to endpoint pickers by outcome.",
                               .label = "outcome",
                               .values = fl_proxy_epp_outcomes},
    [FL_PROXY_EPP_REJECTED] = {.kind = FL_COUNTER,
                               .name = "loxilb_ai_epp_candidates_rejected_total",
                               .help = "Endpoints a picker named that were not used.",
                               .label = "reason",
                               .values = rejections},
    [FL_PROXY_EPP_SECONDS] = {.kind = FL_HISTOGRAM,
                              .name = "loxilb_ai_epp_duration_seconds",
                              .help = "Question submitted to decision in hand.",
                              .bounds = decision_bounds,
                              .bound_count = FL_ARRAY_LEN(decision_bounds)},
    [FL_PROXY_EPP_TAP_TRUNCATED] = {.kind = FL_COUNTER,
                                    .name = "fairlead_gateway_epp_tap_truncated_total",
                                    .help = "Responses whose copy to the picker was cut."},
    [FL_PROXY_BUFFER_REJECTIONS] = {.kind = FL_COUNTER,
                                    .name = "fairlead_gateway_buffer_rejections_total",
                                    .help = "Requests refused because too many bodies were held."},
    [FL_PROXY_RELAY_READS] = {.kind = FL_COUNTER,
                              .name = "fairlead_gateway_relay_reads_total",
                              .help = "Reads with body bytes from endpoints."},
    [FL_PROXY_RELAY_WRITES] = {.kind = FL_COUNTER,
                               .name = "fairlead_gateway_relay_writes_total",
                               .help = "Pieces of endpoints' bodies handed on to clients."},
    [FL_PROXY_PROTOCOL_ERRORS] = {.kind = FL_COUNTER,
                                  .name = "fairlead_gateway_protocol_errors_total",
                                  .help = "Requests refused for their form.",
                                  .label = "kind",
                                  .values = kinds},
};

size_t fl_proxy_protocol_error_kind(const char *word)
{
    for (size_t i = 0; kinds[i] != NULL; i++) {
        if (strcmp(kinds[i], word) == 0)
            return i;
    }
    return 0;
}

/* ---- by rule ---- */

/* One writer a shard: load and store need not be one operation, they only must not tear. */
static void add(_Atomic uint64_t *cell, uint64_t n)
{
    uint64_t old = atomic_load_explicit(cell, memory_order_relaxed);
    atomic_store_explicit(cell, old + n, memory_order_relaxed);
}

static uint64_t value_of(const _Atomic uint64_t *cell)
{
    return atomic_load_explicit(cell, memory_order_relaxed);
}

struct fl_proxy_rule_stats *fl_proxy_rule_stats_new(uint32_t loops)
{
    size_t bytes = sizeof(struct fl_proxy_rule_stats) + loops * sizeof(struct fl_proxy_rule_shard);
    bytes = (bytes + 63) / 64 * 64;
    struct fl_proxy_rule_stats *stats = aligned_alloc(64, bytes);
    if (stats == NULL)
        abort();
    memset(stats, 0, bytes);
    stats->refs = 1;
    stats->loops = loops;
    return stats;
}

void fl_proxy_rule_stats_unref(struct fl_proxy_rule_stats *stats)
{
    if (stats != NULL && --stats->refs == 0)
        free(stats);
}

static void observe(struct fl_proxy_histogram *histogram, uint64_t us)
{
    double seconds = (double)us / 1e6;
    size_t i = 0;
    while (i < FL_PROXY_BOUNDS && seconds > request_bounds[i])
        i++;
    add(&histogram->buckets[i], 1);
    add(&histogram->sum_us, us);
}

void fl_proxy_count_request(struct fl_proxy_rule_shard *shard, int status, uint64_t duration_us)
{
    size_t code = status == 499 ? FL_PROXY_499 : (size_t)(status / 100 - 1);
    if (code < FL_PROXY_CODE_COUNT)
        add(&shard->codes[code], 1);
    observe(&shard->duration, duration_us);
}

void fl_proxy_count_fallback(struct fl_proxy_rule_shard *shard, enum fl_proxy_fallback cause)
{
    add(&shard->fallbacks[cause], 1);
}

void fl_proxy_observe_ttfb(struct fl_proxy_rule_shard *shard, uint64_t us)
{
    observe(&shard->ttfb, us);
}

/* What all loops counted for all rules of one name. */
struct sum {
    struct fl_bytes name;
    uint64_t codes[FL_PROXY_CODE_COUNT], fallbacks[FL_PROXY_FALLBACK_COUNT];
    uint64_t buckets[2][FL_PROXY_BOUNDS + 1], sum_us[2], requests;
};

static void add_shard(struct sum *sum, const struct fl_proxy_rule_shard *shard)
{
    const struct fl_proxy_histogram *histograms[] = {&shard->duration, &shard->ttfb};
    for (size_t i = 0; i < FL_PROXY_CODE_COUNT; i++) {
        uint64_t n = value_of(&shard->codes[i]);
        sum->codes[i] += n;
        sum->requests += n;
    }
    for (size_t i = 0; i < FL_PROXY_FALLBACK_COUNT; i++)
        sum->fallbacks[i] += value_of(&shard->fallbacks[i]);
    for (size_t h = 0; h < 2; h++) {
        for (size_t i = 0; i <= FL_PROXY_BOUNDS; i++)
            sum->buckets[h][i] += value_of(&histograms[h]->buckets[i]);
        sum->sum_us[h] += value_of(&histograms[h]->sum_us);
    }
}

static int compare_sums(const void *a, const void *b)
{
    return fl_bytes_cmp(((const struct sum *)a)->name, ((const struct sum *)b)->name);
}

/* Adds up neighbours of one name; returns how many are left. */
static size_t merge(struct sum *sums, size_t count)
{
    size_t left = 0;
    qsort(sums, count, sizeof(*sums), compare_sums);
    for (size_t i = 0; i < count; i++) {
        if (left == 0 || !fl_bytes_eq(sums[left - 1].name, sums[i].name)) {
            sums[left++] = sums[i];
            continue;
        }
        struct sum *to = &sums[left - 1];
        for (size_t k = 0; k < FL_PROXY_CODE_COUNT; k++)
            to->codes[k] += sums[i].codes[k];
        for (size_t k = 0; k < FL_PROXY_FALLBACK_COUNT; k++)
            to->fallbacks[k] += sums[i].fallbacks[k];
        for (size_t h = 0; h < 2; h++) {
            for (size_t k = 0; k <= FL_PROXY_BOUNDS; k++)
                to->buckets[h][k] += sums[i].buckets[h][k];
            to->sum_us[h] += sums[i].sum_us[h];
        }
        to->requests += sums[i].requests;
    }
    return left;
}

/* `label="<escaped name>"`, then `more`. */
static const char *labels(struct fl_buf *text, const char *label, struct fl_bytes name,
                          const char *more)
{
    fl_buf_clear(text);
    if (fl_buf_printf(text, "%s=\"", label) < 0 || fl_metric_escape(text, name) < 0 ||
        fl_buf_printf(text, "\"%s", more) < 0 || fl_buf_append_byte(text, '\0') < 0)
        return "";
    return (const char *)text->head;
}

static int write_histogram(const struct sum *sums, size_t count, size_t which, const char *name,
                           const char *help, struct fl_buf *out)
{
    struct fl_buf text = {0};
    char full[96], more[48];
    int rc = fl_metric_write_head(out, name, help, FL_HISTOGRAM);
    for (size_t i = 0; i < count && rc == 0; i++) {
        uint64_t seen = 0;
        snprintf(full, sizeof(full), "%s_bucket", name);
        for (size_t k = 0; k <= FL_PROXY_BOUNDS && rc == 0; k++) {
            seen += sums[i].buckets[which][k];
            if (k < FL_PROXY_BOUNDS)
                snprintf(more, sizeof(more), ",le=\"%g\"", request_bounds[k]);
            else
                snprintf(more, sizeof(more), ",le=\"+Inf\"");
            rc = fl_metric_write_sample(out, full, labels(&text, "rule", sums[i].name, more),
                                        (double)seen);
        }
        const char *rule = labels(&text, "rule", sums[i].name, "");
        snprintf(full, sizeof(full), "%s_sum", name);
        if (rc == 0)
            rc = fl_metric_write_sample(out, full, rule, (double)sums[i].sum_us[which] / 1e6);
        snprintf(full, sizeof(full), "%s_count", name);
        if (rc == 0)
            rc = fl_metric_write_sample(out, full, rule, (double)seen);
    }
    fl_buf_fini(&text);
    return rc;
}

/* One family of a counter with `words` as second label; `offset` leads to the values. */
static int write_words(const struct sum *sums, size_t count, const char *name, const char *help,
                       const char *label, const char *const *words, size_t word_count,
                       size_t offset, struct fl_buf *out)
{
    struct fl_buf text = {0};
    char more[48];
    int rc = fl_metric_write_head(out, name, help, FL_COUNTER);
    for (size_t i = 0; i < count && rc == 0; i++) {
        const uint64_t *values = (const uint64_t *)(const void *)((const char *)&sums[i] + offset);
        for (size_t k = 0; k < word_count && rc == 0; k++) {
            snprintf(more, sizeof(more), ",%s=\"%s\"", label, words[k]);
            rc = fl_metric_write_sample(out, name, labels(&text, "rule", sums[i].name, more),
                                        (double)values[k]);
        }
    }
    fl_buf_fini(&text);
    return rc;
}

static int write_services(const struct sum *sums, size_t count, struct fl_buf *out)
{
    static const char name[] = "loxilb_service_requests_total";
    struct fl_buf text = {0};
    int rc = fl_metric_write_head(out, name, "Requests by service.", FL_COUNTER);
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = fl_metric_write_sample(out, name, labels(&text, "service", sums[i].name, ""),
                                    (double)sums[i].requests);
    fl_buf_fini(&text);
    return rc;
}

int fl_proxy_write_rule_metrics(const struct fl_proxy_rule_sample *samples, size_t count,
                                struct fl_buf *out)
{
    struct sum *sums = fl_calloc(count + 1, sizeof(*sums));
    for (size_t i = 0; i < count; i++) {
        sums[i].name = samples[i].name;
        for (uint32_t k = 0; k < samples[i].stats->loops; k++)
            add_shard(&sums[i], &samples[i].stats->shards[k]);
    }
    count = merge(sums, count);
    int rc = write_services(sums, count, out);
    if (rc == 0)
        rc = write_words(sums, count, "fairlead_gateway_requests_total",
                         "Requests by rule and class of status; 499: the client left.", "code",
                         codes, FL_ARRAY_LEN(codes), offsetof(struct sum, codes), out);
    if (rc == 0)
        rc = write_words(sums, count, "fairlead_gateway_fallback_total",
                         "Requests that went by the selector because the picker failed.", "cause",
                         fallbacks, FL_ARRAY_LEN(fallbacks), offsetof(struct sum, fallbacks), out);
    if (rc == 0)
        rc = write_histogram(sums, count, 0, "fairlead_gateway_request_duration_seconds",
                             "First request byte to last response byte.", out);
    if (rc == 0)
        rc = write_histogram(sums, count, 1, "fairlead_gateway_ttfb_seconds",
                             "Request complete to first response byte.", out);
    fl_free(sums);
    return rc;
}
