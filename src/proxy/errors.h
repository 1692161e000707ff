/* SPDX-License-Identifier: Apache-2.0 */
/* What the gateway answers for itself: one row each of gateway.md section 7, so that status, code
 * word and detail are never spelled twice. Pure but for the calls that send through an exchange. */
#ifndef FL_PROXY_ERRORS_H
#define FL_PROXY_ERRORS_H

#include "base/buf.h"
#include "base/bytes.h"
#include "web/exchange.h"

enum fl_proxy_error {
    FL_PROXY_BAD_REQUEST,
    FL_PROXY_REQUEST_TIMEOUT,
    FL_PROXY_REQUEST_TOO_LARGE,
    FL_PROXY_EXPECTATION_FAILED,
    FL_PROXY_HEADER_TOO_LARGE,
    FL_PROXY_NOT_IMPLEMENTED,
    FL_PROXY_BACKEND_UNREACHABLE,
    FL_PROXY_BACKEND_PROTOCOL_ERROR,
    FL_PROXY_EPP_UNAVAILABLE,
    FL_PROXY_EPP_NO_ENDPOINT,
    FL_PROXY_NO_HEALTHY_BACKEND,
    FL_PROXY_NO_ROUTE,
    FL_PROXY_MODEL_UNAVAILABLE,
    FL_PROXY_SERVICE_PAUSED,
    FL_PROXY_GATEWAY_OVERLOADED,
    FL_PROXY_BACKEND_TIMEOUT,
    FL_PROXY_HTTP_VERSION,
    FL_PROXY_ERROR_COUNT,
};

struct fl_proxy_error_row {
    int status;
    const char *word;
    const char *detail;
    bool has_retry_after; /* Retry-After: 1 */
};

const struct fl_proxy_error_row *fl_proxy_error_row(enum fl_proxy_error error);

/* {"error":word,"detail":detail}; `model` is a member between them unless absent. 0 or the buffer's
 * error. */
int fl_proxy_write_error(struct fl_buf *out, const char *word, const char *detail,
                         struct fl_bytes model);

/* Answers a request with the row. `status` 0: the row's. `model` and `request_id` may be absent. */
void fl_proxy_respond_error(struct fl_exchange *x, enum fl_proxy_error error, int status,
                            struct fl_bytes model, struct fl_bytes request_id);

/* A web server's on_bad_request: the same body for a head that could not be parsed. */
void fl_proxy_on_bad_request(void *owner, int status, const char *word, struct fl_buf *body,
                             const char **content_type);

#endif
