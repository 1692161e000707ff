/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "discovery/worker_id.h"

/* epp.md 14.3, both tables */
static void ids_are_those_of_the_page(void **state)
{
    static const struct {
        const char *name;
        uint64_t hash, id;
    } rows[] = {
        {"pod-a", UINT64_C(0xa5402f232d726471), UINT64_C(51828132832369)},
        {"vllm-worker-0", UINT64_C(0x3accec924cd68d62), UINT64_C(3637812819037538)},
        {"vllm-qwen-6d5f7c9b8-abcde", UINT64_C(0xb0a7eb76a2ee47db), UINT64_C(2229219609167835)},
        {"10.0.0.5:8000", UINT64_C(0xafccef3cc38889e0), UINT64_C(3640743978109408)},
        {"127.0.0.1:8000", UINT64_C(0xeae2804cb22199df), UINT64_C(704016847837663)},
        {"[fd00::5]:8000", UINT64_C(0xc662b7ba44763527), UINT64_C(764960593818919)},
    };
    (void)state;
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_bytes name = fl_bytes_of(rows[i].name);
        if (fl_worker_hash(name) != rows[i].hash || fl_worker_id(name) != rows[i].id)
            fail_msg("%s", rows[i].name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ids_are_those_of_the_page)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
