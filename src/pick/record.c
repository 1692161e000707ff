/* SPDX-License-Identifier: Apache-2.0 */
#include "pick/record.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/map.h"
#include "codec/json.h"

void fl_pick_log_init(struct fl_pick_log *log)
{
    pthread_mutex_init(&log->lock, NULL);
    log->records = fl_calloc(FL_PICK_LOG_SIZE, sizeof(*log->records));
    log->last = 0;
}

void fl_pick_log_fini(struct fl_pick_log *log)
{
    pthread_mutex_destroy(&log->lock);
    fl_free(log->records);
    log->records = NULL;
}

uint64_t fl_pick_log_add(struct fl_pick_log *log, const struct fl_pick_record *record)
{
    pthread_mutex_lock(&log->lock);
    uint64_t number = ++log->last;
    struct fl_pick_record *slot = &log->records[number % FL_PICK_LOG_SIZE];
    *slot = *record;
    slot->number = number;
    pthread_mutex_unlock(&log->lock);
    return number;
}

void fl_pick_log_after(struct fl_pick_log *log, uint64_t number, const char *served,
                       int64_t cached_tokens, double ttft_ms, const char *cause)
{
    pthread_mutex_lock(&log->lock);
    struct fl_pick_record *slot = &log->records[number % FL_PICK_LOG_SIZE];
    if (number != 0 && slot->number == number) {
        if (!slot->after.is_set) {
            slot->after.is_set = true;
            slot->after.cached_tokens = -1;
            slot->after.ttft_ms = -1;
        }
        if (served != NULL)
            snprintf(slot->after.served, sizeof(slot->after.served), "%s", served);
        if (cached_tokens >= 0)
            slot->after.cached_tokens = cached_tokens;
        if (ttft_ms >= 0)
            slot->after.ttft_ms = ttft_ms;
        if (cause != NULL)
            slot->after.cause = cause;
    }
    pthread_mutex_unlock(&log->lock);
}

static void write_text(struct fl_json_writer *json, const char *key, const char *text)
{
    fl_json_write_key(json, key);
    if (text == NULL || text[0] == '\0')
        fl_json_write_null(json);
    else
        fl_json_write_cstr(json, text);
}

static void write_after(struct fl_json_writer *json, const struct fl_pick_record *record)
{
    fl_json_write_key(json, "after");
    if (!record->after.is_set) {
        fl_json_write_null(json);
        return;
    }
    fl_json_write_object(json);
    write_text(json, "served", record->after.served);
    fl_json_write_key(json, "cached_tokens");
    if (record->after.cached_tokens < 0)
        fl_json_write_null(json);
    else
        fl_json_write_i64(json, record->after.cached_tokens);
    fl_json_write_key(json, "ttft_ms");
    if (record->after.ttft_ms < 0)
        fl_json_write_null(json);
    else
        fl_json_write_double(json, record->after.ttft_ms);
    write_text(json, "cause", record->after.cause);
    fl_json_write_object_end(json);
}

static void write_times(struct fl_json_writer *json, const struct fl_pick_record *record)
{
    const struct {
        const char *key;
        uint64_t value;
    } rows[] = {{"tokenize", record->tokenize_us},
                {"queue", record->queue_us},
                {"select", record->select_us},
                {"total", record->total_us}};
    fl_json_write_key(json, "us");
    fl_json_write_object(json);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        fl_json_write_key(json, rows[i].key);
        fl_json_write_u64(json, rows[i].value);
    }
    fl_json_write_object_end(json);
}

struct copy {
    struct fl_json_writer *json;
    const struct fl_directory_set *workers; /* NULL: names are not known */
    bool has_id, has_time;
};

/* Each candidate as the selector wrote it, and who it is. */
static void write_candidate(const struct copy *copy, const struct fl_json_node *candidate)
{
    const struct fl_json_node *node = fl_json_get(candidate, FL_BYTES("worker_id"));
    const struct fl_directory_worker *worker = NULL;
    uint64_t id;

    if (copy->workers != NULL && node != NULL && fl_json_to_u64(node, &id))
        worker = fl_directory_find(copy->workers, id);
    fl_json_write_object(copy->json);
    fl_json_write_key(copy->json, "worker");
    if (worker != NULL)
        fl_json_write_string(copy->json, worker->label);
    else
        fl_json_write_null(copy->json);
    fl_json_write_key(copy->json, "endpoint");
    if (worker != NULL)
        fl_json_write_string(copy->json, worker->authority);
    else
        fl_json_write_null(copy->json);
    for (const struct fl_json_node *item = fl_json_first(candidate); item != NULL;
         item = fl_json_next(candidate, item)) {
        fl_json_write_key_bytes(copy->json, item->key);
        if (item->type == FL_JSON_STRING)
            fl_json_write_string(copy->json, item->text);
        else if (item->type == FL_JSON_TRUE || item->type == FL_JSON_FALSE)
            fl_json_write_bool(copy->json, item->type == FL_JSON_TRUE);
        else if (item->type == FL_JSON_NULL)
            fl_json_write_null(copy->json);
        else
            fl_json_write_raw(copy->json, item->text);
    }
    fl_json_write_object_end(copy->json);
}

static void write_candidates(const struct copy *copy, struct fl_bytes text)
{
    struct fl_json doc = {0};
    fl_json_write_key(copy->json, "candidates");
    fl_json_write_array(copy->json);
    if (fl_json_parse(&doc, text, NULL) == 0) {
        const struct fl_json_node *root = fl_json_root(&doc);
        for (const struct fl_json_node *item = fl_json_first(root); item != NULL;
             item = fl_json_next(root, item))
            write_candidate(copy, item);
    }
    fl_json_fini(&doc);
    fl_json_write_array_end(copy->json);
}

/* The selector's members come first, byte for byte. */
static int copy_member(void *owner, const struct fl_json_member *member)
{
    struct copy *copy = owner;
    copy->has_id = copy->has_id || fl_bytes_eq(member->key, FL_BYTES("id"));
    copy->has_time = copy->has_time || fl_bytes_eq(member->key, FL_BYTES("time_ms"));
    if (fl_bytes_eq(member->key, FL_BYTES("source")) || fl_bytes_eq(member->key, FL_BYTES("role")))
        return 0;
    if (fl_bytes_eq(member->key, FL_BYTES("candidates"))) {
        write_candidates(copy, member->value);
        return 0;
    }
    fl_json_write_key_bytes(copy->json, member->key);
    fl_json_write_raw(copy->json, member->value);
    return 0;
}

int fl_pick_record_write(const struct fl_pick_record *record, struct fl_bytes selection,
                         const struct fl_pick_naming *naming, struct fl_buf *out)
{
    struct fl_json_writer json;
    struct copy copy = {.json = &json};

    if (naming->directory != NULL)
        copy.workers = fl_directory_enter(naming->directory);

    fl_json_writer_init(&json, out);
    fl_json_write_object(&json);
    if (!fl_bytes_is_absent(selection))
        fl_json_scan_members(selection, copy_member, &copy);
    if (!copy.has_id)
        write_text(&json, "id", record->reservation);
    if (!copy.has_time) {
        fl_json_write_key(&json, "time_ms");
        fl_json_write_u64(&json, record->time_ms);
    }
    write_text(&json, "request_id", record->request_id);
    write_text(&json, "source", naming->source);
    write_text(&json, "role", naming->role);
    write_text(&json, "plan_id", NULL);
    write_text(&json, "kind", record->kind);
    write_text(&json, "outcome", record->outcome);
    write_text(&json, "endpoint", record->endpoint);
    write_text(&json, "worker", record->worker);
    write_times(&json, record);
    fl_json_write_key(&json, "subset");
    if (record->subset < 0)
        fl_json_write_null(&json);
    else
        fl_json_write_i64(&json, record->subset);
    if (record->is_dry_run) {
        fl_json_write_key(&json, "dry_run");
        fl_json_write_bool(&json, true);
    }
    write_after(&json, record);
    fl_json_write_object_end(&json);
    if (naming->directory != NULL)
        fl_directory_leave(naming->directory);
    return fl_json_writer_end(&json);
}

static bool passes(const struct fl_pick_record *record, const struct fl_pick_filter *filter)
{
    return (fl_bytes_is_absent(filter->id) ||
            fl_bytes_eq(filter->id, fl_bytes_of(record->reservation))) &&
           (fl_bytes_is_absent(filter->request_id) ||
            fl_bytes_eq(filter->request_id, fl_bytes_of(record->request_id))) &&
           (!filter->worker_id.is_set || filter->worker_id.value == record->worker_id);
}

/* Copies what passes, newest first, so that nothing is formatted under the lock. */
static uint32_t collect(struct fl_pick_log *log, const struct fl_pick_filter *filter,
                        struct fl_pick_record *records)
{
    uint32_t count = 0;
    pthread_mutex_lock(&log->lock);
    for (uint64_t back = 0; back < FL_PICK_LOG_SIZE && back < log->last; back++) {
        const struct fl_pick_record *slot = &log->records[(log->last - back) % FL_PICK_LOG_SIZE];
        if (count == filter->limit)
            break;
        if (passes(slot, filter))
            records[count++] = *slot;
    }
    pthread_mutex_unlock(&log->lock);
    return count;
}

/* The selector's records by reservation id; values are nodes of `doc`. */
static void index_selections(const struct fl_json *doc, struct fl_map_bytes *by_id)
{
    const struct fl_json_node *root = fl_json_root(doc);
    for (const struct fl_json_node *item = fl_json_first(root); item != NULL;
         item = fl_json_next(root, item)) {
        const struct fl_json_node *id = fl_json_get(item, FL_BYTES("id"));
        if (id != NULL && id->type == FL_JSON_STRING)
            fl_map_bytes_put(by_id, id->text, (void *)(uintptr_t)item);
    }
}

int fl_pick_log_write(struct fl_pick_log *log, struct fl_selection *service,
                      const struct fl_pick_naming *naming, const struct fl_pick_filter *filter,
                      struct fl_buf *out)
{
    struct fl_pick_record *records = fl_calloc(filter->limit, sizeof(*records));
    struct fl_picks_filter all = {.limit = FL_PICK_LOG_SIZE};
    struct fl_map_bytes by_id = {0};
    struct fl_json doc = {0};
    struct fl_buf selections = {0};

    uint32_t count = collect(log, filter, records);
    int rc = fl_selection_picks(service, &all, &selections);
    if (rc == 0)
        rc = fl_json_parse(&doc, fl_buf_bytes(&selections), NULL);
    if (rc == 0)
        index_selections(&doc, &by_id);
    if (rc == 0)
        rc = fl_buf_append_byte(out, '[');
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        const struct fl_json_node *selection =
            records[i].reservation[0] == '\0'
                ? NULL
                : fl_map_bytes_find(&by_id, fl_bytes_of(records[i].reservation));
        if (i > 0)
            rc = fl_buf_append_byte(out, ',');
        if (rc == 0)
            rc = fl_pick_record_write(&records[i],
                                      selection != NULL ? selection->text : (struct fl_bytes){0},
                                      naming, out);
    }
    if (rc == 0)
        rc = fl_buf_append_byte(out, ']');
    fl_map_bytes_fini(&by_id);
    fl_json_fini(&doc);
    fl_buf_fini(&selections);
    fl_free(records);
    return rc;
}
