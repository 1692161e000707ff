/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of one service that are not loads: requests by outcome and times (selection.md 17.2).
 *
 * Any thread calls a service, also threads that run no loop and register nothing, so a shard has no
 * owner: the shard is that of the CPU the caller runs on, and cells are added to atomically. The
 * line is nearly always in that CPU's cache, so an add costs little more than a plain one. What is
 * counted inside a partition's section (booked, freed) lies in the partition and needs no shard. */
#ifndef FL_SERVICE_STATS_H
#define FL_SERVICE_STATS_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

struct fl_buf;

enum fl_stat_op {
    FL_OP_SELECT,
    FL_OP_SELECT_AND_RESERVE,
    FL_OP_RESERVE,
    FL_OP_PREFILL_COMPLETE,
    FL_OP_OUTPUT_BLOCK,
    FL_OP_FREE,
    FL_OP_COUNT
};
enum fl_stat_phase {
    FL_PHASE_HASH,
    FL_PHASE_MATCH,
    FL_PHASE_SCHEDULE, /* the section with the wait for it */
    FL_PHASE_TOTAL,
    FL_PHASE_COUNT
};

#define FL_STAT_RCS 12      /* 0 and the codes -1 .. -11 of selection.md 2.2 */
#define FL_STAT_TIMED_OPS 2 /* the two selects; the others are a lookup and a section */
#define FL_STAT_BUCKETS 15  /* the longest bound table and +Inf */
#define FL_STAT_SHARDS 16

struct fl_stat_histogram {
    _Atomic uint64_t buckets[FL_STAT_BUCKETS];
    _Atomic uint64_t sum; /* ns, millionths or blocks */
};

struct fl_stat_shard {
    alignas(64) _Atomic uint64_t requests[FL_OP_COUNT][FL_STAT_RCS];
    struct fl_stat_histogram duration[FL_STAT_TIMED_OPS][FL_PHASE_COUNT];
    struct fl_stat_histogram section, blocks_lost;
};

struct fl_stats {
    struct fl_stat_shard shards[FL_STAT_SHARDS];
};

/* A zeroed fl_stats is valid. All calls: any thread. */

/* The shard to count in; good for one call of the public API. A thread that moves to another CPU
 * meanwhile adds to the old one, which is slower but as right. */
struct fl_stat_shard *fl_stats_here(struct fl_stats *stats);
void fl_stats_request(struct fl_stat_shard *shard, enum fl_stat_op op, int rc);
void fl_stats_duration(struct fl_stat_shard *shard, enum fl_stat_op op, enum fl_stat_phase phase,
                       uint64_t ns);
void fl_stats_section(struct fl_stat_shard *shard, uint64_t ns);
void fl_stats_blocks_lost(struct fl_stat_shard *shard, uint64_t blocks);
/* Cached share of a prompt, per partition: not sharded by itself. */
void fl_stats_hit_ratio(struct fl_stat_histogram *histogram, double ratio);

/* `labels` (constant, e.g. `role="prefill"`) stand first in every sample. */
int fl_stats_write(const struct fl_stats *stats, const char *labels, struct fl_buf *out);
/* Samples of one histogram of hit ratios, without the family's head. */
int fl_stats_write_hit_ratio(const struct fl_stat_histogram *histogram, const char *name,
                             const char *labels, struct fl_buf *out);

/* CLOCK_MONOTONIC in ns. */
uint64_t fl_stats_now_ns(void);

#endif
