/* SPDX-License-Identifier: Apache-2.0 */
/* The client's face: connections by target.
 *
 *   pool -> entry (target) -> idle HTTP/1 connections, most recently used first
 *                          -> HTTP/2 connections: one, an overflow beside it while the peer's limit
 * is reached
 *                          -> exchanges that wait because both are full
 *
 * All idle HTTP/1 connections of the pool stand in a second list, longest idle first, for expiry.
 * An entry without connections and waiting exchanges is freed: targets come and go with pods. */
#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/map.h"
#include "net/tls.h"
#include "web/conn_h1.h"
#include "web/conn_h2.h"

/* gateway.md 9.1: one connection, and an overflow beside it that closes after 60 s without need. */
#define H2_CONNECTIONS_MAX 2
#define H2_OVERFLOW_IDLE_MS 60000

struct fl_web_pool {
    struct fl_loop *loop;
    struct fl_web_pool_config config;
    struct fl_web_reader reader;
    struct fl_http1_limits limits;
    struct fl_map_bytes entries;
    struct fl_link idle; /* struct fl_h1_conn.pool_link, longest idle first */
    struct fl_timer expiry;
    bool is_ending;
};

struct entry {
    struct fl_web_pool *pool;
    struct fl_web_target target;
    char *server_name;
    struct fl_bytes key;
    struct fl_link idle;    /* struct fl_h1_conn.link, most recently used first */
    struct fl_link busy;    /* struct fl_h1_conn.link */
    struct fl_link h2s;     /* struct fl_h2_conn.link, the first one before the overflow */
    struct fl_link spent;   /* struct fl_h2_conn.link: no new streams */
    struct fl_link waiting; /* HTTP/2 exchanges that want a stream, in order */
    struct fl_link unsent;  /* those that do not yet, or no longer */
    struct fl_deferred serve;
    uint32_t idle_count, exchanges; /* exchanges: of HTTP/2, all that live */
    uint32_t generation;            /* connections of an older one are not reused */
};

/* ---- entries ---- */

#define KEY_FIXED_BYTES (sizeof(void *) + 1 + sizeof(struct fl_addr))

static struct fl_bytes key_of(const struct fl_web_target *target, uint8_t *out, size_t room)
{
    size_t name_bytes = target->server_name != NULL ? strlen(target->server_name) : 0;
    size_t at = 0;

    assert(KEY_FIXED_BYTES + name_bytes <= room);
    out[at++] = (uint8_t)target->protocol;
    memcpy(out + at, &target->tls, sizeof(target->tls));
    at += sizeof(target->tls);
    /* The meaningful members only: padding of an address may hold anything. */
    uint16_t port = fl_addr_port(&target->addr);
    memcpy(out + at, &port, sizeof(port));
    at += sizeof(port);
    if (target->addr.sa.sa_family == AF_INET6) {
        memcpy(out + at, &target->addr.v6.sin6_addr, sizeof(target->addr.v6.sin6_addr));
        at += sizeof(target->addr.v6.sin6_addr);
        memcpy(out + at, &target->addr.v6.sin6_scope_id, sizeof(target->addr.v6.sin6_scope_id));
        at += sizeof(target->addr.v6.sin6_scope_id);
    } else {
        memcpy(out + at, &target->addr.v4.sin_addr, sizeof(target->addr.v4.sin_addr));
        at += sizeof(target->addr.v4.sin_addr);
    }
    if (name_bytes > 0)
        memcpy(out + at, target->server_name, name_bytes);
    return fl_bytes(out, at + name_bytes);
}

#define KEY_ROOM (KEY_FIXED_BYTES + 256) /* a DNS name has at most 253 characters */

static void serve_waiting(struct fl_deferred *serve);

static struct entry *find(struct fl_web_pool *pool, const struct fl_web_target *target)
{
    uint8_t key[KEY_ROOM];
    return fl_map_bytes_find(&pool->entries, key_of(target, key, sizeof(key)));
}

static struct entry *get(struct fl_web_pool *pool, const struct fl_web_target *target)
{
    uint8_t key[KEY_ROOM];
    struct fl_bytes key_bytes = key_of(target, key, sizeof(key));
    struct entry *entry = fl_map_bytes_find(&pool->entries, key_bytes);

    if (entry != NULL)
        return entry;
    entry = fl_calloc(1, sizeof(*entry));
    entry->pool = pool;
    entry->target = *target;
    if (target->server_name != NULL)
        entry->server_name = fl_strdup(target->server_name);
    entry->target.server_name = entry->server_name;
    if (target->tls != NULL)
        fl_tls_ref(target->tls);
    uint8_t *copy = fl_alloc(key_bytes.n);
    memcpy(copy, key_bytes.p, key_bytes.n);
    entry->key = fl_bytes(copy, key_bytes.n);
    fl_link_init(&entry->idle);
    fl_link_init(&entry->busy);
    fl_link_init(&entry->h2s);
    fl_link_init(&entry->spent);
    fl_link_init(&entry->waiting);
    fl_link_init(&entry->unsent);
    fl_deferred_init(&entry->serve, serve_waiting);
    fl_map_bytes_put(&pool->entries, entry->key, entry);
    return entry;
}

static void entry_free(struct entry *entry)
{
    fl_loop_undefer(&entry->serve);
    fl_tls_unref(entry->target.tls);
    fl_free(entry->server_name);
    fl_free((void *)(uintptr_t)entry->key.p);
    fl_free(entry);
}

static void drop_if_unused(struct entry *entry)
{
    if (entry->pool->is_ending || entry->exchanges > 0 || !fl_link_is_alone(&entry->idle) ||
        !fl_link_is_alone(&entry->busy) || !fl_link_is_alone(&entry->h2s) ||
        !fl_link_is_alone(&entry->spent))
        return;
    fl_map_bytes_take(&entry->pool->entries, entry->key);
    entry_free(entry);
}

static struct fl_stream_config stream_config_of(const struct entry *entry)
{
    return (struct fl_stream_config){
        .tls = entry->target.tls,
        .server_name = entry->server_name,
        .connect_timeout_ms = entry->target.connect_timeout_ms,
        .user_timeout_ms = entry->target.user_timeout_ms,
        .keepalive_s = entry->target.keepalive_s,
    };
}

/* ---- HTTP/1 ---- */

static void unlink_idle(struct fl_h1_conn *conn)
{
    struct entry *entry = conn->owner;
    if (fl_link_is_alone(&conn->pool_link))
        return;
    fl_link_unlink(&conn->pool_link);
    fl_link_unlink(&conn->link);
    entry->idle_count--;
}

/* It stays among the busy ones until its socket is closed. */
static void retire(struct fl_h1_conn *conn)
{
    struct entry *entry = conn->owner;
    unlink_idle(conn);
    if (fl_link_is_alone(&conn->link))
        fl_link_push_tail(&entry->busy, &conn->link);
    fl_h1_conn_close(conn);
}

static void expire(struct fl_timer *timer)
{
    struct fl_web_pool *pool = FL_CONTAINER_OF(timer, struct fl_web_pool, expiry);
    uint64_t now_ms = fl_loop_now_ms(pool->loop);

    while (!fl_link_is_alone(&pool->idle)) {
        struct fl_h1_conn *oldest = FL_CONTAINER_OF(pool->idle.next, struct fl_h1_conn, pool_link);
        uint64_t idle_ms = now_ms - oldest->last_ms;
        if (idle_ms < pool->config.max_idle_ms) {
            fl_loop_timer_start(pool->loop, timer, pool->config.max_idle_ms - idle_ms);
            return;
        }
        retire(oldest);
    }
}

static bool h1_keep(struct fl_h1_conn *conn)
{
    struct entry *entry = conn->owner;
    struct fl_web_pool *pool = entry->pool;

    if (conn->generation != entry->generation || pool->config.max_idle_per_target == 0)
        return false;
    fl_link_unlink(&conn->link);
    fl_link_push_head(&entry->idle, &conn->link);
    fl_link_push_tail(&pool->idle, &conn->pool_link);
    if (++entry->idle_count > pool->config.max_idle_per_target)
        retire(FL_CONTAINER_OF(entry->idle.prev, struct fl_h1_conn, link));
    if (!fl_timer_is_running(&pool->expiry))
        fl_loop_timer_start(pool->loop, &pool->expiry, pool->config.max_idle_ms);
    return true;
}

static void h1_on_gone(struct fl_h1_conn *conn)
{
    struct entry *entry = conn->owner;
    unlink_idle(conn);
    fl_link_unlink(&conn->link);
    drop_if_unused(entry);
}

static const struct fl_h1_hooks h1_hooks = {.keep = h1_keep, .on_gone = h1_on_gone};

static struct fl_h1_conn *take_idle(struct entry *entry)
{
    while (!fl_link_is_alone(&entry->idle)) {
        struct fl_h1_conn *conn = FL_CONTAINER_OF(entry->idle.next, struct fl_h1_conn, link);
        if (!conn->is_closing && fl_stream_is_idle_alive(conn->stream)) {
            unlink_idle(conn);
            return conn;
        }
        retire(conn);
    }
    return NULL;
}

static struct fl_exchange *open_h1(struct entry *entry, bool fresh,
                                   const struct fl_exchange_handler *handler, void *owner)
{
    struct fl_web_pool *pool = entry->pool;
    struct fl_h1_conn *conn = fresh ? NULL : take_idle(entry);

    if (conn == NULL) {
        const struct fl_stream_config config = stream_config_of(entry);
        conn = fl_h1_client_new(pool->loop, &entry->target.addr, &config, &pool->reader,
                                &pool->limits, &h1_hooks, entry);
        conn->generation = entry->generation;
    }
    fl_link_push_tail(&entry->busy, &conn->link);
    return fl_h1_client_open(conn, handler, owner);
}

/* ---- HTTP/2 ---- */

/* A spent connection makes room for a new one; its streams go on. */
static void set_spent_aside(struct entry *entry)
{
    FL_LINK_FOREACH(link, &entry->h2s)
    {
        struct fl_h2_conn *conn = FL_CONTAINER_OF(link, struct fl_h2_conn, link);
        if (!fl_h2_conn_is_spent(conn))
            continue;
        fl_link_unlink(link);
        fl_link_push_tail(&entry->spent, link);
    }
}

static void h2_on_change(struct fl_h2_conn *conn)
{
    struct entry *entry = conn->owner;
    set_spent_aside(entry);
    if (!fl_link_is_alone(&entry->waiting))
        fl_loop_defer(entry->pool->loop, &entry->serve);
}

static void h2_on_gone(struct fl_h2_conn *conn)
{
    struct entry *entry = conn->owner;
    fl_link_unlink(&conn->link);
    set_spent_aside(entry);
    if (!fl_link_is_alone(&entry->waiting))
        fl_loop_defer(entry->pool->loop, &entry->serve);
    drop_if_unused(entry);
}

static const struct fl_h2_hooks h2_hooks = {.on_change = h2_on_change, .on_gone = h2_on_gone};

static struct fl_h2_conn *connect_h2(struct entry *entry, bool is_overflow)
{
    struct fl_web_pool *pool = entry->pool;
    const struct fl_stream_config stream_config = stream_config_of(entry);
    const struct fl_h2_config config = {
        .side = FL_H2_CLIENT,
        .stream_window_bytes = FL_EXCHANGE_WINDOW_BYTES,
        .connection_window_bytes = FL_EXCHANGE_WINDOW_BYTES * 16,
        .max_header_bytes = pool->config.max_header_bytes,
        .max_headers = pool->config.max_headers,
        .budget = pool->config.budget,
        .cache = &pool->reader.h2_cache,
    };
    struct fl_h2_conn *conn =
        fl_h2_client_new(pool->loop, &entry->target.addr, &stream_config, &pool->reader, &config,
                         &h2_hooks, entry, is_overflow ? H2_OVERFLOW_IDLE_MS : UINT64_MAX);
    conn->generation = entry->generation;
    fl_link_push_tail(&entry->h2s, &conn->link);
    return conn;
}

/* The first connection with room, or a new one; NULL: both are full. */
static struct fl_h2_conn *pick_h2(struct entry *entry)
{
    unsigned count = 0;

    set_spent_aside(entry);
    FL_LINK_FOREACH(link, &entry->h2s)
    {
        struct fl_h2_conn *conn = FL_CONTAINER_OF(link, struct fl_h2_conn, link);
        if (fl_h2_conn_can_open(conn))
            return conn;
        count++;
    }
    if (count >= H2_CONNECTIONS_MAX)
        return NULL;
    return connect_h2(entry, count > 0);
}

static void serve_waiting(struct fl_deferred *serve)
{
    struct entry *entry = FL_CONTAINER_OF(serve, struct entry, serve);

    while (!fl_link_is_alone(&entry->waiting)) {
        struct fl_h2_conn *conn = pick_h2(entry);
        if (conn == NULL)
            return;
        struct fl_link *link = fl_link_pop_head(&entry->waiting);
        fl_h2_exchange_submit(fl_h2_exchange_of_link(link), conn);
    }
}

/* The head was sent: now it needs a stream. */
static void place(void *placer, struct fl_h2_exchange *x)
{
    struct entry *entry = placer;
    struct fl_h2_conn *conn = fl_link_is_alone(&entry->waiting) ? pick_h2(entry) : NULL;

    if (conn != NULL) {
        fl_h2_exchange_submit(x, conn);
        return;
    }
    fl_link_unlink(fl_h2_exchange_wait_link(x));
    fl_link_push_tail(&entry->waiting, fl_h2_exchange_wait_link(x));
}

static void abandon(void *placer, struct fl_h2_exchange *x)
{
    struct entry *entry = placer;
    fl_link_unlink(fl_h2_exchange_wait_link(x));
    fl_link_push_tail(&entry->unsent, fl_h2_exchange_wait_link(x));
}

static void ended(void *placer, struct fl_h2_exchange *x)
{
    struct entry *entry = placer;
    (void)x;
    entry->exchanges--;
    drop_if_unused(entry);
}

static const struct fl_h2_placer placer_ops = {.place = place, .abandon = abandon, .ended = ended};

static struct fl_exchange *open_h2(struct entry *entry, const struct fl_exchange_handler *handler,
                                   void *owner)
{
    struct fl_h2_exchange *x =
        fl_h2_exchange_new(entry->pool->loop, handler, owner, &placer_ops, entry);
    entry->exchanges++;
    fl_link_push_tail(&entry->unsent, fl_h2_exchange_wait_link(x));
    return fl_h2_exchange_face(x);
}

/* ---- an ending pool ---- */

/* Whoever retries from the on_close that fl_web_pool_free() brings gets an exchange that fails. */
static void place_nowhere(void *placer, struct fl_h2_exchange *x)
{
    (void)placer;
    fl_h2_exchange_fail(x, FL_ECANCELLED);
}

static void forget_exchange(void *placer, struct fl_h2_exchange *x)
{
    (void)placer, (void)x;
}

static const struct fl_h2_placer nowhere = {
    .place = place_nowhere, .abandon = forget_exchange, .ended = forget_exchange};

/* ---- the pool ---- */

struct fl_web_pool *fl_web_pool_new(struct fl_loop *loop, const struct fl_web_pool_config *config)
{
    struct fl_web_pool *pool = fl_calloc(1, sizeof(*pool));

    pool->loop = loop;
    pool->config = *config;
    if (pool->config.max_header_bytes == 0)
        pool->config.max_header_bytes = FL_HTTP1_MAX_HEADER_BYTES;
    if (pool->config.max_headers == 0)
        pool->config.max_headers = FL_HTTP1_MAX_HEADERS;
    pool->limits = fl_http1_default_limits;
    pool->limits.max_header_bytes = pool->config.max_header_bytes;
    pool->limits.max_headers = pool->config.max_headers;
    fl_web_reader_init(&pool->reader, config->budget);
    fl_link_init(&pool->idle);
    fl_timer_init(&pool->expiry, expire);
    return pool;
}

struct fl_exchange *fl_web_pool_open(struct fl_web_pool *pool, const struct fl_web_target *target,
                                     bool fresh, const struct fl_exchange_handler *handler,
                                     void *owner)
{
    if (pool->is_ending)
        return fl_h2_exchange_face(fl_h2_exchange_new(pool->loop, handler, owner, &nowhere, NULL));
    struct entry *entry = get(pool, target);
    if (target->protocol == FL_WEB_H2)
        return open_h2(entry, handler, owner);
    return open_h1(entry, fresh, handler, owner);
}

void fl_web_pool_forget(struct fl_web_pool *pool, const struct fl_web_target *target)
{
    struct entry *entry = find(pool, target);

    if (entry == NULL)
        return;
    entry->generation++;
    while (!fl_link_is_alone(&entry->idle))
        retire(FL_CONTAINER_OF(entry->idle.next, struct fl_h1_conn, link));
    FL_LINK_FOREACH(link, &entry->h2s)
    {
        fl_h2_conn_drain(FL_CONTAINER_OF(link, struct fl_h2_conn, link));
    }
    set_spent_aside(entry);
}

static void kill_h1s(struct fl_link *list)
{
    struct fl_link *link;
    while ((link = fl_link_pop_head(list)) != NULL) {
        struct fl_h1_conn *conn = FL_CONTAINER_OF(link, struct fl_h1_conn, link);
        fl_link_unlink(&conn->pool_link);
        fl_h1_conn_kill(conn);
    }
}

static void kill_h2s(struct fl_link *list)
{
    struct fl_link *link;
    while ((link = fl_link_pop_head(list)) != NULL)
        fl_h2_conn_kill(FL_CONTAINER_OF(link, struct fl_h2_conn, link));
}

static void kill_exchanges(struct fl_link *list)
{
    struct fl_link *link;
    while ((link = fl_link_pop_head(list)) != NULL)
        fl_h2_exchange_kill(fl_h2_exchange_of_link(link), FL_ECANCELLED);
}

void fl_web_pool_free(struct fl_web_pool *pool)
{
    uint32_t at = 0;
    struct fl_bytes key;
    void *value;

    if (pool == NULL)
        return;
    pool->is_ending = true;
    fl_loop_timer_stop(pool->loop, &pool->expiry);
    while (fl_map_bytes_next(&pool->entries, &at, &key, &value)) {
        struct entry *entry = value;
        kill_h1s(&entry->idle);
        kill_h1s(&entry->busy);
        kill_h2s(&entry->h2s);
        kill_h2s(&entry->spent);
        kill_exchanges(&entry->waiting);
        kill_exchanges(&entry->unsent);
        assert(entry->exchanges == 0);
    }
    at = 0;
    while (fl_map_bytes_next(&pool->entries, &at, &key, &value))
        entry_free(value);
    fl_map_bytes_fini(&pool->entries);
    fl_web_reader_fini(&pool->reader);
    fl_free(pool);
}
