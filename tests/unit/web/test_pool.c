/* SPDX-License-Identifier: Apache-2.0 */
/* The client's face over HTTP/1.1: the pool against our server and against raw ones. */
#include "fixture.h"

/* gateway.md 8.1: connections are reused, the most recently used first */
static void most_recently_used_connection_is_taken_first(void **state)
{
    (void)state;
    struct fixture f;
    struct seen seen[3] = {0};
    fixture_init(&f);
    f.answers_late = true;
    fixture_listen(&f, true);
    for (int i = 0; i < 2; i++)
        ask(&f, &seen[i], FL_WEB_HTTP1, "/", NULL);
    TURN_UNTIL(&f, f.request_count == 2);
    /* The second one's connection becomes idle last. */
    int last = 1;
    struct fl_addr last_peer = {0};
    for (int i = 0; i < 2; i++) {
        last_peer = *fl_exchange_peer(f.requests[i].x);
        fl_exchange_respond(f.requests[i].x, 200, "text/plain", FL_BYTES("x"), NULL);
        TURN_UNTIL(&f, f.requests[i].closes == 1);
        turn_some(&f);
    }
    assert_int_equal(seen[last].closes, 1);
    ask(&f, &seen[2], FL_WEB_HTTP1, "/", NULL);
    TURN_UNTIL(&f, f.request_count == 3);
    assert_int_equal(f.accepted, 2);
    assert_true(fl_addr_eq(fl_exchange_peer(f.requests[2].x), &last_peer));
    fl_exchange_respond(f.requests[2].x, 200, "text/plain", FL_BYTES("x"), NULL);
    TURN_UNTIL(&f, seen[2].closes == 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(seen[i].rc, 0);
        assert_body(&seen[i], "x");
        seen_reset(&seen[i]);
    }
    fixture_fini(&f);
}

/* gateway.md 8.1: max idle connections per target */
static void idle_connections_have_a_cap(void **state)
{
    (void)state;
    static const int counts[] = {1, 2, 3}; /* below, at, above */
    for (size_t row = 0; row < FL_ARRAY_LEN(counts); row++) {
        struct fixture f;
        struct seen seen[3] = {0};
        fixture_init(&f);
        f.pool_config.max_idle_per_target = 2;
        f.answers_late = true;
        fixture_listen(&f, true);
        for (int i = 0; i < counts[row]; i++)
            ask(&f, &seen[i], FL_WEB_HTTP1, "/", NULL);
        TURN_UNTIL(&f, f.request_count == counts[row]);
        for (int i = 0; i < counts[row]; i++)
            fl_exchange_respond(f.requests[i].x, 200, "text/plain", FL_BYTES("x"), NULL);
        for (int i = 0; i < counts[row]; i++)
            TURN_UNTIL(&f, seen[i].closes == 1);
        uint32_t kept = counts[row] < 2 ? (uint32_t)counts[row] : 2;
        TURN_UNTIL(&f, fl_web_server_connections(f.server) == kept);
        turn_some(&f);
        assert_int_equal(fl_web_server_connections(f.server), kept);
        for (int i = 0; i < 3; i++)
            seen_reset(&seen[i]);
        fixture_fini(&f);
    }
}

/* gateway.md 8.1: idle kept at most 55 s */
static void idle_connections_expire(void **state)
{
    (void)state;
    struct fixture f;
    struct seen seen = {0};
    fixture_init(&f);
    f.pool_config.max_idle_ms = 60;
    fixture_listen(&f, true);
    ask(&f, &seen, FL_WEB_HTTP1, "/", NULL);
    TURN_UNTIL(&f, seen.closes == 1);
    assert_int_equal(fl_web_server_connections(f.server), 1);
    TURN_UNTIL(&f, fl_web_server_connections(f.server) == 0);
    seen_reset(&seen);
    fixture_fini(&f);
}

/* Bodies both ways, trailers, 1xx. */
static void whole_exchange_passes_unchanged(void **state)
{
    (void)state;
    struct fixture f;
    struct seen seen = {0};
    fixture_init(&f);
    fixture_listen(&f, true);
    ask(&f, &seen, FL_WEB_HTTP1, "/echo", "some body");
    TURN_UNTIL(&f, seen.closes == 1);
    assert_int_equal(seen.rc, 0);
    assert_int_equal(seen.status, 200);
    assert_body(&seen, "some body");
    assert_string_equal(seen.field, "echo");
    assert_string_equal(seen.trailer, "42");
    assert_string_equal(f.requests[0].method, "POST");
    assert_string_equal(f.requests[0].authority, "test");
    assert_int_equal(f.requests[0].rc, 0);
    seen_reset(&seen);
    fixture_fini(&f);
}

/* gateway.md 8.3: connect failure is told apart */
static void refused_connection_is_a_connect_error(void **state)
{
    (void)state;
    struct fixture f;
    struct seen seen = {0};
    fixture_init(&f);
    fixture_listen(&f, false);
    fl_listener_close(f.listener);
    f.listener = NULL;
    ask(&f, &seen, FL_WEB_HTTP1, "/", "body");
    assert_int_equal(seen.closes, 0);
    TURN_UNTIL(&f, seen.closes == 1);
    assert_int_equal(seen.rc, FL_ECONNECT);
    assert_false(seen.was_reused_and_silent);
    seen_reset(&seen);
    fixture_fini(&f);
}

/* What a raw server answers, and how the exchange ends. gateway.md 7 (502), 7.1, 8.7 */
static void answers_end_as_they_should(void **state)
{
    (void)state;
    static const struct {
        const char *why, *answer;
        bool closes_after;
        int rc, status;
        const char *body;
        bool is_kept;
    } rows[] = {
        {"with a length", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", false, 0, 200, "ok",
         true},
        {"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
         false, 0, 200, "ok", true},
        {"close-delimited", "HTTP/1.1 200 OK\r\n\r\nok", true, 0, 200, "ok", false},
        {"Connection: close", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
         false, 0, 200, "ok", false},
        {"1.0 without keep-alive", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", false, 0, 200,
         "ok", false},
        {"interim answers first",
         "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
         false, 0, 200, "", true},
        {"cut in the head", "HTTP/1.1 200 OK\r\nContent-Le", true, FL_ECLOSED, 0, "", false},
        {"no byte at all", "", true, FL_ECLOSED, 0, "", false},
        {"cut in the body", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok", true, FL_ECLOSED, 200,
         "ok", false},
        {"cut before the last chunk",
         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", true, FL_ECLOSED, 200,
         "ok", false},
        {"not HTTP", "SSH-2.0-OpenSSH\r\n", false, FL_EPROTO, 0, "", false},
        {"both lengths",
         "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok", false,
         FL_EPROTO, 0, "", false},
        {"bytes behind the answer", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokEXTRA", false, 0,
         200, "ok", false},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fixture f;
        static struct raw raws[8];
        struct seen seen = {0};
        memset(raws, 0, sizeof(raws));
        fixture_init(&f);
        fixture_listen(&f, false);
        raw_listen(&f, raws);
        ask(&f, &seen, FL_WEB_HTTP1, "/", NULL);
        TURN_UNTIL(&f, raws[0].fd > 0 && raw_has(&raws[0], "\r\n\r\n"));
        raw_send(&f, &raws[0], rows[i].answer);
        if (rows[i].closes_after)
            shutdown(raws[0].fd, SHUT_WR);
        TURN_UNTIL(&f, seen.closes == 1);
        if (seen.rc != rows[i].rc || seen.status != rows[i].status)
            fail_msg("%s: rc %d, status %d", rows[i].why, seen.rc, seen.status);
        assert_body(&seen, rows[i].body);
        turn_some(&f);
        if (raw_ended(&raws[0]) == rows[i].is_kept)
            fail_msg("%s: connection %s", rows[i].why, rows[i].is_kept ? "closed" : "kept");
        raw_close(&raws[0]);
        seen_reset(&seen);
        fixture_fini(&f);
    }
}

/* gateway.md 8.1: a readable-with-EOF connection is discarded before reuse */
static void dead_idle_connection_is_not_reused(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raws[8];
    struct seen seen[2] = {0};
    memset(raws, 0, sizeof(raws));
    fixture_init(&f);
    fixture_listen(&f, false);
    raw_listen(&f, raws);
    ask(&f, &seen[0], FL_WEB_HTTP1, "/", NULL);
    TURN_UNTIL(&f, raws[0].fd > 0 && raw_has(&raws[0], "\r\n\r\n"));
    raw_send(&f, &raws[0], "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    TURN_UNTIL(&f, seen[0].closes == 1);
    /* The FIN is in our socket, but the loop has not turned since. */
    raw_close(&raws[0]);
    ask(&f, &seen[1], FL_WEB_HTTP1, "/", NULL);
    TURN_UNTIL(&f, raws[1].fd > 0 && raw_has(&raws[1], "\r\n\r\n"));
    raw_send(&f, &raws[1], "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    TURN_UNTIL(&f, seen[1].closes == 1);
    assert_int_equal(seen[1].rc, 0);
    raw_close(&raws[1]);
    fixture_fini(&f);
}

/* gateway.md 8.4: reused and silent */
static void death_of_a_reused_connection_is_told_apart(void **state)
{
    (void)state;
    static const struct {
        const char *why, *second_answer;
        bool silent;
    } rows[] = {{"no byte", "", true}, {"a byte", "H", false}};
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fixture f;
        static struct raw raws[8];
        struct seen seen[2] = {0};
        memset(raws, 0, sizeof(raws));
        fixture_init(&f);
        fixture_listen(&f, false);
        raw_listen(&f, raws);
        ask(&f, &seen[0], FL_WEB_HTTP1, "/", NULL);
        TURN_UNTIL(&f, raws[0].fd > 0 && raw_has(&raws[0], "\r\n\r\n"));
        raw_send(&f, &raws[0], "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        TURN_UNTIL(&f, seen[0].closes == 1);
        ask(&f, &seen[1], FL_WEB_HTTP1, "/again", NULL);
        TURN_UNTIL(&f, raw_has(&raws[0], "/again"));
        raw_send(&f, &raws[0], rows[i].second_answer);
        turn_some(&f);
        raw_close(&raws[0]);
        TURN_UNTIL(&f, seen[1].closes == 1);
        assert_int_equal(seen[1].rc, FL_ECLOSED);
        assert_int_equal(seen[1].was_reused_and_silent, rows[i].silent);
        assert_int_equal(raws[1].fd, 0);
        fixture_fini(&f);
    }
}

/* gateway.md 8.4: the retry runs on a fresh connection */
static void fresh_means_a_new_connection(void **state)
{
    (void)state;
    struct fixture f;
    struct seen seen[2] = {0};
    fixture_init(&f);
    fixture_listen(&f, true);
    ask(&f, &seen[0], FL_WEB_HTTP1, "/", NULL);
    TURN_UNTIL(&f, seen[0].closes == 1);
    struct fl_web_target target = target_of(&f, FL_WEB_HTTP1);
    seen[1].x = fl_web_pool_open(f.pool, &target, true, &seen_handler, &seen[1]);
    struct fl_head head = {.method = FL_BYTES("GET"),
                           .authority = FL_BYTES("t"),
                           .target = FL_BYTES("/"),
                           .arena = fl_exchange_arena(seen[1].x)};
    fl_exchange_send_head(seen[1].x, &head, true);
    TURN_UNTIL(&f, seen[1].closes == 1);
    assert_int_equal(f.accepted, 2);
    seen_reset(&seen[0]);
    seen_reset(&seen[1]);
    fixture_fini(&f);
}

/* gateway.md 9.1, dead peer: forgotten connections are not used again */
static void forgotten_target_gets_new_connections(void **state)
{
    (void)state;
    for (int protocol = FL_WEB_HTTP1; protocol <= FL_WEB_H2; protocol++) {
        struct fixture f;
        struct seen seen[3] = {0};
        fixture_init(&f);
        fixture_listen(&f, true);
        struct fl_web_target target = target_of(&f, (enum fl_web_protocol)protocol);
        ask(&f, &seen[0], target.protocol, "/", NULL);
        TURN_UNTIL(&f, seen[0].closes == 1);
        f.answers_late = true;
        ask(&f, &seen[1], target.protocol, "/", NULL);
        TURN_UNTIL(&f, f.request_count == 2);
        assert_int_equal(f.accepted, 1);
        fl_web_pool_forget(f.pool, &target);
        ask(&f, &seen[2], target.protocol, "/", NULL);
        TURN_UNTIL(&f, f.request_count == 3);
        assert_int_equal(f.accepted, 2);
        /* The running exchange goes on, then its connection goes. */
        fl_exchange_respond(f.requests[1].x, 200, "text/plain", FL_BYTES("old"), NULL);
        TURN_UNTIL(&f, seen[1].closes == 1);
        assert_body(&seen[1], "old");
        TURN_UNTIL(&f, fl_web_server_connections(f.server) == 1);
        fl_exchange_respond(f.requests[2].x, 200, "text/plain", FL_BYTES("new"), NULL);
        TURN_UNTIL(&f, seen[2].closes == 1);
        for (int i = 0; i < 3; i++)
            seen_reset(&seen[i]);
        fixture_fini(&f);
    }
}

/* gateway.md 8.6: abort closes the endpoint's connection at once */
static void abort_closes_the_connection(void **state)
{
    (void)state;
    struct fixture f;
    struct seen seen = {0};
    fixture_init(&f);
    f.answers_late = true;
    fixture_listen(&f, true);
    ask(&f, &seen, FL_WEB_HTTP1, "/", "body");
    TURN_UNTIL(&f, f.request_count == 1);
    fl_exchange_abort(seen.x, 8);
    fl_exchange_abort(seen.x, 8); /* harmless */
    assert_int_equal(seen.closes, 0);
    TURN_UNTIL(&f, seen.closes == 1);
    assert_int_equal(seen.rc, FL_ECANCELLED);
    TURN_UNTIL(&f, f.requests[0].closes == 1);
    assert_int_equal(f.requests[0].rc, FL_ECLOSED);
    TURN_UNTIL(&f, fl_web_server_connections(f.server) == 0);
    seen_reset(&seen);
    fixture_fini(&f);
}

/* An abort before anything was sent, and before the connection stands. */
static void abort_before_the_head_is_harmless(void **state)
{
    (void)state;
    for (int protocol = FL_WEB_HTTP1; protocol <= FL_WEB_H2; protocol++) {
        struct fixture f;
        struct seen seen = {0};
        fixture_init(&f);
        fixture_listen(&f, true);
        struct fl_web_target target = target_of(&f, (enum fl_web_protocol)protocol);
        seen.x = fl_web_pool_open(f.pool, &target, false, &seen_handler, &seen);
        fl_exchange_abort(seen.x, 8);
        TURN_UNTIL(&f, seen.closes == 1);
        assert_int_equal(seen.rc, FL_ECANCELLED);
        fixture_fini(&f);
    }
}

/* An answer that comes before the request has been sent ends the exchange well; the connection is
 * not reused. */
static void early_answer_ends_the_upload(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raws[8];
    struct seen seen = {0};
    memset(raws, 0, sizeof(raws));
    fixture_init(&f);
    fixture_listen(&f, false);
    raw_listen(&f, raws);
    struct fl_web_target target = target_of(&f, FL_WEB_HTTP1);
    seen.x = fl_web_pool_open(f.pool, &target, false, &seen_handler, &seen);
    struct fl_head head = {.method = FL_BYTES("POST"),
                           .authority = FL_BYTES("t"),
                           .target = FL_BYTES("/"),
                           .body = FL_BODY_STREAM,
                           .content_length = UINT64_MAX,
                           .arena = fl_exchange_arena(seen.x)};
    fl_exchange_send_head(seen.x, &head, false);
    fl_exchange_send_body_copy(seen.x, FL_BYTES("first"));
    TURN_UNTIL(&f, raws[0].fd > 0 && raw_has(&raws[0], "first"));
    assert_true(raw_has(&raws[0], "Transfer-Encoding: chunked"));
    raw_send(&f, &raws[0], "HTTP/1.1 413 Payload Too Large\r\nContent-Length: 0\r\n\r\n");
    TURN_UNTIL(&f, seen.closes == 1);
    assert_int_equal(seen.rc, 0);
    assert_int_equal(seen.status, 413);
    TURN_UNTIL(&f, raw_ended(&raws[0]));
    raw_close(&raws[0]);
    fixture_fini(&f);
}

/* A head that cannot be written safely never reaches the wire. */
static void field_that_breaks_lines_is_refused(void **state)
{
    (void)state;
    for (int protocol = FL_WEB_HTTP1; protocol <= FL_WEB_H2; protocol++) {
        struct fixture f;
        struct seen seen = {0};
        fixture_init(&f);
        fixture_listen(&f, true);
        struct fl_web_target target = target_of(&f, (enum fl_web_protocol)protocol);
        seen.x = fl_web_pool_open(f.pool, &target, false, &seen_handler, &seen);
        struct fl_head head = {.method = FL_BYTES("GET"),
                               .authority = FL_BYTES("t"),
                               .target = FL_BYTES("/"),
                               .arena = fl_exchange_arena(seen.x)};
        fl_fields_add(&head.fields, head.arena, FL_BYTES("x-a"), FL_BYTES("1\r\nx-b: 2"));
        fl_exchange_send_head(seen.x, &head, true);
        TURN_UNTIL(&f, seen.closes == 1);
        assert_int_equal(seen.rc, FL_EPROTO);
        assert_int_equal(f.request_count, 0);
        fixture_fini(&f);
    }
}

struct retrier {
    struct fixture *f;
    struct seen second;
    int closes;
};

static void retry_on_close(void *owner, struct fl_exchange *x, int rc)
{
    struct retrier *retrier = owner;
    (void)x;
    (void)rc;
    retrier->closes++;
    if (retrier->closes == 1)
        ask(retrier->f, &retrier->second, FL_WEB_HTTP1, "/", NULL);
}

/* Freeing the pool ends what runs; who retries from there fails quietly. */
static void freeing_the_pool_ends_everything(void **state)
{
    (void)state;
    static const struct fl_exchange_handler retrying = {.on_close = retry_on_close};
    struct fixture f;
    struct seen seen[3] = {0};
    fixture_init(&f);
    f.answers_late = true;
    fixture_listen(&f, true);
    ask(&f, &seen[0], FL_WEB_HTTP1, "/", NULL);
    ask(&f, &seen[1], FL_WEB_H2, "/", NULL);
    struct fl_web_target target = target_of(&f, FL_WEB_H2);
    seen[2].x = fl_web_pool_open(f.pool, &target, false, &seen_handler, &seen[2]); /* no head */
    struct retrier retrier = {.f = &f};
    target.protocol = FL_WEB_HTTP1;
    fl_web_pool_open(f.pool, &target, false, &retrying, &retrier);
    TURN_UNTIL(&f, f.request_count == 2);
    fl_web_pool_free(f.pool);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(seen[i].closes, 1);
        assert_int_equal(seen[i].rc, FL_ECANCELLED);
    }
    assert_int_equal(retrier.closes, 1);
    TURN_UNTIL(&f, retrier.second.closes == 1);
    assert_int_equal(retrier.second.rc, FL_ECANCELLED);
    f.pool = NULL;
    TURN_UNTIL(&f, f.requests[0].closes == 1 && f.requests[1].closes == 1);
    fixture_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(most_recently_used_connection_is_taken_first),
        cmocka_unit_test(idle_connections_have_a_cap),
        cmocka_unit_test(idle_connections_expire),
        cmocka_unit_test(whole_exchange_passes_unchanged),
        cmocka_unit_test(refused_connection_is_a_connect_error),
        cmocka_unit_test(answers_end_as_they_should),
        cmocka_unit_test(dead_idle_connection_is_not_reused),
        cmocka_unit_test(death_of_a_reused_connection_is_told_apart),
        cmocka_unit_test(fresh_means_a_new_connection),
        cmocka_unit_test(forgotten_target_gets_new_connections),
        cmocka_unit_test(abort_closes_the_connection),
        cmocka_unit_test(abort_before_the_head_is_harmless),
        cmocka_unit_test(early_answer_ends_the_upload),
        cmocka_unit_test(field_that_breaks_lines_is_refused),
        cmocka_unit_test(freeing_the_pool_ends_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
