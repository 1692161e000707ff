/* SPDX-License-Identifier: Apache-2.0 */
/* A connected byte stream, plain or TLS, without blocking: the only thing above a socket that other
 * folders see. Sockets are read and written directly; the poll handle only says when.
 *
 *            connect --> CONNECTING --> HANDSHAKE (TLS) --> OPEN --> LINGER (fl_stream_close) -->
 * CLOSED accept  ------------------^------------------^          any state: abort, error ----^
 *
 * Reading. The stream stays armed for reading and reads ahead into one bounded buffer
 * (FL_STREAM_READ_AHEAD bytes), which it owns only while it holds something. on_readable is called
 * after bytes have arrived. The owner takes what it wants; what it leaves stays, and the owner
 * comes back for it by itself, or by fl_stream_set_reading(stream, true), after which on_readable
 * is called again. While the buffer is full the socket is not read (only then the poll mask is
 * changed: dependencies.md 4.5), so back-pressure reaches the peer, and otherwise the peer's FIN is
 * seen even while the owner does not consume.
 *
 * Writing. fl_stream_write() queues slices (references, no copy; small ones are copied into a
 * joined buffer), and the loop flushes all of a turn at its end, with one system call if the socket
 * takes it. `queued` bytes tell the owner when to stop producing; on_writable is called once when
 * they have fallen to FL_STREAM_LOW_BYTES or below after having been above it.
 *
 * Ends. on_closed is called exactly once and last, with the reason: 0 after fl_stream_close(),
 * fl_stream_abort() or when both directions have ended properly and all was taken; FL_ECLOSED:
 * reset by the peer, or TLS cut without a close_notify; FL_EIO; FL_ETLS; FL_ETIMEOUT; FL_ECONNECT.
 * fl_stream_why() has it in words. A half-closed read side (FIN) is reported by on_eof; writing
 * goes on. What the peer sent before a reset is still handed out, if the owner takes it in
 * on_readable.
 *
 * No callback is ever called from inside a call of the owner. The memory goes after the turn in
 * which on_closed was called. Single loop. */
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

/* ---- addresses ---- */

/* An IP address and port. len 0: not known. */
struct fl_addr {
    union {
        struct sockaddr sa;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    };
    socklen_t len;
};

#define FL_ADDR_TEXT 64
/* "1.2.3.4:80" or "[::1]:80"; IP literals only, port 1..65535 (0 if allow_port_0). FL_EBAD_REQUEST
 * with a sentence, *addr untouched. */
int fl_addr_parse(struct fl_bytes text, bool allow_port_0, struct fl_addr *addr,
                  struct fl_error *err);
/* The same form; "-" for an address that is not known or not IP. */
void fl_addr_format(const struct fl_addr *addr, char out[FL_ADDR_TEXT]);
uint16_t fl_addr_port(const struct fl_addr *addr);
bool fl_addr_eq(const struct fl_addr *a, const struct fl_addr *b);
bool fl_addr_is_loopback(const struct fl_addr *addr);

/* ---- streams ---- */

struct fl_stream;
struct fl_tls_context; /* net/tls.h */

/* Any but on_closed may be NULL. */
struct fl_stream_ops {
    /* fl_stream_connect(): connected, and with TLS the handshake is done. fl_stream_accept(): with
     * TLS, the handshake is done; not called for plain streams, which are open from the start. */
    void (*on_connected)(void *owner, struct fl_stream *stream);
    void (*on_readable)(void *owner, struct fl_stream *stream);
    /* The peer will send no more. Bytes that were not taken are still there. */
    void (*on_eof)(void *owner, struct fl_stream *stream);
    void (*on_writable)(void *owner, struct fl_stream *stream);
    void (*on_closed)(void *owner, struct fl_stream *stream, int rc);
};

struct fl_stream_config {
    struct fl_tls_context *tls;  /* NULL: plain. Referenced */
    const char *server_name;     /* client TLS: SNI (unless an IP literal) and, when verified, the
                                  * name; NULL: no SNI, the peer's address is verified. Copied */
    uint64_t connect_timeout_ms; /* connect + handshake; 0: FL_STREAM_CONNECT_TIMEOUT_MS */
    uint32_t user_timeout_ms;    /* TCP_USER_TIMEOUT; 0: system's */
    uint32_t keepalive_s;        /* SO_KEEPALIVE + TCP_KEEPIDLE; 0: off */
    /* A plain stream closes with FL_ETLS and says so in words when its first bytes are a TLS
     * ClientHello (accepted; answered by a TLS alert) or a TLS alert (connected): gaie.md 1.1. True
     * where such bytes may be data. */
    bool takes_tls_bytes;
};

#define FL_STREAM_CONNECT_TIMEOUT_MS 10000 /* epp.md 1.2, handshake limit */

/* Connects. `config` NULL: plain. Never fails at once: on_closed comes later. Writing is allowed at
 * once and waits. */
struct fl_stream *fl_stream_connect(struct fl_loop *loop, const struct fl_addr *addr,
                                    const struct fl_stream_config *config,
                                    const struct fl_stream_ops *ops, void *owner);
/* Wraps an accepted (or otherwise connected) stream socket and takes it. With TLS the handshake
 * runs first, as the server. */
struct fl_stream *fl_stream_accept(struct fl_loop *loop, int fd,
                                   const struct fl_stream_config *config,
                                   const struct fl_stream_ops *ops, void *owner);

/* Others than those given at the start, from now on; for a pool whose connections change hands. */
void fl_stream_set_owner(struct fl_stream *stream, const struct fl_stream_ops *ops, void *owner);

/* What has been read ahead; lent until some of it is consumed or read, or the next event. */
struct fl_bytes fl_stream_peek(const struct fl_stream *stream);
/* n <= what peek shows. */
void fl_stream_consume(struct fl_stream *stream, size_t n);
/* Reads straight into the caller's memory, read-ahead buffer first, then the socket: bytes > 0, 0
 * nothing now, or a negative code at the peer's end (FL_ECLOSED) or after an error. For bodies, so
 * that large reads skip the small buffer. */
int64_t fl_stream_read(struct fl_stream *stream, void *out, size_t n);
/* False: on_readable is not called, and what arrives stays in the buffer and, beyond it, in the
 * socket. True (the default): on_readable is called soon if anything waits. */
void fl_stream_set_reading(struct fl_stream *stream, bool is_reading);

/* Takes the slice. */
void fl_stream_write(struct fl_stream *stream, struct fl_slice slice);
/* Copies; for heads and small frames. */
void fl_stream_write_copy(struct fl_stream *stream, struct fl_bytes bytes);
/* What the socket has not taken yet. */
size_t fl_stream_queued(const struct fl_stream *stream);
/* Sends FIN (TLS: close_notify, too) once all is written. Nothing may be written afterwards. */
void fl_stream_shutdown(struct fl_stream *stream);
/* Writes what is queued, sends FIN and waits for the peer's, dropping what still arrives, so that
 * no reset overtakes our last bytes; at most `linger_ms` in all (0: one attempt to write, no wait).
 */
void fl_stream_close(struct fl_stream *stream, uint64_t linger_ms);
/* Closes now; queued bytes are lost; with `reset` the peer sees RST. */
void fl_stream_abort(struct fl_stream *stream, bool reset);

bool fl_stream_is_open(const struct fl_stream *stream); /* connected, not closing */
const struct fl_addr *fl_stream_peer(const struct fl_stream *stream);
const struct fl_addr *fl_stream_local(const struct fl_stream *stream);
/* "h2", "http/1.1" or "" (plain or none agreed). */
const char *fl_stream_alpn(const struct fl_stream *stream);
bool fl_stream_is_tls(const struct fl_stream *stream);
struct fl_loop *fl_stream_loop(const struct fl_stream *stream);
/* In on_closed: the reason in words ("connect: Connection refused"), "" if there is none. */
const char *fl_stream_why(const struct fl_stream *stream);
/* Zero-byte look before reuse of an idle connection: true if it is open and silent. */
bool fl_stream_is_idle_alive(struct fl_stream *stream);

/* ---- listening ---- */

#define FL_LISTENER_BACKLOG 4096      /* gateway.md 5 */
#define FL_LISTENER_ACCEPTS_A_WAKE 64 /* dependencies.md 4.5 */
#define FL_LISTENER_REST_MS 100       /* without descriptors */

struct fl_listener;
/* Binds and listens; `reuse_port` for one socket per loop. Port 0 takes a free one; see
 * fl_listener_addr(). FL_EIO with the system's words. Any thread, as long as it is not started. */
int fl_listener_open(const struct fl_addr *addr, bool reuse_port, struct fl_listener **listener,
                     struct fl_error *err);
const struct fl_addr *fl_listener_addr(const struct fl_listener *listener);
/* Accepts on `loop`; each socket (non-blocking, TCP_NODELAY) is given away. At most
 * FL_LISTENER_ACCEPTS_A_WAKE a wake. Without free descriptors a spare one is spent to refuse one
 * client, then the listener rests for FL_LISTENER_REST_MS. Restarts after a stop, on the same loop.
 */
void fl_listener_start(struct fl_listener *listener, struct fl_loop *loop,
                       void (*on_accept)(void *owner, int fd, const struct fl_addr *peer),
                       void *owner);
/* Keeps the socket; the backlog fills. May be called from on_accept. */
void fl_listener_stop(struct fl_listener *listener);
/* Hands what the kernel has queued to on_accept (from inside this call), then closes. NULL allowed.
 */
void fl_listener_close(struct fl_listener *listener);
/* Clients refused for want of descriptors. */
uint64_t fl_listener_refused(const struct fl_listener *listener);

#endif
