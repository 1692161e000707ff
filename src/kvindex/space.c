/* SPDX-License-Identifier: Apache-2.0 */
#include "kvindex/space.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"

/* So that AddressSanitizer sees the use of a piece that was given back; nothing otherwise. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wundef"
#include <sanitizer/asan_interface.h>
#pragma GCC diagnostic pop

#define HUGE_PAGE ((size_t)2 << 20)
#define FIRST_ARENA ((size_t)256 << 10)
#define LARGEST_ARENA ((size_t)64 << 20)
#define UNIT 64

static size_t rounded(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

void fl_space_fini(struct fl_space *space)
{
    for (size_t i = 0; i < space->arena_count; i++) {
        ASAN_UNPOISON_MEMORY_REGION(space->arenas[i].at, space->arenas[i].bytes);
        munmap(space->arenas[i].at, space->arenas[i].bytes);
    }
    fl_free(space->arenas);
    fl_free(space->holes);
    *space = (struct fl_space){0};
}

/* ---- free extents ---- */

/* The first hole at or behind `at`. */
static size_t hole_behind(const struct fl_space *space, const uint8_t *at)
{
    size_t i = 0;
    while (i < space->hole_count && space->holes[i].at < at)
        i++;
    return i;
}

static void insert_hole(struct fl_space *space, size_t i, struct fl_extent hole)
{
    if (space->hole_count == space->hole_cap) {
        space->hole_cap = space->hole_cap == 0 ? 16 : space->hole_cap * 2;
        space->holes = fl_realloc(space->holes, space->hole_cap, sizeof(*space->holes));
    }
    memmove(space->holes + i + 1, space->holes + i,
            (space->hole_count - i) * sizeof(*space->holes));
    space->holes[i] = hole;
    space->hole_count++;
}

static void remove_hole(struct fl_space *space, size_t i)
{
    space->hole_count--;
    memmove(space->holes + i, space->holes + i + 1,
            (space->hole_count - i) * sizeof(*space->holes));
}

static void add_hole(struct fl_space *space, struct fl_extent hole)
{
    size_t i = hole_behind(space, hole.at);
    if (i < space->hole_count && hole.at + hole.bytes == space->holes[i].at) {
        hole.bytes += space->holes[i].bytes;
        remove_hole(space, i);
    }
    if (i > 0 && space->holes[i - 1].at + space->holes[i - 1].bytes == hole.at) {
        space->holes[i - 1].bytes += hole.bytes;
        return;
    }
    insert_hole(space, i, hole);
}

/* ---- arenas ---- */

/* Maps `bytes` at a multiple of a huge page by mapping more and giving back both ends. */
static uint8_t *map_aligned(size_t bytes)
{
    size_t room = bytes + HUGE_PAGE;
    uint8_t *all = mmap(NULL, room, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return NULL;
    size_t before = rounded((uintptr_t)all, HUGE_PAGE) - (uintptr_t)all;
    if (before > 0)
        munmap(all, before);
    if (HUGE_PAGE - before > 0)
        munmap(all + before + bytes, HUGE_PAGE - before);
    return all + before;
}

static void add_arena(struct fl_space *space, size_t bytes)
{
    size_t size = FIRST_ARENA;
    for (size_t i = 0; i < space->arena_count && size < LARGEST_ARENA; i++)
        size *= 2;
    if (size < bytes)
        size = rounded(bytes, HUGE_PAGE);
    uint8_t *at = map_aligned(size);
    if (at == NULL)
        abort();
    /* Refused on kernels without huge pages: then it is ordinary memory. */
    if (size >= HUGE_PAGE)
        madvise(at, size, MADV_HUGEPAGE);
    space->arenas = fl_realloc(space->arenas, space->arena_count + 1, sizeof(*space->arenas));
    space->arenas[space->arena_count++] = (struct fl_extent){at, size};
    add_hole(space, (struct fl_extent){at, size});
}

void *fl_space_take(struct fl_space *space, size_t bytes)
{
    bytes = rounded(bytes, UNIT);
    for (;;) {
        for (size_t i = 0; i < space->hole_count; i++) {
            struct fl_extent *hole = &space->holes[i];
            if (hole->bytes < bytes)
                continue;
            uint8_t *piece = hole->at;
            hole->at += bytes;
            hole->bytes -= bytes;
            if (hole->bytes == 0)
                remove_hole(space, i);
            ASAN_UNPOISON_MEMORY_REGION(piece, bytes);
            return piece;
        }
        add_arena(space, bytes);
    }
}

void fl_space_give(struct fl_space *space, void *piece, size_t bytes)
{
    assert((uintptr_t)piece % UNIT == 0);
    ASAN_POISON_MEMORY_REGION(piece, rounded(bytes, UNIT));
    add_hole(space, (struct fl_extent){piece, rounded(bytes, UNIT)});
}
