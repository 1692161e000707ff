/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of envoy.service.ext_proc.v3.ExternalProcessor/Process, read and written, both ways.
 *
 *   proxy  -- ProcessingRequest -->  picker        proxy  <-- ProcessingResponse --  picker
 *
 * Reading takes a gRPC message (a chain of slices) and gives a view: names, values and metadata
 * point into the message, which the view keeps. A body is never copied: `body` holds references to
 * the message's own chunks, also when the message lies in many of them. Every message is checked
 * whole (codec/pb.h) before a view is given; header names or values with a NUL are dropped and
 * counted (dependencies.md 4.1).
 *
 * Writing appends one framed gRPC message to a chain: prefix and head in one small slice, then
 * references to the body's chunks, then what follows the body.
 *
 * Metadata (google.protobuf.Struct) stays in wire form; the three values we know are looked up on
 * demand. All of it is pure: no sockets, no clock, one thread. gaie.md 1.3, 1.4; epp.md 3. */
#ifndef FL_EXTPROC_MESSAGE_H
#define FL_EXTPROC_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "http/message.h"

#define FL_EXTPROC_PATH "/envoy.service.ext_proc.v3.ExternalProcessor/Process"

/* Headers, set_headers or remove_headers of one message; one wire byte pair would otherwise cost a
 * row of 32 bytes or more. Envoy stops at 100 headers by default. Beyond: FL_ELIMIT. */
#define FL_EXTPROC_MAX_HEADERS 1024
/* Entries of a subset hint: several times the largest pool. Beyond: FL_ELIMIT. */
#define FL_EXTPROC_MAX_SUBSET 8192
/* What one view may take from the heap besides its message (tables, rarely merged metadata). A
 * message is at most 11 MiB; merging copies it once. */
#define FL_EXTPROC_VIEW_MAX_BYTES (16u << 20)

#define FL_EXTPROC_DESTINATION "x-gateway-destination-endpoint"
#define FL_EXTPROC_SERVED "x-gateway-destination-endpoint-served"
#define FL_EXTPROC_SUBSET "x-gateway-destination-endpoint-subset"
#define FL_EXTPROC_PREFILL "x-prefiller-host-port"

enum fl_extproc_kind {
    FL_EXTPROC_NONE, /* no member of the oneof is set */
    FL_EXTPROC_REQUEST_HEADERS,
    FL_EXTPROC_RESPONSE_HEADERS,
    FL_EXTPROC_REQUEST_BODY,
    FL_EXTPROC_RESPONSE_BODY,
    FL_EXTPROC_REQUEST_TRAILERS,
    FL_EXTPROC_RESPONSE_TRAILERS,
    FL_EXTPROC_IMMEDIATE, /* answers only */
    FL_EXTPROC_KIND_COUNT,
};

/* envoy.extensions.filters.http.ext_proc.v3.ProcessingMode.BodySendMode */
enum fl_extproc_body_mode {
    FL_EXTPROC_BODY_NONE = 0,
    FL_EXTPROC_BODY_STREAMED = 1,
    FL_EXTPROC_BODY_BUFFERED = 2,
    FL_EXTPROC_BODY_BUFFERED_PARTIAL = 3,
    FL_EXTPROC_BODY_FULL_DUPLEX = 4,
    FL_EXTPROC_BODY_GRPC = 5,
};

/* "FULL_DUPLEX_STREAMED", ...; "unknown" for other numbers. */
const char *fl_extproc_body_mode_name(int32_t mode);

struct fl_extproc_protocol {
    int32_t request_body_mode, response_body_mode; /* enum fl_extproc_body_mode, or anything */
    bool send_body_without_waiting;
};

/* ---- ProcessingRequest ---- */

struct fl_extproc_request {
    enum fl_extproc_kind kind;
    struct fl_fields
        headers; /* headers or trailers: raw_value if not empty, else value; in order */
    uint32_t dropped_headers; /* held a NUL */
    bool end_of_stream;       /* of headers or body */
    struct fl_chain body;     /* of a body message: references */
    bool has_metadata;
    struct fl_bytes metadata; /* Metadata in wire form, a view */
    bool observability_mode;
    bool has_protocol;
    struct fl_extproc_protocol protocol;
    /* what the views point into */
    struct fl_slice message;
    struct fl_arena arena;
};

/* Reads one message, emptying `message` (also on failure). `request` is zeroed or was finished; it
 * is empty after a failure. 0; FL_EPROTO or FL_EDEPTH: gRPC status 3; FL_ELIMIT, FL_ENOMEM:
 * status 8. */
int fl_extproc_request_read(struct fl_extproc_request *request, struct fl_chain *message);
/* Idempotent. */
void fl_extproc_request_fini(struct fl_extproc_request *request);

/* What to write; zeroed fields are absent. Everything is borrowed. */
struct fl_extproc_request_out {
    enum fl_extproc_kind kind;
    const struct fl_field *pseudo; /* written before `headers` */
    size_t pseudo_count;
    const struct fl_fields *headers; /* NULL: none */
    bool end_of_stream;
    const struct fl_chain *body; /* bytes [body_offset, body_offset + body_bytes) of it */
    size_t body_offset, body_bytes;
    bool has_subset; /* a hint, which may be empty */
    const struct fl_bytes *subset;
    size_t subset_count;
    struct fl_bytes served;
    bool observability_mode;
    const struct fl_extproc_protocol *protocol;
};

/* Appends the framed message to `out`. Names go out in lower case; fields whose name is hop-by-hop
 * or listed by Connection are left out of request headers, and `host`, which :authority stands for.
 */
void fl_extproc_request_write(struct fl_chain *out, const struct fl_extproc_request_out *what);

/* ---- ProcessingResponse ---- */

enum fl_extproc_append_action {
    FL_EXTPROC_APPEND_IF_EXISTS_OR_ADD = 0,
    FL_EXTPROC_ADD_IF_ABSENT = 1,
    FL_EXTPROC_OVERWRITE_IF_EXISTS_OR_ADD = 2,
    FL_EXTPROC_OVERWRITE_IF_EXISTS = 3,
};

struct fl_extproc_set {
    struct fl_bytes name, value;
    int32_t action;  /* enum fl_extproc_append_action, or anything */
    bool has_append; /* the deprecated wrapper was there... */
    bool append;     /* ...with this value */
    bool keep_empty;
    bool is_dropped; /* name or value held a NUL */
};

struct fl_extproc_mutation {
    struct fl_extproc_set *sets;
    uint32_t set_count, set_cap;
    struct fl_bytes *removes;
    uint32_t remove_count, remove_cap;
};

enum fl_extproc_body_change {
    FL_EXTPROC_BODY_KEPT,     /* no body mutation */
    FL_EXTPROC_BODY_REPLACED, /* `body` is the whole body */
    FL_EXTPROC_BODY_CLEARED,
    FL_EXTPROC_BODY_PIECE, /* streamed_response: `body` is its next piece */
};

struct fl_extproc_response {
    enum fl_extproc_kind kind;
    struct fl_extproc_mutation mutation; /* of the answer, or an immediate response's headers */
    enum fl_extproc_body_change body_change;
    struct fl_chain body;  /* of the mutation, or the immediate response's: references */
    bool end_of_stream;    /* of a piece */
    int32_t common_status; /* 1: CONTINUE_AND_REPLACE */
    bool clear_route_cache;
    uint64_t http_status; /* of an immediate response; 0: absent */
    struct fl_bytes details;
    bool has_dynamic_metadata;
    struct fl_bytes dynamic_metadata; /* Struct in wire form, a view */
    bool has_mode_override, has_timeout_override;
    /* what the views point into */
    struct fl_slice message;
    struct fl_arena arena;
};

/* As fl_extproc_request_read(). */
int fl_extproc_response_read(struct fl_extproc_response *response, struct fl_chain *message);
void fl_extproc_response_fini(struct fl_extproc_response *response);

struct fl_extproc_response_out {
    enum fl_extproc_kind kind;
    const struct fl_field *sets; /* raw_value, append_action 2 */
    size_t set_count;
    const struct fl_bytes *removes;
    size_t remove_count;
    bool clear_route_cache;
    enum fl_extproc_body_change body_change;
    const struct fl_chain *body; /* of a change; an immediate response's body likewise */
    size_t body_offset, body_bytes;
    bool end_of_stream;
    struct fl_bytes destination; /* dynamic metadata envoy.lb; absent: none */
    int http_status;             /* immediate response */
    struct fl_bytes details;
};

void fl_extproc_response_write(struct fl_chain *out, const struct fl_extproc_response_out *what);

/* ---- the values in metadata ---- */

struct fl_extproc_subset {
    bool is_present;    /* the key is there: only what is listed is a candidate, also if that is
                           nothing */
    bool is_wrong_type; /* neither string nor list: no candidates, and worth a warning (gaie.md 2.1)
                         */
    struct fl_bytes
        *items; /* `ip`, `ip:port`, `[v6]:port`, trimmed, not empty, otherwise unchecked */
    uint32_t count;
};

/* `metadata` is that of a request view. 0 (is_present tells), FL_ELIMIT, FL_ENOMEM. */
int fl_extproc_read_subset(struct fl_bytes metadata, struct fl_arena *arena,
                           struct fl_extproc_subset *subset);
/* The served endpoint: last non-empty item of the string's comma list, or last non-empty string of
 * the list (epp.md 5.4); absent if there is none. */
int fl_extproc_read_served(struct fl_bytes metadata, struct fl_arena *arena,
                           struct fl_bytes *endpoint);
/* dynamic_metadata["envoy.lb"][FL_EXTPROC_DESTINATION] if it is a string, else absent. */
int fl_extproc_read_destination(struct fl_bytes dynamic_metadata, struct fl_arena *arena,
                                struct fl_bytes *destination);

#endif
