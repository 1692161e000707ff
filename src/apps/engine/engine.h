/* SPDX-License-Identifier: Apache-2.0 */
/* `fairlead engine`: a simulated inference engine with real HTTP, SSE, metrics, tokenizer route and
 * KV events (design.md section 6). One loop, one thread.
 *
 *   serve.c     routes; collects a request's body
 *   prompt.c    request body -> token ids (shared by generation and render route)
 *   generate.c  a generation's life on the engine model: admitted, first token, events of tokens,
 * end cache.c     the prefix cache's changes as KV events report.c    /metrics in the backend's
 * names
 *
 * Model time runs `time_scale` times as fast as the wall: model seconds = wall seconds since start
 * x scale. */
#ifndef FL_APPS_ENGINE_ENGINE_H
#define FL_APPS_ENGINE_ENGINE_H

#include "base/heap.h"
#include "base/metric.h"
#include "base/opt.h"
#include "codec/hash.h"
#include "codec/json.h"
#include "net/loop.h"
#include "sim/engine_model.h"
#include "web/exchange.h"

#define ENGINE_MAX_BODY_BYTES                                                                      \
    (64 * 1024 * 1024)                   /* twice the largest cap of anything in front of it */
#define ENGINE_MAX_OUTPUT_TOKENS 1000000 /* a client's max_tokens is bounded by this */
#define ENGINE_MAX_PROMPTS 256           /* prompts in one completions request */

/* Words of --fault. */
enum engine_fault {
    ENGINE_FAULT_NONE,
    ENGINE_FAULT_LATE,   /* every answer's head waits fault_ms of wall time */
    ENGINE_FAULT_ERROR,  /* 500 to every generation */
    ENGINE_FAULT_CUT,    /* the connection closes after the second event */
    ENGINE_FAULT_SILENT, /* requests are read and never answered */
    ENGINE_FAULT_WRONG,  /* bodies that are no JSON */
    ENGINE_FAULT_HUGE,   /* render answers of 17 MiB */
    ENGINE_FAULT_CLOSE,  /* the connection closes instead of an answer */
    ENGINE_FAULT_BUSY,   /* 503 to everything but GET */
};

struct engine_config {
    const char *listen, *model, *kv_events, *kv_replay, *ready_file;
    int backend, fault, log_level, log_format;
    uint32_t blocks, block_tokens, tokens_per_event;
    uint64_t fault_ms;
    double prefill_tps, decode_ms, time_scale;
    bool digest;
};

enum {
    ENGINE_REQUESTS,
    ENGINE_FINISHED,
    ENGINE_PROMPT_TOKENS,
    ENGINE_GENERATION_TOKENS,
    ENGINE_CACHE_QUERIES,
    ENGINE_CACHE_HITS,
    ENGINE_RENDERED,
    ENGINE_ABORTED,
    ENGINE_REFUSED,
    ENGINE_TTFT,
    ENGINE_METRIC_COUNT
};

struct engine_publisher; /* cache.c */

struct engine {
    struct engine_config config;
    struct fl_loop *loop;
    struct fl_listener *listener;
    struct fl_web_server *server;
    struct fl_engine_model model;
    struct engine_publisher *publisher; /* NULL: no KV events */
    struct fl_metrics metrics;
    struct fl_sha256 *sha; /* NULL: no digests */
    char digest[65];       /* of the body being answered, hex; "" without --digest */
    struct fl_heap due;    /* generations by next event */
    struct fl_precise_timer *timer;
    uint64_t start_ns;
    uint64_t next_id;
    uint32_t open, peak_open; /* generations */
    uint32_t waiting;         /* of them, before the first token */
};

/* ---- prompt.c ---- */

struct engine_prompt {
    uint32_t *tokens;
    size_t count, cap;
};

void engine_prompt_fini(struct engine_prompt *prompt);
/* Token ids of a chat (messages) or completions (prompt) body. 0, or FL_EBAD_BODY with a sentence.
 * `prompts` has room for ENGINE_MAX_PROMPTS; zeroed; *count receives how many there are. */
int engine_read_prompts(const struct fl_json_node *body, bool is_chat,
                        struct engine_prompt *prompts, size_t *count, struct fl_error *err);

/* ---- generate.c ---- */

struct generation;
/* Answers a chat or completions request on `x`. True: a generation began and is the exchange's
 * handler now; false: an error was answered and the handler stays. `read_ns`: when the request's
 * last byte was read. */
bool engine_generate(struct engine *engine, struct fl_exchange *x, bool is_chat,
                     struct fl_bytes body, uint64_t read_ns);
void engine_generate_init(struct engine *engine);
void engine_generate_fini(struct engine *engine);

double engine_now_s(const struct engine *engine);
uint64_t engine_wall_ns(const struct engine *engine, double model_s);

/* ---- cache.c ---- */

/* 0, or a negative code with a sentence. Without --kv-events nothing is made. */
int engine_publisher_open(struct engine *engine, struct fl_error *err);
void engine_publisher_close(struct engine *engine);
/* "tcp://ip:port" as bound, for the ready file; NULL: none. */
const char *engine_publisher_endpoint(const struct engine *engine);
const char *engine_publisher_replay_endpoint(const struct engine *engine);
/* Admits a prompt to the model and publishes what its cache gained and lost. */
struct fl_engine_admission engine_admit(struct engine *engine, const struct engine_prompt *prompt);

/* ---- report.c ---- */

extern const struct fl_metric_desc engine_metric_descs[ENGINE_METRIC_COUNT];
int engine_write_metrics(const struct engine *engine, struct fl_buf *out);

/* ---- serve.c ---- */

void engine_on_request(void *owner, struct fl_exchange *x);
/* OpenAI error body. */
void engine_respond_error(struct engine *engine, struct fl_exchange *x, int status,
                          const char *type, const char *message);

#endif
