/* SPDX-License-Identifier: Apache-2.0 */
/* What the system grants this process: descriptors, CPUs, memory. Read at start; cgroup v1 and v2.
 */
#ifndef FL_NET_LIMITS_H
#define FL_NET_LIMITS_H

#include <stdint.h>

#define FL_LOOPS_MAX 256 /* epp.md 2.2, gateway.md 2: --loops 1..256 */

struct fl_limits {
    uint64_t cpu_quota_ms; /* CPU milliseconds a second, of the tightest cgroup; UINT64_MAX: none */
    uint64_t memory_bytes; /* likewise; UINT64_MAX: none */
    unsigned affinity_cpus; /* CPUs this thread may run on */
};

/* `root` is put before /proc and /sys: "" outside of tests. What cannot be read counts as no limit.
 */
void fl_limits_read(const char *root, struct fl_limits *limits);

/* The smaller of affinity mask and CPU quota (rounded up), at least 1, at most FL_LOOPS_MAX. */
unsigned fl_limits_loops(const struct fl_limits *limits);

/* Raises the soft descriptor limit to the hard one; returns what holds now. */
uint64_t fl_limits_raise_fds(void);

#endif
