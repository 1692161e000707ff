/* SPDX-License-Identifier: Apache-2.0 */
/* The writer: one length field of our own, no raw heads, nothing that breaks a line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "unit/http1/feeding.h"

/* Parses a request head; lies in `arena`. */
static struct fl_head *parse_request(struct fl_arena *arena, const char *text)
{
    struct fl_http1_parser parser;
    struct fl_http1_event ev;
    fl_http1_parser_init(&parser, FL_HTTP1_REQUESTS, &fl_http1_default_limits);
    enum fl_http1_result result = fl_http1_feed(&parser, arena, fl_bytes_of(text), &ev);
    if (result != FL_HTTP1_HEAD)
        fail_msg("not a request: %s", text);
    fl_http1_parser_fini(&parser);
    return ev.head;
}

static void add_fields(struct fl_head *head, struct fl_arena *arena, const char *const *fields)
{
    head->arena = arena;
    for (; fields[0] != NULL; fields += 2)
        fl_fields_add(&head->fields, arena, fl_bytes_of(fields[0]), fl_bytes_of(fields[1]));
}

static void expect_text(const struct fl_buf *out, const char *expected, const char *why)
{
    struct fl_bytes text = fl_buf_bytes(out);
    if (!fl_bytes_eq(text, fl_bytes_of(expected)))
        fail_msg("%s: wrote\n%.*s\nexpected\n%s", why, FL_FMT(text), expected);
}

#define MAX_FIELDS 16

/* gateway.md 7.3: a new head with one computed length; 7.1: order and case kept, Host unchanged */
static void a_request_is_serialised_anew(void **state)
{
    (void)state;
    static const struct {
        const char *why, *method, *target, *authority;
        const char *fields[MAX_FIELDS];
        enum fl_body_kind body;
        uint64_t length;
        bool keep_alive, is_upgrade;
        const char *text;
    } rows[] = {
        {"GET",
         "GET",
         "/a?b",
         "h:1",
         {"Host", "h:1", "x-A", "1", "X-a", "2"},
         FL_BODY_NONE,
         0,
         true,
         false,
         "GET /a?b HTTP/1.1\r\nHost: h:1\r\nx-A: 1\r\nX-a: 2\r\n\r\n"},
        {"host keeps place and case",
         "GET",
         "/",
         "h",
         {"a", "1", "hOST", "h", "b", ""},
         FL_BODY_NONE,
         0,
         true,
         false,
         "GET / HTTP/1.1\r\na: 1\r\nhOST: h\r\nb: \r\n\r\n"},
        {"authority wins over the field",
         "GET",
         "/",
         "new",
         {"Host", "old"},
         FL_BODY_NONE,
         0,
         true,
         false,
         "GET / HTTP/1.1\r\nHost: new\r\n\r\n"},
        {"never two Host lines",
         "GET",
         "/",
         "h",
         {"Host", "x", "host", "y"},
         FL_BODY_NONE,
         0,
         true,
         false,
         "GET / HTTP/1.1\r\nHost: h\r\n\r\n"},
        {"from HTTP/2: Host first",
         "GET",
         "/",
         "h",
         {"a", "1"},
         FL_BODY_NONE,
         0,
         true,
         false,
         "GET / HTTP/1.1\r\nHost: h\r\na: 1\r\n\r\n"},
        {"lengths that came along are ignored",
         "POST",
         "/",
         "h",
         {"Host", "h", "Content-Length", "99", "content-length", "7", "Transfer-Encoding",
          "chunked", "Connection", "x", "Keep-Alive", "y", "Proxy-Connection", "z"},
         FL_BODY_LENGTH,
         5,
         true,
         false,
         "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n"},
        {"the largest length",
         "POST",
         "/",
         "h",
         {"Host", "h"},
         FL_BODY_LENGTH,
         UINT64_MAX,
         true,
         false,
         "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551615\r\n\r\n"},
        {"POST without a body says so",
         "POST",
         "/",
         "h",
         {"Host", "h"},
         FL_BODY_NONE,
         0,
         true,
         false,
         "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"},
        {"chunked",
         "POST",
         "/",
         "h",
         {"Host", "h"},
         FL_BODY_CHUNKED,
         0,
         true,
         false,
         "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {"an HTTP/2 stream is chunked",
         "POST",
         "/",
         "h",
         {"Host", "h"},
         FL_BODY_STREAM,
         0,
         true,
         false,
         "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {"not kept",
         "GET",
         "/",
         "h",
         {"Host", "h"},
         FL_BODY_NONE,
         0,
         false,
         false,
         "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"},
        {"upgrade",
         "GET",
         "/",
         "h",
         {"Host", "h", "Upgrade", "x"},
         FL_BODY_NONE,
         0,
         true,
         true,
         "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"},
        {"Upgrade alone is dropped",
         "GET",
         "/",
         "h",
         {"Host", "h", "Upgrade", "h2c"},
         FL_BODY_NONE,
         0,
         true,
         false,
         "GET / HTTP/1.1\r\nHost: h\r\n\r\n"},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_arena arena = {0};
        struct fl_buf out = {0};
        struct fl_head head = {.method = fl_bytes_of(rows[i].method),
                               .target = fl_bytes_of(rows[i].target),
                               .authority = fl_bytes_of(rows[i].authority),
                               .body = (uint8_t)rows[i].body,
                               .is_upgrade = rows[i].is_upgrade,
                               .content_length = rows[i].length};
        add_fields(&head, &arena, rows[i].fields);
        assert_int_equal(fl_http1_write_request(&out, &head, rows[i].keep_alive), 0);
        expect_text(&out, rows[i].text, rows[i].why);
        fl_buf_fini(&out);
        fl_arena_fini(&arena);
    }
}

/* gateway.md 7.1: HEAD, 204, 304; close-delimited to chunked for 1.1, close-delimited for 1.0 */
static void an_answer_is_framed_for_its_request(void **state)
{
    (void)state;
#define GET11 "GET / HTTP/1.1\r\nHost: h\r\n\r\n"
#define GET10 "GET / HTTP/1.0\r\n\r\n"
#define KEEP10 "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
#define HEAD11 "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n"
    static const struct {
        const char *why, *request;
        uint16_t status;
        enum fl_body_kind body;
        uint64_t length;
        bool keep_alive;
        const char *text;
        enum fl_body_kind framed;
        bool kept;
    } rows[] = {
        {"length", GET11, 200, FL_BODY_LENGTH, 5, true,
         "HTTP/1.1 200 OK\r\na: b\r\nContent-Length: 5\r\n\r\n", FL_BODY_LENGTH, true},
        {"no body", GET11, 404, FL_BODY_NONE, UINT64_MAX, true,
         "HTTP/1.1 404 Not Found\r\na: b\r\nContent-Length: 0\r\n\r\n", FL_BODY_NONE, true},
        {"unknown length to 1.1", GET11, 200, FL_BODY_UNTIL_CLOSE, UINT64_MAX, true,
         "HTTP/1.1 200 OK\r\na: b\r\nTransfer-Encoding: chunked\r\n\r\n", FL_BODY_CHUNKED, true},
        {"an HTTP/2 stream to 1.1", GET11, 200, FL_BODY_STREAM, UINT64_MAX, true,
         "HTTP/1.1 200 OK\r\na: b\r\nTransfer-Encoding: chunked\r\n\r\n", FL_BODY_CHUNKED, true},
        {"chunked to 1.0", GET10, 200, FL_BODY_CHUNKED, UINT64_MAX, true,
         "HTTP/1.1 200 OK\r\na: b\r\nConnection: close\r\n\r\n", FL_BODY_UNTIL_CLOSE, false},
        {"chunked to 1.0 that wants to be kept", KEEP10, 200, FL_BODY_CHUNKED, UINT64_MAX, true,
         "HTTP/1.1 200 OK\r\na: b\r\nConnection: close\r\n\r\n", FL_BODY_UNTIL_CLOSE, false},
        {"length to 1.0 that wants to be kept", KEEP10, 200, FL_BODY_LENGTH, 1, true,
         "HTTP/1.1 200 OK\r\na: b\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\n",
         FL_BODY_LENGTH, true},
        {"length to 1.0", GET10, 200, FL_BODY_LENGTH, 1, true,
         "HTTP/1.1 200 OK\r\na: b\r\nContent-Length: 1\r\nConnection: close\r\n\r\n",
         FL_BODY_LENGTH, false},
        {"the caller closes", GET11, 200, FL_BODY_LENGTH, 1, false,
         "HTTP/1.1 200 OK\r\na: b\r\nContent-Length: 1\r\nConnection: close\r\n\r\n",
         FL_BODY_LENGTH, false},
        {"HEAD with a length", HEAD11, 200, FL_BODY_LENGTH, 5, true,
         "HTTP/1.1 200 OK\r\na: b\r\nContent-Length: 5\r\n\r\n", FL_BODY_NONE, true},
        {"HEAD, length unknown", HEAD11, 200, FL_BODY_CHUNKED, UINT64_MAX, true,
         "HTTP/1.1 200 OK\r\na: b\r\n\r\n", FL_BODY_NONE, true},
        {"204", GET11, 204, FL_BODY_NONE, 5, true, "HTTP/1.1 204 No Content\r\na: b\r\n\r\n",
         FL_BODY_NONE, true},
        {"304 with the length it told", GET11, 304, FL_BODY_NONE, 5, true,
         "HTTP/1.1 304 Not Modified\r\na: b\r\nContent-Length: 5\r\n\r\n", FL_BODY_NONE, true},
        {"304 without", GET11, 304, FL_BODY_NONE, UINT64_MAX, true,
         "HTTP/1.1 304 Not Modified\r\na: b\r\n\r\n", FL_BODY_NONE, true},
        {"100", GET11, 100, FL_BODY_NONE, UINT64_MAX, true, "HTTP/1.1 100 Continue\r\na: b\r\n\r\n",
         FL_BODY_NONE, true},
        {"a request that could not be parsed", NULL, 400, FL_BODY_LENGTH, 2, false,
         "HTTP/1.1 400 Bad Request\r\na: b\r\nContent-Length: 2\r\nConnection: close\r\n\r\n",
         FL_BODY_LENGTH, false},
        {"an unknown status", GET11, 799, FL_BODY_LENGTH, 2, true,
         "HTTP/1.1 799 Unknown\r\na: b\r\nContent-Length: 2\r\n\r\n", FL_BODY_LENGTH, true},
    };
    static const char *const fields[] = {"a",
                                         "b",
                                         "Content-Length",
                                         "77",
                                         "Connection",
                                         "close, x",
                                         "Transfer-Encoding",
                                         "gzip",
                                         "Upgrade",
                                         "h2c",
                                         NULL};
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_arena arena = {0};
        struct fl_buf out = {0};
        struct fl_http1_framing framing;
        struct fl_head *request =
            rows[i].request == NULL ? NULL : parse_request(&arena, rows[i].request);
        struct fl_head head = {.status = rows[i].status,
                               .body = (uint8_t)rows[i].body,
                               .content_length = rows[i].length};
        add_fields(&head, &arena, fields);
        assert_int_equal(
            fl_http1_write_response(&out, &head, request, rows[i].keep_alive, &framing), 0);
        expect_text(&out, rows[i].text, rows[i].why);
        if (framing.body != rows[i].framed || framing.keep_alive != rows[i].kept)
            fail_msg("%s: framed %u, kept %d", rows[i].why, framing.body, framing.keep_alive);
        fl_buf_fini(&out);
        fl_arena_fini(&arena);
    }
}

/* gateway.md 7.2 */
static void a_switch_is_answered_with_its_fields(void **state)
{
    (void)state;
    static const char *const fields[] = {"Upgrade", "x", NULL};
    struct fl_arena arena = {0};
    struct fl_buf out = {0};
    struct fl_http1_framing framing;
    struct fl_head head = {.status = 101, .is_upgrade = true, .body = FL_BODY_UNTIL_CLOSE};
    add_fields(&head, &arena, fields);
    assert_int_equal(
        fl_http1_write_response(&out, &head, parse_request(&arena, GET11), true, &framing), 0);
    expect_text(&out,
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
                "101");
    assert_int_equal(framing.body, FL_BODY_UNTIL_CLOSE);
    assert_false(framing.keep_alive);
    fl_buf_fini(&out);
    fl_arena_fini(&arena);
}

static void bytes_that_break_a_line_are_not_written(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        struct fl_bytes method, target, authority, name, value;
    } rows[] = {
#define B(literal) {(const uint8_t *)(literal), sizeof(literal) - 1}
        {"CRLF in a value", B("GET"), B("/"), B("h"), B("a"), B("b\r\nc: d")},
        {"LF in a value", B("GET"), B("/"), B("h"), B("a"), B("b\nc")},
        {"NUL in a value", B("GET"), B("/"), B("h"), B("a"), B("b\0c")},
        {"a name with a colon", B("GET"), B("/"), B("h"), B("a:"), B("b")},
        {"a pseudo field", B("GET"), B("/"), B("h"), B(":path"), B("/")},
        {"an empty name", B("GET"), B("/"), B("h"), B(""), B("b")},
        {"a blank in the target", B("GET"), B("/ HTTP/1.1"), B("h"), B("a"), B("b")},
        {"CRLF in the target", B("GET"), B("/\r\n"), B("h"), B("a"), B("b")},
        {"an empty target", B("GET"), B(""), B("h"), B("a"), B("b")},
        {"a blank in the method", B("GET /x"), B("/"), B("h"), B("a"), B("b")},
        {"CRLF in the authority", B("GET"), B("/"), B("h\r\nx: y"), B("a"), B("b")},
#undef B
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_arena arena = {0};
        struct fl_buf out = {0};
        struct fl_head head = {
            .method = rows[i].method, .target = rows[i].target, .authority = rows[i].authority};
        fl_fields_add(&head.fields, &arena, rows[i].name, rows[i].value);
        if (fl_http1_write_request(&out, &head, true) != FL_EPROTO || fl_buf_size(&out) != 0)
            fail_msg("%s was written", rows[i].why);
        head.status = 200;
        bool is_field = i < 6;
        int rc = fl_http1_write_response(&out, &head, NULL, true, NULL);
        if (is_field && (rc != FL_EPROTO || fl_buf_size(&out) != 0))
            fail_msg("%s was written in a response", rows[i].why);
        fl_buf_fini(&out);
        fl_arena_fini(&arena);
    }
}

static void a_head_that_does_not_fit_is_not_begun(void **state)
{
    (void)state;
    struct fl_buf out = {.max_bytes = 20};
    struct fl_head head = {.status = 200, .body = FL_BODY_NONE};
    assert_int_equal(fl_http1_write_response(&out, &head, NULL, true, NULL), FL_ELIMIT);
    assert_int_equal(fl_buf_size(&out), 0);
    fl_buf_fini(&out);
}

static void chunk_heads_are_plain_hex(void **state)
{
    (void)state;
    static const struct {
        uint64_t n;
        const char *text;
    } rows[] = {
        {1, "1\r\n"},
        {15, "f\r\n"},
        {16, "10\r\n"},
        {255, "ff\r\n"},
        {65536, "10000\r\n"},
        {0x123456789abcdef, "123456789abcdef\r\n"},
        {UINT64_MAX, "ffffffffffffffff\r\n"},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        uint8_t out[FL_HTTP1_CHUNK_HEAD_ROOM];
        size_t n = fl_http1_chunk_head(out, rows[i].n);
        assert_true(fl_bytes_eq(fl_bytes(out, n), fl_bytes_of(rows[i].text)));
    }
}

/* gateway.md 7.1 trailers */
static void trailers_are_written_without_the_dropped_ones(void **state)
{
    (void)state;
    struct fl_arena arena = {0};
    struct fl_buf out = {0};
    struct fl_fields trailers = {0};
    fl_fields_add(&trailers, &arena, FL_BYTES("a"), FL_BYTES("1"));
    fl_fields_add(&trailers, &arena, FL_BYTES("Content-Length"), FL_BYTES("1"));
    fl_fields_add(&trailers, &arena, FL_BYTES("b"), FL_BYTES("2"));
    assert_int_equal(fl_http1_write_trailers(&out, &trailers), 0);
    expect_text(&out, "0\r\na: 1\r\nb: 2\r\n\r\n", "trailers");
    fl_fields_add(&trailers, &arena, FL_BYTES("c"), FL_BYTES("\r\n"));
    fl_buf_clear(&out);
    assert_int_equal(fl_http1_write_trailers(&out, &trailers), FL_EPROTO);
    assert_int_equal(fl_buf_size(&out), 0);
    fl_buf_fini(&out);
    fl_arena_fini(&arena);
}

/* What the writer writes the parser reads back as the same message. */
static void written_messages_read_back(void **state)
{
    (void)state;
    static const char *const fields[] = {"Host", "h", "A", "1", "a", "", NULL};
    for (int kind = FL_BODY_NONE; kind <= FL_BODY_CHUNKED; kind++) {
        static const char *const said[] = {
            "PUT /x?y none 0 {Host: h|A: 1|a: |Content-Length: 0};",
            "PUT /x?y length 4 {Host: h|A: 1|a: |Content-Length: 4} [body] end;",
            "PUT /x?y chunked {Host: h|A: 1|a: |Transfer-Encoding: chunked} [body] end;"};
        struct feeding f;
        struct fl_arena arena = {0};
        struct fl_buf out = {0};
        uint8_t chunk[FL_HTTP1_CHUNK_HEAD_ROOM];
        struct fl_head head = {.method = FL_BYTES("PUT"),
                               .target = FL_BYTES("/x?y"),
                               .authority = FL_BYTES("h"),
                               .body = (uint8_t)kind,
                               .content_length = 4};
        add_fields(&head, &arena, fields);
        assert_int_equal(fl_http1_write_request(&out, &head, true), 0);
        if (kind == FL_BODY_CHUNKED)
            fl_buf_append(&out, fl_bytes(chunk, fl_http1_chunk_head(chunk, 4)));
        if (kind != FL_BODY_NONE)
            fl_buf_append(&out, FL_BYTES("body"));
        if (kind == FL_BODY_CHUNKED) {
            fl_buf_append(&out, FL_HTTP1_CHUNK_TAIL);
            fl_buf_append(&out, FL_HTTP1_LAST_CHUNK);
        }
        feeding_init(&f, NULL, &fl_http1_default_limits);
        f.with_fields = true;
        feeding_cut(&f, fl_buf_bytes(&out), SIZE_MAX, NULL);
        assert_string_equal(feeding_said(&f), said[kind]);
        feeding_fini(&f);
        fl_buf_fini(&out);
        fl_arena_fini(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_serialised_anew),
        cmocka_unit_test(an_answer_is_framed_for_its_request),
        cmocka_unit_test(a_switch_is_answered_with_its_fields),
        cmocka_unit_test(bytes_that_break_a_line_are_not_written),
        cmocka_unit_test(a_head_that_does_not_fit_is_not_begun),
        cmocka_unit_test(chunk_heads_are_plain_hex),
        cmocka_unit_test(trailers_are_written_without_the_dropped_ones),
        cmocka_unit_test(written_messages_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
