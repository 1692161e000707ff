/* SPDX-License-Identifier: Apache-2.0 */
#include "extproc/schema.h"

#define TYPE(text, table)                                                                          \
    {                                                                                              \
        .name = text, .rows = table, .row_count = sizeof(table) / sizeof((table)[0])               \
    }
#define ROW_VARINT(n, text)                                                                        \
    {                                                                                              \
        .number = n, .kind = FL_PB_KIND_VARINT, .name = text                                       \
    }
#define ROW_DOUBLE(n, text)                                                                        \
    {                                                                                              \
        .number = n, .kind = FL_PB_KIND_FIXED64, .name = text                                      \
    }
#define ROW_BYTES(n, text)                                                                         \
    {                                                                                              \
        .number = n, .kind = FL_PB_KIND_BYTES, .name = text                                        \
    }
#define ROW_STRING(n, text)                                                                        \
    {                                                                                              \
        .number = n, .kind = FL_PB_KIND_STRING, .name = text                                       \
    }
#define ROW_MESSAGE(n, text, t)                                                                    \
    {                                                                                              \
        .number = n, .kind = FL_PB_KIND_MESSAGE, .name = text, .type = &(t)                        \
    }

/* ---- google.protobuf.Struct: these three are recursive ---- */

static const struct fl_pb_type struct_type;
static const struct fl_pb_type list_value_type;

static const struct fl_pb_row value_rows[] = {
    ROW_VARINT(VALUE_NULL, "null_value"),
    ROW_DOUBLE(VALUE_NUMBER, "number_value"),
    ROW_STRING(VALUE_STRING, "string_value"),
    ROW_VARINT(VALUE_BOOL, "bool_value"),
    ROW_MESSAGE(VALUE_STRUCT, "struct_value", struct_type),
    ROW_MESSAGE(VALUE_LIST, "list_value", list_value_type),
};
const struct fl_pb_type fl_extproc_value_type = TYPE("Value", value_rows);

static const struct fl_pb_row list_value_rows[] = {
    ROW_MESSAGE(1, "values", fl_extproc_value_type),
};
static const struct fl_pb_type list_value_type = TYPE("ListValue", list_value_rows);

static const struct fl_pb_row struct_entry_rows[] = {
    ROW_STRING(1, "key"),
    ROW_MESSAGE(2, "value", fl_extproc_value_type),
};
static const struct fl_pb_type struct_entry_type = TYPE("Struct.FieldsEntry", struct_entry_rows);

static const struct fl_pb_row struct_rows[] = {
    ROW_MESSAGE(1, "fields", struct_entry_type),
};
static const struct fl_pb_type struct_type = TYPE("Struct", struct_rows);

/* map<string, Struct>: filter_metadata and attributes. */
static const struct fl_pb_row struct_map_entry_rows[] = {
    ROW_STRING(1, "key"),
    ROW_MESSAGE(2, "value", struct_type),
};
static const struct fl_pb_type struct_map_entry_type = TYPE("StructEntry", struct_map_entry_rows);

static const struct fl_pb_row metadata_rows[] = {
    ROW_MESSAGE(1, "filter_metadata", struct_map_entry_type),
};
static const struct fl_pb_type metadata_type = TYPE("Metadata", metadata_rows);

/* ---- headers ---- */

static const struct fl_pb_row header_value_rows[] = {
    ROW_STRING(1, "key"),
    ROW_STRING(2, "value"),
    ROW_BYTES(3, "raw_value"),
};
static const struct fl_pb_type header_value_type = TYPE("HeaderValue", header_value_rows);

static const struct fl_pb_row header_map_rows[] = {
    ROW_MESSAGE(1, "headers", header_value_type),
};
static const struct fl_pb_type header_map_type = TYPE("HeaderMap", header_map_rows);

static const struct fl_pb_row bool_value_rows[] = {
    ROW_VARINT(1, "value"),
};
static const struct fl_pb_type bool_value_type = TYPE("BoolValue", bool_value_rows);

static const struct fl_pb_row header_value_option_rows[] = {
    ROW_MESSAGE(1, "header", header_value_type),
    ROW_MESSAGE(2, "append", bool_value_type),
    ROW_VARINT(3, "append_action"),
    ROW_VARINT(4, "keep_empty_value"),
};
static const struct fl_pb_type header_value_option_type =
    TYPE("HeaderValueOption", header_value_option_rows);

static const struct fl_pb_row header_mutation_rows[] = {
    ROW_MESSAGE(1, "set_headers", header_value_option_type),
    ROW_STRING(2, "remove_headers"),
};
static const struct fl_pb_type header_mutation_type = TYPE("HeaderMutation", header_mutation_rows);

/* ---- ProcessingRequest ---- */

static const struct fl_pb_row http_headers_rows[] = {
    ROW_MESSAGE(1, "headers", header_map_type),
    ROW_VARINT(3, "end_of_stream"),
};
static const struct fl_pb_type http_headers_type = TYPE("HttpHeaders", http_headers_rows);

static const struct fl_pb_row http_body_rows[] = {
    ROW_BYTES(1, "body"),
    ROW_VARINT(2, "end_of_stream"),
};
static const struct fl_pb_type http_body_type = TYPE("HttpBody", http_body_rows);

static const struct fl_pb_row http_trailers_rows[] = {
    ROW_MESSAGE(1, "trailers", header_map_type),
};
static const struct fl_pb_type http_trailers_type = TYPE("HttpTrailers", http_trailers_rows);

static const struct fl_pb_row protocol_configuration_rows[] = {
    ROW_VARINT(1, "request_body_mode"),
    ROW_VARINT(2, "response_body_mode"),
    ROW_VARINT(3, "send_body_without_waiting_for_header_response"),
};
static const struct fl_pb_type protocol_configuration_type =
    TYPE("ProtocolConfiguration", protocol_configuration_rows);

static const struct fl_pb_row processing_request_rows[] = {
    ROW_MESSAGE(2, "request_headers", http_headers_type),
    ROW_MESSAGE(3, "response_headers", http_headers_type),
    ROW_MESSAGE(4, "request_body", http_body_type),
    ROW_MESSAGE(5, "response_body", http_body_type),
    ROW_MESSAGE(6, "request_trailers", http_trailers_type),
    ROW_MESSAGE(7, "response_trailers", http_trailers_type),
    ROW_MESSAGE(8, "metadata_context", metadata_type),
    ROW_MESSAGE(9, "attributes", struct_map_entry_type),
    ROW_VARINT(10, "observability_mode"),
    ROW_MESSAGE(11, "protocol_config", protocol_configuration_type),
};
const struct fl_pb_type fl_extproc_request_type =
    TYPE("ProcessingRequest", processing_request_rows);

/* ---- ProcessingResponse ---- */

static const struct fl_pb_row streamed_body_response_rows[] = {
    ROW_BYTES(1, "body"),
    ROW_VARINT(2, "end_of_stream"),
};
static const struct fl_pb_type streamed_body_response_type =
    TYPE("StreamedBodyResponse", streamed_body_response_rows);

static const struct fl_pb_row body_mutation_rows[] = {
    ROW_BYTES(1, "body"),
    ROW_VARINT(2, "clear_body"),
    ROW_MESSAGE(3, "streamed_response", streamed_body_response_type),
};
static const struct fl_pb_type body_mutation_type = TYPE("BodyMutation", body_mutation_rows);

static const struct fl_pb_row common_response_rows[] = {
    ROW_VARINT(1, "status"),
    ROW_MESSAGE(2, "header_mutation", header_mutation_type),
    ROW_MESSAGE(3, "body_mutation", body_mutation_type),
    ROW_MESSAGE(4, "trailers", header_map_type),
    ROW_VARINT(5, "clear_route_cache"),
};
static const struct fl_pb_type common_response_type = TYPE("CommonResponse", common_response_rows);

/* HeadersResponse and BodyResponse have the same shape. */
static const struct fl_pb_row answer_rows[] = {
    ROW_MESSAGE(1, "response", common_response_type),
};
static const struct fl_pb_type headers_response_type = TYPE("HeadersResponse", answer_rows);
static const struct fl_pb_type body_response_type = TYPE("BodyResponse", answer_rows);

static const struct fl_pb_row trailers_response_rows[] = {
    ROW_MESSAGE(1, "header_mutation", header_mutation_type),
};
static const struct fl_pb_type trailers_response_type =
    TYPE("TrailersResponse", trailers_response_rows);

static const struct fl_pb_row http_status_rows[] = {
    ROW_VARINT(1, "code"),
};
static const struct fl_pb_type http_status_type = TYPE("HttpStatus", http_status_rows);

static const struct fl_pb_row grpc_status_rows[] = {
    ROW_VARINT(1, "status"),
};
static const struct fl_pb_type grpc_status_type = TYPE("GrpcStatus", grpc_status_rows);

static const struct fl_pb_row immediate_response_rows[] = {
    ROW_MESSAGE(1, "status", http_status_type),
    ROW_MESSAGE(2, "headers", header_mutation_type),
    ROW_BYTES(3, "body"),
    ROW_MESSAGE(4, "grpc_status", grpc_status_type),
    ROW_STRING(5, "details"),
};
static const struct fl_pb_type immediate_response_type =
    TYPE("ImmediateResponse", immediate_response_rows);

static const struct fl_pb_row processing_mode_rows[] = {
    ROW_VARINT(1, "request_header_mode"),  ROW_VARINT(2, "response_header_mode"),
    ROW_VARINT(3, "request_body_mode"),    ROW_VARINT(4, "response_body_mode"),
    ROW_VARINT(5, "request_trailer_mode"), ROW_VARINT(6, "response_trailer_mode"),
};
static const struct fl_pb_type processing_mode_type = TYPE("ProcessingMode", processing_mode_rows);

static const struct fl_pb_row duration_rows[] = {
    ROW_VARINT(1, "seconds"),
    ROW_VARINT(2, "nanos"),
};
static const struct fl_pb_type duration_type = TYPE("Duration", duration_rows);

static const struct fl_pb_row processing_response_rows[] = {
    ROW_MESSAGE(1, "request_headers", headers_response_type),
    ROW_MESSAGE(2, "response_headers", headers_response_type),
    ROW_MESSAGE(3, "request_body", body_response_type),
    ROW_MESSAGE(4, "response_body", body_response_type),
    ROW_MESSAGE(5, "request_trailers", trailers_response_type),
    ROW_MESSAGE(6, "response_trailers", trailers_response_type),
    ROW_MESSAGE(7, "immediate_response", immediate_response_type),
    ROW_MESSAGE(8, "dynamic_metadata", struct_type),
    ROW_MESSAGE(9, "mode_override", processing_mode_type),
    ROW_MESSAGE(10, "override_message_timeout", duration_type),
};
const struct fl_pb_type fl_extproc_response_type =
    TYPE("ProcessingResponse", processing_response_rows);
