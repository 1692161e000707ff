/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/error.h"

#define BUF_FIRST_BYTES 64

void fl_buf_init(struct fl_buf *buf, size_t max_bytes)
{
    *buf = (struct fl_buf){.max_bytes = max_bytes};
}

void fl_buf_fini(struct fl_buf *buf)
{
    fl_free(buf->start);
    fl_buf_init(buf, buf->max_bytes);
}

static size_t consumed_bytes(const struct fl_buf *buf)
{
    return (size_t)(buf->head - buf->start);
}

static void compact(struct fl_buf *buf)
{
    size_t size = fl_buf_size(buf);
    memmove(buf->start, buf->head, size);
    buf->head = buf->start;
    buf->tail = buf->start + size;
}

static int grow(struct fl_buf *buf, size_t need)
{
    size_t size = fl_buf_size(buf);
    size_t room;
    if (__builtin_add_overflow(need, need / 2, &room))
        return FL_ENOMEM;
    if (room < BUF_FIRST_BYTES)
        room = BUF_FIRST_BYTES;

    uint8_t *start;
    if (buf->head == buf->start) {
        start = fl_try_realloc(buf->start, room, 1);
        if (start == NULL)
            return FL_ENOMEM;
    } else {
        start = fl_try_alloc(room);
        if (start == NULL)
            return FL_ENOMEM;
        memcpy(start, buf->head, size);
        fl_free(buf->start);
    }
    buf->start = buf->head = start;
    buf->tail = start + size;
    buf->end = start + room;
    return 0;
}

/* Room for `n` bytes and `extra` that will not stay (a NUL) at tail. Bytes are moved down only when
 * that frees a quarter of the room, so that a queue which never runs empty costs O(1) a byte; the
 * room is therefore at most one and a half times max_bytes. */
static int make_room(struct fl_buf *buf, size_t n, size_t extra)
{
    size_t size = fl_buf_size(buf);
    size_t need;
    if (buf->max_bytes != 0 && (size > buf->max_bytes || n > buf->max_bytes - size))
        return FL_ELIMIT;
    if (__builtin_add_overflow(n, extra, &n) || __builtin_add_overflow(size, n, &need))
        return FL_ENOMEM;
    if ((size_t)(buf->end - buf->tail) >= n)
        return 0;
    size_t room = (size_t)(buf->end - buf->start);
    if (need <= room && consumed_bytes(buf) >= room / 4) {
        compact(buf);
        return 0;
    }
    return grow(buf, need);
}

uint8_t *fl_buf_reserve(struct fl_buf *buf, size_t n)
{
    /* An empty buffer has no tail to give back for n = 0; one byte of room is not charged. */
    if (make_room(buf, n, n == 0) < 0)
        return NULL;
    return buf->tail;
}

void fl_buf_commit(struct fl_buf *buf, size_t n)
{
    assert(n <= (size_t)(buf->end - buf->tail));
    if (n > 0)
        buf->tail += n;
}

int fl_buf_append(struct fl_buf *buf, struct fl_bytes bytes)
{
    if (bytes.n == 0)
        return 0;
    int rc = make_room(buf, bytes.n, 0);
    if (rc < 0)
        return rc;
    memcpy(buf->tail, bytes.p, bytes.n);
    buf->tail += bytes.n;
    return 0;
}

int fl_buf_append_byte(struct fl_buf *buf, uint8_t byte)
{
    if (buf->tail == buf->end || buf->max_bytes != 0) {
        int rc = make_room(buf, 1, 0);
        if (rc < 0)
            return rc;
    }
    *buf->tail++ = byte;
    return 0;
}

int fl_buf_printf(struct fl_buf *buf, const char *format, ...)
{
    size_t room = (size_t)(buf->end - buf->tail);
    va_list args;

    va_start(args, format);
    int length = vsnprintf((char *)buf->tail, room, format, args);
    va_end(args);
    if (length < 0)
        return FL_EINTERNAL;

    int rc = make_room(buf, (size_t)length, 1);
    if (rc < 0)
        return rc;
    if ((size_t)length >= room) {
        va_start(args, format);
        vsnprintf((char *)buf->tail, (size_t)length + 1, format, args);
        va_end(args);
    }
    buf->tail += length;
    return 0;
}

void fl_buf_consume(struct fl_buf *buf, size_t n)
{
    assert(n <= fl_buf_size(buf));
    if (n == fl_buf_size(buf))
        buf->head = buf->tail = buf->start;
    else
        buf->head += n;
}

void fl_buf_clear(struct fl_buf *buf)
{
    buf->head = buf->tail = buf->start;
}

void fl_buf_trim(struct fl_buf *buf)
{
    if (fl_buf_size(buf) == 0)
        fl_buf_fini(buf);
}
