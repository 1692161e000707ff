/* SPDX-License-Identifier: Apache-2.0 */
/* What a proxy does to the fields of a message on its way through (gateway.md 7.1, 9.4). Works on
 * heads in their arenas; no I/O, no state. */
#ifndef FL_PROXY_HEADERS_H
#define FL_PROXY_HEADERS_H

#include <stdbool.h>
#include <stdint.h>

#include "http/message.h"
#include "net/stream.h"

/* What of a request decides about its answer, read before its fields are cleaned. */
struct fl_proxy_request_traits {
    struct fl_bytes request_id; /* kept or minted; lies in the head's arena */
    bool takes_trailers;        /* TE: trailers, or HTTP/2 */
    bool is_http_1_0;
};

struct fl_proxy_forwarding {
    const struct fl_addr *peer, *local;
    bool is_tls;
    bool trusts_client;       /* --trust-forwarded: append instead of overwriting */
    bool has_epp;             /* names by which a client could choose its endpoint go, too */
    const char *const *strip; /* more names to drop on EPP rules; NULL-terminated or NULL */
};

/* Makes the fields of a request those for EPP and endpoint: without hop-by-hop fields and names
 * that Connection lists, with X-Forwarded-* and X-Request-Id. Order, case and repetition of the
 * others stay. */
void fl_proxy_clean_request(struct fl_head *head, const struct fl_proxy_forwarding *how,
                            struct fl_proxy_request_traits *traits);

/* Makes the head of an endpoint's response the one for the client: without hop-by-hop fields, with
 * the request id, and its body reframed for the client. */
void fl_proxy_clean_response(struct fl_head *head, const struct fl_proxy_request_traits *traits);

/* True for a response whose silences are not timed (gateway.md 8.8): an event stream, or one of
 * unknown length. */
bool fl_proxy_is_stream(const struct fl_head *head);

#endif
