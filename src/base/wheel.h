/* SPDX-License-Identifier: Apache-2.0 */
/* Timers: a hierarchical timing wheel, one per loop.
 *
 * A timer is a member of its owner; starting, restarting and stopping are O(1) and never allocate.
 * Resolution is FL_WHEEL_TICK_MS: a timer never fires before its deadline and at most one tick
 * after it, if fl_wheel_advance() is called in time. Four levels of 64 slots reach 46 hours at 10
 * ms; longer timers wait in the last slot and are put down again.
 *
 * Single-threaded. Time comes in as now_ms (monotonic, never backwards). */
#ifndef FL_BASE_WHEEL_H
#define FL_BASE_WHEEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

#define FL_WHEEL_TICK_MS 10
#define FL_WHEEL_LEVELS 4
#define FL_WHEEL_SLOTS 64

struct fl_timer {
    struct fl_link link; /* alone unless running */
    uint64_t deadline_ms;
    void (*fire)(struct fl_timer *timer); /* set by fl_timer_init(); the timer is stopped by then */
};

struct fl_wheel {
    struct fl_link slots[FL_WHEEL_LEVELS][FL_WHEEL_SLOTS];
    uint64_t tick;  /* the last one processed */
    uint32_t count; /* running timers */
};

void fl_wheel_init(struct fl_wheel *wheel, uint64_t now_ms);

void fl_timer_init(struct fl_timer *timer, void (*fire)(struct fl_timer *timer));
/* Starts, or restarts if it runs. A deadline in the past fires at the next advance. */
void fl_timer_start(struct fl_wheel *wheel, struct fl_timer *timer, uint64_t deadline_ms);
/* Harmless if it does not run. */
void fl_timer_stop(struct fl_wheel *wheel, struct fl_timer *timer);

static inline bool fl_timer_is_running(const struct fl_timer *timer)
{
    return !fl_link_is_alone(&timer->link);
}

/* Fires every timer with deadline_ms <= now_ms (rounded up to ticks), in order of ticks. A callback
 * may start and stop any timer; one started with a due deadline fires in the next advance, so that
 * a callback that restarts itself cannot spin. */
void fl_wheel_advance(struct fl_wheel *wheel, uint64_t now_ms);

/* A time by which advance should be called: never later than the first due timer, at times earlier
 * (a cascade). UINT64_MAX when nothing runs. */
uint64_t fl_wheel_next_ms(const struct fl_wheel *wheel);

#endif
