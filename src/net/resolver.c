/* SPDX-License-Identifier: Apache-2.0 */
#include "net/resolver.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <uv.h>

#include "base/alloc.h"
#include "net/loop_internal.h"

/* A name: being looked up, or answered. */
struct entry {
    struct fl_link link;      /* in the resolver, oldest answer first */
    struct fl_link questions; /* that wait for it */
    char *host;
    bool is_answered;
    uint32_t askers; /* questions that point here, answered or not */
    int rc;
    uint64_t stale_ms;
    char why[128];
    size_t count;
    struct fl_addr addrs[FL_RESOLVER_ADDRS]; /* port 0 */
};

/* Outlives its resolver when that goes while the system still searches. */
struct lookup {
    uv_getaddrinfo_t request;
    struct fl_resolver *resolver; /* NULL: nobody waits any more */
    struct entry *entry;
    struct fl_link link;
};

struct fl_question {
    struct fl_link link; /* in its entry, or in the resolver's `ready` */
    struct entry *entry; /* NULL: a literal */
    struct fl_addr literal;
    uint16_t port;
    void (*done)(void *owner, int rc, const struct fl_addr *addrs, size_t count, const char *why);
    void *owner;
};

/* A linear list: a program knows tens of names. */
struct fl_resolver {
    struct fl_loop *loop;
    struct fl_link entries, lookups;
    struct fl_link ready; /* questions whose answer is there */
    struct fl_deferred answer;
    size_t entry_count;
    struct fl_resolver_stats stats;
};

static struct entry *entry_of(struct fl_link *link)
{
    return FL_CONTAINER_OF(link, struct entry, link);
}

static struct fl_question *question_of(struct fl_link *link)
{
    return FL_CONTAINER_OF(link, struct fl_question, link);
}

static void set_port(struct fl_addr *addr, uint16_t port)
{
    if (addr->sa.sa_family == AF_INET)
        addr->v4.sin_port = htons(port);
    else
        addr->v6.sin6_port = htons(port);
}

static void entry_free(struct fl_resolver *resolver, struct entry *entry)
{
    fl_link_unlink(&entry->link);
    resolver->entry_count--;
    fl_free(entry->host);
    fl_free(entry);
}

static bool is_in_use(const struct entry *entry)
{
    return !entry->is_answered || entry->askers > 0;
}

static void question_free(struct fl_question *question)
{
    fl_link_unlink(&question->link);
    if (question->entry != NULL)
        question->entry->askers--;
    fl_free(question);
}

static void give_answer(struct fl_question *question)
{
    struct fl_addr addrs[FL_RESOLVER_ADDRS];
    struct fl_question asked = *question;
    struct entry *entry = question->entry;
    size_t count = 1;
    int rc = 0;
    char why[sizeof(entry->why)] = "";

    addrs[0] = question->literal;
    if (entry != NULL) {
        rc = entry->rc;
        count = entry->count;
        memcpy(addrs, entry->addrs, count * sizeof(addrs[0]));
        memcpy(why, entry->why, sizeof(why));
    }
    for (size_t i = 0; i < count; i++)
        set_port(&addrs[i], asked.port);
    question_free(question);
    asked.done(asked.owner, rc, addrs, count, why); /* last: may free the resolver */
}

static void on_answer(struct fl_deferred *answer)
{
    struct fl_resolver *resolver = FL_CONTAINER_OF(answer, struct fl_resolver, answer);
    /* One a run: `done` may free the resolver, or cancel the others. */
    if (fl_link_is_alone(&resolver->ready))
        return;
    fl_loop_defer(resolver->loop, &resolver->answer);
    give_answer(question_of(resolver->ready.next));
}

static void make_ready(struct fl_resolver *resolver, struct fl_question *question)
{
    fl_link_unlink(&question->link);
    fl_link_push_tail(&resolver->ready, &question->link);
    fl_loop_defer(resolver->loop, &resolver->answer);
}

static void take_addresses(struct entry *entry, const struct addrinfo *found)
{
    for (; found != NULL && entry->count < FL_RESOLVER_ADDRS; found = found->ai_next) {
        struct fl_addr *addr = &entry->addrs[entry->count];
        if ((found->ai_family != AF_INET && found->ai_family != AF_INET6) ||
            found->ai_addrlen > sizeof(addr->v6))
            continue;
        memset(addr, 0, sizeof(*addr));
        memcpy(&addr->sa, found->ai_addr, found->ai_addrlen);
        addr->len = found->ai_addrlen;
        entry->count++;
    }
}

static void on_found(uv_getaddrinfo_t *request, int status, struct addrinfo *found)
{
    struct lookup *lookup = FL_CONTAINER_OF(request, struct lookup, request);
    struct fl_resolver *resolver = lookup->resolver;
    struct entry *entry = lookup->entry;
    if (resolver != NULL) {
        fl_link_unlink(&lookup->link);
        if (status == 0)
            take_addresses(entry, found);
        if (entry->count == 0) {
            entry->rc = FL_ECONNECT;
            resolver->stats.failures++;
            snprintf(entry->why, sizeof(entry->why), "resolve: %s",
                     status != 0 ? uv_strerror(status) : "no address");
        }
        entry->is_answered = true;
        entry->stale_ms = fl_loop_now_ms(resolver->loop) +
                          (entry->rc == 0 ? FL_RESOLVER_KEEP_MS : FL_RESOLVER_KEEP_FAILED_MS);
        /* to the young end */
        fl_link_unlink(&entry->link);
        fl_link_push_tail(&resolver->entries, &entry->link);
        while (!fl_link_is_alone(&entry->questions))
            make_ready(resolver, question_of(entry->questions.next));
        fl_loop_handler_done(resolver->loop);
    }
    uv_freeaddrinfo(found);
    fl_free(lookup);
}

static int look_up(struct fl_resolver *resolver, struct entry *entry)
{
    static const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct lookup *lookup = fl_calloc(1, sizeof(*lookup));
    lookup->resolver = resolver;
    lookup->entry = entry;
    fl_link_init(&lookup->link);
    fl_link_push_tail(&resolver->lookups, &lookup->link);
    resolver->stats.lookups++;
    int rc = uv_getaddrinfo(fl_loop_uv(resolver->loop), &lookup->request, on_found, entry->host,
                            NULL, &hints);
    if (rc == 0)
        return 0;
    fl_link_unlink(&lookup->link);
    fl_free(lookup);
    return rc;
}

/* Room for one more name: stale and unused answers go, oldest first. */
static void trim(struct fl_resolver *resolver)
{
    FL_LINK_FOREACH(link, &resolver->entries)
    {
        if (resolver->entry_count < FL_RESOLVER_NAMES)
            return;
        struct entry *entry = entry_of(link);
        if (!is_in_use(entry))
            entry_free(resolver, entry);
    }
}

static struct entry *entry_find(struct fl_resolver *resolver, const char *host)
{
    FL_LINK_FOREACH(link, &resolver->entries)
    {
        struct entry *entry = entry_of(link);
        if (strcmp(entry->host, host) != 0)
            continue;
        if (!entry->is_answered || fl_loop_now_ms(resolver->loop) < entry->stale_ms)
            return entry;
        if (!is_in_use(entry))
            entry_free(resolver, entry);
    }
    return NULL;
}

static struct entry *entry_new(struct fl_resolver *resolver, const char *host)
{
    trim(resolver);
    struct entry *entry = fl_calloc(1, sizeof(*entry));
    fl_link_init(&entry->link);
    fl_link_init(&entry->questions);
    entry->host = fl_strdup(host);
    resolver->entry_count++;
    fl_link_push_tail(&resolver->entries, &entry->link);
    int rc = look_up(resolver, entry);
    if (rc != 0) { /* a name that is too long or not IDNA, or no memory */
        entry->is_answered = true;
        entry->rc = FL_ECONNECT;
        entry->stale_ms = fl_loop_now_ms(resolver->loop) + FL_RESOLVER_KEEP_FAILED_MS;
        resolver->stats.failures++;
        snprintf(entry->why, sizeof(entry->why), "resolve: %s", uv_strerror(rc));
    }
    return entry;
}

static bool read_literal(const char *host, struct fl_addr *addr)
{
    memset(addr, 0, sizeof(*addr));
    if (inet_pton(AF_INET, host, &addr->v4.sin_addr) == 1) {
        addr->v4.sin_family = AF_INET;
        addr->len = sizeof(addr->v4);
        return true;
    }
    if (inet_pton(AF_INET6, host, &addr->v6.sin6_addr) == 1) {
        addr->v6.sin6_family = AF_INET6;
        addr->len = sizeof(addr->v6);
        return true;
    }
    return false;
}

struct fl_resolver *fl_resolver_new(struct fl_loop *loop)
{
    struct fl_resolver *resolver = fl_calloc(1, sizeof(*resolver));
    resolver->loop = loop;
    fl_link_init(&resolver->entries);
    fl_link_init(&resolver->lookups);
    fl_link_init(&resolver->ready);
    fl_deferred_init(&resolver->answer, on_answer);
    return resolver;
}

static void drop_questions(struct fl_link *list)
{
    while (!fl_link_is_alone(list))
        question_free(question_of(list->next));
}

void fl_resolver_free(struct fl_resolver *resolver)
{
    if (resolver == NULL)
        return;
    fl_loop_undefer(&resolver->answer);
    for (struct fl_link *link; (link = fl_link_pop_head(&resolver->lookups)) != NULL;) {
        struct lookup *lookup = FL_CONTAINER_OF(link, struct lookup, link);
        lookup->resolver = NULL;
        uv_cancel((uv_req_t *)&lookup->request); /* fails while it runs: then it ends unheard */
    }
    drop_questions(&resolver->ready);
    while (!fl_link_is_alone(&resolver->entries)) {
        struct entry *entry = entry_of(resolver->entries.next);
        drop_questions(&entry->questions);
        entry_free(resolver, entry);
    }
    fl_free(resolver);
}

struct fl_question *fl_resolver_ask(struct fl_resolver *resolver, const char *host, uint16_t port,
                                    void (*done)(void *owner, int rc, const struct fl_addr *addrs,
                                                 size_t count, const char *why),
                                    void *owner)
{
    struct fl_question *question = fl_calloc(1, sizeof(*question));
    question->port = port;
    question->done = done;
    question->owner = owner;
    fl_link_init(&question->link);
    resolver->stats.questions++;
    if (read_literal(host, &question->literal)) {
        make_ready(resolver, question);
        return question;
    }
    struct entry *entry = entry_find(resolver, host);
    if (entry == NULL)
        entry = entry_new(resolver, host);
    question->entry = entry;
    entry->askers++;
    fl_link_push_tail(&entry->questions, &question->link);
    if (entry->is_answered)
        make_ready(resolver, question);
    return question;
}

void fl_question_cancel(struct fl_question *question)
{
    if (question == NULL)
        return;
    question_free(question);
}

void fl_resolver_stats(const struct fl_resolver *resolver, struct fl_resolver_stats *stats)
{
    *stats = resolver->stats;
}
