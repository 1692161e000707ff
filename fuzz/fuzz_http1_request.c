/* SPDX-License-Identifier: Apache-2.0 */
/* Requests, cut as the first byte says, against the same bytes fed whole: the same events, the same
 * body bytes, the same verdict. What was accepted is written again and read back. */
#include "http1_compare.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_back(const struct fl_head *head)
{
    struct fl_buf out = {0};
    struct fl_arena arena = {0};
    struct fl_http1_parser parser;
    struct fl_http1_event ev;
    struct fl_http1_framing framing;
    if (fl_http1_write_request(&out, head, true) != 0)
        abort(); /* what we took we can pass on */
    fl_http1_parser_init(&parser, FL_HTTP1_REQUESTS, &fl_http1_default_limits);
    if (fl_bytes_is_absent(head->authority)) {
        /* HTTP/1.0 without Host: the caller must know one before it forwards. */
    } else if (fl_http1_feed(&parser, &arena, fl_buf_bytes(&out), &ev) != FL_HTTP1_HEAD ||
               ev.consumed != fl_buf_size(&out) || ev.head->body != head->body) {
        abort();
    }
    struct fl_head answer = {.status = 200, .body = FL_BODY_STREAM, .content_length = UINT64_MAX};
    fl_buf_clear(&out);
    if (fl_http1_write_response(&out, &answer, head, true, &framing) != 0)
        abort();
    fl_http1_parser_fini(&parser);
    fl_arena_fini(&arena);
    fl_buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    compare_cuts(FL_HTTP1_REQUESTS, data, size, write_back);
    return 0;
}
