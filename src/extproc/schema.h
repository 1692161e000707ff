/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of ext_proc that we know, as tables for fl_pb_check(): what must be valid for a
 * message to be accepted. Numbers and types: gaie.md 1.3, epp.md 3. Whatever is not listed (typed
 * metadata, newer gRPC-mode fields) is skipped. The folder's own. */
#ifndef FL_EXTPROC_SCHEMA_H
#define FL_EXTPROC_SCHEMA_H

#include "codec/pb.h"

extern const struct fl_pb_type fl_extproc_request_type;  /* ProcessingRequest */
extern const struct fl_pb_type fl_extproc_response_type; /* ProcessingResponse */
extern const struct fl_pb_type fl_extproc_value_type;    /* google.protobuf.Value */

/* google.protobuf.Value, a oneof. */
enum {
    VALUE_NULL = 1,
    VALUE_NUMBER = 2,
    VALUE_STRING = 3,
    VALUE_BOOL = 4,
    VALUE_STRUCT = 5,
    VALUE_LIST = 6,
};

#endif
