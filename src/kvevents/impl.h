/* SPDX-License-Identifier: Apache-2.0 */
/* What the hub and its subscribers share. Not for other folders. */
#ifndef FL_KVEVENTS_IMPL_H
#define FL_KVEVENTS_IMPL_H

#include "base/list.h"
#include "base/wheel.h"
#include "kvevents/apply.h"
#include "kvevents/cursor.h"
#include "kvevents/kvevents.h"
#include "kvevents/wire.h"

struct fl_kvevents {
    void *zmq;
    int epoll_fd;
    struct fl_link subscribers; /* all of them, looked at in turn */
    struct fl_link ready;       /* those that may have something to read */
    struct fl_wheel wheel;
    struct fl_kvindex **indexes;
    size_t index_count, index_cap, next_index;
    uint64_t maintain_at_ms; /* UINT64_MAX: nothing to give back */
    uint64_t monitor_number; /* names of monitor addresses differ */
};

/* How a subscriber gets its messages at the moment. */
enum fl_kv_phase {
    FL_KV_PHASE_LIVE,      /* from the live socket */
    FL_KV_PHASE_REPLAYING, /* from the replay socket; the live one waits, its first message is held
                            */
};

struct fl_kv_subscriber {
    struct fl_kvevents *hub;
    struct fl_link link;       /* of hub->subscribers */
    struct fl_link ready_link; /* of hub->ready */
    char *endpoint, *replay_endpoint;
    enum fl_kv_gap_policy gap_policy;
    struct fl_kv_counters *counters;
    void (*on_state)(void *owner, enum fl_kv_state state);
    void *owner;

    void *live, *replay, *monitor; /* NULL: not open */
    struct fl_kv_applier applier;
    struct fl_kv_cursor cursor;
    enum fl_kv_state state;
    enum fl_kv_phase phase;
    bool is_connected, is_paused;

    /* the replay under way */
    zmq_msg_t held; /* payload of the live message before which batches are missing */
    uint64_t held_sequence;
    bool has_answer; /* a batch came */
    bool has_lost;   /* a hole was found: counted and dealt with */
    bool is_second;  /* it has been asked for twice */
    uint32_t replayed;
    uint64_t no_replay_before_ms; /* back off after one that failed */
    struct fl_timer timer;        /* replay: silence; pending: the warning */
};

/* Adds or removes a ZMQ socket of the subscriber to what the hub waits for. */
int fl_kvevents_watch(struct fl_kvevents *hub, void *socket, struct fl_kv_subscriber *subscriber);
void fl_kvevents_unwatch(struct fl_kvevents *hub, void *socket);
/* It may have something to read although no descriptor says so. */
void fl_kvevents_mark_ready(struct fl_kvevents *hub, struct fl_kv_subscriber *subscriber);

/* Reads at most `budget` messages; true when there may be more. */
bool fl_kv_subscriber_run(struct fl_kv_subscriber *subscriber, size_t budget, uint64_t now_ms);

#endif
