/* SPDX-License-Identifier: Apache-2.0 */
/* Explain ring: why this worker? The last FL_EXPLAIN_ROWS decisions with what every candidate was
 * judged by (selection.md 9.8).
 *
 * A writer takes the next number and fills that row; it never waits. Rows are guarded by a sequence
 * count: odd while being written; a reader copies a row and throws the copy away if the count
 * moved. Two writers that are a whole ring apart and meet in one row (one of them was stopped for
 * 4,096 decisions): the later one gives its row up. Rows are arrays of atomic words, so that the
 * copy that may be torn is no data race.
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

void fl_explain_write(struct fl_explain *ring, const struct fl_pick *pick,
                      const struct fl_scoring *scoring, const struct fl_candidates *candidates);

struct fl_explain_filter {
    uint32_t limit;     /* 1..FL_EXPLAIN_ROWS */
    struct fl_bytes id; /* absent: all */
    bool has_worker;    /* chosen */
    uint64_t worker_id;
};
/* Appends a JSON array, newest first. 0 or the buffer's error. */
int fl_explain_write_json(const struct fl_explain *ring, const struct fl_explain_filter *filter,
                          struct fl_buf *out);

#endif
