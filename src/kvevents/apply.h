/* SPDX-License-Identifier: Apache-2.0 */
/* From batches to the index: filters (selection.md 11.5), hashes (11.4, 10), counters.
 *
 * One applier per socket. Besides the index it knows what a stream of events tells only once: the
 * kind of each cache group (11.5) and the salt of stored blocks, which continuations inherit
 * (11.4). */
#ifndef FL_KVEVENTS_APPLY_H
#define FL_KVEVENTS_APPLY_H

#include "base/log.h"
#include "base/map.h"
#include "kvevents/event.h"
#include "kvevents/kvevents.h"

/* Ranks of one socket; attention-DP groups have 8 to 64. */
#define FL_KV_RANKS_MAX 1024
/* Cache groups of one socket over all its ranks; a hybrid model has a handful. Beyond it nothing
 * more is learned, and groups other than 0 are dropped. */
#define FL_KV_GROUPS_MAX 4096

struct fl_kv_group {
    uint32_t rank;
    uint64_t group;
    bool is_main; /* its kind passes the filter */
};

/* A rank seen on the socket, and the salts of its blocks. */
struct fl_kv_seen_rank {
    uint32_t rank;
    /* External hash -> salt part of the seed (as a number in place of the pointer), or
     * SALT_AMBIGUOUS. Unsalted blocks are not in it. */
    struct fl_map_u64 salts;
};

struct fl_kv_applier {
    /* set at init */
    struct fl_kvindex *index;
    struct fl_kv_counters *counters;
    const char *name; /* of the source, for log lines; borrowed */
    uint64_t worker_id;
    uint32_t own_rank; /* of batches that name none */
    uint32_t block_tokens;
    /* what the stream has told */
    struct fl_kv_seen_rank *ranks;
    size_t rank_count;
    struct fl_kv_group *groups;
    size_t group_count;
    uint64_t batches, block_size_mismatches;
    uint32_t seen_block_tokens;
    double last_ts;
    /* used again */
    struct fl_kv_event event;
    uint64_t *local;
    size_t local_cap;
    struct fl_log_limit log_limit;
};

void fl_kv_applier_init(struct fl_kv_applier *applier);
void fl_kv_applier_fini(struct fl_kv_applier *applier);

/* One payload. FL_EPROTO/FL_EDEPTH: not a batch; counted, nothing else done. */
int fl_kv_apply(struct fl_kv_applier *applier, struct fl_bytes payload, uint64_t now_ms);

/* Forgets every rank seen on the socket, in all tiers (11.6: restart, loss). */
void fl_kv_applier_clear(struct fl_kv_applier *applier);

#endif
