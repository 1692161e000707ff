/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "unit/extproc/world.h"

/* ---- both ends together ---- */

/* epp.md 24.1, gateway.md 9.8 */
static void a_request_from_question_to_end(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 2, 62000, 70000, 1 << 20, 9 << 20};

    for (size_t i = 0; i < FL_ARRAY_LEN(sizes); i++) {
        struct world w;
        open_world(&w, SCRIPT_ANSWER, 0);
        ask(&w, true, 5000);
        upload(&w, sizes[i] / 2, false);
        upload(&w, sizes[i] - sizes[i] / 2, true);
        TURN_UNTIL(&w, w.decisions == 1);
        assert_state(&w, FL_CALLER_DECIDED, 0);
        struct fl_caller *caller = fl_extproc_call_caller(w.call);
        assert_string_equal(caller->candidates[0], "10.0.0.7:8000");
        assert_false(caller->is_body_replaced); /* the echo equals what was kept */
        /* The always removed names were not there; nothing of the request changes. */
        assert_false(caller->mutated.is_changed);
        assert_int_equal(w.asked_bytes, sizes[i]);
        assert_string_equal(w.id, "r1");

        tell_response(&w, 3);
        TURN_UNTIL(&w, w.tapped_bytes == 30);
        assert_int_equal(w.first_tokens, 1);
        assert_string_equal(w.served, "10.0.0.7:8000");
        fl_extproc_call_end(w.call);
        TURN_UNTIL(&w, w.closes == 1);
        assert_int_equal(w.end, FL_EXTPROC_END_DONE);
        assert_int_equal(w.ends, 1);
        assert_int_equal(w.cancels, 0);
        close_world(&w);
    }
}

/* One connection carries many streams; each asks for itself. */
static void streams_share_a_connection(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_ANSWER, 0);
    for (int i = 1; i <= 50; i++) {
        ask(&w, false, 5000);
        TURN_UNTIL(&w, w.decisions == 1);
        tell_response(&w, 1);
        fl_extproc_call_end(w.call);
        TURN_UNTIL(&w, w.closes == i);
        assert_int_equal(w.end, FL_EXTPROC_END_DONE);
    }
    assert_int_equal(w.picks, 50);
    assert_int_equal(fl_web_server_connections(w.web), 1);
    close_world(&w);
}

/* epp.md 6, gateway.md 9.6 */
static void a_refusal_arrives_as_an_immediate_response(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_REFUSE, 0);
    ask(&w, true, 5000);
    upload(&w, 1000, true);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_IMMEDIATE, 0);
    assert_int_equal(fl_extproc_call_caller(w.call)->immediate_status, 503);
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.closes == 1);
    assert_int_equal(w.end, FL_EXTPROC_END_REFUSED);
    close_world(&w);
}

/* A pick that takes its time is answered from outside any callback of the stream. */
static void a_late_answer_goes_out(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_HOLD, 0);
    ask(&w, true, 5000);
    upload(&w, 100000, true);
    TURN_UNTIL(&w, w.picks == 1);
    assert_int_equal(w.decisions, 0);
    fl_extproc_stream_answer(w.stream, &ten_seven);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_DECIDED, 0);
    fl_extproc_call_end(w.call); /* nothing was told: the stream is reset */
    TURN_UNTIL(&w, w.closes == 1);
    assert_int_equal(w.end, FL_EXTPROC_END_GONE);
    close_world(&w);
}

/* epp.md 24.3 rows 9 and 10, gateway.md 9.9 */
static void a_cancelled_call_cancels_the_pick(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_HOLD, 0);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.picks == 1);
    fl_extproc_call_cancel(w.call);
    TURN_UNTIL(&w, w.closes == 1);
    assert_int_equal(w.cancels, 1);
    assert_int_equal(w.decisions, 0);
    assert_int_equal(w.end, FL_EXTPROC_END_REFUSED);
    /* The connection is still good. */
    w.script = SCRIPT_ANSWER;
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    fl_extproc_call_cancel(w.call);
    TURN_UNTIL(&w, w.closes == 2);
    assert_int_equal(fl_web_server_connections(w.web), 1);
    close_world(&w);
}

/* gateway.md 9.1, 9.2: the deadline runs from the last byte of the request */
static void the_deadline_starts_with_the_last_byte(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_HOLD, 0);
    ask(&w, true, 60);
    upload(&w, 10, false);
    uint64_t slow_until = now_ms() + 200; /* an upload longer than the deadline */
    TURN_UNTIL(&w, now_ms() >= slow_until);
    assert_int_equal(w.decisions, 0);
    uint64_t began = now_ms();
    upload(&w, 10, true);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_in_range(now_ms() - began, 50, 2000);
    assert_state(&w, FL_CALLER_FAILED, FL_ETIMEOUT);
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.closes == 1); /* reset: the pick is cancelled */
    assert_int_equal(w.cancels, 1);
    close_world(&w);
}

/* epp.md 6: the end of the drain */
static void stopping_refuses_picks_and_cuts_responses(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_HOLD, 0);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.picks == 1);
    fl_extproc_server_stop(w.server);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_IMMEDIATE, 0);
    assert_int_equal(fl_extproc_call_caller(w.call)->immediate_status, 503);
    assert_int_equal(w.cancels, 1);
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.closes == 1);
    assert_int_equal(w.end, FL_EXTPROC_END_SHUTDOWN);

    w.script = SCRIPT_ANSWER;
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    tell_response(&w, 1);
    TURN_UNTIL(&w, w.responses == 1);
    fl_extproc_server_stop(w.server);
    TURN_UNTIL(&w, fl_extproc_call_grpc_status(w.call) == 14);
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.closes == 2);
    assert_int_equal(w.end, FL_EXTPROC_END_SHUTDOWN);
    close_world(&w);
}

/* Streams that are open when everything goes. */
static void freeing_the_server_closes_its_streams(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_HOLD, 0);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.picks == 1);
    fl_extproc_server_free(w.server);
    w.server = NULL;
    assert_int_equal(w.closes, 1);
    assert_int_equal(w.cancels, 1);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_int_equal(fl_extproc_call_caller(w.call)->state, FL_CALLER_FAILED);
    fl_extproc_call_cancel(w.call);
    close_world(&w);
}

/* ---- memory pressure: epp.md 12.4 ---- */

/* epp.md 12.4, 24.3 row 41 */
static void under_pressure_large_bodies_wait_and_are_refused(void **state)
{
    (void)state;
    struct world w;
    struct fl_extproc_server_figures figures;

    open_world(&w, SCRIPT_ANSWER, 8 << 20);
    /* Something else holds what is left of the budget. */
    struct fl_chunk *ballast = fl_chunk_new(7 << 20, &w.budget);
    assert_false(fl_budget_is_easy(&w.budget));
    ask(&w, true, 8000);
    uint64_t began = now_ms();
    upload(&w, 300000, true); /* declares no length */
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_IMMEDIATE, 0);
    assert_int_equal(fl_extproc_call_caller(w.call)->immediate_status, 503);
    assert_in_range(now_ms() - began, FL_EXTPROC_PAUSE_MS - 50, FL_EXTPROC_PAUSE_MS + 3000);
    fl_extproc_server_figures(w.server, &figures);
    assert_int_equal(figures.buffer_rejections, 1);
    assert_int_equal(w.picks, 0);
    fl_extproc_call_end(w.call);
    fl_chain_fini(&w.kept);

    /* A small one is served beside it. */
    fl_fields_add(&w.head.fields, &w.arena, FL_BYTES("content-length"), FL_BYTES("65536"));
    ask(&w, true, 5000);
    upload(&w, 65536, true);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_DECIDED, 0);
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.closes == 2);
    fl_chunk_unref(ballast);
    close_world(&w);
}

/* epp.md 12.4 */
static void a_paused_body_goes_on_when_memory_is_back(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_ANSWER, 8 << 20);
    struct fl_chunk *ballast = fl_chunk_new(7 << 20, &w.budget);
    ask(&w, true, 8000);
    upload(&w, 300000, true);
    uint64_t paused_until = now_ms() + 300;
    TURN_UNTIL(&w, now_ms() >= paused_until);
    assert_int_equal(w.picks, 0);
    fl_chunk_unref(ballast);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_DECIDED, 0);
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.closes == 1);
    close_world(&w);
}

/* ---- the picker's port as a stranger meets it ---- */

struct stranger {
    struct fl_exchange *x;
    int status, rc, closes;
    int grpc_status;
    struct fl_head *head;
    bool is_ended;
    size_t body_bytes;
};

static void stranger_on_head(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    struct stranger *s = owner;
    s->head = head;
    s->status = head->status;
    if (is_end) {
        s->is_ended = true;
        s->grpc_status = fl_grpc_read_status(head, NULL, fl_exchange_arena(x), NULL);
    }
}

static void stranger_on_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
{
    struct stranger *s = owner;
    s->body_bytes += slice.n;
    fl_exchange_consume(x, slice.n);
    fl_slice_unref(&slice);
}

static void stranger_on_end(void *owner, struct fl_exchange *x, const struct fl_fields *trailers)
{
    struct stranger *s = owner;
    s->is_ended = true;
    s->grpc_status = fl_grpc_read_status(s->head, trailers, fl_exchange_arena(x), NULL);
}

static void stranger_on_close(void *owner, struct fl_exchange *x, int rc)
{
    struct stranger *s = owner;
    (void)x;
    s->closes++;
    s->rc = rc;
    s->x = NULL;
}

static const struct fl_exchange_handler stranger_handler = {.on_head = stranger_on_head,
                                                            .on_body = stranger_on_body,
                                                            .on_end = stranger_on_end,
                                                            .on_close = stranger_on_close};

static void visit(struct world *w, struct stranger *s, const char *path, const char *content_type)
{
    const struct fl_web_target target = {
        .addr = w->addr, .protocol = FL_WEB_H2, .connect_timeout_ms = 5000};
    struct fl_head head = {.method = FL_BYTES("POST"),
                           .scheme = FL_BYTES("http"),
                           .authority = FL_BYTES("h"),
                           .target = fl_bytes_of(path),
                           .is_h2 = true,
                           .body = FL_BODY_STREAM,
                           .content_length = UINT64_MAX};

    *s = (struct stranger){.grpc_status = -1};
    s->x = fl_web_pool_open(w->pool, &target, false, &stranger_handler, s);
    head.arena = fl_exchange_arena(s->x);
    if (content_type != NULL)
        fl_fields_add(&head.fields, head.arena, FL_BYTES("content-type"),
                      fl_bytes_of(content_type));
    fl_exchange_send_head(s->x, &head, false);
}

/* gaie.md 1.1, 1.9 */
static void content_types_and_methods(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *path, *content_type;
        int status, grpc_status;
    } rows[] = {
        {"plain", FL_EXTPROC_PATH, "application/grpc", 200, 0},
        {"with its codec", FL_EXTPROC_PATH, "application/grpc+proto", 200, 0},
        {"no type", FL_EXTPROC_PATH, NULL, 415, -1},
        {"JSON", FL_EXTPROC_PATH, "application/json", 415, -1},
        {"another method", "/envoy.service.ext_proc.v3.ExternalProcessor/Other", "application/grpc",
         200, 12},
        {"another service", "/x.Y/Z", "application/grpc", 200, 12},
        {"a service that shares the port", "/grpc.health.v1.Health/Check", "application/grpc", 200,
         2},
    };
    struct world w;

    open_world(&w, SCRIPT_ANSWER, 0);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct stranger s;
        visit(&w, &s, rows[i].path, rows[i].content_type);
        fl_exchange_send_end(s.x, NULL);
        TURN_UNTIL(&w, s.closes == 1);
        if (s.status != rows[i].status ||
            (rows[i].grpc_status >= 0 && s.grpc_status != rows[i].grpc_status))
            fail_msg("row %zu: %s: %d, %d", i, rows[i].why, s.status, s.grpc_status);
    }
    close_world(&w);
}

/* gaie.md 1.1: the head comes before the first message */
static void the_response_head_is_sent_at_once(void **state)
{
    (void)state;
    struct world w;
    struct stranger s;

    open_world(&w, SCRIPT_ANSWER, 0);
    visit(&w, &s, FL_EXTPROC_PATH, "application/grpc");
    TURN_UNTIL(&w, s.status == 200);
    assert_int_equal(w.picks, 0);
    fl_exchange_abort(s.x, 8);
    TURN_UNTIL(&w, s.closes == 1 && w.closes == 1);
    assert_int_equal(w.end, FL_EXTPROC_END_REFUSED);
    close_world(&w);
}

/* gaie.md 1.9, 1.1; epp.md 4.6, 24.3 row 35 */
static void bad_frames_end_with_their_status(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *wire;
        int grpc_status;
        bool half_closes;
    } rows[] = {
        {"compressed", "01 00000002 1200", 12, false},
        {"a flag that is neither 0 nor 1", "02 00000002 1200", 3, false},
        {"4 MiB and a byte", "00 00400001", 8, false},
        {"malformed message", "00 00000002 0000", 3, false},
        {"mode not supported", "00 00000008 | 1200 5a04 0801 1004", 9, false},
        {"message cut short by half-close", "00 00000005 12", 3, true},
        {"prefix cut short by half-close", "00 0000", 3, true},
        {"nothing but a half-close", "", 0, true},
    };
    struct world w;

    open_world(&w, SCRIPT_ANSWER, 0);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct stranger s;
        uint8_t bytes[64];
        size_t n = wire_bytes(rows[i].wire, bytes, sizeof(bytes));
        visit(&w, &s, FL_EXTPROC_PATH, "application/grpc");
        if (n > 0)
            fl_exchange_send_body_copy(s.x, fl_bytes(bytes, n));
        if (rows[i].half_closes)
            fl_exchange_send_end(s.x, NULL);
        TURN_UNTIL(&w, s.is_ended);
        if (s.status != 200 || s.grpc_status != rows[i].grpc_status)
            fail_msg("row %zu: %s: %d", i, rows[i].why, s.grpc_status);
        if (!rows[i].half_closes && s.x != NULL)
            fl_exchange_send_end(s.x, NULL);
        TURN_UNTIL(&w, s.closes == 1 && w.closes == (int)i + 1);
        assert_int_equal(w.end,
                         rows[i].grpc_status == 0 ? FL_EXTPROC_END_REFUSED : FL_EXTPROC_END_FAILED);
    }
    /* The next stream on the same connection works. */
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_DECIDED, 0);
    fl_extproc_call_end(w.call);
    close_world(&w);
}

/* epp.md 12.4: answers nobody takes stop the reading; others go on */
static void a_proxy_that_takes_no_answers_is_held_back(void **state)
{
    (void)state;
    struct world w;
    struct stranger s;
    struct fl_chain out = {0};
    struct fl_slice slice;
    struct fl_fields none = {0};
    struct fl_extproc_server_figures figures;

    open_world(&w, SCRIPT_ANSWER, 0);
    visit(&w, &s, FL_EXTPROC_PATH, "application/grpc");
    fl_extproc_request_write(
        &out, &(struct fl_extproc_request_out){
                  .kind = FL_EXTPROC_REQUEST_HEADERS, .headers = &none, .end_of_stream = true});
    /* 8 MiB of response body come back as 8 MiB of answers, many more than the queues hold. The
     * stranger reads (its handler consumes), so all must arrive, whatever is held meanwhile. */
    uint8_t *bytes = calloc(1, 65536);
    struct fl_chain body = wire_chain(fl_bytes(bytes, 65536), 65536);
    for (int i = 0; i < 128; i++)
        fl_extproc_request_write(&out,
                                 &(struct fl_extproc_request_out){.kind = FL_EXTPROC_RESPONSE_BODY,
                                                                  .body = &body,
                                                                  .body_bytes = 65536,
                                                                  .end_of_stream = i == 127});
    while (fl_chain_pop(&out, &slice))
        fl_exchange_send_body(s.x, slice);
    TURN_UNTIL(&w, w.ends == 1);
    fl_exchange_send_end(s.x, NULL);
    TURN_UNTIL(&w, s.closes == 1);
    assert_int_equal(s.grpc_status, 0);
    assert_true(s.body_bytes > 128 * 65536);
    fl_extproc_server_figures(w.server, &figures);
    assert_int_equal(figures.messages, 129);
    assert_int_equal(figures.open_streams, 0);
    fl_chain_fini(&body);
    fl_chain_fini(&out);
    free(bytes);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_from_question_to_end),
        cmocka_unit_test(streams_share_a_connection),
        cmocka_unit_test(a_refusal_arrives_as_an_immediate_response),
        cmocka_unit_test(a_late_answer_goes_out),
        cmocka_unit_test(a_cancelled_call_cancels_the_pick),
        cmocka_unit_test(the_deadline_starts_with_the_last_byte),
        cmocka_unit_test(stopping_refuses_picks_and_cuts_responses),
        cmocka_unit_test(freeing_the_server_closes_its_streams),
        cmocka_unit_test(under_pressure_large_bodies_wait_and_are_refused),
        cmocka_unit_test(a_paused_body_goes_on_when_memory_is_back),
        cmocka_unit_test(content_types_and_methods),
        cmocka_unit_test(the_response_head_is_sent_at_once),
        cmocka_unit_test(bad_frames_end_with_their_status),
        cmocka_unit_test(a_proxy_that_takes_no_answers_is_held_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
