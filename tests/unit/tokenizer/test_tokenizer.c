/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "fake/backend.h"

#define WAIT_MS 10000
#define BODY "{\"messages\":[{\"role\":\"user\",\"content\":\"hi \\u00e9\"}] }\n"

struct fixture {
    struct fl_loop *loop;
    struct fake_backend peer;
    struct fl_tokenizer *tokenizer;
    struct fl_chain body;
    int answers, rc, status;
    size_t count;
    uint32_t first;
};

static void open_fixture(struct fixture *f, uint64_t timeout_ms)
{
    char url[128];
    *f = (struct fixture){.loop = fl_loop_new(0)};
    fake_backend_start(&f->peer, f->loop, "render");
    snprintf(url, sizeof(url), "http://%s/base/?q#f", f->peer.address);
    struct fl_tokenizer_config config = {.protocol = FL_TOKENIZER_VLLM_RENDER,
                                         .url = url,
                                         .timeout_ms = timeout_ms,
                                         .max_response_bytes = 16 << 20,
                                         .max_idle = 4};
    assert_int_equal(fl_tokenizer_new(f->loop, &config, &f->tokenizer, NULL), 0);
    fl_chain_push(&f->body, fl_slice_copy(FL_BYTES(BODY), NULL));
}

static void close_fixture(struct fixture *f)
{
    fl_chain_fini(&f->body);
    fl_tokenizer_free(f->tokenizer);
    fake_backend_stop(&f->peer);
    fl_loop_free(f->loop);
}

static void on_answer(void *owner, struct fl_tokenize_answer *answer)
{
    struct fixture *f = owner;
    f->answers++;
    f->rc = answer->rc;
    f->status = answer->status;
    f->count = answer->tokens.count;
    f->first = answer->tokens.count > 0 ? answer->tokens.ids[0] : 0;
}

static struct fl_tokenize_call *ask(struct fixture *f, bool is_chat)
{
    return fl_tokenizer_ask(f->tokenizer, is_chat, &f->body, FL_BYTES("r-1"), on_answer, f);
}

#define TURN_UNTIL(f, condition)                                                                   \
    do {                                                                                           \
        uint64_t deadline_ = fl_clock_ns() + UINT64_C(1000000) * WAIT_MS;                          \
        while (!(condition)) {                                                                     \
            if (fl_clock_ns() > deadline_)                                                         \
                fail_msg("%s:%d: waited in vain for: %s", __FILE__, __LINE__, #condition);         \
            fl_loop_turn((f)->loop, 5);                                                            \
        }                                                                                          \
    } while (0)

/* epp.md 9.1 (base path kept, query and fragment cleared; body byte for byte; the three headers) */
static void the_request_is_the_clients_body_byte_for_byte(void **state)
{
    (void)state;
    struct fixture f;
    char value[128];
    open_fixture(&f, 5000);
    f.peer.reply = "HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n{\"token_ids\":[7,8]}";
    ask(&f, true);
    assert_int_equal(f.answers, 0);
    TURN_UNTIL(&f, f.answers == 1);
    assert_int_equal(f.rc, 0);
    assert_int_equal(f.count, 2);
    assert_int_equal(f.first, 7);
    assert_int_equal(strncmp(f.peer.head, "POST /base/v1/chat/completions/render HTTP/1.1\r\n", 48),
                     0);
    assert_true(fl_bytes_eq(fl_buf_bytes(&f.peer.body), FL_BYTES(BODY)));
    assert_true(fake_backend_header(&f.peer, "content-type", value, sizeof(value)));
    assert_string_equal(value, "application/json");
    assert_true(fake_backend_header(&f.peer, "x-request-id", value, sizeof(value)));
    assert_string_equal(value, "r-1");
    ask(&f, false);
    TURN_UNTIL(&f, f.answers == 2);
    assert_int_equal(strncmp(f.peer.head, "POST /base/v1/completions/render ", 33), 0);
    assert_int_equal(f.peer.accepted, 1); /* kept alive */
    close_fixture(&f);
}

/* epp.md 9.3, 9.4, 24.3 row 8 */
static void answers_become_codes(void **state)
{
    (void)state;
    static const struct {
        const char *why, *reply;
        int rc, status;
    } rows[] = {
        {"bad JSON", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{x}", FL_ETOKENIZER, 200},
        {"ids absent", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", FL_ETOKENIZER, 200},
        {"400", "HTTP/1.1 400 Bad\r\nContent-Length: 2\r\n\r\nno", FL_ETOKENIZER_REJECTED, 400},
        {"404", "HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno", FL_ETOKENIZER, 404},
        {"422", "HTTP/1.1 422 No\r\nContent-Length: 0\r\n\r\n", FL_ETOKENIZER_REJECTED, 422},
        {"429", "HTTP/1.1 429 No\r\nContent-Length: 0\r\n\r\n", FL_ETOKENIZER_UNAVAILABLE, 429},
        {"500", "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", FL_ETOKENIZER, 500},
        {"503", "HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", FL_ETOKENIZER_UNAVAILABLE, 503},
        {"17 MiB declared", "HTTP/1.1 200 OK\r\nContent-Length: 17825792\r\n\r\n", FL_ETOKENIZER,
         200},
        {"no HTTP", "SSH-2.0-nope\r\n\r\n", FL_ETOKENIZER, 0},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fixture f;
        open_fixture(&f, 5000);
        f.peer.reply = rows[i].reply;
        ask(&f, true);
        TURN_UNTIL(&f, f.answers == 1);
        if (f.rc != rows[i].rc || f.status != rows[i].status)
            fail_msg("row %zu: %s: rc %d status %d", i, rows[i].why, f.rc, f.status);
        close_fixture(&f);
    }
}

/* epp.md 9.4, 24.3 row 8 (closes: 503; refused: 503) */
static void a_peer_that_is_not_there_is_unavailable(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 5000);
    f.peer.mode = FAKE_BACKEND_CLOSE;
    ask(&f, true);
    TURN_UNTIL(&f, f.answers == 1);
    assert_int_equal(f.rc, FL_ETOKENIZER_UNAVAILABLE);
    fake_backend_stop(&f.peer);
    ask(&f, true);
    TURN_UNTIL(&f, f.answers == 2);
    assert_int_equal(f.rc, FL_ETOKENIZER_UNAVAILABLE);
    close_fixture(&f);
}

/* epp.md 9.4, 24.3 row 8 (silent: 504) */
static void a_silent_peer_times_out(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 50);
    f.peer.mode = FAKE_BACKEND_HOLD;
    ask(&f, true);
    TURN_UNTIL(&f, f.answers == 1);
    assert_int_equal(f.rc, FL_ETOKENIZER_TIMEOUT);
    TURN_UNTIL(&f, f.peer.cut == 1);
    close_fixture(&f);
}

/* epp.md 24.3 row 9 (the tokenizer's connection is aborted; no answer comes any more) */
static void cancel_aborts_the_exchange_at_every_point(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 5000);
    f.peer.mode = FAKE_BACKEND_HOLD;
    fl_tokenize_cancel(NULL);
    fl_tokenize_cancel(ask(&f, true)); /* while the name is looked up */
    struct fl_tokenize_call *call = ask(&f, true);
    TURN_UNTIL(&f, f.peer.requests == 1);
    fl_tokenize_cancel(call);
    TURN_UNTIL(&f, f.peer.cut == 1);
    assert_int_equal(f.answers, 0);
    close_fixture(&f);
}

/* epp.md 9.1 */
static void urls_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *url;
        int rc;
    } rows[] = {{"http://h", 0},      {"https://h:1/x?y#z", 0}, {"http://[::1]:80", 0},
                {"h:80", FL_ECONFIG}, {"ftp://h", FL_ECONFIG},  {"http://", FL_ECONFIG},
                {"", FL_ECONFIG}};
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        if (fl_tokenizer_check_url(rows[i].url, NULL) != rows[i].rc)
            fail_msg("row %zu: %s", i, rows[i].url);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_request_is_the_clients_body_byte_for_byte),
        cmocka_unit_test(answers_become_codes),
        cmocka_unit_test(a_peer_that_is_not_there_is_unavailable),
        cmocka_unit_test(a_silent_peer_times_out),
        cmocka_unit_test(cancel_aborts_the_exchange_at_every_point),
        cmocka_unit_test(urls_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
