/* SPDX-License-Identifier: Apache-2.0 */
/* The msgpack reader on any bytes: what it accepts, skipping accepts too and ends at the same byte;
 * and what the writer makes of it is read back the same. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "codec/msgpack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Extensions are read, never written: nil stands for them. */
static int copy(struct fl_msgpack *reader, struct fl_msgpack_writer *writer)
{
    struct fl_msgpack_value value;
    int rc = fl_msgpack_next(reader, &value);
    if (rc < 0)
        return rc;
    switch (value.type) {
    case FL_MSGPACK_NIL:
    case FL_MSGPACK_EXT:
        fl_msgpack_put_nil(writer);
        break;
    case FL_MSGPACK_BOOL:
        fl_msgpack_put_bool(writer, value.boolean);
        break;
    case FL_MSGPACK_UINT:
        fl_msgpack_put_uint(writer, value.uint);
        break;
    case FL_MSGPACK_INT:
        fl_msgpack_put_int(writer, value.sint);
        break;
    case FL_MSGPACK_FLOAT:
        fl_msgpack_put_real(writer, value.real);
        break;
    case FL_MSGPACK_STR:
        fl_msgpack_put_str(writer, value.bytes);
        break;
    case FL_MSGPACK_BIN:
        fl_msgpack_put_bin(writer, value.bytes);
        break;
    case FL_MSGPACK_ARRAY:
        fl_msgpack_put_array(writer, value.count);
        for (uint32_t i = 0; i < value.count && rc == 0; i++)
            rc = copy(reader, writer);
        break;
    case FL_MSGPACK_MAP:
        fl_msgpack_put_map(writer, value.count);
        for (uint64_t i = 0; i < 2 * (uint64_t)value.count && rc == 0; i++)
            rc = copy(reader, writer);
        break;
    }
    return rc;
}

static void check_again(const struct fl_buf *first)
{
    struct fl_buf second = {0};
    struct fl_msgpack_writer writer = {.out = &second};
    struct fl_msgpack reader;
    fl_msgpack_init(&reader, fl_buf_bytes(first));
    int rc = copy(&reader, &writer);
    assert(rc == 0 && fl_msgpack_finish(&reader) == 0);
    assert(fl_bytes_eq(fl_buf_bytes(first), fl_buf_bytes(&second)));
    (void)rc;
    fl_buf_fini(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fl_buf out = {0};
    struct fl_msgpack_writer writer = {.out = &out};
    struct fl_msgpack reader, skipper;
    fl_msgpack_init(&reader, fl_bytes(data, size));
    fl_msgpack_init(&skipper, fl_bytes(data, size));
    int read = copy(&reader, &writer);
    int skipped = fl_msgpack_skip(&skipper);
    assert((read == 0) == (skipped == 0));
    assert(fl_msgpack_finish(&reader) == fl_msgpack_finish(&skipper));
    (void)skipped;
    if (read == 0)
        check_again(&out);
    fl_buf_fini(&out);
    return 0;
}
