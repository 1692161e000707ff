/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/simulate.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/heap.h"

/* One request's future: first its first token, then its end. */
struct completion {
    struct fl_heap_node node;
    double at_s;
    uint64_t seq; /* equal times leave in the order they were booked */
    double end_s;
    uint32_t request, worker, prefill_tokens, blocks;
    bool is_decoding;
};

static struct completion *completion_of(const struct fl_heap_node *node)
{
    return FL_CONTAINER_OF(node, struct completion, node);
}

static bool completion_before(const struct fl_heap_node *a, const struct fl_heap_node *b)
{
    const struct completion *x = completion_of(a);
    const struct completion *y = completion_of(b);
    return x->at_s < y->at_s || (x->at_s <= y->at_s && x->seq < y->seq);
}

static void apply_completions(struct fl_heap *heap, struct fl_sim_state *state,
                              const struct fl_sim_policy *policy, double until_s)
{
    for (;;) {
        struct fl_heap_node *node = fl_heap_peek(heap);
        if (node == NULL || completion_of(node)->at_s > until_s)
            return;
        struct completion *done = completion_of(node);
        struct fl_sim_worker *worker = &state->workers[done->worker];
        fl_heap_pop(heap);
        if (!done->is_decoding) {
            worker->queued_prefill_tokens -= done->prefill_tokens;
            if (policy->on_first_token != NULL)
                policy->on_first_token(policy->self, done->request, done->worker, done->at_s);
            done->is_decoding = true;
            done->at_s = done->end_s;
            fl_heap_push(heap, node);
        } else {
            worker->decode_blocks -= done->blocks;
            worker->in_flight--;
            if (policy->on_end != NULL)
                policy->on_end(policy->self, done->request, done->worker, done->at_s);
        }
    }
}

struct totals {
    uint64_t asked_blocks, matched_blocks, input_tokens, matched_tokens;
};

/* Books the request at `chosen`; returns its time to first token. */
static double book(struct fl_sim_state *state, const struct fl_sim_policy *policy,
                   const struct fl_sim_request *request, uint32_t chosen,
                   struct completion *completion, struct fl_heap *heap, struct totals *totals)
{
    struct fl_sim_worker *worker = &state->workers[chosen];
    struct fl_engine_admission admission =
        fl_engine_model_admit(&worker->engine, request->at_s, request->ids, request->id_count,
                              request->input_tokens, NULL);
    uint64_t prefill = admission.prefill_tokens;
    double first_s = admission.first_token_s;
    worker->queued_prefill_tokens += prefill;
    worker->decode_blocks += request->id_count;
    worker->in_flight++;
    worker->computed_tokens += prefill;
    worker->requests++;
    if (policy->on_book != NULL)
        policy->on_book(policy->self, request, chosen, admission.matched_blocks);

    *completion = (struct completion){
        .at_s = first_s,
        .seq = request->index,
        .end_s = first_s + FL_SIM_DECODE_S * request->output_tokens,
        .request = request->index,
        .worker = chosen,
        .prefill_tokens = (uint32_t)prefill,
        .blocks = request->id_count,
    };
    fl_heap_push(heap, &completion->node);
    totals->asked_blocks += request->id_count;
    totals->matched_blocks += admission.matched_blocks;
    totals->input_tokens += request->input_tokens;
    totals->matched_tokens += (uint64_t)admission.matched_blocks * state->block_tokens;
    return first_s - request->at_s;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

double fl_sim_percentile(double *values, size_t n, unsigned percent)
{
    assert(n > 0);
    qsort(values, n, sizeof(*values), compare_doubles);
    size_t at = n * percent / 100;
    return values[at < n ? at : n - 1];
}

static void summarise(const struct fl_sim_state *state, double *ttft, size_t count,
                      const struct totals *totals, struct fl_sim_result *result)
{
    double sum = 0;
    uint64_t work = 0;
    uint64_t most_work = 0;
    uint64_t most_requests = 0;
    for (size_t i = 0; i < count; i++)
        sum += ttft[i];
    for (uint32_t w = 0; w < state->worker_count; w++) {
        const struct fl_sim_worker *worker = &state->workers[w];
        work += worker->computed_tokens;
        most_work = worker->computed_tokens > most_work ? worker->computed_tokens : most_work;
        most_requests = worker->requests > most_requests ? worker->requests : most_requests;
    }
    *result = (struct fl_sim_result){
        .requests = count,
        .hit_blocks = (double)totals->matched_blocks /
                      (double)(totals->asked_blocks > 0 ? totals->asked_blocks : 1),
        .hit_tokens = (double)totals->matched_tokens /
                      (double)(totals->input_tokens > 0 ? totals->input_tokens : 1),
        .ttft_mean_s = sum / (double)count,
        .ttft_p50_s = fl_sim_percentile(ttft, count, 50),
        .ttft_p90_s = fl_sim_percentile(ttft, count, 90),
        .ttft_p99_s = fl_sim_percentile(ttft, count, 99),
        .work_imbalance = (double)most_work * state->worker_count / (double)work,
        .request_imbalance = (double)most_requests * state->worker_count / (double)count,
    };
}

void fl_sim_run(const struct fl_sim_config *config, const struct fl_trace *trace,
                const struct fl_sim_policy *policy, struct fl_sim_result *result)
{
    struct fl_sim_state state = {
        .workers = fl_calloc(config->workers, sizeof(*state.workers)),
        .worker_count = config->workers,
        .block_tokens = trace->block_tokens,
    };
    struct completion *completions = fl_calloc(trace->count, sizeof(*completions));
    double *ttft = fl_calloc(trace->count, sizeof(*ttft));
    struct totals totals = {0};
    struct fl_heap heap;

    fl_heap_init(&heap, completion_before);
    for (uint32_t w = 0; w < config->workers; w++) {
        fl_engine_model_init(&state.workers[w].engine, config->blocks, trace->block_tokens,
                             config->tps != NULL ? config->tps[w] : FL_SIM_PREFILL_TPS);
    }
    for (size_t i = 0; i < trace->count; i++) {
        const struct fl_trace_record *record = &trace->records[i];
        uint32_t full = record->input_tokens / trace->block_tokens;
        struct fl_sim_request request = {
            .index = (uint32_t)i,
            .at_s = (double)record->at_us / 1e6 / config->speed,
            .ids = fl_trace_ids(trace, record),
            .id_count =
                config->full_blocks_only && full < record->id_count ? full : record->id_count,
            .input_tokens = record->input_tokens,
            .output_tokens = record->output_tokens,
        };
        apply_completions(&heap, &state, policy, request.at_s);
        uint32_t chosen = policy->choose(policy->self, &state, &request);
        assert(chosen < config->workers);
        ttft[i] = book(&state, policy, &request, chosen, &completions[i], &heap, &totals);
    }
    apply_completions(&heap, &state, policy, INFINITY);
    summarise(&state, ttft, trace->count, &totals, result);

    for (uint32_t w = 0; w < config->workers; w++)
        fl_engine_model_fini(&state.workers[w].engine);
    fl_heap_fini(&heap);
    fl_free(state.workers);
    fl_free(completions);
    fl_free(ttft);
}
