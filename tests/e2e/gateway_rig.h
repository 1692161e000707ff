/* SPDX-License-Identifier: Apache-2.0 */
/* A gateway process, two endpoints and a picker by script, and a client on raw bytes: what the
 * end-to-end tests of the gateway stand on. Everything but the gateway lives in the test process,
 * on one loop that is turned while a condition is awaited. */
#ifndef FL_E2E_GATEWAY_RIG_H
#define FL_E2E_GATEWAY_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake/backend.h"
#include "fake/epp.h"
#include "net/process.h"

#define WAIT_MS 10000 /* for a condition; generous, since sanitizers and neighbours are slow */

struct rig {
    struct fl_loop *loop;
    struct fl_process *process;
    bool has_exited;
    int exit_status, exit_signal;
    struct fl_addr rest;
    struct fake_backend a, b;
    struct fake_epp epp;
};

/* Turns the loop until `condition`; fails the test at the deadline. */
#define WAIT_FOR(rig, condition)                                                                   \
    do {                                                                                           \
        uint64_t deadline_ns = fl_clock_ns() + (uint64_t)WAIT_MS * 1000000;                        \
        while (!(condition)) {                                                                     \
            if (fl_clock_ns() > deadline_ns)                                                       \
                fail_msg("never came: %s", #condition);                                            \
            fl_loop_turn((rig)->loop, 5);                                                          \
        }                                                                                          \
    } while (0)

/* ---- a client ---- */

struct client {
    struct fl_stream *stream;
    struct fl_buf in;
    bool is_closed;
};

static inline void client_on_readable(void *owner, struct fl_stream *stream)
{
    struct client *client = owner;
    struct fl_bytes bytes = fl_stream_peek(stream);
    while (bytes.n > 0) {
        (void)fl_buf_append(&client->in, bytes);
        fl_stream_consume(stream, bytes.n);
        bytes = fl_stream_peek(stream);
    }
    fl_stream_set_reading(stream, true);
}

static inline void client_on_eof(void *owner, struct fl_stream *stream)
{
    (void)owner;
    fl_stream_close(stream, 0);
}

static inline void client_on_closed(void *owner, struct fl_stream *stream, int rc)
{
    struct client *client = owner;
    (void)stream;
    (void)rc;
    client->is_closed = true;
}

static const struct fl_stream_ops client_ops = {
    .on_readable = client_on_readable,
    .on_eof = client_on_eof,
    .on_closed = client_on_closed,
};

static inline void client_open(struct rig *rig, struct client *client, const struct fl_addr *addr)
{
    *client = (struct client){0};
    client->stream = fl_stream_connect(rig->loop, addr, NULL, &client_ops, client);
}

static inline void client_write(struct client *client, const char *text)
{
    fl_stream_write_copy(client->stream, fl_bytes_of(text));
}

static inline void client_close(struct rig *rig, struct client *client)
{
    if (!client->is_closed)
        fl_stream_abort(client->stream, false);
    WAIT_FOR(rig, client->is_closed);
    fl_buf_fini(&client->in);
}

static inline bool client_has(const struct client *client, const char *text)
{
    struct fl_bytes in = fl_buf_bytes(&client->in);
    return fl_bytes_find(in, fl_bytes_of(text)) < in.n;
}

/* Bytes of the first whole message with Content-Length in `client`'s input, or 0. */
static inline size_t client_message(const struct client *client)
{
    struct fl_bytes in = fl_buf_bytes(&client->in);
    size_t head = fl_bytes_find(in, FL_BYTES("\r\n\r\n"));
    size_t at = fl_bytes_find(fl_bytes_head(in, head), FL_BYTES("Content-Length: "));
    if (head == in.n || at == head)
        return 0;
    size_t n = head + 4 + strtoul((const char *)in.p + at + 16, NULL, 10);
    return in.n >= n ? n : 0;
}

static inline int client_status(const struct client *client)
{
    struct fl_bytes in = fl_buf_bytes(&client->in);
    return in.n < 12 ? 0 : (int)strtol((const char *)in.p + 9, NULL, 10);
}

/* One request on a connection of its own; the answer stays in `client` until client_close(). */
static inline int ask(struct rig *rig, struct client *client, uint16_t port, const char *request)
{
    struct fl_addr addr = rig->rest;
    addr.v4.sin_port = htons(port);
    client_open(rig, client, &addr);
    client_write(client, request);
    WAIT_FOR(rig, client_message(client) > 0 || client->is_closed);
    return client_status(client);
}

/* The same, for tests that look at the status and one text of the answer only. */
static inline void expect(struct rig *rig, uint16_t port, const char *request, int status,
                          const char *text)
{
    struct client client;
    int got = ask(rig, &client, port, request);
    if (got != status || !client_has(&client, text))
        fail_msg("want %d with \"%s\", got: %.*s", status, text, FL_FMT(fl_buf_bytes(&client.in)));
    client_close(rig, &client);
}

static inline int rest_call(struct rig *rig, struct client *client, const char *method,
                            const char *path, const char *body)
{
    char request[8192];
    snprintf(request, sizeof(request),
             "%s /netlox/v1%s HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n%s",
             method, path, strlen(body), body);
    return ask(rig, client, fl_addr_port(&rig->rest), request);
}

/* Value of a sample on /metrics, -1 if it is not there. */
static inline long long metric(struct rig *rig, const char *sample)
{
    struct client client;
    char line[256];
    long long value = -1;
    (void)rest_call(rig, &client, "GET", "/metrics", "");
    snprintf(line, sizeof(line), "\n%s ", sample);
    struct fl_bytes in = fl_buf_bytes(&client.in);
    size_t at = fl_bytes_find(in, fl_bytes_of(line));
    if (at < in.n)
        value = strtoll((const char *)in.p + at + strlen(line), NULL, 10);
    client_close(rig, &client);
    return value;
}

/* ---- ports and rules ---- */

/* A port of loopback that is free now. */
static inline uint16_t free_port(void)
{
    struct fl_addr addr;
    struct fl_listener *listener;
    assert_int_equal(fl_addr_parse(FL_BYTES("127.0.0.1:0"), true, &addr, NULL), 0);
    assert_int_equal(fl_listener_open(&addr, false, &listener, NULL), 0);
    uint16_t port = fl_addr_port(fl_listener_addr(listener));
    fl_listener_close(listener);
    return port;
}

/* Rule over endpoints a and b (and `more`, JSON objects with a leading comma) with `arguments`. */
static inline void write_rule(struct rig *rig, char out[4096], uint16_t port, const char *arguments,
                              const char *more)
{
    snprintf(out, 4096,
             "{\"endpoints\":[{\"endpointIP\":\"127.0.0.1\",\"targetPort\":%u,\"weight\":1},"
             "{\"endpointIP\":\"127.0.0.1\",\"targetPort\":%u,\"weight\":1}%s],"
             "\"serviceArguments\":{\"externalIP\":\"127.0.0.1\",\"port\":%u,\"protocol\":\"tcp\","
             "\"mode\":4,\"sel\":0%s}}",
             fl_addr_port(&rig->a.addr), fl_addr_port(&rig->b.addr), more, port, arguments);
}

static inline void post_text(struct rig *rig, const char *rule)
{
    struct client client;
    int status = rest_call(rig, &client, "POST", "/config/loadbalancer", rule);
    if (status != 200)
        fail_msg("rule refused: %.*s", FL_FMT(fl_buf_bytes(&client.in)));
    client_close(rig, &client);
}

static inline uint16_t post_rule(struct rig *rig, const char *arguments, const char *more)
{
    char rule[4096];
    uint16_t port = free_port();
    write_rule(rig, rule, port, arguments, more);
    post_text(rig, rule);
    return port;
}

static inline uint16_t post_plain(struct rig *rig)
{
    return post_rule(rig, "", "");
}

static inline uint16_t post_epp(struct rig *rig, const char *mode, uint32_t timeout_ms)
{
    char arguments[512];
    snprintf(arguments, sizeof(arguments),
             ",\"eppEndpoint\":\"%s\",\"eppPlaintext\":true,\"eppFailureMode\":\"%s\","
             "\"eppTimeoutMs\":%u",
             rig->epp.address, mode, timeout_ms);
    return post_rule(rig, arguments, "");
}

/* ---- the process ---- */

static inline void rig_on_exit(void *owner, struct fl_process *process, int status, int signum)
{
    struct rig *rig = owner;
    (void)process;
    rig->process = NULL;
    rig->has_exited = true;
    rig->exit_status = status;
    rig->exit_signal = signum;
}

/* Address of the REST listener in the ready file; false while that is not there. */
static inline bool read_ready(struct rig *rig, const char *path)
{
    char text[512];
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    size_t n = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[n] = '\0';
    char *at = strstr(text, "\"rest\":\"");
    if (at == NULL)
        return false;
    at += strlen("\"rest\":\"");
    return fl_addr_parse(fl_bytes(at, strcspn(at, "\"")), false, &rig->rest, NULL) == 0;
}

/* Starts the gateway with `more` options (NULL-terminated, NULL: none). */
static inline void rig_start(struct rig *rig, const char *loops, const char *const *more)
{
    const char *argv[24] = {
        FL_BINARY_DIR "/fairlead", "gateway", "--port", "0", "--log-level", "error"};
    char ready[] = "/tmp/fairlead-e2e-XXXXXX";
    struct fl_error err = {0};
    size_t n = 6;
    int fd = mkstemp(ready);
    assert_true(fd >= 0);
    close(fd);
    unlink(ready);
    argv[n++] = "--loops";
    argv[n++] = loops;
    argv[n++] = "--ready-file";
    argv[n++] = ready;
    for (size_t i = 0; more != NULL && more[i] != NULL; i++)
        argv[n++] = more[i];
    const struct fl_process_config config = {
        .argv = argv,
        .stdio = {FL_STDIO_NULL, FL_STDIO_NULL, FL_STDIO_INHERIT},
        .on_exit = rig_on_exit,
        .owner = rig,
    };
    *rig = (struct rig){.loop = fl_loop_new(0)};
    if (fl_process_spawn(rig->loop, &config, &rig->process, &err) < 0)
        fail_msg("%s", err.text);
    fake_backend_start(&rig->a, rig->loop, "a");
    fake_backend_start(&rig->b, rig->loop, "b");
    fake_epp_start(&rig->epp, rig->loop);
    rig->epp.destination = rig->b.address;
    WAIT_FOR(rig, read_ready(rig, ready) || rig->has_exited);
    assert_false(rig->has_exited);
    unlink(ready);
}

/* SIGTERM; everything must end cleanly. */
static inline void rig_stop(struct rig *rig)
{
    if (rig->process != NULL)
        fl_process_kill(rig->process, SIGTERM);
    WAIT_FOR(rig, rig->has_exited);
    fake_backend_stop(&rig->a);
    fake_backend_stop(&rig->b);
    fake_epp_stop(&rig->epp);
    fl_loop_free(rig->loop);
    assert_int_equal(rig->exit_signal, 0);
    assert_int_equal(rig->exit_status, 0);
}

#define GET "GET /v1/models HTTP/1.1\r\nHost: svc\r\n\r\n"
#define POST_BODY "{\"model\":\"m\",\"prompt\":\"hi\"}"
#define POST                                                                                       \
    "POST /v1/completions HTTP/1.1\r\nHost: svc\r\nContent-Type: application/json\r\n"             \
    "Content-Length: 27\r\n\r\n" POST_BODY

#endif
