/* SPDX-License-Identifier: Apache-2.0 */
/* Our half of the comparison with Python's json (oracle_json.py).
 *
 * Standard input: texts, each behind its length in 4 little-endian bytes. Standard output: one line
 * a text, `R` and the code's name if it is refused, or `A` and the tree as compact JSON, in which
 * each number is followed by `=` and its value as a double (`none` when it is out of range). */
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"
#include "codec/json.h"

#define MAX_TEXT ((uint32_t)16 << 20)

static void write_number(struct fl_json_writer *w, const struct fl_json_node *node)
{
    struct fl_buf text = {0};
    double value;

    fl_buf_append(&text, node->text);
    if (fl_json_to_double(node, &value))
        fl_buf_printf(&text, "=%.17g", value);
    else
        fl_buf_append(&text, FL_BYTES("=none"));
    fl_json_write_raw(w, fl_buf_bytes(&text));
    fl_buf_fini(&text);
}

static void dump(struct fl_json_writer *w, const struct fl_json_node *node)
{
    if (!fl_bytes_is_absent(node->key))
        fl_json_write_key_bytes(w, node->key);
    switch ((enum fl_json_type)node->type) {
    case FL_JSON_NULL:
        fl_json_write_null(w);
        return;
    case FL_JSON_FALSE:
    case FL_JSON_TRUE:
        fl_json_write_bool(w, node->type == FL_JSON_TRUE);
        return;
    case FL_JSON_NUMBER:
        write_number(w, node);
        return;
    case FL_JSON_STRING:
        fl_json_write_string(w, node->text);
        return;
    case FL_JSON_ARRAY:
        fl_json_write_array(w);
        break;
    case FL_JSON_OBJECT:
        fl_json_write_object(w);
        break;
    }
    for (const struct fl_json_node *c = fl_json_first(node); c != NULL; c = fl_json_next(node, c))
        dump(w, c);
    if (node->type == FL_JSON_ARRAY)
        fl_json_write_array_end(w);
    else
        fl_json_write_object_end(w);
}

static int answer(struct fl_bytes text)
{
    struct fl_json doc = {0};
    struct fl_buf out = {0};
    struct fl_json_writer w;

    int rc = fl_json_parse(&doc, text, NULL);
    if (rc < 0) {
        fl_buf_printf(&out, "R %s\n", fl_error_row(rc)->name);
    } else {
        fl_buf_append(&out, FL_BYTES("A "));
        fl_json_writer_init(&w, &out);
        dump(&w, fl_json_root(&doc));
        fl_buf_append_byte(&out, '\n');
    }
    size_t n = fl_buf_size(&out);
    bool is_written = fwrite(fl_buf_bytes(&out).p, 1, n, stdout) == n;
    fl_json_fini(&doc);
    fl_buf_fini(&out);
    return is_written ? 0 : -1;
}

int main(void)
{
    uint8_t head[4];
    struct fl_buf text = {0};
    int status = 0;

    while (status == 0 && fread(head, 1, sizeof(head), stdin) == sizeof(head)) {
        uint32_t n = (uint32_t)head[0] | (uint32_t)head[1] << 8 | (uint32_t)head[2] << 16 |
                     (uint32_t)head[3] << 24;
        fl_buf_clear(&text);
        uint8_t *room = n <= MAX_TEXT ? fl_buf_reserve(&text, n + 1) : NULL;
        if (room == NULL || fread(room, 1, n, stdin) != n)
            return 1;
        fl_buf_commit(&text, n);
        status = answer(fl_buf_bytes(&text));
    }
    fl_buf_fini(&text);
    return status == 0 && fflush(stdout) == 0 ? 0 : 1;
}
