/* SPDX-License-Identifier: Apache-2.0 */
/* Field lists: order, repetition, removal, and what hop-by-hop means. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "http/message.h"

#define MAX_FIELDS 24

static void fill(struct fl_fields *fields, struct fl_arena *arena, const char *const *pairs)
{
    for (; pairs[0] != NULL; pairs += 2)
        fl_fields_add(fields, arena, fl_bytes_of(pairs[0]), fl_bytes_of(pairs[1]));
}

static size_t bytes_of(const struct fl_fields *fields)
{
    size_t n = 0;
    for (uint32_t i = 0; i < fields->count; i++)
        n += fields->items[i].name.n + fields->items[i].value.n + 32;
    return n;
}

static void expect_fields(const struct fl_fields *fields, const char *const *pairs, const char *why)
{
    uint32_t count = 0;
    for (; pairs[2 * count] != NULL; count++) {
        if (count >= fields->count ||
            !fl_bytes_eq(fields->items[count].name, fl_bytes_of(pairs[2 * count])) ||
            !fl_bytes_eq(fields->items[count].value, fl_bytes_of(pairs[2 * count + 1])))
            fail_msg("%s: field %u is not %s", why, count, pairs[2 * count]);
    }
    if (count != fields->count)
        fail_msg("%s: %u fields, expected %u", why, fields->count, count);
    if (fields->bytes != bytes_of(fields))
        fail_msg("%s: bytes %zu", why, fields->bytes);
}

/* gateway.md 7.1: order kept, duplicate lines kept as separate lines */
static void lines_keep_their_order_and_are_found_without_case(void **state)
{
    (void)state;
    static const char *const pairs[] = {"A", "1", "b", "2", "a", "3", NULL};
    struct fl_arena arena = {0};
    struct fl_fields fields = {0};
    fill(&fields, &arena, pairs);
    expect_fields(&fields, pairs, "as added");
    assert_true(fl_bytes_eq(fl_fields_get(&fields, FL_BYTES("a")), FL_BYTES("1")));
    assert_true(fl_bytes_eq(fl_fields_get(&fields, FL_BYTES("B")), FL_BYTES("2")));
    assert_true(fl_bytes_is_absent(fl_fields_get(&fields, FL_BYTES("c"))));
    assert_null(fl_fields_find(&fields, FL_BYTES("aa")));
    fl_arena_fini(&arena);
}

static void set_replaces_every_line_by_one_at_the_end(void **state)
{
    (void)state;
    static const char *const pairs[] = {"A", "1", "b", "2", "a", "3", NULL};
    static const char *const after[] = {"b", "2", "A", "9", NULL};
    static const char *const without[] = {"b", "2", NULL};
    struct fl_arena arena = {0};
    struct fl_fields fields = {0};
    fill(&fields, &arena, pairs);
    fl_fields_set(&fields, &arena, FL_BYTES("A"), FL_BYTES("9"));
    expect_fields(&fields, after, "set");
    assert_int_equal(fl_fields_remove(&fields, FL_BYTES("a")), 1);
    assert_int_equal(fl_fields_remove(&fields, FL_BYTES("a")), 0);
    expect_fields(&fields, without, "removed");
    fl_arena_fini(&arena);
}

static void many_lines_survive_growth(void **state)
{
    (void)state;
    struct fl_arena arena = {0};
    struct fl_fields fields = {0};
    for (int i = 0; i < 100; i++) {
        char name[16];
        snprintf(name, sizeof(name), "n%d", i);
        fl_fields_add_copy(&fields, &arena, fl_bytes_of(name), FL_BYTES("v"));
    }
    for (int i = 0; i < 100; i++) {
        char name[16];
        snprintf(name, sizeof(name), "n%d", i);
        assert_true(fl_bytes_eq(fields.items[i].name, fl_bytes_of(name)));
    }
    assert_int_equal(fields.bytes, bytes_of(&fields));
    fl_arena_fini(&arena);
}

static void a_token_is_looked_for_in_every_line(void **state)
{
    (void)state;
    static const char *const pairs[] = {
        "TE", "gzip;q=1 ,\t Trailers", "te", "x,,y", "Connection", "", NULL};
    static const struct {
        const char *name, *token;
        bool has;
    } rows[] = {
        {"te", "trailers", true}, {"te", "gzip", false}, {"te", "gzip;q=1", true},
        {"TE", "Y", true},        {"te", "z", false},    {"connection", "close", false},
        {"none", "x", false},
    };
    struct fl_arena arena = {0};
    struct fl_fields fields = {0};
    fill(&fields, &arena, pairs);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        if (fl_fields_has_token(&fields, fl_bytes_of(rows[i].name), fl_bytes_of(rows[i].token)) !=
            rows[i].has)
            fail_msg("%s: %s", rows[i].name, rows[i].token);
    }
    fl_arena_fini(&arena);
}

/* gateway.md 7.1 hop-by-hop; section 16 case 65 */
static void hop_by_hop_fields_and_what_connection_lists_are_removed(void **state)
{
    (void)state;
    static const struct {
        const char *why;
        const char *before[MAX_FIELDS], *after[MAX_FIELDS];
    } rows[] = {
        {"the fixed names",
         {"a",
          "1",
          "Connection",
          "close",
          "Keep-Alive",
          "x",
          "Proxy-Connection",
          "x",
          "TE",
          "x",
          "Transfer-Encoding",
          "x",
          "Trailer",
          "x",
          "Upgrade",
          "x",
          "HTTP2-Settings",
          "x",
          "b",
          "2",
          NULL},
         {"a", "1", "b", "2", NULL}},
        {"authentication of proxies",
         {"Proxy-Authenticate", "x", "proxy-authorization", "x", "authorization", "y", NULL},
         {"authorization", "y", NULL}},
        {"listed, before and behind, repeated",
         {"x-1", "a", "Connection", "X-1 , x-2", "X-2", "b", "x-3", "c", "x-1", "d", NULL},
         {"x-3", "c", NULL}},
        {"several Connection lines",
         {"Connection", "a", "a", "1", "connection", "b", "b", "2", "CONNECTION", "c", "c", "3",
          NULL},
         {NULL}},
        {"Connection that lists itself does not hide another",
         {"Connection", "connection", "x", "1", "Connection", "x", NULL},
         {NULL}},
        {"empty items", {"Connection", ", ,", "a", "1", NULL}, {"a", "1", NULL}},
        {"nothing to do", {"a", "1", NULL}, {"a", "1", NULL}},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_arena arena = {0};
        struct fl_fields fields = {0};
        fill(&fields, &arena, rows[i].before);
        fl_fields_strip_hop_by_hop(&fields);
        expect_fields(&fields, rows[i].after, rows[i].why);
        fl_arena_fini(&arena);
    }
}

/* gateway.md 7.1 trailers */
static void trailers_that_frame_route_or_authorise_are_dropped(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool dropped;
    } rows[] = {
        {"Content-Length", true},
        {"transfer-encoding", true},
        {"HOST", true},
        {"trailer", true},
        {"te", true},
        {"Authorization", true},
        {"set-cookie", true},
        {"x-gateway-destination-endpoint", true},
        {"X-Gateway-", true},
        {"x-gateway", false},
        {"x-checksum", false},
        {"grpc-status", false},
        {"connection", true},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        if (fl_http_is_dropped_trailer(fl_bytes_of(rows[i].name)) != rows[i].dropped)
            fail_msg("%s", rows[i].name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_keep_their_order_and_are_found_without_case),
        cmocka_unit_test(set_replaces_every_line_by_one_at_the_end),
        cmocka_unit_test(many_lines_survive_growth),
        cmocka_unit_test(a_token_is_looked_for_in_every_line),
        cmocka_unit_test(hop_by_hop_fields_and_what_connection_lists_are_removed),
        cmocka_unit_test(trailers_that_frame_route_or_authorise_are_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
