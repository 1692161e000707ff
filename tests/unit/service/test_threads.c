/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "service/impl.h"
#include "service/mail.h"
#include "unit/service/fixture.h"

/* Under ThreadSanitizer a call takes some 20 times as long. */
#if defined(__SANITIZE_THREAD__)
#define STEPS 4000
#else
#define STEPS 40000
#endif
#define THREADS 4
#define HELD 64

struct user {
    struct fixture *f;
    uint64_t seed;
    uint32_t number;
    uint64_t booked, freed;
};

static void make_prompt(struct fl_rng *rng, uint32_t *tokens, size_t *count)
{
    /* Prefixes of few conversations, so that threads share and split the same segments. */
    uint32_t conversation = (uint32_t)fl_rng_below(rng, 4);
    *count = 16 * (1 + fl_rng_below(rng, 40));
    uint32_t departs = (uint32_t)fl_rng_below(rng, 640);
    for (uint32_t i = 0; i < *count; i++)
        tokens[i] = i < departs ? conversation * 1000 + i : (uint32_t)fl_rng_below(rng, 3);
}

static void *use(void *arg)
{
    struct user *user = arg;
    struct fl_rng rng;
    fl_rng_seed(&rng, user->seed);
    char ids[HELD][32] = {{0}};
    bool is_held[HELD] = {false};
    uint32_t tokens[640];
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t at = (uint32_t)fl_rng_below(&rng, HELD);
        struct fl_bytes id = fl_bytes_of(ids[at]);
        if (!is_held[at]) {
            snprintf(ids[at], sizeof ids[at], "t%u-%u", user->number, step);
            struct fl_select_request request = fixture_request(user->f, ids[at]);
            size_t count;
            make_prompt(&rng, tokens, &count);
            request.prompt = (struct fl_prompt){.tokens = tokens, .token_count = count};
            struct fl_ticket ticket;
            struct fl_select_result result = {0};
            int rc = fl_select_and_reserve(user->f->service, &request, &ticket, &result, NULL);
            fl_select_result_fini(&result);
            is_held[at] = rc == 0;
            user->booked += rc == 0;
        } else if (fl_rng_below(&rng, 3) == 0) {
            fl_reservation_prefill_complete(user->f->service, id);
        } else if (fl_rng_below(&rng, 8) == 0) {
            fl_reservation_renew(user->f->service, id);
        } else {
            user->freed += fl_reservation_free(user->f->service, id,
                                               (enum fl_free_cause)fl_rng_below(&rng, 5)) == 0;
            is_held[at] = false;
        }
    }
    for (uint32_t at = 0; at < HELD; at++)
        if (is_held[at])
            user->freed +=
                fl_reservation_free(user->f->service, fl_bytes_of(ids[at]), FL_FREE_DONE) == 0;
    return NULL;
}

static _Atomic bool is_over;

/* Workers flap, loads, picks and metrics are read while requests run. */
static void *disturb(void *arg)
{
    struct fixture *f = arg;
    struct fl_buf out = {0};
    for (uint64_t i = 0; !atomic_load(&is_over); i++) {
        uint64_t id = 1 + i % 4;
        struct fl_worker worker = fixture_worker(id);
        if (i % 8 == 5)
            worker.endpoint = FL_BYTES("10.0.0.7:8000");
        fl_selection_delete_worker(f->service, id, NULL);
        fixture_upsert(f->service, &worker);
        fl_buf_clear(&out);
        fl_selection_metrics_write(f->service, &out);
        fl_buf_clear(&out);
        fl_selection_picks(f->service, &(struct fl_picks_filter){.limit = 5}, &out);
        fl_selection_sweep(f->service, 1000, 10);
    }
    fl_buf_fini(&out);
    return NULL;
}

static void assert_idle(struct fixture *f)
{
    struct fl_loads loads;
    fl_selection_loads(f->service, (struct fl_bytes){0}, (struct fl_bytes){0}, &loads);
    for (size_t i = 0; i < loads.count; i++) {
        assert_int_equal(loads.partitions[i].tombstoned_ranks, 0);
        for (size_t k = 0; k < loads.partitions[i].rank_count; k++) {
            assert_int_equal(loads.partitions[i].ranks[k].active_prefill_tokens, 0);
            assert_int_equal(loads.partitions[i].ranks[k].active_decode_blocks, 0);
            assert_int_equal(loads.partitions[i].ranks[k].active_requests, 0);
        }
    }
    fl_loads_fini(&loads);
}

/* acceptance test 7: conservation under 4 threads; loads and active blocks end at exactly 0; traps
 * 24, 45 */
static void bookings_made_equal_bookings_freed(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    for (uint64_t id = 1; id <= 6; id++)
        fixture_add(&f, id);
    atomic_store(&is_over, false);
    pthread_t threads[THREADS], other;
    struct user users[THREADS];
    pthread_create(&other, NULL, disturb, &f);
    for (uint32_t t = 0; t < THREADS; t++) {
        users[t] = (struct user){.f = &f, .seed = t + 1, .number = t};
        pthread_create(&threads[t], NULL, use, &users[t]);
    }
    uint64_t booked = 0, freed = 0;
    for (uint32_t t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
        booked += users[t].booked;
        freed += users[t].freed;
    }
    atomic_store(&is_over, true);
    pthread_join(other, NULL);
    struct fl_selection_totals totals = fixture_totals(&f);
    uint64_t by_cause = 0;
    for (int i = 0; i < FL_FREE_CAUSE_COUNT; i++)
        by_cause += totals.freed[i];
    assert_true(booked > 0);
    assert_int_equal(totals.booked, booked);
    assert_int_equal(freed, booked);
    assert_int_equal(by_cause, booked);
    assert_int_equal(totals.held, 0);
    assert_idle(&f);
    struct fl_partition *partition =
        fl_partition_find(f.service, FL_BYTES("m"), (struct fl_bytes){0});
    fl_selector_check(partition->selector);
    fixture_fini(&f);
}

/* ---- herd ---- */

static void *burst(void *arg)
{
    struct user *user = arg;
    static const uint64_t hashes[512] = {1};
    for (uint32_t i = 0; i < 50; i++) {
        char id[32];
        snprintf(id, sizeof id, "h%u-%u", user->number, i);
        struct fl_select_request request = fixture_request(user->f, id);
        request.prompt =
            (struct fl_prompt){.sequence_hashes = hashes, .hash_count = 512, .isl_tokens = 8192};
        struct fl_ticket ticket;
        struct fl_select_result result = {0};
        fl_select_and_reserve(user->f->service, &request, &ticket, &result, NULL);
        fl_select_result_fini(&result);
    }
    return NULL;
}

/* acceptance test 14, trap 16: 200 identical 8 K prompts on 8 idle ranks from 4 threads: no rank
 * above twice the mean */
static void identical_prompts_do_not_herd(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    for (uint64_t id = 1; id <= 8; id++)
        fixture_add(&f, id);
    pthread_t threads[THREADS];
    struct user users[THREADS];
    for (uint32_t t = 0; t < THREADS; t++) {
        users[t] = (struct user){.f = &f, .number = t};
        pthread_create(&threads[t], NULL, burst, &users[t]);
    }
    for (uint32_t t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    struct fl_loads loads;
    fl_selection_loads(f.service, FL_BYTES("m"), (struct fl_bytes){0}, &loads);
    uint64_t sum = 0;
    for (size_t k = 0; k < 8; k++) {
        assert_true(loads.partitions[0].ranks[k].active_requests <= 2 * 200 / 8);
        sum += loads.partitions[0].ranks[k].active_requests;
    }
    assert_int_equal(sum, 200);
    fl_loads_fini(&loads);
    fixture_fini(&f);
}

/* ---- mail ---- */

static struct fl_mail *booked_mail(struct fixture *f, const char *id, struct fl_ticket_name *name)
{
    struct fl_select_request request = fixture_request(f, id);
    struct fl_ticket ticket;
    struct fl_select_result result = {0};
    assert_int_equal(fl_select_and_reserve(f->service, &request, &ticket, &result, NULL), 0);
    assert_int_equal(fl_tickets_new(&f->service->tickets, name), 0);
    assert_true(fl_tickets_decide(&f->service->tickets, *name, 0));
    return fl_mail_new(f->service, (struct fl_ticket){name->slot, name->generation},
                       (struct fl_waiter){3, 4}, result);
}

/* selection.md 2.5, trap 21: a booking made at the same instant as the cancel is freed once, when
 * its mail is opened */
static void cancelled_mail_frees_its_booking(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    fixture_add(&f, 1);
    struct fl_ticket_name name;
    struct fl_select_done done;

    struct fl_mail *mail = booked_mail(&f, "kept", &name);
    assert_int_equal(fl_mail_open(mail, &done), 1);
    assert_int_equal(done.rc, 0);
    assert_int_equal(done.waiter.slot, 3);
    assert_int_equal(done.waiter.generation, 4);
    assert_true(fl_bytes_eq(done.result.selection_id, FL_BYTES("kept")));
    fl_select_result_fini(&done.result);
    assert_int_equal(fl_ticket_cancel(f.service, done.ticket, FL_FREE_CLIENT_GONE), FL_ENOT_FOUND);

    mail = booked_mail(&f, "dropped", &name);
    struct fl_ticket ticket = {name.slot, name.generation};
    assert_int_equal(fl_ticket_cancel(f.service, ticket, FL_FREE_CLIENT_GONE), 0);
    assert_int_equal(fl_ticket_cancel(f.service, ticket, FL_FREE_TIMEOUT), 0);
    assert_int_equal(fl_mail_open(mail, &done), 1);
    assert_int_equal(done.rc, FL_ECANCELLED);
    fl_select_result_fini(&done.result);
    struct fl_selection_totals totals = fixture_totals(&f);
    assert_int_equal(totals.freed[FL_FREE_CLIENT_GONE], 1);
    assert_int_equal(totals.freed[FL_FREE_TIMEOUT], 0);
    assert_int_equal(totals.held, 1);
    fixture_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bookings_made_equal_bookings_freed),
        cmocka_unit_test(identical_prompts_do_not_herd),
        cmocka_unit_test(cancelled_mail_frees_its_booking),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
