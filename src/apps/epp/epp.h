/* SPDX-License-Identifier: Apache-2.0 */
/* `fairlead epp`: the endpoint picker as a program. Wiring only; what a pick does stands in pick/,
 * the protocol in extproc/, the choice in service/.
 *
 *   main thread = control loop: workers file, metrics, health port, debug port, signals
 *   loops 1..N: ext_proc streams, each connection on one loop for its life
 *   event thread of the runtime: KV events
 *
 *   epp.c       start order (epp.md 1.3), drain (1.5)
 *   config.c    options
 *   loops.c     request loops, accepted connections handed to the one that has fewest
 *   stream.c    one ext_proc stream: picker protocol <-> pick, booking, usage
 *   workers.c   workers file -> service and directory
 *   control.c   /metrics, /healthz, /readyz, /debug/picks, /debug/explain */
#ifndef FL_APPS_EPP_EPP_H
#define FL_APPS_EPP_EPP_H

#include "apps/epp/config.h"
#include "extproc/server.h"
#include "net/signals.h"
#include "net/threads.h"
#include "net/tls.h"
#include "net/watch.h"
#include "pick/pick.h"
#include "web/exchange.h"
#include "web/health.h"
#include "web/rest.h"

enum {
    EPP_REQUESTS,        /* by outcome */
    EPP_REQUEST_SECONDS, /* by outcome */
    EPP_STREAMS,         /* open */
    EPP_FIRST_BODY_SECONDS,
    EPP_LIFECYCLE, /* by operation */
    EPP_CACHED_TOKENS,
    EPP_REUSE_TOKENS, /* by kind */
    EPP_MISMATCHES,
    EPP_REJECTIONS, /* by reason */
    EPP_BUFFER_REJECTIONS,
    EPP_METRIC_COUNT
};
extern const struct fl_metric_desc epp_metric_descs[EPP_METRIC_COUNT];

enum epp_outcome {
    EPP_RESPONSE_EOS,
    EPP_UPSTREAM_HTTP_ERROR,
    EPP_EARLY_REJECT,
    EPP_EXT_PROC_ERROR,
    EPP_INCOMPLETE,
};

struct epp;

/* One request loop and what lives on it. The health service of the control loop cannot be used
 * here: one object a loop. */
struct epp_loop {
    struct epp *epp;
    struct fl_loop *loop;
    size_t index;
    struct fl_web_server *server;
    struct fl_extproc_server *extproc;
    struct fl_tokenizer *tokenizer; /* NULL: protocol none */
    struct fl_pick_env env;
    struct fl_health *health;
    struct fl_timer census;
    uint64_t buffer_rejections;   /* told so far */
    _Atomic uint32_t connections; /* for the hand-over; written by the loop itself */
    _Atomic uint32_t streams;     /* open, for the drain */
};

struct epp {
    struct epp_config config;
    struct fl_loop *control;
    struct fl_runtime *runtime;
    struct fl_selection *service;
    struct fl_directory directory;
    struct fl_pick_log log;
    struct fl_pick_shared shared;
    struct fl_metrics pick_metrics, metrics;
    struct fl_budget budget;
    struct fl_picker_config picker;
    struct fl_tls_context *tls;
    struct fl_bytes *lora_names;
    uint32_t lora_count;

    struct fl_loops *threads;
    struct epp_loop *loops;
    struct fl_listener *listener; /* ext_proc */

    /* control loop */
    struct fl_worker_set workers;
    struct fl_watch *watch;
    uint64_t stale_since_ms; /* 0: the file is current */
    struct fl_listener *health_listener, *metrics_listener, *debug_listener;
    struct fl_web_server *health_server, *metrics_server, *debug_server;
    struct fl_rest metrics_rest, debug_rest;
    struct fl_tokenizer *control_tokenizer; /* for /debug/explain */
    struct fl_pick_env control_env;
    struct fl_health_names health_names;
    struct fl_health *health; /* of the health port */
    char *debug_token;        /* NULL: none asked for */
    struct fl_signals *signals;
    struct fl_timer drain;
    uint64_t drain_from_ms, drain_until_ms;
    bool is_draining, is_cut;
};

/* ---- workers.c ---- */

/* Reads and applies the file. At start a refused file is an error; later the last set stays in
 * force. */
int epp_workers_load(struct epp *epp, struct fl_error *err);
void epp_workers_reload(struct epp *epp);
/* --check: 0, or 1 after a line for each problem. */
int epp_workers_check(const struct epp_config *config);

/* ---- loops.c ---- */

#define EPP_CENSUS_MS 100 /* how often a loop shows its connections and streams to the others */

int epp_loops_start(struct epp *epp, struct fl_error *err);
void epp_loops_accept(struct epp *epp);
struct fl_tokenizer *epp_tokenizer_new(struct epp *epp, struct fl_loop *loop);
/* GOAWAY on every connection; streams go on. */
void epp_loops_drain(struct epp *epp);
/* The end of the drain: what waits is refused, the rest cut. */
void epp_loops_cut(struct epp *epp);
/* Streams open on all loops. */
uint32_t epp_loops_streams(struct epp *epp);
void epp_loops_stop(struct epp *epp);

/* ---- stream.c ---- */

/* Owner: struct epp_loop. */
extern const struct fl_extproc_server_ops epp_stream_ops;

/* ---- control.c ---- */

int epp_control_start(struct epp *epp, struct fl_error *err);
void epp_control_stop(struct epp *epp);

#endif
