/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/pb.h"
#include "fixture.h"
#include "http2/grpc.h"
#include "web/health.h"

#define CHECK "/grpc.health.v1.Health/Check"
#define WATCH "/grpc.health.v1.Health/Watch"

struct health_call {
    struct fl_exchange *x;
    struct fl_grpc_reader reader;
    struct fl_arena arena;
    int statuses[8], count;
    int http_status, grpc_status, closes;
    struct fl_head *head;
};

static void hc_on_head(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    struct health_call *call = owner;
    (void)x;
    call->http_status = head->status;
    call->head = head;
    if (is_end)
        call->grpc_status = fl_grpc_read_status(head, NULL, &call->arena, NULL);
}

static void hc_on_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
{
    struct health_call *call = owner;
    struct fl_chain message = {0};
    fl_exchange_consume(x, slice.n);
    fl_grpc_reader_feed(&call->reader, slice);
    while (fl_grpc_reader_next(&call->reader, &message) == 1) {
        uint8_t bytes[8] = {0};
        assert_true(message.bytes <= sizeof(bytes));
        fl_chain_copy_out(&message, 0, bytes, message.bytes);
        /* HealthCheckResponse{1 status} */
        call->statuses[call->count++] = message.bytes == 0 ? 0 : bytes[1];
        fl_chain_fini(&message);
    }
}

static void hc_on_end(void *owner, struct fl_exchange *x, const struct fl_fields *trailers)
{
    struct health_call *call = owner;
    (void)x;
    call->grpc_status = fl_grpc_read_status(call->head, trailers, &call->arena, NULL);
}

static void hc_on_close(void *owner, struct fl_exchange *x, int rc)
{
    struct health_call *call = owner;
    (void)x;
    (void)rc;
    call->closes++;
}

static const struct fl_exchange_handler handler = {
    .on_head = hc_on_head, .on_body = hc_on_body, .on_end = hc_on_end, .on_close = hc_on_close};

static void call_start(struct fixture *f, struct health_call *call, const char *path,
                       struct fl_bytes frame)
{
    struct fl_web_target target = target_of(f, FL_WEB_H2);
    struct fl_head head;
    memset(call, 0, sizeof(*call));
    call->grpc_status = -1;
    fl_grpc_reader_init(&call->reader, 1000, NULL);
    call->x = fl_web_pool_open(f->pool, &target, false, &handler, call);
    fl_grpc_request_head(&head, fl_exchange_arena(call->x), FL_BYTES("http"), FL_BYTES("t"),
                         fl_bytes_of(path));
    fl_exchange_send_head(call->x, &head, false);
    if (frame.n > 0)
        fl_exchange_send_body_copy(call->x, frame);
    fl_exchange_send_end(call->x, NULL);
}

static struct fl_slice request_for(const char *name)
{
    uint8_t message[64] = {0x0a, (uint8_t)strlen(name)};
    memcpy(message + 2, name, strlen(name));
    return fl_grpc_frame(fl_bytes(message, name[0] != '\0' ? 2 + strlen(name) : 0));
}

static void call_fini(struct health_call *call)
{
    fl_grpc_reader_fini(&call->reader);
    fl_arena_fini(&call->arena);
}

static void fixture_with(struct fixture *f, struct fl_health_names *names,
                         struct fl_health **health)
{
    static const char *const all[] = {"", "readiness", "liveness"};
    memset(names, 0, sizeof(*names));
    for (size_t i = 0; i < FL_ARRAY_LEN(all); i++)
        fl_health_add(names, all[i]);
    fixture_init(f);
    *health = fl_health_new(f->loop, names);
    f->server_config.on_request = fl_health_on_request;
    f->server_config.owner = *health;
    f->server_config.http1 = false;
    fixture_listen(f, true);
}

/* gaie.md 9.5, epp.md 1.4: the table of names */
static void check_answers_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int status;
    } rows[] = {{"", 2}, {"readiness", 2}, {"liveness", 1}, {"nobody", 3}};
    struct fixture f;
    struct fl_health_names names;
    struct fl_health *health;
    fixture_with(&f, &names, &health);
    fl_health_set(&names, "liveness", true);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct health_call call;
        struct fl_slice frame = request_for(rows[i].name);
        call_start(&f, &call, CHECK, fl_slice_bytes(frame));
        fl_slice_unref(&frame);
        TURN_UNTIL(&f, call.closes == 1);
        assert_int_equal(call.http_status, 200);
        assert_int_equal(call.grpc_status, 0);
        assert_int_equal(call.count, 1);
        assert_int_equal(call.statuses[0], rows[i].status);
        call_fini(&call);
    }
    fl_health_free(health);
    fixture_fini(&f);
}

/* epp.md 1.4: Watch sends the current value at once and again on each change */
static void watch_tells_changes(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_health_names names;
    struct fl_health *health;
    struct health_call call, unknown;
    fixture_with(&f, &names, &health);
    struct fl_slice frame = request_for("readiness");
    call_start(&f, &call, WATCH, fl_slice_bytes(frame));
    fl_slice_unref(&frame);
    frame = request_for("nobody");
    call_start(&f, &unknown, WATCH, fl_slice_bytes(frame));
    fl_slice_unref(&frame);
    TURN_UNTIL(&f, call.count == 1 && unknown.count == 1);
    assert_int_equal(call.statuses[0], 2);
    assert_int_equal(unknown.statuses[0], 3);
    fl_health_set(&names, "readiness", true);
    TURN_UNTIL(&f, call.count == 2);
    assert_int_equal(call.statuses[1], 1);
    fl_health_set(&names, "readiness", false);
    TURN_UNTIL(&f, call.count == 3);
    assert_int_equal(call.statuses[2], 2);
    assert_int_equal(unknown.count, 1);
    assert_int_equal(call.closes, 0);
    fl_exchange_abort(unknown.x, 8);
    TURN_UNTIL(&f, unknown.closes == 1);
    fl_health_free(health);
    TURN_UNTIL(&f, call.closes == 1);
    call_fini(&call);
    call_fini(&unknown);
    fixture_fini(&f);
}

/* gaie.md 1.9: unknown method 12; malformed request 3; over the limit 8 */
static void bad_calls_end_with_a_status(void **state)
{
    (void)state;
    static const struct {
        const char *why, *path;
        uint8_t frame[16];
        size_t n;
        int grpc_status;
    } rows[] = {
        {"unknown method", "/grpc.health.v1.Health/Sing", {0, 0, 0, 0, 0}, 5, 12},
        {"no message", CHECK, {0}, 0, 3},
        {"cut protobuf", CHECK, {0, 0, 0, 0, 2, 0x0a, 9}, 7, 3},
        {"name is no UTF-8", CHECK, {0, 0, 0, 0, 3, 0x0a, 1, 0xff}, 8, 3},
        {"compressed", CHECK, {1, 0, 0, 0, 0}, 5, 12},
        {"too long", CHECK, {0, 0, 0, 0x10, 1}, 5, 8},
    };
    struct fixture f;
    struct fl_health_names names;
    struct fl_health *health;
    fixture_with(&f, &names, &health);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct health_call call;
        call_start(&f, &call, rows[i].path, fl_bytes(rows[i].frame, rows[i].n));
        TURN_UNTIL(&f, call.closes == 1);
        if (call.grpc_status != rows[i].grpc_status)
            fail_msg("%s: %d", rows[i].why, call.grpc_status);
        call_fini(&call);
    }
    fl_health_free(health);
    fixture_fini(&f);
}

/* gaie.md 1.1: another content type is HTTP 415 */
static void other_content_types_are_refused(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_health_names names;
    struct fl_health *health;
    struct seen seen = {0};
    fixture_with(&f, &names, &health);
    ask(&f, &seen, FL_WEB_H2, CHECK, "{}");
    TURN_UNTIL(&f, seen.closes == 1);
    assert_int_equal(seen.status, 415);
    seen_reset(&seen);
    fl_health_free(health);
    fixture_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_answers_by_name),
        cmocka_unit_test(watch_tells_changes),
        cmocka_unit_test(bad_calls_end_with_a_status),
        cmocka_unit_test(other_content_types_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
