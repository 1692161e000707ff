/* SPDX-License-Identifier: Apache-2.0 */
/* The server's face over HTTP/1.1, against raw clients. */
#include "fixture.h"

#define GET "GET /hello HTTP/1.1\r\nHost: t\r\n\r\n"

/* gateway.md 7.1: keep-alive is the default of 1.1; of 1.0 only with Connection: keep-alive */
static void connection_is_kept_as_the_version_says(void **state)
{
    (void)state;
    static const struct {
        const char *why, *request;
        bool kept;
    } rows[] = {
        {"1.1", "GET / HTTP/1.1\r\nHost: t\r\n\r\n", true},
        {"1.1 with close", "GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", false},
        {"1.0", "GET / HTTP/1.0\r\n\r\n", false},
        {"1.0 with keep-alive", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", true},
        {"the handler's wish", "GET /close HTTP/1.1\r\nHost: t\r\n\r\n", false},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fixture f;
        static struct raw raw;
        fixture_init(&f);
        fixture_listen(&f, true);
        raw_connect(&raw, &f);
        raw_send(&f, &raw, rows[i].request);
        TURN_UNTIL(&f, raw_has(&raw, "hello") || raw_has(&raw, "bye"));
        if (rows[i].kept) {
            raw_send(&f, &raw, GET);
            TURN_UNTIL(&f, raw_count(&raw, "200 OK") == 2);
            assert_false(raw.is_eof);
            assert_int_equal(fl_web_server_connections(f.server), 1);
        } else {
            TURN_UNTIL(&f, raw_ended(&raw));
            raw_close(&raw);
            TURN_UNTIL(&f, fl_web_server_connections(f.server) == 0);
        }
        assert_int_equal(f.requests[0].rc, 0);
        raw_close(&raw);
        fixture_fini(&f);
    }
}

/* gateway.md 7.1: pipelined requests are served strictly one after the other */
static void pipelined_requests_are_served_in_order(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raw;
    fixture_init(&f);
    f.answers_late = true;
    fixture_listen(&f, true);
    raw_connect(&raw, &f);
    raw_send(&f, &raw,
             "GET /1 HTTP/1.1\r\nHost: t\r\n\r\n"
             "POST /2 HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc"
             "GET /3 HTTP/1.1\r\nHost: t\r\n\r\n");
    for (int i = 0; i < 3; i++) {
        char body[16];
        TURN_UNTIL(&f, f.request_count == i + 1 && f.requests[i].ends == 1);
        turn_some(&f);
        assert_int_equal(f.request_count, i + 1);
        snprintf(body, sizeof(body), "r%d", i + 1);
        fl_exchange_respond(f.requests[i].x, 200, "text/plain", fl_bytes_of(body), NULL);
        TURN_UNTIL(&f, raw_has(&raw, body));
    }
    assert_string_equal(f.requests[1].target, "/2");
    assert_body(&f.requests[1], "abc");
    raw_close(&raw);
    fixture_fini(&f);
}

/* gateway.md 7.1: while one request is in progress at most one bounded buffer is read ahead */
static void reading_ahead_is_bounded(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raw;
    static char many[1 << 20];
    fixture_init(&f);
    f.answers_late = true;
    fixture_listen(&f, true);
    raw_connect(&raw, &f);
    raw_send(&f, &raw, GET);
    TURN_UNTIL(&f, f.request_count == 1);
    /* The socket buffers take some, then the sender is stopped: nobody reads for it. */
    memset(many, 'x', sizeof(many));
    size_t sent = 0;
    uint64_t quiet_from_ms = now_ms();
    while (now_ms() - quiet_from_ms < 200 && sent < 64 * sizeof(many)) {
        ssize_t n = send(raw.fd, many, sizeof(many), MSG_NOSIGNAL);
        if (n > 0) {
            sent += (size_t)n;
            quiet_from_ms = now_ms();
        }
        fl_loop_turn(f.loop, 1);
    }
    assert_true(sent < 64 * sizeof(many));
    assert_int_equal(f.request_count, 1);
    raw_close(&raw);
    fixture_fini(&f);
}

/* gateway.md 7.1: a chunked request is decoded; trailers follow */
static void chunked_request_is_decoded_wherever_it_is_cut(void **state)
{
    (void)state;
    static const char request[] = "POST /echo HTTP/1.1\r\nHost: t\r\nTE: trailers\r\n"
                                  "Transfer-Encoding: chunked\r\n\r\n"
                                  "4\r\nwiki\r\n6;ext=1\r\npedia \r\n0\r\nX-Sum: 7\r\n\r\n";
    for (size_t cut = 1; cut <= sizeof(request) - 1; cut += cut < 8 ? 1 : 13) {
        struct fixture f;
        static struct raw raw;
        fixture_init(&f);
        fixture_listen(&f, true);
        raw_connect(&raw, &f);
        for (size_t at = 0; at < sizeof(request) - 1; at += cut) {
            size_t n = sizeof(request) - 1 - at < cut ? sizeof(request) - 1 - at : cut;
            raw_send_n(&f, &raw, request + at, n);
        }
        TURN_UNTIL(&f, raw_has(&raw, "x-sum: 42\r\n\r\n"));
        assert_body(&f.requests[0], "wikipedia ");
        assert_string_equal(f.requests[0].trailer, "7");
        assert_true(raw_has(&raw, "a\r\nwikipedia \r\n0\r\n"));
        raw_close(&raw);
        fixture_fini(&f);
    }
}

/* gateway.md 7.1: response trailers only to clients that sent TE: trailers */
static void trailers_go_only_to_clients_that_take_them(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raw;
    fixture_init(&f);
    fixture_listen(&f, true);
    raw_connect(&raw, &f);
    raw_send(&f, &raw, "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nhi");
    TURN_UNTIL(&f, raw_has(&raw, "\r\n0\r\n\r\n"));
    assert_false(raw_has(&raw, "x-sum"));
    raw_close(&raw);
    fixture_fini(&f);
}

/* gateway.md 7.1: close-delimited to a 1.0 client */
static void answer_of_unknown_length_is_close_delimited_for_1_0(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raw;
    fixture_init(&f);
    fixture_listen(&f, true);
    raw_connect(&raw, &f);
    raw_send(&f, &raw,
             "POST /echo HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi");
    TURN_UNTIL(&f, raw_ended(&raw));
    assert_non_null(strstr(raw.in, "\r\n\r\nhi"));
    assert_null(strstr(raw.in, "chunked"));
    assert_string_equal(raw.in + raw.n - 2, "hi");
    raw_close(&raw);
    fixture_fini(&f);
}

/* gateway.md 7.1: HEAD, 204, 304 have no body, whatever the length fields say */
static void answers_without_body_have_none(void **state)
{
    (void)state;
    static const struct {
        const char *why, *request, *must_have;
    } rows[] = {
        {"HEAD", "HEAD /hello HTTP/1.1\r\nHost: t\r\n\r\n", "Content-Length: 5"},
        {"204", "GET /nothing HTTP/1.1\r\nHost: t\r\n\r\n", "204 No Content"},
        {"304", "GET /not-modified HTTP/1.1\r\nHost: t\r\n\r\n", "304 Not Modified"},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fixture f;
        static struct raw raw;
        fixture_init(&f);
        fixture_listen(&f, true);
        raw_connect(&raw, &f);
        raw_send(&f, &raw, rows[i].request);
        TURN_UNTIL(&f, raw_has(&raw, "\r\n\r\n"));
        assert_true(raw_has(&raw, rows[i].must_have));
        assert_string_equal(raw.in + raw.n - 4, "\r\n\r\n");
        raw_send(&f, &raw, GET);
        TURN_UNTIL(&f, raw_has(&raw, "hello"));
        raw_close(&raw);
        fixture_fini(&f);
    }
}

static void bad_words(void *owner, int status, const char *word, struct fl_buf *body,
                      const char **content_type)
{
    (void)owner;
    *content_type = "application/json";
    fl_buf_printf(body, "{\"error\":\"%s\",\"status\":%d}", word, status);
}

/* gateway.md 7, table of errors; 7.3 */
static void bad_head_is_answered_and_closes(void **state)
{
    (void)state;
    static const struct {
        const char *request, *status, *word;
    } rows[] = {
        {"GET / HTTP/1.1\r\n\r\n", "400", "bad_request"},
        {"GET / HTTP/1.1\r\nHost: t\nX: y\r\n\r\n", "400", "bad_request"},
        {"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
         "400", "bad_request"},
        {"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip\r\n\r\n", "501", "not_implemented"},
        {"GET / HTTP/2.7\r\nHost: t\r\n\r\n", "505", "http_version"},
        {"POST / HTTP/1.1\r\nHost: t\r\nExpect: wonders\r\nContent-Length: 2\r\n\r\nab", "417",
         "expectation_failed"},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fixture f;
        static struct raw raw;
        char expected[128];
        fixture_init(&f);
        f.server_config.on_bad_request = bad_words;
        fixture_listen(&f, true);
        raw_connect(&raw, &f);
        raw_send(&f, &raw, rows[i].request);
        TURN_UNTIL(&f, raw_ended(&raw));
        snprintf(expected, sizeof(expected), "{\"error\":\"%s\",\"status\":%s}", rows[i].word,
                 rows[i].status);
        if (strstr(raw.in, expected) == NULL)
            fail_msg("row %zu: %s", i, raw.in);
        assert_non_null(strstr(raw.in, "Connection: close"));
        assert_non_null(strstr(raw.in, "application/json"));
        assert_int_equal(f.request_count, 0);
        raw_close(&raw);
        fixture_fini(&f);
    }
}

/* gateway.md 7: 431 above the limits of a head; the edge itself is served */
static void head_limits_have_edges(void **state)
{
    (void)state;
    static const char base[] = "GET /hello HTTP/1.1\r\nHost: t\r\nX: \r\n\r\n";
    static const struct {
        const char *why;
        size_t bytes;
        const char *status;
    } rows[] = {
        {"one below", 999, "200 OK"}, {"at the limit", 1000, "200 OK"}, {"one above", 1001, "431"}};
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fixture f;
        static struct raw raw;
        char request[1100];
        fixture_init(&f);
        f.server_config.max_header_bytes = 1000;
        fixture_listen(&f, true);
        raw_connect(&raw, &f);
        size_t fill = rows[i].bytes - (sizeof(base) - 1);
        int n = snprintf(request, sizeof(request),
                         "GET /hello HTTP/1.1\r\nHost: t\r\nX: %0*d\r\n\r\n", (int)fill, 0);
        assert_int_equal(n, rows[i].bytes);
        raw_send(&f, &raw, request);
        TURN_UNTIL(&f, raw_has(&raw, "HTTP/1.1"));
        if (!raw_has(&raw, rows[i].status))
            fail_msg("%s: %s", rows[i].why, raw.in);
        raw_close(&raw);
        fixture_fini(&f);
    }
}

/* gateway.md 7: a body chunk that is malformed: 400 if nothing was answered yet */
static void bad_chunk_is_answered_while_nothing_was(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raw;
    fixture_init(&f);
    fixture_listen(&f, true);
    raw_connect(&raw, &f);
    raw_send(&f, &raw,
             "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcX\r\n");
    TURN_UNTIL(&f, raw_ended(&raw));
    assert_non_null(strstr(raw.in, "HTTP/1.1 400 "));
    assert_int_equal(f.requests[0].rc, FL_EPROTO);
    raw_close(&raw);
    fixture_fini(&f);
}

/* gateway.md 7: 408 when the head is not complete in time, or a body stalls; silence without a byte
 */
static void slow_clients_are_timed_out(void **state)
{
    (void)state;
    static const struct {
        const char *why, *request;
        bool is_answered;
    } rows[] = {
        {"half a head", "GET / HTTP/1.1\r\nHo", true},
        {"half a body", "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\nabc", true},
        {"not a byte", "", false},
        {"blank lines only", "\r\n\r\n", false},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fixture f;
        static struct raw raw;
        fixture_init(&f);
        f.server_config.head_timeout_ms = 50;
        f.server_config.idle_timeout_ms = 60;
        fixture_listen(&f, true);
        raw_connect(&raw, &f);
        raw_send(&f, &raw, rows[i].request);
        TURN_UNTIL(&f, raw_ended(&raw));
        if ((strstr(raw.in, "HTTP/1.1 408 ") != NULL) != rows[i].is_answered)
            fail_msg("%s: %s", rows[i].why, raw.in);
        if (f.request_count > 0)
            assert_int_equal(f.requests[0].rc, FL_ETIMEOUT);
        raw_close(&raw);
        fixture_fini(&f);
    }
}

/* gateway.md 7.1: idle between requests, inactiveTimeOut */
static void idle_connection_is_closed_after_its_time(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raw;
    fixture_init(&f);
    f.server_config.idle_timeout_ms = 80;
    fixture_listen(&f, true);
    raw_connect(&raw, &f);
    raw_send(&f, &raw, GET);
    TURN_UNTIL(&f, raw_has(&raw, "hello"));
    assert_false(raw.is_eof);
    TURN_UNTIL(&f, raw_ended(&raw));
    assert_null(strstr(raw.in, "408"));
    raw_close(&raw);
    fixture_fini(&f);
}

/* gateway.md 7: keep-alive after a locally made answer only if the whole request was read */
static void early_answer_closes(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raw;
    fixture_init(&f);
    f.answers_late = true;
    fixture_listen(&f, true);
    raw_connect(&raw, &f);
    raw_send(&f, &raw, "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\nabc");
    TURN_UNTIL(&f, f.request_count == 1 && fl_buf_size(&f.requests[0].body) == 3);
    fl_exchange_respond(f.requests[0].x, 413, "text/plain", FL_BYTES("large"), NULL);
    TURN_UNTIL(&f, raw_ended(&raw));
    assert_non_null(strstr(raw.in, "413"));
    assert_non_null(strstr(raw.in, "Connection: close"));
    assert_non_null(strstr(raw.in, "large"));
    assert_int_equal(f.requests[0].rc, 0);
    raw_close(&raw);
    fixture_fini(&f);
}

/* gateway.md 7.1: 100 Continue on request, not to a 1.0 client */
static void continue_is_sent_to_those_who_expect_it(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raw;
    fixture_init(&f);
    fixture_listen(&f, true);
    raw_connect(&raw, &f);
    raw_send(&f, &raw,
             "POST / HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    TURN_UNTIL(&f, raw_has(&raw, "HTTP/1.1 100 Continue\r\n\r\n"));
    raw_send(&f, &raw, "ab");
    TURN_UNTIL(&f, raw_has(&raw, "hello"));
    raw_close(&raw);
    fixture_fini(&f);
}

/* gateway.md 8.6: a client that leaves ends its exchange at once */
static void client_that_leaves_is_noticed(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        struct fixture f;
        static struct raw raw;
        fixture_init(&f);
        f.answers_late = true;
        fixture_listen(&f, true);
        raw_connect(&raw, &f);
        raw_send(&f, &raw,
                 how == 0 ? "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nab" : GET);
        TURN_UNTIL(&f, f.request_count == 1);
        if (how == 2) {
            struct linger hard = {.l_onoff = 1};
            setsockopt(raw.fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
        }
        raw_close(&raw);
        TURN_UNTIL(&f, f.requests[0].closes == 1);
        assert_int_equal(f.requests[0].rc, FL_ECLOSED);
        TURN_UNTIL(&f, fl_web_server_connections(f.server) == 0);
        fixture_fini(&f);
    }
}

/* gateway.md 8.7: closed inside a message, so that the client can see the truncation */
static void abort_is_visible_as_truncation(void **state)
{
    (void)state;
    static const struct {
        const char *why, *request;
        uint8_t body;
        bool is_reset;
    } rows[] = {
        {"chunked", GET, FL_BODY_STREAM, false},
        {"length", GET, FL_BODY_LENGTH, false},
        {"close-delimited", "GET / HTTP/1.0\r\n\r\n", FL_BODY_STREAM, true},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fixture f;
        static struct raw raw;
        fixture_init(&f);
        f.answers_late = true;
        fixture_listen(&f, true);
        raw_connect(&raw, &f);
        raw_send(&f, &raw, rows[i].request);
        TURN_UNTIL(&f, f.request_count == 1);
        struct fl_exchange *x = f.requests[0].x;
        struct fl_head head = {.status = 200,
                               .body = rows[i].body,
                               .content_length = 10,
                               .arena = fl_exchange_arena(x)};
        fl_exchange_send_head(x, &head, false);
        fl_exchange_send_body_copy(x, FL_BYTES("part"));
        TURN_UNTIL(&f, raw_has(&raw, "part"));
        fl_exchange_abort(x, 2);
        assert_int_equal(f.requests[0].closes, 0); /* not from inside the call */
        TURN_UNTIL(&f, f.requests[0].closes == 1);
        assert_int_equal(f.requests[0].rc, FL_ECANCELLED);
        TURN_UNTIL(&f, raw_ended(&raw));
        assert_null(strstr(raw.in, "\r\n0\r\n\r\n"));
        assert_int_equal(raw.is_reset, rows[i].is_reset);
        raw_close(&raw);
        fixture_fini(&f);
    }
}

/* A declared length that the handler does not keep must not look complete. */
static void short_or_long_body_against_its_length_breaks_the_connection(void **state)
{
    (void)state;
    static const char *const bodies[] = {"short", "longer than ten"};
    for (size_t i = 0; i < FL_ARRAY_LEN(bodies); i++) {
        struct fixture f;
        static struct raw raw;
        fixture_init(&f);
        f.answers_late = true;
        fixture_listen(&f, true);
        raw_connect(&raw, &f);
        raw_send(&f, &raw, GET);
        TURN_UNTIL(&f, f.request_count == 1);
        struct fl_exchange *x = f.requests[0].x;
        struct fl_head head = {.status = 200,
                               .body = FL_BODY_LENGTH,
                               .content_length = 10,
                               .arena = fl_exchange_arena(x)};
        fl_exchange_send_head(x, &head, false);
        fl_exchange_send_body_copy(x, fl_bytes_of(bodies[i]));
        fl_exchange_send_end(x, NULL);
        TURN_UNTIL(&f, f.requests[0].closes == 1);
        assert_int_equal(f.requests[0].rc, FL_EPROTO);
        TURN_UNTIL(&f, raw_ended(&raw));
        raw_close(&raw);
        fixture_fini(&f);
    }
}

/* gateway.md 7.1: reading stops when more than the window is held, and goes on when it is given
 * back */
static void held_body_stops_the_sender(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raw;
    static char body[8 << 20];
    fixture_init(&f);
    f.answers_late = true;
    f.keeps_bodies = true;
    f.server_config.budget = &f.budget;
    fixture_listen(&f, true);
    raw_connect(&raw, &f);
    for (size_t i = 0; i < sizeof(body); i++)
        body[i] = (char)('a' + i % 23);
    char head[128];
    snprintf(head, sizeof(head), "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: %zu\r\n\r\n",
             sizeof(body));
    raw_send(&f, &raw, head);
    size_t sent = 0;
    struct seen *seen = &f.requests[0];
    uint64_t quiet_from_ms = now_ms();
    while (now_ms() - quiet_from_ms < 150) {
        ssize_t n =
            sent < sizeof(body) ? send(raw.fd, body + sent, sizeof(body) - sent, MSG_NOSIGNAL) : 0;
        if (n > 0) {
            sent += (size_t)n;
            quiet_from_ms = now_ms();
        }
        fl_loop_turn(f.loop, 1);
    }
    assert_true(seen->held >= FL_STREAM_HIGH_BYTES);
    assert_true(seen->held <= FL_STREAM_HIGH_BYTES + FL_CHUNK_MAX_BYTES);
    /* Large reads arrive by reference, in large pieces. */
    assert_true(seen->biggest > 16384);
    uint64_t deadline_ms = now_ms() + WAIT_MS;
    while (seen->ends == 0) {
        assert_true(now_ms() < deadline_ms);
        if (sent < sizeof(body)) {
            ssize_t n = send(raw.fd, body + sent, sizeof(body) - sent, MSG_NOSIGNAL);
            sent += n > 0 ? (size_t)n : 0;
        }
        fl_exchange_consume(seen->x, seen->held);
        seen->held = 0;
        fl_loop_turn(f.loop, 1);
    }
    assert_int_equal(fl_buf_size(&seen->body), sizeof(body));
    assert_memory_equal(fl_buf_bytes(&seen->body).p, body, sizeof(body));
    fl_exchange_respond(seen->x, 200, "text/plain", FL_BYTES("ok"), NULL);
    TURN_UNTIL(&f, raw_has(&raw, "ok"));
    raw_close(&raw);
    fixture_fini(&f);
}

/* gateway.md 7.1: stop above 256 KiB, go on at 64 KiB */
static void writable_is_told_once_after_the_peer_has_taken(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raw;
    static char piece[65536];
    fixture_init(&f);
    f.answers_late = true;
    fixture_listen(&f, true);
    raw_connect(&raw, &f);
    raw_send(&f, &raw, GET);
    TURN_UNTIL(&f, f.request_count == 1);
    struct seen *seen = &f.requests[0];
    struct fl_head head = {.status = 200,
                           .body = FL_BODY_STREAM,
                           .content_length = UINT64_MAX,
                           .arena = fl_exchange_arena(seen->x)};
    fl_exchange_send_head(seen->x, &head, false);
    size_t produced = 0;
    /* Loopback takes megabytes: fill until it takes no more. */
    while (fl_exchange_queued(seen->x) <= FL_EXCHANGE_HIGH_BYTES && produced < (64u << 20)) {
        fl_exchange_send_body_copy(seen->x, fl_bytes(piece, sizeof(piece)));
        produced += sizeof(piece);
        fl_loop_turn(f.loop, 0);
    }
    assert_true(produced < (64u << 20));
    turn_some(&f);
    assert_int_equal(seen->writables, 0);
    uint64_t deadline_ms = now_ms() + WAIT_MS;
    while (seen->writables == 0) {
        assert_true(now_ms() < deadline_ms);
        raw.n = 0;
        raw_recv(&raw);
        fl_loop_turn(f.loop, 1);
    }
    assert_true(fl_exchange_queued(seen->x) <= FL_EXCHANGE_LOW_BYTES);
    fl_exchange_send_end(seen->x, NULL);
    TURN_UNTIL(&f, (raw.n = 0, raw_recv(&raw), seen->closes == 1));
    assert_int_equal(seen->rc, 0);
    assert_int_equal(seen->writables, 1);
    raw_close(&raw);
    fixture_fini(&f);
}

/* A client that does not read its answer within the idle limit is given up. */
static void client_that_reads_nothing_is_given_up(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raw;
    static char piece[65536];
    fixture_init(&f);
    f.answers_late = true;
    f.server_config.idle_timeout_ms = 100;
    f.server_config.head_timeout_ms = 100;
    fixture_listen(&f, true);
    raw_connect(&raw, &f);
    raw_send(&f, &raw, GET);
    TURN_UNTIL(&f, f.request_count == 1);
    struct seen *seen = &f.requests[0];
    struct fl_head head = {.status = 200,
                           .body = FL_BODY_STREAM,
                           .content_length = UINT64_MAX,
                           .arena = fl_exchange_arena(seen->x)};
    fl_exchange_send_head(seen->x, &head, false);
    uint64_t deadline_ms = now_ms() + WAIT_MS;
    while (seen->closes == 0) {
        assert_true(now_ms() < deadline_ms);
        if (fl_exchange_queued(seen->x) <= FL_EXCHANGE_HIGH_BYTES)
            fl_exchange_send_body_copy(seen->x, fl_bytes(piece, sizeof(piece)));
        fl_loop_turn(f.loop, 1);
    }
    assert_int_equal(seen->rc, FL_ETIMEOUT);
    raw_close(&raw);
    fixture_fini(&f);
}

/* A handler that thinks longer than the idle limit is not the client's fault. */
static void thinking_is_not_a_stall(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raw;
    fixture_init(&f);
    f.answers_late = true;
    f.server_config.idle_timeout_ms = 30;
    f.server_config.head_timeout_ms = 30;
    fixture_listen(&f, true);
    raw_connect(&raw, &f);
    raw_send(&f, &raw, GET);
    TURN_UNTIL(&f, f.request_count == 1);
    uint64_t until_ms = now_ms() + 150;
    while (now_ms() < until_ms)
        fl_loop_turn(f.loop, 5);
    assert_int_equal(f.requests[0].closes, 0);
    fl_exchange_respond(f.requests[0].x, 200, "text/plain", FL_BYTES("late"), NULL);
    TURN_UNTIL(&f, raw_has(&raw, "late"));
    raw_close(&raw);
    fixture_fini(&f);
}

/* gateway.md 7: above --max-connections answered 503 on accept, then closed */
static void connections_above_the_limit_are_answered_503(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raws[3];
    fixture_init(&f);
    f.server_config.max_connections = 2;
    f.server_config.on_bad_request = bad_words;
    fixture_listen(&f, true);
    for (int i = 0; i < 2; i++) {
        raw_connect(&raws[i], &f);
        raw_send(&f, &raws[i], GET);
        TURN_UNTIL(&f, raw_has(&raws[i], "hello"));
    }
    raw_connect(&raws[2], &f);
    TURN_UNTIL(&f, raw_ended(&raws[2]));
    assert_non_null(strstr(raws[2].in, "HTTP/1.1 503 "));
    assert_non_null(strstr(raws[2].in, "{\"error\":\"overloaded\",\"status\":503}"));
    raw_close(&raws[2]);
    raw_close(&raws[0]);
    TURN_UNTIL(&f, fl_web_server_connections(f.server) == 1);
    raw_connect(&raws[2], &f);
    raw_send(&f, &raws[2], GET);
    TURN_UNTIL(&f, raw_has(&raws[2], "hello"));
    raw_close(&raws[1]);
    raw_close(&raws[2]);
    fixture_fini(&f);
}

/* exchange.h: keep-alive connections end after their current message */
static void drain_ends_idle_and_finishes_running(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw idle, running;
    fixture_init(&f);
    fixture_listen(&f, true);
    raw_connect(&idle, &f);
    raw_send(&f, &idle, GET);
    TURN_UNTIL(&f, raw_has(&idle, "hello"));
    f.answers_late = true;
    raw_connect(&running, &f);
    raw_send(&f, &running, GET);
    TURN_UNTIL(&f, f.request_count == 2);
    fl_web_server_drain(f.server);
    TURN_UNTIL(&f, raw_ended(&idle));
    turn_some(&f);
    assert_false(raw_ended(&running));
    fl_exchange_respond(f.requests[1].x, 200, "text/plain", FL_BYTES("last"), NULL);
    TURN_UNTIL(&f, raw_ended(&running));
    assert_non_null(strstr(running.in, "last"));
    assert_non_null(strstr(running.in, "Connection: close"));
    raw_close(&idle);
    raw_close(&running);
    fixture_fini(&f);
}

/* performance.md (e) traps: a run of one-byte chunks must not cost a slice each */
static void crumbs_are_handed_on_together(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raw;
    static char request[16000];
    size_t at = 0;
    fixture_init(&f);
    fixture_listen(&f, true);
    raw_connect(&raw, &f);
    at += (size_t)snprintf(request, sizeof(request),
                           "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 2000; i++)
        at += (size_t)snprintf(request + at, sizeof(request) - at, "1\r\nx\r\n");
    at += (size_t)snprintf(request + at, sizeof(request) - at, "0\r\n\r\n");
    raw_send(&f, &raw, request);
    TURN_UNTIL(&f, raw_has(&raw, "hello"));
    assert_int_equal(fl_buf_size(&f.requests[0].body), 2000);
    assert_true(f.requests[0].slices < 100);
    raw_close(&raw);
    fixture_fini(&f);
}

/* gateway.md 7: --max-buffered-bytes reached: 503 while nothing was answered; the edge itself is
 * served */
static void exhausted_budget_is_answered_503(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        size_t cap_bytes;
        const char *status;
    } rows[] = {
        {"room for the piece", 4096, "200 OK"},
        {"one byte too little", 4095, "HTTP/1.1 503 "},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fixture f;
        static struct raw raw;
        fixture_init(&f);
        f.budget.cap_bytes = rows[i].cap_bytes;
        f.server_config.budget = &f.budget;
        f.server_config.on_bad_request = bad_words;
        fixture_listen(&f, true);
        raw_connect(&raw, &f);
        /* Small pieces are joined in chunks of 4 KiB: that is what is charged. */
        raw_send(&f, &raw, "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\nbody");
        TURN_UNTIL(&f, raw_has(&raw, "hello") || raw_ended(&raw));
        if (strstr(raw.in, rows[i].status) == NULL)
            fail_msg("%s: %s", rows[i].why, raw.in);
        TURN_UNTIL(&f, f.requests[0].closes == 1);
        assert_int_equal(f.requests[0].rc, i == 0 ? 0 : FL_ENOMEM);
        raw_close(&raw);
        fixture_fini(&f);
    }
}

/* The server may be freed while requests run: every on_close has come by then. */
static void freeing_the_server_ends_everything(void **state)
{
    (void)state;
    struct fixture f;
    static struct raw raws[3];
    fixture_init(&f);
    f.answers_late = true;
    fixture_listen(&f, true);
    for (int i = 0; i < 3; i++)
        raw_connect(&raws[i], &f);
    raw_send(&f, &raws[0], GET);
    raw_send(&f, &raws[1], "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nab");
    raw_send(&f, &raws[2], "GET / HT");
    TURN_UNTIL(&f, f.request_count == 2 && f.accepted == 3);
    fl_web_server_free(f.server);
    f.server = NULL;
    assert_int_equal(f.requests[0].closes, 1);
    assert_int_equal(f.requests[1].closes, 1);
    assert_int_equal(f.requests[0].rc, FL_ECANCELLED);
    fl_listener_stop(f.listener);
    for (int i = 0; i < 3; i++) {
        TURN_UNTIL(&f, raw_ended(&raws[i]));
        raw_close(&raws[i]);
    }
    fixture_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connection_is_kept_as_the_version_says),
        cmocka_unit_test(pipelined_requests_are_served_in_order),
        cmocka_unit_test(reading_ahead_is_bounded),
        cmocka_unit_test(chunked_request_is_decoded_wherever_it_is_cut),
        cmocka_unit_test(trailers_go_only_to_clients_that_take_them),
        cmocka_unit_test(answer_of_unknown_length_is_close_delimited_for_1_0),
        cmocka_unit_test(answers_without_body_have_none),
        cmocka_unit_test(bad_head_is_answered_and_closes),
        cmocka_unit_test(head_limits_have_edges),
        cmocka_unit_test(bad_chunk_is_answered_while_nothing_was),
        cmocka_unit_test(slow_clients_are_timed_out),
        cmocka_unit_test(idle_connection_is_closed_after_its_time),
        cmocka_unit_test(early_answer_closes),
        cmocka_unit_test(continue_is_sent_to_those_who_expect_it),
        cmocka_unit_test(client_that_leaves_is_noticed),
        cmocka_unit_test(abort_is_visible_as_truncation),
        cmocka_unit_test(short_or_long_body_against_its_length_breaks_the_connection),
        cmocka_unit_test(held_body_stops_the_sender),
        cmocka_unit_test(writable_is_told_once_after_the_peer_has_taken),
        cmocka_unit_test(client_that_reads_nothing_is_given_up),
        cmocka_unit_test(thinking_is_not_a_stall),
        cmocka_unit_test(connections_above_the_limit_are_answered_503),
        cmocka_unit_test(drain_ends_idle_and_finishes_running),
        cmocka_unit_test(crumbs_are_handed_on_together),
        cmocka_unit_test(exhausted_budget_is_answered_503),
        cmocka_unit_test(freeing_the_server_ends_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
