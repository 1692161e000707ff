/* SPDX-License-Identifier: Apache-2.0 */
/* KV event payloads from the wire to the index. The input is a row of payloads, each behind a
 * length of two bytes (big endian); all are fed to one applier, so that later ones meet what
 * earlier ones left. A first byte chooses the block size. The index must be sound afterwards
 * whatever came. */
#include <assert.h>
#include <stdlib.h>

#include "base/epoch.h"
#include "base/log.h"
#include "kvevents/apply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    fl_log_set_level(FL_LOG_ERROR);
    static const uint32_t sizes[] = {4, 1, 16, 8};
    struct fl_kv_counters counters = {0};
    struct fl_epoch *epoch = fl_epoch_new();
    struct fl_kvindex *index = fl_kvindex_new(epoch);
    struct fl_kv_applier applier = {.index = index,
                                    .counters = &counters,
                                    .name = "fuzz",
                                    .worker_id = 1,
                                    .block_tokens = sizes[data[0] % 4]};
    fl_kv_applier_init(&applier);

    for (size_t at = 1; at + 2 <= size;) {
        size_t n = (size_t)data[at] << 8 | data[at + 1];
        at += 2;
        if (n > size - at)
            n = size - at;
        /* A copy of its own, so that a read past the payload is seen. */
        uint8_t *payload = malloc(n > 0 ? n : 1);
        if (payload == NULL)
            abort();
        for (size_t i = 0; i < n; i++)
            payload[i] = data[at + i];
        fl_kv_apply(&applier, fl_bytes(payload, n), 0);
        free(payload);
        at += n;
    }
    const char *wrong = fl_kvindex_check(index);
    if (wrong != NULL)
        abort();
    fl_kv_applier_clear(&applier);
    while (fl_kvindex_maintain(index, 1 << 20))
        continue;
    struct fl_kvindex_stats stats;
    fl_kvindex_stats(index, &stats);
    if (stats.nodes != 0 || stats.held[FL_TIER_DEVICE] != 0)
        abort();
    fl_kv_applier_fini(&applier);
    fl_kvindex_free(index);
    fl_epoch_free(epoch);
    return 0;
}
