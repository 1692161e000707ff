/* SPDX-License-Identifier: Apache-2.0 */
#include "selection/slab.h"

#include <assert.h>
#include <stdalign.h>
#include <string.h>

#include "base/alloc.h"

#define SMALLEST 16

struct fl_slab_piece {
    alignas(16) struct fl_slab_piece *next;
};

static size_t class_bytes(unsigned class)
{
    return (size_t)SMALLEST << class;
}

static unsigned class_of(size_t n)
{
    unsigned class = 0;
    while (class_bytes(class) < n)
        class ++;
    assert(class < FL_SLAB_CLASSES);
    return class;
}

static void push(struct fl_slab *slab, unsigned class, void *p)
{
    *(void **)p = slab->free[class];
    slab->free[class] = p;
}

static void adopt(struct fl_slab *slab, void *piece)
{
    struct fl_slab_piece *head = piece;
    head->next = slab->pieces;
    slab->pieces = head;
}

void fl_slab_fini(struct fl_slab *slab)
{
    while (slab->pieces != NULL) {
        struct fl_slab_piece *piece = slab->pieces;
        slab->pieces = piece->next;
        fl_free(piece);
    }
    *slab = (struct fl_slab){0};
}

size_t fl_slab_room(const struct fl_slab *slab)
{
    return (size_t)(slab->end - slab->at);
}

void fl_slab_donate(struct fl_slab *slab, void *piece, size_t bytes)
{
    /* What is left of the old piece goes to the largest classes that fit, so nothing is lost but
     * the last bytes below the smallest class. */
    for (unsigned class = FL_SLAB_CLASSES; class -- > 0;) {
        while (fl_slab_room(slab) >= class_bytes(class)) {
            push(slab, class, slab->at);
            slab->at += class_bytes(class);
        }
    }
    assert(bytes > sizeof(struct fl_slab_piece));
    adopt(slab, piece);
    slab->at = (uint8_t *)piece + sizeof(struct fl_slab_piece);
    slab->end = (uint8_t *)piece + (bytes & ~(size_t)(SMALLEST - 1));
}

void *fl_slab_alloc(struct fl_slab *slab, size_t n)
{
    unsigned class = class_of(n);
    void *p = slab->free[class];
    if (p != NULL) {
        slab->free[class] = *(void **)p;
        return p;
    }
    if (fl_slab_room(slab) >= class_bytes(class)) {
        p = slab->at;
        slab->at += class_bytes(class);
        return p;
    }
    slab->heap_allocs++;
    void *piece = fl_alloc(sizeof(struct fl_slab_piece) + class_bytes(class));
    adopt(slab, piece);
    return (uint8_t *)piece + sizeof(struct fl_slab_piece);
}

void fl_slab_free(struct fl_slab *slab, void *p, size_t n)
{
    push(slab, class_of(n), p);
}
