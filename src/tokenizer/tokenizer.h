/* SPDX-License-Identifier: Apache-2.0 */
/* Asking the engine's own render service for a request's token ids (epp.md section 9).
 *
 * One client a loop, with pooled keep-alive connections. The client's body goes out byte for byte
 * (references, no copy), with content-type, accept and x-request-id and no other header of the
 * client. Answers: ids, or a code of epp.md 9.4. No retries but one: a reused connection that
 * closed before any byte of an answer. Single loop. */
#ifndef FL_TOKENIZER_TOKENIZER_H
#define FL_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "net/loop.h"
#include "tokenizer/answer.h"

#define FL_TOKENIZER_ERROR_BODY_BYTES                                                              \
    1024 /* epp.md 9.1: kept of an error answer, for the log only */

struct fl_tokenizer_config {
    enum fl_tokenizer_protocol protocol; /* not NONE */
    const char *url;                     /* base; query and fragment are cleared */
    uint64_t timeout_ms;                 /* over the whole exchange */
    size_t max_response_bytes;
    uint32_t max_idle; /* connections kept a loop: max(4, 64 / loops) */
};

/* Checks a URL as configured: absolute http or https with a host. FL_ECONFIG with a sentence. */
int fl_tokenizer_check_url(const char *url, struct fl_error *err);

struct fl_tokenizer;

/* 0 or FL_ECONFIG. Strings are copied. */
int fl_tokenizer_new(struct fl_loop *loop, const struct fl_tokenizer_config *config,
                     struct fl_tokenizer **tokenizer, struct fl_error *err);
/* No call is open. NULL allowed. */
void fl_tokenizer_free(struct fl_tokenizer *tokenizer);

struct fl_tokenize_answer {
    /* 0, FL_ETOKENIZER_REJECTED (400, 422), FL_ETOKENIZER_UNAVAILABLE (connection, 429, 503),
     * FL_ETOKENIZER_TIMEOUT, FL_ETOKENIZER (the rest). */
    int rc;
    int status;              /* HTTP; 0: none came */
    struct fl_tokens tokens; /* the callee may take them (zero the struct) */
    struct fl_bytes detail;  /* of an error answer, lent: for the log, never for the client */
    const char *why;         /* in words, lent; "" without an error */
};

struct fl_tokenize_call;

/* `done` comes once, in a later turn. */
struct fl_tokenize_call *
fl_tokenizer_ask(struct fl_tokenizer *tokenizer, bool is_chat, const struct fl_chain *body,
                 struct fl_bytes request_id,
                 void (*done)(void *owner, struct fl_tokenize_answer *answer), void *owner);
/* The exchange is aborted, no `done` any more. NULL allowed. The pointer is dead. */
void fl_tokenize_cancel(struct fl_tokenize_call *call);

#endif
