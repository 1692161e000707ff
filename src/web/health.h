/* SPDX-License-Identifier: Apache-2.0 */
/* grpc.health.v1.Health, Check and Watch (epp.md 1.4, gaie.md 9.5).
 *
 *   fl_health_names (one a program, atomics)  <- set by whoever knows
 *          ^ read by
 *   fl_health (one a loop)  serves Check, and Watch streams that are told of changes within
 * FL_HEALTH_LOOK_MS
 *
 * An unknown name answers Check with status OK and SERVICE_UNKNOWN, as peers do; Watch sends that
 * too. */
#ifndef FL_WEB_HEALTH_H
#define FL_WEB_HEALTH_H

#include <stdatomic.h>
#include <stdbool.h>

#include "web/exchange.h"

#define FL_HEALTH_NAMES_MAX 16
#define FL_HEALTH_LOOK_MS 100
#define FL_HEALTH_WATCHERS_MAX 1024 /* a loop; a kubelet and a proxy hold one each */
#define FL_HEALTH_REQUEST_MAX 4096  /* bytes of a request message: it holds a name */

struct fl_health_names {
    struct {
        const char *name; /* lent; "" is the server as a whole */
        _Atomic bool is_serving;
    } rows[FL_HEALTH_NAMES_MAX];
    size_t count;
};

/* Before threads start; NOT_SERVING at first. */
void fl_health_add(struct fl_health_names *names, const char *name);
/* Any thread. The name was added: asserted. */
void fl_health_set(struct fl_health_names *names, const char *name, bool is_serving);

struct fl_health;

struct fl_health *fl_health_new(struct fl_loop *loop, struct fl_health_names *names);
/* Aborts watches. Before the web servers of its exchanges. NULL allowed. */
void fl_health_free(struct fl_health *health);

/* As struct fl_web_server_config.on_request, with a struct fl_health as owner. */
void fl_health_on_request(void *health, struct fl_exchange *x);
/* For a service that shares its port: true if the path is the health service's; then the exchange
 * is taken, its head included. */
bool fl_health_take(struct fl_health *health, struct fl_exchange *x, struct fl_head *head,
                    bool is_end);

#endif
