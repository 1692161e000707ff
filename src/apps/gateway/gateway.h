/* SPDX-License-Identifier: Apache-2.0 */
/* The gateway's process: one control loop (main thread) and N request loops.
 *
 *   REST, --rule --> change queue --> next snapshot --> bind --> commit --> mail to loops
 *                        ^                                                     |
 *                        +-- answer, next change <-- all loops acknowledged <--+
 *
 * Changes run one at a time; each is live on every loop before it is answered (gateway.md 5.1).
 * Everything here is the control loop's, except struct gateway_loop, which belongs to its own
 * thread once that runs, and what is marked atomic. */
#ifndef FL_APPS_GATEWAY_GATEWAY_H
#define FL_APPS_GATEWAY_GATEWAY_H

#include <stdatomic.h>

#include "apps/gateway/config.h"
#include "base/list.h"
#include "base/map.h"
#include "base/metric.h"
#include "net/threads.h"
#include "proxy/forward.h"
#include "rules/rules.h"
#include "web/rest.h"

#define GATEWAY_ACK_MS 5000              /* gateway.md 5.1.4 */
#define GATEWAY_RULE_DRAIN_MS 30000      /* gateway.md 12: connections of a removed listener */
#define GATEWAY_REST_BODY_MAX (4u << 20) /* gateway.md 4.1 */

struct gateway;

/* ---- request loops: loop.c ---- */

struct gateway_loop {
    struct gateway *gateway;
    uint32_t index;
    struct fl_loop *loop;
    struct fl_proxy proxy;
    struct fl_link entries; /* VIP:port with a listener, and those whose connections are ending */
    struct fl_timer look;   /* while something drains */
    uint64_t drain_deadline_ms;
    bool is_draining, is_drained;
};

/* A listener on its way to each loop, or an address whose listeners are to close. */
struct gateway_binding {
    struct fl_rule_ip ip;
    uint16_t port;
    uint64_t head_timeout_ms, idle_timeout_ms;
    struct fl_listener **listeners; /* one per loop; taken by it. NULL: close */
};

/* One generation on its way. Freed when every loop has acknowledged and given it back. */
struct gateway_publication {
    struct fl_link link; /* gateway->publications */
    struct gateway *gateway;
    struct fl_proxy_rules rules;
    uint64_t *live_keys; /* parallel to rules.stats */
    uint32_t count;
    struct gateway_binding *bindings;
    uint32_t binding_count;
    uint32_t unacknowledged, not_given_back;
    uint64_t *acknowledged; /* bit per loop */
};

/* Starts all loops, each with the current publication. 0 or FL_EIO. */
int gateway_loops_start(struct gateway *gateway, struct fl_error *err);
/* From the control loop, by mail. */
void gateway_loop_publish(struct gateway_loop *worker, struct gateway_publication *publication);
void gateway_loop_drain(struct gateway_loop *worker, uint64_t timeout_ms);
/* ---- changes: publish.c ---- */

enum gateway_change_kind {
    GATEWAY_POST,   /* `rule` */
    GATEWAY_DELETE, /* `target` */
    GATEWAY_DELETE_NAME,
    GATEWAY_DELETE_ALL,
};

struct gateway_change {
    struct fl_link link;
    enum gateway_change_kind kind;
    bool is_from_file;
    struct fl_rule *rule;          /* taken */
    struct fl_rules_target target; /* lent until done */
    struct fl_bytes name;          /* lent until done */
    /* Once, when the change is live or refused. */
    void (*done)(struct gateway_change *change, const struct fl_rest_answer *answer);
    void *owner;
};

/* Queues; `done` comes now or later. The change stays the caller's. */
void gateway_change_submit(struct gateway *gateway, struct gateway_change *change);
/* Nobody waits for the answer any more: unqueues it, or lets it run without `done`. */
void gateway_change_forget(struct gateway *gateway, struct gateway_change *change);

/* Mail of a loop. */
void gateway_acknowledged(struct gateway *gateway, struct gateway_publication *publication,
                          uint32_t loop);
void gateway_given_back(struct gateway *gateway, struct fl_rules_snapshot *snapshot);
void gateway_loop_drained(struct gateway *gateway, uint32_t loop);

/* The first publication, of the empty snapshot: what loops start with. */
void gateway_publish_first(struct gateway *gateway);
/* All loops have stopped and their mail is read. */
void gateway_publications_fini(struct gateway *gateway);
const struct gateway_publication *gateway_current(const struct gateway *gateway);

/* ---- the process ---- */

struct gateway_file_rules {
    struct fl_rule **rules; /* one reference each */
    size_t count;
};

struct gateway {
    const struct gateway_config *config;
    struct fl_proxy_config proxy_config;
    struct fl_budget budget;
    struct fl_metrics metrics;
    _Atomic uint32_t epp_inflight;

    struct fl_loop *control;
    struct fl_loops *threads;
    struct gateway_loop *loops; /* each its own thread's */
    uint32_t loop_count;

    struct fl_rules rules;
    struct fl_map_u64 stats; /* a rule's live block -> struct fl_proxy_rule_stats */
    struct fl_link publications;
    struct fl_link changes; /* waiting */
    struct gateway_change *running;
    struct gateway_publication *in_flight;
    struct fl_timer ack_timer;
    struct fl_link file_keys; /* keys that a --rule file holds */

    struct fl_rest rest;
    struct fl_web_server *rest_server;
    struct fl_listener *rest_listener;
    bool has_metrics;

    /* life: main.c */
    struct gateway_file_rules file_rules; /* not posted yet */
    size_t file_at;
    struct gateway_change file_change;
    bool is_ready, is_stopping;
    uint32_t loops_draining;
    struct fl_timer delay_timer;
    struct fl_error failure; /* why the process ends, if not by a signal */
};

/* Seconds since the epoch in ms, for rules' timestamps. */
uint64_t gateway_unix_ms(void);

/* rest.c */
int gateway_rest_start(struct gateway *gateway, struct fl_error *err);
void gateway_rest_stop(struct gateway *gateway);

/* report.c: everything of /metrics. 0 or the buffer's error. */
int gateway_write_metrics(const struct gateway *gateway, struct fl_buf *out);

/* rule_files.c: reads the files into rules. 0 or FL_ECONFIG with file and field. */
int gateway_files_read(const struct fl_opt_list *files, struct gateway_file_rules *out,
                       struct fl_error *err);
void gateway_files_fini(struct gateway_file_rules *rules);
/* True if `key` is held by a file. */
bool gateway_files_hold(const struct gateway *gateway, struct fl_bytes key);
void gateway_files_remember(struct gateway *gateway, struct fl_bytes key);
void gateway_files_forget_all(struct gateway *gateway);

#endif
