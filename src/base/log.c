/* SPDX-License-Identifier: Apache-2.0 */
/* An entry is formatted to "key=value key=value" first, then read back pair by pair and written in
 * the chosen form. Reading back is what makes both forms agree and lets every byte that came from
 * elsewhere pass through one place that escapes. */
#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What one entry may say; more is cut. Escaping makes at most six bytes of one, and a line that is
 * longer than a pipe's atomic 4,096 bytes is rare enough. */
#define LOG_TEXT_MAX 2048
#define LOG_LINE_MAX 8192
/* Always left free, so that a cut line still gets its closing quote, brace and newline. */
#define LOG_LINE_TAIL 8

static _Atomic int log_level = FL_LOG_INFO;
static _Atomic int log_format = FL_LOG_AUTO;

static const char *const level_words[] = {"error", "warn", "info", "debug", "trace"};

struct line {
    char text[LOG_LINE_MAX];
    size_t n;
    bool json;
    bool full; /* something was cut */
};

void fl_log_set_level(enum fl_log_level level)
{
    atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

void fl_log_set_format(enum fl_log_format format)
{
    atomic_store_explicit(&log_format, (int)format, memory_order_relaxed);
}

bool fl_log_level_parse(const char *word, enum fl_log_level *level)
{
    static const struct {
        const char *word;
        enum fl_log_level level;
    } rows[] = {
        {"error", FL_LOG_ERROR},  {"critical", FL_LOG_ERROR}, {"warn", FL_LOG_WARN},
        {"warning", FL_LOG_WARN}, {"info", FL_LOG_INFO},      {"notice", FL_LOG_INFO},
        {"debug", FL_LOG_DEBUG},  {"trace", FL_LOG_TRACE},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        if (fl_bytes_eq_nocase(fl_bytes_of(word), fl_bytes_of(rows[i].word))) {
            *level = rows[i].level;
            return true;
        }
    }
    return false;
}

bool fl_log_is_on(enum fl_log_level level)
{
    return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

static bool is_json_wanted(void)
{
    int format = atomic_load_explicit(&log_format, memory_order_relaxed);
    if (format == FL_LOG_AUTO) {
        /* Asked once: two threads that both find AUTO find the same answer. */
        format = isatty(STDERR_FILENO) ? FL_LOG_TEXT : FL_LOG_JSON;
        atomic_store_explicit(&log_format, format, memory_order_relaxed);
    }
    return format == FL_LOG_JSON;
}

/* Whole or not at all. */
static void put(struct line *line, const char *text, size_t n)
{
    if (line->full || n > LOG_LINE_MAX - LOG_LINE_TAIL - line->n) {
        line->full = true;
        return;
    }
    memcpy(line->text + line->n, text, n);
    line->n += n;
}

static void put_text(struct line *line, const char *text)
{
    put(line, text, strlen(text));
}

/* Closes what is open; has its room even when the line is full. */
static void put_close(struct line *line, char byte)
{
    assert(line->n < LOG_LINE_MAX);
    line->text[line->n++] = byte;
}

/* Length of the character at `p` that may stand as it is, or 0: no control character of either
 * set (C1 ones steer terminals too), no quote or backslash, no byte that is not UTF-8. */
static size_t plain_length(struct fl_bytes b)
{
    if (b.p[0] < 0x80)
        return b.p[0] >= 0x20 && b.p[0] != 0x7f && b.p[0] != '"' && b.p[0] != '\\';
    size_t n = b.p[0] < 0xe0 ? 2 : b.p[0] < 0xf0 ? 3 : 4;
    if (n > b.n || !fl_bytes_is_utf8(fl_bytes_head(b, n)))
        return 0;
    return b.p[0] == 0xc2 && b.p[1] < 0xa0 ? 0 : n;
}

static void put_escaped(struct line *line, struct fl_bytes b)
{
    while (b.n > 0) {
        size_t n = plain_length(b);
        if (n > 0) {
            put(line, (const char *)b.p, n);
            b = fl_bytes_skip(b, n);
            continue;
        }
        char code[8];
        const char *short_form = b.p[0] == '"'    ? "\\\""
                                 : b.p[0] == '\\' ? "\\\\"
                                 : b.p[0] == '\n' ? "\\n"
                                 : b.p[0] == '\r' ? "\\r"
                                 : b.p[0] == '\t' ? "\\t"
                                                  : NULL;
        if (short_form == NULL) {
            /* JSON has no way to say a byte; its reader sees the four characters \xNN. */
            const char *lead = !line->json ? "\\x" : b.p[0] < 0x80 ? "\\u00" : "\\\\x";
            snprintf(code, sizeof(code), "%s%02x", lead, (unsigned)b.p[0]);
            short_form = code;
        }
        put_text(line, short_form);
        b = fl_bytes_skip(b, 1);
    }
}

/* ---- reading pairs back ---- */

/* Length of the quoted value at `b`, quotes included. A quote ends it only before a blank or the
 * end, and not behind a backslash: one inside belongs to the value. */
static size_t quoted_length(struct fl_bytes b)
{
    for (size_t i = 1; i < b.n; i++) {
        if (b.p[i] == '\\')
            i++;
        else if (b.p[i] == '"' && (i + 1 == b.n || b.p[i + 1] == ' '))
            return i + 1;
    }
    return b.n;
}

/* Undoes the escapes of a quoted value, as fl_log_value() writes them, into `out` of at least b.n
 * bytes. */
static struct fl_bytes unescape(struct fl_bytes b, uint8_t *out)
{
    size_t n = 0;
    for (size_t i = 0; i < b.n; i++) {
        uint8_t byte = b.p[i];
        if (byte == '\\' && i + 1 < b.n && (b.p[i + 1] == '"' || b.p[i + 1] == '\\'))
            byte = b.p[++i];
        out[n++] = byte;
    }
    return fl_bytes(out, n);
}

static void put_value(struct line *line, struct fl_bytes value)
{
    uint8_t plain[LOG_TEXT_MAX];
    bool quoted = value.n > 0 && value.p[0] == '"';

    if (quoted) {
        value = fl_bytes_skip(value, 1);
        if (value.n > 0 && value.p[value.n - 1] == '"')
            value.n--;
        value = unescape(value, plain);
    }
    if ((quoted || line->json) && !line->full) {
        put_text(line, "\"");
        if (line->full)
            return;
        put_escaped(line, value);
        put_close(line, '"');
        return;
    }
    put_escaped(line, value);
}

/* Writes the pairs of `text`; words without a key count as text of the message. */
static void put_pairs(struct line *line, struct fl_bytes text)
{
    while (text.n > 0) {
        if (text.p[0] == ' ') {
            text = fl_bytes_skip(text, 1);
            continue;
        }
        struct fl_bytes word = fl_bytes_head(text, fl_bytes_index(text, ' '));
        size_t equals = fl_bytes_index(word, '=');
        struct fl_bytes key = fl_bytes_head(word, equals);
        struct fl_bytes value = fl_bytes_skip(text, equals < word.n ? equals + 1 : 0);
        value = fl_bytes_head(value, value.n > 0 && value.p[0] == '"' ? quoted_length(value)
                                                                      : fl_bytes_index(value, ' '));
        if (equals == word.n)
            key = FL_BYTES("text");
        text = fl_bytes_skip(text, (size_t)(value.p + value.n - text.p));

        size_t before = line->n;
        put_text(line, line->json ? ",\"" : " ");
        if (line->json || equals < word.n) {
            put_escaped(line, key);
            put_text(line, line->json ? "\":" : "=");
        }
        size_t head = line->n;
        put_value(line, value);
        /* A pair whose key did not fit, or nothing of whose value did, goes whole. */
        if (line->full && (line->n == head || head == before)) {
            line->n = before;
            return;
        }
    }
}

/* ---- entries ---- */

static void put_time(struct line *line)
{
    struct timespec now;
    struct tm utc;
    char text[64];

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text + n, sizeof(text) - n, ".%03uZ", (unsigned)(now.tv_nsec / 1000000) % 1000);
    put_text(line, text);
}

static void write_entry(enum fl_log_level level, const char *what, struct fl_bytes pairs)
{
    struct line line;
    line.n = 0;
    line.full = false;
    line.json = is_json_wanted();

    put_text(&line, line.json ? "{\"ts\":\"" : "");
    put_time(&line);
    put_text(&line, line.json ? "\",\"level\":\"" : " ");
    put_text(&line, level_words[level]);
    put_text(&line, line.json ? "\",\"msg\":\"" : " ");
    put_escaped(&line, fl_bytes_of(what));
    if (line.json)
        put_close(&line, '"');
    else if (pairs.n > 0)
        put_text(&line, ":");
    put_pairs(&line, pairs);
    if (line.json)
        put_close(&line, '}');
    put_close(&line, '\n');

    /* One call, so that lines of several threads and processes do not mix. A full or closed stderr
     * loses the line: logging never stops a request. */
    ssize_t written;
    do {
        written = write(STDERR_FILENO, line.text, line.n);
    } while (written < 0 && errno == EINTR);
}

static size_t format_pairs(char *text, size_t room, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

static size_t format_pairs(char *text, size_t room, const char *format, va_list args)
{
    int n = format == NULL ? 0 : vsnprintf(text, room, format, args);
    if (n < 0)
        return 0;
    return (size_t)n < room ? (size_t)n : room - 1;
}

void fl_log(enum fl_log_level level, const char *what, const char *format, ...)
{
    char text[LOG_TEXT_MAX];
    va_list args;

    if (!fl_log_is_on(level))
        return;
    va_start(args, format);
    size_t n = format_pairs(text, sizeof(text), format, args);
    va_end(args);
    write_entry(level, what, fl_bytes(text, n));
}

void fl_log_limited(struct fl_log_limit *limit, uint64_t now_ms, uint64_t every_ms,
                    enum fl_log_level level, const char *what, const char *format, ...)
{
    char text[LOG_TEXT_MAX];
    va_list args;

    if (!fl_log_is_on(level))
        return;
    uint64_t next_ms = atomic_load_explicit(&limit->next_ms, memory_order_relaxed);
    /* Of several threads that find the time come, one moves it on and speaks. */
    if (now_ms < next_ms ||
        !atomic_compare_exchange_strong_explicit(&limit->next_ms, &next_ms, now_ms + every_ms,
                                                 memory_order_relaxed, memory_order_relaxed)) {
        atomic_fetch_add_explicit(&limit->skipped, 1, memory_order_relaxed);
        return;
    }
    uint64_t skipped = atomic_exchange_explicit(&limit->skipped, 0, memory_order_relaxed);
    va_start(args, format);
    /* The count has its room even behind a text that fills the rest. */
    size_t n = format_pairs(text, sizeof(text) - 32, format, args);
    va_end(args);
    if (skipped > 0)
        n += (size_t)snprintf(text + n, sizeof(text) - n, " skipped=%llu",
                              (unsigned long long)skipped);
    write_entry(level, what, fl_bytes(text, n));
}

struct fl_log_value fl_log_value(struct fl_bytes bytes)
{
    struct fl_log_value value;
    size_t at = 0;

    value.text[at++] = '"';
    for (size_t i = 0; i < bytes.n; i++) {
        bool escaped = bytes.p[i] == '"' || bytes.p[i] == '\\';
        /* Room for this byte, "..." and the quote. A NUL would end the text for printf. */
        if (at + escaped + 1 > sizeof(value.text) - 5) {
            memcpy(value.text + at, "...", 3);
            at += 3;
            break;
        }
        if (escaped)
            value.text[at++] = '\\';
        value.text[at++] = bytes.p[i] == 0 ? '?' : (char)bytes.p[i];
    }
    value.text[at++] = '"';
    value.text[at] = 0;
    return value;
}
