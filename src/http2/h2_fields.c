/* SPDX-License-Identifier: Apache-2.0 */
#include "http2/h2_fields.h"

#include <string.h>

#include "base/alloc.h"

void fl_h2_nvs_init(struct fl_h2_nvs *nvs)
{
    nvs->items = nvs->inline_items;
    nvs->count = 0;
    nvs->cap = FL_H2_NV_INLINE;
}

void fl_h2_nvs_fini(struct fl_h2_nvs *nvs)
{
    if (nvs->items != nvs->inline_items)
        fl_free(nvs->items);
    nvs->items = NULL;
}

static void add(struct fl_h2_nvs *nvs, struct fl_bytes name, struct fl_bytes value)
{
    if (nvs->count == nvs->cap) {
        nghttp2_nv *old = nvs->items;
        bool was_inline = old == nvs->inline_items;
        nvs->cap *= 2;
        nvs->items = fl_realloc(was_inline ? NULL : old, nvs->cap, sizeof(*nvs->items));
        if (was_inline)
            memcpy(nvs->items, old, nvs->count * sizeof(*old));
    }
    /* The library reads only; its type predates const. */
    nvs->items[nvs->count++] = (nghttp2_nv){
        .name = (uint8_t *)(uintptr_t)name.p,
        .value = (uint8_t *)(uintptr_t)value.p,
        .namelen = name.n,
        .valuelen = value.n,
    };
}

static bool has_upper(struct fl_bytes name)
{
    for (size_t i = 0; i < name.n; i++)
        if (name.p[i] >= 'A' && name.p[i] <= 'Z')
            return true;
    return false;
}

static struct fl_bytes lowered(struct fl_arena *arena, struct fl_bytes name)
{
    if (!has_upper(name))
        return name;
    uint8_t *out = fl_arena_alloc(arena, name.n);
    for (size_t i = 0; i < name.n; i++) {
        uint8_t byte = name.p[i];
        out[i] = byte >= 'A' && byte <= 'Z' ? (uint8_t)(byte + 32) : byte;
    }
    return fl_bytes(out, name.n);
}

/* RFC 9113 8.2.2; host became :authority, the length is ours to say. */
static bool is_left_out(const struct fl_field *field)
{
    static const struct fl_bytes names[] = {
        {(const uint8_t *)"connection", 10},
        {(const uint8_t *)"keep-alive", 10},
        {(const uint8_t *)"transfer-encoding", 17},
        {(const uint8_t *)"proxy-connection", 16},
        {(const uint8_t *)"upgrade", 7},
        {(const uint8_t *)"host", 4},
        {(const uint8_t *)"content-length", 14},
        {(const uint8_t *)"http2-settings", 14},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(names); i++)
        if (names[i].n == field->name.n && fl_bytes_eq_nocase(names[i], field->name))
            return true;
    return field->name.n == 2 && fl_bytes_eq_nocase(field->name, FL_BYTES("te")) &&
           !fl_bytes_eq_nocase(fl_bytes_trim(field->value), FL_BYTES("trailers"));
}

int fl_h2_nvs_add_fields(struct fl_h2_nvs *nvs, struct fl_arena *arena,
                         const struct fl_fields *fields)
{
    for (uint32_t i = 0; i < fields->count; i++) {
        const struct fl_field *field = &fields->items[i];
        if (is_left_out(field))
            continue;
        if (!fl_http_is_token(field->name) || !fl_http_is_value(field->value))
            return FL_EPROTO;
        add(nvs, lowered(arena, field->name), field->value);
    }
    return 0;
}

static void add_length(struct fl_h2_nvs *nvs, uint64_t length)
{
    size_t at = sizeof(nvs->digits);
    do {
        nvs->digits[--at] = (uint8_t)('0' + length % 10);
        length /= 10;
    } while (length > 0);
    add(nvs, FL_BYTES("content-length"), fl_bytes(nvs->digits + at, sizeof(nvs->digits) - at));
}

int fl_h2_nvs_add_request(struct fl_h2_nvs *nvs, struct fl_arena *arena, const struct fl_head *head)
{
    if (!fl_http_is_token(head->method) || head->target.n == 0 || !fl_http_is_value(head->target) ||
        !fl_http_is_value(head->authority))
        return FL_EPROTO;
    add(nvs, FL_BYTES(":method"), head->method);
    add(nvs, FL_BYTES(":scheme"), head->scheme.n > 0 ? head->scheme : FL_BYTES("http"));
    if (head->authority.n > 0)
        add(nvs, FL_BYTES(":authority"), head->authority);
    add(nvs, FL_BYTES(":path"), head->target);
    if (head->body == FL_BODY_LENGTH)
        add_length(nvs, head->content_length);
    return fl_h2_nvs_add_fields(nvs, arena, &head->fields);
}

int fl_h2_nvs_add_response(struct fl_h2_nvs *nvs, struct fl_arena *arena,
                           const struct fl_head *head)
{
    if (head->status < 100 || head->status > 599)
        return FL_EPROTO;
    nvs->status[0] = (uint8_t)('0' + head->status / 100);
    nvs->status[1] = (uint8_t)('0' + head->status / 10 % 10);
    nvs->status[2] = (uint8_t)('0' + head->status % 10);
    add(nvs, FL_BYTES(":status"), fl_bytes(nvs->status, 3));
    /* An answer without a body may still tell its length: to HEAD, and 304. */
    bool tells_length =
        head->body == FL_BODY_LENGTH || (head->body == FL_BODY_NONE && head->content_length > 0 &&
                                         head->content_length != UINT64_MAX);
    if (tells_length && head->status >= 200 && head->status != 204)
        add_length(nvs, head->content_length);
    return fl_h2_nvs_add_fields(nvs, arena, &head->fields);
}

/* ---- reading ---- */

void fl_h2_head_set_pseudo(struct fl_head *head, struct fl_bytes name, struct fl_bytes value)
{
    /* Which ones may occur, and how often, has been checked by the library. */
    if (fl_bytes_eq(name, FL_BYTES(":method")))
        head->method = value;
    else if (fl_bytes_eq(name, FL_BYTES(":scheme")))
        head->scheme = value;
    else if (fl_bytes_eq(name, FL_BYTES(":authority")))
        head->authority = value;
    else if (fl_bytes_eq(name, FL_BYTES(":path")))
        head->target = value;
    else if (fl_bytes_eq(name, FL_BYTES(":status"))) {
        uint64_t status;
        if (fl_bytes_to_u64(value, 999, &status))
            head->status = (uint16_t)status;
    }
}

static void read_length(struct fl_head *head)
{
    uint64_t length;

    if (fl_bytes_to_u64(fl_fields_get(&head->fields, FL_BYTES("content-length")), UINT64_MAX - 1,
                        &length))
        head->content_length = length;
}

/* A client may split its cookies over several lines (RFC 9113 8.2.3); who reads or forwards them as
 * HTTP/1.1 expects one. */
static void join_cookies(struct fl_head *head)
{
    size_t n = 0;
    uint32_t lines = 0;

    for (uint32_t i = 0; i < head->fields.count; i++) {
        if (fl_bytes_eq(head->fields.items[i].name, FL_BYTES("cookie"))) {
            n += head->fields.items[i].value.n + 2;
            lines++;
        }
    }
    if (lines < 2)
        return;
    uint8_t *joined = fl_arena_alloc(head->arena, n);
    size_t at = 0;
    for (uint32_t i = 0; i < head->fields.count; i++) {
        const struct fl_field *field = &head->fields.items[i];
        if (!fl_bytes_eq(field->name, FL_BYTES("cookie")))
            continue;
        if (at > 0) {
            joined[at++] = ';';
            joined[at++] = ' ';
        }
        if (field->value.n > 0)
            memcpy(joined + at, field->value.p, field->value.n);
        at += field->value.n;
    }
    fl_fields_set(&head->fields, head->arena, FL_BYTES("cookie"), fl_bytes(joined, at));
}

int fl_h2_head_finish_request(struct fl_head *head)
{
    struct fl_bytes host = fl_fields_get(&head->fields, FL_BYTES("host"));

    if (fl_bytes_eq(head->method, FL_BYTES("CONNECT")))
        return 501;
    if (!fl_bytes_is_absent(host)) {
        if (!fl_bytes_is_absent(head->authority) && !fl_bytes_eq_nocase(host, head->authority))
            return 400; /* RFC 9113 8.3.1; two hosts are how requests are smuggled */
        head->authority = host;
        if (fl_fields_remove(&head->fields, FL_BYTES("host")) > 1)
            return 400;
    }
    if (fl_bytes_index(head->target, '#') < head->target.n)
        return 400; /* gateway.md 7.3 */
    join_cookies(head);
    read_length(head);
    return 0;
}

void fl_h2_head_finish_response(struct fl_head *head)
{
    read_length(head);
}
