/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <openssl/evp.h>

#include "base/error.h"
#include "base/rng.h"
#include "codec/base64.h"

#define SEED 991

/* RFC 4648 10 */
static void the_vectors_of_the_rfc_hold_both_ways(void **state)
{
    (void)state;
    static const struct {
        const char *plain, *text;
    } rows[] = {
        {"", ""},
        {"f", "Zg=="},
        {"fo", "Zm8="},
        {"foo", "Zm9v"},
        {"foob", "Zm9vYg=="},
        {"fooba", "Zm9vYmE="},
        {"foobar", "Zm9vYmFy"},
        {"\xff\xef\xbe", "/+++"},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_buf out = {0}, back = {0};
        assert_int_equal(fl_base64_encode(&out, fl_bytes_of(rows[i].plain)), 0);
        assert_true(fl_bytes_eq(fl_buf_bytes(&out), fl_bytes_of(rows[i].text)));
        assert_int_equal(fl_base64_decode(&back, fl_bytes_of(rows[i].text)), 0);
        assert_true(fl_bytes_eq(fl_buf_bytes(&back), fl_bytes_of(rows[i].plain)));
        fl_buf_fini(&out);
        fl_buf_fini(&back);
    }
}

static void anything_but_the_one_spelling_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *why, *text;
    } rows[] = {
        {"padding missing", "Zg"},
        {"padding half missing", "Zg="},
        {"one character too many", "Zm9vY"},
        {"padding only", "===="},
        {"three of padding", "Z==="},
        {"padding in the middle", "Zg==Zg=="},
        {"one of padding in the middle", "Zm8=Zm9v"},
        {"data behind padding", "Zm=v"},
        {"line feed", "Zm9v\nZm9"},
        {"blank", "Zm9v Zm9"},
        {"URL alphabet", "_-__"},
        {"bits behind one byte", "Zh=="},
        {"bits behind two bytes", "Zm9="},
        {"above ASCII", "Zm9\xff"},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_buf out = {0};
        if (fl_base64_decode(&out, fl_bytes_of(rows[i].text)) != FL_EPROTO)
            fail_msg("row %zu: %s", i, rows[i].why);
        assert_int_equal(fl_buf_size(&out), 0);
        fl_buf_fini(&out);
    }
}

static void random_bytes_agree_with_openssl(void **state)
{
    (void)state;
    struct fl_rng rng;
    uint8_t plain[100], foreign[140];

    fl_rng_seed(&rng, SEED);
    for (int round = 0; round < 5000; round++) {
        size_t n = fl_rng_below(&rng, sizeof(plain) + 1);
        for (size_t i = 0; i < n; i++)
            plain[i] = (uint8_t)fl_rng_u64(&rng);
        int foreign_bytes = EVP_EncodeBlock(foreign, plain, (int)n);
        struct fl_buf out = {0}, back = {0};
        assert_int_equal(fl_base64_encode(&out, fl_bytes(plain, n)), 0);
        assert_int_equal(fl_buf_size(&out), fl_base64_size(n));
        assert_true(fl_bytes_eq(fl_buf_bytes(&out), fl_bytes(foreign, (size_t)foreign_bytes)));
        assert_int_equal(fl_base64_decode(&back, fl_buf_bytes(&out)), 0);
        assert_true(fl_bytes_eq(fl_buf_bytes(&back), fl_bytes(plain, n)));
        fl_buf_fini(&out);
        fl_buf_fini(&back);
    }
}

static void the_buffers_cap_holds(void **state)
{
    (void)state;
    struct fl_buf out;

    fl_buf_init(&out, 8);
    assert_int_equal(fl_base64_encode(&out, FL_BYTES("1234567")), FL_ELIMIT);
    assert_int_equal(fl_base64_encode(&out, FL_BYTES("123456")), 0);
    assert_int_equal(fl_base64_decode(&out, FL_BYTES("Zg==")), FL_ELIMIT);
    assert_int_equal(fl_buf_size(&out), 8);
    fl_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_vectors_of_the_rfc_hold_both_ways),
        cmocka_unit_test(anything_but_the_one_spelling_is_refused),
        cmocka_unit_test(random_bytes_agree_with_openssl),
        cmocka_unit_test(the_buffers_cap_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
