/* SPDX-License-Identifier: Apache-2.0 */
/* Heads are measured and checked first, then written in one go: one reservation, no partial head.
 */
#include "http1/http1.h"

#include <assert.h>

#define CRLF FL_BYTES("\r\n")
#define LENGTH_DIGITS_MAX 20

/* What stands between the start line and the blank line besides the fields. */
struct framing_lines {
    struct fl_bytes
        length; /* "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n" or absent */
    struct fl_bytes connection; /* "Connection: close\r\n" or absent */
    uint8_t room[sizeof("Content-Length: \r\n") + LENGTH_DIGITS_MAX];
};

static uint8_t *put(uint8_t *at, struct fl_bytes bytes)
{
    if (bytes.n > 0)
        memcpy(at, bytes.p, bytes.n);
    return at + bytes.n;
}

static size_t put_decimal(uint8_t out[LENGTH_DIGITS_MAX], uint64_t value)
{
    uint8_t digits[LENGTH_DIGITS_MAX];
    size_t n = 0;
    do {
        digits[n++] = (uint8_t)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    for (size_t i = 0; i < n; i++)
        out[i] = digits[n - 1 - i];
    return n;
}

static void set_length(struct framing_lines *lines, uint64_t length)
{
    uint8_t *at = put(lines->room, FL_BYTES("Content-Length: "));
    at += put_decimal(at, length);
    at = put(at, CRLF);
    lines->length = fl_bytes(lines->room, (size_t)(at - lines->room));
}

/* Framing and connection are the writer's own; a length field that came with the message would be a
 * second opinion. */
static bool is_ours(struct fl_bytes name, bool is_upgrade)
{
    switch (name.n) {
    case 7:
        return !is_upgrade && fl_bytes_eq_nocase(name, FL_BYTES("upgrade"));
    case 10:
        return fl_bytes_eq_nocase(name, FL_BYTES("connection")) ||
               fl_bytes_eq_nocase(name, FL_BYTES("keep-alive"));
    case 14:
        return fl_bytes_eq_nocase(name, FL_BYTES("content-length"));
    case 16:
        return fl_bytes_eq_nocase(name, FL_BYTES("proxy-connection"));
    case 17:
        return fl_bytes_eq_nocase(name, FL_BYTES("transfer-encoding"));
    default:
        return false;
    }
}

static bool is_host(struct fl_bytes name)
{
    return name.n == 4 && fl_bytes_eq_nocase(name, FL_BYTES("host"));
}

static bool is_writable(const struct fl_field *field)
{
    return fl_http_is_token(field->name) && fl_http_is_value(field->value);
}

static size_t line_length(const struct fl_field *field)
{
    return field->name.n + field->value.n + 4;
}

static uint8_t *put_line(uint8_t *at, struct fl_bytes name, struct fl_bytes value)
{
    at = put(at, name);
    at = put(at, FL_BYTES(": "));
    at = put(at, value);
    return put(at, CRLF);
}

/* Which lines of `fields` are written: all but ours, and Host lines in place of which one is
 * written that carries `authority` (requests; absent: Host lines are as any other). */
struct field_writer {
    const struct fl_fields *fields;
    struct fl_bytes authority;
    bool is_upgrade;
};

/* Bytes of all lines, or FL_EPROTO. */
static int64_t measure_fields(const struct field_writer *writer)
{
    const struct fl_fields *fields = writer->fields;
    size_t n = 0;
    for (uint32_t i = 0; i < fields->count; i++) {
        const struct fl_field *field = &fields->items[i];
        if (is_ours(field->name, writer->is_upgrade))
            continue;
        if (!is_writable(field))
            return FL_EPROTO;
        n += line_length(field);
    }
    if (!fl_bytes_is_absent(writer->authority))
        n += writer->authority.n + sizeof("Host: \r\n"); /* at most: it may replace a line */
    return (int64_t)n;
}

static uint8_t *put_fields(uint8_t *at, const struct field_writer *writer)
{
    const struct fl_fields *fields = writer->fields;
    bool has_authority = !fl_bytes_is_absent(writer->authority);
    bool wrote_host = false;
    if (has_authority && fl_fields_find(fields, FL_BYTES("host")) == NULL)
        at = put_line(at, FL_BYTES("Host"), writer->authority);
    for (uint32_t i = 0; i < fields->count; i++) {
        const struct fl_field *field = &fields->items[i];
        if (is_ours(field->name, writer->is_upgrade))
            continue;
        if (has_authority && is_host(field->name)) {
            if (!wrote_host)
                at = put_line(at, field->name, writer->authority);
            wrote_host = true;
            continue;
        }
        at = put_line(at, field->name, field->value);
    }
    return at;
}

/* start, fields, framing lines, blank line. `start` is in up to five pieces. */
static int write_head(struct fl_buf *out, const struct fl_bytes *start, size_t pieces,
                      const struct field_writer *writer, const struct framing_lines *lines)
{
    int64_t fields_bytes = measure_fields(writer);
    if (fields_bytes < 0)
        return (int)fields_bytes;
    size_t n = (size_t)fields_bytes + lines->length.n + lines->connection.n + CRLF.n;
    for (size_t i = 0; i < pieces; i++)
        n += start[i].n;

    uint8_t *begin = fl_buf_reserve(out, n);
    if (begin == NULL)
        return out->max_bytes > 0 && fl_buf_size(out) + n > out->max_bytes ? FL_ELIMIT : FL_ENOMEM;
    uint8_t *at = begin;
    for (size_t i = 0; i < pieces; i++)
        at = put(at, start[i]);
    at = put_fields(at, writer);
    at = put(at, lines->length);
    at = put(at, lines->connection);
    at = put(at, CRLF);
    assert((size_t)(at - begin) <= n);
    fl_buf_commit(out, (size_t)(at - begin));
    return 0;
}

/* ---- requests ---- */

static bool is_target(struct fl_bytes target)
{
    for (size_t i = 0; i < target.n; i++) {
        if (target.p[i] <= ' ' || target.p[i] >= 0x7f)
            return false;
    }
    return target.n > 0;
}

/* RFC 9110 8.6: methods for which a body is expected say that there is none. */
static bool expects_body(struct fl_bytes method)
{
    return fl_bytes_eq(method, FL_BYTES("POST")) || fl_bytes_eq(method, FL_BYTES("PUT")) ||
           fl_bytes_eq(method, FL_BYTES("PATCH"));
}

int fl_http1_write_request(struct fl_buf *out, const struct fl_head *head, bool keep_alive)
{
    struct framing_lines lines = {0};
    const struct fl_bytes start[] = {head->method, FL_BYTES(" "), head->target,
                                     FL_BYTES(" HTTP/1.1\r\n")};
    const struct field_writer writer = {&head->fields, head->authority, head->is_upgrade};

    if (!fl_http_is_token(head->method) || !is_target(head->target) ||
        (!fl_bytes_is_absent(head->authority) && !fl_http_is_value(head->authority)))
        return FL_EPROTO;
    if (head->body == FL_BODY_LENGTH)
        set_length(&lines, head->content_length);
    else if (head->body != FL_BODY_NONE)
        lines.length = FL_BYTES("Transfer-Encoding: chunked\r\n");
    else if (expects_body(head->method))
        set_length(&lines, 0);
    if (head->is_upgrade)
        lines.connection = FL_BYTES("Connection: upgrade\r\n");
    else if (!keep_alive)
        lines.connection = FL_BYTES("Connection: close\r\n");
    return write_head(out, start, FL_ARRAY_LEN(start), &writer, &lines);
}

/* ---- responses ---- */

static bool is_bodiless(int status)
{
    return status < 200 || status == 204 || status == 304;
}

static bool is_upgrade_answer(const struct fl_head *head)
{
    return head->status == 101 && head->is_upgrade;
}

/* How the body is framed, given the version and method of the request. */
static enum fl_body_kind plan_body(const struct fl_head *head, bool answers_head, uint8_t minor)
{
    if (is_upgrade_answer(head))
        return FL_BODY_UNTIL_CLOSE;
    if (answers_head || is_bodiless(head->status) || head->body == FL_BODY_NONE)
        return FL_BODY_NONE;
    if (head->body == FL_BODY_LENGTH)
        return FL_BODY_LENGTH;
    return minor >= 1 ? FL_BODY_CHUNKED : FL_BODY_UNTIL_CLOSE;
}

/* The length field that goes with it. An answer to HEAD has the one that GET would have got, as far
 * as it is known. */
static void plan_length(struct framing_lines *lines, const struct fl_head *head, bool answers_head,
                        enum fl_body_kind body)
{
    if (body == FL_BODY_CHUNKED) {
        lines->length = FL_BYTES("Transfer-Encoding: chunked\r\n");
        return;
    }
    if (body == FL_BODY_LENGTH) {
        set_length(lines, head->content_length);
        return;
    }
    if (body == FL_BODY_UNTIL_CLOSE || head->status < 200 || head->status == 204)
        return;
    if (answers_head || head->status == 304) {
        /* A head that was built with body NONE and says no length means an empty body only if it is
         * ours; one that came from an endpoint carries what is known. */
        if (head->content_length != UINT64_MAX)
            set_length(lines, head->content_length);
        return;
    }
    set_length(lines, 0);
}

int fl_http1_write_response(struct fl_buf *out, const struct fl_head *head,
                            const struct fl_head *request, bool keep_alive,
                            struct fl_http1_framing *framing)
{
    struct framing_lines lines = {0};
    const struct field_writer writer = {&head->fields, {NULL, 0}, is_upgrade_answer(head)};
    bool answers_head = request != NULL && fl_bytes_eq(request->method, FL_BYTES("HEAD"));
    uint8_t minor = request == NULL || request->is_h2 ? 1 : request->minor;
    uint8_t code[LENGTH_DIGITS_MAX];

    if (head->status < 100 || head->status > 999)
        return FL_EPROTO;
    enum fl_body_kind body = plan_body(head, answers_head, minor);
    plan_length(&lines, head, answers_head, body);
    if (request != NULL && !request->keep_alive)
        keep_alive = false;
    if (body == FL_BODY_UNTIL_CLOSE)
        keep_alive = false;
    if (is_upgrade_answer(head))
        lines.connection = FL_BYTES("Connection: upgrade\r\n");
    else if (head->status < 200)
        lines.connection = (struct fl_bytes){NULL, 0}; /* the final answer says it */
    else if (!keep_alive)
        lines.connection = FL_BYTES("Connection: close\r\n");
    else if (minor == 0)
        lines.connection = FL_BYTES("Connection: keep-alive\r\n");

    put_decimal(code, head->status);
    const struct fl_bytes start[] = {FL_BYTES("HTTP/1.1 "), fl_bytes(code, 3), FL_BYTES(" "),
                                     fl_bytes_of(fl_http_reason(head->status)), CRLF};
    int rc = write_head(out, start, FL_ARRAY_LEN(start), &writer, &lines);
    if (rc == 0 && framing != NULL)
        *framing = (struct fl_http1_framing){(uint8_t)body, keep_alive};
    return rc;
}

/* ---- chunks ---- */

size_t fl_http1_chunk_head(uint8_t out[FL_HTTP1_CHUNK_HEAD_ROOM], uint64_t n)
{
    static const char digits[] = "0123456789abcdef";
    assert(n > 0);
    size_t count = 16 - (size_t)__builtin_clzll(n) / 4;
    for (size_t i = 0; i < count; i++)
        out[i] = (uint8_t)digits[n >> (4 * (count - 1 - i)) & 15];
    out[count] = '\r';
    out[count + 1] = '\n';
    return count + 2;
}

int fl_http1_write_trailers(struct fl_buf *out, const struct fl_fields *trailers)
{
    struct fl_bytes first = FL_BYTES("0\r\n");
    size_t n = first.n + CRLF.n;
    for (uint32_t i = 0; i < trailers->count; i++) {
        const struct fl_field *field = &trailers->items[i];
        if (fl_http_is_dropped_trailer(field->name))
            continue;
        if (!is_writable(field))
            return FL_EPROTO;
        n += line_length(field);
    }
    uint8_t *at = fl_buf_reserve(out, n);
    if (at == NULL)
        return out->max_bytes > 0 && fl_buf_size(out) + n > out->max_bytes ? FL_ELIMIT : FL_ENOMEM;
    at = put(at, first);
    for (uint32_t i = 0; i < trailers->count; i++) {
        const struct fl_field *field = &trailers->items[i];
        if (!fl_http_is_dropped_trailer(field->name))
            at = put_line(at, field->name, field->value);
    }
    put(at, CRLF);
    fl_buf_commit(out, n);
    return 0;
}
