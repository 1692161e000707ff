/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "unit/extproc/world.h"

/* ---- our client and other pickers ---- */

/* gateway.md 9.4, 9.7: each is outcome error, and the next question is asked afresh */
static void pickers_that_do_not_answer(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        enum script script;
        int rc;
    } rows[] = {
        {"stream ends with an error", SCRIPT_CLOSE, FL_ECLOSED},
        {"stream ends with OK", SCRIPT_CLOSE_OK, FL_ECLOSED},
        {"garbage", SCRIPT_GARBAGE, FL_EPROTO},
        {"a message above the cap", SCRIPT_HUGE, FL_ELIMIT},
        {"no gRPC at all", SCRIPT_NOT_GRPC, FL_ECLOSED},
        {"unknown method", SCRIPT_TRAILERS_ONLY, FL_ECLOSED},
        {"silence", SCRIPT_SILENT, FL_ETIMEOUT},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct world w;
        open_world(&w, rows[i].script, 0);
        ask(&w, false, rows[i].script == SCRIPT_SILENT ? 50 : 5000);
        TURN_UNTIL(&w, w.decisions == 1);
        struct fl_caller *caller = fl_extproc_call_caller(w.call);
        if (caller->state != FL_CALLER_FAILED || caller->rc != rows[i].rc)
            fail_msg("row %zu: %s: %d", i, rows[i].why, caller->rc);
        fl_extproc_call_end(w.call);
        TURN_UNTIL(&w, w.raw_closes == 1);
        w.script = SCRIPT_ANSWER;
        ask(&w, false, 5000);
        TURN_UNTIL(&w, w.decisions == 1);
        assert_state(&w, FL_CALLER_DECIDED, 0);
        fl_extproc_call_end(w.call);
        close_world(&w);
    }
}

static void a_reset_stream_is_a_failure(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_RESET, 0);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_int_equal(fl_extproc_call_caller(w.call)->state, FL_CALLER_FAILED);
    fl_extproc_call_cancel(w.call);
    close_world(&w);
}

/* gateway.md 9.1: what the peer never processed is asked again, once, body and all */
static void a_refused_stream_is_asked_again_once(void **state)
{
    (void)state;
    struct world w;
    struct fl_extproc_peer_figures figures;

    open_world(&w, SCRIPT_REFUSED_ONCE, 0);
    ask(&w, true, 5000);
    upload(&w, 100000, true);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_DECIDED, 0);
    assert_int_equal(w.asked_bytes, 100000);
    fl_extproc_peer_figures(w.peer, &figures);
    assert_int_equal(figures.retries, 1);
    fl_extproc_call_cancel(w.call);

    w.script = SCRIPT_REFUSED;
    fl_chain_fini(&w.kept);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_FAILED, FL_EREFUSED);
    fl_extproc_peer_figures(w.peer, &figures);
    assert_int_equal(figures.retries, 2);
    fl_extproc_call_end(w.call);
    close_world(&w);
}

/* gateway.md 9.8: a clean end right after the decision does not matter */
static void a_picker_may_leave_after_its_decision(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_DECIDE_AND_END, 0);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_DECIDED, 0);
    TURN_UNTIL(&w, fl_extproc_call_grpc_status(w.call) == 0);
    tell_response(&w, 2);
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.raw_closes == 1);
    assert_int_equal(w.evictions, 0);
    close_world(&w);
}

/* gateway.md 9.6: an immediate response after the decision is an eviction */
static void an_eviction_is_told(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_DECIDE_THEN_EVICT, 0);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    tell_response(&w, 1);
    TURN_UNTIL(&w, w.evictions == 1);
    struct fl_caller *caller = fl_extproc_call_caller(w.call);
    assert_int_equal(caller->state, FL_CALLER_EVICTED);
    assert_int_equal(caller->immediate_status, 429);
    assert_true(fl_chain_eq_bytes(&caller->immediate_body, FL_BYTES("evict")));
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.raw_closes == 1);
    close_world(&w);
}

/* gateway.md 9.8 item 4: at most 2 s for the picker to finish, then reset */
static void a_picker_that_does_not_finish_is_reset(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_DECIDE_THEN_EVICT, 0);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    w.script = SCRIPT_SILENT; /* from now on it says nothing */
    tell_response(&w, 1);
    uint64_t began = now_ms();
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.raw_has_end);
    TURN_UNTIL(&w, w.raw_closes == 1);
    assert_in_range(now_ms() - began, FL_EXTPROC_FINISH_MS - 50, FL_EXTPROC_FINISH_MS + 3000);
    close_world(&w);
}

/* gateway.md 9.1: reconnect; a restarted picker serves again within 1 s */
static void a_dead_picker_fails_fast_and_serves_again_when_it_is_back(void **state)
{
    (void)state;
    struct world w;
    struct fl_extproc_peer_figures figures;

    open_world(&w, SCRIPT_ANSWER, 0);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    fl_extproc_call_cancel(w.call);
    /* The process dies: connections and listener go. */
    fl_extproc_server_free(w.server);
    w.server = NULL;
    fl_web_server_free(w.web);
    w.web = NULL;
    fl_listener_close(w.listener);
    w.listener = NULL;
    fl_loop_turn(w.loop, 5);

    int failures = 0;
    for (uint64_t until = now_ms() + 300; now_ms() < until; failures++) {
        ask(&w, false, 5000);
        TURN_UNTIL(&w, w.decisions == 1);
        assert_int_equal(fl_extproc_call_caller(w.call)->state, FL_CALLER_FAILED);
        fl_extproc_call_end(w.call);
    }
    fl_extproc_peer_figures(w.peer, &figures);
    assert_true(figures.dial_failures >= 1);
    /* Most failed without a dial. */
    assert_true(failures > 3 * (int)figures.dial_failures);

    const struct fl_extproc_server_config config = {
        .picker = {.body_mode = FL_EXTPROC_BODY_FULL_DUPLEX, .max_body_bytes = 10 << 20}};
    struct fl_addr addr = w.addr;
    open_listener(&w, &addr);
    open_web(&w);
    w.server = fl_extproc_server_new(w.loop, &config, &server_ops, &w);
    uint64_t back = now_ms();
    for (;;) {
        ask(&w, false, 5000);
        TURN_UNTIL(&w, w.decisions == 1);
        bool is_served = fl_extproc_call_caller(w.call)->state == FL_CALLER_DECIDED;
        fl_extproc_call_cancel(w.call);
        if (is_served)
            break;
        assert_true(now_ms() - back < 1000);
    }
    close_world(&w);
}

/* gateway.md 9.1: two silent deadlines in a row drop the connection */
static void two_silent_deadlines_drop_the_connection(void **state)
{
    (void)state;
    struct world w;
    struct fl_extproc_peer_figures figures;

    open_world(&w, SCRIPT_SILENT, 0);
    for (int i = 0; i < FL_EXTPROC_SILENT_MAX; i++) {
        ask(&w, false, 30);
        TURN_UNTIL(&w, w.decisions == 1);
        assert_state(&w, FL_CALLER_FAILED, FL_ETIMEOUT);
        fl_extproc_call_end(w.call);
        TURN_UNTIL(&w, w.raw_closes == i + 1);
    }
    fl_extproc_peer_figures(w.peer, &figures);
    assert_int_equal(figures.silent_deadlines, 2);
    TURN_UNTIL(&w, fl_web_server_connections(w.web) == 0);
    w.script = SCRIPT_ANSWER;
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_DECIDED, 0);
    assert_int_equal(fl_web_server_connections(w.web), 1);
    fl_extproc_call_end(w.call);
    close_world(&w);
}

/* gateway.md 9.1: GOAWAY. Streams under way finish, new ones go to a new connection. */
static void a_draining_picker_finishes_its_streams(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_HOLD, 0);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.picks == 1);
    fl_web_server_drain(w.web); /* GOAWAY */
    for (int i = 0; i < 5; i++)
        fl_loop_turn(w.loop, 1);
    fl_extproc_stream_answer(w.stream, &ten_seven);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_DECIDED, 0);
    tell_response(&w, 1);
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.closes == 1);
    assert_int_equal(w.end, FL_EXTPROC_END_DONE);
    close_world(&w);
}

/* Cancelled at every turn of a request's life; nothing leaks, the server's books close. */
static void cancelled_at_any_moment(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_ANSWER, 0);
    for (int turns = 0; turns < 40; turns++) {
        ask(&w, true, 5000);
        upload(&w, 150000, true);
        for (int i = 0; i < turns; i++)
            fl_loop_turn(w.loop, 0);
        if (w.decisions == 1 && fl_extproc_call_caller(w.call)->state == FL_CALLER_DECIDED)
            tell_response(&w, 2);
        fl_extproc_call_cancel(w.call);
        fl_chain_fini(&w.kept);
    }
    /* A request behind them all on the same connection: when it is through, they are. */
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_DECIDED, 0);
    tell_response(&w, 1);
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.closes == w.streams_seen && w.end == FL_EXTPROC_END_DONE);
    assert_in_range(w.streams_seen, 2, 41);
    struct fl_extproc_server_figures figures;
    fl_extproc_server_figures(w.server, &figures);
    assert_int_equal(figures.open_streams, 0);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pickers_that_do_not_answer),
        cmocka_unit_test(a_reset_stream_is_a_failure),
        cmocka_unit_test(a_refused_stream_is_asked_again_once),
        cmocka_unit_test(a_picker_may_leave_after_its_decision),
        cmocka_unit_test(an_eviction_is_told),
        cmocka_unit_test(a_picker_that_does_not_finish_is_reset),
        cmocka_unit_test(a_dead_picker_fails_fast_and_serves_again_when_it_is_back),
        cmocka_unit_test(two_silent_deadlines_drop_the_connection),
        cmocka_unit_test(a_draining_picker_finishes_its_streams),
        cmocka_unit_test(cancelled_at_any_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
