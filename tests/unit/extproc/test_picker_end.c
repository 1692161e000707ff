/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "unit/extproc/picker_stream.h"

/* ---- refusals ---- */

/* epp.md 6 */
static void errors_become_immediate_responses(void **state)
{
    (void)state;
#define JSON "content-type=application/json"
    static const struct {
        int code;
        uint32_t retry_after_s;
        const char *answer;
    } rows[] = {
        {FL_EEPP_NOT_READY, 0, "I(503,epp_not_ready " JSON " retry-after=1 x-request-id=r1) "},
        {FL_EDRAINING, 0,
         "I(503,shutting_down " JSON
         " retry-after=1 x-request-id=r1 x-llm-d-request-dropped-reason=rejected-shutting-down) "},
        {FL_ENO_ENDPOINTS, 0,
         "I(503,no_endpoints " JSON
         " x-request-id=r1 x-llm-d-request-dropped-reason=rejected-no-endpoints) "},
        {FL_EEPP_OVERLOADED, 0, "I(503,epp_overloaded " JSON " retry-after=1 x-request-id=r1) "},
        {FL_EBAD_BODY, 0, "I(400,invalid_request_body " JSON " x-request-id=r1) "},
        {FL_EMODEL_NOT_FOUND, 0, "I(404,model_not_found " JSON " x-request-id=r1) "},
        {FL_EBAD_HINT, 0, "I(400,invalid_routing_hint " JSON " x-request-id=r1) "},
        {FL_ETOKENIZER_REJECTED, 0, "I(400,tokenizer_rejected " JSON " x-request-id=r1) "},
        {FL_ETOKENIZER_UNAVAILABLE, 0, "I(503,tokenizer_unavailable " JSON " x-request-id=r1) "},
        {FL_ETOKENIZER_TIMEOUT, 0, "I(504,tokenizer_timeout " JSON " x-request-id=r1) "},
        {FL_ETOKENIZER, 0, "I(502,tokenizer_error " JSON " x-request-id=r1) "},
        {FL_EDECISION_TIMEOUT, 0, "I(504,decision_timeout " JSON " x-request-id=r1) "},
        {FL_EOVERLOADED, 7,
         "I(429,overloaded " JSON
         " retry-after=7 x-request-id=r1 x-llm-d-request-dropped-reason=rejected-saturated) "},
        {FL_EQUEUE_REJECTED, 0,
         "I(429,queue_rejected " JSON
         " retry-after=1 x-request-id=r1 x-llm-d-request-dropped-reason=rejected-saturated) "},
        {FL_EDEADLINE, 0,
         "I(429,queue_timeout " JSON
         " retry-after=1 x-request-id=r1 x-llm-d-request-dropped-reason=rejected-ttl-expired) "},
        {FL_ENOT_READY, 0, "I(503,selection_unavailable " JSON " x-request-id=r1) "},
        {FL_ECONFLICT, 0, "I(409,conflict " JSON " x-request-id=r1) "},
        {FL_EBAD_REQUEST, 0, "I(400,invalid_request " JSON " x-request-id=r1) "},
        {FL_EINTERNAL, 0, "I(500,internal " JSON " x-request-id=r1) "},
    };
#undef JSON

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct stream s;
        char expected[512];
        open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
        say_headers(&s, CHAT, false);
        say_body(&s, "{}", true);
        fl_picker_fail(&s.picker, rows[i].code, rows[i].retry_after_s);
        snprintf(expected, sizeof(expected), "%sEND(0) ", rows[i].answer);
        expect(&s, expected, "pick "); /* no cancel: the owner gave up itself */
        say_response(&s);
        expect(&s, "", ""); /* epp.md 10.4.8: no callbacks, no answers */
        close_stream(&s);
    }
}

/* epp.md 6: the body's bytes */
static void error_body_has_openai_shape(void **state)
{
    (void)state;
    struct stream s;
    struct fl_chain out = {0}, message;
    struct fl_extproc_response answer = {0};

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    s.inline_fail = FL_ENO_ENDPOINTS;
    say_headers(&s, CHAT, true);
    assert_int_equal(fl_picker_next(&s.picker, &out), FL_PICKER_MESSAGE);
    assert_true(wire_take(&out, &message));
    assert_int_equal(fl_extproc_response_read(&answer, &message), 0);
    assert_true(fl_chain_eq_bytes(
        &answer.body, FL_BYTES("{\"error\":{\"message\":\"no endpoints available\",\"type\":"
                               "\"server_error\",\"param\":null,\"code\":\"no_endpoints\"}}")));
    assert_true(fl_bytes_eq(answer.details, FL_BYTES("no_endpoints")));
    fl_extproc_response_fini(&answer);
    fl_chain_fini(&out);
    close_stream(&s);
}

/* epp.md 6: in the response phase never an ImmediateResponse */
static void a_failure_after_the_answer_ends_with_status_13(void **state)
{
    (void)state;
    struct stream s;

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    s.inline_answer = &ten_seven;
    say_headers(&s, CHAT, true);
    assert_false(fl_picker_can_refuse(&s.picker));
    fl_picker_fail(&s.picker, FL_EINTERNAL, 0);
    expect(&s, "END(13) ", "pick ");
    close_stream(&s);
}

/* epp.md 24.3 row 35, gaie.md 1.9 */
static void malformed_messages_end_with_status_3(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *wire;
        int status;
    } rows[] = {
        {"cut short", "12 05 0a", 3},
        {"field number 0", "00 00", 3},
        {"0xff in a key", "12 0a 0a08 0a06 0a01 ff 1a01'v'", 3},
        {"body without headers", "22 00", 9},
        {"trailers without headers", "32 00", 9},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct stream s;
        struct fl_chain message = wire_message(rows[i].wire, 100);
        char expected[16];
        open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
        fl_picker_feed(&s.picker, &message);
        snprintf(expected, sizeof(expected), "END(%d) ", rows[i].status);
        expect(&s, expected, "");
        close_stream(&s);
    }
}

static void a_malformed_message_during_a_pick_cancels_it(void **state)
{
    (void)state;
    struct stream s;
    struct fl_chain message = wire_message("00 00", 100);

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    say_headers(&s, CHAT, true);
    fl_picker_feed(&s.picker, &message);
    expect(&s, "END(3) ", "pick cancel ");
    close_stream(&s);
}

/* ---- ends ---- */

/* epp.md 4.4 */
static void half_close_and_reset_cancel_a_pick(void **state)
{
    (void)state;
    struct stream s;

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    say_headers(&s, CHAT, true);
    fl_picker_half_close(&s.picker);
    fl_picker_half_close(&s.picker);
    expect(&s, "END(0) ", "pick cancel ");
    close_stream(&s);
    expect(&s, "", "");

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    say_headers(&s, CHAT, true);
    close_stream(&s); /* the stream is reset */
    assert_string_equal(s.events, "pick cancel ");
}

static void what_is_queued_goes_out_before_the_end(void **state)
{
    (void)state;
    struct stream s;

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    s.inline_answer = &ten_seven;
    say_headers(&s, CHAT, false);
    say_body(&s, "{}", true);
    fl_picker_half_close(&s.picker);
    expect(&s, "H" PICKED "B(2,end) END(0) ", "pick ");
    close_stream(&s);
}

/* gaie.md 1.6, epp.md 4.3: an upstream or filter that answers early */
static void response_headers_before_the_pick_cancel_it(void **state)
{
    (void)state;
    struct stream s;

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    say_headers(&s, CHAT, false);
    say_body(&s, "{", false);
    say_response(&s);
    expect(&s, "RH ", ""); /* not routed: nobody is told */
    say_response_body(&s, "no", true);
    expect(&s, "RB(2,end) ", "");
    close_stream(&s);

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    say_headers(&s, CHAT, true);
    say_response(&s);
    expect(&s, "RH ", "pick cancel ");
    close_stream(&s);
}

/* gaie.md 1.3, epp.md 4.1 */
static void observability_mode_is_silent(void **state)
{
    (void)state;
    struct stream s;

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    say(&s, &(struct fl_extproc_request_out){.kind = FL_EXTPROC_REQUEST_HEADERS,
                                             .end_of_stream = true,
                                             .observability_mode = true});
    say_response(&s);
    say_response_body(&s, "x", true);
    expect(&s, "", "");
    fl_picker_half_close(&s.picker);
    expect(&s, "END(0) ", "");
    close_stream(&s);
}

/* ---- the response phase ---- */

static void response_trailers_end_the_response(void **state)
{
    (void)state;
    struct stream s;

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    s.inline_answer = &ten_seven;
    say_headers(&s, CHAT, true);
    expect(&s, "H" PICKED, "pick ");
    say(&s, &(struct fl_extproc_request_out){.kind = FL_EXTPROC_RESPONSE_HEADERS,
                                             .served = FL_BYTES("10.0.0.8:8000")});
    say_response_body(&s, "x", false);
    say_fields(&s, FL_EXTPROC_RESPONSE_TRAILERS, "t=1", false, NULL);
    expect(&s, "RH RB(1) RT ", "response(0) first body(1) end ");
    assert_string_equal(s.served, "10.0.0.8:8000"); /* epp.md 5.4 */
    close_stream(&s);
}

/* gaie.md 1.6: the last piece carries the end, a long piece is split */
static void response_bodies_are_echoed_in_pieces_of_62000(void **state)
{
    (void)state;
    struct stream s;
    uint8_t *bytes = calloc(1, 130000);

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    s.inline_answer = &ten_seven;
    say_headers(&s, CHAT, true);
    say_response(&s);
    expect(&s, "H" PICKED "RH ", "pick response(200) ");
    say_bytes(&s, FL_EXTPROC_RESPONSE_BODY, fl_bytes(bytes, 130000), false);
    say_bytes(&s, FL_EXTPROC_RESPONSE_BODY, fl_bytes(bytes, 0), true);
    s.events[0] = 0;
    expect(&s, "RB(62000) RB(62000) RB(6000) RB(0,end) ", "");
    close_stream(&s);
    free(bytes);
}

/* epp.md 4.2: 32 messages, then back-pressure */
static void the_queue_is_full_at_32(void **state)
{
    (void)state;
    struct stream s;

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    s.inline_answer = &ten_seven;
    say_headers(&s, CHAT, true);
    say_response(&s);
    for (int i = 2; i < FL_EXTPROC_QUEUE; i++) {
        assert_false(fl_picker_is_full(&s.picker));
        say_response_body(&s, "x", false);
    }
    assert_true(fl_picker_is_full(&s.picker));
    assert_true(hear_one(&s));
    assert_false(fl_picker_is_full(&s.picker));
    close_stream(&s);
}

/* Trailers fill the queue like anything else; a pick's answers find room behind them. */
static void a_flood_of_trailers_is_held_back(void **state)
{
    (void)state;
    struct stream s;

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    s.inline_answer = &ten_seven;
    say_headers(&s, CHAT, false);
    say_body(&s, "{}", true);
    while (!fl_picker_is_full(&s.picker))
        say_fields(&s, FL_EXTPROC_REQUEST_TRAILERS, "t=1", false, NULL);
    assert_int_equal(s.picker.queue_count, FL_EXTPROC_QUEUE);
    close_stream(&s);
}

static void an_empty_message_and_second_headers_are_told_and_ignored(void **state)
{
    (void)state;
    struct stream s;

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    say(&s, &(struct fl_extproc_request_out){0});
    expect(&s, "", "warn ");
    say_headers(&s, CHAT, false);
    say_headers(&s, CHAT, true);
    expect(&s, "", "warn ");
    close_stream(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_become_immediate_responses),
        cmocka_unit_test(error_body_has_openai_shape),
        cmocka_unit_test(a_failure_after_the_answer_ends_with_status_13),
        cmocka_unit_test(malformed_messages_end_with_status_3),
        cmocka_unit_test(a_malformed_message_during_a_pick_cancels_it),
        cmocka_unit_test(half_close_and_reset_cancel_a_pick),
        cmocka_unit_test(what_is_queued_goes_out_before_the_end),
        cmocka_unit_test(response_headers_before_the_pick_cancel_it),
        cmocka_unit_test(observability_mode_is_silent),
        cmocka_unit_test(response_trailers_end_the_response),
        cmocka_unit_test(response_bodies_are_echoed_in_pieces_of_62000),
        cmocka_unit_test(the_queue_is_full_at_32),
        cmocka_unit_test(a_flood_of_trailers_is_held_back),
        cmocka_unit_test(an_empty_message_and_second_headers_are_told_and_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
