/* SPDX-License-Identifier: Apache-2.0 */
/* One picker under test: what a proxy says to it, what it answers and does, written down as text.
 * Include after cmocka.h. */
#ifndef TESTS_UNIT_EXTPROC_PICKER_STREAM_H
#define TESTS_UNIT_EXTPROC_PICKER_STREAM_H

#include <stdio.h>

#include "codec/json.h"
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

static inline void note(char *text, size_t room, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static inline void note(char *text, size_t room, const char *format, ...)
{
    size_t at = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + at, room - at, format, args);
    va_end(args);
}

#define EVENT(s, ...) note((s)->events, sizeof((s)->events), __VA_ARGS__)
#define ANSWER(s, ...) note((s)->answers, sizeof((s)->answers), __VA_ARGS__)

static inline void on_pick(void *owner, const struct fl_picker_question *question)
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

static inline void on_pick_cancelled(void *owner)
{
    struct stream *s = owner;
    EVENT(s, "cancel ");
}

static inline void on_response(void *owner, int status, const struct fl_fields *headers,
                               struct fl_bytes served)
{
    struct stream *s = owner;
    (void)headers;
    EVENT(s, "response(%d) ", status);
    snprintf(s->served, sizeof(s->served), "%.*s", FL_FMT(served));
}

static inline void on_first_token(void *owner)
{
    struct stream *s = owner;
    EVENT(s, "first ");
}

static inline void on_response_body(void *owner, struct fl_bytes piece)
{
    struct stream *s = owner;
    EVENT(s, "body(%zu) ", piece.n);
}

static inline void on_response_end(void *owner)
{
    struct stream *s = owner;
    EVENT(s, "end ");
}

static inline void on_warning(void *owner, const char *what)
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

static inline void open_stream(struct stream *s, int32_t mode)
{
    *s = (struct stream){.config = {.body_mode = mode,
                                    .max_body_bytes = 1 << 20,
                                    .metadata_prefix = FL_BYTES("x-dynamo-meta-")}};
    fl_picker_init(&s->picker, &s->config, &ops, s);
}

static inline void close_stream(struct stream *s)
{
    fl_picker_fini(&s->picker);
    fl_picker_fini(&s->picker);
    fl_chain_fini(&s->echoed);
}

/* ---- what the proxy says ---- */

static inline void say(struct stream *s, const struct fl_extproc_request_out *what)
{
    struct fl_chain out = {0}, message;
    fl_extproc_request_write(&out, what);
    assert_true(wire_take(&out, &message));
    fl_chain_fini(&out);
    fl_picker_feed(&s->picker, &message);
    assert_int_equal(message.bytes, 0);
}

/* "name=value\nname=value" */
static inline void say_fields(struct stream *s, enum fl_extproc_kind kind, const char *text,
                              bool is_end, const struct fl_extproc_protocol *protocol)
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

static inline void say_headers(struct stream *s, const char *text, bool is_end)
{
    say_fields(s, FL_EXTPROC_REQUEST_HEADERS, text, is_end, NULL);
}

static inline void say_bytes(struct stream *s, enum fl_extproc_kind kind, struct fl_bytes bytes,
                             bool is_end)
{
    struct fl_chain body = wire_chain(bytes, 16384);
    say(s, &(struct fl_extproc_request_out){
               .kind = kind, .body = &body, .body_bytes = bytes.n, .end_of_stream = is_end});
    fl_chain_fini(&body);
}

static inline void say_body(struct stream *s, const char *text, bool is_end)
{
    say_bytes(s, FL_EXTPROC_REQUEST_BODY, fl_bytes_of(text), is_end);
}

static inline void say_response(struct stream *s)
{
    say_fields(s, FL_EXTPROC_RESPONSE_HEADERS, ":status=200\ncontent-type=text/event-stream", false,
               NULL);
}

static inline void say_response_body(struct stream *s, const char *text, bool is_end)
{
    say_bytes(s, FL_EXTPROC_RESPONSE_BODY, fl_bytes_of(text), is_end);
}

/* ---- what it hears ---- */

static inline bool is_in(struct fl_bytes name, const struct fl_extproc_mutation *mutation)
{
    for (uint32_t i = 0; i < mutation->remove_count; i++) {
        if (fl_bytes_eq(mutation->removes[i], name))
            return true;
    }
    return false;
}

static inline void describe_mutation(struct stream *s, const struct fl_extproc_response *answer)
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

static inline void describe_immediate(struct stream *s, const struct fl_extproc_response *answer)
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

static inline void describe_body(struct stream *s, struct fl_extproc_response *answer,
                                 const char *name)
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
static inline bool hear_one(struct stream *s)
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

static inline void expect(struct stream *s, const char *answers, const char *events)
{
    while (hear_one(s))
        continue;
    assert_string_equal(s->answers, answers);
    assert_string_equal(s->events, events);
    s->answers[0] = s->events[0] = 0;
}

#define PICKED "{x-gateway-destination-endpoint=10.0.0.7:8000 -6 meta=10.0.0.7:8000 clear} "

#endif
