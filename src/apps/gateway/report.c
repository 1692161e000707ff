/* SPDX-License-Identifier: Apache-2.0 */
/* /metrics: the table of proxy/metrics.h, the figures by rule, and what is read when asked
 * (gateway.md 13). */
#include <stdio.h>

#include "apps/gateway/gateway.h"
#include "base/alloc.h"

static struct fl_bytes name_of(const struct fl_rule *rule, struct fl_arena *arena)
{
    if (rule->name.n > 0)
        return rule->name;
    char text[FL_ADDR_TEXT + 16];
    int n = snprintf(text, sizeof(text), rule->vip.family == 6 ? "[%.*s]:%u" : "%.*s:%u",
                     FL_FMT(fl_bytes_head(rule->external_ip, FL_ADDR_TEXT)), (unsigned)rule->port);
    return fl_arena_copy(arena, fl_bytes(text, (size_t)n));
}

static int write_gauge(struct fl_buf *out, const char *name, const char *help, double value)
{
    int rc = fl_metric_write_head(out, name, help, FL_GAUGE);
    return rc < 0 ? rc : fl_metric_write_sample(out, name, "", value);
}

static const char *endpoint_labels(struct fl_buf *text, struct fl_bytes rule,
                                   const struct fl_rule_endpoint *endpoint)
{
    fl_buf_clear(text);
    if (fl_buf_printf(text, "rule=\"") < 0 || fl_metric_escape(text, rule) < 0 ||
        fl_buf_printf(text, "\",endpoint=\"%.*s\"", FL_FMT(endpoint->address)) < 0 ||
        fl_buf_append_byte(text, '\0') < 0)
        return "";
    return (const char *)text->head;
}

static double requests_of(const struct fl_rule_endpoint *endpoint)
{
    uint64_t requests, bytes;
    fl_endpoint_counts(endpoint->live, &requests, &bytes);
    return (double)requests;
}

static double up_of(const struct fl_rule_endpoint *endpoint)
{
    return atomic_load_explicit(&endpoint->live->is_inactive, memory_order_relaxed) ? 0 : 1;
}

/* A family with one sample an endpoint. Two rules of one name that share an endpoint would give one
 * series twice, so later ones are left out. */
static int write_endpoints(const struct fl_rules_snapshot *snapshot,
                           const struct fl_proxy_rule_sample *samples, const char *name,
                           const char *help, enum fl_metric_kind kind,
                           double (*value_of)(const struct fl_rule_endpoint *endpoint),
                           struct fl_buf *out)
{
    struct fl_buf text = {0};
    int rc = fl_metric_write_head(out, name, help, kind);
    for (uint32_t i = 0; i < snapshot->rule_count && rc == 0; i++) {
        const struct fl_rule *rule = snapshot->rules[i];
        bool is_repeated = false;
        for (uint32_t k = 0; k < i && !is_repeated; k++)
            is_repeated = fl_bytes_eq(samples[k].name, samples[i].name);
        for (uint32_t k = 0; k < rule->endpoint_count && rc == 0 && !is_repeated; k++)
            rc = fl_metric_write_sample(
                out, name, endpoint_labels(&text, samples[i].name, &rule->endpoints[k]),
                value_of(&rule->endpoints[k]));
    }
    fl_buf_fini(&text);
    return rc;
}

static int write_process(const struct gateway *gateway, struct fl_buf *out)
{
    const struct fl_rules_snapshot *snapshot = gateway->rules.current;
    uint32_t healthy = 0, unhealthy = 0;
    for (uint32_t i = 0; i < snapshot->rule_count; i++) {
        for (uint32_t k = 0; k < snapshot->rules[i]->endpoint_count; k++) {
            if (up_of(&snapshot->rules[i]->endpoints[k]) > 0)
                healthy++;
            else
                unhealthy++;
        }
    }
    const struct {
        const char *name, *help;
        double value;
    } gauges[] = {
        {"loxilb_lb_rules", "Rules.", snapshot->rule_count},
        {"loxilb_healthy_endpoints", "Active endpoints of all rules.", healthy},
        {"loxilb_unhealthy_endpoints", "Inactive endpoints of all rules.", unhealthy},
        {"fairlead_gateway_rules_generation", "Generation of the rules in force.",
         (double)snapshot->generation},
        {"fairlead_gateway_rules_generations_held", "Generations still in use; 1 at rest.",
         gateway->rules.held_count},
        {"fairlead_gateway_buffered_bytes", "Body bytes held now.",
         (double)fl_budget_held(&gateway->budget)},
    };
    int rc = 0;
    for (size_t i = 0; i < FL_ARRAY_LEN(gauges) && rc == 0; i++)
        rc = write_gauge(out, gauges[i].name, gauges[i].help, gauges[i].value);
    return rc;
}

static uint64_t gauge_of(const struct fl_proxy_rule_stats *stats, bool is_stream)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < stats->loops; i++)
        sum += atomic_load_explicit(is_stream ? &stats->shards[i].epp_streams
                                              : &stats->shards[i].epp_inflight,
                                    memory_order_relaxed);
    return sum;
}

/* One sample for each picker address: all rules that name it together. */
static int write_pickers(const struct fl_rules_snapshot *snapshot,
                         const struct fl_proxy_rule_sample *samples, const char *name,
                         const char *help, bool is_stream, struct fl_buf *out)
{
    struct fl_buf text = {0};
    int rc = fl_metric_write_head(out, name, help, FL_GAUGE);
    for (uint32_t i = 0; i < snapshot->rule_count && rc == 0; i++) {
        struct fl_bytes epp = snapshot->rules[i]->epp_endpoint;
        uint64_t sum = 0;
        bool is_first = epp.n > 0;
        for (uint32_t k = 0; k < snapshot->rule_count; k++) {
            if (!fl_bytes_eq(snapshot->rules[k]->epp_endpoint, epp))
                continue;
            is_first = is_first && k >= i;
            sum += gauge_of(samples[k].stats, is_stream);
        }
        if (!is_first)
            continue;
        fl_buf_clear(&text);
        rc = fl_buf_printf(&text, "epp=\"");
        if (rc == 0)
            rc = fl_metric_escape(&text, epp);
        if (rc == 0)
            rc = fl_buf_append(&text, fl_bytes("\"", 2)); /* with its NUL */
        if (rc == 0)
            rc = fl_metric_write_sample(out, name, (const char *)text.head, (double)sum);
    }
    fl_buf_fini(&text);
    return rc;
}

int gateway_write_metrics(const struct gateway *gateway, struct fl_buf *out)
{
    const struct fl_rules_snapshot *snapshot = gateway->rules.current;
    const struct gateway_publication *publication = gateway_current(gateway);
    struct fl_arena arena = {0};
    struct fl_proxy_rule_sample *samples =
        fl_arena_calloc(&arena, snapshot->rule_count + 1, sizeof(*samples));

    for (uint32_t i = 0; i < snapshot->rule_count; i++)
        samples[i] = (struct fl_proxy_rule_sample){name_of(snapshot->rules[i], &arena),
                                                   publication->rules.stats[i]};
    int rc = fl_metrics_write(&gateway->metrics, out);
    if (rc == 0)
        rc = write_process(gateway, out);
    if (rc == 0)
        rc = fl_proxy_write_rule_metrics(samples, snapshot->rule_count, out);
    if (rc == 0)
        rc = write_endpoints(snapshot, samples, "fairlead_gateway_endpoint_requests_total",
                             "Requests an endpoint has answered.", FL_COUNTER, requests_of, out);
    if (rc == 0)
        rc = write_endpoints(snapshot, samples, "fairlead_gateway_endpoint_up",
                             "1 while the endpoint is active.", FL_GAUGE, up_of, out);
    if (rc == 0)
        rc = write_pickers(snapshot, samples, "fairlead_gateway_epp_inflight",
                           "Questions that wait for a picker.", false, out);
    if (rc == 0)
        rc = write_pickers(snapshot, samples, "fairlead_gateway_epp_streams",
                           "Open streams to a picker, response phase included.", true, out);
    fl_arena_fini(&arena);
    return rc;
}
