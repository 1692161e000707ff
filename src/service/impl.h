/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of service/ share. Private to the folder. */
#ifndef FL_SERVICE_IMPL_H
#define FL_SERVICE_IMPL_H

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>

#include "base/map.h"
#include "kvevents/kvevents.h"
#include "kvindex/hash.h"
#include "kvindex/kvindex.h"
#include "selection/explain.h"
#include "selection/policy.h"
#include "selection/queue.h"
#include "selection/reservation.h"
#include "selection/selector.h"
#include "service/runtime.h"
#include "service/service.h"
#include "service/stats.h"

/* ---- records: immutable, counted ---- */

#define FL_REASONS_MAX 8
#define FL_REASON_TEXT 192

/* A worker as it was sent, its strings in one piece of memory. Readers hold references. */
struct fl_record {
    _Atomic uint32_t refs;
    enum fl_lifecycle lifecycle; /* set before it is shared */
    struct fl_worker worker;
    uint32_t start_rank, rank_count;
    uint64_t *taints; /* hashes */
    const char *reasons[FL_REASONS_MAX];
    size_t reason_count;
    char reason_texts[FL_REASONS_MAX][FL_REASON_TEXT];
    struct fl_rank_endpoint *endpoints;
    struct fl_bytes *taint_texts;
    uint8_t *text; /* all strings */
};

/* Copies, validates: 0, or FL_EBAD_REQUEST beyond a cap or for text that is not UTF-8. Reasons that
 * a record alone can have are noted. `taint_seed` makes the hashes. */
int fl_record_new(const struct fl_worker *worker, const struct fl_router_config *config,
                  uint64_t taint_seed, struct fl_record **record, struct fl_error *err);
struct fl_record *fl_record_ref(struct fl_record *record);
/* NULL allowed. */
void fl_record_unref(struct fl_record *record);
void fl_record_add_reason(struct fl_record *record, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A copy with another lifecycle. */
struct fl_record *fl_record_with(const struct fl_record *record, enum fl_lifecycle lifecycle);
/* `out` holds a reference. */
void fl_record_lend(struct fl_record *record, struct fl_worker_record *out);
/* The KV-event endpoint of a rank, absent if it has none. */
struct fl_bytes fl_record_endpoint(const struct fl_record *record, uint32_t dp_rank);

/* ---- partitions ---- */

/* Each costs an index and a selector, and whoever may register workers can name any number. */
#define FL_PARTITIONS_MAX 1024

struct fl_partition {
    struct fl_selection *service;
    char *model_text, *group_text;
    struct fl_bytes model_name, routing_group;
    uint64_t hash;
    /* fixed by the first schedulable worker; 0 before */
    _Atomic uint32_t block_tokens;
    _Atomic bool is_eagle;
    struct fl_kvindex *index;    /* NULL: none is kept */
    struct fl_map_u64 listeners; /* events.c: the event thread's */
    struct fl_stat_histogram hit_ratio;
    /* What the section's memory wants, noted by whoever left it last (fl_active_wants). */
    _Atomic size_t wish_slab;
    _Atomic uint32_t wish_buckets;

    alignas(64) pthread_mutex_t section;
    struct fl_selector *selector;
    uint64_t booked, freed[FL_FREE_CAUSE_COUNT], expired;
};

/* Immutable; a new one is published for each new partition. */
struct fl_partition_table {
    struct fl_partition_table *older; /* readers may still look at it: freed with the service */
    size_t count;
    struct fl_partition *at[];
};

/* NULL: unknown. Any thread. */
struct fl_partition *fl_partition_find(struct fl_selection *service, struct fl_bytes model_name,
                                       struct fl_bytes routing_group);
/* Makes it if needed; NULL beyond FL_PARTITIONS_MAX. Under the catalog lock. */
struct fl_partition *fl_partition_get(struct fl_selection *service, struct fl_bytes model_name,
                                      struct fl_bytes routing_group);
void fl_partitions_free(struct fl_selection *service);

/* Enters the section; gives its memory what it wished for first. Returns when it was entered (ns).
 */
uint64_t fl_section_enter(struct fl_partition *partition);
/* Leaves it and counts the time it was held; returns when that was. */
uint64_t fl_section_leave(struct fl_partition *partition, uint64_t entered_ns);
/* Without the clock: for control paths and reading. */
void fl_section_lock(struct fl_partition *partition);
void fl_section_unlock(struct fl_partition *partition);

/* ---- KV events (events.c) ----
 *
 * The index has one writer, the event thread. What the catalog changes is posted to it and done in
 * the order of the posts, so a rank that leaves and comes back is cleared before it is made anew.
 * All are harmless for a partition without an index. */

/* The index knows the rank by its selector slot from now on, and its endpoint is listened to,
 * unless another rank of the worker has the same endpoint: then one listener carries both. */
void fl_events_add_rank(struct fl_partition *partition, const struct fl_record *record,
                        uint32_t dp_rank, uint32_t slot);
/* Listener and blocks of the rank go. */
void fl_events_remove_rank(struct fl_partition *partition, uint64_t worker_id, uint32_t dp_rank);
/* The same for all ranks, those seen only in events included. */
void fl_events_remove_worker(struct fl_partition *partition, uint64_t worker_id);
/* Starts and ends with the partition; the second **blocks**. */
void fl_events_open(struct fl_partition *partition);
void fl_events_close(struct fl_partition *partition);
/* Appends the families of the event side. */
int fl_events_write_metrics(struct fl_selection *service, struct fl_buf *out);

/* ---- the service ---- */

struct fl_workspace {
    uint64_t *hashes;
    size_t hash_cap;
    uint64_t *allowed;
    size_t allowed_cap;
    uint64_t required[FL_TAINTS_MAX];
    struct fl_taint_wish preferred[FL_TAINTS_MAX];
    struct fl_kvindex_matches matches;
    struct fl_choice choice;
};
#define FL_WORKSPACES 16
/* A workspace that grew beyond this for one huge prompt is not kept. */
#define FL_WORKSPACE_KEEP_HASHES 65536

void fl_workspaces_free(struct fl_selection *service);

struct fl_selection {
    /* set at build, read by all */
    struct fl_runtime *runtime;
    enum fl_role role;
    struct fl_router_config config;
    const struct fl_policy *policy;
    uint64_t taint_seed;
    bool looks_up;   /* overlaps are asked of the index */
    char labels[64]; /* role="..." */
    struct fl_event_source sweep;
    uint64_t next_sweep_ms; /* the event thread's */

    pthread_mutex_t catalog;
    struct fl_map_u64 workers; /* id -> struct worker of catalog.c */

    _Atomic(struct fl_partition_table *) partitions;
    _Atomic bool is_stopping;
    _Atomic uint32_t schedulable;
    _Atomic uint64_t held, held_peak;
    pthread_mutex_t empty_lock; /* for fl_selection_stop() to wait with */
    pthread_cond_t empty;       /* held has become 0 while stopping */
    _Atomic(struct fl_workspace *) workspaces[FL_WORKSPACES];
    struct fl_reservations reservations;
    struct fl_tickets tickets;
    struct fl_explain *explain;
    struct fl_stats stats;
    struct fl_kv_counters kv;
    _Atomic uint32_t listeners[FL_KV_FAILED + 1]; /* by state */
};

void fl_catalog_fini(struct fl_selection *service);
/* Counts of workers by lifecycle. */
void fl_catalog_count(struct fl_selection *service, uint32_t counts[FL_LIFECYCLE_COUNT]);

/* Ends a reservation that was taken out of the index; frees it. */
void fl_reservation_end(struct fl_selection *service, struct fl_reservation *reservation,
                        enum fl_free_cause cause);

/* Zeroed memory that starts on a cache line; fl_line_free() it. Aborts when memory is gone. */
void *fl_line_calloc(size_t bytes);
void fl_line_free(void *p);

/* Names given absent are "default". */
static inline struct fl_bytes fl_name_or_default(struct fl_bytes name)
{
    return name.n == 0 ? FL_BYTES("default") : name;
}

#endif
