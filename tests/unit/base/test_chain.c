/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks, slices, chains and the budget they are charged to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/rng.h"

static void bytes_come_back_with_the_last_reference(void **state)
{
    (void)state;
    struct fl_budget budget = {.cap_bytes = 1000};
    struct fl_slice a = fl_slice_copy(FL_BYTES("0123456789"), &budget);
    assert_int_equal(fl_budget_held(&budget), 10);
    struct fl_slice b = fl_slice_sub(a, 2, 3);
    struct fl_slice c = fl_slice_ref(b);
    assert_int_equal(fl_budget_held(&budget), 10); /* views cost nothing */
    fl_slice_unref(&a);
    fl_slice_unref(&b);
    assert_true(fl_bytes_eq(fl_slice_bytes(c), FL_BYTES("234")));
    assert_int_equal(fl_budget_held(&budget), 10);
    fl_slice_unref(&c);
    assert_int_equal(fl_budget_held(&budget), 0);
    fl_slice_unref(&c); /* empty now */
    fl_chunk_unref(NULL);
}

static void a_chunk_beyond_the_cap_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        size_t cap, first, second;
        bool ok;
    } rows[] = {
        {"below the cap", 100, 50, 49, true}, {"at the cap", 100, 50, 50, true},
        {"one above", 100, 50, 51, false},    {"far above", 100, 50, 1 << 20, false},
        {"no cap", 0, 50, 1 << 20, true},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_budget budget = {.cap_bytes = rows[i].cap};
        struct fl_chunk *first = fl_chunk_new(rows[i].first, &budget);
        struct fl_chunk *second = fl_chunk_new(rows[i].second, &budget);
        assert_non_null(first);
        size_t held = rows[i].first + (rows[i].ok ? rows[i].second : 0);
        if ((second != NULL) != rows[i].ok || fl_budget_held(&budget) != held)
            fail_msg("row %zu: %s", i, rows[i].why);
        fl_chunk_unref(first);
        fl_chunk_unref(second);
        assert_int_equal(fl_budget_held(&budget), 0);
    }
    assert_null(fl_chunk_new((size_t)(1 << 30) + 1, NULL));
    assert_null(fl_chunk_new(SIZE_MAX, NULL));
}

static void a_chunk_without_memory_is_not_charged(void **state)
{
    (void)state;
    struct fl_budget budget = {.cap_bytes = 100};
    fl_alloc_fail_at(1);
    assert_null(fl_chunk_new(50, &budget));
    assert_int_equal(fl_budget_held(&budget), 0);
    fl_alloc_fail_at(1);
    struct fl_slice slice = fl_slice_copy(FL_BYTES("abc"), &budget);
    assert_null(slice.p);
    assert_int_equal(fl_budget_held(&budget), 0);
}

static void reading_is_easy_below_seven_eighths(void **state)
{
    (void)state;
    struct fl_budget budget = {.cap_bytes = 800};
    struct fl_chunk *most = fl_chunk_new(699, &budget);
    assert_true(fl_budget_is_easy(&budget));
    struct fl_chunk *one = fl_chunk_new(1, &budget);
    assert_false(fl_budget_is_easy(&budget));
    fl_chunk_unref(one);
    assert_true(fl_budget_is_easy(&budget));
    fl_chunk_unref(most);
    struct fl_budget none = {.cap_bytes = 0};
    assert_true(fl_budget_is_easy(&none));
}

static void empty_and_static_slices_hold_no_chunk(void **state)
{
    (void)state;
    struct fl_chain chain = {0};
    struct fl_slice empty = fl_slice_copy((struct fl_bytes){NULL, 0}, NULL);
    assert_null(empty.chunk);
    assert_non_null(empty.p);
    fl_chain_push(&chain, empty);
    fl_chain_push_front(&chain, empty);
    assert_int_equal(chain.count, 0);
    fl_chain_push(&chain, (struct fl_slice){NULL, (const uint8_t *)"data: ", 6});
    fl_chain_consume(&chain, 2);
    assert_true(fl_chain_eq_bytes(&chain, FL_BYTES("ta: ")));
    /* An empty view of a chunk drops its reference. */
    struct fl_budget budget = {0};
    struct fl_slice whole = fl_slice_copy(FL_BYTES("abc"), &budget);
    fl_chain_push(&chain, fl_slice_sub(whole, 3, 0));
    fl_slice_unref(&whole);
    assert_int_equal(fl_budget_held(&budget), 0);
    fl_chain_fini(&chain);
    fl_chain_fini(&chain);
}

/* ---- a naive twin ---- */

enum { CHAINS = 3, MODEL_MAX = 4000 };

struct model {
    uint8_t bytes[MODEL_MAX];
    size_t n;
};

static void model_insert(struct model *model, size_t at, struct fl_bytes bytes)
{
    memmove(model->bytes + at + bytes.n, model->bytes + at, model->n - at);
    memcpy(model->bytes + at, bytes.p, bytes.n);
    model->n += bytes.n;
}

static void model_drop(struct model *model, size_t n)
{
    memmove(model->bytes, model->bytes + n, model->n - n);
    model->n -= n;
}

/* What the budget must hold: each chunk reachable, once. */
static size_t reachable_bytes(const struct fl_chain *chains)
{
    const struct fl_chunk *seen[3 * MODEL_MAX];
    size_t seen_count = 0, bytes = 0;
    for (int c = 0; c < CHAINS; c++) {
        for (uint32_t i = 0; i < chains[c].count; i++) {
            const struct fl_chunk *chunk = fl_chain_at(&chains[c], i).chunk;
            size_t k = 0;
            while (k < seen_count && seen[k] != chunk)
                k++;
            if (k < seen_count || chunk == NULL)
                continue;
            seen[seen_count++] = chunk;
            bytes += chunk->room;
        }
    }
    return bytes;
}

static void compare(struct fl_rng *rng, const struct fl_chain *chain, const struct model *model)
{
    assert_int_equal(chain->bytes, model->n);
    assert_true(fl_chain_eq_bytes(chain, fl_bytes(model->bytes, model->n)));

    uint8_t copy[MODEL_MAX];
    size_t offset = fl_rng_below(rng, model->n + 1);
    size_t n = fl_rng_below(rng, model->n - offset + 1);
    fl_chain_copy_out(chain, offset, copy, n);
    assert_memory_equal(copy, model->bytes + offset, n);

    struct iovec iov[8];
    int count = fl_chain_iov(chain, iov, 8);
    assert_int_equal(count, chain->count < 8 ? chain->count : 8);
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        assert_memory_equal(iov[i].iov_base, model->bytes + at, iov[i].iov_len);
        at += iov[i].iov_len;
    }
}

static void one_random_step(struct fl_rng *rng, struct fl_chain *chains, struct model *models,
                            struct fl_budget *budget)
{
    size_t a = fl_rng_below(rng, CHAINS), b = (a + 1 + fl_rng_below(rng, CHAINS - 1)) % CHAINS;
    struct fl_chain *chain = &chains[a];
    struct model *model = &models[a];
    uint8_t piece[60];
    size_t n = fl_rng_below(rng, sizeof(piece));
    memset(piece, (int)fl_rng_below(rng, 256), n);

    switch (fl_rng_below(rng, 8)) {
    case 0:
    case 1:
        if (model->n + n <= MODEL_MAX) {
            fl_chain_push(chain, fl_slice_copy(fl_bytes(piece, n), budget));
            model_insert(model, model->n, fl_bytes(piece, n));
        }
        break;
    case 2:
        if (model->n + n <= MODEL_MAX) {
            fl_chain_push_front(chain, fl_slice_copy(fl_bytes(piece, n), budget));
            model_insert(model, 0, fl_bytes(piece, n));
        }
        break;
    case 3: {
        struct fl_slice slice;
        if (!fl_chain_pop(chain, &slice)) {
            assert_int_equal(model->n, 0);
            break;
        }
        assert_memory_equal(slice.p, model->bytes, slice.n);
        model_drop(model, slice.n);
        fl_slice_unref(&slice);
        break;
    }
    case 4:
        n = fl_rng_below(rng, (model->n < 100 ? model->n : 100) + 1);
        fl_chain_consume(chain, n);
        model_drop(model, n);
        break;
    case 5:
        if (models[a].n + models[b].n <= MODEL_MAX && fl_rng_below(rng, 4) == 0) {
            fl_chain_move(chain, &chains[b]);
            model_insert(model, model->n, fl_bytes(models[b].bytes, models[b].n));
            models[b].n = 0;
            assert_int_equal(chains[b].count, 0);
        }
        break;
    case 6: {
        size_t offset = fl_rng_below(rng, models[b].n + 1);
        n = fl_rng_below(rng, (models[b].n - offset < 200 ? models[b].n - offset : 200) + 1);
        if (model->n + n <= MODEL_MAX) {
            fl_chain_ref_range(chain, &chains[b], offset, n);
            model_insert(model, model->n, fl_bytes(models[b].bytes + offset, n));
        }
        break;
    }
    default:
        if (fl_rng_below(rng, 50) == 0) {
            fl_chain_fini(chain);
            model->n = 0;
        }
        break;
    }
}

static void random_use_matches_plain_arrays(void **state)
{
    (void)state;
    const uint64_t seed = 5;
    struct fl_rng rng;
    struct fl_budget budget = {0};
    struct fl_chain chains[CHAINS] = {0};
    struct model *models = fl_calloc(CHAINS, sizeof(*models));

    fl_rng_seed(&rng, seed);
    print_message("seed %u\n", (unsigned)seed);
    for (unsigned step = 0; step < 20000; step++) {
        one_random_step(&rng, chains, models, &budget);
        for (int i = 0; i < CHAINS; i++)
            compare(&rng, &chains[i], &models[i]);
        if (step % 16 == 0)
            assert_int_equal(fl_budget_held(&budget), reachable_bytes(chains));
    }
    for (int i = 0; i < CHAINS; i++)
        fl_chain_fini(&chains[i]);
    assert_int_equal(fl_budget_held(&budget), 0);
    fl_free(models);
}

static void different_bytes_are_seen_as_different(void **state)
{
    (void)state;
    struct fl_chain chain = {0};
    fl_chain_push(&chain, fl_slice_copy(FL_BYTES("abc"), NULL));
    fl_chain_push(&chain, fl_slice_copy(FL_BYTES("def"), NULL));
    assert_true(fl_chain_eq_bytes(&chain, FL_BYTES("abcdef")));
    assert_false(fl_chain_eq_bytes(&chain, FL_BYTES("abcdeX")));
    assert_false(fl_chain_eq_bytes(&chain, FL_BYTES("Xbcdef")));
    assert_false(fl_chain_eq_bytes(&chain, FL_BYTES("abcde")));
    assert_false(fl_chain_eq_bytes(&chain, FL_BYTES("abcdefg")));
    fl_chain_fini(&chain);
}

/* ---- threads ---- */

enum { THREADS = 4, ROUNDS = 5000 };

static void *share_and_drop(void *arg)
{
    struct fl_slice slice = *(struct fl_slice *)arg; /* the thread's own reference */
    for (int i = 0; i < ROUNDS; i++) {
        struct fl_slice other = fl_slice_sub(slice, 1, 2);
        if (other.p[0] != 'b' || other.p[1] != 'c')
            abort();
        fl_slice_unref(&other);
    }
    fl_slice_unref(&slice);
    return NULL;
}

static void references_may_be_dropped_by_any_thread(void **state)
{
    (void)state;
    for (int round = 0; round < 10; round++) {
        struct fl_budget budget = {.cap_bytes = 100};
        struct fl_slice slice = fl_slice_copy(FL_BYTES("abcd"), &budget);
        struct fl_slice mine[THREADS];
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) {
            mine[i] = fl_slice_ref(slice);
            assert_int_equal(pthread_create(&threads[i], NULL, share_and_drop, &mine[i]), 0);
        }
        fl_slice_unref(&slice); /* whoever is last frees: often not this thread */
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        assert_int_equal(fl_budget_held(&budget), 0);
    }
}

struct grabber {
    struct fl_budget *budget;
    struct fl_chunk *chunks[1000];
    size_t count;
};

static void *grab_all(void *arg)
{
    struct grabber *grabber = arg;
    while (grabber->count < FL_ARRAY_LEN(grabber->chunks)) {
        struct fl_chunk *chunk = fl_chunk_new(10, grabber->budget);
        if (chunk == NULL)
            break;
        if (fl_budget_held(grabber->budget) > grabber->budget->cap_bytes)
            abort();
        grabber->chunks[grabber->count++] = chunk;
    }
    return NULL;
}

static void threads_together_reach_the_cap_exactly(void **state)
{
    (void)state;
    struct fl_budget budget = {.cap_bytes = 9995};
    static struct grabber grabbers[THREADS];
    pthread_t threads[THREADS];
    size_t count = 0;
    for (int i = 0; i < THREADS; i++) {
        grabbers[i] = (struct grabber){.budget = &budget};
        assert_int_equal(pthread_create(&threads[i], NULL, grab_all, &grabbers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        count += grabbers[i].count;
    }
    assert_int_equal(count, 999);
    assert_int_equal(fl_budget_held(&budget), 9990);
    for (int i = 0; i < THREADS; i++) {
        for (size_t k = 0; k < grabbers[i].count; k++)
            fl_chunk_unref(grabbers[i].chunks[k]);
    }
    assert_int_equal(fl_budget_held(&budget), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_come_back_with_the_last_reference),
        cmocka_unit_test(a_chunk_beyond_the_cap_is_refused),
        cmocka_unit_test(a_chunk_without_memory_is_not_charged),
        cmocka_unit_test(reading_is_easy_below_seven_eighths),
        cmocka_unit_test(empty_and_static_slices_hold_no_chunk),
        cmocka_unit_test(random_use_matches_plain_arrays),
        cmocka_unit_test(different_bytes_are_seen_as_different),
        cmocka_unit_test(references_may_be_dropped_by_any_thread),
        cmocka_unit_test(threads_together_reach_the_cap_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
