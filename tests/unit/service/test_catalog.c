/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "unit/service/fixture.h"

static struct fl_router_config with_events(void)
{
    struct fl_router_config config = fixture_config();
    config.use_kv_events = true;
    return config;
}

/* selection.md 4.3, the exact strings; 4.2, which endpoints are valid; acceptance test 10 */
static void reasons_are_the_exact_strings(void **state)
{
    (void)state;
    struct fl_worker good = fixture_worker(1);
    good.kv_events_endpoint = FL_BYTES("tcp://10.0.0.5:5557");
    static const struct fl_rank_endpoint only_first[] = {
        {0, {(const uint8_t *)"tcp://10.0.0.5:5557", 19}}};
    static const struct fl_rank_endpoint both[] = {
        {0, {(const uint8_t *)"tcp://[fd00::5]:5557", 20}},
        {1, {(const uint8_t *)"ipc:///run/kv", 13}}};
#define WITH(...)                                                                                  \
    ({                                                                                             \
        struct fl_worker w = good;                                                                 \
        __VA_ARGS__;                                                                               \
        w;                                                                                         \
    })
    const struct {
        struct fl_worker worker;
        const char *reason; /* NULL: schedulable */
    } rows[] = {
        {good, NULL},
        {WITH(w.endpoint = (struct fl_bytes){0}), "endpoint is required"},
        {WITH(w.block_size = 0), "block_size must be greater than 0"},
        {WITH(w.data_parallel_size = (struct fl_maybe_u32){true, 0}),
         "data_parallel_size must be greater than 0"},
        {WITH(w.kv_events_endpoint = (struct fl_bytes){0}),
         "kv_events endpoint is required for dp_rank 0"},
        {WITH(w.data_parallel_start_rank = (struct fl_maybe_u32){true, 3},
              w.kv_events_endpoint = (struct fl_bytes){0}),
         "kv_events endpoint is required for dp_rank 3"},
        {WITH(w.data_parallel_size = (struct fl_maybe_u32){true, 2}),
         "kv_events endpoint is required for dp_rank 0"}, /* 4.2 rule 2: one rank only */
        {WITH(w.data_parallel_size = (struct fl_maybe_u32){true, 2},
              w.kv_events_endpoints = only_first, w.kv_events_endpoint_count = 1),
         "kv_events endpoint is required for dp_rank 1"},
        {WITH(w.data_parallel_size = (struct fl_maybe_u32){true, 2}, w.kv_events_endpoints = both,
              w.kv_events_endpoint_count = 2),
         NULL},
        {WITH(w.data_parallel_size = (struct fl_maybe_u32){true, 2}, w.kv_events_endpoints = both,
              w.kv_events_endpoint_count = 2, w.replay_endpoint = FL_BYTES("tcp://h:1")),
         "replay_endpoint is supported only for data_parallel_size 1"}, /* trap 28 */
        {WITH(w.kv_events_endpoint = FL_BYTES("tcp://10.0.0.5:0")),
         "reconciliation failed: invalid kv_events endpoint 'tcp://10.0.0.5:0'"},
        {WITH(w.kv_events_endpoint = FL_BYTES("tcp://10.0.0.5:65536")),
         "reconciliation failed: invalid kv_events endpoint 'tcp://10.0.0.5:65536'"},
        {WITH(w.kv_events_endpoint = FL_BYTES("tcp://10.0.0.5:65535")), NULL},
        {WITH(w.kv_events_endpoint = FL_BYTES("tcp://:5557")),
         "reconciliation failed: invalid kv_events endpoint 'tcp://:5557'"},
        {WITH(w.kv_events_endpoint = FL_BYTES("tcp://[fd00::5")),
         "reconciliation failed: invalid kv_events endpoint 'tcp://[fd00::5'"},
        {WITH(w.kv_events_endpoint = FL_BYTES("udp://10.0.0.5:1")),
         "reconciliation failed: invalid kv_events endpoint 'udp://10.0.0.5:1'"},
        {WITH(w.kv_events_endpoint = FL_BYTES("inproc://")),
         "reconciliation failed: invalid kv_events endpoint 'inproc://'"},
    };
#undef WITH
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fixture f;
        struct fl_router_config config = with_events();
        fixture_init(&f, &config);
        struct fl_worker_record record = {0};
        assert_int_equal(fl_selection_upsert_worker(f.service, &rows[i].worker, &record, NULL), 0);
        if (rows[i].reason == NULL) {
            if (record.lifecycle != FL_LIFECYCLE_SCHEDULABLE || record.reason_count != 0)
                fail_msg("row %zu: %s", i, record.reasons[0]);
        } else if (record.lifecycle != FL_LIFECYCLE_INCOMPLETE ||
                   strcmp(record.reasons[0], rows[i].reason) != 0) {
            fail_msg("row %zu: %s", i, record.reason_count > 0 ? record.reasons[0] : "none");
        }
        fl_worker_record_fini(&record);
        fixture_fini(&f);
    }
}

/* selection.md 4.3: block size or eagle differs from the partition's, which the first schedulable
 * worker fixed */
static void partition_is_fixed_by_its_first_worker(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    struct fl_worker worker = fixture_worker(1);
    worker.endpoint = (struct fl_bytes){0};
    worker.block_size = 32; /* incomplete: fixes nothing */
    assert_int_equal(fixture_upsert(f.service, &worker), FL_LIFECYCLE_INCOMPLETE);
    fixture_add(&f, 2);
    worker = fixture_worker(3);
    worker.block_size = 32;
    struct fl_worker_record record = {0};
    assert_int_equal(fl_selection_upsert_worker(f.service, &worker, &record, NULL), 0);
    assert_int_equal(record.lifecycle, FL_LIFECYCLE_INCOMPLETE);
    assert_string_equal(record.reasons[0],
                        "reconciliation failed: block_size 32 differs from the partition's 16");
    fl_worker_record_fini(&record);
    worker = fixture_worker(3);
    worker.is_eagle = (struct fl_maybe_bool){true, true};
    assert_int_equal(fixture_upsert(f.service, &worker), FL_LIFECYCLE_INCOMPLETE);
    worker.is_eagle.value = false;
    assert_int_equal(fixture_upsert(f.service, &worker), FL_LIFECYCLE_SCHEDULABLE);
    assert_int_equal(fl_selection_ready(f.service).schedulable, 2);
    fixture_fini(&f);
}

/* selection.md 2.1, 4.1: what a caller can make grow is capped */
static void caps_of_a_record(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    static uint8_t text[1025];
    memset(text, 'x', sizeof text);
    static struct fl_bytes taints[FL_TAINTS_MAX + 1];
    for (size_t i = 0; i < FL_ARRAY_LEN(taints); i++)
        taints[i] = FL_BYTES("t");
    struct fl_worker good = fixture_worker(1);
#define WITH(...)                                                                                  \
    ({                                                                                             \
        struct fl_worker w = good;                                                                 \
        __VA_ARGS__;                                                                               \
        w;                                                                                         \
    })
    const struct {
        const char *why;
        struct fl_worker worker;
        int rc;
    } rows[] = {
        {"endpoint at the cap", WITH(w.endpoint = fl_bytes(text, 1024)), 0},
        {"endpoint above it", WITH(w.endpoint = fl_bytes(text, 1025)), FL_EBAD_REQUEST},
        {"model above it", WITH(w.model_name = fl_bytes(text, 1025)), FL_EBAD_REQUEST},
        {"no UTF-8", WITH(w.routing_group = FL_BYTES("\xc0")), FL_EBAD_REQUEST},
        {"NUL inside", WITH(w.endpoint = FL_BYTES("a\0b")), FL_EBAD_REQUEST},
        {"taints at the cap", WITH(w.taints = taints, w.taint_count = FL_TAINTS_MAX), 0},
        {"taints above it", WITH(w.taints = taints, w.taint_count = FL_TAINTS_MAX + 1),
         FL_EBAD_REQUEST},
        {"ranks at the cap", WITH(w.data_parallel_size = (struct fl_maybe_u32){true, FL_RANKS_MAX}),
         0},
        {"ranks above it",
         WITH(w.data_parallel_size = (struct fl_maybe_u32){true, FL_RANKS_MAX + 1}),
         FL_EBAD_REQUEST},
        {"rank numbers that overflow",
         WITH(w.data_parallel_start_rank = (struct fl_maybe_u32){true, UINT32_MAX}),
         FL_EBAD_REQUEST},
    };
#undef WITH
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_error err = {0};
        int rc = fl_selection_upsert_worker(f.service, &rows[i].worker, NULL, &err);
        if (rc != rows[i].rc)
            fail_msg("row %zu: %s: rc %d %s", i, rows[i].why, rc, err.text);
    }
    fixture_fini(&f);
}

/* Partitions are made by whoever may register workers: capped. */
static void partitions_are_capped(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    char name[16];
    for (uint32_t i = 0; i < 1024; i++) {
        struct fl_worker worker = fixture_worker(i);
        snprintf(name, sizeof name, "m%u", i);
        worker.model_name = fl_bytes_of(name);
        worker.endpoint = (struct fl_bytes){0};
        assert_int_equal(fl_selection_upsert_worker(f.service, &worker, NULL, NULL), 0);
    }
    struct fl_worker worker = fixture_worker(5000);
    worker.model_name = FL_BYTES("one more");
    assert_int_equal(fl_selection_upsert_worker(f.service, &worker, NULL, NULL), FL_EBAD_REQUEST);
    worker.model_name = FL_BYTES("m1023");
    assert_int_equal(fl_selection_upsert_worker(f.service, &worker, NULL, NULL), 0);
    fixture_fini(&f);
}

/* ---- transitions, selection.md 4.4 ---- */

static struct fl_rank_load load_of(struct fixture *f, uint64_t worker, uint32_t rank)
{
    struct fl_loads loads;
    struct fl_rank_load found = {.rank = {UINT64_MAX, 0}};
    fl_selection_loads(f->service, (struct fl_bytes){0}, (struct fl_bytes){0}, &loads);
    for (size_t i = 0; i < loads.count; i++)
        for (size_t k = 0; k < loads.partitions[i].rank_count; k++)
            if (loads.partitions[i].ranks[k].rank.worker_id == worker &&
                loads.partitions[i].ranks[k].rank.dp_rank == rank)
                found = loads.partitions[i].ranks[k];
    fl_loads_fini(&loads);
    return found;
}

static bool has_row(struct fixture *f, uint64_t worker, uint32_t rank)
{
    return load_of(f, worker, rank).rank.worker_id == worker;
}

static uint32_t tombstones(struct fixture *f)
{
    struct fl_loads loads;
    uint32_t count = 0;
    fl_selection_loads(f->service, (struct fl_bytes){0}, (struct fl_bytes){0}, &loads);
    for (size_t i = 0; i < loads.count; i++)
        count += loads.partitions[i].tombstoned_ranks;
    fl_loads_fini(&loads);
    return count;
}

/* acceptance test 8, trap 45: deleted and back with the same endpoint: load kept; with another: 0;
 * the frees of a gone rank count as worker_gone whatever the caller said */
static void bookings_outlive_their_worker(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    fixture_add(&f, 1);
    assert_int_equal(fixture_reserve(&f, "a", NULL), 0);
    assert_int_equal(fixture_reserve(&f, "b", NULL), 0);
    struct fl_worker_record record = {0};
    assert_int_equal(fl_selection_delete_worker(f.service, 1, &record), 0);
    assert_int_equal(record.lifecycle, FL_LIFECYCLE_UNSCHEDULABLE);
    fl_worker_record_fini(&record);
    assert_int_equal(fl_selection_delete_worker(f.service, 1, NULL), FL_ENOT_FOUND);
    assert_int_equal(fixture_reserve(&f, "c", NULL), FL_ENO_ENDPOINTS);
    assert_int_equal(tombstones(&f), 1);
    assert_false(has_row(&f, 1, 0));

    fixture_add(&f, 1); /* a Ready flap */
    assert_int_equal(load_of(&f, 1, 0).active_prefill_tokens, 1024);
    assert_int_equal(tombstones(&f), 0);
    assert_int_equal(fixture_free(&f, "a", FL_FREE_DONE), 0);
    assert_int_equal(fixture_totals(&f).freed[FL_FREE_DONE], 1);

    struct fl_worker moved = fixture_worker(1);
    moved.endpoint = FL_BYTES("10.0.0.9:8000");
    fixture_upsert(f.service, &moved);
    assert_int_equal(load_of(&f, 1, 0).active_prefill_tokens, 0);
    assert_int_equal(tombstones(&f), 1);
    assert_int_equal(fl_reservation_prefill_complete(f.service, FL_BYTES("b")), 0);
    assert_int_equal(fixture_free(&f, "b", FL_FREE_CLIENT_GONE), 0);
    struct fl_selection_totals totals = fixture_totals(&f);
    assert_int_equal(totals.freed[FL_FREE_WORKER_GONE], 1);
    assert_int_equal(totals.freed[FL_FREE_CLIENT_GONE], 0);
    assert_int_equal(tombstones(&f), 0);
    fixture_fini(&f);
}

/* 4.4: upsert with reasons removes from the scheduler; bookings stay, tombstoned */
static void worker_that_becomes_incomplete_takes_no_traffic(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    fixture_add(&f, 1);
    assert_int_equal(fixture_reserve(&f, "a", NULL), 0);
    struct fl_worker worker = fixture_worker(1);
    worker.block_size = 0;
    assert_int_equal(fixture_upsert(f.service, &worker), FL_LIFECYCLE_INCOMPLETE);
    assert_int_equal(fixture_reserve(&f, "b", NULL), FL_ENO_ENDPOINTS);
    assert_int_equal(fl_selection_ready(f.service).schedulable, 0);
    fixture_add(&f, 1);
    assert_int_equal(load_of(&f, 1, 0).active_requests, 1);
    fixture_fini(&f);
}

/* 4.4: ranks removed: not eligible, bookings stay; ranks that stay keep theirs; 12.4, 9.1 test 4 */
static void ranks_of_a_worker_come_and_go(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    struct fl_worker worker = fixture_worker(1);
    worker.data_parallel_start_rank = (struct fl_maybe_u32){true, 2};
    worker.data_parallel_size = (struct fl_maybe_u32){true, 3};
    fixture_upsert(f.service, &worker);
    assert_true(has_row(&f, 1, 2) && has_row(&f, 1, 3) && has_row(&f, 1, 4));
    for (uint32_t rank = 2; rank <= 4; rank++) {
        struct fl_rank pinned = {1, rank};
        char id[2] = {(char)('a' + rank), 0};
        struct fl_select_request request = fixture_request(&f, id);
        request.pinned = &pinned;
        struct fl_ticket ticket;
        struct fl_select_result result = {0};
        assert_int_equal(fl_select_and_reserve(f.service, &request, &ticket, &result, NULL), 0);
        assert_int_equal(result.rank.dp_rank, rank);
        fl_select_result_fini(&result);
    }
    worker.data_parallel_start_rank.value = 3;
    fixture_upsert(f.service, &worker); /* ranks 3, 4, 5 */
    assert_false(has_row(&f, 1, 2));
    assert_int_equal(load_of(&f, 1, 3).active_requests, 1);
    assert_int_equal(load_of(&f, 1, 4).active_requests, 1);
    assert_int_equal(load_of(&f, 1, 5).active_requests, 0);
    assert_int_equal(tombstones(&f), 1);
    assert_int_equal(fl_selection_ready(f.service).schedulable, 1);
    assert_int_equal(fixture_free(&f, "c", FL_FREE_DONE), 0);
    assert_int_equal(fixture_totals(&f).freed[FL_FREE_WORKER_GONE], 1);
    fixture_fini(&f);
}

/* 4.4: another partition: out of the old one, bookings stay there tombstoned, then into the new one
 */
static void worker_moves_between_partitions(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    fixture_add(&f, 1);
    assert_int_equal(fixture_reserve(&f, "a", NULL), 0);
    struct fl_worker worker = fixture_worker(1);
    worker.routing_group = FL_BYTES("blue");
    worker.block_size = 64; /* a partition of its own fixes its own */
    assert_int_equal(fixture_upsert(f.service, &worker), FL_LIFECYCLE_SCHEDULABLE);
    assert_int_equal(fixture_reserve(&f, "b", NULL), FL_ENO_ENDPOINTS);
    assert_int_equal(load_of(&f, 1, 0).active_requests, 0);
    assert_int_equal(tombstones(&f), 1);
    assert_int_equal(fl_selection_ready(f.service).schedulable, 1);
    fixture_fini(&f);
}

/* selection.md 2.3: sorted by (model, group, id), absent names mean all; the record shows what was
 * sent */
static void listing_is_sorted_and_filtered(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    static const struct {
        uint64_t id;
        const char *model, *group;
    } workers[] = {{9, "b", NULL}, {2, "a", "z"}, {5, "a", NULL}, {1, "b", NULL}};
    static const uint64_t order[] = {5, 2, 1, 9};
    for (size_t i = 0; i < FL_ARRAY_LEN(workers); i++) {
        struct fl_worker worker = fixture_worker(workers[i].id);
        worker.model_name = fl_bytes_of(workers[i].model);
        worker.routing_group = fl_bytes_of(workers[i].group);
        fixture_upsert(f.service, &worker);
    }
    struct fl_worker_list list;
    assert_int_equal(
        fl_selection_list_workers(f.service, (struct fl_bytes){0}, (struct fl_bytes){0}, &list), 0);
    assert_int_equal(list.count, 4);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(list.records[i].worker.worker_id, order[i]);
    assert_true(fl_bytes_eq(list.records[0].worker.routing_group, FL_BYTES("default")));
    assert_false(list.records[0].worker.data_parallel_size.is_set);
    fl_worker_list_fini(&list);
    assert_int_equal(fl_selection_list_workers(f.service, FL_BYTES("a"), FL_BYTES("z"), &list), 0);
    assert_int_equal(list.count, 1);
    fl_worker_list_fini(&list);
    fixture_fini(&f);
}

/* selection.md 9.1 test 5 and 9.4, from the request to the pick */
static void taints_reach_the_choice(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    fixture_init(&f, &config);
    fixture_add(&f, 1);
    static const struct fl_bytes h200[] = {{(const uint8_t *)"h200", 4},
                                           {(const uint8_t *)"zone-a", 6}};
    struct fl_worker worker = fixture_worker(2);
    worker.taints = h200;
    worker.taint_count = 2;
    fixture_upsert(f.service, &worker);
    for (int i = 0; i < 20; i++) {
        struct fl_select_request request = fixture_request(&f, NULL);
        request.required_taints = h200;
        request.required_taint_count = 2;
        struct fl_ticket ticket;
        struct fl_select_result result = {0};
        assert_int_equal(fl_select(f.service, &request, &ticket, &result, NULL), 0);
        assert_int_equal(result.rank.worker_id, 2);
        fl_select_result_fini(&result);
        struct fl_taint_weight avoid = {FL_BYTES("zone-a"), -1};
        request.required_taint_count = 0;
        request.preferred_taints = &avoid;
        request.preferred_taint_count = 1;
        assert_int_equal(fl_select(f.service, &request, &ticket, &result, NULL), 0);
        assert_int_equal(result.rank.worker_id, 1);
        fl_select_result_fini(&result);
    }
    fixture_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasons_are_the_exact_strings),
        cmocka_unit_test(partition_is_fixed_by_its_first_worker),
        cmocka_unit_test(caps_of_a_record),
        cmocka_unit_test(partitions_are_capped),
        cmocka_unit_test(bookings_outlive_their_worker),
        cmocka_unit_test(worker_that_becomes_incomplete_takes_no_traffic),
        cmocka_unit_test(ranks_of_a_worker_come_and_go),
        cmocka_unit_test(worker_moves_between_partitions),
        cmocka_unit_test(listing_is_sorted_and_filtered),
        cmocka_unit_test(taints_reach_the_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
