/* SPDX-License-Identifier: Apache-2.0 */
#include "apps/epp/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/app.h"
#include "base/log.h"
#include "net/limits.h"
#include "selection/policy.h"

static const char *const modes[] = {"standalone", "dynamo", NULL};
static const char *const body_modes[] = {"full-duplex", "buffered", NULL};
static const char *const gap_policies[] = {"clear", "keep", NULL};
static const char *const topologies[] = {"aggregated", "disaggregated", NULL};

#define FIELD(field) .off = offsetof(struct epp_config, field)

const struct fl_opt epp_opts[] = {
    {.section = "Identity and listeners",
     .name = "workers",
     .env = "FAIRLEAD_EPP_WORKERS",
     .type = FL_OPT_STRING,
     FIELD(workers),
     .arg = "FILE",
     .help = "Engines named in a YAML or JSON file, watched and reloaded; replaces Kubernetes."},
    {.name = "mode",
     .env = "DYN_EPP_MODE",
     .type = FL_OPT_ENUM,
     FIELD(mode),
     .words = modes,
     .def = "standalone",
     .help = "Only standalone is served."},
    {.name = "inference-pool-name",
     .alias = "pool-name",
     .env = "DYN_EPP_INFERENCE_POOL_NAME",
     .type = FL_OPT_STRING,
     FIELD(pool_name),
     .help = "InferencePool served; with --workers only a name for metrics."},
    {.name = "pool-namespace",
     .env = "POD_NAMESPACE",
     .env_alias = "NAMESPACE",
     .type = FL_OPT_STRING,
     FIELD(pool_namespace),
     .help = "Namespace of the pool."},
    {.name = "model-name",
     .env = "DYN_MODEL_NAME",
     .type = FL_OPT_STRING,
     FIELD(model),
     .help = "The model served here, as requests name it. Required."},
    {.name = "lora-names",
     .env = "FAIRLEAD_EPP_LORA_NAMES",
     .type = FL_OPT_STRING,
     FIELD(lora_names),
     .def = "",
     .arg = "A,B",
     .help = "Adapters that every worker serves, beside those of the workers file."},
    {.name = "host",
     .env = "FAIRLEAD_EPP_HOST",
     .type = FL_OPT_STRING,
     FIELD(host),
     .def = "0.0.0.0",
     .arg = "ADDR",
     .help = "Address of the ext_proc, health and metrics listeners."},
    {.name = "grpc-port",
     .env = "FAIRLEAD_EPP_GRPC_PORT",
     .type = FL_OPT_U32,
     FIELD(grpc_port),
     .def = "9002",
     .max = 65535,
     .help = "ext_proc and health; 0 takes a free port."},
    {.name = "grpc-health-port",
     .env = "FAIRLEAD_EPP_GRPC_HEALTH_PORT",
     .type = FL_OPT_U32,
     FIELD(health_port),
     .def = "9003",
     .max = 65535,
     .help = "gRPC health service; 0 takes a free port."},
    {.name = "metrics-port",
     .env = "DYN_EPP_METRICS_PORT",
     .type = FL_OPT_STRING,
     FIELD(metrics_port),
     .def = "9090",
     .arg = "PORT",
     .help = "Prometheus metrics; 0 switches them off, the word any takes a free port."},
    {.name = "secure-serving",
     .env = "DYN_SECURE_SERVING",
     .type = FL_OPT_BOOL,
     FIELD(secure),
     .def = "true",
     .help = "TLS on the ext_proc port, with a self-signed certificate unless files are given."},
    {.name = "tls-cert-file",
     .env = "FAIRLEAD_EPP_TLS_CERT_FILE",
     .type = FL_OPT_STRING,
     FIELD(tls_cert_file),
     .arg = "FILE",
     .help = "PEM certificate chain; with --tls-key-file. Reloaded on SIGHUP."},
    {.name = "tls-key-file",
     .env = "FAIRLEAD_EPP_TLS_KEY_FILE",
     .type = FL_OPT_STRING,
     FIELD(tls_key_file),
     .arg = "FILE",
     .help = "PEM private key; with --tls-cert-file."},
    {.name = "loops",
     .env = "FAIRLEAD_EPP_LOOPS",
     .type = FL_OPT_U32,
     FIELD(loops),
     .def = "0",
     .max = 256,
     .help =
         "Request loops (threads); 0 means the smaller of the affinity mask and the cgroup quota."},
    {.name = "ready-file",
     .env = "FAIRLEAD_EPP_READY_FILE",
     .type = FL_OPT_STRING,
     FIELD(ready_file),
     .arg = "FILE",
     .help = "Written when ready, with the pid and the address of each listener."},
    {.name = "drain-secs",
     .env = "FAIRLEAD_EPP_DRAIN_SECS",
     .type = FL_OPT_U32,
     FIELD(drain_s),
     .def = "25",
     .max = 3600,
     .help = "How long streams may go on after SIGTERM."},
    {.name = "check",
     .type = FL_OPT_BOOL,
     FIELD(check),
     .help = "Validates options, environment and files, opens no socket, and exits: 0 valid, 1 a "
             "file is wrong, 2 an "
             "option is."},

    {.section = "Requests",
     .name = "body-mode",
     .env = "FAIRLEAD_EPP_BODY_MODE",
     .type = FL_OPT_ENUM,
     FIELD(body_mode),
     .words = body_modes,
     .def = "full-duplex",
     .help = "Body mode of streams that carry no protocol_config."},
    {.name = "max-inflight-requests",
     .env = "DYN_EPP_MAX_INFLIGHT_REQUESTS",
     .type = FL_OPT_U32,
     FIELD(max_in_flight),
     .def = "1024",
     .min = 1,
     .max = 1048576,
     .help = "Picks in flight; one more is answered 503 epp_overloaded."},
    {.name = "max-request-bytes",
     .env = "FAIRLEAD_EPP_MAX_REQUEST_BYTES",
     .type = FL_OPT_BYTES,
     FIELD(max_request_bytes),
     .def = "10485760",
     .min = 1024,
     .max = UINT64_C(1) << 30,
     .help = "Longest request body; a longer one is answered 413."},
    {.name = "max-buffered-bytes",
     .env = "FAIRLEAD_EPP_MAX_BUFFERED_BYTES",
     .type = FL_OPT_BYTES,
     FIELD(max_buffered_bytes),
     .def = "0",
     .max = UINT64_C(1) << 40,
     .help = "All bodies held at once; 0 means the smaller of 1 GiB and half the cgroup's memory."},
    {.name = "decision-timeout-ms",
     .env = "FAIRLEAD_EPP_DECISION_TIMEOUT_MS",
     .type = FL_OPT_U64,
     FIELD(decision_timeout_ms),
     .def = "0",
     .max = 3600000,
     .help = "Longest whole pick; 0 means each stage's own limit."},
    {.name = "metadata-header",
     .env = "DYN_METADATA_HEADER",
     .type = FL_OPT_STRING,
     FIELD(metadata_header),
     .def = "x-dynamo-meta-",
     .help = "Prefix of request headers that are request metadata."},
    {.name = "disable-frontend-nvext",
     .env = "DYN_DISABLE_FRONTEND_NVEXT",
     .type = FL_OPT_BOOL,
     FIELD(ignore_nvext),
     .help = "Ignores the body's nvext object."},

    {.section = "Tokenizer",
     .name = "tokenizer-protocol",
     .env = "DYN_EPP_TOKENIZER_PROTOCOL",
     .type = FL_OPT_ENUM,
     FIELD(tokenizer_protocol),
     .words = fl_tokenizer_protocols,
     .def = "none",
     .help = "Render service's protocol; none makes every pick load-only."},
    {.name = "tokenizer-service-url",
     .env = "DYN_EPP_TOKENIZER_SERVICE_URL",
     .type = FL_OPT_STRING,
     FIELD(tokenizer_url),
     .arg = "URL",
     .help = "Base URL of the render service."},
    {.name = "tokenization-timeout-ms",
     .env = "DYN_EPP_TOKENIZATION_TIMEOUT_MS",
     .type = FL_OPT_U64,
     FIELD(tokenizer_timeout_ms),
     .def = "5000",
     .min = 1,
     .max = 3600000,
     .help = "One limit over the whole exchange."},
    {.name = "tokenizer-max-response-bytes",
     .env = "DYN_EPP_TOKENIZER_MAX_RESPONSE_BYTES",
     .type = FL_OPT_U64,
     FIELD(tokenizer_max_bytes),
     .def = "16777216",
     .min = 1,
     .max = UINT64_C(1) << 30,
     .help = "Longest answer of the render service."},

    {.section = "Selection",
     .name = "policy",
     .env = "FAIRLEAD_POLICY",
     .type = FL_OPT_STRING,
     FIELD(policy),
     .help = "kv-cost (the default), load-only, round-robin or random."},
    {.name = "kv-cache-block-size",
     .env = "DYN_KV_CACHE_BLOCK_SIZE",
     .type = FL_OPT_U32,
     FIELD(block_size),
     .def = "0",
     .max = 65536,
     .help = "Tokens a KV block, where the workers file does not say."},
    {.name = "kv-event-port",
     .env = "DYN_EPP_KV_EVENT_PORT",
     .type = FL_OPT_U32,
     FIELD(kv_event_port),
     .def = "5557",
     .min = 1,
     .max = 65535,
     .help = "Port of a worker's KV events, where the workers file does not say."},
    {.name = "kv-event-replay-port",
     .env = "DYN_EPP_KV_EVENT_REPLAY_PORT",
     .type = FL_OPT_U32,
     FIELD(kv_replay_port),
     .def = "0",
     .max = 65535,
     .help = "Port of a worker's replay socket; 0 means none."},
    {.name = "data-parallel-size",
     .env = "DYN_EPP_DATA_PARALLEL_SIZE",
     .type = FL_OPT_U32,
     FIELD(data_parallel_size),
     .def = "1",
     .min = 1,
     .max = 1024,
     .help = "Ranks of a worker; above 1 is refused for now."},
    {.name = "total-kv-blocks",
     .env = "DYN_EPP_TOTAL_KV_BLOCKS",
     .type = FL_OPT_U32,
     FIELD(total_kv_blocks),
     .def = "0",
     .max = UINT32_MAX,
     .help = "KV blocks of a worker; 0 means unknown."},
    {.name = "max-num-batched-tokens",
     .env = "DYN_EPP_MAX_NUM_BATCHED_TOKENS",
     .type = FL_OPT_U32,
     FIELD(max_num_batched_tokens),
     .def = "0",
     .max = UINT32_MAX,
     .help = "Prefill token budget of a worker; 0 means unknown."},
    {.name = "is-eagle",
     .env = "DYN_EPP_IS_EAGLE",
     .type = FL_OPT_BOOL,
     FIELD(is_eagle),
     .help = "Engines decode speculatively with EAGLE, which changes block hashing."},
    {.name = "use-kv-events",
     .env = "DYN_USE_KV_EVENTS",
     .env_alias = "DYN_ROUTER_USE_KV_EVENTS",
     .type = FL_OPT_BOOL,
     FIELD(use_kv_events),
     .def = "true",
     .help = "Subscribes to the engines' KV events; off means load-aware only."},
    {.name = "overlap-score-credit",
     .env = "DYN_ROUTER_OVERLAP_SCORE_CREDIT",
     .env_alias = "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT",
     .type = FL_OPT_F64,
     FIELD(credit),
     .def = "1",
     .fmax = 1e9,
     .help = "Weight of cached blocks in kv-cost."},
    {.name = "overlap-score-credit-decay",
     .env = "DYN_ROUTER_OVERLAP_SCORE_CREDIT_DECAY",
     .env_alias = "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY",
     .type = FL_OPT_F64,
     FIELD(credit_decay),
     .def = "0",
     .fmax = 1e9,
     .help = "How fast the credit falls with a worker's load."},
    {.name = "prefill-load-scale",
     .env = "DYN_ROUTER_PREFILL_LOAD_SCALE",
     .type = FL_OPT_F64,
     FIELD(prefill_scale),
     .def = "1",
     .fmax = 1e9,
     .help = "Weight of queued prefill in kv-cost."},
    {.name = "decode-active-request-weight",
     .env = "DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT",
     .type = FL_OPT_F64,
     FIELD(request_weight),
     .def = "0",
     .fmax = 1e9,
     .help = "Weight of open requests in kv-cost."},
    {.name = "host-cache-hit-weight",
     .env = "DYN_ROUTER_HOST_CACHE_HIT_WEIGHT",
     .type = FL_OPT_F64,
     FIELD(host_weight),
     .def = "0.75",
     .fmax = 1,
     .help = "Weight of a block found in host memory."},
    {.name = "disk-cache-hit-weight",
     .env = "DYN_ROUTER_DISK_CACHE_HIT_WEIGHT",
     .type = FL_OPT_F64,
     FIELD(disk_weight),
     .def = "0.25",
     .fmax = 1,
     .help = "Weight of a block found on disk."},
    {.name = "temperature",
     .env = "DYN_ROUTER_TEMPERATURE",
     .type = FL_OPT_F64,
     FIELD(temperature),
     .def = "0",
     .fmax = 1e9,
     .help = "0 takes the least cost; above, costs are sampled by softmax."},
    {.name = "track-active-blocks",
     .env = "DYN_ROUTER_TRACK_ACTIVE_BLOCKS",
     .type = FL_OPT_BOOL,
     FIELD(track_active_blocks),
     .def = "true",
     .help = "Counts the blocks that open requests hold."},
    {.name = "track-output-blocks",
     .env = "DYN_ROUTER_TRACK_OUTPUT_BLOCKS",
     .type = FL_OPT_BOOL,
     FIELD(track_output_blocks),
     .help = "Counts generated blocks too."},
    {.name = "track-prefill-tokens",
     .env = "DYN_ROUTER_TRACK_PREFILL_TOKENS",
     .type = FL_OPT_BOOL,
     FIELD(track_prefill_tokens),
     .def = "true",
     .help = "Counts queued prefill tokens."},
    {.name = "gap-policy",
     .env = "FAIRLEAD_GAP_POLICY",
     .type = FL_OPT_ENUM,
     FIELD(gap_policy),
     .words = gap_policies,
     .def = "clear",
     .help = "What a gap in a worker's events does to what is known of its cache."},
    {.name = "seed",
     .env = "FAIRLEAD_SEED",
     .type = FL_OPT_U64,
     FIELD(seed),
     .max = UINT64_MAX,
     .help = "Seed of the tie generator; unset means random."},
    {.name = "topology-mode",
     .env = "DYN_EPP_TOPOLOGY_MODE",
     .type = FL_OPT_ENUM,
     FIELD(topology),
     .words = topologies,
     .def = "aggregated",
     .help = "Only aggregated is served in this version."},
    {.name = "selection-indexer-threads",
     .env = "DYN_EPP_SELECTION_INDEXER_THREADS",
     .type = FL_OPT_U32,
     FIELD(indexer_threads),
     .def = "4",
     .min = 1,
     .max = 1024,
     .help = "Unused: one event thread writes the index. Parsed and range-checked for existing "
             "manifests."},

    {.section = "Observability",
     .name = "debug-listen",
     .env = "FAIRLEAD_EPP_DEBUG_LISTEN",
     .type = FL_OPT_STRING,
     FIELD(debug_listen),
     .def = "127.0.0.1:9094",
     .arg = "ADDR",
     .help = "Why this worker: /debug/picks and /debug/explain; the word off."},
    {.name = "debug-token-file",
     .env = "FAIRLEAD_EPP_DEBUG_TOKEN_FILE",
     .type = FL_OPT_STRING,
     FIELD(debug_token_file),
     .arg = "FILE",
     .help = "First line is the bearer token callers of the debug listener must bring."},
    {.name = "log-level",
     .env = "FAIRLEAD_LOG",
     .env_alias = "RUST_LOG",
     .type = FL_OPT_ENUM,
     FIELD(log_level),
     .words = fl_app_log_levels,
     .def = "info",
     .help = "Least severe level that is logged."},
    {.name = "log-format",
     .env = "FAIRLEAD_LOG_FORMAT",
     .type = FL_OPT_ENUM,
     FIELD(log_format),
     .words = fl_app_log_formats,
     .def = "auto",
     .help = "auto is text on a terminal and JSON elsewhere."},
    FL_APP_ACTION_OPTS,
    {0},
};

static const struct fl_opt *opt_of(const char *name)
{
    for (const struct fl_opt *opt = epp_opts; opt->name != NULL; opt++) {
        if (strcmp(opt->name, name) == 0)
            return opt;
    }
    abort();
}

static bool is_given(const struct fl_opt_result *parsed, const char *name)
{
    return fl_opt_is_given(parsed, epp_opts, opt_of(name));
}

static int check_policy(struct epp_config *config, const struct fl_opt_result *parsed,
                        struct fl_error *err)
{
    static const char *const weights[] = {"overlap-score-credit",
                                          "overlap-score-credit-decay",
                                          "prefill-load-scale",
                                          "decode-active-request-weight",
                                          "host-cache-hit-weight",
                                          "disk-cache-hit-weight",
                                          "temperature"};
    if (config->policy == NULL)
        config->policy = "kv-cost";
    if (fl_policy_find(config->policy) == NULL)
        return fl_error_set(err, FL_ECONFIG,
                            "--policy %s: not kv-cost, load-only, round-robin or random",
                            config->policy);
    for (size_t i = 0; i < FL_ARRAY_LEN(weights); i++) {
        if (is_given(parsed, weights[i]) && strcmp(config->policy, "kv-cost") != 0)
            fl_log(FL_LOG_INFO, "option is unused", "option=%s policy=%s", weights[i],
                   config->policy);
    }
    return 0;
}

static int check_requirements(struct epp_config *config, struct fl_error *err)
{
    if (config->mode == 1)
        return fl_error_set(err, FL_ECONFIG, "DYN_EPP_MODE=dynamo: not supported, only standalone");
    if (config->topology == 1)
        return fl_error_set(err, FL_ECONFIG,
                            "DYN_EPP_TOPOLOGY_MODE=disaggregated: not supported in this version");
    if (config->workers == NULL && config->pool_name == NULL)
        return fl_error_set(err, FL_ECONFIG,
                            "neither --workers nor --inference-pool-name "
                            "(DYN_EPP_INFERENCE_POOL_NAME) is given");
    if (config->workers == NULL)
        return fl_error_set(err, FL_ECONFIG,
                            "--inference-pool-name %s: pools are not watched in this version; "
                            "name the engines with --workers",
                            config->pool_name);
    if (config->model == NULL)
        return fl_error_set(err, FL_ECONFIG, "--model-name (DYN_MODEL_NAME) is required");
    if (config->data_parallel_size > 1)
        return fl_error_set(err, FL_ECONFIG,
                            "DYN_EPP_DATA_PARALLEL_SIZE=%u: ranks above 0 cannot be addressed yet; "
                            "set 1, or run one endpoint per rank",
                            config->data_parallel_size);
    if (config->tokenizer_protocol != FL_TOKENIZER_NONE && config->tokenizer_url == NULL)
        return fl_error_set(err, FL_ECONFIG,
                            "--tokenizer-service-url (DYN_EPP_TOKENIZER_SERVICE_URL) is required "
                            "with the protocol %s",
                            fl_tokenizer_protocols[config->tokenizer_protocol]);
    if ((config->tls_cert_file == NULL) != (config->tls_key_file == NULL))
        return fl_error_set(err, FL_ECONFIG,
                            "--tls-cert-file and --tls-key-file: give both or neither");
    return 0;
}

/* The smaller of 1 GiB and half the cgroup's memory (epp.md 2.1). */
static uint64_t default_buffer_bytes(const struct fl_limits *limits)
{
    uint64_t half = limits->memory_bytes / 2;
    return half < UINT64_C(1) << 30 ? half : UINT64_C(1) << 30;
}

static int derive(struct epp_config *config, const struct fl_opt_result *parsed,
                  struct fl_error *err)
{
    struct fl_limits limits;
    uint64_t port = 0;
    fl_limits_read("", &limits);
    bool is_any = strcmp(config->metrics_port, "any") == 0;
    if (!is_any && !fl_bytes_to_u64(fl_bytes_of(config->metrics_port), 65535, &port))
        return fl_error_set(err, FL_ECONFIG, "--metrics-port %s: neither 0..65535 nor the word any",
                            config->metrics_port);
    config->has_metrics = is_any || port != 0;
    config->metrics_port_number = (uint16_t)port;
    if (config->max_buffered_bytes == 0)
        config->max_buffered_bytes = default_buffer_bytes(&limits);
    if (config->max_buffered_bytes < 2 * config->max_request_bytes)
        return fl_error_set(err, FL_ECONFIG,
                            "--max-buffered-bytes is less than twice --max-request-bytes");
    if (config->loops == 0)
        config->loops = fl_limits_loops(&limits);
    fl_router_config_init(&config->router);
    config->router.policy = config->policy;
    config->router.overlap_score_credit = config->credit;
    config->router.overlap_score_credit_decay = config->credit_decay;
    config->router.prefill_load_scale = config->prefill_scale;
    config->router.decode_active_request_weight = config->request_weight;
    config->router.host_cache_hit_weight = config->host_weight;
    config->router.disk_cache_hit_weight = config->disk_weight;
    config->router.router_temperature = config->temperature;
    config->router.use_kv_events = config->use_kv_events;
    config->router.track_active_blocks = config->track_active_blocks;
    config->router.track_output_blocks = config->track_output_blocks;
    config->router.track_prefill_tokens = config->track_prefill_tokens;
    config->router.gap_keep = config->gap_policy == 1;
    config->router.seed = (struct fl_maybe_u64){is_given(parsed, "seed"), config->seed};
    config->router.holder = FL_HOLDER_STREAM;
    if (is_given(parsed, "selection-indexer-threads"))
        fl_log(
            FL_LOG_INFO, "option is unused",
            "option=DYN_EPP_SELECTION_INDEXER_THREADS why=\"one event thread writes the index\"");
    return 0;
}

bool epp_config_read(struct epp_config *config, int argc, char **argv, int *status)
{
    struct fl_opt_result parsed = {0};
    struct fl_error err = {0};
    if (!fl_app_options(epp_opts, config, argc, argv, "fairlead epp --workers FILE [OPTIONS]",
                        "Endpoint picker: answers a proxy's ext_proc questions with the worker "
                        "that already holds "
                        "the prompt's prefix and has room.",
                        &parsed, status))
        return false;
    fl_log_set_level((enum fl_log_level)config->log_level);
    fl_log_set_format((enum fl_log_format)config->log_format);
    int rc = check_requirements(config, &err);
    if (rc == 0)
        rc = check_policy(config, &parsed, &err);
    if (rc == 0)
        rc = derive(config, &parsed, &err);
    if (rc < 0) {
        fprintf(stderr, "fairlead epp: %s\n", err.text);
        fl_opt_fini(epp_opts, config);
        *status = 2;
        return false;
    }
    return true;
}

struct fl_workers_defaults epp_worker_defaults(const struct epp_config *config)
{
    return (struct fl_workers_defaults){
        .model = fl_bytes_of(config->model),
        .block_size = config->block_size,
        .kv_event_port = config->use_kv_events ? (uint16_t)config->kv_event_port : 0,
        .kv_replay_port = (uint16_t)config->kv_replay_port,
        .max_num_batched_tokens = config->max_num_batched_tokens,
        .total_kv_blocks = config->total_kv_blocks,
        .is_eagle = config->is_eagle,
    };
}
