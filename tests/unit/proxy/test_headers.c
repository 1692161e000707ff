/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "proxy/headers.h"

struct message {
    struct fl_arena arena;
    struct fl_head head;
    struct fl_addr peer, local;
    struct fl_proxy_request_traits traits;
};

static void init(struct message *m, const char *const *lines)
{
    *m = (struct message){0};
    m->head.arena = &m->arena;
    m->head.minor = 1;
    m->head.authority = FL_BYTES("svc:8080");
    m->head.content_length = UINT64_MAX;
    for (; *lines != NULL; lines++) {
        struct fl_bytes rest = fl_bytes_of(*lines);
        size_t colon = fl_bytes_index(rest, ':');
        fl_fields_add(&m->head.fields, &m->arena, fl_bytes_head(rest, colon),
                      fl_bytes_trim(fl_bytes_skip(rest, colon + 1)));
    }
    assert_int_equal(fl_addr_parse(FL_BYTES("198.51.100.7:40112"), false, &m->peer, NULL), 0);
    assert_int_equal(fl_addr_parse(FL_BYTES("[2001:db8::1]:8443"), false, &m->local, NULL), 0);
}

static void fini(struct message *m)
{
    fl_arena_fini(&m->arena);
}

static void clean(struct message *m, bool trusts_client, bool has_epp, const char *const *strip)
{
    const struct fl_proxy_forwarding how = {
        .peer = &m->peer,
        .local = &m->local,
        .trusts_client = trusts_client,
        .has_epp = has_epp,
        .strip = strip,
    };
    fl_proxy_clean_request(&m->head, &how, &m->traits);
}

static void expect(const struct message *m, const char *name, const char *value)
{
    struct fl_bytes got = fl_fields_get(&m->head.fields, fl_bytes_of(name));
    if (value == NULL ? !fl_bytes_is_absent(got) : !fl_bytes_eq(got, fl_bytes_of(value)))
        fail_msg("%s: got %.*s", name, FL_FMT(got));
}

/* gateway.md 7.1 (X-Forwarded-*) */
static void forwarded_fields_of_a_client_are_overwritten(void **state)
{
    (void)state;
    static const char *const lines[] = {"X-Forwarded-For: 1.2.3.4", "X-Forwarded-Proto: https",
                                        "X-Forwarded-Port: 1",      "X-Forwarded-Host: evil",
                                        "X-Forwarded-For: 5.6.7.8", NULL};
    struct message m;
    init(&m, lines);
    clean(&m, false, false, NULL);
    expect(&m, "X-Forwarded-For", "198.51.100.7");
    expect(&m, "X-Forwarded-Proto", "http");
    expect(&m, "X-Forwarded-Port", "8443");
    expect(&m, "X-Forwarded-Host", "svc:8080");
    assert_int_equal(fl_fields_remove(&m.head.fields, FL_BYTES("x-forwarded-for")), 1);
    fini(&m);
}

/* gateway.md 2 (--trust-forwarded) */
static void forwarded_fields_of_a_trusted_client_are_extended(void **state)
{
    (void)state;
    static const char *const lines[] = {"X-Forwarded-For: 1.2.3.4", "X-Forwarded-For: 5.6.7.8",
                                        "X-Forwarded-Proto: https", NULL};
    struct message m;
    init(&m, lines);
    clean(&m, true, false, NULL);
    expect(&m, "X-Forwarded-For", "1.2.3.4, 5.6.7.8, 198.51.100.7");
    expect(&m, "X-Forwarded-Proto", "https");
    expect(&m, "X-Forwarded-Port", "8443");
    fini(&m);
}

/* gateway.md 7.1 (hop-by-hop), 16.65 */
static void hop_by_hop_fields_and_what_connection_lists_are_removed(void **state)
{
    (void)state;
    static const char *const lines[] = {"Connection: keep-alive, X-One",
                                        "Keep-Alive: timeout=5",
                                        "x-one: 1",
                                        "Upgrade: websocket",
                                        "Transfer-Encoding: chunked",
                                        "Proxy-Authorization: secret",
                                        "X-Two: 1",
                                        "x-TWO: 2",
                                        NULL};
    static const char *const gone[] = {"connection", "keep-alive",        "x-one",
                                       "upgrade",    "transfer-encoding", "proxy-authorization"};
    struct message m;
    init(&m, lines);
    clean(&m, false, false, NULL);
    for (size_t i = 0; i < FL_ARRAY_LEN(gone); i++)
        expect(&m, gone[i], NULL);
    /* Repeated lines stay lines, in order and case. */
    assert_true(fl_bytes_eq(m.head.fields.items[0].name, FL_BYTES("X-Two")));
    assert_true(fl_bytes_eq(m.head.fields.items[1].name, FL_BYTES("x-TWO")));
    fini(&m);
}

/* gateway.md 7.1 (TE) */
static void trailers_are_announced_again_only_if_the_client_takes_them(void **state)
{
    (void)state;
    static const struct {
        const char *why, *line;
        uint8_t minor;
        bool takes;
    } rows[] = {
        {"asked for", "TE: trailers", 1, true},
        {"among others", "TE: gzip, trailers", 1, true},
        {"not asked for", "X: 1", 1, false},
        {"HTTP/1.0 cannot", "TE: trailers", 0, false},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        const char *const lines[] = {rows[i].line, NULL};
        struct message m;
        init(&m, lines);
        m.head.minor = rows[i].minor;
        clean(&m, false, false, NULL);
        if (m.traits.takes_trailers != rows[i].takes)
            fail_msg("%s", rows[i].why);
        expect(&m, "te", rows[i].takes ? "trailers" : NULL);
        fini(&m);
    }
}

/* gateway.md 7.1 (X-Request-Id), 16.78 */
static void request_id_is_kept_if_well_formed_else_minted(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        bool is_kept;
    } rows[] = {
        {"X-Request-Id: r-1", true},
        {"X-Request-Id: a b", false},
        {"X-Request-Id:", false},
        {"X-Other: 1", false},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        const char *const lines[] = {rows[i].line, NULL};
        struct message m;
        init(&m, lines);
        clean(&m, false, false, NULL);
        struct fl_bytes id = fl_fields_get(&m.head.fields, FL_BYTES("x-request-id"));
        assert_true(fl_bytes_eq(id, m.traits.request_id));
        if (rows[i].is_kept)
            assert_true(fl_bytes_eq(id, FL_BYTES("r-1")));
        else
            assert_int_equal(id.n, 36);
        fini(&m);
    }
}

/* gateway.md 9.4: names by which a client could choose its endpoint, on rules with a picker only */
static void steering_fields_are_removed_on_rules_with_a_picker(void **state)
{
    (void)state;
    static const char *const lines[] = {"x-gateway-destination-endpoint: 1.2.3.4:5",
                                        "x-gateway-destination-endpoint-subset: 1.2.3.4:5",
                                        "x-gateway-destination-endpoint-served: 1.2.3.4:5",
                                        "x-prefiller-host-port: 1.2.3.4:5",
                                        "x-prefiller-url: http://x",
                                        "x-encoder-hosts-ports: 1.2.3.4:5",
                                        "x-data-parallel-host-port: 1.2.3.4:5",
                                        "x-kv-cache-source-host-port: 1.2.3.4:5",
                                        "X-Secret: 1",
                                        "x-gateway-inference-objective: fast",
                                        NULL};
    static const char *const strip[] = {"x-secret", NULL};
    struct message m;
    init(&m, lines);
    clean(&m, false, true, strip);
    assert_true(
        fl_bytes_eq(m.head.fields.items[0].name, FL_BYTES("x-gateway-inference-objective")));
    fini(&m);

    init(&m, lines);
    clean(&m, false, false, strip);
    expect(&m, "x-prefiller-host-port", "1.2.3.4:5");
    expect(&m, "x-secret", "1");
    fini(&m);
}

/* gateway.md 7.1: re-framed for the client, the length kept where there is one */
static void response_is_reframed_for_the_client(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        enum fl_body_kind in, out;
        uint64_t length;
    } rows[] = {
        {"a length stays", FL_BODY_LENGTH, FL_BODY_LENGTH, 5},
        {"chunks stay chunks", FL_BODY_CHUNKED, FL_BODY_CHUNKED, UINT64_MAX},
        {"close-delimited", FL_BODY_UNTIL_CLOSE, FL_BODY_CHUNKED, UINT64_MAX},
        {"HTTP/2 without a length", FL_BODY_STREAM, FL_BODY_CHUNKED, UINT64_MAX},
        {"HTTP/2 with a length", FL_BODY_STREAM, FL_BODY_LENGTH, 5},
        {"none", FL_BODY_NONE, FL_BODY_NONE, UINT64_MAX},
    };
    static const char *const lines[] = {"Connection: close", "X-Request-Id: theirs", NULL};
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct message m;
        init(&m, lines);
        m.head.body = (uint8_t)rows[i].in;
        m.head.content_length = rows[i].length;
        m.traits.request_id = FL_BYTES("ours");
        fl_proxy_clean_response(&m.head, &m.traits);
        if (m.head.body != rows[i].out)
            fail_msg("%s", rows[i].why);
        expect(&m, "connection", NULL);
        expect(&m, "x-request-id", "ours");
        fini(&m);
    }
}

/* gateway.md 8.8: whose silences are not timed */
static void streams_are_event_streams_and_bodies_of_unknown_length(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        enum fl_body_kind body;
        bool is_stream;
    } rows[] = {
        {"Content-Type: text/event-stream", FL_BODY_LENGTH, true},
        {"Content-Type: TEXT/Event-Stream; charset=utf-8", FL_BODY_LENGTH, true},
        {"Content-Type: application/json", FL_BODY_LENGTH, false},
        {"Content-Type: application/json", FL_BODY_CHUNKED, true},
        {"X: 1", FL_BODY_LENGTH, false},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        const char *const lines[] = {rows[i].line, NULL};
        struct message m;
        init(&m, lines);
        m.head.body = (uint8_t)rows[i].body;
        if (fl_proxy_is_stream(&m.head) != rows[i].is_stream)
            fail_msg("row %zu: %s", i, rows[i].line);
        fini(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forwarded_fields_of_a_client_are_overwritten),
        cmocka_unit_test(forwarded_fields_of_a_trusted_client_are_extended),
        cmocka_unit_test(hop_by_hop_fields_and_what_connection_lists_are_removed),
        cmocka_unit_test(trailers_are_announced_again_only_if_the_client_takes_them),
        cmocka_unit_test(request_id_is_kept_if_well_formed_else_minted),
        cmocka_unit_test(steering_fields_are_removed_on_rules_with_a_picker),
        cmocka_unit_test(response_is_reframed_for_the_client),
        cmocka_unit_test(streams_are_event_streams_and_bodies_of_unknown_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
