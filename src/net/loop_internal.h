/* SPDX-License-Identifier: Apache-2.0 */
/* The loop as the rest of net/ sees it. Not for other folders: libuv ends here. */
#ifndef FL_NET_LOOP_INTERNAL_H
#define FL_NET_LOOP_INTERNAL_H

#include <uv.h>

#include "base/buf.h"
#include "net/loop.h"

uv_loop_t *fl_loop_uv(struct fl_loop *loop);

/* Runs after all of the turn's deferred work, so that what that work has written leaves in the same
 * turn. Undone by fl_loop_undefer(). */
void fl_loop_defer_flush(struct fl_loop *loop, struct fl_deferred *flush);

/* To be called after every callback out of the poll phase: the stall detector's stamp. */
void fl_loop_handler_done(struct fl_loop *loop);

void fl_loop_count_mask_change(struct fl_loop *loop);
void fl_loop_count_fd(struct fl_loop *loop, int change);

/* Blocks of FL_LOOP_BLOCK_BYTES for reading ahead. The loop keeps a few warm, so that a connection
 * which holds none while idle does not pay the allocator per request. */
#define FL_LOOP_BLOCK_BYTES 16384
uint8_t *fl_loop_block_take(struct fl_loop *loop);
void fl_loop_block_give(struct fl_loop *loop, uint8_t *block);

/* Likewise for what small writes are joined in; one reference. */
#define FL_LOOP_JOIN_BYTES 4096
struct fl_chunk *fl_loop_chunk_take(struct fl_loop *loop); /* NULL without memory */
void fl_loop_chunk_give(struct fl_loop *loop, struct fl_chunk *chunk);

/* One side of a stream speaks TLS, the other does not: counted; logged when `peer` is not NULL. */
void fl_loop_tls_mismatch(struct fl_loop *loop, const char *peer, const char *words);

/* The timers of nanosecond deadlines (precise_timer.c), made on first use. */
struct fl_precise_clock;
struct fl_precise_clock **fl_loop_precise_clock(struct fl_loop *loop);
void fl_precise_clock_close(struct fl_precise_clock *clock); /* NULL allowed */

#endif
