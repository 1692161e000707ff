/* SPDX-License-Identifier: Apache-2.0 */
/* Product policies in the pure simulation: `src/selection` itself, called as the service calls it,
 * with worker ids 1..N in order, one rank each, the defaults of selection.md 16 and the tie
 * generator seeded with 1 (performance.md (g)). The index is taken from the engines' caches, so
 * events reach the picker at once. */
#ifndef FL_SIM_PRODUCT_H
#define FL_SIM_PRODUCT_H

#include "selection/selector.h"
#include "sim/simulate.h"

struct fl_sim_product {
    struct fl_selector *selector;
    bool uses_index;
    struct fl_hold *holds; /* one a request */
    struct fl_kvindex_match *matches;
    uint64_t *hashes;
    size_t hash_cap;
    struct fl_choice choice; /* from choose to book */
    struct fl_ask ask;
};

/* `policy`: a name of selection.md 9.7. NULL-safe names only: an unknown one is asserted. */
void fl_sim_product_init(struct fl_sim_product *product, const char *policy, uint32_t workers,
                         const struct fl_trace *trace, uint64_t seed);
/* Idempotent. */
void fl_sim_product_fini(struct fl_sim_product *product);
/* Borrows `product`. */
struct fl_sim_policy fl_sim_product_policy(struct fl_sim_product *product);

#endif
