/* SPDX-License-Identifier: Apache-2.0 */
/* Hash maps: open addressing, power-of-two tables, linear probing, backward-shift deletion (no
 * tombstones), load at most 3/4. Values are pointers; the map owns neither keys' nor values'
 * objects. Expected O(1); growing rehashes at once, so reserve() what a request path will need.
 *
 * fl_map_u64: keys are 64-bit ids, mixed before use. fl_map_bytes: keys are byte strings,
 * *borrowed*: they must live in the value's object, and are hashed with a per-map random seed
 * because peers choose them. Not thread-safe. */
#ifndef FL_BASE_MAP_H
#define FL_BASE_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"

struct fl_map_u64_slot {
    uint64_t key;
    void *value; /* NULL: free slot; hence NULL cannot be stored */
};

struct fl_map_u64 {
    struct fl_map_u64_slot *slots; /* NULL while empty and never used */
    uint32_t cap, count;
};

/* Zeroed is valid. */
void fl_map_u64_fini(struct fl_map_u64 *map);
void *fl_map_u64_find(const struct fl_map_u64 *map, uint64_t key);
/* Stores or replaces; returns the former value or NULL. */
void *fl_map_u64_put(struct fl_map_u64 *map, uint64_t key, void *value);
/* Returns what was there, or NULL. */
void *fl_map_u64_take(struct fl_map_u64 *map, uint64_t key);
void fl_map_u64_reserve(struct fl_map_u64 *map, uint32_t count);
/* Iterates in no order: start with *at = 0; false at the end. No changes meanwhile. */
bool fl_map_u64_next(const struct fl_map_u64 *map, uint32_t *at, uint64_t *key, void **value);

struct fl_map_bytes_slot {
    uint64_t hash;
    struct fl_bytes key;
    void *value;
};

struct fl_map_bytes {
    struct fl_map_bytes_slot *slots;
    uint32_t cap, count;
    uint64_t seed; /* drawn at first put */
};

void fl_map_bytes_fini(struct fl_map_bytes *map);
void *fl_map_bytes_find(const struct fl_map_bytes *map, struct fl_bytes key);
void *fl_map_bytes_put(struct fl_map_bytes *map, struct fl_bytes key, void *value);
void *fl_map_bytes_take(struct fl_map_bytes *map, struct fl_bytes key);
bool fl_map_bytes_next(const struct fl_map_bytes *map, uint32_t *at, struct fl_bytes *key,
                       void **value);

#endif
