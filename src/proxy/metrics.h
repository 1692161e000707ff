/* SPDX-License-Identifier: Apache-2.0 */
/* What a gateway counts (gateway.md 13). Two kinds: the table below, whose labels are known in
 * advance, in fl_metrics with one shard a loop; and figures by rule, whose labels come and go with
 * the rules, in one fl_proxy_rule_stats a rule.
 *
 * A rule's figures have one cache-aligned shard a loop, written by that loop only, and live as long
 * as the rule, however often it is replaced. The control loop owns them (refs is its plain
 * integer) and sums the shards when asked. */
#ifndef FL_PROXY_METRICS_H
#define FL_PROXY_METRICS_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/metric.h"

enum fl_proxy_metric {
    FL_PROXY_EPP_REQUESTS, /* by enum fl_proxy_epp_outcome */
    FL_PROXY_EPP_REJECTED, /* by enum fl_proxy_rejection */
    FL_PROXY_EPP_SECONDS,
    FL_PROXY_EPP_TAP_TRUNCATED,
    FL_PROXY_BUFFER_REJECTIONS,
    FL_PROXY_RELAY_READS,
    FL_PROXY_RELAY_WRITES,
    FL_PROXY_PROTOCOL_ERRORS, /* by fl_proxy_protocol_error_kinds */
    FL_PROXY_METRIC_COUNT,
};

enum fl_proxy_epp_outcome {
    FL_PROXY_EPP_OK,
    FL_PROXY_EPP_NONE_USABLE,
    FL_PROXY_EPP_BODY_TOO_LARGE,
    FL_PROXY_EPP_IMMEDIATE,
    FL_PROXY_EPP_ERROR,
    FL_PROXY_EPP_EVICTED,
    FL_PROXY_EPP_OUTCOME_COUNT,
};

enum fl_proxy_rejection {
    FL_PROXY_REJECT_UNKNOWN,
    FL_PROXY_REJECT_UNHEALTHY,
    FL_PROXY_REJECT_CONNECT_FAILED,
    FL_PROXY_REJECT_MALFORMED,
};

enum fl_proxy_fallback {
    FL_PROXY_FALLBACK_UNAVAILABLE,
    FL_PROXY_FALLBACK_NO_ENDPOINT,
    FL_PROXY_FALLBACK_COUNT
};

extern const struct fl_metric_desc fl_proxy_metric_descs[FL_PROXY_METRIC_COUNT];
/* Index of a code word of section 7 among the kinds of protocol errors; the first for others. */
size_t fl_proxy_protocol_error_kind(const char *word);
extern const char *const fl_proxy_epp_outcomes[]; /* words, NULL-terminated */

/* ---- by rule ---- */

#define FL_PROXY_BOUNDS 16

struct fl_proxy_histogram {
    _Atomic uint64_t buckets[FL_PROXY_BOUNDS + 1];
    _Atomic uint64_t sum_us;
};

enum fl_proxy_code {
    FL_PROXY_1XX,
    FL_PROXY_2XX,
    FL_PROXY_3XX,
    FL_PROXY_4XX,
    FL_PROXY_5XX,
    FL_PROXY_499,
    FL_PROXY_CODE_COUNT
};

struct fl_proxy_rule_shard {
    alignas(64) _Atomic uint64_t codes[FL_PROXY_CODE_COUNT];
    _Atomic uint64_t fallbacks[FL_PROXY_FALLBACK_COUNT];
    struct fl_proxy_histogram duration, ttfb;
    _Atomic uint64_t epp_inflight, epp_streams; /* gauges: questions waiting; open streams */
};

struct fl_proxy_rule_stats {
    uint32_t refs; /* control loop */
    uint32_t loops;
    struct fl_proxy_rule_shard shards[];
};

/* One reference. */
struct fl_proxy_rule_stats *fl_proxy_rule_stats_new(uint32_t loops);
void fl_proxy_rule_stats_unref(struct fl_proxy_rule_stats *stats);

/* By the shard's loop only. `status` 499: the client left. */
void fl_proxy_count_request(struct fl_proxy_rule_shard *shard, int status, uint64_t duration_us);
void fl_proxy_count_fallback(struct fl_proxy_rule_shard *shard, enum fl_proxy_fallback cause);
void fl_proxy_observe_ttfb(struct fl_proxy_rule_shard *shard, uint64_t us);

/* A rule as the exposition names it. */
struct fl_proxy_rule_sample {
    struct fl_bytes name; /* of the rule, else VIP:port */
    const struct fl_proxy_rule_stats *stats;
};

/* Appends the families by rule. Two samples of one name are added up: names are not unique. 0 or
 * the buffer's error. */
int fl_proxy_write_rule_metrics(const struct fl_proxy_rule_sample *samples, size_t count,
                                struct fl_buf *out);

#endif
