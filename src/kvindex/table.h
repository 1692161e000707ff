/* SPDX-License-Identifier: Apache-2.0 */
/* Hash table from 64-bit keys to 32-bit numbers, for one writer and wait-free readers.
 *
 *   hash (64 bit) = | segment 10 | bucket 32 | ... | tag 8 |
 *
 *   segments[1024] -> buckets of one cache line each:
 *     | 12 tags | overflow count | 12 numbers |
 *
 * The table holds numbers only; whoever owns them knows their keys and verifies a candidate. An
 * entry lies in its home bucket or, that being full, in one of the following; each bucket that was
 * passed counts it as overflow, so a search ends at the first bucket whose count is 0. Nothing is
 * ever moved within a segment that readers see: an entry that stays is found by every search. A
 * full segment is rebuilt aside and published with one store, the old one retired; a rebuild
 * touches a thousandth of the entries, so neither readers nor the writer stop for it.
 *
 * Keys are mixed with a random seed, because peers choose them. About 7.5 B an entry. */
#ifndef FL_KVINDEX_TABLE_H
#define FL_KVINDEX_TABLE_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "base/rng.h"
#include "kvindex/space.h"

#define FL_TABLE_SEGMENTS 1024
#define FL_TABLE_NONE UINT32_MAX
#define FL_TABLE_ONLY UINT32_MAX
#define FL_TABLE_SLOTS 12

struct fl_table_bucket {
    _Alignas(64) _Atomic uint64_t tags; /* slots 0..7, one byte each, 0: free */
    _Atomic uint64_t tags_overflow;     /* slots 8..11 in the low half, overflow count above */
    _Atomic uint32_t at[FL_TABLE_SLOTS];
};

struct fl_table {
    /* (address / 64) << 16 | buckets; 0 while the segment is empty and never used. Packed into one
     * word so that readers see both change together and need no line between it and the bucket. */
    _Atomic uint64_t segments[FL_TABLE_SEGMENTS];
    uint64_t seed;
    /* writer only */
    uint64_t count;
    uint32_t segment_count[FL_TABLE_SEGMENTS];
    /* The hash of a number that stands in the table, among those that lead to `segment` and `tag`.
     * A number may stand there under several keys: with FL_TABLE_ONLY the answer is 0 if more than
     * one fits, and `nth` then asks for them one by one, in any fixed order. */
    uint64_t (*hash_of)(const void *owner, uint32_t at, uint32_t segment, uint8_t tag,
                        uint32_t nth);
    /* Brings nearer what hash_of() of this number reads. */
    void (*prefetch)(const void *owner, uint32_t at);
    /* Takes a segment that readers may still look at; fl_table_free_segment() when they no longer
     * do. */
    void (*retire)(struct fl_table *table, uint64_t packed);
    struct fl_space *space; /* segments come from here and go with it */
    void *owner;
};

void fl_table_init(struct fl_table *table, uint64_t seed, struct fl_space *space);
void fl_table_free_segment(struct fl_table *table, uint64_t packed);

static inline uint64_t fl_table_hash(const struct fl_table *table, uint64_t key)
{
    return fl_mix64(key ^ table->seed);
}

static inline uint32_t fl_table_segment(uint64_t hash)
{
    return (uint32_t)(hash >> 54);
}

/* Never 0. */
static inline uint8_t fl_table_tag(uint64_t hash)
{
    uint8_t tag = (uint8_t)hash;
    return tag != 0 ? tag : 1;
}

static inline struct fl_table_bucket *fl_table_buckets(uint64_t packed)
{
    return (struct fl_table_bucket *)(uintptr_t)(packed >>
                                                 16 << 6); // NOLINT(performance-no-int-to-ptr)
}

static inline uint32_t fl_table_home(uint64_t hash, uint32_t buckets)
{
    return (uint32_t)(((hash >> 22 & UINT32_MAX) * buckets) >> 32);
}

/* Bit s is set when slot s has this tag, for the two tag words of a bucket. Exact: no borrow runs
 * from byte to byte. */
static inline uint32_t fl_table_matches_plain(uint64_t tags, uint64_t tags_overflow, uint8_t tag)
{
    const uint64_t low7 = UINT64_C(0x7f7f7f7f7f7f7f7f), gather = UINT64_C(0x0102040810204080);
    uint64_t all = UINT64_C(0x0101010101010101) * tag;
    uint64_t x = tags ^ all, y = (tags_overflow ^ all) & UINT32_MAX;
    uint64_t low = ~(((x & low7) + low7) | x | low7) >> 7;
    uint64_t high = (~(((y & low7) + low7) | y | low7) & UINT32_MAX) >> 7;
    return (uint32_t)(low * gather >> 56) | (uint32_t)(high * gather >> 56) << 8;
}

#ifdef __SSE2__
static inline uint32_t fl_table_matches(uint64_t tags, uint64_t tags_overflow, uint8_t tag)
{
    __m128i all = _mm_set_epi64x((long long)tags_overflow, (long long)tags);
    __m128i equal = _mm_cmpeq_epi8(all, _mm_set1_epi8((char)tag));
    return (uint32_t)_mm_movemask_epi8(equal) & 0xfff;
}
#else
static inline uint32_t fl_table_matches(uint64_t tags, uint64_t tags_overflow, uint8_t tag)
{
    return fl_table_matches_plain(tags, tags_overflow, tag);
}
#endif

/* Brings the line of the first probe nearer. */
static inline void fl_table_prefetch(const struct fl_table *table, uint64_t hash)
{
    uint64_t packed =
        atomic_load_explicit(&table->segments[fl_table_segment(hash)], memory_order_relaxed);
    if (packed != 0)
        __builtin_prefetch(fl_table_buckets(packed) +
                           fl_table_home(hash, (uint32_t)(packed & 0xffff)));
}

/* Calls is_it(owner, number, key) for every candidate until it is true; FL_TABLE_NONE otherwise.
 * Meant to be inlined with a constant `is_it`. Any thread, inside an epoch unless it is the
 * writer's. */
static inline __attribute__((always_inline)) uint32_t
fl_table_find(const struct fl_table *table, uint64_t hash,
              bool (*is_it)(const void *ctx, uint32_t at), const void *ctx)
{
    uint64_t packed =
        atomic_load_explicit(&table->segments[fl_table_segment(hash)], memory_order_seq_cst);
    if (packed == 0)
        return FL_TABLE_NONE;
    const struct fl_table_bucket *all = fl_table_buckets(packed);
    uint32_t buckets = (uint32_t)(packed & 0xffff);
    uint32_t at_bucket = fl_table_home(hash, buckets);
    uint8_t tag = fl_table_tag(hash);

    for (uint32_t step = 0; step < buckets; step++) {
        const struct fl_table_bucket *bucket = &all[at_bucket];
        uint64_t tags = atomic_load_explicit(&bucket->tags, memory_order_seq_cst);
        uint64_t more = atomic_load_explicit(&bucket->tags_overflow, memory_order_seq_cst);
        for (uint32_t hits = fl_table_matches(tags, more, tag); hits != 0; hits &= hits - 1) {
            uint32_t slot = (uint32_t)__builtin_ctz(hits);
            uint32_t at = atomic_load_explicit(&bucket->at[slot], memory_order_seq_cst);
            if (is_it(ctx, at))
                return at;
        }
        if (__builtin_expect(more >> 32 == 0, 1))
            return FL_TABLE_NONE;
        at_bucket = at_bucket + 1 < buckets ? at_bucket + 1 : 0;
    }
    return FL_TABLE_NONE;
}

static inline bool fl_table_any(const void *ctx, uint32_t at)
{
    (void)ctx, (void)at;
    return true;
}

/* The first candidate, unverified: it is the right one in 19 of 20 cases. For prefetching. */
static inline uint32_t fl_table_first(const struct fl_table *table, uint64_t hash)
{
    return fl_table_find(table, hash, fl_table_any, NULL);
}

/* ---- writer: inlined, an event does several of them a block ---- */

#define FL_TABLE_BUCKETS_MAX 0xffff /* what the packed word holds */

/* Entries that buckets hold on average before their segment grows: at 10.2 of 12 about one entry in
 * twelve lies outside its home bucket. */
static inline uint32_t fl_table_capacity(uint32_t buckets)
{
    return buckets * 102 / 10;
}

/* Makes a segment larger; false at the largest size. */
bool fl_table_grow(struct fl_table *table, uint32_t segment);

/* Makes sure that the next insert of this hash has room. False when its segment is at the largest
 * size (65,535 buckets: 600 million entries in all, or 600 thousand under equal keys). */
static inline bool fl_table_reserve(struct fl_table *table, uint64_t hash)
{
    uint32_t segment = fl_table_segment(hash);
    uint64_t packed = atomic_load_explicit(&table->segments[segment], memory_order_relaxed);
    if (__builtin_expect(
            table->segment_count[segment] < fl_table_capacity((uint32_t)(packed & 0xffff)), 1))
        return true;
    return fl_table_grow(table, segment);
}

/* The writer's own reads need no order. */
static inline uint64_t fl_table_peek(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static inline void fl_table_set_tag(struct fl_table_bucket *bucket, uint32_t slot, uint8_t tag,
                                    memory_order order)
{
    _Atomic uint64_t *word = slot < 8 ? &bucket->tags : &bucket->tags_overflow;
    uint32_t shift = 8 * (slot % 8);
    uint64_t value = (fl_table_peek(word) & ~(UINT64_C(0xff) << shift)) | (uint64_t)tag << shift;
    atomic_store_explicit(word, value, order);
}

static inline void fl_table_add_overflow(struct fl_table_bucket *bucket, int64_t n)
{
    uint64_t value = fl_table_peek(&bucket->tags_overflow) + ((uint64_t)n << 32);
    atomic_store_explicit(&bucket->tags_overflow, value, memory_order_seq_cst);
}

/* The first slot with this tag and number (a free one: tag 0, any number), or FL_TABLE_SLOTS. */
static inline uint32_t fl_table_slot_with(const struct fl_table_bucket *bucket, uint8_t tag,
                                          uint32_t at)
{
    uint32_t hits =
        fl_table_matches(fl_table_peek(&bucket->tags), fl_table_peek(&bucket->tags_overflow), tag);
    for (; hits != 0; hits &= hits - 1) {
        uint32_t slot = (uint32_t)__builtin_ctz(hits);
        if (tag == 0 || atomic_load_explicit(&bucket->at[slot], memory_order_relaxed) == at)
            return slot;
    }
    return FL_TABLE_SLOTS;
}

/* There is room. Overflow counts go up before the entry can be seen, so that no search stops short.
 */
static inline void fl_table_place(struct fl_table_bucket *all, uint32_t buckets, uint64_t hash,
                                  uint32_t at)
{
    uint32_t b = fl_table_home(hash, buckets);
    uint32_t slot = fl_table_slot_with(&all[b], 0, 0);
    while (__builtin_expect(slot == FL_TABLE_SLOTS, 0)) {
        fl_table_add_overflow(&all[b], 1);
        b = b + 1 < buckets ? b + 1 : 0;
        slot = fl_table_slot_with(&all[b], 0, 0);
    }
    atomic_store_explicit(&all[b].at[slot], at, memory_order_release);
    fl_table_set_tag(&all[b], slot, fl_table_tag(hash), memory_order_release);
}

/* After fl_table_reserve(). The number must not stand under this hash already. */
static inline void fl_table_insert(struct fl_table *table, uint64_t hash, uint32_t at)
{
    uint32_t segment = fl_table_segment(hash);
    uint64_t packed = fl_table_peek(&table->segments[segment]);
    fl_table_place(fl_table_buckets(packed), (uint32_t)(packed & 0xffff), hash, at);
    table->segment_count[segment]++;
    table->count++;
}

/* It must stand there. */
static inline void fl_table_remove(struct fl_table *table, uint64_t hash, uint32_t at)
{
    uint32_t segment = fl_table_segment(hash);
    uint64_t packed = fl_table_peek(&table->segments[segment]);
    struct fl_table_bucket *all = fl_table_buckets(packed);
    uint32_t buckets = (uint32_t)(packed & 0xffff);
    uint32_t home = fl_table_home(hash, buckets);
    uint32_t b = home;
    uint32_t slot = fl_table_slot_with(&all[b], fl_table_tag(hash), at);
    while (__builtin_expect(slot == FL_TABLE_SLOTS, 0)) {
        b = b + 1 < buckets ? b + 1 : 0;
        assert(b != home);
        slot = fl_table_slot_with(&all[b], fl_table_tag(hash), at);
    }
    fl_table_set_tag(&all[b], slot, 0, memory_order_seq_cst);
    for (uint32_t passed = home; passed != b; passed = passed + 1 < buckets ? passed + 1 : 0)
        fl_table_add_overflow(&all[passed], -1);
    table->segment_count[segment]--;
    table->count--;
}

/* Bytes of all segments. */
size_t fl_table_bytes(const struct fl_table *table);
/* NULL or what is wrong: counts, overflow counters, every entry reachable from its hash. */
const char *fl_table_check(const struct fl_table *table);

#endif
