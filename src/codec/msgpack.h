/* SPDX-License-Identifier: Apache-2.0 */
/* MessagePack, the subset of selection.md 11.9: a reader that walks one complete message in place
 * and a writer of shortest forms.
 *
 * The reader hands out one value at a time and allocates nothing. It keeps the open containers
 * itself, so that it knows how deep it is and where each ends; the caller may at any point skip the
 * rest of what it has entered. A count is believed only if the bytes for that many elements are
 * there: an array of n needs n bytes, a map 2n. Extension values are handed out as such and hold
 * nothing we use.
 *
 *   fl_msgpack_init(&reader, message);
 *   while (fl_msgpack_next(&reader, &value) == 0) ...      parents before their children, in order
 *   fl_msgpack_finish(&reader)                             0: one whole object and not a byte more
 *
 * Pure, any thread; a reader or writer belongs to one thread. */
#ifndef FL_CODEC_MSGPACK_H
#define FL_CODEC_MSGPACK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bytes.h"

/* Containers inside each other. KV events use 5; the cap is selection.md 11.1's. */
#define FL_MSGPACK_DEPTH_MAX 16

enum fl_msgpack_type {
    FL_MSGPACK_NIL,
    FL_MSGPACK_BOOL,
    FL_MSGPACK_UINT,  /* any integer >= 0, whatever its width and sign on the wire */
    FL_MSGPACK_INT,   /* any integer < 0 */
    FL_MSGPACK_FLOAT, /* both widths */
    FL_MSGPACK_STR,   /* any bytes: not checked for UTF-8 */
    FL_MSGPACK_BIN,
    FL_MSGPACK_EXT,
    FL_MSGPACK_ARRAY,
    FL_MSGPACK_MAP
};

struct fl_msgpack_value {
    enum fl_msgpack_type type;
    union {
        bool boolean;
        uint64_t uint;
        int64_t sint;
        double real;
        struct fl_bytes bytes; /* str, bin, ext without its type byte; lent by the message */
        uint32_t count;        /* elements of an array, pairs of a map: they are the next values */
    };
};

struct fl_msgpack {
    const uint8_t *at, *end;
    uint32_t depth; /* open containers */
    bool has_started;
    uint64_t left[FL_MSGPACK_DEPTH_MAX]; /* values each open container still has, innermost last */
};

/* The message is borrowed for as long as the reader and its values are used. */
void fl_msgpack_init(struct fl_msgpack *reader, struct fl_bytes message);

/* 0; FL_EPROTO: malformed, cut short, or asked for more than the object holds; FL_EDEPTH. After an
 * error only fl_msgpack_finish() may follow, and fails. */
int fl_msgpack_next(struct fl_msgpack *reader, struct fl_msgpack_value *value);

/* Passes over values until at most `depth` containers are open; reader->depth of an earlier moment
 * means "the rest of everything entered since". Errors as above. */
int fl_msgpack_skip_to(struct fl_msgpack *reader, uint32_t depth);

/* Passes over one value and all it holds. */
int fl_msgpack_skip(struct fl_msgpack *reader);

/* 0 if exactly one object was read to its end and nothing follows it; FL_EPROTO. */
int fl_msgpack_finish(const struct fl_msgpack *reader);

/* The text of a str, or of a bin: old encoders mix them up. False for other types. */
static inline bool fl_msgpack_text(const struct fl_msgpack_value *value, struct fl_bytes *text)
{
    if (value->type != FL_MSGPACK_STR && value->type != FL_MSGPACK_BIN)
        return false;
    *text = value->bytes;
    return true;
}

/* ---- writer: shortest forms, appended to a buffer ---- */

struct fl_msgpack_writer {
    struct fl_buf *out;
    int rc; /* 0, or the first error of the buffer; nothing is written after it */
};

void fl_msgpack_put_nil(struct fl_msgpack_writer *writer);
void fl_msgpack_put_bool(struct fl_msgpack_writer *writer, bool value);
void fl_msgpack_put_uint(struct fl_msgpack_writer *writer, uint64_t value);
void fl_msgpack_put_int(struct fl_msgpack_writer *writer, int64_t value);
void fl_msgpack_put_real(struct fl_msgpack_writer *writer, double value); /* always 64 bit */
void fl_msgpack_put_str(struct fl_msgpack_writer *writer, struct fl_bytes text);
void fl_msgpack_put_bin(struct fl_msgpack_writer *writer, struct fl_bytes bytes);
/* The elements, or the keys and values in turn, are put next. */
void fl_msgpack_put_array(struct fl_msgpack_writer *writer, uint32_t count);
void fl_msgpack_put_map(struct fl_msgpack_writer *writer, uint32_t pairs);

#endif
