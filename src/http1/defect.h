/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that can be wrong with an HTTP/1 message, one row each: what the client is told
 * (gateway.md 7) and one clause for logs. Inside http1/ a defect is its enum value, 0 is none. */
#ifndef FL_HTTP1_DEFECT_H
#define FL_HTTP1_DEFECT_H

#include "http1/http1.h"

/* X(name, status, word, clause) */
#define FL_HTTP1_DEFECT_TABLE(X)                                                                   \
    X(NONE, 0, "", "")                                                                             \
    X(BARE_LF, 400, "bad_request", "a line ends in LF without CR")                                 \
    X(BARE_CR, 400, "bad_request", "CR that is not followed by LF")                                \
    X(NUL, 400, "bad_request", "NUL byte in the head")                                             \
    X(CONTROL, 400, "bad_request", "control byte in the head")                                     \
    X(OBS_FOLD, 400, "bad_request", "a header line is folded")                                     \
    X(NAME_EMPTY, 400, "bad_request", "a header line has no name")                                 \
    X(NAME_BLANK, 400, "bad_request", "blank between a header name and its colon")                 \
    X(NAME_BYTE, 400, "bad_request", "a header name holds a byte that is not allowed")             \
    X(START_LINE, 400, "bad_request", "the request line is not METHOD target HTTP/1.x")            \
    X(TARGET, 400, "bad_request", "the request target is malformed")                               \
    X(BLANK_LINES, 400, "bad_request", "more than one blank line before the request")              \
    X(HOST_MISSING, 400, "bad_request", "HTTP/1.1 request without Host")                           \
    X(HOST_TWICE, 400, "bad_request", "more than one Host")                                        \
    X(HOST_BYTES, 400, "bad_request", "Host is not host[:port]")                                   \
    X(HOST_DIFFERS, 400, "bad_request", "Host differs from the authority of the target")           \
    X(LENGTH_AND_CODING, 400, "bad_request", "both Content-Length and Transfer-Encoding")          \
    X(LENGTH_TWICE, 400, "bad_request", "more than one Content-Length")                            \
    X(LENGTH_FORM, 400, "bad_request", "Content-Length is not a number")                           \
    X(LENGTH_LARGE, 400, "bad_request", "Content-Length is above 2^62")                            \
    X(CODING_OLD, 400, "bad_request", "Transfer-Encoding in an HTTP/1.0 message")                  \
    X(CODING_FORM, 400, "bad_request", "Transfer-Encoding is not exactly one \"chunked\"")         \
    X(CODING_UNKNOWN, 501, "not_implemented", "Transfer-Encoding other than chunked")              \
    X(CONNECTION_LONG, 400, "bad_request", "Connection lists more than 64 options")                \
    X(EXPECTATION, 417, "expectation_failed", "Expect is not 100-continue")                        \
    X(METHOD_CONNECT, 501, "not_implemented", "method CONNECT")                                    \
    X(VERSION, 505, "http_version", "neither HTTP/1.0 nor HTTP/1.1")                               \
    X(HEAD_BYTES, 431, "header_too_large", "the head is larger than allowed")                      \
    X(HEAD_LINES, 431, "header_too_large", "the head has more lines than allowed")                 \
    X(TRAILER_BYTES, 431, "header_too_large", "the trailers are larger than allowed")              \
    X(TRAILER_LINES, 431, "header_too_large", "more trailer lines than allowed")                   \
    X(CHUNK_SIZE, 400, "bad_request", "a chunk size is not 1 to 16 hexadecimal digits")            \
    X(CHUNK_LARGE, 400, "bad_request", "a chunk is larger than allowed")                           \
    X(CHUNK_EXT, 400, "bad_request", "a chunk extension is malformed")                             \
    X(CHUNK_EXT_BYTES, 400, "bad_request", "chunk extensions are longer than allowed")             \
    X(CHUNK_END, 400, "bad_request", "chunk data is not followed by CRLF")                         \
    X(STATUS_LINE, 400, "bad_request", "the status line is not HTTP/1.x CODE reason")              \
    X(UNASKED, 400, "bad_request", "bytes of an answer that nobody asked for")                     \
    X(INFORMATIONAL, 400, "bad_request", "too many interim answers")                               \
    X(SWITCHED, 400, "bad_request", "101 without an upgrade in the request")                       \
    X(CUT, 400, "bad_request", "the message ended early")                                          \
    X(MEMORY, 500, "internal", "out of memory")

enum fl_http1_defect_id {
#define FL_HTTP1_DEFECT_ENUM(name, status, word, why) FL_HTTP1_DEFECT_##name,
    FL_HTTP1_DEFECT_TABLE(FL_HTTP1_DEFECT_ENUM)
#undef FL_HTTP1_DEFECT_ENUM
        FL_HTTP1_DEFECT_COUNT
};

extern const struct fl_http1_defect fl_http1_defects[FL_HTTP1_DEFECT_COUNT];

#endif
