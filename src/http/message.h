/* SPDX-License-Identifier: Apache-2.0 */
/* What HTTP/1.1 and HTTP/2 share: a message head and its fields.
 *
 * A head is built in an arena (usually its exchange's) and lives as long as it. Field lines keep
 * order, case and repetition: they are a list, never a map. All comparisons of names ignore ASCII
 * case. Pseudo fields of HTTP/2 become members; HTTP/1.1's request line likewise, so callers see
 * one shape: `authority` is Host or :authority. Single-threaded. */
#ifndef FL_HTTP_MESSAGE_H
#define FL_HTTP_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "base/error.h"

struct fl_field {
    struct fl_bytes name, value;
};

struct fl_fields {
    struct fl_field *items;
    uint32_t count, cap;
    size_t bytes; /* names + values + 32 each, as RFC 9113 6.5.2 counts */
};

/* Appends; bytes are borrowed (must live as long as the arena). */
void fl_fields_add(struct fl_fields *fields, struct fl_arena *arena, struct fl_bytes name,
                   struct fl_bytes value);
/* Appends copies. */
void fl_fields_add_copy(struct fl_fields *fields, struct fl_arena *arena, struct fl_bytes name,
                        struct fl_bytes value);
/* First field of that name, or NULL. */
const struct fl_field *fl_fields_find(const struct fl_fields *fields, struct fl_bytes name);
/* Its value, or absent. */
struct fl_bytes fl_fields_get(const struct fl_fields *fields, struct fl_bytes name);
/* Removes all of that name; returns how many. */
uint32_t fl_fields_remove(struct fl_fields *fields, struct fl_bytes name);
/* Removes all of that name, then appends one. */
void fl_fields_set(struct fl_fields *fields, struct fl_arena *arena, struct fl_bytes name,
                   struct fl_bytes value);
/* True if some line of `name` holds `token` in its comma list (case-insensitive, trimmed). */
bool fl_fields_has_token(const struct fl_fields *fields, struct fl_bytes name,
                         struct fl_bytes token);

enum fl_body_kind {
    FL_BODY_NONE,        /* no body follows the head */
    FL_BODY_LENGTH,      /* content_length bytes */
    FL_BODY_CHUNKED,     /* HTTP/1.1 chunked */
    FL_BODY_UNTIL_CLOSE, /* HTTP/1 response without a length */
    FL_BODY_STREAM,      /* HTTP/2: until END_STREAM */
};

struct fl_head {
    struct fl_bytes method, scheme, authority, target; /* requests; target = path and query */
    uint16_t status;                                   /* responses; 0 in requests */
    uint8_t minor; /* HTTP/1.minor; 2 stands for HTTP/2 in `is_h2` messages */
    bool is_h2;
    bool keep_alive; /* HTTP/1: the connection outlives this message */
    bool expect_continue;
    bool is_upgrade;         /* Connection: upgrade with an Upgrade field; not acted on */
    uint8_t body;            /* enum fl_body_kind */
    uint64_t content_length; /* with FL_BODY_LENGTH, and with FL_BODY_STREAM if declared; else
                                UINT64_MAX */
    struct fl_fields fields; /* without pseudo fields; Host stays among them on HTTP/1 */
    struct fl_arena *arena;  /* where new fields go */
};

/* Token characters of RFC 9110 5.6.2, >= 1 byte. */
bool fl_http_is_token(struct fl_bytes name);
/* Field content without CR, LF, NUL (RFC 9110 5.5; obs-text allowed). */
bool fl_http_is_value(struct fl_bytes value);
/* connection, keep-alive, proxy-connection, te, transfer-encoding, trailer, upgrade,
 * proxy-authenticate, proxy-authorization, http2-settings: gateway.md 7.1. */
bool fl_http_is_hop_by_hop(struct fl_bytes name);
/* Names that never travel as trailers, whoever sent them: framing, routing, authentication and
 * hop-by-hop (gateway.md 7.1): content-length, host, authorization, set-cookie, x-gateway-*, and
 * those of fl_http_is_hop_by_hop(). */
bool fl_http_is_dropped_trailer(struct fl_bytes name);
/* Removes hop-by-hop fields and every name that Connection lists. */
void fl_fields_strip_hop_by_hop(struct fl_fields *fields);
/* "OK", "Not Found", ...; "Unknown" otherwise. */
const char *fl_http_reason(int status);

/* host[:port] as Host and :authority carry it: a non-empty reg-name, IPv4 or bracketed IPv6
 * address, and a port up to 65535 that may be empty; no userinfo (RFC 3986 3.2.2, RFC 9110 7.2). */
bool fl_http_is_authority(struct fl_bytes text);

struct fl_url {
    struct fl_bytes scheme, host, path,
        query;     /* host without brackets; path "/" if absent; views */
    uint16_t port; /* explicit, or 80/443 by scheme */
    bool is_tls, is_ip;
};
/* Absolute http/https URL without userinfo and fragment. FL_EBAD_REQUEST with a sentence. */
int fl_url_parse(struct fl_bytes text, struct fl_url *url, struct fl_error *err);
/* Splits target into path and query (without '?'; absent if none). */
void fl_target_split(struct fl_bytes target, struct fl_bytes *path, struct fl_bytes *query);
/* Percent-decodes into the arena; '+' is kept. FL_EPROTO on a bad escape or a NUL. */
int fl_percent_decode(struct fl_arena *arena, struct fl_bytes text, struct fl_bytes *out);

#endif
