/* SPDX-License-Identifier: Apache-2.0 */
#include "net/threads.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "net/limits.h"

struct member {
    struct fl_loops *loops;
    struct fl_loop *loop;
    pthread_t thread;
};

struct fl_loops {
    struct fl_loops_config config;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned started; /* under the lock */
    struct member members[];
};

static void *run(void *arg)
{
    struct member *member = arg;
    struct fl_loops *loops = member->loops;
    if (loops->config.on_start != NULL)
        loops->config.on_start(loops->config.owner, member->loop);
    pthread_mutex_lock(&loops->lock);
    loops->started++;
    pthread_cond_signal(&loops->changed);
    pthread_mutex_unlock(&loops->lock);
    fl_loop_run(member->loop);
    if (loops->config.on_stop != NULL)
        loops->config.on_stop(loops->config.owner, member->loop);
    return NULL;
}

static uint64_t letters_opened(const struct fl_loops *loops)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < loops->config.count; i++) {
        struct fl_loop_stats stats;
        fl_loop_stats(loops->members[i].loop, &stats);
        sum += stats.letters;
    }
    return sum;
}

/* A letter may post to a loop that is empty already, and deferred work, too: all turn until two
 * rounds were silent. Only then the first may be freed. */
static void settle(struct fl_loops *loops)
{
    for (unsigned silent = 0; silent < 2;) {
        uint64_t before = letters_opened(loops);
        for (unsigned i = 0; i < loops->config.count; i++)
            fl_loop_turn(loops->members[i].loop, 0);
        silent = letters_opened(loops) == before ? silent + 1 : 0;
    }
}

/* Stops and joins the first `running` threads, then frees everything. */
static void stop(struct fl_loops *loops, unsigned running)
{
    for (unsigned i = 0; i < running; i++)
        fl_loop_stop(loops->members[i].loop);
    for (unsigned i = 0; i < running; i++)
        pthread_join(loops->members[i].thread, NULL);
    settle(loops);
    for (unsigned i = 0; i < loops->config.count; i++)
        fl_loop_free(loops->members[i].loop);
    pthread_cond_destroy(&loops->changed);
    pthread_mutex_destroy(&loops->lock);
    fl_free(loops);
}

int fl_loops_start(const struct fl_loops_config *config, struct fl_loops **loops,
                   struct fl_error *err)
{
    struct fl_loops *made = fl_calloc(1, sizeof(*made) + config->count * sizeof(made->members[0]));
    made->config = *config;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, NULL);
    for (unsigned i = 0; i < config->count; i++) {
        made->members[i].loops = made;
        made->members[i].loop = fl_loop_new(i);
    }
    for (unsigned i = 0; i < config->count; i++) {
        struct member *member = &made->members[i];
        char name[16]; /* the kernel's limit */
        int error = pthread_create(&member->thread, NULL, run, member);
        if (error != 0) {
            int rc =
                fl_error_set(err, FL_EIO, "thread %s-%u: %s", config->name, i, strerror(error));
            stop(made, i);
            return rc;
        }
        snprintf(name, sizeof(name), "%.11s-%u", config->name, (unsigned)(uint8_t)i);
        pthread_setname_np(member->thread, name);
    }
    pthread_mutex_lock(&made->lock);
    while (made->started < config->count)
        pthread_cond_wait(&made->changed, &made->lock);
    pthread_mutex_unlock(&made->lock);
    *loops = made;
    return 0;
}

unsigned fl_loops_count(const struct fl_loops *loops)
{
    return loops->config.count;
}

struct fl_loop *fl_loops_get(const struct fl_loops *loops, unsigned i)
{
    return loops->members[i].loop;
}

void fl_loops_stop(struct fl_loops *loops)
{
    if (loops != NULL)
        stop(loops, loops->config.count);
}
