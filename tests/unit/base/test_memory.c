/* SPDX-License-Identifier: Apache-2.0 */
/* alloc and arena. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/rng.h"

static void nothing_is_something_to_free(void **state)
{
    (void)state;
    void *a = fl_alloc(0), *b = fl_calloc(0, 8), *c = fl_realloc(NULL, 0, 8), *d = fl_try_alloc(0);
    assert_non_null(a);
    assert_non_null(b);
    assert_non_null(c);
    assert_non_null(d);
    c = fl_realloc(c, 4, 8);
    fl_free(a);
    fl_free(b);
    fl_free(c);
    fl_free(d);
    fl_free(NULL);
}

static void strings_are_copied_with_their_nul(void **state)
{
    (void)state;
    char *whole = fl_strdup("abc"), *part = fl_strndup("abc", 2), *none = fl_strndup(NULL, 0);
    assert_string_equal(whole, "abc");
    assert_string_equal(part, "ab");
    assert_string_equal(none, "");
    fl_free(whole);
    fl_free(part);
    fl_free(none);
}

static void an_overflowing_product_is_no_memory(void **state)
{
    (void)state;
    volatile size_t many = SIZE_MAX / 4;
    assert_null(fl_try_realloc(NULL, many, 8));
}

static void the_chosen_allocation_fails_once(void **state)
{
    (void)state;
    fl_alloc_fail_at(2);
    void *first = fl_try_alloc(8);
    void *second = fl_try_realloc(first, 16, 1);
    assert_non_null(first);
    assert_null(second); /* and `first` still stands */
    void *third = fl_try_realloc(first, 16, 1);
    assert_non_null(third);
    fl_free(third);
    fl_alloc_fail_at(1);
    fl_alloc_fail_at(0);
    void *off = fl_try_alloc(8);
    assert_non_null(off);
    fl_free(off);
}

static void the_owners_memory_is_used_first(void **state)
{
    (void)state;
    _Alignas(16) uint8_t room[256];
    struct fl_arena arena;
    fl_arena_init_with(&arena, 0, room, sizeof(room));
    for (int i = 0; i < 16; i++) {
        uint8_t *p = fl_arena_alloc(&arena, 16);
        assert_in_range((uintptr_t)p, (uintptr_t)room, (uintptr_t)room + sizeof(room) - 16);
    }
    assert_int_equal(arena.held_bytes, 0);
    uint8_t *p = fl_arena_alloc(&arena, 16);
    assert_false(p >= room && p < room + sizeof(room));
    assert_true(arena.held_bytes > 0);
    fl_arena_fini(&arena);
    fl_arena_fini(&arena);
    assert_int_equal(arena.held_bytes, 0);
    assert_non_null(fl_arena_alloc(&arena, 1)); /* may be used again */
    fl_arena_fini(&arena);
}

static void pieces_are_aligned_and_do_not_overlap(void **state)
{
    (void)state;
    struct fl_arena arena = {0};
    struct fl_rng rng;
    enum { PIECES = 2000 };
    uint8_t *pieces[PIECES];
    size_t sizes[PIECES];

    fl_rng_seed(&rng, 11);
    for (int i = 0; i < PIECES; i++) {
        /* Mostly small, some of many blocks' size. */
        sizes[i] = fl_rng_below(&rng, fl_rng_below(&rng, 50) == 0 ? 200000 : 300);
        pieces[i] =
            i % 2 == 0 ? fl_arena_alloc(&arena, sizes[i]) : fl_arena_try_alloc(&arena, sizes[i]);
        assert_int_equal((uintptr_t)pieces[i] % 16, 0);
        memset(pieces[i], i & 0xff, sizes[i]);
    }
    for (int i = 0; i < PIECES; i++) {
        for (size_t k = 0; k < sizes[i]; k++) {
            if (pieces[i][k] != (i & 0xff))
                fail_msg("piece %d was overwritten at %zu", i, k);
        }
    }
    fl_arena_fini(&arena);
}

static void an_outsized_piece_does_not_waste_the_current_block(void **state)
{
    (void)state;
    struct fl_arena arena = {0};
    uint8_t *before = fl_arena_alloc(&arena, 16);
    fl_arena_alloc(&arena, 1000000);
    uint8_t *after = fl_arena_alloc(&arena, 16);
    assert_ptr_equal(after, before + 16);
    fl_arena_fini(&arena);
}

static void trying_stops_at_the_cap(void **state)
{
    (void)state;
    struct fl_arena arena;
    fl_arena_init(&arena, 100000);
    size_t got = 0;
    while (fl_arena_try_alloc(&arena, 1024) != NULL)
        got += 1024;
    /* Of the cap all but headers and less than one piece a block is had. */
    assert_in_range(got, 90000, 100000);
    assert_true(arena.held_bytes <= 100000);
    assert_null(fl_arena_try_alloc(&arena, 100000));
    /* What is ours is not refused for what the peer took. */
    assert_non_null(fl_arena_alloc(&arena, 1024));
    assert_null(fl_arena_try_alloc(&arena, 70000)); /* above the cap now, and no wrap */
    fl_arena_fini(&arena);

    fl_arena_init(&arena, 4096);
    assert_null(fl_arena_try_alloc(&arena, 4096)); /* the block's header counts too */
    assert_non_null(fl_arena_try_alloc(&arena, 4000));
    assert_null(fl_arena_try_alloc(&arena, SIZE_MAX - 8));
    fl_arena_fini(&arena);
}

static void trying_without_memory_changes_nothing(void **state)
{
    (void)state;
    struct fl_arena arena = {0};
    fl_alloc_fail_at(1);
    assert_null(fl_arena_try_alloc(&arena, 10));
    assert_int_equal(arena.held_bytes, 0);
    assert_non_null(fl_arena_try_alloc(&arena, 10));
    fl_arena_fini(&arena);
}

static void copies_are_present_even_if_empty(void **state)
{
    (void)state;
    struct fl_arena arena = {0};
    struct fl_bytes copy = fl_arena_copy(&arena, (struct fl_bytes){NULL, 0});
    assert_non_null(copy.p);
    assert_int_equal(copy.n, 0);
    assert_true(fl_bytes_eq(fl_arena_copy(&arena, FL_BYTES("a\0b")), FL_BYTES("a\0b")));
    assert_string_equal(fl_arena_cstr(&arena, FL_BYTES("abc")), "abc");
    uint8_t *zeroed = fl_arena_calloc(&arena, 100, 3);
    for (int i = 0; i < 300; i++)
        assert_int_equal(zeroed[i], 0);
    fl_arena_fini(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_something_to_free),
        cmocka_unit_test(strings_are_copied_with_their_nul),
        cmocka_unit_test(an_overflowing_product_is_no_memory),
        cmocka_unit_test(the_chosen_allocation_fails_once),
        cmocka_unit_test(the_owners_memory_is_used_first),
        cmocka_unit_test(pieces_are_aligned_and_do_not_overlap),
        cmocka_unit_test(an_outsized_piece_does_not_waste_the_current_block),
        cmocka_unit_test(trying_stops_at_the_cap),
        cmocka_unit_test(trying_without_memory_changes_nothing),
        cmocka_unit_test(copies_are_present_even_if_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
