/* SPDX-License-Identifier: Apache-2.0 */
/* A connected byte stream, plain or TLS, without blocking: the only thing above a socket that other
 * folders see. Sockets are read and written directly; the poll handle only says when.
 *
 * Reading. The stream stays armed for reading and reads ahead into one bounded buffer (FL_STREAM_READ_AHEAD bytes);
 * on_readable is called while the buffer holds bytes nobody has taken. The owner takes what it wants; what it leaves stays,
 * and when the buffer is full the socket is simply not read until room appears (the poll mask is changed only then:
 * dependencies.md 4.5). So the peer's FIN is seen even while the owner does not consume.
 *
 * Writing. fl_stream_write() queues slices (references, no copy; small frames are copied into a joined buffer) and the loop
 * flushes all of a turn with one writev at its end. `queued` bytes tell the owner when to stop producing; on_writable is called
 * once when it has fallen to FL_STREAM_LOW_BYTES or below after having been above it.
 *
 * Ends. on_closed is called exactly once, last, with the reason: 0 after fl_stream_close() or a clean end, FL_ECLOSED,
 * FL_EIO, FL_ETLS, FL_ETIMEOUT, FL_ECONNECT. A half-closed read side (FIN) is reported by on_eof; writing goes on.
 * Single loop. */
#ifndef FL_NET_STREAM_H
#define FL_NET_STREAM_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/error.h"
#include "net/loop.h"

#define FL_STREAM_READ_AHEAD 16384
#define FL_STREAM_LOW_BYTES 65536
#define FL_STREAM_HIGH_BYTES 262144 /* producers pause above it (gateway.md 7.1) */

struct fl_addr {
    union {
        struct sockaddr sa;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    };
    socklen_t len;
};

#define FL_ADDR_TEXT 64
/* "1.2.3.4:80" or "[::1]:80"; IP literals only, port 1..65535 (0 if allow_port_0). FL_EBAD_REQUEST with a sentence. */
int fl_addr_parse(struct fl_bytes text, bool allow_port_0, struct fl_addr *addr,
                  struct fl_error *err);
void fl_addr_format(const struct fl_addr *addr, char out[FL_ADDR_TEXT]);
uint16_t fl_addr_port(const struct fl_addr *addr);
bool fl_addr_eq(const struct fl_addr *a, const struct fl_addr *b);
bool fl_addr_is_loopback(const struct fl_addr *addr);

struct fl_stream;
struct fl_tls_context; /* net/tls.h */

struct fl_stream_ops {
    void (*on_connected)(void *owner, struct fl_stream *stream); /* connect and TLS handshake done; client side only... */
    void (*on_readable)(void *owner, struct fl_stream *stream);
    void (*on_eof)(void *owner, struct fl_stream *stream);
    void (*on_writable)(void *owner, struct fl_stream *stream);
    void (*on_closed)(void *owner, struct fl_stream *stream, int rc); /* last; memory goes after the turn */
};

struct fl_stream_config {
    struct fl_tls_context *tls; /* NULL: plain */
    const char *server_name;    /* client TLS: SNI and, when verified, the name; NULL: none */
    uint64_t connect_timeout_ms; /* connect + handshake; 0: 10 s */
    uint32_t user_timeout_ms;    /* TCP_USER_TIMEOUT; 0: system's */
    uint32_t keepalive_s;        /* SO_KEEPALIVE + TCP_KEEPIDLE; 0: off */
};

/* Connects. Never fails at once: on_closed comes in a later turn. */
struct fl_stream *fl_stream_connect(struct fl_loop *loop, const struct fl_addr *addr,
                                    const struct fl_stream_config *config,
                                    const struct fl_stream_ops *ops, void *owner);
/* Wraps an accepted socket (takes it). With tls, the handshake runs first; on_connected tells. */
struct fl_stream *fl_stream_accept(struct fl_loop *loop, int fd,
                                   const struct fl_stream_config *config,
                                   const struct fl_stream_ops *ops, void *owner);

/* What has been read ahead; lent until the next call on the stream. */
struct fl_bytes fl_stream_peek(const struct fl_stream *stream);
void fl_stream_consume(struct fl_stream *stream, size_t n);
/* Reads straight into caller's memory, read-ahead buffer first then the socket: bytes > 0, 0 nothing now, or FL_ECLOSED at
 * the peer's end. For bodies, so that large reads skip the small buffer. */
int64_t fl_stream_read(struct fl_stream *stream, void *out, size_t n);
/* Stops and restarts reading beyond the read-ahead buffer explicitly (pressure). Default: reading. */
void fl_stream_set_reading(struct fl_stream *stream, bool is_reading);

/* Takes the slice. */
void fl_stream_write(struct fl_stream *stream, struct fl_slice slice);
/* Copies; for heads and small frames. */
void fl_stream_write_copy(struct fl_stream *stream, struct fl_bytes bytes);
size_t fl_stream_queued(const struct fl_stream *stream);
/* Sends FIN (TLS: close_notify too) once all is written. */
void fl_stream_shutdown(struct fl_stream *stream);
/* Writes what is queued, then closes; at most `linger_ms`. */
void fl_stream_close(struct fl_stream *stream, uint64_t linger_ms);
/* Closes now; queued bytes are lost; with `reset` the peer sees RST. */
void fl_stream_abort(struct fl_stream *stream, bool reset);

const struct fl_addr *fl_stream_peer(const struct fl_stream *stream);
const struct fl_addr *fl_stream_local(const struct fl_stream *stream);
/* "h2", "http/1.1" or "" (plain or none agreed). */
const char *fl_stream_alpn(const struct fl_stream *stream);
struct fl_loop *fl_stream_loop(const struct fl_stream *stream);
/* Zero-byte look before reuse of an idle connection: true if it is open and silent. */
bool fl_stream_is_idle_alive(struct fl_stream *stream);

/* ---- listening ---- */

struct fl_listener;
/* Binds and listens: `reuse_port` for one socket per loop. Port 0 takes a free one; see fl_listener_addr(). FL_EIO with the errno text. */
int fl_listener_open(const struct fl_addr *addr, bool reuse_port, struct fl_listener **listener,
                     struct fl_error *err);
const struct fl_addr *fl_listener_addr(const struct fl_listener *listener);
/* Accepts on `loop`; each socket (non-blocking, TCP_NODELAY) is given away. At most 64 a wake. EMFILE: a spare descriptor is
 * spent to refuse one, then 100 ms rest. May be called on the loop's thread only. */
void fl_listener_start(struct fl_listener *listener, struct fl_loop *loop,
                       void (*on_accept)(void *owner, int fd, const struct fl_addr *peer), void *owner);
void fl_listener_stop(struct fl_listener *listener); /* keeps the socket; the backlog fills */
/* Accepts what the kernel has queued, then closes. NULL allowed. */
void fl_listener_close(struct fl_listener *listener);

#endif
