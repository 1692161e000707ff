/* SPDX-License-Identifier: Apache-2.0 */
/* Options as tables: one row gives parsing, bounds, environment name, --help, the reference page
 * and its test. A program has one table; rows fill the fields of its config struct by offset.
 *
 *   command line (wins)  >  environment  >  default
 *
 * Forms: `--name value` and `--name=value`, `-n value` and `-nvalue`; a bool stands alone (true) or
 * takes true/1/yes/on or false/0/no/off behind `=` (as in peers' flags: the next argument is never
 * its value); "--" ends options.
 *
 * Values (epp.md section 2): blanks at both ends are trimmed, a variable that is empty then is
 * unset, and so is an option of text; numbers are decimal without sign. An unknown option, a bad
 * value or a missing one gives a message that names the option, the value and the rule, and
 * FL_ECONFIG; programs exit with 2 then. Two spellings of one row (name and alias, env and
 * env_alias) with different values are an error that names both.
 *
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
    FL_OPT_U32,      /* uint32_t, within min..max; max 0: no upper bound, here and below */
    FL_OPT_U64,      /* uint64_t, within min..max */
    FL_OPT_F64,      /* double, finite, within fmin..fmax; both 0: no bounds */
    FL_OPT_BYTES,    /* uint64_t; suffixes KiB MiB GiB KB MB GB */
    FL_OPT_DURATION, /* uint64_t in ms; suffixes ms s m h; without: s, or ms with `unit_ms` */
    FL_OPT_STRING,   /* const char *, lent by the argument, the environment or `def` */
    FL_OPT_LIST,     /* struct fl_opt_list: every occurrence; environment and `def`: commas */
    FL_OPT_ENUM,     /* int: index into words */
    FL_OPT_ACTION,   /* no field: --help, --version; reported by fl_opt_parse() */
};

struct fl_opt_list {
    const char **items; /* copies, freed by fl_opt_fini() */
    size_t count;
};

#define FL_OPT_ROWS_MAX 512 /* of one table; the largest program has about 120 */

struct fl_opt {
    const char *name;      /* without dashes */
    char short_name;       /* 0: none */
    const char *alias;     /* second long name, or NULL */
    const char *env;       /* NULL: none */
    const char *env_alias; /* second spelling, or NULL */
    enum fl_opt_type type;
    size_t off;
    const char *def; /* as a user would write it; NULL: zero, false, NULL */
    uint64_t min, max;
    double fmin, fmax;
    bool unit_ms;             /* durations: a plain number is milliseconds */
    const char *const *words; /* enum: NULL-terminated */
    const char *arg;          /* "FILE", "ADDR" for --help; NULL: by type */
    const char *section;      /* heading in --help from this row on; NULL: as before */
    const char *help;         /* one sentence or more; ends in a full stop */
};

/* What fl_opt_parse() found besides values. */
struct fl_opt_result {
    const struct fl_opt *action; /* the FL_OPT_ACTION row that was given, or NULL */
    int operand_count;
    char **operands; /* points into argv, which is permuted so that operands stand last */
    uint64_t given[FL_OPT_ROWS_MAX / 64]; /* bit i: row i came from argv or the environment */
};

/* Was the option of row `opt` (of `opts`) given, on the command line or in the environment? */
bool fl_opt_is_given(const struct fl_opt_result *result, const struct fl_opt *opts,
                     const struct fl_opt *opt);

/* Fills `config` with defaults, then environment, then argv[1..]. The table ends with a row whose
 * name is NULL. 0, or FL_ECONFIG with the sentence in `err`. `config` starts zeroed; fl_opt_fini()
 * it in either case. An action ends the parse with defaults only, so that --help works whatever
 * else is wrong. Trailing blanks of text are cut in place, in argv and the environment: call it
 * before threads start. */
int fl_opt_parse(const struct fl_opt *opts, void *config, int argc, char **argv,
                 struct fl_opt_result *result, struct fl_error *err);
/* Sets one option from text, as the command line would (tests, files); text and what it points to
 * is lent. An item is added to a list. */
int fl_opt_set(const struct fl_opt *opt, void *config, const char *text, struct fl_error *err);
/* Frees lists. Idempotent. */
void fl_opt_fini(const struct fl_opt *opts, void *config);

/* For the test of every table: names, letters and variables are unique, defaults parse and are
 * within bounds, help ends in a full stop. 0 or FL_ECONFIG. */
int fl_opt_check(const struct fl_opt *opts, struct fl_error *err);

/* --help: "Usage: <usage>", then `about`, then the rows by section, wrapped at 100 columns, each
 * with its default and environment name. */
int fl_opt_write_help(const struct fl_opt *opts, const char *usage, const char *about,
                      struct fl_buf *out);
/* A Markdown table of the rows, for docs/options.md. */
int fl_opt_write_reference(const struct fl_opt *opts, struct fl_buf *out);

#endif
