/* SPDX-License-Identifier: Apache-2.0 */
/* performance.md (g): the frozen formulas give the expected rows, so that the engine model, the
 * traces and the arithmetic are the ones everybody else compares with. */
#include "unit/sim/trace_file.h"

#include <math.h>

#include "sim/formulas.h"
#include "sim/simulate.h"

struct row {
    const char *name;
    enum fl_sim_formula formula;
    uint32_t parameter;
    bool is_exact; /* third significant digit; else within 10 % */
    double hit, mean, p50, p90, p99, imbalance;
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

static bool agrees(double value, double expected, bool is_exact)
{
    /* Half a unit of the third digit (rows are printed to a thousandth at best), and a little for
     * their rounding. */
    double unit = fmax(pow(10, floor(log10(fabs(expected))) - 2), 0.001);
    double tolerance = is_exact ? unit * 0.55 : expected * 0.10;
    return fabs(value - expected) <= tolerance;
}

static void check_rows(const struct fl_trace *trace, double speed, uint32_t blocks, bool set_b,
                       const struct row *rows, size_t count)
{
    struct fl_sim_config config = {
        .workers = 8, .blocks = blocks, .speed = speed, .full_blocks_only = set_b};
    for (size_t i = 0; i < count; i++) {
        struct fl_sim_formula_state formula;
        struct fl_sim_result got;
        const struct row *row = &rows[i];
        fl_sim_formula_init(&formula, row->formula, row->parameter);
        struct fl_sim_policy policy = fl_sim_formula_policy(&formula);
        fl_sim_run(&config, trace, &policy, &got);
        fl_sim_formula_fini(&formula);
        print_message("%s C=%u: hit %.4f mean %.4f p50 %.4f p90 %.4f p99 %.4f imbalance %.4f\n",
                      row->name, blocks, got.hit_blocks, got.ttft_mean_s, got.ttft_p50_s,
                      got.ttft_p90_s, got.ttft_p99_s, got.work_imbalance);
        if (!agrees(got.hit_blocks, row->hit, row->is_exact) ||
            !agrees(got.ttft_mean_s, row->mean, row->is_exact) ||
            (row->is_exact && !agrees(got.ttft_p50_s, row->p50, true)) ||
            !agrees(got.ttft_p90_s, row->p90, row->is_exact) ||
            !agrees(got.ttft_p99_s, row->p99, row->is_exact) ||
            !agrees(got.work_imbalance, row->imbalance, row->is_exact))
            fail_msg("%s, C = %u is not the expected row", row->name, blocks);
    }
}

/* performance.md (g), set A, mc-conv 2.2 C=1024 */
static void set_a_conversation_1024(void **state)
{
    static const struct row rows[] = {
        {"rr", FL_SIM_RR, 0, true, 0.0612, 1.985, 1.148, 5.108, 10.40, 1.038},
        {"kv1", FL_SIM_KV, 1, true, 0.1084, 1.158, 0.844, 2.548, 5.742, 1.046},
        {"kv2", FL_SIM_KV, 2, true, 0.1213, 1.030, 0.741, 2.223, 5.592, 1.059},
        {"maxhit", FL_SIM_MAXHIT, 0, true, 0.0445, 3680, 3759, 6395, 7001, 8.000},
        {"greedy", FL_SIM_GREEDY, 0, true, 0.1483, 0.798, 0.502, 1.797, 5.277, 1.022},
        {"random", FL_SIM_RANDOM, 0, false, 0.0593, 2.863, 1.707, 7.179, 13.96, 1.045},
        {"least", FL_SIM_LEAST, 0, false, 0.0586, 2.030, 1.302, 4.913, 10.14, 1.043},
        {"chwbl2", FL_SIM_CHWBL, 2, false, 0.1415, 1.901, 1.141, 4.872, 9.325, 1.047},
    };
    (void)state;
    check_rows(&conversation, 2.2, 1024, false, rows, FL_ARRAY_LEN(rows));
}

/* performance.md (g), set A, mc-conv 2.2 C=4096 */
static void set_a_conversation_4096(void **state)
{
    static const struct row rows[] = {
        {"rr", FL_SIM_RR, 0, true, 0.0984, 1.818, 1.025, 4.776, 10.07, 1.042},
        {"kv1", FL_SIM_KV, 1, true, 0.2040, 1.017, 0.717, 2.265, 5.476, 1.039},
        {"kv2", FL_SIM_KV, 2, true, 0.2172, 0.884, 0.612, 1.950, 5.277, 1.038},
        {"greedy", FL_SIM_GREEDY, 0, true, 0.2849, 0.640, 0.352, 1.502, 4.905, 1.051},
        {"least", FL_SIM_LEAST, 0, false, 0.0887, 1.920, 1.228, 4.770, 9.453, 1.044},
        {"chwbl2", FL_SIM_CHWBL, 2, false, 0.2727, 1.480, 0.782, 4.036, 8.344, 1.069},
        {"chwbl4", FL_SIM_CHWBL, 4, false, 0.2709, 1.456, 0.779, 3.828, 8.431, 1.087},
    };
    (void)state;
    check_rows(&conversation, 2.2, 4096, false, rows, FL_ARRAY_LEN(rows));
}

/* performance.md (g), set A, mc-syn 1.6 C=1024 */
static void set_a_synthetic_1024(void **state)
{
    static const struct row rows[] = {
        {"rr", FL_SIM_RR, 0, true, 0.0637, 2.951, 1.670, 8.009, 20.29, 1.059},
        {"kv1", FL_SIM_KV, 1, true, 0.2131, 0.877, 0.493, 2.344, 3.897, 1.079},
        {"kv2", FL_SIM_KV, 2, true, 0.2360, 0.835, 0.387, 2.309, 3.897, 1.074},
        {"maxhit", FL_SIM_MAXHIT, 0, true, 0.3660, 0.726, 0.168, 2.186, 3.792, 1.076},
        {"greedy", FL_SIM_GREEDY, 0, true, 0.3300, 0.691, 0.178, 2.070, 3.612, 1.139},
        {"chwbl2", FL_SIM_CHWBL, 2, false, 0.2350, 1.618, 1.109, 3.838, 7.965, 1.092},
    };
    (void)state;
    check_rows(&synthetic, 1.6, 1024, false, rows, FL_ARRAY_LEN(rows));
}

/* performance.md (g), set A, mc-syn 1.6 C=4096 */
static void set_a_synthetic_4096(void **state)
{
    static const struct row rows[] = {
        {"rr", FL_SIM_RR, 0, true, 0.1632, 1.893, 1.184, 4.324, 12.62, 1.077},
        {"kv1", FL_SIM_KV, 1, true, 0.4693, 0.542, 0.050, 1.681, 3.432, 1.052},
        {"kv2", FL_SIM_KV, 2, true, 0.5375, 0.463, 0.032, 1.471, 3.388, 1.075},
        {"maxhit", FL_SIM_MAXHIT, 0, true, 0.6272, 0.410, 0.026, 1.368, 3.388, 1.160},
        {"greedy", FL_SIM_GREEDY, 0, true, 0.6173, 0.387, 0.026, 1.296, 3.187, 1.135},
        {"chwbl4", FL_SIM_CHWBL, 4, false, 0.4771, 0.948, 0.264, 2.700, 5.563, 1.132},
    };
    (void)state;
    check_rows(&synthetic, 1.6, 4096, false, rows, FL_ARRAY_LEN(rows));
}

/* performance.md (g), set B: rr and greedy on all four settings */
static void set_b_rr_and_greedy(void **state)
{
    static const struct row conversation_1024[] = {
        {"rr", FL_SIM_RR, 0, true, 0.0646, 1.984, 1.145, 5.108, 10.40, 1.037},
        {"greedy", FL_SIM_GREEDY, 0, true, 0.1613, 0.791, 0.492, 1.788, 5.211, 1.025},
    };
    static const struct row conversation_4096[] = {
        {"rr", FL_SIM_RR, 0, true, 0.1035, 1.814, 1.023, 4.755, 10.06, 1.043},
        {"greedy", FL_SIM_GREEDY, 0, true, 0.3069, 0.627, 0.342, 1.479, 4.808, 1.035},
    };
    static const struct row synthetic_1024[] = {
        {"rr", FL_SIM_RR, 0, true, 0.0661, 2.947, 1.666, 7.987, 20.32, 1.060},
        {"greedy", FL_SIM_GREEDY, 0, true, 0.3630, 0.676, 0.163, 2.029, 3.556, 1.077},
    };
    static const struct row synthetic_4096[] = {
        {"rr", FL_SIM_RR, 0, true, 0.1711, 1.876, 1.178, 4.270, 12.62, 1.079},
        {"greedy", FL_SIM_GREEDY, 0, true, 0.6331, 0.390, 0.027, 1.295, 3.166, 1.121},
    };
    (void)state;
    check_rows(&conversation, 2.2, 1024, true, conversation_1024, 2);
    check_rows(&conversation, 2.2, 4096, true, conversation_4096, 2);
    check_rows(&synthetic, 1.6, 1024, true, synthetic_1024, 2);
    check_rows(&synthetic, 1.6, 4096, true, synthetic_4096, 2);
}

/* performance.md (g): percentiles are sorted values at index n * percent / 100 */
static void percentile_takes_the_index_by_integer_division(void **state)
{
    double values[] = {5, 1, 4, 2, 3};
    (void)state;
    assert_true(fl_sim_percentile(values, 5, 50) == 3);
    assert_true(fl_sim_percentile(values, 5, 90) == 5);
    assert_true(fl_sim_percentile(values, 5, 99) == 5);
    assert_true(fl_sim_percentile(values, 1, 99) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentile_takes_the_index_by_integer_division),
        cmocka_unit_test(set_a_conversation_1024),
        cmocka_unit_test(set_a_conversation_4096),
        cmocka_unit_test(set_a_synthetic_1024),
        cmocka_unit_test(set_a_synthetic_4096),
        cmocka_unit_test(set_b_rr_and_greedy),
    };
    return cmocka_run_group_tests(tests, read_traces, drop_traces);
}
