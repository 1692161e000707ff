/* SPDX-License-Identifier: Apache-2.0 */
/* What our request parser makes of byte streams, for oracle_http1.js to compare with Node's.
 *
 * stdin: streams, each a 32-bit big-endian length and that many bytes, to the end of the file.
 * stdout: one JSON line a stream; all strings in hexadecimal, so that no escaping comes between.
 *   {"requests":[{"method":"","target":"","fields":["name","value",...],"body":"","trailers":[...]}],
 *    "end":"clean" | "cut" | "bad", "why":"..."}
 * Only complete requests are listed. */
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "codec/json.h"
#include "http1/http1.h"

#define MAX_STREAM_BYTES (1u << 20)

struct request {
    const struct fl_head *head;
    struct fl_buf body;
};

static void write_hex(struct fl_json_writer *writer, struct fl_bytes bytes)
{
    static const char digits[] = "0123456789abcdef";
    char *text = fl_alloc(bytes.n * 2 + 1);
    for (size_t i = 0; i < bytes.n; i++) {
        text[2 * i] = digits[bytes.p[i] >> 4];
        text[2 * i + 1] = digits[bytes.p[i] & 15];
    }
    text[bytes.n * 2] = 0;
    fl_json_write_cstr(writer, text);
    fl_free(text);
}

static void write_fields(struct fl_json_writer *writer, const char *key,
                         const struct fl_fields *fields)
{
    fl_json_write_key(writer, key);
    fl_json_write_array(writer);
    for (uint32_t i = 0; fields != NULL && i < fields->count; i++) {
        write_hex(writer, fields->items[i].name);
        write_hex(writer, fields->items[i].value);
    }
    fl_json_write_array_end(writer);
}

static void write_request(struct fl_json_writer *writer, const struct request *request,
                          const struct fl_fields *trailers)
{
    fl_json_write_object(writer);
    fl_json_write_key(writer, "method");
    write_hex(writer, request->head->method);
    fl_json_write_key(writer, "target");
    write_hex(writer, request->head->target);
    write_fields(writer, "fields", &request->head->fields);
    fl_json_write_key(writer, "body");
    write_hex(writer, fl_buf_bytes(&request->body));
    write_fields(writer, "trailers", trailers);
    fl_json_write_object_end(writer);
}

/* False at the end of the stream. */
static bool next_event(struct fl_http1_parser *parser, struct fl_arena *arena, struct fl_bytes *in,
                       struct fl_http1_event *ev, enum fl_http1_result *result)
{
    *result = fl_http1_feed(parser, arena, *in, ev);
    *in = fl_bytes_skip(*in, ev->consumed);
    if (*result != FL_HTTP1_MORE)
        return true;
    *result = fl_http1_feed_eof(parser, ev);
    return false;
}

static void run_stream(struct fl_bytes in)
{
    struct fl_http1_parser parser;
    struct fl_arena arena = {0};
    struct fl_buf line = {0};
    struct fl_json_writer writer;
    struct request request = {0};
    struct fl_http1_event ev;
    enum fl_http1_result result;
    bool goes_on;

    fl_http1_parser_init(&parser, FL_HTTP1_REQUESTS, &fl_http1_default_limits);
    fl_json_writer_init(&writer, &line);
    fl_json_write_object(&writer);
    fl_json_write_key(&writer, "requests");
    fl_json_write_array(&writer);
    do {
        goes_on = next_event(&parser, &arena, &in, &ev, &result);
        if (result == FL_HTTP1_HEAD) {
            request.head = ev.head;
            fl_buf_clear(&request.body);
        }
        if (result == FL_HTTP1_BODY && fl_buf_append(&request.body, ev.body) < 0)
            abort();
        if (result == FL_HTTP1_END || (result == FL_HTTP1_HEAD && ev.is_end))
            write_request(&writer, &request, ev.trailers);
    } while (goes_on && result != FL_HTTP1_BAD);
    fl_json_write_array_end(&writer);
    fl_json_write_key(&writer, "end");
    fl_json_write_cstr(&writer, result != FL_HTTP1_BAD      ? "clean"
                                : ev.defect == fl_http1_cut ? "cut"
                                                            : "bad");
    fl_json_write_key(&writer, "why");
    fl_json_write_cstr(&writer, result == FL_HTTP1_BAD ? ev.defect->why : "");
    fl_json_write_object_end(&writer);
    if (fl_json_writer_end(&writer) < 0)
        abort();
    printf("%.*s\n", FL_FMT(fl_buf_bytes(&line)));
    fl_http1_parser_fini(&parser);
    fl_arena_fini(&arena);
    fl_buf_fini(&line);
    fl_buf_fini(&request.body);
}

int main(void)
{
    uint8_t prefix[4];
    while (fread(prefix, 1, sizeof(prefix), stdin) == sizeof(prefix)) {
        size_t n =
            (size_t)prefix[0] << 24 | (size_t)prefix[1] << 16 | (size_t)prefix[2] << 8 | prefix[3];
        if (n > MAX_STREAM_BYTES)
            return 1;
        uint8_t *stream = fl_alloc(n);
        if (fread(stream, 1, n, stdin) != n)
            return 1;
        run_stream(fl_bytes(stream, n));
        fl_free(stream);
    }
    return 0;
}
