/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of one index, on huge pages where the system has them.
 *
 * An index is probed at random: with pages of 4 KiB most probes miss the TLB as well as the cache,
 * and a prefetch then stalls in the page walk (measured on 64 MiB: 23 ns a probe in flight, 11 with
 * huge pages; on 512 MiB 45 and 19). malloc gives the small pieces we need no huge pages.
 *
 *   arenas: 256 KiB, then twice as much each, up to 64 MiB; from 2 MiB on aligned to huge pages
 *   free extents: one array, by address, neighbours merged; first fit
 *
 * There are some thousand pieces and few free extents, so both are searched from end to end. Freed
 * pieces are used again; arenas live as long as the space. Single-threaded. */
#ifndef FL_KVINDEX_SPACE_H
#define FL_KVINDEX_SPACE_H

#include <stddef.h>
#include <stdint.h>

struct fl_extent {
    uint8_t *at;
    size_t bytes;
};

struct fl_space {
    struct fl_extent *arenas, *holes; /* holes: free extents */
    size_t arena_count, hole_count, hole_cap;
};

/* Zeroed is valid. Gives everything back to the system. */
void fl_space_fini(struct fl_space *space);

/* At least `bytes`, aligned to 64, contents undefined. Aborts when memory is gone, as fl_alloc().
 */
void *fl_space_take(struct fl_space *space, size_t bytes) __attribute__((returns_nonnull));
/* With the same size. */
void fl_space_give(struct fl_space *space, void *piece, size_t bytes);

#endif
