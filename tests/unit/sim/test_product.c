/* SPDX-License-Identifier: Apache-2.0 */
/* performance.md (g), set B: the product's own policies, run on a virtual clock, give the expected
 * rows to the third significant digit, because ties are drawn exactly as selection.md 9.5 says,
 * with seed 1. */
#include "unit/sim/trace_file.h"

#include <math.h>

#include "sim/product.h"

struct row {
    const char *policy;
    double hit_blocks, hit_tokens, mean, p50, p90, p99, imbalance;
};

static struct fl_trace conversation, synthetic;

static int read_traces(void **state)
{
    (void)state;
    read_trace("mooncake_conversation.jsonl.gz", &conversation);
    read_trace("mooncake_synthetic.jsonl.gz", &synthetic);
    return 0;
}

static int drop_traces(void **state)
{
    (void)state;
    fl_trace_fini(&conversation);
    fl_trace_fini(&synthetic);
    return 0;
}

static bool agrees(double value, double expected)
{
    double unit = fmax(pow(10, floor(log10(fabs(expected))) - 2), 0.001);
    return fabs(value - expected) <= unit * 0.55;
}

static void check_rows(const struct fl_trace *trace, double speed, uint32_t blocks,
                       const struct row *rows, size_t count)
{
    struct fl_sim_config config = {
        .workers = 8, .blocks = blocks, .speed = speed, .full_blocks_only = true};
    for (size_t i = 0; i < count; i++) {
        struct fl_sim_product product;
        struct fl_sim_result got;
        const struct row *row = &rows[i];
        fl_sim_product_init(&product, row->policy, config.workers, trace, 1);
        struct fl_sim_policy policy = fl_sim_product_policy(&product);
        fl_sim_run(&config, trace, &policy, &got);
        fl_selector_check(product.selector);
        for (uint32_t r = 0; r < config.workers; r++) {
            struct fl_rank_state rank = fl_selector_rank_at(product.selector, r);
            assert_true(rank.requests == 0 && rank.prefill_tokens == 0 && rank.decode_blocks == 0);
        }
        fl_sim_product_fini(&product);
        print_message("%s C=%u: hit %.4f %.4f mean %.4f p50 %.4f p90 %.4f p99 %.4f imb %.4f\n",
                      row->policy, blocks, got.hit_blocks, got.hit_tokens, got.ttft_mean_s,
                      got.ttft_p50_s, got.ttft_p90_s, got.ttft_p99_s, got.work_imbalance);
        if (!agrees(got.hit_blocks, row->hit_blocks) || !agrees(got.hit_tokens, row->hit_tokens) ||
            !agrees(got.ttft_mean_s, row->mean) || !agrees(got.ttft_p50_s, row->p50) ||
            !agrees(got.ttft_p90_s, row->p90) || !agrees(got.ttft_p99_s, row->p99) ||
            !agrees(got.work_imbalance, row->imbalance))
            fail_msg("%s, C = %u is not the expected row", row->policy, blocks);
    }
}

/* performance.md (g), set B, mc-conv 2.2 */
static void set_b_conversation(void **state)
{
    static const struct row small[] = {
        {"load-only", 0.0682, 0.0667, 1.243, 0.925, 2.668, 6.048, 1.032},
        {"kv-cost", 0.1163, 0.1137, 1.179, 0.872, 2.572, 5.842, 1.037},
    };
    static const struct row large[] = {
        {"load-only", 0.1033, 0.1010, 1.184, 0.870, 2.558, 5.896, 1.051},
        {"kv-cost", 0.2212, 0.2163, 1.026, 0.750, 2.241, 5.308, 1.037},
    };
    (void)state;
    check_rows(&conversation, 2.2, 1024, small, 2);
    check_rows(&conversation, 2.2, 4096, large, 2);
}

/* performance.md (g), set B, mc-syn 1.6; C = 4096 is the demo's row */
static void set_b_synthetic(void **state)
{
    static const struct row small[] = {
        {"load-only", 0.0772, 0.0761, 1.226, 0.982, 2.995, 5.020, 1.077},
        {"kv-cost", 0.2342, 0.2310, 0.860, 0.461, 2.331, 3.944, 1.039},
    };
    static const struct row large[] = {
        {"load-only", 0.1919, 0.1893, 0.898, 0.507, 2.404, 4.084, 1.036},
        {"kv-cost", 0.4937, 0.4869, 0.532, 0.044, 1.660, 3.432, 1.039},
    };
    (void)state;
    check_rows(&synthetic, 1.6, 1024, small, 2);
    check_rows(&synthetic, 1.6, 4096, large, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_b_conversation),
        cmocka_unit_test(set_b_synthetic),
    };
    return cmocka_run_group_tests(tests, read_traces, drop_traces);
}
