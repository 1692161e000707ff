/* SPDX-License-Identifier: Apache-2.0 */
#include "pick/directory.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

#define RECLAIM_MAX 16 /* sets freed a publication; reloads are rare */

void fl_directory_init(struct fl_directory *directory)
{
    struct fl_directory_set *empty = fl_calloc(1, sizeof(*empty));
    directory->epoch = fl_epoch_new();
    atomic_store(&directory->current, empty);
    atomic_store(&directory->turn, 0);
}

static void free_set(struct fl_retired *retired)
{
    struct fl_directory_set *set = FL_CONTAINER_OF(retired, struct fl_directory_set, retired);
    fl_arena_fini(&set->arena);
    fl_free(set);
}

void fl_directory_fini(struct fl_directory *directory)
{
    free_set(&atomic_load(&directory->current)->retired);
    fl_epoch_free(directory->epoch);
}

static int compare_workers(const void *a, const void *b)
{
    const struct fl_directory_worker *x = a;
    const struct fl_directory_worker *y = b;
    return (x->worker_id > y->worker_id) - (x->worker_id < y->worker_id);
}

static void copy_worker(struct fl_directory_set *set, const struct fl_worker_spec *spec,
                        struct fl_directory_worker *worker)
{
    *worker = (struct fl_directory_worker){
        .worker_id = spec->worker_id,
        .addr = spec->addr,
        .authority = fl_arena_copy(&set->arena, spec->authority),
        .label = fl_arena_copy(&set->arena, spec->label),
        .lora_count = spec->lora_count,
        .is_ready = spec->is_ready,
        .serves_clients = spec->role != FL_WORKER_PREFILL,
    };
    worker->lora_names =
        fl_arena_calloc(&set->arena, (size_t)spec->lora_count + 1, sizeof(*worker->lora_names));
    for (uint32_t i = 0; i < spec->lora_count; i++)
        worker->lora_names[i] = fl_arena_copy(&set->arena, spec->lora_names[i]);
}

void fl_directory_publish(struct fl_directory *directory, const struct fl_worker_spec *specs,
                          uint32_t count)
{
    struct fl_directory_set *set = fl_calloc(1, sizeof(*set));
    struct fl_directory_set *former = atomic_load(&directory->current);

    fl_arena_init(&set->arena, 0);
    set->workers = fl_arena_calloc(&set->arena, (size_t)count + 1, sizeof(*set->workers));
    for (uint32_t i = 0; i < count; i++) {
        copy_worker(set, &specs[i], &set->workers[i]);
        set->ready_count += specs[i].is_ready && set->workers[i].serves_clients;
    }
    set->count = count;
    qsort(set->workers, count, sizeof(*set->workers), compare_workers);
    atomic_store(&directory->current, set);
    fl_epoch_retire(directory->epoch, &former->retired, free_set);
    fl_epoch_reclaim(directory->epoch, RECLAIM_MAX);
}

const struct fl_directory_set *fl_directory_enter(struct fl_directory *directory)
{
    fl_epoch_enter(directory->epoch);
    return atomic_load(&directory->current);
}

void fl_directory_leave(struct fl_directory *directory)
{
    fl_epoch_leave(directory->epoch);
}

const struct fl_directory_worker *fl_directory_find(const struct fl_directory_set *set,
                                                    uint64_t worker_id)
{
    struct fl_directory_worker key = {.worker_id = worker_id};
    return set->count == 0 ? NULL
                           : bsearch(&key, set->workers, set->count, sizeof(key), compare_workers);
}

const struct fl_directory_worker *fl_directory_find_addr(const struct fl_directory_set *set,
                                                         const struct fl_addr *addr)
{
    for (uint32_t i = 0; i < set->count; i++) {
        if (fl_addr_eq(&set->workers[i].addr, addr))
            return &set->workers[i];
    }
    return NULL;
}

struct wanted {
    struct fl_addr addr;
    bool any_port;
};

/* `ip:port`, or a bare address: an unbracketed text with two colons or more is IPv6 without a port.
 */
static bool read_wanted(struct fl_bytes item, struct wanted *wanted)
{
    char text[FL_ADDR_TEXT];
    item = fl_bytes_trim(item);
    if (fl_addr_parse(item, false, &wanted->addr, NULL) == 0) {
        wanted->any_port = false;
        return true;
    }
    wanted->any_port = true;
    if (item.n > 2 && item.p[0] == '[' && item.p[item.n - 1] == ']')
        item = fl_bytes(item.p + 1, item.n - 2);
    if (!fl_bytes_to_cstr(item, text, sizeof(text)))
        return false;
    memset(&wanted->addr, 0, sizeof(wanted->addr));
    if (inet_pton(AF_INET, text, &wanted->addr.v4.sin_addr) == 1) {
        wanted->addr.v4.sin_family = AF_INET;
        wanted->addr.len = sizeof(wanted->addr.v4);
        return true;
    }
    if (inet_pton(AF_INET6, text, &wanted->addr.v6.sin6_addr) == 1) {
        wanted->addr.v6.sin6_family = AF_INET6;
        wanted->addr.len = sizeof(wanted->addr.v6);
        return true;
    }
    return false;
}

static bool same_host(const struct fl_addr *a, const struct fl_addr *b)
{
    if (a->sa.sa_family != b->sa.sa_family)
        return false;
    if (a->sa.sa_family == AF_INET)
        return a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
    return memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, sizeof(a->v6.sin6_addr)) == 0;
}

uint32_t fl_directory_subset(const struct fl_directory_set *set, const struct fl_bytes *items,
                             uint32_t item_count, uint64_t *ids)
{
    struct wanted *wanted = fl_calloc((size_t)item_count + 1, sizeof(*wanted));
    uint32_t wanted_count = 0;
    uint32_t count = 0;

    for (uint32_t i = 0; i < item_count; i++)
        wanted_count += read_wanted(items[i], &wanted[wanted_count]);
    for (uint32_t w = 0; w < set->count; w++) {
        const struct fl_directory_worker *worker = &set->workers[w];
        bool is_named = false;
        for (uint32_t i = 0; i < wanted_count && !is_named; i++)
            is_named = wanted[i].any_port ? same_host(&worker->addr, &wanted[i].addr)
                                          : fl_addr_eq(&worker->addr, &wanted[i].addr);
        if (is_named && worker->is_ready && worker->serves_clients)
            ids[count++] = worker->worker_id;
    }
    fl_free(wanted);
    return count;
}

static bool is_among(const uint64_t *ids, uint32_t count, uint64_t id)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ids[i] == id)
            return true;
    }
    return false;
}

const struct fl_directory_worker *fl_directory_next(struct fl_directory *directory,
                                                    const struct fl_directory_set *set,
                                                    bool has_allowed, const uint64_t *ids,
                                                    uint32_t id_count)
{
    if (set->count == 0)
        return NULL;
    uint64_t turn = atomic_fetch_add_explicit(&directory->turn, 1, memory_order_relaxed);
    for (uint32_t i = 0; i < set->count; i++) {
        const struct fl_directory_worker *worker = &set->workers[(turn + i) % set->count];
        if (worker->is_ready && worker->serves_clients &&
            (!has_allowed || is_among(ids, id_count, worker->worker_id)))
            return worker;
    }
    return NULL;
}
