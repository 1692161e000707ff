/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "apps/app.h"
#include "apps/engine/engine.h"
#include "base/log.h"
#include "net/limits.h"
#include "net/signals.h"

static const char *const backends[] = {"vllm", NULL};
/* By enum engine_fault. */
static const char *const faults[] = {"none",  "late", "error", "cut",  "silent",
                                     "wrong", "huge", "close", "busy", NULL};

#define FIELD(field) .off = offsetof(struct engine_config, field)

static const struct fl_opt opts[] = {
    {.name = "listen",
     .type = FL_OPT_STRING,
     FIELD(listen),
     .def = "127.0.0.1:8000",
     .arg = "ADDR",
     .help = "HTTP address; port 0 takes a free one."},
    {.name = "model",
     .type = FL_OPT_STRING,
     FIELD(model),
     .def = "fairlead-demo",
     .help = "Model served, as requests must name it."},
    {.name = "backend",
     .type = FL_OPT_ENUM,
     FIELD(backend),
     .words = backends,
     .def = "vllm",
     .help = "Whose HTTP, metrics and events are shown."},
    {.name = "blocks",
     .type = FL_OPT_U32,
     FIELD(blocks),
     .def = "4096",
     .min = 1,
     .max = 1 << 28,
     .help = "KV blocks of the prefix cache."},
    {.name = "block-size",
     .type = FL_OPT_U32,
     FIELD(block_tokens),
     .def = "16",
     .min = 1,
     .max = 65536,
     .help = "Tokens a block."},
    {.name = "prefill-tps",
     .type = FL_OPT_F64,
     FIELD(prefill_tps),
     .def = "15926",
     .fmin = 0.001,
     .fmax = 1e12,
     .help = "Prefill rate in tokens a second of model time; fractions are fine."},
    {.name = "decode-ms",
     .type = FL_OPT_F64,
     FIELD(decode_ms),
     .def = "20",
     .fmin = 0,
     .fmax = 1e6,
     .help = "Model time of a generated token."},
    {.name = "tokens-per-event",
     .type = FL_OPT_U32,
     FIELD(tokens_per_event),
     .def = "8",
     .min = 1,
     .max = 1 << 20,
     .help = "Tokens of a streamed event; the first token goes out alone."},
    {.name = "time-scale",
     .type = FL_OPT_F64,
     FIELD(time_scale),
     .def = "1",
     .fmin = 0.001,
     .fmax = 1e6,
     .help = "Seconds of model time in a second of the wall."},
    {.name = "kv-events",
     .type = FL_OPT_STRING,
     FIELD(kv_events),
     .arg = "ADDR",
     .help = "ZMQ address to publish KV events on, for example tcp://127.0.0.1:5557; port * takes "
             "a free one. "
             "Unset: none."},
    {.name = "kv-replay",
     .type = FL_OPT_STRING,
     FIELD(kv_replay),
     .arg = "ADDR",
     .help = "ZMQ address that replays events. Unset: none."},
    {.name = "digest",
     .type = FL_OPT_BOOL,
     FIELD(digest),
     .help = "Answers carry the SHA-256 of the request body as it arrived, in "
             "x-fairlead-engine-body-sha256."},
    {.name = "fault",
     .type = FL_OPT_ENUM,
     FIELD(fault),
     .words = faults,
     .def = "none",
     .help = "Misbehave: late, error (500), cut (the connection after the second event), silent, "
             "wrong (no JSON), huge "
             "(17 MiB), close, busy (503)."},
    {.name = "fault-delay",
     .type = FL_OPT_DURATION,
     FIELD(fault_ms),
     .def = "10s",
     .max = 86400000,
     .help = "Delay of the fault late, by the wall clock."},
    {.name = "ready-file",
     .type = FL_OPT_STRING,
     FIELD(ready_file),
     .arg = "FILE",
     .help = "Written when ready, with the pid and the address of each listener (http, kv_events, "
             "kv_replay)."},
    {.name = "log-level",
     .type = FL_OPT_ENUM,
     FIELD(log_level),
     .words = fl_app_log_levels,
     .def = "info",
     .help = "Least severe level that is logged."},
    {.name = "log-format",
     .type = FL_OPT_ENUM,
     FIELD(log_format),
     .words = fl_app_log_formats,
     .def = "auto",
     .help = "auto is text on a terminal and JSON elsewhere."},
    FL_APP_ACTION_OPTS,
    {0},
};

static void on_accept(void *owner, int fd, const struct fl_addr *peer)
{
    struct engine *engine = owner;
    (void)peer;
    fl_web_server_accept(engine->server, fd);
}

static void on_signal(void *owner, int signum)
{
    struct engine *engine = owner;
    (void)signum;
    fl_loop_stop(engine->loop);
}

static int start_server(struct engine *engine, struct fl_error *err)
{
    struct fl_addr addr;
    struct fl_web_server_config server = {
        .http1 = true,
        .max_header_bytes = 65536,
        .max_headers = 200,
        .head_timeout_ms = 10000,
        .idle_timeout_ms = 600000,
        .max_connections = 65536,
        .on_request = engine_on_request,
        .owner = engine,
    };
    int rc = fl_addr_parse(fl_bytes_of(engine->config.listen), true, &addr, err);
    if (rc == 0)
        rc = fl_listener_open(&addr, false, &engine->listener, err);
    if (rc < 0)
        return rc;
    engine->server = fl_web_server_new(engine->loop, &server);
    fl_listener_start(engine->listener, engine->loop, on_accept, engine);
    return 0;
}

/* A ZMQ address as an address: "tcp://ip:port". */
static bool socket_addr(const char *text, struct fl_addr *addr)
{
    return text != NULL && strncmp(text, "tcp://", 6) == 0 &&
           fl_addr_parse(fl_bytes_of(text + 6), false, addr, NULL) == 0;
}

static int announce(struct engine *engine, struct fl_error *err)
{
    struct fl_app_listener listeners[3] = {
        {.purpose = "http", .addr = *fl_listener_addr(engine->listener)}};
    size_t count = 1;
    if (socket_addr(engine_publisher_endpoint(engine), &listeners[count].addr))
        listeners[count++].purpose = "kv_events";
    if (socket_addr(engine_publisher_replay_endpoint(engine), &listeners[count].addr))
        listeners[count++].purpose = "kv_replay";
    if (engine->config.ready_file == NULL)
        return 0;
    return fl_app_write_ready_file(engine->config.ready_file, listeners, count, err);
}

int fl_app_engine(int argc, char **argv)
{
    static const int signums[] = {SIGTERM, SIGINT};
    struct engine engine = {0};
    struct fl_opt_result parsed = {0};
    struct fl_error err = {0};
    int status;

    if (!fl_app_options(opts, &engine.config, argc, argv, "fairlead engine [OPTIONS]",
                        "A simulated inference engine: real HTTP, SSE, metrics, render route and "
                        "KV events, timed by a "
                        "model.",
                        &parsed, &status))
        return status;
    fl_log_set_level((enum fl_log_level)engine.config.log_level);
    fl_log_set_format((enum fl_log_format)engine.config.log_format);
    fl_limits_raise_fds();

    engine.loop = fl_loop_new(0);
    engine.start_ns = fl_clock_ns();
    if (engine.config.digest)
        engine.sha = fl_sha256_new();
    fl_metrics_init(&engine.metrics, engine_metric_descs, ENGINE_METRIC_COUNT, 1, NULL);
    fl_engine_model_init(&engine.model, engine.config.blocks, engine.config.block_tokens,
                         engine.config.prefill_tps);
    engine_generate_init(&engine);
    struct fl_signals *signals = fl_signals_open(engine.loop, signums, 2, on_signal, &engine);

    int rc = start_server(&engine, &err);
    if (rc == 0)
        rc = engine_publisher_open(&engine, &err);
    if (rc == 0)
        rc = announce(&engine, &err);
    if (rc == 0)
        fl_loop_run(engine.loop);
    else
        fprintf(stderr, "fairlead engine: %s\n", err.text);

    fl_listener_close(engine.listener);
    if (engine.server != NULL)
        fl_web_server_free(engine.server);
    engine_publisher_close(&engine);
    fl_signals_close(signals);
    engine_generate_fini(&engine);
    fl_loop_free(engine.loop);
    fl_engine_model_fini(&engine.model);
    fl_metrics_fini(&engine.metrics);
    fl_sha256_free(engine.sha);
    fl_opt_fini(opts, &engine.config);
    return rc == 0 ? 0 : 1;
}
