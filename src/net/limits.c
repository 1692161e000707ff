/* SPDX-License-Identifier: Apache-2.0 */
#include "net/limits.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/bytes.h"

/* /proc/self/cgroup has a line per hierarchy, each with one path; these files are small. */
#define FILE_MAX 8192

static struct fl_bytes read_file(const char *path, char out[FILE_MAX])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return (struct fl_bytes){NULL, 0};
    ssize_t n = read(fd, out, FILE_MAX);
    close(fd);
    return n < 0 ? (struct fl_bytes){NULL, 0} : fl_bytes_trim(fl_bytes(out, (size_t)n));
}

/* One number of `dir`/`name`, or `otherwise`. */
static uint64_t read_number(const char *dir, const char *name, uint64_t otherwise)
{
    char path[PATH_MAX + 64], text[FILE_MAX];
    uint64_t value;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    struct fl_bytes bytes = read_file(path, text);
    size_t end = fl_bytes_index(bytes, '\n');
    return fl_bytes_to_u64(fl_bytes_head(bytes, end), UINT64_MAX, &value) ? value : otherwise;
}

static void lower(uint64_t *value, uint64_t to)
{
    if (to < *value)
        *value = to;
}

static uint64_t quota_ms(uint64_t quota_us, uint64_t period_us)
{
    return period_us == 0 ? UINT64_MAX : (quota_us * 1000 + period_us - 1) / period_us;
}

/* "max 100000" or "150000 100000" */
static void read_v2(const char *dir, struct fl_limits *limits)
{
    char path[PATH_MAX + 64], text[FILE_MAX];
    uint64_t quota_us, period_us;
    struct fl_bytes first, second;
    snprintf(path, sizeof(path), "%s/cpu.max", dir);
    struct fl_bytes rest = read_file(path, text);
    rest = fl_bytes_head(rest, fl_bytes_index(rest, '\n'));
    if (fl_bytes_next(&rest, ' ', &first) && fl_bytes_next(&rest, ' ', &second) &&
        fl_bytes_to_u64(first, UINT32_MAX, &quota_us) &&
        fl_bytes_to_u64(second, UINT32_MAX, &period_us))
        lower(&limits->cpu_quota_ms, quota_ms(quota_us, period_us));
    lower(&limits->memory_bytes, read_number(dir, "memory.max", UINT64_MAX));
}

static void read_v1_cpu(const char *dir, struct fl_limits *limits)
{
    /* -1 is no number here: no limit */
    uint64_t quota_us = read_number(dir, "cpu.cfs_quota_us", UINT64_MAX);
    uint64_t period_us = read_number(dir, "cpu.cfs_period_us", 0);
    if (quota_us <= UINT32_MAX)
        lower(&limits->cpu_quota_ms, quota_ms(quota_us, period_us));
}

static void read_v1_memory(const char *dir, struct fl_limits *limits)
{
    uint64_t bytes = read_number(dir, "memory.limit_in_bytes", UINT64_MAX);
    /* v1 writes "no limit" as the largest multiple of a page in a long */
    if (bytes < (UINT64_C(1) << 62))
        lower(&limits->memory_bytes, bytes);
}

/* Every ancestor may limit, too. In a container the path of /proc/self/cgroup is often that of the
 * host while the mount shows our cgroup at its top: what does not exist reads as no limit, and the
 * walk ends at the top. */
static void walk_up(const char *mount, struct fl_bytes path, struct fl_limits *limits,
                    void (*read_dir)(const char *dir, struct fl_limits *limits))
{
    char dir[PATH_MAX];
    for (;;) {
        snprintf(dir, sizeof(dir), "%s%.*s", mount, FL_FMT(path));
        read_dir(dir, limits);
        while (path.n > 0 && path.p[path.n - 1] != '/')
            path.n--;
        if (path.n == 0)
            return;
        path.n--;
    }
}

static bool has_controller(struct fl_bytes list, const char *name)
{
    struct fl_bytes item;
    while (fl_bytes_next(&list, ',', &item)) {
        if (fl_bytes_eq(item, fl_bytes_of(name)))
            return true;
    }
    return false;
}

/* "5:cpu,cpuacct:/kubepods/pod1" (v1) or "0::/kubepods/pod1" (v2) */
static void read_hierarchy(const char *root, struct fl_bytes line, struct fl_limits *limits)
{
    char mount[PATH_MAX / 2];
    size_t colon = fl_bytes_index(line, ':');
    struct fl_bytes rest = fl_bytes_skip(line, colon + 1);
    colon = fl_bytes_index(rest, ':');
    if (colon == rest.n)
        return;
    struct fl_bytes controllers = fl_bytes_head(rest, colon);
    struct fl_bytes path = fl_bytes_skip(rest, colon + 1);
    if (fl_bytes_eq(path, FL_BYTES("/")))
        path.n = 0;
    if (controllers.n == 0) {
        snprintf(mount, sizeof(mount), "%s/sys/fs/cgroup", root);
        walk_up(mount, path, limits, read_v2);
        snprintf(mount, sizeof(mount), "%s/sys/fs/cgroup/unified", root);
        walk_up(mount, path, limits, read_v2);
    }
    if (has_controller(controllers, "cpu")) {
        snprintf(mount, sizeof(mount), "%s/sys/fs/cgroup/cpu", root);
        walk_up(mount, path, limits, read_v1_cpu);
    }
    if (has_controller(controllers, "memory")) {
        snprintf(mount, sizeof(mount), "%s/sys/fs/cgroup/memory", root);
        walk_up(mount, path, limits, read_v1_memory);
    }
}

void fl_limits_read(const char *root, struct fl_limits *limits)
{
    char path[PATH_MAX / 2], text[FILE_MAX];
    struct fl_bytes line;
    cpu_set_t set;

    limits->cpu_quota_ms = limits->memory_bytes = UINT64_MAX;
    /* Fails where the machine has more than 1,024 CPUs; then the quota alone counts. */
    bool has_mask = sched_getaffinity(0, sizeof(set), &set) == 0;
    limits->affinity_cpus = has_mask ? (unsigned)CPU_COUNT(&set) : FL_LOOPS_MAX;

    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    struct fl_bytes rest = read_file(path, text);
    while (fl_bytes_next(&rest, '\n', &line))
        read_hierarchy(root, line, limits);
}

unsigned fl_limits_loops(const struct fl_limits *limits)
{
    uint64_t loops = limits->affinity_cpus;
    if (limits->cpu_quota_ms != UINT64_MAX)
        lower(&loops, (limits->cpu_quota_ms + 999) / 1000);
    if (loops < 1)
        return 1;
    return loops < FL_LOOPS_MAX ? (unsigned)loops : FL_LOOPS_MAX;
}

uint64_t fl_limits_raise_fds(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 1024;
    rlim_t soft = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_max : soft;
}
