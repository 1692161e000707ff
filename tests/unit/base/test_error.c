/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"

static void rows_are_well_formed_and_found_by_code(void **state)
{
    (void)state;
    size_t count;
    const struct fl_error_row *rows = fl_error_rows(&count);
    assert_true(count > 30);
    for (size_t i = 0; i < count; i++) {
        assert_true(rows[i].code < 0);
        assert_ptr_equal(fl_error_row(rows[i].code), &rows[i]);
        assert_in_range(rows[i].http_status, 400, 599);
        assert_in_range(rows[i].grpc_status, 1, 16);
        assert_true(fl_bytes_has_prefix(fl_bytes_of(rows[i].name), FL_BYTES("FL_E")));
        assert_int_equal(strspn(rows[i].word, "abcdefghijklmnopqrstuvwxyz_"), strlen(rows[i].word));
        assert_true(strlen(rows[i].word) > 0 && strlen(rows[i].message) > 0);
        for (size_t j = 0; j < i; j++)
            assert_int_not_equal(rows[i].code, rows[j].code);
    }
}

static void a_code_without_a_row_is_internal(void **state)
{
    (void)state;
    static const int codes[] = {0, 1, -12, -9999};
    for (size_t i = 0; i < FL_ARRAY_LEN(codes); i++)
        assert_int_equal(fl_error_row(codes[i])->code, FL_EINTERNAL);
}

/* The numbers are an interface: what a released library returned must keep its meaning. */
static void published_statuses_of_some_codes(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        int code, number, http, grpc;
        const char *word;
    } rows[] = {
        {"selection.md 2.2", FL_EDEADLINE, -6, 429, 4, "queue_timeout"},
        {"selection.md 2.2", FL_ENO_ENDPOINTS, -7, 503, 14, "no_endpoints"},
        {"selection.md 2.2", FL_EQUEUE_REJECTED, -4, 429, 8, "queue_rejected"},
        {"epp.md 6", FL_EEPP_OVERLOADED, -22, 503, 8, "epp_overloaded"},
        {"epp.md 6", FL_EBAD_BODY, -23, 400, 3, "invalid_request_body"},
        {"epp.md 6", FL_ETOKENIZER_TIMEOUT, -30, 504, 4, "tokenizer_timeout"},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        const struct fl_error_row *row = fl_error_row(rows[i].code);
        if (row->code != rows[i].number || row->http_status != rows[i].http ||
            row->grpc_status != rows[i].grpc || strcmp(row->word, rows[i].word) != 0)
            fail_msg("row %zu: %s %s", i, rows[i].why, row->name);
    }
}

static void setting_returns_the_code_and_takes_no_error_to_write_to(void **state)
{
    (void)state;
    struct fl_error err = {0};
    assert_int_equal(fl_error_set(&err, FL_ECONFIG, "port %d is above %d", 70000, 65535),
                     FL_ECONFIG);
    assert_int_equal(err.code, FL_ECONFIG);
    assert_string_equal(err.text, "port 70000 is above 65535");
    assert_int_equal(fl_error_set(NULL, FL_EIO, "nobody listens"), FL_EIO);
    fl_error_prefix(NULL, "nobody listens");
    /* The old text may be part of the new one. */
    fl_error_set(&err, FL_EIO, "again: %s", err.text);
    assert_string_equal(err.text, "again: port 70000 is above 65535");
}

static void prefixes_stack_from_outside(void **state)
{
    (void)state;
    struct fl_error err = {0};
    fl_error_set(&err, FL_ETYPE, "is a string");
    fl_error_prefix(&err, "field %s", "port");
    fl_error_prefix(&err, "rule igw");
    assert_string_equal(err.text, "rule igw: field port: is a string");
    assert_int_equal(err.code, FL_ETYPE);
}

static void long_sentences_are_cut(void **state)
{
    (void)state;
    char long_text[2 * FL_ERROR_TEXT];
    struct fl_error err = {0};
    memset(long_text, 'x', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = 0;
    fl_error_set(&err, FL_EIO, "%s", long_text);
    assert_int_equal(strlen(err.text), FL_ERROR_TEXT - 1);
    fl_error_prefix(&err, "abc");
    assert_int_equal(strlen(err.text), FL_ERROR_TEXT - 1);
    assert_int_equal(memcmp(err.text, "abc: xxx", 8), 0);
    fl_error_prefix(&err, "%s", long_text);
    assert_int_equal(strlen(err.text), FL_ERROR_TEXT - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_well_formed_and_found_by_code),
        cmocka_unit_test(a_code_without_a_row_is_internal),
        cmocka_unit_test(published_statuses_of_some_codes),
        cmocka_unit_test(setting_returns_the_code_and_takes_no_error_to_write_to),
        cmocka_unit_test(prefixes_stack_from_outside),
        cmocka_unit_test(long_sentences_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
