/* SPDX-License-Identifier: Apache-2.0 */
#include "apps/engine/engine.h"

#include <stdio.h>

/* The names are vLLM's (gaie.md 9.1); what is ours begins with fairlead_engine_. */
const struct fl_metric_desc engine_metric_descs[ENGINE_METRIC_COUNT] = {
    [ENGINE_REQUESTS] = {.kind = FL_COUNTER,
                         .name = "fairlead_engine_requests_total",
                         .help = "Generations admitted."},
    [ENGINE_FINISHED] = {.kind = FL_COUNTER,
                         .name = "vllm:request_success_total",
                         .help = "Generations that ended properly."},
    [ENGINE_PROMPT_TOKENS] = {.kind = FL_COUNTER,
                              .name = "vllm:prompt_tokens_total",
                              .help = "Prompt tokens of admitted generations."},
    [ENGINE_GENERATION_TOKENS] = {.kind = FL_COUNTER,
                                  .name = "vllm:generation_tokens_total",
                                  .help = "Tokens generated."},
    [ENGINE_CACHE_QUERIES] = {.kind = FL_COUNTER,
                              .name = "vllm:prefix_cache_queries_total",
                              .help = "Prompt tokens looked up in the prefix cache."},
    [ENGINE_CACHE_HITS] = {.kind = FL_COUNTER,
                           .name = "vllm:prefix_cache_hits_total",
                           .help = "Prompt tokens found in the prefix cache."},
    [ENGINE_RENDERED] = {.kind = FL_COUNTER,
                         .name = "fairlead_engine_rendered_total",
                         .help = "Answers of the render route."},
    [ENGINE_ABORTED] = {.kind = FL_COUNTER,
                        .name = "fairlead_engine_aborted_total",
                        .help = "Generations whose client left."},
    [ENGINE_REFUSED] = {.kind = FL_COUNTER,
                        .name = "fairlead_engine_refused_total",
                        .help = "Requests answered with an error."},
    [ENGINE_TTFT] = {.kind = FL_HISTOGRAM,
                     .name = "vllm:time_to_first_token_seconds",
                     .help = "Model time from the whole request to the first token."},
};

static int write_gauge(struct fl_buf *out, const char *name, const char *help, double value)
{
    int rc = fl_metric_write_head(out, name, help, FL_GAUGE);
    return rc < 0 ? rc : fl_metric_write_sample(out, name, "", value);
}

int engine_write_metrics(const struct engine *engine, struct fl_buf *out)
{
    const struct fl_lru *cache = &engine->model.cache;
    char labels[96];
    int rc = fl_metrics_write(&engine->metrics, out);
    if (rc == 0)
        rc = write_gauge(out, "vllm:num_requests_running", "Generations past their first token.",
                         engine->open - engine->waiting);
    if (rc == 0)
        rc = write_gauge(out, "vllm:num_requests_waiting", "Generations before their first token.",
                         engine->waiting);
    if (rc == 0)
        rc = write_gauge(out, "vllm:kv_cache_usage_perc", "Cached blocks over all blocks, 0 to 1.",
                         (double)cache->count / cache->cap);
    if (rc == 0)
        rc = write_gauge(out, "fairlead_engine_open", "Generations open.", engine->open);
    if (rc == 0)
        rc = write_gauge(out, "fairlead_engine_peak_open", "Most generations open at once.",
                         engine->peak_open);
    if (rc == 0)
        rc = fl_metric_write_head(out, "vllm:cache_config_info", "Cache geometry, as labels.",
                                  FL_GAUGE);
    snprintf(labels, sizeof(labels), "block_size=\"%u\",num_gpu_blocks=\"%u\"",
             engine->config.block_tokens, engine->config.blocks);
    if (rc == 0)
        rc = fl_metric_write_sample(out, "vllm:cache_config_info", labels, 1);
    return rc;
}
