/* SPDX-License-Identifier: Apache-2.0 */
/* Readiness of one descriptor. Inside net/ only.
 *
 * The mask is the costly part: libuv takes a descriptor out of the kernel's set and puts it back
 * for each change (dependencies.md 4.5), so users keep it still and changes are counted. */
#ifndef FL_NET_POLL_H
#define FL_NET_POLL_H

#include <stdint.h>
#include <uv.h>

#include "net/loop.h"

enum {
    FL_POLL_READABLE = UV_READABLE,
    FL_POLL_WRITABLE = UV_WRITABLE,
    FL_POLL_HANGUP = UV_DISCONNECT, /* the peer will send no more; unread bytes may be there */
    FL_POLL_ERROR = 128             /* reported only: look at SO_ERROR. The mask is empty by then */
};

struct fl_poll {
    uv_poll_t uv;
    struct fl_loop *loop;
    void (*on_ready)(struct fl_poll *poll, int events);
    void (*on_gone)(struct fl_poll *poll);
    uint8_t mask;
    bool was_watched;
};

/* 0, or FL_EIO when the kernel will not watch `fd`. After 0, fl_poll_close() must follow. */
int fl_poll_open(struct fl_poll *poll, struct fl_loop *loop, int fd,
                 void (*on_ready)(struct fl_poll *poll, int events))
    __attribute__((warn_unused_result));
/* Sets what is waited for; 0: nothing. */
void fl_poll_set(struct fl_poll *poll, int mask);
/* Nothing is reported any more and `fd` may be closed at once; the memory stays until on_gone. */
void fl_poll_close(struct fl_poll *poll, void (*on_gone)(struct fl_poll *poll));

#endif
