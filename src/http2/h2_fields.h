/* SPDX-License-Identifier: Apache-2.0 */
/* From our heads to name-value pairs for HPACK and back. Of http2/ alone. */
#ifndef FL_HTTP2_H2_FIELDS_H
#define FL_HTTP2_H2_FIELDS_H

#include <nghttp2/nghttp2.h>
#include <stdbool.h>
#include <stddef.h>

#include "http/message.h"

#define FL_H2_NV_INLINE 48

/* Pairs for one submit; they borrow from head and arena, the library copies them. */
struct fl_h2_nvs {
    nghttp2_nv inline_items[FL_H2_NV_INLINE];
    nghttp2_nv *items;
    size_t count, cap;
    uint8_t digits[24]; /* content-length */
    uint8_t status[4];
};

void fl_h2_nvs_init(struct fl_h2_nvs *nvs);
void fl_h2_nvs_fini(struct fl_h2_nvs *nvs);
/* Each adds pairs; FL_EPROTO if one cannot be sent. Lowered names lie in `arena`. */
int fl_h2_nvs_add_request(struct fl_h2_nvs *nvs, struct fl_arena *arena,
                          const struct fl_head *head);
int fl_h2_nvs_add_response(struct fl_h2_nvs *nvs, struct fl_arena *arena,
                           const struct fl_head *head);
int fl_h2_nvs_add_fields(struct fl_h2_nvs *nvs, struct fl_arena *arena,
                         const struct fl_fields *fields);

/* Sets the member of `head` that the pseudo field `name` stands for; bytes are borrowed. */
void fl_h2_head_set_pseudo(struct fl_head *head, struct fl_bytes name, struct fl_bytes value);
/* What is left to do once a request's head is complete: authority from Host, one cookie line, the
 * declared length. 0, or the HTTP status that refuses it. */
int fl_h2_head_finish_request(struct fl_head *head);
void fl_h2_head_finish_response(struct fl_head *head);

#endif
