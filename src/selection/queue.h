/* SPDX-License-Identifier: Apache-2.0 */
/* Tickets: what a selection that had to wait is known by, from enqueue to delivery
 * (selection.md 2.5).
 *
 *   state      decided by the drainer    cancel                    deadline, stop           mail
 * opened QUEUED     -> BOOKED: booked on      -> BOOKED, CANCELLED;     -> BOOKED, DEADLINE or   -
 *              the waiter's behalf, or   leaves the queue at once  SHUTDOWN, likewise
 *              refused with a code
 *   BOOKED     -                         marked: the opener gets   no effect: the           ->
 * DELIVERED; the CANCELLED, the library    decision stands          booking is the frees the
 * booking there                            receiver's DELIVERED  - NOT_FOUND                 -
 * never twice
 *
 * BOOKED means: outcome decided, mail under way. A ticket changes state by compare-and-swap of one
 * word that holds its generation too, so a stale name can change nothing.
 *
 * The queue itself (order, limits, drainer: selection.md section 8) is not here yet: nothing makes
 * a ticket, and a busy pool is refused at once. What a waiter will be told, and when, does not
 * change with it. Any thread. */
#ifndef FL_SELECTION_QUEUE_H
#define FL_SELECTION_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* selection.md 8.3: the reference has an admission channel of that depth. */
#define FL_TICKETS_MAX 65536

enum fl_ticket_state { FL_TICKET_NONE, FL_TICKET_QUEUED, FL_TICKET_BOOKED, FL_TICKET_DELIVERED };

struct fl_ticket_name { /* fl_ticket of the public header */
    uint32_t slot, generation;
};

struct fl_tickets {
    pthread_mutex_t lock; /* guards the free list and the making of pieces */
    _Atomic(struct fl_ticket_slot *) pieces[FL_TICKETS_MAX / 1024];
    uint32_t first_free, made; /* first_free: slot + 1; 0: none */
};

void fl_tickets_init(struct fl_tickets *tickets);
void fl_tickets_fini(struct fl_tickets *tickets);

/* A new one, QUEUED. 0, or FL_EQUEUE_REJECTED at FL_TICKETS_MAX. Generations start at 1. */
int fl_tickets_new(struct fl_tickets *tickets, struct fl_ticket_name *name);

/* QUEUED -> BOOKED with `rc`, of the drainer, a deadline or a stop. True if this call decided:
 * then, and only then, the caller takes it out of the queue and posts its mail. */
bool fl_tickets_decide(struct fl_tickets *tickets, struct fl_ticket_name name, int rc);

enum fl_ticket_cancelled {
    FL_CANCEL_NOT_FOUND, /* delivered, or never there */
    FL_CANCEL_DECIDED,   /* was QUEUED: as after fl_tickets_decide() with FL_ECANCELLED */
    FL_CANCEL_MARKED,    /* was BOOKED: the opener will see it */
};
/* `cause` (0..255) is what the booking will be freed with. Again on a marked one: MARKED, the first
 * cause stays. */
enum fl_ticket_cancelled fl_tickets_cancel(struct fl_tickets *tickets, struct fl_ticket_name name,
                                           uint8_t cause);

struct fl_ticket_outcome {
    int rc;     /* what the receiver is told */
    bool frees; /* a booking was made, but cancelled: free it with `cause` */
    uint8_t cause;
};
/* BOOKED -> DELIVERED; the name is worth nothing afterwards. Once per ticket, by the opener of its
 * mail: asserted. */
struct fl_ticket_outcome fl_tickets_deliver(struct fl_tickets *tickets, struct fl_ticket_name name);

enum fl_ticket_state fl_tickets_state(struct fl_tickets *tickets, struct fl_ticket_name name);

#endif
