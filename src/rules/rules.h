/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a gateway's rules and how a change becomes live on all loops (gateway.md 4.6,
 * 5, 5.1).
 *
 *   control loop                              request loop i
 *   ------------                              --------------
 *   fl_rules_post() ... -> next snapshot
 *   bind new listeners (program)
 *   fl_rules_commit() ---- mailbox ---------> fl_rules_adopt(next, i), acknowledge
 *                                             fl_rules_hold / fl_rules_release per request
 *   fl_rules_give_back(old) <-- mailbox ----- when adopt/release say so
 *   (freed when every loop gave it back)
 *
 * A snapshot is immutable: rules in creation order, and the same rules by listener in the order in
 * which they are tried. Unchanged rules are shared with the former snapshot. A change is prepared
 * first and committed or abandoned as a whole, because binding a new VIP may still fail.
 *
 * Threads: everything is the control loop's but the calls under "request loops", which touch only
 * the snapshot, that loop's own count in it, and the rules' live blocks. */
#ifndef FL_RULES_RULES_H
#define FL_RULES_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "rules/rule.h"

#define FL_RULES_MAX 4096 /* gateway.md 4.2: 403 rule-hwm error above */

/* Rules of one VIP:port. */
struct fl_rules_listener {
    struct fl_rule_ip ip;
    uint16_t port;
    struct fl_rule **rules; /* host before host-less, exact path before longest prefix before none,
                               model before none, then by creation; lent by the snapshot */
    uint32_t rule_count;
    const struct fl_rule *only; /* the one keyless rule: no lookup; else NULL */
    bool needs_model;           /* some rule has a model_name: the request's model must be known */
};

/* What one loop counts for one snapshot, on its own cache line. */
struct fl_rules_use {
    alignas(64) uint32_t users;
    bool is_retired; /* the loop has adopted a newer one */
};

struct fl_rules_snapshot {
    uint64_t generation;
    struct fl_rule **rules; /* creation order */
    uint32_t rule_count;
    struct fl_rules_listener *listeners; /* sorted by address and port */
    uint32_t listener_count;
    /* control loop */
    struct fl_link link;        /* in fl_rules.held once committed */
    uint32_t owed;              /* loops that have not given it back */
    struct fl_rule **listed;    /* memory of all listeners' lists */
    struct fl_rules_use uses[]; /* one per loop */
};

struct fl_rules {
    uint32_t loops;
    uint32_t max_rules;                /* FL_RULES_MAX; tests lower it */
    struct fl_rules_snapshot *current; /* never NULL */
    struct fl_link held;               /* all committed snapshots not freed yet, current included */
    uint32_t held_count;               /* fairlead_gateway_rules_generations_held: 1 at rest */
};

/* `loops` >= 1. The first snapshot is empty, generation 1, and every loop must adopt it. */
void fl_rules_init(struct fl_rules *rules, uint32_t loops);
/* All loops have stopped: frees every snapshot, given back or not. Idempotent. */
void fl_rules_fini(struct fl_rules *rules);

/* ---- changes: prepare, then commit or abandon; one at a time ---- */

/* All of these return the snapshot to commit, or NULL when nothing changes: a refusal, or a success
 * that changes nothing. `answer` is always filled in. */

/* POST /config/loadbalancer with `oper` 0, 1, 2 (4.6). */
struct fl_rules_snapshot *fl_rules_post(struct fl_rules *rules, struct fl_bytes json,
                                        uint64_t now_unix_ms, struct fl_rest_answer *answer);
/* The same for an entry read already; takes the reference of `rule`. */
struct fl_rules_snapshot *fl_rules_post_rule(struct fl_rules *rules, struct fl_rule *rule,
                                             struct fl_rest_answer *answer);
/* One change of many rules, for rule files (2.2) and a restored snapshot: each of `put` is created
 * or replaced as by POST, those that are equal to a present one are not touched, and the rules with
 * a key of `drop` that is not put go. Takes the references in `put`. NULL: nothing differs (200) or
 * one was refused, and then nothing changes. */
struct fl_rules_snapshot *fl_rules_apply(struct fl_rules *rules, struct fl_rule *const *put,
                                         uint32_t put_count, const struct fl_bytes *drop,
                                         uint32_t drop_count, struct fl_rest_answer *answer);
/* What a path names. `host` absent or empty: host-less; the others absent: empty, disabled. */
struct fl_rules_target {
    struct fl_bytes ip, port, protocol, host, path_prefix, path_match_mode, model_name;
};
struct fl_rules_snapshot *fl_rules_delete(struct fl_rules *rules,
                                          const struct fl_rules_target *target,
                                          struct fl_rest_answer *answer);
struct fl_rules_snapshot *fl_rules_delete_name(struct fl_rules *rules, struct fl_bytes name,
                                               struct fl_rest_answer *answer);
struct fl_rules_snapshot *fl_rules_delete_all(struct fl_rules *rules,
                                              struct fl_rest_answer *answer);
/* Every PATCH is refused (4.7); this finds the words. */
void fl_rules_patch(const struct fl_rules *rules, const struct fl_rules_target *target,
                    struct fl_bytes body, struct fl_rest_answer *answer);

/* `next` becomes current; the former stays until all loops gave it back. Send `next` to every loop.
 */
void fl_rules_commit(struct fl_rules *rules, struct fl_rules_snapshot *next);
/* Nothing happened. */
void fl_rules_abandon(struct fl_rules *rules, struct fl_rules_snapshot *next);
/* A loop is done with it (its mail arrived). Frees it after the last loop's. */
void fl_rules_give_back(struct fl_rules *rules, struct fl_rules_snapshot *snapshot);

/* ---- reading; control loop, on the current snapshot ---- */

/* First rule on VIP:port:protocol in creation order, or NULL. */
const struct fl_rule *fl_rules_find(const struct fl_rules *rules,
                                    const struct fl_rules_target *target);
const struct fl_rule *fl_rules_find_id(const struct fl_rules *rules, struct fl_bytes id);
/* {"lbAttr":[...]}; `project_id` absent: all. */
void fl_rules_write_all(struct fl_json_writer *writer, const struct fl_rules *rules,
                        struct fl_bytes project_id, bool with_live);

/* ---- request loops ---- */

/* The loop makes `next` its snapshot and retires `before` (NULL the first time). True: nobody on
 * this loop uses `before` any more, mail it back now. */
bool fl_rules_adopt(struct fl_rules_snapshot *next, struct fl_rules_snapshot *before,
                    uint32_t loop);
/* A request (or connection) of this loop uses the snapshot from now on. */
void fl_rules_hold(struct fl_rules_snapshot *snapshot, uint32_t loop);
/* It is done. True: that was the last one and the snapshot is retired: mail it back. */
bool fl_rules_release(struct fl_rules_snapshot *snapshot, uint32_t loop);

/* The listener of that address in the snapshot, or NULL. */
const struct fl_rules_listener *fl_rules_listener(const struct fl_rules_snapshot *snapshot,
                                                  const struct fl_rule_ip *ip, uint16_t port);

enum fl_rules_miss { FL_RULES_FOUND, FL_RULES_NO_ROUTE, FL_RULES_MODEL_UNAVAILABLE };

/* The rule of a request (5.3). `host` as in the Host field, `path` without query, `model` absent if
 * there is none. */
const struct fl_rule *fl_rules_match(const struct fl_rules_listener *listener, struct fl_bytes host,
                                     struct fl_bytes path, struct fl_bytes model,
                                     enum fl_rules_miss *miss);

/* ---- selectors (gateway.md 10); any loop ---- */

#define FL_RULE_NO_ENDPOINT UINT32_MAX
#define FL_RULE_MAX_TRIED 4 /* gateway.md 8.3: at most 4 attempts a request */

/* The next endpoint by the rule's `sel` (0 round robin, 2 smooth WRR, 4 least in flight), without
 * those in `tried` (at most FL_RULE_MAX_TRIED indices); FL_RULE_NO_ENDPOINT when none is usable.
 * With sel 4 it is counted in flight until fl_rule_done(). */
uint32_t fl_rule_select(const struct fl_rule *rule, const uint32_t *tried, uint32_t tried_count,
                        uint64_t now_ms);
/* The same booking for an endpoint that somebody else chose (an EPP). */
void fl_rule_take(const struct fl_rule *rule, uint32_t endpoint);
/* The request at `endpoint` has ended, or never began. Once per selection. */
void fl_rule_done(const struct fl_rule *rule, uint32_t endpoint);

/* Active, breaker not open, weight > 0 (10.1, 9.5); backup or not. */
bool fl_rule_is_usable(const struct fl_rule *rule, uint32_t endpoint, uint64_t now_ms);
/* Index of "ip:port" (any spelling of the address), or FL_RULE_NO_ENDPOINT. */
uint32_t fl_rule_find_endpoint(const struct fl_rule *rule, struct fl_bytes address);

/* A connect failed or succeeded: passive state and breaker (11.3, 11.4). */
void fl_rule_connect_failed(const struct fl_rule *rule, uint32_t endpoint, uint64_t now_ms);
void fl_rule_connect_worked(const struct fl_rule *rule, uint32_t endpoint);
/* Control loop: what the probes found. True if that is a change (11.5). */
bool fl_rule_set_active(const struct fl_rule *rule, uint32_t endpoint, bool is_active);

/* Shown counters of an endpoint. */
void fl_rule_count(const struct fl_rule *rule, uint32_t endpoint, uint32_t loop, uint64_t requests,
                   uint64_t bytes);

#endif
