/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/sim/trace_file.h"

/* data/README.md: facts of both files, checked on every line */
static void the_shipped_traces_hold_what_their_page_says(void **state)
{
    static const struct {
        const char *name;
        size_t requests, blocks;
        uint32_t longest_input;
    } rows[] = {
        {"mooncake_conversation.jsonl.gz", 12031, 288500, 126195},
        {"mooncake_synthetic.jsonl.gz", 3993, 121877, 191378},
        {"mooncake_synthetic_head400.jsonl", 400, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_trace trace = {0};
        uint32_t longest = 0;
        read_trace(rows[i].name, &trace);
        assert_int_equal(trace.count, rows[i].requests);
        assert_int_equal(trace.block_tokens, 512);
        for (size_t r = 0; r < trace.count; r++)
            longest =
                trace.records[r].input_tokens > longest ? trace.records[r].input_tokens : longest;
        if (rows[i].blocks > 0) {
            assert_int_equal(trace.id_count, rows[i].blocks);
            assert_int_equal(longest, rows[i].longest_input);
        }
        fl_trace_fini(&trace);
    }
}

/* data/README.md: the reader accepts all three JSONL dialects */
static void three_dialects_are_read(void **state)
{
    static const struct {
        const char *why, *text;
        uint64_t second_at_us;
        uint32_t block_tokens, first_input;
    } rows[] = {
        {"Mooncake: milliseconds",
         "{\"timestamp\":0,\"input_length\":513,\"output_length\":1,\"hash_ids\":[1,2]}\n"
         "{\"timestamp\":3000,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n",
         3000000, 512, 513},
        {"Qwen: float seconds, 16-token ids, extra keys",
         "{\"chat_id\":1,\"parent_chat_id\":-1,\"timestamp\":0.0,\"input_length\":17,"
         "\"output_length\":5,\"type\":\"text\",\"turn\":1,\"hash_ids\":[1,2]}\r\n"
         "{\"chat_id\":2,\"parent_chat_id\":1,\"timestamp\":1.25,\"input_length\":16,"
         "\"output_length\":5,\"hash_ids\":[1]}",
         1250000, 16, 17},
        {"delay instead of timestamp, no input_length",
         "{\"output_length\":1,\"hash_ids\":[1,2]}\n"
         "\n{\"delay\":2.5,\"output_length\":1,\"hash_ids\":[1]}\n",
         2500, 512, 1024},
        {"ids above 2^53 survive",
         "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,"
         "\"hash_ids\":[18446744073709551615]}\n"
         "{\"timestamp\":1.5,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n",
         1500, 512, 1},
    };
    (void)state;
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_trace trace = {0};
        struct fl_error err = {0};
        if (fl_trace_parse(&trace, fl_bytes_of(rows[i].text), 0, &err) < 0)
            fail_msg("%s: %s", rows[i].why, err.text);
        if (trace.count != 2 || trace.records[1].at_us != rows[i].second_at_us ||
            trace.block_tokens != rows[i].block_tokens ||
            trace.records[0].input_tokens != rows[i].first_input)
            fail_msg("%s", rows[i].why);
        if (i == 3)
            assert_true(fl_trace_ids(&trace, &trace.records[0])[0] == UINT64_MAX);
        fl_trace_fini(&trace);
    }
}

static void a_bad_line_is_named_with_its_number(void **state)
{
    static const struct {
        const char *text, *sentence;
    } rows[] = {
        {"", "holds no request"},
        {"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n[]",
         "trace line 2: is no JSON object"},
        {"{\"timestamp\":0,\"input_length\":513,\"output_length\":1,\"hash_ids\":[1]}",
         "not one id for each block"},
        {"{\"timestamp\":5,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n"
         "{\"timestamp\":4,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}",
         "trace line 2: time goes backwards"},
        {"{\"timestamp\":0,\"input_length\":-1,\"output_length\":1,\"hash_ids\":[]}",
         "input_length"},
        {"{\"timestamp\":0,\"input_length\":1,\"hash_ids\":[1]}", "output_length is missing"},
        {"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1.5]}",
         "no unsigned integer"},
        {"{\"timestamp\":0,", "trace line 1"},
    };
    (void)state;
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_trace trace = {0};
        struct fl_error err = {0};
        int rc = fl_trace_parse(&trace, fl_bytes_of(rows[i].text), 0, &err);
        if (rc != FL_EPROTO || strstr(err.text, rows[i].sentence) == NULL)
            fail_msg("row %zu: rc %d, \"%s\"", i, rc, err.text);
        assert_null(trace.records);
    }
}

/* performance.md section 2, mc-conv-even: request q of k sharing a time gets t + gap * q / k */
static void spreading_fills_the_gap_to_the_next_tick(void **state)
{
    static const uint64_t expected[] = {0, 1000, 2000, 3000, 4500};
    const char *text = "{\"timestamp\":0,\"input_length\":0,\"output_length\":1,\"hash_ids\":[]}\n"
                       "{\"timestamp\":0,\"input_length\":0,\"output_length\":1,\"hash_ids\":[]}\n"
                       "{\"timestamp\":0,\"input_length\":0,\"output_length\":1,\"hash_ids\":[]}\n"
                       "{\"timestamp\":3,\"input_length\":0,\"output_length\":1,\"hash_ids\":[]}\n"
                       "{\"timestamp\":3,\"input_length\":0,\"output_length\":1,\"hash_ids\":[]}\n";
    struct fl_trace trace = {0};
    (void)state;
    assert_int_equal(fl_trace_parse(&trace, fl_bytes_of(text), 0, NULL), 0);
    fl_trace_spread(&trace, 3000);
    for (size_t i = 0; i < FL_ARRAY_LEN(expected); i++)
        assert_int_equal(trace.records[i].at_us, expected[i]);
    fl_trace_fini(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shipped_traces_hold_what_their_page_says),
        cmocka_unit_test(three_dialects_are_read),
        cmocka_unit_test(a_bad_line_is_named_with_its_number),
        cmocka_unit_test(spreading_fills_the_gap_to_the_next_tick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
