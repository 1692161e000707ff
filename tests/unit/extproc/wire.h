/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of ext_proc messages in tests: from hex with quoted text, cut into slices, and back. */
#ifndef TESTS_UNIT_EXTPROC_WIRE_H
#define TESTS_UNIT_EXTPROC_WIRE_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/bytes.h"

static inline unsigned hex_digit(char c)
{
    return c <= '9' ? (unsigned)(c - '0') : (unsigned)((c | 0x20) - 'a') + 10;
}

/* Appends what `text` says: hex digits, blanks and '|' between them, and 'quoted text'. */
static inline size_t wire_bytes(const char *text, uint8_t *out, size_t room)
{
    size_t n = 0;

    for (const char *p = text; *p != 0; p++) {
        if (*p == ' ' || *p == '|' || *p == '\n')
            continue;
        if (*p == '\'') {
            for (p++; *p != '\''; p++) {
                assert(*p != 0 && n < room);
                out[n++] = (uint8_t)*p;
            }
            continue;
        }
        assert(p[1] != 0 && n < room);
        out[n++] = (uint8_t)(hex_digit(p[0]) << 4 | hex_digit(p[1]));
        p++;
    }
    return n;
}

/* A chain of slices of at most `piece` bytes, each its own exact chunk. */
static inline struct fl_chain wire_chain(struct fl_bytes bytes, size_t piece)
{
    struct fl_chain chain = {0};

    for (size_t at = 0; at < bytes.n; at += piece)
        fl_chain_push(&chain, fl_slice_copy(fl_bytes_head(fl_bytes_skip(bytes, at), piece), NULL));
    return chain;
}

static inline struct fl_chain wire_message(const char *text, size_t piece)
{
    uint8_t bytes[4096];
    size_t n = wire_bytes(text, bytes, sizeof(bytes));
    return wire_chain(fl_bytes(bytes, n), piece);
}

/* True if the chain's bytes are those of `text`. */
static inline bool wire_equals(const struct fl_chain *chain, const char *text)
{
    uint8_t bytes[4096];
    size_t n = wire_bytes(text, bytes, sizeof(bytes));
    return fl_chain_eq_bytes(chain, fl_bytes(bytes, n));
}

/* Takes the first framed message off `out`, without its prefix. False if there is none. */
static inline bool wire_take(struct fl_chain *out, struct fl_chain *message)
{
    uint8_t prefix[5];

    *message = (struct fl_chain){0};
    if (out->bytes == 0)
        return false;
    fl_chain_copy_out(out, 0, prefix, sizeof(prefix));
    assert(prefix[0] == 0);
    size_t n =
        (size_t)prefix[1] << 24 | (size_t)prefix[2] << 16 | (size_t)prefix[3] << 8 | prefix[4];
    assert(out->bytes >= 5 + n);
    fl_chain_ref_range(message, out, 5, n);
    fl_chain_consume(out, 5 + n);
    return true;
}

#endif
