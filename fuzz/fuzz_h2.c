/* SPDX-License-Identifier: Apache-2.0 */
/* An HTTP/2 session of either side fed hostile bytes: the first chooses the side, the second where
 * to cut. Every stream that was told must end once. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "http2/h2.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

struct count {
    int heads, closes;
    bool is_server;
};

static void on_head(void *owner, struct fl_h2_stream *stream, struct fl_head *head)
{
    struct count *count = owner;
    if (!count->is_server)
        return;
    count->heads++;
    fl_h2_set_owner(stream, count);
    if (head->fields.count % 2 == 0) { /* some are answered at once */
        struct fl_head answer = {
            .status = 200, .body = FL_BODY_STREAM, .content_length = UINT64_MAX};
        if (fl_h2_send_head(stream, &answer, false) == 0) {
            fl_h2_send_data(stream, (struct fl_slice){.p = (const uint8_t *)"answer", .n = 6});
            (void)fl_h2_send_end(stream, &head->fields);
        }
    }
}

static void on_data(void *owner, struct fl_h2_stream *stream, struct fl_slice slice)
{
    (void)owner;
    if (slice.n % 2 == 0)
        fl_h2_consume(stream, slice.n);
    fl_slice_unref(&slice);
}

static void on_end(void *owner, struct fl_h2_stream *stream, const struct fl_fields *trailers)
{
    (void)owner;
    if (trailers != NULL)
        fl_h2_reset(stream, FL_H2_CANCEL);
}

static void on_close(void *owner, struct fl_h2_stream *stream, int rc)
{
    struct count *count = owner;
    (void)stream;
    (void)rc;
    count->closes++;
}

static const struct fl_h2_ops ops = {
    .on_head = on_head, .on_data = on_data, .on_end = on_end, .on_close = on_close};

static void drain(struct fl_h2 *h2)
{
    struct fl_chain out = {0};
    (void)fl_h2_drain(h2, &out, 65536);
    fl_chain_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    struct count count = {.is_server = data[0] % 2 == 0};
    const struct fl_h2_config config = {
        .side = count.is_server ? FL_H2_SERVER : FL_H2_CLIENT,
        .max_streams = 10,
        .stream_window_bytes = 65535,
        .connection_window_bytes = 65535,
        .max_header_bytes = 4096,
        .max_headers = 20,
    };
    struct fl_h2 *h2 = fl_h2_new(&config, &ops, &count);
    if (count.is_server) {
        (void)fl_h2_feed(h2, FL_BYTES(PREFACE), NULL);
    } else {
        const struct fl_head head = {
            .method = FL_BYTES("GET"), .authority = FL_BYTES("a"), .target = FL_BYTES("/")};
        for (int i = 0; i < 2; i++)
            count.heads += fl_h2_request(h2, &head, true, &count) != NULL;
        drain(h2);
    }
    size_t piece = data[1] == 0 ? size : data[1];
    struct fl_bytes in = fl_bytes(data + 2, size - 2);
    while (in.n > 0 && fl_h2_feed(h2, fl_bytes_head(in, piece), NULL) == 0) {
        in = fl_bytes_skip(in, piece < in.n ? piece : in.n);
        drain(h2);
    }
    fl_h2_fail(h2, FL_ECLOSED);
    assert(count.heads == count.closes);
    assert(fl_h2_stream_count(h2) == 0);
    fl_h2_free(h2);
    return 0;
}
