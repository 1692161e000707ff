/* SPDX-License-Identifier: Apache-2.0 */
#include "openai/request.h"

/* In this order: the first suffix that fits decides. `/score` stands for `/v1/score` too, likewise
 * `/rerank`. */
static const struct fl_openai_path paths[] = {
    /* suffix, kind, rendered, parsed, needs a model */
    {"/v1/chat/completions", FL_OPENAI_CHAT, true, true, true},
    {"/v1/completions", FL_OPENAI_COMPLETIONS, true, true, true},
    {"/v1/responses", FL_OPENAI_RESPONSES, false, true, true},
    {"/v1/embeddings", FL_OPENAI_EMBEDDINGS, false, true, true},
    {"/v1/messages", FL_OPENAI_MESSAGES, false, true, true},
    {"/score", FL_OPENAI_SCORE, false, true, true},
    {"/rerank", FL_OPENAI_RERANK, false, true, true},
    /* An engine serves one model, so its own routes may leave it out. */
    {"/generate", FL_OPENAI_GENERATE, false, true, false},
    {"/tokenize", FL_OPENAI_TOKENIZE, false, true, false},
    {"/detokenize", FL_OPENAI_DETOKENIZE, false, true, false},
    {"", FL_OPENAI_OTHER, false, false, false},
};

const struct fl_openai_path *fl_openai_paths(size_t *count)
{
    *count = FL_ARRAY_LEN(paths);
    return paths;
}

const struct fl_openai_path *fl_openai_path_find(struct fl_bytes path)
{
    size_t i = 0;

    path = fl_bytes_head(path, fl_bytes_index(path, '?'));
    while (!fl_bytes_has_suffix(path, fl_bytes_of(paths[i].suffix)))
        i++; /* the last row fits everything */
    return &paths[i];
}
