/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer/answer.h"

#include "base/alloc.h"
#include "codec/json.h"

const char *const fl_tokenizer_protocols[] = {"none", "vllm-render", "sglang-renderer", NULL};

static const char *const id_members[FL_TOKENIZER_PROTOCOL_COUNT] = {
    [FL_TOKENIZER_NONE] = "token_ids",
    [FL_TOKENIZER_VLLM_RENDER] = "token_ids",
    [FL_TOKENIZER_SGLANG_RENDERER] = "input_ids",
};

struct search {
    struct fl_bytes key, array;
    bool is_found, is_array;
};

static int on_member(void *owner, const struct fl_json_member *member)
{
    struct search *search = owner;
    if (fl_bytes_eq(member->key, search->key)) {
        search->is_found = true;
        search->is_array = member->type == FL_JSON_ARRAY;
        search->array = member->value;
    }
    return 0;
}

void fl_tokens_fini(struct fl_tokens *tokens)
{
    fl_free(tokens->ids);
    *tokens = (struct fl_tokens){0};
}

/* Every id but the last is followed by a comma; blanks make it an upper bound. */
static size_t most_ids(struct fl_bytes array)
{
    return array.n / 2 + 1;
}

static int take_array(struct fl_tokens *tokens, struct fl_bytes array, struct fl_error *err)
{
    size_t room = most_ids(array);
    uint32_t *ids = fl_try_alloc(room * sizeof(*ids));
    if (ids == NULL)
        return fl_error_set(err, FL_ENOMEM, "no memory for %zu token ids", room);
    int64_t count = fl_json_read_u32_array(array, ids, room);
    if (count < 0) {
        fl_free(ids);
        return fl_error_set(err, FL_ETOKENIZER, "an id is no integer from 0 to 4294967295");
    }
    tokens->total += (uint64_t)count;
    tokens->prompts++;
    if (tokens->ids != NULL && (size_t)count <= tokens->count) {
        fl_free(ids);
        return 0;
    }
    fl_free(tokens->ids);
    tokens->ids = ids;
    tokens->count = (size_t)count;
    return 0;
}

static int take_found(const struct search *search, struct fl_tokens *tokens, struct fl_error *err)
{
    if (!search->is_found)
        return fl_error_set(err, FL_ETOKENIZER, "member %.*s is missing", FL_FMT(search->key));
    if (!search->is_array)
        return fl_error_set(err, FL_ETOKENIZER, "member %.*s is no list", FL_FMT(search->key));
    return take_array(tokens, search->array, err);
}

static int read_tree(struct fl_bytes text, struct fl_bytes key, struct fl_tokens *tokens,
                     struct fl_error *err)
{
    struct fl_json doc = {0};
    struct fl_error why = {0};
    int rc = fl_json_parse(&doc, text, &why);
    if (rc < 0) {
        rc = rc == FL_ENOMEM ? FL_ENOMEM : FL_ETOKENIZER;
        fl_error_set(err, rc, "%s", why.text);
        goto out;
    }
    const struct fl_json_node *root = fl_json_root(&doc);
    if (root->type != FL_JSON_ARRAY || root->count == 0) {
        rc = fl_error_set(err, FL_ETOKENIZER, "neither an object nor a list of objects");
        goto out;
    }
    for (const struct fl_json_node *item = fl_json_first(root); rc == 0 && item != NULL;
         item = fl_json_next(root, item)) {
        const struct fl_json_node *ids = fl_json_get(item, key);
        struct search search = {.key = key, .is_found = ids != NULL};
        if (ids != NULL) {
            search.is_array = ids->type == FL_JSON_ARRAY;
            search.array = ids->text;
        }
        rc = take_found(&search, tokens, err);
    }
out:
    fl_json_fini(&doc);
    return rc;
}

/* The only element of a list, or absent if `text` is no list. */
static struct fl_bytes inside_of_list(struct fl_bytes text)
{
    text = fl_bytes_trim(text);
    while (text.n > 0 && (text.p[0] == '\n' || text.p[0] == '\r'))
        text = fl_bytes_trim(fl_bytes_skip(text, 1));
    while (text.n > 0 && (text.p[text.n - 1] == '\n' || text.p[text.n - 1] == '\r'))
        text = fl_bytes_trim(fl_bytes_head(text, text.n - 1));
    if (text.n < 2 || text.p[0] != '[' || text.p[text.n - 1] != ']')
        return (struct fl_bytes){0};
    return fl_bytes(text.p + 1, text.n - 2);
}

int fl_tokenizer_read_answer(enum fl_tokenizer_protocol protocol, struct fl_bytes text,
                             struct fl_tokens *tokens, struct fl_error *err)
{
    struct search search = {.key = fl_bytes_of(id_members[protocol])};
    struct fl_bytes inside = inside_of_list(text);
    int rc;

    if (fl_bytes_is_absent(inside))
        rc = fl_json_scan_members(text, on_member, &search);
    else
        rc = fl_json_scan_members(inside, on_member, &search);
    if (rc == 0)
        rc = take_found(&search, tokens, err);
    else if (!fl_bytes_is_absent(inside))
        rc = read_tree(text, search.key, tokens, err);
    else
        rc = fl_error_set(err, FL_ETOKENIZER,
                          rc == FL_ETYPE ? "neither an object nor a list of objects"
                                         : "no valid JSON");
    if (rc < 0)
        fl_tokens_fini(tokens);
    return rc;
}
