/* SPDX-License-Identifier: Apache-2.0 */
#include "http/message.h"

#include <arpa/inet.h>
#include <stddef.h>

#include "http/scan.h"

static int hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    uint8_t lower = c | 0x20;
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

static bool is_ip(int family, struct fl_bytes text)
{
    char name[INET6_ADDRSTRLEN];
    uint8_t addr[16];
    return fl_bytes_to_cstr(text, name, sizeof(name)) && inet_pton(family, name, addr) == 1;
}

static bool is_reg_name(struct fl_bytes text)
{
    for (size_t i = 0; i < text.n; i++) {
        if ((fl_http_class[text.p[i]] & FL_HTTP_REGNAME) != 0)
            continue;
        if (text.p[i] != '%' || text.n - i < 3 || hex_digit(text.p[i + 1]) < 0 ||
            hex_digit(text.p[i + 2]) < 0)
            return false;
    }
    return text.n > 0;
}

/* Host without brackets; `port` is what follows the colon, absent without one. */
static bool split_authority(struct fl_bytes text, struct fl_bytes *host, struct fl_bytes *port)
{
    struct fl_bytes rest;
    if (text.n > 0 && text.p[0] == '[') {
        size_t close = fl_bytes_index(text, ']');
        if (close == text.n)
            return false;
        *host = fl_bytes(text.p + 1, close - 1);
        if (!is_ip(AF_INET6, *host))
            return false;
        rest = fl_bytes_skip(text, close + 1);
    } else {
        size_t colon = fl_bytes_index(text, ':');
        *host = fl_bytes_head(text, colon);
        if (!is_reg_name(*host))
            return false;
        rest = fl_bytes_skip(text, colon);
    }
    *port = (struct fl_bytes){NULL, 0};
    if (rest.n == 0)
        return true;
    if (rest.p[0] != ':')
        return false;
    *port = fl_bytes_skip(rest, 1);
    return true;
}

bool fl_http_is_authority(struct fl_bytes text)
{
    struct fl_bytes host, port;
    uint64_t number;
    return split_authority(text, &host, &port) &&
           (port.n == 0 || fl_bytes_to_u64(port, 65535, &number));
}

static bool take_scheme(struct fl_bytes *rest, struct fl_url *url)
{
    static const struct {
        struct fl_bytes prefix;
        uint16_t port;
        bool is_tls;
    } schemes[] = {
        {{(const uint8_t *)"http://", 7}, 80, false},
        {{(const uint8_t *)"https://", 8}, 443, true},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(schemes); i++) {
        struct fl_bytes head = fl_bytes_head(*rest, schemes[i].prefix.n);
        if (!fl_bytes_eq_nocase(head, schemes[i].prefix))
            continue;
        url->scheme = fl_bytes_head(schemes[i].prefix, schemes[i].prefix.n - 3);
        url->port = schemes[i].port;
        url->is_tls = schemes[i].is_tls;
        *rest = fl_bytes_skip(*rest, schemes[i].prefix.n);
        return true;
    }
    return false;
}

static size_t authority_length(struct fl_bytes text)
{
    size_t i = 0;
    while (i < text.n && text.p[i] != '/' && text.p[i] != '?')
        i++;
    return i;
}

int fl_url_parse(struct fl_bytes text, struct fl_url *url, struct fl_error *err)
{
    struct fl_url parsed = {0};
    struct fl_bytes rest = text;
    struct fl_bytes port;
    /* Only characters that a request target could carry: this also keeps messages printable. */
    if (fl_http_scan_target(text.p, text.n) != text.n)
        return fl_error_set(err, FL_EBAD_REQUEST,
                            "URL holds a blank, a control or a non-ASCII byte, or a fragment");
    if (!take_scheme(&rest, &parsed))
        return fl_error_set(err, FL_EBAD_REQUEST,
                            "URL \"%.*s\" does not start with http:// or https://",
                            FL_FMT(fl_bytes_head(text, 128)));
    struct fl_bytes authority = fl_bytes_head(rest, authority_length(rest));
    if (fl_bytes_index(authority, '@') < authority.n)
        return fl_error_set(err, FL_EBAD_REQUEST, "URL carries a user name, which is not allowed");
    if (!split_authority(authority, &parsed.host, &port))
        return fl_error_set(err, FL_EBAD_REQUEST, "URL \"%.*s\" has no valid host",
                            FL_FMT(fl_bytes_head(text, 128)));
    parsed.is_ip = authority.p[0] == '[' || is_ip(AF_INET, parsed.host);
    if (!fl_bytes_is_absent(port)) {
        uint64_t number;
        if (!fl_bytes_to_u64(port, 65535, &number) || number == 0)
            return fl_error_set(err, FL_EBAD_REQUEST, "URL \"%.*s\": port is not 1..65535",
                                FL_FMT(fl_bytes_head(text, 128)));
        parsed.port = (uint16_t)number;
    }
    fl_target_split(fl_bytes_skip(rest, authority.n), &parsed.path, &parsed.query);
    if (parsed.path.n == 0)
        parsed.path = FL_BYTES("/");
    *url = parsed;
    return 0;
}

void fl_target_split(struct fl_bytes target, struct fl_bytes *path, struct fl_bytes *query)
{
    size_t mark = fl_bytes_index(target, '?');
    *query = mark < target.n ? fl_bytes_skip(target, mark + 1) : (struct fl_bytes){NULL, 0};
    *path = fl_bytes_head(target, mark);
}

int fl_percent_decode(struct fl_arena *arena, struct fl_bytes text, struct fl_bytes *out)
{
    if (fl_bytes_index(text, '%') == text.n) {
        if (fl_bytes_index(text, 0) < text.n)
            return FL_EPROTO;
        *out = fl_arena_copy(arena, text);
        return 0;
    }
    uint8_t *decoded = fl_arena_try_alloc(arena, text.n);
    if (decoded == NULL)
        return FL_ENOMEM;
    size_t n = 0;
    for (size_t i = 0; i < text.n; i++) {
        uint8_t c = text.p[i];
        if (c == '%') {
            int high = text.n - i >= 3 ? hex_digit(text.p[i + 1]) : -1;
            int low = text.n - i >= 3 ? hex_digit(text.p[i + 2]) : -1;
            if (high < 0 || low < 0)
                return FL_EPROTO;
            c = (uint8_t)(high * 16 + low);
            i += 2;
        }
        if (c == 0)
            return FL_EPROTO;
        decoded[n++] = c;
    }
    *out = fl_bytes(decoded, n);
    return 0;
}
