/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"

#include <assert.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/alloc.h"

#define ARENA_ALIGN 16
/* Heap blocks double from the first size to the last: a small request takes one, and a large one
 * does not leave half of a huge block unused. Both sizes with their header fit malloc's classes. */
#define ARENA_FIRST_BLOCK 4096
#define ARENA_LAST_BLOCK 65536

struct fl_arena_block {
    alignas(ARENA_ALIGN) struct fl_arena_block *older;
    size_t bytes; /* of the whole heap block */
    alignas(ARENA_ALIGN) uint8_t data[];
};

void fl_arena_init(struct fl_arena *arena, size_t max_bytes)
{
    *arena = (struct fl_arena){.max_bytes = max_bytes};
}

void fl_arena_init_with(struct fl_arena *arena, size_t max_bytes, void *memory, size_t room)
{
    assert((uintptr_t)memory % ARENA_ALIGN == 0);
    fl_arena_init(arena, max_bytes);
    arena->at = memory;
    arena->end = arena->at + room / ARENA_ALIGN * ARENA_ALIGN;
}

void fl_arena_fini(struct fl_arena *arena)
{
    while (arena->blocks != NULL) {
        struct fl_arena_block *older = arena->blocks->older;
        fl_free(arena->blocks);
        arena->blocks = older;
    }
    fl_arena_init(arena, arena->max_bytes);
}

static size_t block_size(const struct fl_arena *arena, size_t need)
{
    size_t bytes = arena->blocks == NULL ? ARENA_FIRST_BLOCK : arena->blocks->bytes * 2;
    if (bytes > ARENA_LAST_BLOCK)
        bytes = ARENA_LAST_BLOCK;
    return bytes > need ? bytes : need;
}

/* The bytes that an allocation of `n` takes: aligned, and at least one unit so that pointers
 * differ. */
static bool padded_size(size_t n, size_t *padded)
{
    if (n > SIZE_MAX / 2)
        return false;
    *padded = n == 0 ? ARENA_ALIGN : (n + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    return true;
}

static void *take_from(struct fl_arena *arena, struct fl_arena_block *block, size_t bytes, size_t n)
{
    uint8_t *end = (uint8_t *)block + bytes / ARENA_ALIGN * ARENA_ALIGN;
    size_t left_here = (size_t)(end - block->data) - n;

    block->bytes = bytes;
    arena->held_bytes += bytes;
    if (arena->blocks != NULL && left_here < (size_t)(arena->end - arena->at)) {
        /* The current block has more room left: an outsized piece queues behind it. */
        block->older = arena->blocks->older;
        arena->blocks->older = block;
        return block->data;
    }
    block->older = arena->blocks;
    arena->blocks = block;
    arena->at = block->data + n;
    arena->end = end;
    return block->data;
}

static void *take_from_room(struct fl_arena *arena, size_t n)
{
    if ((size_t)(arena->end - arena->at) < n)
        return NULL;
    void *p = arena->at;
    arena->at += n;
    return p;
}

void *fl_arena_alloc(struct fl_arena *arena, size_t n)
{
    size_t padded;
    if (!padded_size(n, &padded))
        abort();
    void *p = take_from_room(arena, padded);
    if (p != NULL)
        return p;
    size_t bytes = block_size(arena, sizeof(struct fl_arena_block) + padded);
    return take_from(arena, fl_alloc(bytes), bytes, padded);
}

void *fl_arena_calloc(struct fl_arena *arena, size_t count, size_t size)
{
    size_t n;
    if (__builtin_mul_overflow(count, size, &n))
        abort();
    return memset(fl_arena_alloc(arena, n), 0, n);
}

void *fl_arena_try_alloc(struct fl_arena *arena, size_t n)
{
    size_t padded;
    if (!padded_size(n, &padded))
        return NULL;
    void *p = take_from_room(arena, padded);
    if (p != NULL)
        return p;

    size_t need = sizeof(struct fl_arena_block) + padded;
    size_t bytes = block_size(arena, need);
    if (arena->max_bytes != 0) {
        size_t left =
            arena->held_bytes < arena->max_bytes ? arena->max_bytes - arena->held_bytes : 0;
        if (need > left)
            return NULL;
        if (bytes > left)
            bytes = left; /* near the cap the last block is a small one */
    }
    struct fl_arena_block *block = fl_try_alloc(bytes);
    return block == NULL ? NULL : take_from(arena, block, bytes, padded);
}

struct fl_bytes fl_arena_copy(struct fl_arena *arena, struct fl_bytes bytes)
{
    uint8_t *copy = fl_arena_alloc(arena, bytes.n);
    if (bytes.n > 0)
        memcpy(copy, bytes.p, bytes.n);
    return (struct fl_bytes){copy, bytes.n};
}

char *fl_arena_cstr(struct fl_arena *arena, struct fl_bytes bytes)
{
    char *copy = fl_arena_alloc(arena, bytes.n + 1);
    if (bytes.n > 0)
        memcpy(copy, bytes.p, bytes.n);
    copy[bytes.n] = 0;
    return copy;
}
