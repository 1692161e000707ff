/* SPDX-License-Identifier: Apache-2.0 */
#include "selection/explain.h"

#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "codec/json.h"

struct row {
    _Atomic bool is_held; /* by one writer or one reader; guards the rest */
    uint64_t number;      /* of the decision, from 1; 0: never written */
    struct fl_pick pick;
    struct fl_scoring scoring;
    uint8_t id[FL_EXPLAIN_TEXT];
    struct fl_candidates candidates; /* only the first `count` of each array */
};

struct fl_explain {
    _Atomic uint64_t next; /* decisions so far */
    struct row rows[FL_EXPLAIN_ROWS];
};

struct fl_explain *fl_explain_new(void)
{
    return fl_calloc(1, sizeof(struct fl_explain));
}

void fl_explain_free(struct fl_explain *ring)
{
    fl_free(ring);
}

static bool row_take(struct row *row)
{
    return !atomic_exchange_explicit(&row->is_held, true, memory_order_acquire);
}

static void row_give(struct row *row)
{
    atomic_store_explicit(&row->is_held, false, memory_order_release);
}

static void copy_candidates(struct fl_candidates *to, const struct fl_candidates *from)
{
    size_t n = from->count;
    memcpy(to, from, offsetof(struct fl_candidates, worker_id));
#define COPY(array) memcpy(to->array, from->array, n * sizeof from->array[0])
    COPY(worker_id);
    COPY(dp_rank);
    COPY(filter);
    COPY(prefill_tokens);
    COPY(blocks);
    COPY(requests);
    COPY(cost);
    if (!from->has_overlap)
        return;
    COPY(active_shared);
    COPY(device);
    COPY(host);
    COPY(disk);
#undef COPY
}

static void prefetch(const void *p, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
        __builtin_prefetch((const char *)p + i, 1);
}

void fl_explain_prepare(const struct fl_explain *ring, uint32_t candidates)
{
    size_t n = candidates < FL_CANDIDATES_MAX ? candidates : FL_CANDIDATES_MAX;
    uint64_t number = atomic_load_explicit(&ring->next, memory_order_relaxed) + 1;
    const struct row *row = &ring->rows[number % FL_EXPLAIN_ROWS];
    const struct fl_candidates *c = &row->candidates;
    prefetch(row, offsetof(struct row, id) + 64);
    prefetch(c->worker_id, n * sizeof c->worker_id[0]);
    prefetch(c->dp_rank, n * sizeof c->dp_rank[0]);
    prefetch(c->filter, n);
    prefetch(c->prefill_tokens, n * sizeof c->prefill_tokens[0]);
    prefetch(c->blocks, n * sizeof c->blocks[0]);
    prefetch(c->requests, n * sizeof c->requests[0]);
    prefetch(c->cost, n * sizeof c->cost[0]);
}

void fl_explain_write(struct fl_explain *ring, const struct fl_pick *pick,
                      const struct fl_scoring *scoring, const struct fl_candidates *candidates)
{
    for (int tries = 0; tries < FL_EXPLAIN_TRIES; tries++) {
        uint64_t number = atomic_fetch_add_explicit(&ring->next, 1, memory_order_relaxed) + 1;
        struct row *row = &ring->rows[number % FL_EXPLAIN_ROWS];
        if (!row_take(row))
            continue;
        row->number = number;
        row->pick = *pick;
        row->pick.id =
            fl_bytes(row->id, pick->id.n < FL_EXPLAIN_TEXT ? pick->id.n : FL_EXPLAIN_TEXT);
        memcpy(row->id, pick->id.p, row->pick.id.n);
        row->scoring = *scoring;
        copy_candidates(&row->candidates, candidates);
        row_give(row);
        return;
    }
}

/* A copy of decision `number`; false if it is held, overwritten or was never written. */
static bool read_row(struct row *row, uint64_t number, struct row *copy)
{
    if (!row_take(row))
        return false;
    bool is_it = row->number == number;
    if (is_it) {
        copy->number = number;
        copy->pick = row->pick;
        copy->scoring = row->scoring;
        copy->pick.id = fl_bytes(copy->id, row->pick.id.n);
        memcpy(copy->id, row->id, row->pick.id.n);
        copy_candidates(&copy->candidates, &row->candidates);
    }
    row_give(row);
    return is_it;
}

/* ---- JSON ---- */

static void write_candidate(struct fl_json_writer *w, const struct row *row, uint32_t i)
{
    const struct fl_candidates *c = &row->candidates;
    fl_json_write_object(w);
    fl_json_write_key(w, "worker_id");
    fl_json_write_u64(w, c->worker_id[i]);
    fl_json_write_key(w, "dp_rank");
    fl_json_write_u64(w, c->dp_rank[i]);
    if (c->filter[i] != FL_FILTER_NONE) {
        fl_json_write_key(w, "filtered");
        fl_json_write_cstr(w, fl_filter_name(c->filter[i]));
        fl_json_write_object_end(w);
        return;
    }
    struct fl_terms terms = fl_candidates_terms(c, i, &row->scoring);
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {
        {"device_blocks", c->has_overlap ? c->device[i] : 0},
        {"host_blocks", c->has_overlap ? c->host[i] : 0},
        {"disk_blocks", c->has_overlap ? c->disk[i] : 0},
        {"active_prefill_tokens", (uint64_t)c->prefill_tokens[i]},
    };
    for (size_t k = 0; k < FL_ARRAY_LEN(counts); k++) {
        fl_json_write_key(w, counts[k].key);
        fl_json_write_u64(w, counts[k].value);
    }
    fl_json_write_key(w, "raw");
    fl_json_write_double(w, terms.raw);
    fl_json_write_key(w, "credit");
    fl_json_write_double(w, terms.credit);
    fl_json_write_key(w, "decode_blocks");
    fl_json_write_u64(w, (uint64_t)(terms.decode_blocks + 0.5));
    fl_json_write_key(w, "active_requests");
    fl_json_write_u64(w, (uint64_t)c->requests[i]);
    fl_json_write_key(w, "cost");
    fl_json_write_double(w, terms.cost);
    fl_json_write_object_end(w);
}

/* Filtered ones last, the chosen one before all, the others by cost. */
static bool comes_before(const struct fl_candidates *c, uint32_t a, uint32_t b)
{
    if (a == c->chosen || b == c->chosen)
        return a == c->chosen;
    bool a_is_filtered = c->filter[a] != FL_FILTER_NONE,
         b_is_filtered = c->filter[b] != FL_FILTER_NONE;
    return a_is_filtered != b_is_filtered ? b_is_filtered
                                          : !a_is_filtered && c->cost[a] < c->cost[b];
}

/* Sorted here, when somebody asks, so that no pick sorts. */
static void order_candidates(const struct fl_candidates *c, uint32_t *order)
{
    for (uint32_t i = 0; i < c->count; i++) {
        uint32_t at = i;
        for (; at > 0 && comes_before(c, i, order[at - 1]); at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

static void write_row(struct fl_json_writer *w, const struct row *row)
{
    const struct fl_pick *pick = &row->pick;
    fl_json_write_object(w);
    fl_json_write_key(w, "id");
    fl_json_write_string(w, pick->id);
    fl_json_write_key(w, "time_ms");
    fl_json_write_u64(w, pick->time_ms);
    fl_json_write_key(w, "model_name");
    fl_json_write_string(w, pick->model_name);
    fl_json_write_key(w, "routing_group");
    fl_json_write_string(w, pick->routing_group);
    fl_json_write_key(w, "policy");
    fl_json_write_cstr(w, pick->policy);
    fl_json_write_key(w, "isl_tokens");
    fl_json_write_u64(w, pick->isl_tokens);
    fl_json_write_key(w, "request_blocks");
    fl_json_write_u64(w, (uint64_t)row->scoring.request_blocks);
    fl_json_write_key(w, "worker_id");
    fl_json_write_u64(w, pick->worker_id);
    fl_json_write_key(w, "dp_rank");
    fl_json_write_u64(w, pick->dp_rank);
    fl_json_write_key(w, "ties");
    fl_json_write_u64(w, pick->ties);
    fl_json_write_key(w, "temperature");
    fl_json_write_double(w, pick->temperature);
    fl_json_write_key(w, "queued_ms");
    fl_json_write_u64(w, pick->queued_ms);
    fl_json_write_key(w, "candidates_left_out");
    fl_json_write_u64(w, row->candidates.left_out);
    fl_json_write_key(w, "candidates");
    fl_json_write_array(w);
    uint32_t order[FL_CANDIDATES_MAX];
    order_candidates(&row->candidates, order);
    for (uint32_t i = 0; i < row->candidates.count; i++)
        write_candidate(w, row, order[i]);
    fl_json_write_array_end(w);
    fl_json_write_object_end(w);
}

int fl_explain_write_json(struct fl_explain *ring, const struct fl_explain_filter *filter,
                          struct fl_buf *out)
{
    struct fl_json_writer w;
    fl_json_writer_init(&w, out);
    fl_json_write_array(&w);
    struct row *row = fl_calloc(1, sizeof *row);
    uint64_t newest = atomic_load_explicit(&ring->next, memory_order_acquire);
    uint64_t oldest = newest > FL_EXPLAIN_ROWS ? newest - FL_EXPLAIN_ROWS + 1 : 1;
    uint32_t written = 0;
    for (uint64_t number = newest; number >= oldest && written < filter->limit; number--) {
        if (!read_row(&ring->rows[number % FL_EXPLAIN_ROWS], number, row))
            continue;
        if (!fl_bytes_is_absent(filter->id) && !fl_bytes_eq(filter->id, row->pick.id))
            continue;
        if (filter->has_worker && filter->worker_id != row->pick.worker_id)
            continue;
        write_row(&w, row);
        written++;
    }
    fl_free(row);
    fl_json_write_array_end(&w);
    return fl_json_writer_end(&w);
}
