/* SPDX-License-Identifier: Apache-2.0 */
/* Hash functions over bytes: XXH3-64 for names that need no secrecy (blocks, frames, maps of our
 * own making), SHA-256 for digests that a peer must not forge. The only folder that includes
 * xxHash.
 *
 * The batch forms exist because the block hasher calls XXH3 thousands of times on short equal
 * pieces: inside one function the compiler sees the length, and above 240 bytes the secret that
 * XXH3 derives from the seed is derived once instead of once a piece. Results are the same number
 * for number.
 *
 * XXH3 functions are pure, any thread. A struct fl_sha256 belongs to one thread at a time. */
#ifndef FL_CODEC_HASH_H
#define FL_CODEC_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

/* XXH3_64bits_withSeed. Absent bytes hash as empty ones. */
uint64_t fl_xxh3(struct fl_bytes bytes, uint64_t seed);

/* out[i] = XXH3 of the `piece` bytes at data + i * step, for i < count. The pieces may overlap. */
void fl_xxh3_pieces(const uint8_t *data, size_t piece, size_t step, size_t count, uint64_t seed,
                    uint64_t *out);

/* XXH3 of the two numbers as 16 little-endian bytes. */
uint64_t fl_xxh3_pair(uint64_t first, uint64_t second, uint64_t seed);

/* out[0] = fl_xxh3_pair(before, in[0]), out[i] = fl_xxh3_pair(out[i-1], in[i]). `out` may be `in`.
 */
void fl_xxh3_chain(uint64_t before, const uint64_t *in, size_t count, uint64_t seed, uint64_t *out);

#define FL_SHA256_BYTES 32

struct fl_sha256;

/* Fetches the algorithm once; keep it for as many digests as you like. NULL when the library has no
 * SHA-256 or no memory. */
struct fl_sha256 *fl_sha256_new(void);
/* NULL allowed. */
void fl_sha256_free(struct fl_sha256 *sha);

/* A digest in parts: start, any number of adds, finish. 0 or FL_EINTERNAL. */
int fl_sha256_start(struct fl_sha256 *sha);
int fl_sha256_add(struct fl_sha256 *sha, struct fl_bytes bytes);
int fl_sha256_finish(struct fl_sha256 *sha, uint8_t out[FL_SHA256_BYTES]);
/* All three at once. */
int fl_sha256_of(struct fl_sha256 *sha, struct fl_bytes bytes, uint8_t out[FL_SHA256_BYTES]);

#endif
