/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/bytes.h"
#include "codec/hash.h"
#include "kvindex/hash.h"

#define TOKENS_MAX 2048
#define BLOCKS_MAX 4

static void count_from(uint32_t first, size_t n, uint32_t *tokens)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = first + (uint32_t)i;
}

/* selection.md 10.1, 10.2, 10.3: every vector of the table */
static void blocks_hash_to_the_published_vectors(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t first, n; /* tokens first, first + 1, ... */
        uint32_t block_tokens;
        bool is_eagle;
        const char *lora, *salt;
        size_t count;
        uint64_t local[BLOCKS_MAX], seq[BLOCKS_MAX];
    } rows[] = {
        {"A",
         1,
         8,
         4,
         false,
         NULL,
         NULL,
         2,
         {14643705804678351452u, 16777012769546811212u},
         {14643705804678351452u, 4945711292740353085u}},
        {"A, empty lora and salt count as absent",
         1,
         8,
         4,
         false,
         "",
         "",
         2,
         {14643705804678351452u, 16777012769546811212u},
         {14643705804678351452u, 4945711292740353085u}},
        {"B",
         1,
         8,
         4,
         false,
         "lora_7",
         NULL,
         2,
         {6090315765804930700u, 3193399369686574168u},
         {6090315765804930700u, 15860345950305936478u}},
        {"C",
         1,
         8,
         4,
         false,
         NULL,
         "tenant-a",
         2,
         {5738685477468498325u, 11202231085456067787u},
         {5738685477468498325u, 1076233986426276607u}},
        {"D",
         1,
         8,
         4,
         false,
         "lora_7",
         "tenant-a",
         2,
         {6743904198711443130u, 10155839060712525520u},
         {6743904198711443130u, 12484148186234572482u}},
        {"E",
         1,
         9,
         4,
         true,
         NULL,
         NULL,
         2,
         {1914873892905420881u, 1929047464662796003u},
         {1914873892905420881u, 13136491855314414045u}},
        {"E2", 1, 8, 4, true, NULL, NULL, 1, {1914873892905420881u}, {1914873892905420881u}},
        {"eagle below one window", 1, 4, 4, true, NULL, NULL, 0, {0}, {0}},
        {"eagle without tokens", 1, 0, 4, true, NULL, NULL, 0, {0}, {0}},
        {"F",
         1,
         48,
         16,
         false,
         NULL,
         NULL,
         3,
         {16863443419780771464u, 2287610619914608821u, 12129935312930971799u},
         {16863443419780771464u, 12466389667045779788u, 960926348267535642u}},
        {"G",
         1,
         39,
         16,
         false,
         NULL,
         NULL,
         2,
         {16863443419780771464u, 2287610619914608821u},
         {16863443419780771464u, 12466389667045779788u}},
        {"H", 1, 64, 64, false, NULL, NULL, 1, {17732852320395450624u}, {17732852320395450624u}},
        {"K1",
         1,
         8,
         4,
         false,
         NULL,
         "x",
         2,
         {3662567837465702574u, 2875182682986810727u},
         {3662567837465702574u, 421195230017021445u}},
        {"K2",
         1,
         8,
         4,
         false,
         "x",
         NULL,
         2,
         {5621237061398796446u, 5501199763675310504u},
         {5621237061398796446u, 14312468848906682366u}},
        {"L", 42, 1, 1, false, NULL, NULL, 1, {10811653421671145151u}, {10811653421671145151u}},
        {"N",
         0,
         12,
         4,
         false,
         NULL,
         NULL,
         3,
         {9143094415614847814u, 12124091508212882195u, 1088361764653601668u},
         {9143094415614847814u, 9510318385840434533u, 16998148715716822651u}},
        {"O", 1, 3, 4, false, NULL, NULL, 0, {0}, {0}},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_block_space space = {
            rows[i].block_tokens, rows[i].is_eagle,
            fl_block_seed(fl_bytes_of(rows[i].lora), fl_bytes_of(rows[i].salt))};
        uint32_t tokens[TOKENS_MAX];
        uint64_t local[BLOCKS_MAX] = {0}, seq[BLOCKS_MAX] = {0}, alone[BLOCKS_MAX] = {0};
        count_from(rows[i].first, rows[i].n, tokens);

        size_t count = fl_block_hashes(&space, tokens, rows[i].n, local, seq);
        if (count != rows[i].count || memcmp(local, rows[i].local, sizeof(local)) != 0 ||
            memcmp(seq, rows[i].seq, sizeof(seq)) != 0)
            fail_msg("vector %s", rows[i].name);
        assert_int_equal(fl_block_count(&space, rows[i].n), count);
        assert_int_equal(fl_block_local_hashes(&space, tokens, rows[i].n, alone), count);
        assert_memory_equal(alone, local, sizeof(alone));
        memset(alone, 0, sizeof(alone));
        fl_block_hashes(&space, tokens, rows[i].n, NULL, alone);
        assert_memory_equal(alone, seq, sizeof(alone));
    }
}

/* selection.md 10.3: I and J, a block of one value repeated */
static void blocks_of_equal_tokens_hash_to_the_published_vectors(void **state)
{
    (void)state;
    static const struct {
        uint32_t token;
        uint64_t local;
    } rows[] = {{0, 5523182284766269584u}, {4294967295u, 9046446989928805549u}};
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_block_space space = {16, false, FL_BLOCK_SEED};
        uint32_t tokens[16];
        uint64_t local;
        for (size_t t = 0; t < 16; t++)
            tokens[t] = rows[i].token;
        assert_int_equal(fl_block_local_hashes(&space, tokens, 16, &local), 1);
        assert_int_equal(local, rows[i].local);
    }
}

/* selection.md 10.3: one block of 1..bs, every length branch of XXH3 */
static void every_length_branch_gives_the_published_value(void **state)
{
    (void)state;
    static const struct {
        uint32_t bytes;
        uint64_t value;
    } rows[] = {
        {4, 14426539925402682893u},   {8, 10773075109927122010u},   {12, 15024015205894559313u},
        {32, 4595599524572611415u},   {128, 6399025751206689338u},  {132, 13925446761547214078u},
        {192, 11314537239321774180u}, {240, 66916212572691602u},    {244, 2825607085201376515u},
        {256, 17732852320395450624u}, {512, 9108660569462882936u},  {1024, 6483570558441252529u},
        {1028, 7486643948325046432u}, {2048, 6136106876000258808u}, {4096, 17925303763139147509u},
        {8192, 84061607165233913u},
    };
    uint32_t tokens[TOKENS_MAX];
    count_from(1, TOKENS_MAX, tokens);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_block_space space = {rows[i].bytes / 4, false, FL_BLOCK_SEED};
        uint64_t local;
        assert_int_equal(fl_block_local_hashes(&space, tokens, space.block_tokens, &local), 1);
        if (local != rows[i].value)
            fail_msg("%u bytes", rows[i].bytes);
    }
    assert_int_equal(fl_xxh3(FL_BYTES(""), FL_BLOCK_SEED), UINT64_C(15128690059815094969));
}

/* selection.md 10.1, 10.3: seeds and the parts they are made of */
static void seeds_are_the_published_sums(void **state)
{
    (void)state;
    struct fl_bytes none = {0};
    assert_int_equal(fl_block_seed(none, none), 1337);
    assert_int_equal(fl_block_seed(FL_BYTES("lora_7"), none), UINT64_C(3865872906902550615));
    assert_int_equal(fl_block_seed(none, FL_BYTES("tenant-a")), UINT64_C(1948188790972764086));
    assert_int_equal(fl_block_seed(FL_BYTES("lora_7"), FL_BYTES("tenant-a")),
                     UINT64_C(5814061697875313364));
    assert_int_equal(fl_block_seed(none, FL_BYTES("x")), UINT64_C(12345335563672368301));
    assert_int_equal(fl_block_seed(FL_BYTES("x"), none), UINT64_C(16929150178197426762));
    assert_int_equal(fl_xxh3(FL_BYTES("lora_7"), 0), UINT64_C(3865872906902549278));
    assert_int_equal(fl_xxh3(FL_BYTES("tenant-a"), 1), UINT64_C(1948188790972762749));
}

/* selection.md 10.3: signed and hexadecimal forms of A; chain(1,2) and chain(2,1) */
static void links_of_the_chain_are_the_published_ones(void **state)
{
    (void)state;
    assert_int_equal(fl_block_chain(1, 2), UINT64_C(16740963408272063728));
    assert_int_equal(fl_block_chain(2, 1), UINT64_C(11336950939722072429));
    assert_int_equal((int64_t)UINT64_C(14643705804678351452), INT64_C(-3803038269031200164));
    assert_int_equal((int64_t)UINT64_C(16777012769546811212), INT64_C(-1669731304162740404));
    assert_int_equal(UINT64_C(14643705804678351452), UINT64_C(0xcb38e4d7fb2dca5c));
    assert_int_equal(fl_block_chain(UINT64_C(0xcb38e4d7fb2dca5c), UINT64_C(0xe8d3ec39b907b74c)),
                     UINT64_C(0x44a2b2379d6d3c3d));
}

/* selection.md 10.4: images appended to the block, and what their identifiers mean */
static void images_change_the_block_in_any_order(void **state)
{
    (void)state;
    struct fl_block_space space = {4, false, FL_BLOCK_SEED};
    const uint32_t tokens[] = {1, 2, 3, 4};
    uint64_t one[] = {42}, up[] = {7, 42}, down[] = {42, 7};
    assert_int_equal(fl_block_local_hash_images(&space, tokens, one, 1),
                     UINT64_C(14000361058806882387));
    assert_int_equal(fl_block_local_hash_images(&space, tokens, up, 2),
                     UINT64_C(6295130183325757331));
    assert_int_equal(fl_block_local_hash_images(&space, tokens, down, 2),
                     UINT64_C(6295130183325757331));
    assert_int_equal(fl_block_local_hash_images(&space, tokens, NULL, 0),
                     UINT64_C(14643705804678351452)); /* vector A */
    assert_int_equal(fl_block_image_hash(FL_BYTES("opaque-image-0")),
                     UINT64_C(7447875215993299872));
    assert_int_equal(fl_block_image_hash(FL_BYTES("00112233445566778899AABBCCDDEEFF"
                                                  "00112233445566778899aabbccddeeff")),
                     UINT64_C(0x0011223344556677));
    assert_false(fl_block_is_image_digest(FL_BYTES("00112233445566778899AABBCCDDEEFF"
                                                   "00112233445566778899aabbccddeefg")));
    assert_false(fl_block_is_image_digest(FL_BYTES("0011")));
}

/* Long prompts are hashed in slices: the seams must not show. */
static void slices_of_a_long_prompt_join_without_a_seam(void **state)
{
    (void)state;
    enum { TOKENS = 3001 };
    struct fl_block_space space = {4, false, FL_BLOCK_SEED};
    uint32_t tokens[TOKENS];
    uint64_t local[TOKENS / 4], seq[TOKENS / 4], expected[TOKENS / 4];
    count_from(7, TOKENS, tokens);
    size_t count = fl_block_hashes(&space, tokens, TOKENS, local, seq);
    assert_int_equal(count, TOKENS / 4);
    fl_block_chain_all(NULL, local, count, expected);
    assert_memory_equal(seq, expected, sizeof(seq));
    fl_block_chain_all(&seq[99], local + 100, count - 100, expected + 100);
    assert_memory_equal(seq, expected, sizeof(seq));
    for (size_t i = 1; i < count; i++)
        assert_int_equal(seq[i], fl_block_chain(seq[i - 1], local[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_hash_to_the_published_vectors),
        cmocka_unit_test(blocks_of_equal_tokens_hash_to_the_published_vectors),
        cmocka_unit_test(every_length_branch_gives_the_published_value),
        cmocka_unit_test(seeds_are_the_published_sums),
        cmocka_unit_test(links_of_the_chain_are_the_published_ones),
        cmocka_unit_test(images_change_the_block_in_any_order),
        cmocka_unit_test(slices_of_a_long_prompt_join_without_a_seam),
    };
    return cmocka_run_group_tests_name("kvindex/hash", tests, NULL, NULL);
}
