/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "unit/extproc/caller_call.h"

/* ---- header mutations ---- */

/* gateway.md 9.4 */
static void header_mutations(void **state)
{
    (void)state;
#define SET(n, v)                                                                                  \
    {                                                                                              \
        .name = FL_BYTES(n), .value = FL_BYTES(v)                                                  \
    }
    const struct {
        const char *why;
        struct fl_extproc_set sets[3];
        const char *removes[2];
        const char *result; /* NULL: unchanged */
        uint32_t dropped;
    } rows[] = {
        {"nothing", {{.action = 0}}, {NULL}, NULL, 0},
        {"a new header",
         {SET("x-new", "v")},
         {NULL},
         "X-A=1;Accept=a;accept=b;X-Empty=;x-new=v;",
         0},
        {"action 0 without append overwrites, in its place",
         {SET("x-a", "2")},
         {NULL},
         "X-A=2;Accept=a;accept=b;X-Empty=;",
         0},
        {"overwriting a repeated header leaves one",
         {SET("accept", "c")},
         {NULL},
         "X-A=1;Accept=c;X-Empty=;",
         0},
        {"an echo changes nothing", {SET("x-a", "1")}, {NULL}, NULL, 0},
        {"an echo of repeated lines changes nothing",
         {SET("accept", "a"), SET("accept", "b")},
         {NULL},
         NULL,
         0},
        {"repeated lines in another order are no echo",
         {SET("accept", "b"), SET("accept", "a")},
         {NULL},
         "X-A=1;Accept=a;X-Empty=;",
         0},
        {"append true adds a line",
         {{.name = FL_BYTES("X-a"), .value = FL_BYTES("2"), .has_append = true, .append = true}},
         {NULL},
         "X-A=1;Accept=a;accept=b;X-Empty=;X-a=2;",
         0},
        {"append false overwrites",
         {{.name = FL_BYTES("X-a"), .value = FL_BYTES("2"), .has_append = true}},
         {NULL},
         "X-A=2;Accept=a;accept=b;X-Empty=;",
         0},
        {"ADD_IF_ABSENT",
         {{.name = FL_BYTES("x-a"), .value = FL_BYTES("2"), .action = 1},
          {.name = FL_BYTES("x-b"), .value = FL_BYTES("2"), .action = 1}},
         {NULL},
         "X-A=1;Accept=a;accept=b;X-Empty=;x-b=2;",
         0},
        {"OVERWRITE_IF_EXISTS_OR_ADD",
         {{.name = FL_BYTES("x-a"), .value = FL_BYTES("2"), .action = 2},
          {.name = FL_BYTES("x-b"), .value = FL_BYTES("2"), .action = 2}},
         {NULL},
         "X-A=2;Accept=a;accept=b;X-Empty=;x-b=2;",
         0},
        {"OVERWRITE_IF_EXISTS",
         {{.name = FL_BYTES("x-a"), .value = FL_BYTES("2"), .action = 3},
          {.name = FL_BYTES("x-b"), .value = FL_BYTES("2"), .action = 3}},
         {NULL},
         "X-A=2;Accept=a;accept=b;X-Empty=;",
         0},
        {"an unknown action",
         {{.name = FL_BYTES("x-a"), .value = FL_BYTES("2"), .action = 9}},
         {NULL},
         NULL,
         1},
        {"an empty value is skipped", {SET("x-a", "")}, {NULL}, NULL, 0},
        {"unless it is to be kept",
         {{.name = FL_BYTES("x-a"), .value = FL_BYTES(""), .keep_empty = true}},
         {NULL},
         "X-A=;Accept=a;accept=b;X-Empty=;",
         0},
        {"removed, in any case", {{.action = 0}}, {"X-a", "ACCEPT"}, "X-Empty=;", 0},
        {"removing what is not there", {{.action = 0}}, {"x-none", NULL}, NULL, 0},
        {"removals come first: a name in both lists is set",
         {SET("x-a", "2")},
         {"x-a", NULL},
         "Accept=a;accept=b;X-Empty=;x-a=2;",
         0},
        {"pseudo headers, framing and host are ignored",
         {SET(":path", "/evil"), SET("content-length", "9"), SET("Host", "evil")},
         {"content-length", "host"},
         NULL,
         0},
        {"hop-by-hop names and the destination are ignored",
         {SET("transfer-encoding", "chunked"), SET("connection", "close"),
          SET("x-gateway-destination-endpoint", "1.1.1.1:1")},
         {NULL},
         NULL,
         0},
        {"invalid names and values are dropped, the rest goes on",
         {SET("a b", "v"), SET("x-b", "v\r\nx: y"), SET("x-c", "v")},
         {NULL},
         "X-A=1;Accept=a;accept=b;X-Empty=;x-c=v;",
         2},
        {"a NUL drops",
         {{.name = FL_BYTES("x-b"), .value = FL_BYTES("v"), .is_dropped = true}},
         {NULL},
         NULL,
         1},
        {"obs-text is a value like any other",
         {SET("x-b", "\xff")},
         {NULL},
         "X-A=1;Accept=a;accept=b;X-Empty=;x-b=\xff;",
         0},
    };
#undef SET

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_arena arena;
        struct fl_fields original = {0};
        struct fl_mutated mutated;
        struct fl_bytes removes[2];
        struct fl_extproc_mutation mutation = {
            .sets = (struct fl_extproc_set *)(uintptr_t)rows[i].sets, .removes = removes};
        char before[256], after[256], untouched[256];
        fl_arena_init(&arena, 0);
        fl_fields_add(&original, &arena, FL_BYTES("X-A"), FL_BYTES("1"));
        fl_fields_add(&original, &arena, FL_BYTES("Accept"), FL_BYTES("a"));
        fl_fields_add(&original, &arena, FL_BYTES("accept"), FL_BYTES("b"));
        fl_fields_add(&original, &arena, FL_BYTES("X-Empty"), FL_BYTES(""));
        describe_fields(&original, before, sizeof(before));
        while (mutation.set_count < 3 && rows[i].sets[mutation.set_count].name.p != NULL)
            mutation.set_count++;
        while (mutation.remove_count < 2 && rows[i].removes[mutation.remove_count] != NULL) {
            removes[mutation.remove_count] = fl_bytes_of(rows[i].removes[mutation.remove_count]);
            mutation.remove_count++;
        }
        fl_mutated_init(&mutated, &original, &arena);
        assert_int_equal(fl_mutated_apply(&mutated, &mutation), 0);
        describe_fields(&mutated.fields, after, sizeof(after));
        if (strcmp(after, rows[i].result != NULL ? rows[i].result : before) != 0 ||
            mutated.is_changed != (rows[i].result != NULL) || mutated.dropped != rows[i].dropped)
            fail_msg("row %zu: %s: %s", i, rows[i].why, after);
        /* FailOpen forwards the original. */
        describe_fields(&original, untouched, sizeof(untouched));
        assert_string_equal(untouched, before);
        size_t bytes = 0;
        for (uint32_t k = 0; k < mutated.fields.count; k++)
            bytes += mutated.fields.items[k].name.n + mutated.fields.items[k].value.n + 32;
        assert_int_equal(mutated.fields.bytes, bytes);
        fl_arena_fini(&arena);
    }
}

/* gateway.md 9.4: what llm-d's picker does */
static void a_picker_that_echoes_every_header_changes_nothing(void **state)
{
    (void)state;
    static const struct fl_field echo[] = {
        {{(const uint8_t *)":method", 7}, {(const uint8_t *)"POST", 4}},
        {{(const uint8_t *)"x-a", 3}, {(const uint8_t *)"1", 1}},
        {{(const uint8_t *)"accept", 6}, {(const uint8_t *)"a", 1}},
        {{(const uint8_t *)"accept", 6}, {(const uint8_t *)"b", 1}},
        {{(const uint8_t *)"x-empty", 7}, {(const uint8_t *)"", 0}},
        {{(const uint8_t *)"content-length", 14}, {(const uint8_t *)"7", 1}},
        {{(const uint8_t *)"x-gateway-destination-endpoint", 30},
         {(const uint8_t *)"1.1.1.1:1", 9}},
    };
    struct call call;

    open_call(&call, false, FL_CALLER_TAP_EDGES);
    hear(&call, &(struct fl_extproc_response_out){.kind = FL_EXTPROC_REQUEST_HEADERS,
                                                  .sets = echo,
                                                  .set_count = FL_ARRAY_LEN(echo)});
    assert_decided(&call, "1.1.1.1:1;");
    assert_false(call.caller.mutated.is_changed);
    close_call(&call);
}

static void mutations_are_capped(void **state)
{
    (void)state;
    static char value[FL_MUTATION_MAX_BYTES + 2];
    struct fl_field set = {FL_BYTES("x-b"), {0}};
    struct call call;

    memset(value, 'v', sizeof(value));
    for (size_t n = FL_MUTATION_MAX_BYTES - 4; n <= FL_MUTATION_MAX_BYTES - 2; n++) {
        open_call(&call, false, FL_CALLER_TAP_EDGES);
        set.value = fl_bytes(value, n); /* 3 bytes are the name */
        hear(&call, &(struct fl_extproc_response_out){
                        .kind = FL_EXTPROC_REQUEST_HEADERS, .sets = &set, .set_count = 1});
        bool fits = n + 3 <= FL_MUTATION_MAX_BYTES;
        assert_int_equal(call.caller.state, fits ? FL_CALLER_DECIDED : FL_CALLER_FAILED);
        assert_int_equal(call.caller.rc, fits ? 0 : FL_ELIMIT);
        close_call(&call);
    }
    for (uint32_t n = FL_MUTATION_MAX_FIELDS - 1; n <= FL_MUTATION_MAX_FIELDS + 1; n++) {
        struct fl_arena arena;
        struct fl_fields original = {0};
        struct fl_mutated mutated;
        struct fl_extproc_set *sets = calloc(n, sizeof(*sets));
        const struct fl_extproc_mutation mutation = {.sets = sets, .set_count = n};
        for (uint32_t i = 0; i < n; i++)
            sets[i] = (struct fl_extproc_set){
                .name = FL_BYTES("a"), .value = FL_BYTES("b"), .has_append = true, .append = true};
        fl_arena_init(&arena, 0);
        fl_mutated_init(&mutated, &original, &arena);
        assert_int_equal(fl_mutated_apply(&mutated, &mutation),
                         n <= FL_MUTATION_MAX_FIELDS ? 0 : FL_ELIMIT);
        fl_arena_fini(&arena);
        free(sets);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_mutations),
        cmocka_unit_test(a_picker_that_echoes_every_header_changes_nothing),
        cmocka_unit_test(mutations_are_capped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
