/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "apps/demo/demo.h"
#include "codec/json.h"

void demo_report_head(const struct demo_config *config, size_t requests)
{
    printf(
        "\n%s: %zu requests, %u engines of %u blocks, trace speed %g, token scale %s, time scale "
        "%g\n(times below are the trace's: wall time x time scale; router is wall time)\n\n",
        config->trace, requests, config->engines, config->blocks, config->speed,
        config->token_scale, config->time_scale);
    printf("%-20s %8s %7s %9s %10s %8s %8s %8s %10s %8s %11s\n", "policy", "requests", "errors",
           "hit rate", "TTFT mean", "p50", "p90", "p99", "imbalance", "picks/s", "router p50");
    fflush(stdout);
}

static const char *seconds(double ms, char out[24])
{
    snprintf(out, 24, "%.3f s", ms / 1000);
    return out;
}

void demo_report_row(const struct demo_row *row)
{
    char mean[24], p50[24], p90[24], p99[24], router[24];
    snprintf(router, sizeof(router), "%.0f us", row->router_p50_us);
    printf("%-20s %8llu %7llu %8.1f%% %10s %8s %8s %8s %10.3f %8.0f %11s\n", row->policy,
           (unsigned long long)row->requests, (unsigned long long)row->errors, row->hit_rate * 100,
           seconds(row->ttft_mean, mean), seconds(row->ttft_p50, p50), seconds(row->ttft_p90, p90),
           seconds(row->ttft_p99, p99), row->imbalance, row->picks_per_s, router);
    if (row->errors > 0)
        printf("%-20s first error: %s\n", "", row->first_error);
    if (row->booked != row->freed || row->freed != row->requests)
        printf("%-20s booked %llu, freed %llu, requests %llu: these must be equal\n", "",
               (unsigned long long)row->booked, (unsigned long long)row->freed,
               (unsigned long long)row->requests);
    if (row->engine_hit_rate != row->hit_rate)
        printf("%-20s hit rate by the engines' own counters: %.4f, by the replies: %.4f\n", "",
               row->engine_hit_rate, row->hit_rate);
    fflush(stdout);
}

void demo_report_words(const struct demo_report *report)
{
    const struct demo_row *slowest = NULL;
    const struct demo_row *last =
        report->row_count > 0 ? &report->rows[report->row_count - 1] : NULL;
    for (uint32_t i = 0; i < report->row_count; i++) {
        if (slowest == NULL || report->rows[i].ttft_mean > slowest->ttft_mean)
            slowest = &report->rows[i];
    }
    if (last == NULL || last == slowest || last->ttft_mean <= 0)
        return;
    printf(
        "\nWith %s the first token came %.1f times as soon as with %s (%.0f ms instead of %.0f "
        "ms on average),\nbecause %.0f %% of all prompt tokens were found in the chosen engine's "
        "cache instead of %.0f %%.\n",
        last->policy, slowest->ttft_mean / last->ttft_mean, slowest->policy, last->ttft_mean,
        slowest->ttft_mean, last->hit_rate * 100, slowest->hit_rate * 100);
}

static void write_row(struct fl_json_writer *json, const struct demo_row *row)
{
    fl_json_write_object(json);
    fl_json_write_key(json, "policy");
    fl_json_write_cstr(json, row->policy);
    fl_json_write_key(json, "requests");
    fl_json_write_u64(json, row->requests);
    fl_json_write_key(json, "errors");
    fl_json_write_u64(json, row->errors);
    fl_json_write_key(json, "hit_rate");
    fl_json_write_double(json, row->hit_rate);
    fl_json_write_key(json, "engine_hit_rate");
    fl_json_write_double(json, row->engine_hit_rate);
    fl_json_write_key(json, "ttft_ms");
    fl_json_write_object(json);
    fl_json_write_key(json, "mean");
    fl_json_write_double(json, row->ttft_mean);
    fl_json_write_key(json, "p50");
    fl_json_write_double(json, row->ttft_p50);
    fl_json_write_key(json, "p90");
    fl_json_write_double(json, row->ttft_p90);
    fl_json_write_key(json, "p99");
    fl_json_write_double(json, row->ttft_p99);
    fl_json_write_object_end(json);
    fl_json_write_key(json, "imbalance");
    fl_json_write_double(json, row->imbalance);
    fl_json_write_key(json, "decisions_per_s");
    fl_json_write_double(json, row->picks_per_s);
    fl_json_write_key(json, "router_us");
    fl_json_write_object(json);
    fl_json_write_key(json, "p50");
    fl_json_write_double(json, row->router_p50_us);
    fl_json_write_key(json, "p99");
    fl_json_write_double(json, row->router_p99_us);
    fl_json_write_object_end(json);
    fl_json_write_key(json, "booked");
    fl_json_write_u64(json, row->booked);
    fl_json_write_key(json, "freed");
    fl_json_write_u64(json, row->freed);
    fl_json_write_key(json, "peak_open");
    fl_json_write_u64(json, row->peak_open);
    fl_json_write_object_end(json);
}

int demo_report_json(const struct demo_report *report, const struct demo_config *config, bool ok,
                     struct fl_error *err)
{
    struct fl_buf text = {0};
    struct fl_json_writer json;
    uint32_t divisor = 1;
    replay_parse_scale(config->token_scale, &divisor);
    fl_json_writer_init(&json, &text);
    fl_json_write_object(&json);
    fl_json_write_key(&json, "trace");
    fl_json_write_cstr(&json, config->trace);
    fl_json_write_key(&json, "engines");
    fl_json_write_u64(&json, report->engines);
    fl_json_write_key(&json, "speed");
    fl_json_write_double(&json, config->speed);
    fl_json_write_key(&json, "token_scale");
    fl_json_write_double(&json, 1.0 / divisor);
    fl_json_write_key(&json, "time_scale");
    fl_json_write_double(&json, config->time_scale);
    fl_json_write_key(&json, "policies");
    fl_json_write_array(&json);
    for (uint32_t i = 0; i < report->row_count; i++)
        write_row(&json, &report->rows[i]);
    fl_json_write_array_end(&json);
    fl_json_write_key(&json, "full_size");
    if (report->has_full_size) {
        fl_json_write_object(&json);
        fl_json_write_key(&json, "requests");
        fl_json_write_u64(&json, report->full_size.requests);
        fl_json_write_key(&json, "errors");
        fl_json_write_u64(&json, report->full_size.errors);
        fl_json_write_key(&json, "hit_rate");
        fl_json_write_double(&json, report->full_size.hit_rate);
        fl_json_write_key(&json, "engine_hit_rate");
        fl_json_write_double(&json, report->full_size.engine_hit_rate);
        fl_json_write_object_end(&json);
    } else {
        fl_json_write_null(&json);
    }
    fl_json_write_key(&json, "ok");
    fl_json_write_bool(&json, ok);
    fl_json_write_object_end(&json);
    int rc = fl_json_writer_end(&json);
    FILE *file = rc == 0 ? fopen(config->json_file, "we") : NULL;
    bool is_written =
        file != NULL && fwrite(text.head, 1, fl_buf_size(&text), file) == fl_buf_size(&text);
    if (file != NULL && fclose(file) != 0)
        is_written = false;
    fl_buf_fini(&text);
    return is_written ? 0 : fl_error_set(err, FL_EIO, "%s: %s", config->json_file, strerror(errno));
}
