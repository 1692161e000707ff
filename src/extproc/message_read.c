/* SPDX-License-Identifier: Apache-2.0 */
/* Reading. A message in one slice is viewed where it lies. One in several slices is either small
 * and copied together, or a body message: then the body is cut out by reference and only what
 * surrounds it is copied.
 *
 *   message in chunks:  [tag len [tag len | body ......... body ... | eos ]| metadata ]
 *   what is parsed:     [tag len'[tag 0   |                         | eos ]| metadata ]
 *
 * Only the shape that every peer writes (body first) is cut; any other is copied together. */
#include "extproc/message.h"

#include <assert.h>
#include <string.h>

#include "codec/pb.h"
#include "extproc/schema.h"
#include "http2/grpc.h"

/* A known field with its wire type: others of that number are unknown fields. */
#define KEY(number, wire) ((uint64_t)(number) << 3 | (wire))
#define KEY_OF(field) KEY((field)->number, (field)->wire)
#define VARINT(number) KEY(number, FL_PB_VARINT)
#define BYTES(number) KEY(number, FL_PB_BYTES)

/* Levels of messages around the body of an answer. */
#define PATH_MAX_LEVELS 5
/* Around a cut body: end_of_stream and the metadata that Envoy repeats on each message. More is
 * copied together with the body. */
#define TAIL_MAX_BYTES 16384

/* ---- what a field handler needs; one walk for all messages ---- */

typedef int on_field_fn(void *view, const struct fl_pb_field *field);

static int walk(struct fl_bytes message, on_field_fn *on_field, void *view)
{
    struct fl_pb_reader reader;
    struct fl_pb_field field;
    int rc;

    assert(on_field != NULL);
    fl_pb_reader_init(&reader, message);
    while ((rc = fl_pb_next(&reader, &field)) > 0) {
        rc = on_field(view, &field);
        if (rc < 0)
            return rc;
    }
    return rc;
}

/* ---- headers, both ways ---- */

struct header_view {
    struct fl_bytes key, value, raw;
};

static int on_header_value(void *view, const struct fl_pb_field *field)
{
    struct header_view *header = view;

    switch (KEY_OF(field)) {
    case BYTES(1):
        header->key = field->bytes;
        break;
    case BYTES(2):
        header->value = field->bytes;
        break;
    case BYTES(3):
        header->raw = field->bytes;
        break;
    default:
        break;
    }
    return 0;
}

static struct fl_bytes value_of(const struct header_view *header)
{
    /* gaie.md 1.3: current Envoy fills raw_value alone, older proxies value. */
    struct fl_bytes value = header->raw.n > 0 ? header->raw : header->value;
    return fl_bytes_is_absent(value) ? FL_BYTES("") : value;
}

static bool has_nul(const struct header_view *header)
{
    struct fl_bytes value = value_of(header);
    return fl_bytes_index(header->key, 0) < header->key.n || fl_bytes_index(value, 0) < value.n;
}

/* ---- ProcessingRequest ---- */

struct request_view {
    struct fl_extproc_request *request;
    struct fl_bytes body; /* the one that stands so far, in contiguous bytes */
};

static int on_header_map(void *view, const struct fl_pb_field *field)
{
    struct fl_extproc_request *request = view;
    struct header_view header = {0};

    if (KEY_OF(field) != BYTES(1))
        return 0;
    if (request->headers.count + request->dropped_headers >= FL_EXTPROC_MAX_HEADERS)
        return FL_ELIMIT;
    int rc = walk(field->bytes, on_header_value, &header);
    if (rc < 0)
        return rc;
    if (has_nul(&header)) {
        request->dropped_headers++;
        return 0;
    }
    fl_fields_add(&request->headers, &request->arena,
                  fl_bytes_is_absent(header.key) ? FL_BYTES("") : header.key, value_of(&header));
    return 0;
}

static int on_http_headers(void *view, const struct fl_pb_field *field)
{
    struct fl_extproc_request *request = view;

    switch (KEY_OF(field)) {
    case BYTES(1):
        return walk(field->bytes, on_header_map, request);
    case VARINT(3):
        request->end_of_stream = field->value != 0;
        break;
    default:
        break;
    }
    return 0;
}

static int on_http_trailers(void *view, const struct fl_pb_field *field)
{
    return KEY_OF(field) == BYTES(1) ? walk(field->bytes, on_header_map, view) : 0;
}

static int on_http_body(void *view, const struct fl_pb_field *field)
{
    struct request_view *v = view;

    switch (KEY_OF(field)) {
    case BYTES(1):
        v->body = field->bytes;
        break;
    case VARINT(2):
        v->request->end_of_stream = field->value != 0;
        break;
    default:
        break;
    }
    return 0;
}

static int on_protocol(void *view, const struct fl_pb_field *field)
{
    struct fl_extproc_protocol *protocol = view;

    switch (KEY_OF(field)) {
    case VARINT(1):
        protocol->request_body_mode = fl_pb_int32(field->value);
        break;
    case VARINT(2):
        protocol->response_body_mode = fl_pb_int32(field->value);
        break;
    case VARINT(3):
        protocol->send_body_without_waiting = field->value != 0;
        break;
    default:
        break;
    }
    return 0;
}

/* A member of the oneof was seen: another one that stood before is forgotten, the same one merges.
 */
static void choose_request(struct request_view *v, enum fl_extproc_kind kind)
{
    struct fl_extproc_request *request = v->request;

    if (request->kind == kind)
        return;
    request->kind = kind;
    /* The table stays: alternating members must not make a message cost a table each. */
    request->headers.count = 0;
    request->headers.bytes = 0;
    request->dropped_headers = 0;
    request->end_of_stream = false;
    v->body = (struct fl_bytes){0};
}

static int on_request(void *view, const struct fl_pb_field *field)
{
    static const enum fl_extproc_kind kinds[] = {
        [2] = FL_EXTPROC_REQUEST_HEADERS,  [3] = FL_EXTPROC_RESPONSE_HEADERS,
        [4] = FL_EXTPROC_REQUEST_BODY,     [5] = FL_EXTPROC_RESPONSE_BODY,
        [6] = FL_EXTPROC_REQUEST_TRAILERS, [7] = FL_EXTPROC_RESPONSE_TRAILERS,
    };
    struct request_view *v = view;
    struct fl_extproc_request *request = v->request;

    switch (KEY_OF(field)) {
    case BYTES(2):
    case BYTES(3):
        choose_request(v, kinds[field->number]);
        return walk(field->bytes, on_http_headers, request);
    case BYTES(4):
    case BYTES(5):
        choose_request(v, kinds[field->number]);
        return walk(field->bytes, on_http_body, v);
    case BYTES(6):
    case BYTES(7):
        choose_request(v, kinds[field->number]);
        return walk(field->bytes, on_http_trailers, request);
    case VARINT(10):
        request->observability_mode = field->value != 0;
        break;
    case BYTES(8):
        request->has_metadata = true;
        break;
    case BYTES(11):
        request->has_protocol = true;
        return walk(field->bytes, on_protocol, &request->protocol);
    default:
        break;
    }
    return 0;
}

/* ---- ProcessingResponse ---- */

struct response_view {
    struct fl_extproc_response *response;
    struct fl_bytes body; /* the one that stands so far, in contiguous bytes */
};

/* Room for one more row, by doubling; the counts are capped. */
static void *grow(struct fl_arena *arena, void *rows, uint32_t count, uint32_t *cap, size_t size)
{
    if (count < *cap)
        return rows;
    *cap = *cap == 0 ? 8 : 2 * *cap;
    void *grown = fl_arena_alloc(arena, *cap * size);
    if (count > 0)
        memcpy(grown, rows, count * size);
    return grown;
}

struct option_view {
    struct header_view header;
    struct fl_extproc_set *set;
};

static int on_bool_value(void *view, const struct fl_pb_field *field)
{
    bool *value = view;
    if (KEY_OF(field) == VARINT(1))
        *value = field->value != 0;
    return 0;
}

static int on_header_option(void *view, const struct fl_pb_field *field)
{
    struct option_view *option = view;

    switch (KEY_OF(field)) {
    case BYTES(1):
        return walk(field->bytes, on_header_value, &option->header);
    case BYTES(2):
        option->set->has_append = true;
        return walk(field->bytes, on_bool_value, &option->set->append);
    case VARINT(3):
        option->set->action = fl_pb_int32(field->value);
        break;
    case VARINT(4):
        option->set->keep_empty = field->value != 0;
        break;
    default:
        break;
    }
    return 0;
}

static int add_set(struct fl_extproc_response *response, struct fl_bytes content)
{
    struct fl_extproc_mutation *mutation = &response->mutation;
    struct fl_extproc_set set = {0};
    struct option_view option = {.set = &set};

    if (mutation->set_count >= FL_EXTPROC_MAX_HEADERS)
        return FL_ELIMIT;
    int rc = walk(content, on_header_option, &option);
    if (rc < 0)
        return rc;
    set.name = fl_bytes_is_absent(option.header.key) ? FL_BYTES("") : option.header.key;
    set.value = value_of(&option.header);
    set.is_dropped = has_nul(&option.header);
    mutation->sets = grow(&response->arena, mutation->sets, mutation->set_count, &mutation->set_cap,
                          sizeof(set));
    mutation->sets[mutation->set_count++] = set;
    return 0;
}

static int on_header_mutation(void *view, const struct fl_pb_field *field)
{
    struct fl_extproc_response *response = view;
    struct fl_extproc_mutation *mutation = &response->mutation;

    switch (KEY_OF(field)) {
    case BYTES(1):
        return add_set(response, field->bytes);
    case BYTES(2):
        if (mutation->remove_count >= FL_EXTPROC_MAX_HEADERS)
            return FL_ELIMIT;
        mutation->removes = grow(&response->arena, mutation->removes, mutation->remove_count,
                                 &mutation->remove_cap, sizeof(*mutation->removes));
        mutation->removes[mutation->remove_count++] = field->bytes;
        break;
    default:
        break;
    }
    return 0;
}

static int on_streamed_response(void *view, const struct fl_pb_field *field)
{
    struct response_view *v = view;

    switch (KEY_OF(field)) {
    case BYTES(1):
        v->body = field->bytes;
        break;
    case VARINT(2):
        v->response->end_of_stream = field->value != 0;
        break;
    default:
        break;
    }
    return 0;
}

static void choose_body_change(struct response_view *v, enum fl_extproc_body_change change)
{
    if (v->response->body_change == change)
        return;
    v->response->body_change = change;
    v->response->end_of_stream = false;
    v->body = (struct fl_bytes){0};
}

static int on_body_mutation(void *view, const struct fl_pb_field *field)
{
    struct response_view *v = view;

    switch (KEY_OF(field)) {
    case BYTES(1):
        choose_body_change(v, FL_EXTPROC_BODY_REPLACED);
        v->body = field->bytes;
        break;
    case VARINT(2):
        /* clear_body false is a member that asks for nothing. */
        choose_body_change(v, field->value != 0 ? FL_EXTPROC_BODY_CLEARED : FL_EXTPROC_BODY_KEPT);
        break;
    case BYTES(3):
        choose_body_change(v, FL_EXTPROC_BODY_PIECE);
        return walk(field->bytes, on_streamed_response, v);
    default:
        break;
    }
    return 0;
}

static int on_common_response(void *view, const struct fl_pb_field *field)
{
    struct response_view *v = view;

    switch (KEY_OF(field)) {
    case VARINT(1):
        v->response->common_status = fl_pb_int32(field->value);
        break;
    case BYTES(2):
        return walk(field->bytes, on_header_mutation, v->response);
    case BYTES(3):
        return walk(field->bytes, on_body_mutation, v);
    case VARINT(5):
        v->response->clear_route_cache = field->value != 0;
        break;
    default:
        break;
    }
    return 0;
}

static int on_answer(void *view, const struct fl_pb_field *field)
{
    return KEY_OF(field) == BYTES(1) ? walk(field->bytes, on_common_response, view) : 0;
}

static int on_trailers_response(void *view, const struct fl_pb_field *field)
{
    struct response_view *v = view;
    return KEY_OF(field) == BYTES(1) ? walk(field->bytes, on_header_mutation, v->response) : 0;
}

static int on_http_status(void *view, const struct fl_pb_field *field)
{
    struct fl_extproc_response *response = view;
    if (KEY_OF(field) == VARINT(1))
        response->http_status = field->value;
    return 0;
}

static int on_immediate(void *view, const struct fl_pb_field *field)
{
    struct response_view *v = view;

    switch (KEY_OF(field)) {
    case BYTES(1):
        return walk(field->bytes, on_http_status, v->response);
    case BYTES(2):
        return walk(field->bytes, on_header_mutation, v->response);
    case BYTES(3):
        v->body = field->bytes;
        break;
    case BYTES(5):
        v->response->details = field->bytes;
        break;
    default:
        break;
    }
    return 0;
}

static void choose_response(struct response_view *v, enum fl_extproc_kind kind)
{
    struct fl_extproc_response *response = v->response;

    if (response->kind == kind)
        return;
    response->kind = kind;
    response->mutation.set_count = response->mutation.remove_count = 0; /* the tables stay */
    response->body_change = FL_EXTPROC_BODY_KEPT;
    response->end_of_stream = false;
    response->common_status = 0;
    response->clear_route_cache = false;
    response->http_status = 0;
    response->details = (struct fl_bytes){0};
    v->body = (struct fl_bytes){0};
}

static int on_response(void *view, const struct fl_pb_field *field)
{
    static const struct {
        enum fl_extproc_kind kind;
        on_field_fn *on_field;
    } members[] = {
        [1] = {FL_EXTPROC_REQUEST_HEADERS, on_answer},
        [2] = {FL_EXTPROC_RESPONSE_HEADERS, on_answer},
        [3] = {FL_EXTPROC_REQUEST_BODY, on_answer},
        [4] = {FL_EXTPROC_RESPONSE_BODY, on_answer},
        [5] = {FL_EXTPROC_REQUEST_TRAILERS, on_trailers_response},
        [6] = {FL_EXTPROC_RESPONSE_TRAILERS, on_trailers_response},
        [7] = {FL_EXTPROC_IMMEDIATE, on_immediate},
    };
    struct response_view *v = view;

    if (field->wire != FL_PB_BYTES)
        return 0;
    if (field->number <= 7) {
        choose_response(v, members[field->number].kind);
        return walk(field->bytes, members[field->number].on_field, v);
    }
    if (field->number == 8)
        v->response->has_dynamic_metadata = true;
    else if (field->number == 9)
        v->response->has_mode_override = true;
    else if (field->number == 10)
        v->response->has_timeout_override = true;
    return 0;
}

/* ---- cutting a body out of its chunks ---- */

/* Up to ten bytes of varint at `*offset` of the chain; moves it on. */
static bool read_chain_varint(const struct fl_chain *chain, size_t *offset, uint64_t *value)
{
    uint64_t result = 0;

    for (unsigned i = 0; i < 10 && *offset < chain->bytes; i++) {
        uint8_t byte;
        fl_chain_copy_out(chain, (*offset)++, &byte, 1);
        if (i == 9 && byte > 1)
            return false;
        result |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            *value = result;
            return true;
        }
    }
    return false;
}

struct cut {
    size_t offset, n;             /* of the body in the message */
    size_t ends[PATH_MAX_LEVELS]; /* of the content of each level; the last is the body's */
    unsigned levels;
};

/* True if the message begins with length-delimited fields `numbers`, each first inside the one
 * before. */
static bool find_body(const struct fl_chain *message, const uint8_t *numbers, struct cut *cut)
{
    size_t at = 0, end = message->bytes;

    cut->levels = 0;
    for (; numbers[cut->levels] != 0; cut->levels++) {
        uint64_t tag, n;
        if (!read_chain_varint(message, &at, &tag) || tag != BYTES(numbers[cut->levels]) ||
            !read_chain_varint(message, &at, &n) || at > end || n > end - at)
            return false;
        end = at + (size_t)n;
        cut->ends[cut->levels] = end;
    }
    cut->offset = at;
    cut->n = end - at;
    return true;
}

/* The message without the bytes of its body, in `memory`'s writer. */
static void write_around(struct fl_pb_writer *writer, const struct fl_chain *message,
                         const uint8_t *numbers, const struct cut *cut)
{
    uint8_t tail[TAIL_MAX_BYTES];
    size_t marks[PATH_MAX_LEVELS];
    size_t end = message->bytes;

    /* Back to front: what follows level 0, the mark of level 0, what follows level 1 inside it, ...
     */
    for (unsigned i = 0; i < cut->levels; i++) {
        size_t n = end - cut->ends[i];
        fl_chain_copy_out(message, cut->ends[i], tail, n);
        fl_pb_put_raw(writer, fl_bytes(tail, n));
        marks[i] = fl_pb_writer_size(writer);
        end = cut->ends[i];
    }
    for (unsigned i = cut->levels; i-- > 0;)
        fl_pb_put_message(writer, numbers[i], marks[i]);
}

/* The places where a body may stand; 0 ends a path. */
static const uint8_t request_paths[][PATH_MAX_LEVELS + 1] = {
    {4, 1}, /* request_body.body */
    {5, 1}, /* response_body.body */
};
static const uint8_t response_paths[][PATH_MAX_LEVELS + 1] = {
    {3, 1, 3, 3, 1}, /* request_body.response.body_mutation.streamed_response.body */
    {4, 1, 3, 3, 1}, /* response_body... */
    {3, 1, 3, 1},    /* request_body.response.body_mutation.body */
};

/* 1: `small` holds the message around its body and `cut` says where that is; 0: not of that shape.
 */
static int cut_body(const struct fl_chain *message, const uint8_t (*paths)[PATH_MAX_LEVELS + 1],
                    size_t path_count, struct fl_slice *small, struct cut *cut)
{
    for (size_t i = 0; i < path_count; i++) {
        struct fl_pb_writer writer;
        uint8_t memory[512];

        if (!find_body(message, paths[i], cut))
            continue;
        if (message->bytes - (cut->offset + cut->n) > TAIL_MAX_BYTES)
            return 0;
        fl_pb_writer_init(&writer, memory, sizeof(memory));
        write_around(&writer, message, paths[i], cut);
        *small = fl_slice_copy(fl_pb_writer_prefix(&writer), NULL);
        fl_pb_writer_fini(&writer);
        return small->p != NULL ? 1 : FL_ENOMEM;
    }
    return 0;
}

/* True if the body that stands is the one that was cut out. A later one may have replaced it; then
 * the message must be read whole. */
static bool is_cut_body(const struct fl_chain *message, const struct cut *cut,
                        struct fl_slice small, struct fl_bytes body)
{
    size_t tail = message->bytes - (cut->offset + cut->n);
    return body.p == small.p + small.n - tail;
}

/* References to `bytes`, which lie in `message`. */
static void ref_body(struct fl_chain *body, struct fl_slice message, struct fl_bytes bytes)
{
    if (bytes.n > 0)
        fl_chain_push(body, fl_slice_sub(message, (size_t)(bytes.p - message.p), bytes.n));
}

/* ---- whole messages ---- */

void fl_extproc_request_fini(struct fl_extproc_request *request)
{
    fl_chain_fini(&request->body);
    fl_slice_unref(&request->message);
    fl_arena_fini(&request->arena);
    *request = (struct fl_extproc_request){0};
}

/* Takes `message`, which is contiguous. `body` is what its bytes say of the body. */
static int parse_request(struct fl_extproc_request *request, struct fl_slice message,
                         struct fl_bytes *body)
{
    struct request_view view = {.request = request};
    struct fl_bytes bytes = fl_slice_bytes(message);

    *request = (struct fl_extproc_request){.message = message};
    fl_arena_init(&request->arena, FL_EXTPROC_VIEW_MAX_BYTES);
    int rc = fl_pb_check(bytes, &fl_extproc_request_type);
    if (rc == 0)
        rc = walk(bytes, on_request, &view);
    if (rc == 0 && request->has_metadata)
        rc = fl_pb_gather(&request->arena, bytes, 8, &request->metadata);
    if (rc < 0) {
        fl_extproc_request_fini(request);
        return rc;
    }
    *body = view.body;
    return 0;
}

int fl_extproc_request_read(struct fl_extproc_request *request, struct fl_chain *message)
{
    struct fl_slice flat = {0};
    struct fl_bytes body;
    struct cut cut;
    int rc = 0;

    if (message->count > 1) {
        rc = cut_body(message, request_paths, FL_ARRAY_LEN(request_paths), &flat, &cut);
        if (rc > 0)
            rc = parse_request(request, flat, &body);
        else if (rc == 0)
            goto whole;
        if (rc == 0 && is_cut_body(message, &cut, flat, body)) {
            fl_chain_ref_range(&request->body, message, cut.offset, cut.n);
            goto out;
        }
        fl_extproc_request_fini(request);
        if (rc < 0)
            goto out;
    }
whole:
    rc = fl_grpc_flatten(message, NULL, &flat);
    if (rc == 0)
        rc = parse_request(request, flat, &body);
    if (rc == 0)
        ref_body(&request->body, request->message, body);
out:
    fl_chain_fini(message);
    return rc;
}

void fl_extproc_response_fini(struct fl_extproc_response *response)
{
    fl_chain_fini(&response->body);
    fl_slice_unref(&response->message);
    fl_arena_fini(&response->arena);
    *response = (struct fl_extproc_response){0};
}

static int parse_response(struct fl_extproc_response *response, struct fl_slice message,
                          struct fl_bytes *body)
{
    struct response_view view = {.response = response};
    struct fl_bytes bytes = fl_slice_bytes(message);

    *response = (struct fl_extproc_response){.message = message};
    fl_arena_init(&response->arena, FL_EXTPROC_VIEW_MAX_BYTES);
    int rc = fl_pb_check(bytes, &fl_extproc_response_type);
    if (rc == 0)
        rc = walk(bytes, on_response, &view);
    if (rc == 0 && response->has_dynamic_metadata)
        rc = fl_pb_gather(&response->arena, bytes, 8, &response->dynamic_metadata);
    if (rc < 0) {
        fl_extproc_response_fini(response);
        return rc;
    }
    *body = view.body;
    return 0;
}

int fl_extproc_response_read(struct fl_extproc_response *response, struct fl_chain *message)
{
    struct fl_slice flat = {0};
    struct fl_bytes body;
    struct cut cut;
    int rc = 0;

    if (message->count > 1) {
        rc = cut_body(message, response_paths, FL_ARRAY_LEN(response_paths), &flat, &cut);
        if (rc > 0)
            rc = parse_response(response, flat, &body);
        else if (rc == 0)
            goto whole;
        if (rc == 0 && is_cut_body(message, &cut, flat, body)) {
            fl_chain_ref_range(&response->body, message, cut.offset, cut.n);
            goto out;
        }
        fl_extproc_response_fini(response);
        if (rc < 0)
            goto out;
    }
whole:
    rc = fl_grpc_flatten(message, NULL, &flat);
    if (rc == 0)
        rc = parse_response(response, flat, &body);
    if (rc == 0)
        ref_body(&response->body, response->message, body);
out:
    fl_chain_fini(message);
    return rc;
}

const char *fl_extproc_body_mode_name(int32_t mode)
{
    static const char *const names[] = {
        [FL_EXTPROC_BODY_NONE] = "NONE",
        [FL_EXTPROC_BODY_STREAMED] = "STREAMED",
        [FL_EXTPROC_BODY_BUFFERED] = "BUFFERED",
        [FL_EXTPROC_BODY_BUFFERED_PARTIAL] = "BUFFERED_PARTIAL",
        [FL_EXTPROC_BODY_FULL_DUPLEX] = "FULL_DUPLEX_STREAMED",
        [FL_EXTPROC_BODY_GRPC] = "GRPC",
    };
    return mode >= 0 && (size_t)mode < FL_ARRAY_LEN(names) ? names[mode] : "unknown";
}
