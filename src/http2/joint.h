/* SPDX-License-Identifier: Apache-2.0 */
/* Joins small pieces of bytes in one chunk, so that a piece does not cost a chunk and a ring entry
 * of its own whatever it holds. Used for small frames on their way out, small DATA on its way in,
 * and gRPC messages that arrive in crumbs.
 *
 *   chunk:  [ piece | piece | piece | free ........ ]     pieces are slices with a reference each;
 *                                                         neighbours in one chain become one slice
 *
 * Bytes are written before their slice is handed out and never after, so slices may cross threads;
 * the joint itself belongs to one. */
#ifndef FL_HTTP2_JOINT_H
#define FL_HTTP2_JOINT_H

#include <stdint.h>

#include "base/buf.h"

struct fl_joint {
    struct fl_budget *budget; /* NULL: none */
    struct fl_chunk *chunk;   /* one reference, or NULL */
    uint32_t used;
    uint32_t room; /* of a new chunk */
};

void fl_joint_init(struct fl_joint *joint, uint32_t room, struct fl_budget *budget);
/* Gives the chunk away; its slices stay valid. Idempotent; the joint may be used again. */
void fl_joint_fini(struct fl_joint *joint);
/* A slice with a copy of `bytes` (n > 0; more than half a room get a chunk of their own). p == NULL
 * without memory or budget. */
struct fl_slice fl_joint_copy(struct fl_joint *joint, struct fl_bytes bytes);
/* Like fl_chain_push(), but a slice that continues the last one makes that one longer. Takes the
 * slice. */
void fl_joint_push(struct fl_chain *chain, struct fl_slice slice);

#endif
