/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP/1.1 (RFC 9112) without I/O: a parser that is fed bytes cut anywhere, and a writer of heads
 * and chunk framing. gateway.md 7.1 and 7.3 say what is refused; nothing is repaired, because what
 * two parsers repair differently is how requests are smuggled.
 *
 * Reading. A connection has one parser per incoming direction. It is asked for one event at a time:
 *
 *     for (;;) {
 *         struct fl_http1_event ev;
 *         enum fl_http1_result r = fl_http1_feed(&parser, arena, in, &ev);
 *         in = fl_bytes_skip(in, ev.consumed);
 *         if (r == FL_HTTP1_MORE) break;        // all of `in` is consumed: read more
 *         ...                                    // HEAD, BODY, END, BAD: act
 *     }
 *
 *   without a body:  HEAD (is_end)
 *   with a body:     HEAD  BODY*  END      (END carries the trailers of a chunked body)
 *   responses:       INFORMATIONAL*  in front of either
 *
 * Call until MORE, also when `in` has become empty: END needs no further byte. After the last event
 * of a message the caller may stop feeding (pipelining: what is not consumed is the next message's)
 * and go on whenever it likes; the parser is ready for the next message by itself.
 *
 * Copies: a head is copied once, into `arena`, as one block that all names and values point into.
 * Body bytes are not copied: ev.body is a view of `in`, so the caller reads into a chunk, feeds it
 * and keeps slices of it. An unfinished head is held in a buffer that exists only then; an idle
 * parser owns no memory.
 *
 * Refusals. BAD is final: the connection's framing is lost and every later feed gives BAD again.
 * The defect says which status and word a client gets; for a response it is always 502 to the
 * client.
 *
 * Writing. Heads are always serialised from a struct fl_head, never passed on raw, with one length
 * field that the writer computed from head->body. Names or values that could break the framing are
 * refused.
 *
 * Single-threaded; no clock: head and body timeouts are the caller's (fl_http1_is_idle() helps). */
#ifndef FL_HTTP1_HTTP1_H
#define FL_HTTP1_HTTP1_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "http/message.h"

/* ---- limits ---- */

/* gateway.md 2: --max-header-bytes and --max-headers, per head. */
#define FL_HTTP1_MAX_HEADER_BYTES 65536
#define FL_HTTP1_MAX_HEADERS 200
/* Trailers come when the message has been acted upon already; real ones are a checksum or a status.
 */
#define FL_HTTP1_MAX_TRAILER_BYTES 16384
#define FL_HTTP1_MAX_TRAILERS 64
/* Extensions are dropped, so their only use to a peer is to make us read: per chunk line
 * (sidecar.md 3.2) and per message (one-byte chunks with long extensions: the kind of
 * CVE-2023-39326 and CVE-2024-22019). */
#define FL_HTTP1_MAX_CHUNK_EXT_BYTES 256
#define FL_HTTP1_MAX_CHUNK_EXT_TOTAL_BYTES 16384
/* gateway.md 7.3: lengths above this are refused; sums of two still fit a signed 64-bit offset. */
#define FL_HTTP1_MAX_LENGTH (UINT64_C(1) << 62)
/* Interim answers before the final one: each costs arena memory. Real servers send one or two. */
#define FL_HTTP1_MAX_INFORMATIONAL 16

struct fl_http1_limits {
    size_t max_header_bytes;  /* start line to blank line, both included; at most 1 GiB */
    uint32_t max_headers;     /* field lines */
    size_t max_trailer_bytes; /* trailer lines with the blank line */
    uint32_t max_trailers;
    uint64_t max_chunk_bytes; /* of one chunk; at most FL_HTTP1_MAX_LENGTH */
};

/* The five defaults above. */
extern const struct fl_http1_limits fl_http1_default_limits;

/* ---- what is wrong with a message ---- */

struct fl_http1_defect {
    uint16_t status;  /* answer to a client (gateway.md 7): 400, 417, 431, 501, 505 */
    const char *word; /* "bad_request", "expectation_failed", "header_too_large", ... */
    const char *why;  /* one clause for logs and `detail`: "Content-Length is not a number" */
};

/* ---- the parser ---- */

enum fl_http1_side { FL_HTTP1_REQUESTS, FL_HTTP1_RESPONSES };

enum fl_http1_result {
    FL_HTTP1_MORE,          /* `in` is used up; nothing else to tell */
    FL_HTTP1_INFORMATIONAL, /* a 1xx head other than 101; the final head is still to come */
    FL_HTTP1_HEAD, /* ev.head; with ev.is_end the message is complete and END does not come */
    FL_HTTP1_BODY, /* ev.body, at least one byte */
    FL_HTTP1_END,  /* the message is complete; ev.trailers or NULL */
    FL_HTTP1_BAD,  /* ev.defect */
};

struct fl_http1_event {
    size_t consumed; /* bytes of `in` that are done with, those of ev.body included. Always set */
    bool is_end;
    struct fl_head *head;                 /* lies in the arena */
    struct fl_bytes body;                 /* view of `in` */
    const struct fl_fields *trailers;     /* lies in the arena */
    const struct fl_http1_defect *defect; /* static */
};

struct fl_http1_parser {
    const struct fl_http1_limits *limits;
    struct fl_buf held; /* an unfinished head, trailer section; else empty, no memory */
    const struct fl_http1_defect *defect; /* set once: BAD for ever */
    uint64_t left;                        /* body: bytes of the length or the chunk to come */
    uint32_t scanned, line_start, lines;  /* of the head or trailer section under way */
    uint32_t ext_total;                   /* extension bytes of this message */
    uint16_t ext_line;                    /* of this chunk line */
    uint8_t digits;                       /* of this chunk size */
    uint8_t ext;                          /* where in the grammar of extensions */
    uint8_t state;
    uint8_t side;
    uint8_t informational; /* interim answers seen */
    bool keep_alive;       /* another message may follow this one */
    bool answers_head;     /* responses: the request was HEAD */
    bool answers_upgrade;  /* responses: 101 is allowed */
};

/* `limits` is borrowed for the parser's life. A response parser must be told about each request
 * with fl_http1_expect() before its answer is fed. */
void fl_http1_parser_init(struct fl_http1_parser *parser, enum fl_http1_side side,
                          const struct fl_http1_limits *limits);
/* Idempotent. */
void fl_http1_parser_fini(struct fl_http1_parser *parser);

/* Responses: a request was sent whose answer comes next. Bytes that arrive without one are BAD: an
 * answer nobody asked for would be taken for that of the next request. `is_upgrade`: the request
 * asked for an upgrade. */
void fl_http1_expect(struct fl_http1_parser *parser, bool is_head_request, bool is_upgrade);

/* The next event of `in`. `arena` (borrowed by the call; heads and trailers are placed there, and
 * stay valid after further feeds) may be NULL while only body bytes of a LENGTH or until-close body
 * are expected; if unsure pass it. All fields of `ev` are set. After the last message of a
 * connection (keep_alive false) bytes are consumed and dropped. */
enum fl_http1_result fl_http1_feed(struct fl_http1_parser *parser, struct fl_arena *arena,
                                   struct fl_bytes in, struct fl_http1_event *ev);
/* The peer sent its FIN; everything before was fed. END: this ended a close-delimited body. MORE:
 * between messages, a clean end. BAD: a message was cut (the defect is *fl_http1_cut; nothing was
 * wrong with the bytes). */
enum fl_http1_result fl_http1_feed_eof(struct fl_http1_parser *parser, struct fl_http1_event *ev);

/* True when no byte of a next message has been seen (blank lines do not count): a timeout or FIN
 * now is no error. */
bool fl_http1_is_idle(const struct fl_http1_parser *parser);
/* Body bytes that are to come without framing between them: a caller may read that much straight
 * into a chunk. UINT64_MAX inside a close-delimited body or a tunnel, 0 outside a body or between
 * chunks. */
uint64_t fl_http1_body_left(const struct fl_http1_parser *parser);
/* From now on all bytes are BODY until EOF: after a 101 was sent (requests). Responses do so by
 * themselves on 101, whose HEAD has body FL_BODY_UNTIL_CLOSE. Only between messages. */
void fl_http1_become_tunnel(struct fl_http1_parser *parser);

/* The defect of a message that ended early; compare ev.defect with it. */
extern const struct fl_http1_defect *const fl_http1_cut;

/* What a request head gets besides what RFC 9112 says, decided here:
 *  - target is origin-form ("/path?query") or "*" (OPTIONS); an absolute-form target is reduced to
 * that, `scheme` is set from it (absent otherwise: the caller knows its listener), and its
 * authority must equal Host;
 *  - `authority` is Host's value (absent: HTTP/1.0 without Host);
 *  - expect_continue only on 1.1 with a body to come; is_upgrade only on 1.1 without body and for
 * anything but h2c;
 *  - content_length is also set on responses that have the field but no body (HEAD, 304), else
 * UINT64_MAX;
 *  - `fields` hold everything received, hop-by-hop and framing fields included, in order;
 *  - trailers come without the names of fl_http_is_dropped_trailer(). */

/* ---- the writer ---- */

/* Both append one head to `out` and return 0, FL_EPROTO (a name is no token, a value, method or
 * target holds a byte that would break the line; nothing is appended) or the buffer's FL_ELIMIT /
 * FL_ENOMEM.
 *
 * Taken from `head`: method, target, authority or status, fields, body (+ content_length),
 * is_upgrade. Skipped among the fields whatever they say: content-length, transfer-encoding,
 * connection, keep-alive, proxy-connection, and upgrade unless is_upgrade. Other hop-by-hop fields
 * are the proxy's to strip (fl_fields_strip_hop_by_hop). */

/* `<method> <target> HTTP/1.1`, Host (at the place and in the case of the Host field, else first)
 * with head->authority. Body NONE: no length field, but `Content-Length: 0` for POST, PUT, PATCH.
 * LENGTH: Content-Length. Anything else: chunked. Without `keep_alive` adds `Connection: close`;
 * with is_upgrade `Connection: upgrade`. */
int fl_http1_write_request(struct fl_buf *out, const struct fl_head *head, bool keep_alive);

/* How the answer was framed, which the caller needs for body and connection. */
struct fl_http1_framing {
    uint8_t body; /* enum fl_body_kind: NONE (send no body bytes), LENGTH, CHUNKED or UNTIL_CLOSE */
    bool keep_alive; /* false: close after the message */
};

/* `HTTP/1.1 <status> <reason>` in answer to `request` (its method and minor decide; NULL: a request
 * that could not be parsed, taken as 1.1 and not HEAD). `keep_alive` is what the caller wants; it
 * is reduced to what request and framing allow. 1xx, 204: no length field; 304 and answers to HEAD:
 * the length of head if known, no body. LENGTH: Content-Length. NONE: `Content-Length: 0`. Unknown
 * length: chunked to a 1.1 client, close-delimited to a 1.0 client. 101 with is_upgrade: a tunnel
 * (UNTIL_CLOSE). `framing` may be NULL. */
int fl_http1_write_response(struct fl_buf *out, const struct fl_head *head,
                            const struct fl_head *request, bool keep_alive,
                            struct fl_http1_framing *framing);

/* Chunk framing: head (size CRLF), then `n` body bytes, then FL_HTTP1_CHUNK_TAIL. n > 0: a chunk of
 * 0 would end the message. */
#define FL_HTTP1_CHUNK_HEAD_ROOM 18
#define FL_HTTP1_CHUNK_TAIL FL_BYTES("\r\n")
#define FL_HTTP1_LAST_CHUNK FL_BYTES("0\r\n\r\n") /* without trailers */
size_t fl_http1_chunk_head(uint8_t out[FL_HTTP1_CHUNK_HEAD_ROOM], uint64_t n);
/* "0", trailers, blank line. Dropped trailers (fl_http_is_dropped_trailer) are left out. Errors as
 * above. */
int fl_http1_write_trailers(struct fl_buf *out, const struct fl_fields *trailers);

#endif
