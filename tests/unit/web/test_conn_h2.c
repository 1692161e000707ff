/* SPDX-License-Identifier: Apache-2.0 */
/* Both faces over HTTP/2, against each other and against raw peers. */
#include "fixture.h"

static void whole_exchange_passes_unchanged(void **state)
{
    (void)state;
    struct fixture f;
    struct seen seen = {0};
    fixture_init(&f);
    fixture_listen(&f, true);
    ask(&f, &seen, FL_WEB_H2, "/echo", "some body");
    TURN_UNTIL(&f, seen.closes == 1);
    assert_int_equal(seen.rc, 0);
    assert_int_equal(seen.status, 200);
    assert_body(&seen, "some body");
    assert_string_equal(seen.field, "echo");
    assert_string_equal(seen.trailer, "42");
    assert_string_equal(f.requests[0].authority, "test");
    assert_int_equal(f.requests[0].rc, 0);
    seen_reset(&seen);
    fixture_fini(&f);
}

/* gateway.md 9.1: one connection for each target, streams multiplexed */
static void streams_share_one_connection(void **state)
{
    (void)state;
    struct fixture f;
    struct seen seen[40] = {0};
    fixture_init(&f);
    f.answers_late = true;
    fixture_listen(&f, true);
    for (int i = 0; i < 40; i++)
        ask(&f, &seen[i], FL_WEB_H2, "/", "x");
    TURN_UNTIL(&f, f.request_count == 40);
    assert_int_equal(f.accepted, 1);
    /* In any order: nobody waits for another (gaie.md 1.1). */
    for (int i = 39; i >= 0; i--)
        fl_exchange_respond(f.requests[i].x, 200, "text/plain", FL_BYTES("y"), NULL);
    for (int i = 0; i < 40; i++) {
        TURN_UNTIL(&f, seen[i].closes == 1);
        assert_int_equal(seen[i].rc, 0);
        assert_body(&seen[i], "y");
        seen_reset(&seen[i]);
    }
    fixture_fini(&f);
}

/* gateway.md 9.1: one overflow connection while the peer's limit is reached; more requests wait */
static void overflow_connection_then_waiting(void **state)
{
    (void)state;
    struct fixture f;
    struct seen seen[8] = {0};
    fixture_init(&f);
    f.server_config.h2_max_streams = 2;
    f.answers_late = true;
    fixture_listen(&f, true);
    /* The first learns the limit. */
    ask(&f, &seen[0], FL_WEB_H2, "/0", NULL);
    TURN_UNTIL(&f, f.request_count == 1);
    turn_some(&f);
    for (int i = 1; i < 4; i++)
        ask(&f, &seen[i], FL_WEB_H2, "/n", "body of it");
    TURN_UNTIL(&f, f.request_count >= 3 && f.accepted == 2);
    turn_some(&f);
    for (int i = 4; i < 8; i++)
        ask(&f, &seen[i], FL_WEB_H2, "/late", "body of a waiting one");
    turn_some(&f);
    assert_int_equal(f.accepted, 2);
    assert_int_equal(f.request_count, 4);
    /* A waiting one may be aborted. */
    fl_exchange_abort(seen[7].x, 8);
    TURN_UNTIL(&f, seen[7].closes == 1);
    assert_int_equal(seen[7].rc, FL_ECANCELLED);
    for (int i = 0; i < 7; i++) {
        TURN_UNTIL(&f, f.request_count > i && f.requests[i].ends == 1);
        assert_true(f.request_count <= i + 4);
        fl_exchange_respond(f.requests[i].x, 200, "text/plain", FL_BYTES("z"), NULL);
        TURN_UNTIL(&f, f.requests[i].closes == 1);
    }
    for (int i = 0; i < 7; i++) {
        TURN_UNTIL(&f, seen[i].closes == 1);
        assert_int_equal(seen[i].rc, 0);
        seen_reset(&seen[i]);
    }
    assert_body(&f.requests[6], "body of a waiting one");
    assert_int_equal(f.accepted, 2);
    fixture_fini(&f);
}

/* gaie.md 1.1: only the stream window holds a sender, the connection window is given back */
static void stalled_streams_do_not_stop_the_others(void **state)
{
    (void)state;
    struct fixture f;
    static struct seen seen[21];
    static char big[2 << 20];
    memset(seen, 0, sizeof(seen));
    memset(big, 'b', sizeof(big));
    fixture_init(&f);
    f.answers_late = true;
    f.keeps_bodies = true;
    f.server_config.budget = &f.budget;
    fixture_listen(&f, true);
    struct fl_web_target target = target_of(&f, FL_WEB_H2);
    /* 20 uploads of 2 MiB, none consumed: each stops at its own 1 MiB. */
    for (int i = 0; i < 20; i++) {
        seen[i].x = fl_web_pool_open(f.pool, &target, false, &seen_handler, &seen[i]);
        struct fl_head head = {.method = FL_BYTES("POST"),
                               .scheme = FL_BYTES("http"),
                               .authority = FL_BYTES("t"),
                               .target = FL_BYTES("/"),
                               .body = FL_BODY_LENGTH,
                               .content_length = sizeof(big),
                               .arena = fl_exchange_arena(seen[i].x)};
        fl_exchange_send_head(seen[i].x, &head, false);
        struct fl_slice slice = {.p = (const uint8_t *)big, .n = sizeof(big)};
        fl_exchange_send_body(seen[i].x, slice);
        fl_exchange_send_end(seen[i].x, NULL);
    }
    TURN_UNTIL(&f, f.request_count == 20);
    for (int i = 0; i < 20; i++)
        TURN_UNTIL(&f, f.requests[i].held == FL_EXCHANGE_WINDOW_BYTES);
    turn_some(&f);
    for (int i = 0; i < 20; i++)
        assert_int_equal(f.requests[i].held, FL_EXCHANGE_WINDOW_BYTES);
    /* 20 MiB are held on a connection with a window of 16: another stream still runs. */
    f.keeps_bodies = false;
    f.answers_late = false;
    ask(&f, &seen[20], FL_WEB_H2, "/echo", "through");
    TURN_UNTIL(&f, seen[20].closes == 1);
    assert_body(&seen[20], "through");
    assert_int_equal(f.accepted, 1);
    /* Consuming one lets its sender finish. */
    f.answers_late = true;
    f.requests[3].keeps = false;
    fl_exchange_consume(f.requests[3].x, f.requests[3].held);
    TURN_UNTIL(&f, f.requests[3].ends == 1);
    assert_int_equal(fl_buf_size(&f.requests[3].body), sizeof(big));
    for (int i = 0; i < 20; i++)
        fl_exchange_abort(seen[i].x, 8);
    for (int i = 0; i < 20; i++)
        TURN_UNTIL(&f, seen[i].closes == 1 && f.requests[i].closes == 1);
    assert_int_equal(f.requests[0].rc, FL_ECLOSED);
    assert_int_equal(seen[0].rc, FL_ECANCELLED);
    seen_reset(&seen[20]);
    fixture_fini(&f);
}

/* exchange.h: a producer stops above the high mark and goes on at on_writable */
static void writable_is_told_when_the_queue_has_left(void **state)
{
    (void)state;
    struct fixture f;
    struct seen seen = {0};
    static char big[1 << 20];
    fixture_init(&f);
    f.answers_late = true;
    fixture_listen(&f, true);
    seen.keeps = true;
    ask(&f, &seen, FL_WEB_H2, "/", NULL);
    TURN_UNTIL(&f, f.request_count == 1);
    struct fl_exchange *x = f.requests[0].x;
    struct fl_head head = {.status = 200,
                           .body = FL_BODY_STREAM,
                           .content_length = UINT64_MAX,
                           .arena = fl_exchange_arena(x)};
    fl_exchange_send_head(x, &head, false);
    for (int i = 0; i < 3; i++)
        fl_exchange_send_body(x, (struct fl_slice){.p = (const uint8_t *)big, .n = sizeof(big)});
    TURN_UNTIL(&f, seen.held == FL_EXCHANGE_WINDOW_BYTES);
    turn_some(&f);
    assert_int_equal(f.requests[0].writables, 0);
    assert_int_equal(fl_exchange_queued(x), 2 * sizeof(big));
    while (f.requests[0].writables == 0) {
        fl_exchange_consume(seen.x, seen.held);
        seen.held = 0;
        fl_loop_turn(f.loop, 5);
    }
    assert_true(fl_exchange_queued(x) <= FL_EXCHANGE_LOW_BYTES);
    fl_exchange_send_end(x, NULL);
    seen.keeps = false;
    fl_exchange_consume(seen.x, seen.held);
    TURN_UNTIL(&f, seen.closes == 1);
    assert_int_equal(fl_buf_size(&seen.body), 3 * sizeof(big));
    assert_int_equal(f.requests[0].writables, 1);
    seen_reset(&seen);
    fixture_fini(&f);
}

/* dependencies.md 3.1: RST_STREAM codes, polite ends */
static void aborts_end_both_sides(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        bool by_server;
        uint32_t error;
        int peer_rc;
    } rows[] = {
        {"client cancels", false, 8, FL_ECLOSED},
        {"server cancels", true, 8, FL_ECLOSED},
        {"server fails", true, 2, FL_EIO},
        {"server refuses", true, 7, FL_EREFUSED},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fixture f;
        struct seen seen = {0};
        fixture_init(&f);
        f.answers_late = true;
        fixture_listen(&f, true);
        ask(&f, &seen, FL_WEB_H2, "/", "x");
        TURN_UNTIL(&f, f.request_count == 1 && f.requests[0].ends == 1);
        fl_exchange_abort(rows[i].by_server ? f.requests[0].x : seen.x, rows[i].error);
        TURN_UNTIL(&f, seen.closes == 1 && f.requests[0].closes == 1);
        assert_int_equal(rows[i].by_server ? f.requests[0].rc : seen.rc, FL_ECANCELLED);
        assert_int_equal(rows[i].by_server ? seen.rc : f.requests[0].rc, rows[i].peer_rc);
        /* The connection goes on. */
        f.answers_late = false;
        struct seen next = {0};
        ask(&f, &next, FL_WEB_H2, "/", NULL);
        TURN_UNTIL(&f, next.closes == 1);
        assert_int_equal(next.rc, 0);
        assert_int_equal(f.accepted, 1);
        seen_reset(&next);
        fixture_fini(&f);
    }
}

/* RFC 9113 8.1: a complete answer before the request's end is a success for both */
static void early_answer_ends_the_upload(void **state)
{
    (void)state;
    struct fixture f;
    struct seen seen = {0};
    fixture_init(&f);
    f.answers_late = true;
    fixture_listen(&f, true);
    struct fl_web_target target = target_of(&f, FL_WEB_H2);
    seen.x = fl_web_pool_open(f.pool, &target, false, &seen_handler, &seen);
    struct fl_head head = {.method = FL_BYTES("POST"),
                           .scheme = FL_BYTES("http"),
                           .authority = FL_BYTES("t"),
                           .target = FL_BYTES("/"),
                           .body = FL_BODY_STREAM,
                           .content_length = UINT64_MAX,
                           .arena = fl_exchange_arena(seen.x)};
    fl_exchange_send_head(seen.x, &head, false);
    fl_exchange_send_body_copy(seen.x, FL_BYTES("part"));
    TURN_UNTIL(&f, f.request_count == 1);
    fl_exchange_respond(f.requests[0].x, 413, "text/plain", FL_BYTES("no"), NULL);
    TURN_UNTIL(&f, seen.closes == 1 && f.requests[0].closes == 1);
    assert_int_equal(seen.rc, 0);
    assert_int_equal(f.requests[0].rc, 0);
    assert_int_equal(seen.status, 413);
    seen_reset(&seen);
    fixture_fini(&f);
}

/* gaie.md 1.1, shutdown: GOAWAY, open and new streams are still served, then the connection closes
 */
static void drain_serves_what_is_open(void **state)
{
    (void)state;
    struct fixture f;
    struct seen seen[2] = {0};
    fixture_init(&f);
    f.answers_late = true;
    fixture_listen(&f, true);
    ask(&f, &seen[0], FL_WEB_H2, "/", NULL);
    TURN_UNTIL(&f, f.request_count == 1);
    fl_web_server_drain(f.server);
    turn_some(&f);
    /* The client has seen GOAWAY: the next request goes on a new connection. */
    ask(&f, &seen[1], FL_WEB_H2, "/", NULL);
    TURN_UNTIL(&f, f.request_count == 2);
    assert_int_equal(f.accepted, 2);
    for (int i = 0; i < 2; i++)
        fl_exchange_respond(f.requests[i].x, 200, "text/plain", FL_BYTES("x"), NULL);
    for (int i = 0; i < 2; i++) {
        TURN_UNTIL(&f, seen[i].closes == 1);
        assert_int_equal(seen[i].rc, 0);
        seen_reset(&seen[i]);
    }
    TURN_UNTIL(&f, fl_web_server_connections(f.server) == 0);
    fixture_fini(&f);
}

/* dependencies.md 3.1: streams above last-stream-id may be retried, others not */
static void goaway_tells_which_streams_were_never_seen(void **state)
{
    (void)state;
    /* SETTINGS; GOAWAY last-stream-id 1; later the answer to stream 1 */
    static const unsigned char settings[] = {0, 0, 0, 4, 0, 0, 0, 0, 0};
    static const unsigned char goaway[] = {0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0};
    static const unsigned char answer[] = {0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88}; /* :status 200 */
    struct fixture f;
    static struct raw raws[8];
    struct seen seen[2] = {0};
    memset(raws, 0, sizeof(raws));
    fixture_init(&f);
    fixture_listen(&f, false);
    raw_listen(&f, raws);
    for (int i = 0; i < 2; i++)
        ask(&f, &seen[i], FL_WEB_H2, "/", NULL);
    TURN_UNTIL(&f, raws[0].fd > 0 && (raw_recv(&raws[0]), raws[0].n > 100));
    raw_send_n(&f, &raws[0], settings, sizeof(settings));
    raw_send_n(&f, &raws[0], goaway, sizeof(goaway));
    TURN_UNTIL(&f, seen[1].closes == 1);
    assert_int_equal(seen[1].rc, FL_EREFUSED);
    assert_int_equal(seen[0].closes, 0);
    raw_send_n(&f, &raws[0], answer, sizeof(answer));
    TURN_UNTIL(&f, seen[0].closes == 1);
    assert_int_equal(seen[0].rc, 0);
    TURN_UNTIL(&f, raw_ended(&raws[0]));
    raw_close(&raws[0]);
    fixture_fini(&f);
}

/* A connection that dies takes its streams along; the next request gets a new one. */
static void broken_connection_ends_its_streams(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raws[8];
    struct seen seen[3] = {0};
    memset(raws, 0, sizeof(raws));
    fixture_init(&f);
    fixture_listen(&f, false);
    raw_listen(&f, raws);
    ask(&f, &seen[0], FL_WEB_H2, "/", NULL);
    ask(&f, &seen[1], FL_WEB_H2, "/", "body");
    TURN_UNTIL(&f, raws[0].fd > 0 && (raw_recv(&raws[0]), raws[0].n > 100));
    raw_close(&raws[0]);
    TURN_UNTIL(&f, seen[0].closes == 1 && seen[1].closes == 1);
    assert_int_equal(seen[0].rc, FL_ECLOSED);
    assert_int_equal(seen[1].rc, FL_ECLOSED);
    assert_false(seen[0].was_reused_and_silent);
    raws[1].fd = 0;
    ask(&f, &seen[2], FL_WEB_H2, "/", NULL);
    TURN_UNTIL(&f, raws[1].fd > 0);
    raw_send(&f, &raws[1], "HTTP/1.1 400 Bad Request\r\n\r\n");
    TURN_UNTIL(&f, seen[2].closes == 1);
    assert_true(seen[2].rc < 0);
    raw_close(&raws[1]);
    fixture_fini(&f);
}

/* Both versions on one plain listener: decided by the preface, wherever it is cut. */
static void preface_decides_the_version(void **state)
{
    (void)state;
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";
    for (size_t cut = 1; cut < sizeof(preface) - 1; cut += 5) {
        struct fixture f;
        static struct raw raw;
        fixture_init(&f);
        fixture_listen(&f, true);
        raw_connect(&raw, &f);
        raw_send_n(&f, &raw, preface, cut);
        turn_some(&f);
        raw_send_n(&f, &raw, preface + cut, sizeof(preface) - 1 - cut);
        TURN_UNTIL(&f, (raw_recv(&raw), raw.n >= 9));
        assert_int_equal(raw.in[3], 4); /* SETTINGS */
        raw_close(&raw);
        fixture_fini(&f);
    }
    /* "P" alone is no decision; "POST" is HTTP/1 */
    struct fixture f;
    static struct raw raw;
    fixture_init(&f);
    fixture_listen(&f, true);
    raw_connect(&raw, &f);
    raw_send(&f, &raw, "P");
    turn_some(&f);
    raw_send(&f, &raw, "OST / HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n");
    TURN_UNTIL(&f, raw_has(&raw, "hello"));
    raw_close(&raw);
    fixture_fini(&f);
}

/* What is no HTTP/2 on an HTTP/2 listener is dropped. */
static void nonsense_closes_the_connection(void **state)
{
    (void)state;
    static const char *const nonsense[] = {"GET / HTTP/1.1\r\nHost: t\r\n\r\n",
                                           "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"};
    for (size_t i = 0; i < FL_ARRAY_LEN(nonsense); i++) {
        struct fixture f;
        static struct raw raw;
        fixture_init(&f);
        f.server_config.http1 = false;
        fixture_listen(&f, true);
        raw_connect(&raw, &f);
        raw_send(&f, &raw, nonsense[i]);
        TURN_UNTIL(&f, raw_ended(&raw));
        TURN_UNTIL(&f, fl_web_server_connections(f.server) == 0);
        raw_close(&raw);
        fixture_fini(&f);
    }
}

/* Connections that never say anything, or nothing more, go. */
static void silent_connections_are_closed(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raws[2];
    struct seen seen = {0};
    fixture_init(&f);
    f.server_config.http1 = false;
    f.server_config.head_timeout_ms = 40;
    f.server_config.idle_timeout_ms = 60;
    fixture_listen(&f, true);
    raw_connect(&raws[0], &f);
    ask(&f, &seen, FL_WEB_H2, "/", NULL);
    TURN_UNTIL(&f, seen.closes == 1);
    assert_int_equal(seen.rc, 0);
    TURN_UNTIL(&f, raw_ended(&raws[0]));
    TURN_UNTIL(&f, fl_web_server_connections(f.server) == 0);
    raw_close(&raws[0]);
    seen_reset(&seen);
    fixture_fini(&f);
}

/* HEAD, 204 and 304 over HTTP/2 */
static void answers_without_body_have_none(void **state)
{
    (void)state;
    static const struct {
        const char *method, *path;
    } rows[] = {{"HEAD", "/hello"}, {"GET", "/nothing"}, {"GET", "/not-modified"}};
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fixture f;
        struct seen seen = {0};
        fixture_init(&f);
        fixture_listen(&f, true);
        struct fl_web_target target = target_of(&f, FL_WEB_H2);
        seen.x = fl_web_pool_open(f.pool, &target, false, &seen_handler, &seen);
        struct fl_head head = {.method = fl_bytes_of(rows[i].method),
                               .scheme = FL_BYTES("http"),
                               .authority = FL_BYTES("t"),
                               .target = fl_bytes_of(rows[i].path),
                               .arena = fl_exchange_arena(seen.x)};
        fl_exchange_send_head(seen.x, &head, true);
        TURN_UNTIL(&f, seen.closes == 1);
        assert_int_equal(seen.rc, 0);
        assert_true(seen.is_end_at_head);
        assert_int_equal(fl_buf_size(&seen.body), 0);
        fixture_fini(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_exchange_passes_unchanged),
        cmocka_unit_test(streams_share_one_connection),
        cmocka_unit_test(overflow_connection_then_waiting),
        cmocka_unit_test(stalled_streams_do_not_stop_the_others),
        cmocka_unit_test(writable_is_told_when_the_queue_has_left),
        cmocka_unit_test(aborts_end_both_sides),
        cmocka_unit_test(early_answer_ends_the_upload),
        cmocka_unit_test(drain_serves_what_is_open),
        cmocka_unit_test(goaway_tells_which_streams_were_never_seen),
        cmocka_unit_test(broken_connection_ends_its_streams),
        cmocka_unit_test(preface_decides_the_version),
        cmocka_unit_test(nonsense_closes_the_connection),
        cmocka_unit_test(silent_connections_are_closed),
        cmocka_unit_test(answers_without_body_have_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
