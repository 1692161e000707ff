/* SPDX-License-Identifier: Apache-2.0 */
/* Rules from --rule files (gateway.md 2.2): one entry, an array of entries, or {"lbAttr":[...]}. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "apps/gateway/gateway.h"
#include "base/alloc.h"

#define FILE_MAX_BYTES (64u << 20) /* 4,096 rules of some KiB */

struct held_key {
    struct fl_link link;
    struct fl_bytes key;
};

static int read_file(const char *path, struct fl_buf *text, struct fl_error *err)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return fl_error_set(err, FL_ECONFIG, "rule file %s: %s", path, strerror(errno));
    int rc = 0;
    for (;;) {
        uint8_t *room = fl_buf_reserve(text, 65536);
        if (room == NULL) {
            rc = fl_error_set(err, FL_ECONFIG, "rule file %s: longer than %u bytes", path,
                              FILE_MAX_BYTES);
            break;
        }
        size_t n = fread(room, 1, 65536, file);
        fl_buf_commit(text, n);
        if (n == 0)
            break;
    }
    if (rc == 0 && ferror(file))
        rc = fl_error_set(err, FL_ECONFIG, "rule file %s: cannot be read", path);
    fclose(file);
    return rc;
}

static bool has_key(const struct gateway_file_rules *rules, struct fl_bytes key)
{
    for (size_t i = 0; i < rules->count; i++) {
        if (fl_bytes_eq(rules->rules[i]->key, key))
            return true;
    }
    return false;
}

static int add_entry(const char *path, const struct fl_json_node *entry,
                     struct gateway_file_rules *out, struct fl_error *err)
{
    struct fl_rest_answer answer = {0};
    struct fl_rule *rule = fl_rule_new_from(entry, gateway_unix_ms(), &answer);
    if (rule == NULL)
        return fl_error_set(err, FL_ECONFIG, "rule file %s: %s", path,
                            answer.result[0] != '\0' ? answer.result : answer.message);
    if (has_key(out, rule->key)) {
        fl_error_set(err, FL_ECONFIG, "rule file %s: the rule of %.*s:%u is there already", path,
                     FL_FMT(rule->external_ip), (unsigned)rule->port);
        fl_rule_unref(rule);
        return FL_ECONFIG;
    }
    out->rules = fl_realloc(out->rules, out->count + 1, sizeof(struct fl_rule *));
    out->rules[out->count++] = rule;
    return 0;
}

static int read_rules(const char *path, struct gateway_file_rules *out, struct fl_error *err)
{
    struct fl_buf text = {0};
    struct fl_json doc = {0};

    fl_buf_init(&text, FILE_MAX_BYTES);
    int rc = read_file(path, &text, err);
    if (rc < 0)
        goto out;
    rc = fl_json_parse(&doc, fl_buf_bytes(&text), err);
    if (rc < 0) {
        fl_error_prefix(err, "rule file %s", path);
        goto out;
    }
    const struct fl_json_node *root = fl_json_root(&doc);
    const struct fl_json_node *list = root;
    if (root->type == FL_JSON_OBJECT) {
        list = fl_json_get_nocase(root, FL_BYTES("lbAttr"));
        if (list == NULL) {
            rc = add_entry(path, root, out, err);
            goto out;
        }
    }
    if (list->type != FL_JSON_ARRAY) {
        rc = fl_error_set(err, FL_ECONFIG, "rule file %s: holds no rule", path);
        goto out;
    }
    for (const struct fl_json_node *entry = fl_json_first(list); entry != NULL && rc == 0;
         entry = fl_json_next(list, entry))
        rc = add_entry(path, entry, out, err);
out:
    fl_json_fini(&doc);
    fl_buf_fini(&text);
    return rc;
}

int gateway_files_read(const struct fl_opt_list *files, struct gateway_file_rules *out,
                       struct fl_error *err)
{
    for (size_t i = 0; i < files->count; i++) {
        int rc = read_rules(files->items[i], out, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

void gateway_files_fini(struct gateway_file_rules *rules)
{
    for (size_t i = 0; i < rules->count; i++)
        fl_rule_unref(rules->rules[i]);
    fl_free(rules->rules);
    *rules = (struct gateway_file_rules){0};
}

bool gateway_files_hold(const struct gateway *gateway, struct fl_bytes key)
{
    FL_LINK_FOREACH(link, &gateway->file_keys)
    {
        if (fl_bytes_eq(FL_CONTAINER_OF(link, struct held_key, link)->key, key))
            return true;
    }
    return false;
}

void gateway_files_remember(struct gateway *gateway, struct fl_bytes key)
{
    struct held_key *held = fl_calloc(1, sizeof(*held));
    held->key = fl_bytes(fl_strndup(key.p, key.n), key.n);
    fl_link_init(&held->link);
    fl_link_push_tail(&gateway->file_keys, &held->link);
}

void gateway_files_forget_all(struct gateway *gateway)
{
    FL_LINK_FOREACH(link, &gateway->file_keys)
    {
        struct held_key *held = FL_CONTAINER_OF(link, struct held_key, link);
        fl_link_unlink(link);
        fl_free((void *)(uintptr_t)held->key.p);
        fl_free(held);
    }
}
