/* SPDX-License-Identifier: Apache-2.0 */
/* Options of `fairlead gateway`: one table for flags, environment, --help and docs/options.md
 * (gateway.md 2). What is not served yet has no row, so it is refused as unknown. */
#ifndef FL_APPS_GATEWAY_CONFIG_H
#define FL_APPS_GATEWAY_CONFIG_H

#include "base/opt.h"
#include "net/stream.h"

struct gateway_config {
    /* REST */
    const char *host, *ready_file, *token_file, *log_level;
    uint32_t port;
    bool has_prometheus;
    /* rules */
    struct fl_opt_list rule_files;
    bool check;
    /* request path */
    uint32_t loops, max_headers, max_connections, epp_max_inflight;
    uint64_t max_header_bytes, max_body_bytes, max_buffered_bytes;
    int no_route_status;
    bool trusts_forwarded, sends_protocol_config;
    struct fl_opt_list strip;
    /* stopping, logs */
    uint64_t drain_timeout_ms, drain_delay_ms;
    int log_format;

    /* derived by gateway_config_read() */
    struct fl_addr rest_addr;
    const char **strip_names; /* NULL-terminated */
    char *token;              /* of token_file; NULL: none */
};

extern const struct fl_opt gateway_opts[];

/* Parses and cross-checks. True to go on, then gateway_config_fini(); false with the exit status.
 */
bool gateway_config_read(struct gateway_config *config, int argc, char **argv, int *status);
void gateway_config_fini(struct gateway_config *config);

#endif
