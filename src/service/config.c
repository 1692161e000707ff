/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration of a service: defaults, roles, environment (selection.md 16), validation. */
#include "service/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "selection/policy.h"

void fl_router_config_init(struct fl_router_config *config)
{
    *config = (struct fl_router_config){
        .overlap_score_credit = 1,
        .prefill_load_scale = 1,
        .host_cache_hit_weight = 0.75,
        .disk_cache_hit_weight = 0.25,
        .use_kv_events = true,
        .track_active_blocks = true,
        .assume_kv_reuse = true,
        .track_prefill_tokens = true,
        .active_request_expiry_s = 300,
        .lease_s = 120,
        .expiry_refresh = true,
    };
}

void fl_router_config_apply_role(struct fl_router_config *config, enum fl_role role)
{
    if (role == FL_ROLE_PREFILL) {
        config->track_active_blocks = false;
    } else if (role == FL_ROLE_DECODE) {
        config->track_prefill_tokens = false;
        config->overlap_score_credit = 0;
        config->assume_kv_reuse = false;
    }
}

const char *fl_role_name(enum fl_role role)
{
    static const char *const names[FL_ROLE_COUNT] = {
        [FL_ROLE_AGGREGATED] = "aggregated",
        [FL_ROLE_PREFILL] = "prefill",
        [FL_ROLE_DECODE] = "decode",
    };
    return names[role];
}

/* ---- environment ---- */

enum kind { NUMBER, FLAG, POLICY, SECONDS, MAYBE_NUMBER, MAYBE_U64, GAP, UNUSED, WEIGHT };

struct row {
    const char *name, *alias; /* both given and different: an error */
    enum kind kind;
    size_t off;
    double min, max;
};

#define OFF(field) offsetof(struct fl_router_config, field)
static const struct row rows[] = {
    {"DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT", "DYN_ROUTER_OVERLAP_SCORE_CREDIT", NUMBER,
     OFF(overlap_score_credit), 0, INFINITY},
    {"DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY", "DYN_ROUTER_OVERLAP_SCORE_CREDIT_DECAY", NUMBER,
     OFF(overlap_score_credit_decay), 0, INFINITY},
    {"DYN_ROUTER_PREFILL_LOAD_SCALE", NULL, NUMBER, OFF(prefill_load_scale), 0, INFINITY},
    {"DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT", NULL, NUMBER, OFF(decode_active_request_weight), 0,
     INFINITY},
    {"DYN_ROUTER_HOST_CACHE_HIT_WEIGHT", NULL, NUMBER, OFF(host_cache_hit_weight), 0, 1},
    {"DYN_ROUTER_DISK_CACHE_HIT_WEIGHT", NULL, NUMBER, OFF(disk_cache_hit_weight), 0, 1},
    {"DYN_ROUTER_TEMPERATURE", NULL, NUMBER, OFF(router_temperature), 0, INFINITY},
    {"DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT", "DYN_OVERLAP_SCORE_WEIGHT", WEIGHT, 0, 0, INFINITY},
    {"DYN_ROUTER_USE_KV_EVENTS", "DYN_USE_KV_EVENTS", FLAG, OFF(use_kv_events), 0, 0},
    {"DYN_ROUTER_TRACK_ACTIVE_BLOCKS", NULL, FLAG, OFF(track_active_blocks), 0, 0},
    {"DYN_ROUTER_ASSUME_KV_REUSE", NULL, FLAG, OFF(assume_kv_reuse), 0, 0},
    {"DYN_ROUTER_TRACK_OUTPUT_BLOCKS", NULL, FLAG, OFF(track_output_blocks), 0, 0},
    {"DYN_ROUTER_TRACK_PREFILL_TOKENS", NULL, FLAG, OFF(track_prefill_tokens), 0, 0},
    {"DYN_ROUTER_QUEUE_THRESHOLD", NULL, MAYBE_NUMBER, OFF(queue_threshold), 0, INFINITY},
    {"DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS", NULL, SECONDS, OFF(active_request_expiry_s), 0, 0},
    {"FAIRLEAD_POLICY", NULL, POLICY, OFF(policy), 0, 0},
    {"FAIRLEAD_GAP_POLICY", NULL, GAP, OFF(gap_keep), 0, 0},
    {"FAIRLEAD_EXPIRY_REFRESH", NULL, FLAG, OFF(expiry_refresh), 0, 0},
    {"FAIRLEAD_SEED", NULL, MAYBE_U64, OFF(seed), 0, 0},
    /* Known, without effect here: rows marked L, threads that do not exist, what waits for the
       queue. */
    {"DYN_SHARED_CACHE_MULTIPLIER", NULL, UNUSED, 0, 0, 0},
    {"DYN_SHARED_CACHE_TYPE", NULL, UNUSED, 0, 0, 0},
    {"DYN_ROUTER_EVENT_THREADS", NULL, UNUSED, 0, 0, 0},
    {"DYN_ROUTER_PREFILL_LOAD_MODEL", NULL, UNUSED, 0, 0, 0},
    {"DYN_ROUTER_WORKER_SELECTION_POLICY", NULL, UNUSED, 0, 0, 0},
    {"DYN_ROUTER_PREDICTED_TTL_SECS", NULL, UNUSED, 0, 0, 0},
    {"DYN_ROUTER_TTL_SECS", NULL, UNUSED, 0, 0, 0},
    {"DYN_ROUTER_APPROXIMATE_CACHE_POLICY", NULL, UNUSED, 0, 0, 0},
    {"DYN_ROUTER_OVERLAP_REFRESH_AFTER_SECS", NULL, UNUSED, 0, 0, 0},
    {"DYN_ROUTER_SESSION_AFFINITY_TTL_SECS", NULL, UNUSED, 0, 0, 0},
    {"DYN_ROUTER_REPLICA_SYNC", NULL, UNUSED, 0, 0, 0},
    {"DYN_USE_REMOTE_INDEXER", NULL, UNUSED, 0, 0, 0},
    {"DYN_SERVE_INDEXER", NULL, UNUSED, 0, 0, 0},
    {"DYN_ROUTER_POSITIONAL_SEARCH_MODE", NULL, UNUSED, 0, 0, 0},
};

static int bad(struct fl_error *err, const char *name, const char *value, const char *rule)
{
    return fl_error_set(err, FL_ECONFIG, "invalid KV router configuration: %s=%.100s: %s", name,
                        value, rule);
}

static bool parse_flag(const char *text, bool *value)
{
    static const char *const words[][4] = {{"false", "0", "no", "off"}, {"true", "1", "yes", "on"}};
    for (int v = 0; v < 2; v++) {
        for (size_t i = 0; i < FL_ARRAY_LEN(words[v]); i++) {
            if (strcasecmp(text, words[v][i]) == 0) {
                *value = v == 1;
                return true;
            }
        }
    }
    return false;
}

static bool parse_number(const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*value);
}

static int set_number(const struct row *row, double *field, const char *name, const char *text,
                      struct fl_error *err)
{
    double value;
    if (!parse_number(text, &value))
        return bad(err, name, text, "must be a finite number");
    if (value < row->min || value > row->max)
        return bad(err, name, text, isinf(row->max) ? "must be at least 0" : "must be in 0..1");
    *field = value;
    return 0;
}

static int set(const struct row *row, struct fl_router_config *config, const char *name,
               const char *text, struct fl_error *err)
{
    void *field = (char *)config + row->off;
    double number = 0;
    uint64_t u64 = 0;
    int rc;
    switch (row->kind) {
    case NUMBER:
        return set_number(row, field, name, text, err);
    case WEIGHT:
        rc = set_number(row, &number, name, text, err);
        if (rc < 0)
            return rc;
        FL_LOG(FL_LOG_WARN, "deprecated variable", "name=%s use=DYN_ROUTER_PREFILL_LOAD_SCALE",
               name);
        config->prefill_load_scale = number;
        if (number == 0)
            config->overlap_score_credit = 0;
        return 0;
    case FLAG:
        if (!parse_flag(text, field))
            return bad(err, name, text, "must be true or false");
        return 0;
    case MAYBE_NUMBER:
        rc = set_number(row, &number, name, text, err);
        if (rc == 0)
            *(struct fl_maybe_f64 *)field = (struct fl_maybe_f64){true, number};
        return rc;
    case MAYBE_U64:
        if (!fl_bytes_to_u64(fl_bytes_of(text), UINT64_MAX, &u64))
            return bad(err, name, text, "must be an unsigned integer");
        *(struct fl_maybe_u64 *)field = (struct fl_maybe_u64){true, u64};
        return 0;
    case SECONDS:
        /* The one variable that forgives: bad, out of range or 0 is the default (7.6). */
        if (fl_bytes_to_u64(fl_bytes_of(text), 1000000000, &u64) && u64 > 0)
            *(uint32_t *)field = (uint32_t)u64;
        return 0;
    case POLICY:
        if (fl_policy_find(text) == NULL)
            return bad(err, name, text, "unknown policy");
        *(const char **)field = text;
        return 0;
    case GAP:
        if (strcmp(text, "clear") != 0 && strcmp(text, "keep") != 0)
            return bad(err, name, text, "must be clear or keep");
        *(bool *)field = strcmp(text, "keep") == 0;
        return 0;
    case UNUSED:
        FL_LOG(FL_LOG_WARN, "variable without effect in this version", "name=%s", name);
        return 0;
    }
    return 0;
}

/* Trimmed; NULL when unset or empty. `room` keeps the trimmed text when blanks had to go. */
static const char *get(const char *name)
{
    const char *text = name != NULL ? getenv(name) : NULL;
    return text != NULL && *text != '\0' ? text : NULL;
}

static int read_row(const struct row *row, struct fl_router_config *config, struct fl_error *err)
{
    const char *text = get(row->name), *other = get(row->alias);
    if (text != NULL && other != NULL && strcmp(text, other) != 0)
        return fl_error_set(err, FL_ECONFIG,
                            "invalid KV router configuration: %s=%.100s and %s=%.100s differ",
                            row->name, text, row->alias, other);
    if (text != NULL)
        return set(row, config, row->name, text, err);
    return other != NULL ? set(row, config, row->alias, other, err) : 0;
}

/* true = credit 0, events off, no reuse assumed; what is set explicitly wins, so it is read first.
 */
static int read_load_aware(struct fl_router_config *config, struct fl_error *err)
{
    static const char name[] = "DYN_ROUTER_LOAD_AWARE";
    const char *text = get(name);
    bool is_on = false;
    if (text == NULL)
        return 0;
    if (!parse_flag(text, &is_on))
        return bad(err, name, text, "must be true or false");
    if (is_on) {
        config->overlap_score_credit = 0;
        config->use_kv_events = false;
        config->assume_kv_reuse = false;
    }
    return 0;
}

static int read_queue_policy(struct fl_error *err)
{
    static const char name[] = "DYN_ROUTER_QUEUE_POLICY";
    const char *text = get(name);
    if (text == NULL || strcmp(text, "fcfs") == 0 || strcmp(text, "wspt") == 0)
        return 0;
    return bad(err, name, text, "must be fcfs or wspt");
}

int fl_router_config_from_env(struct fl_router_config *config, struct fl_error *err)
{
    struct fl_router_config read = *config; /* a failure changes nothing */
    int rc = read_load_aware(&read, err);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows) && rc == 0; i++)
        rc = read_row(&rows[i], &read, err);
    if (rc == 0)
        rc = read_queue_policy(err);
    if (rc == 0 && get("DYN_ROUTER_POLICY_CONFIG") != NULL)
        rc = bad(err, "DYN_ROUTER_POLICY_CONFIG", get("DYN_ROUTER_POLICY_CONFIG"),
                 "policy files are not supported in this version");
    if (rc == 0)
        *config = read;
    return rc;
}

/* ---- validation ---- */

int fl_router_config_check(const struct fl_router_config *config, struct fl_error *err)
{
    const struct {
        const char *name;
        double value, max;
    } numbers[] = {
        {"overlap_score_credit", config->overlap_score_credit, INFINITY},
        {"overlap_score_credit_decay", config->overlap_score_credit_decay, INFINITY},
        {"prefill_load_scale", config->prefill_load_scale, INFINITY},
        {"decode_active_request_weight", config->decode_active_request_weight, INFINITY},
        {"host_cache_hit_weight", config->host_cache_hit_weight, 1},
        {"disk_cache_hit_weight", config->disk_cache_hit_weight, 1},
        {"router_temperature", config->router_temperature, INFINITY},
        {"queue_threshold", config->queue_threshold.value, INFINITY},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(numbers); i++) {
        char text[32];
        snprintf(text, sizeof text, "%g", numbers[i].value);
        if (!isfinite(numbers[i].value) || numbers[i].value < 0)
            return bad(err, numbers[i].name, text, "must be finite and at least 0");
        if (numbers[i].value > numbers[i].max)
            return bad(err, numbers[i].name, text, "must be in 0..1");
    }
    if (config->policy != NULL && fl_policy_find(config->policy) == NULL)
        return bad(err, "policy", config->policy, "unknown policy");
    if (config->track_output_blocks && !config->track_active_blocks)
        return bad(err, "track_output_blocks", "true", "needs track_active_blocks");
    if (config->lease_s == 0 || config->active_request_expiry_s == 0)
        return bad(err, "lease_s or active_request_expiry_s", "0", "must be at least 1");
    return 0;
}
