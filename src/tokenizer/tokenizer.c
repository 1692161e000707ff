/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "net/resolver.h"
#include "net/tls.h"
#include "web/fetch.h"

#define IDLE_MS 90000 /* epp.md 9.1 */
#define HEADER_BYTES 65536
#define HEADERS 200

struct fl_tokenizer {
    struct fl_loop *loop;
    struct fl_tokenizer_config config;
    struct fl_web_pool *pool;
    struct fl_resolver *resolver;
    struct fl_tls_context *tls; /* NULL: http */
    struct fl_arena arena;
    char *host; /* as the resolver and SNI want it: no brackets */
    uint16_t port;
    bool is_ip;
    struct fl_bytes authority;
    struct fl_bytes chat_path, completions_path;
};

struct fl_tokenize_call {
    struct fl_tokenizer *tokenizer;
    struct fl_question *question; /* while the name is looked up */
    struct fl_fetch *fetch;
    struct fl_chain body;
    struct fl_bytes path;
    char request_id[129];
    uint64_t started_ms;
    void (*done)(void *owner, struct fl_tokenize_answer *answer);
    void *owner;
};

static int parse_url(const char *text, struct fl_url *url, struct fl_error *err)
{
    struct fl_bytes bytes = fl_bytes_of(text);
    /* Query and fragment are cleared (epp.md 9.1), so they are no error. */
    bytes = fl_bytes_head(bytes, fl_bytes_index(bytes, '#'));
    bytes = fl_bytes_head(bytes, fl_bytes_index(bytes, '?'));
    if (fl_url_parse(bytes, url, err) < 0) {
        fl_error_prefix(err, "tokenizer service URL %s", text);
        return FL_ECONFIG;
    }
    return 0;
}

int fl_tokenizer_check_url(const char *url, struct fl_error *err)
{
    struct fl_url parsed;
    return parse_url(url, &parsed, err);
}

static struct fl_bytes join(struct fl_arena *arena, struct fl_bytes base, const char *tail)
{
    while (base.n > 0 && base.p[base.n - 1] == '/')
        base.n--;
    size_t n = base.n + strlen(tail);
    uint8_t *path = fl_arena_alloc(arena, n);
    memcpy(path, base.p, base.n);
    memcpy(path + base.n, tail, strlen(tail));
    return fl_bytes(path, n);
}

int fl_tokenizer_new(struct fl_loop *loop, const struct fl_tokenizer_config *config,
                     struct fl_tokenizer **tokenizer, struct fl_error *err)
{
    static const char *const alpn[] = {"http/1.1", NULL};
    struct fl_tls_client_config tls = {.alpn = alpn};
    struct fl_web_pool_config pool = {.max_idle_per_target = config->max_idle,
                                      .max_idle_ms = IDLE_MS,
                                      .max_header_bytes = HEADER_BYTES,
                                      .max_headers = HEADERS};
    struct fl_url url;
    char authority[320];

    int rc = parse_url(config->url, &url, err);
    if (rc < 0)
        return rc;
    struct fl_tokenizer *t = fl_calloc(1, sizeof(*t));
    t->loop = loop;
    t->config = *config;
    t->config.url = NULL;
    if (url.is_tls && (rc = fl_tls_client_new(&tls, &t->tls, err)) < 0) {
        fl_free(t);
        return rc;
    }
    fl_arena_init(&t->arena, 0);
    t->host = fl_arena_cstr(&t->arena, url.host);
    t->port = url.port;
    t->is_ip = url.is_ip;
    bool is_v6 = fl_bytes_index(url.host, ':') < url.host.n;
    bool is_default = url.port == (url.is_tls ? 443 : 80);
    snprintf(authority, sizeof(authority), is_v6 ? "[%.255s]" : "%.255s", t->host);
    size_t used = strlen(authority);
    if (!is_default)
        snprintf(authority + used, sizeof(authority) - used, ":%u", url.port);
    t->authority = fl_arena_copy(&t->arena, fl_bytes_of(authority));
    t->chat_path = join(&t->arena, url.path, "/v1/chat/completions/render");
    t->completions_path = join(&t->arena, url.path, "/v1/completions/render");
    t->pool = fl_web_pool_new(loop, &pool);
    t->resolver = fl_resolver_new(loop);
    *tokenizer = t;
    return 0;
}

void fl_tokenizer_free(struct fl_tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    fl_web_pool_free(tokenizer->pool);
    fl_resolver_free(tokenizer->resolver);
    fl_tls_unref(tokenizer->tls);
    fl_arena_fini(&tokenizer->arena);
    fl_free(tokenizer);
}

/* epp.md 9.4. */
static int code_of(const struct fl_fetch_result *result)
{
    if (result->rc == FL_ETIMEOUT)
        return FL_ETOKENIZER_TIMEOUT;
    if (result->rc == FL_ELIMIT || result->rc == FL_EPROTO || result->rc == FL_ENOMEM)
        return FL_ETOKENIZER;
    if (result->rc < 0)
        return FL_ETOKENIZER_UNAVAILABLE;
    switch (result->status) {
    case 200:
        return 0;
    case 400:
    case 422:
        return FL_ETOKENIZER_REJECTED;
    case 429:
    case 503:
        return FL_ETOKENIZER_UNAVAILABLE;
    default:
        return FL_ETOKENIZER;
    }
}

static void call_free(struct fl_tokenize_call *call)
{
    fl_chain_fini(&call->body);
    fl_free(call);
}

static void finish(struct fl_tokenize_call *call, struct fl_tokenize_answer *answer)
{
    call->done(call->owner, answer);
    fl_tokens_fini(&answer->tokens);
    call_free(call);
}

static void on_answer(void *owner, const struct fl_fetch_result *result)
{
    struct fl_tokenize_call *call = owner;
    struct fl_tokenizer *t = call->tokenizer;
    struct fl_error err = {0};
    struct fl_tokenize_answer answer = {.rc = code_of(result), .status = result->status, .why = ""};

    call->fetch = NULL;
    if (answer.rc == 0) {
        answer.rc =
            fl_tokenizer_read_answer(t->config.protocol, result->body, &answer.tokens, &err);
        if (answer.rc < 0) {
            answer.rc = FL_ETOKENIZER;
            answer.why = err.text;
        }
    } else if (result->rc < 0) {
        answer.why = fl_error_row(result->rc)->word;
    } else {
        answer.why = "unexpected status";
        answer.detail = result->body;
    }
    finish(call, &answer);
}

static void send_call(struct fl_tokenize_call *call, const struct fl_addr *addr)
{
    struct fl_tokenizer *t = call->tokenizer;
    const struct fl_field fields[] = {
        {FL_BYTES("content-type"), FL_BYTES("application/json")},
        {FL_BYTES("accept"), FL_BYTES("application/json")},
        {FL_BYTES("x-request-id"), fl_bytes_of(call->request_id)},
    };
    uint64_t used_ms = fl_loop_now_ms(t->loop) - call->started_ms;
    uint64_t left_ms = t->config.timeout_ms > used_ms ? t->config.timeout_ms - used_ms : 1;
    struct fl_fetch_request request = {
        .target = {.addr = *addr,
                   .protocol = FL_WEB_HTTP1,
                   .tls = t->tls,
                   .server_name = t->tls != NULL && !t->is_ip ? t->host : NULL,
                   .connect_timeout_ms = left_ms},
        .method = FL_BYTES("POST"),
        .path = call->path,
        .authority = t->authority,
        .fields = fields,
        .field_count = call->request_id[0] != '\0' ? 3 : 2,
        .body = &call->body,
        .timeout_ms = left_ms,
        .max_body_bytes = t->config.max_response_bytes,
        .max_error_bytes = FL_TOKENIZER_ERROR_BODY_BYTES,
    };
    call->fetch = fl_fetch_start(t->pool, t->loop, &request, on_answer, call);
}

static void on_resolved(void *owner, int rc, const struct fl_addr *addrs, size_t count,
                        const char *why)
{
    struct fl_tokenize_call *call = owner;
    call->question = NULL;
    if (rc == 0 && count > 0) {
        send_call(call, &addrs[0]);
        return;
    }
    struct fl_tokenize_answer answer = {.rc = FL_ETOKENIZER_UNAVAILABLE,
                                        .why = why != NULL ? why : "no address"};
    finish(call, &answer);
}

struct fl_tokenize_call *
fl_tokenizer_ask(struct fl_tokenizer *tokenizer, bool is_chat, const struct fl_chain *body,
                 struct fl_bytes request_id,
                 void (*done)(void *owner, struct fl_tokenize_answer *answer), void *owner)
{
    struct fl_tokenize_call *call = fl_calloc(1, sizeof(*call));
    call->tokenizer = tokenizer;
    call->done = done;
    call->owner = owner;
    call->path = is_chat ? tokenizer->chat_path : tokenizer->completions_path;
    call->started_ms = fl_loop_now_ms(tokenizer->loop);
    fl_bytes_to_cstr(request_id, call->request_id, sizeof(call->request_id));
    fl_chain_ref_range(&call->body, body, 0, body->bytes);
    call->question =
        fl_resolver_ask(tokenizer->resolver, tokenizer->host, tokenizer->port, on_resolved, call);
    return call;
}

void fl_tokenize_cancel(struct fl_tokenize_call *call)
{
    if (call == NULL)
        return;
    fl_question_cancel(call->question);
    fl_fetch_cancel(call->fetch);
    call_free(call);
}
