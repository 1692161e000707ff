/* SPDX-License-Identifier: Apache-2.0 */
/* The hub: one epoll over the descriptors of all sockets.
 *
 * A ZMQ descriptor says only that something happened inside; it may be readable with nothing to
 * read, and silent with messages waiting once its signal has been taken (dependencies.md 3.3). So a
 * signal puts its subscriber on the ready list, and it stays there until a read finds nothing. As a
 * second net, each run looks at a few subscribers nobody has signalled for. */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "kvevents/impl.h"

#define EVENTS_A_RUN 64
#define MESSAGES_A_RUN 256
#define MESSAGES_A_TURN 32  /* of one subscriber, before the next gets its turn */
#define PATROL 4            /* subscribers looked at without a signal */
#define MAINTAIN_STEPS 2048 /* some 0.7 ms when every node has to be touched */
#define MAINTAIN_EVERY_MS 1
#define MAINTAIN_INDEXES 16

struct fl_kvevents *fl_kvevents_new(void *zmq, struct fl_error *err)
{
    int fd = epoll_create1(EPOLL_CLOEXEC);
    if (fd < 0) {
        fl_error_set(err, FL_EINTERNAL, "kv events: no epoll descriptor: %s", strerror(errno));
        return NULL;
    }
    struct fl_kvevents *hub = fl_calloc(1, sizeof(*hub));
    hub->zmq = zmq;
    hub->epoll_fd = fd;
    hub->maintain_at_ms = UINT64_MAX;
    fl_link_init(&hub->subscribers);
    fl_link_init(&hub->ready);
    fl_wheel_init(&hub->wheel, 0);
    return hub;
}

void fl_kvevents_free(struct fl_kvevents *hub)
{
    if (hub == NULL)
        return;
    FL_LINK_FOREACH(link, &hub->subscribers)
    {
        fl_kv_unsubscribe(FL_CONTAINER_OF(link, struct fl_kv_subscriber, link));
    }
    close(hub->epoll_fd);
    fl_free(hub->indexes);
    fl_free(hub);
}

int fl_kvevents_fd(const struct fl_kvevents *hub)
{
    return hub->epoll_fd;
}

/* ---- sockets ---- */

int fl_kvevents_watch(struct fl_kvevents *hub, void *socket, struct fl_kv_subscriber *subscriber)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = subscriber};
    if (epoll_ctl(hub->epoll_fd, EPOLL_CTL_ADD, fl_kv_socket_fd(socket), &event) < 0)
        return FL_EIO;
    fl_kvevents_mark_ready(hub, subscriber);
    return 0;
}

void fl_kvevents_unwatch(struct fl_kvevents *hub, void *socket)
{
    epoll_ctl(hub->epoll_fd, EPOLL_CTL_DEL, fl_kv_socket_fd(socket), NULL);
}

void fl_kvevents_mark_ready(struct fl_kvevents *hub, struct fl_kv_subscriber *subscriber)
{
    fl_link_unlink(&subscriber->ready_link);
    fl_link_push_tail(&hub->ready, &subscriber->ready_link);
}

static void take_signals(struct fl_kvevents *hub)
{
    struct epoll_event events[EVENTS_A_RUN];
    int count = epoll_wait(hub->epoll_fd, events, EVENTS_A_RUN, 0);
    for (int i = 0; i < count; i++)
        fl_kvevents_mark_ready(hub, events[i].data.ptr);
}

static void patrol(struct fl_kvevents *hub)
{
    for (size_t i = 0; i < PATROL && !fl_link_is_alone(&hub->subscribers); i++) {
        struct fl_link *link = fl_link_pop_head(&hub->subscribers);
        fl_link_push_tail(&hub->subscribers, link);
        struct fl_kv_subscriber *subscriber = FL_CONTAINER_OF(link, struct fl_kv_subscriber, link);
        if (fl_link_is_alone(&subscriber->ready_link))
            fl_link_push_tail(&hub->ready, &subscriber->ready_link);
    }
}

/* ---- indexes ---- */

void fl_kvevents_attach_index(struct fl_kvevents *hub, struct fl_kvindex *index)
{
    if (hub->index_count == hub->index_cap) {
        hub->index_cap = hub->index_cap == 0 ? 4 : hub->index_cap * 2;
        hub->indexes = fl_realloc(hub->indexes, hub->index_cap, sizeof(struct fl_kvindex *));
    }
    hub->indexes[hub->index_count++] = index;
}

void fl_kvevents_detach_index(struct fl_kvevents *hub, struct fl_kvindex *index)
{
    for (size_t i = 0; i < hub->index_count; i++)
        if (hub->indexes[i] == index) {
            hub->indexes[i] = hub->indexes[--hub->index_count];
            return;
        }
}

static void maintain(struct fl_kvevents *hub, uint64_t now_ms)
{
    if (hub->maintain_at_ms != UINT64_MAX && now_ms < hub->maintain_at_ms)
        return;
    bool has_more = hub->index_count > MAINTAIN_INDEXES && hub->maintain_at_ms != UINT64_MAX;
    for (size_t i = 0; i < hub->index_count && i < MAINTAIN_INDEXES; i++) {
        struct fl_kvindex *index = hub->indexes[hub->next_index++ % hub->index_count];
        has_more |= fl_kvindex_maintain(index, MAINTAIN_STEPS);
    }
    hub->maintain_at_ms = has_more ? now_ms + MAINTAIN_EVERY_MS : UINT64_MAX;
}

/* ---- a run ---- */

bool fl_kvevents_run(struct fl_kvevents *hub, uint64_t now_ms)
{
    size_t budget = MESSAGES_A_RUN;
    fl_wheel_advance(&hub->wheel, now_ms);
    take_signals(hub);
    patrol(hub);

    /* Those that have more go to the end of the list, so that one storm does not starve the others.
     */
    struct fl_link round;
    fl_link_init(&round);
    fl_link_splice_tail(&round, &hub->ready);
    while (budget > 0 && !fl_link_is_alone(&round)) {
        struct fl_link *link = fl_link_pop_head(&round);
        struct fl_kv_subscriber *subscriber =
            FL_CONTAINER_OF(link, struct fl_kv_subscriber, ready_link);
        size_t share = budget < MESSAGES_A_TURN ? budget : MESSAGES_A_TURN;
        if (fl_kv_subscriber_run(subscriber, share, now_ms)) {
            budget -= share;
            fl_kvevents_mark_ready(hub, subscriber); /* it may stand there by itself already */
        } else {
            budget--;
        }
    }
    fl_link_splice_tail(&hub->ready, &round);
    maintain(hub, now_ms);
    return !fl_link_is_alone(&hub->ready);
}

uint64_t fl_kvevents_next_ms(const struct fl_kvevents *hub)
{
    uint64_t timer_ms = fl_wheel_next_ms(&hub->wheel);
    return timer_ms < hub->maintain_at_ms ? timer_ms : hub->maintain_at_ms;
}
