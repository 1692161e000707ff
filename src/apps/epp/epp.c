/* SPDX-License-Identifier: Apache-2.0 */
#include "apps/epp/epp.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "apps/app.h"
#include "base/alloc.h"
#include "base/log.h"
#include "net/limits.h"

#define MAINTAIN_MS 500     /* readiness is a level (epp.md 1.4); drains are looked at as often */
#define RELOAD_POLL_MS 5000 /* epp.md 14.7: a look every 5 s beside the watch */
#define DRAIN_STEP_MS 50

/* epp.md 1.4 */
static const char *const health_words[] = {"", "readiness", "liveness", "inference-extension",
                                           "envoy.service.ext_proc.v3.ExternalProcessor"};

static void split_names(struct epp *epp)
{
    struct fl_bytes rest = fl_bytes_of(epp->config.lora_names);
    struct fl_bytes item;
    epp->lora_names = fl_calloc(1025, sizeof(*epp->lora_names));
    while (rest.n > 0 && epp->lora_count < 1024 && fl_bytes_next(&rest, ',', &item)) {
        item = fl_bytes_trim(item);
        if (item.n > 0)
            epp->lora_names[epp->lora_count++] = item;
    }
}

static void fill_shared(struct epp *epp)
{
    const struct epp_config *config = &epp->config;
    epp->shared.service = epp->service;
    epp->shared.directory = &epp->directory;
    epp->shared.log = &epp->log;
    epp->shared.metrics = &epp->pick_metrics;
    epp->shared.source = "epp";
    epp->shared.model = fl_bytes_of(config->model);
    epp->shared.lora_names = epp->lora_names;
    epp->shared.lora_count = epp->lora_count;
    epp->shared.ignore_nvext = config->ignore_nvext;
    epp->shared.metadata_prefix = fl_bytes_of(config->metadata_header);
    epp->shared.decision_timeout_ms = config->decision_timeout_ms;
    epp->shared.max_in_flight = config->max_in_flight;
    epp->picker = (struct fl_picker_config){
        .body_mode =
            config->body_mode == 0 ? FL_EXTPROC_BODY_FULL_DUPLEX : FL_EXTPROC_BODY_BUFFERED,
        .max_body_bytes = config->max_request_bytes,
        .metadata_prefix = fl_bytes_of(config->metadata_header),
    };
    epp->budget.cap_bytes = config->max_buffered_bytes;
}

static int build_service(struct epp *epp, struct fl_error *err)
{
    epp->runtime = fl_runtime_new(NULL, err);
    if (epp->runtime == NULL)
        return err->code;
    struct fl_selection_builder *builder =
        fl_selection_builder_new(epp->runtime, FL_ROLE_AGGREGATED);
    int rc = fl_selection_builder_set_config(builder, &epp->config.router);
    if (rc == 0) {
        epp->service = fl_selection_build(builder, err);
        rc = epp->service == NULL ? err->code : 0;
    }
    fl_selection_builder_free(builder);
    return rc;
}

static int open_extproc(struct epp *epp, struct fl_error *err)
{
    static const char *const alpn[] = {"h2", NULL};
    const struct epp_config *config = &epp->config;
    struct fl_tls_server_config tls = {
        .cert_file = config->tls_cert_file, .key_file = config->tls_key_file, .alpn = alpn};
    struct fl_addr addr;
    char text[FL_ADDR_TEXT + 8];
    int rc = 0;

    if (config->secure)
        rc = fl_tls_server_new(&tls, &epp->tls, err);
    bool is_v6 = strchr(config->host, ':') != NULL;
    snprintf(text, sizeof(text), is_v6 ? "[%s]:%u" : "%s:%u", config->host, config->grpc_port);
    if (rc == 0)
        rc = fl_addr_parse(fl_bytes_of(text), true, &addr, err);
    if (rc == 0)
        rc = fl_listener_open(&addr, false, &epp->listener, err);
    if (rc < 0) {
        fl_error_prefix(err, "ext_proc listener %s", text);
        return rc;
    }
    fl_addr_format(fl_listener_addr(epp->listener), text);
    fl_log(FL_LOG_INFO, "listening", "purpose=ext_proc addr=%s tls=%s", text,
           config->secure ? "true" : "false");
    return 0;
}

static int announce(struct epp *epp, struct fl_error *err)
{
    struct fl_app_listener listeners[4];
    size_t count = 0;
    const struct {
        const char *purpose;
        struct fl_listener *listener;
    } rows[] = {{"ext_proc", epp->listener},
                {"health", epp->health_listener},
                {"metrics", epp->metrics_listener},
                {"debug", epp->debug_listener}};
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        if (rows[i].listener != NULL)
            listeners[count++] = (struct fl_app_listener){
                .purpose = rows[i].purpose, .addr = *fl_listener_addr(rows[i].listener)};
    }
    if (epp->config.ready_file == NULL)
        return 0;
    return fl_app_write_ready_file(epp->config.ready_file, listeners, count, err);
}

/* ---- health ---- */

static void show_readiness(struct epp *epp)
{
    bool is_ready = atomic_load(&epp->shared.can_route) && !epp->is_draining;
    fl_health_set(&epp->health_names, "", is_ready);
    fl_health_set(&epp->health_names, "readiness", is_ready);
    fl_health_set(&epp->health_names, "envoy.service.ext_proc.v3.ExternalProcessor", is_ready);
    /* Once synchronized it stays SERVING: manifests ask it for liveness too (epp.md 1.4). */
    fl_health_set(&epp->health_names, "inference-extension", atomic_load(&epp->shared.can_route));
    fl_health_set(&epp->health_names, "liveness", true);
}

/* ---- drain (epp.md 1.5) ---- */

static void on_drain_step(struct fl_timer *timer)
{
    struct epp *epp = FL_CONTAINER_OF(timer, struct epp, drain);
    uint64_t now_ms = fl_loop_now_ms(epp->control);
    /* The loops count their streams now and then: two looks that both find none. */
    bool is_idle = epp_loops_streams(epp) == 0 && now_ms >= epp->drain_from_ms + 3 * EPP_CENSUS_MS;
    if (!epp->is_cut && !is_idle && now_ms < epp->drain_until_ms) {
        fl_loop_timer_start(epp->control, timer, DRAIN_STEP_MS);
        return;
    }
    if (!epp->is_cut && !is_idle) {
        epp->is_cut = true;
        atomic_store(&epp->shared.is_draining_over, true);
        epp_loops_cut(epp);
        fl_loop_timer_start(epp->control, timer, 4 * DRAIN_STEP_MS);
        return;
    }
    fl_loop_stop(epp->control);
}

static void on_signal(void *owner, int signum)
{
    struct epp *epp = owner;
    if (signum == SIGHUP) {
        struct fl_error err = {0};
        epp_workers_reload(epp);
        if (epp->tls != NULL && fl_tls_reload(epp->tls, &err) < 0)
            fl_log(FL_LOG_WARN, "certificate not reloaded", "why=%s",
                   fl_log_value(fl_bytes_of(err.text)).text);
        return;
    }
    if (epp->is_draining) { /* a second one: now */
        fl_loop_stop(epp->control);
        return;
    }
    fl_log(FL_LOG_INFO, "draining", "seconds=%u", epp->config.drain_s);
    epp->is_draining = true;
    show_readiness(epp);
    epp_loops_drain(epp);
    epp->drain_from_ms = fl_loop_now_ms(epp->control);
    epp->drain_until_ms = epp->drain_from_ms + (uint64_t)epp->config.drain_s * 1000;
    fl_loop_timer_start(epp->control, &epp->drain, DRAIN_STEP_MS);
}

static void on_file_change(void *owner)
{
    epp_workers_reload(owner);
}

/* ---- start and stop ---- */

static int start(struct epp *epp, struct fl_error *err)
{
    int rc = epp_control_start(epp, err);
    if (rc == 0)
        rc = epp_workers_load(epp, err);
    if (rc == 0)
        rc =
            fl_watch_open(epp->control, epp->config.workers, on_file_change, epp, &epp->watch, err);
    if (rc == 0)
        rc = open_extproc(epp, err);
    if (rc == 0)
        rc = epp_loops_start(epp, err);
    if (rc < 0)
        return rc;
    atomic_store(&epp->shared.can_route, true);
    show_readiness(epp);
    epp_loops_accept(epp);
    fl_log(FL_LOG_INFO, "ready", "model=%s loops=%u policy=%s workers=%u",
           fl_log_value(fl_bytes_of(epp->config.model)).text, epp->config.loops, epp->config.policy,
           epp->workers.count);
    return announce(epp, err);
}

static void stop(struct epp *epp)
{
    fl_loop_timer_stop(epp->control, &epp->drain);
    fl_listener_close(epp->listener);
    fl_health_free(epp->health);
    epp_control_stop(epp);
    if (epp->threads != NULL)
        epp_loops_stop(epp);
    fl_watch_close(epp->watch);
    fl_tokenizer_free(epp->control_tokenizer);
    if (epp->service != NULL) {
        fl_selection_stop(epp->service, 0);
        fl_selection_free(epp->service);
    }
    fl_runtime_free(epp->runtime);
    fl_tls_unref(epp->tls);
    fl_worker_set_fini(&epp->workers);
}

static int run(struct epp *epp)
{
    static const int signums[] = {SIGTERM, SIGINT, SIGHUP};
    struct fl_error err = {0};
    char *labels = NULL;
    struct fl_buf text = {0};

    fl_limits_raise_fds();
    epp->control = fl_loop_new(0);
    epp->signals = fl_signals_open(epp->control, signums, FL_ARRAY_LEN(signums), on_signal, epp);
    fl_timer_init(&epp->drain, on_drain_step);
    fl_directory_init(&epp->directory);
    fl_pick_log_init(&epp->log);
    fl_buf_append(&text, FL_BYTES("model=\""));
    fl_metric_escape(&text, fl_bytes_of(epp->config.model));
    fl_buf_append(&text, FL_BYTES("\""));
    labels = fl_strndup(text.head, fl_buf_size(&text));
    fl_buf_fini(&text);
    /* One shard more than loops: dry runs pick on the control loop. */
    fl_metrics_init(&epp->metrics, epp_metric_descs, EPP_METRIC_COUNT, epp->config.loops + 1,
                    labels);
    fl_metrics_init(&epp->pick_metrics, fl_pick_metric_descs, FL_PICK_METRIC_COUNT,
                    epp->config.loops + 1, labels);
    fl_free(labels);
    split_names(epp);
    for (size_t i = 0; i < FL_ARRAY_LEN(health_words); i++)
        fl_health_add(&epp->health_names, health_words[i]);
    epp->health = fl_health_new(epp->control, &epp->health_names);

    int rc = build_service(epp, &err);
    if (rc == 0) {
        fill_shared(epp);
        epp->control_tokenizer = epp_tokenizer_new(epp, epp->control);
        fl_pick_env_init(&epp->control_env, epp->control, &epp->shared, epp->control_tokenizer);
        epp->control_env.shard = epp->config.loops;
        rc = start(epp, &err);
    }
    if (rc == 0)
        fl_loop_run(epp->control);
    else
        fprintf(stderr, "fairlead epp: %s\n", err.text);

    stop(epp);
    if (epp->control_env.executor != NULL)
        fl_pick_env_fini(&epp->control_env);
    fl_signals_close(epp->signals);
    fl_loop_free(epp->control);
    fl_directory_fini(&epp->directory);
    fl_pick_log_fini(&epp->log);
    fl_metrics_fini(&epp->metrics);
    fl_metrics_fini(&epp->pick_metrics);
    fl_free(epp->lora_names);
    return rc == 0 ? 0 : 1;
}

int fl_app_epp(int argc, char **argv)
{
    struct epp *epp = fl_calloc(1, sizeof(*epp));
    int status;
    if (epp_config_read(&epp->config, argc, argv, &status)) {
        status = epp->config.check ? epp_workers_check(&epp->config) : run(epp);
        fl_opt_fini(epp_opts, &epp->config);
    }
    fl_free(epp);
    return status;
}
