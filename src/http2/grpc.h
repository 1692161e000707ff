/* SPDX-License-Identifier: Apache-2.0 */
/* gRPC over HTTP/2, without I/O: message framing, heads, trailers and the few header values that
 * gRPC defines. Used by both ends of ext_proc and by the health service.
 *
 *   frame:  [compressed flag 1][length, big endian 4][message ...]     cut anywhere by DATA frames
 *
 * Reading. fl_grpc_reader_feed() takes the slices of a body as they come; fl_grpc_reader_next()
 * gives whole messages as chains over the same chunks: nothing is copied but runs of tiny slices,
 * which are joined so that a peer sending a byte a frame cannot make a message cost a hundred times
 * its size. A decoder that needs one contiguous range calls fl_grpc_flatten(), which copies only a
 * message that lies in several slices. One that recognises a body message by its first bytes keeps
 * the rest by reference (fl_chain_ref_range).
 *
 * Flow control: a message may be larger than the stream window. Whoever feeds must therefore give
 * the window back (fl_exchange_consume) for the bytes of a message that is not complete; the
 * message cap bounds what that can hold.
 *
 * Single-threaded, no clock. */
#ifndef FL_HTTP2_GRPC_H
#define FL_HTTP2_GRPC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "http/message.h"
#include "http2/joint.h"

#define FL_GRPC_PREFIX_BYTES 5

/* google/rpc/code.proto */
enum fl_grpc_status {
    FL_GRPC_OK = 0,
    FL_GRPC_CANCELLED = 1,
    FL_GRPC_UNKNOWN = 2,
    FL_GRPC_INVALID_ARGUMENT = 3,
    FL_GRPC_DEADLINE_EXCEEDED = 4,
    FL_GRPC_NOT_FOUND = 5,
    FL_GRPC_ALREADY_EXISTS = 6,
    FL_GRPC_PERMISSION_DENIED = 7,
    FL_GRPC_RESOURCE_EXHAUSTED = 8,
    FL_GRPC_FAILED_PRECONDITION = 9,
    FL_GRPC_ABORTED = 10,
    FL_GRPC_OUT_OF_RANGE = 11,
    FL_GRPC_UNIMPLEMENTED = 12,
    FL_GRPC_INTERNAL = 13,
    FL_GRPC_UNAVAILABLE = 14,
    FL_GRPC_DATA_LOSS = 15,
    FL_GRPC_UNAUTHENTICATED = 16,
};

/* ---- reading messages ---- */

struct fl_grpc_reader {
    uint32_t max_message_bytes;
    struct fl_chain pending; /* fed and not given out; begins at a frame, or behind its prefix */
    struct fl_joint joint;   /* of tiny slices */
    uint32_t message_bytes;  /* of the message whose prefix has been taken */
    bool has_prefix;
    int rc; /* the first error; it stays */
};

/* `budget` is charged for joined slices; NULL: none. A message longer than `max_message_bytes` is
 * refused as soon as its prefix is there. */
void fl_grpc_reader_init(struct fl_grpc_reader *reader, uint32_t max_message_bytes,
                         struct fl_budget *budget);
/* Idempotent; a zeroed reader is fine. */
void fl_grpc_reader_fini(struct fl_grpc_reader *reader);
/* Takes the slice. After an error it is dropped. */
void fl_grpc_reader_feed(struct fl_grpc_reader *reader, struct fl_slice slice);
/* 1: the next whole message is appended to `message` (an empty message appends nothing); 0: more
 * bytes are needed. FL_ELIMIT: over the cap, end with status 8. FL_EUNSUPPORTED: compressed,
 * status 12. FL_EPROTO: a flag that is neither 0 nor 1. Errors are final. */
int fl_grpc_reader_next(struct fl_grpc_reader *reader, struct fl_chain *message);
/* True if no message has begun: a stream may end here. */
bool fl_grpc_reader_is_between(const struct fl_grpc_reader *reader);

/* One contiguous view of the message, with a reference of its own, emptying `message`: copied only
 * if it lies in several slices. An empty message gives n == 0 with p != NULL. FL_ENOMEM when the
 * budget or memory is gone; `message` is unchanged then. */
int fl_grpc_flatten(struct fl_chain *message, struct fl_budget *budget, struct fl_slice *flat);

/* ---- writing messages ---- */

/* The prefix of an uncompressed message of `message_bytes`. */
void fl_grpc_write_prefix(uint8_t out[FL_GRPC_PREFIX_BYTES], uint32_t message_bytes);
/* Prefix and message, copied into one chunk (p == NULL without memory). For messages of at most
 * FL_CHUNK_MAX_BYTES; a large body follows its head by reference. */
struct fl_slice fl_grpc_frame(struct fl_bytes message);

/* ---- heads and trailers ---- */

/* POST `path` with te and content-type; everything but the constant texts is borrowed. Callers add
 * their own fields. `head` is zeroed by this call; new fields go to `arena`. */
void fl_grpc_request_head(struct fl_head *head, struct fl_arena *arena, struct fl_bytes scheme,
                          struct fl_bytes authority, struct fl_bytes path);
/* 200 with content-type application/grpc; a stream of messages follows. */
void fl_grpc_response_head(struct fl_head *head, struct fl_arena *arena);
/* Adds grpc-status, and grpc-message (percent-encoded, cut at FL_GRPC_MESSAGE_MAX bytes before
 * encoding) unless it is empty. To the fields of a response head it makes the answer
 * "trailers-only". */
#define FL_GRPC_MESSAGE_MAX 1024 /* peers cap header lists at 8 KiB; encoding may triple it */
void fl_grpc_add_status(struct fl_fields *fields, struct fl_arena *arena, int status,
                        struct fl_bytes message);

/* How a call ended: the status from `trailers`, or from the head of a trailers-only answer
 * (`trailers` NULL). An answer without a usable grpc-status is judged by its HTTP status (gRPC
 * "HTTP to gRPC Status Code Mapping"), 200 being UNKNOWN. `message`, NULL allowed, is decoded into
 * `arena`; absent if there is none. */
int fl_grpc_read_status(const struct fl_head *head, const struct fl_fields *trailers,
                        struct fl_arena *arena, struct fl_bytes *message);

/* "10S", "500m": one to eight digits and a unit of H M S m u n. Rounded up to milliseconds. */
bool fl_grpc_timeout_parse(struct fl_bytes value, uint64_t *timeout_ms);
/* Any application/grpc* (gaie.md 1.1); others get HTTP 415. */
bool fl_grpc_is_content_type(struct fl_bytes value);

#endif
