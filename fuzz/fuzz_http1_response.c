/* SPDX-License-Identifier: Apache-2.0 */
/* Responses, cut as the first byte says, against the same bytes fed whole; see
 * fuzz_http1_request.c. */
#include "http1_compare.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void strip(const struct fl_head *head)
{
    struct fl_fields copy = head->fields;
    struct fl_field *items = fl_calloc(copy.count + 1, sizeof(*items));
    if (copy.count > 0)
        memcpy(items, head->fields.items, copy.count * sizeof(*items));
    copy.items = items;
    fl_fields_strip_hop_by_hop(&copy);
    for (uint32_t i = 0; i < copy.count; i++) {
        if (fl_http_is_hop_by_hop(copy.items[i].name))
            abort();
    }
    fl_free(items);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    compare_cuts(FL_HTTP1_RESPONSES, data, size, strip);
    return 0;
}
