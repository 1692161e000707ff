/* SPDX-License-Identifier: Apache-2.0 */
/* One request loop: its listeners, and how it takes over a generation of rules, drains and stops.
 */
#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "apps/gateway/gateway.h"
#include "base/alloc.h"
#include "base/log.h"
#include "proxy/errors.h"

#define LOOK_MS 20 /* how often a draining loop looks whether its connections have ended */

/* One VIP:port on this loop. */
struct entry {
    struct fl_link link;
    struct gateway_loop *worker;
    struct fl_proxy_entry proxy;
    struct fl_listener *listener; /* NULL: closed, connections are ending */
    struct fl_web_server *server;
    uint64_t deadline_ms; /* without a listener: then what is left is cut */
};

static void on_bad_request(void *owner, int status, const char *word, struct fl_buf *body,
                           const char **content_type)
{
    struct entry *entry = owner;
    fl_metric_add(&entry->worker->gateway->metrics, entry->worker->index, FL_PROXY_PROTOCOL_ERRORS,
                  fl_proxy_protocol_error_kind(word), 1);
    fl_proxy_on_bad_request(NULL, status, word, body, content_type);
}

static void on_request(void *owner, struct fl_exchange *x)
{
    struct entry *entry = owner;
    fl_forward_on_request(&entry->proxy, x);
}

static struct fl_rule_ip ip_of(const struct fl_addr *addr)
{
    struct fl_rule_ip ip = {0};
    if (addr->sa.sa_family == AF_INET6) {
        ip.family = 6;
        memcpy(ip.bytes, &addr->v6.sin6_addr, 16);
    } else {
        ip.family = 4;
        memcpy(ip.bytes, &addr->v4.sin_addr, 4);
    }
    return ip;
}

static void on_accept(void *owner, int fd, const struct fl_addr *peer)
{
    struct entry *entry = owner;
    const struct fl_rules_listener *rules =
        fl_rules_listener(entry->worker->proxy.snapshot, &entry->proxy.ip, entry->proxy.port);
    if (rules != NULL && rules->only != NULL) {
        struct fl_rule_ip ip = ip_of(peer);
        if (!fl_rule_allows(rules->only, &ip)) {
            close(fd);
            return;
        }
        atomic_fetch_add_explicit(&rules->only->live->total_connections, 1, memory_order_relaxed);
    }
    fl_web_server_accept(entry->server, fd);
}

static void open_entry(struct gateway_loop *worker, const struct gateway_binding *binding)
{
    const struct gateway_config *config = worker->gateway->config;
    struct entry *entry = fl_calloc(1, sizeof(*entry));
    uint32_t share = config->max_connections / worker->gateway->loop_count;
    const struct fl_web_server_config server = {
        .http1 = true,
        .max_header_bytes = config->max_header_bytes,
        .max_headers = config->max_headers,
        .head_timeout_ms = binding->head_timeout_ms,
        .idle_timeout_ms = binding->idle_timeout_ms,
        .max_connections = share > 0 ? share : 1,
        .budget = &worker->gateway->budget,
        .on_request = on_request,
        .on_bad_request = on_bad_request,
        .owner = entry,
    };
    entry->worker = worker;
    entry->proxy = (struct fl_proxy_entry){&worker->proxy, binding->ip, binding->port};
    entry->server = fl_web_server_new(worker->loop, &server);
    entry->listener = binding->listeners[worker->index];
    fl_link_init(&entry->link);
    fl_link_push_tail(&worker->entries, &entry->link);
    fl_listener_start(entry->listener, worker->loop, on_accept, entry);
}

static struct entry *find_entry(struct gateway_loop *worker, const struct gateway_binding *binding)
{
    FL_LINK_FOREACH(link, &worker->entries)
    {
        struct entry *entry = FL_CONTAINER_OF(link, struct entry, link);
        if (entry->listener != NULL && entry->proxy.port == binding->port &&
            fl_rule_ip_eq(&entry->proxy.ip, &binding->ip))
            return entry;
    }
    return NULL;
}

/* No new connections; what is there ends by itself, or is cut at the deadline. */
static void retire_entry(struct entry *entry, uint64_t drain_ms)
{
    if (entry->listener == NULL)
        return;
    fl_listener_close(entry->listener);
    entry->listener = NULL;
    entry->deadline_ms = fl_loop_now_ms(entry->worker->loop) + drain_ms;
    fl_web_server_drain(entry->server);
    fl_loop_timer_start(entry->worker->loop, &entry->worker->look, LOOK_MS);
}

static void free_entry(struct entry *entry)
{
    fl_link_unlink(&entry->link);
    fl_listener_close(entry->listener);
    fl_web_server_free(entry->server);
    fl_free(entry);
}

/* ---- mail ---- */

struct note {
    struct fl_letter letter;
    struct gateway_loop *worker;
    struct gateway_publication *publication;
    struct fl_rules_snapshot *snapshot;
    uint64_t timeout_ms;
};

static void post(struct fl_loop *to, struct note text,
                 void (*open)(struct fl_loop *loop, struct fl_letter *letter))
{
    struct note *note = fl_alloc(sizeof(*note));
    *note = text;
    note->letter = (struct fl_letter){.open = open};
    fl_loop_post(to, &note->letter);
}

static struct note take_note(struct fl_letter *letter)
{
    struct note *note = FL_CONTAINER_OF(letter, struct note, letter);
    struct note text = *note;
    fl_free(note);
    return text;
}

static void open_acknowledged(struct fl_loop *loop, struct fl_letter *letter)
{
    struct note note = take_note(letter);
    (void)loop;
    gateway_acknowledged(note.worker->gateway, note.publication, note.worker->index);
}

static void open_given_back(struct fl_loop *loop, struct fl_letter *letter)
{
    struct note note = take_note(letter);
    (void)loop;
    gateway_given_back(note.worker->gateway, note.snapshot);
}

static void open_drained(struct fl_loop *loop, struct fl_letter *letter)
{
    struct note note = take_note(letter);
    (void)loop;
    gateway_loop_drained(note.worker->gateway, note.worker->index);
}

static void give_back(void *owner, struct fl_rules_snapshot *snapshot)
{
    struct gateway_loop *worker = owner;
    post(worker->gateway->control, (struct note){.worker = worker, .snapshot = snapshot},
         open_given_back);
}

static void open_publication(struct fl_loop *loop, struct fl_letter *letter)
{
    struct note note = take_note(letter);
    struct gateway_loop *worker = note.worker;
    (void)loop;
    fl_proxy_adopt(&worker->proxy, &note.publication->rules);
    for (uint32_t i = 0; i < note.publication->binding_count; i++) {
        const struct gateway_binding *binding = &note.publication->bindings[i];
        struct entry *entry = find_entry(worker, binding);
        if (binding->listeners == NULL && entry != NULL)
            retire_entry(entry, GATEWAY_RULE_DRAIN_MS);
        else if (binding->listeners != NULL && worker->is_draining)
            fl_listener_close(binding->listeners[worker->index]);
        else if (binding->listeners != NULL)
            open_entry(worker, binding);
    }
    post(worker->gateway->control, (struct note){.worker = worker, .publication = note.publication},
         open_acknowledged);
}

void gateway_loop_publish(struct gateway_loop *worker, struct gateway_publication *publication)
{
    post(worker->loop, (struct note){.worker = worker, .publication = publication},
         open_publication);
}

/* ---- draining ---- */

static void report_if_drained(struct gateway_loop *worker)
{
    bool is_late = fl_loop_now_ms(worker->loop) >= worker->drain_deadline_ms;
    if (!worker->is_draining || worker->is_drained ||
        (!fl_link_is_alone(&worker->entries) && !is_late))
        return;
    worker->is_drained = true;
    post(worker->gateway->control, (struct note){.worker = worker}, open_drained);
}

static void on_look(struct fl_timer *timer)
{
    struct gateway_loop *worker = FL_CONTAINER_OF(timer, struct gateway_loop, look);
    uint64_t now_ms = fl_loop_now_ms(worker->loop);
    bool is_waiting = false;
    FL_LINK_FOREACH(link, &worker->entries)
    {
        struct entry *entry = FL_CONTAINER_OF(link, struct entry, link);
        if (entry->listener != NULL)
            continue;
        if (fl_web_server_connections(entry->server) == 0 || now_ms >= entry->deadline_ms)
            free_entry(entry);
        else
            is_waiting = true;
    }
    report_if_drained(worker);
    if (is_waiting)
        fl_loop_timer_start(worker->loop, &worker->look, LOOK_MS);
}

static void on_quiet(void *owner)
{
    (void)owner; /* connections are what a drain waits for; see on_look() */
}

static void open_drain(struct fl_loop *loop, struct fl_letter *letter)
{
    struct note note = take_note(letter);
    struct gateway_loop *worker = note.worker;
    worker->is_draining = true;
    worker->drain_deadline_ms = fl_loop_now_ms(loop) + note.timeout_ms;
    fl_proxy_drain(&worker->proxy);
    FL_LINK_FOREACH(link, &worker->entries)
    {
        retire_entry(FL_CONTAINER_OF(link, struct entry, link), note.timeout_ms);
    }
    fl_loop_timer_start(loop, &worker->look, LOOK_MS);
}

void gateway_loop_drain(struct gateway_loop *worker, uint64_t timeout_ms)
{
    post(worker->loop, (struct note){.worker = worker, .timeout_ms = timeout_ms}, open_drain);
}

/* ---- life ---- */

static void on_start(void *owner, struct fl_loop *loop)
{
    struct gateway *gateway = owner;
    struct gateway_loop *worker = &gateway->loops[fl_loop_index(loop)];
    worker->gateway = gateway;
    worker->index = fl_loop_index(loop);
    worker->loop = loop;
    worker->proxy = (struct fl_proxy){
        .config = &gateway->proxy_config,
        .give_back = give_back,
        .on_quiet = on_quiet,
        .owner = worker,
    };
    fl_link_init(&worker->entries);
    fl_timer_init(&worker->look, on_look);
    fl_proxy_init(&worker->proxy, loop, worker->index);
    fl_proxy_adopt(&worker->proxy, &gateway_current(gateway)->rules);
}

static void on_stop(void *owner, struct fl_loop *loop)
{
    struct gateway *gateway = owner;
    struct gateway_loop *worker = &gateway->loops[fl_loop_index(loop)];
    fl_loop_timer_stop(loop, &worker->look);
    FL_LINK_FOREACH(link, &worker->entries)
    {
        free_entry(FL_CONTAINER_OF(link, struct entry, link));
    }
    fl_proxy_fini(&worker->proxy);
}

int gateway_loops_start(struct gateway *gateway, struct fl_error *err)
{
    const struct fl_loops_config config = {
        .count = gateway->loop_count,
        .name = "gateway",
        .on_start = on_start,
        .on_stop = on_stop,
        .owner = gateway,
    };
    gateway->loops = fl_calloc(gateway->loop_count, sizeof(*gateway->loops));
    return fl_loops_start(&config, &gateway->threads, err);
}
