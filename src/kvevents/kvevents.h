/* SPDX-License-Identifier: Apache-2.0 */
/* KV events: listening to engines and feeding the prefix index (selection.md section 11).
 *
 *   engine PUB ----> SUB \                                         / malformed, filtered: counted
 *                         subscriber: cursor, gaps, replay --> batch --> prefix index
 *   engine ROUTER <-> DEALER /                                     \ stored, removed, cleared
 *
 * One hub holds all subscribers of a process. It lives on the runtime's event thread, which owns
 * every ZMQ socket and is the one writer of every index: all functions here run there, except where
 * "any thread" is said. The hub has one descriptor (an epoll over its sockets), a deadline, and a
 * function that does a bounded piece of work; who has a poll loop drives it:
 *
 *   poll(fl_kvevents_fd(), until fl_kvevents_next_ms());
 *   while (fl_kvevents_run(hub, now_ms)) other sources get their turn;
 *
 * What engines send is never trusted: a malformed message or event is counted and dropped, and
 * nothing an engine sends ends its subscription. */
#ifndef FL_KVEVENTS_KVEVENTS_H
#define FL_KVEVENTS_KVEVENTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"
#include "kvindex/kvindex.h"

struct fl_kvevents;      /* the hub */
struct fl_kv_subscriber; /* one engine socket */

/* ---- counters (selection.md 17.2) ---- */

enum fl_kv_event_type { FL_KV_STORED, FL_KV_REMOVED, FL_KV_CLEARED, FL_KV_OTHER, FL_KV_TYPE_COUNT };

/* The words of `fairlead_select_kv_events_total{result}` are fl_kv_result_words[]. */
enum fl_kv_result {
    FL_KV_OK,
    FL_KV_DUPLICATE,        /* stored what was there */
    FL_KV_PARENT_NOT_FOUND, /* I3 */
    FL_KV_INVALID_SEQUENCE, /* I6; a salt that cannot be told (11.4) */
    FL_KV_DROPPED_MEDIUM,
    FL_KV_DROPPED_KIND,
    FL_KV_DROPPED_LOCALITY,
    FL_KV_BLOCK_SIZE_MISMATCH,
    FL_KV_MALFORMED,
    FL_KV_UNKNOWN_EVENT,
    FL_KV_INDEX_FULL,
    FL_KV_RESULT_COUNT
};

enum fl_kv_gap { FL_KV_GAP_REPLAYED, FL_KV_GAP_LOST, FL_KV_GAP_RESTART, FL_KV_GAP_COUNT };

extern const char *const fl_kv_type_words[FL_KV_TYPE_COUNT + 1];     /* NULL-terminated */
extern const char *const fl_kv_result_words[FL_KV_RESULT_COUNT + 1]; /* NULL-terminated */
extern const char *const fl_kv_gap_words[FL_KV_GAP_COUNT + 1];       /* NULL-terminated */

/* Owned by the service, shared by its subscribers; written by the event thread alone (relaxed),
 * read by anyone. Zeroed is valid. */
struct fl_kv_counters {
    _Atomic uint64_t events[FL_KV_TYPE_COUNT][FL_KV_RESULT_COUNT];
    _Atomic uint64_t gaps[FL_KV_GAP_COUNT];
    _Atomic uint64_t batches;           /* applied */
    _Atomic uint64_t malformed_batches; /* wrong frames, or no batch in the payload */
    _Atomic uint64_t stored_blocks, removed_blocks;
    _Atomic uint64_t short_stores; /* stores whose tokens end before their blocks do */
};

/* ---- the hub ---- */

/* `zmq` is the runtime's context and outlives the hub. NULL when the system gives no descriptor. */
struct fl_kvevents *fl_kvevents_new(void *zmq, struct fl_error *err);
/* Closes what is still open. NULL allowed. */
void fl_kvevents_free(struct fl_kvevents *hub);

int fl_kvevents_fd(const struct fl_kvevents *hub);
/* Reads, applies, reconnects; gives back memory of the attached indexes. Bounded: some 256
 * messages. True if there is more to do at once. */
bool fl_kvevents_run(struct fl_kvevents *hub, uint64_t now_ms);
/* When fl_kvevents_run() wants to be called even without input; UINT64_MAX: never. */
uint64_t fl_kvevents_next_ms(const struct fl_kvevents *hub);

/* The hub calls fl_kvindex_maintain() for attached indexes. An index is detached before it is
 * freed. */
void fl_kvevents_attach_index(struct fl_kvevents *hub, struct fl_kvindex *index);
void fl_kvevents_detach_index(struct fl_kvevents *hub, struct fl_kvindex *index);

/* ---- subscribers ---- */

/* What became of events that can no longer be had (11.6, FAIRLEAD_GAP_POLICY). */
enum fl_kv_gap_policy {
    FL_KV_GAP_CLEAR, /* forget the rank and rebuild: a miss costs less than endless false hits */
    FL_KV_GAP_KEEP,  /* go on as if nothing had happened */
};

enum fl_kv_state {
    FL_KV_PENDING,     /* no connection yet */
    FL_KV_BUFFERING,   /* connected; the gate is shut (13.2) or a replay has been asked for */
    FL_KV_CATCHING_UP, /* a replay is being applied */
    FL_KV_ACTIVE,
    FL_KV_PAUSED, /* by fl_kv_subscriber_pause() */
    FL_KV_FAILED, /* the endpoint cannot be connected to */
};

/* Words for listings: buffering and catching up show as "pending". */
const char *fl_kv_state_word(enum fl_kv_state state);

struct fl_kv_subscriber_config {
    const char *endpoint;        /* tcp://, ipc://, inproc:// to connect to; copied */
    const char *replay_endpoint; /* NULL: none; copied */
    struct fl_kvindex *index;
    uint64_t worker_id;
    /* Of batches that name none. A batch's own rank wins; a restart or a loss concerns every rank
     * seen on the socket, be it one (vLLM, SGLang) or several (TensorRT-LLM). */
    uint32_t dp_rank;
    uint32_t block_tokens; /* of the partition */
    enum fl_kv_gap_policy gap_policy;
    struct fl_kv_counters *counters;
    /* Called on every change of state. NULL allowed. */
    void (*on_state)(void *owner, enum fl_kv_state state);
    void *owner;
};

/* NULL with FL_ECONFIG's sentence when an endpoint is malformed. The state is reported by callback.
 */
struct fl_kv_subscriber *fl_kv_subscribe(struct fl_kvevents *hub,
                                         const struct fl_kv_subscriber_config *config,
                                         uint64_t now_ms, struct fl_error *err);
/* No callback comes after it. What the rank holds stays in the index: remove it there. NULL
 * allowed. */
void fl_kv_unsubscribe(struct fl_kv_subscriber *subscriber);

/* Paused, messages are left in the socket (up to its high-water mark of 100,000, beyond which the
 * gap rules repair). Also the gate of 13.2: subscribe, pause, apply a peer's dump, tell so, resume.
 */
void fl_kv_subscriber_pause(struct fl_kv_subscriber *subscriber);
void fl_kv_subscriber_resume(struct fl_kv_subscriber *subscriber);
/* A peer's dump stands in for what came before the first message; with a cursor, up to that batch.
 * Only before the first message has been read. */
void fl_kv_subscriber_set_snapshot(struct fl_kv_subscriber *subscriber, bool has_cursor,
                                   uint64_t cursor);

enum fl_kv_state fl_kv_subscriber_state(const struct fl_kv_subscriber *subscriber);

struct fl_kv_subscriber_report {
    bool has_applied;
    uint64_t applied; /* last sequence in the index: a dump's cursor */
    uint64_t batches; /* applied; 0 after many requests: events are off in the engine (trap 10) */
    double last_event_ts; /* of the newest batch, in the engine's clock; 0: none */
    uint64_t block_size_mismatches;
    uint32_t seen_block_tokens; /* of the last mismatch (22.4); 0: none */
};
void fl_kv_subscriber_report(const struct fl_kv_subscriber *subscriber,
                             struct fl_kv_subscriber_report *report);

#endif
