/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/lru.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"

struct fl_lru_entry {
    uint64_t id;
    uint32_t older, newer;
};

void fl_lru_init(struct fl_lru *lru, uint32_t cap)
{
    uint32_t slots = 16;
    assert(cap > 0 && cap < UINT32_C(1) << 30);
    while (slots < 2 * (cap + 2))
        slots *= 2;
    lru->entries = fl_calloc((size_t)cap + 2, sizeof(*lru->entries));
    lru->table = fl_calloc(slots, sizeof(*lru->table));
    lru->table_mask = slots - 1;
    lru->cap = cap;
    fl_lru_clear(lru);
}

void fl_lru_fini(struct fl_lru *lru)
{
    fl_free(lru->entries);
    fl_free(lru->table);
    *lru = (struct fl_lru){0};
}

void fl_lru_clear(struct fl_lru *lru)
{
    memset(lru->table, 0, ((size_t)lru->table_mask + 1) * sizeof(*lru->table));
    lru->count = 0;
    lru->entries[0] = (struct fl_lru_entry){0};
    /* One spare: an id is inserted before the oldest is dropped. */
    lru->free_head = 1;
    for (uint32_t i = 1; i <= lru->cap + 1; i++)
        lru->entries[i].newer = i <= lru->cap ? i + 1 : 0;
}

/* The table slot that holds `id`, or the free one where it belongs. */
static uint32_t slot_of(const struct fl_lru *lru, uint64_t id)
{
    uint32_t slot = (uint32_t)fl_mix64(id + 1) & lru->table_mask;
    while (lru->table[slot] != 0 && lru->entries[lru->table[slot]].id != id)
        slot = (slot + 1) & lru->table_mask;
    return slot;
}

static void clear_slot(struct fl_lru *lru, uint32_t hole)
{
    uint32_t slot = hole;
    lru->table[hole] = 0;
    for (;;) {
        slot = (slot + 1) & lru->table_mask;
        uint32_t entry = lru->table[slot];
        if (entry == 0)
            return;
        uint32_t home = (uint32_t)fl_mix64(lru->entries[entry].id + 1) & lru->table_mask;
        /* Move back what could not be found past the hole. */
        if (((slot - home) & lru->table_mask) >= ((slot - hole) & lru->table_mask)) {
            lru->table[hole] = entry;
            lru->table[slot] = 0;
            hole = slot;
        }
    }
}

static void unlink_entry(struct fl_lru *lru, uint32_t at)
{
    struct fl_lru_entry *entry = &lru->entries[at];
    lru->entries[entry->older].newer = entry->newer;
    lru->entries[entry->newer].older = entry->older;
}

static void link_newest(struct fl_lru *lru, uint32_t at)
{
    struct fl_lru_entry *entry = &lru->entries[at];
    entry->older = lru->entries[0].older;
    entry->newer = 0;
    lru->entries[entry->older].newer = at;
    lru->entries[0].older = at;
}

bool fl_lru_has(const struct fl_lru *lru, uint64_t id)
{
    return lru->table[slot_of(lru, id)] != 0;
}

uint32_t fl_lru_lead(const struct fl_lru *lru, const uint64_t *ids, uint32_t count)
{
    uint32_t lead = 0;
    while (lead < count && fl_lru_has(lru, ids[lead]))
        lead++;
    return lead;
}

static void drop_oldest(struct fl_lru *lru, const struct fl_lru_changes *changes)
{
    uint32_t oldest = lru->entries[0].newer;
    uint64_t id = lru->entries[oldest].id;
    clear_slot(lru, slot_of(lru, id));
    unlink_entry(lru, oldest);
    lru->entries[oldest].newer = lru->free_head;
    lru->free_head = oldest;
    lru->count--;
    if (changes != NULL && changes->on_evict != NULL)
        changes->on_evict(changes->owner, id);
}

void fl_lru_touch(struct fl_lru *lru, const uint64_t *ids, uint32_t count,
                  const struct fl_lru_changes *changes)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = slot_of(lru, ids[i]);
        uint32_t at = lru->table[slot];
        if (at != 0) {
            unlink_entry(lru, at);
            link_newest(lru, at);
            continue;
        }
        at = lru->free_head;
        lru->free_head = lru->entries[at].newer;
        lru->entries[at].id = ids[i];
        lru->table[slot] = at;
        link_newest(lru, at);
        lru->count++;
        if (changes != NULL && changes->on_insert != NULL)
            changes->on_insert(changes->owner, ids[i], i);
        if (lru->count > lru->cap)
            drop_oldest(lru, changes);
    }
}
