/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "codec/json.h"
#include "extproc/headers.h"
#include "extproc/picker.h"
#include "unit/extproc/wire.h"

/* A stream under test. What the picker says and does is written down as text:
 *   answers:  H RH B(n) B(n,end) RB(n,end) T RT  without content; B- RB-: plain body answers;
 *             H{...} B{...}: with a decision;  I(status,code);  END(status)
 *   events:   pick cancel response(status) first body(n) end warn */
struct stream {
    struct fl_picker picker;
    struct fl_picker_config config;
    const struct fl_picker_decision *inline_answer; /* given inside on_pick */
    int inline_fail;
    char answers[4096], events[4096];
    char warning[256];
    struct fl_chain echoed; /* request body as answered */
    char subset[512], path[64], id[160], served[64];
    uint32_t header_count;
    size_t body_bytes;
};

static const struct fl_picker_decision ten_seven = {
    .endpoint = {(const uint8_t *)"10.0.0.7:8000", 13}};

static void note(char *text, size_t room, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void note(char *text, size_t room, const char *format, ...)
{
    size_t at = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + at, room - at, format, args);
    va_end(args);
}

#define EVENT(s, ...) note((s)->events, sizeof((s)->events), __VA_ARGS__)
#define ANSWER(s, ...) note((s)->answers, sizeof((s)->answers), __VA_ARGS__)

static void on_pick(void *owner, const struct fl_picker_question *question)
{
    struct stream *s = owner;

    EVENT(s, "pick ");
    s->header_count = question->headers->count;
    s->body_bytes = question->body->bytes;
    snprintf(s->path, sizeof(s->path), "%.*s", FL_FMT(question->path));
    snprintf(s->id, sizeof(s->id), "%.*s", FL_FMT(question->request_id));
    snprintf(s->subset, sizeof(s->subset), "%s", question->subset.is_present ? "" : "all");
    for (uint32_t i = 0; i < question->subset.count; i++)
        note(s->subset, sizeof(s->subset), "%.*s;", FL_FMT(question->subset.items[i]));
    if (s->inline_answer != NULL)
        fl_picker_answer(&s->picker, s->inline_answer);
    else if (s->inline_fail != 0)
        fl_picker_fail(&s->picker, s->inline_fail, 0);
}

static void on_pick_cancelled(void *owner)
{
    struct stream *s = owner;
    EVENT(s, "cancel ");
}

static void on_response(void *owner, int status, const struct fl_fields *headers,
                        struct fl_bytes served)
{
    struct stream *s = owner;
    (void)headers;
    EVENT(s, "response(%d) ", status);
    snprintf(s->served, sizeof(s->served), "%.*s", FL_FMT(served));
}

static void on_first_token(void *owner)
{
    struct stream *s = owner;
    EVENT(s, "first ");
}

static void on_response_body(void *owner, struct fl_bytes piece)
{
    struct stream *s = owner;
    EVENT(s, "body(%zu) ", piece.n);
}

static void on_response_end(void *owner)
{
    struct stream *s = owner;
    EVENT(s, "end ");
}

static void on_warning(void *owner, const char *what)
{
    struct stream *s = owner;
    EVENT(s, "warn ");
    snprintf(s->warning, sizeof(s->warning), "%s", what);
}

static const struct fl_picker_ops ops = {
    .on_pick = on_pick,
    .on_pick_cancelled = on_pick_cancelled,
    .on_response = on_response,
    .on_first_token = on_first_token,
    .on_response_body = on_response_body,
    .on_response_end = on_response_end,
    .on_warning = on_warning,
};

static void open_stream(struct stream *s, int32_t mode)
{
    *s = (struct stream){.config = {.body_mode = mode,
                                    .max_body_bytes = 1 << 20,
                                    .metadata_prefix = FL_BYTES("x-dynamo-meta-")}};
    fl_picker_init(&s->picker, &s->config, &ops, s);
}

static void close_stream(struct stream *s)
{
    fl_picker_fini(&s->picker);
    fl_picker_fini(&s->picker);
    fl_chain_fini(&s->echoed);
}

/* ---- what the proxy says ---- */

static void say(struct stream *s, const struct fl_extproc_request_out *what)
{
    struct fl_chain out = {0}, message;
    fl_extproc_request_write(&out, what);
    assert_true(wire_take(&out, &message));
    fl_chain_fini(&out);
    fl_picker_feed(&s->picker, &message);
    assert_int_equal(message.bytes, 0);
}

/* "name=value\nname=value" */
static void say_fields(struct stream *s, enum fl_extproc_kind kind, const char *text, bool is_end,
                       const struct fl_extproc_protocol *protocol)
{
    struct fl_field items[128];
    struct fl_fields fields = {.items = items, .cap = FL_ARRAY_LEN(items)};
    struct fl_bytes rest = fl_bytes_of(text), line;

    while (rest.n > 0 && fl_bytes_next(&rest, '\n', &line)) {
        size_t at = fl_bytes_index(line, '=');
        items[fields.count++] =
            (struct fl_field){fl_bytes_head(line, at), fl_bytes_skip(line, at + 1)};
    }
    say(s, &(struct fl_extproc_request_out){
               .kind = kind, .headers = &fields, .end_of_stream = is_end, .protocol = protocol});
}

#define CHAT                                                                                       \
    ":method=POST\n:path=/v1/chat/completions\ncontent-type=application/json\nx-request-id=r1"

static void say_headers(struct stream *s, const char *text, bool is_end)
{
    say_fields(s, FL_EXTPROC_REQUEST_HEADERS, text, is_end, NULL);
}

static void say_bytes(struct stream *s, enum fl_extproc_kind kind, struct fl_bytes bytes,
                      bool is_end)
{
    struct fl_chain body = wire_chain(bytes, 16384);
    say(s, &(struct fl_extproc_request_out){
               .kind = kind, .body = &body, .body_bytes = bytes.n, .end_of_stream = is_end});
    fl_chain_fini(&body);
}

static void say_body(struct stream *s, const char *text, bool is_end)
{
    say_bytes(s, FL_EXTPROC_REQUEST_BODY, fl_bytes_of(text), is_end);
}

static void say_response(struct stream *s)
{
    say_fields(s, FL_EXTPROC_RESPONSE_HEADERS, ":status=200\ncontent-type=text/event-stream", false,
               NULL);
}

static void say_response_body(struct stream *s, const char *text, bool is_end)
{
    say_bytes(s, FL_EXTPROC_RESPONSE_BODY, fl_bytes_of(text), is_end);
}

/* ---- what it hears ---- */

static bool is_in(struct fl_bytes name, const struct fl_extproc_mutation *mutation)
{
    for (uint32_t i = 0; i < mutation->remove_count; i++) {
        if (fl_bytes_eq(mutation->removes[i], name))
            return true;
    }
    return false;
}

static void describe_mutation(struct stream *s, const struct fl_extproc_response *answer)
{
    const struct fl_extproc_mutation *mutation = &answer->mutation;
    struct fl_arena arena;
    struct fl_bytes destination;

    ANSWER(s, "{");
    for (uint32_t i = 0; i < mutation->set_count; i++) {
        assert_int_equal(mutation->sets[i].action, 2);
        assert_false(mutation->sets[i].has_append);
        assert_false(is_in(mutation->sets[i].name, mutation));
        ANSWER(s, "%.*s=%.*s ", FL_FMT(mutation->sets[i].name), FL_FMT(mutation->sets[i].value));
    }
    ANSWER(s, "-%u", mutation->remove_count);
    fl_arena_init(&arena, 0);
    fl_extproc_read_destination(answer->dynamic_metadata, &arena, &destination);
    ANSWER(s, " meta=%.*s%s}", FL_FMT(destination), answer->clear_route_cache ? " clear" : "");
    fl_arena_fini(&arena);
}

static void describe_immediate(struct stream *s, const struct fl_extproc_response *answer)
{
    char text[1024];
    struct fl_json doc = {0};
    struct fl_bytes code;

    assert_in_range(answer->body.bytes, 1, sizeof(text));
    fl_chain_copy_out(&answer->body, 0, text, answer->body.bytes);
    assert_int_equal(fl_json_parse(&doc, fl_bytes(text, answer->body.bytes), NULL), 0);
    const struct fl_json_node *error = fl_json_get(fl_json_root(&doc), FL_BYTES("error"));
    assert_int_equal(fl_json_get_string(error, "code", &code, NULL), 0);
    ANSWER(s, "I(%d,%.*s", (int)answer->http_status, FL_FMT(code));
    for (uint32_t i = 0; i < answer->mutation.set_count; i++)
        ANSWER(s, " %.*s=%.*s", FL_FMT(answer->mutation.sets[i].name),
               FL_FMT(answer->mutation.sets[i].value));
    ANSWER(s, ")");
    fl_json_fini(&doc);
}

static void describe_body(struct stream *s, struct fl_extproc_response *answer, const char *name)
{
    if (answer->body_change == FL_EXTPROC_BODY_KEPT) {
        ANSWER(s, "%s", name);
        if (answer->mutation.set_count > 0)
            describe_mutation(s, answer);
        else
            ANSWER(s, "-");
        return;
    }
    assert_int_equal(answer->body_change, FL_EXTPROC_BODY_PIECE);
    assert_in_range(answer->body.bytes, 0, FL_EXTPROC_CHUNK);
    ANSWER(s, "%s(%zu%s)", name, answer->body.bytes, answer->end_of_stream ? ",end" : "");
    if (answer->kind == FL_EXTPROC_REQUEST_BODY)
        fl_chain_move(&s->echoed, &answer->body);
}

/* Takes one answer off the picker and describes it. False if there is none. */
static bool hear_one(struct stream *s)
{
    struct fl_chain out = {0}, message;
    struct fl_extproc_response answer = {0};

    switch (fl_picker_next(&s->picker, &out)) {
    case FL_PICKER_IDLE:
        return false;
    case FL_PICKER_END:
        ANSWER(s, "END(%d) ", s->picker.grpc_status);
        return true;
    case FL_PICKER_MESSAGE:
        break;
    }
    assert_true(wire_take(&out, &message));
    assert_int_equal(out.bytes, 0); /* one message a call */
    fl_chain_fini(&out);
    assert_int_equal(fl_extproc_response_read(&answer, &message), 0);
    switch (answer.kind) {
    case FL_EXTPROC_REQUEST_HEADERS:
        ANSWER(s, "H");
        if (answer.mutation.set_count > 0)
            describe_mutation(s, &answer);
        break;
    case FL_EXTPROC_RESPONSE_HEADERS:
        ANSWER(s, "RH");
        break;
    case FL_EXTPROC_REQUEST_BODY:
        describe_body(s, &answer, "B");
        break;
    case FL_EXTPROC_RESPONSE_BODY:
        describe_body(s, &answer, "RB");
        break;
    case FL_EXTPROC_REQUEST_TRAILERS:
        ANSWER(s, "T");
        break;
    case FL_EXTPROC_RESPONSE_TRAILERS:
        ANSWER(s, "RT");
        break;
    case FL_EXTPROC_IMMEDIATE:
        describe_immediate(s, &answer);
        break;
    default:
        ANSWER(s, "?");
        break;
    }
    ANSWER(s, " ");
    fl_extproc_response_fini(&answer);
    return true;
}

static void expect(struct stream *s, const char *answers, const char *events)
{
    while (hear_one(s))
        continue;
    assert_string_equal(s->answers, answers);
    assert_string_equal(s->events, events);
    s->answers[0] = s->events[0] = 0;
}

#define PICKED "{x-gateway-destination-endpoint=10.0.0.7:8000 -6 meta=10.0.0.7:8000 clear} "

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
