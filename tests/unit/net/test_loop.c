/* SPDX-License-Identifier: Apache-2.0 */
#include "net_test.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/alloc.h"

/* ---- deferred work and disposal ---- */

struct log {
    char text[64];
    size_t n;
};

static void note(struct log *log, char c)
{
    assert_true(log->n + 1 < sizeof(log->text));
    log->text[log->n++] = c;
}

struct job {
    struct fl_deferred deferred;
    struct fl_loop *loop;
    struct log *log;
    char name;
    struct job *then; /* deferred by this one */
};

static void run_job(struct fl_deferred *deferred)
{
    struct job *job = FL_CONTAINER_OF(deferred, struct job, deferred);
    note(job->log, job->name);
    if (job->then != NULL)
        fl_loop_defer(job->loop, &job->then->deferred);
}

static void job_init(struct job *job, struct fl_loop *loop, struct log *log, char name)
{
    *job = (struct job){.loop = loop, .log = log, .name = name};
    fl_deferred_init(&job->deferred, run_job);
}

static void deferred_work_runs_in_order_and_once(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    struct log log = {{0}, 0};
    struct job a, b, c;
    job_init(&a, loop, &log, 'a');
    job_init(&b, loop, &log, 'b');
    job_init(&c, loop, &log, 'c');

    fl_loop_defer(loop, &b.deferred);
    fl_loop_defer(loop, &a.deferred);
    fl_loop_defer(loop, &c.deferred);
    fl_loop_defer(loop, &b.deferred); /* waits already */
    fl_loop_undefer(&c.deferred);
    fl_loop_undefer(&c.deferred); /* harmless */
    fl_loop_turn(loop, 0);
    assert_string_equal(log.text, "ba");
    fl_loop_turn(loop, 0);
    assert_string_equal(log.text, "ba");
    fl_loop_free(loop);
}

static void work_deferred_from_deferred_work_waits_for_the_next_turn(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    struct log log = {{0}, 0};
    struct job a, b;
    job_init(&a, loop, &log, 'a');
    job_init(&b, loop, &log, 'b');
    a.then = &a; /* never ends, and yet the loop turns */
    b.then = NULL;

    fl_loop_defer(loop, &a.deferred);
    fl_loop_defer(loop, &b.deferred);
    fl_loop_turn(loop, 1000);
    assert_string_equal(log.text, "ab");
    fl_loop_turn(loop, 1000); /* does not wait: there is work */
    assert_string_equal(log.text, "aba");
    fl_loop_undefer(&a.deferred);
    fl_loop_free(loop);
}

struct thing {
    struct fl_disposable dispose;
    struct fl_deferred later;
    struct fl_loop *loop;
    bool *is_freed;
    bool was_alive_in_turn;
};

static void free_thing(struct fl_disposable *disposable)
{
    struct thing *thing = FL_CONTAINER_OF(disposable, struct thing, dispose);
    *thing->is_freed = true;
    fl_free(thing);
}

static void close_thing(struct fl_deferred *later)
{
    struct thing *thing = FL_CONTAINER_OF(later, struct thing, later);
    fl_loop_dispose(thing->loop, &thing->dispose, free_thing);
    /* a caller further up may still look */
    thing->was_alive_in_turn = !*thing->is_freed;
    assert_true(thing->was_alive_in_turn);
}

static void what_is_disposed_of_lives_until_the_turn_has_ended(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    bool is_freed = false;
    struct thing *thing = fl_calloc(1, sizeof(*thing));
    thing->loop = loop;
    thing->is_freed = &is_freed;
    fl_deferred_init(&thing->later, close_thing);
    fl_loop_defer(loop, &thing->later);
    fl_loop_turn(loop, 0);
    assert_true(is_freed);
    fl_loop_free(loop);
}

static void a_loop_that_ends_runs_what_waits(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    struct log log = {{0}, 0};
    bool is_freed = false;
    struct job a, b;
    job_init(&a, loop, &log, 'a');
    job_init(&b, loop, &log, 'b');
    a.then = &b;
    struct thing *thing = fl_calloc(1, sizeof(*thing));
    thing->loop = loop;
    thing->is_freed = &is_freed;
    fl_loop_defer(loop, &a.deferred);
    fl_loop_dispose(loop, &thing->dispose, free_thing);
    fl_loop_free(loop);
    assert_string_equal(log.text, "ab");
    assert_true(is_freed);
}

/* ---- time ---- */

struct alarm {
    struct fl_timer timer;
    struct fl_loop *loop;
    uint64_t fired_ms;
    unsigned count;
};

static void on_alarm(struct fl_timer *timer)
{
    struct alarm *alarm = FL_CONTAINER_OF(timer, struct alarm, timer);
    alarm->fired_ms = fl_loop_now_ms(alarm->loop);
    alarm->count++;
}

static void timers_fire_after_their_delay_and_not_before(void **state)
{
    (void)state;
    static const uint64_t delays_ms[] = {0, 1, 9, 10, 11, 55, 120};
    struct fl_loop *loop = fl_loop_new(0);
    struct alarm alarms[FL_ARRAY_LEN(delays_ms)];
    uint64_t began_ms = fl_loop_now_ms(loop);

    for (size_t i = 0; i < FL_ARRAY_LEN(alarms); i++) {
        alarms[i] = (struct alarm){.loop = loop};
        fl_timer_init(&alarms[i].timer, on_alarm);
        fl_loop_timer_start(loop, &alarms[i].timer, delays_ms[i]);
    }
    for (size_t i = 0; i < FL_ARRAY_LEN(alarms); i++) {
        RUN_UNTIL(loop, alarms[i].count > 0);
        assert_true(alarms[i].fired_ms >= began_ms + delays_ms[i]);
        assert_int_equal(alarms[i].count, 1);
    }
    fl_loop_free(loop);
}

static void a_stopped_timer_is_silent_and_a_restarted_one_fires_once(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    struct alarm stopped = {.loop = loop}, restarted = {.loop = loop};
    fl_timer_init(&stopped.timer, on_alarm);
    fl_timer_init(&restarted.timer, on_alarm);
    fl_loop_timer_start(loop, &stopped.timer, 20);
    fl_loop_timer_start(loop, &restarted.timer, 20);
    fl_loop_timer_start(loop, &restarted.timer, 60);
    fl_loop_timer_stop(loop, &stopped.timer);
    RUN_UNTIL(loop, restarted.count > 0);
    assert_int_equal(restarted.count, 1);
    assert_int_equal(stopped.count, 0);
    fl_loop_free(loop);
}

static void an_idle_loop_does_not_wake(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    struct alarm far = {.loop = loop};
    struct fl_loop_stats before, after;
    fl_timer_init(&far.timer, on_alarm);
    fl_loop_timer_start(loop, &far.timer, 3000);
    fl_loop_stats(loop, &before);
    uint64_t began_ns = fl_clock_ns();
    fl_loop_turn(loop, 150);
    fl_loop_stats(loop, &after);
    /* performance.md e4: no idle wake-ups. One turn, and it took its time. */
    assert_int_equal(after.turns - before.turns, 1);
    assert_true(fl_clock_ns() - began_ns >= 145 * UINT64_C(1000000));
    fl_loop_timer_stop(loop, &far.timer);
    fl_loop_free(loop);
}

struct shot {
    struct fl_precise_timer *timer;
    uint64_t at_ns, fired_ns;
    unsigned count, order;
    unsigned *next_order;
};

static void on_shot(void *owner)
{
    struct shot *shot = owner;
    shot->fired_ns = fl_clock_ns();
    shot->count++;
    shot->order = (*shot->next_order)++;
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* design.md 6: engine and replay time themselves to 1 ms or better */
static void precise_timers_fire_within_a_millisecond_and_in_order(void **state)
{
    (void)state;
    enum { SHOTS = 200 };
    struct fl_loop *loop = fl_loop_new(0);
    static struct shot shots[SHOTS];
    uint64_t late_ns[SHOTS];
    unsigned next_order = 0;
    uint64_t began_ns = fl_clock_ns() + 1000000;

    for (unsigned i = 0; i < SHOTS; i++) {
        struct shot *shot = &shots[i];
        *shot = (struct shot){.next_order = &next_order};
        shot->timer = fl_precise_timer_new(loop, on_shot, shot);
        /* 37 is coprime to 200: a shuffled order, 250 us apart */
        shot->at_ns = began_ns + (i * 37 % SHOTS) * UINT64_C(250000);
        fl_precise_timer_start(shot->timer, shot->at_ns);
    }
    RUN_UNTIL(loop, next_order == SHOTS);
    for (unsigned i = 0; i < SHOTS; i++) {
        assert_int_equal(shots[i].count, 1);
        assert_int_equal(shots[i].order, i * 37 % SHOTS);
        assert_true(shots[i].fired_ns >= shots[i].at_ns);
        late_ns[i] = shots[i].fired_ns - shots[i].at_ns;
        fl_precise_timer_free(shots[i].timer);
    }
    /* The median, since the machine may be taken away from us at any moment. */
    qsort(late_ns, SHOTS, sizeof(late_ns[0]), by_number);
    if (late_ns[SHOTS / 2] >= 1000000)
        fail_msg("median lateness %llu ns", (unsigned long long)late_ns[SHOTS / 2]);
    fl_loop_free(loop);
}

static void precise_timers_can_be_stopped_moved_and_freed(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    unsigned next_order = 0;
    struct shot stopped = {.next_order = &next_order}, moved = {.next_order = &next_order};
    struct shot freed = {.next_order = &next_order};
    uint64_t now_ns = fl_clock_ns();
    stopped.timer = fl_precise_timer_new(loop, on_shot, &stopped);
    moved.timer = fl_precise_timer_new(loop, on_shot, &moved);
    freed.timer = fl_precise_timer_new(loop, on_shot, &freed);
    fl_precise_timer_start(stopped.timer, now_ns + 2000000);
    fl_precise_timer_start(freed.timer, now_ns + 2000000);
    fl_precise_timer_start(moved.timer, now_ns + 1000000);
    fl_precise_timer_start(moved.timer, now_ns + 8000000);
    fl_precise_timer_stop(stopped.timer);
    fl_precise_timer_free(freed.timer);
    RUN_UNTIL(loop, moved.count > 0);
    assert_true(moved.fired_ns >= now_ns + 8000000);
    assert_int_equal(stopped.count + freed.count, 0);
    fl_precise_timer_start(stopped.timer, 0); /* long past */
    RUN_UNTIL(loop, stopped.count > 0);
    fl_precise_timer_free(stopped.timer);
    fl_precise_timer_free(moved.timer);
    fl_precise_timer_free(NULL);
    fl_loop_free(loop);
}

static void spin(struct fl_deferred *deferred)
{
    (void)deferred;
    uint64_t until_ns = fl_clock_ns() + (FL_LOOP_STALL_MS + 15) * UINT64_C(1000000);
    while (fl_clock_ns() < until_ns)
        continue;
}

static void blink(struct fl_deferred *deferred)
{
    (void)deferred;
}

/* dependencies.md 4.5: a stall detector logs any callback that runs > 50 ms */
static void a_handler_that_holds_the_loop_is_counted(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    struct fl_loop_stats stats;
    struct fl_deferred slow, quick;
    fl_deferred_init(&slow, spin);
    fl_deferred_init(&quick, blink);
    fl_loop_defer(loop, &quick);
    fl_loop_turn(loop, 80); /* waiting is no stall */
    fl_loop_turn(loop, 80);
    fl_loop_stats(loop, &stats);
    assert_int_equal(stats.stalls, 0);
    fl_loop_defer(loop, &slow);
    fl_loop_defer(loop, &quick); /* does not pay for its neighbour */
    fl_loop_turn(loop, 0);
    fl_loop_stats(loop, &stats);
    assert_int_equal(stats.stalls, 1);
    fl_loop_free(loop);
}

/* ---- mail ---- */

enum { SENDERS = 3, LETTERS = 333334 };

struct letter {
    struct fl_letter letter;
    struct receiver *receiver;
    unsigned sender, number;
};

struct receiver {
    struct fl_loop *loop;
    unsigned next[SENDERS];
    uint64_t opened;
    uint64_t largest_turn;
    uint64_t this_turn, turn;
    bool is_out_of_order;
};

static void open_letter(struct fl_loop *loop, struct fl_letter *opened)
{
    struct letter *letter = FL_CONTAINER_OF(opened, struct letter, letter);
    struct receiver *receiver = letter->receiver;
    struct fl_loop_stats stats;
    if (letter->number != receiver->next[letter->sender])
        receiver->is_out_of_order = true;
    receiver->next[letter->sender] = letter->number + 1;
    fl_loop_stats(loop, &stats);
    if (stats.turns != receiver->turn) {
        receiver->turn = stats.turns;
        receiver->this_turn = 0;
    }
    if (++receiver->this_turn > receiver->largest_turn)
        receiver->largest_turn = receiver->this_turn;
    if (++receiver->opened == (uint64_t)SENDERS * LETTERS)
        fl_loop_stop(loop);
    fl_free(letter);
}

struct sender {
    pthread_t thread;
    struct receiver *receiver;
    unsigned index;
};

static void *send_letters(void *arg)
{
    struct sender *sender = arg;
    for (unsigned i = 0; i < LETTERS; i++) {
        struct letter *letter = fl_calloc(1, sizeof(*letter));
        letter->letter.open = open_letter;
        letter->receiver = sender->receiver;
        letter->sender = sender->index;
        letter->number = i;
        fl_loop_post(sender->receiver->loop, &letter->letter);
    }
    return NULL;
}

static void a_million_letters_of_three_threads_arrive_in_order(void **state)
{
    (void)state;
    struct receiver receiver = {.loop = fl_loop_new(7)};
    struct sender senders[SENDERS];
    struct fl_loop_stats stats;
    for (unsigned i = 0; i < SENDERS; i++) {
        senders[i] = (struct sender){.receiver = &receiver, .index = i};
        assert_int_equal(pthread_create(&senders[i].thread, NULL, send_letters, &senders[i]), 0);
    }
    fl_loop_run(receiver.loop);
    for (unsigned i = 0; i < SENDERS; i++)
        pthread_join(senders[i].thread, NULL);
    assert_false(receiver.is_out_of_order);
    assert_int_equal(receiver.opened, (uint64_t)SENDERS * LETTERS);
    assert_true(receiver.largest_turn <= FL_LOOP_LETTERS_TURN);
    fl_loop_stats(receiver.loop, &stats);
    assert_int_equal(stats.letters, receiver.opened);
    assert_int_equal(fl_loop_index(receiver.loop), 7);
    fl_loop_free(receiver.loop);
}

struct note_letter {
    struct fl_letter letter;
    struct log *log;
    struct fl_loop *expected;
    char name;
};

static void open_note(struct fl_loop *loop, struct fl_letter *opened)
{
    struct note_letter *letter = FL_CONTAINER_OF(opened, struct note_letter, letter);
    assert_ptr_equal(loop, letter->expected);
    assert_ptr_equal(fl_loop_current(), loop);
    note(letter->log, letter->name);
    fl_free(letter);
}

static void post_note(struct fl_loop *loop, struct log *log, char name)
{
    struct note_letter *letter = fl_calloc(1, sizeof(*letter));
    letter->letter.open = open_note;
    letter->log = log;
    letter->name = name;
    letter->expected = loop;
    fl_loop_post(loop, &letter->letter);
}

static void mail_to_a_stopped_loop_is_opened_when_it_is_freed(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    struct log log = {{0}, 0};
    fl_loop_stop(loop);
    fl_loop_run(loop); /* returns at once */
    for (char c = 'a'; c < 'f'; c++)
        post_note(loop, &log, c);
    assert_string_equal(log.text, "");
    fl_loop_free(loop);
    assert_string_equal(log.text, "abcde");
    assert_null(fl_loop_current());
}

static void *post_one_and_stop(void *arg)
{
    struct sender *sender = arg;
    fl_loop_stop(sender->receiver->loop);
    return NULL;
}

static void another_thread_wakes_and_stops_a_sleeping_loop(void **state)
{
    (void)state;
    struct receiver receiver = {.loop = fl_loop_new(0)};
    struct sender sender = {.receiver = &receiver};
    assert_int_equal(pthread_create(&sender.thread, NULL, post_one_and_stop, &sender), 0);
    fl_loop_run(receiver.loop);
    pthread_join(sender.thread, NULL);
    fl_loop_free(receiver.loop);
    fl_loop_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deferred_work_runs_in_order_and_once),
        cmocka_unit_test(work_deferred_from_deferred_work_waits_for_the_next_turn),
        cmocka_unit_test(what_is_disposed_of_lives_until_the_turn_has_ended),
        cmocka_unit_test(a_loop_that_ends_runs_what_waits),
        cmocka_unit_test(timers_fire_after_their_delay_and_not_before),
        cmocka_unit_test(a_stopped_timer_is_silent_and_a_restarted_one_fires_once),
        cmocka_unit_test(an_idle_loop_does_not_wake),
        cmocka_unit_test(precise_timers_fire_within_a_millisecond_and_in_order),
        cmocka_unit_test(precise_timers_can_be_stopped_moved_and_freed),
        cmocka_unit_test(a_handler_that_holds_the_loop_is_counted),
        cmocka_unit_test(a_million_letters_of_three_threads_arrive_in_order),
        cmocka_unit_test(mail_to_a_stopped_loop_is_opened_when_it_is_freed),
        cmocka_unit_test(another_thread_wakes_and_stops_a_sleeping_loop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
