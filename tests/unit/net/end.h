/* SPDX-License-Identifier: Apache-2.0 */
/* One end of a connection in a test: an owner that notes what its stream tells it. */
#ifndef FL_TESTS_END_H
#define FL_TESTS_END_H

#include "net_test.h"

#include "base/buf.h"

struct end {
    struct fl_stream *stream; /* NULL after on_closed */
    struct fl_buf in;
    bool keeps;           /* leaves what arrives in the stream */
    bool echoes;          /* writes it back */
    bool reads_big;       /* by fl_stream_read() */
    unsigned stops_after; /* leaves what arrives after so many on_readable; 0: never */
    unsigned connected, readable, eof, writable, closed;
    bool is_out_of_order; /* something came after on_closed */
    int rc;
    char why[256];
    char alpn[16];
};

static inline void end_on_connected(void *owner, struct fl_stream *stream)
{
    struct end *end = owner;
    end->is_out_of_order |= end->closed > 0;
    snprintf(end->alpn, sizeof(end->alpn), "%s", fl_stream_alpn(stream));
    end->connected++;
}

static inline void end_take(struct end *end, struct fl_stream *stream)
{
    static uint8_t big[65536];
    if (end->reads_big) {
        int64_t n = fl_stream_read(stream, big, sizeof(big));
        if (n > 0)
            assert_int_equal(fl_buf_append(&end->in, fl_bytes(big, (size_t)n)), 0);
        return;
    }
    struct fl_bytes bytes = fl_stream_peek(stream);
    if (end->echoes)
        fl_stream_write_copy(stream, bytes);
    else
        assert_int_equal(fl_buf_append(&end->in, bytes), 0);
    fl_stream_consume(stream, bytes.n);
}

static inline void end_on_readable(void *owner, struct fl_stream *stream)
{
    struct end *end = owner;
    end->is_out_of_order |= end->closed > 0;
    end->readable++;
    if (end->stops_after > 0 && end->readable > end->stops_after)
        end->keeps = true;
    if (!end->keeps)
        end_take(end, stream);
}

static inline void end_on_eof(void *owner, struct fl_stream *stream)
{
    struct end *end = owner;
    (void)stream;
    end->is_out_of_order |= end->closed > 0;
    end->eof++;
}

static inline void end_on_writable(void *owner, struct fl_stream *stream)
{
    struct end *end = owner;
    (void)stream;
    end->is_out_of_order |= end->closed > 0;
    end->writable++;
}

static inline void end_on_closed(void *owner, struct fl_stream *stream, int rc)
{
    struct end *end = owner;
    snprintf(end->why, sizeof(end->why), "%s", fl_stream_why(stream));
    end->stream = NULL;
    end->rc = rc;
    end->closed++;
}

static const struct fl_stream_ops end_ops = {
    .on_connected = end_on_connected,
    .on_readable = end_on_readable,
    .on_eof = end_on_eof,
    .on_writable = end_on_writable,
    .on_closed = end_on_closed,
};

/* Two ends of one loopback connection on one loop: `client` dials, `server` accepts. */
struct pair {
    struct fl_loop *loop;
    struct fl_listener *listener;
    struct end client, server;
    struct fl_stream_config client_config, server_config;
};

static inline void pair_on_accept(void *owner, int fd, const struct fl_addr *peer)
{
    struct pair *pair = owner;
    (void)peer;
    assert_null(pair->server.stream);
    pair->server.stream =
        fl_stream_accept(pair->loop, fd, &pair->server_config, &end_ops, &pair->server);
}

static inline void pair_dial(struct pair *pair)
{
    pair->client.stream = fl_stream_connect(pair->loop, fl_listener_addr(pair->listener),
                                            &pair->client_config, &end_ops, &pair->client);
}

/* Configurations may be changed between these two. */
static inline void pair_init(struct pair *pair)
{
    memset(pair, 0, sizeof(*pair));
    pair->loop = fl_loop_new(0);
    pair->listener = listen_anywhere();
    fl_listener_start(pair->listener, pair->loop, pair_on_accept, pair);
}

static inline void pair_open(struct pair *pair)
{
    pair_init(pair);
    pair_dial(pair);
    RUN_UNTIL(pair->loop, pair->client.connected == 1 && pair->server.stream != NULL);
}

static inline void pair_fini(struct pair *pair)
{
    if (pair->client.stream != NULL)
        fl_stream_abort(pair->client.stream, false);
    if (pair->server.stream != NULL)
        fl_stream_abort(pair->server.stream, false);
    fl_listener_close(pair->listener);
    fl_loop_free(pair->loop);
    assert_false(pair->client.is_out_of_order);
    assert_false(pair->server.is_out_of_order);
    assert_true(pair->client.closed <= 1 && pair->server.closed <= 1);
    fl_buf_fini(&pair->client.in);
    fl_buf_fini(&pair->server.in);
}

static inline bool end_has(const struct end *end, const char *text)
{
    return fl_bytes_eq(fl_buf_bytes(&end->in), fl_bytes_of(text));
}

/* Bytes that tell their place: the i-th is i modulo PERIOD. */
#define PERIOD 251

/* `n` bytes of the pattern, in slices of `piece`, all of one chunk. */
static inline void write_pattern(struct fl_stream *stream, size_t n, size_t piece)
{
    struct fl_chunk *chunk = fl_chunk_new(piece + PERIOD, NULL);
    assert_non_null(chunk);
    for (size_t i = 0; i < piece + PERIOD; i++)
        chunk->data[i] = (uint8_t)(i % PERIOD);
    for (size_t at = 0; at < n; at += piece) {
        fl_chunk_ref(chunk);
        fl_stream_write(stream, (struct fl_slice){chunk, chunk->data + at % PERIOD,
                                                  n - at < piece ? n - at : piece});
    }
    fl_chunk_unref(chunk);
}

static inline void check_pattern(const struct fl_buf *buf, size_t n)
{
    struct fl_bytes bytes = fl_buf_bytes(buf);
    assert_int_equal(bytes.n, n);
    for (size_t i = 0; i < n && i < PERIOD; i++)
        assert_int_equal(bytes.p[i], i);
    /* the rest repeats itself */
    if (n > PERIOD)
        assert_int_equal(memcmp(bytes.p, bytes.p + PERIOD, n - PERIOD), 0);
}

#endif
