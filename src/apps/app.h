/* SPDX-License-Identifier: Apache-2.0 */
/* What every program of Fairlead does alike: its entry, --help and --version, the ready file. */
#ifndef FL_APPS_APP_H
#define FL_APPS_APP_H

#include "base/opt.h"
#include "net/stream.h"

/* One row of main.c's table. */
struct fl_app {
    const char *name;
    const char *about; /* one line of `fairlead --help` */
    /* argv[0] is the subcommand. Returns the exit status: 0 clean, 1 failure, 2 bad usage. */
    int (*main)(int argc, char **argv);
};

int fl_app_epp(int argc, char **argv);
int fl_app_gateway(int argc, char **argv);
int fl_app_engine(int argc, char **argv);
int fl_app_replay(int argc, char **argv);
int fl_app_demo(int argc, char **argv);
int fl_app_explain(int argc, char **argv);
int fl_app_rule(int argc, char **argv);

/* Parses options into the zeroed `config`, acts on --help and --version, complains on stderr.
 * Returns true to go on; false with *status to exit with. */
bool fl_app_options(const struct fl_opt *opts, void *config, int argc, char **argv,
                    const char *usage, const char *about, struct fl_opt_result *result,
                    int *status);

/* The two action rows every table ends with. */
#define FL_APP_ACTION_OPTS                                                                         \
    {.name = "help", .short_name = 'h', .type = FL_OPT_ACTION, .help = "Shows this text."},        \
    {                                                                                              \
        .name = "version", .short_name = 'v', .type = FL_OPT_ACTION, .help = "Shows the version."  \
    }

extern const char *const fl_app_log_levels[];  /* words of --log-level, by enum fl_log_level */
extern const char *const fl_app_log_formats[]; /* words of --log-format, by enum fl_log_format */

/* Listeners by purpose, for --ready-file (design.md section 8). */
struct fl_app_listener {
    const char *purpose;
    struct fl_addr addr;
};

/* Writes {"pid":N,"listeners":{"<purpose>":"ip:port"}} and renames it into place. */
int fl_app_write_ready_file(const char *path, const struct fl_app_listener *listeners, size_t count,
                            struct fl_error *err);

#endif
