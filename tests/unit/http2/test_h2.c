/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions of both sides against each other in memory, and the server's against hostile frames. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "http2/h2.h"

/* ---- one end, recorded ---- */

struct call {
    struct fl_h2_stream *stream; /* NULL once closed */
    char line[256];              /* "GET /path authority" or the status */
    char fields[512];            /* name=value; of the head */
    char trailers[256];
    struct fl_buf body;
    int heads, informationals, ends, closes, rc;
    size_t held, by_reference;
    bool keeps;
};

struct end {
    struct fl_h2 *h2;
    struct call calls[64];
    int count;
    int changes;
    bool answers; /* server: echoes at the end of the request */
    bool keeps;
};

static void write_fields(char *out, size_t room, const struct fl_fields *fields)
{
    size_t n = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < fields->count && n < room; i++)
        n += (size_t)snprintf(out + n, room - n, "%.*s=%.*s;", FL_FMT(fields->items[i].name),
                              FL_FMT(fields->items[i].value));
}

static void on_head(void *owner, struct fl_h2_stream *stream, struct fl_head *head)
{
    struct end *end = owner;
    struct call *call = fl_h2_owner(stream);
    if (call == NULL) {
        assert_true(end->count < 64);
        call = &end->calls[end->count++];
        call->stream = stream;
        call->keeps = end->keeps;
        fl_h2_set_owner(stream, call);
        snprintf(call->line, sizeof(call->line), "%.*s %.*s %.*s", FL_FMT(head->method),
                 FL_FMT(head->target), FL_FMT(head->authority));
    } else {
        snprintf(call->line, sizeof(call->line), "%d", head->status);
    }
    call->heads++;
    assert_int_equal(call->heads, 1);
    assert_true(head->is_h2);
    write_fields(call->fields, sizeof(call->fields), &head->fields);
}

static void on_informational(void *owner, struct fl_h2_stream *stream, struct fl_head *head)
{
    struct call *call = fl_h2_owner(stream);
    (void)owner;
    assert_int_equal(call->heads, 0);
    assert_true(head->status >= 100 && head->status < 200);
    call->informationals++;
}

static void on_data(void *owner, struct fl_h2_stream *stream, struct fl_slice slice)
{
    struct call *call = fl_h2_owner(stream);
    (void)owner;
    assert_int_equal(call->heads, 1);
    assert_int_equal(call->ends, 0);
    fl_buf_append(&call->body, fl_slice_bytes(slice));
    if (slice.chunk->room == FL_CHUNK_MAX_BYTES)
        call->by_reference += slice.n;
    if (call->keeps)
        call->held += slice.n;
    else
        fl_h2_consume(stream, slice.n);
    fl_slice_unref(&slice);
}

static void answer(struct call *call)
{
    struct fl_arena *arena = fl_h2_arena(call->stream);
    struct fl_head head = {
        .status = 200, .body = FL_BODY_STREAM, .content_length = UINT64_MAX, .arena = arena};
    struct fl_fields trailers = {0};
    fl_fields_add(&head.fields, arena, FL_BYTES("X-Echo"), FL_BYTES("yes"));
    fl_fields_add(&head.fields, arena, FL_BYTES("Connection"), FL_BYTES("close"));
    fl_fields_add(&trailers, arena, FL_BYTES("grpc-status"), FL_BYTES("0"));
    assert_int_equal(fl_h2_send_informational(call->stream, 103, NULL), 0);
    assert_int_equal(fl_h2_send_head(call->stream, &head, false), 0);
    if (fl_buf_size(&call->body) > 0)
        fl_h2_send_data(call->stream, fl_slice_copy(fl_buf_bytes(&call->body), NULL));
    assert_int_equal(fl_h2_send_end(call->stream, &trailers), 0);
}

static void on_end(void *owner, struct fl_h2_stream *stream, const struct fl_fields *trailers)
{
    struct end *end = owner;
    struct call *call = fl_h2_owner(stream);
    call->ends++;
    if (trailers != NULL)
        write_fields(call->trailers, sizeof(call->trailers), trailers);
    if (end->answers)
        answer(call);
}

static void on_close(void *owner, struct fl_h2_stream *stream, int rc)
{
    struct call *call = fl_h2_owner(stream);
    (void)owner;
    assert_int_equal(call->closes, 0);
    call->closes++;
    call->rc = rc;
    call->stream = NULL;
}

static void on_change(void *owner)
{
    ((struct end *)owner)->changes++;
}

static const struct fl_h2_ops ops = {
    .on_head = on_head,
    .on_informational = on_informational,
    .on_data = on_data,
    .on_end = on_end,
    .on_close = on_close,
    .on_change = on_change,
};

static struct fl_h2_config config_of(enum fl_h2_side side)
{
    return (struct fl_h2_config){
        .side = side,
        .max_streams = 100,
        .stream_window_bytes = 1 << 20,
        .connection_window_bytes = 16 << 20,
        .max_header_bytes = 65536,
        .max_headers = 200,
    };
}

static void end_init(struct end *end, const struct fl_h2_config *config)
{
    memset(end, 0, sizeof(*end));
    end->h2 = fl_h2_new(config, &ops, end);
}

static void end_fini(struct end *end)
{
    if (end->h2 != NULL)
        fl_h2_fail(end->h2, FL_ECLOSED);
    fl_h2_free(end->h2);
    for (int i = 0; i < end->count; i++) {
        assert_int_equal(end->calls[i].closes, 1);
        fl_buf_fini(&end->calls[i].body);
    }
}

/* ---- moving bytes ---- */

enum cut { WHOLE, BYTES, RANDOM, CUT_COUNT };

struct pair {
    struct end client, server;
    enum cut cut;
    struct fl_rng rng;
};

static int feed_bytes(struct fl_h2 *h2, struct fl_bytes in, enum cut cut, struct fl_rng *rng)
{
    int rc = 0;
    while (in.n > 0 && rc == 0) {
        size_t n = in.n;
        if (cut == BYTES)
            n = 1;
        else if (cut == RANDOM)
            n = 1 + fl_rng_below(rng, in.n < 100 ? in.n : 100);
        n = n < in.n ? n : in.n;
        rc = fl_h2_feed(h2, fl_bytes_head(in, n), NULL);
        in = fl_bytes_skip(in, n);
    }
    return rc;
}

/* True if something moved. */
static bool move(struct pair *pair, struct end *from, struct end *to)
{
    struct fl_chain out = {0};
    assert_int_equal(fl_h2_drain(from->h2, &out, FL_H2_DRAIN_BYTES), 0);
    size_t n = out.bytes;
    if (n > 0) {
        uint8_t *flat = fl_alloc(n);
        fl_chain_copy_out(&out, 0, flat, n);
        assert_int_equal(feed_bytes(to->h2, fl_bytes(flat, n), pair->cut, &pair->rng), 0);
        fl_free(flat);
    }
    fl_chain_fini(&out);
    return n > 0;
}

static void settle(struct pair *pair)
{
    for (int i = 0; i < 10000; i++) {
        bool a = move(pair, &pair->client, &pair->server);
        bool b = move(pair, &pair->server, &pair->client);
        if (!a && !b)
            return;
    }
    fail_msg("the pair does not come to rest");
}

static void pair_init(struct pair *pair, enum cut cut)
{
    struct fl_h2_config client = config_of(FL_H2_CLIENT), server = config_of(FL_H2_SERVER);
    end_init(&pair->client, &client);
    end_init(&pair->server, &server);
    pair->cut = cut;
    fl_rng_seed(&pair->rng, (uint64_t)time(NULL));
}

static void pair_fini(struct pair *pair)
{
    end_fini(&pair->client);
    end_fini(&pair->server);
}

static struct call *request(struct end *client, const char *path, const char *body)
{
    struct call *call = &client->calls[client->count++];
    struct fl_arena arena = {0};
    struct fl_head head = {
        .method = body != NULL ? FL_BYTES("POST") : FL_BYTES("GET"),
        .scheme = FL_BYTES("http"),
        .authority = FL_BYTES("host:1"),
        .target = fl_bytes_of(path),
        .body = body != NULL ? FL_BODY_STREAM : FL_BODY_NONE,
        .content_length = UINT64_MAX,
        .arena = &arena,
    };
    fl_fields_add(&head.fields, &arena, FL_BYTES("TE"), FL_BYTES("trailers"));
    fl_fields_add(&head.fields, &arena, FL_BYTES("X-Mixed-Case"), FL_BYTES("Value"));
    fl_fields_add(&head.fields, &arena, FL_BYTES("Transfer-Encoding"), FL_BYTES("chunked"));
    fl_fields_add(&head.fields, &arena, FL_BYTES("Host"), FL_BYTES("other"));
    call->keeps = client->keeps;
    call->stream = fl_h2_request(client->h2, &head, body == NULL, call);
    assert_non_null(call->stream);
    if (body != NULL) {
        fl_h2_send_data(call->stream, fl_slice_copy(fl_bytes_of(body), NULL));
        assert_int_equal(fl_h2_send_end(call->stream, NULL), 0);
    }
    fl_arena_fini(&arena);
    return call;
}

/* ---- exchanges ---- */

/* gaie.md 1.1: heads, messages, trailers; dependencies.md 3.1 server pattern 3, 4 */
static void exchanges_pass_wherever_the_bytes_are_cut(void **state)
{
    (void)state;
    for (int cut = 0; cut < CUT_COUNT; cut++) {
        static struct pair pair;
        pair_init(&pair, (enum cut)cut);
        pair.server.answers = true;
        struct call *post = request(&pair.client, "/post", "the body");
        struct call *get = request(&pair.client, "/get?q=1", NULL);
        settle(&pair);
        assert_int_equal(pair.server.count, 2);
        assert_string_equal(pair.server.calls[0].line, "POST /post host:1");
        assert_string_equal(pair.server.calls[0].fields, "te=trailers;x-mixed-case=Value;");
        assert_string_equal(pair.server.calls[1].line, "GET /get?q=1 host:1");
        assert_string_equal(post->line, "200");
        assert_string_equal(post->fields, "x-echo=yes;");
        assert_string_equal(post->trailers, "grpc-status=0;");
        assert_int_equal(post->informationals, 1);
        assert_true(fl_bytes_eq(fl_buf_bytes(&post->body), FL_BYTES("the body")));
        assert_int_equal(fl_buf_size(&get->body), 0);
        assert_string_equal(get->trailers, "grpc-status=0;");
        for (int i = 0; i < 2; i++) {
            assert_int_equal(pair.client.calls[i].closes, 1);
            assert_int_equal(pair.client.calls[i].rc, 0);
            assert_int_equal(pair.server.calls[i].closes, 1);
            assert_int_equal(pair.server.calls[i].rc, 0);
        }
        assert_int_equal(fl_h2_stream_count(pair.client.h2), 0);
        assert_int_equal(fl_h2_stream_count(pair.server.h2), 0);
        pair_fini(&pair);
    }
}

/* dependencies.md 3.1, server pattern 5: trailers-only is one HEADERS frame with END_STREAM */
static void answer_may_be_a_head_alone(void **state)
{
    (void)state;
    static struct pair pair;
    pair_init(&pair, WHOLE);
    struct call *call = request(&pair.client, "/", "x");
    settle(&pair);
    struct fl_h2_stream *stream = pair.server.calls[0].stream;
    struct fl_head head = {
        .status = 200, .content_length = UINT64_MAX, .arena = fl_h2_arena(stream)};
    fl_fields_add(&head.fields, head.arena, FL_BYTES("grpc-status"), FL_BYTES("12"));
    assert_int_equal(fl_h2_send_head(stream, &head, true), 0);
    settle(&pair);
    assert_string_equal(call->fields, "grpc-status=12;");
    assert_int_equal(call->ends, 1);
    assert_string_equal(call->trailers, "");
    assert_int_equal(call->rc, 0);
    pair_fini(&pair);
}

/* design.md 5: bodies travel by reference, both ways */
static void large_data_is_not_copied(void **state)
{
    (void)state;
    static struct pair pair;
    pair_init(&pair, WHOLE);
    struct call *call = request(&pair.client, "/", NULL);
    settle(&pair);
    struct fl_h2_stream *stream = pair.server.calls[0].stream;
    struct fl_head head = {.status = 200,
                           .body = FL_BODY_STREAM,
                           .content_length = UINT64_MAX,
                           .arena = fl_h2_arena(stream)};
    fl_h2_send_head(stream, &head, false);
    struct fl_chunk *chunk = fl_chunk_new(40000, NULL);
    memset(chunk->data, 'd', 40000);
    fl_chunk_ref(chunk);
    fl_h2_send_data(stream, (struct fl_slice){chunk, chunk->data, 40000});
    fl_h2_send_end(stream, NULL);
    struct fl_chain out = {0};
    assert_int_equal(fl_h2_drain(pair.server.h2, &out, FL_H2_DRAIN_BYTES), 0);
    size_t referenced = 0;
    for (uint32_t i = 0; i < out.count; i++)
        if (fl_chain_at(&out, i).chunk == chunk)
            referenced += fl_chain_at(&out, i).n;
    assert_int_equal(referenced, 40000);
    fl_chunk_unref(chunk);
    /* What was read into a chunk is referenced there. */
    struct fl_chunk *in = fl_chunk_new(FL_CHUNK_MAX_BYTES, NULL);
    size_t n = out.bytes;
    assert_true(n < FL_CHUNK_MAX_BYTES);
    fl_chain_copy_out(&out, 0, in->data, n);
    fl_chain_fini(&out);
    assert_int_equal(fl_h2_feed(pair.client.h2, fl_bytes(in->data, n), in), 0);
    assert_int_equal(fl_buf_size(&call->body), 40000);
    assert_int_equal(call->by_reference, 40000);
    fl_chunk_unref(in);
    pair_fini(&pair);
}

/* dependencies.md 3.1, pattern 8; gaie.md 1.1: stream window on consume, connection window always
 */
static void only_consumption_opens_a_stream_window(void **state)
{
    (void)state;
    static struct pair pair;
    struct fl_h2_config client = config_of(FL_H2_CLIENT), server = config_of(FL_H2_SERVER);
    server.stream_window_bytes = 10000;
    server.connection_window_bytes = 65535;
    end_init(&pair.client, &client);
    end_init(&pair.server, &server);
    pair.cut = WHOLE;
    pair.server.keeps = true;
    settle(&pair);
    static char big[30001];
    memset(big, 'x', sizeof(big) - 1);
    for (int i = 0; i < 20; i++)
        request(&pair.client, "/", big);
    settle(&pair);
    /* 200 kB lie at the server: more than the connection window. */
    for (int i = 0; i < 20; i++)
        assert_int_equal(pair.server.calls[i].held, 10000);
    /* Less than half a window is not worth a frame (the library's rule), half is. */
    fl_h2_consume(pair.server.calls[4].stream, 5000);
    settle(&pair);
    assert_int_equal(pair.server.calls[4].held, 15000);
    assert_int_equal(pair.server.calls[5].held, 10000);
    pair.server.calls[4].keeps = false;
    fl_h2_consume(pair.server.calls[4].stream, 10000);
    settle(&pair);
    assert_int_equal(fl_buf_size(&pair.server.calls[4].body), 30000);
    assert_int_equal(pair.server.calls[4].ends, 1);
    pair_fini(&pair);
}

/* dependencies.md 3.1, pattern 6: output is asked for up to a cap */
static void drain_gives_about_its_cap(void **state)
{
    (void)state;
    static struct pair pair;
    pair_init(&pair, WHOLE);
    request(&pair.client, "/", NULL);
    settle(&pair);
    struct fl_h2_stream *stream = pair.server.calls[0].stream;
    struct fl_head head = {.status = 200,
                           .body = FL_BODY_STREAM,
                           .content_length = UINT64_MAX,
                           .arena = fl_h2_arena(stream)};
    fl_h2_send_head(stream, &head, false);
    static uint8_t big[900000];
    fl_h2_send_data(stream, (struct fl_slice){.p = big, .n = sizeof(big)});
    fl_h2_send_end(stream, NULL);
    size_t total = 0;
    int drains = 0;
    while (fl_h2_wants_drain(pair.server.h2)) {
        struct fl_chain out = {0};
        assert_int_equal(fl_h2_drain(pair.server.h2, &out, FL_H2_DRAIN_BYTES), 0);
        assert_true(out.bytes <= FL_H2_DRAIN_BYTES + 16384 + 9);
        if (out.bytes == 0)
            break;
        total += out.bytes;
        drains++;
        fl_chain_fini(&out);
    }
    assert_true(total > sizeof(big) && drains >= 4);
    pair_fini(&pair);
}

/* dependencies.md 3.1: after RST_STREAM nothing but on_close */
static void reset_ends_a_stream_on_both_sides(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        bool by_client;
        uint32_t error;
        int peer_rc;
    } rows[] = {
        {"client cancels", true, FL_H2_CANCEL, FL_ECLOSED},
        {"client fails", true, FL_H2_INTERNAL_ERROR, FL_EIO},
        {"server refuses", false, FL_H2_REFUSED_STREAM, FL_EREFUSED},
        {"server gives up politely before the end", false, FL_H2_NO_ERROR, FL_ECLOSED},
        {"server is annoyed", false, FL_H2_ENHANCE_YOUR_CALM, FL_EIO},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        static struct pair pair;
        pair_init(&pair, WHOLE);
        struct call *client = request(&pair.client, "/", "data");
        settle(&pair);
        struct call *server = &pair.server.calls[0];
        struct call *first = rows[i].by_client ? client : server;
        struct call *other = rows[i].by_client ? server : client;
        fl_h2_reset(first->stream, rows[i].error);
        fl_h2_reset(first->stream, rows[i].error); /* harmless */
        assert_int_equal(first->closes, 0);        /* commands call nothing back */
        settle(&pair);
        assert_int_equal(first->rc, FL_ECANCELLED);
        assert_int_equal(other->closes, 1);
        if (other->rc != rows[i].peer_rc)
            fail_msg("%s: %d", rows[i].why, other->rc);
        pair_fini(&pair);
    }
}

/* Found by the soak: a frame that waited for room in the drain, then its stream was reset. */
static void reset_while_a_frame_waits_for_room(void **state)
{
    (void)state;
    static struct pair pair;
    static uint8_t big[100000];
    pair_init(&pair, WHOLE);
    struct call *call = request(&pair.client, "/", NULL);
    settle(&pair);
    struct fl_h2_stream *stream = pair.server.calls[0].stream;
    struct fl_head head = {.status = 200,
                           .body = FL_BODY_STREAM,
                           .content_length = UINT64_MAX,
                           .arena = fl_h2_arena(stream)};
    fl_h2_send_head(stream, &head, false);
    fl_h2_send_data(stream, (struct fl_slice){.p = big, .n = sizeof(big)});
    struct fl_chain out = {0};
    assert_int_equal(fl_h2_drain(pair.server.h2, &out, 20000), 0);
    assert_true(fl_h2_queued(stream) > 0);
    uint8_t *flat = fl_alloc(out.bytes);
    fl_chain_copy_out(&out, 0, flat, out.bytes);
    assert_int_equal(fl_h2_feed(pair.client.h2, fl_bytes(flat, out.bytes), NULL), 0);
    fl_free(flat);
    fl_chain_fini(&out);
    fl_h2_reset(stream, FL_H2_CANCEL);
    settle(&pair);
    assert_int_equal(pair.server.calls[0].rc, FL_ECANCELLED);
    assert_int_equal(call->rc, FL_ECLOSED);
    /* The connection goes on. */
    pair.server.answers = true;
    struct call *next = request(&pair.client, "/", NULL);
    settle(&pair);
    assert_int_equal(next->rc, 0);
    pair_fini(&pair);
}

/* A request may be cancelled before it has left. */
static void reset_before_the_request_left_is_clean(void **state)
{
    (void)state;
    static struct pair pair;
    pair_init(&pair, WHOLE);
    settle(&pair);
    struct call *call = request(&pair.client, "/", "data");
    fl_h2_reset(call->stream, FL_H2_CANCEL);
    settle(&pair);
    assert_int_equal(call->closes, 1);
    assert_int_equal(call->rc, FL_ECANCELLED);
    assert_int_equal(pair.server.count, 0);
    pair_fini(&pair);
}

/* dependencies.md 3.1: RST_STREAM NO_ERROR after a complete response is success */
static void early_answer_is_a_success_for_both(void **state)
{
    (void)state;
    static struct pair pair;
    pair_init(&pair, WHOLE);
    struct call *call = &pair.client.calls[pair.client.count++];
    struct fl_head head = {.method = FL_BYTES("POST"),
                           .authority = FL_BYTES("h"),
                           .target = FL_BYTES("/"),
                           .body = FL_BODY_STREAM,
                           .content_length = UINT64_MAX};
    call->stream = fl_h2_request(pair.client.h2, &head, false, call);
    settle(&pair);
    answer(&pair.server.calls[0]);
    settle(&pair);
    assert_int_equal(pair.server.calls[0].rc, 0);
    assert_int_equal(call->closes, 1);
    assert_int_equal(call->rc, 0);
    assert_int_equal(fl_h2_stream_count(pair.server.h2), 0);
    pair_fini(&pair);
}

/* dependencies.md 3.1: SETTINGS lowering MAX_CONCURRENT_STREAMS; gateway.md 9.1 */
static void can_open_follows_the_peers_limit(void **state)
{
    (void)state;
    static struct pair pair;
    struct fl_h2_config client = config_of(FL_H2_CLIENT), server = config_of(FL_H2_SERVER);
    server.max_streams = 3;
    end_init(&pair.client, &client);
    end_init(&pair.server, &server);
    pair.cut = WHOLE;
    settle(&pair);
    assert_true(pair.client.changes > 0);
    for (int i = 0; i < 3; i++) {
        assert_true(fl_h2_can_open(pair.client.h2));
        request(&pair.client, "/", NULL);
    }
    assert_false(fl_h2_can_open(pair.client.h2));
    settle(&pair);
    answer(&pair.server.calls[1]);
    settle(&pair);
    assert_true(fl_h2_can_open(pair.client.h2));
    assert_false(fl_h2_is_closing(pair.client.h2));
    pair_fini(&pair);
}

/* gaie.md 1.1, shutdown: first GOAWAY lets new streams in, the last one refuses them */
static void goaway_in_two_steps(void **state)
{
    (void)state;
    static struct pair pair;
    pair_init(&pair, WHOLE);
    pair.server.answers = true;
    struct call *first = request(&pair.client, "/1", NULL);
    settle(&pair);
    assert_int_equal(first->rc, 0);
    fl_h2_shutdown_notice(pair.server.h2);
    /* A client that has not read it yet sends one more. */
    struct call *second = request(&pair.client, "/2", NULL);
    struct fl_chain out = {0};
    assert_int_equal(fl_h2_drain(pair.server.h2, &out, FL_H2_DRAIN_BYTES), 0);
    move(&pair, &pair.client, &pair.server);
    assert_int_equal(pair.server.count, 2);
    uint8_t notice[64];
    size_t n = out.bytes;
    assert_true(n <= sizeof(notice));
    fl_chain_copy_out(&out, 0, notice, n);
    fl_chain_fini(&out);
    assert_int_equal(fl_h2_feed(pair.client.h2, fl_bytes(notice, n), NULL), 0);
    assert_true(fl_h2_is_closing(pair.client.h2));
    assert_false(fl_h2_can_open(pair.client.h2));
    settle(&pair);
    assert_int_equal(second->rc, 0);
    assert_int_equal(second->closes, 1);
    assert_false(fl_h2_is_over(pair.server.h2));
    fl_h2_goaway(pair.server.h2, FL_H2_NO_ERROR);
    settle(&pair);
    assert_true(fl_h2_is_over(pair.server.h2));
    assert_true(fl_h2_is_over(pair.client.h2));
    pair_fini(&pair);
}

static void failing_the_connection_closes_every_stream_once(void **state)
{
    (void)state;
    static struct pair pair;
    pair_init(&pair, WHOLE);
    for (int i = 0; i < 5; i++)
        request(&pair.client, "/", "x");
    settle(&pair);
    fl_h2_reset(pair.client.calls[2].stream, FL_H2_CANCEL);
    fl_h2_fail(pair.client.h2, FL_EIO);
    for (int i = 0; i < 5; i++)
        assert_int_equal(pair.client.calls[i].rc, i == 2 ? FL_ECANCELLED : FL_EIO);
    assert_int_equal(fl_h2_stream_count(pair.client.h2), 0);
    assert_true(fl_h2_is_over(pair.client.h2));
    pair_fini(&pair);
}

/* ---- heads ---- */

/* dependencies.md 3.1: 64 KiB of names + values + 32 each; above: 431 */
static void header_list_cap_has_an_edge(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        int over;
        const char *status;
    } rows[] = {{"one below", -1, NULL}, {"at the cap", 0, NULL}, {"one above", 1, "431"}};
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        static struct pair pair;
        struct fl_h2_config client = config_of(FL_H2_CLIENT), server = config_of(FL_H2_SERVER);
        server.max_header_bytes = 4000;
        end_init(&pair.client, &client);
        end_init(&pair.server, &server);
        pair.cut = WHOLE;
        struct fl_arena arena = {0};
        struct fl_head head = {.method = FL_BYTES("GET"),
                               .scheme = FL_BYTES("http"),
                               .authority = FL_BYTES("a"),
                               .target = FL_BYTES("/"),
                               .content_length = UINT64_MAX,
                               .arena = &arena};
        /* :method GET 42, :scheme http 43, :authority a 43, :path / 38, and x-big */
        size_t n = (size_t)(4000 - 42 - 43 - 43 - 38 - 32 - 5 + rows[i].over);
        char *value = fl_arena_alloc(&arena, n);
        memset(value, 'v', n);
        fl_fields_add(&head.fields, &arena, FL_BYTES("x-big"), fl_bytes(value, n));
        struct call *call = &pair.client.calls[pair.client.count++];
        call->stream = fl_h2_request(pair.client.h2, &head, true, call);
        settle(&pair);
        if (pair.server.count != (rows[i].status == NULL))
            fail_msg("%s: %d heads", rows[i].why, pair.server.count);
        if (rows[i].status != NULL) {
            assert_string_equal(call->line, rows[i].status);
            assert_int_equal(call->rc, 0);
        }
        assert_int_equal(fl_h2_stream_count(pair.server.h2), rows[i].status == NULL ? 1 : 0);
        fl_arena_fini(&arena);
        pair_fini(&pair);
    }
}

/* Number of fields; and a client's view: FL_ELIMIT */
static void header_count_cap_has_an_edge(void **state)
{
    (void)state;
    for (int count = 9; count <= 11; count++) {
        static struct pair pair;
        struct fl_h2_config client = config_of(FL_H2_CLIENT), server = config_of(FL_H2_SERVER);
        client.max_headers = 10;
        end_init(&pair.client, &client);
        end_init(&pair.server, &server);
        pair.cut = WHOLE;
        struct call *call = request(&pair.client, "/", NULL);
        settle(&pair);
        struct fl_h2_stream *stream = pair.server.calls[0].stream;
        struct fl_head head = {
            .status = 200, .content_length = UINT64_MAX, .arena = fl_h2_arena(stream)};
        for (int i = 0; i < count; i++)
            fl_fields_add(&head.fields, head.arena, FL_BYTES("x"), FL_BYTES("y"));
        fl_h2_send_head(stream, &head, true);
        settle(&pair);
        assert_int_equal(call->closes, 1);
        assert_int_equal(call->rc, count <= 10 ? 0 : FL_ELIMIT);
        assert_int_equal(call->heads, count <= 10);
        pair_fini(&pair);
    }
}

static void heads_that_cannot_be_sent_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *why, *name, *value;
    } rows[] = {
        {"line feed", "x", "a\nb"},
        {"no token", "x y", "a"},
        {"pseudo field", ":path", "/"},
        {"empty name", "", "a"},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        static struct pair pair;
        struct fl_arena arena = {0};
        pair_init(&pair, WHOLE);
        struct fl_head head = {
            .method = FL_BYTES("GET"), .target = FL_BYTES("/"), .authority = FL_BYTES("a")};
        fl_fields_add(&head.fields, &arena, fl_bytes_of(rows[i].name), fl_bytes_of(rows[i].value));
        assert_null(fl_h2_request(pair.client.h2, &head, true, NULL));
        assert_int_equal(fl_h2_stream_count(pair.client.h2), 0);
        struct call *call = request(&pair.client, "/", NULL);
        settle(&pair);
        struct fl_head answer_head = {.status = 200, .fields = head.fields};
        assert_int_equal(fl_h2_send_head(pair.server.calls[0].stream, &answer_head, true),
                         FL_EPROTO);
        (void)call;
        fl_arena_fini(&arena);
        pair_fini(&pair);
    }
}

/* ---- raw frames at a server ---- */

#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

static void add_frame(struct fl_buf *out, uint8_t type, uint8_t flags, uint32_t stream,
                      struct fl_bytes payload)
{
    const uint8_t head[9] = {(uint8_t)(payload.n >> 16),
                             (uint8_t)(payload.n >> 8),
                             (uint8_t)payload.n,
                             type,
                             flags,
                             (uint8_t)(stream >> 24),
                             (uint8_t)(stream >> 16),
                             (uint8_t)(stream >> 8),
                             (uint8_t)stream};
    fl_buf_append(out, fl_bytes(head, 9));
    fl_buf_append(out, payload);
}

/* A literal field without indexing, short strings. */
static void add_field(struct fl_buf *out, const char *name, const char *value)
{
    fl_buf_append_byte(out, 0);
    fl_buf_append_byte(out, (uint8_t)strlen(name));
    fl_buf_append(out, fl_bytes_of(name));
    fl_buf_append_byte(out, (uint8_t)strlen(value));
    fl_buf_append(out, fl_bytes_of(value));
}

static void add_headers(struct fl_buf *out, uint32_t stream, const char *const *fields, bool is_end)
{
    struct fl_buf block = {0};
    for (int i = 0; fields[i] != NULL; i += 2)
        add_field(&block, fields[i], fields[i + 1]);
    add_frame(out, 1, is_end ? 5 : 4, stream, fl_buf_bytes(&block));
    fl_buf_fini(&block);
}

static void add_preface(struct fl_buf *out)
{
    fl_buf_append(out, FL_BYTES(PREFACE));
    add_frame(out, 4, 0, 0, fl_bytes(NULL, 0));
}

#define REQUEST ":method", "GET", ":scheme", "http", ":path", "/", ":authority", "a"

/* Reads the server's frames: the first of `type` on `stream`; its last four payload bytes. */
static bool find_frame(struct fl_h2 *h2, uint8_t type, uint32_t stream, uint32_t *code)
{
    struct fl_chain out = {0};
    bool is_found = false;
    fl_h2_drain(h2, &out, 1 << 20);
    uint8_t *flat = fl_alloc(out.bytes + 1);
    fl_chain_copy_out(&out, 0, flat, out.bytes);
    for (size_t at = 0; at + 9 <= out.bytes;) {
        size_t n = (size_t)flat[at] << 16 | (size_t)flat[at + 1] << 8 | flat[at + 2];
        uint32_t id = (uint32_t)flat[at + 5] << 24 | (uint32_t)flat[at + 6] << 16 |
                      (uint32_t)flat[at + 7] << 8 | flat[at + 8];
        if (!is_found && flat[at + 3] == type && id == stream) {
            is_found = true;
            const uint8_t *last = flat + at + 9 + n - 4;
            if (type == 7)
                last = flat + at + 9 + 4; /* GOAWAY: error code behind the last id */
            *code = n >= 4 ? (uint32_t)last[0] << 24 | (uint32_t)last[1] << 16 |
                                 (uint32_t)last[2] << 8 | last[3]
                           : 0;
        }
        at += 9 + n;
    }
    fl_free(flat);
    fl_chain_fini(&out);
    return is_found;
}

/* gateway.md 7.4: upper case names, connection-specific headers, a content-length that disagrees;
 * and what else is malformed (RFC 9113 8.1.1): the stream is reset, the connection goes on */
static void malformed_requests_are_reset(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *fields[16];
        const char *data; /* NULL: END_STREAM with the head */
    } rows[] = {
        {"upper case", {REQUEST, "X-Upper", "1"}, NULL},
        {"connection", {REQUEST, "connection", "close"}, NULL},
        {"transfer-encoding", {REQUEST, "transfer-encoding", "chunked"}, NULL},
        {"te other than trailers", {REQUEST, "te", "gzip"}, NULL},
        {"value with a line feed", {REQUEST, "x", "a\nb"}, NULL},
        {"pseudo field after others", {"x", "y", REQUEST}, NULL},
        {"no path", {":method", "GET", ":scheme", "http", ":authority", "a"}, NULL},
        {"two paths", {REQUEST, ":path", "/2"}, NULL},
        {"content-length above DATA", {REQUEST, "content-length", "5"}, "abc"},
        {"content-length below DATA", {REQUEST, "content-length", "2"}, "abc"},
        {"content-length is no number", {REQUEST, "content-length", "+3"}, "abc"},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        for (int cut = 0; cut < CUT_COUNT; cut++) {
            struct fl_h2_config config = config_of(FL_H2_SERVER);
            static struct end server;
            struct fl_buf out = {0};
            struct fl_rng rng;
            uint32_t code = 99;
            fl_rng_seed(&rng, (uint64_t)time(NULL));
            end_init(&server, &config);
            add_preface(&out);
            add_headers(&out, 1, rows[i].fields, rows[i].data == NULL);
            if (rows[i].data != NULL)
                add_frame(&out, 0, 1, 1, fl_bytes_of(rows[i].data));
            static const char *const good[] = {REQUEST, NULL};
            add_headers(&out, 3, good, true);
            assert_int_equal(feed_bytes(server.h2, fl_buf_bytes(&out), (enum cut)cut, &rng), 0);
            if (!find_frame(server.h2, 3, 1, &code) || code != FL_H2_PROTOCOL_ERROR)
                fail_msg("%s: code %u", rows[i].why, code);
            /* The good one was served; a bad one either never came or ended with an error. */
            assert_int_equal(server.calls[server.count - 1].closes, 0);
            assert_int_equal(server.count, rows[i].data != NULL && i < 10 ? 2 : 1);
            if (server.count == 2)
                assert_int_equal(server.calls[0].rc, FL_EPROTO);
            fl_buf_fini(&out);
            end_fini(&server);
        }
    }
}

/* What the library lets pass and we refuse with an answer. */
static void requests_refused_with_a_status(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *fields[16];
        const char *status;
    } rows[] = {
        {"gateway.md 7: CONNECT", {":method", "CONNECT", ":authority", "a:1"}, "501"},
        {"two hosts", {REQUEST, "host", "b"}, "400"},
        {"gateway.md 7.3: fragment",
         {":method", "GET", ":scheme", "http", ":path", "/#x", ":authority", "a"},
         "400"},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_h2_config config = config_of(FL_H2_SERVER);
        static struct end server;
        struct fl_buf out = {0};
        end_init(&server, &config);
        add_preface(&out);
        add_headers(&out, 1, rows[i].fields, false);
        assert_int_equal(fl_h2_feed(server.h2, fl_buf_bytes(&out), NULL), 0);
        assert_int_equal(server.count, 0);
        /* Feed the answer to a client that has asked. */
        static struct pair pair;
        struct fl_h2_config client = config_of(FL_H2_CLIENT);
        end_init(&pair.client, &client);
        struct call *call = request(&pair.client, "/", NULL);
        struct fl_chain ignored = {0};
        fl_h2_drain(pair.client.h2, &ignored, 1 << 20);
        fl_chain_fini(&ignored);
        pair.cut = WHOLE;
        move(&pair, &server, &pair.client);
        assert_string_equal(call->line, rows[i].status);
        assert_int_equal(fl_h2_stream_count(server.h2), 0);
        fl_buf_fini(&out);
        end_fini(&server);
        end_fini(&pair.client);
    }
}

/* gateway.md 7.4: HTTP/2 to HTTP/1.1: authority from Host, one cookie line (RFC 9113 8.2.3) */
static void head_is_brought_into_one_shape(void **state)
{
    (void)state;
    static const char *const fields[] = {":method", "GET",  ":scheme", "http",   ":path",
                                         "/",       "host", "only",    "cookie", "a=1",
                                         "x",       "y",    "cookie",  "b=2",    NULL};
    struct fl_h2_config config = config_of(FL_H2_SERVER);
    static struct end server;
    struct fl_buf out = {0};
    end_init(&server, &config);
    add_preface(&out);
    add_headers(&out, 1, fields, true);
    assert_int_equal(fl_h2_feed(server.h2, fl_buf_bytes(&out), NULL), 0);
    assert_string_equal(server.calls[0].line, "GET / only");
    assert_string_equal(server.calls[0].fields, "x=y;cookie=a=1; b=2;");
    fl_buf_fini(&out);
    end_fini(&server);
}

/* ---- floods: dependencies.md 3.1 ---- */

static bool is_cut_off(struct end *server, struct fl_bytes in)
{
    uint32_t code;
    int rc = fl_h2_feed(server->h2, in, NULL);
    return rc < 0 || find_frame(server->h2, 7, 0, &code);
}

/* CVE-2023-44487: streams opened and reset; the burst is served, what is beyond it ends the
 * connection */
static void rapid_reset_is_cut_off_after_the_burst(void **state)
{
    (void)state;
    static const char *const good[] = {REQUEST, NULL};
    static const uint8_t cancel[4] = {0, 0, 0, 8};
    struct fl_h2_config config = config_of(FL_H2_SERVER);
    static struct end server;
    config.reset_burst = 20;
    config.reset_rate = 1;
    end_init(&server, &config);
    bool was_cut = false;
    uint32_t id = 1;
    struct fl_buf out = {0};
    add_preface(&out);
    fl_h2_feed(server.h2, fl_buf_bytes(&out), NULL);
    fl_buf_fini(&out);
    int resets = 0;
    while (!was_cut && resets < 60) {
        add_headers(&out, id, good, false);
        add_frame(&out, 3, 0, id, fl_bytes(cancel, 4));
        was_cut = is_cut_off(&server, fl_buf_bytes(&out));
        fl_buf_fini(&out);
        id += 2;
        resets++;
    }
    assert_true(was_cut);
    assert_in_range(resets, 20, 25);
    end_fini(&server);
}

/* CVE-2024-28182: endless CONTINUATION */
static void continuations_have_a_cap(void **state)
{
    (void)state;
    for (int count = FL_H2_MAX_CONTINUATIONS - 1; count <= FL_H2_MAX_CONTINUATIONS + 1; count++) {
        struct fl_h2_config config = config_of(FL_H2_SERVER);
        static struct end server;
        struct fl_buf out = {0}, block = {0}, more = {0};
        end_init(&server, &config);
        add_preface(&out);
        static const char *const good[] = {REQUEST, NULL};
        for (int i = 0; good[i] != NULL; i += 2)
            add_field(&block, good[i], good[i + 1]);
        add_field(&more, "x", "y");
        add_frame(&out, 1, 1, 1, fl_buf_bytes(&block));
        for (int i = 0; i < count; i++)
            add_frame(&out, 9, i + 1 == count ? 4 : 0, 1, fl_buf_bytes(&more));
        bool was_cut = is_cut_off(&server, fl_buf_bytes(&out));
        assert_int_equal(was_cut, count > FL_H2_MAX_CONTINUATIONS);
        assert_int_equal(server.count, !was_cut);
        fl_buf_fini(&out);
        fl_buf_fini(&block);
        fl_buf_fini(&more);
        end_fini(&server);
    }
}

/* PING and SETTINGS floods: answers that nobody reads are not collected without end */
static void ping_flood_is_cut_off(void **state)
{
    (void)state;
    struct fl_h2_config config = config_of(FL_H2_SERVER);
    static struct end server;
    static const uint8_t opaque[8];
    struct fl_buf out = {0};
    end_init(&server, &config);
    add_preface(&out);
    assert_int_equal(fl_h2_feed(server.h2, fl_buf_bytes(&out), NULL), 0);
    fl_buf_fini(&out);
    for (int i = 0; i < FL_H2_MAX_OUTBOUND_ACK - 1; i++)
        add_frame(&out, 6, 0, 0, fl_bytes(opaque, 8));
    assert_int_equal(fl_h2_feed(server.h2, fl_buf_bytes(&out), NULL), 0);
    int rc = 0;
    for (int i = 0; i < 10 && rc == 0; i++) {
        fl_buf_fini(&out);
        add_frame(&out, 6, 0, 0, fl_bytes(opaque, 8));
        rc = fl_h2_feed(server.h2, fl_buf_bytes(&out), NULL);
    }
    assert_int_equal(rc, FL_ELIMIT);
    fl_buf_fini(&out);
    end_fini(&server);
}

/* gaie.md 1.1: PING is always answered */
static void ping_is_answered(void **state)
{
    (void)state;
    struct fl_h2_config config = config_of(FL_H2_SERVER);
    static struct end server;
    static const uint8_t opaque[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct fl_buf out = {0};
    uint32_t last = 0;
    end_init(&server, &config);
    add_preface(&out);
    add_frame(&out, 6, 0, 0, fl_bytes(opaque, 8));
    assert_int_equal(fl_h2_feed(server.h2, fl_buf_bytes(&out), NULL), 0);
    assert_true(find_frame(server.h2, 6, 0, &last));
    assert_int_equal(last, 0x05060708);
    fl_buf_fini(&out);
    end_fini(&server);
}

static void huge_settings_are_cut_off(void **state)
{
    (void)state;
    for (size_t entries = FL_H2_MAX_SETTINGS; entries <= FL_H2_MAX_SETTINGS + 1; entries++) {
        struct fl_h2_config config = config_of(FL_H2_SERVER);
        static struct end server;
        static uint8_t payload[6 * (FL_H2_MAX_SETTINGS + 1)];
        struct fl_buf out = {0};
        for (size_t i = 0; i < entries; i++) {
            payload[6 * i] = 0xf0; /* an unknown setting */
            payload[6 * i + 1] = (uint8_t)i;
        }
        end_init(&server, &config);
        fl_buf_append(&out, FL_BYTES(PREFACE));
        add_frame(&out, 4, 0, 0, fl_bytes(payload, 6 * entries));
        assert_int_equal(is_cut_off(&server, fl_buf_bytes(&out)), entries > FL_H2_MAX_SETTINGS);
        fl_buf_fini(&out);
        end_fini(&server);
    }
}

/* gaie.md 1.1: SETTINGS_MAX_CONCURRENT_STREAMS is enforced, REFUSED_STREAM tells that nothing was
 * done */
static void streams_above_the_limit_are_refused(void **state)
{
    (void)state;
    struct fl_h2_config config = config_of(FL_H2_SERVER);
    static struct end server;
    static const char *const good[] = {REQUEST, NULL};
    struct fl_buf out = {0};
    uint32_t code = 99;
    config.max_streams = 3;
    end_init(&server, &config);
    add_preface(&out);
    for (uint32_t i = 0; i < 4; i++)
        add_headers(&out, 1 + 2 * i, good, false);
    assert_int_equal(fl_h2_feed(server.h2, fl_buf_bytes(&out), NULL), 0);
    assert_int_equal(server.count, 3);
    assert_true(find_frame(server.h2, 3, 7, &code));
    assert_int_equal(code, FL_H2_REFUSED_STREAM);
    fl_buf_fini(&out);
    end_fini(&server);
}

/* DATA in crumbs costs little more than its bytes. */
static void tiny_data_is_joined_under_the_budget(void **state)
{
    (void)state;
    struct fl_budget budget = {.cap_bytes = 1 << 20};
    struct fl_h2_config config = config_of(FL_H2_SERVER);
    static struct end server;
    static const char *const post[] = {":method", "POST",       ":scheme", "http", ":path",
                                       "/",       ":authority", "a",       NULL};
    struct fl_buf out = {0};
    config.budget = &budget;
    end_init(&server, &config);
    server.keeps = true;
    add_preface(&out);
    add_headers(&out, 1, post, false);
    for (int i = 0; i < 5000; i++)
        add_frame(&out, 0, 0, 1, FL_BYTES("x"));
    assert_int_equal(fl_h2_feed(server.h2, fl_buf_bytes(&out), NULL), 0);
    assert_int_equal(fl_buf_size(&server.calls[0].body), 5000);
    assert_true(fl_budget_held(&budget) <= 8192);
    fl_buf_fini(&out);
    end_fini(&server);
    assert_int_equal(fl_budget_held(&budget), 0);
}

/* epp.md 12.4: beyond the cap on all bodies the stream ends, the connection goes on */
static void exhausted_budget_ends_the_stream_alone(void **state)
{
    (void)state;
    struct fl_budget budget = {.cap_bytes = 100};
    struct fl_h2_config config = config_of(FL_H2_SERVER);
    static struct end server;
    static const char *const post[] = {":method", "POST",       ":scheme", "http", ":path",
                                       "/",       ":authority", "a",       NULL};
    struct fl_buf out = {0};
    uint32_t code = 99;
    config.budget = &budget;
    end_init(&server, &config);
    add_preface(&out);
    add_headers(&out, 1, post, false);
    add_frame(&out, 0, 0, 1, FL_BYTES("some bytes"));
    assert_int_equal(fl_h2_feed(server.h2, fl_buf_bytes(&out), NULL), 0);
    assert_true(find_frame(server.h2, 3, 1, &code));
    assert_int_equal(code, FL_H2_ENHANCE_YOUR_CALM);
    assert_int_equal(server.calls[0].rc, FL_ENOMEM);
    assert_false(fl_h2_is_over(server.h2));
    fl_buf_fini(&out);
    end_fini(&server);
}

static void nonsense_is_a_protocol_error(void **state)
{
    (void)state;
    static const char *const nonsense[] = {"GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nXX"};
    for (size_t i = 0; i < FL_ARRAY_LEN(nonsense); i++) {
        struct fl_h2_config config = config_of(FL_H2_SERVER);
        static struct end server;
        end_init(&server, &config);
        assert_int_equal(fl_h2_feed(server.h2, fl_bytes_of(nonsense[i]), NULL), FL_EPROTO);
        assert_true(fl_h2_is_over(server.h2));
        end_fini(&server);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exchanges_pass_wherever_the_bytes_are_cut),
        cmocka_unit_test(answer_may_be_a_head_alone),
        cmocka_unit_test(large_data_is_not_copied),
        cmocka_unit_test(only_consumption_opens_a_stream_window),
        cmocka_unit_test(drain_gives_about_its_cap),
        cmocka_unit_test(reset_ends_a_stream_on_both_sides),
        cmocka_unit_test(reset_while_a_frame_waits_for_room),
        cmocka_unit_test(reset_before_the_request_left_is_clean),
        cmocka_unit_test(early_answer_is_a_success_for_both),
        cmocka_unit_test(can_open_follows_the_peers_limit),
        cmocka_unit_test(goaway_in_two_steps),
        cmocka_unit_test(failing_the_connection_closes_every_stream_once),
        cmocka_unit_test(header_list_cap_has_an_edge),
        cmocka_unit_test(header_count_cap_has_an_edge),
        cmocka_unit_test(heads_that_cannot_be_sent_are_refused),
        cmocka_unit_test(malformed_requests_are_reset),
        cmocka_unit_test(requests_refused_with_a_status),
        cmocka_unit_test(head_is_brought_into_one_shape),
        cmocka_unit_test(rapid_reset_is_cut_off_after_the_burst),
        cmocka_unit_test(continuations_have_a_cap),
        cmocka_unit_test(ping_flood_is_cut_off),
        cmocka_unit_test(ping_is_answered),
        cmocka_unit_test(huge_settings_are_cut_off),
        cmocka_unit_test(streams_above_the_limit_are_refused),
        cmocka_unit_test(tiny_data_is_joined_under_the_budget),
        cmocka_unit_test(exhausted_budget_ends_the_stream_alone),
        cmocka_unit_test(nonsense_is_a_protocol_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
