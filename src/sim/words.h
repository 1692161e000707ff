/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's tokenizer and its inverse: a word is a token.
 *
 * Text is split at blanks (space, tab, CR, LF); each word gives one id, a hash of its bytes below
 * 2^31. Engine and render route share it, so their ids agree as an engine's and its tokenizer's
 * must.
 *
 * Prompts: a trace block with id h becomes `tokens_per_block` words that depend on (h, position)
 * alone, so that equal trace prefixes give equal text, and equal token blocks. Words have four
 * letters: a prompt costs five bytes a token. Pure. */
#ifndef FL_SIM_WORDS_H
#define FL_SIM_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bytes.h"

/* Takes the next word's id off `*rest`; false at the end. */
bool fl_words_next(struct fl_bytes *rest, uint32_t *token);

/* Id of a single word (special tokens of a template are words with names of their own). */
uint32_t fl_words_token(struct fl_bytes word);

/* Number of words of `text`. */
size_t fl_words_count(struct fl_bytes text);

/* Appends the prompt of `tokens` words for a request with block ids `ids`: words i *
 * tokens_per_block .. belong to ids[i]; a partial last block has fewer. ids must cover `tokens`. 0
 * or the buffer's error. */
int fl_words_write_prompt(struct fl_buf *out, const uint64_t *ids, uint32_t id_count,
                          uint32_t tokens, uint32_t tokens_per_block);

/* Appends one word that stands for generated token `number` of a stream with that seed. */
int fl_words_write_generated(struct fl_buf *out, uint64_t seed, uint32_t number);

#endif
