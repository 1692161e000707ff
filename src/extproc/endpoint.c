/* SPDX-License-Identifier: Apache-2.0 */
#include "extproc/endpoint.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

static bool split_port(struct fl_bytes text, struct fl_bytes *host, uint16_t *port, bool *is_v6)
{
    uint64_t number;
    struct fl_bytes rest;

    *is_v6 = text.n > 0 && text.p[0] == '[';
    if (*is_v6) {
        size_t close = fl_bytes_index(text, ']');
        if (close == text.n)
            return false;
        *host = fl_bytes_skip(fl_bytes_head(text, close), 1);
        rest = fl_bytes_skip(text, close + 1);
    } else {
        size_t colon = fl_bytes_index(text, ':');
        *host = fl_bytes_head(text, colon);
        rest = fl_bytes_skip(text, colon);
    }
    /* A second colon makes the number unreadable: IPv6 without brackets has no port. */
    if (rest.n < 2 || rest.p[0] != ':' ||
        !fl_bytes_to_u64(fl_bytes_skip(rest, 1), UINT16_MAX, &number) || number == 0)
        return false;
    *port = (uint16_t)number;
    return true;
}

bool fl_endpoint_canonical(struct fl_bytes text, char out[FL_ENDPOINT_TEXT])
{
    struct fl_bytes host;
    char plain[INET6_ADDRSTRLEN], canonical[INET6_ADDRSTRLEN];
    uint8_t address[sizeof(struct in6_addr)];
    uint16_t port;
    bool is_v6;

    if (!split_port(text, &host, &port, &is_v6) || !fl_bytes_to_cstr(host, plain, sizeof(plain)))
        return false;
    int family = is_v6 ? AF_INET6 : AF_INET;
    if (inet_pton(family, plain, address) != 1 ||
        inet_ntop(family, address, canonical, sizeof(canonical)) == NULL)
        return false;
    int n = snprintf(out, FL_ENDPOINT_TEXT, is_v6 ? "[%s]:%u" : "%s:%u", canonical, (unsigned)port);
    return n > 0 && n < FL_ENDPOINT_TEXT;
}

uint32_t fl_endpoint_list(struct fl_bytes list, char out[FL_ENDPOINT_CANDIDATES][FL_ENDPOINT_TEXT])
{
    struct fl_bytes item;
    uint32_t count = 0;

    while (count < FL_ENDPOINT_CANDIDATES && fl_bytes_next(&list, ',', &item)) {
        bool is_new = fl_endpoint_canonical(fl_bytes_trim(item), out[count]);
        for (uint32_t i = 0; i < count && is_new; i++)
            is_new = strcmp(out[i], out[count]) != 0;
        if (is_new)
            count++;
    }
    return count;
}
