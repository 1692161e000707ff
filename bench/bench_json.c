/* SPDX-License-Identifier: Apache-2.0 */
/* JSON on the bodies of dependencies.md 4.3: a 27 KB chat request of mixed ASCII and UTF-8 text, a
 * text of three-byte characters only, source code full of escapes, and 36 KB of 5,000 token ids.
 * Prints MB/s of each reader; the goals are 1,000 for text and 500 for ids. The last rows compare
 * skipping by 16 bytes with skipping by one in the same run. */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/buf.h"
#include "base/rng.h"
#include "codec/json.h"
#include "codec/json_scan.h"

#define ROUNDS_BYTES ((size_t)400 << 20) /* read per row */
#define IDS 5000

static uint32_t ids[IDS];

static double now_s(void)
{
    struct timespec t;
    /* Processor time: what else the machine does must not count. */
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void do_parse(struct fl_bytes text)
{
    struct fl_json doc = {0};
    int rc = fl_json_parse(&doc, text, NULL);
    assert(rc == 0);
    (void)rc;
    fl_json_fini(&doc);
}

static void do_check(struct fl_bytes text)
{
    int rc = fl_json_check(text);
    assert(rc == 0);
    (void)rc;
}

static int on_member(void *owner, const struct fl_json_member *member)
{
    size_t *bytes = owner;
    *bytes += member->value.n;
    return 0;
}

static void do_scan(struct fl_bytes text)
{
    size_t bytes = 0;
    int rc = fl_json_scan_members(text, on_member, &bytes);
    assert(rc == 0 && bytes > 0);
    (void)rc;
}

static void do_ids(struct fl_bytes text)
{
    int64_t n = fl_json_read_u32_array(text, ids, IDS);
    assert(n == IDS);
    (void)n;
}

static void skip_with(struct fl_bytes text,
                      const uint8_t *(*skip)(const uint8_t *, const uint8_t *))
{
    const uint8_t *p = text.p;
    const uint8_t *end = text.p + text.n;
    while (p < end) {
        p = skip(p, end);
        p += p < end;
    }
}

static void do_skip(struct fl_bytes text)
{
    skip_with(text, fl_json_skip_plain);
}

static void do_skip_scalar(struct fl_bytes text)
{
    skip_with(text, fl_json_skip_plain_scalar);
}

static void run(const char *name, struct fl_bytes text, void (*work)(struct fl_bytes))
{
    size_t rounds = ROUNDS_BYTES / text.n + 1;
    for (size_t i = 0; i < rounds / 10; i++)
        work(text);
    double started = now_s();
    for (size_t i = 0; i < rounds; i++)
        work(text);
    double spent = now_s() - started;
    printf("%s %.0f MB/s\n", name, (double)(rounds * text.n) / spent / 1e6);
    printf("%s_us %.2f us\n", name, spent / (double)rounds * 1e6);
}

/* A chat of `turns` messages whose text repeats `piece`. */
static void write_chat(struct fl_buf *out, int turns, int pieces, const char *piece)
{
    struct fl_json_writer w;
    fl_json_writer_init(&w, out);
    fl_json_write_object(&w);
    fl_json_write_key(&w, "model");
    fl_json_write_cstr(&w, "meta-llama/Llama-3.1-8B-Instruct");
    fl_json_write_key(&w, "messages");
    fl_json_write_array(&w);
    for (int i = 0; i < turns; i++) {
        struct fl_buf text = {0};
        for (int k = 0; k < pieces; k++)
            fl_buf_append(&text, fl_bytes_of(piece));
        fl_json_write_object(&w);
        fl_json_write_key(&w, "role");
        fl_json_write_cstr(&w, i % 2 == 0 ? "user" : "assistant");
        fl_json_write_key(&w, "content");
        fl_json_write_string(&w, fl_buf_bytes(&text));
        fl_json_write_object_end(&w);
        fl_buf_fini(&text);
    }
    fl_json_write_array_end(&w);
    fl_json_write_key(&w, "stream");
    fl_json_write_bool(&w, true);
    fl_json_write_key(&w, "max_tokens");
    fl_json_write_u64(&w, 512);
    fl_json_write_object_end(&w);
    int rc = fl_json_writer_end(&w);
    assert(rc == 0);
    (void)rc;
}

int main(void)
{
    struct fl_buf mixed = {0}, plain = {0}, wide = {0}, code = {0}, array = {0};
    struct fl_rng rng;

    write_chat(&mixed, 12, 9,
               "The quick brown fox jumps over the lazy dog while the engineer measures how long a "
               "prefix of this request stays cached; gr\xc3\xbc\xc3\x9f"
               "e aus K\xc3\xb6ln, "
               "\xe6\x9d\xb1\xe4\xba\xac\xe3\x81\xae\xe5\xa4\xa9\xe6\xb0\x97 and a line.\n"
               "Another sentence of plain text follows here to fill the paragraph up.");
    write_chat(
        &plain, 12, 20,
        "Plain text of the kind most prompts are made of, where nothing stops the scan for long.");
    write_chat(&wide, 12, 100, "\xe4\xba\xac\xe3\x81\xae\xe5\xa4\xa9\xe6\xb0\x97\xe6\x9d\xb1");
    write_chat(&code, 12, 50, "    if (x == \"y\") {\n\treturn z[i];\n    }\n");
    fl_rng_seed(&rng, 1);
    fl_buf_append(&array, FL_BYTES("["));
    for (int i = 0; i < IDS; i++)
        fl_buf_printf(&array, "%s%u", i == 0 ? "" : ", ", (unsigned)fl_rng_below(&rng, 128000));
    fl_buf_append(&array, FL_BYTES("]"));

    const struct {
        const char *name;
        struct fl_bytes text;
        void (*work)(struct fl_bytes);
    } rows[] = {
        {"chat_parse", fl_buf_bytes(&mixed), do_parse},
        {"chat_check", fl_buf_bytes(&mixed), do_check},
        {"chat_scan", fl_buf_bytes(&mixed), do_scan},
        {"wide_scan", fl_buf_bytes(&wide), do_scan},
        {"code_scan", fl_buf_bytes(&code), do_scan},
        {"code_parse", fl_buf_bytes(&code), do_parse},
        {"ids_read_u32", fl_buf_bytes(&array), do_ids},
        {"ids_parse", fl_buf_bytes(&array), do_parse},
        {"ids_check", fl_buf_bytes(&array), do_check},
        {"skip_sse2", fl_buf_bytes(&plain), do_skip},
        {"skip_scalar", fl_buf_bytes(&plain), do_skip_scalar},
    };
    printf("chat_bytes %zu bytes\nids_bytes %zu bytes\n", fl_buf_size(&mixed), fl_buf_size(&array));
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++)
        run(rows[i].name, rows[i].text, rows[i].work);
    fl_buf_fini(&mixed);
    fl_buf_fini(&plain);
    fl_buf_fini(&wide);
    fl_buf_fini(&code);
    fl_buf_fini(&array);
    return 0;
}
