/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sim/words.h"

static size_t encode(const struct fl_buf *text, uint32_t *tokens)
{
    struct fl_bytes rest = fl_buf_bytes(text);
    size_t count = 0;
    while (fl_words_next(&rest, &tokens[count]))
        count++;
    return count;
}

/* design.md section 6: one prompt per record whose text reproduces the trace's shared prefixes
 * block for block */
static void equal_trace_prefixes_give_equal_token_blocks(void **state)
{
    static const uint64_t a[] = {0, 7, 9};
    static const uint64_t b[] = {0, 7, 8};
    uint32_t x[64], y[64];
    struct fl_buf first = {0}, second = {0};
    (void)state;
    assert_int_equal(fl_words_write_prompt(&first, a, 3, 40, 16), 0);
    assert_int_equal(fl_words_write_prompt(&second, b, 3, 48, 16), 0);
    assert_int_equal(encode(&first, x), 40);
    assert_int_equal(encode(&second, y), 48);
    assert_memory_equal(x, y, 32 * sizeof(uint32_t));
    assert_memory_not_equal(x + 32, y + 32, 8 * sizeof(uint32_t));
    assert_memory_not_equal(x, x + 16, 16 * sizeof(uint32_t));
    assert_int_equal(fl_buf_size(&first), 40 * 5 - 1);
    fl_buf_fini(&first);
    fl_buf_fini(&second);
}

static void blanks_of_any_kind_part_words(void **state)
{
    struct fl_bytes text = FL_BYTES(" one\ttwo\r\nthree  one ");
    struct fl_bytes rest = text;
    uint32_t token[5];
    size_t count = 0;
    (void)state;
    while (fl_words_next(&rest, &token[count]))
        count++;
    assert_int_equal(count, 4);
    assert_int_equal(fl_words_count(text), 4);
    assert_int_equal(token[0], token[3]);
    assert_int_not_equal(token[0], token[1]);
    assert_int_equal(fl_words_count(FL_BYTES("")), 0);
    assert_true(token[0] < UINT32_C(1) << 31);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_trace_prefixes_give_equal_token_blocks),
        cmocka_unit_test(blanks_of_any_kind_part_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
