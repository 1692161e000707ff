/* SPDX-License-Identifier: Apache-2.0 */
/* A batch of KV events as an engine sent it (selection.md 11.2-11.4), read in place.
 *
 * fl_kv_batch_open() walks the whole payload once, so that a batch that is cut or malformed
 * anywhere is refused before any of its events takes effect. fl_kv_batch_next() then fills one
 * event at a time, from the array form or the map form. A broken event is reported as such and does
 * not disturb the next.
 *
 * Texts are lent by the payload; the arrays belong to the event, grow, and are used again. */
#ifndef FL_KVEVENTS_EVENT_H
#define FL_KVEVENTS_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "codec/msgpack.h"

/* Tokens of one event: those of the longest store the index takes (65,536 blocks) at 64 a block. */
#define FL_KV_EVENT_TOKENS_MAX (UINT32_C(1) << 22)
/* Images of one event; a block touches one or two. */
#define FL_KV_EVENT_IMAGES_MAX 4096

enum fl_kv_kind {
    FL_KV_KIND_STORED,
    FL_KV_KIND_REMOVED,
    FL_KV_KIND_CLEARED,
    FL_KV_KIND_IGNORED, /* the tag says so */
    FL_KV_KIND_UNKNOWN, /* a tag nobody told us about */
};

struct fl_kv_image {
    uint32_t block; /* of the event */
    uint64_t hash;
};

struct fl_kv_event {
    enum fl_kv_kind kind;
    bool is_broken; /* a required part is missing or of the wrong type */

    bool has_parent;
    uint64_t parent;
    uint64_t *hashes;
    size_t hash_count;
    uint32_t *tokens; /* pairs are unrolled: all firsts, then the second of the last */
    size_t token_count;
    bool is_eagle; /* tokens came as pairs */
    uint64_t block_tokens;

    struct fl_bytes medium, lora_name, locality, spec_kind; /* absent: nil or not sent */
    struct fl_bytes cache_salt; /* given as such, or in SGLang's map in place of the LoRA name */
    /* From the first block's extra keys: a marked salt, or a plain string that may be one (11.4).
     */
    struct fl_bytes key_salt, plain_key;
    bool has_group;
    uint64_t group;
    struct fl_kv_image *images; /* by block, ascending */
    size_t image_count;

    /* private */
    size_t hash_cap, token_cap, image_cap;
    bool has_hashes, has_tokens, has_block_tokens, has_tag, has_extra_keys, has_infos;
    struct fl_msgpack extra_keys; /* before the value: read last, as they need the LoRA name */
};

struct fl_kv_batch {
    double ts; /* seconds */
    bool has_rank;
    uint32_t rank;
    uint32_t count; /* events */
    /* private */
    struct fl_msgpack reader;
    uint32_t next, depth;
};

/* 0, or FL_EPROTO/FL_EDEPTH: not a batch. */
int fl_kv_batch_open(struct fl_kv_batch *batch, struct fl_bytes payload);
/* False when there are no more. `event` is zeroed before its first use. */
bool fl_kv_batch_next(struct fl_kv_batch *batch, struct fl_kv_event *event);

/* Gives the arrays back. Idempotent. */
void fl_kv_event_fini(struct fl_kv_event *event);

#endif
