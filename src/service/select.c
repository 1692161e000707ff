/* SPDX-License-Identifier: Apache-2.0 */
/* One selection, on the caller's own thread (selection.md 5.5). */
#include <assert.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "codec/hash.h"
#include "service/impl.h"

/* ---- workspaces ---- */

static void workspace_free(struct fl_workspace *space)
{
    if (space == NULL)
        return;
    fl_kvindex_matches_fini(&space->matches);
    fl_free(space->hashes);
    fl_free(space->allowed);
    fl_free(space);
}

/* A loop finds its own again: workspaces lie by CPU, and few calls run at once. */
static unsigned workspace_start(void)
{
    int cpu = sched_getcpu();
    return cpu > 0 ? (unsigned)cpu : 0;
}

static struct fl_workspace *workspace_take(struct fl_selection *service)
{
    unsigned start = workspace_start();
    for (unsigned i = 0; i < FL_WORKSPACES; i++) {
        _Atomic(struct fl_workspace *) *place = &service->workspaces[(start + i) % FL_WORKSPACES];
        if (atomic_load_explicit(place, memory_order_relaxed) == NULL)
            continue;
        struct fl_workspace *space = atomic_exchange_explicit(place, NULL, memory_order_acquire);
        if (space != NULL)
            return space;
    }
    return fl_calloc(1, sizeof(struct fl_workspace));
}

static void workspace_give(struct fl_selection *service, struct fl_workspace *space)
{
    if (space->hash_cap > FL_WORKSPACE_KEEP_HASHES) {
        fl_free(space->hashes);
        space->hashes = NULL;
        space->hash_cap = 0;
    }
    unsigned start = workspace_start();
    for (unsigned i = 0; i < FL_WORKSPACES; i++) {
        _Atomic(struct fl_workspace *) *place = &service->workspaces[(start + i) % FL_WORKSPACES];
        struct fl_workspace *none = NULL;
        if (atomic_load_explicit(place, memory_order_relaxed) == NULL &&
            atomic_compare_exchange_strong_explicit(place, &none, space, memory_order_release,
                                                    memory_order_relaxed))
            return;
    }
    workspace_free(space);
}

void fl_workspaces_free(struct fl_selection *service)
{
    for (unsigned i = 0; i < FL_WORKSPACES; i++)
        workspace_free(atomic_exchange(&service->workspaces[i], NULL));
}

/* ---- the prompt ---- */

static int bad(struct fl_error *err, const char *what)
{
    return err != NULL ? fl_error_set(err, FL_EBAD_REQUEST, "%s", what) : FL_EBAD_REQUEST;
}

static int hashes_reserve(struct fl_workspace *space, size_t count)
{
    if (count <= space->hash_cap)
        return 0;
    uint64_t *hashes = fl_try_realloc(space->hashes, count, sizeof *hashes);
    if (hashes == NULL)
        return FL_EINTERNAL;
    space->hashes = hashes;
    space->hash_cap = count;
    return 0;
}

/* isl_tokens and sequence hashes of the ask. Given hashes are used where they are. */
static int read_prompt(const struct fl_partition *partition, const struct fl_prompt *prompt,
                       struct fl_workspace *space, struct fl_ask *ask, struct fl_error *err)
{
    bool is_eagle = atomic_load_explicit(&partition->is_eagle, memory_order_relaxed);
    uint32_t block_tokens = atomic_load_explicit(&partition->block_tokens, memory_order_acquire);
    if (prompt->is_eagle.is_set && prompt->is_eagle.value != is_eagle)
        return bad(err, "is_eagle differs from the partition's");
    if (prompt->token_count > FL_PROMPT_TOKENS_MAX || prompt->isl_tokens > FL_PROMPT_TOKENS_MAX)
        return bad(err, "the prompt is longer than 8388608 tokens");

    ask->isl_tokens = prompt->isl_tokens;
    if (prompt->token_count > 0) {
        struct fl_block_space blocks = {
            .block_tokens = block_tokens,
            .is_eagle = is_eagle,
            .seed = fl_block_seed(prompt->lora_name, prompt->cache_salt),
        };
        if (ask->isl_tokens == 0)
            ask->isl_tokens = prompt->token_count;
        ask->hash_count = fl_block_count(&blocks, prompt->token_count);
        int rc = hashes_reserve(space, ask->hash_count);
        if (rc < 0)
            return rc;
        fl_block_hashes(&blocks, prompt->tokens, prompt->token_count, NULL, space->hashes);
        ask->hashes = space->hashes;
        return 0;
    }
    if (ask->isl_tokens == 0)
        return bad(err, "isl_tokens is required without token_ids");
    if (prompt->hash_count > ask->isl_tokens / block_tokens)
        return bad(err, "more block hashes than isl_tokens has full blocks");
    if (prompt->hash_count > 0 && prompt->sequence_hashes == NULL)
        return bad(err, "sequence_hashes is required without token_ids");
    ask->hashes = prompt->sequence_hashes;
    ask->hash_count = prompt->hash_count;
    return 0;
}

/* ---- the rest of the request ---- */

static bool is_weight(struct fl_maybe_f64 value)
{
    return !value.is_set || (isfinite(value.value) && value.value >= 0);
}

static int read_override(const struct fl_router_override *override, struct fl_ask *ask,
                         struct fl_error *err)
{
    if (!is_weight(override->overlap_score_credit) || !is_weight(override->prefill_load_scale) ||
        !is_weight(override->overlap_score_weight) || !is_weight(override->router_temperature))
        return bad(err, "router_config_override: weights are finite and at least 0");
    if (override->overlap_score_weight.is_set) { /* deprecated alias; the real names win */
        ask->weights.prefill_scale = override->overlap_score_weight.value;
        if (override->overlap_score_weight.value == 0)
            ask->weights.credit = 0;
    }
    if (override->overlap_score_credit.is_set)
        ask->weights.credit = override->overlap_score_credit.value;
    if (override->prefill_load_scale.is_set)
        ask->weights.prefill_scale = override->prefill_load_scale.value;
    if (override->router_temperature.is_set)
        ask->weights.temperature = override->router_temperature.value;
    if (override->assume_kv_reuse.is_set)
        ask->assume_kv_reuse = override->assume_kv_reuse.value;
    if (override->track_prefill_tokens.is_set)
        ask->track_prefill = override->track_prefill_tokens.value;
    return 0;
}

static int ascending(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static int read_allowed(const struct fl_select_request *request, struct fl_workspace *space,
                        struct fl_ask *ask, struct fl_error *err)
{
    ask->has_allowed = request->has_allowed;
    ask->allowed = request->allowed_worker_ids;
    ask->allowed_count = request->has_allowed ? request->allowed_count : 0;
    if (ask->allowed_count > FL_ALLOWED_MAX)
        return bad(err, "allowed_worker_ids has more than 65536 entries");
    for (size_t i = 1; i < ask->allowed_count; i++) {
        if (ask->allowed[i - 1] <= ask->allowed[i])
            continue;
        if (space->allowed_cap < ask->allowed_count) {
            space->allowed = fl_realloc(space->allowed, ask->allowed_count, sizeof *space->allowed);
            space->allowed_cap = ask->allowed_count;
        }
        memcpy(space->allowed, ask->allowed, ask->allowed_count * sizeof *space->allowed);
        qsort(space->allowed, ask->allowed_count, sizeof *space->allowed, ascending);
        ask->allowed = space->allowed;
        break;
    }
    return 0;
}

static int read_taints(const struct fl_selection *service, const struct fl_select_request *request,
                       struct fl_workspace *space, struct fl_ask *ask, struct fl_error *err)
{
    if (request->required_taint_count > FL_TAINTS_MAX ||
        request->preferred_taint_count > FL_TAINTS_MAX)
        return bad(err, "routing_constraints: more than 64 taints");
    for (size_t i = 0; i < request->required_taint_count; i++)
        space->required[i] = fl_xxh3(request->required_taints[i], service->taint_seed);
    for (size_t i = 0; i < request->preferred_taint_count; i++) {
        if (!isfinite(request->preferred_taints[i].weight))
            return bad(err, "routing_constraints: taint weights are finite");
        space->preferred[i] = (struct fl_taint_wish){
            .taint = fl_xxh3(request->preferred_taints[i].taint, service->taint_seed),
            .weight = request->preferred_taints[i].weight};
    }
    ask->required_taints = space->required;
    ask->required_taint_count = request->required_taint_count;
    ask->preferred_taints = space->preferred;
    ask->preferred_taint_count = request->preferred_taint_count;
    return 0;
}

static int read_request(const struct fl_partition *partition,
                        const struct fl_select_request *request, struct fl_workspace *space,
                        struct fl_ask *ask, struct fl_error *err)
{
    const struct fl_selection *service = partition->service;
    fl_ask_init(ask, partition->selector);
    ask->track_prefill = service->config.track_prefill_tokens;
    ask->assume_kv_reuse = service->config.assume_kv_reuse;
    ask->wants_candidates = true;
    int rc = read_override(&request->override, ask, err);
    if (rc == 0)
        rc = read_allowed(request, space, ask, err);
    if (rc == 0)
        rc = read_taints(service, request, space, ask, err);
    if (rc < 0)
        return rc;
    if (request->pinned != NULL) {
        ask->has_pinned = true;
        ask->pinned_worker = request->pinned->worker_id;
        ask->pinned_rank = request->pinned->dp_rank;
    }
    if (request->affinity != NULL) {
        ask->has_affinity = true;
        ask->affinity_worker = request->affinity->worker_id;
        ask->affinity_rank = request->affinity->dp_rank;
    }
    if (service->config.queue_threshold.is_set && !request->is_advisory) {
        ask->has_busy_threshold = true;
        ask->busy_threshold = service->config.queue_threshold.value;
    }
    return 0;
}

static int check_request(const struct fl_select_request *request, bool books, bool waits,
                         struct fl_error *err)
{
    if (request->selection_id.n > FL_SELECTION_ID_MAX ||
        request->session_id.n > FL_SELECTION_ID_MAX)
        return bad(err, "selection_id and session_id have at most 256 bytes");
    if (!fl_bytes_is_utf8(request->selection_id) ||
        fl_bytes_index(request->selection_id, 0) != request->selection_id.n)
        return bad(err, "selection_id is not UTF-8 without NUL");
    if (isnan(request->priority_jump_s))
        return bad(err, "priority_jump is not a number");
    if (books && request->is_advisory)
        return bad(err, "an advisory selection books nothing");
    if (waits ? request->executor != NULL : request->executor == NULL && !request->is_advisory)
        return bad(err, waits ? "a thread with an executor must not wait"
                              : "an executor is required: a selection may be queued");
    return 0;
}

/* ---- the result ---- */

/* What a result lends: one allocation. */
struct refs {
    struct fl_record *record;
    uint8_t room[];
};

void fl_select_result_fini(struct fl_select_result *result)
{
    struct refs *refs = result->refs;
    if (refs != NULL) {
        fl_record_unref(refs->record);
        fl_free(refs);
    }
    *result = (struct fl_select_result){0};
}

static size_t round8(size_t n)
{
    return (n + 7) & ~(size_t)7;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* selection.md 5.3: matched tokens of the chosen worker, all its ranks. */
static void fill_overlap(const struct fl_workspace *space, const struct fl_ask *ask,
                         uint32_t block_tokens, struct fl_rank_tokens *by_rank,
                         struct fl_select_result *result)
{
    for (size_t i = 0; i < ask->overlap_count; i++) {
        const struct fl_kvindex_match *match = &ask->overlaps[i];
        if (match->worker_id != result->rank.worker_id || match->blocks[FL_TIER_DEVICE] == 0)
            continue;
        uint64_t tokens = (uint64_t)match->blocks[FL_TIER_DEVICE] * block_tokens;
        by_rank[result->by_rank_count++] =
            (struct fl_rank_tokens){match->dp_rank, (uint32_t)tokens};
        if (tokens > result->gpu_tokens)
            result->gpu_tokens = tokens;
    }
    result->by_rank = by_rank;
    const struct fl_choice *choice = &space->choice;
    uint64_t host = (uint64_t)(choice->device + choice->host) * block_tokens;
    uint64_t disk = host + (uint64_t)choice->disk * block_tokens;
    result->cpu_tokens = host > result->gpu_tokens ? host : result->gpu_tokens;
    result->disk_tokens = disk > result->cpu_tokens ? disk : result->cpu_tokens;
    result->longest_matched_tokens = result->disk_tokens;
}

static size_t ranks_matched(const struct fl_ask *ask, uint64_t worker_id)
{
    size_t count = 0;
    for (size_t i = 0; i < ask->overlap_count; i++)
        count += ask->overlaps[i].worker_id == worker_id;
    return count;
}

/* Takes the reference of `record`. */
static void fill_result(const struct fl_partition *partition, const struct fl_ask *ask,
                        const struct fl_workspace *space, struct fl_record *record,
                        struct fl_bytes id, bool is_booked, struct fl_select_result *result)
{
    assert(record != NULL); /* a choice was made, so its worker has one */
    const struct fl_choice *choice = &space->choice;
    size_t rank_bytes = ranks_matched(ask, choice->worker_id) * sizeof(struct fl_rank_tokens);
    size_t hash_bytes = is_booked ? ask->hash_count * sizeof(uint64_t) : 0;
    struct refs *refs = fl_alloc(sizeof *refs + hash_bytes + round8(rank_bytes) + id.n);
    refs->record = record;
    uint8_t *hashes = refs->room, *by_rank = hashes + hash_bytes;
    uint8_t *id_text = by_rank + round8(rank_bytes);
    if (hash_bytes > 0)
        memcpy(hashes, ask->hashes, hash_bytes);
    if (id.n > 0)
        memcpy(id_text, id.p, id.n);

    uint32_t block_tokens = atomic_load_explicit(&partition->block_tokens, memory_order_relaxed);
    *result = (struct fl_select_result){
        .selection_id = id.n > 0 ? fl_bytes(id_text, id.n) : (struct fl_bytes){0},
        .model_name = partition->model_name,
        .routing_group = partition->routing_group,
        .endpoint = record->worker.endpoint,
        .rank = {choice->worker_id, choice->dp_rank},
        .block_size = block_tokens,
        .isl_tokens = ask->isl_tokens,
        .effective_prefill_tokens = choice->effective_prefill_tokens,
        .potential_decode_blocks = choice->potential_decode_blocks,
        .is_booked = is_booked,
        .tracks_prefill_tokens = ask->track_prefill,
        .sequence_hashes = hash_bytes > 0 ? (const uint64_t *)(void *)hashes : NULL,
        .sequence_hash_count = hash_bytes / sizeof(uint64_t),
        .active_prefill_tokens = (uint64_t)choice->active_prefill_tokens,
        .prefill_token_capacity = choice->prefill_capacity,
        .total_kv_blocks = {choice->total_kv_blocks > 0, choice->total_kv_blocks},
        .refs = refs,
    };
    fill_overlap(space, ask, block_tokens, (struct fl_rank_tokens *)(void *)by_rank, result);
    const struct fl_maybe_f64 *threshold = &partition->service->config.queue_threshold;
    if (threshold->is_set)
        result->prefill_busy =
            (struct fl_maybe_bool){true, choice->active_prefill_tokens >
                                             threshold->value * (double)choice->prefill_capacity};
}

/* ---- the flow ---- */

static uint64_t wall_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void explain(struct fl_partition *partition, const struct fl_ask *ask,
                    const struct fl_choice *choice, struct fl_bytes id)
{
    struct fl_pick pick = {
        .id = id,
        .model_name = partition->model_name,
        .routing_group = partition->routing_group,
        .policy = partition->service->policy->name,
        .time_ms = wall_ms(),
        .isl_tokens = ask->isl_tokens,
        .worker_id = choice->worker_id,
        .dp_rank = choice->dp_rank,
        .ties = choice->ties,
        .temperature = choice->scoring.weights.temperature,
    };
    fl_explain_write(partition->service->explain, &pick, &choice->scoring, &choice->candidates);
}

static void count_held(struct fl_selection *service)
{
    uint64_t held = atomic_fetch_add_explicit(&service->held, 1, memory_order_relaxed) + 1;
    uint64_t peak = atomic_load_explicit(&service->held_peak, memory_order_relaxed);
    while (held > peak &&
           !atomic_compare_exchange_weak_explicit(&service->held_peak, &peak, held,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

/* Blocks that a booking will hold one by one; NULL: none. */
static int blocks_for(const struct fl_partition *partition, const struct fl_ask *ask,
                      struct fl_prompt_blocks **blocks)
{
    *blocks = NULL;
    if (!partition->service->config.track_active_blocks || !ask->assume_kv_reuse ||
        ask->hash_count == 0)
        return 0;
    *blocks = fl_prompt_blocks_new(ask->hashes, ask->hash_count);
    return *blocks != NULL ? 0 : FL_EINTERNAL;
}

/* Scores and books in one section. On success `*record` is referenced. */
static int schedule(struct fl_partition *partition, const struct fl_ask *ask,
                    struct fl_reservation *reservation, struct fl_prompt_blocks *blocks,
                    struct fl_choice *choice, struct fl_record **record, uint64_t *left_ns)
{
    uint64_t entered_ns = fl_section_enter(partition);
    int rc = fl_selector_choose(partition->selector, ask, choice);
    if (rc == 0) {
        *record = fl_record_ref(choice->owner);
        if (reservation != NULL) {
            fl_selector_book(partition->selector, ask, choice, blocks, &reservation->hold);
            partition->booked++;
        }
    }
    *left_ns = fl_section_leave(partition, entered_ns);
    return rc;
}

struct call {
    struct fl_selection *service;
    const struct fl_select_request *request;
    struct fl_select_result *result;
    struct fl_error *err;
    enum fl_stat_op op;
    struct fl_workspace *space;
    struct fl_stat_shard *shard;
};

static int explain_refusal(int rc, const struct call *call)
{
    if (call->err == NULL)
        return rc;
    static const char *const sentences[] = {
        [-FL_EBAD_REQUEST] = "the pinned worker is not among allowed_worker_ids",
        [-FL_EQUEUE_REJECTED] = "every eligible worker is busy and nothing may wait",
        [-FL_EOVERLOADED] = "every eligible worker is overloaded",
        [-FL_ENO_ENDPOINTS] = "no worker may take this request",
    };
    return fl_error_set(call->err, rc, "%s",
                        (size_t)-rc < FL_ARRAY_LEN(sentences) && sentences[-rc] != NULL
                            ? sentences[-rc]
                            : fl_error_row(rc)->message);
}

/* With everything read: look up, allocate, claim, schedule, publish. */
static int select_in(const struct call *call, struct fl_partition *partition, struct fl_ask *ask,
                     uint64_t hashed_ns)
{
    struct fl_selection *service = call->service;
    struct fl_workspace *space = call->space;
    bool books = call->op == FL_OP_SELECT_AND_RESERVE;
    if (service->looks_up && ask->hash_count > 0) {
        fl_kvindex_lookup(partition->index, ask->hashes, ask->hash_count, &space->matches);
        ask->overlaps = space->matches.at;
        ask->overlap_count = space->matches.count;
    }
    uint64_t matched_ns = fl_stats_now_ns();
    fl_stats_duration(call->shard, call->op, FL_PHASE_MATCH, matched_ns - hashed_ns);

    char minted[FL_UUID_TEXT];
    struct fl_bytes id = call->request->selection_id;
    if (id.n == 0) {
        fl_uuid4(minted);
        id = fl_bytes(minted, FL_UUID_TEXT - 1);
    }
    struct fl_prompt_blocks *blocks = NULL;
    struct fl_reservation *reservation = NULL;
    int rc = 0;
    if (books) {
        rc = blocks_for(partition, ask, &blocks);
        if (rc < 0)
            return rc;
        reservation = fl_reservation_new(&service->reservations, id, partition);
        rc = fl_reservations_claim(&service->reservations, reservation,
                                   fl_runtime_now_ms(service->runtime));
        if (rc < 0) {
            fl_free(reservation);
            fl_prompt_blocks_free(blocks);
            if (call->err != NULL)
                fl_error_set(call->err, rc,
                             "reservation '%.*s' is already reserved or being reserved",
                             FL_FMT(id));
            return rc;
        }
    }

    struct fl_record *record = NULL;
    uint64_t left_ns;
    rc = schedule(partition, ask, reservation, blocks, &space->choice, &record, &left_ns);
    fl_stats_duration(call->shard, call->op, FL_PHASE_SCHEDULE, left_ns - matched_ns);
    if (rc < 0) {
        if (books) {
            fl_reservations_abandon(&service->reservations, reservation);
            fl_free(reservation);
            fl_prompt_blocks_free(blocks);
        }
        if (rc == FL_EQUEUE_REJECTED)
            call->result->limit = (struct fl_queue_limit){.kind = "requests"};
        return explain_refusal(rc, call);
    }
    /* Filled before it is published: from then on any thread may free the reservation. */
    bool shows_id = books || call->request->selection_id.n > 0;
    fill_result(partition, ask, space, record, shows_id ? id : (struct fl_bytes){0}, books,
                call->result);
    if (books) {
        count_held(service);
        fl_reservations_publish(reservation);
    }
    explain(partition, ask, &space->choice, id);
    fl_stats_blocks_lost(call->shard, space->choice.best_device - space->choice.device);
    fl_stats_hit_ratio(&partition->hit_ratio,
                       (double)min_u64(space->choice.cached_tokens, ask->isl_tokens) /
                           (double)ask->isl_tokens);
    return FL_SELECTION_DONE;
}

static int do_select(struct call *call, bool waits)
{
    struct fl_selection *service = call->service;
    const struct fl_select_request *request = call->request;
    uint64_t started_ns = fl_stats_now_ns();
    call->shard = fl_stats_here(&service->stats);
    int rc = check_request(request, call->op == FL_OP_SELECT_AND_RESERVE, waits, call->err);
    if (rc < 0)
        goto out;
    if (atomic_load_explicit(&service->is_stopping, memory_order_acquire)) {
        rc = fl_error_set(call->err, FL_ESHUTDOWN, "selection service is stopping");
        goto out;
    }
    struct fl_partition *partition =
        fl_partition_find(service, request->model_name, request->routing_group);
    if (partition == NULL) {
        rc =
            fl_error_set(call->err, FL_ENOT_FOUND, "no worker serves this model and routing group");
        goto out;
    }
    if (atomic_load_explicit(&partition->block_tokens, memory_order_acquire) == 0) {
        rc = fl_error_set(call->err, FL_ENO_ENDPOINTS, "no schedulable worker");
        goto out;
    }

    call->space = workspace_take(service);
    fl_explain_prepare(service->explain, call->space->choice.candidates.count); /* as last time */
    struct fl_ask ask;
    rc = read_request(partition, request, call->space, &ask, call->err);
    if (rc == 0)
        rc = read_prompt(partition, &request->prompt, call->space, &ask, call->err);
    uint64_t hashed_ns = fl_stats_now_ns();
    fl_stats_duration(call->shard, call->op, FL_PHASE_HASH, hashed_ns - started_ns);
    if (rc == 0)
        rc = select_in(call, partition, &ask, hashed_ns);
    workspace_give(service, call->space);
out:
    fl_stats_request(call->shard, call->op, rc);
    fl_stats_duration(call->shard, call->op, FL_PHASE_TOTAL, fl_stats_now_ns() - started_ns);
    return rc;
}

int fl_select(struct fl_selection *service, const struct fl_select_request *request,
              struct fl_ticket *ticket, struct fl_select_result *result, struct fl_error *err)
{
    struct call call = {service, request, result, err, FL_OP_SELECT, NULL, NULL};
    *ticket = (struct fl_ticket){0};
    return do_select(&call, false);
}

int fl_select_and_reserve(struct fl_selection *service, const struct fl_select_request *request,
                          struct fl_ticket *ticket, struct fl_select_result *result,
                          struct fl_error *err)
{
    struct call call = {service, request, result, err, FL_OP_SELECT_AND_RESERVE, NULL, NULL};
    *ticket = (struct fl_ticket){0};
    return do_select(&call, false);
}

int fl_select_wait(struct fl_selection *service, const struct fl_select_request *request,
                   unsigned flags, struct fl_select_result *result, struct fl_error *err)
{
    enum fl_stat_op op = (flags & FL_RESERVE) != 0 ? FL_OP_SELECT_AND_RESERVE : FL_OP_SELECT;
    struct call call = {service, request, result, err, op, NULL, NULL};
    return do_select(&call, true);
}

/* ---- reserve, the explicit form ---- */

static int reserve_in(struct fl_partition *partition, const struct fl_reserve_request *request,
                      struct fl_workspace *space, struct fl_select_result *result,
                      struct fl_error *err)
{
    struct fl_selection *service = partition->service;
    struct fl_ask ask;
    fl_ask_init(&ask, partition->selector);
    ask.assume_kv_reuse = service->config.assume_kv_reuse;
    int rc = read_prompt(partition, &request->prompt, space, &ask, err);
    if (rc < 0)
        return rc;
    uint64_t effective = request->effective_prefill_tokens.is_set
                             ? request->effective_prefill_tokens.value
                             : ask.isl_tokens;
    if (effective > ask.isl_tokens)
        return bad(err, "effective_prefill_tokens is more than isl_tokens");
    ask.track_prefill =
        request->track_prefill_tokens.is_set
            ? request->track_prefill_tokens.value
            : request->effective_prefill_tokens.is_set || service->config.track_prefill_tokens;

    struct fl_prompt_blocks *blocks;
    rc = blocks_for(partition, &ask, &blocks);
    if (rc < 0)
        return rc;
    struct fl_reservation *reservation =
        fl_reservation_new(&service->reservations, request->selection_id, partition);
    rc = fl_reservations_claim(&service->reservations, reservation,
                               fl_runtime_now_ms(service->runtime));
    if (rc < 0) {
        fl_free(reservation);
        fl_prompt_blocks_free(blocks);
        return fl_error_set(err, rc, "reservation '%.*s' is already reserved or being reserved",
                            FL_FMT(request->selection_id));
    }
    struct fl_choice *choice = &space->choice;
    *choice = (struct fl_choice){0};
    struct fl_record *record = NULL;
    uint64_t entered_ns = fl_section_enter(partition);
    rc = fl_selector_book_on(partition->selector, &ask, request->rank.worker_id,
                             request->rank.dp_rank, effective, blocks, &reservation->hold, choice);
    if (rc == 0) {
        record = fl_record_ref(choice->owner);
        partition->booked++;
    }
    fl_section_leave(partition, entered_ns);
    if (rc < 0) {
        fl_reservations_abandon(&service->reservations, reservation);
        fl_free(reservation);
        fl_prompt_blocks_free(blocks);
        return fl_error_set(err, FL_ENOT_FOUND, "worker %llu has no rank %u to reserve on",
                            (unsigned long long)request->rank.worker_id, request->rank.dp_rank);
    }
    fill_result(partition, &ask, space, record, request->selection_id, true, result);
    count_held(service);
    fl_reservations_publish(reservation);
    return 0;
}

int fl_reserve(struct fl_selection *service, const struct fl_reserve_request *request,
               struct fl_select_result *result, struct fl_error *err)
{
    int rc;
    struct fl_partition *partition =
        fl_partition_find(service, request->model_name, request->routing_group);
    if (request->selection_id.n == 0 || request->selection_id.n > FL_SELECTION_ID_MAX) {
        rc = bad(err, "selection_id is required, at most 256 bytes");
    } else if (atomic_load(&service->is_stopping)) {
        rc = fl_error_set(err, FL_ESHUTDOWN, "selection service is stopping");
    } else if (partition == NULL || atomic_load(&partition->block_tokens) == 0) {
        rc = fl_error_set(err, FL_ENOT_FOUND, "no worker serves this model and routing group");
    } else {
        struct fl_workspace *space = workspace_take(service);
        rc = reserve_in(partition, request, space, result, err);
        workspace_give(service, space);
    }
    fl_stats_request(fl_stats_here(&service->stats), FL_OP_RESERVE, rc);
    return rc;
}
