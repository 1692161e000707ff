/* SPDX-License-Identifier: Apache-2.0 */
/* Chains of slices. Slice i stands at ring[(first + i) % cap]; cap is 0 or a power of two. */
#include <assert.h>

#include "base/alloc.h"
#include "base/buf.h"

#define CHAIN_FIRST_CAP 4
#define CHAIN_CAP_MAX (UINT32_C(1) << 31)

static uint32_t ring_index(const struct fl_chain *chain, uint32_t i)
{
    return (chain->first + i) & (chain->cap - 1);
}

static void make_room(struct fl_chain *chain)
{
    if (chain->count < chain->cap)
        return;
    assert(chain->cap < CHAIN_CAP_MAX);
    uint32_t cap = chain->cap == 0 ? CHAIN_FIRST_CAP : chain->cap * 2;
    chain->ring = fl_realloc(chain->ring, cap, sizeof(*chain->ring));
    /* What had wrapped round the old end now continues behind it. */
    if (chain->first > 0)
        memcpy(chain->ring + chain->cap, chain->ring, chain->first * sizeof(*chain->ring));
    chain->cap = cap;
}

void fl_chain_fini(struct fl_chain *chain)
{
    for (uint32_t i = 0; i < chain->count; i++)
        fl_slice_unref(&chain->ring[ring_index(chain, i)]);
    fl_free(chain->ring);
    *chain = (struct fl_chain){0};
}

void fl_chain_push(struct fl_chain *chain, struct fl_slice slice)
{
    if (slice.n == 0) {
        fl_slice_unref(&slice);
        return;
    }
    make_room(chain);
    chain->ring[ring_index(chain, chain->count)] = slice;
    chain->count++;
    chain->bytes += slice.n;
}

void fl_chain_push_front(struct fl_chain *chain, struct fl_slice slice)
{
    if (slice.n == 0) {
        fl_slice_unref(&slice);
        return;
    }
    make_room(chain);
    chain->first = ring_index(chain, chain->cap - 1);
    chain->ring[chain->first] = slice;
    chain->count++;
    chain->bytes += slice.n;
}

bool fl_chain_pop(struct fl_chain *chain, struct fl_slice *slice)
{
    if (chain->count == 0)
        return false;
    *slice = chain->ring[chain->first];
    chain->first = ring_index(chain, 1);
    chain->count--;
    chain->bytes -= slice->n;
    return true;
}

struct fl_slice fl_chain_at(const struct fl_chain *chain, uint32_t i)
{
    assert(i < chain->count);
    return chain->ring[ring_index(chain, i)];
}

void fl_chain_consume(struct fl_chain *chain, size_t n)
{
    assert(n <= chain->bytes);
    while (n > 0) {
        struct fl_slice *slice = &chain->ring[chain->first];
        if (n < slice->n) {
            slice->p += n;
            slice->n -= n;
            chain->bytes -= n;
            return;
        }
        struct fl_slice gone = {0};
        fl_chain_pop(chain, &gone);
        n -= gone.n;
        fl_slice_unref(&gone);
    }
}

void fl_chain_move(struct fl_chain *to, struct fl_chain *from)
{
    assert(to != from);
    if (to->count == 0) {
        struct fl_chain empty = *to;
        *to = *from;
        *from = empty;
        return;
    }
    struct fl_slice slice;
    while (fl_chain_pop(from, &slice))
        fl_chain_push(to, slice);
}

void fl_chain_ref_range(struct fl_chain *to, const struct fl_chain *from, size_t offset, size_t n)
{
    assert(to != from);
    assert(offset <= from->bytes && n <= from->bytes - offset);
    for (uint32_t i = 0; n > 0; i++) {
        struct fl_slice slice = fl_chain_at(from, i);
        if (offset >= slice.n) {
            offset -= slice.n;
            continue;
        }
        size_t part = slice.n - offset < n ? slice.n - offset : n;
        fl_chain_push(to, fl_slice_sub(slice, offset, part));
        offset = 0;
        n -= part;
    }
}

int fl_chain_iov(const struct fl_chain *chain, struct iovec *iov, int max)
{
    int filled = 0;
    for (uint32_t i = 0; i < chain->count && filled < max; i++) {
        struct fl_slice slice = fl_chain_at(chain, i);
        /* writev(2) reads only; its struct has no const. */
        iov[filled++] = (struct iovec){(void *)(uintptr_t)slice.p, slice.n};
    }
    return filled;
}

void fl_chain_copy_out(const struct fl_chain *chain, size_t offset, void *out, size_t n)
{
    uint8_t *to = out;

    assert(offset <= chain->bytes && n <= chain->bytes - offset);
    for (uint32_t i = 0; n > 0; i++) {
        struct fl_slice slice = fl_chain_at(chain, i);
        if (offset >= slice.n) {
            offset -= slice.n;
            continue;
        }
        size_t part = slice.n - offset < n ? slice.n - offset : n;
        memcpy(to, slice.p + offset, part);
        to += part;
        offset = 0;
        n -= part;
    }
}

bool fl_chain_eq_bytes(const struct fl_chain *chain, struct fl_bytes bytes)
{
    if (chain->bytes != bytes.n)
        return false;
    for (uint32_t i = 0; i < chain->count; i++) {
        struct fl_slice slice = fl_chain_at(chain, i);
        if (memcmp(slice.p, bytes.p, slice.n) != 0)
            return false;
        bytes = fl_bytes_skip(bytes, slice.n);
    }
    return true;
}
