/* SPDX-License-Identifier: Apache-2.0 */
/* What only the picker knows of its last decisions, beside the selector's explain ring
 * (epp.md 19.6).
 *
 *   ring of FL_PICK_LOG_SIZE records; number n lies at n % size and is overwritten by n + size
 *
 * Written once when a pick ends and amended while its stream goes on (`after`); one short lock,
 * held to copy a record, never while a reader formats. Never in it: prompt text, token ids, hashes,
 * headers. Any thread. */
#ifndef FL_PICK_RECORD_H
#define FL_PICK_RECORD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/rng.h"
#include "fairlead/selection.h"
#include "net/stream.h"
#include "pick/directory.h"

#define FL_PICK_LOG_SIZE 4096

struct fl_pick_record {
    uint64_t number;  /* 1, 2, ...; 0: empty */
    uint64_t time_ms; /* wall clock */
    char request_id[129];
    char reservation[FL_UUID_TEXT]; /* "": no selection was made */
    const char *kind;               /* "chat", "completions", "load_only", "header_only" */
    const char *outcome;            /* "picked" or the word of epp.md section 6 */
    char endpoint[FL_ADDR_TEXT];
    char worker[96]; /* label, cut */
    uint64_t worker_id;
    uint64_t tokenize_us, queue_us, select_us, total_us;
    int32_t subset; /* items of the hint; -1: none given */
    bool is_dry_run;
    struct {
        bool is_set;
        char served[FL_ADDR_TEXT];
        int64_t cached_tokens; /* as the engine says; -1: unknown */
        double ttft_ms;        /* < 0: unknown */
        const char *cause;     /* NULL: not ended */
    } after;
};

struct fl_pick_log {
    pthread_mutex_t lock;
    struct fl_pick_record *records;
    uint64_t last; /* number given last */
};

void fl_pick_log_init(struct fl_pick_log *log);
void fl_pick_log_fini(struct fl_pick_log *log);

/* Stores a copy with the next number, which is returned. */
uint64_t fl_pick_log_add(struct fl_pick_log *log, const struct fl_pick_record *record);
/* Amends record `number` if it is still there; each NULL or negative argument leaves its member
 * alone. */
void fl_pick_log_after(struct fl_pick_log *log, uint64_t number, const char *served,
                       int64_t cached_tokens, double ttft_ms, const char *cause);

struct fl_pick_filter {
    uint32_t limit; /* 1..4096 */
    struct fl_bytes id, request_id;
    struct fl_maybe_u64 worker_id;
};

/* Who writes, and where workers' names come from. */
struct fl_pick_naming {
    const char *source, *role;      /* "epp", "aggregated" */
    struct fl_directory *directory; /* NULL: candidates stay numbers */
};

/* Appends a JSON array, newest first, each record joined with the selector's own by reservation id.
 */
int fl_pick_log_write(struct fl_pick_log *log, struct fl_selection *service,
                      const struct fl_pick_naming *naming, const struct fl_pick_filter *filter,
                      struct fl_buf *out);
/* One record, joined with `selection` (the selector's JSON object; absent: none). */
int fl_pick_record_write(const struct fl_pick_record *record, struct fl_bytes selection,
                         const struct fl_pick_naming *naming, struct fl_buf *out);

#endif
