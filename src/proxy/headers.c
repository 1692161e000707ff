/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/headers.h"

#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "extproc/headers.h"

/* "1.2.3.4" or "::1": an address as X-Forwarded-For carries it, without port and brackets. */
static struct fl_bytes ip_text(struct fl_arena *arena, const struct fl_addr *addr)
{
    char text[FL_ADDR_TEXT];
    fl_addr_format(addr, text);
    struct fl_bytes all = fl_bytes_of(text);
    if (all.n > 0 && all.p[0] == '[') {
        all = fl_bytes_skip(all, 1);
        return fl_arena_copy(arena, fl_bytes_head(all, fl_bytes_index(all, ']')));
    }
    return fl_arena_copy(arena, fl_bytes_head(all, fl_bytes_index(all, ':')));
}

/* All lines of `name`, then `last`, as one comma list. */
static struct fl_bytes joined(struct fl_head *head, struct fl_bytes name, struct fl_bytes last)
{
    size_t n = last.n;
    for (uint32_t i = 0; i < head->fields.count; i++) {
        if (fl_bytes_eq_nocase(head->fields.items[i].name, name))
            n += head->fields.items[i].value.n + 2;
    }
    uint8_t *text = fl_arena_alloc(head->arena, n + 1);
    size_t at = 0;
    for (uint32_t i = 0; i < head->fields.count; i++) {
        const struct fl_field *field = &head->fields.items[i];
        if (!fl_bytes_eq_nocase(field->name, name) || field->value.n == 0)
            continue;
        memcpy(text + at, field->value.p, field->value.n);
        at += field->value.n;
        memcpy(text + at, ", ", 2);
        at += 2;
    }
    if (last.n > 0)
        memcpy(text + at, last.p, last.n);
    return fl_bytes(text, at + last.n);
}

static void set_forwarded(struct fl_head *head, const struct fl_proxy_forwarding *how,
                          struct fl_bytes name, struct fl_bytes value)
{
    if (how->trusts_client && fl_fields_find(&head->fields, name) != NULL)
        return;
    fl_fields_set(&head->fields, head->arena, name, value);
}

static void add_forwarded(struct fl_head *head, const struct fl_proxy_forwarding *how)
{
    char port[8];

    /* A client must not be able to forge where it comes from, hence overwritten by default. */
    struct fl_bytes client = ip_text(head->arena, how->peer);
    if (how->trusts_client)
        client = joined(head, FL_BYTES("X-Forwarded-For"), client);
    fl_fields_set(&head->fields, head->arena, FL_BYTES("X-Forwarded-For"), client);
    set_forwarded(head, how, FL_BYTES("X-Forwarded-Proto"),
                  how->is_tls ? FL_BYTES("https") : FL_BYTES("http"));
    int n = snprintf(port, sizeof(port), "%u", fl_addr_port(how->local));
    set_forwarded(head, how, FL_BYTES("X-Forwarded-Port"),
                  fl_arena_copy(head->arena, fl_bytes(port, (size_t)n)));
    if (!fl_bytes_is_absent(head->authority))
        set_forwarded(head, how, FL_BYTES("X-Forwarded-Host"), head->authority);
}

static struct fl_bytes request_id(struct fl_head *head)
{
    struct fl_bytes name = FL_BYTES("X-Request-Id");
    struct fl_bytes id = fl_fields_get(&head->fields, name);
    if (!fl_bytes_is_absent(id) && fl_extproc_is_request_id(id))
        return id;

    char minted[FL_UUID_TEXT];
    fl_uuid4(minted);
    id = fl_arena_copy(head->arena, fl_bytes_of(minted));
    fl_fields_set(&head->fields, head->arena, name, id);
    return id;
}

void fl_proxy_clean_request(struct fl_head *head, const struct fl_proxy_forwarding *how,
                            struct fl_proxy_request_traits *traits)
{
    traits->is_http_1_0 = !head->is_h2 && head->minor == 0;
    traits->takes_trailers =
        !traits->is_http_1_0 &&
        (head->is_h2 || fl_fields_has_token(&head->fields, FL_BYTES("te"), FL_BYTES("trailers")));
    fl_fields_strip_hop_by_hop(&head->fields);
    /* Upgrades are not relayed: the request goes on as an ordinary one. */
    head->is_upgrade = false;
    if (how->has_epp) {
        fl_extproc_strip_client(&head->fields);
        for (size_t i = 0; how->strip != NULL && how->strip[i] != NULL; i++)
            fl_fields_remove(&head->fields, fl_bytes_of(how->strip[i]));
    }
    if (traits->takes_trailers)
        fl_fields_add(&head->fields, head->arena, FL_BYTES("TE"), FL_BYTES("trailers"));
    traits->request_id = request_id(head);
    add_forwarded(head, how);
}

void fl_proxy_clean_response(struct fl_head *head, const struct fl_proxy_request_traits *traits)
{
    fl_fields_strip_hop_by_hop(&head->fields);
    fl_fields_set(&head->fields, head->arena, FL_BYTES("X-Request-Id"), traits->request_id);
    head->keep_alive = true;
    head->is_upgrade = false;
    if (head->body == FL_BODY_UNTIL_CLOSE || head->body == FL_BODY_STREAM)
        head->body = head->content_length != UINT64_MAX ? FL_BODY_LENGTH : FL_BODY_CHUNKED;
}

bool fl_proxy_is_stream(const struct fl_head *head)
{
    struct fl_bytes type = fl_fields_get(&head->fields, FL_BYTES("content-type"));
    struct fl_bytes event_stream = FL_BYTES("text/event-stream");
    return head->body != FL_BODY_LENGTH ||
           (type.n >= event_stream.n &&
            fl_bytes_eq_nocase(fl_bytes_head(type, event_stream.n), event_stream));
}
