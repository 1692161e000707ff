/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"
#include "selection/policy.h"
#include "selection/selector.h"

static void hashes_from(uint64_t *hashes, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        hashes[i] = fl_mix64(seed * 1000003 + i + 1);
}

static uint32_t add_rank(struct fl_selector *s, uint64_t worker, uint32_t rank)
{
    struct fl_rank_info info = {
        .worker_id = worker, .dp_rank = rank, .endpoint = FL_BYTES("10.0.0.1:8000")};
    return fl_selector_add_rank(s, &info);
}

static struct fl_selector *selector_with(const char *policy, uint64_t seed, uint32_t block_tokens,
                                         uint32_t ranks)
{
    struct fl_selector_config config;
    fl_selector_config_init(&config);
    config.policy = fl_policy_find(policy);
    config.seed = seed;
    struct fl_selector *s = fl_selector_new(&config);
    fl_selector_set_block_tokens(s, block_tokens);
    for (uint32_t i = 1; i <= ranks; i++)
        add_rank(s, i, 0);
    return s;
}

static struct fl_ask ask_for(const struct fl_selector *s, uint64_t isl, const uint64_t *hashes,
                             size_t count)
{
    struct fl_ask ask;
    fl_ask_init(&ask, s);
    ask.isl_tokens = isl;
    ask.hashes = hashes;
    ask.hash_count = count;
    ask.wants_candidates = true;
    return ask;
}

static void book_on(struct fl_selector *s, uint64_t worker, uint64_t prefill,
                    const uint64_t *hashes, size_t count, struct fl_hold *hold)
{
    struct fl_ask ask = ask_for(s, prefill > 0 ? prefill : 1, hashes, count);
    struct fl_choice choice;
    struct fl_prompt_blocks *blocks = count > 0 ? fl_prompt_blocks_new(hashes, count) : NULL;
    assert_int_equal(fl_selector_book_on(s, &ask, worker, 0, prefill, blocks, hold, &choice), 0);
}

static void free_hold(struct fl_selector *s, struct fl_hold *hold)
{
    struct fl_prompt_blocks *garbage = NULL;
    fl_selector_free(s, hold, &garbage);
    fl_prompt_blocks_free(garbage);
}

static struct fl_rank_state state_of(const struct fl_selector *s, uint64_t worker)
{
    for (uint32_t row = 0; row < fl_selector_rank_count(s); row++)
        if (fl_selector_rank_at(s, row).worker_id == worker)
            return fl_selector_rank_at(s, row);
    fail_msg("worker %llu has no row", (unsigned long long)worker);
    return (struct fl_rank_state){0};
}

/* ---- selection.md 9.6: three ranks, isl 512, block size 16 ---- */

struct table {
    struct fl_selector *s;
    uint64_t prompt[32], filler[3][64];
    struct fl_kvindex_match overlaps[2];
    struct fl_hold holds[16];
    uint32_t hold_count;
};

static void table_fini(struct table *t)
{
    for (uint32_t i = 0; i < t->hold_count; i++)
        free_hold(t->s, &t->holds[i]);
    fl_selector_check(t->s);
    fl_selector_delete(t->s);
}

/* P 0/1024/256, active decode 10/40/20, of which rank 2 holds 24 blocks of the prompt. */
static void table_init(struct table *t, bool is_decode)
{
    *t = (struct table){0};
    struct fl_selector_config config;
    fl_selector_config_init(&config);
    config.is_decode = is_decode;
    config.seed = 1;
    t->s = fl_selector_new(&config);
    fl_selector_set_block_tokens(t->s, 16);
    for (uint32_t i = 1; i <= 3; i++)
        add_rank(t->s, i, 0);
    hashes_from(t->prompt, 32, 99);
    for (uint32_t i = 0; i < 3; i++)
        hashes_from(t->filler[i], 64, i + 1);
    book_on(t->s, 1, 0, t->filler[0], 10, &t->holds[t->hold_count++]);
    book_on(t->s, 2, 1024, t->prompt, 24, &t->holds[t->hold_count++]);
    book_on(t->s, 2, 0, t->filler[1], 16, &t->holds[t->hold_count++]);
    book_on(t->s, 3, 256, t->filler[2], 20, &t->holds[t->hold_count++]);
    t->overlaps[0] = (struct fl_kvindex_match){
        .worker_id = 2, .row = FL_KVINDEX_NO_ROW, .blocks = {[FL_TIER_DEVICE] = 24}};
    t->overlaps[1] = (struct fl_kvindex_match){.worker_id = 3,
                                               .row = FL_KVINDEX_NO_ROW,
                                               .blocks = {[FL_TIER_DEVICE] = 16,
                                                          [FL_TIER_HOST_PINNED] = 8,
                                                          [FL_TIER_DISK] = 3,
                                                          [FL_TIER_EXTERNAL] = 1}};
}

static struct fl_ask table_ask(struct table *t)
{
    struct fl_ask ask = ask_for(t->s, 512, t->prompt, 32);
    ask.overlaps = t->overlaps;
    ask.overlap_count = 2;
    return ask;
}

static double cost_of(const struct fl_choice *choice, uint64_t worker)
{
    for (uint32_t i = 0; i < choice->candidates.count; i++)
        if (choice->candidates.worker_id[i] == worker)
            return choice->candidates.cost[i];
    fail_msg("no candidate %llu", (unsigned long long)worker);
    return 0;
}

static struct fl_terms terms_of(const struct fl_choice *choice, uint64_t worker)
{
    for (uint32_t i = 0; i < choice->candidates.count; i++)
        if (choice->candidates.worker_id[i] == worker)
            return fl_candidates_terms(&choice->candidates, i, &choice->scoring);
    fail_msg("no candidate %llu", (unsigned long long)worker);
    return (struct fl_terms){0};
}

static void assert_near(double actual, double expected)
{
    if (!(fabs(actual - expected) <= 1e-9))
        fail_msg("%.12g is not %.12g", actual, expected);
}

/* selection.md 9.6, the table and its variants; acceptance test 5 */
static void worked_examples_have_the_published_costs(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        double decay, scale, weight;
        uint32_t more_requests[3]; /* to reach n = 1, 9, 4 */
        bool is_decode, no_tracking;
        double credit;
        double costs[3];
        uint64_t chosen;
    } rows[] = {
        {"defaults", 0, 1, 0, {0}, false, false, 1, {74, 120, 77}, 1},
        {"decay 1: Pmin 0, excess 64 blocks: credit 8; excess 16: 17 2/3",
         1,
         1,
         0,
         {0},
         false,
         false,
         1,
         {74, 136, 48 - (16 / 1.5 + 7) + 52},
         1},
        {"prefill ignored", 0, 0, 0, {0}, false, false, 1, {42, 48, 52}, 1},
        {"request weight 2 with n = 1, 9, 4",
         0,
         1,
         2,
         {0, 7, 3},
         false,
         false,
         1,
         {76, 138, 85},
         1},
        {"decode without credit", 0, 1, 0, {0}, true, true, 0, {42, 48, 52}, 1},
        {"decode with credit 1", 0, 1, 0, {0}, true, true, 1, {42, 24, 29}, 2},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct table t;
        table_init(&t, rows[i].is_decode);
        for (uint32_t w = 0; w < 3; w++)
            for (uint32_t k = 0; k < rows[i].more_requests[w]; k++)
                book_on(t.s, w + 1, 0, NULL, 0, &t.holds[t.hold_count++]);
        struct fl_ask ask = table_ask(&t);
        ask.weights.credit = rows[i].credit;
        ask.weights.credit_decay = rows[i].decay;
        ask.weights.prefill_scale = rows[i].scale;
        ask.weights.request_weight = rows[i].weight;
        ask.track_prefill = !rows[i].no_tracking;
        struct fl_choice choice;
        assert_int_equal(fl_selector_choose(t.s, &ask, &choice), 0);
        for (uint64_t w = 1; w <= 3; w++) {
            if (fabs(cost_of(&choice, w) - rows[i].costs[w - 1]) > 1e-9)
                fail_msg("row %zu (%s): worker %d costs %g", i, rows[i].why, (int)w,
                         cost_of(&choice, w));
        }
        assert_int_equal(choice.worker_id, rows[i].chosen);
        table_fini(&t);
    }
}

/* selection.md 9.6 and 9.8: each column of the table */
static void worked_example_shows_every_term(void **state)
{
    (void)state;
    static const struct {
        double cached, effective, raw, credit, decode_blocks;
    } rows[] = {{0, 512, 32, 0, 42}, {384, 128, 96, 24, 48}, {368, 144, 48, 23, 52}};
    struct table t;
    table_init(&t, false);
    struct fl_ask ask = table_ask(&t);
    struct fl_choice choice;
    assert_int_equal(fl_selector_choose(t.s, &ask, &choice), 0);
    for (uint64_t w = 1; w <= 3; w++) {
        struct fl_terms terms = terms_of(&choice, w);
        assert_near(terms.cached, rows[w - 1].cached);
        assert_near(terms.effective_prefill, rows[w - 1].effective);
        assert_near(terms.raw, rows[w - 1].raw);
        assert_near(terms.credit, rows[w - 1].credit);
        assert_near(terms.decode_blocks, rows[w - 1].decode_blocks);
    }
    assert_int_equal(choice.ties, 1);
    assert_int_equal(choice.best_device, 24);
    assert_int_equal(choice.potential_decode_blocks, 42);
    table_fini(&t);
}

/* selection.md 9.6: preferred taint of weight 1 on rank 3 gives 77 x 0.46692 = 35.95; 9.4: not a
 * pinned one */
static void preferred_taint_multiplies_the_cost(void **state)
{
    (void)state;
    struct table t;
    table_init(&t, false);
    static const uint64_t taint = 4711;
    struct fl_rank_info info = {.worker_id = 3, .taints = &taint, .taint_count = 1};
    fl_selector_update_rank(t.s, state_of(t.s, 3).slot, &info);
    struct fl_taint_wish wish = {taint, 1};
    struct fl_ask ask = table_ask(&t);
    ask.preferred_taints = &wish;
    ask.preferred_taint_count = 1;
    struct fl_choice choice;
    assert_int_equal(fl_selector_choose(t.s, &ask, &choice), 0);
    assert_int_equal(choice.worker_id, 3);
    assert_near(cost_of(&choice, 3), 77 * exp(-tanh(1.0)));
    assert_true(fabs(cost_of(&choice, 3) - 35.95) < 0.005);
    assert_near(cost_of(&choice, 1), 74);

    ask.has_pinned = true;
    ask.pinned_worker = 3;
    assert_int_equal(fl_selector_choose(t.s, &ask, &choice), 0);
    assert_near(cost_of(&choice, 3), 77);
    table_fini(&t);
}

/* selection.md 9.4: the table of multipliers */
static void taint_multipliers_are_bounded(void **state)
{
    (void)state;
    static const double rows[][2] = {{-10, 2.7183}, {-1, 2.1417}, {-0.5, 1.5874}, {0, 1},
                                     {0.5, 0.6299}, {1, 0.4669},  {2, 0.3814},    {10, 0.3679}};
    struct fl_selector *s = selector_with("kv-cost", 1, 16, 0);
    static const uint64_t taint = 5;
    struct fl_rank_info info = {.worker_id = 1, .taints = &taint, .taint_count = 1};
    fl_selector_add_rank(s, &info);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_taint_wish wish = {taint, rows[i][0]};
        struct fl_ask ask = ask_for(s, 16000, NULL, 0);
        ask.preferred_taints = &wish;
        ask.preferred_taint_count = 1;
        struct fl_choice choice;
        assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
        assert_true(fabs(cost_of(&choice, 1) / 1000 - rows[i][1]) < 0.0001);
    }
    fl_selector_delete(s);
}

/* selection.md 9.6: partial block, isl 500: 72.25 with nothing cached, 41.25 with 31 blocks on the
 * device */
static void partial_block_counts_as_tokens_only(void **state)
{
    (void)state;
    struct fl_selector *s = selector_with("kv-cost", 1, 16, 2);
    uint64_t prompt[31], filler[10];
    hashes_from(prompt, 31, 7);
    struct fl_hold holds[2];
    for (uint64_t w = 1; w <= 2; w++) {
        hashes_from(filler, 10, 100 + w);
        book_on(s, w, 0, filler, 10, &holds[w - 1]);
    }
    struct fl_kvindex_match overlap = {
        .worker_id = 2, .row = state_of(s, 2).slot, .blocks = {[FL_TIER_DEVICE] = 31}};
    struct fl_ask ask = ask_for(s, 500, prompt, 31);
    ask.overlaps = &overlap;
    ask.overlap_count = 1;
    struct fl_choice choice;
    assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
    assert_near(cost_of(&choice, 1), 72.25);
    assert_near(cost_of(&choice, 2), 41.25);
    assert_int_equal(choice.worker_id, 2);
    assert_int_equal(choice.effective_prefill_tokens, 4);
    assert_int_equal(choice.cached_tokens, 496);
    free_hold(s, &holds[0]);
    free_hold(s, &holds[1]);
    fl_selector_delete(s);
}

/* selection.md 9.6: whole prompt cached: effective 0, load +0 is accepted */
static void wholly_cached_prompt_books_no_prefill(void **state)
{
    (void)state;
    struct fl_selector *s = selector_with("kv-cost", 1, 16, 1);
    uint64_t prompt[32];
    hashes_from(prompt, 32, 7);
    struct fl_kvindex_match overlap = {.worker_id = 1, .blocks = {[FL_TIER_DEVICE] = 32}};
    struct fl_ask ask = ask_for(s, 512, prompt, 32);
    ask.overlaps = &overlap;
    ask.overlap_count = 1;
    struct fl_choice choice;
    assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
    assert_int_equal(choice.effective_prefill_tokens, 0);
    struct fl_hold hold;
    fl_selector_book(s, &ask, &choice, fl_prompt_blocks_new(prompt, 32), &hold);
    assert_true(state_of(s, 1).prefill_tokens == 0);
    assert_true(state_of(s, 1).requests == 1);
    free_hold(s, &hold);
    fl_selector_delete(s);
}

/* ---- draws ---- */

/* selection.md 9.5: with seed 1 the draws are 0x910a2dec89025cc1, 0xbeeb8da1658eec67,
 * 0xf893a2eefb32555e; rank number (x * n) >> 64 of the tied ones, ascending */
static void ties_are_drawn_exactly(void **state)
{
    (void)state;
    static const uint64_t draws[] = {0x910a2dec89025cc1, 0xbeeb8da1658eec67, 0xf893a2eefb32555e};
    for (uint32_t ranks = 2; ranks <= 9; ranks++) {
        struct fl_selector *s = selector_with("kv-cost", 1, 16, ranks);
        for (size_t i = 0; i < FL_ARRAY_LEN(draws); i++) {
            struct fl_ask ask = ask_for(s, 512, NULL, 0);
            struct fl_choice choice;
            assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
            unsigned __int128 x = draws[i];
            assert_int_equal(choice.worker_id, 1 + (uint64_t)(x * ranks >> 64));
            assert_int_equal(choice.ties, ranks);
        }
        fl_selector_delete(s);
    }
}

/* selection.md 9.5: n = 1 takes it without a draw */
static void lone_minimum_needs_no_draw(void **state)
{
    (void)state;
    struct fl_selector *s = selector_with("kv-cost", 1, 16, 2);
    struct fl_hold hold;
    book_on(s, 1, 64, NULL, 0, &hold);
    struct fl_ask ask = ask_for(s, 512, NULL, 0);
    struct fl_choice choice;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
        assert_int_equal(choice.worker_id, 2);
    }
    free_hold(s, &hold);
    assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
    assert_int_equal(choice.worker_id, 2); /* the first draw of seed 1: 0x91.. * 2 >> 64 = 1 */
    fl_selector_delete(s);
}

/* acceptance test 5: 3 equal ranks, 30,000 draws, each 10,000 +- 500 */
static void ties_are_uniform(void **state)
{
    (void)state;
    struct fl_selector *s = selector_with("kv-cost", 1, 16, 3);
    uint32_t counts[4] = {0};
    struct fl_ask ask = ask_for(s, 512, NULL, 0);
    ask.wants_candidates = false;
    struct fl_choice choice;
    for (int i = 0; i < 30000; i++) {
        fl_selector_choose(s, &ask, &choice);
        counts[choice.worker_id]++;
    }
    for (int w = 1; w <= 3; w++)
        assert_in_range(counts[w], 9500, 10500);
    fl_selector_delete(s);
}

/* selection.md 9.6: softmax frequencies, within 2 % */
static void softmax_frequencies(void **state)
{
    (void)state;
    static const struct {
        double temperature, p[3];
    } rows[] = {{1, {0.43389, 0.15962, 0.40649}},
                {0.2, {0.57854, 0.00390, 0.41756}},
                {0.01, {0.99853, 0, 0.00147}}};
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct table t;
        table_init(&t, false);
        struct fl_ask ask = table_ask(&t);
        ask.weights.temperature = rows[i].temperature;
        ask.wants_candidates = false;
        uint32_t counts[4] = {0};
        struct fl_choice choice;
        enum { N = 100000 };
        for (int k = 0; k < N; k++) {
            fl_selector_choose(t.s, &ask, &choice);
            counts[choice.worker_id]++;
        }
        for (int w = 0; w < 3; w++)
            assert_true(fabs(counts[w + 1] / (double)N - rows[i].p[w]) < 0.02);
        table_fini(&t);
    }
}

/* selection.md 9.5: all equal under temperature is uniform; a width that overflows is scaled first
 */
static void softmax_of_extremes(void **state)
{
    (void)state;
    struct fl_selector *s = selector_with("kv-cost", 1, 16, 4);
    struct fl_ask ask = ask_for(s, 512, NULL, 0);
    ask.weights.temperature = 0.5;
    uint32_t counts[5] = {0};
    struct fl_choice choice;
    for (int i = 0; i < 20000; i++) {
        assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
        counts[choice.worker_id]++;
    }
    for (int w = 1; w <= 4; w++)
        assert_in_range(counts[w], 4500, 5500);

    struct fl_hold hold;
    book_on(s, 1, 1000000, NULL, 0, &hold);
    ask.weights.prefill_scale = 1e303; /* rank 1 costs about 6e307, the others 3e304 */
    assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
    ask.weights.prefill_scale = 1e305; /* rank 1 is infinite: not eligible (9.5) */
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
        assert_int_not_equal(choice.worker_id, 1);
    }
    ask.weights.prefill_scale = 1e308; /* all are */
    assert_int_equal(fl_selector_choose(s, &ask, &choice), FL_ENO_ENDPOINTS);
    free_hold(s, &hold);
    fl_selector_check(s);
    fl_selector_delete(s);
}

/* ---- load ---- */

/* selection.md 7.2: the ledger of rank 11/0 */
static void ledger_of_two_requests_with_a_common_prefix(void **state)
{
    (void)state;
    struct fl_selector *s = selector_with("kv-cost", 1, 4, 0);
    add_rank(s, 11, 0);
    uint64_t prompt[3];
    hashes_from(prompt, 3, 1);
    struct fl_hold r1, r2;
    struct fl_choice choice;
    struct fl_ask ask = ask_for(s, 8, prompt, 2);
    assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
    fl_selector_book(s, &ask, &choice, fl_prompt_blocks_new(prompt, 2), &r1);

    struct fl_kvindex_match overlap = {.worker_id = 11, .blocks = {[FL_TIER_DEVICE] = 1}};
    ask = ask_for(s, 12, prompt, 3);
    ask.overlaps = &overlap;
    ask.overlap_count = 1;
    assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
    assert_int_equal(choice.potential_decode_blocks, 3);
    fl_selector_book(s, &ask, &choice, fl_prompt_blocks_new(prompt, 3), &r2);

#define EXPECT(p, d, n)                                                                            \
    do {                                                                                           \
        struct fl_rank_state at = state_of(s, 11);                                                 \
        assert_true(at.prefill_tokens == (p));                                                     \
        assert_true(at.decode_blocks == (d));                                                      \
        assert_true(at.requests == (n));                                                           \
    } while (0)
    EXPECT(16, 3, 2);
    assert_true(fl_selector_prefill_complete(s, &r1));
    EXPECT(8, 3, 2);
    assert_false(fl_selector_prefill_complete(s, &r1));
    EXPECT(8, 3, 2);
    free_hold(s, &r1);
    EXPECT(8, 3, 1);
    free_hold(s, &r2); /* its prefill never completed */
    EXPECT(0, 0, 0);
    free_hold(s, &r2);
    EXPECT(0, 0, 0);
#undef EXPECT
    assert_int_equal(fl_selector_counters(s).load_underflows, 0);
    fl_selector_delete(s);
}

/* selection.md 7.2: without reuse each request's blocks count alone; without tracking there are
 * none */
static void reuse_and_tracking_can_be_off(void **state)
{
    (void)state;
    struct fl_selector *s = selector_with("kv-cost", 1, 4, 1);
    uint64_t prompt[3];
    hashes_from(prompt, 3, 1);
    struct fl_ask ask = ask_for(s, 12, prompt, 3);
    ask.assume_kv_reuse = false;
    struct fl_choice choice;
    struct fl_hold holds[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
        assert_int_equal(choice.potential_decode_blocks, 3 + 3 * i);
        fl_selector_book(s, &ask, &choice, NULL, &holds[i]);
    }
    assert_true(state_of(s, 1).decode_blocks == 6);
    free_hold(s, &holds[0]);
    free_hold(s, &holds[1]);
    assert_true(state_of(s, 1).decode_blocks == 0);
    fl_selector_delete(s);

    struct fl_selector_config config;
    fl_selector_config_init(&config);
    config.track_active_blocks = false;
    s = fl_selector_new(&config);
    fl_selector_set_block_tokens(s, 4);
    add_rank(s, 1, 0);
    ask = ask_for(s, 12, prompt, 3);
    assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
    assert_int_equal(choice.potential_decode_blocks, 0);
    assert_near(cost_of(&choice, 1), 3);
    fl_selector_book(s, &ask, &choice, NULL, &holds[0]);
    assert_true(state_of(s, 1).decode_blocks == 0);
    assert_true(state_of(s, 1).prefill_tokens == 12);
    free_hold(s, &holds[0]);
    fl_selector_delete(s);
}

/* selection.md 7.4: the example: 3, then 1.25 shown as 1; off: accepted, no effect */
static void output_blocks_decay(void **state)
{
    (void)state;
    struct fl_selector_config config;
    fl_selector_config_init(&config);
    config.track_output_blocks = true;
    struct fl_selector *s = fl_selector_new(&config);
    fl_selector_set_block_tokens(s, 4);
    add_rank(s, 1, 0);
    uint64_t prompt[3];
    hashes_from(prompt, 3, 1);
    struct fl_hold r1, r2;
    book_on(s, 1, 8, prompt, 2, &r1);
    book_on(s, 1, 8, prompt, 3, &r2);
    fl_selector_add_output_block(s, &r2, 0.5);
    assert_true(state_of(s, 1).decode_blocks == 3);
    free_hold(s, &r1);
    fl_selector_add_output_block(s, &r2, 0.25);
    assert_true(state_of(s, 1).decode_blocks == 1);
    free_hold(s, &r2);
    assert_true(state_of(s, 1).decode_blocks == 0);
    assert_int_equal(fl_selector_counters(s).load_underflows, 0);
    fl_selector_delete(s);

    s = selector_with("kv-cost", 1, 4, 1);
    book_on(s, 1, 8, prompt, 2, &r1);
    fl_selector_add_output_block(s, &r1, 0.5);
    assert_true(state_of(s, 1).decode_blocks == 2);
    free_hold(s, &r1);
    fl_selector_delete(s);
}

/* ---- ranks that leave ---- */

/* selection.md 4.4, trap 45: a flap at the same endpoint finds the load it left */
static void worker_back_at_the_same_endpoint_finds_its_load(void **state)
{
    (void)state;
    struct fl_selector *s = selector_with("kv-cost", 1, 4, 2);
    uint64_t prompt[3];
    hashes_from(prompt, 3, 1);
    struct fl_hold hold;
    book_on(s, 1, 12, prompt, 3, &hold);
    assert_true(fl_selector_remove_rank(s, state_of(s, 1).slot));
    assert_int_equal(fl_selector_tombstone_count(s), 1);
    assert_int_equal(fl_selector_rank_count(s), 1);
    fl_selector_check(s);
    struct fl_ask ask = ask_for(s, 12, prompt, 3);
    struct fl_choice choice;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
        assert_int_equal(choice.worker_id, 2);
        assert_near(cost_of(&choice, 2), 6); /* nothing shared with a rank that is no rank */
    }
    add_rank(s, 1, 0);
    assert_int_equal(fl_selector_tombstone_count(s), 0);
    assert_true(state_of(s, 1).prefill_tokens == 12);
    assert_true(state_of(s, 1).decode_blocks == 3);
    assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
    assert_near(cost_of(&choice, 1), (12 + 12) / 4 + 3);
    struct fl_prompt_blocks *garbage = NULL;
    assert_false(fl_selector_free(s, &hold, &garbage));
    fl_prompt_blocks_free(garbage);
    fl_selector_check(s);
    fl_selector_delete(s);
}

/* selection.md 4.4: with another endpoint it starts at zero and the tombstone stays until its last
 * free */
static void worker_back_at_another_endpoint_starts_at_zero(void **state)
{
    (void)state;
    struct fl_selector *s = selector_with("kv-cost", 1, 4, 1);
    struct fl_hold first, second;
    book_on(s, 1, 12, NULL, 0, &first);
    book_on(s, 1, 12, NULL, 0, &second);
    fl_selector_remove_rank(s, state_of(s, 1).slot);
    struct fl_rank_info info = {.worker_id = 1, .endpoint = FL_BYTES("10.0.0.9:8000")};
    fl_selector_add_rank(s, &info);
    assert_true(state_of(s, 1).prefill_tokens == 0);
    assert_int_equal(fl_selector_tombstone_count(s), 1);
    assert_true(fl_selector_prefill_complete(s, &first));
    struct fl_prompt_blocks *garbage = NULL;
    assert_true(fl_selector_free(s, &first, &garbage));
    assert_int_equal(fl_selector_tombstone_count(s), 1);
    assert_true(fl_selector_free(s, &second, &garbage));
    assert_int_equal(fl_selector_tombstone_count(s), 0);
    fl_selector_check(s);
    fl_selector_delete(s);
}

/* Rows stay ascending, loads stay with their ranks, however ranks come and go. */
static void ranks_come_and_go_beside_bookings(void **state)
{
    (void)state;
    enum { WORKERS = 40, STEPS = 4000 };
    struct fl_rng rng;
    fl_rng_seed(&rng, 9);
    struct fl_selector *s = selector_with("kv-cost", 1, 4, 0);
    uint32_t slots[WORKERS];
    bool is_in[WORKERS] = {false};
    struct fl_hold holds[64] = {0};
    for (int step = 0; step < STEPS; step++) {
        uint32_t w = (uint32_t)fl_rng_below(&rng, WORKERS);
        uint32_t h = (uint32_t)fl_rng_below(&rng, 64);
        if (fl_rng_below(&rng, 4) == 0) {
            if (is_in[w])
                fl_selector_remove_rank(s, slots[w]);
            else
                slots[w] = add_rank(s, w + 1, 0);
            is_in[w] = !is_in[w];
        } else if (holds[h].is_held) {
            free_hold(s, &holds[h]);
        } else if (is_in[w]) {
            uint64_t prompt[8];
            hashes_from(prompt, 8, fl_rng_below(&rng, 3));
            book_on(s, w + 1, 10, prompt, 1 + fl_rng_below(&rng, 8), &holds[h]);
        }
        for (uint32_t row = 1; row < fl_selector_rank_count(s); row++)
            assert_true(fl_selector_rank_at(s, row - 1).worker_id <
                        fl_selector_rank_at(s, row).worker_id);
        if (step % 100 == 0)
            fl_selector_check(s);
    }
    for (uint32_t h = 0; h < 64; h++)
        free_hold(s, &holds[h]);
    assert_int_equal(fl_selector_tombstone_count(s), 0);
    for (uint32_t row = 0; row < fl_selector_rank_count(s); row++) {
        struct fl_rank_state at = fl_selector_rank_at(s, row);
        assert_true(at.prefill_tokens == 0 && at.decode_blocks == 0 && at.requests == 0);
    }
    assert_int_equal(fl_selector_counters(s).load_underflows, 0);
    fl_selector_delete(s);
}

/* ---- eligibility, selection.md 9.1 ---- */

static const char *filter_of(const struct fl_choice *choice, uint64_t worker)
{
    for (uint32_t i = 0; i < choice->candidates.count; i++)
        if (choice->candidates.worker_id[i] == worker)
            return fl_filter_name(choice->candidates.filter[i]);
    return "no candidate";
}

/* selection.md 9.1 tests 1, 2, 5 and 9.8: the word that removed each */
static void first_failing_test_names_the_filter(void **state)
{
    (void)state;
    struct fl_selector *s = selector_with("kv-cost", 1, 16, 3);
    static const uint64_t taint = 77;
    struct fl_rank_info info = {.worker_id = 4, .taints = &taint, .taint_count = 1};
    fl_selector_add_rank(s, &info);
    fl_selector_fence_rank(s, state_of(s, 2).slot);
    static const uint64_t allowed[] = {2, 3, 4, 9};
    struct fl_ask ask = ask_for(s, 512, NULL, 0);
    ask.has_allowed = true;
    ask.allowed = allowed;
    ask.allowed_count = 4;
    ask.required_taints = &taint;
    ask.required_taint_count = 1;
    struct fl_choice choice;
    assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
    assert_int_equal(choice.worker_id, 4);
    assert_string_equal(filter_of(&choice, 1), "not_allowed");
    assert_string_equal(filter_of(&choice, 2), "draining");
    assert_string_equal(filter_of(&choice, 3), "taint");
    assert_string_equal(filter_of(&choice, 4), "");
    fl_selector_delete(s);
}

/* selection.md 9.1, table of results; trap 32 */
static void who_is_refused_and_how(void **state)
{
    (void)state;
    static const uint64_t two[] = {2}, taint = 5;
    static const struct {
        const char *why;
        bool has_allowed;
        size_t allowed_count;
        uint64_t pinned;
        uint32_t pinned_rank;
        bool taints;
        int rc;
        uint64_t chosen;
    } rows[] = {
        {"nobody allowed", true, 0, 0, 0, false, FL_ENO_ENDPOINTS, 0},
        {"only worker 2", true, 1, 0, 0, false, 0, 2},
        {"a taint nobody has", false, 0, 0, 0, true, FL_ENO_ENDPOINTS, 0},
        {"pinned", false, 0, 3, 0, false, 0, 3},
        {"pinned outside allowed", true, 1, 3, 0, false, FL_EBAD_REQUEST, 0},
        {"pinned and unknown", false, 0, 99, 0, false, FL_ENO_ENDPOINTS, 0},
        {"pinned to a rank that is not there", false, 0, 3, 1, false, FL_ENO_ENDPOINTS, 0},
        {"pinned to a worker without the taint", false, 0, 3, 0, true, FL_ENO_ENDPOINTS, 0},
        {"pinned to a draining worker", false, 0, 1, 0, false, FL_ENO_ENDPOINTS, 0},
    };
    struct fl_selector *s = selector_with("kv-cost", 1, 16, 3);
    fl_selector_fence_rank(s, state_of(s, 1).slot);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_ask ask = ask_for(s, 512, NULL, 0);
        ask.has_allowed = rows[i].has_allowed;
        ask.allowed = two;
        ask.allowed_count = rows[i].allowed_count;
        ask.has_pinned = rows[i].pinned != 0;
        ask.pinned_worker = rows[i].pinned;
        ask.pinned_rank = rows[i].pinned_rank;
        ask.required_taints = &taint;
        ask.required_taint_count = rows[i].taints;
        struct fl_choice choice;
        int rc = fl_selector_choose(s, &ask, &choice);
        if (rc != rows[i].rc || (rc == 0 && choice.worker_id != rows[i].chosen))
            fail_msg("row %zu: %s: rc %d", i, rows[i].why, rc);
    }
    fl_selector_delete(s);
    s = selector_with("kv-cost", 1, 16, 0);
    struct fl_ask ask = ask_for(s, 512, NULL, 0);
    struct fl_choice choice;
    assert_int_equal(fl_selector_choose(s, &ask, &choice), FL_ENO_ENDPOINTS);
    fl_selector_delete(s);
}

/* selection.md 9.1: an affinity target that is eligible is taken without comparing costs; else
 * normally */
static void affinity_is_a_wish(void **state)
{
    (void)state;
    struct fl_selector *s = selector_with("kv-cost", 1, 16, 2);
    struct fl_hold hold;
    book_on(s, 2, 100000, NULL, 0, &hold);
    struct fl_ask ask = ask_for(s, 512, NULL, 0);
    ask.has_affinity = true;
    ask.affinity_worker = 2;
    struct fl_choice choice;
    assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
    assert_int_equal(choice.worker_id, 2);
    ask.affinity_worker = 7;
    assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
    assert_int_equal(choice.worker_id, 1);
    free_hold(s, &hold);
    fl_selector_delete(s);
}

/* selection.md 8.1: strictly greater than frac x capacity, on all eligible ranks */
static void busy_pool_is_refused_above_the_threshold(void **state)
{
    (void)state;
    struct fl_selector *s = selector_with("kv-cost", 1, 16, 0);
    for (uint64_t w = 1; w <= 2; w++) {
        struct fl_rank_info info = {.worker_id = w, .prefill_capacity = 1000};
        fl_selector_add_rank(s, &info);
    }
    struct fl_hold holds[4];
    struct fl_ask ask = ask_for(s, 512, NULL, 0);
    ask.has_busy_threshold = true;
    ask.busy_threshold = 2;
    struct fl_choice choice;
    book_on(s, 1, 2000, NULL, 0, &holds[0]);
    book_on(s, 2, 2000, NULL, 0, &holds[1]);
    assert_int_equal(fl_selector_choose(s, &ask, &choice), 0); /* exactly at the limit is free */
    book_on(s, 1, 1, NULL, 0, &holds[2]);
    assert_int_equal(fl_selector_choose(s, &ask, &choice), 0); /* worker 2 is not busy */
    book_on(s, 2, 1, NULL, 0, &holds[3]);
    assert_int_equal(fl_selector_choose(s, &ask, &choice), FL_EQUEUE_REJECTED);
    static const uint64_t nobody[] = {8};
    ask.has_allowed = true;
    ask.allowed = nobody;
    ask.allowed_count = 1;
    assert_int_equal(fl_selector_choose(s, &ask, &choice),
                     FL_ENO_ENDPOINTS); /* E = 0 is not busy */
    for (int i = 0; i < 4; i++)
        free_hold(s, &holds[i]);
    fl_selector_delete(s);
}

/* ---- policies, selection.md 9.7 ---- */

static void round_robin_takes_the_next_eligible_rank(void **state)
{
    (void)state;
    struct fl_selector *s = selector_with("round-robin", 1, 16, 3);
    struct fl_ask ask = ask_for(s, 512, NULL, 0);
    struct fl_choice choice;
    static const uint64_t order[] = {1, 2, 3, 1, 2};
    for (size_t i = 0; i < FL_ARRAY_LEN(order); i++) {
        assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
        assert_int_equal(choice.worker_id, order[i]);
    }
    static const uint64_t allowed[] = {1, 2};
    ask.has_allowed = true;
    ask.allowed = allowed;
    ask.allowed_count = 2;
    assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
    assert_int_equal(choice.worker_id, 1); /* 3 is next, but not allowed */
    assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
    assert_int_equal(choice.worker_id, 2);
    fl_selector_delete(s);
}

static void random_is_uniform_over_the_eligible(void **state)
{
    (void)state;
    struct fl_selector *s = selector_with("random", 1, 16, 4);
    fl_selector_fence_rank(s, state_of(s, 2).slot);
    struct fl_hold hold;
    book_on(s, 1, 100000, NULL, 0, &hold); /* loads do not count */
    uint32_t counts[5] = {0};
    struct fl_ask ask = ask_for(s, 512, NULL, 0);
    struct fl_choice choice;
    for (int i = 0; i < 30000; i++) {
        assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
        counts[choice.worker_id]++;
    }
    assert_int_equal(counts[2], 0);
    assert_in_range(counts[1], 9500, 10500);
    assert_in_range(counts[3], 9500, 10500);
    assert_in_range(counts[4], 9500, 10500);
    free_hold(s, &hold);
    fl_selector_delete(s);
}

/* selection.md 9.7: load-only takes every overlap as 0 and books isl; other policies book by
 * overlap */
static void load_only_ignores_overlaps_and_books_the_whole_prompt(void **state)
{
    (void)state;
    static const struct {
        const char *policy;
        uint64_t effective;
        double cost;
    } rows[] = {
        {"load-only", 512, 64}, {"kv-cost", 0, 32}, {"round-robin", 0, 32}, {"random", 0, 32}};
    uint64_t prompt[32];
    hashes_from(prompt, 32, 3);
    struct fl_kvindex_match overlap = {.worker_id = 1, .blocks = {[FL_TIER_DEVICE] = 32}};
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_selector *s = selector_with(rows[i].policy, 1, 16, 1);
        struct fl_ask ask = ask_for(s, 512, prompt, 32);
        ask.overlaps = &overlap;
        ask.overlap_count = 1;
        struct fl_choice choice;
        assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
        if (choice.effective_prefill_tokens != rows[i].effective ||
            cost_of(&choice, 1) != rows[i].cost)
            fail_msg("%s: effective %d cost %g", rows[i].policy,
                     (int)choice.effective_prefill_tokens, cost_of(&choice, 1));
        fl_selector_delete(s);
    }
    assert_null(fl_policy_find("kv1"));
}

/* An overlap whose row hint is stale, or of a rank never registered (12.4), does no harm. */
static void overlap_hints_may_be_wrong(void **state)
{
    (void)state;
    struct fl_selector *s = selector_with("kv-cost", 1, 16, 3);
    struct fl_kvindex_match overlaps[] = {
        {.worker_id = 2, .row = state_of(s, 3).slot, .blocks = {[FL_TIER_DEVICE] = 4}},
        {.worker_id = 3, .row = 5000, .blocks = {[FL_TIER_DEVICE] = 2}},
        {.worker_id = 9, .row = state_of(s, 1).slot, .blocks = {[FL_TIER_DEVICE] = 30}},
        {.worker_id = 1, .dp_rank = 1, .row = 0, .blocks = {[FL_TIER_DEVICE] = 30}},
    };
    struct fl_ask ask = ask_for(s, 512, NULL, 0);
    ask.overlaps = overlaps;
    ask.overlap_count = FL_ARRAY_LEN(overlaps);
    struct fl_choice choice;
    assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
    assert_near(cost_of(&choice, 1), 32);
    assert_near(cost_of(&choice, 2), 28);
    assert_near(cost_of(&choice, 3), 30);
    fl_selector_check(s);
    fl_selector_delete(s);
}

/* selection.md 9.8: the chosen one first and the cheapest of more than 64 */
static void candidates_are_the_cheapest(void **state)
{
    (void)state;
    enum { N = 200 };
    struct fl_selector *s = selector_with("kv-cost", 1, 16, N);
    static struct fl_hold holds[N];
    for (uint64_t w = 1; w <= N; w++)
        book_on(s, w, 16 * ((w * 37) % N), NULL, 0, &holds[w - 1]);
    struct fl_ask ask = ask_for(s, 16, NULL, 0);
    ask.weights.request_weight = 0;
    struct fl_choice choice;
    assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
    assert_int_equal(choice.candidates.count, FL_CANDIDATES_MAX);
    assert_int_equal(choice.candidates.left_out, N - FL_CANDIDATES_MAX);
    assert_int_equal(choice.candidates.worker_id[choice.candidates.chosen], choice.worker_id);
    bool seen[FL_CANDIDATES_MAX] = {false};
    for (uint32_t i = 0; i < FL_CANDIDATES_MAX; i++) {
        double cost = choice.candidates.cost[i]; /* 1 .. 64, each once */
        assert_true(cost >= 1 && cost <= FL_CANDIDATES_MAX);
        assert_false(seen[(uint32_t)cost - 1]);
        seen[(uint32_t)cost - 1] = true;
    }
    for (uint32_t i = 0; i < N; i++)
        free_hold(s, &holds[i]);
    fl_selector_delete(s);
}

/* Plain pass and whole formula agree for any load, so that a rank never gains by being looked at.
 */
static void plain_pass_equals_the_formula(void **state)
{
    (void)state;
    struct fl_rng rng;
    fl_rng_seed(&rng, 4);
    struct fl_selector *s = selector_with("kv-cost", 1, 48, 100); /* no power of two */
    static struct fl_hold holds[100];
    for (uint64_t w = 1; w <= 100; w++)
        book_on(s, w, fl_rng_below(&rng, 100000), NULL, 0, &holds[w - 1]);
    struct fl_ask ask = ask_for(s, 77777, NULL, 0);
    ask.weights.prefill_scale = 0.37;
    ask.weights.request_weight = 1.3;
    struct fl_choice choice;
    assert_int_equal(fl_selector_choose(s, &ask, &choice), 0);
    for (uint32_t i = 0; i < choice.candidates.count; i++) {
        struct fl_candidates one = choice.candidates;
        double plain = one.cost[i];
        double raw = (one.prefill_tokens[i] + 77777) / 48;
        assert_true(plain == 0.37 * raw + one.blocks[i] + 1.3 * one.requests[i]);
    }
    for (uint32_t i = 0; i < 100; i++)
        free_hold(s, &holds[i]);
    fl_selector_delete(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worked_examples_have_the_published_costs),
        cmocka_unit_test(worked_example_shows_every_term),
        cmocka_unit_test(preferred_taint_multiplies_the_cost),
        cmocka_unit_test(taint_multipliers_are_bounded),
        cmocka_unit_test(partial_block_counts_as_tokens_only),
        cmocka_unit_test(wholly_cached_prompt_books_no_prefill),
        cmocka_unit_test(ties_are_drawn_exactly),
        cmocka_unit_test(lone_minimum_needs_no_draw),
        cmocka_unit_test(ties_are_uniform),
        cmocka_unit_test(softmax_frequencies),
        cmocka_unit_test(softmax_of_extremes),
        cmocka_unit_test(ledger_of_two_requests_with_a_common_prefix),
        cmocka_unit_test(reuse_and_tracking_can_be_off),
        cmocka_unit_test(output_blocks_decay),
        cmocka_unit_test(worker_back_at_the_same_endpoint_finds_its_load),
        cmocka_unit_test(worker_back_at_another_endpoint_starts_at_zero),
        cmocka_unit_test(ranks_come_and_go_beside_bookings),
        cmocka_unit_test(first_failing_test_names_the_filter),
        cmocka_unit_test(who_is_refused_and_how),
        cmocka_unit_test(affinity_is_a_wish),
        cmocka_unit_test(busy_pool_is_refused_above_the_threshold),
        cmocka_unit_test(round_robin_takes_the_next_eligible_rank),
        cmocka_unit_test(random_is_uniform_over_the_eligible),
        cmocka_unit_test(load_only_ignores_overlaps_and_books_the_whole_prompt),
        cmocka_unit_test(overlap_hints_may_be_wrong),
        cmocka_unit_test(candidates_are_the_cheapest),
        cmocka_unit_test(plain_pass_equals_the_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
