/* SPDX-License-Identifier: Apache-2.0 */
/* Both ends of ext_proc on one loop over real connections: our server (or a scripted picker) and
 * our client. Include after cmocka.h. */
#ifndef TESTS_UNIT_EXTPROC_WORLD_H
#define TESTS_UNIT_EXTPROC_WORLD_H

#include <stdio.h>
#include <stdlib.h>

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

static inline uint64_t now_ms(void)
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

static inline void on_pick(void *owner, struct fl_extproc_stream *stream,
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

static inline void on_pick_cancelled(void *owner, struct fl_extproc_stream *stream)
{
    struct world *w = owner;
    assert_ptr_equal(fl_extproc_stream_user(stream), w);
    w->cancels++;
}

static inline void on_response(void *owner, struct fl_extproc_stream *stream, int status,
                               const struct fl_fields *headers, struct fl_bytes served)
{
    struct world *w = owner;
    (void)stream, (void)headers;
    assert_int_equal(status, 200);
    w->responses++;
    snprintf(w->served, sizeof(w->served), "%.*s", FL_FMT(served));
}

static inline void on_first_token(void *owner, struct fl_extproc_stream *stream)
{
    struct world *w = owner;
    (void)stream;
    w->first_tokens++;
}

static inline void on_response_body(void *owner, struct fl_extproc_stream *stream,
                                    struct fl_bytes piece)
{
    struct world *w = owner;
    (void)stream;
    w->tapped_bytes += piece.n;
}

static inline void on_response_end(void *owner, struct fl_extproc_stream *stream)
{
    struct world *w = owner;
    (void)stream;
    w->ends++;
}

static inline void on_stream_close(void *owner, struct fl_extproc_stream *stream,
                                   enum fl_extproc_end end)
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

static inline void raw_send(struct world *w, const char *wire)
{
    uint8_t bytes[1024];
    size_t n = wire_bytes(wire, bytes, sizeof(bytes));
    fl_exchange_send_body(w->raw_x, fl_grpc_frame(fl_bytes(bytes, n)));
}

static inline void raw_status(struct world *w, int status)
{
    struct fl_fields trailers = {0};
    fl_grpc_add_status(&trailers, fl_exchange_arena(w->raw_x), status, FL_BYTES("scripted"));
    fl_exchange_send_end(w->raw_x, &trailers);
}

static inline void raw_on_head(void *owner, struct fl_exchange *x, struct fl_head *head,
                               bool is_end)
{
    (void)owner, (void)x, (void)head, (void)is_end;
}

static inline void raw_on_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
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

static inline void raw_on_end(void *owner, struct fl_exchange *x, const struct fl_fields *trailers)
{
    struct world *w = owner;
    (void)x, (void)trailers;
    w->raw_has_end = true;
}

static inline void raw_on_close(void *owner, struct fl_exchange *x, int rc)
{
    struct world *w = owner;
    (void)x, (void)rc;
    w->raw_closes++;
    w->raw_x = NULL;
}

static const struct fl_exchange_handler raw_handler = {
    .on_head = raw_on_head, .on_body = raw_on_body, .on_end = raw_on_end, .on_close = raw_on_close};

static inline void raw_begin(struct world *w)
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
static inline bool on_other(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    (void)is_end;
    if (!fl_bytes_eq(head->target, FL_BYTES("/grpc.health.v1.Health/Check")))
        return false;
    fl_exchange_set_handler(x, &raw_handler, owner);
    fl_exchange_respond(x, 200, "text/plain", FL_BYTES("healthy"), NULL);
    return true;
}

static inline void on_request(void *owner, struct fl_exchange *x)
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

static inline void on_accept(void *owner, int fd, const struct fl_addr *peer)
{
    struct world *w = owner;
    (void)peer;
    fl_web_server_accept(w->web, fd);
}

static inline void open_listener(struct world *w, const struct fl_addr *addr)
{
    struct fl_error err = {0};
    if (fl_listener_open(addr, false, &w->listener, &err) < 0)
        fail_msg("%s", err.text);
    w->addr = *fl_listener_addr(w->listener);
    fl_listener_start(w->listener, w->loop, on_accept, w);
}

static inline void open_web(struct world *w)
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

static inline void open_peer(struct world *w)
{
    const struct fl_extproc_peer_config config = {
        .target = {.addr = w->addr, .protocol = FL_WEB_H2, .connect_timeout_ms = 5000},
        .authority = "epp:9002",
        .user_agent = "fairlead-gateway/test"};
    w->peer = fl_extproc_peer_new(w->loop, w->pool, &config);
}

static inline void open_world(struct world *w, enum script script, size_t budget_bytes)
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

static inline void close_world(struct world *w)
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

static inline void on_decision(void *owner, struct fl_extproc_call *call)
{
    struct world *w = owner;
    assert_ptr_equal(call, w->call);
    w->decisions++;
}

static inline void on_eviction(void *owner, struct fl_extproc_call *call)
{
    struct world *w = owner;
    (void)call;
    w->evictions++;
}

static const struct fl_extproc_call_ops call_ops = {.on_decision = on_decision,
                                                    .on_eviction = on_eviction};

static inline void ask(struct world *w, bool has_body, uint64_t timeout_ms)
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

static inline void upload(struct world *w, size_t n, bool is_end)
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

static inline void assert_state(struct world *w, enum fl_caller_state state, int rc)
{
    struct fl_caller *caller = fl_extproc_call_caller(w->call);
    assert_int_equal(caller->state, state);
    assert_int_equal(caller->rc, rc);
    assert_int_equal(w->decisions, 1);
}

static inline void tell_response(struct world *w, size_t chunks)
{
    const struct fl_fields none = {0};
    fl_extproc_call_tell_head(w->call, 200, &none, FL_BYTES("10.0.0.7:8000"));
    for (size_t i = 0; i < chunks; i++) {
        struct fl_slice slice = fl_slice_copy(FL_BYTES("data: {}\n\n"), NULL);
        fl_extproc_call_tell_body(w->call, slice);
        fl_slice_unref(&slice);
    }
}

#endif
