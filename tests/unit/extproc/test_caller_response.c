/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "extproc/headers.h"
#include "unit/extproc/caller_call.h"

/* ---- the response phase ---- */

static void open_decided(struct call *call, enum fl_caller_tap tap)
{
    open_call(call, false, tap);
    hear_destination(call, FL_EXTPROC_REQUEST_HEADERS, "10.0.0.1:8000", NULL);
    fl_chain_fini(&call->out);
}

static void tell(struct call *call, size_t n, size_t waiting)
{
    uint8_t *bytes = calloc(1, n + 1);
    struct fl_slice slice = fl_slice_copy(fl_bytes(bytes, n), NULL);
    fl_caller_tell_body(&call->caller, &call->out, slice, waiting);
    fl_slice_unref(&slice);
    free(bytes);
}

/* gateway.md 9.8 item 1 */
static void the_response_head_is_told_with_status_twice_and_who_served(void **state)
{
    (void)state;
    struct call call;
    struct fl_chain message;
    struct fl_extproc_request request = {0};
    struct fl_bytes served;
    struct fl_fields fields = {0};

    open_decided(&call, FL_CALLER_TAP_EDGES);
    fl_fields_add(&fields, &call.arena, FL_BYTES("Content-Type"), FL_BYTES("text/event-stream"));
    fl_caller_tell_head(&call.caller, &call.out, 200, &fields, FL_BYTES("10.0.0.2:8000"));
    fl_caller_tell_head(&call.caller, &call.out, 200, &fields, FL_BYTES("10.0.0.2:8000"));
    assert_true(wire_take(&call.out, &message));
    assert_int_equal(call.out.bytes, 0); /* once */
    assert_int_equal(fl_extproc_request_read(&request, &message), 0);
    assert_int_equal(request.kind, FL_EXTPROC_RESPONSE_HEADERS);
    assert_false(request.end_of_stream);
    char text[128];
    describe_fields(&request.headers, text, sizeof(text));
    assert_string_equal(text, ":status=200;status=200;content-type=text/event-stream;");
    assert_int_equal(fl_extproc_read_served(request.metadata, &call.arena, &served), 0);
    assert_true(fl_bytes_eq(served, FL_BYTES("10.0.0.2:8000")));
    fl_extproc_request_fini(&request);
    close_call(&call);
}

/* gateway.md 9.8 items 2 and 4 */
static void the_tap_by_its_option(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        enum fl_caller_tap tap;
        size_t chunks[6]; /* 0 ends; 9999999 stands for an empty one */
        const char *told;
    } rows[] = {
        {"edges: no body at all", FL_CALLER_TAP_EDGES, {0}, "RH RB(0,end) "},
        {"edges: one chunk", FL_CALLER_TAP_EDGES, {100, 0}, "RH RB(100) RB(0,end) "},
        {"edges: an empty chunk is no first chunk",
         FL_CALLER_TAP_EDGES,
         {9999999, 5, 0},
         "RH RB(5) RB(0,end) "},
        {"edges: one chunk and 16 KiB arrive whole",
         FL_CALLER_TAP_EDGES,
         {100, 10000, 6384, 0},
         "RH RB(100) RB(16384) RB(0,end) "},
        {"edges: of more, the last 16 KiB",
         FL_CALLER_TAP_EDGES,
         {100, 50000, 10, 0},
         "RH RB(100) RB(16384) RB(0,end) "},
        {"edges: many small ones",
         FL_CALLER_TAP_EDGES,
         {1, 20, 20, 20, 20, 0},
         "RH RB(1) RB(80) RB(0,end) "},
        {"edges: a first chunk above 64 KiB is cut",
         FL_CALLER_TAP_EDGES,
         {70000, 0},
         "RH RB(65536) RB(4464) RB(0,end) "},
        {"all",
         FL_CALLER_TAP_ALL,
         {100, 9999999, 50000, 10, 0},
         "RH RB(100) RB(50000) RB(10) RB(0,end) "},
        {"first", FL_CALLER_TAP_FIRST, {9999999, 100, 50000, 10, 0}, "RH RB(100) RB(0,end) "},
        {"none", FL_CALLER_TAP_NONE, {100, 10, 0}, "RH RB(0,end) "},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct call call;
        const struct fl_fields none = {0};
        open_decided(&call, rows[i].tap);
        fl_caller_tell_head(&call.caller, &call.out, 200, &none, FL_BYTES("10.0.0.1:8000"));
        for (size_t k = 0; rows[i].chunks[k] != 0; k++)
            tell(&call, rows[i].chunks[k] == 9999999 ? 0 : rows[i].chunks[k], 0);
        fl_caller_tell_end(&call.caller, &call.out, 0);
        fl_caller_tell_end(&call.caller, &call.out, 0); /* exactly once */
        tell(&call, 10, 0);
        if (strcmp(told(&call), rows[i].told) != 0)
            fail_msg("row %zu: %s: %s", i, rows[i].why, call.told);
        close_call(&call);
    }
}

/* The tail is the true end of the body, and its memory stays bounded. */
static void the_tail_holds_the_last_bytes(void **state)
{
    (void)state;
    struct call call;
    const struct fl_fields none = {0};
    struct fl_chain message;
    struct fl_extproc_request request = {0};
    uint8_t last[FL_CALLER_TAIL_BYTES];
    uint32_t counter = 0;

    open_decided(&call, FL_CALLER_TAP_EDGES);
    fl_caller_tell_head(&call.caller, &call.out, 200, &none, FL_BYTES("10.0.0.1:8000"));
    tell(&call, 1, 0);
    for (int round = 0; round < 3000; round++) {
        uint8_t bytes[6000];
        size_t n = (size_t)(round % 7 == 0 ? 6000 : 1 + round % 90) / 4 * 4;
        for (size_t k = 0; k < n; k += 4, counter++)
            memcpy(bytes + k, &counter, 4);
        struct fl_slice slice = fl_slice_copy(fl_bytes(bytes, n), NULL);
        fl_caller_tell_body(&call.caller, &call.out, slice, 0);
        fl_slice_unref(&slice);
        assert_in_range(call.caller.tail.bytes, 0, FL_CALLER_TAIL_BYTES + 16384);
        assert_in_range(call.caller.tail.count, 0, 300);
    }
    fl_chain_fini(&call.out);
    fl_caller_tell_end(&call.caller, &call.out, 0);
    assert_true(wire_take(&call.out, &message));
    assert_int_equal(fl_extproc_request_read(&request, &message), 0);
    for (size_t k = 0; k < sizeof(last) / 4; k++) {
        uint32_t value = counter - (uint32_t)sizeof(last) / 4 + (uint32_t)k;
        memcpy(last + 4 * k, &value, 4);
    }
    assert_true(fl_chain_eq_bytes(&request.body, fl_bytes(last, sizeof(last))));
    fl_extproc_request_fini(&request);
    close_call(&call);
}

/* gateway.md 9.8: 1 MiB waiting at, below and above its edge */
static void a_slow_picker_cuts_the_tap_but_not_the_end(void **state)
{
    (void)state;
    for (size_t over = 0; over <= 2; over++) {
        struct call call;
        const struct fl_fields none = {0};
        open_decided(&call, FL_CALLER_TAP_ALL);
        fl_caller_tell_head(&call.caller, &call.out, 200, &none, FL_BYTES("10.0.0.1:8000"));
        tell(&call, 10, 0);
        tell(&call, 10, FL_CALLER_TAP_MAX - 11 + over);
        assert_int_equal(call.caller.is_tap_cut, over == 2);
        tell(&call, 10, 0); /* once cut, the rest is skipped */
        fl_caller_tell_end(&call.caller, &call.out, FL_CALLER_TAP_MAX);
        assert_string_equal(told(&call), over == 2 ? "RH RB(10) RB(0,end) "
                                                   : "RH RB(10) RB(10) RB(10) RB(0,end) ");
        close_call(&call);
    }
    /* The tail of `edges` likewise. */
    struct call call;
    const struct fl_fields none = {0};
    open_decided(&call, FL_CALLER_TAP_EDGES);
    fl_caller_tell_head(&call.caller, &call.out, 200, &none, FL_BYTES("10.0.0.1:8000"));
    tell(&call, 10, 0);
    tell(&call, 10, 0);
    fl_caller_tell_end(&call.caller, &call.out, FL_CALLER_TAP_MAX);
    assert_string_equal(told(&call), "RH RB(10) RB(0,end) ");
    assert_true(call.caller.is_tap_cut);
    close_call(&call);
}

/* gateway.md 9.8, last table */
static void answers_in_the_response_phase(void **state)
{
    (void)state;
    const struct fl_fields none = {0};
    struct call call;

    /* Mutations are read and dropped. */
    open_decided(&call, FL_CALLER_TAP_EDGES);
    fl_caller_tell_head(&call.caller, &call.out, 200, &none, FL_BYTES("10.0.0.1:8000"));
    hear_wire(&call, "12 0d 0a0b 1209 0a07 0a05 0a03'x-b'");
    hear_wire(&call, "22 0b 0a09 1a07 1a05 0a03'xyz'");
    assert_int_equal(call.caller.state, FL_CALLER_DECIDED);
    assert_false(call.caller.is_gone);
    /* An immediate response is an eviction. */
    hear_wire(&call, "3a12 0a03 08ad03 1a0b 'no endpoint'");
    assert_int_equal(call.caller.state, FL_CALLER_EVICTED);
    assert_int_equal(call.caller.immediate_status, 429);
    told(&call);
    fl_caller_tell_end(&call.caller, &call.out, 0);
    assert_string_equal(told(&call), "");
    close_call(&call);

    /* The stream ends right after the decision: the response goes on, nothing is told. */
    open_decided(&call, FL_CALLER_TAP_EDGES);
    fl_caller_hear_end(&call.caller, FL_ECLOSED);
    assert_decided(&call, "10.0.0.1:8000;");
    fl_caller_tell_head(&call.caller, &call.out, 200, &none, FL_BYTES("10.0.0.1:8000"));
    tell(&call, 10, 0);
    fl_caller_tell_end(&call.caller, &call.out, 0);
    assert_string_equal(told(&call), "");
    close_call(&call);

    /* Garbage likewise. */
    open_decided(&call, FL_CALLER_TAP_EDGES);
    hear_wire(&call, "00 00");
    assert_decided(&call, "10.0.0.1:8000;");
    assert_true(call.caller.is_gone);
    close_call(&call);
}

/* gateway.md 9.4: what a client must not be able to choose */
static void client_headers_are_stripped_before_the_question(void **state)
{
    (void)state;
    static const char *const stripped[] = {"x-gateway-destination-endpoint",
                                           "X-Gateway-Destination-Endpoint-Subset",
                                           "x-gateway-destination-endpoint-served",
                                           "x-prefiller-host-port",
                                           "x-prefiller-url",
                                           "x-encoder-hosts-ports",
                                           "x-data-parallel-host-port",
                                           "x-kv-cache-source-host-port"};
    struct fl_arena arena;
    struct fl_fields fields = {0};
    char text[256];

    fl_arena_init(&arena, 0);
    fl_fields_add(&fields, &arena, FL_BYTES("x-gateway-inference-objective"), FL_BYTES("o"));
    for (size_t i = 0; i < FL_ARRAY_LEN(stripped); i++) {
        fl_fields_add(&fields, &arena, fl_bytes_of(stripped[i]), FL_BYTES("6.6.6.6:6"));
        fl_fields_add(&fields, &arena, fl_bytes_of(stripped[i]), FL_BYTES("7.7.7.7:7"));
    }
    fl_extproc_strip_client(&fields);
    describe_fields(&fields, text, sizeof(text));
    assert_string_equal(text, "x-gateway-inference-objective=o;");
    fl_arena_fini(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_response_head_is_told_with_status_twice_and_who_served),
        cmocka_unit_test(the_tap_by_its_option),
        cmocka_unit_test(the_tail_holds_the_last_bytes),
        cmocka_unit_test(a_slow_picker_cuts_the_tap_but_not_the_end),
        cmocka_unit_test(answers_in_the_response_phase),
        cmocka_unit_test(client_headers_are_stripped_before_the_question),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
