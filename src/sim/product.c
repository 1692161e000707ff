/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/product.h"

#include <assert.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "selection/policy.h"

/* What the service does outside hot moments: memory for the section. */
static void provide(struct fl_selector *selector)
{
    struct fl_active_wish wish = fl_selector_wants(selector);
    if (wish.slab_bytes == 0 && wish.buckets == 0)
        return;
    fl_selector_donate(
        selector, wish.slab_bytes > 0 ? fl_alloc(wish.slab_bytes) : NULL, wish.slab_bytes,
        wish.buckets > 0 ? fl_calloc(wish.buckets, sizeof(struct fl_active_node *)) : NULL,
        wish.buckets);
}

void fl_sim_product_init(struct fl_sim_product *product, const char *policy, uint32_t workers,
                         const struct fl_trace *trace, uint64_t seed)
{
    struct fl_selector_config config;
    fl_selector_config_init(&config);
    config.policy = fl_policy_find(policy);
    assert(config.policy != NULL);
    config.seed = seed;
    *product = (struct fl_sim_product){
        .selector = fl_selector_new(&config),
        .uses_index = config.policy->uses_index,
        .holds = fl_calloc(trace->count, sizeof(*product->holds)),
        .matches = fl_calloc(workers, sizeof(*product->matches)),
    };
    fl_selector_set_block_tokens(product->selector, trace->block_tokens);
    for (uint32_t w = 0; w < workers; w++) {
        struct fl_rank_info info = {.worker_id = w + 1, .endpoint = FL_BYTES("simulated")};
        fl_selector_add_rank(product->selector, &info);
    }
}

void fl_sim_product_fini(struct fl_sim_product *product)
{
    fl_selector_delete(product->selector);
    fl_free(product->holds);
    fl_free(product->matches);
    fl_free(product->hashes);
    *product = (struct fl_sim_product){0};
}

static uint32_t find_overlaps(struct fl_sim_product *product, const struct fl_sim_state *state,
                              const struct fl_sim_request *request)
{
    uint32_t count = 0;
    for (uint32_t w = 0; product->uses_index && w < state->worker_count; w++) {
        uint32_t blocks =
            fl_lru_lead(&state->workers[w].engine.cache, request->ids, request->id_count);
        if (blocks == 0)
            continue;
        product->matches[count++] = (struct fl_kvindex_match){
            .worker_id = w + 1, .row = w, .blocks = {[FL_TIER_DEVICE] = blocks}};
    }
    return count;
}

static uint32_t choose(void *self, const struct fl_sim_state *state,
                       const struct fl_sim_request *request)
{
    struct fl_sim_product *product = self;
    if (request->id_count > product->hash_cap) {
        product->hash_cap = (size_t)request->id_count * 2;
        product->hashes = fl_realloc(product->hashes, product->hash_cap, sizeof(*product->hashes));
    }
    /* Trace ids count up from 0; sequence hashes are spread over 64 bits. */
    for (uint32_t i = 0; i < request->id_count; i++)
        product->hashes[i] = fl_mix64(request->ids[i] + 1);

    provide(product->selector);
    fl_ask_init(&product->ask, product->selector);
    product->ask.isl_tokens = request->input_tokens > 0 ? request->input_tokens : 1;
    product->ask.hashes = product->hashes;
    product->ask.hash_count = request->id_count;
    product->ask.overlaps = product->matches;
    product->ask.overlap_count = find_overlaps(product, state, request);
    int rc = fl_selector_choose(product->selector, &product->ask, &product->choice);
    assert(rc == 0);
    (void)rc;
    return (uint32_t)product->choice.worker_id - 1;
}

static void on_book(void *self, const struct fl_sim_request *request, uint32_t worker,
                    uint32_t matched)
{
    struct fl_sim_product *product = self;
    struct fl_prompt_blocks *blocks =
        request->id_count > 0 ? fl_prompt_blocks_new(product->hashes, request->id_count) : NULL;
    (void)worker;
    (void)matched;
    fl_selector_book(product->selector, &product->ask, &product->choice, blocks,
                     &product->holds[request->index]);
}

static void on_first_token(void *self, uint32_t request_index, uint32_t worker, double now_s)
{
    struct fl_sim_product *product = self;
    (void)worker;
    (void)now_s;
    fl_selector_prefill_complete(product->selector, &product->holds[request_index]);
}

static void on_end(void *self, uint32_t request_index, uint32_t worker, double now_s)
{
    struct fl_sim_product *product = self;
    struct fl_prompt_blocks *garbage = NULL;
    (void)worker;
    (void)now_s;
    fl_selector_free(product->selector, &product->holds[request_index], &garbage);
    fl_prompt_blocks_free(garbage);
}

struct fl_sim_policy fl_sim_product_policy(struct fl_sim_product *product)
{
    return (struct fl_sim_policy){.self = product,
                                  .choose = choose,
                                  .on_book = on_book,
                                  .on_first_token = on_first_token,
                                  .on_end = on_end};
}
