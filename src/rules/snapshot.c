/* SPDX-License-Identifier: Apache-2.0 */
#include "rules/snapshot.h"

#include <assert.h>
#include <stdlib.h>

#include "base/alloc.h"

/* ---- building ---- */

static int compare_numbers(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int compare_places(const struct fl_rule *a, const struct fl_rule *b)
{
    int order = compare_numbers(a->vip.family, b->vip.family);
    if (order == 0)
        order = memcmp(a->vip.bytes, b->vip.bytes, sizeof(a->vip.bytes));
    return order != 0 ? order : compare_numbers(a->port, b->port);
}

static bool has_path(const struct fl_rule *rule)
{
    return rule->path_match_mode != FL_PATH_DISABLED && rule->path_prefix.n > 0;
}

/* Exact paths before any prefix, longer prefixes before shorter ones, none last. */
static uint64_t path_rank(const struct fl_rule *rule)
{
    if (!has_path(rule))
        return 0;
    return rule->path_match_mode == FL_PATH_EXACT ? UINT64_MAX : rule->path_prefix.n;
}

/* gateway.md 5.3: the order in which the rules of one listener are tried. */
static int compare_precedence(const struct fl_rule *a, const struct fl_rule *b)
{
    int order = compare_numbers(b->match_host.n > 0, a->match_host.n > 0);
    if (order == 0)
        order = compare_numbers(path_rank(b), path_rank(a));
    return order != 0 ? order : compare_numbers(b->model_name.n > 0, a->model_name.n > 0);
}

struct entry {
    struct fl_rule *rule;
    uint32_t created;
};

static int compare_entries(const void *left, const void *right)
{
    const struct entry *a = left;
    const struct entry *b = right;
    int order = compare_places(a->rule, b->rule);
    if (order == 0)
        order = compare_precedence(a->rule, b->rule);
    return order != 0 ? order : compare_numbers(a->created, b->created);
}

static bool is_keyless(const struct fl_rule *rule)
{
    return rule->match_host.n == 0 && !has_path(rule) && rule->model_name.n == 0;
}

static void open_listener(struct fl_rules_snapshot *snapshot, struct fl_rule **rules)
{
    struct fl_rules_listener *listener = &snapshot->listeners[snapshot->listener_count++];
    listener->ip = rules[0]->vip;
    listener->port = (uint16_t)rules[0]->port;
    listener->rules = rules;
}

static void build_listeners(struct fl_rules_snapshot *snapshot)
{
    uint32_t count = snapshot->rule_count;
    struct entry *entries = fl_calloc(count, sizeof(*entries));
    for (uint32_t i = 0; i < count; i++)
        entries[i] = (struct entry){snapshot->rules[i], i};
    qsort(entries, count, sizeof(*entries), compare_entries);
    for (uint32_t i = 0; i < count; i++) {
        snapshot->listed[i] = entries[i].rule;
        if (i == 0 || compare_places(entries[i - 1].rule, entries[i].rule) != 0)
            open_listener(snapshot, &snapshot->listed[i]);
        struct fl_rules_listener *listener = &snapshot->listeners[snapshot->listener_count - 1];
        listener->rule_count++;
        listener->needs_model |= entries[i].rule->model_name.n > 0;
        listener->only =
            listener->rule_count == 1 && is_keyless(entries[i].rule) ? entries[i].rule : NULL;
    }
    fl_free(entries);
}

struct fl_rules_snapshot *fl_rules_snapshot_new(struct fl_rule *const *list, uint32_t count,
                                                uint64_t generation, uint32_t loops)
{
    /* aligned_alloc for the loops' cache lines; sizeof is a multiple of 64 for their sake. */
    size_t n = sizeof(struct fl_rules_snapshot) + loops * sizeof(struct fl_rules_use);
    struct fl_rules_snapshot *snapshot = aligned_alloc(64, n);
    if (snapshot == NULL)
        abort(); /* as fl_alloc(): small, and not of a peer's choosing */
    memset(snapshot, 0, n);
    snapshot->generation = generation;
    snapshot->rule_count = count;
    fl_link_init(&snapshot->link);
    if (count == 0)
        return snapshot;
    snapshot->rules = fl_calloc(count, sizeof(void *));
    snapshot->listed = fl_calloc(count, sizeof(void *));
    snapshot->listeners = fl_calloc(count, sizeof(*snapshot->listeners));
    for (uint32_t i = 0; i < count; i++) {
        snapshot->rules[i] = list[i];
        fl_rule_ref(list[i]);
    }
    build_listeners(snapshot);
    return snapshot;
}

void fl_rules_snapshot_free(struct fl_rules_snapshot *snapshot)
{
    if (snapshot == NULL)
        return;
    fl_link_unlink(&snapshot->link);
    for (uint32_t i = 0; i < snapshot->rule_count; i++)
        fl_rule_unref(snapshot->rules[i]);
    fl_free(snapshot->rules);
    fl_free(snapshot->listed);
    fl_free(snapshot->listeners);
    free(snapshot);
}

/* ---- request loops ---- */

bool fl_rules_adopt(struct fl_rules_snapshot *next, struct fl_rules_snapshot *before, uint32_t loop)
{
    assert(next != before && !next->uses[loop].is_retired);
    if (before == NULL)
        return false;
    assert(!before->uses[loop].is_retired);
    before->uses[loop].is_retired = true;
    return before->uses[loop].users == 0;
}

void fl_rules_hold(struct fl_rules_snapshot *snapshot, uint32_t loop)
{
    assert(!snapshot->uses[loop].is_retired);
    snapshot->uses[loop].users++;
}

bool fl_rules_release(struct fl_rules_snapshot *snapshot, uint32_t loop)
{
    struct fl_rules_use *use = &snapshot->uses[loop];
    assert(use->users > 0);
    return --use->users == 0 && use->is_retired;
}

const struct fl_rules_listener *fl_rules_listener(const struct fl_rules_snapshot *snapshot,
                                                  const struct fl_rule_ip *ip, uint16_t port)
{
    /* Asked once per connection, among a handful of listeners. */
    for (uint32_t i = 0; i < snapshot->listener_count; i++) {
        const struct fl_rules_listener *listener = &snapshot->listeners[i];
        if (listener->port == port && fl_rule_ip_eq(&listener->ip, ip))
            return listener;
    }
    return NULL;
}

static bool path_matches(const struct fl_rule *rule, struct fl_bytes path)
{
    if (!has_path(rule))
        return true;
    if (rule->path_match_mode == FL_PATH_EXACT)
        return fl_bytes_eq(path, rule->path_prefix);
    if (!fl_bytes_has_prefix(path, rule->path_prefix))
        return false;
    /* Whole segments: /v1 matches /v1/x, not /v10. */
    return path.n == rule->path_prefix.n || rule->path_prefix.p[rule->path_prefix.n - 1] == '/' ||
           path.p[rule->path_prefix.n] == '/';
}

const struct fl_rule *fl_rules_match(const struct fl_rules_listener *listener, struct fl_bytes host,
                                     struct fl_bytes path, struct fl_bytes model,
                                     enum fl_rules_miss *miss)
{
    *miss = FL_RULES_FOUND;
    if (listener->only != NULL)
        return listener->only;
    bool only_model_differs = false;
    struct fl_bytes bare = fl_rule_bare_host(host);
    for (uint32_t i = 0; i < listener->rule_count; i++) {
        const struct fl_rule *rule = listener->rules[i];
        if (rule->match_host.n > 0 && !fl_bytes_eq_nocase(rule->match_host, bare))
            continue;
        if (!path_matches(rule, path))
            continue;
        if (rule->model_name.n == 0 || fl_bytes_eq(rule->model_name, model))
            return rule;
        only_model_differs = true;
    }
    *miss = only_model_differs && model.n > 0 ? FL_RULES_MODEL_UNAVAILABLE : FL_RULES_NO_ROUTE;
    return NULL;
}
