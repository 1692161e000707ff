/* SPDX-License-Identifier: Apache-2.0 */
/* `fairlead rule add|list|show|rm`: a small client of a gateway's REST API (gateway.md 3.2). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/app.h"
#include "base/alloc.h"
#include "codec/json.h"
#include "web/fetch.h"

#define BASE "/netlox/v1"
#define CALL_TIMEOUT_MS 10000
#define FILE_MAX_BYTES (64u << 20)
#define ANSWER_MAX_BYTES (256u << 20) /* a list of 4,096 rules of 1,024 endpoints */

enum { EXIT_DONE = 0, EXIT_REFUSED = 1, EXIT_USAGE = 2, EXIT_UNREACHABLE = 3 };

struct options {
    const char *url, *token_file, *vip, *name, *epp;
    bool json, fail_open, epp_plaintext;
    uint32_t port, sel, epp_timeout_ms;
    struct fl_opt_list endpoints;
};

#define FIELD(field) .off = offsetof(struct options, field)

static const struct fl_opt opts[] = {
    {.section = "The gateway",
     .name = "url",
     .env = "LB",
     .type = FL_OPT_STRING,
     FIELD(url),
     .def = "http://127.0.0.1:11111",
     .arg = "URL",
     .help = "Base URL of the gateway's REST API, with or without /netlox/v1."},
    {.name = "token-file",
     .env = "FAIRLEAD_RULE_TOKEN_FILE",
     .type = FL_OPT_STRING,
     FIELD(token_file),
     .arg = "FILE",
     .help = "Token to send, if the gateway wants one."},
    {.name = "json", .type = FL_OPT_BOOL, FIELD(json), .help = "Prints the gateway's own JSON."},
    {.section = "A rule from flags (add)",
     .name = "vip",
     .type = FL_OPT_STRING,
     FIELD(vip),
     .arg = "IP",
     .help = "Address that clients connect to."},
    {.name = "port",
     .type = FL_OPT_U32,
     FIELD(port),
     .def = "0",
     .max = 65535,
     .help = "Port that clients connect to."},
    {.name = "endpoint",
     .type = FL_OPT_LIST,
     FIELD(endpoints),
     .arg = "IP:PORT",
     .help = "Where requests may go; repeatable, or several separated by commas."},
    {.name = "name",
     .type = FL_OPT_STRING,
     FIELD(name),
     .arg = "S",
     .help = "Label of the rule; with rm, the rules to remove."},
    {.name = "epp",
     .type = FL_OPT_STRING,
     FIELD(epp),
     .arg = "HOST:PORT",
     .help = "Endpoint picker to ask for every request."},
    {.name = "fail-open",
     .type = FL_OPT_BOOL,
     FIELD(fail_open),
     .help = "Without an answer of the picker, sel decides instead of 503."},
    {.name = "epp-plaintext",
     .type = FL_OPT_BOOL,
     FIELD(epp_plaintext),
     .help = "The picker speaks HTTP/2 without TLS."},
    {.name = "epp-timeout-ms",
     .type = FL_OPT_U32,
     FIELD(epp_timeout_ms),
     .def = "0",
     .max = 600000,
     .help = "Longest wait for the picker; 0 means 3000."},
    {.name = "sel",
     .type = FL_OPT_U32,
     FIELD(sel),
     .def = "0",
     .max = 10,
     .help = "Selector of the gateway itself; 0 is round robin."},
    FL_APP_ACTION_OPTS,
    {0},
};

/* ---- calls ---- */

struct client {
    struct fl_loop *loop;
    struct fl_web_pool *pool;
    struct fl_addr addr;
    char authority[FL_ADDR_TEXT];
    char *token; /* NULL: none */
};

struct reply {
    int rc, status;
    struct fl_buf body;
    struct fl_loop *loop;
};

static void on_reply(void *owner, const struct fl_fetch_result *result)
{
    struct reply *reply = owner;
    reply->rc = result->rc;
    reply->status = result->status;
    if (result->rc == 0)
        reply->rc = fl_buf_append(&reply->body, result->body);
    fl_loop_stop(reply->loop);
}

/* Fills `reply`, which the caller frees. */
static void call(struct client *client, const char *method, const char *path, struct fl_bytes body,
                 struct reply *reply)
{
    struct fl_chain chain = {0};
    struct fl_field fields[2];
    uint32_t count = 0;

    *reply = (struct reply){.loop = client->loop};
    if (body.n > 0) {
        fields[count++] = (struct fl_field){FL_BYTES("Content-Type"), FL_BYTES("application/json")};
        fl_chain_push(&chain, fl_slice_copy(body, NULL));
    }
    if (client->token != NULL)
        fields[count++] = (struct fl_field){FL_BYTES("Authorization"), fl_bytes_of(client->token)};
    const struct fl_fetch_request request = {
        .target = {.addr = client->addr, .protocol = FL_WEB_HTTP1},
        .method = fl_bytes_of(method),
        .path = fl_bytes_of(path),
        .authority = fl_bytes_of(client->authority),
        .fields = fields,
        .field_count = count,
        .body = body.n > 0 ? &chain : NULL,
        .timeout_ms = CALL_TIMEOUT_MS,
        .max_body_bytes = ANSWER_MAX_BYTES,
        .max_error_bytes = 65536,
    };
    fl_fetch_start(client->pool, client->loop, &request, on_reply, reply);
    fl_loop_run(client->loop);
    fl_chain_fini(&chain);
}

/* Exit status of a reply; says what was refused. */
static int judge(const struct client *client, const struct reply *reply)
{
    struct fl_json doc = {0};
    struct fl_bytes text = {0};

    if (reply->rc < 0) {
        fprintf(stderr, "fairlead rule: no gateway answers at %s: %s\n", client->authority,
                fl_error_row(reply->rc)->message);
        return EXIT_UNREACHABLE;
    }
    if (reply->status == 200)
        return EXIT_DONE;
    if (fl_json_parse(&doc, fl_buf_bytes(&reply->body), NULL) == 0 &&
        fl_json_get_string(fl_json_root(&doc), "result", &text, NULL) < 0)
        (void)fl_json_get_string(fl_json_root(&doc), "message", &text, NULL);
    if (text.n == 0)
        text = fl_bytes_of(fl_http_reason(reply->status));
    fprintf(stderr, "fairlead rule: refused: %.*s\n", FL_FMT(text));
    fl_json_fini(&doc);
    return EXIT_REFUSED;
}

static int change(struct client *client, const char *method, const char *path, struct fl_bytes body,
                  bool prints_json)
{
    struct reply reply;
    call(client, method, path, body, &reply);
    int status = judge(client, &reply);
    if (prints_json && reply.rc == 0)
        printf("%.*s\n", FL_FMT(fl_buf_bytes(&reply.body)));
    fl_buf_fini(&reply.body);
    return status;
}

/* ---- add ---- */

static int read_text(const char *path, struct fl_buf *text)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    if (file == NULL) {
        fprintf(stderr, "fairlead rule: %s: %s\n", path, strerror(errno));
        return EXIT_REFUSED;
    }
    size_t n;
    int status = EXIT_DONE;
    do {
        uint8_t *room = fl_buf_reserve(text, 65536);
        if (room == NULL) {
            fprintf(stderr, "fairlead rule: %s: longer than %u bytes\n", path, FILE_MAX_BYTES);
            status = EXIT_REFUSED;
            break;
        }
        n = fread(room, 1, 65536, file);
        fl_buf_commit(text, n);
    } while (n > 0);
    if (file != stdin)
        fclose(file);
    return status;
}

static int add_file(struct client *client, const struct options *options, const char *path)
{
    struct fl_buf text = {0};
    struct fl_json doc = {0};
    struct fl_error err = {0};

    fl_buf_init(&text, FILE_MAX_BYTES);
    int status = read_text(path, &text);
    if (status != EXIT_DONE)
        goto out;
    if (fl_json_parse(&doc, fl_buf_bytes(&text), &err) < 0) {
        fprintf(stderr, "fairlead rule: %s: %s\n", path, err.text);
        status = EXIT_REFUSED;
        goto out;
    }
    const struct fl_json_node *list = fl_json_root(&doc);
    if (list->type == FL_JSON_OBJECT) {
        const struct fl_json_node *wrapped = fl_json_get_nocase(list, FL_BYTES("lbAttr"));
        if (wrapped == NULL) {
            status = change(client, "POST", BASE "/config/loadbalancer", fl_buf_bytes(&text),
                            options->json);
            goto out;
        }
        list = wrapped;
    }
    if (list->type != FL_JSON_ARRAY) {
        fprintf(stderr, "fairlead rule: %s: holds no rule\n", path);
        status = EXIT_REFUSED;
        goto out;
    }
    for (const struct fl_json_node *entry = fl_json_first(list);
         entry != NULL && status == EXIT_DONE; entry = fl_json_next(list, entry))
        status = change(client, "POST", BASE "/config/loadbalancer", entry->text, options->json);
out:
    fl_json_fini(&doc);
    fl_buf_fini(&text);
    return status;
}

/* One IP:PORT of the list, or usage. */
static bool write_endpoint(struct fl_json_writer *json, struct fl_bytes text)
{
    struct fl_addr addr;
    char canonical[FL_ADDR_TEXT];
    if (fl_addr_parse(text, false, &addr, NULL) < 0) {
        fprintf(stderr, "fairlead rule: --endpoint %.*s: not IP:PORT\n", FL_FMT(text));
        return false;
    }
    fl_addr_format(&addr, canonical);
    struct fl_bytes ip = fl_bytes_of(canonical);
    if (canonical[0] == '[') {
        ip = fl_bytes_skip(ip, 1);
        ip = fl_bytes_head(ip, fl_bytes_index(ip, ']'));
    } else {
        ip = fl_bytes_head(ip, fl_bytes_index(ip, ':'));
    }
    fl_json_write_object(json);
    fl_json_write_key(json, "endpointIP");
    fl_json_write_string(json, ip);
    fl_json_write_key(json, "targetPort");
    fl_json_write_u64(json, fl_addr_port(&addr));
    fl_json_write_key(json, "weight");
    fl_json_write_u64(json, 1);
    fl_json_write_object_end(json);
    return true;
}

static bool write_endpoints(struct fl_json_writer *json, const struct fl_opt_list *list)
{
    bool is_good = true;
    fl_json_write_key(json, "endpoints");
    fl_json_write_array(json);
    for (size_t i = 0; i < list->count; i++) {
        struct fl_bytes rest = fl_bytes_of(list->items[i]);
        struct fl_bytes item;
        while (fl_bytes_next(&rest, ',', &item))
            is_good = write_endpoint(json, fl_bytes_trim(item)) && is_good;
    }
    fl_json_write_array_end(json);
    return is_good;
}

static void write_arguments(struct fl_json_writer *json, const struct options *options)
{
    fl_json_write_key(json, "serviceArguments");
    fl_json_write_object(json);
    fl_json_write_key(json, "externalIP");
    fl_json_write_cstr(json, options->vip);
    fl_json_write_key(json, "port");
    fl_json_write_u64(json, options->port);
    fl_json_write_key(json, "protocol");
    fl_json_write_cstr(json, "tcp");
    fl_json_write_key(json, "mode");
    fl_json_write_u64(json, 4);
    fl_json_write_key(json, "sel");
    fl_json_write_u64(json, options->sel);
    if (options->name != NULL) {
        fl_json_write_key(json, "name");
        fl_json_write_cstr(json, options->name);
    }
    if (options->epp != NULL) {
        fl_json_write_key(json, "eppEndpoint");
        fl_json_write_cstr(json, options->epp);
        fl_json_write_key(json, "eppFailureMode");
        fl_json_write_cstr(json, options->fail_open ? "FailOpen" : "FailClose");
        fl_json_write_key(json, "eppTimeoutMs");
        fl_json_write_u64(json, options->epp_timeout_ms);
        fl_json_write_key(json, "eppPlaintext");
        fl_json_write_bool(json, options->epp_plaintext);
    }
    fl_json_write_object_end(json);
}

static int add_flags(struct client *client, const struct options *options)
{
    struct fl_buf text = {0};
    struct fl_json_writer json;

    if (options->vip == NULL || options->port == 0) {
        fprintf(stderr, "fairlead rule: add needs a FILE, or --vip and --port\n");
        return EXIT_USAGE;
    }
    fl_json_writer_init(&json, &text);
    fl_json_write_object(&json);
    bool is_good = write_endpoints(&json, &options->endpoints);
    write_arguments(&json, options);
    fl_json_write_object_end(&json);
    int status = EXIT_USAGE;
    if (fl_json_writer_end(&json) == 0 && is_good)
        status =
            change(client, "POST", BASE "/config/loadbalancer", fl_buf_bytes(&text), options->json);
    fl_buf_fini(&text);
    return status;
}

/* ---- reading ---- */

static struct fl_bytes text_of(const struct fl_json_node *object, const char *key)
{
    const struct fl_json_node *node = fl_json_get(object, fl_bytes_of(key));
    return node == NULL ? FL_BYTES("") : node->text;
}

static void format_listener(const struct fl_json_node *arguments, char out[128])
{
    struct fl_bytes ip = fl_bytes_head(text_of(arguments, "externalIP"), 64);
    bool is_v6 = fl_bytes_index(ip, ':') < ip.n;
    snprintf(out, 128, is_v6 ? "[%.*s]:%.*s" : "%.*s:%.*s", FL_FMT(ip),
             FL_FMT(fl_bytes_head(text_of(arguments, "port"), 8)));
}

static void print_row(const struct fl_json_node *entry)
{
    const struct fl_json_node *arguments = fl_json_get(entry, FL_BYTES("serviceArguments"));
    const struct fl_json_node *endpoints = fl_json_get(entry, FL_BYTES("endpoints"));
    char listener[128];
    uint32_t active = 0, all = 0;

    format_listener(arguments, listener);
    for (const struct fl_json_node *endpoint = endpoints == NULL ? NULL : fl_json_first(endpoints);
         endpoint != NULL; endpoint = fl_json_next(endpoints, endpoint)) {
        all++;
        if (fl_bytes_eq(text_of(endpoint, "state"), FL_BYTES("active")))
            active++;
    }
    struct fl_bytes picker = text_of(arguments, "eppEndpoint");
    struct fl_bytes mode = text_of(arguments, "eppFailureMode");
    struct fl_bytes name = text_of(arguments, "name");
    printf("%-24s %-24.*s %3.*s  %-24.*s %-9.*s %u/%u\n", listener,
           FL_FMT(name.n > 0 ? name : FL_BYTES("-")), FL_FMT(text_of(arguments, "sel")),
           FL_FMT(picker.n > 0 ? picker : FL_BYTES("-")), FL_FMT(mode.n > 0 ? mode : FL_BYTES("-")),
           active, all);
}

static int list(struct client *client, const struct options *options)
{
    struct reply reply;
    struct fl_json doc = {0};

    call(client, "GET", BASE "/config/loadbalancer/all", (struct fl_bytes){0}, &reply);
    int status = judge(client, &reply);
    if (status == EXIT_DONE && options->json) {
        printf("%.*s\n", FL_FMT(fl_buf_bytes(&reply.body)));
    } else if (status == EXIT_DONE && fl_json_parse(&doc, fl_buf_bytes(&reply.body), NULL) == 0) {
        const struct fl_json_node *rules = fl_json_get(fl_json_root(&doc), FL_BYTES("lbAttr"));
        printf("%-24s %-24s %3s  %-24s %-9s %s\n", "LISTENER", "NAME", "SEL", "PICKER", "FAILURE",
               "ENDPOINTS");
        for (const struct fl_json_node *entry = rules == NULL ? NULL : fl_json_first(rules);
             entry != NULL; entry = fl_json_next(rules, entry))
            print_row(entry);
    }
    fl_json_fini(&doc);
    fl_buf_fini(&reply.body);
    return status;
}

static void print_rule(const struct fl_json_node *entry)
{
    const struct fl_json_node *arguments = fl_json_get(entry, FL_BYTES("serviceArguments"));
    const struct fl_json_node *endpoints = fl_json_get(entry, FL_BYTES("endpoints"));
    for (const struct fl_json_node *member = arguments == NULL ? NULL : fl_json_first(arguments);
         member != NULL; member = fl_json_next(arguments, member))
        printf("%-20.*s %.*s\n", FL_FMT(member->key), FL_FMT(member->text));
    for (const struct fl_json_node *endpoint = endpoints == NULL ? NULL : fl_json_first(endpoints);
         endpoint != NULL; endpoint = fl_json_next(endpoints, endpoint))
        printf("endpoint             %.*s:%.*s weight=%.*s state=%.*s counter=%.*s\n",
               FL_FMT(text_of(endpoint, "endpointIP")), FL_FMT(text_of(endpoint, "targetPort")),
               FL_FMT(text_of(endpoint, "weight")), FL_FMT(text_of(endpoint, "state")),
               FL_FMT(text_of(endpoint, "counter")));
}

/* The path of VIP:PORT; false: usage. */
static bool rule_path(const char *text, char out[256])
{
    struct fl_addr addr;
    char canonical[FL_ADDR_TEXT];
    if (fl_addr_parse(fl_bytes_of(text), false, &addr, NULL) < 0) {
        fprintf(stderr, "fairlead rule: %s: not VIP:PORT\n", text);
        return false;
    }
    fl_addr_format(&addr, canonical);
    struct fl_bytes ip = fl_bytes_of(canonical);
    ip.n = (size_t)(strrchr(canonical, ':') - canonical);
    snprintf(out, 256, BASE "/config/loadbalancer/externalipaddress/%.*s/port/%u/protocol/tcp",
             FL_FMT(ip), fl_addr_port(&addr));
    return true;
}

static int show(struct client *client, const struct options *options, const char *which)
{
    struct reply reply;
    struct fl_json doc = {0};
    char path[256];

    if (!rule_path(which, path))
        return EXIT_USAGE;
    call(client, "GET", path, (struct fl_bytes){0}, &reply);
    int status = judge(client, &reply);
    if (status == EXIT_DONE && options->json)
        printf("%.*s\n", FL_FMT(fl_buf_bytes(&reply.body)));
    else if (status == EXIT_DONE && fl_json_parse(&doc, fl_buf_bytes(&reply.body), NULL) == 0)
        print_rule(fl_json_root(&doc));
    fl_json_fini(&doc);
    fl_buf_fini(&reply.body);
    return status;
}

/* Percent-encodes one path segment. */
static void append_segment(struct fl_buf *path, const char *text)
{
    for (const char *p = text; *p != '\0'; p++) {
        bool is_plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
                        (*p >= '0' && *p <= '9') || strchr("-._~", *p) != NULL;
        (void)(is_plain ? fl_buf_append_byte(path, (uint8_t)*p)
                        : fl_buf_printf(path, "%%%02X", (unsigned)(uint8_t)*p));
    }
}

static int rm(struct client *client, const struct options *options, const char *which)
{
    char path[256];
    if (options->name != NULL) {
        struct fl_buf text = {0};
        (void)fl_buf_printf(&text, "%s", BASE "/config/loadbalancer/name/");
        append_segment(&text, options->name);
        (void)fl_buf_append_byte(&text, '\0');
        int status =
            change(client, "DELETE", (const char *)text.head, (struct fl_bytes){0}, options->json);
        fl_buf_fini(&text);
        return status;
    }
    if (!rule_path(which, path))
        return EXIT_USAGE;
    return change(client, "DELETE", path, (struct fl_bytes){0}, options->json);
}

/* ---- the program ---- */

static bool connect_to(struct client *client, const struct options *options)
{
    struct fl_url url;
    struct fl_error err = {0};
    if (fl_url_parse(fl_bytes_of(options->url), &url, &err) < 0 || url.is_tls || !url.is_ip) {
        fprintf(stderr, "fairlead rule: --url %s: %s\n", options->url,
                err.code < 0 ? err.text : "http:// with an IP address is served");
        return false;
    }
    bool is_v6 = fl_bytes_index(url.host, ':') < url.host.n;
    snprintf(client->authority, sizeof(client->authority), is_v6 ? "[%.*s]:%u" : "%.*s:%u",
             FL_FMT(fl_bytes_head(url.host, 50)), url.port);
    return fl_addr_parse(fl_bytes_of(client->authority), false, &client->addr, NULL) == 0;
}

static bool read_token(struct client *client, const struct options *options)
{
    char text[4096];
    if (options->token_file == NULL)
        return true;
    FILE *file = fopen(options->token_file, "re");
    if (file == NULL) {
        fprintf(stderr, "fairlead rule: --token-file %s: %s\n", options->token_file,
                strerror(errno));
        return false;
    }
    size_t n = fread(text, 1, sizeof(text), file);
    fclose(file);
    while (n > 0 && strchr(" \t\r\n", text[n - 1]) != NULL)
        n--;
    client->token = fl_strndup(text, n);
    return true;
}

static int run(struct client *client, const struct options *options, int count, char **words)
{
    const char *verb = count > 0 ? words[0] : "";
    if (strcmp(verb, "add") == 0 && count == 2)
        return add_file(client, options, words[1]);
    if (strcmp(verb, "add") == 0 && count == 1)
        return add_flags(client, options);
    if (strcmp(verb, "list") == 0 && count == 1)
        return list(client, options);
    if (strcmp(verb, "show") == 0 && count == 2)
        return show(client, options, words[1]);
    if (strcmp(verb, "rm") == 0 && (count == 2) == (options->name == NULL) && count <= 2)
        return rm(client, options, count == 2 ? words[1] : NULL);
    fprintf(stderr, "fairlead rule: add [FILE|-], list, show VIP:PORT, rm VIP:PORT or rm --name S\n"
                    "Try: fairlead rule --help\n");
    return EXIT_USAGE;
}

int fl_app_rule(int argc, char **argv)
{
    struct options options = {0};
    struct fl_opt_result given = {0};
    struct client client = {0};
    int status;

    if (!fl_app_options(opts, &options, argc, argv,
                        "fairlead rule add FILE|- | add --vip IP --port N --endpoint IP:PORT | "
                        "list | show VIP:PORT | rm VIP:PORT | rm --name S",
                        "Adds, lists, shows and removes rules of a running gateway. Exit status: 0 "
                        "done, 1 refused or not found, 2 usage, 3 no gateway.",
                        &given, &status))
        return status;
    status = EXIT_USAGE;
    if (connect_to(&client, &options) && read_token(&client, &options)) {
        const struct fl_web_pool_config pool = {
            .max_idle_per_target = 1,
            .max_idle_ms = CALL_TIMEOUT_MS,
            .max_header_bytes = 65536,
            .max_headers = 200,
        };
        client.loop = fl_loop_new(0);
        client.pool = fl_web_pool_new(client.loop, &pool);
        status = run(&client, &options, given.operand_count, given.operands);
        fl_web_pool_free(client.pool);
        fl_loop_free(client.loop);
    }
    fl_free(client.token);
    fl_opt_fini(opts, &options);
    return status;
}
