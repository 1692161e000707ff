/* SPDX-License-Identifier: Apache-2.0 */
/* One forwarded message pair: a client's request, the rule it falls under, the picker's decision,
 * and the endpoint that answers (gateway.md 7 to 9).
 *
 *   state       what happens                        leaves by
 *   ROUTING     head read, rule looked for          rule with EPP: ASKING; else CONNECTING
 *   ASKING      body kept and shown to the picker   decision: CONNECTING; refusal: ANSWERED
 *   HOLDING     FailOpen in the middle of an        last byte: CONNECTING
 *               upload: the rest is still kept
 *   CONNECTING  candidates tried, request sent      response head: RELAYING; none left: ANSWERED
 *   RELAYING    response goes to the client         response end, cut, client gone: OVER
 *   ANSWERED    the gateway's own answer is out     client's exchange closes: OVER
 *   OVER        nothing more is sent                both exchanges have closed: freed
 *
 * A request ends once, in one function, whatever the order in which its client, endpoint and picker
 * go away. Bodies are slices: the kept copy, what the picker is shown and what the endpoint gets
 * are the same chunks. A plain rule's body is streamed, but its first bytes stay referenced until
 * the endpoint has taken some, so that another endpoint can be tried when the connection fails.
 *
 * Single loop. */
#ifndef FL_PROXY_FORWARD_H
#define FL_PROXY_FORWARD_H

#include "proxy/proxy.h"

/* Where a connection came in: one VIP:port on one loop. */
struct fl_proxy_entry {
    struct fl_proxy *proxy;
    struct fl_rule_ip ip;
    uint16_t port;
};

/* A web server's on_request with owner = a struct fl_proxy_entry that outlives the server. */
void fl_forward_on_request(void *entry, struct fl_exchange *x);

#endif
