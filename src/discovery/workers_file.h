/* SPDX-License-Identifier: Apache-2.0 */
/* The workers file (epp.md 14.7): engines named in YAML or JSON instead of a Kubernetes pool.
 *
 * Reading is all or nothing for the file (syntax, version, shape) and entry by entry for the
 * workers: a bad entry is skipped with one line that names file, entry and rule; the rest is
 * served. Pure: bytes in, a set of workers out; watching and reloading are the program's. */
#ifndef FL_DISCOVERY_WORKERS_FILE_H
#define FL_DISCOVERY_WORKERS_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/bytes.h"
#include "base/error.h"
#include "net/stream.h"

#define FL_WORKERS_FILE_MAX_BYTES (4 * 1024 * 1024) /* epp.md 14.7 */
#define FL_WORKERS_FILE_MAX_WORKERS 4096
#define FL_WORKERS_FILE_MAX_DEPTH 16

enum fl_worker_role { FL_WORKER_AGGREGATED, FL_WORKER_PREFILL, FL_WORKER_DECODE };
enum fl_worker_backend { FL_BACKEND_VLLM, FL_BACKEND_SGLANG, FL_BACKEND_TRTLLM };

/* One engine. All bytes live in the set's arena. */
struct fl_worker_spec {
    uint64_t worker_id;
    struct fl_bytes name;      /* absent: a bare endpoint */
    struct fl_bytes ns;        /* namespace: logs only */
    struct fl_bytes label;     /* name, or the endpoint's text: for people */
    struct fl_addr addr;       /* ip:port of the engine's HTTP */
    struct fl_bytes authority; /* canonical "ip:port" */
    struct fl_bytes model;
    struct fl_bytes *lora_names;
    uint32_t lora_count;
    enum fl_worker_role role;
    bool has_role;
    enum fl_worker_backend backend;
    struct fl_bytes kv_events;                        /* ZMQ address of rank 0; absent: none */
    struct fl_bytes replay;                           /* absent: none */
    uint32_t block_size;                              /* 0: not said */
    uint64_t max_num_batched_tokens, total_kv_blocks; /* 0: not said */
    bool is_eagle, is_ready;
    struct fl_bytes *taints;
    uint32_t taint_count;
    struct fl_bytes instance;
};

/* What a program adds where the file is silent. */
struct fl_workers_defaults {
    struct fl_bytes model;   /* absent: any model may stand in the file */
    uint32_t block_size;     /* 0: none */
    uint16_t kv_event_port;  /* 0: no events by default */
    uint16_t kv_replay_port; /* 0: none */
    uint64_t max_num_batched_tokens, total_kv_blocks;
    bool is_eagle;
};

struct fl_worker_set {
    struct fl_arena arena;
    struct fl_worker_spec *items;
    uint32_t count;
    uint32_t bad; /* entries that were skipped */
    struct fl_bytes
        *bad_labels; /* of these: name or endpoint as far as it could be read; absent: neither */
};

/* `set` is zeroed. 0, or FL_ECONFIG (whole file refused; `err` names file and place). `complain` is
 * called for each bad entry (is_bad) and each unknown member, with a sentence; NULL allowed. */
int fl_workers_file_read(struct fl_worker_set *set, const char *file_name, struct fl_bytes text,
                         const struct fl_workers_defaults *defaults,
                         void (*complain)(void *owner, bool is_bad, const char *sentence),
                         void *owner, struct fl_error *err);
/* Idempotent. */
void fl_worker_set_fini(struct fl_worker_set *set);

/* Copies everything `spec` points to into `arena`, so that it outlives its set. */
void fl_worker_spec_move(struct fl_worker_spec *spec, struct fl_arena *arena);

/* True if nothing that matters to routing differs. */
bool fl_worker_spec_eq(const struct fl_worker_spec *a, const struct fl_worker_spec *b);

#endif
