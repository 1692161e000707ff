/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/error.h"
#include "selection/reservation.h"

static struct fl_reservation *claim(struct fl_reservations *index, const char *id, uint64_t now_ms)
{
    struct fl_reservation *r = fl_reservation_new(index, fl_bytes_of(id), NULL);
    if (fl_reservations_claim(index, r, now_ms) == 0)
        return r;
    fl_free(r);
    return NULL;
}

static bool is_found(struct fl_reservations *index, const char *id)
{
    struct fl_reservation *r = fl_reservations_lock(index, fl_bytes_of(id));
    if (r != NULL)
        fl_reservations_unlock(index, r);
    return r != NULL;
}

/* selection.md 7.1: the columns `free` and `claimed`; a claim is private to its call */
static void claim_is_private_until_published(void **state)
{
    (void)state;
    struct fl_reservations index;
    fl_reservations_init(&index, 1000);
    assert_false(is_found(&index, "r"));
    assert_null(fl_reservations_take(&index, FL_BYTES("r")));

    struct fl_reservation *r = claim(&index, "r", 0);
    assert_non_null(r);
    assert_null(claim(&index, "r", 0)); /* 409 */
    assert_false(is_found(&index, "r"));
    assert_null(fl_reservations_take(&index, FL_BYTES("r")));
    assert_null(fl_reservations_take_expired(&index, UINT64_MAX, 10));

    fl_reservations_publish(r);
    assert_null(claim(&index, "r", 0));
    assert_true(is_found(&index, "r"));
    assert_ptr_equal(fl_reservations_take(&index, FL_BYTES("r")), r);
    assert_null(fl_reservations_take(&index, FL_BYTES("r"))); /* trap 24 */
    fl_free(r);

    r = claim(&index, "r", 0); /* free again */
    fl_reservations_abandon(&index, r);
    fl_free(r);
    assert_non_null(r = claim(&index, "r", 0));
    fl_reservations_abandon(&index, r);
    fl_free(r);
    fl_reservations_fini(&index);
}

/* selection.md 7.6: the deadline itself counts as expired; news restarts it */
static void deadlines(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        uint64_t renewed_ms, asked_ms;
        bool expired;
    } rows[] = {
        {"one before", 0, 1099, false},
        {"the deadline itself", 0, 1100, true},
        {"renewed, then the old deadline", 600, 1100, false},
        {"renewed, one before the new one", 600, 1599, false},
        {"renewed, the new one", 600, 1600, true},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_reservations index;
        fl_reservations_init(&index, 1000);
        fl_reservations_publish(claim(&index, "r", 100));
        if (rows[i].renewed_ms > 0) {
            struct fl_reservation *r = fl_reservations_lock(&index, FL_BYTES("r"));
            fl_reservations_renew(&index, r, rows[i].renewed_ms);
            fl_reservations_unlock(&index, r);
        }
        struct fl_reservation *taken = fl_reservations_take_expired(&index, rows[i].asked_ms, 10);
        if ((taken != NULL) != rows[i].expired)
            fail_msg("row %zu: %s", i, rows[i].why);
        if (taken == NULL)
            taken = fl_reservations_take(&index, FL_BYTES("r"));
        fl_free(taken);
        fl_reservations_fini(&index);
    }
}

static void many_ids_are_found_and_swept_in_pieces(void **state)
{
    (void)state;
    enum { N = 20000 };
    struct fl_reservations index;
    fl_reservations_init(&index, 1000);
    char id[32];
    for (int i = 0; i < N; i++) {
        snprintf(id, sizeof id, "plan-%d/decode", i);
        fl_reservations_publish(claim(&index, id, (uint64_t)i));
    }
    uint64_t counts[FL_RESERVATION_STATES];
    fl_reservations_count(&index, counts);
    assert_int_equal(counts[FL_RESERVATION_PREFILLING], N);
    for (int i = 0; i < N; i += 7) {
        snprintf(id, sizeof id, "plan-%d/decode", i);
        assert_true(is_found(&index, id));
    }
    uint32_t swept = 0;
    for (;;) {
        struct fl_reservation *taken = fl_reservations_take_expired(&index, 1000 + N / 2, 1000);
        if (taken == NULL)
            break;
        uint32_t piece = 0;
        for (struct fl_reservation *next; taken != NULL; taken = next, piece++) {
            next = taken->next;
            fl_free(taken);
        }
        assert_true(piece <= 1000);
        swept += piece;
    }
    assert_int_equal(swept, N / 2 + 1);
    for (struct fl_reservation *left = fl_reservations_take_expired(&index, UINT64_MAX, UINT32_MAX),
                               *next;
         left != NULL; left = next) {
        next = left->next;
        fl_free(left);
    }
    fl_reservations_fini(&index);
}

/* ---- one winner ---- */

struct race {
    struct fl_reservations index;
    _Atomic uint32_t taken;
    pthread_barrier_t start;
};

enum { RACES = 2000 };

static void *taker(void *arg)
{
    struct race *race = arg;
    char id[16];
    for (int i = 0; i < RACES; i++) {
        snprintf(id, sizeof id, "r%d", i);
        pthread_barrier_wait(&race->start);
        struct fl_reservation *r = i % 2 == 0
                                       ? fl_reservations_take(&race->index, fl_bytes_of(id))
                                       : fl_reservations_take_expired(&race->index, UINT64_MAX, 1);
        if (r != NULL) {
            atomic_fetch_add(&race->taken, 1);
            fl_free(r);
        }
        pthread_barrier_wait(&race->start);
    }
    return NULL;
}

/* selection.md 19, trap 24: free racing free, free racing expiry: exactly one owner */
static void racing_takers_have_one_winner(void **state)
{
    (void)state;
    struct race race = {0};
    fl_reservations_init(&race.index, 1000);
    pthread_barrier_init(&race.start, NULL, 3);
    pthread_t threads[2];
    for (int t = 0; t < 2; t++)
        pthread_create(&threads[t], NULL, taker, &race);
    char id[16];
    for (int i = 0; i < RACES; i++) {
        snprintf(id, sizeof id, "r%d", i);
        fl_reservations_publish(claim(&race.index, id, 0));
        pthread_barrier_wait(&race.start);
        pthread_barrier_wait(&race.start);
        assert_int_equal(race.taken, i + 1);
    }
    for (int t = 0; t < 2; t++)
        pthread_join(threads[t], NULL);
    pthread_barrier_destroy(&race.start);
    fl_reservations_fini(&race.index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(claim_is_private_until_published),
        cmocka_unit_test(deadlines),
        cmocka_unit_test(many_ids_are_found_and_swept_in_pieces),
        cmocka_unit_test(racing_takers_have_one_winner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
