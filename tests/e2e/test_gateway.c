/* SPDX-License-Identifier: Apache-2.0 */
/* The gateway process between scripted clients, endpoints and pickers, each test with one request
 * loop and with three. */
#include "gateway_rig.h"

#include "base/alloc.h"

static const char unavailable[] =
    "{\"error\":\"epp_unavailable\",\"detail\":\"the endpoint picker did not answer\"}";
static const char no_endpoint[] =
    "{\"error\":\"epp_no_endpoint\",\"detail\":\"the endpoint picker named no usable endpoint\"}";

static const char *loops; /* set by main() between the two runs */

static int setup(void **state)
{
    struct rig *rig = fl_calloc(1, sizeof(*rig));
    static const char *const more[] = {"--max-body-bytes", "1MiB", "--max-buffered-bytes", "64MiB",
                                       NULL};
    rig_start(rig, loops, more);
    *state = rig;
    return 0;
}

static int teardown(void **state)
{
    struct rig *rig = *state;
    rig_stop(rig);
    fl_free(rig);
    return 0;
}

/* No request is left in any book. */
static void wait_quiet(struct rig *rig)
{
    char sample[128];
    snprintf(sample, sizeof(sample), "fairlead_gateway_epp_inflight{epp=\"%s\"}", rig->epp.address);
    WAIT_FOR(rig, metric(rig, sample) <= 0);
    snprintf(sample, sizeof(sample), "fairlead_gateway_epp_streams{epp=\"%s\"}", rig->epp.address);
    WAIT_FOR(rig, metric(rig, sample) <= 0);
    WAIT_FOR(rig, metric(rig, "fairlead_gateway_rules_generations_held") == 1);
}

/* ---- plain rules ---- */

/* gateway.md 7.1 (keep-alive), 10 (sel 0) */
static void requests_on_one_connection_go_round_robin(void **state)
{
    struct rig *rig = *state;
    struct client client;
    assert_int_equal(ask(rig, &client, post_plain(rig), GET), 200);
    for (int i = 0; i < 5; i++) {
        fl_buf_consume(&client.in, client_message(&client));
        client_write(&client, GET);
        WAIT_FOR(rig, client_message(&client) > 0);
        assert_int_equal(client_status(&client), 200);
    }
    client_close(rig, &client);
    assert_int_equal(rig->a.requests, 3);
    assert_int_equal(rig->b.requests, 3);
}

/* gateway.md 7.1, 16.47 (pipelining) */
static void pipelined_requests_are_answered_in_order(void **state)
{
    struct rig *rig = *state;
    struct client client;
    rig->epp.destination = rig->b.address;
    uint16_t port = post_epp(rig, "FailClose", 3000);
    assert_int_equal(ask(rig, &client, port, POST GET), 200);
    fl_buf_consume(&client.in, client_message(&client));
    WAIT_FOR(rig, client_message(&client) > 0);
    assert_int_equal(client_status(&client), 200);
    client_close(rig, &client);
    assert_int_equal(rig->epp.asked, 2);
    assert_int_equal(rig->b.requests, 2);
    assert_non_null(strstr(rig->b.head, "GET /v1/models"));
}

/* gateway.md 7.1: chunked in, streamed on a plain rule */
static void chunked_body_is_streamed_chunked_on_a_plain_rule(void **state)
{
    struct rig *rig = *state;
    expect(rig, post_plain(rig),
           "POST /x HTTP/1.1\r\nHost: svc\r\nTransfer-Encoding: chunked\r\n\r\n"
           "3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
           200, "served by a");
    assert_true(rig->a.was_chunked);
    assert_true(fl_bytes_eq(fl_buf_bytes(&rig->a.body), FL_BYTES("abcde")));
}

/* gateway.md 7.1 (Streaming), 15 S11 */
static void events_reach_the_client_one_by_one(void **state)
{
    struct rig *rig = *state;
    struct client client = {0};
    struct fl_addr addr = rig->rest;
    addr.v4.sin_port = htons(post_plain(rig));
    rig->a.mode = FAKE_BACKEND_HOLD;
    client_open(rig, &client, &addr);
    client_write(&client, POST);
    WAIT_FOR(rig, rig->a.requests == 1);
    fake_backend_send(&rig->a, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n");
    WAIT_FOR(rig, client_has(&client, "data: 1\n\n"));
    assert_false(client_has(&client, "data: 2"));
    fake_backend_send(&rig->a, "9\r\ndata: 2\n\n\r\n");
    WAIT_FOR(rig, client_has(&client, "data: 2\n\n"));
    assert_false(client_has(&client, "0\r\n\r\n"));
    fake_backend_send(&rig->a, "0\r\n\r\n");
    WAIT_FOR(rig, client_has(&client, "0\r\n\r\n"));
    client_close(rig, &client);
}

/* gateway.md 8.7, 16.49 */
static void response_cut_by_the_endpoint_is_cut_for_the_client(void **state)
{
    struct rig *rig = *state;
    struct client client = {0};
    struct fl_addr addr = rig->rest;
    addr.v4.sin_port = htons(post_plain(rig));
    rig->a.mode = FAKE_BACKEND_HOLD;
    client_open(rig, &client, &addr);
    client_write(&client, GET);
    WAIT_FOR(rig, rig->a.requests == 1);
    fake_backend_send(&rig->a, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                               "4\r\nhalf\r\n");
    WAIT_FOR(rig, client_has(&client, "half"));
    fake_backend_close(&rig->a, true);
    WAIT_FOR(rig, client.is_closed);
    assert_false(client_has(&client, "0\r\n\r\n"));
    client_close(rig, &client);
}

/* gateway.md 7 (backend_protocol_error), 16.59 */
static void endpoint_without_a_valid_head_is_502(void **state)
{
    struct rig *rig = *state;
    uint16_t port = post_plain(rig);
    rig->a.mode = FAKE_BACKEND_CLOSE;
    expect(rig, port, POST, 502, "\"error\":\"backend_protocol_error\"");
    rig->b.reply = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok";
    expect(rig, port, GET, 502, "\"error\":\"backend_protocol_error\"");
}

/* gateway.md 8.3 */
static void dead_endpoint_is_passed_over(void **state)
{
    struct rig *rig = *state;
    uint16_t port = post_plain(rig);
    fake_backend_stop(&rig->a);
    for (int i = 0; i < 4; i++)
        expect(rig, port, POST, 200, "served by b");
    assert_true(fl_bytes_eq(fl_buf_bytes(&rig->b.body), FL_BYTES(POST_BODY)));
    fake_backend_stop(&rig->b);
    expect(rig, port, POST, 502, "\"error\":\"backend_unreachable\"");
}

/* gateway.md 8.4: a reused connection that dies silently; GET may be sent twice */
static void request_on_a_connection_that_dies_is_sent_again(void **state)
{
    struct rig *rig = *state;
    uint16_t port = post_plain(rig);
    fake_backend_stop(&rig->b);
    expect(rig, port, GET, 200, "served by a");
    uint32_t before = rig->a.accepted;
    expect(rig, port, GET, 200, "served by a");
    expect(rig, port, GET, 200, "served by a");
    rig->a.mode = FAKE_BACKEND_CLOSE_AT_HEAD;
    for (int i = 0; i < 3; i++)
        expect(rig, port, GET, 200, "served by a");
    assert_true(rig->a.accepted > before);
}

/* gateway.md 7.1: hop-by-hop, X-Forwarded-*, 16.60, 16.65, 16.78 */
static void request_fields_are_cleaned_and_completed(void **state)
{
    struct rig *rig = *state;
    struct client client;
    char value[256], answer[300];
    uint16_t port = post_plain(rig);
    assert_int_equal(ask(rig, &client, port,
                         "GET /x HTTP/1.1\r\nHost: svc\r\nConnection: x-prefiller-host-port\r\n"
                         "x-prefiller-host-port: 1.2.3.4:5\r\nX-Forwarded-For: 1.2.3.4\r\n"
                         "Keep-Alive: timeout=5\r\nX-Two: 1\r\nX-Two: 2\r\n"
                         "X-Request-Id: a b\r\n\r\n"),
                     200);
    assert_true(fake_backend_header(&rig->a, "X-Forwarded-For", value, sizeof(value)));
    assert_string_equal(value, "127.0.0.1");
    assert_true(fake_backend_header(&rig->a, "X-Forwarded-Proto", value, sizeof(value)));
    assert_string_equal(value, "http");
    assert_true(fake_backend_header(&rig->a, "Host", value, sizeof(value)));
    assert_string_equal(value, "svc");
    assert_false(fake_backend_header(&rig->a, "x-prefiller-host-port", value, sizeof(value)));
    assert_false(fake_backend_header(&rig->a, "Keep-Alive", value, sizeof(value)));
    assert_non_null(strstr(rig->a.head, "X-Two: 1\r\nX-Two: 2\r\n"));
    assert_true(fake_backend_header(&rig->a, "X-Request-Id", value, sizeof(value)));
    assert_int_equal(strlen(value), 36);
    snprintf(answer, sizeof(answer), "X-Request-Id: %s\r\n", value);
    assert_true(client_has(&client, answer));
    client_close(rig, &client);
    expect(rig, port, "GET /x HTTP/1.1\r\nHost: svc\r\nX-Request-Id: r-1\r\n\r\n", 200,
           "X-Request-Id: r-1\r\n");
}

/* gateway.md 7.3, 16.42 to 16.44 */
static void ambiguous_lengths_are_refused_and_reach_nobody(void **state)
{
    struct rig *rig = *state;
    static const struct {
        const char *why, *lines;
        int status;
    } rows[] = {
        {"both lengths", "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", 400},
        {"two lengths", "Content-Length: 1\r\nContent-Length: 2\r\n", 400},
        {"trailing comma", "Transfer-Encoding: chunked,\r\n", 400},
        {"unknown coding", "Transfer-Encoding: xchunked\r\n", 501},
    };
    uint16_t port = post_plain(rig);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        char request[256];
        struct client client;
        snprintf(request, sizeof(request), "POST / HTTP/1.1\r\nHost: svc\r\n%s\r\n", rows[i].lines);
        if (ask(rig, &client, port, request) != rows[i].status)
            fail_msg("%s: %.*s", rows[i].why, FL_FMT(fl_buf_bytes(&client.in)));
        WAIT_FOR(rig, client.is_closed);
        client_close(rig, &client);
    }
    assert_int_equal(rig->a.accepted + rig->b.accepted, 0);
}

/* ---- rules with a picker ---- */

/* gateway.md 9.2, 16.18, 16.37 */
static void picker_decides_and_is_told_the_response(void **state)
{
    struct rig *rig = *state;
    char value[256];
    expect(rig, post_epp(rig, "FailClose", 3000), POST, 200, "served by b");
    WAIT_FOR(rig, rig->epp.completed == 1);
    assert_int_equal(rig->a.requests, 0);
    assert_true(fl_bytes_eq(fl_buf_bytes(&rig->epp.body), FL_BYTES(POST_BODY)));
    assert_true(fl_bytes_eq(fl_buf_bytes(&rig->b.body), FL_BYTES(POST_BODY)));
    assert_string_equal(rig->epp.events, "HBhbe");
    assert_string_equal(rig->epp.response_status, "200");
    assert_string_equal(rig->epp.served, rig->b.address);
    assert_true(fl_bytes_eq(fl_buf_bytes(&rig->epp.response_body), FL_BYTES("served by b")));
    assert_true(fake_epp_header(&rig->epp, ":method", value, sizeof(value)));
    assert_string_equal(value, "POST");
    assert_true(fake_epp_header(&rig->epp, ":authority", value, sizeof(value)));
    assert_string_equal(value, "svc");
    assert_int_equal(metric(rig, "loxilb_ai_epp_requests_total{outcome=\"ok\"}"), 1);
    wait_quiet(rig);
}

/* gateway.md 16.64 */
static void request_without_a_body_ends_with_its_headers(void **state)
{
    struct rig *rig = *state;
    expect(rig, post_epp(rig, "FailClose", 3000), GET, 200, "served by b");
    assert_true(rig->epp.headers_end);
    WAIT_FOR(rig, rig->epp.completed == 1);
    assert_string_equal(rig->epp.events, "Hhbe");
}

/* gateway.md 16.34 */
static void every_request_of_a_connection_is_asked_anew(void **state)
{
    struct rig *rig = *state;
    struct client client;
    uint16_t port = post_epp(rig, "FailClose", 3000);
    assert_int_equal(ask(rig, &client, port, POST), 200);
    for (int i = 0; i < 2; i++) {
        fl_buf_consume(&client.in, client_message(&client));
        rig->epp.destination = rig->a.address;
        client_write(&client, POST);
        WAIT_FOR(rig, client_message(&client) > 0);
    }
    client_close(rig, &client);
    assert_int_equal(rig->epp.asked, 3);
    assert_int_equal(rig->a.requests, 2);
    assert_int_equal(rig->b.requests, 1);
    WAIT_FOR(rig, rig->epp.completed == 3 && rig->epp.open == 0);
}

/* gateway.md 9.7, 16.20 to 16.22: each kind of failure in both modes */
static void failing_picker_is_503_or_the_selector(void **state)
{
    struct rig *rig = *state;
    static const struct {
        const char *why;
        enum fake_epp_mode mode;
    } rows[] = {
        {"no answer in time", FAKE_EPP_SILENT}, {"stream ends with OK and no answer", FAKE_EPP_END},
        {"gRPC error", FAKE_EPP_ERROR},         {"stream reset", FAKE_EPP_RESET},
        {"no protobuf", FAKE_EPP_GARBAGE},
    };
    uint16_t closed = post_epp(rig, "FailClose", 300);
    uint16_t open = post_epp(rig, "FailOpen", 300);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        rig->epp.mode = rows[i].mode;
        print_message("%s\n", rows[i].why);
        expect(rig, closed, POST, 503, unavailable);
        expect(rig, open, POST, 200, "served by ");
    }
    fake_epp_stop(&rig->epp);
    expect(rig, closed, POST, 503, unavailable);
    expect(rig, open, POST, 200, "served by ");
    assert_int_equal(metric(rig, "loxilb_ai_epp_requests_total{outcome=\"error\"}"), 12);
    assert_int_equal(rig->a.requests + rig->b.requests, 6);
    wait_quiet(rig);
}

/* gateway.md 9.5, 16.19, 16.20, 16.29 */
static void candidates_are_tried_in_order(void **state)
{
    struct rig *rig = *state;
    char list[512], more[256], arguments[512];
    uint16_t dead = free_port();
    snprintf(more, sizeof(more), ",{\"endpointIP\":\"127.0.0.1\",\"targetPort\":%u,\"weight\":1}",
             dead);
    snprintf(arguments, sizeof(arguments), ",\"eppEndpoint\":\"%s\",\"eppPlaintext\":true",
             rig->epp.address);
    uint16_t closed = post_rule(rig, arguments, more);
    snprintf(arguments, sizeof(arguments),
             ",\"eppEndpoint\":\"%s\",\"eppPlaintext\":true,\"eppFailureMode\":\"FailOpen\"",
             rig->epp.address);
    uint16_t open = post_rule(rig, arguments, "");

    snprintf(list, sizeof(list), "10.9.9.9:1, 127.0.0.1:%u,%s", dead, rig->a.address);
    rig->epp.destination = list;
    expect(rig, closed, POST, 200, "served by a");
    WAIT_FOR(rig, rig->epp.completed == 1);
    assert_string_equal(rig->epp.served, rig->a.address);
    assert_int_equal(metric(rig, "loxilb_ai_epp_candidates_rejected_total{reason=\"unknown\"}"), 1);
    assert_int_equal(
        metric(rig, "loxilb_ai_epp_candidates_rejected_total{reason=\"connect_failed\"}"), 1);

    /* Only four are considered. */
    snprintf(list, sizeof(list), "10.9.9.1:1,10.9.9.2:1,10.9.9.3:1,10.9.9.4:1,%s", rig->a.address);
    expect(rig, closed, POST, 503, no_endpoint);
    expect(rig, open, POST, 200, "served by ");
    /* The picker frees what it booked: such a stream is reset. */
    WAIT_FOR(rig, rig->epp.cancelled == 2);
    assert_int_equal(metric(rig, "loxilb_ai_epp_requests_total{outcome=\"no_endpoint\"}"), 2);
    wait_quiet(rig);
}

/* gateway.md 16.27 */
static void destination_may_stand_in_metadata_alone(void **state)
{
    struct rig *rig = *state;
    rig->epp.destination = NULL;
    rig->epp.metadata_destination = rig->a.address;
    expect(rig, post_epp(rig, "FailClose", 3000), POST, 200, "served by a");
}

/* gateway.md 9.6, 16.26 */
static void immediate_response_is_relayed_in_both_modes(void **state)
{
    struct rig *rig = *state;
    static const char *const modes[] = {"FailClose", "FailOpen"};
    rig->epp.mode = FAKE_EPP_IMMEDIATE;
    rig->epp.immediate_status = 429;
    rig->epp.immediate_body = "{\"error\":\"shed\"}";
    for (size_t i = 0; i < FL_ARRAY_LEN(modes); i++) {
        struct client client;
        assert_int_equal(ask(rig, &client, post_epp(rig, modes[i], 3000), POST), 429);
        assert_true(client_has(&client, "Retry-After: 1\r\n") ||
                    client_has(&client, "retry-after: 1\r\n"));
        assert_true(client_has(&client, "Content-Length: 16\r\n"));
        assert_true(client_has(&client, "\r\n\r\n{\"error\":\"shed\"}"));
        client_close(rig, &client);
    }
    assert_int_equal(metric(rig, "loxilb_ai_epp_requests_total{outcome=\"immediate\"}"), 2);
    wait_quiet(rig);
}

/* gateway.md 9.4, 16.30, 16.31, 16.33 */
static void mutations_reach_the_endpoint_and_clients_cannot_choose(void **state)
{
    struct rig *rig = *state;
    char value[256], request[512];
    struct fl_field sets[] = {
        {FL_BYTES("x-prefiller-host-port"), FL_BYTES("9.9.9.9:9")},
        {FL_BYTES("content-length"), FL_BYTES("5")},
        {FL_BYTES(":path"), FL_BYTES("/evil")},
    };
    rig->epp.sets = sets;
    rig->epp.set_count = FL_ARRAY_LEN(sets);
    rig->epp.removed = "x-drop";
    snprintf(request, sizeof(request),
             "POST /v1/completions HTTP/1.1\r\nHost: svc\r\nX-Drop: 1\r\n"
             "x-gateway-destination-endpoint: %s\r\nContent-Length: 27\r\n\r\n" POST_BODY,
             rig->a.address);
    expect(rig, post_epp(rig, "FailClose", 3000), request, 200, "served by b");
    assert_false(
        fake_epp_header(&rig->epp, "x-gateway-destination-endpoint", value, sizeof(value)));
    assert_true(fake_backend_header(&rig->b, "x-prefiller-host-port", value, sizeof(value)));
    assert_string_equal(value, "9.9.9.9:9");
    assert_false(fake_backend_header(&rig->b, "X-Drop", value, sizeof(value)));
    assert_false(
        fake_backend_header(&rig->b, "x-gateway-destination-endpoint", value, sizeof(value)));
    assert_true(fake_backend_header(&rig->b, "Content-Length", value, sizeof(value)));
    assert_string_equal(value, "27");
    assert_non_null(strstr(rig->b.head, "POST /v1/completions HTTP/1.1\r\n"));
}

/* gateway.md 9.4, 16.32 */
static void body_that_the_picker_rewrites_replaces_the_client_s(void **state)
{
    struct rig *rig = *state;
    char value[64];
    rig->epp.new_body = "{\"model\":\"other\"}";
    expect(rig, post_epp(rig, "FailClose", 3000), POST, 200, "served by b");
    assert_true(fl_bytes_eq(fl_buf_bytes(&rig->b.body), FL_BYTES("{\"model\":\"other\"}")));
    assert_true(fake_backend_header(&rig->b, "Content-Length", value, sizeof(value)));
    assert_string_equal(value, "17");
}

static void post_large(struct client *client, const char *framing, size_t n)
{
    uint8_t *bytes = fl_alloc(n);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(i * 31 + i / 251);
    client_write(client, "POST /v1/completions HTTP/1.1\r\nHost: svc\r\n");
    client_write(client, framing);
    fl_stream_write_copy(client->stream, fl_bytes(bytes, n));
    fl_free(bytes);
}

static bool is_large(struct fl_bytes body, size_t n)
{
    if (body.n != n)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (body.p[i] != (uint8_t)(i * 31 + i / 251))
            return false;
    }
    return true;
}

/* gateway.md 16.46, 16.63: chunked upload in pieces of 64 KiB to the picker, Content-Length to the
 * endpoint, with pickers that answer once and pickers that answer every message */
static void chunked_upload_is_kept_shown_and_forwarded_whole(void **state)
{
    struct rig *rig = *state;
    static const size_t size = 300 << 10;
    static const enum fake_epp_mode modes[] = {FAKE_EPP_ANSWER, FAKE_EPP_PER_MESSAGE};
    uint16_t port = post_epp(rig, "FailClose", 3000);
    for (size_t i = 0; i < FL_ARRAY_LEN(modes); i++) {
        struct client client;
        char framing[96], value[64];
        struct fl_addr addr = rig->rest;
        addr.v4.sin_port = htons(port);
        rig->epp.mode = modes[i];
        client_open(rig, &client, &addr);
        snprintf(framing, sizeof(framing), "Transfer-Encoding: chunked\r\n\r\n%zx\r\n", size);
        post_large(&client, framing, size);
        client_write(&client, "\r\n0\r\n\r\n");
        WAIT_FOR(rig, client_message(&client) > 0);
        assert_int_equal(client_status(&client), 200);
        client_close(rig, &client);
        assert_true(is_large(fl_buf_bytes(&rig->epp.body), size));
        assert_true(rig->epp.largest_message <= 65536);
        assert_true(is_large(fl_buf_bytes(&rig->b.body), size));
        assert_false(rig->b.was_chunked);
        assert_true(fake_backend_header(&rig->b, "Content-Length", value, sizeof(value)));
        assert_string_equal(value, "307200");
    }
}

/* gateway.md 16.48: --max-body-bytes at its edge and beyond, declared and chunked */
static void kept_body_is_served_at_the_cap_and_refused_beyond(void **state)
{
    struct rig *rig = *state;
    static const size_t cap = 1 << 20;
    static const struct {
        const char *why;
        size_t bytes;
        bool is_chunked;
        int status;
    } rows[] = {
        {"one below", cap - 1, false, 200},         {"at the cap, declared", cap, false, 200},
        {"at the cap, chunked", cap, true, 200},    {"one above, declared", cap + 1, false, 413},
        {"one above, chunked", cap + 1, true, 413},
    };
    uint16_t port = post_epp(rig, "FailClose", 5000);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct client client;
        char framing[96];
        struct fl_addr addr = rig->rest;
        addr.v4.sin_port = htons(port);
        client_open(rig, &client, &addr);
        snprintf(framing, sizeof(framing),
                 rows[i].is_chunked ? "Transfer-Encoding: chunked\r\n\r\n%zx\r\n"
                                    : "Content-Length: %zu\r\n\r\n",
                 rows[i].bytes);
        post_large(&client, framing, rows[i].bytes);
        if (rows[i].is_chunked)
            client_write(&client, "\r\n0\r\n\r\n");
        WAIT_FOR(rig, client_message(&client) > 0 || client.is_closed);
        if (client_status(&client) != rows[i].status)
            fail_msg("%s: %.*s", rows[i].why, FL_FMT(fl_bytes_head(fl_buf_bytes(&client.in), 300)));
        client_close(rig, &client);
    }
    WAIT_FOR(rig, rig->epp.open == 0);
    /* Each loop's listener and pool keep the chunk they read into; a forgotten body is 1 MiB. */
    WAIT_FOR(rig, metric(rig, "fairlead_gateway_buffered_bytes") < (512 << 10));
}

/* gateway.md 7.1, 16.45 */
static void expected_continue_is_answered_by_the_gateway(void **state)
{
    struct rig *rig = *state;
    struct client client;
    char value[64];
    struct fl_addr addr = rig->rest;
    addr.v4.sin_port = htons(post_epp(rig, "FailClose", 3000));
    client_open(rig, &client, &addr);
    client_write(&client, "POST /v1/completions HTTP/1.1\r\nHost: svc\r\nExpect: 100-continue\r\n"
                          "Content-Length: 27\r\n\r\n");
    WAIT_FOR(rig, client_has(&client, "HTTP/1.1 100 Continue\r\n\r\n"));
    fl_buf_clear(&client.in);
    client_write(&client, POST_BODY);
    WAIT_FOR(rig, client_message(&client) > 0);
    assert_int_equal(client_status(&client), 200);
    client_close(rig, &client);
    assert_false(fake_backend_header(&rig->b, "Expect", value, sizeof(value)));
}

/* gateway.md 8.6, 9.9, 16.36: nothing is counted, the stream is reset */
static void client_that_leaves_while_waiting_cancels_the_question(void **state)
{
    struct rig *rig = *state;
    struct client client;
    struct fl_addr addr = rig->rest;
    addr.v4.sin_port = htons(post_epp(rig, "FailClose", 60000));
    rig->epp.mode = FAKE_EPP_SILENT;
    client_open(rig, &client, &addr);
    client_write(&client, POST);
    WAIT_FOR(rig, rig->epp.asked == 1);
    client_close(rig, &client);
    WAIT_FOR(rig, rig->epp.cancelled == 1);
    assert_int_equal(rig->a.requests + rig->b.requests, 0);
    for (size_t i = 0; i < 3; i++) {
        static const char *const outcomes[] = {"ok", "error", "no_endpoint"};
        char sample[96];
        snprintf(sample, sizeof(sample), "loxilb_ai_epp_requests_total{outcome=\"%s\"}",
                 outcomes[i]);
        assert_int_equal(metric(rig, sample), 0);
    }
    wait_quiet(rig);
}

/* gateway.md 16.39 */
static void client_that_leaves_in_a_stream_ends_endpoint_and_picker(void **state)
{
    struct rig *rig = *state;
    struct client client;
    struct fl_addr addr = rig->rest;
    addr.v4.sin_port = htons(post_epp(rig, "FailClose", 3000));
    rig->b.mode = FAKE_BACKEND_HOLD;
    client_open(rig, &client, &addr);
    client_write(&client, POST);
    WAIT_FOR(rig, rig->b.requests == 1);
    fake_backend_send(&rig->b, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                               "4\r\nhalf\r\n");
    WAIT_FOR(rig, client_has(&client, "half"));
    client_close(rig, &client);
    WAIT_FOR(rig, rig->b.cut == 1);
    WAIT_FOR(rig, rig->epp.cancelled == 1);
    assert_int_equal(rig->epp.completed, 0);
    wait_quiet(rig);
}

/* gateway.md 9.6, 16.38 */
static void evicted_stream_is_cut_without_an_end(void **state)
{
    struct rig *rig = *state;
    struct client client;
    struct fl_addr addr = rig->rest;
    addr.v4.sin_port = htons(post_epp(rig, "FailClose", 3000));
    rig->b.mode = FAKE_BACKEND_HOLD;
    rig->epp.evicts = true;
    rig->epp.immediate_status = 429;
    client_open(rig, &client, &addr);
    client_write(&client, POST);
    WAIT_FOR(rig, rig->b.requests == 1);
    fake_backend_send(&rig->b, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n");
    WAIT_FOR(rig, client.is_closed);
    assert_false(client_has(&client, "0\r\n\r\n"));
    client_close(rig, &client);
    WAIT_FOR(rig, rig->b.cut == 1);
    assert_int_equal(metric(rig, "loxilb_ai_epp_requests_total{outcome=\"evicted\"}"), 1);
    wait_quiet(rig);
}

/* gateway.md 16.67 */
static void picker_that_ends_after_its_answer_is_no_error(void **state)
{
    struct rig *rig = *state;
    rig->epp.mode = FAKE_EPP_ANSWER_END;
    expect(rig, post_epp(rig, "FailClose", 3000), POST, 200, "served by b");
    assert_int_equal(metric(rig, "loxilb_ai_epp_requests_total{outcome=\"ok\"}"), 1);
    assert_int_equal(metric(rig, "loxilb_ai_epp_requests_total{outcome=\"error\"}"), 0);
    wait_quiet(rig);
}

/* gateway.md 16.35 */
static void waiting_requests_do_not_hold_up_others(void **state)
{
    struct rig *rig = *state;
    struct client waiting[16];
    struct fl_addr addr = rig->rest;
    addr.v4.sin_port = htons(post_epp(rig, "FailClose", 60000));
    uint16_t plain = post_plain(rig);
    rig->epp.mode = FAKE_EPP_SILENT;
    for (size_t i = 0; i < FL_ARRAY_LEN(waiting); i++) {
        client_open(rig, &waiting[i], &addr);
        client_write(&waiting[i], POST);
    }
    WAIT_FOR(rig, rig->epp.asked == FL_ARRAY_LEN(waiting));
    for (int i = 0; i < 8; i++)
        expect(rig, plain, GET, 200, "served by ");
    for (size_t i = 0; i < FL_ARRAY_LEN(waiting); i++) {
        assert_int_equal(fl_buf_size(&waiting[i].in), 0);
        client_close(rig, &waiting[i]);
    }
    WAIT_FOR(rig, rig->epp.cancelled == FL_ARRAY_LEN(waiting));
    wait_quiet(rig);
}

/* gateway.md 16.66 */
static void answer_to_head_is_told_as_headers_and_an_end(void **state)
{
    struct rig *rig = *state;
    struct client client = {0};
    struct fl_addr addr = rig->rest;
    addr.v4.sin_port = htons(post_epp(rig, "FailClose", 3000));
    rig->b.reply = "HTTP/1.1 200 OK\r\nContent-Length: 42\r\n\r\n";
    client_open(rig, &client, &addr);
    client_write(&client, "HEAD /v1/models HTTP/1.1\r\nHost: svc\r\n\r\n");
    WAIT_FOR(rig, client_has(&client, "\r\n\r\n"));
    assert_int_equal(client_status(&client), 200);
    assert_true(client_has(&client, "Content-Length: 42\r\n"));
    WAIT_FOR(rig, rig->epp.completed == 1);
    assert_string_equal(rig->epp.events, "Hhe");
    client_close(rig, &client);
}

/* gateway.md 7 (backend_timeout), 8.8: before the head an error, after it a cut */
static void silent_endpoint_is_given_up(void **state)
{
    struct rig *rig = *state;
    struct client client;
    uint16_t port = post_rule(rig, ",\"timeoutMemberData\":200", "");
    struct fl_addr addr = rig->rest;
    addr.v4.sin_port = htons(port);
    rig->a.mode = rig->b.mode = FAKE_BACKEND_HOLD;
    expect(rig, port, POST, 504, "\"error\":\"backend_timeout\"");
    WAIT_FOR(rig, rig->a.cut == 1);
    client_open(rig, &client, &addr);
    client_write(&client, POST);
    WAIT_FOR(rig, rig->b.requests == 1);
    fake_backend_send(&rig->b, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
    WAIT_FOR(rig, client.is_closed);
    assert_true(client_has(&client, "half"));
    client_close(rig, &client);
    WAIT_FOR(rig, rig->b.cut == 1);
}

/* gateway.md 5.4, 7 (no_route, service_paused), 16.54 (empty list), 9.5 (weight 0 may be named) */
static void rule_that_cannot_serve_says_why(void **state)
{
    struct rig *rig = *state;
    char rule[1024];
    expect(rig, post_rule(rig, ",\"adminStateUp\":false", ""), GET, 503,
           "\"error\":\"service_paused\"");
    expect(rig, post_rule(rig, ",\"path_prefix\":\"/v2\",\"path_match_mode\":\"prefix\"", ""), GET,
           503, "\"error\":\"no_route\"");

    uint16_t port = free_port();
    snprintf(rule, sizeof(rule),
             "{\"endpoints\":[],\"serviceArguments\":{\"externalIP\":\"127.0.0.1\",\"port\":%u,"
             "\"protocol\":\"tcp\",\"mode\":4,\"eppEndpoint\":\"%s\",\"eppPlaintext\":true}}",
             port, rig->epp.address);
    post_text(rig, rule);
    expect(rig, port, POST, 503, no_endpoint);
    assert_int_equal(rig->epp.asked, 0);

    port = free_port();
    snprintf(rule, sizeof(rule),
             "{\"endpoints\":[{\"endpointIP\":\"127.0.0.1\",\"targetPort\":%u,\"weight\":1},"
             "{\"endpointIP\":\"127.0.0.1\",\"targetPort\":%u,\"weight\":0}],"
             "\"serviceArguments\":{\"externalIP\":\"127.0.0.1\",\"port\":%u,"
             "\"protocol\":\"tcp\",\"mode\":4,\"eppEndpoint\":\"%s\",\"eppPlaintext\":true}}",
             fl_addr_port(&rig->a.addr), fl_addr_port(&rig->b.addr), port, rig->epp.address);
    post_text(rig, rule);
    expect(rig, port, POST, 200, "served by b");
}

/* gateway.md 5.5 */
static void peer_outside_the_allowed_sources_is_closed(void **state)
{
    struct rig *rig = *state;
    struct client client;
    char rule[1024];
    uint16_t port = free_port();
    snprintf(rule, sizeof(rule),
             "{\"endpoints\":[{\"endpointIP\":\"127.0.0.1\",\"targetPort\":%u,\"weight\":1}],"
             "\"allowedSources\":[{\"prefix\":\"192.0.2.0/24\"}],"
             "\"serviceArguments\":{\"externalIP\":\"127.0.0.1\",\"port\":%u,"
             "\"protocol\":\"tcp\",\"mode\":4}}",
             fl_addr_port(&rig->a.addr), port);
    post_text(rig, rule);
    assert_int_equal(ask(rig, &client, port, GET), 0);
    client_close(rig, &client);
    assert_int_equal(rig->a.accepted, 0);
}

/* ---- rules over REST ---- */

/* gateway.md 5.1, 16.2, 16.3, 16.15: live when answered, gone when answered */
static void rule_is_live_and_gone_when_rest_says_so(void **state)
{
    struct rig *rig = *state;
    struct client client;
    char rule[4096], path[256];
    uint16_t port = free_port();
    write_rule(rig, rule, port, "", "");
    snprintf(path, sizeof(path),
             "/config/loadbalancer/externalipaddress/127.0.0.1/port/%u/protocol/tcp?bgp=false",
             port);
    for (int i = 0; i < 5; i++) {
        post_text(rig, rule);
        expect(rig, port, GET, 200, "served by ");
        assert_int_equal(rest_call(rig, &client, "POST", "/config/loadbalancer", rule), 409);
        assert_true(client_has(&client, "\"result\":\"lbrule-exists error\""));
        client_close(rig, &client);
        assert_int_equal(rest_call(rig, &client, "DELETE", path, ""), 200);
        assert_true(client_has(&client, "{\"result\":\"Success\"}"));
        client_close(rig, &client);
        assert_int_equal(ask(rig, &client, port, GET), 0);
        client_close(rig, &client);
        assert_int_equal(rest_call(rig, &client, "DELETE", path, ""), 404);
        assert_true(client_has(&client, "no-rule error"));
        client_close(rig, &client);
    }
    WAIT_FOR(rig, metric(rig, "fairlead_gateway_rules_generations_held") == 1);
}

/* gateway.md 4.6, 16.4, 16.75: the same listener, the new picker, on connections of every loop */
static void replaced_rule_asks_the_new_picker_at_once(void **state)
{
    struct rig *rig = *state;
    struct fake_epp other = {0};
    struct client clients[6];
    char rule[4096], arguments[256];
    uint16_t port = free_port();
    struct fl_addr addr = rig->rest;
    addr.v4.sin_port = htons(port);
    fake_epp_start(&other, rig->loop);
    other.destination = rig->a.address;
    snprintf(arguments, sizeof(arguments), ",\"eppEndpoint\":\"%s\",\"eppPlaintext\":true",
             rig->epp.address);
    write_rule(rig, rule, port, arguments, "");
    post_text(rig, rule);
    for (size_t i = 0; i < FL_ARRAY_LEN(clients); i++) {
        client_open(rig, &clients[i], &addr);
        client_write(&clients[i], POST);
        WAIT_FOR(rig, client_message(&clients[i]) > 0);
        fl_buf_clear(&clients[i].in);
    }
    snprintf(arguments, sizeof(arguments), ",\"eppEndpoint\":\"%s\",\"eppPlaintext\":true",
             other.address);
    write_rule(rig, rule, port, arguments, "");
    post_text(rig, rule);
    for (size_t i = 0; i < FL_ARRAY_LEN(clients); i++) {
        client_write(&clients[i], POST);
        WAIT_FOR(rig, client_message(&clients[i]) > 0);
        assert_true(client_has(&clients[i], "served by a"));
        client_close(rig, &clients[i]);
    }
    assert_int_equal(rig->epp.asked, FL_ARRAY_LEN(clients));
    assert_int_equal(other.asked, FL_ARRAY_LEN(clients));
    WAIT_FOR(rig, other.open == 0);
    fake_epp_stop(&other);
}

/* gateway.md 16.75: requests under way while their rule is replaced are all served, and every
 * generation is given back */
static void replacing_a_rule_under_load_loses_nothing(void **state)
{
    struct rig *rig = *state;
    struct client clients[4];
    char rule[4096], arguments[256];
    uint16_t port = free_port();
    struct fl_addr addr = rig->rest;
    addr.v4.sin_port = htons(port);
    snprintf(arguments, sizeof(arguments), ",\"eppEndpoint\":\"%s\",\"eppPlaintext\":true",
             rig->epp.address);
    write_rule(rig, rule, port, arguments, "");
    post_text(rig, rule);
    for (size_t k = 0; k < FL_ARRAY_LEN(clients); k++)
        client_open(rig, &clients[k], &addr);
    for (uint32_t i = 0; i < 50; i++) {
        for (size_t k = 0; k < FL_ARRAY_LEN(clients); k++)
            client_write(&clients[k], POST);
        snprintf(arguments, sizeof(arguments),
                 ",\"eppEndpoint\":\"%s\",\"eppPlaintext\":true,\"eppTimeoutMs\":%u",
                 rig->epp.address, 5000 + i);
        write_rule(rig, rule, port, arguments, "");
        post_text(rig, rule);
        for (size_t k = 0; k < FL_ARRAY_LEN(clients); k++) {
            WAIT_FOR(rig, client_message(&clients[k]) > 0);
            assert_int_equal(client_status(&clients[k]), 200);
            fl_buf_consume(&clients[k].in, client_message(&clients[k]));
        }
    }
    for (size_t k = 0; k < FL_ARRAY_LEN(clients); k++)
        client_close(rig, &clients[k]);
    assert_int_equal(rig->b.requests, 200);
    WAIT_FOR(rig, rig->epp.completed == 200);
    wait_quiet(rig);
}

/* gateway.md 4.4, 16.17 */
static void address_that_cannot_be_bound_is_refused(void **state)
{
    struct rig *rig = *state;
    struct client client;
    assert_int_equal(rest_call(rig, &client, "POST", "/config/loadbalancer",
                               "{\"endpoints\":[{\"endpointIP\":\"127.0.0.1\",\"targetPort\":1,"
                               "\"weight\":1}],\"serviceArguments\":{\"externalIP\":\"192.0.2.1\","
                               "\"port\":80,\"protocol\":\"tcp\",\"mode\":4}}"),
                     400);
    assert_true(client_has(&client, "service-args error: cannot bind"));
    client_close(rig, &client);
    assert_int_equal(rest_call(rig, &client, "GET", "/config/loadbalancer/all", ""), 200);
    assert_true(client_has(&client, "\r\nContent-Type: application/json\r\n") ||
                client_has(&client, "\r\ncontent-type: application/json\r\n"));
    assert_true(client_has(&client, "{\"lbAttr\":[]}"));
    client_close(rig, &client);
}

/* gateway.md 12, 16.55: SIGTERM in the middle of a response */
static void stream_under_way_completes_after_sigterm(void **state)
{
    struct rig *rig = *state;
    struct client client;
    struct fl_addr addr = rig->rest;
    addr.v4.sin_port = htons(post_epp(rig, "FailClose", 3000));
    rig->b.mode = FAKE_BACKEND_HOLD;
    client_open(rig, &client, &addr);
    client_write(&client, POST);
    WAIT_FOR(rig, rig->b.requests == 1);
    fake_backend_send(&rig->b, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                               "4\r\nhalf\r\n");
    WAIT_FOR(rig, client_has(&client, "half"));
    fl_process_kill(rig->process, SIGTERM);
    /* The listener is closed when nobody gets in any more. */
    struct client late = {0};
    do {
        fl_buf_fini(&late.in);
        client_open(rig, &late, &addr);
        WAIT_FOR(rig, late.is_closed || fl_stream_is_open(late.stream));
        bool was_open = !late.is_closed;
        client_close(rig, &late);
        if (!was_open)
            break;
    } while (true);
    assert_false(rig->has_exited);
    fake_backend_send(&rig->b, "4\r\nrest\r\n0\r\n\r\n");
    WAIT_FOR(rig, client_has(&client, "rest"));
    WAIT_FOR(rig, client_has(&client, "0\r\n\r\n"));
    WAIT_FOR(rig, client.is_closed);
    client_close(rig, &client);
    WAIT_FOR(rig, rig->has_exited);
    assert_int_equal(rig->epp.completed, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(requests_on_one_connection_go_round_robin),
        TEST(pipelined_requests_are_answered_in_order),
        TEST(chunked_body_is_streamed_chunked_on_a_plain_rule),
        TEST(events_reach_the_client_one_by_one),
        TEST(response_cut_by_the_endpoint_is_cut_for_the_client),
        TEST(endpoint_without_a_valid_head_is_502),
        TEST(dead_endpoint_is_passed_over),
        TEST(request_on_a_connection_that_dies_is_sent_again),
        TEST(request_fields_are_cleaned_and_completed),
        TEST(ambiguous_lengths_are_refused_and_reach_nobody),
        TEST(picker_decides_and_is_told_the_response),
        TEST(request_without_a_body_ends_with_its_headers),
        TEST(every_request_of_a_connection_is_asked_anew),
        TEST(failing_picker_is_503_or_the_selector),
        TEST(candidates_are_tried_in_order),
        TEST(destination_may_stand_in_metadata_alone),
        TEST(immediate_response_is_relayed_in_both_modes),
        TEST(mutations_reach_the_endpoint_and_clients_cannot_choose),
        TEST(body_that_the_picker_rewrites_replaces_the_client_s),
        TEST(chunked_upload_is_kept_shown_and_forwarded_whole),
        TEST(kept_body_is_served_at_the_cap_and_refused_beyond),
        TEST(expected_continue_is_answered_by_the_gateway),
        TEST(client_that_leaves_while_waiting_cancels_the_question),
        TEST(client_that_leaves_in_a_stream_ends_endpoint_and_picker),
        TEST(evicted_stream_is_cut_without_an_end),
        TEST(picker_that_ends_after_its_answer_is_no_error),
        TEST(waiting_requests_do_not_hold_up_others),
        TEST(answer_to_head_is_told_as_headers_and_an_end),
        TEST(silent_endpoint_is_given_up),
        TEST(rule_that_cannot_serve_says_why),
        TEST(peer_outside_the_allowed_sources_is_closed),
        TEST(rule_is_live_and_gone_when_rest_says_so),
        TEST(replaced_rule_asks_the_new_picker_at_once),
        TEST(replacing_a_rule_under_load_loses_nothing),
        TEST(address_that_cannot_be_bound_is_refused),
        TEST(stream_under_way_completes_after_sigterm),
    };
    signal(SIGPIPE, SIG_IGN);
    /* A failed test leaves its connections behind, on a stack that is gone: the first one ends the
     * run. */
    setenv("CMOCKA_TEST_ABORT", "1", 1);
    loops = "1";
    int failed = cmocka_run_group_tests_name("one loop", tests, NULL, NULL);
    loops = "3";
    failed += cmocka_run_group_tests_name("three loops", tests, NULL, NULL);
    return failed;
}
