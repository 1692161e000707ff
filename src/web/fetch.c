/* SPDX-License-Identifier: Apache-2.0 */
#include "web/fetch.h"

#include <string.h>

#include "base/alloc.h"

#define H2_CANCEL 8

struct fl_fetch {
    struct fl_loop *loop;
    struct fl_web_pool *pool;
    struct fl_exchange *x; /* NULL between two tries and at the end */
    struct fl_timer deadline;
    struct fl_arena arena; /* what the request's views point to */
    struct fl_fetch_request request;
    struct fl_chain body;
    struct fl_buf answer;
    struct fl_fetch_result result;
    void (*done)(void *owner, const struct fl_fetch_result *result);
    void *owner;
    bool is_complete, is_retry, is_cancelled;
    int failure; /* why we aborted, 0: we did not */
};

static void fetch_free(struct fl_fetch *fetch)
{
    fl_loop_timer_stop(fetch->loop, &fetch->deadline);
    fl_chain_fini(&fetch->body);
    fl_buf_fini(&fetch->answer);
    fl_arena_fini(&fetch->arena);
    fl_free(fetch);
}

/* Ends the exchange with a reason of ours; on_close reports it. */
static void give_up(struct fl_fetch *fetch, int rc)
{
    if (fetch->failure == 0)
        fetch->failure = rc;
    fl_exchange_abort(fetch->x, H2_CANCEL);
}

static void on_head(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    struct fl_fetch *fetch = owner;
    (void)x;
    fetch->result.status = head->status;
    fetch->result.fields = &head->fields;
    fetch->is_complete = is_end;
    if (head->status == 200 && head->content_length != UINT64_MAX &&
        (head->body == FL_BODY_LENGTH || head->body == FL_BODY_STREAM) &&
        head->content_length > fetch->request.max_body_bytes)
        give_up(fetch, FL_ELIMIT);
}

static void on_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
{
    struct fl_fetch *fetch = owner;
    struct fl_bytes piece = fl_slice_bytes(slice);
    size_t held = fl_buf_size(&fetch->answer);
    fl_exchange_consume(x, slice.n);
    if (fetch->failure == 0 && fetch->result.status != 200)
        piece = fl_bytes_head(piece, fetch->request.max_error_bytes > held
                                         ? fetch->request.max_error_bytes - held
                                         : 0);
    if (fetch->failure == 0 && piece.n > 0) {
        int rc = fetch->result.status == 200 && piece.n > fetch->request.max_body_bytes - held
                     ? FL_ELIMIT
                     : fl_buf_append(&fetch->answer, piece);
        if (rc < 0)
            give_up(fetch, rc);
    }
    fl_slice_unref(&slice);
}

static void on_end(void *owner, struct fl_exchange *x, const struct fl_fields *trailers)
{
    struct fl_fetch *fetch = owner;
    (void)x;
    (void)trailers;
    fetch->is_complete = true;
}

static void open_exchange(struct fl_fetch *fetch, bool fresh);

static void on_close(void *owner, struct fl_exchange *x, int rc)
{
    struct fl_fetch *fetch = owner;
    bool may_retry = !fetch->is_retry && fetch->failure == 0 && rc < 0 &&
                     (rc == FL_EREFUSED || fl_exchange_is_reused_and_silent(x));
    fetch->x = NULL;
    if (fetch->is_cancelled) {
        fetch_free(fetch);
        return;
    }
    if (may_retry) {
        fetch->is_retry = true;
        open_exchange(fetch, true);
        return;
    }
    if (fetch->failure != 0)
        fetch->result.rc = fetch->failure;
    else if (!fetch->is_complete)
        fetch->result.rc = rc < 0 ? rc : FL_ECLOSED;
    fetch->result.body = fl_buf_bytes(&fetch->answer);
    fl_loop_timer_stop(fetch->loop, &fetch->deadline);
    fetch->done(fetch->owner, &fetch->result);
    fetch_free(fetch);
}

static const struct fl_exchange_handler fetch_handler = {
    .on_head = on_head,
    .on_body = on_body,
    .on_end = on_end,
    .on_close = on_close,
};

static void on_deadline(struct fl_timer *timer)
{
    struct fl_fetch *fetch = FL_CONTAINER_OF(timer, struct fl_fetch, deadline);
    give_up(fetch, FL_ETIMEOUT);
}

static void open_exchange(struct fl_fetch *fetch, bool fresh)
{
    const struct fl_fetch_request *request = &fetch->request;
    fetch->x = fl_web_pool_open(fetch->pool, &request->target, fresh, &fetch_handler, fetch);
    struct fl_head head = {
        .method = request->method,
        .scheme = request->target.tls != NULL ? FL_BYTES("https") : FL_BYTES("http"),
        .target = request->path,
        .authority = request->authority,
        .body = fetch->body.bytes > 0 ? FL_BODY_LENGTH : FL_BODY_NONE,
        .content_length = fetch->body.bytes,
        .arena = fl_exchange_arena(fetch->x),
    };
    fl_fields_add(&head.fields, head.arena, FL_BYTES("host"), request->authority);
    for (uint32_t i = 0; i < request->field_count; i++)
        fl_fields_add(&head.fields, head.arena, request->fields[i].name, request->fields[i].value);
    fl_exchange_send_head(fetch->x, &head, fetch->body.bytes == 0);
    if (fetch->body.bytes == 0)
        return;
    for (uint32_t i = 0; i < fetch->body.count; i++)
        fl_exchange_send_body(fetch->x, fl_slice_ref(fl_chain_at(&fetch->body, i)));
    fl_exchange_send_end(fetch->x, NULL);
}

static void copy_request(struct fl_fetch *fetch, const struct fl_fetch_request *request)
{
    struct fl_arena *arena = &fetch->arena;
    struct fl_field *fields =
        fl_arena_calloc(arena, (size_t)request->field_count + 1, sizeof(*fields));
    fetch->request = *request;
    fetch->request.method = fl_arena_copy(arena, request->method);
    fetch->request.path = fl_arena_copy(arena, request->path);
    fetch->request.authority = fl_arena_copy(arena, request->authority);
    for (uint32_t i = 0; i < request->field_count; i++) {
        fields[i].name = fl_arena_copy(arena, request->fields[i].name);
        fields[i].value = fl_arena_copy(arena, request->fields[i].value);
    }
    fetch->request.fields = fields;
    fetch->request.body = NULL;
    if (request->target.server_name != NULL)
        fetch->request.target.server_name =
            fl_arena_cstr(arena, fl_bytes_of(request->target.server_name));
    if (request->body != NULL)
        fl_chain_ref_range(&fetch->body, request->body, 0, request->body->bytes);
}

struct fl_fetch *fl_fetch_start(struct fl_web_pool *pool, struct fl_loop *loop,
                                const struct fl_fetch_request *request,
                                void (*done)(void *owner, const struct fl_fetch_result *result),
                                void *owner)
{
    struct fl_fetch *fetch = fl_calloc(1, sizeof(*fetch));
    fetch->loop = loop;
    fetch->pool = pool;
    fetch->done = done;
    fetch->owner = owner;
    fl_arena_init(&fetch->arena, 0);
    copy_request(fetch, request);
    fl_timer_init(&fetch->deadline, on_deadline);
    fl_loop_timer_start(loop, &fetch->deadline, request->timeout_ms);
    open_exchange(fetch, false);
    return fetch;
}

void fl_fetch_cancel(struct fl_fetch *fetch)
{
    if (fetch == NULL)
        return;
    fetch->is_cancelled = true;
    fl_loop_timer_stop(fetch->loop, &fetch->deadline);
    /* The memory goes with on_close, which the abort brings. */
    fl_exchange_abort(fetch->x, H2_CANCEL);
}
