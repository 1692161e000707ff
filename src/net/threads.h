/* SPDX-License-Identifier: Apache-2.0 */
/* N loops, each on a thread of its own: a program's request loops. */
#ifndef FL_NET_THREADS_H
#define FL_NET_THREADS_H

#include "base/error.h"
#include "net/loop.h"

struct fl_loops;

struct fl_loops_config {
    unsigned count;   /* 1..FL_LOOPS_MAX */
    const char *name; /* threads are called "name-0", "name-1", ...; at most 11 characters */
    /* On each loop's own thread, before its first turn and after its last. In on_stop, close every
     * object; what that defers is run later, by fl_loops_stop(). NULL allowed. */
    void (*on_start)(void *owner, struct fl_loop *loop);
    void (*on_stop)(void *owner, struct fl_loop *loop);
    void *owner;
};

/* Returns when on_start has run on all loops. FL_EIO with a sentence when a thread is refused; then
 * none runs. */
int fl_loops_start(const struct fl_loops_config *config, struct fl_loops **loops,
                   struct fl_error *err);
unsigned fl_loops_count(const struct fl_loops *loops);
/* i < count. */
struct fl_loop *fl_loops_get(const struct fl_loops *loops, unsigned i);
/* Stops all, joins them, then frees the loops, opening what mail they have sent to each other: no
 * letter reaches a loop that is gone. NULL allowed. */
void fl_loops_stop(struct fl_loops *loops);

#endif
