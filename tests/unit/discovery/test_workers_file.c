/* SPDX-License-Identifier: Apache-2.0 */
#include "discovery/workers_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "discovery/worker_id.h"

static const struct fl_workers_defaults plain = {.block_size = 16};

/* What was complained of: the last sentence of each kind, and how many. */
struct complaints {
    int bad, unknown;
    char last_bad[1024], last_unknown[1024];
};

static void complain(void *owner, bool is_bad, const char *sentence)
{
    struct complaints *c = owner;
    if (is_bad)
        c->bad++;
    else
        c->unknown++;
    snprintf(is_bad ? c->last_bad : c->last_unknown, sizeof(c->last_bad), "%s", sentence);
}

static int read_text(struct fl_worker_set *set, const char *text, struct complaints *c,
                     struct fl_error *err)
{
    *c = (struct complaints){0};
    *set = (struct fl_worker_set){0};
    return fl_workers_file_read(set, "F", fl_bytes_of(text), &plain, complain, c, err);
}

static void assert_bytes(struct fl_bytes bytes, const char *text)
{
    if (!fl_bytes_eq(bytes, fl_bytes_of(text)))
        fail_msg("\"%.*s\" is not \"%s\"", FL_FMT(bytes), text);
}

/* epp.md 14.7 (the example: YAML, defaults, bare endpoint, events from the default port) */
static void the_yaml_of_the_page_reads_as_it_says(void **state)
{
    (void)state;
    static const char text[] =
        "version: 1\n"
        "defaults: {model: m, block_size: 16, max_num_batched_tokens: 8192}\n"
        "workers:\n"
        "- {name: vllm-0, host: 10.0.0.5, port: 8000, kv_events_endpoint: "
        "\"tcp://10.0.0.5:5557\", replay_endpoint: \"tcp://10.0.0.5:5558\"}\n"
        "- {name: vllm-1, endpoint: \"10.0.0.6:8000\", total_kv_blocks: 20000, lora_names: [sql], "
        "taints: [zone-b]}\n"
        "- {endpoint: \"[fd00::7]:8000\"}          # bare endpoint\n"
        "peers:\n"
        "- {sync: \"tcp://10.0.1.2:9092\", dump: \"http://10.0.1.2:9093\"}\n";
    const struct fl_workers_defaults defaults = {.model = FL_BYTES("m"), .kv_event_port = 5557};
    struct fl_worker_set set = {0};
    struct complaints c = {0};
    struct fl_error err = {0};

    assert_int_equal(fl_workers_file_read(&set, "F", FL_BYTES(text), &defaults, complain, &c, &err),
                     0);
    assert_int_equal(set.count, 3);
    assert_int_equal(set.bad, 0);
    assert_int_equal(c.unknown, 0);
    assert_bytes(set.items[0].name, "vllm-0");
    assert_bytes(set.items[0].authority, "10.0.0.5:8000");
    assert_bytes(set.items[0].kv_events, "tcp://10.0.0.5:5557");
    assert_bytes(set.items[0].replay, "tcp://10.0.0.5:5558");
    assert_int_equal(set.items[0].block_size, 16);
    assert_int_equal(set.items[0].max_num_batched_tokens, 8192);
    assert_true(set.items[0].is_ready);
    assert_true(set.items[0].worker_id == fl_worker_id(FL_BYTES("vllm-0")));
    assert_int_equal(set.items[1].total_kv_blocks, 20000);
    assert_int_equal(set.items[1].lora_count, 1);
    assert_bytes(set.items[1].lora_names[0], "sql");
    assert_bytes(set.items[1].taints[0], "zone-b");
    assert_bytes(set.items[1].kv_events, "tcp://10.0.0.6:5557");
    assert_bytes(set.items[2].authority, "[fd00::7]:8000");
    assert_bytes(set.items[2].kv_events, "tcp://[fd00::7]:5557");
    assert_bytes(set.items[2].model, "m");
    assert_true(set.items[2].worker_id == fl_worker_id(FL_BYTES("[fd00::7]:8000")));
    fl_worker_set_fini(&set);
    fl_worker_set_fini(&set);
}

/* epp.md 14.7 (the members of a worker, each rule once) */
static void entries_that_are_taken(void **state)
{
    (void)state;
    static const struct {
        const char *why, *entry, *authority;
    } rows[] = {
        {"endpoint", "{\"endpoint\":\"10.0.0.1:80\"}", "10.0.0.1:80"},
        {"http:// in front is tolerated", "{\"endpoint\":\"http://10.0.0.1:80\"}", "10.0.0.1:80"},
        {"v6 is written canonically", "{\"endpoint\":\"[FD00:0::7]:80\"}", "[fd00::7]:80"},
        {"host and port", "{\"host\":\"10.0.0.1\",\"port\":80}", "10.0.0.1:80"},
        {"port as digits in a string", "{\"host\":\"10.0.0.1\",\"port\":\"80\"}", "10.0.0.1:80"},
        {"address is an alias of host", "{\"address\":\"10.0.0.1\",\"port\":80}", "10.0.0.1:80"},
        {"a bare v6 host", "{\"host\":\"fd00::7\",\"port\":80}", "[fd00::7]:80"},
        {"one entry in ports", "{\"host\":\"10.0.0.1\",\"ports\":[80]}", "10.0.0.1:80"},
        {"port at its lower edge", "{\"host\":\"10.0.0.1\",\"port\":1}", "10.0.0.1:1"},
        {"port at its upper edge", "{\"host\":\"10.0.0.1\",\"port\":65535}", "10.0.0.1:65535"},
        {"null is absent", "{\"endpoint\":\"10.0.0.1:80\",\"name\":null}", "10.0.0.1:80"},
        {"data_parallel_size 1", "{\"endpoint\":\"10.0.0.1:80\",\"data_parallel_size\":1}",
         "10.0.0.1:80"},
        {"not ready is still a worker", "{\"endpoint\":\"10.0.0.1:80\",\"ready\":false}",
         "10.0.0.1:80"},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        char text[512];
        struct fl_worker_set set;
        struct complaints c;
        struct fl_error err = {0};
        snprintf(text, sizeof(text), "{\"workers\":[%s]}", rows[i].entry);
        if (read_text(&set, text, &c, &err) != 0 || set.count != 1 || c.bad + c.unknown != 0)
            fail_msg("row %zu: %s: %s%s", i, rows[i].why, err.text, c.last_bad);
        assert_bytes(set.items[0].authority, rows[i].authority);
        fl_worker_set_fini(&set);
    }
}

/* epp.md 14.7 (bad entry: skipped, one line with file, place, name and rule; the rest is served) */
static void a_bad_entry_is_skipped_in_words_and_the_rest_is_served(void **state)
{
    (void)state;
    static const struct {
        const char *entry, *sentence;
    } rows[] = {
        {"{\"name\":\"b\",\"host\":\"10.0.0.2\",\"port\":70000}",
         "workers file F: workers[1] (b): port 70000 is not 1..65535"},
        {"{\"name\":\"b\",\"host\":\"10.0.0.2\",\"port\":0}",
         "workers file F: workers[1] (b): port 0 is not 1..65535"},
        {"{\"name\":\"b\"}", "has neither an endpoint nor host and port"},
        {"{\"host\":\"10.0.0.2\"}", "workers[1] (no name): has neither"},
        {"{\"name\":\"b\",\"endpoint\":\"10.0.0.2:80\",\"port\":80}", "excludes host and port"},
        {"{\"name\":\"b\",\"host\":\"engine.local\",\"port\":80}", "workers[1] (b): "},
        {"{\"name\":\"b\",\"host\":\"10.0.0.2\",\"ports\":[80,81]}", "cannot be addressed yet"},
        {"{\"name\":\"b\",\"host\":\"10.0.0.2\",\"ports\":[]}", "ports"},
        {"{\"name\":\"a\",\"endpoint\":\"10.0.0.2:80\"}", "name a stands there twice"},
        {"{\"name\":\"b\",\"endpoint\":\"10.0.0.1:80\"}",
         "endpoint 10.0.0.1:80 stands there twice"},
        {"{\"endpoint\":\"10.0.0.2:80\",\"block_size\":32}", "differs from 16"},
        {"{\"endpoint\":\"10.0.0.2:80\",\"block_size\":0}", "block_size 0 is not"},
        {"{\"endpoint\":\"10.0.0.2:80\",\"data_parallel_size\":2}",
         "data_parallel_size=2: ranks above 0 cannot be addressed yet; set 1, or run one endpoint "
         "per rank"},
        {"{\"endpoint\":\"10.0.0.2:80\",\"role\":\"boss\"}", "role boss is not known"},
        {"{\"endpoint\":\"10.0.0.2:80\",\"ready\":\"yes\"}", "ready is neither true nor false"},
        {"{\"endpoint\":\"10.0.0.2:80\",\"lora_names\":\"sql\"}", "lora_names is no list"},
        {"{\"endpoint\":\"10.0.0.2:80\",\"taints\":[1]}", "taints holds something"},
        {"{\"endpoint\":\"10.0.0.2:80\",\"kv_events_endpoint\":\"10.0.0.2:5557\"}",
         "is no tcp:// or ipc:// address"},
        {"7", "workers[1] (no name): is no map"},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        char text[1024];
        struct fl_worker_set set;
        struct complaints c;
        struct fl_error err = {0};
        snprintf(text, sizeof(text),
                 "{\"workers\":[{\"name\":\"a\",\"endpoint\":\"10.0.0.1:80\"},%s,"
                 "{\"name\":\"z\",\"endpoint\":\"10.0.0.9:80\"}]}",
                 rows[i].entry);
        assert_int_equal(read_text(&set, text, &c, &err), 0);
        if (set.count != 2 || set.bad != 1 || c.bad != 1 ||
            strstr(c.last_bad, rows[i].sentence) == NULL ||
            strncmp(c.last_bad, "workers file F: workers[1] (", 28) != 0)
            fail_msg("row %zu: %u taken, %u bad: %s", i, set.count, set.bad, c.last_bad);
        assert_bytes(set.items[0].name, "a");
        assert_bytes(set.items[1].name, "z");
        fl_worker_set_fini(&set);
    }
}

/* epp.md 14.7 (a known worker whose new entry is bad keeps its record: it must be nameable) */
static void a_bad_entry_tells_its_label(void **state)
{
    (void)state;
    struct fl_worker_set set;
    struct complaints c;
    struct fl_error err = {0};
    assert_int_equal(
        read_text(&set,
                  "{\"workers\":[{\"name\":\"b\",\"host\":\"10.0.0.2\",\"port\":70000},"
                  "{\"endpoint\":\"10.0.0.3:80\",\"role\":\"x\"},"
                  "{\"endpoint\":\"10.0.0.4:80\",\"block_size\":0},{}]}",
                  &c, &err),
        0);
    assert_int_equal(set.bad, 4);
    assert_bytes(set.bad_labels[0], "b");
    assert_bytes(set.bad_labels[1], "10.0.0.3:80");
    assert_bytes(set.bad_labels[2], "10.0.0.4:80");
    assert_int_equal(set.bad_labels[3].n, 0);
    fl_worker_set_fini(&set);
}

/* epp.md 14.7 (unknown member: one warning that names it, ignored) */
static void an_unknown_member_is_warned_of_and_ignored(void **state)
{
    (void)state;
    struct fl_worker_set set;
    struct complaints c;
    struct fl_error err = {0};
    assert_int_equal(
        read_text(&set, "{\"workers\":[{\"endpoint\":\"10.0.0.1:80\",\"modle\":\"m\"}]}", &c, &err),
        0);
    assert_int_equal(set.count, 1);
    assert_int_equal(c.unknown, 1);
    assert_non_null(strstr(c.last_unknown, "workers[0]: unknown member modle is ignored"));
    fl_worker_set_fini(&set);
}

/* epp.md 14.7 (defaults never give what belongs to one worker) */
static void defaults_give_no_address(void **state)
{
    (void)state;
    struct fl_worker_set set;
    struct complaints c;
    struct fl_error err = {0};
    assert_int_equal(read_text(&set,
                               "{\"defaults\":{\"host\":\"10.0.0.1\",\"port\":80,\"role\":"
                               "\"decode\"},\"workers\":[{\"name\":\"a\"},"
                               "{\"endpoint\":\"10.0.0.2:80\"},"
                               "{\"endpoint\":\"10.0.0.3:80\",\"role\":\"prefill\"}]}",
                               &c, &err),
                     0);
    assert_int_equal(set.count, 2);
    assert_int_equal(set.bad, 1);
    assert_int_equal(set.items[0].role, FL_WORKER_DECODE);
    assert_int_equal(set.items[1].role, FL_WORKER_PREFILL);
    fl_worker_set_fini(&set);
}

/* epp.md 14.7 (for an EPP the model must equal its own) */
static void another_model_is_a_bad_entry(void **state)
{
    (void)state;
    const struct fl_workers_defaults defaults = {.model = FL_BYTES("m"), .block_size = 16};
    struct fl_worker_set set = {0};
    struct complaints c = {0};
    struct fl_error err = {0};
    assert_int_equal(
        fl_workers_file_read(&set, "F",
                             FL_BYTES("workers:\n- {endpoint: \"10.0.0.1:80\", model: n}\n"
                                      "- {endpoint: \"10.0.0.2:80\", model_name: m}\n"),
                             &defaults, complain, &c, &err),
        0);
    assert_int_equal(set.count, 1);
    assert_non_null(strstr(c.last_bad, "model n is not m"));
    fl_worker_set_fini(&set);
}

/* epp.md 14.7 (what refuses the whole file) */
static void whole_files_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *why, *text;
    } rows[] = {
        {"version 2", "{\"version\":2,\"workers\":[]}"},
        {"version in words", "version: one\nworkers: []\n"},
        {"workers missing", "{\"version\":1}"},
        {"workers no list", "{\"workers\":{}}"},
        {"a list at the top", "[]"},
        {"defaults no map", "{\"defaults\":[],\"workers\":[]}"},
        {"JSON syntax", "{\"workers\":[}"},
        {"YAML syntax", "workers: [\n"},
        {"YAML anchor", "workers: &a []\n"},
        {"YAML alias", "workers: []\nx: *a\n"},
        {"two YAML documents", "workers: []\n---\nworkers: []\n"},
        {"empty", ""},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_worker_set set;
        struct complaints c;
        struct fl_error err = {0};
        int rc = read_text(&set, rows[i].text, &c, &err);
        if (rc != FL_ECONFIG || strncmp(err.text, "workers file F", 14) != 0)
            fail_msg("row %zu: %s: %d %s", i, rows[i].why, rc, err.text);
        assert_int_equal(set.count, 0);
        fl_worker_set_fini(&set);
    }
}

/* epp.md 14.7 (an empty list is valid; `endpoints` is an alias) */
static void an_empty_list_is_valid(void **state)
{
    (void)state;
    static const char *const texts[] = {"{\"workers\":[]}", "workers: []\n",
                                        "  \n {\"endpoints\":[]}"};
    for (size_t i = 0; i < FL_ARRAY_LEN(texts); i++) {
        struct fl_worker_set set;
        struct complaints c;
        struct fl_error err = {0};
        if (read_text(&set, texts[i], &c, &err) != 0)
            fail_msg("row %zu: %s", i, err.text);
        assert_int_equal(set.count, 0);
        fl_worker_set_fini(&set);
    }
}

/* A file of `count` small entries; the bytes written. */
static size_t write_workers(char *text, size_t room, uint32_t count)
{
    size_t at = (size_t)snprintf(text, room, "{\"workers\":[");
    for (uint32_t i = 0; i < count; i++)
        at += (size_t)snprintf(text + at, room - at, "%s{\"endpoint\":\"10.0.%u.%u:80\"}",
                               i > 0 ? "," : "", i / 256, i % 256);
    return at + (size_t)snprintf(text + at, room - at, "]}");
}

/* epp.md 14.7 (size <= 4 MiB, <= 4,096 workers) */
static void caps_at_and_above_their_edges(void **state)
{
    (void)state;
    struct fl_worker_set set;
    struct complaints c;
    struct fl_error err = {0};
    char *text = malloc(FL_WORKERS_FILE_MAX_BYTES + 2);
    assert_non_null(text);

    for (int extra = 0; extra <= 1; extra++) {
        size_t n = FL_WORKERS_FILE_MAX_BYTES + (size_t)extra;
        memset(text, ' ', n);
        memcpy(text, "{\"workers\":[]}", 14);
        text[n] = '\0';
        assert_int_equal(read_text(&set, text, &c, &err), extra == 0 ? 0 : FL_ECONFIG);
        fl_worker_set_fini(&set);
    }
    for (int extra = 0; extra <= 1; extra++) {
        size_t at = write_workers(text, FL_WORKERS_FILE_MAX_BYTES,
                                  FL_WORKERS_FILE_MAX_WORKERS + (uint32_t)extra);
        assert_true(at < FL_WORKERS_FILE_MAX_BYTES);
        int rc = read_text(&set, text, &c, &err);
        assert_int_equal(rc, extra == 0 ? 0 : FL_ECONFIG);
        assert_int_equal(set.count, extra == 0 ? FL_WORKERS_FILE_MAX_WORKERS : 0);
        fl_worker_set_fini(&set);
    }
    free(text);
}

/* epp.md 14.7 (reload: unchanged entries are not touched, changed ones are upserted) */
static void equal_entries_are_equal_and_each_change_shows(void **state)
{
    (void)state;
    static const char base[] = "{\"workers\":[{\"name\":\"a\",\"endpoint\":\"10.0.0.1:80\"}]}";
    static const struct {
        const char *why, *members;
        bool eq;
    } rows[] = {
        {"the same", "\"endpoint\":\"10.0.0.1:80\"", true},
        {"the same by host and port", "\"host\":\"10.0.0.1\",\"port\":80", true},
        {"namespace is for logs", "\"endpoint\":\"10.0.0.1:80\",\"namespace\":\"n\"", true},
        {"address", "\"endpoint\":\"10.0.0.2:80\"", false},
        {"ready", "\"endpoint\":\"10.0.0.1:80\",\"ready\":false", false},
        {"instance", "\"endpoint\":\"10.0.0.1:80\",\"instance\":\"2\"", false},
        {"role", "\"endpoint\":\"10.0.0.1:80\",\"role\":\"decode\"", false},
        {"adapters", "\"endpoint\":\"10.0.0.1:80\",\"lora_names\":[\"x\"]", false},
        {"taints", "\"endpoint\":\"10.0.0.1:80\",\"taints\":[\"x\"]", false},
        {"events", "\"endpoint\":\"10.0.0.1:80\",\"kv_events_endpoint\":\"tcp://10.0.0.1:1\"",
         false},
        {"blocks", "\"endpoint\":\"10.0.0.1:80\",\"total_kv_blocks\":9", false},
        {"eagle", "\"endpoint\":\"10.0.0.1:80\",\"is_eagle\":true", false},
        {"backend", "\"endpoint\":\"10.0.0.1:80\",\"backend\":\"sglang\"", false},
    };
    struct fl_worker_set first, second;
    struct complaints c;
    struct fl_error err = {0};
    assert_int_equal(read_text(&first, base, &c, &err), 0);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        char text[512];
        snprintf(text, sizeof(text), "{\"workers\":[{\"name\":\"a\",%s}]}", rows[i].members);
        assert_int_equal(read_text(&second, text, &c, &err), 0);
        assert_int_equal(second.count, 1);
        if (fl_worker_spec_eq(&first.items[0], &second.items[0]) != rows[i].eq)
            fail_msg("row %zu: %s", i, rows[i].why);
        fl_worker_set_fini(&second);
    }
    fl_worker_set_fini(&first);
}

/* epp.md 14.7 (a known worker keeps its former record: it outlives the set it was read from) */
static void a_moved_entry_outlives_its_set(void **state)
{
    (void)state;
    struct fl_worker_set set;
    struct complaints c;
    struct fl_error err = {0};
    struct fl_arena arena;
    fl_arena_init(&arena, 0);
    assert_int_equal(read_text(&set,
                               "{\"workers\":[{\"name\":\"a\",\"endpoint\":\"10.0.0.1:80\","
                               "\"lora_names\":[\"x\",\"y\"],\"taints\":[\"t\"],\"model\":\"m\"}]}",
                               &c, &err),
                     0);
    struct fl_worker_spec spec = set.items[0];
    fl_worker_spec_move(&spec, &arena);
    fl_worker_set_fini(&set);
    assert_bytes(spec.name, "a");
    assert_bytes(spec.label, "a");
    assert_bytes(spec.ns, "default");
    assert_bytes(spec.model, "m");
    assert_bytes(spec.lora_names[1], "y");
    assert_bytes(spec.taints[0], "t");
    fl_arena_fini(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_yaml_of_the_page_reads_as_it_says),
        cmocka_unit_test(entries_that_are_taken),
        cmocka_unit_test(a_bad_entry_is_skipped_in_words_and_the_rest_is_served),
        cmocka_unit_test(a_bad_entry_tells_its_label),
        cmocka_unit_test(an_unknown_member_is_warned_of_and_ignored),
        cmocka_unit_test(defaults_give_no_address),
        cmocka_unit_test(another_model_is_a_bad_entry),
        cmocka_unit_test(whole_files_that_are_refused),
        cmocka_unit_test(an_empty_list_is_valid),
        cmocka_unit_test(caps_at_and_above_their_edges),
        cmocka_unit_test(equal_entries_are_equal_and_each_change_shows),
        cmocka_unit_test(a_moved_entry_outlives_its_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
