/* SPDX-License-Identifier: Apache-2.0 */
/* TLS settings shared by many streams: certificate and key of a server, trust of a client, ALPN.
 * At least TLS 1.2, no compression, no renegotiation, session tickets on (dependencies.md 3.2).
 *
 * A context is counted and may be used by streams of any loop. fl_tls_reload() may be called while
 * they do; connections that exist keep the old certificate. */
#ifndef FL_NET_TLS_H
#define FL_NET_TLS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "net/stream.h"

struct fl_tls_server_config {
    const char *cert_file, *key_file; /* PEM, chain first; both NULL: a self-signed one is made */
    const char *extra_ip;             /* in the self-signed one's names (POD_IP); NULL: none */
    /* By preference; NULL-terminated, NULL: no ALPN. A client that offers others only is refused;
     * one that offers none is served, see fl_stream_alpn(). */
    const char *const *alpn;
};

/* 0 or FL_ECONFIG with a sentence. */
int fl_tls_server_new(const struct fl_tls_server_config *config, struct fl_tls_context **context,
                      struct fl_error *err);

struct fl_tls_client_config {
    const char *ca_file;     /* PEM: chain and name are verified; NULL: nothing is */
    const char *const *alpn; /* offered; NULL-terminated, NULL: no ALPN */
    bool is_alpn_required;   /* a server that agrees on none is refused: "no ALPN" */
};

int fl_tls_client_new(const struct fl_tls_client_config *config, struct fl_tls_context **context,
                      struct fl_error *err);

void fl_tls_ref(struct fl_tls_context *context);
/* NULL allowed. */
void fl_tls_unref(struct fl_tls_context *context);

/* Reads the files again. On failure the old ones stay in use. Does nothing for a self-signed one.
 */
int fl_tls_reload(struct fl_tls_context *context, struct fl_error *err);

struct fl_tls_stats {
    uint64_t handshakes;      /* done */
    uint64_t failures;        /* handshakes that failed, whatever for */
    uint64_t plaintext_peers; /* of these: the peer speaks no TLS */
    uint64_t alpn_mismatches; /* of these: nothing agreed on */
    uint64_t verify_failures; /* of these: chain or name */
};
/* Any thread. */
void fl_tls_stats(const struct fl_tls_context *context, struct fl_tls_stats *stats);

#endif
