/* SPDX-License-Identifier: Apache-2.0 */
#include "http2/h2.h"

#include <assert.h>
#include <nghttp2/nghttp2.h>
#include <stdalign.h>
#include <string.h>

#include "base/alloc.h"
#include "base/list.h"
#include "http2/h2_fields.h"
#include "http2/joint.h"

/* Heads of ext_proc and of most requests fit, so that a stream is one allocation. */
#define STREAM_ARENA_ROOM 2048
/* Frame headers and HEADERS frames of one turn. */
#define OUT_JOINT_ROOM 4096
/* Copying this much is cheaper than another vector of the writev. */
#define COPY_BELOW_BYTES 1024
#define IN_JOINT_ROOM 4096

/* Under the address sanitizer memory is given back at once, so that it sees who uses it too long.
 */
#if defined(__SANITIZE_ADDRESS__)
static const uint32_t cache_max = 0;
#else
static const uint32_t cache_max = FL_H2_CACHE_MAX;
#endif

struct fl_h2_stream {
    struct fl_h2 *h2;
    struct fl_h2_stream *next_spare; /* while in the cache */
    struct fl_link link;             /* of h2->streams */
    struct fl_link ready;            /* of h2->ready: has bytes for a provider that sleeps */
    void *owner;
    int32_t id;
    int rc;              /* why we reset it; 0: we did not */
    uint32_t list_count; /* fields and bytes of the list being received */
    size_t list_bytes;
    struct fl_head *head;           /* being received, or received */
    struct fl_fields *trailers;     /* likewise; NULL: none */
    struct fl_fields *out_trailers; /* to be sent after `out`; NULL: none */
    struct fl_chain out;
    bool has_head;      /* the final head was given out (or refused) */
    bool is_refused;    /* answered here; the owner never heard of it */
    bool is_over_limit; /* the list being received is above a cap */
    bool is_in_ended;
    bool is_out_ended;  /* fl_h2_send_end() was called */
    bool is_sent;       /* END_STREAM went out */
    bool is_provided;   /* the library asks our provider for DATA */
    bool is_deferred;   /* ... and was told to wait */
    bool is_reset;      /* by us */
    bool is_done_early; /* ... only because the rest had become pointless */
    bool is_reset_by_peer;
    struct fl_arena arena;
    alignas(16) uint8_t room[STREAM_ARENA_ROOM];
};

struct fl_h2 {
    nghttp2_session *session;
    const struct fl_h2_ops *ops;
    void *owner;
    struct fl_h2_config config;
    struct fl_link streams, ready;
    uint32_t stream_count;
    bool is_goaway_received;
    bool is_broken;            /* the library gave up on it */
    struct fl_chunk *in_chunk; /* during a feed */
    struct fl_chain *out;      /* during a drain */
    size_t out_max_bytes;
    struct fl_joint out_joint, in_joint;
};

/* ---- streams ---- */

static struct fl_h2_stream *stream_alloc(struct fl_h2_cache *cache)
{
    if (cache == NULL || cache->first == NULL)
        return fl_alloc(sizeof(struct fl_h2_stream));
    struct fl_h2_stream *stream = cache->first;
    cache->first = stream->next_spare;
    cache->count--;
    return stream;
}

static void stream_give_back(struct fl_h2_cache *cache, struct fl_h2_stream *stream)
{
    if (cache == NULL || cache->count >= cache_max) {
        fl_free(stream);
        return;
    }
    stream->next_spare = cache->first;
    cache->first = stream;
    cache->count++;
}

void fl_h2_cache_fini(struct fl_h2_cache *cache)
{
    while (cache->count > 0)
        fl_free(stream_alloc(cache));
}

static struct fl_h2_stream *stream_new(struct fl_h2 *h2, int32_t id)
{
    struct fl_h2_stream *stream = stream_alloc(h2->config.cache);
    memset(stream, 0, offsetof(struct fl_h2_stream, room));
    stream->h2 = h2;
    stream->id = id;
    fl_link_init(&stream->link);
    fl_link_init(&stream->ready);
    fl_link_push_tail(&h2->streams, &stream->link);
    h2->stream_count++;
    fl_arena_init_with(&stream->arena, 0, stream->room, sizeof(stream->room));
    return stream;
}

static void drop_output(struct fl_h2_stream *stream)
{
    fl_chain_fini(&stream->out);
    stream->out_trailers = NULL;
}

static void stream_free(struct fl_h2_stream *stream)
{
    fl_link_unlink(&stream->link);
    fl_link_unlink(&stream->ready);
    drop_output(stream);
    fl_arena_fini(&stream->arena);
    stream_give_back(stream->h2->config.cache, stream);
}

/* The only way a stream ends. */
static void stream_end(struct fl_h2_stream *stream, int rc)
{
    fl_link_unlink(&stream->ready);
    stream->h2->stream_count--; /* who is told may open another one */
    bool is_known =
        stream->h2->config.side == FL_H2_CLIENT || (stream->has_head && !stream->is_refused);
    if (is_known)
        stream->h2->ops->on_close(stream->h2->owner, stream, rc);
    stream_free(stream);
}

static struct fl_h2_stream *find(nghttp2_session *session, int32_t id)
{
    return nghttp2_session_get_stream_user_data(session, id);
}

static void reset(struct fl_h2_stream *stream, uint32_t error, int rc)
{
    if (stream->is_reset || stream->h2->is_broken)
        return;
    stream->is_reset = true;
    stream->rc = rc;
    drop_output(stream);
    fl_link_unlink(&stream->ready);
    nghttp2_submit_rst_stream(stream->h2->session, NGHTTP2_FLAG_NONE, stream->id, error);
}

/* A whole message of one side makes what is left of the other pointless. */
static void finish_early(struct fl_h2_stream *stream, uint32_t error)
{
    if (stream->is_reset)
        return;
    stream->is_done_early = true;
    reset(stream, error, 0);
}

static int close_reason(const struct fl_h2_stream *stream, uint32_t error)
{
    if (stream->is_done_early)
        return 0;
    if (stream->is_reset)
        return stream->rc;
    if (error == NGHTTP2_REFUSED_STREAM)
        return FL_EREFUSED;
    bool is_served =
        stream->h2->config.side == FL_H2_SERVER ? stream->is_sent : stream->is_in_ended;
    if (is_served && error == NGHTTP2_NO_ERROR)
        return 0;
    if (!stream->is_reset_by_peer && error != NGHTTP2_NO_ERROR)
        return FL_EPROTO;
    return error == NGHTTP2_NO_ERROR || error == NGHTTP2_CANCEL ? FL_ECLOSED : FL_EIO;
}

/* ---- receiving ---- */

static struct fl_head *head_new(struct fl_h2_stream *stream)
{
    struct fl_head *head = fl_arena_calloc(&stream->arena, 1, sizeof(*head));
    head->is_h2 = true;
    head->minor = 2;
    head->keep_alive = true;
    head->body = FL_BODY_STREAM;
    head->content_length = UINT64_MAX;
    head->arena = &stream->arena;
    return head;
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *user_data)
{
    struct fl_h2 *h2 = user_data;

    if (frame->hd.type != NGHTTP2_HEADERS)
        return 0;
    struct fl_h2_stream *stream = find(session, frame->hd.stream_id);
    if (stream == NULL) {
        if (frame->headers.cat != NGHTTP2_HCAT_REQUEST)
            return 0;
        stream = stream_new(h2, frame->hd.stream_id);
        nghttp2_session_set_stream_user_data(session, stream->id, stream);
    }
    stream->list_bytes = 0;
    stream->list_count = 0;
    stream->is_over_limit = false;
    if (!stream->has_head)
        stream->head = head_new(stream);
    else
        stream->trailers = fl_arena_calloc(&stream->arena, 1, sizeof(*stream->trailers));
    return 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t namelen, const uint8_t *value, size_t valuelen, uint8_t flags,
                     void *user_data)
{
    struct fl_h2 *h2 = user_data;
    struct fl_h2_stream *stream = find(session, frame->hd.stream_id);
    (void)flags;

    if (stream == NULL || stream->is_reset || stream->is_over_limit)
        return 0;
    stream->list_bytes += namelen + valuelen + 32;
    stream->list_count += namelen > 0 && name[0] == ':' ? 0 : 1;
    if (stream->list_bytes > h2->config.max_header_bytes ||
        stream->list_count > h2->config.max_headers) {
        /* Decoding must go on, the table is the connection's; keeping stops here. */
        stream->is_over_limit = true;
        return 0;
    }
    struct fl_bytes field_value = fl_arena_copy(&stream->arena, fl_bytes(value, valuelen));
    if (namelen > 0 && name[0] == ':') {
        fl_h2_head_set_pseudo(stream->head, fl_bytes(name, namelen), field_value);
        return 0;
    }
    struct fl_fields *fields = stream->has_head ? stream->trailers : &stream->head->fields;
    if (stream->has_head && fl_http_is_dropped_trailer(fl_bytes(name, namelen)))
        return 0;
    fl_fields_add(fields, &stream->arena, fl_arena_copy(&stream->arena, fl_bytes(name, namelen)),
                  field_value);
    return 0;
}

/* The library would drop such a field and go on; we do not repair. */
static int on_invalid_header(nghttp2_session *session, const nghttp2_frame *frame,
                             const uint8_t *name, size_t namelen, const uint8_t *value,
                             size_t valuelen, uint8_t flags, void *user_data)
{
    (void)name, (void)namelen, (void)value, (void)valuelen, (void)flags, (void)user_data;
    nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id,
                              NGHTTP2_PROTOCOL_ERROR);
    return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
}

/* Server: answers by itself, without a body. */
static void refuse(struct fl_h2_stream *stream, int status)
{
    struct fl_head head = {
        .status = (uint16_t)status, .body = FL_BODY_LENGTH, .arena = &stream->arena};

    stream->is_refused = true;
    stream->has_head = true;
    fl_h2_send_head(stream, &head, true);
}

static void take_request(struct fl_h2_stream *stream)
{
    struct fl_h2 *h2 = stream->h2;
    int status = stream->is_over_limit ? 431 : fl_h2_head_finish_request(stream->head);

    if (status != 0) {
        refuse(stream, status);
        return;
    }
    stream->has_head = true;
    h2->ops->on_head(h2->owner, stream, stream->head);
}

static void take_response(struct fl_h2_stream *stream)
{
    struct fl_h2 *h2 = stream->h2;

    if (stream->is_over_limit) {
        reset(stream, NGHTTP2_CANCEL, FL_ELIMIT);
        return;
    }
    fl_h2_head_finish_response(stream->head);
    if (stream->head->status < 200) {
        stream->head->body = FL_BODY_NONE;
        if (h2->ops->on_informational != NULL)
            h2->ops->on_informational(h2->owner, stream, stream->head);
        return;
    }
    stream->has_head = true;
    h2->ops->on_head(h2->owner, stream, stream->head);
}

static void take_headers(struct fl_h2_stream *stream, bool is_end)
{
    if (!stream->has_head) {
        if (is_end)
            stream->head->body = FL_BODY_NONE;
        if (stream->h2->config.side == FL_H2_SERVER)
            take_request(stream);
        else
            take_response(stream);
    } else if (stream->is_over_limit) {
        reset(stream, NGHTTP2_CANCEL, FL_ELIMIT);
    }
}

static void take_end(struct fl_h2_stream *stream)
{
    struct fl_h2 *h2 = stream->h2;

    stream->is_in_ended = true;
    if (!stream->is_refused)
        h2->ops->on_end(h2->owner, stream, stream->trailers);
    /* A server that has answered wants nothing more of the request. */
    if (h2->config.side == FL_H2_CLIENT && !stream->is_sent)
        finish_early(stream, NGHTTP2_CANCEL);
}

static int on_frame_recv(nghttp2_session *session, const nghttp2_frame *frame, void *user_data)
{
    struct fl_h2 *h2 = user_data;
    struct fl_h2_stream *stream;

    switch (frame->hd.type) {
    case NGHTTP2_HEADERS:
    case NGHTTP2_DATA:
        stream = find(session, frame->hd.stream_id);
        if (stream == NULL || stream->is_reset)
            return 0;
        bool is_end = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
        if (frame->hd.type == NGHTTP2_HEADERS)
            take_headers(stream, is_end);
        if (is_end && !stream->is_reset)
            take_end(stream);
        return 0;
    case NGHTTP2_RST_STREAM:
        stream = find(session, frame->hd.stream_id);
        if (stream != NULL)
            stream->is_reset_by_peer = true;
        return 0;
    case NGHTTP2_GOAWAY:
        h2->is_goaway_received = true;
        break;
    case NGHTTP2_SETTINGS:
        if ((frame->hd.flags & NGHTTP2_FLAG_ACK) != 0)
            return 0;
        break;
    default:
        return 0;
    }
    if (h2->ops->on_change != NULL)
        h2->ops->on_change(h2->owner);
    return 0;
}

static struct fl_slice slice_of(struct fl_h2 *h2, const uint8_t *data, size_t n)
{
    if (h2->in_chunk != NULL && n >= FL_H2_REFERENCE_BYTES) {
        fl_chunk_ref(h2->in_chunk);
        return (struct fl_slice){h2->in_chunk, data, n};
    }
    return fl_joint_copy(&h2->in_joint, fl_bytes(data, n));
}

static int on_data_chunk_recv(nghttp2_session *session, uint8_t flags, int32_t stream_id,
                              const uint8_t *data, size_t len, void *user_data)
{
    struct fl_h2 *h2 = user_data;
    struct fl_h2_stream *stream = find(session, stream_id);
    (void)flags;

    if (len == 0)
        return 0;
    nghttp2_session_consume_connection(session, len);
    if (stream == NULL || stream->is_reset || stream->is_refused)
        return 0;
    struct fl_slice slice = slice_of(h2, data, len);
    if (slice.p == NULL) {
        /* The cap on all bodies together; who wants to pause senders earlier withholds windows. */
        reset(stream, NGHTTP2_ENHANCE_YOUR_CALM, FL_ENOMEM);
        return 0;
    }
    h2->ops->on_data(h2->owner, stream, slice);
    return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t stream_id, uint32_t error,
                           void *user_data)
{
    (void)user_data;
    struct fl_h2_stream *stream = find(session, stream_id);

    if (stream == NULL)
        return 0;
    nghttp2_session_set_stream_user_data(session, stream_id, NULL);
    stream_end(stream, close_reason(stream, error));
    return 0;
}

/* ---- sending ---- */

static void emit_copy(struct fl_h2 *h2, const uint8_t *p, size_t n)
{
    while (n > 0) {
        size_t piece = n < OUT_JOINT_ROOM / 2 ? n : OUT_JOINT_ROOM / 2;
        struct fl_slice slice = fl_joint_copy(&h2->out_joint, fl_bytes(p, piece));
        if (slice.p == NULL) {
            h2->is_broken = true; /* a hole in the stream of frames: nothing can follow */
            return;
        }
        fl_joint_push(h2->out, slice);
        p += piece;
        n -= piece;
    }
}

static void emit_body(struct fl_h2 *h2, struct fl_chain *body, size_t n)
{
    while (n > 0) {
        struct fl_slice front = fl_chain_at(body, 0);
        size_t piece = front.n < n ? front.n : n;
        if (piece < COPY_BELOW_BYTES) {
            emit_copy(h2, front.p, piece);
            fl_chain_consume(body, piece);
        } else if (piece == front.n) {
            fl_chain_pop(body, &front);
            fl_joint_push(h2->out, front);
        } else {
            fl_joint_push(h2->out, fl_slice_sub(front, 0, piece));
            fl_chain_consume(body, piece);
        }
        n -= piece;
    }
}

static int submit_trailers(struct fl_h2_stream *stream)
{
    struct fl_h2_nvs nvs;

    fl_h2_nvs_init(&nvs);
    int rc = fl_h2_nvs_add_fields(&nvs, &stream->arena, stream->out_trailers);
    if (rc == 0 &&
        nghttp2_submit_trailer(stream->h2->session, stream->id, nvs.items, nvs.count) != 0)
        rc = FL_EPROTO;
    fl_h2_nvs_fini(&nvs);
    return rc;
}

static ssize_t on_data_source_read(nghttp2_session *session, int32_t stream_id, uint8_t *buf,
                                   size_t length, uint32_t *data_flags, nghttp2_data_source *source,
                                   void *user_data)
{
    struct fl_h2_stream *stream = source->ptr;
    size_t n = stream->out.bytes < length ? stream->out.bytes : length;
    (void)session, (void)stream_id, (void)buf, (void)user_data;

    if (n == 0 && !stream->is_out_ended) {
        stream->is_deferred = true;
        return NGHTTP2_ERR_DEFERRED;
    }
    if (n > 0)
        *data_flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (n < stream->out.bytes || !stream->is_out_ended)
        return (ssize_t)n;
    *data_flags |= NGHTTP2_DATA_FLAG_EOF;
    if (stream->out_trailers != NULL) {
        /* Both, or the trailers are lost (dependencies.md 3.1). */
        *data_flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
        if (submit_trailers(stream) < 0)
            return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    return (ssize_t)n;
}

static int on_send_data(nghttp2_session *session, nghttp2_frame *frame, const uint8_t *framehd,
                        size_t length, nghttp2_data_source *source, void *user_data)
{
    struct fl_h2 *h2 = user_data;
    struct fl_h2_stream *stream = source->ptr;
    (void)session;

    assert(frame->data.padlen == 0); /* we never ask for padding */
    /* Reset while this frame waited for room: its bytes are gone. RST_STREAM is on its way. */
    if (stream->is_reset)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    /* The library goes from one DATA frame to the next by itself; this one comes again. */
    if (h2->out->bytes >= h2->out_max_bytes)
        return NGHTTP2_ERR_WOULDBLOCK;
    emit_copy(h2, framehd, 9);
    emit_body(h2, &stream->out, length);
    if (h2->ops->on_sent != NULL && !stream->is_refused)
        h2->ops->on_sent(h2->owner, stream);
    return 0;
}

static int on_frame_send(nghttp2_session *session, const nghttp2_frame *frame, void *user_data)
{
    struct fl_h2 *h2 = user_data;

    if ((frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) ||
        (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0)
        return 0;
    struct fl_h2_stream *stream = find(session, frame->hd.stream_id);
    if (stream == NULL)
        return 0;
    stream->is_sent = true;
    /* RFC 9113 8.1: the whole answer is out, the rest of the request is not wanted. */
    if (h2->config.side == FL_H2_SERVER && !stream->is_in_ended)
        finish_early(stream, NGHTTP2_NO_ERROR);
    return 0;
}

/* ---- the session ---- */

static nghttp2_session *session_new(struct fl_h2 *h2)
{
    nghttp2_session_callbacks *callbacks;
    nghttp2_option *option;
    nghttp2_session *session = NULL;
    int rc;

    if (nghttp2_session_callbacks_new(&callbacks) != 0)
        return NULL;
    if (nghttp2_option_new(&option) != 0) {
        nghttp2_session_callbacks_del(callbacks);
        return NULL;
    }
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_invalid_header_callback(callbacks, on_invalid_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame_recv);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data_chunk_recv);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_frame_send);
    nghttp2_session_callbacks_set_send_data_callback(callbacks, on_send_data);

    nghttp2_option_set_no_auto_window_update(option, 1);
    nghttp2_option_set_no_closed_streams(option, 1);
    nghttp2_option_set_max_continuations(option, FL_H2_MAX_CONTINUATIONS);
    nghttp2_option_set_max_outbound_ack(option, FL_H2_MAX_OUTBOUND_ACK);
    nghttp2_option_set_max_settings(option, FL_H2_MAX_SETTINGS);
    if (h2->config.side == FL_H2_SERVER) {
        if (h2->config.reset_burst > 0)
            nghttp2_option_set_stream_reset_rate_limit(option, h2->config.reset_burst,
                                                       h2->config.reset_rate);
        rc = nghttp2_session_server_new2(&session, callbacks, h2, option);
    } else {
        rc = nghttp2_session_client_new2(&session, callbacks, h2, option);
    }
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
    return rc == 0 ? session : NULL;
}

static void submit_settings(struct fl_h2 *h2)
{
    nghttp2_settings_entry entries[4];
    size_t n = 0;

    entries[n++] = (nghttp2_settings_entry){NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE,
                                            h2->config.stream_window_bytes};
    entries[n++] = (nghttp2_settings_entry){NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE,
                                            (uint32_t)h2->config.max_header_bytes};
    if (h2->config.side == FL_H2_SERVER)
        entries[n++] = (nghttp2_settings_entry){NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS,
                                                h2->config.max_streams};
    else
        entries[n++] = (nghttp2_settings_entry){NGHTTP2_SETTINGS_ENABLE_PUSH, 0};
    int rc = nghttp2_submit_settings(h2->session, NGHTTP2_FLAG_NONE, entries, n);
    assert(rc == 0);
    /* The setting above widens streams only; the connection would stay at 65,535. */
    rc = nghttp2_session_set_local_window_size(h2->session, NGHTTP2_FLAG_NONE, 0,
                                               (int32_t)h2->config.connection_window_bytes);
    assert(rc == 0);
}

struct fl_h2 *fl_h2_new(const struct fl_h2_config *config, const struct fl_h2_ops *ops, void *owner)
{
    struct fl_h2 *h2 = fl_calloc(1, sizeof(*h2));

    h2->config = *config;
    h2->ops = ops;
    h2->owner = owner;
    fl_link_init(&h2->streams);
    fl_link_init(&h2->ready);
    fl_joint_init(&h2->out_joint, OUT_JOINT_ROOM, NULL);
    fl_joint_init(&h2->in_joint, IN_JOINT_ROOM, config->budget);
    h2->session = session_new(h2);
    if (h2->session == NULL)
        h2->is_broken = true; /* out of memory: the connection closes at its first feed */
    else
        submit_settings(h2);
    return h2;
}

void fl_h2_free(struct fl_h2 *h2)
{
    if (h2 == NULL)
        return;
    nghttp2_session_del(h2->session);
    FL_LINK_FOREACH(link, &h2->streams)
    {
        stream_free(FL_CONTAINER_OF(link, struct fl_h2_stream, link));
    }
    fl_joint_fini(&h2->out_joint);
    fl_joint_fini(&h2->in_joint);
    fl_free(h2);
}

int fl_h2_feed(struct fl_h2 *h2, struct fl_bytes in, struct fl_chunk *chunk)
{
    if (h2->is_broken)
        return FL_EPROTO;
    h2->in_chunk = chunk;
    ssize_t n = nghttp2_session_mem_recv(h2->session, in.p, in.n);
    h2->in_chunk = NULL;
    if (n >= 0)
        return 0;
    if (n == NGHTTP2_ERR_FLOODED) {
        nghttp2_session_terminate_session(h2->session, NGHTTP2_ENHANCE_YOUR_CALM);
        return FL_ELIMIT;
    }
    h2->is_broken = true;
    return FL_EPROTO;
}

static void wake_ready(struct fl_h2 *h2)
{
    struct fl_link *link;

    while ((link = fl_link_pop_head(&h2->ready)) != NULL) {
        struct fl_h2_stream *stream = FL_CONTAINER_OF(link, struct fl_h2_stream, ready);
        stream->is_deferred = false;
        /* Fails if the stream is about to close; its on_close is under way then. */
        (void)nghttp2_session_resume_data(h2->session, stream->id);
    }
}

int fl_h2_drain(struct fl_h2 *h2, struct fl_chain *out, size_t max_bytes)
{
    if (h2->is_broken)
        return FL_EPROTO;
    h2->out = out;
    h2->out_max_bytes = max_bytes;
    while (out->bytes < max_bytes && !h2->is_broken) {
        const uint8_t *p;
        wake_ready(h2);
        ssize_t n = nghttp2_session_mem_send(h2->session, &p);
        if (n < 0)
            h2->is_broken = true;
        else if (n > 0)
            emit_copy(h2, p, (size_t)n);
        else if (fl_link_is_alone(&h2->ready))
            break;
    }
    h2->out = NULL;
    fl_joint_fini(&h2->out_joint);
    return h2->is_broken ? FL_EPROTO : 0;
}

bool fl_h2_wants_drain(const struct fl_h2 *h2)
{
    return !h2->is_broken &&
           (!fl_link_is_alone(&h2->ready) || nghttp2_session_want_write(h2->session) != 0);
}

bool fl_h2_is_over(const struct fl_h2 *h2)
{
    return h2->is_broken || (nghttp2_session_want_read(h2->session) == 0 && !fl_h2_wants_drain(h2));
}

void fl_h2_fail(struct fl_h2 *h2, int rc)
{
    struct fl_link gone;

    /* No command reaches the session any more. */
    h2->is_broken = true;
    fl_link_init(&gone);
    fl_link_splice_tail(&gone, &h2->streams);
    FL_LINK_FOREACH(link, &gone)
    {
        struct fl_h2_stream *stream = FL_CONTAINER_OF(link, struct fl_h2_stream, link);
        int reason = rc;
        if (stream->is_done_early)
            reason = 0;
        else if (stream->is_reset)
            reason = stream->rc;
        stream_end(stream, reason);
    }
    assert(fl_link_is_alone(&h2->streams)); /* nobody opens streams while the connection dies */
}

uint32_t fl_h2_stream_count(const struct fl_h2 *h2)
{
    return h2->stream_count;
}

bool fl_h2_is_closing(const struct fl_h2 *h2)
{
    return h2->is_broken || h2->is_goaway_received ||
           nghttp2_session_check_request_allowed(h2->session) == 0;
}

bool fl_h2_can_open(const struct fl_h2 *h2)
{
    return !fl_h2_is_closing(h2) &&
           h2->stream_count < nghttp2_session_get_remote_settings(
                                  h2->session, NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS);
}

void fl_h2_shutdown_notice(struct fl_h2 *h2)
{
    if (!h2->is_broken)
        (void)nghttp2_submit_shutdown_notice(h2->session);
}

void fl_h2_goaway(struct fl_h2 *h2, enum fl_h2_error error)
{
    if (!h2->is_broken)
        (void)nghttp2_submit_goaway(h2->session, NGHTTP2_FLAG_NONE,
                                    nghttp2_session_get_last_proc_stream_id(h2->session),
                                    (uint32_t)error, NULL, 0);
}

/* ---- commands ---- */

void fl_h2_set_owner(struct fl_h2_stream *stream, void *owner)
{
    stream->owner = owner;
}

void *fl_h2_owner(const struct fl_h2_stream *stream)
{
    return stream->owner;
}

struct fl_arena *fl_h2_arena(struct fl_h2_stream *stream)
{
    return &stream->arena;
}

size_t fl_h2_queued(const struct fl_h2_stream *stream)
{
    return stream->out.bytes;
}

bool fl_h2_is_sent(const struct fl_h2_stream *stream)
{
    return stream->is_sent;
}

static bool is_deaf(const struct fl_h2_stream *stream)
{
    return stream->is_reset || stream->h2->is_broken;
}

struct fl_h2_stream *fl_h2_request(struct fl_h2 *h2, const struct fl_head *head, bool is_end,
                                   void *owner)
{
    struct fl_h2_nvs nvs;

    if (h2->is_broken || nghttp2_session_check_request_allowed(h2->session) == 0)
        return NULL;
    struct fl_h2_stream *stream = stream_new(h2, 0);
    stream->owner = owner;
    fl_h2_nvs_init(&nvs);
    int32_t id = -1;
    if (fl_h2_nvs_add_request(&nvs, &stream->arena, head) == 0) {
        nghttp2_data_provider provider = {.source.ptr = stream,
                                          .read_callback = on_data_source_read};
        id = nghttp2_submit_request(h2->session, NULL, nvs.items, nvs.count,
                                    is_end ? NULL : &provider, stream);
    }
    fl_h2_nvs_fini(&nvs);
    if (id < 0) {
        h2->stream_count--;
        stream_free(stream);
        return NULL;
    }
    stream->id = id;
    stream->is_provided = !is_end;
    stream->is_out_ended = is_end;
    return stream;
}

int fl_h2_send_head(struct fl_h2_stream *stream, const struct fl_head *head, bool is_end)
{
    struct fl_h2_nvs nvs;

    if (is_deaf(stream))
        return 0;
    assert(!stream->is_provided && !stream->is_out_ended); /* one final head */
    fl_h2_nvs_init(&nvs);
    int rc = fl_h2_nvs_add_response(&nvs, &stream->arena, head);
    if (rc == 0) {
        nghttp2_data_provider provider = {.source.ptr = stream,
                                          .read_callback = on_data_source_read};
        if (nghttp2_submit_response(stream->h2->session, stream->id, nvs.items, nvs.count,
                                    is_end ? NULL : &provider) != 0)
            rc = FL_EPROTO;
    }
    fl_h2_nvs_fini(&nvs);
    if (rc == 0) {
        stream->is_provided = !is_end;
        stream->is_out_ended = is_end;
    }
    return rc;
}

int fl_h2_send_informational(struct fl_h2_stream *stream, int status,
                             const struct fl_fields *fields)
{
    struct fl_head head = {.status = (uint16_t)status, .content_length = UINT64_MAX};
    struct fl_h2_nvs nvs;

    if (is_deaf(stream))
        return 0;
    assert(status >= 100 && status < 200 && status != 101);
    if (fields != NULL)
        head.fields = *fields;
    fl_h2_nvs_init(&nvs);
    int rc = fl_h2_nvs_add_response(&nvs, &stream->arena, &head);
    if (rc == 0 && nghttp2_submit_headers(stream->h2->session, NGHTTP2_FLAG_NONE, stream->id, NULL,
                                          nvs.items, nvs.count, NULL) != 0)
        rc = FL_EPROTO;
    fl_h2_nvs_fini(&nvs);
    return rc;
}

/* Resuming waits until the next drain: it must not happen inside the library's own callbacks. */
static void wake(struct fl_h2_stream *stream)
{
    if (stream->is_deferred && fl_link_is_alone(&stream->ready))
        fl_link_push_tail(&stream->h2->ready, &stream->ready);
}

void fl_h2_send_data(struct fl_h2_stream *stream, struct fl_slice slice)
{
    if (is_deaf(stream) || slice.n == 0) {
        fl_slice_unref(&slice);
        return;
    }
    assert(stream->is_provided && !stream->is_out_ended);
    fl_joint_push(&stream->out, slice);
    wake(stream);
}

int fl_h2_send_end(struct fl_h2_stream *stream, const struct fl_fields *trailers)
{
    if (is_deaf(stream))
        return 0;
    assert(stream->is_provided && !stream->is_out_ended);
    if (trailers != NULL && trailers->count > 0) {
        /* They leave behind the last DATA, when the caller's are gone. */
        struct fl_fields *kept = fl_arena_calloc(&stream->arena, 1, sizeof(*kept));
        for (uint32_t i = 0; i < trailers->count; i++) {
            const struct fl_field *field = &trailers->items[i];
            if (!fl_http_is_token(field->name) || !fl_http_is_value(field->value))
                return FL_EPROTO;
            fl_fields_add_copy(kept, &stream->arena, field->name, field->value);
        }
        stream->out_trailers = kept;
    }
    stream->is_out_ended = true;
    wake(stream);
    return 0;
}

void fl_h2_consume(struct fl_h2_stream *stream, size_t n)
{
    if (!is_deaf(stream) && n > 0)
        (void)nghttp2_session_consume_stream(stream->h2->session, stream->id, n);
}

void fl_h2_reset(struct fl_h2_stream *stream, uint32_t error)
{
    reset(stream, error, FL_ECANCELLED);
}
