/* SPDX-License-Identifier: Apache-2.0 */
#include "extproc/picker.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "extproc/headers.h"
#include "extproc/picker_answer.h"
#include "http2/grpc.h"

#define QUEUE_ROOM FL_ARRAY_LEN(((struct fl_picker *)0)->queue)

static void set_state(struct fl_picker *picker, enum fl_picker_state state)
{
    picker->state = state;
}

/* ---- things to tell once ---- */

enum warning {
    WARN_NOT_WITHOUT_WAITING,
    WARN_BUFFERED_RESPONSE,
    WARN_BODY_AFTER_END,
    WARN_EMPTY_MESSAGE,
    WARN_HEADERS_TWICE,
    WARN_SUBSET_TYPE,
    WARN_DROPPED_HEADERS,
    WARNING_COUNT,
};

static void warn_once(struct fl_picker *picker, enum warning warning)
{
    static const char *const texts[WARNING_COUNT] = {
        [WARN_NOT_WITHOUT_WAITING] =
            "send_body_without_waiting_for_header_response is false in full duplex",
        [WARN_BUFFERED_RESPONSE] =
            "response_body_mode BUFFERED delays streamed answers to their end",
        [WARN_BODY_AFTER_END] = "body message after the end of the body ignored",
        [WARN_EMPTY_MESSAGE] = "message without content ignored",
        [WARN_HEADERS_TWICE] = "second headers message ignored",
        [WARN_SUBSET_TYPE] = "subset hint is neither string nor list: no candidates",
        [WARN_DROPPED_HEADERS] = "headers holding NUL dropped",
    };

    if ((picker->warned >> warning & 1) != 0)
        return;
    picker->warned |= UINT32_C(1) << warning;
    if (picker->ops->on_warning != NULL)
        picker->ops->on_warning(picker->owner, texts[warning]);
}

/* ---- answers waiting ---- */

static struct fl_picker_entry *push_entry(struct fl_picker *picker)
{
    assert(picker->queue_count < QUEUE_ROOM);
    uint32_t at = (uint32_t)((picker->queue_first + picker->queue_count) % QUEUE_ROOM);
    picker->queue_count++;
    picker->queue[at] = (struct fl_picker_entry){0};
    return &picker->queue[at];
}

static struct fl_picker_entry *front_entry(struct fl_picker *picker)
{
    return picker->queue_count > 0 ? &picker->queue[picker->queue_first] : NULL;
}

static void pop_entry(struct fl_picker *picker)
{
    fl_chain_fini(&picker->queue[picker->queue_first].bytes);
    picker->queue_first = (uint32_t)((picker->queue_first + 1) % QUEUE_ROOM);
    picker->queue_count--;
}

static void drop_queue(struct fl_picker *picker)
{
    while (picker->queue_count > 0)
        pop_entry(picker);
}

/* An answer without any mutation. */
static void push_empty_answer(struct fl_picker *picker, enum fl_extproc_kind kind)
{
    struct fl_extproc_response_out what = {.kind = kind};
    fl_extproc_response_write(&push_entry(picker)->bytes, &what);
}

/* Takes the body; it is cut into pieces when its turn comes. */
static void push_body(struct fl_picker *picker, enum fl_extproc_kind kind, struct fl_chain *body,
                      bool is_end)
{
    struct fl_picker_entry *entry = push_entry(picker);
    entry->kind = (uint8_t)kind;
    entry->is_end = is_end;
    entry->bytes = *body;
    *body = (struct fl_chain){0};
}

/* ---- the end ---- */

/* What only a pick needs. The question is gone then. */
static void release_request(struct fl_picker *picker)
{
    fl_chain_fini(&picker->body);
    fl_extproc_request_fini(&picker->headers);
    fl_extproc_request_fini(&picker->hint);
    picker->has_hint = false;
    fl_arena_fini(&picker->arena);
    picker->question = (struct fl_picker_question){0};
}

/* Leaves the request phase for `state`; a pick under way is cancelled. */
static void leave_request(struct fl_picker *picker, enum fl_picker_state state)
{
    bool is_picking = picker->state == FL_PICKER_PICKING;

    set_state(picker, state);
    if (is_picking)
        picker->ops->on_pick_cancelled(picker->owner);
    release_request(picker);
}

/* The queue goes out, then the status. */
static void finish(struct fl_picker *picker, int grpc_status, const char *message)
{
    picker->grpc_status = grpc_status;
    snprintf(picker->grpc_message, sizeof(picker->grpc_message), "%s", message);
    leave_request(picker, FL_PICKER_ENDING);
}

static bool is_over(const struct fl_picker *picker)
{
    return picker->state == FL_PICKER_ENDING || picker->state == FL_PICKER_ENDED;
}

void fl_picker_end(struct fl_picker *picker, int grpc_status, const char *message)
{
    if (is_over(picker))
        return;
    drop_queue(picker);
    finish(picker, grpc_status, message);
}

bool fl_picker_can_refuse(const struct fl_picker *picker)
{
    return picker->state <= FL_PICKER_PICKING;
}

/* The request is refused in the client's terms; the stream then ends with OK (epp.md 6). */
static void refuse(struct fl_picker *picker, int code, uint32_t retry_after_s)
{
    fl_picker_write_immediate(&push_entry(picker)->bytes, code, retry_after_s,
                              fl_bytes_of(picker->request_id));
    finish(picker, FL_GRPC_OK, "");
}

/* ---- protocol agreement: epp.md 4.1 ---- */

static bool is_accepted_mode(int32_t mode)
{
    return mode == FL_EXTPROC_BODY_FULL_DUPLEX || mode == FL_EXTPROC_BODY_BUFFERED;
}

static bool refuse_mode(struct fl_picker *picker, const char *field, int32_t mode)
{
    char text[sizeof(picker->grpc_message)];

    if (is_accepted_mode(mode))
        return false;
    snprintf(text, sizeof(text),
             "protocol_config.%s is %s (%d): set FULL_DUPLEX_STREAMED (4) or BUFFERED (2)", field,
             fl_extproc_body_mode_name(mode), (int)mode);
    fl_picker_end(picker, FL_GRPC_FAILED_PRECONDITION, text);
    return true;
}

/* Once a stream, on the first message that carries it. False: refused. */
static bool agree(struct fl_picker *picker, const struct fl_extproc_protocol *protocol)
{
    if (picker->has_protocol)
        return true;
    if (refuse_mode(picker, "request_body_mode", protocol->request_body_mode) ||
        refuse_mode(picker, "response_body_mode", protocol->response_body_mode))
        return false;
    picker->has_protocol = true;
    /* A direction that has begun goes on as it did. */
    if (picker->state == FL_PICKER_WAIT_HEADERS)
        picker->protocol.request_body_mode = protocol->request_body_mode;
    if (picker->state < FL_PICKER_RESPONSE)
        picker->protocol.response_body_mode = protocol->response_body_mode;
    if (!protocol->send_body_without_waiting &&
        (protocol->request_body_mode == FL_EXTPROC_BODY_FULL_DUPLEX ||
         protocol->response_body_mode == FL_EXTPROC_BODY_FULL_DUPLEX))
        warn_once(picker, WARN_NOT_WITHOUT_WAITING);
    if (protocol->response_body_mode == FL_EXTPROC_BODY_BUFFERED)
        warn_once(picker, WARN_BUFFERED_RESPONSE);
    return true;
}

static bool is_buffered_request(const struct fl_picker *picker)
{
    return picker->protocol.request_body_mode == FL_EXTPROC_BODY_BUFFERED;
}

static bool is_buffered_response(const struct fl_picker *picker)
{
    return picker->protocol.response_body_mode == FL_EXTPROC_BODY_BUFFERED;
}

uint32_t fl_picker_max_message(const struct fl_picker *picker)
{
    if (is_buffered_request(picker) || is_buffered_response(picker))
        return (uint32_t)(picker->config->max_body_bytes + FL_EXTPROC_BUFFERED_MARGIN);
    return FL_EXTPROC_MESSAGE_MAX;
}

/* ---- the pick ---- */

static void start_pick(struct fl_picker *picker, bool has_body)
{
    struct fl_picker_question *question = &picker->question;
    const struct fl_extproc_request *hint = picker->has_hint ? &picker->hint : &picker->headers;

    if (hint->has_metadata) {
        int rc = fl_extproc_read_subset(hint->metadata, &picker->arena, &question->subset);
        if (rc < 0) {
            fl_picker_end(picker, FL_GRPC_RESOURCE_EXHAUSTED, "subset hint has too many entries");
            return;
        }
        if (question->subset.is_wrong_type)
            warn_once(picker, WARN_SUBSET_TYPE);
    }
    const struct fl_fields *headers = &picker->headers.headers;
    question->method = fl_fields_get(headers, FL_BYTES(":method"));
    question->path = fl_fields_get(headers, FL_BYTES(":path"));
    question->authority = fl_fields_get(headers, FL_BYTES(":authority"));
    question->headers = headers;
    question->request_id = fl_bytes_of(picker->request_id);
    question->has_body = has_body;
    question->body = &picker->body;
    set_state(picker, FL_PICKER_PICKING);
    picker->ops->on_pick(picker->owner, question); /* last: it may have been answered */
}

static void push_decision(struct fl_picker *picker, const struct fl_picker_decision *decision)
{
    bool is_on_body = is_buffered_request(picker) && picker->question.has_body;
    struct fl_bytes minted =
        picker->is_id_minted ? fl_bytes_of(picker->request_id) : (struct fl_bytes){0};

    fl_picker_write_decision(&push_entry(picker)->bytes,
                             is_on_body ? FL_EXTPROC_REQUEST_BODY : FL_EXTPROC_REQUEST_HEADERS,
                             decision, picker->carried, minted);
    if (picker->question.has_body && !is_on_body) {
        /* A body that trailers end carries no end of its own, and needs no message if it is empty.
         */
        if (picker->is_body_end || picker->body.bytes > 0)
            push_body(picker, FL_EXTPROC_REQUEST_BODY, &picker->body, picker->is_body_end);
    }
    if (picker->has_trailers)
        push_empty_answer(picker, FL_EXTPROC_REQUEST_TRAILERS);
}

void fl_picker_answer(struct fl_picker *picker, const struct fl_picker_decision *decision)
{
    assert(picker->state == FL_PICKER_PICKING);
    push_decision(picker, decision);
    picker->is_routed = true;
    set_state(picker, FL_PICKER_ANSWERED); /* first, so that leaving cancels nothing */
    release_request(picker);
}

void fl_picker_fail(struct fl_picker *picker, int code, uint32_t retry_after_s)
{
    if (is_over(picker))
        return;
    if (!fl_picker_can_refuse(picker)) {
        fl_picker_end(picker, FL_GRPC_INTERNAL, fl_error_row(code)->word);
        return;
    }
    if (picker->state == FL_PICKER_PICKING)
        set_state(picker, FL_PICKER_ANSWERED); /* the owner gave up: nothing to cancel */
    refuse(picker, code, retry_after_s);
}

/* ---- request messages ---- */

static void settle_request_id(struct fl_picker *picker)
{
    struct fl_bytes id = fl_fields_get(&picker->headers.headers, FL_BYTES("x-request-id"));

    static_assert(sizeof(picker->request_id) > FL_UUID_TEXT, "a minted id fits");
    if (fl_extproc_is_request_id(id)) {
        bool fits = fl_bytes_to_cstr(id, picker->request_id, sizeof(picker->request_id));
        assert(fits);
        (void)fits;
        return;
    }
    fl_uuid4(picker->request_id);
    picker->is_id_minted = true;
}

static void on_request_headers(struct fl_picker *picker, struct fl_extproc_request *message)
{
    if (picker->state != FL_PICKER_WAIT_HEADERS) {
        warn_once(picker, WARN_HEADERS_TWICE);
        return;
    }
    picker->headers = *message; /* moved: arena, slices and views are plain pointers */
    *message = (struct fl_extproc_request){0};
    struct fl_fields *headers = &picker->headers.headers;
    if (picker->headers.dropped_headers > 0)
        warn_once(picker, WARN_DROPPED_HEADERS);
    settle_request_id(picker);
    picker->carried = fl_extproc_control_carried(headers);
    fl_extproc_drop_spoofed(headers);
    set_state(picker, FL_PICKER_WAIT_BODY);
    if (!fl_bytes_is_absent(picker->config->metadata_prefix)) {
        int rc = fl_extproc_check_metadata(headers, picker->config->metadata_prefix);
        if (rc < 0) {
            refuse(picker, rc, 0);
            return;
        }
    }
    if (picker->headers.end_of_stream)
        start_pick(picker, false);
    else if (is_buffered_request(picker))
        push_empty_answer(picker,
                          FL_EXTPROC_REQUEST_HEADERS); /* the proxy holds the body until then */
}

static void on_request_body(struct fl_picker *picker, struct fl_extproc_request *message)
{
    if (picker->state == FL_PICKER_WAIT_HEADERS) {
        fl_picker_end(picker, FL_GRPC_FAILED_PRECONDITION,
                      "request_body came without request_headers: set request_header_mode SEND");
        return;
    }
    if (picker->state != FL_PICKER_WAIT_BODY) {
        /* Envoy 1.35 to 1.37 delivers the last message of a large body twice (envoy#46237). */
        warn_once(picker, WARN_BODY_AFTER_END);
        return;
    }
    if (message->body.bytes > picker->config->max_body_bytes - picker->body.bytes) {
        refuse(picker, FL_ETOO_LARGE, 0);
        return;
    }
    fl_chain_move(&picker->body, &message->body);
    picker->is_body_end = message->end_of_stream;
    /* BUFFERED: the one message is the body, also when trailers follow and its flag is false. */
    if (message->end_of_stream || is_buffered_request(picker))
        start_pick(picker, true);
}

static void on_request_trailers(struct fl_picker *picker, struct fl_extproc_request *message)
{
    (void)message;
    switch (picker->state) {
    case FL_PICKER_WAIT_BODY:
        if (is_buffered_request(picker)) {
            /* Headers are answered and no body will come: no message is left that could carry the
             * decision. */
            refuse(picker, FL_EBAD_BODY, 0);
            return;
        }
        picker->has_trailers = true;
        start_pick(picker, true);
        return;
    case FL_PICKER_PICKING:
        picker->has_trailers = true;
        return;
    case FL_PICKER_ANSWERED:
    case FL_PICKER_RESPONSE:
        push_empty_answer(picker, FL_EXTPROC_REQUEST_TRAILERS);
        return;
    default:
        fl_picker_end(
            picker, FL_GRPC_FAILED_PRECONDITION,
            "request_trailers came without request_headers: set request_header_mode SEND");
    }
}

/* ---- response messages ---- */

/* Somebody else may answer the client before a pick: a local reply of the proxy, another filter. */
static void enter_response(struct fl_picker *picker)
{
    if (picker->state == FL_PICKER_RESPONSE)
        return;
    leave_request(picker, FL_PICKER_RESPONSE);
}

static void note_first_token(struct fl_picker *picker)
{
    if (picker->has_first_token)
        return;
    picker->has_first_token = true;
    if (picker->is_routed && picker->ops->on_first_token != NULL)
        picker->ops->on_first_token(picker->owner);
}

static void complete_response(struct fl_picker *picker)
{
    if (picker->is_response_complete)
        return;
    picker->is_response_complete = true;
    if (picker->is_routed && picker->ops->on_response_end != NULL)
        picker->ops->on_response_end(picker->owner);
}

static int status_of(const struct fl_fields *headers)
{
    uint64_t status = 0;
    fl_bytes_to_u64(fl_fields_get(headers, FL_BYTES(":status")), 999, &status);
    return (int)status;
}

static void on_response_headers(struct fl_picker *picker, struct fl_extproc_request *message)
{
    struct fl_bytes served = {0};

    enter_response(picker);
    picker->response_status = status_of(&message->headers);
    if (message->has_metadata &&
        fl_extproc_read_served(message->metadata, &message->arena, &served) < 0)
        served = (struct fl_bytes){0}; /* a report that cannot be read is no report */
    if (picker->is_routed && picker->ops->on_response != NULL)
        picker->ops->on_response(picker->owner, picker->response_status, &message->headers, served);
    push_empty_answer(picker, FL_EXTPROC_RESPONSE_HEADERS);
    if (message->end_of_stream)
        complete_response(picker);
}

static void tap_body(struct fl_picker *picker, const struct fl_chain *body)
{
    if (!picker->is_routed || picker->ops->on_response_body == NULL)
        return;
    for (uint32_t i = 0; i < body->count; i++)
        picker->ops->on_response_body(picker->owner, fl_slice_bytes(fl_chain_at(body, i)));
}

static void on_response_body(struct fl_picker *picker, struct fl_extproc_request *message)
{
    bool is_end = message->end_of_stream;

    enter_response(picker);
    if (picker->is_response_complete) {
        warn_once(picker, WARN_BODY_AFTER_END);
        return;
    }
    /* An empty piece is no token. In BUFFERED there is one message, and its arrival is the edge. */
    if (message->body.bytes > 0 || is_buffered_response(picker))
        note_first_token(picker);
    tap_body(picker, &message->body);
    if (is_buffered_response(picker))
        push_empty_answer(picker, FL_EXTPROC_RESPONSE_BODY);
    else
        push_body(picker, FL_EXTPROC_RESPONSE_BODY, &message->body, is_end);
    if (is_end)
        complete_response(picker);
}

static void on_response_trailers(struct fl_picker *picker, struct fl_extproc_request *message)
{
    (void)message;
    enter_response(picker);
    push_empty_answer(picker, FL_EXTPROC_RESPONSE_TRAILERS);
    complete_response(picker);
}

/* ---- any message ---- */

static void observe(struct fl_picker *picker)
{
    drop_queue(picker);
    leave_request(picker, FL_PICKER_OBSERVING);
}

/* Each message's metadata replaces the one before, but a hint stands until another one comes: a
 * proxy that repeats other namespaces alone must not open the whole pool. */
static void keep_hint(struct fl_picker *picker, struct fl_extproc_request *message)
{
    struct fl_extproc_subset subset;

    if (!message->has_metadata || picker->state != FL_PICKER_WAIT_BODY)
        return;
    if (message->kind == FL_EXTPROC_REQUEST_HEADERS)
        return;
    int rc = fl_extproc_read_subset(message->metadata, &message->arena, &subset);
    if (rc == 0 && !subset.is_present)
        return;
    fl_extproc_request_fini(&picker->hint);
    struct fl_chain body = message->body;
    picker->hint = *message;
    picker->hint.body = (struct fl_chain){0};
    picker->has_hint = true;
    /* The handler still needs what is not metadata. */
    *message = (struct fl_extproc_request){
        .kind = picker->hint.kind, .end_of_stream = picker->hint.end_of_stream, .body = body};
}

static void handle(struct fl_picker *picker, struct fl_extproc_request *message)
{
    static void (*const handlers[])(struct fl_picker *, struct fl_extproc_request *) = {
        [FL_EXTPROC_REQUEST_HEADERS] = on_request_headers,
        [FL_EXTPROC_RESPONSE_HEADERS] = on_response_headers,
        [FL_EXTPROC_REQUEST_BODY] = on_request_body,
        [FL_EXTPROC_RESPONSE_BODY] = on_response_body,
        [FL_EXTPROC_REQUEST_TRAILERS] = on_request_trailers,
        [FL_EXTPROC_RESPONSE_TRAILERS] = on_response_trailers,
    };

    if (message->observability_mode) {
        observe(picker);
        return;
    }
    if (message->has_protocol && !agree(picker, &message->protocol))
        return;
    keep_hint(picker, message);
    if (message->kind == FL_EXTPROC_NONE) {
        warn_once(picker, WARN_EMPTY_MESSAGE);
        return;
    }
    handlers[message->kind](picker, message);
}

void fl_picker_feed(struct fl_picker *picker, struct fl_chain *message)
{
    struct fl_extproc_request request = {0};

    if (is_over(picker) || picker->state == FL_PICKER_OBSERVING) {
        fl_chain_fini(message);
        return;
    }
    assert(!fl_picker_is_full(picker));
    int rc = fl_extproc_request_read(&request, message);
    if (rc == FL_ELIMIT || rc == FL_ENOMEM)
        fl_picker_end(picker, FL_GRPC_RESOURCE_EXHAUSTED, "message has too many headers");
    else if (rc < 0)
        fl_picker_end(picker, FL_GRPC_INVALID_ARGUMENT, "malformed ProcessingRequest");
    else
        handle(picker, &request);
    fl_extproc_request_fini(&request);
}

void fl_picker_half_close(struct fl_picker *picker)
{
    if (!is_over(picker))
        finish(picker, FL_GRPC_OK, "");
}

/* ---- sending ---- */

/* The next piece of a body answer. True if it was the last one. */
static bool cut_piece(struct fl_chain *out, struct fl_picker_entry *entry)
{
    size_t n = entry->bytes.bytes < FL_EXTPROC_CHUNK ? entry->bytes.bytes : FL_EXTPROC_CHUNK;
    bool is_last = n == entry->bytes.bytes;
    struct fl_extproc_response_out what = {
        .kind = (enum fl_extproc_kind)entry->kind,
        .body_change = FL_EXTPROC_BODY_PIECE,
        .body = &entry->bytes,
        .body_bytes = n,
        .end_of_stream = is_last && entry->is_end,
    };

    fl_extproc_response_write(out, &what);
    fl_chain_consume(&entry->bytes, n);
    return is_last;
}

enum fl_picker_next fl_picker_next(struct fl_picker *picker, struct fl_chain *out)
{
    struct fl_picker_entry *entry = front_entry(picker);

    if (entry != NULL) {
        bool is_done = true;
        if (entry->kind == FL_EXTPROC_NONE)
            fl_chain_move(out, &entry->bytes);
        else
            is_done = cut_piece(out, entry);
        if (is_done)
            pop_entry(picker);
        return FL_PICKER_MESSAGE;
    }
    if (picker->state != FL_PICKER_ENDING)
        return FL_PICKER_IDLE;
    set_state(picker, FL_PICKER_ENDED);
    return FL_PICKER_END;
}

struct fl_bytes fl_picker_request_id(const struct fl_picker *picker)
{
    return fl_bytes_of(picker->request_id);
}

void fl_picker_init(struct fl_picker *picker, const struct fl_picker_config *config,
                    const struct fl_picker_ops *ops, void *owner)
{
    assert(is_accepted_mode(config->body_mode));
    *picker = (struct fl_picker){.config = config, .ops = ops, .owner = owner};
    picker->protocol.request_body_mode = picker->protocol.response_body_mode = config->body_mode;
}

void fl_picker_fini(struct fl_picker *picker)
{
    if (picker->ops == NULL)
        return;
    drop_queue(picker);
    leave_request(picker, FL_PICKER_ENDED);
}
