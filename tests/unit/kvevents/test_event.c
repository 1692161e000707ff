/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "kvevents/event.h"
#include "wire_examples.h"

#define ROOM 1024

struct payload {
    uint8_t *bytes;
    size_t n;
};

/* In an allocation of its own, so that a read past the end is seen. */
static struct payload payload_of(const char *hex)
{
    uint8_t bytes[ROOM];
    struct payload payload = {.n = unhex(hex, bytes, ROOM)};
    payload.bytes = fl_alloc(payload.n);
    memcpy(payload.bytes, bytes, payload.n);
    return payload;
}

/* The first event of the payload; its bytes are leaked to the caller for as long as the event lends
 * them. */
static struct payload read_first(const char *hex, struct fl_kv_batch *batch,
                                 struct fl_kv_event *event)
{
    struct payload payload = payload_of(hex);
    if (fl_kv_batch_open(batch, fl_bytes(payload.bytes, payload.n)) != 0)
        fail_msg("refused: %s", hex);
    assert_true(fl_kv_batch_next(batch, event));
    return payload;
}

static void assert_text(struct fl_bytes got, const char *expected)
{
    if (!fl_bytes_eq(got, fl_bytes_of(expected)) || fl_bytes_is_absent(got) != (expected == NULL))
        fail_msg("\"%.*s\" is not \"%s\"", FL_FMT(got), expected != NULL ? expected : "(absent)");
}

/* selection.md 11.7: W1 to W8 */
static void the_annotated_examples_say_what_the_page_says(void **state)
{
    (void)state;
    static const struct {
        const char *name, *hex;
        enum fl_kv_kind kind;
        double ts;
        bool has_rank;
        uint32_t rank;
        size_t hash_count;
        uint64_t first_hash;
        bool has_parent;
        uint64_t parent;
        size_t token_count;
        uint32_t first_token;
        const char *medium, *lora_name, *cache_salt, *spec_kind;
        bool has_group, is_eagle;
    } rows[] = {
        {"W1", W1, FL_KV_KIND_STORED, 1700000000.5, true, 0, 2, 101, false, 0, 8, 1, "GPU", NULL,
         NULL, NULL, false, false},
        {"W2", W2, FL_KV_KIND_STORED, 1700000000.5, true, 1, 1, 0xfffffffffffffffeu, true, 101, 4,
         9, "GPU", "lora_7", NULL, "full_attention", true, false},
        {"W3", W3, FL_KV_KIND_STORED, 1700000001.0, false, 0, 1, 103, true, 102, 4, 9, "CPU", NULL,
         NULL, "full_attention", true, false},
        {"W4 array", W4_ARRAY, FL_KV_KIND_REMOVED, 1700000002.0, true, 0, 1, 102, false, 0, 0, 0,
         "GPU", NULL, NULL, NULL, false, false},
        {"W4 map", W4_MAP, FL_KV_KIND_REMOVED, 1700000002.0, true, 0, 1, 102, false, 0, 0, 0, "GPU",
         NULL, NULL, NULL, false, false},
        {"W5", W5, FL_KV_KIND_CLEARED, 1700000003.0, false, 0, 0, 0, false, 0, 0, 0, NULL, NULL,
         NULL, NULL, false, false},
        {"W6", W6, FL_KV_KIND_STORED, 1700000004.0, true, 0, 1, 0x18191a1b1c1d1e1fu, false, 0, 4, 1,
         "GPU", NULL, NULL, NULL, false, false},
        {"W7", W7, FL_KV_KIND_STORED, 1700000005.0, true, 0, 1, 7, false, 0, 5, 1, "GPU", NULL,
         "tenant-a", NULL, false, true},
        {"W8", W8, FL_KV_KIND_STORED, 1700000006.0, true, 0, 1, 14643705804678351452u, false, 0, 4,
         1, "GPU", NULL, "tenant-a", NULL, false, false},
    };
    struct fl_kv_event event = {
        0}; /* one for all: what one leaves behind must not reach the next */
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_kv_batch batch;
        struct payload payload = read_first(rows[i].hex, &batch, &event);
        if (event.is_broken || event.kind != rows[i].kind || batch.ts != rows[i].ts ||
            batch.has_rank != rows[i].has_rank || batch.rank != rows[i].rank || batch.count != 1 ||
            event.hash_count != rows[i].hash_count ||
            (event.hash_count > 0 && event.hashes[0] != rows[i].first_hash) ||
            event.has_parent != rows[i].has_parent || event.parent != rows[i].parent ||
            event.token_count != rows[i].token_count ||
            (event.token_count > 0 && event.tokens[0] != rows[i].first_token) ||
            event.has_group != rows[i].has_group || event.is_eagle != rows[i].is_eagle)
            fail_msg("%s", rows[i].name);
        if (event.kind == FL_KV_KIND_STORED)
            assert_int_equal(event.block_tokens, 4);
        for (size_t t = 0; t < event.token_count; t++)
            assert_int_equal(event.tokens[t], rows[i].first_token + t);
        assert_text(event.medium, rows[i].medium);
        assert_text(event.lora_name, rows[i].lora_name);
        assert_text(event.cache_salt, rows[i].cache_salt);
        assert_text(event.spec_kind, rows[i].spec_kind);
        assert_false(fl_kv_batch_next(&batch, &event));
        fl_free(payload.bytes);
    }
    fl_kv_event_fini(&event);
}

static const char *const examples[] = {W1, W2, W3, W4_ARRAY, W4_MAP, W5, W6, W7, W8};

/* selection.md 21.2: every truncation is refused */
static void every_truncation_of_the_examples_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < FL_ARRAY_LEN(examples); i++) {
        struct payload whole = payload_of(examples[i]);
        for (size_t n = 0; n < whole.n; n++) {
            struct fl_kv_batch batch;
            uint8_t *cut = fl_alloc(n > 0 ? n : 1);
            memcpy(cut, whole.bytes, n);
            if (fl_kv_batch_open(&batch, fl_bytes(cut, n)) == 0)
                fail_msg("example %zu cut at %zu", i, n);
            fl_free(cut);
        }
        fl_free(whole.bytes);
    }
}

/* Any single byte changed: no crash, no endless loop, and what is accepted can be read to its end.
 */
static void any_damaged_byte_is_survived(void **state)
{
    (void)state;
    struct fl_kv_event event = {0};
    for (size_t i = 0; i < FL_ARRAY_LEN(examples); i++) {
        struct payload whole = payload_of(examples[i]);
        for (size_t at = 0; at < whole.n; at++)
            for (unsigned value = 0; value < 256; value++) {
                struct fl_kv_batch batch;
                uint8_t was = whole.bytes[at];
                whole.bytes[at] = (uint8_t)value;
                if (fl_kv_batch_open(&batch, fl_bytes(whole.bytes, whole.n)) == 0) {
                    uint32_t events = 0;
                    while (fl_kv_batch_next(&batch, &event))
                        events++;
                    assert_int_equal(events, batch.count);
                }
                whole.bytes[at] = was;
            }
        fl_free(whole.bytes);
    }
    fl_kv_event_fini(&event);
}

#define BATCH1 "93 00 91 " /* one event, then c0 for the rank */

/* selection.md 11.2, 11.3: forms of the batch */
static void batches_come_in_several_shapes(void **state)
{
    (void)state;
    static const struct {
        const char *why, *hex;
        bool is_good;
        bool has_rank;
        uint32_t rank, count;
    } rows[] = {
        {"no events", "93 00 90 c0", true, false, 0, 0},
        {"two elements", "92 00 90", true, false, 0, 0},
        {"more elements than we know", "95 00 90 05 a1 78 91 c0", true, true, 5, 0},
        {"a negative ts", "93 ff 90 c0", true, false, 0, 0},
        {"f32 ts", "93 ca 3fc00000 90 c0", true, false, 0, 0},
        {"map: events, ts, dp_rank", "83 a6 6576656e7473 90 a2 7473 01 a7 64705f72616e6b 07", true,
         true, 7, 0},
        {"map: data_parallel_rank nil",
         "83 a2 7473 01 b2 646174615f706172616c6c656c5f72616e6b c0 a6 6576656e7473 90", true, false,
         0, 0},
        {"map: attn_dp_rank and an unknown key",
         "84 a2 7473 01 a1 78 81 01 02 ac 6174746e5f64705f72616e6b 02 a6 6576656e7473 90", true,
         true, 2, 0},
        {"map without events", "81 a2 7473 01", false, false, 0, 0},
        {"events are no array", "93 00 00 c0", false, false, 0, 0},
        {"ts is text", "93 a1 30 90 c0", false, false, 0, 0},
        {"rank is text", "93 00 90 a1 30", false, false, 0, 0},
        {"negative rank", "93 00 90 ff", false, false, 0, 0},
        {"rank beyond 32 bit", "93 00 90 cf 0000000100000000", false, false, 0, 0},
        {"one element", "91 00", false, false, 0, 0},
        {"no elements", "90", false, false, 0, 0},
        {"no batch at all", "c0", false, false, 0, 0},
        {"nothing", "", false, false, 0, 0},
        {"a byte too many", "93 00 90 c0 c0", false, false, 0, 0},
        {"the invalid byte", "93 00 91 c1 c0", false, false, 0, 0},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_kv_batch batch;
        struct payload payload = payload_of(rows[i].hex);
        bool is_good = fl_kv_batch_open(&batch, fl_bytes(payload.bytes, payload.n)) == 0;
        if (is_good != rows[i].is_good)
            fail_msg("%s", rows[i].why);
        if (is_good && (batch.has_rank != rows[i].has_rank || batch.rank != rows[i].rank ||
                        batch.count != rows[i].count))
            fail_msg("%s: rank or count", rows[i].why);
        fl_free(payload.bytes);
    }
}

/* selection.md 11.3: a broken event is skipped alone */
static void a_broken_event_leaves_the_next_one_whole(void **state)
{
    (void)state;
    static const struct {
        const char *why, *hex;
    } rows[] = {
        {"no tag", "90"},
        {"a number instead of an event", "05"},
        {"nil instead of an event", "c0"},
        {"the tag is a number", "92 01 91 01"},
        {"hashes missing", "91 " STORED},
        {"hashes are no array", "95 " STORED " 01 c0 90 04"},
        {"a hash is text of 7 bytes", "95 " STORED " 91 a7 61616161616161 c0 90 04"},
        {"a hash is a float", "95 " STORED " 92 01 cb 3ff0000000000000 c0 90 04"},
        {"tokens missing", "93 " STORED " 91 01 c0"},
        {"a token is negative", "95 " STORED " 91 01 c0 92 01 ff 04"},
        {"a token beyond 32 bit", "95 " STORED " 91 01 c0 91 cf 0000000100000000 04"},
        {"a whole float for a token", "95 " STORED " 91 01 c0 91 cb 3ff0000000000000 04"},
        {"a pair of three", "95 " STORED " 91 01 c0 92 92 01 02 93 01 02 03 04"},
        {"pairs, then a number", "95 " STORED " 91 01 c0 92 92 01 02 03 04"},
        {"numbers, then a pair", "95 " STORED " 91 01 c0 92 01 92 02 03 04"},
        {"block size missing", "94 " STORED " 91 01 c0 91 01"},
        {"block size 0", "95 " STORED " 91 01 c0 91 01 00"},
        {"block size is a float", "95 " STORED " 91 01 c0 91 01 cb 4010000000000000"},
        {"the parent is an array", "95 " STORED " 91 01 91 05 91 01 04"},
        {"the medium is a number", "97 " STORED " 91 01 c0 91 01 04 c0 07"},
        {"the LoRA name is a number", "98 " STORED " 91 01 c0 91 01 04 c0 c0 07"},
        {"removal without hashes", "91 " REMOVED},
        {"map without type", "81 " KEY_HASHES " 91 01"},
        {"map: removal without hashes", "81 " KEY_TYPE REMOVED},
        {"map: nested nonsense for hashes", "82 " KEY_TYPE REMOVED KEY_HASHES " 81 91 01 91 02"},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        char hex[ROOM];
        snprintf(hex, sizeof(hex), "93 00 92 %s 92 " REMOVED " 91 66 c0", rows[i].hex);
        struct fl_kv_batch batch;
        struct fl_kv_event event = {0};
        struct payload payload = read_first(hex, &batch, &event);
        if (!event.is_broken)
            fail_msg("%s", rows[i].why);
        if (!fl_kv_batch_next(&batch, &event) || event.is_broken ||
            event.kind != FL_KV_KIND_REMOVED || event.hash_count != 1 || event.hashes[0] != 0x66)
            fail_msg("%s: the next event", rows[i].why);
        assert_false(fl_kv_batch_next(&batch, &event));
        fl_kv_event_fini(&event);
        fl_free(payload.bytes);
    }
}

/* selection.md 11.3: unknown tags and Ignored are told apart, and neither is broken */
static void unknown_events_are_passed_over_whole(void **state)
{
    (void)state;
    static const struct {
        const char *why, *hex;
        enum fl_kv_kind kind;
    } rows[] = {
        {"unknown, array", "93 a3 4e6577 81 01 91 02 03", FL_KV_KIND_UNKNOWN},
        {"unknown, map", "82 " KEY_TYPE " a3 4e6577 a1 78 91 91 01", FL_KV_KIND_UNKNOWN},
        {"Ignored", "92 a7 49676e6f726564 01", FL_KV_KIND_IGNORED},
        {"a tag sent as bin", "91 c4 10 416c6c426c6f636b73436c6561726564", FL_KV_KIND_CLEARED},
        {"clear with a medium", "92 b0 416c6c426c6f636b73436c6561726564 a3 475055",
         FL_KV_KIND_CLEARED},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        char hex[ROOM];
        snprintf(hex, sizeof(hex), "93 00 92 %s 92 " REMOVED " 91 66 c0", rows[i].hex);
        struct fl_kv_batch batch;
        struct fl_kv_event event = {0};
        struct payload payload = read_first(hex, &batch, &event);
        if (event.is_broken || event.kind != rows[i].kind)
            fail_msg("%s", rows[i].why);
        if (!fl_kv_batch_next(&batch, &event) || event.kind != FL_KV_KIND_REMOVED)
            fail_msg("%s: the next event", rows[i].why);
        fl_kv_event_fini(&event);
        fl_free(payload.bytes);
    }
}

#define STORE9 STORED " 91 01 c0 91 01 04 c0 c0 c0 c0 " /* positions 0 to 8 */

/* selection.md 11.3: the tail of older and newer senders */
static void the_tail_is_read_by_order_when_it_fits_and_by_type_otherwise(void **state)
{
    (void)state;
    static const struct {
        const char *why, *hex;
        bool has_group;
        uint64_t group;
        const char *kind, *locality;
        size_t images;
    } rows[] = {
        {"nothing", "99 " STORE9, false, 0, NULL, NULL, 0},
        {"in order, five", "9e " STORE9 "02 " FULL_ATTENTION " 10 a5 4c4f43414c a1 78", true, 2,
         "full_attention", "LOCAL", 0},
        {"in order with nils", "9d " STORE9 "c0 c0 c0 a6 52454d4f5445", false, 0, NULL, "REMOTE",
         0},
        {"an unknown locality", "9d " STORE9 "c0 c0 c0 a1 78", false, 0, NULL, "x", 0},
        {"one integer", "9a " STORE9 "03", true, 3, NULL, NULL, 0},
        {"kind before group", "9b " STORE9 FULL_ATTENTION " 03", true, 3, "full_attention", NULL,
         0},
        {"group and window", "9b " STORE9 "03 10", true, 3, NULL, NULL, 0},
        {"images before the rest",
         "9d " STORE9 "91 81 aa 6d6d5f6f626a65637473 91 81 a7 6d6d5f68617368 2a 03 10 a3 6b6e64",
         true, 3, "knd", NULL, 1},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        char hex[ROOM];
        snprintf(hex, sizeof(hex), BATCH1 "%s c0", rows[i].hex);
        struct fl_kv_batch batch;
        struct fl_kv_event event = {0};
        struct payload payload = read_first(hex, &batch, &event);
        if (event.is_broken || event.has_group != rows[i].has_group ||
            event.group != rows[i].group || event.image_count != rows[i].images)
            fail_msg("%s", rows[i].why);
        assert_text(event.spec_kind, rows[i].kind);
        assert_text(event.locality, rows[i].locality);
        fl_kv_event_fini(&event);
        fl_free(payload.bytes);
    }
}

/* selection.md 11.3 position 8, 11.4; trap 7 */
static void extra_keys_give_salt_and_images(void **state)
{
    (void)state;
    static const char digest[] = "3030313132323333343435353636373738383939616162626363646465656666"
                                 "3030313132323333343435353636373738383939616162626363646465656666";
    char sixty_four[200];
    snprintf(sixty_four, sizeof(sixty_four), "d9 40 %s", digest);
    struct {
        const char *why, *keys;
        const char *key_salt, *plain_key;
        size_t images;
        uint64_t image;
    } rows[] = {
        {"nil", "c0", NULL, NULL, 0, 0},
        {"nils by block", "91 c0", NULL, NULL, 0, 0},
        {"a marked salt", "91 91 ba 64796e616d6f2d63616368652d73616c743a 74656e616e742d61",
         "tenant-a", NULL, 0, 0},
        {"vLLM's raw salt", "91 91 a8 74656e616e742d61", NULL, "tenant-a", 0, 0},
        {"the LoRA name is neither", "91 92 a6 6c6f72615f37 a8 74656e616e742d61", NULL, "tenant-a",
         0, 0},
        {"an image with its offset", "91 91 92 ae 6f70617175652d696d6167652d30 05", NULL, NULL, 1,
         7447875215993299872u},
        {"an image digest", NULL, NULL, NULL, 1, 0x0011223344556677u},
        {"values of every kind", "91 97 01 ff cb 3ff0000000000000 c3 c4 02 0001 90 80", NULL, NULL,
         0, 0},
        {"typed: lora, salt, image",
         "91 93 82 a4 74797065 a4 6c6f7261 a4 6e616d65 a1 78 "
         "82 a4 74797065 aa 63616368655f73616c74 a4 73616c74 a1 73 "
         "83 a4 74797065 a2 6d6d a4 68617368 ae 6f70617175652d696d6167652d30 a1 7a 91 01",
         "s", NULL, 1, 7447875215993299872u},
        {"typed: legacy holds what was plain",
         "91 91 82 a4 74797065 a6 6c6567616379 a5 76616c7565 a1 73", NULL, "s", 0, 0},
        {"keys of a block that is not there", "92 c0 91 a1 73", NULL, NULL, 0, 0},
        {"no array", "07", NULL, NULL, 0, 0},
    };
    char with_digest[300];
    snprintf(with_digest, sizeof(with_digest), "91 91 %s", sixty_four);
    rows[6].keys = with_digest;

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        char hex[ROOM];
        /* In the map form the keys may come before the LoRA name they are compared with. */
        snprintf(hex, sizeof(hex),
                 BATCH1 "87 aa 65787472615f6b657973 %s " KEY_TYPE STORED KEY_HASHES
                        " 91 01 " KEY_TOKENS " 91 01 " KEY_BLOCK_SIZE " 04 " KEY_PARENT
                        " c0 " KEY_LORA_NAME " a6 6c6f72615f37 c0",
                 rows[i].keys);
        struct fl_kv_batch batch;
        struct fl_kv_event event = {0};
        struct payload payload = read_first(hex, &batch, &event);
        if (event.is_broken || event.image_count != rows[i].images ||
            (event.image_count > 0 && event.images[0].hash != rows[i].image))
            fail_msg("%s", rows[i].why);
        if (!fl_bytes_eq(event.key_salt, fl_bytes_of(rows[i].key_salt)) ||
            !fl_bytes_eq(event.plain_key, fl_bytes_of(rows[i].plain_key)))
            fail_msg("%s: salt", rows[i].why);
        fl_kv_event_fini(&event);
        fl_free(payload.bytes);
    }
}

/* selection.md 11.9: map keys in any order, the last of equal ones wins, bin for str */
static void map_keys_come_in_any_order_and_the_last_of_equals_wins(void **state)
{
    (void)state;
    struct fl_kv_batch batch;
    struct fl_kv_event event = {0};
    struct payload payload = read_first(
        BATCH1 "84 " KEY_MEDIUM " a3 475055 c4 0c 626c6f636b5f686173686573 93 01 02 03 " KEY_HASHES
               " 91 09 c4 04 74797065 " REMOVED " c0",
        &batch, &event);
    assert_false(event.is_broken);
    assert_int_equal(event.kind, FL_KV_KIND_REMOVED);
    assert_int_equal(event.hash_count, 1);
    assert_int_equal(event.hashes[0], 9);
    fl_kv_event_fini(&event);
    fl_free(payload.bytes);
}

/* The cap on blocks of an event, at its edge; memory that is not there. */
static void caps_and_failed_allocations_break_only_the_event(void **state)
{
    (void)state;
    enum { CAP = 65536 };
    for (uint32_t extra = 0; extra < 2; extra++) {
        size_t count = CAP + extra;
        uint8_t *bytes = fl_alloc(count + 64);
        size_t n = unhex("93 00 91 92 " REMOVED " dd", bytes, 64);
        for (size_t i = 0; i < 4; i++)
            bytes[n++] = (uint8_t)(count >> 8 * (3 - i));
        for (size_t i = 0; i < count; i++)
            bytes[n++] = 1;
        bytes[n++] = 0xc0;
        struct fl_kv_batch batch;
        struct fl_kv_event event = {0};
        assert_int_equal(fl_kv_batch_open(&batch, fl_bytes(bytes, n)), 0);
        assert_true(fl_kv_batch_next(&batch, &event));
        assert_int_equal(event.is_broken, extra > 0);
        fl_kv_event_fini(&event);

        assert_int_equal(fl_kv_batch_open(&batch, fl_bytes(bytes, n)), 0);
        fl_alloc_fail_at(1);
        assert_true(fl_kv_batch_next(&batch, &event));
        assert_true(event.is_broken);
        fl_alloc_fail_at(0);
        fl_kv_event_fini(&event);
        fl_free(bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_annotated_examples_say_what_the_page_says),
        cmocka_unit_test(every_truncation_of_the_examples_is_refused),
        cmocka_unit_test(any_damaged_byte_is_survived),
        cmocka_unit_test(batches_come_in_several_shapes),
        cmocka_unit_test(a_broken_event_leaves_the_next_one_whole),
        cmocka_unit_test(unknown_events_are_passed_over_whole),
        cmocka_unit_test(the_tail_is_read_by_order_when_it_fits_and_by_type_otherwise),
        cmocka_unit_test(extra_keys_give_salt_and_images),
        cmocka_unit_test(map_keys_come_in_any_order_and_the_last_of_equals_wins),
        cmocka_unit_test(caps_and_failed_allocations_break_only_the_event),
    };
    return cmocka_run_group_tests_name("kvevents/event", tests, NULL, NULL);
}
