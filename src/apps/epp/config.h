/* SPDX-License-Identifier: Apache-2.0 */
/* Options of `fairlead epp`: one table for flags, environment, --help and docs/options.md (epp.md
 * section 2). */
#ifndef FL_APPS_EPP_CONFIG_H
#define FL_APPS_EPP_CONFIG_H

#include "base/opt.h"
#include "discovery/workers_file.h"
#include "fairlead/selection.h"
#include "net/stream.h"
#include "tokenizer/answer.h"

struct epp_config {
    /* identity and request plane */
    int mode;
    const char *workers, *pool_name, *pool_namespace, *model, *host, *ready_file;
    uint32_t loops, grpc_port, health_port, max_in_flight;
    const char *metrics_port; /* a number, or "any" */
    bool secure;
    const char *tls_cert_file, *tls_key_file;
    uint32_t drain_s;
    int body_mode;
    uint64_t max_request_bytes, max_buffered_bytes, decision_timeout_ms;
    const char *metadata_header;
    bool ignore_nvext;
    const char *lora_names;
    bool check;
    /* tokenizer */
    const char *tokenizer_url;
    int tokenizer_protocol;
    uint64_t tokenizer_timeout_ms;
    uint64_t tokenizer_max_bytes;
    /* selection */
    const char *policy;
    uint32_t block_size, kv_event_port, kv_replay_port, data_parallel_size, indexer_threads;
    uint32_t total_kv_blocks, max_num_batched_tokens;
    bool is_eagle, use_kv_events, track_active_blocks, track_output_blocks, track_prefill_tokens;
    double credit, credit_decay, prefill_scale, request_weight, temperature, host_weight,
        disk_weight;
    uint64_t seed;
    int gap_policy, topology;
    /* observability */
    const char *debug_listen, *debug_token_file;
    int log_level, log_format;

    /* derived by epp_config_read() */
    struct fl_router_config router;
    bool has_metrics;
    uint16_t metrics_port_number;
};

extern const struct fl_opt epp_opts[];

/* Parses and cross-checks. True to go on; false with the exit status. */
bool epp_config_read(struct epp_config *config, int argc, char **argv, int *status);

/* What the workers file falls back to. */
struct fl_workers_defaults epp_worker_defaults(const struct epp_config *config);

#endif
