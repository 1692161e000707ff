/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "unit/extproc/caller_call.h"

/* ---- asking ---- */

/* gateway.md 9.2 */
static void the_first_message_holds_what_the_page_lists(void **state)
{
    (void)state;
    static const char *const expected[] = {
        ":method=POST", ":path=/v1/chat?x=1", ":authority=host:80", ":scheme=http",    "x-a=1",
        "accept=a",     "accept=b",           "x-empty=",           "content-length=2"};
    struct call call;
    struct fl_chain message;
    struct fl_extproc_request request = {0};
    struct fl_extproc_subset subset;

    open_call(&call, true, FL_CALLER_TAP_EDGES);
    assert_true(wire_take(&call.out, &message));
    assert_int_equal(fl_extproc_request_read(&request, &message), 0);
    assert_int_equal(request.kind, FL_EXTPROC_REQUEST_HEADERS);
    assert_false(request.end_of_stream);
    assert_false(request.has_protocol);
    assert_false(request.observability_mode);
    assert_int_equal(request.headers.count, FL_ARRAY_LEN(expected));
    for (size_t i = 0; i < FL_ARRAY_LEN(expected); i++) {
        char text[64];
        snprintf(text, sizeof(text), "%.*s=%.*s", FL_FMT(request.headers.items[i].name),
                 FL_FMT(request.headers.items[i].value));
        assert_string_equal(text, expected[i]);
    }
    assert_int_equal(fl_extproc_read_subset(request.metadata, &call.arena, &subset), 0);
    assert_int_equal(subset.count, 2);
    assert_true(fl_bytes_eq(subset.items[1], FL_BYTES("[fd00::1]:8000")));
    fl_extproc_request_fini(&request);
    close_call(&call);

    open_call(&call, false, FL_CALLER_TAP_EDGES);
    assert_true(wire_take(&call.out, &message));
    assert_int_equal(fl_extproc_request_read(&request, &message), 0);
    assert_true(request.end_of_stream);
    fl_extproc_request_fini(&request);
    close_call(&call);
}

/* gateway.md 9.2: --epp-send-protocol-config */
static void protocol_config_is_sent_on_demand_only(void **state)
{
    (void)state;
    const struct fl_caller_config config = {.max_body_bytes = CAP, .sends_protocol_config = true};
    const struct fl_bytes subset = FL_BYTES("10.0.0.1:8000");
    struct call call;
    struct fl_chain message;
    struct fl_extproc_request request = {0};

    open_call(&call, false, FL_CALLER_TAP_EDGES);
    fl_chain_fini(&call.out);
    fl_caller_fini(&call.caller);
    fl_caller_init(&call.caller, &config, &call.arena);
    fl_caller_ask(&call.caller, &call.out, &call.head, FL_BYTES("https"), NULL, &subset, 1);
    assert_true(wire_take(&call.out, &message));
    assert_int_equal(fl_extproc_request_read(&request, &message), 0);
    assert_true(request.has_protocol);
    assert_int_equal(request.protocol.request_body_mode, 4);
    assert_int_equal(request.protocol.response_body_mode, 4);
    assert_true(request.protocol.send_body_without_waiting);
    fl_extproc_request_fini(&request);
    close_call(&call);
}

/* gateway.md 9.2: chunks of at most 65,536 bytes, only the last has the end */
static void the_body_is_told_in_chunks_of_64_kib(void **state)
{
    (void)state;
    static const struct {
        size_t bytes;
        const char *told;
    } rows[] = {
        {0, "H B(0,end) "},
        {1, "H B(1,end) "},
        {65535, "H B(65535,end) "},
        {65536, "H B(65536,end) "},
        {65537, "H B(65536) B(1,end) "},
        {200000, "H B(65536) B(65536) B(65536) B(3392,end) "},
    };
    static uint8_t bytes[200000];

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        /* At once, and in pieces of 1,000 bytes as an upload comes. */
        for (int is_slow = 0; is_slow <= 1; is_slow++) {
            struct call call;
            size_t step = is_slow ? 1000 : rows[i].bytes + 1;
            open_call(&call, true, FL_CALLER_TAP_EDGES);
            for (size_t at = 0; at < rows[i].bytes; at += step)
                upload(&call, fl_bytes_head(fl_bytes(bytes, rows[i].bytes - at), step), false);
            upload(&call, FL_BYTES(""), true);
            upload(&call, FL_BYTES(""), true); /* harmless */
            assert_string_equal(told(&call), rows[i].told);
            close_call(&call);
        }
    }
}

/* ---- reading the answer ---- */

/* gateway.md 9.4 */
static void a_header_answer_decides_a_request_without_a_body(void **state)
{
    (void)state;
    struct call call;
    open_call(&call, false, FL_CALLER_TAP_EDGES);
    DESTINATION;
    assert_decided(&call, "10.0.0.1:8000;");
    assert_false(call.caller.mutated.is_changed);
    assert_false(call.caller.is_body_replaced);
    close_call(&call);
}

/* gateway.md 9.4 */
static void with_a_body_the_last_piece_decides(void **state)
{
    (void)state;
    struct call call;
    open_call(&call, true, FL_CALLER_TAP_EDGES);
    upload(&call, FL_BYTES("{\"model\":1}"), true);
    DESTINATION;
    assert_int_equal(call.caller.state, FL_CALLER_ASKING);
    PIECE("{\"mod", false);
    PIECE("", false);
    assert_int_equal(call.caller.state, FL_CALLER_ASKING);
    PIECE("el\":1}", true);
    assert_decided(&call, "10.0.0.1:8000;");
    assert_false(call.caller.is_body_replaced); /* what came back was the same */
    close_call(&call);
}

/* gateway.md 9.4: compared as it streams, stored from the first byte that differs */
static void a_body_that_comes_back_changed_replaces_the_kept_one(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *pieces[3];
        bool is_replaced;
    } rows[] = {
        {"equal, other cuts", {"abcdefg", "h", "ij"}, false},
        {"first byte differs", {"Xbc", "defghi", "j"}, true},
        {"last byte differs", {"abc", "defghi", "X"}, true},
        {"a byte in the middle of a piece", {"abc", "deXghi", "j"}, true},
        {"longer", {"abc", "defghij", "k"}, true},
        {"shorter", {"abc", "defghi", ""}, true},
        {"empty", {"", "", ""}, true},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct call call;
        char whole[64] = "";
        open_call(&call, true, FL_CALLER_TAP_EDGES);
        upload(&call, FL_BYTES("abcd"), false);
        upload(&call, FL_BYTES("efg"), false);
        upload(&call, FL_BYTES("hij"), true);
        DESTINATION;
        for (int k = 0; k < 3; k++) {
            PIECE(rows[i].pieces[k], k == 2);
            snprintf(whole + strlen(whole), sizeof(whole) - strlen(whole), "%s", rows[i].pieces[k]);
        }
        assert_decided(&call, "10.0.0.1:8000;");
        if (call.caller.is_body_replaced != rows[i].is_replaced)
            fail_msg("row %zu: %s", i, rows[i].why);
        if (rows[i].is_replaced && !fl_chain_eq_bytes(&call.caller.new_body, fl_bytes_of(whole)))
            fail_msg("row %zu: %s: wrong bytes", i, rows[i].why);
        close_call(&call);
    }
}

/* Nothing is stored while what comes back is equal. */
static void an_echo_is_not_stored(void **state)
{
    (void)state;
    struct call call;
    open_call(&call, true, FL_CALLER_TAP_EDGES);
    upload(&call, FL_BYTES("abcdefghij"), true);
    PIECE("abcdefghi", false);
    assert_int_equal(call.caller.new_body.bytes, 0);
    PIECE("X", false);
    assert_int_equal(call.caller.new_body.bytes, 10);
    /* The equal part is the kept body's own memory. */
    assert_ptr_equal(fl_chain_at(&call.caller.new_body, 0).p, fl_chain_at(&call.kept, 0).p);
    close_call(&call);
}

/* gateway.md 9.4 */
static void whole_body_changes_decide(void **state)
{
    (void)state;
    struct call call;

    open_call(&call, true, FL_CALLER_TAP_EDGES);
    upload(&call, FL_BYTES("abc"), true);
    DESTINATION;
    hear_body(&call, FL_EXTPROC_BODY_REPLACED, "xyz", false);
    assert_decided(&call, "10.0.0.1:8000;");
    assert_true(call.caller.is_body_replaced);
    assert_true(fl_chain_eq_bytes(&call.caller.new_body, FL_BYTES("xyz")));
    close_call(&call);

    open_call(&call, true, FL_CALLER_TAP_EDGES);
    upload(&call, FL_BYTES("abc"), true);
    DESTINATION;
    hear_body(&call, FL_EXTPROC_BODY_REPLACED, "abc", false);
    assert_false(call.caller.is_body_replaced);
    assert_decided(&call, "10.0.0.1:8000;");
    close_call(&call);

    open_call(&call, true, FL_CALLER_TAP_EDGES);
    upload(&call, FL_BYTES("abc"), true);
    DESTINATION;
    PIECE("abX", false);
    hear_body(&call, FL_EXTPROC_BODY_CLEARED, "", false);
    assert_decided(&call, "10.0.0.1:8000;");
    assert_true(call.caller.is_body_replaced);
    assert_int_equal(call.caller.new_body.bytes, 0);
    close_call(&call);

    /* In the header answer: CONTINUE_AND_REPLACE. */
    open_call(&call, true, FL_CALLER_TAP_EDGES);
    upload(&call, FL_BYTES("abc"), true);
    hear_wire(&call, "0a 0b 0a09 0801 1a05 0a03'xyz'");
    assert_decided(&call, "");
    assert_true(fl_chain_eq_bytes(&call.caller.new_body, FL_BYTES("xyz")));
    close_call(&call);
}

/* gateway.md 9.4, gaie.md 14: the lightweight picker of GAIE v1.6.0 */
static void plain_body_answers_are_counted_per_message(void **state)
{
    (void)state;
    static uint8_t bytes[140000];
    struct call call;

    /* Three messages: two plain answers before the header answer, the third behind it. */
    open_call(&call, true, FL_CALLER_TAP_EDGES);
    upload(&call, fl_bytes(bytes, sizeof(bytes)), true);
    PLAIN;
    PLAIN;
    assert_int_equal(call.caller.state, FL_CALLER_ASKING);
    DESTINATION;
    assert_int_equal(call.caller.state, FL_CALLER_ASKING);
    PLAIN;
    assert_decided(&call, "10.0.0.1:8000;");
    assert_false(call.caller.is_body_replaced);
    close_call(&call);

    /* A known destination ends the wait at the next plain answer. */
    open_call(&call, true, FL_CALLER_TAP_EDGES);
    upload(&call, fl_bytes(bytes, sizeof(bytes)), true);
    DESTINATION;
    PLAIN;
    assert_decided(&call, "10.0.0.1:8000;");
    close_call(&call);

    /* Without any destination the answer to the last message ends it. */
    open_call(&call, true, FL_CALLER_TAP_EDGES);
    upload(&call, fl_bytes(bytes, sizeof(bytes)), true);
    PLAIN;
    PLAIN;
    assert_int_equal(call.caller.state, FL_CALLER_ASKING);
    PLAIN;
    assert_decided(&call, "");
    close_call(&call);

    /* While the upload goes on, no plain answer is the last one. */
    open_call(&call, true, FL_CALLER_TAP_EDGES);
    upload(&call, fl_bytes(bytes, 70000), false);
    PLAIN;
    PLAIN;
    assert_int_equal(call.caller.state, FL_CALLER_ASKING);
    upload(&call, FL_BYTES(""), true);
    PLAIN;
    assert_decided(&call, "");
    close_call(&call);

    /* BUFFERED pickers put everything on the body answer. */
    open_call(&call, true, FL_CALLER_TAP_EDGES);
    upload(&call, FL_BYTES("{}"), true);
    hear_wire(&call, "0a 02 0a00");
    hear_destination(&call, FL_EXTPROC_REQUEST_BODY, "10.0.0.1:8000", NULL);
    assert_decided(&call, "10.0.0.1:8000;");
    close_call(&call);
}

/* gateway.md 9.4 */
static void destination_header_and_metadata(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *header, *metadata, *candidates;
        bool is_conflict;
    } rows[] = {
        {"both, equal", "1.1.1.1:1", "1.1.1.1:1", "1.1.1.1:1;", false},
        {"both, different: the header wins", "1.1.1.1:1", "2.2.2.2:2", "1.1.1.1:1;", true},
        {"header alone", "1.1.1.1:1", NULL, "1.1.1.1:1;", false},
        {"metadata alone", NULL, "2.2.2.2:2", "2.2.2.2:2;", false},
        {"neither", NULL, NULL, "", false},
        {"spaces around commas", " 1.1.1.1:1 ,\t2.2.2.2:2", NULL, "1.1.1.1:1;2.2.2.2:2;", false},
        {"empty items and repeats", "1.1.1.1:1,,1.1.1.1:1,2.2.2.2:2", NULL, "1.1.1.1:1;2.2.2.2:2;",
         false},
        {"malformed items: no port, no host, no address, ports out of range, a scheme",
         "1.1.1.1,:80,pod:80,1.1.1.1:0,1.1.1.1:65536,1.1.1.1:+1,http://1.1.1.1:1,2.2.2.2:65535",
         NULL, "2.2.2.2:65535;", false},
        {"IPv6 in brackets, any spelling", "[FD00:0:0::1]:80,fd00::1:80,[fd00::1]", NULL,
         "[fd00::1]:80;", false},
        {"at most four", "1.1.1.1:1,1.1.1.1:2,1.1.1.1:3,1.1.1.1:4,1.1.1.1:5", NULL,
         "1.1.1.1:1;1.1.1.1:2;1.1.1.1:3;1.1.1.1:4;", false},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct call call;
        open_call(&call, false, FL_CALLER_TAP_EDGES);
        hear_destination(&call, FL_EXTPROC_REQUEST_HEADERS, rows[i].header, rows[i].metadata);
        assert_decided(&call, rows[i].candidates);
        if (call.caller.is_destination_conflict != rows[i].is_conflict)
            fail_msg("row %zu: %s", i, rows[i].why);
        close_call(&call);
    }
}

/* gateway.md 9.4: a new body at, below and above --max-body-bytes */
static void a_new_body_is_capped(void **state)
{
    (void)state;
    static uint8_t bytes[CAP + 1];

    for (size_t n = CAP - 1; n <= CAP + 1; n++) {
        struct call call;
        struct fl_chain body = wire_chain(fl_bytes(bytes, n), 50000);
        open_call(&call, true, FL_CALLER_TAP_EDGES);
        upload(&call, FL_BYTES("x"), true);
        DESTINATION;
        hear(&call, &(struct fl_extproc_response_out){.kind = FL_EXTPROC_REQUEST_BODY,
                                                      .body_change = FL_EXTPROC_BODY_PIECE,
                                                      .body = &body,
                                                      .body_bytes = n,
                                                      .end_of_stream = true});
        assert_int_equal(call.caller.state, n <= CAP ? FL_CALLER_DECIDED : FL_CALLER_FAILED);
        assert_int_equal(call.caller.rc, n <= CAP ? 0 : FL_ETOO_LARGE);
        fl_chain_fini(&body);
        close_call(&call);
    }
}

/* ---- failures ---- */

/* gateway.md 9.4, 9.7 */
static void unusable_answers_fail(void **state)
{
    (void)state;
    struct call call;

    open_call(&call, true, FL_CALLER_TAP_EDGES);
    hear_wire(&call, "0a 05 00");
    assert_int_equal(call.caller.state, FL_CALLER_FAILED);
    assert_int_equal(call.caller.rc, FL_EPROTO);
    DESTINATION; /* nothing changes a failure */
    assert_int_equal(call.caller.state, FL_CALLER_FAILED);
    close_call(&call);

    open_call(&call, true, FL_CALLER_TAP_EDGES);
    fl_caller_hear_end(&call.caller, FL_ECLOSED);
    assert_int_equal(call.caller.state, FL_CALLER_FAILED);
    assert_int_equal(call.caller.rc, FL_ECLOSED);
    close_call(&call);
}

/* gateway.md 9.4: other kinds, timer and mode overrides are ignored */
static void other_answers_are_ignored_while_asking(void **state)
{
    (void)state;
    static const char *const wires[] = {"12 02 0a00", "22 02 0a00", "2a 00", "32 00",
                                        "52 02 0801", "4a 02 0801", "",      "fa07 01 ff"};
    struct call call;

    open_call(&call, false, FL_CALLER_TAP_EDGES);
    for (size_t i = 0; i < FL_ARRAY_LEN(wires); i++) {
        hear_wire(&call, wires[i]);
        assert_int_equal(call.caller.state, FL_CALLER_ASKING);
    }
    PIECE("x", true); /* a body answer where no body was sent */
    assert_int_equal(call.caller.state, FL_CALLER_ASKING);
    DESTINATION;
    assert_decided(&call, "10.0.0.1:8000;");
    close_call(&call);
}

/* gateway.md 9.6 */
static void immediate_responses_are_relayed(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *wire;
        int status;
        const char *fields, *body;
    } rows[] = {
        {"503 with text", "3a12 0a03 08f703 1a0b 'no endpoint'", 503, "content-type=text/plain;",
         "no endpoint"},
        {"a body that looks like JSON", "3a09 0a03 08ad03 1a02 '{}'", 429,
         "content-type=application/json;", "{}"},
        {"no status", "3a00", 500, "content-type=text/plain;", ""},
        {"below 200", "3a05 0a03 08c701", 500, "content-type=text/plain;", ""},
        {"200", "3a05 0a03 08c801", 200, "content-type=text/plain;", ""},
        {"599", "3a05 0a03 08d704", 599, "content-type=text/plain;", ""},
        {"600", "3a05 0a03 08d804", 500, "content-type=text/plain;", ""},
        {"headers, without pseudo, framing and invalid ones",
         "3a4d 0a03 08ad03 1246"
         "0a0f 0a0d 0a0b'retry-after' "
         "0a12 0a10 0a0e'content-length' "
         "0a0c 0a0a 0a05':path' 1a01'/' "
         "0a0b 0a09 0a04'bad ' 1a01'v' "
         "0a04 0a02 0a00",
         429, "retry-after=;content-type=text/plain;", ""},
        {"its own content type", "3a1c 0a03 08ad03 1215 0a13 0a11 0a0c'Content-Type' 1a01'x'", 429,
         "Content-Type=x;", ""},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct call call;
        char fields[256];
        open_call(&call, true, FL_CALLER_TAP_EDGES);
        hear_wire(&call, rows[i].wire);
        describe_fields(&call.caller.immediate_fields, fields, sizeof(fields));
        if (call.caller.state != FL_CALLER_IMMEDIATE ||
            call.caller.immediate_status != rows[i].status || strcmp(fields, rows[i].fields) != 0 ||
            !fl_chain_eq_bytes(&call.caller.immediate_body, fl_bytes_of(rows[i].body)))
            fail_msg("row %zu: %s: state %d rc %d status %d %s", i, rows[i].why,
                     (int)call.caller.state, call.caller.rc, call.caller.immediate_status, fields);
        close_call(&call);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_message_holds_what_the_page_lists),
        cmocka_unit_test(protocol_config_is_sent_on_demand_only),
        cmocka_unit_test(the_body_is_told_in_chunks_of_64_kib),
        cmocka_unit_test(a_header_answer_decides_a_request_without_a_body),
        cmocka_unit_test(with_a_body_the_last_piece_decides),
        cmocka_unit_test(a_body_that_comes_back_changed_replaces_the_kept_one),
        cmocka_unit_test(an_echo_is_not_stored),
        cmocka_unit_test(whole_body_changes_decide),
        cmocka_unit_test(plain_body_answers_are_counted_per_message),
        cmocka_unit_test(destination_header_and_metadata),
        cmocka_unit_test(a_new_body_is_capped),
        cmocka_unit_test(unusable_answers_fail),
        cmocka_unit_test(other_answers_are_ignored_while_asking),
        cmocka_unit_test(immediate_responses_are_relayed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
