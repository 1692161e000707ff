/* SPDX-License-Identifier: Apache-2.0 */
/* What the prefix cache gains and loses, published as an engine publishes it: a run of blocks
 * stored below a parent, blocks removed, in the order in which it happened, one batch an admission.
 */
#include <zmq.h>

#include "apps/engine/engine.h"
#include "base/alloc.h"
#include "kvevents/publisher.h"
#include "kvindex/hash.h"

#define SERVE_MS 20 /* how often replay requests are looked for */

/* The engine's own names for blocks are its own matter; ours differ from the router's hashes on
 * purpose, as a real engine's do. */
#define EXTERNAL_MASK UINT64_C(0x5bd1e9955bd1e995)

struct engine_publisher {
    struct engine *engine;
    void *zmq;
    struct fl_kv_publisher *wire;
    struct fl_timer serve;
    /* of the admission under way */
    const struct engine_prompt *prompt;
    const uint64_t *ids;
    uint32_t run_first, run_count; /* positions of blocks stored and not yet told */
    uint64_t *removed;
    size_t removed_count, removed_cap;
};

static void tell_stored(struct engine_publisher *publisher)
{
    uint32_t block_tokens = publisher->engine->config.block_tokens;
    uint32_t first = publisher->run_first;
    if (publisher->run_count == 0)
        return;
    struct fl_kv_stored stored = {
        .has_parent = first > 0,
        .parent = first > 0 ? publisher->ids[first - 1] : 0,
        .hashes = publisher->ids + first,
        .count = publisher->run_count,
        .tokens = publisher->prompt->tokens + (size_t)first * block_tokens,
        .block_tokens = block_tokens,
        .medium = FL_BYTES("GPU"),
    };
    fl_kv_publisher_stored(publisher->wire, &stored);
    publisher->run_count = 0;
}

static void tell_removed(struct engine_publisher *publisher)
{
    if (publisher->removed_count > 0)
        fl_kv_publisher_removed(publisher->wire, publisher->removed, publisher->removed_count,
                                FL_BYTES("GPU"));
    publisher->removed_count = 0;
}

static void on_insert(void *owner, uint64_t id, uint32_t position)
{
    struct engine_publisher *publisher = owner;
    (void)id;
    /* A block that was dropped and comes back must be told in that order. */
    tell_removed(publisher);
    if (publisher->run_count > 0 && publisher->run_first + publisher->run_count != position)
        tell_stored(publisher);
    if (publisher->run_count == 0)
        publisher->run_first = position;
    publisher->run_count++;
}

static void on_evict(void *owner, uint64_t id)
{
    struct engine_publisher *publisher = owner;
    tell_stored(publisher);
    if (publisher->removed_count == publisher->removed_cap) {
        publisher->removed_cap = publisher->removed_cap == 0 ? 256 : publisher->removed_cap * 2;
        publisher->removed =
            fl_realloc(publisher->removed, publisher->removed_cap, sizeof(*publisher->removed));
    }
    publisher->removed[publisher->removed_count++] = id;
}

struct fl_engine_admission engine_admit(struct engine *engine, const struct engine_prompt *prompt)
{
    struct fl_block_space space = {.block_tokens = engine->config.block_tokens,
                                   .seed =
                                       fl_block_seed((struct fl_bytes){0}, (struct fl_bytes){0})};
    struct engine_publisher *publisher = engine->publisher;
    struct fl_lru_changes changes = {publisher, on_insert, on_evict};
    size_t count = fl_block_count(&space, prompt->count);
    uint64_t *ids = fl_calloc(count + 1, sizeof(*ids));

    fl_block_hashes(&space, prompt->tokens, prompt->count, NULL, ids);
    for (size_t i = 0; i < count; i++)
        ids[i] ^= EXTERNAL_MASK;
    if (publisher != NULL) {
        publisher->prompt = prompt;
        publisher->ids = ids;
    }
    struct fl_engine_admission admission =
        fl_engine_model_admit(&engine->model, engine_now_s(engine), ids, (uint32_t)count,
                              prompt->count, publisher != NULL ? &changes : NULL);
    if (publisher != NULL) {
        tell_stored(publisher);
        tell_removed(publisher);
        fl_kv_publisher_flush(publisher->wire, (double)fl_clock_ns() / 1e9);
        fl_kv_publisher_serve(publisher->wire);
    }
    fl_free(ids);
    return admission;
}

/* ZMQ's descriptor is edge-triggered; a look at fixed times is simpler and misses nothing. */
static void on_serve(struct fl_timer *timer)
{
    struct engine_publisher *publisher = FL_CONTAINER_OF(timer, struct engine_publisher, serve);
    fl_kv_publisher_serve(publisher->wire);
    fl_loop_timer_start(publisher->engine->loop, timer, SERVE_MS);
}

int engine_publisher_open(struct engine *engine, struct fl_error *err)
{
    const struct engine_config *config = &engine->config;
    if (config->kv_events == NULL)
        return 0;
    struct engine_publisher *publisher = fl_calloc(1, sizeof(*publisher));
    publisher->engine = engine;
    publisher->zmq = zmq_ctx_new();
    struct fl_kv_publisher_config wire = {
        .zmq = publisher->zmq,
        .endpoint = config->kv_events,
        .replay_endpoint = config->kv_replay,
        .form = FL_KV_FORM_MAP,
        .replay_with_topic = true,
    };
    fl_timer_init(&publisher->serve, on_serve);
    publisher->wire = fl_kv_publisher_open(&wire, err);
    if (publisher->wire == NULL) {
        zmq_ctx_term(publisher->zmq);
        fl_free(publisher);
        return FL_ECONFIG;
    }
    engine->publisher = publisher;
    if (config->kv_replay != NULL)
        fl_loop_timer_start(engine->loop, &publisher->serve, SERVE_MS);
    return 0;
}

const char *engine_publisher_endpoint(const struct engine *engine)
{
    return engine->publisher == NULL ? NULL : fl_kv_publisher_endpoint(engine->publisher->wire);
}

const char *engine_publisher_replay_endpoint(const struct engine *engine)
{
    return engine->publisher == NULL ? NULL
                                     : fl_kv_publisher_replay_endpoint(engine->publisher->wire);
}

void engine_publisher_close(struct engine *engine)
{
    struct engine_publisher *publisher = engine->publisher;
    if (publisher == NULL)
        return;
    fl_loop_timer_stop(engine->loop, &publisher->serve);
    fl_kv_publisher_close(publisher->wire);
    zmq_ctx_term(publisher->zmq);
    fl_free(publisher->removed);
    fl_free(publisher);
    engine->publisher = NULL;
}
