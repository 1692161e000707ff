/* SPDX-License-Identifier: Apache-2.0 */
/* Small HTTP services over the server's face: a request's body is gathered up to a cap, a table of
 * routes finds the handler, the handler answers now or later. For REST, metrics, debug pages; not
 * for proxied traffic.
 *
 * Patterns are matched segment by segment: "{name}" takes one segment, percent-decoded once; a
 * trailing "/" is tolerated; a segment may be bracketed IPv6. The first row whose method and
 * pattern fit wins. Unknown path: 404; known path with another method: 405 with Allow; body beyond
 * the cap: 413 and the connection closes. The service words these through `on_error`. Single loop.
 */
#ifndef FL_WEB_REST_H
#define FL_WEB_REST_H

#include "web/exchange.h"

#define FL_REST_PARAMS_MAX 8

struct fl_rest_request {
    struct fl_exchange *x;
    const struct fl_head *head;
    struct fl_bytes path, query;                /* raw; query absent if none */
    struct fl_bytes params[FL_REST_PARAMS_MAX]; /* in the order of the pattern, decoded */
    struct fl_bytes body;                       /* whole */
    void *service;                              /* fl_rest.owner */
    void *pending;                              /* the handler's own, for an answer given later */
};

struct fl_rest_route {
    const char *method;  /* "GET"; the table ends with NULL */
    const char *pattern; /* "/config/{ip}/port/{port}" */
    /* Answers with fl_exchange_respond() or fl_rest_json() on request->x, now or in a later turn
     * (then `request` lives until the exchange closes). */
    void (*handle)(struct fl_rest_request *request);
    /* The exchange closes before its answer was whole, for handlers that wait; NULL allowed. */
    void (*cancel)(struct fl_rest_request *request);
};

struct fl_rest {
    const struct fl_rest_route *routes;
    size_t max_body_bytes;
    void *owner;
    /* Runs before a route, after the body is there: true to go on, false if it has answered
     * (credentials, media types). NULL allowed. */
    bool (*before)(struct fl_rest_request *request, const struct fl_rest_route *route);
    /* Words an error of the frame: 404, 405 (`extra` holds Allow), 413. NULL: plain text. */
    void (*on_error)(struct fl_rest_request *request, int status, const struct fl_fields *extra);
};

/* As struct fl_web_server_config.on_request with owner = a struct fl_rest that outlives the server.
 */
void fl_rest_on_request(void *rest, struct fl_exchange *x);

/* Answers with exactly `application/json`. */
void fl_rest_json(struct fl_exchange *x, int status, struct fl_bytes body);

/* Value of `key` in a query, percent-decoded into `arena`; absent if it is not there. */
struct fl_bytes fl_rest_query(struct fl_bytes query, const char *key, struct fl_arena *arena);

#endif
