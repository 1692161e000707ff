/* SPDX-License-Identifier: Apache-2.0 */
#include "openai/usage.h"

#include <string.h>

#include "base/error.h"
#include "codec/json.h"

/* Places tried, from the end, when a unary body does not parse: text that looks like usage may
 * stand there over and over, each place costing up to FL_USAGE_TAIL. */
#define TAIL_TRIES 16

/* ---- the object ---- */

static void read_count(const struct fl_json_member *member, uint64_t *count)
{
    uint64_t n;

    /* The text is checked JSON: what is no plain integer leaves the count as it was. */
    if (member->type == FL_JSON_NUMBER && fl_bytes_to_u64(member->value, UINT64_MAX, &n))
        *count = n;
}

static int on_detail(void *owner, const struct fl_json_member *member)
{
    struct fl_usage *usage = owner;

    if (fl_json_raw_eq(member->key, FL_BYTES("cached_tokens")))
        read_count(member, &usage->cached_tokens);
    return 0;
}

static int on_usage_member(void *owner, const struct fl_json_member *member)
{
    struct fl_usage *usage = owner;
    const struct {
        struct fl_bytes key;
        uint64_t *count; /* NULL: an object with details of the prompt */
    } rows[] = {
        {FL_BYTES("prompt_tokens"), &usage->prompt_tokens},
        {FL_BYTES("input_tokens"), &usage->prompt_tokens},
        {FL_BYTES("completion_tokens"), &usage->completion_tokens},
        {FL_BYTES("output_tokens"), &usage->completion_tokens},
        {FL_BYTES("total_tokens"), &usage->total_tokens},
        {FL_BYTES("cache_read_input_tokens"), &usage->cached_tokens},
        {FL_BYTES("prompt_tokens_details"), NULL},
        {FL_BYTES("input_tokens_details"), NULL},
    };

    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        if (!fl_json_raw_eq(member->key, rows[i].key))
            continue;
        if (rows[i].count != NULL)
            read_count(member, rows[i].count);
        else if (member->type == FL_JSON_OBJECT)
            return fl_json_scan_members(member->value, on_detail, usage);
        return 0;
    }
    return 0;
}

/* ---- a whole JSON text ---- */

struct found {
    struct fl_bytes usage;    /* absent: none, or null */
    struct fl_bytes response; /* of the responses API, whose last event wraps the whole answer */
};

static int on_top_member(void *owner, const struct fl_json_member *member)
{
    struct found *found = owner;

    if (fl_json_raw_eq(member->key, FL_BYTES("usage")))
        found->usage = member->type == FL_JSON_OBJECT ? member->value : (struct fl_bytes){0};
    else if (member->type == FL_JSON_OBJECT && fl_json_raw_eq(member->key, FL_BYTES("response")))
        found->response = member->value;
    return 0;
}

/* FL_EPROTO and its like if the text does not parse, 0 without a usage object, 1 if *usage was set.
 */
static int read_whole(struct fl_bytes text, struct fl_usage *usage)
{
    struct found found = {0};
    int rc = fl_json_scan_members(text, on_top_member, &found);

    if (rc < 0)
        return rc;
    if (found.usage.p == NULL && found.response.p != NULL)
        rc = fl_json_scan_members(found.response, on_top_member, &found);
    if (rc < 0 || found.usage.p == NULL)
        return rc;
    *usage = (struct fl_usage){0};
    rc = fl_json_scan_members(found.usage, on_usage_member, usage);
    return rc < 0 ? rc : 1;
}

/* ---- a text whose head or middle is missing ---- */

/* The object that begins at text.p, up to its closing brace; absent if it does not end. */
static struct fl_bytes cut_object(struct fl_bytes text)
{
    uint32_t depth = 0;
    bool is_in_string = false;

    for (size_t i = 0; i < text.n; i++) {
        uint8_t c = text.p[i];
        if (is_in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                is_in_string = false;
        } else if (c == '"') {
            is_in_string = true;
        } else if (c == '{') {
            depth++;
        } else if (c == '}' && --depth == 0) {
            return fl_bytes_head(text, i + 1);
        }
    }
    return (struct fl_bytes){0};
}

/* What follows the member name at `text`: the object behind colon and blanks, or absent. */
static struct fl_bytes object_after_name(struct fl_bytes text)
{
    bool has_colon = false;

    for (size_t i = 0; i < text.n; i++) {
        uint8_t c = text.p[i];
        if (c == '{' && has_colon)
            return cut_object(fl_bytes_head(fl_bytes_skip(text, i), FL_USAGE_TAIL));
        if (c == ':' && !has_colon)
            has_colon = true;
        else if (c != ' ' && c != '\t' && c != '\r' && c != '\n')
            break;
    }
    return (struct fl_bytes){0};
}

/* The last object after a member name `usage`. */
static bool read_tail(struct fl_bytes text, struct fl_usage *usage)
{
    static const char name[] = "\"usage\"";
    const size_t n = sizeof(name) - 1;
    int tries = 0;

    if (text.n < n)
        return false;
    for (size_t at = text.n - n + 1; at-- > 0;) {
        if (text.p[at] != '"' || memcmp(text.p + at, name, n) != 0)
            continue;
        if (tries++ == TAIL_TRIES)
            break;
        struct fl_bytes object = object_after_name(fl_bytes_skip(text, at + n));
        struct fl_usage read = {0};
        if (object.p != NULL && fl_json_scan_members(object, on_usage_member, &read) == 0) {
            *usage = read;
            return true;
        }
    }
    return false;
}

/* ---- the scan ---- */

static int on_line(void *owner, enum fl_sse_line line, struct fl_bytes value)
{
    struct fl_usage_scan *scan = owner;

    if (line == FL_SSE_DONE)
        scan->is_done = true;
    if (line != FL_SSE_DATA)
        return 0;
    scan->events++;
    /* One line in hundreds has it; the others are spared the parse. */
    if (fl_bytes_find(value, FL_BYTES("usage")) < value.n && read_whole(value, &scan->usage) > 0)
        scan->has_usage = true;
    return 0;
}

void fl_usage_scan_init(struct fl_usage_scan *scan, bool is_sse)
{
    *scan = (struct fl_usage_scan){.is_sse = is_sse};
    fl_sse_init(&scan->sse, on_line, scan);
    fl_buf_init(&scan->unary, FL_USAGE_MAX_UNARY);
}

void fl_usage_scan_fini(struct fl_usage_scan *scan)
{
    fl_sse_fini(&scan->sse);
    fl_buf_fini(&scan->unary);
}

/* Keeps the end of a unary body that is too long to be kept whole. */
static void keep_tail(struct fl_usage_scan *scan, struct fl_bytes bytes)
{
    scan->is_cut = true;
    if (bytes.n >= FL_USAGE_TAIL) {
        fl_buf_clear(&scan->unary);
        bytes = fl_bytes_skip(bytes, bytes.n - FL_USAGE_TAIL);
    } else if (fl_buf_size(&scan->unary) > FL_USAGE_TAIL) {
        fl_buf_consume(&scan->unary, fl_buf_size(&scan->unary) - FL_USAGE_TAIL);
    }
    /* Without memory there is no usage, and nothing else is lost. */
    if (fl_buf_append(&scan->unary, bytes) < 0)
        fl_buf_clear(&scan->unary);
}

void fl_usage_scan_feed(struct fl_usage_scan *scan, struct fl_bytes bytes)
{
    if (scan->is_sse)
        fl_sse_feed(&scan->sse, bytes);
    else if (bytes.n > 0 && fl_buf_append(&scan->unary, bytes) < 0)
        keep_tail(scan, bytes);
}

bool fl_usage_scan_finish(struct fl_usage_scan *scan, struct fl_usage *usage)
{
    if (scan->is_sse) {
        fl_sse_end(&scan->sse);
    } else {
        struct fl_bytes text = fl_buf_bytes(&scan->unary);
        int found = scan->is_cut ? FL_EPROTO : read_whole(text, &scan->usage);
        scan->has_usage = found < 0 ? read_tail(text, &scan->usage) : found > 0;
        fl_buf_fini(&scan->unary);
    }
    *usage = scan->usage;
    return scan->has_usage;
}
