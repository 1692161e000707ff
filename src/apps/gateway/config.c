/* SPDX-License-Identifier: Apache-2.0 */
#include "apps/gateway/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/app.h"
#include "base/alloc.h"
#include "base/log.h"
#include "http/message.h"
#include "net/limits.h"

#define BUFFERED_DEFAULT_MAX (UINT64_C(1) << 30)
#define TOKEN_MAX_BYTES 4096 /* of --auth-token-file: one line */

static const char *const no_route_words[] = {"503", "404", NULL};

#define FIELD(field) .off = offsetof(struct gateway_config, field)

const struct fl_opt gateway_opts[] = {
    {.section = "Rules over REST",
     .name = "host",
     .env = "FAIRLEAD_GATEWAY_HOST",
     .type = FL_OPT_STRING,
     FIELD(host),
     .arg = "IP",
     .help = "Address of the REST API. Without it 127.0.0.1, or 0.0.0.0 with --auth-token-file: "
             "whoever may write a rule may send traffic anywhere."},
    {.name = "port",
     .env = "FAIRLEAD_GATEWAY_PORT",
     .type = FL_OPT_U32,
     FIELD(port),
     .def = "11111",
     .max = 65535,
     .help = "Port of the REST API; 0 takes a free one."},
    {.name = "auth-token-file",
     .env = "FAIRLEAD_GATEWAY_AUTH_TOKEN_FILE",
     .type = FL_OPT_STRING,
     FIELD(token_file),
     .arg = "FILE",
     .help = "Token that REST calls must carry, except those for version, readiness and metrics."},
    {.name = "ready-file",
     .env = "FAIRLEAD_GATEWAY_READY_FILE",
     .type = FL_OPT_STRING,
     FIELD(ready_file),
     .arg = "FILE",
     .help = "Written when ready, with the pid and the address of the REST listener."},
    {.name = "prometheus",
     .short_name = 'p',
     .env = "FAIRLEAD_GATEWAY_PROMETHEUS",
     .type = FL_OPT_BOOL,
     FIELD(has_prometheus),
     .def = "true",
     .help = "Serves /metrics."},

    {.section = "Rules from files",
     .name = "rule",
     .env = "FAIRLEAD_GATEWAY_RULE",
     .type = FL_OPT_LIST,
     FIELD(rule_files),
     .arg = "FILE",
     .help = "Rules to start with, in the form that REST takes; repeatable. REST cannot change "
             "them."},
    {.name = "check",
     .env = "FAIRLEAD_GATEWAY_CHECK",
     .type = FL_OPT_BOOL,
     FIELD(check),
     .help = "Validates options and rule files, opens no socket and exits: 0 valid, 1 not."},

    {.section = "Requests",
     .name = "loops",
     .env = "FAIRLEAD_GATEWAY_LOOPS",
     .type = FL_OPT_U32,
     FIELD(loops),
     .def = "0",
     .max = 256,
     .help = "Request loops (threads); 0 means the smaller of the affinity mask and the cgroup CPU "
             "quota."},
    {.name = "max-header-bytes",
     .env = "FAIRLEAD_GATEWAY_MAX_HEADER_BYTES",
     .type = FL_OPT_BYTES,
     FIELD(max_header_bytes),
     .def = "65536",
     .min = 1024,
     .max = 1 << 20,
     .help = "Longest head of a request or response."},
    {.name = "max-headers",
     .env = "FAIRLEAD_GATEWAY_MAX_HEADERS",
     .type = FL_OPT_U32,
     FIELD(max_headers),
     .def = "200",
     .min = 8,
     .max = 10000,
     .help = "Header lines of one message."},
    {.name = "max-body-bytes",
     .env = "FAIRLEAD_GATEWAY_MAX_BODY_BYTES",
     .type = FL_OPT_BYTES,
     FIELD(max_body_bytes),
     .def = "10MiB",
     .min = 1,
     .max = 1 << 30,
     .help = "Longest request body where it must be kept, that is on rules with a picker."},
    {.name = "max-buffered-bytes",
     .env = "FAIRLEAD_GATEWAY_MAX_BUFFERED_BYTES",
     .type = FL_OPT_BYTES,
     FIELD(max_buffered_bytes),
     .def = "0",
     .help = "All bodies held together; 0 means the smaller of 1 GiB and half the cgroup limit. At "
             "least twice --max-body-bytes."},
    {.name = "max-connections",
     .env = "FAIRLEAD_GATEWAY_MAX_CONNECTIONS",
     .type = FL_OPT_U32,
     FIELD(max_connections),
     .def = "65536",
     .min = 1,
     .max = 10000000,
     .help = "Client connections; each loop takes an equal part on each listener."},
    {.name = "epp-max-inflight",
     .env = "FAIRLEAD_GATEWAY_EPP_MAX_INFLIGHT",
     .type = FL_OPT_U32,
     FIELD(epp_max_inflight),
     .def = "65536",
     .min = 1,
     .max = 10000000,
     .help = "Requests that wait for pickers at once."},
    {.name = "epp-send-protocol-config",
     .env = "FAIRLEAD_GATEWAY_EPP_SEND_PROTOCOL_CONFIG",
     .type = FL_OPT_BOOL,
     FIELD(sends_protocol_config),
     .help = "Sends protocol_config in the first message to a picker."},
    {.name = "no-route-status",
     .env = "FAIRLEAD_GATEWAY_NO_ROUTE_STATUS",
     .type = FL_OPT_ENUM,
     FIELD(no_route_status),
     .words = no_route_words,
     .def = "503",
     .help = "Status of a request that no rule matches."},
    {.name = "trust-forwarded",
     .env = "FAIRLEAD_GATEWAY_TRUST_FORWARDED",
     .type = FL_OPT_BOOL,
     FIELD(trusts_forwarded),
     .help = "Appends to X-Forwarded-* that clients send instead of overwriting them."},
    {.name = "strip-request-headers",
     .env = "FAIRLEAD_GATEWAY_STRIP_REQUEST_HEADERS",
     .type = FL_OPT_LIST,
     FIELD(strip),
     .arg = "NAME",
     .help = "More headers of clients to drop on rules with a picker; repeatable."},

    {.section = "Stopping and logs",
     .name = "drain-timeout",
     .env = "FAIRLEAD_GATEWAY_DRAIN_TIMEOUT",
     .type = FL_OPT_DURATION,
     FIELD(drain_timeout_ms),
     .def = "60s",
     .max = 86400000,
     .help = "How long requests under way may go on after a stop signal."},
    {.name = "drain-delay",
     .env = "FAIRLEAD_GATEWAY_DRAIN_DELAY",
     .type = FL_OPT_DURATION,
     FIELD(drain_delay_ms),
     .def = "0s",
     .max = 3600000,
     .help = "How long listeners stay open after a stop signal; 5s under Kubernetes."},
    {.name = "log-level",
     .alias = "loglevel",
     .env = "FAIRLEAD_GATEWAY_LOG_LEVEL",
     .env_alias = "FAIRLEAD_GATEWAY_LOGLEVEL",
     .type = FL_OPT_STRING,
     FIELD(log_level),
     .def = "info",
     .arg = "LEVEL",
     .help = "Least level that is logged: trace, debug, info, notice, warning, error or "
             "critical."},
    {.name = "log-format",
     .env = "FAIRLEAD_GATEWAY_LOG_FORMAT",
     .type = FL_OPT_ENUM,
     FIELD(log_format),
     .words = fl_app_log_formats,
     .def = "auto",
     .help = "Text or JSON lines on stderr; auto is text on a terminal."},
    FL_APP_ACTION_OPTS,
    {0},
};

static const struct fl_opt *row_of(const char *name)
{
    const struct fl_opt *row = gateway_opts;
    while (strcmp(row->name, name) != 0)
        row++;
    return row;
}

static int read_token(struct gateway_config *config, struct fl_error *err)
{
    char text[TOKEN_MAX_BYTES + 1];
    FILE *file = fopen(config->token_file, "re");
    if (file == NULL)
        return fl_error_set(err, FL_EIO, "--auth-token-file %s: %s", config->token_file,
                            strerror(errno));
    size_t n = fread(text, 1, sizeof(text), file);
    fclose(file);
    while (n > 0 && strchr(" \t\r\n", text[n - 1]) != NULL)
        n--;
    if (n == 0 || n > TOKEN_MAX_BYTES || memchr(text, '\0', n) != NULL)
        return fl_error_set(err, FL_EIO, "--auth-token-file %s: holds no token of 1 to %d bytes",
                            config->token_file, TOKEN_MAX_BYTES);
    config->token = fl_strndup(text, n);
    return 0;
}

static int derive(struct gateway_config *config, const struct fl_opt_result *given,
                  struct fl_error *err)
{
    char text[FL_ADDR_TEXT * 2];
    const char *host = config->host;

    enum fl_log_level level;
    struct fl_limits limits;
    if (given->operand_count > 0)
        return fl_error_set(err, FL_ECONFIG, "%s: no operand is taken", given->operands[0]);
    if (host == NULL)
        host = config->token_file != NULL ? "0.0.0.0" : "127.0.0.1";
    int n = snprintf(text, sizeof(text),
                     strchr(host, ':') != NULL && host[0] != '[' ? "[%s]:%u" : "%s:%u", host,
                     config->port);
    if (n < 0 || (size_t)n >= sizeof(text) ||
        fl_addr_parse(fl_bytes_of(text), true, &config->rest_addr, NULL) < 0)
        return fl_error_set(err, FL_ECONFIG, "--host %s: not an IP address", host);
    if (!fl_log_level_parse(config->log_level, &level))
        return fl_error_set(err, FL_ECONFIG, "--log-level %s: no such level", config->log_level);
    fl_log_set_level(level);
    fl_limits_read("", &limits);
    if (config->loops == 0)
        config->loops = fl_limits_loops(&limits);
    if (config->max_buffered_bytes == 0)
        config->max_buffered_bytes = limits.memory_bytes / 2 < BUFFERED_DEFAULT_MAX
                                         ? limits.memory_bytes / 2
                                         : BUFFERED_DEFAULT_MAX;
    if (config->max_buffered_bytes < 2 * config->max_body_bytes)
        return fl_error_set(err, FL_ECONFIG,
                            "--max-buffered-bytes %llu: at least twice --max-body-bytes",
                            (unsigned long long)config->max_buffered_bytes);
    if (getenv("KUBERNETES_SERVICE_HOST") != NULL &&
        !fl_opt_is_given(given, gateway_opts, row_of("drain-delay")))
        config->drain_delay_ms = 5000;
    config->no_route_status = config->no_route_status == 1 ? 404 : 503;
    config->strip_names = fl_calloc(config->strip.count + 1, sizeof(*config->strip_names));
    for (size_t i = 0; i < config->strip.count; i++) {
        config->strip_names[i] = config->strip.items[i];
        if (!fl_http_is_token(fl_bytes_of(config->strip.items[i])))
            return fl_error_set(err, FL_ECONFIG, "--strip-request-headers %s: not a header name",
                                config->strip.items[i]);
    }
    return config->token_file != NULL ? read_token(config, err) : 0;
}

bool gateway_config_read(struct gateway_config *config, int argc, char **argv, int *status)
{
    struct fl_opt_result given = {0};
    struct fl_error err = {0};

    if (!fl_app_options(gateway_opts, config, argc, argv, "fairlead gateway [OPTIONS]",
                        "L7 inference gateway: takes rules over REST or from files, asks the "
                        "rule's endpoint picker for every request and forwards it to the endpoint "
                        "that was named.",
                        &given, status))
        return false;
    if (derive(config, &given, &err) < 0) {
        fprintf(stderr, "fairlead gateway: %s\n", err.text);
        *status = err.code == FL_EIO ? 1 : 2; /* a file that is wrong, or usage */
        gateway_config_fini(config);
        return false;
    }
    fl_log_set_format((enum fl_log_format)config->log_format);
    return true;
}

void gateway_config_fini(struct gateway_config *config)
{
    fl_free(config->strip_names);
    config->strip_names = NULL;
    fl_free(config->token);
    config->token = NULL;
    fl_opt_fini(gateway_opts, config);
}
