/* SPDX-License-Identifier: Apache-2.0 */
/* Writing, back to front (codec/pb.h): fields of a message are put in descending order, so that
 * they stand ascending on the wire and equal the worked bytes of gaie.md 1.4. */
#include <assert.h>
#include <stdint.h>

#include "codec/pb.h"
#include "extproc/message.h"
#include "extproc/schema.h"
#include "http2/grpc.h"

#define SCRATCH_BYTES 2048 /* a usual header message; larger ones go to the heap */

/* Field of the oneof for each kind, by direction: 2..7 in requests, 1..7 in answers (gaie.md 1.3).
 */
static const uint8_t request_number[FL_EXTPROC_KIND_COUNT] = {
    [FL_EXTPROC_REQUEST_HEADERS] = 2,  [FL_EXTPROC_RESPONSE_HEADERS] = 3,
    [FL_EXTPROC_REQUEST_BODY] = 4,     [FL_EXTPROC_RESPONSE_BODY] = 5,
    [FL_EXTPROC_REQUEST_TRAILERS] = 6, [FL_EXTPROC_RESPONSE_TRAILERS] = 7,
};
static const uint8_t response_number[FL_EXTPROC_KIND_COUNT] = {
    [FL_EXTPROC_REQUEST_HEADERS] = 1,  [FL_EXTPROC_RESPONSE_HEADERS] = 2,
    [FL_EXTPROC_REQUEST_BODY] = 3,     [FL_EXTPROC_RESPONSE_BODY] = 4,
    [FL_EXTPROC_REQUEST_TRAILERS] = 5, [FL_EXTPROC_RESPONSE_TRAILERS] = 6,
    [FL_EXTPROC_IMMEDIATE] = 7,
};

static bool is_body(enum fl_extproc_kind kind)
{
    return kind == FL_EXTPROC_REQUEST_BODY || kind == FL_EXTPROC_RESPONSE_BODY;
}

static bool is_trailers(enum fl_extproc_kind kind)
{
    return kind == FL_EXTPROC_REQUEST_TRAILERS || kind == FL_EXTPROC_RESPONSE_TRAILERS;
}

/* Sends what the writer holds: head with gRPC prefix, the body's bytes in the gap, what follows. */
static void finish(struct fl_chain *out, struct fl_pb_writer *writer, const struct fl_chain *body,
                   size_t body_offset)
{
    static const uint8_t eos[] = {0x10, 0x01}; /* field 2, true: nearly every suffix */
    uint8_t prefix[FL_GRPC_PREFIX_BYTES];
    size_t size = fl_pb_writer_size(writer);

    assert(size <= UINT32_MAX);
    fl_grpc_write_prefix(prefix, (uint32_t)size);
    fl_pb_put_raw(writer, fl_bytes(prefix, sizeof(prefix)));
    fl_chain_push(out, fl_slice_copy(fl_pb_writer_prefix(writer), NULL));
    if (writer->gap_bytes > 0)
        fl_chain_ref_range(out, body, body_offset, writer->gap_bytes);
    struct fl_bytes suffix = fl_pb_writer_suffix(writer);
    if (fl_bytes_eq(suffix, fl_bytes(eos, sizeof(eos))))
        fl_chain_push(out, (struct fl_slice){.p = eos, .n = sizeof(eos)});
    else if (suffix.n > 0)
        fl_chain_push(out, fl_slice_copy(suffix, NULL));
    fl_pb_writer_fini(writer);
}

/* HeaderValue as element `number`. */
static void put_header(struct fl_pb_writer *writer, uint32_t number, const struct fl_field *field)
{
    size_t mark = fl_pb_writer_size(writer);

    if (field->value.n > 0)
        fl_pb_put_bytes(writer, 3, field->value);
    fl_pb_put_lower(writer, 1, field->name);
    fl_pb_put_message(writer, number, mark);
}

/* A map entry around the Value put since `mark`, as element `number` of a Struct. */
static void put_entry(struct fl_pb_writer *writer, uint32_t number, struct fl_bytes key,
                      size_t mark)
{
    fl_pb_put_message(writer, 2, mark);
    fl_pb_put_bytes(writer, 1, key);
    fl_pb_put_message(writer, number, mark);
}

/* ---- ProcessingRequest ---- */

static void put_protocol(struct fl_pb_writer *writer, const struct fl_extproc_protocol *protocol)
{
    size_t mark = fl_pb_writer_size(writer);

    if (protocol->send_body_without_waiting)
        fl_pb_put_varint(writer, 3, 1);
    if (protocol->response_body_mode != 0)
        fl_pb_put_varint(writer, 2, (uint64_t)(int64_t)protocol->response_body_mode);
    if (protocol->request_body_mode != 0)
        fl_pb_put_varint(writer, 1, (uint64_t)(int64_t)protocol->request_body_mode);
    fl_pb_put_message(writer, 11, mark);
}

static void put_subset(struct fl_pb_writer *writer, const struct fl_bytes *items, size_t count)
{
    size_t mark = fl_pb_writer_size(writer);

    for (size_t i = count; i-- > 0;) {
        size_t value = fl_pb_writer_size(writer);
        fl_pb_put_bytes(writer, VALUE_STRING, items[i]);
        fl_pb_put_message(writer, 1, value); /* ListValue.values */
    }
    fl_pb_put_message(writer, VALUE_LIST, mark);
    put_entry(writer, 1, FL_BYTES(FL_EXTPROC_SUBSET), mark);
    put_entry(writer, 1, FL_BYTES("envoy.lb.subset_hint"), mark);
}

static void put_served(struct fl_pb_writer *writer, struct fl_bytes served)
{
    size_t mark = fl_pb_writer_size(writer);

    fl_pb_put_bytes(writer, VALUE_STRING, served);
    put_entry(writer, 1, FL_BYTES(FL_EXTPROC_SERVED), mark);
    put_entry(writer, 1, FL_BYTES("envoy.lb"), mark);
}

static void put_metadata(struct fl_pb_writer *writer, const struct fl_extproc_request_out *what)
{
    size_t mark = fl_pb_writer_size(writer);

    if (what->has_subset)
        put_subset(writer, what->subset, what->subset_count);
    if (!fl_bytes_is_absent(what->served))
        put_served(writer, what->served);
    if (fl_pb_writer_size(writer) > mark)
        fl_pb_put_message(writer, 8, mark);
}

/* gateway.md 9.2: hop-by-hop names stay here, :authority stands for host. */
static bool is_for_picker(const struct fl_extproc_request_out *what, struct fl_bytes name)
{
    if (what->kind != FL_EXTPROC_REQUEST_HEADERS)
        return true;
    return !fl_http_is_hop_by_hop(name) && !fl_bytes_eq_nocase(name, FL_BYTES("host")) &&
           !fl_fields_has_token(what->headers, FL_BYTES("connection"), name);
}

static void put_header_map(struct fl_pb_writer *writer, const struct fl_extproc_request_out *what)
{
    size_t mark = fl_pb_writer_size(writer);
    uint32_t count = what->headers != NULL ? what->headers->count : 0;

    for (uint32_t i = count; i-- > 0;) {
        if (is_for_picker(what, what->headers->items[i].name))
            put_header(writer, 1, &what->headers->items[i]);
    }
    for (size_t i = what->pseudo_count; i-- > 0;)
        put_header(writer, 1, &what->pseudo[i]);
    fl_pb_put_message(writer, 1, mark);
}

void fl_extproc_request_write(struct fl_chain *out, const struct fl_extproc_request_out *what)
{
    struct fl_pb_writer writer;
    uint8_t scratch[SCRATCH_BYTES];

    fl_pb_writer_init(&writer, scratch, sizeof(scratch));
    if (what->protocol != NULL)
        put_protocol(&writer, what->protocol);
    if (what->observability_mode)
        fl_pb_put_varint(&writer, 10, 1);
    put_metadata(&writer, what);

    size_t mark = fl_pb_writer_size(&writer);
    if (is_body(what->kind)) {
        if (what->end_of_stream)
            fl_pb_put_varint(&writer, 2, 1);
        if (what->body_bytes > 0)
            fl_pb_put_gap(&writer, 1, what->body_bytes);
    } else if (what->kind != FL_EXTPROC_NONE) {
        if (what->end_of_stream && !is_trailers(what->kind))
            fl_pb_put_varint(&writer, 3, 1);
        put_header_map(&writer, what);
    }
    assert(what->kind != FL_EXTPROC_IMMEDIATE);
    if (what->kind != FL_EXTPROC_NONE)
        fl_pb_put_message(&writer, request_number[what->kind], mark);
    finish(out, &writer, what->body, what->body_offset);
}

/* ---- ProcessingResponse ---- */

static void put_mutation(struct fl_pb_writer *writer, uint32_t number,
                         const struct fl_extproc_response_out *what)
{
    size_t mark = fl_pb_writer_size(writer);

    if (what->set_count == 0 && what->remove_count == 0)
        return;
    for (size_t i = what->remove_count; i-- > 0;)
        fl_pb_put_bytes(writer, 2, what->removes[i]);
    for (size_t i = what->set_count; i-- > 0;) {
        size_t option = fl_pb_writer_size(writer);
        fl_pb_put_varint(writer, 3, FL_EXTPROC_OVERWRITE_IF_EXISTS_OR_ADD);
        put_header(writer, 1, &what->sets[i]);
        fl_pb_put_message(writer, 1, option);
    }
    fl_pb_put_message(writer, number, mark);
}

static void put_body_change(struct fl_pb_writer *writer, const struct fl_extproc_response_out *what)
{
    size_t mark = fl_pb_writer_size(writer);

    switch (what->body_change) {
    case FL_EXTPROC_BODY_KEPT:
        return;
    case FL_EXTPROC_BODY_REPLACED:
        fl_pb_put_gap(writer, 1,
                      what->body_bytes); /* a member of a oneof: written also when empty */
        break;
    case FL_EXTPROC_BODY_CLEARED:
        fl_pb_put_varint(writer, 2, 1);
        break;
    case FL_EXTPROC_BODY_PIECE:
        if (what->end_of_stream)
            fl_pb_put_varint(writer, 2, 1);
        if (what->body_bytes > 0)
            fl_pb_put_gap(writer, 1, what->body_bytes);
        fl_pb_put_message(writer, 3, mark);
        break;
    }
    fl_pb_put_message(writer, 3, mark);
}

static void put_common(struct fl_pb_writer *writer, const struct fl_extproc_response_out *what)
{
    size_t mark = fl_pb_writer_size(writer);

    if (what->clear_route_cache)
        fl_pb_put_varint(writer, 5, 1);
    put_body_change(writer, what);
    put_mutation(writer, 2, what);
    fl_pb_put_message(writer, 1, mark); /* present also when it says nothing */
}

static void put_immediate(struct fl_pb_writer *writer, const struct fl_extproc_response_out *what)
{
    if (what->details.n > 0)
        fl_pb_put_bytes(writer, 5, what->details);
    if (what->body_bytes > 0)
        fl_pb_put_gap(writer, 3, what->body_bytes);
    put_mutation(writer, 2, what);
    size_t mark = fl_pb_writer_size(writer);
    fl_pb_put_varint(writer, 1, (uint64_t)what->http_status);
    fl_pb_put_message(writer, 1, mark);
}

static void put_destination(struct fl_pb_writer *writer, struct fl_bytes destination)
{
    size_t mark = fl_pb_writer_size(writer);

    fl_pb_put_bytes(writer, VALUE_STRING, destination);
    put_entry(writer, 1, FL_BYTES(FL_EXTPROC_DESTINATION), mark);
    fl_pb_put_message(writer, VALUE_STRUCT, mark);
    put_entry(writer, 1, FL_BYTES("envoy.lb"), mark);
    fl_pb_put_message(writer, 8, mark);
}

void fl_extproc_response_write(struct fl_chain *out, const struct fl_extproc_response_out *what)
{
    struct fl_pb_writer writer;
    uint8_t scratch[SCRATCH_BYTES];

    fl_pb_writer_init(&writer, scratch, sizeof(scratch));
    if (!fl_bytes_is_absent(what->destination))
        put_destination(&writer, what->destination);

    size_t mark = fl_pb_writer_size(&writer);
    if (what->kind == FL_EXTPROC_IMMEDIATE)
        put_immediate(&writer, what);
    else if (is_trailers(what->kind))
        put_mutation(&writer, 1, what);
    else if (what->kind != FL_EXTPROC_NONE)
        put_common(&writer, what);
    if (what->kind != FL_EXTPROC_NONE)
        fl_pb_put_message(&writer, response_number[what->kind], mark);
    finish(out, &writer, what->body, what->body_offset);
}
