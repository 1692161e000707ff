/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/demo/demo.h"
#include "codec/json.h"
#include "selection/policy.h"

#define TURN_MS 5

bool demo_wait(struct fl_loop *loop, bool (*is_true)(void *owner), void *owner, uint64_t timeout_ms)
{
    uint64_t until_ns = fl_clock_ns() + timeout_ms * 1000000;
    while (!is_true(owner)) {
        if (fl_clock_ns() > until_ns)
            return false;
        fl_loop_turn(loop, TURN_MS);
    }
    return true;
}

static void on_exit_of(void *owner, struct fl_process *process, int status, int signum)
{
    struct demo_child *child = owner;
    (void)process;
    child->process = NULL;
    child->is_ended = true;
    child->status = status;
    child->signal = signum;
}

static bool is_ready_or_ended(void *owner)
{
    const struct demo_child *child = owner;
    return child->is_ended || access(child->ready, R_OK) == 0;
}

static int read_text(const char *path, struct fl_buf *text)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return FL_EIO;
    for (;;) {
        uint8_t *room = fl_buf_reserve(text, 4096);
        ssize_t n = room == NULL ? -1 : read(fd, room, 4096);
        if (n <= 0) {
            close(fd);
            return n == 0 ? 0 : FL_EIO;
        }
        fl_buf_commit(text, (size_t)n);
    }
}

static void read_addr(const struct fl_json_node *listeners, const char *purpose,
                      struct fl_addr *addr)
{
    const struct fl_json_node *node = fl_json_get(listeners, fl_bytes_of(purpose));
    if (node != NULL && node->type == FL_JSON_STRING)
        fl_addr_parse(node->text, false, addr, NULL);
}

static int read_ready(struct demo_child *child, const char *main_purpose, struct fl_error *err)
{
    struct fl_buf text = {0};
    struct fl_json doc = {0};
    int rc = read_text(child->ready, &text);
    if (rc == 0)
        rc = fl_json_parse(&doc, fl_buf_bytes(&text), NULL);
    if (rc == 0) {
        const struct fl_json_node *listeners =
            fl_json_get(fl_json_root(&doc), FL_BYTES("listeners"));
        read_addr(listeners, main_purpose, &child->http);
        read_addr(listeners, "kv_events", &child->kv_events);
        read_addr(listeners, "kv_replay", &child->kv_replay);
        read_addr(listeners, "metrics", &child->metrics);
        read_addr(listeners, "debug", &child->debug);
    } else {
        fl_error_set(err, FL_EIO, "%s: its ready file cannot be read", child->name);
    }
    fl_json_fini(&doc);
    fl_buf_fini(&text);
    return rc;
}

/* The last lines a child wrote, for whoever has to understand why it is gone. */
static void show_log(const struct demo_child *child)
{
    struct fl_buf text = {0};
    if (read_text(child->log, &text) == 0 && fl_buf_size(&text) > 0) {
        struct fl_bytes tail = fl_buf_bytes(&text);
        if (tail.n > 2000)
            tail = fl_bytes_skip(tail, tail.n - 2000);
        fprintf(stderr, "--- last words of %s ---\n%.*s\n", child->name, FL_FMT(tail));
    }
    fl_buf_fini(&text);
}

static int spawn(struct demo_system *system, struct demo_child *child, const char *const *arguments,
                 struct fl_error *err)
{
    const char *argv[64] = {"/proc/self/exe"};
    size_t count = 1;
    for (size_t i = 0; arguments[i] != NULL && count < FL_ARRAY_LEN(argv) - 3; i++)
        argv[count++] = arguments[i];
    argv[count++] = "--ready-file";
    argv[count++] = child->ready;
    snprintf(child->ready, sizeof(child->ready), "%s/%s.ready", system->folder, child->name);
    snprintf(child->log, sizeof(child->log), "%s/%s.log", system->folder, child->name);
    int log = open(child->log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (log < 0)
        return fl_error_set(err, FL_EIO, "%s: %s", child->log, strerror(errno));
    struct fl_process_config config = {
        .argv = argv,
        .stdio = {FL_STDIO_NULL, FL_STDIO_FD, FL_STDIO_FD},
        .fds = {-1, log, log},
        .on_exit = on_exit_of,
        .owner = child,
    };
    int rc = fl_process_spawn(system->loop, &config, &child->process, err);
    close(log);
    return rc;
}

static int wait_ready(struct demo_system *system, struct demo_child *child,
                      const char *main_purpose, struct fl_error *err)
{
    if (!demo_wait(system->loop, is_ready_or_ended, child, DEMO_READY_MS) || child->is_ended) {
        show_log(child);
        return fl_error_set(err, FL_EIO, "%s %s", child->name,
                            child->is_ended ? "ended before it was ready" : "is not ready");
    }
    return read_ready(child, main_purpose, err);
}

static int start_engines(struct demo_system *system, const struct demo_shape *shape,
                         struct fl_error *err)
{
    char blocks[16], tps[32], scale[32], size[16];
    snprintf(blocks, sizeof(blocks), "%u", shape->blocks);
    snprintf(size, sizeof(size), "%d", DEMO_BLOCK_TOKENS);
    snprintf(tps, sizeof(tps), "%.9g", shape->prefill_tps);
    snprintf(scale, sizeof(scale), "%.9g", shape->time_scale);
    const char *const engine[] = {"engine",
                                  "--listen",
                                  "127.0.0.1:0",
                                  "--model",
                                  DEMO_MODEL,
                                  "--blocks",
                                  blocks,
                                  "--block-size",
                                  size,
                                  "--prefill-tps",
                                  tps,
                                  "--time-scale",
                                  scale,
                                  "--kv-events",
                                  "tcp://127.0.0.1:*",
                                  "--kv-replay",
                                  "tcp://127.0.0.1:*",
                                  NULL};
    const char *const tokenizer[] = {"engine",  "--listen", "127.0.0.1:0",
                                     "--model", DEMO_MODEL, NULL};
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < system->engine_count; i++) {
        snprintf(system->engines[i].name, sizeof(system->engines[i].name), "engine-%u", i);
        rc = spawn(system, &system->engines[i], engine, err);
    }
    snprintf(system->tokenizer.name, sizeof(system->tokenizer.name), "tokenizer");
    if (rc == 0)
        rc = spawn(system, &system->tokenizer, tokenizer, err);
    for (uint32_t i = 0; rc == 0 && i < system->engine_count; i++)
        rc = wait_ready(system, &system->engines[i], "http", err);
    return rc < 0 ? rc : wait_ready(system, &system->tokenizer, "http", err);
}

static void write_addr(struct fl_json_writer *json, const char *key, const char *prefix,
                       const struct fl_addr *addr)
{
    char text[FL_ADDR_TEXT], whole[FL_ADDR_TEXT + 8];
    fl_addr_format(addr, text);
    snprintf(whole, sizeof(whole), "%s%s", prefix, text);
    fl_json_write_key(json, key);
    fl_json_write_cstr(json, whole);
}

static int write_workers(struct demo_system *system, const char *path, struct fl_error *err)
{
    struct fl_buf text = {0};
    struct fl_json_writer json;
    fl_json_writer_init(&json, &text);
    fl_json_write_object(&json);
    fl_json_write_key(&json, "workers");
    fl_json_write_array(&json);
    for (uint32_t i = 0; i < system->engine_count; i++) {
        fl_json_write_object(&json);
        fl_json_write_key(&json, "name");
        fl_json_write_cstr(&json, system->engines[i].name);
        write_addr(&json, "endpoint", "", &system->engines[i].http);
        write_addr(&json, "kv_events_endpoint", "tcp://", &system->engines[i].kv_events);
        write_addr(&json, "replay_endpoint", "tcp://", &system->engines[i].kv_replay);
        fl_json_write_key(&json, "block_size");
        fl_json_write_u64(&json, DEMO_BLOCK_TOKENS);
        fl_json_write_object_end(&json);
    }
    fl_json_write_array_end(&json);
    fl_json_write_object_end(&json);
    int rc = fl_json_writer_end(&json);
    FILE *file = rc == 0 ? fopen(path, "we") : NULL;
    bool is_written =
        file != NULL && fwrite(text.head, 1, fl_buf_size(&text), file) == fl_buf_size(&text);
    if (file != NULL && fclose(file) != 0)
        is_written = false;
    fl_buf_fini(&text);
    return is_written ? 0 : fl_error_set(err, FL_EIO, "%s cannot be written", path);
}

static int start_epp(struct demo_system *system, const struct demo_shape *shape,
                     struct fl_error *err)
{
    char workers[300], url[FL_ADDR_TEXT + 8], addr[FL_ADDR_TEXT], max_body[24];
    snprintf(workers, sizeof(workers), "%s/workers.json", system->folder);
    fl_addr_format(&system->tokenizer.http, addr);
    snprintf(url, sizeof(url), "http://%s", addr);
    snprintf(max_body, sizeof(max_body), "%llu", (unsigned long long)shape->max_body_bytes);
    const char *const epp[] = {"epp",
                               "--workers",
                               workers,
                               "--model-name",
                               DEMO_MODEL,
                               "--host",
                               "127.0.0.1",
                               "--grpc-port",
                               "0",
                               "--grpc-health-port",
                               "0",
                               "--metrics-port",
                               "any",
                               "--debug-listen",
                               "127.0.0.1:0",
                               "--secure-serving=false",
                               "--tokenizer-protocol",
                               "vllm-render",
                               "--tokenizer-service-url",
                               url,
                               "--policy",
                               shape->policy,
                               "--seed",
                               "1",
                               "--max-request-bytes",
                               max_body,
                               "--drain-secs",
                               "5",
                               NULL};
    int rc = write_workers(system, workers, err);
    snprintf(system->epp.name, sizeof(system->epp.name), "epp");
    if (rc == 0)
        rc = spawn(system, &system->epp, epp, err);
    return rc < 0 ? rc : wait_ready(system, &system->epp, "ext_proc", err);
}

static void write_rule(struct demo_system *system, struct fl_buf *text)
{
    struct fl_json_writer json;
    char addr[FL_ADDR_TEXT];
    fl_json_writer_init(&json, text);
    fl_json_write_object(&json);
    fl_json_write_key(&json, "serviceArguments");
    fl_json_write_object(&json);
    fl_json_write_key(&json, "name");
    fl_json_write_cstr(&json, "demo");
    fl_json_write_key(&json, "externalIP");
    fl_json_write_cstr(&json, "127.0.0.1");
    fl_json_write_key(&json, "port");
    fl_json_write_u64(&json, fl_addr_port(&system->vip));
    fl_json_write_key(&json, "protocol");
    fl_json_write_cstr(&json, "tcp");
    fl_json_write_key(&json, "mode");
    fl_json_write_u64(&json, 4);
    fl_json_write_key(&json, "sel");
    fl_json_write_u64(&json, 0);
    fl_addr_format(&system->epp.http, addr);
    fl_json_write_key(&json, "eppEndpoint");
    fl_json_write_cstr(&json, addr);
    fl_json_write_key(&json, "eppPlaintext");
    fl_json_write_bool(&json, true);
    fl_json_write_key(&json, "eppTimeoutMs");
    fl_json_write_u64(&json, 10000);
    fl_json_write_object_end(&json);
    fl_json_write_key(&json, "endpoints");
    fl_json_write_array(&json);
    for (uint32_t i = 0; i < system->engine_count; i++) {
        fl_json_write_object(&json);
        fl_json_write_key(&json, "endpointIP");
        fl_json_write_cstr(&json, "127.0.0.1");
        fl_json_write_key(&json, "targetPort");
        fl_json_write_u64(&json, fl_addr_port(&system->engines[i].http));
        fl_json_write_key(&json, "weight");
        fl_json_write_u64(&json, 1);
        fl_json_write_object_end(&json);
    }
    fl_json_write_array_end(&json);
    fl_json_write_object_end(&json);
    fl_json_writer_end(&json);
}

/* A port that was free a moment ago; the rule's listener is bound by the gateway. */
static int find_port(struct demo_system *system, struct fl_error *err)
{
    struct fl_listener *listener = NULL;
    fl_addr_parse(FL_BYTES("127.0.0.1:0"), true, &system->vip, NULL);
    int rc = fl_listener_open(&system->vip, false, &listener, err);
    if (rc == 0)
        system->vip = *fl_listener_addr(listener);
    fl_listener_close(listener);
    return rc;
}

static int post_rule(struct demo_system *system, struct fl_error *err)
{
    struct fl_buf rule = {0};
    struct fl_buf answer = {0};
    int status = 0;
    int rc = find_port(system, err);
    if (rc == 0) {
        write_rule(system, &rule);
        rc = demo_fetch(system->loop, &system->gateway.http, "POST",
                        "/netlox/v1/config/loadbalancer", fl_buf_bytes(&rule), &status, &answer,
                        err);
    }
    if (rc == 0 && status != 200)
        rc = fl_error_set(err, FL_EIO, "the gateway refused the rule: %d %.*s", status,
                          FL_FMT(fl_buf_bytes(&answer)));
    fl_buf_fini(&rule);
    fl_buf_fini(&answer);
    return rc;
}

static int start_gateway(struct demo_system *system, const struct demo_shape *shape,
                         struct fl_error *err)
{
    char max_body[24];
    snprintf(max_body, sizeof(max_body), "%llu", (unsigned long long)shape->max_body_bytes);
    const char *const gateway[] = {"gateway", "--host",           "127.0.0.1", "--port",
                                   "0",       "--max-body-bytes", max_body,    NULL};
    snprintf(system->gateway.name, sizeof(system->gateway.name), "gateway");
    int rc = spawn(system, &system->gateway, gateway, err);
    if (rc == 0)
        rc = wait_ready(system, &system->gateway, "rest", err);
    return rc < 0 ? rc : post_rule(system, err);
}

/* Workers are schedulable at once, but a router that has not yet heard an engine would miss its
 * first events. */
static bool hears_engines(void *owner)
{
    struct demo_system *system = owner;
    struct fl_buf page = {0};
    struct fl_error err = {0};
    int status;
    int rc = demo_fetch(system->loop, &system->epp.metrics, "GET", "/metrics", (struct fl_bytes){0},
                        &status, &page, &err);
    double up = demo_metric(fl_buf_bytes(&page), "fairlead_select_listeners", "\"active\"");
    fl_buf_fini(&page);
    return rc == 0 && up >= system->engine_count;
}

int demo_system_start(struct demo_system *system, struct fl_loop *loop,
                      const struct demo_shape *shape, struct fl_error *err)
{
    *system = (struct demo_system){.loop = loop, .engine_count = shape->engines};
    const char *tmp = getenv("TMPDIR");
    snprintf(system->folder, sizeof(system->folder), "%s/fairlead-demo-XXXXXX",
             tmp != NULL && tmp[0] != '\0' ? tmp : "/tmp");
    if (mkdtemp(system->folder) == NULL)
        return fl_error_set(err, FL_EIO, "%s: %s", system->folder, strerror(errno));
    int rc = start_engines(system, shape, err);
    if (rc == 0)
        rc = start_epp(system, shape, err);
    if (rc == 0)
        rc = start_gateway(system, shape, err);
    bool needs_events = fl_policy_find(shape->policy)->uses_index;
    if (rc == 0 && needs_events && !demo_wait(loop, hears_engines, system, DEMO_READY_MS))
        rc = fl_error_set(err, FL_EIO, "the picker does not hear the engines' KV events");
    if (rc < 0)
        demo_system_stop(system);
    return rc;
}

static bool is_ended(void *owner)
{
    const struct demo_child *child = owner;
    return child->process == NULL;
}

static bool stop_child(struct demo_system *system, struct demo_child *child)
{
    bool is_well = true;
    if (child->process != NULL) {
        fl_process_kill(child->process, SIGTERM);
        if (!demo_wait(system->loop, is_ended, child, DEMO_STOP_MS)) {
            fprintf(stderr, "%s does not end and is killed\n", child->name);
            fl_process_free(child->process);
            child->process = NULL;
            is_well = false;
        }
    }
    if (child->is_ended && (child->status != 0 || child->signal != 0)) {
        fprintf(stderr, "%s ended badly: status %d, signal %d\n", child->name, child->status,
                child->signal);
        show_log(child);
        is_well = false;
    }
    if (child->ready[0] != '\0') {
        unlink(child->ready);
        unlink(child->log);
    }
    return is_well;
}

bool demo_system_stop(struct demo_system *system)
{
    char workers[300];
    bool is_well = stop_child(system, &system->gateway);
    is_well = stop_child(system, &system->epp) && is_well;
    is_well = stop_child(system, &system->tokenizer) && is_well;
    for (uint32_t i = 0; i < system->engine_count; i++)
        is_well = stop_child(system, &system->engines[i]) && is_well;
    snprintf(workers, sizeof(workers), "%s/workers.json", system->folder);
    unlink(workers);
    rmdir(system->folder);
    return is_well;
}
