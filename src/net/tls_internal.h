/* SPDX-License-Identifier: Apache-2.0 */
/* What tls.c and tls_session.c share. */
#ifndef FL_NET_TLS_INTERNAL_H
#define FL_NET_TLS_INTERNAL_H

#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "net/tls.h"

struct fl_tls_context {
    _Atomic uint32_t refs;

    /* set when made */
    bool is_client, is_alpn_required;
    char *cert_file, *key_file, *ca_file, *extra_ip;
    uint8_t alpn[64]; /* wire form */
    size_t alpn_bytes;
    BIO_METHOD *method;

    /* A reload replaces it; taken once a connection, so a lock costs nothing beside the handshake.
     */
    pthread_mutex_t lock;
    SSL_CTX *ctx;

    /* any thread */
    _Atomic uint64_t handshakes, failures, plaintext_peers, alpn_mismatches, verify_failures;
};

/* The present one; its reference is the caller's. */
SSL_CTX *fl_tls_ctx_take(struct fl_tls_context *context);

/* How OpenSSL reads and writes our sockets. NULL without memory. */
BIO_METHOD *fl_tls_bio_method_new(void);

#endif
