/* SPDX-License-Identifier: Apache-2.0 */
#include "selection/reservation.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"
#include "codec/hash.h"

#define FIRST_BUCKETS 64

void fl_reservations_init(struct fl_reservations *index, uint64_t length_ms)
{
    fl_random_bytes(&index->seed, sizeof index->seed);
    index->length_ms = length_ms;
    for (uint32_t i = 0; i < FL_RESERVATION_SHARDS; i++) {
        struct fl_reservation_shard *shard = &index->shards[i];
        pthread_mutex_init(&shard->lock, NULL);
        shard->buckets = fl_calloc(FIRST_BUCKETS, sizeof(struct fl_reservation *));
        shard->bucket_count = FIRST_BUCKETS;
        shard->count = 0;
        fl_link_init(&shard->by_deadline);
    }
}

void fl_reservations_fini(struct fl_reservations *index)
{
    for (uint32_t i = 0; i < FL_RESERVATION_SHARDS; i++) {
        struct fl_reservation_shard *shard = &index->shards[i];
        assert(shard->count == 0);
        fl_free(shard->buckets);
        pthread_mutex_destroy(&shard->lock);
    }
}

struct fl_reservation *fl_reservation_new(const struct fl_reservations *index, struct fl_bytes id,
                                          void *partition)
{
    struct fl_reservation *reservation = fl_calloc(1, sizeof *reservation + id.n);
    fl_link_init(&reservation->link);
    reservation->hash = fl_xxh3(id, index->seed);
    reservation->partition = partition;
    reservation->id_bytes = (uint32_t)id.n;
    memcpy(reservation->id, id.p, id.n);
    return reservation;
}

static struct fl_bytes id_of(const struct fl_reservation *reservation)
{
    return fl_bytes(reservation->id, reservation->id_bytes);
}

/* The top bits choose the shard, the low ones the bucket. */
static struct fl_reservation_shard *shard_of(struct fl_reservations *index, uint64_t hash)
{
    return &index->shards[hash >> 58];
}

static struct fl_reservation **bucket_of(struct fl_reservation_shard *shard, uint64_t hash)
{
    return &shard->buckets[hash & (shard->bucket_count - 1)];
}

/* Where the pointer to it stands; *place is NULL if it is not there. */
static struct fl_reservation **place_of(struct fl_reservation_shard *shard, uint64_t hash,
                                        struct fl_bytes id)
{
    struct fl_reservation **place = bucket_of(shard, hash);
    while (*place != NULL && !((*place)->hash == hash && fl_bytes_eq(id_of(*place), id)))
        place = &(*place)->next;
    return place;
}

/* One shard's table only, and outside the section: a partition's other picks do not wait for it. */
static void shard_grow(struct fl_reservation_shard *shard)
{
    uint32_t old_count = shard->bucket_count;
    struct fl_reservation **old = shard->buckets;
    shard->bucket_count = 2 * old_count;
    shard->buckets = fl_calloc(shard->bucket_count, sizeof(struct fl_reservation *));
    for (uint32_t i = 0; i < old_count; i++) {
        for (struct fl_reservation *at = old[i], *next; at != NULL; at = next) {
            next = at->next;
            struct fl_reservation **bucket = bucket_of(shard, at->hash);
            at->next = *bucket;
            *bucket = at;
        }
    }
    fl_free(old);
}

static void unlink_at(struct fl_reservation_shard *shard, struct fl_reservation **place)
{
    struct fl_reservation *reservation = *place;
    assert(reservation != NULL);
    *place = reservation->next;
    reservation->next = NULL;
    fl_link_unlink(&reservation->link);
    shard->count--;
}

static void start_deadline(struct fl_reservations *index, struct fl_reservation_shard *shard,
                           struct fl_reservation *reservation, uint64_t now_ms)
{
    /* Callers read the clock before they lock, so order among neighbours is only approximate; a
     * reservation never expires early, at worst a few milliseconds late. */
    fl_link_unlink(&reservation->link);
    reservation->deadline_ms = now_ms + index->length_ms;
    fl_link_push_tail(&shard->by_deadline, &reservation->link);
}

int fl_reservations_claim(struct fl_reservations *index, struct fl_reservation *reservation,
                          uint64_t now_ms)
{
    struct fl_reservation_shard *shard = shard_of(index, reservation->hash);
    pthread_mutex_lock(&shard->lock);
    struct fl_reservation **place = place_of(shard, reservation->hash, id_of(reservation));
    int rc = *place != NULL ? FL_ECONFLICT : 0;
    if (rc == 0) {
        atomic_store_explicit(&reservation->state, FL_RESERVATION_CLAIMED, memory_order_relaxed);
        *place = reservation;
        reservation->next = NULL;
        start_deadline(index, shard, reservation, now_ms);
        if (++shard->count > 2 * shard->bucket_count)
            shard_grow(shard);
    }
    pthread_mutex_unlock(&shard->lock);
    return rc;
}

void fl_reservations_abandon(struct fl_reservations *index, struct fl_reservation *reservation)
{
    struct fl_reservation_shard *shard = shard_of(index, reservation->hash);
    pthread_mutex_lock(&shard->lock);
    struct fl_reservation **place = place_of(shard, reservation->hash, id_of(reservation));
    assert(*place == reservation);
    unlink_at(shard, place);
    pthread_mutex_unlock(&shard->lock);
}

void fl_reservations_publish(struct fl_reservation *reservation)
{
    /* Pairs with the acquire of whoever finds it: the hold is complete by then. */
    atomic_store_explicit(&reservation->state, FL_RESERVATION_PREFILLING, memory_order_release);
}

static bool is_published(const struct fl_reservation *reservation)
{
    return atomic_load_explicit(&reservation->state, memory_order_acquire) !=
           FL_RESERVATION_CLAIMED;
}

struct fl_reservation *fl_reservations_lock(struct fl_reservations *index, struct fl_bytes id)
{
    uint64_t hash = fl_xxh3(id, index->seed);
    struct fl_reservation_shard *shard = shard_of(index, hash);
    pthread_mutex_lock(&shard->lock);
    struct fl_reservation *found = *place_of(shard, hash, id);
    if (found != NULL && is_published(found))
        return found;
    pthread_mutex_unlock(&shard->lock);
    return NULL;
}

void fl_reservations_unlock(struct fl_reservations *index, struct fl_reservation *reservation)
{
    pthread_mutex_unlock(&shard_of(index, reservation->hash)->lock);
}

void fl_reservations_renew(struct fl_reservations *index, struct fl_reservation *reservation,
                           uint64_t now_ms)
{
    start_deadline(index, shard_of(index, reservation->hash), reservation, now_ms);
}

struct fl_reservation *fl_reservations_take(struct fl_reservations *index, struct fl_bytes id)
{
    uint64_t hash = fl_xxh3(id, index->seed);
    struct fl_reservation_shard *shard = shard_of(index, hash);
    pthread_mutex_lock(&shard->lock);
    struct fl_reservation **place = place_of(shard, hash, id);
    struct fl_reservation *found = *place;
    if (found != NULL && is_published(found))
        unlink_at(shard, place);
    else
        found = NULL;
    pthread_mutex_unlock(&shard->lock);
    return found;
}

static void take_expired_of(struct fl_reservation_shard *shard, uint64_t now_ms, uint32_t *left,
                            struct fl_reservation **taken)
{
    FL_LINK_FOREACH(link, &shard->by_deadline)
    {
        struct fl_reservation *oldest = FL_CONTAINER_OF(link, struct fl_reservation, link);
        if (oldest->deadline_ms > now_ms || *left == 0)
            return;
        if (!is_published(oldest))
            continue; /* its own call is under way and will publish or abandon it */
        unlink_at(shard, place_of(shard, oldest->hash, id_of(oldest)));
        oldest->next = *taken;
        *taken = oldest;
        (*left)--;
    }
}

struct fl_reservation *fl_reservations_take_expired(struct fl_reservations *index, uint64_t now_ms,
                                                    uint32_t max)
{
    struct fl_reservation *taken = NULL;
    for (uint32_t i = 0; i < FL_RESERVATION_SHARDS && max > 0; i++) {
        struct fl_reservation_shard *shard = &index->shards[i];
        pthread_mutex_lock(&shard->lock);
        take_expired_of(shard, now_ms, &max, &taken);
        pthread_mutex_unlock(&shard->lock);
    }
    return taken;
}

void fl_reservations_count(struct fl_reservations *index, uint64_t counts[FL_RESERVATION_STATES])
{
    memset(counts, 0, FL_RESERVATION_STATES * sizeof *counts);
    for (uint32_t i = 0; i < FL_RESERVATION_SHARDS; i++) {
        struct fl_reservation_shard *shard = &index->shards[i];
        pthread_mutex_lock(&shard->lock);
        FL_LINK_FOREACH(link, &shard->by_deadline)
        {
            struct fl_reservation *one = FL_CONTAINER_OF(link, struct fl_reservation, link);
            counts[atomic_load_explicit(&one->state, memory_order_relaxed)]++;
        }
        pthread_mutex_unlock(&shard->lock);
    }
}
