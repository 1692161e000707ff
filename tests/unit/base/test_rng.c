/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/bytes.h"
#include "base/rng.h"

/* Outputs of the published reference programs (prng.di.unimi.it): splitmix64 from state 1234567. */
static void splitmix64_gives_the_published_numbers(void **state)
{
    (void)state;
    static const uint64_t expected[] = {
        UINT64_C(6457827717110365317),  UINT64_C(3203168211198807973),
        UINT64_C(9817491932198370423),  UINT64_C(4593380528125082431),
        UINT64_C(16408922859458223821),
    };
    uint64_t at = 1234567;
    for (size_t i = 0; i < FL_ARRAY_LEN(expected); i++)
        assert_true(fl_splitmix64(&at) == expected[i]);
}

/* xoshiro256** from the state {1, 2, 3, 4}, first outputs worked out from its definition. */
static void xoshiro_gives_the_published_numbers(void **state)
{
    (void)state;
    static const uint64_t expected[] = {11520, 0, 1509978240, UINT64_C(1215971899390074240)};
    struct fl_rng rng = {{1, 2, 3, 4}};
    for (size_t i = 0; i < FL_ARRAY_LEN(expected); i++)
        assert_true(fl_rng_u64(&rng) == expected[i]);
}

static void a_seed_repeats_and_another_differs(void **state)
{
    (void)state;
    struct fl_rng a, b, c;
    fl_rng_seed(&a, 1);
    fl_rng_seed(&b, 1);
    fl_rng_seed(&c, 2);
    unsigned equal = 0;
    for (int i = 0; i < 100; i++) {
        uint64_t value = fl_rng_u64(&a);
        assert_true(value == fl_rng_u64(&b));
        equal += value == fl_rng_u64(&c);
    }
    assert_int_equal(equal, 0);
}

static void below_is_even_over_its_range(void **state)
{
    (void)state;
    struct fl_rng rng;
    unsigned seen[7] = {0};
    fl_rng_seed(&rng, 3);
    for (int i = 0; i < 70000; i++) {
        uint64_t value = fl_rng_below(&rng, 7);
        assert_true(value < 7);
        seen[value]++;
    }
    for (int i = 0; i < 7; i++)
        assert_in_range(seen[i], 9600, 10400); /* over four standard deviations of 92 */
    for (int i = 0; i < 100; i++)
        assert_int_equal(fl_rng_below(&rng, 1), 0);
    /* 3/4 of the 64-bit range: a plain multiplication would favour a third of the answers. */
    unsigned low = 0;
    for (int i = 0; i < 30000; i++) {
        uint64_t value = fl_rng_below(&rng, UINT64_C(3) << 62);
        assert_true(value < UINT64_C(3) << 62);
        low += value % 3 == 0;
    }
    assert_in_range(low, 9600, 10400);
}

static void doubles_fill_zero_to_one(void **state)
{
    (void)state;
    struct fl_rng rng;
    double sum = 0;
    fl_rng_seed(&rng, 4);
    for (int i = 0; i < 10000; i++) {
        double value = fl_rng_double(&rng);
        assert_true(value >= 0 && value < 1);
        sum += value;
    }
    assert_true(sum > 4850 && sum < 5150);
    struct fl_rng most = {{0, 0, 0, 0}};
    most.s[1] = UINT64_C(0x8e38e38e38e38e39); /* any state: never reaches 1 */
    assert_true(fl_rng_double(&most) < 1);
}

/* RFC 9562 4, 4.1, 5.4 */
static void uuids_have_version_and_variant_and_differ(void **state)
{
    (void)state;
    char last[FL_UUID_TEXT] = "";
    for (int i = 0; i < 200; i++) {
        char text[FL_UUID_TEXT];
        fl_uuid4(text);
        assert_int_equal(strlen(text), 36);
        for (size_t k = 0; k < 36; k++) {
            bool dash = k == 8 || k == 13 || k == 18 || k == 23;
            assert_non_null(strchr(dash ? "-" : "0123456789abcdef", text[k]));
        }
        assert_int_equal(text[14], '4');
        assert_non_null(strchr("89ab", text[19]));
        assert_string_not_equal(text, last);
        memcpy(last, text, sizeof(last));
    }
}

static void system_bytes_fill_what_is_asked_and_no_more(void **state)
{
    (void)state;
    uint8_t bytes[600];
    memset(bytes, 0xaa, sizeof(bytes));
    fl_random_bytes(bytes + 4, sizeof(bytes) - 8); /* more than the 256 that come uninterrupted */
    fl_random_bytes(bytes, 0);
    unsigned changed = 0;
    for (size_t i = 4; i < sizeof(bytes) - 4; i++)
        changed += bytes[i] != 0xaa;
    assert_true(changed > 500);
    assert_memory_equal(bytes, "\xaa\xaa\xaa\xaa", 4);
    assert_memory_equal(bytes + sizeof(bytes) - 4, "\xaa\xaa\xaa\xaa", 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splitmix64_gives_the_published_numbers),
        cmocka_unit_test(xoshiro_gives_the_published_numbers),
        cmocka_unit_test(a_seed_repeats_and_another_differs),
        cmocka_unit_test(below_is_even_over_its_range),
        cmocka_unit_test(doubles_fill_zero_to_one),
        cmocka_unit_test(uuids_have_version_and_variant_and_differ),
        cmocka_unit_test(system_bytes_fill_what_is_asked_and_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
