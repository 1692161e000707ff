/* SPDX-License-Identifier: Apache-2.0 */
/* The one error convention: functions return 0 (or a small non-negative value) or a negative FL_E*.
 *
 * Where a person reads the outcome (start-up, configuration, REST) a last parameter
 * `struct fl_error *err`, NULL allowed, carries the sentence; on the request path the code alone is
 * enough and nothing is formatted. A message names the thing and the rule:
 * `rule igw-epp: eppEndpoint is 271 bytes, at most 255`.
 *
 * Codes are rows of one table (error.c): name, HTTP status, gRPC status, the word in bodies and
 * metrics. Who speaks a protocol looks the row up; nobody maps codes in scattered ifs. The words of
 * a pick are epp.md section 6, those of the selection library selection.md 2.2. Numbers do not
 * change once released. */
#ifndef FL_BASE_ERROR_H
#define FL_BASE_ERROR_H

#include <stddef.h>

/* X(code name, number, HTTP status, gRPC status, word, default message to a client) */
#define FL_ERROR_TABLE(X)                                                                          \
    /* of the selection library, selection.md 2.2 */                                               \
    X(FL_EBAD_REQUEST, -1, 400, 3, "invalid_request", "selection failed")                          \
    X(FL_ENOT_FOUND, -2, 404, 5, "not_found", "not found")                                         \
    X(FL_ECONFLICT, -3, 409, 6, "conflict", "selection failed")                                    \
    X(FL_EQUEUE_REJECTED, -4, 429, 8, "queue_rejected", "all workers are busy")                    \
    X(FL_EOVERLOADED, -5, 429, 8, "overloaded", "all workers are busy")                            \
    X(FL_EDEADLINE, -6, 429, 4, "queue_timeout", "request timed out in queue")                     \
    X(FL_ENO_ENDPOINTS, -7, 503, 14, "no_endpoints", "no endpoints available")                     \
    X(FL_ENOT_READY, -8, 503, 14, "selection_unavailable", "selection failed")                     \
    X(FL_ESHUTDOWN, -9, 503, 14, "selection_unavailable", "selection failed")                      \
    X(FL_ECANCELLED, -10, 499, 1, "cancelled", "request cancelled")                                \
    X(FL_EINTERNAL, -11, 500, 13, "internal", "selection failed")                                  \
    /* of a pick, epp.md section 6 */                                                              \
    X(FL_EEPP_NOT_READY, -20, 503, 14, "epp_not_ready", "endpoint picker not ready")               \
    X(FL_EDRAINING, -21, 503, 14, "shutting_down", "endpoint picker shutting down")                \
    X(FL_EEPP_OVERLOADED, -22, 503, 8, "epp_overloaded", "endpoint picker overloaded")             \
    X(FL_EBAD_BODY, -23, 400, 3, "invalid_request_body", "invalid request body")                   \
    X(FL_EMODEL_NOT_FOUND, -24, 404, 5, "model_not_found", "model not served here")                \
    X(FL_EBAD_HINT, -25, 400, 3, "invalid_routing_hint", "request is not routable")                \
    X(FL_ETOO_LARGE, -26, 413, 8, "request_too_large", "request body too large")                   \
    X(FL_EMETADATA_LARGE, -27, 431, 8, "metadata_headers_too_large",                               \
      "request metadata headers too large")                                                        \
    X(FL_ETOKENIZER_REJECTED, -28, 400, 3, "tokenizer_rejected",                                   \
      "request rejected by tokenization service")                                                  \
    X(FL_ETOKENIZER_UNAVAILABLE, -29, 503, 14, "tokenizer_unavailable",                            \
      "tokenization service unavailable")                                                          \
    X(FL_ETOKENIZER_TIMEOUT, -30, 504, 4, "tokenizer_timeout", "tokenization service timed out")   \
    X(FL_ETOKENIZER, -31, 502, 13, "tokenizer_error", "tokenization service error")                \
    X(FL_EDECISION_TIMEOUT, -32, 504, 4, "decision_timeout", "endpoint picker timed out")          \
    /* of codecs, protocols and the system */                                                      \
    X(FL_EPROTO, -40, 502, 3, "protocol_error", "malformed message")                               \
    X(FL_ELIMIT, -41, 413, 8, "limit_exceeded", "a limit was exceeded")                            \
    X(FL_EDEPTH, -42, 400, 3, "too_deep", "nesting too deep")                                      \
    X(FL_ERANGE, -43, 400, 3, "out_of_range", "value out of range")                                \
    X(FL_ETYPE, -44, 400, 3, "wrong_type", "value of the wrong type")                              \
    X(FL_ENOMEM, -45, 500, 8, "out_of_memory", "out of memory")                                    \
    X(FL_EIO, -46, 502, 14, "io_error", "input or output failed")                                  \
    X(FL_ECONNECT, -47, 502, 14, "connect_failed", "connection failed")                            \
    X(FL_ETIMEOUT, -48, 504, 4, "timeout", "timed out")                                            \
    X(FL_ECLOSED, -49, 502, 14, "closed", "connection closed by the peer")                         \
    X(FL_ETLS, -50, 502, 14, "tls_error", "TLS failed")                                            \
    X(FL_EREFUSED, -51, 502, 14, "refused_stream", "the peer did not process the stream")          \
    X(FL_EUNSUPPORTED, -52, 501, 12, "unsupported", "not supported")                               \
    X(FL_EBUSY, -53, 503, 8, "busy", "busy")                                                       \
    X(FL_ECONFIG, -54, 500, 3, "bad_configuration", "bad configuration")

enum {
#define FL_ERROR_ENUM(name, number, http, grpc, word, message) name = number,
    FL_ERROR_TABLE(FL_ERROR_ENUM)
#undef FL_ERROR_ENUM
};

struct fl_error_row {
    int code;
    const char *name; /* "FL_EBAD_REQUEST" */
    int http_status;
    int grpc_status;
    const char *word;    /* snake case, in bodies, metrics and logs */
    const char *message; /* what a client may read; never holds a detail */
};

/* The row of a negative code; an unknown code gives that of FL_EINTERNAL. */
const struct fl_error_row *fl_error_row(int code);

/* All rows, for tests and documentation. */
const struct fl_error_row *fl_error_rows(size_t *count);

#define FL_ERROR_TEXT 512

/* On the caller's stack, zeroed: no error. */
struct fl_error {
    int code;
    char text[FL_ERROR_TEXT];
};

/* Stores code and sentence (cut at FL_ERROR_TEXT - 1) in `err`, if not NULL; returns `code`. */
int fl_error_set(struct fl_error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before the sentence, as an outer caller knows which thing it was. */
void fl_error_prefix(struct fl_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
