/* SPDX-License-Identifier: Apache-2.0 */
/* `fairlead explain`: why this worker? Reads /debug/picks of a running program, or has it decide
 * without booking. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "apps/app.h"
#include "apps/call.h"
#include "codec/json.h"
#include "http/message.h"

#define CALL_MS 10000
#define FILE_MAX (64 * 1024 * 1024)

enum { FOUND = 0, NOTHING = 1, USAGE = 2, NOT_REACHED = 3 }; /* exit statuses of epp.md 19.6 */

struct options {
    const char *url, *token_file, *request, *id, *worker, *path;
    uint32_t last;
    bool json;
};

static const struct fl_opt opts[] = {
    {.name = "url",
     .type = FL_OPT_STRING,
     .off = offsetof(struct options, url),
     .def = "http://127.0.0.1:9094",
     .arg = "URL",
     .help = "Debug listener of an EPP (9094), gateway (11111) or select (8092)."},
    {.name = "token-file",
     .type = FL_OPT_STRING,
     .off = offsetof(struct options, token_file),
     .arg = "FILE",
     .help = "First line is sent as bearer token."},
    {.name = "request",
     .type = FL_OPT_STRING,
     .off = offsetof(struct options, request),
     .arg = "ID",
     .help = "The decision for this x-request-id."},
    {.name = "id",
     .type = FL_OPT_STRING,
     .off = offsetof(struct options, id),
     .arg = "R",
     .help = "The decision with this reservation id."},
    {.name = "worker",
     .type = FL_OPT_STRING,
     .off = offsetof(struct options, worker),
     .arg = "ID",
     .help = "Only decisions for this worker id."},
    {.name = "last",
     .type = FL_OPT_U32,
     .off = offsetof(struct options, last),
     .def = "1",
     .min = 1,
     .max = 4096,
     .help = "How many decisions, newest first."},
    {.name = "path",
     .type = FL_OPT_STRING,
     .off = offsetof(struct options, path),
     .def = "/v1/chat/completions",
     .help = "Path the request of FILE would be sent to."},
    {.name = "json",
     .type = FL_OPT_BOOL,
     .off = offsetof(struct options, json),
     .help = "Prints the answer as it came."},
    FL_APP_ACTION_OPTS,
    {0},
};

static int read_file(const char *path, struct fl_buf *text, struct fl_error *err)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    if (file == NULL)
        return fl_error_set(err, FL_EIO, "%s: %s", path, strerror(errno));
    fl_buf_init(text, FILE_MAX);
    int rc = 0;
    for (;;) {
        uint8_t *room = fl_buf_reserve(text, 65536);
        if (room == NULL) {
            rc = fl_error_set(err, FL_ELIMIT, "%s: longer than %d bytes", path, FILE_MAX);
            break;
        }
        size_t n = fread(room, 1, 65536, file);
        fl_buf_commit(text, n);
        if (n == 0)
            break;
    }
    if (file != stdin)
        fclose(file);
    return rc;
}

static double number(const struct fl_json_node *object, const char *key)
{
    double value = 0;
    const struct fl_json_node *node = fl_json_get(object, fl_bytes_of(key));
    if (node != NULL)
        fl_json_to_double(node, &value);
    return value;
}

static struct fl_bytes text_of(const struct fl_json_node *object, const char *key)
{
    const struct fl_json_node *node = fl_json_get(object, fl_bytes_of(key));
    return node == NULL || node->type != FL_JSON_STRING ? FL_BYTES("-") : node->text;
}

static struct fl_bytes name_of(const struct fl_json_node *candidate)
{
    const struct fl_json_node *id = fl_json_get(candidate, FL_BYTES("worker_id"));
    struct fl_bytes name = text_of(candidate, "worker");
    return fl_bytes_eq(name, FL_BYTES("-")) && id != NULL ? id->text : name;
}

static void print_candidate(const struct fl_json_node *candidate, bool is_chosen)
{
    struct fl_bytes filtered = text_of(candidate, "filtered");
    printf("%s %-24.*s ", is_chosen ? "->" : "  ", FL_FMT(name_of(candidate)));
    if (!fl_bytes_eq(filtered, FL_BYTES("-"))) {
        printf("filtered: %.*s\n", FL_FMT(filtered));
        return;
    }
    printf("%8.0f %10.0f %10.1f %10.1f %8.0f %10.1f\n", number(candidate, "device_blocks"),
           number(candidate, "active_prefill_tokens"), number(candidate, "raw"),
           number(candidate, "credit"), number(candidate, "active_requests"),
           number(candidate, "cost"));
}

/* "vllm-1 was chosen: 812 of 860 blocks cached, cost 61.2; next best vllm-0 at 874.0 (0 blocks)" */
static void print_sentence(const struct fl_json_node *record, const struct fl_json_node *chosen,
                           const struct fl_json_node *next)
{
    if (chosen == NULL)
        return;
    printf("%.*s was chosen: %.0f of %.0f blocks cached, cost %.1f", FL_FMT(name_of(chosen)),
           number(chosen, "device_blocks"), number(record, "request_blocks"),
           number(chosen, "cost"));
    if (number(record, "ties") > 1)
        printf(" (drawn among %.0f equal ones)", number(record, "ties"));
    if (next != NULL)
        printf("; next best %.*s at %.1f (%.0f blocks)", FL_FMT(name_of(next)),
               number(next, "cost"), number(next, "device_blocks"));
    printf("\n");
}

static void print_record(const struct fl_json_node *record)
{
    const struct fl_json_node *candidates = fl_json_get(record, FL_BYTES("candidates"));
    const struct fl_json_node *us = fl_json_get(record, FL_BYTES("us"));
    const struct fl_json_node *chosen_id = fl_json_get(record, FL_BYTES("worker_id"));
    const struct fl_json_node *chosen = NULL;
    const struct fl_json_node *next = NULL;

    printf("request %.*s  %.*s  outcome %.*s  endpoint %.*s  worker %.*s  policy %.*s  prompt %.0f "
           "tokens "
           "(%.0f blocks)  tokenizer %.0f us, selection %.0f us\n",
           FL_FMT(text_of(record, "request_id")), FL_FMT(text_of(record, "kind")),
           FL_FMT(text_of(record, "outcome")), FL_FMT(text_of(record, "endpoint")),
           FL_FMT(text_of(record, "worker")), FL_FMT(text_of(record, "policy")),
           number(record, "isl_tokens"), number(record, "request_blocks"),
           us != NULL ? number(us, "tokenize") : 0, us != NULL ? number(us, "select") : 0);
    if (candidates == NULL || candidates->count == 0) {
        printf("no candidates were weighed for it\n");
        return;
    }
    printf("   %-24s %8s %10s %10s %10s %8s %10s\n", "worker", "cached", "prefill", "raw", "credit",
           "open", "cost");
    for (const struct fl_json_node *item = fl_json_first(candidates); item != NULL;
         item = fl_json_next(candidates, item)) {
        const struct fl_json_node *id = fl_json_get(item, FL_BYTES("worker_id"));
        bool is_chosen = id != NULL && chosen_id != NULL && chosen == NULL &&
                         fl_bytes_eq(id->text, chosen_id->text);
        bool is_filtered = fl_json_get(item, FL_BYTES("filtered")) != NULL;
        print_candidate(item, is_chosen);
        if (is_chosen)
            chosen = item;
        else if (!is_filtered && (next == NULL || number(item, "cost") < number(next, "cost")))
            next = item;
    }
    if (number(record, "candidates_left_out") > 0)
        printf("   and %.0f more\n", number(record, "candidates_left_out"));
    print_sentence(record, chosen, next);
}

static int print_answer(const struct options *options, struct fl_bytes body)
{
    struct fl_json doc = {0};
    struct fl_error err = {0};
    int status = FOUND;
    if (options->json) {
        printf("%.*s\n", FL_FMT(body));
        return FOUND;
    }
    if (fl_json_parse(&doc, body, &err) < 0) {
        fprintf(stderr, "fairlead explain: the answer is no JSON: %s\n", err.text);
        return NOT_REACHED;
    }
    const struct fl_json_node *root = fl_json_root(&doc);
    if (root->type == FL_JSON_OBJECT) {
        print_record(root);
    } else if (root->type == FL_JSON_ARRAY && root->count > 0) {
        for (const struct fl_json_node *record = fl_json_first(root); record != NULL;
             record = fl_json_next(root, record))
            print_record(record);
    } else {
        fprintf(stderr, "fairlead explain: no such decision; the last 4,096 are kept, so it was "
                        "never made here or the "
                        "ring has passed it\n");
        status = NOTHING;
    }
    fl_json_fini(&doc);
    return status;
}

static void append_query(struct fl_buf *path, char *separator, const char *key, const char *value)
{
    if (value == NULL)
        return;
    fl_buf_printf(path, "%c%s=", *separator, key);
    for (const char *c = value; *c != '\0'; c++) {
        bool is_plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                        (*c >= '0' && *c <= '9') || strchr("-._~/", *c) != NULL;
        fl_buf_printf(path, is_plain ? "%c" : "%%%02X", (unsigned char)*c);
    }
    *separator = '&';
}

static int read_token(const char *file_name, char *token, size_t room, struct fl_error *err)
{
    FILE *file = fopen(file_name, "re");
    if (file == NULL || fgets(token, (int)room, file) == NULL) {
        if (file != NULL)
            fclose(file);
        return fl_error_set(err, FL_ECONFIG, "token file %s cannot be read or is empty", file_name);
    }
    fclose(file);
    token[strcspn(token, "\r\n")] = '\0';
    return 0;
}

static int find_target(const struct options *options, struct fl_app_call *call,
                       struct fl_error *err)
{
    struct fl_url url;
    char text[FL_ADDR_TEXT];
    int rc = fl_url_parse(fl_bytes_of(options->url), &url, err);
    if (rc < 0)
        return rc;
    if (url.is_tls || !url.is_ip)
        return fl_error_set(err, FL_ECONFIG, "--url %s: http:// with an IP literal is served",
                            options->url);
    bool is_v6 = fl_bytes_index(url.host, ':') < url.host.n;
    snprintf(text, sizeof(text), is_v6 ? "[%.*s]:%u" : "%.*s:%u", FL_FMT(url.host), url.port);
    return fl_addr_parse(fl_bytes_of(text), false, &call->addr, err);
}

static int ask(const struct options *options, const char *file, struct fl_error *err)
{
    struct fl_loop *loop = fl_loop_new(0);
    struct fl_app_call call = {.method = file != NULL ? "POST" : "GET", .timeout_ms = CALL_MS};
    struct fl_buf path = {0}, request = {0}, body = {0};
    char last[16], token[512];
    char separator = '?';
    int http = 0;
    int status = USAGE;

    int rc = find_target(options, &call, err);
    if (rc == 0 && options->token_file != NULL) {
        rc = read_token(options->token_file, token, sizeof(token), err);
        call.bearer = token;
    }
    if (rc == 0 && file != NULL)
        rc = read_file(file, &request, err);
    if (rc < 0)
        goto out;
    snprintf(last, sizeof(last), "%u", options->last);
    fl_buf_printf(&path, "%s", file != NULL ? "/debug/explain" : "/debug/picks");
    append_query(&path, &separator, file != NULL ? "path" : "limit",
                 file != NULL ? options->path : last);
    if (file == NULL) {
        append_query(&path, &separator, "request_id", options->request);
        append_query(&path, &separator, "id", options->id);
        append_query(&path, &separator, "worker", options->worker);
    }
    fl_buf_append_byte(&path, '\0');
    call.path = (const char *)path.head;
    call.body = fl_buf_bytes(&request);
    status = NOT_REACHED;
    rc = fl_app_call(loop, &call, &http, &body, err);
    if (rc < 0)
        goto out;
    if (http != 200)
        fl_error_set(err, FL_EIO, "answered %d: %.*s", http,
                     FL_FMT(fl_bytes_head(fl_buf_bytes(&body), 400)));
    else
        status = print_answer(options, fl_buf_bytes(&body));
out:
    fl_buf_fini(&path);
    fl_buf_fini(&request);
    fl_buf_fini(&body);
    fl_loop_free(loop);
    return status;
}

int fl_app_explain(int argc, char **argv)
{
    struct options options = {0};
    struct fl_opt_result parsed = {0};
    struct fl_error err = {0};
    int status;

    if (!fl_app_options(opts, &options, argc, argv, "fairlead explain [OPTIONS] [FILE|-]",
                        "Why did this request go there? Prints decisions of a running picker, "
                        "newest first; with a FILE "
                        "that holds a request, what it would decide now, without booking. Exit "
                        "status: 0 found, 1 nothing "
                        "found, 2 usage, 3 not reachable or refused.",
                        &parsed, &status))
        return status;
    if (parsed.operand_count > 1) {
        fprintf(stderr, "fairlead explain: one FILE at most\n");
        fl_opt_fini(opts, &options);
        return USAGE;
    }
    status = ask(&options, parsed.operand_count == 1 ? parsed.operands[0] : NULL, &err);
    if (err.code < 0)
        fprintf(stderr, "fairlead explain: %s\n", err.text);
    fl_opt_fini(opts, &options);
    return status;
}
