/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's side of KV events, as vLLM and SGLang send them (selection.md 11.1-11.3): for the
 * engine simulator and for tests of the subscriber.
 *
 * Events are gathered into a batch; fl_kv_publisher_flush() numbers it, keeps it for replay and
 * sends it as topic, sequence (u64 big endian), payload (msgpack). Sequences start at 0 with every
 * publisher, as engines number from their process start. The ROUTER answers "everything from number
 * n" out of a ring of the last `buffer_steps` batches.
 *
 * One thread at a time owns a publisher and its sockets. Nothing blocks: a subscriber that lags
 * beyond the high-water mark loses messages, as with the real ones. */
#ifndef FL_KVEVENTS_PUBLISHER_H
#define FL_KVEVENTS_PUBLISHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"

enum fl_kv_form {
    FL_KV_FORM_ARRAY, /* vLLM to mid 2026, SGLang to 0.5.18: [tag, every field in order] */
    FL_KV_FORM_MAP,   /* vLLM since 0.26, SGLang since September 2026: {"type": tag, ...} */
};

struct fl_kv_publisher_config {
    void *zmq;                   /* a context; outlives the publisher */
    const char *endpoint;        /* to bind; port * takes a free one */
    const char *replay_endpoint; /* to bind; NULL: no replay */
    const char *topic;           /* NULL: empty */
    enum fl_kv_form form;
    bool has_rank; /* batches name dp_rank; else nil stands there */
    uint32_t dp_rank;
    bool replay_with_topic; /* vLLM since 0.26: four frames instead of three */
    uint32_t buffer_steps;  /* batches kept for replay; 0: vLLM's 10,000 */
    uint32_t send_hwm;      /* 0: vLLM's 100,000 */
};

struct fl_kv_publisher;

/* NULL with a sentence when an address cannot be bound. */
struct fl_kv_publisher *fl_kv_publisher_open(const struct fl_kv_publisher_config *config,
                                             struct fl_error *err);
/* Sends what is gathered no more. NULL allowed. */
void fl_kv_publisher_close(struct fl_kv_publisher *publisher);

/* The addresses bound, with real ports. Lent. The second is NULL without replay. */
const char *fl_kv_publisher_endpoint(const struct fl_kv_publisher *publisher);
const char *fl_kv_publisher_replay_endpoint(const struct fl_kv_publisher *publisher);

/* A run of blocks stored below `parent`. Pointers are borrowed; absent texts are left out or nil.
 */
struct fl_kv_stored {
    bool has_parent;
    uint64_t parent; /* the engine's own hash */
    const uint64_t *hashes;
    size_t count;
    const uint32_t *tokens; /* count x block_tokens of them */
    uint32_t block_tokens;
    struct fl_bytes medium; /* "GPU" */
    struct fl_bytes lora_name;
    /* As vLLM sends it: the raw string among the first block's extra keys. */
    struct fl_bytes cache_salt;
};

/* Gather one event each. 0, or FL_ELIMIT when a batch would exceed 64 MiB (flush first). */
int fl_kv_publisher_stored(struct fl_kv_publisher *publisher, const struct fl_kv_stored *stored);
int fl_kv_publisher_removed(struct fl_kv_publisher *publisher, const uint64_t *hashes, size_t count,
                            struct fl_bytes medium);
int fl_kv_publisher_cleared(struct fl_kv_publisher *publisher);

/* Sends the batch, if anything is gathered. `ts` in seconds. Returns whether a batch was made. */
bool fl_kv_publisher_flush(struct fl_kv_publisher *publisher, double ts);
/* The number the next batch will have. */
uint64_t fl_kv_publisher_next_sequence(const struct fl_kv_publisher *publisher);

/* Readable when a replay request may be waiting (edge-triggered, as ZMQ descriptors are: after each
 * wake call serve, and also after a flush or once in a while). -1 without replay. */
int fl_kv_publisher_replay_fd(const struct fl_kv_publisher *publisher);
/* Answers the requests that wait. Returns how many. */
size_t fl_kv_publisher_serve(struct fl_kv_publisher *publisher);

/* Faults for tests and `fairlead engine --fault`: the next `batches` are numbered and kept for
 * replay but not sent, as when a queue overflows. */
void fl_kv_publisher_lose(struct fl_kv_publisher *publisher, uint32_t batches);
/* Sends any frames as they are, past numbering and ring. */
void fl_kv_publisher_send_raw(struct fl_kv_publisher *publisher, const struct fl_bytes *frames,
                              size_t count);

#endif
