/* SPDX-License-Identifier: Apache-2.0 */
/* `fairlead demo`: a whole system of real processes on loopback, a real trace, one table (design.md
 * section 6).
 *
 *   main.c      options, policies one after the other, the full-size row
 *   system.c    engines, tokenizer, picker, gateway as child processes; rule posted over REST; all
 * ended by pid scrape.c    figures read from every process's /metrics report.c    the table, the
 * words under it, the JSON file
 *
 * One thread, one loop; steps wait by turning the loop until a condition holds or a deadline
 * passes. */
#ifndef FL_APPS_DEMO_DEMO_H
#define FL_APPS_DEMO_DEMO_H

#include "apps/replay/replay.h"
#include "base/buf.h"
#include "base/opt.h"
#include "net/loop.h"
#include "net/process.h"
#include "net/stream.h"
#include "sim/trace.h"
#include "web/exchange.h"

#define DEMO_ENGINES_MAX 64
#define DEMO_POLICIES_MAX 8
#define DEMO_MODEL "fairlead-demo"
#define DEMO_BLOCK_TOKENS 16
#define DEMO_READY_MS 20000 /* a process that is not ready by then is not coming */
#define DEMO_STOP_MS 15000
#define DEMO_SETTLE_MS 5000 /* for the last bookings to be freed */

struct demo_config {
    const char *trace, *policies, *json_file, *token_scale;
    uint32_t requests, engines, blocks, full_size;
    double speed, time_scale;
    bool keep;
};

/* ---- system.c ---- */

struct demo_child {
    struct fl_process *process; /* NULL: ended */
    char name[24];
    char ready[512];
    char log[512];
    struct fl_addr http, kv_events, kv_replay; /* engine; http of others is their main listener */
    struct fl_addr metrics, debug;
    int status, signal;
    bool is_ended;
};

struct demo_system {
    struct fl_loop *loop;
    char folder[256];
    struct demo_child engines[DEMO_ENGINES_MAX], tokenizer, epp, gateway;
    uint32_t engine_count;
    struct fl_addr vip;
};

struct demo_shape {
    uint32_t engines, blocks;
    double prefill_tps, time_scale;
    const char *policy;
    uint64_t max_body_bytes;
};

/* All of it, ready to serve; FL_EIO with a sentence otherwise (what was started is ended). */
int demo_system_start(struct demo_system *system, struct fl_loop *loop,
                      const struct demo_shape *shape, struct fl_error *err);
/* SIGTERM, gateway first; what does not end in time is killed. False: somebody ended badly (said on
 * stderr). */
bool demo_system_stop(struct demo_system *system);
/* Turns the loop until `is_true` or the time is over. */
bool demo_wait(struct fl_loop *loop, bool (*is_true)(void *owner), void *owner,
               uint64_t timeout_ms);

/* ---- scrape.c ---- */

/* GET http://addr/path into `body`. FL_EIO... with a sentence. */
int demo_fetch(struct fl_loop *loop, const struct fl_addr *addr, const char *method,
               const char *path, struct fl_bytes request_body, int *status, struct fl_buf *body,
               struct fl_error *err);
/* Sum of a family's samples on a metrics page; `label`: only those whose line holds that text,
 * NULL: all. */
double demo_metric(struct fl_bytes page, const char *name, const char *label);

/* ---- results, report.c ---- */

struct demo_row {
    const char *policy;
    uint64_t requests, errors;
    double hit_rate, engine_hit_rate;
    double ttft_mean, ttft_p50, ttft_p90, ttft_p99; /* ms of the trace's time */
    double imbalance, picks_per_s;
    double router_p50_us, router_p99_us;
    uint64_t booked, freed, peak_open;
    char first_error[160];
    bool is_sound; /* no error, booked = freed = requests, both hit rates equal, all processes ended
                      well */
};

struct demo_report {
    struct demo_row rows[DEMO_POLICIES_MAX];
    uint32_t row_count;
    struct demo_row full_size;
    bool has_full_size;
    uint32_t engines;
};

void demo_report_head(const struct demo_config *config, size_t requests);
void demo_report_row(const struct demo_row *row);
void demo_report_words(const struct demo_report *report);
int demo_report_json(const struct demo_report *report, const struct demo_config *config, bool ok,
                     struct fl_error *err);

#endif
