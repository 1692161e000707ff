/* SPDX-License-Identifier: Apache-2.0 */
#include "kvevents/event.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "kvevents/extra.h"
#include "kvindex/kvindex.h"

void fl_kv_event_fini(struct fl_kv_event *event)
{
    fl_free(event->hashes);
    fl_free(event->tokens);
    fl_free(event->images);
    *event = (struct fl_kv_event){0};
}

/* A new event in the old arrays. */
static void reset(struct fl_kv_event *event)
{
    *event = (struct fl_kv_event){
        .kind = FL_KV_KIND_UNKNOWN,
        .hashes = event->hashes,
        .hash_cap = event->hash_cap,
        .tokens = event->tokens,
        .token_cap = event->token_cap,
        .images = event->images,
        .image_cap = event->image_cap,
    };
}

/* Room for `count` > 0 elements, which the peer chose; NULL without memory, the array stays then.
 */
static void *grown(void *array, size_t *cap, size_t count, size_t size)
{
    if (count <= *cap)
        return array;
    void *larger = fl_try_realloc(array, count, size);
    if (larger != NULL)
        *cap = count;
    return larger;
}

static bool ensure_hashes(struct fl_kv_event *event, size_t count)
{
    uint64_t *hashes = grown(event->hashes, &event->hash_cap, count + 1, sizeof(*hashes));
    if (hashes == NULL)
        return false;
    event->hashes = hashes;
    return true;
}

static bool ensure_tokens(struct fl_kv_event *event, size_t count)
{
    uint32_t *tokens = grown(event->tokens, &event->token_cap, count + 1, sizeof(*tokens));
    if (tokens == NULL)
        return false;
    event->tokens = tokens;
    return true;
}

/* ---- values ---- */

/* An integer as it is, a longer digest by its last 8 bytes (11.4). */
static bool hash_of(const struct fl_msgpack_value *value, uint64_t *hash)
{
    struct fl_bytes bytes;
    if (value->type == FL_MSGPACK_UINT) {
        *hash = value->uint;
        return true;
    }
    if (value->type == FL_MSGPACK_INT) {
        *hash = (uint64_t)value->sint;
        return true;
    }
    if (!fl_msgpack_text(value, &bytes) || bytes.n < 8)
        return false;
    *hash = 0;
    for (size_t i = bytes.n - 8; i < bytes.n; i++)
        *hash = *hash << 8 | bytes.p[i];
    return true;
}

/* Each reader below begins one value; a value of the wrong type breaks the event or is passed over,
 * as the field demands. What is left of it then is skipped by read_field(). */

static void read_hashes(struct fl_kv_event *event, struct fl_msgpack *reader)
{
    struct fl_msgpack_value array, value;
    event->hash_count = 0;
    event->has_hashes = false;
    if (fl_msgpack_next(reader, &array) < 0 || array.type != FL_MSGPACK_ARRAY ||
        array.count > FL_KVINDEX_EVENT_BLOCKS_MAX || !ensure_hashes(event, array.count)) {
        event->is_broken = true;
        return;
    }
    for (uint32_t i = 0; i < array.count; i++) {
        if (fl_msgpack_next(reader, &value) < 0 || !hash_of(&value, &event->hashes[i])) {
            event->is_broken = true;
            return;
        }
        event->hash_count++;
    }
    event->has_hashes = true;
}

static bool read_token(struct fl_msgpack *reader, uint32_t *token)
{
    struct fl_msgpack_value value;
    if (fl_msgpack_next(reader, &value) < 0 || value.type != FL_MSGPACK_UINT ||
        value.uint > UINT32_MAX)
        return false;
    *token = (uint32_t)value.uint;
    return true;
}

/* [[a, b], [b, c], ...]: overlapping by one token. The first pair's head has been read. */
static bool read_pairs(struct fl_kv_event *event, struct fl_msgpack *reader, uint32_t count)
{
    uint32_t second = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct fl_msgpack_value pair;
        if (i > 0 && (fl_msgpack_next(reader, &pair) < 0 || pair.type != FL_MSGPACK_ARRAY ||
                      pair.count != 2))
            return false;
        if (!read_token(reader, &event->tokens[i]) || !read_token(reader, &second))
            return false;
    }
    event->tokens[count] = second;
    event->token_count = (size_t)count + 1;
    event->is_eagle = true;
    return true;
}

static bool read_plain(struct fl_kv_event *event, struct fl_msgpack *reader,
                       const struct fl_msgpack_value *first, uint32_t count)
{
    if (first->type != FL_MSGPACK_UINT || first->uint > UINT32_MAX)
        return false;
    event->tokens[0] = (uint32_t)first->uint;
    for (uint32_t i = 1; i < count; i++)
        if (!read_token(reader, &event->tokens[i]))
            return false;
    event->token_count = count;
    return true;
}

static void read_tokens(struct fl_kv_event *event, struct fl_msgpack *reader)
{
    struct fl_msgpack_value array, first;
    event->token_count = 0;
    event->is_eagle = false;
    event->has_tokens = false;
    if (fl_msgpack_next(reader, &array) < 0 || array.type != FL_MSGPACK_ARRAY ||
        array.count > FL_KV_EVENT_TOKENS_MAX ||
        !ensure_tokens(event, (size_t)array.count + 1)) { /* pairs make one more */
        event->is_broken = true;
        return;
    }
    event->has_tokens = true;
    if (array.count == 0)
        return;
    if (fl_msgpack_next(reader, &first) < 0)
        event->is_broken = true;
    else if (first.type == FL_MSGPACK_ARRAY && first.count == 2)
        event->is_broken |= !read_pairs(event, reader, array.count);
    else
        event->is_broken |= !read_plain(event, reader, &first, array.count);
}

static void read_parent(struct fl_kv_event *event, struct fl_msgpack *reader)
{
    struct fl_msgpack_value value;
    event->has_parent = false;
    if (fl_msgpack_next(reader, &value) < 0) {
        event->is_broken = true;
        return;
    }
    if (value.type == FL_MSGPACK_NIL)
        return;
    event->has_parent = hash_of(&value, &event->parent);
    event->is_broken |= !event->has_parent;
}

static void read_block_size(struct fl_kv_event *event, struct fl_msgpack *reader)
{
    struct fl_msgpack_value value;
    event->has_block_tokens =
        fl_msgpack_next(reader, &value) == 0 && value.type == FL_MSGPACK_UINT && value.uint > 0;
    event->block_tokens = event->has_block_tokens ? value.uint : 0;
    event->is_broken |= !event->has_block_tokens;
}

/* A text or nil; anything else breaks the event, as a filter must not be passed by accident. */
static void read_text(struct fl_kv_event *event, struct fl_msgpack *reader, struct fl_bytes *text)
{
    struct fl_msgpack_value value;
    *text = (struct fl_bytes){0};
    if (fl_msgpack_next(reader, &value) < 0 ||
        (value.type != FL_MSGPACK_NIL && !fl_msgpack_text(&value, text)))
        event->is_broken = true;
}

static void read_group(struct fl_kv_event *event, struct fl_msgpack *reader)
{
    struct fl_msgpack_value value;
    event->has_group = false;
    if (fl_msgpack_next(reader, &value) < 0 ||
        (value.type != FL_MSGPACK_NIL && value.type != FL_MSGPACK_UINT)) {
        event->is_broken = true;
        return;
    }
    event->has_group = value.type == FL_MSGPACK_UINT;
    event->group = event->has_group ? value.uint : 0;
}

/* The LoRA name; SGLang's arrays put a map there when there is something to tell. */
static void read_lora(struct fl_kv_event *event, struct fl_msgpack *reader)
{
    struct fl_msgpack_value value, key;
    event->lora_name = (struct fl_bytes){0};
    if (fl_msgpack_next(reader, &value) < 0) {
        event->is_broken = true;
        return;
    }
    if (value.type == FL_MSGPACK_NIL || fl_msgpack_text(&value, &event->lora_name))
        return;
    if (value.type != FL_MSGPACK_MAP) {
        event->is_broken = true;
        return;
    }
    for (uint32_t i = 0; i < value.count; i++) {
        struct fl_bytes name = {0};
        if (fl_msgpack_next(reader, &key) < 0) {
            event->is_broken = true;
            return;
        }
        fl_msgpack_text(&key, &name);
        if (fl_bytes_eq(name, FL_BYTES("cache_salt")))
            read_text(event, reader, &event->cache_salt);
        else if (fl_msgpack_skip(reader) < 0)
            return;
    }
}

static void read_tag(struct fl_kv_event *event, struct fl_msgpack *reader)
{
    static const struct {
        struct fl_bytes tag;
        enum fl_kv_kind kind;
    } tags[] = {
        {{(const uint8_t *)"BlockStored", 11}, FL_KV_KIND_STORED},
        {{(const uint8_t *)"BlockRemoved", 12}, FL_KV_KIND_REMOVED},
        {{(const uint8_t *)"AllBlocksCleared", 16}, FL_KV_KIND_CLEARED},
        {{(const uint8_t *)"Ignored", 7}, FL_KV_KIND_IGNORED},
    };
    struct fl_msgpack_value value;
    struct fl_bytes tag;
    event->has_tag = fl_msgpack_next(reader, &value) == 0 && fl_msgpack_text(&value, &tag);
    event->kind = FL_KV_KIND_UNKNOWN;
    for (size_t i = 0; event->has_tag && i < FL_ARRAY_LEN(tags); i++)
        if (fl_bytes_eq(tag, tags[i].tag))
            event->kind = tags[i].kind;
}

/* ---- fields: one list for both forms ---- */

enum field {
    FIELD_TYPE,
    FIELD_HASHES,
    FIELD_PARENT,
    FIELD_TOKENS,
    FIELD_BLOCK_SIZE,
    FIELD_MEDIUM,
    FIELD_LORA,
    FIELD_EXTRA_KEYS,
    FIELD_GROUP,
    FIELD_KIND,
    FIELD_LOCALITY,
    FIELD_SALT,
    FIELD_IMAGES,
    FIELD_IGNORED,
};

static const struct {
    const char *key;
    enum field field;
} map_fields[] = {
    {"type", FIELD_TYPE},
    {"block_hashes", FIELD_HASHES},
    {"parent_block_hash", FIELD_PARENT},
    {"token_ids", FIELD_TOKENS},
    {"block_size", FIELD_BLOCK_SIZE},
    {"medium", FIELD_MEDIUM},
    {"lora_name", FIELD_LORA},
    {"extra_keys", FIELD_EXTRA_KEYS},
    {"group_idx", FIELD_GROUP},
    {"kv_cache_spec_kind", FIELD_KIND},
    {"locality", FIELD_LOCALITY},
    {"cache_salt", FIELD_SALT},
    {"block_mm_infos", FIELD_IMAGES},
};

/* Positions behind the tag. The tail of a store (from position 9) is read by type, see read_tail().
 */
static const enum field stored_fields[] = {FIELD_HASHES,     FIELD_PARENT,    FIELD_TOKENS,
                                           FIELD_BLOCK_SIZE, FIELD_IGNORED,   FIELD_MEDIUM,
                                           FIELD_LORA,       FIELD_EXTRA_KEYS};
static const enum field removed_fields[] = {FIELD_HASHES, FIELD_MEDIUM,  FIELD_GROUP,
                                            FIELD_KIND,   FIELD_IGNORED, FIELD_LOCALITY};

/* Takes exactly one value, whatever it turns out to be. */
static void read_field(struct fl_kv_event *event, struct fl_msgpack *reader, enum field field)
{
    uint32_t depth = reader->depth;
    switch (field) {
    case FIELD_TYPE:
        read_tag(event, reader);
        break;
    case FIELD_HASHES:
        read_hashes(event, reader);
        break;
    case FIELD_PARENT:
        read_parent(event, reader);
        break;
    case FIELD_TOKENS:
        read_tokens(event, reader);
        break;
    case FIELD_BLOCK_SIZE:
        read_block_size(event, reader);
        break;
    case FIELD_MEDIUM:
        read_text(event, reader, &event->medium);
        break;
    case FIELD_LORA:
        read_lora(event, reader);
        break;
    case FIELD_EXTRA_KEYS:
        event->extra_keys = *reader;
        event->has_extra_keys = true;
        fl_msgpack_skip(reader);
        break;
    case FIELD_GROUP:
        read_group(event, reader);
        break;
    case FIELD_KIND:
        read_text(event, reader, &event->spec_kind);
        break;
    case FIELD_LOCALITY:
        read_text(event, reader, &event->locality);
        break;
    case FIELD_SALT:
        read_text(event, reader, &event->cache_salt);
        break;
    case FIELD_IMAGES:
        event->image_count = 0;
        fl_kv_extra_read_images(event, reader);
        event->has_infos = event->image_count > 0; /* the extra keys then tell the same again */
        break;
    case FIELD_IGNORED:
        fl_msgpack_skip(reader);
        break;
    }
    /* When it was its container's last value, that has closed by itself and the depth is smaller.
     */
    fl_msgpack_skip_to(reader, depth);
}

/* ---- the tail of a store in array form ---- */

/* Elements from position 9: group, kind, window, locality, source. Older senders send fewer, in no
 * fixed order. */
#define TAIL_MAX 8
#define TAIL_FULL 4

struct tail {
    struct fl_msgpack at[TAIL_MAX]; /* before each */
    enum fl_msgpack_type type[TAIL_MAX];
    uint32_t count;
};

static bool fits(const struct tail *tail, uint32_t at, enum fl_msgpack_type type)
{
    return at >= tail->count || tail->type[at] == type || tail->type[at] == FL_MSGPACK_NIL;
}

static bool is_in_order(const struct tail *tail)
{
    return tail->count >= TAIL_FULL && fits(tail, 0, FL_MSGPACK_UINT) &&
           fits(tail, 1, FL_MSGPACK_STR) && fits(tail, 2, FL_MSGPACK_UINT) &&
           fits(tail, 3, FL_MSGPACK_STR);
}

static void read_tail_in_order(struct fl_kv_event *event, struct tail *tail)
{
    static const enum field fields[TAIL_FULL] = {FIELD_GROUP, FIELD_KIND, FIELD_IGNORED,
                                                 FIELD_LOCALITY};
    for (uint32_t i = 0; i < TAIL_FULL; i++)
        read_field(event, &tail->at[i], fields[i]);
}

/* First integer: group; second: window. Text: kind, or a locality by its word. Array: images. */
static void read_tail_by_type(struct fl_kv_event *event, struct tail *tail)
{
    for (uint32_t i = 0; i < tail->count; i++) {
        if (tail->type[i] == FL_MSGPACK_UINT && !event->has_group) {
            read_field(event, &tail->at[i], FIELD_GROUP);
        } else if (tail->type[i] == FL_MSGPACK_STR) {
            struct fl_bytes text;
            read_text(event, &tail->at[i], &text);
            if (fl_bytes_eq(text, FL_BYTES("LOCAL")) || fl_bytes_eq(text, FL_BYTES("REMOTE")))
                event->locality = text;
            else if (fl_bytes_is_absent(event->spec_kind))
                event->spec_kind = text;
        } else if (tail->type[i] == FL_MSGPACK_ARRAY) {
            read_field(event, &tail->at[i], FIELD_IMAGES);
        }
    }
}

static void read_tail(struct fl_kv_event *event, struct fl_msgpack *reader, uint32_t count)
{
    struct tail tail = {.count = count < TAIL_MAX ? count : TAIL_MAX};
    for (uint32_t i = 0; i < count; i++) {
        struct fl_msgpack_value value;
        uint32_t depth = reader->depth;
        struct fl_msgpack before = *reader;
        if (fl_msgpack_next(reader, &value) < 0 || fl_msgpack_skip_to(reader, depth) < 0)
            return;
        if (i < TAIL_MAX) {
            tail.at[i] = before;
            tail.type[i] = value.type;
        }
    }
    if (is_in_order(&tail))
        read_tail_in_order(event, &tail);
    else
        read_tail_by_type(event, &tail);
}

/* ---- events and batches ---- */

static void read_array(struct fl_kv_event *event, struct fl_msgpack *reader, uint32_t count)
{
    if (count == 0)
        return;
    read_field(event, reader, FIELD_TYPE);
    uint32_t left = count - 1;
    const enum field *fields = NULL;
    size_t known = 0;
    if (event->kind == FL_KV_KIND_STORED) {
        fields = stored_fields;
        known = FL_ARRAY_LEN(stored_fields);
    } else if (event->kind == FL_KV_KIND_REMOVED) {
        fields = removed_fields;
        known = FL_ARRAY_LEN(removed_fields);
    }
    for (size_t i = 0; i < known && left > 0; i++, left--)
        read_field(event, reader, fields[i]);
    if (event->kind == FL_KV_KIND_STORED)
        read_tail(event, reader, left);
}

static void read_map(struct fl_kv_event *event, struct fl_msgpack *reader, uint32_t pairs)
{
    for (uint32_t i = 0; i < pairs; i++) {
        struct fl_msgpack_value value;
        struct fl_bytes key = {0};
        enum field field = FIELD_IGNORED;
        uint32_t depth = reader->depth;
        if (fl_msgpack_next(reader, &value) < 0)
            return;
        fl_msgpack_text(&value, &key);
        if (fl_msgpack_skip_to(reader, depth) < 0)
            return;
        for (size_t k = 0; k < FL_ARRAY_LEN(map_fields); k++)
            if (fl_bytes_eq(key, fl_bytes_of(map_fields[k].key)))
                field = map_fields[k].field;
        read_field(event, reader, field);
    }
}

static bool has_required(const struct fl_kv_event *event)
{
    if (!event->has_tag)
        return false;
    if (event->kind == FL_KV_KIND_STORED)
        return event->has_hashes && event->has_tokens && event->has_block_tokens;
    return event->kind != FL_KV_KIND_REMOVED || event->has_hashes;
}

bool fl_kv_batch_next(struct fl_kv_batch *batch, struct fl_kv_event *event)
{
    if (batch->next == batch->count)
        return false;
    batch->next++;
    reset(event);

    struct fl_msgpack_value value;
    if (fl_msgpack_next(&batch->reader, &value) < 0)
        return false;
    if (value.type == FL_MSGPACK_ARRAY)
        read_array(event, &batch->reader, value.count);
    else if (value.type == FL_MSGPACK_MAP)
        read_map(event, &batch->reader, value.count);
    fl_msgpack_skip_to(&batch->reader, batch->depth);

    event->is_broken |= !has_required(event);
    if (!event->is_broken && event->has_extra_keys)
        fl_kv_extra_read_keys(event, event->extra_keys);
    return true;
}

static bool take_ts(struct fl_kv_batch *batch, struct fl_msgpack *reader)
{
    struct fl_msgpack_value value;
    if (fl_msgpack_next(reader, &value) < 0)
        return false;
    if (value.type == FL_MSGPACK_FLOAT)
        batch->ts = value.real;
    else if (value.type == FL_MSGPACK_UINT)
        batch->ts = (double)value.uint;
    else if (value.type == FL_MSGPACK_INT)
        batch->ts = (double)value.sint;
    else
        return false;
    return true;
}

static bool take_rank(struct fl_kv_batch *batch, struct fl_msgpack *reader)
{
    struct fl_msgpack_value value;
    if (fl_msgpack_next(reader, &value) < 0)
        return false;
    batch->has_rank = value.type == FL_MSGPACK_UINT && value.uint <= UINT32_MAX;
    batch->rank = batch->has_rank ? (uint32_t)value.uint : 0;
    return batch->has_rank || value.type == FL_MSGPACK_NIL;
}

/* Remembers where the events are and passes over them. */
static bool take_events(struct fl_kv_batch *batch, struct fl_msgpack *reader)
{
    struct fl_msgpack_value value;
    uint32_t depth = reader->depth;
    if (fl_msgpack_next(reader, &value) < 0 || value.type != FL_MSGPACK_ARRAY)
        return false;
    batch->reader = *reader;
    batch->depth = depth + 1;
    batch->count = value.count;
    return fl_msgpack_skip_to(reader, depth) == 0;
}

/* [ts, events], [ts, events, rank], and whatever a later age may add. */
static bool open_array(struct fl_kv_batch *batch, struct fl_msgpack *reader, uint32_t count)
{
    if (count < 2 || !take_ts(batch, reader) || !take_events(batch, reader))
        return false;
    return count < 3 || take_rank(batch, reader);
}

static bool open_map(struct fl_kv_batch *batch, struct fl_msgpack *reader, uint32_t pairs)
{
    bool has_events = false;
    for (uint32_t i = 0; i < pairs; i++) {
        struct fl_msgpack_value value;
        struct fl_bytes key = {0};
        uint32_t depth = reader->depth;
        bool ok;
        if (fl_msgpack_next(reader, &value) < 0)
            return false;
        fl_msgpack_text(&value, &key);
        if (fl_msgpack_skip_to(reader, depth) < 0)
            return false;
        if (fl_bytes_eq(key, FL_BYTES("ts")))
            ok = take_ts(batch, reader);
        else if (fl_bytes_eq(key, FL_BYTES("events")))
            ok = has_events = take_events(batch, reader);
        else if (fl_bytes_eq(key, FL_BYTES("data_parallel_rank")) ||
                 fl_bytes_eq(key, FL_BYTES("dp_rank")) ||
                 fl_bytes_eq(key, FL_BYTES("attn_dp_rank")))
            ok = take_rank(batch, reader);
        else
            ok = fl_msgpack_skip(reader) == 0;
        if (!ok)
            return false;
    }
    return has_events;
}

int fl_kv_batch_open(struct fl_kv_batch *batch, struct fl_bytes payload)
{
    struct fl_msgpack reader;
    struct fl_msgpack_value top;
    *batch = (struct fl_kv_batch){0};
    fl_msgpack_init(&reader, payload);
    int rc = fl_msgpack_next(&reader, &top);
    if (rc < 0)
        return rc;
    bool ok = false;
    if (top.type == FL_MSGPACK_ARRAY)
        ok = open_array(batch, &reader, top.count);
    else if (top.type == FL_MSGPACK_MAP)
        ok = open_map(batch, &reader, top.count);
    if (!ok)
        return FL_EPROTO;
    rc = fl_msgpack_skip_to(&reader, 0);
    return rc < 0 ? rc : fl_msgpack_finish(&reader);
}
