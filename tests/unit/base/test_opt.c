/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/opt.h"

struct config {
    bool quiet, kv_events;
    uint32_t port;
    uint64_t tokens, body_bytes, timeout_ms, wait_ms;
    double weight, ratio;
    const char *name, *file;
    struct fl_opt_list workers;
    int mode;
};

static const char *const modes[] = {"FailClose", "FailOpen", NULL};

enum {
    QUIET,
    KV_EVENTS,
    PORT,
    TOKENS,
    BODY,
    TIMEOUT,
    WAIT,
    WEIGHT,
    RATIO,
    NAME,
    FILE_,
    WORKERS,
    MODE,
    HELP,
    VERSION,
    ROWS
};

#define OFF(field) offsetof(struct config, field)

static const struct fl_opt opts[ROWS + 1] = {
    [QUIET] = {.name = "quiet",
               .short_name = 'q',
               .type = FL_OPT_BOOL,
               .off = OFF(quiet),
               .section = "General",
               .help = "Say less."},
    [KV_EVENTS] = {.name = "kv-events",
                   .type = FL_OPT_BOOL,
                   .off = OFF(kv_events),
                   .def = "true",
                   .env = "T_KV_EVENTS",
                   .env_alias = "T_USE_KV_EVENTS",
                   .help = "Listen."},
    [PORT] = {.name = "port",
              .short_name = 'p',
              .alias = "listen-port",
              .env = "T_PORT",
              .type = FL_OPT_U32,
              .off = OFF(port),
              .def = "9002",
              .min = 1,
              .max = 65535,
              .help = "Where to listen."},
    [TOKENS] = {.name = "tokens",
                .type = FL_OPT_U64,
                .off = OFF(tokens),
                .env = "T_TOKENS",
                .help = "How many."},
    [BODY] = {.name = "body-bytes",
              .type = FL_OPT_BYTES,
              .off = OFF(body_bytes),
              .def = "10MiB",
              .min = 1,
              .max = UINT64_C(1) << 30,
              .help = "Cap of a body."},
    [TIMEOUT] = {.name = "timeout",
                 .type = FL_OPT_DURATION,
                 .off = OFF(timeout_ms),
                 .def = "30",
                 .min = 500,
                 .max = 3600000,
                 .help = "Longest wait."},
    [WAIT] = {.name = "wait-ms",
              .type = FL_OPT_DURATION,
              .off = OFF(wait_ms),
              .unit_ms = true,
              .help = "A wait."},
    [WEIGHT] = {.name = "weight",
                .type = FL_OPT_F64,
                .off = OFF(weight),
                .def = "1.0",
                .env = "T_WEIGHT",
                .env_alias = "T_OLD_WEIGHT",
                .fmin = 0,
                .fmax = INFINITY,
                .section = "Policy",
                .help = "A weight."},
    [RATIO] = {.name = "ratio",
               .type = FL_OPT_F64,
               .off = OFF(ratio),
               .fmin = 0,
               .fmax = 1,
               .help = "A ratio."},
    [NAME] = {.name = "pool-name",
              .alias = "inference-pool-name",
              .env = "T_NAME",
              .type = FL_OPT_STRING,
              .off = OFF(name),
              .help = "A name."},
    [FILE_] = {.name = "file",
               .type = FL_OPT_STRING,
               .off = OFF(file),
               .def = "a.yaml",
               .arg = "FILE",
               .help = "A file."},
    [WORKERS] = {.name = "worker",
                 .short_name = 'w',
                 .type = FL_OPT_LIST,
                 .off = OFF(workers),
                 .env = "T_WORKERS",
                 .arg = "ADDR",
                 .help = "A worker."},
    [MODE] = {.name = "mode",
              .type = FL_OPT_ENUM,
              .off = OFF(mode),
              .words = modes,
              .def = "FailClose",
              .env = "T_MODE",
              .help =
                  "What a request gets when no picker answers in time, which is a long sentence "
                  "so that it must be wrapped."},
    [HELP] = {.name = "help", .short_name = 'h', .type = FL_OPT_ACTION, .help = "Show this text."},
    [VERSION] = {.name = "version", .type = FL_OPT_ACTION, .help = "Show the version."},
};

/* ---- running the parser on a line ---- */

enum { WORDS_MAX = 16 };

struct run {
    char text[512];
    char *argv[WORDS_MAX + 2];
    int argc;
    struct config config;
    struct fl_opt_result result;
    struct fl_error err;
    int rc;
};

/* Words are separated by '|', because values have blanks. */
static void run(struct run *run, const char *line)
{
    struct fl_bytes rest = fl_bytes_of(line), word;
    size_t at = 0;

    *run = (struct run){.argc = 1};
    run->argv[0] = (char *)(uintptr_t) "prog";
    while (line[0] != 0 && fl_bytes_next(&rest, '|', &word)) {
        assert_true(run->argc <= WORDS_MAX && at + word.n < sizeof(run->text));
        memcpy(run->text + at, word.p, word.n);
        run->argv[run->argc++] = run->text + at;
        at += word.n + 1;
    }
    run->rc = fl_opt_parse(opts, &run->config, run->argc, run->argv, &run->result, &run->err);
}

static void done(struct run *run)
{
    fl_opt_fini(opts, &run->config);
    fl_opt_fini(opts, &run->config);
}

static int clear_environment(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        if (opts[i].env != NULL)
            unsetenv(opts[i].env);
        if (opts[i].env_alias != NULL)
            unsetenv(opts[i].env_alias);
    }
    return 0;
}

static void defaults_fill_what_is_not_given(void **state)
{
    (void)state;
    struct run r;
    run(&r, "");
    assert_int_equal(r.rc, 0);
    assert_false(r.config.quiet);
    assert_true(r.config.kv_events);
    assert_int_equal(r.config.port, 9002);
    assert_int_equal(r.config.tokens, 0);
    assert_int_equal(r.config.body_bytes, 10485760);
    assert_int_equal(r.config.timeout_ms, 30000);
    assert_true(r.config.weight == 1.0);
    assert_null(r.config.name);
    assert_string_equal(r.config.file, "a.yaml");
    assert_int_equal(r.config.workers.count, 0);
    assert_int_equal(r.config.mode, 0);
    assert_null(r.result.action);
    assert_int_equal(r.result.operand_count, 0);
    for (size_t i = 0; i < ROWS; i++)
        assert_false(fl_opt_is_given(&r.result, opts, &opts[i]));
    done(&r);
}

/* ---- values ---- */

/* epp.md 2 (parse rules), gaie.md 10.2 (forms) */
static void good_values(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        size_t row;
        double number; /* of the field, whatever its type */
    } rows[] = {
        {"--port=1", PORT, 1},
        {"--port|65535", PORT, 65535},
        {"--port= 80 ", PORT, 80},
        {"--listen-port|81", PORT, 81},
        {"-p|82", PORT, 82},
        {"-p83", PORT, 83},
        {"-p=84", PORT, 84},
        {"--port|1|--port|2", PORT, 2},
        {"--port|5|--listen-port|5", PORT, 5},
        {"--tokens=0018446744073709551615", TOKENS, 18446744073709551615.0},
        {"--quiet", QUIET, 1},
        {"-q", QUIET, 1},
        {"-qp80", QUIET, 1},
        {"--quiet=TRUE", QUIET, 1},
        {"--kv-events=false", KV_EVENTS, 0},
        {"--kv-events=0", KV_EVENTS, 0},
        {"--kv-events=No", KV_EVENTS, 0},
        {"--kv-events=off", KV_EVENTS, 0},
        {"--quiet=1", QUIET, 1},
        {"--quiet=yes", QUIET, 1},
        {"--quiet=on", QUIET, 1},
        {"--body-bytes=1", BODY, 1},
        {"--body-bytes=64KiB", BODY, 65536},
        {"--body-bytes=64 KB", BODY, 64000},
        {"--body-bytes=2MB", BODY, 2000000},
        {"--body-bytes=1.5MiB", BODY, 1572864},
        {"--body-bytes=1GiB", BODY, 1073741824},
        {"--body-bytes=1GB", BODY, 1000000000},
        {"--timeout=2", TIMEOUT, 2000},
        {"--timeout=0.5", TIMEOUT, 500},
        {"--timeout=750ms", TIMEOUT, 750},
        {"--timeout=2s", TIMEOUT, 2000},
        {"--timeout=1.5m", TIMEOUT, 90000},
        {"--timeout=1h", TIMEOUT, 3600000},
        {"--wait-ms=250", WAIT, 250},
        {"--wait-ms=1s", WAIT, 1000},
        {"--weight=0", WEIGHT, 0},
        {"--weight=2.5e3", WEIGHT, 2500},
        {"--weight=1e308", WEIGHT, 1e308},
        {"--ratio=1", RATIO, 1},
        {"--mode=FailOpen", MODE, 1},
        {"--mode| FailOpen\n", MODE, 1},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct run r;
        run(&r, rows[i].line);
        if (r.rc != 0)
            fail_msg("row %zu: %s: %s", i, rows[i].line, r.err.text);
        const void *field = (char *)&r.config + opts[rows[i].row].off;
        double got = 0;
        switch (opts[rows[i].row].type) {
        case FL_OPT_BOOL:
            got = *(const bool *)field;
            break;
        case FL_OPT_U32:
            got = *(const uint32_t *)field;
            break;
        case FL_OPT_F64:
            got = *(const double *)field;
            break;
        case FL_OPT_ENUM:
            got = *(const int *)field;
            break;
        default:
            got = (double)*(const uint64_t *)field;
            break;
        }
        if (got < rows[i].number || got > rows[i].number)
            fail_msg("row %zu: %s gave %g", i, rows[i].line, got);
        assert_true(fl_opt_is_given(&r.result, opts, &opts[rows[i].row]));
        assert_false(fl_opt_is_given(&r.result, opts, &opts[FILE_]));
        done(&r);
    }
}

/* epp.md 1.3 step 1, 2: a message names the option, the value and the rule; nothing falls back. */
static void bad_values_are_named_with_their_rule(void **state)
{
    (void)state;
    static const struct {
        const char *line, *message;
    } rows[] = {
        {"--port=0", "--port: \"0\" must be from 1 to 65535"},
        {"--port=65536", "--port: \"65536\" must be from 1 to 65535"},
        {"--listen-port=65536", "--listen-port: \"65536\" must be from 1 to 65535"},
        {"-p|x", "-p: \"x\" is not a decimal number"},
        {"--port=+80", "--port: \"+80\" is not a decimal number"},
        {"--port=-80", "--port: \"-80\" is not a decimal number"},
        {"--port=0x50", "--port: \"0x50\" is not a decimal number"},
        {"--port=80s", "--port: \"80s\" is not a decimal number"},
        {"--port=", "--port: \"\" is not a decimal number"},
        {"--port=99999999999999999999", "--port: \"99999999999999999999\" is too large"},
        {"--tokens=18446744073709551616", "--tokens: \"18446744073709551616\" is too large"},
        {"--port", "--port: a value is missing"},
        {"-p", "-p: a value is missing"},
        {"--quiet=maybe", "--quiet: \"maybe\" must be true, 1, yes, on, false, 0, no or off"},
        {"--quiet=", "--quiet: \"\" must be true, 1, yes, on, false, 0, no or off"},
        {"--body-bytes=0", "--body-bytes: \"0\" must be from 1 to 1073741824"},
        {"--body-bytes=1.0000001GiB", "--body-bytes: \"1.0000001GiB\" is finer than its unit"},
        {"--body-bytes=2GiB", "--body-bytes: \"2GiB\" must be from 1 to 1073741824"},
        {"--body-bytes=1kib", "--body-bytes: \"1kib\" is not a number with a known unit"},
        {"--body-bytes=MiB", "--body-bytes: \"MiB\" is not a number with a known unit"},
        {"--body-bytes=1.", "--body-bytes: \"1.\" is not a number with a known unit"},
        {"--body-bytes=.5MiB", "--body-bytes: \".5MiB\" is not a number with a known unit"},
        {"--body-bytes=1.5.1MiB", "--body-bytes: \"1.5.1MiB\" is not a number with a known unit"},
        {"--body-bytes=18446744073709551615GiB",
         "--body-bytes: \"18446744073709551615GiB\" is too large"},
        {"--body-bytes=99999999999999999999",
         "--body-bytes: \"99999999999999999999\" is too large"},
        {"--timeout=499ms", "--timeout: \"499ms\" must be from 500 to 3600000 ms"},
        {"--timeout=3600.001", "--timeout: \"3600.001\" must be from 500 to 3600000 ms"},
        {"--timeout=1.2345s", "--timeout: \"1.2345s\" is finer than its unit"},
        {"--timeout=1d", "--timeout: \"1d\" is not a number with a known unit"},
        {"--timeout=-1s", "--timeout: \"-1s\" is not a number with a known unit"},
        {"--weight=-0.5", "--weight: \"-0.5\" must be at least 0"},
        {"--weight=inf", "--weight: \"inf\" is not a finite decimal number"},
        {"--weight=nan", "--weight: \"nan\" is not a finite decimal number"},
        {"--weight=0x10", "--weight: \"0x10\" is not a finite decimal number"},
        {"--weight=1e999", "--weight: \"1e999\" is not a finite decimal number"},
        {"--weight=1.5x", "--weight: \"1.5x\" is not a finite decimal number"},
        {"--weight=", "--weight: \"\" is not a finite decimal number"},
        {"--ratio=1.01", "--ratio: \"1.01\" must be from 0 to 1"},
        {"--mode=failopen", "--mode: \"failopen\" is not one of: FailClose, FailOpen"},
        {"--bogus", "unknown option --bogus"},
        {"--bogus=1", "unknown option --bogus"},
        {"--portal=1", "unknown option --portal"},
        {"--po=1", "unknown option --po"}, /* no abbreviations: a new option would break them */
        {"-z", "unknown option -z"},
        {"-qz", "unknown option -z"},
        {"--help=now", "--help takes no value"},
        {"--port|1|--listen-port|2",
         "--port 1 and --listen-port 2 set one option to different values"},
        {"--inference-pool-name|a|--pool-name|b",
         "--pool-name b and --inference-pool-name a set one option to different values"},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct run r;
        run(&r, rows[i].line);
        if (r.rc != FL_ECONFIG || r.err.code != FL_ECONFIG ||
            strcmp(r.err.text, rows[i].message) != 0)
            fail_msg("row %zu: %s gave: %s", i, rows[i].line, r.err.text);
        done(&r);
    }
}

static void a_very_long_value_is_shown_by_its_beginning(void **state)
{
    (void)state;
    char text[400] = "--port=";
    struct run r;
    memset(text + 7, 'x', sizeof(text) - 8);
    text[sizeof(text) - 1] = 0;
    run(&r, text);
    assert_int_equal(r.rc, FL_ECONFIG);
    assert_true(strlen(r.err.text) < 160);
    assert_non_null(strstr(r.err.text, "xxx...\" is not a decimal number"));
    done(&r);
}

/* ---- operands, actions, text, lists ---- */

static void operands_stand_last_in_their_order(void **state)
{
    (void)state;
    static const struct {
        const char *line, *argv; /* as it stands afterwards, words joined with blanks */
        int operands;
    } rows[] = {
        {"a|--port|80|b|-q|c", "--port 80 -q a b c", 3},
        {"a|b", "a b", 2},
        {"-q|--|-p|--port", "-q -- -p --port", 2},
        {"a|--", "-- a", 1},
        {"--|a|--|b", "-- a -- b", 3},
        {"-|-q", "-q -", 1},
        {"--quiet|true", "--quiet true", 1}, /* a bool's value stands behind '=' only */
        {"a||b", "a  b", 3},                 /* an empty operand is one */
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        char joined[128] = "";
        struct run r;
        run(&r, rows[i].line);
        assert_int_equal(r.rc, 0);
        for (int k = 1; k < r.argc; k++) {
            if (k > 1)
                strncat(joined, " ", sizeof(joined) - strlen(joined) - 1);
            strncat(joined, r.argv[k], sizeof(joined) - strlen(joined) - 1);
        }
        if (strcmp(joined, rows[i].argv) != 0 || r.result.operand_count != rows[i].operands ||
            r.result.operands != r.argv + r.argc - rows[i].operands)
            fail_msg("row %zu: %s became %s", i, rows[i].line, joined);
        done(&r);
    }
}

static void an_action_works_whatever_else_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        size_t action;
    } rows[] = {
        {"--help", HELP},
        {"-h", HELP},
        {"--port=x|--help", HELP},
        {"--version|--help", VERSION},
        {"-qh", HELP},
        {"--help|--bogus", HELP},
    };
    setenv("T_PORT", "wrong", 1);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct run r;
        run(&r, rows[i].line);
        if (r.rc != 0 || r.result.action != &opts[rows[i].action])
            fail_msg("row %zu: %s: %s", i, rows[i].line, r.err.text);
        assert_int_equal(r.config.port, 9002);
        done(&r);
    }
    /* Not when it is another option's value, nor behind "--". */
    unsetenv("T_PORT");
    struct run r;
    run(&r, "--pool-name|--help|--|--help");
    assert_int_equal(r.rc, 0);
    assert_null(r.result.action);
    assert_string_equal(r.config.name, "--help");
    assert_int_equal(r.result.operand_count, 1);
    done(&r);
}

static void text_is_trimmed_and_empty_text_is_unset(void **state)
{
    (void)state;
    struct run r;
    setenv("T_NAME", "from-env", 1);
    run(&r, "--pool-name| a b \n|--file=");
    assert_int_equal(r.rc, 0);
    assert_string_equal(r.config.name, "a b");
    assert_string_equal(r.config.file, "a.yaml"); /* its default */
    assert_false(fl_opt_is_given(&r.result, opts, &opts[FILE_]));
    done(&r);
    run(&r, "--pool-name="); /* the flag wins over the environment, also with nothing */
    assert_int_equal(r.rc, 0);
    assert_null(r.config.name);
    done(&r);
}

static void lists_collect_every_occurrence(void **state)
{
    (void)state;
    struct run r;
    setenv("T_WORKERS", " a:1 , b:2,,c:3", 1);
    run(&r, "");
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.config.workers.count, 3);
    assert_string_equal(r.config.workers.items[0], "a:1");
    assert_string_equal(r.config.workers.items[1], "b:2");
    assert_string_equal(r.config.workers.items[2], "c:3");
    assert_true(fl_opt_is_given(&r.result, opts, &opts[WORKERS]));
    done(&r);
    run(&r, "-w|x:1,y:2|--worker= z:3 "); /* replaces the environment's; commas stay */
    assert_int_equal(r.config.workers.count, 2);
    assert_string_equal(r.config.workers.items[0], "x:1,y:2");
    assert_string_equal(r.config.workers.items[1], "z:3");
    done(&r);
    run(&r, "--worker=");
    assert_int_equal(r.config.workers.count, 0);
    done(&r);
}

/* ---- the environment ---- */

/* epp.md 2 */
static void the_environment_stands_between_default_and_flag(void **state)
{
    (void)state;
    struct run r;
    setenv("T_PORT", " 7000\n", 1);
    setenv("T_MODE", "FailOpen", 1);
    setenv("T_NAME", "pool \n", 1);
    setenv("T_TOKENS", "  ", 1); /* empty after trimming: unset */
    run(&r, "--mode=FailClose");
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.config.port, 7000);
    assert_int_equal(r.config.mode, 0);
    assert_string_equal(r.config.name, "pool");
    assert_int_equal(r.config.tokens, 0);
    assert_true(fl_opt_is_given(&r.result, opts, &opts[PORT]));
    assert_false(fl_opt_is_given(&r.result, opts, &opts[TOKENS]));
    done(&r);
}

/* epp.md 2: "a start error that names the variable and the value" */
static void a_bad_variable_is_named_even_if_a_flag_wins(void **state)
{
    (void)state;
    struct run r;
    setenv("T_PORT", "70000", 1);
    run(&r, "--port=80");
    assert_int_equal(r.rc, FL_ECONFIG);
    assert_string_equal(r.err.text, "T_PORT: \"70000\" must be from 1 to 65535");
    done(&r);
}

/* epp.md 2: two spellings of one option */
static void two_variables_of_one_option_must_agree(void **state)
{
    (void)state;
    struct run r;
    setenv("T_OLD_WEIGHT", "2", 1);
    run(&r, "");
    assert_true(r.config.weight == 2.0);
    done(&r);
    setenv("T_WEIGHT", "2.0", 1); /* the same value in other words */
    run(&r, "");
    assert_int_equal(r.rc, 0);
    done(&r);
    setenv("T_WEIGHT", "3", 1);
    run(&r, "");
    assert_int_equal(r.rc, FL_ECONFIG);
    assert_string_equal(r.err.text,
                        "T_WEIGHT=3 and T_OLD_WEIGHT=2 set one option to different values");
    done(&r);
    setenv("T_OLD_WEIGHT", "x", 1);
    run(&r, "");
    assert_string_equal(r.err.text, "T_OLD_WEIGHT: \"x\" is not a finite decimal number");
    done(&r);
}

static void one_option_is_set_from_text(void **state)
{
    (void)state;
    struct config config = {0};
    struct fl_error err = {0};
    assert_int_equal(fl_opt_set(&opts[PORT], &config, "80", &err), 0);
    assert_int_equal(config.port, 80);
    assert_int_equal(fl_opt_set(&opts[PORT], &config, "0", &err), FL_ECONFIG);
    assert_int_equal(config.port, 80); /* a failure changes nothing */
    assert_string_equal(err.text, "--port: \"0\" must be from 1 to 65535");
    assert_int_equal(fl_opt_set(&opts[PORT], &config, "0", NULL), FL_ECONFIG);
    assert_int_equal(fl_opt_set(&opts[WORKERS], &config, "a", NULL), 0);
    assert_int_equal(fl_opt_set(&opts[WORKERS], &config, "b", NULL), 0);
    assert_int_equal(config.workers.count, 2);
    fl_opt_fini(opts, &config);
}

static void a_bad_default_is_found_by_any_parse(void **state)
{
    (void)state;
    static const struct fl_opt bad[] = {
        {.name = "n", .type = FL_OPT_U32, .off = 0, .def = "9", .max = 8, .help = "N."}, {0}};
    uint32_t config = 0;
    struct fl_opt_result result;
    struct fl_error err = {0};
    char name[] = "prog", *argv[] = {name, NULL};
    assert_int_equal(fl_opt_parse(bad, &config, 1, argv, &result, &err), FL_ECONFIG);
    assert_string_equal(err.text, "default: n: \"9\" must be from 0 to 8");
}

/* What every program's test asks of its table. */
static void a_table_is_checked_as_a_whole(void **state)
{
    (void)state;
#define GOOD                                                                                       \
    {                                                                                              \
        .name = "good", .short_name = 'g', .env = "T_GOOD", .type = FL_OPT_BOOL, .help = "Good."   \
    }
    static const struct {
        struct fl_opt table[3];
        const char *message;
    } rows[] = {
        {{GOOD, {.name = "good", .help = "Twice."}}, "--good: two rows have this name"},
        {{GOOD, {.name = "b", .alias = "good", .help = "Twice."}},
         "--good: two rows have this name"},
        {{GOOD, {.name = "b", .short_name = 'g', .help = "Twice."}},
         "-g: two rows have this letter"},
        {{GOOD, {.name = "b", .env_alias = "T_GOOD", .env = "T_B", .help = "Twice."}},
         "T_GOOD: two rows have this variable"},
        {{GOOD, {.name = "b", .env_alias = "T_B", .help = "Odd."}}, "--b: env_alias without env"},
        {{GOOD, {.name = "b", .help = "No stop"}}, "--b: help must end in a full stop"},
        {{GOOD, {.name = "b"}}, "--b: help must end in a full stop"},
        {{GOOD, {.name = "b", .type = FL_OPT_ENUM, .help = "Odd."}}, "--b: an enum needs words"},
        {{GOOD, {.name = "b", .type = FL_OPT_F64, .fmax = 1, .def = "2", .help = "Odd."}},
         "default: --b: \"2\" must be from 0 to 1"},
    };
    struct fl_error err = {0};
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        if (fl_opt_check(rows[i].table, &err) != FL_ECONFIG ||
            strcmp(err.text, rows[i].message) != 0)
            fail_msg("row %zu: %s", i, err.text);
    }
    assert_int_equal(fl_opt_check(opts, &err), 0);
}

/* ---- what people read ---- */

static const char expected_help[] =
    "Usage: prog [options] FILE\n"
    "\n"
    "Does a thing, and says so in a sentence that is long enough to need more than one line of "
    "the\n"
    "hundred columns.\n"
    "\n"
    "General:\n"
    "  -q, --quiet                   Say less.\n"
    "      --kv-events               Listen. [default true; environment T_KV_EVENTS or "
    "T_USE_KV_EVENTS]\n"
    "  -p, --port, --listen-port N   Where to listen. 1 to 65535. [default 9002; environment "
    "T_PORT]\n"
    "      --tokens N                How many. [environment T_TOKENS]\n"
    "      --body-bytes SIZE         Cap of a body. 1 to 1073741824. [default 10MiB]\n"
    "      --timeout TIME            Longest wait. 500 to 3600000 ms. [default 30]\n"
    "      --wait-ms TIME            A wait.\n"
    "\n"
    "Policy:\n"
    "      --weight N                A weight. At least 0. [default 1.0; environment T_WEIGHT or\n"
    "                                T_OLD_WEIGHT]\n"
    "      --ratio N                 A ratio. 0 to 1.\n"
    "      --pool-name, --inference-pool-name TEXT\n"
    "                                A name. [environment T_NAME]\n"
    "      --file FILE               A file. [default a.yaml]\n"
    "  -w, --worker ADDR             A worker. May be repeated. [environment T_WORKERS]\n"
    "      --mode WORD               What a request gets when no picker answers in time, which is "
    "a long\n"
    "                                sentence so that it must be wrapped. One of FailClose, "
    "FailOpen.\n"
    "                                [default FailClose; environment T_MODE]\n"
    "  -h, --help                    Show this text.\n"
    "      --version                 Show the version.\n";

static void help_is_wrapped_at_a_hundred_columns(void **state)
{
    (void)state;
    struct fl_buf buf = {0};
    assert_int_equal(
        fl_opt_write_help(opts, "prog [options] FILE",
                          "Does a thing, and says so in a sentence that is long enough "
                          "to need more than one line of the hundred columns.",
                          &buf),
        0);
    struct fl_bytes rest = fl_buf_bytes(&buf), line;
    while (fl_bytes_next(&rest, '\n', &line))
        assert_true(line.n <= 100);
    fl_buf_append_byte(&buf, 0);
    assert_string_equal((char *)buf.head, expected_help);
    fl_buf_fini(&buf);
}

static void help_names_every_row_and_fails_with_its_buffer(void **state)
{
    (void)state;
    struct fl_buf buf;
    fl_buf_init(&buf, sizeof(expected_help) - 1);
    assert_int_equal(fl_opt_write_help(opts, "prog", NULL, &buf), 0);
    for (size_t i = 0; i < ROWS; i++)
        assert_true(fl_bytes_find(fl_buf_bytes(&buf), fl_bytes_of(opts[i].name)) <
                    fl_buf_size(&buf));
    size_t n = fl_buf_size(&buf);
    fl_buf_fini(&buf);
    fl_buf_init(&buf, n - 1);
    assert_int_equal(fl_opt_write_help(opts, "prog", NULL, &buf), FL_ELIMIT);
    fl_buf_fini(&buf);
}

static void the_reference_is_a_markdown_table_a_section(void **state)
{
    (void)state;
    struct fl_buf buf = {0};
    unsigned rows = 0, heads = 0;
    assert_int_equal(fl_opt_write_reference(opts, &buf), 0);
    struct fl_bytes rest = fl_buf_bytes(&buf), line;
    while (fl_bytes_next(&rest, '\n', &line)) {
        if (line.n == 0 || fl_bytes_has_prefix(line, FL_BYTES("**")))
            continue;
        unsigned bars = 0;
        for (size_t i = 0; i < line.n; i++)
            bars += line.p[i] == '|' && (i == 0 || line.p[i - 1] != '\\');
        assert_int_equal(bars, 6);
        rows += fl_bytes_has_prefix(line, FL_BYTES("| `--"));
        heads += fl_bytes_has_prefix(line, FL_BYTES("| ---"));
    }
    assert_int_equal(rows, ROWS);
    assert_int_equal(heads, 2);
    assert_true(
        fl_bytes_find(fl_buf_bytes(&buf),
                      FL_BYTES("| `--port N`, `--listen-port`, `-p` | `T_PORT` | `9002` | 1 "
                               "to 65535 | Where to listen. |\n")) < fl_buf_size(&buf));
    fl_buf_fini(&buf);
}

#define OPT_TEST(test) cmocka_unit_test_setup_teardown(test, clear_environment, clear_environment)

int main(void)
{
    const struct CMUnitTest tests[] = {
        OPT_TEST(defaults_fill_what_is_not_given),
        OPT_TEST(good_values),
        OPT_TEST(bad_values_are_named_with_their_rule),
        OPT_TEST(a_very_long_value_is_shown_by_its_beginning),
        OPT_TEST(operands_stand_last_in_their_order),
        OPT_TEST(an_action_works_whatever_else_is_wrong),
        OPT_TEST(text_is_trimmed_and_empty_text_is_unset),
        OPT_TEST(lists_collect_every_occurrence),
        OPT_TEST(the_environment_stands_between_default_and_flag),
        OPT_TEST(a_bad_variable_is_named_even_if_a_flag_wins),
        OPT_TEST(two_variables_of_one_option_must_agree),
        OPT_TEST(one_option_is_set_from_text),
        OPT_TEST(a_bad_default_is_found_by_any_parse),
        OPT_TEST(a_table_is_checked_as_a_whole),
        OPT_TEST(help_is_wrapped_at_a_hundred_columns),
        OPT_TEST(help_names_every_row_and_fails_with_its_buffer),
        OPT_TEST(the_reference_is_a_markdown_table_a_section),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
