/* SPDX-License-Identifier: Apache-2.0 */
/* One HTTP call for command-line programs: turns the loop until the answer is there. */
#ifndef FL_APPS_CALL_H
#define FL_APPS_CALL_H

#include "web/exchange.h"

struct fl_app_call {
    struct fl_addr addr;
    const char *method, *path;
    struct fl_bytes body; /* absent: none; else sent as application/json */
    const char *bearer;   /* NULL: no Authorization */
    uint64_t timeout_ms;
};

/* 0 with status and `body` filled, whatever the status; FL_ECONNECT, FL_ETIMEOUT, ... with a
 * sentence. */
int fl_app_call(struct fl_loop *loop, const struct fl_app_call *call, int *status,
                struct fl_buf *body, struct fl_error *err);

#endif
