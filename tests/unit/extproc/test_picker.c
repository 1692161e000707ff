/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "extproc/headers.h"
#include "unit/extproc/picker_stream.h"

/* ---- the request phase ---- */

/* epp.md 24.1 */
static void streaming_chat_as_the_page_has_it(void **state)
{
    (void)state;
    static const struct fl_extproc_protocol protocol = {4, 4, true};
    struct stream s;

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    say_fields(&s, FL_EXTPROC_REQUEST_HEADERS, CHAT, false, &protocol);
    expect(&s, "", ""); /* full duplex: no answer yet */
    say_body(&s, "{\"model\":\"m\",\"str", false);
    expect(&s, "", "");
    say_body(&s, "eam\":true}", true);
    expect(&s, "", "pick ");
    assert_string_equal(s.path, "/v1/chat/completions");
    assert_string_equal(s.id, "r1");
    assert_string_equal(s.subset, "all");
    fl_picker_answer(&s.picker, &ten_seven);
    expect(&s, "H" PICKED "B(27,end) ", "");
    assert_true(fl_chain_eq_bytes(&s.echoed, FL_BYTES("{\"model\":\"m\",\"stream\":true}")));

    say_response(&s);
    expect(&s, "RH ", "response(200) ");
    say_response_body(&s, "", false);
    expect(&s, "RB(0) ", ""); /* an empty chunk is no token */
    say_response_body(&s, "data: {}\n\n", false);
    expect(&s, "RB(10) ", "first body(10) ");
    say_response_body(&s, "data: [DONE]\n\n", true);
    expect(&s, "RB(14,end) ", "body(14) end ");
    fl_picker_half_close(&s.picker);
    expect(&s, "END(0) ", "");
    expect(&s, "", "");
    close_stream(&s);
}

/* epp.md 24.3 rows 4 and 5, 4.6: chunking of the echo */
static void the_body_is_echoed_in_pieces_of_62000(void **state)
{
    (void)state;
    static const struct {
        size_t bytes;
        const char *answers;
    } rows[] = {
        {0, "B(0,end) "},
        {1, "B(1,end) "},
        {61999, "B(61999,end) "},
        {62000, "B(62000,end) "},
        {62001, "B(62000) B(1,end) "},
        {200000, "B(62000) B(62000) B(62000) B(14000,end) "},
    };
    uint8_t *bytes = malloc(200000);
    for (size_t i = 0; i < 200000; i++)
        bytes[i] = (uint8_t)(i * 31 >> 3);

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct stream s;
        char expected[256];
        open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
        s.inline_answer = &ten_seven;
        say_headers(&s, CHAT, false);
        say_bytes(&s, FL_EXTPROC_REQUEST_BODY, fl_bytes(bytes, rows[i].bytes), true);
        snprintf(expected, sizeof(expected), "H%s%s", PICKED, rows[i].answers);
        expect(&s, expected, "pick ");
        assert_true(fl_chain_eq_bytes(&s.echoed, fl_bytes(bytes, rows[i].bytes)));
        close_stream(&s);
    }
    free(bytes);
}

/* epp.md 4.2: body answers are cut as the queue drains, not queued at once */
static void pieces_are_cut_one_at_a_time(void **state)
{
    (void)state;
    struct stream s;
    uint8_t *bytes = calloc(1, 1 << 20);

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    s.inline_answer = &ten_seven;
    say_headers(&s, CHAT, false);
    say_bytes(&s, FL_EXTPROC_REQUEST_BODY, fl_bytes(bytes, 1 << 20), true);
    assert_int_equal(s.picker.queue_count, 2); /* header answer, body */
    assert_true(hear_one(&s));
    assert_true(hear_one(&s));
    assert_int_equal(s.picker.queue_count, 1);
    assert_int_equal(s.picker.queue[s.picker.queue_first].bytes.bytes, (1 << 20) - 62000);
    close_stream(&s);
    free(bytes);
}

/* epp.md 24.3 row 3 */
static void a_thousand_one_byte_chunks_give_one_pick(void **state)
{
    (void)state;
    struct stream s;

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    s.inline_answer = &ten_seven;
    say_headers(&s, CHAT, false);
    for (int i = 0; i < 999; i++) {
        say_body(&s, "x", false);
        assert_false(hear_one(&s));
    }
    say_body(&s, "x", true);
    expect(&s, "H" PICKED "B(1000,end) ", "pick ");
    close_stream(&s);
}

/* epp.md 4.3: headers that end the request */
static void a_request_without_a_body_gets_a_header_answer_alone(void **state)
{
    (void)state;
    for (int32_t mode = FL_EXTPROC_BODY_BUFFERED; mode <= FL_EXTPROC_BODY_FULL_DUPLEX; mode += 2) {
        struct stream s;
        open_stream(&s, mode);
        s.inline_answer = &ten_seven;
        say_headers(&s, ":method=GET\n:path=/v1/models\nx-request-id=r1", true);
        expect(&s, "H" PICKED, "pick ");
        say_body(&s, "late", true); /* gaie.md 1.6: no body answer may follow */
        expect(&s, "", "warn ");
        close_stream(&s);
    }
}

/* gaie.md 3, epp.md 4.3: trailers end the body */
static void trailers_end_the_request_body(void **state)
{
    (void)state;
    struct stream s;

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    say_headers(&s, CHAT, false);
    say_body(&s, "{}", false);
    say_fields(&s, FL_EXTPROC_REQUEST_TRAILERS, "t=1", false, NULL);
    expect(&s, "", "pick ");
    fl_picker_answer(&s.picker, &ten_seven);
    expect(&s, "H" PICKED "B(2) T ", "");
    close_stream(&s);

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    s.inline_answer = &ten_seven;
    say_headers(&s, CHAT, false);
    say_fields(&s, FL_EXTPROC_REQUEST_TRAILERS, "t=1", false, NULL);
    expect(&s, "H" PICKED "T ", "pick ");
    close_stream(&s);

    /* Trailers behind a body that ended: during the pick, and after it. */
    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    say_headers(&s, CHAT, false);
    say_body(&s, "{}", true);
    say_fields(&s, FL_EXTPROC_REQUEST_TRAILERS, "t=1", false, NULL);
    fl_picker_answer(&s.picker, &ten_seven);
    expect(&s, "H" PICKED "B(2,end) T ", "pick ");
    say_fields(&s, FL_EXTPROC_REQUEST_TRAILERS, "t=1", false, NULL);
    expect(&s, "T ", "");
    close_stream(&s);
}

/* gaie.md 1.6: envoy#46237 */
static void a_duplicate_end_of_the_body_is_ignored(void **state)
{
    (void)state;
    struct stream s;

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    say_headers(&s, CHAT, false);
    say_body(&s, "{}", true);
    say_body(&s, "{}", true);
    expect(&s, "", "pick warn ");
    fl_picker_answer(&s.picker, &ten_seven);
    say_body(&s, "{}", true); /* told once */
    expect(&s, "H" PICKED "B(2,end) ", "");
    close_stream(&s);
}

/* epp.md 4.1, 24.3 row 49 */
static void buffered_answers_headers_at_once_and_all_on_the_body(void **state)
{
    (void)state;
    struct stream s;
    uint8_t *bytes = calloc(1, 200000);

    open_stream(&s, FL_EXTPROC_BODY_BUFFERED);
    say_headers(&s, CHAT, false);
    expect(&s, "H ", "");
    say_bytes(&s, FL_EXTPROC_REQUEST_BODY, fl_bytes(bytes, 200000), true);
    expect(&s, "", "pick ");
    assert_int_equal(s.body_bytes, 200000);
    fl_picker_answer(&s.picker, &ten_seven);
    expect(&s, "B" PICKED, "");
    say_response(&s);
    /* One answer for the whole body, without a mutation; its arrival is the prefill edge. */
    say_bytes(&s, FL_EXTPROC_RESPONSE_BODY, fl_bytes(bytes, 70000), true);
    expect(&s, "RH RB- ",
           "response(200) first body(16384) body(16384) body(16384) body(16384) body(4464) end ");
    close_stream(&s);

    /* With trailers behind it the single body message carries no end. */
    open_stream(&s, FL_EXTPROC_BODY_BUFFERED);
    s.inline_answer = &ten_seven;
    say_headers(&s, CHAT, false);
    say_body(&s, "{}", false);
    say_fields(&s, FL_EXTPROC_REQUEST_TRAILERS, "t=1", false, NULL);
    expect(&s, "H B" PICKED "T ", "pick ");
    close_stream(&s);

    /* Trailers without a body leave no message for the decision. */
    open_stream(&s, FL_EXTPROC_BODY_BUFFERED);
    say_headers(&s, CHAT, false);
    say_fields(&s, FL_EXTPROC_REQUEST_TRAILERS, "t=1", false, NULL);
    expect(&s,
           "H I(400,invalid_request_body content-type=application/json x-request-id=r1) END(0) ",
           "");
    close_stream(&s);
    free(bytes);
}

/* epp.md 4.1, 24.3 rows 1 and 2 */
static void protocol_agreement(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        struct fl_extproc_protocol protocol;
        bool is_accepted;
        const char *events;  /* of the first message */
        const char *message; /* of status 9 */
    } rows[] = {
        {"full duplex both ways", {4, 4, true}, true, "", ""},
        {"BUFFERED, full duplex", {2, 4, true}, true, "", ""},
        {"full duplex, BUFFERED", {4, 2, true}, true, "warn ", ""},
        {"BUFFERED both ways, waiting", {2, 2, false}, true, "warn ", ""},
        {"full duplex, waiting: one warning (#13686)", {4, 4, false}, true, "warn ", ""},
        {"STREAMED",
         {1, 4, true},
         false,
         "",
         "protocol_config.request_body_mode is STREAMED (1): set FULL_DUPLEX_STREAMED (4) or "
         "BUFFERED (2)"},
        {"NONE for the response",
         {4, 0, true},
         false,
         "",
         "protocol_config.response_body_mode is NONE (0): set FULL_DUPLEX_STREAMED (4) or BUFFERED "
         "(2)"},
        {"BUFFERED_PARTIAL",
         {3, 4, true},
         false,
         "",
         "protocol_config.request_body_mode is BUFFERED_PARTIAL (3): set FULL_DUPLEX_STREAMED (4) "
         "or BUFFERED (2)"},
        {"GRPC",
         {5, 4, true},
         false,
         "",
         "protocol_config.request_body_mode is GRPC (5): set FULL_DUPLEX_STREAMED (4) or BUFFERED "
         "(2)"},
        {"an unknown number",
         {4, 99, true},
         false,
         "",
         "protocol_config.response_body_mode is unknown (99): set FULL_DUPLEX_STREAMED (4) or "
         "BUFFERED (2)"},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct stream s;
        bool is_buffered = rows[i].protocol.request_body_mode == FL_EXTPROC_BODY_BUFFERED;
        open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
        say_fields(&s, FL_EXTPROC_REQUEST_HEADERS, CHAT, false, &rows[i].protocol);
        expect(&s, !rows[i].is_accepted ? "END(9) " : is_buffered ? "H " : "", rows[i].events);
        assert_string_equal(s.picker.grpc_message, rows[i].message);
        close_stream(&s);
    }
}

/* epp.md 4.6: caps of one message by mode */
static void message_cap_follows_the_mode(void **state)
{
    (void)state;
    static const struct fl_extproc_protocol buffered = {2, 4, true};
    struct stream s;

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    s.config.max_body_bytes = 10 << 20;
    assert_int_equal(fl_picker_max_message(&s.picker), 4 << 20);
    say_fields(&s, FL_EXTPROC_REQUEST_HEADERS, CHAT, false, &buffered);
    assert_int_equal(fl_picker_max_message(&s.picker), 11 << 20);
    close_stream(&s);
    open_stream(&s, FL_EXTPROC_BODY_BUFFERED);
    s.config.max_body_bytes = 10 << 20;
    assert_int_equal(fl_picker_max_message(&s.picker), 11 << 20);
    close_stream(&s);
}

/* epp.md 4.6: the request body at, below and above its cap */
static void body_cap(void **state)
{
    (void)state;
    for (size_t n = 99; n <= 101; n++) {
        for (size_t first = 0; first <= 60; first += 60) {
            struct stream s;
            uint8_t bytes[128] = {0};
            open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
            s.config.max_body_bytes = 100;
            say_headers(&s, CHAT, false);
            say_bytes(&s, FL_EXTPROC_REQUEST_BODY, fl_bytes(bytes, first), false);
            say_bytes(&s, FL_EXTPROC_REQUEST_BODY, fl_bytes(bytes, n - first), true);
            if (n <= 100)
                expect(&s, "", "pick ");
            else
                expect(&s,
                       "I(413,request_too_large content-type=application/json x-request-id=r1) "
                       "END(0) ",
                       "");
            say_body(&s, "more", true); /* nothing after the end */
            expect(&s, "", n <= 100 ? "warn " : "");
            close_stream(&s);
        }
    }
}

/* ---- headers ---- */

/* epp.md 5.1, 24.3 row 6; gaie.md 7 */
static void spoofed_headers_are_hidden_and_removed(void **state)
{
    (void)state;
    struct stream s;

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    s.inline_answer = &ten_seven;
    say_headers(&s,
                CHAT
                "\nX-Prefiller-Host-Port=1.1.1.1:1\nx-gateway-destination-endpoint=2.2.2.2:2\n"
                "x-gateway-destination-endpoint-served=3\nx-gateway-destination-endpoint-subset=4\n"
                "x-prefiller-url=5\nx-data-parallel-host-port=6\nx-encoder-hosts-ports=7\n"
                "x-kv-cache-source-host-port=8\nx-llm-d-slo-ttft-ms=9\nx-other=10",
                true);
    /* 6 always; carried: prefiller-url, data-parallel, encoder, kv-cache-source, slo */
    expect(&s, "H{x-gateway-destination-endpoint=10.0.0.7:8000 -11 meta=10.0.0.7:8000 clear} ",
           "pick ");
    assert_int_equal(s.header_count, 4 + 2); /* the slo header is input; what is unknown stays */
    close_stream(&s);
}

/* epp.md 5.2 */
static void a_prefill_endpoint_is_set_and_then_not_removed(void **state)
{
    (void)state;
    static const struct fl_field debug = {{(const uint8_t *)"x-a", 3}, {(const uint8_t *)"b", 1}};
    const struct fl_picker_decision decision = {.endpoint = FL_BYTES("[fd00::7]:8000"),
                                                .prefill = FL_BYTES("10.0.1.3:8000"),
                                                .extras = &debug,
                                                .extra_count = 1};
    struct stream s;

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    s.inline_answer = &decision;
    say_headers(&s, CHAT "\nx-prefiller-host-port=6.6.6.6:6", true);
    expect(&s,
           "H{x-gateway-destination-endpoint=[fd00::7]:8000 x-prefiller-host-port=10.0.1.3:8000 "
           "x-a=b -5 meta=[fd00::7]:8000 clear} ",
           "pick ");
    close_stream(&s);
}

/* epp.md 4.5, 24.3 row 40 */
static void request_id_is_kept_or_minted(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *headers;
        bool is_kept;
    } rows[] = {
        {"kept", "x-request-id=r-1._Z", true},
        {"absent", "a=b", false},
        {"empty", "x-request-id=", false},
        {"a blank", "x-request-id=a b", false},
        {"128 long",
         "x-request-id="
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         true},
        {"129 long",
         "x-request-id="
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         false},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct stream s;
        char expected[512];
        open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
        s.inline_answer = &ten_seven;
        say_headers(&s, rows[i].headers, true);
        if (rows[i].is_kept) {
            assert_string_equal(s.id, strchr(rows[i].headers, '=') + 1);
            expect(&s, "H" PICKED, "pick ");
        } else {
            assert_int_equal(strlen(s.id), 36);
            assert_int_equal(s.id[14], '4'); /* UUID version */
            snprintf(expected, sizeof(expected),
                     "H{x-gateway-destination-endpoint=10.0.0.7:8000 x-request-id=%s -6 "
                     "meta=10.0.0.7:8000 clear} ",
                     s.id);
            expect(&s, expected, "pick ");
            assert_true(fl_bytes_eq(fl_picker_request_id(&s.picker), fl_bytes_of(s.id)));
        }
        close_stream(&s);
    }
}

/* epp.md 7.5, 24.3 row 28 */
static void metadata_headers_at_and_above_their_limits(void **state)
{
    (void)state;
    static char text[2 * 65536];

    for (int count = 63; count <= 65; count++) {
        struct stream s;
        int at = snprintf(text, sizeof(text), "%s", CHAT);
        for (int i = 0; i < count; i++)
            at += snprintf(text + at, sizeof(text) - (size_t)at, "\nX-Dynamo-Meta-k%d=v", i);
        /* Not counted: repeated, authorization, bearer. */
        snprintf(text + at, sizeof(text) - (size_t)at,
                 "\nx-dynamo-meta-K0=w\nx-dynamo-meta-authorization=a\nx-dynamo-meta-z=Bearer x");
        open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
        say_headers(&s, text, true);
        if (count <= FL_EXTPROC_METADATA_MAX)
            expect(&s, "", "pick ");
        else
            expect(&s,
                   "I(431,metadata_headers_too_large content-type=application/json "
                   "x-request-id=r1) END(0) ",
                   "");
        close_stream(&s);
    }
    for (size_t bytes = 65535; bytes <= 65537; bytes++) {
        struct stream s;
        int at = snprintf(text, sizeof(text), "%s\nx-dynamo-meta-k=", CHAT);
        memset(text + at, 'v', bytes - 1);
        text[(size_t)at + bytes - 1] = 0;
        open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
        say_headers(&s, text, true);
        expect(&s,
               bytes <= FL_EXTPROC_METADATA_MAX_BYTES
                   ? ""
                   : "I(431,metadata_headers_too_large content-type=application/json "
                     "x-request-id=r1) END(0) ",
               bytes <= FL_EXTPROC_METADATA_MAX_BYTES ? "pick " : "");
        close_stream(&s);
    }
}

/* ---- candidates ---- */

static void say_hint(struct stream *s, enum fl_extproc_kind kind, const char *item, bool is_end)
{
    const struct fl_bytes subset[] = {fl_bytes_of(item)};
    struct fl_chain body = wire_chain(FL_BYTES("{}"), 2);
    say(s, &(struct fl_extproc_request_out){.kind = kind,
                                            .body = &body,
                                            .body_bytes = kind == FL_EXTPROC_REQUEST_BODY ? 2 : 0,
                                            .end_of_stream = is_end,
                                            .has_subset = true,
                                            .subset = subset,
                                            .subset_count = 1});
    fl_chain_fini(&body);
}

/* gaie.md 2.1: the last hint before the pick stands */
static void the_last_subset_hint_stands(void **state)
{
    (void)state;
    struct stream s;

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    say_hint(&s, FL_EXTPROC_REQUEST_HEADERS, "a:1", false);
    say_body(&s, "{}", true);
    expect(&s, "", "pick ");
    assert_string_equal(s.subset, "a:1;");
    close_stream(&s);

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    say_hint(&s, FL_EXTPROC_REQUEST_HEADERS, "a:1", false);
    say_hint(&s, FL_EXTPROC_REQUEST_BODY, "b:1", false);
    say_hint(&s, FL_EXTPROC_REQUEST_BODY, "c:1,d:1", false);
    /* Metadata without a hint does not open the pool again. */
    say(&s, &(struct fl_extproc_request_out){
                .kind = FL_EXTPROC_REQUEST_BODY, .end_of_stream = true, .served = FL_BYTES("x")});
    expect(&s, "", "pick ");
    assert_string_equal(s.subset, "c:1;d:1;");
    assert_int_equal(s.body_bytes, 4);
    close_stream(&s);

    open_stream(&s, FL_EXTPROC_BODY_FULL_DUPLEX);
    say(&s, &(struct fl_extproc_request_out){
                .kind = FL_EXTPROC_REQUEST_HEADERS, .end_of_stream = true, .has_subset = true});
    expect(&s, "", "pick ");
    assert_string_equal(s.subset, ""); /* an empty hint: nobody */
    close_stream(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streaming_chat_as_the_page_has_it),
        cmocka_unit_test(the_body_is_echoed_in_pieces_of_62000),
        cmocka_unit_test(pieces_are_cut_one_at_a_time),
        cmocka_unit_test(a_thousand_one_byte_chunks_give_one_pick),
        cmocka_unit_test(a_request_without_a_body_gets_a_header_answer_alone),
        cmocka_unit_test(trailers_end_the_request_body),
        cmocka_unit_test(a_duplicate_end_of_the_body_is_ignored),
        cmocka_unit_test(buffered_answers_headers_at_once_and_all_on_the_body),
        cmocka_unit_test(protocol_agreement),
        cmocka_unit_test(message_cap_follows_the_mode),
        cmocka_unit_test(body_cap),
        cmocka_unit_test(spoofed_headers_are_hidden_and_removed),
        cmocka_unit_test(a_prefill_endpoint_is_set_and_then_not_removed),
        cmocka_unit_test(request_id_is_kept_or_minted),
        cmocka_unit_test(metadata_headers_at_and_above_their_limits),
        cmocka_unit_test(the_last_subset_hint_stands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
