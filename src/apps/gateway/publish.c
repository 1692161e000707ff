/* SPDX-License-Identifier: Apache-2.0 */
/* How a change of rules becomes live: validated, its new listeners bound, committed, mailed to
 * every loop, acknowledged, answered (gateway.md 5.1). */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "apps/gateway/gateway.h"
#include "base/alloc.h"
#include "base/log.h"
#include "net/tls.h"
#include "proxy/picker.h"

uint64_t gateway_unix_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ---- publications ---- */

static struct fl_proxy_rule_stats *stats_of(struct gateway *gateway, const struct fl_rule *rule)
{
    uint64_t key = (uint64_t)(uintptr_t)rule->live;
    struct fl_proxy_rule_stats *stats = fl_map_u64_find(&gateway->stats, key);
    if (stats != NULL) {
        stats->refs++;
        return stats;
    }
    stats = fl_proxy_rule_stats_new(gateway->loop_count);
    fl_map_u64_put(&gateway->stats, key, stats);
    return stats;
}

static struct gateway_publication *publication_new(struct gateway *gateway,
                                                   struct fl_rules_snapshot *snapshot)
{
    struct gateway_publication *publication = fl_calloc(1, sizeof(*publication));
    publication->gateway = gateway;
    publication->count = snapshot->rule_count;
    publication->rules.snapshot = snapshot;
    publication->rules.stats = fl_calloc(publication->count + 1, sizeof(*publication->rules.stats));
    publication->live_keys = fl_calloc(publication->count + 1, sizeof(uint64_t));
    publication->acknowledged = fl_calloc(gateway->loop_count / 64 + 1, sizeof(uint64_t));
    publication->unacknowledged = publication->not_given_back = gateway->loop_count;
    fl_link_init(&publication->link);
    return publication;
}

static void publication_fill(struct gateway_publication *publication)
{
    const struct fl_rules_snapshot *snapshot = publication->rules.snapshot;
    for (uint32_t i = 0; i < publication->count; i++) {
        publication->rules.stats[i] = stats_of(publication->gateway, snapshot->rules[i]);
        publication->live_keys[i] = (uint64_t)(uintptr_t)snapshot->rules[i]->live;
    }
    fl_link_push_tail(&publication->gateway->publications, &publication->link);
}

static void publication_free(struct gateway_publication *publication)
{
    struct gateway *gateway = publication->gateway;
    for (uint32_t i = 0; i < publication->count; i++) {
        struct fl_proxy_rule_stats *stats = publication->rules.stats[i];
        if (stats != NULL && stats->refs == 1)
            fl_map_u64_take(&gateway->stats, publication->live_keys[i]);
        fl_proxy_rule_stats_unref(stats);
    }
    for (uint32_t i = 0; i < publication->binding_count; i++)
        fl_free(publication->bindings[i].listeners);
    fl_free(publication->bindings);
    fl_free(publication->rules.stats);
    fl_free(publication->live_keys);
    fl_free(publication->acknowledged);
    fl_link_unlink(&publication->link);
    fl_free(publication);
}

static void free_if_done(struct gateway_publication *publication)
{
    if (publication->unacknowledged == 0 && publication->not_given_back == 0)
        publication_free(publication);
}

const struct gateway_publication *gateway_current(const struct gateway *gateway)
{
    return FL_CONTAINER_OF(gateway->publications.prev, struct gateway_publication, link);
}

/* ---- binding ---- */

static const struct fl_rules_listener *find_listener(const struct fl_rules_snapshot *snapshot,
                                                     const struct fl_rules_listener *like)
{
    return fl_rules_listener(snapshot, &like->ip, like->port);
}

static struct fl_addr address_of(const struct fl_rules_listener *listener)
{
    struct fl_addr addr = {0};
    if (listener->ip.family == 6) {
        addr.v6.sin6_family = AF_INET6;
        addr.v6.sin6_port = htons(listener->port);
        memcpy(&addr.v6.sin6_addr, listener->ip.bytes, 16);
        addr.len = sizeof(addr.v6);
    } else {
        addr.v4.sin_family = AF_INET;
        addr.v4.sin_port = htons(listener->port);
        memcpy(&addr.v4.sin_addr, listener->ip.bytes, 4);
        addr.len = sizeof(addr.v4);
    }
    return addr;
}

static struct gateway_binding *add_binding(struct gateway_publication *publication,
                                           const struct fl_rules_listener *listener)
{
    publication->bindings = fl_realloc(publication->bindings, publication->binding_count + 1,
                                       sizeof(*publication->bindings));
    struct gateway_binding *binding = &publication->bindings[publication->binding_count++];
    *binding = (struct gateway_binding){
        .ip = listener->ip,
        .port = listener->port,
        .head_timeout_ms = listener->rules[0]->inspect_timeout_ms,
        .idle_timeout_ms = listener->rules[0]->inactive_timeout_s * 1000,
    };
    return binding;
}

static int bind_new(struct gateway_publication *publication,
                    const struct fl_rules_listener *listener, struct fl_error *err)
{
    struct gateway *gateway = publication->gateway;
    struct fl_addr addr = address_of(listener);
    struct gateway_binding *binding = add_binding(publication, listener);
    binding->listeners = fl_calloc(gateway->loop_count, sizeof(*binding->listeners));
    for (uint32_t i = 0; i < gateway->loop_count; i++) {
        int rc = fl_listener_open(&addr, true, &binding->listeners[i], err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static void unbind(struct gateway_publication *publication)
{
    for (uint32_t i = 0; i < publication->binding_count; i++) {
        struct gateway_binding *binding = &publication->bindings[i];
        for (uint32_t k = 0; binding->listeners != NULL && k < publication->gateway->loop_count;
             k++)
            fl_listener_close(binding->listeners[k]);
    }
}

/* New listeners are opened, vanished ones noted. A failure leaves nothing open. */
static int bind_all(struct gateway_publication *publication, struct fl_error *err)
{
    const struct fl_rules_snapshot *before = publication->gateway->rules.current;
    const struct fl_rules_snapshot *next = publication->rules.snapshot;
    for (uint32_t i = 0; i < next->listener_count; i++) {
        if (find_listener(before, &next->listeners[i]) != NULL)
            continue;
        int rc = bind_new(publication, &next->listeners[i], err);
        if (rc < 0) {
            unbind(publication);
            return rc;
        }
    }
    for (uint32_t i = 0; i < before->listener_count; i++) {
        if (find_listener(next, &before->listeners[i]) == NULL)
            add_binding(publication, &before->listeners[i]);
    }
    return 0;
}

/* ---- changes ---- */

static void complete(struct gateway *gateway, struct gateway_change *change,
                     const struct fl_rest_answer *answer)
{
    assert(gateway->running == change);
    gateway->running = NULL;
    if (change->done != NULL)
        change->done(change, answer);
    else
        fl_free(change); /* forgotten: see gateway_change_forget() */
}

static const char file_holds[] = "rule comes from a --rule file";

static void refuse_file_rule(struct fl_rest_answer *answer, const struct fl_rule *rule)
{
    fl_rest_refuse(answer, 409, "%s", file_holds);
    fl_log(FL_LOG_WARN, "change refused: rule comes from a --rule file", "vip=%.*s port=%u",
           FL_FMT(rule->external_ip), (unsigned)rule->port);
}

/* What only this host can tell: the trust bundle must be readable now (gateway.md 4.4). */
static bool has_bad_ca(const struct fl_rule *rule, struct fl_rest_answer *answer)
{
    struct fl_tls_context *tls = NULL;
    struct fl_error err = {0};
    if (rule->epp_ca_file.n == 0)
        return false;
    bool is_bad = fl_proxy_picker_tls(rule, &tls, &err) < 0;
    if (is_bad)
        fl_rest_refuse(answer, 400, "eppCaFile: %s", err.text);
    fl_tls_unref(tls);
    return is_bad;
}

/* True if the change touches a rule that a file holds: the answer says so. */
static bool is_held_by_file(struct gateway *gateway, const struct gateway_change *change,
                            struct fl_rest_answer *answer)
{
    const struct fl_rules_snapshot *current = gateway->rules.current;
    if (change->is_from_file || fl_link_is_alone(&gateway->file_keys))
        return false;
    for (uint32_t i = 0; i < current->rule_count; i++) {
        const struct fl_rule *rule = current->rules[i];
        bool is_touched = change->kind == GATEWAY_DELETE_ALL;
        if (change->kind == GATEWAY_POST)
            is_touched = fl_bytes_eq(rule->key, change->rule->key);
        else if (change->kind == GATEWAY_DELETE)
            is_touched = fl_rules_find(&gateway->rules, &change->target) == rule;
        else if (change->kind == GATEWAY_DELETE_NAME)
            is_touched = fl_bytes_eq(rule->name, change->name);
        if (is_touched && gateway_files_hold(gateway, rule->key)) {
            refuse_file_rule(answer, rule);
            return true;
        }
    }
    return false;
}

static struct fl_rules_snapshot *prepare(struct gateway *gateway, struct gateway_change *change,
                                         struct fl_rest_answer *answer)
{
    struct fl_rule *rule = change->rule;
    if (is_held_by_file(gateway, change, answer))
        return NULL;
    if (change->kind == GATEWAY_POST && has_bad_ca(rule, answer))
        return NULL;
    switch (change->kind) {
    case GATEWAY_POST:
        change->rule = NULL;
        return fl_rules_post_rule(&gateway->rules, rule, answer);
    case GATEWAY_DELETE:
        return fl_rules_delete(&gateway->rules, &change->target, answer);
    case GATEWAY_DELETE_NAME:
        return fl_rules_delete_name(&gateway->rules, change->name, answer);
    case GATEWAY_DELETE_ALL:
        return fl_rules_delete_all(&gateway->rules, answer);
    }
    return NULL;
}

static void log_change(const struct gateway *gateway, const struct gateway_change *change)
{
    static const char *const words[] = {"post", "delete", "delete by name", "delete all"};
    fl_log(FL_LOG_INFO, "rules changed", "how=\"%s\" generation=%llu rules=%u listeners=%u",
           words[change->kind], (unsigned long long)gateway->rules.current->generation,
           gateway->rules.current->rule_count, gateway->rules.current->listener_count);
}

/* One change: refused or without effect at once, or on its way. */
static void start(struct gateway *gateway, struct gateway_change *change)
{
    struct fl_rest_answer answer = {0};
    struct fl_error err = {0};

    gateway->running = change;
    struct fl_rules_snapshot *next = prepare(gateway, change, &answer);
    fl_rule_unref(change->rule);
    change->rule = NULL;
    if (next == NULL) {
        complete(gateway, change, &answer);
        return;
    }
    struct gateway_publication *publication = publication_new(gateway, next);
    if (bind_all(publication, &err) < 0) {
        fl_rules_abandon(&gateway->rules, next);
        publication_free(publication);
        fl_rest_refuse(&answer, 400, "service-args error: cannot bind: %s", err.text);
        complete(gateway, change, &answer);
        return;
    }
    publication_fill(publication);
    fl_rules_commit(&gateway->rules, next);
    gateway->in_flight = publication;
    log_change(gateway, change);
    fl_loop_timer_start(gateway->control, &gateway->ack_timer, GATEWAY_ACK_MS);
    for (uint32_t i = 0; i < gateway->loop_count; i++)
        gateway_loop_publish(&gateway->loops[i], publication);
}

static void run_next(struct gateway *gateway)
{
    while (gateway->running == NULL) {
        struct fl_link *link = fl_link_pop_head(&gateway->changes);
        if (link == NULL)
            return;
        start(gateway, FL_CONTAINER_OF(link, struct gateway_change, link));
    }
}

void gateway_change_submit(struct gateway *gateway, struct gateway_change *change)
{
    fl_link_init(&change->link);
    fl_link_push_tail(&gateway->changes, &change->link);
    run_next(gateway);
}

void gateway_change_forget(struct gateway *gateway, struct gateway_change *change)
{
    change->done = NULL;
    if (gateway->running == change)
        return;
    fl_link_unlink(&change->link);
    fl_rule_unref(change->rule);
    fl_free(change);
}

void gateway_acknowledged(struct gateway *gateway, struct gateway_publication *publication,
                          uint32_t loop)
{
    publication->acknowledged[loop / 64] |= UINT64_C(1) << (loop % 64);
    publication->unacknowledged--;
    if (publication->unacknowledged > 0)
        return;
    /* Late, after the answer of on_ack_timeout()? */
    if (gateway->in_flight == publication) {
        struct fl_rest_answer answer;
        gateway->in_flight = NULL;
        fl_loop_timer_stop(gateway->control, &gateway->ack_timer);
        fl_rest_success(&answer);
        complete(gateway, gateway->running, &answer);
        run_next(gateway);
    }
    free_if_done(publication);
}

static void on_ack_timeout(struct fl_timer *timer)
{
    struct gateway *gateway = FL_CONTAINER_OF(timer, struct gateway, ack_timer);
    struct gateway_publication *publication = gateway->in_flight;
    struct fl_rest_answer answer = {.status = 500, .code = 500};
    uint32_t loop = 0;

    while ((publication->acknowledged[loop / 64] >> (loop % 64) & 1) != 0)
        loop++;
    gateway->in_flight = NULL;
    fl_log(FL_LOG_ERROR, "rules are not live", "loop=%u silent_ms=%u", loop, GATEWAY_ACK_MS);
    snprintf(answer.message, sizeof(answer.message), "rule stored, not live on loop %u", loop);
    snprintf(answer.result, sizeof(answer.result), "%s", answer.message);
    complete(gateway, gateway->running, &answer);
    run_next(gateway);
}

void gateway_given_back(struct gateway *gateway, struct fl_rules_snapshot *snapshot)
{
    FL_LINK_FOREACH(link, &gateway->publications)
    {
        struct gateway_publication *publication =
            FL_CONTAINER_OF(link, struct gateway_publication, link);
        if (publication->rules.snapshot != snapshot)
            continue;
        publication->not_given_back--;
        free_if_done(publication);
        break;
    }
    fl_rules_give_back(&gateway->rules, snapshot);
}

void gateway_publish_first(struct gateway *gateway)
{
    struct gateway_publication *publication = publication_new(gateway, gateway->rules.current);
    fl_timer_init(&gateway->ack_timer, on_ack_timeout);
    publication_fill(publication);
    publication->unacknowledged = 0; /* fl_loops_start() returns when all have adopted it */
}

void gateway_publications_fini(struct gateway *gateway)
{
    FL_LINK_FOREACH(link, &gateway->publications)
    {
        publication_free(FL_CONTAINER_OF(link, struct gateway_publication, link));
    }
    fl_map_u64_fini(&gateway->stats);
}
