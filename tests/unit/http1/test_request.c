/* SPDX-License-Identifier: Apache-2.0 */
/* Requests: what is taken, what is refused and how. Every row is fed whole, byte by byte and cut at
 * random (gateway.md 15.1 L6), and all must say the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "unit/http1/feeding.h"

#define RANDOM_CUTS 20
#define TEXT(literal) (literal), sizeof(literal) - 1

struct row {
    const char *why;
    const char *text;
    size_t n;
    const char *said;
};

static void expect_said(const struct row *row, size_t index, const char *how, size_t piece,
                        struct fl_rng *rng, bool with_fields)
{
    struct feeding f;
    feeding_init(&f, NULL, &fl_http1_default_limits);
    f.with_fields = with_fields;
    feeding_cut(&f, fl_bytes(row->text, row->n), piece, rng);
    const char *said = feeding_said(&f);
    if (strcmp(said, row->said) != 0)
        fail_msg("row %zu (%s), %s:\n  said     %s\n  expected %s", index, row->why, how, said,
                 row->said);
    feeding_fini(&f);
}

static void run_rows_with(const struct row *rows, size_t count, bool with_fields)
{
    for (size_t i = 0; i < count; i++) {
        expect_said(&rows[i], i, "whole", rows[i].n, NULL, with_fields);
        expect_said(&rows[i], i, "byte by byte", 1, NULL, with_fields);
        for (uint64_t seed = 1; seed <= RANDOM_CUTS; seed++) {
            char how[32];
            struct fl_rng rng;
            snprintf(how, sizeof(how), "cut with seed %llu", (unsigned long long)seed);
            fl_rng_seed(&rng, seed);
            expect_said(&rows[i], i, how, 0, &rng, with_fields);
        }
    }
}

static void run_rows(const struct row *rows, size_t count)
{
    run_rows_with(rows, count, false);
}

/* gateway.md 7.1 keep-alive, pipelining */
static void good_requests_are_taken_one_after_the_other(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"the smallest", TEXT("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), "GET / none;"},
        {"pipelined", TEXT("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nhost:b\r\n\r\n"),
         "GET /1 none; GET /2 none;"},
        {"a length",
         TEXT("POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET / "
              "HTTP/1.1\r\nHost: a\r\n\r\n"),
         "POST /p length 5 [hello] end; GET / none;"},
        {"a length of 0 is no body",
         TEXT("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\nGET / HTTP/1.1\r\nHost: "
              "a\r\n\r\n"),
         "POST / none 0; GET / none;"},
        {"leading zeros within 19 digits",
         TEXT("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0000000000000000003\r\n\r\nabc"),
         "POST / length 3 [abc] end;"},
        {"chunked",
         TEXT("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
              "chunked\r\n\r\n3\r\nabc\r\n0A\r\n0123456789\r\n0\r\n\r\nGET / "
              "HTTP/1.1\r\nHost: a\r\n\r\n"),
         "POST / chunked [abc0123456789] end; GET / none;"},
        {"chunked without data",
         TEXT("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
         "POST / chunked end;"},
        {"coding in capitals, with blanks around",
         TEXT("POST / HTTP/1.1\r\nHost: a\r\nTRANSFER-ENCODING: \t CHUNKED \t\r\n\r\n0\r\n\r\n"),
         "POST / chunked end;"},
        {"extensions are dropped",
         TEXT("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b;c=\"d "
              "e\"\r\nabc\r\n0 \t ;x\r\n\r\n"),
         "POST / chunked [abc] end;"},
        {"close", TEXT("GET / HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n"),
         "GET / none last;"},
        {"close in a list of a second line",
         TEXT("GET / HTTP/1.1\r\nHost: a\r\nConnection: x\r\nConnection: y , close\r\n\r\n"),
         "GET / none last;"},
        {"bytes after the last request are dropped",
         TEXT("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /2 HTTP/1.1\r\n\r\n"),
         "GET / none last;"},
        {"1.0 ends the connection", TEXT("GET / HTTP/1.0\r\n\r\n"), "GET / none last;"},
        {"1.0 that asks to keep it", TEXT("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
         "GET / none;"},
        {"close wins over keep-alive",
         TEXT("GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n"), "GET / none last;"},
        {"a blank line before, RFC 9112 2.2",
         TEXT("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
         "GET / none; GET / none;"},
        {"a body with GET", TEXT("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"),
         "GET / length 1 [x] end;"},
        {"any token is a method", TEXT("M-SEARCH / HTTP/1.1\r\nHost: a\r\n\r\n"),
         "M-SEARCH / none;"},
        {"an unfinished head says nothing", TEXT("GET / HTTP/1.1\r\nHost: a\r\n\r"), ""},
        {"an unfinished body", TEXT("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc"),
         "POST / length 9 [abc"},
    };
    run_rows(rows, FL_ARRAY_LEN(rows));
}

/* gateway.md 7.3 rows 1-5; section 16 cases 42, 43, 44 */
static void a_doubtful_length_is_refused(void **state)
{
    (void)state;
#define POST(lines) TEXT("POST / HTTP/1.1\r\nHost: a\r\n" lines "\r\n0\r\n\r\n")
#define OLD(lines) TEXT("POST / HTTP/1.0\r\nHost: a\r\n" lines "\r\n0\r\n\r\n")
    static const char both[] = "!400 both Content-Length and Transfer-Encoding";
    static const char twice[] = "!400 more than one Content-Length";
    static const char form[] = "!400 Content-Length is not a number";
    static const char large[] = "!400 Content-Length is above 2^62";
    static const char coding[] = "!400 Transfer-Encoding is not exactly one \"chunked\"";
    static const char unknown[] = "!501 Transfer-Encoding other than chunked";
    const struct row rows[] = {
        {"CL.TE", POST("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), both},
        {"TE.CL", POST("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"), both},
        {"both, any coding", POST("Transfer-Encoding: gzip\r\nContent-Length: 5\r\n"), both},
        {"both, empty coding", POST("Transfer-Encoding:\r\nContent-Length: 5\r\n"), both},
        {"both, length 0", POST("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n"), both},
        {"both in 1.0", OLD("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n"), both},
        {"two equal lengths", POST("Content-Length: 5\r\nContent-Length: 5\r\n"), twice},
        {"two different lengths", POST("Content-Length: 5\r\ncontent-length: 6\r\n"), twice},
        {"a list of equal lengths", POST("Content-Length: 5, 5\r\n"), form},
        {"a list of one with a comma", POST("Content-Length: 5,\r\n"), form},
        {"plus", POST("Content-Length: +5\r\n"), form},
        {"minus", POST("Content-Length: -5\r\n"), form},
        {"hex", POST("Content-Length: 0x5\r\n"), form},
        {"blank inside", POST("Content-Length: 1 5\r\n"), form},
        {"empty", POST("Content-Length:\r\n"), form},
        {"a point", POST("Content-Length: 5.0\r\n"), form},
        {"exponent", POST("Content-Length: 1e3\r\n"), form},
        {"quoted", POST("Content-Length: \"5\"\r\n"), form},
        {"superscript two", POST("Content-Length: \xc2\xb2\r\n"), form},
        {"2^62 + 1", POST("Content-Length: 4611686018427387905\r\n"), large},
        {"2^64", POST("Content-Length: 18446744073709551616\r\n"), large},
        {"twenty digits, though small", POST("Content-Length: 00000000000000000005\r\n"), large},
        {"chunked, x", POST("Transfer-Encoding: chunked, x\r\n"), unknown},
        {"x, chunked", POST("Transfer-Encoding: x, chunked\r\n"), unknown},
        {"chunked,", POST("Transfer-Encoding: chunked,\r\n"), coding},
        {", chunked", POST("Transfer-Encoding: ,chunked\r\n"), coding},
        {"xchunked", POST("Transfer-Encoding: xchunked\r\n"), unknown},
        {"chunkedx", POST("Transfer-Encoding: chunkedx\r\n"), unknown},
        {"gzip, chunked", POST("Transfer-Encoding: gzip, chunked\r\n"), unknown},
        {"chunked, gzip", POST("Transfer-Encoding: chunked, gzip\r\n"), unknown},
        {"chunked, identity", POST("Transfer-Encoding: chunked, identity\r\n"), unknown},
        {"identity", POST("Transfer-Encoding: identity\r\n"), unknown},
        {"a parameter", POST("Transfer-Encoding: chunked;q=1\r\n"), unknown},
        {"quoted", POST("Transfer-Encoding: \"chunked\"\r\n"), unknown},
        {"two words", POST("Transfer-Encoding: chunked chunked\r\n"), unknown},
        {"twice in one line", POST("Transfer-Encoding: chunked, chunked\r\n"), coding},
        {"twice in two lines", POST("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
         coding},
        {"two lines, one unknown", POST("Transfer-Encoding: chunked\r\nTransfer-Encoding: cow\r\n"),
         unknown},
        {"two lines, one empty", POST("Transfer-Encoding: chunked\r\nTransfer-Encoding:\r\n"),
         coding},
        {"empty", POST("Transfer-Encoding:\r\n"), coding},
        {"in 1.0", OLD("Transfer-Encoding: chunked\r\n"),
         "!400 Transfer-Encoding in an HTTP/1.0 message"},
        {"vertical tab before", POST("Transfer-Encoding: \vchunked\r\n"),
         "!400 control byte in the head"},
        {"no-break space before",
         POST("Transfer-Encoding: \xa0"
              "chunked\r\n"),
         unknown},
    };
    run_rows(rows, FL_ARRAY_LEN(rows));
}

/* gateway.md 7.3 rows 6-8: line ends, control bytes, names, request line */
static void a_malformed_head_is_refused(void **state)
{
    (void)state;
    static const char lf[] = "!400 a line ends in LF without CR";
    static const char cr[] = "!400 CR that is not followed by LF";
    static const char nul[] = "!400 NUL byte in the head";
    static const char control[] = "!400 control byte in the head";
    static const char fold[] = "!400 a header line is folded";
    static const char blank[] = "!400 blank between a header name and its colon";
    static const char name[] = "!400 a header name holds a byte that is not allowed";
    static const char line[] = "!400 the request line is not METHOD target HTTP/1.x";
    static const char target[] = "!400 the request target is malformed";
    static const char version[] = "!505 neither HTTP/1.0 nor HTTP/1.1";
#define LINES(lines) TEXT("GET / HTTP/1.1\r\nHost: a\r\n" lines "\r\n")
#define START(line) TEXT(line "\r\nHost: a\r\n\r\n")
    const struct row rows[] = {
        {"LF after the request line", TEXT("GET / HTTP/1.1\nHost: a\r\n\r\n"), lf},
        {"LF after a header", LINES("X: y\n"), lf},
        {"LF for the blank line", TEXT("GET / HTTP/1.1\r\nHost: a\r\n\n"), lf},
        {"LF inside a value", LINES("X: y\nZ: z\r\n"), lf},
        {"LF first", TEXT("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"), lf},
        {"CR inside a value", LINES("X: y\rz\r\n"), cr},
        {"CR CR LF", LINES("X: y\r\r\n"), cr},
        {"CR in the target", START("GET /\r HTTP/1.1"), cr},
        {"CR before the line end", START("GET / HTTP/1.1\r"), cr},
        {"CR first, then no LF", TEXT("\rGET / HTTP/1.1\r\nHost: a\r\n\r\n"), cr},
        {"CR inside a name", LINES("X\rY: z\r\n"), name},
        {"NUL in a value", LINES("X: y\0z\r\n"), nul},
        {"NUL in a name", LINES("X\0Y: z\r\n"), nul},
        {"NUL in the target", START("GET /\0 HTTP/1.1"), nul},
        {"NUL first", START("\0GET / HTTP/1.1"), nul},
        {"a control byte in a value", LINES("X: y\x01z\r\n"), control},
        {"DEL in a value", LINES("X: y\x7fz\r\n"), control},
        {"obs-fold with a blank", LINES("X: y\r\n z\r\n"), fold},
        {"obs-fold with a tab", LINES("X: y\r\n\tz\r\n"), fold},
        {"obs-fold after the request line", TEXT("GET / HTTP/1.1\r\n Host: a\r\n\r\n"), fold},
        {"blank before the colon", LINES("X : y\r\n"), blank},
        {"tab before the colon", LINES("Transfer-Encoding\t: chunked\r\n"), blank},
        {"empty name", LINES(": y\r\n"), "!400 a header line has no name"},
        {"no colon", LINES("abc\r\n"), name},
        {"a byte above 127 in a name", LINES("X\xe9: y\r\n"), name},
        {"slash in a name", LINES("X/Y: z\r\n"), name},
        {"quote in a name", LINES("\"X\": z\r\n"), name},
        {"vertical tab after a name", LINES("Content-Length\v: 5\r\n"), name},
        {"no version", START("GET /"), line},
        {"no target", START("GET HTTP/1.1"), line},
        {"two blanks before the target", START("GET  / HTTP/1.1"), line},
        {"two blanks after the target", START("GET /  HTTP/1.1"), line},
        {"a tab for a blank", START("GET\t/ HTTP/1.1"), line},
        {"a blank at the end", START("GET / HTTP/1.1 "), line},
        {"a blank at the start", START(" GET / HTTP/1.1"), line},
        {"a blank in the target", START("GET /a b HTTP/1.1"), line},
        {"lower case version", START("GET / http/1.1"), line},
        {"two digits", START("GET / HTTP/1.11"), line},
        {"no digits", START("GET / HTTP/x.y"), line},
        {"no point", START("GET / HTTP/11"), line},
        {"another protocol", START("GET / ICAP/1.0"), line},
        {"a method with a byte that is no token", START("GE(T / HTTP/1.1"), line},
        {"a TLS client hello", TEXT("\x16\x03\x01\x02\x00"), line},
        {"fragment", START("GET /a#b HTTP/1.1"), target},
        {"a control byte in the target", START("GET /a\x01 HTTP/1.1"), target},
        {"DEL in the target", START("GET /a\x7f HTTP/1.1"), target},
        {"a byte above 127 in the target", START("GET /\xc3\xa9 HTTP/1.1"), target},
        {"a relative target", START("GET a HTTP/1.1"), target},
        {"an asterisk with GET", START("GET * HTTP/1.1"), target},
        {"an authority as target", START("GET a:80 HTTP/1.1"), target},
        {"another scheme", START("GET ftp://a/ HTTP/1.1"), target},
        {"absolute-form without a host", START("GET http:///x HTTP/1.1"), target},
        {"absolute-form with a user", START("GET http://u@a/ HTTP/1.1"), target},
        {"HTTP/1.2", START("GET / HTTP/1.2"), version},
        {"HTTP/2.0", START("GET / HTTP/2.0"), version},
        {"HTTP/0.9", START("GET / HTTP/0.9"), version},
        {"the HTTP/2 preface", TEXT("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), version},
        {"CONNECT", START("CONNECT a:443 HTTP/1.1"), "!501 method CONNECT"},
        {"two blank lines before", TEXT("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
         "!400 more than one blank line before the request"},
    };
    run_rows(rows, FL_ARRAY_LEN(rows));
}

/* gateway.md 7.3 row 9 */
static void host_is_one_and_agrees_with_the_target(void **state)
{
    (void)state;
    static const char missing[] = "!400 HTTP/1.1 request without Host";
    static const char twice[] = "!400 more than one Host";
    static const char bytes[] = "!400 Host is not host[:port]";
    static const char differs[] = "!400 Host differs from the authority of the target";
#define HOST(value) TEXT("GET / HTTP/1.1\r\nHost: " value "\r\n\r\n")
#define ASKED(target, value) TEXT("GET " target " HTTP/1.1\r\nHost: " value "\r\n\r\n")
    const struct row rows[] = {
        {"missing", TEXT("GET / HTTP/1.1\r\nX: y\r\n\r\n"), missing},
        {"no fields at all", TEXT("GET / HTTP/1.1\r\n\r\n"), missing},
        {"twice, equal", TEXT("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"), twice},
        {"twice in 1.0", TEXT("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n"), twice},
        {"empty", HOST(""), bytes},
        {"user", HOST("u@a"), bytes},
        {"slash", HOST("a/b"), bytes},
        {"blank inside", HOST("a b"), bytes},
        {"two ports", HOST("a:1:2"), bytes},
        {"a port that is no number", HOST("a:x"), bytes},
        {"a port above 65535", HOST("a:65536"), bytes},
        {"a bracket left open", HOST("[::1"), bytes},
        {"brackets around a name", HOST("[a]"), bytes},
        {"a bad escape", HOST("a%2"), bytes},
        {"obs-text", HOST("\xc3\xa9"), bytes},
        {"bad bytes in 1.0", TEXT("GET / HTTP/1.0\r\nHost: a/b\r\n\r\n"), bytes},
        {"name and port", HOST("a.example:8080"), "GET / none;"},
        {"an empty port is valid, RFC 3986 3.2.3", HOST("a:"), "GET / none;"},
        {"IPv6", HOST("[::1]:80"), "GET / none;"},
        {"an escape", HOST("a%2db"), "GET / none;"},
        {"absolute-form, equal", ASKED("http://a/x?y", "a"), "GET /x?y none;"},
        {"absolute-form, other case", ASKED("HTTP://A/x", "a"), "GET /x none;"},
        {"absolute-form, https", ASKED("https://a:1/x", "a:1"), "GET /x none;"},
        {"absolute-form, empty path", ASKED("http://a", "a"), "GET / none;"},
        {"absolute-form, query without path", ASKED("http://a?q", "a"), "GET /?q none;"},
        {"absolute-form, other host", ASKED("http://b/", "a"), differs},
        {"absolute-form, port differs", ASKED("http://a:80/", "a"), differs},
        {"absolute-form in 1.0 without Host", TEXT("GET http://a/x HTTP/1.0\r\n\r\n"),
         "GET /x none last;"},
        {"OPTIONS *", TEXT("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"), "OPTIONS * none;"},
        {"OPTIONS of the whole server through a proxy, RFC 9112 3.2.4",
         TEXT("OPTIONS http://a HTTP/1.1\r\nHost: a\r\n\r\n"), "OPTIONS * none;"},
    };
    run_rows(rows, FL_ARRAY_LEN(rows));
}

static void host_becomes_the_authority(void **state)
{
    (void)state;
    static const struct {
        struct fl_bytes text, authority, scheme;
    } rows[] = {
        {{(const uint8_t *)TEXT("GET / HTTP/1.1\r\nHost:  a:80 \r\n\r\n")},
         {(const uint8_t *)TEXT("a:80")},
         {NULL, 0}},
        {{(const uint8_t *)TEXT("GET http://a/ HTTP/1.0\r\n\r\n")},
         {(const uint8_t *)TEXT("a")},
         {(const uint8_t *)TEXT("http")}},
        {{(const uint8_t *)TEXT("GET / HTTP/1.0\r\n\r\n")}, {NULL, 0}, {NULL, 0}},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_http1_parser parser;
        struct fl_arena arena = {0};
        struct fl_http1_event ev;
        fl_http1_parser_init(&parser, FL_HTTP1_REQUESTS, &fl_http1_default_limits);
        assert_int_equal(fl_http1_feed(&parser, &arena, rows[i].text, &ev), FL_HTTP1_HEAD);
        assert_true(fl_bytes_eq(ev.head->authority, rows[i].authority));
        assert_int_equal(fl_bytes_is_absent(ev.head->authority), rows[i].authority.p == NULL);
        assert_true(fl_bytes_eq(ev.head->scheme, rows[i].scheme));
        assert_int_equal(ev.head->status, 0);
        fl_http1_parser_fini(&parser);
        fl_arena_fini(&arena);
    }
}

/* gateway.md 7.3 rows 6 and 10 */
static void bad_chunks_are_refused(void **state)
{
    (void)state;
    static const char size[] = "POST / chunked!400 a chunk size is not 1 to 16 hexadecimal digits";
    static const char lf[] = "POST / chunked!400 a line ends in LF without CR";
    static const char large[] = "POST / chunked!400 a chunk is larger than allowed";
    static const char end[] = "POST / chunked [abc!400 chunk data is not followed by CRLF";
    static const char ext[] = "POST / chunked!400 a chunk extension is malformed";
#define CHUNKS(text) TEXT("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" text)
    const struct row rows[] = {
        {"minus", CHUNKS("-3\r\nabc\r\n0\r\n\r\n"), size},
        {"plus", CHUNKS("+3\r\nabc\r\n0\r\n\r\n"), size},
        {"0x", CHUNKS("0x3\r\nabc\r\n0\r\n\r\n"), size},
        {"no digit", CHUNKS("\r\nabc\r\n"), size},
        {"only an extension", CHUNKS(";a\r\nabc\r\n"), size},
        {"a blank first", CHUNKS(" 3\r\nabc\r\n"), size},
        {"a blank at the end", CHUNKS("3 \r\nabc\r\n"), ext},
        {"a blank behind an extension", CHUNKS("3;a \r\nabc\r\n"), ext},
        {"an extension without a name", CHUNKS("3;\r\nabc\r\n"), ext},
        {"an extension without a value", CHUNKS("3;a=\r\nabc\r\n"), ext},
        {"a name that is no token", CHUNKS("3;a/b\r\nabc\r\n"), ext},
        {"a quote left open", CHUNKS("3;a=\"b\r\nabc\r\n"), ext},
        {"an escaped quote that leaves it open", CHUNKS("3;a=\"b\\\"\r\nabc\r\n"), ext},
        {"text behind a quote", CHUNKS("3;a=\"b\"c\r\nabc\r\n"), ext},
        {"a byte above 127 in a name", CHUNKS("3;a\x80\r\nabc\r\n"), ext},
        {"every form of a good one",
         CHUNKS("3 ; a\t;b = c;d=\"\\\"\x80 ;\" ;e\r\nabc\r\n0\r\n\r\n"),
         "POST / chunked [abc] end;"},
        {"a letter that is no digit", CHUNKS("3g\r\nabc\r\n"), size},
        {"underscore", CHUNKS("1_0\r\nabc\r\n"), size},
        {"NUL", CHUNKS("3\0\r\nabc\r\n"), size},
        {"17 digits", CHUNKS("00000000000000003\r\nabc\r\n"), size},
        {"16 digits are allowed", CHUNKS("0000000000000003\r\nabc\r\n0\r\n\r\n"),
         "POST / chunked [abc] end;"},
        {"2^62 + 1", CHUNKS("4000000000000001\r\nabc"), large},
        {"2^64 - 1", CHUNKS("ffffffffffffffff\r\nabc"), large},
        {"2^62 is allowed", CHUNKS("4000000000000000\r\nabc"), "POST / chunked [abc"},
        {"LF after the size", CHUNKS("3\nabc\r\n0\r\n\r\n"), lf},
        {"LF after an extension", CHUNKS("3;a\nabc\r\n0\r\n\r\n"), lf},
        {"LF after the last chunk", CHUNKS("0\n\r\n"), lf},
        {"LF for the blank line", CHUNKS("0\r\n\n"), lf},
        {"CR alone after the size", CHUNKS("3\rabc\r\n0\r\n\r\n"),
         "POST / chunked!400 CR that is not followed by LF"},
        {"CR between quotes", CHUNKS("3;a=\"\r\n\"\r\nabc\r\n0\r\n\r\n"), ext},
        {"CR inside an extension", CHUNKS("3;a\rb\r\nabc\r\n0\r\n\r\n"),
         "POST / chunked!400 CR that is not followed by LF"},
        {"NUL in an extension", CHUNKS("3;a\0b\r\nabc\r\n0\r\n\r\n"), ext},
        {"a control byte in an extension", CHUNKS("3;a\x01\r\nabc\r\n0\r\n\r\n"), ext},
        {"data longer than the size", CHUNKS("3\r\nabcd\r\n0\r\n\r\n"), end},
        {"data followed by LF", CHUNKS("3\r\nabc\n0\r\n\r\n"), end},
        {"data followed by CR", CHUNKS("3\r\nabc\r0\r\n\r\n"), end},
        {"data followed by the next size", CHUNKS("3\r\nabc0\r\n\r\n"), end},
        {"a trailer that is no header", CHUNKS("0\r\nabc\r\n\r\n"),
         "POST / chunked!400 a header name holds a byte that is not allowed"},
        {"a folded trailer", CHUNKS("0\r\na: b\r\n c\r\n\r\n"),
         "POST / chunked!400 a header line is folded"},
    };
    run_rows(rows, FL_ARRAY_LEN(rows));
}

/* gateway.md 7.1 trailers */
static void trailers_of_class_framing_routing_or_auth_are_dropped(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"kept, in order and repeated", CHUNKS("0\r\nA: 1\r\nb: 2\r\nA: 3\r\n\r\n"),
         "POST / chunked end {A: 1|b: 2|A: 3};"},
        {"dropped",
         CHUNKS("1\r\nx\r\n0\r\nContent-Length: 1\r\ntransfer-encoding: x\r\nHost: b\r\nTrailer: "
                "q\r\nTE: q\r\nAuthorization: q\r\nSet-Cookie: q\r\nx-gateway-destination: "
                "q\r\nX-Gateway-: q\r\nConnection: close\r\nok: 1\r\n\r\n"),
         "POST / chunked [x] end {ok: 1};"},
        {"nothing left is no trailers", CHUNKS("0\r\nhost: b\r\n\r\n"), "POST / chunked end;"},
        {"the next request begins behind them",
         CHUNKS("0\r\nA: 1\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
         "POST / chunked end {A: 1}; GET / none;"},
    };
    run_rows(rows, FL_ARRAY_LEN(rows));
}

/* gateway.md 7.1 Expect, 7.2 */
static void expectations_and_upgrades_are_told(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"with a body",
         TEXT("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 1\r\n\r\n"),
         "POST / length 1 expect"},
        {"without a body there is nothing to wait for",
         TEXT("GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n"), "GET / none;"},
        {"of 1.0 it is ignored, RFC 9110 10.1.1",
         TEXT("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n"),
         "POST / length 1 last"},
        {"another", TEXT("POST / HTTP/1.1\r\nHost: a\r\nExpect: x\r\n\r\n"),
         "!417 Expect is not 100-continue"},
        {"a list", TEXT("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue, x\r\n\r\n"),
         "!417 Expect is not 100-continue"},
        {"a second line",
         TEXT("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nExpect: x\r\n\r\n"),
         "!417 Expect is not 100-continue"},
        {"websocket",
         TEXT("GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: "
              "websocket\r\n\r\n"),
         "GET / none upgrade;"},
        {"not listed in Connection",
         TEXT("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n"), "GET / none;"},
        {"h2c is ignored",
         TEXT("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"),
         "GET / none;"},
        {"with a body it is an ordinary request",
         TEXT("POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\nContent-Length: "
              "1\r\n\r\nx"),
         "POST / length 1 [x] end;"},
    };
    run_rows(rows, FL_ARRAY_LEN(rows));
}

/* gateway.md 7.1: header order and case kept, repeated lines stay apart */
static void fields_keep_order_case_and_repetition(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"as received",
         TEXT("GET / HTTP/1.1\r\nhOsT: a\r\nX-B: 1\r\nx-a:2\r\nX-B:\t3  \r\nE:\r\nF: \xc3\xa9 "
              "\t!\r\n\r\n"),
         "GET / none {hOsT: a|X-B: 1|x-a: 2|X-B: 3|E: |F: \xc3\xa9 \t!};"},
    };
    run_rows_with(rows, FL_ARRAY_LEN(rows), true);
}

/* ---- limits ---- */

static void expect_limit(const struct fl_http1_limits *limits, struct fl_bytes text,
                         const char *why, const char *said)
{
    static const size_t pieces[] = {SIZE_MAX, 1, 7};
    for (size_t i = 0; i < FL_ARRAY_LEN(pieces); i++) {
        struct feeding f;
        feeding_init(&f, NULL, limits);
        feeding_cut(&f, text, pieces[i], NULL);
        if (strcmp(feeding_said(&f), said) != 0)
            fail_msg("%s, pieces of %zu: said %s, expected %s", why, pieces[i],
                     (const char *)f.said.head, said);
        feeding_fini(&f);
    }
}

/* gateway.md 2 --max-header-bytes; 7 status 431 */
static void a_head_may_be_as_large_as_the_limit(void **state)
{
    (void)state;
    struct fl_http1_limits limits = fl_http1_default_limits;
    struct fl_bytes text = FL_BYTES("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    struct fl_bytes unfinished = FL_BYTES("GET / HTTP/1.1\r\nHost: aaaa");
    static const char large[] = "!431 the head is larger than allowed";

    limits.max_header_bytes = text.n + 1;
    expect_limit(&limits, text, "below", "GET / none;");
    limits.max_header_bytes = text.n;
    expect_limit(&limits, text, "at", "GET / none;");
    limits.max_header_bytes = text.n - 1;
    expect_limit(&limits, text, "above", large);
    limits.max_header_bytes = unfinished.n + 1;
    expect_limit(&limits, unfinished, "may still end", "");
    limits.max_header_bytes = unfinished.n;
    expect_limit(&limits, unfinished, "cannot end within the limit", large);
    expect_limit(&limits, FL_BYTES("GET / HTTP/1.1\r\nHost: aaaaaaaaaaaaaaaaaa\nX: y\r\n\r\n"),
                 "what is wrong beyond the limit is not looked at", large);
}

/* gateway.md 2 --max-headers */
static void a_head_may_have_as_many_lines_as_the_limit(void **state)
{
    (void)state;
    struct fl_http1_limits limits = fl_http1_default_limits;
    static const char many[] = "!431 the head has more lines than allowed";

    limits.max_headers = 3;
    expect_limit(&limits, FL_BYTES("GET / HTTP/1.1\r\nHost: a\r\nb:\r\n\r\n"), "below",
                 "GET / none;");
    expect_limit(&limits, FL_BYTES("GET / HTTP/1.1\r\nHost: a\r\nb:\r\nc:\r\n\r\n"), "at",
                 "GET / none;");
    expect_limit(&limits, FL_BYTES("GET / HTTP/1.1\r\nHost: a\r\nb:\r\nc:\r\nd:\r\n"), "above",
                 many);
    expect_limit(&limits, FL_BYTES("\r\nGET / HTTP/1.1\r\nHost: a\r\nb:\r\nc:\r\n\r\n"),
                 "a blank line before does not count", "GET / none;");
}

static void trailers_have_limits_of_their_own(void **state)
{
    (void)state;
#define TRAILED "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    struct fl_http1_limits limits = fl_http1_default_limits;

    limits.max_trailers = 2;
    expect_limit(&limits, FL_BYTES(TRAILED "a: 1\r\nb: 2\r\n\r\n"), "lines at",
                 "POST / chunked end {a: 1|b: 2};");
    expect_limit(&limits, FL_BYTES(TRAILED "a: 1\r\nhost: 2\r\nc: 3\r\n\r\n"), "lines above",
                 "POST / chunked!431 more trailer lines than allowed");
    limits.max_trailer_bytes = 8;
    expect_limit(&limits, FL_BYTES(TRAILED "a: 1\r\n\r\n"), "bytes at",
                 "POST / chunked end {a: 1};");
    expect_limit(&limits, FL_BYTES(TRAILED "a: 12\r\n\r\n"), "bytes above",
                 "POST / chunked!431 the trailers are larger than allowed");
}

/* sidecar.md 3.2: chunk size and extension */
static void chunks_have_limits(void **state)
{
    (void)state;
    struct fl_http1_limits limits = fl_http1_default_limits;
    struct fl_buf text = {0};
    static const char long_ext[] = "POST / chunked!400 chunk extensions are longer than allowed";

    limits.max_chunk_bytes = 4;
    expect_limit(&limits, FL_BYTES(TRAILED), "zero", "POST / chunked");
#define SIZED(size) "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" size
    expect_limit(&limits, FL_BYTES(SIZED("4\r\nabcd\r\n0\r\n\r\n")), "at",
                 "POST / chunked [abcd] end;");
    expect_limit(&limits, FL_BYTES(SIZED("5\r\nabcde\r\n0\r\n\r\n")), "above",
                 "POST / chunked!400 a chunk is larger than allowed");

    for (int over = 0; over <= 1; over++) {
        fl_buf_clear(&text);
        fl_buf_printf(&text, SIZED("0") ";%0*d\r\n\r\n", FL_HTTP1_MAX_CHUNK_EXT_BYTES - 1 + over,
                      7);
        expect_limit(&fl_http1_default_limits, fl_buf_bytes(&text), "one extension",
                     over ? long_ext : "POST / chunked end;");
        fl_buf_clear(&text);
        fl_buf_printf(&text, SIZED("0") "%*s;a\r\n\r\n", FL_HTTP1_MAX_CHUNK_EXT_BYTES - 2 + over,
                      "");
        expect_limit(&fl_http1_default_limits, fl_buf_bytes(&text), "blanks count",
                     over ? long_ext : "POST / chunked end;");
    }
    fl_buf_fini(&text);
}

static void extensions_of_one_message_have_a_limit_together(void **state)
{
    (void)state;
    static const char long_ext[] = "chunk extensions are longer than allowed";
    const int each = 256;
    const int fit = FL_HTTP1_MAX_CHUNK_EXT_TOTAL_BYTES / each;
    for (int over = 0; over <= 1; over++) {
        struct feeding f;
        struct fl_buf text = {0};
        fl_buf_printf(&text, SIZED(""));
        for (int i = 0; i < fit; i++)
            fl_buf_printf(&text, "1;%0*d\r\nx\r\n", each - 1, 7);
        fl_buf_printf(&text, over ? "0;a\r\n\r\n" : "0\r\n\r\n");
        feeding_init(&f, NULL, &fl_http1_default_limits);
        feeding_cut(&f, fl_buf_bytes(&text), SIZE_MAX, NULL);
        assert_int_equal(strstr(feeding_said(&f), long_ext) != NULL, over);
        assert_int_equal(f.is_bad, over);
        feeding_fini(&f);
        /* The next message starts from nothing. */
        if (over == 0) {
            feeding_init(&f, NULL, &fl_http1_default_limits);
            feeding_cut(&f, fl_buf_bytes(&text), SIZE_MAX, NULL);
            feeding_cut(&f, fl_buf_bytes(&text), SIZE_MAX, NULL);
            assert_false(f.is_bad);
            feeding_fini(&f);
        }
        fl_buf_fini(&text);
    }
}

static void connection_may_list_64_options(void **state)
{
    (void)state;
    for (int over = 0; over <= 1; over++) {
        struct fl_buf text = {0};
        fl_buf_printf(&text, "GET / HTTP/1.1\r\nHost: a\r\nConnection: a");
        for (int i = 1; i < 64 + over; i++)
            fl_buf_printf(&text, ",a");
        fl_buf_printf(&text, "\r\n\r\n");
        expect_limit(&fl_http1_default_limits, fl_buf_bytes(&text), "options",
                     over ? "!400 Connection lists more than 64 options" : "GET / none;");
        fl_buf_fini(&text);
    }
}

/* ---- life of a parser ---- */

static void an_idle_parser_owns_no_memory(void **state)
{
    (void)state;
    struct feeding f;
    feeding_init(&f, NULL, &fl_http1_default_limits);
    feeding_piece(&f, FL_BYTES("GET / HTTP/1.1\r\nHo"));
    assert_false(fl_http1_is_idle(&f.parser));
    assert_non_null(f.parser.held.start);
    feeding_piece(&f, FL_BYTES("st: a\r\n\r\n"));
    assert_true(fl_http1_is_idle(&f.parser));
    assert_null(f.parser.held.start);
    feeding_piece(&f, FL_BYTES("\r\n"));
    assert_true(fl_http1_is_idle(&f.parser));
    /* performance.md e4: 2 KiB a connection in all */
    assert_true(sizeof(f.parser) <= 104);
    feeding_fini(&f);
}

static void bad_is_final(void **state)
{
    (void)state;
    struct fl_http1_parser parser;
    struct fl_arena arena = {0};
    struct fl_http1_event ev;
    fl_http1_parser_init(&parser, FL_HTTP1_REQUESTS, &fl_http1_default_limits);
    assert_int_equal(fl_http1_feed(&parser, &arena, FL_BYTES("\n"), &ev), FL_HTTP1_BAD);
    assert_string_equal(ev.defect->word, "bad_request");
    assert_int_equal(
        fl_http1_feed(&parser, &arena, FL_BYTES("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), &ev),
        FL_HTTP1_BAD);
    assert_non_null(ev.defect);
    assert_int_equal(fl_http1_feed_eof(&parser, &ev), FL_HTTP1_BAD);
    assert_false(fl_http1_is_idle(&parser));
    fl_http1_parser_fini(&parser);
    fl_arena_fini(&arena);
}

/* gateway.md 8.7: an early end is told from a clean one */
static void the_end_of_the_stream_cuts_what_is_unfinished(void **state)
{
    (void)state;
    static const char cut[] = "!400 the message ended early";
    static const struct {
        const char *text, *said;
        bool is_cut;
    } rows[] = {
        {"", "", false},
        {"\r\n", "", false},
        {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / none; ", false},
        {"G", "", true},
        {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na", "POST / length 2 [a", true},
        {SIZED("1\r\na\r\n0\r\n"), "POST / chunked [a", true},
        {SIZED("1\r\na\r\n"), "POST / chunked [a", true},
        {"GET / HTTP/1.0\r\n\r\nxyz", "GET / none last; ", false},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct feeding f;
        char expected[256];
        feeding_init(&f, NULL, &fl_http1_default_limits);
        feeding_piece(&f, fl_bytes_of(rows[i].text));
        feeding_eof(&f);
        snprintf(expected, sizeof(expected), "%s%s", rows[i].said, rows[i].is_cut ? cut : "");
        while (expected[0] != 0 && expected[strlen(expected) - 1] == ' ')
            expected[strlen(expected) - 1] = 0;
        assert_string_equal(feeding_said(&f), expected);
        feeding_fini(&f);
    }
}

static void a_caller_knows_how_much_body_is_contiguous(void **state)
{
    (void)state;
    struct feeding f;
    feeding_init(&f, NULL, &fl_http1_default_limits);
    assert_int_equal(fl_http1_body_left(&f.parser), 0);
    feeding_piece(&f, FL_BYTES("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc"));
    assert_int_equal(fl_http1_body_left(&f.parser), 6);
    feeding_piece(&f, FL_BYTES("defghi"));
    assert_int_equal(fl_http1_body_left(&f.parser), 0);
    feeding_piece(&f, FL_BYTES(SIZED("a\r\n012")));
    assert_int_equal(fl_http1_body_left(&f.parser), 7);
    feeding_piece(&f, FL_BYTES("3456789"));
    assert_int_equal(fl_http1_body_left(&f.parser), 0);
    feeding_fini(&f);
}

/* gateway.md 7.2 */
static void a_tunnel_passes_every_byte(void **state)
{
    (void)state;
    struct feeding f;
    feeding_init(&f, NULL, &fl_http1_default_limits);
    feeding_piece(&f, FL_BYTES("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: "
                               "x\r\n\r\n"));
    fl_http1_become_tunnel(&f.parser);
    assert_true(fl_http1_body_left(&f.parser) == UINT64_MAX);
    feeding_piece(&f, FL_BYTES("\n\n"));
    feeding_piece(&f, FL_BYTES("GET"));
    feeding_eof(&f);
    assert_string_equal(feeding_said(&f), "GET / none upgrade;  [\n\nGET] end;");
    feeding_fini(&f);
}

static void a_failed_allocation_is_an_error_not_an_abort(void **state)
{
    (void)state;
    struct feeding f;
    feeding_init(&f, NULL, &fl_http1_default_limits);
    fl_arena_fini(&f.arena);
    fl_arena_init(&f.arena, 16);
    feeding_piece(&f, FL_BYTES("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_string_equal(feeding_said(&f), "!500 out of memory");
    feeding_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_requests_are_taken_one_after_the_other),
        cmocka_unit_test(a_doubtful_length_is_refused),
        cmocka_unit_test(a_malformed_head_is_refused),
        cmocka_unit_test(host_is_one_and_agrees_with_the_target),
        cmocka_unit_test(host_becomes_the_authority),
        cmocka_unit_test(bad_chunks_are_refused),
        cmocka_unit_test(trailers_of_class_framing_routing_or_auth_are_dropped),
        cmocka_unit_test(expectations_and_upgrades_are_told),
        cmocka_unit_test(fields_keep_order_case_and_repetition),
        cmocka_unit_test(a_head_may_be_as_large_as_the_limit),
        cmocka_unit_test(a_head_may_have_as_many_lines_as_the_limit),
        cmocka_unit_test(trailers_have_limits_of_their_own),
        cmocka_unit_test(chunks_have_limits),
        cmocka_unit_test(extensions_of_one_message_have_a_limit_together),
        cmocka_unit_test(connection_may_list_64_options),
        cmocka_unit_test(an_idle_parser_owns_no_memory),
        cmocka_unit_test(bad_is_final),
        cmocka_unit_test(the_end_of_the_stream_cuts_what_is_unfinished),
        cmocka_unit_test(a_caller_knows_how_much_body_is_contiguous),
        cmocka_unit_test(a_tunnel_passes_every_byte),
        cmocka_unit_test(a_failed_allocation_is_an_error_not_an_abort),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
