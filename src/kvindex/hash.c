/* SPDX-License-Identifier: Apache-2.0 */
#include "kvindex/hash.h"

#include <assert.h>
#include <string.h>

#include "codec/hash.h"

uint64_t fl_block_seed(struct fl_bytes lora, struct fl_bytes salt)
{
    uint64_t seed = FL_BLOCK_SEED;
    if (lora.n > 0)
        seed += fl_xxh3(lora, 0);
    if (salt.n > 0)
        seed += fl_xxh3(salt, 1);
    return seed;
}

size_t fl_block_count(const struct fl_block_space *space, size_t token_count)
{
    assert(space->block_tokens > 0);
    if (!space->is_eagle)
        return token_count / space->block_tokens;
    return token_count == 0 ? 0 : (token_count - 1) / space->block_tokens;
}

size_t fl_block_local_hashes(const struct fl_block_space *space, const uint32_t *tokens,
                             size_t token_count, uint64_t *local)
{
    size_t count = fl_block_count(space, token_count);
    size_t window = (size_t)space->block_tokens + (space->is_eagle ? 1 : 0);
    fl_xxh3_pieces((const uint8_t *)tokens, window * sizeof(*tokens),
                   space->block_tokens * sizeof(*tokens), count, space->seed, local);
    return count;
}

uint64_t fl_block_chain(uint64_t seq_before, uint64_t local)
{
    return fl_xxh3_pair(seq_before, local, FL_BLOCK_SEED);
}

void fl_block_chain_all(const uint64_t *before, const uint64_t *local, size_t count, uint64_t *seq)
{
    if (count == 0)
        return;
    if (before != NULL) {
        fl_xxh3_chain(*before, local, count, FL_BLOCK_SEED, seq);
        return;
    }
    seq[0] = local[0];
    fl_xxh3_chain(seq[0], local + 1, count - 1, FL_BLOCK_SEED, seq + 1);
}

/* Blocks hashed at a time: their hashes stay in the first cache level between the two passes. */
#define SLICE_BLOCKS 256

size_t fl_block_hashes(const struct fl_block_space *space, const uint32_t *tokens,
                       size_t token_count, uint64_t *local, uint64_t *seq)
{
    size_t count = fl_block_count(space, token_count);
    size_t window = (size_t)space->block_tokens + (space->is_eagle ? 1 : 0);
    uint64_t slice[SLICE_BLOCKS];

    for (size_t done = 0; done < count;) {
        size_t n = count - done < SLICE_BLOCKS ? count - done : SLICE_BLOCKS;
        uint64_t *out = local != NULL ? local + done : slice;
        fl_xxh3_pieces((const uint8_t *)(tokens + done * space->block_tokens),
                       window * sizeof(*tokens), space->block_tokens * sizeof(*tokens), n,
                       space->seed, out);
        if (seq != NULL)
            fl_block_chain_all(done > 0 ? &seq[done - 1] : NULL, out, n, seq + done);
        done += n;
    }
    return count;
}

/* Few images a block: insertion beats calling out. */
static void sort_ascending(uint64_t *values, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        uint64_t value = values[i];
        size_t at = i;
        for (; at > 0 && values[at - 1] > value; at--)
            values[at] = values[at - 1];
        values[at] = value;
    }
}

uint64_t fl_block_local_hash_images(const struct fl_block_space *space, const uint32_t *tokens,
                                    uint64_t *image, size_t image_count)
{
    assert(image_count <= FL_BLOCK_IMAGES_MAX && space->block_tokens <= FL_BLOCK_IMAGE_TOKENS_MAX);
    uint8_t text[(FL_BLOCK_IMAGE_TOKENS_MAX + 1) * sizeof(*tokens) +
                 FL_BLOCK_IMAGES_MAX * sizeof(*image)];
    size_t window = (size_t)space->block_tokens + (space->is_eagle ? 1 : 0);
    size_t n = window * sizeof(*tokens);

    sort_ascending(image, image_count);
    memcpy(text, tokens, n);
    if (image_count > 0)
        memcpy(text + n, image, image_count * sizeof(*image));
    return fl_xxh3(fl_bytes(text, n + image_count * sizeof(*image)), space->seed);
}

static int hex_value(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool fl_block_is_image_digest(struct fl_bytes identifier)
{
    if (identifier.n != 64)
        return false;
    for (size_t i = 0; i < identifier.n; i++)
        if (hex_value(identifier.p[i]) < 0)
            return false;
    return true;
}

uint64_t fl_block_image_hash(struct fl_bytes identifier)
{
    if (!fl_block_is_image_digest(identifier))
        return fl_xxh3(identifier, 0);
    uint64_t value = 0;
    for (size_t i = 0; i < 16; i++)
        value = value << 4 | (uint64_t)hex_value(identifier.p[i]);
    return value;
}
