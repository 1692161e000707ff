/* SPDX-License-Identifier: Apache-2.0 */
#include "fake/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"

struct peer {
    struct fl_link link;
    struct fake_backend *backend;
    struct fl_stream *stream;
    struct fl_buf in;
    uint32_t requests;
    bool owes_answer;
};

static struct peer *last_peer(struct fake_backend *backend)
{
    if (fl_link_is_alone(&backend->peers))
        return NULL;
    return FL_CONTAINER_OF(backend->peers.prev, struct peer, link);
}

/* The line's value of `name` in a head, or NULL. */
static const char *find_header(const char *head, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line != NULL; line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, n) == 0 && line[n] == ':') {
            line += n + 1;
            return line + strspn(line, " ");
        }
    }
    return NULL;
}

bool fake_backend_header(const struct fake_backend *backend, const char *name, char *out,
                         size_t room)
{
    const char *value = find_header(backend->head, name);
    if (value == NULL)
        return false;
    snprintf(out, room, "%.*s", (int)strcspn(value, "\r"), value);
    return true;
}

/* Decodes a chunked body that lies whole in `in`; its length on the wire, or 0. */
static size_t take_chunked(struct fake_backend *backend, struct fl_bytes in)
{
    size_t at = 0;
    for (;;) {
        struct fl_bytes rest = fl_bytes_skip(in, at);
        size_t line = fl_bytes_find(rest, FL_BYTES("\r\n"));
        if (line == rest.n)
            return 0;
        size_t n = strtoul((const char *)rest.p, NULL, 16);
        at += line + 2;
        if (n == 0) {
            /* trailers, up to a blank line */
            rest = fl_bytes_skip(in, at);
            if (fl_bytes_has_prefix(rest, FL_BYTES("\r\n")))
                return at + 2;
            size_t end = fl_bytes_find(rest, FL_BYTES("\r\n\r\n"));
            return end == rest.n ? 0 : at + end + 4;
        }
        if (in.n < at + n + 2)
            return 0;
        (void)fl_buf_append(&backend->body, fl_bytes(in.p + at, n));
        at += n + 2;
    }
}

/* One whole request off the buffer; false: more is to come. */
static bool take_request(struct peer *peer)
{
    struct fake_backend *backend = peer->backend;
    struct fl_bytes in = fl_buf_bytes(&peer->in);
    size_t head = fl_bytes_find(in, FL_BYTES("\r\n\r\n"));
    if (head == in.n)
        return false;
    snprintf(backend->head, sizeof(backend->head), "%.*s", (int)(head + 2), (const char *)in.p);
    fl_buf_clear(&backend->body);
    const char *length = find_header(backend->head, "content-length");
    const char *coding = find_header(backend->head, "transfer-encoding");
    size_t body = length == NULL ? 0 : strtoul(length, NULL, 10);
    struct fl_bytes rest = fl_bytes_skip(in, head + 4);
    backend->was_chunked = coding != NULL;
    if (coding != NULL) {
        body = take_chunked(backend, rest);
        if (body == 0)
            return false;
    } else {
        if (rest.n < body)
            return false;
        (void)fl_buf_append(&backend->body, fl_bytes_head(rest, body));
    }
    fl_buf_consume(&peer->in, head + 4 + body);
    return true;
}

static void answer(struct peer *peer)
{
    struct fake_backend *backend = peer->backend;
    char text[512];
    peer->owes_answer = true;
    switch (backend->mode) {
    case FAKE_BACKEND_CLOSE:
        fl_stream_close(peer->stream, 0);
        return;
    case FAKE_BACKEND_HOLD:
        return;
    default:
        break;
    }
    if (backend->reply == NULL) {
        snprintf(text, sizeof(text),
                 "HTTP/1.1 200 OK\r\nX-Served-By: %s\r\nContent-Type: text/plain\r\n"
                 "Content-Length: %zu\r\n\r\nserved by %s",
                 backend->name, strlen("served by ") + strlen(backend->name), backend->name);
        fl_stream_write_copy(peer->stream, fl_bytes_of(text));
    } else {
        fl_stream_write_copy(peer->stream, fl_bytes_of(backend->reply));
    }
    peer->owes_answer = false;
    if (backend->mode == FAKE_BACKEND_REPLY_CLOSE)
        fl_stream_close(peer->stream, 1000);
    else if (backend->mode == FAKE_BACKEND_REPLY_RESET)
        fl_stream_close(peer->stream, 0);
}

static void on_readable(void *owner, struct fl_stream *stream)
{
    struct peer *peer = owner;
    struct fl_bytes bytes = fl_stream_peek(stream);
    while (bytes.n > 0) {
        (void)fl_buf_append(&peer->in, bytes);
        fl_stream_consume(stream, bytes.n);
        bytes = fl_stream_peek(stream);
    }
    if (peer->backend->mode == FAKE_BACKEND_CLOSE_AT_HEAD && peer->requests > 0) {
        fl_stream_abort(stream, true);
        return;
    }
    while (take_request(peer)) {
        peer->requests++;
        peer->backend->requests++;
        /* The last one asked stands last. */
        fl_link_unlink(&peer->link);
        fl_link_push_tail(&peer->backend->peers, &peer->link);
        answer(peer);
    }
    fl_stream_set_reading(stream, true);
}

static void on_eof(void *owner, struct fl_stream *stream)
{
    struct peer *peer = owner;
    (void)peer;
    fl_stream_close(stream, 0);
}

static void on_closed(void *owner, struct fl_stream *stream, int rc)
{
    struct peer *peer = owner;
    (void)stream;
    (void)rc;
    if (peer->owes_answer)
        peer->backend->cut++;
    fl_link_unlink(&peer->link);
    fl_buf_fini(&peer->in);
    fl_free(peer);
}

static const struct fl_stream_ops ops = {
    .on_readable = on_readable,
    .on_eof = on_eof,
    .on_closed = on_closed,
};

static void on_accept(void *owner, int fd, const struct fl_addr *from)
{
    struct fake_backend *backend = owner;
    struct peer *peer = fl_calloc(1, sizeof(*peer));
    (void)from;
    backend->accepted++;
    peer->backend = backend;
    fl_link_init(&peer->link);
    fl_link_push_head(&backend->peers, &peer->link);
    peer->stream = fl_stream_accept(backend->loop, fd, NULL, &ops, peer);
}

void fake_backend_start(struct fake_backend *backend, struct fl_loop *loop, const char *name)
{
    struct fl_addr addr;
    struct fl_error err = {0};
    backend->loop = loop;
    backend->name = name;
    fl_link_init(&backend->peers);
    if (fl_addr_parse(FL_BYTES("127.0.0.1:0"), true, &addr, &err) < 0 ||
        fl_listener_open(&addr, false, &backend->listener, &err) < 0) {
        fprintf(stderr, "fake backend: %s\n", err.text);
        abort();
    }
    backend->addr = *fl_listener_addr(backend->listener);
    fl_addr_format(&backend->addr, backend->address);
    fl_listener_start(backend->listener, loop, on_accept, backend);
}

void fake_backend_stop(struct fake_backend *backend)
{
    fl_listener_close(backend->listener);
    backend->listener = NULL;
    FL_LINK_FOREACH(link, &backend->peers)
    {
        fl_stream_abort(FL_CONTAINER_OF(link, struct peer, link)->stream, true);
    }
    while (!fl_link_is_alone(&backend->peers))
        fl_loop_turn(backend->loop, 10);
    fl_buf_fini(&backend->body);
}

void fake_backend_send_bytes(struct fake_backend *backend, struct fl_bytes bytes)
{
    struct peer *peer = last_peer(backend);
    if (peer != NULL)
        fl_stream_write_copy(peer->stream, bytes);
}

void fake_backend_send(struct fake_backend *backend, const char *bytes)
{
    fake_backend_send_bytes(backend, fl_bytes_of(bytes));
}

void fake_backend_close(struct fake_backend *backend, bool reset)
{
    struct peer *peer = last_peer(backend);
    if (peer == NULL)
        return;
    if (reset)
        fl_stream_abort(peer->stream, true);
    else
        fl_stream_close(peer->stream, 1000);
}
