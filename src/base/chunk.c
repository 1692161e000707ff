/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks, slices and the budget they are charged to. */
#include <assert.h>

#include "base/alloc.h"
#include "base/buf.h"

/* A length that always fits `room` and its sums; bodies come in pieces of FL_CHUNK_MAX_BYTES. */
#define CHUNK_ROOM_MAX (UINT32_C(1) << 30)

bool fl_budget_is_easy(const struct fl_budget *budget)
{
    return budget->cap_bytes == 0 ||
           fl_budget_held(budget) < budget->cap_bytes - budget->cap_bytes / 8;
}

size_t fl_budget_held(const struct fl_budget *budget)
{
    return atomic_load_explicit(&budget->held_bytes, memory_order_relaxed);
}

/* The check and the charge are one step, or two loops could pass the cap together. */
static bool charge(struct fl_budget *budget, size_t n)
{
    size_t held = fl_budget_held(budget);
    do {
        if (budget->cap_bytes != 0 && (held > budget->cap_bytes || n > budget->cap_bytes - held))
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&budget->held_bytes, &held, held + n,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

static void give_back(struct fl_budget *budget, size_t n)
{
    size_t held = atomic_fetch_sub_explicit(&budget->held_bytes, n, memory_order_relaxed);
    assert(held >= n);
    (void)held;
}

struct fl_chunk *fl_chunk_new(size_t room, struct fl_budget *budget)
{
    if (room > CHUNK_ROOM_MAX)
        return NULL;
    if (budget != NULL && !charge(budget, room))
        return NULL;
    struct fl_chunk *chunk = fl_try_alloc(sizeof(*chunk) + room);
    if (chunk == NULL) {
        if (budget != NULL)
            give_back(budget, room);
        return NULL;
    }
    atomic_init(&chunk->refs, 1);
    chunk->room = (uint32_t)room;
    chunk->budget = budget;
    return chunk;
}

void fl_chunk_ref(struct fl_chunk *chunk)
{
    /* Relaxed: who takes a reference already holds one, so nothing has to be ordered. */
    uint32_t refs = atomic_fetch_add_explicit(&chunk->refs, 1, memory_order_relaxed);
    assert(refs > 0 && refs < UINT32_MAX);
    (void)refs;
}

void fl_chunk_unref(struct fl_chunk *chunk)
{
    if (chunk == NULL)
        return;
    /* Every holder's reads happen before the last one's free. */
    uint32_t refs = atomic_fetch_sub_explicit(&chunk->refs, 1, memory_order_acq_rel);
    assert(refs > 0);
    if (refs > 1)
        return;
    if (chunk->budget != NULL)
        give_back(chunk->budget, chunk->room);
    fl_free(chunk);
}

struct fl_slice fl_slice_copy(struct fl_bytes bytes, struct fl_budget *budget)
{
    if (bytes.n == 0)
        return (struct fl_slice){NULL, (const uint8_t *)"", 0};
    struct fl_chunk *chunk = fl_chunk_new(bytes.n, budget);
    if (chunk == NULL)
        return (struct fl_slice){NULL, NULL, 0};
    memcpy(chunk->data, bytes.p, bytes.n);
    return (struct fl_slice){chunk, chunk->data, bytes.n};
}

struct fl_slice fl_slice_ref(struct fl_slice slice)
{
    if (slice.chunk != NULL)
        fl_chunk_ref(slice.chunk);
    return slice;
}

struct fl_slice fl_slice_sub(struct fl_slice slice, size_t offset, size_t n)
{
    assert(offset <= slice.n && n <= slice.n - offset);
    if (offset > 0)
        slice.p += offset;
    slice.n = n;
    return fl_slice_ref(slice);
}

void fl_slice_unref(struct fl_slice *slice)
{
    fl_chunk_unref(slice->chunk);
    *slice = (struct fl_slice){NULL, NULL, 0};
}
