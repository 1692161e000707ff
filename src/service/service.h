/* SPDX-License-Identifier: Apache-2.0 */
/* The SelectionService: runtime + selection + kvindex + kvevents behind the public header.
 *
 * A pick of one request, on the caller's own thread:
 *
 *   validate -> partition -> hash the prompt -> look up overlaps -> allocate, claim the id
 *     -> [ section: choose, book, take a reference of the worker's record ]
 *     -> publish the reservation, fill the result, explain ring, times
 *
 * Locks, in the order in which they may be taken:
 *   catalog (control path) -> shard of the reservation index -> section of one partition
 *
 * Other folders use fairlead/selection.h; this header adds what only programs of this tree and
 * tests need. */
#ifndef FL_SERVICE_SERVICE_H
#define FL_SERVICE_SERVICE_H

#include "fairlead/selection.h"

/* Frees what outlived its lease or age limit at `now_ms`, at most `max`; the event thread does so
 * every FL_SWEEP_MS by itself. Returns how many. */
#define FL_SWEEP_MS 1000
uint32_t fl_selection_sweep(struct fl_selection *service, uint64_t now_ms, uint32_t max);

/* Returns once everything posted to the event thread so far has been done. **Blocks.** */
void fl_selection_settle(struct fl_selection *service);

#endif
