/* SPDX-License-Identifier: Apache-2.0 */
/* Child processes of a loop: `fairlead demo` and `gzip -dc`.
 *
 * A child dies with the thread that spawned it (PR_SET_PDEATHSIG), hence with its process; spawn
 * from a thread that lives as long. A child gets no descriptors but its standard ones, default
 * signal handlers and an empty signal mask. Its end is seen through a pidfd, so no SIGCHLD handler
 * is installed and nobody else's children are touched. */
#ifndef FL_NET_PROCESS_H
#define FL_NET_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/error.h"
#include "net/loop.h"
#include "net/stream.h"

enum fl_stdio {
    FL_STDIO_NULL,    /* /dev/null */
    FL_STDIO_INHERIT, /* ours */
    FL_STDIO_FD,      /* config.fds[]: borrowed during the call */
    FL_STDIO_PIPE     /* output only: a stream, see fl_process_output() */
};

struct fl_process;

struct fl_process_config {
    const char *const *argv; /* NULL-terminated; argv[0] is searched in PATH unless it has a '/' */
    const char *const *env;  /* NULL-terminated; NULL: ours */
    const char *dir;         /* working directory; NULL: ours */
    enum fl_stdio stdio[3];
    int fds[3]; /* of FL_STDIO_FD */
    /* Who reads a FL_STDIO_PIPE of standard output; its on_eof means that all writers have closed
     * it. */
    const struct fl_stream_ops *output_ops;
    void *output_owner;
    /* Once, from the loop: exited with `status`, or killed by `signal` (else 0). Output may still
     * be under way. The process object is gone after it. NULL allowed. */
    void (*on_exit)(void *owner, struct fl_process *process, int status, int signal);
    void *owner;
};

/* FL_EIO with a sentence, also when the program cannot be executed. */
int fl_process_spawn(struct fl_loop *loop, const struct fl_process_config *config,
                     struct fl_process **process, struct fl_error *err);
pid_t fl_process_pid(const struct fl_process *process);
/* The stream of a piped standard output, the output owner's; NULL without one. */
struct fl_stream *fl_process_output(const struct fl_process *process);
/* Sends a signal, never to a process that has ended (the pidfd sees to that). */
void fl_process_kill(struct fl_process *process, int signal);
/* Kills (SIGKILL) without on_exit, and waits for it; the output stream stays its owner's. NULL
 * allowed. */
void fl_process_free(struct fl_process *process);

#endif
