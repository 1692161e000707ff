/* SPDX-License-Identifier: Apache-2.0 */
#include "kvevents/kvevents.h"

const char *const fl_kv_type_words[FL_KV_TYPE_COUNT + 1] = {
    [FL_KV_STORED] = "stored",
    [FL_KV_REMOVED] = "removed",
    [FL_KV_CLEARED] = "cleared",
    [FL_KV_OTHER] = "other",
};

const char *const fl_kv_result_words[FL_KV_RESULT_COUNT + 1] = {
    [FL_KV_OK] = "ok",
    [FL_KV_DUPLICATE] = "duplicate",
    [FL_KV_PARENT_NOT_FOUND] = "parent_not_found",
    [FL_KV_INVALID_SEQUENCE] = "invalid_block_sequence",
    [FL_KV_DROPPED_MEDIUM] = "dropped_medium",
    [FL_KV_DROPPED_KIND] = "dropped_kind",
    [FL_KV_DROPPED_LOCALITY] = "dropped_locality",
    [FL_KV_BLOCK_SIZE_MISMATCH] = "block_size_mismatch",
    [FL_KV_MALFORMED] = "malformed",
    [FL_KV_UNKNOWN_EVENT] = "unknown_event",
    [FL_KV_INDEX_FULL] = "index_full",
};

const char *const fl_kv_gap_words[FL_KV_GAP_COUNT + 1] = {
    [FL_KV_GAP_REPLAYED] = "replayed",
    [FL_KV_GAP_LOST] = "lost",
    [FL_KV_GAP_RESTART] = "restart",
};

const char *fl_kv_state_word(enum fl_kv_state state)
{
    switch (state) {
    case FL_KV_PENDING:
    case FL_KV_BUFFERING:
    case FL_KV_CATCHING_UP:
        return "pending";
    case FL_KV_ACTIVE:
        return "active";
    case FL_KV_PAUSED:
        return "paused";
    case FL_KV_FAILED:
        break;
    }
    return "failed";
}
