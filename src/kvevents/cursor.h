/* SPDX-License-Identifier: Apache-2.0 */
/* Which numbered batch comes next? The table of selection.md 11.6, without sockets.
 *
 * Two watermarks: `applied` is the last batch in the index, `live` the last number seen on the live
 * socket. They differ while a replay runs ahead of the socket. Only the wire order of the live
 * socket tells a restart: engines number from 0 at process start, so a smaller number than the last
 * one is a new process with an empty cache. */
#ifndef FL_KVEVENTS_CURSOR_H
#define FL_KVEVENTS_CURSOR_H

#include <stdbool.h>
#include <stdint.h>

struct fl_kv_cursor {
    bool has_applied; /* false: initial */
    bool has_live;
    bool has_snapshot; /* a peer's dump stands in for what came before the first message */
    uint64_t applied, live;
};

enum fl_kv_step {
    FL_KV_STEP_APPLY,   /* in turn */
    FL_KV_STEP_DROP,    /* duplicate, or overlap of a replay */
    FL_KV_STEP_GAP,     /* batches from fl_kv_cursor_next() on are missing before it */
    FL_KV_STEP_RESTART, /* forget what the publisher has told; the cursor is initial again: ask
                           again */
};

/* A message of the live socket. */
enum fl_kv_step fl_kv_cursor_live(struct fl_kv_cursor *cursor, uint64_t sequence);
/* A message of a replay: never a restart. */
enum fl_kv_step fl_kv_cursor_replayed(const struct fl_kv_cursor *cursor, uint64_t sequence);
/* It is in the index now. */
void fl_kv_cursor_applied(struct fl_kv_cursor *cursor, uint64_t sequence);
/* The number that would be in turn. */
uint64_t fl_kv_cursor_next(const struct fl_kv_cursor *cursor);

#endif
