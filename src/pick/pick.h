/* SPDX-License-Identifier: Apache-2.0 */
/* One pick: a whole request in, a worker and a booking out (epp.md 10.2, 12.2). Used by the EPP
 * and, later, by the gateway's in-process picker.
 *
 *   start --> TOKENIZING --ids--> select --DONE--> BOOKED --> HANDED
 *     |           |                  |--QUEUED--> QUEUED --mail--> BOOKED
 *     |           |                  |--refused-> FAILED
 *     |           +-- error, 504, cancel -------> FAILED
 *     +-- no body: any ready worker, no booking -> HANDED
 *     +-- token array or load-only path: straight to select
 *
 *   event \ state   TOKENIZING             QUEUED                        BOOKED            HANDED,
 * FAILED cancel          exchange aborted       ticket cancelled; a booking   freed             no
 * effect of the same instant is freed decision limit  aborted, 504           ticket cancelled, 504
 * no effect         no effect late answer     -                      dropped by generation dropped
 * dropped late mail       dropped                -                             cannot come booking
 * freed (client_gone)
 *
 * A pick ends once, in one function, which calls `done` last: in a later turn of the loop or inside
 * fl_pick_start() itself, when nothing had to be waited for. A booking that is handed over is the
 * owner's, freed exactly once by fl_booking_free(); any other is freed here.
 *
 * Belongs to one loop. */
#ifndef FL_PICK_PICK_H
#define FL_PICK_PICK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/metric.h"
#include "base/rng.h"
#include "fairlead/selection.h"
#include "http/message.h"
#include "pick/directory.h"
#include "pick/record.h"
#include "tokenizer/tokenizer.h"

/* ---- booking: what a stream holds of a worker (epp.md 12.3) ---- */

enum fl_booking_state { FL_BOOKING_EMPTY, FL_BOOKING_BOOKED, FL_BOOKING_PREFILLED };

struct fl_booking {
    struct fl_selection *service;
    enum fl_booking_state state;
    uint64_t worker_id;
    char id[FL_UUID_TEXT]; /* of the reservation */
};

/* The first non-empty piece of the response came. Later calls do nothing. True the first time. */
bool fl_booking_prefilled(struct fl_booking *booking);
/* Every ending of a stream comes here; only the first finds something to free. True if it freed. */
bool fl_booking_free(struct fl_booking *booking, enum fl_free_cause cause);
/* Moves it out; `from` is empty then. */
struct fl_booking fl_booking_take(struct fl_booking *from);

/* ---- what picks share ---- */

enum {
    FL_PICK_STARTED,
    FL_PICK_ENDED,         /* by outcome word */
    FL_PICK_PHASE_SECONDS, /* by phase */
    FL_PICK_METRIC_COUNT
};
enum { FL_PICK_PHASE_TOKENIZE, FL_PICK_PHASE_SELECT };
extern const struct fl_metric_desc fl_pick_metric_descs[FL_PICK_METRIC_COUNT];

/* One a program; read by all loops, changed at start only but for the atomics. */
struct fl_pick_shared {
    struct fl_selection *service;
    struct fl_directory *directory;
    struct fl_pick_log *log;
    struct fl_metrics *metrics;
    const char *source; /* "epp", "gateway" */
    struct fl_bytes model;
    struct fl_bytes *lora_names; /* served by all workers */
    uint32_t lora_count;
    bool ignore_nvext, skip_model_check;
    struct fl_bytes metadata_prefix;
    uint64_t decision_timeout_ms; /* 0: none */
    uint32_t max_in_flight;
    _Atomic uint32_t in_flight;
    _Atomic bool can_route; /* synchronized once, pool not deleted */
    _Atomic bool is_draining_over;
    _Atomic bool is_credit_off; /* tokenizer gate: ids cannot be the engine's */
};

/* One a loop. */
struct fl_pick_env {
    struct fl_loop *loop;
    struct fl_pick_shared *shared;
    struct fl_tokenizer *tokenizer;    /* NULL: protocol none */
    size_t shard;                      /* of metrics */
    struct fl_pick_executor *executor; /* private */
};

void fl_pick_env_init(struct fl_pick_env *env, struct fl_loop *loop, struct fl_pick_shared *shared,
                      struct fl_tokenizer *tokenizer);
/* No pick is open. Opens what mail is left. */
void fl_pick_env_fini(struct fl_pick_env *env);

/* ---- a pick ---- */

struct fl_pick_request {
    struct fl_bytes method, path;
    const struct fl_fields *fields; /* lower-case names */
    const struct fl_chain *body;    /* whole; NULL or empty: none */
    struct fl_bytes request_id;
    bool has_subset;
    const struct fl_bytes *subset; /* items */
    uint32_t subset_count;
    bool is_dry_run; /* explain: same choice, no booking */
};

struct fl_pick_outcome {
    int rc;              /* 0, or a code of epp.md section 6 */
    struct fl_addr addr; /* the endpoint */
    char authority[FL_ADDR_TEXT];
    struct fl_booking booking; /* empty for requests without a body, and in a dry run */
    uint64_t record;           /* number of its record in the log, for what comes after */
    uint32_t cached_tokens;    /* predicted */
    const struct fl_pick_record *record_of; /* lent: what was logged */
};

struct fl_pick;

/* The request is borrowed until `done`. `done` may come inside this call: then NULL is returned.
 * Else the pick lives until `done` or fl_pick_cancel(). */
struct fl_pick *fl_pick_start(struct fl_pick_env *env, const struct fl_pick_request *request,
                              void (*done)(void *owner, struct fl_pick_outcome *outcome),
                              void *owner);
/* The stream is gone: no `done`; everything is undone. The pointer is dead. */
void fl_pick_cancel(struct fl_pick *pick, enum fl_free_cause cause);

#endif
