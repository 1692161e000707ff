/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "apps/call.h"
#include "apps/demo/demo.h"

#define CALL_MS 10000

int demo_fetch(struct fl_loop *loop, const struct fl_addr *addr, const char *method,
               const char *path, struct fl_bytes request_body, int *status, struct fl_buf *body,
               struct fl_error *err)
{
    struct fl_app_call call = {
        .addr = *addr, .method = method, .path = path, .body = request_body, .timeout_ms = CALL_MS};
    return fl_app_call(loop, &call, status, body, err);
}

double demo_metric(struct fl_bytes page, const char *name, const char *label)
{
    struct fl_bytes family = fl_bytes_of(name);
    struct fl_bytes wanted = fl_bytes_of(label);
    struct fl_bytes line;
    double sum = 0;
    while (page.n > 0 && fl_bytes_next(&page, '\n', &line)) {
        char value[64];
        if (!fl_bytes_has_prefix(line, family) || line.n <= family.n ||
            (line.p[family.n] != ' ' && line.p[family.n] != '{') ||
            (label != NULL && fl_bytes_find(line, wanted) == line.n))
            continue;
        size_t at = line.n;
        while (at > 0 && line.p[at - 1] != ' ')
            at--;
        if (fl_bytes_to_cstr(fl_bytes_skip(line, at), value, sizeof(value)))
            sum += strtod(value, NULL);
    }
    return sum;
}
