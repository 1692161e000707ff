/* SPDX-License-Identifier: Apache-2.0 */
#include "net/stream.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "net/stream_internal.h"

/* ---- ends ---- */

/* The first words stay: what follows is a consequence. */
void fl_stream_set_why(struct fl_stream *stream, const char *format, ...)
{
    char text[256];
    va_list args;
    if (stream->why != NULL)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    stream->why = fl_strdup(text);
}

int fl_stream_rc_of_errno(int error)
{
    switch (error) {
    case ECONNRESET:
    case EPIPE:
        return FL_ECLOSED;
    case ETIMEDOUT:
        return FL_ETIMEOUT;
    default:
        return FL_EIO;
    }
}

static void stream_free(struct fl_disposable *disposable)
{
    struct fl_stream *stream = FL_CONTAINER_OF(disposable, struct fl_stream, dispose);
    fl_tls_session_free(stream->tls);
    fl_free(stream->why);
    fl_free(stream);
}

/* The poll handle's farewell and on_closed come in either order. */
static void dispose_if_done(struct fl_stream *stream)
{
    if (stream->is_told && !stream->has_poll)
        fl_loop_dispose(stream->loop, &stream->dispose, stream_free);
}

static void on_poll_gone(struct fl_poll *poll)
{
    struct fl_stream *stream = FL_CONTAINER_OF(poll, struct fl_stream, poll);
    stream->has_poll = false;
    dispose_if_done(stream);
}

/* Every ending comes here; only the first counts. No callback is called from here. */
void fl_stream_finish(struct fl_stream *stream, int rc)
{
    if (stream->state >= ST_CLOSED)
        return;
    stream->state = ST_CLOSED;
    stream->rc = rc;
    fl_loop_timer_stop(stream->loop, &stream->timer);
    fl_loop_undefer(&stream->flush);
    fl_stream_drop_in(stream);
    fl_stream_drop_out(stream);
    if (stream->has_poll)
        fl_poll_close(&stream->poll, on_poll_gone);
    if (stream->fd >= 0)
        close(stream->fd);
    stream->fd = -1;
    fl_loop_defer(stream->loop, &stream->wake);
}

/* Both directions have ended properly and the owner has everything. */
void fl_stream_finish_if_clean(struct fl_stream *stream)
{
    if (stream->state == ST_OPEN && stream->is_ended && stream->fin_sent &&
        fl_stream_in_size(stream) == 0)
        fl_stream_finish(stream, 0);
}

void fl_stream_update_mask(struct fl_stream *stream)
{
    int mask = 0;
    switch ((enum state)stream->state) {
    case ST_CONNECTING:
        mask = FL_POLL_WRITABLE;
        break;
    case ST_HANDSHAKE:
        mask = FL_POLL_READABLE;
        break;
    case ST_OPEN:
    case ST_LINGER:
        if (stream->is_ended)
            break;
        if (!stream->is_paused)
            mask = FL_POLL_READABLE;
        else if (!stream->is_hung_up)
            mask = FL_POLL_HANGUP; /* keeps errors coming, too */
        break;
    case ST_CLOSED:
    case ST_TOLD:
        return;
    }
    if (stream->is_blocked || stream->read_wants_write)
        mask |= FL_POLL_WRITABLE;
    fl_poll_set(&stream->poll, mask);
}

/* ---- events ---- */

void fl_stream_tls_mismatch(struct fl_stream *stream)
{
    char peer[FL_ADDR_TEXT];
    fl_addr_format(&stream->peer, peer);
    /* Whoever connects logs why it failed. Who accepts mostly does not. */
    fl_loop_tls_mismatch(stream->loop, stream->is_connector ? NULL : peer, stream->why);
}

static void open_up(struct fl_stream *stream)
{
    fl_loop_timer_stop(stream->loop, &stream->timer);
    stream->state = ST_OPEN;
    stream->is_blocked = false;
    if (stream->ops->on_connected != NULL)
        stream->ops->on_connected(stream->owner, stream);
    if (stream->state != ST_OPEN)
        return;
    if (fl_stream_queued(stream) > 0 || stream->fin_wanted)
        fl_stream_flush_later(stream);
    if (stream->tls != NULL)
        fl_loop_defer(stream->loop, &stream->wake); /* data may have come with the handshake */
    fl_stream_update_mask(stream);
}

static void shake_hands(struct fl_stream *stream)
{
    enum fl_tls_result result = fl_tls_session_handshake(stream->tls);
    switch (result) {
    case FL_TLS_DONE:
        open_up(stream);
        return;
    case FL_TLS_WANT_READ:
    case FL_TLS_WANT_WRITE:
        stream->is_blocked = result == FL_TLS_WANT_WRITE;
        fl_stream_update_mask(stream);
        return;
    case FL_TLS_ENDED:
    case FL_TLS_CUT:
        fl_stream_set_why(stream, "TLS handshake: connection closed by the peer");
        break;
    case FL_TLS_FAILED:
        fl_stream_set_why(stream, "TLS handshake: %s", fl_tls_session_why(stream->tls));
        if (fl_tls_session_met_plaintext(stream->tls))
            fl_stream_tls_mismatch(stream);
        break;
    }
    fl_stream_finish(stream, FL_ETLS);
}

static void get_local(struct fl_stream *stream)
{
    stream->local.len = sizeof(stream->local.v6);
    if (getsockname(stream->fd, &stream->local.sa, &stream->local.len) < 0 ||
        (stream->local.sa.sa_family != AF_INET && stream->local.sa.sa_family != AF_INET6))
        stream->local.len = 0;
}

/* A loopback port of the ephemeral range that nobody listens on can be picked as our own: then the
 * kernel connects the socket to itself. */
static bool is_connected_to_itself(struct fl_stream *stream)
{
    if (!fl_addr_is_loopback(&stream->peer))
        return false;
    get_local(stream);
    return fl_addr_eq(&stream->local, &stream->peer);
}

static void finish_connect(struct fl_stream *stream)
{
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(stream->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error == 0 && is_connected_to_itself(stream))
        error = ECONNREFUSED;
    if (error != 0) {
        fl_stream_set_why(stream, "connect: %s", strerror(error));
        fl_stream_finish(stream, error == ETIMEDOUT ? FL_ETIMEOUT : FL_ECONNECT);
        return;
    }
    if (stream->tls == NULL) {
        open_up(stream);
        return;
    }
    stream->state = ST_HANDSHAKE;
    shake_hands(stream);
}

static void on_socket_error(struct fl_stream *stream)
{
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(stream->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error == 0)
        error = ECONNRESET;
    fl_stream_set_why(stream, "socket: %s", strerror(error));
    fl_stream_fail(stream, stream->state == ST_HANDSHAKE ? FL_ETLS : fl_stream_rc_of_errno(error));
}

static void on_ready(struct fl_poll *poll, int events)
{
    struct fl_stream *stream = FL_CONTAINER_OF(poll, struct fl_stream, poll);
    if (stream->state == ST_CONNECTING) {
        finish_connect(stream);
        return;
    }
    if (events & FL_POLL_ERROR) {
        on_socket_error(stream);
        return;
    }
    if (stream->state == ST_HANDSHAKE) {
        shake_hands(stream);
        return;
    }
    if (events & FL_POLL_HANGUP)
        stream->is_hung_up = true;
    bool is_readable = events & FL_POLL_READABLE;
    if (events & FL_POLL_WRITABLE) {
        stream->is_blocked = false;
        is_readable = is_readable || stream->read_wants_write;
        stream->read_wants_write = false;
        fl_stream_flush_now(stream);
    }
    if (is_readable && stream->write_wants_read) {
        stream->write_wants_read = false;
        fl_stream_flush_now(stream);
    }
    if (is_readable && stream->state == ST_OPEN)
        fl_stream_read_on(stream);
    else if (is_readable && stream->state == ST_LINGER)
        fl_stream_read_away(stream);
    fl_stream_update_mask(stream);
}

static void on_wake(struct fl_deferred *wake)
{
    struct fl_stream *stream = FL_CONTAINER_OF(wake, struct fl_stream, wake);
    switch ((enum state)stream->state) {
    case ST_CONNECTING:
        finish_connect(stream);
        break;
    case ST_OPEN:
        if (stream->is_asked && !fl_stream_deliver(stream))
            break;
        fl_stream_read_on(stream);
        break;
    case ST_HANDSHAKE:
    case ST_LINGER:
    case ST_TOLD:
        break;
    case ST_CLOSED:
        stream->state = ST_TOLD;
        stream->ops->on_closed(stream->owner, stream, stream->rc);
        stream->is_told = true;
        dispose_if_done(stream);
        break;
    }
}

static void on_timeout(struct fl_timer *timer)
{
    struct fl_stream *stream = FL_CONTAINER_OF(timer, struct fl_stream, timer);
    if (stream->state == ST_LINGER && fl_stream_queued(stream) == 0) {
        fl_stream_finish(stream, 0);
        return;
    }
    if (stream->state == ST_CONNECTING)
        fl_stream_set_why(stream, "connect: timed out");
    else if (stream->state == ST_HANDSHAKE)
        fl_stream_set_why(stream, "TLS handshake: timed out");
    else
        fl_stream_set_why(stream, "close: the peer does not take the last bytes");
    fl_stream_finish(stream, FL_ETIMEOUT);
}

/* ---- making ---- */

static struct fl_stream *stream_new(struct fl_loop *loop, const struct fl_stream_ops *ops,
                                    void *owner)
{
    struct fl_stream *stream = fl_calloc(1, sizeof(*stream));
    stream->loop = loop;
    stream->ops = ops;
    stream->owner = owner;
    stream->fd = -1;
    stream->is_reading = true;
    fl_timer_init(&stream->timer, on_timeout);
    fl_deferred_init(&stream->wake, on_wake);
    fl_deferred_init(&stream->flush, fl_stream_on_flush);
    return stream;
}

static void set_options(struct fl_stream *stream, const struct fl_stream_config *config)
{
    int on = 1;
    if (stream->is_connector)
        setsockopt(stream->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (config->user_timeout_ms > 0)
        setsockopt(stream->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &config->user_timeout_ms,
                   sizeof(config->user_timeout_ms));
    if (config->keepalive_s > 0) {
        int idle_s = (int)config->keepalive_s;
        setsockopt(stream->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
        setsockopt(stream->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    }
}

/* False: the stream is finished. */
static bool set_up(struct fl_stream *stream, const struct fl_stream_config *config)
{
    set_options(stream, config);
    stream->is_checked_for_tls = config->tls != NULL || config->takes_tls_bytes;
    if (config->tls != NULL) {
        stream->tls =
            fl_tls_session_new(config->tls, stream->fd, config->server_name, &stream->peer);
        if (stream->tls == NULL) {
            fl_stream_set_why(stream, "TLS: out of memory");
            fl_stream_finish(stream, FL_ENOMEM);
            return false;
        }
    }
    if (fl_poll_open(&stream->poll, stream->loop, stream->fd, on_ready) < 0) {
        fl_stream_set_why(stream, "the socket cannot be watched");
        fl_stream_finish(stream, FL_EIO);
        return false;
    }
    stream->has_poll = true;
    if (stream->is_connector || stream->tls != NULL)
        fl_loop_timer_start(stream->loop, &stream->timer,
                            config->connect_timeout_ms > 0 ? config->connect_timeout_ms
                                                           : FL_STREAM_CONNECT_TIMEOUT_MS);
    return true;
}

static const struct fl_stream_config plain_config;

struct fl_stream *fl_stream_connect(struct fl_loop *loop, const struct fl_addr *addr,
                                    const struct fl_stream_config *config,
                                    const struct fl_stream_ops *ops, void *owner)
{
    struct fl_stream *stream = stream_new(loop, ops, owner);
    stream->is_connector = true;
    stream->peer = *addr;
    stream->fd = socket(addr->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (stream->fd < 0) {
        fl_stream_set_why(stream, "socket: %s", strerror(errno));
        fl_stream_finish(stream, FL_EIO); /* ours, not the peer's fault */
        return stream;
    }
    if (!set_up(stream, config != NULL ? config : &plain_config))
        return stream;
    if (connect(stream->fd, &addr->sa, addr->len) == 0) {
        fl_loop_defer(loop, &stream->wake);
    } else if (errno == EINPROGRESS) {
        fl_stream_update_mask(stream);
    } else {
        fl_stream_set_why(stream, "connect: %s", strerror(errno));
        fl_stream_finish(stream, FL_ECONNECT);
    }
    return stream;
}

struct fl_stream *fl_stream_accept(struct fl_loop *loop, int fd,
                                   const struct fl_stream_config *config,
                                   const struct fl_stream_ops *ops, void *owner)
{
    struct fl_stream *stream = stream_new(loop, ops, owner);
    stream->fd = fd;
    stream->peer.len = sizeof(stream->peer.v6);
    if (getpeername(fd, &stream->peer.sa, &stream->peer.len) < 0 ||
        (stream->peer.sa.sa_family != AF_INET && stream->peer.sa.sa_family != AF_INET6))
        stream->peer.len = 0;
    if (!set_up(stream, config != NULL ? config : &plain_config))
        return stream;
    stream->state = stream->tls != NULL ? ST_HANDSHAKE : ST_OPEN;
    fl_stream_update_mask(stream);
    return stream;
}

/* ---- the owner's calls ---- */

void fl_stream_set_owner(struct fl_stream *stream, const struct fl_stream_ops *ops, void *owner)
{
    stream->ops = ops;
    stream->owner = owner;
}

void fl_stream_close(struct fl_stream *stream, uint64_t linger_ms)
{
    if (stream->state >= ST_LINGER)
        return;
    if (stream->state < ST_OPEN) {
        fl_stream_finish(stream, 0);
        return;
    }
    stream->state = ST_LINGER;
    stream->fin_wanted = true;
    stream->is_quick = linger_ms == 0;
    stream->is_paused = stream->is_full = stream->is_high = false;
    fl_stream_drop_in(stream);
    if (linger_ms > 0)
        fl_loop_timer_start(stream->loop, &stream->timer, linger_ms);
    if (stream->fin_sent && (stream->is_ended || stream->is_quick))
        fl_stream_finish(stream, 0);
    else
        fl_loop_defer_flush(stream->loop, &stream->flush);
}

void fl_stream_abort(struct fl_stream *stream, bool reset)
{
    if (stream->state >= ST_CLOSED)
        return;
    if (reset && stream->fd >= 0) {
        struct linger hard = {.l_onoff = 1, .l_linger = 0};
        setsockopt(stream->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    }
    fl_stream_finish(stream, 0);
}

bool fl_stream_is_open(const struct fl_stream *stream)
{
    return stream->state == ST_OPEN;
}

const struct fl_addr *fl_stream_peer(const struct fl_stream *stream)
{
    return &stream->peer;
}

const struct fl_addr *fl_stream_local(const struct fl_stream *stream)
{
    /* Asked of the kernel when first wanted: most streams never are. */
    if (stream->local.len == 0 && stream->fd >= 0)
        get_local((struct fl_stream *)stream);
    return &stream->local;
}

const char *fl_stream_alpn(const struct fl_stream *stream)
{
    return stream->tls != NULL ? fl_tls_session_alpn(stream->tls) : "";
}

bool fl_stream_is_tls(const struct fl_stream *stream)
{
    return stream->tls != NULL;
}

struct fl_loop *fl_stream_loop(const struct fl_stream *stream)
{
    return stream->loop;
}

const char *fl_stream_why(const struct fl_stream *stream)
{
    return stream->why != NULL ? stream->why : "";
}
