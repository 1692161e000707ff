/* SPDX-License-Identifier: Apache-2.0 */
/* Responses: where a body ends depends on the request, the status and the fields, in that order
 * (RFC 9112 6.3). Rows are fed whole, byte by byte and cut at random, then the stream ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "unit/http1/feeding.h"

#define RANDOM_CUTS 20
#define MAX_ASKED 4

struct row {
    const char *why;
    const char *asked[MAX_ASKED];
    const char *text;
    const char *said;
};

static void expect_said(const struct row *row, size_t index, const char *how, size_t piece,
                        struct fl_rng *rng)
{
    struct feeding f;
    feeding_init(&f, row->asked, &fl_http1_default_limits);
    feeding_cut(&f, fl_bytes_of(row->text), piece, rng);
    feeding_eof(&f);
    const char *said = feeding_said(&f);
    if (strcmp(said, row->said) != 0)
        fail_msg("row %zu (%s), %s:\n  said     %s\n  expected %s", index, row->why, how, said,
                 row->said);
    feeding_fini(&f);
}

static void run_rows(const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        expect_said(&rows[i], i, "whole", SIZE_MAX, NULL);
        expect_said(&rows[i], i, "byte by byte", 1, NULL);
        for (uint64_t seed = 1; seed <= RANDOM_CUTS; seed++) {
            char how[32];
            struct fl_rng rng;
            snprintf(how, sizeof(how), "cut with seed %llu", (unsigned long long)seed);
            fl_rng_seed(&rng, seed);
            expect_said(&rows[i], i, how, 0, &rng);
        }
    }
}

#define OK "HTTP/1.1 200 OK\r\n"
#define LEN(n) "Content-Length: " n "\r\n"
#define CHUNKED "Transfer-Encoding: chunked\r\n"

/* gateway.md 7.1 HEAD, 204, 304; Connection: close from the endpoint */
static void a_body_ends_where_rfc_9112_says(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"a length", {"GET"}, OK LEN("5") "\r\nhello", "200 length 5 [hello] end;"},
        {"length 0", {"GET"}, OK LEN("0") "\r\n", "200 none 0;"},
        {"chunked with trailers",
         {"GET"},
         OK CHUNKED "\r\n1\r\na\r\n0\r\nx: y\r\n\r\n",
         "200 chunked [a] end {x: y};"},
        {"until close", {"GET"}, OK "\r\nabc", "200 close last [abc] end;"},
        {"until close, empty", {"GET"}, OK "\r\n", "200 close last end;"},
        {"until close, though keep-alive is said",
         {"GET"},
         "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nabc",
         "200 close last [abc] end;"},
        {"1.0 with length, kept",
         {"GET", "GET"},
         "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" LEN("1") "\r\na" OK LEN("1") "\r\nb",
         "200 length 1 [a] end; 200 length 1 [b] end;"},
        {"1.0 with length, not kept",
         {"GET", "GET"},
         "HTTP/1.0 200 OK\r\n" LEN("1") "\r\na",
         "200 length 1 last [a] end;"},
        {"HEAD with a length",
         {"HEAD", "GET"},
         OK LEN("5") "\r\n" OK LEN("1") "\r\na",
         "200 none 5; 200 length 1 [a] end;"},
        {"HEAD chunked",
         {"HEAD", "GET"},
         OK CHUNKED "\r\n" OK LEN("1") "\r\na",
         "200 none; 200 length 1 [a] end;"},
        {"HEAD without either keeps the connection",
         {"HEAD", "HEAD"},
         OK "\r\n" OK "\r\n",
         "200 none; 200 none;"},
        {"204 with a length",
         {"GET", "GET"},
         "HTTP/1.1 204 No Content\r\n" LEN("5") "\r\n" OK LEN("0") "\r\n",
         "204 none 5; 200 none 0;"},
        {"304 with a length",
         {"GET", "GET"},
         "HTTP/1.1 304 Not Modified\r\n" LEN("5") "\r\n" OK LEN("0") "\r\n",
         "304 none 5; 200 none 0;"},
        {"304 chunked",
         {"GET", "GET"},
         "HTTP/1.1 304 Not Modified\r\n" CHUNKED "\r\n" OK LEN("0") "\r\n",
         "304 none; 200 none 0;"},
        {"Connection: close",
         {"GET", "GET"},
         OK "Connection: close\r\n" LEN("1") "\r\nabc",
         "200 length 1 last [a] end;"},
        {"no reason", {"GET"}, "HTTP/1.1 200 \r\n" LEN("0") "\r\n", "200 none 0;"},
        {"neither reason nor blank", {"GET"}, "HTTP/1.1 200\r\n" LEN("0") "\r\n", "200 none 0;"},
        {"a reason with any text",
         {"GET"},
         "HTTP/1.1 599 a\tb \xc3\xa9\r\n" LEN("0") "\r\n",
         "599 none 0;"},
    };
    run_rows(rows, FL_ARRAY_LEN(rows));
}

/* gateway.md 7.1 1xx */
static void interim_answers_come_before_the_final_one(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"100", {"POST"}, "HTTP/1.1 100 Continue\r\n\r\n" OK LEN("0") "\r\n", "+100; 200 none 0;"},
        {"102 and 103 with fields",
         {"GET"},
         "HTTP/1.1 102 P\r\nx: y\r\n\r\nHTTP/1.1 103 E\r\nLink: z\r\n\r\n" OK LEN("1") "\r\na",
         "+102; +103; 200 length 1 [a] end;"},
        {"a length in it is ignored",
         {"GET"},
         "HTTP/1.1 100 C\r\n" LEN("5") "\r\n" OK LEN("0") "\r\n",
         "+100; 200 none 0;"},
        {"then nothing", {"GET"}, "HTTP/1.1 100 C\r\n\r\n", "+100; !400 the message ended early"},
    };
    run_rows(rows, FL_ARRAY_LEN(rows));
}

static void sixteen_interim_answers_are_enough(void **state)
{
    (void)state;
    for (int over = 0; over <= 1; over++) {
        static const char *const asked[] = {"GET", NULL};
        struct feeding f;
        feeding_init(&f, asked, &fl_http1_default_limits);
        for (int i = 0; i < FL_HTTP1_MAX_INFORMATIONAL + over; i++)
            feeding_piece(&f, FL_BYTES("HTTP/1.1 102 P\r\n\r\n"));
        assert_int_equal(f.is_bad, over);
        feeding_fini(&f);
    }
}

/* gateway.md 7.2 */
static void a_switched_connection_is_a_tunnel(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"asked for",
         {"UPGRADE"},
         "HTTP/1.1 101 S\r\nUpgrade: x\r\n\r\n\x81\n",
         "101 close upgrade last [\x81\n] end;"},
        {"lengths say nothing",
         {"UPGRADE"},
         "HTTP/1.1 101 S\r\n" LEN("1") "\r\nabc",
         "101 close upgrade last [abc] end;"},
        {"not asked for",
         {"GET"},
         "HTTP/1.1 101 S\r\n\r\n",
         "!400 101 without an upgrade in the request"},
        {"refused upgrade", {"UPGRADE"}, "HTTP/1.1 426 U\r\n" LEN("0") "\r\n", "426 none 0;"},
    };
    run_rows(rows, FL_ARRAY_LEN(rows));
}

/* gateway.md 7.3 last row; section 16 case 59 */
static void a_malformed_response_is_refused(void **state)
{
    (void)state;
    static const char line[] = "!400 the status line is not HTTP/1.x CODE reason";
    const struct row rows[] = {
        {"both lengths",
         {"GET"},
         OK LEN("1") CHUNKED "\r\na",
         "!400 both Content-Length and Transfer-Encoding"},
        {"both lengths in answer to HEAD",
         {"HEAD"},
         OK CHUNKED LEN("1") "\r\n",
         "!400 both Content-Length and Transfer-Encoding"},
        {"two lengths", {"GET"}, OK LEN("1") LEN("1") "\r\na", "!400 more than one Content-Length"},
        {"a bad length", {"GET"}, OK LEN("x") "\r\na", "!400 Content-Length is not a number"},
        {"a list", {"GET"}, OK LEN("1, 1") "\r\na", "!400 Content-Length is not a number"},
        {"another coding",
         {"GET"},
         OK "Transfer-Encoding: gzip, chunked\r\n\r\n",
         "!501 Transfer-Encoding other than chunked"},
        {"a coding in 1.0",
         {"GET"},
         "HTTP/1.0 200 OK\r\n" CHUNKED "\r\n",
         "!400 Transfer-Encoding in an HTTP/1.0 message"},
        {"LF", {"GET"}, "HTTP/1.1 200 OK\n\n", "!400 a line ends in LF without CR"},
        {"not HTTP at all", {"GET"}, "SSH-2.0-x\r\n\r\n", line},
        {"a blank line first", {"GET"}, "\r\nHTTP/1.1 200 OK\r\n\r\n", line},
        {"two digits", {"GET"}, "HTTP/1.1 20 OK\r\n\r\n", line},
        {"four digits", {"GET"}, "HTTP/1.1 2000 OK\r\n\r\n", line},
        {"below 100", {"GET"}, "HTTP/1.1 099 OK\r\n\r\n", line},
        {"a sign", {"GET"}, "HTTP/1.1 -20 OK\r\n\r\n", line},
        {"no code", {"GET"}, "HTTP/1.1\r\n\r\n", line},
        {"code after two blanks", {"GET"}, "HTTP/1.1  200 OK\r\n\r\n", line},
        {"HTTP/2.0", {"GET"}, "HTTP/2.0 200 OK\r\n\r\n", "!505 neither HTTP/1.0 nor HTTP/1.1"},
        {"a control byte in the reason",
         {"GET"},
         "HTTP/1.1 200 O\x01K\r\n\r\n",
         "!400 control byte in the head"},
        {"an answer nobody asked for",
         {NULL},
         OK LEN("0") "\r\n",
         "!400 bytes of an answer that nobody asked for"},
        {"a second answer to one request",
         {"GET"},
         OK LEN("1") "\r\na" OK LEN("0") "\r\n",
         "200 length 1 [a] end; !400 bytes of an answer that nobody asked for"},
    };
    run_rows(rows, FL_ARRAY_LEN(rows));
}

/* gateway.md 8.7 and section 16 case 49: truncation is seen */
static void an_answer_that_ends_early_is_cut(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"nothing came", {"GET"}, "", "!400 the message ended early"},
        {"inside the head", {"GET"}, "HTTP/1.1 200 OK\r\nX", "!400 the message ended early"},
        {"inside a length",
         {"GET"},
         OK LEN("5") "\r\nabc",
         "200 length 5 [abc!400 the message ended early"},
        {"inside a chunk",
         {"GET"},
         OK CHUNKED "\r\n5\r\nabc",
         "200 chunked [abc!400 the message ended early"},
        {"between chunks",
         {"GET"},
         OK CHUNKED "\r\n1\r\na\r\n",
         "200 chunked [a!400 the message ended early"},
        {"before the last blank line",
         {"GET"},
         OK CHUNKED "\r\n0\r\n",
         "200 chunked!400 the message ended early"},
    };
    run_rows(rows, FL_ARRAY_LEN(rows));
}

static void the_cut_defect_is_told_apart(void **state)
{
    (void)state;
    struct fl_http1_parser parser;
    struct fl_http1_event ev;
    fl_http1_parser_init(&parser, FL_HTTP1_RESPONSES, &fl_http1_default_limits);
    assert_int_equal(fl_http1_feed_eof(&parser, &ev), FL_HTTP1_MORE);
    fl_http1_expect(&parser, false, false);
    assert_int_equal(fl_http1_feed_eof(&parser, &ev), FL_HTTP1_BAD);
    assert_ptr_equal(ev.defect, fl_http1_cut);
    fl_http1_parser_fini(&parser);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_ends_where_rfc_9112_says),
        cmocka_unit_test(interim_answers_come_before_the_final_one),
        cmocka_unit_test(sixteen_interim_answers_are_enough),
        cmocka_unit_test(a_switched_connection_is_a_tunnel),
        cmocka_unit_test(a_malformed_response_is_refused),
        cmocka_unit_test(an_answer_that_ends_early_is_cut),
        cmocka_unit_test(the_cut_defect_is_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
