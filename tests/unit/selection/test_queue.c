/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/error.h"
#include "selection/queue.h"

/* selection.md 2.5, every cell: what each event does in each state, and what the opener is told */
static void every_cell_of_the_ticket_table(void **state)
{
    (void)state;
    enum event { DISPATCH, REFUSE, CANCEL, DEADLINE, STOP, OPEN };
    static const struct {
        const char *why;
        enum event first, then; /* then applied to the state that `first` left */
        bool then_decides;
        int rc;
        bool frees;
    } rows[] = {
        {"dispatched", DISPATCH, OPEN, false, 0, false},
        {"refused by the drainer", REFUSE, OPEN, false, FL_ENO_ENDPOINTS, false},
        {"cancelled while queued", CANCEL, OPEN, false, FL_ECANCELLED, false},
        {"deadline while queued", DEADLINE, OPEN, false, FL_EDEADLINE, false},
        {"stop while queued", STOP, OPEN, false, FL_ESHUTDOWN, false},
        {"cancelled after booking: the opener frees", DISPATCH, CANCEL, false, FL_ECANCELLED, true},
        {"cancelled after refusal: nothing to free", REFUSE, CANCEL, false, FL_ECANCELLED, false},
        {"deadline after booking: it stands", DISPATCH, DEADLINE, false, 0, false},
        {"stop after booking: it stands", DISPATCH, STOP, false, 0, false},
        {"dispatch after cancel: nothing", CANCEL, DISPATCH, false, FL_ECANCELLED, false},
        {"deadline after cancel: nothing", CANCEL, DEADLINE, false, FL_ECANCELLED, false},
        {"cancelled twice", CANCEL, CANCEL, false, FL_ECANCELLED, false},
        {"dispatch after deadline: nothing", DEADLINE, DISPATCH, false, FL_EDEADLINE, false},
    };
    static const int codes[] = {[DISPATCH] = 0,
                                [REFUSE] = FL_ENO_ENDPOINTS,
                                [DEADLINE] = FL_EDEADLINE,
                                [STOP] = FL_ESHUTDOWN};
    struct fl_tickets tickets;
    fl_tickets_init(&tickets);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_ticket_name name;
        assert_int_equal(fl_tickets_new(&tickets, &name), 0);
        assert_int_equal(fl_tickets_state(&tickets, name), FL_TICKET_QUEUED);
        if (rows[i].first == CANCEL)
            assert_int_equal(fl_tickets_cancel(&tickets, name, 3), FL_CANCEL_DECIDED);
        else
            assert_true(fl_tickets_decide(&tickets, name, codes[rows[i].first]));
        assert_int_equal(fl_tickets_state(&tickets, name), FL_TICKET_BOOKED);
        if (rows[i].then == CANCEL)
            assert_int_equal(fl_tickets_cancel(&tickets, name, 5), FL_CANCEL_MARKED);
        else if (rows[i].then != OPEN)
            assert_int_equal(fl_tickets_decide(&tickets, name, codes[rows[i].then]),
                             rows[i].then_decides);
        struct fl_ticket_outcome outcome = fl_tickets_deliver(&tickets, name);
        if (outcome.rc != rows[i].rc || outcome.frees != rows[i].frees ||
            (outcome.frees && outcome.cause != 5))
            fail_msg("row %zu: %s: rc %d", i, rows[i].why, outcome.rc);
        /* DELIVERED: NOT_FOUND, no effect */
        assert_int_equal(fl_tickets_cancel(&tickets, name, 1), FL_CANCEL_NOT_FOUND);
        assert_false(fl_tickets_decide(&tickets, name, 0));
    }
    fl_tickets_fini(&tickets);
}

/* selection.md 2.4: naming one that has ended is harmless, also once its slot is in use again;
 * {0,0} is none */
static void stale_names_change_nothing(void **state)
{
    (void)state;
    struct fl_tickets tickets;
    fl_tickets_init(&tickets);
    struct fl_ticket_name old, now;
    assert_int_equal(fl_tickets_cancel(&tickets, (struct fl_ticket_name){0, 0}, 0),
                     FL_CANCEL_NOT_FOUND);
    assert_int_equal(fl_tickets_cancel(&tickets, (struct fl_ticket_name){70000, 1}, 0),
                     FL_CANCEL_NOT_FOUND);
    fl_tickets_new(&tickets, &old);
    fl_tickets_decide(&tickets, old, 0);
    fl_tickets_deliver(&tickets, old);
    fl_tickets_new(&tickets, &now);
    assert_int_equal(now.slot, old.slot);
    assert_int_equal(fl_tickets_cancel(&tickets, old, 0), FL_CANCEL_NOT_FOUND);
    assert_int_equal(fl_tickets_state(&tickets, now), FL_TICKET_QUEUED);
    fl_tickets_fini(&tickets);
}

/* selection.md 8.3: at most 65,536 wait */
static void ticket_beyond_the_cap_is_rejected(void **state)
{
    (void)state;
    struct fl_tickets tickets;
    fl_tickets_init(&tickets);
    struct fl_ticket_name name, last = {0};
    for (uint32_t i = 0; i < FL_TICKETS_MAX; i++) {
        assert_int_equal(fl_tickets_new(&tickets, &name), 0);
        last = name;
    }
    assert_int_equal(fl_tickets_new(&tickets, &name), FL_EQUEUE_REJECTED);
    fl_tickets_decide(&tickets, last, 0);
    fl_tickets_deliver(&tickets, last);
    assert_int_equal(fl_tickets_new(&tickets, &name), 0);
    fl_tickets_fini(&tickets);
}

/* ---- a cancel at any instant ---- */

enum { TICKETS = 20000 };

struct race {
    struct fl_tickets tickets;
    struct fl_ticket_name names[TICKETS];
    _Atomic uint32_t ready;
    _Atomic uint32_t decided_by_cancel;
};

static void *canceller(void *arg)
{
    struct race *race = arg;
    for (uint32_t i = 0; i < TICKETS; i++) {
        while (atomic_load(&race->ready) <= i)
            ;
        if (fl_tickets_cancel(&race->tickets, race->names[i], 2) == FL_CANCEL_DECIDED) {
            atomic_fetch_add(&race->decided_by_cancel, 1);
            fl_tickets_deliver(&race->tickets, race->names[i]);
        }
    }
    return NULL;
}

/* selection.md 2.5: bookings made = bookings kept + bookings freed, however a cancel falls */
static void racing_cancel_neither_loses_nor_doubles(void **state)
{
    (void)state;
    static struct race race;
    fl_tickets_init(&race.tickets);
    pthread_t thread;
    pthread_create(&thread, NULL, canceller, &race);
    uint32_t booked = 0, kept = 0, freed = 0;
    for (uint32_t i = 0; i < TICKETS; i++) {
        assert_int_equal(fl_tickets_new(&race.tickets, &race.names[i]), 0);
        atomic_store(&race.ready, i + 1);
        if (!fl_tickets_decide(&race.tickets, race.names[i], 0))
            continue;
        booked++;
        struct fl_ticket_outcome outcome = fl_tickets_deliver(&race.tickets, race.names[i]);
        kept += outcome.rc == 0;
        freed += outcome.frees;
    }
    pthread_join(thread, NULL);
    assert_int_equal(booked, kept + freed);
    assert_int_equal(booked + race.decided_by_cancel, TICKETS);
    fl_tickets_fini(&race.tickets);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cell_of_the_ticket_table),
        cmocka_unit_test(stale_names_change_nothing),
        cmocka_unit_test(ticket_beyond_the_cap_is_rejected),
        cmocka_unit_test(racing_cancel_neither_loses_nor_doubles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
