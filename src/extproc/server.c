/* SPDX-License-Identifier: Apache-2.0 */
#include "extproc/server.h"

#include <assert.h>

#include "base/alloc.h"
#include "base/list.h"
#include "base/log.h"
#include "http2/grpc.h"

#define PAUSE_LOOK_MS 100 /* how often a paused body looks for memory */
#define IDLE_LOOK_MS 1000 /* how often a silent one is looked at again */
#define WARN_EVERY_MS 10000

enum { H2_NO_ERROR = 0, H2_CANCEL = 8 }; /* RFC 9113 section 7 */

struct fl_extproc_server {
    struct fl_loop *loop;
    struct fl_extproc_server_config config;
    const struct fl_extproc_server_ops *ops;
    void *owner;
    struct fl_link streams;
    struct fl_extproc_server_figures figures;
    struct fl_log_limit warn_limit;
};

struct fl_extproc_stream {
    struct fl_extproc_server *server;
    struct fl_exchange *x;
    void *user;
    struct fl_link link; /* server->streams */
    struct fl_picker picker;
    struct fl_grpc_reader reader;
    struct fl_deferred pump_later;
    struct fl_timer timer; /* a body that waits or is silent; behind our status: the linger */
    uint64_t paused_since_ms, last_byte_ms;
    size_t held; /* body bytes whose window has not been given back */
    bool is_paused, is_pumping;
    bool has_eof;    /* the proxy half-closed */
    bool is_ended;   /* our trailers are queued */
    bool is_stopped; /* by fl_extproc_server_stop() */
};

/* ---- exchanges that are not (any more) streams ---- */

static void drop_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
{
    (void)owner;
    fl_exchange_consume(x, slice.n);
    fl_slice_unref(&slice);
}

static void drop_head(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    (void)owner, (void)x, (void)head, (void)is_end;
}

static void drop_end(void *owner, struct fl_exchange *x, const struct fl_fields *trailers)
{
    (void)owner, (void)x, (void)trailers;
}

static void drop_close(void *owner, struct fl_exchange *x, int rc)
{
    (void)owner, (void)x, (void)rc;
}

static const struct fl_exchange_handler dropped = {
    .on_head = drop_head, .on_body = drop_body, .on_end = drop_end, .on_close = drop_close};

/* ---- the body of a request under pressure: epp.md 12.4 ---- */

static bool is_pressed(const struct fl_extproc_stream *stream)
{
    const struct fl_budget *budget = stream->server->config.budget;
    return budget != NULL && !fl_budget_is_easy(budget);
}

static bool is_waiting_for_body(const struct fl_extproc_stream *stream)
{
    return stream->picker.state == FL_PICKER_WAIT_BODY;
}

/* Small bodies read on, so that small requests are served while large ones wait. */
static bool declares_small_body(const struct fl_extproc_stream *stream)
{
    uint64_t length;
    struct fl_bytes text =
        fl_fields_get(&stream->picker.headers.headers, FL_BYTES("content-length"));
    return fl_bytes_to_u64(text, UINT64_MAX, &length) && length <= FL_EXTPROC_SMALL_BODY;
}

static void start_timer(struct fl_extproc_stream *stream, uint64_t delay_ms)
{
    fl_loop_timer_start(stream->server->loop, &stream->timer, delay_ms);
}

/* True if nothing more may be read for now. */
static bool must_pause(struct fl_extproc_stream *stream)
{
    if (!is_waiting_for_body(stream) || !is_pressed(stream) || declares_small_body(stream)) {
        stream->is_paused = false;
        return false;
    }
    if (!stream->is_paused) {
        stream->is_paused = true;
        stream->paused_since_ms = fl_loop_now_ms(stream->server->loop);
        start_timer(stream, PAUSE_LOOK_MS);
    }
    return true;
}

static void refuse_for_memory(struct fl_extproc_stream *stream)
{
    stream->server->figures.buffer_rejections++;
    stream->is_paused = false;
    fl_picker_fail(&stream->picker, FL_EEPP_OVERLOADED, 0);
}

/* A timer while the body is awaited. True if the stream is to be pumped. */
static bool look_at_body(struct fl_extproc_stream *stream)
{
    uint64_t now_ms = fl_loop_now_ms(stream->server->loop);

    if (stream->is_paused) {
        if (!is_pressed(stream))
            return true;
        if (now_ms - stream->paused_since_ms >= FL_EXTPROC_PAUSE_MS) {
            refuse_for_memory(stream);
            return true;
        }
        start_timer(stream, PAUSE_LOOK_MS);
        return false;
    }
    uint64_t silent_ms = now_ms - stream->last_byte_ms;
    if (silent_ms < FL_EXTPROC_IDLE_BODY_MS) {
        start_timer(stream, FL_EXTPROC_IDLE_BODY_MS - silent_ms);
        return false;
    }
    if (is_pressed(stream)) {
        refuse_for_memory(stream);
        return true;
    }
    start_timer(stream, IDLE_LOOK_MS);
    return false;
}

/* ---- messages in, answers out ---- */

static void send_status(struct fl_extproc_stream *stream)
{
    struct fl_arena *arena = fl_exchange_arena(stream->x);
    struct fl_fields trailers = {0};

    stream->is_ended = true;
    if (stream->picker.grpc_status != FL_GRPC_OK) {
        stream->server->figures.refused_streams++;
        fl_log_limited(&stream->server->warn_limit, fl_loop_now_ms(stream->server->loop),
                       WARN_EVERY_MS, FL_LOG_WARN, "ext_proc stream ended",
                       "grpc_status=%d reason=\"%s\"", stream->picker.grpc_status,
                       stream->picker.grpc_message);
    }
    fl_grpc_add_status(&trailers, arena, stream->picker.grpc_status,
                       fl_bytes_of(stream->picker.grpc_message));
    fl_exchange_send_end(stream->x, &trailers);
    start_timer(stream, FL_EXTPROC_LINGER_MS);
}

/* Sends while the peer takes it. True if something was sent. */
static bool send_answers(struct fl_extproc_stream *stream)
{
    bool has_sent = false;

    while (!stream->is_ended && fl_exchange_queued(stream->x) <= FL_EXCHANGE_HIGH_BYTES) {
        struct fl_chain out = {0};
        struct fl_slice slice;
        enum fl_picker_next next = fl_picker_next(&stream->picker, &out);
        if (next == FL_PICKER_IDLE)
            break;
        while (fl_chain_pop(&out, &slice))
            fl_exchange_send_body(stream->x, slice);
        fl_chain_fini(&out);
        if (next == FL_PICKER_END)
            send_status(stream);
        has_sent = true;
    }
    return has_sent;
}

static void end_unreadable(struct fl_extproc_stream *stream, int rc)
{
    switch (rc) {
    case FL_ELIMIT:
        fl_picker_end(&stream->picker, FL_GRPC_RESOURCE_EXHAUSTED, "message too large");
        break;
    case FL_ENOMEM:
        fl_picker_end(&stream->picker, FL_GRPC_RESOURCE_EXHAUSTED, "out of memory");
        break;
    case FL_EUNSUPPORTED:
        fl_picker_end(&stream->picker, FL_GRPC_UNIMPLEMENTED, "compressed message");
        break;
    default:
        fl_picker_end(&stream->picker, FL_GRPC_INVALID_ARGUMENT, "malformed gRPC frame");
        break;
    }
}

/* True if the picker heard something. */
static bool read_message(struct fl_extproc_stream *stream)
{
    struct fl_chain message = {0};

    if (stream->is_ended || fl_picker_is_full(&stream->picker) || must_pause(stream))
        return false;
    stream->reader.max_message_bytes = fl_picker_max_message(&stream->picker);
    int rc = fl_grpc_reader_next(&stream->reader, &message);
    if (rc > 0) {
        stream->server->figures.messages++;
        fl_picker_feed(&stream->picker, &message);
        return true;
    }
    fl_chain_fini(&message);
    if (stream->picker.state >= FL_PICKER_ENDING)
        return false;
    if (rc < 0) {
        end_unreadable(stream, rc);
        return true;
    }
    if (!stream->has_eof)
        return false;
    if (fl_grpc_reader_is_between(&stream->reader))
        fl_picker_half_close(&stream->picker);
    else
        fl_picker_end(&stream->picker, FL_GRPC_INVALID_ARGUMENT, "message cut short");
    return true;
}

/* While the stream is blocked, what lies unread stays held and stops its sender. Of a message that
 * is not complete the window must come back, or a large one could never arrive. */
static void give_window_back(struct fl_extproc_stream *stream)
{
    size_t keep = 0;

    if (!stream->is_ended && (stream->is_paused || fl_picker_is_full(&stream->picker)))
        keep = stream->reader.pending.bytes < stream->held ? stream->reader.pending.bytes
                                                           : stream->held;
    if (stream->held > keep) {
        fl_exchange_consume(stream->x, stream->held - keep);
        stream->held = keep;
    }
}

static void pump(struct fl_extproc_stream *stream)
{
    bool has_moved;

    if (stream->is_pumping)
        return;
    stream->is_pumping = true;
    do {
        has_moved = read_message(stream);
        has_moved |= send_answers(stream);
    } while (has_moved);
    stream->is_pumping = false;
    if (is_waiting_for_body(stream) && !fl_timer_is_running(&stream->timer))
        start_timer(stream, FL_EXTPROC_IDLE_BODY_MS);
    give_window_back(stream);
}

/* From a command of the owner, who must not be called back from inside it. */
static void pump_soon(struct fl_extproc_stream *stream)
{
    if (!stream->is_pumping)
        fl_loop_defer(stream->server->loop, &stream->pump_later);
}

static void run_pump(struct fl_deferred *deferred)
{
    pump(FL_CONTAINER_OF(deferred, struct fl_extproc_stream, pump_later));
}

static void on_timer(struct fl_timer *timer)
{
    struct fl_extproc_stream *stream = FL_CONTAINER_OF(timer, struct fl_extproc_stream, timer);

    if (stream->is_ended) {
        fl_exchange_abort(stream->x, H2_NO_ERROR); /* all is said; on_close follows */
        return;
    }
    if (is_waiting_for_body(stream) && look_at_body(stream))
        pump(stream);
}

/* ---- what the picker asks and tells ---- */

static struct fl_extproc_stream *stream_of(void *owner)
{
    return owner;
}

static void on_pick(void *owner, const struct fl_picker_question *question)
{
    struct fl_extproc_stream *stream = stream_of(owner);
    stream->server->ops->on_pick(stream->server->owner, stream, question);
}

static void on_pick_cancelled(void *owner)
{
    struct fl_extproc_stream *stream = stream_of(owner);
    stream->server->ops->on_pick_cancelled(stream->server->owner, stream);
}

static void on_response(void *owner, int status, const struct fl_fields *headers,
                        struct fl_bytes served)
{
    struct fl_extproc_stream *stream = stream_of(owner);
    if (stream->server->ops->on_response != NULL)
        stream->server->ops->on_response(stream->server->owner, stream, status, headers, served);
}

static void on_first_token(void *owner)
{
    struct fl_extproc_stream *stream = stream_of(owner);
    if (stream->server->ops->on_first_token != NULL)
        stream->server->ops->on_first_token(stream->server->owner, stream);
}

static void on_response_body(void *owner, struct fl_bytes piece)
{
    struct fl_extproc_stream *stream = stream_of(owner);
    if (stream->server->ops->on_response_body != NULL)
        stream->server->ops->on_response_body(stream->server->owner, stream, piece);
}

static void on_response_end(void *owner)
{
    struct fl_extproc_stream *stream = stream_of(owner);
    if (stream->server->ops->on_response_end != NULL)
        stream->server->ops->on_response_end(stream->server->owner, stream);
}

static void on_warning(void *owner, const char *what)
{
    struct fl_extproc_stream *stream = stream_of(owner);
    struct fl_bytes id = fl_picker_request_id(&stream->picker);
    fl_log_limited(&stream->server->warn_limit, fl_loop_now_ms(stream->server->loop), WARN_EVERY_MS,
                   FL_LOG_WARN, "ext_proc peer", "reason=\"%s\" request_id=%.*s", what, FL_FMT(id));
}

static const struct fl_picker_ops picker_ops = {
    .on_pick = on_pick,
    .on_pick_cancelled = on_pick_cancelled,
    .on_response = on_response,
    .on_first_token = on_first_token,
    .on_response_body = on_response_body,
    .on_response_end = on_response_end,
    .on_warning = on_warning,
};

/* ---- the end of a stream ---- */

static enum fl_extproc_end end_of(const struct fl_extproc_stream *stream)
{
    const struct fl_picker *picker = &stream->picker;

    if (stream->is_stopped)
        return FL_EXTPROC_END_SHUTDOWN;
    if (picker->is_routed && picker->is_response_complete)
        return picker->response_status >= 400 ? FL_EXTPROC_END_UPSTREAM : FL_EXTPROC_END_DONE;
    if (picker->grpc_status != FL_GRPC_OK)
        return FL_EXTPROC_END_FAILED;
    return picker->is_routed ? FL_EXTPROC_END_GONE : FL_EXTPROC_END_REFUSED;
}

/* The only way a stream ends. */
static void close_stream(struct fl_extproc_stream *stream)
{
    struct fl_extproc_server *server = stream->server;

    fl_picker_fini(&stream->picker); /* cancels a pick */
    fl_loop_timer_stop(server->loop, &stream->timer);
    fl_loop_undefer(&stream->pump_later);
    fl_link_unlink(&stream->link);
    server->figures.open_streams--;
    server->ops->on_close(server->owner, stream, end_of(stream));
    fl_grpc_reader_fini(&stream->reader);
    fl_free(stream);
}

/* ---- exchange callbacks of a stream ---- */

static void on_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
{
    struct fl_extproc_stream *stream = owner;

    if (stream->is_ended) {
        drop_body(NULL, x, slice);
        return;
    }
    stream->held += slice.n;
    stream->last_byte_ms = fl_loop_now_ms(stream->server->loop);
    fl_grpc_reader_feed(&stream->reader, slice);
    pump(stream);
}

static void on_end(void *owner, struct fl_exchange *x, const struct fl_fields *trailers)
{
    struct fl_extproc_stream *stream = owner;
    (void)x, (void)trailers;
    stream->has_eof = true;
    stream->is_paused = false;
    pump(stream);
}

static void on_writable(void *owner, struct fl_exchange *x)
{
    (void)x;
    pump(owner);
}

static void on_close(void *owner, struct fl_exchange *x, int rc)
{
    struct fl_extproc_stream *stream = owner;
    (void)x;
    FL_LOG(FL_LOG_DEBUG, "ext_proc stream closed", "rc=%s request_id=%.*s",
           rc < 0 ? fl_error_row(rc)->word : "ok", FL_FMT(fl_picker_request_id(&stream->picker)));
    close_stream(stream);
}

static const struct fl_exchange_handler stream_handler = {
    .on_head = drop_head,
    .on_body = on_body,
    .on_end = on_end,
    .on_writable = on_writable,
    .on_close = on_close,
};

static void open_stream(struct fl_extproc_server *server, struct fl_exchange *x, bool is_end)
{
    struct fl_extproc_stream *stream = fl_calloc(1, sizeof(*stream));
    struct fl_head head;

    stream->server = server;
    stream->x = x;
    fl_picker_init(&stream->picker, &server->config.picker, &picker_ops, stream);
    fl_grpc_reader_init(&stream->reader, fl_picker_max_message(&stream->picker),
                        server->config.budget);
    fl_deferred_init(&stream->pump_later, run_pump);
    fl_timer_init(&stream->timer, on_timer);
    fl_link_push_tail(&server->streams, &stream->link);
    server->figures.open_streams++;
    server->figures.streams++;
    fl_exchange_set_handler(x, &stream_handler, stream);
    /* At once, so that the proxy sees the stream as established (gaie.md 1.1). */
    fl_grpc_response_head(&head, fl_exchange_arena(x));
    fl_exchange_send_head(x, &head, false);
    if (is_end) {
        stream->has_eof = true;
        pump(stream);
    }
}

/* ---- choosing what a request is ---- */

static void refuse_path(struct fl_extproc_server *server, struct fl_exchange *x)
{
    struct fl_arena *arena = fl_exchange_arena(x);
    struct fl_head head;

    server->figures.refused_streams++;
    fl_exchange_set_handler(x, &dropped, NULL);
    fl_grpc_response_head(&head, arena);
    fl_grpc_add_status(&head.fields, arena, FL_GRPC_UNIMPLEMENTED, FL_BYTES("unknown method"));
    fl_exchange_send_head(x, &head, true);
}

static void refuse_type(struct fl_extproc_server *server, struct fl_exchange *x)
{
    server->figures.refused_streams++;
    fl_exchange_set_handler(x, &dropped, NULL);
    fl_exchange_respond(x, 415, "text/plain",
                        FL_BYTES("this port speaks gRPC: content-type application/grpc\n"), NULL);
}

static void on_first_head(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    struct fl_extproc_server *server = owner;
    struct fl_bytes path, query;

    fl_target_split(head->target, &path, &query);
    bool is_process = fl_bytes_eq(path, FL_BYTES(FL_EXTPROC_PATH));
    if (!is_process && server->ops->on_other != NULL &&
        server->ops->on_other(server->owner, x, head, is_end))
        return;
    if (!fl_grpc_is_content_type(fl_fields_get(&head->fields, FL_BYTES("content-type"))))
        refuse_type(server, x);
    else if (!is_process || !fl_bytes_eq(head->method, FL_BYTES("POST")))
        refuse_path(server, x);
    else
        open_stream(server, x, is_end);
}

static const struct fl_exchange_handler first_handler = {
    .on_head = on_first_head, .on_body = drop_body, .on_end = drop_end, .on_close = drop_close};

void fl_extproc_server_on_request(void *server, struct fl_exchange *x)
{
    fl_exchange_set_handler(x, &first_handler, server);
}

/* ---- the server ---- */

struct fl_extproc_server *fl_extproc_server_new(struct fl_loop *loop,
                                                const struct fl_extproc_server_config *config,
                                                const struct fl_extproc_server_ops *ops,
                                                void *owner)
{
    struct fl_extproc_server *server = fl_calloc(1, sizeof(*server));

    server->loop = loop;
    server->config = *config;
    server->ops = ops;
    server->owner = owner;
    fl_link_init(&server->streams);
    return server;
}

void fl_extproc_server_stop(struct fl_extproc_server *server)
{
    FL_LINK_FOREACH(link, &server->streams)
    {
        struct fl_extproc_stream *stream = FL_CONTAINER_OF(link, struct fl_extproc_stream, link);
        stream->is_stopped = true;
        if (fl_picker_can_refuse(&stream->picker)) {
            /* fail() takes the owner's word that it gave the pick up; here it has not. */
            if (stream->picker.state == FL_PICKER_PICKING)
                on_pick_cancelled(stream);
            fl_picker_fail(&stream->picker, FL_EDRAINING, 0);
        } else {
            fl_picker_end(&stream->picker, FL_GRPC_UNAVAILABLE, "endpoint picker shutting down");
        }
        pump_soon(stream);
    }
}

void fl_extproc_server_free(struct fl_extproc_server *server)
{
    if (server == NULL)
        return;
    while (!fl_link_is_alone(&server->streams)) {
        struct fl_extproc_stream *stream =
            FL_CONTAINER_OF(server->streams.next, struct fl_extproc_stream, link);
        stream->is_stopped = true;
        fl_exchange_set_handler(stream->x, &dropped, NULL);
        fl_exchange_abort(stream->x, H2_CANCEL);
        close_stream(stream);
    }
    fl_free(server);
}

void fl_extproc_server_figures(const struct fl_extproc_server *server,
                               struct fl_extproc_server_figures *figures)
{
    *figures = server->figures;
}

void fl_extproc_stream_answer(struct fl_extproc_stream *stream,
                              const struct fl_picker_decision *decision)
{
    fl_picker_answer(&stream->picker, decision);
    pump_soon(stream);
}

void fl_extproc_stream_fail(struct fl_extproc_stream *stream, int code, uint32_t retry_after_s)
{
    fl_picker_fail(&stream->picker, code, retry_after_s);
    pump_soon(stream);
}

void fl_extproc_stream_set_user(struct fl_extproc_stream *stream, void *user)
{
    stream->user = user;
}

void *fl_extproc_stream_user(const struct fl_extproc_stream *stream)
{
    return stream->user;
}

const struct fl_picker *fl_extproc_stream_picker(const struct fl_extproc_stream *stream)
{
    return &stream->picker;
}
