/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/trace.h"

#include <math.h>
#include <stdbool.h>

#include "base/alloc.h"
#include "codec/json.h"

struct reader {
    struct fl_trace *trace;
    size_t record_cap, id_cap;
    uint32_t block_tokens; /* 0 until the first record tells */
    size_t line;
    double last_ms;
};

static int fail(struct reader *reader, struct fl_error *err, const char *what)
{
    return fl_error_set(err, FL_EPROTO, "trace line %zu: %s", reader->line, what);
}

static bool get_u32(const struct fl_json_node *object, struct fl_bytes key, uint32_t *value)
{
    uint64_t wide;
    const struct fl_json_node *node = fl_json_get(object, key);
    if (node == NULL || !fl_json_to_u64(node, &wide) || wide > UINT32_MAX)
        return false;
    *value = (uint32_t)wide;
    return true;
}

static int read_ids(struct reader *reader, const struct fl_json_node *array,
                    struct fl_trace_record *record, struct fl_error *err)
{
    struct fl_trace *trace = reader->trace;
    if (array == NULL || array->type != FL_JSON_ARRAY)
        return fail(reader, err, "hash_ids is missing or no array");
    if (trace->id_count + array->count > reader->id_cap) {
        while (trace->id_count + array->count > reader->id_cap)
            reader->id_cap = reader->id_cap == 0 ? 4096 : reader->id_cap * 2;
        trace->ids = fl_realloc(trace->ids, reader->id_cap, sizeof(*trace->ids));
    }
    record->first_id = trace->id_count;
    record->id_count = array->count;
    for (const struct fl_json_node *id = fl_json_first(array); id != NULL;
         id = fl_json_next(array, id)) {
        if (!fl_json_to_u64(id, &trace->ids[trace->id_count]))
            return fail(reader, err, "hash_ids holds something that is no unsigned integer");
        trace->id_count++;
    }
    return 0;
}

static int read_time(struct reader *reader, const struct fl_json_node *object, bool is_seconds,
                     struct fl_trace_record *record, struct fl_error *err)
{
    double value;
    const struct fl_json_node *node = fl_json_get(object, FL_BYTES("timestamp"));
    if (node != NULL) {
        if (!fl_json_to_double(node, &value))
            return fail(reader, err, "timestamp is no number");
        value = is_seconds ? value * 1000 : value;
    } else {
        node = fl_json_get(object, FL_BYTES("delay"));
        if (node == NULL)
            value = reader->last_ms; /* the first of a `delay` trace has neither */
        else if (fl_json_to_double(node, &value))
            value += reader->last_ms;
        else
            return fail(reader, err, "delay is no number");
    }
    if (!(value >= 0 && value < 1e13))
        return fail(reader, err, "time is negative or too large");
    if (value < reader->last_ms)
        return fail(reader, err, "time goes backwards");
    reader->last_ms = value;
    record->at_us = (uint64_t)llround(value * 1000);
    return 0;
}

static int read_record(struct reader *reader, const struct fl_json_node *object,
                       struct fl_error *err)
{
    struct fl_trace *trace = reader->trace;
    struct fl_trace_record record = {0};

    if (object->type != FL_JSON_OBJECT)
        return fail(reader, err, "is no JSON object");
    bool is_qwen = fl_json_get(object, FL_BYTES("chat_id")) != NULL;
    if (reader->block_tokens == 0)
        reader->block_tokens = is_qwen ? 16 : 512;

    int rc = read_time(reader, object, is_qwen, &record, err);
    if (rc == 0)
        rc = read_ids(reader, fl_json_get(object, FL_BYTES("hash_ids")), &record, err);
    if (rc < 0)
        return rc;
    if (fl_json_get(object, FL_BYTES("input_length")) == NULL)
        record.input_tokens = record.id_count * reader->block_tokens;
    else if (!get_u32(object, FL_BYTES("input_length"), &record.input_tokens))
        return fail(reader, err, "input_length is no unsigned 32-bit integer");
    if (!get_u32(object, FL_BYTES("output_length"), &record.output_tokens))
        return fail(reader, err, "output_length is missing or no unsigned 32-bit integer");
    uint64_t blocks =
        ((uint64_t)record.input_tokens + reader->block_tokens - 1) / reader->block_tokens;
    if (blocks != record.id_count)
        return fail(reader, err, "hash_ids has not one id for each block of input_length");

    if (trace->count == FL_TRACE_MAX_RECORDS)
        return fail(reader, err, "too many records");
    if (trace->count == reader->record_cap) {
        reader->record_cap = reader->record_cap == 0 ? 1024 : reader->record_cap * 2;
        trace->records = fl_realloc(trace->records, reader->record_cap, sizeof(*trace->records));
    }
    trace->records[trace->count++] = record;
    return 0;
}

int fl_trace_parse(struct fl_trace *trace, struct fl_bytes text, uint32_t block_tokens,
                   struct fl_error *err)
{
    struct reader reader = {.trace = trace, .block_tokens = block_tokens};
    struct fl_bytes line;
    int rc = 0;

    while (rc == 0 && text.n > 0 && fl_bytes_next(&text, '\n', &line)) {
        struct fl_json doc = {0};
        reader.line++;
        line = fl_bytes_trim(line);
        if (line.n > 0 && line.p[line.n - 1] == '\r')
            line.n--;
        if (line.n == 0)
            continue;
        rc = fl_json_parse(&doc, line, err);
        if (rc < 0)
            fl_error_prefix(err, "trace line %zu", reader.line);
        else
            rc = read_record(&reader, fl_json_root(&doc), err);
        fl_json_fini(&doc);
    }
    if (rc == 0 && trace->count == 0)
        rc = fl_error_set(err, FL_EPROTO, "trace: holds no request");
    if (rc < 0) {
        fl_trace_fini(trace);
        return rc;
    }
    trace->block_tokens = reader.block_tokens;
    return 0;
}

void fl_trace_fini(struct fl_trace *trace)
{
    fl_free(trace->records);
    fl_free(trace->ids);
    *trace = (struct fl_trace){0};
}

void fl_trace_spread(struct fl_trace *trace, uint64_t last_gap_us)
{
    for (size_t first = 0; first < trace->count;) {
        size_t next = first;
        uint64_t at_us = trace->records[first].at_us;
        while (next < trace->count && trace->records[next].at_us == at_us)
            next++;
        uint64_t gap = next < trace->count ? trace->records[next].at_us - at_us : last_gap_us;
        for (size_t q = 0; q < next - first; q++)
            trace->records[first + q].at_us = at_us + gap * q / (next - first);
        first = next;
    }
}
