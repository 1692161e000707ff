/* SPDX-License-Identifier: Apache-2.0 */
/* An endpoint picker that behaves as told: late, wrong, silent or gone. Lives on the test's loop,
 * speaks ext_proc over plaintext HTTP/2 on a free loopback port. */
#ifndef FL_FAKE_EPP_H
#define FL_FAKE_EPP_H

#include "base/buf.h"
#include "base/list.h"
#include "http/message.h"
#include "web/exchange.h"

enum fake_epp_mode {
    FAKE_EPP_ANSWER,      /* after the whole request: header answer, then body answer */
    FAKE_EPP_SILENT,      /* reads and says nothing */
    FAKE_EPP_IMMEDIATE,   /* immediate_response after the whole request */
    FAKE_EPP_END,         /* grpc-status 0 without an answer */
    FAKE_EPP_ERROR,       /* grpc-status 14 without an answer */
    FAKE_EPP_RESET,       /* RST_STREAM */
    FAKE_EPP_GARBAGE,     /* a message that is no protobuf */
    FAKE_EPP_ANSWER_END,  /* answers, then grpc-status 0 at once */
    FAKE_EPP_PER_MESSAGE, /* an empty answer a body message, the header answer before the last */
};

struct fake_epp {
    struct fl_loop *loop;
    struct fl_listener *listener;
    struct fl_web_server *server;
    struct fl_addr addr;
    char address[FL_ADDR_TEXT];
    struct fl_link streams;

    /* script */
    enum fake_epp_mode mode;
    const char *destination, *metadata_destination; /* NULL: not set */
    const char *new_body;                           /* NULL: echoed in pieces as it came */
    bool answers_plainly;                           /* body answer without mutation */
    const struct fl_field *sets;                    /* more headers to set */
    size_t set_count;
    const char *removed; /* one name for remove_headers, or NULL */
    int immediate_status;
    const char *immediate_body;
    bool evicts; /* immediate_response when the response head is told */

    /* what happened */
    uint32_t asked;      /* streams with request headers */
    uint32_t open;       /* streams now */
    uint32_t completed;  /* streams that told the end of the response */
    uint32_t cancelled;  /* streams that were reset */
    char headers[65536]; /* of the last question: "name: value\n" lines */
    bool headers_end;    /* its end_of_stream */
    struct fl_buf body;
    uint32_t largest_message; /* body bytes of one message */
    char events[256]; /* of the last stream: H request headers, B body, h response head, b body, e
                         end */
    char response_status[16], served[64];
    struct fl_buf response_body;
};

void fake_epp_start(struct fake_epp *epp, struct fl_loop *loop);
/* On an address that was in use before, for restarts. */
void fake_epp_start_at(struct fake_epp *epp, struct fl_loop *loop, const struct fl_addr *addr);
/* Streams are cut, the port refuses. Idempotent. */
void fake_epp_stop(struct fake_epp *epp);
/* Value of a header of the last question; false if there is none. */
bool fake_epp_header(const struct fake_epp *epp, const char *name, char *out, size_t room);

#endif
