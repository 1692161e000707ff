/* SPDX-License-Identifier: Apache-2.0 */
#include "web/exchange.h"

#include "web/internal.h"

void fl_exchange_set_handler(struct fl_exchange *x, const struct fl_exchange_handler *handler,
                             void *owner)
{
    x->handler = handler;
    x->owner = owner;
}

struct fl_loop *fl_exchange_loop(const struct fl_exchange *x)
{
    return x->ops->loop(x);
}

struct fl_arena *fl_exchange_arena(struct fl_exchange *x)
{
    return x->ops->arena(x);
}

void fl_exchange_send_head(struct fl_exchange *x, const struct fl_head *head, bool is_end)
{
    x->ops->send_head(x, head, is_end);
}

void fl_exchange_send_informational(struct fl_exchange *x, int status,
                                    const struct fl_fields *fields)
{
    x->ops->send_informational(x, status, fields);
}

void fl_exchange_send_body(struct fl_exchange *x, struct fl_slice slice)
{
    x->ops->send_body(x, slice);
}

void fl_exchange_send_body_copy(struct fl_exchange *x, struct fl_bytes bytes)
{
    if (bytes.n == 0)
        return;
    struct fl_slice slice = fl_slice_copy(bytes, NULL);
    if (slice.p == NULL) {
        fl_exchange_abort(x, 2); /* INTERNAL_ERROR: a hole must not look like a body */
        return;
    }
    x->ops->send_body(x, slice);
}

void fl_exchange_send_end(struct fl_exchange *x, const struct fl_fields *trailers)
{
    x->ops->send_end(x, trailers);
}

void fl_exchange_respond(struct fl_exchange *x, int status, const char *content_type,
                         struct fl_bytes body, const struct fl_fields *extra)
{
    struct fl_arena *arena = fl_exchange_arena(x);
    struct fl_head head = {
        .status = (uint16_t)status,
        .body = FL_BODY_LENGTH,
        .content_length = body.n,
        .arena = arena,
    };

    if (content_type != NULL)
        fl_fields_add(&head.fields, arena, FL_BYTES("content-type"), fl_bytes_of(content_type));
    for (uint32_t i = 0; extra != NULL && i < extra->count; i++)
        fl_fields_add(&head.fields, arena, extra->items[i].name, extra->items[i].value);
    fl_exchange_send_head(x, &head, body.n == 0);
    if (body.n == 0)
        return;
    fl_exchange_send_body_copy(x, body);
    fl_exchange_send_end(x, NULL);
}

void fl_exchange_consume(struct fl_exchange *x, size_t n)
{
    x->ops->consume(x, n);
}

size_t fl_exchange_queued(const struct fl_exchange *x)
{
    return x->ops->queued(x);
}

void fl_exchange_abort(struct fl_exchange *x, uint32_t h2_error)
{
    x->ops->abort(x, h2_error);
}

void fl_exchange_close_after(struct fl_exchange *x)
{
    x->ops->close_after(x);
}

static const struct fl_addr unknown_addr;

const struct fl_addr *fl_exchange_peer(const struct fl_exchange *x)
{
    const struct fl_stream *stream = x->ops->stream(x);
    return stream != NULL ? fl_stream_peer(stream) : &unknown_addr;
}

const struct fl_addr *fl_exchange_local(const struct fl_exchange *x)
{
    const struct fl_stream *stream = x->ops->stream(x);
    return stream != NULL ? fl_stream_local(stream) : &unknown_addr;
}

bool fl_exchange_is_tls(const struct fl_exchange *x)
{
    const struct fl_stream *stream = x->ops->stream(x);
    return stream != NULL && fl_stream_is_tls(stream);
}

bool fl_exchange_is_reused_and_silent(const struct fl_exchange *x)
{
    return x->ops->is_reused_and_silent(x);
}

bool fl_exchange_is_sent(const struct fl_exchange *x)
{
    return x->ops->is_sent(x);
}
