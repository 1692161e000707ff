/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoint names as ext_proc peers exchange them: `ip:port` and `[v6]:port`, compared as text once
 * they are canonical (gateway.md 9.4, 9.5). Pure. */
#ifndef FL_EXTPROC_ENDPOINT_H
#define FL_EXTPROC_ENDPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"

#define FL_ENDPOINT_TEXT 56 /* "[" 45 of an IPv6 address "]:65535" NUL */
#define FL_ENDPOINT_CANDIDATES 4

/* The canonical form of `text`: true unless it is malformed (no port, not an address, port 0 or
 * above 65535, IPv6 without brackets). */
bool fl_endpoint_canonical(struct fl_bytes text, char out[FL_ENDPOINT_TEXT]);

/* A comma list, in order, without blanks, malformed items and repeats; at most
 * FL_ENDPOINT_CANDIDATES. Returns how many. */
uint32_t fl_endpoint_list(struct fl_bytes list, char out[FL_ENDPOINT_CANDIDATES][FL_ENDPOINT_TEXT]);

#endif
