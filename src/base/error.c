/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"

enum {
#define ERROR_INDEX(name, number, http, grpc, word, message) INDEX_##name,
    FL_ERROR_TABLE(ERROR_INDEX)
#undef ERROR_INDEX
};

static const struct fl_error_row rows[] = {
#define ERROR_ROW(name, number, http, grpc, word, message)                                         \
    {number, #name, http, grpc, word, message},
    FL_ERROR_TABLE(ERROR_ROW)
#undef ERROR_ROW
};

const struct fl_error_row *fl_error_row(int code)
{
    switch (code) {
#define ERROR_CASE(name, number, http, grpc, word, message)                                        \
    case number:                                                                                   \
        return &rows[INDEX_##name];
        FL_ERROR_TABLE(ERROR_CASE)
#undef ERROR_CASE
    default:
        return &rows[INDEX_FL_EINTERNAL];
    }
}

const struct fl_error_row *fl_error_rows(size_t *count)
{
    *count = FL_ARRAY_LEN(rows);
    return rows;
}

int fl_error_set(struct fl_error *err, int code, const char *format, ...)
{
    if (err == NULL)
        return code;
    /* Formatted aside, so that the old text may be an argument of the new one. */
    char text[FL_ERROR_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    memcpy(err->text, text, strlen(text) + 1);
    err->code = code;
    return code;
}

void fl_error_prefix(struct fl_error *err, const char *format, ...)
{
    if (err == NULL)
        return;
    char text[FL_ERROR_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);

    size_t at = strlen(text);
    const char *parts[] = {": ", err->text};
    for (size_t i = 0; i < FL_ARRAY_LEN(parts); i++) {
        size_t n = strnlen(parts[i], sizeof(text) - 1 - at);
        memcpy(text + at, parts[i], n);
        at += n;
    }
    text[at] = 0;
    memcpy(err->text, text, at + 1);
}
