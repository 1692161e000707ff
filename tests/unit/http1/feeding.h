/* SPDX-License-Identifier: Apache-2.0 */
/* Feeds a parser one way or another and renders what it said as one line of text, so that a test
 * can compare messages, and ways of cutting them, as strings.
 *
 *   POST /p length 5 [hello] end; GET / none last;
 *   GET / none; !400 a line ends in LF without CR
 *   +100; 200 chunked [ab] end {x: y};
 *
 * Every piece is fed from an exact allocation that is freed after the call: a view that is kept too
 * long or a read past the end is seen by AddressSanitizer. */
#ifndef TESTS_UNIT_HTTP1_FEEDING_H
#define TESTS_UNIT_HTTP1_FEEDING_H

#include <stdio.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "http1/http1.h"

struct feeding {
    struct fl_http1_parser parser;
    struct fl_arena arena;
    struct fl_buf said;
    bool in_body;
    bool is_bad;
    bool with_fields;         /* render the fields of heads too */
    const char *const *asked; /* responses: methods of the requests, NULL-terminated */
    const struct fl_http1_limits *limits;
};

static inline void feeding_say(struct feeding *f, struct fl_bytes text)
{
    if (fl_buf_append(&f->said, text) < 0)
        abort();
}

static inline void feeding_say_fields(struct feeding *f, const struct fl_fields *fields)
{
    feeding_say(f, FL_BYTES(" {"));
    for (uint32_t i = 0; i < fields->count; i++) {
        if (i > 0)
            feeding_say(f, FL_BYTES("|"));
        feeding_say(f, fields->items[i].name);
        feeding_say(f, FL_BYTES(": "));
        feeding_say(f, fields->items[i].value);
    }
    feeding_say(f, FL_BYTES("}"));
}

static inline void feeding_say_head(struct feeding *f, const struct fl_head *head)
{
    static const char *const bodies[] = {"none", "length", "chunked", "close", "stream"};
    if (head->status == 0)
        fl_buf_printf(&f->said, "%.*s %.*s %s", FL_FMT(head->method), FL_FMT(head->target),
                      bodies[head->body]);
    else
        fl_buf_printf(&f->said, "%u %s", head->status, bodies[head->body]);
    if (head->content_length != UINT64_MAX)
        fl_buf_printf(&f->said, " %llu", (unsigned long long)head->content_length);
    if (head->expect_continue)
        feeding_say(f, FL_BYTES(" expect"));
    if (head->is_upgrade)
        feeding_say(f, FL_BYTES(" upgrade"));
    if (!head->keep_alive)
        feeding_say(f, FL_BYTES(" last"));
    if (f->with_fields)
        feeding_say_fields(f, &head->fields);
}

/* A client that has one request after the other answered. */
static inline void feeding_expect(struct feeding *f)
{
    if (f->asked == NULL || *f->asked == NULL || !f->parser.keep_alive)
        return;
    const char *method = *f->asked++;
    fl_http1_expect(&f->parser, strcmp(method, "HEAD") == 0, strcmp(method, "UPGRADE") == 0);
}

static inline void feeding_say_event(struct feeding *f, enum fl_http1_result result,
                                     const struct fl_http1_event *ev)
{
    switch (result) {
    case FL_HTTP1_MORE:
        break;
    case FL_HTTP1_INFORMATIONAL:
        fl_buf_printf(&f->said, "+%u; ", ev->head->status);
        break;
    case FL_HTTP1_HEAD:
        feeding_say_head(f, ev->head);
        if (ev->is_end) {
            feeding_say(f, FL_BYTES("; "));
            feeding_expect(f);
        }
        break;
    case FL_HTTP1_BODY:
        if (!f->in_body)
            feeding_say(f, FL_BYTES(" ["));
        f->in_body = true;
        if (ev->body.n == 0)
            feeding_say(f, FL_BYTES("EMPTY BODY EVENT"));
        feeding_say(f, ev->body);
        break;
    case FL_HTTP1_END:
        feeding_say(f, f->in_body ? FL_BYTES("] end") : FL_BYTES(" end"));
        f->in_body = false;
        if (ev->trailers != NULL)
            feeding_say_fields(f, ev->trailers);
        feeding_say(f, FL_BYTES("; "));
        feeding_expect(f);
        break;
    case FL_HTTP1_BAD:
        f->is_bad = true;
        fl_buf_printf(&f->said, "!%u %s", ev->defect->status, ev->defect->why);
        break;
    }
}

/* `asked`: NULL for a parser of requests, else the methods whose answers come. */
static inline void feeding_init(struct feeding *f, const char *const *asked,
                                const struct fl_http1_limits *limits)
{
    *f = (struct feeding){.asked = asked, .limits = limits};
    fl_arena_init(&f->arena, 0);
    fl_http1_parser_init(&f->parser, asked == NULL ? FL_HTTP1_REQUESTS : FL_HTTP1_RESPONSES,
                         limits);
    if (asked != NULL)
        feeding_expect(f);
}

static inline void feeding_fini(struct feeding *f)
{
    fl_http1_parser_fini(&f->parser);
    fl_arena_fini(&f->arena);
    fl_buf_fini(&f->said);
}

static inline void feeding_piece(struct feeding *f, struct fl_bytes piece)
{
    uint8_t *copy = fl_alloc(piece.n);
    if (piece.n > 0)
        memcpy(copy, piece.p, piece.n);
    struct fl_bytes in = fl_bytes(copy, piece.n);
    while (!f->is_bad) {
        struct fl_http1_event ev;
        enum fl_http1_result result = fl_http1_feed(&f->parser, &f->arena, in, &ev);
        if (ev.consumed > in.n)
            abort();
        in = fl_bytes_skip(in, ev.consumed);
        feeding_say_event(f, result, &ev);
        if (result == FL_HTTP1_MORE) {
            if (in.n != 0)
                abort();
            break;
        }
    }
    fl_free(copy);
}

static inline void feeding_eof(struct feeding *f)
{
    struct fl_http1_event ev;
    if (!f->is_bad)
        feeding_say_event(f, fl_http1_feed_eof(&f->parser, &ev), &ev);
}

/* Cuts `text` into pieces of `piece` bytes; 0: of 1 to 16 bytes at random. */
static inline void feeding_cut(struct feeding *f, struct fl_bytes text, size_t piece,
                               struct fl_rng *rng)
{
    while (text.n > 0) {
        size_t n = piece > 0 ? piece : 1 + (size_t)fl_rng_below(rng, 16);
        struct fl_bytes head = fl_bytes_head(text, n);
        feeding_piece(f, head);
        text = fl_bytes_skip(text, head.n);
    }
}

/* NUL-terminated; lent until the next change of `f`. */
static inline const char *feeding_said(struct feeding *f)
{
    while (fl_buf_size(&f->said) > 0 && f->said.tail[-1] == ' ')
        f->said.tail--;
    if (fl_buf_append_byte(&f->said, 0) < 0)
        abort();
    return (const char *)f->said.head;
}

#endif
