/* SPDX-License-Identifier: Apache-2.0 */
/* Why two epochs suffice. Let an object be unpublished and retired in epoch r. A reader that holds
 * it has loaded the link before that store in the single order of all seq_cst operations; its slot
 * was set before its load, to an epoch <= r, so every later scan of the writer sees the slot. The
 * writer leaves epoch r + 1 only after a scan that found each slot 0 or r + 1; this reader's slot
 * is neither. So epoch r + 2 is reached only after it has left, and leaving (release) happens
 * before the scan (acquire) that lets the object go.
 *
 * A reader may store an epoch that has passed meanwhile: that delays the writer, no more. */
#include "base/epoch.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"

#define CACHE_LINE 64
#define OUTSIDE 0
#define FIRST_EPOCH 1
#define SPINS_BEFORE_YIELD 64

struct slot {
    alignas(CACHE_LINE) _Atomic uint64_t epoch; /* OUTSIDE, or when its thread entered */
};

struct fl_epoch {
    /* written by the writer, rarely; read by all */
    alignas(CACHE_LINE) _Atomic uint64_t now;
    /* the writer's: a queue in order of retirement, hence of epoch */
    alignas(CACHE_LINE) struct fl_retired *oldest;
    struct fl_retired **newest_next;
    uint64_t newest_epoch;
    size_t waiting;
    struct slot slots[FL_EPOCH_SLOTS];
};

/* ---- a thread's slot number, the same in every domain ---- */

/* Process-wide because a thread has one number whatever domains it visits, and because only the
 * process sees a thread end. */
static pthread_once_t slots_once = PTHREAD_ONCE_INIT;
static pthread_key_t slots_key;
static _Atomic uint64_t slots_taken[FL_EPOCH_SLOTS / 64];
static _Atomic size_t slots_used; /* one past the highest number ever taken: what a scan looks at */
static _Thread_local size_t my_slot_plus_one;

static void give_slot_back(void *number_plus_one)
{
    size_t number = (size_t)(uintptr_t)number_plus_one - 1;
    my_slot_plus_one = 0;
    atomic_fetch_and_explicit(&slots_taken[number / 64], ~(UINT64_C(1) << (number % 64)),
                              memory_order_release);
}

static void make_key(void)
{
    if (pthread_key_create(&slots_key, give_slot_back) != 0)
        abort();
}

static size_t claim_slot(void)
{
    for (size_t word = 0; word < FL_ARRAY_LEN(slots_taken); word++) {
        uint64_t taken = atomic_load_explicit(&slots_taken[word], memory_order_relaxed);
        while (~taken != 0) {
            uint64_t bit = ~taken & (taken + 1); /* the lowest free one */
            if (atomic_compare_exchange_weak_explicit(&slots_taken[word], &taken, taken | bit,
                                                      memory_order_acquire, memory_order_relaxed))
                return word * 64 + (size_t)__builtin_ctzll(bit);
        }
    }
    fprintf(stderr, "fairlead: more than %d threads read under epochs\n", FL_EPOCH_SLOTS);
    abort();
}

static size_t take_slot(void)
{
    pthread_once(&slots_once, make_key);
    size_t number = claim_slot();
    my_slot_plus_one = number + 1;
    if (pthread_setspecific(slots_key, (void *)(uintptr_t)(number + 1)) != 0)
        abort();

    /* seq_cst, before this thread's first section: a writer whose scan ends below this number has
     * unpublished before we load, by the same argument as for the slots themselves. */
    size_t used = atomic_load(&slots_used);
    while (used <= number && !atomic_compare_exchange_weak(&slots_used, &used, number + 1)) {
    }
    return number;
}

static struct slot *my_slot(struct fl_epoch *epoch)
{
    size_t number = my_slot_plus_one > 0 ? my_slot_plus_one - 1 : take_slot();
    return &epoch->slots[number];
}

/* ---- domains ---- */

struct fl_epoch *fl_epoch_new(void)
{
    struct fl_epoch *epoch = aligned_alloc(CACHE_LINE, sizeof(*epoch));
    if (epoch == NULL)
        abort();
    atomic_init(&epoch->now, FIRST_EPOCH);
    epoch->oldest = NULL;
    epoch->newest_next = &epoch->oldest;
    epoch->newest_epoch = 0;
    epoch->waiting = 0;
    for (size_t i = 0; i < FL_EPOCH_SLOTS; i++)
        atomic_init(&epoch->slots[i].epoch, OUTSIDE);
    return epoch;
}

static struct fl_retired *take_oldest(struct fl_epoch *epoch)
{
    struct fl_retired *retired = epoch->oldest;
    epoch->oldest = retired->next;
    if (epoch->oldest == NULL)
        epoch->newest_next = &epoch->oldest;
    epoch->waiting--;
    return retired;
}

void fl_epoch_free(struct fl_epoch *epoch)
{
    if (epoch == NULL)
        return;
    for (size_t i = 0; i < FL_EPOCH_SLOTS; i++)
        assert(atomic_load(&epoch->slots[i].epoch) == OUTSIDE);
    while (epoch->oldest != NULL) {
        struct fl_retired *retired = take_oldest(epoch);
        retired->free(retired);
    }
    fl_free(epoch);
}

void fl_epoch_enter(struct fl_epoch *epoch)
{
    struct slot *slot = my_slot(epoch);
    uint64_t now = atomic_load_explicit(&epoch->now, memory_order_relaxed);
    /* An exchange, not a store: on x86-64 both cost the same, and the former value tells a section
     * inside a section. */
    uint64_t former = atomic_exchange(&slot->epoch, now);
    assert(former == OUTSIDE);
    (void)former;
}

void fl_epoch_leave(struct fl_epoch *epoch)
{
    struct slot *slot = my_slot(epoch);
    assert(atomic_load_explicit(&slot->epoch, memory_order_relaxed) != OUTSIDE);
    atomic_store_explicit(&slot->epoch, OUTSIDE, memory_order_release);
}

/* ---- the writer ---- */

static uint64_t epoch_now(struct fl_epoch *epoch)
{
    return atomic_load_explicit(&epoch->now, memory_order_relaxed);
}

static bool advance(struct fl_epoch *epoch)
{
    uint64_t now = epoch_now(epoch);
    size_t used = atomic_load(&slots_used);
    for (size_t i = 0; i < used; i++) {
        uint64_t entered = atomic_load(&epoch->slots[i].epoch);
        if (entered != OUTSIDE && entered != now)
            return false;
    }
    atomic_store(&epoch->now, now + 1);
    return true;
}

void fl_epoch_retire(struct fl_epoch *epoch, struct fl_retired *retired,
                     void (*free)(struct fl_retired *retired))
{
    retired->next = NULL;
    retired->epoch = epoch_now(epoch);
    retired->free = free;
    *epoch->newest_next = retired;
    epoch->newest_next = &retired->next;
    epoch->newest_epoch = retired->epoch;
    epoch->waiting++;
}

size_t fl_epoch_reclaim(struct fl_epoch *epoch, size_t max)
{
    if (epoch->oldest == NULL)
        return 0;
    /* Twice at most: without readers what was retired just now can go in the same call. */
    for (int i = 0; i < 2 && epoch->newest_epoch + 2 > epoch_now(epoch); i++) {
        if (!advance(epoch))
            break;
    }
    uint64_t now = epoch_now(epoch);
    for (size_t freed = 0; freed < max; freed++) {
        if (epoch->oldest == NULL || epoch->oldest->epoch + 2 > now)
            break;
        struct fl_retired *retired = take_oldest(epoch);
        retired->free(retired);
    }
    return epoch->waiting;
}

void fl_epoch_synchronize(struct fl_epoch *epoch)
{
    uint64_t target = epoch_now(epoch) + 2;
    for (unsigned spins = 0; epoch_now(epoch) < target; spins++) {
        if (!advance(epoch) && spins >= SPINS_BEFORE_YIELD)
            sched_yield();
    }
}
