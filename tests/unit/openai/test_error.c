/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/error.h"
#include "codec/json.h"
#include "openai/error.h"

/* epp.md 6: status, type, code, message, retry-after, dropped reason */
static void every_row_of_the_table_is_answered_in_its_words(void **state)
{
    (void)state;
    static const struct {
        int code, status;
        const char *type, *word, *message;
        uint32_t retry_after_s;
        const char *dropped;
    } rows[] = {
        {FL_EEPP_NOT_READY, 503, "server_error", "epp_not_ready", "endpoint picker not ready", 1,
         NULL},
        {FL_EDRAINING, 503, "server_error", "shutting_down", "endpoint picker shutting down", 1,
         "rejected-shutting-down"},
        {FL_ENO_ENDPOINTS, 503, "server_error", "no_endpoints", "no endpoints available", 0,
         "rejected-no-endpoints"},
        {FL_EEPP_OVERLOADED, 503, "server_error", "epp_overloaded", "endpoint picker overloaded", 1,
         NULL},
        {FL_EBAD_BODY, 400, "invalid_request_error", "invalid_request_body", "invalid request body",
         0, NULL},
        {FL_EMODEL_NOT_FOUND, 404, "invalid_request_error", "model_not_found",
         "model not served here", 0, NULL},
        {FL_EBAD_HINT, 400, "invalid_request_error", "invalid_routing_hint",
         "request is not routable", 0, NULL},
        {FL_ETOO_LARGE, 413, "invalid_request_error", "request_too_large", "request body too large",
         0, NULL},
        {FL_EMETADATA_LARGE, 431, "invalid_request_error", "metadata_headers_too_large",
         "request metadata headers too large", 0, NULL},
        {FL_ETOKENIZER_REJECTED, 400, "invalid_request_error", "tokenizer_rejected",
         "request rejected by tokenization service", 0, NULL},
        {FL_ETOKENIZER_UNAVAILABLE, 503, "server_error", "tokenizer_unavailable",
         "tokenization service unavailable", 0, NULL},
        {FL_ETOKENIZER_TIMEOUT, 504, "server_error", "tokenizer_timeout",
         "tokenization service timed out", 0, NULL},
        {FL_ETOKENIZER, 502, "server_error", "tokenizer_error", "tokenization service error", 0,
         NULL},
        {FL_EDECISION_TIMEOUT, 504, "server_error", "decision_timeout", "endpoint picker timed out",
         0, NULL},
        {FL_EOVERLOADED, 429, "rate_limit_error", "overloaded", "all workers are busy", 1,
         "rejected-saturated"},
        {FL_EQUEUE_REJECTED, 429, "rate_limit_error", "queue_rejected", "all workers are busy", 1,
         "rejected-saturated"},
        {FL_EDEADLINE, 429, "rate_limit_error", "queue_timeout", "request timed out in queue", 1,
         "rejected-ttl-expired"},
        {FL_ENOT_READY, 503, "server_error", "selection_unavailable", "selection failed", 0, NULL},
        {FL_ECONFLICT, 409, "invalid_request_error", "conflict", "selection failed", 0, NULL},
        {FL_EBAD_REQUEST, 400, "invalid_request_error", "invalid_request", "selection failed", 0,
         NULL},
        {FL_EINTERNAL, 500, "server_error", "internal", "selection failed", 0, NULL},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_buf out = {0}, expected = {0};
        assert_int_equal(fl_error_row(rows[i].code)->http_status, rows[i].status);
        assert_int_equal(fl_openai_error_write(&out, rows[i].code), 0);
        fl_buf_printf(&expected,
                      "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,"
                      "\"code\":\"%s\"}}",
                      rows[i].message, rows[i].type, rows[i].word);
        if (!fl_bytes_eq(fl_buf_bytes(&out), fl_buf_bytes(&expected)))
            fail_msg("row %zu: %.*s", i, FL_FMT(fl_buf_bytes(&out)));
        assert_int_equal(fl_openai_error_retry_after_s(rows[i].code), rows[i].retry_after_s);
        const char *dropped = fl_openai_error_dropped_reason(rows[i].code);
        if ((dropped == NULL) != (rows[i].dropped == NULL) ||
            (dropped != NULL && strcmp(dropped, rows[i].dropped) != 0))
            fail_msg("row %zu: dropped reason", i);
        fl_buf_fini(&out);
        fl_buf_fini(&expected);
    }
}

/* epp.md 6: 429 answers carry retry-after; the code is always a string */
static void every_code_gives_a_json_body(void **state)
{
    (void)state;
    size_t count;
    const struct fl_error_row *rows = fl_error_rows(&count);

    for (size_t i = 0; i < count; i++) {
        struct fl_buf out = {0};
        struct fl_json doc = {0};
        struct fl_bytes code, type;
        assert_int_equal(fl_openai_error_write(&out, rows[i].code), 0);
        assert_int_equal(fl_json_parse(&doc, fl_buf_bytes(&out), NULL), 0);
        const struct fl_json_node *error = fl_json_get(fl_json_root(&doc), FL_BYTES("error"));
        assert_int_equal(fl_json_get_string(error, "code", &code, NULL), 0);
        assert_int_equal(fl_json_get_string(error, "type", &type, NULL), 0);
        assert_int_equal(fl_json_get(error, FL_BYTES("param"))->type, FL_JSON_NULL);
        if (rows[i].http_status == 429)
            assert_true(fl_openai_error_retry_after_s(rows[i].code) >= 1);
        fl_json_fini(&doc);
        fl_buf_fini(&out);
    }
}

static void a_full_buffer_is_told(void **state)
{
    (void)state;
    struct fl_buf out;

    fl_buf_init(&out, 20);
    assert_int_equal(fl_openai_error_write(&out, FL_ENO_ENDPOINTS), FL_ELIMIT);
    fl_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_of_the_table_is_answered_in_its_words),
        cmocka_unit_test(every_code_gives_a_json_body),
        cmocka_unit_test(a_full_buffer_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
