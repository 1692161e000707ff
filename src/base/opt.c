/* SPDX-License-Identifier: Apache-2.0 */
#include "base/opt.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"

/* One option's value between text and field. */
struct value {
    union {
        bool flag;
        uint64_t number;
        double real;
        int word;
    };
    const char *text; /* of FL_OPT_STRING and FL_OPT_LIST */
};

struct unit {
    const char *suffix;
    uint64_t factor;
};

static const struct unit byte_units[] = {
    {"", 1},
    {"KiB", UINT64_C(1) << 10},
    {"MiB", UINT64_C(1) << 20},
    {"GiB", UINT64_C(1) << 30},
    {"KB", 1000},
    {"MB", 1000000},
    {"GB", 1000000000},
    {NULL, 0},
};
static const struct unit duration_units[] = {
    {"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {NULL, 0},
};
static const struct unit duration_ms_units[] = {
    {"", 1}, {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {NULL, 0},
};

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static struct fl_bytes trim(const char *text)
{
    while (is_space(*text))
        text++;
    size_t n = strlen(text);
    while (n > 0 && is_space(text[n - 1]))
        n--;
    return fl_bytes(text, n);
}

/* ---- text to value: each returns NULL or the rule that was broken ---- */

static const char *read_bool(struct fl_bytes text, struct value *value)
{
    static const char *const words[] = {"true", "1", "yes", "on", "false", "0", "no", "off"};
    for (size_t i = 0; i < FL_ARRAY_LEN(words); i++) {
        if (fl_bytes_eq_nocase(text, fl_bytes_of(words[i]))) {
            value->flag = i < FL_ARRAY_LEN(words) / 2;
            return NULL;
        }
    }
    return "must be true, 1, yes, on, false, 0, no or off";
}

static const char *read_real(struct fl_bytes text, struct value *value)
{
    static const char rule[] = "is not a finite decimal number";
    char copy[64];
    char *end;

    /* strtod also reads hexadecimal, inf and nan. */
    if (text.n == 0 || text.p[0] == '+' || !fl_bytes_to_cstr(text, copy, sizeof(copy)) ||
        strspn(copy, "0123456789.eE+-") != text.n)
        return rule;
    value->real = strtod(copy, &end);
    return *end == 0 && isfinite(value->real) ? NULL : rule;
}

static const char *read_whole(struct fl_bytes text, struct value *value)
{
    size_t digits = 0;
    while (digits < text.n && text.p[digits] >= '0' && text.p[digits] <= '9')
        digits++;
    if (text.n == 0 || digits < text.n)
        return "is not a decimal number";
    return fl_bytes_to_u64(text, UINT64_MAX, &value->number) ? NULL : "is too large";
}

/* 1*DIGIT [ "." 1*DIGIT ] suffix, exactly: a fraction must come out whole in the field's unit. */
static const char *read_scaled(struct fl_bytes text, const struct unit *units, struct value *value)
{
    static const char rule[] = "is not a number with a known unit";
    struct value whole, fraction = {.number = 0};
    uint64_t fraction_scale = 1;
    size_t at = 0;

    while (at < text.n && ((text.p[at] >= '0' && text.p[at] <= '9') || text.p[at] == '.'))
        at++;
    struct fl_bytes number = fl_bytes_head(text, at);
    struct fl_bytes suffix = fl_bytes_trim(fl_bytes_skip(text, at));
    size_t dot = fl_bytes_index(number, '.');
    struct fl_bytes tail = fl_bytes_skip(number, dot + 1);
    if (read_whole(fl_bytes_head(number, dot), &whole) != NULL)
        return dot == 0 || number.n == 0 ? rule : "is too large";
    if (dot < number.n) {
        if (tail.n > 9 || read_whole(tail, &fraction) != NULL)
            return rule;
        for (size_t i = 0; i < tail.n; i++)
            fraction_scale *= 10;
    }
    for (; units->suffix != NULL; units++) {
        if (!fl_bytes_eq(suffix, fl_bytes_of(units->suffix)))
            continue;
        /* fraction < 10^9 and no factor is above 2^30: no overflow here. */
        uint64_t part = fraction.number * units->factor;
        if (part % fraction_scale != 0)
            return "is finer than its unit";
        if (__builtin_mul_overflow(whole.number, units->factor, &value->number) ||
            __builtin_add_overflow(value->number, part / fraction_scale, &value->number))
            return "is too large";
        return NULL;
    }
    return rule;
}

static int bad_value(const char *origin, struct fl_bytes text, const char *rule,
                     struct fl_error *err)
{
    /* A value may be a whole file by mistake; its beginning is enough to recognise it. */
    struct fl_bytes head = fl_bytes_head(text, 80);
    return fl_error_set(err, FL_ECONFIG, "%s: \"%.*s%s\" %s", origin, FL_FMT(head),
                        head.n < text.n ? "..." : "", rule);
}

static int bad_word(const struct fl_opt *opt, const char *origin, struct fl_bytes text,
                    struct fl_error *err)
{
    char words[256];
    size_t at = 0;

    words[0] = 0;
    for (size_t i = 0; opt->words[i] != NULL; i++) {
        size_t n = strlen(opt->words[i]);
        if (at + n + 3 > sizeof(words))
            break;
        if (i > 0) {
            memcpy(words + at, ", ", 2);
            at += 2;
        }
        memcpy(words + at, opt->words[i], n + 1);
        at += n;
    }
    char rule[sizeof(words) + 32];
    snprintf(rule, sizeof(rule), "is not one of: %s", words);
    return bad_value(origin, text, rule, err);
}

static uint64_t upper_bound(const struct fl_opt *opt)
{
    uint64_t widest = opt->type == FL_OPT_U32 ? UINT32_MAX : UINT64_MAX;
    return opt->max == 0 || opt->max > widest ? widest : opt->max;
}

static int check_range(const struct fl_opt *opt, const char *origin, struct fl_bytes text,
                       const struct value *value, struct fl_error *err)
{
    char rule[128];
    const char *unit = opt->type == FL_OPT_DURATION ? " ms" : "";

    if (opt->type == FL_OPT_F64) {
        bool bounded = opt->fmin != 0 || opt->fmax != 0;
        if (!bounded || (value->real >= opt->fmin && value->real <= opt->fmax))
            return 0;
        if (isinf(opt->fmax))
            snprintf(rule, sizeof(rule), "must be at least %g", opt->fmin);
        else
            snprintf(rule, sizeof(rule), "must be from %g to %g", opt->fmin, opt->fmax);
        return bad_value(origin, text, rule, err);
    }
    uint64_t max = upper_bound(opt);
    if (value->number >= opt->min && value->number <= max)
        return 0;
    if (opt->max == 0 && value->number < opt->min)
        snprintf(rule, sizeof(rule), "must be at least %" PRIu64 "%s", opt->min, unit);
    else
        snprintf(rule, sizeof(rule), "must be from %" PRIu64 " to %" PRIu64 "%s", opt->min, max,
                 unit);
    return bad_value(origin, text, rule, err);
}

static int read_word(const struct fl_opt *opt, const char *origin, struct fl_bytes text,
                     struct value *value, struct fl_error *err)
{
    for (int i = 0; opt->words[i] != NULL; i++) {
        if (fl_bytes_eq(text, fl_bytes_of(opt->words[i]))) {
            value->word = i;
            return 0;
        }
    }
    return bad_word(opt, origin, text, err);
}

/* `origin` names where `text` comes from: "--port", "FAIRLEAD_PORT". */
static int read_value(const struct fl_opt *opt, const char *origin, const char *text,
                      struct value *value, struct fl_error *err)
{
    struct fl_bytes bare = trim(text);
    const char *rule = NULL;

    *value = (struct value){.number = 0, .text = (const char *)bare.p};
    switch (opt->type) {
    case FL_OPT_BOOL:
        rule = read_bool(bare, value);
        break;
    case FL_OPT_U32:
    case FL_OPT_U64:
        rule = read_whole(bare, value);
        break;
    case FL_OPT_F64:
        rule = read_real(bare, value);
        break;
    case FL_OPT_BYTES:
        rule = read_scaled(bare, byte_units, value);
        break;
    case FL_OPT_DURATION:
        rule = read_scaled(bare, opt->unit_ms ? duration_ms_units : duration_units, value);
        break;
    case FL_OPT_ENUM:
        return read_word(opt, origin, bare, value, err);
    case FL_OPT_STRING:
    case FL_OPT_LIST:
    case FL_OPT_ACTION:
        return 0;
    }
    if (rule != NULL)
        return bad_value(origin, bare, rule, err);
    return opt->type == FL_OPT_BOOL ? 0 : check_range(opt, origin, bare, value, err);
}

static bool is_same_value(const struct fl_opt *opt, const struct value *a, const struct value *b)
{
    switch (opt->type) {
    case FL_OPT_BOOL:
        return a->flag == b->flag;
    case FL_OPT_F64:
        return !(a->real < b->real) && !(a->real > b->real);
    case FL_OPT_ENUM:
        return a->word == b->word;
    case FL_OPT_STRING:
    case FL_OPT_LIST:
        return fl_bytes_eq(trim(a->text), trim(b->text));
    default:
        return a->number == b->number;
    }
}

/* ---- value to field ---- */

static void *field_of(const struct fl_opt *opt, void *config)
{
    return (char *)config + opt->off;
}

static void list_add(struct fl_opt_list *list, struct fl_bytes item)
{
    list->items = fl_realloc(list->items, list->count + 1, sizeof(*list->items));
    list->items[list->count++] = fl_strndup(item.p, item.n);
}

static void list_fini(struct fl_opt_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        fl_free((void *)(uintptr_t)list->items[i]);
    fl_free(list->items);
    *list = (struct fl_opt_list){0};
}

static void list_add_all(struct fl_opt_list *list, const char *text)
{
    struct fl_bytes rest = trim(text), item;
    while (fl_bytes_next(&rest, ',', &item)) {
        item = fl_bytes_trim(item);
        if (item.n > 0)
            list_add(list, item);
    }
}

static void store(const struct fl_opt *opt, void *config, const struct value *value)
{
    void *field = field_of(opt, config);
    switch (opt->type) {
    case FL_OPT_BOOL:
        *(bool *)field = value->flag;
        break;
    case FL_OPT_U32:
        *(uint32_t *)field = (uint32_t)value->number;
        break;
    case FL_OPT_U64:
    case FL_OPT_BYTES:
    case FL_OPT_DURATION:
        *(uint64_t *)field = value->number;
        break;
    case FL_OPT_F64:
        *(double *)field = value->real;
        break;
    case FL_OPT_STRING:
        *(const char **)field = value->text;
        break;
    case FL_OPT_LIST:
        list_add(field, trim(value->text));
        break;
    case FL_OPT_ENUM:
        *(int *)field = value->word;
        break;
    case FL_OPT_ACTION:
        break;
    }
}

static int set_default(const struct fl_opt *opt, void *config, struct fl_error *err)
{
    struct value value;

    if (opt->def == NULL || opt->type == FL_OPT_ACTION)
        return 0;
    if (opt->type == FL_OPT_LIST) {
        list_add_all(field_of(opt, config), opt->def);
        return 0;
    }
    int rc = read_value(opt, opt->name, opt->def, &value, err);
    if (rc < 0) {
        fl_error_prefix(err, "default");
        return rc;
    }
    store(opt, config, &value);
    return 0;
}

int fl_opt_set(const struct fl_opt *opt, void *config, const char *text, struct fl_error *err)
{
    struct value value;
    char origin[128];

    snprintf(origin, sizeof(origin), "--%s", opt->name);
    int rc = read_value(opt, origin, text, &value, err);
    if (rc < 0)
        return rc;
    store(opt, config, &value);
    return 0;
}

void fl_opt_fini(const struct fl_opt *opts, void *config)
{
    for (const struct fl_opt *opt = opts; opt->name != NULL; opt++) {
        if (opt->type == FL_OPT_LIST)
            list_fini(field_of(opt, config));
    }
}

/* ---- the environment ---- */

static void mark_given(struct fl_opt_result *result, const struct fl_opt *opts,
                       const struct fl_opt *opt)
{
    size_t row = (size_t)(opt - opts);
    assert(row < FL_OPT_ROWS_MAX);
    result->given[row / 64] |= UINT64_C(1) << (row % 64);
}

bool fl_opt_is_given(const struct fl_opt_result *result, const struct fl_opt *opts,
                     const struct fl_opt *opt)
{
    size_t row = (size_t)(opt - opts);
    assert(row < FL_OPT_ROWS_MAX);
    return (result->given[row / 64] >> (row % 64) & 1) != 0;
}

/* Cuts trailing blanks where the text stands, because text options lend it to the program. */
static const char *trim_in_place(char *text)
{
    struct fl_bytes bare = trim(text);
    text += (const char *)bare.p - text;
    text[bare.n] = 0;
    return text;
}

/* NULL when unset or empty. */
static const char *variable(const char *name)
{
    char *text = name == NULL ? NULL : getenv(name);
    if (text == NULL || trim(text).n == 0)
        return NULL;
    return trim_in_place(text);
}

static int set_from_environment(const struct fl_opt *opt, void *config, bool *given,
                                struct fl_error *err)
{
    const char *names[2] = {opt->env, opt->env_alias};
    const char *texts[2] = {variable(opt->env), variable(opt->env_alias)};
    struct value values[2];

    for (int i = 0; i < 2; i++) {
        if (texts[i] == NULL)
            continue;
        int rc = read_value(opt, names[i], texts[i], &values[i], err);
        if (rc < 0)
            return rc;
    }
    *given = texts[0] != NULL || texts[1] != NULL;
    if (!*given)
        return 0;
    if (texts[0] != NULL && texts[1] != NULL && !is_same_value(opt, &values[0], &values[1]))
        return fl_error_set(err, FL_ECONFIG,
                            "%s=%.80s and %s=%.80s set one option to different values", names[0],
                            texts[0], names[1], texts[1]);
    int chosen = texts[0] == NULL;
    if (opt->type == FL_OPT_LIST) {
        list_fini(field_of(opt, config));
        list_add_all(field_of(opt, config), texts[chosen]);
    } else {
        store(opt, config, &values[chosen]);
    }
    return 0;
}

/* ---- the command line ---- */

enum scan_kind { SCAN_OPTION, SCAN_OPERAND, SCAN_END, SCAN_BAD };

struct scan {
    int argc, at; /* argv[at] is next */
    char **argv;
    char *cluster; /* short options left in the present word, or NULL */
    bool ended;    /* behind "--" */
    /* what was found */
    const struct fl_opt *opt;
    bool by_alias;
    char spelled[96]; /* "--name" or "-n", for messages */
    char *text;       /* NULL: a bool standing alone, or an action */
};

static bool has_value(const struct fl_opt *opt)
{
    return opt->type != FL_OPT_BOOL && opt->type != FL_OPT_ACTION;
}

static enum scan_kind scan_value(struct scan *scan, struct fl_error *err)
{
    if (!has_value(scan->opt) || scan->text != NULL)
        return SCAN_OPTION;
    if (scan->at >= scan->argc) {
        fl_error_set(err, FL_ECONFIG, "%s: a value is missing", scan->spelled);
        return SCAN_BAD;
    }
    scan->text = scan->argv[scan->at++];
    return SCAN_OPTION;
}

static enum scan_kind scan_short(const struct fl_opt *opts, struct scan *scan, struct fl_error *err)
{
    char letter = *scan->cluster++;
    snprintf(scan->spelled, sizeof(scan->spelled), "-%c", letter);
    scan->by_alias = false;
    scan->text = NULL;
    for (scan->opt = opts; scan->opt->name != NULL; scan->opt++) {
        if (scan->opt->short_name == letter)
            break;
    }
    if (scan->opt->name == NULL) {
        fl_error_set(err, FL_ECONFIG, "unknown option -%c", letter);
        return SCAN_BAD;
    }
    if (*scan->cluster == 0) {
        scan->cluster = NULL;
    } else if (has_value(scan->opt)) {
        scan->text = scan->cluster + (*scan->cluster == '=');
        scan->cluster = NULL;
    }
    return scan_value(scan, err);
}

static enum scan_kind scan_long(const struct fl_opt *opts, struct scan *scan, char *word,
                                struct fl_error *err)
{
    struct fl_bytes name = fl_bytes_of(word + 2);
    char *equals = strchr(word, '=');
    if (equals != NULL)
        name.n = (size_t)(equals - (word + 2));
    struct fl_bytes shown = fl_bytes_head(name, sizeof(scan->spelled) - 3);
    snprintf(scan->spelled, sizeof(scan->spelled), "--%.*s", FL_FMT(shown));
    for (scan->opt = opts; scan->opt->name != NULL; scan->opt++) {
        scan->by_alias =
            scan->opt->alias != NULL && fl_bytes_eq(name, fl_bytes_of(scan->opt->alias));
        if (scan->by_alias || fl_bytes_eq(name, fl_bytes_of(scan->opt->name)))
            break;
    }
    if (scan->opt->name == NULL) {
        fl_error_set(err, FL_ECONFIG, "unknown option %s", scan->spelled);
        return SCAN_BAD;
    }
    scan->text = equals == NULL ? NULL : equals + 1;
    if (scan->opt->type == FL_OPT_ACTION && scan->text != NULL) {
        fl_error_set(err, FL_ECONFIG, "%s takes no value", scan->spelled);
        return SCAN_BAD;
    }
    return scan_value(scan, err);
}

static enum scan_kind scan_next(const struct fl_opt *opts, struct scan *scan, struct fl_error *err)
{
    if (scan->cluster != NULL)
        return scan_short(opts, scan, err);
    if (scan->at >= scan->argc)
        return SCAN_END;
    char *word = scan->argv[scan->at++];
    if (scan->ended || word[0] != '-' || word[1] == 0) {
        scan->text = word;
        return SCAN_OPERAND;
    }
    if (word[1] != '-') {
        scan->cluster = word + 1;
        return scan_short(opts, scan, err);
    }
    if (word[2] == 0) {
        scan->ended = true;
        return scan_next(opts, scan, err);
    }
    return scan_long(opts, scan, word, err);
}

static const struct fl_opt *find_action(const struct fl_opt *opts, int argc, char **argv)
{
    struct scan scan = {.argc = argc, .argv = argv, .at = 1};
    for (;;) {
        enum scan_kind kind = scan_next(opts, &scan, NULL);
        if (kind == SCAN_END || kind == SCAN_BAD)
            return NULL;
        if (kind == SCAN_OPTION && scan.opt->type == FL_OPT_ACTION)
            return scan.opt;
    }
}

/* What a row got on the command line, by its name [0] and by its alias [1]. */
struct seen {
    const char *texts[2];
};

static int set_from_argument(const struct scan *scan, void *config, struct seen *seen,
                             struct fl_error *err)
{
    const struct fl_opt *opt = scan->opt;
    struct value value;
    const char *text = scan->text == NULL ? "true" : trim_in_place(scan->text);
    bool is_first = seen->texts[0] == NULL && seen->texts[1] == NULL;

    seen->texts[scan->by_alias] = text;
    if (opt->type == FL_OPT_STRING && *text == 0) {
        *(const char **)field_of(opt, config) = opt->def;
        return 0;
    }
    int rc = read_value(opt, scan->spelled, text, &value, err);
    if (rc < 0)
        return rc;
    const char *other = seen->texts[!scan->by_alias];
    if (opt->type != FL_OPT_LIST && other != NULL) {
        struct value other_value;
        rc = read_value(opt, scan->spelled, other, &other_value, err);
        if (rc < 0)
            return rc;
        if (!is_same_value(opt, &value, &other_value))
            return fl_error_set(err, FL_ECONFIG,
                                "--%s %.80s and --%s %.80s set one option to different values",
                                opt->name, seen->texts[0], opt->alias, seen->texts[1]);
    }
    if (opt->type == FL_OPT_LIST) {
        if (is_first) /* the command line replaces what the environment or the default gave */
            list_fini(field_of(opt, config));
        if (*text == 0)
            return 0;
    }
    store(opt, config, &value);
    return 0;
}

static int set_from_arguments(const struct fl_opt *opts, size_t count, void *config, int argc,
                              char **argv, struct fl_opt_result *result, struct fl_error *err)
{
    struct scan scan = {.argc = argc, .argv = argv, .at = 1};
    struct seen *seen = fl_calloc(count, sizeof(*seen));
    char **operands = fl_calloc((size_t)argc, sizeof(*operands));
    int operand_count = 0, kept = 1, rc = 0;

    enum scan_kind kind;
    do {
        int from = scan.at;
        kind = scan_next(opts, &scan, err);
        if (kind == SCAN_BAD) {
            rc = FL_ECONFIG;
        } else if (kind == SCAN_OPTION) {
            rc = set_from_argument(&scan, config, &seen[scan.opt - opts], err);
            if (scan.text == NULL || *scan.text != 0)
                mark_given(result, opts, scan.opt);
        } else if (kind == SCAN_OPERAND) {
            operands[operand_count++] = scan.text;
        }
        /* Everything but the operand itself moves up; a "--" before it stays among the options. */
        for (; from < scan.at - (kind == SCAN_OPERAND); from++)
            argv[kept++] = argv[from];
    } while (rc == 0 && kind != SCAN_END);
    if (rc == 0) {
        memcpy(argv + argc - operand_count, operands, (size_t)operand_count * sizeof(*operands));
        result->operand_count = operand_count;
        result->operands = argv + argc - operand_count;
    }
    fl_free(operands);
    fl_free(seen);
    return rc;
}

int fl_opt_parse(const struct fl_opt *opts, void *config, int argc, char **argv,
                 struct fl_opt_result *result, struct fl_error *err)
{
    size_t count = 0;

    *result = (struct fl_opt_result){.operands = argv + argc};
    for (const struct fl_opt *opt = opts; opt->name != NULL; opt++, count++) {
        int rc = set_default(opt, config, err);
        if (rc < 0)
            return rc;
    }
    result->action = find_action(opts, argc, argv);
    if (result->action != NULL)
        return 0;
    for (const struct fl_opt *opt = opts; opt->name != NULL; opt++) {
        bool given = false;
        int rc = set_from_environment(opt, config, &given, err);
        if (rc < 0)
            return rc;
        if (given)
            mark_given(result, opts, opt);
    }
    return set_from_arguments(opts, count, config, argc, argv, result, err);
}
