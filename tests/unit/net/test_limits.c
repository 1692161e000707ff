/* SPDX-License-Identifier: Apache-2.0 */
#include "net_test.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "net/limits.h"

#define NONE UINT64_MAX

struct file {
    const char *path, *text;
};

static void make_parents(char *path)
{
    for (char *p = path + 1; *p != '\0'; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        mkdir(path, 0755);
        *p = '/';
    }
}

/* epp.md 12.1, gateway.md 2: the smaller of the affinity mask and the cgroup CPU quota (rounded up)
 */
static void cgroup_limits_of_both_versions_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        struct file files[8];
        uint64_t quota_ms, memory_bytes;
    } rows[] = {
        {"no cgroup at all", {{0}}, NONE, NONE},
        {"v2, no limits",
         {{"/proc/self/cgroup", "0::/\n"},
          {"/sys/fs/cgroup/cpu.max", "max 100000\n"},
          {"/sys/fs/cgroup/memory.max", "max\n"}},
         NONE,
         NONE},
        {"v2, one and a half CPUs, 512 MiB",
         {{"/proc/self/cgroup", "0::/kubepods/pod1\n"},
          {"/sys/fs/cgroup/kubepods/pod1/cpu.max", "150000 100000\n"},
          {"/sys/fs/cgroup/kubepods/pod1/memory.max", "536870912\n"}},
         1500,
         536870912},
        {"v2, an ancestor is tighter",
         {{"/proc/self/cgroup", "0::/a/b/c\n"},
          {"/sys/fs/cgroup/a/b/c/cpu.max", "400000 100000\n"},
          {"/sys/fs/cgroup/a/cpu.max", "200000 100000\n"},
          {"/sys/fs/cgroup/a/b/memory.max", "1000\n"}},
         2000,
         1000},
        {"v2 in a container: the path is the host's, the mount is ours",
         {{"/proc/self/cgroup", "0::/../../host/path\n"},
          {"/sys/fs/cgroup/cpu.max", "50000 100000\n"}},
         500,
         NONE},
        {"v1",
         {{"/proc/self/cgroup", "5:cpuacct,cpu:/docker/x\n4:memory:/docker/x\n0::/\n"},
          {"/sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "250000\n"},
          {"/sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000\n"},
          {"/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "1073741824\n"}},
         2500,
         1073741824},
        {"v1, no limits",
         {{"/proc/self/cgroup", "5:cpu:/\n4:memory:/\n"},
          {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
          {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"},
          {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"}},
         NONE,
         NONE},
        {"nonsense is no limit",
         {{"/proc/self/cgroup", "nonsense\n0::/\n::\n"},
          {"/sys/fs/cgroup/cpu.max", "12\n"},
          {"/sys/fs/cgroup/memory.max", "-5\n"}},
         NONE,
         NONE},
        {"a period of nothing",
         {{"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/cpu.max", "1000 0\n"}},
         NONE,
         NONE},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        char root[64] = "/tmp/fairlead-limits-XXXXXX", path[256], command[128];
        struct fl_limits limits;
        assert_non_null(mkdtemp(root));
        for (const struct file *file = rows[i].files; file->path != NULL; file++) {
            snprintf(path, sizeof(path), "%s%s", root, file->path);
            make_parents(path);
            FILE *out = fopen(path, "w");
            assert_non_null(out);
            fputs(file->text, out);
            fclose(out);
        }
        fl_limits_read(root, &limits);
        snprintf(command, sizeof(command), "rm -r %s", root);
        assert_int_equal(system(command), 0);
        if (limits.cpu_quota_ms != rows[i].quota_ms || limits.memory_bytes != rows[i].memory_bytes)
            fail_msg("%s: %llu ms, %llu bytes", rows[i].why,
                     (unsigned long long)limits.cpu_quota_ms,
                     (unsigned long long)limits.memory_bytes);
        assert_true(limits.affinity_cpus >= 1);
    }
}

static void loops_are_the_smaller_of_mask_and_quota_rounded_up(void **state)
{
    (void)state;
    static const struct {
        unsigned cpus;
        uint64_t quota_ms;
        unsigned loops;
    } rows[] = {
        {8, NONE, 8},  {8, 1000, 1}, {8, 1001, 2},     {8, 100, 1},      {8, 0, 1},
        {2, 64000, 2}, {0, NONE, 1}, {256, NONE, 256}, {257, NONE, 256}, {1024, 255001, 256},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_limits limits = {
            .cpu_quota_ms = rows[i].quota_ms, .memory_bytes = NONE, .affinity_cpus = rows[i].cpus};
        unsigned loops = fl_limits_loops(&limits);
        if (loops != rows[i].loops)
            fail_msg("row %zu: %u", i, loops);
    }
}

/* gateway.md 2: at start the soft descriptor limit is raised to the hard one */
static void the_descriptor_limit_is_raised(void **state)
{
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit limit;
        getrlimit(RLIMIT_NOFILE, &limit);
        rlim_t hard = limit.rlim_max;
        limit.rlim_cur = 64;
        setrlimit(RLIMIT_NOFILE, &limit);
        bool is_raised = fl_limits_raise_fds() == hard;
        getrlimit(RLIMIT_NOFILE, &limit);
        _exit(is_raised && limit.rlim_cur == hard ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cgroup_limits_of_both_versions_are_read),
        cmocka_unit_test(loops_are_the_smaller_of_mask_and_quota_rounded_up),
        cmocka_unit_test(the_descriptor_limit_is_raised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
