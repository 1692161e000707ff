/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker is called: the same id on every replica (epp.md 14.3).
 *
 * worker_id = SipHash-1-3 with key (0, 0) over the name followed by one byte 0xFF, cut to 53 bits
 * so that it survives JSON numbers that pass through doubles. The name is the pod's, or `ip:port`
 * of a bare endpoint. Pure. */
#ifndef FL_DISCOVERY_WORKER_ID_H
#define FL_DISCOVERY_WORKER_ID_H

#include <stdint.h>

#include "base/bytes.h"

/* The 64-bit hash before the cut. */
uint64_t fl_worker_hash(struct fl_bytes name);
uint64_t fl_worker_id(struct fl_bytes name);

#endif
