/* SPDX-License-Identifier: Apache-2.0 */
/* Our half of the comparison with Python's protobuf (oracle_protobuf.py).
 *
 * Standard input: messages, each behind a letter (q ProcessingRequest, s ProcessingResponse) and
 * its length in 4 little-endian bytes. Standard output: one line a message, `R` if it is refused,
 * else `A` and what was read, blank-separated, bytes in hex behind '.', then `=` and the message as
 * we write it again. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "extproc/message.h"

static void put_hex(struct fl_bytes bytes)
{
    putchar('.');
    for (size_t i = 0; i < bytes.n; i++)
        printf("%02x", bytes.p[i]);
}

static void put_chain(const struct fl_chain *chain)
{
    putchar('.');
    for (uint32_t i = 0; i < chain->count; i++) {
        struct fl_slice slice = fl_chain_at(chain, i);
        for (size_t k = 0; k < slice.n; k++)
            printf("%02x", slice.p[k]);
    }
}

/* Without the gRPC prefix. */
static void put_written(struct fl_chain *out)
{
    fl_chain_consume(out, 5);
    printf(" = ");
    put_chain(out);
    putchar('\n');
    fl_chain_fini(out);
}

static void put_subset(struct fl_bytes metadata, struct fl_arena *arena)
{
    struct fl_extproc_subset subset;
    struct fl_bytes served;

    if (fl_extproc_read_subset(metadata, arena, &subset) < 0) {
        printf(" subset-error");
        return;
    }
    printf(" subset:%d:%d:%u", subset.is_present, subset.is_wrong_type, subset.count);
    for (uint32_t i = 0; i < subset.count; i++)
        put_hex(subset.items[i]);
    fl_extproc_read_served(metadata, arena, &served);
    printf(" served:%d", !fl_bytes_is_absent(served));
    put_hex(served);
}

static void request(struct fl_chain *message)
{
    struct fl_extproc_request r = {0};
    struct fl_chain out = {0};

    if (fl_extproc_request_read(&r, message) < 0) {
        puts("R");
        return;
    }
    printf("A %d %d %d %d", r.kind, r.end_of_stream, r.observability_mode, r.has_protocol);
    printf(" %d %d %d", r.protocol.request_body_mode, r.protocol.response_body_mode,
           r.protocol.send_body_without_waiting);
    printf(" headers:%u:%u", r.headers.count, r.dropped_headers);
    for (uint32_t i = 0; i < r.headers.count; i++) {
        put_hex(r.headers.items[i].name);
        put_hex(r.headers.items[i].value);
    }
    printf(" ");
    put_chain(&r.body);
    if (r.has_metadata)
        put_subset(r.metadata, &r.arena);
    /* As pseudo headers, which are written as they are but for their case. */
    fl_extproc_request_write(
        &out, &(struct fl_extproc_request_out){.kind = r.kind,
                                               .pseudo = r.headers.items,
                                               .pseudo_count = r.headers.count,
                                               .end_of_stream = r.end_of_stream,
                                               .body = &r.body,
                                               .body_bytes = r.body.bytes,
                                               .observability_mode = r.observability_mode,
                                               .protocol = r.has_protocol ? &r.protocol : NULL});
    put_written(&out);
    fl_extproc_request_fini(&r);
}

static void response(struct fl_chain *message)
{
    struct fl_extproc_response r = {0};
    struct fl_chain out = {0};
    struct fl_bytes destination = {0};

    if (fl_extproc_response_read(&r, message) < 0) {
        puts("R");
        return;
    }
    printf("A %d %d %d %d %d", r.kind, r.body_change, r.end_of_stream, r.common_status,
           r.clear_route_cache);
    printf(" %u", (unsigned)r.http_status);
    put_hex(r.details);
    printf(" sets:%u", r.mutation.set_count);
    struct fl_field *sets = calloc(r.mutation.set_count + 1, sizeof(*sets));
    for (uint32_t i = 0; i < r.mutation.set_count; i++) {
        const struct fl_extproc_set *set = &r.mutation.sets[i];
        put_hex(set->name);
        put_hex(set->value);
        printf(":%d:%d:%d:%d:%d", set->action, set->has_append, set->append, set->keep_empty,
               set->is_dropped);
        sets[i] = (struct fl_field){set->name, set->value};
    }
    printf(" removes:%u", r.mutation.remove_count);
    for (uint32_t i = 0; i < r.mutation.remove_count; i++)
        put_hex(r.mutation.removes[i]);
    printf(" ");
    put_chain(&r.body);
    if (r.has_dynamic_metadata)
        fl_extproc_read_destination(r.dynamic_metadata, &r.arena, &destination);
    printf(" destination:%d", !fl_bytes_is_absent(destination));
    put_hex(destination);
    fl_extproc_response_write(
        &out, &(struct fl_extproc_response_out){.kind = r.kind,
                                                .sets = sets,
                                                .set_count = r.mutation.set_count,
                                                .removes = r.mutation.removes,
                                                .remove_count = r.mutation.remove_count,
                                                .clear_route_cache = r.clear_route_cache,
                                                .body_change = r.body_change,
                                                .body = &r.body,
                                                .body_bytes = r.body.bytes,
                                                .end_of_stream = r.end_of_stream,
                                                .destination = destination,
                                                .http_status = (int)r.http_status,
                                                .details = r.details});
    put_written(&out);
    free(sets);
    fl_extproc_response_fini(&r);
}

int main(void)
{
    uint8_t head[5];
    unsigned cut = 0;

    while (fread(head, 1, sizeof(head), stdin) == sizeof(head)) {
        size_t n = head[1] | (size_t)head[2] << 8 | (size_t)head[3] << 16 | (size_t)head[4] << 24;
        uint8_t *bytes = malloc(n + 1);
        struct fl_chain message = {0};
        if (bytes == NULL || fread(bytes, 1, n, stdin) != n)
            return 1;
        /* Every third in single bytes, every third in sevens, every third whole. */
        size_t piece = cut % 3 == 0 ? 1 : cut % 3 == 1 ? 7 : n + 1;
        cut++;
        for (size_t at = 0; at < n; at += piece)
            fl_chain_push(
                &message,
                fl_slice_copy(fl_bytes(bytes + at, n - at < piece ? n - at : piece), NULL));
        if (head[0] == 'q')
            request(&message);
        else
            response(&message);
        free(bytes);
    }
    return 0;
}
