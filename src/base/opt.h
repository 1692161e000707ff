/* SPDX-License-Identifier: Apache-2.0 */
/* Options as tables: one row gives parsing, bounds, environment name, --help, the reference page and
 * its test. A program has one table; rows fill the fields of its config struct by offset.
 *
 *   command line (wins)  >  environment  >  default
 *
 * `--name value` and `--name=value`; a bool may stand alone (true) or take true/false/1/0/yes/no/on/off;
 * "--" ends options. An unknown option, a bad value or a missing one gives a message that names the
 * option, the value and the rule, and FL_ECONFIG; programs exit with 2 then.
 * JSON objects (REST, files) are read with rows of the same type, see rules/. */
#ifndef FL_BASE_OPT_H
#define FL_BASE_OPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

enum fl_opt_type {
    FL_OPT_BOOL,     /* bool */
    FL_OPT_U32,      /* uint32_t, within min..max */
    FL_OPT_U64,      /* uint64_t, within min..max */
    FL_OPT_F64,      /* double, within fmin..fmax; finite */
    FL_OPT_BYTES,    /* uint64_t; suffixes KiB MiB GiB KB MB GB */
    FL_OPT_DURATION, /* uint64_t milliseconds; plain number means seconds unless `unit_ms`; suffixes ms s m h */
    FL_OPT_STRING,   /* const char *; the value lives in the argument, the environment or `def` */
    FL_OPT_LIST,     /* struct fl_opt_list: every occurrence, in order; from the environment: comma list */
    FL_OPT_ENUM,     /* int: index into words */
    FL_OPT_ACTION,   /* no field: --help, --version; reported by fl_opt_parse() */
};

struct fl_opt_list {
    const char **items; /* freed by fl_opt_fini(); the strings are lent by argv, environment */
    size_t count;
};

struct fl_opt {
    const char *name;   /* without dashes */
    char short_name;    /* 0: none */
    const char *alias;  /* second long name, or NULL */
    const char *env;    /* NULL: none */
    const char *env_alias; /* second spelling, or NULL */
    enum fl_opt_type type;
    size_t off;
    const char *def;    /* as a user would write it; NULL: zero, false, NULL */
    uint64_t min, max;
    double fmin, fmax;
    bool unit_ms;       /* durations: a plain number is milliseconds */
    const char *const *words; /* enum: NULL-terminated */
    const char *arg;    /* "FILE", "ADDR" for --help; NULL: by type */
    const char *section; /* heading in --help from this row on; NULL: as before */
    const char *help;   /* one sentence or more; ends in a full stop */
};

/* What fl_opt_parse() found besides values. */
struct fl_opt_result {
    const struct fl_opt *action; /* the FL_OPT_ACTION row that was given, or NULL */
    int operand_count;
    char **operands; /* points into argv, which is permuted so that operands stand last */
};

/* Fills `config` with defaults, then environment, then argv[1..]. The table ends with a row whose name is
 * NULL. 0, or FL_ECONFIG with the sentence in `err`. `config` starts zeroed. */
int fl_opt_parse(const struct fl_opt *opts, void *config, int argc, char **argv,
                 struct fl_opt_result *result, struct fl_error *err);
/* Sets one option from text, as the command line would (tests, files). */
int fl_opt_set(const struct fl_opt *opt, void *config, const char *text, struct fl_error *err);
/* Frees lists. Idempotent. */
void fl_opt_fini(const struct fl_opt *opts, void *config);

/* --help: "Usage: <usage>", then `about`, then the rows by section, wrapped at 100 columns, each with its default and
 * environment name. */
int fl_opt_write_help(const struct fl_opt *opts, const char *usage, const char *about,
                      struct fl_buf *out);
/* A Markdown table of the rows, for docs/options.md. */
int fl_opt_write_reference(const struct fl_opt *opts, struct fl_buf *out);

#endif
