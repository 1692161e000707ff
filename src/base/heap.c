/* SPDX-License-Identifier: Apache-2.0 */
#include "base/heap.h"

#include <assert.h>

#include "base/alloc.h"

#define HEAP_FIRST_CAP 16

void fl_heap_init(struct fl_heap *heap,
                  bool (*before)(const struct fl_heap_node *, const struct fl_heap_node *))
{
    *heap = (struct fl_heap){.before = before};
}

void fl_heap_fini(struct fl_heap *heap)
{
    fl_free(heap->nodes);
    fl_heap_init(heap, heap->before);
}

static void place(struct fl_heap *heap, size_t at, struct fl_heap_node *node)
{
    heap->nodes[at] = node;
    node->index = at + 1;
}

static size_t sift_up(struct fl_heap *heap, size_t at, struct fl_heap_node *node)
{
    while (at > 0) {
        size_t parent = (at - 1) / 2;
        if (!heap->before(node, heap->nodes[parent]))
            break;
        place(heap, at, heap->nodes[parent]);
        at = parent;
    }
    place(heap, at, node);
    return at;
}

static void sift_down(struct fl_heap *heap, size_t at, struct fl_heap_node *node)
{
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && heap->before(heap->nodes[child + 1], heap->nodes[child]))
            child++;
        if (!heap->before(heap->nodes[child], node))
            break;
        place(heap, at, heap->nodes[child]);
        at = child;
    }
    place(heap, at, node);
}

/* `node` may be too early or too late for place `at`. */
static void settle(struct fl_heap *heap, size_t at, struct fl_heap_node *node)
{
    if (sift_up(heap, at, node) == at)
        sift_down(heap, at, node);
}

void fl_heap_push(struct fl_heap *heap, struct fl_heap_node *node)
{
    assert(node->index == 0);
    if (heap->count == heap->cap) {
        heap->cap = heap->cap == 0 ? HEAP_FIRST_CAP : heap->cap * 2;
        heap->nodes = fl_realloc(heap->nodes, heap->cap, sizeof(struct fl_heap_node *));
    }
    heap->count++;
    sift_up(heap, heap->count - 1, node);
}

struct fl_heap_node *fl_heap_peek(const struct fl_heap *heap)
{
    return heap->count == 0 ? NULL : heap->nodes[0];
}

struct fl_heap_node *fl_heap_pop(struct fl_heap *heap)
{
    struct fl_heap_node *first = fl_heap_peek(heap);
    if (first != NULL)
        fl_heap_remove(heap, first);
    return first;
}

void fl_heap_remove(struct fl_heap *heap, struct fl_heap_node *node)
{
    if (node->index == 0)
        return;
    size_t at = node->index - 1;
    assert(at < heap->count && heap->nodes[at] == node);
    node->index = 0;
    heap->count--;
    if (at < heap->count)
        settle(heap, at, heap->nodes[heap->count]);
}

void fl_heap_update(struct fl_heap *heap, struct fl_heap_node *node)
{
    size_t at = node->index - 1;
    assert(at < heap->count && heap->nodes[at] == node);
    settle(heap, at, node);
}

void fl_heap_check(const struct fl_heap *heap)
{
    assert(heap->count <= heap->cap);
    for (size_t i = 0; i < heap->count; i++) {
        assert(heap->nodes[i]->index == i + 1);
        assert(i == 0 || !heap->before(heap->nodes[i], heap->nodes[(i - 1) / 2]));
    }
}
