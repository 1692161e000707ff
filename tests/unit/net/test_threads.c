/* SPDX-License-Identifier: Apache-2.0 */
#include "end.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/alloc.h"
#include "net/threads.h"
#include "net/tls.h"

enum { LOOPS = 3, HOPS = 3000 };

/* ---- letters that go round ---- */

struct ring {
    struct fl_loops *loops;
    _Atomic unsigned started, stopped, hops;
    char names[LOOPS][16];
};

struct hop {
    struct fl_letter letter;
    struct ring *ring;
};

static void on_start(void *owner, struct fl_loop *loop)
{
    struct ring *ring = owner;
    (void)loop;
    atomic_fetch_add(&ring->started, 1);
}

static void on_stop(void *owner, struct fl_loop *loop)
{
    struct ring *ring = owner;
    pthread_getname_np(pthread_self(), ring->names[fl_loop_index(loop)], 16);
    atomic_fetch_add(&ring->stopped, 1);
}

static void open_hop(struct fl_loop *loop, struct fl_letter *letter)
{
    struct hop *hop = FL_CONTAINER_OF(letter, struct hop, letter);
    struct ring *ring = hop->ring;
    if (atomic_fetch_add(&ring->hops, 1) + 1 == HOPS) {
        fl_free(hop);
        return;
    }
    unsigned next = (fl_loop_index(loop) + 1) % LOOPS;
    fl_loop_post(fl_loops_get(ring->loops, next), letter);
}

static void start_ring(struct ring *ring)
{
    struct fl_loops_config config = {
        .count = LOOPS, .name = "ring", .on_start = on_start, .on_stop = on_stop, .owner = ring};
    struct fl_error err = {0};
    memset(ring, 0, sizeof(*ring));
    if (fl_loops_start(&config, &ring->loops, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(ring->started, LOOPS);
    assert_int_equal(fl_loops_count(ring->loops), LOOPS);
}

static void post_hop(struct ring *ring)
{
    struct hop *hop = fl_calloc(1, sizeof(*hop));
    hop->letter.open = open_hop;
    hop->ring = ring;
    fl_loop_post(fl_loops_get(ring->loops, 0), &hop->letter);
}

static void a_letter_goes_round_the_loops(void **state)
{
    (void)state;
    struct ring ring;
    start_ring(&ring);
    post_hop(&ring);
    for (uint64_t until_ns = fl_clock_ns() + UINT64_C(20000000000); ring.hops < HOPS;) {
        assert_true(fl_clock_ns() < until_ns);
        sched_yield();
    }
    fl_loops_stop(ring.loops);
    assert_int_equal(ring.stopped, LOOPS);
    for (int i = 0; i < LOOPS; i++) {
        char name[24];
        snprintf(name, sizeof(name), "ring-%d", i);
        assert_string_equal(ring.names[i], name);
    }
}

static void stopping_delivers_what_is_under_way_between_loops(void **state)
{
    (void)state;
    struct ring ring;
    start_ring(&ring);
    post_hop(&ring);
    fl_loops_stop(ring.loops); /* wherever the letter is, it goes on to its end */
    assert_int_equal(ring.hops, HOPS);
    fl_loops_stop(NULL);
}

/* ---- TLS connections handed from one loop to another ---- */

enum { CONNECTIONS = 24 };

struct service {
    struct fl_loops *loops;
    struct fl_tls_context *tls;
    _Atomic unsigned served;
};

struct handover {
    struct fl_letter letter;
    struct service *service;
    int fd;
};

static void serve_readable(void *owner, struct fl_stream *stream)
{
    struct service *service = owner;
    fl_stream_write_copy(stream, fl_stream_peek(stream));
    fl_stream_consume(stream, fl_stream_peek(stream).n);
    atomic_fetch_add(&service->served, 1);
}

static void serve_eof(void *owner, struct fl_stream *stream)
{
    (void)owner;
    fl_stream_close(stream, 1000);
}

static void serve_closed(void *owner, struct fl_stream *stream, int rc)
{
    (void)owner;
    (void)stream;
    (void)rc;
}

static void open_handover(struct fl_loop *loop, struct fl_letter *letter)
{
    static const struct fl_stream_ops ops = {
        .on_readable = serve_readable, .on_eof = serve_eof, .on_closed = serve_closed};
    struct handover *handover = FL_CONTAINER_OF(letter, struct handover, letter);
    struct fl_stream_config config = {.tls = handover->service->tls};
    fl_stream_accept(loop, handover->fd, &config, &ops, handover->service);
    fl_free(handover);
}

static void hand_over(void *owner, int fd, const struct fl_addr *peer)
{
    struct service *service = owner;
    struct handover *handover = fl_calloc(1, sizeof(*handover));
    (void)peer;
    handover->letter.open = open_handover;
    handover->service = service;
    handover->fd = fd;
    fl_loop_post(fl_loops_get(service->loops, (unsigned)fd % LOOPS), &handover->letter);
}

/* epp.md 12.1: one socket accepts, each connection goes through the mailbox to a loop */
static void connections_are_accepted_on_one_loop_and_live_on_others(void **state)
{
    (void)state;
    struct fl_loops_config config = {.count = LOOPS, .name = "serve"};
    struct service service = {0};
    struct fl_tls_server_config server = {0};
    struct fl_tls_client_config client = {0};
    struct fl_tls_context *client_tls = NULL;
    struct fl_loop *loop = fl_loop_new(0);
    struct fl_listener *listener = listen_anywhere();
    static struct end ends[CONNECTIONS];
    unsigned done = 0;

    memset(ends, 0, sizeof(ends));
    assert_int_equal(fl_tls_server_new(&server, &service.tls, NULL), 0);
    assert_int_equal(fl_tls_client_new(&client, &client_tls, NULL), 0);
    assert_int_equal(fl_loops_start(&config, &service.loops, NULL), 0);
    fl_listener_start(listener, loop, hand_over, &service);
    struct fl_stream_config dial_config = {.tls = client_tls};
    for (int i = 0; i < CONNECTIONS; i++) {
        ends[i].stream =
            fl_stream_connect(loop, fl_listener_addr(listener), &dial_config, &end_ops, &ends[i]);
        fl_stream_write_copy(ends[i].stream, FL_BYTES("ping"));
    }
    for (uint64_t until_ns = fl_clock_ns() + UINT64_C(20000000000); done < CONNECTIONS;) {
        assert_true(fl_clock_ns() < until_ns);
        fl_loop_turn(loop, 5);
        done = 0;
        for (int i = 0; i < CONNECTIONS; i++)
            done += end_has(&ends[i], "ping");
        /* while handshakes run elsewhere */
        assert_int_equal(fl_tls_reload(service.tls, NULL), 0);
    }
    for (int i = 0; i < CONNECTIONS; i++)
        fl_stream_close(ends[i].stream, 5000);
    for (int i = 0; i < CONNECTIONS; i++) {
        RUN_UNTIL(loop, ends[i].closed == 1);
        assert_int_equal(ends[i].rc, 0);
        fl_buf_fini(&ends[i].in);
    }
    assert_int_equal(service.served, CONNECTIONS);
    /* every stream of the loops has seen our FIN before it answered with its own */
    for (unsigned i = 0; i < LOOPS; i++) {
        struct fl_loop_stats stats;
        do {
            fl_loop_stats(fl_loops_get(service.loops, i), &stats);
            sched_yield();
        } while (stats.fds > 0);
    }
    fl_loops_stop(service.loops);
    fl_listener_close(listener);
    fl_loop_free(loop);
    fl_tls_unref(service.tls);
    fl_tls_unref(client_tls);
}

/* ---- without descriptors ---- */

struct starved {
    int fds[128];
    unsigned count;
    uint64_t last_ns;
};

static void starved_on_accept(void *owner, int fd, const struct fl_addr *peer)
{
    struct starved *starved = owner;
    (void)peer;
    starved->fds[starved->count++] = fd;
    starved->last_ns = fl_clock_ns();
}

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* In a process of its own: the limit is the process's. */
static void starve(void)
{
    enum { CLIENTS = 20 };
    struct fl_loop *loop = fl_loop_new(0);
    struct fl_listener *listener = listen_anywhere();
    struct starved starved = {{0}, 0, 0};
    struct rlimit limit;
    int clients[CLIENTS];
    struct fl_loop_stats before, after;

    fl_listener_start(listener, loop, starved_on_accept, &starved);
    for (int i = 0; i < CLIENTS; i++)
        clients[i] = dial(fl_listener_addr(listener));
    /* Room for 5: the lowest free number tells how many are used. */
    int lowest = dup(0);
    close(lowest);
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = (rlim_t)lowest + 5;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);

    uint64_t began_ns = fl_clock_ns();
    while (fl_listener_refused(listener) == 0)
        fl_loop_turn(loop, 10);
    CHECK(starved.count == 5);
    CHECK(fl_listener_refused(listener) == 1);
    /* The sixth client has been refused, it does not hang. */
    char byte;
    CHECK(recv(clients[5], &byte, 1, 0) == 0 || errno == ECONNRESET);
    /* Rests for 100 ms instead of spinning on a readable socket. */
    fl_loop_stats(loop, &before);
    while (fl_listener_refused(listener) == 1)
        fl_loop_turn(loop, 1000);
    fl_loop_stats(loop, &after);
    CHECK(fl_clock_ns() - began_ns >= (FL_LISTENER_REST_MS - 5) * UINT64_C(1000000));
    CHECK(after.turns - before.turns <= 4);
    /* Our own connections say whose fault it is. */
    struct end end = {0};
    end.stream = fl_stream_connect(loop, fl_listener_addr(listener), NULL, &end_ops, &end);
    while (end.closed == 0)
        fl_loop_turn(loop, 10);
    CHECK(end.rc == FL_EIO);
    CHECK(strcmp(end.why, "socket: Too many open files") == 0);
    /* Once there are descriptors again, the others are served. */
    limit.rlim_cur = (rlim_t)lowest + 100;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    while (starved.count < CLIENTS - fl_listener_refused(listener))
        fl_loop_turn(loop, 10);
    for (unsigned i = 0; i < starved.count; i++)
        close(starved.fds[i]);
    for (int i = 0; i < CLIENTS; i++)
        close(clients[i]);
    fl_listener_close(listener);
    fl_loop_free(loop);
    _exit(0);
}

/* dependencies.md 4.5: on EMFILE a spare descriptor, close-accept-close, then 100 ms rest */
static void without_descriptors_one_is_refused_and_accepting_rests(void **state)
{
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(20);
        starve();
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_descriptors_one_is_refused_and_accepting_rests),
        cmocka_unit_test(a_letter_goes_round_the_loops),
        cmocka_unit_test(stopping_delivers_what_is_under_way_between_loops),
        cmocka_unit_test(connections_are_accepted_on_one_loop_and_live_on_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
