/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a trace of data/ for the tests; `.gz` goes through gzip -dc, as the programs do it. */
#ifndef FL_TESTS_TRACE_FILE_H
#define FL_TESTS_TRACE_FILE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "sim/trace.h"

static inline void read_trace(const char *name, struct fl_trace *trace)
{
    char command[1024];
    struct fl_error err = {0};
    struct fl_buf text = {0};
    const char *reader = strstr(name, ".gz") != NULL ? "gzip -dc" : "cat";

    snprintf(command, sizeof(command), "%s '%s/data/%s'", reader, FL_SOURCE_DIR, name);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    for (;;) {
        uint8_t *room = fl_buf_reserve(&text, 65536);
        assert_non_null(room);
        size_t n = fread(room, 1, 65536, pipe);
        if (n == 0)
            break;
        fl_buf_commit(&text, n);
    }
    assert_int_equal(pclose(pipe), 0);
    if (fl_trace_parse(trace, fl_buf_bytes(&text), 0, &err) < 0)
        fail_msg("%s: %s", name, err.text);
    fl_buf_fini(&text);
}

#endif
