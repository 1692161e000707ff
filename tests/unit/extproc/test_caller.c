/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "extproc/caller.h"
#include "extproc/headers.h"
#include "unit/extproc/wire.h"

#define CAP 100000

struct call {
    struct fl_arena arena;
    struct fl_head head;
    struct fl_caller caller;
    struct fl_chain kept, out;
    char told[4096]; /* what the picker was told, as text */
};

static void open_call(struct call *call, bool has_body, enum fl_caller_tap tap)
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

static void close_call(struct call *call)
{
    fl_caller_fini(&call->caller);
    fl_caller_fini(&call->caller);
    fl_chain_fini(&call->kept);
    fl_chain_fini(&call->out);
    fl_arena_fini(&call->arena);
}

static void upload(struct call *call, struct fl_bytes bytes, bool is_end)
{
    if (bytes.n > 0)
        fl_chain_push(&call->kept, fl_slice_copy(bytes, NULL));
    fl_caller_ask_body(&call->caller, &call->out, is_end);
}

/* Writes down what was told since the last call: "RH[..]" is left to tests that care; bodies as
 * "B(n)", "B(n,end)", "RB(n)", heads as "H" and "RH". */
static const char *told(struct call *call)
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

static void hear(struct call *call, const struct fl_extproc_response_out *what)
{
    struct fl_chain out = {0}, message;
    fl_extproc_response_write(&out, what);
    assert_true(wire_take(&out, &message));
    fl_chain_fini(&out);
    fl_caller_hear(&call->caller, &message);
    assert_int_equal(message.bytes, 0);
}

static void hear_wire(struct call *call, const char *wire)
{
    struct fl_chain message = wire_message(wire, 7);
    fl_caller_hear(&call->caller, &message);
}

/* header answer {set destination, metadata}; NULL: without. */
static void hear_destination(struct call *call, enum fl_extproc_kind kind, const char *header,
                             const char *metadata)
{
    struct fl_field set = {FL_BYTES("X-Gateway-Destination-Endpoint"), fl_bytes_of(header)};
    hear(call, &(struct fl_extproc_response_out){.kind = kind,
                                                 .sets = &set,
                                                 .set_count = header != NULL,
                                                 .destination = fl_bytes_of(metadata)});
}

static void hear_body(struct call *call, enum fl_extproc_body_change change, const char *text,
                      bool is_end)
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

static void assert_decided(const struct call *call, const char *candidates)
{
    char text[512] = "";
    size_t at = 0;
    assert_int_equal(call->caller.state, FL_CALLER_DECIDED);
    for (uint32_t i = 0; i < call->caller.candidate_count; i++)
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s;", call->caller.candidates[i]);
    assert_string_equal(text, candidates);
}

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

/* ---- header mutations ---- */

static void describe_fields(const struct fl_fields *fields, char *out, size_t room)
{
    size_t at = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < fields->count; i++)
        at += (size_t)snprintf(out + at, room - at, "%.*s=%.*s;", FL_FMT(fields->items[i].name),
                               FL_FMT(fields->items[i].value));
}

/* gateway.md 9.4 */
static void header_mutations(void **state)
{
    (void)state;
#define SET(n, v)                                                                                  \
    {                                                                                              \
        .name = FL_BYTES(n), .value = FL_BYTES(v)                                                  \
    }
    const struct {
        const char *why;
        struct fl_extproc_set sets[3];
        const char *removes[2];
        const char *result; /* NULL: unchanged */
        uint32_t dropped;
    } rows[] = {
        {"nothing", {{.action = 0}}, {NULL}, NULL, 0},
        {"a new header",
         {SET("x-new", "v")},
         {NULL},
         "X-A=1;Accept=a;accept=b;X-Empty=;x-new=v;",
         0},
        {"action 0 without append overwrites, in its place",
         {SET("x-a", "2")},
         {NULL},
         "X-A=2;Accept=a;accept=b;X-Empty=;",
         0},
        {"overwriting a repeated header leaves one",
         {SET("accept", "c")},
         {NULL},
         "X-A=1;Accept=c;X-Empty=;",
         0},
        {"an echo changes nothing", {SET("x-a", "1")}, {NULL}, NULL, 0},
        {"an echo of repeated lines changes nothing",
         {SET("accept", "a"), SET("accept", "b")},
         {NULL},
         NULL,
         0},
        {"repeated lines in another order are no echo",
         {SET("accept", "b"), SET("accept", "a")},
         {NULL},
         "X-A=1;Accept=a;X-Empty=;",
         0},
        {"append true adds a line",
         {{.name = FL_BYTES("X-a"), .value = FL_BYTES("2"), .has_append = true, .append = true}},
         {NULL},
         "X-A=1;Accept=a;accept=b;X-Empty=;X-a=2;",
         0},
        {"append false overwrites",
         {{.name = FL_BYTES("X-a"), .value = FL_BYTES("2"), .has_append = true}},
         {NULL},
         "X-A=2;Accept=a;accept=b;X-Empty=;",
         0},
        {"ADD_IF_ABSENT",
         {{.name = FL_BYTES("x-a"), .value = FL_BYTES("2"), .action = 1},
          {.name = FL_BYTES("x-b"), .value = FL_BYTES("2"), .action = 1}},
         {NULL},
         "X-A=1;Accept=a;accept=b;X-Empty=;x-b=2;",
         0},
        {"OVERWRITE_IF_EXISTS_OR_ADD",
         {{.name = FL_BYTES("x-a"), .value = FL_BYTES("2"), .action = 2},
          {.name = FL_BYTES("x-b"), .value = FL_BYTES("2"), .action = 2}},
         {NULL},
         "X-A=2;Accept=a;accept=b;X-Empty=;x-b=2;",
         0},
        {"OVERWRITE_IF_EXISTS",
         {{.name = FL_BYTES("x-a"), .value = FL_BYTES("2"), .action = 3},
          {.name = FL_BYTES("x-b"), .value = FL_BYTES("2"), .action = 3}},
         {NULL},
         "X-A=2;Accept=a;accept=b;X-Empty=;",
         0},
        {"an unknown action",
         {{.name = FL_BYTES("x-a"), .value = FL_BYTES("2"), .action = 9}},
         {NULL},
         NULL,
         1},
        {"an empty value is skipped", {SET("x-a", "")}, {NULL}, NULL, 0},
        {"unless it is to be kept",
         {{.name = FL_BYTES("x-a"), .value = FL_BYTES(""), .keep_empty = true}},
         {NULL},
         "X-A=;Accept=a;accept=b;X-Empty=;",
         0},
        {"removed, in any case", {{.action = 0}}, {"X-a", "ACCEPT"}, "X-Empty=;", 0},
        {"removing what is not there", {{.action = 0}}, {"x-none", NULL}, NULL, 0},
        {"removals come first: a name in both lists is set",
         {SET("x-a", "2")},
         {"x-a", NULL},
         "Accept=a;accept=b;X-Empty=;x-a=2;",
         0},
        {"pseudo headers, framing and host are ignored",
         {SET(":path", "/evil"), SET("content-length", "9"), SET("Host", "evil")},
         {"content-length", "host"},
         NULL,
         0},
        {"hop-by-hop names and the destination are ignored",
         {SET("transfer-encoding", "chunked"), SET("connection", "close"),
          SET("x-gateway-destination-endpoint", "1.1.1.1:1")},
         {NULL},
         NULL,
         0},
        {"invalid names and values are dropped, the rest goes on",
         {SET("a b", "v"), SET("x-b", "v\r\nx: y"), SET("x-c", "v")},
         {NULL},
         "X-A=1;Accept=a;accept=b;X-Empty=;x-c=v;",
         2},
        {"a NUL drops",
         {{.name = FL_BYTES("x-b"), .value = FL_BYTES("v"), .is_dropped = true}},
         {NULL},
         NULL,
         1},
        {"obs-text is a value like any other",
         {SET("x-b", "\xff")},
         {NULL},
         "X-A=1;Accept=a;accept=b;X-Empty=;x-b=\xff;",
         0},
    };
#undef SET

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_arena arena;
        struct fl_fields original = {0};
        struct fl_mutated mutated;
        struct fl_bytes removes[2];
        struct fl_extproc_mutation mutation = {
            .sets = (struct fl_extproc_set *)(uintptr_t)rows[i].sets, .removes = removes};
        char before[256], after[256], untouched[256];
        fl_arena_init(&arena, 0);
        fl_fields_add(&original, &arena, FL_BYTES("X-A"), FL_BYTES("1"));
        fl_fields_add(&original, &arena, FL_BYTES("Accept"), FL_BYTES("a"));
        fl_fields_add(&original, &arena, FL_BYTES("accept"), FL_BYTES("b"));
        fl_fields_add(&original, &arena, FL_BYTES("X-Empty"), FL_BYTES(""));
        describe_fields(&original, before, sizeof(before));
        while (mutation.set_count < 3 && rows[i].sets[mutation.set_count].name.p != NULL)
            mutation.set_count++;
        while (mutation.remove_count < 2 && rows[i].removes[mutation.remove_count] != NULL) {
            removes[mutation.remove_count] = fl_bytes_of(rows[i].removes[mutation.remove_count]);
            mutation.remove_count++;
        }
        fl_mutated_init(&mutated, &original, &arena);
        assert_int_equal(fl_mutated_apply(&mutated, &mutation), 0);
        describe_fields(&mutated.fields, after, sizeof(after));
        if (strcmp(after, rows[i].result != NULL ? rows[i].result : before) != 0 ||
            mutated.is_changed != (rows[i].result != NULL) || mutated.dropped != rows[i].dropped)
            fail_msg("row %zu: %s: %s", i, rows[i].why, after);
        /* FailOpen forwards the original. */
        describe_fields(&original, untouched, sizeof(untouched));
        assert_string_equal(untouched, before);
        size_t bytes = 0;
        for (uint32_t k = 0; k < mutated.fields.count; k++)
            bytes += mutated.fields.items[k].name.n + mutated.fields.items[k].value.n + 32;
        assert_int_equal(mutated.fields.bytes, bytes);
        fl_arena_fini(&arena);
    }
}

/* gateway.md 9.4: what llm-d's picker does */
static void a_picker_that_echoes_every_header_changes_nothing(void **state)
{
    (void)state;
    static const struct fl_field echo[] = {
        {{(const uint8_t *)":method", 7}, {(const uint8_t *)"POST", 4}},
        {{(const uint8_t *)"x-a", 3}, {(const uint8_t *)"1", 1}},
        {{(const uint8_t *)"accept", 6}, {(const uint8_t *)"a", 1}},
        {{(const uint8_t *)"accept", 6}, {(const uint8_t *)"b", 1}},
        {{(const uint8_t *)"x-empty", 7}, {(const uint8_t *)"", 0}},
        {{(const uint8_t *)"content-length", 14}, {(const uint8_t *)"7", 1}},
        {{(const uint8_t *)"x-gateway-destination-endpoint", 30},
         {(const uint8_t *)"1.1.1.1:1", 9}},
    };
    struct call call;

    open_call(&call, false, FL_CALLER_TAP_EDGES);
    hear(&call, &(struct fl_extproc_response_out){.kind = FL_EXTPROC_REQUEST_HEADERS,
                                                  .sets = echo,
                                                  .set_count = FL_ARRAY_LEN(echo)});
    assert_decided(&call, "1.1.1.1:1;");
    assert_false(call.caller.mutated.is_changed);
    close_call(&call);
}

static void mutations_are_capped(void **state)
{
    (void)state;
    static char value[FL_MUTATION_MAX_BYTES + 2];
    struct fl_field set = {FL_BYTES("x-b"), {0}};
    struct call call;

    memset(value, 'v', sizeof(value));
    for (size_t n = FL_MUTATION_MAX_BYTES - 4; n <= FL_MUTATION_MAX_BYTES - 2; n++) {
        open_call(&call, false, FL_CALLER_TAP_EDGES);
        set.value = fl_bytes(value, n); /* 3 bytes are the name */
        hear(&call, &(struct fl_extproc_response_out){
                        .kind = FL_EXTPROC_REQUEST_HEADERS, .sets = &set, .set_count = 1});
        bool fits = n + 3 <= FL_MUTATION_MAX_BYTES;
        assert_int_equal(call.caller.state, fits ? FL_CALLER_DECIDED : FL_CALLER_FAILED);
        assert_int_equal(call.caller.rc, fits ? 0 : FL_ELIMIT);
        close_call(&call);
    }
    for (uint32_t n = FL_MUTATION_MAX_FIELDS - 1; n <= FL_MUTATION_MAX_FIELDS + 1; n++) {
        struct fl_arena arena;
        struct fl_fields original = {0};
        struct fl_mutated mutated;
        struct fl_extproc_set *sets = calloc(n, sizeof(*sets));
        const struct fl_extproc_mutation mutation = {.sets = sets, .set_count = n};
        for (uint32_t i = 0; i < n; i++)
            sets[i] = (struct fl_extproc_set){
                .name = FL_BYTES("a"), .value = FL_BYTES("b"), .has_append = true, .append = true};
        fl_arena_init(&arena, 0);
        fl_mutated_init(&mutated, &original, &arena);
        assert_int_equal(fl_mutated_apply(&mutated, &mutation),
                         n <= FL_MUTATION_MAX_FIELDS ? 0 : FL_ELIMIT);
        fl_arena_fini(&arena);
        free(sets);
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
        cmocka_unit_test(header_mutations),
        cmocka_unit_test(a_picker_that_echoes_every_header_changes_nothing),
        cmocka_unit_test(mutations_are_capped),
        cmocka_unit_test(a_new_body_is_capped),
        cmocka_unit_test(unusable_answers_fail),
        cmocka_unit_test(other_answers_are_ignored_while_asking),
        cmocka_unit_test(immediate_responses_are_relayed),
        cmocka_unit_test(the_response_head_is_told_with_status_twice_and_who_served),
        cmocka_unit_test(the_tap_by_its_option),
        cmocka_unit_test(the_tail_holds_the_last_bytes),
        cmocka_unit_test(a_slow_picker_cuts_the_tap_but_not_the_end),
        cmocka_unit_test(answers_in_the_response_phase),
        cmocka_unit_test(client_headers_are_stripped_before_the_question),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
