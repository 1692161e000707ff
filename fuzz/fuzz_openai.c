/* SPDX-License-Identifier: Apache-2.0 */
/* What is read from requests and responses. The first byte: bits 0-1 choose what to do with the
 * rest. A request is header lines `name: value` up to an empty line, then the body; a response body
 * is scanned for usage whole and cut. */
#include <assert.h>
#include <stdint.h>

#include "base/error.h"
#include "base/rng.h"
#include "openai/request.h"
#include "openai/usage.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_view(const struct fl_openai_request *r, const struct fl_openai_options *options)
{
    assert(r->metadata_count <= FL_OPENAI_METADATA_MAX_ENTRIES);
    assert((r->prompt_form == FL_OPENAI_PROMPT_NONE) == fl_bytes_is_absent(r->prompt));
    assert((r->namespace_source == FL_OPENAI_NAMESPACE_NONE) ==
           fl_bytes_is_absent(r->cache_namespace));
    assert(r->rank == FL_OPENAI_RANK_UNSET || r->has_worker);
    assert(!r->has_prefill_worker || options->is_disaggregated);
    assert(fl_openai_priority_jump_s(r) >= 0);
}

static void read_request(struct fl_bytes text, const struct fl_openai_options *options)
{
    struct fl_arena arena = {0};
    struct fl_fields fields = {0};
    struct fl_openai_request r;
    struct fl_bytes line;

    while (fl_bytes_next(&text, '\n', &line) && line.n > 0) {
        size_t colon = fl_bytes_index(line, ':');
        fl_fields_add(&fields, &arena, fl_bytes_head(line, colon), fl_bytes_skip(line, colon + 1));
    }
    const struct fl_openai_path *path =
        fl_openai_path_find(fl_fields_get(&fields, FL_BYTES("path")));
    fl_openai_request_init(&r);
    int rc = path->is_parsed && !fl_bytes_is_absent(text)
                 ? fl_openai_request_read(&r, path, text, options, &arena)
                 : 0;
    assert(rc == 0 || rc == FL_EBAD_BODY || rc == FL_EBAD_HINT);
    if (rc == 0)
        rc = fl_openai_request_override(&r, &fields, options, &arena);
    assert(rc == 0 || rc == FL_EBAD_BODY || rc == FL_EBAD_HINT || rc == FL_EMETADATA_LARGE);
    if (rc == 0)
        check_view(&r, options);
    fl_arena_fini(&arena);
}

static bool scan_usage(struct fl_usage *usage, struct fl_bytes text, bool is_sse, uint64_t seed,
                       size_t longest)
{
    struct fl_usage_scan scan;
    struct fl_rng rng;

    fl_rng_seed(&rng, seed);
    fl_usage_scan_init(&scan, is_sse);
    while (text.n > 0) {
        size_t n = longest == 0 ? text.n : 1 + (size_t)fl_rng_below(&rng, longest);
        fl_usage_scan_feed(&scan, fl_bytes_head(text, n));
        text = fl_bytes_skip(text, n);
    }
    bool found = fl_usage_scan_finish(&scan, usage);
    fl_usage_scan_fini(&scan);
    return found;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct fl_bytes text = {data + 1, size - 1};
    if ((data[0] & 3) < 2) {
        const struct fl_openai_options options = {.is_disaggregated = (data[0] & 1) != 0,
                                                  .ignore_nvext = (data[0] & 4) != 0};
        read_request(text, &options);
        return 0;
    }
    bool is_sse = (data[0] & 1) != 0;
    struct fl_usage whole = {0}, cut = {0};
    bool found = scan_usage(&whole, text, is_sse, 0, 0);
    assert(scan_usage(&cut, text, is_sse, data[0], 7) == found);
    assert(whole.prompt_tokens == cut.prompt_tokens &&
           whole.completion_tokens == cut.completion_tokens &&
           whole.total_tokens == cut.total_tokens && whole.cached_tokens == cut.cached_tokens);
    return 0;
}
