/* SPDX-License-Identifier: Apache-2.0 */
/* The reservation index of a service: id -> booking (selection.md 7.1).
 *
 *     free --claim--> claimed --publish--> prefilling --prefill_complete--> decoding
 *      ^                |                      |                               |
 *      +----abandon-----+----------take (free, expiry, shutdown)---------------+
 *
 * A claim is private to the call that made it: nobody else finds it, but its id is in use. Whoever
 * takes a reservation out owns it alone, so a free that races an expiry has exactly one winner and
 * the loser finds nothing (traps 24, 25).
 *
 *   hash(id) -> shard (mutex) -> chained table of the shard
 *                             -> list by deadline: leases of streams, age limits of HTTP callers
 *
 * Both kinds of deadline have one length each, hence two lists a shard, each in order of deadlines
 * by appending. Any thread. Lock order: shard, then the partition's section. Time comes in as
 * now_ms. */
#ifndef FL_SELECTION_RESERVATION_H
#define FL_SELECTION_RESERVATION_H

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/list.h"
#include "selection/selector.h"

enum fl_reservation_state {
    FL_RESERVATION_CLAIMED,
    FL_RESERVATION_PREFILLING,
    FL_RESERVATION_DECODING,
    FL_RESERVATION_STATES
};

struct fl_reservation {
    struct fl_reservation *next; /* in its chain; afterwards in the taker's own list */
    struct fl_link link;         /* by deadline; alone when it has none */
    uint64_t hash;
    _Atomic uint64_t deadline_ms;
    _Atomic int state;   /* enum fl_reservation_state */
    void *partition;     /* the service's */
    struct fl_hold hold; /* the partition's section guards it */
    uint32_t id_bytes;
    uint8_t id[];
};

#define FL_RESERVATION_SHARDS 64

struct fl_reservation_shard {
    alignas(64) pthread_mutex_t lock;
    struct fl_reservation **buckets; /* power of two */
    uint32_t bucket_count, count;
    struct fl_link by_deadline;
};

struct fl_reservations {
    uint64_t seed;      /* ids are chosen by callers */
    uint64_t length_ms; /* of a lease or age limit */
    struct fl_reservation_shard shards[FL_RESERVATION_SHARDS];
};

void fl_reservations_init(struct fl_reservations *index, uint64_t length_ms);
/* It is empty: asserted. */
void fl_reservations_fini(struct fl_reservations *index);

/* A reservation of `id` that is in no index yet; fl_free() it. Outside the section. */
struct fl_reservation *fl_reservation_new(const struct fl_reservations *index, struct fl_bytes id,
                                          void *partition);

/* Puts it in as claimed; its deadline starts. 0, or FL_ECONFLICT: the id is in use. */
int fl_reservations_claim(struct fl_reservations *index, struct fl_reservation *reservation,
                          uint64_t now_ms);
/* Ends a claim that came to nothing; the caller frees it. */
void fl_reservations_abandon(struct fl_reservations *index, struct fl_reservation *reservation);
/* The claim was booked: from now on everybody finds it. */
void fl_reservations_publish(struct fl_reservation *reservation);

/* Finds a published one and leaves its shard locked; NULL: none, nothing locked. */
struct fl_reservation *fl_reservations_lock(struct fl_reservations *index, struct fl_bytes id);
void fl_reservations_unlock(struct fl_reservations *index, struct fl_reservation *reservation);
/* Between lock and unlock: the deadline starts anew. */
void fl_reservations_renew(struct fl_reservations *index, struct fl_reservation *reservation,
                           uint64_t now_ms);

/* Takes a published one out; it is the caller's alone. NULL: none. */
struct fl_reservation *fl_reservations_take(struct fl_reservations *index, struct fl_bytes id);
/* Takes out published ones whose deadline has come (all with now_ms UINT64_MAX), at most `max`;
 * chained by `next`. */
struct fl_reservation *fl_reservations_take_expired(struct fl_reservations *index, uint64_t now_ms,
                                                    uint32_t max);
/* How many are in each state. */
void fl_reservations_count(struct fl_reservations *index, uint64_t counts[FL_RESERVATION_STATES]);

#endif
