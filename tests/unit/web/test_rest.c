/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"
#include "web/rest.h"

struct service {
    struct fl_rest_request *waiting;
    int cancels;
    bool forbids;
};

static void show(struct fl_rest_request *request)
{
    char text[512];
    int n = snprintf(text, sizeof(text), "a=%.*s b=%.*s query=%.*s body=%.*s",
                     FL_FMT(request->params[0]), FL_FMT(request->params[1]), FL_FMT(request->query),
                     FL_FMT(request->body));
    fl_rest_json(request->x, 200, fl_bytes(text, (size_t)n));
}

static void wait_for_it(struct fl_rest_request *request)
{
    struct service *service = request->service;
    service->waiting = request;
}

static void stop_waiting(struct fl_rest_request *request)
{
    struct service *service = request->service;
    assert_ptr_equal(service->waiting, request);
    service->waiting = NULL;
    service->cancels++;
}

static bool before(struct fl_rest_request *request, const struct fl_rest_route *route)
{
    struct service *service = request->service;
    (void)route;
    if (service->forbids)
        fl_rest_json(request->x, 401, FL_BYTES("{}"));
    return !service->forbids;
}

static void on_error(struct fl_rest_request *request, int status, const struct fl_fields *extra)
{
    char text[64];
    int n = snprintf(text, sizeof(text), "{\"code\":%d}", status);
    fl_exchange_respond(request->x, status, "application/json", fl_bytes(text, (size_t)n), extra);
}

static const struct fl_rest_route routes[] = {
    {.method = "GET", .pattern = "/v1/thing", .handle = show},
    {.method = "POST", .pattern = "/v1/thing", .handle = show},
    {.method = "GET", .pattern = "/v1/of/{a}/port/{b}", .handle = show},
    {.method = "DELETE", .pattern = "/v1/of/{a}/port/{b}", .handle = show},
    {.method = "GET", .pattern = "/v1/wait", .handle = wait_for_it, .cancel = stop_waiting},
    {0},
};

static void rest_init(struct fixture *f, struct fl_rest *rest, struct service *service)
{
    memset(service, 0, sizeof(*service));
    *rest = (struct fl_rest){.routes = routes, .max_body_bytes = 20, .owner = service};
    fixture_init(f);
    f->server_config.on_request = fl_rest_on_request;
    f->server_config.owner = rest;
}

/* gateway.md 4.1: base path, percent-decoding once, one trailing "/", IPv6 in a segment, 404, 405
 * with Allow, 413 */
static void routes_are_found(void **state)
{
    (void)state;
    static const struct {
        const char *why, *request, *answer;
        bool closes;
    } rows[] = {
        {"plain", "GET /v1/thing HTTP/1.1\r\n", "a= b= query= body=", false},
        {"one trailing slash", "GET /v1/thing/ HTTP/1.1\r\n", "a= b=", false},
        {"two are another path", "GET /v1/thing// HTTP/1.1\r\n", "{\"code\":404}", false},
        {"case matters", "GET /V1/thing HTTP/1.1\r\n", "{\"code\":404}", false},
        {"a longer path", "GET /v1/thing/more HTTP/1.1\r\n", "{\"code\":404}", false},
        {"parameters", "GET /v1/of/x/port/80?q=1 HTTP/1.1\r\n", "a=x b=80 query=q=1 body=", false},
        {"decoded once", "GET /v1/of/a%20%2525/port/%2f HTTP/1.1\r\n", "a=a %25 b=/ query=", false},
        {"IPv6", "GET /v1/of/[2001:db8::1]/port/%5B::1%5D HTTP/1.1\r\n",
         "a=[2001:db8::1] b=[::1] query=", false},
        {"empty parameter", "GET /v1/of//port/1 HTTP/1.1\r\n", "{\"code\":404}", false},
        {"bad escape", "GET /v1/of/%zz/port/1 HTTP/1.1\r\n", "{\"code\":404}", false},
        {"other method", "PUT /v1/of/x/port/1 HTTP/1.1\r\n", "Allow: GET, DELETE\r\n", false},
        {"body", "POST /v1/thing HTTP/1.1\r\nContent-Length: 4\r\n", "body=data", false},
        {"body at the cap", "POST /v1/thing HTTP/1.1\r\nContent-Length: 20\r\n",
         "body=datadatadatadatadata", false},
        {"body above", "POST /v1/thing HTTP/1.1\r\nContent-Length: 21\r\n", "{\"code\":413}", true},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fixture f;
        struct fl_rest rest;
        struct service service;
        static struct raw raw;
        rest_init(&f, &rest, &service);
        rest.on_error = on_error;
        fixture_listen(&f, true);
        raw_connect(&raw, &f);
        raw_send(&f, &raw, rows[i].request);
        raw_send(&f, &raw, "Host: t\r\n\r\n");
        const char *length = strstr(rows[i].request, "Content-Length: ");
        if (length != NULL) {
            for (long k = strtol(length + 16, NULL, 10); k > 0; k -= 4)
                raw_send_n(&f, &raw, "data", (size_t)(k < 4 ? k : 4));
        }
        TURN_UNTIL(&f, raw_has(&raw, "\r\n\r\n") && (raw_has(&raw, "}") || raw_has(&raw, "body=")));
        /* Field names are ours to spell; compare without case there. */
        if (strcasestr(raw.in, rows[i].answer) == NULL)
            fail_msg("%s: %s", rows[i].why, raw.in);
        if (rows[i].closes)
            TURN_UNTIL(&f, raw_ended(&raw));
        raw_close(&raw);
        fixture_fini(&f);
    }
}

/* gateway.md 4.1: the media type of an answer is exactly application/json */
static void json_answers_say_so(void **state)
{
    (void)state;
    struct fixture f;
    struct fl_rest rest;
    struct service service;
    static struct raw raw;
    rest_init(&f, &rest, &service);
    rest.before = before;
    service.forbids = true;
    fixture_listen(&f, true);
    raw_connect(&raw, &f);
    raw_send(&f, &raw, "GET /v1/thing HTTP/1.1\r\nHost: t\r\n\r\n");
    TURN_UNTIL(&f, raw_has(&raw, "{}"));
    assert_non_null(strstr(raw.in, "HTTP/1.1 401 "));
    assert_non_null(strcasestr(raw.in, "content-type: application/json\r\n"));
    raw_close(&raw);
    fixture_fini(&f);
}

static void answers_may_come_later_or_never(void **state)
{
    (void)state;
    for (int leaves = 0; leaves < 2; leaves++) {
        struct fixture f;
        struct fl_rest rest;
        struct service service;
        static struct raw raw;
        rest_init(&f, &rest, &service);
        fixture_listen(&f, true);
        raw_connect(&raw, &f);
        raw_send(&f, &raw, "GET /v1/wait HTTP/1.1\r\nHost: t\r\n\r\n");
        TURN_UNTIL(&f, service.waiting != NULL);
        if (leaves) {
            raw_close(&raw);
            TURN_UNTIL(&f, service.cancels == 1);
        } else {
            fl_rest_json(service.waiting->x, 200, FL_BYTES("{\"late\":1}"));
            TURN_UNTIL(&f, raw_has(&raw, "late"));
            turn_some(&f);
            assert_int_equal(service.cancels, 0);
        }
        raw_close(&raw);
        fixture_fini(&f);
    }
}

static void query_values(void **state)
{
    (void)state;
    static const struct {
        const char *query, *key, *value;
    } rows[] = {
        {"a=1&b=2", "b", "2"},  {"a=1&b=2", "c", NULL}, {"a=%41+x", "a", "A+x"}, {"a", "a", ""},
        {"ab=1&a=2", "a", "2"}, {"", "a", NULL},        {NULL, "a", NULL},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_arena arena = {0};
        struct fl_bytes value = fl_rest_query(fl_bytes_of(rows[i].query), rows[i].key, &arena);
        if (!fl_bytes_eq(value, fl_bytes_of(rows[i].value)) ||
            fl_bytes_is_absent(value) != (rows[i].value == NULL))
            fail_msg("row %zu: %.*s", i, FL_FMT(value));
        fl_arena_fini(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routes_are_found),
        cmocka_unit_test(json_answers_say_so),
        cmocka_unit_test(answers_may_come_later_or_never),
        cmocka_unit_test(query_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
