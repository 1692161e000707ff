/* SPDX-License-Identifier: Apache-2.0 */
/* Both ends of ext_proc over real connections on one loop: our client against our server, a raw
 * client against our server, and our client against a scripted picker. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "extproc/client.h"
#include "extproc/server.h"
#include "http2/grpc.h"
#include "unit/extproc/wire.h"

#define WAIT_MS 10000

/* ---- one loop with a picker's server and a client's pool ---- */

enum script {
    SCRIPT_ANSWER, /* inside on_pick */
    SCRIPT_REFUSE, /* inside on_pick: no_endpoints */
    SCRIPT_HOLD,   /* the test answers */
    /* a scripted picker instead of ours: */
    SCRIPT_SILENT,            /* takes everything, sends nothing at all */
    SCRIPT_CLOSE,             /* ends the stream with status 14 at once */
    SCRIPT_CLOSE_OK,          /* ends it with OK at once */
    SCRIPT_RESET,             /* resets it */
    SCRIPT_REFUSED,           /* REFUSED_STREAM: never processed */
    SCRIPT_REFUSED_ONCE,      /* the first time; then our picker answers */
    SCRIPT_GARBAGE,           /* answers with bytes that are no message */
    SCRIPT_HUGE,              /* announces a message above the cap */
    SCRIPT_NOT_GRPC,          /* answers 200 text/html */
    SCRIPT_TRAILERS_ONLY,     /* status 12 in one head */
    SCRIPT_DECIDE_AND_END,    /* decides on the first message, then ends with OK */
    SCRIPT_DECIDE_THEN_EVICT, /* decides; evicts when the response head comes */
};

struct world {
    struct fl_loop *loop;
    struct fl_listener *listener;
    struct fl_web_server *web;
    struct fl_extproc_server *server;
    struct fl_web_pool *pool;
    struct fl_extproc_peer *peer;
    struct fl_addr addr;
    struct fl_budget budget;
    enum script script;
    /* the picker's side */
    struct fl_extproc_stream *stream; /* the last one that asked */
    int picks, cancels, responses, first_tokens, ends, closes, streams_seen;
    size_t tapped_bytes, asked_bytes;
    enum fl_extproc_end end;
    char served[64], id[64];
    struct fl_exchange *raw_x; /* of a scripted picker */
    struct fl_chain raw_in;
    int raw_closes;
    bool raw_has_end;
    /* the gateway's side */
    struct fl_arena arena;
    struct fl_head head;
    struct fl_chain kept;
    struct fl_extproc_call *call;
    int decisions, evictions;
};

static uint64_t now_ms(void)
{
    return fl_clock_ns() / 1000000;
}

#define TURN_UNTIL(w, condition)                                                                   \
    do {                                                                                           \
        uint64_t deadline_ = now_ms() + WAIT_MS;                                                   \
        while (!(condition)) {                                                                     \
            if (now_ms() > deadline_)                                                              \
                fail_msg("line %d: waited in vain for: %s", __LINE__, #condition);                 \
            fl_loop_turn((w)->loop, 5);                                                            \
        }                                                                                          \
    } while (0)

static const struct fl_picker_decision ten_seven = {
    .endpoint = {(const uint8_t *)"10.0.0.7:8000", 13}};

static void on_pick(void *owner, struct fl_extproc_stream *stream,
                    const struct fl_picker_question *question)
{
    struct world *w = owner;
    w->picks++;
    w->stream = stream;
    w->asked_bytes = question->body->bytes;
    snprintf(w->id, sizeof(w->id), "%.*s", FL_FMT(question->request_id));
    fl_extproc_stream_set_user(stream, w);
    if (w->script == SCRIPT_ANSWER)
        fl_extproc_stream_answer(stream, &ten_seven);
    else if (w->script == SCRIPT_REFUSE)
        fl_extproc_stream_fail(stream, FL_ENO_ENDPOINTS, 0);
}

static void on_pick_cancelled(void *owner, struct fl_extproc_stream *stream)
{
    struct world *w = owner;
    assert_ptr_equal(fl_extproc_stream_user(stream), w);
    w->cancels++;
}

static void on_response(void *owner, struct fl_extproc_stream *stream, int status,
                        const struct fl_fields *headers, struct fl_bytes served)
{
    struct world *w = owner;
    (void)stream, (void)headers;
    assert_int_equal(status, 200);
    w->responses++;
    snprintf(w->served, sizeof(w->served), "%.*s", FL_FMT(served));
}

static void on_first_token(void *owner, struct fl_extproc_stream *stream)
{
    struct world *w = owner;
    (void)stream;
    w->first_tokens++;
}

static void on_response_body(void *owner, struct fl_extproc_stream *stream, struct fl_bytes piece)
{
    struct world *w = owner;
    (void)stream;
    w->tapped_bytes += piece.n;
}

static void on_response_end(void *owner, struct fl_extproc_stream *stream)
{
    struct world *w = owner;
    (void)stream;
    w->ends++;
}

static void on_stream_close(void *owner, struct fl_extproc_stream *stream, enum fl_extproc_end end)
{
    struct world *w = owner;
    (void)stream;
    w->closes++;
    w->end = end;
    w->stream = NULL;
}

/* ---- a scripted picker on the same port ---- */

static const char decision_wire[] =
    "0a33 0a31 122f 0a2d 0a2b 0a1e'x-gateway-destination-endpoint' 1a09'1.1.1.1:1'";

static void raw_send(struct world *w, const char *wire)
{
    uint8_t bytes[1024];
    size_t n = wire_bytes(wire, bytes, sizeof(bytes));
    fl_exchange_send_body(w->raw_x, fl_grpc_frame(fl_bytes(bytes, n)));
}

static void raw_status(struct world *w, int status)
{
    struct fl_fields trailers = {0};
    fl_grpc_add_status(&trailers, fl_exchange_arena(w->raw_x), status, FL_BYTES("scripted"));
    fl_exchange_send_end(w->raw_x, &trailers);
}

static void raw_on_head(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    (void)owner, (void)x, (void)head, (void)is_end;
}

static void raw_on_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
{
    struct world *w = owner;
    bool was_empty = w->raw_in.bytes == 0;
    fl_exchange_consume(x, slice.n);
    fl_chain_push(&w->raw_in, slice);
    if (w->script == SCRIPT_DECIDE_THEN_EVICT && !was_empty) {
        raw_send(w, "3a0c 0a03 08ad03 1a05'evict'");
        raw_status(w, 0);
        w->script = SCRIPT_SILENT;
    }
}

static void raw_on_end(void *owner, struct fl_exchange *x, const struct fl_fields *trailers)
{
    struct world *w = owner;
    (void)x, (void)trailers;
    w->raw_has_end = true;
}

static void raw_on_close(void *owner, struct fl_exchange *x, int rc)
{
    struct world *w = owner;
    (void)x, (void)rc;
    w->raw_closes++;
    w->raw_x = NULL;
}

static const struct fl_exchange_handler raw_handler = {
    .on_head = raw_on_head, .on_body = raw_on_body, .on_end = raw_on_end, .on_close = raw_on_close};

static void raw_begin(struct world *w)
{
    struct fl_arena *arena = fl_exchange_arena(w->raw_x);
    struct fl_head head;

    fl_grpc_response_head(&head, arena);
    switch (w->script) {
    case SCRIPT_SILENT:
        return;
    case SCRIPT_RESET:
        fl_exchange_abort(w->raw_x, 2);
        return;
    case SCRIPT_REFUSED_ONCE:
        w->script = SCRIPT_ANSWER;
        fl_exchange_abort(w->raw_x, 7);
        return;
    case SCRIPT_REFUSED:
        fl_exchange_abort(w->raw_x, 7);
        return;
    case SCRIPT_NOT_GRPC:
        fl_exchange_respond(w->raw_x, 200, "text/html", FL_BYTES("hello"), NULL);
        return;
    case SCRIPT_TRAILERS_ONLY:
        fl_grpc_add_status(&head.fields, arena, 12, FL_BYTES("unknown"));
        fl_exchange_send_head(w->raw_x, &head, true);
        return;
    default:
        break;
    }
    fl_exchange_send_head(w->raw_x, &head, false);
    switch (w->script) {
    case SCRIPT_CLOSE:
        raw_status(w, 14);
        break;
    case SCRIPT_CLOSE_OK:
        raw_status(w, 0);
        break;
    case SCRIPT_GARBAGE:
        raw_send(w, "0000");
        break;
    case SCRIPT_HUGE:
        fl_exchange_send_body_copy(w->raw_x, FL_BYTES("\0\x7f\xff\xff\xff"));
        break;
    case SCRIPT_DECIDE_AND_END:
        raw_send(w, decision_wire);
        raw_status(w, 0);
        break;
    case SCRIPT_DECIDE_THEN_EVICT:
        raw_send(w, decision_wire);
        break;
    default:
        break;
    }
}

/* Paths that are not ours: the service that shares the port, in tests the scripted picker. */
static bool on_other(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    (void)is_end;
    if (!fl_bytes_eq(head->target, FL_BYTES("/grpc.health.v1.Health/Check")))
        return false;
    fl_exchange_set_handler(x, &raw_handler, owner);
    fl_exchange_respond(x, 200, "text/plain", FL_BYTES("healthy"), NULL);
    return true;
}

static void on_request(void *owner, struct fl_exchange *x)
{
    struct world *w = owner;
    w->streams_seen++;
    if (w->script < SCRIPT_SILENT) {
        fl_extproc_server_on_request(w->server, x);
        return;
    }
    w->raw_x = x;
    fl_exchange_set_handler(x, &raw_handler, w);
    raw_begin(w);
}

static const struct fl_extproc_server_ops server_ops = {
    .on_pick = on_pick,
    .on_pick_cancelled = on_pick_cancelled,
    .on_response = on_response,
    .on_first_token = on_first_token,
    .on_response_body = on_response_body,
    .on_response_end = on_response_end,
    .on_close = on_stream_close,
    .on_other = on_other,
};

static void on_accept(void *owner, int fd, const struct fl_addr *peer)
{
    struct world *w = owner;
    (void)peer;
    fl_web_server_accept(w->web, fd);
}

static void open_listener(struct world *w, const struct fl_addr *addr)
{
    struct fl_error err = {0};
    if (fl_listener_open(addr, false, &w->listener, &err) < 0)
        fail_msg("%s", err.text);
    w->addr = *fl_listener_addr(w->listener);
    fl_listener_start(w->listener, w->loop, on_accept, w);
}

static void open_web(struct world *w)
{
    const struct fl_web_server_config config = {.http2 = true,
                                                .max_header_bytes = 65536,
                                                .max_headers = 200,
                                                .head_timeout_ms = 10000,
                                                .idle_timeout_ms = 60000,
                                                .max_connections = 100,
                                                .h2_max_streams = 10000,
                                                .h2_reset_burst = 20000,
                                                .h2_reset_rate = 2000,
                                                .budget = &w->budget,
                                                .on_request = on_request,
                                                .owner = w};
    w->web = fl_web_server_new(w->loop, &config);
}

static void open_peer(struct world *w)
{
    const struct fl_extproc_peer_config config = {
        .target = {.addr = w->addr, .protocol = FL_WEB_H2, .connect_timeout_ms = 5000},
        .authority = "epp:9002",
        .user_agent = "fairlead-gateway/test"};
    w->peer = fl_extproc_peer_new(w->loop, w->pool, &config);
}

static void open_world(struct world *w, enum script script, size_t budget_bytes)
{
    const struct fl_extproc_server_config config = {
        .picker = {.body_mode = FL_EXTPROC_BODY_FULL_DUPLEX, .max_body_bytes = 10 << 20},
        .budget = &w->budget};
    const struct fl_web_pool_config pool = {.max_idle_per_target = 4,
                                            .max_idle_ms = 55000,
                                            .max_header_bytes = 65536,
                                            .max_headers = 200};
    struct fl_addr any;

    *w = (struct world){.script = script};
    w->budget.cap_bytes = budget_bytes;
    w->loop = fl_loop_new(0);
    assert_int_equal(fl_addr_parse(FL_BYTES("127.0.0.1:0"), true, &any, NULL), 0);
    open_listener(w, &any);
    open_web(w);
    w->server = fl_extproc_server_new(w->loop, &config, &server_ops, w);
    w->pool = fl_web_pool_new(w->loop, &pool);
    open_peer(w);
    fl_arena_init(&w->arena, 0);
    w->head = (struct fl_head){.method = FL_BYTES("POST"),
                               .target = FL_BYTES("/v1/completions"),
                               .authority = FL_BYTES("h"),
                               .arena = &w->arena};
    fl_fields_add(&w->head.fields, &w->arena, FL_BYTES("x-request-id"), FL_BYTES("r1"));
}

static void close_world(struct world *w)
{
    fl_extproc_peer_free(w->peer);
    fl_web_pool_free(w->pool);
    fl_extproc_server_free(w->server);
    if (w->web != NULL)
        fl_web_server_free(w->web);
    fl_listener_close(w->listener);
    for (int i = 0; i < 3; i++)
        fl_loop_turn(w->loop, 1);
    fl_loop_free(w->loop);
    fl_chain_fini(&w->kept);
    fl_chain_fini(&w->raw_in);
    fl_arena_fini(&w->arena);
    assert_int_equal(fl_budget_held(&w->budget), 0);
}

/* ---- the gateway's side ---- */

static void on_decision(void *owner, struct fl_extproc_call *call)
{
    struct world *w = owner;
    assert_ptr_equal(call, w->call);
    w->decisions++;
}

static void on_eviction(void *owner, struct fl_extproc_call *call)
{
    struct world *w = owner;
    (void)call;
    w->evictions++;
}

static const struct fl_extproc_call_ops call_ops = {.on_decision = on_decision,
                                                    .on_eviction = on_eviction};

static void ask(struct world *w, bool has_body, uint64_t timeout_ms)
{
    static const struct fl_bytes subset = {(const uint8_t *)"10.0.0.7:8000", 13};
    const struct fl_extproc_question question = {
        .caller = {.max_body_bytes = 10 << 20, .tap = FL_CALLER_TAP_ALL},
        .head = &w->head,
        .scheme = FL_BYTES("http"),
        .arena = &w->arena,
        .kept = has_body ? &w->kept : NULL,
        .subset = &subset,
        .subset_count = 1,
        .timeout_ms = timeout_ms};
    w->decisions = w->evictions = 0;
    w->call = fl_extproc_call_open(w->peer, &question, &call_ops, w);
}

static void upload(struct world *w, size_t n, bool is_end)
{
    while (n > 0) {
        size_t piece = n < FL_CHUNK_MAX_BYTES ? n : FL_CHUNK_MAX_BYTES;
        struct fl_chunk *chunk = fl_chunk_new((uint32_t)piece, NULL);
        for (size_t i = 0; i < piece; i++)
            chunk->data[i] = (uint8_t)(i * 2654435761u >> 13);
        fl_chain_push(&w->kept, (struct fl_slice){chunk, chunk->data, piece});
        n -= piece;
    }
    fl_extproc_call_body(w->call, is_end);
}

static void assert_state(struct world *w, enum fl_caller_state state, int rc)
{
    struct fl_caller *caller = fl_extproc_call_caller(w->call);
    assert_int_equal(caller->state, state);
    assert_int_equal(caller->rc, rc);
    assert_int_equal(w->decisions, 1);
}

/* ---- both ends together ---- */

static void tell_response(struct world *w, size_t chunks)
{
    const struct fl_fields none = {0};
    fl_extproc_call_tell_head(w->call, 200, &none, FL_BYTES("10.0.0.7:8000"));
    for (size_t i = 0; i < chunks; i++) {
        struct fl_slice slice = fl_slice_copy(FL_BYTES("data: {}\n\n"), NULL);
        fl_extproc_call_tell_body(w->call, slice);
        fl_slice_unref(&slice);
    }
}

/* epp.md 24.1, gateway.md 9.8 */
static void a_request_from_question_to_end(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 2, 62000, 70000, 1 << 20, 9 << 20};

    for (size_t i = 0; i < FL_ARRAY_LEN(sizes); i++) {
        struct world w;
        open_world(&w, SCRIPT_ANSWER, 0);
        ask(&w, true, 5000);
        upload(&w, sizes[i] / 2, false);
        upload(&w, sizes[i] - sizes[i] / 2, true);
        TURN_UNTIL(&w, w.decisions == 1);
        assert_state(&w, FL_CALLER_DECIDED, 0);
        struct fl_caller *caller = fl_extproc_call_caller(w.call);
        assert_string_equal(caller->candidates[0], "10.0.0.7:8000");
        assert_false(caller->is_body_replaced); /* the echo equals what was kept */
        /* The always removed names were not there; nothing of the request changes. */
        assert_false(caller->mutated.is_changed);
        assert_int_equal(w.asked_bytes, sizes[i]);
        assert_string_equal(w.id, "r1");

        tell_response(&w, 3);
        TURN_UNTIL(&w, w.tapped_bytes == 30);
        assert_int_equal(w.first_tokens, 1);
        assert_string_equal(w.served, "10.0.0.7:8000");
        fl_extproc_call_end(w.call);
        TURN_UNTIL(&w, w.closes == 1);
        assert_int_equal(w.end, FL_EXTPROC_END_DONE);
        assert_int_equal(w.ends, 1);
        assert_int_equal(w.cancels, 0);
        close_world(&w);
    }
}

/* One connection carries many streams; each asks for itself. */
static void streams_share_a_connection(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_ANSWER, 0);
    for (int i = 1; i <= 50; i++) {
        ask(&w, false, 5000);
        TURN_UNTIL(&w, w.decisions == 1);
        tell_response(&w, 1);
        fl_extproc_call_end(w.call);
        TURN_UNTIL(&w, w.closes == i);
        assert_int_equal(w.end, FL_EXTPROC_END_DONE);
    }
    assert_int_equal(w.picks, 50);
    assert_int_equal(fl_web_server_connections(w.web), 1);
    close_world(&w);
}

/* epp.md 6, gateway.md 9.6 */
static void a_refusal_arrives_as_an_immediate_response(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_REFUSE, 0);
    ask(&w, true, 5000);
    upload(&w, 1000, true);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_IMMEDIATE, 0);
    assert_int_equal(fl_extproc_call_caller(w.call)->immediate_status, 503);
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.closes == 1);
    assert_int_equal(w.end, FL_EXTPROC_END_REFUSED);
    close_world(&w);
}

/* A pick that takes its time is answered from outside any callback of the stream. */
static void a_late_answer_goes_out(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_HOLD, 0);
    ask(&w, true, 5000);
    upload(&w, 100000, true);
    TURN_UNTIL(&w, w.picks == 1);
    assert_int_equal(w.decisions, 0);
    fl_extproc_stream_answer(w.stream, &ten_seven);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_DECIDED, 0);
    fl_extproc_call_end(w.call); /* nothing was told: the stream is reset */
    TURN_UNTIL(&w, w.closes == 1);
    assert_int_equal(w.end, FL_EXTPROC_END_GONE);
    close_world(&w);
}

/* epp.md 24.3 rows 9 and 10, gateway.md 9.9 */
static void a_cancelled_call_cancels_the_pick(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_HOLD, 0);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.picks == 1);
    fl_extproc_call_cancel(w.call);
    TURN_UNTIL(&w, w.closes == 1);
    assert_int_equal(w.cancels, 1);
    assert_int_equal(w.decisions, 0);
    assert_int_equal(w.end, FL_EXTPROC_END_REFUSED);
    /* The connection is still good. */
    w.script = SCRIPT_ANSWER;
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    fl_extproc_call_cancel(w.call);
    TURN_UNTIL(&w, w.closes == 2);
    assert_int_equal(fl_web_server_connections(w.web), 1);
    close_world(&w);
}

/* gateway.md 9.1, 9.2: the deadline runs from the last byte of the request */
static void the_deadline_starts_with_the_last_byte(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_HOLD, 0);
    ask(&w, true, 60);
    upload(&w, 10, false);
    uint64_t slow_until = now_ms() + 200; /* an upload longer than the deadline */
    TURN_UNTIL(&w, now_ms() >= slow_until);
    assert_int_equal(w.decisions, 0);
    uint64_t began = now_ms();
    upload(&w, 10, true);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_in_range(now_ms() - began, 50, 2000);
    assert_state(&w, FL_CALLER_FAILED, FL_ETIMEOUT);
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.closes == 1); /* reset: the pick is cancelled */
    assert_int_equal(w.cancels, 1);
    close_world(&w);
}

/* epp.md 6: the end of the drain */
static void stopping_refuses_picks_and_cuts_responses(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_HOLD, 0);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.picks == 1);
    fl_extproc_server_stop(w.server);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_IMMEDIATE, 0);
    assert_int_equal(fl_extproc_call_caller(w.call)->immediate_status, 503);
    assert_int_equal(w.cancels, 1);
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.closes == 1);
    assert_int_equal(w.end, FL_EXTPROC_END_SHUTDOWN);

    w.script = SCRIPT_ANSWER;
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    tell_response(&w, 1);
    TURN_UNTIL(&w, w.responses == 1);
    fl_extproc_server_stop(w.server);
    TURN_UNTIL(&w, fl_extproc_call_grpc_status(w.call) == 14);
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.closes == 2);
    assert_int_equal(w.end, FL_EXTPROC_END_SHUTDOWN);
    close_world(&w);
}

/* Streams that are open when everything goes. */
static void freeing_the_server_closes_its_streams(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_HOLD, 0);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.picks == 1);
    fl_extproc_server_free(w.server);
    w.server = NULL;
    assert_int_equal(w.closes, 1);
    assert_int_equal(w.cancels, 1);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_int_equal(fl_extproc_call_caller(w.call)->state, FL_CALLER_FAILED);
    fl_extproc_call_cancel(w.call);
    close_world(&w);
}

/* ---- memory pressure: epp.md 12.4 ---- */

/* epp.md 12.4, 24.3 row 41 */
static void under_pressure_large_bodies_wait_and_are_refused(void **state)
{
    (void)state;
    struct world w;
    struct fl_extproc_server_figures figures;

    open_world(&w, SCRIPT_ANSWER, 8 << 20);
    /* Something else holds what is left of the budget. */
    struct fl_chunk *ballast = fl_chunk_new(7 << 20, &w.budget);
    assert_false(fl_budget_is_easy(&w.budget));
    ask(&w, true, 8000);
    uint64_t began = now_ms();
    upload(&w, 300000, true); /* declares no length */
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_IMMEDIATE, 0);
    assert_int_equal(fl_extproc_call_caller(w.call)->immediate_status, 503);
    assert_in_range(now_ms() - began, FL_EXTPROC_PAUSE_MS - 50, FL_EXTPROC_PAUSE_MS + 3000);
    fl_extproc_server_figures(w.server, &figures);
    assert_int_equal(figures.buffer_rejections, 1);
    assert_int_equal(w.picks, 0);
    fl_extproc_call_end(w.call);
    fl_chain_fini(&w.kept);

    /* A small one is served beside it. */
    fl_fields_add(&w.head.fields, &w.arena, FL_BYTES("content-length"), FL_BYTES("65536"));
    ask(&w, true, 5000);
    upload(&w, 65536, true);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_DECIDED, 0);
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.closes == 2);
    fl_chunk_unref(ballast);
    close_world(&w);
}

/* epp.md 12.4 */
static void a_paused_body_goes_on_when_memory_is_back(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_ANSWER, 8 << 20);
    struct fl_chunk *ballast = fl_chunk_new(7 << 20, &w.budget);
    ask(&w, true, 8000);
    upload(&w, 300000, true);
    uint64_t paused_until = now_ms() + 300;
    TURN_UNTIL(&w, now_ms() >= paused_until);
    assert_int_equal(w.picks, 0);
    fl_chunk_unref(ballast);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_DECIDED, 0);
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.closes == 1);
    close_world(&w);
}

/* ---- the picker's port as a stranger meets it ---- */

struct stranger {
    struct fl_exchange *x;
    int status, rc, closes;
    int grpc_status;
    struct fl_head *head;
    bool is_ended;
    size_t body_bytes;
};

static void stranger_on_head(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    struct stranger *s = owner;
    s->head = head;
    s->status = head->status;
    if (is_end) {
        s->is_ended = true;
        s->grpc_status = fl_grpc_read_status(head, NULL, fl_exchange_arena(x), NULL);
    }
}

static void stranger_on_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
{
    struct stranger *s = owner;
    s->body_bytes += slice.n;
    fl_exchange_consume(x, slice.n);
    fl_slice_unref(&slice);
}

static void stranger_on_end(void *owner, struct fl_exchange *x, const struct fl_fields *trailers)
{
    struct stranger *s = owner;
    s->is_ended = true;
    s->grpc_status = fl_grpc_read_status(s->head, trailers, fl_exchange_arena(x), NULL);
}

static void stranger_on_close(void *owner, struct fl_exchange *x, int rc)
{
    struct stranger *s = owner;
    (void)x;
    s->closes++;
    s->rc = rc;
    s->x = NULL;
}

static const struct fl_exchange_handler stranger_handler = {.on_head = stranger_on_head,
                                                            .on_body = stranger_on_body,
                                                            .on_end = stranger_on_end,
                                                            .on_close = stranger_on_close};

static void visit(struct world *w, struct stranger *s, const char *path, const char *content_type)
{
    const struct fl_web_target target = {
        .addr = w->addr, .protocol = FL_WEB_H2, .connect_timeout_ms = 5000};
    struct fl_head head = {.method = FL_BYTES("POST"),
                           .scheme = FL_BYTES("http"),
                           .authority = FL_BYTES("h"),
                           .target = fl_bytes_of(path),
                           .is_h2 = true,
                           .body = FL_BODY_STREAM,
                           .content_length = UINT64_MAX};

    *s = (struct stranger){.grpc_status = -1};
    s->x = fl_web_pool_open(w->pool, &target, false, &stranger_handler, s);
    head.arena = fl_exchange_arena(s->x);
    if (content_type != NULL)
        fl_fields_add(&head.fields, head.arena, FL_BYTES("content-type"),
                      fl_bytes_of(content_type));
    fl_exchange_send_head(s->x, &head, false);
}

/* gaie.md 1.1, 1.9 */
static void content_types_and_methods(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *path, *content_type;
        int status, grpc_status;
    } rows[] = {
        {"plain", FL_EXTPROC_PATH, "application/grpc", 200, 0},
        {"with its codec", FL_EXTPROC_PATH, "application/grpc+proto", 200, 0},
        {"no type", FL_EXTPROC_PATH, NULL, 415, -1},
        {"JSON", FL_EXTPROC_PATH, "application/json", 415, -1},
        {"another method", "/envoy.service.ext_proc.v3.ExternalProcessor/Other", "application/grpc",
         200, 12},
        {"another service", "/x.Y/Z", "application/grpc", 200, 12},
        {"a service that shares the port", "/grpc.health.v1.Health/Check", "application/grpc", 200,
         2},
    };
    struct world w;

    open_world(&w, SCRIPT_ANSWER, 0);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct stranger s;
        visit(&w, &s, rows[i].path, rows[i].content_type);
        fl_exchange_send_end(s.x, NULL);
        TURN_UNTIL(&w, s.closes == 1);
        if (s.status != rows[i].status ||
            (rows[i].grpc_status >= 0 && s.grpc_status != rows[i].grpc_status))
            fail_msg("row %zu: %s: %d, %d", i, rows[i].why, s.status, s.grpc_status);
    }
    close_world(&w);
}

/* gaie.md 1.1: the head comes before the first message */
static void the_response_head_is_sent_at_once(void **state)
{
    (void)state;
    struct world w;
    struct stranger s;

    open_world(&w, SCRIPT_ANSWER, 0);
    visit(&w, &s, FL_EXTPROC_PATH, "application/grpc");
    TURN_UNTIL(&w, s.status == 200);
    assert_int_equal(w.picks, 0);
    fl_exchange_abort(s.x, 8);
    TURN_UNTIL(&w, s.closes == 1 && w.closes == 1);
    assert_int_equal(w.end, FL_EXTPROC_END_REFUSED);
    close_world(&w);
}

/* gaie.md 1.9, 1.1; epp.md 4.6, 24.3 row 35 */
static void bad_frames_end_with_their_status(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *wire;
        int grpc_status;
        bool half_closes;
    } rows[] = {
        {"compressed", "01 00000002 1200", 12, false},
        {"a flag that is neither 0 nor 1", "02 00000002 1200", 3, false},
        {"4 MiB and a byte", "00 00400001", 8, false},
        {"malformed message", "00 00000002 0000", 3, false},
        {"mode not supported", "00 00000008 | 1200 5a04 0801 1004", 9, false},
        {"message cut short by half-close", "00 00000005 12", 3, true},
        {"prefix cut short by half-close", "00 0000", 3, true},
        {"nothing but a half-close", "", 0, true},
    };
    struct world w;

    open_world(&w, SCRIPT_ANSWER, 0);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct stranger s;
        uint8_t bytes[64];
        size_t n = wire_bytes(rows[i].wire, bytes, sizeof(bytes));
        visit(&w, &s, FL_EXTPROC_PATH, "application/grpc");
        if (n > 0)
            fl_exchange_send_body_copy(s.x, fl_bytes(bytes, n));
        if (rows[i].half_closes)
            fl_exchange_send_end(s.x, NULL);
        TURN_UNTIL(&w, s.is_ended);
        if (s.status != 200 || s.grpc_status != rows[i].grpc_status)
            fail_msg("row %zu: %s: %d", i, rows[i].why, s.grpc_status);
        if (!rows[i].half_closes && s.x != NULL)
            fl_exchange_send_end(s.x, NULL);
        TURN_UNTIL(&w, s.closes == 1 && w.closes == (int)i + 1);
        assert_int_equal(w.end,
                         rows[i].grpc_status == 0 ? FL_EXTPROC_END_REFUSED : FL_EXTPROC_END_FAILED);
    }
    /* The next stream on the same connection works. */
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_DECIDED, 0);
    fl_extproc_call_end(w.call);
    close_world(&w);
}

/* epp.md 12.4: answers nobody takes stop the reading; others go on */
static void a_proxy_that_takes_no_answers_is_held_back(void **state)
{
    (void)state;
    struct world w;
    struct stranger s;
    struct fl_chain out = {0};
    struct fl_slice slice;
    struct fl_fields none = {0};
    struct fl_extproc_server_figures figures;

    open_world(&w, SCRIPT_ANSWER, 0);
    visit(&w, &s, FL_EXTPROC_PATH, "application/grpc");
    fl_extproc_request_write(
        &out, &(struct fl_extproc_request_out){
                  .kind = FL_EXTPROC_REQUEST_HEADERS, .headers = &none, .end_of_stream = true});
    /* 8 MiB of response body come back as 8 MiB of answers, many more than the queues hold. The
     * stranger reads (its handler consumes), so all must arrive, whatever is held meanwhile. */
    uint8_t *bytes = calloc(1, 65536);
    struct fl_chain body = wire_chain(fl_bytes(bytes, 65536), 65536);
    for (int i = 0; i < 128; i++)
        fl_extproc_request_write(&out,
                                 &(struct fl_extproc_request_out){.kind = FL_EXTPROC_RESPONSE_BODY,
                                                                  .body = &body,
                                                                  .body_bytes = 65536,
                                                                  .end_of_stream = i == 127});
    while (fl_chain_pop(&out, &slice))
        fl_exchange_send_body(s.x, slice);
    TURN_UNTIL(&w, w.ends == 1);
    fl_exchange_send_end(s.x, NULL);
    TURN_UNTIL(&w, s.closes == 1);
    assert_int_equal(s.grpc_status, 0);
    assert_true(s.body_bytes > 128 * 65536);
    fl_extproc_server_figures(w.server, &figures);
    assert_int_equal(figures.messages, 129);
    assert_int_equal(figures.open_streams, 0);
    fl_chain_fini(&body);
    fl_chain_fini(&out);
    free(bytes);
    close_world(&w);
}

/* ---- our client and other pickers ---- */

/* gateway.md 9.4, 9.7: each is outcome error, and the next question is asked afresh */
static void pickers_that_do_not_answer(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        enum script script;
        int rc;
    } rows[] = {
        {"stream ends with an error", SCRIPT_CLOSE, FL_ECLOSED},
        {"stream ends with OK", SCRIPT_CLOSE_OK, FL_ECLOSED},
        {"garbage", SCRIPT_GARBAGE, FL_EPROTO},
        {"a message above the cap", SCRIPT_HUGE, FL_ELIMIT},
        {"no gRPC at all", SCRIPT_NOT_GRPC, FL_ECLOSED},
        {"unknown method", SCRIPT_TRAILERS_ONLY, FL_ECLOSED},
        {"silence", SCRIPT_SILENT, FL_ETIMEOUT},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct world w;
        open_world(&w, rows[i].script, 0);
        ask(&w, false, rows[i].script == SCRIPT_SILENT ? 50 : 5000);
        TURN_UNTIL(&w, w.decisions == 1);
        struct fl_caller *caller = fl_extproc_call_caller(w.call);
        if (caller->state != FL_CALLER_FAILED || caller->rc != rows[i].rc)
            fail_msg("row %zu: %s: %d", i, rows[i].why, caller->rc);
        fl_extproc_call_end(w.call);
        TURN_UNTIL(&w, w.raw_closes == 1);
        w.script = SCRIPT_ANSWER;
        ask(&w, false, 5000);
        TURN_UNTIL(&w, w.decisions == 1);
        assert_state(&w, FL_CALLER_DECIDED, 0);
        fl_extproc_call_end(w.call);
        close_world(&w);
    }
}

static void a_reset_stream_is_a_failure(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_RESET, 0);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_int_equal(fl_extproc_call_caller(w.call)->state, FL_CALLER_FAILED);
    fl_extproc_call_cancel(w.call);
    close_world(&w);
}

/* gateway.md 9.1: what the peer never processed is asked again, once, body and all */
static void a_refused_stream_is_asked_again_once(void **state)
{
    (void)state;
    struct world w;
    struct fl_extproc_peer_figures figures;

    open_world(&w, SCRIPT_REFUSED_ONCE, 0);
    ask(&w, true, 5000);
    upload(&w, 100000, true);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_DECIDED, 0);
    assert_int_equal(w.asked_bytes, 100000);
    fl_extproc_peer_figures(w.peer, &figures);
    assert_int_equal(figures.retries, 1);
    fl_extproc_call_cancel(w.call);

    w.script = SCRIPT_REFUSED;
    fl_chain_fini(&w.kept);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_FAILED, FL_EREFUSED);
    fl_extproc_peer_figures(w.peer, &figures);
    assert_int_equal(figures.retries, 2);
    fl_extproc_call_end(w.call);
    close_world(&w);
}

/* gateway.md 9.8: a clean end right after the decision does not matter */
static void a_picker_may_leave_after_its_decision(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_DECIDE_AND_END, 0);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_DECIDED, 0);
    TURN_UNTIL(&w, fl_extproc_call_grpc_status(w.call) == 0);
    tell_response(&w, 2);
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.raw_closes == 1);
    assert_int_equal(w.evictions, 0);
    close_world(&w);
}

/* gateway.md 9.6: an immediate response after the decision is an eviction */
static void an_eviction_is_told(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_DECIDE_THEN_EVICT, 0);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    tell_response(&w, 1);
    TURN_UNTIL(&w, w.evictions == 1);
    struct fl_caller *caller = fl_extproc_call_caller(w.call);
    assert_int_equal(caller->state, FL_CALLER_EVICTED);
    assert_int_equal(caller->immediate_status, 429);
    assert_true(fl_chain_eq_bytes(&caller->immediate_body, FL_BYTES("evict")));
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.raw_closes == 1);
    close_world(&w);
}

/* gateway.md 9.8 item 4: at most 2 s for the picker to finish, then reset */
static void a_picker_that_does_not_finish_is_reset(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_DECIDE_THEN_EVICT, 0);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    w.script = SCRIPT_SILENT; /* from now on it says nothing */
    tell_response(&w, 1);
    uint64_t began = now_ms();
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.raw_has_end);
    TURN_UNTIL(&w, w.raw_closes == 1);
    assert_in_range(now_ms() - began, FL_EXTPROC_FINISH_MS - 50, FL_EXTPROC_FINISH_MS + 3000);
    close_world(&w);
}

/* gateway.md 9.1: reconnect; a restarted picker serves again within 1 s */
static void a_dead_picker_fails_fast_and_serves_again_when_it_is_back(void **state)
{
    (void)state;
    struct world w;
    struct fl_extproc_peer_figures figures;

    open_world(&w, SCRIPT_ANSWER, 0);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    fl_extproc_call_cancel(w.call);
    /* The process dies: connections and listener go. */
    fl_extproc_server_free(w.server);
    w.server = NULL;
    fl_web_server_free(w.web);
    w.web = NULL;
    fl_listener_close(w.listener);
    w.listener = NULL;
    fl_loop_turn(w.loop, 5);

    int failures = 0;
    for (uint64_t until = now_ms() + 300; now_ms() < until; failures++) {
        ask(&w, false, 5000);
        TURN_UNTIL(&w, w.decisions == 1);
        assert_int_equal(fl_extproc_call_caller(w.call)->state, FL_CALLER_FAILED);
        fl_extproc_call_end(w.call);
    }
    fl_extproc_peer_figures(w.peer, &figures);
    assert_true(figures.dial_failures >= 1);
    /* Most failed without a dial. */
    assert_true(failures > 3 * (int)figures.dial_failures);

    const struct fl_extproc_server_config config = {
        .picker = {.body_mode = FL_EXTPROC_BODY_FULL_DUPLEX, .max_body_bytes = 10 << 20}};
    struct fl_addr addr = w.addr;
    open_listener(&w, &addr);
    open_web(&w);
    w.server = fl_extproc_server_new(w.loop, &config, &server_ops, &w);
    uint64_t back = now_ms();
    for (;;) {
        ask(&w, false, 5000);
        TURN_UNTIL(&w, w.decisions == 1);
        bool is_served = fl_extproc_call_caller(w.call)->state == FL_CALLER_DECIDED;
        fl_extproc_call_cancel(w.call);
        if (is_served)
            break;
        assert_true(now_ms() - back < 1000);
    }
    close_world(&w);
}

/* gateway.md 9.1: two silent deadlines in a row drop the connection */
static void two_silent_deadlines_drop_the_connection(void **state)
{
    (void)state;
    struct world w;
    struct fl_extproc_peer_figures figures;

    open_world(&w, SCRIPT_SILENT, 0);
    for (int i = 0; i < FL_EXTPROC_SILENT_MAX; i++) {
        ask(&w, false, 30);
        TURN_UNTIL(&w, w.decisions == 1);
        assert_state(&w, FL_CALLER_FAILED, FL_ETIMEOUT);
        fl_extproc_call_end(w.call);
        TURN_UNTIL(&w, w.raw_closes == i + 1);
    }
    fl_extproc_peer_figures(w.peer, &figures);
    assert_int_equal(figures.silent_deadlines, 2);
    TURN_UNTIL(&w, fl_web_server_connections(w.web) == 0);
    w.script = SCRIPT_ANSWER;
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_DECIDED, 0);
    assert_int_equal(fl_web_server_connections(w.web), 1);
    fl_extproc_call_end(w.call);
    close_world(&w);
}

/* gateway.md 9.1: GOAWAY. Streams under way finish, new ones go to a new connection. */
static void a_draining_picker_finishes_its_streams(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_HOLD, 0);
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.picks == 1);
    fl_web_server_drain(w.web); /* GOAWAY */
    for (int i = 0; i < 5; i++)
        fl_loop_turn(w.loop, 1);
    fl_extproc_stream_answer(w.stream, &ten_seven);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_DECIDED, 0);
    tell_response(&w, 1);
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.closes == 1);
    assert_int_equal(w.end, FL_EXTPROC_END_DONE);
    close_world(&w);
}

/* Cancelled at every turn of a request's life; nothing leaks, the server's books close. */
static void cancelled_at_any_moment(void **state)
{
    (void)state;
    struct world w;

    open_world(&w, SCRIPT_ANSWER, 0);
    for (int turns = 0; turns < 40; turns++) {
        ask(&w, true, 5000);
        upload(&w, 150000, true);
        for (int i = 0; i < turns; i++)
            fl_loop_turn(w.loop, 0);
        if (w.decisions == 1 && fl_extproc_call_caller(w.call)->state == FL_CALLER_DECIDED)
            tell_response(&w, 2);
        fl_extproc_call_cancel(w.call);
        fl_chain_fini(&w.kept);
    }
    /* A request behind them all on the same connection: when it is through, they are. */
    ask(&w, false, 5000);
    TURN_UNTIL(&w, w.decisions == 1);
    assert_state(&w, FL_CALLER_DECIDED, 0);
    tell_response(&w, 1);
    fl_extproc_call_end(w.call);
    TURN_UNTIL(&w, w.closes == w.streams_seen && w.end == FL_EXTPROC_END_DONE);
    assert_in_range(w.streams_seen, 2, 41);
    struct fl_extproc_server_figures figures;
    fl_extproc_server_figures(w.server, &figures);
    assert_int_equal(figures.open_streams, 0);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_from_question_to_end),
        cmocka_unit_test(streams_share_a_connection),
        cmocka_unit_test(a_refusal_arrives_as_an_immediate_response),
        cmocka_unit_test(a_late_answer_goes_out),
        cmocka_unit_test(a_cancelled_call_cancels_the_pick),
        cmocka_unit_test(the_deadline_starts_with_the_last_byte),
        cmocka_unit_test(stopping_refuses_picks_and_cuts_responses),
        cmocka_unit_test(freeing_the_server_closes_its_streams),
        cmocka_unit_test(under_pressure_large_bodies_wait_and_are_refused),
        cmocka_unit_test(a_paused_body_goes_on_when_memory_is_back),
        cmocka_unit_test(content_types_and_methods),
        cmocka_unit_test(the_response_head_is_sent_at_once),
        cmocka_unit_test(bad_frames_end_with_their_status),
        cmocka_unit_test(a_proxy_that_takes_no_answers_is_held_back),
        cmocka_unit_test(pickers_that_do_not_answer),
        cmocka_unit_test(a_reset_stream_is_a_failure),
        cmocka_unit_test(a_refused_stream_is_asked_again_once),
        cmocka_unit_test(a_picker_may_leave_after_its_decision),
        cmocka_unit_test(an_eviction_is_told),
        cmocka_unit_test(a_picker_that_does_not_finish_is_reset),
        cmocka_unit_test(a_dead_picker_fails_fast_and_serves_again_when_it_is_back),
        cmocka_unit_test(two_silent_deadlines_drop_the_connection),
        cmocka_unit_test(a_draining_picker_finishes_its_streams),
        cmocka_unit_test(cancelled_at_any_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
