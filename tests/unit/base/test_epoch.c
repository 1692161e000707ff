/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/epoch.h"
#include "base/rng.h"

/* ---- a reader thread that does as it is told, one step at a time ---- */

enum { READERS = 4 };

enum { ENTER, LEAVE, END };

struct puppet {
    pthread_t thread;
    sem_t told, done;
    struct fl_epoch *epoch;
    int order;
    bool inside;
    unsigned session; /* counts entries */
};

static void *obey(void *arg)
{
    struct puppet *puppet = arg;
    for (;;) {
        sem_wait(&puppet->told);
        int order = puppet->order; /* behind `done` the next one may stand there */
        if (order == ENTER)
            fl_epoch_enter(puppet->epoch);
        else if (order == LEAVE)
            fl_epoch_leave(puppet->epoch);
        sem_post(&puppet->done);
        if (order == END)
            return NULL;
    }
}

static void tell(struct puppet *puppet, int order)
{
    puppet->order = order;
    sem_post(&puppet->told);
    sem_wait(&puppet->done);
    puppet->inside = order == ENTER;
    puppet->session += order == ENTER;
}

static void puppet_start(struct puppet *puppet, struct fl_epoch *epoch)
{
    *puppet = (struct puppet){.epoch = epoch};
    sem_init(&puppet->told, 0, 0);
    sem_init(&puppet->done, 0, 0);
    assert_int_equal(pthread_create(&puppet->thread, NULL, obey, puppet), 0);
}

static void puppet_end(struct puppet *puppet)
{
    if (puppet->inside)
        tell(puppet, LEAVE);
    tell(puppet, END);
    pthread_join(puppet->thread, NULL);
    sem_destroy(&puppet->told);
    sem_destroy(&puppet->done);
}

/* ---- a model: who was inside when an object was retired ---- */

struct object {
    struct fl_retired retired;
    struct puppet *puppets;
    unsigned session[READERS]; /* of the reader that was inside, 0: none was */
    size_t *freed;
};

static void free_object(struct fl_retired *retired)
{
    struct object *object = FL_CONTAINER_OF(retired, struct object, retired);
    for (int i = 0; i < READERS; i++) {
        struct puppet *puppet = &object->puppets[i];
        if (object->session[i] != 0 && puppet->inside && puppet->session == object->session[i])
            fail_msg("freed while reader %d was still inside", i);
    }
    ++*object->freed;
    fl_free(object);
}

static void no_object_goes_before_the_readers_that_saw_it(void **state)
{
    (void)state;
    const uint64_t seed = 41;
    struct fl_rng rng;
    struct fl_epoch *epoch = fl_epoch_new();
    struct puppet puppets[READERS];
    size_t retired = 0, freed = 0;

    fl_rng_seed(&rng, seed);
    for (int i = 0; i < READERS; i++)
        puppet_start(&puppets[i], epoch);
    for (unsigned step = 0; step < 4000; step++) {
        struct puppet *puppet = &puppets[fl_rng_below(&rng, READERS)];
        switch (fl_rng_below(&rng, 4)) {
        case 0:
            tell(puppet, puppet->inside ? LEAVE : ENTER);
            break;
        case 1: {
            struct object *object = fl_calloc(1, sizeof(*object));
            object->puppets = puppets;
            object->freed = &freed;
            for (int i = 0; i < READERS; i++)
                object->session[i] = puppets[i].inside ? puppets[i].session : 0;
            fl_epoch_retire(epoch, &object->retired, free_object);
            retired++;
            break;
        }
        default: {
            size_t before = freed, max = fl_rng_below(&rng, 5);
            size_t waiting = fl_epoch_reclaim(epoch, max);
            assert_true(freed - before <= max);
            assert_int_equal(waiting, retired - freed);
            break;
        }
        }
    }
    assert_true(freed > 100); /* something went on the way */
    for (int i = 0; i < READERS; i++)
        puppet_end(&puppets[i]);
    assert_int_equal(fl_epoch_reclaim(epoch, SIZE_MAX), 0); /* nobody inside: all at once */
    assert_int_equal(freed, retired);
    fl_epoch_free(epoch);
}

struct counted {
    struct fl_retired retired;
    size_t *freed;
};

static void count_free(struct fl_retired *retired)
{
    struct counted *counted = FL_CONTAINER_OF(retired, struct counted, retired);
    ++*counted->freed;
    fl_free(counted);
}

static void retire_one(struct fl_epoch *epoch, size_t *freed)
{
    struct counted *counted = fl_calloc(1, sizeof(*counted));
    counted->freed = freed;
    fl_epoch_retire(epoch, &counted->retired, count_free);
}

static void a_reader_delays_its_own_domain_only(void **state)
{
    (void)state;
    struct fl_epoch *one = fl_epoch_new(), *two = fl_epoch_new();
    struct puppet puppet;
    size_t freed_one = 0, freed_two = 0;

    puppet_start(&puppet, one);
    tell(&puppet, ENTER);
    retire_one(one, &freed_one);
    retire_one(two, &freed_two);
    assert_int_equal(fl_epoch_reclaim(one, 10), 1);
    assert_int_equal(fl_epoch_reclaim(one, 10), 1);
    assert_int_equal(fl_epoch_reclaim(two, 10), 0);
    assert_int_equal(freed_one, 0);
    assert_int_equal(freed_two, 1);
    /* The same thread may be inside two domains. */
    fl_epoch_enter(one);
    fl_epoch_enter(two);
    fl_epoch_leave(one);
    fl_epoch_leave(two);
    puppet_end(&puppet);
    assert_int_equal(fl_epoch_reclaim(one, 10), 0);
    assert_int_equal(freed_one, 1);
    fl_epoch_free(one);
    fl_epoch_free(two);
    fl_epoch_free(NULL);
}

static void a_domain_frees_what_is_left_with_itself(void **state)
{
    (void)state;
    struct fl_epoch *epoch = fl_epoch_new();
    size_t freed = 0;
    for (int i = 0; i < 5; i++)
        retire_one(epoch, &freed);
    assert_int_equal(fl_epoch_reclaim(epoch, 2), 3);
    assert_int_equal(fl_epoch_reclaim(epoch, 0), 3);
    fl_epoch_free(epoch);
    assert_int_equal(freed, 5);
}

static void *visit(void *arg)
{
    struct fl_epoch *epoch = arg;
    fl_epoch_enter(epoch);
    fl_epoch_leave(epoch);
    return NULL;
}

static void a_thread_gives_its_slot_back_when_it_ends(void **state)
{
    (void)state;
    struct fl_epoch *epoch = fl_epoch_new();
    for (int i = 0; i < FL_EPOCH_SLOTS + 100; i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, visit, epoch), 0);
        pthread_join(thread, NULL); /* the slots would run out, and the process abort */
    }
    fl_epoch_free(epoch);
}

/* Leaves when told, after it has looked once more at what the writer is waiting to free. */
struct late_reader {
    struct fl_epoch *epoch;
    sem_t inside, may_leave;
    _Atomic bool left;
};

static void *leave_late(void *arg)
{
    struct late_reader *reader = arg;
    fl_epoch_enter(reader->epoch);
    sem_post(&reader->inside);
    sem_wait(&reader->may_leave);
    atomic_store(&reader->left, true);
    fl_epoch_leave(reader->epoch);
    return NULL;
}

static void *let_go(void *arg)
{
    struct late_reader *reader = arg;
    for (int i = 0; i < 1000; i++)
        sched_yield(); /* most likely the writer is spinning by then; either order must work */
    sem_post(&reader->may_leave);
    return NULL;
}

static void synchronizing_waits_for_who_is_inside(void **state)
{
    (void)state;
    struct fl_epoch *epoch = fl_epoch_new();
    for (int round = 0; round < 20; round++) {
        struct late_reader reader = {.epoch = epoch};
        pthread_t threads[2];
        size_t freed = 0;
        sem_init(&reader.inside, 0, 0);
        sem_init(&reader.may_leave, 0, 0);
        assert_int_equal(pthread_create(&threads[0], NULL, leave_late, &reader), 0);
        sem_wait(&reader.inside);
        retire_one(epoch, &freed);
        assert_int_equal(fl_epoch_reclaim(epoch, 1), 1);
        assert_int_equal(pthread_create(&threads[1], NULL, let_go, &reader), 0);
        fl_epoch_synchronize(epoch);
        assert_true(atomic_load(&reader.left));
        assert_int_equal(fl_epoch_reclaim(epoch, 1), 0);
        assert_int_equal(freed, 1);
        pthread_join(threads[0], NULL);
        pthread_join(threads[1], NULL);
        sem_destroy(&reader.inside);
        sem_destroy(&reader.may_leave);
    }
    fl_epoch_free(epoch);
}

/* ---- readers beside a writer ---- */

#define ALIVE UINT64_C(0x600dda7a600dda7a)

struct node {
    struct fl_retired retired;
    uint64_t version;
    uint64_t canary; /* plain memory: a free that came too early is a race or a use after free */
};

struct shared {
    struct fl_epoch *epoch;
    _Atomic(struct node *) current;
    _Atomic bool stop;
};

static void free_node(struct fl_retired *retired)
{
    struct node *node = FL_CONTAINER_OF(retired, struct node, retired);
    node->canary = 0;
    fl_free(node);
}

static struct node *node_new(uint64_t version)
{
    struct node *node = fl_calloc(1, sizeof(*node));
    node->version = version;
    node->canary = ALIVE;
    return node;
}

static void *read_current(void *arg)
{
    struct shared *shared = arg;
    uint64_t last = 0;
    while (!atomic_load_explicit(&shared->stop, memory_order_relaxed)) {
        fl_epoch_enter(shared->epoch);
        for (int i = 0; i < 3; i++) {
            struct node *node = atomic_load(&shared->current);
            if (node->canary != ALIVE || node->version < last)
                abort();
            last = node->version;
        }
        fl_epoch_leave(shared->epoch);
    }
    return NULL;
}

static void readers_never_see_what_was_freed(void **state)
{
    (void)state;
    struct shared shared = {.epoch = fl_epoch_new()};
    pthread_t threads[READERS];
    size_t waiting = 0, longest = 0;

    atomic_store(&shared.current, node_new(1));
    for (int i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_current, &shared), 0);
    for (uint64_t version = 2; version < 30000; version++) {
        struct node *old = atomic_load_explicit(&shared.current, memory_order_relaxed);
        atomic_store(&shared.current, node_new(version));
        fl_epoch_retire(shared.epoch, &old->retired, free_node);
        waiting = fl_epoch_reclaim(shared.epoch, 8);
        longest = waiting > longest ? waiting : longest;
    }
    fl_epoch_synchronize(shared.epoch); /* while the readers still read */
    assert_int_equal(fl_epoch_reclaim(shared.epoch, SIZE_MAX), 0);
    atomic_store(&shared.stop, true);
    for (int i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);
    fl_free(atomic_load(&shared.current));
    fl_epoch_free(shared.epoch);
    print_message("at most %zu waited\n", longest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_object_goes_before_the_readers_that_saw_it),
        cmocka_unit_test(a_reader_delays_its_own_domain_only),
        cmocka_unit_test(a_domain_frees_what_is_left_with_itself),
        cmocka_unit_test(a_thread_gives_its_slot_back_when_it_ends),
        cmocka_unit_test(synchronizing_waits_for_who_is_inside),
        cmocka_unit_test(readers_never_see_what_was_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
