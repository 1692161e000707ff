/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "kvevents/cursor.h"

/* selection.md 11.6: the table, row by row */
static void live_messages_are_judged_as_the_table_says(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        struct fl_kv_cursor cursor;
        uint64_t sequence;
        enum fl_kv_step step;
        uint64_t next; /* what is asked for, or in turn, afterwards */
    } rows[] = {
        {"initial, 0", {0}, 0, FL_KV_STEP_APPLY, 0},
        {"initial, n > 0: history is missing", {0}, 5, FL_KV_STEP_GAP, 0},
        {"initial, n > 0, after a snapshot", {.has_snapshot = true}, 5, FL_KV_STEP_APPLY, 0},
        {"w + 1",
         {.has_applied = true, .applied = 7, .has_live = true, .live = 7},
         8,
         FL_KV_STEP_APPLY,
         8},
        {"beyond w + 1",
         {.has_applied = true, .applied = 7, .has_live = true, .live = 7},
         10,
         FL_KV_STEP_GAP,
         8},
        {"replayed already",
         {.has_applied = true, .applied = 9, .has_live = true, .live = 5},
         6,
         FL_KV_STEP_DROP,
         10},
        {"replayed already, the last",
         {.has_applied = true, .applied = 9, .has_live = true, .live = 5},
         9,
         FL_KV_STEP_DROP,
         10},
        {"first behind the replay",
         {.has_applied = true, .applied = 9, .has_live = true, .live = 5},
         10,
         FL_KV_STEP_APPLY,
         10},
        {"the same again",
         {.has_applied = true, .applied = 7, .has_live = true, .live = 7},
         7,
         FL_KV_STEP_DROP,
         8},
        {"backwards to 0",
         {.has_applied = true, .applied = 7, .has_live = true, .live = 7},
         0,
         FL_KV_STEP_RESTART,
         0},
        {"backwards to 3: the frame with 0 was missed",
         {.has_applied = true, .applied = 7, .has_live = true, .live = 7},
         3,
         FL_KV_STEP_RESTART,
         0},
        {"backwards on the wire though ahead of nothing replayed",
         {.has_applied = true, .applied = 20, .has_live = true, .live = 7},
         6,
         FL_KV_STEP_RESTART,
         0},
        {"behind a dump's cursor, nothing live yet",
         {.has_snapshot = true, .has_applied = true, .applied = 7},
         6,
         FL_KV_STEP_DROP,
         8},
        {"right behind a dump's cursor",
         {.has_snapshot = true, .has_applied = true, .applied = 7},
         8,
         FL_KV_STEP_APPLY,
         8},
        {"a gap behind a dump's cursor",
         {.has_snapshot = true, .has_applied = true, .applied = 7},
         9,
         FL_KV_STEP_GAP,
         8},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_kv_cursor cursor = rows[i].cursor;
        if (fl_kv_cursor_live(&cursor, rows[i].sequence) != rows[i].step ||
            fl_kv_cursor_next(&cursor) != rows[i].next)
            fail_msg("%s", rows[i].why);
    }
}

/* selection.md 11.6: cleared, cursor initial, then treated as a first message */
static void after_a_restart_the_message_is_a_first_one(void **state)
{
    (void)state;
    struct fl_kv_cursor cursor = {.has_snapshot = true};
    assert_int_equal(fl_kv_cursor_live(&cursor, 4), FL_KV_STEP_APPLY);
    fl_kv_cursor_applied(&cursor, 4);
    assert_int_equal(fl_kv_cursor_live(&cursor, 2), FL_KV_STEP_RESTART);
    assert_int_equal(fl_kv_cursor_live(&cursor, 2),
                     FL_KV_STEP_GAP); /* the snapshot counts no more */
    assert_int_equal(fl_kv_cursor_next(&cursor), 0);
}

/* selection.md 11.6: the restart rule knows the live socket only */
static void a_replay_is_never_a_restart(void **state)
{
    (void)state;
    struct fl_kv_cursor cursor = {.has_applied = true, .applied = 7, .has_live = true, .live = 12};
    assert_int_equal(fl_kv_cursor_replayed(&cursor, 3), FL_KV_STEP_DROP);
    assert_int_equal(fl_kv_cursor_replayed(&cursor, 8), FL_KV_STEP_APPLY);
    fl_kv_cursor_applied(&cursor, 8);
    assert_int_equal(fl_kv_cursor_replayed(&cursor, 10), FL_KV_STEP_GAP);
    assert_int_equal(cursor.live, 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(live_messages_are_judged_as_the_table_says),
        cmocka_unit_test(after_a_restart_the_message_is_a_first_one),
        cmocka_unit_test(a_replay_is_never_a_restart),
    };
    return cmocka_run_group_tests_name("kvevents/cursor", tests, NULL, NULL);
}
