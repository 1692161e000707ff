/* SPDX-License-Identifier: Apache-2.0 */
#include "extproc/headers.h"

#include <assert.h>

#include "extproc/message.h"

enum {
    ALWAYS = 1,  /* in remove_headers of every header answer */
    CARRIED = 2, /* in remove_headers if the request carries it */
    SPOOFED = 4, /* a client's value never reaches the selection */
    STRIP = 8,   /* a gateway removes it before it asks */
};

struct row {
    struct fl_bytes name;
    unsigned flags;
};

#define ROW(text, bits)                                                                            \
    {                                                                                              \
        {(const uint8_t *)(text), sizeof(text) - 1}, bits                                          \
    }

/* epp.md 5.1 and 5.2 (the six names first), gaie.md 7, gateway.md 9.4 */
static const struct row rows[] = {
    ROW(FL_EXTPROC_PREFILL, ALWAYS | SPOOFED | STRIP),
    ROW("x-gateway-inference-fairness-id", ALWAYS),
    ROW("x-gateway-inference-objective", ALWAYS),
    ROW("x-gateway-model-name-rewrite", ALWAYS),
    ROW(FL_EXTPROC_SUBSET, ALWAYS | SPOOFED | STRIP),
    ROW(FL_EXTPROC_SERVED, ALWAYS | SPOOFED | STRIP),
    ROW(FL_EXTPROC_DESTINATION, SPOOFED | STRIP), /* always overwritten, so never removed */
    ROW("x-prefiller-url", CARRIED | SPOOFED | STRIP),
    ROW("x-data-parallel-host-port", CARRIED | SPOOFED | STRIP),
    ROW("x-encoder-hosts-ports", CARRIED | SPOOFED | STRIP),
    ROW("x-kv-cache-source-host-port", CARRIED | SPOOFED | STRIP),
    ROW("x-llm-d-inference-objective", CARRIED),
    ROW("x-llm-d-inference-fairness-id", CARRIED),
    ROW("x-llm-d-model-name-rewrite", CARRIED),
    ROW("x-slo-ttft-ms", CARRIED),
    ROW("x-slo-tpot-ms", CARRIED),
    ROW("x-llm-d-slo-ttft-ms", CARRIED),
    ROW("x-llm-d-slo-tpot-ms", CARRIED),
    ROW("x-llm-d-video-fps", CARRIED),
    ROW("x-llm-d-video-duration-seconds", CARRIED),
    ROW("x-llm-d-video-resolution", CARRIED),
    ROW("x-llm-d-request-dropped-reason", CARRIED),
};
static_assert(FL_ARRAY_LEN(rows) <= FL_EXTPROC_CONTROL_MAX, "a bit each");

uint32_t fl_extproc_control_carried(const struct fl_fields *fields)
{
    uint32_t carried = 0;

    for (uint32_t i = 0; i < fields->count; i++) {
        struct fl_bytes name = fields->items[i].name;
        if (name.n < 2 || (name.p[0] | 0x20) != 'x' || name.p[1] != '-')
            continue;
        for (size_t k = 0; k < FL_ARRAY_LEN(rows); k++) {
            if (fl_bytes_eq_nocase(name, rows[k].name))
                carried |= UINT32_C(1) << k;
        }
    }
    return carried;
}

static void drop_flagged(struct fl_fields *fields, unsigned flag)
{
    uint32_t carried = fl_extproc_control_carried(fields);

    for (size_t k = 0; k < FL_ARRAY_LEN(rows); k++) {
        if ((rows[k].flags & flag) != 0 && (carried >> k & 1) != 0)
            fl_fields_remove(fields, rows[k].name);
    }
}

void fl_extproc_drop_spoofed(struct fl_fields *fields)
{
    drop_flagged(fields, SPOOFED);
}

void fl_extproc_strip_client(struct fl_fields *fields)
{
    drop_flagged(fields, STRIP);
}

uint32_t fl_extproc_removes(uint32_t carried, bool sets_prefill,
                            struct fl_bytes out[FL_EXTPROC_CONTROL_MAX])
{
    uint32_t count = 0;

    for (size_t k = 0; k < FL_ARRAY_LEN(rows); k++) {
        /* Set and removed in one mutation has no order that every proxy shares. */
        if (k == 0 && sets_prefill)
            continue;
        if ((rows[k].flags & ALWAYS) != 0 ||
            ((rows[k].flags & CARRIED) != 0 && (carried >> k & 1) != 0))
            out[count++] = rows[k].name;
    }
    return count;
}

bool fl_extproc_is_request_id(struct fl_bytes id)
{
    if (id.n == 0 || id.n > 128)
        return false;
    for (size_t i = 0; i < id.n; i++) {
        uint8_t c = id.p[i];
        bool is_alnum = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!is_alnum && c != '.' && c != '_' && c != '-')
            return false;
    }
    return true;
}

static bool has_prefix_nocase(struct fl_bytes b, struct fl_bytes prefix)
{
    return b.n >= prefix.n && fl_bytes_eq_nocase(fl_bytes_head(b, prefix.n), prefix);
}

int fl_extproc_check_metadata(const struct fl_fields *fields, struct fl_bytes prefix)
{
    struct fl_bytes seen[FL_EXTPROC_METADATA_MAX];
    size_t count = 0, bytes = 0;

    for (uint32_t i = 0; i < fields->count; i++) {
        if (!has_prefix_nocase(fields->items[i].name, prefix))
            continue;
        struct fl_bytes key = fl_bytes_skip(fields->items[i].name, prefix.n);
        struct fl_bytes value = fl_bytes_trim(fields->items[i].value);
        bool is_known = fl_bytes_eq_nocase(key, FL_BYTES("authorization")) ||
                        has_prefix_nocase(value, FL_BYTES("bearer "));
        for (size_t k = 0; k < count && !is_known; k++)
            is_known = fl_bytes_eq_nocase(seen[k], key);
        if (is_known)
            continue;
        bytes += key.n + value.n;
        if (count >= FL_EXTPROC_METADATA_MAX || bytes > FL_EXTPROC_METADATA_MAX_BYTES)
            return FL_EMETADATA_LARGE;
        seen[count++] = key;
    }
    return 0;
}
