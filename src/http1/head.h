/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a head or trailer section whose end is known: `text` is complete lines, each ended by
 * CRLF, the last one blank, and lies in memory that lives as long as the head. Private to http1/.
 */
#ifndef FL_HTTP1_HEAD_H
#define FL_HTTP1_HEAD_H

#include "http1/defect.h"

/* Connection options and list items we are ready to look at; real heads have one to three. A bound
 * on the work of stripping them, which is options times fields. */
#define FL_HTTP1_MAX_CONNECTION_OPTIONS 64

/* `head` is zeroed but for arena; `field_lines` is the number of field lines. */
enum fl_http1_defect_id fl_http1_read_request(struct fl_head *head, struct fl_bytes text,
                                              uint32_t field_lines);
/* `answers_head`, `answers_upgrade`: of the request. */
enum fl_http1_defect_id fl_http1_read_response(struct fl_head *head, struct fl_bytes text,
                                               uint32_t field_lines, bool answers_head,
                                               bool answers_upgrade);
/* Leaves out the fields of fl_http_is_dropped_trailer(). */
enum fl_http1_defect_id fl_http1_read_trailers(struct fl_fields *trailers, struct fl_arena *arena,
                                               struct fl_bytes text, uint32_t field_lines);

#endif
