/* SPDX-License-Identifier: Apache-2.0 */
#include "extproc/picker_answer.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "codec/json.h"
#include "extproc/headers.h"

void fl_picker_write_decision(struct fl_chain *out, enum fl_extproc_kind kind,
                              const struct fl_picker_decision *decision, uint32_t carried,
                              struct fl_bytes minted_id)
{
    struct fl_field sets[3 + FL_PICKER_EXTRA_MAX];
    struct fl_bytes removes[FL_EXTPROC_CONTROL_MAX];
    bool sets_prefill = !fl_bytes_is_absent(decision->prefill);
    size_t set_count = 0;

    sets[set_count++] = (struct fl_field){FL_BYTES(FL_EXTPROC_DESTINATION), decision->endpoint};
    if (sets_prefill)
        sets[set_count++] = (struct fl_field){FL_BYTES(FL_EXTPROC_PREFILL), decision->prefill};
    if (!fl_bytes_is_absent(minted_id))
        sets[set_count++] = (struct fl_field){FL_BYTES("x-request-id"), minted_id};
    assert(decision->extra_count <= FL_PICKER_EXTRA_MAX);
    for (uint32_t i = 0; i < decision->extra_count; i++)
        sets[set_count++] = decision->extras[i];

    struct fl_extproc_response_out what = {
        .kind = kind,
        .sets = sets,
        .set_count = set_count,
        .removes = removes,
        .remove_count = fl_extproc_removes(carried, sets_prefill, removes),
        .clear_route_cache = true,
        .destination = decision->endpoint, /* byte-identical to the header */
    };
    fl_extproc_response_write(out, &what);
}

/* x-llm-d-request-dropped-reason, for dashboards made for llm-d (epp.md 6). */
static const struct {
    int code;
    const char *reason;
} dropped_reasons[] = {
    {FL_EOVERLOADED, "rejected-saturated"},      {FL_EQUEUE_REJECTED, "rejected-saturated"},
    {FL_ENO_ENDPOINTS, "rejected-no-endpoints"}, {FL_EDEADLINE, "rejected-ttl-expired"},
    {FL_EDRAINING, "rejected-shutting-down"},
};

static const char *dropped_reason(int code)
{
    for (size_t i = 0; i < FL_ARRAY_LEN(dropped_reasons); i++) {
        if (dropped_reasons[i].code == code)
            return dropped_reasons[i].reason;
    }
    return NULL;
}

static const char *error_type(int http_status)
{
    if (http_status == 429)
        return "rate_limit_error";
    return http_status >= 500 ? "server_error" : "invalid_request_error";
}

static bool wants_retry_after(const struct fl_error_row *row)
{
    return row->http_status == 429 || row->code == FL_EEPP_OVERLOADED ||
           row->code == FL_EEPP_NOT_READY || row->code == FL_EDRAINING;
}

/* {"error":{"message":...,"type":...,"param":null,"code":...}} */
static void write_body(struct fl_chain *body, const struct fl_error_row *row)
{
    struct fl_json_writer writer;
    struct fl_buf text = {0};

    fl_json_writer_init(&writer, &text);
    fl_json_write_object(&writer);
    fl_json_write_key(&writer, "error");
    fl_json_write_object(&writer);
    fl_json_write_key(&writer, "message");
    fl_json_write_cstr(&writer, row->message);
    fl_json_write_key(&writer, "type");
    fl_json_write_cstr(&writer, error_type(row->http_status));
    fl_json_write_key(&writer, "param");
    fl_json_write_null(&writer);
    fl_json_write_key(&writer, "code");
    fl_json_write_cstr(&writer, row->word);
    fl_json_write_object_end(&writer);
    fl_json_write_object_end(&writer);
    int rc = fl_json_writer_end(&writer);
    assert(rc == 0); /* the buffer has no cap */
    (void)rc;
    fl_chain_push(body, fl_slice_copy(fl_buf_bytes(&text), NULL));
    fl_buf_fini(&text);
}

void fl_picker_write_immediate(struct fl_chain *out, int code, uint32_t retry_after_s,
                               struct fl_bytes request_id)
{
    const struct fl_error_row *row = fl_error_row(code);
    const char *reason = dropped_reason(code);
    struct fl_field sets[4];
    struct fl_chain body = {0};
    size_t set_count = 0;
    char seconds[16];

    sets[set_count++] = (struct fl_field){FL_BYTES("content-type"), FL_BYTES("application/json")};
    if (wants_retry_after(row)) {
        snprintf(seconds, sizeof(seconds), "%" PRIu32, retry_after_s > 0 ? retry_after_s : 1);
        sets[set_count++] = (struct fl_field){FL_BYTES("retry-after"), fl_bytes_of(seconds)};
    }
    if (request_id.n > 0)
        sets[set_count++] = (struct fl_field){FL_BYTES("x-request-id"), request_id};
    if (reason != NULL)
        sets[set_count++] =
            (struct fl_field){FL_BYTES("x-llm-d-request-dropped-reason"), fl_bytes_of(reason)};
    write_body(&body, row);
    struct fl_extproc_response_out what = {
        .kind = FL_EXTPROC_IMMEDIATE,
        .http_status = row->http_status,
        .sets = sets,
        .set_count = set_count,
        .body = &body,
        .body_bytes = body.bytes,
        .details = fl_bytes_of(row->word), /* one token: it lands in access logs */
    };
    fl_extproc_response_write(out, &what);
    fl_chain_fini(&body);
}
