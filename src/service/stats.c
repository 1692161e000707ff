/* SPDX-License-Identifier: Apache-2.0 */
#include "service/stats.h"

#include <assert.h>
#include <ctype.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/metric.h"

/* A histogram's upper bounds in its own unit, and what one unit is in the exposed one. */
struct bounds {
    const uint64_t *at;
    size_t count;
    double unit;
};

static const uint64_t duration_ns[] = {10000,     25000,     60000,     150000,    400000,
                                       1000000,   2500000,   6000000,   15000000,  40000000,
                                       100000000, 250000000, 600000000, 1000000000};
static const uint64_t section_ns[] = {1000,   2500,   6000,    15000,   40000,   100000,
                                      250000, 600000, 1500000, 4000000, 10000000};
static const uint64_t lost_blocks[] = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096};
static const uint64_t ratio_millionths[] = {0,      100000, 200000, 300000, 400000, 500000,
                                            600000, 700000, 800000, 900000, 1000000};

static const struct bounds durations = {duration_ns, FL_ARRAY_LEN(duration_ns), 1e-9};
static const struct bounds sections = {section_ns, FL_ARRAY_LEN(section_ns), 1e-9};
static const struct bounds losses = {lost_blocks, FL_ARRAY_LEN(lost_blocks), 1};
static const struct bounds ratios = {ratio_millionths, FL_ARRAY_LEN(ratio_millionths), 1e-6};

_Static_assert(FL_ARRAY_LEN(duration_ns) < FL_STAT_BUCKETS, "one more for +Inf");

static const char *const op_names[FL_OP_COUNT] = {
    [FL_OP_SELECT] = "select",
    [FL_OP_SELECT_AND_RESERVE] = "select_and_reserve",
    [FL_OP_RESERVE] = "reserve",
    [FL_OP_PREFILL_COMPLETE] = "prefill_complete",
    [FL_OP_OUTPUT_BLOCK] = "output_block",
    [FL_OP_FREE] = "free",
};
static const char *const phase_names[FL_PHASE_COUNT] = {
    [FL_PHASE_HASH] = "hash",
    [FL_PHASE_MATCH] = "match",
    [FL_PHASE_SCHEDULE] = "schedule",
    [FL_PHASE_TOTAL] = "total",
};

uint64_t fl_stats_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void add(_Atomic uint64_t *cell, uint64_t n)
{
    atomic_fetch_add_explicit(cell, n, memory_order_relaxed);
}

static void observe(struct fl_stat_histogram *histogram, const struct bounds *bounds,
                    uint64_t value)
{
    size_t i = 0;
    while (i < bounds->count && value > bounds->at[i])
        i++;
    add(&histogram->buckets[i], 1);
    add(&histogram->sum, value);
}

struct fl_stat_shard *fl_stats_here(struct fl_stats *stats)
{
    int cpu = sched_getcpu();
    return &stats->shards[cpu > 0 ? (unsigned)cpu % FL_STAT_SHARDS : 0];
}

void fl_stats_request(struct fl_stat_shard *shard, enum fl_stat_op op, int rc)
{
    int index = rc < 0 ? -rc : 0;
    assert(index < FL_STAT_RCS);
    add(&shard->requests[op][index], 1);
}

void fl_stats_duration(struct fl_stat_shard *shard, enum fl_stat_op op, enum fl_stat_phase phase,
                       uint64_t ns)
{
    observe(&shard->duration[op][phase], &durations, ns);
}

void fl_stats_section(struct fl_stat_shard *shard, uint64_t ns)
{
    observe(&shard->section, &sections, ns);
}

void fl_stats_blocks_lost(struct fl_stat_shard *shard, uint64_t blocks)
{
    observe(&shard->blocks_lost, &losses, blocks);
}

void fl_stats_hit_ratio(struct fl_stat_histogram *histogram, double ratio)
{
    observe(histogram, &ratios, (uint64_t)(ratio * 1e6 + 0.5));
}

/* ---- exposition ---- */

/* Sums the histogram that lies `offset` into every shard. */
static void sum_histogram(const struct fl_stats *stats, size_t offset,
                          struct fl_stat_histogram *sum)
{
    *sum = (struct fl_stat_histogram){0};
    for (size_t s = 0; s < FL_STAT_SHARDS; s++) {
        const struct fl_stat_histogram *one =
            (const void *)((const char *)&stats->shards[s] + offset);
        for (size_t i = 0; i < FL_STAT_BUCKETS; i++)
            add(&sum->buckets[i], atomic_load_explicit(&one->buckets[i], memory_order_relaxed));
        add(&sum->sum, atomic_load_explicit(&one->sum, memory_order_relaxed));
    }
}

static int write_histogram(const struct fl_stat_histogram *histogram, const struct bounds *bounds,
                           const char *name, const char *labels, struct fl_buf *out)
{
    uint64_t count = 0;
    int rc = 0;
    for (size_t i = 0; i < bounds->count && rc == 0; i++) {
        count += atomic_load_explicit(&histogram->buckets[i], memory_order_relaxed);
        rc = fl_buf_printf(out, "%s_bucket{%s,le=\"%.9g\"} %llu\n", name, labels,
                           (double)bounds->at[i] * bounds->unit, (unsigned long long)count);
    }
    count += atomic_load_explicit(&histogram->buckets[bounds->count], memory_order_relaxed);
    if (rc == 0)
        rc = fl_buf_printf(out,
                           "%s_bucket{%s,le=\"+Inf\"} %llu\n"
                           "%s_sum{%s} %.9g\n"
                           "%s_count{%s} %llu\n",
                           name, labels, (unsigned long long)count, name, labels,
                           (double)atomic_load_explicit(&histogram->sum, memory_order_relaxed) *
                               bounds->unit,
                           name, labels, (unsigned long long)count);
    return rc;
}

int fl_stats_write_hit_ratio(const struct fl_stat_histogram *histogram, const char *name,
                             const char *labels, struct fl_buf *out)
{
    return write_histogram(histogram, &ratios, name, labels, out);
}

#define RC_NAME 32
/* The code's name in lower case without its FL_E: FL_ENO_ENDPOINTS is no_endpoints. */
static const char *rc_name(int index, char name[RC_NAME])
{
    if (index == 0)
        return "ok";
    const char *from = fl_error_row(-index)->name + strlen("FL_E");
    size_t i = 0;
    for (; i < RC_NAME - 1 && from[i] != '\0'; i++)
        name[i] = (char)tolower((unsigned char)from[i]);
    name[i] = '\0';
    return name;
}

static uint64_t sum_requests(const struct fl_stats *stats, int op, int index)
{
    uint64_t sum = 0;
    for (size_t s = 0; s < FL_STAT_SHARDS; s++)
        sum += atomic_load_explicit(&stats->shards[s].requests[op][index], memory_order_relaxed);
    return sum;
}

static int write_requests(const struct fl_stats *stats, const char *labels, struct fl_buf *out)
{
    static const char family[] = "fairlead_select_requests_total";
    int rc = fl_metric_write_head(out, family, "Calls by operation and outcome.", FL_COUNTER);
    for (int op = 0; op < FL_OP_COUNT && rc == 0; op++) {
        for (int i = 0; i < FL_STAT_RCS && rc == 0; i++) {
            uint64_t sum = sum_requests(stats, op, i);
            if (sum == 0 && i != 0)
                continue;
            char name[RC_NAME];
            rc = fl_buf_printf(out, "%s{%s,op=\"%s\",rc=\"%s\"} %llu\n", family, labels,
                               op_names[op], rc_name(i, name), (unsigned long long)sum);
        }
    }
    return rc;
}

int fl_stats_write(const struct fl_stats *stats, const char *labels, struct fl_buf *out)
{
    int rc = write_requests(stats, labels, out);
    static const char duration[] = "fairlead_select_duration_seconds";
    if (rc == 0)
        rc = fl_metric_write_head(out, duration, "Time of a selection by phase.", FL_HISTOGRAM);
    struct fl_stat_histogram sum;
    for (int op = 0; op < FL_STAT_TIMED_OPS && rc == 0; op++) {
        for (int phase = 0; phase < FL_PHASE_COUNT && rc == 0; phase++) {
            char all[256];
            snprintf(all, sizeof all, "%s,op=\"%s\",phase=\"%s\"", labels, op_names[op],
                     phase_names[phase]);
            size_t offset = offsetof(struct fl_stat_shard, duration) +
                            (size_t)(op * FL_PHASE_COUNT + phase) * sizeof sum;
            sum_histogram(stats, offset, &sum);
            rc = write_histogram(&sum, &durations, duration, all, out);
        }
    }
    const struct {
        const char *name, *help;
        size_t offset;
        const struct bounds *bounds;
    } rest[] = {
        {"fairlead_select_section_seconds", "Time a partition's critical section was held.",
         offsetof(struct fl_stat_shard, section), &sections},
        {"fairlead_select_overlap_blocks_lost",
         "Device blocks of the best overlap less those of the choice.",
         offsetof(struct fl_stat_shard, blocks_lost), &losses},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rest) && rc == 0; i++) {
        rc = fl_metric_write_head(out, rest[i].name, rest[i].help, FL_HISTOGRAM);
        sum_histogram(stats, rest[i].offset, &sum);
        if (rc == 0)
            rc = write_histogram(&sum, rest[i].bounds, rest[i].name, labels, out);
    }
    return rc;
}
