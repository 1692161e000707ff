/* SPDX-License-Identifier: Apache-2.0 */
/* Random operations on the index and on its naive twin: each operation's own result is compared, a
 * random lookup after each, the full state and the structure's own check every so often
 * (selection.md 21.3). FL_TWIN_OPERATIONS and FL_TWIN_SEED change the run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/epoch.h"
#include "base/rng.h"
#include "twin.h"

struct shape {
    const char *why;
    uint32_t workers, dp_ranks;
    uint32_t branches;      /* different blocks that may follow a block */
    uint32_t depth;         /* of the longest prompt */
    uint64_t names;         /* 0: the name of a block is its sequence hash; else drawn below this */
    uint32_t blocks_a_rank; /* above, removals get likelier */
    uint32_t middle_removals; /* of 100 removals: from anywhere instead of the leaf */
    uint64_t operations;
};

struct run {
    const struct shape *shape;
    struct fl_rng rng;
    struct fl_epoch *epoch;
    struct fl_kvindex *index;
    struct twin twin;
    struct fl_kvindex_matches matches;
    uint64_t *local, *seq, *name;
};

static uint64_t env_number(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);
    uint64_t value;
    return text != NULL && fl_bytes_to_u64(fl_bytes_of(text), UINT64_MAX, &value) ? value
                                                                                  : otherwise;
}

/* A random prompt: early branches are rarer, so that prefixes are shared and long. */
static uint32_t draw_prompt(struct run *run)
{
    uint32_t depth = 1 + (uint32_t)fl_rng_below(&run->rng, run->shape->depth);
    for (uint32_t i = 0; i < depth; i++) {
        bool branches = fl_rng_below(&run->rng, 8) == 0;
        run->local[i] =
            1000 + i + (branches ? (fl_rng_below(&run->rng, run->shape->branches) << 32) : 0);
    }
    fl_block_chain_all(NULL, run->local, depth, run->seq);
    for (uint32_t i = 0; i < depth; i++)
        run->name[i] =
            run->shape->names == 0 ? ~run->seq[i] : fl_rng_below(&run->rng, run->shape->names);
    return depth;
}

static struct twin_rank *draw_rank(struct run *run)
{
    return &run->twin.ranks[fl_rng_below(&run->rng, run->twin.rank_count)];
}

static struct fl_kvindex_rank *rank_in_index(struct run *run, struct twin_rank *rank)
{
    rank->is_known = true;
    return fl_kvindex_rank_get(run->index, rank->worker_id, rank->dp_rank);
}

static void fail_at(const struct run *run, uint64_t operation, const char *what)
{
    fail_msg("%s: operation %llu: %s", run->shape->why, (unsigned long long)operation, what);
}

static void store(struct run *run, uint64_t operation)
{
    struct twin_rank *rank = draw_rank(run);
    uint32_t depth = draw_prompt(run);
    /* Like an engine: what is held already is left out, the event continues behind it. */
    uint32_t from = twin_depth(rank, run->seq, depth);
    if (fl_rng_below(&run->rng, 4) == 0)
        from = (uint32_t)fl_rng_below(&run->rng, from + 1); /* repeats blocks */
    struct fl_kvindex_store event = {
        .has_parent = from > 0,
        .count = depth - from,
        .external = run->name + from,
        .local = run->local + from,
    };
    if (from > 0) {
        size_t at = twin_by_seq(rank, run->seq[from - 1]);
        event.parent = rank->blocks[at].name;
    }
    if (fl_rng_below(&run->rng, 16) == 0) { /* a parent that is unknown, or no longer there */
        event.has_parent = true;
        event.parent = fl_rng_u64(&run->rng) % (run->shape->names + 2);
    }
    if (event.count > 1 && fl_rng_below(&run->rng, 64) == 0)
        run->name[from + event.count - 1] = event.external[0];

    struct fl_kvindex_stored expected, got;
    int expected_rc = twin_store(&run->twin, rank, &event, &expected);
    int rc = fl_kvindex_store(run->index, rank_in_index(run, rank), &event, &got);
    if (rc != expected_rc || got.added != expected.added || got.repeated != expected.repeated ||
        got.moved != expected.moved)
        fail_at(run, operation, "a store's result differs");
}

static void take_away(struct run *run, uint64_t operation)
{
    struct twin_rank *rank = draw_rank(run);
    uint64_t names[4];
    size_t count = 0;
    for (; count < FL_ARRAY_LEN(names); count++) {
        if (rank->count == 0 || fl_rng_below(&run->rng, 16) == 0) {
            names[count] = fl_rng_u64(&run->rng); /* unknown */
            continue;
        }
        /* Newest first comes close to leaf first. */
        size_t newest = rank->count > count ? rank->count - 1 - count : 0;
        bool middle = fl_rng_below(&run->rng, 100) < run->shape->middle_removals;
        names[count] = rank->blocks[middle ? fl_rng_below(&run->rng, rank->count) : newest].name;
    }
    size_t expected = twin_remove(rank, names, count);
    size_t got =
        fl_kvindex_remove(run->index, rank_in_index(run, rank), FL_TIER_DEVICE, names, count);
    if (got != expected)
        fail_at(run, operation, "a removal's result differs");
}

static void end_rank(struct run *run, uint64_t operation)
{
    struct twin_rank *rank = draw_rank(run);
    uint64_t kind = fl_rng_below(&run->rng, 3);
    if (kind == 0) {
        fl_kvindex_clear(run->index, rank_in_index(run, rank));
        rank->count = 0;
    } else if (kind == 1) {
        fl_kvindex_remove_rank(run->index, rank_in_index(run, rank));
        rank->count = 0;
        rank->is_known = false;
    } else {
        uint32_t expected = 0;
        for (size_t i = 0; i < run->twin.rank_count; i++) {
            struct twin_rank *other = &run->twin.ranks[i];
            if (other->worker_id != rank->worker_id)
                continue;
            expected += other->is_known ? 1 : 0;
            other->count = 0;
            other->is_known = false;
        }
        if (fl_kvindex_remove_worker(run->index, rank->worker_id) != expected)
            fail_at(run, operation, "the number of removed ranks differs");
    }
}

static const struct fl_kvindex_match *match_of(const struct run *run, const struct twin_rank *rank)
{
    for (uint32_t i = 0; i < run->matches.count; i++)
        if (run->matches.at[i].worker_id == rank->worker_id &&
            run->matches.at[i].dp_rank == rank->dp_rank)
            return &run->matches.at[i];
    return NULL;
}

static void look_up(struct run *run, uint64_t operation)
{
    uint32_t depth = draw_prompt(run);
    uint32_t holders = 0;
    fl_kvindex_lookup(run->index, run->seq, depth, &run->matches);
    for (size_t i = 0; i < run->twin.rank_count; i++) {
        uint32_t expected = twin_depth(&run->twin.ranks[i], run->seq, depth);
        const struct fl_kvindex_match *match = match_of(run, &run->twin.ranks[i]);
        holders += expected > 0 ? 1 : 0;
        if ((match != NULL ? match->blocks[FL_TIER_DEVICE] : 0) != expected)
            fail_at(run, operation, "a lookup differs");
    }
    if (run->matches.count != holders)
        fail_at(run, operation, "a lookup names a rank without blocks, or one twice");
}

static void compare_all(struct run *run, uint64_t operation)
{
    while (fl_kvindex_maintain(run->index, 1 << 20))
        continue;
    const char *wrong = fl_kvindex_check(run->index);
    if (wrong != NULL)
        fail_at(run, operation, wrong);

    struct fl_kvindex_stats stats;
    uint64_t held = 0, known = 0;
    fl_kvindex_stats(run->index, &stats);
    for (size_t i = 0; i < run->twin.rank_count; i++) {
        const struct twin_rank *rank = &run->twin.ranks[i];
        const struct fl_kvindex_rank *there =
            fl_kvindex_rank_find(run->index, rank->worker_id, rank->dp_rank);
        held += rank->count;
        known += rank->is_known ? 1 : 0;
        if ((there != NULL) != rank->is_known)
            fail_at(run, operation, "ranks differ");
        if (there == NULL)
            continue;
        if (fl_kvindex_rank_blocks(there, FL_TIER_DEVICE) != rank->count)
            fail_at(run, operation, "a rank's number of blocks differs");
        for (size_t b = 0; b < rank->count; b++)
            if (!fl_kvindex_has(run->index, there, FL_TIER_DEVICE, rank->blocks[b].name))
                fail_at(run, operation, "a name is missing");
    }
    if (stats.held[FL_TIER_DEVICE] != held || stats.ranks != known || stats.dead_ranks != 0 ||
        stats.nodes != twin_nodes(&run->twin))
        fail_at(run, operation, "the totals differ");
}

static void start(struct run *run, const struct shape *shape, uint64_t seed)
{
    *run = (struct run){.shape = shape};
    fl_rng_seed(&run->rng, seed);
    run->epoch = fl_epoch_new();
    run->index = fl_kvindex_new(run->epoch);
    run->local = fl_alloc(shape->depth * sizeof(*run->local));
    run->seq = fl_alloc(shape->depth * sizeof(*run->seq));
    run->name = fl_alloc(shape->depth * sizeof(*run->name));
    run->twin.rank_count = (size_t)shape->workers * shape->dp_ranks;
    run->twin.ranks = calloc(run->twin.rank_count, sizeof(*run->twin.ranks));
    for (uint32_t i = 0; i < run->twin.rank_count; i++) {
        run->twin.ranks[i].worker_id = 1000 + i / shape->dp_ranks;
        run->twin.ranks[i].dp_rank = i % shape->dp_ranks;
    }
}

/* I12 at the end: nothing is left when everybody has gone. */
static void finish(struct run *run)
{
    struct fl_kvindex_stats stats;
    for (uint32_t w = 0; w < run->shape->workers; w++)
        fl_kvindex_remove_worker(run->index, 1000 + w);
    for (size_t i = 0; i < run->twin.rank_count; i++) {
        run->twin.ranks[i].count = 0;
        run->twin.ranks[i].is_known = false;
    }
    compare_all(run, UINT64_MAX);
    fl_kvindex_stats(run->index, &stats);
    assert_int_equal(stats.nodes, 0);
    assert_int_equal(stats.ranks, 0);
    assert_int_equal(stats.holes, 0);
    fl_kvindex_matches_fini(&run->matches);
    fl_kvindex_free(run->index);
    fl_epoch_free(run->epoch);
    fl_free(run->local);
    fl_free(run->seq);
    fl_free(run->name);
    twin_free(&run->twin);
}

static void play(const struct shape *shape, uint64_t operations, uint64_t seed)
{
    struct run run;
    start(&run, shape, seed);
    for (uint64_t i = 0; i < operations; i++) {
        struct twin_rank *rank = draw_rank(&run);
        uint64_t kind = fl_rng_below(&run.rng, 1000);
        if (kind == 0)
            end_rank(&run, i);
        else if (kind < 500 && rank->count < shape->blocks_a_rank)
            store(&run, i);
        else
            take_away(&run, i);
        look_up(&run, i);
        if (i % 16 == 0)
            fl_kvindex_maintain(run.index, 64);
        if (i % 10000 == 9999)
            compare_all(&run, i);
    }
    finish(&run);
}

static const struct shape shapes[] = {
    {"an engine's life: names are shared, leaves go first", 16, 2, 3, 40, 0, 200, 0, 5000},
    {"holes everywhere", 8, 1, 3, 40, 0, 120, 70, 5000},
    {"few names, so that they stand for many blocks and move", 8, 2, 3, 24, 300, 100, 20, 5000},
    {"every rank has names of its own", 16, 1, 2, 32, UINT64_MAX, 150, 10, 5000},
    {"long prompts", 6, 1, 2, 400, 0, 900, 2, 600},
    {"one worker of many ranks", 1, 40, 4, 12, 0, 60, 30, 4000},
};

/* selection.md 12.2 I1-I13, I17; 21.3 */
static void random_operations_agree_with_the_twin(void **state)
{
    (void)state;
    uint64_t seed = env_number("FL_TWIN_SEED", 42);
    uint64_t operations = env_number("FL_TWIN_OPERATIONS", 0);
    for (size_t i = 0; i < FL_ARRAY_LEN(shapes); i++) {
        print_message("%s, seed %llu\n", shapes[i].why, (unsigned long long)seed);
        play(&shapes[i], operations != 0 ? operations : shapes[i].operations, seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_agree_with_the_twin),
    };
    return cmocka_run_group_tests_name("kvindex/twin", tests, NULL, NULL);
}
