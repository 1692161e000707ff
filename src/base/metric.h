/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics as tables. A module describes its metrics in a const array beside its code; the values
 * live in the instance, one shard per loop, because every loop counts while the control loop reads.
 *
 *   descriptions (const, shared) --+
 *                                  +--> fl_metrics (one instance) --> shard 0, shard 1, ...
 *   number of shards --------------+                                  (cache lines of their own)
 *
 * A shard is written by its own loop only (relaxed load + store); anyone may read. A scrape sums
 * the shards. Gauges are written with fl_metric_gauge_add (signed, summed likewise). What several
 * loops must agree on is no metric but an atomic in the block that owns it; show it through a
 * collector.
 *
 * Labels have a known, small set of values: a description names the label and its `values`, and
 * each (metric, value) pair is one cell. Histograms have fixed bounds in seconds. Constant labels
 * (role="aggregated", model="m") belong to the instance.
 *
 * Text form: Prometheus exposition 0.0.4; families with HELP and TYPE in table order. */
#ifndef FL_BASE_METRIC_H
#define FL_BASE_METRIC_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

enum fl_metric_kind { FL_COUNTER, FL_GAUGE, FL_HISTOGRAM };

struct fl_metric_desc {
    enum fl_metric_kind kind;
    const char *name;
    const char *help;          /* ends in a full stop */
    const char *label;         /* NULL: none */
    const char *const *values; /* of the label, NULL-terminated */
    const double *bounds; /* histogram: upper bounds in seconds, ascending; NULL: 50 us..60 s */
    size_t bound_count;
};

struct fl_metric_shard; /* opaque: array of atomic cells on its own cache lines */

struct fl_metrics {
    const struct fl_metric_desc *descs;
    size_t desc_count, shard_count, cell_count;
    size_t *first_cell; /* of each description */
    struct fl_metric_shard **shards;
    char *const_labels; /* `role="aggregated",model="m"` or "" */
};

/* `const_labels` is copied, NULL: none. Values must be escaped already. */
void fl_metrics_init(struct fl_metrics *metrics, const struct fl_metric_desc *descs,
                     size_t desc_count, size_t shard_count, const char *const_labels);
void fl_metrics_fini(struct fl_metrics *metrics);

/* By the shard's own thread only. `value` is the index of the label's value (0 without a label). */
void fl_metric_add(struct fl_metrics *metrics, size_t shard, size_t metric, size_t value,
                   uint64_t n);
void fl_metric_gauge_add(struct fl_metrics *metrics, size_t shard, size_t metric, size_t value,
                         int64_t n);
/* Histogram: one observation in seconds. */
void fl_metric_observe(struct fl_metrics *metrics, size_t shard, size_t metric, size_t value,
                       double seconds);

/* Sum over shards; of a histogram, the count. Any thread. */
uint64_t fl_metric_sum(const struct fl_metrics *metrics, size_t metric, size_t value);
int64_t fl_metric_gauge(const struct fl_metrics *metrics, size_t metric, size_t value);

/* Appends the text form. 0 or FL_ELIMIT/FL_ENOMEM of the buffer. Any thread. */
int fl_metrics_write(const struct fl_metrics *metrics, struct fl_buf *out);

/* The same for several instances of one table, which differ in their constant labels
 * (role="prefill", role="decode"): samples of a family must stand together under one head. */
int fl_metrics_write_all(const struct fl_metrics *const *instances, size_t count,
                         struct fl_buf *out);

/* For families whose values are read when asked (collectors): */
int fl_metric_write_head(struct fl_buf *out, const char *name, const char *help,
                         enum fl_metric_kind kind);
/* `labels` without braces, "" for none; integers print without a fraction. */
int fl_metric_write_sample(struct fl_buf *out, const char *name, const char *labels, double value);
/* Escapes backslash, quote and newline of a label value into `out`. */
int fl_metric_escape(struct fl_buf *out, struct fl_bytes value);

#endif
