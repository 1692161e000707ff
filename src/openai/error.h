/* SPDX-License-Identifier: Apache-2.0 */
/* Errors as OpenAI clients read them (epp.md section 6). Everything follows from the row of the
 * code in base/error.h; details never reach a client. Pure. */
#ifndef FL_OPENAI_ERROR_H
#define FL_OPENAI_ERROR_H

#include <stdint.h>

#include "base/buf.h"

/* "server_error" for 5xx, "rate_limit_error" for 429, else "invalid_request_error". */
const char *fl_openai_error_type(int http_status);

/* Appends {"error":{"message":...,"type":...,"param":null,"code":...}}. 0 or the buffer's error. */
int fl_openai_error_write(struct fl_buf *out, int code);

/* Value of `retry-after` in seconds; 0: the answer carries none. */
uint32_t fl_openai_error_retry_after_s(int code);

/* Value of `x-llm-d-request-dropped-reason`; NULL: the answer carries none. */
const char *fl_openai_error_dropped_reason(int code);

#endif
