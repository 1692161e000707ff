/* SPDX-License-Identifier: Apache-2.0 */
/* SelectionService: which inference worker should serve this prompt?
 *
 * A runtime is made once for a process; services (one for aggregated serving, or one each for
 * prefill and decode) are built on it and know nothing of one another:
 *
 *     fl_runtime --+-- fl_selection "prefill" -- partitions (model, routing group) -- workers,
 * ranks
 *                  +-- fl_selection "decode"  -- ...
 *
 * Life of a request:
 *
 *     fl_select_and_reserve -> first output -> fl_reservation_prefill_complete -> end ->
 * fl_reservation_free
 *
 * Rules that hold for every function below.
 * - Any thread may call, no thread registers itself, nothing blocks unless its comment says so.
 * - Results are 0 (or a small non-negative value) or a negative FL_E* (base/error.h,
 * selection.md 2.2). `err`, NULL allowed, receives a sentence; with NULL nothing is formatted.
 * - Inputs are borrowed for the call; tokens are hashed inside and not kept. Text is UTF-8 without
 * NUL.
 * - A result starts zeroed, and is released by its _fini(), which may be called twice.
 * - Points in time (`deadline_ms`) are on the runtime's monotonic clock.
 *
 * The two headers of base/ included here stand alone and are installed beside this one. */
#ifndef FAIRLEAD_SELECTION_H
#define FAIRLEAD_SELECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fl_runtime;
struct fl_selection;
struct fl_selection_builder;
struct fl_mail;
struct fl_buf;

/* ---- optional numbers: zeroed means absent ---- */

struct fl_maybe_bool {
    bool is_set, value;
};
struct fl_maybe_u32 {
    bool is_set;
    uint32_t value;
};
struct fl_maybe_u64 {
    bool is_set;
    uint64_t value;
};
struct fl_maybe_f64 {
    bool is_set;
    double value;
};

/* ---- runtime ---- */

struct fl_runtime_config {
    /* NULL: CLOCK_MONOTONIC. Called by any thread; never goes backwards. */
    uint64_t (*now_ms)(void *clock);
    void *clock;
    uint32_t max_sockets; /* of the ZMQ context; 0: 4,096 (one worker rank takes two) */
};

/* Starts the event thread. `config` NULL: defaults. NULL with `err` when the system gives no thread
 * or context. */
struct fl_runtime *fl_runtime_new(const struct fl_runtime_config *config, struct fl_error *err);
/* Joins the event thread. Every service on it has been freed: asserted. NULL allowed. */
void fl_runtime_free(struct fl_runtime *runtime);
uint64_t fl_runtime_now_ms(const struct fl_runtime *runtime);

/* ---- configuration (selection.md 16) ---- */

enum fl_role { FL_ROLE_AGGREGATED, FL_ROLE_PREFILL, FL_ROLE_DECODE, FL_ROLE_COUNT };

/* Who can tell that a request still lives (selection.md 7.6): a stream of this process, which
 * renews the lease of its reservation, or an HTTP caller, whose reservations have an age limit. */
enum fl_holder { FL_HOLDER_STREAM, FL_HOLDER_HTTP };

struct fl_router_config {
    const char *policy; /* NULL: the default, "kv-cost". Copied by the builder */
    double overlap_score_credit, overlap_score_credit_decay;
    double prefill_load_scale, decode_active_request_weight;
    double host_cache_hit_weight, disk_cache_hit_weight;
    double router_temperature;
    bool use_kv_events, track_active_blocks, assume_kv_reuse, track_output_blocks;
    bool track_prefill_tokens;
    struct fl_maybe_f64 queue_threshold; /* fraction of a rank's prefill capacity */
    uint32_t active_request_expiry_s, lease_s;
    bool expiry_refresh; /* FAIRLEAD_EXPIRY_REFRESH */
    bool gap_keep;       /* FAIRLEAD_GAP_POLICY=keep */
    enum fl_holder holder;
    struct fl_maybe_u64 seed; /* FAIRLEAD_SEED; absent: from the system */
};

/* The defaults of selection.md 16. */
void fl_router_config_init(struct fl_router_config *config);
/* Reads the variables of selection.md 16 over what `config` holds; 0 or FL_ECONFIG naming variable
 * and value. Rows marked L there are accepted and reported in the log once per call. Strings are
 * lent by the environment. */
int fl_router_config_from_env(struct fl_router_config *config, struct fl_error *err);

/* ---- building a service ---- */

struct fl_selection_builder *fl_selection_builder_new(struct fl_runtime *runtime,
                                                      enum fl_role role);
void fl_selection_builder_free(struct fl_selection_builder *builder);
/* Copies. Unset: the defaults with the role's settings of fl_router_config_apply_role(). */
int fl_selection_builder_set_config(struct fl_selection_builder *builder,
                                    const struct fl_router_config *config);
/* What selection.md 1 advises for a role, over `config`: call before reading the environment. */
void fl_router_config_apply_role(struct fl_router_config *config, enum fl_role role);
/* At least 1; there are no such threads, so the value is reported as unused. */
int fl_selection_builder_set_indexer_threads(struct fl_selection_builder *builder,
                                             unsigned threads);

/* Validates and starts. NULL with `err` (FL_ECONFIG) otherwise. The builder stays the caller's. */
struct fl_selection *fl_selection_build(struct fl_selection_builder *builder, struct fl_error *err);
/* From now on selections get FL_ESHUTDOWN; frees still work. Idempotent. Blocks up to `grace_ms`
 * until no reservation is held; those left are freed with cause `shutdown`. */
int fl_selection_stop(struct fl_selection *service, uint32_t grace_ms);
/* Stops with grace 0 if that was not done. No call may be under way. NULL allowed. */
void fl_selection_free(struct fl_selection *service);

struct fl_selection_readiness {
    bool is_ready; /* not stopping, and at least one schedulable worker */
    uint32_t schedulable;
};
struct fl_selection_readiness fl_selection_ready(struct fl_selection *service);

/* ---- workers (selection.md 4) ---- */

struct fl_rank {
    uint64_t worker_id;
    uint32_t dp_rank;
};

struct fl_rank_endpoint {
    uint32_t dp_rank;
    struct fl_bytes endpoint;
};

/* What a caller says about a worker. Zeroed is the default everywhere; only `worker_id` has no
 * default. FL_RANKS_MAX and FL_TAINTS_MAX bound what one record may hold. */
struct fl_worker {
    uint64_t worker_id;
    struct fl_bytes model_name, routing_group; /* absent: "default" */
    struct fl_bytes endpoint;
    struct fl_bytes kv_events_endpoint; /* of data_parallel_start_rank, one rank only */
    const struct fl_rank_endpoint *kv_events_endpoints; /* wins when not empty */
    size_t kv_events_endpoint_count;
    struct fl_bytes replay_endpoint;
    uint32_t block_size;
    struct fl_maybe_u32 data_parallel_start_rank, data_parallel_size; /* absent: 0 and 1 */
    struct fl_maybe_u64 max_num_batched_tokens, total_kv_blocks;
    struct fl_bytes stable_routing_id;
    struct fl_maybe_bool is_eagle;
    const struct fl_bytes *taints;
    size_t taint_count;
};

#define FL_RANKS_MAX 4096 /* ranks of one worker; the largest deployments run some hundreds */
#define FL_TAINTS_MAX 64  /* taints of one worker, and constraints of one request */

enum fl_lifecycle {
    FL_LIFECYCLE_INCOMPLETE,
    FL_LIFECYCLE_SCHEDULABLE,
    FL_LIFECYCLE_DRAINING,
    FL_LIFECYCLE_UNSCHEDULABLE,
    FL_LIFECYCLE_COUNT
};
/* "incomplete", ... */
const char *fl_lifecycle_name(enum fl_lifecycle lifecycle);

struct fl_worker_record {
    struct fl_worker worker; /* as sent; lent until fini */
    enum fl_lifecycle lifecycle;
    const char *const *reasons; /* the exact strings of selection.md 4.3 */
    size_t reason_count;
    void *refs; /* private */
};
void fl_worker_record_fini(struct fl_worker_record *record);

/* An incomplete record is no error: look at `record->lifecycle`. `record` NULL allowed.
 * FL_EBAD_REQUEST for text that is not UTF-8 or beyond a cap. */
int fl_selection_upsert_worker(struct fl_selection *service, const struct fl_worker *worker,
                               struct fl_worker_record *record, struct fl_error *err);
/* FL_ENOT_FOUND for an unknown id. Bookings stay until their streams end (tombstoned ranks). */
int fl_selection_delete_worker(struct fl_selection *service, uint64_t worker_id,
                               struct fl_worker_record *record);

struct fl_worker_list {
    struct fl_worker_record *records; /* by (model, group, id) */
    size_t count;
};
/* Absent names: all. */
int fl_selection_list_workers(struct fl_selection *service, struct fl_bytes model_name,
                              struct fl_bytes routing_group, struct fl_worker_list *list);
void fl_worker_list_fini(struct fl_worker_list *list);

/* ---- selecting (selection.md 5) ---- */

/* Who waits, in the caller's own numbering. The caller bumps `generation` whenever it reuses
 * `slot`. */
struct fl_waiter {
    uint32_t slot, generation;
};

/* A queued selection; {0, 0} is none. Naming one that has ended is harmless. */
struct fl_ticket {
    uint32_t slot, generation;
};

/* Where completions go: one per loop, or per thread that opens mail. Outlives every ticket that
 * names it. */
struct fl_executor {
    /* Any thread, no lock held. Takes `mail`; neither blocks nor fails. The executor's own thread
     * later gives each mail to fl_mail_open(), in the order of the posts of one sender. */
    void (*post)(struct fl_executor *executor, struct fl_mail *mail);
};

/* Tokens; or hashes with isl_tokens; or isl_tokens alone (load only: no lookup, no prompt blocks).
 * Tokens win over hashes. */
struct fl_prompt {
    const uint32_t *tokens;
    size_t token_count;
    const uint64_t *local_hashes, *sequence_hashes; /* both hash_count long */
    size_t hash_count;
    uint64_t isl_tokens; /* 0: derive from tokens */
    struct fl_bytes lora_name, cache_salt;
    struct fl_maybe_bool is_eagle; /* absent: the partition's; another one is FL_EBAD_REQUEST */
};

struct fl_router_override { /* selection.md 5.2 */
    struct fl_maybe_f64 overlap_score_credit, prefill_load_scale, overlap_score_weight;
    struct fl_maybe_f64 router_temperature;
    struct fl_maybe_bool assume_kv_reuse, track_prefill_tokens;
};

struct fl_taint_weight {
    struct fl_bytes taint;
    double weight; /* finite */
};

#define FL_SELECTION_ID_MAX 256 /* bytes of selection_id and session_id */
#define FL_PROMPT_TOKENS_MAX                                                                       \
    8388608                  /* tokens of one prompt: eight times the longest context in service */
#define FL_ALLOWED_MAX 65536 /* allowed_worker_ids of one request */

struct fl_select_request {
    struct fl_bytes model_name, routing_group; /* absent: "default" */
    struct fl_bytes selection_id; /* becomes the reservation id; absent: a UUIDv4 when booked */
    struct fl_prompt prompt;
    struct fl_router_override override; /* zeroed: none */
    struct fl_maybe_u32 expected_output_tokens;
    double priority_jump_s;
    uint32_t strict_priority;
    struct fl_bytes session_id;
    bool session_is_final;
    const struct fl_rank *affinity, *pinned; /* NULL: none */
    bool has_allowed;                        /* with allowed_count 0: nobody */
    const uint64_t *allowed_worker_ids;      /* any order, duplicates allowed */
    size_t allowed_count;
    const struct fl_bytes *required_taints;
    size_t required_taint_count;
    const struct fl_taint_weight *preferred_taints;
    size_t preferred_taint_count;
    bool is_advisory; /* fl_select() only: never queues */
    struct fl_bytes policy_class;
    uint64_t deadline_ms;         /* 0: none */
    struct fl_executor *executor; /* NULL only with is_advisory and in fl_select_wait() */
    struct fl_waiter waiter;
};

struct fl_rank_tokens {
    uint32_t dp_rank, tokens;
};

struct fl_queue_limit {
    const char *kind; /* "requests", ...; NULL: none */
    uint64_t current, limit;
};

struct fl_select_result {
    struct fl_bytes selection_id, model_name, routing_group, endpoint; /* lent until fini */
    struct fl_rank rank;
    uint32_t block_size;
    /* matched tokens of the chosen worker, cumulative: gpu <= cpu <= disk */
    uint64_t gpu_tokens, cpu_tokens, disk_tokens, longest_matched_tokens;
    const struct fl_rank_tokens *by_rank;
    size_t by_rank_count;
    uint64_t isl_tokens, effective_prefill_tokens, potential_decode_blocks;
    bool is_booked, tracks_prefill_tokens;
    const uint64_t *sequence_hashes; /* of a booking */
    size_t sequence_hash_count;
    /* with is_advisory: the load of the chosen rank before this request */
    uint64_t active_prefill_tokens, prefill_token_capacity;
    struct fl_maybe_u64 total_kv_blocks;
    struct fl_maybe_bool prefill_busy; /* with a queue threshold */
    struct fl_queue_limit limit;       /* with FL_EQUEUE_REJECTED */
    void *refs;                        /* private: what fini releases */
};
void fl_select_result_fini(struct fl_select_result *result);

enum { FL_SELECTION_DONE = 0, FL_SELECTION_QUEUED = 1 };

/* FL_SELECTION_DONE with `result` filled, FL_SELECTION_QUEUED with `ticket` (completed later,
 * exactly once, by mail to request->executor), or a negative code. fl_select() books nothing. In
 * this version nothing waits: with a queue threshold set a busy pool gives FL_EQUEUE_REJECTED, so
 * QUEUED never happens yet (selection/queue.h). */
int fl_select(struct fl_selection *service, const struct fl_select_request *request,
              struct fl_ticket *ticket, struct fl_select_result *result, struct fl_error *err);
int fl_select_and_reserve(struct fl_selection *service, const struct fl_select_request *request,
                          struct fl_ticket *ticket, struct fl_select_result *result,
                          struct fl_error *err);

enum { FL_RESERVE = 1 };
/* For threads without a loop. Blocks up to request->deadline_ms. `flags`: FL_RESERVE or 0. A
 * request that names an executor belongs to a loop: FL_EBAD_REQUEST. */
int fl_select_wait(struct fl_selection *service, const struct fl_select_request *request,
                   unsigned flags, struct fl_select_result *result, struct fl_error *err);

/* Why a booking ended (selection.md 17.2). */
enum fl_free_cause {
    FL_FREE_DONE,
    FL_FREE_CLIENT_GONE,
    FL_FREE_TIMEOUT,
    FL_FREE_CANCELLED,
    FL_FREE_ERROR,
    FL_FREE_WORKER_GONE,
    FL_FREE_LEASE,
    FL_FREE_EXPIRED,
    FL_FREE_SHUTDOWN,
    FL_FREE_CAUSE_COUNT
};
/* "done", "client_gone", ... */
const char *fl_free_cause_name(enum fl_free_cause cause);

/* Idempotent. FL_ENOT_FOUND once the mail was opened, and for {0, 0}. The mail still comes, with
 * FL_ECANCELLED; a booking made at the same instant is freed with `cause`. */
int fl_ticket_cancel(struct fl_selection *service, struct fl_ticket ticket,
                     enum fl_free_cause cause);

struct fl_select_done {
    struct fl_waiter waiter;
    struct fl_ticket ticket;
    int rc;
    struct fl_select_result
        result; /* the receiver calls fini; a waiter that is gone frees the booking */
};
/* On the executor's thread, once per mail; frees the mail. 1: `done` filled; 0: an errand of the
 * library, nothing to do. */
int fl_mail_open(struct fl_mail *mail, struct fl_select_done *done);

/* ---- reservations (selection.md 7) ---- */

struct fl_reserve_request { /* the explicit form of selection.md 6.1: books at once, whatever the
                               load */
    struct fl_bytes selection_id; /* required */
    struct fl_bytes model_name, routing_group;
    struct fl_rank rank;
    struct fl_prompt prompt; /* tokens, or sequence_hashes with isl_tokens, or isl_tokens alone */
    struct fl_maybe_u64 effective_prefill_tokens; /* at most isl; absent: isl */
    struct fl_maybe_bool track_prefill_tokens;
    struct fl_maybe_u32 expected_output_tokens;
};
/* FL_ENOT_FOUND for an unknown worker or rank, FL_ECONFLICT for an id in use. */
int fl_reserve(struct fl_selection *service, const struct fl_reserve_request *request,
               struct fl_select_result *result, struct fl_error *err);

/* Repeats are 0. FL_ENOT_FOUND is normal: freed, expired or never booked. */
int fl_reservation_prefill_complete(struct fl_selection *service, struct fl_bytes id);
/* One more generated block; without effect unless track_output_blocks. `decay` 0..1, else
 * FL_EBAD_REQUEST. */
int fl_reservation_add_output_block(struct fl_selection *service, struct fl_bytes id,
                                    struct fl_maybe_f64 decay);
/* The stream lives: restarts the lease. */
int fl_reservation_renew(struct fl_selection *service, struct fl_bytes id);
/* The second call is FL_ENOT_FOUND. A rank that has left turns every cause into `worker_gone`. */
int fl_reservation_free(struct fl_selection *service, struct fl_bytes id, enum fl_free_cause cause);

/* ---- looking at it ---- */

struct fl_rank_load {
    struct fl_rank rank;
    uint64_t active_prefill_tokens, active_decode_blocks, active_requests;
    uint64_t prefill_token_capacity;
    struct fl_maybe_u64 total_kv_blocks;
};
struct fl_partition_loads {
    struct fl_bytes model_name, routing_group;
    struct fl_rank_load *ranks; /* ascending (worker_id, dp_rank) */
    size_t rank_count;
    uint32_t tombstoned_ranks;
};
struct fl_loads {
    struct fl_partition_loads *partitions;
    size_t count;
    void *refs;
};
int fl_selection_loads(struct fl_selection *service, struct fl_bytes model_name,
                       struct fl_bytes routing_group, struct fl_loads *loads);
void fl_loads_fini(struct fl_loads *loads);

struct fl_selection_totals {
    uint64_t booked, freed[FL_FREE_CAUSE_COUNT];
    uint64_t held, held_peak; /* reservations now, and the most at once */
    uint64_t expired, load_underflows, section_allocs;
};
/* booked == sum of freed + held whenever no call is under way. */
void fl_selection_totals(struct fl_selection *service, struct fl_selection_totals *totals);

struct fl_picks_filter {
    uint32_t limit;                /* 1..4096; 0: 20 */
    struct fl_bytes id;            /* absent: all */
    struct fl_maybe_u64 worker_id; /* chosen */
};
/* Appends a JSON array, newest first (selection.md 9.8). */
int fl_selection_picks(struct fl_selection *service, const struct fl_picks_filter *filter,
                       struct fl_buf *out);
/* Appends Prometheus text (selection.md 17.2), every sample with the role. */
int fl_selection_metrics_write(struct fl_selection *service, struct fl_buf *out);

const char *fl_role_name(enum fl_role role);

#ifdef __cplusplus
}
#endif

#endif
