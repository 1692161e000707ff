/* SPDX-License-Identifier: Apache-2.0 */
#include "net/loop.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <uv.h>

#include "base/alloc.h"
#include "base/log.h"
#include "net/loop_internal.h"

/* 512 KiB of warm blocks a loop: more than a turn's worth of connections that read at once. */
#define BLOCK_CACHE 32

struct fl_loop {
    /* the loop's thread */
    uv_loop_t uv;
    uv_timer_t alarm; /* ends the poll phase in time for the wheel, or for fl_loop_turn()'s limit */
    struct fl_wheel wheel;
    uint64_t wheel_next_ms; /* never later than fl_wheel_next_ms() */
    uint64_t stamp_ms;      /* when the last handler ended */
    struct fl_link deferred, flushes, disposables;
    struct fl_letter *letters; /* taken from `mailbox`, oldest first */
    struct fl_precise_clock *precise;
    uint8_t *blocks[BLOCK_CACHE];
    struct fl_chunk *chunks[BLOCK_CACHE];
    unsigned block_count, chunk_count;
    unsigned index;
    bool is_turning;
    struct fl_log_limit stall_log, mismatch_log;

    /* any thread */
    uv_async_t wake;
    _Atomic(struct fl_letter *) mailbox; /* newest first */
    atomic_bool is_stopped;

    /* written by the loop's thread, read by any */
    _Atomic uint64_t turns, stalls, letter_count, mask_changes, fds, tls_mismatches;
};

static _Thread_local struct fl_loop *current_loop;

static void count(_Atomic uint64_t *counter, uint64_t n)
{
    /* One writer: need not be one operation. */
    uint64_t old = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, old + n, memory_order_relaxed);
}

static uint64_t read_clock(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static void on_wake(uv_async_t *wake)
{
    (void)wake; /* mail and the stop flag are looked at after every poll phase */
}

/* libuv runs timers before it polls, too. One that is due only then must not be followed by an
 * endless wait: with the stop flag set, this poll phase does not wait. The flag is gone when
 * uv_run() returns. */
static void on_alarm(uv_timer_t *alarm)
{
    uv_stop(alarm->loop);
}

struct fl_loop *fl_loop_new(unsigned index)
{
    struct fl_loop *loop = fl_calloc(1, sizeof(*loop));
    loop->index = index;
    int rc = uv_loop_init(&loop->uv);
    if (rc == 0)
        rc = uv_timer_init(&loop->uv, &loop->alarm);
    if (rc == 0)
        rc = uv_async_init(&loop->uv, &loop->wake, on_wake);
    if (rc != 0) {
        fl_log(FL_LOG_ERROR, "no event loop", "error=\"%s\"", uv_strerror(rc));
        abort();
    }
    loop->stamp_ms = uv_now(&loop->uv);
    fl_wheel_init(&loop->wheel, loop->stamp_ms);
    loop->wheel_next_ms = UINT64_MAX;
    fl_link_init(&loop->deferred);
    fl_link_init(&loop->flushes);
    fl_link_init(&loop->disposables);
    return loop;
}

/* ---- stalls ---- */

void fl_loop_handler_done(struct fl_loop *loop)
{
    /* The coarse clock costs a few nanoseconds and errs by one tick of the kernel (1 to 4 ms),
     * which is nothing against 50. What ran since the later of the last handler's end and the end
     * of the wait (uv_now) was this handler. */
    uint64_t now_ms = read_clock(CLOCK_MONOTONIC_COARSE) / 1000000;
    uint64_t began_ms = uv_now(&loop->uv);
    if (loop->stamp_ms > began_ms)
        began_ms = loop->stamp_ms;
    if (now_ms <= began_ms)
        return;
    loop->stamp_ms = now_ms;
    if (now_ms - began_ms <= FL_LOOP_STALL_MS)
        return;
    count(&loop->stalls, 1);
    fl_log_limited(&loop->stall_log, now_ms, 1000, FL_LOG_WARN, "loop stalled",
                   "loop=%u handler_ms=%llu limit_ms=%d", loop->index,
                   (unsigned long long)(now_ms - began_ms), FL_LOOP_STALL_MS);
}

/* ---- mail ---- */

void fl_loop_post(struct fl_loop *loop, struct fl_letter *letter)
{
    struct fl_letter *head = atomic_load_explicit(&loop->mailbox, memory_order_relaxed);
    do {
        letter->next = head;
    } while (!atomic_compare_exchange_weak_explicit(&loop->mailbox, &head, letter,
                                                    memory_order_release, memory_order_relaxed));
    /* Whoever finds the box empty rings; the reader always empties it whole. */
    if (head == NULL)
        uv_async_send(&loop->wake);
}

static void take_mail(struct fl_loop *loop)
{
    assert(loop->letters == NULL);
    struct fl_letter *newest = atomic_exchange_explicit(&loop->mailbox, NULL, memory_order_acquire);
    while (newest != NULL) {
        struct fl_letter *next = newest->next;
        newest->next = loop->letters;
        loop->letters = newest;
        newest = next;
    }
}

static void open_mail(struct fl_loop *loop)
{
    unsigned opened = 0;
    while (opened < FL_LOOP_LETTERS_TURN) {
        if (loop->letters == NULL)
            take_mail(loop);
        struct fl_letter *letter = loop->letters;
        if (letter == NULL)
            break;
        loop->letters = letter->next;
        letter->next = NULL;
        letter->open(loop, letter);
        fl_loop_handler_done(loop);
        opened++;
    }
    if (opened > 0)
        count(&loop->letter_count, opened);
}

static bool has_mail(struct fl_loop *loop)
{
    return loop->letters != NULL ||
           atomic_load_explicit(&loop->mailbox, memory_order_relaxed) != NULL;
}

/* ---- the turn ---- */

static void run_timers(struct fl_loop *loop)
{
    uint64_t now_ms = uv_now(&loop->uv);
    bool is_due = now_ms >= loop->wheel_next_ms;
    /* An idle wheel is kept at the present as well, so that a new timer lands in its nearest slot.
     */
    if (!is_due && now_ms / FL_WHEEL_TICK_MS == loop->wheel.tick)
        return;
    fl_wheel_advance(&loop->wheel, now_ms);
    loop->wheel_next_ms = fl_wheel_next_ms(&loop->wheel);
    if (is_due)
        fl_loop_handler_done(loop);
}

/* Only what waits now: work that defers itself again runs once a turn. */
static void run_deferred(struct fl_loop *loop, struct fl_link *list)
{
    struct fl_link batch;
    fl_link_init(&batch);
    fl_link_splice_tail(&batch, list);
    for (struct fl_link *link; (link = fl_link_pop_head(&batch)) != NULL;) {
        struct fl_deferred *deferred = FL_CONTAINER_OF(link, struct fl_deferred, link);
        deferred->run(deferred);
        fl_loop_handler_done(loop);
    }
}

static void run_disposables(struct fl_loop *loop)
{
    for (struct fl_link *link; (link = fl_link_pop_head(&loop->disposables)) != NULL;) {
        struct fl_disposable *disposable = FL_CONTAINER_OF(link, struct fl_disposable, link);
        disposable->free(disposable);
    }
}

static void end_turn(struct fl_loop *loop)
{
    open_mail(loop);
    run_timers(loop);
    run_deferred(loop, &loop->deferred);
    run_deferred(loop, &loop->flushes);
    run_disposables(loop);
    count(&loop->turns, 1);
}

static bool has_work(struct fl_loop *loop)
{
    return !fl_link_is_alone(&loop->deferred) || !fl_link_is_alone(&loop->flushes) ||
           !fl_link_is_alone(&loop->disposables) || has_mail(loop);
}

static void turn_once(struct fl_loop *loop, uint64_t limit_ms)
{
    struct fl_loop *outer = current_loop;
    assert(!loop->is_turning);
    current_loop = loop;
    loop->is_turning = true;

    uv_run_mode mode = UV_RUN_ONCE;
    uint64_t now_ms = uv_now(&loop->uv);
    uint64_t next_ms = loop->wheel_next_ms;
    if (limit_ms != UINT64_MAX && now_ms + limit_ms < next_ms)
        next_ms = now_ms + limit_ms;
    if (has_work(loop) || next_ms <= now_ms) {
        mode = UV_RUN_NOWAIT;
    } else if (next_ms != UINT64_MAX) {
        uv_timer_start(&loop->alarm, on_alarm, next_ms - now_ms, 0);
    } else {
        uv_timer_stop(&loop->alarm);
    }
    uv_run(&loop->uv, mode);
    end_turn(loop);

    loop->is_turning = false;
    current_loop = outer;
}

void fl_loop_run(struct fl_loop *loop)
{
    while (!atomic_load_explicit(&loop->is_stopped, memory_order_acquire))
        turn_once(loop, UINT64_MAX);
}

void fl_loop_turn(struct fl_loop *loop, uint64_t timeout_ms)
{
    uv_update_time(&loop->uv);
    turn_once(loop, timeout_ms);
}

void fl_loop_stop(struct fl_loop *loop)
{
    atomic_store_explicit(&loop->is_stopped, true, memory_order_release);
    uv_async_send(&loop->wake);
}

static void assert_closing(uv_handle_t *handle, void *arg)
{
    (void)arg;
    assert(uv_is_closing(handle)); /* else an object outlives its loop */
    (void)handle;
}

void fl_loop_free(struct fl_loop *loop)
{
    if (loop == NULL)
        return;
    struct fl_loop *outer = current_loop;
    current_loop = loop;
    loop->is_turning = true;

    while (has_work(loop)) {
        uv_run(&loop->uv, UV_RUN_NOWAIT);
        end_turn(loop);
    }
    fl_precise_clock_close(loop->precise);
    uv_close((uv_handle_t *)&loop->alarm, NULL);
    uv_close((uv_handle_t *)&loop->wake, NULL);
    uv_walk(&loop->uv, assert_closing, NULL);
    /* What is left has only to be told that it is closed, or is a name being looked up. */
    while (uv_run(&loop->uv, UV_RUN_ONCE) != 0)
        end_turn(loop);
    end_turn(loop);
    int rc = uv_loop_close(&loop->uv);
    assert(rc == 0);
    (void)rc;

    current_loop = outer;
    while (loop->block_count > 0)
        fl_free(loop->blocks[--loop->block_count]);
    while (loop->chunk_count > 0)
        fl_chunk_unref(loop->chunks[--loop->chunk_count]);
    fl_free(loop);
}

/* ---- small things ---- */

unsigned fl_loop_index(const struct fl_loop *loop)
{
    return loop->index;
}

uint64_t fl_loop_now_ms(const struct fl_loop *loop)
{
    if (!loop->is_turning)
        uv_update_time(
            &((struct fl_loop *)loop)->uv); /* the cached clock is no state of the loop's */
    return uv_now(&loop->uv);
}

uint64_t fl_clock_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

void fl_loop_timer_start(struct fl_loop *loop, struct fl_timer *timer, uint64_t delay_ms)
{
    uint64_t now_ms = fl_loop_now_ms(loop);
    uint64_t deadline_ms = delay_ms < UINT64_MAX / 2 - now_ms ? now_ms + delay_ms : UINT64_MAX / 2;
    fl_timer_start(&loop->wheel, timer, deadline_ms);
    /* Rounded up to a tick, as the wheel does: else the loop would wake twice for it. */
    uint64_t due_ms =
        (deadline_ms + FL_WHEEL_TICK_MS - 1) / FL_WHEEL_TICK_MS * (uint64_t)FL_WHEEL_TICK_MS;
    if (due_ms < loop->wheel_next_ms)
        loop->wheel_next_ms = due_ms;
}

void fl_loop_timer_stop(struct fl_loop *loop, struct fl_timer *timer)
{
    /* wheel_next_ms stays: at worst the loop wakes once for nothing, which costs less than asking
     * the wheel for its next deadline at every stop. */
    fl_timer_stop(&loop->wheel, timer);
}

void fl_deferred_init(struct fl_deferred *deferred, void (*run)(struct fl_deferred *deferred))
{
    fl_link_init(&deferred->link);
    deferred->run = run;
}

void fl_loop_defer(struct fl_loop *loop, struct fl_deferred *deferred)
{
    if (fl_link_is_alone(&deferred->link))
        fl_link_push_tail(&loop->deferred, &deferred->link);
}

void fl_loop_defer_flush(struct fl_loop *loop, struct fl_deferred *flush)
{
    if (fl_link_is_alone(&flush->link))
        fl_link_push_tail(&loop->flushes, &flush->link);
}

void fl_loop_undefer(struct fl_deferred *deferred)
{
    fl_link_unlink(&deferred->link);
}

void fl_loop_dispose(struct fl_loop *loop, struct fl_disposable *disposable,
                     void (*free)(struct fl_disposable *disposable))
{
    disposable->free = free;
    fl_link_init(&disposable->link);
    fl_link_push_tail(&loop->disposables, &disposable->link);
}

struct fl_loop *fl_loop_current(void)
{
    return current_loop;
}

uint8_t *fl_loop_block_take(struct fl_loop *loop)
{
    if (loop->block_count > 0)
        return loop->blocks[--loop->block_count];
    return fl_alloc(FL_LOOP_BLOCK_BYTES);
}

void fl_loop_block_give(struct fl_loop *loop, uint8_t *block)
{
    if (loop->block_count < BLOCK_CACHE)
        loop->blocks[loop->block_count++] = block;
    else
        fl_free(block);
}

struct fl_chunk *fl_loop_chunk_take(struct fl_loop *loop)
{
    if (loop->chunk_count > 0)
        return loop->chunks[--loop->chunk_count];
    return fl_chunk_new(FL_LOOP_JOIN_BYTES, NULL);
}

void fl_loop_chunk_give(struct fl_loop *loop, struct fl_chunk *chunk)
{
    bool is_ours = chunk->room == FL_LOOP_JOIN_BYTES && atomic_load(&chunk->refs) == 1;
    if (is_ours && loop->chunk_count < BLOCK_CACHE)
        loop->chunks[loop->chunk_count++] = chunk;
    else
        fl_chunk_unref(chunk);
}

void fl_loop_tls_mismatch(struct fl_loop *loop, const char *peer, const char *words)
{
    count(&loop->tls_mismatches, 1);
    if (peer != NULL)
        fl_log_limited(&loop->mismatch_log, uv_now(&loop->uv), 1000, FL_LOG_WARN, "TLS mismatch",
                       "peer=%s error=\"%s\"", peer, words);
}

uv_loop_t *fl_loop_uv(struct fl_loop *loop)
{
    return &loop->uv;
}

struct fl_precise_clock **fl_loop_precise_clock(struct fl_loop *loop)
{
    return &loop->precise;
}

void fl_loop_count_mask_change(struct fl_loop *loop)
{
    count(&loop->mask_changes, 1);
}

void fl_loop_count_fd(struct fl_loop *loop, int change)
{
    count(&loop->fds, (uint64_t)(int64_t)change);
}

void fl_loop_stats(const struct fl_loop *loop, struct fl_loop_stats *stats)
{
    stats->turns = atomic_load_explicit(&loop->turns, memory_order_relaxed);
    stats->stalls = atomic_load_explicit(&loop->stalls, memory_order_relaxed);
    stats->letters = atomic_load_explicit(&loop->letter_count, memory_order_relaxed);
    stats->poll_mask_changes = atomic_load_explicit(&loop->mask_changes, memory_order_relaxed);
    stats->fds = atomic_load_explicit(&loop->fds, memory_order_relaxed);
    stats->tls_mismatches = atomic_load_explicit(&loop->tls_mismatches, memory_order_relaxed);
}
