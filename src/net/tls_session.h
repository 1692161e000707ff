/* SPDX-License-Identifier: Apache-2.0 */
/* TLS on one socket, as fl_stream uses it. Inside net/ only; OpenSSL ends here.
 *
 * Reads and writes the descriptor itself, with MSG_NOSIGNAL. Every call may answer that it has to
 * wait for either direction; the same call is made again once that is there. A repeated write
 * brings at least the bytes of the first attempt, at any address. */
#ifndef FL_NET_TLS_SESSION_H
#define FL_NET_TLS_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/tls.h"

enum fl_tls_result {
    FL_TLS_DONE,       /* read, write: *done bytes > 0 */
    FL_TLS_WANT_READ,  /* again when the socket is readable */
    FL_TLS_WANT_WRITE, /* again when the socket is writable */
    FL_TLS_ENDED,      /* close_notify came: the peer's direction has ended properly */
    FL_TLS_CUT,        /* FIN or RST came without one */
    FL_TLS_FAILED      /* fl_tls_session_why() */
};

struct fl_tls_session;

/* `server_name` and `peer` matter to clients only. NULL without memory. */
struct fl_tls_session *fl_tls_session_new(struct fl_tls_context *context, int fd,
                                          const char *server_name, const struct fl_addr *peer);
/* NULL allowed. */
void fl_tls_session_free(struct fl_tls_session *session);

enum fl_tls_result fl_tls_session_handshake(struct fl_tls_session *session);
enum fl_tls_result fl_tls_session_read(struct fl_tls_session *session, void *out, size_t n,
                                       size_t *done);
enum fl_tls_result fl_tls_session_write(struct fl_tls_session *session, const void *p, size_t n,
                                        size_t *done);
/* Sends close_notify; does not wait for the peer's. */
enum fl_tls_result fl_tls_session_shutdown(struct fl_tls_session *session);
/* Bytes that are off the socket already, so that polling would not show them. */
bool fl_tls_session_has_pending(const struct fl_tls_session *session);
const char *fl_tls_session_alpn(const struct fl_tls_session *session);
/* After FL_TLS_FAILED: the peer speaks no TLS at all. */
bool fl_tls_session_met_plaintext(const struct fl_tls_session *session);
/* Words for the last FL_TLS_FAILED; "" before. */
const char *fl_tls_session_why(const struct fl_tls_session *session);

#endif
