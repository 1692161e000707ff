/* SPDX-License-Identifier: Apache-2.0 */
/* Names to addresses without blocking the loop: getaddrinfo on libuv's threads, and a small cache,
 * since there are few names and they are asked again and again (dependencies.md 2).
 *
 * Questions for one name that is being looked up wait for the same answer. Answers are kept for
 * FL_RESOLVER_KEEP_MS, failures for FL_RESOLVER_KEEP_FAILED_MS, so that a dead name is not asked
 * for each request. IP literals need no lookup. Single loop; one resolver a loop. */
#ifndef FL_NET_RESOLVER_H
#define FL_NET_RESOLVER_H

#include <stddef.h>
#include <stdint.h>

#include "net/loop.h"
#include "net/stream.h"

#define FL_RESOLVER_KEEP_MS 30000
#define FL_RESOLVER_KEEP_FAILED_MS 1000
/* Names kept. They come from configuration and Kubernetes objects, never from requests; beyond it
 * the oldest answer goes. */
#define FL_RESOLVER_NAMES 256
#define FL_RESOLVER_ADDRS 16 /* of one name, in getaddrinfo's order; further ones are dropped */

struct fl_resolver;
struct fl_resolver *fl_resolver_new(struct fl_loop *loop);
/* Questions that wait are cancelled: their `done` is not called. NULL allowed. */
void fl_resolver_free(struct fl_resolver *resolver);

struct fl_question;
/* Asks for `host` (copied; a name or an IP literal without brackets); every address carries `port`.
 * `done` is called once, from the loop, never from inside this call: with rc 0 and at least one
 * address (lent), or FL_ECONNECT and the reason in words. The question is gone after `done`. */
struct fl_question *fl_resolver_ask(struct fl_resolver *resolver, const char *host, uint16_t port,
                                    void (*done)(void *owner, int rc, const struct fl_addr *addrs,
                                                 size_t count, const char *why),
                                    void *owner);
/* `done` will not be called. Only before it was; NULL allowed. */
void fl_question_cancel(struct fl_question *question);

struct fl_resolver_stats {
    uint64_t questions, lookups, failures; /* lookups: what reached the system */
};
void fl_resolver_stats(const struct fl_resolver *resolver, struct fl_resolver_stats *stats);

#endif
