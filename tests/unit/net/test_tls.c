/* SPDX-License-Identifier: Apache-2.0 */
#include "end.h"

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include "base/rng.h"
#include "net/tls.h"

static const char *const h2_only[] = {"h2", NULL};
static const char *const h1_only[] = {"http/1.1", NULL};
static const char *const h2_and_h1[] = {"h2", "http/1.1", NULL};
static const char *const h1_and_h2[] = {"http/1.1", "h2", NULL};

static struct fl_tls_context *server_context(const char *const *alpn)
{
    struct fl_tls_server_config config = {.alpn = alpn};
    struct fl_tls_context *context = NULL;
    struct fl_error err = {0};
    if (fl_tls_server_new(&config, &context, &err) < 0)
        fail_msg("%s", err.text);
    return context;
}

static struct fl_tls_context *client_context(const char *const *alpn, bool is_alpn_required,
                                             const char *ca_file)
{
    struct fl_tls_client_config config = {
        .alpn = alpn, .is_alpn_required = is_alpn_required, .ca_file = ca_file};
    struct fl_tls_context *context = NULL;
    struct fl_error err = {0};
    if (fl_tls_client_new(&config, &context, &err) < 0)
        fail_msg("%s", err.text);
    return context;
}

static void tls_pair_open(struct pair *pair)
{
    pair_dial(pair);
    RUN_UNTIL(pair->loop, pair->client.connected == 1 && pair->server.connected == 1);
}

static void encrypted_bytes_go_both_ways_and_both_ends_close_cleanly(void **state)
{
    (void)state;
    struct pair pair;
    struct fl_tls_context *server = server_context(h2_only),
                          *client = client_context(h2_only, true, NULL);
    struct fl_tls_stats stats;
    pair_init(&pair);
    pair.server_config.tls = server;
    pair.client_config.tls = client;
    pair_dial(&pair);
    fl_stream_write_copy(pair.client.stream, FL_BYTES("before the handshake"));
    RUN_UNTIL(pair.loop, end_has(&pair.server, "before the handshake"));
    assert_string_equal(pair.client.alpn, "h2");
    assert_string_equal(pair.server.alpn, "h2");
    assert_true(fl_stream_is_tls(pair.server.stream));
    fl_stream_write_copy(pair.server.stream, FL_BYTES("answer"));
    fl_stream_shutdown(pair.server.stream);
    RUN_UNTIL(pair.loop, pair.client.eof == 1);
    assert_true(end_has(&pair.client, "answer"));
    fl_stream_write_copy(pair.client.stream, FL_BYTES("; half closed"));
    RUN_UNTIL(pair.loop, end_has(&pair.server, "before the handshake; half closed"));
    fl_stream_shutdown(pair.client.stream);
    RUN_UNTIL(pair.loop, pair.client.closed == 1 && pair.server.closed == 1);
    assert_int_equal(pair.client.rc, 0);
    assert_int_equal(pair.server.rc, 0);
    fl_tls_stats(server, &stats);
    assert_int_equal(stats.handshakes, 1);
    assert_int_equal(stats.failures, 0);
    pair_fini(&pair);
    fl_tls_unref(server);
    fl_tls_unref(client);
}

static void large_bodies_pass_a_slow_reader_unharmed(void **state)
{
    (void)state;
    enum { BYTES = 8 * 1024 * 1024 };
    static const size_t pieces[] = {65536, 9000, 700, 65536 + 1};
    struct fl_tls_context *server = server_context(NULL),
                          *client = client_context(NULL, false, NULL);
    for (size_t i = 0; i < FL_ARRAY_LEN(pieces); i++) {
        struct pair pair;
        pair_init(&pair);
        pair.server_config.tls = server;
        pair.client_config.tls = client;
        tls_pair_open(&pair);
        pair.server.keeps = true;
        write_pattern(pair.client.stream, BYTES, pieces[i]);
        size_t queued = BYTES, unchanged = 0;
        while (unchanged < 20) {
            fl_loop_turn(pair.loop, 1);
            unchanged = fl_stream_queued(pair.client.stream) == queued ? unchanged + 1 : 0;
            queued = fl_stream_queued(pair.client.stream);
        }
        assert_int_equal(fl_stream_peek(pair.server.stream).n, FL_STREAM_READ_AHEAD);
        pair.server.keeps = false;
        pair.server.reads_big = i % 2;
        fl_stream_set_reading(pair.server.stream, true);
        RUN_UNTIL(pair.loop, fl_buf_size(&pair.server.in) == BYTES);
        check_pattern(&pair.server.in, BYTES);
        assert_int_equal(pair.client.writable, 1);
        pair_fini(&pair);
    }
    fl_tls_unref(server);
    fl_tls_unref(client);
}

/* Decrypted bytes wait inside the session, where no poll shows them. */
static void a_reader_may_stop_after_any_delivery(void **state)
{
    (void)state;
    enum { BYTES = 20 * FL_STREAM_READ_AHEAD };
    struct fl_tls_context *server = server_context(NULL),
                          *client = client_context(NULL, false, NULL);
    for (unsigned stop = 1; stop < 10; stop++) {
        struct pair pair;
        pair_init(&pair);
        pair.server_config.tls = server;
        pair.client_config.tls = client;
        tls_pair_open(&pair);
        pair.server.keeps = true;
        write_pattern(pair.client.stream, BYTES, 65536);
        RUN_UNTIL(pair.loop, fl_stream_queued(pair.client.stream) == 0);
        pair.server.keeps = false;
        pair.server.stops_after = pair.server.readable + stop;
        fl_stream_set_reading(pair.server.stream, true);
        RUN_UNTIL(pair.loop, pair.server.keeps);
        for (int i = 0; i < 5; i++)
            fl_loop_turn(pair.loop, 1);
        pair.server.keeps = false;
        pair.server.stops_after = 0;
        end_take(&pair.server, pair.server.stream);
        RUN_UNTIL(pair.loop, fl_buf_size(&pair.server.in) == BYTES);
        check_pattern(&pair.server.in, BYTES);
        pair_fini(&pair);
    }
    fl_tls_unref(server);
    fl_tls_unref(client);
}

/* Both directions full at once: reads and writes must not wait for each other. */
static void both_directions_at_once_do_not_lock(void **state)
{
    (void)state;
    enum { BYTES = 4 * 1024 * 1024 };
    struct fl_tls_context *server = server_context(NULL),
                          *client = client_context(NULL, false, NULL);
    struct pair pair;
    pair_init(&pair);
    pair.server_config.tls = server;
    pair.client_config.tls = client;
    tls_pair_open(&pair);
    write_pattern(pair.client.stream, BYTES, 30000);
    write_pattern(pair.server.stream, BYTES, 50000);
    RUN_UNTIL(pair.loop,
              fl_buf_size(&pair.server.in) == BYTES && fl_buf_size(&pair.client.in) == BYTES);
    check_pattern(&pair.server.in, BYTES);
    check_pattern(&pair.client.in, BYTES);
    fl_stream_close(pair.client.stream, 1000);
    fl_stream_close(pair.server.stream, 1000);
    RUN_UNTIL(pair.loop, pair.client.closed == 1 && pair.server.closed == 1);
    assert_int_equal(pair.client.rc, 0);
    pair_fini(&pair);
    fl_tls_unref(server);
    fl_tls_unref(client);
}

/* ---- ALPN ---- */

static void alpn_is_chosen_by_the_servers_preference_or_refused(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *const *server, *const *client;
        bool is_required;
        const char *agreed;      /* NULL: refused */
        const char *client_says; /* in the client's why */
    } rows[] = {
        /* dependencies.md 3.2: offer h2, http/1.1 in that order; choose by server preference */
        {"server prefers h2", h2_and_h1, h1_and_h2, false, "h2", NULL},
        {"only the second is common", h2_and_h1, h1_only, false, "http/1.1", NULL},
        /* epp.md 1.2: a client that offers ALPN without h2 is refused */
        {"nothing in common", h2_only, h1_only, false, NULL, "no ALPN"},
        {"client offers none", h2_only, NULL, false, "", NULL},
        {"server knows no ALPN", NULL, h2_only, false, "", NULL},
        /* dependencies.md 3.2: a client that gets no ALPN result closes with "no ALPN" */
        {"server knows no ALPN, client insists", NULL, h2_only, true, NULL, "no ALPN"},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct pair pair;
        struct fl_tls_context *server = server_context(rows[i].server);
        struct fl_tls_context *client = client_context(rows[i].client, rows[i].is_required, NULL);
        struct fl_tls_stats of_server, of_client;
        pair_init(&pair);
        pair.server_config.tls = server;
        pair.client_config.tls = client;
        pair_dial(&pair);
        if (rows[i].agreed != NULL) {
            RUN_UNTIL(pair.loop, pair.client.connected == 1 && pair.server.connected == 1);
            if (strcmp(pair.client.alpn, rows[i].agreed) != 0 ||
                strcmp(pair.server.alpn, rows[i].agreed) != 0)
                fail_msg("%s: client %s, server %s", rows[i].why, pair.client.alpn,
                         pair.server.alpn);
        } else {
            RUN_UNTIL(pair.loop, pair.client.closed == 1 && pair.server.closed == 1);
            fl_tls_stats(server, &of_server);
            fl_tls_stats(client, &of_client);
            if (pair.client.rc != FL_ETLS || pair.client.connected != 0 ||
                strstr(pair.client.why, rows[i].client_says) == NULL ||
                of_server.alpn_mismatches + of_client.alpn_mismatches == 0 ||
                of_client.failures != 1)
                fail_msg("%s: rc %d, %s", rows[i].why, pair.client.rc, pair.client.why);
        }
        pair_fini(&pair);
        fl_tls_unref(server);
        fl_tls_unref(client);
    }
}

/* ---- mismatches: gaie.md 1.1, last paragraph ---- */

static void a_plaintext_client_of_a_tls_server_is_told_apart(void **state)
{
    (void)state;
    static const char *const hellos[] = {
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(hellos); i++) {
        struct pair pair;
        struct fl_tls_context *server = server_context(h2_only);
        struct fl_tls_stats stats;
        pair_init(&pair);
        pair.server_config.tls = server;
        pair_dial(&pair);
        fl_stream_write_copy(pair.client.stream, fl_bytes_of(hellos[i]));
        RUN_UNTIL(pair.loop, pair.server.closed == 1 && pair.client.closed == 1);
        assert_int_equal(pair.server.rc, FL_ETLS);
        assert_string_equal(pair.server.why,
                            "TLS handshake: client speaks plaintext, server is TLS");
        assert_int_equal(pair.server.connected, 0);
        fl_tls_stats(server, &stats);
        assert_int_equal(stats.plaintext_peers, 1);
        assert_int_equal(stats.failures, 1);
        /* our own plain client has got an alert, and knows what it means */
        assert_int_equal(pair.client.rc, FL_ETLS);
        assert_string_equal(pair.client.why, "server speaks TLS, client is plaintext");
        assert_int_equal(fl_buf_size(&pair.client.in), 0);
        pair_fini(&pair);
        fl_tls_unref(server);
    }
}

static void a_tls_client_of_a_plaintext_server_is_answered_by_an_alert(void **state)
{
    (void)state;
    struct pair pair;
    struct fl_tls_context *client = client_context(h2_only, true, NULL);
    struct fl_loop_stats stats;
    pair_init(&pair);
    pair.client_config.tls = client;
    pair_dial(&pair);
    RUN_UNTIL(pair.loop, pair.server.closed == 1 && pair.client.closed == 1);
    assert_int_equal(pair.server.rc, FL_ETLS);
    assert_string_equal(pair.server.why, "client speaks TLS, server is plaintext");
    assert_int_equal(pair.server.readable, 0); /* no garbage for the HTTP parser */
    assert_int_equal(pair.client.rc, FL_ETLS);
    assert_non_null(strstr(pair.client.why, "alert handshake failure"));
    fl_loop_stats(pair.loop, &stats);
    assert_int_equal(stats.tls_mismatches, 1);
    pair_fini(&pair);
    fl_tls_unref(client);
}

static void a_tls_client_of_a_foreign_plaintext_server_says_so(void **state)
{
    (void)state;
    struct pair pair;
    struct fl_tls_context *client = client_context(h2_only, true, NULL);
    struct fl_tls_stats stats;
    pair_init(&pair);
    pair.client_config.tls = client;
    pair.server_config.takes_tls_bytes = true; /* answers like a server that knows no better */
    pair_dial(&pair);
    RUN_UNTIL(pair.loop, pair.server.readable == 1);
    fl_stream_write_copy(pair.server.stream, FL_BYTES("HTTP/1.1 400 Bad Request\r\n\r\n"));
    RUN_UNTIL(pair.loop, pair.client.closed == 1);
    assert_int_equal(pair.client.rc, FL_ETLS);
    assert_string_equal(pair.client.why, "TLS handshake: server speaks plaintext, client is TLS");
    fl_tls_stats(client, &stats);
    assert_int_equal(stats.plaintext_peers, 1);
    pair_fini(&pair);
    fl_tls_unref(client);
}

static void only_a_client_hello_is_taken_for_tls(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        struct fl_bytes first;
        bool is_refused;
    } rows[] = {
        {"ClientHello of TLS 1.0 record", FL_BYTES("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"),
         true},
        {"ClientHello of TLS 1.2 record", FL_BYTES("\x16\x03\x03\x00\x05\x01\x00\x00\x01\x00"),
         true},
        {"another handshake message", FL_BYTES("\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00"), false},
        {"a control byte", FL_BYTES("\x16 hello"), false},
        {"too short to tell", FL_BYTES("\x16\x03\x01\x00\x05"), false},
        {"text", FL_BYTES("GET / HTTP/1.1"), false},
        {"an alert is for clients", FL_BYTES("\x15\x03\x01\x00\x02\x02\x46"), false},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct pair pair;
        pair_open(&pair);
        fl_stream_write_copy(pair.client.stream, rows[i].first);
        RUN_UNTIL(pair.loop, pair.server.closed == 1 || pair.server.readable == 1);
        if ((pair.server.closed == 1) != rows[i].is_refused)
            fail_msg("%s", rows[i].why);
        pair_fini(&pair);
    }
}

static void a_handshake_that_never_comes_times_out(void **state)
{
    (void)state;
    struct pair pair;
    struct fl_tls_context *server = server_context(NULL);
    pair_init(&pair);
    pair.server_config.tls = server;
    pair.server_config.connect_timeout_ms = 50;
    int fd = dial(fl_listener_addr(pair.listener));
    RUN_UNTIL(pair.loop, pair.server.closed == 1);
    assert_int_equal(pair.server.rc, FL_ETIMEOUT);
    assert_string_equal(pair.server.why, "TLS handshake: timed out");
    close(fd);
    pair_fini(&pair);
    fl_tls_unref(server);
}

/* A body without a length ends at the close: only a close_notify makes that an end. */
static void a_cut_without_close_notify_is_no_clean_end(void **state)
{
    (void)state;
    struct pair pair;
    struct fl_tls_context *server = server_context(NULL),
                          *client = client_context(NULL, false, NULL);
    pair_init(&pair);
    pair.server_config.tls = server;
    pair.client_config.tls = client;
    tls_pair_open(&pair);
    fl_stream_write_copy(pair.server.stream, FL_BYTES("half a bo"));
    RUN_UNTIL(pair.loop, end_has(&pair.client, "half a bo"));
    fl_stream_abort(pair.server.stream, false); /* FIN, no close_notify */
    RUN_UNTIL(pair.loop, pair.client.closed == 1);
    assert_int_equal(pair.client.rc, FL_ECLOSED);
    assert_int_equal(pair.client.eof, 0);
    pair_fini(&pair);
    fl_tls_unref(server);
    fl_tls_unref(client);
}

static void an_idle_tls_connection_is_alive_despite_its_tickets(void **state)
{
    (void)state;
    struct pair pair;
    struct fl_tls_context *server = server_context(NULL),
                          *client = client_context(NULL, false, NULL);
    pair_init(&pair);
    pair.server_config.tls = server;
    pair.client_config.tls = client;
    pair_dial(&pair);
    /* the client is done one flight before the server, whose tickets may be under way */
    RUN_UNTIL(pair.loop, pair.client.connected == 1);
    for (int i = 0; i < 100; i++) {
        assert_true(fl_stream_is_idle_alive(pair.client.stream));
        fl_loop_turn(pair.loop, 0);
    }
    fl_stream_write_copy(pair.server.stream, FL_BYTES("unasked"));
    pair.client.keeps = true;
    RUN_UNTIL(pair.loop, !fl_stream_is_idle_alive(pair.client.stream));
    RUN_UNTIL(pair.loop, pair.client.readable == 1);
    assert_true(fl_bytes_eq(fl_stream_peek(pair.client.stream), FL_BYTES("unasked")));
    pair_fini(&pair);
    fl_tls_unref(server);
    fl_tls_unref(client);
}

/* ---- certificates ---- */

/* What a foreign client sees of our server: OpenSSL's own API over a socket, turn by turn. */
static X509 *fetch_certificate(struct pair *pair, int max_version, int *version)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_max_proto_version(ctx, max_version);
    SSL_CTX_set_min_proto_version(ctx, 0);
    SSL_CTX_set_security_level(ctx, 0);
    SSL *ssl = SSL_new(ctx);
    int fd = dial(fl_listener_addr(pair->listener));
    SSL_set_fd(ssl, fd);
    int ret = -1;
    uint64_t until_ns = fl_clock_ns() + UINT64_C(5000000000);
    while ((ret = SSL_connect(ssl)) != 1 && fl_clock_ns() < until_ns) {
        int error = SSL_get_error(ssl, ret);
        if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE)
            break;
        fl_loop_turn(pair->loop, 1);
    }
    X509 *cert = ret == 1 ? SSL_get1_peer_certificate(ssl) : NULL;
    *version = SSL_version(ssl);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(fd);
    return cert;
}

/* epp.md 1.2: SAN localhost, 127.0.0.1, POD_IP; ECDSA P-256; validity 10 years; serial random */
static void the_self_signed_certificate_is_as_specified(void **state)
{
    (void)state;
    ASN1_INTEGER *serials[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        struct pair pair;
        struct fl_tls_server_config config = {.alpn = h2_only, .extra_ip = "10.1.2.3"};
        struct fl_tls_context *server = NULL;
        int version, days, seconds;
        char group[32];
        size_t group_bytes;
        assert_int_equal(fl_tls_server_new(&config, &server, NULL), 0);
        pair_init(&pair);
        pair.server_config.tls = server;
        X509 *cert = fetch_certificate(&pair, TLS1_3_VERSION, &version);
        assert_non_null(cert);
        assert_int_equal(version, TLS1_3_VERSION);
        assert_int_equal(X509_check_host(cert, "localhost", 0, 0, NULL), 1);
        assert_int_equal(X509_check_ip_asc(cert, "127.0.0.1", 0), 1);
        assert_int_equal(X509_check_ip_asc(cert, "10.1.2.3", 0), 1);
        assert_int_equal(X509_check_ip_asc(cert, "10.1.2.4", 0), 0);
        EVP_PKEY *key = X509_get0_pubkey(cert);
        assert_int_equal(EVP_PKEY_get_base_id(key), EVP_PKEY_EC);
        assert_int_equal(EVP_PKEY_get_group_name(key, group, sizeof(group), &group_bytes), 1);
        assert_string_equal(group, "prime256v1");
        assert_int_equal(X509_verify(cert, key), 1);
        assert_int_equal(ASN1_TIME_diff(&days, &seconds, NULL, X509_get0_notAfter(cert)), 1);
        assert_true(days == 3649 || days == 3650);
        serials[i] = ASN1_INTEGER_dup(X509_get0_serialNumber(cert));
        X509_free(cert);
        pair_fini(&pair);
        fl_tls_unref(server);
    }
    assert_int_not_equal(ASN1_INTEGER_cmp(serials[0], serials[1]), 0);
    ASN1_INTEGER_free(serials[0]);
    ASN1_INTEGER_free(serials[1]);
}

/* dependencies.md 3.2: minimum TLS 1.2 */
static void versions_before_1_2_are_refused(void **state)
{
    (void)state;
    static const struct {
        int version;
        bool is_taken;
    } rows[] = {{TLS1_1_VERSION, false}, {TLS1_2_VERSION, true}, {TLS1_3_VERSION, true}};
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct pair pair;
        struct fl_tls_context *server = server_context(NULL);
        int version;
        pair_init(&pair);
        pair.server_config.tls = server;
        X509 *cert = fetch_certificate(&pair, rows[i].version, &version);
        if ((cert != NULL) != rows[i].is_taken)
            fail_msg("version %x", (unsigned)rows[i].version);
        X509_free(cert);
        pair_fini(&pair);
        fl_tls_unref(server);
    }
}

struct files {
    char dir[64], cert[96], key[96], other_cert[96], other_key[96], junk[96];
};

/* A pair of PEM files, self-signed, for `name` (a DNS name) and 127.0.0.1. */
static void write_pem(const char *cert_file, const char *key_file, const char *name, long serial)
{
    char san[128];
    X509V3_CTX v3;
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    X509_NAME *subject = X509_get_subject_name(cert);
    X509_set_version(cert, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), serial);
    X509_gmtime_adj(X509_getm_notBefore(cert), -60);
    X509_gmtime_adj(X509_getm_notAfter(cert), 86400);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(cert, subject);
    X509_set_pubkey(cert, key);
    snprintf(san, sizeof(san), "DNS:%s,IP:127.0.0.1", name);
    X509V3_set_ctx_nodb(&v3);
    X509V3_set_ctx(&v3, cert, cert, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &v3, NID_subject_alt_name, san);
    X509_add_ext(cert, extension, -1);
    X509_EXTENSION_free(extension);
    extension = X509V3_EXT_conf_nid(NULL, &v3, NID_basic_constraints, "critical,CA:TRUE");
    X509_add_ext(cert, extension, -1);
    X509_EXTENSION_free(extension);
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    BIO *out = BIO_new_file(cert_file, "w");
    assert_int_equal(PEM_write_bio_X509(out, cert), 1);
    BIO_free(out);
    out = BIO_new_file(key_file, "w");
    assert_int_equal(PEM_write_bio_PrivateKey(out, key, NULL, NULL, 0, NULL, NULL), 1);
    BIO_free(out);
    X509_free(cert);
    EVP_PKEY_free(key);
}

static void files_init(struct files *files)
{
    snprintf(files->dir, sizeof(files->dir), "/tmp/fairlead-tls-XXXXXX");
    assert_non_null(mkdtemp(files->dir));
    snprintf(files->cert, sizeof(files->cert), "%s/cert", files->dir);
    snprintf(files->key, sizeof(files->key), "%s/key", files->dir);
    snprintf(files->other_cert, sizeof(files->other_cert), "%s/cert2", files->dir);
    snprintf(files->other_key, sizeof(files->other_key), "%s/key2", files->dir);
    snprintf(files->junk, sizeof(files->junk), "%s/junk", files->dir);
    write_pem(files->cert, files->key, "picker.example", 1);
    write_pem(files->other_cert, files->other_key, "other.example", 2);
    FILE *junk = fopen(files->junk, "w");
    assert_non_null(junk);
    fputs("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n", junk);
    fclose(junk);
}

static void files_fini(struct files *files)
{
    unlink(files->cert);
    unlink(files->key);
    unlink(files->other_cert);
    unlink(files->other_key);
    unlink(files->junk);
    rmdir(files->dir);
}

/* gateway.md 9.1: eppCaFile verifies chain and name (eppServerName, else the host); a failure is a
 * dial error whose log line names the reason */
static void a_ca_file_verifies_chain_and_name(void **state)
{
    (void)state;
    struct files files;
    files_init(&files);
    const struct {
        const char *why, *ca_file, *name;
        const char *client_says; /* NULL: accepted */
    } rows[] = {
        {"right chain, right name", files.cert, "picker.example", NULL},
        {"right chain, address without a name", files.cert, NULL, NULL},
        {"right chain, address as the name", files.cert, "127.0.0.1", NULL},
        {"right chain, wrong name", files.cert, "other.example", "hostname mismatch"},
        {"right chain, wrong address", files.cert, "127.0.0.2", "IP address mismatch"},
        {"wrong chain", files.other_cert, "picker.example", "self-signed certificate"},
        {"not verified", NULL, "anything.example", NULL},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct pair pair;
        struct fl_tls_server_config config = {.cert_file = files.cert, .key_file = files.key};
        struct fl_tls_context *server = NULL;
        struct fl_tls_context *client = client_context(NULL, false, rows[i].ca_file);
        struct fl_tls_stats stats;
        assert_int_equal(fl_tls_server_new(&config, &server, NULL), 0);
        pair_init(&pair);
        pair.server_config.tls = server;
        pair.client_config.tls = client;
        pair.client_config.server_name = rows[i].name;
        pair_dial(&pair);
        RUN_UNTIL(pair.loop, pair.client.connected == 1 || pair.client.closed == 1);
        fl_tls_stats(client, &stats);
        if (rows[i].client_says == NULL
                ? pair.client.connected != 1
                : strstr(pair.client.why, rows[i].client_says) == NULL ||
                      strstr(pair.client.why, "certificate verify failed") == NULL ||
                      pair.client.rc != FL_ETLS || stats.verify_failures != 1)
            fail_msg("%s: rc %d, %s", rows[i].why, pair.client.rc, pair.client.why);
        pair_fini(&pair);
        fl_tls_unref(server);
        fl_tls_unref(client);
    }
    files_fini(&files);
}

/* epp.md 1.2: reload on change; an unreadable new pair keeps the old one */
static void a_reload_serves_the_new_certificate_or_keeps_the_old_one(void **state)
{
    (void)state;
    struct files files;
    files_init(&files);
    struct pair pair;
    struct fl_tls_server_config config = {.cert_file = files.cert, .key_file = files.key};
    struct fl_tls_context *server = NULL;
    struct fl_error err = {0};
    int version;
    assert_int_equal(fl_tls_server_new(&config, &server, &err), 0);
    pair_init(&pair);
    pair.server_config.tls = server;
    const struct {
        const char *why, *cert, *key;
        int rc;
        const char *name; /* served afterwards */
    } rows[] = {
        {"untouched", NULL, NULL, 0, "picker.example"},
        {"new pair", files.other_cert, files.other_key, 0, "other.example"},
        {"not a certificate", files.junk, NULL, FL_ECONFIG, "other.example"},
        {"key of another certificate", files.other_cert, NULL, 0, "other.example"},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        char copy[256];
        if (rows[i].cert != NULL) {
            snprintf(copy, sizeof(copy), "%s.new", rows[i].cert);
            assert_int_equal(link(rows[i].cert, copy), 0);
            assert_int_equal(rename(copy, files.cert), 0);
        }
        if (rows[i].key != NULL) {
            snprintf(copy, sizeof(copy), "%s.new", rows[i].key);
            assert_int_equal(link(rows[i].key, copy), 0);
            assert_int_equal(rename(copy, files.key), 0);
        }
        int rc = fl_tls_reload(server, &err);
        X509 *cert = fetch_certificate(&pair, TLS1_3_VERSION, &version);
        RUN_UNTIL(pair.loop, pair.server.stream == NULL);
        if (rc != rows[i].rc || cert == NULL ||
            X509_check_host(cert, rows[i].name, 0, 0, NULL) != 1 ||
            (rc < 0 && strstr(err.text, files.cert) == NULL))
            fail_msg("%s: %d %s", rows[i].why, rc, err.text);
        X509_free(cert);
        pair.server.closed = 0;
        pair.server.is_out_of_order = false;
    }
    pair_fini(&pair);
    fl_tls_unref(server);
    files_fini(&files);
}

static void unusable_files_are_named(void **state)
{
    (void)state;
    struct files files;
    files_init(&files);
    const struct {
        const char *why, *cert, *key, *ca, *says;
    } rows[] = {
        {"no such certificate", "/nonexistent/cert", files.key, NULL, "/nonexistent/cert"},
        {"no such key", files.cert, "/nonexistent/key", NULL, "/nonexistent/key"},
        {"not a certificate", files.junk, files.key, NULL, "junk"},
        {"not a key", files.cert, files.junk, NULL, "junk"},
        {"not a pair", files.cert, files.other_key, NULL, "key2"},
        {"only one of two", files.cert, NULL, NULL, "both or neither"},
        {"only the other", NULL, files.key, NULL, "both or neither"},
        {"no such CA", NULL, NULL, "/nonexistent/ca", "/nonexistent/ca"},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_tls_context *context = NULL;
        struct fl_error err = {0};
        struct fl_tls_server_config server = {.cert_file = rows[i].cert, .key_file = rows[i].key};
        struct fl_tls_client_config client = {.ca_file = rows[i].ca};
        int rc = rows[i].ca != NULL ? fl_tls_client_new(&client, &context, &err)
                                    : fl_tls_server_new(&server, &context, &err);
        if (rc != FL_ECONFIG || context != NULL || strstr(err.text, rows[i].says) == NULL)
            fail_msg("%s: %d %s", rows[i].why, rc, err.text);
    }
    files_fini(&files);
}

static char seen_sni[64];

static int note_sni(SSL *ssl, int *alert, void *arg)
{
    (void)alert;
    (void)arg;
    const char *name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
    snprintf(seen_sni, sizeof(seen_sni), "%s", name != NULL ? name : "-");
    return SSL_TLSEXT_ERR_ALERT_FATAL; /* seen enough */
}

/* dependencies.md 3.2: SNI when the endpoint is a name, not when it is an IP literal */
static void sni_is_sent_for_names_only(void **state)
{
    (void)state;
    static const struct {
        const char *name, *sni;
    } rows[] = {
        {"picker.example", "picker.example"}, {"10.0.0.1", "-"}, {"fd00::7", "-"}, {NULL, "-"}};
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_loop *loop = fl_loop_new(0);
        struct end end = {0};
        struct fl_addr addr;
        struct fl_tls_context *client = client_context(h2_only, true, NULL);
        struct fl_stream_config config = {.tls = client, .server_name = rows[i].name};
        int listening = raw_listen(&addr, 4);
        end.stream = fl_stream_connect(loop, &addr, &config, &end_ops, &end);
        int fd = accept4(listening, NULL, NULL, SOCK_NONBLOCK);
        assert_true(fd >= 0);
        SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
        SSL_CTX_set_tlsext_servername_callback(ctx, note_sni);
        SSL *ssl = SSL_new(ctx);
        SSL_set_fd(ssl, fd);
        seen_sni[0] = '\0';
        while (end.closed == 0 && seen_sni[0] == '\0') {
            SSL_accept(ssl);
            fl_loop_turn(loop, 1);
        }
        if (strcmp(seen_sni, rows[i].sni) != 0)
            fail_msg("%s: SNI %s", rows[i].name, seen_sni);
        SSL_free(ssl);
        SSL_CTX_free(ctx);
        close(fd);
        close(listening);
        if (end.stream != NULL)
            fl_stream_abort(end.stream, true);
        fl_loop_free(loop);
        fl_tls_unref(client);
    }
}

/* Hostile first flights: nothing crashes, every one ends the stream. */
static void garbage_instead_of_a_handshake_ends_the_stream(void **state)
{
    (void)state;
    struct fl_tls_context *server = server_context(h2_only);
    struct fl_rng rng;
    fl_rng_seed(&rng, 7);
    for (unsigned i = 0; i < 300; i++) {
        struct pair pair;
        uint8_t bytes[600];
        size_t n = 1 + fl_rng_below(&rng, sizeof(bytes) - 1);
        pair_init(&pair);
        pair.server_config.tls = server;
        int fd = dial(fl_listener_addr(pair.listener));
        for (size_t k = 0; k < n; k++)
            bytes[k] = (uint8_t)fl_rng_u64(&rng);
        if (i % 2 == 0 && n > 6)
            memcpy(bytes, "\x16\x03\x01\x00\x40\x01", 6);
        assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), (ssize_t)n);
        shutdown(fd, SHUT_WR);
        RUN_UNTIL(pair.loop, pair.server.closed == 1);
        assert_int_equal(pair.server.connected, 0);
        assert_int_equal(pair.server.rc, FL_ETLS);
        close(fd);
        pair_fini(&pair);
    }
    fl_tls_unref(server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encrypted_bytes_go_both_ways_and_both_ends_close_cleanly),
        cmocka_unit_test(large_bodies_pass_a_slow_reader_unharmed),
        cmocka_unit_test(a_reader_may_stop_after_any_delivery),
        cmocka_unit_test(both_directions_at_once_do_not_lock),
        cmocka_unit_test(alpn_is_chosen_by_the_servers_preference_or_refused),
        cmocka_unit_test(a_plaintext_client_of_a_tls_server_is_told_apart),
        cmocka_unit_test(a_tls_client_of_a_plaintext_server_is_answered_by_an_alert),
        cmocka_unit_test(a_tls_client_of_a_foreign_plaintext_server_says_so),
        cmocka_unit_test(only_a_client_hello_is_taken_for_tls),
        cmocka_unit_test(a_handshake_that_never_comes_times_out),
        cmocka_unit_test(a_cut_without_close_notify_is_no_clean_end),
        cmocka_unit_test(an_idle_tls_connection_is_alive_despite_its_tickets),
        cmocka_unit_test(the_self_signed_certificate_is_as_specified),
        cmocka_unit_test(versions_before_1_2_are_refused),
        cmocka_unit_test(a_ca_file_verifies_chain_and_name),
        cmocka_unit_test(a_reload_serves_the_new_certificate_or_keeps_the_old_one),
        cmocka_unit_test(unusable_files_are_named),
        cmocka_unit_test(sni_is_sent_for_names_only),
        cmocka_unit_test(garbage_instead_of_a_handshake_ends_the_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
