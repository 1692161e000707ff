/* SPDX-License-Identifier: Apache-2.0 */
/* From the workers file to service and directory (epp.md 14.7, 15). A new version is applied as one
 * set: what did not change is not touched, so its index and load stay; changed and new workers
 * first, then those that left. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/epp/epp.h"
#include "base/log.h"

static int read_file(const char *path, struct fl_buf *text, struct fl_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fl_error_set(err, FL_ECONFIG, "workers file %s: %s", path, strerror(errno));
    /* One byte more than allowed, so that the reader sees that it is too long. */
    fl_buf_init(text, FL_WORKERS_FILE_MAX_BYTES + 1);
    int rc = 0;
    while (rc == 0 && fl_buf_size(text) <= FL_WORKERS_FILE_MAX_BYTES) {
        size_t want = FL_WORKERS_FILE_MAX_BYTES + 1 - fl_buf_size(text);
        want = want < 65536 ? want : 65536;
        uint8_t *room = fl_buf_reserve(text, want);
        ssize_t n = room == NULL ? -1 : read(fd, room, want);
        if (n < 0 && errno != EINTR)
            rc = fl_error_set(err, FL_ECONFIG, "workers file %s: %s", path, strerror(errno));
        else if (n == 0)
            break;
        else if (n > 0)
            fl_buf_commit(text, (size_t)n);
    }
    close(fd);
    return rc;
}

static void on_complaint(void *owner, bool is_bad, const char *sentence)
{
    (void)owner;
    fl_log(is_bad ? FL_LOG_ERROR : FL_LOG_WARN, sentence, NULL);
}

static int read_set(const struct epp_config *config, struct fl_worker_set *set,
                    struct fl_error *err)
{
    struct fl_workers_defaults defaults = epp_worker_defaults(config);
    struct fl_buf text = {0};
    int rc = read_file(config->workers, &text, err);
    if (rc == 0)
        rc = fl_workers_file_read(set, config->workers, fl_buf_bytes(&text), &defaults,
                                  on_complaint, NULL, err);
    fl_buf_fini(&text);
    return rc;
}

static const struct fl_worker_spec *find_spec(const struct fl_worker_set *set, uint64_t id)
{
    for (uint32_t i = 0; i < set->count; i++) {
        if (set->items[i].worker_id == id)
            return &set->items[i];
    }
    return NULL;
}

static void upsert(struct epp *epp, const struct fl_worker_spec *spec)
{
    struct fl_worker worker = {
        .worker_id = spec->worker_id,
        .model_name = fl_bytes_of(epp->config.model),
        .endpoint = spec->authority,
        .kv_events_endpoint = epp->config.use_kv_events ? spec->kv_events : (struct fl_bytes){0},
        .replay_endpoint = epp->config.use_kv_events ? spec->replay : (struct fl_bytes){0},
        .block_size = spec->block_size,
        .max_num_batched_tokens = {spec->max_num_batched_tokens > 0, spec->max_num_batched_tokens},
        .total_kv_blocks = {spec->total_kv_blocks > 0, spec->total_kv_blocks},
        .is_eagle = {true, spec->is_eagle},
        .taints = spec->taints,
        .taint_count = spec->taint_count,
    };
    struct fl_worker_record record = {0};
    struct fl_error err = {0};
    if (fl_selection_upsert_worker(epp->service, &worker, &record, &err) < 0)
        fl_log(FL_LOG_ERROR, "worker refused", "worker=%s why=%s", fl_log_value(spec->label).text,
               fl_log_value(fl_bytes_of(err.text)).text);
    else if (record.lifecycle != FL_LIFECYCLE_SCHEDULABLE)
        fl_log(FL_LOG_WARN, "worker takes no traffic", "worker=%s lifecycle=%s reason=%s",
               fl_log_value(spec->label).text, fl_lifecycle_name(record.lifecycle),
               record.reason_count > 0 ? record.reasons[0] : "none");
    fl_worker_record_fini(&record);
}

/* Entries that are bad now keep the record they had (epp.md 14.7). */
static bool is_kept_bad(const struct fl_worker_set *next, const struct fl_worker_spec *spec)
{
    for (uint32_t i = 0; i < next->bad; i++) {
        struct fl_bytes label = next->bad_labels[i];
        if (label.n > 0 && (fl_bytes_eq(label, spec->name) || fl_bytes_eq(label, spec->authority)))
            return true;
    }
    return false;
}

struct counts {
    unsigned added, changed, removed, kept;
};

static void apply(struct epp *epp, const struct fl_worker_set *next, struct counts *counts)
{
    for (uint32_t i = 0; i < next->count; i++) {
        const struct fl_worker_spec *spec = &next->items[i];
        const struct fl_worker_spec *former = find_spec(&epp->workers, spec->worker_id);
        if (former != NULL && fl_worker_spec_eq(former, spec)) {
            counts->kept++;
            continue;
        }
        /* Another address or another engine process under the same name: nothing known of the old
         * one holds. */
        if (former != NULL && (!fl_bytes_eq(former->authority, spec->authority) ||
                               !fl_bytes_eq(former->instance, spec->instance)))
            fl_selection_delete_worker(epp->service, spec->worker_id, NULL);
        if (former == NULL)
            counts->added++;
        else
            counts->changed++;
        if (spec->is_ready)
            upsert(epp, spec);
        else if (former != NULL)
            fl_selection_delete_worker(epp->service, spec->worker_id, NULL);
    }
    for (uint32_t i = 0; i < epp->workers.count; i++) {
        const struct fl_worker_spec *former = &epp->workers.items[i];
        if (find_spec(next, former->worker_id) != NULL || is_kept_bad(next, former))
            continue;
        counts->removed++;
        fl_selection_delete_worker(epp->service, former->worker_id, NULL);
    }
}

/* The specs in force: those of `next`, and former ones whose entry is bad now. */
static void publish(struct epp *epp, struct fl_worker_set *next)
{
    uint32_t room = next->count + epp->workers.count;
    struct fl_worker_spec *all = fl_arena_calloc(&next->arena, (size_t)room + 1, sizeof(*all));
    uint32_t count = next->count;
    if (count > 0)
        memcpy(all, next->items, count * sizeof(*all));
    for (uint32_t i = 0; i < epp->workers.count; i++) {
        const struct fl_worker_spec *former = &epp->workers.items[i];
        if (find_spec(next, former->worker_id) == NULL && is_kept_bad(next, former)) {
            all[count] = *former;
            fl_worker_spec_move(&all[count++], &next->arena);
        }
    }
    next->items = all;
    next->count = count;
    fl_directory_publish(&epp->directory, all, count);
}

int epp_workers_load(struct epp *epp, struct fl_error *err)
{
    struct fl_worker_set next = {0};
    struct counts counts = {0};
    int rc = read_set(&epp->config, &next, err);
    if (rc < 0)
        return rc;
    apply(epp, &next, &counts);
    publish(epp, &next);
    fl_worker_set_fini(&epp->workers);
    epp->workers = next;
    fl_log(FL_LOG_INFO, "workers file applied",
           "file=%s added=%u changed=%u removed=%u kept=%u bad=%u", epp->config.workers,
           counts.added, counts.changed, counts.removed, counts.kept, next.bad);
    return 0;
}

void epp_workers_reload(struct epp *epp)
{
    struct fl_error err = {0};
    if (epp_workers_load(epp, &err) == 0) {
        epp->stale_since_ms = 0;
        return;
    }
    if (epp->stale_since_ms == 0)
        epp->stale_since_ms = fl_loop_now_ms(epp->control);
    fl_log(FL_LOG_WARN, "workers file refused, the last set stays in force", "why=%s",
           fl_log_value(fl_bytes_of(err.text)).text);
}

int epp_workers_check(const struct epp_config *config)
{
    struct fl_worker_set set = {0};
    struct fl_error err = {0};
    if (read_set(config, &set, &err) < 0) {
        fprintf(stderr, "fairlead epp: %s\n", err.text);
        return 1;
    }
    int status = set.bad > 0 ? 1 : 0;
    fl_worker_set_fini(&set);
    return status;
}
