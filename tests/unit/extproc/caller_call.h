/* SPDX-License-Identifier: Apache-2.0 */
/* One caller under test: what it tells a picker, and what a picker answers. Include after cmocka.h.
 */
#ifndef TESTS_UNIT_EXTPROC_CALLER_CALL_H
#define TESTS_UNIT_EXTPROC_CALLER_CALL_H

#include <stdio.h>

#include "extproc/caller.h"
#include "unit/extproc/wire.h"

#define CAP 100000

struct call {
    struct fl_arena arena;
    struct fl_head head;
    struct fl_caller caller;
    struct fl_chain kept, out;
    char told[4096]; /* what the picker was told, as text */
};

static inline void open_call(struct call *call, bool has_body, enum fl_caller_tap tap)
{
    const struct fl_caller_config config = {.max_body_bytes = CAP, .tap = tap};
    const struct fl_bytes subset[] = {FL_BYTES("10.0.0.1:8000"), FL_BYTES("[fd00::1]:8000")};

    *call = (struct call){0};
    fl_arena_init(&call->arena, 0);
    call->head = (struct fl_head){.method = FL_BYTES("POST"),
                                  .target = FL_BYTES("/v1/chat?x=1"),
                                  .authority = FL_BYTES("host:80"),
                                  .arena = &call->arena};
    struct fl_fields *fields = &call->head.fields;
    fl_fields_add(fields, &call->arena, FL_BYTES("Host"), FL_BYTES("host:80"));
    fl_fields_add(fields, &call->arena, FL_BYTES("X-A"), FL_BYTES("1"));
    fl_fields_add(fields, &call->arena, FL_BYTES("Accept"), FL_BYTES("a"));
    fl_fields_add(fields, &call->arena, FL_BYTES("accept"), FL_BYTES("b"));
    fl_fields_add(fields, &call->arena, FL_BYTES("X-Empty"), FL_BYTES(""));
    fl_fields_add(fields, &call->arena, FL_BYTES("Content-Length"), FL_BYTES("2"));
    fl_fields_add(fields, &call->arena, FL_BYTES("Connection"), FL_BYTES("x-hop"));
    fl_fields_add(fields, &call->arena, FL_BYTES("X-Hop"), FL_BYTES("h"));
    fl_caller_init(&call->caller, &config, &call->arena);
    fl_caller_ask(&call->caller, &call->out, &call->head, FL_BYTES("http"),
                  has_body ? &call->kept : NULL, subset, FL_ARRAY_LEN(subset));
}

static inline void close_call(struct call *call)
{
    fl_caller_fini(&call->caller);
    fl_caller_fini(&call->caller);
    fl_chain_fini(&call->kept);
    fl_chain_fini(&call->out);
    fl_arena_fini(&call->arena);
}

static inline void upload(struct call *call, struct fl_bytes bytes, bool is_end)
{
    if (bytes.n > 0)
        fl_chain_push(&call->kept, fl_slice_copy(bytes, NULL));
    fl_caller_ask_body(&call->caller, &call->out, is_end);
}

/* Writes down what was told since the last call: "RH[..]" is left to tests that care; bodies as
 * "B(n)", "B(n,end)", "RB(n)", heads as "H" and "RH". */
static inline const char *told(struct call *call)
{
    struct fl_chain message;
    size_t at = 0;

    call->told[0] = 0;
    while (wire_take(&call->out, &message)) {
        static const char *const names[FL_EXTPROC_KIND_COUNT] = {[FL_EXTPROC_REQUEST_HEADERS] = "H",
                                                                 [FL_EXTPROC_RESPONSE_HEADERS] =
                                                                     "RH",
                                                                 [FL_EXTPROC_REQUEST_BODY] = "B",
                                                                 [FL_EXTPROC_RESPONSE_BODY] = "RB"};
        struct fl_extproc_request request = {0};
        assert_int_equal(fl_extproc_request_read(&request, &message), 0);
        assert_non_null(names[request.kind]);
        assert_in_range(request.body.bytes, 0, FL_CALLER_CHUNK);
        at += (size_t)snprintf(call->told + at, sizeof(call->told) - at, "%s", names[request.kind]);
        if (request.kind == FL_EXTPROC_REQUEST_BODY || request.kind == FL_EXTPROC_RESPONSE_BODY)
            at += (size_t)snprintf(call->told + at, sizeof(call->told) - at, "(%zu%s)",
                                   request.body.bytes, request.end_of_stream ? ",end" : "");
        at += (size_t)snprintf(call->told + at, sizeof(call->told) - at, " ");
        fl_extproc_request_fini(&request);
    }
    return call->told;
}

/* ---- the picker's side ---- */

static inline void hear(struct call *call, const struct fl_extproc_response_out *what)
{
    struct fl_chain out = {0}, message;
    fl_extproc_response_write(&out, what);
    assert_true(wire_take(&out, &message));
    fl_chain_fini(&out);
    fl_caller_hear(&call->caller, &message);
    assert_int_equal(message.bytes, 0);
}

static inline void hear_wire(struct call *call, const char *wire)
{
    struct fl_chain message = wire_message(wire, 7);
    fl_caller_hear(&call->caller, &message);
}

/* header answer {set destination, metadata}; NULL: without. */
static inline void hear_destination(struct call *call, enum fl_extproc_kind kind,
                                    const char *header, const char *metadata)
{
    struct fl_field set = {FL_BYTES("X-Gateway-Destination-Endpoint"), fl_bytes_of(header)};
    hear(call, &(struct fl_extproc_response_out){.kind = kind,
                                                 .sets = &set,
                                                 .set_count = header != NULL,
                                                 .destination = fl_bytes_of(metadata)});
}

static inline void hear_body(struct call *call, enum fl_extproc_body_change change,
                             const char *text, bool is_end)
{
    struct fl_chain body = wire_chain(fl_bytes_of(text), 3);
    hear(call, &(struct fl_extproc_response_out){.kind = FL_EXTPROC_REQUEST_BODY,
                                                 .body_change = change,
                                                 .body = &body,
                                                 .body_bytes = body.bytes,
                                                 .end_of_stream = is_end});
    fl_chain_fini(&body);
}

#define PLAIN hear_body(&call, FL_EXTPROC_BODY_KEPT, "", false)
#define PIECE(text, end) hear_body(&call, FL_EXTPROC_BODY_PIECE, text, end)
#define DESTINATION                                                                                \
    hear_destination(&call, FL_EXTPROC_REQUEST_HEADERS, "10.0.0.1:8000", "10.0.0.1:8000")

static inline void assert_decided(const struct call *call, const char *candidates)
{
    char text[512] = "";
    size_t at = 0;
    assert_int_equal(call->caller.state, FL_CALLER_DECIDED);
    for (uint32_t i = 0; i < call->caller.candidate_count; i++)
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s;", call->caller.candidates[i]);
    assert_string_equal(text, candidates);
}

static inline void describe_fields(const struct fl_fields *fields, char *out, size_t room)
{
    size_t at = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < fields->count; i++)
        at += (size_t)snprintf(out + at, room - at, "%.*s=%.*s;", FL_FMT(fields->items[i].name),
                               FL_FMT(fields->items[i].value));
}

#endif
