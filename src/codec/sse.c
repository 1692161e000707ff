/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/sse.h"

#include <string.h>

void fl_sse_init(struct fl_sse *sse,
                 int (*on_line)(void *owner, enum fl_sse_line line, struct fl_bytes value),
                 void *owner)
{
    *sse = (struct fl_sse){.on_line = on_line, .owner = owner};
    fl_buf_init(&sse->cut, FL_SSE_MAX_LINE);
}

void fl_sse_fini(struct fl_sse *sse)
{
    fl_buf_fini(&sse->cut);
}

/* If `line` is the field `name`, leaves its value in *value: what follows the colon, without one
 * leading blank. A field without a colon has an empty value. */
static bool is_field(struct fl_bytes line, struct fl_bytes name, struct fl_bytes *value)
{
    if (!fl_bytes_has_prefix(line, name))
        return false;
    struct fl_bytes rest = fl_bytes_skip(line, name.n);
    if (rest.n > 0 && rest.p[0] != ':')
        return false;
    rest = fl_bytes_skip(rest, 1);
    *value = rest.n > 0 && rest.p[0] == ' ' ? fl_bytes_skip(rest, 1) : rest;
    return true;
}

static int tell_line(struct fl_sse *sse, struct fl_bytes line)
{
    struct fl_bytes value;

    if (line.n == 0)
        return sse->on_line(sse->owner, FL_SSE_BLANK, line);
    if (is_field(line, FL_BYTES("data"), &value)) {
        if (value.n == 0) /* epp.md 10.7: skipped */
            return 0;
        enum fl_sse_line kind = fl_bytes_eq(value, FL_BYTES("[DONE]")) ? FL_SSE_DONE : FL_SSE_DATA;
        return sse->on_line(sse->owner, kind, value);
    }
    if (is_field(line, FL_BYTES("event"), &value))
        return sse->on_line(sse->owner, FL_SSE_NAME, value);
    return 0; /* a comment, id, retry, or something newer */
}

/* The first line of the body may begin with a byte order mark, which is no part of it. */
static struct fl_bytes without_bom(struct fl_sse *sse, struct fl_bytes line)
{
    if (sse->has_begun)
        return line;
    sse->has_begun = true;
    sse->has_bom = fl_bytes_has_prefix(line, FL_BYTES("\xef\xbb\xbf"));
    return sse->has_bom ? fl_bytes_skip(line, 3) : line;
}

/* A line's end was seen; `part` is what this chunk has of it. */
static int end_line(struct fl_sse *sse, struct fl_bytes part)
{
    int rc = 0;

    if (sse->is_dropping || part.n > FL_SSE_MAX_LINE ||
        (fl_buf_size(&sse->cut) > 0 && fl_buf_append(&sse->cut, part) < 0)) {
        sse->dropped_lines++;
        sse->is_dropping = false;
        sse->has_begun = true;
    } else if (fl_buf_size(&sse->cut) > 0) {
        rc = tell_line(sse, without_bom(sse, fl_buf_bytes(&sse->cut)));
    } else {
        rc = tell_line(sse, without_bom(sse, part));
    }
    fl_buf_clear(&sse->cut);
    return rc;
}

/* The chunk ends inside a line. */
static void keep_part(struct fl_sse *sse, struct fl_bytes part)
{
    if (part.n == 0 || sse->is_dropping)
        return;
    if (fl_buf_append(&sse->cut, part) < 0) {
        fl_buf_fini(&sse->cut); /* keeps its cap */
        sse->is_dropping = true;
    }
}

/* The next CR or LF in [p, end), or `end`. */
static const uint8_t *find_line_end(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *lf = memchr(p, '\n', (size_t)(end - p));
    const uint8_t *stop = lf != NULL ? lf : end;
    const uint8_t *cr = memchr(p, '\r', (size_t)(stop - p));

    return cr != NULL ? cr : stop;
}

int fl_sse_feed(struct fl_sse *sse, struct fl_bytes bytes)
{
    if (bytes.n == 0)
        return 0;

    const uint8_t *p = bytes.p;
    const uint8_t *end = bytes.p + bytes.n;
    while (p < end) {
        if (sse->is_after_cr && *p == '\n') {
            sse->is_after_cr = false;
            p++;
            continue;
        }
        sse->is_after_cr = false;
        const uint8_t *stop = find_line_end(p, end);
        struct fl_bytes part = {p, (size_t)(stop - p)};
        if (stop == end) {
            keep_part(sse, part);
            break;
        }
        sse->is_after_cr = *stop == '\r';
        p = stop + 1;
        int rc = end_line(sse, part);
        if (rc < 0)
            return rc;
    }
    /* Open streams are many and most of them stand between two lines. */
    fl_buf_trim(&sse->cut);
    return 0;
}

int fl_sse_end(struct fl_sse *sse)
{
    int rc = 0;

    if (sse->is_dropping || fl_buf_size(&sse->cut) > 0)
        rc = end_line(sse, (struct fl_bytes){0});
    fl_buf_trim(&sse->cut);
    return rc;
}

int fl_sse_write(struct fl_buf *out, struct fl_bytes name, struct fl_bytes data)
{
    struct fl_bytes line;
    int rc = 0;

    if (!fl_bytes_is_absent(name))
        rc = fl_buf_printf(out, "event: %.*s\n", FL_FMT(name));
    while (rc == 0 && fl_bytes_next(&data, '\n', &line)) {
        rc = fl_buf_append(out, FL_BYTES("data: "));
        if (rc == 0)
            rc = fl_buf_append(out, line);
        if (rc == 0)
            rc = fl_buf_append(out, FL_BYTES("\n"));
    }
    return rc == 0 ? fl_buf_append(out, FL_BYTES("\n")) : rc;
}
