/* SPDX-License-Identifier: Apache-2.0 */
/* The frozen formulas of performance.md (g): yardsticks for policies, never the product's policies.
 * Their definitions do not change, or the expected rows mean nothing. */
#ifndef FL_SIM_FORMULAS_H
#define FL_SIM_FORMULAS_H

#include "base/rng.h"
#include "sim/simulate.h"

enum fl_sim_formula {
    FL_SIM_RR,     /* in turn */
    FL_SIM_RANDOM, /* seed 1 */
    FL_SIM_LEAST,  /* fewest in flight, random ties */
    FL_SIM_CHWBL,  /* consistent hash of the first K ids with bounded load */
    FL_SIM_KV, /* W (queued prefill / block + blocks - matched) + decode blocks, lowest index wins
                */
    FL_SIM_MAXHIT, /* most matched, then least queued prefill, then fewest in flight */
    FL_SIM_GREEDY, /* earliest first token, then fewest in flight; knows the rates */
};

#define FL_SIM_CHWBL_NODES 256

struct fl_sim_ring_node {
    uint64_t hash;
    uint32_t worker;
};

struct fl_sim_formula_state {
    enum fl_sim_formula formula;
    uint32_t parameter; /* K or W */
    uint32_t turn;
    uint64_t in_flight;
    struct fl_rng rng;
    struct fl_sim_ring_node *ring; /* built at the first choice */
    uint32_t ring_count;
};

void fl_sim_formula_init(struct fl_sim_formula_state *state, enum fl_sim_formula formula,
                         uint32_t parameter);
/* Idempotent. */
void fl_sim_formula_fini(struct fl_sim_formula_state *state);
/* Borrows `state`. */
struct fl_sim_policy fl_sim_formula_policy(struct fl_sim_formula_state *state);

#endif
