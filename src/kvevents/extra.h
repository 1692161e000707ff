/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine mixed into its block hashes besides tokens (selection.md 11.3 position 8, 11.4):
 * LoRA name, image ids, salt, digests. We need the salt and the images; the rest is passed over. */
#ifndef FL_KVEVENTS_EXTRA_H
#define FL_KVEVENTS_EXTRA_H

#include "kvevents/event.h"

/* Reads `extra_keys` (nil, or one entry a block) with event->lora_name known. Anything unexpected
 * inside is ignored: it cannot be worse than not looking. */
void fl_kv_extra_read_keys(struct fl_kv_event *event, struct fl_msgpack reader);
/* Reads `block_mm_infos` (nil, or one entry a block). */
void fl_kv_extra_read_images(struct fl_kv_event *event, struct fl_msgpack *reader);

#endif
