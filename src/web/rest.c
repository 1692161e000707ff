/* SPDX-License-Identifier: Apache-2.0 */
#include "web/rest.h"

#include <string.h>

#include "base/alloc.h"

#define ALLOW_MAX 64 /* bytes of an Allow value: all our methods fit */

/* A request whose body is being gathered; lives until its exchange closes. */
struct intake {
    struct fl_rest_request request;
    const struct fl_rest *rest;
    const struct fl_rest_route *route;
    struct fl_buf body;
    bool is_refused, is_handled;
};

static void drop_slash(struct fl_bytes *path)
{
    if (path->n > 1 && path->p[path->n - 1] == '/')
        path->n--;
}

static bool matches(struct fl_bytes pattern, struct fl_bytes path, struct fl_arena *arena,
                    struct fl_bytes *params)
{
    struct fl_bytes want, got;
    size_t count = 0;
    drop_slash(&path);
    drop_slash(&pattern);
    for (;;) {
        bool has_want = fl_bytes_next(&pattern, '/', &want);
        bool has_got = fl_bytes_next(&path, '/', &got);
        if (!has_want || !has_got)
            return has_want == has_got;
        if (want.n > 0 && want.p[0] == '{') {
            if (got.n == 0 || count == FL_REST_PARAMS_MAX ||
                fl_percent_decode(arena, got, &params[count++]) < 0)
                return false;
        } else if (!fl_bytes_eq(want, got)) {
            return false;
        }
    }
}

static void refuse(struct intake *intake, int status, const char *allow)
{
    struct fl_exchange *x = intake->request.x;
    struct fl_fields extra = {0};
    intake->is_refused = true;
    intake->is_handled = true;
    if (allow != NULL)
        fl_fields_add_copy(&extra, fl_exchange_arena(x), FL_BYTES("allow"), fl_bytes_of(allow));
    if (intake->rest->on_error != NULL)
        intake->rest->on_error(&intake->request, status, &extra);
    else
        fl_exchange_respond(x, status, "text/plain", fl_bytes_of(fl_http_reason(status)), &extra);
}

static void find_route(struct intake *intake)
{
    char allow[ALLOW_MAX] = "";
    for (const struct fl_rest_route *route = intake->rest->routes; route->method != NULL; route++) {
        if (!matches(fl_bytes_of(route->pattern), intake->request.path,
                     fl_exchange_arena(intake->request.x), intake->request.params))
            continue;
        if (fl_bytes_eq(intake->request.head->method, fl_bytes_of(route->method))) {
            intake->route = route;
            return;
        }
        size_t used = strlen(allow);
        if (strstr(allow, route->method) == NULL &&
            used + strlen(route->method) + 3 < sizeof(allow)) {
            memcpy(allow + used, used > 0 ? ", " : "", used > 0 ? 2 : 0);
            memcpy(allow + used + (used > 0 ? 2 : 0), route->method, strlen(route->method) + 1);
        }
    }
    if (allow[0] != '\0')
        refuse(intake, 405, allow);
    else
        refuse(intake, 404, NULL);
}

static void handle(struct intake *intake)
{
    intake->request.body = fl_buf_bytes(&intake->body);
    intake->is_handled = true;
    if (intake->rest->before == NULL || intake->rest->before(&intake->request, intake->route))
        intake->route->handle(&intake->request);
}

static void on_head(void *owner, struct fl_exchange *x, struct fl_head *head, bool is_end)
{
    struct intake *intake = owner;
    intake->request.head = head;
    fl_target_split(head->target, &intake->request.path, &intake->request.query);
    find_route(intake);
    if (intake->is_refused)
        return;
    if (head->expect_continue)
        fl_exchange_send_informational(x, 100, NULL);
    if (is_end)
        handle(intake);
}

static void on_body(void *owner, struct fl_exchange *x, struct fl_slice slice)
{
    struct intake *intake = owner;
    if (!intake->is_refused && fl_buf_append(&intake->body, fl_slice_bytes(slice)) < 0) {
        fl_exchange_close_after(x);
        refuse(intake, 413, NULL);
    }
    fl_exchange_consume(x, slice.n);
    fl_slice_unref(&slice);
}

static void on_end(void *owner, struct fl_exchange *x, const struct fl_fields *trailers)
{
    struct intake *intake = owner;
    (void)x;
    (void)trailers;
    if (!intake->is_refused)
        handle(intake);
}

static void on_close(void *owner, struct fl_exchange *x, int rc)
{
    struct intake *intake = owner;
    (void)x;
    if (rc < 0 && intake->is_handled && !intake->is_refused && intake->route->cancel != NULL)
        intake->route->cancel(&intake->request);
    fl_buf_fini(&intake->body);
    fl_free(intake);
}

static const struct fl_exchange_handler intake_handler = {
    .on_head = on_head,
    .on_body = on_body,
    .on_end = on_end,
    .on_close = on_close,
};

void fl_rest_on_request(void *rest, struct fl_exchange *x)
{
    struct intake *intake = fl_calloc(1, sizeof(*intake));
    intake->rest = rest;
    intake->request.x = x;
    intake->request.service = intake->rest->owner;
    fl_buf_init(&intake->body, intake->rest->max_body_bytes);
    fl_exchange_set_handler(x, &intake_handler, intake);
}

void fl_rest_json(struct fl_exchange *x, int status, struct fl_bytes body)
{
    fl_exchange_respond(x, status, "application/json", body, NULL);
}

struct fl_bytes fl_rest_query(struct fl_bytes query, const char *key, struct fl_arena *arena)
{
    struct fl_bytes item, value = {0};
    while (!fl_bytes_is_absent(query) && fl_bytes_next(&query, '&', &item)) {
        size_t at = fl_bytes_index(item, '=');
        if (fl_bytes_eq(fl_bytes_head(item, at), fl_bytes_of(key)) &&
            fl_percent_decode(arena, fl_bytes_skip(item, at + 1), &value) == 0)
            return value;
    }
    return (struct fl_bytes){0};
}
