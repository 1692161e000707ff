/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/rng.h"
#include "kvindex/space.h"
#include "kvindex/table.h"

/* Numbers are places in this array; readers there are none, so old segments go at once. */
struct keys {
    uint64_t *key;
    uint32_t count;
    struct fl_table table;
    struct fl_space space;
    uint32_t retired;
};

static uint64_t hash_of(const void *owner, uint32_t at, uint32_t segment, uint8_t tag, uint32_t nth)
{
    (void)segment, (void)tag, (void)nth;
    const struct keys *keys = owner;
    return fl_table_hash(&keys->table, keys->key[at]);
}

static void prefetch(const void *owner, uint32_t at)
{
    __builtin_prefetch(&((const struct keys *)owner)->key[at]);
}

static void retire(struct fl_table *table, uint64_t packed)
{
    ((struct keys *)table->owner)->retired++;
    fl_table_free_segment(table, packed);
}

static void start(struct keys *keys, uint32_t count, uint64_t seed)
{
    *keys = (struct keys){.count = count};
    keys->key = fl_calloc(count, sizeof(*keys->key));
    fl_table_init(&keys->table, seed, &keys->space);
    keys->table.hash_of = hash_of;
    keys->table.prefetch = prefetch;
    keys->table.retire = retire;
    keys->table.owner = keys;
}

static void finish(struct keys *keys)
{
    fl_space_fini(&keys->space);
    fl_free(keys->key);
}

struct probe {
    const struct keys *keys;
    uint64_t key;
    uint32_t at; /* NONE: any with the key */
};

static bool is_it(const void *ctx, uint32_t at)
{
    const struct probe *probe = ctx;
    return probe->keys->key[at] == probe->key && (probe->at == FL_TABLE_NONE || probe->at == at);
}

static uint32_t find(const struct keys *keys, uint64_t key, uint32_t at)
{
    struct probe probe = {keys, key, at};
    return fl_table_find(&keys->table, fl_table_hash(&keys->table, key), is_it, &probe);
}

static void insert(struct keys *keys, uint32_t at)
{
    uint64_t hash = fl_table_hash(&keys->table, keys->key[at]);
    assert_true(fl_table_reserve(&keys->table, hash));
    fl_table_insert(&keys->table, hash, at);
}

static void random_inserts_and_removals_are_all_found_or_not(void **state)
{
    (void)state;
    enum { COUNT = 200000 };
    struct keys keys;
    struct fl_rng rng;
    start(&keys, COUNT, 11);
    fl_rng_seed(&rng, 42);
    bool *is_in = fl_calloc(COUNT, sizeof(*is_in));
    for (uint32_t i = 0; i < COUNT; i++)
        keys.key[i] = fl_rng_u64(&rng);
    for (uint32_t i = 0; i < 3 * COUNT; i++) {
        uint32_t at = (uint32_t)fl_rng_below(&rng, COUNT);
        if (is_in[at])
            fl_table_remove(&keys.table, fl_table_hash(&keys.table, keys.key[at]), at);
        else
            insert(&keys, at);
        is_in[at] = !is_in[at];
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(find(&keys, keys.key[i], i), is_in[i] ? i : FL_TABLE_NONE);
        count += is_in[i] ? 1 : 0;
    }
    assert_int_equal(keys.table.count, count);
    assert_null(fl_table_check(&keys.table));
    assert_true(keys.retired > FL_TABLE_SEGMENTS);
    /* 64 bytes hold 12 entries of which at least 6 in 10 are taken, but for the youngest segments
     */
    assert_true(fl_table_bytes(&keys.table) < (size_t)COUNT * 11);
    fl_free(is_in);
    finish(&keys);
}

/* Engines that count their blocks give the same names on every rank: one long chain of equal keys.
 */
static void equal_keys_stand_beside_each_other(void **state)
{
    (void)state;
    enum { COUNT = 3000 };
    struct keys keys;
    start(&keys, COUNT, 5);
    for (uint32_t i = 0; i < COUNT; i++) {
        keys.key[i] = 77;
        insert(&keys, i);
    }
    assert_null(fl_table_check(&keys.table));
    for (uint32_t i = 0; i < COUNT; i += 7) {
        fl_table_remove(&keys.table, fl_table_hash(&keys.table, 77), i);
        assert_int_equal(find(&keys, 77, i), FL_TABLE_NONE);
    }
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(find(&keys, 77, i), i % 7 == 0 ? FL_TABLE_NONE : i);
    assert_null(fl_table_check(&keys.table));
    finish(&keys);
}

/* dependencies.md 5.1: CPU-specific code has a scalar twin */
static void both_ways_to_match_tags_agree(void **state)
{
    (void)state;
    struct fl_rng rng;
    fl_rng_seed(&rng, 1);
    for (uint32_t i = 0; i < 200000; i++) {
        uint64_t tags = fl_rng_u64(&rng), more = fl_rng_u64(&rng);
        if (i % 2 == 0) { /* few values, so that many are equal and many are neighbours */
            tags &= UINT64_C(0x0103010301030103);
            more &= UINT64_C(0xffffffff01030103);
        }
        uint8_t tag = (uint8_t)(i % 3 == 0 ? tags >> 8 : fl_rng_below(&rng, 4));
        uint32_t expected = 0;
        for (uint32_t slot = 0; slot < FL_TABLE_SLOTS; slot++) {
            uint64_t word = slot < 8 ? tags : more;
            expected |= (uint32_t)((uint8_t)(word >> 8 * (slot % 8)) == tag) << slot;
        }
        assert_int_equal(fl_table_matches_plain(tags, more, tag), expected);
        assert_int_equal(fl_table_matches(tags, more, tag), expected);
    }
}

/* Pieces never overlap, and what is given back is used again. */
static void a_space_hands_out_pieces_that_do_not_overlap(void **state)
{
    (void)state;
    enum { PIECES = 300 };
    struct fl_space space = {0};
    struct fl_rng rng;
    uint8_t *piece[PIECES] = {0};
    size_t bytes[PIECES];
    fl_rng_seed(&rng, 9);
    for (uint32_t i = 0; i < 20000; i++) {
        uint32_t at = (uint32_t)fl_rng_below(&rng, PIECES);
        if (piece[at] == NULL) {
            bytes[at] = 1 + fl_rng_below(&rng, 20000);
            piece[at] = fl_space_take(&space, bytes[at]);
            assert_int_equal((uintptr_t)piece[at] % 64, 0);
            memset(piece[at], (int)(at % 251), bytes[at]);
            continue;
        }
        for (size_t b = 0; b < bytes[at]; b += 97)
            assert_int_equal(piece[at][b], at % 251);
        fl_space_give(&space, piece[at], bytes[at]);
        piece[at] = NULL;
    }
    assert_true(space.arena_count <= 6); /* 256 KiB ... 8 MiB for some 3 MiB in use */
    for (uint32_t i = 0; i < PIECES; i++)
        if (piece[i] != NULL)
            fl_space_give(&space, piece[i], bytes[i]);
    /* All merged: one extent an arena, or fewer where arenas are neighbours. */
    assert_true(space.hole_count <= space.arena_count);
    void *large =
        fl_space_take(&space, (size_t)100 << 20); /* larger than any arena of its own accord */
    memset(large, 1, 4096);
    fl_space_give(&space, large, (size_t)100 << 20);
    fl_space_fini(&space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_inserts_and_removals_are_all_found_or_not),
        cmocka_unit_test(equal_keys_stand_beside_each_other),
        cmocka_unit_test(both_ways_to_match_tags_agree),
        cmocka_unit_test(a_space_hands_out_pieces_that_do_not_overlap),
    };
    return cmocka_run_group_tests_name("kvindex/table", tests, NULL, NULL);
}
