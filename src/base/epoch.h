/* SPDX-License-Identifier: Apache-2.0 */
/* Read-side epochs: readers on any thread look at what a writer may unpublish, wait-free and
 * without writing a line another thread reads often (dependencies.md 4.6).
 *
 *   reader:  enter --- loads published pointers (seq_cst) --- leave
 *   writer:  unpublish (seq_cst store) -> fl_epoch_retire(obj) -> ... two epochs later -> free
 *
 * Each reading thread has one slot on a cache line of its own: 0 while outside, else the epoch it
 * entered in. A slot is taken from thread-local storage on first use and given back at thread exit;
 * at most FL_EPOCH_SLOTS threads read at once, further ones wait for none: they abort, it is our
 * bug. Sections do not nest and are short: a reader that stays inside delays freeing, never
 * correctness.
 *
 * Retiring and reclaiming of one domain: one thread at a time. Plain C11 atomics, no stand-alone
 * fences, so ThreadSanitizer checks it. */
#ifndef FL_BASE_EPOCH_H
#define FL_BASE_EPOCH_H

#include <stddef.h>
#include <stdint.h>

#include "base/list.h"

#define FL_EPOCH_SLOTS 512

struct fl_epoch; /* a domain */

struct fl_epoch *fl_epoch_new(void);
/* No reader inside; frees what is still retired. */
void fl_epoch_free(struct fl_epoch *epoch);

/* Any thread. Wait-free after a thread's first use. */
void fl_epoch_enter(struct fl_epoch *epoch);
void fl_epoch_leave(struct fl_epoch *epoch);

/* Member of what is retired. */
struct fl_retired {
    struct fl_retired *next;
    uint64_t epoch;
    void (*free)(struct fl_retired *retired);
};

/* Writer: `retired` is unpublished already; `free` runs in a later fl_epoch_reclaim() of the
 * writer. */
void fl_epoch_retire(struct fl_epoch *epoch, struct fl_retired *retired,
                     void (*free)(struct fl_retired *retired));
/* Writer: advances the epoch if all readers have seen it and frees what is two epochs old. At most
 * `max` objects a call; returns how many are still waiting. */
size_t fl_epoch_reclaim(struct fl_epoch *epoch, size_t max);
/* Writer: waits (spins, then yields) until every reader that was inside has left. For shutdown and
 * tests, never on a loop. */
void fl_epoch_synchronize(struct fl_epoch *epoch);

#endif
