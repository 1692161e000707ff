/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/rng.h"

static void check(const struct fl_buf *buf)
{
    assert_true(buf->start <= buf->head && buf->head <= buf->tail && buf->tail <= buf->end);
    assert_true(buf->max_bytes == 0 || fl_buf_size(buf) <= buf->max_bytes);
}

static void an_empty_buffer_owns_nothing(void **state)
{
    (void)state;
    struct fl_buf buf = {0};
    assert_int_equal(fl_buf_append(&buf, FL_BYTES("")), 0);
    assert_int_equal(fl_buf_append(&buf, (struct fl_bytes){NULL, 0}), 0);
    fl_buf_consume(&buf, 0);
    fl_buf_commit(&buf, 0);
    fl_buf_clear(&buf);
    fl_buf_trim(&buf);
    assert_null(buf.start);
    assert_int_equal(fl_buf_size(&buf), 0);
    assert_non_null(fl_buf_reserve(&buf, 0));
    fl_buf_fini(&buf);
    fl_buf_fini(&buf);
    assert_null(buf.start);
}

static void the_cap_is_on_what_is_readable(void **state)
{
    (void)state;
    struct fl_buf buf;
    fl_buf_init(&buf, 8);
    assert_int_equal(fl_buf_append(&buf, FL_BYTES("1234567")), 0);
    assert_int_equal(fl_buf_append(&buf, FL_BYTES("89")), FL_ELIMIT); /* one above */
    assert_true(fl_bytes_eq(fl_buf_bytes(&buf), FL_BYTES("1234567")));
    assert_int_equal(fl_buf_append_byte(&buf, '8'), 0); /* at */
    assert_int_equal(fl_buf_append_byte(&buf, '9'), FL_ELIMIT);
    assert_int_equal(fl_buf_printf(&buf, "9"), FL_ELIMIT);
    assert_null(fl_buf_reserve(&buf, 1));
    assert_null(fl_buf_reserve(&buf, SIZE_MAX));
    fl_buf_consume(&buf, 3);
    assert_int_equal(fl_buf_printf(&buf, "%d", 901), 0); /* exactly full again */
    assert_true(fl_bytes_eq(fl_buf_bytes(&buf), FL_BYTES("45678901")));
    fl_buf_clear(&buf);
    fl_buf_trim(&buf);
    assert_null(buf.start);
    assert_int_equal(buf.max_bytes, 8); /* the cap outlives the memory */
    assert_int_equal(fl_buf_append(&buf, FL_BYTES("123456789")), FL_ELIMIT);
    fl_buf_fini(&buf);
}

static void a_failed_allocation_changes_nothing(void **state)
{
    (void)state;
    char big[1000];
    struct fl_buf buf = {0};
    memset(big, 'b', sizeof(big));
    assert_int_equal(fl_buf_append(&buf, FL_BYTES("abc")), 0);
    fl_alloc_fail_at(1);
    assert_int_equal(fl_buf_append(&buf, fl_bytes(big, sizeof(big))), FL_ENOMEM);
    assert_true(fl_bytes_eq(fl_buf_bytes(&buf), FL_BYTES("abc")));
    fl_buf_consume(&buf, 1); /* the other way of growing: copy instead of realloc */
    fl_alloc_fail_at(1);
    assert_null(fl_buf_reserve(&buf, 1000));
    fl_alloc_fail_at(1);
    assert_int_equal(fl_buf_printf(&buf, "%0500d", 1), FL_ENOMEM);
    assert_true(fl_bytes_eq(fl_buf_bytes(&buf), FL_BYTES("bc")));
    assert_null(fl_buf_reserve(&buf, SIZE_MAX - 1));
    fl_buf_fini(&buf);
}

static void printing_grows_as_needed(void **state)
{
    (void)state;
    struct fl_buf buf = {0};
    assert_int_equal(fl_buf_printf(&buf, "%s", ""), 0);
    for (int width = 1; width < 300; width++) {
        fl_buf_clear(&buf);
        assert_int_equal(fl_buf_printf(&buf, "%*d", width, 7), 0);
        assert_int_equal(fl_buf_size(&buf), width);
        assert_int_equal(buf.tail[-1], '7');
    }
    fl_buf_fini(&buf);
}

static void random_use_matches_a_plain_array(void **state)
{
    (void)state;
    enum { CAP = 5000 };
    const uint64_t seed = 3;
    uint8_t model[CAP];
    size_t size = 0;
    struct fl_buf buf;
    struct fl_rng rng;

    fl_rng_seed(&rng, seed);
    fl_buf_init(&buf, CAP);
    for (unsigned step = 0; step < 50000; step++) {
        uint8_t piece[700];
        size_t n = fl_rng_below(&rng, fl_rng_below(&rng, 4) == 0 ? 700 : 20);
        memset(piece, (int)(step & 0xff), n);
        bool fits = n <= CAP - size;
        switch (fl_rng_below(&rng, 6)) {
        case 0:
        case 1:
            assert_int_equal(fl_buf_append(&buf, fl_bytes(piece, n)), fits ? 0 : FL_ELIMIT);
            break;
        case 2: {
            uint8_t *room = fl_buf_reserve(&buf, n);
            assert_int_equal(room != NULL, fits);
            if (fits) {
                memcpy(room, piece, n);
                fl_buf_commit(&buf, n);
            }
            break;
        }
        case 3:
            fits = size < CAP;
            n = 1;
            piece[0] = (uint8_t)step;
            assert_int_equal(fl_buf_append_byte(&buf, piece[0]), fits ? 0 : FL_ELIMIT);
            break;
        default:
            n = fl_rng_below(&rng, size + 1);
            if (fl_rng_below(&rng, 3) != 0)
                n = n > 30 ? 30 : n;
            fl_buf_consume(&buf, n);
            memmove(model, model + n, size - n);
            size -= n;
            fits = false;
            break;
        }
        if (fits) {
            memcpy(model + size, piece, n);
            size += n;
        }
        check(&buf);
        if (!fl_bytes_eq(fl_buf_bytes(&buf), fl_bytes(model, size)))
            fail_msg("seed %u step %u", (unsigned)seed, step);
        /* The room follows the cap, not the history. */
        assert_true((size_t)(buf.end - buf.start) <= CAP + CAP / 2);
    }
    fl_buf_fini(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_buffer_owns_nothing),
        cmocka_unit_test(the_cap_is_on_what_is_readable),
        cmocka_unit_test(a_failed_allocation_changes_nothing),
        cmocka_unit_test(printing_grows_as_needed),
        cmocka_unit_test(random_use_matches_a_plain_array),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
