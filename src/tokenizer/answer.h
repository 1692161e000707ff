/* SPDX-License-Identifier: Apache-2.0 */
/* Reading what a render service answers (epp.md 9.2, 9.3): token ids out of JSON, nothing else.
 *
 * An object or a list of objects; the ids stand in one member at the top level of the object
 * (`token_ids`, SGLang: `input_ids`), all others are skipped. One pass, no tree; only a list of
 * several prompts is parsed as a tree. Pure. */
#ifndef FL_TOKENIZER_ANSWER_H
#define FL_TOKENIZER_ANSWER_H

#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"

enum fl_tokenizer_protocol {
    FL_TOKENIZER_NONE, /* no service: every pick is load-only */
    FL_TOKENIZER_VLLM_RENDER,
    FL_TOKENIZER_SGLANG_RENDERER,
    FL_TOKENIZER_PROTOCOL_COUNT
};

/* Words of DYN_EPP_TOKENIZER_PROTOCOL, by the enum, NULL-terminated. */
extern const char *const fl_tokenizer_protocols[];

struct fl_tokens {
    uint32_t *ids; /* of the longest prompt; heap */
    size_t count;
    uint64_t total; /* of all prompts: what is booked */
    uint32_t prompts;
};

/* Idempotent. */
void fl_tokens_fini(struct fl_tokens *tokens);

/* `tokens` is zeroed. 0 (an empty list of ids is allowed: a load-only pick), or FL_ETOKENIZER with
 * a sentence that quotes nothing of the prompt: no JSON, wrong shape, an id that is no integer
 * 0..4294967295, a list without an element. FL_ENOMEM. */
int fl_tokenizer_read_answer(enum fl_tokenizer_protocol protocol, struct fl_bytes text,
                             struct fl_tokens *tokens, struct fl_error *err);

#endif
