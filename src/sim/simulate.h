/* SPDX-License-Identifier: Apache-2.0 */
/* The pure simulation of performance.md (g): a trace, N engines of the one engine model, a policy
 * called as a function, a virtual clock. Exact and repeatable; the gate for every routing claim.
 *
 * Engine model: an LRU of C blocks; a request finds m leading blocks, then touches all of its ids;
 * its prefill computes p = max(input - block * m, 1) tokens at R tokens/s, first in first out, one
 * at a time an engine; the first token comes at its end, then a token each decode_s; the request
 * ends after its last token.
 *
 * Order of work at an arrival at time t: every completion with time <= t, earliest first; choose;
 * book.
 *
 * Two settings of what the ids of a request are: set A, all ids of its line (a partial last block
 * counts); set B, only the first floor(input / block) of them, full blocks, as engines cache and
 * events tell. */
#ifndef FL_SIM_SIMULATE_H
#define FL_SIM_SIMULATE_H

#include <stdbool.h>
#include <stdint.h>

#include "sim/engine_model.h"
#include "sim/trace.h"

#define FL_SIM_PREFILL_TPS 15926.0 /* tokens/s; performance.md (g) names the measurement */
#define FL_SIM_DECODE_S 0.020      /* seconds a token */

struct fl_sim_worker {
    struct fl_engine_model engine;
    uint64_t queued_prefill_tokens;
    uint64_t decode_blocks; /* of all requests booked and not ended */
    uint32_t in_flight;
    uint64_t computed_tokens; /* prefill work in all */
    uint64_t requests;
};

struct fl_sim_request {
    uint32_t index;
    double at_s;
    const uint64_t *ids;
    uint32_t id_count;
    uint32_t input_tokens, output_tokens;
};

struct fl_sim_state {
    struct fl_sim_worker *workers;
    uint32_t worker_count;
    uint32_t block_tokens;
};

/* A policy: chooses a worker 0..N-1, and is told what happens to the request afterwards. */
struct fl_sim_policy {
    void *self;
    uint32_t (*choose)(void *self, const struct fl_sim_state *state,
                       const struct fl_sim_request *request);
    /* `matched`: leading blocks found at the worker. NULL allowed, as below. */
    void (*on_book)(void *self, const struct fl_sim_request *request, uint32_t worker,
                    uint32_t matched);
    void (*on_first_token)(void *self, uint32_t request_index, uint32_t worker, double now_s);
    void (*on_end)(void *self, uint32_t request_index, uint32_t worker, double now_s);
};

struct fl_sim_config {
    uint32_t workers, blocks; /* N, C */
    double speed;             /* arrival = timestamp / speed */
    bool full_blocks_only;    /* set B */
    const double *tps;        /* one a worker; NULL: FL_SIM_PREFILL_TPS each */
};

struct fl_sim_result {
    uint64_t requests;
    double hit_blocks, hit_tokens; /* matched / asked; block x matched / input tokens */
    double ttft_mean_s, ttft_p50_s, ttft_p90_s, ttft_p99_s;
    double work_imbalance, request_imbalance; /* max over workers / mean */
};

void fl_sim_run(const struct fl_sim_config *config, const struct fl_trace *trace,
                const struct fl_sim_policy *policy, struct fl_sim_result *result);

/* Index n * percent / 100 (integer division) of sorted values. n > 0. Sorts `values`. */
double fl_sim_percentile(double *values, size_t n, unsigned percent);

#endif
