/* SPDX-License-Identifier: Apache-2.0 */
#include "selection/explain.h"

#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "codec/json.h"

/* A row as its writer builds it and its reader gets it back. */
struct row {
    uint64_t number; /* of the decision, from 1; 0: never written */
    struct fl_pick pick;
    struct fl_scoring scoring;
    uint8_t id[FL_EXPLAIN_TEXT];
    struct fl_candidates candidates;
};

#define ROW_WORDS ((sizeof(struct row) + 7) / 8)

struct shared_row {
    _Atomic uint64_t sequence; /* odd: being written */
    _Atomic uint64_t words[ROW_WORDS];
};

struct fl_explain {
    _Atomic uint64_t next; /* decisions so far */
    struct shared_row rows[FL_EXPLAIN_ROWS];
};

struct fl_explain *fl_explain_new(void)
{
    return fl_calloc(1, sizeof(struct fl_explain));
}

void fl_explain_free(struct fl_explain *ring)
{
    fl_free(ring);
}

/* Release, so that who reads one of these words sees the odd count that was written before it. */
static void copy_in(struct shared_row *shared, size_t offset, const void *from, size_t n)
{
    const uint8_t *bytes = from;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, n - i < 8 ? n - i : 8);
        atomic_store_explicit(&shared->words[(offset + i) / 8], word, memory_order_release);
    }
}

/* Copies the used part of each of the candidates' arrays, which start at multiples of 8. */
static void copy_candidates_in(struct shared_row *shared, const struct fl_candidates *c)
{
    size_t base = offsetof(struct row, candidates);
#define COPY(array)                                                                                \
    copy_in(shared, base + offsetof(struct fl_candidates, array), c->array,                        \
            c->count * sizeof c->array[0])
    copy_in(shared, base, c, offsetof(struct fl_candidates, worker_id));
    COPY(worker_id);
    COPY(dp_rank);
    COPY(filter);
    COPY(prefill_tokens);
    COPY(blocks);
    COPY(requests);
    COPY(cost);
    COPY(active_shared);
    COPY(device);
    COPY(host);
    COPY(disk);
#undef COPY
}

_Static_assert(offsetof(struct row, id) % 8 == 0 && offsetof(struct row, candidates) % 8 == 0 &&
                   offsetof(struct fl_candidates, worker_id) % 8 == 0 &&
                   offsetof(struct fl_candidates, dp_rank) % 8 == 0 &&
                   offsetof(struct fl_candidates, filter) % 8 == 0 &&
                   offsetof(struct fl_candidates, prefill_tokens) % 8 == 0 &&
                   offsetof(struct fl_candidates, active_shared) % 8 == 0 &&
                   offsetof(struct fl_candidates, device) % 8 == 0 &&
                   offsetof(struct fl_candidates, host) % 8 == 0 &&
                   offsetof(struct fl_candidates, disk) % 8 == 0,
               "copies go by whole words");

void fl_explain_write(struct fl_explain *ring, const struct fl_pick *pick,
                      const struct fl_scoring *scoring, const struct fl_candidates *candidates)
{
    uint64_t number = atomic_fetch_add_explicit(&ring->next, 1, memory_order_relaxed) + 1;
    struct shared_row *shared = &ring->rows[number % FL_EXPLAIN_ROWS];
    uint64_t sequence = atomic_load_explicit(&shared->sequence, memory_order_relaxed);
    if (sequence % 2 != 0 ||
        !atomic_compare_exchange_strong_explicit(&shared->sequence, &sequence, sequence + 1,
                                                 memory_order_acq_rel, memory_order_relaxed))
        return; /* another writer is a whole ring behind; its row is lost to readers, ours too */

    struct fl_pick kept = *pick;
    kept.id.n = pick->id.n < FL_EXPLAIN_TEXT ? pick->id.n : FL_EXPLAIN_TEXT;
    copy_in(shared, offsetof(struct row, number), &number, sizeof number);
    copy_in(shared, offsetof(struct row, pick), &kept, sizeof kept);
    copy_in(shared, offsetof(struct row, scoring), scoring, sizeof *scoring);
    copy_in(shared, offsetof(struct row, id), pick->id.p, kept.id.n);
    copy_candidates_in(shared, candidates);
    atomic_store_explicit(&shared->sequence, sequence + 2, memory_order_release);
}

/* False: being written, or overwritten meanwhile. */
static bool read_row(const struct shared_row *shared, struct row *row)
{
    uint64_t before = atomic_load_explicit(&shared->sequence, memory_order_acquire);
    if (before % 2 != 0)
        return false;
    uint64_t *words = (uint64_t *)(void *)row;
    /* Acquire, for the same; a stand-alone fence would be invisible to ThreadSanitizer. */
    for (size_t i = 0; i < sizeof *row / 8; i++)
        words[i] = atomic_load_explicit(&shared->words[i], memory_order_acquire);
    if (atomic_load_explicit(&shared->sequence, memory_order_relaxed) != before)
        return false;
    row->pick.id.p = row->id;
    return true;
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
        {"device_blocks", c->device[i]},
        {"host_blocks", c->host[i]},
        {"disk_blocks", c->disk[i]},
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

int fl_explain_write_json(const struct fl_explain *ring, const struct fl_explain_filter *filter,
                          struct fl_buf *out)
{
    struct fl_json_writer w;
    fl_json_writer_init(&w, out);
    fl_json_write_array(&w);
    struct row *row = fl_alloc(sizeof *row);
    uint64_t newest = atomic_load_explicit(&ring->next, memory_order_acquire);
    uint64_t oldest = newest > FL_EXPLAIN_ROWS ? newest - FL_EXPLAIN_ROWS + 1 : 1;
    uint32_t written = 0;
    for (uint64_t number = newest; number >= oldest && written < filter->limit; number--) {
        if (!read_row(&ring->rows[number % FL_EXPLAIN_ROWS], row) || row->number != number)
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
