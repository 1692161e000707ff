/* SPDX-License-Identifier: Apache-2.0 */
/* Validation of a service's configuration; the rest is public (fairlead/selection.h). */
#ifndef FL_SERVICE_CONFIG_H
#define FL_SERVICE_CONFIG_H

#include "fairlead/selection.h"

/* 0, or FL_ECONFIG with `invalid KV router configuration: <reason>`. */
int fl_router_config_check(const struct fl_router_config *config, struct fl_error *err);

#endif
