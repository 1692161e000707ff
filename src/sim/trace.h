/* SPDX-License-Identifier: Apache-2.0 */
/* Request traces: arrival, lengths and prefix-block ids of real services, without any text.
 *
 * Three JSONL dialects are read (data/README.md): Mooncake (integer `timestamp` in ms, 512-token
 * ids), Qwen-Bailian (`chat_id` present: float `timestamp` in seconds, 16-token ids), and that of
 * NVIDIA's tools
 * (`timestamp` float in ms, or `delay` in ms since the request before; `input_length` may be
 * missing: ids x block). Extra keys are ignored. An id stands for the whole prefix up to its block.
 *
 * Pure: bytes in, records out. Reading files is the caller's. */
#ifndef FL_SIM_TRACE_H
#define FL_SIM_TRACE_H

#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"

#define FL_TRACE_MAX_RECORDS                                                                       \
    10000000 /* a trace is a user's file: bounded, so that a wrong file fails soon */

struct fl_trace_record {
    uint64_t at_us; /* from the start of the trace; never decreasing */
    uint32_t input_tokens, output_tokens;
    uint32_t id_count;
    uint64_t first_id; /* index into fl_trace.ids */
};

struct fl_trace {
    struct fl_trace_record *records;
    size_t count;
    uint64_t *ids;
    size_t id_count;
    uint32_t block_tokens; /* tokens an id stands for */
};

/* `trace` is zeroed. `block_tokens` 0: by dialect. FL_EPROTO with line and reason on bad input;
 * nothing is kept then. */
int fl_trace_parse(struct fl_trace *trace, struct fl_bytes text, uint32_t block_tokens,
                   struct fl_error *err);
/* Idempotent. */
void fl_trace_fini(struct fl_trace *trace);

static inline const uint64_t *fl_trace_ids(const struct fl_trace *trace,
                                           const struct fl_trace_record *record)
{
    return trace->ids + record->first_id;
}

/* Spreads the requests of one timestamp evenly up to the next distinct one (performance.md section
 * 2, `mc-conv-even`): request q of k sharing a time gets t + gap * q / k; the last tick lasts
 * `last_gap_us`. */
void fl_trace_spread(struct fl_trace *trace, uint64_t last_gap_us);

#endif
