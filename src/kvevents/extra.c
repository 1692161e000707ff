/* SPDX-License-Identifier: Apache-2.0 */
#include "kvevents/extra.h"

#include "base/alloc.h"
#include "kvindex/hash.h"

#define MARKED_SALT "dynamo-cache-salt:"

static void add_image(struct fl_kv_event *event, uint32_t block, uint64_t hash)
{
    if (event->image_count == FL_KV_EVENT_IMAGES_MAX)
        return; /* the block then hashes to something else: a miss */
    if (event->image_count == event->image_cap) {
        event->image_cap = event->image_cap == 0 ? 16 : event->image_cap * 2;
        event->images = fl_realloc(event->images, event->image_cap, sizeof(*event->images));
    }
    event->images[event->image_count++] = (struct fl_kv_image){block, hash};
}

static void add_named_image(struct fl_kv_event *event, uint32_t block, struct fl_bytes identifier)
{
    if (!event->has_infos)
        add_image(event, block, fl_block_image_hash(identifier));
}

static void take_text(struct fl_kv_event *event, uint32_t block, struct fl_bytes text)
{
    if (!fl_bytes_is_absent(event->lora_name) && fl_bytes_eq(text, event->lora_name))
        return; /* trap 7: a LoRA name is no image */
    if (fl_bytes_has_prefix(text, FL_BYTES(MARKED_SALT))) {
        if (block == 0)
            event->key_salt = fl_bytes_skip(text, sizeof(MARKED_SALT) - 1);
    } else if (fl_block_is_image_digest(text)) {
        add_named_image(event, block, text);
    } else if (block == 0 && fl_bytes_is_absent(event->plain_key)) {
        event->plain_key = text;
    }
}

/* [identifier, offset] */
static void take_pair(struct fl_kv_event *event, uint32_t block, struct fl_msgpack *reader,
                      uint32_t count)
{
    struct fl_msgpack_value value;
    struct fl_bytes text;
    if (count == 0 || fl_msgpack_next(reader, &value) < 0 || !fl_msgpack_text(&value, &text))
        return;
    add_named_image(event, block, text);
}

/* The next key and value of a map. What a container holds is the caller's to read or to skip. */
static bool next_member(struct fl_msgpack *reader, struct fl_bytes *name,
                        struct fl_msgpack_value *value)
{
    struct fl_msgpack_value key;
    uint32_t depth = reader->depth;
    *name = (struct fl_bytes){0};
    return fl_msgpack_next(reader, &key) == 0 &&
           (fl_msgpack_text(&key, name) || fl_msgpack_skip_to(reader, depth) == 0) &&
           fl_msgpack_next(reader, value) == 0;
}

/* {"type": t, ...}: the typed form that was proposed for vLLM. */
static void take_typed(struct fl_kv_event *event, uint32_t block, struct fl_msgpack *reader,
                       uint32_t pairs)
{
    struct fl_bytes type = {0}, salt = {0}, hash = {0}, value_text = {0}, name;
    struct fl_msgpack_value value;
    uint32_t depth = reader->depth;
    for (uint32_t i = 0; i < pairs && next_member(reader, &name, &value); i++) {
        struct fl_bytes text = {0};
        fl_msgpack_text(&value, &text);
        fl_msgpack_skip_to(reader, depth);
        if (fl_bytes_eq(name, FL_BYTES("type")))
            type = text;
        else if (fl_bytes_eq(name, FL_BYTES("salt")))
            salt = text;
        else if (fl_bytes_eq(name, FL_BYTES("hash")))
            hash = text;
        else if (fl_bytes_eq(name, FL_BYTES("value")))
            value_text = text;
    }
    if (fl_bytes_eq(type, FL_BYTES("cache_salt")) && block == 0)
        event->key_salt = salt;
    else if (fl_bytes_eq(type, FL_BYTES("mm")) && !fl_bytes_is_absent(hash))
        add_named_image(event, block, hash);
    else if (fl_bytes_eq(type, FL_BYTES("legacy")) && !fl_bytes_is_absent(value_text))
        take_text(event, block, value_text);
}

static void take_key(struct fl_kv_event *event, uint32_t block, struct fl_msgpack *reader)
{
    struct fl_msgpack_value value;
    uint32_t depth = reader->depth;
    if (fl_msgpack_next(reader, &value) < 0)
        return;
    if (value.type == FL_MSGPACK_STR)
        take_text(event, block, value.bytes);
    else if (value.type == FL_MSGPACK_ARRAY)
        take_pair(event, block, reader, value.count);
    else if (value.type == FL_MSGPACK_MAP)
        take_typed(event, block, reader, value.count);
    fl_msgpack_skip_to(reader, depth);
}

void fl_kv_extra_read_keys(struct fl_kv_event *event, struct fl_msgpack reader)
{
    struct fl_msgpack_value blocks, keys;
    if (fl_msgpack_next(&reader, &blocks) < 0 || blocks.type != FL_MSGPACK_ARRAY)
        return;
    for (uint32_t block = 0; block < blocks.count && block < event->hash_count; block++) {
        uint32_t depth = reader.depth;
        if (fl_msgpack_next(&reader, &keys) < 0)
            return;
        if (keys.type == FL_MSGPACK_ARRAY)
            for (uint32_t i = 0; i < keys.count; i++)
                take_key(event, block, &reader);
        fl_msgpack_skip_to(&reader, depth);
    }
}

/* {"mm_hash": number, "offsets": ...} */
static void take_object(struct fl_kv_event *event, uint32_t block, struct fl_msgpack *reader)
{
    struct fl_msgpack_value object, value;
    struct fl_bytes name;
    uint32_t outside = reader->depth;
    if (fl_msgpack_next(reader, &object) == 0 && object.type == FL_MSGPACK_MAP) {
        uint32_t inside = reader->depth;
        for (uint32_t i = 0; i < object.count && next_member(reader, &name, &value); i++) {
            bool is_hash = fl_bytes_eq(name, FL_BYTES("mm_hash"));
            if (is_hash && value.type == FL_MSGPACK_UINT)
                add_image(event, block, value.uint);
            else if (is_hash && value.type == FL_MSGPACK_INT)
                add_image(event, block, (uint64_t)value.sint);
            fl_msgpack_skip_to(reader, inside);
        }
    }
    fl_msgpack_skip_to(reader, outside);
}

/* nil, or {"mm_objects": [...]} */
static void take_info(struct fl_kv_event *event, uint32_t block, struct fl_msgpack *reader)
{
    struct fl_msgpack_value info, value;
    struct fl_bytes name;
    uint32_t outside = reader->depth;
    if (fl_msgpack_next(reader, &info) == 0 && info.type == FL_MSGPACK_MAP) {
        uint32_t inside = reader->depth;
        for (uint32_t i = 0; i < info.count && next_member(reader, &name, &value); i++) {
            if (fl_bytes_eq(name, FL_BYTES("mm_objects")) && value.type == FL_MSGPACK_ARRAY)
                for (uint32_t j = 0; j < value.count; j++)
                    take_object(event, block, reader);
            fl_msgpack_skip_to(reader, inside);
        }
    }
    fl_msgpack_skip_to(reader, outside);
}

void fl_kv_extra_read_images(struct fl_kv_event *event, struct fl_msgpack *reader)
{
    struct fl_msgpack_value blocks;
    uint32_t depth = reader->depth;
    if (fl_msgpack_next(reader, &blocks) < 0)
        return;
    for (uint32_t block = 0; blocks.type == FL_MSGPACK_ARRAY && block < blocks.count; block++)
        take_info(event, block, reader);
    fl_msgpack_skip_to(reader, depth);
}
