/* SPDX-License-Identifier: Apache-2.0 */
/* The workers as a picker sees them: who is there, by id and by address, and which are in a subset
 * hint.
 *
 * The control loop publishes an immutable set; loops look at it under an epoch, so a pick never
 * waits for discovery and sees one version throughout. Sets are small (epp.md 14.7: 4,096 at most)
 * and sorted by id. */
#ifndef FL_PICK_DIRECTORY_H
#define FL_PICK_DIRECTORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/epoch.h"
#include "discovery/workers_file.h"

/* One worker that may take requests, or may come back. All bytes belong to the set. */
struct fl_directory_worker {
    uint64_t worker_id;
    struct fl_addr addr;
    struct fl_bytes authority; /* "ip:port" */
    struct fl_bytes label;
    struct fl_bytes *lora_names;
    uint32_t lora_count;
    bool is_ready;
    bool serves_clients; /* aggregated or decode: a proxy may be sent there */
};

struct fl_directory_set {
    struct fl_retired retired;
    struct fl_arena arena;
    struct fl_directory_worker *workers; /* ascending worker_id */
    uint32_t count, ready_count;         /* ready_count: ready and serving clients */
};

struct fl_directory {
    struct fl_epoch *epoch;
    _Atomic(struct fl_directory_set *) current;
    _Atomic uint64_t turn; /* round robin of picks without a body, over all loops */
};

void fl_directory_init(struct fl_directory *directory);
/* No reader inside. */
void fl_directory_fini(struct fl_directory *directory);

/* Control loop: copies the workers of `specs` and publishes them; the former set goes when its
 * readers have left. */
void fl_directory_publish(struct fl_directory *directory, const struct fl_worker_spec *specs,
                          uint32_t count);

/* Any thread, between both calls nothing blocks. The set is lent until leave. */
const struct fl_directory_set *fl_directory_enter(struct fl_directory *directory);
void fl_directory_leave(struct fl_directory *directory);

/* NULL if unknown. */
const struct fl_directory_worker *fl_directory_find(const struct fl_directory_set *set,
                                                    uint64_t worker_id);
const struct fl_directory_worker *fl_directory_find_addr(const struct fl_directory_set *set,
                                                         const struct fl_addr *addr);

/* Ids of the ready workers that a subset hint names (epp.md section 8): an item is `ip:port`,
 * `[v6]:port` or a bare address, which matches all ports of it; others are skipped. Addresses are
 * compared, not texts. `ids` has room for set->count; returns how many, ascending, without repeats.
 */
uint32_t fl_directory_subset(const struct fl_directory_set *set, const struct fl_bytes *items,
                             uint32_t item_count, uint64_t *ids);

/* A ready worker for a request without a body, in turn; among `ids` if has_allowed. NULL: none. */
const struct fl_directory_worker *fl_directory_next(struct fl_directory *directory,
                                                    const struct fl_directory_set *set,
                                                    bool has_allowed, const uint64_t *ids,
                                                    uint32_t id_count);

#endif
