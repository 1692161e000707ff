/* SPDX-License-Identifier: Apache-2.0 */
#include "web/health.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "codec/pb.h"
#include "http2/grpc.h"

/* grpc/health/v1/health.proto */
enum { UNKNOWN = 0, SERVING = 1, NOT_SERVING = 2, SERVICE_UNKNOWN = 3 };
#define CHECK_PATH "/grpc.health.v1.Health/Check"
#define WATCH_PATH "/grpc.health.v1.Health/Watch"

struct fl_health {
    struct fl_loop *loop;
    struct fl_health_names *names;
    struct fl_link watchers;
    uint32_t watcher_count;
    struct fl_timer look;
};

struct call {
    struct fl_link link; /* alone unless watching */
    struct fl_health *health;
    struct fl_exchange *x;
    struct fl_grpc_reader reader;
    char name[256];
    int told; /* last status a watcher was sent */
    bool is_watch, is_answered;
};

void fl_health_add(struct fl_health_names *names, const char *name)
{
    assert(names->count < FL_HEALTH_NAMES_MAX);
    names->rows[names->count].name = name;
    atomic_store(&names->rows[names->count].is_serving, false);
    names->count++;
}

void fl_health_set(struct fl_health_names *names, const char *name, bool is_serving)
{
    for (size_t i = 0; i < names->count; i++) {
        if (strcmp(names->rows[i].name, name) == 0) {
            atomic_store(&names->rows[i].is_serving, is_serving);
            return;
        }
    }
    assert(false && "a name that was not added");
}

static int status_of(struct fl_health_names *names, const char *name)
{
    for (size_t i = 0; i < names->count; i++) {
        if (strcmp(names->rows[i].name, name) == 0)
            return atomic_load(&names->rows[i].is_serving) ? SERVING : NOT_SERVING;
    }
    return SERVICE_UNKNOWN;
}

static void send_status(struct call *call, int status)
{
    uint8_t memory[16];
    struct fl_pb_writer writer;
    fl_pb_writer_init(&writer, memory, sizeof(memory));
    fl_pb_put_varint(&writer, 1, (uint64_t)status);
    fl_exchange_send_body(call->x, fl_grpc_frame(fl_pb_writer_prefix(&writer)));
    fl_pb_writer_fini(&writer);
    call->told = status;
}

static void end_call(struct call *call, int grpc_status, const char *message)
{
    struct fl_fields trailers = {0};
    call->is_answered = true;
    fl_grpc_add_status(&trailers, fl_exchange_arena(call->x), grpc_status, fl_bytes_of(message));
    fl_exchange_send_end(call->x, &trailers);
}

/* The name in a HealthCheckRequest. False: malformed, or longer than any name of ours. */
static bool read_name(struct fl_bytes message, struct call *call)
{
    struct fl_pb_reader reader;
    struct fl_pb_field field;
    int rc;
    fl_pb_reader_init(&reader, message);
    call->name[0] = '\0';
    while ((rc = fl_pb_next(&reader, &field)) > 0) {
        if (field.number != 1 || field.wire != FL_PB_BYTES)
            continue;
        if (!fl_bytes_is_utf8(field.bytes) ||
            !fl_bytes_to_cstr(field.bytes, call->name, sizeof(call->name)))
            return false;
    }
    return rc == 0;
}

static void on_look(struct fl_timer *timer)
{
    struct fl_health *health = FL_CONTAINER_OF(timer, struct fl_health, look);
    FL_LINK_FOREACH(link, &health->watchers)
    {
        struct call *call = FL_CONTAINER_OF(link, struct call, link);
        int status = status_of(health->names, call->name);
        if (status != call->told)
            send_status(call, status);
    }
    if (!fl_link_is_alone(&health->watchers))
        fl_loop_timer_start(health->loop, timer, FL_HEALTH_LOOK_MS);
}

static void answer(struct call *call, struct fl_bytes message)
{
    struct fl_health *health = call->health;
    if (!read_name(message, call)) {
        end_call(call, FL_GRPC_INVALID_ARGUMENT, "malformed HealthCheckRequest");
        return;
    }
    if (call->is_watch && health->watcher_count >= FL_HEALTH_WATCHERS_MAX) {
        end_call(call, FL_GRPC_RESOURCE_EXHAUSTED, "too many watches");
        return;
    }
    send_status(call, status_of(health->names, call->name));
    if (!call->is_watch) {
        end_call(call, FL_GRPC_OK, "");
        return;
    }
    call->is_answered = true;
    health->watcher_count++;
    fl_link_push_tail(&health->watchers, &call->link);
    if (!fl_timer_is_running(&health->look))
        fl_loop_timer_start(health->loop, &health->look, FL_HEALTH_LOOK_MS);
}

static void on_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
{
    struct call *call = owner;
    struct fl_chain message = {0};
    struct fl_slice flat;
    fl_exchange_consume(x, slice.n);
    fl_grpc_reader_feed(&call->reader, slice);
    if (call->is_answered)
        return;
    int rc = fl_grpc_reader_next(&call->reader, &message);
    if (rc > 0 && fl_grpc_flatten(&message, NULL, &flat) == 0) {
        answer(call, fl_slice_bytes(flat));
        fl_slice_unref(&flat);
    } else if (rc < 0) {
        end_call(call, fl_error_row(rc)->grpc_status, "bad request message");
    }
    fl_chain_fini(&message);
}

static void on_end(void *owner, struct fl_exchange *x, const struct fl_fields *trailers)
{
    struct call *call = owner;
    (void)x;
    (void)trailers;
    if (!call->is_answered)
        end_call(call, FL_GRPC_INVALID_ARGUMENT, "no request message");
}

static void on_close(void *owner, struct fl_exchange *x, int rc)
{
    struct call *call = owner;
    (void)x;
    (void)rc;
    if (!fl_link_is_alone(&call->link))
        call->health->watcher_count--;
    fl_link_unlink(&call->link);
    fl_grpc_reader_fini(&call->reader);
    fl_free(call);
}

static void on_head(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    struct call *call = owner;
    struct fl_head answer_head;
    bool is_check = fl_bytes_eq(head->target, FL_BYTES(CHECK_PATH));
    call->is_watch = fl_bytes_eq(head->target, FL_BYTES(WATCH_PATH));
    if (!fl_grpc_is_content_type(fl_fields_get(&head->fields, FL_BYTES("content-type")))) {
        call->is_answered = true;
        fl_exchange_respond(x, 415, "text/plain", FL_BYTES("application/grpc is served here\n"),
                            NULL);
        return;
    }
    fl_grpc_response_head(&answer_head, fl_exchange_arena(x));
    if (is_check || call->is_watch) {
        fl_exchange_send_head(x, &answer_head, false);
        if (is_end)
            end_call(call, FL_GRPC_INVALID_ARGUMENT, "no request message");
        return;
    }
    call->is_answered = true;
    fl_grpc_add_status(&answer_head.fields, fl_exchange_arena(x), FL_GRPC_UNIMPLEMENTED,
                       FL_BYTES("unknown method"));
    fl_exchange_send_head(x, &answer_head, true);
}

static const struct fl_exchange_handler call_handler = {
    .on_head = on_head,
    .on_body = on_body,
    .on_end = on_end,
    .on_close = on_close,
};

static struct call *call_new(struct fl_health *health, struct fl_exchange *x)
{
    struct call *call = fl_calloc(1, sizeof(*call));
    fl_link_init(&call->link);
    call->health = health;
    call->x = x;
    fl_grpc_reader_init(&call->reader, FL_HEALTH_REQUEST_MAX, NULL);
    fl_exchange_set_handler(x, &call_handler, call);
    return call;
}

void fl_health_on_request(void *health, struct fl_exchange *x)
{
    call_new(health, x);
}

bool fl_health_take(struct fl_health *health, struct fl_exchange *x, struct fl_head *head,
                    bool is_end)
{
    if (!fl_bytes_eq(head->target, FL_BYTES(CHECK_PATH)) &&
        !fl_bytes_eq(head->target, FL_BYTES(WATCH_PATH)))
        return false;
    on_head(call_new(health, x), x, head, is_end);
    return true;
}

struct fl_health *fl_health_new(struct fl_loop *loop, struct fl_health_names *names)
{
    struct fl_health *health = fl_calloc(1, sizeof(*health));
    health->loop = loop;
    health->names = names;
    fl_link_init(&health->watchers);
    fl_timer_init(&health->look, on_look);
    return health;
}

void fl_health_free(struct fl_health *health)
{
    if (health == NULL)
        return;
    fl_loop_timer_stop(health->loop, &health->look);
    /* Their exchanges end with their servers; nothing of ours reaches them any more. */
    FL_LINK_FOREACH(link, &health->watchers)
    {
        fl_link_unlink(link);
        fl_exchange_abort(FL_CONTAINER_OF(link, struct call, link)->x, 8);
    }
    fl_free(health);
}
