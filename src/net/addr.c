/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "net/stream.h"

int fl_addr_parse(struct fl_bytes text, bool allow_port_0, struct fl_addr *addr,
                  struct fl_error *err)
{
    struct fl_bytes host, port_text;
    bool is_v6 = text.n > 0 && text.p[0] == '[';
    if (is_v6) {
        size_t end = fl_bytes_index(text, ']');
        if (end + 1 >= text.n || text.p[end + 1] != ':')
            return fl_error_set(err, FL_EBAD_REQUEST, "address %.*s: not [IPv6]:port",
                                FL_FMT(fl_bytes_head(text, 100)));
        host = fl_bytes(text.p + 1, end - 1);
        port_text = fl_bytes_skip(text, end + 2);
    } else {
        size_t colon = fl_bytes_index(text, ':');
        if (colon == text.n)
            return fl_error_set(err, FL_EBAD_REQUEST, "address %.*s: no port",
                                FL_FMT(fl_bytes_head(text, 100)));
        host = fl_bytes_head(text, colon);
        port_text = fl_bytes_skip(text, colon + 1);
    }

    struct fl_addr parsed;
    memset(&parsed, 0, sizeof(parsed));
    char cstr[INET6_ADDRSTRLEN];
    int family = is_v6 ? AF_INET6 : AF_INET;
    void *where = is_v6 ? (void *)&parsed.v6.sin6_addr : (void *)&parsed.v4.sin_addr;
    if (!fl_bytes_to_cstr(host, cstr, sizeof(cstr)) || inet_pton(family, cstr, where) != 1)
        return fl_error_set(err, FL_EBAD_REQUEST, "address %.*s: %.*s is not an IP%s literal",
                            FL_FMT(fl_bytes_head(text, 100)), FL_FMT(fl_bytes_head(host, 100)),
                            is_v6 ? "v6" : "v4");
    uint64_t port;
    if (!fl_bytes_to_u64(port_text, 65535, &port) || (port == 0 && !allow_port_0))
        return fl_error_set(err, FL_EBAD_REQUEST, "address %.*s: port is not in %d..65535",
                            FL_FMT(fl_bytes_head(text, 100)), allow_port_0 ? 0 : 1);
    if (is_v6) {
        parsed.v6.sin6_family = AF_INET6;
        parsed.v6.sin6_port = htons((uint16_t)port);
        parsed.len = sizeof(parsed.v6);
    } else {
        parsed.v4.sin_family = AF_INET;
        parsed.v4.sin_port = htons((uint16_t)port);
        parsed.len = sizeof(parsed.v4);
    }
    *addr = parsed;
    return 0;
}

void fl_addr_format(const struct fl_addr *addr, char out[FL_ADDR_TEXT])
{
    char host[INET6_ADDRSTRLEN];
    if (addr->len == sizeof(addr->v4) && addr->sa.sa_family == AF_INET) {
        inet_ntop(AF_INET, &addr->v4.sin_addr, host, sizeof(host));
        snprintf(out, FL_ADDR_TEXT, "%s:%u", host, fl_addr_port(addr));
    } else if (addr->len == sizeof(addr->v6) && addr->sa.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &addr->v6.sin6_addr, host, sizeof(host));
        snprintf(out, FL_ADDR_TEXT, "[%s]:%u", host, fl_addr_port(addr));
    } else {
        snprintf(out, FL_ADDR_TEXT, "-"); /* a local socket, or an address that is not known */
    }
}

uint16_t fl_addr_port(const struct fl_addr *addr)
{
    if (addr->len == 0)
        return 0;
    if (addr->sa.sa_family == AF_INET)
        return ntohs(addr->v4.sin_port);
    return addr->sa.sa_family == AF_INET6 ? ntohs(addr->v6.sin6_port) : 0;
}

bool fl_addr_eq(const struct fl_addr *a, const struct fl_addr *b)
{
    if (a->len != b->len)
        return false;
    if (a->len == 0)
        return true;
    if (a->sa.sa_family != b->sa.sa_family || fl_addr_port(a) != fl_addr_port(b))
        return false;
    if (a->sa.sa_family == AF_INET)
        return a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
    return a->sa.sa_family == AF_INET6 &&
           memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, sizeof(a->v6.sin6_addr)) == 0 &&
           a->v6.sin6_scope_id == b->v6.sin6_scope_id;
}

bool fl_addr_is_loopback(const struct fl_addr *addr)
{
    if (addr->len == 0)
        return false;
    if (addr->sa.sa_family == AF_INET)
        return (ntohl(addr->v4.sin_addr.s_addr) >> 24) == 127;
    if (addr->sa.sa_family != AF_INET6)
        return false;
    const uint8_t *ip = addr->v6.sin6_addr.s6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&addr->v6.sin6_addr))
        return ip[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&addr->v6.sin6_addr);
}
