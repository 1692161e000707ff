/* SPDX-License-Identifier: Apache-2.0 */
/* The one engine model (performance.md (g)), shared by the pure simulation and `fairlead engine`: a
 * prefix cache with least-recently-used eviction, and prefill first in first out, one at a time, at
 * a constant rate. Seconds are the model's own. Single-threaded; never reads a clock. */
#ifndef FL_SIM_ENGINE_MODEL_H
#define FL_SIM_ENGINE_MODEL_H

#include "sim/lru.h"

struct fl_engine_model {
    struct fl_lru cache;
    uint32_t block_tokens;
    double prefill_tps; /* tokens/s */
    double free_s;      /* when its last queued prefill ends */
};

struct fl_engine_admission {
    uint32_t matched_blocks;
    uint64_t prefill_tokens; /* max(input - block x matched, 1) */
    double first_token_s;
};

void fl_engine_model_init(struct fl_engine_model *model, uint32_t blocks, uint32_t block_tokens,
                          double prefill_tps);
/* Idempotent. */
void fl_engine_model_fini(struct fl_engine_model *model);

/* A request arrives at `now_s` with the ids of its blocks: the leading run that is cached is
 * skipped, all ids are touched
 * (`changes` tells what came and went, NULL allowed), and its prefill is queued. */
struct fl_engine_admission fl_engine_model_admit(struct fl_engine_model *model, double now_s,
                                                 const uint64_t *ids, uint32_t id_count,
                                                 uint64_t input_tokens,
                                                 const struct fl_lru_changes *changes);

#endif
