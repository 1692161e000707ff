/* SPDX-License-Identifier: Apache-2.0 */
/* One gateway rule: a listener address, endpoints and policy (gateway.md 1, 4.4), read from the
 * JSON that REST and rule files carry, checked in the order of 4.5, and written back in the form
 * of 4.7.
 *
 *   JSON --fl_rule_new--> struct fl_rule (immutable) --fl_rule_write--> JSON
 *                              |
 *                              +-- fl_rule_live, one per endpoint fl_endpoint_live: what loops
 * share
 *
 * A rule never changes once it is in a snapshot (rules.h), so every loop reads it without care.
 * What does change lives in the live blocks, which survive a replacement of the rule and are all
 * atomics or under the block's lock.
 *
 * Ownership: a rule and its live blocks are counted by the control loop alone (plain integers);
 * request loops reach them through a snapshot they hold. Nothing here does I/O: binding the VIP and
 * reading eppCaFile are the program's, before it commits a change. */
#ifndef FL_RULES_RULE_H
#define FL_RULES_RULE_H

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "codec/json.h"

#define FL_RULE_MAX_ENDPOINTS 1024 /* gateway.md 4.5.3 */
#define FL_RULE_MAX_ANNOTATIONS 32 /* gateway.md 4.4 */
#define FL_RULE_MAX_SOURCES 1024   /* CIDRs a rule: each new connection is compared with all */

/* ---- REST-shaped results ---- */

/* What a call answers: the body of gateway.md 4.2, or {"result":"Success"} with status 200. */
struct fl_rest_answer {
    int status;
    int code;          /* equals status, but 601..609 with 422 */
    char message[320]; /* class text; the whole text with 422 and malformed JSON */
    char result[320];  /* detail; empty: the member is left out */
};

void fl_rest_success(struct fl_rest_answer *answer);
/* Fills in the class text of `status` (4.2); the format gives the detail. Returns `status`. */
int fl_rest_refuse(struct fl_rest_answer *answer, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* 422 with one of the codes 601..609. */
int fl_rest_violation(struct fl_rest_answer *answer, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Appends the JSON body. 0 or the buffer's error. */
int fl_rest_write(struct fl_buf *out, const struct fl_rest_answer *answer);

/* ---- addresses ---- */

struct fl_rule_ip {
    uint8_t bytes[16]; /* network order; IPv4 in the first four, the rest zero */
    uint8_t family;    /* 4, 6; 0: none */
};

/* A literal, without or with brackets (IPv6). False otherwise. */
bool fl_rule_ip_parse(struct fl_bytes text, struct fl_rule_ip *ip);
bool fl_rule_ip_eq(const struct fl_rule_ip *a, const struct fl_rule_ip *b);

struct fl_rule_source {
    struct fl_rule_ip ip;
    uint8_t bits;
    struct fl_bytes text;
};

/* ---- what loops share ---- */

/* Shown only; written by their own loop. */
struct fl_endpoint_count {
    alignas(64) _Atomic uint64_t requests;
    _Atomic uint64_t bytes;
};

/* One endpoint of one rule, however often the rule is replaced. */
struct fl_endpoint_live {
    uint32_t refs;  /* control loop */
    uint32_t loops; /* of counts; set at init */
    /* health: written by the control loop (probes) and by whoever connects */
    alignas(64) _Atomic bool is_inactive;
    _Atomic uint32_t failures;       /* consecutive connect failures */
    _Atomic uint64_t avoid_until_ms; /* last choice until then (gateway.md 11.4) */
    _Atomic uint64_t open_until_ms;  /* breaker; meaningful with failures >= 5 (11.3) */
    /* load: under the rule's lock where a selector compares it */
    alignas(64) _Atomic uint32_t in_flight;
    int64_t wrr_current;               /* smooth WRR's c; under the rule's lock */
    struct fl_endpoint_count counts[]; /* one per loop */
};

/* One rule, however often it is replaced (gateway.md 5.1.6). A cache line each group. */
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): a cache line each group is the point
struct fl_rule_live {
    uint32_t refs; /* control loop */
    alignas(64) _Atomic uint64_t round_robin;
    alignas(64) pthread_mutex_t lock;         /* selectors 2 and 4: choose and book in one step */
    alignas(64) _Atomic uint64_t connections; /* of clients, for connectionLimit and stats */
    _Atomic uint64_t requests;                /* in flight, for drain */
    _Atomic uint64_t total_connections, bytes_in, bytes_out;
    /* Until then some endpoint may be last choice or behind a breaker: selectors look closer. */
    alignas(64) _Atomic uint64_t careful_until_ms;
    _Atomic uint32_t inactive; /* endpoints that are */
};

/* ---- the rule ---- */

enum fl_path_match { FL_PATH_DISABLED, FL_PATH_PREFIX, FL_PATH_EXACT };
enum fl_epp_failure { FL_EPP_FAIL_CLOSE, FL_EPP_FAIL_OPEN };
enum fl_epp_body { FL_EPP_BODY_EDGES, FL_EPP_BODY_ALL, FL_EPP_BODY_FIRST, FL_EPP_BODY_NONE };

struct fl_rule_endpoint {
    struct fl_rule_ip ip;
    struct fl_bytes address; /* "ip:port" or "[ip]:port", canonical: what an EPP names */
    struct fl_bytes ip_text; /* canonical, without brackets */
    uint64_t port, weight;
    bool backup;
    /* of probes, or stored */
    struct fl_bytes monitor_address, http_method, url_path, expected_codes, http_version, domain,
        subnet, role;
    uint64_t nixl_port;
    struct fl_endpoint_live *live;
};

struct fl_rule_pair {
    struct fl_bytes name, value;
};

/* Numbers are uint64_t, words are indices into their lists, so that one table of fields (fields.c)
 * can reach all of them. Defaults are filled in; strings have a NUL behind their end. */
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): grouped by meaning; rules are few
struct fl_rule {
    uint32_t refs; /* control loop */
    struct fl_arena arena;
    struct fl_rule_live *live;
    uint64_t updated_unix_ms;

    /* key */
    struct fl_bytes host, path_prefix, model_name, external_ip;
    uint64_t path_match_mode; /* enum fl_path_match */
    uint64_t port, port_max, protocol, block;
    struct fl_rule_ip vip;
    struct fl_bytes match_host; /* host without port and trailing dot, lower case */
    struct fl_bytes key;        /* all of it, canonical: equal keys are the same rule */

    struct fl_bytes id, name;
    uint64_t mode, sel, security, backend_protocol, oper;
    bool admin_state_up;

    /* EPP; all zero or default without epp_endpoint */
    struct fl_bytes epp_endpoint, epp_failure_text, epp_ca_file, epp_server_name;
    struct fl_bytes epp_host;                             /* of epp_endpoint, without brackets */
    uint64_t epp_port, epp_timeout_ms, epp_response_body; /* enum fl_epp_body */
    enum fl_epp_failure epp_failure;
    bool epp_plaintext;

    /* in-process picker; unset without picker */
    uint64_t picker; /* 1: embedded */
    struct fl_bytes picker_model, picker_tokenizer_url, picker_policy;
    uint64_t picker_tokenizer_protocol, picker_tokenizer_timeout_ms, picker_block_size,
        picker_kv_event_port, picker_kv_replay_port, picker_max_batched_tokens, picker_failure_mode,
        picker_timeout_ms;

    /* health */
    bool monitor;
    uint64_t probe_type, probe_port, probe_timeout_s, probe_retries;
    struct fl_bytes probe_request, probe_response;

    /* time and limits, resolved: 0 has become the default */
    uint64_t inactive_timeout_s, connect_timeout_ms, inspect_timeout_ms, max_stream_s;
    uint64_t data_timeout_ms; /* 0: inactive_timeout_s */
    uint64_t keepalive_s, connection_limit;
    bool cb_enable;

    /* selectors */
    struct fl_bytes session_header;
    uint64_t chwbl_level, chwbl_flags, chwbl_load_factor, chwbl_replication;
    bool chwbl_cache_salt;

    /* stored, returned, without effect */
    bool sse_mode, managed, bgp, snat, egress, proxy_protocol, pd_disagg;
    uint64_t kv_exact_mode;
    struct fl_bytes project_id, private_ip, trace_type; /* trace_type: raw JSON */
    struct fl_rule_pair *annotations;                   /* sorted by name */
    uint32_t annotation_count;

    struct fl_rule_source *sources;
    uint32_t source_count;

    struct fl_rule_endpoint *endpoints;
    uint32_t endpoint_count;
    /* of endpoints, in list order: weight > 0 and not backup; weight > 0 and backup */
    uint32_t *primaries, *backups;
    uint32_t primary_count, backup_count;
};

/* Reads and checks one entry (steps 1 to 6 of 4.5). The rule has one reference and no live blocks
 * yet (rules.h gives them). NULL with the refusal in `answer`. `now_unix_ms` becomes
 * updated_unix_ms. */
struct fl_rule *fl_rule_new(struct fl_bytes json, uint64_t now_unix_ms,
                            struct fl_rest_answer *answer);
/* The same from a parsed node (one entry of a rule file's list). */
struct fl_rule *fl_rule_new_from(const struct fl_json_node *entry, uint64_t now_unix_ms,
                                 struct fl_rest_answer *answer);
/* Reads a rule file: one entry, an array of entries, or {"lbAttr":[...]}. *rules (freed by the
 * caller with fl_free()) are *count rules, each with one reference. Two entries of one key are
 * refused. 0, or the status in `answer`, whose text names the entry by its position. */
int fl_rule_read_list(struct fl_bytes json, uint64_t now_unix_ms, struct fl_rule ***rules,
                      uint32_t *count, struct fl_rest_answer *answer);

/* Before a rule is published, after its endpoints were changed: takes `count` endpoints at
 * `endpoints` (in the rule's arena) and sorts them into primaries and backups. */
void fl_rule_set_endpoints(struct fl_rule *rule, struct fl_rule_endpoint *endpoints,
                           uint32_t count);
/* A copy of `rule` with memory of its own and no live blocks: what attach and detach start from. */
struct fl_rule *fl_rule_copy(const struct fl_rule *rule, uint64_t now_unix_ms);
/* A copy of `endpoint` in the arena of `rule`, with the same live block (not counted). */
struct fl_rule_endpoint fl_rule_copy_endpoint(struct fl_rule *rule,
                                              const struct fl_rule_endpoint *endpoint);
/* Position of the endpoint with that address and port, or UINT32_MAX. */
uint32_t fl_rule_index_of(const struct fl_rule *rule, const struct fl_rule_endpoint *endpoint);
bool fl_rule_endpoint_eq(const struct fl_rule_endpoint *a, const struct fl_rule_endpoint *b);

/* Host of a request or rule without port and trailing dot; a view. */
struct fl_bytes fl_rule_bare_host(struct fl_bytes host);

/* Control loop. */
void fl_rule_ref(struct fl_rule *rule);
/* NULL allowed. */
void fl_rule_unref(struct fl_rule *rule);

static inline bool fl_rule_has_epp(const struct fl_rule *rule)
{
    return rule->epp_endpoint.n > 0;
}

/* True if nothing that a client can set differs: defaults spelled out, order of endpoints, an `id`
 * left out in `b`, and the live parts do not count (4.6). */
bool fl_rule_eq(const struct fl_rule *a, const struct fl_rule *b);

/* The output entry of 4.7. `with_live`: with state and counter of the endpoints (REST); without for
 * files. */
void fl_rule_write(struct fl_json_writer *writer, const struct fl_rule *rule, bool with_live);

/* `GET .../status` and `.../stats`. */
void fl_rule_write_status(struct fl_json_writer *writer, const struct fl_rule *rule);
void fl_rule_write_stats(struct fl_json_writer *writer, const struct fl_rule *rule);

/* 5.5: true if the peer may connect. */
bool fl_rule_allows(const struct fl_rule *rule, const struct fl_rule_ip *peer);

/* Splits `host:port` as 4.5.5 wants it: IPv4, bracketed IPv6 or DNS name, port 1..65535. */
bool fl_rule_split_host_port(struct fl_bytes text, struct fl_bytes *host, uint16_t *port);

/* ---- live blocks; control loop ---- */

struct fl_rule_live *fl_rule_live_new(void);
void fl_rule_live_unref(struct fl_rule_live *live);
struct fl_endpoint_live *fl_endpoint_live_new(uint32_t loops);
void fl_endpoint_live_unref(struct fl_endpoint_live *live);
/* Sum over loops. */
void fl_endpoint_counts(const struct fl_endpoint_live *live, uint64_t *requests, uint64_t *bytes);

#endif
