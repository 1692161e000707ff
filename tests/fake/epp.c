/* SPDX-License-Identifier: Apache-2.0 */
#include "fake/epp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "extproc/message.h"
#include "http2/grpc.h"

struct stream {
    struct fl_link link;
    struct fake_epp *epp;
    struct fl_exchange *x;
    struct fl_grpc_reader reader;
    struct fl_chain body; /* of the request */
    uint32_t body_messages;
    bool has_answered, has_ended, was_told_end;
};

static void say(struct stream *stream, const struct fl_extproc_response_out *out)
{
    struct fl_chain chain = {0};
    struct fl_slice slice;
    fl_extproc_response_write(&chain, out);
    while (fl_chain_pop(&chain, &slice))
        fl_exchange_send_body(stream->x, slice);
    fl_chain_fini(&chain);
}

static void end(struct stream *stream, enum fl_grpc_status status)
{
    struct fl_fields trailers = {0};
    char text[8];
    snprintf(text, sizeof(text), "%d", (int)status);
    fl_fields_add_copy(&trailers, fl_exchange_arena(stream->x), FL_BYTES("grpc-status"),
                       fl_bytes_of(text));
    fl_exchange_send_end(stream->x, &trailers);
    stream->has_ended = true;
}

static void answer_headers(struct stream *stream)
{
    const struct fake_epp *epp = stream->epp;
    struct fl_field sets[16];
    struct fl_bytes removes[1];
    size_t count = 0;
    for (size_t i = 0; i < epp->set_count && count < 15; i++)
        sets[count++] = epp->sets[i];
    if (epp->destination != NULL)
        sets[count++] =
            (struct fl_field){FL_BYTES(FL_EXTPROC_DESTINATION), fl_bytes_of(epp->destination)};
    removes[0] = fl_bytes_of(epp->removed);
    const struct fl_extproc_response_out out = {
        .kind = FL_EXTPROC_REQUEST_HEADERS,
        .sets = sets,
        .set_count = count,
        .removes = removes,
        .remove_count = epp->removed != NULL ? 1 : 0,
        .destination = fl_bytes_of(epp->metadata_destination),
    };
    say(stream, &out);
}

#define PIECE 40000

static void answer_body(struct stream *stream)
{
    const struct fake_epp *epp = stream->epp;
    struct fl_chain new_body = {0};
    const struct fl_chain *body = &stream->body;
    if (epp->answers_plainly) {
        say(stream, &(struct fl_extproc_response_out){.kind = FL_EXTPROC_REQUEST_BODY});
        return;
    }
    if (epp->new_body != NULL) {
        fl_chain_push(&new_body, fl_slice_copy(fl_bytes_of(epp->new_body), NULL));
        body = &new_body;
    }
    size_t at = 0;
    do {
        size_t n = body->bytes - at < PIECE ? body->bytes - at : PIECE;
        const struct fl_extproc_response_out out = {
            .kind = FL_EXTPROC_REQUEST_BODY,
            .body_change = FL_EXTPROC_BODY_PIECE,
            .body = body,
            .body_offset = at,
            .body_bytes = n,
            .end_of_stream = at + n == body->bytes,
        };
        say(stream, &out);
        at += n;
    } while (at < body->bytes);
    fl_chain_fini(&new_body);
}

static void send_immediate(struct stream *stream)
{
    const struct fake_epp *epp = stream->epp;
    struct fl_chain body = {0};
    struct fl_field set = {FL_BYTES("Retry-After"), FL_BYTES("1")};
    if (epp->immediate_body != NULL)
        fl_chain_push(&body, fl_slice_copy(fl_bytes_of(epp->immediate_body), NULL));
    const struct fl_extproc_response_out out = {
        .kind = FL_EXTPROC_IMMEDIATE,
        .http_status = epp->immediate_status,
        .sets = &set,
        .set_count = 1,
        .body = &body,
        .body_bytes = body.bytes,
    };
    say(stream, &out);
    fl_chain_fini(&body);
}

static void answer(struct stream *stream, bool has_body)
{
    stream->has_answered = true;
    switch (stream->epp->mode) {
    case FAKE_EPP_ANSWER:
    case FAKE_EPP_ANSWER_END:
        answer_headers(stream);
        if (has_body)
            answer_body(stream);
        if (stream->epp->mode == FAKE_EPP_ANSWER_END)
            end(stream, FL_GRPC_OK);
        break;
    case FAKE_EPP_PER_MESSAGE:
        answer_headers(stream);
        if (has_body)
            say(stream, &(struct fl_extproc_response_out){.kind = FL_EXTPROC_REQUEST_BODY});
        break;
    case FAKE_EPP_IMMEDIATE:
        send_immediate(stream);
        end(stream, FL_GRPC_OK);
        break;
    case FAKE_EPP_END:
        end(stream, FL_GRPC_OK);
        break;
    case FAKE_EPP_ERROR:
        end(stream, FL_GRPC_UNAVAILABLE);
        break;
    case FAKE_EPP_RESET:
        fl_exchange_abort(stream->x, 2);
        break;
    case FAKE_EPP_GARBAGE:
        fl_exchange_send_body(stream->x, fl_grpc_frame(FL_BYTES("\xff\xff\xff\xff garbage")));
        break;
    case FAKE_EPP_SILENT:
        break;
    }
}

static void note(struct fake_epp *epp, char event)
{
    size_t n = strlen(epp->events);
    if (n + 1 < sizeof(epp->events)) {
        epp->events[n] = event;
        epp->events[n + 1] = '\0';
    }
}

static void list_headers(struct fake_epp *epp, const struct fl_fields *headers)
{
    size_t at = 0;
    epp->headers[0] = '\0';
    for (uint32_t i = 0; i < headers->count && at < sizeof(epp->headers) - 1; i++)
        at += (size_t)snprintf(epp->headers + at, sizeof(epp->headers) - at, "%.*s: %.*s\n",
                               FL_FMT(headers->items[i].name), FL_FMT(headers->items[i].value));
}

bool fake_epp_header(const struct fake_epp *epp, const char *name, char *out, size_t room)
{
    size_t n = strlen(name);
    for (const char *line = epp->headers; line != NULL && *line != '\0';) {
        if (strncmp(line, name, n) == 0 && line[n] == ':') {
            snprintf(out, room, "%.*s", (int)strcspn(line + n + 2, "\n"), line + n + 2);
            return true;
        }
        line = strchr(line, '\n');
        line = line == NULL ? NULL : line + 1;
    }
    return false;
}

static void on_request_headers(struct stream *stream, const struct fl_extproc_request *request)
{
    struct fake_epp *epp = stream->epp;
    epp->asked++;
    epp->events[0] = '\0';
    note(epp, 'H');
    list_headers(epp, &request->headers);
    epp->headers_end = request->end_of_stream;
    fl_buf_clear(&epp->body);
    fl_buf_clear(&epp->response_body);
    epp->response_status[0] = epp->served[0] = '\0';
    if (request->end_of_stream)
        answer(stream, false);
}

static void append_chain(struct fl_buf *buf, const struct fl_chain *chain)
{
    for (uint32_t i = 0; i < chain->count; i++)
        (void)fl_buf_append(buf, fl_slice_bytes(fl_chain_at(chain, i)));
}

static void on_request_body(struct stream *stream, const struct fl_extproc_request *request)
{
    struct fake_epp *epp = stream->epp;
    note(epp, 'B');
    append_chain(&epp->body, &request->body);
    if (request->body.bytes > epp->largest_message)
        epp->largest_message = (uint32_t)request->body.bytes;
    fl_chain_ref_range(&stream->body, &request->body, 0, request->body.bytes);
    if (epp->mode == FAKE_EPP_PER_MESSAGE && !request->end_of_stream)
        say(stream, &(struct fl_extproc_response_out){.kind = FL_EXTPROC_REQUEST_BODY});
    if (request->end_of_stream)
        answer(stream, true);
}

static void on_response_headers(struct stream *stream, struct fl_extproc_request *request)
{
    struct fake_epp *epp = stream->epp;
    struct fl_bytes served = {0};
    note(epp, 'h');
    struct fl_bytes status = fl_fields_get(&request->headers, FL_BYTES("status"));
    snprintf(epp->response_status, sizeof(epp->response_status), "%.*s", FL_FMT(status));
    if (request->has_metadata &&
        fl_extproc_read_served(request->metadata, &request->arena, &served) == 0)
        snprintf(epp->served, sizeof(epp->served), "%.*s", FL_FMT(served));
    if (epp->evicts)
        send_immediate(stream);
}

static void on_message(struct stream *stream, struct fl_chain *message)
{
    struct fl_extproc_request request = {0};
    struct fake_epp *epp = stream->epp;
    if (fl_extproc_request_read(&request, message) < 0) {
        fprintf(stderr, "fake epp: a message that cannot be read\n");
        abort();
    }
    switch (request.kind) {
    case FL_EXTPROC_REQUEST_HEADERS:
        on_request_headers(stream, &request);
        break;
    case FL_EXTPROC_REQUEST_BODY:
        on_request_body(stream, &request);
        break;
    case FL_EXTPROC_RESPONSE_HEADERS:
        on_response_headers(stream, &request);
        break;
    case FL_EXTPROC_RESPONSE_BODY:
        note(epp, request.end_of_stream && request.body.bytes == 0 ? 'e' : 'b');
        append_chain(&epp->response_body, &request.body);
        if (request.end_of_stream) {
            epp->completed++;
            stream->was_told_end = true;
        }
        break;
    default:
        break;
    }
    fl_extproc_request_fini(&request);
}

static void on_head(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    struct fl_head answer_head;
    (void)owner;
    (void)head;
    (void)is_end;
    fl_grpc_response_head(&answer_head, fl_exchange_arena(x));
    fl_exchange_send_head(x, &answer_head, false);
}

static void on_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
{
    struct stream *stream = owner;
    struct fl_chain message = {0};
    fl_exchange_consume(x, slice.n);
    fl_grpc_reader_feed(&stream->reader, slice);
    while (fl_grpc_reader_next(&stream->reader, &message) == 1)
        on_message(stream, &message);
    fl_chain_fini(&message);
}

static void on_end(void *owner, struct fl_exchange *x, const struct fl_fields *trailers)
{
    struct stream *stream = owner;
    (void)x;
    (void)trailers;
    if (!stream->has_ended)
        end(stream, FL_GRPC_OK);
}

static void on_close(void *owner, struct fl_exchange *x, int rc)
{
    struct stream *stream = owner;
    (void)x;
    stream->epp->open--;
    if (rc < 0 && !stream->was_told_end)
        stream->epp->cancelled++;
    fl_link_unlink(&stream->link);
    fl_grpc_reader_fini(&stream->reader);
    fl_chain_fini(&stream->body);
    fl_free(stream);
}

static const struct fl_exchange_handler handler = {
    .on_head = on_head,
    .on_body = on_body,
    .on_end = on_end,
    .on_close = on_close,
};

static void on_request(void *owner, struct fl_exchange *x)
{
    struct fake_epp *epp = owner;
    struct stream *stream = fl_calloc(1, sizeof(*stream));
    stream->epp = epp;
    stream->x = x;
    epp->open++;
    fl_grpc_reader_init(&stream->reader, 64u << 20, NULL);
    fl_link_init(&stream->link);
    fl_link_push_tail(&epp->streams, &stream->link);
    fl_exchange_set_handler(x, &handler, stream);
}

static void on_accept(void *owner, int fd, const struct fl_addr *peer)
{
    struct fake_epp *epp = owner;
    (void)peer;
    fl_web_server_accept(epp->server, fd);
}

void fake_epp_start_at(struct fake_epp *epp, struct fl_loop *loop, const struct fl_addr *addr)
{
    struct fl_error err = {0};
    const struct fl_web_server_config config = {
        .http2 = true,
        .max_header_bytes = 65536,
        .max_headers = 1000,
        .head_timeout_ms = 60000,
        .idle_timeout_ms = 600000,
        .max_connections = 1000,
        .h2_max_streams = 1000,
        .h2_reset_burst = 10000,
        .h2_reset_rate = 1000,
        .on_request = on_request,
        .owner = epp,
    };
    epp->loop = loop;
    fl_link_init(&epp->streams);
    if (fl_listener_open(addr, false, &epp->listener, &err) < 0) {
        fprintf(stderr, "fake epp: %s\n", err.text);
        abort();
    }
    epp->addr = *fl_listener_addr(epp->listener);
    fl_addr_format(&epp->addr, epp->address);
    epp->server = fl_web_server_new(loop, &config);
    fl_listener_start(epp->listener, loop, on_accept, epp);
}

void fake_epp_start(struct fake_epp *epp, struct fl_loop *loop)
{
    struct fl_addr addr;
    if (fl_addr_parse(FL_BYTES("127.0.0.1:0"), true, &addr, NULL) < 0)
        abort();
    fake_epp_start_at(epp, loop, &addr);
}

void fake_epp_stop(struct fake_epp *epp)
{
    fl_listener_close(epp->listener);
    epp->listener = NULL;
    if (epp->server != NULL)
        fl_web_server_free(epp->server);
    epp->server = NULL;
    fl_buf_fini(&epp->body);
    fl_buf_fini(&epp->response_body);
}
