/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/errors.h"

#include <assert.h>
#include <string.h>

#include "codec/json.h"

/* gateway.md 7, 9.7 and 5.4; the texts of the two epp_ rows are exact there. */
static const struct fl_proxy_error_row rows[FL_PROXY_ERROR_COUNT] = {
    [FL_PROXY_BAD_REQUEST] = {400, "bad_request", "the request is malformed", false},
    [FL_PROXY_REQUEST_TIMEOUT] = {408, "request_timeout", "the request did not arrive in time",
                                  false},
    [FL_PROXY_REQUEST_TOO_LARGE] = {413, "request_too_large", "the request body is too large",
                                    false},
    [FL_PROXY_EXPECTATION_FAILED] = {417, "expectation_failed",
                                     "only Expect: 100-continue is supported", false},
    [FL_PROXY_HEADER_TOO_LARGE] = {431, "header_too_large", "the request head is too large", false},
    [FL_PROXY_NOT_IMPLEMENTED] = {501, "not_implemented",
                                  "the method or transfer coding is not supported", false},
    [FL_PROXY_BACKEND_UNREACHABLE] = {502, "backend_unreachable",
                                      "no endpoint accepted the connection", false},
    [FL_PROXY_BACKEND_PROTOCOL_ERROR] = {502, "backend_protocol_error",
                                         "the endpoint gave no valid response", false},
    [FL_PROXY_EPP_UNAVAILABLE] = {503, "epp_unavailable", "the endpoint picker did not answer",
                                  true},
    [FL_PROXY_EPP_NO_ENDPOINT] = {503, "epp_no_endpoint",
                                  "the endpoint picker named no usable endpoint", true},
    [FL_PROXY_NO_HEALTHY_BACKEND] = {503, "no_healthy_backend", "no endpoint is usable", false},
    [FL_PROXY_NO_ROUTE] = {503, "no_route", "no routing rule matched the request path", false},
    [FL_PROXY_MODEL_UNAVAILABLE] = {503, "model_unavailable", "no backend pool for this model",
                                    false},
    [FL_PROXY_SERVICE_PAUSED] = {503, "service_paused", "the rule is administratively down", false},
    [FL_PROXY_GATEWAY_OVERLOADED] = {503, "gateway_overloaded",
                                     "too many request bodies are being held", true},
    [FL_PROXY_BACKEND_TIMEOUT] = {504, "backend_timeout", "the endpoint did not respond in time",
                                  false},
    [FL_PROXY_HTTP_VERSION] = {505, "http_version", "only HTTP/1.0 and HTTP/1.1 are supported",
                               false},
};

const struct fl_proxy_error_row *fl_proxy_error_row(enum fl_proxy_error error)
{
    assert(error < FL_PROXY_ERROR_COUNT);
    return &rows[error];
}

int fl_proxy_write_error(struct fl_buf *out, const char *word, const char *detail,
                         struct fl_bytes model)
{
    struct fl_json_writer json;

    fl_json_writer_init(&json, out);
    fl_json_write_object(&json);
    fl_json_write_key(&json, "error");
    fl_json_write_cstr(&json, word);
    if (!fl_bytes_is_absent(model)) {
        fl_json_write_key(&json, "model");
        fl_json_write_string(&json, model);
    }
    fl_json_write_key(&json, "detail");
    fl_json_write_cstr(&json, detail);
    fl_json_write_object_end(&json);
    return fl_json_writer_end(&json);
}

void fl_proxy_respond_error(struct fl_exchange *x, enum fl_proxy_error error, int status,
                            struct fl_bytes model, struct fl_bytes request_id)
{
    const struct fl_proxy_error_row *row = fl_proxy_error_row(error);
    struct fl_arena *arena = fl_exchange_arena(x);
    struct fl_fields extra = {0};
    struct fl_buf body = {0};

    if (row->has_retry_after)
        fl_fields_add(&extra, arena, FL_BYTES("Retry-After"), FL_BYTES("1"));
    if (!fl_bytes_is_absent(request_id))
        fl_fields_add(&extra, arena, FL_BYTES("X-Request-Id"), request_id);
    /* A buffer without cap fails only when memory is gone; an empty body is still an answer. */
    (void)fl_proxy_write_error(&body, row->word, row->detail, model);
    fl_exchange_respond(x, status != 0 ? status : row->status, "application/json",
                        fl_buf_bytes(&body), &extra);
    fl_buf_fini(&body);
}

void fl_proxy_on_bad_request(void *owner, int status, const char *word, struct fl_buf *body,
                             const char **content_type)
{
    (void)owner;
    (void)status;
    const char *detail = rows[FL_PROXY_BAD_REQUEST].detail;
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        if (strcmp(rows[i].word, word) == 0)
            detail = rows[i].detail;
    }
    *content_type = "application/json";
    (void)fl_proxy_write_error(body, word, detail, (struct fl_bytes){0});
}
