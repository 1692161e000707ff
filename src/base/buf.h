/* SPDX-License-Identifier: Apache-2.0 */
/* The buffers everybody must use.
 *
 * fl_buf: one contiguous growing piece, for what is small or must be seen whole.
 *
 *     start        head            tail          end
 *       |  consumed  |   readable    |   free     |        start <= head <= tail <= end
 *
 *   An empty buffer that never held anything owns no memory (all NULL). `max_bytes` bounds
 *   tail - head: appending beyond it fails with FL_ELIMIT and changes nothing.
 *
 * fl_chunk: a refcounted piece of a body. fl_slice: a view of a part of one that holds a reference.
 * fl_chain: slices in order. A body is read once into chunks; the copy kept for FailOpen, the
 *   ext_proc send and the upstream write are chains over the same chunks. Nothing is concatenated.
 *
 *     chain A: [slice 0..65536)------+        chunk (refs 2) [.... 65,536 bytes ....]
 *     chain B: [slice 100..600)------+----->
 *
 * fl_budget: the cap on all bodies together. Chunks are charged with their capacity to the budget
 *   they were made with and give it back when their last reference goes.
 *
 * Threads: a chunk's count is atomic, its bytes are written before it is shared and never after.
 * fl_buf and fl_chain belong to one thread at a time. */
#ifndef FL_BASE_BUF_H
#define FL_BASE_BUF_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/bytes.h"

struct fl_buf {
    uint8_t *start, *head, *tail, *end;
    size_t max_bytes; /* 0: no cap */
};

/* A zeroed fl_buf is valid: empty, no cap. */
void fl_buf_init(struct fl_buf *buf, size_t max_bytes);
/* Idempotent. */
void fl_buf_fini(struct fl_buf *buf);

static inline size_t fl_buf_size(const struct fl_buf *buf)
{
    return (size_t)(buf->tail - buf->head);
}

/* What is readable; lent until the next call that changes `buf`. */
static inline struct fl_bytes fl_buf_bytes(const struct fl_buf *buf)
{
    return (struct fl_bytes){buf->head, fl_buf_size(buf)};
}

/* Makes room for `n` bytes at tail and returns it, or NULL beyond max_bytes or without memory.
 * Write there, then fl_buf_commit(). */
uint8_t *fl_buf_reserve(struct fl_buf *buf, size_t n) __attribute__((warn_unused_result));
/* `n` bytes at tail were written; at most what was reserved. */
void fl_buf_commit(struct fl_buf *buf, size_t n);
/* 0, FL_ELIMIT or FL_ENOMEM; a failure changes nothing. */
int fl_buf_append(struct fl_buf *buf, struct fl_bytes bytes);
int fl_buf_append_byte(struct fl_buf *buf, uint8_t byte);
int fl_buf_printf(struct fl_buf *buf, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Drops the first `n` readable bytes (n <= size). */
void fl_buf_consume(struct fl_buf *buf, size_t n);
/* Drops all bytes, keeps the memory. */
void fl_buf_clear(struct fl_buf *buf);
/* Gives the memory back if nothing is readable. */
void fl_buf_trim(struct fl_buf *buf);

/* ---- all bodies together ---- */

struct fl_budget {
    _Atomic size_t held_bytes;
    size_t cap_bytes; /* set before first use; 0: no cap */
};

/* True while held_bytes is below 7/8 of the cap: everything may be read. Any thread. */
bool fl_budget_is_easy(const struct fl_budget *budget);
size_t fl_budget_held(const struct fl_budget *budget);

/* ---- chunks ---- */

#define FL_CHUNK_MAX_BYTES 65536 /* design.md section 5: chunks of up to 64 KiB */

struct fl_chunk {
    _Atomic uint32_t refs;
    uint32_t room;            /* bytes of `data` */
    struct fl_budget *budget; /* NULL: not charged */
    uint8_t data[];
};

/* One reference, for the caller. NULL beyond the budget's cap or without memory. room <= 1 GiB. */
struct fl_chunk *fl_chunk_new(size_t room, struct fl_budget *budget)
    __attribute__((warn_unused_result));
void fl_chunk_ref(struct fl_chunk *chunk);
/* NULL allowed. */
void fl_chunk_unref(struct fl_chunk *chunk);

struct fl_slice {
    struct fl_chunk *chunk; /* NULL: bytes of static lifetime, or empty */
    const uint8_t *p;
    size_t n;
};

static inline struct fl_bytes fl_slice_bytes(struct fl_slice slice)
{
    return (struct fl_bytes){slice.p, slice.n};
}

/* Copies `bytes` into a new chunk. slice.p == NULL on failure (n > 0). */
struct fl_slice fl_slice_copy(struct fl_bytes bytes, struct fl_budget *budget);
/* Another slice of the same bytes, with a reference of its own. */
struct fl_slice fl_slice_ref(struct fl_slice slice);
/* A part of it, with a reference of its own. */
struct fl_slice fl_slice_sub(struct fl_slice slice, size_t offset, size_t n);
void fl_slice_unref(struct fl_slice *slice);

/* ---- chains ---- */

/* A ring of slices that grows by doubling. Zeroed is valid and empty. */
struct fl_chain {
    struct fl_slice *ring;
    uint32_t cap, first, count;
    size_t bytes;
};

/* Idempotent; drops all references. */
void fl_chain_fini(struct fl_chain *chain);
/* Takes the slice's reference. Empty slices are dropped. */
void fl_chain_push(struct fl_chain *chain, struct fl_slice slice);
/* Puts a slice back at the front. */
void fl_chain_push_front(struct fl_chain *chain, struct fl_slice slice);
/* Takes the first slice off; its reference is the caller's. False when empty. */
bool fl_chain_pop(struct fl_chain *chain, struct fl_slice *slice);
/* The i-th slice, lent. i < count. */
struct fl_slice fl_chain_at(const struct fl_chain *chain, uint32_t i);
/* Drops the first `n` bytes (n <= bytes), releasing what is passed. */
void fl_chain_consume(struct fl_chain *chain, size_t n);
/* Moves all of `from` to the end of `to`. */
void fl_chain_move(struct fl_chain *to, struct fl_chain *from);
/* Appends references to bytes [offset, offset + n) of `from` to `to`. */
void fl_chain_ref_range(struct fl_chain *to, const struct fl_chain *from, size_t offset, size_t n);
/* Fills up to `max` vectors with the front; returns how many. */
int fl_chain_iov(const struct fl_chain *chain, struct iovec *iov, int max);
/* Copies bytes [offset, offset + n) out; all must be there. */
void fl_chain_copy_out(const struct fl_chain *chain, size_t offset, void *out, size_t n);
bool fl_chain_eq_bytes(const struct fl_chain *chain, struct fl_bytes bytes);

#endif
