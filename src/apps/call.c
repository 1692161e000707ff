/* SPDX-License-Identifier: Apache-2.0 */
#include "apps/call.h"

#include <stdio.h>

#include "web/fetch.h"

#define ANSWER_MAX (64 * 1024 * 1024) /* a full explain ring is the largest answer asked for */
#define ERROR_MAX 65536
#define TURN_MS 5

struct waiting {
    bool is_done;
    int rc, status;
    struct fl_buf *body;
};

static void on_fetched(void *owner, const struct fl_fetch_result *result)
{
    struct waiting *waiting = owner;
    waiting->is_done = true;
    waiting->rc = result->rc;
    waiting->status = result->status;
    if (result->rc == 0)
        waiting->rc = fl_buf_append(waiting->body, result->body);
}

int fl_app_call(struct fl_loop *loop, const struct fl_app_call *call, int *status,
                struct fl_buf *body, struct fl_error *err)
{
    struct fl_web_pool_config config = {.max_idle_per_target = 1,
                                        .max_idle_ms = 1000,
                                        .max_header_bytes = 65536,
                                        .max_headers = 200};
    struct fl_web_pool *pool = fl_web_pool_new(loop, &config);
    struct fl_chain chain = {0};
    struct waiting waiting = {.body = body};
    struct fl_field fields[2];
    uint32_t field_count = 0;
    char authority[FL_ADDR_TEXT], bearer[600];

    fl_addr_format(&call->addr, authority);
    if (call->body.n > 0) {
        fl_chain_push(&chain, fl_slice_copy(call->body, NULL));
        fields[field_count++] =
            (struct fl_field){FL_BYTES("content-type"), FL_BYTES("application/json")};
    }
    if (call->bearer != NULL) {
        snprintf(bearer, sizeof(bearer), "Bearer %s", call->bearer);
        fields[field_count++] = (struct fl_field){FL_BYTES("authorization"), fl_bytes_of(bearer)};
    }
    struct fl_fetch_request request = {
        .target = {.addr = call->addr, .protocol = FL_WEB_HTTP1},
        .method = fl_bytes_of(call->method),
        .path = fl_bytes_of(call->path),
        .authority = fl_bytes_of(authority),
        .fields = fields,
        .field_count = field_count,
        .body = call->body.n > 0 ? &chain : NULL,
        .timeout_ms = call->timeout_ms,
        .max_body_bytes = ANSWER_MAX,
        .max_error_bytes = ERROR_MAX,
    };
    fl_fetch_start(pool, loop, &request, on_fetched, &waiting);
    while (!waiting.is_done) /* the call's own deadline ends it */
        fl_loop_turn(loop, TURN_MS);
    fl_chain_fini(&chain);
    fl_web_pool_free(pool);
    *status = waiting.status;
    if (waiting.rc < 0)
        return fl_error_set(err, waiting.rc, "%s http://%s%s: %s", call->method, authority,
                            call->path, fl_error_row(waiting.rc)->word);
    return 0;
}
