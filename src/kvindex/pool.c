/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>

#include "base/alloc.h"
#include "kvindex/impl.h"

/* ---- limbo: one retired object a batch, since nodes have no room for a link of their own ---- */

static void push_free_node(struct fl_kvindex *index, uint32_t node)
{
    if (index->free_node_count == index->free_node_cap) {
        index->free_node_cap = index->free_node_cap == 0 ? 1024 : index->free_node_cap * 2;
        index->free_nodes =
            fl_realloc(index->free_nodes, index->free_node_cap, sizeof(*index->free_nodes));
    }
    index->free_nodes[index->free_node_count++] = node;
}

static void give_back(struct fl_kvindex *index, uint64_t item)
{
    uint64_t value = item & ((UINT64_C(1) << 60) - 1);
    switch ((enum limbo_kind)(item >> 60)) {
    case LIMBO_NODE:
        push_free_node(index, (uint32_t)value);
        break;
    case LIMBO_SLOT:
        index->free_slots[index->free_slot_count++] = (uint32_t)value;
        break;
    case LIMBO_LIST:
        fl_free((void *)(uintptr_t)value); // NOLINT(performance-no-int-to-ptr)
        break;
    case LIMBO_BY_SEQ:
        fl_table_free_segment(&index->by_seq, value);
        break;
    case LIMBO_BY_NAME:
        fl_table_free_segment(&index->by_name, value);
        break;
    }
}

static void on_grace(struct fl_retired *retired)
{
    struct limbo *limbo = FL_CONTAINER_OF(retired, struct limbo, retired);
    for (uint32_t i = 0; i < limbo->count; i++)
        give_back(limbo->index, limbo->item[i]);
    limbo->index->limbo_out--;
    fl_free(limbo);
}

void fl_kvindex_limbo_flush(struct fl_kvindex *index)
{
    if (index->limbo == NULL)
        return;
    struct limbo *limbo = index->limbo;
    index->limbo = NULL;
    index->limbo_out++;
    fl_epoch_retire(index->epoch, &limbo->retired, on_grace);
}

void fl_kvindex_limbo(struct fl_kvindex *index, enum limbo_kind kind, uint64_t value)
{
    if (index->limbo == NULL) {
        index->limbo = fl_alloc(sizeof(*index->limbo));
        index->limbo->index = index;
        index->limbo->count = 0;
    }
    index->limbo->item[index->limbo->count++] = (uint64_t)kind << 60 | value;
    if (index->limbo->count == LIMBO_BATCH)
        fl_kvindex_limbo_flush(index);
}

/* ---- nodes ---- */

#define NODES_AHEAD 8

static uint32_t node_number(struct fl_kvindex *index)
{
    if (index->free_node_count > 0) {
        /* A long store takes many: fetch the one that will be needed in a while. */
        if (index->free_node_count > NODES_AHEAD) {
            uint32_t later = index->free_nodes[index->free_node_count - 1 - NODES_AHEAD];
            __builtin_prefetch(node_at(index, later), 1);
            __builtin_prefetch(parent_of(index, later), 1);
        }
        return index->free_nodes[--index->free_node_count];
    }
    if (index->nodes_made == FL_KVINDEX_NODES_MAX)
        return NO_NODE;
    if (index->nodes_made % NODE_CHUNK == 0) {
        struct node_chunk *chunk = fl_space_take(&index->space, sizeof(*chunk));
        for (uint32_t i = 0; i < NODE_CHUNK; i++) {
            atomic_init(&chunk->node[i].seq, 0);
            atomic_init(&chunk->node[i].holders, NO_SLOT);
        }
        atomic_store_explicit(&index->chunk[index->nodes_made / NODE_CHUNK], chunk,
                              memory_order_release);
    }
    return index->nodes_made++;
}

uint32_t fl_kvindex_node_new(struct fl_kvindex *index, uint64_t seq, uint64_t local,
                             uint32_t parent)
{
    uint32_t node = node_number(index);
    if (node == NO_NODE)
        return NO_NODE;
    struct node *made = node_at(index, node);
    /* Nobody can reach it: it was free, and no reader is left that knew it before. */
    atomic_store_explicit(&made->holders, NO_SLOT, memory_order_relaxed);
    atomic_store_explicit(&made->seq, seq, memory_order_relaxed);
    made->local = local;
    *parent_of(index, node) = parent;
    return node;
}

void fl_kvindex_release_unused(struct fl_kvindex *index, uint32_t node)
{
    while (node != NO_NODE && fl_holders_count(index, node) == 0 &&
           fl_holders_child_nodes(index, node) == 0) {
        uint64_t seq = atomic_load_explicit(&node_at(index, node)->seq, memory_order_relaxed);
        fl_table_remove(&index->by_seq, fl_table_hash(&index->by_seq, seq), node);
        uint32_t parent = *parent_of(index, node);
        fl_kvindex_limbo(index, LIMBO_NODE, node);
        if (parent != NO_NODE)
            fl_holders_add_child_node(index, parent, -1);
        node = parent;
    }
}

/* ---- slots ---- */

uint32_t fl_kvindex_slot_new(struct fl_kvindex *index)
{
    if (index->free_slot_count > 0)
        return index->free_slots[--index->free_slot_count];
    if (index->slots_made == FL_KVINDEX_RANKS_MAX)
        return NO_SLOT;
    return index->slots_made++;
}
