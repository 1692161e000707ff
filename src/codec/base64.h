/* SPDX-License-Identifier: Apache-2.0 */
/* Base64 (RFC 4648 section 4: standard alphabet, padded). Decoding is strict: no blanks, no missing
 * or extra padding, no bits set behind the data, so each value has one spelling. Pure. */
#ifndef FL_CODEC_BASE64_H
#define FL_CODEC_BASE64_H

#include <stddef.h>

#include "base/buf.h"
#include "base/bytes.h"

/* Characters that `n` bytes become. n < SIZE_MAX / 2. */
size_t fl_base64_size(size_t n);

/* Appends. 0, FL_ELIMIT or FL_ENOMEM; a failure changes nothing. */
int fl_base64_encode(struct fl_buf *out, struct fl_bytes bytes);

/* Appends. 0, FL_EPROTO if `text` is not strict base64, FL_ELIMIT or FL_ENOMEM; a failure changes
 * nothing. */
int fl_base64_decode(struct fl_buf *out, struct fl_bytes text);

#endif
