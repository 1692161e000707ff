/* SPDX-License-Identifier: Apache-2.0 */
/* Both maps are the same table: a key's home is its hash's low bits, it stands at its home or, if
 * that is taken, at the next free slot behind it. Taking one out moves later ones of the same run
 * up, so that no run ever has a hole between a home and its key. */
#include "base/map.h"

#include <assert.h>

#include "base/alloc.h"
#include "base/rng.h"

#define MAP_FIRST_CAP 8
#define MAP_CAP_MAX (UINT32_C(1) << 31)

/* The smallest capacity that holds `count` at a load of at most 3/4. */
static uint32_t cap_for(uint32_t count)
{
    uint64_t cap = MAP_FIRST_CAP;
    while (cap / 4 * 3 < count)
        cap *= 2;
    assert(cap <= MAP_CAP_MAX);
    return (uint32_t)cap;
}

/* May the entry with home `home`, standing at `at`, move into the hole before it? Only if its home
 * is not behind the hole, seen round the ring. */
static bool can_move(uint32_t home, uint32_t at, uint32_t hole, uint32_t mask)
{
    return ((at - home) & mask) >= ((at - hole) & mask);
}

/* ---- 64-bit keys ---- */

static uint32_t u64_home(const struct fl_map_u64 *map, uint64_t key)
{
    return (uint32_t)fl_mix64(key) & (map->cap - 1);
}

/* Where `key` is, or the free slot where it would go. cap > 0; a free slot exists. */
static uint32_t u64_locate(const struct fl_map_u64 *map, uint64_t key)
{
    uint32_t at = u64_home(map, key);
    while (map->slots[at].value != NULL && map->slots[at].key != key)
        at = (at + 1) & (map->cap - 1);
    return at;
}

static void u64_resize(struct fl_map_u64 *map, uint32_t cap)
{
    struct fl_map_u64 old = *map;
    map->slots = fl_calloc(cap, sizeof(*map->slots));
    map->cap = cap;
    for (uint32_t i = 0; i < old.cap; i++) {
        if (old.slots[i].value != NULL)
            map->slots[u64_locate(map, old.slots[i].key)] = old.slots[i];
    }
    fl_free(old.slots);
}

void fl_map_u64_fini(struct fl_map_u64 *map)
{
    fl_free(map->slots);
    *map = (struct fl_map_u64){0};
}

void *fl_map_u64_find(const struct fl_map_u64 *map, uint64_t key)
{
    return map->count == 0 ? NULL : map->slots[u64_locate(map, key)].value;
}

void *fl_map_u64_put(struct fl_map_u64 *map, uint64_t key, void *value)
{
    assert(value != NULL);
    fl_map_u64_reserve(map, map->count + 1);
    struct fl_map_u64_slot *slot = &map->slots[u64_locate(map, key)];
    void *former = slot->value;
    map->count += former == NULL;
    *slot = (struct fl_map_u64_slot){key, value};
    return former;
}

void *fl_map_u64_take(struct fl_map_u64 *map, uint64_t key)
{
    if (map->count == 0)
        return NULL;
    uint32_t mask = map->cap - 1;
    uint32_t hole = u64_locate(map, key);
    void *value = map->slots[hole].value;
    if (value == NULL)
        return NULL;
    for (uint32_t at = (hole + 1) & mask; map->slots[at].value != NULL; at = (at + 1) & mask) {
        if (can_move(u64_home(map, map->slots[at].key), at, hole, mask)) {
            map->slots[hole] = map->slots[at];
            hole = at;
        }
    }
    map->slots[hole] = (struct fl_map_u64_slot){0, NULL};
    map->count--;
    return value;
}

void fl_map_u64_reserve(struct fl_map_u64 *map, uint32_t count)
{
    uint32_t cap = cap_for(count);
    if (cap > map->cap)
        u64_resize(map, cap);
}

bool fl_map_u64_next(const struct fl_map_u64 *map, uint32_t *at, uint64_t *key, void **value)
{
    while (*at < map->cap) {
        const struct fl_map_u64_slot *slot = &map->slots[(*at)++];
        if (slot->value != NULL) {
            *key = slot->key;
            *value = slot->value;
            return true;
        }
    }
    return false;
}

/* ---- byte keys ---- */

#define SIP_ROUND(v)                                                                               \
    do {                                                                                           \
        v[0] += v[1];                                                                              \
        v[2] += v[3];                                                                              \
        v[1] = rotate_left(v[1], 13) ^ v[0];                                                       \
        v[3] = rotate_left(v[3], 16) ^ v[2];                                                       \
        v[0] = rotate_left(v[0], 32);                                                              \
        v[2] += v[1];                                                                              \
        v[0] += v[3];                                                                              \
        v[1] = rotate_left(v[1], 17) ^ v[2];                                                       \
        v[3] = rotate_left(v[3], 21) ^ v[0];                                                       \
        v[2] = rotate_left(v[2], 32);                                                              \
    } while (0)

static uint64_t rotate_left(uint64_t x, unsigned n)
{
    return (x << n) | (x >> (64 - n));
}

/* SipHash-1-3: peers choose the keys (model names, ids), so the hash must be one they cannot steer
 * without the seed. One compression and three final rounds are the variant meant for hash tables.
 */
static uint64_t hash_bytes(uint64_t seed, struct fl_bytes key)
{
    uint64_t k0 = seed, k1 = fl_mix64(seed + UINT64_C(0x9e3779b97f4a7c15));
    uint64_t v[4] = {k0 ^ UINT64_C(0x736f6d6570736575), k1 ^ UINT64_C(0x646f72616e646f6d),
                     k0 ^ UINT64_C(0x6c7967656e657261), k1 ^ UINT64_C(0x7465646279746573)};
    size_t at = 0;
    uint64_t word;

    for (; key.n - at >= 8; at += 8) {
        memcpy(&word, key.p + at, 8);
        v[3] ^= word;
        SIP_ROUND(v);
        v[0] ^= word;
    }
    word = (uint64_t)key.n << 56;
    if (at < key.n) {
        uint64_t rest = 0;
        memcpy(&rest, key.p + at, key.n - at);
        word |= rest;
    }
    v[3] ^= word;
    SIP_ROUND(v);
    v[0] ^= word;
    v[2] ^= 0xff;
    SIP_ROUND(v);
    SIP_ROUND(v);
    SIP_ROUND(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static uint32_t bytes_locate(const struct fl_map_bytes *map, uint64_t hash, struct fl_bytes key)
{
    uint32_t at = (uint32_t)hash & (map->cap - 1);
    while (map->slots[at].value != NULL &&
           (map->slots[at].hash != hash || !fl_bytes_eq(map->slots[at].key, key)))
        at = (at + 1) & (map->cap - 1);
    return at;
}

static void bytes_resize(struct fl_map_bytes *map, uint32_t cap)
{
    struct fl_map_bytes old = *map;
    map->slots = fl_calloc(cap, sizeof(*map->slots));
    map->cap = cap;
    for (uint32_t i = 0; i < old.cap; i++) {
        if (old.slots[i].value == NULL)
            continue;
        /* Keys differ from each other, so the first free slot behind the home is the place. */
        uint32_t at = (uint32_t)old.slots[i].hash & (cap - 1);
        while (map->slots[at].value != NULL)
            at = (at + 1) & (cap - 1);
        map->slots[at] = old.slots[i];
    }
    fl_free(old.slots);
}

void fl_map_bytes_fini(struct fl_map_bytes *map)
{
    fl_free(map->slots);
    *map = (struct fl_map_bytes){0};
}

void *fl_map_bytes_find(const struct fl_map_bytes *map, struct fl_bytes key)
{
    if (map->count == 0)
        return NULL;
    return map->slots[bytes_locate(map, hash_bytes(map->seed, key), key)].value;
}

void *fl_map_bytes_put(struct fl_map_bytes *map, struct fl_bytes key, void *value)
{
    assert(value != NULL);
    if (map->cap == 0)
        fl_random_bytes(&map->seed, sizeof(map->seed));
    uint32_t cap = cap_for(map->count + 1);
    if (cap > map->cap)
        bytes_resize(map, cap);
    uint64_t hash = hash_bytes(map->seed, key);
    struct fl_map_bytes_slot *slot = &map->slots[bytes_locate(map, hash, key)];
    void *former = slot->value;
    map->count += former == NULL;
    /* The key too: the former one lives in the object that is being replaced. */
    *slot = (struct fl_map_bytes_slot){hash, key, value};
    return former;
}

void *fl_map_bytes_take(struct fl_map_bytes *map, struct fl_bytes key)
{
    if (map->count == 0)
        return NULL;
    uint32_t mask = map->cap - 1;
    uint32_t hole = bytes_locate(map, hash_bytes(map->seed, key), key);
    void *value = map->slots[hole].value;
    if (value == NULL)
        return NULL;
    for (uint32_t at = (hole + 1) & mask; map->slots[at].value != NULL; at = (at + 1) & mask) {
        if (can_move((uint32_t)map->slots[at].hash & mask, at, hole, mask)) {
            map->slots[hole] = map->slots[at];
            hole = at;
        }
    }
    map->slots[hole] = (struct fl_map_bytes_slot){0};
    map->count--;
    return value;
}

bool fl_map_bytes_next(const struct fl_map_bytes *map, uint32_t *at, struct fl_bytes *key,
                       void **value)
{
    while (*at < map->cap) {
        const struct fl_map_bytes_slot *slot = &map->slots[(*at)++];
        if (slot->value != NULL) {
            *key = slot->key;
            *value = slot->value;
            return true;
        }
    }
    return false;
}
