/* SPDX-License-Identifier: Apache-2.0 */
#include "base/opt.h"

static bool is_same(const char *a, const char *b)
{
    return a != NULL && b != NULL && strcmp(a, b) == 0;
}

/* The word that both rows answer to, or NULL. */
static const char *common(const char *a, const char *a_alias, const char *b, const char *b_alias)
{
    if (is_same(a, b) || is_same(a, b_alias))
        return a;
    return is_same(a_alias, b) || is_same(a_alias, b_alias) ? a_alias : NULL;
}

static int check_pair(const struct fl_opt *a, const struct fl_opt *b, struct fl_error *err)
{
    const char *name = common(a->name, a->alias, b->name, b->alias);
    if (name != NULL)
        return fl_error_set(err, FL_ECONFIG, "--%s: two rows have this name", name);
    const char *env = common(a->env, a->env_alias, b->env, b->env_alias);
    if (env != NULL)
        return fl_error_set(err, FL_ECONFIG, "%s: two rows have this variable", env);
    if (a->short_name != 0 && a->short_name == b->short_name)
        return fl_error_set(err, FL_ECONFIG, "-%c: two rows have this letter", a->short_name);
    return 0;
}

static int check_default(const struct fl_opt *opt, struct fl_error *err)
{
    union {
        bool flag;
        uint32_t u32;
        uint64_t u64;
        double real;
        const char *text;
        int word;
    } field;
    struct fl_opt row = *opt;

    if (opt->def == NULL || opt->type == FL_OPT_LIST)
        return 0;
    row.off = 0;
    int rc = fl_opt_set(&row, &field, opt->def, err);
    if (rc < 0)
        fl_error_prefix(err, "default");
    return rc;
}

static int check_row(const struct fl_opt *opt, struct fl_error *err)
{
    if (opt->help == NULL || !fl_bytes_has_suffix(fl_bytes_of(opt->help), FL_BYTES(".")))
        return fl_error_set(err, FL_ECONFIG, "--%s: help must end in a full stop", opt->name);
    if (opt->env == NULL && opt->env_alias != NULL)
        return fl_error_set(err, FL_ECONFIG, "--%s: env_alias without env", opt->name);
    if (opt->type == FL_OPT_ENUM && (opt->words == NULL || opt->words[0] == NULL))
        return fl_error_set(err, FL_ECONFIG, "--%s: an enum needs words", opt->name);
    return check_default(opt, err);
}

int fl_opt_check(const struct fl_opt *opts, struct fl_error *err)
{
    size_t count = 0;
    for (const struct fl_opt *opt = opts; opt->name != NULL; opt++) {
        int rc = check_row(opt, err);
        for (const struct fl_opt *other = opts; rc == 0 && other < opt; other++)
            rc = check_pair(other, opt, err);
        if (rc < 0)
            return rc;
        if (++count > FL_OPT_ROWS_MAX)
            return fl_error_set(err, FL_ECONFIG, "--%s: more than %d rows", opt->name,
                                FL_OPT_ROWS_MAX);
    }
    return 0;
}
