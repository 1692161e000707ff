/* SPDX-License-Identifier: Apache-2.0 */
/* An HTTP/1.1 endpoint that answers by script, on raw bytes: it shares no parser with what it
 * tests. Lives on the test's loop, listens on a free loopback port. */
#ifndef FL_FAKE_BACKEND_H
#define FL_FAKE_BACKEND_H

#include "base/buf.h"
#include "base/list.h"
#include "net/stream.h"

enum fake_backend_mode {
    FAKE_BACKEND_REPLY,         /* `reply`, or 200 with X-Served-By and a body that says the name */
    FAKE_BACKEND_REPLY_CLOSE,   /* the same, then FIN */
    FAKE_BACKEND_REPLY_RESET,   /* the same, then RST once it was written */
    FAKE_BACKEND_CLOSE,         /* reads the request, closes without a byte */
    FAKE_BACKEND_CLOSE_AT_HEAD, /* closes as soon as a second request begins */
    FAKE_BACKEND_HOLD,          /* reads the request and waits for fake_backend_send() */
};

struct fake_backend {
    struct fl_loop *loop;
    const char *name;
    struct fl_listener *listener;
    struct fl_addr addr;
    char address[FL_ADDR_TEXT];
    struct fl_link peers;

    /* script */
    enum fake_backend_mode mode;
    const char *reply; /* whole message */

    /* what happened */
    uint32_t accepted, requests, cut; /* cut: connections that went away while an answer was owed */
    char head[65536];                 /* of the last request */
    struct fl_buf body;               /* of the last request, decoded */
    bool was_chunked;
};

void fake_backend_start(struct fake_backend *backend, struct fl_loop *loop, const char *name);
/* Connections are cut; the port refuses from now on. Idempotent. */
void fake_backend_stop(struct fake_backend *backend);
/* To the connection whose request came last. */
void fake_backend_send(struct fake_backend *backend, const char *bytes);
void fake_backend_send_bytes(struct fake_backend *backend, struct fl_bytes bytes);
/* Closes that connection: FIN, or RST. */
void fake_backend_close(struct fake_backend *backend, bool reset);
/* Value of a header line of the last request in `out`; false if there is none. */
bool fake_backend_header(const struct fake_backend *backend, const char *name, char *out,
                         size_t room);

#endif
