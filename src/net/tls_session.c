/* SPDX-License-Identifier: Apache-2.0 */
#include "net/tls_session.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "net/tls_internal.h"

struct fl_tls_session {
    struct fl_tls_context *context;
    SSL *ssl;
    char *why;
    char alpn[16];
    bool is_done; /* handshake */
    bool has_met_plaintext;
    bool is_broken; /* no close_notify after a fatal error: OpenSSL forbids it */
};

/* ---- the descriptor, as OpenSSL sees it: its own socket BIO would raise SIGPIPE ---- */

static int fd_of(BIO *bio)
{
    return (int)(intptr_t)BIO_get_data(bio);
}

static int bio_result(BIO *bio, ssize_t n)
{
    BIO_clear_retry_flags(bio);
    return n < INT32_MAX ? (int)n : INT32_MAX;
}

static int bio_write(BIO *bio, const char *p, int n)
{
    ssize_t sent;
    do {
        sent = send(fd_of(bio), p, (size_t)n, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    int result = bio_result(bio, sent);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        BIO_set_retry_write(bio);
    return result;
}

static int bio_read(BIO *bio, char *out, int n)
{
    ssize_t got;
    do {
        got = recv(fd_of(bio), out, (size_t)n, 0);
    } while (got < 0 && errno == EINTR);
    int result = bio_result(bio, got);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        BIO_set_retry_read(bio);
    else if (got == 0)
        BIO_set_flags(bio, BIO_FLAGS_IN_EOF); /* lets OpenSSL say "unexpected eof" */
    return result;
}

static long bio_ctrl(BIO *bio, int command, long number, void *p)
{
    (void)number;
    (void)p;
    switch (command) {
    case BIO_CTRL_FLUSH:
    case BIO_CTRL_DUP:
        return 1;
    case BIO_CTRL_EOF:
        return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0;
    default:
        return 0;
    }
}

static int bio_create(BIO *bio)
{
    BIO_set_init(bio, 1);
    return 1;
}

BIO_METHOD *fl_tls_bio_method_new(void)
{
    BIO_METHOD *method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "fairlead socket");
    if (method == NULL)
        return NULL;
    BIO_meth_set_write(method, bio_write);
    BIO_meth_set_read(method, bio_read);
    BIO_meth_set_ctrl(method, bio_ctrl);
    BIO_meth_set_create(method, bio_create);
    return method;
}

/* ---- words ---- */

static void set_why(struct fl_tls_session *session, const char *words)
{
    fl_free(session->why);
    session->why = fl_strdup(words);
}

static void count(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* What an HTTP peer's first bytes look like to a TLS record parser. */
static bool is_plaintext_reason(int reason)
{
    return reason == SSL_R_HTTP_REQUEST || reason == SSL_R_HTTPS_PROXY_REQUEST ||
           reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_PACKET_LENGTH_TOO_LONG ||
           reason == SSL_R_RECORD_LENGTH_MISMATCH || reason == SSL_R_ENCRYPTED_LENGTH_TOO_LONG;
}

/* OpenSSL keeps silent towards a peer that speaks no TLS. An alert (fatal, unexpected_message) lets
 * our own plaintext clients tell in words what is wrong, and shows foreign ones that this is no
 * HTTP. */
static void send_alert(struct fl_tls_session *session)
{
    static const char alert[] = {0x15, 3, 1, 0, 2, 2, 10};
    bio_write(SSL_get_wbio(session->ssl), alert, sizeof(alert));
}

static void explain(struct fl_tls_session *session)
{
    struct fl_tls_context *context = session->context;
    unsigned long code = ERR_peek_error();
    int reason = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0;
    long verified = SSL_get_verify_result(session->ssl);
    char text[256];

    session->is_broken = true;
    if (!session->is_done && is_plaintext_reason(reason)) {
        session->has_met_plaintext = true;
        count(&context->plaintext_peers);
        if (!context->is_client)
            send_alert(session);
        set_why(session, context->is_client ? "server speaks plaintext, client is TLS"
                                            : "client speaks plaintext, server is TLS");
    } else if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
        count(&context->verify_failures);
        snprintf(text, sizeof(text), "certificate verify failed: %s",
                 X509_verify_cert_error_string(verified));
        set_why(session, text);
    } else if (reason == SSL_AD_REASON_OFFSET + SSL_AD_NO_APPLICATION_PROTOCOL) {
        count(&context->alpn_mismatches);
        set_why(session, "no ALPN: the server speaks none of the protocols offered");
    } else if (reason == SSL_R_NO_APPLICATION_PROTOCOL) {
        set_why(session, "no ALPN: the client offers none of our protocols"); /* counted there */
    } else {
        const char *words = code == 0 ? NULL : ERR_reason_error_string(code);
        set_why(session, words != NULL ? words : "protocol error");
    }
}

/* OpenSSL's answer in our words. `ret` is what its call returned. */
static enum fl_tls_result result_of(struct fl_tls_session *session, int ret)
{
    int saved = errno;
    switch (SSL_get_error(session->ssl, ret)) {
    case SSL_ERROR_NONE:
        return FL_TLS_DONE;
    case SSL_ERROR_WANT_READ:
        return FL_TLS_WANT_READ;
    case SSL_ERROR_WANT_WRITE:
        return FL_TLS_WANT_WRITE;
    case SSL_ERROR_ZERO_RETURN:
        return FL_TLS_ENDED;
    case SSL_ERROR_SYSCALL:
        session->is_broken = true;
        set_why(session, saved != 0 ? strerror(saved) : "connection closed");
        return FL_TLS_CUT;
    default:
        break;
    }
    if (ERR_GET_LIB(ERR_peek_error()) == ERR_LIB_SSL &&
        ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
        session->is_broken = true;
        ERR_clear_error();
        return FL_TLS_CUT;
    }
    explain(session);
    ERR_clear_error();
    return FL_TLS_FAILED;
}

/* ---- a session ---- */

/* `text` without port and brackets. */
static bool is_ip_literal(const char *text)
{
    unsigned char ip[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, text, ip) == 1 || inet_pton(AF_INET6, text, ip) == 1;
}

/* SNI for names only (RFC 6066 3). With a CA, the name, literal or, without any, the address that
 * was dialled has to stand in the certificate. */
static bool set_name(struct fl_tls_session *session, const char *server_name,
                     const struct fl_addr *peer)
{
    char ip[INET6_ADDRSTRLEN] = "";
    bool is_name = server_name != NULL && !is_ip_literal(server_name);
    if (is_name && SSL_set_tlsext_host_name(session->ssl, server_name) != 1)
        return false;
    if (session->context->ca_file == NULL)
        return true;
    if (is_name) {
        SSL_set_hostflags(session->ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
        return SSL_set1_host(session->ssl, server_name) == 1;
    }
    if (server_name != NULL)
        snprintf(ip, sizeof(ip), "%s", server_name);
    else if (peer->sa.sa_family == AF_INET)
        inet_ntop(AF_INET, &peer->v4.sin_addr, ip, sizeof(ip));
    else
        inet_ntop(AF_INET6, &peer->v6.sin6_addr, ip, sizeof(ip));
    return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session->ssl), ip) == 1;
}

static bool set_up(struct fl_tls_session *session, int fd)
{
    SSL_CTX *ctx = fl_tls_ctx_take(session->context);
    session->ssl = SSL_new(ctx);
    SSL_CTX_free(ctx);
    BIO *bio = BIO_new(session->context->method);
    if (session->ssl == NULL || bio == NULL) {
        BIO_free(bio);
        return false;
    }
    BIO_set_data(bio, (void *)(intptr_t)fd);
    SSL_set_bio(session->ssl, bio, bio);
    if (session->context->is_client)
        SSL_set_connect_state(session->ssl);
    else
        SSL_set_accept_state(session->ssl);
    return true;
}

struct fl_tls_session *fl_tls_session_new(struct fl_tls_context *context, int fd,
                                          const char *server_name, const struct fl_addr *peer)
{
    struct fl_tls_session *session = fl_calloc(1, sizeof(*session));
    ERR_clear_error();
    session->context = context;
    fl_tls_ref(context);
    if (!set_up(session, fd) || (context->is_client && !set_name(session, server_name, peer))) {
        ERR_clear_error();
        fl_tls_session_free(session);
        return NULL;
    }
    return session;
}

void fl_tls_session_free(struct fl_tls_session *session)
{
    if (session == NULL)
        return;
    SSL_free(session->ssl);
    fl_tls_unref(session->context);
    fl_free(session->why);
    fl_free(session);
}

static void keep_alpn(struct fl_tls_session *session)
{
    const unsigned char *name;
    unsigned int n;
    SSL_get0_alpn_selected(session->ssl, &name, &n);
    if (n > 0 && n < sizeof(session->alpn))
        memcpy(session->alpn, name, n);
}

enum fl_tls_result fl_tls_session_handshake(struct fl_tls_session *session)
{
    struct fl_tls_context *context = session->context;
    ERR_clear_error();
    errno = 0;
    int ret = SSL_do_handshake(session->ssl);
    enum fl_tls_result result = ret == 1 ? FL_TLS_DONE : result_of(session, ret);
    switch (result) {
    case FL_TLS_DONE:
        keep_alpn(session);
        if (context->is_alpn_required && session->alpn[0] == '\0') {
            count(&context->alpn_mismatches);
            count(&context->failures);
            set_why(session, "no ALPN: the server agrees on no protocol");
            return FL_TLS_FAILED;
        }
        session->is_done = true;
        count(&context->handshakes);
        break;
    case FL_TLS_WANT_READ:
    case FL_TLS_WANT_WRITE:
        break;
    default:
        session->is_broken = true;
        count(&context->failures);
        break;
    }
    return result;
}

enum fl_tls_result fl_tls_session_read(struct fl_tls_session *session, void *out, size_t n,
                                       size_t *done)
{
    ERR_clear_error();
    errno = 0;
    int ret = SSL_read_ex(session->ssl, out, n, done);
    return ret == 1 ? FL_TLS_DONE : result_of(session, ret);
}

enum fl_tls_result fl_tls_session_write(struct fl_tls_session *session, const void *p, size_t n,
                                        size_t *done)
{
    ERR_clear_error();
    errno = 0;
    int ret = SSL_write_ex(session->ssl, p, n, done);
    return ret == 1 ? FL_TLS_DONE : result_of(session, ret);
}

enum fl_tls_result fl_tls_session_shutdown(struct fl_tls_session *session)
{
    if (!session->is_done || session->is_broken)
        return FL_TLS_DONE;
    ERR_clear_error();
    errno = 0;
    int ret = SSL_shutdown(session->ssl);
    return ret >= 0 ? FL_TLS_DONE : result_of(session, ret);
}

bool fl_tls_session_has_pending(const struct fl_tls_session *session)
{
    return SSL_has_pending(session->ssl) == 1;
}

const char *fl_tls_session_alpn(const struct fl_tls_session *session)
{
    return session->alpn;
}

const char *fl_tls_session_why(const struct fl_tls_session *session)
{
    return session->why != NULL ? session->why : "";
}

bool fl_tls_session_met_plaintext(const struct fl_tls_session *session)
{
    return session->has_met_plaintext;
}
