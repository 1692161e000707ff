/* SPDX-License-Identifier: Apache-2.0 */
/* One timerfd a loop, set to the earliest of a heap of timers: libuv's timers and epoll's timeout
 * count whole milliseconds, and a descriptor for each timer would be one for each simulated
 * request. */
#include <assert.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/heap.h"
#include "base/log.h"
#include "net/loop.h"
#include "net/loop_internal.h"
#include "net/poll.h"

struct fl_precise_timer {
    struct fl_precise_clock *clock;
    struct fl_heap_node node;
    struct fl_disposable dispose;
    uint64_t at_ns, order;
    void (*fire)(void *owner);
    void *owner;
};

struct fl_precise_clock {
    struct fl_poll poll;
    struct fl_loop *loop;
    int fd;
    struct fl_heap heap;
    uint64_t armed_ns; /* what the timerfd is set to; UINT64_MAX: nothing */
    uint64_t next_order;
    size_t timers; /* alive */
};

static struct fl_precise_timer *timer_of(const struct fl_heap_node *node)
{
    return FL_CONTAINER_OF(node, struct fl_precise_timer, node);
}

static bool fires_before(const struct fl_heap_node *a, const struct fl_heap_node *b)
{
    const struct fl_precise_timer *x = timer_of(a), *y = timer_of(b);
    return x->at_ns != y->at_ns ? x->at_ns < y->at_ns : x->order < y->order;
}

static void arm(struct fl_precise_clock *clock)
{
    struct fl_heap_node *first = fl_heap_peek(&clock->heap);
    uint64_t at_ns = first == NULL ? UINT64_MAX : timer_of(first)->at_ns;
    /* An alarm that comes too early costs one empty look, less than setting it back each time. */
    if (at_ns >= clock->armed_ns)
        return;
    clock->armed_ns = at_ns;
    uint64_t set_ns = at_ns == 0 ? 1 : at_ns; /* 0 would switch it off */
    struct itimerspec spec = {.it_value = {.tv_sec = (time_t)(set_ns / 1000000000),
                                           .tv_nsec = (long)(set_ns % 1000000000)}};
    int rc = timerfd_settime(clock->fd, TFD_TIMER_ABSTIME, &spec, NULL);
    assert(rc == 0);
    (void)rc;
}

static void on_timerfd(struct fl_poll *poll, int events)
{
    struct fl_precise_clock *clock = FL_CONTAINER_OF(poll, struct fl_precise_clock, poll);
    (void)events;
    uint64_t expirations;
    ssize_t n = read(clock->fd, &expirations, sizeof(expirations));
    (void)n; /* EAGAIN after a reset is as good as an expiration */
    clock->armed_ns = UINT64_MAX;
    /* `now_ns` is not read again, so timers that restart themselves for "now" cannot hold the loop.
     */
    uint64_t now_ns = fl_clock_ns();
    for (struct fl_heap_node *node;
         (node = fl_heap_peek(&clock->heap)) != NULL && timer_of(node)->at_ns <= now_ns;) {
        struct fl_precise_timer *timer = timer_of(node);
        fl_heap_pop(&clock->heap);
        timer->fire(timer->owner);
        if (fl_clock_ns() - now_ns > 10 * 1000000)
            break; /* let sockets have their turn; what is due fires in the next one */
    }
    arm(clock);
}

static struct fl_precise_clock *clock_of(struct fl_loop *loop)
{
    struct fl_precise_clock **place = fl_loop_precise_clock(loop);
    if (*place != NULL)
        return *place;
    struct fl_precise_clock *clock = fl_calloc(1, sizeof(*clock));
    clock->loop = loop;
    clock->armed_ns = UINT64_MAX;
    fl_heap_init(&clock->heap, fires_before);
    clock->fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (clock->fd < 0 || fl_poll_open(&clock->poll, loop, clock->fd, on_timerfd) < 0) {
        fl_log(FL_LOG_ERROR, "no timer descriptor", "fd=%d", clock->fd);
        abort(); /* at start-up of engine or replay, which cannot keep time without it */
    }
    fl_poll_set(&clock->poll, FL_POLL_READABLE);
    *place = clock;
    return clock;
}

static void on_clock_gone(struct fl_poll *poll)
{
    struct fl_precise_clock *clock = FL_CONTAINER_OF(poll, struct fl_precise_clock, poll);
    fl_heap_fini(&clock->heap);
    fl_free(clock);
}

void fl_precise_clock_close(struct fl_precise_clock *clock)
{
    if (clock == NULL)
        return;
    assert(clock->timers == 0);
    fl_poll_close(&clock->poll, on_clock_gone);
    close(clock->fd);
}

struct fl_precise_timer *fl_precise_timer_new(struct fl_loop *loop, void (*fire)(void *owner),
                                              void *owner)
{
    struct fl_precise_timer *timer = fl_calloc(1, sizeof(*timer));
    timer->clock = clock_of(loop);
    timer->clock->timers++;
    timer->fire = fire;
    timer->owner = owner;
    return timer;
}

void fl_precise_timer_start(struct fl_precise_timer *timer, uint64_t at_ns)
{
    struct fl_precise_clock *clock = timer->clock;
    fl_heap_remove(&clock->heap, &timer->node);
    timer->at_ns = at_ns;
    timer->order = clock->next_order++;
    fl_heap_push(&clock->heap, &timer->node);
    arm(clock);
}

void fl_precise_timer_stop(struct fl_precise_timer *timer)
{
    fl_heap_remove(&timer->clock->heap, &timer->node);
}

static void timer_dispose(struct fl_disposable *disposable)
{
    fl_free(FL_CONTAINER_OF(disposable, struct fl_precise_timer, dispose));
}

void fl_precise_timer_free(struct fl_precise_timer *timer)
{
    if (timer == NULL)
        return;
    fl_precise_timer_stop(timer);
    timer->clock->timers--;
    fl_loop_dispose(timer->clock->loop, &timer->dispose, timer_dispose);
}
