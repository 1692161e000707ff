/* SPDX-License-Identifier: Apache-2.0 */
/* One rule: what is taken and refused, in which words, and how it is written back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "unit/rules/entry.h"

#define NOW_MS UINT64_C(1796040000123)

static struct fl_rule *read_entry(const char *members, const char *endpoints,
                                  struct fl_rest_answer *answer)
{
    struct fl_buf json = {0};
    struct fl_rule *rule = fl_rule_new(entry_json(&json, members, endpoints), NOW_MS, answer);
    fl_buf_fini(&json);
    return rule;
}

static struct fl_rule *good_entry(const char *members, const char *endpoints)
{
    struct fl_rest_answer answer;
    struct fl_rule *rule = read_entry(members, endpoints, &answer);
    if (rule == NULL)
        fail_msg("%s: %d %s %s", members, answer.status, answer.message, answer.result);
    return rule;
}

struct refusal {
    const char *why, *members, *endpoints;
    int status, code;
    const char *text; /* contained in result (400) or message (422) */
};

static void expect_refusals(const struct refusal *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct fl_rest_answer answer;
        struct fl_rule *rule = read_entry(rows[i].members, rows[i].endpoints, &answer);
        if (rule != NULL)
            fail_msg("row %zu (%s) was taken", i, rows[i].why);
        const char *said = answer.status == 422 ? answer.message : answer.result;
        if (answer.status != rows[i].status || answer.code != rows[i].code ||
            strstr(said, rows[i].text) == NULL)
            fail_msg("row %zu (%s): %d %d \"%s\"", i, rows[i].why, answer.status, answer.code,
                     said);
        if (strstr(said, "exist") != NULL)
            fail_msg("row %zu: \"%s\" would be read as success", i, said);
    }
}

/* gateway.md 4.7, the example of the page; section 16 case 2 */
static void the_example_of_the_page_is_written_back(void **state)
{
    (void)state;
    static const char posted[] =
        "{\"endpoints\":[{\"endpointIP\":\"198.51.100.21\",\"targetPort\":8000,\"weight\":1}],"
        "\"serviceArguments\":{\"name\":\"demo-epp\",\"externalIP\":\"192.0.2.30\",\"port\":8080,"
        "\"protocol\":\"tcp\",\"mode\":4,\"sel\":0,\"eppEndpoint\":\"203.0.113.40:9002\","
        "\"eppFailureMode\":\"FailClose\",\"eppTimeoutMs\":3000,\"id\":\"6f0c\"}}";
    static const char written[] =
        "{\"serviceArguments\":{\"id\":\"6f0c\",\"adminStateUp\":true,"
        "\"externalIP\":\"192.0.2.30\",\"port\":8080,\"protocol\":\"tcp\",\"sel\":0,\"mode\":4,"
        "\"inactiveTimeOut\":1800,\"name\":\"demo-epp\",\"backend_protocol\":\"http1\","
        "\"eppEndpoint\":\"203.0.113.40:9002\",\"eppFailureMode\":\"FailClose\","
        "\"eppTimeoutMs\":3000},\"secondaryIPs\":[],\"allowedSources\":[],\"endpoints\":["
        "{\"endpointIP\":\"198.51.100.21\",\"targetPort\":8000,\"weight\":1,\"backup\":false,"
        "\"state\":\"active\",\"counter\":\"0:0\"}]}";
    struct fl_rest_answer answer;
    struct fl_buf out = {0};
    struct fl_rule *rule = fl_rule_new(fl_bytes_of(posted), NOW_MS, &answer);
    assert_non_null(rule);
    assert_string_equal(answer_text(&out, &answer), "{\"result\":\"Success\"}");
    assert_string_equal(rule_text(&out, rule, true), written);
    fl_rule_unref(rule);
    fl_buf_fini(&out);
}

/* gateway.md 4.4 defaults */
static void absent_members_have_their_defaults(void **state)
{
    (void)state;
    struct fl_rule *rule = good_entry("", NULL);
    assert_true(rule->admin_state_up);
    assert_int_equal(rule->inactive_timeout_s, 240);
    assert_int_equal(rule->connect_timeout_ms, 500);
    assert_int_equal(rule->inspect_timeout_ms, 10000);
    assert_int_equal(rule->data_timeout_ms, 0);
    assert_int_equal(rule->max_stream_s, 86400);
    assert_int_equal(rule->probe_timeout_s, 60);
    assert_int_equal(rule->probe_retries, 2);
    assert_int_equal(rule->chwbl_load_factor, 125);
    assert_int_equal(rule->chwbl_replication, 100);
    assert_int_equal(rule->chwbl_level, 1);
    assert_false(fl_rule_has_epp(rule));
    fl_rule_unref(rule);

    rule = good_entry(EPP, NULL);
    assert_int_equal(rule->inactive_timeout_s, 1800);
    assert_int_equal(rule->epp_timeout_ms, 3000);
    assert_int_equal(rule->epp_failure, FL_EPP_FAIL_CLOSE);
    assert_int_equal(rule->epp_response_body, FL_EPP_BODY_EDGES);
    assert_false(rule->epp_plaintext);
    assert_true(fl_bytes_eq(rule->epp_host, FL_BYTES("203.0.113.40")));
    assert_int_equal(rule->epp_port, 9002);
    fl_rule_unref(rule);
}

/* gateway.md 3: keys without case, an exact match wins; empty enums, null lists; section 16 cases
 * 12, 68 */
static void what_kube_loxilb_sends_is_taken(void **state)
{
    (void)state;
    static const char sent[] =
        "{\"endpoints\":[{\"endpointIP\":\"198.51.100.21\",\"targetPort\":8000,\"weight\":1,"
        "\"state\":\"\",\"counter\":\"\"}],\"secondaryIPs\":null,\"allowedSources\":null,"
        "\"serviceArguments\":{\"externalIP\":\"192.0.2.30\",\"privateIP\":\"\",\"PORT\":8080,"
        "\"protocol\":\"tcp\",\"Mode\":4,\"SEL\":0,\"block\":0,\"probetype\":\"\",\"probeport\":0,"
        "\"probereq\":\"\",\"proberesp\":\"\",\"BGP\":false,\"Monitor\":true,"
        "\"path_match_mode\":\"\",\"backend_protocol\":\"\",\"eppFailureMode\":\"\","
        "\"probeTimeout\":0,\"probeRetries\":0,\"chwbl_replication\":0,\"unknown\":{\"a\":1}}}";
    struct fl_rest_answer answer;
    struct fl_buf out = {0};
    struct fl_rule *rule = fl_rule_new(fl_bytes_of(sent), NOW_MS, &answer);
    if (rule == NULL)
        fail_msg("%s", answer_text(&out, &answer));
    assert_true(rule->monitor);
    assert_int_equal(rule->probe_timeout_s, 60);
    assert_non_null(strstr(rule_text(&out, rule, true), "\"monitor\":true"));
    assert_null(strstr(rule_text(&out, rule, true), "epp"));
    fl_rule_unref(rule);

    rule = good_entry("\"port\":1,\"PORT\":2", NULL);
    assert_int_equal(rule->port, 1);
    fl_rule_unref(rule);
    fl_buf_fini(&out);
}

/* gateway.md 4.2: 422 and its codes */
static void schema_violations_are_422(void **state)
{
    (void)state;
#define WHERE "attr.serviceArguments."
    static const struct refusal rows[] = {
        {"text for a number", "\"port\":\"80\"", NULL, 422, 601,
         WHERE "port in body must be of type integer: \"string\""},
        {"a fraction", "\"port\":80.5", NULL, 422, 601,
         WHERE "port in body must be of type integer"},
        {"number for a text", "\"name\":1", NULL, 422, 601,
         WHERE "name in body must be of type string: \"number\""},
        {"number for a bool", "\"monitor\":1", NULL, 422, 601,
         WHERE "monitor in body must be of type boolean: \"number\""},
        {"port above", "\"port\":65536", NULL, 422, 608,
         WHERE "port in body should be less than or equal to 65535"},
        {"port below", "\"port\":-1", NULL, 422, 609,
         WHERE "port in body should be greater than or equal to 0"},
        {"a number beyond 64 bits", "\"port\":99999999999999999999", NULL, 422, 608, "port"},
        {"mode above", "\"mode\":6", NULL, 422, 608,
         "mode in body should be less than or equal to 5"},
        {"sel above", "\"sel\":11", NULL, 422, 608,
         "sel in body should be less than or equal to 10"},
        {"security above", "\"security\":3", NULL, 422, 608, "security"},
        {"protocol", "\"protocol\":\"quic\"", NULL, 422, 606,
         WHERE "protocol in body should be one of [tcp udp sctp icmp]"},
        {"probetype", "\"probetype\":\"x\"", NULL, 422, 606, "probetype in body should be one of"},
        {"eppResponseBody", EPP ",\"eppResponseBody\":\"x\"", NULL, 422, 606,
         "eppResponseBody in body should be one of [edges all first none]"},
        {"picker", "\"picker\":\"epp\"", NULL, 422, 606,
         "picker in body should be one of [embedded]"},
        {"model_name of 128 bytes",
         "\"model_name\":\"" /* 8 x 16 */
         "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
         "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"",
         NULL, 422, 603, WHERE "model_name in body should be at most 127 chars long"},
        {"chwbl_mean_load_factor below", "\"chwbl_mean_load_factor\":99", NULL, 422, 609,
         "greater than or equal to 100"},
        {"chwbl_replication above", "\"chwbl_replication\":1025", NULL, 422, 608, "1024"},
        {"oper", "\"oper\":3", NULL, 422, 608, "oper"},
        {"endpoint without an address", "", "[{\"targetPort\":1,\"weight\":1}]", 422, 602,
         "attr.endpoints.0.endpointIP in body is required"},
        {"endpoint without a port", "", "[{\"endpointIP\":\"1.2.3.4\",\"weight\":1}]", 422, 602,
         "targetPort in body is required"},
        {"endpoint without a weight", "", "[{\"endpointIP\":\"1.2.3.4\",\"targetPort\":1}]", 422,
         602, "weight in body is required"},
        {"endpoint port 0", "", "[{\"endpointIP\":\"1.2.3.4\",\"targetPort\":0,\"weight\":1}]", 422,
         609, "targetPort in body should be greater than or equal to 1"},
        {"endpoint weight above", "",
         "[{\"endpointIP\":\"1.2.3.4\",\"targetPort\":1,\"weight\":256}]", 422, 608, "255"},
        {"endpoint that is no object", "", "[1]", 422, 601, "attr.endpoints.0"},
        {"endpoints that are no array", "", "{}", 422, 601, "attr.endpoints"},
        {"annotations that are no object", "\"annotations\":[]", NULL, 422, 601, "annotations"},
        {"an annotation that is no text", "\"annotations\":{\"a\":1}", NULL, 422, 601,
         "annotations"},
    };
    expect_refusals(rows, FL_ARRAY_LEN(rows));
}

/* gateway.md 4.5 steps 2 to 4 */
static void services_and_endpoints_are_checked(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {"no address", "\"externalIP\":\"\"", NULL, 400, 400, "malformed-service error"},
        {"a name as address", "\"externalIP\":\"host\"", NULL, 400, 400, "malformed-service error"},
        {"port 0", "\"port\":0", NULL, 400, 400, "malformed-service error"},
        {"a port range", "\"portMax\":9000", NULL, 400, 400, "serv-port-args range error"},
        {"a range that ends before it begins", "\"portMax\":80", NULL, 400, 400,
         "serv-port-args range error"},
        {"udp", "\"protocol\":\"udp\"", NULL, 400, 400, "malformed-proto error"},
        {"no protocol", "\"protocol\":\"\"", NULL, 400, 400, "malformed-proto error"},
        {"privateIP", "\"privateIP\":\"x\"", NULL, 400, 400, "malformed-service error"},
        {"inactiveTimeOut", "\"inactiveTimeOut\":86401", NULL, 400, 400, "service-args error"},
        {"probetype udp", "\"probetype\":\"udp\"", NULL, 400, 400, "malformed-service-ptype error"},
        {"http probe without a port", "\"probetype\":\"http\"", NULL, 400, 400,
         "malformed-service-pport error"},
        {"ping probe with a port", "\"probetype\":\"ping\",\"probeport\":1", NULL, 400, 400,
         "malformed-service-pport error"},
        {"a probe port alone", "\"probeport\":1", NULL, 400, 400, "malformed-service-pport error"},
        {"path without a slash", "\"path_prefix\":\"v1\"", NULL, 400, 400, "service-args error"},
        {"no endpoints", "", "[]", 400, 400, "endpoints-range error"},
        {"null endpoints", "", "null", 400, 400, "endpoints-range error"},
        {"a name as endpoint", "", "[{\"endpointIP\":\"pod\",\"targetPort\":1,\"weight\":1}]", 400,
         400, "malformed-lbep error"},
    };
    expect_refusals(rows, FL_ARRAY_LEN(rows));
}

/* gateway.md 4.5 step 5; section 16 cases 6 to 10, 13, 14, 77, 82 */
static void epp_members_are_checked(void **state)
{
    (void)state;
#define HOST_PORT(text) "\"eppEndpoint\":\"" text "\"", NULL, 400, 400, "host:port"
    static const struct refusal rows[] = {
        {"failure mode in lower case", EPP ",\"eppFailureMode\":\"failopen\"", NULL, 400, 400,
         "eppFailureMode"},
        {"failure mode without an endpoint", "\"eppFailureMode\":\"x\"", NULL, 400, 400,
         "eppFailureMode"},
        {"timeout", EPP ",\"eppTimeoutMs\":600001", NULL, 400, 400, "eppTimeoutMs"},
        {"timeout without an endpoint", "\"eppTimeoutMs\":600001", NULL, 400, 400, "eppTimeoutMs"},
        {"NUL", "\"eppEndpoint\":\"a\\u0000:1\"", NULL, 400, 400, "NUL"},
        {"no port", HOST_PORT("epp.svc")},
        {"the word embedded", HOST_PORT("embedded")},
        {"a scheme", HOST_PORT("grpc://epp:9002")},
        {"port 0", HOST_PORT("epp:0")},
        {"port above", HOST_PORT("epp:65536")},
        {"an empty port", HOST_PORT("epp:")},
        {"a path", HOST_PORT("epp:1/x")},
        {"a blank", HOST_PORT("e pp:1")},
        {"no host", HOST_PORT(":9002")},
        {"IPv6 without brackets", HOST_PORT("::1:9002")},
        {"a bracket left open", HOST_PORT("[::1:9002")},
        {"mode 0", EPP ",\"mode\":0", NULL, 400, 400, "mode=fullproxy"},
        {"pd_disagg_mode", EPP ",\"pd_disagg_mode\":true", NULL, 400, 400, "pd_disagg_mode"},
        {"with a picker", EPP ",\"picker\":\"embedded\"", NULL, 400, 400,
         "picker and eppEndpoint are exclusive"},
        {"a relative CA file", EPP ",\"eppCaFile\":\"ca.pem\"", NULL, 400, 400, "eppCaFile"},
        {"a CA file and plaintext", EPP ",\"eppCaFile\":\"/ca.pem\",\"eppPlaintext\":true", NULL,
         400, 400, "eppCaFile"},
        {"a name to verify without a CA", EPP ",\"eppServerName\":\"x\"", NULL, 400, 400,
         "eppServerName needs eppCaFile"},
        {"a misspelt key", "\"epp_endpoint\":\"a:1\"", NULL, 400, 400,
         "unknown field epp_endpoint"},
        {"another case and dashes", "\"EPP-Endpoint\":1", NULL, 400, 400,
         "unknown field EPP-Endpoint"},
        {"a misspelt picker key", "\"pickerTokenizer\":\"x\"", NULL, 400, 400,
         "unknown field pickerTokenizer"},
        {"an EPP key in an endpoint", "",
         "[{\"endpointIP\":\"1.2.3.4\",\"targetPort\":1,\"weight\":1,\"eppEndpoint\":\"a:1\"}]",
         400, 400, "unknown field eppEndpoint"},
        {"a picker field alone", "\"pickerBlockSize\":16", NULL, 400, 400,
         "pickerBlockSize needs picker"},
        {"a picker without a model", "\"picker\":\"embedded\"", NULL, 400, 400,
         "pickerModel is required with picker"},
        {"a picker without a tokenizer", "\"picker\":\"embedded\",\"pickerModel\":\"m\"", NULL, 400,
         400, "pickerTokenizerUrl is required with picker"},
        {"a bad tokenizer URL",
         "\"picker\":\"embedded\",\"pickerModel\":\"m\",\"pickerTokenizerUrl\":\"x\"", NULL, 400,
         400, "pickerTokenizerUrl"},
        {"two models",
         "\"picker\":\"embedded\",\"pickerModel\":\"m\",\"pickerTokenizerProtocol\":\"none\","
         "\"model_name\":\"n\"",
         NULL, 400, 400, "model_name and pickerModel differ"},
    };
    expect_refusals(rows, FL_ARRAY_LEN(rows));
}

static void an_epp_key_at_the_top_is_not_dropped(void **state)
{
    (void)state;
    struct fl_rest_answer answer;
    assert_null(fl_rule_new(FL_BYTES("{\"eppEndpoint\":\"a:1\",\"serviceArguments\":{}}"), NOW_MS,
                            &answer));
    assert_int_equal(answer.status, 400);
    assert_string_equal(answer.result, "unknown field eppEndpoint");
}

/* gateway.md 4.5: eppEndpoint of 255 bytes is allowed; section 16 cases 7, 10 */
static void epp_bounds_are_inclusive(void **state)
{
    (void)state;
    struct fl_rest_answer answer;
    char members[512];
    for (int n = 255; n <= 256; n++) {
        snprintf(members, sizeof(members), "\"eppEndpoint\":\"%0*d:9002\"", n - 5, 7);
        struct fl_rule *rule = read_entry(members, NULL, &answer);
        if ((rule != NULL) != (n <= 255))
            fail_msg("%d bytes: %s", n, answer.result);
        if (rule == NULL)
            assert_non_null(strstr(answer.result, "eppEndpoint is 256 bytes, at most 255"));
        fl_rule_unref(rule);
    }
    struct fl_rule *rule = good_entry(EPP ",\"eppTimeoutMs\":600000", NULL);
    assert_int_equal(rule->epp_timeout_ms, 600000);
    fl_rule_unref(rule);
    rule = good_entry(EPP ",\"eppTimeoutMs\":0", NULL);
    assert_int_equal(rule->epp_timeout_ms, 3000);
    fl_rule_unref(rule);
    rule = good_entry("\"inactiveTimeOut\":86400", NULL);
    assert_int_equal(rule->inactive_timeout_s, 86400);
    fl_rule_unref(rule);
}

static void epp_hosts_may_be_names_and_addresses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host;
        uint16_t port;
    } rows[] = {
        {"epp:1", "epp", 1},
        {"igw-epp.ns.svc.cluster.local.:9002", "igw-epp.ns.svc.cluster.local.", 9002},
        {"[2001:db8::1]:65535", "2001:db8::1", 65535},
        {"10.0.0.1:80", "10.0.0.1", 80},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_bytes host;
        uint16_t port;
        assert_true(fl_rule_split_host_port(fl_bytes_of(rows[i].text), &host, &port));
        assert_true(fl_bytes_eq(host, fl_bytes_of(rows[i].host)));
        assert_int_equal(port, rows[i].port);
    }
}

/* gateway.md 4.5: without eppEndpoint the other epp fields are inert; section 16 case 11 */
static void epp_members_without_an_endpoint_are_inert(void **state)
{
    (void)state;
    struct fl_buf out = {0};
    struct fl_rule *plain = good_entry("", NULL);
    struct fl_rule *rule = good_entry("\"eppTimeoutMs\":5,\"eppFailureMode\":\"FailOpen\","
                                      "\"eppPlaintext\":true,\"eppResponseBody\":\"all\","
                                      "\"eppServerName\":\"x\"",
                                      NULL);
    assert_null(strstr(rule_text(&out, rule, true), "epp"));
    assert_int_equal(rule->epp_failure, FL_EPP_FAIL_CLOSE);
    assert_true(fl_rule_eq(plain, rule));
    fl_rule_unref(rule);
    fl_rule_unref(plain);
    fl_buf_fini(&out);
}

/* gateway.md 4.5 step 6, 10; section 16 case 6 */
static void what_is_not_supported_is_refused(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {"mode 0", "\"mode\":0", NULL, 400, 400, "mode=fullproxy required"},
        {"mode 5", "\"mode\":5", NULL, 400, 400, "mode=fullproxy required"},
        {"sel 5", "\"sel\":5", NULL, 400, 400, "sel=5 not supported"},
        {"sel 6", "\"sel\":6", NULL, 400, 400, "non-udp-n3-args error"},
        {"sel 7", "\"sel\":7", NULL, 400, 400, "sel=7 not supported"},
        {"sel 9", "\"sel\":9", NULL, 400, 400, "sel=9 not supported"},
        {"kvExactMode", "\"kvExactMode\":1", NULL, 400, 400, "kvExactMode not supported"},
        {"pd_disagg_mode", "\"pd_disagg_mode\":true", NULL, 400, 400, "pd_disagg_mode"},
        {"egress", "\"egress\":true", NULL, 400, 400, "egress"},
        {"snat", "\"snat\":true", NULL, 400, 400, "snat"},
        {"proxyprotocolv2", "\"proxyprotocolv2\":true", NULL, 400, 400, "proxyprotocolv2"},
    };
    expect_refusals(rows, FL_ARRAY_LEN(rows));
}

/* gateway.md 4.5: the first failure in the order of the steps is answered */
static void checks_run_in_the_order_of_the_page(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {"schema before service", "\"port\":0,\"sel\":\"x\"", NULL, 422, 601, "sel"},
        {"unknown key before schema", "\"eppX\":1,\"sel\":\"x\"", NULL, 400, 400, "unknown field"},
        {"service before endpoints", "\"port\":0", "[]", 400, 400, "malformed-service"},
        {"endpoints before EPP", "\"eppFailureMode\":\"x\"", "[]", 400, 400, "endpoints-range"},
        {"EPP before mode", "\"eppFailureMode\":\"x\",\"mode\":0", NULL, 400, 400,
         "eppFailureMode"},
        {"picker before sel", "\"pickerModel\":\"x\",\"sel\":5", NULL, 400, 400, "needs picker"},
    };
    expect_refusals(rows, FL_ARRAY_LEN(rows));
}

/* gateway.md 4.1: malformed JSON, nesting above 128 */
static void malformed_bodies_are_400(void **state)
{
    (void)state;
    static const char *const bodies[] = {"", "{", "{\"a\":}", "[", "{} x"};
    static const char words[] = "parsing attr body from \"\" failed, because ";
    struct fl_rest_answer answer;
    for (size_t i = 0; i < FL_ARRAY_LEN(bodies); i++) {
        assert_null(fl_rule_new(fl_bytes_of(bodies[i]), NOW_MS, &answer));
        assert_int_equal(answer.status, 400);
        assert_int_equal(strncmp(answer.message, words, sizeof(words) - 1), 0);
    }
    char deep[300];
    memset(deep, '[', sizeof(deep));
    assert_null(fl_rule_new(fl_bytes(deep, sizeof(deep)), NOW_MS, &answer));
    assert_int_equal(answer.status, 400);
    assert_null(fl_rule_new(FL_BYTES("[]"), NOW_MS, &answer));
    assert_int_equal(answer.status, 422);
    assert_null(fl_rule_new(FL_BYTES("{}"), NOW_MS, &answer));
    assert_int_equal(answer.status, 422);
    assert_int_equal(answer.code, 602);
}

/* gateway.md 4.4: duplicates merged, last weight wins; 4.5.3: count */
static void endpoints_are_merged_and_counted(void **state)
{
    (void)state;
    struct fl_rest_answer answer;
    struct fl_rule *rule = good_entry(
        "", "[{\"endpointIP\":\"1.2.3.4\",\"targetPort\":1,\"weight\":1},"
            "{\"endpointIP\":\"2001:DB8::1\",\"targetPort\":1,\"weight\":2},"
            "{\"endpointIP\":\"[2001:db8:0::1]\",\"targetPort\":1,\"weight\":0},"
            "{\"endpointIP\":\"1.2.3.4\",\"targetPort\":1,\"weight\":9,\"backup\":true}]");
    assert_int_equal(rule->endpoint_count, 2);
    assert_int_equal(rule->endpoints[0].weight, 9);
    assert_true(fl_bytes_eq(rule->endpoints[0].address, FL_BYTES("1.2.3.4:1")));
    assert_true(fl_bytes_eq(rule->endpoints[1].address, FL_BYTES("[2001:db8::1]:1")));
    assert_int_equal(rule->primary_count, 0);
    assert_int_equal(rule->backup_count, 1);
    fl_rule_unref(rule);

    for (int n = FL_RULE_MAX_ENDPOINTS; n <= FL_RULE_MAX_ENDPOINTS + 1; n++) {
        struct fl_buf list = {0};
        for (int i = 0; i < n; i++)
            fl_buf_printf(&list, "%c{\"endpointIP\":\"10.0.%d.%d\",\"targetPort\":1,\"weight\":1}",
                          i == 0 ? '[' : ',', i / 256, i % 256);
        fl_buf_printf(&list, "]%c", 0);
        rule = read_entry("", (const char *)list.head, &answer);
        if ((rule != NULL) != (n <= FL_RULE_MAX_ENDPOINTS))
            fail_msg("%d endpoints: %s", n, answer.result);
        if (rule == NULL)
            assert_string_equal(answer.result, "endpoints-range error");
        fl_rule_unref(rule);
        fl_buf_fini(&list);
    }
    /* section 16 case 54 */
    rule = good_entry(EPP, "[]");
    assert_int_equal(rule->endpoint_count, 0);
    fl_rule_unref(rule);
}

/* gateway.md 4.6, last paragraph */
static void comparison_ignores_order_and_spelled_out_defaults(void **state)
{
    (void)state;
    static const struct {
        const char *why, *a_members, *a_endpoints, *b_members, *b_endpoints;
        bool is_equal;
    } rows[] = {
#define E1 "{\"endpointIP\":\"1.1.1.1\",\"targetPort\":1,\"weight\":1}"
#define E2 "{\"endpointIP\":\"1.1.1.2\",\"targetPort\":1,\"weight\":1}"
        {"order of endpoints", "", "[" E1 "," E2 "]", "", "[" E2 "," E1 "]", true},
        {"state and counter", "", "[" E1 "]", "",
         "[{\"endpointIP\":\"1.1.1.1\",\"targetPort\":1,\"weight\":1,\"state\":\"inactive\","
         "\"counter\":\"1:2\"}]",
         true},
        {"defaults", "", NULL,
         "\"adminStateUp\":true,\"inactiveTimeOut\":240,\"probeTimeout\":60,\"portMax\":8080,"
         "\"timeoutMemberConnect\":500,\"chwbl_mean_load_factor\":125,\"backend_protocol\":"
         "\"http1\",\"path_match_mode\":\"disabled\",\"name\":\"\"",
         NULL, true},
        {"defaults of an EPP", EPP, NULL,
         EPP ",\"eppFailureMode\":\"FailClose\",\"eppTimeoutMs\":3000,\"eppPlaintext\":false,"
             "\"eppResponseBody\":\"edges\"",
         NULL, true},
        {"annotations in another order", "\"annotations\":{\"a\":\"1\",\"b\":\"2\"}", NULL,
         "\"annotations\":{\"b\":\"2\",\"a\":\"1\"}", NULL, true},
        {"an id left out", "\"id\":\"x\"", NULL, "", NULL, true},
        {"another id", "\"id\":\"x\"", NULL, "\"id\":\"y\"", NULL, false},
        {"a name", "", NULL, "\"name\":\"x\"", NULL, false},
        {"an EPP", "", NULL, EPP, NULL, false},
        {"a weight", "", "[" E1 "]", "",
         "[{\"endpointIP\":\"1.1.1.1\",\"targetPort\":1,\"weight\":2}]", false},
        {"one endpoint more", "", "[" E1 "]", "", "[" E1 "," E2 "]", false},
        {"an annotation", "\"annotations\":{\"a\":\"1\"}", NULL, "\"annotations\":{\"a\":\"2\"}",
         NULL, false},
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_rule *a = good_entry(rows[i].a_members, rows[i].a_endpoints);
        struct fl_rule *b = good_entry(rows[i].b_members, rows[i].b_endpoints);
        if (fl_rule_eq(a, b) != rows[i].is_equal)
            fail_msg("%s", rows[i].why);
        fl_rule_unref(a);
        fl_rule_unref(b);
    }
}

/* The output form holds the whole rule: files and copies depend on it. */
static void what_is_written_reads_back_as_the_same_rule(void **state)
{
    (void)state;
    static const char *const members[] = {
        "",
        EPP,
        EPP ",\"eppFailureMode\":\"FailOpen\",\"eppTimeoutMs\":7,\"eppPlaintext\":true,"
            "\"eppResponseBody\":\"none\"",
        EPP ",\"eppCaFile\":\"/a\",\"eppServerName\":\"b\"",
        "\"id\":\"i\",\"name\":\"n\",\"adminStateUp\":false,\"inactiveTimeOut\":9,\"host\":\"H.x\","
        "\"path_prefix\":\"/p\",\"path_match_mode\":\"exact\",\"model_name\":\"m\"",
        "\"monitor\":true,\"probetype\":\"http\",\"probeport\":1,\"probereq\":\"/h\",\"proberesp\":"
        "\"ok\",\"probeTimeout\":5,\"probeRetries\":3",
        "\"timeoutMemberConnect\":1,\"timeoutMemberData\":2,\"timeoutTcpInspect\":3,\"sse_mode\":"
        "true,\"max_stream_duration_sec\":4,\"backend_keepalive_interval_sec\":5,\"cb_enable\":"
        "true,\"connectionLimit\":6,\"session_header_name\":\"s\",\"managed\":true",
        "\"chwbl_prefix_hash_level\":2,\"chwbl_prefix_hash_flags\":3,\"chwbl_mean_load_factor\":"
        "150,"
        "\"chwbl_replication\":9,\"chwbl_enable_cache_salt\":true",
        "\"annotations\":{\"a\\\"\":\"1\\u0000\"},\"projectId\":\"p\",\"trace_type\":\"t\","
        "\"privateIP\":\"10.0.0.1\",\"block\":3,\"bgp\":true",
        "\"trace_type\":17",
    };
    static const char endpoints[] =
        "[{\"endpointIP\":\"::1\",\"targetPort\":1,\"weight\":0,\"backup\":true,\"monitorAddress\":"
        "\"1.1.1.1\",\"httpMethod\":\"GET\",\"urlPath\":\"/u\",\"expectedCodes\":\"200-204\","
        "\"httpVersion\":\"1.0\",\"domainName\":\"d\",\"subnetId\":\"s\",\"ep_role\":\"r\","
        "\"nixl_port\":9}]";
    for (size_t i = 0; i < FL_ARRAY_LEN(members); i++) {
        struct fl_buf first = {0};
        struct fl_buf second = {0};
        struct fl_rule *rule = good_entry(members[i], i % 2 == 0 ? endpoints : NULL);
        struct fl_rule *copy = fl_rule_copy(rule, NOW_MS);
        assert_true(fl_rule_eq(rule, copy));
        assert_true(fl_bytes_eq(rule->key, copy->key));
        assert_string_equal(rule_text(&first, rule, false), rule_text(&second, copy, false));
        fl_rule_unref(rule);
        fl_rule_unref(copy);
        fl_buf_fini(&first);
        fl_buf_fini(&second);
    }
}

/* gateway.md 1: the rule key */
static void keys_tell_rules_apart(void **state)
{
    (void)state;
    static const struct {
        const char *why, *members;
        bool is_same;
    } rows[] = {
        {"another name", "\"name\":\"x\"", true},
        {"another EPP", EPP, true},
        {"another sel", "\"sel\":2", true},
        {"host of the same name in another spelling", "\"host\":\"\"", true},
        {"address", "\"externalIP\":\"192.0.2.31\"", false},
        {"port", "\"port\":1", false},
        {"host", "\"host\":\"a\"", false},
        {"path", "\"path_prefix\":\"/a\"", false},
        {"path mode", "\"path_match_mode\":\"prefix\"", false},
        {"model", "\"model_name\":\"a\"", false},
        {"block", "\"block\":1", false},
    };
    struct fl_rule *plain = good_entry("", NULL);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_rule *rule = good_entry(rows[i].members, NULL);
        if (fl_bytes_eq(rule->key, plain->key) != rows[i].is_same)
            fail_msg("%s", rows[i].why);
        fl_rule_unref(rule);
    }
    fl_rule_unref(plain);
    struct fl_rule *a = good_entry("\"host\":\"A.example.:80\"", NULL);
    struct fl_rule *b = good_entry("\"host\":\"a.EXAMPLE\"", NULL);
    assert_true(fl_bytes_eq(a->key, b->key));
    fl_rule_unref(a);
    fl_rule_unref(b);
}

/* gateway.md 5.5 */
static void sources_are_compared_by_prefix(void **state)
{
    (void)state;
    static const char with_sources[] =
        "{\"endpoints\":" ENTRY_ENDPOINTS ",\"allowedSources\":[{\"prefix\":\"10.1.0.0/15\"},"
        "{\"prefix\":\"192.0.2.7\"},{\"prefix\":\"2001:db8::/33\"}],\"serviceArguments\":{"
        "\"externalIP\":\"192.0.2.30\",\"port\":8080,\"protocol\":\"tcp\",\"mode\":4}}";
    static const struct {
        const char *ip;
        bool is_allowed;
    } rows[] = {
        {"10.0.0.1", true},          {"10.1.255.255", true}, {"10.2.0.0", false},
        {"192.0.2.7", true},         {"192.0.2.8", false},   {"2001:db8:7fff::1", true},
        {"2001:db8:8000::1", false},
    };
    static const char *const bad[] = {"[{}]", "[{\"prefix\":\"10.0.0.0/33\"}]",
                                      "[{\"prefix\":\"x\"}]", "[{\"prefix\":\"10.0.0.0/\"}]",
                                      "[7]"};
    struct fl_rest_answer answer;
    struct fl_rule *rule = fl_rule_new(fl_bytes_of(with_sources), NOW_MS, &answer);
    assert_non_null(rule);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        struct fl_rule_ip ip;
        assert_true(fl_rule_ip_parse(fl_bytes_of(rows[i].ip), &ip));
        if (fl_rule_allows(rule, &ip) != rows[i].is_allowed)
            fail_msg("%s", rows[i].ip);
    }
    fl_rule_unref(rule);
    rule = good_entry("", NULL);
    struct fl_rule_ip any = {.family = 4};
    assert_true(fl_rule_allows(rule, &any));
    fl_rule_unref(rule);
    for (size_t i = 0; i < FL_ARRAY_LEN(bad); i++) {
        char text[512];
        snprintf(text, sizeof(text),
                 "{\"allowedSources\":%s,\"serviceArguments\":{\"externalIP\":\"192.0.2.30\"}}",
                 bad[i]);
        assert_null(fl_rule_new(fl_bytes_of(text), NOW_MS, &answer));
        assert_string_equal(answer.result, "allowedSources-args error");
    }
}

/* gateway.md 4.4 secondaryIPs */
static void secondary_addresses_are_refused_unless_empty(void **state)
{
    (void)state;
    struct fl_rest_answer answer;
    assert_null(fl_rule_new(FL_BYTES("{\"secondaryIPs\":[{\"secondaryIP\":\"1.1.1.1\"}],"
                                     "\"serviceArguments\":{}}"),
                            NOW_MS, &answer));
    assert_string_equal(answer.result, "secondaryIP-args error");
}

/* gateway.md 4.2: the error object */
static void answers_are_written_as_the_page_shows(void **state)
{
    (void)state;
    struct fl_buf out = {0};
    struct fl_rest_answer answer;
    fl_rest_refuse(&answer, 400, "endpoints-range error");
    assert_string_equal(answer_text(&out, &answer),
                        "{\"code\":400,\"message\":\"Malformed arguments for API call\","
                        "\"result\":\"endpoints-range error\"}");
    fl_rest_violation(&answer, 606, "attr.x in body should be one of [a]");
    assert_string_equal(answer_text(&out, &answer),
                        "{\"code\":606,\"message\":\"attr.x in body should be one of [a]\"}");
    fl_rest_refuse(&answer, 500, "disk");
    assert_string_equal(answer_text(&out, &answer),
                        "{\"code\":500,\"message\":\"disk\",\"result\":\"disk\"}");
    fl_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_example_of_the_page_is_written_back),
        cmocka_unit_test(absent_members_have_their_defaults),
        cmocka_unit_test(what_kube_loxilb_sends_is_taken),
        cmocka_unit_test(schema_violations_are_422),
        cmocka_unit_test(services_and_endpoints_are_checked),
        cmocka_unit_test(epp_members_are_checked),
        cmocka_unit_test(an_epp_key_at_the_top_is_not_dropped),
        cmocka_unit_test(epp_bounds_are_inclusive),
        cmocka_unit_test(epp_hosts_may_be_names_and_addresses),
        cmocka_unit_test(epp_members_without_an_endpoint_are_inert),
        cmocka_unit_test(what_is_not_supported_is_refused),
        cmocka_unit_test(checks_run_in_the_order_of_the_page),
        cmocka_unit_test(malformed_bodies_are_400),
        cmocka_unit_test(endpoints_are_merged_and_counted),
        cmocka_unit_test(comparison_ignores_order_and_spelled_out_defaults),
        cmocka_unit_test(what_is_written_reads_back_as_the_same_rule),
        cmocka_unit_test(keys_tell_rules_apart),
        cmocka_unit_test(sources_are_compared_by_prefix),
        cmocka_unit_test(secondary_addresses_are_refused_unless_empty),
        cmocka_unit_test(answers_are_written_as_the_page_shows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
