/* SPDX-License-Identifier: Apache-2.0 */
#include "kvevents/cursor.h"

uint64_t fl_kv_cursor_next(const struct fl_kv_cursor *cursor)
{
    return cursor->has_applied ? cursor->applied + 1 : 0;
}

enum fl_kv_step fl_kv_cursor_replayed(const struct fl_kv_cursor *cursor, uint64_t sequence)
{
    uint64_t next = fl_kv_cursor_next(cursor);
    if (sequence < next)
        return FL_KV_STEP_DROP;
    return sequence == next ? FL_KV_STEP_APPLY : FL_KV_STEP_GAP;
}

enum fl_kv_step fl_kv_cursor_live(struct fl_kv_cursor *cursor, uint64_t sequence)
{
    if (cursor->has_live && sequence < cursor->live) {
        *cursor = (struct fl_kv_cursor){0};
        return FL_KV_STEP_RESTART;
    }
    if (cursor->has_live && sequence == cursor->live)
        return FL_KV_STEP_DROP;
    cursor->has_live = true;
    cursor->live = sequence;
    if (!cursor->has_applied && cursor->has_snapshot)
        return FL_KV_STEP_APPLY;
    return fl_kv_cursor_replayed(cursor, sequence);
}

void fl_kv_cursor_applied(struct fl_kv_cursor *cursor, uint64_t sequence)
{
    cursor->has_applied = true;
    cursor->applied = sequence;
}
