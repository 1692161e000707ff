/* SPDX-License-Identifier: Apache-2.0 */
/* Subscriber and publisher against each other, over real ZMQ sockets on free ports. Time comes in
 * as now_ms: a minute of silence passes in no time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "base/alloc.h"
#include "base/epoch.h"
#include "base/log.h"
#include "kvevents/kvevents.h"
#include "kvevents/publisher.h"
#include "kvindex/hash.h"

#define BLOCK_TOKENS 4
#define PATIENCE_S 20 /* a condition that does not come within this long fails the test */

struct world {
    void *zmq;
    struct fl_epoch *epoch;
    struct fl_kvindex *index;
    struct fl_kvevents *hub;
    struct fl_kv_counters counters;
    struct fl_kv_publisher *publisher;
    struct fl_kv_subscriber *subscriber;
    enum fl_kv_state state;
    uint64_t now_ms;
    struct fl_kvindex_matches matches;
};

static void on_state(void *owner, enum fl_kv_state state)
{
    ((struct world *)owner)->state = state;
}

static void open_publisher(struct world *world, const struct fl_kv_publisher_config *wishes,
                           const char *endpoint, const char *replay)
{
    struct fl_kv_publisher_config config = *wishes;
    struct fl_error err = {0};
    config.zmq = world->zmq;
    config.endpoint = endpoint;
    config.replay_endpoint = replay;
    /* A port that was just given up may need a moment. */
    time_t end = time(NULL) + PATIENCE_S;
    while ((world->publisher = fl_kv_publisher_open(&config, &err)) == NULL && time(NULL) < end)
        poll(NULL, 0, 1);
    if (world->publisher == NULL)
        fail_msg("%s", err.text);
}

static void subscribe(struct world *world, enum fl_kv_gap_policy policy)
{
    struct fl_kv_subscriber_config config = {
        .endpoint = fl_kv_publisher_endpoint(world->publisher),
        .replay_endpoint = fl_kv_publisher_replay_endpoint(world->publisher),
        .index = world->index,
        .worker_id = 7,
        .block_tokens = BLOCK_TOKENS,
        .gap_policy = policy,
        .counters = &world->counters,
        .on_state = on_state,
        .owner = world,
    };
    struct fl_error err = {0};
    world->subscriber = fl_kv_subscribe(world->hub, &config, world->now_ms, &err);
    if (world->subscriber == NULL)
        fail_msg("%s", err.text);
}

static void start(struct world *world)
{
    fl_log_set_level(FL_LOG_ERROR);
    *world = (struct world){.now_ms = 1000};
    world->zmq = zmq_ctx_new();
    world->epoch = fl_epoch_new();
    world->index = fl_kvindex_new(world->epoch);
    world->hub = fl_kvevents_new(world->zmq, NULL);
    fl_kvevents_attach_index(world->hub, world->index);
}

static void finish(struct world *world)
{
    fl_kv_unsubscribe(world->subscriber);
    fl_kvevents_detach_index(world->hub, world->index);
    fl_kvevents_free(world->hub);
    fl_kv_publisher_close(world->publisher);
    assert_null(fl_kvindex_check(world->index));
    fl_kvindex_matches_fini(&world->matches);
    fl_kvindex_free(world->index);
    fl_epoch_free(world->epoch);
    zmq_ctx_term(world->zmq);
}

static uint64_t counter(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

/* Both sides get turns until `is_so`, or the test fails. */
static void wait_for(struct world *world, bool (*is_so)(struct world *world, uint64_t wish),
                     uint64_t wish, const char *what)
{
    time_t end = time(NULL) + PATIENCE_S;
    for (;;) {
        if (world->publisher != NULL)
            fl_kv_publisher_serve(world->publisher);
        bool has_more = fl_kvevents_run(world->hub, world->now_ms);
        if (is_so(world, wish))
            return;
        if (time(NULL) >= end)
            fail_msg("in vain: %s", what);
        struct pollfd fd = {.fd = fl_kvevents_fd(world->hub), .events = POLLIN};
        poll(&fd, 1, has_more ? 0 : 1);
    }
}

static bool is_in_state(struct world *world, uint64_t state)
{
    return world->state == (enum fl_kv_state)state;
}

static bool has_applied(struct world *world, uint64_t batches)
{
    return counter(&world->counters.batches) == batches;
}

static bool has_malformed(struct world *world, uint64_t batches)
{
    return counter(&world->counters.malformed_batches) == batches;
}

static bool has_replayed(struct world *world, uint64_t gaps)
{
    return counter(&world->counters.gaps[FL_KV_GAP_REPLAYED]) == gaps;
}

static bool has_lost(struct world *world, uint64_t gaps)
{
    return counter(&world->counters.gaps[FL_KV_GAP_LOST]) == gaps;
}

/* Chain number `chain`, blocks [from, from + count): external hash = chain * 1000 + block + 1. */
static void store(struct world *world, uint32_t chain, uint32_t from, uint32_t count)
{
    uint64_t hashes[16];
    uint32_t tokens[16 * BLOCK_TOKENS];
    for (uint32_t i = 0; i < count; i++) {
        hashes[i] = (uint64_t)chain * 1000 + from + i + 1;
        for (uint32_t t = 0; t < BLOCK_TOKENS; t++)
            tokens[i * BLOCK_TOKENS + t] = chain * 100000 + (from + i) * BLOCK_TOKENS + t;
    }
    struct fl_kv_stored stored = {
        .has_parent = from > 0,
        .parent = (uint64_t)chain * 1000 + from,
        .hashes = hashes,
        .count = count,
        .tokens = tokens,
        .block_tokens = BLOCK_TOKENS,
        .medium = FL_BYTES("GPU"),
    };
    assert_int_equal(fl_kv_publisher_stored(world->publisher, &stored), 0);
    assert_true(fl_kv_publisher_flush(world->publisher, 1700000000.5));
}

static void remove_block(struct world *world, uint32_t chain, uint32_t block)
{
    uint64_t hash = (uint64_t)chain * 1000 + block + 1;
    fl_kv_publisher_removed(world->publisher, &hash, 1, FL_BYTES("GPU"));
    assert_true(fl_kv_publisher_flush(world->publisher, 1700000001));
}

/* Leading blocks of the chain that worker 7 holds. */
static uint32_t held(struct world *world, uint32_t chain, uint32_t dp_rank)
{
    uint32_t tokens[16 * BLOCK_TOKENS];
    uint64_t seq[16];
    struct fl_block_space space = {BLOCK_TOKENS, false, FL_BLOCK_SEED};
    for (uint32_t t = 0; t < FL_ARRAY_LEN(tokens); t++)
        tokens[t] = chain * 100000 + t;
    fl_block_hashes(&space, tokens, FL_ARRAY_LEN(tokens), NULL, seq);
    fl_kvindex_lookup(world->index, seq, FL_ARRAY_LEN(seq), &world->matches);
    for (uint32_t i = 0; i < world->matches.count; i++)
        if (world->matches.at[i].worker_id == 7 && world->matches.at[i].dp_rank == dp_rank)
            return world->matches.at[i].blocks[FL_TIER_DEVICE];
    return 0;
}

static const struct {
    const char *name;
    struct fl_kv_publisher_config config;
} faces[] = {
    {"array form, three replay frames", {.form = FL_KV_FORM_ARRAY}},
    {"map form, four replay frames", {.form = FL_KV_FORM_MAP, .replay_with_topic = true}},
    {"map form with rank, topic and four frames",
     {.form = FL_KV_FORM_MAP, .has_rank = true, .topic = "kv-events", .replay_with_topic = true}},
};

/* Publisher, subscriber, connected. The first store may come before the subscription: that is a gap
 * from 0, which every test below wants to be over. */
static void connect_both(struct world *world, const struct fl_kv_publisher_config *face,
                         bool has_replay, enum fl_kv_gap_policy policy)
{
    start(world);
    open_publisher(world, face, "tcp://127.0.0.1:*", has_replay ? "tcp://127.0.0.1:*" : NULL);
    subscribe(world, policy);
    wait_for(world, is_in_state, FL_KV_ACTIVE, "the handshake");
    /* The handshake is over on our side; the publisher learns of the subscription a little later.
     */
    for (uint32_t i = 0; counter(&world->counters.batches) == 0; i++) {
        store(world, 90 + i, 0, 1);
        struct pollfd fd = {.fd = fl_kvevents_fd(world->hub), .events = POLLIN};
        poll(&fd, 1, 10);
        fl_kv_publisher_serve(world->publisher);
        fl_kvevents_run(world->hub, world->now_ms);
        assert_true(i < 1000);
    }
    if (has_replay)
        wait_for(world, has_applied, fl_kv_publisher_next_sequence(world->publisher),
                 "what came before the subscription");
    wait_for(world, is_in_state, FL_KV_ACTIVE, "being active after the start");
}

/* selection.md 11.1-11.3, both forms, over tcp */
static void stores_and_removals_reach_the_index(void **state)
{
    (void)state;
    for (size_t i = 0; i < FL_ARRAY_LEN(faces); i++) {
        struct world world;
        connect_both(&world, &faces[i].config, true, FL_KV_GAP_CLEAR);
        uint64_t before = counter(&world.counters.batches);
        store(&world, 1, 0, 3);
        store(&world, 1, 3, 2);
        store(&world, 2, 0, 1);
        wait_for(&world, has_applied, before + 3, "three stores");
        assert_int_equal(held(&world, 1, 0), 5);
        assert_int_equal(held(&world, 2, 0), 1);
        remove_block(&world, 1, 4);
        wait_for(&world, has_applied, before + 4, "a removal");
        assert_int_equal(held(&world, 1, 0), 4);
        fl_kv_publisher_cleared(world.publisher);
        fl_kv_publisher_flush(world.publisher, 1);
        wait_for(&world, has_applied, before + 5, "the clear");
        assert_int_equal(held(&world, 1, 0), 0);
        assert_int_equal(held(&world, 2, 0), 0);
        finish(&world);
    }
}

static void ipc_and_inproc_work_as_tcp_does(void **state)
{
    (void)state;
    char ipc[64];
    snprintf(ipc, sizeof(ipc), "ipc:///tmp/fl-kv-test-%ld", (long)getpid());
    const char *endpoints[] = {ipc, "inproc://fl-kv-test"};
    for (size_t i = 0; i < FL_ARRAY_LEN(endpoints); i++) {
        struct world world;
        start(&world);
        open_publisher(&world, &faces[0].config, endpoints[i], "tcp://127.0.0.1:*");
        subscribe(&world, FL_KV_GAP_CLEAR);
        wait_for(&world, is_in_state, FL_KV_ACTIVE, "the connection");
        for (uint32_t n = 0; counter(&world.counters.batches) == 0; n++) {
            store(&world, n, 0, 1);
            wait_for(&world, is_in_state, FL_KV_ACTIVE, "a turn");
            assert_true(n < 100000);
        }
        wait_for(&world, has_applied, fl_kv_publisher_next_sequence(world.publisher),
                 "all of the chains");
        assert_int_equal(held(&world, 0, 0), 1);
        finish(&world);
    }
}

/* selection.md 11.6: initial, seq n > 0, replay from 0 */
static void a_late_subscriber_asks_for_the_whole_history(void **state)
{
    (void)state;
    for (size_t i = 0; i < FL_ARRAY_LEN(faces); i++) {
        struct world world;
        start(&world);
        open_publisher(&world, &faces[i].config, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*");
        for (uint32_t chain = 0; chain < 40; chain++)
            store(&world, chain, 0, 2); /* nobody listens yet */
        subscribe(&world, FL_KV_GAP_CLEAR);
        wait_for(&world, is_in_state, FL_KV_ACTIVE, "the handshake");
        for (uint32_t n = 0; counter(&world.counters.batches) == 0; n++) {
            store(&world, 50 + n, 0, 1);
            wait_for(&world, is_in_state, FL_KV_ACTIVE, "a turn");
            assert_true(n < 10000);
        }
        wait_for(&world, has_applied, fl_kv_publisher_next_sequence(world.publisher), "all of it");
        for (uint32_t chain = 0; chain < 40; chain++)
            assert_int_equal(held(&world, chain, 0), 2);
        wait_for(&world, has_replayed, 1, "the end of the replay");
        assert_int_equal(counter(&world.counters.gaps[FL_KV_GAP_LOST]), 0);
        finish(&world);
    }
}

/* selection.md 11.6: live(w), seq > w+1, replay from w+1; trap 5: three and four frames */
static void a_gap_is_filled_from_the_replay_socket(void **state)
{
    (void)state;
    for (size_t i = 0; i < FL_ARRAY_LEN(faces); i++) {
        struct world world;
        connect_both(&world, &faces[i].config, true, FL_KV_GAP_CLEAR);
        uint64_t before = counter(&world.counters.batches);
        uint64_t replays = counter(&world.counters.gaps[FL_KV_GAP_REPLAYED]);
        store(&world, 1, 0, 2);
        fl_kv_publisher_lose(world.publisher, 3);
        store(&world, 1, 2, 2);
        store(&world, 1, 4, 1);
        remove_block(&world, 1, 4);
        store(&world, 1, 4, 3); /* this one comes and shows the gap */
        wait_for(&world, has_applied, before + 5, "the gap's batches");
        assert_int_equal(held(&world, 1, 0), 7);
        wait_for(&world, has_replayed, replays + 1, "the end of the replay");
        assert_int_equal(counter(&world.counters.gaps[FL_KV_GAP_LOST]), 0);
        finish(&world);
    }
}

/* selection.md 11.6: lost, FAIRLEAD_GAP_POLICY */
static void without_replay_a_gap_clears_or_keeps_as_told(void **state)
{
    (void)state;
    static const struct {
        enum fl_kv_gap_policy policy;
        uint32_t held_after;
    } rows[] = {{FL_KV_GAP_CLEAR, 0}, {FL_KV_GAP_KEEP, 3}};
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct world world;
        connect_both(&world, &faces[0].config, false, rows[i].policy);
        uint64_t before = counter(&world.counters.batches);
        uint64_t lost = counter(&world.counters.gaps[FL_KV_GAP_LOST]);
        store(&world, 1, 0, 3);
        wait_for(&world, has_applied, before + 1, "a store");
        assert_int_equal(held(&world, 1, 0), 3);
        fl_kv_publisher_lose(world.publisher, 1);
        remove_block(&world, 1, 2);
        store(&world, 2, 0, 1);
        wait_for(&world, has_applied, before + 2, "the batch behind the gap");
        assert_int_equal(counter(&world.counters.gaps[FL_KV_GAP_LOST]), lost + 1);
        assert_int_equal(held(&world, 1, 0), rows[i].held_after);
        assert_int_equal(held(&world, 2, 0), 1); /* applied in either case */
        finish(&world);
    }
}

/* selection.md 11.6: the ring was overwritten, the replay starts later than asked */
static void an_overwritten_ring_is_a_loss_and_the_rest_is_used(void **state)
{
    (void)state;
    struct fl_kv_publisher_config face = faces[0].config;
    struct world world;
    face.buffer_steps = 4;
    connect_both(&world, &face, true, FL_KV_GAP_CLEAR);
    uint64_t before = counter(&world.counters.batches);
    uint64_t lost = counter(&world.counters.gaps[FL_KV_GAP_LOST]);
    store(&world, 1, 0, 1);
    wait_for(&world, has_applied, before + 1, "a store");
    fl_kv_publisher_lose(world.publisher, 8);
    for (uint32_t chain = 10; chain < 18; chain++)
        store(&world, chain, 0, 1);
    store(&world, 20, 0, 1); /* the ring holds 15, 16, 17, 20 */
    wait_for(&world, has_applied, before + 5, "what the ring still had");
    assert_int_equal(counter(&world.counters.gaps[FL_KV_GAP_LOST]), lost + 1);
    assert_int_equal(held(&world, 1, 0), 0);
    assert_int_equal(held(&world, 14, 0), 0);
    for (uint32_t chain = 15; chain < 18; chain++)
        assert_int_equal(held(&world, chain, 0), 1);
    assert_int_equal(held(&world, 20, 0), 1);
    finish(&world);
}

/* A replay socket of our own that says what the test wants. */
struct liar {
    void *socket;
    char endpoint[256];
};

static void liar_open(struct liar *liar, struct world *world)
{
    size_t n = sizeof(liar->endpoint);
    int linger = 0;
    liar->socket = zmq_socket(world->zmq, ZMQ_ROUTER);
    zmq_setsockopt(liar->socket, ZMQ_LINGER, &linger, sizeof(linger));
    assert_int_equal(zmq_bind(liar->socket, "tcp://127.0.0.1:*"), 0);
    zmq_getsockopt(liar->socket, ZMQ_LAST_ENDPOINT, liar->endpoint, &n);
}

struct question {
    uint8_t peer[64];
    int peer_bytes;
    uint64_t from;
};

static void liar_hear(struct liar *liar, struct world *world, struct question *question)
{
    uint8_t rest[64];
    time_t end = time(NULL) + PATIENCE_S;
    for (;;) {
        fl_kvevents_run(world->hub, world->now_ms);
        question->peer_bytes =
            zmq_recv(liar->socket, question->peer, sizeof(question->peer), ZMQ_DONTWAIT);
        if (question->peer_bytes > 0)
            break;
        assert_true(time(NULL) < end);
        poll(NULL, 0, 1);
    }
    assert_int_equal(zmq_recv(liar->socket, rest, sizeof(rest), 0), 0); /* delimiter */
    assert_int_equal(zmq_recv(liar->socket, rest, sizeof(rest), 0), 8);
    question->from = 0;
    for (size_t i = 0; i < 8; i++)
        question->from = question->from << 8 | rest[i];
    int more = 0;
    size_t n = sizeof(more);
    zmq_getsockopt(liar->socket, ZMQ_RCVMORE, &more, &n);
    assert_int_equal(more, 0);
}

static void liar_say(struct liar *liar, const struct question *question, uint64_t sequence,
                     struct fl_bytes payload)
{
    uint8_t number[8];
    for (size_t i = 0; i < 8; i++)
        number[i] = (uint8_t)(sequence >> 8 * (7 - i));
    zmq_send(liar->socket, question->peer, (size_t)question->peer_bytes, ZMQ_SNDMORE);
    zmq_send(liar->socket, "", 0, ZMQ_SNDMORE);
    zmq_send(liar->socket, number, sizeof(number), ZMQ_SNDMORE);
    zmq_send(liar->socket, payload.p, payload.n, 0);
}

/* An empty batch: [0, [], nil] */
#define NOTHING fl_bytes("\x93\x00\x90\xc0", 4)

static void send_live(struct world *world, uint64_t sequence)
{
    uint8_t number[8];
    for (size_t i = 0; i < 8; i++)
        number[i] = (uint8_t)(sequence >> 8 * (7 - i));
    const struct fl_bytes frames[] = {FL_BYTES(""), {number, sizeof(number)}, NOTHING};
    fl_kv_publisher_send_raw(world->publisher, frames, FL_ARRAY_LEN(frames));
}

/* With a liar for a replay socket, at batch 0. */
static void connect_liar(struct world *world, struct liar *liar)
{
    start(world);
    open_publisher(world, &faces[0].config, "tcp://127.0.0.1:*", NULL);
    liar_open(liar, world);
    struct fl_kv_subscriber_config config = {
        .endpoint = fl_kv_publisher_endpoint(world->publisher),
        .replay_endpoint = liar->endpoint,
        .index = world->index,
        .worker_id = 7,
        .block_tokens = BLOCK_TOKENS,
        .counters = &world->counters,
        .on_state = on_state,
        .owner = world,
    };
    world->subscriber = fl_kv_subscribe(world->hub, &config, world->now_ms, NULL);
    assert_non_null(world->subscriber);
    wait_for(world, is_in_state, FL_KV_ACTIVE, "the handshake");
    for (uint32_t n = 0; counter(&world->counters.batches) == 0; n++) {
        send_live(world, 0); /* the same number again is a duplicate */
        wait_for(world, is_in_state, FL_KV_ACTIVE, "a turn");
        assert_true(n < 100000);
    }
}

/* selection.md 11.6: ends before the live message: ask again once, then lost */
static void a_replay_that_ends_early_is_asked_for_once_more(void **state)
{
    (void)state;
    struct world world;
    struct liar liar;
    struct question question;
    connect_liar(&world, &liar);
    send_live(&world, 5);
    liar_hear(&liar, &world, &question);
    assert_int_equal(question.from, 1);
    assert_int_equal(world.state, FL_KV_BUFFERING);
    liar_say(&liar, &question, 1, NOTHING);
    wait_for(&world, is_in_state, FL_KV_CATCHING_UP, "an answer");
    liar_say(&liar, &question, 2, NOTHING);
    liar_say(&liar, &question, UINT64_MAX, FL_BYTES(""));
    liar_hear(&liar, &world, &question);
    assert_int_equal(question.from, 3);
    liar_say(&liar, &question, 3, NOTHING);
    liar_say(&liar, &question, UINT64_MAX, FL_BYTES(""));
    wait_for(&world, has_lost, 1, "giving up");
    wait_for(&world, is_in_state, FL_KV_ACTIVE, "going on");
    assert_int_equal(counter(&world.counters.batches), 5); /* 0, 1, 2, 3 and the held 5 */
    struct fl_kv_subscriber_report report;
    fl_kv_subscriber_report(world.subscriber, &report);
    assert_int_equal(report.applied, 5);
    zmq_close(liar.socket);
    finish(&world);
}

/* selection.md 11.6: no end marker within 5 s after the last message; trap 8 */
static void silence_ends_a_replay(void **state)
{
    (void)state;
    struct world world;
    struct liar liar;
    struct question question;
    connect_liar(&world, &liar);
    send_live(&world, 3);
    liar_hear(&liar, &world, &question);
    liar_say(&liar, &question, 1, NOTHING);
    liar_say(&liar, &question, 2, NOTHING);
    wait_for(&world, has_applied, 3, "the replay");
    world.now_ms += 4900;
    fl_kvevents_run(world.hub, world.now_ms);
    assert_int_equal(world.state, FL_KV_CATCHING_UP);
    world.now_ms += 200;
    wait_for(&world, is_in_state, FL_KV_ACTIVE, "the end by silence");
    assert_int_equal(counter(&world.counters.batches), 4);
    assert_int_equal(counter(&world.counters.gaps[FL_KV_GAP_REPLAYED]), 1);
    assert_int_equal(counter(&world.counters.gaps[FL_KV_GAP_LOST]), 0);
    zmq_close(liar.socket);
    finish(&world);
}

/* selection.md 11.6: empty: lost; back off 30 s after a failed replay, not after a good one */
static void after_a_failed_replay_nobody_asks_for_half_a_minute(void **state)
{
    (void)state;
    struct world world;
    struct liar liar;
    struct question question;
    connect_liar(&world, &liar);
    send_live(&world, 3);
    liar_hear(&liar, &world, &question);
    liar_say(&liar, &question, UINT64_MAX, FL_BYTES(""));
    wait_for(&world, has_lost, 1, "the empty replay");
    world.now_ms += 29000;
    send_live(&world, 5);
    wait_for(&world, has_lost, 2, "no question while backing off");
    assert_int_equal(world.state, FL_KV_ACTIVE);
    world.now_ms += 2000;
    send_live(&world, 7);
    liar_hear(&liar, &world, &question);
    assert_int_equal(question.from, 6);
    liar_say(&liar, &question, 6, NOTHING);
    liar_say(&liar, &question, UINT64_MAX, FL_BYTES(""));
    wait_for(&world, is_in_state, FL_KV_ACTIVE, "the good replay");
    send_live(&world, 9); /* asked for at once */
    liar_hear(&liar, &world, &question);
    assert_int_equal(question.from, 8);
    zmq_close(liar.socket);
    finish(&world);
}

/* selection.md 11.6: hole inside: lost */
static void a_hole_in_a_replay_is_a_loss(void **state)
{
    (void)state;
    struct world world;
    struct liar liar;
    struct question question;
    connect_liar(&world, &liar);
    send_live(&world, 6);
    liar_hear(&liar, &world, &question);
    liar_say(&liar, &question, 1, NOTHING);
    liar_say(&liar, &question, 1, NOTHING); /* twice: dropped */
    liar_say(&liar, &question, 4, NOTHING);
    liar_say(&liar, &question, 5, NOTHING);
    liar_say(&liar, &question, UINT64_MAX, FL_BYTES(""));
    wait_for(&world, has_lost, 1, "the hole");
    wait_for(&world, is_in_state, FL_KV_ACTIVE, "the end");
    assert_int_equal(counter(&world.counters.batches), 5); /* 0, 1, 4, 5, 6 */
    assert_int_equal(counter(&world.counters.gaps[FL_KV_GAP_REPLAYED]), 0);
    zmq_close(liar.socket);
    finish(&world);
}

/* selection.md 11.6: restart, first seen 0 or later; trap 4 */
static void a_restarted_publisher_is_noticed_and_its_old_blocks_go(void **state)
{
    (void)state;
    static const uint32_t unheard[] = {0, 3};
    for (size_t i = 0; i < FL_ARRAY_LEN(unheard); i++) {
        struct world world;
        char endpoint[256], replay[256];
        connect_both(&world, &faces[1].config, true, FL_KV_GAP_KEEP);
        uint64_t before = counter(&world.counters.batches);
        for (uint32_t n = 0; n < 20; n++)
            store(&world, 1, n % 10, 1);
        wait_for(&world, has_applied, before + 20, "the old life");
        assert_int_equal(held(&world, 1, 0), 10);

        snprintf(endpoint, sizeof(endpoint), "%s", fl_kv_publisher_endpoint(world.publisher));
        snprintf(replay, sizeof(replay), "%s", fl_kv_publisher_replay_endpoint(world.publisher));
        fl_kv_publisher_close(world.publisher);
        open_publisher(&world, &faces[1].config, endpoint, replay);
        fl_kv_publisher_lose(world.publisher, unheard[i]);
        /* Unheard ones until the subscription is there again; what was missed is replayed. */
        for (uint32_t n = 0; counter(&world.counters.gaps[FL_KV_GAP_RESTART]) == 0; n++) {
            store(&world, 30 + n % 40, 0, 1);
            struct pollfd fd = {.fd = fl_kvevents_fd(world.hub), .events = POLLIN};
            poll(&fd, 1, 20);
            fl_kv_publisher_serve(world.publisher);
            fl_kvevents_run(world.hub, world.now_ms);
            assert_true(n < 1000 && fl_kv_publisher_next_sequence(world.publisher) < 20 + before);
        }
        wait_for(&world, is_in_state, FL_KV_ACTIVE, "the replay after the restart");
        assert_int_equal(held(&world, 1, 0), 0);
        assert_int_equal(held(&world, 30, 0), 1);
        assert_int_equal(counter(&world.counters.gaps[FL_KV_GAP_RESTART]), 1);
        finish(&world);
    }
}

/* selection.md 11.1: exactly three frames, a sequence of eight bytes; 21 g: malformed never stops
 * us */
static void malformed_messages_are_counted_and_passed_over(void **state)
{
    (void)state;
    struct world world;
    connect_both(&world, &faces[0].config, true, FL_KV_GAP_CLEAR);
    uint64_t before = counter(&world.counters.batches);
    const struct fl_bytes seq = FL_BYTES("\0\0\0\0\0\0\0\x7f");
    const struct {
        struct fl_bytes frames[6];
        size_t count;
    } rows[] = {
        {{FL_BYTES("topic")}, 1},
        {{FL_BYTES(""), seq}, 2},
        {{FL_BYTES(""), FL_BYTES("1234567"), NOTHING}, 3},
        {{FL_BYTES(""), FL_BYTES("123456789"), NOTHING}, 3},
        {{FL_BYTES(""), seq, NOTHING, FL_BYTES("")}, 4},
        {{FL_BYTES(""), seq, NOTHING, FL_BYTES(""), FL_BYTES(""), FL_BYTES("")}, 6},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++)
        fl_kv_publisher_send_raw(world.publisher, rows[i].frames, rows[i].count);
    wait_for(&world, has_malformed, FL_ARRAY_LEN(rows), "all of them");
    assert_int_equal(counter(&world.counters.batches), before);
    store(&world, 1, 0, 2);
    wait_for(&world, has_applied, before + 1, "the good one behind them");
    assert_int_equal(held(&world, 1, 0), 2);

    /* Right frames, but no batch inside: the cursor goes on, the next in turn is no gap. */
    uint8_t number[8] = {0};
    number[6] = (uint8_t)(fl_kv_publisher_next_sequence(world.publisher) >> 8);
    number[7] = (uint8_t)fl_kv_publisher_next_sequence(world.publisher);
    const struct fl_bytes broken[] = {FL_BYTES(""), {number, 8}, FL_BYTES("\x93\x00")};
    fl_kv_publisher_send_raw(world.publisher, broken, FL_ARRAY_LEN(broken));
    fl_kv_publisher_lose(world.publisher, 1);
    store(&world, 3, 0, 1); /* takes the broken one's number, unheard */
    store(&world, 2, 0, 1);
    wait_for(&world, has_applied, before + 2, "the batch behind the broken one");
    assert_int_equal(counter(&world.counters.malformed_batches), FL_ARRAY_LEN(rows) + 1);
    assert_int_equal(held(&world, 2, 0), 1);
    assert_int_equal(held(&world, 3, 0), 0);
    finish(&world);
}

/* selection.md 11.2: the batch's rank overrides the registered one; 12.4 */
static void a_batch_names_its_own_rank(void **state)
{
    (void)state;
    struct fl_kv_publisher_config face = {.form = FL_KV_FORM_ARRAY, .has_rank = true, .dp_rank = 3};
    struct world world;
    connect_both(&world, &face, true, FL_KV_GAP_CLEAR);
    uint64_t before = counter(&world.counters.batches);
    store(&world, 1, 0, 2);
    wait_for(&world, has_applied, before + 1, "a store");
    assert_int_equal(held(&world, 1, 3), 2);
    assert_int_equal(held(&world, 1, 0), 0);
    finish(&world);
}

/* selection.md 13.2: the gate; 11.6: after a peer snapshot no replay from 0 */
static void behind_a_snapshot_the_gate_opens_where_the_cursor_stands(void **state)
{
    (void)state;
    struct world world;
    connect_both(&world, &faces[0].config, true, FL_KV_GAP_CLEAR);
    fl_kv_unsubscribe(world.subscriber);
    uint64_t replays = counter(&world.counters.gaps[FL_KV_GAP_REPLAYED]);
    uint64_t before = counter(&world.counters.batches);
    subscribe(&world, FL_KV_GAP_CLEAR);
    fl_kv_subscriber_pause(world.subscriber);
    assert_int_equal(world.state, FL_KV_PAUSED);
    fl_kv_subscriber_set_snapshot(world.subscriber, false, 0);
    fl_kv_subscriber_resume(world.subscriber);
    wait_for(&world, is_in_state, FL_KV_ACTIVE, "the open gate");
    for (uint32_t n = 0; counter(&world.counters.batches) == before; n++) {
        store(&world, n, 0, 1);
        wait_for(&world, is_in_state, FL_KV_ACTIVE, "a turn");
        assert_true(n < 100000);
    }
    assert_int_equal(counter(&world.counters.gaps[FL_KV_GAP_REPLAYED]), replays);
    assert_int_equal(counter(&world.counters.gaps[FL_KV_GAP_LOST]), 0);
    finish(&world);
}

static void paused_messages_wait_in_order(void **state)
{
    (void)state;
    struct world world;
    connect_both(&world, &faces[1].config, true, FL_KV_GAP_CLEAR);
    uint64_t before = counter(&world.counters.batches);
    fl_kv_subscriber_pause(world.subscriber);
    for (uint32_t n = 0; n < 8; n++)
        store(&world, 1, n, 1);
    for (uint32_t n = 0; n < 20; n++)
        fl_kvevents_run(world.hub, world.now_ms);
    assert_int_equal(counter(&world.counters.batches), before);
    fl_kv_subscriber_resume(world.subscriber);
    wait_for(&world, has_applied, before + 8, "what waited");
    assert_int_equal(held(&world, 1, 0), 8);
    finish(&world);
}

/* selection.md 12.4, trap 30: refused and unanswered endpoints */
static void an_endpoint_that_cannot_be_is_refused_and_a_silent_one_is_pending(void **state)
{
    (void)state;
    struct world world;
    start(&world);
    struct fl_kv_subscriber_config config = {
        .endpoint = "http://nowhere",
        .index = world.index,
        .worker_id = 7,
        .block_tokens = BLOCK_TOKENS,
        .counters = &world.counters,
        .on_state = on_state,
        .owner = &world,
    };
    static const char *const refused[] = {"http://nowhere", "tcp://127.0.0.1", "tcp://127.0.0.1:x",
                                          "", "5557"};
    for (size_t i = 0; i < FL_ARRAY_LEN(refused); i++) {
        struct fl_error err = {0};
        config.endpoint = refused[i];
        if (fl_kv_subscribe(world.hub, &config, world.now_ms, &err) != NULL)
            fail_msg("%s", refused[i]);
        assert_int_equal(err.code, FL_ECONFIG);
        assert_non_null(strstr(err.text, "kv events endpoint"));
    }
    /* A port nobody listens on: bound, then given back. */
    open_publisher(&world, &faces[0].config, "tcp://127.0.0.1:*", NULL);
    char endpoint[256];
    snprintf(endpoint, sizeof(endpoint), "%s", fl_kv_publisher_endpoint(world.publisher));
    fl_kv_publisher_close(world.publisher);
    world.publisher = NULL;
    config.endpoint = endpoint;
    world.subscriber = fl_kv_subscribe(world.hub, &config, world.now_ms, NULL);
    assert_non_null(world.subscriber);
    fl_kvevents_run(world.hub, world.now_ms);
    assert_int_equal(fl_kv_subscriber_state(world.subscriber), FL_KV_PENDING);
    world.now_ms += 31000; /* the warning is due; nothing else changes */
    fl_kvevents_run(world.hub, world.now_ms);
    assert_int_equal(fl_kv_subscriber_state(world.subscriber), FL_KV_PENDING);
    finish(&world);
}

/* Many subscribers, one storm: nothing lost, order kept, each rank as its publisher meant it. */
static void a_storm_from_several_publishers_arrives_whole(void **state)
{
    (void)state;
    enum { PUBLISHERS = 4, BATCHES = 400 };
    struct world world;
    struct fl_kv_publisher *publishers[PUBLISHERS];
    struct fl_kv_subscriber *subscribers[PUBLISHERS];
    start(&world);
    for (uint32_t i = 0; i < PUBLISHERS; i++) {
        open_publisher(&world, &faces[i % FL_ARRAY_LEN(faces)].config, "tcp://127.0.0.1:*",
                       "tcp://127.0.0.1:*");
        publishers[i] = world.publisher;
        struct fl_kv_subscriber_config config = {
            .endpoint = fl_kv_publisher_endpoint(publishers[i]),
            .replay_endpoint = fl_kv_publisher_replay_endpoint(publishers[i]),
            .index = world.index,
            .worker_id = 100 + i,
            .block_tokens = BLOCK_TOKENS,
            .counters = &world.counters,
        };
        subscribers[i] = fl_kv_subscribe(world.hub, &config, world.now_ms, NULL);
        assert_non_null(subscribers[i]);
    }
    /* Chain n of every publisher: 8 blocks stored one by one, the last two removed again. */
    time_t end = time(NULL) + PATIENCE_S;
    for (uint32_t n = 0; n < BATCHES; n++)
        for (uint32_t i = 0; i < PUBLISHERS; i++) {
            world.publisher = publishers[i];
            if (n % 10 < 8)
                store(&world, n / 10, n % 10, 1);
            else
                remove_block(&world, n / 10, 15 - n % 10);
            fl_kvevents_run(world.hub, world.now_ms);
        }
    /* Whoever subscribed late asks for the beginning when the next batch comes. */
    for (uint32_t round = 0;; round++) {
        uint64_t applied = 0;
        for (uint32_t i = 0; i < PUBLISHERS; i++) {
            struct fl_kv_subscriber_report report;
            fl_kv_publisher_serve(publishers[i]);
            fl_kv_subscriber_report(subscribers[i], &report);
            applied += report.has_applied && report.applied + 1 >= BATCHES ? 1 : 0;
            if (!report.has_applied && round % 100 == 99) {
                world.publisher = publishers[i];
                store(&world, 70 + round / 100 % 20, 0, 1);
            }
        }
        if (applied == PUBLISHERS)
            break;
        assert_true(time(NULL) < end);
        if (!fl_kvevents_run(world.hub, world.now_ms))
            poll(NULL, 0, 1);
    }
    assert_int_equal(counter(&world.counters.gaps[FL_KV_GAP_LOST]), 0);
    for (uint32_t i = 0; i < PUBLISHERS; i++) {
        struct fl_kvindex_rank *rank = fl_kvindex_rank_find(world.index, 100 + i, 0);
        assert_non_null(rank);
        for (uint32_t chain = 0; chain < BATCHES / 10; chain++) {
            assert_true(fl_kvindex_has(world.index, rank, FL_TIER_DEVICE, chain * 1000 + 6));
            assert_false(fl_kvindex_has(world.index, rank, FL_TIER_DEVICE, chain * 1000 + 7));
        }
        fl_kv_unsubscribe(subscribers[i]);
        if (publishers[i] != world.publisher)
            fl_kv_publisher_close(publishers[i]);
    }
    finish(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stores_and_removals_reach_the_index),
        cmocka_unit_test(ipc_and_inproc_work_as_tcp_does),
        cmocka_unit_test(a_late_subscriber_asks_for_the_whole_history),
        cmocka_unit_test(a_gap_is_filled_from_the_replay_socket),
        cmocka_unit_test(without_replay_a_gap_clears_or_keeps_as_told),
        cmocka_unit_test(an_overwritten_ring_is_a_loss_and_the_rest_is_used),
        cmocka_unit_test(a_replay_that_ends_early_is_asked_for_once_more),
        cmocka_unit_test(silence_ends_a_replay),
        cmocka_unit_test(after_a_failed_replay_nobody_asks_for_half_a_minute),
        cmocka_unit_test(a_hole_in_a_replay_is_a_loss),
        cmocka_unit_test(a_restarted_publisher_is_noticed_and_its_old_blocks_go),
        cmocka_unit_test(malformed_messages_are_counted_and_passed_over),
        cmocka_unit_test(a_batch_names_its_own_rank),
        cmocka_unit_test(behind_a_snapshot_the_gate_opens_where_the_cursor_stands),
        cmocka_unit_test(paused_messages_wait_in_order),
        cmocka_unit_test(an_endpoint_that_cannot_be_is_refused_and_a_silent_one_is_pending),
        cmocka_unit_test(a_storm_from_several_publishers_arrives_whole),
    };
    return cmocka_run_group_tests_name("kvevents/subscriber", tests, NULL, NULL);
}
