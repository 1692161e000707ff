/* SPDX-License-Identifier: Apache-2.0 */
/* URLs, authorities, targets, percent escapes. */
#include <stdlib.h>

#include "http/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_url(struct fl_bytes text)
{
    struct fl_url url;
    struct fl_error err = {0};
    if (fl_url_parse(text, &url, &err) < 0) {
        if (err.text[0] == 0)
            abort();
        return;
    }
    if (url.host.n == 0 || url.port == 0 || url.path.n == 0 || url.path.p[0] != '/')
        abort();
}

static void check_escapes(struct fl_bytes text)
{
    struct fl_arena arena = {0};
    struct fl_bytes out;
    if (fl_percent_decode(&arena, text, &out) == 0 &&
        (out.n > text.n || fl_bytes_index(out, 0) < out.n))
        abort();
    fl_arena_fini(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fl_bytes text = fl_bytes(data, size);
    struct fl_bytes path, query;
    fl_http_is_authority(text);
    fl_target_split(text, &path, &query);
    if (path.n + query.n > size)
        abort();
    check_url(text);
    check_escapes(text);
    return 0;
}
