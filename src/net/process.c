/* SPDX-License-Identifier: Apache-2.0 */
/* libuv's uv_spawn() offers no place for prctl(PR_SET_PDEATHSIG) between fork and exec, and
 * children that outlive a killed demo hold its ports. So fork and exec are ours, and a pidfd,
 * polled like a socket, tells of the end. */
#include "net/process.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "net/poll.h"

/* glibc 2.36 has close_range(); descriptors without CLOEXEC are none of ours but may be inherited.
 */
#define FIRST_PRIVATE_FD 3

struct fl_process {
    struct fl_poll poll;
    struct fl_loop *loop;
    struct fl_stream *output;
    struct fl_disposable dispose;
    void (*on_exit)(void *owner, struct fl_process *process, int status, int signal);
    void *owner;
    pid_t pid;
    int pidfd;
};

/* What the child needs, put together before the fork: after it only async-signal-safe calls are
 * allowed, since other threads' locks are frozen. */
struct child {
    const struct fl_process_config *config;
    int fds[3]; /* what becomes 0, 1, 2 */
    int report; /* errno of a failed exec goes here */
    pid_t parent;
};

static _Noreturn void child_fail(const struct child *child)
{
    int error = errno;
    ssize_t n = write(child->report, &error, sizeof(error));
    (void)n;
    _exit(127);
}

static void reset_signals(void)
{
    sigset_t none;
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL); /* fails for SIGKILL, SIGSTOP and libc's own: as wanted */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static _Noreturn void child_run(struct child *child)
{
    reset_signals();
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        child_fail(child);
    if (getppid() != child->parent) /* it died before the prctl */
        _exit(127);
    if (child->config->dir != NULL && chdir(child->config->dir) < 0)
        child_fail(child);
    /* First out of the way of 0..2, then into place. */
    for (int i = 0; i < 3; i++) {
        if (child->fds[i] >= FIRST_PRIVATE_FD)
            continue;
        child->fds[i] = fcntl(child->fds[i], F_DUPFD_CLOEXEC, FIRST_PRIVATE_FD);
        if (child->fds[i] < 0)
            child_fail(child);
    }
    if (child->report < FIRST_PRIVATE_FD)
        child->report = fcntl(child->report, F_DUPFD_CLOEXEC, FIRST_PRIVATE_FD);
    for (int i = 0; i < 3; i++) {
        if (dup2(child->fds[i], i) < 0)
            child_fail(child);
    }
    close_range(FIRST_PRIVATE_FD, ~0U, CLOSE_RANGE_CLOEXEC);
    char *const *argv = (char *const *)(uintptr_t)child->config->argv;
    char *const *env =
        child->config->env != NULL ? (char *const *)(uintptr_t)child->config->env : environ;
    execvpe(argv[0], argv, env);
    child_fail(child);
}

static void close_if_open(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* Waits for the exec, which is short: libuv does the same. 0 or the child's errno. */
static int read_report(int fd)
{
    int error = 0;
    ssize_t n;
    do {
        n = read(fd, &error, sizeof(error));
    } while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof(error) ? error : 0;
}

static void process_dispose(struct fl_disposable *disposable)
{
    fl_free(FL_CONTAINER_OF(disposable, struct fl_process, dispose));
}

static void on_poll_gone(struct fl_poll *poll)
{
    struct fl_process *process = FL_CONTAINER_OF(poll, struct fl_process, poll);
    fl_loop_dispose(process->loop, &process->dispose, process_dispose);
}

static void release(struct fl_process *process)
{
    fl_poll_close(&process->poll, on_poll_gone);
    close(process->pidfd);
}

static void on_pidfd(struct fl_poll *poll, int events)
{
    struct fl_process *process = FL_CONTAINER_OF(poll, struct fl_process, poll);
    int state = 0;
    (void)events;
    pid_t pid = waitpid(process->pid, &state, WNOHANG);
    if (pid == 0 || (pid < 0 && errno == EINTR))
        return;
    release(process);
    if (process->on_exit != NULL)
        process->on_exit(process->owner, process, WIFEXITED(state) ? WEXITSTATUS(state) : 0,
                         WIFSIGNALED(state) ? WTERMSIG(state) : 0);
}

/* The descriptors that become 0, 1 and 2; `pipe_fd` our end of a piped output. 0 or -1 with errno.
 */
static int open_stdio(const struct fl_process_config *config, int null_fd, int fds[3], int pair[2])
{
    for (int i = 0; i < 3; i++) {
        switch (config->stdio[i]) {
        case FL_STDIO_NULL:
            fds[i] = null_fd;
            break;
        case FL_STDIO_INHERIT:
            fds[i] = i;
            break;
        case FL_STDIO_FD:
            fds[i] = config->fds[i];
            break;
        case FL_STDIO_PIPE:
            assert(i == 1);
            /* A socket pair, so that a stream reads it. The child's end must block. */
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0 ||
                fcntl(pair[0], F_SETFL, O_NONBLOCK) < 0)
                return -1;
            fds[i] = pair[1];
            break;
        }
    }
    return 0;
}

static struct fl_process *process_new(struct fl_loop *loop, const struct fl_process_config *config,
                                      pid_t pid, int pidfd)
{
    struct fl_process *process = fl_calloc(1, sizeof(*process));
    process->loop = loop;
    process->on_exit = config->on_exit;
    process->owner = config->owner;
    process->pid = pid;
    process->pidfd = pidfd;
    return process;
}

int fl_process_spawn(struct fl_loop *loop, const struct fl_process_config *config,
                     struct fl_process **process, struct fl_error *err)
{
    struct child child = {.config = config, .report = -1, .parent = getpid()};
    int report[2] = {-1, -1}, pair[2] = {-1, -1}, null_fd = -1, pidfd = -1, rc = 0;
    pid_t pid = -1;
    struct fl_process *made = NULL;

    null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd < 0 || pipe2(report, O_CLOEXEC) < 0 ||
        open_stdio(config, null_fd, child.fds, pair) < 0)
        goto failed;
    child.report = report[1];
    pid = fork();
    if (pid < 0)
        goto failed;
    if (pid == 0)
        child_run(&child);
    close(report[1]);
    report[1] = -1;
    errno = read_report(report[0]);
    if (errno != 0)
        goto failed;
    pidfd = pidfd_open(pid, 0);
    if (pidfd < 0)
        goto failed;
    made = process_new(loop, config, pid, pidfd);
    if (fl_poll_open(&made->poll, loop, pidfd, on_pidfd) < 0) {
        errno = ENOMEM;
        goto failed;
    }
    fl_poll_set(&made->poll, FL_POLL_READABLE);
    if (pair[0] >= 0) {
        static const struct fl_stream_config any_bytes = {.takes_tls_bytes = true};
        made->output =
            fl_stream_accept(loop, pair[0], &any_bytes, config->output_ops, config->output_owner);
        pair[0] = -1;
    }
    *process = made;
    goto out;

failed:
    rc = fl_error_set(err, FL_EIO, "spawn %s: %s", config->argv[0], strerror(errno));
    if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    fl_free(made);
    close_if_open(pidfd);
    close_if_open(pair[0]);
out:
    close_if_open(pair[1]);
    close_if_open(report[0]);
    close_if_open(report[1]);
    close_if_open(null_fd);
    return rc;
}

pid_t fl_process_pid(const struct fl_process *process)
{
    return process->pid;
}

struct fl_stream *fl_process_output(const struct fl_process *process)
{
    return process->output;
}

void fl_process_kill(struct fl_process *process, int signal)
{
    pidfd_send_signal(process->pidfd, signal, NULL, 0);
}

void fl_process_free(struct fl_process *process)
{
    if (process == NULL)
        return;
    pidfd_send_signal(process->pidfd, SIGKILL, NULL, 0);
    while (waitpid(process->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    release(process);
}
