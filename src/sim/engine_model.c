/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/engine_model.h"

void fl_engine_model_init(struct fl_engine_model *model, uint32_t blocks, uint32_t block_tokens,
                          double prefill_tps)
{
    *model = (struct fl_engine_model){.block_tokens = block_tokens, .prefill_tps = prefill_tps};
    fl_lru_init(&model->cache, blocks);
}

void fl_engine_model_fini(struct fl_engine_model *model)
{
    fl_lru_fini(&model->cache);
}

struct fl_engine_admission fl_engine_model_admit(struct fl_engine_model *model, double now_s,
                                                 const uint64_t *ids, uint32_t id_count,
                                                 uint64_t input_tokens,
                                                 const struct fl_lru_changes *changes)
{
    struct fl_engine_admission admission = {
        .matched_blocks = fl_lru_lead(&model->cache, ids, id_count),
    };
    uint64_t matched_tokens = (uint64_t)admission.matched_blocks * model->block_tokens;
    double start_s = model->free_s > now_s ? model->free_s : now_s;

    fl_lru_touch(&model->cache, ids, id_count, changes);
    admission.prefill_tokens = input_tokens > matched_tokens ? input_tokens - matched_tokens : 1;
    admission.first_token_s = start_s + (double)admission.prefill_tokens / model->prefill_tps;
    model->free_s = admission.first_token_s;
    return admission;
}
