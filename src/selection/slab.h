/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for use inside a critical section: size classes of powers of two from 16 bytes on, cut
 * from pieces that were allocated outside it. Freed blocks return to their class; pieces are given
 * back only at the end, so the slab holds what its busiest moment needed.
 *
 * Running dry is not an error: the block then comes from the heap and `heap_allocs` counts it,
 * which is how tests and bench b7 see an allocation under the section. Not thread-safe. */
#ifndef FL_SELECTION_SLAB_H
#define FL_SELECTION_SLAB_H

#include <stddef.h>
#include <stdint.h>

#define FL_SLAB_CLASSES 24 /* 16 bytes .. 128 MiB */

struct fl_slab_piece;

struct fl_slab {
    void *free[FL_SLAB_CLASSES]; /* list through the first word */
    uint8_t *at, *end;           /* uncut rest of the newest piece */
    struct fl_slab_piece *pieces;
    uint64_t heap_allocs;
};

/* Zeroed is valid. Idempotent. */
void fl_slab_fini(struct fl_slab *slab);
/* Takes `piece`, memory of fl_alloc(); the rest of the former piece is put into the classes. */
void fl_slab_donate(struct fl_slab *slab, void *piece, size_t bytes);
/* Uninitialised, aligned to 16. Never NULL. */
void *fl_slab_alloc(struct fl_slab *slab, size_t n) __attribute__((returns_nonnull));
/* `n` as given to fl_slab_alloc(). */
void fl_slab_free(struct fl_slab *slab, void *p, size_t n);
/* Uncut bytes left. */
size_t fl_slab_room(const struct fl_slab *slab);

#endif
