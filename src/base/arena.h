/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that lives as long as one request: allocated by moving a pointer, freed at once.
 *
 *   blocks:  [ head | used ......... | free ]  ->  [ full ]  ->  [ full ]
 *
 * The first block may lie in the owner (fl_arena_init_with) so that a small request allocates
 * nothing. Allocations are aligned to 16 bytes. `max_bytes` bounds what a peer can make it hold:
 * fl_arena_try_alloc() fails beyond it, fl_arena_alloc() (small, ours) aborts only when the
 * machine's memory is gone. Not thread-safe. */
#ifndef FL_BASE_ARENA_H
#define FL_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

struct fl_arena_block;

struct fl_arena {
    struct fl_arena_block *blocks; /* newest first; all from the heap */
    uint8_t *at, *end;             /* free room of the current block */
    size_t held_bytes;             /* sum of heap blocks */
    size_t max_bytes;              /* cap of held_bytes for fl_arena_try_alloc(); 0: none */
};

/* A zeroed arena is valid: no cap. */
void fl_arena_init(struct fl_arena *arena, size_t max_bytes);
/* Uses the caller's `room` bytes at `memory` (16-aligned) first; they outlive the arena. */
void fl_arena_init_with(struct fl_arena *arena, size_t max_bytes, void *memory, size_t room);
/* Frees all. Idempotent; the arena may be used again (without the caller's first block). */
void fl_arena_fini(struct fl_arena *arena);

/* Uninitialised; never NULL. */
void *fl_arena_alloc(struct fl_arena *arena, size_t n) __attribute__((returns_nonnull));
/* Zeroed; never NULL. */
void *fl_arena_calloc(struct fl_arena *arena, size_t count, size_t size)
    __attribute__((returns_nonnull));
/* NULL beyond max_bytes or out of memory. */
void *fl_arena_try_alloc(struct fl_arena *arena, size_t n) __attribute__((warn_unused_result));

/* Copies. The cstr form adds a NUL. */
struct fl_bytes fl_arena_copy(struct fl_arena *arena, struct fl_bytes bytes);
char *fl_arena_cstr(struct fl_arena *arena, struct fl_bytes bytes);

#endif
