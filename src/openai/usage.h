/* SPDX-License-Identifier: Apache-2.0 */
/* Usage: the token counts an engine states in its answer (epp.md 10.7), found while the body
 * streams by.
 *
 * Event streams: each data line is looked at; the last `usage` object that is not null wins. Unary
 * bodies: the object is kept and read at the end. The body may have its middle left out (a
 * gateway's `edges` tap), so a line that does not parse is skipped without a word, and a unary body
 * that does not parse as a whole is searched from its end for an object after a member name
 * `usage`.
 *
 * Memory: an incomplete line (64 KiB) or FL_USAGE_MAX_UNARY of a unary body; of a longer one its
 * end is kept, where usage stands. Scanning never fails and never alters anything. No I/O. */
#ifndef FL_OPENAI_USAGE_H
#define FL_OPENAI_USAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "codec/sse.h"

#define FL_USAGE_MAX_UNARY ((size_t)1 << 20) /* epp.md 4.3 */
#define FL_USAGE_TAIL ((size_t)16 << 10)     /* what `edges` sends, gateway.md 9.8 */

/* Absent numbers are 0. `input_tokens`, `output_tokens` and their details (responses, messages) are
 * read too. */
struct fl_usage {
    uint64_t prompt_tokens;
    uint64_t completion_tokens;
    uint64_t total_tokens;
    uint64_t cached_tokens; /* of the prompt, by the engine's word */
};

struct fl_usage_scan {
    struct fl_sse sse;
    struct fl_buf unary;
    struct fl_usage usage; /* last one seen in an event stream */
    uint64_t events;       /* data lines but [DONE]; about one a token, or a few */
    bool is_sse;
    bool is_cut; /* unary: the head was given up */
    bool has_usage;
    bool is_done; /* event streams: [DONE] was seen */
};

/* `scan` does not move until fl_usage_scan_fini(). */
void fl_usage_scan_init(struct fl_usage_scan *scan, bool is_sse);
/* Idempotent; a zeroed one is fine. */
void fl_usage_scan_fini(struct fl_usage_scan *scan);
void fl_usage_scan_feed(struct fl_usage_scan *scan, struct fl_bytes bytes);
/* The body is over. False: no usage was stated. Call once. */
bool fl_usage_scan_finish(struct fl_usage_scan *scan, struct fl_usage *usage);

#endif
