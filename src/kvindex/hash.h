/* SPDX-License-Identifier: Apache-2.0 */
/* Block hashes (selection.md section 10): the names of a prompt's blocks.
 *
 *   seed(lora, salt) = 1337 + (lora ? XXH3(lora, 0) : 0) + (salt ? XXH3(salt, 1) : 0)   mod 2^64
 *   local[i]         = XXH3(the block's tokens as u32 little endian, seed)
 *   seq[0]           = local[0];   seq[i] = XXH3(u64le(seq[i-1]) || u64le(local[i]), 1337)
 *
 * Three numbers, never mixed: the local hash (from one block's tokens alone), the sequence hash
 * (chained: it names the whole prefix) and the engine's own external hash (opaque, not made here).
 * Only full blocks have hashes. In the speculative ("eagle") layout a block is hashed with the
 * first token of the next one, so the last full block has no hash until that token is known.
 *
 * Pure functions, any thread. Nothing is allocated and tokens are not copied. */
#ifndef FL_KVINDEX_HASH_H
#define FL_KVINDEX_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

#define FL_BLOCK_SEED UINT64_C(1337)

/* What names the blocks of one prompt besides its tokens. */
struct fl_block_space {
    uint32_t block_tokens; /* > 0 */
    bool is_eagle;
    uint64_t seed; /* fl_block_seed() */
};

/* Absent and empty are the same: no part in the seed. */
uint64_t fl_block_seed(struct fl_bytes lora, struct fl_bytes salt);

/* Full blocks among `token_count` tokens. */
size_t fl_block_count(const struct fl_block_space *space, size_t token_count);

/* Fills local[0 .. fl_block_count()) from tokens in memory; returns the count. */
size_t fl_block_local_hashes(const struct fl_block_space *space, const uint32_t *tokens,
                             size_t token_count, uint64_t *local);

/* Both at once; `local` or `seq` may be NULL when not wanted. */
size_t fl_block_hashes(const struct fl_block_space *space, const uint32_t *tokens,
                       size_t token_count, uint64_t *local, uint64_t *seq);

/* One block of the older multimodal scheme (selection.md 10.4): after the tokens come the images'
 * hashes, ascending. At most FL_BLOCK_IMAGES_MAX of them (a block of the common sizes touches one
 * or two images) and FL_BLOCK_IMAGE_TOKENS_MAX tokens; `image` is sorted in place. */
#define FL_BLOCK_IMAGES_MAX 64
#define FL_BLOCK_IMAGE_TOKENS_MAX 4096
uint64_t fl_block_local_hash_images(const struct fl_block_space *space, const uint32_t *tokens,
                                    uint64_t *image, size_t image_count);

/* mm_hash of an engine's image identifier: 64 hex digits give the first 16 as a number, any other
 * text its XXH3 with seed 0. */
uint64_t fl_block_image_hash(struct fl_bytes identifier);
/* True for 64 hex digits. */
bool fl_block_is_image_digest(struct fl_bytes identifier);

/* One link of the chain. */
uint64_t fl_block_chain(uint64_t seq_before, uint64_t local);

/* Chains `count` local hashes behind `*before` (NULL: from the root). */
void fl_block_chain_all(const uint64_t *before, const uint64_t *local, size_t count, uint64_t *seq);

#endif
