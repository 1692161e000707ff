/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"
#include "web/fetch.h"

struct fetched {
    int calls;
    struct fl_fetch_result result;
    char body[512], field[64];
};

static void on_done(void *owner, const struct fl_fetch_result *result)
{
    struct fetched *fetched = owner;
    fetched->calls++;
    fetched->result = *result;
    copy_text(fetched->body, sizeof(fetched->body), result->body);
    if (result->fields != NULL)
        copy_text(fetched->field, sizeof(fetched->field),
                  fl_fields_get(result->fields, FL_BYTES("x-test")));
}

static struct fl_fetch *start(struct fixture *f, struct fetched *fetched, const char *path,
                              const char *body, uint64_t timeout_ms, size_t max_body)
{
    struct fl_chain chain = {0};
    char method[8], host[8], name[8]; /* copied by the call: gone afterwards */
    snprintf(method, sizeof(method), "%s", body != NULL ? "POST" : "GET");
    snprintf(host, sizeof(host), "h:1");
    snprintf(name, sizeof(name), "X-A");
    const struct fl_field fields[] = {{fl_bytes_of(name), FL_BYTES("b")}};
    struct fl_fetch_request request = {
        .target = target_of(f, FL_WEB_HTTP1),
        .method = fl_bytes_of(method),
        .path = fl_bytes_of(path),
        .authority = fl_bytes_of(host),
        .fields = fields,
        .field_count = 1,
        .timeout_ms = timeout_ms,
        .max_body_bytes = max_body,
        .max_error_bytes = 10,
    };
    if (body != NULL) {
        fl_chain_push(&chain, fl_slice_copy(fl_bytes_of(body), NULL));
        request.body = &chain;
    }
    struct fl_fetch *fetch = fl_fetch_start(f->pool, f->loop, &request, on_done, fetched);
    fl_chain_fini(&chain);
    return fetch;
}

static void whole_answer_is_fetched(void **state)
{
    (void)state;
    struct fixture f;
    struct fetched fetched = {0};
    fixture_init(&f);
    fixture_listen(&f, true);
    start(&f, &fetched, "/echo", "{\"a\":1}", 5000, 100);
    assert_int_equal(fetched.calls, 0);
    TURN_UNTIL(&f, fetched.calls == 1);
    assert_int_equal(fetched.result.rc, 0);
    assert_int_equal(fetched.result.status, 200);
    assert_string_equal(fetched.body, "{\"a\":1}");
    assert_string_equal(fetched.field, "echo");
    assert_string_equal(f.requests[0].method, "POST");
    assert_string_equal(f.requests[0].authority, "h:1");
    fixture_fini(&f);
}

/* epp.md 9.1: the cap is checked on content-length first, then while reading; error bodies are cut
 */
static void body_caps_have_edges(void **state)
{
    (void)state;
    static const struct {
        const char *why, *answer;
        int rc, status;
        const char *body;
    } rows[] = {
        {"one below, by length", "200 OK\r\nContent-Length: 19\r\n\r\n1234567890123456789", 0, 200,
         "1234567890123456789"},
        {"at the cap, by length", "200 OK\r\nContent-Length: 20\r\n\r\n12345678901234567890", 0,
         200, "12345678901234567890"},
        {"one above: refused without reading", "200 OK\r\nContent-Length: 21\r\n\r\n", FL_ELIMIT,
         200, ""},
        {"at the cap, chunked",
         "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n14\r\n12345678901234567890\r\n0\r\n\r\n", 0,
         200, "12345678901234567890"},
        {"one above, chunked",
         "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n15\r\n123456789012345678901\r\n", FL_ELIMIT,
         200, ""},
        {"error below its cap", "500 No\r\nContent-Length: 9\r\n\r\n123456789", 0, 500,
         "123456789"},
        {"error at its cap", "500 No\r\nContent-Length: 10\r\n\r\n1234567890", 0, 500,
         "1234567890"},
        {"error above its cap is cut", "404 No\r\nContent-Length: 12\r\n\r\n1234567890ab", 0, 404,
         "1234567890"},
        {"redirect is not followed", "307 Go\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", 0, 307,
         ""},
        {"cut body", "200 OK\r\nContent-Length: 9\r\n\r\n1234", FL_ECLOSED, 200, "1234"},
        {"nonsense", "???\r\n\r\n", FL_EPROTO, 0, ""},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fixture f;
        static struct raw raws[8];
        struct fetched fetched = {0};
        memset(raws, 0, sizeof(raws));
        fixture_init(&f);
        fixture_listen(&f, false);
        raw_listen(&f, raws);
        start(&f, &fetched, "/", NULL, 5000, 20);
        TURN_UNTIL(&f, raws[0].fd > 0 && raw_has(&raws[0], "\r\n\r\n"));
        assert_true(raw_has(&raws[0], "X-A: b\r\n"));
        raw_send(&f, &raws[0], "HTTP/1.1 ");
        raw_send(&f, &raws[0], rows[i].answer);
        if (rows[i].rc == FL_ECLOSED)
            shutdown(raws[0].fd, SHUT_WR);
        TURN_UNTIL(&f, fetched.calls == 1);
        if (fetched.result.rc != rows[i].rc || fetched.result.status != rows[i].status)
            fail_msg("%s: rc %d, status %d", rows[i].why, fetched.result.rc, fetched.result.status);
        if (rows[i].rc != FL_ELIMIT)
            assert_string_equal(fetched.body, rows[i].body);
        raw_close(&raws[0]);
        fixture_fini(&f);
    }
}

/* epp.md 9.1: one limit over everything */
static void deadline_covers_everything(void **state)
{
    (void)state;
    static const char *const parts[] = {"", "HTTP/1.1 20", "HTTP/1.1 200 OK\r\n\r\nbegun"};
    for (size_t i = 0; i < FL_ARRAY_LEN(parts); i++) {
        struct fixture f;
        static struct raw raws[8];
        struct fetched fetched = {0};
        memset(raws, 0, sizeof(raws));
        fixture_init(&f);
        fixture_listen(&f, false);
        raw_listen(&f, raws);
        start(&f, &fetched, "/", NULL, 60, 100);
        TURN_UNTIL(&f, raws[0].fd > 0);
        raw_send(&f, &raws[0], parts[i]);
        TURN_UNTIL(&f, fetched.calls == 1);
        assert_int_equal(fetched.result.rc, FL_ETIMEOUT);
        TURN_UNTIL(&f, raw_ended(&raws[0]));
        raw_close(&raws[0]);
        fixture_fini(&f);
    }
}

/* epp.md 9.1: one retry, only when a reused connection was closed before any response byte */
static void only_a_silent_reused_connection_is_retried(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        bool reused;
        const char *last_words;
        bool retried;
    } rows[] = {
        {"reused, silent", true, "", true},
        {"reused, a byte came", true, "H", false},
        {"fresh, silent", false, "", false},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fixture f;
        static struct raw raws[8];
        struct fetched first = {0}, fetched = {0};
        memset(raws, 0, sizeof(raws));
        fixture_init(&f);
        fixture_listen(&f, false);
        raw_listen(&f, raws);
        int at = 0;
        if (rows[i].reused) {
            start(&f, &first, "/", NULL, 5000, 100);
            TURN_UNTIL(&f, raws[0].fd > 0 && raw_has(&raws[0], "\r\n\r\n"));
            raw_send(&f, &raws[0], "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            TURN_UNTIL(&f, first.calls == 1);
        }
        start(&f, &fetched, "/second", "body", 5000, 100);
        TURN_UNTIL(&f, raws[at].fd > 0 && raw_has(&raws[at], "/second"));
        raw_send(&f, &raws[at], rows[i].last_words);
        turn_some(&f);
        raw_close(&raws[at]);
        if (rows[i].retried) {
            TURN_UNTIL(&f, raws[1].fd > 0 && raw_has(&raws[1], "\r\n\r\nbody"));
            /* A second death is final. */
            raw_close(&raws[1]);
        }
        TURN_UNTIL(&f, fetched.calls == 1);
        if (fetched.result.rc != FL_ECLOSED)
            fail_msg("%s: %d", rows[i].why, fetched.result.rc);
        turn_some(&f);
        int accepted = 0;
        for (int k = 0; k < 8; k++)
            accepted += raws[k].fd != 0;
        assert_int_equal(accepted, rows[i].retried ? 2 : 1);
        fixture_fini(&f);
    }
}

static void refused_connection_is_told(void **state)
{
    (void)state;
    struct fixture f;
    struct fetched fetched = {0};
    fixture_init(&f);
    fixture_listen(&f, false);
    fl_listener_close(f.listener);
    f.listener = NULL;
    start(&f, &fetched, "/", NULL, 5000, 100);
    TURN_UNTIL(&f, fetched.calls == 1);
    assert_int_equal(fetched.result.rc, FL_ECONNECT);
    assert_int_equal(fetched.result.status, 0);
    assert_null(fetched.result.fields);
    fixture_fini(&f);
}

/* epp.md 9.1: the exchange is aborted; done is not called */
static void cancel_aborts_the_exchange(void **state)
{
    (void)state;
    for (int turns = 0; turns < 2; turns++) {
        struct fixture f;
        static struct raw raws[8];
        struct fetched fetched = {0};
        memset(raws, 0, sizeof(raws));
        fixture_init(&f);
        fixture_listen(&f, false);
        raw_listen(&f, raws);
        struct fl_fetch *fetch = start(&f, &fetched, "/", NULL, 5000, 100);
        if (turns > 0)
            TURN_UNTIL(&f, raws[0].fd > 0 && raw_has(&raws[0], "\r\n\r\n"));
        fl_fetch_cancel(fetch);
        turn_some(&f);
        assert_int_equal(fetched.calls, 0);
        if (turns > 0)
            TURN_UNTIL(&f, raw_ended(&raws[0]));
        raw_close(&raws[0]);
        fixture_fini(&f);
    }
}

/* A pool that is freed is told to the caller once, without a retry behind its back. */
static void freeing_the_pool_ends_a_fetch(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raws[8];
    struct fetched first = {0}, fetched = {0};
    memset(raws, 0, sizeof(raws));
    fixture_init(&f);
    fixture_listen(&f, false);
    raw_listen(&f, raws);
    start(&f, &first, "/", NULL, 5000, 100);
    TURN_UNTIL(&f, raws[0].fd > 0 && raw_has(&raws[0], "\r\n\r\n"));
    raw_send(&f, &raws[0], "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    TURN_UNTIL(&f, first.calls == 1);
    start(&f, &fetched, "/second", NULL, 5000, 100);
    fl_web_pool_free(f.pool);
    f.pool = NULL;
    assert_int_equal(fetched.calls, 1);
    assert_int_equal(fetched.result.rc, FL_ECANCELLED);
    raw_close(&raws[0]);
    fixture_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_answer_is_fetched),
        cmocka_unit_test(body_caps_have_edges),
        cmocka_unit_test(deadline_covers_everything),
        cmocka_unit_test(only_a_silent_reused_connection_is_retried),
        cmocka_unit_test(refused_connection_is_told),
        cmocka_unit_test(cancel_aborts_the_exchange),
        cmocka_unit_test(freeing_the_pool_ends_a_fetch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
