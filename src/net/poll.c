/* SPDX-License-Identifier: Apache-2.0 */
#include "net/poll.h"

#include <assert.h>

#include "base/error.h"
#include "net/loop_internal.h"

int fl_poll_open(struct fl_poll *poll, struct fl_loop *loop, int fd,
                 void (*on_ready)(struct fl_poll *poll, int events))
{
    if (uv_poll_init(fl_loop_uv(loop), &poll->uv, fd) != 0)
        return FL_EIO;
    poll->loop = loop;
    poll->on_ready = on_ready;
    poll->mask = 0;
    poll->was_watched = false;
    fl_loop_count_fd(loop, 1);
    return 0;
}

static void on_event(uv_poll_t *uv, int status, int events)
{
    struct fl_poll *poll = FL_CONTAINER_OF(uv, struct fl_poll, uv);
    struct fl_loop *loop = poll->loop;
    if (status < 0) {
        poll->mask = 0; /* libuv has stopped the handle */
        events = FL_POLL_ERROR;
    }
    poll->on_ready(poll, events);
    fl_loop_handler_done(loop);
}

void fl_poll_set(struct fl_poll *poll, int mask)
{
    if (mask == poll->mask)
        return;
    if (poll->was_watched)
        fl_loop_count_mask_change(poll->loop);
    poll->was_watched = true;
    poll->mask = (uint8_t)mask;
    int rc = mask == 0 ? uv_poll_stop(&poll->uv) : uv_poll_start(&poll->uv, mask, on_event);
    assert(rc == 0); /* fails for a closing handle only */
    (void)rc;
}

static void on_closed(uv_handle_t *handle)
{
    struct fl_poll *poll = FL_CONTAINER_OF((uv_poll_t *)handle, struct fl_poll, uv);
    poll->on_gone(poll);
}

void fl_poll_close(struct fl_poll *poll, void (*on_gone)(struct fl_poll *poll))
{
    poll->on_gone = on_gone;
    fl_loop_count_fd(poll->loop, -1);
    uv_close((uv_handle_t *)&poll->uv, on_closed);
}
