/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at a service: loads, totals, picks, metrics. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/metric.h"
#include "service/impl.h"

/* ---- loads ---- */

static void read_partition(struct fl_partition *partition, struct fl_partition_loads *loads)
{
    /* Room is made outside the section; ranks that came meanwhile are left for the next look. */
    fl_section_lock(partition);
    uint32_t room = fl_selector_rank_count(partition->selector);
    fl_section_unlock(partition);
    *loads = (struct fl_partition_loads){
        .model_name = partition->model_name,
        .routing_group = partition->routing_group,
        .ranks = fl_calloc(room, sizeof *loads->ranks),
    };
    fl_section_lock(partition);
    uint32_t count = fl_selector_rank_count(partition->selector);
    for (uint32_t row = 0; row < count && row < room; row++) {
        struct fl_rank_state state = fl_selector_rank_at(partition->selector, row);
        loads->ranks[loads->rank_count++] = (struct fl_rank_load){
            .rank = {state.worker_id, state.dp_rank},
            .active_prefill_tokens = (uint64_t)state.prefill_tokens,
            .active_decode_blocks = (uint64_t)state.decode_blocks,
            .active_requests = (uint64_t)state.requests,
            .prefill_token_capacity = state.prefill_capacity,
            .total_kv_blocks = {state.total_kv_blocks > 0, state.total_kv_blocks},
        };
    }
    loads->tombstoned_ranks = fl_selector_tombstone_count(partition->selector);
    fl_section_unlock(partition);
}

int fl_selection_loads(struct fl_selection *service, struct fl_bytes model_name,
                       struct fl_bytes routing_group, struct fl_loads *loads)
{
    const struct fl_partition_table *table = atomic_load(&service->partitions);
    size_t count = table != NULL ? table->count : 0;
    *loads = (struct fl_loads){.partitions = fl_calloc(count, sizeof *loads->partitions)};
    for (size_t i = 0; i < count; i++) {
        struct fl_partition *partition = table->at[i];
        if ((model_name.n > 0 && !fl_bytes_eq(model_name, partition->model_name)) ||
            (routing_group.n > 0 && !fl_bytes_eq(routing_group, partition->routing_group)))
            continue;
        read_partition(partition, &loads->partitions[loads->count++]);
    }
    return 0;
}

void fl_loads_fini(struct fl_loads *loads)
{
    for (size_t i = 0; i < loads->count; i++)
        fl_free(loads->partitions[i].ranks);
    fl_free(loads->partitions);
    *loads = (struct fl_loads){0};
}

/* ---- totals ---- */

struct partition_totals {
    uint64_t booked, freed[FL_FREE_CAUSE_COUNT], expired;
    struct fl_selector_counters counters;
    uint32_t tombstones;
};

static struct partition_totals totals_of(struct fl_partition *partition)
{
    struct partition_totals totals;
    fl_section_lock(partition);
    totals.booked = partition->booked;
    memcpy(totals.freed, partition->freed, sizeof totals.freed);
    totals.expired = partition->expired;
    totals.counters = fl_selector_counters(partition->selector);
    totals.tombstones = fl_selector_tombstone_count(partition->selector);
    fl_section_unlock(partition);
    return totals;
}

void fl_selection_totals(struct fl_selection *service, struct fl_selection_totals *totals)
{
    *totals = (struct fl_selection_totals){0};
    const struct fl_partition_table *table = atomic_load(&service->partitions);
    for (size_t i = 0; table != NULL && i < table->count; i++) {
        struct partition_totals one = totals_of(table->at[i]);
        totals->booked += one.booked;
        for (int cause = 0; cause < FL_FREE_CAUSE_COUNT; cause++)
            totals->freed[cause] += one.freed[cause];
        totals->expired += one.expired;
        totals->load_underflows += one.counters.load_underflows;
        totals->section_allocs += one.counters.heap_allocs;
    }
    totals->held = atomic_load_explicit(&service->held, memory_order_acquire);
    totals->held_peak = atomic_load_explicit(&service->held_peak, memory_order_relaxed);
}

/* ---- picks ---- */

#define PICKS_DEFAULT 20

int fl_selection_picks(struct fl_selection *service, const struct fl_picks_filter *filter,
                       struct fl_buf *out)
{
    struct fl_explain_filter explain = {
        .limit = filter->limit != 0 ? filter->limit : PICKS_DEFAULT,
        .id = filter->id,
        .has_worker = filter->worker_id.is_set,
        .worker_id = filter->worker_id.value,
    };
    if (explain.limit > FL_EXPLAIN_ROWS)
        return FL_EBAD_REQUEST;
    return fl_explain_write_json(service->explain, &explain, out);
}

/* ---- metrics ---- */

/* A partition's labels, escaped: role, model, group. */
static void partition_labels(const struct fl_partition *partition, struct fl_buf *labels)
{
    fl_buf_clear(labels);
    fl_buf_printf(labels, "%s,model=\"", partition->service->labels);
    fl_metric_escape(labels, partition->model_name);
    fl_buf_append(labels, FL_BYTES("\",group=\""));
    fl_metric_escape(labels, partition->routing_group);
    fl_buf_append(labels, FL_BYTES("\""));
    fl_buf_append_byte(labels, 0);
}

/* What is written for each partition; all of a family's samples must stand together. */
struct family {
    const char *name, *help;
    enum fl_metric_kind kind;
    void (*write)(const struct family *family, const struct fl_partition *partition,
                  const struct partition_totals *totals, const char *labels, struct fl_buf *out);
};

static void write_booked(const struct family *family, const struct fl_partition *partition,
                         const struct partition_totals *totals, const char *labels,
                         struct fl_buf *out)
{
    (void)partition;
    fl_buf_printf(out, "%s{%s} %llu\n", family->name, labels, (unsigned long long)totals->booked);
}

static void write_freed(const struct family *family, const struct fl_partition *partition,
                        const struct partition_totals *totals, const char *labels,
                        struct fl_buf *out)
{
    (void)partition;
    for (int cause = 0; cause < FL_FREE_CAUSE_COUNT; cause++)
        fl_buf_printf(out, "%s{%s,cause=\"%s\"} %llu\n", family->name, labels,
                      fl_free_cause_name((enum fl_free_cause)cause),
                      (unsigned long long)totals->freed[cause]);
}

static void write_expired(const struct family *family, const struct fl_partition *partition,
                          const struct partition_totals *totals, const char *labels,
                          struct fl_buf *out)
{
    (void)partition;
    fl_buf_printf(out, "%s{%s} %llu\n", family->name, labels, (unsigned long long)totals->expired);
}

static void write_hit_ratio(const struct family *family, const struct fl_partition *partition,
                            const struct partition_totals *totals, const char *labels,
                            struct fl_buf *out)
{
    (void)totals;
    fl_stats_write_hit_ratio(&partition->hit_ratio, family->name, labels, out);
}

static const struct family families[] = {
    {"fairlead_select_booked_total", "Reservations made.", FL_COUNTER, write_booked},
    {"fairlead_select_freed_total", "Reservations ended, by cause.", FL_COUNTER, write_freed},
    {"fairlead_select_reservations_expired_total", "Reservations ended by age.", FL_COUNTER,
     write_expired},
    {"fairlead_select_kv_hit_ratio", "Cached share of the prompt on the chosen rank.", FL_HISTOGRAM,
     write_hit_ratio},
};

static int write_partitions(struct fl_selection *service, struct fl_buf *out)
{
    const struct fl_partition_table *table = atomic_load(&service->partitions);
    size_t count = table != NULL ? table->count : 0;
    struct partition_totals *totals = fl_calloc(count, sizeof *totals);
    uint64_t underflows = 0, allocs = 0, tombstones = 0;
    for (size_t i = 0; i < count; i++) {
        totals[i] = totals_of(table->at[i]);
        underflows += totals[i].counters.load_underflows;
        allocs += totals[i].counters.heap_allocs;
        tombstones += totals[i].tombstones;
    }
    struct fl_buf labels = {0};
    for (size_t f = 0; f < FL_ARRAY_LEN(families); f++) {
        fl_metric_write_head(out, families[f].name, families[f].help, families[f].kind);
        for (size_t i = 0; i < count; i++) {
            partition_labels(table->at[i], &labels);
            families[f].write(&families[f], table->at[i], &totals[i],
                              (const char *)fl_buf_bytes(&labels).p, out);
        }
    }
    fl_buf_fini(&labels);
    fl_free(totals);
    const struct {
        const char *name, *help;
        enum fl_metric_kind kind;
        uint64_t value;
    } sums[] = {
        {"fairlead_select_load_underflow_total", "Loads that would have gone below 0: a bug.",
         FL_COUNTER, underflows},
        {"fairlead_select_section_allocs_total", "Allocations inside a critical section.",
         FL_COUNTER, allocs},
        {"fairlead_select_tombstoned_ranks", "Ranks that left while requests still ran on them.",
         FL_GAUGE, tombstones},
        {"fairlead_select_reservations_peak", "Most reservations held at once since the start.",
         FL_GAUGE, atomic_load_explicit(&service->held_peak, memory_order_relaxed)},
    };
    int rc = 0;
    for (size_t i = 0; i < FL_ARRAY_LEN(sums) && rc == 0; i++) {
        rc = fl_metric_write_head(out, sums[i].name, sums[i].help, sums[i].kind);
        if (rc == 0)
            rc = fl_metric_write_sample(out, sums[i].name, service->labels, (double)sums[i].value);
    }
    return rc;
}

static int write_ranks(struct fl_selection *service, struct fl_buf *out)
{
    static const struct {
        const char *name, *help;
        size_t off;
    } gauges[] = {
        {"fairlead_select_active_prefill_tokens", "Prefill tokens booked and not completed.",
         offsetof(struct fl_rank_load, active_prefill_tokens)},
        {"fairlead_select_active_decode_blocks", "Unique blocks of the requests in flight.",
         offsetof(struct fl_rank_load, active_decode_blocks)},
        {"fairlead_select_active_requests", "Requests in flight.",
         offsetof(struct fl_rank_load, active_requests)},
    };
    struct fl_loads loads;
    fl_selection_loads(service, (struct fl_bytes){0}, (struct fl_bytes){0}, &loads);
    int rc = 0;
    for (size_t g = 0; g < FL_ARRAY_LEN(gauges) && rc == 0; g++) {
        rc = fl_metric_write_head(out, gauges[g].name, gauges[g].help, FL_GAUGE);
        for (size_t i = 0; i < loads.count; i++) {
            for (size_t k = 0; k < loads.partitions[i].rank_count && rc == 0; k++) {
                const struct fl_rank_load *load = &loads.partitions[i].ranks[k];
                uint64_t value;
                memcpy(&value, (const char *)load + gauges[g].off, sizeof value);
                rc = fl_buf_printf(out, "%s{%s,worker_id=\"%llu\",dp_rank=\"%u\"} %llu\n",
                                   gauges[g].name, service->labels,
                                   (unsigned long long)load->rank.worker_id, load->rank.dp_rank,
                                   (unsigned long long)value);
            }
        }
    }
    fl_loads_fini(&loads);
    return rc;
}

static int write_states(struct fl_selection *service, struct fl_buf *out)
{
    static const char *const states[FL_RESERVATION_STATES] = {"claimed", "prefilling", "decoding"};
    static const char reservations[] = "fairlead_select_reservations";
    uint64_t counts[FL_RESERVATION_STATES];
    fl_reservations_count(&service->reservations, counts);
    int rc = fl_metric_write_head(out, reservations, "Reservations by state.", FL_GAUGE);
    for (int i = 0; i < FL_RESERVATION_STATES && rc == 0; i++)
        rc = fl_buf_printf(out, "%s{%s,state=\"%s\"} %llu\n", reservations, service->labels,
                           states[i], (unsigned long long)counts[i]);
    static const char workers[] = "fairlead_select_workers";
    uint32_t lifecycles[FL_LIFECYCLE_COUNT];
    fl_catalog_count(service, lifecycles);
    if (rc == 0)
        rc = fl_metric_write_head(out, workers, "Workers by lifecycle.", FL_GAUGE);
    for (int i = 0; i < FL_LIFECYCLE_COUNT && rc == 0; i++)
        rc = fl_buf_printf(out, "%s{%s,lifecycle=\"%s\"} %u\n", workers, service->labels,
                           fl_lifecycle_name((enum fl_lifecycle)i), lifecycles[i]);
    return rc;
}

int fl_selection_metrics_write(struct fl_selection *service, struct fl_buf *out)
{
    int rc = fl_stats_write(&service->stats, service->labels, out);
    if (rc == 0)
        rc = write_partitions(service, out);
    if (rc == 0)
        rc = write_ranks(service, out);
    if (rc == 0)
        rc = write_states(service, out);
    if (rc == 0 && service->looks_up)
        rc = fl_events_write_metrics(service, out);
    return rc;
}
