/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/bytes.h"
#include "codec/hash.h"

/* dependencies.md 3.4: the vectors a unit test must contain */
static void xxh3_gives_the_published_vectors(void **state)
{
    (void)state;
    const uint32_t tokens[] = {1, 2, 3, 4};
    assert_int_equal(fl_xxh3(FL_BYTES(""), 0), UINT64_C(0x2d06800538d394c2));
    assert_int_equal(fl_xxh3((struct fl_bytes){0}, 0), UINT64_C(0x2d06800538d394c2));
    assert_int_equal(fl_xxh3(FL_BYTES("hello"), 1337), UINT64_C(0xddf643ef207a63a8));
    assert_int_equal(fl_xxh3(fl_bytes(tokens, sizeof(tokens)), 1337), UINT64_C(0xcb38e4d7fb2dca5c));
}

/* dependencies.md 3.4: the cached secret gives identical results for all lengths */
static void pieces_hash_like_single_calls_at_every_length(void **state)
{
    (void)state;
    enum { ROOM = 1100 };
    uint8_t data[ROOM + 3 * 40];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 131 + (i >> 3));
    static const uint64_t seeds[] = {0, 1337, UINT64_MAX, UINT64_C(3865872906902550615)};

    for (size_t s = 0; s < FL_ARRAY_LEN(seeds); s++)
        for (size_t piece = 0; piece <= ROOM; piece++) {
            uint64_t out[4];
            fl_xxh3_pieces(data, piece, 40, 4, seeds[s], out);
            for (size_t i = 0; i < 4; i++)
                if (out[i] != fl_xxh3(fl_bytes(data + i * 40, piece), seeds[s]))
                    fail_msg("seed %zu, %zu bytes, piece %zu", s, piece, i);
        }
}

static void a_chain_is_pairs_and_may_overwrite_its_input(void **state)
{
    (void)state;
    uint64_t in[] = {5, 6, 7};
    uint64_t expected = 4;
    uint64_t out[3];
    fl_xxh3_chain(4, in, 3, 1337, out);
    for (size_t i = 0; i < 3; i++) {
        expected = fl_xxh3_pair(expected, in[i], 1337);
        assert_int_equal(out[i], expected);
    }
    fl_xxh3_chain(4, in, 3, 1337, in);
    assert_memory_equal(in, out, sizeof(out));
}

static void hex(const uint8_t *digest, char out[2 * FL_SHA256_BYTES + 1])
{
    for (size_t i = 0; i < FL_SHA256_BYTES; i++)
        for (size_t half = 0; half < 2; half++)
            out[2 * i + half] = "0123456789abcdef"[half == 0 ? digest[i] >> 4 : digest[i] & 15];
    out[2 * FL_SHA256_BYTES] = '\0';
}

/* FIPS 180-4's own examples */
static void sha256_gives_the_published_digests(void **state)
{
    (void)state;
    static const struct {
        const char *text, *digest;
    } rows[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    struct fl_sha256 *sha = fl_sha256_new();
    assert_non_null(sha);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        uint8_t digest[FL_SHA256_BYTES];
        char text[2 * FL_SHA256_BYTES + 1];
        struct fl_bytes whole = fl_bytes_of(rows[i].text);
        assert_int_equal(fl_sha256_of(sha, whole, digest), 0);
        hex(digest, text);
        assert_string_equal(text, rows[i].digest);

        assert_int_equal(fl_sha256_start(sha), 0); /* in parts, with the same object */
        assert_int_equal(fl_sha256_add(sha, fl_bytes_head(whole, 2)), 0);
        assert_int_equal(fl_sha256_add(sha, fl_bytes_skip(whole, 2)), 0);
        assert_int_equal(fl_sha256_finish(sha, digest), 0);
        hex(digest, text);
        assert_string_equal(text, rows[i].digest);
    }
    fl_sha256_free(sha);
    fl_sha256_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(xxh3_gives_the_published_vectors),
        cmocka_unit_test(pieces_hash_like_single_calls_at_every_length),
        cmocka_unit_test(a_chain_is_pairs_and_may_overwrite_its_input),
        cmocka_unit_test(sha256_gives_the_published_digests),
    };
    return cmocka_run_group_tests_name("codec/hash", tests, NULL, NULL);
}
