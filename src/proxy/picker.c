/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/picker.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/log.h"
#include "net/tls.h"

#define RESOLVE_AGAIN_MS 30000 /* gateway.md 4.5.5 */
#define DIAL_TIMEOUT_MS 10000  /* a question's own deadline is shorter */
#define USER_TIMEOUT_MS 10000  /* gateway.md 9.1 */

struct fl_proxy_picker {
    struct fl_link link; /* fl_proxy.pickers */
    struct fl_proxy *proxy;
    char *endpoint, *host, *ca_file, *server_name;
    uint16_t port;
    bool is_plaintext, is_name;
    struct fl_web_target target;
    struct fl_extproc_peer *peer; /* NULL until there is an address */
    struct fl_question *question; /* a resolution under way */
    struct fl_link waits;
    uint64_t resolved_ms;
    struct fl_log_limit limit;
};

static char *copy(struct fl_bytes text)
{
    return fl_strndup(text.p, text.n);
}

static bool is_picker_of(const struct fl_proxy_picker *picker, const struct fl_rule *rule)
{
    return picker->is_plaintext == rule->epp_plaintext &&
           fl_bytes_eq(fl_bytes_of(picker->endpoint), rule->epp_endpoint) &&
           fl_bytes_eq(fl_bytes_of(picker->ca_file), rule->epp_ca_file) &&
           fl_bytes_eq(fl_bytes_of(picker->server_name), rule->epp_server_name);
}

int fl_proxy_picker_tls(const struct fl_rule *rule, struct fl_tls_context **tls,
                        struct fl_error *err)
{
    static const char *const alpn[] = {"h2", NULL};
    char *ca_file = copy(rule->epp_ca_file);
    const struct fl_tls_client_config config = {
        .ca_file = ca_file[0] != '\0' ? ca_file : NULL,
        .alpn = alpn,
        .is_alpn_required = true,
    };
    int rc = fl_tls_client_new(&config, tls, err);
    fl_free(ca_file);
    return rc;
}

static void make_peer(struct fl_proxy_picker *picker)
{
    const struct fl_extproc_peer_config config = {
        .target = picker->target,
        .authority = picker->endpoint,
        .user_agent = "fairlead-gateway/" FL_VERSION,
    };
    picker->peer = fl_extproc_peer_new(picker->proxy->loop, picker->proxy->pool, &config);
}

static void tell_waits(struct fl_proxy_picker *picker)
{
    struct fl_link *link;
    while ((link = fl_link_pop_head(&picker->waits)) != NULL) {
        struct fl_picker_wait *wait = FL_CONTAINER_OF(link, struct fl_picker_wait, link);
        wait->ready(wait, picker->peer);
    }
}

static void on_resolved(void *owner, int rc, const struct fl_addr *addrs, size_t count,
                        const char *why)
{
    struct fl_proxy_picker *picker = owner;
    picker->question = NULL;
    if (rc < 0 || count == 0) {
        fl_log_limited(&picker->limit, fl_loop_now_ms(picker->proxy->loop), 1000, FL_LOG_WARN,
                       "picker has no address", "epp=%s why=%s", picker->endpoint,
                       fl_log_value(fl_bytes_of(why)).text);
    } else {
        picker->resolved_ms = fl_loop_now_ms(picker->proxy->loop);
        picker->target.addr = addrs[0];
        if (picker->peer == NULL)
            make_peer(picker);
        else
            fl_extproc_peer_set_addr(picker->peer, &addrs[0]);
    }
    tell_waits(picker);
}

static void resolve(struct fl_proxy_picker *picker)
{
    if (picker->question == NULL)
        picker->question = fl_resolver_ask(picker->proxy->resolver, picker->host, picker->port,
                                           on_resolved, picker);
}

static void free_picker(struct fl_proxy_picker *picker)
{
    fl_link_unlink(&picker->link);
    fl_question_cancel(picker->question);
    fl_extproc_peer_free(picker->peer);
    picker->peer = NULL;
    tell_waits(picker);
    if (picker->target.addr.len > 0)
        fl_web_pool_forget(picker->proxy->pool, &picker->target);
    fl_tls_unref(picker->target.tls);
    fl_free(picker->endpoint);
    fl_free(picker->host);
    fl_free(picker->ca_file);
    fl_free(picker->server_name);
    fl_free(picker);
}

/* An IP literal needs no resolution. */
static void set_literal(struct fl_proxy_picker *picker)
{
    struct fl_addr addr;
    picker->is_name = fl_addr_parse(fl_bytes_of(picker->endpoint), false, &addr, NULL) < 0;
    if (!picker->is_name)
        picker->target.addr = addr;
}

static struct fl_proxy_picker *picker_new(struct fl_proxy *proxy, const struct fl_rule *rule)
{
    struct fl_error err = {0};
    struct fl_proxy_picker *picker = fl_calloc(1, sizeof(*picker));
    picker->proxy = proxy;
    picker->endpoint = copy(rule->epp_endpoint);
    picker->host = copy(rule->epp_host);
    picker->ca_file = copy(rule->epp_ca_file);
    picker->server_name = copy(rule->epp_server_name);
    picker->port = (uint16_t)rule->epp_port;
    picker->is_plaintext = rule->epp_plaintext;
    fl_link_init(&picker->waits);
    fl_link_init(&picker->link);
    fl_link_push_tail(&proxy->pickers, &picker->link);
    picker->target = (struct fl_web_target){
        .protocol = FL_WEB_H2,
        .connect_timeout_ms = DIAL_TIMEOUT_MS,
        .user_timeout_ms = USER_TIMEOUT_MS,
    };
    set_literal(picker);
    if (!picker->is_plaintext) {
        if (fl_proxy_picker_tls(rule, &picker->target.tls, &err) < 0) {
            fl_log(FL_LOG_ERROR, "picker cannot be asked", "epp=%s why=%s", picker->endpoint,
                   fl_log_value(fl_bytes_of(err.text)).text);
            free_picker(picker);
            return NULL;
        }
        if (picker->server_name[0] != '\0')
            picker->target.server_name = picker->server_name;
        else if (picker->is_name)
            picker->target.server_name = picker->host;
    }
    if (!picker->is_name)
        make_peer(picker);
    return picker;
}

struct fl_extproc_peer *fl_proxy_picker(struct fl_proxy *proxy, const struct fl_rule *rule,
                                        struct fl_picker_wait *wait)
{
    struct fl_proxy_picker *picker = NULL;
    FL_LINK_FOREACH(link, &proxy->pickers)
    {
        struct fl_proxy_picker *it = FL_CONTAINER_OF(link, struct fl_proxy_picker, link);
        if (is_picker_of(it, rule))
            picker = it;
    }
    if (picker == NULL)
        picker = picker_new(proxy, rule);
    if (picker == NULL)
        return NULL;
    if (picker->is_name && (picker->peer == NULL ||
                            fl_loop_now_ms(proxy->loop) - picker->resolved_ms >= RESOLVE_AGAIN_MS))
        resolve(picker);
    if (picker->peer == NULL)
        fl_link_push_tail(&picker->waits, &wait->link);
    return picker->peer;
}

static bool is_named(const struct fl_proxy *proxy, const struct fl_proxy_picker *picker)
{
    for (uint32_t i = 0; i < proxy->snapshot->rule_count; i++) {
        const struct fl_rule *rule = proxy->snapshot->rules[i];
        if (fl_rule_has_epp(rule) && is_picker_of(picker, rule))
            return true;
    }
    return false;
}

void fl_proxy_pickers_adopt(struct fl_proxy *proxy)
{
    FL_LINK_FOREACH(link, &proxy->pickers)
    {
        struct fl_proxy_picker *picker = FL_CONTAINER_OF(link, struct fl_proxy_picker, link);
        /* Who waits was matched by the former rules and still wants the answer. */
        if (fl_link_is_alone(&picker->waits) && !is_named(proxy, picker))
            free_picker(picker);
    }
}

void fl_proxy_pickers_fini(struct fl_proxy *proxy)
{
    FL_LINK_FOREACH(link, &proxy->pickers)
    {
        free_picker(FL_CONTAINER_OF(link, struct fl_proxy_picker, link));
    }
}
