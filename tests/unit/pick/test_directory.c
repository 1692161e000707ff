/* SPDX-License-Identifier: Apache-2.0 */
#include "pick/directory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

static struct fl_worker_spec worker(uint64_t id, const char *authority)
{
    struct fl_worker_spec spec = {.worker_id = id,
                                  .authority = fl_bytes_of(authority),
                                  .label = fl_bytes_of(authority),
                                  .is_ready = true};
    assert_int_equal(fl_addr_parse(spec.authority, false, &spec.addr, NULL), 0);
    return spec;
}

/* epp.md 24.3 row 7; epp.md 8 (addresses are compared, not texts; an item with a port matches that
 * port only; a bare IP all ports; unparsable items are skipped; no listed endpoint: nobody) */
static void a_subset_names_workers_by_address(void **state)
{
    (void)state;
    static const struct {
        const char *why, *items[3];
        uint64_t expected; /* bit per worker id */
    } rows[] = {
        {"a bare IP", {"10.0.0.5"}, 1 << 1 | 1 << 2},
        {"ip:port", {"10.0.0.5:8000"}, 1 << 1},
        {"another port", {"10.0.0.5:9"}, 0},
        {"the empty item", {""}, 0},
        {"spaces around", {" 10.0.0.5:8000 "}, 1 << 1},
        {"[v6]:port", {"[fd00::5]:8000"}, 1 << 3},
        {"v6 spelled in full", {"[FD00:0:0:0:0:0:0:5]:8000"}, 1 << 3},
        {"v6 with a wrong port", {"[fd00::5]:9"}, 0},
        {"bare v6", {"fd00::5"}, 1 << 3},
        {"bare v6 whose tail looks like a port", {"fd00::5:8000"}, 0},
        {"bracketed v6 without a port", {"[fd00::5]"}, 1 << 3},
        {"a worker that is not ready", {"10.0.0.6"}, 0},
        {"a prefill worker", {"10.0.0.7"}, 0},
        {"junk beside a good one", {"nope", "10.0.0.5:8001", "10.0.0.5:99999"}, 1 << 2},
        {"named twice", {"10.0.0.5", "10.0.0.5:8000"}, 1 << 1 | 1 << 2},
    };
    struct fl_directory directory;
    struct fl_worker_spec specs[] = {worker(3, "[fd00::5]:8000"), worker(1, "10.0.0.5:8000"),
                                     worker(4, "10.0.0.6:8000"), worker(2, "10.0.0.5:8001"),
                                     worker(5, "10.0.0.7:8000")};
    specs[2].is_ready = false;
    specs[4].role = FL_WORKER_PREFILL;
    fl_directory_init(&directory);
    fl_directory_publish(&directory, specs, FL_ARRAY_LEN(specs));
    const struct fl_directory_set *set = fl_directory_enter(&directory);
    assert_int_equal(set->ready_count, 3);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_bytes items[3];
        uint32_t count = 0;
        uint64_t ids[5], got = 0;
        while (count < 3 && rows[i].items[count] != NULL) {
            items[count] = fl_bytes_of(rows[i].items[count]);
            count++;
        }
        uint32_t found = fl_directory_subset(set, items, count, ids);
        for (uint32_t k = 0; k < found; k++) {
            if (k > 0 && ids[k - 1] >= ids[k])
                fail_msg("row %zu: %s: not ascending", i, rows[i].why);
            got |= UINT64_C(1) << ids[k];
        }
        if (got != rows[i].expected)
            fail_msg("row %zu: %s: %llx", i, rows[i].why, (unsigned long long)got);
    }
    fl_directory_leave(&directory);
    fl_directory_fini(&directory);
}

/* epp.md 10.2 step 5 (round robin over ready workers, within the subset) */
static void turns_go_round_the_ready_workers(void **state)
{
    (void)state;
    struct fl_directory directory;
    struct fl_worker_spec specs[] = {worker(1, "10.0.0.1:80"), worker(2, "10.0.0.2:80"),
                                     worker(3, "10.0.0.3:80"), worker(4, "10.0.0.4:80")};
    const uint64_t only[] = {3};
    const uint64_t unready[] = {4};
    uint32_t seen[5] = {0};
    specs[3].is_ready = false;
    fl_directory_init(&directory);
    const struct fl_directory_set *set = fl_directory_enter(&directory);
    assert_null(fl_directory_next(&directory, set, false, NULL, 0));
    fl_directory_leave(&directory);

    fl_directory_publish(&directory, specs, FL_ARRAY_LEN(specs));
    set = fl_directory_enter(&directory);
    for (int i = 0; i < 40; i++)
        seen[fl_directory_next(&directory, set, false, NULL, 0)->worker_id]++;
    assert_true(seen[1] >= 10 && seen[2] >= 10 && seen[3] >= 10);
    assert_int_equal(seen[4], 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(fl_directory_next(&directory, set, true, only, 1)->worker_id, 3);
    assert_null(fl_directory_next(&directory, set, true, unready, 1));
    assert_null(fl_directory_next(&directory, set, true, NULL, 0));
    fl_directory_leave(&directory);
    fl_directory_fini(&directory);
}

/* epp.md 14.7 (a version is applied as one set: a reader sees one throughout) */
static void a_reader_keeps_the_set_it_entered(void **state)
{
    (void)state;
    struct fl_directory directory;
    struct fl_worker_spec first = worker(1, "10.0.0.1:80"), second = worker(2, "10.0.0.2:80");
    fl_directory_init(&directory);
    fl_directory_publish(&directory, &first, 1);
    const struct fl_directory_set *set = fl_directory_enter(&directory);
    fl_directory_publish(&directory, &second, 1);
    assert_non_null(fl_directory_find(set, 1));
    assert_null(fl_directory_find(set, 2));
    assert_ptr_equal(fl_directory_find_addr(set, &first.addr), fl_directory_find(set, 1));
    fl_directory_leave(&directory);
    set = fl_directory_enter(&directory);
    assert_null(fl_directory_find(set, 1));
    assert_non_null(fl_directory_find(set, 2));
    fl_directory_leave(&directory);
    fl_directory_fini(&directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_subset_names_workers_by_address),
        cmocka_unit_test(turns_go_round_the_ready_workers),
        cmocka_unit_test(a_reader_keeps_the_set_it_entered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
