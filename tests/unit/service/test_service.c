/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "unit/service/fixture.h"

/* The whole life of one request, selection.md 1 and 5.3. */
static void request_is_booked_completed_and_freed(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    struct fl_worker worker = fixture_worker(11);
    worker.block_size = 4;
    worker.total_kv_blocks = (struct fl_maybe_u64){true, 1000};
    fixture_upsert(f.service, &worker);

    static const uint32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct fl_select_request request = fixture_request(&f, "plan-9/decode");
    request.prompt = (struct fl_prompt){.tokens = tokens, .token_count = 8};
    struct fl_ticket ticket;
    struct fl_select_result result = {0};
    assert_int_equal(fl_select_and_reserve(f.service, &request, &ticket, &result, NULL),
                     FL_SELECTION_DONE);
    assert_true(fl_bytes_eq(result.selection_id, FL_BYTES("plan-9/decode")));
    assert_true(fl_bytes_eq(result.endpoint, FL_BYTES("10.0.0.5:8000")));
    assert_true(fl_bytes_eq(result.model_name, FL_BYTES("m")));
    assert_true(fl_bytes_eq(result.routing_group, FL_BYTES("default")));
    assert_int_equal(result.rank.worker_id, 11);
    assert_int_equal(result.block_size, 4);
    assert_int_equal(result.isl_tokens, 8);
    assert_int_equal(result.effective_prefill_tokens, 8);
    assert_int_equal(result.potential_decode_blocks, 2);
    assert_true(result.is_booked && result.tracks_prefill_tokens);
    assert_int_equal(result.sequence_hash_count, 2);
    assert_int_equal(result.total_kv_blocks.value, 1000);
    fl_select_result_fini(&result);
    fl_select_result_fini(&result);

    struct fl_loads loads;
    assert_int_equal(fl_selection_loads(f.service, FL_BYTES("m"), (struct fl_bytes){0}, &loads), 0);
    assert_int_equal(loads.partitions[0].ranks[0].active_prefill_tokens, 8);
    assert_int_equal(loads.partitions[0].ranks[0].active_decode_blocks, 2);
    assert_int_equal(loads.partitions[0].ranks[0].active_requests, 1);
    fl_loads_fini(&loads);

    struct fl_bytes id = FL_BYTES("plan-9/decode");
    assert_int_equal(fl_reservation_prefill_complete(f.service, id), 0);
    assert_int_equal(fl_reservation_prefill_complete(f.service, id), 0);
    assert_int_equal(fl_reservation_free(f.service, id, FL_FREE_DONE), 0);
    assert_int_equal(fl_reservation_free(f.service, id, FL_FREE_DONE), FL_ENOT_FOUND);
    assert_int_equal(fl_reservation_prefill_complete(f.service, id), FL_ENOT_FOUND);

    struct fl_selection_totals totals = fixture_totals(&f);
    assert_int_equal(totals.booked, 1);
    assert_int_equal(totals.freed[FL_FREE_DONE], 1);
    assert_int_equal(totals.held, 0);
    assert_int_equal(totals.held_peak, 1);
    assert_int_equal(totals.section_allocs, 0);
    fixture_fini(&f);
}

/* selection.md 7.1: all 16 cells but `claimed`, which no other call can see (test_reservation) */
static void calls_by_state_of_the_id(void **state)
{
    (void)state;
    enum state { FREE, PREFILLING, DECODING };
    enum call { RESERVE, PREFILL, OUTPUT, END };
    static const struct {
        enum state state;
        enum call call;
        int rc;
    } rows[] = {
        {FREE, RESERVE, 0},
        {PREFILLING, RESERVE, FL_ECONFLICT},
        {DECODING, RESERVE, FL_ECONFLICT},
        {FREE, PREFILL, FL_ENOT_FOUND},
        {PREFILLING, PREFILL, 0},
        {DECODING, PREFILL, 0},
        {FREE, OUTPUT, FL_ENOT_FOUND},
        {PREFILLING, OUTPUT, 0},
        {DECODING, OUTPUT, 0},
        {FREE, END, FL_ENOT_FOUND},
        {PREFILLING, END, 0},
        {DECODING, END, 0},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fixture f;
        struct fl_router_config config = fixture_config();
        fixture_init(&f, &config);
        fixture_add(&f, 1);
        struct fl_bytes id = FL_BYTES("r");
        if (rows[i].state != FREE)
            assert_int_equal(fixture_reserve(&f, "r", NULL), 0);
        if (rows[i].state == DECODING)
            assert_int_equal(fl_reservation_prefill_complete(f.service, id), 0);
        int rc = 0;
        switch (rows[i].call) {
        case RESERVE:
            rc = fixture_reserve(&f, "r", NULL);
            break;
        case PREFILL:
            rc = fl_reservation_prefill_complete(f.service, id);
            break;
        case OUTPUT:
            rc = fl_reservation_add_output_block(f.service, id, (struct fl_maybe_f64){0});
            break;
        case END:
            rc = fl_reservation_free(f.service, id, FL_FREE_DONE);
            break;
        }
        if (rc != rows[i].rc)
            fail_msg("row %zu: rc %d", i, rc);
        fixture_fini(&f);
    }
}

/* selection.md 7.1: ids are service-wide, so one id in two partitions conflicts */
static void id_is_unique_over_partitions(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    fixture_add(&f, 1);
    struct fl_worker other = fixture_worker(2);
    other.model_name = FL_BYTES("other");
    fixture_upsert(f.service, &other);
    assert_int_equal(fixture_reserve(&f, "r", NULL), 0);
    struct fl_select_request request = fixture_request(&f, "r");
    request.model_name = FL_BYTES("other");
    struct fl_ticket ticket;
    struct fl_select_result result = {0};
    struct fl_error err = {0};
    assert_int_equal(fl_select_and_reserve(f.service, &request, &ticket, &result, &err),
                     FL_ECONFLICT);
    assert_non_null(strstr(err.text, "already reserved or being reserved"));
    assert_int_equal(fixture_totals(&f).booked, 1);
    fixture_fini(&f);
}

/* selection.md 2.2 and 5.1: bad input and its code */
static void bad_requests_are_refused(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    fixture_add(&f, 1);
    static const uint64_t hashes[33] = {1};
    static uint8_t long_id[FL_SELECTION_ID_MAX + 1];
    memset(long_id, 'x', sizeof long_id);
    static const uint32_t token = 1;
    static const struct fl_rank pinned = {2, 0};
    static const uint64_t allowed[] = {1};
    static const struct fl_taint_weight infinite = {{(const uint8_t *)"t", 1}, 1e308 * 10};
    struct fl_select_request base = fixture_request(&f, "r");
#define WITH(...)                                                                                  \
    ({                                                                                             \
        struct fl_select_request r = base;                                                         \
        __VA_ARGS__;                                                                               \
        r;                                                                                         \
    })
    const struct {
        const char *why;
        struct fl_select_request request;
        int rc;
    } rows[] = {
        {"fine", base, 0},
        {"unknown model", WITH(r.model_name = FL_BYTES("x")), FL_ENOT_FOUND},
        {"unknown group", WITH(r.routing_group = FL_BYTES("x")), FL_ENOT_FOUND},
        {"no length", WITH(r.prompt.isl_tokens = 0), FL_EBAD_REQUEST},
        {"32 hashes of 512 tokens",
         WITH(r.prompt.sequence_hashes = hashes, r.prompt.hash_count = 32), 0},
        {"more hashes than full blocks",
         WITH(r.prompt.sequence_hashes = hashes, r.prompt.hash_count = 33), FL_EBAD_REQUEST},
        {"prompt at the cap", WITH(r.prompt.isl_tokens = FL_PROMPT_TOKENS_MAX), 0},
        {"prompt above the cap", WITH(r.prompt.isl_tokens = FL_PROMPT_TOKENS_MAX + 1ull),
         FL_EBAD_REQUEST},
        {"tokens above the cap",
         WITH(r.prompt.tokens = &token, r.prompt.token_count = FL_PROMPT_TOKENS_MAX + 1ull),
         FL_EBAD_REQUEST},
        {"id at the cap", WITH(r.selection_id = fl_bytes(long_id, FL_SELECTION_ID_MAX)), 0},
        {"id above the cap", WITH(r.selection_id = fl_bytes(long_id, FL_SELECTION_ID_MAX + 1)),
         FL_EBAD_REQUEST},
        {"id with NUL", WITH(r.selection_id = FL_BYTES("a\0b")), FL_EBAD_REQUEST},
        {"id that is no UTF-8", WITH(r.selection_id = FL_BYTES("\xff")), FL_EBAD_REQUEST},
        {"priority that is no number", WITH(r.priority_jump_s = 0.0 / 0.0), FL_EBAD_REQUEST},
        {"advisory booking", WITH(r.is_advisory = true), FL_EBAD_REQUEST},
        {"no executor", WITH(r.executor = NULL), FL_EBAD_REQUEST},
        {"eagle differs", WITH(r.prompt.is_eagle = (struct fl_maybe_bool){true, true}),
         FL_EBAD_REQUEST},
        {"eagle agrees", WITH(r.prompt.is_eagle = (struct fl_maybe_bool){true, false}), 0},
        {"pinned outside allowed",
         WITH(r.pinned = &pinned, r.has_allowed = true, r.allowed_worker_ids = allowed,
              r.allowed_count = 1),
         FL_EBAD_REQUEST},
        {"nobody allowed", WITH(r.has_allowed = true), FL_ENO_ENDPOINTS},
        {"too many allowed",
         WITH(r.has_allowed = true, r.allowed_worker_ids = allowed,
              r.allowed_count = FL_ALLOWED_MAX + 1),
         FL_EBAD_REQUEST},
        {"infinite weight", WITH(r.preferred_taints = &infinite, r.preferred_taint_count = 1),
         FL_EBAD_REQUEST},
        {"negative credit", WITH(r.override.overlap_score_credit = (struct fl_maybe_f64){true, -1}),
         FL_EBAD_REQUEST},
        {"negative temperature",
         WITH(r.override.router_temperature = (struct fl_maybe_f64){true, -0.5}), FL_EBAD_REQUEST},
    };
#undef WITH
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_ticket ticket;
        struct fl_select_result result = {0};
        int rc = fl_select_and_reserve(f.service, &rows[i].request, &ticket, &result, NULL);
        if (rc != rows[i].rc)
            fail_msg("row %zu: %s: rc %d", i, rows[i].why, rc);
        if (rc == 0)
            assert_int_equal(fl_reservation_free(f.service, result.selection_id, FL_FREE_DONE), 0);
        fl_select_result_fini(&result);
    }
    fixture_fini(&f);
}

/* selection.md 5.2: the deprecated weight is the prefill scale, and 0 also sets the credit to 0 */
static void overrides_change_this_request_only(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    fixture_add(&f, 1);
    struct fl_select_request request = fixture_request(&f, "r");
    request.override.track_prefill_tokens = (struct fl_maybe_bool){true, false};
    struct fl_ticket ticket;
    struct fl_select_result result = {0};
    assert_int_equal(fl_select_and_reserve(f.service, &request, &ticket, &result, NULL), 0);
    assert_false(result.tracks_prefill_tokens);
    fl_select_result_fini(&result);
    request.override = (struct fl_router_override){0};
    request.is_advisory = true;
    assert_int_equal(fl_select(f.service, &request, &ticket, &result, NULL), 0);
    assert_int_equal(result.active_prefill_tokens, 0);
    assert_true(result.tracks_prefill_tokens);
    fl_select_result_fini(&result);
    assert_int_equal(fixture_free(&f, "r", FL_FREE_DONE), 0);
    fixture_fini(&f);
}

/* selection.md 2.3: fl_select books nothing; an id is minted only for a booking */
static void select_books_nothing(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    fixture_add(&f, 1);
    struct fl_select_request request = fixture_request(&f, NULL);
    struct fl_ticket ticket = {7, 7};
    struct fl_select_result result = {0};
    assert_int_equal(fl_select(f.service, &request, &ticket, &result, NULL), 0);
    assert_int_equal(ticket.slot + ticket.generation, 0);
    assert_false(result.is_booked);
    assert_true(fl_bytes_is_absent(result.selection_id));
    fl_select_result_fini(&result);
    assert_int_equal(fl_select_and_reserve(f.service, &request, &ticket, &result, NULL), 0);
    assert_int_equal(result.selection_id.n, 36);
    assert_int_equal(fl_reservation_free(f.service, result.selection_id, FL_FREE_DONE), 0);
    fl_select_result_fini(&result);
    assert_int_equal(fixture_totals(&f).booked, 1);
    fixture_fini(&f);
}

/* selection.md 2.3: fl_select_wait is for threads without a loop */
static void wait_serves_threads_without_executor(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    fixture_add(&f, 1);
    struct fl_select_request request = fixture_request(&f, "r");
    struct fl_select_result result = {0};
    assert_int_equal(fl_select_wait(f.service, &request, FL_RESERVE, &result, NULL),
                     FL_EBAD_REQUEST);
    request.executor = NULL;
    assert_int_equal(fl_select_wait(f.service, &request, FL_RESERVE, &result, NULL), 0);
    fl_select_result_fini(&result);
    assert_int_equal(fl_select_wait(f.service, &request, 0, &result, NULL), 0);
    fl_select_result_fini(&result);
    assert_int_equal(fixture_totals(&f).booked, 1);
    assert_int_equal(fl_ticket_cancel(f.service, (struct fl_ticket){0}, FL_FREE_CANCELLED),
                     FL_ENOT_FOUND);
    fixture_fini(&f);
}

/* selection.md 6.1, explicit form; 6.3: books at once, on an unknown worker or rank not found */
static void explicit_reserve_books_where_told(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    fixture_add(&f, 1);
    fixture_add(&f, 2);
    static const uint64_t hashes[] = {11, 12};
    struct fl_reserve_request request = {
        .selection_id = FL_BYTES("r"),
        .model_name = FL_BYTES("m"),
        .rank = {2, 0},
        .prompt = {.sequence_hashes = hashes, .hash_count = 2, .isl_tokens = 40},
    };
    struct fl_select_result result = {0};
    assert_int_equal(fl_reserve(f.service, &request, &result, NULL), 0);
    assert_int_equal(result.effective_prefill_tokens, 40);
    assert_int_equal(result.potential_decode_blocks, 2);
    assert_int_equal(result.rank.worker_id, 2);
    fl_select_result_fini(&result);
    assert_int_equal(fl_reserve(f.service, &request, &result, NULL), FL_ECONFLICT);
    request.selection_id = FL_BYTES("s");
    request.effective_prefill_tokens = (struct fl_maybe_u64){true, 41};
    assert_int_equal(fl_reserve(f.service, &request, &result, NULL), FL_EBAD_REQUEST);
    request.effective_prefill_tokens.value = 40;
    request.rank.dp_rank = 1;
    assert_int_equal(fl_reserve(f.service, &request, &result, NULL), FL_ENOT_FOUND);
    request.rank = (struct fl_rank){9, 0};
    assert_int_equal(fl_reserve(f.service, &request, &result, NULL), FL_ENOT_FOUND);
    assert_int_equal(fixture_totals(&f).booked, 1);
    assert_int_equal(fixture_free(&f, "r", FL_FREE_CANCELLED), 0);
    fixture_fini(&f);
}

/* selection.md 8.1 with no room to wait: busy means queue_rejected; trap 37: capacity is required
 * then */
static void busy_pool_is_rejected_when_a_threshold_is_set(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    config.queue_threshold = (struct fl_maybe_f64){true, 1};
    fixture_init(&f, &config);
    struct fl_worker worker = fixture_worker(1);
    assert_int_equal(fixture_upsert(f.service, &worker), FL_LIFECYCLE_INCOMPLETE);
    worker.max_num_batched_tokens = (struct fl_maybe_u64){true, 1000};
    assert_int_equal(fixture_upsert(f.service, &worker), FL_LIFECYCLE_SCHEDULABLE);
    assert_int_equal(fixture_reserve(&f, "a", NULL), 0);
    assert_int_equal(fixture_reserve(&f, "b", NULL), 0); /* 512 booked before it: not busy */
    assert_int_equal(fixture_reserve(&f, "c", NULL), FL_EQUEUE_REJECTED); /* 1,024 > 1,000 */
    assert_int_equal(fixture_reserve(&f, "c", NULL), FL_EQUEUE_REJECTED); /* no claim was left */
    assert_int_equal(fl_reservation_prefill_complete(f.service, FL_BYTES("a")), 0);
    assert_int_equal(fixture_reserve(&f, "c", NULL), 0);
    fixture_fini(&f);
}

/* ---- expiry, selection.md 7.6 and acceptance test 8 ---- */

/* trap 20: an embedded booking renewed for an hour stays; one that is not is freed with cause
 * `lease` */
static void lease_is_renewed_by_the_stream(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    fixture_add(&f, 1);
    assert_int_equal(fixture_reserve(&f, "lives", NULL), 0);
    assert_int_equal(fixture_reserve(&f, "lost", NULL), 0);
    for (int i = 0; i < 120; i++) {
        f.now_ms += 30000;
        assert_int_equal(fl_reservation_renew(f.service, FL_BYTES("lives")), 0);
        fl_selection_sweep(f.service, f.now_ms, 100);
    }
    struct fl_selection_totals totals = fixture_totals(&f);
    assert_int_equal(totals.freed[FL_FREE_LEASE], 1);
    assert_int_equal(totals.held, 1);
    assert_int_equal(fl_reservation_renew(f.service, FL_BYTES("lost")), FL_ENOT_FOUND);
    assert_int_equal(fixture_free(&f, "lost", FL_FREE_DONE), FL_ENOT_FOUND); /* late: 404 */
    assert_int_equal(fixture_free(&f, "lives", FL_FREE_DONE), 0);
    fixture_fini(&f);
}

/* selection.md 7.6: HTTP callers: 300 s from the last lifecycle call, or absolute; trap 19: idle
 * too */
static void age_limit_of_http_callers(void **state)
{
    (void)state;
    static const struct {
        bool refresh;
        uint64_t completed_s, asked_s;
        bool expired;
    } rows[] = {
        {true, 0, 299, false},  {true, 0, 300, true},     {true, 200, 499, false},
        {true, 200, 500, true}, {false, 200, 299, false}, {false, 200, 300, true},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fixture f;
        struct fl_router_config config = fixture_config();
        config.holder = FL_HOLDER_HTTP;
        config.expiry_refresh = rows[i].refresh;
        fixture_init(&f, &config);
        fixture_add(&f, 1);
        uint64_t start_ms = f.now_ms;
        assert_int_equal(fixture_reserve(&f, "r", NULL), 0);
        if (rows[i].completed_s > 0) {
            f.now_ms = start_ms + rows[i].completed_s * 1000;
            assert_int_equal(fl_reservation_prefill_complete(f.service, FL_BYTES("r")), 0);
        }
        fl_selection_sweep(f.service, start_ms + rows[i].asked_s * 1000, 100);
        struct fl_selection_totals totals = fixture_totals(&f);
        if ((totals.freed[FL_FREE_EXPIRED] == 1) != rows[i].expired)
            fail_msg("row %zu", i);
        assert_int_equal(totals.expired, rows[i].expired);
        fixture_fini(&f);
    }
}

/* selection.md 7.6: the runtime's own timer sweeps */
static void event_thread_sweeps_by_itself(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    fixture_add(&f, 1);
    assert_int_equal(fixture_reserve(&f, "r", NULL), 0);
    f.now_ms += 200000;
    for (int i = 0; i < 1000 && fixture_totals(&f).held > 0; i++)
        fl_selection_settle(f.service); /* each wakes the thread, which looks at the clock */
    assert_int_equal(fixture_totals(&f).freed[FL_FREE_LEASE], 1);
    fixture_fini(&f);
}

/* selection.md 2.3: stop fails what comes and frees what is left with cause `shutdown` */
static void stop_ends_what_is_left(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    fixture_add(&f, 1);
    assert_true(fl_selection_ready(f.service).is_ready);
    assert_int_equal(fixture_reserve(&f, "a", NULL), 0);
    assert_int_equal(fixture_reserve(&f, "b", NULL), 0);
    assert_int_equal(fixture_free(&f, "a", FL_FREE_DONE), 0);
    assert_int_equal(fl_selection_stop(f.service, 0), 0);
    assert_int_equal(fl_selection_stop(f.service, 0), 0);
    assert_int_equal(fixture_reserve(&f, "c", NULL), FL_ESHUTDOWN);
    assert_int_equal(fixture_free(&f, "b", FL_FREE_DONE), FL_ENOT_FOUND);
    assert_int_equal(fixture_totals(&f).freed[FL_FREE_SHUTDOWN], 1);
    assert_false(fl_selection_ready(f.service).is_ready);
    struct fl_worker worker = fixture_worker(2);
    assert_int_equal(fl_selection_upsert_worker(f.service, &worker, NULL, NULL), FL_ESHUTDOWN);
    fixture_fini(&f);
}

static void *free_it_now(void *arg)
{
    struct fixture *f = arg;
    /* It may come before or after the wait has begun; both must end it. */
    assert_int_equal(fixture_free(f, "r", FL_FREE_DONE), 0);
    return NULL;
}

/* selection.md 2.3: stop blocks up to the grace, and no longer than until the last stream has ended
 */
static void stop_waits_for_streams_to_end(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    fixture_add(&f, 1);
    assert_int_equal(fixture_reserve(&f, "r", NULL), 0);
    pthread_t thread;
    pthread_create(&thread, NULL, free_it_now, &f);
    assert_int_equal(fl_selection_stop(f.service, 60000), 0); /* a minute would be a time-out */
    pthread_join(thread, NULL);
    assert_int_equal(fixture_totals(&f).freed[FL_FREE_DONE], 1);
    assert_int_equal(fixture_totals(&f).freed[FL_FREE_SHUTDOWN], 0);
    fixture_fini(&f);
}

/* selection.md 1 and acceptance test 19: two services on one runtime; stopping one leaves the other
 */
static void two_services_share_a_runtime_and_nothing_else(void **state)
{
    (void)state;
    struct fixture prefill, decode;
    struct fl_router_config config = fixture_config();
    fl_router_config_apply_role(&config, FL_ROLE_PREFILL);
    fixture_init(&prefill, &config);
    decode = prefill;
    config = fixture_config();
    fl_router_config_apply_role(&config, FL_ROLE_DECODE);
    decode.service = fixture_build(prefill.runtime, FL_ROLE_DECODE, &config);
    fixture_add(&prefill, 1);
    fixture_add(&decode, 1);
    assert_int_equal(fixture_reserve(&prefill, "p", NULL), 0);
    assert_int_equal(fixture_reserve(&decode, "p", NULL), 0); /* the same id: another service */
    fl_selection_free(prefill.service);
    prefill.service = fixture_build(prefill.runtime, FL_ROLE_PREFILL, &config);
    assert_int_equal(fixture_reserve(&decode, "q", NULL), 0);
    assert_int_equal(fixture_totals(&decode).held, 2);
    fl_selection_free(decode.service);
    fixture_fini(&prefill);
}

/* style.md section 5: "a test runs fifty" */
static void fifty_services_on_one_runtime(void **state)
{
    (void)state;
    struct fl_runtime *runtime = fl_runtime_new(NULL, NULL);
    struct fl_selection *services[50];
    struct fl_router_config config = fixture_config();
    config.use_kv_events = true;
    for (int i = 0; i < 50; i++) {
        services[i] = fixture_build(runtime, FL_ROLE_AGGREGATED, &config);
        struct fl_worker worker = fixture_worker(1);
        worker.kv_events_endpoint = FL_BYTES("inproc://nobody-is-there");
        assert_int_equal(fixture_upsert(services[i], &worker), FL_LIFECYCLE_SCHEDULABLE);
    }
    for (int i = 0; i < 50; i++)
        fl_selection_free(services[i]);
    fl_runtime_free(runtime);
}

/* ---- configuration ---- */

/* acceptance test 19 and selection.md 16 */
static void builder_validates(void **state)
{
    (void)state;
    struct fl_runtime *runtime = fl_runtime_new(NULL, NULL);
    struct fl_router_config good = fixture_config();
    struct fl_selection_builder *builder = fl_selection_builder_new(runtime, FL_ROLE_AGGREGATED);
    assert_int_equal(fl_selection_builder_set_indexer_threads(builder, 0), FL_EBAD_REQUEST);
    assert_int_equal(fl_selection_builder_set_indexer_threads(builder, 7), 0);
    struct fl_router_config bad[8];
    for (size_t i = 0; i < FL_ARRAY_LEN(bad); i++)
        bad[i] = good;
    bad[0].overlap_score_credit = -1;
    bad[1].router_temperature = 1e308 * 10;
    bad[2].host_cache_hit_weight = 1.5;
    bad[3].policy = "kv1";
    bad[4].track_output_blocks = true;
    bad[4].track_active_blocks = false;
    bad[5].queue_threshold = (struct fl_maybe_f64){true, -1};
    bad[6].lease_s = 0;
    bad[7].disk_cache_hit_weight = -0.1;
    for (size_t i = 0; i < FL_ARRAY_LEN(bad); i++) {
        struct fl_error err = {0};
        assert_int_equal(fl_selection_builder_set_config(builder, &bad[i]), 0);
        if (fl_selection_build(builder, &err) != NULL || err.code != FL_ECONFIG ||
            strncmp(err.text, "invalid KV router configuration: ", 33) != 0)
            fail_msg("row %zu: %s", i, err.text);
    }
    fl_selection_builder_set_config(builder, &good);
    fl_selection_free(fl_selection_build(builder, NULL));
    fl_selection_builder_free(builder);
    fl_runtime_free(runtime);
}

static void environment_is_read(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value;
        int rc;
    } rows[] = {
        {"DYN_ROUTER_TEMPERATURE", "0.5", 0},
        {"DYN_ROUTER_TEMPERATURE", "-1", FL_ECONFIG},
        {"DYN_ROUTER_TEMPERATURE", "nan", FL_ECONFIG},
        {"DYN_ROUTER_TEMPERATURE", "1x", FL_ECONFIG},
        {"DYN_ROUTER_HOST_CACHE_HIT_WEIGHT", "1", 0},
        {"DYN_ROUTER_HOST_CACHE_HIT_WEIGHT", "1.01", FL_ECONFIG},
        {"DYN_ROUTER_USE_KV_EVENTS", "Off", 0},
        {"DYN_ROUTER_USE_KV_EVENTS", "maybe", FL_ECONFIG},
        {"DYN_ROUTER_QUEUE_POLICY", "lcfs", FL_ECONFIG},
        {"DYN_ROUTER_QUEUE_POLICY", "wspt", 0},
        {"DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS", "soon", 0},
        {"DYN_ROUTER_EVENT_THREADS", "4", 0},
        {"FAIRLEAD_POLICY", "round-robin", 0},
        {"FAIRLEAD_POLICY", "best", FL_ECONFIG},
        {"FAIRLEAD_SEED", "18446744073709551615", 0},
        {"FAIRLEAD_SEED", "-1", FL_ECONFIG},
        {"FAIRLEAD_GAP_POLICY", "keep", 0},
        {"FAIRLEAD_GAP_POLICY", "drop", FL_ECONFIG},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_router_config config;
        struct fl_error err = {0};
        fl_router_config_init(&config);
        setenv(rows[i].name, rows[i].value, 1);
        int rc = fl_router_config_from_env(&config, &err);
        unsetenv(rows[i].name);
        if (rc != rows[i].rc)
            fail_msg("%s=%s: rc %d %s", rows[i].name, rows[i].value, rc, err.text);
        if (rc < 0 &&
            (strstr(err.text, rows[i].name) == NULL || strstr(err.text, rows[i].value) == NULL))
            fail_msg("%s names neither variable nor value", err.text);
    }
    struct fl_router_config config;
    fl_router_config_init(&config);
    setenv("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT", "2", 1);
    setenv("DYN_ROUTER_OVERLAP_SCORE_CREDIT", "3", 1);
    assert_int_equal(fl_router_config_from_env(&config, NULL), FL_ECONFIG);
    setenv("DYN_ROUTER_OVERLAP_SCORE_CREDIT", "2", 1);
    assert_int_equal(fl_router_config_from_env(&config, NULL), 0);
    assert_true(config.overlap_score_credit == 2);
    unsetenv("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT");
    unsetenv("DYN_ROUTER_OVERLAP_SCORE_CREDIT");

    /* the preset, and that what is explicit wins */
    fl_router_config_init(&config);
    setenv("DYN_ROUTER_LOAD_AWARE", "1", 1);
    setenv("DYN_ROUTER_ASSUME_KV_REUSE", "yes", 1);
    assert_int_equal(fl_router_config_from_env(&config, NULL), 0);
    assert_true(config.overlap_score_credit == 0 && !config.use_kv_events &&
                config.assume_kv_reuse);
    unsetenv("DYN_ROUTER_LOAD_AWARE");
    unsetenv("DYN_ROUTER_ASSUME_KV_REUSE");
}

/* ---- metrics ---- */

static void assert_line(struct fl_bytes text, const char *line)
{
    if (fl_bytes_find(text, fl_bytes_of(line)) == text.n)
        fail_msg("no %s in\n%.*s", line, FL_FMT(text));
}

/* selection.md 17.2 */
static void metrics_carry_the_role(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    struct fl_worker worker = fixture_worker(11);
    worker.model_name = FL_BYTES("m");
    fixture_upsert(f.service, &worker);
    assert_int_equal(fixture_reserve(&f, "a", NULL), 0);
    assert_int_equal(fixture_reserve(&f, "b", NULL), 0);
    assert_int_equal(fixture_reserve(&f, "b", NULL), FL_ECONFLICT);
    assert_int_equal(fixture_free(&f, "a", FL_FREE_CLIENT_GONE), 0);
    struct fl_buf out = {0};
    assert_int_equal(fl_selection_metrics_write(f.service, &out), 0);
    static const char *const lines[] = {
        "fairlead_select_booked_total{role=\"aggregated\",model=\"m\",group=\"default\"} 2\n",
        "fairlead_select_freed_total{role=\"aggregated\",model=\"m\",group=\"default\","
        "cause=\"client_gone\"} 1\n",
        "fairlead_select_freed_total{role=\"aggregated\",model=\"m\",group=\"default\","
        "cause=\"done\"} 0\n",
        "fairlead_select_reservations{role=\"aggregated\",state=\"prefilling\"} 1\n",
        "fairlead_select_reservations_peak{role=\"aggregated\"} 2\n",
        "fairlead_select_requests_total{role=\"aggregated\",op=\"select_and_reserve\",rc=\"ok\"} "
        "2\n",
        "fairlead_select_requests_total{role=\"aggregated\",op=\"select_and_reserve\","
        "rc=\"conflict\"} 1\n",
        "fairlead_select_active_prefill_tokens{role=\"aggregated\",worker_id=\"11\","
        "dp_rank=\"0\"} 512\n",
        "fairlead_select_workers{role=\"aggregated\",lifecycle=\"schedulable\"} 1\n",
        "fairlead_select_duration_seconds_count{role=\"aggregated\",op=\"select_and_reserve\","
        "phase=\"total\"} 3\n",
        "fairlead_select_section_seconds_count{role=\"aggregated\"} 3\n",
        "fairlead_select_kv_hit_ratio_count{role=\"aggregated\",model=\"m\",group=\"default\"} 2\n",
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(lines); i++)
        assert_line(fl_buf_bytes(&out), lines[i]);
    fl_buf_clear(&out);
    assert_int_equal(fl_selection_picks(f.service, &(struct fl_picks_filter){0}, &out), 0);
    assert_line(fl_buf_bytes(&out), "[{\"id\":\"b\"");
    assert_int_equal(fl_selection_picks(f.service, &(struct fl_picks_filter){.limit = 4097}, &out),
                     FL_EBAD_REQUEST);
    fl_buf_fini(&out);
    fixture_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(request_is_booked_completed_and_freed),
        cmocka_unit_test(calls_by_state_of_the_id),
        cmocka_unit_test(id_is_unique_over_partitions),
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(overrides_change_this_request_only),
        cmocka_unit_test(select_books_nothing),
        cmocka_unit_test(wait_serves_threads_without_executor),
        cmocka_unit_test(explicit_reserve_books_where_told),
        cmocka_unit_test(busy_pool_is_rejected_when_a_threshold_is_set),
        cmocka_unit_test(lease_is_renewed_by_the_stream),
        cmocka_unit_test(age_limit_of_http_callers),
        cmocka_unit_test(event_thread_sweeps_by_itself),
        cmocka_unit_test(stop_ends_what_is_left),
        cmocka_unit_test(stop_waits_for_streams_to_end),
        cmocka_unit_test(two_services_share_a_runtime_and_nothing_else),
        cmocka_unit_test(fifty_services_on_one_runtime),
        cmocka_unit_test(builder_validates),
        cmocka_unit_test(environment_is_read),
        cmocka_unit_test(metrics_carry_the_role),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
