/* SPDX-License-Identifier: Apache-2.0 */
/* The table: create, replace, attach, detach, delete, patch; which rule a request gets; how
 * snapshots live and die. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "unit/rules/entry.h"

#define LOOPS 2

/* A table with one thread playing all its loops: each adopts at once and holds nothing. */
struct table {
    struct fl_rules rules;
    struct fl_rules_snapshot *seen; /* by the loops */
    struct fl_buf json;
    struct fl_rest_answer answer;
};

static void go_live(struct table *table, struct fl_rules_snapshot *next)
{
    struct fl_rules_snapshot *before = table->seen;
    for (uint32_t loop = 0; loop < LOOPS; loop++) {
        if (fl_rules_adopt(next, before, loop))
            fl_rules_give_back(&table->rules, before);
    }
    table->seen = next;
}

static void table_init(struct table *table)
{
    *table = (struct table){0};
    fl_rules_init(&table->rules, LOOPS);
    go_live(table, table->rules.current);
}

static void table_fini(struct table *table)
{
    assert_int_equal(table->rules.held_count, 1);
    fl_rules_fini(&table->rules);
    fl_buf_fini(&table->json);
}

static int commit(struct table *table, struct fl_rules_snapshot *next)
{
    if (next != NULL) {
        fl_rules_commit(&table->rules, next);
        go_live(table, next);
    }
    return table->answer.status;
}

static int post(struct table *table, const char *members, const char *endpoints)
{
    struct fl_bytes json = entry_json(&table->json, members, endpoints);
    return commit(table, fl_rules_post(&table->rules, json, 1000, &table->answer));
}

static struct fl_rule *rule_at(const struct table *table, uint32_t i)
{
    assert_true(i < table->rules.current->rule_count);
    return table->rules.current->rules[i];
}

#define E(n, weight) "{\"endpointIP\":\"10.0.0." #n "\",\"targetPort\":80,\"weight\":" #weight "}"

static void expect_endpoints(const struct fl_rule *rule, const char *expected)
{
    char list[256] = "";
    for (uint32_t i = 0; i < rule->endpoint_count; i++) {
        size_t n = strlen(list);
        snprintf(list + n, sizeof(list) - n, "%s%.*s=%u", i > 0 ? " " : "",
                 FL_FMT(rule->endpoints[i].ip_text), (unsigned)rule->endpoints[i].weight);
    }
    assert_string_equal(list, expected);
}

/* gateway.md 4.6; section 16 case 3 */
static void the_same_rule_again_is_a_conflict(void **state)
{
    (void)state;
    struct table table;
    table_init(&table);
    assert_int_equal(post(&table, EPP, NULL), 200);
    uint64_t generation = table.rules.current->generation;
    assert_int_equal(post(&table, EPP, NULL), 409);
    assert_string_equal(table.answer.result, "lbrule-exists error");
    assert_int_equal(table.rules.current->generation, generation);
    assert_int_equal(table.rules.current->rule_count, 1);
    table_fini(&table);
}

/* gateway.md 4.6: replaced atomically, surviving endpoints keep order and state; 16 case 4 */
static void a_post_that_differs_replaces(void **state)
{
    (void)state;
    struct table table;
    table_init(&table);
    assert_int_equal(post(&table, "\"id\":\"x\"", "[" E(1, 1) "," E(2, 1) "," E(3, 1) "]"), 200);
    struct fl_rule_live *live = rule_at(&table, 0)->live;
    struct fl_endpoint_live *third = rule_at(&table, 0)->endpoints[2].live;
    fl_rule_count(rule_at(&table, 0), 2, 1, 5, 50);
    assert_true(fl_rule_set_active(rule_at(&table, 0), 0, false));
    assert_true(fl_rule_set_active(rule_at(&table, 0), 2, false));
    assert_int_equal(live->inactive, 2);

    assert_int_equal(post(&table, EPP, "[" E(4, 1) "," E(3, 7) "," E(2, 1) "]"), 200);
    const struct fl_rule *rule = rule_at(&table, 0);
    expect_endpoints(rule, "10.0.0.2=1 10.0.0.3=7 10.0.0.4=1");
    assert_true(fl_rule_has_epp(rule));
    assert_true(fl_bytes_eq(rule->id, FL_BYTES("x")));
    assert_ptr_equal(rule->live, live);
    assert_ptr_equal(rule->endpoints[1].live, third);
    assert_int_equal(live->inactive, 1);
    assert_non_null(strstr(rule_text(&table.json, rule, true),
                           "\"weight\":7,\"backup\":false,\"state\":\"inactive\",\"counter\":"
                           "\"5:50\""));
    table_fini(&table);
}

static void an_abandoned_change_changes_nothing(void **state)
{
    (void)state;
    struct table table;
    table_init(&table);
    assert_int_equal(post(&table, "", "[" E(1, 1) "," E(2, 1) "]"), 200);
    struct fl_rule *rule = rule_at(&table, 0);
    fl_rule_set_active(rule, 1, false);
    struct fl_rules_snapshot *next = fl_rules_post(
        &table.rules, entry_json(&table.json, "\"sel\":2", "[" E(1, 1) "]"), 2000, &table.answer);
    assert_non_null(next);
    assert_int_equal(next->rule_count, 1);
    fl_rules_abandon(&table.rules, next);
    assert_ptr_equal(rule_at(&table, 0), rule);
    assert_int_equal(rule->sel, 0);
    assert_int_equal(rule->live->inactive, 1);
    fl_rule_set_active(rule, 1, true);
    assert_int_equal(rule->live->inactive, 0);
    table_fini(&table);
}

/* gateway.md 4.6 oper 1 */
static void attaching_makes_a_union(void **state)
{
    (void)state;
    struct table table;
    table_init(&table);
    assert_int_equal(post(&table, "\"oper\":1,\"name\":\"n\"", "[" E(1, 1) "]"), 200);
    assert_int_equal(post(&table, "\"oper\":1,\"name\":\"other\"", "[" E(2, 3) "," E(1, 1) "]"),
                     200);
    expect_endpoints(rule_at(&table, 0), "10.0.0.1=1 10.0.0.2=3");
    assert_true(fl_bytes_eq(rule_at(&table, 0)->name, FL_BYTES("n")));
    assert_int_equal(post(&table, "\"oper\":1", "[" E(2, 3) "]"), 409);
    assert_string_equal(table.answer.result, "lbrule-exists error");
    assert_int_equal(post(&table, "\"oper\":1", "[" E(2, 4) "]"), 200);
    expect_endpoints(rule_at(&table, 0), "10.0.0.1=1 10.0.0.2=4");
    table_fini(&table);
}

static void a_union_may_not_be_larger_than_a_rule(void **state)
{
    (void)state;
    struct table table;
    struct fl_buf list = {0};
    table_init(&table);
    for (int i = 0; i < FL_RULE_MAX_ENDPOINTS; i++)
        fl_buf_printf(&list, "%c{\"endpointIP\":\"10.1.%d.%d\",\"targetPort\":1,\"weight\":1}",
                      i == 0 ? '[' : ',', i / 256, i % 256);
    fl_buf_printf(&list, "]%c", 0);
    assert_int_equal(post(&table, "", (const char *)list.head), 200);
    assert_int_equal(post(&table, "\"oper\":1", "[" E(1, 1) "]"), 400);
    assert_string_equal(table.answer.result, "endpoints-range error");
    assert_int_equal(rule_at(&table, 0)->endpoint_count, FL_RULE_MAX_ENDPOINTS);
    fl_buf_fini(&list);
    table_fini(&table);
}

/* gateway.md 4.6 oper 2 */
static void detaching_removes_and_the_last_one_takes_the_rule(void **state)
{
    (void)state;
    struct table table;
    table_init(&table);
    assert_int_equal(post(&table, "\"oper\":2", NULL), 404);
    assert_string_equal(table.answer.result, "no-rule error");
    assert_int_equal(post(&table, "", "[" E(1, 1) "," E(2, 1) "]"), 200);
    assert_int_equal(post(&table, "\"oper\":2", "[" E(1, 9) "," E(7, 1) "]"), 200);
    expect_endpoints(rule_at(&table, 0), "10.0.0.2=1");
    assert_int_equal(post(&table, "\"oper\":2", "[" E(1, 1) "]"), 409);
    assert_int_equal(post(&table, "\"oper\":2", "[" E(2, 1) "]"), 200);
    assert_int_equal(table.rules.current->rule_count, 0);

    assert_int_equal(post(&table, EPP, "[" E(1, 1) "]"), 200);
    assert_int_equal(post(&table, "\"oper\":2", "[" E(1, 1) "]"), 200);
    expect_endpoints(rule_at(&table, 0), "");
    assert_true(fl_rule_has_epp(rule_at(&table, 0)));
    table_fini(&table);
}

/* gateway.md 4.4 id */
static void an_id_belongs_to_one_key(void **state)
{
    (void)state;
    struct table table;
    table_init(&table);
    assert_int_equal(post(&table, "\"id\":\"a\"", NULL), 200);
    assert_int_equal(post(&table, "\"id\":\"a\",\"port\":81", NULL), 409);
    assert_string_equal(table.answer.result,
                        "lbrule-id conflict: id already bound to a different rule");
    assert_int_equal(post(&table, "\"port\":81", NULL), 200);
    assert_int_equal(rule_at(&table, 1)->id.n, 36);
    assert_ptr_equal(fl_rules_find_id(&table.rules, FL_BYTES("a")), rule_at(&table, 0));
    assert_null(fl_rules_find_id(&table.rules, FL_BYTES("b")));
    table_fini(&table);
}

/* gateway.md 4.2: 403 above 4096 rules */
static void the_table_has_a_cap(void **state)
{
    (void)state;
    struct table table;
    table_init(&table);
    assert_int_equal(table.rules.max_rules, 4096);
    table.rules.max_rules = 2;
    assert_int_equal(post(&table, "\"port\":1", NULL), 200);
    assert_int_equal(post(&table, "\"port\":2", NULL), 200);
    assert_int_equal(post(&table, "\"port\":60000", NULL), 403);
    assert_string_equal(table.answer.result, "rule-hwm error");
    assert_string_equal(table.answer.message, "Capacity insufficient");
    /* Replacing is still possible. */
    assert_int_equal(post(&table, "\"port\":1,\"name\":\"x\"", NULL), 200);
    assert_int_equal(table.rules.current->rule_count, 2);
    table_fini(&table);
}

#define T(text)                                                                                    \
    {                                                                                              \
        (const uint8_t *)(text), sizeof(text) - 1                                                  \
    }

/* gateway.md 4.7; section 16 cases 15, 16 */
static void rules_are_found_and_deleted_by_their_path(void **state)
{
    (void)state;
    static const struct fl_rules_target here = {
        .ip = T("192.0.2.30"), .port = T("8080"), .protocol = T("tcp")};
    static const struct fl_rules_target six = {
        .ip = T("[::1]"), .port = T("8080"), .protocol = T("tcp")};
    static const struct fl_rules_target model = {
        .ip = T("192.0.2.30"), .port = T("8080"), .protocol = T("tcp"), .model_name = T("m")};
    static const struct fl_rules_target host = {.ip = T("192.0.2.30"),
                                                .port = T("8080"),
                                                .protocol = T("tcp"),
                                                .host = T("A.x"),
                                                .path_prefix = T("/v1"),
                                                .path_match_mode = T("prefix")};
    static const struct fl_rules_target nothing[] = {
        {.ip = T("192.0.2.31"), .port = T("8080"), .protocol = T("tcp")},
        {.ip = T("192.0.2.30"), .port = T("8081"), .protocol = T("tcp")},
        {.ip = T("192.0.2.30"), .port = T("8080"), .protocol = T("udp")},
        {.ip = T("x"), .port = T("8080"), .protocol = T("tcp")},
        {.ip = T("192.0.2.30"), .port = T("x"), .protocol = T("tcp")},
    };
    struct table table;
    table_init(&table);
    assert_int_equal(post(&table, "\"model_name\":\"m\"", NULL), 200);
    assert_int_equal(post(&table, "", NULL), 200);
    assert_int_equal(post(&table, "\"externalIP\":\"0:0::1\"", NULL), 200);
    assert_int_equal(post(&table,
                          "\"host\":\"a.x\",\"path_prefix\":\"/v1\",\"path_match_mode\":\"prefix\"",
                          NULL),
                     200);
    /* The first in creation order. */
    assert_ptr_equal(fl_rules_find(&table.rules, &here), rule_at(&table, 0));
    assert_ptr_equal(fl_rules_find(&table.rules, &six), rule_at(&table, 2));
    for (size_t i = 0; i < FL_ARRAY_LEN(nothing); i++) {
        assert_null(fl_rules_find(&table.rules, &nothing[i]));
        assert_null(fl_rules_delete(&table.rules, &nothing[i], &table.answer));
        assert_int_equal(table.answer.status, 404);
        assert_string_equal(table.answer.result, "no-rule error");
    }
    assert_int_equal(commit(&table, fl_rules_delete(&table.rules, &host, &table.answer)), 200);
    assert_int_equal(table.rules.current->rule_count, 3);
    assert_int_equal(commit(&table, fl_rules_delete(&table.rules, &here, &table.answer)), 200);
    assert_true(fl_bytes_eq(rule_at(&table, 0)->model_name, FL_BYTES("m")));
    assert_int_equal(commit(&table, fl_rules_delete(&table.rules, &here, &table.answer)), 404);
    assert_int_equal(commit(&table, fl_rules_delete(&table.rules, &model, &table.answer)), 200);
    assert_int_equal(commit(&table, fl_rules_delete(&table.rules, &six, &table.answer)), 200);
    assert_int_equal(table.rules.current->rule_count, 0);
    table_fini(&table);
}

/* gateway.md 4.7 */
static void rules_are_deleted_by_name_or_all_at_once(void **state)
{
    (void)state;
    struct table table;
    table_init(&table);
    assert_null(fl_rules_delete_name(&table.rules, FL_BYTES("n"), &table.answer));
    assert_int_equal(table.answer.status, 200);
    assert_null(fl_rules_delete_all(&table.rules, &table.answer));
    assert_int_equal(table.answer.status, 200);
    assert_int_equal(post(&table, "\"name\":\"n\"", NULL), 200);
    assert_int_equal(post(&table, "\"name\":\"m\",\"port\":2", NULL), 200);
    assert_int_equal(post(&table, "\"name\":\"n\",\"port\":3", NULL), 200);
    commit(&table, fl_rules_delete_name(&table.rules, FL_BYTES("n"), &table.answer));
    assert_int_equal(table.rules.current->rule_count, 1);
    assert_int_equal(rule_at(&table, 0)->port, 2);
    commit(&table, fl_rules_delete_all(&table.rules, &table.answer));
    assert_int_equal(table.rules.current->rule_count, 0);
    table_fini(&table);
}

/* gateway.md 4.7 list; section 16 case 1 */
static void the_list_is_in_creation_order(void **state)
{
    (void)state;
    struct table table;
    struct fl_buf out = {0};
    struct fl_json_writer writer;
    table_init(&table);
    fl_json_writer_init(&writer, &out);
    fl_rules_write_all(&writer, &table.rules, fl_bytes(NULL, 0), true);
    assert_int_equal(fl_json_writer_end(&writer), 0);
    assert_true(fl_bytes_eq(fl_buf_bytes(&out), FL_BYTES("{\"lbAttr\":[]}")));
    post(&table, "\"port\":9,\"projectId\":\"p\"", NULL);
    post(&table, "\"port\":1", NULL);
    for (int filtered = 0; filtered <= 1; filtered++) {
        fl_buf_clear(&out);
        fl_json_writer_init(&writer, &out);
        fl_rules_write_all(&writer, &table.rules, filtered ? FL_BYTES("p") : fl_bytes(NULL, 0),
                           true);
        assert_int_equal(fl_json_writer_end(&writer), 0);
        fl_buf_append_byte(&out, 0);
        const char *nine = strstr((const char *)out.head, "\"port\":9");
        const char *one = strstr((const char *)out.head, "\"port\":1,");
        assert_non_null(nine);
        assert_int_equal(one == NULL, filtered);
        assert_true(one == NULL || nine < one);
    }
    fl_buf_fini(&out);
    table_fini(&table);
}

/* gateway.md 4.7 PATCH; section 16 case 5 */
static void every_patch_is_refused_in_its_words(void **state)
{
    (void)state;
    static const struct fl_rules_target here = {
        .ip = T("192.0.2.30"), .port = T("8080"), .protocol = T("tcp")};
    static const struct {
        const char *body, *text;
    } rows[] = {
        {"{\"serviceArguments\":{\"eppEndpoint\":\"x:1\"}}",
         "cannot modify immutable field: eppEndpoint (eppEndpoint is not patchable: delete and "
         "recreate the rule)"},
        {"{\"EPPTimeoutMs\":1}", "cannot modify immutable field: EPPTimeoutMs"},
        {"{\"serviceArguments\":{\"name\":\"x\"}}",
         "cannot patch a fullproxy/L7 load balancer rule (out of scope)"},
        {"{\"endpoints\":[]}",
         "clearing all members via PATCH is not allowed; use DELETE to remove the rule"},
        {"{", "malformed merge-patch body: "},
        {"[]", "malformed merge-patch body: "},
    };
    struct table table;
    table_init(&table);
    fl_rules_patch(&table.rules, &here, FL_BYTES("{}"), &table.answer);
    assert_int_equal(table.answer.status, 404);
    post(&table, EPP, NULL);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        fl_rules_patch(&table.rules, &here, fl_bytes_of(rows[i].body), &table.answer);
        assert_int_equal(table.answer.status, 400);
        if (strstr(table.answer.result, rows[i].text) == NULL)
            fail_msg("%s: %s", rows[i].body, table.answer.result);
    }
    assert_true(fl_bytes_eq(rule_at(&table, 0)->epp_endpoint, FL_BYTES("203.0.113.40:9002")));
    table_fini(&table);
}

/* gateway.md 4.7 status */
static void the_status_follows_the_endpoints(void **state)
{
    (void)state;
    struct table table;
    struct fl_json_writer writer;
    static const struct {
        const char *members;
        uint32_t inactive;
        const char *status;
    } rows[] = {
        {"\"monitor\":true", 0, "ONLINE"},        {"\"monitor\":true", 1, "DEGRADED"},
        {"\"monitor\":true", 2, "OFFLINE"},       {"", 0, "NO_MONITOR"},
        {"\"adminStateUp\":false", 0, "OFFLINE"},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        table_init(&table);
        post(&table, rows[i].members, NULL);
        for (uint32_t e = 0; e < rows[i].inactive; e++)
            fl_rule_set_active(rule_at(&table, 0), e, false);
        fl_buf_clear(&table.json);
        fl_json_writer_init(&writer, &table.json);
        fl_rule_write_status(&writer, rule_at(&table, 0));
        assert_int_equal(fl_json_writer_end(&writer), 0);
        char expected[160];
        snprintf(expected, sizeof(expected),
                 "{\"adminStateUp\":%s,\"operatingStatus\":\"%s\",\"lastUpdated\":"
                 "\"1970-01-01T00:00:01.000Z\"}",
                 i == 4 ? "false" : "true", rows[i].status);
        assert_true(fl_bytes_eq(fl_buf_bytes(&table.json), fl_bytes_of(expected)));
        table_fini(&table);
    }
}

/* ---- rule files ---- */

#define FILE_ENTRY(port, members)                                                                  \
    "{\"endpoints\":" ENTRY_ENDPOINTS ",\"serviceArguments\":{\"externalIP\":\"192.0.2.30\","      \
    "\"protocol\":\"tcp\",\"mode\":4,\"port\":" #port members "}}"

static int apply(struct table *table, const char *text, const struct fl_bytes *drop,
                 uint32_t drop_count)
{
    struct fl_rule **put;
    uint32_t count;
    if (fl_rule_read_list(fl_bytes_of(text), 1000, &put, &count, &table->answer) != 0)
        return table->answer.status;
    struct fl_rules_snapshot *next =
        fl_rules_apply(&table->rules, put, count, drop, drop_count, &table->answer);
    fl_free(put);
    return commit(table, next);
}

/* gateway.md 2.2 Format */
static void a_rule_file_has_three_forms(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t count;
    } good[] = {
        {FILE_ENTRY(1, ""), 1},
        {"[" FILE_ENTRY(1, "") "," FILE_ENTRY(2, "") "]", 2},
        {"{\"lbAttr\":[" FILE_ENTRY(1, "") "]}", 1},
        {"{\"lbAttr\":[]}", 0},
        {"[]", 0},
    };
    static const struct {
        const char *text, *said;
        int status;
    } bad[] = {
        {"{", "", 400},
        {"[" FILE_ENTRY(1, "") "," FILE_ENTRY(0, "") "]", "entry 1: malformed-service error", 400},
        {"[" FILE_ENTRY(1, "") "," FILE_ENTRY(1, "") "]", "entry 1: the same rule stands twice",
         409},
        {"[" FILE_ENTRY(1, ",\"sel\":5") "]", "entry 0: sel=5 not supported", 400},
    };
    struct fl_rule **rules;
    struct fl_rest_answer answer;
    uint32_t count;
    for (size_t i = 0; i < FL_ARRAY_LEN(good); i++) {
        if (fl_rule_read_list(fl_bytes_of(good[i].text), 0, &rules, &count, &answer) != 0)
            fail_msg("%s: %s", good[i].text, answer.result);
        assert_int_equal(count, good[i].count);
        while (count > 0)
            fl_rule_unref(rules[--count]);
        fl_free(rules);
    }
    for (size_t i = 0; i < FL_ARRAY_LEN(bad); i++) {
        assert_int_equal(fl_rule_read_list(fl_bytes_of(bad[i].text), 0, &rules, &count, &answer),
                         bad[i].status);
        if (strstr(answer.result, bad[i].said) == NULL)
            fail_msg("%s: %s", bad[i].text, answer.result);
        assert_null(rules);
    }
}

/* gateway.md 2.2 Reload: one change; equal ones untouched, changed ones replaced, missing ones
 * deleted */
static void a_file_becomes_one_change(void **state)
{
    (void)state;
    struct table table;
    table_init(&table);
    assert_int_equal(post(&table, "\"port\":9", NULL), 200); /* over REST */
    uint64_t generation = table.rules.current->generation;
    assert_int_equal(apply(&table, "[" FILE_ENTRY(1, "") "," FILE_ENTRY(2, "") "]", NULL, 0), 200);
    assert_int_equal(table.rules.current->generation, generation + 1);
    assert_int_equal(table.rules.current->rule_count, 3);
    const struct fl_rule *first = rule_at(&table, 1);
    struct fl_rule_live *second_live = rule_at(&table, 2)->live;
    struct fl_bytes keys[2] = {fl_bytes(NULL, 0), fl_bytes(NULL, 0)};
    struct fl_buf copies[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++) {
        fl_buf_append(&copies[i], rule_at(&table, (uint32_t)i + 1)->key);
        keys[i] = fl_buf_bytes(&copies[i]);
    }
    /* nothing differs */
    assert_int_equal(apply(&table, "[" FILE_ENTRY(2, "") "," FILE_ENTRY(1, "") "]", keys, 2), 200);
    assert_int_equal(table.rules.current->generation, generation + 1);
    /* one equal, one changed */
    assert_int_equal(
        apply(&table, "[" FILE_ENTRY(1, "") "," FILE_ENTRY(2, ",\"name\":\"x\"") "]", keys, 2),
        200);
    assert_int_equal(table.rules.current->generation, generation + 2);
    assert_ptr_equal(rule_at(&table, 1), first);
    assert_ptr_equal(rule_at(&table, 2)->live, second_live);
    assert_true(fl_bytes_eq(rule_at(&table, 2)->name, FL_BYTES("x")));
    /* one missing; the one over REST stays */
    assert_int_equal(apply(&table, FILE_ENTRY(2, ""), keys, 2), 200);
    assert_int_equal(table.rules.current->rule_count, 2);
    assert_int_equal(rule_at(&table, 0)->port, 9);
    assert_int_equal(rule_at(&table, 1)->port, 2);
    /* refused as a whole */
    generation = table.rules.current->generation;
    assert_int_equal(
        apply(&table, "[" FILE_ENTRY(3, ",\"id\":\"a\"") "," FILE_ENTRY(4, ",\"id\":\"a\"") "]",
              keys, 2),
        409);
    char stolen[1024];
    snprintf(stolen, sizeof(stolen),
             "[" FILE_ENTRY(2, ",\"name\":\"y\"") "," FILE_ENTRY(3, ",\"id\":\"%.*s\"") "]",
             FL_FMT(rule_at(&table, 1)->id));
    assert_int_equal(apply(&table, stolen, keys, 2), 409);
    table.rules.max_rules = 2;
    assert_int_equal(apply(&table, FILE_ENTRY(3, ""), NULL, 0), 403);
    assert_int_equal(table.rules.current->generation, generation);
    fl_buf_fini(&copies[0]);
    fl_buf_fini(&copies[1]);
    table_fini(&table);
}

/* ---- lookup ---- */

/* gateway.md 5.3, 5.4 */
static void the_most_specific_rule_wins(void **state)
{
    (void)state;
#define PREFIX(path) "\"path_match_mode\":\"prefix\",\"path_prefix\":\"" path "\""
    static const char *const posted[] = {
        "\"name\":\"plain\"",
        "\"name\":\"model\",\"model_name\":\"m\"",
        PREFIX("/v1") ",\"name\":\"v1\"",
        PREFIX("/v1/chat") ",\"name\":\"v1chat\"",
        "\"name\":\"exact\",\"path_prefix\":\"/v1/chat/x\",\"path_match_mode\":\"exact\"",
        "\"name\":\"host\",\"host\":\"A.example\"",
        "\"name\":\"hostmodel\",\"host\":\"A.example\",\"model_name\":\"m\"",
        PREFIX("/v1") ",\"name\":\"v1model\",\"model_name\":\"m\"",
        PREFIX("/v2/") ",\"name\":\"hostv2\",\"host\":\"b\"",
    };
    static const struct {
        const char *host, *path, *model, *name;
    } rows[] = {
        {"x", "/", NULL, "plain"},
        {"x", "/", "m", "model"},
        {"x", "/", "other", "plain"},
        {"x", "/v1", NULL, "v1"},
        {"x", "/v1/x", NULL, "v1"},
        {"x", "/v10", NULL, "plain"},
        {"x", "/v1/x", "m", "v1model"},
        {"x", "/v1/chat", NULL, "v1chat"},
        {"x", "/v1/chat/x", NULL, "exact"},
        {"x", "/v1/chat/x/y", NULL, "v1chat"},
        {"a.EXAMPLE", "/v1/chat/x", NULL, "host"},
        {"a.example:8080", "/", NULL, "host"},
        {"a.example.", "/", NULL, "host"},
        {"a.example.:80", "/", "m", "hostmodel"},
        {"b", "/v2/x", NULL, "hostv2"},
        {"b", "/v2", NULL, "plain"},
        {"b", "/v1", NULL, "v1"},
        {"", "/", NULL, "plain"},
    };
    struct table table;
    table_init(&table);
    for (size_t i = 0; i < FL_ARRAY_LEN(posted); i++)
        assert_int_equal(post(&table, posted[i], NULL), 200);
    struct fl_rule_ip ip;
    fl_rule_ip_parse(FL_BYTES("192.0.2.30"), &ip);
    const struct fl_rules_listener *listener = fl_rules_listener(table.rules.current, &ip, 8080);
    assert_non_null(listener);
    assert_null(listener->only);
    assert_true(listener->needs_model);
    assert_null(fl_rules_listener(table.rules.current, &ip, 8081));
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        enum fl_rules_miss miss;
        const struct fl_rule *rule =
            fl_rules_match(listener, fl_bytes_of(rows[i].host), fl_bytes_of(rows[i].path),
                           fl_bytes_of(rows[i].model), &miss);
        if (rule == NULL || !fl_bytes_eq(rule->name, fl_bytes_of(rows[i].name)))
            fail_msg("%s %s %s: %.*s", rows[i].host, rows[i].path,
                     rows[i].model == NULL ? "-" : rows[i].model,
                     FL_FMT(rule == NULL ? FL_BYTES("none") : rule->name));
        assert_int_equal(miss, FL_RULES_FOUND);
    }
    table_fini(&table);
}

/* gateway.md 5.4 */
static void a_miss_says_whether_the_model_was_the_reason(void **state)
{
    (void)state;
    static const struct {
        const char *path, *model;
        enum fl_rules_miss miss;
    } rows[] = {
        {"/v1", "other", FL_RULES_MODEL_UNAVAILABLE},
        {"/v1", NULL, FL_RULES_NO_ROUTE},
        {"/x", "m", FL_RULES_NO_ROUTE},
        {"/v1", "m", FL_RULES_FOUND},
    };
    struct table table;
    table_init(&table);
    post(&table, "\"path_prefix\":\"/v1\",\"path_match_mode\":\"prefix\",\"model_name\":\"m\"",
         NULL);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        enum fl_rules_miss miss;
        fl_rules_match(&table.rules.current->listeners[0], FL_BYTES("h"), fl_bytes_of(rows[i].path),
                       fl_bytes_of(rows[i].model), &miss);
        assert_int_equal(miss, rows[i].miss);
    }
    table_fini(&table);
}

/* gateway.md 5.3: with one keyless rule everything goes to it */
static void one_keyless_rule_needs_no_lookup(void **state)
{
    (void)state;
    struct table table;
    enum fl_rules_miss miss;
    table_init(&table);
    post(&table, "", NULL);
    post(&table, "\"port\":2,\"model_name\":\"m\"", NULL);
    const struct fl_rules_snapshot *current = table.rules.current;
    assert_int_equal(current->listener_count, 2);
    /* sorted by port */
    assert_null(current->listeners[0].only);
    assert_ptr_equal(current->listeners[1].only, rule_at(&table, 0));
    assert_false(current->listeners[1].needs_model);
    assert_ptr_equal(
        fl_rules_match(&current->listeners[1], FL_BYTES("x"), FL_BYTES("/"), FL_BYTES("m"), &miss),
        rule_at(&table, 0));
    table_fini(&table);
}

/* ---- snapshots ---- */

/* gateway.md 5.1.5 */
static void a_snapshot_lives_until_its_last_request_on_every_loop(void **state)
{
    (void)state;
    struct fl_rules rules;
    struct fl_rest_answer answer;
    struct fl_buf json = {0};
    fl_rules_init(&rules, LOOPS);
    struct fl_rules_snapshot *first = rules.current;
    assert_int_equal(first->generation, 1);
    for (uint32_t loop = 0; loop < LOOPS; loop++)
        assert_false(fl_rules_adopt(first, NULL, loop));
    fl_rules_hold(first, 0);
    fl_rules_hold(first, 0);

    struct fl_rules_snapshot *second =
        fl_rules_post(&rules, entry_json(&json, "", NULL), 0, &answer);
    assert_int_equal(second->generation, 2);
    fl_rules_commit(&rules, second);
    assert_int_equal(rules.held_count, 2);
    assert_false(fl_rules_adopt(second, first, 0)); /* two requests still use it */
    assert_true(fl_rules_adopt(second, first, 1));
    fl_rules_give_back(&rules, first);
    assert_int_equal(rules.held_count, 2);
    assert_false(fl_rules_release(first, 0));
    assert_true(fl_rules_release(first, 0));
    fl_rules_give_back(&rules, first);
    assert_int_equal(rules.held_count, 1);

    /* Not retired: the last release is no reason to give it back. */
    fl_rules_hold(second, 1);
    assert_false(fl_rules_release(second, 1));
    fl_rules_fini(&rules);
    fl_rules_fini(&rules);
    fl_buf_fini(&json);
}

/* gateway.md 5.1.1: unchanged rules are shared */
static void unchanged_rules_are_shared_between_snapshots(void **state)
{
    (void)state;
    struct table table;
    table_init(&table);
    post(&table, "", NULL);
    const struct fl_rule *first = rule_at(&table, 0);
    post(&table, "\"port\":2", NULL);
    assert_ptr_equal(rule_at(&table, 0), first);
    assert_int_equal(first->refs, 1);
    table_fini(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_rule_again_is_a_conflict),
        cmocka_unit_test(a_post_that_differs_replaces),
        cmocka_unit_test(an_abandoned_change_changes_nothing),
        cmocka_unit_test(attaching_makes_a_union),
        cmocka_unit_test(a_union_may_not_be_larger_than_a_rule),
        cmocka_unit_test(detaching_removes_and_the_last_one_takes_the_rule),
        cmocka_unit_test(an_id_belongs_to_one_key),
        cmocka_unit_test(the_table_has_a_cap),
        cmocka_unit_test(rules_are_found_and_deleted_by_their_path),
        cmocka_unit_test(rules_are_deleted_by_name_or_all_at_once),
        cmocka_unit_test(the_list_is_in_creation_order),
        cmocka_unit_test(every_patch_is_refused_in_its_words),
        cmocka_unit_test(the_status_follows_the_endpoints),
        cmocka_unit_test(a_rule_file_has_three_forms),
        cmocka_unit_test(a_file_becomes_one_change),
        cmocka_unit_test(the_most_specific_rule_wins),
        cmocka_unit_test(a_miss_says_whether_the_model_was_the_reason),
        cmocka_unit_test(one_keyless_rule_needs_no_lookup),
        cmocka_unit_test(a_snapshot_lives_until_its_last_request_on_every_loop),
        cmocka_unit_test(unchanged_rules_are_shared_between_snapshots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
