/* SPDX-License-Identifier: Apache-2.0 */
/* Entries for tests: a valid rule, to which a test adds members. The last of two equal keys wins,
 * so an added member also replaces. */
#ifndef TESTS_UNIT_RULES_ENTRY_H
#define TESTS_UNIT_RULES_ENTRY_H

#include <stdlib.h>

#include "base/buf.h"
#include "rules/rules.h"

#define ENTRY_ENDPOINTS                                                                            \
    "[{\"endpointIP\":\"198.51.100.21\",\"targetPort\":8000,\"weight\":1},"                        \
    "{\"endpointIP\":\"198.51.100.22\",\"targetPort\":8000,\"weight\":1}]"
#define EPP "\"eppEndpoint\":\"203.0.113.40:9002\""

/* Appends an entry to `out`. `endpoints` NULL: the two above. */
static inline struct fl_bytes entry_json(struct fl_buf *out, const char *members,
                                         const char *endpoints)
{
    fl_buf_clear(out);
    int rc = fl_buf_printf(out,
                           "{\"endpoints\":%s,\"serviceArguments\":{\"externalIP\":\"192.0.2.30\","
                           "\"port\":8080,\"protocol\":\"tcp\",\"mode\":4,\"sel\":0%s%s}}",
                           endpoints == NULL ? ENTRY_ENDPOINTS : endpoints,
                           members[0] == 0 ? "" : ",", members);
    if (rc < 0)
        abort();
    return fl_buf_bytes(out);
}

/* The body of an answer as text; lent until the next change of `out`. */
static inline const char *answer_text(struct fl_buf *out, const struct fl_rest_answer *answer)
{
    fl_buf_clear(out);
    if (fl_rest_write(out, answer) < 0 || fl_buf_append_byte(out, 0) < 0)
        abort();
    return (const char *)out->head;
}

/* The output entry as text. */
static inline const char *rule_text(struct fl_buf *out, const struct fl_rule *rule, bool with_live)
{
    struct fl_json_writer writer;
    fl_buf_clear(out);
    fl_json_writer_init(&writer, out);
    fl_rule_write(&writer, rule, with_live);
    if (fl_json_writer_end(&writer) < 0 || fl_buf_append_byte(out, 0) < 0)
        abort();
    return (const char *)out->head;
}

#endif
