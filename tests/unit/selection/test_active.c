/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/map.h"
#include "base/rng.h"
#include "selection/active.h"

#define RANKS 8

/* Hashes of a prompt as a chain over block names, so that equal at i means equal before i. */
static void chain(const uint32_t *blocks, uint32_t count, uint64_t *hashes)
{
    uint64_t hash = 1;
    for (uint32_t i = 0; i < count; i++)
        hashes[i] = hash = fl_mix64(hash * 31 + blocks[i] + 1);
}

static void donate(struct fl_active *active)
{
    struct fl_active_wish wish = fl_active_wants(active);
    fl_active_donate(
        active, wish.slab_bytes != 0 ? fl_alloc(wish.slab_bytes) : NULL, wish.slab_bytes,
        wish.buckets != 0 ? fl_calloc(wish.buckets, sizeof(struct fl_active_node *)) : NULL,
        wish.buckets);
}

/* ---- the naive twin: one map hash -> count per rank ---- */

struct twin {
    struct fl_map_u64 counts[RANKS]; /* value: count as a pointer */
};

static uintptr_t twin_count(struct twin *twin, uint32_t rank, uint64_t hash)
{
    return (uintptr_t)fl_map_u64_find(&twin->counts[rank], hash);
}

static uint32_t twin_book(struct twin *twin, uint32_t rank, const uint64_t *hashes, uint32_t n)
{
    uint32_t grown = 0;
    for (uint32_t i = 0; i < n; i++) {
        uintptr_t count = twin_count(twin, rank, hashes[i]);
        grown += count == 0;
        fl_map_u64_put(&twin->counts[rank], hashes[i], (void *)(count + 1));
    }
    return grown;
}

static uint32_t twin_free(struct twin *twin, uint32_t rank, const uint64_t *hashes, uint32_t n)
{
    uint32_t shrunk = 0;
    for (uint32_t i = 0; i < n; i++) {
        uintptr_t count = twin_count(twin, rank, hashes[i]);
        if (count == 1)
            fl_map_u64_take(&twin->counts[rank], hashes[i]);
        else
            fl_map_u64_put(&twin->counts[rank], hashes[i], (void *)(count - 1));
        shrunk += count == 1;
    }
    return shrunk;
}

static uint32_t twin_shared(struct twin *twin, uint32_t rank, const uint64_t *hashes, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && twin_count(twin, rank, hashes[i]) > 0)
        i++;
    return i;
}

struct booking {
    struct fl_active_hold hold;
    uint64_t *hashes;
    uint32_t count, rank;
};

static void compare_match(struct fl_active *active, struct twin *twin, const uint64_t *hashes,
                          uint32_t n)
{
    uint32_t by_rank[RANKS] = {0}, ranks[RANKS];
    struct fl_active_match match = fl_active_match(active, hashes, n);
    uint32_t count = fl_active_ranks(&match, by_rank, ranks);
    uint32_t most = 0, listed = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        uint32_t expected = twin_shared(twin, r, hashes, n);
        assert_int_equal(by_rank[r], expected);
        most = expected > most ? expected : most;
        listed += expected > 0;
    }
    assert_int_equal(count, listed);
    assert_int_equal(match.shared, most);
}

/* Prompts of three kinds, as selection.md 7.7 asks: a tree of conversations, prefixes of one
 * another, and many that share exactly one block. */
static uint32_t make_prompt(struct fl_rng *rng, uint32_t max, uint64_t *hashes)
{
    static uint32_t blocks[1024];
    uint32_t kind = (uint32_t)fl_rng_below(rng, 4);
    uint32_t n = 1 + (uint32_t)fl_rng_below(rng, max);
    switch (kind) {
    case 0: /* one long conversation, cut anywhere */
        for (uint32_t i = 0; i < n; i++)
            blocks[i] = i;
        break;
    case 1: /* branches at few places */
        for (uint32_t i = 0; i < n; i++)
            blocks[i] = i % 37 == 5 ? (uint32_t)fl_rng_below(rng, 3) : i;
        break;
    case 2: /* one universal block, then apart */
        for (uint32_t i = 0; i < n; i++)
            blocks[i] = i == 0 ? 7777 : (uint32_t)fl_rng_u64(rng);
        break;
    default: /* departures at checkpoints and beside them */
        for (uint32_t i = 0; i < n; i++) {
            uint32_t at = i % FL_ACTIVE_STRIDE;
            blocks[i] = at <= 1 || at == FL_ACTIVE_STRIDE - 1
                            ? 50000 + (uint32_t)fl_rng_below(rng, 2)
                            : 60000 + i;
        }
        break;
    }
    chain(blocks, n, hashes);
    return n;
}

static void run_twin(uint64_t seed, uint32_t steps, uint32_t max_blocks, uint32_t max_bookings)
{
    struct fl_rng rng;
    fl_rng_seed(&rng, seed);
    struct fl_active active;
    fl_active_init(&active);
    struct twin twin = {0};
    struct booking *bookings = fl_calloc(max_bookings, sizeof *bookings);
    uint32_t held = 0;
    uint64_t *hashes = fl_calloc(max_blocks, sizeof *hashes);
    struct fl_prompt_blocks *garbage = NULL;

    for (uint32_t step = 0; step < steps; step++) {
        donate(&active);
        bool books = held < max_bookings && (held == 0 || fl_rng_below(&rng, 100) < 52);
        if (books) {
            struct booking *b = &bookings[held++];
            b->count = make_prompt(&rng, max_blocks, hashes);
            b->rank = (uint32_t)fl_rng_below(&rng, RANKS);
            b->hashes = fl_calloc(b->count, sizeof *b->hashes);
            memcpy(b->hashes, hashes, b->count * sizeof *hashes);
            compare_match(&active, &twin, hashes, b->count);
            struct fl_active_match match = fl_active_match(&active, hashes, b->count);
            uint64_t inserts = active.inserts;
            uint32_t grown = fl_active_book(&active, fl_prompt_blocks_new(hashes, b->count),
                                            b->rank, match, &b->hold);
            assert_int_equal(grown, twin_book(&twin, b->rank, b->hashes, b->count));
            assert_true(active.inserts - inserts <= b->count / FL_ACTIVE_STRIDE + 2);
        } else {
            struct booking *b = &bookings[fl_rng_below(&rng, held)];
            uint32_t unshared = fl_active_unshared(&b->hold, b->rank);
            uint32_t shrunk = fl_active_free(&active, &b->hold, b->rank, &garbage);
            assert_int_equal(shrunk, unshared);
            assert_int_equal(shrunk, twin_free(&twin, b->rank, b->hashes, b->count));
            fl_free(b->hashes);
            *b = bookings[--held];
        }
        assert_true(active.segment_count <= (held > 0 ? 2 * held - 1 : 0));
        if (step % 64 == 0)
            fl_active_check(&active);
        fl_prompt_blocks_free(garbage);
        garbage = NULL;
    }
    while (held > 0) {
        struct booking *b = &bookings[--held];
        fl_active_free(&active, &b->hold, b->rank, &garbage);
        fl_free(b->hashes);
    }
    fl_prompt_blocks_free(garbage);
    fl_active_check(&active);
    assert_int_equal(active.segment_count, 0);
    assert_int_equal(active.node_count, 0);
    assert_int_equal(active.slab.heap_allocs, 0);
    fl_active_fini(&active);
    for (uint32_t r = 0; r < RANKS; r++)
        fl_map_u64_fini(&twin.counts[r]);
    fl_free(bookings);
    fl_free(hashes);
}

/* selection.md 7.7 and acceptance test 17 */
static void agrees_with_a_count_per_block_and_rank(void **state)
{
    (void)state;
    run_twin(1, 6000, 40, 24);
    run_twin(2, 3000, 300, 48);
    run_twin(3, 1500, 1000, 16);
    run_twin(4, 2000, 700, 300);
}

/* selection.md 7.7: "1,000 prompts that share exactly one block" */
static void thousand_prompts_that_share_one_block(void **state)
{
    (void)state;
    struct fl_active active;
    fl_active_init(&active);
    static struct fl_active_hold holds[1000];
    uint32_t blocks[20], unique = 0;
    uint64_t hashes[20];
    for (uint32_t i = 0; i < 1000; i++) {
        for (uint32_t k = 0; k < 20; k++)
            blocks[k] = k == 0 ? 0 : i * 100 + k;
        chain(blocks, 20, hashes);
        donate(&active);
        struct fl_active_match match = fl_active_match(&active, hashes, 20);
        assert_int_equal(match.shared, i > 0 ? 1 : 0);
        unique += fl_active_book(&active, fl_prompt_blocks_new(hashes, 20), 3, match, &holds[i]);
    }
    assert_int_equal(unique, 1 + 1000 * 19);
    fl_active_check(&active);
    struct fl_prompt_blocks *garbage = NULL;
    for (uint32_t i = 0; i < 1000; i++)
        unique -= fl_active_free(&active, &holds[i], 3, &garbage);
    assert_int_equal(unique, 0);
    fl_prompt_blocks_free(garbage);
    fl_active_fini(&active);
}

/* selection.md 7.7: a freed array that a surviving segment still points into stays until that
 * segment goes; joining gives it back as soon as the survivor can do without */
static void joined_segments_give_the_freed_prompt_back(void **state)
{
    (void)state;
    struct fl_active active;
    fl_active_init(&active);
    donate(&active);
    uint32_t blocks[200];
    uint64_t hashes[200];
    for (uint32_t i = 0; i < 200; i++)
        blocks[i] = i;
    chain(blocks, 200, hashes);
    struct fl_active_hold shorter, longer;
    fl_active_book(&active, fl_prompt_blocks_new(hashes, 100), 0,
                   fl_active_match(&active, hashes, 100), &shorter);
    fl_active_book(&active, fl_prompt_blocks_new(hashes, 200), 0,
                   fl_active_match(&active, hashes, 200), &longer);
    assert_int_equal(active.segment_count, 2);
    struct fl_prompt_blocks *garbage = NULL;
    assert_int_equal(fl_active_free(&active, &shorter, 0, &garbage), 0);
    assert_non_null(garbage); /* nobody needs the shorter array any more */
    assert_int_equal(active.segment_count, 1);
    fl_active_check(&active);
    assert_int_equal(fl_active_match(&active, hashes, 150).shared, 150);
    assert_int_equal(fl_active_free(&active, &longer, 0, &garbage), 200);
    fl_prompt_blocks_free(garbage);
    fl_active_fini(&active);
}

/* selection.md 7.7: at most n/64 + 2 inserts, no allocation, for a prompt of 131 k tokens */
static void long_prompt_needs_few_inserts_and_no_allocation(void **state)
{
    (void)state;
    enum { N = 8192 };
    struct fl_active active;
    fl_active_init(&active);
    uint64_t *hashes = fl_calloc(N, sizeof *hashes);
    uint64_t seed = 5;
    for (uint32_t i = 0; i < N; i++)
        hashes[i] = fl_splitmix64(&seed);
    struct fl_active_hold first, second;
    donate(&active);
    fl_active_book(&active, fl_prompt_blocks_new(hashes, N), 0, (struct fl_active_match){0},
                   &first);
    assert_true(active.inserts <= N / 64 + 2);
    uint64_t inserts = active.inserts;
    for (uint32_t i = N / 2; i < N; i++)
        hashes[i] = fl_splitmix64(&seed);
    struct fl_active_match match = fl_active_match(&active, hashes, N);
    assert_int_equal(match.shared, N / 2);
    fl_active_book(&active, fl_prompt_blocks_new(hashes, N), 1, match, &second);
    assert_true(active.inserts - inserts <= N / 2 / 64 + 2);
    assert_int_equal(active.slab.heap_allocs, 0);
    fl_active_check(&active);
    struct fl_prompt_blocks *garbage = NULL;
    fl_active_free(&active, &first, 0, &garbage);
    fl_active_check(&active);
    fl_active_free(&active, &second, 1, &garbage);
    fl_prompt_blocks_free(garbage);
    fl_active_fini(&active);
    fl_free(hashes);
}

/* HTTP callers send any numbers as sequence hashes: repeated ones, chains that meet again. Loads
 * may be odd then, but nothing breaks and everything goes. */
static void hashes_that_are_no_chain_do_no_harm(void **state)
{
    (void)state;
    struct fl_rng rng;
    fl_rng_seed(&rng, 77);
    struct fl_active active;
    fl_active_init(&active);
    struct fl_active_hold holds[32];
    uint32_t ranks_of[32], held = 0;
    uint64_t hashes[200];
    struct fl_prompt_blocks *garbage = NULL;
    for (uint32_t step = 0; step < 40000; step++) {
        donate(&active);
        if (held < 32 && (held == 0 || fl_rng_below(&rng, 2) == 0)) {
            uint32_t n = 1 + (uint32_t)fl_rng_below(&rng, 200);
            for (uint32_t i = 0; i < n; i++)
                hashes[i] = fl_rng_below(&rng, 1 + fl_rng_below(&rng, 6));
            struct fl_active_match match = fl_active_match(&active, hashes, n);
            assert_true(match.shared <= n);
            uint32_t by_rank[RANKS] = {0}, ranks[RANKS];
            assert_true(fl_active_ranks(&match, by_rank, ranks) <= RANKS);
            ranks_of[held] = (uint32_t)fl_rng_below(&rng, RANKS);
            fl_active_book(&active, fl_prompt_blocks_new(hashes, n), ranks_of[held], match,
                           &holds[held]);
            held++;
        } else {
            uint32_t at = (uint32_t)fl_rng_below(&rng, held);
            fl_active_free(&active, &holds[at], ranks_of[at], &garbage);
            holds[at] = holds[--held];
            ranks_of[at] = ranks_of[held];
        }
        fl_prompt_blocks_free(garbage);
        garbage = NULL;
    }
    while (held > 0) {
        held--;
        fl_active_free(&active, &holds[held], ranks_of[held], &garbage);
    }
    fl_prompt_blocks_free(garbage);
    assert_int_equal(active.segment_count, 0);
    assert_int_equal(active.node_count, 0);
    fl_active_fini(&active);
}

/* The slab's own rule: running dry is counted, never fatal. */
static void slab_that_runs_dry_is_counted(void **state)
{
    (void)state;
    struct fl_slab slab = {0};
    void *a = fl_slab_alloc(&slab, 100);
    assert_int_equal(slab.heap_allocs, 1);
    fl_slab_free(&slab, a, 100);
    assert_ptr_equal(fl_slab_alloc(&slab, 128), a); /* the same class */
    fl_slab_donate(&slab, fl_alloc(1024), 1024);
    memset(fl_slab_alloc(&slab, 500), 1, 500);
    assert_int_equal(slab.heap_allocs, 1);
    memset(fl_slab_alloc(&slab, 600), 1, 600);
    assert_int_equal(slab.heap_allocs, 2);
    fl_slab_donate(&slab, fl_alloc(1024),
                   1024); /* the rest of the first piece is kept in classes */
    for (int i = 0; i < 31; i++)
        memset(fl_slab_alloc(&slab, 16), 1, 16);
    assert_int_equal(slab.heap_allocs, 2);
    fl_slab_fini(&slab);
    fl_slab_fini(&slab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_a_count_per_block_and_rank),
        cmocka_unit_test(thousand_prompts_that_share_one_block),
        cmocka_unit_test(joined_segments_give_the_freed_prompt_back),
        cmocka_unit_test(long_prompt_needs_few_inserts_and_no_allocation),
        cmocka_unit_test(hashes_that_are_no_chain_do_no_harm),
        cmocka_unit_test(slab_that_runs_dry_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
