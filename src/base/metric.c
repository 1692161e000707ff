/* SPDX-License-Identifier: Apache-2.0 */
/* Cells of a shard, in table order: a counter or gauge has one a label value; a histogram has, per
 * label value, one a bucket (not cumulative), one for what is above all bounds, and the sum as the
 * bits of a double. The count is the sum of its buckets, so _count and _bucket{le="+Inf"} cannot
 * differ. */
#include "base/metric.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/error.h"

#define CACHE_LINE 64

struct fl_metric_shard {
    alignas(CACHE_LINE) _Atomic uint64_t cells[CACHE_LINE / sizeof(uint64_t)];
};

/* From 50 us, a fast pick, to 60 s, a slow prefill. */
static const double default_bounds[] = {
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1,     0.25,   0.5,     1,      2.5,   5,      10,    30,   60,
};

static const double *bounds_of(const struct fl_metric_desc *desc, size_t *count)
{
    *count = desc->bounds == NULL ? FL_ARRAY_LEN(default_bounds) : desc->bound_count;
    return desc->bounds == NULL ? default_bounds : desc->bounds;
}

static size_t value_count(const struct fl_metric_desc *desc)
{
    size_t count = 0;
    if (desc->label == NULL)
        return 1;
    while (desc->values[count] != NULL)
        count++;
    return count;
}

static size_t cells_per_value(const struct fl_metric_desc *desc)
{
    size_t bounds;
    if (desc->kind != FL_HISTOGRAM)
        return 1;
    bounds_of(desc, &bounds);
    return bounds + 2;
}

/* [a-zA-Z_:][a-zA-Z0-9_:]*, for labels without the colon. */
static bool is_name(const char *name, bool colon_allowed)
{
    for (const char *at = name; *at != 0; at++) {
        bool letter = (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') || *at == '_' ||
                      (*at == ':' && colon_allowed);
        if (!letter && (at == name || *at < '0' || *at > '9'))
            return false;
    }
    return name[0] != 0;
}

/* Our own tables, read once per instance: a bad row shows in every test that starts the program. */
static void check_table(const struct fl_metric_desc *descs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct fl_metric_desc *desc = &descs[i];
        assert(desc->name != NULL && is_name(desc->name, true));
        assert(desc->help != NULL && fl_bytes_has_suffix(fl_bytes_of(desc->help), FL_BYTES(".")));
        assert(desc->label == NULL || (is_name(desc->label, false) && desc->values != NULL));
        for (size_t j = 0; j < i; j++)
            assert(strcmp(descs[j].name, desc->name) != 0);
        if (desc->kind != FL_HISTOGRAM)
            continue;
        size_t bound_count;
        const double *bounds = bounds_of(desc, &bound_count);
        for (size_t j = 1; j < bound_count; j++)
            assert(bounds[j - 1] < bounds[j]);
    }
}

void fl_metrics_init(struct fl_metrics *metrics, const struct fl_metric_desc *descs,
                     size_t desc_count, size_t shard_count, const char *const_labels)
{
    check_table(descs, desc_count);
    *metrics = (struct fl_metrics){
        .descs = descs,
        .desc_count = desc_count,
        .shard_count = shard_count,
        .first_cell = fl_calloc(desc_count, sizeof(size_t)),
        .shards = fl_calloc(shard_count, sizeof(struct fl_metric_shard *)),
        .const_labels = fl_strdup(const_labels == NULL ? "" : const_labels),
    };
    for (size_t i = 0; i < desc_count; i++) {
        metrics->first_cell[i] = metrics->cell_count;
        metrics->cell_count += value_count(&descs[i]) * cells_per_value(&descs[i]);
    }
    size_t bytes = metrics->cell_count * sizeof(_Atomic uint64_t);
    bytes = (bytes / CACHE_LINE + 1) * CACHE_LINE;
    for (size_t i = 0; i < shard_count; i++) {
        metrics->shards[i] = aligned_alloc(CACHE_LINE, bytes);
        if (metrics->shards[i] == NULL)
            abort();
        memset(metrics->shards[i], 0, bytes);
    }
}

void fl_metrics_fini(struct fl_metrics *metrics)
{
    for (size_t i = 0; i < metrics->shard_count; i++)
        fl_free(metrics->shards[i]);
    fl_free(metrics->shards);
    fl_free(metrics->first_cell);
    fl_free(metrics->const_labels);
    *metrics = (struct fl_metrics){0};
}

/* ---- values ---- */

static size_t first_cell_of(const struct fl_metrics *metrics, size_t metric, size_t value)
{
    assert(metric < metrics->desc_count);
    size_t cell = metrics->first_cell[metric] + value * cells_per_value(&metrics->descs[metric]);
    assert(cell < (metric + 1 < metrics->desc_count ? metrics->first_cell[metric + 1]
                                                    : metrics->cell_count));
    return cell;
}

static _Atomic uint64_t *cell_at(const struct fl_metrics *metrics, size_t shard, size_t cell)
{
    assert(shard < metrics->shard_count);
    /* The array runs on over as many lines as the table needs; its declared length is the first. */
    _Atomic uint64_t *cells = metrics->shards[shard]->cells;
    return cells + cell;
}

static uint64_t load(const struct fl_metrics *metrics, size_t shard, size_t cell)
{
    return atomic_load_explicit(cell_at(metrics, shard, cell), memory_order_relaxed);
}

/* One writer: load and store need not be one operation, they only must not tear. */
static void add(struct fl_metrics *metrics, size_t shard, size_t cell, uint64_t n)
{
    _Atomic uint64_t *at = cell_at(metrics, shard, cell);
    uint64_t old = atomic_load_explicit(at, memory_order_relaxed);
    atomic_store_explicit(at, old + n, memory_order_relaxed);
}

static double double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

void fl_metric_add(struct fl_metrics *metrics, size_t shard, size_t metric, size_t value,
                   uint64_t n)
{
    assert(metrics->descs[metric].kind == FL_COUNTER);
    add(metrics, shard, first_cell_of(metrics, metric, value), n);
}

void fl_metric_gauge_add(struct fl_metrics *metrics, size_t shard, size_t metric, size_t value,
                         int64_t n)
{
    assert(metrics->descs[metric].kind == FL_GAUGE);
    add(metrics, shard, first_cell_of(metrics, metric, value), (uint64_t)n);
}

void fl_metric_observe(struct fl_metrics *metrics, size_t shard, size_t metric, size_t value,
                       double seconds)
{
    size_t bucket = 0, count;

    assert(metrics->descs[metric].kind == FL_HISTOGRAM);
    const double *bounds = bounds_of(&metrics->descs[metric], &count);
    /* Lengths of time; a clock that jumped must not make the sum fall or become NaN. */
    if (!(seconds > 0))
        seconds = 0;
    while (bucket < count && seconds > bounds[bucket])
        bucket++;
    size_t cell = first_cell_of(metrics, metric, value);
    add(metrics, shard, cell + bucket, 1);
    _Atomic uint64_t *sum = cell_at(metrics, shard, cell + count + 1);
    double old = double_of(atomic_load_explicit(sum, memory_order_relaxed));
    atomic_store_explicit(sum, bits_of(old + seconds), memory_order_relaxed);
}

static uint64_t sum_cell(const struct fl_metrics *metrics, size_t cell)
{
    uint64_t sum = 0;
    for (size_t shard = 0; shard < metrics->shard_count; shard++)
        sum += load(metrics, shard, cell);
    return sum;
}

uint64_t fl_metric_sum(const struct fl_metrics *metrics, size_t metric, size_t value)
{
    const struct fl_metric_desc *desc = &metrics->descs[metric];
    size_t cell = first_cell_of(metrics, metric, value);
    if (desc->kind != FL_HISTOGRAM)
        return sum_cell(metrics, cell);
    uint64_t sum = 0;
    for (size_t i = 0; i + 1 < cells_per_value(desc); i++)
        sum += sum_cell(metrics, cell + i);
    return sum;
}

int64_t fl_metric_gauge(const struct fl_metrics *metrics, size_t metric, size_t value)
{
    return (int64_t)fl_metric_sum(metrics, metric, value);
}

/* ---- text ---- */

/* The shortest decimal that reads back as the same double. */
static void format_double(double value, char *out, size_t room)
{
    if (isnan(value)) {
        snprintf(out, room, "NaN");
    } else if (isinf(value)) {
        snprintf(out, room, value < 0 ? "-Inf" : "+Inf");
    } else if (fabs(value) < 0x1p53 && !(value < trunc(value)) && !(value > trunc(value))) {
        snprintf(out, room, "%.0f", value);
    } else {
        for (int digits = 6; digits <= 17; digits++) {
            snprintf(out, room, "%.*g", digits, value);
            double back = strtod(out, NULL);
            if (!(back < value) && !(back > value))
                break;
        }
    }
}

static int write_escaped(struct fl_buf *out, struct fl_bytes text, bool quote_too)
{
    for (size_t i = 0; i < text.n; i++) {
        uint8_t byte = text.p[i];
        int rc;
        if (byte == '\n')
            rc = fl_buf_append(out, FL_BYTES("\\n"));
        else if (byte == '\\')
            rc = fl_buf_append(out, FL_BYTES("\\\\"));
        else if (byte == '"' && quote_too)
            rc = fl_buf_append(out, FL_BYTES("\\\""));
        else
            rc = fl_buf_append_byte(out, byte);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int fl_metric_escape(struct fl_buf *out, struct fl_bytes value)
{
    return write_escaped(out, value, true);
}

int fl_metric_write_head(struct fl_buf *out, const char *name, const char *help,
                         enum fl_metric_kind kind)
{
    static const char *const kinds[] = {"counter", "gauge", "histogram"};
    int rc = fl_buf_printf(out, "# HELP %s ", name);
    if (rc == 0)
        rc = write_escaped(out, fl_bytes_of(help), false);
    return rc < 0 ? rc : fl_buf_printf(out, "\n# TYPE %s %s\n", name, kinds[kind]);
}

static int write_line(struct fl_buf *out, const char *name, const char *suffix, const char *labels,
                      const char *number)
{
    bool bare = labels[0] == 0;
    return fl_buf_printf(out, "%s%s%s%s%s %s\n", name, suffix, bare ? "" : "{", labels,
                         bare ? "" : "}", number);
}

int fl_metric_write_sample(struct fl_buf *out, const char *name, const char *labels, double value)
{
    char number[64];
    format_double(value, number, sizeof(number));
    return write_line(out, name, "", labels, number);
}

/* The constant labels, the description's own and a NUL. */
static int write_labels(struct fl_buf *labels, const struct fl_metrics *metrics,
                        const struct fl_metric_desc *desc, size_t value)
{
    int rc = fl_buf_printf(labels, "%s", metrics->const_labels);
    if (rc == 0 && desc->label != NULL) {
        rc = fl_buf_printf(labels, "%s%s=\"", fl_buf_size(labels) > 0 ? "," : "", desc->label);
        if (rc == 0)
            rc = fl_metric_escape(labels, fl_bytes_of(desc->values[value]));
        if (rc == 0)
            rc = fl_buf_append_byte(labels, '"');
    }
    return rc < 0 ? rc : fl_buf_append_byte(labels, 0);
}

static int write_bucket(struct fl_buf *out, const char *name, const char *labels, double bound,
                        uint64_t count)
{
    char number[64];
    format_double(bound, number, sizeof(number));
    return fl_buf_printf(out, "%s_bucket{%s%sle=\"%s\"} %" PRIu64 "\n", name, labels,
                         labels[0] == 0 ? "" : ",", number, count);
}

static int write_histogram(const struct fl_metrics *metrics, const struct fl_metric_desc *desc,
                           size_t cell, const char *labels, struct fl_buf *out)
{
    char number[64];
    size_t bound_count;
    const double *bounds = bounds_of(desc, &bound_count);
    uint64_t below = 0;
    double sum = 0;

    for (size_t i = 0; i <= bound_count; i++) {
        below += sum_cell(metrics, cell + i);
        int rc =
            write_bucket(out, desc->name, labels, i < bound_count ? bounds[i] : INFINITY, below);
        if (rc < 0)
            return rc;
    }
    for (size_t shard = 0; shard < metrics->shard_count; shard++)
        sum += double_of(load(metrics, shard, cell + bound_count + 1));
    format_double(sum, number, sizeof(number));
    int rc = write_line(out, desc->name, "_sum", labels, number);
    if (rc < 0)
        return rc;
    snprintf(number, sizeof(number), "%" PRIu64, below);
    return write_line(out, desc->name, "_count", labels, number);
}

static int write_value(const struct fl_metrics *metrics, size_t metric, size_t value,
                       struct fl_buf *out)
{
    const struct fl_metric_desc *desc = &metrics->descs[metric];
    size_t cell = first_cell_of(metrics, metric, value);
    struct fl_buf text = {0};
    char number[64];

    int rc = write_labels(&text, metrics, desc, value);
    if (rc < 0)
        goto out;
    const char *labels = (const char *)text.head;
    if (desc->kind == FL_HISTOGRAM) {
        rc = write_histogram(metrics, desc, cell, labels, out);
        goto out;
    }
    uint64_t sum = sum_cell(metrics, cell);
    if (desc->kind == FL_GAUGE)
        snprintf(number, sizeof(number), "%" PRId64, (int64_t)sum);
    else
        snprintf(number, sizeof(number), "%" PRIu64, sum);
    rc = write_line(out, desc->name, "", labels, number);
out:
    fl_buf_fini(&text);
    return rc;
}

static int write_family(const struct fl_metrics *const *instances, size_t count, size_t metric,
                        struct fl_buf *out)
{
    const struct fl_metric_desc *desc = &instances[0]->descs[metric];
    int rc = fl_metric_write_head(out, desc->name, desc->help, desc->kind);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        for (size_t value = 0; rc == 0 && value < value_count(desc); value++)
            rc = write_value(instances[i], metric, value, out);
    }
    return rc;
}

int fl_metrics_write_all(const struct fl_metrics *const *instances, size_t count,
                         struct fl_buf *out)
{
    size_t before = fl_buf_size(out);
    int rc = 0;

    for (size_t i = 1; i < count; i++)
        assert(instances[i]->descs == instances[0]->descs);
    for (size_t i = 0; rc == 0 && count > 0 && i < instances[0]->desc_count; i++)
        rc = write_family(instances, count, i, out);
    if (rc < 0)
        out->tail = out->head + before; /* half a page would read as a restart of what is missing */
    return rc;
}

int fl_metrics_write(const struct fl_metrics *metrics, struct fl_buf *out)
{
    return fl_metrics_write_all(&metrics, 1, out);
}
