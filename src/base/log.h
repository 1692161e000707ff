/* SPDX-License-Identifier: Apache-2.0 */
/* Logging to stderr, one line an entry, written with one write(2). Any thread.
 *
 * Levels: error needs a person, warn means degraded, info is a change of state, debug is per
 * request. A failure is logged once, by whoever handles it, as `what: key=value key=value`.
 * Prompts, token ids, bodies and credentials are never logged. A peer's misbehaviour is counted
 * always and logged through fl_log_limited().
 *
 * Formats: text "2026-11-30T12:00:00.123Z warn what: key=value", or JSON lines
 * {"ts":"...","level":"warn","msg":"what","key":"value"}. Control bytes, quotes and bytes that are
 * not UTF-8 are escaped in both, so a peer cannot forge a line. */
#ifndef FL_BASE_LOG_H
#define FL_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"

enum fl_log_level { FL_LOG_ERROR, FL_LOG_WARN, FL_LOG_INFO, FL_LOG_DEBUG, FL_LOG_TRACE };
enum fl_log_format { FL_LOG_AUTO, FL_LOG_TEXT, FL_LOG_JSON }; /* auto: text on a terminal */

/* Process-wide; set once by main before threads start (the level may change any time). */
void fl_log_set_level(enum fl_log_level level);
void fl_log_set_format(enum fl_log_format format);
/* error or critical, warn or warning, info or notice, debug, trace, in any case; else false. */
bool fl_log_level_parse(const char *word, enum fl_log_level *level);
bool fl_log_is_on(enum fl_log_level level);

/* `what` is fixed text; `format` gives "key=value key=value" (values with blanks: key="a b"), or is
 * NULL. Text of a peer goes in as fl_log_value(), or its blanks and quotes could pass for keys of
 * ours. An entry of more than 2,047 bytes is cut. */
void fl_log(enum fl_log_level level, const char *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define FL_LOG_VALUE_TEXT 256

struct fl_log_value {
    char text[FL_LOG_VALUE_TEXT];
};

/* `bytes` quoted for a value, cut with "..." when long:
 *   fl_log(FL_LOG_WARN, "unknown model", "model=%s", fl_log_value(model).text); */
struct fl_log_value fl_log_value(struct fl_bytes bytes);

#define FL_LOG(level, ...)                                                                         \
    do {                                                                                           \
        if (fl_log_is_on(level))                                                                   \
            fl_log(level, __VA_ARGS__);                                                            \
    } while (0)

/* One of these per place (or per peer): at most one line each `every_ms`, which says how many were
 * left out. */
struct fl_log_limit {
    _Atomic uint64_t next_ms;
    _Atomic uint64_t skipped;
};

void fl_log_limited(struct fl_log_limit *limit, uint64_t now_ms, uint64_t every_ms,
                    enum fl_log_level level, const char *what, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

#endif
