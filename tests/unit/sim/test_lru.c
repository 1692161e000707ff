/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/rng.h"
#include "sim/lru.h"

/* A naive twin: an array, newest last. */
struct twin {
    uint64_t ids[64];
    uint32_t count, cap;
    uint64_t evicted[512];
    uint32_t evicted_count;
};

static void twin_touch(struct twin *twin, uint64_t id)
{
    uint32_t at = 0;
    while (at < twin->count && twin->ids[at] != id)
        at++;
    if (at == twin->count)
        twin->ids[twin->count++] = id;
    memmove(&twin->ids[at], &twin->ids[at + 1], (twin->count - at - 1) * sizeof(id));
    twin->ids[twin->count - 1] = id;
    if (twin->count > twin->cap) {
        twin->evicted[twin->evicted_count++] = twin->ids[0];
        memmove(&twin->ids[0], &twin->ids[1], (twin->count - 1) * sizeof(id));
        twin->count--;
    }
}

static bool twin_has(const struct twin *twin, uint64_t id)
{
    for (uint32_t i = 0; i < twin->count; i++) {
        if (twin->ids[i] == id)
            return true;
    }
    return false;
}

struct seen {
    uint64_t evicted[512];
    uint32_t evicted_count, inserted;
};

static void on_evict(void *owner, uint64_t id)
{
    struct seen *seen = owner;
    seen->evicted[seen->evicted_count++] = id;
}

static void on_insert(void *owner, uint64_t id, uint32_t position)
{
    struct seen *seen = owner;
    (void)id;
    (void)position;
    seen->inserted++;
}

static void random_touches_agree_with_an_array(void **state)
{
    struct fl_rng rng;
    (void)state;
    fl_rng_seed(&rng, 7);
    for (uint32_t cap = 1; cap <= 40; cap += 13) {
        struct fl_lru lru;
        struct twin twin = {.cap = cap};
        fl_lru_init(&lru, cap);
        for (int round = 0; round < 3000; round++) {
            uint64_t ids[20];
            uint32_t count = (uint32_t)fl_rng_below(&rng, FL_ARRAY_LEN(ids) + 1);
            struct seen seen = {0};
            struct fl_lru_changes changes = {&seen, on_insert, on_evict};
            uint32_t lead = 0;
            for (uint32_t i = 0; i < count; i++)
                ids[i] = fl_rng_below(&rng, 60);
            while (lead < count && twin_has(&twin, ids[lead]))
                lead++;
            assert_int_equal(fl_lru_lead(&lru, ids, count), lead);
            twin.evicted_count = 0;
            for (uint32_t i = 0; i < count; i++)
                twin_touch(&twin, ids[i]);
            fl_lru_touch(&lru, ids, count, &changes);
            assert_int_equal(seen.evicted_count, twin.evicted_count);
            assert_memory_equal(seen.evicted, twin.evicted, seen.evicted_count * sizeof(uint64_t));
            assert_int_equal(lru.count, twin.count);
            for (uint64_t id = 0; id < 60; id++)
                assert_int_equal(fl_lru_has(&lru, id), twin_has(&twin, id));
        }
        fl_lru_clear(&lru);
        assert_false(fl_lru_has(&lru, 1));
        fl_lru_fini(&lru);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_touches_agree_with_an_array)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
