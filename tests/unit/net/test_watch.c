/* SPDX-License-Identifier: Apache-2.0 */
#include "net_test.h"

#include <limits.h>
#include <sys/stat.h>

#include "net/watch.h"

struct place {
    struct fl_loop *loop;
    struct fl_watch *watch;
    char dir[64], path[128];
    unsigned changes;
    bool closes;
};

static void on_change(void *owner)
{
    struct place *place = owner;
    place->changes++;
    if (place->closes)
        fl_watch_close(place->watch);
}

static void put(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void place_init(struct place *place)
{
    memset(place, 0, sizeof(*place));
    place->loop = fl_loop_new(0);
    snprintf(place->dir, sizeof(place->dir), "/tmp/fairlead-watch-XXXXXX");
    assert_non_null(mkdtemp(place->dir));
    snprintf(place->path, sizeof(place->path), "%s/rules.json", place->dir);
}

static void place_watch(struct place *place)
{
    struct fl_error err = {0};
    if (fl_watch_open(place->loop, place->path, on_change, place, &place->watch, &err) < 0)
        fail_msg("%s", err.text);
}

static void place_fini(struct place *place)
{
    if (!place->closes)
        fl_watch_close(place->watch);
    fl_loop_free(place->loop);
    char command[160];
    snprintf(command, sizeof(command), "rm -r %s", place->dir);
    assert_int_equal(system(command), 0);
}

/* Long enough for a change to be told, had there been one. */
static void quiet(struct place *place)
{
    uint64_t until_ms = fl_loop_now_ms(place->loop) + FL_WATCH_SETTLE_MS + 100;
    RUN_UNTIL(place->loop, fl_loop_now_ms(place->loop) > until_ms);
}

/* gateway.md 2.2: watched by directory (rename into place), settled 200 ms */
static void a_file_renamed_into_place_is_told_once_and_settled(void **state)
{
    (void)state;
    struct place place;
    char fresh[160];
    place_init(&place);
    put(place.path, "old");
    place_watch(&place);
    snprintf(fresh, sizeof(fresh), "%s/.rules.json.tmp", place.dir);
    for (int i = 0; i < 2; i++) {
        put(fresh, "new");
        uint64_t began_ms = fl_loop_now_ms(place.loop);
        assert_int_equal(rename(fresh, place.path), 0);
        RUN_UNTIL(place.loop, place.changes == (unsigned)i + 1);
        assert_true(fl_loop_now_ms(place.loop) - began_ms >= FL_WATCH_SETTLE_MS);
    }
    quiet(&place);
    assert_int_equal(place.changes, 2);
    place_fini(&place);
}

static void several_writes_are_one_change(void **state)
{
    (void)state;
    struct place place;
    place_init(&place);
    put(place.path, "old");
    place_watch(&place);
    for (int i = 0; i < 5; i++) {
        put(place.path, &"aaaaaaaaaa"[5 - i]); /* another size each */
        uint64_t until_ms = fl_loop_now_ms(place.loop) + FL_WATCH_SETTLE_MS / 4;
        RUN_UNTIL(place.loop, fl_loop_now_ms(place.loop) > until_ms);
    }
    assert_int_equal(place.changes, 0);
    RUN_UNTIL(place.loop, place.changes == 1);
    quiet(&place);
    assert_int_equal(place.changes, 1);
    place_fini(&place);
}

/* Kubernetes: rules.json -> ..data/rules.json, ..data -> ..2026_1, replaced by a rename */
static void a_config_map_swap_is_told(void **state)
{
    (void)state;
    struct place place;
    char path[200], link_path[200];
    place_init(&place);
    for (int i = 1; i <= 2; i++) {
        snprintf(path, sizeof(path), "%s/..v%d", place.dir, i);
        assert_int_equal(mkdir(path, 0755), 0);
        snprintf(path, sizeof(path), "%s/..v%d/rules.json", place.dir, i);
        put(path, "same text");
    }
    snprintf(link_path, sizeof(link_path), "%s/..data", place.dir);
    assert_int_equal(symlink("..v1", link_path), 0);
    assert_int_equal(symlink("..data/rules.json", place.path), 0);
    place_watch(&place);
    snprintf(path, sizeof(path), "%s/..data_tmp", place.dir);
    assert_int_equal(symlink("..v2", path), 0);
    assert_int_equal(rename(path, link_path), 0);
    RUN_UNTIL(place.loop, place.changes == 1);
    place_fini(&place);
}

static void what_is_not_the_files_is_not_told(void **state)
{
    (void)state;
    struct place place;
    char other[160];
    place_init(&place);
    put(place.path, "text");
    place_watch(&place);
    snprintf(other, sizeof(other), "%s/other", place.dir);
    put(other, "x");
    assert_int_equal(chmod(place.path, 0600), 0);
    assert_int_equal(unlink(place.path), 0); /* its going is no new content */
    quiet(&place);
    assert_int_equal(place.changes, 0);
    put(place.path, "back");
    RUN_UNTIL(place.loop, place.changes == 1);
    place_fini(&place);
}

static void a_file_may_come_after_the_watch(void **state)
{
    (void)state;
    struct place place;
    place_init(&place);
    place_watch(&place);
    put(place.path, "first");
    place.closes = true; /* from inside */
    RUN_UNTIL(place.loop, place.changes == 1);
    place_fini(&place);
}

static void a_directory_that_is_replaced_is_watched_again(void **state)
{
    (void)state;
    struct place place;
    char old[160];
    place_init(&place);
    put(place.path, "old");
    place_watch(&place);
    snprintf(old, sizeof(old), "%s.old", place.dir);
    assert_int_equal(rename(place.dir, old), 0);
    for (int i = 0; i < 3; i++)
        fl_loop_turn(place.loop, 10);
    assert_int_equal(mkdir(place.dir, 0755), 0);
    put(place.path, "new");
    RUN_UNTIL(place.loop, place.changes == 1);
    put(place.path, "newer");
    RUN_UNTIL(place.loop, place.changes == 2);
    char command[200];
    snprintf(command, sizeof(command), "rm -r %s", old);
    assert_int_equal(system(command), 0);
    place_fini(&place);
}

static void a_missing_directory_is_an_error_in_words(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    struct fl_watch *watch = NULL;
    struct fl_error err = {0};
    assert_int_equal(fl_watch_open(loop, "/nonexistent/dir/file", on_change, NULL, &watch, &err),
                     FL_EIO);
    assert_null(watch);
    assert_non_null(strstr(err.text, "directory /nonexistent/dir: no such file or directory"));
    fl_watch_close(NULL);
    fl_loop_free(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_renamed_into_place_is_told_once_and_settled),
        cmocka_unit_test(several_writes_are_one_change),
        cmocka_unit_test(a_config_map_swap_is_told),
        cmocka_unit_test(what_is_not_the_files_is_not_told),
        cmocka_unit_test(a_file_may_come_after_the_watch),
        cmocka_unit_test(a_directory_that_is_replaced_is_watched_again),
        cmocka_unit_test(a_missing_directory_is_an_error_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
