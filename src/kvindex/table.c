/* SPDX-License-Identifier: Apache-2.0 */
#include "kvindex/table.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"

/* Growth by two fifths: the load swings between 61 and 85 %. */
static uint32_t grown(uint32_t buckets)
{
    if (buckets < 5)
        return buckets + 1;
    return buckets * 7 / 5 < FL_TABLE_BUCKETS_MAX ? buckets * 7 / 5 : FL_TABLE_BUCKETS_MAX;
}

static uint64_t pack(const struct fl_table_bucket *all, uint32_t buckets)
{
    uint64_t address = (uint64_t)(uintptr_t)all;
    assert((address & 63) == 0 && address >> 54 == 0 && buckets <= FL_TABLE_BUCKETS_MAX);
    return address >> 6 << 16 | buckets;
}

void fl_table_init(struct fl_table *table, uint64_t seed, struct fl_space *space)
{
    for (size_t i = 0; i < FL_TABLE_SEGMENTS; i++) {
        atomic_init(&table->segments[i], 0);
        table->segment_count[i] = 0;
    }
    table->seed = seed;
    table->count = 0;
    table->space = space;
}

void fl_table_free_segment(struct fl_table *table, uint64_t packed)
{
    fl_space_give(table->space, fl_table_buckets(packed),
                  (packed & 0xffff) * sizeof(struct fl_table_bucket));
}

static uint8_t tag_at(const struct fl_table_bucket *bucket, uint32_t slot)
{
    uint64_t word = slot < 8 ? fl_table_peek(&bucket->tags) : fl_table_peek(&bucket->tags_overflow);
    return (uint8_t)(word >> 8 * (slot % 8));
}

static struct fl_table_bucket *new_buckets(struct fl_table *table, uint32_t buckets)
{
    size_t bytes = buckets * sizeof(struct fl_table_bucket);
    struct fl_table_bucket *all = fl_space_take(table->space, bytes);
    memset(all, 0, bytes);
    return all;
}

/* How many entries before (b, slot) in scan order are of the same number and tag. */
static uint32_t nth_of(const struct fl_table_bucket *all, uint32_t b, uint32_t slot)
{
    uint32_t at = atomic_load_explicit(&all[b].at[slot], memory_order_relaxed);
    uint8_t tag = tag_at(&all[b], slot);
    uint32_t nth = 0;
    for (uint32_t i = 0; i <= b; i++)
        for (uint32_t s = 0; s < (i < b ? FL_TABLE_SLOTS : slot); s++)
            if (tag_at(&all[i], s) == tag &&
                atomic_load_explicit(&all[i].at[s], memory_order_relaxed) == at)
                nth++;
    return nth;
}

/* The hash under which the entry was placed: it must lead to this segment and tag. Only an entry
 * whose number has several such hashes needs to know which one it is. */
static uint64_t entry_hash(const struct fl_table *table, const struct fl_table_bucket *all,
                           uint32_t segment, uint32_t b, uint32_t slot)
{
    uint32_t at = atomic_load_explicit(&all[b].at[slot], memory_order_relaxed);
    uint8_t tag = tag_at(&all[b], slot);
    uint64_t hash = table->hash_of(table->owner, at, segment, tag, FL_TABLE_ONLY);
    if (hash != 0)
        return hash;
    return table->hash_of(table->owner, at, segment, tag, nth_of(all, b, slot));
}

static void prefetch_entries(const struct fl_table *table, const struct fl_table_bucket *bucket)
{
    for (uint32_t slot = 0; slot < FL_TABLE_SLOTS; slot++)
        if (tag_at(bucket, slot) != 0)
            table->prefetch(table->owner,
                            atomic_load_explicit(&bucket->at[slot], memory_order_relaxed));
}

bool fl_table_grow(struct fl_table *table, uint32_t segment)
{
    uint64_t packed = fl_table_peek(&table->segments[segment]);
    const struct fl_table_bucket *old = fl_table_buckets(packed);
    uint32_t old_buckets = (uint32_t)(packed & 0xffff);
    if (old_buckets == FL_TABLE_BUCKETS_MAX)
        return false;
    uint32_t buckets = grown(old_buckets);
    struct fl_table_bucket *all = new_buckets(table, buckets);

    for (uint32_t b = 0; b < old_buckets; b++) {
        if (b + 1 < old_buckets)
            prefetch_entries(table, &old[b + 1]);
        for (uint32_t slot = 0; slot < FL_TABLE_SLOTS; slot++)
            if (tag_at(&old[b], slot) != 0)
                fl_table_place(all, buckets, entry_hash(table, old, segment, b, slot),
                               atomic_load_explicit(&old[b].at[slot], memory_order_relaxed));
    }
    atomic_store_explicit(&table->segments[segment], pack(all, buckets), memory_order_seq_cst);
    if (packed != 0)
        table->retire(table, packed);
    return true;
}

size_t fl_table_bytes(const struct fl_table *table)
{
    size_t bytes = 0;
    for (size_t i = 0; i < FL_TABLE_SEGMENTS; i++)
        bytes += (fl_table_peek(&table->segments[i]) & 0xffff) * sizeof(struct fl_table_bucket);
    return bytes;
}

static const char *check_segment(const struct fl_table *table, uint32_t segment)
{
    uint64_t packed = fl_table_peek(&table->segments[segment]);
    struct fl_table_bucket *all = fl_table_buckets(packed);
    uint32_t buckets = (uint32_t)(packed & 0xffff);
    uint32_t entries = 0;
    bool exact = true; /* which of a number's entries is which cannot be told when keys collide */
    const char *wrong = NULL;

    uint32_t *overflow = fl_calloc(buckets + 1, sizeof(*overflow));
    for (uint32_t b = 0; b < buckets; b++)
        for (uint32_t slot = 0; slot < FL_TABLE_SLOTS; slot++) {
            if (tag_at(&all[b], slot) == 0)
                continue;
            entries++;
            exact &= table->hash_of(table->owner, all[b].at[slot], segment, tag_at(&all[b], slot),
                                    FL_TABLE_ONLY) != 0;
            uint64_t hash = entry_hash(table, all, segment, b, slot);
            if (hash == 0 || fl_table_segment(hash) != segment ||
                fl_table_tag(hash) != tag_at(&all[b], slot)) {
                wrong = "table: an entry's key does not lead to it";
                goto out;
            }
            for (uint32_t p = fl_table_home(hash, buckets); p != b; p = p + 1 < buckets ? p + 1 : 0)
                overflow[p]++;
        }
    for (uint32_t b = 0; b < buckets; b++)
        if (exact && overflow[b] != fl_table_peek(&all[b].tags_overflow) >> 32)
            wrong = "table: overflow count differs from the entries that passed the bucket";
    if (entries != table->segment_count[segment])
        wrong = "table: segment count differs from its entries";
out:
    fl_free(overflow);
    return wrong;
}

const char *fl_table_check(const struct fl_table *table)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < FL_TABLE_SEGMENTS; i++) {
        const char *wrong = check_segment(table, i);
        if (wrong != NULL)
            return wrong;
        count += table->segment_count[i];
    }
    return count == table->count ? NULL : "table: count differs from the sum of its segments";
}
