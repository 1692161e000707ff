/* SPDX-License-Identifier: Apache-2.0 */
/* What a runtime gives to the services on it: the event thread, the ZMQ context, the epoch domain.
 *
 * The event thread is the one writer of every prefix index and the owner of every ZMQ socket. A
 * turn of it:
 *
 *     tasks in the order they were posted -> poll (sockets of all sources, wake-up) -> ready
 * sources
 *     -> due ticks -> tasks ...
 *
 * It may block for I/O only in its poll; a source or task that has much to do cuts it into turns.
 */
#ifndef FL_SERVICE_RUNTIME_H
#define FL_SERVICE_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/epoch.h"
#include "base/list.h"
#include "fairlead/selection.h"

/* A ZMQ context (void * of zmq.h); sockets made of it are used on the event thread only. */
void *fl_runtime_zmq(struct fl_runtime *runtime);
/* The hub of KV-event subscribers: of the event thread alone. */
struct fl_kvevents *fl_runtime_hub(struct fl_runtime *runtime);
/* Retired to and reclaimed by the event thread alone. */
struct fl_epoch *fl_runtime_epoch(struct fl_runtime *runtime);

/* Work for the event thread. A member of its owner or an allocation of its own; `run` may free it.
 */
struct fl_runtime_task {
    struct fl_runtime_task *next; /* the runtime's until it runs */
    void (*run)(struct fl_runtime_task *task);
};
/* Any thread; never blocks or fails. Tasks run in the order of the posts. */
void fl_runtime_post(struct fl_runtime *runtime, struct fl_runtime_task *task);
/* Runs `call(to)` on the event thread and waits until it has returned. On the event thread: at
 * once. **Blocks.** */
void fl_runtime_call(struct fl_runtime *runtime, void (*call)(void *to), void *to);
bool fl_runtime_is_event_thread(const struct fl_runtime *runtime);

/* What wants to be polled. All functions run on the event thread. */
struct fl_event_source {
    struct fl_link link; /* the runtime's */
    /* Descriptor to wait on for reading, or -1: an epoll descriptor over everything the source has.
     */
    int fd;
    /* `fd` is readable, or a deadline has come. Does a bounded amount of work; returns true if
     * there is more, which makes the next poll not wait. */
    bool (*on_ready)(struct fl_event_source *source, uint64_t now_ms);
    /* When on_ready() wants to be called even without input; UINT64_MAX: never. On the runtime's
     * clock. */
    uint64_t (*next_ms)(const struct fl_event_source *source);
};
/* On the event thread (by a task). Detaching takes effect at once. */
void fl_runtime_attach(struct fl_runtime *runtime, struct fl_event_source *source);
void fl_runtime_detach(struct fl_runtime *runtime, struct fl_event_source *source);

/* Services on it, for the assertion in fl_runtime_free(). */
void fl_runtime_ref(struct fl_runtime *runtime);
void fl_runtime_unref(struct fl_runtime *runtime);

#endif
