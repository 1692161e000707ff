/* SPDX-License-Identifier: Apache-2.0 */
#include "http2/grpc.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "base/alloc.h"

/* Slices below this size are joined once several wait: a slice costs a ring entry and a chunk
 * header, about 64 bytes, whatever it holds. */
#define JOIN_BELOW_BYTES 512
#define JOIN_FROM_COUNT 8
#define JOINT_ROOM 4096

void fl_grpc_reader_init(struct fl_grpc_reader *reader, uint32_t max_message_bytes,
                         struct fl_budget *budget)
{
    *reader = (struct fl_grpc_reader){.max_message_bytes = max_message_bytes};
    fl_joint_init(&reader->joint, JOINT_ROOM, budget);
}

void fl_grpc_reader_fini(struct fl_grpc_reader *reader)
{
    fl_chain_fini(&reader->pending);
    fl_joint_fini(&reader->joint);
}

void fl_grpc_reader_feed(struct fl_grpc_reader *reader, struct fl_slice slice)
{
    if (reader->rc < 0 || slice.n == 0) {
        fl_slice_unref(&slice);
        return;
    }
    if (slice.n < JOIN_BELOW_BYTES && reader->pending.count >= JOIN_FROM_COUNT) {
        struct fl_slice joined = fl_joint_copy(&reader->joint, fl_slice_bytes(slice));
        if (joined.p != NULL) { /* without memory it stays as it is */
            fl_slice_unref(&slice);
            slice = joined;
        }
    }
    fl_joint_push(&reader->pending, slice);
}

static int read_prefix(struct fl_grpc_reader *reader)
{
    uint8_t prefix[FL_GRPC_PREFIX_BYTES];

    fl_chain_copy_out(&reader->pending, 0, prefix, sizeof(prefix));
    if (prefix[0] > 1)
        return FL_EPROTO;
    uint32_t n = (uint32_t)prefix[1] << 24 | (uint32_t)prefix[2] << 16 | (uint32_t)prefix[3] << 8 |
                 prefix[4];
    if (n > reader->max_message_bytes)
        return FL_ELIMIT;
    /* We announce no encoding, so a peer that compresses ignores what was agreed. */
    if (prefix[0] == 1)
        return FL_EUNSUPPORTED;
    fl_chain_consume(&reader->pending, sizeof(prefix));
    reader->message_bytes = n;
    reader->has_prefix = true;
    return 0;
}

/* Moves the first `n` bytes over; whole slices move without touching their counts. */
static void move_front(struct fl_chain *to, struct fl_chain *from, size_t n)
{
    struct fl_slice slice;

    while (n > 0 && fl_chain_at(from, 0).n <= n) {
        fl_chain_pop(from, &slice);
        n -= slice.n;
        fl_chain_push(to, slice);
    }
    if (n > 0) {
        fl_chain_ref_range(to, from, 0, n);
        fl_chain_consume(from, n);
    }
}

int fl_grpc_reader_next(struct fl_grpc_reader *reader, struct fl_chain *message)
{
    if (reader->rc < 0)
        return reader->rc;
    if (!reader->has_prefix) {
        if (reader->pending.bytes < FL_GRPC_PREFIX_BYTES)
            return 0;
        int rc = read_prefix(reader);
        if (rc < 0) {
            reader->rc = rc;
            fl_grpc_reader_fini(reader);
            return rc;
        }
    }
    if (reader->pending.bytes < reader->message_bytes)
        return 0;
    move_front(message, &reader->pending, reader->message_bytes);
    reader->has_prefix = false;
    if (reader->pending.bytes == 0) {
        /* An idle stream keeps neither ring nor joint (performance.md d3). */
        fl_grpc_reader_fini(reader);
    }
    return 1;
}

bool fl_grpc_reader_is_between(const struct fl_grpc_reader *reader)
{
    return reader->rc == 0 && !reader->has_prefix && reader->pending.bytes == 0;
}

int fl_grpc_flatten(struct fl_chain *message, struct fl_budget *budget, struct fl_slice *flat)
{
    static const uint8_t nothing[1];

    if (message->bytes == 0) {
        *flat = (struct fl_slice){.p = nothing};
        return 0;
    }
    if (message->count == 1) {
        fl_chain_pop(message, flat);
        fl_chain_fini(message);
        return 0;
    }
    struct fl_chunk *chunk = fl_chunk_new(message->bytes, budget);
    if (chunk == NULL)
        return FL_ENOMEM;
    fl_chain_copy_out(message, 0, chunk->data, message->bytes);
    *flat = (struct fl_slice){.chunk = chunk, .p = chunk->data, .n = message->bytes};
    fl_chain_fini(message);
    return 0;
}

/* ---- writing ---- */

void fl_grpc_write_prefix(uint8_t out[FL_GRPC_PREFIX_BYTES], uint32_t message_bytes)
{
    out[0] = 0;
    out[1] = (uint8_t)(message_bytes >> 24);
    out[2] = (uint8_t)(message_bytes >> 16);
    out[3] = (uint8_t)(message_bytes >> 8);
    out[4] = (uint8_t)message_bytes;
}

struct fl_slice fl_grpc_frame(struct fl_bytes message)
{
    assert(message.n <= FL_CHUNK_MAX_BYTES);
    struct fl_chunk *chunk = fl_chunk_new(FL_GRPC_PREFIX_BYTES + message.n, NULL);
    if (chunk == NULL)
        return (struct fl_slice){0};
    fl_grpc_write_prefix(chunk->data, (uint32_t)message.n);
    if (message.n > 0)
        memcpy(chunk->data + FL_GRPC_PREFIX_BYTES, message.p, message.n);
    return (struct fl_slice){chunk, chunk->data, FL_GRPC_PREFIX_BYTES + message.n};
}

/* ---- heads and trailers ---- */

void fl_grpc_request_head(struct fl_head *head, struct fl_arena *arena, struct fl_bytes scheme,
                          struct fl_bytes authority, struct fl_bytes path)
{
    *head = (struct fl_head){
        .method = FL_BYTES("POST"),
        .scheme = scheme,
        .authority = authority,
        .target = path,
        .minor = 2,
        .is_h2 = true,
        .body = FL_BODY_STREAM,
        .content_length = UINT64_MAX,
        .arena = arena,
    };
    fl_fields_add(&head->fields, arena, FL_BYTES("te"), FL_BYTES("trailers"));
    fl_fields_add(&head->fields, arena, FL_BYTES("content-type"), FL_BYTES("application/grpc"));
}

void fl_grpc_response_head(struct fl_head *head, struct fl_arena *arena)
{
    *head = (struct fl_head){
        .status = 200,
        .minor = 2,
        .is_h2 = true,
        .body = FL_BODY_STREAM,
        .content_length = UINT64_MAX,
        .arena = arena,
    };
    fl_fields_add(&head->fields, arena, FL_BYTES("content-type"), FL_BYTES("application/grpc"));
}

/* Percent-encodes all but 0x20-0x24 and 0x26-0x7E (gRPC over HTTP/2, "Percent-Byte-Encoded"). */
static struct fl_bytes encode_message(struct fl_arena *arena, struct fl_bytes message)
{
    static const char hex[] = "0123456789ABCDEF";

    message = fl_bytes_head(message, FL_GRPC_MESSAGE_MAX);
    uint8_t *out = fl_arena_alloc(arena, message.n * 3);
    size_t n = 0;
    for (size_t i = 0; i < message.n; i++) {
        uint8_t byte = message.p[i];
        if (byte >= 0x20 && byte <= 0x7e && byte != '%') {
            out[n++] = byte;
        } else {
            out[n++] = '%';
            out[n++] = (uint8_t)hex[byte >> 4];
            out[n++] = (uint8_t)hex[byte & 15];
        }
    }
    return fl_bytes(out, n);
}

void fl_grpc_add_status(struct fl_fields *fields, struct fl_arena *arena, int status,
                        struct fl_bytes message)
{
    assert(status >= 0 && status <= 99);
    uint8_t *digits = fl_arena_alloc(arena, 2);
    size_t n = 0;
    if (status >= 10)
        digits[n++] = (uint8_t)('0' + status / 10);
    digits[n++] = (uint8_t)('0' + status % 10);
    fl_fields_add(fields, arena, FL_BYTES("grpc-status"), fl_bytes(digits, n));
    if (message.n > 0)
        fl_fields_add(fields, arena, FL_BYTES("grpc-message"), encode_message(arena, message));
}

static int hex_digit(uint8_t byte)
{
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    byte |= 0x20;
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* Whatever is not a proper escape stays as it is: the text is for people, never refused. */
static struct fl_bytes decode_message(struct fl_arena *arena, struct fl_bytes text)
{
    uint8_t *out = fl_arena_alloc(arena, text.n + 1);
    size_t n = 0;
    for (size_t i = 0; i < text.n; i++) {
        if (text.p[i] == '%' && text.n - i > 2 && hex_digit(text.p[i + 1]) >= 0 &&
            hex_digit(text.p[i + 2]) >= 0) {
            out[n++] = (uint8_t)(hex_digit(text.p[i + 1]) << 4 | hex_digit(text.p[i + 2]));
            i += 2;
        } else {
            out[n++] = text.p[i];
        }
    }
    return fl_bytes(out, n);
}

static int status_of_http(int http_status)
{
    static const struct {
        int http, grpc;
    } rows[] = {
        {400, FL_GRPC_INTERNAL},          {401, FL_GRPC_UNAUTHENTICATED},
        {403, FL_GRPC_PERMISSION_DENIED}, {404, FL_GRPC_UNIMPLEMENTED},
        {429, FL_GRPC_UNAVAILABLE},       {502, FL_GRPC_UNAVAILABLE},
        {503, FL_GRPC_UNAVAILABLE},       {504, FL_GRPC_UNAVAILABLE},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++)
        if (rows[i].http == http_status)
            return rows[i].grpc;
    return FL_GRPC_UNKNOWN;
}

int fl_grpc_read_status(const struct fl_head *head, const struct fl_fields *trailers,
                        struct fl_arena *arena, struct fl_bytes *message)
{
    const struct fl_fields *fields = trailers != NULL ? trailers : &head->fields;
    struct fl_bytes text = fl_fields_get(fields, FL_BYTES("grpc-message"));
    uint64_t status;

    if (message != NULL)
        *message = fl_bytes_is_absent(text) ? text : decode_message(arena, text);
    if (fl_bytes_to_u64(fl_fields_get(fields, FL_BYTES("grpc-status")), 99, &status))
        return status <= FL_GRPC_UNAUTHENTICATED ? (int)status : FL_GRPC_UNKNOWN;
    return head->status == 200 ? FL_GRPC_UNKNOWN : status_of_http(head->status);
}

bool fl_grpc_timeout_parse(struct fl_bytes value, uint64_t *timeout_ms)
{
    static const struct {
        uint8_t unit;
        uint64_t ns;
    } rows[] = {
        {'H', UINT64_C(3600000000000)},
        {'M', UINT64_C(60000000000)},
        {'S', UINT64_C(1000000000)},
        {'m', 1000000},
        {'u', 1000},
        {'n', 1},
    };
    uint64_t count;

    if (value.n < 2 || value.n > 9 ||
        !fl_bytes_to_u64(fl_bytes_head(value, value.n - 1), 99999999, &count))
        return false;
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        if (rows[i].unit != value.p[value.n - 1])
            continue;
        if (rows[i].ns >= 1000000) {
            *timeout_ms = count * (rows[i].ns / 1000000); /* at most 3.6e14 */
        } else {
            *timeout_ms = (count * rows[i].ns + 999999) / 1000000;
        }
        return true;
    }
    return false;
}

bool fl_grpc_is_content_type(struct fl_bytes value)
{
    static const size_t n = sizeof("application/grpc") - 1;

    return value.n >= n &&
           fl_bytes_eq_nocase(fl_bytes_head(value, n), FL_BYTES("application/grpc"));
}
