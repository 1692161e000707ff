/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apps/replay/replay.h"
#include "base/buf.h"

#define TRACE_MAX_BYTES                                                                            \
    (UINT64_C(1) << 30) /* unpacked; a user's file, held whole while it is parsed */

static int read_all(int fd, struct fl_buf *text, const char *path, struct fl_error *err)
{
    for (;;) {
        uint8_t *room = fl_buf_reserve(text, 65536);
        if (room == NULL)
            return fl_error_set(err, FL_ELIMIT, "trace %s: more than %llu bytes", path,
                                (unsigned long long)TRACE_MAX_BYTES);
        ssize_t n = read(fd, room, 65536);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fl_error_set(err, FL_EIO, "trace %s: %s", path, strerror(errno));
        if (n == 0)
            return 0;
        fl_buf_commit(text, (size_t)n);
    }
}

/* Everything before exec is async-signal-safe. */
static pid_t start_gzip(int file, int out)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (dup2(file, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0)
            execlp("gzip", "gzip", "-dc", (char *)NULL);
        _exit(127);
    }
    return pid;
}

static int read_gzip(int file, struct fl_buf *text, const char *path, struct fl_error *err)
{
    int ends[2];
    int status = 0;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return fl_error_set(err, FL_EIO, "trace %s: %s", path, strerror(errno));
    pid_t pid = start_gzip(file, ends[1]);
    close(ends[1]);
    int rc = pid < 0 ? fl_error_set(err, FL_EIO, "trace %s: %s", path, strerror(errno))
                     : read_all(ends[0], text, path, err);
    close(ends[0]);
    if (pid < 0)
        return rc;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (rc == 0 && (!WIFEXITED(status) || WEXITSTATUS(status) != 0))
        rc = fl_error_set(err, FL_EIO, "trace %s: gzip -dc failed (is gzip installed?)", path);
    return rc;
}

int replay_read_trace(const char *path, uint32_t block_tokens, struct fl_trace *trace,
                      struct fl_error *err)
{
    struct fl_buf text;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return fl_error_set(err, FL_EIO, "trace %s: %s", path, strerror(errno));
    fl_buf_init(&text, TRACE_MAX_BYTES);
    bool is_packed = fl_bytes_has_suffix(fl_bytes_of(path), FL_BYTES(".gz"));
    int rc = is_packed ? read_gzip(file, &text, path, err) : read_all(file, &text, path, err);
    close(file);
    if (rc == 0 && (rc = fl_trace_parse(trace, fl_buf_bytes(&text), block_tokens, err)) < 0)
        fl_error_prefix(err, "%s", path);
    fl_buf_fini(&text);
    return rc;
}
