/* SPDX-License-Identifier: Apache-2.0 */
/* Event streams: the same lines are told however the body is cut. The first byte seeds the cuts. */
#include <assert.h>
#include <stdint.h>

#include "base/rng.h"
#include "codec/sse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int log_line(void *owner, enum fl_sse_line line, struct fl_bytes value)
{
    struct fl_buf *log = owner;

    assert(line != FL_SSE_DATA || value.n > 0);
    assert(value.n <= FL_SSE_MAX_LINE);
    (void)fl_buf_append_byte(log, (uint8_t)line);
    (void)fl_buf_append(log, value);
    (void)fl_buf_append_byte(log, '\n');
    return 0;
}

/* Appends what is told to `log`, in pieces up to `longest` (0: whole); returns the dropped lines.
 */
static uint64_t read_cut(struct fl_buf *log, struct fl_bytes text, uint64_t seed, size_t longest)
{
    struct fl_sse sse;
    struct fl_rng rng;

    fl_rng_seed(&rng, seed);
    fl_sse_init(&sse, log_line, log);
    while (text.n > 0) {
        size_t n = longest == 0 ? text.n : 1 + (size_t)fl_rng_below(&rng, longest);
        assert(fl_sse_feed(&sse, fl_bytes_head(text, n)) == 0);
        text = fl_bytes_skip(text, n);
    }
    assert(fl_sse_end(&sse) == 0);
    uint64_t dropped = sse.dropped_lines;
    fl_sse_fini(&sse);
    return dropped;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct fl_bytes text = {data + 1, size - 1};
    struct fl_buf whole = {0}, bytes = {0}, cut = {0};
    uint64_t dropped = read_cut(&whole, text, 0, 0);
    assert(read_cut(&bytes, text, 0, 1) == dropped);
    assert(read_cut(&cut, text, data[0], size) == dropped);
    assert(fl_bytes_eq(fl_buf_bytes(&whole), fl_buf_bytes(&bytes)));
    assert(fl_bytes_eq(fl_buf_bytes(&whole), fl_buf_bytes(&cut)));
    fl_buf_fini(&whole);
    fl_buf_fini(&bytes);
    fl_buf_fini(&cut);

    /* What is written is read back as one payload. */
    if (fl_bytes_index(text, '\n') == text.n && fl_bytes_index(text, '\r') == text.n &&
        text.n > 0 && text.n + 6 <= FL_SSE_MAX_LINE) {
        struct fl_buf event = {0}, log = {0};
        assert(fl_sse_write(&event, (struct fl_bytes){0}, text) == 0);
        assert(read_cut(&log, fl_buf_bytes(&event), data[0], size) == 0);
        struct fl_bytes seen = fl_buf_bytes(&log);
        if (seen.n > 1 && seen.p[0] == FL_SSE_DATA)
            assert(fl_bytes_eq(fl_bytes_head(fl_bytes_skip(seen, 1), text.n), text));
        fl_buf_fini(&event);
        fl_buf_fini(&log);
    }
    return 0;
}
