/* SPDX-License-Identifier: Apache-2.0 */
#include "apps/engine/engine.h"

#include "base/alloc.h"
#include "sim/words.h"

void engine_prompt_fini(struct engine_prompt *prompt)
{
    fl_free(prompt->tokens);
    *prompt = (struct engine_prompt){0};
}

static void push(struct engine_prompt *prompt, uint32_t token)
{
    if (prompt->count == prompt->cap) {
        prompt->cap = prompt->cap == 0 ? 1024 : prompt->cap * 2;
        prompt->tokens = fl_realloc(prompt->tokens, prompt->cap, sizeof(*prompt->tokens));
    }
    prompt->tokens[prompt->count++] = token;
}

static void push_text(struct engine_prompt *prompt, struct fl_bytes text)
{
    uint32_t token;
    while (fl_words_next(&text, &token))
        push(prompt, token);
}

static int read_content(const struct fl_json_node *content, struct engine_prompt *prompt,
                        struct fl_error *err)
{
    if (content == NULL || content->type == FL_JSON_NULL)
        return 0; /* an assistant message may hold tool calls only */
    if (content->type == FL_JSON_STRING) {
        push_text(prompt, content->text);
        return 0;
    }
    if (content->type != FL_JSON_ARRAY)
        return fl_error_set(err, FL_EBAD_BODY, "message content is neither a string nor a list");
    for (const struct fl_json_node *part = fl_json_first(content); part != NULL;
         part = fl_json_next(content, part)) {
        const struct fl_json_node *text = fl_json_get(part, FL_BYTES("text"));
        if (text != NULL && text->type == FL_JSON_STRING)
            push_text(prompt, text->text);
        else
            push_text(prompt, FL_BYTES("<|media_pad|>"));
    }
    return 0;
}

/* The template wraps each message, so a chat always has more ids than the bare text (epp.md 9.5
 * looks at this). */
static int read_chat(const struct fl_json_node *body, struct engine_prompt *prompt,
                     struct fl_error *err)
{
    const struct fl_json_node *messages = fl_json_get(body, FL_BYTES("messages"));
    if (messages == NULL || messages->type != FL_JSON_ARRAY || messages->count == 0)
        return fl_error_set(err, FL_EBAD_BODY, "messages is missing, empty or no list");
    for (const struct fl_json_node *message = fl_json_first(messages); message != NULL;
         message = fl_json_next(messages, message)) {
        struct fl_bytes role;
        if (fl_json_get_string(message, "role", &role, err) < 0)
            return FL_EBAD_BODY;
        push_text(prompt, FL_BYTES("<|im_start|>"));
        push_text(prompt, role);
        int rc = read_content(fl_json_get(message, FL_BYTES("content")), prompt, err);
        if (rc < 0)
            return rc;
        push_text(prompt, FL_BYTES("<|im_end|>"));
    }
    push_text(prompt, FL_BYTES("<|im_start|> assistant"));
    return 0;
}

static int read_token_array(const struct fl_json_node *array, struct engine_prompt *prompt,
                            struct fl_error *err)
{
    prompt->tokens = fl_realloc(prompt->tokens, (size_t)array->count + 1, sizeof(uint32_t));
    prompt->cap = (size_t)array->count + 1;
    int64_t count = fl_json_read_u32_array(array->text, prompt->tokens, array->count);
    if (count < 0)
        return fl_error_set(err, FL_EBAD_BODY, "prompt holds something that is no token id");
    prompt->count = (size_t)count;
    return 0;
}

static int read_completion(const struct fl_json_node *node, struct engine_prompt *prompts,
                           size_t *count, struct fl_error *err)
{
    if (node == NULL)
        return fl_error_set(err, FL_EBAD_BODY, "prompt is missing");
    if (node->type == FL_JSON_STRING) {
        *count = 1;
        push_text(&prompts[0], node->text);
        return 0;
    }
    const struct fl_json_node *first = node->type == FL_JSON_ARRAY ? fl_json_first(node) : NULL;
    if (first == NULL)
        return fl_error_set(err, FL_EBAD_BODY, "prompt is neither a string nor a list");
    if (first->type == FL_JSON_NUMBER) {
        *count = 1;
        return read_token_array(node, &prompts[0], err);
    }
    if (node->count > ENGINE_MAX_PROMPTS)
        return fl_error_set(err, FL_EBAD_BODY, "prompt holds %u prompts, at most %d", node->count,
                            ENGINE_MAX_PROMPTS);
    for (const struct fl_json_node *item = first; item != NULL; item = fl_json_next(node, item)) {
        struct engine_prompt *prompt = &prompts[(*count)++];
        if (item->type == FL_JSON_STRING)
            push_text(prompt, item->text);
        else if (item->type != FL_JSON_ARRAY)
            return fl_error_set(err, FL_EBAD_BODY, "prompt mixes types");
        else if (read_token_array(item, prompt, err) < 0)
            return FL_EBAD_BODY;
    }
    return 0;
}

int engine_read_prompts(const struct fl_json_node *body, bool is_chat,
                        struct engine_prompt *prompts, size_t *count, struct fl_error *err)
{
    *count = 0;
    if (body->type != FL_JSON_OBJECT)
        return fl_error_set(err, FL_EBAD_BODY, "body is no JSON object");
    if (!is_chat)
        return read_completion(fl_json_get(body, FL_BYTES("prompt")), prompts, count, err);
    *count = 1;
    return read_chat(body, &prompts[0], err);
}
