/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of a service share: a runtime with a clock of its own, a service, short calls. */
#ifndef FL_TESTS_SERVICE_FIXTURE_H
#define FL_TESTS_SERVICE_FIXTURE_H

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "fairlead/selection.h"
#include "service/service.h"

struct fixture {
    _Atomic uint64_t now_ms;
    struct fl_runtime *runtime;
    struct fl_selection *service;
    struct fl_executor executor;
};

static inline uint64_t fixture_now(void *clock)
{
    return atomic_load(&((struct fixture *)clock)->now_ms);
}

static inline void fixture_post(struct fl_executor *executor, struct fl_mail *mail)
{
    (void)executor;
    (void)mail;
    fail_msg("nothing is queued in this version, so there is no mail");
}

/* Configuration as most tests want it: no events, ties seeded. */
static inline struct fl_router_config fixture_config(void)
{
    struct fl_router_config config;
    fl_router_config_init(&config);
    config.use_kv_events = false;
    config.seed = (struct fl_maybe_u64){true, 1};
    return config;
}

static inline struct fl_selection *fixture_build(struct fl_runtime *runtime, enum fl_role role,
                                                 const struct fl_router_config *config)
{
    struct fl_selection_builder *builder = fl_selection_builder_new(runtime, role);
    assert_int_equal(fl_selection_builder_set_config(builder, config), 0);
    struct fl_error err = {0};
    struct fl_selection *service = fl_selection_build(builder, &err);
    fl_selection_builder_free(builder);
    if (service == NULL)
        fail_msg("build: %s", err.text);
    return service;
}

static inline void fixture_init(struct fixture *f, const struct fl_router_config *config)
{
    memset(f, 0, sizeof *f);
    f->now_ms = 1000;
    f->executor.post = fixture_post;
    struct fl_runtime_config runtime = {.now_ms = fixture_now, .clock = f};
    f->runtime = fl_runtime_new(&runtime, NULL);
    assert_non_null(f->runtime);
    f->service = fixture_build(f->runtime, FL_ROLE_AGGREGATED, config);
}

static inline void fixture_fini(struct fixture *f)
{
    struct fl_selection_totals totals;
    fl_selection_totals(f->service, &totals);
    uint64_t freed = 0;
    for (int i = 0; i < FL_FREE_CAUSE_COUNT; i++)
        freed += totals.freed[i];
    assert_int_equal(totals.booked, freed + totals.held); /* selection.md 17.2, in every test */
    assert_int_equal(totals.load_underflows, 0);
    fl_selection_free(f->service);
    fl_runtime_free(f->runtime);
}

static inline struct fl_worker fixture_worker(uint64_t id)
{
    return (struct fl_worker){.worker_id = id,
                              .model_name = FL_BYTES("m"),
                              .endpoint = FL_BYTES("10.0.0.5:8000"),
                              .block_size = 16};
}

static inline enum fl_lifecycle fixture_upsert(struct fl_selection *service,
                                               const struct fl_worker *worker)
{
    struct fl_worker_record record = {0};
    struct fl_error err = {0};
    if (fl_selection_upsert_worker(service, worker, &record, &err) != 0)
        fail_msg("upsert: %s", err.text);
    enum fl_lifecycle lifecycle = record.lifecycle;
    fl_worker_record_fini(&record);
    return lifecycle;
}

static inline void fixture_add(struct fixture *f, uint64_t id)
{
    struct fl_worker worker = fixture_worker(id);
    assert_int_equal(fixture_upsert(f->service, &worker), FL_LIFECYCLE_SCHEDULABLE);
}

static inline struct fl_select_request fixture_request(struct fixture *f, const char *id)
{
    return (struct fl_select_request){.model_name = FL_BYTES("m"),
                                      .selection_id = fl_bytes_of(id),
                                      .prompt = {.isl_tokens = 512},
                                      .executor = &f->executor};
}

/* Books `id`; returns the code, and the chosen worker in *worker (NULL allowed). */
static inline int fixture_reserve(struct fixture *f, const char *id, uint64_t *worker)
{
    struct fl_select_request request = fixture_request(f, id);
    struct fl_select_result result = {0};
    struct fl_ticket ticket;
    int rc = fl_select_and_reserve(f->service, &request, &ticket, &result, NULL);
    if (worker != NULL)
        *worker = result.rank.worker_id;
    fl_select_result_fini(&result);
    return rc;
}

static inline int fixture_free(struct fixture *f, const char *id, enum fl_free_cause cause)
{
    return fl_reservation_free(f->service, fl_bytes_of(id), cause);
}

static inline struct fl_selection_totals fixture_totals(struct fixture *f)
{
    struct fl_selection_totals totals;
    fl_selection_totals(f->service, &totals);
    return totals;
}

#endif
