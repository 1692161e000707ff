/* SPDX-License-Identifier: Apache-2.0 */
#include "http/scan.h"

#include "http/message.h"

/* One row per 16 byte values; bits as in scan.h. test_syntax rebuilds it from the grammar. */
/* clang-format off */
const uint8_t fl_http_class[256] = {
    2, 2, 2, 2, 2, 2, 2, 2, 2, 0, 2, 2, 2, 2, 2, 2, /* 0x00 */
    2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, /* 0x10 */
    0, 13, 4, 1, 13, 5, 13, 13, 12, 12, 13, 13, 12, 13, 13, 4, /* 0x20 */
    13, 13, 13, 13, 13, 13, 13, 13, 13, 13, 4, 12, 4, 12, 4, 4, /* 0x30 */
    4, 13, 13, 13, 13, 13, 13, 13, 13, 13, 13, 13, 13, 13, 13, 13, /* 0x40 */
    13, 13, 13, 13, 13, 13, 13, 13, 13, 13, 13, 4, 4, 4, 5, 13, /* 0x50 */
    5, 13, 13, 13, 13, 13, 13, 13, 13, 13, 13, 13, 13, 13, 13, 13, /* 0x60 */
    13, 13, 13, 13, 13, 13, 13, 13, 13, 13, 13, 4, 5, 4, 13, 2, /* 0x70 */
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* 0x80 */
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* 0x90 */
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* 0xa0 */
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* 0xb0 */
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* 0xc0 */
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* 0xd0 */
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* 0xe0 */
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* 0xf0 */
};
/* clang-format on */

bool fl_http_is_token(struct fl_bytes name)
{
    return name.n > 0 && fl_http_scan_token(name.p, name.n) == name.n;
}

bool fl_http_is_value(struct fl_bytes value)
{
    return fl_http_scan_value(value.p, value.n) == value.n;
}

static bool is_one_of(struct fl_bytes name, const struct fl_bytes *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (names[i].n == name.n && fl_bytes_eq_nocase(names[i], name))
            return true;
    }
    return false;
}

#define NAME(literal)                                                                              \
    {                                                                                              \
        (const uint8_t *)(literal), sizeof(literal) - 1                                            \
    }

bool fl_http_is_hop_by_hop(struct fl_bytes name)
{
    static const struct fl_bytes names[] = {
        NAME("connection"),
        NAME("keep-alive"),
        NAME("proxy-connection"),
        NAME("te"),
        NAME("transfer-encoding"),
        NAME("trailer"),
        NAME("upgrade"),
        NAME("proxy-authenticate"),
        NAME("proxy-authorization"),
        NAME("http2-settings"),
    };
    return is_one_of(name, names, FL_ARRAY_LEN(names));
}

bool fl_http_is_dropped_trailer(struct fl_bytes name)
{
    static const struct fl_bytes names[] = {
        NAME("content-length"),
        NAME("host"),
        NAME("authorization"),
        NAME("set-cookie"),
    };
    static const struct fl_bytes gateway = NAME("x-gateway-");
    return is_one_of(name, names, FL_ARRAY_LEN(names)) || fl_http_is_hop_by_hop(name) ||
           fl_bytes_eq_nocase(fl_bytes_head(name, gateway.n), gateway);
}
