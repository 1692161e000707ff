/* SPDX-License-Identifier: Apache-2.0 */
/* Both faces over both versions, plain and TLS; then random exchanges that are aborted, answered
 * early, consumed late and left alone at random. Whatever happens, each ends once and nothing is
 * lost or leaked. */
#include <time.h>

#include "base/rng.h"
#include "fixture.h"
#include "net/tls.h"

/* ---- TLS: gateway.md 7.4, 9.1 ---- */

static void alpn_decides_on_tls(void **state)
{
    (void)state;
    static const char *const both[] = {"h2", "http/1.1", NULL};
    static const char *const h2[] = {"h2", NULL};
    static const char *const h1[] = {"http/1.1", NULL};
    static const struct {
        const char *why;
        const char *const *server, *const *client;
        enum fl_web_protocol protocol;
        bool works;
    } rows[] = {
        {"HTTP/2 agreed", both, h2, FL_WEB_H2, true},
        {"HTTP/1.1 agreed", both, h1, FL_WEB_HTTP1, true},
        {"no ALPN means HTTP/1.1", both, NULL, FL_WEB_HTTP1, true},
        {"HTTP/2 wanted, not had", h1, h2, FL_WEB_H2, false},
        {"HTTP/2 wanted, no ALPN", NULL, h2, FL_WEB_H2, false},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fixture f;
        struct seen seen = {0};
        struct fl_tls_context *server_tls, *client_tls;
        struct fl_error err = {0};
        const struct fl_tls_server_config server_config = {.alpn = rows[i].server};
        const struct fl_tls_client_config client_config = {.alpn = rows[i].client};
        assert_int_equal(fl_tls_server_new(&server_config, &server_tls, &err), 0);
        assert_int_equal(fl_tls_client_new(&client_config, &client_tls, &err), 0);
        fixture_init(&f);
        f.server_config.tls = server_tls;
        fixture_listen(&f, true);
        struct fl_web_target target = target_of(&f, rows[i].protocol);
        target.tls = client_tls;
        seen.x = fl_web_pool_open(f.pool, &target, false, &seen_handler, &seen);
        struct fl_head head = {.method = FL_BYTES("GET"),
                               .scheme = FL_BYTES("https"),
                               .authority = FL_BYTES("t"),
                               .target = FL_BYTES("/hello"),
                               .arena = fl_exchange_arena(seen.x)};
        fl_exchange_send_head(seen.x, &head, true);
        TURN_UNTIL(&f, seen.closes == 1);
        if (rows[i].works) {
            assert_int_equal(seen.rc, 0);
            assert_body(&seen, "hello");
        } else if (seen.rc != FL_ETLS) {
            fail_msg("%s: %d", rows[i].why, seen.rc);
        }
        seen_reset(&seen);
        fixture_fini(&f);
        fl_tls_unref(server_tls);
        fl_tls_unref(client_tls);
    }
}

/* ---- random exchanges ---- */

#define RUNNING 24
#define TOTAL 1500

struct soak {
    struct fixture f;
    struct fl_rng rng;
    int started, client_closes, server_opens, server_closes, completed;
    struct one *running[RUNNING];
    struct fl_link servers;
};

/* One side of an exchange. */
struct one {
    struct soak *soak;
    struct fl_exchange *x;
    bool is_server, is_head_sent, is_sent;
    size_t to_send, held;
    uint64_t got, sent;
    uint64_t declared; /* server's x-test: what it will send */
    bool is_ended;
    int slot;
    struct fl_link link; /* of soak.servers */
};

static void one_on_close(void *owner, struct fl_exchange *x, int rc)
{
    struct one *one = owner;
    struct soak *soak = one->soak;
    assert_ptr_equal(one->x, x);
    if (one->is_server) {
        fl_link_unlink(&one->link);
        soak->server_closes++;
    } else {
        soak->client_closes++;
        soak->running[one->slot] = NULL;
        if (rc == 0) {
            assert_true(one->is_ended);
            if (one->declared != UINT64_MAX)
                assert_int_equal(one->got, one->declared);
            soak->completed++;
        }
    }
    fl_free(one);
}

static void one_on_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
{
    struct one *one = owner;
    for (size_t i = 0; i < slice.n; i += 97)
        assert_int_equal(slice.p[i], (uint8_t)('a' + (one->got + i) % 26));
    one->got += slice.n;
    if (fl_rng_below(&one->soak->rng, 4) == 0)
        one->held += slice.n;
    else
        fl_exchange_consume(x, slice.n);
    fl_slice_unref(&slice);
}

static void one_on_end(void *owner, struct fl_exchange *x, const struct fl_fields *trailers)
{
    struct one *one = owner;
    (void)x;
    (void)trailers;
    assert_false(one->is_ended);
    one->is_ended = true;
}

static void one_on_head(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    struct one *one = owner;
    if (is_end)
        one_on_end(owner, x, NULL);
    uint64_t declared;
    if (fl_bytes_to_u64(fl_fields_get(&head->fields, FL_BYTES("x-test")), UINT64_MAX, &declared))
        one->declared = declared;
}

static const struct fl_exchange_handler one_handler = {
    .on_head = one_on_head,
    .on_body = one_on_body,
    .on_end = one_on_end,
    .on_close = one_on_close,
};

static size_t random_size(struct fl_rng *rng)
{
    static const size_t limits[] = {1, 100, 5000, 70000, 600000};
    return fl_rng_below(rng, limits[fl_rng_below(rng, FL_ARRAY_LEN(limits))]);
}

static void soak_on_request(void *owner, struct fl_exchange *x)
{
    struct fixture *f = owner;
    struct soak *soak = FL_CONTAINER_OF(f, struct soak, f);
    struct one *one = fl_calloc(1, sizeof(*one));
    one->soak = soak;
    one->x = x;
    one->is_server = true;
    one->declared = UINT64_MAX;
    one->to_send = random_size(&soak->rng);
    soak->server_opens++;
    fl_exchange_set_handler(x, &one_handler, one);
    fl_link_init(&one->link);
    fl_link_push_tail(&soak->servers, &one->link);
}

/* A random step. Callbacks come from the loop only, so `one` lives until the next turn. */
static void step(struct one *one)
{
    struct fl_rng *rng = &one->soak->rng;
    uint64_t dice = fl_rng_below(rng, 100);

    if (dice < 2) {
        fl_exchange_abort(one->x, dice == 0 ? 8 : 2);
        one->is_sent = true;
        return;
    }
    if (one->held > 0 && dice < 60) {
        fl_exchange_consume(one->x, one->held);
        one->held = 0;
    }
    if (one->is_sent || (one->is_server && !one->is_ended && dice < 95))
        return; /* a server mostly waits for the whole request */
    if (one->is_server && !one->is_head_sent) {
        char text[24];
        struct fl_arena *arena = fl_exchange_arena(one->x);
        snprintf(text, sizeof(text), "%zu", one->to_send);
        struct fl_head head = {.status = 200,
                               .body = dice % 2 ? FL_BODY_LENGTH : FL_BODY_STREAM,
                               .content_length = dice % 2 ? one->to_send : UINT64_MAX,
                               .arena = arena};
        fl_fields_add(&head.fields, arena, FL_BYTES("x-test"), fl_bytes_of(text));
        fl_exchange_send_head(one->x, &head, false);
        one->is_head_sent = true;
    }
    while (one->to_send > 0 && fl_exchange_queued(one->x) < FL_EXCHANGE_HIGH_BYTES) {
        static uint8_t letters[26 * 4096];
        if (letters[0] == 0)
            for (size_t i = 0; i < sizeof(letters); i++)
                letters[i] = (uint8_t)('a' + i % 26);
        size_t n = 1 + fl_rng_below(rng, 40000);
        n = n < one->to_send ? n : one->to_send;
        fl_exchange_send_body_copy(one->x, fl_bytes(letters + one->sent % 26, n));
        one->sent += n;
        one->to_send -= n;
    }
    if (one->to_send == 0) {
        fl_exchange_send_end(one->x, NULL);
        one->is_sent = true;
    }
}

static void start_client(struct soak *soak, int slot)
{
    struct one *one = fl_calloc(1, sizeof(*one));
    enum fl_web_protocol protocol = fl_rng_below(&soak->rng, 2) == 0 ? FL_WEB_HTTP1 : FL_WEB_H2;
    struct fl_web_target target = target_of(&soak->f, protocol);
    one->soak = soak;
    one->slot = slot;
    one->declared = UINT64_MAX;
    one->to_send = random_size(&soak->rng);
    soak->running[slot] = one;
    soak->started++;
    one->x = fl_web_pool_open(soak->f.pool, &target, fl_rng_below(&soak->rng, 8) == 0, &one_handler,
                              one);
    bool has_length = fl_rng_below(&soak->rng, 2) == 0;
    struct fl_head head = {.method = FL_BYTES("POST"),
                           .scheme = FL_BYTES("http"),
                           .authority = FL_BYTES("t"),
                           .target = FL_BYTES("/"),
                           .body = has_length ? FL_BODY_LENGTH : FL_BODY_STREAM,
                           .content_length = has_length ? one->to_send : UINT64_MAX,
                           .arena = fl_exchange_arena(one->x)};
    fl_exchange_send_head(one->x, &head, false);
    one->is_head_sent = true;
}

static void random_exchanges_all_end_once(void **state)
{
    (void)state;
    static struct soak soak;
    memset(&soak, 0, sizeof(soak));
    fl_link_init(&soak.servers);
    uint64_t seed = (uint64_t)time(NULL);
    fl_rng_seed(&soak.rng, seed);
    fixture_init(&soak.f);
    soak.f.server_config.on_request = soak_on_request;
    soak.f.server_config.h2_max_streams = 6;
    soak.f.server_config.budget = &soak.f.budget;
    fixture_listen(&soak.f, true);
    uint64_t deadline_ms = now_ms() + 20000;
    while (soak.client_closes < TOTAL || soak.server_closes < soak.server_opens) {
        if (now_ms() > deadline_ms)
            fail_msg("seed %llu: %d started, %d and %d closed of %d, %d", (unsigned long long)seed,
                     soak.started, soak.client_closes, soak.server_closes, soak.started,
                     soak.server_opens);
        for (int i = 0; i < RUNNING; i++) {
            if (soak.running[i] != NULL)
                step(soak.running[i]);
            else if (soak.started < TOTAL)
                start_client(&soak, i);
        }
        FL_LINK_FOREACH(link, &soak.servers)
        {
            step(FL_CONTAINER_OF(link, struct one, link));
        }
        fl_loop_turn(soak.f.loop, 1);
    }
    /* Most complete: about one in four is aborted by either side. */
    assert_true(soak.completed > TOTAL / 4);
    fixture_fini(&soak.f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alpn_decides_on_tls),
        cmocka_unit_test(random_exchanges_all_end_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
