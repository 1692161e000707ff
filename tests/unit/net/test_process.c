/* SPDX-License-Identifier: Apache-2.0 */
#include "end.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "net/process.h"
#include "net/signals.h"

struct watcher {
    unsigned exits;
    int status, signal;
};

static void on_exit_noted(void *owner, struct fl_process *process, int status, int signal)
{
    struct watcher *watcher = owner;
    (void)process;
    watcher->exits++;
    watcher->status = status;
    watcher->signal = signal;
}

static struct fl_process *spawn(struct fl_loop *loop, struct fl_process_config *config,
                                struct watcher *watcher)
{
    struct fl_process *process = NULL;
    struct fl_error err = {0};
    config->on_exit = on_exit_noted;
    config->owner = watcher;
    if (fl_process_spawn(loop, config, &process, &err) < 0)
        fail_msg("%s", err.text);
    return process;
}

static void an_exit_status_is_told(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    struct watcher watcher = {0};
    struct fl_process_config config = {
        .argv = (const char *const[]){"sh", "-c", "exit 7", NULL}, /* found in PATH */
    };
    spawn(loop, &config, &watcher);
    assert_int_equal(watcher.exits, 0);
    RUN_UNTIL(loop, watcher.exits == 1);
    assert_int_equal(watcher.status, 7);
    assert_int_equal(watcher.signal, 0);
    fl_loop_free(loop);
}

static void a_program_that_cannot_be_run_is_named(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    struct fl_process *process = NULL;
    struct fl_error err = {0};
    struct fl_process_config config = {.argv = (const char *const[]){"/nonexistent/tool", NULL}};
    assert_int_equal(fl_process_spawn(loop, &config, &process, &err), FL_EIO);
    assert_null(process);
    assert_string_equal(err.text, "spawn /nonexistent/tool: No such file or directory");
    config.argv = (const char *const[]){"/bin/sh", NULL};
    config.dir = "/nonexistent";
    assert_int_equal(fl_process_spawn(loop, &config, &process, &err), FL_EIO);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nothing is left behind */
    assert_int_equal(errno, ECHILD);
    fl_loop_free(loop);
}

/* design.md 6: a .gz trace is unpacked by a `gzip -dc` child */
static void output_is_read_as_a_stream(void **state)
{
    (void)state;
    static const uint8_t packed[] = {/* "hello\n" */
                                     0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                                     0x03, 0xcb, 0x48, 0xcd, 0xc9, 0xc9, 0xe7, 0x02, 0x00,
                                     0x20, 0x30, 0x3a, 0x36, 0x06, 0x00, 0x00, 0x00};
    struct fl_loop *loop = fl_loop_new(0);
    struct watcher watcher = {0};
    struct end end = {0};
    char path[] = "/tmp/fairlead-gz-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, packed, sizeof(packed)), sizeof(packed));
    struct fl_process_config config = {
        .argv = (const char *const[]){"gzip", "-dc", path, NULL},
        .stdio = {FL_STDIO_NULL, FL_STDIO_PIPE, FL_STDIO_INHERIT},
        .output_ops = &end_ops,
        .output_owner = &end,
    };
    end.stream = fl_process_output(spawn(loop, &config, &watcher));
    assert_non_null(end.stream);
    RUN_UNTIL(loop, watcher.exits == 1 && end.eof == 1);
    assert_int_equal(watcher.status, 0);
    assert_true(end_has(&end, "hello\n"));
    fl_stream_abort(end.stream, false);
    RUN_UNTIL(loop, end.closed == 1);
    fl_buf_fini(&end.in);
    close(fd);
    unlink(path);
    fl_loop_free(loop);
}

static void output_that_nobody_reads_holds_the_child(void **state)
{
    (void)state;
    enum { BYTES = 3000000 };
    struct fl_loop *loop = fl_loop_new(0);
    struct watcher watcher = {0};
    struct end end = {.keeps = true};
    struct fl_process_config config = {
        /* starts like a TLS record: data all the same */
        .argv =
            (const char *const[]){
                "sh", "-c", "printf '\\026\\003\\001\\000\\001\\001'; head -c 2999994 /dev/zero",
                NULL},
        .stdio = {FL_STDIO_NULL, FL_STDIO_PIPE, FL_STDIO_NULL},
        .output_ops = &end_ops,
        .output_owner = &end,
    };
    end.stream = fl_process_output(spawn(loop, &config, &watcher));
    RUN_UNTIL(loop, fl_stream_peek(end.stream).n == FL_STREAM_READ_AHEAD);
    for (int i = 0; i < 10; i++)
        fl_loop_turn(loop, 2);
    assert_int_equal(watcher.exits, 0);
    end.keeps = false;
    fl_stream_set_reading(end.stream, true);
    RUN_UNTIL(loop, end.eof == 1 && watcher.exits == 1);
    assert_int_equal(fl_buf_size(&end.in), BYTES);
    fl_stream_abort(end.stream, false);
    fl_buf_fini(&end.in);
    fl_loop_free(loop);
}

static void environment_directory_and_descriptors_are_given(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    struct watcher watcher = {0};
    struct end end = {0};
    int leaked = open("/dev/null", O_RDONLY); /* no O_CLOEXEC: somebody else's carelessness */
    assert_true(leaked >= 3);
    struct fl_process_config config = {
        .argv = (const char *const[]){"/bin/sh", "-c", "echo $A $HOME; pwd; echo /proc/self/fd/*",
                                      NULL},
        .env = (const char *const[]){"A=b", NULL},
        .dir = "/usr",
        .stdio = {FL_STDIO_NULL, FL_STDIO_PIPE, FL_STDIO_NULL},
        .output_ops = &end_ops,
        .output_owner = &end,
    };
    end.stream = fl_process_output(spawn(loop, &config, &watcher));
    RUN_UNTIL(loop, watcher.exits == 1 && end.eof == 1);
    /* 3 is the shell's own, of the directory it lists */
    assert_true(end_has(
        &end, "b\n/usr\n/proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 /proc/self/fd/3\n"));
    fl_stream_abort(end.stream, false);
    fl_buf_fini(&end.in);
    close(leaked);
    fl_loop_free(loop);
}

static void a_child_is_killed_by_handle(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    struct watcher watcher = {0}, freed = {0};
    struct fl_process_config config = {.argv = (const char *const[]){"sleep", "1000", NULL}};
    struct fl_process *process = spawn(loop, &config, &watcher);
    fl_process_kill(process, SIGTERM);
    RUN_UNTIL(loop, watcher.exits == 1);
    assert_int_equal(watcher.signal, SIGTERM);
    process = spawn(loop, &config, &freed);
    pid_t pid = fl_process_pid(process);
    fl_process_free(process);
    assert_int_equal(kill(pid, 0), -1); /* gone and waited for */
    fl_loop_turn(loop, 1);
    assert_int_equal(freed.exits, 0);
    fl_process_free(NULL);
    fl_loop_free(loop);
}

/* A parent that is killed takes its children along. */
static void children_die_with_their_parent(void **state)
{
    (void)state;
    int pipe_fds[2];
    assert_int_equal(pipe(pipe_fds), 0);
    pid_t parent = fork();
    assert_true(parent >= 0);
    if (parent == 0) {
        struct fl_loop *loop = fl_loop_new(0);
        struct watcher watcher = {0};
        struct fl_process_config config = {.argv = (const char *const[]){"sleep", "1000", NULL},
                                           .stdio = {FL_STDIO_NULL, FL_STDIO_FD, FL_STDIO_NULL}};
        config.fds[1] = pipe_fds[1];
        spawn(loop, &config, &watcher);
        ssize_t n = write(pipe_fds[1], "r", 1);
        (void)n;
        for (;;)
            pause();
    }
    close(pipe_fds[1]);
    char byte;
    assert_int_equal(read(pipe_fds[0], &byte, 1), 1);
    kill(parent, SIGKILL);
    assert_int_equal(waitpid(parent, NULL, 0), parent);
    /* The grandchild holds the pipe's other end: its death is the end of file. */
    assert_int_equal(read(pipe_fds[0], &byte, 1), 0);
    close(pipe_fds[0]);
}

/* ---- signals ---- */

struct catcher {
    struct fl_signals *signals;
    unsigned terms, hups;
    bool closes;
};

static void on_signal(void *owner, int signum)
{
    struct catcher *catcher = owner;
    catcher->terms += signum == SIGTERM;
    catcher->hups += signum == SIGHUP;
    if (catcher->closes)
        fl_signals_close(catcher->signals);
}

/* gateway.md 2: SIGTERM/SIGINT drain, SIGHUP reloads */
static void signals_arrive_on_the_loop(void **state)
{
    (void)state;
    static const int signums[] = {SIGTERM, SIGINT, SIGHUP};
    struct fl_loop *loop = fl_loop_new(0);
    struct catcher catcher = {0};
    struct sigaction action;
    catcher.signals = fl_signals_open(loop, signums, FL_ARRAY_LEN(signums), on_signal, &catcher);
    kill(getpid(), SIGHUP);
    RUN_UNTIL(loop, catcher.hups == 1);
    kill(getpid(), SIGTERM);
    RUN_UNTIL(loop, catcher.terms == 1);
    catcher.closes = true;
    kill(getpid(), SIGTERM);
    RUN_UNTIL(loop, catcher.terms == 2);
    fl_loop_turn(loop, 1);
    assert_int_equal(sigaction(SIGTERM, NULL, &action), 0);
    assert_ptr_equal(action.sa_handler, SIG_DFL);
    fl_signals_close(NULL);
    fl_loop_free(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_exit_status_is_told),
        cmocka_unit_test(a_program_that_cannot_be_run_is_named),
        cmocka_unit_test(output_is_read_as_a_stream),
        cmocka_unit_test(output_that_nobody_reads_holds_the_child),
        cmocka_unit_test(environment_directory_and_descriptors_are_given),
        cmocka_unit_test(a_child_is_killed_by_handle),
        cmocka_unit_test(children_die_with_their_parent),
        cmocka_unit_test(signals_arrive_on_the_loop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
