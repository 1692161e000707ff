/* SPDX-License-Identifier: Apache-2.0 */
#include "kvevents/apply.h"

#include <assert.h>
#include <inttypes.h>

#include "base/alloc.h"
#include "kvindex/hash.h"

#define SALT_NONE 0
#define SALT_AMBIGUOUS 1 /* stored under two salts */
#define MISMATCH_WARNINGS 3

_Static_assert(sizeof(uintptr_t) >= sizeof(uint64_t), "salts are kept in place of pointers");

void fl_kv_applier_init(struct fl_kv_applier *applier)
{
    assert(applier->index != NULL && applier->counters != NULL && applier->block_tokens > 0);
    applier->ranks = NULL;
    applier->groups = NULL;
    applier->local = NULL;
    applier->rank_count = applier->group_count = applier->local_cap = 0;
    applier->event = (struct fl_kv_event){0};
}

void fl_kv_applier_fini(struct fl_kv_applier *applier)
{
    for (size_t i = 0; i < applier->rank_count; i++)
        fl_map_u64_fini(&applier->ranks[i].salts);
    fl_free(applier->ranks);
    fl_free(applier->groups);
    fl_free(applier->local);
    fl_kv_event_fini(&applier->event);
    fl_kv_applier_init(applier);
}

/* One writer: load and store need not be one operation. */
static void add(_Atomic uint64_t *counter, uint64_t n)
{
    uint64_t value = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, value + n, memory_order_relaxed);
}

static enum fl_kv_event_type type_of(enum fl_kv_kind kind)
{
    switch (kind) {
    case FL_KV_KIND_STORED:
        return FL_KV_STORED;
    case FL_KV_KIND_REMOVED:
        return FL_KV_REMOVED;
    case FL_KV_KIND_CLEARED:
        return FL_KV_CLEARED;
    case FL_KV_KIND_IGNORED:
    case FL_KV_KIND_UNKNOWN:
        break;
    }
    return FL_KV_OTHER;
}

/* ---- ranks and salts ---- */

/* NULL beyond the cap. */
static struct fl_kv_seen_rank *seen_rank(struct fl_kv_applier *applier, uint32_t rank)
{
    for (size_t i = 0; i < applier->rank_count; i++)
        if (applier->ranks[i].rank == rank)
            return &applier->ranks[i];
    if (applier->rank_count == FL_KV_RANKS_MAX)
        return NULL;
    applier->ranks = fl_realloc(applier->ranks, applier->rank_count + 1, sizeof(*applier->ranks));
    struct fl_kv_seen_rank *seen = &applier->ranks[applier->rank_count++];
    *seen = (struct fl_kv_seen_rank){.rank = rank};
    return seen;
}

void fl_kv_applier_clear(struct fl_kv_applier *applier)
{
    for (size_t i = 0; i < applier->rank_count; i++) {
        struct fl_kvindex_rank *rank =
            fl_kvindex_rank_find(applier->index, applier->worker_id, applier->ranks[i].rank);
        if (rank != NULL)
            fl_kvindex_clear(applier->index, rank);
        fl_map_u64_fini(&applier->ranks[i].salts);
    }
    applier->group_count = 0; /* a restarted engine may have another layout */
}

static uint64_t salt_of(const struct fl_kv_seen_rank *seen, uint64_t name)
{
    return (uint64_t)(uintptr_t)fl_map_u64_find(&seen->salts, name);
}

static void set_salt(struct fl_kv_seen_rank *seen, uint64_t name, uint64_t salt)
{
    if (salt == SALT_NONE)
        fl_map_u64_take(&seen->salts, name);
    else
        fl_map_u64_put(&seen->salts, name,
                       (void *)(uintptr_t)salt); // NOLINT(performance-no-int-to-ptr)
}

/* The salt's part of the seed; the two numbers that mean something else are given up. */
static uint64_t salt_part(struct fl_bytes salt)
{
    if (salt.n == 0)
        return SALT_NONE;
    uint64_t part = fl_block_seed((struct fl_bytes){0}, salt) - FL_BLOCK_SEED;
    return part > SALT_AMBIGUOUS ? part : SALT_AMBIGUOUS + 1;
}

/* The salt under which this store's blocks were hashed (11.4). */
static uint64_t salt_of_store(const struct fl_kv_event *event, const struct fl_kv_seen_rank *seen)
{
    if (!fl_bytes_is_absent(event->cache_salt))
        return salt_part(event->cache_salt);
    if (!fl_bytes_is_absent(event->key_salt))
        return salt_part(event->key_salt);
    if (event->has_parent)
        return salt_of(seen, event->parent);
    return salt_part(event->plain_key); /* vLLM's raw form; a wrong guess only causes misses */
}

/* ---- filters (11.5) ---- */

static const struct {
    const char *word;
    enum fl_tier tier;
} media[] = {
    {"GPU", FL_TIER_DEVICE},
    {"DEVICE", FL_TIER_DEVICE},
    {"CPU", FL_TIER_HOST_PINNED},
    {"CPU_PINNED", FL_TIER_HOST_PINNED},
    {"CPU_TIER1", FL_TIER_HOST_PINNED},
    {"CPU_TIER2", FL_TIER_DISK},
    {"DISK", FL_TIER_DISK},
    {"NVME", FL_TIER_DISK},
    {"STORAGE", FL_TIER_DISK},
    {"EXTERNAL", FL_TIER_EXTERNAL},
    {"NETWORK", FL_TIER_EXTERNAL},
    {"REMOTE", FL_TIER_EXTERNAL},
    {"SHARED", FL_TIER_EXTERNAL},
};

static bool tier_of(struct fl_bytes medium, enum fl_tier *tier)
{
    *tier = FL_TIER_DEVICE;
    if (medium.n == 0)
        return true;
    for (size_t i = 0; i < FL_ARRAY_LEN(media); i++)
        if (fl_bytes_eq_nocase(medium, fl_bytes_of(media[i].word))) {
            *tier = media[i].tier;
            return true;
        }
    return false;
}

static bool is_main_kind(struct fl_bytes kind)
{
    return fl_bytes_eq(kind, FL_BYTES("full_attention")) ||
           fl_bytes_eq(kind, FL_BYTES("mla_attention")) ||
           fl_bytes_eq(kind, FL_BYTES("sink_full_attention"));
}

static struct fl_kv_group *find_group(struct fl_kv_applier *applier, uint32_t rank, uint64_t group)
{
    for (size_t i = 0; i < applier->group_count; i++)
        if (applier->groups[i].rank == rank && applier->groups[i].group == group)
            return &applier->groups[i];
    return NULL;
}

static void learn_group(struct fl_kv_applier *applier, uint32_t rank, uint64_t group, bool is_main)
{
    struct fl_kv_group *known = find_group(applier, rank, group);
    if (known != NULL) {
        known->is_main = is_main;
        return;
    }
    if (applier->group_count == FL_KV_GROUPS_MAX)
        return;
    applier->groups =
        fl_realloc(applier->groups, applier->group_count + 1, sizeof(*applier->groups));
    applier->groups[applier->group_count++] = (struct fl_kv_group){rank, group, is_main};
}

static bool passes_kind(struct fl_kv_applier *applier, uint32_t rank,
                        const struct fl_kv_event *event)
{
    if (event->spec_kind.n > 0) {
        bool is_main = is_main_kind(event->spec_kind);
        if (event->has_group && event->kind == FL_KV_KIND_STORED)
            learn_group(applier, rank, event->group, is_main);
        return is_main;
    }
    if (!event->has_group)
        return true;
    const struct fl_kv_group *known = find_group(applier, rank, event->group);
    return known != NULL ? known->is_main : event->group == 0;
}

/* FL_KV_OK if the event may reach the index. */
static enum fl_kv_result filter(struct fl_kv_applier *applier, uint32_t rank,
                                const struct fl_kv_event *event, enum fl_tier *tier)
{
    if (!passes_kind(applier, rank, event))
        return FL_KV_DROPPED_KIND;
    if (!tier_of(event->medium, tier))
        return FL_KV_DROPPED_MEDIUM;
    if (!fl_bytes_is_absent(event->locality) && !fl_bytes_eq(event->locality, FL_BYTES("LOCAL")))
        return FL_KV_DROPPED_LOCALITY;
    return FL_KV_OK;
}

/* ---- stores ---- */

static enum fl_kv_result mismatch(struct fl_kv_applier *applier, uint64_t block_tokens)
{
    applier->seen_block_tokens = block_tokens <= UINT32_MAX ? (uint32_t)block_tokens : UINT32_MAX;
    if (applier->block_size_mismatches++ < MISMATCH_WARNINGS)
        fl_log(FL_LOG_WARN, "kv events of another block size are dropped",
               "source=%s worker=%" PRIu64 " got=%" PRIu64 " want=%u", applier->name,
               applier->worker_id, block_tokens, applier->block_tokens);
    return FL_KV_BLOCK_SIZE_MISMATCH;
}

/* Blocks behind the given ones that carry images are hashed again, with them. */
static void hash_images(const struct fl_kv_event *event, const struct fl_block_space *space,
                        size_t count, uint64_t *local)
{
    if (space->block_tokens > FL_BLOCK_IMAGE_TOKENS_MAX)
        return;
    for (size_t i = 0; i < event->image_count;) {
        uint64_t images[FL_BLOCK_IMAGES_MAX];
        size_t n = 0;
        uint32_t block = event->images[i].block;
        for (; i < event->image_count && event->images[i].block == block; i++)
            if (n < FL_BLOCK_IMAGES_MAX)
                images[n++] = event->images[i].hash;
        if (block < count)
            local[block] = fl_block_local_hash_images(
                space, event->tokens + (size_t)block * space->block_tokens, images, n);
    }
}

/* Hashes of the complete leading blocks; their number. */
static size_t hash_blocks(struct fl_kv_applier *applier, const struct fl_kv_event *event,
                          uint64_t salt)
{
    struct fl_block_space space = {
        .block_tokens = applier->block_tokens,
        .is_eagle = event->is_eagle,
        .seed = fl_block_seed(event->lora_name, (struct fl_bytes){0}) + salt,
    };
    size_t count = fl_block_count(&space, event->token_count);
    if (count > event->hash_count)
        count = event->hash_count; /* surplus tokens are ignored */
    if (count < event->hash_count)
        add(&applier->counters->short_stores, 1);
    if (count > applier->local_cap) {
        applier->local_cap = count;
        applier->local = fl_realloc(applier->local, count, sizeof(*applier->local));
    }
    size_t tokens = count * space.block_tokens + (space.is_eagle && count > 0 ? 1 : 0);
    fl_block_local_hashes(&space, event->tokens, tokens, applier->local);
    hash_images(event, &space, count, applier->local);
    return count;
}

/* What the rank's blocks are known under, before and after a store: a name that has stood for two
 * different salts says nothing about its children's. */
static uint64_t salt_after(const struct fl_kv_applier *applier, const struct fl_kvindex_rank *rank,
                           const struct fl_kv_seen_rank *seen, enum fl_tier tier, uint64_t name,
                           uint64_t salt)
{
    uint64_t before = salt_of(seen, name);
    bool is_known = before != SALT_NONE || fl_kvindex_has(applier->index, rank, tier, name);
    return is_known && before != salt ? SALT_AMBIGUOUS : salt;
}

static enum fl_kv_result result_of(int rc, const struct fl_kvindex_stored *done)
{
    if (rc == FL_ENOT_FOUND)
        return FL_KV_PARENT_NOT_FOUND;
    if (rc == FL_EBAD_REQUEST)
        return FL_KV_INVALID_SEQUENCE;
    if (rc == FL_EUNSUPPORTED)
        return FL_KV_DROPPED_MEDIUM;
    if (rc < 0)
        return FL_KV_INDEX_FULL;
    return done->added == 0 && done->repeated > 0 ? FL_KV_DUPLICATE : FL_KV_OK;
}

static enum fl_kv_result store(struct fl_kv_applier *applier, struct fl_kv_seen_rank *seen,
                               const struct fl_kv_event *event, enum fl_tier tier)
{
    if (event->block_tokens != applier->block_tokens)
        return mismatch(applier, event->block_tokens);
    uint64_t salt = salt_of_store(event, seen);
    if (salt == SALT_AMBIGUOUS)
        return FL_KV_INVALID_SEQUENCE;
    struct fl_kvindex_rank *rank =
        fl_kvindex_rank_get(applier->index, applier->worker_id, seen->rank);
    if (rank == NULL)
        return FL_KV_INDEX_FULL;

    size_t count = hash_blocks(applier, event, salt);
    struct fl_kvindex_store to_index = {
        .tier = tier,
        .has_parent = event->has_parent,
        .parent = event->parent,
        .count = count,
        .external = event->hashes,
        .local = applier->local,
    };
    /* Salts are rare: without any, nothing is looked up for them. */
    bool has_salts = salt != SALT_NONE || seen->salts.count > 0;
    uint64_t *after = NULL;
    if (has_salts && count > 0) {
        after = fl_alloc(count * sizeof(*after));
        for (size_t i = 0; i < count; i++)
            after[i] = salt_after(applier, rank, seen, tier, event->hashes[i], salt);
    }
    struct fl_kvindex_stored done;
    int rc = fl_kvindex_store(applier->index, rank, &to_index, &done);
    for (size_t i = 0; rc == 0 && after != NULL && i < count; i++)
        set_salt(seen, event->hashes[i], after[i]);
    fl_free(after);
    add(&applier->counters->stored_blocks, done.added);
    return result_of(rc, &done);
}

static enum fl_kv_result take_away(struct fl_kv_applier *applier, struct fl_kv_seen_rank *seen,
                                   const struct fl_kv_event *event, enum fl_tier tier)
{
    struct fl_kvindex_rank *rank =
        fl_kvindex_rank_find(applier->index, applier->worker_id, seen->rank);
    if (rank == NULL)
        return FL_KV_OK;
    size_t removed =
        fl_kvindex_remove(applier->index, rank, tier, event->hashes, event->hash_count);
    add(&applier->counters->removed_blocks, removed);
    if (tier == FL_TIER_DEVICE && seen->salts.count > 0)
        for (size_t i = 0; i < event->hash_count; i++)
            set_salt(seen, event->hashes[i], SALT_NONE);
    return FL_KV_OK;
}

static enum fl_kv_result clear(struct fl_kv_applier *applier, struct fl_kv_seen_rank *seen)
{
    struct fl_kvindex_rank *rank =
        fl_kvindex_rank_find(applier->index, applier->worker_id, seen->rank);
    if (rank != NULL)
        fl_kvindex_clear(applier->index, rank);
    fl_map_u64_fini(&seen->salts);
    return FL_KV_OK;
}

static enum fl_kv_result apply_event(struct fl_kv_applier *applier, struct fl_kv_seen_rank *seen,
                                     const struct fl_kv_event *event)
{
    enum fl_tier tier;
    if (event->is_broken)
        return FL_KV_MALFORMED;
    if (event->kind == FL_KV_KIND_UNKNOWN)
        return FL_KV_UNKNOWN_EVENT;
    if (event->kind == FL_KV_KIND_IGNORED)
        return FL_KV_OK;
    if (event->kind == FL_KV_KIND_CLEARED)
        return clear(applier, seen);
    enum fl_kv_result result = filter(applier, seen->rank, event, &tier);
    if (result != FL_KV_OK)
        return result;
    return event->kind == FL_KV_KIND_STORED ? store(applier, seen, event, tier)
                                            : take_away(applier, seen, event, tier);
}

int fl_kv_apply(struct fl_kv_applier *applier, struct fl_bytes payload, uint64_t now_ms)
{
    struct fl_kv_batch batch;
    int rc = fl_kv_batch_open(&batch, payload);
    struct fl_kv_seen_rank *seen =
        rc == 0 ? seen_rank(applier, batch.has_rank ? batch.rank : applier->own_rank) : NULL;
    if (seen == NULL) {
        add(&applier->counters->malformed_batches, 1);
        fl_log_limited(&applier->log_limit, now_ms, 10000, FL_LOG_WARN,
                       rc < 0 ? "a malformed kv event batch is dropped"
                              : "too many ranks on one kv event socket",
                       "source=%s worker=%" PRIu64 " bytes=%zu", applier->name, applier->worker_id,
                       payload.n);
        return rc < 0 ? rc : FL_ELIMIT;
    }
    while (fl_kv_batch_next(&batch, &applier->event)) {
        enum fl_kv_result result = apply_event(applier, seen, &applier->event);
        add(&applier->counters->events[type_of(applier->event.kind)][result], 1);
    }
    applier->batches++;
    applier->last_ts = batch.ts;
    add(&applier->counters->batches, 1);
    return 0;
}
