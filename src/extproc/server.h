/* SPDX-License-Identifier: Apache-2.0 */
/* ext_proc as a server: exchanges of a web server become streams with a picker each (picker.h).
 *
 *   web server --on_request--> fl_extproc_server_on_request()
 *        path .../Process   a stream: messages are fed to its picker, answers sent as they come
 *        another path       `on_other`, for services that share the port (health); otherwise gRPC
 *                           status 12, "trailers-only"
 *        not application/grpc*   HTTP 415
 *
 * A stream's callbacks come from its loop, never from inside a call of this header, except
 * on_pick_cancelled inside fl_extproc_server_stop() and _free(), and on_close inside _free(). After
 * on_close the stream is dead. The owner hangs what it knows of a stream on
 * fl_extproc_stream_set_user().
 *
 * Back-pressure (epp.md 12.4): a stream whose answers wait gets no further window. When the budget
 * of all bodies is nearly used up, only requests that declare at most FL_EXTPROC_SMALL_BODY bytes
 * read on; the others pause and after FL_EXTPROC_PAUSE_MS are refused with 503 epp_overloaded, as
 * is one that brought no byte for FL_EXTPROC_IDLE_BODY_MS.
 *
 * Single loop. gaie.md 1.1, 1.9; epp.md 4. */
#ifndef FL_EXTPROC_SERVER_H
#define FL_EXTPROC_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "extproc/picker.h"
#include "net/loop.h"
#include "web/exchange.h"

#define FL_EXTPROC_SMALL_BODY                                                                      \
    65536                             /* read on under pressure, so that small requests are served \
                                       */
#define FL_EXTPROC_PAUSE_MS 2000      /* a paused body waits so long for memory */
#define FL_EXTPROC_IDLE_BODY_MS 10000 /* under pressure a silent body gives its memory back */
/* Our status is out; a proxy that does not end its side is cut. */
#define FL_EXTPROC_LINGER_MS 5000

struct fl_extproc_server;
struct fl_extproc_stream;

enum fl_extproc_end {
    FL_EXTPROC_END_DONE,     /* routed, the response complete with a status below 400 */
    FL_EXTPROC_END_UPSTREAM, /* routed, the response had a status of 400 or more */
    FL_EXTPROC_END_GONE,     /* routed, but the stream ended before the response did */
    FL_EXTPROC_END_REFUSED,  /* not routed: refused, cancelled, or never asked */
    FL_EXTPROC_END_FAILED,   /* we ended it with a gRPC error */
    FL_EXTPROC_END_SHUTDOWN, /* cut by fl_extproc_server_stop() */
};

struct fl_extproc_server_ops {
    /* See struct fl_picker_ops; `owner` is the server's. on_pick and on_pick_cancelled are needed.
     */
    void (*on_pick)(void *owner, struct fl_extproc_stream *stream,
                    const struct fl_picker_question *question);
    void (*on_pick_cancelled)(void *owner, struct fl_extproc_stream *stream);
    void (*on_response)(void *owner, struct fl_extproc_stream *stream, int status,
                        const struct fl_fields *headers, struct fl_bytes served);
    void (*on_first_token)(void *owner, struct fl_extproc_stream *stream);
    void (*on_response_body)(void *owner, struct fl_extproc_stream *stream, struct fl_bytes piece);
    void (*on_response_end)(void *owner, struct fl_extproc_stream *stream);
    /* Once for every stream, last. */
    void (*on_close)(void *owner, struct fl_extproc_stream *stream, enum fl_extproc_end end);
    /* A request for another path. True if it took the exchange (set a handler of its own). May be
     * NULL. `owner` is the server's. */
    bool (*on_other)(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end);
};

struct fl_extproc_server_config {
    struct fl_picker_config picker;
    struct fl_budget *budget; /* of all bodies; NULL: no pressure is ever felt */
};

struct fl_extproc_server_figures {
    uint32_t open_streams;
    uint64_t streams, messages, refused_streams; /* refused: 415, 12, protocol, malformed */
    uint64_t buffer_rejections;                  /* fairlead_epp_buffer_rejections_total */
};

/* `config` is copied, `ops` outlives the server. */
struct fl_extproc_server *fl_extproc_server_new(struct fl_loop *loop,
                                                const struct fl_extproc_server_config *config,
                                                const struct fl_extproc_server_ops *ops,
                                                void *owner);
/* For struct fl_web_server_config: on_request, with the server as its owner. */
void fl_extproc_server_on_request(void *server, struct fl_exchange *x);
/* The end of the drain: picks that wait are refused with 503 shutting_down, streams in the response
 * phase end with status 14 (epp.md 6). */
void fl_extproc_server_stop(struct fl_extproc_server *server);
/* Aborts what is left; every on_close has come by then. NULL allowed. Before its web server. */
void fl_extproc_server_free(struct fl_extproc_server *server);
void fl_extproc_server_figures(const struct fl_extproc_server *server,
                               struct fl_extproc_server_figures *figures);

/* ---- a stream ---- */

/* The pick's outcome, from on_pick or later, until cancelled: see picker.h. */
void fl_extproc_stream_answer(struct fl_extproc_stream *stream,
                              const struct fl_picker_decision *decision);
void fl_extproc_stream_fail(struct fl_extproc_stream *stream, int code, uint32_t retry_after_s);

void fl_extproc_stream_set_user(struct fl_extproc_stream *stream, void *user);
void *fl_extproc_stream_user(const struct fl_extproc_stream *stream);
/* Status, routed or not, request id: lent. */
const struct fl_picker *fl_extproc_stream_picker(const struct fl_extproc_stream *stream);

#endif
