/* SPDX-License-Identifier: Apache-2.0 */
/* The server's face: accepted sockets become connections of either version. */
#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "net/tls.h"
#include "web/conn_h1.h"
#include "web/conn_h2.h"

/* Connections above the limit that are being told so; further ones are just closed. */
#define TURNED_AWAY_MAX 64

#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#define PREFACE_BYTES (sizeof(PREFACE) - 1)

struct fl_web_server {
    struct fl_loop *loop;
    struct fl_web_server_config config;
    struct fl_web_reader reader;
    struct fl_http1_limits limits;
    struct fl_link entries; /* undecided */
    struct fl_link h1s, h2s;
    uint32_t count, turned_away;
    bool is_draining;
};

/* A connection whose version is not known yet. */
struct entry {
    struct fl_web_server *server; /* NULL: killed */
    struct fl_stream *stream;
    struct fl_link link;
    struct fl_timer timer;
    struct fl_disposable dispose;
    bool is_turned_away;
};

static void entry_free(struct fl_disposable *dispose)
{
    fl_free(FL_CONTAINER_OF(dispose, struct entry, dispose));
}

static void entry_dispose(struct fl_loop *loop, struct entry *entry)
{
    fl_link_unlink(&entry->link);
    fl_loop_timer_stop(loop, &entry->timer);
    fl_loop_dispose(loop, &entry->dispose, entry_free);
}

/* ---- hooks of the connections ---- */

static void h1_on_request(struct fl_h1_conn *conn, struct fl_exchange *x)
{
    struct fl_web_server *server = conn->owner;
    server->config.on_request(server->config.owner, x);
}

static void write_bad_request(struct fl_web_server *server, int status, const char *word,
                              struct fl_buf *body, const char **content_type)
{
    if (server->config.on_bad_request != NULL)
        server->config.on_bad_request(server->config.owner, status, word, body, content_type);
    else
        (void)fl_buf_printf(body, "%s\n", word);
}

static void h1_on_bad_request(struct fl_h1_conn *conn, int status, const char *word,
                              struct fl_buf *body, const char **content_type)
{
    write_bad_request(conn->owner, status, word, body, content_type);
}

static bool h1_keep(struct fl_h1_conn *conn)
{
    struct fl_web_server *server = conn->owner;
    return !server->is_draining;
}

static void h1_on_gone(struct fl_h1_conn *conn)
{
    struct fl_web_server *server = conn->owner;
    fl_link_unlink(&conn->link);
    server->count--;
}

static const struct fl_h1_hooks h1_hooks = {
    .on_request = h1_on_request,
    .on_bad_request = h1_on_bad_request,
    .keep = h1_keep,
    .on_gone = h1_on_gone,
};

static void h2_on_request(struct fl_h2_conn *conn, struct fl_exchange *x)
{
    struct fl_web_server *server = conn->owner;
    server->config.on_request(server->config.owner, x);
}

static void h2_on_gone(struct fl_h2_conn *conn)
{
    struct fl_web_server *server = conn->owner;
    fl_link_unlink(&conn->link);
    server->count--;
}

static const struct fl_h2_hooks h2_hooks = {
    .on_request = h2_on_request,
    .on_gone = h2_on_gone,
};

/* ---- deciding ---- */

static void become_h1(struct entry *entry)
{
    struct fl_web_server *server = entry->server;
    struct fl_h1_conn *conn =
        fl_h1_server_new(server->loop, entry->stream, &server->reader, &server->limits, &h1_hooks,
                         server, server->config.head_timeout_ms, server->config.idle_timeout_ms);

    fl_link_push_tail(&server->h1s, &conn->link);
    entry_dispose(server->loop, entry);
    fl_h1_conn_start(conn);
    if (server->is_draining)
        fl_h1_conn_drain(conn);
}

static void become_h2(struct entry *entry)
{
    struct fl_web_server *server = entry->server;
    const struct fl_h2_config config = {
        .side = FL_H2_SERVER,
        .max_streams = server->config.h2_max_streams,
        .stream_window_bytes = FL_EXCHANGE_WINDOW_BYTES,
        .connection_window_bytes = FL_EXCHANGE_WINDOW_BYTES * 16,
        .max_header_bytes = server->config.max_header_bytes,
        .max_headers = server->config.max_headers,
        .reset_burst = server->config.h2_reset_burst,
        .reset_rate = server->config.h2_reset_rate,
        .budget = server->config.budget,
        .cache = &server->reader.h2_cache,
    };
    struct fl_h2_conn *conn =
        fl_h2_server_new(server->loop, entry->stream, &server->reader, &config, &h2_hooks, server,
                         server->config.head_timeout_ms, server->config.idle_timeout_ms);

    fl_link_push_tail(&server->h2s, &conn->link);
    entry_dispose(server->loop, entry);
    fl_h2_conn_start(conn);
    if (server->is_draining)
        fl_h2_conn_drain(conn);
}

/* By the first bytes on a plain listener that speaks both. */
static void sniff(struct entry *entry)
{
    struct fl_bytes first = fl_bytes_head(fl_stream_peek(entry->stream), PREFACE_BYTES);

    if (memcmp(first.p, PREFACE, first.n) != 0)
        become_h1(entry);
    else if (first.n == PREFACE_BYTES)
        become_h2(entry);
    /* Else a prefix of it, which no HTTP/1 request begins with beyond its third byte: wait. */
}

static void entry_on_connected(void *owner, struct fl_stream *stream)
{
    struct entry *entry = owner;
    const struct fl_web_server_config *config = &entry->server->config;
    bool is_h2 = strcmp(fl_stream_alpn(stream), "h2") == 0;

    if (config->http2 && (is_h2 || !config->http1))
        become_h2(entry);
    else
        become_h1(entry);
}

static void entry_on_readable(void *owner, struct fl_stream *stream)
{
    struct entry *entry = owner;
    (void)stream;
    if (entry->server != NULL && !entry->is_turned_away)
        sniff(entry);
}

static void entry_on_eof(void *owner, struct fl_stream *stream)
{
    struct entry *entry = owner;
    if (!entry->is_turned_away)
        fl_stream_close(stream, 0);
}

static void entry_on_closed(void *owner, struct fl_stream *stream, int rc)
{
    struct entry *entry = owner;
    struct fl_loop *loop = fl_stream_loop(stream);
    (void)rc;

    if (entry->server != NULL && entry->is_turned_away)
        entry->server->turned_away--;
    else if (entry->server != NULL)
        entry->server->count--;
    entry_dispose(loop, entry);
}

static const struct fl_stream_ops entry_ops = {
    .on_connected = entry_on_connected,
    .on_readable = entry_on_readable,
    .on_eof = entry_on_eof,
    .on_closed = entry_on_closed,
};

static void entry_on_timer(struct fl_timer *timer)
{
    struct entry *entry = FL_CONTAINER_OF(timer, struct entry, timer);
    fl_stream_close(entry->stream, 0);
}

/* ---- accepting ---- */

static void turn_away(struct entry *entry)
{
    struct fl_web_server *server = entry->server;
    struct fl_buf body = {0}, out = {0};
    const char *content_type = "text/plain";

    write_bad_request(server, 503, "overloaded", &body, &content_type);
    (void)fl_buf_printf(&out,
                        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: %s\r\n"
                        "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                        content_type, fl_buf_size(&body));
    (void)fl_buf_append(&out, fl_buf_bytes(&body));
    fl_stream_write_copy(entry->stream, fl_buf_bytes(&out));
    fl_stream_close(entry->stream, FL_WEB_LINGER_MS);
    fl_buf_fini(&body);
    fl_buf_fini(&out);
}

static bool may_turn_away(const struct fl_web_server *server)
{
    /* An answer in HTTP/1 makes sense only to who may speak it in clear. */
    return server->config.http1 && server->config.tls == NULL &&
           server->turned_away < TURNED_AWAY_MAX;
}

void fl_web_server_accept(struct fl_web_server *server, int fd)
{
    const struct fl_stream_config config = {.tls = server->config.tls};
    bool is_over = server->count >= server->config.max_connections;

    struct entry *entry = fl_calloc(1, sizeof(*entry));
    entry->server = server;
    entry->is_turned_away = is_over;
    fl_timer_init(&entry->timer, entry_on_timer);
    fl_link_init(&entry->link);
    fl_link_push_tail(&server->entries, &entry->link);
    entry->stream = fl_stream_accept(server->loop, fd, &config, &entry_ops, entry);
    if (is_over) {
        bool is_told = may_turn_away(server);
        server->turned_away++;
        if (is_told)
            turn_away(entry);
        else
            fl_stream_abort(entry->stream, true);
        return;
    }
    server->count++;
    if (server->config.tls != NULL)
        return; /* on_connected decides; the stream bounds the handshake */
    if (!fl_stream_is_open(entry->stream))
        return; /* on_closed is on its way */
    if (!server->config.http2)
        become_h1(entry);
    else if (!server->config.http1)
        become_h2(entry);
    else
        fl_loop_timer_start(server->loop, &entry->timer, server->config.head_timeout_ms);
}

/* ---- the server ---- */

struct fl_web_server *fl_web_server_new(struct fl_loop *loop,
                                        const struct fl_web_server_config *config)
{
    struct fl_web_server *server = fl_calloc(1, sizeof(*server));

    assert(config->http1 || config->http2);
    server->loop = loop;
    server->config = *config;
    if (server->config.idle_timeout_ms == 0)
        server->config.idle_timeout_ms = UINT64_MAX;
    if (server->config.head_timeout_ms == 0)
        server->config.head_timeout_ms = 10000;
    if (server->config.max_header_bytes == 0)
        server->config.max_header_bytes = FL_HTTP1_MAX_HEADER_BYTES;
    if (server->config.max_headers == 0)
        server->config.max_headers = FL_HTTP1_MAX_HEADERS;
    if (server->config.max_connections == 0)
        server->config.max_connections = UINT32_MAX;
    if (server->config.h2_max_streams == 0)
        server->config.h2_max_streams = 1000;
    if (server->config.tls != NULL)
        fl_tls_ref(server->config.tls);
    server->limits = fl_http1_default_limits;
    server->limits.max_header_bytes = server->config.max_header_bytes;
    server->limits.max_headers = server->config.max_headers;
    fl_web_reader_init(&server->reader, config->budget);
    fl_link_init(&server->entries);
    fl_link_init(&server->h1s);
    fl_link_init(&server->h2s);
    return server;
}

void fl_web_server_drain(struct fl_web_server *server)
{
    server->is_draining = true;
    FL_LINK_FOREACH(link, &server->h1s)
    {
        fl_h1_conn_drain(FL_CONTAINER_OF(link, struct fl_h1_conn, link));
    }
    FL_LINK_FOREACH(link, &server->h2s)
    {
        fl_h2_conn_drain(FL_CONTAINER_OF(link, struct fl_h2_conn, link));
    }
}

void fl_web_server_free(struct fl_web_server *server)
{
    struct fl_link *link;

    if (server == NULL)
        return;
    while ((link = fl_link_pop_head(&server->entries)) != NULL) {
        struct entry *entry = FL_CONTAINER_OF(link, struct entry, link);
        entry->server = NULL;
        fl_loop_timer_stop(server->loop, &entry->timer);
        fl_stream_abort(entry->stream, true);
    }
    while ((link = fl_link_pop_head(&server->h1s)) != NULL)
        fl_h1_conn_kill(FL_CONTAINER_OF(link, struct fl_h1_conn, link));
    while ((link = fl_link_pop_head(&server->h2s)) != NULL)
        fl_h2_conn_kill(FL_CONTAINER_OF(link, struct fl_h2_conn, link));
    fl_web_reader_fini(&server->reader);
    fl_tls_unref(server->config.tls);
    fl_free(server);
}

uint32_t fl_web_server_connections(const struct fl_web_server *server)
{
    return server->count;
}
