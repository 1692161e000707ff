/* SPDX-License-Identifier: Apache-2.0 */
#include "pick/pick.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/log.h"
#include "codec/json.h"
#include "openai/request.h"

#define TOKENS_PER_BYTE_DIVISOR                                                                    \
    4                      /* epp.md 7.1: load-only picks estimate a token per four bytes          \
                            */
#define CONSTRAINTS_MAX 64 /* taints of one request, as the selector's FL_TAINTS_MAX */

enum pick_state { PICK_TOKENIZING, PICK_QUEUED, PICK_OVER };

struct fl_pick {
    struct fl_pick_env *env;
    enum pick_state state;
    struct fl_timer deadline; /* of the whole pick */
    struct fl_tokenize_call *call;
    struct fl_ticket ticket;
    uint32_t slot; /* in the executor, while queued */
    bool has_slot;

    const struct fl_pick_request *request;
    const struct fl_openai_path *path;
    struct fl_openai_request view;
    struct fl_arena arena;
    struct fl_buf body; /* contiguous, for the reader; empty when the body is one slice */
    struct fl_bytes text;
    struct fl_tokens tokens; /* of the tokenizer, or of the body */
    bool is_estimate;        /* no ids: load only */
    uint64_t *allowed;
    uint32_t allowed_count;
    bool has_allowed;

    uint64_t started_ns, asked_ns, tokenized_ns, selecting_ns;
    struct fl_pick_record record;
    struct fl_pick_outcome outcome;
    void (*done)(void *owner, struct fl_pick_outcome *outcome);
    void *owner;
};

/* ---- mail: completions of queued selections, as (slot, generation) ---- */

struct waiting {
    struct fl_pick *pick; /* NULL: free */
    uint32_t generation;
};

struct fl_pick_executor {
    struct fl_executor executor; /* first: the library knows this */
    struct fl_pick_env *env;
    struct waiting *slots;
    uint32_t slot_count, slot_cap;
};

struct mail_letter {
    struct fl_letter letter;
    struct fl_pick_executor *executor;
    struct fl_mail *mail;
};

static void on_selected(struct fl_pick *pick, int rc, struct fl_select_result *result);

static void open_mail(struct fl_loop *loop, struct fl_letter *letter)
{
    struct mail_letter *mail = FL_CONTAINER_OF(letter, struct mail_letter, letter);
    struct fl_pick_executor *executor = mail->executor;
    struct fl_select_done done = {0};
    struct fl_mail *opened = mail->mail;
    (void)loop;
    fl_free(mail);
    if (fl_mail_open(opened, &done) == 0)
        return;
    struct waiting *waiting =
        done.waiter.slot < executor->slot_count ? &executor->slots[done.waiter.slot] : NULL;
    if (waiting != NULL && waiting->pick != NULL && waiting->generation == done.waiter.generation)
        on_selected(waiting->pick, done.rc, &done.result);
    else if (done.rc == 0) /* nobody waits any more: the booking is ours to end */
        fl_reservation_free(executor->env->shared->service, done.result.selection_id,
                            FL_FREE_CLIENT_GONE);
    fl_select_result_fini(&done.result);
}

static void post_mail(struct fl_executor *executor, struct fl_mail *mail)
{
    struct fl_pick_executor *mine = FL_CONTAINER_OF(executor, struct fl_pick_executor, executor);
    struct mail_letter *letter = fl_calloc(1, sizeof(*letter));
    letter->letter.open = open_mail;
    letter->executor = mine;
    letter->mail = mail;
    fl_loop_post(mine->env->loop, &letter->letter);
}

static struct fl_waiter take_slot(struct fl_pick_executor *executor, struct fl_pick *pick)
{
    uint32_t slot = 0;
    while (slot < executor->slot_count && executor->slots[slot].pick != NULL)
        slot++;
    if (slot == executor->slot_cap) {
        executor->slot_cap = executor->slot_cap == 0 ? 64 : executor->slot_cap * 2;
        executor->slots = fl_realloc(executor->slots, executor->slot_cap, sizeof(*executor->slots));
    }
    if (slot == executor->slot_count)
        executor->slots[executor->slot_count++] = (struct waiting){0};
    executor->slots[slot].pick = pick;
    executor->slots[slot].generation++;
    pick->slot = slot;
    pick->has_slot = true;
    return (struct fl_waiter){slot, executor->slots[slot].generation};
}

static void leave_slot(struct fl_pick *pick)
{
    if (!pick->has_slot)
        return;
    pick->has_slot = false;
    pick->env->executor->slots[pick->slot].pick = NULL;
    pick->env->executor->slots[pick->slot].generation++;
}

void fl_pick_env_init(struct fl_pick_env *env, struct fl_loop *loop, struct fl_pick_shared *shared,
                      struct fl_tokenizer *tokenizer)
{
    *env = (struct fl_pick_env){
        .loop = loop, .shared = shared, .tokenizer = tokenizer, .shard = fl_loop_index(loop)};
    env->executor = fl_calloc(1, sizeof(*env->executor));
    env->executor->executor.post = post_mail;
    env->executor->env = env;
}

void fl_pick_env_fini(struct fl_pick_env *env)
{
    fl_free(env->executor->slots);
    fl_free(env->executor);
    env->executor = NULL;
}

/* ---- metrics ---- */

static const char *const outcome_words[] = {"picked",
                                            "epp_not_ready",
                                            "shutting_down",
                                            "no_endpoints",
                                            "epp_overloaded",
                                            "invalid_request_body",
                                            "model_not_found",
                                            "invalid_routing_hint",
                                            "metadata_headers_too_large",
                                            "tokenizer_error",
                                            "tokenizer_rejected",
                                            "tokenizer_unavailable",
                                            "tokenizer_timeout",
                                            "decision_timeout",
                                            "overloaded",
                                            "queue_rejected",
                                            "queue_timeout",
                                            "selection_unavailable",
                                            "conflict",
                                            "invalid_request",
                                            "internal",
                                            "cancelled",
                                            "other",
                                            NULL};
static const char *const phase_words[] = {"render_tokenize", "selection", NULL};
/* log(0.001, 2.0, 12) of epp.md 19.1 */
static const double phase_bounds[] = {0,     0.002, 0.004, 0.0079, 0.016, 0.032,
                                      0.063, 0.13,  0.25,  0.5,    1,     2};

const struct fl_metric_desc fl_pick_metric_descs[FL_PICK_METRIC_COUNT] = {
    [FL_PICK_STARTED] = {.kind = FL_COUNTER,
                         .name = "fairlead_pick_started_total",
                         .help = "Picks begun."},
    [FL_PICK_ENDED] = {.kind = FL_COUNTER,
                       .name = "fairlead_pick_ended_total",
                       .help = "Picks ended, by outcome.",
                       .label = "outcome",
                       .values = outcome_words},
    [FL_PICK_PHASE_SECONDS] = {.kind = FL_HISTOGRAM,
                               .name = "dynamo_epp_phase_duration_seconds",
                               .help = "Time of a pick's phases.",
                               .label = "phase",
                               .values = phase_words,
                               .bounds = phase_bounds,
                               .bound_count = FL_ARRAY_LEN(phase_bounds)},
};

static size_t outcome_index(const char *word)
{
    size_t i = 0;
    while (outcome_words[i + 1] != NULL && strcmp(outcome_words[i], word) != 0)
        i++;
    return i;
}

/* ---- the end ---- */

static uint64_t wall_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static uint64_t us_between(uint64_t from_ns, uint64_t to_ns)
{
    return from_ns == 0 || to_ns < from_ns ? 0 : (to_ns - from_ns) / 1000;
}

static void write_record(struct fl_pick *pick, int rc)
{
    struct fl_pick_shared *shared = pick->env->shared;
    struct fl_pick_record *record = &pick->record;
    uint64_t now_ns = fl_clock_ns();
    record->time_ms = wall_ms();
    record->outcome = rc == 0 ? "picked" : fl_error_row(rc)->word;
    record->tokenize_us = us_between(pick->asked_ns, pick->tokenized_ns);
    record->total_us = us_between(pick->started_ns, now_ns);
    record->select_us = us_between(pick->selecting_ns, now_ns);
    if (!record->is_dry_run)
        pick->outcome.record = fl_pick_log_add(shared->log, record);
    pick->outcome.record_of = record;
    fl_metric_add(shared->metrics, pick->env->shard, FL_PICK_ENDED, outcome_index(record->outcome),
                  1);
    if (pick->tokenized_ns != 0)
        fl_metric_observe(shared->metrics, pick->env->shard, FL_PICK_PHASE_SECONDS,
                          FL_PICK_PHASE_TOKENIZE, (double)record->tokenize_us / 1e6);
    if (pick->selecting_ns != 0)
        fl_metric_observe(shared->metrics, pick->env->shard, FL_PICK_PHASE_SECONDS,
                          FL_PICK_PHASE_SELECT, (double)record->select_us / 1e6);
}

static void pick_free(struct fl_pick *pick)
{
    fl_tokens_fini(&pick->tokens);
    fl_buf_fini(&pick->body);
    fl_arena_fini(&pick->arena);
    fl_free(pick->allowed);
    fl_free(pick);
}

/* Undoes what waits. After it nothing can reach the pick but its caller. */
static void pick_stop(struct fl_pick *pick, enum fl_free_cause cause)
{
    fl_loop_timer_stop(pick->env->loop, &pick->deadline);
    fl_tokenize_cancel(pick->call);
    pick->call = NULL;
    if (pick->state == PICK_QUEUED) {
        /* A booking made in this same instant is freed with the cause when its mail is opened. */
        fl_ticket_cancel(pick->env->shared->service, pick->ticket, cause);
        leave_slot(pick);
    }
    atomic_fetch_sub_explicit(&pick->env->shared->in_flight, 1, memory_order_relaxed);
}

/* The only way a pick ends with an answer. */
static void pick_finish(struct fl_pick *pick, int rc)
{
    assert(pick->state != PICK_OVER);
    pick_stop(pick, rc == FL_EDECISION_TIMEOUT ? FL_FREE_TIMEOUT : FL_FREE_ERROR);
    pick->state = PICK_OVER;
    pick->outcome.rc = rc;
    if (rc < 0)
        fl_booking_free(&pick->outcome.booking,
                        rc == FL_ENO_ENDPOINTS ? FL_FREE_WORKER_GONE : FL_FREE_ERROR);
    write_record(pick, rc);
    pick->done(pick->owner, &pick->outcome); /* the owner has taken the booking, or there is none */
    pick_free(pick);
}

void fl_pick_cancel(struct fl_pick *pick, enum fl_free_cause cause)
{
    pick_stop(pick, cause);
    pick->state = PICK_OVER;
    write_record(pick, FL_ECANCELLED);
    pick_free(pick);
}

static void on_deadline(struct fl_timer *timer)
{
    pick_finish(FL_CONTAINER_OF(timer, struct fl_pick, deadline), FL_EDECISION_TIMEOUT);
}

/* ---- selecting ---- */

static void name_endpoint(struct fl_pick *pick, const struct fl_directory_worker *worker)
{
    struct fl_pick_record *record = &pick->record;
    pick->outcome.addr = worker->addr;
    fl_bytes_to_cstr(worker->authority, pick->outcome.authority, sizeof(pick->outcome.authority));
    snprintf(record->endpoint, sizeof(record->endpoint), "%s", pick->outcome.authority);
    snprintf(record->worker, sizeof(record->worker), "%.*s", FL_FMT(worker->label));
    record->worker_id = worker->worker_id;
}

/* epp.md 10.2, steps 10 and 11. */
static void on_selected(struct fl_pick *pick, int rc, struct fl_select_result *result)
{
    struct fl_pick_shared *shared = pick->env->shared;
    leave_slot(pick);
    pick->state = PICK_TOKENIZING; /* nothing waits any more */
    if (rc < 0) {
        pick_finish(pick, rc == FL_ENOT_FOUND ? FL_ENO_ENDPOINTS : rc);
        return;
    }
    if (!pick->request->is_dry_run) {
        pick->outcome.booking = (struct fl_booking){.service = shared->service,
                                                    .state = FL_BOOKING_BOOKED,
                                                    .worker_id = result->rank.worker_id};
        fl_bytes_to_cstr(result->selection_id, pick->outcome.booking.id, FL_UUID_TEXT);
    }
    pick->outcome.cached_tokens = (uint32_t)result->gpu_tokens;
    fl_bytes_to_cstr(result->selection_id, pick->record.reservation, FL_UUID_TEXT);

    const struct fl_directory_set *set = fl_directory_enter(shared->directory);
    const struct fl_directory_worker *worker = fl_directory_find(set, result->rank.worker_id);
    bool is_there = worker != NULL && worker->is_ready && worker->serves_clients;
    if (is_there)
        name_endpoint(pick, worker);
    fl_directory_leave(shared->directory);
    pick_finish(pick, is_there ? 0 : FL_ENO_ENDPOINTS);
}

static int read_constraints(struct fl_pick *pick, struct fl_select_request *select)
{
    struct fl_json doc = {0};
    if (fl_bytes_is_absent(pick->view.constraints))
        return 0;
    int rc = fl_json_parse(&doc, pick->view.constraints, NULL);
    if (rc < 0)
        return FL_EBAD_BODY;
    const struct fl_json_node *required =
        fl_json_get(fl_json_root(&doc), FL_BYTES("required_taints"));
    const struct fl_json_node *preferred =
        fl_json_get(fl_json_root(&doc), FL_BYTES("preferred_taints"));
    struct fl_bytes *taints = fl_arena_calloc(&pick->arena, CONSTRAINTS_MAX, sizeof(*taints));
    struct fl_taint_weight *weights =
        fl_arena_calloc(&pick->arena, CONSTRAINTS_MAX, sizeof(*weights));
    rc = 0;
    for (const struct fl_json_node *item = required != NULL ? fl_json_first(required) : NULL;
         item != NULL; item = fl_json_next(required, item)) {
        if (item->type != FL_JSON_STRING || select->required_taint_count == CONSTRAINTS_MAX)
            rc = FL_EBAD_BODY;
        else
            taints[select->required_taint_count++] = fl_arena_copy(&pick->arena, item->text);
    }
    for (const struct fl_json_node *item = preferred != NULL ? fl_json_first(preferred) : NULL;
         item != NULL; item = fl_json_next(preferred, item)) {
        double weight;
        if (!fl_json_to_double(item, &weight) || select->preferred_taint_count == CONSTRAINTS_MAX)
            rc = FL_EBAD_BODY;
        else
            weights[select->preferred_taint_count++] =
                (struct fl_taint_weight){fl_arena_copy(&pick->arena, item->key), weight};
    }
    select->required_taints = taints;
    select->preferred_taints = weights;
    fl_json_fini(&doc);
    return rc;
}

static bool is_lora(const struct fl_pick *pick)
{
    return !fl_bytes_is_absent(pick->view.model) &&
           !fl_bytes_eq(pick->view.model, pick->env->shared->model);
}

static void select_worker(struct fl_pick *pick)
{
    struct fl_pick_shared *shared = pick->env->shared;
    struct fl_rank pinned = {.worker_id = pick->view.worker_id,
                             .dp_rank =
                                 pick->view.rank == FL_OPENAI_RANK_UNSET ? 0 : pick->view.rank};
    struct fl_select_request select = {
        .model_name = shared->model,
        .prompt = {.isl_tokens = pick->tokens.total},
        .priority_jump_s = fl_openai_priority_jump_s(&pick->view),
        .strict_priority = pick->view.strict_priority,
        .expected_output_tokens = {pick->view.has_output_tokens, pick->view.output_tokens},
        .session_id = pick->view.session_id,
        .session_is_final = pick->view.is_session_final,
        .pinned = pick->view.has_worker ? &pinned : NULL,
        .has_allowed = pick->has_allowed,
        .allowed_worker_ids = pick->allowed,
        .allowed_count = pick->allowed_count,
        .policy_class = pick->view.policy_class,
        .executor = &pick->env->executor->executor,
    };
    struct fl_select_result result = {0};
    char id[FL_UUID_TEXT];

    int rc = read_constraints(pick, &select);
    if (rc < 0) {
        pick_finish(pick, rc);
        return;
    }
    if (pick->is_estimate || pick->tokens.count == 0 ||
        atomic_load_explicit(&shared->is_credit_off, memory_order_relaxed)) {
        uint64_t estimate = pick->request->body->bytes / TOKENS_PER_BYTE_DIVISOR;
        if (select.prompt.isl_tokens == 0)
            select.prompt.isl_tokens = estimate > 0 ? estimate : 1;
    } else {
        select.prompt.tokens = pick->tokens.ids;
        select.prompt.token_count = pick->tokens.count;
        select.prompt.isl_tokens = pick->tokens.total;
        select.prompt.cache_salt = pick->view.cache_namespace;
        if (is_lora(pick))
            select.prompt.lora_name = pick->view.model;
    }
    fl_uuid4(id);
    select.selection_id = fl_bytes_of(id);
    pick->selecting_ns = fl_clock_ns();
    if (pick->request->is_dry_run) {
        select.is_advisory = true;
        rc = fl_select(shared->service, &select, &pick->ticket, &result, NULL);
    } else {
        select.waiter = take_slot(pick->env->executor, pick);
        rc = fl_select_and_reserve(shared->service, &select, &pick->ticket, &result, NULL);
    }
    if (rc == FL_SELECTION_QUEUED) {
        pick->state = PICK_QUEUED;
        return;
    }
    on_selected(pick, rc, &result);
    fl_select_result_fini(&result);
}

/* ---- tokens ---- */

static void on_tokens(void *owner, struct fl_tokenize_answer *answer)
{
    struct fl_pick *pick = owner;
    pick->call = NULL;
    pick->tokenized_ns = fl_clock_ns();
    if (answer->rc < 0) {
        FL_LOG(FL_LOG_DEBUG, "tokenizer refused", "request_id=%s status=%d why=%s detail=%s",
               pick->record.request_id, answer->status, fl_log_value(fl_bytes_of(answer->why)).text,
               fl_log_value(fl_bytes_head(answer->detail, 200)).text);
        pick_finish(pick, answer->rc);
        return;
    }
    pick->tokens = answer->tokens;
    answer->tokens = (struct fl_tokens){0};
    select_worker(pick);
}

/* Token arrays need no tokenizer (epp.md 9.2). FL_ENOMEM or FL_EBAD_BODY. */
static int take_token_prompt(struct fl_pick *pick)
{
    struct fl_bytes prompt = pick->view.prompt;
    if (pick->view.prompt_form == FL_OPENAI_PROMPT_TOKEN_LISTS) {
        struct fl_json doc = {0};
        int rc = fl_json_parse(&doc, prompt, NULL);
        if (rc < 0) {
            fl_json_fini(&doc);
            return rc == FL_ENOMEM ? rc : FL_EBAD_BODY;
        }
        /* The longest list routes, the sum is booked. */
        const struct fl_json_node *root = fl_json_root(&doc);
        const struct fl_json_node *longest = NULL;
        for (const struct fl_json_node *list = fl_json_first(root); list != NULL;
             list = fl_json_next(root, list)) {
            pick->tokens.total += list->count;
            if (longest == NULL || list->count > longest->count)
                longest = list;
        }
        struct fl_bytes text = longest != NULL ? longest->text : FL_BYTES("[]");
        prompt = fl_arena_copy(&pick->arena, text);
        fl_json_fini(&doc);
    }
    size_t room = prompt.n / 2 + 1;
    pick->tokens.ids = fl_try_alloc(room * sizeof(uint32_t));
    if (pick->tokens.ids == NULL)
        return FL_ENOMEM;
    int64_t count = fl_json_read_u32_array(prompt, pick->tokens.ids, room);
    if (count < 0)
        return FL_EBAD_BODY;
    pick->tokens.count = (size_t)count;
    if (pick->tokens.total == 0)
        pick->tokens.total = (uint64_t)count;
    return 0;
}

static bool serves_adapter(const struct fl_directory_worker *worker, struct fl_bytes name)
{
    for (uint32_t i = 0; i < worker->lora_count; i++) {
        if (fl_bytes_eq(worker->lora_names[i], name))
            return true;
    }
    return false;
}

static bool is_allowed(const struct fl_pick *pick, uint64_t worker_id)
{
    for (uint32_t i = 0; i < pick->allowed_count; i++) {
        if (pick->allowed[i] == worker_id)
            return true;
    }
    return false;
}

static int check_model(struct fl_pick *pick)
{
    struct fl_pick_shared *shared = pick->env->shared;
    if (!pick->path->needs_model || !is_lora(pick) || shared->skip_model_check)
        return 0;
    for (uint32_t i = 0; i < shared->lora_count; i++) {
        if (fl_bytes_eq(shared->lora_names[i], pick->view.model))
            return 0;
    }
    /* An adapter that some workers name: only they are candidates (epp.md 7.2). */
    bool is_known = false;
    uint32_t count = 0;
    const struct fl_directory_set *set = fl_directory_enter(shared->directory);
    uint64_t *ids = fl_calloc((size_t)set->count + 1, sizeof(*ids));
    for (uint32_t w = 0; w < set->count; w++) {
        const struct fl_directory_worker *worker = &set->workers[w];
        if (!serves_adapter(worker, pick->view.model))
            continue;
        is_known = true;
        if (!pick->has_allowed || is_allowed(pick, worker->worker_id))
            ids[count++] = worker->worker_id;
    }
    fl_directory_leave(shared->directory);
    fl_free(pick->allowed);
    pick->allowed = ids;
    pick->allowed_count = count;
    pick->has_allowed = true;
    if (!is_known)
        return FL_EMODEL_NOT_FOUND;
    return count > 0 ? 0 : FL_ENO_ENDPOINTS;
}

/* Reads body and headers; what follows is decided by the path (epp.md 7.1). */
static void read_request(struct fl_pick *pick)
{
    struct fl_pick_shared *shared = pick->env->shared;
    struct fl_openai_options options = {.ignore_nvext = shared->ignore_nvext,
                                        .metadata_prefix = shared->metadata_prefix};
    int rc = 0;

    fl_openai_request_init(&pick->view);
    if (pick->path->is_parsed)
        rc = fl_openai_request_read(&pick->view, pick->path, pick->text, &options, &pick->arena);
    if (rc == 0)
        rc = fl_openai_request_override(&pick->view, pick->request->fields, &options, &pick->arena);
    if (rc == 0)
        rc = check_model(pick);
    bool has_tokens = pick->view.prompt_form == FL_OPENAI_PROMPT_TOKENS ||
                      pick->view.prompt_form == FL_OPENAI_PROMPT_TOKEN_LISTS;
    bool is_rendered = pick->path->is_rendered;
    if (rc == 0 && pick->path->kind == FL_OPENAI_COMPLETIONS &&
        (pick->view.prompt_form == FL_OPENAI_PROMPT_NONE ||
         pick->view.prompt_form == FL_OPENAI_PROMPT_OTHER))
        rc = FL_EBAD_BODY;
    if (rc == 0 && is_rendered && has_tokens)
        rc = take_token_prompt(pick);
    if (rc < 0) {
        pick_finish(pick, rc);
        return;
    }
    pick->is_estimate = !is_rendered || (!has_tokens && pick->env->tokenizer == NULL);
    pick->record.kind = pick->is_estimate                    ? "load_only"
                        : pick->path->kind == FL_OPENAI_CHAT ? "chat"
                                                             : "completions";
    if (pick->is_estimate || has_tokens) {
        select_worker(pick);
        return;
    }
    pick->asked_ns = fl_clock_ns();
    pick->call = fl_tokenizer_ask(pick->env->tokenizer, pick->path->kind == FL_OPENAI_CHAT,
                                  pick->request->body, pick->request->request_id, on_tokens, pick);
}

/* ---- the beginning ---- */

static void pick_without_body(struct fl_pick *pick)
{
    struct fl_pick_shared *shared = pick->env->shared;
    const struct fl_directory_set *set = fl_directory_enter(shared->directory);
    const struct fl_directory_worker *worker = fl_directory_next(
        shared->directory, set, pick->has_allowed, pick->allowed, pick->allowed_count);
    if (worker != NULL)
        name_endpoint(pick, worker);
    fl_directory_leave(shared->directory);
    pick->record.kind = "header_only";
    pick_finish(pick, worker != NULL ? 0 : FL_ENO_ENDPOINTS);
}

/* epp.md 10.2, steps 1, 2 and 4. */
static int admit(struct fl_pick *pick)
{
    struct fl_pick_shared *shared = pick->env->shared;
    const struct fl_pick_request *request = pick->request;
    int rc = 0;
    if (atomic_load_explicit(&shared->is_draining_over, memory_order_relaxed))
        return FL_EDRAINING;
    if (!atomic_load_explicit(&shared->can_route, memory_order_relaxed))
        return FL_EEPP_NOT_READY;
    const struct fl_directory_set *set = fl_directory_enter(shared->directory);
    if (set->ready_count == 0) {
        rc = FL_ENO_ENDPOINTS;
    } else if (request->has_subset) {
        pick->has_allowed = true;
        pick->allowed = fl_calloc((size_t)set->count + 1, sizeof(*pick->allowed));
        pick->allowed_count =
            fl_directory_subset(set, request->subset, request->subset_count, pick->allowed);
        if (pick->allowed_count == 0)
            rc = FL_ENO_ENDPOINTS;
    }
    fl_directory_leave(shared->directory);
    return rc;
}

/* One contiguous text for the reader: the body itself when it is one slice. */
static int flatten(struct fl_pick *pick)
{
    const struct fl_chain *body = pick->request->body;
    if (body->count == 1) {
        pick->text = fl_slice_bytes(fl_chain_at(body, 0));
        return 0;
    }
    uint8_t *room = fl_buf_reserve(&pick->body, body->bytes);
    if (room == NULL)
        return FL_EEPP_OVERLOADED;
    fl_chain_copy_out(body, 0, room, body->bytes);
    fl_buf_commit(&pick->body, body->bytes);
    pick->text = fl_buf_bytes(&pick->body);
    return 0;
}

/* What fl_pick_start() must know of an end that came inside it. */
struct starting {
    bool is_over;
    void (*done)(void *owner, struct fl_pick_outcome *outcome);
    void *owner;
};

static void begin(struct fl_pick *pick)
{
    int rc = admit(pick);
    bool has_body = pick->request->body != NULL && pick->request->body->bytes > 0;
    if (rc == 0 && !has_body) {
        pick_without_body(pick);
        return;
    }
    pick->path = fl_openai_path_find(pick->request->path);
    if (rc == 0 && pick->path->is_parsed)
        rc = flatten(pick);
    if (rc < 0)
        pick_finish(pick, rc);
    else
        read_request(pick);
}

/* Notes that `done` came while fl_pick_start() was still on the stack. */
static void on_early_done(void *owner, struct fl_pick_outcome *outcome)
{
    struct starting *starting = owner;
    starting->is_over = true;
    starting->done(starting->owner, outcome);
}

struct fl_pick *fl_pick_start(struct fl_pick_env *env, const struct fl_pick_request *request,
                              void (*done)(void *owner, struct fl_pick_outcome *outcome),
                              void *owner)
{
    struct fl_pick_shared *shared = env->shared;
    struct fl_pick *pick = fl_calloc(1, sizeof(*pick));
    struct starting starting = {.done = done, .owner = owner};

    pick->env = env;
    pick->request = request;
    pick->done = on_early_done;
    pick->owner = &starting;
    pick->started_ns = fl_clock_ns();
    pick->record.subset = request->has_subset ? (int32_t)request->subset_count : -1;
    pick->record.kind = "load_only";
    pick->record.is_dry_run = request->is_dry_run;
    fl_bytes_to_cstr(request->request_id, pick->record.request_id, sizeof(pick->record.request_id));
    fl_arena_init(&pick->arena, 0);
    fl_timer_init(&pick->deadline, on_deadline);
    if (shared->decision_timeout_ms > 0)
        fl_loop_timer_start(env->loop, &pick->deadline, shared->decision_timeout_ms);
    fl_metric_add(shared->metrics, env->shard, FL_PICK_STARTED, 0, 1);

    /* The permit covers the pick, not the stream; nobody waits for one (epp.md 13.1). */
    uint32_t in_flight = atomic_fetch_add_explicit(&shared->in_flight, 1, memory_order_relaxed);
    if (in_flight >= shared->max_in_flight)
        pick_finish(pick, FL_EEPP_OVERLOADED);
    else
        begin(pick);
    if (starting.is_over)
        return NULL;
    pick->done = done;
    pick->owner = owner;
    return pick;
}
