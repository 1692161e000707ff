/* SPDX-License-Identifier: Apache-2.0 */
#include "http2/joint.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

void fl_joint_init(struct fl_joint *joint, uint32_t room, struct fl_budget *budget)
{
    *joint = (struct fl_joint){.room = room, .budget = budget};
}

void fl_joint_fini(struct fl_joint *joint)
{
    fl_chunk_unref(joint->chunk);
    joint->chunk = NULL;
    joint->used = 0;
}

struct fl_slice fl_joint_copy(struct fl_joint *joint, struct fl_bytes bytes)
{
    assert(bytes.n > 0);
    if (bytes.n > joint->room / 2)
        return fl_slice_copy(bytes, joint->budget);
    if (joint->chunk != NULL && joint->chunk->room - joint->used < bytes.n) {
        /* Alone with it, nobody can see the old bytes any more: begin again. */
        if (atomic_load_explicit(&joint->chunk->refs, memory_order_acquire) == 1)
            joint->used = 0;
        else
            fl_joint_fini(joint);
    }
    if (joint->chunk == NULL) {
        joint->chunk = fl_chunk_new(joint->room, joint->budget);
        if (joint->chunk == NULL)
            return (struct fl_slice){0};
    }
    uint8_t *at = joint->chunk->data + joint->used;
    memcpy(at, bytes.p, bytes.n);
    joint->used += (uint32_t)bytes.n;
    fl_chunk_ref(joint->chunk);
    return (struct fl_slice){joint->chunk, at, bytes.n};
}

void fl_joint_push(struct fl_chain *chain, struct fl_slice slice)
{
    if (chain->count > 0 && slice.chunk != NULL) {
        struct fl_slice *last = &chain->ring[(chain->first + chain->count - 1) % chain->cap];
        if (last->chunk == slice.chunk && last->p + last->n == slice.p) {
            last->n += slice.n;
            chain->bytes += slice.n;
            fl_slice_unref(&slice);
            return;
        }
    }
    fl_chain_push(chain, slice);
}
