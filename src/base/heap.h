/* SPDX-License-Identifier: Apache-2.0 */
/* Binary min-heap whose nodes live inside their owners. Push, pop, remove and update are O(log n);
 * the array of pointers grows by doubling. `before` must be a strict weak order; equal nodes leave
 * in no promised order, so order by a sequence number where it matters. Not thread-safe. */
#ifndef FL_BASE_HEAP_H
#define FL_BASE_HEAP_H

#include <stdbool.h>
#include <stddef.h>

struct fl_heap_node {
    size_t index; /* position + 1; 0 while in no heap */
};

struct fl_heap {
    struct fl_heap_node **nodes;
    size_t count, cap;
    bool (*before)(const struct fl_heap_node *a, const struct fl_heap_node *b);
};

void fl_heap_init(struct fl_heap *heap,
                  bool (*before)(const struct fl_heap_node *, const struct fl_heap_node *));
/* Idempotent; nodes left inside are forgotten, not touched. */
void fl_heap_fini(struct fl_heap *heap);
/* `node` is zeroed or was removed. */
void fl_heap_push(struct fl_heap *heap, struct fl_heap_node *node);
/* The first, or NULL. */
struct fl_heap_node *fl_heap_peek(const struct fl_heap *heap);
struct fl_heap_node *fl_heap_pop(struct fl_heap *heap);
/* Harmless if `node` is in no heap. */
void fl_heap_remove(struct fl_heap *heap, struct fl_heap_node *node);
/* After the key of `node` changed. */
void fl_heap_update(struct fl_heap *heap, struct fl_heap_node *node);
/* Walks the heap and asserts its invariants (tests). */
void fl_heap_check(const struct fl_heap *heap);

#endif
