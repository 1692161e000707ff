/* SPDX-License-Identifier: Apache-2.0 */
/* Standard error is a datagram socket here, so that one receive is exactly one write(2). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"

static int saved_stderr, reader;

static int capture(void **state)
{
    (void)state;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0)
        return -1;
    fflush(stderr);
    saved_stderr = dup(STDERR_FILENO);
    reader = pair[0];
    dup2(pair[1], STDERR_FILENO);
    close(pair[1]);
    return 0;
}

static int release(void **state)
{
    (void)state;
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    close(reader);
    fl_log_set_level(FL_LOG_INFO);
    fl_log_set_format(FL_LOG_AUTO);
    return 0;
}

/* The next line, or "" if nothing was written. */
static const char *next_line(void)
{
    static char line[16384];
    ssize_t n = recv(reader, line, sizeof(line) - 1, MSG_DONTWAIT);
    line[n < 0 ? 0 : n] = 0;
    return line;
}

/* Where the part after the time stamp begins. */
static const char *after_time(const char *line, size_t lead)
{
    static const char pattern[] = "dddd-dd-ddTdd:dd:dd.dddZ";
    assert_true(strlen(line) > lead + sizeof(pattern) - 1);
    for (size_t i = 0; pattern[i] != 0; i++) {
        char c = line[lead + i];
        if (pattern[i] == 'd' ? c < '0' || c > '9' : c != pattern[i])
            fail_msg("no UTC time with milliseconds: %s", line);
    }
    return line + lead + sizeof(pattern) - 1;
}

struct row {
    const char *why;
    const char *pairs; /* printed through %s, as our own formats would come out */
    const char *text, *json;
};

static const struct row rows[] = {
    {"plain pairs", "port=8080 host=a.b", " port=8080 host=a.b",
     ",\"port\":\"8080\",\"host\":\"a.b\""},
    {"no pairs", "", "", ""},
    {"a quoted value keeps its blanks", "a=\"x y\" b=1", " a=\"x y\" b=1",
     ",\"a\":\"x y\",\"b\":\"1\""},
    {"an empty value", "a= b=\"\"", " a= b=\"\"", ",\"a\":\"\",\"b\":\"\""},
    {"several blanks between pairs", "  a=1   b=2 ", " a=1 b=2", ",\"a\":\"1\",\"b\":\"2\""},
    {"words without a key", "gone", " gone", ",\"text\":\"gone\""},
    {"a newline cannot begin a line", "a=x\nb", " a=x\\nb", ",\"a\":\"x\\nb\""},
    {"return, tab, bell, DEL", "a=\r\t\a\x7f", " a=\\r\\t\\x07\\x7f",
     ",\"a\":\"\\r\\t\\u0007\\u007f\""},
    {"escape sequences of terminals", "a=\x1b[31m", " a=\\x1b[31m", ",\"a\":\"\\u001b[31m\""},
    {"the C1 control CSI",
     "a=\xc2\x9b"
     "1m",
     " a=\\xc2\\x9b1m", ",\"a\":\"\\\\xc2\\\\x9b1m\""},
    {"a quote inside a word", "a=x\"y", " a=x\\\"y", ",\"a\":\"x\\\"y\""},
    {"a quote inside a quoted value", "a=\"x\"y\" b=1", " a=\"x\\\"y\" b=1",
     ",\"a\":\"x\\\"y\",\"b\":\"1\""},
    {"an escaped quote", "a=\"x\\\" y\" b=1", " a=\"x\\\" y\" b=1",
     ",\"a\":\"x\\\" y\",\"b\":\"1\""},
    {"a backslash", "a=c:\\d", " a=c:\\\\d", ",\"a\":\"c:\\\\d\""},
    {"an unterminated quote", "a=\"x y", " a=\"x y\"", ",\"a\":\"x y\""},
    {"only a quote", "a=\"", " a=\"\"", ",\"a\":\"\""},
    {"an equals sign in the value", "a=b=c", " a=b=c", ",\"a\":\"b=c\""},
    {"UTF-8 passes", "a=\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80",
     " a=\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", ",\"a\":\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\""},
    {"bytes that are not UTF-8", "a=\xff\xc3", " a=\\xff\\xc3", ",\"a\":\"\\\\xff\\\\xc3\""},
    {"a key of a peer's making", "a\x01\"=1", " a\\x01\\\"=1", ",\"a\\u0001\\\"\":\"1\""},
};

static void text_lines_escape_what_could_forge_one(void **state)
{
    (void)state;
    fl_log_set_format(FL_LOG_TEXT);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        char expected[256];
        fl_log(FL_LOG_WARN, "what", "%s", rows[i].pairs);
        snprintf(expected, sizeof(expected), " warn what%s%s\n", rows[i].pairs[0] == 0 ? "" : ":",
                 rows[i].text);
        const char *line = next_line();
        if (strcmp(after_time(line, 0), expected) != 0)
            fail_msg("row %zu: %s: %s", i, rows[i].why, line);
    }
    assert_string_equal(next_line(), "");
}

static void json_lines_are_objects(void **state)
{
    (void)state;
    fl_log_set_format(FL_LOG_JSON);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        char expected[256];
        fl_log(FL_LOG_ERROR, "what \"x\"", "%s", rows[i].pairs);
        snprintf(expected, sizeof(expected),
                 "\",\"level\":\"error\",\"msg\":\"what \\\"x\\\"\"%s}\n", rows[i].json);
        const char *line = next_line();
        assert_int_equal(strncmp(line, "{\"ts\":\"", 7), 0);
        if (strcmp(after_time(line, 7), expected) != 0)
            fail_msg("row %zu: %s: %s", i, rows[i].why, line);
    }
}

static void without_a_terminal_auto_is_json(void **state)
{
    (void)state;
    fl_log_set_format(FL_LOG_AUTO);
    fl_log(FL_LOG_ERROR, "what", NULL);
    assert_int_equal(next_line()[0], '{');
}

static void the_time_is_now_in_utc(void **state)
{
    (void)state;
    struct tm utc = {0};
    time_t before = time(NULL);
    fl_log_set_format(FL_LOG_TEXT);
    fl_log(FL_LOG_ERROR, "what", NULL);
    time_t after = time(NULL);
    assert_non_null(strptime(next_line(), "%Y-%m-%dT%H:%M:%S.", &utc));
    time_t logged = timegm(&utc);
    assert_true(logged >= before && logged <= after);
}

static void levels_above_the_set_one_are_silent(void **state)
{
    (void)state;
    fl_log_set_format(FL_LOG_TEXT);
    static const char *const words[] = {" error ", " warn ", " info ", " debug ", " trace "};
    for (int set = FL_LOG_ERROR; set <= FL_LOG_TRACE; set++) {
        fl_log_set_level((enum fl_log_level)set);
        for (int level = FL_LOG_ERROR; level <= FL_LOG_TRACE; level++) {
            assert_int_equal(fl_log_is_on((enum fl_log_level)level), level <= set);
            FL_LOG((enum fl_log_level)level, "what", "n=%d", level);
            fl_log((enum fl_log_level)level, "what", "n=%d", level);
            for (int times = 0; times < 2; times++) {
                const char *line = next_line();
                if (level <= set)
                    assert_non_null(strstr(line, words[level]));
                else
                    assert_string_equal(line, "");
            }
        }
    }
}

/* epp.md 2.1 (RUST_LOG words), gateway.md 1 (--loglevel) */
static void level_words_of_all_programs_are_known(void **state)
{
    (void)state;
    static const struct {
        const char *word;
        enum fl_log_level level;
    } known[] = {
        {"error", FL_LOG_ERROR},  {"critical", FL_LOG_ERROR}, {"warn", FL_LOG_WARN},
        {"warning", FL_LOG_WARN}, {"info", FL_LOG_INFO},      {"notice", FL_LOG_INFO},
        {"debug", FL_LOG_DEBUG},  {"trace", FL_LOG_TRACE},    {"INFO", FL_LOG_INFO},
    };
    enum fl_log_level level;
    for (size_t i = 0; i < FL_ARRAY_LEN(known); i++) {
        assert_true(fl_log_level_parse(known[i].word, &level));
        assert_int_equal(level, known[i].level);
    }
    assert_false(fl_log_level_parse("loud", &level));
    assert_false(fl_log_level_parse("", &level));
    assert_false(fl_log_level_parse("info ", &level));
}

static void long_entries_are_cut_but_whole_lines(void **state)
{
    (void)state;
    static char big[6000];
    static const char fills[] = {'x', '\x01', '"', '\xff'};
    for (size_t i = 0; i < sizeof(fills); i++) {
        memset(big, fills[i], sizeof(big) - 1);
        for (int format = FL_LOG_TEXT; format <= FL_LOG_JSON; format++) {
            fl_log_set_format((enum fl_log_format)format);
            fl_log(FL_LOG_ERROR, "what", "before=1 a=%s after=2", big);
            const char *line = next_line();
            size_t n = strlen(line);
            assert_in_range(n, 2000, 8192);
            assert_ptr_equal(strchr(line, '\n'), line + n - 1);
            if (format == FL_LOG_JSON)
                assert_string_equal(line + n - 3, "\"}\n");
        }
        /* A name that long leaves no room for pairs. */
        fl_log(FL_LOG_ERROR, big, "a=1");
        const char *line = next_line();
        assert_string_equal(line + strlen(line) - 3, "\"}\n");
    }
    for (size_t i = 0; i + 2 < sizeof(big); i += 2)
        memcpy(big + i, "\x01 ", 2); /* a thousand pairs without a key, each six bytes and more */
    fl_log(FL_LOG_ERROR, "what", "%s", big);
    const char *line = next_line();
    assert_string_equal(line + strlen(line) - 3, "\"}\n");
}

static void text_of_a_peer_stays_one_value(void **state)
{
    (void)state;
    static const struct {
        struct fl_bytes bytes;
        const char *text;
    } values[] = {
        {FL_BYTES("m"), "\"m\""},
        {FL_BYTES(""), "\"\""},
        {{NULL, 0}, "\"\""},
        {FL_BYTES("x\" admin=\"1"), "\"x\\\" admin=\\\"1\""},
        {FL_BYTES("x\\"), "\"x\\\\\""},
        {FL_BYTES("x\\\" b=\"1"), "\"x\\\\\\\" b=\\\"1\""},
        {FL_BYTES("a\0b\n"), "\"a?b\\n\""},
    };
    fl_log_set_format(FL_LOG_TEXT);
    for (size_t i = 0; i < FL_ARRAY_LEN(values); i++) {
        char expected[128];
        fl_log(FL_LOG_ERROR, "what", "a=%s z=1", fl_log_value(values[i].bytes).text);
        snprintf(expected, sizeof(expected), " error what: a=%s z=1\n", values[i].text);
        const char *line = next_line();
        if (strcmp(after_time(line, 0), expected) != 0)
            fail_msg("row %zu: %s", i, line);
    }
    /* Whatever the length, the value ends in its quote and says that it was cut. */
    char big[600];
    memset(big, '"', sizeof(big));
    for (size_t n = 100; n < sizeof(big); n++) {
        struct fl_log_value value = fl_log_value(fl_bytes(big, n));
        size_t length = strlen(value.text);
        assert_true(length < sizeof(value.text));
        assert_int_equal(value.text[length - 1], '"');
        assert_int_equal(memcmp(value.text + length - 4, "...\"", 4) == 0, n > 125);
    }
}

static void a_limited_line_says_how_many_were_left_out(void **state)
{
    (void)state;
    struct fl_log_limit limit = {0};
    fl_log_set_format(FL_LOG_TEXT);
    for (uint64_t now_ms = 1000; now_ms < 1100; now_ms++)
        fl_log_limited(&limit, now_ms, 100, FL_LOG_WARN, "what", "at=%d", (int)now_ms);
    assert_non_null(strstr(next_line(), " warn what: at=1000\n"));
    assert_string_equal(next_line(), "");
    fl_log_limited(&limit, 1100, 100, FL_LOG_WARN, "what", "at=%d", 1100);
    assert_non_null(strstr(next_line(), "at=1100 skipped=99\n"));
    fl_log_limited(&limit, 5000, 100, FL_LOG_WARN, "what", NULL);
    assert_non_null(strstr(next_line(), " warn what\n"));
    fl_log_limited(&limit, 9000, 100, FL_LOG_DEBUG, "what",
                   NULL); /* off: neither said nor counted */
    assert_string_equal(next_line(), "");
}

enum { THREADS = 4, LINES = 60 };

static void *log_many(void *arg)
{
    struct fl_log_limit *limit = arg;
    for (int i = 0; i < LINES; i++)
        fl_log_limited(limit, 1, 1000000, FL_LOG_ERROR, "what", "i=%d", i);
    fl_log(FL_LOG_ERROR, "done", NULL);
    return NULL;
}

static void one_of_many_threads_speaks(void **state)
{
    (void)state;
    struct fl_log_limit limit = {0};
    pthread_t threads[THREADS];
    fl_log_set_format(FL_LOG_TEXT);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, log_many, &limit), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    unsigned spoken = 0, done = 0;
    for (const char *line = next_line(); line[0] != 0; line = next_line()) {
        spoken += strstr(line, " error what: i=") != NULL;
        done += strstr(line, " error done\n") != NULL;
    }
    assert_int_equal(done, THREADS);
    assert_int_equal(spoken, 1);
    assert_int_equal(limit.skipped, THREADS * LINES - 1);
}

#define LOG_TEST(test) cmocka_unit_test_setup_teardown(test, capture, release)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LOG_TEST(text_lines_escape_what_could_forge_one),
        LOG_TEST(json_lines_are_objects),
        LOG_TEST(without_a_terminal_auto_is_json),
        LOG_TEST(the_time_is_now_in_utc),
        LOG_TEST(levels_above_the_set_one_are_silent),
        LOG_TEST(level_words_of_all_programs_are_known),
        LOG_TEST(long_entries_are_cut_but_whole_lines),
        LOG_TEST(text_of_a_peer_stays_one_value),
        LOG_TEST(a_limited_line_says_how_many_were_left_out),
        LOG_TEST(one_of_many_threads_speaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
