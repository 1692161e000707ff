/* SPDX-License-Identifier: Apache-2.0 */
/* The event loop: one per thread. The only folder that polls; libuv lives behind this header.
 *
 * A turn:
 *
 *   poll: ready sockets, child exits --> read the clock once --> mail --> due timers
 *     --> deferred work, in order --> flush writes --> dispose of closed objects
 *
 * Contract for objects with callbacks. Memory of an object that a caller further up the stack may
 * still hold is never freed inside a callback: it is marked, unlinked and given to
 * fl_loop_dispose(), which frees it after the turn. Once disposed of, no callback reaches it.
 * Handlers never block and never sleep; work without a bound is cut into pieces and goes on by
 * fl_loop_defer().
 *
 * Threads: everything here belongs to the loop's thread, except fl_loop_post(), fl_loop_stop(),
 * fl_loop_stats() and fl_clock_ns(). A handler that runs longer than FL_LOOP_STALL_MS is counted,
 * and logged at a limited rate. */
#ifndef FL_NET_LOOP_H
#define FL_NET_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/wheel.h"

#define FL_LOOP_STALL_MS 50      /* dependencies.md 4.5 */
#define FL_LOOP_LETTERS_TURN 256 /* letters opened a turn, so that mail cannot starve sockets */

struct fl_loop;

/* `index` is the loop's number among its kind (metric shard). Aborts when the system gives no loop.
 */
struct fl_loop *fl_loop_new(unsigned index);
/* All objects of the loop are closed by then, and nobody posts any more; mail, deferred work and
 * what waits for disposal is run first. NULL allowed. */
void fl_loop_free(struct fl_loop *loop);

unsigned fl_loop_index(const struct fl_loop *loop);
/* Runs turns until fl_loop_stop(). On the thread that will own the loop. */
void fl_loop_run(struct fl_loop *loop);
/* One turn, waiting at most `timeout_ms` for something to happen (tests). */
void fl_loop_turn(struct fl_loop *loop, uint64_t timeout_ms);
/* Any thread: fl_loop_run() returns after its current turn, or at once when it is called later. */
void fl_loop_stop(struct fl_loop *loop);

/* Monotonic, cached for the turn; outside of turns read from the clock. */
uint64_t fl_loop_now_ms(const struct fl_loop *loop);
/* Monotonic, read from the clock. Any thread. */
uint64_t fl_clock_ns(void);

/* Timers: see base/wheel.h. Starts, or restarts: from now on, `delay_ms` long. */
void fl_loop_timer_start(struct fl_loop *loop, struct fl_timer *timer, uint64_t delay_ms);
void fl_loop_timer_stop(struct fl_loop *loop, struct fl_timer *timer);

/* One-shot timer of better than 1 ms (a timerfd a loop and a heap): for engine and replay, whose
 * clocks are scaled. Fires once `at_ns` of fl_clock_ns() has passed, never before. */
struct fl_precise_timer;
struct fl_precise_timer *fl_precise_timer_new(struct fl_loop *loop, void (*fire)(void *owner),
                                              void *owner);
/* Starts, or restarts if it runs. */
void fl_precise_timer_start(struct fl_precise_timer *timer, uint64_t at_ns);
void fl_precise_timer_stop(struct fl_precise_timer *timer);
/* NULL allowed; also from inside `fire`. */
void fl_precise_timer_free(struct fl_precise_timer *timer);

/* Work for the end of this turn (or of the next one, when deferred from deferred work). A member of
 * its owner. Deferring again while it waits does nothing. */
struct fl_deferred {
    struct fl_link link;
    void (*run)(struct fl_deferred *deferred);
};
void fl_deferred_init(struct fl_deferred *deferred, void (*run)(struct fl_deferred *deferred));
void fl_loop_defer(struct fl_loop *loop, struct fl_deferred *deferred);
/* Harmless if it does not wait. */
void fl_loop_undefer(struct fl_deferred *deferred);

/* Frees after the turn. A member of what is freed. */
struct fl_disposable {
    struct fl_link link;
    void (*free)(struct fl_disposable *disposable);
};
/* Once per object. */
void fl_loop_dispose(struct fl_loop *loop, struct fl_disposable *disposable,
                     void (*free)(struct fl_disposable *disposable));

/* Mail between threads: an owned message. */
struct fl_letter {
    struct fl_letter *next; /* the mailbox's, until opened */
    /* On the receiving loop; frees the letter. */
    void (*open)(struct fl_loop *loop, struct fl_letter *letter);
};
/* Any thread; never blocks, never fails. Letters of one sender are opened in order, at most
 * FL_LOOP_LETTERS_TURN a turn. Mail posted to a loop that has stopped is opened by fl_loop_free().
 */
void fl_loop_post(struct fl_loop *loop, struct fl_letter *letter);

/* The loop whose fl_loop_run(), fl_loop_turn() or fl_loop_free() is on this thread's stack, or
 * NULL. */
struct fl_loop *fl_loop_current(void);

struct fl_loop_stats {
    uint64_t turns, stalls, letters;
    uint64_t poll_mask_changes; /* of descriptors already watched; each costs two system calls */
    uint64_t fds;               /* watched now */
    uint64_t tls_mismatches;    /* streams of which one side spoke TLS and the other did not */
};
/* Any thread; figures may be a moment old. */
void fl_loop_stats(const struct fl_loop *loop, struct fl_loop_stats *stats);

#endif
