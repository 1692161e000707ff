/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/map.h"
#include "base/rng.h"

enum { KEYS = 600, STEPS = 100000 };

static void an_unused_map_owns_and_holds_nothing(void **state)
{
    (void)state;
    struct fl_map_u64 map = {0};
    struct fl_map_bytes names = {0};
    uint32_t at = 0;
    uint64_t key;
    struct fl_bytes name;
    void *value;
    assert_null(fl_map_u64_find(&map, 0));
    assert_null(fl_map_u64_take(&map, 0));
    assert_false(fl_map_u64_next(&map, &at, &key, &value));
    assert_null(fl_map_bytes_find(&names, FL_BYTES("a")));
    assert_null(fl_map_bytes_take(&names, FL_BYTES("a")));
    assert_false(fl_map_bytes_next(&names, &at, &name, &value));
    assert_null(map.slots);
    assert_null(names.slots);
    fl_map_u64_fini(&map);
    fl_map_bytes_fini(&names);
}

static void load_stays_at_three_quarters(void **state)
{
    (void)state;
    struct fl_map_u64 map = {0};
    int object;
    for (uint64_t key = 0; key < 5000; key++) {
        fl_map_u64_put(&map, key, &object);
        assert_true(map.count <= map.cap / 4 * 3);
        assert_int_equal(map.cap & (map.cap - 1), 0);
    }
    fl_map_u64_fini(&map);
    fl_map_u64_reserve(&map, 5000);
    struct fl_map_u64_slot *slots = map.slots;
    for (uint64_t key = 0; key < 5000; key++)
        fl_map_u64_put(&map, key, &object);
    assert_ptr_equal(map.slots, slots); /* what was reserved does not rehash */
    fl_map_u64_fini(&map);
    fl_map_u64_fini(&map);
}

/* Every key must be reachable from its home without passing a hole; the map's own find proves it
 * for those that are in, the model for those that are not. */
static void u64_map_matches_an_array(void **state)
{
    (void)state;
    const uint64_t seed = 21;
    struct fl_rng rng;
    struct fl_map_u64 map = {0};
    int objects[KEYS];
    void *model[KEYS] = {0};
    uint32_t count = 0;

    fl_rng_seed(&rng, seed);
    for (unsigned step = 0; step < STEPS; step++) {
        /* The range of keys breathes, so that the table is at times dense and at times nearly
         * empty. */
        uint64_t key = fl_rng_below(&rng, step / 5000 % 2 == 0 ? KEYS : 20);
        void *value = &objects[fl_rng_below(&rng, KEYS)];
        void *expected = model[key];
        void *got;
        switch (fl_rng_below(&rng, 3)) {
        case 0:
            got = fl_map_u64_put(&map, key * 0x100000001, value);
            count += expected == NULL;
            model[key] = value;
            break;
        case 1:
            got = fl_map_u64_take(&map, key * 0x100000001);
            count -= expected != NULL;
            model[key] = NULL;
            break;
        default:
            got = fl_map_u64_find(&map, key * 0x100000001);
            break;
        }
        if (got != expected || map.count != count)
            fail_msg("seed %u step %u", (unsigned)seed, step);
        if (step % 97 != 0)
            continue;
        uint32_t at = 0, seen = 0;
        while (fl_map_u64_next(&map, &at, &key, &value)) {
            assert_ptr_equal(model[key / 0x100000001], value);
            seen++;
        }
        assert_int_equal(seen, count);
        for (key = 0; key < KEYS; key++)
            assert_ptr_equal(fl_map_u64_find(&map, key * 0x100000001), model[key]);
    }
    fl_map_u64_fini(&map);
}

struct named {
    char name[24];
    size_t n;
};

static struct fl_bytes name_of(const struct named *named)
{
    return fl_bytes(named->name, named->n);
}

static struct named *named_new(uint64_t key)
{
    struct named *named = fl_calloc(1, sizeof(*named));
    /* Keys of all lengths round the hash's eight-byte words, some with NUL, one empty. */
    named->n = key % 20;
    memset(named->name, 0, sizeof(named->name));
    for (size_t i = 0; i < named->n && i < 8; i++)
        named->name[i] = (char)(key >> (4 * i) & 0xf);
    return named;
}

static void bytes_map_matches_an_array_and_borrows_the_newest_key(void **state)
{
    (void)state;
    const uint64_t seed = 22;
    struct fl_rng rng;
    struct fl_map_bytes map = {0};
    struct named *model[KEYS] = {0};
    uint32_t count = 0;

    fl_rng_seed(&rng, seed);
    for (unsigned step = 0; step < STEPS / 4; step++) {
        uint64_t key = fl_rng_below(&rng, step / 2000 % 2 == 0 ? KEYS : 20);
        struct named *probe = named_new(key);
        struct named *expected = NULL;
        uint64_t slot = key; /* several numbers may give one name */
        for (uint64_t k = 0; k < KEYS; k++) {
            if (model[k] != NULL && fl_bytes_eq(name_of(model[k]), name_of(probe)))
                slot = k;
        }
        expected = model[slot];
        void *got;
        switch (fl_rng_below(&rng, 3)) {
        case 0:
            got = fl_map_bytes_put(&map, name_of(probe), probe);
            count += expected == NULL;
            model[slot] = probe;
            /* The former object and its key go: the map must not look at them again. */
            fl_free(expected);
            probe = NULL;
            break;
        case 1:
            got = fl_map_bytes_take(&map, name_of(probe));
            count -= expected != NULL;
            model[slot] = NULL;
            fl_free(expected);
            break;
        default:
            got = fl_map_bytes_find(&map, name_of(probe));
            break;
        }
        fl_free(probe);
        if ((uintptr_t)got != (uintptr_t)expected || map.count != count)
            fail_msg("seed %u step %u", (unsigned)seed, step);
    }
    uint32_t at = 0, seen = 0;
    struct fl_bytes key;
    void *value;
    while (fl_map_bytes_next(&map, &at, &key, &value)) {
        struct named *named = value;
        assert_ptr_equal(key.p, named->name);
        seen++;
    }
    assert_int_equal(seen, count);
    for (uint64_t k = 0; k < KEYS; k++)
        fl_free(model[k]);
    fl_map_bytes_fini(&map);
    fl_map_bytes_fini(&map);
}

static void seeds_differ_between_maps(void **state)
{
    (void)state;
    struct fl_map_bytes a = {0}, b = {0};
    int object;
    fl_map_bytes_put(&a, FL_BYTES("k"), &object);
    fl_map_bytes_put(&b, FL_BYTES("k"), &object);
    assert_true(a.seed != b.seed); /* equal once in 2^64 runs */
    fl_map_bytes_fini(&a);
    fl_map_bytes_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unused_map_owns_and_holds_nothing),
        cmocka_unit_test(load_stays_at_three_quarters),
        cmocka_unit_test(u64_map_matches_an_array),
        cmocka_unit_test(bytes_map_matches_an_array_and_borrows_the_newest_key),
        cmocka_unit_test(seeds_differ_between_maps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
