/* SPDX-License-Identifier: Apache-2.0 */
#include "net/tls.h"

#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "net/tls_internal.h"

#define SELF_SIGNED_DAYS 3650 /* epp.md 1.2 */
#define SERIAL_BITS 159       /* RFC 5280 4.1.2.2: positive, at most 20 octets */

/* The oldest entry of OpenSSL's queue in words, or `otherwise`. Empties the queue. */
static const char *openssl_words(char *out, size_t room, const char *otherwise)
{
    unsigned long code = ERR_get_error();
    const char *reason = code == 0 ? NULL : ERR_reason_error_string(code);
    snprintf(out, room, "%s", reason != NULL ? reason : otherwise);
    ERR_clear_error();
    return out;
}

/* ---- ALPN ---- */

/* {"h2", "http/1.1"} to 02 'h' '2' 08 'h' ... */
static int alpn_encode(struct fl_tls_context *context, const char *const *alpn,
                       struct fl_error *err)
{
    for (; alpn != NULL && *alpn != NULL; alpn++) {
        size_t n = strlen(*alpn);
        if (n == 0 || n + 1 > sizeof(context->alpn) - context->alpn_bytes)
            return fl_error_set(err, FL_ECONFIG, "TLS: ALPN list is longer than %zu bytes",
                                sizeof(context->alpn));
        context->alpn[context->alpn_bytes++] = (uint8_t)n;
        memcpy(context->alpn + context->alpn_bytes, *alpn, n);
        context->alpn_bytes += n;
    }
    return 0;
}

static int select_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_bytes,
                       const unsigned char *in, unsigned int in_bytes, void *arg)
{
    struct fl_tls_context *context = arg;
    unsigned char *picked;
    (void)ssl;
    /* The first list's order decides: ours. */
    if (SSL_select_next_proto(&picked, out_bytes, context->alpn, (unsigned int)context->alpn_bytes,
                              in, in_bytes) != OPENSSL_NPN_NEGOTIATED) {
        atomic_fetch_add_explicit(&context->alpn_mismatches, 1, memory_order_relaxed);
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    }
    *out = picked;
    return SSL_TLSEXT_ERR_OK;
}

/* ---- the self-signed certificate ---- */

static bool add_extension(X509 *cert, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, cert, cert, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    bool is_added = extension != NULL && X509_add_ext(cert, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return is_added;
}

static bool set_serial(X509 *cert)
{
    BIGNUM *serial = BN_new();
    bool is_set = serial != NULL &&
                  BN_rand(serial, SERIAL_BITS, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
                  BN_to_ASN1_INTEGER(serial, X509_get_serialNumber(cert)) != NULL;
    BN_free(serial);
    return is_set;
}

static bool fill_certificate(X509 *cert, EVP_PKEY *key, const char *extra_ip)
{
    char names[160];
    X509_NAME *name = X509_get_subject_name(cert);
    snprintf(names, sizeof(names), "DNS:localhost,IP:127.0.0.1%s%s", extra_ip != NULL ? ",IP:" : "",
             extra_ip != NULL ? extra_ip : "");
    return X509_set_version(cert, X509_VERSION_3) == 1 && set_serial(cert) &&
           /* an hour of slack for clocks that disagree */
           X509_gmtime_adj(X509_getm_notBefore(cert), -3600) != NULL &&
           X509_time_adj_ex(X509_getm_notAfter(cert), SELF_SIGNED_DAYS, 0, NULL) != NULL &&
           X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"fairlead",
                                      -1, -1, 0) == 1 &&
           X509_set_issuer_name(cert, name) == 1 && X509_set_pubkey(cert, key) == 1 &&
           add_extension(cert, NID_basic_constraints, "critical,CA:TRUE") &&
           add_extension(cert, NID_ext_key_usage, "serverAuth") &&
           add_extension(cert, NID_subject_alt_name, names) &&
           X509_sign(cert, key, EVP_sha256()) > 0;
}

static int use_self_signed(SSL_CTX *ctx, const char *extra_ip, struct fl_error *err)
{
    char words[160];
    int rc = 0;
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    if (key == NULL || cert == NULL || !fill_certificate(cert, key, extra_ip) ||
        SSL_CTX_use_certificate(ctx, cert) != 1 || SSL_CTX_use_PrivateKey(ctx, key) != 1)
        rc = fl_error_set(err, FL_ECONFIG, "TLS: self-signed certificate%s%s: %s",
                          extra_ip != NULL ? " for " : "", extra_ip != NULL ? extra_ip : "",
                          openssl_words(words, sizeof(words), "cannot be made"));
    X509_free(cert);
    EVP_PKEY_free(key);
    return rc;
}

/* ---- contexts ---- */

static int use_files(SSL_CTX *ctx, const char *cert_file, const char *key_file,
                     struct fl_error *err)
{
    char words[160];
    if (SSL_CTX_use_certificate_chain_file(ctx, cert_file) != 1)
        return fl_error_set(err, FL_ECONFIG, "TLS: certificate %s: %s", cert_file,
                            openssl_words(words, sizeof(words), "unreadable"));
    if (SSL_CTX_use_PrivateKey_file(ctx, key_file, SSL_FILETYPE_PEM) != 1)
        return fl_error_set(err, FL_ECONFIG, "TLS: key %s: %s", key_file,
                            openssl_words(words, sizeof(words), "unreadable"));
    if (SSL_CTX_check_private_key(ctx) != 1)
        return fl_error_set(err, FL_ECONFIG, "TLS: key %s does not belong to certificate %s",
                            key_file, cert_file);
    return 0;
}

static int use_ca(SSL_CTX *ctx, const char *ca_file, struct fl_error *err)
{
    char words[160];
    if (SSL_CTX_load_verify_file(ctx, ca_file) != 1)
        return fl_error_set(err, FL_ECONFIG, "TLS: CA file %s: %s", ca_file,
                            openssl_words(words, sizeof(words), "unreadable"));
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    return 0;
}

static int make_ctx(struct fl_tls_context *context, SSL_CTX **out, struct fl_error *err)
{
    int rc = 0;
    ERR_clear_error();
    SSL_CTX *ctx = SSL_CTX_new(context->is_client ? TLS_client_method() : TLS_server_method());
    if (ctx == NULL)
        return fl_error_set(err, FL_ECONFIG, "TLS: out of memory");
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
    /* Partial and moving writes: our queue decides what is offered again. Released buffers: an idle
     * connection must not hold 32 KiB of record buffers. */
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                              SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_read_ahead(ctx, 1); /* one read for a record's head and body */
    if (context->is_client) {
        SSL_CTX_set_verify(ctx, SSL_VERIFY_NONE, NULL);
        if (context->ca_file != NULL)
            rc = use_ca(ctx, context->ca_file, err);
        /* 0 is success here */
        if (rc == 0 && context->alpn_bytes > 0 &&
            SSL_CTX_set_alpn_protos(ctx, context->alpn, (unsigned int)context->alpn_bytes) != 0)
            rc = fl_error_set(err, FL_ECONFIG, "TLS: ALPN list is not usable");
    } else {
        static const unsigned char id[] = "fairlead";
        SSL_CTX_set_session_id_context(ctx, id, sizeof(id) - 1);
        if (context->alpn_bytes > 0)
            SSL_CTX_set_alpn_select_cb(ctx, select_alpn, context);
        rc = context->cert_file != NULL ? use_files(ctx, context->cert_file, context->key_file, err)
                                        : use_self_signed(ctx, context->extra_ip, err);
    }
    if (rc < 0) {
        SSL_CTX_free(ctx);
        return rc;
    }
    *out = ctx;
    return 0;
}

static char *copy_of(const char *text)
{
    return text != NULL ? fl_strdup(text) : NULL;
}

static struct fl_tls_context *context_new(bool is_client)
{
    struct fl_tls_context *context = fl_calloc(1, sizeof(*context));
    atomic_init(&context->refs, 1);
    pthread_mutex_init(&context->lock, NULL);
    context->is_client = is_client;
    return context;
}

static int context_finish(struct fl_tls_context *context, const char *const *alpn,
                          struct fl_tls_context **out, struct fl_error *err)
{
    int rc = alpn_encode(context, alpn, err);
    context->method = fl_tls_bio_method_new();
    if (rc == 0 && context->method == NULL)
        rc = fl_error_set(err, FL_ECONFIG, "TLS: out of memory");
    if (rc == 0)
        rc = make_ctx(context, &context->ctx, err);
    if (rc < 0) {
        fl_tls_unref(context);
        return rc;
    }
    *out = context;
    return 0;
}

int fl_tls_server_new(const struct fl_tls_server_config *config, struct fl_tls_context **context,
                      struct fl_error *err)
{
    if ((config->cert_file == NULL) != (config->key_file == NULL))
        return fl_error_set(err, FL_ECONFIG,
                            "TLS: certificate and key file must be given both or neither");
    struct fl_tls_context *made = context_new(false);
    made->cert_file = copy_of(config->cert_file);
    made->key_file = copy_of(config->key_file);
    made->extra_ip = copy_of(config->extra_ip);
    return context_finish(made, config->alpn, context, err);
}

int fl_tls_client_new(const struct fl_tls_client_config *config, struct fl_tls_context **context,
                      struct fl_error *err)
{
    struct fl_tls_context *made = context_new(true);
    made->ca_file = copy_of(config->ca_file);
    made->is_alpn_required = config->is_alpn_required;
    return context_finish(made, config->alpn, context, err);
}

void fl_tls_ref(struct fl_tls_context *context)
{
    atomic_fetch_add_explicit(&context->refs, 1, memory_order_relaxed);
}

void fl_tls_unref(struct fl_tls_context *context)
{
    if (context == NULL || atomic_fetch_sub_explicit(&context->refs, 1, memory_order_acq_rel) != 1)
        return;
    SSL_CTX_free(context->ctx);
    BIO_meth_free(context->method);
    pthread_mutex_destroy(&context->lock);
    fl_free(context->cert_file);
    fl_free(context->key_file);
    fl_free(context->ca_file);
    fl_free(context->extra_ip);
    fl_free(context);
}

SSL_CTX *fl_tls_ctx_take(struct fl_tls_context *context)
{
    pthread_mutex_lock(&context->lock);
    SSL_CTX *ctx = context->ctx;
    SSL_CTX_up_ref(ctx);
    pthread_mutex_unlock(&context->lock);
    return ctx;
}

int fl_tls_reload(struct fl_tls_context *context, struct fl_error *err)
{
    SSL_CTX *fresh = NULL;
    if (context->cert_file == NULL && context->ca_file == NULL)
        return 0;
    int rc = make_ctx(context, &fresh, err);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&context->lock);
    SSL_CTX *old = context->ctx;
    context->ctx = fresh;
    pthread_mutex_unlock(&context->lock);
    SSL_CTX_free(old);
    return 0;
}

void fl_tls_stats(const struct fl_tls_context *context, struct fl_tls_stats *stats)
{
    stats->handshakes = atomic_load_explicit(&context->handshakes, memory_order_relaxed);
    stats->failures = atomic_load_explicit(&context->failures, memory_order_relaxed);
    stats->plaintext_peers = atomic_load_explicit(&context->plaintext_peers, memory_order_relaxed);
    stats->alpn_mismatches = atomic_load_explicit(&context->alpn_mismatches, memory_order_relaxed);
    stats->verify_failures = atomic_load_explicit(&context->verify_failures, memory_order_relaxed);
}
