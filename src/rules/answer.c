/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>

#include "rules/rule.h"

/* gateway.md 4.2 */
static const struct {
    int status;
    const char *message;
} classes[] = {
    {400, "Malformed arguments for API call"},
    {401, "Invalid authentication credentials"},
    {403, "Capacity insufficient"},
    {404, "Resource not found"},
    {409, "Resource conflict: Resource already exists OR dependency not found"},
    {503, "Maintenance mode"},
};

void fl_rest_success(struct fl_rest_answer *answer)
{
    *answer = (struct fl_rest_answer){.status = 200, .code = 200};
}

int fl_rest_refuse(struct fl_rest_answer *answer, int status, const char *format, ...)
{
    va_list args;
    *answer = (struct fl_rest_answer){.status = status, .code = status};
    va_start(args, format);
    vsnprintf(answer->result, sizeof(answer->result), format, args);
    va_end(args);
    for (size_t i = 0; i < FL_ARRAY_LEN(classes); i++) {
        if (classes[i].status == status) {
            snprintf(answer->message, sizeof(answer->message), "%s", classes[i].message);
            return status;
        }
    }
    /* 4.2: other failures carry the detail in both members. */
    snprintf(answer->message, sizeof(answer->message), "%s", answer->result);
    return status;
}

int fl_rest_violation(struct fl_rest_answer *answer, int code, const char *format, ...)
{
    va_list args;
    *answer = (struct fl_rest_answer){.status = 422, .code = code};
    va_start(args, format);
    vsnprintf(answer->message, sizeof(answer->message), format, args);
    va_end(args);
    return 422;
}

int fl_rest_write(struct fl_buf *out, const struct fl_rest_answer *answer)
{
    struct fl_json_writer writer;
    fl_json_writer_init(&writer, out);
    fl_json_write_object(&writer);
    if (answer->status == 200) {
        fl_json_write_key(&writer, "result");
        fl_json_write_cstr(&writer, "Success");
    } else {
        fl_json_write_key(&writer, "code");
        fl_json_write_i64(&writer, answer->code);
        fl_json_write_key(&writer, "message");
        fl_json_write_cstr(&writer, answer->message);
        if (answer->result[0] != 0) {
            fl_json_write_key(&writer, "result");
            fl_json_write_cstr(&writer, answer->result);
        }
    }
    fl_json_write_object_end(&writer);
    return fl_json_writer_end(&writer);
}
