/* SPDX-License-Identifier: Apache-2.0 */
#include "kvevents/publisher.h"

#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "codec/msgpack.h"
#include "kvevents/wire.h"

#define BUFFER_STEPS 10000 /* vLLM's defaults */
#define ENDPOINT_MAX 256

/* One batch of the ring. */
struct step {
    uint8_t *payload;
    size_t n;
};

struct fl_kv_publisher {
    enum fl_kv_form form;
    bool has_rank, replay_with_topic;
    uint32_t dp_rank;
    char *topic;
    char endpoint[ENDPOINT_MAX], replay_endpoint[ENDPOINT_MAX];
    void *live, *replay;

    struct fl_buf events; /* of the batch being gathered, one after the other */
    uint32_t event_count;

    struct step *ring; /* batch n at n % steps */
    uint32_t steps;
    uint64_t next; /* sequence of the next batch */
    uint32_t lose;
};

static void *bind_socket(void *zmq, int type, const char *endpoint, uint32_t hwm, char *bound,
                         struct fl_error *err)
{
    void *socket = fl_kv_socket(zmq, type, endpoint);
    if (socket == NULL) {
        fl_error_set(err, FL_EIO, "kv events: no socket: %s", zmq_strerror(zmq_errno()));
        return NULL;
    }
    size_t n = ENDPOINT_MAX;
    int marks = (int)hwm;
    zmq_setsockopt(socket, ZMQ_SNDHWM, &marks, sizeof(marks));
    if (zmq_bind(socket, endpoint) < 0 ||
        zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &n) < 0) {
        fl_error_set(err, FL_ECONFIG, "kv events: cannot bind %s: %s", endpoint,
                     zmq_strerror(zmq_errno()));
        zmq_close(socket);
        return NULL;
    }
    return socket;
}

struct fl_kv_publisher *fl_kv_publisher_open(const struct fl_kv_publisher_config *config,
                                             struct fl_error *err)
{
    uint32_t hwm = config->send_hwm != 0 ? config->send_hwm : FL_KV_HWM;
    struct fl_kv_publisher *publisher = fl_calloc(1, sizeof(*publisher));
    publisher->form = config->form;
    publisher->has_rank = config->has_rank;
    publisher->dp_rank = config->dp_rank;
    publisher->replay_with_topic = config->replay_with_topic;
    publisher->topic = fl_strdup(config->topic != NULL ? config->topic : "");
    publisher->steps = config->buffer_steps != 0 ? config->buffer_steps : BUFFER_STEPS;
    publisher->ring = fl_calloc(publisher->steps, sizeof(*publisher->ring));
    fl_buf_init(&publisher->events, FL_KV_FRAME_MAX - 64);

    publisher->live =
        bind_socket(config->zmq, ZMQ_PUB, config->endpoint, hwm, publisher->endpoint, err);
    if (publisher->live == NULL)
        goto out;
    if (config->replay_endpoint != NULL) {
        publisher->replay = bind_socket(config->zmq, ZMQ_ROUTER, config->replay_endpoint, hwm,
                                        publisher->replay_endpoint, err);
        if (publisher->replay == NULL)
            goto out;
    }
    return publisher;
out:
    fl_kv_publisher_close(publisher);
    return NULL;
}

void fl_kv_publisher_close(struct fl_kv_publisher *publisher)
{
    if (publisher == NULL)
        return;
    if (publisher->live != NULL)
        zmq_close(publisher->live);
    if (publisher->replay != NULL)
        zmq_close(publisher->replay);
    for (uint32_t i = 0; i < publisher->steps; i++)
        fl_free(publisher->ring[i].payload);
    fl_free(publisher->ring);
    fl_buf_fini(&publisher->events);
    fl_free(publisher->topic);
    fl_free(publisher);
}

const char *fl_kv_publisher_endpoint(const struct fl_kv_publisher *publisher)
{
    return publisher->endpoint;
}

const char *fl_kv_publisher_replay_endpoint(const struct fl_kv_publisher *publisher)
{
    return publisher->replay != NULL ? publisher->replay_endpoint : NULL;
}

/* ---- events ---- */

static void put_text_or_nil(struct fl_msgpack_writer *out, struct fl_bytes text)
{
    if (fl_bytes_is_absent(text))
        fl_msgpack_put_nil(out);
    else
        fl_msgpack_put_str(out, text);
}

static void put_hashes(struct fl_msgpack_writer *out, const uint64_t *hashes, size_t count)
{
    fl_msgpack_put_array(out, (uint32_t)count);
    for (size_t i = 0; i < count; i++)
        fl_msgpack_put_uint(out, hashes[i]);
}

static void put_parent(struct fl_msgpack_writer *out, const struct fl_kv_stored *stored)
{
    if (stored->has_parent)
        fl_msgpack_put_uint(out, stored->parent);
    else
        fl_msgpack_put_nil(out);
}

static void put_tokens(struct fl_msgpack_writer *out, const struct fl_kv_stored *stored)
{
    size_t count = stored->count * stored->block_tokens;
    fl_msgpack_put_array(out, (uint32_t)count);
    for (size_t i = 0; i < count; i++)
        fl_msgpack_put_uint(out, stored->tokens[i]);
}

/* vLLM: LoRA name in every block, the salt in the first of the sequence; nil where there is
 * nothing. */
static void put_extra_keys(struct fl_msgpack_writer *out, const struct fl_kv_stored *stored)
{
    fl_msgpack_put_array(out, (uint32_t)stored->count);
    for (size_t i = 0; i < stored->count; i++) {
        bool has_lora = !fl_bytes_is_absent(stored->lora_name);
        bool has_salt = i == 0 && !stored->has_parent && !fl_bytes_is_absent(stored->cache_salt);
        if (!has_lora && !has_salt) {
            fl_msgpack_put_nil(out);
            continue;
        }
        fl_msgpack_put_array(out, (uint32_t)has_lora + (uint32_t)has_salt);
        if (has_lora)
            fl_msgpack_put_str(out, stored->lora_name);
        if (has_salt)
            fl_msgpack_put_str(out, stored->cache_salt);
    }
}

/* Every field of the schema, in order: msgspec's arrays leave nothing out (11.3). */
static void put_stored_array(struct fl_msgpack_writer *out, const struct fl_kv_stored *stored)
{
    fl_msgpack_put_array(out, 12);
    fl_msgpack_put_str(out, FL_BYTES("BlockStored"));
    put_hashes(out, stored->hashes, stored->count);
    put_parent(out, stored);
    put_tokens(out, stored);
    fl_msgpack_put_uint(out, stored->block_tokens);
    fl_msgpack_put_nil(out); /* lora_id */
    put_text_or_nil(out, stored->medium);
    put_text_or_nil(out, stored->lora_name);
    put_extra_keys(out, stored);
    fl_msgpack_put_uint(out, 0); /* group_idx */
    fl_msgpack_put_str(out, FL_BYTES("full_attention"));
    fl_msgpack_put_nil(out); /* sliding window */
}

/* Fields without a default always, nil included; the others while they differ from it. */
static void put_stored_map(struct fl_msgpack_writer *out, const struct fl_kv_stored *stored)
{
    fl_msgpack_put_map(out, 11);
    fl_msgpack_put_str(out, FL_BYTES("type"));
    fl_msgpack_put_str(out, FL_BYTES("BlockStored"));
    fl_msgpack_put_str(out, FL_BYTES("block_hashes"));
    put_hashes(out, stored->hashes, stored->count);
    fl_msgpack_put_str(out, FL_BYTES("parent_block_hash"));
    put_parent(out, stored);
    fl_msgpack_put_str(out, FL_BYTES("token_ids"));
    put_tokens(out, stored);
    fl_msgpack_put_str(out, FL_BYTES("block_size"));
    fl_msgpack_put_uint(out, stored->block_tokens);
    fl_msgpack_put_str(out, FL_BYTES("lora_id"));
    fl_msgpack_put_nil(out);
    fl_msgpack_put_str(out, FL_BYTES("medium"));
    put_text_or_nil(out, stored->medium);
    fl_msgpack_put_str(out, FL_BYTES("lora_name"));
    put_text_or_nil(out, stored->lora_name);
    fl_msgpack_put_str(out, FL_BYTES("extra_keys"));
    put_extra_keys(out, stored);
    fl_msgpack_put_str(out, FL_BYTES("group_idx"));
    fl_msgpack_put_uint(out, 0);
    fl_msgpack_put_str(out, FL_BYTES("kv_cache_spec_kind"));
    fl_msgpack_put_str(out, FL_BYTES("full_attention"));
}

/* An event is gathered whole or not at all. */
static int end_event(struct fl_kv_publisher *publisher, const struct fl_msgpack_writer *out,
                     size_t before)
{
    if (out->rc < 0) {
        publisher->events.tail = publisher->events.head + before;
        return FL_ELIMIT;
    }
    publisher->event_count++;
    return 0;
}

int fl_kv_publisher_stored(struct fl_kv_publisher *publisher, const struct fl_kv_stored *stored)
{
    struct fl_msgpack_writer out = {.out = &publisher->events};
    size_t before = fl_buf_size(&publisher->events);
    if (publisher->form == FL_KV_FORM_ARRAY)
        put_stored_array(&out, stored);
    else
        put_stored_map(&out, stored);
    return end_event(publisher, &out, before);
}

int fl_kv_publisher_removed(struct fl_kv_publisher *publisher, const uint64_t *hashes, size_t count,
                            struct fl_bytes medium)
{
    struct fl_msgpack_writer out = {.out = &publisher->events};
    size_t before = fl_buf_size(&publisher->events);
    if (publisher->form == FL_KV_FORM_ARRAY) {
        fl_msgpack_put_array(&out, 4);
        fl_msgpack_put_str(&out, FL_BYTES("BlockRemoved"));
        put_hashes(&out, hashes, count);
        put_text_or_nil(&out, medium);
        fl_msgpack_put_uint(&out, 0); /* group_idx, where vLLM's array ends */
    } else {
        fl_msgpack_put_map(&out, 4);
        fl_msgpack_put_str(&out, FL_BYTES("type"));
        fl_msgpack_put_str(&out, FL_BYTES("BlockRemoved"));
        fl_msgpack_put_str(&out, FL_BYTES("block_hashes"));
        put_hashes(&out, hashes, count);
        fl_msgpack_put_str(&out, FL_BYTES("medium"));
        put_text_or_nil(&out, medium);
        fl_msgpack_put_str(&out, FL_BYTES("group_idx"));
        fl_msgpack_put_uint(&out, 0);
    }
    return end_event(publisher, &out, before);
}

int fl_kv_publisher_cleared(struct fl_kv_publisher *publisher)
{
    struct fl_msgpack_writer out = {.out = &publisher->events};
    size_t before = fl_buf_size(&publisher->events);
    if (publisher->form == FL_KV_FORM_ARRAY) {
        fl_msgpack_put_array(&out, 1);
    } else {
        fl_msgpack_put_map(&out, 1);
        fl_msgpack_put_str(&out, FL_BYTES("type"));
    }
    fl_msgpack_put_str(&out, FL_BYTES("AllBlocksCleared"));
    return end_event(publisher, &out, before);
}

/* ---- batches ---- */

/* The payload of what is gathered: [ts, events, rank]. The ring takes it. */
static struct step make_step(struct fl_kv_publisher *publisher, double ts)
{
    struct fl_buf payload = {0};
    struct fl_msgpack_writer out = {.out = &payload};
    fl_msgpack_put_array(&out, 3);
    fl_msgpack_put_real(&out, ts);
    fl_msgpack_put_array(&out, publisher->event_count);
    if (out.rc == 0)
        out.rc = fl_buf_append(&payload, fl_buf_bytes(&publisher->events));
    if (publisher->has_rank)
        fl_msgpack_put_uint(&out, publisher->dp_rank);
    else
        fl_msgpack_put_nil(&out);

    struct step step = {.n = fl_buf_size(&payload)};
    step.payload = fl_alloc(step.n);
    memcpy(step.payload, payload.head, step.n);
    fl_buf_fini(&payload);
    return step;
}

static bool send_step(void *socket, const struct fl_bytes *before, size_t count, uint64_t sequence,
                      struct fl_bytes payload)
{
    struct fl_bytes frames[FL_KV_FRAMES_MAX + 1];
    uint8_t number[8];
    for (size_t i = 0; i < count; i++)
        frames[i] = before[i];
    fl_kv_sequence_write(number, sequence);
    frames[count] = fl_bytes(number, sizeof(number));
    frames[count + 1] = payload;
    return fl_kv_send(socket, frames, count + 2);
}

bool fl_kv_publisher_flush(struct fl_kv_publisher *publisher, double ts)
{
    if (publisher->event_count == 0)
        return false;
    struct step *step = &publisher->ring[publisher->next % publisher->steps];
    fl_free(step->payload);
    *step = make_step(publisher, ts);
    fl_buf_clear(&publisher->events);
    publisher->event_count = 0;

    uint64_t sequence = publisher->next++;
    if (publisher->lose > 0) {
        publisher->lose--;
        return true;
    }
    struct fl_bytes topic = fl_bytes_of(publisher->topic);
    send_step(publisher->live, &topic, 1, sequence, fl_bytes(step->payload, step->n));
    return true;
}

uint64_t fl_kv_publisher_next_sequence(const struct fl_kv_publisher *publisher)
{
    return publisher->next;
}

/* ---- replay ---- */

int fl_kv_publisher_replay_fd(const struct fl_kv_publisher *publisher)
{
    return publisher->replay != NULL ? fl_kv_socket_fd(publisher->replay) : -1;
}

/* Everything the ring still has from `start` on, then the end marker: all ones and nothing. */
static void answer(struct fl_kv_publisher *publisher, struct fl_bytes peer, uint64_t start)
{
    struct fl_bytes head[3] = {peer, FL_BYTES(""), fl_bytes_of(publisher->topic)};
    size_t heads = publisher->replay_with_topic ? 3 : 2;
    uint64_t oldest = publisher->next > publisher->steps ? publisher->next - publisher->steps : 0;

    for (uint64_t n = start > oldest ? start : oldest; n < publisher->next; n++) {
        const struct step *step = &publisher->ring[n % publisher->steps];
        if (!send_step(publisher->replay, head, heads, n, fl_bytes(step->payload, step->n)))
            return; /* over the high-water mark, the marker is lost too, as with SGLang */
    }
    head[2] = FL_BYTES(""); /* the marker has no topic even where one is configured */
    send_step(publisher->replay, head, heads, UINT64_MAX, FL_BYTES(""));
}

size_t fl_kv_publisher_serve(struct fl_kv_publisher *publisher)
{
    struct fl_kv_message message;
    size_t served = 0;
    while (publisher->replay != NULL && fl_kv_message_recv(&message, publisher->replay)) {
        uint64_t start;
        /* The peer's identity, a delimiter, the start; anything else is dropped. */
        if (message.count == 3 && fl_kv_message_frame(&message, 1).n == 0 &&
            fl_kv_sequence_read(fl_kv_message_frame(&message, 2), &start)) {
            answer(publisher, fl_kv_message_frame(&message, 0), start);
            served++;
        }
        fl_kv_message_close(&message);
    }
    return served;
}

/* ---- faults ---- */

void fl_kv_publisher_lose(struct fl_kv_publisher *publisher, uint32_t batches)
{
    publisher->lose += batches;
}

void fl_kv_publisher_send_raw(struct fl_kv_publisher *publisher, const struct fl_bytes *frames,
                              size_t count)
{
    fl_kv_send(publisher->live, frames, count);
}
