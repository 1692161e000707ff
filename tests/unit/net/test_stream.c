/* SPDX-License-Identifier: Apache-2.0 */
#include "end.h"

#include <netinet/tcp.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "net/stream_internal.h"

/* ---- addresses ---- */

static void addresses_are_ip_literals_with_a_port(void **state)
{
    (void)state;
    static const struct {
        const char *why, *text;
        bool allow_port_0;
        const char *formatted; /* NULL: refused */
    } rows[] = {
        {"plain", "10.0.0.1:80", false, "10.0.0.1:80"},
        {"IPv6 in brackets", "[fd00::7]:8000", false, "[fd00::7]:8000"},
        {"IPv6 is written in its short form", "[0:0:0:0:0:0:0:1]:1", false, "[::1]:1"},
        {"largest port", "1.2.3.4:65535", false, "1.2.3.4:65535"},
        {"port above", "1.2.3.4:65536", false, NULL},
        {"port 0 where a free one may be taken", "127.0.0.1:0", true, "127.0.0.1:0"},
        {"port 0 elsewhere", "127.0.0.1:0", false, NULL},
        {"no port", "127.0.0.1", true, NULL},
        {"empty port", "127.0.0.1:", true, NULL},
        {"signed port", "127.0.0.1:+5", true, NULL},
        {"a name", "localhost:80", true, NULL},
        {"bare IPv6: which colon?", "fd00::7", true, NULL},
        {"IPv4 in brackets", "[1.2.3.4]:80", true, NULL},
        {"bracket not closed", "[::1:80", true, NULL},
        {"nothing between bracket and port", "[::1]80", true, NULL},
        {"empty host", ":80", true, NULL},
        {"empty", "", true, NULL},
        {"only a bracket", "[", true, NULL},
        {"only brackets", "[]", true, NULL},
        {"octal octets", "010.0.0.1:80", true, NULL},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_addr addr;
        struct fl_error err = {0};
        char text[FL_ADDR_TEXT] = "";
        int rc = fl_addr_parse(fl_bytes_of(rows[i].text), rows[i].allow_port_0, &addr, &err);
        if (rc == 0)
            fl_addr_format(&addr, text);
        if (rows[i].formatted == NULL ? rc != FL_EBAD_REQUEST || err.text[0] == '\0'
                                      : rc != 0 || strcmp(text, rows[i].formatted) != 0)
            fail_msg("row %zu: %s: %d %s %s", i, rows[i].why, rc, text, err.text);
    }
}

static void addresses_compare_by_ip_and_port(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        bool is_equal, is_loopback;
    } rows[] = {
        {"127.0.0.1:80", "127.0.0.1:80", true, true},
        {"127.9.9.9:80", "127.0.0.1:80", false, true},
        {"10.0.0.1:80", "10.0.0.1:81", false, false},
        {"[::1]:80", "[0::1]:80", true, true},
        {"[::ffff:127.0.0.1]:80", "127.0.0.1:80", false, true},
        {"[fd00::1]:80", "[fd00::2]:80", false, false},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_addr a, b;
        assert_int_equal(fl_addr_parse(fl_bytes_of(rows[i].a), false, &a, NULL), 0);
        assert_int_equal(fl_addr_parse(fl_bytes_of(rows[i].b), false, &b, NULL), 0);
        if (fl_addr_eq(&a, &b) != rows[i].is_equal ||
            fl_addr_is_loopback(&a) != rows[i].is_loopback)
            fail_msg("row %zu: %s %s", i, rows[i].a, rows[i].b);
    }
}

/* ---- plain streams ---- */

static void bytes_go_both_ways_and_both_ends_close_cleanly(void **state)
{
    (void)state;
    struct pair pair;
    pair_init(&pair);
    pair_dial(&pair);
    /* before it is connected */
    fl_stream_write_copy(pair.client.stream, FL_BYTES("hello "));
    fl_stream_write_copy(pair.client.stream, FL_BYTES("world"));
    assert_int_equal(pair.client.connected, 0); /* no callback from inside a call */
    RUN_UNTIL(pair.loop, end_has(&pair.server, "hello world"));
    assert_int_equal(pair.client.connected, 1);
    assert_int_equal(pair.server.connected, 0);
    assert_true(fl_addr_eq(fl_stream_peer(pair.client.stream), fl_listener_addr(pair.listener)));
    assert_true(
        fl_addr_eq(fl_stream_peer(pair.server.stream), fl_stream_local(pair.client.stream)));
    assert_string_equal(fl_stream_alpn(pair.client.stream), "");
    assert_ptr_equal(fl_stream_loop(pair.client.stream), pair.loop);

    fl_stream_write_copy(pair.server.stream, FL_BYTES("yes"));
    fl_stream_shutdown(pair.server.stream);
    RUN_UNTIL(pair.loop, pair.client.eof == 1);
    assert_true(end_has(&pair.client, "yes"));
    /* half closed: the other direction lives */
    fl_stream_write_copy(pair.client.stream, FL_BYTES("!"));
    RUN_UNTIL(pair.loop, end_has(&pair.server, "hello world!"));
    assert_int_equal(pair.client.closed + pair.server.closed, 0);
    fl_stream_shutdown(pair.client.stream);
    RUN_UNTIL(pair.loop, pair.client.closed == 1 && pair.server.closed == 1);
    assert_int_equal(pair.client.rc, 0);
    assert_int_equal(pair.server.rc, 0);
    assert_int_equal(pair.server.eof, 1);
    pair_fini(&pair);
}

static void a_closing_end_does_not_call_back_from_inside_the_call(void **state)
{
    (void)state;
    struct pair pair;
    pair_open(&pair);
    fl_stream_abort(pair.client.stream, false);
    assert_int_equal(pair.client.closed, 0);
    fl_stream_abort(pair.client.stream, true); /* again: nothing */
    fl_stream_close(pair.client.stream, 10);
    RUN_UNTIL(pair.loop, pair.client.closed == 1);
    assert_int_equal(pair.client.rc, 0);
    pair_fini(&pair);
}

/* dependencies.md 4.5: do not toggle per request; goal 0 */
static void a_thousand_requests_change_the_poll_mask_never(void **state)
{
    (void)state;
    struct pair pair;
    struct fl_loop_stats before, after;
    pair_open(&pair);
    pair.server.echoes = true;
    fl_loop_stats(pair.loop, &before);
    for (unsigned i = 0; i < 1000; i++) {
        char text[32];
        snprintf(text, sizeof(text), "request %u", i);
        fl_buf_clear(&pair.client.in);
        fl_stream_write_copy(pair.client.stream, fl_bytes_of(text));
        RUN_UNTIL(pair.loop, end_has(&pair.client, text));
    }
    fl_loop_stats(pair.loop, &after);
    assert_int_equal(after.poll_mask_changes - before.poll_mask_changes, 0);
    assert_int_equal(after.fds, 3);
    pair_fini(&pair);
}

/* gateway.md 7.1: at most one bounded buffer (16 KiB) is read ahead, the rest stays in the socket
 */
static void a_reader_that_takes_nothing_holds_its_peer(void **state)
{
    (void)state;
    enum { BYTES = 24 * 1024 * 1024 };
    struct pair pair;
    pair_open(&pair);
    pair.server.keeps = true;
    write_pattern(pair.client.stream, BYTES, 65536);
    assert_int_equal(fl_stream_queued(pair.client.stream), BYTES);
    size_t queued = BYTES, unchanged = 0;
    while (unchanged < 50) { /* until the kernel's buffers are full */
        fl_loop_turn(pair.loop, 1);
        unchanged = fl_stream_queued(pair.client.stream) == queued ? unchanged + 1 : 0;
        queued = fl_stream_queued(pair.client.stream);
    }
    assert_true(queued > BYTES / 8);
    assert_int_equal(fl_stream_peek(pair.server.stream).n, FL_STREAM_READ_AHEAD);
    assert_int_equal(pair.client.writable, 0);

    /* a blocked pair costs no turns */
    struct fl_loop_stats before, after;
    fl_loop_stats(pair.loop, &before);
    fl_loop_turn(pair.loop, 30);
    fl_loop_stats(pair.loop, &after);
    assert_int_equal(after.poll_mask_changes, before.poll_mask_changes);

    /* once the reader takes, everything arrives, and the producer is told once */
    pair.server.keeps = false;
    fl_stream_set_reading(pair.server.stream, true);
    RUN_UNTIL(pair.loop, fl_buf_size(&pair.server.in) == BYTES);
    check_pattern(&pair.server.in, BYTES);
    assert_int_equal(pair.client.writable, 1);
    assert_int_equal(fl_stream_queued(pair.client.stream), 0);
    pair_fini(&pair);
}

static void pieces_of_all_sizes_arrive_in_order(void **state)
{
    (void)state;
    enum { PIECES = 4000 };
    for (int reads_big = 0; reads_big < 2; reads_big++) {
        struct pair pair;
        struct fl_rng rng;
        size_t written = 0;
        pair_open(&pair);
        pair.server.reads_big = reads_big;
        fl_rng_seed(&rng, 42);
        for (unsigned i = 0; i < PIECES; i++) {
            size_t n =
                fl_rng_below(&rng, 4) == 0 ? fl_rng_below(&rng, 20000) : fl_rng_below(&rng, 200);
            struct fl_chunk *chunk = fl_chunk_new(n > 0 ? n : 1, NULL);
            for (size_t k = 0; k < n; k++)
                chunk->data[k] = (uint8_t)((written + k) % 251);
            struct fl_slice slice = {chunk, chunk->data, n};
            if (fl_rng_below(&rng, 2) == 0) {
                fl_stream_write(pair.client.stream, slice);
            } else {
                fl_stream_write_copy(pair.client.stream, fl_slice_bytes(slice));
                fl_slice_unref(&slice);
            }
            written += n;
            if (fl_rng_below(&rng, 8) == 0)
                fl_loop_turn(pair.loop, 0);
        }
        RUN_UNTIL(pair.loop, fl_buf_size(&pair.server.in) == written);
        check_pattern(&pair.server.in, written);
        pair_fini(&pair);
    }
}

/* Wherever the owner stops taking: once it goes on, nothing is left behind. */
static void a_reader_may_stop_after_any_delivery(void **state)
{
    (void)state;
    enum { BYTES = 20 * FL_STREAM_READ_AHEAD };
    for (unsigned stop = 1; stop < 10; stop++) {
        struct pair pair;
        pair_open(&pair);
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
        end_take(&pair.server, pair.server.stream); /* later, and from outside */
        RUN_UNTIL(pair.loop, fl_buf_size(&pair.server.in) == BYTES);
        check_pattern(&pair.server.in, BYTES);
        pair_fini(&pair);
    }
}

static void a_written_slice_is_let_go_when_it_has_left(void **state)
{
    (void)state;
    struct pair pair;
    struct fl_budget budget = {.cap_bytes = 1 << 20};
    pair_open(&pair);
    for (size_t n = 10; n <= 10000; n += 9990) {
        struct fl_chunk *chunk = fl_chunk_new(n, &budget);
        memset(chunk->data, 'x', n);
        fl_stream_write(pair.client.stream, (struct fl_slice){chunk, chunk->data, n});
        RUN_UNTIL(pair.loop, fl_buf_size(&pair.server.in) == n);
        assert_int_equal(fl_budget_held(&budget), 0);
        fl_buf_clear(&pair.server.in);
    }
    /* and when it never leaves */
    pair.server.keeps = true;
    for (int i = 0; i < 4; i++) {
        struct fl_chunk *chunk = fl_chunk_new(100000, &budget);
        memset(chunk->data, 'x', 100000);
        fl_stream_write(pair.client.stream, (struct fl_slice){chunk, chunk->data, 100000});
    }
    fl_stream_abort(pair.client.stream, true);
    struct fl_chunk *late = fl_chunk_new(1000, &budget);
    fl_stream_write(pair.client.stream, (struct fl_slice){late, late->data, 1000});
    assert_int_equal(fl_budget_held(&budget), 0);
    pair_fini(&pair);
}

static void what_the_owner_leaves_stays_and_can_be_asked_for(void **state)
{
    (void)state;
    struct pair pair;
    pair_open(&pair);
    pair.server.keeps = true;
    fl_stream_write_copy(pair.client.stream, FL_BYTES("abc"));
    RUN_UNTIL(pair.loop, pair.server.readable == 1);
    fl_stream_consume(pair.server.stream, 1);
    assert_true(fl_bytes_eq(fl_stream_peek(pair.server.stream), FL_BYTES("bc")));
    fl_stream_write_copy(pair.client.stream, FL_BYTES("def"));
    RUN_UNTIL(pair.loop, pair.server.readable == 2);
    assert_true(fl_bytes_eq(fl_stream_peek(pair.server.stream), FL_BYTES("bcdef")));

    fl_stream_set_reading(pair.server.stream, false);
    fl_stream_write_copy(pair.client.stream, FL_BYTES("g"));
    fl_stream_shutdown(pair.client.stream);
    RUN_UNTIL(pair.loop, pair.server.eof == 1); /* the FIN is seen all the same */
    assert_int_equal(pair.server.readable, 2);
    fl_stream_set_reading(pair.server.stream, true);
    assert_int_equal(pair.server.readable, 2);
    RUN_UNTIL(pair.loop, pair.server.readable == 3);

    uint8_t out[16];
    assert_int_equal(fl_stream_read(pair.server.stream, out, 4), 4);
    assert_memory_equal(out, "bcde", 4);
    fl_stream_shutdown(pair.server.stream);
    RUN_UNTIL(pair.loop, pair.client.closed == 1);
    assert_int_equal(pair.server.closed, 0); /* bytes are left */
    assert_int_equal(fl_stream_read(pair.server.stream, out, sizeof(out)), 2);
    assert_int_equal(fl_stream_read(pair.server.stream, out, sizeof(out)), FL_ECLOSED);
    RUN_UNTIL(pair.loop, pair.server.closed == 1);
    assert_int_equal(pair.server.rc, 0);
    pair_fini(&pair);
}

static void a_reset_is_told_and_what_came_before_it_is_not_lost(void **state)
{
    (void)state;
    for (int is_early = 0; is_early < 2; is_early++) {
        struct pair pair;
        pair_open(&pair);
        fl_stream_write_copy(pair.server.stream, FL_BYTES("413 too large"));
        if (is_early) { /* data and reset are found together */
            pair.client.keeps = true;
            fl_stream_set_reading(pair.client.stream, false);
        }
        RUN_UNTIL(pair.loop, fl_stream_queued(pair.server.stream) == 0);
        fl_stream_set_reading(pair.client.stream, true);
        pair.client.keeps = false;
        fl_stream_abort(pair.server.stream, true);
        RUN_UNTIL(pair.loop, pair.client.closed == 1);
        assert_true(end_has(&pair.client, "413 too large"));
        assert_int_equal(pair.client.rc, FL_ECLOSED);
        assert_int_equal(pair.client.eof, 0);
        assert_string_not_equal(pair.client.why, "");
        pair_fini(&pair);
    }
}

static void writing_to_a_peer_that_is_gone_ends_the_stream_without_a_signal(void **state)
{
    (void)state;
    struct pair pair;
    pair_open(&pair);
    fl_stream_abort(pair.server.stream, false);
    RUN_UNTIL(pair.loop, pair.client.eof == 1);
    for (int i = 0; i < 1000 && pair.client.closed == 0; i++) {
        write_pattern(pair.client.stream, 100000, 50000);
        fl_loop_turn(pair.loop, 1);
    }
    assert_int_equal(pair.client.closed, 1);
    assert_int_equal(pair.client.rc, FL_ECLOSED);
    pair_fini(&pair);
}

/* Otherwise a close with unread input would answer by a reset, which overtakes our last answer. */
static void closing_writes_what_is_queued_and_waits_for_the_peers_fin(void **state)
{
    (void)state;
    struct pair pair;
    pair_open(&pair);
    pair.server.keeps = true;
    write_pattern(pair.client.stream, 300000, 65536); /* an upload nobody will read */
    RUN_UNTIL(pair.loop, pair.server.readable > 0);
    fl_stream_write_copy(pair.server.stream, FL_BYTES("413"));
    fl_stream_close(pair.server.stream, 5000);
    RUN_UNTIL(pair.loop, pair.client.eof == 1);
    assert_true(end_has(&pair.client, "413"));
    assert_int_equal(pair.server.closed, 0);
    RUN_UNTIL(pair.loop, fl_stream_queued(pair.client.stream) == 0);
    fl_stream_close(pair.client.stream, 5000);
    RUN_UNTIL(pair.loop, pair.server.closed == 1 && pair.client.closed == 1);
    assert_int_equal(pair.server.rc, 0);
    assert_int_equal(pair.client.rc, 0);
    pair_fini(&pair);
}

static void closing_ends_after_its_time_whatever_the_peer_does(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        size_t bytes;
        uint64_t linger_ms;
        int rc;
    } rows[] = {
        {"all written, the peer never closes", 3, 60, 0},
        {"the peer takes nothing", 24 * 1024 * 1024, 60, FL_ETIMEOUT},
        {"no time at all: one attempt", 3, 0, 0},
        {"no time, too much", 24 * 1024 * 1024, 0, FL_ETIMEOUT},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct pair pair;
        pair_open(&pair);
        pair.server.keeps = true;
        write_pattern(pair.client.stream, rows[i].bytes, 65536);
        fl_stream_close(pair.client.stream, rows[i].linger_ms);
        uint64_t began_ns = fl_clock_ns();
        RUN_UNTIL(pair.loop, pair.client.closed == 1);
        uint64_t took_ms = (fl_clock_ns() - began_ns) / 1000000;
        if (pair.client.rc != rows[i].rc || took_ms + 2 < rows[i].linger_ms)
            fail_msg("%s: rc %d after %llu ms", rows[i].why, pair.client.rc,
                     (unsigned long long)took_ms);
        pair_fini(&pair);
    }
}

static void a_refused_connection_is_told_later_and_in_words(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    struct end end = {0};
    struct fl_addr addr;
    int fd = raw_listen(&addr, 1);
    close(fd);
    end.stream = fl_stream_connect(loop, &addr, NULL, &end_ops, &end);
    fl_stream_write_copy(end.stream, FL_BYTES("lost"));
    assert_int_equal(end.closed, 0);
    RUN_UNTIL(loop, end.closed == 1);
    assert_int_equal(end.rc, FL_ECONNECT);
    assert_int_equal(end.connected, 0);
    assert_string_equal(end.why, "connect: Connection refused");
    fl_loop_free(loop);
}

/* gateway.md 8.2: connect timeout */
static void a_connection_that_nobody_answers_times_out(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    struct end end = {0}, fillers[8];
    struct fl_addr addr;
    struct fl_stream_config config = {.connect_timeout_ms = 80};
    /* A full backlog drops further SYNs. */
    int fd = raw_listen(&addr, 0);
    memset(fillers, 0, sizeof(fillers));
    for (size_t i = 0; i < FL_ARRAY_LEN(fillers); i++)
        fillers[i].stream = fl_stream_connect(loop, &addr, &config, &end_ops, &fillers[i]);
    for (int i = 0; i < 5; i++)
        fl_loop_turn(loop, 1);
    uint64_t began_ns = fl_clock_ns();
    end.stream = fl_stream_connect(loop, &addr, &config, &end_ops, &end);
    RUN_UNTIL(loop, end.closed == 1);
    assert_int_equal(end.rc, FL_ETIMEOUT);
    assert_string_equal(end.why, "connect: timed out");
    assert_true(fl_clock_ns() - began_ns >= 79 * UINT64_C(1000000));
    for (size_t i = 0; i < FL_ARRAY_LEN(fillers); i++) {
        if (fillers[i].stream != NULL)
            fl_stream_abort(fillers[i].stream, false);
    }
    close(fd);
    fl_loop_free(loop);
}

static int option_of(int fd, int level, int name)
{
    int value = -1;
    socklen_t size = sizeof(value);
    assert_int_equal(getsockopt(fd, level, name, &value, &size), 0);
    return value;
}

/* gateway.md 8.1: a zero-byte look before reuse; an idle connection with EOF or bytes is discarded
 */
static void an_idle_connection_is_looked_at_before_reuse(void **state)
{
    (void)state;
    struct pair pair;
    pair_open(&pair);
    assert_true(fl_stream_is_idle_alive(pair.client.stream));
    fl_stream_write_copy(pair.server.stream, FL_BYTES("HTTP/1.1 408"));
    RUN_UNTIL(pair.loop, pair.client.readable == 1);
    assert_true(fl_stream_is_idle_alive(pair.client.stream)); /* taken */
    pair.client.keeps = true;
    fl_stream_write_copy(pair.server.stream, FL_BYTES("more"));
    RUN_UNTIL(pair.loop, pair.client.readable == 2);
    assert_false(fl_stream_is_idle_alive(pair.client.stream));
    pair_fini(&pair);

    /* The FIN has arrived, and the loop has not looked yet. */
    pair_init(&pair);
    int fd = dial(fl_listener_addr(pair.listener));
    RUN_UNTIL(pair.loop, pair.server.stream != NULL);
    assert_true(fl_stream_is_idle_alive(pair.server.stream));
    close(fd);
    bool is_alive = true;
    for (uint64_t until_ns = fl_clock_ns() + 1000000000; is_alive && fl_clock_ns() < until_ns;)
        is_alive = fl_stream_is_idle_alive(pair.server.stream);
    assert_false(is_alive);
    pair_fini(&pair);
}

/* ---- memory ---- */

struct hog {
    struct fl_stream *stream;
};

static void hog_on_closed(void *owner, struct fl_stream *stream, int rc)
{
    (void)stream;
    (void)rc;
    ((struct hog *)owner)->stream = NULL;
}

static void hog_on_readable(void *owner, struct fl_stream *stream)
{
    (void)owner;
    fl_stream_write_copy(stream, fl_stream_peek(stream));
    fl_stream_consume(stream, fl_stream_peek(stream).n);
}

/* performance.md e4: what an idle connection holds after a request. Counted in the stream itself:
 * no read buffer, no joined chunk. (The whole figure is the bench's.) */
static void an_idle_stream_holds_no_buffers(void **state)
{
    (void)state;
    enum { STREAMS = 200 };
    static const struct fl_stream_ops ops = {.on_readable = hog_on_readable,
                                             .on_closed = hog_on_closed};
    struct fl_loop *loop = fl_loop_new(0);
    static struct hog hogs[STREAMS];
    static int fds[STREAMS];
    for (size_t i = 0; i < STREAMS; i++) {
        int two[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, two), 0);
        hogs[i].stream = fl_stream_accept(loop, two[0], NULL, &ops, &hogs[i]);
        fds[i] = two[1];
    }
    assert_true(sizeof(struct fl_stream) <= 576);
    for (size_t i = 0; i < STREAMS; i++) {
        char answer[8];
        ssize_t n = -1;
        assert_int_equal(send(fds[i], "ping", 4, 0), 4);
        RUN_UNTIL(loop, (n = recv(fds[i], answer, sizeof(answer), 0)) > 0);
        assert_int_equal(n, 4);
        assert_null(hogs[i].stream->in);
        assert_null(hogs[i].stream->join);
        assert_null(hogs[i].stream->out.ring);
    }
    for (size_t i = 0; i < STREAMS; i++) {
        fl_stream_abort(hogs[i].stream, false);
        close(fds[i]);
    }
    fl_loop_free(loop);
}

/* ---- closing from inside every callback ---- */

enum when { ON_CONNECTED, ON_READABLE, ON_EOF, ON_WRITABLE, WHEN_COUNT };

struct quitter {
    struct fl_stream *stream;
    enum when when;
    bool resets;
    unsigned after, closed;
    bool has_quit;
};

static void quit_if(struct quitter *quitter, struct fl_stream *stream, enum when now)
{
    quitter->after += quitter->has_quit;
    if (quitter->when != now || quitter->has_quit)
        return;
    quitter->has_quit = true;
    if (quitter->resets)
        fl_stream_abort(stream, true);
    else
        fl_stream_close(stream, 50);
    /* calls on a stream that is closing are harmless */
    fl_stream_write_copy(stream, FL_BYTES("late"));
    fl_stream_set_reading(stream, true);
    fl_stream_consume(stream, 0);
    fl_stream_shutdown(stream);
    assert_false(fl_stream_is_open(stream));
    assert_false(fl_stream_is_idle_alive(stream));
}

static void quitter_on_connected(void *owner, struct fl_stream *stream)
{
    quit_if(owner, stream, ON_CONNECTED);
}

static void quitter_on_readable(void *owner, struct fl_stream *stream)
{
    struct quitter *quitter = owner;
    if (quitter->when != ON_READABLE)
        fl_stream_consume(stream, fl_stream_peek(stream).n);
    quit_if(quitter, stream, ON_READABLE);
}

static void quitter_on_eof(void *owner, struct fl_stream *stream)
{
    quit_if(owner, stream, ON_EOF);
}

static void quitter_on_writable(void *owner, struct fl_stream *stream)
{
    quit_if(owner, stream, ON_WRITABLE);
}

static void quitter_on_closed(void *owner, struct fl_stream *stream, int rc)
{
    struct quitter *quitter = owner;
    (void)stream;
    (void)rc;
    quitter->closed++;
    fl_stream_abort(stream, true);
    fl_free(quitter->stream == stream ? quitter : NULL); /* the owner may go */
}

static unsigned quits_closed;

static void quitter_on_closed_counted(void *owner, struct fl_stream *stream, int rc)
{
    assert_int_equal(((struct quitter *)owner)->after, 0);
    quits_closed++;
    quitter_on_closed(owner, stream, rc);
}

static void an_owner_may_close_from_any_callback_and_hears_no_more(void **state)
{
    (void)state;
    static const struct fl_stream_ops ops = {
        .on_connected = quitter_on_connected,
        .on_readable = quitter_on_readable,
        .on_eof = quitter_on_eof,
        .on_writable = quitter_on_writable,
        .on_closed = quitter_on_closed_counted,
    };
    for (unsigned i = 0; i < 2 * WHEN_COUNT; i++) {
        struct pair pair;
        pair_init(&pair);
        pair.server.reads_big = true;
        struct quitter *quitter = fl_calloc(1, sizeof(*quitter));
        quitter->when = (enum when)(i / 2);
        quitter->resets = i % 2;
        quits_closed = 0;
        quitter->stream =
            fl_stream_connect(pair.loop, fl_listener_addr(pair.listener), NULL, &ops, quitter);
        write_pattern(quitter->stream, 200000, 65536);
        RUN_UNTIL(pair.loop, pair.server.stream != NULL || pair.server.closed == 1);
        if (pair.server.stream != NULL) {
            write_pattern(pair.server.stream, 50000, 65536);
            fl_stream_shutdown(pair.server.stream);
        }
        RUN_UNTIL(pair.loop, quits_closed == 1);
        pair_fini(&pair);
    }
}

/* ---- listening ---- */

struct acceptor {
    struct fl_loop *loop;
    struct fl_listener *listener;
    int fds[256];
    unsigned count, stop_after, calls_this_turn, largest_turn;
    uint64_t turn;
};

static void acceptor_on_accept(void *owner, int fd, const struct fl_addr *peer)
{
    struct acceptor *acceptor = owner;
    struct fl_loop_stats stats;
    assert_true(fl_addr_is_loopback(peer));
    fl_loop_stats(acceptor->loop, &stats);
    acceptor->calls_this_turn = stats.turns == acceptor->turn ? acceptor->calls_this_turn + 1 : 1;
    acceptor->turn = stats.turns;
    if (acceptor->calls_this_turn > acceptor->largest_turn)
        acceptor->largest_turn = acceptor->calls_this_turn;
    acceptor->fds[acceptor->count++] = fd;
    if (acceptor->count == acceptor->stop_after)
        fl_listener_stop(acceptor->listener);
}

static void acceptor_fini(struct acceptor *acceptor)
{
    for (unsigned i = 0; i < acceptor->count; i++)
        close(acceptor->fds[i]);
}

/* dependencies.md 4.5: accept until EAGAIN with a cap of 64 per wake; TCP_NODELAY on all sockets */
static void accepting_takes_at_most_64_a_wake_and_sets_nodelay(void **state)
{
    (void)state;
    struct acceptor acceptor = {.loop = fl_loop_new(0), .listener = listen_anywhere()};
    int fds[150];
    for (size_t i = 0; i < FL_ARRAY_LEN(fds); i++)
        fds[i] = dial(fl_listener_addr(acceptor.listener));
    fl_listener_start(acceptor.listener, acceptor.loop, acceptor_on_accept, &acceptor);
    RUN_UNTIL(acceptor.loop, acceptor.count == FL_ARRAY_LEN(fds));
    assert_int_equal(acceptor.largest_turn, FL_LISTENER_ACCEPTS_A_WAKE);
    for (unsigned i = 0; i < acceptor.count; i++) {
        assert_int_equal(option_of(acceptor.fds[i], IPPROTO_TCP, TCP_NODELAY), 1);
        assert_true(fcntl(acceptor.fds[i], F_GETFL) & O_NONBLOCK);
        assert_true(fcntl(acceptor.fds[i], F_GETFD) & FD_CLOEXEC);
        close(fds[i]);
    }
    acceptor_fini(&acceptor);
    fl_listener_close(acceptor.listener);
    fl_loop_free(acceptor.loop);
}

/* epp.md 1.2: extra clients wait in the backlog */
static void a_stopped_listener_leaves_clients_in_the_backlog(void **state)
{
    (void)state;
    struct acceptor acceptor = {
        .loop = fl_loop_new(0), .listener = listen_anywhere(), .stop_after = 2};
    int fds[5];
    for (size_t i = 0; i < FL_ARRAY_LEN(fds); i++)
        fds[i] = dial(fl_listener_addr(acceptor.listener));
    fl_listener_start(acceptor.listener, acceptor.loop, acceptor_on_accept, &acceptor);
    RUN_UNTIL(acceptor.loop, acceptor.count == 2);
    for (int i = 0; i < 5; i++)
        fl_loop_turn(acceptor.loop, 1);
    assert_int_equal(acceptor.count, 2);
    fl_listener_start(acceptor.listener, acceptor.loop, acceptor_on_accept, &acceptor);
    RUN_UNTIL(acceptor.loop, acceptor.count == 5);
    acceptor_fini(&acceptor);
    for (size_t i = 0; i < FL_ARRAY_LEN(fds); i++)
        close(fds[i]);
    fl_listener_close(acceptor.listener);
    fl_loop_free(acceptor.loop);
}

/* gateway.md 5.2, 12: each loop accepts what the kernel has queued, until EAGAIN, then closes */
static void closing_a_listener_hands_over_what_is_queued_and_refuses_the_rest(void **state)
{
    (void)state;
    struct acceptor acceptor = {.loop = fl_loop_new(0), .listener = listen_anywhere()};
    struct fl_addr addr = *fl_listener_addr(acceptor.listener);
    int fds[100];
    fl_listener_start(acceptor.listener, acceptor.loop, acceptor_on_accept, &acceptor);
    for (size_t i = 0; i < FL_ARRAY_LEN(fds); i++)
        fds[i] = dial(&addr);
    fl_listener_close(acceptor.listener);
    assert_int_equal(acceptor.count, FL_ARRAY_LEN(fds));
    for (size_t i = 0; i < FL_ARRAY_LEN(fds); i++) {
        assert_int_equal(send(fds[i], "x", 1, MSG_NOSIGNAL), 1); /* none was reset */
        close(fds[i]);
    }
    int late = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(late, &addr.sa, addr.len), -1);
    assert_int_equal(errno, ECONNREFUSED);
    close(late);
    acceptor_fini(&acceptor);
    fl_listener_close(NULL);
    fl_loop_free(acceptor.loop);
}

/* gateway.md 5.1: one socket per loop with SO_REUSEPORT, bound to the address itself */
static void a_port_is_shared_only_when_all_ask_for_it(void **state)
{
    (void)state;
    struct fl_addr addr = loopback();
    struct fl_listener *first, *second, *third = NULL;
    struct fl_error err = {0};
    assert_int_equal(fl_listener_open(&addr, true, &first, &err), 0);
    assert_true(fl_addr_port(fl_listener_addr(first)) > 0);
    addr = *fl_listener_addr(first);
    assert_int_equal(fl_listener_open(&addr, true, &second, &err), 0);
    assert_int_equal(fl_listener_open(&addr, false, &third, &err), FL_EIO);
    assert_null(third);
    assert_non_null(strstr(err.text, "bind: Address already in use"));
    assert_non_null(strstr(err.text, "127.0.0.1:"));
    fl_listener_close(first);
    fl_listener_close(second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_ip_literals_with_a_port),
        cmocka_unit_test(addresses_compare_by_ip_and_port),
        cmocka_unit_test(bytes_go_both_ways_and_both_ends_close_cleanly),
        cmocka_unit_test(a_closing_end_does_not_call_back_from_inside_the_call),
        cmocka_unit_test(a_thousand_requests_change_the_poll_mask_never),
        cmocka_unit_test(a_reader_that_takes_nothing_holds_its_peer),
        cmocka_unit_test(pieces_of_all_sizes_arrive_in_order),
        cmocka_unit_test(a_reader_may_stop_after_any_delivery),
        cmocka_unit_test(a_written_slice_is_let_go_when_it_has_left),
        cmocka_unit_test(what_the_owner_leaves_stays_and_can_be_asked_for),
        cmocka_unit_test(a_reset_is_told_and_what_came_before_it_is_not_lost),
        cmocka_unit_test(writing_to_a_peer_that_is_gone_ends_the_stream_without_a_signal),
        cmocka_unit_test(closing_writes_what_is_queued_and_waits_for_the_peers_fin),
        cmocka_unit_test(closing_ends_after_its_time_whatever_the_peer_does),
        cmocka_unit_test(a_refused_connection_is_told_later_and_in_words),
        cmocka_unit_test(a_connection_that_nobody_answers_times_out),
        cmocka_unit_test(an_idle_connection_is_looked_at_before_reuse),
        cmocka_unit_test(an_idle_stream_holds_no_buffers),
        cmocka_unit_test(an_owner_may_close_from_any_callback_and_hears_no_more),
        cmocka_unit_test(accepting_takes_at_most_64_a_wake_and_sets_nodelay),
        cmocka_unit_test(a_stopped_listener_leaves_clients_in_the_backlog),
        cmocka_unit_test(closing_a_listener_hands_over_what_is_queued_and_refuses_the_rest),
        cmocka_unit_test(a_port_is_shared_only_when_all_ask_for_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
