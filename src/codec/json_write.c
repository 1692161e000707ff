/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/json.h"
#include "codec/json_scan.h"

void fl_json_writer_init(struct fl_json_writer *writer, struct fl_buf *out)
{
    *writer = (struct fl_json_writer){.out = out};
}

static void put(struct fl_json_writer *writer, struct fl_bytes bytes)
{
    if (writer->rc == 0)
        writer->rc = fl_buf_append(writer->out, bytes);
}

/* What stands between the previous value and the one to come. */
static void begin_value(struct fl_json_writer *writer)
{
    if (writer->comma && !writer->after_key)
        put(writer, FL_BYTES(","));
    writer->comma = true;
    writer->after_key = false;
}

static void open_container(struct fl_json_writer *writer, struct fl_bytes bracket)
{
    begin_value(writer);
    put(writer, bracket);
    assert(writer->depth < FL_JSON_MAX_DEPTH);
    writer->depth++;
    writer->comma = false;
}

static void close_container(struct fl_json_writer *writer, struct fl_bytes bracket)
{
    assert(writer->depth > 0 && !writer->after_key);
    put(writer, bracket);
    writer->depth--;
    writer->comma = true;
}

void fl_json_write_object(struct fl_json_writer *writer)
{
    open_container(writer, FL_BYTES("{"));
}

void fl_json_write_object_end(struct fl_json_writer *writer)
{
    close_container(writer, FL_BYTES("}"));
}

void fl_json_write_array(struct fl_json_writer *writer)
{
    open_container(writer, FL_BYTES("["));
}

void fl_json_write_array_end(struct fl_json_writer *writer)
{
    close_container(writer, FL_BYTES("]"));
}

/* A byte that may not stand in a string as it is: quote, backslash or control character. */
static void put_escape(struct fl_json_writer *writer, uint8_t c)
{
    static const char hex[] = "0123456789abcdef";
    static const char meant[] = "\"\\\b\f\n\r\t";
    static const char names[] = "\"\\bfnrt";
    uint8_t text[6] = {'\\'};
    const char *at = memchr(meant, c, sizeof(meant) - 1);

    if (at != NULL) {
        text[1] = (uint8_t)names[at - meant];
        put(writer, fl_bytes(text, 2));
        return;
    }
    memcpy(text, "\\u00", 4);
    text[4] = (uint8_t)hex[c >> 4];
    text[5] = (uint8_t)hex[c & 15];
    put(writer, fl_bytes(text, 6));
}

static void put_string(struct fl_json_writer *writer, struct fl_bytes value)
{
    const uint8_t *p = value.p;
    const uint8_t *end = value.n == 0 ? p : p + value.n;
    const uint8_t *copied = p; /* bytes before it are written */

    put(writer, FL_BYTES("\""));
    while (p < end) {
        p = fl_json_skip_plain(p, end);
        if (p == end)
            break;
        size_t n = *p >= 0x80 ? fl_json_utf8_len(p, end) : 0;
        if (n > 0) {
            p += n;
            continue;
        }
        put(writer, fl_bytes(copied, (size_t)(p - copied)));
        if (*p >= 0x80)
            put(writer, FL_BYTES("\xef\xbf\xbd")); /* one for each byte that fits nowhere */
        else
            put_escape(writer, *p);
        copied = ++p;
    }
    if (copied < end)
        put(writer, fl_bytes(copied, (size_t)(end - copied)));
    put(writer, FL_BYTES("\""));
}

void fl_json_write_key_bytes(struct fl_json_writer *writer, struct fl_bytes key)
{
    assert(writer->depth > 0 && !writer->after_key);
    begin_value(writer);
    put_string(writer, key);
    put(writer, FL_BYTES(":"));
    writer->after_key = true;
}

void fl_json_write_key(struct fl_json_writer *writer, const char *key)
{
    fl_json_write_key_bytes(writer, fl_bytes_of(key));
}

void fl_json_write_string(struct fl_json_writer *writer, struct fl_bytes value)
{
    begin_value(writer);
    put_string(writer, value);
}

void fl_json_write_cstr(struct fl_json_writer *writer, const char *value)
{
    fl_json_write_string(writer, fl_bytes_of(value));
}

/* Digits of `value` at the end of `text`; returns where they start. */
static char *format_u64(char text[24], uint64_t value)
{
    char *p = text + 24;

    do {
        *--p = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    return p;
}

void fl_json_write_u64(struct fl_json_writer *writer, uint64_t value)
{
    char text[24];
    const char *p = format_u64(text, value);

    fl_json_write_raw(writer, fl_bytes(p, (size_t)(text + sizeof(text) - p)));
}

void fl_json_write_i64(struct fl_json_writer *writer, int64_t value)
{
    char text[24];
    /* The magnitude of INT64_MIN exists only unsigned. */
    char *p = format_u64(text, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);

    if (value < 0)
        *--p = '-';
    fl_json_write_raw(writer, fl_bytes(p, (size_t)(text + sizeof(text) - p)));
}

void fl_json_write_double(struct fl_json_writer *writer, double value)
{
    char text[32];
    int n = 0;

    if (!isfinite(value)) {
        fl_json_write_null(writer);
        return;
    }
    /* Whole numbers as people write them: 100000, not 1e+05. */
    if (value == nearbyint(value) && fabs(value) < 1e15) {
        n = snprintf(text, sizeof(text), "%.0f", value);
    } else {
        /* 17 digits always suffice. */
        for (int digits = 1; digits <= 17; digits++) {
            n = snprintf(text, sizeof(text), "%.*g", digits, value);
            if (strtod(text, NULL) == value)
                break;
        }
    }
    assert(n > 0 && (size_t)n < sizeof(text));
    fl_json_write_raw(writer, fl_bytes(text, (size_t)n));
}

void fl_json_write_bool(struct fl_json_writer *writer, bool value)
{
    fl_json_write_raw(writer, value ? FL_BYTES("true") : FL_BYTES("false"));
}

void fl_json_write_null(struct fl_json_writer *writer)
{
    fl_json_write_raw(writer, FL_BYTES("null"));
}

void fl_json_write_raw(struct fl_json_writer *writer, struct fl_bytes text)
{
    begin_value(writer);
    put(writer, text);
}

int fl_json_writer_end(struct fl_json_writer *writer)
{
    assert(writer->depth == 0 && !writer->after_key);
    return writer->rc;
}
