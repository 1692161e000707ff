/* SPDX-License-Identifier: Apache-2.0 */
#include "http1/head.h"

#include <assert.h>

#include "http/scan.h"

#define DEFECT(name) FL_HTTP1_DEFECT_##name
/* More digits than 2^62 has are refused even if they are leading zeros: not everybody reads those
 * alike. */
#define LENGTH_DIGITS 19

const struct fl_http1_defect fl_http1_defects[FL_HTTP1_DEFECT_COUNT] = {
#define FL_HTTP1_DEFECT_ROW(name, status, word, why) [FL_HTTP1_DEFECT_##name] = {status, word, why},
    FL_HTTP1_DEFECT_TABLE(FL_HTTP1_DEFECT_ROW)
#undef FL_HTTP1_DEFECT_ROW
};

/* The text still to be read; never empty before the blank line has been taken. */
struct cursor {
    const uint8_t *p, *end;
};

static size_t left_of(const struct cursor *at)
{
    return (size_t)(at->end - at->p);
}

/* What the fields that decide framing and connection said. */
struct seen {
    struct fl_bytes host;
    uint32_t hosts, lengths, codings, options;
    uint64_t length;
    enum fl_http1_defect_id length_defect;
    bool coding_unknown, coding_malformed; /* some item is not "chunked"; empty, or a second one */
    bool coding_chunked;
    bool close, keep_alive, upgrade; /* options of Connection */
    bool expect_continue, expect_other;
    bool upgrade_protocol; /* an Upgrade item other than h2c */
};

/* ---- lines ---- */

static enum fl_http1_defect_id defect_of_byte(const struct cursor *at)
{
    if (left_of(at) == 0 || *at->p == '\r')
        return DEFECT(BARE_CR);
    return *at->p == 0 ? DEFECT(NUL) : DEFECT(CONTROL);
}

static bool is_line_end(const struct cursor *at)
{
    return left_of(at) >= 2 && at->p[0] == '\r' && at->p[1] == '\n';
}

static enum fl_http1_defect_id read_field(struct cursor *at, struct fl_field *field)
{
    if (*at->p == ' ' || *at->p == '\t')
        return DEFECT(OBS_FOLD);
    field->name = fl_bytes(at->p, fl_http_scan_token(at->p, left_of(at)));
    at->p += field->name.n;
    if (left_of(at) == 0)
        return DEFECT(NAME_BYTE);
    if (*at->p != ':') {
        if (*at->p == '\0')
            return DEFECT(NUL);
        return *at->p == ' ' || *at->p == '\t' ? DEFECT(NAME_BLANK) : DEFECT(NAME_BYTE);
    }
    if (field->name.n == 0)
        return DEFECT(NAME_EMPTY);
    at->p++;
    while (left_of(at) > 0 && (*at->p == ' ' || *at->p == '\t'))
        at->p++;
    const uint8_t *start = at->p;
    at->p += fl_http_scan_value(at->p, left_of(at));
    if (!is_line_end(at))
        return defect_of_byte(at);
    const uint8_t *last = at->p;
    while (last > start && (last[-1] == ' ' || last[-1] == '\t'))
        last--;
    field->value = fl_bytes(start, (size_t)(last - start));
    at->p += 2;
    return DEFECT(NONE);
}

/* ---- fields that matter to framing ---- */

static void see_length(struct seen *seen, struct fl_bytes value)
{
    seen->lengths++;
    if (value.n <= LENGTH_DIGITS && fl_bytes_to_u64(value, FL_HTTP1_MAX_LENGTH, &seen->length))
        return;
    bool is_number = value.n > 0;
    for (size_t i = 0; i < value.n; i++)
        is_number = is_number && value.p[i] >= '0' && value.p[i] <= '9';
    seen->length_defect = is_number ? DEFECT(LENGTH_LARGE) : DEFECT(LENGTH_FORM);
}

static void see_coding(struct seen *seen, struct fl_bytes value)
{
    struct fl_bytes item;
    seen->codings++;
    while (fl_bytes_next(&value, ',', &item)) {
        item = fl_bytes_trim(item);
        if (item.n == 0 || (fl_bytes_eq_nocase(item, FL_BYTES("chunked")) && seen->coding_chunked))
            seen->coding_malformed = true;
        else if (fl_bytes_eq_nocase(item, FL_BYTES("chunked")))
            seen->coding_chunked = true;
        else
            seen->coding_unknown = true;
    }
}

static void see_connection(struct seen *seen, struct fl_bytes value)
{
    struct fl_bytes item;
    while (fl_bytes_next(&value, ',', &item)) {
        item = fl_bytes_trim(item);
        seen->options++;
        seen->close |= fl_bytes_eq_nocase(item, FL_BYTES("close"));
        seen->keep_alive |= fl_bytes_eq_nocase(item, FL_BYTES("keep-alive"));
        seen->upgrade |= fl_bytes_eq_nocase(item, FL_BYTES("upgrade"));
    }
}

static void see_upgrade(struct seen *seen, struct fl_bytes value)
{
    struct fl_bytes item;
    while (fl_bytes_next(&value, ',', &item)) {
        item = fl_bytes_trim(item);
        seen->upgrade_protocol |= item.n > 0 && !fl_bytes_eq_nocase(item, FL_BYTES("h2c"));
    }
}

/* `name` is a token, `lower` its candidate in lower case, letters and dashes only; equal lengths.
 */
static bool is_name(struct fl_bytes name, const char *lower)
{
    for (size_t i = 0; i < name.n; i++) {
        if ((name.p[i] | 0x20) != (uint8_t)lower[i])
            return false;
    }
    return true;
}

/* One look at the length tells most fields apart. */
static void see_field(struct seen *seen, const struct fl_field *field)
{
    switch (field->name.n) {
    case 4:
        if (is_name(field->name, "host")) {
            seen->host = field->value;
            seen->hosts++;
        }
        break;
    case 6:
        if (is_name(field->name, "expect")) {
            bool is_continue = fl_bytes_eq_nocase(field->value, FL_BYTES("100-continue"));
            seen->expect_continue |= is_continue;
            seen->expect_other |= !is_continue;
        }
        break;
    case 7:
        if (is_name(field->name, "upgrade"))
            see_upgrade(seen, field->value);
        break;
    case 10:
        if (is_name(field->name, "connection"))
            see_connection(seen, field->value);
        break;
    case 14:
        if (is_name(field->name, "content-length"))
            see_length(seen, field->value);
        break;
    case 17:
        if (is_name(field->name, "transfer-encoding"))
            see_coding(seen, field->value);
        break;
    default:
        break;
    }
}

static enum fl_http1_defect_id read_fields(struct fl_head *head, struct cursor *at,
                                           uint32_t field_lines, struct seen *seen)
{
    struct fl_fields *fields = &head->fields;
    if (field_lines > 0) {
        fields->items = fl_arena_alloc(head->arena, field_lines * sizeof(*fields->items));
        fields->cap = field_lines;
    }
    while (!is_line_end(at)) {
        struct fl_field field;
        enum fl_http1_defect_id defect = read_field(at, &field);
        if (defect != DEFECT(NONE))
            return defect;
        see_field(seen, &field);
        fl_fields_add(fields, head->arena, field.name, field.value);
    }
    if (seen->options > FL_HTTP1_MAX_CONNECTION_OPTIONS)
        return DEFECT(CONNECTION_LONG);
    return DEFECT(NONE);
}

/* gateway.md 7.3, first five rows; the same for both sides. */
static enum fl_http1_defect_id check_framing(const struct seen *seen, uint8_t minor)
{
    if (seen->lengths > 0 && seen->codings > 0)
        return DEFECT(LENGTH_AND_CODING);
    if (seen->lengths > 1)
        return DEFECT(LENGTH_TWICE);
    if (seen->lengths > 0 && seen->length_defect != DEFECT(NONE))
        return seen->length_defect;
    if (seen->codings > 0 && minor == 0)
        return DEFECT(CODING_OLD);
    if (seen->coding_unknown)
        return DEFECT(CODING_UNKNOWN);
    /* A second line is either unknown, empty or a second "chunked": malformed. */
    if (seen->coding_malformed)
        return DEFECT(CODING_FORM);
    return DEFECT(NONE);
}

static bool is_kept_alive(const struct seen *seen, uint8_t minor)
{
    return !seen->close && (minor >= 1 || seen->keep_alive);
}

/* ---- requests ---- */

/* "HTTP/1.0" or "HTTP/1.1"; another digit on either side of the dot is a version we do not speak.
 */
static enum fl_http1_defect_id read_version(struct cursor *at, uint8_t *minor,
                                            enum fl_http1_defect_id malformed)
{
    if (left_of(at) < 8 || memcmp(at->p, "HTTP/", 5) != 0 || at->p[6] != '.')
        return malformed;
    uint8_t high = (uint8_t)(at->p[5] - '0');
    uint8_t low = (uint8_t)(at->p[7] - '0');
    if (high > 9 || low > 9)
        return malformed;
    if (high != 1 || low > 1)
        return DEFECT(VERSION);
    *minor = low;
    at->p += 8;
    return DEFECT(NONE);
}

/* Which of the defects of a start line the byte under the cursor is. */
static enum fl_http1_defect_id defect_in_line(const struct cursor *at,
                                              enum fl_http1_defect_id otherwise)
{
    if (left_of(at) > 0 && *at->p == 0)
        return DEFECT(NUL);
    if (left_of(at) > 0 && *at->p == '\r' && !is_line_end(at))
        return DEFECT(BARE_CR);
    return otherwise;
}

static enum fl_http1_defect_id read_request_line(struct fl_head *head, struct cursor *at)
{
    head->method = fl_bytes(at->p, fl_http_scan_token(at->p, left_of(at)));
    at->p += head->method.n;
    if (head->method.n == 0 || left_of(at) == 0 || *at->p != ' ')
        return defect_in_line(at, DEFECT(START_LINE));
    at->p++;
    head->target = fl_bytes(at->p, fl_http_scan_target(at->p, left_of(at)));
    at->p += head->target.n;
    if (left_of(at) == 0 || *at->p != ' ')
        return defect_in_line(at, is_line_end(at) ? DEFECT(START_LINE) : DEFECT(TARGET));
    if (head->target.n == 0)
        return DEFECT(START_LINE);
    at->p++;
    enum fl_http1_defect_id defect = read_version(at, &head->minor, DEFECT(START_LINE));
    if (defect != DEFECT(NONE))
        return defect;
    if (!is_line_end(at))
        return defect_in_line(at, DEFECT(START_LINE));
    at->p += 2;
    return DEFECT(NONE);
}

static bool is_options(const struct fl_head *head)
{
    return fl_bytes_eq(head->method, FL_BYTES("OPTIONS"));
}

/* Path and query after the authority of an absolute-form target; RFC 9112 3.2.1 and 3.2.4 say what
 * stands for an empty path. */
static struct fl_bytes origin_form(const struct fl_head *head, struct fl_bytes rest)
{
    if (rest.n == 0)
        return is_options(head) ? FL_BYTES("*") : FL_BYTES("/");
    if (rest.p[0] == '/')
        return rest;
    uint8_t *target = fl_arena_alloc(head->arena, rest.n + 1);
    target[0] = '/';
    memcpy(target + 1, rest.p, rest.n);
    return fl_bytes(target, rest.n + 1);
}

static enum fl_http1_defect_id reduce_absolute_form(struct fl_head *head)
{
    size_t colon = fl_bytes_index(head->target, ':');
    head->scheme = fl_bytes_head(head->target, colon);
    if (!fl_bytes_eq_nocase(head->scheme, FL_BYTES("http")) &&
        !fl_bytes_eq_nocase(head->scheme, FL_BYTES("https")))
        return DEFECT(TARGET);
    struct fl_bytes rest = fl_bytes_skip(head->target, colon);
    if (!fl_bytes_has_prefix(rest, FL_BYTES("://")))
        return DEFECT(TARGET);
    rest = fl_bytes_skip(rest, 3);
    size_t n = 0;
    while (n < rest.n && rest.p[n] != '/' && rest.p[n] != '?')
        n++;
    struct fl_bytes authority = fl_bytes_head(rest, n);
    if (!fl_http_is_authority(authority))
        return DEFECT(TARGET);
    if (fl_bytes_is_absent(head->authority))
        head->authority = authority; /* HTTP/1.0 without Host */
    else if (!fl_bytes_eq_nocase(authority, head->authority))
        return DEFECT(HOST_DIFFERS);
    head->target = origin_form(head, fl_bytes_skip(rest, n));
    return DEFECT(NONE);
}

static enum fl_http1_defect_id check_target(struct fl_head *head, const struct seen *seen)
{
    if (seen->hosts > 1)
        return DEFECT(HOST_TWICE);
    if (seen->hosts == 0 && head->minor >= 1)
        return DEFECT(HOST_MISSING);
    if (seen->hosts > 0 && !fl_http_is_authority(seen->host))
        return DEFECT(HOST_BYTES);
    head->authority = seen->host;
    if (head->target.p[0] == '/')
        return DEFECT(NONE);
    if (fl_bytes_eq(head->target, FL_BYTES("*")))
        return is_options(head) ? DEFECT(NONE) : DEFECT(TARGET);
    return reduce_absolute_form(head);
}

enum fl_http1_defect_id fl_http1_read_request(struct fl_head *head, struct fl_bytes text,
                                              uint32_t field_lines)
{
    struct cursor at = {text.p, text.p + text.n};
    struct seen seen = {0};
    enum fl_http1_defect_id defect = read_request_line(head, &at);
    if (defect == DEFECT(NONE))
        defect = read_fields(head, &at, field_lines, &seen);
    if (defect == DEFECT(NONE))
        defect = check_framing(&seen, head->minor);
    if (defect == DEFECT(NONE) && fl_bytes_eq(head->method, FL_BYTES("CONNECT")))
        defect = DEFECT(METHOD_CONNECT);
    if (defect == DEFECT(NONE))
        defect = check_target(head, &seen);
    /* RFC 9110 10.1.1: a server ignores the expectation of an HTTP/1.0 request. */
    if (defect == DEFECT(NONE) && seen.expect_other && head->minor >= 1)
        defect = DEFECT(EXPECTATION);
    if (defect != DEFECT(NONE))
        return defect;

    head->content_length = UINT64_MAX;
    head->body = FL_BODY_NONE;
    if (seen.codings > 0) {
        head->body = FL_BODY_CHUNKED;
    } else if (seen.lengths > 0) {
        head->content_length = seen.length;
        head->body = seen.length > 0 ? FL_BODY_LENGTH : FL_BODY_NONE;
    }
    head->keep_alive = is_kept_alive(&seen, head->minor);
    head->expect_continue = seen.expect_continue && head->minor >= 1 && head->body != FL_BODY_NONE;
    head->is_upgrade =
        seen.upgrade && seen.upgrade_protocol && head->minor >= 1 && head->body == FL_BODY_NONE;
    return DEFECT(NONE);
}

/* ---- responses ---- */

static enum fl_http1_defect_id read_status_line(struct fl_head *head, struct cursor *at)
{
    enum fl_http1_defect_id defect = read_version(at, &head->minor, DEFECT(STATUS_LINE));
    if (defect != DEFECT(NONE))
        return defect;
    if (left_of(at) < 4 || at->p[0] != ' ')
        return defect_in_line(at, DEFECT(STATUS_LINE));
    at->p++;
    uint32_t status = 0;
    for (int i = 0; i < 3; i++, at->p++) {
        if (*at->p < '0' || *at->p > '9')
            return defect_in_line(at, DEFECT(STATUS_LINE));
        status = status * 10 + (uint32_t)(*at->p - '0');
    }
    if (status < 100)
        return DEFECT(STATUS_LINE);
    head->status = (uint16_t)status;
    /* The blank after the code is required, but real servers leave it out together with the reason.
     */
    if (!is_line_end(at) && (left_of(at) == 0 || *at->p != ' '))
        return defect_in_line(at, DEFECT(STATUS_LINE));
    at->p += fl_http_scan_value(at->p, left_of(at));
    if (!is_line_end(at))
        return defect_of_byte(at);
    at->p += 2;
    return DEFECT(NONE);
}

/* RFC 9112 6.3, in its order. */
static enum fl_body_kind body_of_response(const struct fl_head *head, const struct seen *seen,
                                          bool answers_head)
{
    if (head->status == 101)
        return FL_BODY_UNTIL_CLOSE; /* the tunnel */
    if (answers_head || head->status < 200 || head->status == 204 || head->status == 304)
        return FL_BODY_NONE;
    if (seen->codings > 0)
        return FL_BODY_CHUNKED;
    if (seen->lengths == 0)
        return FL_BODY_UNTIL_CLOSE;
    return seen->length > 0 ? FL_BODY_LENGTH : FL_BODY_NONE;
}

enum fl_http1_defect_id fl_http1_read_response(struct fl_head *head, struct fl_bytes text,
                                               uint32_t field_lines, bool answers_head,
                                               bool answers_upgrade)
{
    struct cursor at = {text.p, text.p + text.n};
    struct seen seen = {0};
    enum fl_http1_defect_id defect = read_status_line(head, &at);
    if (defect == DEFECT(NONE))
        defect = read_fields(head, &at, field_lines, &seen);
    if (defect == DEFECT(NONE))
        defect = check_framing(&seen, head->minor);
    if (defect == DEFECT(NONE) && head->status == 101 && !answers_upgrade)
        defect = DEFECT(SWITCHED);
    if (defect != DEFECT(NONE))
        return defect;

    head->body = (uint8_t)body_of_response(head, &seen, answers_head);
    head->content_length = UINT64_MAX;
    /* Kept where there is no body too: an answer to HEAD and a 304 pass their length on. */
    if (seen.lengths > 0 && head->body != FL_BODY_UNTIL_CLOSE)
        head->content_length = seen.length;
    head->is_upgrade = head->status == 101;
    head->keep_alive = is_kept_alive(&seen, head->minor) && head->body != FL_BODY_UNTIL_CLOSE;
    return DEFECT(NONE);
}

/* ---- trailers ---- */

enum fl_http1_defect_id fl_http1_read_trailers(struct fl_fields *trailers, struct fl_arena *arena,
                                               struct fl_bytes text, uint32_t field_lines)
{
    struct cursor at = {text.p, text.p + text.n};
    assert(field_lines > 0);
    while (!is_line_end(&at)) {
        struct fl_field field;
        enum fl_http1_defect_id defect = read_field(&at, &field);
        if (defect != DEFECT(NONE))
            return defect;
        if (!fl_http_is_dropped_trailer(field.name))
            fl_fields_add(trailers, arena, field.name, field.value);
    }
    return DEFECT(NONE);
}
