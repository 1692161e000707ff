/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/epoch.h"
#include "base/error.h"
#include "kvevents/apply.h"
#include "kvindex/hash.h"
#include "wire_examples.h"

#define ROOM 4096
#define WORKER 11

struct world {
    struct fl_epoch *epoch;
    struct fl_kvindex *index;
    struct fl_kv_counters counters;
    struct fl_kv_applier applier;
    struct fl_kvindex_matches matches;
};

static void start(struct world *world, uint32_t block_tokens)
{
    fl_log_set_level(FL_LOG_ERROR);
    *world = (struct world){0};
    world->epoch = fl_epoch_new();
    world->index = fl_kvindex_new(world->epoch);
    world->applier = (struct fl_kv_applier){.index = world->index,
                                            .counters = &world->counters,
                                            .name = "test",
                                            .worker_id = WORKER,
                                            .block_tokens = block_tokens};
    fl_kv_applier_init(&world->applier);
}

static void finish(struct world *world)
{
    assert_null(fl_kvindex_check(world->index));
    fl_kv_applier_fini(&world->applier);
    fl_kvindex_matches_fini(&world->matches);
    fl_kvindex_free(world->index);
    fl_epoch_free(world->epoch);
}

static void feed(struct world *world, const char *hex)
{
    uint8_t bytes[ROOM];
    size_t n = unhex(hex, bytes, ROOM);
    if (fl_kv_apply(&world->applier, fl_bytes(bytes, n), 1000) != 0)
        fail_msg("refused: %s", hex);
}

/* One event in a batch of rank 0. */
static void feed_event(struct world *world, const char *event)
{
    char hex[ROOM + 16];
    snprintf(hex, sizeof(hex), "93 00 91 %s 00", event);
    feed(world, hex);
}

static uint64_t counted(const struct world *world, enum fl_kv_event_type type,
                        enum fl_kv_result result)
{
    return atomic_load_explicit(&world->counters.events[type][result], memory_order_relaxed);
}

/* Leading blocks of the prompt that the rank holds. */
static uint32_t held(struct world *world, const struct fl_block_space *space,
                     const uint32_t *tokens, size_t count, uint32_t dp_rank)
{
    uint64_t seq[64];
    size_t blocks = fl_block_hashes(space, tokens, count, NULL, seq);
    fl_kvindex_lookup(world->index, seq, blocks, &world->matches);
    for (uint32_t i = 0; i < world->matches.count; i++)
        if (world->matches.at[i].dp_rank == dp_rank && world->matches.at[i].worker_id == WORKER)
            return world->matches.at[i].blocks[FL_TIER_DEVICE];
    return 0;
}

static const uint32_t one_to_twelve[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

static uint32_t held_plain(struct world *world, uint32_t dp_rank)
{
    struct fl_block_space space = {4, false, FL_BLOCK_SEED};
    return held(world, &space, one_to_twelve, 12, dp_rank);
}

static uint32_t held_salted(struct world *world, const char *salt)
{
    struct fl_block_space space = {4, false,
                                   fl_block_seed((struct fl_bytes){0}, fl_bytes_of(salt))};
    return held(world, &space, one_to_twelve, 12, 0);
}

/* selection.md 11.7: W1, W4, W5 in turn */
static void stored_removed_and_cleared_change_the_index(void **state)
{
    (void)state;
    struct world world;
    start(&world, 4);
    feed(&world, W1);
    assert_int_equal(held_plain(&world, 0), 2);
    struct fl_kvindex_rank *rank = fl_kvindex_rank_find(world.index, WORKER, 0);
    assert_true(fl_kvindex_has(world.index, rank, FL_TIER_DEVICE, 101));
    assert_true(fl_kvindex_has(world.index, rank, FL_TIER_DEVICE, 102));
    /* by hand, as the page says: root -> local hashes of vector A */
    const uint64_t local[] = {14643705804678351452u, 16777012769546811212u};
    uint64_t seq[2];
    fl_block_chain_all(NULL, local, 2, seq);
    fl_kvindex_lookup(world.index, seq, 2, &world.matches);
    assert_int_equal(world.matches.count, 1);
    assert_int_equal(world.matches.at[0].blocks[0], 2);

    feed(&world, W4_MAP);
    assert_int_equal(held_plain(&world, 0), 1);
    feed(&world, W1);
    feed(&world, W4_ARRAY);
    assert_int_equal(held_plain(&world, 0), 1);
    feed(&world, W1);
    feed(&world, W1);
    assert_int_equal(counted(&world, FL_KV_STORED, FL_KV_DUPLICATE), 1);
    feed(&world, W5);
    assert_int_equal(held_plain(&world, 0), 0);
    assert_int_equal(counted(&world, FL_KV_STORED, FL_KV_OK), 3);
    assert_int_equal(counted(&world, FL_KV_REMOVED, FL_KV_OK), 2);
    assert_int_equal(counted(&world, FL_KV_CLEARED, FL_KV_OK), 1);
    finish(&world);
}

/* selection.md 11.7: W2 with its parent on the same rank, LoRA in the seed */
static void a_continuation_needs_its_parent_on_its_own_rank(void **state)
{
    (void)state;
    struct world world;
    start(&world, 4);
    feed(&world, W1); /* 101 on rank 0 */
    feed(&world, W2); /* below 101 on rank 1 */
    assert_int_equal(counted(&world, FL_KV_STORED, FL_KV_PARENT_NOT_FOUND), 1);

    /* W1 under the LoRA name on rank 1, then W2: tokens 1-8 and 9-12 */
    feed(&world, "93 00 91 98 " STORED " 92 64 65 c0 98 01 02 03 04 05 06 07 08 04 c0 a3 475055 "
                 "a6 6c6f72615f37 01");
    feed(&world, W2);
    struct fl_block_space space = {4, false,
                                   fl_block_seed(FL_BYTES("lora_7"), (struct fl_bytes){0})};
    assert_int_equal(held(&world, &space, one_to_twelve, 12, 1), 3);
    assert_int_equal(held_plain(&world, 1), 0);
    struct fl_kvindex_rank *rank = fl_kvindex_rank_find(world.index, WORKER, 1);
    assert_true(fl_kvindex_has(world.index, rank, FL_TIER_DEVICE, 0xfffffffffffffffeu));
    finish(&world);
}

/* selection.md 11.7: W6, W7, W8 */
static void digests_pairs_and_salts_are_understood(void **state)
{
    (void)state;
    struct world world;
    start(&world, 4);
    feed(&world, W6);
    struct fl_kvindex_rank *rank = fl_kvindex_rank_find(world.index, WORKER, 0);
    assert_true(fl_kvindex_has(world.index, rank, FL_TIER_DEVICE, 0x18191a1b1c1d1e1fu));
    feed(&world, W8);
    uint64_t vector_c = 5738685477468498325u;
    fl_kvindex_lookup(world.index, &vector_c, 1, &world.matches);
    assert_int_equal(world.matches.count, 1);
    assert_true(fl_kvindex_has(world.index, rank, FL_TIER_DEVICE, 14643705804678351452u));

    feed(&world, W7);
    struct fl_block_space eagle = {4, true,
                                   fl_block_seed((struct fl_bytes){0}, FL_BYTES("tenant-a"))};
    assert_int_equal(held(&world, &eagle, one_to_twelve, 5, 0), 1);
    finish(&world);
}

/* selection.md 11.5: medium, locality, kind */
static void filters_let_through_what_the_table_allows(void **state)
{
    (void)state;
    static const struct {
        const char *why, *medium, *locality, *kind;
        enum fl_kv_result result;
    } rows[] = {
        {"no medium", "c0", "c0", "c0", FL_KV_OK},
        {"empty medium", "a0", "c0", "c0", FL_KV_OK},
        {"GPU", "a3 475055", "c0", "c0", FL_KV_OK},
        {"gpu in lower case", "a3 677075", "c0", "c0", FL_KV_OK},
        {"DEVICE", "a6 444556494345", "c0", "c0", FL_KV_OK},
        {"an unknown medium", "a4 54415045", "c0", "c0", FL_KV_DROPPED_MEDIUM},
        {"LOCAL", "c0", "a5 4c4f43414c", "c0", FL_KV_OK},
        {"REMOTE", "c0", "a6 52454d4f5445", "c0", FL_KV_DROPPED_LOCALITY},
        {"an unknown locality", "c0", "a1 78", "c0", FL_KV_DROPPED_LOCALITY},
        {"full_attention", "c0", "c0", FULL_ATTENTION, FL_KV_OK},
        {"mla_attention", "c0", "c0", "ad 6d6c615f617474656e74696f6e", FL_KV_OK},
        {"sink_full_attention", "c0", "c0", "b3 73696e6b5f66756c6c5f617474656e74696f6e", FL_KV_OK},
        {"sliding_window", "c0", "c0", "ae 736c6964696e675f77696e646f77", FL_KV_DROPPED_KIND},
        {"mamba", "c0", "c0", "a5 6d616d6261", FL_KV_DROPPED_KIND},
        {"a kind nobody knows", "c0", "c0", "a1 78", FL_KV_DROPPED_KIND},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct world world;
        char event[ROOM];
        start(&world, 4);
        snprintf(event, sizeof(event),
                 "9d " STORED " 91 65 c0 94 01 02 03 04 04 c0 %s c0 c0 c0 %s c0 %s", rows[i].medium,
                 rows[i].kind, rows[i].locality);
        feed_event(&world, event);
        if (counted(&world, FL_KV_STORED, rows[i].result) != 1)
            fail_msg("%s", rows[i].why);
        assert_int_equal(held_plain(&world, 0), rows[i].result == FL_KV_OK ? 1 : 0);
        finish(&world);
    }
}

#define STORE_IN_GROUP(group, kind)                                                                \
    "9b " STORED " 91 65 c0 94 01 02 03 04 04 c0 c0 c0 c0 " group " " kind
#define REMOVE_IN_GROUP(group) "94 " REMOVED " 91 65 c0 " group
#define SLIDING "ae 736c6964696e675f77696e646f77"

/* selection.md 11.5: group_idx given, kind missing; trap 35 */
static void groups_are_known_by_what_their_stores_said(void **state)
{
    (void)state;
    struct world world;
    start(&world, 4);
    feed_event(&world, STORE_IN_GROUP("01", "c0"));
    assert_int_equal(counted(&world, FL_KV_STORED, FL_KV_DROPPED_KIND), 1); /* nothing learned */
    feed_event(&world, STORE_IN_GROUP("00", "c0"));
    assert_int_equal(held_plain(&world, 0), 1);
    feed_event(&world, STORE_IN_GROUP("00", SLIDING)); /* group 0 is learned to be another kind */
    feed_event(&world, REMOVE_IN_GROUP("00"));
    assert_int_equal(counted(&world, FL_KV_REMOVED, FL_KV_DROPPED_KIND), 1);
    assert_int_equal(held_plain(&world, 0), 1);
    feed_event(&world, STORE_IN_GROUP("05", FULL_ATTENTION));
    feed_event(&world, REMOVE_IN_GROUP("05"));
    assert_int_equal(held_plain(&world, 0), 0);
    /* of the same number on another rank nothing is known */
    feed(&world, "93 00 91 " STORE_IN_GROUP("05", "c0") " 01");
    assert_int_equal(held_plain(&world, 1), 0);
    finish(&world);
}

/* selection.md 11.4: block size, short and surplus tokens; trap 9 */
static void blocks_of_another_size_or_without_tokens_are_dropped(void **state)
{
    (void)state;
    struct world world;
    start(&world, 4);
    feed_event(&world, "95 " STORED " 91 65 c0 98 01 02 03 04 05 06 07 08 08");
    assert_int_equal(counted(&world, FL_KV_STORED, FL_KV_BLOCK_SIZE_MISMATCH), 1);
    assert_int_equal(world.applier.block_size_mismatches, 1);
    assert_int_equal(world.applier.seen_block_tokens, 8);
    assert_int_equal(held_plain(&world, 0), 0);

    /* three blocks, tokens for two and a half: the complete leading ones */
    feed_event(&world, "95 " STORED " 93 65 66 67 c0 9a 01 02 03 04 05 06 07 08 09 0a 04");
    assert_int_equal(held_plain(&world, 0), 2);
    assert_int_equal(world.counters.short_stores, 1);
    struct fl_kvindex_rank *rank = fl_kvindex_rank_find(world.index, WORKER, 0);
    assert_false(fl_kvindex_has(world.index, rank, FL_TIER_DEVICE, 0x67));

    feed_event(&world, "95 " STORED " 91 67 66 97 09 0a 0b 0c 01 02 03 04"); /* surplus tokens */
    assert_int_equal(held_plain(&world, 0), 3);
    finish(&world);
}

/* selection.md 11.5: duplicate hash, parent among the blocks */
static void impossible_sequences_change_nothing(void **state)
{
    (void)state;
    struct world world;
    start(&world, 4);
    feed_event(&world, "95 " STORED " 92 65 65 c0 98 01 02 03 04 05 06 07 08 04");
    feed_event(&world, "95 " STORED " 92 65 66 65 98 01 02 03 04 05 06 07 08 04");
    assert_int_equal(counted(&world, FL_KV_STORED, FL_KV_INVALID_SEQUENCE), 2);
    assert_int_equal(held_plain(&world, 0), 0);
    finish(&world);
}

#define SALTED_STORE(hash, parent, tokens, salt)                                                   \
    "86 " KEY_TYPE STORED KEY_HASHES " 91 " hash " " KEY_PARENT " " parent " " KEY_TOKENS          \
    " 94 " tokens " " KEY_BLOCK_SIZE " 04 aa 63616368655f73616c74 " salt
#define TENANT_A "a8 74656e616e742d61"
#define FIRST "01 02 03 04"
#define SECOND "05 06 07 08"

/* selection.md 11.4: continuations inherit their parent's salt */
static void salts_are_inherited_until_they_are_ambiguous(void **state)
{
    (void)state;
    struct world world;
    start(&world, 4);
    feed_event(&world, SALTED_STORE("01", "c0", FIRST, TENANT_A));
    feed_event(&world, "95 " STORED " 91 02 01 94 " SECOND " 04"); /* says nothing of a salt */
    assert_int_equal(held_salted(&world, "tenant-a"), 2);
    assert_int_equal(held_plain(&world, 0), 0);

    /* the same hash under another salt: SGLang's do not contain it */
    feed_event(&world, SALTED_STORE("01", "c0", FIRST, "a1 62"));
    feed_event(&world, "95 " STORED " 91 03 01 94 " SECOND " 04");
    assert_int_equal(counted(&world, FL_KV_STORED, FL_KV_INVALID_SEQUENCE), 1);
    /* told, it is clear again which one is meant */
    feed_event(&world, SALTED_STORE("03", "01", SECOND, "a1 62"));
    assert_int_equal(held_salted(&world, "b"), 2);

    /* removed and stored anew, nothing is ambiguous */
    feed_event(&world, "92 " REMOVED " 93 01 02 03");
    feed_event(&world, SALTED_STORE("01", "c0", FIRST, "a1 62"));
    feed_event(&world, "95 " STORED " 91 02 01 94 " SECOND " 04");
    assert_int_equal(held_salted(&world, "b"), 2);

    /* unsalted first, salted later: ambiguous too */
    feed_event(&world, "95 " STORED " 91 04 c0 94 " FIRST " 04");
    feed_event(&world, SALTED_STORE("04", "c0", FIRST, TENANT_A));
    feed_event(&world, "95 " STORED " 91 05 04 94 " SECOND " 04");
    assert_int_equal(counted(&world, FL_KV_STORED, FL_KV_INVALID_SEQUENCE), 2);
    /* a parent nobody knows: unsalted, and so rejected by the index */
    feed_event(&world, "95 " STORED " 91 06 77 94 " SECOND " 04");
    assert_int_equal(counted(&world, FL_KV_STORED, FL_KV_PARENT_NOT_FOUND), 1);
    finish(&world);
}

#define KEYED_STORE(hash, parent, tokens, keys)                                                    \
    "99 " STORED " 91 " hash " " parent " 94 " tokens " 04 c0 c0 c0 " keys

/* selection.md 11.4: plain vLLM puts the raw salt among the first block's extra keys */
static void vllms_raw_salt_keeps_salted_and_unsalted_apart(void **state)
{
    (void)state;
    struct world world;
    start(&world, 4);
    feed_event(&world, KEYED_STORE("01", "c0", FIRST, "91 91 " TENANT_A));
    feed_event(&world, KEYED_STORE("02", "01", SECOND, "91 c0"));
    assert_int_equal(held_plain(&world, 0), 0);
    assert_int_equal(held_salted(&world, "tenant-a"), 2);
    /* in a continuation a plain string is no salt */
    feed_event(&world, "95 " STORED " 91 03 c0 94 " FIRST " 04");
    feed_event(&world, KEYED_STORE("04", "03", SECOND, "91 91 " TENANT_A));
    assert_int_equal(held_plain(&world, 0), 2);
    finish(&world);
}

/* selection.md 11.4, 10.4: images change the hash of their block */
static void blocks_with_images_match_only_with_them(void **state)
{
    (void)state;
    struct world world;
    start(&world, 4);
    feed_event(&world,
               KEYED_STORE("01", "c0", FIRST, "91 91 92 ae 6f70617175652d696d6167652d30 00"));
    assert_int_equal(held_plain(&world, 0), 0);
    struct fl_block_space space = {4, false, FL_BLOCK_SEED};
    uint64_t image[] = {7447875215993299872u};
    uint64_t local = fl_block_local_hash_images(&space, one_to_twelve, image, 1);
    fl_kvindex_lookup(world.index, &local, 1, &world.matches);
    assert_int_equal(world.matches.count, 1);
    finish(&world);
}

/* selection.md 11.3: unknown and broken events are counted, the rest of the batch counts */
static void one_bad_event_does_not_spoil_the_batch(void **state)
{
    (void)state;
    struct world world;
    start(&world, 4);
    feed(&world, "93 00 94 91 a3 4e6577 92 " STORED " 01 91 a7 49676e6f726564 "
                 "95 " STORED " 91 65 c0 94 01 02 03 04 04 00");
    assert_int_equal(counted(&world, FL_KV_OTHER, FL_KV_UNKNOWN_EVENT), 1);
    assert_int_equal(counted(&world, FL_KV_STORED, FL_KV_MALFORMED), 1);
    assert_int_equal(counted(&world, FL_KV_OTHER, FL_KV_OK), 1);
    assert_int_equal(counted(&world, FL_KV_STORED, FL_KV_OK), 1);
    assert_int_equal(held_plain(&world, 0), 1);
    uint8_t bytes[] = {0x93, 0x00};
    assert_int_equal(fl_kv_apply(&world.applier, fl_bytes(bytes, 2), 1000), FL_EPROTO);
    assert_int_equal(world.counters.malformed_batches, 1);
    assert_int_equal(world.counters.batches, 1);
    finish(&world);
}

/* selection.md 11.6: every rank seen on the socket */
static void clearing_the_applier_clears_all_ranks_it_has_seen(void **state)
{
    (void)state;
    struct world world;
    start(&world, 4);
    feed(&world, "93 00 91 95 " STORED " 91 65 c0 94 01 02 03 04 04 02");
    feed(&world, "93 00 91 95 " STORED " 91 65 c0 94 01 02 03 04 04 c0");
    struct fl_kvindex_rank *other = fl_kvindex_rank_get(world.index, WORKER + 1, 0);
    const uint64_t name = 1, local = 2;
    struct fl_kvindex_store event = {.count = 1, .external = &name, .local = &local};
    assert_int_equal(fl_kvindex_store(world.index, other, &event, NULL), 0);
    fl_kv_applier_clear(&world.applier);
    assert_int_equal(held_plain(&world, 2), 0);
    assert_int_equal(held_plain(&world, 0), 0);
    assert_int_equal(fl_kvindex_rank_blocks(other, FL_TIER_DEVICE), 1);
    finish(&world);
}

/* The cap on ranks of one socket: a batch at it is applied, one beyond is refused. */
static void ranks_of_one_socket_are_capped(void **state)
{
    (void)state;
    struct world world;
    start(&world, 4);
    for (uint32_t rank = 0; rank <= FL_KV_RANKS_MAX; rank++) {
        uint8_t bytes[] = {0x93, 0x00, 0x90, 0xcd, (uint8_t)(rank >> 8), (uint8_t)rank};
        int rc = fl_kv_apply(&world.applier, fl_bytes(bytes, sizeof(bytes)), 1000);
        assert_int_equal(rc, rank < FL_KV_RANKS_MAX ? 0 : FL_ELIMIT);
    }
    feed(&world, W1);
    assert_int_equal(held_plain(&world, 0), 2);
    finish(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stored_removed_and_cleared_change_the_index),
        cmocka_unit_test(a_continuation_needs_its_parent_on_its_own_rank),
        cmocka_unit_test(digests_pairs_and_salts_are_understood),
        cmocka_unit_test(filters_let_through_what_the_table_allows),
        cmocka_unit_test(groups_are_known_by_what_their_stores_said),
        cmocka_unit_test(blocks_of_another_size_or_without_tokens_are_dropped),
        cmocka_unit_test(impossible_sequences_change_nothing),
        cmocka_unit_test(salts_are_inherited_until_they_are_ambiguous),
        cmocka_unit_test(vllms_raw_salt_keeps_salted_and_unsalted_apart),
        cmocka_unit_test(blocks_with_images_match_only_with_them),
        cmocka_unit_test(one_bad_event_does_not_spoil_the_batch),
        cmocka_unit_test(clearing_the_applier_clears_all_ranks_it_has_seen),
        cmocka_unit_test(ranks_of_one_socket_are_capped),
    };
    return cmocka_run_group_tests_name("kvevents/apply", tests, NULL, NULL);
}
