/* SPDX-License-Identifier: Apache-2.0 */
/* Applying a picker's header mutation to a request's fields, with the gateway's rules
 * (gateway.md 9.4): removals first, then sets in order; framing, hop-by-hop and pseudo names are
 * left alone; an echo of what is there changes nothing, repeated lines included. Pure. */
#ifndef FL_EXTPROC_MUTATION_H
#define FL_EXTPROC_MUTATION_H

#include <stdint.h>

#include "extproc/message.h"
#include "http/message.h"

/* What pickers may add to one request in all: names and values copied. A few headers of some
 * hundred bytes are usual; the head a listener accepts is 64 KiB. */
#define FL_MUTATION_MAX_BYTES (256u << 10)
#define FL_MUTATION_MAX_FIELDS 512 /* of the result; a listener accepts 200 */

/* `fields` starts as the original's; its table is copied into `arena` at the first change, which
 * `is_changed` then tells, so the original stays as it was. */
struct fl_mutated {
    struct fl_fields fields;
    struct fl_arena *arena; /* of the request: names and values that changed are copied there */
    bool is_changed;
    size_t copied_bytes;
    uint32_t dropped; /* invalid entries: to be logged */
};

void fl_mutated_init(struct fl_mutated *mutated, const struct fl_fields *original,
                     struct fl_arena *arena);
/* 0, or FL_ELIMIT. */
int fl_mutated_apply(struct fl_mutated *mutated, const struct fl_extproc_mutation *mutation);

/* True for a header a picker may set on a client's answer: a token that is not framing, hop-by-hop
 * or pseudo, and a value without CR, LF, NUL. */
bool fl_mutation_may_set(const struct fl_extproc_set *set);

#endif
