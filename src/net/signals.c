/* SPDX-License-Identifier: Apache-2.0 */
#include "net/signals.h"

#include <assert.h>
#include <stdlib.h>
#include <uv.h>

#include "base/alloc.h"
#include "base/log.h"
#include "net/loop_internal.h"

struct fl_signals {
    uv_signal_t handles[FL_SIGNALS_MAX];
    size_t count, alive;
    struct fl_loop *loop;
    void (*on_signal)(void *owner, int signum); /* NULL: closed */
    void *owner;
};

static void on_uv_signal(uv_signal_t *handle, int signum)
{
    struct fl_signals *signals = handle->data;
    if (signals->on_signal == NULL)
        return;
    signals->on_signal(signals->owner, signum);
    fl_loop_handler_done(signals->loop);
}

struct fl_signals *fl_signals_open(struct fl_loop *loop, const int *signums, size_t count,
                                   void (*on_signal)(void *owner, int signum), void *owner)
{
    assert(count <= FL_SIGNALS_MAX);
    struct fl_signals *signals = fl_calloc(1, sizeof(*signals));
    signals->loop = loop;
    signals->count = signals->alive = count;
    signals->on_signal = on_signal;
    signals->owner = owner;
    for (size_t i = 0; i < count; i++) {
        signals->handles[i].data = signals;
        if (uv_signal_init(fl_loop_uv(loop), &signals->handles[i]) != 0 ||
            uv_signal_start(&signals->handles[i], on_uv_signal, signums[i]) != 0) {
            fl_log(FL_LOG_ERROR, "signal cannot be caught", "signal=%d", signums[i]);
            abort();
        }
    }
    return signals;
}

static void on_closed(uv_handle_t *handle)
{
    struct fl_signals *signals = handle->data;
    if (--signals->alive == 0)
        fl_free(signals);
}

void fl_signals_close(struct fl_signals *signals)
{
    if (signals == NULL || signals->on_signal == NULL)
        return;
    signals->on_signal = NULL;
    for (size_t i = 0; i < signals->count; i++)
        uv_close((uv_handle_t *)&signals->handles[i], on_closed);
}
