/* SPDX-License-Identifier: Apache-2.0 */
/* The header names that ext_proc endpoints treat specially, as one table: which a client must not
 * use to steer requests, which a picker takes off the forwarded request, and which a gateway strips
 * before it asks. epp.md 5.1, 5.2; gaie.md 7; gateway.md 9.4. Pure. */
#ifndef FL_EXTPROC_HEADERS_H
#define FL_EXTPROC_HEADERS_H

#include <stdint.h>

#include "http/message.h"

#define FL_EXTPROC_CONTROL_MAX 32 /* rows of the table; a bit of the mask each */

/* Which rows of the table `fields` carries, as a mask. */
uint32_t fl_extproc_control_carried(const struct fl_fields *fields);

/* Picker, before selection: drops names that only pickers and gateways may write. */
void fl_extproc_drop_spoofed(struct fl_fields *fields);

/* Picker, header answer: names for remove_headers given what the request carried. Six names always,
 * without x-prefiller-host-port if that is going to be set. Returns how many of `out`. */
uint32_t fl_extproc_removes(uint32_t carried, bool sets_prefill,
                            struct fl_bytes out[FL_EXTPROC_CONTROL_MAX]);

/* Gateway, before the question: removes what a client could choose its endpoint with. */
void fl_extproc_strip_client(struct fl_fields *fields);

/* True for [A-Za-z0-9._-]{1,128}: an x-request-id that is kept (epp.md 4.5). */
bool fl_extproc_is_request_id(struct fl_bytes id);

/* Metadata headers (epp.md 7.5). */
#define FL_EXTPROC_METADATA_MAX 64
#define FL_EXTPROC_METADATA_MAX_BYTES 65536 /* keys and values */
/* 0, or FL_EMETADATA_LARGE. Repeated keys count once; `authorization` and bearer values not at all.
 */
int fl_extproc_check_metadata(const struct fl_fields *fields, struct fl_bytes prefix);

#endif
