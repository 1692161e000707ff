/* SPDX-License-Identifier: Apache-2.0 */
/* For the two fuzz targets of http1/: feeds the same bytes whole and cut and compares what is said.
 */
#ifndef FUZZ_HTTP1_COMPARE_H
#define FUZZ_HTTP1_COMPARE_H

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "http1/http1.h"

struct listener {
    struct fl_http1_parser parser;
    struct fl_arena arena;
    struct fl_buf said; /* events without their cuts, then body bytes */
    bool is_over;
};

static void say(struct listener *to, struct fl_bytes bytes)
{
    if (fl_buf_append(&to->said, bytes) < 0)
        abort();
}

static void say_fields(struct listener *to, const struct fl_fields *fields)
{
    for (uint32_t i = 0; i < fields->count; i++) {
        say(to, fields->items[i].name);
        say(to, FL_BYTES(":"));
        say(to, fields->items[i].value);
        say(to, FL_BYTES("\n"));
    }
}

static void hear(struct listener *to, enum fl_http1_result result, const struct fl_http1_event *ev,
                 void (*on_head)(const struct fl_head *head))
{
    switch (result) {
    case FL_HTTP1_MORE:
        return;
    case FL_HTTP1_INFORMATIONAL:
    case FL_HTTP1_HEAD:
        fl_buf_printf(&to->said, "HEAD %u %u %llu ", ev->head->status, ev->head->body,
                      (unsigned long long)ev->head->content_length);
        say(to, ev->head->method);
        say(to, ev->head->target);
        say_fields(to, &ev->head->fields);
        on_head(ev->head);
        break;
    case FL_HTTP1_BODY:
        say(to, ev->body);
        break;
    case FL_HTTP1_END:
        say(to, FL_BYTES("END"));
        if (ev->trailers != NULL)
            say_fields(to, ev->trailers);
        break;
    case FL_HTTP1_BAD:
        say(to, fl_bytes_of(ev->defect->why));
        to->is_over = true;
        break;
    }
    /* Responses: one request is answered after the other, every third one HEAD. */
    if (to->parser.side == FL_HTTP1_RESPONSES && !to->is_over && to->parser.keep_alive &&
        (result == FL_HTTP1_END || (result == FL_HTTP1_HEAD && ev->is_end)))
        fl_http1_expect(&to->parser, fl_buf_size(&to->said) % 3 == 0, false);
}

static void feed_piece(struct listener *to, struct fl_bytes piece,
                       void (*on_head)(const struct fl_head *head))
{
    uint8_t *copy = fl_alloc(piece.n);
    if (piece.n > 0)
        memcpy(copy, piece.p, piece.n);
    struct fl_bytes in = fl_bytes(copy, piece.n);
    enum fl_http1_result result = FL_HTTP1_END;
    while (!to->is_over && result != FL_HTTP1_MORE) {
        struct fl_http1_event ev;
        result = fl_http1_feed(&to->parser, &to->arena, in, &ev);
        if (ev.consumed > in.n || (result == FL_HTTP1_MORE && ev.consumed != in.n))
            abort();
        in = fl_bytes_skip(in, ev.consumed);
        hear(to, result, &ev, on_head);
    }
    fl_free(copy);
}

static void listen_to(struct listener *to, enum fl_http1_side side, struct fl_bytes text,
                      size_t piece, void (*on_head)(const struct fl_head *head))
{
    static const struct fl_http1_limits limits = {
        .max_header_bytes = 512,
        .max_headers = 20,
        .max_trailer_bytes = 128,
        .max_trailers = 4,
        .max_chunk_bytes = 1 << 20,
    };
    struct fl_http1_event ev;
    *to = (struct listener){0};
    fl_http1_parser_init(&to->parser, side, &limits);
    if (side == FL_HTTP1_RESPONSES)
        fl_http1_expect(&to->parser, false, true);
    while (text.n > 0 && !to->is_over) {
        feed_piece(to, fl_bytes_head(text, piece), on_head);
        text = fl_bytes_skip(text, piece);
    }
    if (!to->is_over)
        hear(to, fl_http1_feed_eof(&to->parser, &ev), &ev, on_head);
}

static void stop_listening(struct listener *to)
{
    fl_http1_parser_fini(&to->parser);
    fl_arena_fini(&to->arena);
    fl_buf_fini(&to->said);
}

static void ignore_head(const struct fl_head *head)
{
    (void)head;
}

static void compare_cuts(enum fl_http1_side side, const uint8_t *data, size_t size,
                         void (*on_head)(const struct fl_head *head))
{
    struct listener whole, cut;
    if (size == 0)
        return;
    struct fl_bytes text = fl_bytes(data + 1, size - 1);
    listen_to(&whole, side, text, SIZE_MAX, on_head);
    listen_to(&cut, side, text, (size_t)data[0] % 32 + 1, ignore_head);
    if (!fl_bytes_eq(fl_buf_bytes(&whole.said), fl_buf_bytes(&cut.said)))
        abort();
    stop_listening(&whole);
    stop_listening(&cut);
}

#endif
