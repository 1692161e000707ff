/* SPDX-License-Identifier: Apache-2.0 */
/* gRPC framing: cut by the first byte, the messages must be those of the uncut bytes. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "http2/grpc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CAP 5000

static int read_all(struct fl_bytes in, size_t piece, struct fl_chain *all, int *messages)
{
    struct fl_grpc_reader reader;
    int rc = 0;
    fl_grpc_reader_init(&reader, CAP, NULL);
    while (in.n > 0 && rc >= 0) {
        struct fl_bytes part = fl_bytes_head(in, piece);
        in = fl_bytes_skip(in, part.n);
        fl_grpc_reader_feed(&reader, fl_slice_copy(part, NULL));
        while ((rc = fl_grpc_reader_next(&reader, all)) == 1)
            (*messages)++;
    }
    fl_grpc_reader_fini(&reader);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fl_chain whole = {0}, cut = {0};
    struct fl_slice a, b;
    int whole_count = 0, cut_count = 0;
    if (size < 2)
        return 0;
    struct fl_bytes in = fl_bytes(data + 1, size - 1);
    int whole_rc = read_all(in, in.n, &whole, &whole_count);
    int cut_rc = read_all(in, data[0] == 0 ? 1 : data[0], &cut, &cut_count);
    assert(whole_rc == cut_rc && whole_count == cut_count && whole.bytes == cut.bytes);
    if (fl_grpc_flatten(&whole, NULL, &a) == 0 && fl_grpc_flatten(&cut, NULL, &b) == 0) {
        assert(fl_bytes_eq(fl_slice_bytes(a), fl_slice_bytes(b)));
        fl_slice_unref(&a);
        fl_slice_unref(&b);
    }

    uint64_t timeout_ms;
    struct fl_arena arena = {0};
    struct fl_head head = {.status = 200};
    struct fl_bytes message;
    (void)fl_grpc_timeout_parse(in, &timeout_ms);
    fl_fields_add(&head.fields, &arena, FL_BYTES("grpc-message"), in);
    (void)fl_grpc_read_status(&head, NULL, &arena, &message);
    struct fl_fields again = {0};
    fl_grpc_add_status(&again, &arena, 3, message);
    fl_arena_fini(&arena);
    return 0;
}
