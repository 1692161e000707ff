/* SPDX-License-Identifier: Apache-2.0 */
/* The table: what POST, DELETE and PATCH mean (gateway.md 4.6, 4.7). The current snapshot is the
 * table; a change is the next one. */
#include "rules/rules.h"

#include <assert.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "rules/snapshot.h"

#define NO_RULE "no-rule error"
/* The substring "exist" is read as success by older clients: only for a true duplicate. */
#define DUPLICATE "lbrule-exists error"

void fl_rules_init(struct fl_rules *rules, uint32_t loops)
{
    assert(loops >= 1);
    *rules = (struct fl_rules){.loops = loops, .max_rules = FL_RULES_MAX};
    fl_link_init(&rules->held);
    fl_rules_commit(rules, fl_rules_snapshot_new(NULL, 0, 1, loops));
}

void fl_rules_fini(struct fl_rules *rules)
{
    if (rules->current == NULL)
        return;
    FL_LINK_FOREACH(link, &rules->held)
    {
        fl_rules_snapshot_free(FL_CONTAINER_OF(link, struct fl_rules_snapshot, link));
    }
    rules->current = NULL;
    rules->held_count = 0;
}

/* ---- life of snapshots ---- */

static struct fl_rules_snapshot *next_of(const struct fl_rules *rules, struct fl_rule *const *list,
                                         uint32_t count)
{
    return fl_rules_snapshot_new(list, count, rules->current->generation + 1, rules->loops);
}

/* The current rules with `now` in the place of `before`. NULL for `before` appends, for `now`
 * removes. */
static struct fl_rules_snapshot *next_with(const struct fl_rules *rules,
                                           const struct fl_rule *before, struct fl_rule *now)
{
    const struct fl_rules_snapshot *current = rules->current;
    struct fl_rule **list = fl_calloc(current->rule_count + 1, sizeof(void *));
    uint32_t count = 0;
    for (uint32_t i = 0; i < current->rule_count; i++) {
        if (current->rules[i] != before)
            list[count++] = current->rules[i];
        else if (now != NULL)
            list[count++] = now;
    }
    if (before == NULL)
        list[count++] = now;
    struct fl_rules_snapshot *next = next_of(rules, list, count);
    fl_free(list);
    return next;
}

static uint32_t count_inactive(const struct fl_rule *rule)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < rule->endpoint_count; i++)
        n += atomic_load_explicit(&rule->endpoints[i].live->is_inactive, memory_order_relaxed);
    return n;
}

void fl_rules_commit(struct fl_rules *rules, struct fl_rules_snapshot *next)
{
    assert(rules->current == NULL || next->generation == rules->current->generation + 1);
    for (uint32_t i = 0; i < next->rule_count; i++) {
        struct fl_rule *rule = next->rules[i];
        /* New ones, which no other snapshot holds: endpoints that went took their state with them.
         * Only this loop changes it (probes), so no change is lost between counting and storing. */
        if (rule->refs == 1)
            atomic_store_explicit(&rule->live->inactive, count_inactive(rule),
                                  memory_order_relaxed);
    }
    next->owed = rules->loops;
    fl_link_push_tail(&rules->held, &next->link);
    rules->held_count++;
    rules->current = next;
}

void fl_rules_abandon(struct fl_rules *rules, struct fl_rules_snapshot *next)
{
    assert(next != rules->current && fl_link_is_alone(&next->link));
    fl_rules_snapshot_free(next);
}

void fl_rules_give_back(struct fl_rules *rules, struct fl_rules_snapshot *snapshot)
{
    assert(snapshot != rules->current && snapshot->owed > 0);
    if (--snapshot->owed > 0)
        return;
    rules->held_count--;
    fl_rules_snapshot_free(snapshot);
}

/* ---- finding ---- */

static struct fl_rule *find_key(const struct fl_rules *rules, struct fl_bytes key)
{
    for (uint32_t i = 0; i < rules->current->rule_count; i++) {
        if (fl_bytes_eq(rules->current->rules[i]->key, key))
            return rules->current->rules[i];
    }
    return NULL;
}

const struct fl_rule *fl_rules_find_id(const struct fl_rules *rules, struct fl_bytes id)
{
    for (uint32_t i = 0; i < rules->current->rule_count; i++) {
        if (fl_bytes_eq(rules->current->rules[i]->id, id))
            return rules->current->rules[i];
    }
    return NULL;
}

static bool is_at(const struct fl_rule *rule, const struct fl_rules_target *target)
{
    struct fl_rule_ip ip;
    uint64_t port;
    /* Every rule is tcp: step 2 of 4.5 lets no other in. */
    return fl_bytes_eq(target->protocol, FL_BYTES("tcp")) && fl_rule_ip_parse(target->ip, &ip) &&
           fl_bytes_to_u64(target->port, 65535, &port) && rule->port == port &&
           fl_rule_ip_eq(&rule->vip, &ip);
}

const struct fl_rule *fl_rules_find(const struct fl_rules *rules,
                                    const struct fl_rules_target *target)
{
    for (uint32_t i = 0; i < rules->current->rule_count; i++) {
        if (is_at(rules->current->rules[i], target))
            return rules->current->rules[i];
    }
    return NULL;
}

static bool has_target_key(const struct fl_rule *rule, const struct fl_rules_target *target)
{
    static const char *const modes[] = {"disabled", "prefix", "exact"};
    struct fl_bytes host = fl_rule_bare_host(target->host);
    struct fl_bytes mode = fl_bytes_of(modes[rule->path_match_mode]);
    if (fl_bytes_eq(host, FL_BYTES("any")))
        host = FL_BYTES("");
    bool has_mode = target->path_match_mode.n == 0 ? rule->path_match_mode == FL_PATH_DISABLED
                                                   : fl_bytes_eq(mode, target->path_match_mode);
    return has_mode && fl_bytes_eq_nocase(rule->match_host, host) &&
           fl_bytes_eq(rule->path_prefix, target->path_prefix) &&
           fl_bytes_eq(rule->model_name, target->model_name);
}

void fl_rules_write_all(struct fl_json_writer *writer, const struct fl_rules *rules,
                        struct fl_bytes project_id, bool with_live)
{
    fl_json_write_object(writer);
    fl_json_write_key(writer, "lbAttr");
    fl_json_write_array(writer);
    for (uint32_t i = 0; i < rules->current->rule_count; i++) {
        const struct fl_rule *rule = rules->current->rules[i];
        if (fl_bytes_is_absent(project_id) || fl_bytes_eq(rule->project_id, project_id))
            fl_rule_write(writer, rule, with_live);
    }
    fl_json_write_array_end(writer);
    fl_json_write_object_end(writer);
}

/* ---- POST ---- */

static void give_id(struct fl_rule *rule, struct fl_bytes id)
{
    char minted[FL_UUID_TEXT];
    if (rule->id.n > 0)
        return;
    if (id.n == 0) {
        fl_uuid4(minted);
        id = fl_bytes_of(minted);
    }
    rule->id = fl_bytes(fl_arena_cstr(&rule->arena, id), id.n);
}

/* Live blocks for `rule`: those of `before` (NULL: none) where the same thing goes on, else new
 * ones. */
static void give_live(const struct fl_rules *rules, struct fl_rule *rule,
                      const struct fl_rule *before)
{
    for (uint32_t i = 0; i < rule->endpoint_count; i++) {
        struct fl_rule_endpoint *endpoint = &rule->endpoints[i];
        uint32_t at = before == NULL ? UINT32_MAX : fl_rule_index_of(before, endpoint);
        if (at == UINT32_MAX) {
            endpoint->live = fl_endpoint_live_new(rules->loops);
        } else {
            endpoint->live = before->endpoints[at].live;
            endpoint->live->refs++;
        }
    }
    if (before == NULL) {
        rule->live = fl_rule_live_new();
        return;
    }
    rule->live = before->live;
    rule->live->refs++;
}

/* Surviving endpoints keep their order, new ones follow (4.6). */
static void keep_order(struct fl_rule *rule, const struct fl_rule *before)
{
    uint32_t count = rule->endpoint_count;
    struct fl_rule_endpoint *sorted = fl_arena_calloc(&rule->arena, count + 1, sizeof(*sorted));
    uint32_t n = 0;
    for (uint32_t i = 0; i < before->endpoint_count; i++) {
        uint32_t at = fl_rule_index_of(rule, &before->endpoints[i]);
        if (at != UINT32_MAX)
            sorted[n++] = rule->endpoints[at];
    }
    for (uint32_t i = 0; i < count; i++) {
        if (fl_rule_index_of(before, &rule->endpoints[i]) == UINT32_MAX)
            sorted[n++] = rule->endpoints[i];
    }
    assert(n == count);
    fl_rule_set_endpoints(rule, sorted, count);
}

static struct fl_rules_snapshot *replace(struct fl_rules *rules, const struct fl_rule *before,
                                         struct fl_rule *now)
{
    give_id(now, before->id);
    give_live(rules, now, before);
    return next_with(rules, before, now);
}

static struct fl_rules_snapshot *create(struct fl_rules *rules, struct fl_rule *rule,
                                        struct fl_rest_answer *answer)
{
    if (rules->current->rule_count >= rules->max_rules) {
        fl_rest_refuse(answer, 403, "rule-hwm error");
        return NULL;
    }
    give_id(rule, (struct fl_bytes){NULL, 0});
    give_live(rules, rule, NULL);
    return next_with(rules, NULL, rule);
}

static struct fl_rules_snapshot *replace_whole(struct fl_rules *rules, const struct fl_rule *before,
                                               struct fl_rule *now, struct fl_rest_answer *answer)
{
    if (fl_rule_eq(before, now)) {
        fl_rest_refuse(answer, 409, DUPLICATE);
        return NULL;
    }
    keep_order(now, before);
    return replace(rules, before, now);
}

static struct fl_rules_snapshot *attach(struct fl_rules *rules, const struct fl_rule *before,
                                        const struct fl_rule *given, struct fl_rest_answer *answer)
{
    struct fl_rule *now = fl_rule_copy(before, given->updated_unix_ms);
    uint32_t count = now->endpoint_count;
    struct fl_rule_endpoint *all =
        fl_arena_calloc(&now->arena, count + given->endpoint_count + 1, sizeof(*all));
    bool is_changed = false;
    for (uint32_t i = 0; i < count; i++)
        all[i] = now->endpoints[i];
    for (uint32_t i = 0; i < given->endpoint_count; i++) {
        const struct fl_rule_endpoint *endpoint = &given->endpoints[i];
        uint32_t at = fl_rule_index_of(before, endpoint);
        if (at != UINT32_MAX && fl_rule_endpoint_eq(&before->endpoints[at], endpoint))
            continue;
        all[at == UINT32_MAX ? count++ : at] = fl_rule_copy_endpoint(now, endpoint);
        is_changed = true;
    }
    struct fl_rules_snapshot *next = NULL;
    fl_rule_set_endpoints(now, all, count);
    if (!is_changed)
        fl_rest_refuse(answer, 409, DUPLICATE);
    else if (count > FL_RULE_MAX_ENDPOINTS)
        fl_rest_refuse(answer, 400, "endpoints-range error");
    else
        next = replace(rules, before, now);
    fl_rule_unref(now);
    return next;
}

static struct fl_rules_snapshot *detach(struct fl_rules *rules, const struct fl_rule *before,
                                        const struct fl_rule *given, struct fl_rest_answer *answer)
{
    struct fl_rule *now = fl_rule_copy(before, given->updated_unix_ms);
    uint32_t count = 0;
    for (uint32_t i = 0; i < now->endpoint_count; i++) {
        if (fl_rule_index_of(given, &now->endpoints[i]) == UINT32_MAX)
            now->endpoints[count++] = now->endpoints[i];
    }
    struct fl_rules_snapshot *next = NULL;
    bool is_changed = count < before->endpoint_count;
    fl_rule_set_endpoints(now, now->endpoints, count);
    if (!is_changed)
        fl_rest_refuse(answer, 409, DUPLICATE);
    else if (count == 0 && !fl_rule_has_epp(before))
        next = next_with(rules, before, NULL);
    else
        next = replace(rules, before, now);
    fl_rule_unref(now);
    return next;
}

static struct fl_rules_snapshot *post(struct fl_rules *rules, struct fl_rule *rule,
                                      struct fl_rest_answer *answer)
{
    const struct fl_rule *before = find_key(rules, rule->key);
    const struct fl_rule *owner = rule->id.n > 0 ? fl_rules_find_id(rules, rule->id) : NULL;
    if (owner != NULL && owner != before) {
        fl_rest_refuse(answer, 409, "lbrule-id conflict: id already bound to a different rule");
        return NULL;
    }
    if (before == NULL && rule->oper == 2) {
        fl_rest_refuse(answer, 404, NO_RULE);
        return NULL;
    }
    if (before == NULL)
        return create(rules, rule, answer);
    switch (rule->oper) {
    case 1:
        return attach(rules, before, rule, answer);
    case 2:
        return detach(rules, before, rule, answer);
    default:
        return replace_whole(rules, before, rule, answer);
    }
}

struct fl_rules_snapshot *fl_rules_post_rule(struct fl_rules *rules, struct fl_rule *rule,
                                             struct fl_rest_answer *answer)
{
    fl_rest_success(answer);
    struct fl_rules_snapshot *next = post(rules, rule, answer);
    fl_rule_unref(rule);
    return next;
}

struct fl_rules_snapshot *fl_rules_post(struct fl_rules *rules, struct fl_bytes json,
                                        uint64_t now_unix_ms, struct fl_rest_answer *answer)
{
    struct fl_rule *rule = fl_rule_new(json, now_unix_ms, answer);
    return rule == NULL ? NULL : fl_rules_post_rule(rules, rule, answer);
}

/* ---- many at once ---- */

static bool is_one_of(const struct fl_bytes *keys, uint32_t count, struct fl_bytes key)
{
    for (uint32_t i = 0; i < count; i++) {
        if (fl_bytes_eq(keys[i], key))
            return true;
    }
    return false;
}

static uint32_t position_of(struct fl_rule *const *list, uint32_t count, struct fl_bytes key)
{
    uint32_t i = 0;
    while (i < count && !fl_bytes_eq(list[i]->key, key))
        i++;
    return i;
}

/* An id stays with its key as long as that key is there (4.4), whether or not the rule is put
 * again. */
static bool is_id_free(const struct fl_rules *rules, struct fl_rule *const *list, uint32_t count,
                       uint32_t at)
{
    const struct fl_rule *rule = list[at];
    if (rule->id.n == 0)
        return true;
    const struct fl_rule *owner = fl_rules_find_id(rules, rule->id);
    if (owner != NULL && !fl_bytes_eq(owner->key, rule->key) &&
        position_of(list, count, owner->key) < count)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        if (i != at && fl_bytes_eq(list[i]->id, rule->id))
            return false;
    }
    return true;
}

/* Makes `rule` ready to stand in for `before` (NULL: new). */
static void prepare(const struct fl_rules *rules, struct fl_rule *rule,
                    const struct fl_rule *before)
{
    if (before != NULL)
        keep_order(rule, before);
    give_id(rule, before == NULL ? (struct fl_bytes){NULL, 0} : before->id);
    give_live(rules, rule, before);
}

/* Fills `list` with the rules as they are to be; returns how many, and whether anything differs. */
static uint32_t plan(const struct fl_rules *rules, struct fl_rule *const *put, uint32_t put_count,
                     const struct fl_bytes *drop, uint32_t drop_count, struct fl_rule **list,
                     bool *differs)
{
    const struct fl_rules_snapshot *current = rules->current;
    uint32_t count = 0;
    *differs = false;
    for (uint32_t i = 0; i < current->rule_count; i++) {
        struct fl_rule *before = current->rules[i];
        uint32_t at = position_of(put, put_count, before->key);
        if (at == put_count && is_one_of(drop, drop_count, before->key)) {
            *differs = true;
            continue;
        }
        bool is_replaced = at < put_count && !fl_rule_eq(before, put[at]);
        *differs |= is_replaced;
        list[count++] = is_replaced ? put[at] : before;
    }
    for (uint32_t i = 0; i < put_count; i++) {
        if (position_of(current->rules, current->rule_count, put[i]->key) < current->rule_count)
            continue;
        *differs = true;
        list[count++] = put[i];
    }
    return count;
}

static struct fl_rules_snapshot *apply_list(struct fl_rules *rules, struct fl_rule *const *list,
                                            uint32_t count, struct fl_rest_answer *answer)
{
    if (count > rules->max_rules) {
        fl_rest_refuse(answer, 403, "rule-hwm error");
        return NULL;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (list[i]->live != NULL || is_id_free(rules, list, count, i))
            continue;
        fl_rest_refuse(answer, 409, "lbrule-id conflict: id already bound to a different rule");
        return NULL;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (list[i]->live == NULL) /* put, not present */
            prepare(rules, list[i], find_key(rules, list[i]->key));
    }
    return next_of(rules, list, count);
}

struct fl_rules_snapshot *fl_rules_apply(struct fl_rules *rules, struct fl_rule *const *put,
                                         uint32_t put_count, const struct fl_bytes *drop,
                                         uint32_t drop_count, struct fl_rest_answer *answer)
{
    struct fl_rule **list =
        fl_calloc((size_t)rules->current->rule_count + put_count + 1, sizeof(void *));
    struct fl_rules_snapshot *next = NULL;
    bool differs;
    uint32_t count = plan(rules, put, put_count, drop, drop_count, list, &differs);
    fl_rest_success(answer);
    if (differs)
        next = apply_list(rules, list, count, answer);
    for (uint32_t i = 0; i < put_count; i++)
        fl_rule_unref(put[i]);
    fl_free(list);
    return next;
}

/* ---- DELETE and PATCH ---- */

struct fl_rules_snapshot *fl_rules_delete(struct fl_rules *rules,
                                          const struct fl_rules_target *target,
                                          struct fl_rest_answer *answer)
{
    for (uint32_t i = 0; i < rules->current->rule_count; i++) {
        const struct fl_rule *rule = rules->current->rules[i];
        if (is_at(rule, target) && has_target_key(rule, target)) {
            fl_rest_success(answer);
            return next_with(rules, rule, NULL);
        }
    }
    fl_rest_refuse(answer, 404, NO_RULE);
    return NULL;
}

struct fl_rules_snapshot *fl_rules_delete_name(struct fl_rules *rules, struct fl_bytes name,
                                               struct fl_rest_answer *answer)
{
    const struct fl_rules_snapshot *current = rules->current;
    struct fl_rule **list = fl_calloc(current->rule_count + 1, sizeof(void *));
    struct fl_rules_snapshot *next = NULL;
    uint32_t count = 0;
    fl_rest_success(answer);
    for (uint32_t i = 0; i < current->rule_count; i++) {
        if (!fl_bytes_eq(current->rules[i]->name, name))
            list[count++] = current->rules[i];
    }
    if (count < current->rule_count)
        next = next_of(rules, list, count);
    fl_free(list);
    return next;
}

struct fl_rules_snapshot *fl_rules_delete_all(struct fl_rules *rules, struct fl_rest_answer *answer)
{
    fl_rest_success(answer);
    return rules->current->rule_count == 0 ? NULL : next_of(rules, NULL, 0);
}

static struct fl_bytes find_epp_member(const struct fl_json_node *object)
{
    if (object == NULL || object->type != FL_JSON_OBJECT)
        return (struct fl_bytes){NULL, 0};
    for (const struct fl_json_node *member = fl_json_first(object); member != NULL;
         member = fl_json_next(object, member)) {
        if (fl_bytes_eq_nocase(fl_bytes_head(member->key, 3), FL_BYTES("epp")))
            return member->key;
    }
    return (struct fl_bytes){NULL, 0};
}

static void refuse_patch(const struct fl_json_node *body, struct fl_rest_answer *answer)
{
    struct fl_bytes epp = find_epp_member(body);
    if (fl_bytes_is_absent(epp))
        epp = find_epp_member(fl_json_get_nocase(body, FL_BYTES("serviceArguments")));
    const struct fl_json_node *endpoints = fl_json_get_nocase(body, FL_BYTES("endpoints"));
    if (!fl_bytes_is_absent(epp))
        fl_rest_refuse(answer, 400,
                       "cannot modify immutable field: %.*s (eppEndpoint is not patchable: delete "
                       "and recreate the rule)",
                       FL_FMT(fl_bytes_head(epp, 128)));
    else if (endpoints != NULL && endpoints->type == FL_JSON_ARRAY && endpoints->count == 0)
        fl_rest_refuse(answer, 400,
                       "clearing all members via PATCH is not allowed; use DELETE to remove the "
                       "rule");
    else
        fl_rest_refuse(answer, 400,
                       "cannot patch a fullproxy/L7 load balancer rule (out of scope)");
}

void fl_rules_patch(const struct fl_rules *rules, const struct fl_rules_target *target,
                    struct fl_bytes body, struct fl_rest_answer *answer)
{
    struct fl_json doc = {0};
    struct fl_error err = {0};
    if (fl_rules_find(rules, target) == NULL) {
        fl_rest_refuse(answer, 404, NO_RULE);
        return;
    }
    if (fl_json_parse(&doc, body, &err) < 0)
        fl_rest_refuse(answer, 400, "malformed merge-patch body: %.200s", err.text);
    else if (fl_json_root(&doc)->type != FL_JSON_OBJECT)
        fl_rest_refuse(answer, 400, "malformed merge-patch body: not an object");
    else
        refuse_patch(fl_json_root(&doc), answer);
    fl_json_fini(&doc);
}
