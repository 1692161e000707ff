/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "kvindex/impl.h"

/* What the walk counts: children each rank holds below each node, as slot << 32 | node. */
struct walk {
    const struct fl_kvindex *index;
    struct fl_map_u64 below; /* the parent is held by the same rank */
    struct fl_map_u64 holes; /* it is not */
    uint32_t *child_nodes;
    uint64_t *held; /* by slot */
    uint64_t nodes, names;
    const char *wrong;
};

static void count_up(struct fl_map_u64 *map, uint64_t key)
{
    uintptr_t n = (uintptr_t)fl_map_u64_find(map, key);
    fl_map_u64_put(map, key, (void *)(n + 1)); // NOLINT(performance-no-int-to-ptr)
}

static enum slot_state state_of(const struct fl_kvindex *index, uint32_t slot)
{
    return (enum slot_state)atomic_load_explicit(&index->slots[slot].state, memory_order_relaxed);
}

static bool is_used(const struct fl_kvindex *index, uint32_t node)
{
    return fl_holders_count(index, node) > 0 || fl_holders_child_nodes(index, node) > 0;
}

static void check_holder(struct walk *walk, uint32_t node, int64_t at, uint32_t slot)
{
    const struct fl_kvindex *index = walk->index;
    uint32_t parent = *parent_of(index, node);
    uint64_t name = fl_holders_name(index, node, at);

    if (slot >= index->slots_made || state_of(index, slot) == SLOT_FREE) {
        walk->wrong = "a holder's slot is free";
        return;
    }
    if (fl_holders_find(index, node, slot) != at)
        walk->wrong = "a rank stands twice among the holders of a node";
    if (state_of(index, slot) == SLOT_DEAD)
        return;
    walk->held[slot]++;
    if (fl_holders_find_name(index, slot, fl_table_hash(&index->by_name, name), name) != node)
        walk->wrong = "a holder's name does not lead to its node";
    if (parent == NO_NODE)
        return;
    uint64_t key = (uint64_t)slot << 32 | parent;
    count_up(fl_holders_find(index, parent, slot) >= 0 ? &walk->below : &walk->holes, key);
}

static void check_list(struct walk *walk, uint32_t node, const struct fl_holders *list)
{
    uint64_t signature = 0;
    uint32_t live = 0;
    uint32_t used = atomic_load_explicit(&list->used, memory_order_relaxed);
    for (uint32_t i = 0; i < used; i++) {
        uint32_t slot = atomic_load_explicit(&list->member[i], memory_order_relaxed) & 0xffff;
        if (slot == NO_SLOT)
            continue;
        live++;
        signature ^= slot_signature(slot);
        check_holder(walk, node, i, slot);
        bool is_first = true;
        for (uint32_t j = 0; j < i && is_first; j++)
            is_first =
                (atomic_load_explicit(&list->member[j], memory_order_relaxed) & 0xffff) ==
                    NO_SLOT ||
                fl_holders_name(walk->index, node, j) != fl_holders_name(walk->index, node, i);
        walk->names += is_first ? 1 : 0;
    }
    if (live != list->live || live < 2)
        walk->wrong = "a list's count of living members is wrong";
    if (signature != tag_of(walk->index, node))
        walk->wrong = "a list's signature is not that of its members";
}

static void check_node(struct walk *walk, uint32_t node)
{
    const struct fl_kvindex *index = walk->index;
    uint64_t word = word_of(index, node);
    uint64_t seq = atomic_load_explicit(&node_at(index, node)->seq, memory_order_relaxed);
    uint32_t parent = *parent_of(index, node);

    walk->nodes++;
    if (find_seq(index, fl_table_hash(&index->by_seq, seq), seq) != node)
        walk->wrong = "a node is not found by its sequence hash";
    if (parent != NO_NODE) {
        walk->child_nodes[parent]++;
        if (!is_used(index, parent))
            walk->wrong = "a node outlives its parent";
    }
    if (is_list(word)) {
        check_list(walk, node, list_of(word));
    } else if (slot_of(word) != NO_SLOT) {
        walk->names++;
        check_holder(walk, node, 0, slot_of(word));
    }
}

/* The counts of children that holders carry, against those of the walk. */
static void check_kids(struct walk *walk, uint32_t node)
{
    const struct fl_kvindex *index = walk->index;
    uint64_t word = word_of(index, node);
    uint32_t entries =
        is_list(word) ? atomic_load_explicit(&list_of(word)->used, memory_order_relaxed) : 1;

    if (fl_holders_child_nodes(index, node) != walk->child_nodes[node])
        walk->wrong = "a node's count of children is wrong";
    for (uint32_t i = 0; i < entries; i++) {
        uint32_t slot =
            is_list(word)
                ? atomic_load_explicit(&list_of(word)->member[i], memory_order_relaxed) & 0xffff
                : slot_of(word);
        if (slot == NO_SLOT || state_of(index, slot) == SLOT_DEAD)
            continue;
        uint64_t key = (uint64_t)slot << 32 | node;
        uint64_t kids = (uintptr_t)fl_map_u64_find(&walk->below, key);
        if (kids < KIDS_MAX && fl_holders_kids(index, node, i) != kids &&
            fl_holders_kids(index, node, i) != KIDS_MAX)
            walk->wrong = "a holder's count of children is wrong";
    }
}

static void check_rank(struct walk *walk, const struct fl_kvindex_rank *rank)
{
    const struct fl_kvindex *index = walk->index;
    uint64_t orphans = 0;
    uint32_t at = 0;
    uint64_t key;
    void *value;

    if (rank->held[FL_TIER_DEVICE] != walk->held[rank->slot])
        walk->wrong = "a rank's count of blocks is wrong";
    if (rank->is_crowded)
        return;
    while (fl_map_u64_next(&walk->holes, &at, &key, &value)) {
        if (key >> 32 != rank->slot)
            continue;
        orphans += (uintptr_t)value;
        if (fl_map_u64_find(&index->holes, key) != value)
            walk->wrong = "a hole's count of orphans is wrong";
    }
    if (orphans != rank->orphans)
        walk->wrong = "a rank's count of orphans is wrong";
    if ((state_of(index, rank->slot) == SLOT_HOLED) != (orphans > 0))
        walk->wrong = "a rank's state does not tell whether it has holes";
}

static void check_ranks(struct walk *walk)
{
    uint32_t at = 0;
    uint64_t key;
    void *value;
    while (fl_map_u64_next(&walk->index->workers, &at, &key, &value)) {
        const struct worker *worker = value;
        for (uint32_t i = 0; i < worker->count; i++)
            check_rank(walk, worker->ranks[i]);
    }
}

const char *fl_kvindex_check(const struct fl_kvindex *index)
{
    struct walk walk = {.index = index};
    walk.child_nodes = fl_calloc(index->nodes_made + 1, sizeof(*walk.child_nodes));
    walk.held = fl_calloc(FL_KVINDEX_RANKS_MAX, sizeof(*walk.held));

    for (uint32_t node = 0; node < index->nodes_made; node++)
        if (is_used(index, node))
            check_node(&walk, node);
    for (uint32_t node = 0; node < index->nodes_made; node++)
        if (is_used(index, node))
            check_kids(&walk, node);
    check_ranks(&walk);
    if (walk.nodes != atomic_load_explicit(&index->stat_nodes, memory_order_relaxed) ||
        walk.nodes != index->by_seq.count)
        walk.wrong = "the count of nodes is wrong";
    if (walk.names != index->by_name.count)
        walk.wrong = "the table of names has names that nobody uses";
    if (walk.wrong == NULL)
        walk.wrong = fl_table_check(&index->by_seq);
    if (walk.wrong == NULL)
        walk.wrong = fl_table_check(&index->by_name);

    fl_map_u64_fini(&walk.below);
    fl_map_u64_fini(&walk.holes);
    fl_free(walk.child_nodes);
    fl_free(walk.held);
    return walk.wrong;
}
