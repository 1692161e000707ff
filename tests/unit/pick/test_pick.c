/* SPDX-License-Identifier: Apache-2.0 */
#include "pick/pick.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "fake/backend.h"

#define WAIT_MS 10000
#define RENDERED "HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n{\"token_ids\":[7,8,9]}"
#define CHAT "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"topsecret\"}]}"

struct fixture {
    struct fl_loop *loop;
    struct fl_runtime *runtime;
    struct fl_selection *service;
    struct fl_directory directory;
    struct fl_pick_log log;
    struct fl_metrics metrics;
    struct fl_pick_shared shared;
    struct fl_pick_env env;
    struct fake_backend render;
    struct fl_tokenizer *tokenizer;
    struct fl_worker_spec specs[2];
};

/* What one pick came to. */
struct seen {
    int dones, rc;
    char authority[FL_ADDR_TEXT];
    struct fl_booking booking;
    uint64_t record;
    const char *kind;
};

static void open_fixture(struct fixture *f)
{
    static struct fl_bytes adapters[] = {FL_BYTES("sql")};
    struct fl_router_config config;
    char url[128];
    *f = (struct fixture){.loop = fl_loop_new(0), .runtime = fl_runtime_new(NULL, NULL)};
    fl_router_config_init(&config);
    config.use_kv_events = false;
    config.seed = (struct fl_maybe_u64){true, 1};
    struct fl_selection_builder *builder = fl_selection_builder_new(f->runtime, FL_ROLE_AGGREGATED);
    assert_int_equal(fl_selection_builder_set_config(builder, &config), 0);
    f->service = fl_selection_build(builder, NULL);
    fl_selection_builder_free(builder);
    assert_non_null(f->service);
    for (uint64_t i = 0; i < 2; i++) {
        struct fl_worker_spec *spec = &f->specs[i];
        *spec = (struct fl_worker_spec){.worker_id = i + 1, .is_ready = true};
        spec->authority = i == 0 ? FL_BYTES("10.0.0.1:80") : FL_BYTES("10.0.0.2:80");
        spec->label = i == 0 ? FL_BYTES("w1") : FL_BYTES("w2");
        spec->lora_names = adapters;
        spec->lora_count = i == 1;
        assert_int_equal(fl_addr_parse(spec->authority, false, &spec->addr, NULL), 0);
        struct fl_worker worker = {.worker_id = i + 1,
                                   .model_name = FL_BYTES("m"),
                                   .endpoint = spec->authority,
                                   .block_size = 16};
        assert_int_equal(fl_selection_upsert_worker(f->service, &worker, NULL, NULL), 0);
    }
    fl_directory_init(&f->directory);
    fl_directory_publish(&f->directory, f->specs, 2);
    fl_pick_log_init(&f->log);
    fl_metrics_init(&f->metrics, fl_pick_metric_descs, FL_PICK_METRIC_COUNT, 1, NULL);
    fake_backend_start(&f->render, f->loop, "render");
    f->render.reply = RENDERED;
    snprintf(url, sizeof(url), "http://%s", f->render.address);
    struct fl_tokenizer_config tokenizer = {.protocol = FL_TOKENIZER_VLLM_RENDER,
                                            .url = url,
                                            .timeout_ms = 5000,
                                            .max_response_bytes = 1 << 20,
                                            .max_idle = 4};
    assert_int_equal(fl_tokenizer_new(f->loop, &tokenizer, &f->tokenizer, NULL), 0);
    f->shared.service = f->service;
    f->shared.directory = &f->directory;
    f->shared.log = &f->log;
    f->shared.metrics = &f->metrics;
    f->shared.source = "epp";
    f->shared.model = FL_BYTES("m");
    f->shared.max_in_flight = 1024;
    atomic_store(&f->shared.can_route, true);
    fl_pick_env_init(&f->env, f->loop, &f->shared, f->tokenizer);
}

/* Every test ends with no permit held and nothing booked. */
static void close_fixture(struct fixture *f)
{
    struct fl_selection_totals totals;
    uint64_t freed = 0;
    fl_selection_totals(f->service, &totals);
    for (int i = 0; i < FL_FREE_CAUSE_COUNT; i++)
        freed += totals.freed[i];
    assert_int_equal(totals.held, 0);
    assert_int_equal(totals.booked, freed);
    assert_int_equal(atomic_load(&f->shared.in_flight), 0);
    fl_tokenizer_free(f->tokenizer);
    fake_backend_stop(&f->render);
    fl_pick_env_fini(&f->env);
    fl_selection_free(f->service);
    fl_runtime_free(f->runtime);
    fl_loop_free(f->loop);
    fl_directory_fini(&f->directory);
    fl_pick_log_fini(&f->log);
    fl_metrics_fini(&f->metrics);
}

static void on_done(void *owner, struct fl_pick_outcome *outcome)
{
    struct seen *seen = owner;
    seen->dones++;
    seen->rc = outcome->rc;
    snprintf(seen->authority, sizeof(seen->authority), "%s", outcome->authority);
    seen->booking = fl_booking_take(&outcome->booking);
    seen->record = outcome->record;
    seen->kind = outcome->record_of->kind;
}

#define TURN_UNTIL(f, condition)                                                                   \
    do {                                                                                           \
        uint64_t deadline_ = fl_clock_ns() + UINT64_C(1000000) * WAIT_MS;                          \
        while (!(condition)) {                                                                     \
            if (fl_clock_ns() > deadline_)                                                         \
                fail_msg("%s:%d: waited in vain for: %s", __FILE__, __LINE__, #condition);         \
            fl_loop_turn((f)->loop, 5);                                                            \
        }                                                                                          \
    } while (0)

static struct fl_fields no_fields;

/* One request that a test may leave waiting. */
struct asked {
    struct fl_chain body;
    struct fl_pick_request request;
    struct fl_pick *pick;
    struct seen seen;
};

static void ask(struct fixture *f, struct asked *asked, const char *path, const char *body,
                const char *subset)
{
    static struct fl_bytes item;
    *asked = (struct asked){0};
    if (body != NULL)
        fl_chain_push(&asked->body, fl_slice_copy(fl_bytes_of(body), NULL));
    item = subset != NULL ? fl_bytes_of(subset) : (struct fl_bytes){0};
    asked->request = (struct fl_pick_request){.method = FL_BYTES("POST"),
                                              .path = fl_bytes_of(path),
                                              .fields = &no_fields,
                                              .body = &asked->body,
                                              .request_id = FL_BYTES("r-1"),
                                              .has_subset = subset != NULL,
                                              .subset = &item,
                                              .subset_count = subset != NULL};
    asked->pick = fl_pick_start(&f->env, &asked->request, on_done, &asked->seen);
}

static void settle(struct fixture *f, struct asked *asked)
{
    TURN_UNTIL(f, asked->seen.dones > 0);
    assert_int_equal(asked->seen.dones, 1);
    fl_chain_fini(&asked->body);
    fl_booking_free(&asked->seen.booking, FL_FREE_DONE);
    assert_false(fl_booking_free(&asked->seen.booking, FL_FREE_DONE));
}

/* epp.md 7.1, 7.2, 10.2; 24.3 rows 5, 7, 47 (what each request comes to, booked or not, and whether
 * the tokenizer was asked) */
static void requests_and_what_they_come_to(void **state)
{
    (void)state;
    static const struct {
        const char *why, *path, *body, *subset;
        int rc;
        bool is_booked;
        uint32_t rendered;
        const char *authority;
    } rows[] = {
        {"chat", "/v1/chat/completions", CHAT, NULL, 0, true, 1, NULL},
        {"completions in words", "/v1/completions", "{\"model\":\"m\",\"prompt\":\"a\"}", NULL, 0,
         true, 1, NULL},
        {"token array", "/v1/completions", "{\"model\":\"m\",\"prompt\":[1,2,3]}", NULL, 0, true, 0,
         NULL},
        {"token arrays", "/v1/completions", "{\"model\":\"m\",\"prompt\":[[1],[2,3]]}", NULL, 0,
         true, 0, NULL},
        {"completions without a prompt", "/v1/completions", "{\"model\":\"m\"}", NULL, FL_EBAD_BODY,
         false, 0, NULL},
        {"load only", "/v1/embeddings", "{\"model\":\"m\",\"input\":\"a\"}", NULL, 0, true, 0,
         NULL},
        {"no body", "/v1/models", NULL, NULL, 0, false, 0, NULL},
        {"no body, subset", "/v1/models", NULL, "10.0.0.2", 0, false, 0, "10.0.0.2:80"},
        {"subset", "/v1/chat/completions", CHAT, "10.0.0.2:80", 0, true, 1, "10.0.0.2:80"},
        {"subset of nobody", "/v1/chat/completions", CHAT, "10.0.0.9", FL_ENO_ENDPOINTS, false, 0,
         NULL},
        {"another model", "/v1/chat/completions", "{\"model\":\"n\",\"messages\":[]}", NULL,
         FL_EMODEL_NOT_FOUND, false, 0, NULL},
        {"no model", "/v1/chat/completions", "{\"messages\":[]}", NULL, FL_EBAD_BODY, false, 0,
         NULL},
        {"model no text", "/v1/chat/completions", "{\"model\":1,\"messages\":[]}", NULL,
         FL_EBAD_BODY, false, 0, NULL},
        {"an adapter of one worker", "/v1/completions", "{\"model\":\"sql\",\"prompt\":[1]}", NULL,
         0, true, 0, "10.0.0.2:80"},
        {"its worker is not in the subset", "/v1/completions", "{\"model\":\"sql\",\"prompt\":[1]}",
         "10.0.0.1", FL_ENO_ENDPOINTS, false, 0, NULL},
        {"no JSON", "/v1/chat/completions", "{", NULL, FL_EBAD_BODY, false, 0, NULL},
    };
    struct fixture f;
    open_fixture(&f);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct asked asked;
        uint32_t before = f.render.requests;
        ask(&f, &asked, rows[i].path, rows[i].body, rows[i].subset);
        TURN_UNTIL(&f, asked.seen.dones > 0);
        bool is_booked = asked.seen.booking.state == FL_BOOKING_BOOKED;
        if (asked.seen.rc != rows[i].rc || is_booked != rows[i].is_booked ||
            f.render.requests - before != rows[i].rendered ||
            (rows[i].authority != NULL && strcmp(rows[i].authority, asked.seen.authority) != 0))
            fail_msg("row %zu: %s: rc %d booked %d rendered %u at %s", i, rows[i].why,
                     asked.seen.rc, is_booked, f.render.requests - before, asked.seen.authority);
        settle(&f, &asked);
    }
    close_fixture(&f);
}

/* epp.md 13.1, of 24.3 row 15 (a cap of 3: one above it is refused at once, the others go on) */
static void one_pick_above_the_cap_is_refused(void **state)
{
    (void)state;
    struct fixture f;
    struct asked asked[4];
    open_fixture(&f);
    f.shared.max_in_flight = 3;
    f.render.mode = FAKE_BACKEND_HOLD;
    for (int i = 0; i < 4; i++)
        ask(&f, &asked[i], "/v1/chat/completions", CHAT, NULL);
    assert_int_equal(asked[3].seen.dones, 1);
    assert_int_equal(asked[3].seen.rc, FL_EEPP_OVERLOADED);
    settle(&f, &asked[3]);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(asked[i].seen.dones, 0);
        fl_pick_cancel(asked[i].pick, FL_FREE_CLIENT_GONE);
        fl_chain_fini(&asked[i].body);
    }
    close_fixture(&f);
}

/* epp.md 24.3 row 9 (stream reset while tokenizing: connection aborted, nothing is selected) */
static void cancel_while_tokenizing_books_nothing(void **state)
{
    (void)state;
    struct fixture f;
    struct asked asked;
    struct fl_selection_totals totals;
    open_fixture(&f);
    f.render.mode = FAKE_BACKEND_HOLD;
    ask(&f, &asked, "/v1/chat/completions", CHAT, NULL);
    TURN_UNTIL(&f, f.render.requests == 1);
    fl_pick_cancel(asked.pick, FL_FREE_CLIENT_GONE);
    fl_chain_fini(&asked.body);
    TURN_UNTIL(&f, f.render.cut == 1);
    assert_int_equal(asked.seen.dones, 0);
    fl_selection_totals(f.service, &totals);
    assert_int_equal(totals.booked, 0);
    close_fixture(&f);
}

/* epp.md 10.4 edge 6, of 24.3 row 11 only the count: a selection that does not queue is booked and
 * handed over inside fl_pick_start(), so the stream's reset can only come after; each booking is
 * freed once. The race of a cancel with a queued selection's mail is not shown here. */
static void a_thousand_resets_at_the_booking_leave_nothing(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_selection_totals totals;
    open_fixture(&f);
    for (int i = 0; i < 1000; i++) {
        struct asked asked;
        ask(&f, &asked, "/v1/completions", "{\"model\":\"m\",\"prompt\":[1,2,3]}", NULL);
        assert_int_equal(asked.seen.dones, 1);
        assert_null(asked.pick);
        assert_true(fl_booking_free(&asked.seen.booking, FL_FREE_CLIENT_GONE));
        fl_chain_fini(&asked.body);
    }
    fl_selection_totals(f.service, &totals);
    assert_int_equal(totals.booked, 1000);
    assert_int_equal(totals.freed[FL_FREE_CLIENT_GONE], 1000);
    close_fixture(&f);
}

/* epp.md 10.2 steps 1, 2, 10 and epp.md 24.3 row 16 */
static void states_that_refuse(void **state)
{
    (void)state;
    struct fixture f;
    struct asked asked;
    open_fixture(&f);
    atomic_store(&f.shared.can_route, false);
    ask(&f, &asked, "/v1/chat/completions", CHAT, NULL);
    assert_int_equal(asked.seen.rc, FL_EEPP_NOT_READY);
    settle(&f, &asked);
    atomic_store(&f.shared.can_route, true);

    f.render.mode = FAKE_BACKEND_HOLD;
    ask(&f, &asked, "/v1/chat/completions", CHAT, NULL);
    TURN_UNTIL(&f, f.render.requests == 1);
    fl_directory_publish(&f.directory, f.specs, 0); /* the selector still knows them */
    fake_backend_send(&f.render, RENDERED);
    TURN_UNTIL(&f, asked.seen.dones == 1);
    assert_int_equal(asked.seen.rc, FL_ENO_ENDPOINTS);
    assert_int_equal(asked.seen.booking.state, FL_BOOKING_EMPTY);
    settle(&f, &asked);

    ask(&f, &asked, "/v1/chat/completions", CHAT, NULL);
    assert_int_equal(asked.seen.rc, FL_ENO_ENDPOINTS);
    settle(&f, &asked);
    close_fixture(&f);
}

/* epp.md 19.6, of 24.3 row 42 (the log has the pick with its candidates; never prompt or ids) */
static void the_log_holds_the_pick_and_not_the_prompt(void **state)
{
    (void)state;
    struct fixture f;
    struct asked asked;
    struct fl_buf out = {0};
    char text[16384];
    open_fixture(&f);
    ask(&f, &asked, "/v1/chat/completions", CHAT, NULL);
    settle(&f, &asked);
    assert_true(asked.seen.record > 0);
    struct fl_pick_naming naming = {"epp", "aggregated", &f.directory};
    struct fl_pick_filter filter = {.limit = 10, .request_id = FL_BYTES("r-1")};
    assert_int_equal(fl_pick_log_write(&f.log, f.service, &naming, &filter, &out), 0);
    assert_true(fl_bytes_to_cstr(fl_buf_bytes(&out), text, sizeof(text)));
    assert_null(strstr(text, "topsecret"));
    assert_null(strstr(text, "7,8,9"));
    assert_non_null(strstr(text, "\"request_id\":\"r-1\""));
    assert_non_null(strstr(text, "\"outcome\":\"picked\""));
    assert_non_null(strstr(text, "\"candidates\":[{\"worker\":\"w"));
    fl_buf_fini(&out);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_and_what_they_come_to),
        cmocka_unit_test(one_pick_above_the_cap_is_refused),
        cmocka_unit_test(cancel_while_tokenizing_books_nothing),
        cmocka_unit_test(a_thousand_resets_at_the_booking_leave_nothing),
        cmocka_unit_test(states_that_refuse),
        cmocka_unit_test(the_log_holds_the_pick_and_not_the_prompt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
