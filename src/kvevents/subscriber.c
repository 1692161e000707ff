/* SPDX-License-Identifier: Apache-2.0 */
/* One engine: the live socket, and a replay when batches are missing.
 *
 *              live message in turn                     gap: ask, hold the message
 *   LIVE ------------------------------> apply   LIVE ------------------------------> REPLAYING
 *                                                  ^                                      |
 *                                                  +--- end marker, silence, cap: apply --+
 *                                                       what is missing or lost, then the held
 *
 * While a replay runs the live socket is not read: ZMQ keeps its messages in order, up to its
 * high-water mark, and what that drops shows as the next gap. Each replay has a socket of its own,
 * so that late answers to an earlier one cannot be taken for those to a later. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "kvevents/impl.h"

#define SILENCE_MS 5000         /* a replay's end marker may be lost: trap 8 */
#define REPLAY_BACKOFF_MS 30000 /* after one that failed */
#define PENDING_WARN_MS 30000   /* a wrong port looks healthy to ZMQ: trap 30 */
/* Engines keep 10,000 batches; an endless replay must not keep the live socket waiting for ever. */
#define REPLAYED_MAX 1000000

static void count(_Atomic uint64_t *counter)
{
    uint64_t value = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, value + 1, memory_order_relaxed);
}

static void set_state(struct fl_kv_subscriber *subscriber)
{
    enum fl_kv_state state = FL_KV_ACTIVE;
    if (subscriber->live == NULL)
        state = FL_KV_FAILED;
    else if (subscriber->is_paused)
        state = FL_KV_PAUSED;
    else if (!subscriber->is_connected)
        state = FL_KV_PENDING;
    else if (subscriber->phase == FL_KV_PHASE_REPLAYING)
        state = subscriber->has_answer ? FL_KV_CATCHING_UP : FL_KV_BUFFERING;
    if (state == subscriber->state)
        return;
    subscriber->state = state;
    if (subscriber->on_state != NULL)
        subscriber->on_state(subscriber->owner, state);
}

static void close_socket(struct fl_kv_subscriber *subscriber, void **socket)
{
    if (*socket == NULL)
        return;
    fl_kvevents_unwatch(subscriber->hub, *socket);
    zmq_close(*socket);
    *socket = NULL;
}

/* ---- the connection ---- */

/* The first handshake ends `pending`; after it nobody needs the monitor. */
static void on_connected(struct fl_kv_subscriber *subscriber)
{
    subscriber->is_connected = true;
    if (subscriber->monitor != NULL)
        zmq_socket_monitor(subscriber->live, NULL, 0);
    close_socket(subscriber, &subscriber->monitor);
    if (subscriber->phase == FL_KV_PHASE_LIVE)
        fl_timer_stop(&subscriber->hub->wheel, &subscriber->timer);
    set_state(subscriber);
}

/* Events come as two frames: number (u16, host order) and value, then the address. */
static void read_monitor(struct fl_kv_subscriber *subscriber)
{
    struct fl_kv_message message;
    while (subscriber->monitor != NULL && fl_kv_message_recv(&message, subscriber->monitor)) {
        struct fl_bytes head = fl_kv_message_frame(&message, 0);
        uint16_t event = 0;
        if (head.n >= sizeof(event))
            memcpy(&event, head.p, sizeof(event));
        fl_kv_message_close(&message);
        if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
            on_connected(subscriber);
    }
}

static int open_monitor(struct fl_kv_subscriber *subscriber)
{
    char address[64];
    snprintf(address, sizeof(address), "inproc://fl-kv-monitor-%p-%" PRIu64,
             (void *)subscriber->hub, subscriber->hub->monitor_number++);
    if (zmq_socket_monitor(subscriber->live, address, ZMQ_EVENT_HANDSHAKE_SUCCEEDED) < 0)
        return FL_EIO;
    subscriber->monitor = fl_kv_socket(subscriber->hub->zmq, ZMQ_PAIR, address);
    if (subscriber->monitor == NULL || zmq_connect(subscriber->monitor, address) < 0)
        return FL_EIO;
    return fl_kvevents_watch(subscriber->hub, subscriber->monitor, subscriber);
}

static void close_live(struct fl_kv_subscriber *subscriber)
{
    if (subscriber->monitor != NULL && subscriber->live != NULL)
        zmq_socket_monitor(subscriber->live, NULL, 0);
    close_socket(subscriber, &subscriber->monitor);
    close_socket(subscriber, &subscriber->live);
}

static int open_live(struct fl_kv_subscriber *subscriber, struct fl_error *err)
{
    subscriber->live = fl_kv_socket(subscriber->hub->zmq, ZMQ_SUB, subscriber->endpoint);
    if (subscriber->live == NULL)
        return fl_error_set(err, FL_EIO, "kv events endpoint %s: no socket: %s",
                            subscriber->endpoint, zmq_strerror(zmq_errno()));
    zmq_setsockopt(subscriber->live, ZMQ_SUBSCRIBE, "", 0);
    /* Inside the process there is no handshake to wait for. */
    bool is_inproc = strncmp(subscriber->endpoint, "inproc://", 9) == 0;
    int rc = is_inproc ? 0 : open_monitor(subscriber);
    if (rc == 0 && zmq_connect(subscriber->live, subscriber->endpoint) < 0)
        rc = FL_ECONFIG;
    if (rc == 0)
        rc = fl_kvevents_watch(subscriber->hub, subscriber->live, subscriber);
    if (rc < 0) {
        fl_error_set(err, rc, "kv events endpoint %s: cannot connect: %s", subscriber->endpoint,
                     zmq_strerror(zmq_errno()));
        close_live(subscriber);
        return rc;
    }
    subscriber->is_connected = is_inproc;
    return 0;
}

/* ---- batches ---- */

static void apply(struct fl_kv_subscriber *subscriber, uint64_t sequence, struct fl_bytes payload,
                  uint64_t now_ms)
{
    /* A broken batch advances the cursor too: asked for again it would be no better. */
    fl_kv_apply(&subscriber->applier, payload, now_ms);
    fl_kv_cursor_applied(&subscriber->cursor, sequence);
}

/* Batches before the next one cannot be had any more; removals may be among them. */
static void lose(struct fl_kv_subscriber *subscriber)
{
    count(&subscriber->counters->gaps[FL_KV_GAP_LOST]);
    subscriber->has_lost = true;
    fl_log(FL_LOG_WARN, "kv events were lost",
           "source=%s worker=%" PRIu64 " next=%" PRIu64 " policy=%s", subscriber->endpoint,
           subscriber->applier.worker_id, fl_kv_cursor_next(&subscriber->cursor),
           subscriber->gap_policy == FL_KV_GAP_CLEAR ? "clear" : "keep");
    if (subscriber->gap_policy == FL_KV_GAP_CLEAR)
        fl_kv_applier_clear(&subscriber->applier);
}

/* ---- replay ---- */

static bool ask(struct fl_kv_subscriber *subscriber, uint64_t now_ms)
{
    uint8_t from[8];
    fl_kv_sequence_write(from, fl_kv_cursor_next(&subscriber->cursor));
    const struct fl_bytes frames[] = {{from, 0}, {from, sizeof(from)}}; /* a delimiter, the start */

    subscriber->replay =
        fl_kv_socket(subscriber->hub->zmq, ZMQ_DEALER, subscriber->replay_endpoint);
    if (subscriber->replay == NULL)
        return false;
    if (zmq_connect(subscriber->replay, subscriber->replay_endpoint) < 0 ||
        !fl_kv_send(subscriber->replay, frames, FL_ARRAY_LEN(frames)) ||
        fl_kvevents_watch(subscriber->hub, subscriber->replay, subscriber) < 0) {
        close_socket(subscriber, &subscriber->replay);
        return false;
    }
    subscriber->has_answer = false;
    subscriber->replayed = 0;
    fl_timer_start(&subscriber->hub->wheel, &subscriber->timer, now_ms + SILENCE_MS);
    return true;
}

static bool can_replay(const struct fl_kv_subscriber *subscriber, uint64_t now_ms)
{
    return subscriber->replay_endpoint != NULL && now_ms >= subscriber->no_replay_before_ms;
}

/* Takes the payload of the message before which batches are missing. */
static void on_gap(struct fl_kv_subscriber *subscriber, uint64_t sequence, zmq_msg_t *payload,
                   uint64_t now_ms)
{
    subscriber->has_lost = false;
    subscriber->is_second = false;
    if (!can_replay(subscriber, now_ms) || !ask(subscriber, now_ms)) {
        lose(subscriber);
        apply(subscriber, sequence, fl_bytes(zmq_msg_data(payload), zmq_msg_size(payload)), now_ms);
        return;
    }
    subscriber->phase = FL_KV_PHASE_REPLAYING;
    subscriber->held_sequence = sequence;
    zmq_msg_init(&subscriber->held);
    zmq_msg_move(&subscriber->held, payload);
    set_state(subscriber);
}

/* The replay is over, with or without its end marker. */
static void end_replay(struct fl_kv_subscriber *subscriber, bool has_end_marker, uint64_t now_ms)
{
    bool is_closed = fl_kv_cursor_next(&subscriber->cursor) >= subscriber->held_sequence;
    close_socket(subscriber, &subscriber->replay);
    if (!is_closed && has_end_marker && subscriber->has_answer && !subscriber->is_second) {
        subscriber->is_second = true; /* the ring may have been behind the live socket */
        if (ask(subscriber, now_ms))
            return;
    }
    if (!is_closed)
        lose(subscriber);
    if (subscriber->has_lost)
        subscriber->no_replay_before_ms = now_ms + REPLAY_BACKOFF_MS;
    else
        count(&subscriber->counters->gaps[FL_KV_GAP_REPLAYED]);

    /* The replay may have gone past it. */
    if (fl_kv_cursor_replayed(&subscriber->cursor, subscriber->held_sequence) != FL_KV_STEP_DROP)
        apply(subscriber, subscriber->held_sequence,
              fl_bytes(zmq_msg_data(&subscriber->held), zmq_msg_size(&subscriber->held)), now_ms);
    zmq_msg_close(&subscriber->held);
    subscriber->phase = FL_KV_PHASE_LIVE;
    fl_timer_stop(&subscriber->hub->wheel, &subscriber->timer);
    fl_kvevents_mark_ready(subscriber->hub, subscriber);
    set_state(subscriber);
}

/* delimiter, [topic,] sequence, payload */
static void on_replayed(struct fl_kv_subscriber *subscriber, struct fl_kv_message *message,
                        uint64_t now_ms)
{
    uint64_t sequence;
    size_t last = message->count - 1;
    if (message->count < 3 || message->count > 4 || fl_kv_message_frame(message, 0).n != 0 ||
        !fl_kv_sequence_read(fl_kv_message_frame(message, last - 1), &sequence)) {
        count(&subscriber->counters->malformed_batches);
        return;
    }
    struct fl_bytes payload = fl_kv_message_frame(message, last);
    if (payload.n == 0) {
        end_replay(subscriber, true, now_ms);
        return;
    }
    subscriber->has_answer = true;
    fl_timer_start(&subscriber->hub->wheel, &subscriber->timer, now_ms + SILENCE_MS);
    set_state(subscriber);
    switch (fl_kv_cursor_replayed(&subscriber->cursor, sequence)) {
    case FL_KV_STEP_GAP: /* overwritten in the ring, or a hole in it */
        if (!subscriber->has_lost || subscriber->gap_policy == FL_KV_GAP_CLEAR)
            lose(subscriber);
        apply(subscriber, sequence, payload, now_ms);
        break;
    case FL_KV_STEP_APPLY:
        apply(subscriber, sequence, payload, now_ms);
        break;
    case FL_KV_STEP_DROP:
    case FL_KV_STEP_RESTART:
        break;
    }
    if (++subscriber->replayed == REPLAYED_MAX)
        end_replay(subscriber, false, now_ms);
}

/* ---- the live socket ---- */

static void on_live(struct fl_kv_subscriber *subscriber, struct fl_kv_message *message,
                    uint64_t now_ms)
{
    uint64_t sequence;
    if (message->count != 3 || !fl_kv_sequence_read(fl_kv_message_frame(message, 1), &sequence)) {
        count(&subscriber->counters->malformed_batches);
        return;
    }
    enum fl_kv_step step = fl_kv_cursor_live(&subscriber->cursor, sequence);
    if (step == FL_KV_STEP_RESTART) {
        count(&subscriber->counters->gaps[FL_KV_GAP_RESTART]);
        fl_log(FL_LOG_WARN, "a kv event publisher has restarted",
               "source=%s worker=%" PRIu64 " sequence=%" PRIu64, subscriber->endpoint,
               subscriber->applier.worker_id, sequence);
        fl_kv_applier_clear(&subscriber->applier);
        subscriber->no_replay_before_ms = 0; /* another process, another ring */
        step = fl_kv_cursor_live(&subscriber->cursor, sequence);
    }
    if (step == FL_KV_STEP_APPLY)
        apply(subscriber, sequence, fl_kv_message_frame(message, 2), now_ms);
    else if (step == FL_KV_STEP_GAP)
        on_gap(subscriber, sequence, &message->frame[2], now_ms);
}

/* True if a message was there. */
static bool read_one(struct fl_kv_subscriber *subscriber, uint64_t now_ms)
{
    struct fl_kv_message message;
    bool is_replay = subscriber->phase == FL_KV_PHASE_REPLAYING;
    if (subscriber->is_paused && !is_replay)
        return false;
    void *socket = is_replay ? subscriber->replay : subscriber->live;
    if (socket == NULL || !fl_kv_message_recv(&message, socket))
        return false;
    if (is_replay)
        on_replayed(subscriber, &message, now_ms);
    else
        on_live(subscriber, &message, now_ms);
    fl_kv_message_close(&message);
    return true;
}

bool fl_kv_subscriber_run(struct fl_kv_subscriber *subscriber, size_t budget, uint64_t now_ms)
{
    read_monitor(subscriber);
    for (size_t i = 0; i < budget; i++)
        if (!read_one(subscriber, now_ms))
            return false;
    return true;
}

static void on_timer(struct fl_timer *timer)
{
    struct fl_kv_subscriber *subscriber = FL_CONTAINER_OF(timer, struct fl_kv_subscriber, timer);
    if (subscriber->phase == FL_KV_PHASE_REPLAYING) {
        end_replay(subscriber, false, timer->deadline_ms);
        return;
    }
    fl_log(FL_LOG_WARN, "no kv event publisher answers", "source=%s worker=%" PRIu64,
           subscriber->endpoint, subscriber->applier.worker_id);
}

/* ---- life ---- */

struct fl_kv_subscriber *fl_kv_subscribe(struct fl_kvevents *hub,
                                         const struct fl_kv_subscriber_config *config,
                                         uint64_t now_ms, struct fl_error *err)
{
    struct fl_kv_subscriber *subscriber = fl_calloc(1, sizeof(*subscriber));
    subscriber->hub = hub;
    subscriber->endpoint = fl_strdup(config->endpoint);
    if (config->replay_endpoint != NULL)
        subscriber->replay_endpoint = fl_strdup(config->replay_endpoint);
    subscriber->gap_policy = config->gap_policy;
    subscriber->counters = config->counters;
    subscriber->on_state = config->on_state;
    subscriber->owner = config->owner;
    subscriber->state = FL_KV_PENDING;
    subscriber->applier.index = config->index;
    subscriber->applier.counters = config->counters;
    subscriber->applier.name = subscriber->endpoint;
    subscriber->applier.worker_id = config->worker_id;
    subscriber->applier.own_rank = config->dp_rank;
    subscriber->applier.block_tokens = config->block_tokens;
    fl_kv_applier_init(&subscriber->applier);
    fl_link_init(&subscriber->ready_link);
    fl_link_init(&subscriber->link);
    fl_timer_init(&subscriber->timer, on_timer);
    fl_wheel_advance(&hub->wheel, now_ms);

    if (open_live(subscriber, err) < 0) {
        fl_kv_unsubscribe(subscriber);
        return NULL;
    }
    fl_link_push_tail(&hub->subscribers, &subscriber->link);
    if (!subscriber->is_connected)
        fl_timer_start(&hub->wheel, &subscriber->timer, now_ms + PENDING_WARN_MS);
    set_state(subscriber);
    return subscriber;
}

void fl_kv_unsubscribe(struct fl_kv_subscriber *subscriber)
{
    if (subscriber == NULL)
        return;
    if (subscriber->phase == FL_KV_PHASE_REPLAYING)
        zmq_msg_close(&subscriber->held);
    close_socket(subscriber, &subscriber->replay);
    close_live(subscriber);
    fl_timer_stop(&subscriber->hub->wheel, &subscriber->timer);
    fl_link_unlink(&subscriber->ready_link);
    fl_link_unlink(&subscriber->link);
    fl_kv_applier_fini(&subscriber->applier);
    fl_free(subscriber->endpoint);
    fl_free(subscriber->replay_endpoint);
    fl_free(subscriber);
}

void fl_kv_subscriber_pause(struct fl_kv_subscriber *subscriber)
{
    subscriber->is_paused = true;
    set_state(subscriber);
}

void fl_kv_subscriber_resume(struct fl_kv_subscriber *subscriber)
{
    subscriber->is_paused = false;
    fl_kvevents_mark_ready(subscriber->hub, subscriber);
    set_state(subscriber);
}

void fl_kv_subscriber_set_snapshot(struct fl_kv_subscriber *subscriber, bool has_cursor,
                                   uint64_t cursor)
{
    assert(!subscriber->cursor.has_live);
    subscriber->cursor =
        (struct fl_kv_cursor){.has_snapshot = true, .has_applied = has_cursor, .applied = cursor};
}

enum fl_kv_state fl_kv_subscriber_state(const struct fl_kv_subscriber *subscriber)
{
    return subscriber->state;
}

void fl_kv_subscriber_report(const struct fl_kv_subscriber *subscriber,
                             struct fl_kv_subscriber_report *report)
{
    *report = (struct fl_kv_subscriber_report){
        .has_applied = subscriber->cursor.has_applied,
        .applied = subscriber->cursor.applied,
        .batches = subscriber->applier.batches,
        .last_event_ts = subscriber->applier.last_ts,
        .block_size_mismatches = subscriber->applier.block_size_mismatches,
        .seen_block_tokens = subscriber->applier.seen_block_tokens,
    };
}
