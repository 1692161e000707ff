/* SPDX-License-Identifier: Apache-2.0 */
#include "rules/check.h"

#include <arpa/inet.h>
#include <stdio.h>

#include "http/message.h"
#include "rules/fields.h"

#define MODE_FULLPROXY 4
#define MAX_INACTIVE_S 86400
#define INACTIVE_S 240
/* A request may wait that long for its first token in an engine's queue: gateway.md 17. */
#define INACTIVE_EPP_S 1800
#define EPP_TIMEOUT_MAX_MS 600000
#define EPP_TEXT_BYTES 255

enum { PROTOCOL_TCP = 1 };
enum { PROBE_ABSENT, PROBE_TCP, PROBE_HTTP, PROBE_HTTPS, PROBE_PING, PROBE_NONE };
enum { TOKENIZER_NONE = 3 };

static int refuse(struct fl_rest_answer *answer, const char *text)
{
    return fl_rest_refuse(answer, 400, "%s", text);
}

/* ---- addresses ---- */

bool fl_rule_ip_parse(struct fl_bytes text, struct fl_rule_ip *ip)
{
    char name[INET6_ADDRSTRLEN];
    struct fl_rule_ip parsed = {.family = 4};
    if (text.n >= 2 && text.p[0] == '[' && text.p[text.n - 1] == ']') {
        text = fl_bytes(text.p + 1, text.n - 2);
        parsed.family = 6;
    }
    if (!fl_bytes_to_cstr(text, name, sizeof(name)))
        return false;
    if (parsed.family == 6 || inet_pton(AF_INET, name, parsed.bytes) != 1) {
        parsed.family = 6;
        if (inet_pton(AF_INET6, name, parsed.bytes) != 1)
            return false;
    }
    *ip = parsed;
    return true;
}

bool fl_rule_ip_eq(const struct fl_rule_ip *a, const struct fl_rule_ip *b)
{
    return a->family == b->family && memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

static struct fl_bytes canonical(struct fl_rule *rule, const struct fl_rule_ip *ip)
{
    char text[INET6_ADDRSTRLEN];
    inet_ntop(ip->family == 4 ? AF_INET : AF_INET6, ip->bytes, text, sizeof(text));
    struct fl_bytes bytes = fl_bytes_of(text);
    return fl_bytes(fl_arena_cstr(&rule->arena, bytes), bytes.n);
}

static bool is_dns_name(struct fl_bytes text)
{
    if (text.n == 0 || text.n > 253)
        return false;
    for (size_t i = 0; i < text.n; i++) {
        uint8_t c = text.p[i];
        bool is_letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
        bool is_digit = c >= '0' && c <= '9';
        /* Underscores are no host name, but Service names in the wild have them. */
        if (!is_letter && !is_digit && c != '-' && c != '_' && c != '.')
            return false;
    }
    return text.p[0] != '.' && text.p[0] != '-';
}

bool fl_rule_split_host_port(struct fl_bytes text, struct fl_bytes *host, uint16_t *port)
{
    struct fl_rule_ip ip;
    struct fl_bytes name, rest;
    uint64_t number;
    if (text.n > 0 && text.p[0] == '[') {
        size_t close = fl_bytes_index(text, ']');
        if (close == text.n)
            return false;
        name = fl_bytes(text.p + 1, close - 1);
        if (!fl_rule_ip_parse(name, &ip) || ip.family != 6)
            return false;
        rest = fl_bytes_skip(text, close + 1);
    } else {
        size_t colon = fl_bytes_index(text, ':');
        name = fl_bytes_head(text, colon);
        if (!is_dns_name(name))
            return false;
        rest = fl_bytes_skip(text, colon);
    }
    if (rest.n < 2 || rest.p[0] != ':' ||
        !fl_bytes_to_u64(fl_bytes_skip(rest, 1), 65535, &number) || number == 0)
        return false;
    *host = name;
    *port = (uint16_t)number;
    return true;
}

/* ---- step 2 ---- */

static int check_probe(struct fl_rule *rule, struct fl_rest_answer *answer)
{
    if (rule->probe_type > PROBE_NONE)
        return refuse(answer, "malformed-service-ptype error");
    bool needs_port = rule->probe_type >= PROBE_TCP && rule->probe_type <= PROBE_HTTPS;
    if (needs_port != (rule->probe_port > 0))
        return refuse(answer, "malformed-service-pport error");
    if (rule->probe_type != PROBE_ABSENT && rule->probe_type != PROBE_NONE)
        rule->monitor = true;
    return 0;
}

static int check_service(struct fl_rule *rule, struct fl_rest_answer *answer)
{
    struct fl_rule_ip ignored;
    if (!fl_rule_ip_parse(rule->external_ip, &rule->vip) || rule->port == 0)
        return refuse(answer, "malformed-service error");
    rule->external_ip = canonical(rule, &rule->vip);
    if (rule->port_max != 0 && rule->port_max != rule->port)
        return refuse(answer, "serv-port-args range error");
    if (rule->protocol != PROTOCOL_TCP)
        return refuse(answer, "malformed-proto error");
    if (rule->private_ip.n > 0 && !fl_rule_ip_parse(rule->private_ip, &ignored))
        return refuse(answer, "malformed-service error: privateIP");
    if (rule->inactive_timeout_s > MAX_INACTIVE_S)
        return fl_rest_refuse(answer, 400, "service-args error: inactiveTimeOut is above %d",
                              MAX_INACTIVE_S);
    if (rule->inactive_timeout_s == 0)
        rule->inactive_timeout_s = fl_rule_has_epp(rule) ? INACTIVE_EPP_S : INACTIVE_S;
    if (rule->path_prefix.n > 0 && rule->path_prefix.p[0] != '/')
        return refuse(answer, "service-args error: path_prefix does not start with /");
    return check_probe(rule, answer);
}

/* ---- steps 3 and 4 ---- */

int fl_rule_check_endpoint(struct fl_rule *rule, struct fl_rule_endpoint *endpoint,
                           struct fl_rest_answer *answer)
{
    char address[INET6_ADDRSTRLEN + 16];
    if (!fl_rule_ip_parse(endpoint->ip_text, &endpoint->ip))
        return refuse(answer, "malformed-lbep error");
    endpoint->ip_text = canonical(rule, &endpoint->ip);
    snprintf(address, sizeof(address), endpoint->ip.family == 6 ? "[%.*s]:%u" : "%.*s:%u",
             FL_FMT(endpoint->ip_text), (unsigned)endpoint->port);
    struct fl_bytes bytes = fl_bytes_of(address);
    endpoint->address = fl_bytes(fl_arena_cstr(&rule->arena, bytes), bytes.n);
    return 0;
}

static int check_endpoint_count(const struct fl_rule *rule, struct fl_rest_answer *answer)
{
    /* A pool scaled to zero keeps its rule, so that clients get well-formed 503s. */
    bool may_be_empty = fl_rule_has_epp(rule);
    if (rule->endpoint_count > FL_RULE_MAX_ENDPOINTS ||
        (rule->endpoint_count == 0 && !may_be_empty))
        return refuse(answer, "endpoints-range error");
    return 0;
}

/* ---- step 5 ---- */

static int check_epp_text(struct fl_bytes text, const char *name, struct fl_rest_answer *answer)
{
    if (text.n > EPP_TEXT_BYTES)
        return fl_rest_refuse(answer, 400, "%s is %zu bytes, at most %d", name, text.n,
                              EPP_TEXT_BYTES);
    if (fl_bytes_index(text, 0) < text.n)
        return fl_rest_refuse(answer, 400, "%s holds a NUL byte", name);
    return 0;
}

static int check_epp_tls(const struct fl_rule *rule, struct fl_rest_answer *answer)
{
    int status = check_epp_text(rule->epp_ca_file, "eppCaFile", answer);
    if (status == 0)
        status = check_epp_text(rule->epp_server_name, "eppServerName", answer);
    if (status != 0)
        return status;
    if (rule->epp_ca_file.n > 0 && rule->epp_ca_file.p[0] != '/')
        return refuse(answer, "eppCaFile is not an absolute path");
    if (rule->epp_ca_file.n > 0 && rule->epp_plaintext)
        return refuse(answer, "eppCaFile and eppPlaintext are exclusive");
    if (rule->epp_server_name.n > 0 && rule->epp_ca_file.n == 0)
        return refuse(answer, "eppServerName needs eppCaFile");
    return 0;
}

static int check_epp(struct fl_rule *rule, struct fl_rest_answer *answer)
{
    uint16_t port;
    /* These two are looked at even without an endpoint: a typo must not wait until one is added. */
    if (fl_bytes_eq(rule->epp_failure_text, FL_BYTES("FailOpen")))
        rule->epp_failure = FL_EPP_FAIL_OPEN;
    else if (rule->epp_failure_text.n > 0 &&
             !fl_bytes_eq(rule->epp_failure_text, FL_BYTES("FailClose")))
        return refuse(answer, "eppFailureMode is neither FailClose nor FailOpen");
    if (rule->epp_timeout_ms > EPP_TIMEOUT_MAX_MS)
        return fl_rest_refuse(answer, 400, "eppTimeoutMs is above %d", EPP_TIMEOUT_MAX_MS);
    if (!fl_rule_has_epp(rule)) {
        fl_fields_reset(fl_rule_fields, rule, FL_GROUP_EPP); /* inert: gateway.md 4.5 */
        rule->epp_failure = FL_EPP_FAIL_CLOSE;
        return 0;
    }
    int status = check_epp_text(rule->epp_endpoint, "eppEndpoint", answer);
    if (status != 0)
        return status;
    if (!fl_rule_split_host_port(rule->epp_endpoint, &rule->epp_host, &port))
        return refuse(answer, "eppEndpoint is not host:port");
    rule->epp_port = port;
    if (rule->epp_failure_text.n == 0)
        rule->epp_failure_text = FL_BYTES("FailClose");
    if (rule->mode != MODE_FULLPROXY)
        return refuse(answer, "eppEndpoint needs mode=fullproxy");
    if (rule->pd_disagg)
        return refuse(answer, "pd_disagg_mode and eppEndpoint are exclusive");
    if (rule->picker != 0)
        return refuse(answer, "picker and eppEndpoint are exclusive");
    return check_epp_tls(rule, answer);
}

static int is_required(struct fl_rest_answer *answer, const char *name)
{
    return fl_rest_refuse(answer, 400, "%s is required with picker", name);
}

/* gateway.md 9.10, as far as one rule alone decides. */
static int check_picker(const struct fl_rule *rule, struct fl_rest_answer *answer)
{
    struct fl_url url;
    if (rule->picker == 0) {
        const struct fl_rule_field *row =
            fl_fields_first_set(fl_rule_fields, rule, FL_GROUP_PICKER);
        return row == NULL ? 0 : fl_rest_refuse(answer, 400, "%s needs picker", row->name);
    }
    if (rule->mode != MODE_FULLPROXY)
        return refuse(answer, "picker needs mode=fullproxy");
    if (rule->pd_disagg)
        return refuse(answer, "pd_disagg_mode and picker are exclusive");
    if (rule->picker_model.n == 0)
        return is_required(answer, "pickerModel");
    if (rule->picker_tokenizer_protocol != TOKENIZER_NONE) {
        if (rule->picker_tokenizer_url.n == 0)
            return is_required(answer, "pickerTokenizerUrl");
        if (fl_url_parse(rule->picker_tokenizer_url, &url, NULL) < 0 ||
            !fl_bytes_is_absent(url.query))
            return refuse(answer, "pickerTokenizerUrl is not http(s)://host[:port][/prefix]");
    }
    if (rule->model_name.n > 0 && !fl_bytes_eq(rule->model_name, rule->picker_model))
        return refuse(answer, "model_name and pickerModel differ");
    return 0;
}

/* ---- step 6 ---- */

static int check_selector(const struct fl_rule *rule, struct fl_rest_answer *answer)
{
    switch (rule->sel) {
    case 0:
    case 2:
    case 4:
        return 0;
    case 6:
        return refuse(answer, "non-udp-n3-args error");
    default:
        return fl_rest_refuse(answer, 400, "sel=%u not supported", (unsigned)rule->sel);
    }
}

static int check_supported(const struct fl_rule *rule, struct fl_rest_answer *answer)
{
    const struct {
        bool is_refused;
        const char *text;
    } rows[] = {
        {rule->mode != MODE_FULLPROXY, "mode=fullproxy required"},
        {rule->pd_disagg, "pd_disagg_mode not supported"},
        {rule->kv_exact_mode != 0, "kvExactMode not supported"},
        {rule->egress, "egress not supported"},
        {rule->snat, "snat not supported"},
        {rule->proxy_protocol, "proxyprotocolv2 not supported"},
        {rule->backend_protocol != 0, "backend_protocol other than http1 not supported"},
        {rule->picker != 0, "picker=embedded not supported"},
    };
    int status = check_selector(rule, answer);
    if (rule->mode == MODE_FULLPROXY && status != 0)
        return status;
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        if (rows[i].is_refused)
            return refuse(answer, rows[i].text);
    }
    if (rule->security != 0)
        return fl_rest_refuse(answer, 400, "security=%u not supported", (unsigned)rule->security);
    return 0;
}

int fl_rule_check(struct fl_rule *rule, struct fl_rest_answer *answer)
{
    int status = check_service(rule, answer);
    if (status == 0)
        status = check_endpoint_count(rule, answer);
    for (uint32_t i = 0; i < rule->endpoint_count && status == 0; i++)
        status = fl_rule_check_endpoint(rule, &rule->endpoints[i], answer);
    if (status == 0)
        status = check_epp(rule, answer);
    if (status == 0)
        status = check_picker(rule, answer);
    if (status == 0)
        status = check_supported(rule, answer);
    return status;
}
