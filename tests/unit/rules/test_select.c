/* SPDX-License-Identifier: Apache-2.0 */
/* Selectors, endpoint states, and what several loops share (run under ThreadSanitizer too). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "unit/rules/entry.h"

#define E(n, weight) "{\"endpointIP\":\"10.0.0." #n "\",\"targetPort\":80,\"weight\":" #weight "}"
#define BACKUP(n)                                                                                  \
    "{\"endpointIP\":\"10.0.0." #n "\",\"targetPort\":80,\"weight\":1,\"backup\":true}"
#define THREE "[" E(1, 1) "," E(2, 1) "," E(3, 1) "]"

struct one {
    struct fl_rules rules;
    const struct fl_rule *rule;
};

static void one_init(struct one *one, const char *members, const char *endpoints)
{
    struct fl_buf json = {0};
    struct fl_rest_answer answer;
    fl_rules_init(&one->rules, 1);
    struct fl_rules_snapshot *next =
        fl_rules_post(&one->rules, entry_json(&json, members, endpoints), 0, &answer);
    if (next == NULL)
        fail_msg("%s %s", answer.message, answer.result);
    fl_rules_commit(&one->rules, next);
    one->rule = next->rules[0];
    fl_buf_fini(&json);
}

/* Selects `n` times and writes the choices as letters, '-' for none. */
static const char *picks(const struct one *one, uint32_t n, uint64_t now_ms)
{
    static _Thread_local char text[64];
    assert_true(n < sizeof(text));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = fl_rule_select(one->rule, NULL, 0, now_ms);
        text[i] = at == FL_RULE_NO_ENDPOINT ? '-' : (char)('A' + (char)at);
    }
    text[n] = 0;
    return text;
}

/* gateway.md 10 sel 0; section 16 case 76 */
static void round_robin_follows_the_list(void **state)
{
    (void)state;
    struct one one;
    one_init(&one, "", THREE);
    assert_string_equal(picks(&one, 9, 0), "ABCABCABC");
    fl_rules_fini(&one.rules);
}

/* gateway.md 10.1: weight 0 and inactive are left out */
static void round_robin_skips_what_is_not_usable(void **state)
{
    (void)state;
    struct one one;
    one_init(&one, "", "[" E(1, 1) "," E(2, 0) "," E(3, 1) "," E(4, 1) "]");
    assert_string_equal(picks(&one, 6, 0), "ACDACD");
    assert_true(fl_rule_set_active(one.rule, 2, false));
    assert_false(fl_rule_set_active(one.rule, 2, false));
    assert_string_equal(picks(&one, 6, 0), "ADADAD");
    assert_true(fl_rule_set_active(one.rule, 2, true));
    assert_string_equal(picks(&one, 6, 0), "ACDACD");
    for (uint32_t i = 0; i < 4; i++)
        fl_rule_set_active(one.rule, i, false);
    assert_string_equal(picks(&one, 2, 0), "--");
    assert_false(fl_rule_is_usable(one.rule, 0, 0));
    assert_false(fl_rule_is_usable(one.rule, 1, 0));
    fl_rules_fini(&one.rules);
}

/* gateway.md 10.1: backups only when no primary is usable */
static void backups_wait_for_the_last_primary(void **state)
{
    (void)state;
    struct one one;
    one_init(&one, "", "[" BACKUP(1) "," E(2, 1) "," BACKUP(3) "]");
    assert_string_equal(picks(&one, 3, 0), "BBB");
    fl_rule_set_active(one.rule, 1, false);
    const char *text = picks(&one, 4, 0);
    assert_true(strcmp(text, "ACAC") == 0 || strcmp(text, "CACA") == 0);
    fl_rules_fini(&one.rules);
}

/* gateway.md 8.3: each endpoint at most once per request */
static void a_retry_goes_elsewhere(void **state)
{
    (void)state;
    struct one one;
    one_init(&one, "", THREE);
    for (int turn = 0; turn < 6; turn++) {
        uint32_t tried[FL_RULE_MAX_TRIED];
        uint32_t seen = 0;
        for (uint32_t n = 0; n < 3; n++) {
            tried[n] = fl_rule_select(one.rule, tried, n, 0);
            assert_true(tried[n] < 3);
            seen |= 1u << tried[n];
        }
        assert_int_equal(seen, 7);
        assert_true(fl_rule_select(one.rule, tried, 3, 0) == FL_RULE_NO_ENDPOINT);
    }
    fl_rules_fini(&one.rules);
}

/* gateway.md 10.2; section 16 case 52 */
static void smooth_weights_spread_the_heavy_one(void **state)
{
    (void)state;
    struct one one;
    one_init(&one, "\"sel\":2", "[" E(1, 5) "," E(2, 1) "," E(3, 1) "]");
    assert_string_equal(picks(&one, 14, 0), "AABACAAAABACAA");
    fl_rule_set_active(one.rule, 0, false);
    assert_string_equal(picks(&one, 4, 0), "BCBC");
    fl_rules_fini(&one.rules);
    one_init(&one, "\"sel\":2", "[" E(1, 0) "," E(2, 1) "]");
    assert_string_equal(picks(&one, 3, 0), "BBB");
    fl_rules_fini(&one.rules);
}

/* gateway.md 10 sel 4 */
static void least_in_flight_takes_the_idle_one(void **state)
{
    (void)state;
    struct one one;
    one_init(&one, "\"sel\":4", THREE);
    assert_string_equal(picks(&one, 4, 0), "ABCA");
    fl_rule_done(one.rule, 1);
    assert_string_equal(picks(&one, 1, 0), "B");
    fl_rule_done(one.rule, 0);
    fl_rule_done(one.rule, 0);
    assert_string_equal(picks(&one, 2, 0), "AA");
    fl_rule_take(one.rule, 0); /* an EPP chose it */
    assert_string_equal(picks(&one, 2, 0), "BC");
    fl_rules_fini(&one.rules);
}

/* gateway.md 11.4 */
static void a_failed_connect_makes_last_choice_for_a_second(void **state)
{
    (void)state;
    struct one one;
    one_init(&one, "", THREE);
    fl_rule_connect_failed(one.rule, 1, 1000);
    assert_string_equal(picks(&one, 4, 1999), "ACAC");
    assert_true(fl_rule_is_usable(one.rule, 1, 1999));
    fl_rule_set_active(one.rule, 0, false);
    fl_rule_set_active(one.rule, 2, false);
    assert_string_equal(picks(&one, 2, 1999), "BB");
    fl_rule_set_active(one.rule, 0, true);
    fl_rule_set_active(one.rule, 2, true);
    assert_string_equal(picks(&one, 3, 2000), "ABC");
    fl_rule_connect_failed(one.rule, 1, 3000);
    fl_rule_connect_worked(one.rule, 1);
    assert_non_null(strchr(picks(&one, 3, 3001), 'B'));
    fl_rules_fini(&one.rules);
}

/* gateway.md 11.3 */
static void a_breaker_opens_tries_once_and_closes(void **state)
{
    (void)state;
    struct one one;
    one_init(&one, "\"cb_enable\":true", "[" E(1, 1) "," E(2, 1) "]");
    for (int i = 0; i < 4; i++)
        fl_rule_connect_failed(one.rule, 0, 1000);
    assert_true(fl_rule_is_usable(one.rule, 0, 1000));
    fl_rule_connect_worked(one.rule, 0); /* not consecutive */
    for (int i = 0; i < 4; i++)
        fl_rule_connect_failed(one.rule, 0, 1000);
    assert_true(fl_rule_is_usable(one.rule, 0, 1000));
    fl_rule_connect_failed(one.rule, 0, 1000);
    assert_false(fl_rule_is_usable(one.rule, 0, 1000));
    assert_string_equal(picks(&one, 4, 30999), "BBBB");
    /* half-open: one trial */
    const char *text = picks(&one, 6, 31000);
    const char *trial = strchr(text, 'A');
    assert_non_null(trial);
    assert_null(strchr(trial + 1, 'A'));
    fl_rule_connect_failed(one.rule, 0, 31010);
    assert_string_equal(picks(&one, 4, 61009), "BBBB");
    assert_non_null(strchr(picks(&one, 4, 61010), 'A'));
    fl_rule_connect_worked(one.rule, 0);
    /* closed: after the moment of care it is in turn again, by the fast path */
    picks(&one, 1, 61020);
    assert_int_equal(strlen(picks(&one, 4, 63000)), 4);
    text = picks(&one, 4, 63000);
    assert_true(strcmp(text, "ABAB") == 0 || strcmp(text, "BABA") == 0);
    assert_true(one.rule->live->careful_until_ms <= 63000);
    fl_rules_fini(&one.rules);
}

static void without_a_breaker_failures_only_avoid(void **state)
{
    (void)state;
    struct one one;
    one_init(&one, "", "[" E(1, 1) "]");
    for (int i = 0; i < 20; i++)
        fl_rule_connect_failed(one.rule, 0, 1000);
    assert_string_equal(picks(&one, 3, 1001), "AAA");
    fl_rules_fini(&one.rules);
}

/* gateway.md 9.5: a candidate is looked up by address */
static void endpoints_are_found_by_what_an_epp_names(void **state)
{
    (void)state;
    static const struct {
        const char *address;
        uint32_t at;
    } rows[] = {
        {"10.0.0.1:80", 0},
        {"[2001:db8::5]:81", 1},
        {"[2001:DB8:0::5]:81", 1},
        {"10.0.0.1:81", FL_RULE_NO_ENDPOINT},
        {"10.0.0.1", FL_RULE_NO_ENDPOINT},
        {"", FL_RULE_NO_ENDPOINT},
        {"host:80", FL_RULE_NO_ENDPOINT},
        {"2001:db8::5:81", FL_RULE_NO_ENDPOINT},
    };
    struct one one;
    one_init(&one, "",
             "[" E(1, 1) ",{\"endpointIP\":\"2001:db8::5\",\"targetPort\":81,\"weight\":1}]");
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        if (fl_rule_find_endpoint(one.rule, fl_bytes_of(rows[i].address)) != rows[i].at)
            fail_msg("%s", rows[i].address);
    }
    fl_rules_fini(&one.rules);
}

/* ---- several loops ---- */

#define THREADS 3
#define PICKS 6000

struct worker {
    const struct fl_rule *rule;
    uint32_t chosen[3];
    pthread_t thread;
};

static void *pick_many(void *arg)
{
    struct worker *worker = arg;
    for (int i = 0; i < PICKS; i++) {
        uint32_t at = fl_rule_select(worker->rule, NULL, 0, 1000);
        worker->chosen[at]++;
        fl_rule_done(worker->rule, at);
        if (i % 1000 == 999)
            fl_rule_connect_worked(worker->rule, at);
    }
    return NULL;
}

/* gateway.md 5.1.6: the order over all loops is the list's, so the sums are exact */
static void loops_share_one_turn(void **state)
{
    (void)state;
    static const struct {
        const char *members, *endpoints;
        uint32_t expected[3];
    } rows[] = {
        {"", THREE, {6000, 6000, 6000}},
        {"\"sel\":2", "[" E(1, 4) "," E(2, 1) "," E(3, 1) "]", {12000, 3000, 3000}},
    };
    for (size_t r = 0; r < FL_ARRAY_LEN(rows); r++) {
        struct worker workers[THREADS] = {0};
        struct one one;
        one_init(&one, rows[r].members, rows[r].endpoints);
        for (int i = 0; i < THREADS; i++) {
            workers[i].rule = one.rule;
            assert_int_equal(pthread_create(&workers[i].thread, NULL, pick_many, &workers[i]), 0);
        }
        uint32_t sums[3] = {0};
        for (int i = 0; i < THREADS; i++) {
            pthread_join(workers[i].thread, NULL);
            for (int e = 0; e < 3; e++)
                sums[e] += workers[i].chosen[e];
        }
        for (int e = 0; e < 3; e++)
            assert_int_equal(sums[e], rows[r].expected[e]);
        fl_rules_fini(&one.rules);
    }
}

/* The control loop replaces rules while request loops use them; each loop has a mailbox of one slot
 * each way. */
struct loop {
    uint32_t index;
    _Atomic(struct fl_rules_snapshot *) next;     /* control -> loop, taken by exchange */
    _Atomic(struct fl_rules_snapshot *) returned; /* loop -> control */
    _Atomic uint64_t adopted;                     /* generation acknowledged */
    _Atomic bool stop;
    uint64_t served;
    pthread_t thread;
};

static void mail_back(struct loop *loop, struct fl_rules_snapshot *snapshot)
{
    struct fl_rules_snapshot *empty = NULL;
    while (!atomic_compare_exchange_weak(&loop->returned, &empty, snapshot))
        empty = NULL;
}

/* One request at a time stays open across a change, so that snapshots outlive their adoption. */
static void *serve(void *arg)
{
    struct loop *loop = arg;
    struct fl_rules_snapshot *mine = NULL;
    struct fl_rules_snapshot *held = NULL;
    while (!atomic_load(&loop->stop)) {
        struct fl_rules_snapshot *next = atomic_exchange(&loop->next, NULL);
        if (next != NULL) {
            if (fl_rules_adopt(next, mine, loop->index))
                mail_back(loop, mine);
            mine = next;
            atomic_store(&loop->adopted, mine->generation);
        }
        if (mine == NULL)
            continue;
        if (held != NULL && fl_rules_release(held, loop->index))
            mail_back(loop, held);
        held = mine;
        fl_rules_hold(held, loop->index);
        for (uint32_t i = 0; i < held->rule_count; i++) {
            if (fl_rule_select(held->rules[i], NULL, 0, loop->served) != FL_RULE_NO_ENDPOINT)
                loop->served++;
        }
    }
    if (held != NULL && fl_rules_release(held, loop->index))
        mail_back(loop, held);
    return NULL;
}

static void take_back(struct fl_rules *rules, struct loop *loops)
{
    for (int i = 0; i < THREADS; i++) {
        struct fl_rules_snapshot *returned = atomic_exchange(&loops[i].returned, NULL);
        if (returned != NULL)
            fl_rules_give_back(rules, returned);
    }
}

static void send_to_all(struct fl_rules *rules, struct loop *loops)
{
    for (int i = 0; i < THREADS; i++)
        atomic_store(&loops[i].next, rules->current);
    for (int i = 0; i < THREADS; i++) {
        while (atomic_load(&loops[i].adopted) != rules->current->generation)
            take_back(rules, loops);
    }
}

/* gateway.md 5.1; section 16 case 75, 15.1 L3: generations held return to 1 */
static void rules_change_under_running_loops(void **state)
{
    (void)state;
    struct fl_rules rules;
    struct loop loops[THREADS] = {0};
    struct fl_buf json = {0};
    fl_rules_init(&rules, THREADS);
    for (uint32_t i = 0; i < THREADS; i++) {
        loops[i].index = i;
        assert_int_equal(pthread_create(&loops[i].thread, NULL, serve, &loops[i]), 0);
    }
    send_to_all(&rules, loops);
    for (int change = 0; change < 200; change++) {
        char members[64];
        struct fl_rest_answer answer;
        snprintf(members, sizeof(members), "\"name\":\"n%d\",\"port\":%d", change, change % 7 + 1);
        struct fl_rules_snapshot *next =
            change % 10 == 9
                ? fl_rules_delete_all(&rules, &answer)
                : fl_rules_post(&rules, entry_json(&json, members, change % 2 == 0 ? THREE : NULL),
                                0, &answer);
        assert_int_equal(answer.status, 200);
        fl_rules_commit(&rules, next);
        send_to_all(&rules, loops);
    }
    for (int i = 0; i < THREADS; i++)
        atomic_store(&loops[i].stop, true);
    uint64_t served = 0;
    for (int i = 0; i < THREADS; i++) {
        /* A loop may be waiting for its mail to be taken. */
        while (pthread_tryjoin_np(loops[i].thread, NULL) != 0)
            take_back(&rules, loops);
        served += loops[i].served;
    }
    take_back(&rules, loops);
    assert_int_equal(rules.held_count, 1);
    assert_true(served > 0);
    fl_rules_fini(&rules);
    fl_buf_fini(&json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_robin_follows_the_list),
        cmocka_unit_test(round_robin_skips_what_is_not_usable),
        cmocka_unit_test(backups_wait_for_the_last_primary),
        cmocka_unit_test(a_retry_goes_elsewhere),
        cmocka_unit_test(smooth_weights_spread_the_heavy_one),
        cmocka_unit_test(least_in_flight_takes_the_idle_one),
        cmocka_unit_test(a_failed_connect_makes_last_choice_for_a_second),
        cmocka_unit_test(a_breaker_opens_tries_once_and_closes),
        cmocka_unit_test(without_a_breaker_failures_only_avoid),
        cmocka_unit_test(endpoints_are_found_by_what_an_epp_names),
        cmocka_unit_test(loops_share_one_turn),
        cmocka_unit_test(rules_change_under_running_loops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
