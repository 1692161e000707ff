/* SPDX-License-Identifier: Apache-2.0 */
/* Readers beside the writer (selection.md 21.3): made for ThreadSanitizer, true without it as well.
 *
 * What a rank certainly holds and what it has ever stored is kept beside the index, per prompt, as
 * two atomic numbers: certain[rank][prompt]   leading blocks the writer will not touch; lowered
 * before it removes any, raised after it has stored ever[rank][prompt]      the most leading blocks
 * ever stored; raised before they are A reader notes `certain` before and after a lookup. If nobody
 * lowered it meanwhile (a counter tells), the smaller of the two was held all the time: min <=
 * answer <= ever read afterwards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/epoch.h"
#include "base/rng.h"
#include "kvindex/hash.h"
#include "kvindex/kvindex.h"

#define RANKS 12
#define PROMPTS 8
#define LENGTH 96
#define SHARED 32 /* all prompts begin alike */
#define READERS 2

struct stage {
    struct fl_epoch *epoch;
    struct fl_kvindex *index;
    uint64_t local[PROMPTS][LENGTH], seq[PROMPTS][LENGTH];
    _Atomic uint32_t certain[RANKS][PROMPTS], ever[RANKS][PROMPTS];
    _Atomic uint64_t lowered[RANKS];
    _Atomic bool is_over;
    _Atomic uint64_t lookups, bounded, too_little, too_much, twice;
    /* the writer's own: what each rank holds, exactly */
    bool holds[RANKS][PROMPTS][LENGTH];
};

static uint64_t name_of(const struct stage *stage, uint32_t rank, uint32_t prompt, uint32_t block)
{
    /* Half of the ranks have names of their own. */
    return rank % 2 == 0 ? ~stage->seq[prompt][block] : stage->seq[prompt][block] ^ (rank * 7919u);
}

static uint32_t run_of(const struct stage *stage, uint32_t rank, uint32_t prompt)
{
    uint32_t run = 0;
    while (run < LENGTH && stage->holds[rank][prompt][run])
        run++;
    return run;
}

/* Prompts share their first blocks: what happens to one of those happens to it in all prompts. */
static void set_held(struct stage *stage, uint32_t rank, uint32_t prompt, uint32_t block, bool held)
{
    for (uint32_t p = 0; p < PROMPTS; p++)
        if (p == prompt || block < SHARED)
            stage->holds[rank][p][block] = held;
}

static void lower_certain(struct stage *stage, uint32_t rank)
{
    for (uint32_t p = 0; p < PROMPTS; p++) {
        uint32_t run = run_of(stage, rank, p);
        if (run < atomic_load(&stage->certain[rank][p]))
            atomic_store(&stage->certain[rank][p], run);
    }
    atomic_fetch_add(&stage->lowered[rank], 1);
}

static void raise_certain(struct stage *stage, uint32_t rank)
{
    for (uint32_t p = 0; p < PROMPTS; p++)
        atomic_store(&stage->certain[rank][p], run_of(stage, rank, p));
}

static void raise_ever(struct stage *stage, uint32_t rank, uint32_t prompt, uint32_t blocks)
{
    for (uint32_t p = 0; p < PROMPTS; p++) {
        uint32_t reach = p == prompt ? blocks : blocks < SHARED ? blocks : SHARED;
        if (reach > atomic_load(&stage->ever[rank][p]))
            atomic_store(&stage->ever[rank][p], reach);
    }
}

static struct fl_kvindex_rank *rank_in_index(struct stage *stage, uint32_t rank)
{
    return fl_kvindex_rank_get(stage->index, 100 + rank / 2, rank % 2);
}

static void write_store(struct stage *stage, struct fl_rng *rng, uint32_t rank)
{
    uint64_t names[LENGTH];
    uint32_t prompt = (uint32_t)fl_rng_below(rng, PROMPTS);
    uint32_t from = run_of(stage, rank, prompt);
    uint32_t to = from + 1 + (uint32_t)fl_rng_below(rng, 24);
    if (to > LENGTH)
        to = LENGTH;
    if (from == to)
        return;
    for (uint32_t b = from; b < to; b++)
        names[b] = name_of(stage, rank, prompt, b);
    struct fl_kvindex_store event = {
        .has_parent = from > 0,
        .parent = from > 0 ? name_of(stage, rank, prompt, from - 1) : 0,
        .count = to - from,
        .external = names + from,
        .local = stage->local[prompt] + from,
    };
    raise_ever(stage, rank, prompt, to);
    assert_int_equal(fl_kvindex_store(stage->index, rank_in_index(stage, rank), &event, NULL), 0);
    for (uint32_t b = from; b < to; b++)
        set_held(stage, rank, prompt, b, true);
    raise_certain(stage, rank);
}

static void write_removal(struct stage *stage, struct fl_rng *rng, uint32_t rank)
{
    uint32_t prompt = (uint32_t)fl_rng_below(rng, PROMPTS);
    uint32_t run = run_of(stage, rank, prompt);
    if (run == 0)
        return;
    /* Mostly the last blocks, at times one in the middle. */
    uint32_t block = fl_rng_below(rng, 8) == 0 ? (uint32_t)fl_rng_below(rng, run) : run - 1;
    uint64_t name = name_of(stage, rank, prompt, block);
    set_held(stage, rank, prompt, block, false);
    lower_certain(stage, rank);
    assert_int_equal(
        fl_kvindex_remove(stage->index, rank_in_index(stage, rank), FL_TIER_DEVICE, &name, 1), 1);
}

static void write_end(struct stage *stage, struct fl_rng *rng, uint32_t rank)
{
    uint32_t other = rank ^ 1;
    bool whole_worker = fl_rng_below(rng, 2) == 0;
    for (uint32_t p = 0; p < PROMPTS; p++)
        for (uint32_t b = 0; b < LENGTH; b++) {
            stage->holds[rank][p][b] = false;
            if (whole_worker)
                stage->holds[other][p][b] = false;
        }
    lower_certain(stage, rank);
    if (!whole_worker) {
        fl_kvindex_clear(stage->index, rank_in_index(stage, rank));
        return;
    }
    lower_certain(stage, other);
    fl_kvindex_remove_worker(stage->index, 100 + rank / 2);
}

static void look(struct stage *stage, struct fl_rng *rng, struct fl_kvindex_matches *matches)
{
    uint32_t prompt = (uint32_t)fl_rng_below(rng, PROMPTS);
    uint32_t length = 1 + (uint32_t)fl_rng_below(rng, LENGTH);
    uint32_t certain[RANKS];
    uint64_t lowered[RANKS];
    uint32_t answer[RANKS] = {0};
    for (uint32_t r = 0; r < RANKS; r++) {
        lowered[r] = atomic_load(&stage->lowered[r]);
        certain[r] = atomic_load(&stage->certain[r][prompt]);
    }
    fl_kvindex_lookup(stage->index, stage->seq[prompt], length, matches);
    for (uint32_t i = 0; i < matches->count; i++) {
        const struct fl_kvindex_match *match = &matches->at[i];
        uint32_t r = (uint32_t)(match->worker_id - 100) * 2 + match->dp_rank;
        if (match->worker_id < 100 || r >= RANKS || answer[r] != 0) {
            atomic_fetch_add(&stage->twice, 1);
            continue;
        }
        answer[r] = match->blocks[FL_TIER_DEVICE];
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        uint32_t ever = atomic_load(&stage->ever[r][prompt]);
        uint32_t at_least = certain[r] < length ? certain[r] : length;
        bool is_bounded = atomic_load(&stage->lowered[r]) == lowered[r];
        if (answer[r] > ever || answer[r] > length)
            atomic_fetch_add(&stage->too_much, 1);
        if (is_bounded && answer[r] < at_least)
            atomic_fetch_add(&stage->too_little, 1);
        if (is_bounded && at_least > 0)
            atomic_fetch_add(&stage->bounded, 1);
    }
    atomic_fetch_add(&stage->lookups, 1);
}

static void *reader(void *arg)
{
    struct stage *stage = arg;
    struct fl_kvindex_matches matches = {0};
    struct fl_rng rng;
    fl_rng_seed(&rng, (uint64_t)(uintptr_t)&matches);
    while (!atomic_load(&stage->is_over))
        look(stage, &rng, &matches);
    fl_kvindex_matches_fini(&matches);
    return NULL;
}

static void compare_at_rest(struct stage *stage)
{
    struct fl_kvindex_matches matches = {0};
    for (uint32_t p = 0; p < PROMPTS; p++) {
        uint32_t holders = 0;
        fl_kvindex_lookup(stage->index, stage->seq[p], LENGTH, &matches);
        for (uint32_t i = 0; i < matches.count; i++) {
            uint32_t r = (uint32_t)(matches.at[i].worker_id - 100) * 2 + matches.at[i].dp_rank;
            assert_int_equal(matches.at[i].blocks[FL_TIER_DEVICE], run_of(stage, r, p));
        }
        for (uint32_t r = 0; r < RANKS; r++)
            holders += run_of(stage, r, p) > 0 ? 1 : 0;
        assert_int_equal(matches.count, holders);
    }
    fl_kvindex_matches_fini(&matches);
    assert_null(fl_kvindex_check(stage->index));
}

static void set_up(struct stage *stage)
{
    stage->epoch = fl_epoch_new();
    stage->index = fl_kvindex_new(stage->epoch);
    for (uint32_t p = 0; p < PROMPTS; p++) {
        for (uint32_t b = 0; b < LENGTH; b++)
            stage->local[p][b] = 10 + b + (b < SHARED ? 0 : (uint64_t)(p + 1) << 32);
        fl_block_chain_all(NULL, stage->local[p], LENGTH, stage->seq[p]);
    }
}

/* selection.md 12.2 I16, 12.1 (wait-free readers), 21.3 */
static void lookups_beside_the_writer_stay_within_what_was_true(void **state)
{
    (void)state;
    const char *wish = getenv("FL_READERS_OPERATIONS");
    uint64_t operations = 20000;
    if (wish != NULL)
        fl_bytes_to_u64(fl_bytes_of(wish), UINT64_MAX, &operations);

    struct stage *stage = calloc(1, sizeof(*stage));
    pthread_t readers[READERS];
    struct fl_rng rng;
    set_up(stage);
    fl_rng_seed(&rng, 42);
    for (size_t i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&readers[i], NULL, reader, stage), 0);

    for (uint64_t i = 0; i < operations; i++) {
        uint32_t rank = (uint32_t)fl_rng_below(&rng, RANKS);
        uint64_t kind = fl_rng_below(&rng, 1000);
        if (kind < 2)
            write_end(stage, &rng, rank);
        else if (kind < 300)
            write_store(stage, &rng, rank);
        else
            write_removal(stage, &rng, rank);
        if (i % 8 == 0)
            fl_kvindex_maintain(stage->index, 32);
    }
    /* On one CPU the writer may be through before a reader has begun. */
    while (atomic_load(&stage->lookups) < 100)
        fl_kvindex_maintain(stage->index, 32);
    atomic_store(&stage->is_over, true);
    for (size_t i = 0; i < READERS; i++)
        pthread_join(readers[i], NULL);

    print_message("%llu lookups beside %llu operations, %llu bounds from below\n",
                  (unsigned long long)atomic_load(&stage->lookups), (unsigned long long)operations,
                  (unsigned long long)atomic_load(&stage->bounded));
    assert_int_equal(atomic_load(&stage->too_much), 0);
    assert_int_equal(atomic_load(&stage->too_little), 0);
    assert_int_equal(atomic_load(&stage->twice), 0);
    assert_true(atomic_load(&stage->bounded) > 0);
    compare_at_rest(stage);
    while (fl_kvindex_maintain(stage->index, 4096))
        continue;
    compare_at_rest(stage);
    fl_kvindex_free(stage->index);
    fl_epoch_free(stage->epoch);
    free(stage);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lookups_beside_the_writer_stay_within_what_was_true),
    };
    return cmocka_run_group_tests_name("kvindex/readers", tests, NULL, NULL);
}
