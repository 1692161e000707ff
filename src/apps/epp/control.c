/* SPDX-License-Identifier: Apache-2.0 */
/* What the control loop serves: metrics and HTTP probes, the health service, the debug listener. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/epp/epp.h"
#include "base/alloc.h"
#include "base/log.h"
#include "codec/json.h"
#include "openai/error.h"

static const char *const outcome_words[] = {"response_eos",   "upstream_http_error", "early_reject",
                                            "ext_proc_error", "incomplete",          NULL};
static const char *const operation_words[] = {"prefill_complete", "request_complete", NULL};
static const char *const reuse_words[] = {"cached", "prompt", NULL};
static const char *const rejection_words[] = {
    "overloaded", "queue_rejected",  "queue_timeout", "selection_unavailable",
    "conflict",   "invalid_request", "internal",      NULL};
/* The lists of epp.md 19.1. */
static const double request_bounds[] = {0,    0.0023, 0.0055, 0.013, 0.03, 0.071, 0.17,
                                        0.39, 0.91,   2.1,    5,     12,   27,    64};
static const double token_bounds[] = {0,    100,  210,   430,   870,   1800,
                                      3600, 7400, 15000, 31000, 63000, 130000};
static const double first_body_bounds[] = {0,     0.0019, 0.0035, 0.0066, 0.012, 0.023,
                                           0.043, 0.081,  0.15,   0.28,   0.53,  1};

const struct fl_metric_desc epp_metric_descs[EPP_METRIC_COUNT] = {
    [EPP_REQUESTS] = {.kind = FL_COUNTER,
                      .name = "dynamo_epp_requests_total",
                      .help = "Streams that had request headers, by outcome.",
                      .label = "outcome",
                      .values = outcome_words},
    [EPP_REQUEST_SECONDS] = {.kind = FL_HISTOGRAM,
                             .name = "dynamo_epp_request_duration_seconds",
                             .help = "Request headers in to stream end, by outcome.",
                             .label = "outcome",
                             .values = outcome_words,
                             .bounds = request_bounds,
                             .bound_count = FL_ARRAY_LEN(request_bounds)},
    [EPP_STREAMS] = {.kind = FL_GAUGE,
                     .name = "dynamo_epp_streams_inflight",
                     .help = "Streams open."},
    [EPP_FIRST_BODY_SECONDS] = {.kind = FL_HISTOGRAM,
                                .name = "dynamo_epp_first_response_body_seconds",
                                .help = "Pick answered to first non-empty response body.",
                                .bounds = first_body_bounds,
                                .bound_count = FL_ARRAY_LEN(first_body_bounds)},
    [EPP_LIFECYCLE] = {.kind = FL_COUNTER,
                       .name = "dynamo_epp_lifecycle_callbacks_total",
                       .help = "Bookings moved on, by operation.",
                       .label = "operation",
                       .values = operation_words},
    [EPP_CACHED_TOKENS] = {.kind = FL_HISTOGRAM,
                           .name = "dynamo_epp_cached_tokens",
                           .help = "Cached prompt tokens of a request, as the engine says.",
                           .bounds = token_bounds,
                           .bound_count = FL_ARRAY_LEN(token_bounds)},
    [EPP_REUSE_TOKENS] = {.kind = FL_COUNTER,
                          .name = "dynamo_epp_observed_reuse_tokens_total",
                          .help = "Prompt tokens as the engines say, cached and in all.",
                          .label = "kind",
                          .values = reuse_words},
    [EPP_MISMATCHES] = {.kind = FL_COUNTER,
                        .name = "fairlead_epp_endpoint_mismatch_total",
                        .help = "Responses served by another endpoint than the one picked."},
    [EPP_REJECTIONS] = {.kind = FL_COUNTER,
                        .name = "fairlead_epp_router_rejections_total",
                        .help = "Picks the selector refused, by reason.",
                        .label = "reason",
                        .values = rejection_words},
    [EPP_BUFFER_REJECTIONS] = {.kind = FL_COUNTER,
                               .name = "fairlead_epp_buffer_rejections_total",
                               .help =
                                   "Requests refused because all bodies together reached the cap."},
};

/* ---- metrics ---- */

static int write_gauge(struct fl_buf *out, const char *name, const char *help, const char *labels,
                       double value)
{
    int rc = fl_metric_write_head(out, name, help, FL_GAUGE);
    return rc < 0 ? rc : fl_metric_write_sample(out, name, labels, value);
}

static int write_workers(struct epp *epp, struct fl_buf *out)
{
    char labels[256];
    struct fl_selection_readiness readiness = fl_selection_ready(epp->service);
    int rc = fl_metric_write_head(out, "fairlead_epp_workers", "Workers by state.", FL_GAUGE);
    const struct {
        const char *state;
        uint32_t value;
    } rows[] = {{"eligible", readiness.schedulable},
                {"excluded", epp->workers.bad},
                {"incomplete", epp->workers.count > readiness.schedulable
                                   ? epp->workers.count - readiness.schedulable
                                   : 0}};
    for (size_t i = 0; rc == 0 && i < FL_ARRAY_LEN(rows); i++) {
        snprintf(labels, sizeof(labels), "%s,role=\"aggregated\",state=\"%s\"",
                 epp->metrics.const_labels, rows[i].state);
        rc = fl_metric_write_sample(out, "fairlead_epp_workers", labels, rows[i].value);
    }
    return rc;
}

static int write_metrics(struct epp *epp, struct fl_buf *out)
{
    struct fl_selection_totals totals;
    char labels[256];
    uint64_t stale_ms =
        epp->stale_since_ms == 0 ? 0 : fl_loop_now_ms(epp->control) - epp->stale_since_ms;
    fl_selection_totals(epp->service, &totals);
    int rc = fl_metrics_write(&epp->metrics, out);
    if (rc == 0)
        rc = fl_metrics_write(&epp->pick_metrics, out);
    if (rc == 0)
        rc = fl_selection_metrics_write(epp->service, out);
    if (rc == 0)
        rc = write_workers(epp, out);
    snprintf(labels, sizeof(labels), "%s,role=\"aggregated\"", epp->metrics.const_labels);
    if (rc == 0)
        rc = write_gauge(out, "fairlead_epp_reservations_active", "Bookings held by open streams.",
                         labels, (double)totals.held);
    if (rc == 0)
        rc = write_gauge(out, "fairlead_epp_reservations_peak", "Most bookings held at once.",
                         labels, (double)totals.held_peak);
    if (rc == 0)
        rc = write_gauge(out, "fairlead_epp_buffered_bytes", "Request bodies held now.", "",
                         (double)fl_budget_held(&epp->budget));
    if (rc == 0)
        rc = write_gauge(out, "fairlead_epp_discovery_stale_seconds",
                         "Seconds since a source of workers was current; 0 while it is.",
                         "source=\"file\"", (double)stale_ms / 1000);
    return rc;
}

static void serve_metrics(struct fl_rest_request *request)
{
    struct fl_buf out = {0};
    if (write_metrics(request->service, &out) == 0)
        fl_exchange_respond(request->x, 200, "text/plain; version=0.0.4; charset=utf-8",
                            fl_buf_bytes(&out), NULL);
    else
        fl_exchange_respond(request->x, 500, "text/plain", FL_BYTES("out of memory"), NULL);
    fl_buf_fini(&out);
}

static void serve_healthz(struct fl_rest_request *request)
{
    fl_exchange_respond(request->x, 200, "text/plain", FL_BYTES("ok\n"), NULL);
}

static void serve_readyz(struct fl_rest_request *request)
{
    struct epp *epp = request->service;
    bool is_ready = atomic_load(&epp->shared.can_route) && !epp->is_draining;
    fl_exchange_respond(request->x, is_ready ? 200 : 503, "text/plain",
                        is_ready ? FL_BYTES("ready\n") : FL_BYTES("not ready\n"), NULL);
}

static const struct fl_rest_route metrics_routes[] = {
    {"GET", "/metrics", serve_metrics, NULL},
    {"GET", "/healthz", serve_healthz, NULL},
    {"GET", "/readyz", serve_readyz, NULL},
    {NULL, NULL, NULL, NULL},
};

/* ---- debug ---- */

static void respond_code(struct fl_exchange *x, int code)
{
    struct fl_buf out = {0};
    fl_openai_error_write(&out, code);
    fl_rest_json(x, fl_error_row(code)->http_status, fl_buf_bytes(&out));
    fl_buf_fini(&out);
}

static bool check_token(struct fl_rest_request *request, const struct fl_rest_route *route)
{
    struct epp *epp = request->service;
    struct fl_bytes given = fl_fields_get(&request->head->fields, FL_BYTES("authorization"));
    (void)route;
    if (epp->debug_token == NULL)
        return true;
    if (fl_bytes_has_prefix(given, FL_BYTES("Bearer ")) &&
        fl_bytes_eq(fl_bytes_skip(given, 7), fl_bytes_of(epp->debug_token)))
        return true;
    fl_exchange_respond(request->x, 401, "text/plain", FL_BYTES("a bearer token is needed\n"),
                        NULL);
    return false;
}

static struct fl_pick_naming naming_of(struct epp *epp)
{
    return (struct fl_pick_naming){
        .source = "epp", .role = "aggregated", .directory = &epp->directory};
}

static void serve_picks(struct fl_rest_request *request)
{
    struct epp *epp = request->service;
    struct fl_arena *arena = fl_exchange_arena(request->x);
    struct fl_pick_filter filter = {
        .limit = 20,
        .id = fl_rest_query(request->query, "id", arena),
        .request_id = fl_rest_query(request->query, "request_id", arena),
    };
    struct fl_bytes limit = fl_rest_query(request->query, "limit", arena);
    struct fl_bytes worker = fl_rest_query(request->query, "worker", arena);
    struct fl_pick_naming naming = naming_of(epp);
    struct fl_buf out = {0};
    uint64_t value = filter.limit;

    if ((limit.n > 0 && (!fl_bytes_to_u64(limit, FL_PICK_LOG_SIZE, &value) || value == 0)) ||
        (worker.n > 0 && !fl_bytes_to_u64(worker, UINT64_MAX, &filter.worker_id.value))) {
        fl_rest_json(request->x, 400,
                     FL_BYTES("{\"error\":\"limit is 1..4096, worker a worker id\"}"));
        return;
    }
    filter.limit = (uint32_t)value;
    filter.worker_id.is_set = worker.n > 0;
    if (fl_pick_log_write(&epp->log, epp->service, &naming, &filter, &out) == 0)
        fl_rest_json(request->x, 200, fl_buf_bytes(&out));
    else
        respond_code(request->x, FL_EINTERNAL);
    fl_buf_fini(&out);
}

/* A dry run that waits for the tokenizer; lives until it is done or its caller leaves. */
struct explaining {
    struct epp *epp;
    struct fl_rest_request *request;
    struct fl_pick *pick; /* NULL: over */
    struct fl_pick_request ask;
    struct fl_chain body;
};

static void explaining_free(struct explaining *explaining)
{
    explaining->request->pending = NULL;
    fl_chain_fini(&explaining->body);
    fl_free(explaining);
}

static void on_explained(void *owner, struct fl_pick_outcome *outcome)
{
    struct explaining *explaining = owner;
    struct epp *epp = explaining->epp;
    struct fl_exchange *x = explaining->request->x;
    struct fl_pick_naming naming = naming_of(epp);
    struct fl_picks_filter filter = {.limit = 1};
    struct fl_buf selections = {0};
    struct fl_buf out = {0};

    if (outcome->rc < 0) {
        respond_code(x, outcome->rc);
    } else {
        filter.id = fl_bytes_of(outcome->record_of->reservation);
        struct fl_bytes selection = {0};
        if (fl_selection_picks(epp->service, &filter, &selections) == 0 &&
            fl_buf_size(&selections) > 2)
            selection = fl_bytes(selections.head + 1, fl_buf_size(&selections) - 2);
        if (fl_pick_record_write(outcome->record_of, selection, &naming, &out) == 0)
            fl_rest_json(x, 200, fl_buf_bytes(&out));
        else
            respond_code(x, FL_EINTERNAL);
    }
    fl_buf_fini(&selections);
    fl_buf_fini(&out);
    explaining_free(explaining);
}

static void serve_explain(struct fl_rest_request *request)
{
    struct epp *epp = request->service;
    struct explaining *explaining = fl_calloc(1, sizeof(*explaining));
    struct fl_bytes path = fl_rest_query(request->query, "path", fl_exchange_arena(request->x));

    explaining->epp = epp;
    explaining->request = request;
    request->pending = explaining;
    fl_chain_push(&explaining->body, fl_slice_copy(request->body, NULL));
    explaining->ask = (struct fl_pick_request){
        .method = FL_BYTES("POST"),
        .path = path.n > 0 ? path : FL_BYTES("/v1/chat/completions"),
        .fields = &request->head->fields,
        .body = &explaining->body,
        .request_id = FL_BYTES("explain"),
        .is_dry_run = true,
    };
    struct fl_pick *pick =
        fl_pick_start(&epp->control_env, &explaining->ask, on_explained, explaining);
    if (pick != NULL)
        explaining->pick = pick;
}

static void cancel_explain(struct fl_rest_request *request)
{
    struct explaining *explaining = request->pending;
    if (explaining == NULL)
        return;
    fl_pick_cancel(explaining->pick, FL_FREE_CLIENT_GONE);
    explaining_free(explaining);
}

static const struct fl_rest_route debug_routes[] = {
    {"GET", "/debug/picks", serve_picks, NULL},
    {"POST", "/debug/explain", serve_explain, cancel_explain},
    {NULL, NULL, NULL, NULL},
};

/* ---- listeners ---- */

static void on_accept(void *owner, int fd, const struct fl_addr *peer)
{
    (void)peer;
    fl_web_server_accept(owner, fd);
}

static struct fl_web_server_config server_config(void (*on_request)(void *, struct fl_exchange *),
                                                 void *owner, bool is_h2)
{
    return (struct fl_web_server_config){
        .http1 = !is_h2,
        .http2 = is_h2,
        .max_header_bytes = 65536,
        .max_headers = 200,
        .head_timeout_ms = 10000,
        .idle_timeout_ms = 300000,
        .max_connections = 1024,
        .h2_max_streams = 1000,
        .h2_reset_burst = 1000,
        .h2_reset_rate = 33,
        .on_request = on_request,
        .owner = owner,
    };
}

static int listen_on(struct epp *epp, const char *purpose, const char *host, uint16_t port,
                     struct fl_web_server_config config, struct fl_listener **listener,
                     struct fl_web_server **server, struct fl_error *err)
{
    struct fl_addr addr;
    char text[FL_ADDR_TEXT + 8];
    bool is_v6 = strchr(host, ':') != NULL && host[0] != '[';
    snprintf(text, sizeof(text), is_v6 ? "[%s]:%u" : "%s:%u", host, port);
    int rc = fl_addr_parse(fl_bytes_of(text), true, &addr, err);
    if (rc == 0)
        rc = fl_listener_open(&addr, false, listener, err);
    if (rc < 0) {
        fl_error_prefix(err, "%s listener %s", purpose, text);
        return rc;
    }
    *server = fl_web_server_new(epp->control, &config);
    fl_listener_start(*listener, epp->control, on_accept, *server);
    fl_addr_format(fl_listener_addr(*listener), text);
    fl_log(FL_LOG_INFO, "listening", "purpose=%s addr=%s", purpose, text);
    return 0;
}

static int read_token(struct epp *epp, struct fl_error *err)
{
    char line[512];
    if (epp->config.debug_token_file == NULL)
        return 0;
    FILE *file = fopen(epp->config.debug_token_file, "re");
    if (file == NULL || fgets(line, sizeof(line), file) == NULL) {
        if (file != NULL)
            fclose(file);
        return fl_error_set(err, FL_ECONFIG, "debug token file %s cannot be read or is empty",
                            epp->config.debug_token_file);
    }
    fclose(file);
    line[strcspn(line, "\r\n")] = '\0';
    fl_free(epp->debug_token);
    epp->debug_token = fl_strdup(line);
    return 0;
}

static int start_debug(struct epp *epp, struct fl_error *err)
{
    const char *listen = epp->config.debug_listen;
    struct fl_addr addr;
    char host[FL_ADDR_TEXT];
    if (strcmp(listen, "off") == 0)
        return 0;
    int rc = read_token(epp, err);
    if (rc == 0)
        rc = fl_addr_parse(fl_bytes_of(listen), true, &addr, err);
    if (rc < 0) {
        fl_error_prefix(err, "--debug-listen %s", listen);
        return rc;
    }
    if (!fl_addr_is_loopback(&addr) && epp->debug_token == NULL)
        fl_log(FL_LOG_WARN, "debug listener is open to everybody", "addr=%s", listen);
    epp->debug_rest = (struct fl_rest){.routes = debug_routes,
                                       .max_body_bytes = epp->config.max_request_bytes,
                                       .owner = epp,
                                       .before = check_token};
    fl_addr_format(&addr, host);
    char *colon = strrchr(host, ':');
    *colon = '\0';
    char *name = host[0] == '[' ? host + 1 : host;
    if (host[0] == '[')
        colon[-1] = '\0';
    return listen_on(epp, "debug", name, fl_addr_port(&addr),
                     server_config(fl_rest_on_request, &epp->debug_rest, false),
                     &epp->debug_listener, &epp->debug_server, err);
}

int epp_control_start(struct epp *epp, struct fl_error *err)
{
    const struct epp_config *config = &epp->config;
    int rc = 0;
    epp->metrics_rest =
        (struct fl_rest){.routes = metrics_routes, .max_body_bytes = 1024, .owner = epp};
    if (config->has_metrics)
        rc = listen_on(epp, "metrics", config->host, config->metrics_port_number,
                       server_config(fl_rest_on_request, &epp->metrics_rest, false),
                       &epp->metrics_listener, &epp->metrics_server, err);
    if (rc == 0)
        rc = listen_on(epp, "health", config->host, (uint16_t)config->health_port,
                       server_config(fl_health_on_request, epp->health, true),
                       &epp->health_listener, &epp->health_server, err);
    if (rc == 0)
        rc = start_debug(epp, err);
    return rc;
}

void epp_control_stop(struct epp *epp)
{
    struct fl_listener *listeners[] = {epp->metrics_listener, epp->health_listener,
                                       epp->debug_listener};
    struct fl_web_server *servers[] = {epp->metrics_server, epp->health_server, epp->debug_server};
    for (size_t i = 0; i < FL_ARRAY_LEN(listeners); i++) {
        fl_listener_close(listeners[i]);
        if (servers[i] != NULL)
            fl_web_server_free(servers[i]);
    }
    fl_free(epp->debug_token);
}
