/* SPDX-License-Identifier: Apache-2.0 */
/* `fairlead gateway`: start, life, graceful stop (gateway.md 2, 12). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "apps/app.h"
#include "apps/gateway/gateway.h"
#include "base/alloc.h"
#include "base/log.h"
#include "net/limits.h"
#include "net/signals.h"

static struct gateway *gateway_of_change(struct gateway_change *change)
{
    return FL_CONTAINER_OF(change, struct gateway, file_change);
}

/* ---- start ---- */

static void become_ready(struct gateway *gateway)
{
    struct fl_app_listener listener = {"rest", *fl_listener_addr(gateway->rest_listener)};
    gateway->is_ready = true;
    if (gateway->config->ready_file != NULL &&
        fl_app_write_ready_file(gateway->config->ready_file, &listener, 1, &gateway->failure) < 0) {
        fl_loop_stop(gateway->control);
        return;
    }
    fl_log(FL_LOG_INFO, "ready", "loops=%u rules=%u", gateway->loop_count,
           gateway->rules.current->rule_count);
}

static void post_next_file_rule(struct gateway *gateway);

static void on_file_rule_done(struct gateway_change *change, const struct fl_rest_answer *answer)
{
    struct gateway *gateway = gateway_of_change(change);
    if (answer->status != 200) {
        fl_error_set(&gateway->failure, FL_ECONFIG, "rule from file: %s",
                     answer->result[0] != '\0' ? answer->result : answer->message);
        fl_loop_stop(gateway->control);
        return;
    }
    post_next_file_rule(gateway);
}

/* One at a time: the change queue answers each when it is live. */
static void post_next_file_rule(struct gateway *gateway)
{
    if (gateway->file_at == gateway->file_rules.count) {
        become_ready(gateway);
        return;
    }
    struct fl_rule *rule = gateway->file_rules.rules[gateway->file_at];
    gateway->file_rules.rules[gateway->file_at++] = NULL;
    gateway_files_remember(gateway, rule->key);
    gateway->file_change = (struct gateway_change){
        .kind = GATEWAY_POST, .is_from_file = true, .rule = rule, .done = on_file_rule_done};
    gateway_change_submit(gateway, &gateway->file_change);
}

static void log_limits(const struct gateway *gateway)
{
    const struct gateway_config *config = gateway->config;
    fl_log(FL_LOG_INFO, "limits",
           "loops=%u descriptors=%llu max_connections=%u max_body_bytes=%llu "
           "max_buffered_bytes=%llu",
           gateway->loop_count, (unsigned long long)fl_limits_raise_fds(), config->max_connections,
           (unsigned long long)config->max_body_bytes,
           (unsigned long long)config->max_buffered_bytes);
}

/* ---- stop ---- */

void gateway_loop_drained(struct gateway *gateway, uint32_t loop)
{
    (void)loop;
    if (--gateway->loops_draining == 0)
        fl_loop_stop(gateway->control);
}

static void on_delay(struct fl_timer *timer)
{
    struct gateway *gateway = FL_CONTAINER_OF(timer, struct gateway, delay_timer);
    gateway->loops_draining = gateway->loop_count;
    for (uint32_t i = 0; i < gateway->loop_count; i++)
        gateway_loop_drain(&gateway->loops[i], gateway->config->drain_timeout_ms);
}

static void on_signal(void *owner, int signum)
{
    struct gateway *gateway = owner;
    if (signum == SIGHUP) {
        fl_log(FL_LOG_INFO, "SIGHUP: nothing to reload", NULL);
        return;
    }
    if (gateway->is_stopping)
        _Exit(1); /* the second one: at once, whatever is under way */
    gateway->is_stopping = true;
    fl_log(FL_LOG_INFO, "stopping", "signal=%d delay_ms=%llu timeout_ms=%llu", signum,
           (unsigned long long)gateway->config->drain_delay_ms,
           (unsigned long long)gateway->config->drain_timeout_ms);
    fl_loop_timer_start(gateway->control, &gateway->delay_timer, gateway->config->drain_delay_ms);
}

/* ---- whole ---- */

static void init(struct gateway *gateway, const struct gateway_config *config)
{
    gateway->config = config;
    gateway->loop_count = config->loops;
    gateway->has_metrics = config->has_prometheus;
    gateway->budget.cap_bytes = config->max_buffered_bytes;
    fl_metrics_init(&gateway->metrics, fl_proxy_metric_descs, FL_PROXY_METRIC_COUNT,
                    gateway->loop_count, NULL);
    gateway->proxy_config = (struct fl_proxy_config){
        .loops = gateway->loop_count,
        .max_body_bytes = config->max_body_bytes,
        .max_header_bytes = config->max_header_bytes,
        .max_headers = config->max_headers,
        .epp_max_inflight = config->epp_max_inflight,
        .no_route_status = config->no_route_status,
        .trusts_forwarded = config->trusts_forwarded,
        .sends_protocol_config = config->sends_protocol_config,
        .strip = config->strip_names,
        .budget = &gateway->budget,
        .metrics = &gateway->metrics,
        .epp_inflight = &gateway->epp_inflight,
    };
    fl_link_init(&gateway->publications);
    fl_link_init(&gateway->changes);
    fl_link_init(&gateway->file_keys);
    fl_timer_init(&gateway->delay_timer, on_delay);
    gateway->control = fl_loop_new(gateway->loop_count);
    fl_rules_init(&gateway->rules, gateway->loop_count);
    gateway_publish_first(gateway);
}

static void fini(struct gateway *gateway)
{
    gateway_rest_stop(gateway);
    fl_loop_timer_stop(gateway->control, &gateway->delay_timer);
    fl_loop_timer_stop(gateway->control, &gateway->ack_timer);
    fl_loops_stop(gateway->threads);
    fl_loop_free(gateway->control); /* opens the loops' last mail */
    gateway_publications_fini(gateway);
    fl_rules_fini(&gateway->rules);
    gateway_files_fini(&gateway->file_rules);
    gateway_files_forget_all(gateway);
    fl_metrics_fini(&gateway->metrics);
    fl_free(gateway->loops);
}

static int serve(struct gateway *gateway)
{
    static const int signums[] = {SIGTERM, SIGINT, SIGHUP};
    struct fl_error *err = &gateway->failure;

    log_limits(gateway);
    struct fl_signals *signals =
        fl_signals_open(gateway->control, signums, FL_ARRAY_LEN(signums), on_signal, gateway);
    int rc = gateway_loops_start(gateway, err);
    if (rc == 0)
        rc = gateway_rest_start(gateway, err);
    if (rc == 0) {
        post_next_file_rule(gateway);
        fl_loop_run(gateway->control);
    }
    fl_signals_close(signals);
    return gateway->failure.code;
}

int fl_app_gateway(int argc, char **argv)
{
    struct gateway_config config = {0};
    int status;

    if (!gateway_config_read(&config, argc, argv, &status))
        return status;
    struct gateway *gateway = fl_calloc(1, sizeof(*gateway));
    init(gateway, &config);
    int rc = gateway_files_read(&config.rule_files, &gateway->file_rules, &gateway->failure);
    if (rc == 0 && !config.check)
        rc = serve(gateway);
    if (rc < 0)
        fprintf(stderr, "fairlead gateway: %s\n", gateway->failure.text);
    fini(gateway);
    fl_free(gateway);
    gateway_config_fini(&config);
    return rc < 0 ? 1 : 0;
}
