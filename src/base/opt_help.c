/* SPDX-License-Identifier: Apache-2.0 */
/* What the option tables say to people: --help and the reference page. Both write through one
 * fl_buf and keep its first error. */
#include <inttypes.h>
#include <math.h>

#include "base/opt.h"

#define HELP_COLUMNS 100
#define HELP_INDENT 32 /* where the sentences begin */
#define HELP_GAP 2

struct page {
    struct fl_buf *out;
    int rc;
    size_t column;
};

static void put(struct page *page, struct fl_bytes text)
{
    if (page->rc == 0)
        page->rc = fl_buf_append(page->out, text);
    page->column += text.n;
}

static void put_text(struct page *page, const char *text)
{
    put(page, fl_bytes_of(text));
}

static void end_line(struct page *page)
{
    put_text(page, "\n");
    page->column = 0;
}

static void pad_to(struct page *page, size_t column)
{
    while (page->column < column)
        put_text(page, " ");
}

/* Writes the words of `text`, starting new lines at `indent`. A word longer than a line stays
 * whole. */
static void put_wrapped(struct page *page, const char *text, size_t indent)
{
    struct fl_bytes rest = fl_bytes_of(text), word;

    while (fl_bytes_next(&rest, ' ', &word)) {
        if (word.n == 0)
            continue;
        bool first = page->column <= indent;
        if (!first && page->column + 1 + word.n > HELP_COLUMNS) {
            end_line(page);
            first = true;
        }
        if (first)
            pad_to(page, indent);
        else
            put_text(page, " ");
        put(page, word);
    }
}

static const char *argument_of(const struct fl_opt *opt)
{
    if (opt->arg != NULL)
        return opt->arg;
    switch (opt->type) {
    case FL_OPT_BOOL:
    case FL_OPT_ACTION:
        return NULL;
    case FL_OPT_U32:
    case FL_OPT_U64:
    case FL_OPT_F64:
        return "N";
    case FL_OPT_BYTES:
        return "SIZE";
    case FL_OPT_DURATION:
        return "TIME";
    case FL_OPT_STRING:
    case FL_OPT_LIST:
        return "TEXT";
    case FL_OPT_ENUM:
        return "WORD";
    }
    return NULL;
}

/* What a number or word may be; "" when there is nothing to say. */
static int write_rule(const struct fl_opt *opt, struct fl_buf *out)
{
    const char *unit = opt->type == FL_OPT_DURATION ? " ms" : "";

    switch (opt->type) {
    case FL_OPT_ENUM: {
        int rc = fl_buf_printf(out, "One of");
        for (size_t i = 0; rc == 0 && opt->words[i] != NULL; i++)
            rc = fl_buf_printf(out, "%s %s", i == 0 ? "" : ",", opt->words[i]);
        return rc;
    }
    case FL_OPT_F64:
        if (opt->fmin == 0 && opt->fmax == 0)
            return 0;
        if (isinf(opt->fmax))
            return fl_buf_printf(out, "At least %g", opt->fmin);
        return fl_buf_printf(out, "%g to %g", opt->fmin, opt->fmax);
    case FL_OPT_U32:
    case FL_OPT_U64:
    case FL_OPT_BYTES:
    case FL_OPT_DURATION:
        if (opt->max != 0 && opt->max < UINT64_MAX)
            return fl_buf_printf(out, "%" PRIu64 " to %" PRIu64 "%s", opt->min, opt->max, unit);
        if (opt->min != 0)
            return fl_buf_printf(out, "At least %" PRIu64 "%s", opt->min, unit);
        return 0;
    default:
        return 0;
    }
}

/* "[default 3; environment A or B]", its parts as far as there are any. */
static int write_source(const struct fl_opt *opt, struct fl_buf *out)
{
    int rc = 0;

    if (opt->def == NULL && opt->env == NULL)
        return 0;
    rc = fl_buf_printf(out, " [");
    if (rc == 0 && opt->def != NULL)
        rc = fl_buf_printf(out, "default %s", opt->def[0] == 0 ? "\"\"" : opt->def);
    if (rc == 0 && opt->env != NULL)
        rc = fl_buf_printf(out, "%senvironment %s", opt->def == NULL ? "" : "; ", opt->env);
    if (rc == 0 && opt->env != NULL && opt->env_alias != NULL)
        rc = fl_buf_printf(out, " or %s", opt->env_alias);
    return rc == 0 ? fl_buf_append_byte(out, ']') : rc;
}

static int write_sentences(const struct fl_opt *opt, struct fl_buf *out)
{
    int rc = fl_buf_printf(out, "%s", opt->help == NULL ? "" : opt->help);
    size_t before = fl_buf_size(out);
    if (rc == 0)
        rc = fl_buf_append_byte(out, ' ');
    if (rc == 0)
        rc = write_rule(opt, out);
    if (rc == 0 && fl_buf_size(out) > before + 1)
        rc = fl_buf_append_byte(out, '.');
    if (rc == 0 && opt->type == FL_OPT_LIST)
        rc = fl_buf_printf(out, "May be repeated.");
    if (rc == 0)
        rc = write_source(opt, out);
    return rc == 0 ? fl_buf_append_byte(out, 0) : rc;
}

static void put_row(struct page *page, const struct fl_opt *opt)
{
    struct fl_buf sentences = {0};
    const char *argument = argument_of(opt);
    char letter[] = "  -x, ";

    letter[3] = opt->short_name;
    put_text(page, opt->short_name == 0 ? "      " : letter);
    put_text(page, "--");
    put_text(page, opt->name);
    if (opt->alias != NULL) {
        put_text(page, ", --");
        put_text(page, opt->alias);
    }
    if (argument != NULL) {
        put_text(page, " ");
        put_text(page, argument);
    }
    if (page->column + HELP_GAP > HELP_INDENT)
        end_line(page);
    int rc = write_sentences(opt, &sentences);
    if (rc == 0)
        put_wrapped(page, (const char *)sentences.head, HELP_INDENT);
    else if (page->rc == 0)
        page->rc = rc;
    end_line(page);
    fl_buf_fini(&sentences);
}

int fl_opt_write_help(const struct fl_opt *opts, const char *usage, const char *about,
                      struct fl_buf *out)
{
    struct page page = {.out = out};

    put_text(&page, "Usage: ");
    put_text(&page, usage);
    end_line(&page);
    if (about != NULL) {
        end_line(&page);
        put_wrapped(&page, about, 0);
        end_line(&page);
    }
    for (const struct fl_opt *opt = opts; opt->name != NULL; opt++) {
        if (opt == opts || opt->section != NULL) {
            end_line(&page);
            put_text(&page, opt->section == NULL ? "Options" : opt->section);
            put_text(&page, ":");
            end_line(&page);
        }
        put_row(&page, opt);
    }
    return page.rc;
}

/* ---- the reference page ---- */

/* A cell of a Markdown table: a bar would end it, a newline the row. */
static void put_cell(struct page *page, const char *text)
{
    for (; *text != 0; text++) {
        if (*text == '|')
            put_text(page, "\\|");
        else
            put(page, *text == '\n' ? FL_BYTES(" ") : fl_bytes(text, 1));
    }
}

static void put_code(struct page *page, const char *lead, const char *text)
{
    if (text == NULL)
        return;
    put_text(page, lead);
    put_text(page, "`");
    put_cell(page, text);
    put_text(page, "`");
}

static void put_reference_row(struct page *page, const struct fl_opt *opt)
{
    struct fl_buf rule = {0};
    const char *argument = argument_of(opt);
    char letter[] = "-x";

    letter[1] = opt->short_name;
    put_text(page, "| `--");
    put_text(page, opt->name);
    if (argument != NULL) {
        put_text(page, " ");
        put_cell(page, argument);
    }
    put_text(page, "`");
    if (opt->alias != NULL) {
        put_text(page, ", `--");
        put_text(page, opt->alias);
        put_text(page, "`");
    }
    if (opt->short_name != 0)
        put_code(page, ", ", letter);
    put_text(page, " | ");
    put_code(page, "", opt->env);
    put_code(page, opt->env == NULL ? "" : ", ", opt->env_alias);
    put_text(page, " | ");
    put_code(page, "", opt->def);
    put_text(page, " | ");
    int rc = write_rule(opt, &rule);
    if (rc == 0)
        rc = fl_buf_append_byte(&rule, 0);
    if (rc == 0)
        put_cell(page, (const char *)rule.head);
    else if (page->rc == 0)
        page->rc = rc;
    put_text(page, " | ");
    put_cell(page, opt->help == NULL ? "" : opt->help);
    put_text(page, " |\n");
    fl_buf_fini(&rule);
}

int fl_opt_write_reference(const struct fl_opt *opts, struct fl_buf *out)
{
    struct page page = {.out = out};

    for (const struct fl_opt *opt = opts; opt->name != NULL; opt++) {
        if (opt->section != NULL && opt != opts)
            put_text(&page, "\n");
        if (opt->section != NULL) {
            put_text(&page, "**");
            put_cell(&page, opt->section);
            put_text(&page, "**\n\n");
        }
        if (opt == opts || opt->section != NULL)
            put_text(&page, "| Option | Environment | Default | Values | Meaning |\n"
                            "| --- | --- | --- | --- | --- |\n");
        put_reference_row(&page, opt);
    }
    return page.rc;
}
