/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tokenizer/answer.h"

/* epp.md 9.2: both shapes for both endpoints, other members skipped, several prompts: the longest
 * routes, the sum is booked */
static void ids_are_found_in_every_shape(void **state)
{
    static const struct {
        const char *why, *text;
        enum fl_tokenizer_protocol protocol;
        size_t count;
        uint64_t total;
        uint32_t first;
    } rows[] = {
        {"chat",
         "{\"request_id\":\"chatcmpl-1\",\"token_ids\":[151644,872,198,6023],"
         "\"features\":null,\"model\":\"m\"}",
         FL_TOKENIZER_VLLM_RENDER, 4, 4, 151644},
        {"completions: a list of one",
         " \n[{\"request_id\":\"cmpl-1\",\"token_ids\":[14990,1879],\"features\":null}] \n",
         FL_TOKENIZER_VLLM_RENDER, 2, 2, 14990},
        {"several prompts", "[{\"token_ids\":[1]},{\"token_ids\":[7,8,9]},{\"token_ids\":[5,6]}]",
         FL_TOKENIZER_VLLM_RENDER, 3, 6, 7},
        {"only the top level counts",
         "{\"sampling_params\":{\"token_ids\":[9]},\"token_ids\":[1,2],\"x\":[{\"token_ids\":3}]}",
         FL_TOKENIZER_VLLM_RENDER, 2, 2, 1},
        {"empty ids are allowed", "{\"token_ids\":[]}", FL_TOKENIZER_VLLM_RENDER, 0, 0, 0},
        {"the largest id", "{\"token_ids\":[4294967295]}", FL_TOKENIZER_VLLM_RENDER, 1, 1,
         UINT32_MAX},
        {"sglang", "{\"rid\":\"r\",\"input_ids\":[3, 4],\"stream\":false,\"token_ids\":[1]}",
         FL_TOKENIZER_SGLANG_RENDERER, 2, 2, 3},
        {"the last of two wins", "{\"token_ids\":[1],\"token_ids\":[2,3]}",
         FL_TOKENIZER_VLLM_RENDER, 2, 2, 2},
    };
    (void)state;
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_tokens tokens = {0};
        struct fl_error err = {0};
        if (fl_tokenizer_read_answer(rows[i].protocol, fl_bytes_of(rows[i].text), &tokens, &err) <
            0)
            fail_msg("%s: %s", rows[i].why, err.text);
        if (tokens.count != rows[i].count || tokens.total != rows[i].total ||
            (rows[i].count > 0 && tokens.ids[0] != rows[i].first))
            fail_msg("%s", rows[i].why);
        fl_tokens_fini(&tokens);
    }
}

/* epp.md 9.3 */
static void anything_else_is_an_error_of_the_service(void **state)
{
    static const struct {
        const char *why, *text;
    } rows[] = {
        {"no JSON", "{\"token_ids\": [1, 2,"},
        {"trailing garbage", "{\"token_ids\":[1]} x"},
        {"trailing garbage behind a list", "[{\"token_ids\":[1]}] x"},
        {"empty answer", ""},
        {"absent", "{\"ids\":[1]}"},
        {"absent in a list", "[{\"ids\":[1]}]"},
        {"no list", "{\"token_ids\":7}"},
        {"null", "{\"token_ids\":null}"},
        {"a fraction", "{\"token_ids\":[1,2.5]}"},
        {"an exponent", "{\"token_ids\":[1e2]}"},
        {"negative", "{\"token_ids\":[-1]}"},
        {"one too large", "{\"token_ids\":[4294967296]}"},
        {"a string", "{\"token_ids\":[\"1\"]}"},
        {"nested", "{\"token_ids\":[[1]]}"},
        {"empty list", "[]"},
        {"list of numbers", "[1,2]"},
        {"a number", "7"},
        {"second object bad", "[{\"token_ids\":[1]},{\"token_ids\":[-1]}]"},
        {"two values", "{\"token_ids\":[1]}{\"token_ids\":[1]}"},
        {"brackets that are no list", "[{\"token_ids\":[1]},]"},
    };
    (void)state;
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_tokens tokens = {0};
        struct fl_error err = {0};
        int rc = fl_tokenizer_read_answer(FL_TOKENIZER_VLLM_RENDER, fl_bytes_of(rows[i].text),
                                          &tokens, &err);
        if (rc != FL_ETOKENIZER || err.text[0] == '\0' || tokens.ids != NULL)
            fail_msg("%s: rc %d", rows[i].why, rc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_found_in_every_shape),
        cmocka_unit_test(anything_else_is_an_error_of_the_service),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
