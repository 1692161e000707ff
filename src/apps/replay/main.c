/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "apps/app.h"
#include "apps/replay/replay.h"
#include "base/log.h"
#include "http/message.h"
#include "sim/simulate.h"

struct options {
    const char *trace, *target, *token_scale, *model;
    double speed, time_scale;
    uint32_t requests, block_tokens;
    uint64_t timeout_ms;
    bool even;
};

static const struct fl_opt opts[] = {
    {.name = "trace",
     .type = FL_OPT_STRING,
     .off = offsetof(struct options, trace),
     .arg = "FILE",
     .help = "Trace to replay (JSON lines; .gz is unpacked by gzip)."},
    {.name = "target",
     .type = FL_OPT_STRING,
     .off = offsetof(struct options, target),
     .arg = "URL",
     .help = "Base URL of the endpoint; requests go to <URL>/v1/completions. The host is an IP "
             "literal."},
    {.name = "model",
     .type = FL_OPT_STRING,
     .off = offsetof(struct options, model),
     .def = "fairlead-demo",
     .help = "Model named in every request."},
    {.name = "speed",
     .type = FL_OPT_F64,
     .off = offsetof(struct options, speed),
     .def = "1",
     .fmin = 0.001,
     .fmax = 10000,
     .help = "Arrivals come this many times as fast as in the trace."},
    {.name = "time-scale",
     .type = FL_OPT_F64,
     .off = offsetof(struct options, time_scale),
     .def = "1",
     .fmin = 0.001,
     .fmax = 10000,
     .help = "Seconds of the model in a second of the wall; the engines must be given the same."},
    {.name = "token-scale",
     .type = FL_OPT_STRING,
     .off = offsetof(struct options, token_scale),
     .def = "1",
     .arg = "1/N",
     .help = "Tokens sent for a token of the trace."},
    {.name = "requests",
     .type = FL_OPT_U32,
     .off = offsetof(struct options, requests),
     .def = "0",
     .max = UINT32_MAX,
     .help = "Only the first N requests; 0 means all."},
    {.name = "block-tokens",
     .type = FL_OPT_U32,
     .off = offsetof(struct options, block_tokens),
     .def = "0",
     .max = 65536,
     .help =
         "Tokens an id of the trace stands for; 0 means by dialect (512, or 16 for Qwen-Bailian)."},
    {.name = "timeout",
     .type = FL_OPT_DURATION,
     .off = offsetof(struct options, timeout_ms),
     .def = "120s",
     .min = 1,
     .max = 86400000,
     .help = "Longest wait for a whole answer, by the wall clock."},
    {.name = "even",
     .type = FL_OPT_BOOL,
     .off = offsetof(struct options, even),
     .help = "Spread requests of one timestamp evenly up to the next."},
    FL_APP_ACTION_OPTS,
    {0},
};

/* What the config points to. */
struct texts {
    char host[FL_ADDR_TEXT], path[512];
};

struct run {
    struct fl_loop *loop;
    struct replay_result *result;
};

static void on_done(void *owner, struct replay_result *result)
{
    struct run *run = owner;
    run->result = result;
    fl_loop_stop(run->loop);
}

static double mean_of(const double *values, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += values[i];
    return n > 0 ? sum / (double)n : 0;
}

static void report(const struct options *options, struct replay_result *r)
{
    size_t n = r->ttft_count;
    printf("requests %llu  errors %llu  wall %.1f s  (speed %g, time scale %g, token scale %s)\n",
           (unsigned long long)r->requests, (unsigned long long)r->errors, r->duration_s,
           options->speed, options->time_scale, options->token_scale);
    if (n > 0)
        printf("time to first token, trace time: mean %.1f ms  p50 %.1f  p90 %.1f  p99 %.1f\n",
               mean_of(r->ttft_ms, n), fl_sim_percentile(r->ttft_ms, n, 50),
               fl_sim_percentile(r->ttft_ms, n, 90), fl_sim_percentile(r->ttft_ms, n, 99));
    if (r->prompt_tokens > 0)
        printf("prefix hits: %.4f of %llu prompt tokens\n",
               (double)r->cached_tokens / (double)r->prompt_tokens,
               (unsigned long long)r->prompt_tokens);
    if (r->router_count > 0)
        printf("router, last byte sent to request read by the engine: p50 %.0f us  p99 %.0f us\n",
               fl_sim_percentile(r->router_us, r->router_count, 50),
               fl_sim_percentile(r->router_us, r->router_count, 99));
    if (r->errors > 0)
        fprintf(stderr, "first error: %s\n", r->first_error);
}

static int configure(const struct options *options, struct replay_config *config,
                     struct texts *texts, struct fl_error *err)
{
    struct fl_url url;
    if (options->trace == NULL || options->target == NULL)
        return fl_error_set(err, FL_ECONFIG, "--trace and --target are needed");
    if (!replay_parse_scale(options->token_scale, &config->token_divisor))
        return fl_error_set(err, FL_ECONFIG, "--token-scale %s: write 1 or 1/N",
                            options->token_scale);
    if (fl_url_parse(fl_bytes_of(options->target), &url, err) < 0)
        return FL_ECONFIG;
    if (url.is_tls || !url.is_ip)
        return fl_error_set(err, FL_ECONFIG, "--target %s: http:// with an IP literal is served",
                            options->target);
    bool is_v6 = fl_bytes_index(url.host, ':') < url.host.n;
    snprintf(texts->host, sizeof(texts->host), is_v6 ? "[%.*s]:%u" : "%.*s:%u", FL_FMT(url.host),
             url.port);
    struct fl_bytes base = url.path;
    while (base.n > 0 && base.p[base.n - 1] == '/')
        base.n--;
    snprintf(texts->path, sizeof(texts->path), "%.*s/v1/completions", FL_FMT(base));
    config->host = texts->host;
    config->path = texts->path;
    return fl_addr_parse(fl_bytes_of(texts->host), false, &config->target, err);
}

int fl_app_replay(int argc, char **argv)
{
    struct options options = {0};
    struct fl_opt_result parsed = {0};
    struct fl_error err = {0};
    struct fl_trace trace = {0};
    struct replay *replay = NULL;
    struct run run = {0};
    struct texts texts;
    int status;

    if (!fl_app_options(opts, &options, argc, argv,
                        "fairlead replay --trace FILE --target URL [OPTIONS]",
                        "Sends a trace to an OpenAI endpoint, open loop, and measures the answers.",
                        &parsed, &status))
        return status;
    struct replay_config config = {.model = options.model,
                                   .speed = options.speed,
                                   .time_scale = options.time_scale,
                                   .requests = options.requests,
                                   .timeout_ms = options.timeout_ms};
    if (configure(&options, &config, &texts, &err) < 0) {
        fprintf(stderr, "fairlead replay: %s\n", err.text);
        fl_opt_fini(opts, &options);
        return 2;
    }
    status = 1;
    run.loop = fl_loop_new(0);
    if (replay_read_trace(options.trace, options.block_tokens, &trace, &err) < 0)
        goto out;
    if (options.even)
        fl_trace_spread(&trace, 3000000);
    if (replay_start(run.loop, &trace, &config, on_done, &run, &replay, &err) < 0)
        goto out;
    fl_loop_run(run.loop);
    report(&options, run.result);
    status = run.result->errors == 0 ? 0 : 1;
out:
    if (err.code < 0)
        fprintf(stderr, "fairlead replay: %s\n", err.text);
    replay_free(replay);
    fl_loop_free(run.loop);
    fl_trace_fini(&trace);
    fl_opt_fini(opts, &options);
    return status;
}
