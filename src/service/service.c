/* SPDX-License-Identifier: Apache-2.0 */
/* A service: built, stopped, freed; its reservations after they were made; its sweep. */
#include "service/service.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/rng.h"
#include "service/config.h"
#include "service/impl.h"

/* Reservations ended in one go by the event thread; more wait for the next second. */
#define SWEEP_MAX 4096

/* ---- ending a reservation ---- */

const char *fl_free_cause_name(enum fl_free_cause cause)
{
    static const char *const names[FL_FREE_CAUSE_COUNT] = {
        [FL_FREE_DONE] = "done",         [FL_FREE_CLIENT_GONE] = "client_gone",
        [FL_FREE_TIMEOUT] = "timeout",   [FL_FREE_CANCELLED] = "cancelled",
        [FL_FREE_ERROR] = "error",       [FL_FREE_WORKER_GONE] = "worker_gone",
        [FL_FREE_LEASE] = "lease",       [FL_FREE_EXPIRED] = "expired",
        [FL_FREE_SHUTDOWN] = "shutdown",
    };
    return names[cause];
}

void fl_reservation_end(struct fl_selection *service, struct fl_reservation *reservation,
                        enum fl_free_cause cause)
{
    struct fl_partition *partition = reservation->partition;
    struct fl_prompt_blocks *garbage = NULL;
    uint64_t entered_ns = fl_section_enter(partition);
    bool was_tombstone = fl_selector_free(partition->selector, &reservation->hold, &garbage);
    if (was_tombstone)
        cause = FL_FREE_WORKER_GONE;
    partition->freed[cause]++;
    partition->expired += cause == FL_FREE_EXPIRED;
    fl_section_leave(partition, entered_ns);
    uint64_t held = atomic_fetch_sub(&service->held, 1) - 1;
    if (held == 0 && atomic_load(&service->is_stopping)) {
        pthread_mutex_lock(&service->empty_lock);
        pthread_cond_broadcast(&service->empty);
        pthread_mutex_unlock(&service->empty_lock);
    }
    FL_LOG(FL_LOG_DEBUG, "reservation ended", "id=%.*s cause=%s", (int)reservation->id_bytes,
           (const char *)reservation->id, fl_free_cause_name(cause));
    fl_prompt_blocks_free(garbage);
    fl_free(reservation);
}

int fl_reservation_free(struct fl_selection *service, struct fl_bytes id, enum fl_free_cause cause)
{
    assert(cause < FL_FREE_CAUSE_COUNT);
    struct fl_reservation *reservation = fl_reservations_take(&service->reservations, id);
    int rc = reservation != NULL ? 0 : FL_ENOT_FOUND;
    if (rc == 0)
        fl_reservation_end(service, reservation, cause);
    fl_stats_request(fl_stats_here(&service->stats), FL_OP_FREE, rc);
    return rc;
}

/* ---- what a stream tells ---- */

/* News of a request: of an HTTP caller's only if the service says so (7.6). A stream renews by
 * name. */
static void news_of(struct fl_selection *service, struct fl_reservation *reservation)
{
    if (service->config.holder == FL_HOLDER_HTTP && service->config.expiry_refresh)
        fl_reservations_renew(&service->reservations, reservation,
                              fl_runtime_now_ms(service->runtime));
}

int fl_reservation_prefill_complete(struct fl_selection *service, struct fl_bytes id)
{
    struct fl_reservation *reservation = fl_reservations_lock(&service->reservations, id);
    if (reservation == NULL) {
        fl_stats_request(fl_stats_here(&service->stats), FL_OP_PREFILL_COMPLETE, FL_ENOT_FOUND);
        return FL_ENOT_FOUND;
    }
    struct fl_partition *partition = reservation->partition;
    uint64_t entered_ns = fl_section_enter(partition);
    fl_selector_prefill_complete(partition->selector, &reservation->hold);
    fl_section_leave(partition, entered_ns);
    atomic_store_explicit(&reservation->state, FL_RESERVATION_DECODING, memory_order_relaxed);
    news_of(service, reservation);
    fl_reservations_unlock(&service->reservations, reservation);
    fl_stats_request(fl_stats_here(&service->stats), FL_OP_PREFILL_COMPLETE, 0);
    return 0;
}

int fl_reservation_add_output_block(struct fl_selection *service, struct fl_bytes id,
                                    struct fl_maybe_f64 decay)
{
    int rc = 0;
    struct fl_reservation *reservation = NULL;
    if (decay.is_set && !(decay.value >= 0 && decay.value <= 1))
        rc = FL_EBAD_REQUEST;
    else if ((reservation = fl_reservations_lock(&service->reservations, id)) == NULL)
        rc = FL_ENOT_FOUND;
    if (rc == 0) {
        struct fl_partition *partition = reservation->partition;
        uint64_t entered_ns = fl_section_enter(partition);
        fl_selector_add_output_block(partition->selector, &reservation->hold,
                                     decay.is_set ? decay.value : -1);
        fl_section_leave(partition, entered_ns);
        news_of(service, reservation);
        fl_reservations_unlock(&service->reservations, reservation);
    }
    fl_stats_request(fl_stats_here(&service->stats), FL_OP_OUTPUT_BLOCK, rc);
    return rc;
}

int fl_reservation_renew(struct fl_selection *service, struct fl_bytes id)
{
    struct fl_reservation *reservation = fl_reservations_lock(&service->reservations, id);
    if (reservation == NULL)
        return FL_ENOT_FOUND;
    fl_reservations_renew(&service->reservations, reservation, fl_runtime_now_ms(service->runtime));
    fl_reservations_unlock(&service->reservations, reservation);
    return 0;
}

/* ---- sweep ---- */

uint32_t fl_selection_sweep(struct fl_selection *service, uint64_t now_ms, uint32_t max)
{
    bool is_lease = service->config.holder == FL_HOLDER_STREAM;
    uint32_t count = 0;
    struct fl_reservation *taken =
        fl_reservations_take_expired(&service->reservations, now_ms, max);
    while (taken != NULL) {
        struct fl_reservation *next = taken->next;
        if (is_lease)
            FL_LOG(FL_LOG_ERROR, "a stream lost its reservation", "id=%.*s", (int)taken->id_bytes,
                   (const char *)taken->id);
        fl_reservation_end(service, taken, is_lease ? FL_FREE_LEASE : FL_FREE_EXPIRED);
        taken = next;
        count++;
    }
    return count;
}

static bool sweep_on_ready(struct fl_event_source *source, uint64_t now_ms)
{
    struct fl_selection *service = FL_CONTAINER_OF(source, struct fl_selection, sweep);
    if (now_ms < service->next_sweep_ms)
        return false;
    service->next_sweep_ms = now_ms + FL_SWEEP_MS;
    fl_selection_sweep(service, now_ms, SWEEP_MAX);
    return false;
}

static uint64_t sweep_next_ms(const struct fl_event_source *source)
{
    return FL_CONTAINER_OF(source, const struct fl_selection, sweep)->next_sweep_ms;
}

static void sweep_attach(void *to)
{
    struct fl_selection *service = to;
    fl_runtime_attach(service->runtime, &service->sweep);
}

static void sweep_detach(void *to)
{
    struct fl_selection *service = to;
    fl_runtime_detach(service->runtime, &service->sweep);
}

static void nothing(void *to)
{
    (void)to;
}

void fl_selection_settle(struct fl_selection *service)
{
    fl_runtime_call(service->runtime, nothing, NULL);
}

/* ---- builder ---- */

struct fl_selection_builder {
    struct fl_runtime *runtime;
    enum fl_role role;
    struct fl_router_config config;
    char *policy;             /* own copy of config.policy, NULL: default */
    unsigned indexer_threads; /* 0: not given */
};

struct fl_selection_builder *fl_selection_builder_new(struct fl_runtime *runtime, enum fl_role role)
{
    struct fl_selection_builder *builder = fl_calloc(1, sizeof *builder);
    builder->runtime = runtime;
    builder->role = role;
    fl_router_config_init(&builder->config);
    fl_router_config_apply_role(&builder->config, role);
    return builder;
}

void fl_selection_builder_free(struct fl_selection_builder *builder)
{
    if (builder == NULL)
        return;
    fl_free(builder->policy);
    fl_free(builder);
}

int fl_selection_builder_set_config(struct fl_selection_builder *builder,
                                    const struct fl_router_config *config)
{
    char *policy = config->policy != NULL ? fl_strdup(config->policy) : NULL;
    fl_free(builder->policy);
    builder->policy = policy;
    builder->config = *config;
    builder->config.policy = policy;
    return 0;
}

int fl_selection_builder_set_indexer_threads(struct fl_selection_builder *builder, unsigned threads)
{
    if (threads == 0)
        return FL_EBAD_REQUEST;
    builder->indexer_threads = threads;
    return 0;
}

struct fl_selection *fl_selection_build(struct fl_selection_builder *builder, struct fl_error *err)
{
    if (fl_router_config_check(&builder->config, err) < 0)
        return NULL;
    if (builder->indexer_threads != 0)
        FL_LOG(FL_LOG_INFO, "setting without effect",
               "indexer_threads=%u why=\"the event thread is the one writer of the index\"",
               builder->indexer_threads);
    if (builder->config.queue_threshold.is_set)
        FL_LOG(FL_LOG_WARN, "queue threshold set, but nothing waits in this version",
               "threshold=%g effect=\"busy means queue_rejected\"",
               builder->config.queue_threshold.value);

    struct fl_selection *service = fl_line_calloc(sizeof *service);
    service->runtime = builder->runtime;
    service->role = builder->role;
    service->config = builder->config;
    service->policy = builder->config.policy != NULL ? fl_policy_find(builder->config.policy)
                                                     : &fl_policy_kv_cost;
    service->config.policy = service->policy->name; /* the builder's copy ends with the builder */
    service->looks_up = service->policy->uses_index && service->config.use_kv_events;
    if (!service->config.seed.is_set)
        fl_random_bytes(&service->config.seed.value, sizeof(uint64_t));
    fl_random_bytes(&service->taint_seed, sizeof service->taint_seed);
    snprintf(service->labels, sizeof service->labels, "role=\"%s\"", fl_role_name(service->role));
    pthread_mutex_init(&service->catalog, NULL);
    pthread_mutex_init(&service->empty_lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&service->empty, &attr);
    pthread_condattr_destroy(&attr);
    uint64_t life_s = service->config.holder == FL_HOLDER_STREAM
                          ? service->config.lease_s
                          : service->config.active_request_expiry_s;
    fl_reservations_init(&service->reservations, life_s * 1000);
    fl_tickets_init(&service->tickets);
    service->explain = fl_explain_new();
    service->sweep =
        (struct fl_event_source){.fd = -1, .on_ready = sweep_on_ready, .next_ms = sweep_next_ms};
    fl_link_init(&service->sweep.link);
    fl_runtime_ref(service->runtime);
    fl_runtime_call(service->runtime, sweep_attach, service);
    return service;
}

/* ---- end ---- */

struct fl_selection_readiness fl_selection_ready(struct fl_selection *service)
{
    uint32_t schedulable = atomic_load(&service->schedulable);
    return (struct fl_selection_readiness){
        .is_ready = schedulable > 0 && !atomic_load(&service->is_stopping),
        .schedulable = schedulable,
    };
}

/* Streams end in their own time, on other threads; the last one to end tells (fl_reservation_end).
 */
static void wait_until_empty(struct fl_selection *service, uint32_t grace_ms)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    uint64_t end_ns = (uint64_t)end.tv_nsec + (uint64_t)(grace_ms % 1000) * 1000000;
    end.tv_sec += (time_t)(grace_ms / 1000 + end_ns / 1000000000);
    end.tv_nsec = (long)(end_ns % 1000000000);
    pthread_mutex_lock(&service->empty_lock);
    while (atomic_load(&service->held) > 0 &&
           pthread_cond_timedwait(&service->empty, &service->empty_lock, &end) == 0)
        ;
    pthread_mutex_unlock(&service->empty_lock);
}

int fl_selection_stop(struct fl_selection *service, uint32_t grace_ms)
{
    atomic_store(&service->is_stopping, true);
    wait_until_empty(service, grace_ms);
    struct fl_reservation *left =
        fl_reservations_take_expired(&service->reservations, UINT64_MAX, UINT32_MAX);
    while (left != NULL) {
        struct fl_reservation *next = left->next;
        fl_reservation_end(service, left, FL_FREE_SHUTDOWN);
        left = next;
    }
    return 0;
}

void fl_selection_free(struct fl_selection *service)
{
    if (service == NULL)
        return;
    fl_selection_stop(service, 0);
    fl_runtime_call(service->runtime, sweep_detach, service);
    const struct fl_partition_table *table = atomic_load(&service->partitions);
    for (size_t i = 0; table != NULL && i < table->count; i++)
        fl_events_close(table->at[i]);
    fl_catalog_fini(service);
    fl_partitions_free(service);
    fl_workspaces_free(service);
    fl_reservations_fini(&service->reservations);
    fl_tickets_fini(&service->tickets);
    fl_explain_free(service->explain);
    pthread_cond_destroy(&service->empty);
    pthread_mutex_destroy(&service->empty_lock);
    pthread_mutex_destroy(&service->catalog);
    fl_runtime_unref(service->runtime);
    fl_line_free(service);
}
