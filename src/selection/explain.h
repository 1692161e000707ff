/* SPDX-License-Identifier: Apache-2.0 */
/* Explain ring: why this worker? The last FL_EXPLAIN_ROWS decisions with what every candidate was
 * judged by (selection.md 9.8).
 *
 * A row is held by whoever writes or copies it, for a fraction of a microsecond, and nobody waits
 * for it: a reader passes a held row over, and a writer that finds the next row held (a reader is
 * in it, or another writer a whole ring behind) takes the one after. Only who finds
 * FL_EXPLAIN_TRIES rows in a row held gives its decision up.
 *
 * No prompt, token or hash is stored. Any thread. */
#ifndef FL_SELECTION_EXPLAIN_H
#define FL_SELECTION_EXPLAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "selection/selector.h"

struct fl_buf;

#define FL_EXPLAIN_ROWS 4096
#define FL_EXPLAIN_TRIES 8
#define FL_EXPLAIN_TEXT 256 /* bytes kept of an id; selection ids are no longer */

struct fl_explain; /* one service's ring; about 18 MiB, touched as it fills */

struct fl_explain *fl_explain_new(void);
/* NULL allowed. Nobody is reading or writing. */
void fl_explain_free(struct fl_explain *ring);

/* What the candidates do not say. */
struct fl_pick {
    struct fl_bytes id, model_name,
        routing_group;  /* id cut at FL_EXPLAIN_TEXT; the others lent for the ring's life */
    const char *policy; /* lent for the ring's life */
    uint64_t time_ms;   /* wall clock */
    uint64_t isl_tokens, queued_ms;
    uint64_t worker_id;
    uint32_t dp_rank, ties;
    double temperature;
};

/* Asks the cache for the row that will probably be written next: the ring is larger than any cache
 * near the CPU, and the work before a decision hides the wait. `candidates`: about how many there
 * will be. */
void fl_explain_prepare(const struct fl_explain *ring, uint32_t candidates);
void fl_explain_write(struct fl_explain *ring, const struct fl_pick *pick,
                      const struct fl_scoring *scoring, const struct fl_candidates *candidates);

struct fl_explain_filter {
    uint32_t limit;     /* 1..FL_EXPLAIN_ROWS */
    struct fl_bytes id; /* absent: all */
    bool has_worker;    /* chosen */
    uint64_t worker_id;
};
/* Appends a JSON array, newest first. 0 or the buffer's error. */
int fl_explain_write_json(struct fl_explain *ring, const struct fl_explain_filter *filter,
                          struct fl_buf *out);

#endif
