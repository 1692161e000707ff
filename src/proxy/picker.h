/* SPDX-License-Identifier: Apache-2.0 */
/* The endpoint pickers that a loop's rules name: for each distinct (address, plaintext, CA, name)
 * one peer with its own HTTP/2 connection, shared by all rules (gateway.md 9.1). A DNS name is
 * resolved when it is first needed, and again while it is used and the answer is old; questions
 * that come before the first answer wait for it. Single loop. */
#ifndef FL_PROXY_PICKER_H
#define FL_PROXY_PICKER_H

#include "extproc/client.h"
#include "proxy/proxy.h"

/* A question that waits for the picker's address; a member of its owner. */
struct fl_picker_wait {
    struct fl_link link; /* alone unless it waits */
    /* The peer, or NULL if the name has no address. Once, from the loop. */
    void (*ready)(struct fl_picker_wait *wait, struct fl_extproc_peer *peer);
};

/* The peer of an EPP rule, now; or NULL, then `wait` waits, or does not (it is alone): no peer can
 * be had, the reason is logged. */
struct fl_extproc_peer *fl_proxy_picker(struct fl_proxy *proxy, const struct fl_rule *rule,
                                        struct fl_picker_wait *wait);

/* After new rules: pickers that no rule names any more go. */
void fl_proxy_pickers_adopt(struct fl_proxy *proxy);
void fl_proxy_pickers_fini(struct fl_proxy *proxy);

/* TLS settings for a rule's picker; also how a program finds out whether eppCaFile can be used. */
int fl_proxy_picker_tls(const struct fl_rule *rule, struct fl_tls_context **tls,
                        struct fl_error *err);

#endif
