/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>

#include "base/alloc.h"
#include "web/internal.h"

/* A rest of the chunk below this is left: reads would become too small to be worth a call. */
#define ROOM_MIN 8192
#define REFERENCE_BYTES 4096
#define JOINT_ROOM 4096

void fl_web_reader_init(struct fl_web_reader *reader, struct fl_budget *budget)
{
    *reader = (struct fl_web_reader){.budget = budget};
    fl_joint_init(&reader->joint, JOINT_ROOM, budget);
    fl_link_init(&reader->spares);
}

void fl_web_reader_fini(struct fl_web_reader *reader)
{
    fl_chunk_unref(reader->chunk);
    reader->chunk = NULL;
    fl_joint_fini(&reader->joint);
    fl_buf_fini(&reader->scratch);
    fl_h2_cache_fini(&reader->h2_cache);
    for (struct fl_link *link; (link = fl_link_pop_head(&reader->spares)) != NULL;)
        fl_free(link);
}

uint8_t *fl_web_reader_room(struct fl_web_reader *reader, size_t *room)
{
    struct fl_chunk *chunk = reader->chunk;

    if (chunk != NULL && atomic_load_explicit(&chunk->refs, memory_order_acquire) == 1)
        reader->used = 0;
    if (chunk == NULL || chunk->room - reader->used < ROOM_MIN) {
        fl_chunk_unref(chunk);
        chunk = reader->chunk = fl_chunk_new(FL_CHUNK_MAX_BYTES, reader->budget);
        reader->used = 0;
        if (chunk == NULL)
            return NULL;
    }
    *room = chunk->room - reader->used;
    return chunk->data + reader->used;
}

struct fl_slice fl_web_reader_take(struct fl_web_reader *reader, size_t n)
{
    uint8_t *at = reader->chunk->data + reader->used;

    if (n < REFERENCE_BYTES)
        return fl_joint_copy(&reader->joint, fl_bytes(at, n));
    fl_chunk_ref(reader->chunk);
    reader->used += (uint32_t)n;
    return (struct fl_slice){reader->chunk, at, n};
}

struct fl_slice fl_web_reader_copy(struct fl_web_reader *reader, struct fl_bytes bytes)
{
    return fl_joint_copy(&reader->joint, bytes);
}

uint64_t fl_web_stall_ms(struct fl_web_stall *stall, const struct fl_stream *stream,
                         uint64_t now_ms)
{
    size_t queued = fl_stream_queued(stream);
    uint64_t taken = stall->written - queued;

    if (queued == 0 || taken != stall->taken) {
        stall->taken = taken;
        stall->since_ms = now_ms;
        return 0;
    }
    return now_ms - stall->since_ms;
}
