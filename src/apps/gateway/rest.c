/* SPDX-License-Identifier: Apache-2.0 */
/* The REST API of gateway.md 4 that exists: rules, version, readiness, metrics. */
#include <stdio.h>
#include <string.h>

#include "apps/gateway/gateway.h"
#include "base/alloc.h"
#include "base/log.h"

#define BASE "/netlox/v1"
#define ONE_RULE BASE "/config/loadbalancer/externalipaddress/{ip}/port/{port}/protocol/{protocol}"
#define REST_HEAD_TIMEOUT_MS 10000
#define REST_IDLE_TIMEOUT_MS 60000
#define REST_MAX_CONNECTIONS 1024 /* operators, controllers and scrapers, not traffic */

/* Words of what this build does (gateway.md 4.3). */
static const char *const features[] = {"epp", "fullproxy", "sse", "status", "empty-endpoints"};

static struct gateway *gateway_of(const struct fl_rest_request *request)
{
    return request->service;
}

static void respond(struct fl_rest_request *request, const struct fl_rest_answer *answer)
{
    struct fl_buf body = {0};
    struct fl_fields extra = {0};
    (void)fl_rest_write(&body, answer);
    if (answer->status == 503)
        fl_fields_add(&extra, fl_exchange_arena(request->x), FL_BYTES("Retry-After"),
                      FL_BYTES("5"));
    fl_exchange_respond(request->x, answer->status, "application/json", fl_buf_bytes(&body),
                        &extra);
    fl_buf_fini(&body);
}

/* A JSON document written by `write`. */
static void respond_json(struct fl_rest_request *request, int status, struct fl_buf *body)
{
    fl_rest_json(request->x, status, fl_buf_bytes(body));
    fl_buf_fini(body);
}

/* ---- rules ---- */

static struct fl_rules_target target_of(const struct fl_rest_request *request)
{
    struct fl_arena *arena = fl_exchange_arena(request->x);
    return (struct fl_rules_target){
        .ip = request->params[0],
        .port = request->params[1],
        .protocol = request->params[2],
        .model_name = fl_rest_query(request->query, "model_name", arena),
        .path_prefix = fl_rest_query(request->query, "path_prefix", arena),
        .path_match_mode = fl_rest_query(request->query, "path_match_mode", arena),
    };
}

static void on_change_done(struct gateway_change *change, const struct fl_rest_answer *answer)
{
    struct fl_rest_request *request = change->owner;
    request->pending = NULL;
    respond(request, answer);
    fl_free(change);
}

static struct gateway_change *change_new(struct fl_rest_request *request,
                                         enum gateway_change_kind kind)
{
    struct gateway_change *change = fl_calloc(1, sizeof(*change));
    change->kind = kind;
    change->owner = request;
    change->done = on_change_done;
    request->pending = change;
    return change;
}

static void cancel_change(struct fl_rest_request *request)
{
    if (request->pending != NULL)
        gateway_change_forget(gateway_of(request), request->pending);
    request->pending = NULL;
}

static void create(struct fl_rest_request *request)
{
    struct fl_rest_answer answer = {0};
    struct fl_rule *rule = fl_rule_new(request->body, gateway_unix_ms(), &answer);
    if (rule == NULL) {
        respond(request, &answer);
        return;
    }
    struct gateway_change *change = change_new(request, GATEWAY_POST);
    change->rule = rule;
    gateway_change_submit(gateway_of(request), change);
}

static void delete_one(struct fl_rest_request *request)
{
    struct gateway_change *change = change_new(request, GATEWAY_DELETE);
    change->target = target_of(request);
    gateway_change_submit(gateway_of(request), change);
}

static void delete_by_name(struct fl_rest_request *request)
{
    struct gateway_change *change = change_new(request, GATEWAY_DELETE_NAME);
    change->name = request->params[0];
    gateway_change_submit(gateway_of(request), change);
}

static void delete_all(struct fl_rest_request *request)
{
    gateway_change_submit(gateway_of(request), change_new(request, GATEWAY_DELETE_ALL));
}

static void patch(struct fl_rest_request *request)
{
    struct fl_rest_answer answer = {0};
    struct fl_rules_target target = target_of(request);
    fl_rules_patch(&gateway_of(request)->rules, &target, request->body, &answer);
    respond(request, &answer);
}

/* The rule of the path, or NULL after a 404. */
static const struct fl_rule *rule_of(struct fl_rest_request *request)
{
    struct fl_rest_answer answer = {0};
    struct fl_rules_target target = target_of(request);
    const struct fl_rule *rule = fl_rules_find(&gateway_of(request)->rules, &target);
    if (rule == NULL) {
        fl_rest_refuse(&answer, 404, "no-rule error");
        respond(request, &answer);
    }
    return rule;
}

static void respond_written(struct fl_rest_request *request, const struct fl_rule *rule,
                            void (*write)(struct fl_json_writer *json, const struct fl_rule *rule))
{
    struct fl_buf body = {0};
    struct fl_json_writer json;
    fl_json_writer_init(&json, &body);
    write(&json, rule);
    (void)fl_json_writer_end(&json);
    respond_json(request, 200, &body);
}

static void write_entry(struct fl_json_writer *json, const struct fl_rule *rule)
{
    fl_rule_write(json, rule, true);
}

static void read_one(struct fl_rest_request *request)
{
    const struct fl_rule *rule = rule_of(request);
    if (rule != NULL)
        respond_written(request, rule, write_entry);
}

static void read_by_id(struct fl_rest_request *request)
{
    struct fl_rest_answer answer = {0};
    const struct fl_rule *rule = fl_rules_find_id(&gateway_of(request)->rules, request->params[0]);
    if (rule != NULL) {
        respond_written(request, rule, write_entry);
        return;
    }
    fl_rest_refuse(&answer, 404, "no-rule error");
    respond(request, &answer);
}

static void read_status(struct fl_rest_request *request)
{
    const struct fl_rule *rule = rule_of(request);
    if (rule != NULL)
        respond_written(request, rule, fl_rule_write_status);
}

static void read_stats(struct fl_rest_request *request)
{
    const struct fl_rule *rule = rule_of(request);
    if (rule != NULL)
        respond_written(request, rule, fl_rule_write_stats);
}

static void read_all(struct fl_rest_request *request)
{
    struct fl_buf body = {0};
    struct fl_json_writer json;
    struct fl_bytes project =
        fl_rest_query(request->query, "projectId", fl_exchange_arena(request->x));
    fl_json_writer_init(&json, &body);
    fl_rules_write_all(&json, &gateway_of(request)->rules, project, true);
    (void)fl_json_writer_end(&json);
    respond_json(request, 200, &body);
}

/* ---- the process ---- */

static void root(struct fl_rest_request *request)
{
    fl_rest_json(request->x, 200, FL_BYTES("{\"status\":\"ok\"}"));
}

static void write_features(struct fl_json_writer *json)
{
    fl_json_write_key(json, "features");
    fl_json_write_array(json);
    for (size_t i = 0; i < FL_ARRAY_LEN(features); i++)
        fl_json_write_cstr(json, features[i]);
    fl_json_write_array_end(json);
}

static void version(struct fl_rest_request *request)
{
    struct fl_buf body = {0};
    struct fl_json_writer json;
    fl_json_writer_init(&json, &body);
    fl_json_write_object(&json);
    fl_json_write_key(&json, "version");
    fl_json_write_cstr(&json, FL_VERSION);
    fl_json_write_key(&json, "buildInfo");
    fl_json_write_cstr(&json, "fairlead-" FL_VERSION);
    fl_json_write_key(&json, "product");
    /* kube-loxilb takes inference settings to a gateway of this name only. */
    fl_json_write_cstr(&json, "loxilb-inference-gateway");
    write_features(&json);
    fl_json_write_key(&json, "fairlead");
    fl_json_write_object(&json);
    fl_json_write_key(&json, "version");
    fl_json_write_cstr(&json, FL_VERSION);
    fl_json_write_object_end(&json);
    fl_json_write_object_end(&json);
    (void)fl_json_writer_end(&json);
    respond_json(request, 200, &body);
}

static void ready(struct fl_rest_request *request)
{
    const struct gateway *gateway = gateway_of(request);
    bool is_ready = gateway->is_ready && !gateway->is_stopping;
    struct fl_buf body = {0};
    struct fl_json_writer json;
    fl_json_writer_init(&json, &body);
    fl_json_write_object(&json);
    fl_json_write_key(&json, "ready");
    fl_json_write_bool(&json, is_ready);
    fl_json_write_key(&json, "reasons");
    fl_json_write_array(&json);
    if (gateway->is_stopping)
        fl_json_write_cstr(&json, "stopping");
    else if (!is_ready)
        fl_json_write_cstr(&json, "starting");
    fl_json_write_array_end(&json);
    fl_json_write_key(&json, "boot");
    fl_json_write_object(&json);
    fl_json_write_key(&json, "snapshot_found");
    fl_json_write_bool(&json, false);
    fl_json_write_key(&json, "succeeded");
    fl_json_write_bool(&json, gateway->is_ready);
    fl_json_write_object_end(&json);
    fl_json_write_key(&json, "auto_persist");
    fl_json_write_object(&json);
    fl_json_write_key(&json, "failures");
    fl_json_write_u64(&json, 0);
    fl_json_write_object_end(&json);
    fl_json_write_object_end(&json);
    (void)fl_json_writer_end(&json);
    respond_json(request, is_ready ? 200 : 503, &body);
}

static void capabilities(struct fl_rest_request *request)
{
    struct fl_buf body = {0};
    struct fl_json_writer json;
    fl_json_writer_init(&json, &body);
    fl_json_write_object(&json);
    fl_json_write_key(&json, "capabilities");
    fl_json_write_array(&json);
    for (size_t i = 0; i < FL_ARRAY_LEN(features); i++) {
        fl_json_write_object(&json);
        fl_json_write_key(&json, "name");
        fl_json_write_cstr(&json, features[i]);
        fl_json_write_key(&json, "ready");
        fl_json_write_bool(&json, true);
        fl_json_write_key(&json, "reasonCodes");
        fl_json_write_array(&json);
        fl_json_write_array_end(&json);
        fl_json_write_object_end(&json);
    }
    fl_json_write_array_end(&json);
    write_features(&json);
    fl_json_write_object_end(&json);
    (void)fl_json_writer_end(&json);
    respond_json(request, 200, &body);
}

static void metrics(struct fl_rest_request *request)
{
    const struct gateway *gateway = gateway_of(request);
    struct fl_buf body = {0};
    if (!gateway->has_metrics) {
        fl_exchange_respond(request->x, 503, "text/plain",
                            FL_BYTES("Prometheus option is disabled."), NULL);
        return;
    }
    int rc = gateway_write_metrics(gateway, &body);
    if (rc < 0)
        fl_exchange_respond(request->x, 500, "text/plain", FL_BYTES("out of memory\n"), NULL);
    else
        fl_exchange_respond(request->x, 200, "text/plain; version=0.0.4; charset=utf-8",
                            fl_buf_bytes(&body), NULL);
    fl_buf_fini(&body);
}

static void persist(struct fl_rest_request *request)
{
    struct fl_rest_answer answer = {0};
    fl_rest_refuse(&answer, 409, "%s",
                   fl_link_is_alone(&gateway_of(request)->file_keys)
                       ? "persistence is off"
                       : "persistence is off: rules come from --rule files");
    respond(request, &answer);
}

static const struct fl_rest_route routes[] = {
    {"GET", BASE, root, NULL},
    {"GET", BASE "/version", version, NULL},
    {"GET", BASE "/metrics", metrics, NULL},
    {"GET", "/metrics", metrics, NULL},
    {"GET", BASE "/status/ready", ready, NULL},
    {"GET", BASE "/status/capabilities", capabilities, NULL},
    {"POST", BASE "/config/loadbalancer", create, cancel_change},
    {"GET", BASE "/config/loadbalancer/all", read_all, NULL},
    {"DELETE", BASE "/config/loadbalancer/all", delete_all, cancel_change},
    {"DELETE", BASE "/config/loadbalancer/name/{name}", delete_by_name, cancel_change},
    {"GET", BASE "/config/loadbalancer/id/{id}", read_by_id, NULL},
    {"GET", ONE_RULE, read_one, NULL},
    {"DELETE", ONE_RULE, delete_one, cancel_change},
    {"PATCH", ONE_RULE, patch, NULL},
    {"GET", ONE_RULE "/status", read_status, NULL},
    {"GET", ONE_RULE "/stats", read_stats, NULL},
    {"POST", BASE "/config/persist", persist, NULL},
    {NULL, NULL, NULL, NULL},
};

/* ---- what holds for every call ---- */

/* In time that does not depend on where the first difference is. */
static bool is_token(const char *token, struct fl_bytes given)
{
    size_t n = strlen(token);
    uint8_t difference = given.n == n ? 0 : 1;
    for (size_t i = 0; i < given.n; i++)
        difference |= (uint8_t)(given.p[i] ^ (uint8_t)token[i % n]);
    return difference == 0;
}

static bool is_authorised(const struct gateway *gateway, const struct fl_rest_request *request,
                          const struct fl_rest_route *route)
{
    if (gateway->config->token == NULL || route->handle == version || route->handle == metrics ||
        route->handle == root || route->handle == ready)
        return true;
    struct fl_bytes given = fl_fields_get(&request->head->fields, FL_BYTES("Authorization"));
    if (given.n > 7 && fl_bytes_eq_nocase(fl_bytes_head(given, 7), FL_BYTES("Bearer ")))
        given = fl_bytes_trim(fl_bytes_skip(given, 7));
    return !fl_bytes_is_absent(given) && is_token(gateway->config->token, given);
}

/* A missing type is accepted; parameters are ignored. */
static bool is_accepted_type(const struct fl_rest_route *route, struct fl_bytes type)
{
    struct fl_bytes plain = fl_bytes_trim(fl_bytes_head(type, fl_bytes_index(type, ';')));
    if (plain.n == 0)
        return true;
    return fl_bytes_eq_nocase(plain, FL_BYTES("application/json")) ||
           (strcmp(route->method, "PATCH") == 0 &&
            fl_bytes_eq_nocase(plain, FL_BYTES("application/merge-patch+json")));
}

static bool before(struct fl_rest_request *request, const struct fl_rest_route *route)
{
    const struct gateway *gateway = gateway_of(request);
    struct fl_rest_answer answer = {0};
    struct fl_bytes type = fl_fields_get(&request->head->fields, FL_BYTES("Content-Type"));
    bool is_change = strcmp(route->method, "GET") != 0;
    bool takes_body = strcmp(route->method, "POST") == 0 || strcmp(route->method, "PATCH") == 0;

    if (!is_authorised(gateway, request, route)) {
        fl_rest_refuse(&answer, 401, "a valid token is required");
    } else if (takes_body && !is_accepted_type(route, type)) {
        answer.status = answer.code = 415;
        snprintf(answer.message, sizeof(answer.message),
                 "unsupported media type \"%.*s\", only [application/json] are allowed",
                 FL_FMT(fl_bytes_head(type, 100)));
    } else if (is_change && (gateway->is_stopping || !gateway->is_ready)) {
        fl_rest_refuse(&answer, 503, "%s",
                       gateway->is_stopping
                           ? "the gateway is stopping"
                           : "configuration writes are rejected until the boot config replay "
                             "settles");
    } else {
        return true;
    }
    respond(request, &answer);
    return false;
}

static void on_error(struct fl_rest_request *request, int status, const struct fl_fields *extra)
{
    struct fl_rest_answer answer = {.status = status, .code = status};
    struct fl_buf body = {0};
    if (status == 404)
        snprintf(answer.message, sizeof(answer.message), "path %.*s was not found",
                 FL_FMT(fl_bytes_head(request->path, 200)));
    else
        snprintf(answer.message, sizeof(answer.message), "%s", fl_http_reason(status));
    (void)fl_rest_write(&body, &answer);
    fl_exchange_respond(request->x, status, "application/json", fl_buf_bytes(&body), extra);
    fl_buf_fini(&body);
}

static void on_accept(void *owner, int fd, const struct fl_addr *peer)
{
    struct gateway *gateway = owner;
    (void)peer;
    fl_web_server_accept(gateway->rest_server, fd);
}

int gateway_rest_start(struct gateway *gateway, struct fl_error *err)
{
    int rc = fl_listener_open(&gateway->config->rest_addr, false, &gateway->rest_listener, err);
    if (rc < 0)
        return rc;
    gateway->rest = (struct fl_rest){
        .routes = routes,
        .max_body_bytes = GATEWAY_REST_BODY_MAX,
        .owner = gateway,
        .before = before,
        .on_error = on_error,
    };
    const struct fl_web_server_config server = {
        .http1 = true,
        .max_header_bytes = gateway->config->max_header_bytes,
        .max_headers = gateway->config->max_headers,
        .head_timeout_ms = REST_HEAD_TIMEOUT_MS,
        .idle_timeout_ms = REST_IDLE_TIMEOUT_MS,
        .max_connections = REST_MAX_CONNECTIONS,
        .on_request = fl_rest_on_request,
        .owner = &gateway->rest,
    };
    gateway->rest_server = fl_web_server_new(gateway->control, &server);
    fl_listener_start(gateway->rest_listener, gateway->control, on_accept, gateway);

    char text[FL_ADDR_TEXT];
    const struct fl_addr *addr = fl_listener_addr(gateway->rest_listener);
    fl_addr_format(addr, text);
    fl_log(FL_LOG_INFO, "REST API", "listen=%s", text);
    if (!fl_addr_is_loopback(addr) && gateway->config->token == NULL)
        fl_log(FL_LOG_WARN, "REST API without a token is reachable from other hosts",
               "listen=%s option=--auth-token-file", text);
    return 0;
}

void gateway_rest_stop(struct gateway *gateway)
{
    fl_listener_close(gateway->rest_listener);
    gateway->rest_listener = NULL;
    if (gateway->rest_server != NULL)
        fl_web_server_free(gateway->rest_server);
    gateway->rest_server = NULL;
}
