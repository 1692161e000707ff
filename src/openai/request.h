/* SPDX-License-Identifier: Apache-2.0 */
/* What routing reads from a client's request (epp.md section 7): kind by path, a few members of the
 * body in one pass without building a tree, headers that override them. Nothing is ever written
 * back: the body travels on byte for byte.
 *
 *   fl_openai_path_find()        path -> kind and how to treat it
 *   fl_openai_request_read()     body -> view
 *   fl_openai_request_override() header fields -> same view; then everything is final
 *
 * Text in a view points into the body, the fields or the arena given, which must outlive it. The
 * last of duplicate keys wins. Pure; any thread. */
#ifndef FL_OPENAI_REQUEST_H
#define FL_OPENAI_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/bytes.h"
#include "http/message.h"

enum fl_openai_kind {
    FL_OPENAI_CHAT,
    FL_OPENAI_COMPLETIONS,
    FL_OPENAI_RESPONSES,
    FL_OPENAI_EMBEDDINGS,
    FL_OPENAI_MESSAGES, /* Anthropic */
    FL_OPENAI_SCORE,
    FL_OPENAI_RERANK,
    FL_OPENAI_GENERATE, /* vLLM tokens-in, SGLang */
    FL_OPENAI_TOKENIZE,
    FL_OPENAI_DETOKENIZE,
    FL_OPENAI_OTHER, /* any other path: the body is not looked at */
    FL_OPENAI_KIND_COUNT
};

/* One row per known path suffix (epp.md 7.1, gaie.md section 3). */
struct fl_openai_path {
    const char *suffix;
    enum fl_openai_kind kind;
    bool is_rendered; /* tokens come from the tokenizer service; else the pick goes by load only */
    bool is_parsed;   /* the body must be a JSON object */
    bool needs_model; /* and name a model */
};

/* The row of a path; the query is dropped, a prefix before the suffix is fine. Never NULL: the last
 * row has the suffix "" and FL_OPENAI_OTHER. An absent path gives that row too. */
const struct fl_openai_path *fl_openai_path_find(struct fl_bytes path);
const struct fl_openai_path *fl_openai_paths(size_t *count);

/* Which of its forms `prompt` has (gaie.md section 3). */
enum fl_openai_prompt {
    FL_OPENAI_PROMPT_NONE,
    FL_OPENAI_PROMPT_TEXT,        /* "..." */
    FL_OPENAI_PROMPT_TEXTS,       /* ["...", ...] */
    FL_OPENAI_PROMPT_TOKENS,      /* [1, 2, ...]: needs no tokenizer; fl_json_read_u32_array() */
    FL_OPENAI_PROMPT_TOKEN_LISTS, /* [[1, 2], ...] */
    FL_OPENAI_PROMPT_OTHER,       /* none of these; the engine will say so */
};

/* Where the cache namespace came from: with salts kept as they are, one that only a header names
 * must not give KV credit (epp.md 5.5). */
enum fl_openai_namespace {
    FL_OPENAI_NAMESPACE_NONE,
    FL_OPENAI_NAMESPACE_BODY,
    FL_OPENAI_NAMESPACE_NVEXT,
    FL_OPENAI_NAMESPACE_HEADER,
};

#define FL_OPENAI_SESSION_MAX_BYTES 256    /* epp.md section 11; longer is FL_EBAD_REQUEST there */
#define FL_OPENAI_METADATA_MAX_ENTRIES 64  /* epp.md 7.5 */
#define FL_OPENAI_METADATA_MAX_BYTES 65536 /* keys and values */
#define FL_OPENAI_RANK_UNSET UINT32_MAX    /* epp.md 7.4: also what a header may say */

struct fl_openai_metadata {
    struct fl_bytes key, value;
};

struct fl_openai_request {
    /* body */
    struct fl_bytes model;  /* absent: none was named */
    struct fl_bytes prompt; /* source text of the member, with quotes or brackets; absent: none */
    enum fl_openai_prompt prompt_form;
    bool stream, include_usage;
    bool has_max_tokens;
    uint64_t max_tokens; /* max_completion_tokens before max_tokens */

    /* body, then headers */
    bool has_worker, has_prefill_worker;
    uint64_t worker_id, prefill_worker_id; /* pins */
    uint32_t rank, prefill_rank;           /* FL_OPENAI_RANK_UNSET: none */
    bool has_priority;
    int32_t priority;
    uint32_t strict_priority;
    bool has_latency_sensitivity;
    double latency_sensitivity;
    bool has_output_tokens;
    uint32_t output_tokens;          /* agent_hints.osl */
    struct fl_bytes constraints;     /* source text of nvext.routing_constraints; absent: none */
    struct fl_bytes cache_namespace; /* trimmed; absent: none */
    enum fl_openai_namespace namespace_source;

    /* headers */
    struct fl_bytes session_id, parent_session_id; /* absent: none; length is not checked here */
    bool is_session_final;
    uint32_t retry_attempt;       /* 0: the first */
    struct fl_bytes policy_class; /* metadata key `policy-class`; absent: none */
    struct fl_openai_metadata *metadata;
    uint32_t metadata_count;
};

struct fl_openai_options {
    bool ignore_nvext;               /* DYN_DISABLE_FRONTEND_NVEXT: not even parsed */
    bool is_disaggregated;           /* there is a prefill role, so pins to it are allowed */
    struct fl_bytes metadata_prefix; /* absent: x-dynamo-meta- */
};

/* An empty view (ranks unset), for requests whose body is not read. */
void fl_openai_request_init(struct fl_openai_request *request);

/* Reads a whole body by the rules of `path`, which says that it is parsed. `request` was
 * initialised. 0; FL_EBAD_BODY (no JSON object, too deep, not UTF-8, a wrong type, model missing,
 * unknown member of nvext), FL_EBAD_HINT (a hint that is not for routers), FL_ENOMEM. */
int fl_openai_request_read(struct fl_openai_request *request, const struct fl_openai_path *path,
                           struct fl_bytes body, const struct fl_openai_options *options,
                           struct fl_arena *arena);

/* Applies header fields, then checks what body and headers say together. Header values that do not
 * parse are ignored (epp.md 7.4). 0, FL_EBAD_HINT (a rank without a worker, a prefill pin where no
 * prefill role is), FL_EMETADATA_LARGE. */
int fl_openai_request_override(struct fl_openai_request *request, const struct fl_fields *fields,
                               const struct fl_openai_options *options, struct fl_arena *arena);

/* Seconds by which the request counts as having arrived earlier (epp.md 7.6). Final after override.
 */
double fl_openai_priority_jump_s(const struct fl_openai_request *request);

#endif
