/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "apps/app.h"
#include "apps/demo/demo.h"
#include "base/log.h"
#include "net/limits.h"
#include "net/signals.h"
#include "selection/policy.h"
#include "sim/simulate.h"

#define PROGRESS_MS 250
#define MAX_BODY_BYTES (10 * 1024 * 1024)

#define FIELD(field) .off = offsetof(struct demo_config, field)

static const struct fl_opt opts[] = {
    {.name = "trace",
     .type = FL_OPT_STRING,
     FIELD(trace),
     .def = "data/mooncake_synthetic.jsonl.gz",
     .arg = "FILE",
     .help = "Trace to replay (JSON lines; .gz is unpacked by gzip)."},
    {.name = "requests",
     .type = FL_OPT_U32,
     FIELD(requests),
     .def = "0",
     .max = UINT32_MAX,
     .help =
         "Only the first N requests; 0 means all. Policies are compared only on a whole trace."},
    {.name = "engines",
     .type = FL_OPT_U32,
     FIELD(engines),
     .def = "8",
     .min = 1,
     .max = DEMO_ENGINES_MAX,
     .help = "Simulated engines."},
    {.name = "blocks",
     .type = FL_OPT_U32,
     FIELD(blocks),
     .def = "4096",
     .min = 1,
     .max = 1 << 24,
     .help = "KV blocks of an engine, each worth one block of the trace."},
    {.name = "policies",
     .type = FL_OPT_STRING,
     FIELD(policies),
     .def = "round-robin,load-only,kv-cost",
     .arg = "LIST",
     .help = "Policies to run one after the other, each on a fresh system."},
    {.name = "speed",
     .type = FL_OPT_F64,
     FIELD(speed),
     .def = "1.6",
     .fmin = 0.01,
     .fmax = 1000,
     .help = "Arrivals come this many times as fast as in the trace."},
    {.name = "time-scale",
     .type = FL_OPT_F64,
     FIELD(time_scale),
     .def = "40",
     .fmin = 0.01,
     .fmax = 1000,
     .help = "Seconds of the model in a second of the wall."},
    {.name = "token-scale",
     .type = FL_OPT_STRING,
     FIELD(token_scale),
     .def = "1/32",
     .arg = "1/N",
     .help =
         "Tokens sent for a token of the trace; the engines' prefill rate is divided likewise."},
    {.name = "full-size",
     .type = FL_OPT_U32,
     FIELD(full_size),
     .def = "100",
     .max = 100000,
     .help = "Requests of the last row, sent at token scale 1; 0 leaves it out."},
    {.name = "json",
     .type = FL_OPT_STRING,
     FIELD(json_file),
     .arg = "FILE",
     .help = "Writes the figures to a file."},
    {.name = "keep",
     .type = FL_OPT_BOOL,
     FIELD(keep),
     .help = "Leaves the last policy's system running until a signal and says how to reach it."},
    FL_APP_ACTION_OPTS,
    {0},
};

struct demo {
    struct demo_config config;
    struct fl_loop *loop;
    struct fl_trace trace;
    struct demo_system system;
    struct replay *replay;
    struct replay_result *result; /* NULL while it runs */
    struct demo_report report;
    bool is_interrupted;
};

static void on_signal(void *owner, int signum)
{
    struct demo *demo = owner;
    (void)signum;
    demo->is_interrupted = true;
}

static void on_replayed(void *owner, struct replay_result *result)
{
    struct demo *demo = owner;
    demo->result = result;
}

static void show_progress(const struct demo *demo, const char *label, size_t total)
{
    enum { WIDTH = 40 };
    char bar[WIDTH + 1];
    size_t done = (size_t)replay_answered(demo->replay);
    size_t filled = total > 0 ? done * WIDTH / total : 0;
    if (!isatty(STDERR_FILENO))
        return;
    memset(bar, '.', WIDTH);
    memset(bar, '#', filled);
    bar[WIDTH] = '\0';
    fprintf(stderr, "\r%-20s [%s] %zu/%zu", label, bar, done, total);
}

static void clear_progress(void)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%80s\r", "");
}

/* ---- figures ---- */

struct engine_figures {
    double queries, hits, most_computed;
};

static int scrape_engines(struct demo *demo, struct engine_figures *figures, struct fl_error *err)
{
    *figures = (struct engine_figures){0};
    for (uint32_t i = 0; i < demo->system.engine_count; i++) {
        struct fl_buf page = {0};
        int status;
        int rc = demo_fetch(demo->loop, &demo->system.engines[i].http, "GET", "/metrics",
                            (struct fl_bytes){0}, &status, &page, err);
        struct fl_bytes text = fl_buf_bytes(&page);
        double queries = demo_metric(text, "vllm:prefix_cache_queries_total", NULL);
        double hits = demo_metric(text, "vllm:prefix_cache_hits_total", NULL);
        fl_buf_fini(&page);
        if (rc < 0)
            return rc;
        figures->queries += queries;
        figures->hits += hits;
        if (queries - hits > figures->most_computed)
            figures->most_computed = queries - hits;
    }
    return 0;
}

struct books {
    struct demo *demo;
    struct demo_row *row;
    struct fl_error err;
    int rc;
};

/* The last streams close a moment after their answers: looks until everything booked is freed. */
static bool is_settled(void *owner)
{
    struct books *books = owner;
    struct fl_buf page = {0};
    int status;
    books->rc = demo_fetch(books->demo->loop, &books->demo->system.epp.metrics, "GET", "/metrics",
                           (struct fl_bytes){0}, &status, &page, &books->err);
    struct fl_bytes text = fl_buf_bytes(&page);
    books->row->booked = (uint64_t)demo_metric(text, "fairlead_select_booked_total", NULL);
    books->row->freed = (uint64_t)demo_metric(text, "fairlead_select_freed_total", NULL);
    books->row->peak_open = (uint64_t)demo_metric(text, "fairlead_select_reservations_peak", NULL);
    fl_buf_fini(&page);
    return books->rc < 0 || books->row->booked == books->row->freed;
}

static int fill_row(struct demo *demo, struct demo_row *row, struct fl_error *err)
{
    struct replay_result *r = demo->result;
    struct engine_figures engines;
    struct books books = {.demo = demo, .row = row};
    double sum = 0;

    int rc = scrape_engines(demo, &engines, err);
    if (rc < 0)
        return rc;
    demo_wait(demo->loop, is_settled, &books, DEMO_SETTLE_MS);
    if (books.rc < 0)
        return fl_error_set(err, books.rc, "%s", books.err.text);

    for (size_t i = 0; i < r->ttft_count; i++)
        sum += r->ttft_ms[i];
    row->requests = r->requests;
    row->errors = r->errors;
    row->hit_rate = r->prompt_tokens > 0 ? (double)r->cached_tokens / (double)r->prompt_tokens : 0;
    row->engine_hit_rate = engines.queries > 0 ? engines.hits / engines.queries : 0;
    if (r->ttft_count > 0) {
        row->ttft_mean = sum / (double)r->ttft_count;
        row->ttft_p50 = fl_sim_percentile(r->ttft_ms, r->ttft_count, 50);
        row->ttft_p90 = fl_sim_percentile(r->ttft_ms, r->ttft_count, 90);
        row->ttft_p99 = fl_sim_percentile(r->ttft_ms, r->ttft_count, 99);
    }
    if (r->router_count > 0) {
        row->router_p50_us = fl_sim_percentile(r->router_us, r->router_count, 50);
        row->router_p99_us = fl_sim_percentile(r->router_us, r->router_count, 99);
    }
    double computed = engines.queries - engines.hits;
    row->imbalance =
        computed > 0 ? engines.most_computed * demo->system.engine_count / computed : 0;
    row->picks_per_s = r->duration_s > 0 ? (double)r->requests / r->duration_s : 0;
    snprintf(row->first_error, sizeof(row->first_error), "%s", r->first_error);
    row->is_sound = row->errors == 0 && row->booked == row->requests &&
                    row->freed == row->requests && row->hit_rate == row->engine_hit_rate;
    return 0;
}

/* ---- one replay on a fresh system ---- */

struct scale {
    uint32_t divisor, requests, blocks;
};

/* Starts a system, replays, fills the row. The system is left running. */
static int run_once(struct demo *demo, const char *label, const char *policy,
                    const struct scale *scale, struct demo_row *row, struct fl_error *err)
{
    struct demo_shape shape = {
        .engines = demo->config.engines,
        .blocks = scale->blocks,
        .prefill_tps = FL_SIM_PREFILL_TPS / scale->divisor,
        .time_scale = demo->config.time_scale,
        .policy = policy,
        .max_body_bytes = MAX_BODY_BYTES,
    };
    size_t total = scale->requests > 0 && scale->requests < demo->trace.count ? scale->requests
                                                                              : demo->trace.count;
    char host[FL_ADDR_TEXT];
    int rc = demo_system_start(&demo->system, demo->loop, &shape, err);
    if (rc < 0)
        return rc;
    fl_addr_format(&demo->system.vip, host);
    struct replay_config config = {
        .target = demo->system.vip,
        .host = host,
        .path = "/v1/completions",
        .model = DEMO_MODEL,
        .speed = demo->config.speed,
        .time_scale = demo->config.time_scale,
        .token_divisor = scale->divisor,
        .requests = scale->requests,
    };
    demo->result = NULL;
    rc = replay_start(demo->loop, &demo->trace, &config, on_replayed, demo, &demo->replay, err);
    uint64_t shown_ns = 0;
    while (rc == 0 && demo->result == NULL && !demo->is_interrupted) {
        fl_loop_turn(demo->loop, 20);
        if (fl_clock_ns() - shown_ns > (uint64_t)PROGRESS_MS * 1000000) {
            shown_ns = fl_clock_ns();
            show_progress(demo, label, total);
        }
    }
    clear_progress();
    if (rc == 0 && demo->is_interrupted)
        rc = fl_error_set(err, FL_ECANCELLED, "interrupted");
    row->policy = policy;
    if (rc == 0)
        rc = fill_row(demo, row, err);
    replay_free(demo->replay);
    demo->replay = NULL;
    demo->result = NULL;
    if (rc < 0)
        demo_system_stop(&demo->system);
    return rc;
}

static void show_url(const char *what, const struct fl_addr *addr, const char *path)
{
    char text[FL_ADDR_TEXT];
    fl_addr_format(addr, text);
    printf("  %-10s http://%s%s\n", what, text, path);
}

static void keep_running(struct demo *demo)
{
    struct demo_system *system = &demo->system;
    char vip[FL_ADDR_TEXT], debug[FL_ADDR_TEXT];
    fl_addr_format(&system->vip, vip);
    fl_addr_format(&system->epp.debug, debug);
    printf("\nThe system is running until Ctrl-C. Ask it:\n\n"
           "  curl -i http://%s/v1/chat/completions -H 'content-type: application/json' "
           "-d '{\"model\":\"%s\",\"max_tokens\":16,\"messages\":[{\"role\":\"user\",\"content\":"
           "\"hello\"}]}'\n\nand why it went where it went:\n\n"
           "  fairlead explain --url http://%s\n\nFigures:\n",
           vip, DEMO_MODEL, debug);
    show_url("gateway", &system->gateway.http, "/netlox/v1/metrics");
    show_url("epp", &system->epp.metrics, "/metrics");
    show_url("tokenizer", &system->tokenizer.http, "/metrics");
    for (uint32_t i = 0; i < system->engine_count; i++)
        show_url(system->engines[i].name, &system->engines[i].http, "/metrics");
    fflush(stdout);
    while (!demo->is_interrupted)
        fl_loop_turn(demo->loop, 100);
}

static int check_policies(const char *list, const char *names[DEMO_POLICIES_MAX], uint32_t *count,
                          char *room, size_t room_bytes, struct fl_error *err)
{
    struct fl_bytes rest = fl_bytes_of(list);
    struct fl_bytes item;
    size_t used = 0;
    while (rest.n > 0 && fl_bytes_next(&rest, ',', &item)) {
        item = fl_bytes_trim(item);
        if (*count == DEMO_POLICIES_MAX || used + item.n + 1 > room_bytes)
            return fl_error_set(err, FL_ECONFIG, "--policies: at most %d names", DEMO_POLICIES_MAX);
        memcpy(room + used, item.p, item.n);
        room[used + item.n] = '\0';
        if (fl_policy_find(room + used) == NULL)
            return fl_error_set(err, FL_ECONFIG, "--policies: %s is no policy", room + used);
        names[(*count)++] = room + used;
        used += item.n + 1;
    }
    return *count > 0 ? 0 : fl_error_set(err, FL_ECONFIG, "--policies: none is named");
}

static int run_policies(struct demo *demo, const char *const *names, uint32_t count,
                        uint32_t divisor, struct fl_error *err, bool *is_sound)
{
    struct scale scale = {divisor, demo->config.requests, demo->config.blocks};
    for (uint32_t i = 0; i < count; i++) {
        struct demo_row *row = &demo->report.rows[i];
        bool is_last = i + 1 == count;
        int rc = run_once(demo, names[i], names[i], &scale, row, err);
        if (rc < 0)
            return rc;
        demo->report.row_count = i + 1;
        demo_report_row(row);
        if (is_last && demo->config.keep)
            return 0;
        if (!demo_system_stop(&demo->system))
            row->is_sound = false;
        *is_sound = *is_sound && row->is_sound;
    }
    return 0;
}

static int run_full_size(struct demo *demo, uint32_t divisor, struct fl_error *err, bool *is_sound)
{
    struct scale scale = {1, demo->config.full_size, demo->config.blocks * divisor};
    struct demo_row *row = &demo->report.full_size;
    int rc = run_once(demo, "full size", "kv-cost", &scale, row, err);
    if (rc < 0)
        return rc;
    demo->report.has_full_size = true;
    row->policy = "full size";
    demo_report_row(row);
    row->is_sound = demo_system_stop(&demo->system) && row->is_sound;
    *is_sound = *is_sound && row->is_sound;
    return 0;
}

static int run(struct demo *demo, struct fl_error *err)
{
    const char *names[DEMO_POLICIES_MAX];
    char room[512];
    uint32_t count = 0;
    uint32_t divisor;
    bool is_sound = true;

    if (!replay_parse_scale(demo->config.token_scale, &divisor))
        return fl_error_set(err, FL_ECONFIG, "--token-scale %s: write 1 or 1/N",
                            demo->config.token_scale);
    int rc = check_policies(demo->config.policies, names, &count, room, sizeof(room), err);
    if (rc == 0)
        rc = replay_read_trace(demo->config.trace, 0, &demo->trace, err);
    if (rc < 0)
        return rc;
    demo->report.engines = demo->config.engines;
    size_t total = demo->config.requests > 0 && demo->config.requests < demo->trace.count
                       ? demo->config.requests
                       : demo->trace.count;
    demo_report_head(&demo->config, total);
    rc = run_policies(demo, names, count, divisor, err, &is_sound);
    if (rc == 0)
        demo_report_words(&demo->report);
    if (rc == 0 && demo->config.keep) {
        keep_running(demo);
        is_sound = demo_system_stop(&demo->system) && is_sound;
    } else if (rc == 0 && demo->config.full_size > 0) {
        printf("\n");
        rc = run_full_size(demo, divisor, err, &is_sound);
    }
    bool ok = rc == 0 && is_sound;
    if (rc == 0 && demo->config.json_file != NULL)
        rc = demo_report_json(&demo->report, &demo->config, ok, err);
    if (rc == 0 && !ok)
        rc = fl_error_set(err, FL_EINTERNAL, "a figure above is not as it must be");
    return rc;
}

int fl_app_demo(int argc, char **argv)
{
    static const int signums[] = {SIGTERM, SIGINT};
    struct demo demo = {0};
    struct fl_opt_result parsed = {0};
    struct fl_error err = {0};
    int status;

    if (!fl_app_options(opts, &demo.config, argc, argv, "fairlead demo [OPTIONS]",
                        "Starts engines, tokenizer, picker and gateway on loopback, replays a "
                        "trace once per policy and "
                        "shows the result. Ends with 0 only if every request was answered and "
                        "everything booked was "
                        "freed.",
                        &parsed, &status))
        return status;
    fl_log_set_level(FL_LOG_WARN);
    fl_limits_raise_fds();
    demo.loop = fl_loop_new(0);
    struct fl_signals *signals = fl_signals_open(demo.loop, signums, 2, on_signal, &demo);
    int rc = run(&demo, &err);
    if (rc < 0)
        fprintf(stderr, "fairlead demo: %s\n", err.text);
    fl_signals_close(signals);
    fl_loop_free(demo.loop);
    fl_trace_fini(&demo.trace);
    fl_opt_fini(opts, &demo.config);
    return rc == 0 ? 0 : rc == FL_ECONFIG ? 2 : 1;
}
