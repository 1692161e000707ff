/* SPDX-License-Identifier: Apache-2.0 */
/* A slot of level L holds timers of one block of 64^L ticks. Level 0 covers ticks [tick, tick +
 * 63]: the slot of `tick` itself has been processed, so it is free to hold what is due already and
 * waits for the next advance. Level L > 0 covers the next 64 blocks of 64^L ticks, the present one
 * not among them: a block's slot is put down to lower levels when `tick` reaches the block's first
 * tick (a cascade).
 *
 *   level 1   | b0 | b1 | b2 | ...       tick enters b1: the slot's timers move down
 *   level 0   | t64 t65 t66 ... t127 |   and stand here by their own tick
 */
#include "base/wheel.h"

#include <assert.h>

#define LEVEL_BITS 6
#define SLOT_MASK ((uint64_t)FL_WHEEL_SLOTS - 1)
#define REACH_TICKS (UINT64_C(1) << (LEVEL_BITS * FL_WHEEL_LEVELS))

static_assert(FL_WHEEL_SLOTS == 1 << LEVEL_BITS, "a level takes LEVEL_BITS of the tick");

void fl_wheel_init(struct fl_wheel *wheel, uint64_t now_ms)
{
    wheel->tick = now_ms / FL_WHEEL_TICK_MS;
    wheel->count = 0;
    for (unsigned level = 0; level < FL_WHEEL_LEVELS; level++) {
        for (unsigned slot = 0; slot < FL_WHEEL_SLOTS; slot++)
            fl_link_init(&wheel->slots[level][slot]);
    }
}

static struct fl_timer *timer_of(struct fl_link *link)
{
    return FL_CONTAINER_OF(link, struct fl_timer, link);
}

/* The first tick at whose time the deadline has passed. */
static uint64_t due_tick(uint64_t deadline_ms)
{
    return deadline_ms / FL_WHEEL_TICK_MS + (deadline_ms % FL_WHEEL_TICK_MS != 0);
}

static struct fl_link *slot_at(struct fl_wheel *wheel, unsigned level, uint64_t tick)
{
    return &wheel->slots[level][(tick >> (LEVEL_BITS * level)) & SLOT_MASK];
}

static void put_down(struct fl_wheel *wheel, struct fl_timer *timer)
{
    uint64_t due = due_tick(timer->deadline_ms);
    if (due < wheel->tick)
        due = wheel->tick;
    uint64_t ahead = due - wheel->tick;
    if (ahead >= REACH_TICKS) {
        ahead = REACH_TICKS - 1;
        due = wheel->tick + ahead;
    }
    unsigned level = 0;
    while (ahead >> (LEVEL_BITS * (level + 1)) != 0)
        level++;
    fl_link_push_tail(slot_at(wheel, level, due), &timer->link);
}

void fl_timer_init(struct fl_timer *timer, void (*fire)(struct fl_timer *timer))
{
    fl_link_init(&timer->link);
    timer->deadline_ms = 0;
    timer->fire = fire;
}

void fl_timer_start(struct fl_wheel *wheel, struct fl_timer *timer, uint64_t deadline_ms)
{
    fl_timer_stop(wheel, timer);
    timer->deadline_ms = deadline_ms;
    put_down(wheel, timer);
    wheel->count++;
}

void fl_timer_stop(struct fl_wheel *wheel, struct fl_timer *timer)
{
    if (!fl_timer_is_running(timer))
        return;
    fl_link_unlink(&timer->link);
    assert(wheel->count > 0);
    wheel->count--;
}

/* `tick` has just become the first tick of a block on `level`. */
static void cascade(struct fl_wheel *wheel, unsigned level)
{
    struct fl_link moved;
    fl_link_init(&moved);
    fl_link_splice_tail(&moved, slot_at(wheel, level, wheel->tick));
    struct fl_link *link;
    while ((link = fl_link_pop_head(&moved)) != NULL)
        put_down(wheel, timer_of(link));
}

/* The next tick at which a timer fires or a slot is put down; UINT64_MAX if there is none. */
static uint64_t next_tick(const struct fl_wheel *wheel)
{
    uint64_t next = UINT64_MAX;
    for (unsigned level = 0; level < FL_WHEEL_LEVELS; level++) {
        unsigned shift = LEVEL_BITS * level;
        uint64_t block = (wheel->tick >> shift) + (level > 0);
        for (unsigned i = 0; i < FL_WHEEL_SLOTS; i++, block++) {
            if (block << shift >= next)
                break;
            if (!fl_link_is_alone(&wheel->slots[level][block & SLOT_MASK])) {
                next = block << shift;
                break;
            }
        }
    }
    return next;
}

/* Moves on to `tick`, the next one or one before which nothing happens. */
static void enter_tick(struct fl_wheel *wheel, uint64_t tick)
{
    wheel->tick = tick;
    for (unsigned level = FL_WHEEL_LEVELS - 1; level > 0; level--) {
        if ((tick & ((UINT64_C(1) << (LEVEL_BITS * level)) - 1)) == 0)
            cascade(wheel, level);
    }
}

void fl_wheel_advance(struct fl_wheel *wheel, uint64_t now_ms)
{
    uint64_t target = now_ms / FL_WHEEL_TICK_MS;
    struct fl_link due;
    fl_link_init(&due);

    fl_link_splice_tail(&due, slot_at(wheel, 0, wheel->tick));
    while (wheel->tick < target) {
        uint64_t tick = wheel->tick + 1;
        /* A long gap is jumped, a short one is walked: looking for the next tick costs more. */
        if (target - wheel->tick > FL_WHEEL_SLOTS) {
            tick = next_tick(wheel);
            if (tick > target)
                tick = target;
        }
        enter_tick(wheel, tick);
        fl_link_splice_tail(&due, slot_at(wheel, 0, tick));
    }

    /* Only now, with `tick` at its target, callbacks run: a timer they start goes into the wheel,
     * never into `due`, and one they stop is unlinked from `due` like from any slot. */
    struct fl_link *link;
    while ((link = fl_link_pop_head(&due)) != NULL) {
        struct fl_timer *timer = timer_of(link);
        wheel->count--;
        timer->fire(timer);
    }
}

uint64_t fl_wheel_next_ms(const struct fl_wheel *wheel)
{
    if (wheel->count == 0)
        return UINT64_MAX;
    uint64_t tick = next_tick(wheel);
    /* Asked from a callback while only timers of that same advance are left. */
    if (tick == UINT64_MAX)
        tick = wheel->tick;
    return tick * FL_WHEEL_TICK_MS;
}
