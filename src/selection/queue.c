/* SPDX-License-Identifier: Apache-2.0 */
#include "selection/queue.h"

#include <assert.h>

#include "base/alloc.h"
#include "base/error.h"

#define PIECE 1024

struct fl_ticket_slot {
    /* generation (32) | unused | rc negated (8) | cause (8) | marked (1) | state (3) */
    _Atomic uint64_t word;
    uint32_t next_free; /* slot + 1 */
};

#define STATE_MASK UINT64_C(7)
#define MARKED (UINT64_C(1) << 3)
#define CAUSE_SHIFT 8
#define RC_SHIFT 16
#define GENERATION_SHIFT 32

static uint64_t word_of(uint32_t generation, enum fl_ticket_state state, int rc)
{
    return (uint64_t)generation << GENERATION_SHIFT | (uint64_t)(uint8_t)-rc << RC_SHIFT |
           (uint64_t)state;
}

static enum fl_ticket_state state_in(uint64_t word)
{
    return (enum fl_ticket_state)(word & STATE_MASK);
}

static int rc_in(uint64_t word)
{
    return -(int)(uint8_t)(word >> RC_SHIFT);
}

void fl_tickets_init(struct fl_tickets *tickets)
{
    *tickets = (struct fl_tickets){0};
    pthread_mutex_init(&tickets->lock, NULL);
}

void fl_tickets_fini(struct fl_tickets *tickets)
{
    for (uint32_t i = 0; i < FL_TICKETS_MAX / PIECE; i++)
        fl_free(atomic_load(&tickets->pieces[i]));
    pthread_mutex_destroy(&tickets->lock);
}

/* NULL: never made. */
static struct fl_ticket_slot *slot_at(struct fl_tickets *tickets, uint32_t slot)
{
    if (slot >= FL_TICKETS_MAX)
        return NULL;
    struct fl_ticket_slot *piece = atomic_load(&tickets->pieces[slot / PIECE]);
    return piece != NULL ? &piece[slot % PIECE] : NULL;
}

/* Its word, if the name is not stale. */
static bool read_word(struct fl_tickets *tickets, struct fl_ticket_name name,
                      struct fl_ticket_slot **slot, uint64_t *word)
{
    *slot = slot_at(tickets, name.slot);
    if (*slot == NULL || name.generation == 0)
        return false;
    *word = atomic_load(&(*slot)->word);
    return *word >> GENERATION_SHIFT == name.generation;
}

int fl_tickets_new(struct fl_tickets *tickets, struct fl_ticket_name *name)
{
    int rc = 0;
    pthread_mutex_lock(&tickets->lock);
    uint32_t number = 0;
    if (tickets->first_free != 0) {
        number = tickets->first_free - 1;
        tickets->first_free = slot_at(tickets, number)->next_free;
    } else if (tickets->made < FL_TICKETS_MAX) {
        number = tickets->made++;
        if (number % PIECE == 0)
            atomic_store(&tickets->pieces[number / PIECE],
                         fl_calloc(PIECE, sizeof(struct fl_ticket_slot)));
    } else {
        rc = FL_EQUEUE_REJECTED;
    }
    pthread_mutex_unlock(&tickets->lock);
    if (rc < 0)
        return rc;

    struct fl_ticket_slot *slot = slot_at(tickets, number);
    uint32_t generation = (uint32_t)(atomic_load(&slot->word) >> GENERATION_SHIFT) + 1;
    if (generation == 0)
        generation = 1; /* 0 is nobody's */
    atomic_store(&slot->word, word_of(generation, FL_TICKET_QUEUED, 0));
    *name = (struct fl_ticket_name){number, generation};
    return 0;
}

bool fl_tickets_decide(struct fl_tickets *tickets, struct fl_ticket_name name, int rc)
{
    assert(rc <= 0 && rc > -256);
    struct fl_ticket_slot *slot;
    uint64_t word;
    if (!read_word(tickets, name, &slot, &word) || state_in(word) != FL_TICKET_QUEUED)
        return false;
    /* Nothing but another decision changes a queued one. */
    return atomic_compare_exchange_strong(&slot->word, &word,
                                          word_of(name.generation, FL_TICKET_BOOKED, rc));
}

enum fl_ticket_cancelled fl_tickets_cancel(struct fl_tickets *tickets, struct fl_ticket_name name,
                                           uint8_t cause)
{
    struct fl_ticket_slot *slot;
    uint64_t word;
    while (read_word(tickets, name, &slot, &word)) {
        uint64_t next;
        enum fl_ticket_cancelled done;
        if (state_in(word) == FL_TICKET_QUEUED) {
            next = word_of(name.generation, FL_TICKET_BOOKED, FL_ECANCELLED);
            done = FL_CANCEL_DECIDED;
        } else if (state_in(word) == FL_TICKET_BOOKED) {
            if ((word & MARKED) != 0 || rc_in(word) == FL_ECANCELLED)
                return FL_CANCEL_MARKED;
            next = word | MARKED | (uint64_t)cause << CAUSE_SHIFT;
            done = FL_CANCEL_MARKED;
        } else {
            break;
        }
        if (atomic_compare_exchange_strong(&slot->word, &word, next))
            return done;
    }
    return FL_CANCEL_NOT_FOUND;
}

struct fl_ticket_outcome fl_tickets_deliver(struct fl_tickets *tickets, struct fl_ticket_name name)
{
    struct fl_ticket_slot *slot;
    uint64_t word;
    bool is_known = read_word(tickets, name, &slot, &word);
    assert(is_known && state_in(word) == FL_TICKET_BOOKED);
    (void)is_known;
    /* A cancel may mark it until this very moment. */
    while (!atomic_compare_exchange_weak(&slot->word, &word,
                                         word_of(name.generation, FL_TICKET_DELIVERED, 0)))
        assert(state_in(word) == FL_TICKET_BOOKED);
    bool is_marked = (word & MARKED) != 0;
    struct fl_ticket_outcome outcome = {
        .rc = is_marked ? FL_ECANCELLED : rc_in(word),
        .frees = is_marked && rc_in(word) == 0,
        .cause = (uint8_t)(word >> CAUSE_SHIFT),
    };
    pthread_mutex_lock(&tickets->lock);
    slot->next_free = tickets->first_free;
    tickets->first_free = name.slot + 1;
    pthread_mutex_unlock(&tickets->lock);
    return outcome;
}

enum fl_ticket_state fl_tickets_state(struct fl_tickets *tickets, struct fl_ticket_name name)
{
    struct fl_ticket_slot *slot;
    uint64_t word;
    return read_word(tickets, name, &slot, &word) ? state_in(word) : FL_TICKET_NONE;
}
