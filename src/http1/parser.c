/* SPDX-License-Identifier: Apache-2.0 */
/* The state machine: finds the ends of heads, lengths, chunks and trailer sections in bytes cut
 * anywhere. What stands inside a head is head.c's business.
 *
 *   IDLE --expect()--> START -> HEAD --+--> (message complete) --> START or IDLE or CLOSED
 *                        ^             +--> LENGTH ------------------> END --^
 *                        | 1xx         +--> SIZE -> DATA -> ... -> TRAILERS -^
 *                        +-------------+--> UNTIL_CLOSE --EOF--> CLOSED
 *
 * Each state has one handler, called with at least one byte (but for END, which needs none). It
 * takes bytes off `in` and gives an event, or MORE when it used them up, or AGAIN when the state
 * has changed and the next handler is to look. What has been seen of an unfinished line lives in
 * the parser, so that cuts make no difference. */
#include "http1/http1.h"

#include <assert.h>

#include "http/scan.h"
#include "http1/defect.h"
#include "http1/head.h"

#define DEFECT(name) FL_HTTP1_DEFECT_##name

/* RFC 9112 2.2 asks servers to ignore at least one blank line before a request: old clients send
 * one after a body. */
#define MAX_BLANK_LINES 1
#define MAX_SIZE_DIGITS 16 /* gateway.md 7.3 */

const struct fl_http1_limits fl_http1_default_limits = {
    .max_header_bytes = FL_HTTP1_MAX_HEADER_BYTES,
    .max_headers = FL_HTTP1_MAX_HEADERS,
    .max_trailer_bytes = FL_HTTP1_MAX_TRAILER_BYTES,
    .max_trailers = FL_HTTP1_MAX_TRAILERS,
    .max_chunk_bytes = FL_HTTP1_MAX_LENGTH,
};

const struct fl_http1_defect *const fl_http1_cut = &fl_http1_defects[DEFECT(CUT)];

enum state {
    IDLE,     /* responses: no request is waiting for an answer */
    START,    /* before the first byte of a message */
    BLANK_CR, /* CR before a request */
    HEAD,
    LENGTH,  /* `left` body bytes, then END */
    SIZE,    /* `digits` of a chunk size so far, its value in `left` */
    EXT,     /* from the first blank or semicolon after the size; `ext` says where in the grammar */
    SIZE_LF, /* CR of a chunk line was seen */
    DATA,    /* `left` bytes of a chunk */
    DATA_CR, /* chunk data is complete */
    DATA_LF, /* and its CR was seen */
    TRAILERS, /* after the last chunk */
    END,      /* everything was read, END is still to be told */
    UNTIL_CLOSE,
    CLOSED, /* the last message of the connection is over */
    STATE_COUNT
};

/* An enum value of our own beside the public results. */
#define AGAIN ((enum fl_http1_result) - 1)

struct feed {
    struct fl_http1_parser *parser;
    struct fl_arena *arena;
    struct fl_bytes in; /* what is left of the call's bytes */
    struct fl_http1_event *ev;
};

static void take(struct feed *feed, size_t n)
{
    feed->in.p += n;
    feed->in.n -= n;
    feed->ev->consumed += n;
}

static enum fl_http1_result refuse(struct feed *feed, enum fl_http1_defect_id defect)
{
    feed->parser->defect = &fl_http1_defects[defect];
    feed->ev->defect = feed->parser->defect;
    return FL_HTTP1_BAD;
}

static enum fl_http1_result go(struct feed *feed, enum state state)
{
    feed->parser->state = (uint8_t)state;
    return AGAIN;
}

/* The state after a complete message. */
static enum state next_message(const struct fl_http1_parser *parser)
{
    if (!parser->keep_alive)
        return CLOSED;
    return parser->side == FL_HTTP1_REQUESTS ? START : IDLE;
}

/* ---- lines of a head or trailer section ---- */

static void forget_lines(struct fl_http1_parser *parser)
{
    fl_buf_fini(&parser->held);
    parser->scanned = parser->line_start = parser->lines = 0;
}

/* What differs between a head and a trailer section. */
struct section {
    size_t max_bytes;
    uint32_t max_lines; /* without the blank one */
    enum fl_http1_defect_id too_large, too_many;
};

static struct section section_of(const struct fl_http1_parser *parser)
{
    const struct fl_http1_limits *limits = parser->limits;
    if (parser->state == TRAILERS)
        return (struct section){limits->max_trailer_bytes, limits->max_trailers,
                                DEFECT(TRAILER_BYTES), DEFECT(TRAILER_LINES)};
    return (struct section){limits->max_header_bytes, limits->max_headers + 1, DEFECT(HEAD_BYTES),
                            DEFECT(HEAD_LINES)};
}

/* Goes on looking for the blank line in `seen`, the section's bytes from its start. *end: its
 * length, 0 if it is not complete. Only line ends are looked at, because a missing CR would make
 * the end itself doubtful. */
static enum fl_http1_defect_id find_end(struct fl_http1_parser *parser,
                                        const struct section *section, struct fl_bytes seen,
                                        size_t *end)
{
    struct fl_bytes view = fl_bytes_head(seen, section->max_bytes);
    *end = 0;
    while (parser->scanned < view.n) {
        const uint8_t *lf = memchr(view.p + parser->scanned, '\n', view.n - parser->scanned);
        if (lf == NULL) {
            parser->scanned = (uint32_t)view.n;
            break;
        }
        uint32_t at = (uint32_t)(lf - view.p);
        if (at == parser->line_start || lf[-1] != '\r')
            return DEFECT(BARE_LF);
        parser->scanned = at + 1;
        if (at - 1 == parser->line_start) {
            *end = at + 1;
            return DEFECT(NONE);
        }
        parser->line_start = at + 1;
        if (++parser->lines > section->max_lines)
            return section->too_many;
    }
    return seen.n >= section->max_bytes ? section->too_large : DEFECT(NONE);
}

/* Collects a section. AGAIN: *text is the whole of it, in the arena. */
static enum fl_http1_result collect(struct feed *feed, struct fl_bytes *text)
{
    struct fl_http1_parser *parser = feed->parser;
    struct section section = section_of(parser);
    size_t held = fl_buf_size(&parser->held);
    struct fl_bytes seen = feed->in;
    size_t end;

    if (held > 0) {
        /* Up to the section's cap; what follows its end is appended too, but not consumed. */
        if (fl_buf_append(&parser->held, fl_bytes_head(feed->in, section.max_bytes - held)) < 0)
            return refuse(feed, DEFECT(MEMORY));
        seen = fl_buf_bytes(&parser->held);
    }
    enum fl_http1_defect_id defect = find_end(parser, &section, seen, &end);
    if (defect != DEFECT(NONE))
        return refuse(feed, defect);
    if (end == 0) {
        if (held == 0) {
            fl_buf_init(&parser->held, section.max_bytes);
            if (fl_buf_append(&parser->held, feed->in) < 0)
                return refuse(feed, DEFECT(MEMORY));
        }
        take(feed, feed->in.n);
        return FL_HTTP1_MORE;
    }
    uint8_t *copy = fl_arena_try_alloc(feed->arena, end);
    if (copy == NULL)
        return refuse(feed, DEFECT(MEMORY));
    memcpy(copy, seen.p, end);
    *text = fl_bytes(copy, end);
    take(feed, end - held);
    return AGAIN;
}

/* ---- heads ---- */

static enum fl_http1_result on_idle(struct feed *feed)
{
    return refuse(feed, DEFECT(UNASKED));
}

static enum fl_http1_result on_start(struct feed *feed)
{
    struct fl_http1_parser *parser = feed->parser;
    uint8_t first = feed->in.p[0];
    if (parser->side == FL_HTTP1_RESPONSES) {
        /* Anything else, a TLS alert for one, is told from a slow head at once. */
        return first == 'H' ? go(feed, HEAD) : refuse(feed, DEFECT(STATUS_LINE));
    }
    if (first == '\r') {
        /* Counted in `lines`, which is free until the head begins. */
        if (parser->lines == MAX_BLANK_LINES)
            return refuse(feed, DEFECT(BLANK_LINES));
        take(feed, 1);
        return go(feed, BLANK_CR);
    }
    if (first == '\n')
        return refuse(feed, DEFECT(BARE_LF));
    if ((fl_http_class[first] & FL_HTTP_TCHAR) == 0)
        return refuse(feed, first == 0 ? DEFECT(NUL) : DEFECT(START_LINE));
    parser->lines = 0;
    return go(feed, HEAD);
}

static enum fl_http1_result on_blank_cr(struct feed *feed)
{
    if (feed->in.p[0] != '\n')
        return refuse(feed, DEFECT(BARE_CR));
    take(feed, 1);
    feed->parser->lines++;
    return go(feed, START);
}

static enum state body_state(const struct fl_head *head)
{
    switch (head->body) {
    case FL_BODY_LENGTH:
        return LENGTH;
    case FL_BODY_CHUNKED:
        return SIZE;
    default:
        return UNTIL_CLOSE;
    }
}

static enum fl_http1_result on_head(struct feed *feed)
{
    struct fl_http1_parser *parser = feed->parser;
    struct fl_bytes text;
    assert(feed->arena != NULL);
    enum fl_http1_result result = collect(feed, &text);
    if (result != AGAIN)
        return result;

    struct fl_head *head = fl_arena_calloc(feed->arena, 1, sizeof(*head));
    head->arena = feed->arena;
    uint32_t field_lines = parser->lines - 1;
    enum fl_http1_defect_id defect =
        parser->side == FL_HTTP1_REQUESTS
            ? fl_http1_read_request(head, text, field_lines)
            : fl_http1_read_response(head, text, field_lines, parser->answers_head,
                                     parser->answers_upgrade);
    if (defect != DEFECT(NONE))
        return refuse(feed, defect);
    forget_lines(parser);
    feed->ev->head = head;

    if (head->status >= 100 && head->status < 200 && head->status != 101) {
        if (++parser->informational > FL_HTTP1_MAX_INFORMATIONAL)
            return refuse(feed, DEFECT(INFORMATIONAL));
        go(feed, START);
        return FL_HTTP1_INFORMATIONAL;
    }
    parser->keep_alive = head->keep_alive;
    parser->left = head->body == FL_BODY_LENGTH ? head->content_length : 0;
    parser->digits = 0;
    parser->ext_line = 0;
    parser->ext_total = 0;
    feed->ev->is_end = head->body == FL_BODY_NONE;
    go(feed, feed->ev->is_end ? next_message(parser) : body_state(head));
    return FL_HTTP1_HEAD;
}

/* ---- bodies ---- */

/* Tells up to `left` bytes of body; `then` is the state when they are complete. */
static enum fl_http1_result tell_body(struct feed *feed, enum state then)
{
    struct fl_http1_parser *parser = feed->parser;
    feed->ev->body = fl_bytes_head(feed->in, parser->left);
    parser->left -= feed->ev->body.n;
    if (parser->left == 0)
        go(feed, then);
    take(feed, feed->ev->body.n);
    return FL_HTTP1_BODY;
}

static enum fl_http1_result on_length(struct feed *feed)
{
    return tell_body(feed, END);
}

static enum fl_http1_result on_data(struct feed *feed)
{
    return tell_body(feed, DATA_CR);
}

static enum fl_http1_result on_until_close(struct feed *feed)
{
    feed->ev->body = feed->in;
    take(feed, feed->in.n);
    return FL_HTTP1_BODY;
}

static int hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    uint8_t lower = c | 0x20;
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* RFC 9112 7.1.1: *( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] ). Extensions mean
 * nothing to us, but what others would refuse is refused: an unclosed quote is where parsers part
 * ways. */
enum ext {
    EXT_GAP,      /* blanks after the size or a value: only a semicolon may follow */
    EXT_SEMI,     /* after a semicolon */
    EXT_NAME,     /* in a name; may end here */
    EXT_NAME_GAP, /* blanks after a name */
    EXT_EQUALS,   /* after '=' */
    EXT_TOKEN,    /* in a value; may end here */
    EXT_QUOTED,   /* between quotes */
    EXT_ESCAPE,   /* after a backslash between quotes */
    EXT_CLOSED,   /* after the closing quote; may end here */
    EXT_BAD,
};

static enum ext ext_after_gap(enum ext state, uint8_t c)
{
    if (c == ' ' || c == '\t')
        return state;
    if (c == ';')
        return EXT_SEMI;
    return c == '=' && state == EXT_NAME_GAP ? EXT_EQUALS : EXT_BAD;
}

/* After a name or value: `same` if it goes on with `c`, `gap` if blanks begin. */
static enum ext ext_after_word(enum ext same, enum ext gap, uint8_t c)
{
    if (same != EXT_CLOSED && (fl_http_class[c] & FL_HTTP_TCHAR) != 0)
        return same;
    return ext_after_gap(gap, c);
}

static enum ext ext_next(enum ext state, uint8_t c)
{
    bool is_token = (fl_http_class[c] & FL_HTTP_TCHAR) != 0;
    bool is_blank = c == ' ' || c == '\t';
    if ((fl_http_class[c] & FL_HTTP_CONTROL) != 0)
        return EXT_BAD;
    switch (state) {
    case EXT_GAP:
    case EXT_NAME_GAP:
        return ext_after_gap(state, c);
    case EXT_SEMI:
        return is_blank ? EXT_SEMI : is_token ? EXT_NAME : EXT_BAD;
    case EXT_NAME:
        return ext_after_word(EXT_NAME, EXT_NAME_GAP, c);
    case EXT_EQUALS:
        if (c == '"')
            return EXT_QUOTED;
        return is_blank ? EXT_EQUALS : is_token ? EXT_TOKEN : EXT_BAD;
    case EXT_TOKEN:
        return ext_after_word(EXT_TOKEN, EXT_GAP, c);
    case EXT_QUOTED:
        return c == '"' ? EXT_CLOSED : c == '\\' ? EXT_ESCAPE : EXT_QUOTED;
    case EXT_ESCAPE:
        return EXT_QUOTED;
    case EXT_CLOSED:
        return ext_after_word(EXT_CLOSED, EXT_GAP, c);
    case EXT_BAD:
        break;
    }
    return EXT_BAD;
}

static bool may_ext_end(enum ext state)
{
    return state == EXT_NAME || state == EXT_TOKEN || state == EXT_CLOSED;
}

static enum fl_http1_result on_size(struct feed *feed)
{
    struct fl_http1_parser *parser = feed->parser;
    for (; feed->in.n > 0; take(feed, 1)) {
        int digit = hex_digit(feed->in.p[0]);
        if (digit < 0)
            break;
        if (parser->digits == MAX_SIZE_DIGITS)
            return refuse(feed, DEFECT(CHUNK_SIZE));
        parser->digits++;
        /* Sixteen digits fit, so the shift cannot lose any. */
        parser->left = parser->left << 4 | (uint64_t)digit;
    }
    if (feed->in.n == 0)
        return FL_HTTP1_MORE;
    if (parser->digits == 0)
        return refuse(feed, DEFECT(CHUNK_SIZE));
    if (parser->left > parser->limits->max_chunk_bytes)
        return refuse(feed, DEFECT(CHUNK_LARGE));
    switch (feed->in.p[0]) {
    case '\r':
        take(feed, 1);
        return go(feed, SIZE_LF);
    case ';':
    case ' ':
    case '\t':
        parser->ext = EXT_GAP;
        return go(feed, EXT);
    case '\n':
        return refuse(feed, DEFECT(BARE_LF));
    default:
        return refuse(feed, DEFECT(CHUNK_SIZE));
    }
}

static enum fl_http1_result on_ext(struct feed *feed)
{
    struct fl_http1_parser *parser = feed->parser;
    for (; feed->in.n > 0; take(feed, 1)) {
        uint8_t c = feed->in.p[0];
        if (c == '\r' && may_ext_end(parser->ext)) {
            take(feed, 1);
            return go(feed, SIZE_LF);
        }
        if (parser->ext_line == FL_HTTP1_MAX_CHUNK_EXT_BYTES ||
            parser->ext_total == FL_HTTP1_MAX_CHUNK_EXT_TOTAL_BYTES)
            return refuse(feed, DEFECT(CHUNK_EXT_BYTES));
        parser->ext_line++;
        parser->ext_total++;
        parser->ext = (uint8_t)ext_next(parser->ext, c);
        if (parser->ext == EXT_BAD)
            return refuse(feed, c == '\n' ? DEFECT(BARE_LF) : DEFECT(CHUNK_EXT));
    }
    return FL_HTTP1_MORE;
}

static enum fl_http1_result on_size_lf(struct feed *feed)
{
    struct fl_http1_parser *parser = feed->parser;
    if (feed->in.p[0] != '\n')
        return refuse(feed, DEFECT(BARE_CR));
    take(feed, 1);
    parser->digits = 0;
    parser->ext_line = 0;
    return go(feed, parser->left > 0 ? DATA : TRAILERS);
}

static enum fl_http1_result on_data_cr(struct feed *feed)
{
    if (feed->in.p[0] != '\r')
        return refuse(feed, DEFECT(CHUNK_END));
    take(feed, 1);
    return go(feed, DATA_LF);
}

static enum fl_http1_result on_data_lf(struct feed *feed)
{
    if (feed->in.p[0] != '\n')
        return refuse(feed, DEFECT(CHUNK_END));
    take(feed, 1);
    return go(feed, SIZE);
}

static enum fl_http1_result on_trailers(struct feed *feed)
{
    struct fl_http1_parser *parser = feed->parser;
    struct fl_bytes text;
    assert(feed->arena != NULL);
    enum fl_http1_result result = collect(feed, &text);
    if (result != AGAIN)
        return result;
    if (parser->lines > 0) {
        struct fl_fields *trailers = fl_arena_calloc(feed->arena, 1, sizeof(*trailers));
        enum fl_http1_defect_id defect =
            fl_http1_read_trailers(trailers, feed->arena, text, parser->lines);
        if (defect != DEFECT(NONE))
            return refuse(feed, defect);
        if (trailers->count > 0)
            feed->ev->trailers = trailers;
    }
    forget_lines(parser);
    go(feed, next_message(parser));
    return FL_HTTP1_END;
}

static enum fl_http1_result on_end(struct feed *feed)
{
    go(feed, next_message(feed->parser));
    return FL_HTTP1_END;
}

static enum fl_http1_result on_closed(struct feed *feed)
{
    take(feed, feed->in.n);
    return FL_HTTP1_MORE;
}

static enum fl_http1_result (*const handlers[STATE_COUNT])(struct feed *feed) = {
    [IDLE] = on_idle,         [START] = on_start,
    [BLANK_CR] = on_blank_cr, [HEAD] = on_head,
    [LENGTH] = on_length,     [SIZE] = on_size,
    [EXT] = on_ext,           [SIZE_LF] = on_size_lf,
    [DATA] = on_data,         [DATA_CR] = on_data_cr,
    [DATA_LF] = on_data_lf,   [TRAILERS] = on_trailers,
    [END] = on_end,           [UNTIL_CLOSE] = on_until_close,
    [CLOSED] = on_closed,
};

/* ---- the parser ---- */

void fl_http1_parser_init(struct fl_http1_parser *parser, enum fl_http1_side side,
                          const struct fl_http1_limits *limits)
{
    assert(limits->max_header_bytes <= 1u << 30 && limits->max_trailer_bytes <= 1u << 30);
    assert(limits->max_chunk_bytes <= FL_HTTP1_MAX_LENGTH);
    *parser = (struct fl_http1_parser){
        .limits = limits,
        .side = (uint8_t)side,
        .state = side == FL_HTTP1_REQUESTS ? START : IDLE,
        .keep_alive = true,
    };
}

void fl_http1_parser_fini(struct fl_http1_parser *parser)
{
    fl_buf_fini(&parser->held);
}

void fl_http1_expect(struct fl_http1_parser *parser, bool is_head_request, bool is_upgrade)
{
    assert(parser->side == FL_HTTP1_RESPONSES && parser->state == IDLE);
    parser->answers_head = is_head_request;
    parser->answers_upgrade = is_upgrade;
    parser->informational = 0;
    parser->state = START;
}

enum fl_http1_result fl_http1_feed(struct fl_http1_parser *parser, struct fl_arena *arena,
                                   struct fl_bytes in, struct fl_http1_event *ev)
{
    struct feed feed = {.parser = parser, .arena = arena, .in = in, .ev = ev};
    enum fl_http1_result result = AGAIN;

    *ev = (struct fl_http1_event){.defect = parser->defect};
    if (parser->defect != NULL)
        return FL_HTTP1_BAD;
    while (result == AGAIN) {
        if (feed.in.n == 0 && parser->state != END)
            return FL_HTTP1_MORE;
        result = handlers[parser->state](&feed);
    }
    return result;
}

enum fl_http1_result fl_http1_feed_eof(struct fl_http1_parser *parser, struct fl_http1_event *ev)
{
    struct feed feed = {.parser = parser, .ev = ev};

    *ev = (struct fl_http1_event){.defect = parser->defect};
    if (parser->defect != NULL)
        return FL_HTTP1_BAD;
    switch (parser->state) {
    case IDLE:
    case CLOSED:
        return FL_HTTP1_MORE;
    case START:
    case BLANK_CR:
        /* A request that never began is a client that is done; an answer that never began is
         * missed. */
        return parser->side == FL_HTTP1_REQUESTS ? FL_HTTP1_MORE : refuse(&feed, DEFECT(CUT));
    case END:
    case UNTIL_CLOSE:
        parser->keep_alive = false;
        go(&feed, CLOSED);
        return FL_HTTP1_END;
    default:
        return refuse(&feed, DEFECT(CUT));
    }
}

bool fl_http1_is_idle(const struct fl_http1_parser *parser)
{
    return parser->defect == NULL && (parser->state == IDLE || parser->state == START ||
                                      parser->state == BLANK_CR || parser->state == CLOSED);
}

uint64_t fl_http1_body_left(const struct fl_http1_parser *parser)
{
    if (parser->defect != NULL)
        return 0;
    if (parser->state == UNTIL_CLOSE)
        return UINT64_MAX;
    return parser->state == LENGTH || parser->state == DATA ? parser->left : 0;
}

void fl_http1_become_tunnel(struct fl_http1_parser *parser)
{
    assert(parser->state == START);
    parser->state = UNTIL_CLOSE;
}
