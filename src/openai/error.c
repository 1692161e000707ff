/* SPDX-License-Identifier: Apache-2.0 */
#include "openai/error.h"

#include "base/error.h"
#include "codec/json.h"

const char *fl_openai_error_type(int http_status)
{
    if (http_status >= 500)
        return "server_error";
    return http_status == 429 ? "rate_limit_error" : "invalid_request_error";
}

int fl_openai_error_write(struct fl_buf *out, int code)
{
    const struct fl_error_row *row = fl_error_row(code);
    struct fl_json_writer json;

    fl_json_writer_init(&json, out);
    fl_json_write_object(&json);
    fl_json_write_key(&json, "error");
    fl_json_write_object(&json);
    fl_json_write_key(&json, "message");
    fl_json_write_cstr(&json, row->message);
    fl_json_write_key(&json, "type");
    fl_json_write_cstr(&json, fl_openai_error_type(row->http_status));
    fl_json_write_key(&json, "param");
    fl_json_write_null(&json);
    fl_json_write_key(&json, "code");
    fl_json_write_cstr(&json, row->word); /* always a string: an integer broke clients */
    fl_json_write_object_end(&json);
    fl_json_write_object_end(&json);
    return fl_json_writer_end(&json);
}

uint32_t fl_openai_error_retry_after_s(int code)
{
    if (fl_error_row(code)->http_status == 429)
        return 1;
    switch (code) {
    case FL_EEPP_NOT_READY:
    case FL_EEPP_OVERLOADED:
    case FL_EDRAINING:
        return 1;
    default:
        return 0;
    }
}

const char *fl_openai_error_dropped_reason(int code)
{
    static const struct {
        int code;
        const char *reason;
    } rows[] = {
        {FL_EOVERLOADED, "rejected-saturated"},        {FL_EQUEUE_REJECTED, "rejected-saturated"},
        {FL_ENO_ENDPOINTS, "rejected-no-endpoints"},   {FL_EDEADLINE, "rejected-ttl-expired"},
        {FL_ECANCELLED, "rejected-context-cancelled"}, {FL_EDRAINING, "rejected-shutting-down"},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        if (rows[i].code == code)
            return rows[i].reason;
    }
    return NULL;
}
