/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of selection.md 12.2 one by one; test_twin.c has them all at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/epoch.h"
#include "base/error.h"
#include "kvindex/hash.h"
#include "kvindex/kvindex.h"

#define LENGTH 300

struct world {
    struct fl_epoch *epoch;
    struct fl_kvindex *index;
    struct fl_kvindex_matches matches;
    uint64_t local[LENGTH], seq[LENGTH], name[LENGTH]; /* one prompt */
};

static void start(struct world *world)
{
    *world = (struct world){0};
    world->epoch = fl_epoch_new();
    world->index = fl_kvindex_new(world->epoch);
    for (size_t i = 0; i < LENGTH; i++) {
        world->local[i] = 5000 + i;
        world->name[i] = 100 + i;
    }
    fl_block_chain_all(NULL, world->local, LENGTH, world->seq);
}

static void sweep(struct world *world)
{
    while (fl_kvindex_maintain(world->index, 1000))
        continue;
}

static void finish(struct world *world)
{
    assert_null(fl_kvindex_check(world->index));
    sweep(world);
    assert_null(fl_kvindex_check(world->index));
    fl_kvindex_matches_fini(&world->matches);
    fl_kvindex_free(world->index);
    fl_epoch_free(world->epoch);
}

static struct fl_kvindex_rank *rank_of(struct world *world, uint64_t worker, uint32_t dp_rank)
{
    return fl_kvindex_rank_get(world->index, worker, dp_rank);
}

/* Blocks [from, to) of the prompt, below block from - 1, to rank 0 of the worker. */
static int store(struct world *world, uint64_t worker, size_t from, size_t to,
                 struct fl_kvindex_stored *done)
{
    struct fl_kvindex_store event = {
        .has_parent = from > 0,
        .parent = from > 0 ? world->name[from - 1] : 0,
        .count = to - from,
        .external = world->name + from,
        .local = world->local + from,
    };
    return fl_kvindex_store(world->index, rank_of(world, worker, 0), &event, done);
}

static size_t take_away(struct world *world, uint64_t worker, size_t from, size_t to)
{
    return fl_kvindex_remove(world->index, rank_of(world, worker, 0), FL_TIER_DEVICE,
                             world->name + from, to - from);
}

static uint32_t depth_of(struct world *world, uint64_t worker, uint32_t dp_rank)
{
    fl_kvindex_lookup(world->index, world->seq, LENGTH, &world->matches);
    for (uint32_t i = 0; i < world->matches.count; i++)
        if (world->matches.at[i].worker_id == worker && world->matches.at[i].dp_rank == dp_rank)
            return world->matches.at[i].blocks[FL_TIER_DEVICE];
    return 0;
}

static struct fl_kvindex_stats stats_of(const struct world *world)
{
    struct fl_kvindex_stats stats;
    fl_kvindex_stats(world->index, &stats);
    return stats;
}

/* I1, I2, I13 */
static void chains_grow_from_the_root_and_below_known_parents(void **state)
{
    (void)state;
    struct world world;
    struct fl_kvindex_stored done;
    start(&world);
    assert_int_equal(store(&world, 1, 0, 3, &done), 0);
    assert_int_equal(done.added, 3);
    assert_int_equal(store(&world, 1, 3, 5, &done), 0);
    assert_int_equal(depth_of(&world, 1, 0), 5);
    assert_int_equal(store(&world, 2, 0, 1, &done), 0);
    assert_int_equal(depth_of(&world, 2, 0), 1);
    assert_int_equal(depth_of(&world, 1, 0), 5);
    assert_int_equal(world.matches.count, 2);
    assert_int_equal(stats_of(&world).nodes, 5);
    assert_int_equal(stats_of(&world).held[FL_TIER_DEVICE], 6);
    finish(&world);
}

/* I3: rejected whole; another worker knowing the parent does not help */
static void an_unknown_parent_rejects_the_whole_store(void **state)
{
    (void)state;
    struct world world;
    struct fl_kvindex_stored done;
    start(&world);
    store(&world, 1, 0, 3, NULL);
    assert_int_equal(store(&world, 2, 3, 6, &done), FL_ENOT_FOUND);
    assert_int_equal(done.added, 0);
    assert_int_equal(stats_of(&world).nodes, 3);
    assert_int_equal(fl_kvindex_rank_blocks(rank_of(&world, 2, 0), FL_TIER_DEVICE), 0);
    finish(&world);
}

/* I4 */
static void repeating_a_store_changes_nothing(void **state)
{
    (void)state;
    struct world world;
    struct fl_kvindex_stored done;
    start(&world);
    store(&world, 1, 0, 4, NULL);
    assert_int_equal(store(&world, 1, 0, 4, &done), 0);
    assert_int_equal(done.added, 0);
    assert_int_equal(done.repeated, 4);
    assert_int_equal(stats_of(&world).held[FL_TIER_DEVICE], 4);
    assert_int_equal(take_away(&world, 1, 0, 4), 4); /* no second ownership */
    assert_int_equal(stats_of(&world).nodes, 0);
    finish(&world);
}

/* I5 */
static void a_name_stored_elsewhere_moves_and_leaves_its_old_block(void **state)
{
    (void)state;
    struct world world;
    struct fl_kvindex_stored done;
    start(&world);
    store(&world, 1, 0, 2, NULL);
    const uint64_t other = 9999;
    struct fl_kvindex_store event = {.count = 1, .external = &world.name[1], .local = &other};
    assert_int_equal(fl_kvindex_store(world.index, rank_of(&world, 1, 0), &event, &done), 0);
    assert_int_equal(done.added, 1);
    assert_int_equal(done.moved, 1);
    assert_int_equal(depth_of(&world, 1, 0), 1);
    fl_kvindex_lookup(world.index, &other, 1, &world.matches);
    assert_int_equal(world.matches.count, 1);
    assert_int_equal(stats_of(&world).nodes, 2);
    finish(&world);
}

/* kvindex.h: one name per block and rank, the newest */
static void a_block_stored_under_a_new_name_answers_to_the_new_one(void **state)
{
    (void)state;
    struct world world;
    struct fl_kvindex_stored done;
    start(&world);
    store(&world, 1, 0, 3, NULL);
    store(&world, 2, 0, 3, NULL); /* shares the old name */
    const uint64_t fresh = 7777;
    struct fl_kvindex_store event = {.count = 1, .external = &fresh, .local = world.local};
    assert_int_equal(fl_kvindex_store(world.index, rank_of(&world, 1, 0), &event, &done), 0);
    assert_int_equal(done.repeated, 1);
    assert_int_equal(depth_of(&world, 1, 0), 3);
    assert_int_equal(take_away(&world, 1, 0, 1), 0);
    assert_int_equal(take_away(&world, 2, 0, 1), 1);
    assert_int_equal(depth_of(&world, 1, 0), 3);
    assert_int_equal(
        fl_kvindex_remove(world.index, rank_of(&world, 1, 0), FL_TIER_DEVICE, &fresh, 1), 1);
    assert_int_equal(depth_of(&world, 1, 0), 0);
    finish(&world);
}

/* I6 */
static void a_hash_twice_or_the_parent_inside_changes_nothing(void **state)
{
    (void)state;
    /* above 32 blocks equal names are found another way */
    static const size_t counts[] = {2, 32, 33, 100};
    for (size_t i = 0; i < FL_ARRAY_LEN(counts); i++) {
        struct world world;
        size_t n = counts[i];
        start(&world);
        store(&world, 1, 0, 1, NULL);
        uint64_t was = world.name[n];
        world.name[n] = world.name[1];
        assert_int_equal(store(&world, 1, 1, n + 1, NULL), n > 1 ? FL_EBAD_REQUEST : 0);
        world.name[n] = world.name[0]; /* the parent */
        assert_int_equal(store(&world, 1, 1, n + 1, NULL), FL_EBAD_REQUEST);
        assert_int_equal(stats_of(&world).nodes, 1);
        world.name[n] = was;
        assert_int_equal(store(&world, 1, 1, n + 1, NULL), 0);
        finish(&world);
    }
}

/* I7, I9 */
static void a_hole_hides_deeper_blocks_until_it_is_filled(void **state)
{
    (void)state;
    struct world world;
    start(&world);
    store(&world, 1, 0, 200, NULL);
    store(&world, 2, 0, 200, NULL);
    assert_int_equal(take_away(&world, 1, 77, 78), 1);
    assert_int_equal(depth_of(&world, 1, 0), 77);
    assert_int_equal(depth_of(&world, 2, 0), 200);
    assert_int_equal(stats_of(&world).holes, 1);
    assert_int_equal(take_away(&world, 1, 10, 12), 2);
    assert_int_equal(depth_of(&world, 1, 0), 10);
    assert_int_equal(store(&world, 1, 10, 12, NULL), 0);
    assert_int_equal(depth_of(&world, 1, 0), 77);
    assert_int_equal(store(&world, 1, 77, 78, NULL), 0);
    assert_int_equal(depth_of(&world, 1, 0), 200);
    assert_int_equal(stats_of(&world).holes, 0);
    /* they disappear by their own removes */
    assert_int_equal(take_away(&world, 1, 50, 51), 1);
    assert_int_equal(take_away(&world, 1, 51, 200), 149);
    assert_int_equal(stats_of(&world).holes, 0);
    assert_int_equal(depth_of(&world, 1, 0), 50);
    finish(&world);
}

/* I8, I12; traps 13, 15 */
static void unknown_removals_do_nothing_and_the_rest_goes_on(void **state)
{
    (void)state;
    struct world world;
    start(&world);
    store(&world, 1, 0, 3, NULL);
    const uint64_t names[] = {424242, world.name[2], 424243, world.name[1], world.name[1]};
    assert_int_equal(fl_kvindex_remove(world.index, rank_of(&world, 1, 0), FL_TIER_DEVICE, names,
                                       FL_ARRAY_LEN(names)),
                     2);
    assert_int_equal(depth_of(&world, 1, 0), 1);
    assert_int_equal(take_away(&world, 1, 0, 1), 1);
    assert_int_equal(stats_of(&world).nodes, 0);
    finish(&world);
}

/* I12: a block without holder stays while one below it is held, and goes with it */
static void blocks_that_nobody_holds_go_with_their_last_child(void **state)
{
    (void)state;
    struct world world;
    start(&world);
    store(&world, 1, 0, 5, NULL);
    assert_int_equal(take_away(&world, 1, 0, 4), 4);
    assert_int_equal(stats_of(&world).nodes, 5);
    assert_int_equal(depth_of(&world, 1, 0), 0);
    assert_int_equal(world.matches.count, 0); /* owners of 0 are absent */
    assert_int_equal(take_away(&world, 1, 4, 5), 1);
    assert_int_equal(stats_of(&world).nodes, 0);
    finish(&world);
}

/* I10 */
static void a_clear_takes_one_rank_and_nothing_else(void **state)
{
    (void)state;
    struct world world;
    start(&world);
    struct fl_kvindex_store event = {.count = 4, .external = world.name, .local = world.local};
    fl_kvindex_store(world.index, rank_of(&world, 1, 0), &event, NULL);
    fl_kvindex_store(world.index, rank_of(&world, 1, 1), &event, NULL);
    fl_kvindex_store(world.index, rank_of(&world, 2, 0), &event, NULL);
    fl_kvindex_rank_set_row(world.index, rank_of(&world, 1, 0), 17);
    fl_kvindex_clear(world.index, rank_of(&world, 1, 0));
    assert_int_equal(depth_of(&world, 1, 0), 0); /* at once, not when it is swept */
    assert_int_equal(depth_of(&world, 1, 1), 4);
    assert_int_equal(depth_of(&world, 2, 0), 4);
    assert_int_equal(stats_of(&world).held[FL_TIER_DEVICE], 8);
    assert_int_equal(stats_of(&world).dead_ranks, 1);
    assert_int_equal(store(&world, 1, 0, 2, NULL), 0); /* beside its own dead blocks */
    assert_int_equal(depth_of(&world, 1, 0), 2);
    assert_null(fl_kvindex_check(world.index));
    sweep(&world);
    assert_int_equal(stats_of(&world).dead_ranks, 0);
    assert_int_equal(depth_of(&world, 1, 0), 2);
    assert_int_equal(world.matches.at[0].row == 17 || world.matches.at[1].row == 17 ||
                         world.matches.at[2].row == 17,
                     1); /* a rank keeps its row */
    finish(&world);
}

/* I11 */
static void a_worker_goes_with_all_its_ranks(void **state)
{
    (void)state;
    struct world world;
    start(&world);
    struct fl_kvindex_store event = {.count = 4, .external = world.name, .local = world.local};
    for (uint32_t rank = 0; rank < 3; rank++)
        fl_kvindex_store(world.index, rank_of(&world, 1, rank), &event, NULL);
    fl_kvindex_store(world.index, rank_of(&world, 2, 0), &event, NULL);
    fl_kvindex_remove_rank(world.index, rank_of(&world, 1, 1));
    assert_null(fl_kvindex_rank_find(world.index, 1, 1));
    assert_int_equal(depth_of(&world, 1, 0), 4);
    assert_int_equal(depth_of(&world, 1, 1), 0);
    assert_int_equal(fl_kvindex_remove_worker(world.index, 1), 2);
    assert_int_equal(fl_kvindex_remove_worker(world.index, 1), 0);
    assert_int_equal(depth_of(&world, 2, 0), 4);
    assert_int_equal(world.matches.count, 1);
    sweep(&world);
    fl_kvindex_remove_worker(world.index, 2);
    sweep(&world);
    assert_int_equal(stats_of(&world).nodes, 0);
    assert_int_equal(stats_of(&world).ranks, 0);
    finish(&world);
}

/* I17 */
static void nothing_matches_nothing(void **state)
{
    (void)state;
    struct world world;
    start(&world);
    fl_kvindex_lookup(world.index, world.seq, 0, &world.matches);
    assert_int_equal(world.matches.count, 0);
    fl_kvindex_lookup(world.index, world.seq, LENGTH, &world.matches);
    assert_int_equal(world.matches.count, 0);
    store(&world, 1, 0, 3, NULL);
    fl_kvindex_lookup(world.index, world.seq + 1, 2,
                      &world.matches);        /* not from block 0? a chain is */
    assert_int_equal(world.matches.count, 1); /* whatever is asked first counts as block 0 */
    finish(&world);
}

/* I14: every length of match, each found by skipping, with several ranks dropping out */
static void skipping_gives_what_walking_gives_at_every_length(void **state)
{
    (void)state;
    struct world world;
    start(&world);
    for (uint64_t worker = 1; worker <= LENGTH; worker++)
        store(&world, worker, 0, worker, NULL);
    for (size_t asked = 1; asked <= LENGTH; asked++) {
        fl_kvindex_lookup(world.index, world.seq, asked, &world.matches);
        assert_int_equal(world.matches.count, LENGTH);
        for (uint32_t i = 0; i < LENGTH; i++) {
            uint64_t held = world.matches.at[i].worker_id;
            assert_int_equal(world.matches.at[i].blocks[0], held < asked ? held : asked);
        }
    }
    finish(&world);
}

/* A rank with more children under one block than its count holds is walked instead, and stays
 * right. */
static void a_crowded_block_is_walked_and_recovers_by_a_clear(void **state)
{
    (void)state;
    enum { CHILDREN = 65540 };
    struct world world;
    start(&world);
    store(&world, 1, 0, 2, NULL);
    struct fl_kvindex_rank *rank = rank_of(&world, 1, 0);
    for (uint64_t i = 0; i < CHILDREN; i++) {
        const uint64_t name = 1000000 + i, local = 2000000 + i;
        struct fl_kvindex_store event = {.has_parent = true,
                                         .parent = world.name[0],
                                         .count = 1,
                                         .external = &name,
                                         .local = &local};
        assert_int_equal(fl_kvindex_store(world.index, rank, &event, NULL), 0);
    }
    assert_int_equal(depth_of(&world, 1, 0), 2);
    assert_int_equal(take_away(&world, 1, 0, 1), 1);
    assert_int_equal(depth_of(&world, 1, 0), 0);
    store(&world, 1, 0, 1, NULL);
    assert_int_equal(depth_of(&world, 1, 0), 2);
    assert_int_equal(take_away(&world, 1, 1, 2), 1);
    assert_int_equal(depth_of(&world, 1, 0), 1);
    assert_null(fl_kvindex_check(world.index));
    fl_kvindex_clear(world.index, rank);
    sweep(&world);
    store(&world, 1, 0, 50, NULL);
    assert_int_equal(depth_of(&world, 1, 0), 50);
    assert_int_equal(stats_of(&world).nodes, 50);
    finish(&world);
}

/* The caps: blocks of an event, ranks of an index */
static void caps_hold_at_their_edges(void **state)
{
    (void)state;
    struct world world;
    start(&world);
    size_t count = FL_KVINDEX_EVENT_BLOCKS_MAX + 1;
    uint64_t *names = fl_alloc(count * sizeof(*names));
    for (size_t i = 0; i < count; i++)
        names[i] = i + 1;
    struct fl_kvindex_store event = {.count = count, .external = names, .local = names};
    struct fl_kvindex_rank *rank = rank_of(&world, 1, 0);
    assert_int_equal(fl_kvindex_store(world.index, rank, &event, NULL), FL_EBAD_REQUEST);
    assert_int_equal(fl_kvindex_rank_blocks(rank, FL_TIER_DEVICE), 0);
    event.count--;
    assert_int_equal(fl_kvindex_store(world.index, rank, &event, NULL), 0);
    assert_int_equal(fl_kvindex_rank_blocks(rank, FL_TIER_DEVICE), FL_KVINDEX_EVENT_BLOCKS_MAX);
    fl_free(names);

    for (uint32_t i = 1; i < FL_KVINDEX_RANKS_MAX; i++)
        assert_non_null(rank_of(&world, 100 + i / 8, i % 8));
    assert_null(rank_of(&world, 3, 0));
    /* A clear needs a slot beside the dead one: it takes the dead one back at once. */
    fl_kvindex_clear(world.index, rank);
    assert_int_equal(fl_kvindex_rank_blocks(rank, FL_TIER_DEVICE), 0);
    assert_int_equal(stats_of(&world).nodes, 0);
    assert_int_equal(store(&world, 1, 0, 5, NULL), 0);
    assert_int_equal(depth_of(&world, 1, 0), 5);
    assert_int_equal(fl_kvindex_remove_worker(world.index, 101), 8);
    assert_non_null(rank_of(&world, 3, 0));
    finish(&world);
}

/* A block that everybody holds: lists grow, shrink and become single again. */
static void many_holders_come_and_go(void **state)
{
    (void)state;
    enum { WORKERS = 2000 };
    struct world world;
    start(&world);
    for (uint64_t worker = 1; worker <= WORKERS; worker++)
        store(&world, worker, 0, 3, NULL);
    fl_kvindex_lookup(world.index, world.seq, LENGTH, &world.matches);
    assert_int_equal(world.matches.count, WORKERS);
    assert_int_equal(stats_of(&world).nodes, 3);
    for (uint64_t worker = 2; worker <= WORKERS; worker++) {
        assert_int_equal(take_away(&world, worker, 0, 3), 3);
        if (worker % 500 == 0)
            assert_null(fl_kvindex_check(world.index));
    }
    assert_int_equal(depth_of(&world, 1, 0), 3);
    assert_int_equal(world.matches.count, 1);
    finish(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chains_grow_from_the_root_and_below_known_parents),
        cmocka_unit_test(an_unknown_parent_rejects_the_whole_store),
        cmocka_unit_test(repeating_a_store_changes_nothing),
        cmocka_unit_test(a_name_stored_elsewhere_moves_and_leaves_its_old_block),
        cmocka_unit_test(a_block_stored_under_a_new_name_answers_to_the_new_one),
        cmocka_unit_test(a_hash_twice_or_the_parent_inside_changes_nothing),
        cmocka_unit_test(a_hole_hides_deeper_blocks_until_it_is_filled),
        cmocka_unit_test(unknown_removals_do_nothing_and_the_rest_goes_on),
        cmocka_unit_test(blocks_that_nobody_holds_go_with_their_last_child),
        cmocka_unit_test(a_clear_takes_one_rank_and_nothing_else),
        cmocka_unit_test(a_worker_goes_with_all_its_ranks),
        cmocka_unit_test(nothing_matches_nothing),
        cmocka_unit_test(skipping_gives_what_walking_gives_at_every_length),
        cmocka_unit_test(a_crowded_block_is_walked_and_recovers_by_a_clear),
        cmocka_unit_test(caps_hold_at_their_edges),
        cmocka_unit_test(many_holders_come_and_go),
    };
    return cmocka_run_group_tests_name("kvindex/kvindex", tests, NULL, NULL);
}
