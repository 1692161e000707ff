/* SPDX-License-Identifier: Apache-2.0 */
/* The two answers of the picker that have content. The folder's own. */
#ifndef FL_EXTPROC_PICKER_ANSWER_H
#define FL_EXTPROC_PICKER_ANSWER_H

#include "extproc/picker.h"

/* Appends the answer that carries the decision: `kind` is REQUEST_HEADERS, or REQUEST_BODY in
 * BUFFERED (epp.md 5.2, 5.3). */
void fl_picker_write_decision(struct fl_chain *out, enum fl_extproc_kind kind,
                              const struct fl_picker_decision *decision, uint32_t carried,
                              struct fl_bytes minted_id);

/* Appends an ImmediateResponse in OpenAI's error shape (epp.md 6). */
void fl_picker_write_immediate(struct fl_chain *out, int code, uint32_t retry_after_s,
                               struct fl_bytes request_id);

#endif
