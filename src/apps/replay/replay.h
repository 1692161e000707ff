/* SPDX-License-Identifier: Apache-2.0 */
/* Replays a trace against an OpenAI endpoint, open loop: a request leaves at its timestamp / (speed
 * x time scale), however slow the answers are, and its latency counts from that instant
 * (performance.md section 1, rule 3).
 *
 * One prompt per record, sent as POST /v1/completions (a chat template would shift the blocks),
 * whose words reproduce the trace's shared prefixes block for block. With token scale 1/32 a
 * 512-token trace block becomes 16 tokens, and a prompt has max(1, floor(input_length / 32))
 * tokens, so that a full block stays full and a partial one partial.
 *
 * Belongs to one loop. */
#ifndef FL_APPS_REPLAY_REPLAY_H
#define FL_APPS_REPLAY_REPLAY_H

#include <stdint.h>

#include "base/error.h"
#include "net/loop.h"
#include "net/stream.h"
#include "sim/trace.h"

struct replay_config {
    struct fl_addr target;
    const char *host;  /* for the Host field */
    const char *path;  /* "/v1/completions" */
    const char *model; /* lent while the replay runs */
    double speed, time_scale;
    uint32_t token_divisor; /* token scale 1/N */
    uint32_t requests;      /* 0: all */
    uint64_t timeout_ms;    /* of one request, wall; 0: 120 s */
};

struct replay_result {
    uint64_t requests, errors;
    uint64_t prompt_tokens, cached_tokens; /* as the replies' usage says */
    double duration_s;                     /* wall, first arrival to last end */
    double *ttft_ms;                       /* in the trace's time; of requests without an error */
    double *router_us; /* wall: last byte sent to whole request read by the engine */
    size_t ttft_count, router_count;
    char first_error[160]; /* of the first request that failed; "" if none did */
};

struct replay;

/* Starts; `trace` is borrowed until done. `on_done` comes once, from the loop; the result is the
 * callee's (replay_result_fini). 0 or FL_ECONFIG with a sentence (the scale does not divide the
 * trace's blocks). */
int replay_start(struct fl_loop *loop, const struct fl_trace *trace,
                 const struct replay_config *config,
                 void (*on_done)(void *owner, struct replay_result *result), void *owner,
                 struct replay **replay, struct fl_error *err);
/* Requests answered so far, for progress. */
uint64_t replay_answered(const struct replay *replay);
/* Ends what is open; no on_done. NULL allowed. After on_done it must be called to free the replay.
 */
void replay_free(struct replay *replay);
void replay_result_fini(struct replay_result *result);

/* Reads a trace file; `.gz` through a gzip -dc child (dependencies.md section 2). Blocks: for
 * start-up only. */
int replay_read_trace(const char *path, uint32_t block_tokens, struct fl_trace *trace,
                      struct fl_error *err);

/* "1/32", "1": the divisor. False otherwise. */
bool replay_parse_scale(const char *text, uint32_t *divisor);

#endif
