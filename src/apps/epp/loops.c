/* SPDX-License-Identifier: Apache-2.0 */
/* Request loops. One socket accepts; each connection goes by mail to the loop that has fewest and
 * lives there with all its streams (epp.md 12.1): a proxy holds a handful of long HTTP/2
 * connections, which the kernel's hash would leave on a few loops. */
#include "apps/epp/epp.h"

#include "base/alloc.h"
#include "base/log.h"

#define RESET_BURST                                                                                \
    20000 /* one proxy passes on the cancels of all its clients: dependencies.md 3.1 */
#define RESET_RATE 2000
#define MAX_STREAMS 10000    /* gaie.md 1.1 */
#define MAX_CONNECTIONS 1024 /* epp.md 1.2, over all loops */
#define HANDSHAKE_MS 10000   /* epp.md 1.2 */
#define TOKENIZER_IDLE 64    /* connections kept, over all loops; at least 4 a loop */

struct handover {
    struct fl_letter letter;
    struct epp_loop *loop;
    int fd;
};

static void open_handover(struct fl_loop *loop, struct fl_letter *letter)
{
    struct handover *handover = FL_CONTAINER_OF(letter, struct handover, letter);
    struct epp_loop *mine = handover->loop;
    (void)loop;
    fl_web_server_accept(mine->server, handover->fd);
    atomic_store_explicit(&mine->connections, fl_web_server_connections(mine->server),
                          memory_order_relaxed);
    fl_free(handover);
}

static void on_accept(void *owner, int fd, const struct fl_addr *peer)
{
    struct epp *epp = owner;
    struct epp_loop *fewest = &epp->loops[0];
    (void)peer;
    for (uint32_t i = 1; i < epp->config.loops; i++) {
        if (atomic_load_explicit(&epp->loops[i].connections, memory_order_relaxed) <
            atomic_load_explicit(&fewest->connections, memory_order_relaxed))
            fewest = &epp->loops[i];
    }
    /* Counted now, so that a burst spreads; the loop corrects the figure when it looks. */
    atomic_fetch_add_explicit(&fewest->connections, 1, memory_order_relaxed);
    struct handover *handover = fl_calloc(1, sizeof(*handover));
    handover->letter.open = open_handover;
    handover->loop = fewest;
    handover->fd = fd;
    fl_loop_post(fewest->loop, &handover->letter);
}

/* The connection count and the open streams are shown to the other threads a few times a second. */
static void on_census(struct fl_timer *timer)
{
    struct epp_loop *mine = FL_CONTAINER_OF(timer, struct epp_loop, census);
    struct fl_extproc_server_figures figures;
    fl_extproc_server_figures(mine->extproc, &figures);
    atomic_store_explicit(&mine->connections, fl_web_server_connections(mine->server),
                          memory_order_relaxed);
    atomic_store_explicit(&mine->streams, figures.open_streams, memory_order_relaxed);
    if (figures.buffer_rejections > mine->buffer_rejections)
        fl_metric_add(&mine->epp->metrics, mine->index, EPP_BUFFER_REJECTIONS, 0,
                      figures.buffer_rejections - mine->buffer_rejections);
    mine->buffer_rejections = figures.buffer_rejections;
    fl_loop_timer_start(mine->loop, timer, EPP_CENSUS_MS);
}

struct fl_tokenizer *epp_tokenizer_new(struct epp *epp, struct fl_loop *loop)
{
    const struct epp_config *config = &epp->config;
    uint32_t share = TOKENIZER_IDLE / config->loops;
    struct fl_tokenizer_config tokenizer = {
        .protocol = (enum fl_tokenizer_protocol)config->tokenizer_protocol,
        .url = config->tokenizer_url,
        .timeout_ms = config->tokenizer_timeout_ms,
        .max_response_bytes = config->tokenizer_max_bytes,
        .max_idle = share > 4 ? share : 4,
    };
    struct fl_tokenizer *made = NULL;
    struct fl_error err = {0};
    if (tokenizer.protocol != FL_TOKENIZER_NONE &&
        fl_tokenizer_new(loop, &tokenizer, &made, &err) < 0)
        fl_log(FL_LOG_ERROR, "tokenizer client", "why=%s",
               fl_log_value(fl_bytes_of(err.text)).text);
    return made;
}

static void on_start(void *owner, struct fl_loop *loop)
{
    struct epp *epp = owner;
    struct epp_loop *mine = &epp->loops[fl_loop_index(loop)];
    struct fl_extproc_server_config extproc = {.picker = epp->picker, .budget = &epp->budget};
    mine->epp = epp;
    mine->loop = loop;
    mine->index = fl_loop_index(loop);
    mine->tokenizer = epp_tokenizer_new(epp, loop);
    fl_pick_env_init(&mine->env, loop, &epp->shared, mine->tokenizer);
    mine->health = fl_health_new(loop, &epp->health_names);
    mine->extproc = fl_extproc_server_new(loop, &extproc, &epp_stream_ops, mine);
    struct fl_web_server_config server = {
        .http2 = true,
        .tls = epp->tls,
        .max_header_bytes = 65536,
        .max_headers = 200,
        .head_timeout_ms = HANDSHAKE_MS,
        /* A proxy's connection may rest for hours; streams have limits of their own. */
        .idle_timeout_ms = 0,
        .max_connections = MAX_CONNECTIONS,
        .h2_max_streams = MAX_STREAMS,
        .h2_reset_burst = RESET_BURST,
        .h2_reset_rate = RESET_RATE,
        .budget = &epp->budget,
        .on_request = fl_extproc_server_on_request,
        .owner = mine->extproc,
    };
    mine->server = fl_web_server_new(loop, &server);
    fl_timer_init(&mine->census, on_census);
    fl_loop_timer_start(loop, &mine->census, EPP_CENSUS_MS);
}

static void on_stop(void *owner, struct fl_loop *loop)
{
    struct epp *epp = owner;
    struct epp_loop *mine = &epp->loops[fl_loop_index(loop)];
    fl_loop_timer_stop(loop, &mine->census);
    fl_extproc_server_free(mine->extproc);
    fl_health_free(mine->health);
    fl_web_server_free(mine->server);
    fl_tokenizer_free(mine->tokenizer);
}

int epp_loops_start(struct epp *epp, struct fl_error *err)
{
    struct fl_loops_config config = {.count = epp->config.loops,
                                     .name = "epp",
                                     .on_start = on_start,
                                     .on_stop = on_stop,
                                     .owner = epp};
    epp->loops = fl_calloc(epp->config.loops, sizeof(*epp->loops));
    return fl_loops_start(&config, &epp->threads, err);
}

void epp_loops_accept(struct epp *epp)
{
    fl_listener_start(epp->listener, epp->control, on_accept, epp);
}

struct errand {
    struct fl_letter letter;
    struct epp_loop *loop;
    bool is_end; /* of the drain; else its beginning */
};

static void open_errand(struct fl_loop *loop, struct fl_letter *letter)
{
    struct errand *errand = FL_CONTAINER_OF(letter, struct errand, letter);
    (void)loop;
    if (errand->is_end)
        fl_extproc_server_stop(errand->loop->extproc);
    else
        fl_web_server_drain(errand->loop->server);
    fl_free(errand);
}

static void send_errands(struct epp *epp, bool is_end)
{
    for (uint32_t i = 0; i < epp->config.loops; i++) {
        struct errand *errand = fl_calloc(1, sizeof(*errand));
        errand->letter.open = open_errand;
        errand->loop = &epp->loops[i];
        errand->is_end = is_end;
        fl_loop_post(epp->loops[i].loop, &errand->letter);
    }
}

void epp_loops_drain(struct epp *epp)
{
    send_errands(epp, false);
}

void epp_loops_cut(struct epp *epp)
{
    send_errands(epp, true);
}

uint32_t epp_loops_streams(struct epp *epp)
{
    uint32_t streams = 0;
    for (uint32_t i = 0; i < epp->config.loops; i++)
        streams += atomic_load_explicit(&epp->loops[i].streams, memory_order_relaxed);
    return streams;
}

void epp_loops_stop(struct epp *epp)
{
    fl_loops_stop(epp->threads);
    for (uint32_t i = 0; epp->threads != NULL && i < epp->config.loops; i++)
        fl_pick_env_fini(&epp->loops[i].env);
    fl_free(epp->loops);
}
