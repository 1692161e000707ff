/* SPDX-License-Identifier: Apache-2.0 */
/* The gateway's own answers, and its counters: tables against gateway.md 7, 9.7 and 13. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "proxy/errors.h"
#include "proxy/metrics.h"

/* gateway.md 7 */
static void every_error_has_its_status_and_word(void **state)
{
    (void)state;
    static const struct {
        enum fl_proxy_error error;
        int status;
        const char *word;
    } rows[] = {
        {FL_PROXY_BAD_REQUEST, 400, "bad_request"},
        {FL_PROXY_REQUEST_TIMEOUT, 408, "request_timeout"},
        {FL_PROXY_REQUEST_TOO_LARGE, 413, "request_too_large"},
        {FL_PROXY_EXPECTATION_FAILED, 417, "expectation_failed"},
        {FL_PROXY_HEADER_TOO_LARGE, 431, "header_too_large"},
        {FL_PROXY_NOT_IMPLEMENTED, 501, "not_implemented"},
        {FL_PROXY_BACKEND_UNREACHABLE, 502, "backend_unreachable"},
        {FL_PROXY_BACKEND_PROTOCOL_ERROR, 502, "backend_protocol_error"},
        {FL_PROXY_EPP_UNAVAILABLE, 503, "epp_unavailable"},
        {FL_PROXY_EPP_NO_ENDPOINT, 503, "epp_no_endpoint"},
        {FL_PROXY_NO_HEALTHY_BACKEND, 503, "no_healthy_backend"},
        {FL_PROXY_NO_ROUTE, 503, "no_route"},
        {FL_PROXY_MODEL_UNAVAILABLE, 503, "model_unavailable"},
        {FL_PROXY_SERVICE_PAUSED, 503, "service_paused"},
        {FL_PROXY_GATEWAY_OVERLOADED, 503, "gateway_overloaded"},
        {FL_PROXY_BACKEND_TIMEOUT, 504, "backend_timeout"},
        {FL_PROXY_HTTP_VERSION, 505, "http_version"},
    };
    assert_int_equal(FL_ARRAY_LEN(rows), FL_PROXY_ERROR_COUNT);
    for (size_t i = 0; i < FL_ARRAY_LEN(rows); i++) {
        const struct fl_proxy_error_row *row = fl_proxy_error_row(rows[i].error);
        assert_int_equal(row->status, rows[i].status);
        assert_string_equal(row->word, rows[i].word);
    }
}

static void expect_body(enum fl_proxy_error error, struct fl_bytes model, const char *text)
{
    struct fl_buf body = {0};
    const struct fl_proxy_error_row *row = fl_proxy_error_row(error);
    assert_int_equal(fl_proxy_write_error(&body, row->word, row->detail, model), 0);
    if (!fl_bytes_eq(fl_buf_bytes(&body), fl_bytes_of(text)))
        fail_msg("%.*s", FL_FMT(fl_buf_bytes(&body)));
    fl_buf_fini(&body);
}

/* gateway.md 9.7, 5.4 */
static void exact_bodies_are_those_of_the_page(void **state)
{
    (void)state;
    expect_body(
        FL_PROXY_EPP_UNAVAILABLE, (struct fl_bytes){0},
        "{\"error\":\"epp_unavailable\",\"detail\":\"the endpoint picker did not answer\"}");
    expect_body(FL_PROXY_EPP_NO_ENDPOINT, (struct fl_bytes){0},
                "{\"error\":\"epp_no_endpoint\","
                "\"detail\":\"the endpoint picker named no usable endpoint\"}");
    expect_body(FL_PROXY_NO_ROUTE, (struct fl_bytes){0},
                "{\"error\":\"no_route\",\"detail\":\"no routing rule matched the request path\"}");
    expect_body(FL_PROXY_MODEL_UNAVAILABLE, FL_BYTES("m\"1"),
                "{\"error\":\"model_unavailable\",\"model\":\"m\\\"1\","
                "\"detail\":\"no backend pool for this model\"}");
}

static bool has_line(struct fl_bytes text, const char *line)
{
    return fl_bytes_find(text, fl_bytes_of(line)) < text.n;
}

/* gateway.md 13, 16.58: families exist from the start, every outcome with 0 */
static void all_outcomes_exist_from_the_start(void **state)
{
    (void)state;
    static const char *const words[] = {"ok",        "no_endpoint", "body_too_large",
                                        "immediate", "error",       "evicted"};
    struct fl_metrics metrics;
    struct fl_buf text = {0};
    fl_metrics_init(&metrics, fl_proxy_metric_descs, FL_PROXY_METRIC_COUNT, 3, NULL);
    assert_int_equal(fl_metrics_write(&metrics, &text), 0);
    for (size_t i = 0; i < FL_ARRAY_LEN(words); i++) {
        struct fl_buf line = {0};
        assert_int_equal(fl_buf_printf(&line,
                                       "\nloxilb_ai_epp_requests_total{outcome=\"%s\"} 0\n%c",
                                       words[i], '\0'),
                         0);
        if (!has_line(fl_buf_bytes(&text), (const char *)line.head))
            fail_msg("%s is missing", words[i]);
        fl_buf_fini(&line);
    }
    assert_true(has_line(fl_buf_bytes(&text), "\nloxilb_ai_epp_duration_seconds_count 0\n"));
    assert_true(
        has_line(fl_buf_bytes(&text), "\nloxilb_ai_epp_duration_seconds_bucket{le=\"0.0025\"} 0"));
    fl_buf_fini(&text);
    fl_metrics_fini(&metrics);
}

static void figures_by_rule_are_summed_over_loops_and_equal_names(void **state)
{
    (void)state;
    struct fl_proxy_rule_stats *one = fl_proxy_rule_stats_new(3);
    struct fl_proxy_rule_stats *two = fl_proxy_rule_stats_new(3);
    const struct fl_proxy_rule_sample samples[] = {
        {FL_BYTES("r\"1"), one}, {FL_BYTES("other"), two}, {FL_BYTES("r\"1"), two}};
    struct fl_buf text = {0};
    fl_proxy_count_request(&one->shards[0], 200, 500);
    fl_proxy_count_request(&one->shards[2], 204, 400000000);
    fl_proxy_count_request(&one->shards[1], 499, 1000);
    fl_proxy_count_request(&two->shards[1], 503, 2000);
    fl_proxy_count_fallback(&two->shards[0], FL_PROXY_FALLBACK_NO_ENDPOINT);
    fl_proxy_observe_ttfb(&one->shards[0], 3000);
    assert_int_equal(fl_proxy_write_rule_metrics(samples, 3, &text), 0);
    static const char *const lines[] = {
        "\nfairlead_gateway_requests_total{rule=\"r\\\"1\",code=\"2xx\"} 2\n",
        "\nfairlead_gateway_requests_total{rule=\"r\\\"1\",code=\"499\"} 1\n",
        "\nfairlead_gateway_requests_total{rule=\"r\\\"1\",code=\"5xx\"} 1\n",
        "\nfairlead_gateway_requests_total{rule=\"other\",code=\"5xx\"} 1\n",
        "\nfairlead_gateway_fallback_total{rule=\"other\",cause=\"no_endpoint\"} 1\n",
        "\nloxilb_service_requests_total{service=\"r\\\"1\"} 4\n",
        "\nfairlead_gateway_request_duration_seconds_bucket{rule=\"r\\\"1\",le=\"0.001\"} 2\n",
        "\nfairlead_gateway_request_duration_seconds_bucket{rule=\"r\\\"1\",le=\"300\"} 3\n",
        "\nfairlead_gateway_request_duration_seconds_bucket{rule=\"r\\\"1\",le=\"+Inf\"} 4\n",
        "\nfairlead_gateway_ttfb_seconds_count{rule=\"r\\\"1\"} 1\n",
    };
    for (size_t i = 0; i < FL_ARRAY_LEN(lines); i++) {
        if (!has_line(fl_buf_bytes(&text), lines[i]))
            fail_msg("missing%s in\n%.*s", lines[i], FL_FMT(fl_buf_bytes(&text)));
    }
    fl_buf_fini(&text);
    fl_proxy_rule_stats_unref(one);
    fl_proxy_rule_stats_unref(two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_error_has_its_status_and_word),
        cmocka_unit_test(exact_bodies_are_those_of_the_page),
        cmocka_unit_test(all_outcomes_exist_from_the_start),
        cmocka_unit_test(figures_by_rule_are_summed_over_loops_and_equal_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
