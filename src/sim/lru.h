/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix cache of one engine: at most `cap` blocks, least recently used out first
 * (performance.md (g)). Blocks are 64-bit ids that stand for a whole prefix. Lookup, touch and
 * evict are O(1) a block. Single-threaded. */
#ifndef FL_SIM_LRU_H
#define FL_SIM_LRU_H

#include <stdbool.h>
#include <stdint.h>

struct fl_lru_entry;

struct fl_lru {
    struct fl_lru_entry
        *entries;    /* cap + 1 of them; links are indices, entry 0 is the ring's head */
    uint32_t *table; /* open addressing over entries; 0: free */
    uint32_t table_mask;
    uint32_t cap, count;
    uint32_t free_head;
};

void fl_lru_init(struct fl_lru *lru, uint32_t cap);
/* Idempotent. */
void fl_lru_fini(struct fl_lru *lru);

bool fl_lru_has(const struct fl_lru *lru, uint64_t id);
/* Length of the leading run of ids that are held. */
uint32_t fl_lru_lead(const struct fl_lru *lru, const uint64_t *ids, uint32_t count);

struct fl_lru_changes {
    void *owner;
    /* `id` was not held and is now. NULL allowed. */
    void (*on_insert)(void *owner, uint64_t id, uint32_t position);
    /* `id` was the oldest and is gone. NULL allowed. */
    void (*on_evict)(void *owner, uint64_t id);
};

/* Every id in order is moved to, or inserted at, the recent end; the oldest is dropped while more
 * than cap are held. `changes` NULL allowed. */
void fl_lru_touch(struct fl_lru *lru, const uint64_t *ids, uint32_t count,
                  const struct fl_lru_changes *changes);
/* Drops all, without calls. */
void fl_lru_clear(struct fl_lru *lru);

#endif
