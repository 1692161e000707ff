/* SPDX-License-Identifier: Apache-2.0 */
/* The picker's end of one ext_proc stream: proxy's messages in, our answers out, in the only order
 * a proxy accepts. Knows the protocol, not how endpoints are chosen: that is asked of the owner.
 *
 *    message --> feed() --> on_pick(question) ... answer() or fail() --> next() --> framed message
 *                           on_first_token, on_response_body, on_response_end
 *
 *    state             what came                     goes to
 *    WAIT_HEADERS      request_headers               WAIT_BODY, or PICKING if they end the stream
 *    WAIT_BODY         request_body                  WAIT_BODY, or PICKING if complete
 *                      request_trailers              PICKING (they end the body)
 *    PICKING           (owner: answer)               ANSWERED
 *                      (owner: fail)                 ENDING
 *    any of these      response_headers              RESPONSE: somebody else answered; pick
 * cancelled ANSWERED          response_headers, _body       RESPONSE any of the above
 * observability_mode            OBSERVING: nothing is ever sent, nothing picked any half-close,
 * malformed, ...    ENDING: what is queued goes out, then the status ENDING            queue empty
 * ENDED
 *
 * Full duplex: the header answer waits for the whole body; then the body is echoed in pieces of
 * FL_EXTPROC_CHUNK, cut from the kept chain only as next() is called. BUFFERED: the headers are
 * answered at once with nothing, and everything goes out with the answer to the single body.
 *
 * Back-pressure: while fl_picker_is_full() nothing may be fed; the caller leaves messages unread,
 * which closes the stream's window. Response bodies are echoed by reference.
 *
 * No sockets, no clock. Callbacks are called from inside feed() and half_close(), on_pick last; the
 * owner may call answer() or fail() from inside it, or later. Single-threaded. epp.md 4, 5, 6;
 * gaie.md 1.6, 3. */
#ifndef FL_EXTPROC_PICKER_H
#define FL_EXTPROC_PICKER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "extproc/message.h"

/* Body bytes of one streamed_response: the frame stays below the 64 KiB that Envoy recommends. */
#define FL_EXTPROC_CHUNK 62000
/* Answers waiting to be sent, a lazily cut body counting once: epp.md 4.2. */
#define FL_EXTPROC_QUEUE 32
/* gRPC message caps: the usual receive limit, and room around a whole body (epp.md 4.6). */
#define FL_EXTPROC_MESSAGE_MAX (4u << 20)
#define FL_EXTPROC_BUFFERED_MARGIN (1u << 20)

struct fl_picker_config {
    int32_t body_mode;     /* of a stream without protocol_config: full duplex or BUFFERED */
    size_t max_body_bytes; /* request body; beyond: 413 */
    struct fl_bytes metadata_prefix; /* "x-dynamo-meta-"; absent: not checked */
};

/* Lent from on_pick until the pick is answered, failed or cancelled. */
struct fl_picker_question {
    struct fl_bytes method, path, authority; /* absent if the proxy sent none */
    const struct fl_fields *headers; /* with pseudo headers, without what a client may not set */
    struct fl_bytes request_id;      /* kept or minted */
    bool has_body;                   /* false: the headers ended the request */
    const struct fl_chain *body;
    struct fl_extproc_subset subset;
};

struct fl_picker_decision {
    struct fl_bytes endpoint;      /* "ip:port", "[v6]:port" */
    struct fl_bytes prefill;       /* absent unless a prefill worker is booked too */
    const struct fl_field *extras; /* more headers to set on the request */
    uint32_t extra_count;
};

#define FL_PICKER_EXTRA_MAX 8

struct fl_picker_ops {
    void (*on_pick)(void *owner, const struct fl_picker_question *question);
    /* The pick that was asked for is not wanted any more: no answer() or fail() may follow. */
    void (*on_pick_cancelled)(void *owner);
    /* The rest only for routed requests, and each may be NULL. */
    /* `served` is absent when the proxy does not report it; status 0 if there was none. Lent. */
    void (*on_response)(void *owner, int status, const struct fl_fields *headers,
                        struct fl_bytes served);
    /* The first response bytes: prefill is over. Once. */
    void (*on_first_token)(void *owner);
    /* Every piece of the response body, before it is echoed (usage). Lent. */
    void (*on_response_body)(void *owner, struct fl_bytes piece);
    /* The response is complete. At most once. */
    void (*on_response_end)(void *owner);
    /* Something a person should know, once a stream and kind; fixed text. */
    void (*on_warning)(void *owner, const char *what);
};

enum fl_picker_state {
    FL_PICKER_WAIT_HEADERS,
    FL_PICKER_WAIT_BODY, /* epp.md 4.2: RequestReceived */
    FL_PICKER_PICKING,
    FL_PICKER_ANSWERED, /* HeaderDone, BodyDone, TrailersDone: how far, the queue knows */
    FL_PICKER_RESPONSE, /* ResponseReceived and later */
    FL_PICKER_OBSERVING,
    FL_PICKER_ENDING,
    FL_PICKER_ENDED,
};

struct fl_picker_entry {
    struct fl_chain bytes; /* a framed message, or the body to cut */
    uint8_t kind;          /* enum fl_extproc_kind of a body that is cut; FL_EXTPROC_NONE: framed */
    bool is_end;           /* the last piece carries end_of_stream */
};

struct fl_picker {
    const struct fl_picker_config *config;
    const struct fl_picker_ops *ops;
    void *owner;
    enum fl_picker_state state;
    struct fl_extproc_protocol protocol;
    bool has_protocol;
    bool is_routed;    /* an endpoint was answered */
    bool has_trailers; /* request trailers await their answer */
    bool is_body_end;  /* the request's end came with a body message */
    bool has_first_token, is_response_complete;
    bool is_id_minted;
    int response_status; /* of a routed request; 0: none yet */
    uint32_t carried;    /* control headers of the request */
    uint32_t warned;     /* kinds already told */
    /* until the pick is over */
    struct fl_extproc_request headers; /* the header message */
    struct fl_extproc_request hint;    /* a later message that brought the standing subset hint */
    bool has_hint;                     /* `hint` holds it; otherwise `headers` may */
    struct fl_chain body;
    struct fl_arena arena;
    struct fl_picker_question question;
    char request_id[129]; /* outlives the headers: answers and logs */
    /* answers; room for one request's answers behind a full queue */
    struct fl_picker_entry queue[FL_EXTPROC_QUEUE + 4];
    uint32_t queue_first, queue_count;
    /* the end */
    int grpc_status;
    char grpc_message[160];
};

/* `config` and `ops` outlive the picker. */
void fl_picker_init(struct fl_picker *picker, const struct fl_picker_config *config,
                    const struct fl_picker_ops *ops, void *owner);
/* The stream is gone: cancels a pick, drops everything. Idempotent. */
void fl_picker_fini(struct fl_picker *picker);

/* One gRPC message; takes its slices. Not while fl_picker_is_full(). After the end: dropped. */
void fl_picker_feed(struct fl_picker *picker, struct fl_chain *message);
/* The proxy sends no more: a pick is cancelled, what is queued goes out, then status OK. */
void fl_picker_half_close(struct fl_picker *picker);

/* What the owner found, in state PICKING. */
void fl_picker_answer(struct fl_picker *picker, const struct fl_picker_decision *decision);
/* Before an answer: an ImmediateResponse by the row of `code` (epp.md 6), then the end, status OK.
 * `retry_after_s` 0: the code's default. Later: the end with status 13. */
void fl_picker_fail(struct fl_picker *picker, int code, uint32_t retry_after_s);
/* Ends the stream with a gRPC status; what is queued is dropped, a pick cancelled. */
void fl_picker_end(struct fl_picker *picker, int grpc_status, const char *message);

enum fl_picker_next {
    FL_PICKER_IDLE,    /* nothing to send now */
    FL_PICKER_MESSAGE, /* one framed message was appended */
    FL_PICKER_END,     /* send trailers with grpc_status and grpc_message; returned once */
};
enum fl_picker_next fl_picker_next(struct fl_picker *picker, struct fl_chain *out);

static inline bool fl_picker_is_full(const struct fl_picker *picker)
{
    return picker->queue_count >= FL_EXTPROC_QUEUE;
}

/* True while an ImmediateResponse may still be sent: nothing but an empty header answer is out. */
bool fl_picker_can_refuse(const struct fl_picker *picker);
/* The cap of the next message. */
uint32_t fl_picker_max_message(const struct fl_picker *picker);
/* Kept or minted, once the headers came; empty before. */
struct fl_bytes fl_picker_request_id(const struct fl_picker *picker);

#endif
