/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/words.h"

#include <assert.h>

#include "base/rng.h"

static bool is_blank(uint8_t byte)
{
    return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

uint32_t fl_words_token(struct fl_bytes word)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (size_t i = 0; i < word.n; i++)
        hash = (hash ^ word.p[i]) * UINT64_C(0x100000001b3);
    return (uint32_t)(fl_mix64(hash) >> 33);
}

bool fl_words_next(struct fl_bytes *rest, uint32_t *token)
{
    size_t at = 0;
    while (at < rest->n && is_blank(rest->p[at]))
        at++;
    size_t start = at;
    while (at < rest->n && !is_blank(rest->p[at]))
        at++;
    if (at == start)
        return false;
    *token = fl_words_token(fl_bytes(rest->p + start, at - start));
    *rest = fl_bytes_skip(*rest, at);
    return true;
}

size_t fl_words_count(struct fl_bytes text)
{
    size_t count = 0;
    bool in_word = false;
    for (size_t i = 0; i < text.n; i++) {
        bool blank = is_blank(text.p[i]);
        count += !blank && !in_word;
        in_word = !blank;
    }
    return count;
}

static void write_word(uint8_t *out, uint64_t value)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz234567";
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)letters[value >> (5 * i) & 31];
}

int fl_words_write_prompt(struct fl_buf *out, const uint64_t *ids, uint32_t id_count,
                          uint32_t tokens, uint32_t tokens_per_block)
{
    assert(tokens_per_block > 0);
    assert((uint64_t)id_count * tokens_per_block >= tokens);
    for (uint32_t at = 0; at < tokens; at++) {
        uint64_t block = fl_mix64(ids[at / tokens_per_block] + 1);
        uint8_t word[5] = {' '};
        write_word(word + 1, fl_mix64(block + at % tokens_per_block));
        int rc = fl_buf_append(out, at == 0 ? fl_bytes(word + 1, 4) : fl_bytes(word, 5));
        if (rc < 0)
            return rc;
    }
    return 0;
}

int fl_words_write_generated(struct fl_buf *out, uint64_t seed, uint32_t number)
{
    uint8_t word[5] = {' '};
    write_word(word + 1, fl_mix64(fl_mix64(seed) + number));
    return fl_buf_append(out, fl_bytes(word, 5));
}
