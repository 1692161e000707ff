/* SPDX-License-Identifier: Apache-2.0 */
/* Server-sent events: reading a response body that may be cut anywhere, and writing events.
 *
 * The reader goes by lines: CRLF, LF and CR end one, `data:` with or without a blank carries a
 * payload, comments and unknown fields are passed over. Each data line is told by itself, as soon
 * as its end is seen: the APIs we read never spread one JSON text over several lines. A line is
 * told as a view of the chunk it lies in; only a line cut by the end of a chunk is copied and kept.
 *
 * Caps: a line longer than FL_SSE_MAX_LINE is dropped, wherever its cuts are, and reading goes on
 * (epp.md 4.6). So a reader holds at most that much, and nothing between lines.
 *
 * No I/O; one thread at a time. */
#ifndef FL_CODEC_SSE_H
#define FL_CODEC_SSE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bytes.h"

#define FL_SSE_MAX_LINE 65536 /* epp.md 4.6; bytes without the line's end */

enum fl_sse_line {
    FL_SSE_DATA,  /* value: the payload; never empty */
    FL_SSE_DONE,  /* the payload was [DONE] */
    FL_SSE_NAME,  /* value: what `event:` names */
    FL_SSE_BLANK, /* an empty line: the event is complete */
};

struct fl_sse {
    /* set by fl_sse_init() */
    int (*on_line)(void *owner, enum fl_sse_line line, struct fl_bytes value);
    void *owner;
    /* state */
    struct fl_buf cut;      /* the line whose end is not there yet */
    uint64_t dropped_lines; /* too long, or no memory to keep them */
    bool is_dropping;       /* until the end of this line */
    bool is_after_cr;       /* a line feed now belongs to the line before */
    bool has_begun;         /* a line was seen */
    bool has_bom;           /* the body begins with a byte order mark, which was skipped */
};

/* `value` is lent during on_line. A negative answer stops the feed. */
void fl_sse_init(struct fl_sse *sse,
                 int (*on_line)(void *owner, enum fl_sse_line line, struct fl_bytes value),
                 void *owner);
/* Idempotent; a zeroed one is fine. */
void fl_sse_fini(struct fl_sse *sse);

/* The next bytes of the body. 0, or what on_line returned; then feed no more. */
int fl_sse_feed(struct fl_sse *sse, struct fl_bytes bytes);
/* The body is over: a last line without an end is told too. */
int fl_sse_end(struct fl_sse *sse);

/* Appends one event. `name` absent: none. Line feeds of `data` become further data lines. 0,
 * FL_ELIMIT or FL_ENOMEM; a failure may leave a part of the event. */
int fl_sse_write(struct fl_buf *out, struct fl_bytes name, struct fl_bytes data);

#endif
