/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "base/wheel.h"

static uint64_t tick_of(uint64_t deadline_ms)
{
    return (deadline_ms + FL_WHEEL_TICK_MS - 1) / FL_WHEEL_TICK_MS;
}

/* ---- a naive twin: a flat table of deadlines ---- */

enum { TIMERS = 60 };

struct twin;

struct entry {
    struct fl_timer timer;
    struct twin *twin;
    bool running;
    uint64_t due_tick; /* at which an advance must fire it */
};

struct twin {
    struct fl_wheel wheel;
    struct entry entries[TIMERS];
    struct fl_rng rng;
    uint64_t now_ms;
    uint64_t last_fired_tick;
    size_t fired;
    bool is_advancing;
};

static void start(struct twin *twin, struct entry *entry, uint64_t deadline_ms)
{
    fl_timer_start(&twin->wheel, &entry->timer, deadline_ms);
    entry->running = true;
    entry->due_tick = tick_of(deadline_ms);
    /* What is due already waits for the next advance; from a callback, for the one after this. */
    if (entry->due_tick < twin->now_ms / FL_WHEEL_TICK_MS)
        entry->due_tick = twin->now_ms / FL_WHEEL_TICK_MS;
}

static void stop(struct twin *twin, struct entry *entry)
{
    fl_timer_stop(&twin->wheel, &entry->timer);
    entry->running = false;
}

/* Deadlines near, far, past and beyond the last level. */
static uint64_t random_deadline(struct twin *twin)
{
    static const uint64_t spans_ms[] = {
        30, 700, 50000, UINT64_C(3000000), UINT64_C(170000000), UINT64_C(700000000)};
    uint64_t span = spans_ms[fl_rng_below(&twin->rng, FL_ARRAY_LEN(spans_ms))];
    uint64_t deadline = twin->now_ms + fl_rng_below(&twin->rng, span);
    return fl_rng_below(&twin->rng, 10) == 0 && deadline > span ? deadline - span : deadline;
}

static void on_fire(struct fl_timer *timer)
{
    struct entry *entry = FL_CONTAINER_OF(timer, struct entry, timer);
    struct twin *twin = entry->twin;

    assert_true(twin->is_advancing);
    assert_true(entry->running);
    assert_false(fl_timer_is_running(timer));
    assert_true(timer->deadline_ms <= twin->now_ms);
    assert_true(entry->due_tick <= twin->now_ms / FL_WHEEL_TICK_MS);
    assert_true(entry->due_tick >= twin->last_fired_tick); /* in order of ticks */
    twin->last_fired_tick = entry->due_tick;
    entry->running = false;
    twin->fired++;

    struct entry *other = &twin->entries[fl_rng_below(&twin->rng, TIMERS)];
    uint64_t choice = fl_rng_below(&twin->rng, 4);
    if (choice == 0)
        start(twin, entry, random_deadline(twin));
    else if (choice == 1 && other != entry)
        stop(twin, other); /* maybe one that is due in this very advance */
}

static void advance(struct twin *twin, uint64_t now_ms)
{
    uint64_t target = now_ms / FL_WHEEL_TICK_MS;

    twin->now_ms = now_ms;
    twin->last_fired_tick = 0;
    twin->is_advancing = true;
    fl_wheel_advance(&twin->wheel, now_ms);
    twin->is_advancing = false;
    for (int i = 0; i < TIMERS; i++) {
        struct entry *entry = &twin->entries[i];
        assert_int_equal(entry->running, fl_timer_is_running(&entry->timer));
        /* Only what a callback of this advance started may be due and still run. */
        if (entry->running && entry->due_tick < target)
            fail_msg("timer %d missed tick %llu", i, (unsigned long long)entry->due_tick);
    }
}

static void check_next(const struct twin *twin)
{
    uint64_t first = UINT64_MAX;
    uint32_t running = 0;
    for (int i = 0; i < TIMERS; i++) {
        if (!twin->entries[i].running)
            continue;
        running++;
        if (twin->entries[i].due_tick < first)
            first = twin->entries[i].due_tick;
    }
    assert_int_equal(twin->wheel.count, running);
    uint64_t next_ms = fl_wheel_next_ms(&twin->wheel);
    if (running == 0)
        assert_true(next_ms == UINT64_MAX);
    else
        assert_true(next_ms <= first * FL_WHEEL_TICK_MS);
}

static void random_use_matches_a_table(void **state)
{
    (void)state;
    struct twin *twin = fl_calloc(1, sizeof(*twin));
    for (uint64_t seed = 1; seed <= 20; seed++) {
        print_message("seed %u\n", (unsigned)seed);
        fl_rng_seed(&twin->rng, seed);
        twin->now_ms = fl_rng_below(&twin->rng, UINT64_C(1) << 40);
        twin->fired = 0;
        fl_wheel_init(&twin->wheel, twin->now_ms);
        for (int i = 0; i < TIMERS; i++) {
            twin->entries[i] = (struct entry){.twin = twin};
            fl_timer_init(&twin->entries[i].timer, on_fire);
        }
        for (unsigned step = 0; step < 2000; step++) {
            struct entry *entry = &twin->entries[fl_rng_below(&twin->rng, TIMERS)];
            uint64_t next_ms = fl_wheel_next_ms(&twin->wheel);
            switch (fl_rng_below(&twin->rng, 6)) {
            case 0:
            case 1:
                start(twin, entry, random_deadline(twin));
                break;
            case 2:
                stop(twin, entry);
                break;
            case 3:
                advance(twin, twin->now_ms + fl_rng_below(&twin->rng, 40));
                break;
            case 4: /* as a loop would: sleep until next_ms */
                if (next_ms != UINT64_MAX && next_ms > twin->now_ms)
                    advance(twin, next_ms);
                break;
            default:
                advance(twin,
                        twin->now_ms + fl_rng_below(&twin->rng, step % 50 == 0 ? 200000000 : 5000));
                break;
            }
            check_next(twin);
        }
        assert_true(twin->fired > 200);
    }
    fl_free(twin);
}

/* ---- edges ---- */

struct probe {
    struct fl_timer timer;
    unsigned fired;
};

static void count_fire(struct fl_timer *timer)
{
    FL_CONTAINER_OF(timer, struct probe, timer)->fired++;
}

static void every_level_fires_at_the_first_tick_not_before_the_deadline(void **state)
{
    (void)state;
    static const uint64_t starts_ms[] = {0, 9, 10, 630, 640, 40950, 2621430, 167772150};
    static const uint64_t ticks_ahead[] = {1,        62,       63,       64,       65,      4094,
                                           4095,     4096,     4097,     262143,   262144,  262145,
                                           16777214, 16777215, 16777216, 16777217, 50000000};
    for (size_t i = 0; i < FL_ARRAY_LEN(starts_ms); i++) {
        for (size_t k = 0; k < FL_ARRAY_LEN(ticks_ahead); k++) {
            struct fl_wheel wheel;
            struct probe probe = {0};
            uint64_t now_ms = starts_ms[i];
            uint64_t deadline_ms = now_ms + ticks_ahead[k] * FL_WHEEL_TICK_MS - 3;
            unsigned turns = 0;
            fl_wheel_init(&wheel, now_ms);
            fl_timer_init(&probe.timer, count_fire);
            fl_timer_start(&wheel, &probe.timer, deadline_ms);
            while (probe.fired == 0) {
                now_ms = fl_wheel_next_ms(&wheel);
                assert_true(now_ms <= tick_of(deadline_ms) * FL_WHEEL_TICK_MS);
                fl_wheel_advance(&wheel, now_ms - 1);
                assert_int_equal(probe.fired, 0); /* never before */
                fl_wheel_advance(&wheel, now_ms);
                assert_true(++turns < 10); /* a cascade a level, and a few for the long ones */
            }
            assert_int_equal(now_ms, tick_of(deadline_ms) * FL_WHEEL_TICK_MS);
            assert_int_equal(probe.fired, 1);
            assert_int_equal(wheel.count, 0);
        }
    }
}

static void a_past_deadline_fires_at_the_next_advance(void **state)
{
    (void)state;
    struct fl_wheel wheel;
    struct probe probe = {0};
    fl_wheel_init(&wheel, 1000);
    fl_timer_init(&probe.timer, count_fire);
    fl_timer_start(&wheel, &probe.timer, 5);
    assert_true(fl_wheel_next_ms(&wheel) <= 1000);
    fl_wheel_advance(&wheel, 1000); /* the clock need not move */
    assert_int_equal(probe.fired, 1);
    fl_wheel_advance(&wheel, 2000);
    assert_int_equal(probe.fired, 1);
}

static void a_restarted_timer_fires_once_at_its_new_deadline(void **state)
{
    (void)state;
    struct fl_wheel wheel;
    struct probe probe = {0};
    fl_wheel_init(&wheel, 0);
    fl_timer_init(&probe.timer, count_fire);
    fl_timer_start(&wheel, &probe.timer, 100);
    fl_timer_start(&wheel, &probe.timer, 300);
    assert_int_equal(wheel.count, 1);
    fl_wheel_advance(&wheel, 299);
    assert_int_equal(probe.fired, 0);
    fl_wheel_advance(&wheel, 300);
    assert_int_equal(probe.fired, 1);
    fl_timer_stop(&wheel, &probe.timer); /* harmless */
    assert_int_equal(wheel.count, 0);
}

static void the_largest_deadline_is_never_and_overflows_nothing(void **state)
{
    (void)state;
    struct fl_wheel wheel;
    struct probe probe = {0};
    fl_wheel_init(&wheel, 12345);
    fl_timer_init(&probe.timer, count_fire);
    fl_timer_start(&wheel, &probe.timer, UINT64_MAX);
    fl_wheel_advance(&wheel, UINT64_C(1) << 40); /* 34 years in one jump */
    assert_int_equal(probe.fired, 0);
    assert_true(fl_wheel_next_ms(&wheel) > UINT64_C(1) << 40);
    fl_timer_stop(&wheel, &probe.timer);
    assert_true(fl_wheel_next_ms(&wheel) == UINT64_MAX);
}

struct spinner {
    struct fl_timer timer;
    struct fl_wheel *wheel;
    unsigned fired;
};

static void restart_at_once(struct fl_timer *timer)
{
    struct spinner *spinner = FL_CONTAINER_OF(timer, struct spinner, timer);
    spinner->fired++;
    fl_timer_start(spinner->wheel, timer, timer->deadline_ms);
}

static void a_callback_that_restarts_itself_cannot_spin(void **state)
{
    (void)state;
    struct fl_wheel wheel;
    struct spinner spinner = {.wheel = &wheel};
    fl_wheel_init(&wheel, 0);
    fl_timer_init(&spinner.timer, restart_at_once);
    fl_timer_start(&wheel, &spinner.timer, 50);
    for (unsigned turn = 1; turn <= 5; turn++) {
        fl_wheel_advance(&wheel, 5000); /* due and long over: once a turn nevertheless */
        assert_int_equal(spinner.fired, turn);
    }
    fl_timer_stop(&wheel, &spinner.timer);
}

struct pair {
    struct fl_timer first, second;
    struct fl_wheel *wheel;
    uint64_t restart_ms;
    unsigned second_fired;
};

static void stop_second(struct fl_timer *timer)
{
    struct pair *pair = FL_CONTAINER_OF(timer, struct pair, first);
    fl_timer_stop(pair->wheel, &pair->second);
    if (pair->restart_ms > 0)
        fl_timer_start(pair->wheel, &pair->second, pair->restart_ms);
}

static void count_second(struct fl_timer *timer)
{
    FL_CONTAINER_OF(timer, struct pair, second)->second_fired++;
}

static void a_callback_may_stop_or_move_a_timer_due_in_the_same_advance(void **state)
{
    (void)state;
    static const uint64_t restarts_ms[] = {0, 400};
    for (size_t i = 0; i < FL_ARRAY_LEN(restarts_ms); i++) {
        struct fl_wheel wheel;
        struct pair pair = {.wheel = &wheel, .restart_ms = restarts_ms[i]};
        fl_wheel_init(&wheel, 0);
        fl_timer_init(&pair.first, stop_second);
        fl_timer_init(&pair.second, count_second);
        fl_timer_start(&wheel, &pair.first, 100);
        fl_timer_start(&wheel, &pair.second, 100);
        fl_wheel_advance(&wheel, 200);
        assert_int_equal(pair.second_fired, 0);
        fl_wheel_advance(&wheel, 390);
        assert_int_equal(pair.second_fired, 0);
        fl_wheel_advance(&wheel, 400);
        assert_int_equal(pair.second_fired, restarts_ms[i] > 0);
        assert_int_equal(wheel.count, 0);
    }
}

static void free_owner(struct fl_timer *timer)
{
    fl_free(FL_CONTAINER_OF(timer, struct probe, timer));
}

static void a_callback_may_free_its_owner(void **state)
{
    (void)state;
    struct fl_wheel wheel;
    fl_wheel_init(&wheel, 0);
    for (int i = 0; i < 3; i++) {
        struct probe *probe = fl_calloc(1, sizeof(*probe));
        fl_timer_init(&probe->timer, free_owner);
        fl_timer_start(&wheel, &probe->timer, 100);
    }
    fl_wheel_advance(&wheel, 100);
    assert_int_equal(wheel.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_use_matches_a_table),
        cmocka_unit_test(every_level_fires_at_the_first_tick_not_before_the_deadline),
        cmocka_unit_test(a_past_deadline_fires_at_the_next_advance),
        cmocka_unit_test(a_restarted_timer_fires_once_at_its_new_deadline),
        cmocka_unit_test(the_largest_deadline_is_never_and_overflows_nothing),
        cmocka_unit_test(a_callback_that_restarts_itself_cannot_spin),
        cmocka_unit_test(a_callback_may_stop_or_move_a_timer_due_in_the_same_advance),
        cmocka_unit_test(a_callback_may_free_its_owner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
