/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <zmq.h>

#include "kvevents/publisher.h"
#include "unit/service/fixture.h"

#define BLOCK 16

struct engine {
    struct fl_kv_publisher *publisher;
    char endpoint[64];
};

/* Binds in the runtime's own context, so that inproc works and nothing needs a port. */
static void engine_open(struct engine *engine, void *zmq, const char *endpoint)
{
    struct fl_error err = {0};
    struct fl_kv_publisher_config config = {.zmq = zmq, .endpoint = endpoint};
    engine->publisher = fl_kv_publisher_open(&config, &err);
    if (engine->publisher == NULL)
        fail_msg("publisher: %s", err.text);
    snprintf(engine->endpoint, sizeof engine->endpoint, "%s",
             fl_kv_publisher_endpoint(engine->publisher));
}

static void engine_store(struct engine *engine, const uint32_t *tokens, size_t blocks)
{
    uint64_t hashes[64];
    for (size_t i = 0; i < blocks; i++)
        hashes[i] = 1000 + i;
    struct fl_kv_stored stored = {.hashes = hashes,
                                  .count = blocks,
                                  .tokens = tokens,
                                  .block_tokens = BLOCK,
                                  .medium = FL_BYTES("GPU")};
    assert_int_equal(fl_kv_publisher_stored(engine->publisher, &stored), 0);
    fl_kv_publisher_flush(engine->publisher, 1.0);
}

/* gpu tokens that a select without booking sees on the chosen worker, and who that is. */
static uint64_t matched(struct fixture *f, const uint32_t *tokens, size_t count, uint64_t *worker,
                        struct fl_bytes salt)
{
    struct fl_select_request request = fixture_request(f, NULL);
    request.prompt = (struct fl_prompt){.tokens = tokens, .token_count = count, .cache_salt = salt};
    struct fl_ticket ticket;
    struct fl_select_result result = {0};
    assert_int_equal(fl_select(f->service, &request, &ticket, &result, NULL), 0);
    uint64_t gpu = result.gpu_tokens;
    assert_true(result.cpu_tokens >= gpu && result.disk_tokens >= result.cpu_tokens);
    assert_int_equal(result.effective_prefill_tokens, count - gpu);
    if (gpu > 0) {
        assert_int_equal(result.by_rank_count, 1);
        assert_int_equal(result.by_rank[0].tokens, gpu);
    }
    *worker = result.rank.worker_id;
    fl_select_result_fini(&result);
    return gpu;
}

/* Waits for the condition, not for a time: events travel through ZMQ's own threads. */
static bool wait_matched(struct fixture *f, const uint32_t *tokens, size_t count, uint64_t expected,
                         uint64_t worker, struct engine *engine, size_t blocks)
{
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0;; i++) {
        uint64_t chosen;
        if (matched(f, tokens, count, &chosen, (struct fl_bytes){0}) == expected &&
            (worker == 0 || chosen == worker))
            return true;
        /* A subscriber that joined late missed what was sent before: engines go on sending. */
        if (engine != NULL && i % 100 == 99)
            engine_store(engine, tokens, blocks);
        fl_selection_settle(f->service);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - start.tv_sec > 10)
            return false;
    }
}

static struct fl_worker worker_at(uint64_t id, const struct engine *engine)
{
    struct fl_worker worker = fixture_worker(id);
    worker.block_size = BLOCK;
    worker.kv_events_endpoint = fl_bytes_of(engine->endpoint);
    return worker;
}

/* From an engine's event to the choice: selection.md 5.3 overlap, 11, and who leaves takes its
 * blocks (I11) */
static void events_lead_requests_to_the_engine_that_holds_them(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    config.use_kv_events = true;
    fixture_init(&f, &config);
    void *zmq = zmq_ctx_new();
    struct engine engines[2];
    uint32_t tokens[8 * BLOCK + 3];
    for (uint32_t i = 0; i < FL_ARRAY_LEN(tokens); i++)
        tokens[i] = i * 7;
    for (uint64_t i = 0; i < 2; i++) {
        engine_open(&engines[i], zmq, "tcp://127.0.0.1:*");
        struct fl_worker worker = worker_at(i + 1, &engines[i]);
        assert_int_equal(fixture_upsert(f.service, &worker), FL_LIFECYCLE_SCHEDULABLE);
    }
    fl_selection_settle(f.service);
    assert_true(wait_matched(&f, tokens, FL_ARRAY_LEN(tokens), 8 * BLOCK, 2, &engines[1], 8));
    uint64_t worker;
    assert_int_equal(matched(&f, tokens, 3 * BLOCK + 5, &worker, (struct fl_bytes){0}), 3 * BLOCK);
    assert_int_equal(matched(&f, tokens + 1, 3 * BLOCK, &worker, (struct fl_bytes){0}), 0);
    /* 10.1: a salted prompt shares nothing with an unsalted one */
    assert_int_equal(matched(&f, tokens, 8 * BLOCK, &worker, FL_BYTES("salt")), 0);

    struct fl_buf out = {0};
    assert_int_equal(fl_selection_metrics_write(f.service, &out), 0);
    struct fl_bytes text = fl_buf_bytes(&out);
    assert_true(fl_bytes_find(text, FL_BYTES("fairlead_select_index_blocks{role=\"aggregated\","
                                             "tier=\"device\"} 8\n")) < text.n);
    assert_true(fl_bytes_find(text, FL_BYTES("fairlead_select_listeners{role=\"aggregated\","
                                             "status=\"active\"} ")) < text.n);
    fl_buf_fini(&out);

    /* 4.4: an upsert with the same endpoints keeps the blocks */
    struct fl_worker same = worker_at(2, &engines[1]);
    same.total_kv_blocks = (struct fl_maybe_u64){true, 77};
    fixture_upsert(f.service, &same);
    fl_selection_settle(f.service);
    assert_int_equal(matched(&f, tokens, 8 * BLOCK, &worker, (struct fl_bytes){0}), 8 * BLOCK);

    /* an upsert with another event endpoint drops them */
    struct fl_worker moved = worker_at(2, &engines[0]);
    fixture_upsert(f.service, &moved);
    fl_selection_settle(f.service);
    assert_int_equal(matched(&f, tokens, 8 * BLOCK, &worker, (struct fl_bytes){0}), 0);

    /* trap 3, trap 4: delete and upsert start with nothing and a new cursor */
    fixture_upsert(f.service, &same);
    assert_true(wait_matched(&f, tokens, 8 * BLOCK, 8 * BLOCK, 2, &engines[1], 8));
    assert_int_equal(fl_selection_delete_worker(f.service, 2, NULL), 0);
    fl_selection_settle(f.service);
    fixture_upsert(f.service, &same);
    fl_selection_settle(f.service);
    assert_int_equal(matched(&f, tokens, 8 * BLOCK, &worker, (struct fl_bytes){0}), 0);

    fixture_fini(&f);
    for (int i = 0; i < 2; i++)
        fl_kv_publisher_close(engines[i].publisher);
    zmq_ctx_term(zmq);
}

/* selection.md 9.7: load-only makes no lookup and listens to nothing */
static void load_only_keeps_no_index(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    config.use_kv_events = true;
    config.policy = "load-only";
    fixture_init(&f, &config);
    struct engine engine = {.endpoint = "inproc://nobody"};
    struct fl_worker worker = worker_at(1, &engine);
    assert_int_equal(fixture_upsert(f.service, &worker), FL_LIFECYCLE_SCHEDULABLE);
    struct fl_buf out = {0};
    assert_int_equal(fl_selection_metrics_write(f.service, &out), 0);
    struct fl_bytes text = fl_buf_bytes(&out);
    assert_true(fl_bytes_find(text, FL_BYTES("fairlead_select_listeners")) == text.n);
    fl_buf_fini(&out);
    fixture_fini(&f);
}

struct load {
    struct fixture *f;
    const uint32_t *tokens;
    _Atomic bool is_over;
};

static void *pick_all_the_time(void *arg)
{
    struct load *load = arg;
    for (uint32_t i = 0; !atomic_load(&load->is_over); i++) {
        uint64_t worker;
        uint64_t gpu =
            matched(load->f, load->tokens, (1 + i % 8) * BLOCK, &worker, (struct fl_bytes){0});
        if (gpu > (1 + i % 8) * BLOCK)
            fail_msg("matched more than was asked");
    }
    return NULL;
}

/* Readers on any thread beside the one writer, workers coming and going: for ThreadSanitizer. */
static void picks_run_beside_events(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_router_config config = fixture_config();
    config.use_kv_events = true;
    fixture_init(&f, &config);
    void *zmq = zmq_ctx_new();
    struct engine engines[2];
    uint32_t tokens[8 * BLOCK];
    for (uint32_t i = 0; i < FL_ARRAY_LEN(tokens); i++)
        tokens[i] = i;
    for (uint64_t i = 0; i < 2; i++) {
        engine_open(&engines[i], zmq, "tcp://127.0.0.1:*");
        struct fl_worker worker = worker_at(i + 1, &engines[i]);
        fixture_upsert(f.service, &worker);
    }
    struct load load = {.f = &f, .tokens = tokens};
    pthread_t threads[2];
    for (int t = 0; t < 2; t++)
        pthread_create(&threads[t], NULL, pick_all_the_time, &load);
    for (uint64_t round = 0; round < 300; round++) {
        engine_store(&engines[round % 2], tokens, 1 + round % 8);
        uint64_t hash = 1000 + round % 8;
        assert_int_equal(
            fl_kv_publisher_removed(engines[round % 2].publisher, &hash, 1, FL_BYTES("GPU")), 0);
        if (round % 50 == 20) {
            fl_selection_delete_worker(f.service, 1, NULL);
            struct fl_worker worker = worker_at(1, &engines[0]);
            fixture_upsert(f.service, &worker);
        }
        fl_selection_settle(f.service);
    }
    atomic_store(&load.is_over, true);
    for (int t = 0; t < 2; t++)
        pthread_join(threads[t], NULL);
    fixture_fini(&f);
    for (int i = 0; i < 2; i++)
        fl_kv_publisher_close(engines[i].publisher);
    zmq_ctx_term(zmq);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_lead_requests_to_the_engine_that_holds_them),
        cmocka_unit_test(load_only_keeps_no_index),
        cmocka_unit_test(picks_run_beside_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
