/* SPDX-License-Identifier: Apache-2.0 */
#include "net_test.h"

#include "net/resolver.h"

struct asker {
    struct fl_resolver *resolver; /* freed by `done` if frees is set */
    struct fl_question *cancels;  /* cancelled by `done` */
    bool frees;
    unsigned done;
    int rc;
    size_t count;
    struct fl_addr first;
    char why[128];
};

static void on_done(void *owner, int rc, const struct fl_addr *addrs, size_t count, const char *why)
{
    struct asker *asker = owner;
    asker->done++;
    asker->rc = rc;
    asker->count = count;
    if (count > 0)
        asker->first = addrs[0];
    snprintf(asker->why, sizeof(asker->why), "%s", why);
    fl_question_cancel(asker->cancels);
    if (asker->frees)
        fl_resolver_free(asker->resolver);
}

static struct fl_question *ask(struct fl_resolver *resolver, const char *host, struct asker *asker)
{
    *asker = (struct asker){.rc = 1};
    return fl_resolver_ask(resolver, host, 8000, on_done, asker);
}

static void literals_are_answered_without_a_lookup(void **state)
{
    (void)state;
    static const struct {
        const char *host, *text;
    } rows[] = {{"10.0.0.7", "10.0.0.7:8000"}, {"fd00::7", "[fd00::7]:8000"}};
    struct fl_loop *loop = fl_loop_new(0);
    struct fl_resolver *resolver = fl_resolver_new(loop);
    struct fl_resolver_stats stats;
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct asker asker;
        char text[FL_ADDR_TEXT];
        ask(resolver, rows[i].host, &asker);
        assert_int_equal(asker.done, 0); /* never from inside the call */
        fl_loop_turn(loop, 0);
        assert_int_equal(asker.done, 1);
        assert_int_equal(asker.rc, 0);
        assert_int_equal(asker.count, 1);
        fl_addr_format(&asker.first, text);
        assert_string_equal(text, rows[i].text);
    }
    fl_resolver_stats(resolver, &stats);
    assert_int_equal(stats.lookups, 0);
    assert_int_equal(stats.questions, 2);
    fl_resolver_free(resolver);
    fl_loop_free(loop);
}

static void a_name_is_looked_up_once_for_all_who_ask(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    struct fl_resolver *resolver = fl_resolver_new(loop);
    struct fl_resolver_stats stats;
    struct asker askers[4];
    for (int i = 0; i < 3; i++)
        ask(resolver, "localhost", &askers[i]);
    RUN_UNTIL(loop, askers[0].done && askers[1].done && askers[2].done);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(askers[i].rc, 0);
        assert_true(askers[i].count >= 1);
        assert_true(fl_addr_is_loopback(&askers[i].first));
        assert_int_equal(fl_addr_port(&askers[i].first), 8000);
    }
    ask(resolver, "localhost", &askers[3]); /* from the cache */
    RUN_UNTIL(loop, askers[3].done);
    assert_int_equal(askers[3].rc, 0);
    fl_resolver_stats(resolver, &stats);
    assert_int_equal(stats.lookups, 1);
    assert_int_equal(stats.questions, 4);
    fl_resolver_free(resolver);
    fl_loop_free(loop);
}

static void a_name_that_is_not_known_fails_in_words_and_is_asked_again_later(void **state)
{
    (void)state;
    /* RFC 6761: never exists. A label of 64 letters never may, so it does not even reach a server.
     */
    static const char *const names[] = {
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.invalid",
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(names); i++) {
        struct fl_loop *loop = fl_loop_new(0);
        struct fl_resolver *resolver = fl_resolver_new(loop);
        struct fl_resolver_stats stats;
        struct asker first, second, third;
        ask(resolver, names[i], &first);
        assert_int_equal(first.done, 0);
        RUN_UNTIL(loop, first.done);
        assert_int_equal(first.rc, FL_ECONNECT);
        assert_int_equal(first.count, 0);
        assert_int_equal(strncmp(first.why, "resolve: ", 9), 0);
        ask(resolver, names[i], &second);
        RUN_UNTIL(loop, second.done);
        assert_int_equal(second.rc, FL_ECONNECT);
        fl_resolver_stats(resolver, &stats);
        assert_int_equal(stats.lookups, 1); /* the failure was kept */
        uint64_t until_ms = fl_loop_now_ms(loop) + FL_RESOLVER_KEEP_FAILED_MS;
        RUN_UNTIL(loop, fl_loop_now_ms(loop) > until_ms);
        ask(resolver, names[i], &third);
        RUN_UNTIL(loop, third.done);
        fl_resolver_stats(resolver, &stats);
        assert_int_equal(stats.lookups, 2);
        fl_resolver_free(resolver);
        fl_loop_free(loop);
    }
}

static void a_cancelled_question_is_not_answered(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    struct fl_resolver *resolver = fl_resolver_new(loop);
    struct asker cancelled, other, literal, killer;
    fl_question_cancel(ask(resolver, "localhost", &cancelled));
    ask(resolver, "localhost", &other);
    fl_question_cancel(ask(resolver, "10.0.0.1", &literal));
    RUN_UNTIL(loop, other.done);
    assert_int_equal(cancelled.done + literal.done, 0);
    /* one answer cancels the other, both ready */
    ask(resolver, "10.0.0.1", &killer);
    killer.cancels = ask(resolver, "10.0.0.2", &literal);
    RUN_UNTIL(loop, killer.done);
    for (int i = 0; i < 3; i++)
        fl_loop_turn(loop, 1);
    assert_int_equal(literal.done, 0);
    fl_question_cancel(NULL);
    fl_resolver_free(resolver);
    fl_loop_free(loop);
}

static void a_resolver_may_go_while_questions_wait_and_from_an_answer(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    struct fl_resolver *resolver = fl_resolver_new(loop);
    struct asker waiting, ready, last;
    ask(resolver, "localhost", &waiting);
    ask(resolver, "10.0.0.1", &ready);
    fl_resolver_free(resolver);
    for (int i = 0; i < 3; i++)
        fl_loop_turn(loop, 10);
    assert_int_equal(waiting.done + ready.done, 0);

    resolver = fl_resolver_new(loop);
    ask(resolver, "10.0.0.1", &last);
    last.frees = true;
    last.resolver = resolver;
    ask(resolver, "10.0.0.2", &ready);
    RUN_UNTIL(loop, last.done);
    for (int i = 0; i < 3; i++)
        fl_loop_turn(loop, 1);
    assert_int_equal(ready.done, 0);
    fl_resolver_free(NULL);
    fl_loop_free(loop);
}

/* The cap on names: the oldest answers go, nobody is left unanswered. */
static void more_names_than_are_kept_are_all_answered(void **state)
{
    (void)state;
    enum { NAMES = FL_RESOLVER_NAMES + 2 };
    struct fl_loop *loop = fl_loop_new(0);
    struct fl_resolver *resolver = fl_resolver_new(loop);
    struct fl_resolver_stats stats;
    static struct asker askers[NAMES];
    struct asker again;
    char name[80];
    unsigned done = 0;
    for (int i = 0; i < NAMES; i++) {
        /* refused at once, by the length of a label */
        snprintf(name, sizeof(name), "%064d.invalid", i);
        ask(resolver, name, &askers[i]);
    }
    for (uint64_t until_ns = fl_clock_ns() + UINT64_C(10000000000); done < NAMES;) {
        assert_true(fl_clock_ns() < until_ns);
        fl_loop_turn(loop, 5);
        done = 0;
        for (int i = 0; i < NAMES; i++)
            done += askers[i].done;
    }
    /* While all were being asked for none could go. The next name makes room. */
    snprintf(name, sizeof(name), "%064d.invalid", NAMES);
    ask(resolver, name, &again);
    RUN_UNTIL(loop, again.done);
    fl_resolver_stats(resolver, &stats);
    assert_int_equal(stats.questions, NAMES + 1);
    assert_int_equal(stats.lookups, NAMES + 1);
    fl_resolver_free(resolver);
    fl_loop_free(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(literals_are_answered_without_a_lookup),
        cmocka_unit_test(a_name_is_looked_up_once_for_all_who_ask),
        cmocka_unit_test(a_name_that_is_not_known_fails_in_words_and_is_asked_again_later),
        cmocka_unit_test(a_cancelled_question_is_not_answered),
        cmocka_unit_test(a_resolver_may_go_while_questions_wait_and_from_an_answer),
        cmocka_unit_test(more_names_than_are_kept_are_all_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
