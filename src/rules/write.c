/* SPDX-License-Identifier: Apache-2.0 */
/* Output of a rule: gateway.md 4.7. */
#include <stdio.h>
#include <time.h>

#include "rules/fields.h"
#include "rules/rule.h"

static void write_service(struct fl_json_writer *writer, const struct fl_rule *rule)
{
    fl_json_write_object(writer);
    fl_fields_write(fl_rule_fields, rule, FL_GROUP_RULE, writer);
    if (fl_rule_has_epp(rule))
        fl_fields_write(fl_rule_fields, rule, FL_GROUP_EPP, writer);
    if (rule->picker != 0)
        fl_fields_write(fl_rule_fields, rule, FL_GROUP_PICKER, writer);
    if (rule->annotation_count > 0) {
        fl_json_write_key(writer, "annotations");
        fl_json_write_object(writer);
        for (uint32_t i = 0; i < rule->annotation_count; i++) {
            fl_json_write_key_bytes(writer, rule->annotations[i].name);
            fl_json_write_string(writer, rule->annotations[i].value);
        }
        fl_json_write_object_end(writer);
    }
    fl_json_write_object_end(writer);
}

static void write_live(struct fl_json_writer *writer, const struct fl_endpoint_live *live)
{
    char counter[48];
    uint64_t requests = 0;
    uint64_t bytes = 0;
    bool is_inactive = false;
    if (live != NULL) {
        is_inactive = atomic_load_explicit(&live->is_inactive, memory_order_relaxed);
        fl_endpoint_counts(live, &requests, &bytes);
    }
    snprintf(counter, sizeof(counter), "%llu:%llu", (unsigned long long)requests,
             (unsigned long long)bytes);
    fl_json_write_key(writer, "state");
    fl_json_write_cstr(writer, is_inactive ? "inactive" : "active");
    fl_json_write_key(writer, "counter");
    fl_json_write_cstr(writer, counter);
}

void fl_rule_write(struct fl_json_writer *writer, const struct fl_rule *rule, bool with_live)
{
    fl_json_write_object(writer);
    fl_json_write_key(writer, "serviceArguments");
    write_service(writer, rule);
    fl_json_write_key(writer, "secondaryIPs");
    fl_json_write_array(writer);
    fl_json_write_array_end(writer);
    fl_json_write_key(writer, "allowedSources");
    fl_json_write_array(writer);
    for (uint32_t i = 0; i < rule->source_count; i++) {
        fl_json_write_object(writer);
        fl_json_write_key(writer, "prefix");
        fl_json_write_string(writer, rule->sources[i].text);
        fl_json_write_object_end(writer);
    }
    fl_json_write_array_end(writer);
    fl_json_write_key(writer, "endpoints");
    fl_json_write_array(writer);
    for (uint32_t i = 0; i < rule->endpoint_count; i++) {
        fl_json_write_object(writer);
        fl_fields_write(fl_rule_endpoint_fields, &rule->endpoints[i], FL_GROUP_RULE, writer);
        if (with_live)
            write_live(writer, rule->endpoints[i].live);
        fl_json_write_object_end(writer);
    }
    fl_json_write_array_end(writer);
    fl_json_write_object_end(writer);
}

static const char *operating_status(const struct fl_rule *rule)
{
    uint32_t inactive = 0;
    for (uint32_t i = 0; i < rule->endpoint_count; i++) {
        const struct fl_endpoint_live *live = rule->endpoints[i].live;
        if (live != NULL && atomic_load_explicit(&live->is_inactive, memory_order_relaxed))
            inactive++;
    }
    if (!rule->admin_state_up || inactive == rule->endpoint_count)
        return "OFFLINE";
    if (!rule->monitor)
        return "NO_MONITOR";
    return inactive > 0 ? "DEGRADED" : "ONLINE";
}

void fl_rule_write_status(struct fl_json_writer *writer, const struct fl_rule *rule)
{
    char updated[40];
    char day[24];
    time_t seconds = (time_t)(rule->updated_unix_ms / 1000);
    struct tm utc;
    gmtime_r(&seconds, &utc);
    strftime(day, sizeof(day), "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(updated, sizeof(updated), "%s.%03uZ", day, (unsigned)(rule->updated_unix_ms % 1000));
    fl_json_write_object(writer);
    fl_json_write_key(writer, "adminStateUp");
    fl_json_write_bool(writer, rule->admin_state_up);
    fl_json_write_key(writer, "operatingStatus");
    fl_json_write_cstr(writer, operating_status(rule));
    fl_json_write_key(writer, "lastUpdated");
    fl_json_write_cstr(writer, updated);
    fl_json_write_object_end(writer);
}

static void write_number(struct fl_json_writer *writer, const char *key,
                         const _Atomic uint64_t *value)
{
    fl_json_write_key(writer, key);
    fl_json_write_u64(writer,
                      value == NULL ? 0 : atomic_load_explicit(value, memory_order_relaxed));
}

void fl_rule_write_stats(struct fl_json_writer *writer, const struct fl_rule *rule)
{
    const struct fl_rule_live *live = rule->live;
    fl_json_write_object(writer);
    write_number(writer, "activeConnections", live == NULL ? NULL : &live->connections);
    write_number(writer, "bytesIn", live == NULL ? NULL : &live->bytes_in);
    write_number(writer, "bytesOut", live == NULL ? NULL : &live->bytes_out);
    write_number(writer, "totalConnections", live == NULL ? NULL : &live->total_connections);
    fl_json_write_object_end(writer);
}
