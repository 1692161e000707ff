/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/proxy.h"

#include "proxy/forward_impl.h"

/* gateway.md 8.1 */
#define IDLE_MS 55000
#define IDLE_ALL_LOOPS 64
#define IDLE_MIN 4

void fl_proxy_init(struct fl_proxy *proxy, struct fl_loop *loop, uint32_t index)
{
    const struct fl_proxy_config *config = proxy->config;
    uint32_t idle = IDLE_ALL_LOOPS / config->loops;

    proxy->loop = loop;
    proxy->index = index;
    const struct fl_web_pool_config pool = {
        .max_idle_per_target = idle > IDLE_MIN ? idle : IDLE_MIN,
        .max_idle_ms = IDLE_MS,
        .max_header_bytes = config->max_header_bytes,
        .max_headers = config->max_headers,
        .budget = config->budget,
    };
    proxy->pool = fl_web_pool_new(loop, &pool);
    proxy->resolver = fl_resolver_new(loop);
    fl_link_init(&proxy->forwards);
    fl_link_init(&proxy->pickers);
}

void fl_proxy_fini(struct fl_proxy *proxy)
{
    fl_proxy_pickers_fini(proxy);
    fl_resolver_free(proxy->resolver);
    proxy->resolver = NULL;
    fl_web_pool_free(proxy->pool);
    proxy->pool = NULL;
    fl_map_u64_fini(&proxy->stats);
}

void fl_proxy_adopt(struct fl_proxy *proxy, const struct fl_proxy_rules *rules)
{
    struct fl_rules_snapshot *before = proxy->snapshot;

    fl_map_u64_fini(&proxy->stats);
    fl_map_u64_reserve(&proxy->stats, rules->snapshot->rule_count);
    for (uint32_t i = 0; i < rules->snapshot->rule_count; i++)
        fl_map_u64_put(&proxy->stats, (uint64_t)(uintptr_t)rules->snapshot->rules[i]->live,
                       rules->stats[i]);
    proxy->snapshot = rules->snapshot;
    fl_proxy_pickers_adopt(proxy);
    if (fl_rules_adopt(rules->snapshot, before, proxy->index))
        proxy->give_back(proxy->owner, before);
}

void fl_proxy_drain(struct fl_proxy *proxy)
{
    proxy->is_draining = true;
}

void fl_proxy_abort(struct fl_proxy *proxy)
{
    FL_LINK_FOREACH(link, &proxy->forwards)
    {
        fl_forward_end(link);
    }
}
