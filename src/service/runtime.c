/* SPDX-License-Identifier: Apache-2.0 */
#include "service/runtime.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "base/alloc.h"
#include "kvevents/kvevents.h"

#define DEFAULT_SOCKETS 4096
/* A source with no deadline is still looked at: ZMQ descriptors are edge-triggered, and a lost edge
 * must not mean a deaf index. */
#define LONGEST_WAIT_MS 1000
#define FIRST_POLLFDS 8

struct fl_runtime {
    uint64_t (*now_ms)(void *clock);
    void *clock;
    void *zmq;
    struct fl_epoch *epoch;
    struct fl_kvevents *hub;
    struct fl_event_source hub_source;
    pthread_t thread;
    int wake_fd; /* eventfd */
    _Atomic(uint64_t) service_count;

    pthread_mutex_t lock; /* guards what follows up to the blank line */
    struct fl_runtime_task *first, **last;
    bool is_stopping;

    struct fl_link sources; /* the event thread's */
    struct pollfd *pollfds;
    size_t pollfd_cap;
};

static uint64_t monotonic_ms(void *clock)
{
    (void)clock;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

uint64_t fl_runtime_now_ms(const struct fl_runtime *runtime)
{
    return runtime->now_ms(runtime->clock);
}

void *fl_runtime_zmq(struct fl_runtime *runtime)
{
    return runtime->zmq;
}

struct fl_epoch *fl_runtime_epoch(struct fl_runtime *runtime)
{
    return runtime->epoch;
}

struct fl_kvevents *fl_runtime_hub(struct fl_runtime *runtime)
{
    return runtime->hub;
}

bool fl_runtime_is_event_thread(const struct fl_runtime *runtime)
{
    return pthread_equal(pthread_self(), runtime->thread) != 0;
}

void fl_runtime_ref(struct fl_runtime *runtime)
{
    atomic_fetch_add(&runtime->service_count, 1);
}

void fl_runtime_unref(struct fl_runtime *runtime)
{
    atomic_fetch_sub(&runtime->service_count, 1);
}

/* ---- tasks ---- */

static void wake(struct fl_runtime *runtime)
{
    /* A full counter means the thread is awake anyway. */
    ssize_t n;
    do
        n = write(runtime->wake_fd, &(uint64_t){1}, sizeof(uint64_t));
    while (n < 0 && errno == EINTR);
}

void fl_runtime_post(struct fl_runtime *runtime, struct fl_runtime_task *task)
{
    task->next = NULL;
    pthread_mutex_lock(&runtime->lock);
    bool was_empty = runtime->first == NULL;
    *runtime->last = task;
    runtime->last = &task->next;
    pthread_mutex_unlock(&runtime->lock);
    if (was_empty)
        wake(runtime);
}

static void run_tasks(struct fl_runtime *runtime)
{
    pthread_mutex_lock(&runtime->lock);
    struct fl_runtime_task *task = runtime->first;
    runtime->first = NULL;
    runtime->last = &runtime->first;
    pthread_mutex_unlock(&runtime->lock);
    while (task != NULL) {
        struct fl_runtime_task *next = task->next;
        task->run(task);
        task = next;
    }
}

struct call {
    struct fl_runtime_task task;
    void (*call)(void *to);
    void *to;
    pthread_mutex_t lock;
    pthread_cond_t returned;
    bool is_done;
};

static void run_call(struct fl_runtime_task *task)
{
    struct call *call = FL_CONTAINER_OF(task, struct call, task);
    call->call(call->to);
    pthread_mutex_lock(&call->lock);
    call->is_done = true;
    pthread_cond_signal(&call->returned);
    pthread_mutex_unlock(&call->lock);
}

void fl_runtime_call(struct fl_runtime *runtime, void (*run)(void *to), void *to)
{
    if (fl_runtime_is_event_thread(runtime)) {
        run(to);
        return;
    }
    struct call call = {.task = {.run = run_call}, .call = run, .to = to};
    pthread_mutex_init(&call.lock, NULL);
    pthread_cond_init(&call.returned, NULL);
    fl_runtime_post(runtime, &call.task);
    pthread_mutex_lock(&call.lock);
    while (!call.is_done)
        pthread_cond_wait(&call.returned, &call.lock);
    pthread_mutex_unlock(&call.lock);
    pthread_cond_destroy(&call.returned);
    pthread_mutex_destroy(&call.lock);
}

/* ---- the thread ---- */

void fl_runtime_attach(struct fl_runtime *runtime, struct fl_event_source *source)
{
    assert(fl_runtime_is_event_thread(runtime));
    fl_link_push_tail(&runtime->sources, &source->link);
}

void fl_runtime_detach(struct fl_runtime *runtime, struct fl_event_source *source)
{
    assert(fl_runtime_is_event_thread(runtime));
    fl_link_unlink(&source->link);
}

static bool has_tasks_or_stops(struct fl_runtime *runtime)
{
    pthread_mutex_lock(&runtime->lock);
    bool is_so = runtime->first != NULL || runtime->is_stopping;
    pthread_mutex_unlock(&runtime->lock);
    return is_so;
}

/* One poll over the wake-up and every source's descriptor. */
static void wait_for_work(struct fl_runtime *runtime, bool has_more)
{
    size_t count = 0;
    uint64_t now_ms = fl_runtime_now_ms(runtime);
    uint64_t wait_ms = has_more ? 0 : LONGEST_WAIT_MS;
    runtime->pollfds[count++] = (struct pollfd){.fd = runtime->wake_fd, .events = POLLIN};
    FL_LINK_FOREACH(link, &runtime->sources)
    {
        struct fl_event_source *source = FL_CONTAINER_OF(link, struct fl_event_source, link);
        if (count == runtime->pollfd_cap) {
            runtime->pollfd_cap *= 2;
            runtime->pollfds =
                fl_realloc(runtime->pollfds, runtime->pollfd_cap, sizeof *runtime->pollfds);
        }
        runtime->pollfds[count++] = (struct pollfd){.fd = source->fd, .events = POLLIN};
        uint64_t next_ms = source->next_ms(source);
        uint64_t left_ms = next_ms > now_ms ? next_ms - now_ms : 0;
        if (left_ms < wait_ms)
            wait_ms = left_ms;
    }
    if (poll(runtime->pollfds, count, (int)wait_ms) <= 0)
        return; /* EINTR, or a deadline: sources look at the clock themselves */
    if (runtime->pollfds[0].revents != 0) {
        uint64_t ignored;
        ssize_t n = read(runtime->wake_fd, &ignored, sizeof ignored);
        (void)n; /* EAGAIN: somebody's wake-up was read with an earlier one */
    }
}

static bool run_sources(struct fl_runtime *runtime)
{
    bool has_more = false;
    uint64_t now_ms = fl_runtime_now_ms(runtime);
    FL_LINK_FOREACH(link, &runtime->sources)
    {
        struct fl_event_source *source = FL_CONTAINER_OF(link, struct fl_event_source, link);
        has_more |= source->on_ready(source, now_ms);
    }
    return has_more;
}

static bool hub_on_ready(struct fl_event_source *source, uint64_t now_ms)
{
    struct fl_runtime *runtime = FL_CONTAINER_OF(source, struct fl_runtime, hub_source);
    return fl_kvevents_run(runtime->hub, now_ms);
}

static uint64_t hub_next_ms(const struct fl_event_source *source)
{
    const struct fl_runtime *runtime = FL_CONTAINER_OF(source, const struct fl_runtime, hub_source);
    return fl_kvevents_next_ms(runtime->hub);
}

static void *event_thread(void *arg)
{
    struct fl_runtime *runtime = arg;
    bool has_more = false;
    for (;;) {
        run_tasks(runtime);
        pthread_mutex_lock(&runtime->lock);
        bool is_over = runtime->is_stopping && runtime->first == NULL;
        pthread_mutex_unlock(&runtime->lock);
        if (is_over)
            break;
        wait_for_work(runtime, has_more || has_tasks_or_stops(runtime));
        has_more = run_sources(runtime);
    }
    fl_link_unlink(&runtime->hub_source.link);
    fl_kvevents_free(runtime->hub);
    return NULL;
}

/* Signals belong to the program's own threads. */
static int start_thread(struct fl_runtime *runtime)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&runtime->thread, NULL, event_thread, runtime);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

/* Of a runtime whose thread has ended or never ran. */
static void release(struct fl_runtime *runtime)
{
    if (runtime->zmq != NULL)
        zmq_ctx_term(runtime->zmq);
    if (runtime->wake_fd >= 0)
        close(runtime->wake_fd);
    fl_epoch_free(runtime->epoch);
    fl_free(runtime->pollfds);
    pthread_mutex_destroy(&runtime->lock);
    fl_free(runtime);
}

struct fl_runtime *fl_runtime_new(const struct fl_runtime_config *config, struct fl_error *err)
{
    static const struct fl_runtime_config defaults = {0};
    if (config == NULL)
        config = &defaults;
    struct fl_runtime *runtime = fl_calloc(1, sizeof *runtime);
    runtime->now_ms = config->now_ms != NULL ? config->now_ms : monotonic_ms;
    runtime->clock = config->clock;
    runtime->epoch = fl_epoch_new();
    pthread_mutex_init(&runtime->lock, NULL);
    runtime->last = &runtime->first;
    fl_link_init(&runtime->sources);
    runtime->pollfd_cap = FIRST_POLLFDS;
    runtime->pollfds = fl_calloc(FIRST_POLLFDS, sizeof *runtime->pollfds);
    runtime->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    runtime->zmq = zmq_ctx_new();
    if (runtime->wake_fd < 0 || runtime->zmq == NULL) {
        fl_error_set(err, FL_EINTERNAL, "runtime: no %s: %s",
                     runtime->wake_fd < 0 ? "eventfd" : "ZMQ context", strerror(errno));
        release(runtime);
        return NULL;
    }
    int sockets = (int)(config->max_sockets != 0 ? config->max_sockets : DEFAULT_SOCKETS);
    zmq_ctx_set(runtime->zmq, ZMQ_MAX_SOCKETS, sockets);
    runtime->hub = fl_kvevents_new(runtime->zmq, err);
    if (runtime->hub == NULL) {
        release(runtime);
        return NULL;
    }
    runtime->hub_source = (struct fl_event_source){
        .fd = fl_kvevents_fd(runtime->hub), .on_ready = hub_on_ready, .next_ms = hub_next_ms};
    fl_link_push_tail(&runtime->sources, &runtime->hub_source.link);
    int failed = start_thread(runtime);
    if (failed != 0) {
        fl_kvevents_free(runtime->hub);
        fl_error_set(err, FL_EINTERNAL, "runtime: no thread: %s", strerror(failed));
        release(runtime);
        return NULL;
    }
    return runtime;
}

void fl_runtime_free(struct fl_runtime *runtime)
{
    if (runtime == NULL)
        return;
    assert(atomic_load(&runtime->service_count) == 0);
    pthread_mutex_lock(&runtime->lock);
    runtime->is_stopping = true;
    pthread_mutex_unlock(&runtime->lock);
    wake(runtime);
    pthread_join(runtime->thread, NULL);
    assert(fl_link_is_alone(&runtime->sources));
    release(runtime);
}
