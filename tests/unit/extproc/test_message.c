/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "codec/pb.h"
#include "extproc/message.h"
#include "unit/extproc/wire.h"

/* gaie.md 1.4, without the gRPC prefix where the page gives fields alone. */
#define REQUEST_HEADERS                                                                            \
    "12 27 0a25 0a0f 0a07 ':method' 1a04 'POST' 0a12 0a0c 'x-request-id' 1a02 'r1'"
#define REQUEST_BODY "22 06 0a02 '{}' 1001"
#define SUBSET                                                                                     \
    "42 58 0a56 0a14 'envoy.lb.subset_hint' 123e 0a3c 0a25 "                                       \
    "'x-gateway-destination-endpoint-subset' 1213 3211 0a0f 1a0d '10.0.0.7:8000'"
#define HEADER_ANSWER                                                                              \
    "0a3b 0a39 1235 0a33 0a2f 0a1e 'x-gateway-destination-endpoint' 1a0d '10.0.0.7:8000' 1802 "    \
    "2801 4243 0a41 0a08 'envoy.lb' 1235 2a33 0a31 0a1e 'x-gateway-destination-endpoint' 120f "    \
    "1a0d '10.0.0.7:8000'"
#define BODY_ANSWER "1a0c 0a0a 1a08 1a06 0a02 '{}' 1001"
#define IMMEDIATE_503 "3a12 0a03 08f703 1a0b 'no endpoint'"

static struct fl_field field_of(const char *name, const char *value)
{
    return (struct fl_field){fl_bytes_of(name), fl_bytes_of(value)};
}

/* Reads `text` cut into pieces of `piece` bytes. */
static int read_request(struct fl_extproc_request *request, const char *text, size_t piece)
{
    struct fl_chain message = wire_message(text, piece);
    *request = (struct fl_extproc_request){0};
    int rc = fl_extproc_request_read(request, &message);
    assert_int_equal(message.bytes, 0);
    return rc;
}

static int read_response(struct fl_extproc_response *response, const char *text, size_t piece)
{
    struct fl_chain message = wire_message(text, piece);
    *response = (struct fl_extproc_response){0};
    int rc = fl_extproc_response_read(response, &message);
    assert_int_equal(message.bytes, 0);
    return rc;
}

static void assert_text(struct fl_bytes bytes, const char *text)
{
    if (!fl_bytes_eq(bytes, fl_bytes_of(text)))
        fail_msg("%.*s, expected %s", FL_FMT(bytes), text);
}

/* ---- writing: gaie.md 1.4 to the byte ---- */

/* gaie.md 1.4 */
static void requests_are_written_byte_exact(void **state)
{
    (void)state;
    const struct fl_field method = field_of(":method", "POST");
    struct fl_field fields[] = {field_of("X-Request-Id", "r1")};
    const struct fl_fields headers = {.items = fields, .count = 1};
    const struct fl_bytes subset[] = {FL_BYTES("10.0.0.7:8000")};
    const struct fl_extproc_protocol full = {4, 4, false}, full_waiting = {4, 4, true};
    struct fl_chain body = wire_chain(FL_BYTES("{}"), 1);
    const struct {
        const char *why;
        struct fl_extproc_request_out what;
        const char *wire;
    } rows[] = {
        {"headers",
         {.kind = FL_EXTPROC_REQUEST_HEADERS,
          .pseudo = &method,
          .pseudo_count = 1,
          .headers = &headers},
         "00 00000029 |" REQUEST_HEADERS},
        {"body",
         {.kind = FL_EXTPROC_REQUEST_BODY, .body = &body, .body_bytes = 2, .end_of_stream = true},
         "00 00000008 |" REQUEST_BODY},
        {"subset",
         {.has_subset = true, .subset = subset, .subset_count = 1},
         "00 0000005a |" SUBSET},
        {"an empty subset is there",
         {.has_subset = true},
         "00 00000049 | 42 47 0a45 0a14 'envoy.lb.subset_hint' 122d 0a2b 0a25 "
         "'x-gateway-destination-endpoint-subset' 1202 3200"},
        {"full duplex both ways", {.protocol = &full}, "00 00000006 | 5a04 0804 1004"},
        {"full duplex without waiting",
         {.protocol = &full_waiting},
         "00 00000008 | 5a06 0804 1004 1801"},
        {"end of a body",
         {.kind = FL_EXTPROC_RESPONSE_BODY, .end_of_stream = true},
         "00 00000004 | 2a02 1001"},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_chain out = {0};
        fl_extproc_request_write(&out, &rows[i].what);
        if (!wire_equals(&out, rows[i].wire))
            fail_msg("row %zu: %s: %zu bytes differ", i, rows[i].why, out.bytes);
        fl_chain_fini(&out);
    }
    fl_chain_fini(&body);
}

/* gaie.md 1.4 */
static void answers_are_written_byte_exact(void **state)
{
    (void)state;
    const struct fl_field destination = field_of("x-gateway-destination-endpoint", "10.0.0.7:8000");
    struct fl_chain body = wire_chain(FL_BYTES("{}"), 1);
    struct fl_chain text = wire_chain(FL_BYTES("no endpoint"), 100);
    const struct {
        const char *why;
        struct fl_extproc_response_out what;
        const char *wire;
    } rows[] = {
        {"header answer",
         {.kind = FL_EXTPROC_REQUEST_HEADERS,
          .sets = &destination,
          .set_count = 1,
          .clear_route_cache = true,
          .destination = FL_BYTES("10.0.0.7:8000")},
         "00 00000082 |" HEADER_ANSWER},
        {"body answer",
         {.kind = FL_EXTPROC_REQUEST_BODY,
          .body_change = FL_EXTPROC_BODY_PIECE,
          .body = &body,
          .body_bytes = 2,
          .end_of_stream = true},
         "00 0000000e |" BODY_ANSWER},
        {"immediate response",
         {.kind = FL_EXTPROC_IMMEDIATE, .http_status = 503, .body = &text, .body_bytes = 11},
         "00 00000014 |" IMMEDIATE_503},
        {"empty answer to response headers",
         {.kind = FL_EXTPROC_RESPONSE_HEADERS},
         "00 00000004 | 12 02 0a00"},
        {"empty answer to response trailers",
         {.kind = FL_EXTPROC_RESPONSE_TRAILERS},
         "00 00000002 | 32 00"},
        /* gaie.md 1.6 */
        {"an empty body with its end",
         {.kind = FL_EXTPROC_REQUEST_BODY,
          .body_change = FL_EXTPROC_BODY_PIECE,
          .end_of_stream = true},
         "00 0000000a | 1a08 0a06 1a04 1a02 1001"},
        {"a body answer that changes nothing (BUFFERED)",
         {.kind = FL_EXTPROC_REQUEST_BODY},
         "00 00000004 | 1a02 0a00"},
        {"a whole new body", /* what foreign pickers send */
         {.kind = FL_EXTPROC_REQUEST_BODY,
          .body_change = FL_EXTPROC_BODY_REPLACED,
          .body = &body,
          .body_bytes = 2},
         "00 0000000a | 1a08 0a06 1a04 0a02 '{}'"},
        {"clear_body",
         {.kind = FL_EXTPROC_REQUEST_BODY, .body_change = FL_EXTPROC_BODY_CLEARED},
         "00 00000008 | 1a06 0a04 1a02 1001"},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_chain out = {0};
        fl_extproc_response_write(&out, &rows[i].what);
        if (!wire_equals(&out, rows[i].wire))
            fail_msg("row %zu: %s: %zu bytes differ", i, rows[i].why, out.bytes);
        fl_chain_fini(&out);
    }
    fl_chain_fini(&body);
    fl_chain_fini(&text);
}

/* gateway.md 9.2 */
static void request_headers_leave_hop_by_hop_names_and_host_out(void **state)
{
    (void)state;
    struct fl_field fields[] = {
        field_of("Host", "a"),           field_of("Connection", "keep-alive, X-Hop"),
        field_of("x-hop", "1"),          field_of("Transfer-Encoding", "chunked"),
        field_of("Content-Length", "2"), field_of("Accept", "a"),
        field_of("Accept", "b"),         field_of("X-Empty", ""),
    };
    struct fl_fields headers = {.items = fields, .count = FL_ARRAY_LEN(fields)};
    struct fl_chain out = {0}, message;
    struct fl_extproc_request request = {0};

    fl_extproc_request_write(
        &out, &(struct fl_extproc_request_out){
                  .kind = FL_EXTPROC_REQUEST_HEADERS, .headers = &headers, .end_of_stream = true});
    assert_true(wire_take(&out, &message));
    assert_int_equal(fl_extproc_request_read(&request, &message), 0);
    assert_true(request.end_of_stream);
    assert_int_equal(request.headers.count, 4);
    assert_text(request.headers.items[0].name, "content-length");
    assert_text(request.headers.items[1].value, "a");
    assert_text(request.headers.items[2].value, "b");
    assert_text(request.headers.items[3].name, "x-empty");
    assert_text(request.headers.items[3].value, "");
    fl_extproc_request_fini(&request);
    fl_chain_fini(&out);
}

/* ---- reading ---- */

/* gaie.md 1.4: the same bytes, whole and cut anywhere */
static void the_worked_bytes_read_back_however_they_are_cut(void **state)
{
    (void)state;
    for (size_t piece = 1; piece <= 200; piece += piece < 8 ? 1 : 61) {
        struct fl_extproc_request request;
        struct fl_extproc_response response;
        struct fl_arena arena;
        struct fl_extproc_subset subset;
        struct fl_bytes destination;
        fl_arena_init(&arena, 0);

        assert_int_equal(
            read_request(&request, REQUEST_HEADERS SUBSET "5a06 0804 1004 1801", piece), 0);
        assert_int_equal(request.kind, FL_EXTPROC_REQUEST_HEADERS);
        assert_false(request.end_of_stream);
        assert_int_equal(request.headers.count, 2);
        assert_text(request.headers.items[0].name, ":method");
        assert_text(request.headers.items[1].value, "r1");
        assert_true(request.has_protocol);
        assert_int_equal(request.protocol.request_body_mode, FL_EXTPROC_BODY_FULL_DUPLEX);
        assert_true(request.protocol.send_body_without_waiting);
        assert_int_equal(fl_extproc_read_subset(request.metadata, &arena, &subset), 0);
        assert_true(subset.is_present);
        assert_int_equal(subset.count, 1);
        assert_text(subset.items[0], "10.0.0.7:8000");
        fl_extproc_request_fini(&request);
        fl_extproc_request_fini(&request);

        assert_int_equal(read_request(&request, REQUEST_BODY SUBSET, piece), 0);
        assert_int_equal(request.kind, FL_EXTPROC_REQUEST_BODY);
        assert_true(request.end_of_stream);
        assert_true(fl_chain_eq_bytes(&request.body, FL_BYTES("{}")));
        assert_int_equal(fl_extproc_read_subset(request.metadata, &arena, &subset), 0);
        assert_int_equal(subset.count, 1);
        fl_extproc_request_fini(&request);

        assert_int_equal(read_response(&response, HEADER_ANSWER, piece), 0);
        assert_int_equal(response.kind, FL_EXTPROC_REQUEST_HEADERS);
        assert_int_equal(response.mutation.set_count, 1);
        assert_text(response.mutation.sets[0].value, "10.0.0.7:8000");
        assert_int_equal(response.mutation.sets[0].action, 2);
        assert_true(response.clear_route_cache);
        assert_int_equal(
            fl_extproc_read_destination(response.dynamic_metadata, &arena, &destination), 0);
        assert_text(destination, "10.0.0.7:8000");
        fl_extproc_response_fini(&response);

        assert_int_equal(read_response(&response, BODY_ANSWER, piece), 0);
        assert_int_equal(response.kind, FL_EXTPROC_REQUEST_BODY);
        assert_int_equal(response.body_change, FL_EXTPROC_BODY_PIECE);
        assert_true(response.end_of_stream);
        assert_true(fl_chain_eq_bytes(&response.body, FL_BYTES("{}")));
        fl_extproc_response_fini(&response);

        assert_int_equal(read_response(&response, IMMEDIATE_503, piece), 0);
        assert_int_equal(response.kind, FL_EXTPROC_IMMEDIATE);
        assert_int_equal(response.http_status, 503);
        assert_true(fl_chain_eq_bytes(&response.body, FL_BYTES("no endpoint")));
        fl_extproc_response_fini(&response);
        fl_arena_fini(&arena);
    }
}

/* gaie.md 1.2: whole-message rules, read both contiguous and in single bytes */
static void request_semantics(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *wire;
        int rc;
        enum fl_extproc_kind kind;
        const char *headers; /* "name=value," in order */
        const char *body;
        bool end_of_stream;
    } rows[] = {
        {"nothing at all", "", 0, FL_EXTPROC_NONE, "", "", false},
        {"absent and empty differ: an empty member is there", "12 00", 0,
         FL_EXTPROC_REQUEST_HEADERS, "", "", false},
        {"an empty raw_value gives way to value", "12 0c 0a0a 0a08 0a01'a' 1201'v' 1a00", 0,
         FL_EXTPROC_REQUEST_HEADERS, "a=v,", "", false},
        {"value where raw_value is absent", "12 0a 0a08 0a06 0a01'a' 1201'v'", 0,
         FL_EXTPROC_REQUEST_HEADERS, "a=v,", "", false},
        {"raw_value before value", "12 0d 0a0b 0a09 0a01'a' 1a01'r' 1201'v'", 0,
         FL_EXTPROC_REQUEST_HEADERS, "a=r,", "", false},
        {"a header without anything", "12 04 0a02 0a00", 0, FL_EXTPROC_REQUEST_HEADERS, "=,", "",
         false},
        {"header maps merge in order",
         "12 0a 0a08 0a06 0a01'a' 1a01'1' 12 0a 0a08 0a06 0a01'a' 1a01'2'", 0,
         FL_EXTPROC_REQUEST_HEADERS, "a=1,a=2,", "", false},
        {"a later member of the oneof replaces", "12 0a 0a08 0a06 0a01'a' 1a01'1' 22 03 0a01'x'", 0,
         FL_EXTPROC_REQUEST_BODY, "", "x", false},
        {"and does not come back", "12 0c 0a08 0a06 0a01'a' 1a01'1' 1801 22 03 0a01'x' 12 00", 0,
         FL_EXTPROC_REQUEST_HEADERS, "", "", false},
        {"bodies merge: the last bytes and flag count", "22 03 0a01'x' 22 02 1001 22 03 0a01'y'", 0,
         FL_EXTPROC_REQUEST_BODY, "", "y", true},
        {"the last body field counts, though it is empty", "22 05 0a01'x' 0a00", 0,
         FL_EXTPROC_REQUEST_BODY, "", "", false},
        {"flag before body", "22 05 1001 0a01'x'", 0, FL_EXTPROC_REQUEST_BODY, "", "x", true},
        {"unknown fields of every wire type are skipped",
         "a006 01 a106 0000000000000000 a206 01ff a306 a406 a506 00000000 22 03 0a01'x'", 0,
         FL_EXTPROC_REQUEST_BODY, "", "x", false},
        {"unknown fields in the body message (gRPC mode)", "22 09 0a01'x' 1801 2001 2801", 0,
         FL_EXTPROC_REQUEST_BODY, "", "x", false},
        {"another wire type is unknown", "10 01 22 05 08 01 12 01 01", 0, FL_EXTPROC_REQUEST_BODY,
         "", "", false},
        {"trailers", "32 0a 0a08 0a06 0a01't' 1a01'1'", 0, FL_EXTPROC_REQUEST_TRAILERS, "t=1,", "",
         false},
        {"response headers end here", "1a 02 1801", 0, FL_EXTPROC_RESPONSE_HEADERS, "", "", true},
        {"response body", "2a 03 0a01'x'", 0, FL_EXTPROC_RESPONSE_BODY, "", "x", false},
        {"response trailers", "3a 00", 0, FL_EXTPROC_RESPONSE_TRAILERS, "", "", false},
        /* epp.md 24.3 row 35 */
        {"cut short", "12 05 0a", FL_EPROTO, FL_EXTPROC_NONE, "", "", false},
        {"field number 0", "00 00", FL_EPROTO, FL_EXTPROC_NONE, "", "", false},
        {"bytes 0xff in raw_value", "12 0a 0a08 0a06 0a01'a' 1a01 ff", 0,
         FL_EXTPROC_REQUEST_HEADERS, "a=\xff,", "", false},
        {"0xff in a key", "12 0a 0a08 0a06 0a01 ff 1a01'v'", FL_EPROTO, FL_EXTPROC_NONE, "", "",
         false},
        {"0xff in value", "12 0a 0a08 0a06 0a01'a' 1201 ff", FL_EPROTO, FL_EXTPROC_NONE, "", "",
         false},
        {"0xff in a body", "22 03 0a01 ff", 0, FL_EXTPROC_REQUEST_BODY, "", "\xff", false},
        /* dependencies.md 4.1 */
        {"NUL in a name or a value drops that header",
         "12 1c 0a1a 0a06 0a01 00 1a01'v' 0a08 0a01'b' 1a03'v' 00 'w' 0a06 0a01'c' 1a01'v'", 0,
         FL_EXTPROC_REQUEST_HEADERS, "c=v,", "", false},
        {"malformed metadata", "42 03 0a 01 ff 22 03 0a01'x'", FL_EPROTO, FL_EXTPROC_NONE, "", "",
         false},
        {"malformed attributes", "4a 03 0a01 ff", FL_EPROTO, FL_EXTPROC_NONE, "", "", false},
        {"typed metadata is not looked at", "42 03 1201 ff", 0, FL_EXTPROC_NONE, "", "", false},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        for (size_t piece = 1; piece <= 4096; piece += 4095) {
            struct fl_extproc_request request;
            char seen[256];
            size_t at = 0;
            int rc = read_request(&request, rows[i].wire, piece);
            for (uint32_t k = 0; k < request.headers.count; k++)
                at += (size_t)snprintf(seen + at, sizeof(seen) - at, "%.*s=%.*s,",
                                       FL_FMT(request.headers.items[k].name),
                                       FL_FMT(request.headers.items[k].value));
            seen[at] = 0;
            if (rc != rows[i].rc || request.kind != rows[i].kind ||
                strcmp(seen, rows[i].headers) != 0 ||
                !fl_chain_eq_bytes(&request.body, fl_bytes_of(rows[i].body)) ||
                request.end_of_stream != rows[i].end_of_stream)
                fail_msg("row %zu: %s (pieces of %zu): rc %d kind %d headers %s", i, rows[i].why,
                         piece, rc, (int)request.kind, seen);
            fl_extproc_request_fini(&request);
        }
    }
}

static void answer_semantics(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *wire;
        int rc;
        enum fl_extproc_kind kind;
        enum fl_extproc_body_change change;
        const char *body;
        bool end_of_stream;
        uint32_t sets, removes;
    } rows[] = {
        {"nothing", "", 0, FL_EXTPROC_NONE, FL_EXTPROC_BODY_KEPT, "", false, 0, 0},
        {"empty header answer", "0a 00", 0, FL_EXTPROC_REQUEST_HEADERS, FL_EXTPROC_BODY_KEPT, "",
         false, 0, 0},
        {"plain body answer", "1a 02 0a00", 0, FL_EXTPROC_REQUEST_BODY, FL_EXTPROC_BODY_KEPT, "",
         false, 0, 0},
        {"whole body", "1a 08 0a06 1a04 0a02'{}'", 0, FL_EXTPROC_REQUEST_BODY,
         FL_EXTPROC_BODY_REPLACED, "{}", false, 0, 0},
        {"whole body, empty but there", "1a 06 0a04 1a02 0a00", 0, FL_EXTPROC_REQUEST_BODY,
         FL_EXTPROC_BODY_REPLACED, "", false, 0, 0},
        {"clear_body", "1a 06 0a04 1a02 1001", 0, FL_EXTPROC_REQUEST_BODY, FL_EXTPROC_BODY_CLEARED,
         "", false, 0, 0},
        {"clear_body false asks for nothing", "1a 06 0a04 1a02 1000", 0, FL_EXTPROC_REQUEST_BODY,
         FL_EXTPROC_BODY_KEPT, "", false, 0, 0},
        {"clear_body after body: the last member", "1a 09 0a07 1a05 0a01'x' 1001", 0,
         FL_EXTPROC_REQUEST_BODY, FL_EXTPROC_BODY_CLEARED, "", false, 0, 0},
        {"piece after body: the last member", "1a 0c 0a0a 1a08 0a01'x' 1a03 0a01'y'", 0,
         FL_EXTPROC_REQUEST_BODY, FL_EXTPROC_BODY_PIECE, "y", false, 0, 0},
        {"body after a piece: its end is forgotten", "1a 0b 0a09 1a07 1a02 1001 0a01'x'", 0,
         FL_EXTPROC_REQUEST_BODY, FL_EXTPROC_BODY_REPLACED, "x", false, 0, 0},
        {"pieces merge", "1a 0d 0a0b 1a09 1a03 0a01'x' 1a02 1001", 0, FL_EXTPROC_REQUEST_BODY,
         FL_EXTPROC_BODY_PIECE, "x", true, 0, 0},
        {"common responses merge", "1a 0c 0a02 2801 0a06 1a04 0a02'{}'", 0, FL_EXTPROC_REQUEST_BODY,
         FL_EXTPROC_BODY_REPLACED, "{}", false, 0, 0},
        {"mutation before the body", "1a 0d 0a0b 1203 1201'a' 1a04 0a02'{}'", 0,
         FL_EXTPROC_REQUEST_BODY, FL_EXTPROC_BODY_REPLACED, "{}", false, 0, 1},
        {"another member of the oneof replaces", "0a 09 0a07 1203 1201'a' 2801 2a 05 0a03 1201'b'",
         0, FL_EXTPROC_REQUEST_TRAILERS, FL_EXTPROC_BODY_KEPT, "", false, 0, 1},
        {"response body", "22 0d 0a0b 1a09 1a07 0a03'abc' 1001", 0, FL_EXTPROC_RESPONSE_BODY,
         FL_EXTPROC_BODY_PIECE, "abc", true, 0, 0},
        {"immediate: headers and body",
         "3a 18 0a03 08ad03 120c 0a0a 0a08 0a01'a' 1a03'b c' 1a03'abc'", 0, FL_EXTPROC_IMMEDIATE,
         FL_EXTPROC_BODY_KEPT, "abc", false, 1, 0},
        {"remove_headers is a string", "0a 07 0a05 1203 1201 ff", FL_EPROTO, FL_EXTPROC_NONE,
         FL_EXTPROC_BODY_KEPT, "", false, 0, 0},
        {"malformed dynamic metadata", "42 03 0a01 ff", FL_EPROTO, FL_EXTPROC_NONE,
         FL_EXTPROC_BODY_KEPT, "", false, 0, 0},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        for (size_t piece = 1; piece <= 4096; piece += 4095) {
            struct fl_extproc_response response;
            int rc = read_response(&response, rows[i].wire, piece);
            if (rc != rows[i].rc || response.kind != rows[i].kind ||
                response.body_change != rows[i].change ||
                !fl_chain_eq_bytes(&response.body, fl_bytes_of(rows[i].body)) ||
                response.end_of_stream != rows[i].end_of_stream ||
                response.mutation.set_count != rows[i].sets ||
                response.mutation.remove_count != rows[i].removes)
                fail_msg("row %zu: %s (pieces of %zu): rc %d kind %d", i, rows[i].why, piece, rc,
                         (int)response.kind);
            fl_extproc_response_fini(&response);
        }
    }
}

static void header_options_read_in_full(void **state)
{
    (void)state;
    struct fl_extproc_response response;

    /* set {a: r, append true}, set {b, action 1, keep_empty}, set with NUL; mode and timeout
     * override */
    int rc = read_response(&response,
                           "0a 25 0a23 1221"
                           "0a0c 0a06 0a01'a' 1a01'r' 1202 0801"
                           "0a09 0a03 0a01'b' 1801 2001"
                           "0a06 0a04 0a02'c' 00"
                           "4a00 5200",
                           4096);
    assert_int_equal(rc, 0);
    const struct fl_extproc_set *sets = response.mutation.sets;
    assert_int_equal(response.mutation.set_count, 3);
    assert_true(sets[0].has_append && sets[0].append && !sets[0].keep_empty);
    assert_text(sets[0].value, "r");
    assert_int_equal(sets[1].action, FL_EXTPROC_ADD_IF_ABSENT);
    assert_true(sets[1].keep_empty && !sets[1].has_append);
    assert_text(sets[1].value, "");
    assert_false(sets[1].is_dropped);
    assert_true(sets[2].is_dropped);
    assert_true(response.has_mode_override && response.has_timeout_override);
    fl_extproc_response_fini(&response);
}

/* design.md 5: the body is referenced, not copied */
static void a_body_in_chunks_keeps_its_chunks(void **state)
{
    (void)state;
    size_t n = 100000;
    uint8_t *bytes = malloc(n);
    struct fl_chain out = {0}, message;
    struct fl_extproc_request request = {0};
    struct fl_extproc_response response = {0};

    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(i * 7);
    struct fl_chain body = wire_chain(fl_bytes(bytes, n), 16384);
    fl_extproc_request_write(&out,
                             &(struct fl_extproc_request_out){.kind = FL_EXTPROC_REQUEST_BODY,
                                                              .body = &body,
                                                              .body_bytes = n,
                                                              .end_of_stream = true,
                                                              .served = FL_BYTES("1.2.3.4:80")});
    assert_true(wire_take(&out, &message));
    assert_int_equal(fl_extproc_request_read(&request, &message), 0);
    assert_true(request.end_of_stream);
    assert_true(request.has_metadata);
    assert_true(fl_chain_eq_bytes(&request.body, fl_bytes(bytes, n)));
    assert_int_equal(request.body.count, body.count);
    for (uint32_t i = 0; i < body.count; i++)
        assert_ptr_equal(fl_chain_at(&request.body, i).p, fl_chain_at(&body, i).p);

    fl_extproc_response_write(
        &out, &(struct fl_extproc_response_out){.kind = FL_EXTPROC_REQUEST_BODY,
                                                .body_change = FL_EXTPROC_BODY_PIECE,
                                                .body = &body,
                                                .body_offset = 1000,
                                                .body_bytes = 62000,
                                                .end_of_stream = true});
    assert_true(wire_take(&out, &message));
    assert_int_equal(fl_extproc_response_read(&response, &message), 0);
    assert_true(response.end_of_stream);
    assert_int_equal(response.body_change, FL_EXTPROC_BODY_PIECE);
    assert_true(fl_chain_eq_bytes(&response.body, fl_bytes(bytes + 1000, 62000)));
    assert_ptr_equal(fl_chain_at(&response.body, 0).p, fl_chain_at(&body, 0).p + 1000);

    fl_extproc_request_fini(&request);
    fl_extproc_response_fini(&response);
    fl_chain_fini(&body);
    fl_chain_fini(&out);
    free(bytes);
}

/* The cap of headers at, below and above its edge; gRPC status 8. */
static void headers_are_capped(void **state)
{
    (void)state;
    for (size_t count = FL_EXTPROC_MAX_HEADERS - 1; count <= FL_EXTPROC_MAX_HEADERS + 1; count++) {
        struct fl_pb_writer writer;
        struct fl_extproc_request request = {0};
        struct fl_extproc_response response = {0};
        fl_pb_writer_init(&writer, NULL, 0);
        for (size_t i = 0; i < count; i++)
            fl_pb_put_bytes(&writer, 1, FL_BYTES(""));
        fl_pb_put_message(&writer, 1, 0);
        fl_pb_put_message(&writer, 2, 0);
        struct fl_chain message = wire_chain(fl_pb_writer_prefix(&writer), 1 << 20);
        int expected = count <= FL_EXTPROC_MAX_HEADERS ? 0 : FL_ELIMIT;
        assert_int_equal(fl_extproc_request_read(&request, &message), expected);
        fl_extproc_request_fini(&request);
        fl_pb_writer_fini(&writer);

        for (uint32_t number = 1; number <= 2; number++) { /* set_headers, remove_headers */
            fl_pb_writer_init(&writer, NULL, 0);
            for (size_t i = 0; i < count; i++)
                fl_pb_put_bytes(&writer, number, FL_BYTES(""));
            fl_pb_put_message(&writer, 1, 0);
            fl_pb_put_message(&writer, 5, 0);
            message = wire_chain(fl_pb_writer_prefix(&writer), 1 << 20);
            assert_int_equal(fl_extproc_response_read(&response, &message), expected);
            fl_extproc_response_fini(&response);
            fl_pb_writer_fini(&writer);
        }
    }
}

/* Members that alternate must not make a message cost a table each. */
static void alternating_members_stay_cheap(void **state)
{
    (void)state;
    struct fl_pb_writer writer;
    struct fl_extproc_request request = {0};

    fl_pb_writer_init(&writer, NULL, 0);
    for (int i = 0; i < 100000; i++)
        fl_pb_put_raw(&writer, FL_BYTES("\x12\x04\x0a\x02\x0a\x00\x22\x00"));
    struct fl_chain message = wire_chain(fl_pb_writer_prefix(&writer), 1 << 20);
    fl_pb_writer_fini(&writer);
    assert_int_equal(fl_extproc_request_read(&request, &message), 0);
    assert_in_range(request.arena.held_bytes, 0, 1 << 16);
    fl_extproc_request_fini(&request);
}

/* ---- metadata ---- */

/* ProcessingRequest with filter_metadata[space][key] = the Value `value` (hex). */
static struct fl_chain with_metadata(const char *space, const char *key, const char *value)
{
    struct fl_pb_writer writer;
    uint8_t bytes[1024];
    size_t n = wire_bytes(value, bytes, sizeof(bytes));

    fl_pb_writer_init(&writer, NULL, 0);
    fl_pb_put_bytes(&writer, 2, fl_bytes(bytes, n));
    fl_pb_put_bytes(&writer, 1, fl_bytes_of(key));
    fl_pb_put_message(&writer, 1, 0);
    fl_pb_put_message(&writer, 2, 0);
    fl_pb_put_bytes(&writer, 1, fl_bytes_of(space));
    fl_pb_put_message(&writer, 1, 0);
    fl_pb_put_message(&writer, 8, 0);
    struct fl_chain chain = wire_chain(fl_pb_writer_prefix(&writer), 1 << 20);
    fl_pb_writer_fini(&writer);
    return chain;
}

static void join(char *out, size_t room, const struct fl_bytes *items, uint32_t count)
{
    size_t at = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < count; i++)
        at += (size_t)snprintf(out + at, room - at, "%.*s;", FL_FMT(items[i]));
}

/* gaie.md 2.1, epp.md 8 */
static void subset_hint_in_every_form(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *space, *key, *value;
        bool is_present, is_wrong;
        const char *items;
    } rows[] = {
        {"other namespace: every ready endpoint", "envoy.lb", FL_EXTPROC_SUBSET, "1a01'a'", false,
         false, ""},
        {"other key: every ready endpoint", "envoy.lb.subset_hint", "x", "1a01'a'", false, false,
         ""},
        {"list of strings", "envoy.lb.subset_hint", FL_EXTPROC_SUBSET,
         "32 0c 0a04 1a02'a1' 0a04 1a02'b2'", true, false, "a1;b2;"},
        {"list, one entry holding commas and blanks", "envoy.lb.subset_hint", FL_EXTPROC_SUBSET,
         "32 0c 0a0a 1a08'a:1, ,b:'", true, false, "a:1;b:;"},
        {"plain string with commas", "envoy.lb.subset_hint", FL_EXTPROC_SUBSET,
         "1a1b '10.0.0.7:8000,10.0.0.8:8000'", true, false, "10.0.0.7:8000;10.0.0.8:8000;"},
        {"empty list", "envoy.lb.subset_hint", FL_EXTPROC_SUBSET, "3200", true, false, ""},
        {"empty string", "envoy.lb.subset_hint", FL_EXTPROC_SUBSET, "1a00", true, false, ""},
        {"only commas", "envoy.lb.subset_hint", FL_EXTPROC_SUBSET, "1a03',, '", true, false, ""},
        {"non-string entries are ignored", "envoy.lb.subset_hint", FL_EXTPROC_SUBSET,
         "32 18 0a09 11 0000000000000840 0a03 1a01'a' 0a02 2001 0a02 0800", true, false, "a;"},
        {"null", "envoy.lb.subset_hint", FL_EXTPROC_SUBSET, "0800", true, true, ""},
        {"bool", "envoy.lb.subset_hint", FL_EXTPROC_SUBSET, "2001", true, true, ""},
        {"number", "envoy.lb.subset_hint", FL_EXTPROC_SUBSET, "11 0000000000000840", true, true,
         ""},
        {"struct", "envoy.lb.subset_hint", FL_EXTPROC_SUBSET, "2a00", true, true, ""},
        {"a Value without a member", "envoy.lb.subset_hint", FL_EXTPROC_SUBSET, "", true, true, ""},
        {"list given twice merges", "envoy.lb.subset_hint", FL_EXTPROC_SUBSET,
         "32 05 0a03 1a01'a' 32 05 0a03 1a01'b'", true, false, "a;b;"},
        {"string after list replaces", "envoy.lb.subset_hint", FL_EXTPROC_SUBSET,
         "32 05 0a03 1a01'a' 1a01'b'", true, false, "b;"},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_chain message = with_metadata(rows[i].space, rows[i].key, rows[i].value);
        struct fl_extproc_request request = {0};
        struct fl_extproc_subset subset;
        struct fl_arena arena;
        char seen[256];
        fl_arena_init(&arena, 0);
        assert_int_equal(fl_extproc_request_read(&request, &message), 0);
        assert_int_equal(fl_extproc_read_subset(request.metadata, &arena, &subset), 0);
        join(seen, sizeof(seen), subset.items, subset.count);
        if (subset.is_present != rows[i].is_present || subset.is_wrong_type != rows[i].is_wrong ||
            strcmp(seen, rows[i].items) != 0)
            fail_msg("row %zu: %s: %s", i, rows[i].why, seen);
        fl_arena_fini(&arena);
        fl_extproc_request_fini(&request);
    }
}

static void subset_hint_is_capped(void **state)
{
    (void)state;
    for (size_t count = FL_EXTPROC_MAX_SUBSET - 1; count <= FL_EXTPROC_MAX_SUBSET + 1; count++) {
        struct fl_bytes *items = calloc(count, sizeof(*items));
        struct fl_chain out = {0}, message;
        struct fl_extproc_request request = {0};
        struct fl_extproc_subset subset;
        struct fl_arena arena;
        for (size_t i = 0; i < count; i++)
            items[i] = FL_BYTES("a");
        fl_extproc_request_write(&out, &(struct fl_extproc_request_out){.has_subset = true,
                                                                        .subset = items,
                                                                        .subset_count = count});
        assert_true(wire_take(&out, &message));
        assert_int_equal(fl_extproc_request_read(&request, &message), 0);
        fl_arena_init(&arena, 0);
        assert_int_equal(fl_extproc_read_subset(request.metadata, &arena, &subset),
                         count <= FL_EXTPROC_MAX_SUBSET ? 0 : FL_ELIMIT);
        fl_arena_fini(&arena);
        fl_extproc_request_fini(&request);
        fl_chain_fini(&out);
        free(items);
    }
}

/* epp.md 5.4 */
static void served_endpoint_in_every_form(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *space, *value, *served; /* NULL: absent */
    } rows[] = {
        {"string", "envoy.lb", "1a04'a:80'", "a:80"},
        {"comma list: last non-empty item, trimmed", "envoy.lb", "1a0a'a:80, b:1,'", "b:1"},
        {"list: last non-empty string", "envoy.lb", "32 0c 0a03 1a01'a' 0a03 1a01'b' 0a00", "b"},
        {"empty string", "envoy.lb", "1a00", NULL},
        {"number", "envoy.lb", "11 0000000000000840", NULL},
        {"other namespace", "envoy.lb.subset_hint", "1a01'a'", NULL},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_chain message = with_metadata(rows[i].space, FL_EXTPROC_SERVED, rows[i].value);
        struct fl_extproc_request request = {0};
        struct fl_bytes served;
        struct fl_arena arena;
        fl_arena_init(&arena, 0);
        assert_int_equal(fl_extproc_request_read(&request, &message), 0);
        assert_int_equal(fl_extproc_read_served(request.metadata, &arena, &served), 0);
        if (rows[i].served == NULL ? !fl_bytes_is_absent(served)
                                   : !fl_bytes_eq(served, fl_bytes_of(rows[i].served)))
            fail_msg("row %zu: %s: %.*s", i, rows[i].why, FL_FMT(served));
        fl_arena_fini(&arena);
        fl_extproc_request_fini(&request);
    }
}

/* gaie.md 1.2: metadata_context given twice merges; a namespace given twice: the last */
static void metadata_merges_like_any_message(void **state)
{
    (void)state;
    struct fl_extproc_request request;
    struct fl_extproc_subset subset;
    struct fl_bytes served;
    struct fl_arena arena;

    fl_arena_init(&arena, 0);
    struct fl_chain message = with_metadata("envoy.lb.subset_hint", FL_EXTPROC_SUBSET, "1a01'a'");
    struct fl_chain second = with_metadata("envoy.lb", FL_EXTPROC_SERVED, "1a01's'");
    struct fl_chain third = with_metadata("envoy.lb.subset_hint", FL_EXTPROC_SUBSET, "1a01'b'");
    fl_chain_move(&message, &second);
    fl_chain_move(&message, &third);
    request = (struct fl_extproc_request){0};
    assert_int_equal(fl_extproc_request_read(&request, &message), 0);
    assert_int_equal(fl_extproc_read_subset(request.metadata, &arena, &subset), 0);
    assert_int_equal(subset.count, 1);
    assert_text(subset.items[0], "b");
    assert_int_equal(fl_extproc_read_served(request.metadata, &arena, &served), 0);
    assert_text(served, "s");
    fl_extproc_request_fini(&request);
    fl_chain_fini(&second);
    fl_chain_fini(&third);
    fl_arena_fini(&arena);
}

/* epp.md 24.3 row 35 */
static void metadata_deeper_than_100_is_refused(void **state)
{
    (void)state;
    /* metadata_context, map entry, Struct: 3 levels; each nested list is a Value and a ListValue.
     */
    for (size_t lists = 46; lists <= 48; lists++) {
        struct fl_pb_writer writer;
        struct fl_extproc_request request = {0};
        fl_pb_writer_init(&writer, NULL, 0);
        fl_pb_put_varint(&writer, 4, 1);
        for (size_t i = 0; i < lists; i++) {
            fl_pb_put_message(&writer, 1, 0); /* ListValue.values */
            fl_pb_put_message(&writer, 6, 0); /* Value.list_value */
        }
        fl_pb_put_message(&writer, 2, 0); /* entry value */
        fl_pb_put_message(&writer, 1, 0); /* Struct.fields */
        fl_pb_put_message(&writer, 2, 0);
        fl_pb_put_message(&writer, 1, 0);
        fl_pb_put_message(&writer, 8, 0);
        /* 5 levels to the outer Value, 2 for each list inside it. */
        size_t depth = 5 + 2 * lists;
        struct fl_chain message = wire_chain(fl_pb_writer_prefix(&writer), 1 << 20);
        fl_pb_writer_fini(&writer);
        assert_int_equal(fl_extproc_request_read(&request, &message),
                         depth <= FL_PB_MAX_DEPTH ? 0 : FL_EDEPTH);
        fl_extproc_request_fini(&request);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_written_byte_exact),
        cmocka_unit_test(answers_are_written_byte_exact),
        cmocka_unit_test(request_headers_leave_hop_by_hop_names_and_host_out),
        cmocka_unit_test(the_worked_bytes_read_back_however_they_are_cut),
        cmocka_unit_test(request_semantics),
        cmocka_unit_test(answer_semantics),
        cmocka_unit_test(header_options_read_in_full),
        cmocka_unit_test(a_body_in_chunks_keeps_its_chunks),
        cmocka_unit_test(headers_are_capped),
        cmocka_unit_test(alternating_members_stay_cheap),
        cmocka_unit_test(subset_hint_in_every_form),
        cmocka_unit_test(subset_hint_is_capped),
        cmocka_unit_test(served_endpoint_in_every_form),
        cmocka_unit_test(metadata_merges_like_any_message),
        cmocka_unit_test(metadata_deeper_than_100_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
