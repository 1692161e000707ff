/* SPDX-License-Identifier: Apache-2.0 */
#include "apps/app.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "codec/json.h"

const char *const fl_app_log_levels[] = {"error", "warn", "info", "debug", "trace", NULL};
const char *const fl_app_log_formats[] = {"auto", "text", "json", NULL};

bool fl_app_options(const struct fl_opt *opts, void *config, int argc, char **argv,
                    const char *usage, const char *about, struct fl_opt_result *result, int *status)
{
    struct fl_error err = {0};
    struct fl_buf help = {0};

    if (fl_opt_parse(opts, config, argc, argv, result, &err) < 0) {
        fprintf(stderr, "fairlead %s: %s\nTry: fairlead %s --help\n", argv[0], err.text, argv[0]);
        fl_opt_fini(opts, config);
        *status = 2;
        return false;
    }
    if (result->action == NULL)
        return true;
    *status = 0;
    if (strcmp(result->action->name, "version") == 0) {
        printf("fairlead %s\n", FL_VERSION);
    } else if (fl_opt_write_help(opts, usage, about, &help) < 0 ||
               fwrite(help.head, 1, fl_buf_size(&help), stdout) != fl_buf_size(&help)) {
        *status = 1;
    }
    fl_buf_fini(&help);
    fl_opt_fini(opts, config);
    return false;
}

static int write_file(const char *path, struct fl_bytes text, struct fl_error *err)
{
    FILE *file = fopen(path, "we");
    if (file == NULL)
        return fl_error_set(err, FL_EIO, "ready file %s: %s", path, strerror(errno));
    bool is_written = fwrite(text.p, 1, text.n, file) == text.n;
    if (fclose(file) != 0 || !is_written)
        return fl_error_set(err, FL_EIO, "ready file %s cannot be written", path);
    return 0;
}

int fl_app_write_ready_file(const char *path, const struct fl_app_listener *listeners, size_t count,
                            struct fl_error *err)
{
    struct fl_buf text = {0};
    struct fl_buf temporary = {0};
    struct fl_json_writer json;

    fl_json_writer_init(&json, &text);
    fl_json_write_object(&json);
    fl_json_write_key(&json, "pid");
    fl_json_write_u64(&json, (uint64_t)getpid());
    fl_json_write_key(&json, "listeners");
    fl_json_write_object(&json);
    for (size_t i = 0; i < count; i++) {
        char addr[FL_ADDR_TEXT];
        fl_addr_format(&listeners[i].addr, addr);
        fl_json_write_key(&json, listeners[i].purpose);
        fl_json_write_cstr(&json, addr);
    }
    fl_json_write_object_end(&json);
    fl_json_write_object_end(&json);
    int rc = fl_json_writer_end(&json);
    if (rc == 0)
        rc = fl_buf_append_byte(&text, '\n');
    if (rc == 0)
        rc = fl_buf_printf(&temporary, "%s.%ld", path, (long)getpid());
    if (rc == 0)
        rc = fl_buf_append_byte(&temporary, '\0');
    if (rc < 0) {
        fl_error_set(err, rc, "ready file %s: out of memory", path);
        goto out;
    }
    rc = write_file((const char *)temporary.head, fl_buf_bytes(&text), err);
    if (rc == 0 && rename((const char *)temporary.head, path) != 0)
        rc = fl_error_set(err, FL_EIO, "ready file %s: %s", path, strerror(errno));
out:
    fl_buf_fini(&text);
    fl_buf_fini(&temporary);
    return rc;
}
