/* SPDX-License-Identifier: Apache-2.0 */
/* Rules from files, `fairlead rule`, tokens and --check: the gateway's process and its small
 * client. */
#include "gateway_rig.h"

#include "base/alloc.h"

#define PROGRAM FL_BINARY_DIR "/fairlead"

struct run {
    struct fl_loop *loop;
    struct fl_stream *output;
    struct fl_buf text;
    bool has_exited, is_closed;
    int status;
};

static void run_on_readable(void *owner, struct fl_stream *stream)
{
    struct run *run = owner;
    struct fl_bytes bytes = fl_stream_peek(stream);
    while (bytes.n > 0) {
        (void)fl_buf_append(&run->text, bytes);
        fl_stream_consume(stream, bytes.n);
        bytes = fl_stream_peek(stream);
    }
    fl_stream_set_reading(stream, true);
}

static void run_on_eof(void *owner, struct fl_stream *stream)
{
    (void)owner;
    fl_stream_abort(stream, false);
}

static void run_on_closed(void *owner, struct fl_stream *stream, int rc)
{
    struct run *run = owner;
    (void)stream;
    (void)rc;
    run->is_closed = true;
}

static const struct fl_stream_ops run_ops = {
    .on_readable = run_on_readable,
    .on_eof = run_on_eof,
    .on_closed = run_on_closed,
};

static void run_on_exit(void *owner, struct fl_process *process, int status, int signum)
{
    struct run *run = owner;
    (void)process;
    run->has_exited = true;
    run->status = signum != 0 ? -signum : status;
}

/* Runs a program to its end and keeps what it printed in `out` (NULL: not wanted). */
static int run_program(struct fl_loop *loop, const char *const *argv, char *out, size_t room)
{
    struct run run = {.loop = loop};
    struct fl_process *process;
    struct fl_error err = {0};
    const struct fl_process_config config = {
        .argv = argv,
        .stdio = {FL_STDIO_NULL, FL_STDIO_PIPE, FL_STDIO_NULL},
        .output_ops = &run_ops,
        .output_owner = &run,
        .on_exit = run_on_exit,
        .owner = &run,
    };
    if (fl_process_spawn(loop, &config, &process, &err) < 0)
        fail_msg("%s", err.text);
    WAIT_FOR(&run, run.has_exited && run.is_closed);
    if (out != NULL)
        snprintf(out, room, "%.*s", FL_FMT(fl_buf_bytes(&run.text)));
    fl_buf_fini(&run.text);
    return run.status;
}

static void write_file(char path[32], const char *text)
{
    snprintf(path, 32, "/tmp/fairlead-e2e-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void rule_text(char out[1024], uint16_t port, const char *extra)
{
    snprintf(out, 1024,
             "{\"endpoints\":[{\"endpointIP\":\"127.0.0.1\",\"targetPort\":9,\"weight\":1}],"
             "\"serviceArguments\":{\"externalIP\":\"127.0.0.1\",\"port\":%u,\"protocol\":\"tcp\","
             "\"mode\":4,\"sel\":0%s}}",
             port, extra);
}

/* gateway.md 2.2: forms, precedence over REST */
static void rules_of_a_file_are_served_and_rest_cannot_change_them(void **state)
{
    (void)state;
    struct rig rig;
    struct client client;
    char one[1024], two[1024], text[2200], path[32], url[256];
    uint16_t first = free_port(), second = free_port(), third = free_port();
    rule_text(one, first, ",\"name\":\"held\"");
    rule_text(two, second, "");
    snprintf(text, sizeof(text), "{\"lbAttr\":[%s,%s]}", one, two);
    write_file(path, text);
    const char *const more[] = {"--rule", path, NULL};
    rig_start(&rig, "2", more);
    /* Nobody listens at the endpoint: the rule is there all the same. */
    expect(&rig, first, GET, 502, "backend_unreachable");
    expect(&rig, second, GET, 502, "backend_unreachable");

    rule_text(one, first, ",\"name\":\"other\"");
    assert_int_equal(rest_call(&rig, &client, "POST", "/config/loadbalancer", one), 409);
    assert_true(client_has(&client, "rule comes from a --rule file"));
    client_close(&rig, &client);
    snprintf(url, sizeof(url),
             "/config/loadbalancer/externalipaddress/127.0.0.1/port/%u/protocol/tcp", first);
    assert_int_equal(rest_call(&rig, &client, "DELETE", url, ""), 409);
    client_close(&rig, &client);
    assert_int_equal(rest_call(&rig, &client, "DELETE", "/config/loadbalancer/name/held", ""), 409);
    client_close(&rig, &client);
    assert_int_equal(rest_call(&rig, &client, "DELETE", "/config/loadbalancer/all", ""), 409);
    client_close(&rig, &client);
    assert_int_equal(rest_call(&rig, &client, "POST", "/config/persist", ""), 409);
    client_close(&rig, &client);

    rule_text(one, third, "");
    post_text(&rig, one);
    expect(&rig, third, GET, 502, "backend_unreachable");
    rig_stop(&rig);
    unlink(path);
}

/* gateway.md 2.3, 2.2, 2 (exit codes) */
static void check_and_start_tell_good_from_bad_files(void **state)
{
    (void)state;
    static const struct {
        const char *why, *extra, *more;
        bool twice;
        int status;
    } rows[] = {
        {"a good file", "", NULL, false, 0},
        {"a rule that is refused", ",\"eppEndpoint\":\"no-port\"", NULL, false, 1},
        {"the same key in two files", "", NULL, true, 1},
        {"no JSON", NULL, NULL, false, 1},
        {"an option that does not exist", "", "--no-such", false, 2},
    };
    struct fl_loop *loop = fl_loop_new(0);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        char text[1024] = "{", path[32];
        if (rows[i].extra != NULL)
            rule_text(text, 8080, rows[i].extra);
        write_file(path, text);
        const char *argv[] = {PROGRAM, "gateway", "--check", "--rule", path, NULL, NULL, NULL};
        if (rows[i].twice) {
            argv[5] = "--rule";
            argv[6] = path;
        } else {
            argv[5] = rows[i].more;
        }
        int status = run_program(loop, argv, NULL, 0);
        if (status != rows[i].status)
            fail_msg("%s: exit %d", rows[i].why, status);
        unlink(path);
    }
    fl_loop_free(loop);
}

static void rule_whose_address_cannot_be_bound_ends_the_start(void **state)
{
    (void)state;
    struct fl_loop *loop = fl_loop_new(0);
    char path[32];
    write_file(path,
               "{\"endpoints\":[{\"endpointIP\":\"127.0.0.1\",\"targetPort\":9,\"weight\":1}],"
               "\"serviceArguments\":{\"externalIP\":\"192.0.2.1\",\"port\":80,"
               "\"protocol\":\"tcp\",\"mode\":4}}");
    const char *const argv[] = {PROGRAM, "gateway", "--port", "0", "--rule", path, NULL};
    assert_int_equal(run_program(loop, argv, NULL, 0), 1);
    unlink(path);
    fl_loop_free(loop);
}

/* gateway.md 3.2, 16.88 */
static void fairlead_rule_adds_lists_shows_and_removes(void **state)
{
    (void)state;
    struct rig rig;
    char url[128], port[8], address[FL_ADDR_TEXT], listener[32], text[1024], path[32], out[8192];
    rig_start(&rig, "2", NULL);
    fl_addr_format(&rig.rest, address);
    snprintf(url, sizeof(url), "--url=http://%s/netlox/v1", address);
    uint16_t first = free_port(), second = free_port();
    snprintf(port, sizeof(port), "%u", first);
    snprintf(listener, sizeof(listener), "127.0.0.1:%u", first);

    const char *const add[] = {PROGRAM,       "rule",
                               "add",         url,
                               "--vip",       "127.0.0.1",
                               "--port",      port,
                               "--endpoint",  "127.0.0.1:9,127.0.0.1:10",
                               "--name",      "igw-epp",
                               "--epp",       "203.0.113.40:9002",
                               "--fail-open", NULL};
    assert_int_equal(run_program(rig.loop, add, NULL, 0), 0);
    assert_int_equal(run_program(rig.loop, add, NULL, 0), 1); /* a duplicate is refused */
    rule_text(text, second, ",\"name\":\"two\"");
    write_file(path, text);
    const char *const add_file[] = {PROGRAM, "rule", "add", url, path, NULL};
    assert_int_equal(run_program(rig.loop, add_file, NULL, 0), 0);

    const char *const list[] = {PROGRAM, "rule", "list", url, NULL};
    assert_int_equal(run_program(rig.loop, list, out, sizeof(out)), 0);
    assert_non_null(strstr(out, listener));
    assert_non_null(strstr(out, "igw-epp"));
    assert_non_null(strstr(out, "203.0.113.40:9002"));
    assert_non_null(strstr(out, "FailOpen"));
    assert_non_null(strstr(out, "2/2"));
    assert_non_null(strstr(out, "two"));

    const char *const show[] = {PROGRAM, "rule", "show", url, listener, NULL};
    assert_int_equal(run_program(rig.loop, show, out, sizeof(out)), 0);
    assert_non_null(strstr(out, "eppEndpoint"));
    assert_non_null(strstr(out, "127.0.0.1:10 weight=1 state=active counter=0:0"));

    const char *const rm[] = {PROGRAM, "rule", "rm", url, listener, NULL};
    assert_int_equal(run_program(rig.loop, rm, NULL, 0), 0);
    assert_int_equal(run_program(rig.loop, rm, NULL, 0), 1);
    assert_int_equal(run_program(rig.loop, show, NULL, 0), 1);
    const char *const rm_name[] = {PROGRAM, "rule", "rm", url, "--name", "two", NULL};
    assert_int_equal(run_program(rig.loop, rm_name, NULL, 0), 0);
    assert_int_equal(run_program(rig.loop, list, out, sizeof(out)), 0);
    assert_null(strstr(out, "127.0.0.1:"));

    const char *const usage[] = {PROGRAM, "rule", "make", url, NULL};
    assert_int_equal(run_program(rig.loop, usage, NULL, 0), 2);
    snprintf(url, sizeof(url), "--url=http://127.0.0.1:%u", free_port());
    assert_int_equal(run_program(rig.loop, list, NULL, 0), 3);
    unlink(path);
    rig_stop(&rig);
}

/* gateway.md 4.2 (401 and what is exempt), 3 (raw and Bearer) */
static void token_is_wanted_except_for_exempt_calls(void **state)
{
    (void)state;
    static const struct {
        const char *path, *line;
        int status;
    } rows[] = {
        {"/config/loadbalancer/all", "", 401},
        {"/config/loadbalancer/all", "Authorization: sesam\r\n", 200},
        {"/config/loadbalancer/all", "Authorization: Bearer sesam\r\n", 200},
        {"/config/loadbalancer/all", "Authorization: sesamx\r\n", 401},
        {"/config/loadbalancer/all", "Authorization: sesa\r\n", 401},
        {"/version", "", 200},
        {"/metrics", "", 200},
        {"/status/ready", "", 200},
        {"", "", 200},
    };
    struct rig rig;
    char path[32];
    write_file(path, "sesam\n");
    const char *const more[] = {"--auth-token-file", path, "--host", "127.0.0.1", NULL};
    rig_start(&rig, "1", more);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        char request[256];
        struct client client;
        snprintf(request, sizeof(request), "GET /netlox/v1%s HTTP/1.1\r\nHost: g\r\n%s\r\n",
                 rows[i].path, rows[i].line);
        int status = ask(&rig, &client, fl_addr_port(&rig.rest), request);
        if (status != rows[i].status)
            fail_msg("%s %s: %d", rows[i].path, rows[i].line, status);
        client_close(&rig, &client);
    }
    rig_stop(&rig);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_of_a_file_are_served_and_rest_cannot_change_them),
        cmocka_unit_test(check_and_start_tell_good_from_bad_files),
        cmocka_unit_test(rule_whose_address_cannot_be_bound_ends_the_start),
        cmocka_unit_test(fairlead_rule_adds_lists_shows_and_removes),
        cmocka_unit_test(token_is_wanted_except_for_exempt_calls),
    };
    signal(SIGPIPE, SIG_IGN);
    setenv("CMOCKA_TEST_ABORT", "1", 1); /* see test_gateway.c */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
