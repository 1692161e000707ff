/* SPDX-License-Identifier: Apache-2.0 */
/* What the forwarded requests of one loop share: the rules in force, the pools of connections to
 * endpoints and pickers, counters, and the list of what is under way.
 *
 *   control loop -- published rules --> fl_proxy (one a loop) <-- fl_forward (one a request)
 *
 * The control loop mails a snapshot together with the rules' figures (fl_proxy_publish); the loop
 * adopts both between two turns. A snapshot goes back through `give_back` when the loop's last
 * request that was matched in it has ended. Single loop, no locks. */
#ifndef FL_PROXY_PROXY_H
#define FL_PROXY_PROXY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/log.h"
#include "base/map.h"
#include "base/metric.h"
#include "net/loop.h"
#include "net/resolver.h"
#include "proxy/metrics.h"
#include "rules/rules.h"
#include "web/exchange.h"

/* Set at start, shared by all loops, read-only. */
struct fl_proxy_config {
    uint32_t loops;
    size_t max_body_bytes; /* of a request body that has to be kept */
    size_t max_header_bytes;
    uint32_t max_headers;
    uint32_t epp_max_inflight; /* questions open at once, all loops */
    int no_route_status;       /* 503 or 404 */
    bool trusts_forwarded;
    bool sends_protocol_config;     /* gateway.md 9.2 */
    const char *const *strip;       /* NULL-terminated, or NULL */
    struct fl_budget *budget;       /* of all kept bodies */
    struct fl_metrics *metrics;     /* fl_proxy_metric_descs; shard = loop index */
    _Atomic uint32_t *epp_inflight; /* questions open, all loops */
};

/* One generation of rules on its way to the loops. The control loop's; lives until every loop has
 * given the snapshot back. */
struct fl_proxy_rules {
    struct fl_rules_snapshot *snapshot;
    struct fl_proxy_rule_stats **stats; /* parallel to snapshot->rules */
};

struct fl_proxy {
    const struct fl_proxy_config *config;
    struct fl_loop *loop;
    uint32_t index;
    struct fl_web_pool *pool;
    struct fl_rules_snapshot *snapshot; /* NULL before the first publication */
    struct fl_map_u64 stats;            /* a rule's live block -> its figures */
    struct fl_link pickers;             /* picker.h */
    struct fl_resolver *resolver;
    struct fl_log_limit picker_limit;
    struct fl_link forwards; /* requests under way */
    uint32_t forward_count;
    bool is_draining;
    void (*give_back)(void *owner, struct fl_rules_snapshot *snapshot);
    void (*on_quiet)(void *owner); /* while draining: no request is under way any more */
    void *owner;
};

/* `proxy` is zeroed but for config, give_back, on_quiet and owner. */
void fl_proxy_init(struct fl_proxy *proxy, struct fl_loop *loop, uint32_t index);
/* All client connections are closed by then. The last snapshot is not given back. */
void fl_proxy_fini(struct fl_proxy *proxy);

/* The loop decides by these rules from now on. `rules` is borrowed. */
void fl_proxy_adopt(struct fl_proxy *proxy, const struct fl_proxy_rules *rules);

/* Answers say Connection: close from now on; on_quiet comes when nothing is under way (at once from
 * a later turn if nothing is). */
void fl_proxy_drain(struct fl_proxy *proxy);
/* Ends every request that is under way. */
void fl_proxy_abort(struct fl_proxy *proxy);

static inline struct fl_proxy_rule_shard *fl_proxy_rule_shard(const struct fl_proxy *proxy,
                                                              const struct fl_rule *rule)
{
    struct fl_proxy_rule_stats *stats =
        fl_map_u64_find(&proxy->stats, (uint64_t)(uintptr_t)rule->live);
    return stats == NULL ? NULL : &stats->shards[proxy->index];
}

#endif
