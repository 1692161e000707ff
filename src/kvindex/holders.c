/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "kvindex/impl.h"

#define LEFT NO_SLOT /* member entry of one that left */

static uint32_t member_at(const struct fl_holders *list, uint32_t i)
{
    return atomic_load_explicit(&list->member[i], memory_order_relaxed);
}

static uint32_t used_of(const struct fl_holders *list)
{
    return atomic_load_explicit(&list->used, memory_order_relaxed);
}

/* Where names by member begin: behind the members, aligned. */
static size_t own_offset(uint32_t cap)
{
    return (sizeof(struct fl_holders) + cap * sizeof(uint32_t) + 7) / 8 * 8;
}

/* Only of a list that has_own. */
static uint64_t *own_names(const struct fl_holders *list)
{
    return (uint64_t *)((uintptr_t)list +
                        own_offset(list->cap)); // NOLINT(performance-no-int-to-ptr)
}

static bool word_has_own(uint64_t word)
{
    return is_list(word) && list_of(word)->has_own;
}

static void set_word(struct fl_kvindex *index, uint32_t node, uint64_t word)
{
    atomic_store_explicit(&node_at(index, node)->holders, word, memory_order_seq_cst);
}

static uint64_t single(uint32_t slot, uint32_t kids, uint32_t child_nodes)
{
    return (uint64_t)child_nodes << 32 | (uint64_t)kids << 16 | slot;
}

static uint32_t child_nodes_of(uint64_t word)
{
    return is_list(word) ? list_of(word)->child_nodes : (uint32_t)(word >> 32);
}

/* `slot` has come to, or left, the node's list. */
static void sign(struct fl_kvindex *index, uint32_t node, uint32_t slot)
{
    set_node_tag(index, node, tag_of(index, node) ^ slot_signature(slot));
}

/* The name of all holders, if they have one in common. */
static uint64_t common_name(const struct fl_kvindex *index, uint32_t node)
{
    uint64_t word = word_of(index, node);
    return is_list(word) ? list_of(word)->common : tag_of(index, node);
}

int64_t fl_holders_find(const struct fl_kvindex *index, uint32_t node, uint32_t slot)
{
    uint64_t word = word_of(index, node);
    if (!is_list(word))
        return slot_of(word) == slot ? 0 : -1;
    const struct fl_holders *list = list_of(word);
    for (uint32_t i = 0; i < used_of(list); i++)
        if ((member_at(list, i) & 0xffff) == slot)
            return i;
    return -1;
}

uint32_t fl_holders_kids(const struct fl_kvindex *index, uint32_t node, int64_t at)
{
    uint64_t word = word_of(index, node);
    return is_list(word) ? member_at(list_of(word), (uint32_t)at) >> 16
                         : (uint32_t)(word >> 16 & 0xffff);
}

void fl_holders_set_kids(struct fl_kvindex *index, uint32_t node, int64_t at, uint32_t kids)
{
    uint64_t word = word_of(index, node);
    assert(kids <= KIDS_MAX);
    if (!is_list(word)) {
        atomic_store_explicit(&node_at(index, node)->holders,
                              single(slot_of(word), kids, child_nodes_of(word)),
                              memory_order_release);
        return;
    }
    struct fl_holders *list = list_of(word);
    uint32_t member = member_at(list, (uint32_t)at);
    atomic_store_explicit(&list->member[at], (member & 0xffff) | kids << 16, memory_order_release);
}

uint64_t fl_holders_name(const struct fl_kvindex *index, uint32_t node, int64_t at)
{
    uint64_t word = word_of(index, node);
    if (word_has_own(word))
        return own_names(list_of(word))[at];
    return common_name(index, node);
}

uint32_t fl_holders_count(const struct fl_kvindex *index, uint32_t node)
{
    uint64_t word = word_of(index, node);
    if (is_list(word))
        return list_of(word)->live;
    return slot_of(word) != NO_SLOT ? 1 : 0;
}

uint32_t fl_holders_child_nodes(const struct fl_kvindex *index, uint32_t node)
{
    return child_nodes_of(word_of(index, node));
}

void fl_holders_add_child_node(struct fl_kvindex *index, uint32_t node, int32_t n)
{
    uint64_t word = word_of(index, node);
    if (is_list(word))
        list_of(word)->child_nodes += (uint32_t)n;
    else
        atomic_store_explicit(&node_at(index, node)->holders, word + ((uint64_t)(uint32_t)n << 32),
                              memory_order_release);
}

/* ---- names ---- */

/* Does any holder other than the one at `except` (-1: nobody is left out) use `name` here? */
static bool is_name_used(const struct fl_kvindex *index, uint32_t node, uint64_t name,
                         int64_t except)
{
    uint64_t word = word_of(index, node);
    if (!is_list(word))
        return except < 0 && slot_of(word) != NO_SLOT && tag_of(index, node) == name;
    const struct fl_holders *list = list_of(word);
    if (!list->has_own)
        return list->common == name && list->live > (except < 0 ? 0 : 1);
    const uint64_t *own = own_names(list);
    for (uint32_t i = 0; i < used_of(list); i++)
        if (own[i] == name && (int64_t)i != except && (member_at(list, i) & 0xffff) != LEFT)
            return true;
    return false;
}

struct name_probe {
    const struct fl_kvindex *index;
    uint32_t slot;
    uint64_t name;
};

static bool names_node(const void *ctx, uint32_t node)
{
    const struct name_probe *probe = ctx;
    uint64_t word = word_of(probe->index, node);
    if (!word_has_own(word)) {
        if (common_name(probe->index, node) != probe->name)
            return false;
        return fl_holders_find(probe->index, node, probe->slot) >= 0;
    }
    int64_t at = fl_holders_find(probe->index, node, probe->slot);
    return at >= 0 && own_names(list_of(word))[at] == probe->name;
}

uint32_t fl_holders_find_name(const struct fl_kvindex *index, uint32_t slot, uint64_t hash,
                              uint64_t name)
{
    struct name_probe probe = {index, slot, name};
    return fl_table_find(&index->by_name, hash, names_node, &probe);
}

/* True for the first living member with its name. */
static bool is_first_of_name(const struct fl_holders *list, uint32_t at)
{
    const uint64_t *own = own_names(list);
    for (uint32_t i = 0; i < at; i++)
        if (own[i] == own[at] && (member_at(list, i) & 0xffff) != LEFT)
            return false;
    return (member_at(list, at) & 0xffff) != LEFT;
}

uint64_t fl_holders_name_hash(const void *owner, uint32_t node, uint32_t segment, uint8_t tag,
                              uint32_t nth)
{
    const struct fl_kvindex *index = owner;
    uint64_t word = word_of(index, node);
    if (!word_has_own(word))
        return fl_table_hash(&index->by_name, common_name(index, node));

    const struct fl_holders *list = list_of(word);
    uint64_t found = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < used_of(list); i++) {
        uint64_t hash = fl_table_hash(&index->by_name, own_names(list)[i]);
        if (fl_table_segment(hash) != segment || fl_table_tag(hash) != tag ||
            !is_first_of_name(list, i))
            continue;
        if (count++ == nth)
            return hash;
        found = hash;
    }
    return nth == FL_TABLE_ONLY && count == 1 ? found : 0;
}

/* ---- lists ---- */

/* Sizes that fill what the allocator rounds up to. */
static uint32_t list_cap(uint32_t members)
{
    uint32_t bytes = (uint32_t)sizeof(struct fl_holders) + members * 4;
    uint32_t rounded = (bytes + 8 + 15) / 16 * 16 - 8;
    return (rounded - (uint32_t)sizeof(struct fl_holders)) / 4;
}

static struct fl_holders *list_new(uint32_t members, bool has_own, uint64_t common)
{
    uint32_t cap = list_cap(members);
    size_t own_at = own_offset(cap);
    struct fl_holders *list = fl_alloc(has_own ? own_at + cap * sizeof(uint64_t) : own_at);
    list->common = common;
    atomic_init(&list->used, 0);
    list->cap = cap & 0x7fffffff;
    list->has_own = has_own;
    list->live = 0;
    list->child_nodes = 0;
    return list;
}

/* There is room. */
static void list_append(struct fl_holders *list, uint32_t member, uint64_t name)
{
    uint32_t at = used_of(list);
    assert(at < list->cap);
    if (list->has_own)
        own_names(list)[at] = name;
    atomic_store_explicit(&list->member[at], member, memory_order_release);
    atomic_store_explicit(&list->used, at + 1, memory_order_release);
    list->live++;
}

/* A list of the same living members (or of a single holder) with room for `more`, not yet
 * published. */
static struct fl_holders *list_copy(const struct fl_kvindex *index, uint32_t node, uint32_t more,
                                    bool has_own)
{
    uint64_t word = word_of(index, node);
    uint64_t common = common_name(index, node);
    struct fl_holders *list;

    if (!is_list(word)) {
        list = list_new(1 + more, has_own, common);
        list_append(list, (uint32_t)(word & UINT32_MAX), common);
    } else {
        const struct fl_holders *old = list_of(word);
        list = list_new(old->live + more, has_own, common);
        for (uint32_t i = 0; i < used_of(old); i++)
            if ((member_at(old, i) & 0xffff) != LEFT)
                list_append(list, member_at(old, i), old->has_own ? own_names(old)[i] : common);
    }
    list->child_nodes = child_nodes_of(word);
    return list;
}

/* The members are those that were there before. */
static void publish_list(struct fl_kvindex *index, uint32_t node, struct fl_holders *list)
{
    uint64_t old = word_of(index, node);
    if (!is_list(old)) /* before: who reads the name as a signature only looks closer */
        set_node_tag(index, node, slot_signature(slot_of(old)));
    set_word(index, node, LIST_BIT | (uint64_t)(uintptr_t)list);
    if (is_list(old))
        fl_kvindex_limbo(index, LIMBO_LIST, (uint64_t)(uintptr_t)list_of(old));
}

static void add_to_list(struct fl_kvindex *index, uint32_t node, uint32_t member, uint64_t name)
{
    uint64_t word = word_of(index, node);
    bool is_common = name == common_name(index, node);
    bool had_own = word_has_own(word);

    if (is_list(word) && used_of(list_of(word)) < list_of(word)->cap && (had_own || is_common)) {
        list_append(list_of(word), member, name);
        sign(index, node, member & 0xffff);
        return;
    }
    /* Growth by a half; a list full of members that left is only tidied up. */
    uint32_t live = fl_holders_count(index, node);
    struct fl_holders *list = list_copy(index, node, 1 + live / 2, had_own || !is_common);
    publish_list(index, node, list);
    list_append(list, member, name);
    sign(index, node, member & 0xffff);
}

bool fl_holders_add(struct fl_kvindex *index, uint32_t node, uint32_t slot, uint32_t kids,
                    uint64_t name)
{
    uint64_t hash = fl_table_hash(&index->by_name, name);
    bool is_new_name = !is_name_used(index, node, name, -1);
    if (is_new_name && !fl_table_reserve(&index->by_name, hash))
        return false;

    uint64_t word = word_of(index, node);
    if (!is_list(word) && slot_of(word) == NO_SLOT) {
        set_node_tag(index, node, name);
        set_word(index, node, single(slot, kids, child_nodes_of(word)));
    } else {
        add_to_list(index, node, kids << 16 | slot, name);
    }
    if (is_new_name)
        fl_table_insert(&index->by_name, hash, node);
    return true;
}

/* A list of one becomes a single holder again. */
static void collapse(struct fl_kvindex *index, uint32_t node)
{
    struct fl_holders *list = list_of(word_of(index, node));
    uint32_t at = 0;
    while ((member_at(list, at) & 0xffff) == LEFT)
        at++;
    assert(at < used_of(list));
    uint32_t member = member_at(list, at);
    set_word(index, node, single(member & 0xffff, member >> 16, list->child_nodes));
    set_node_tag(index, node, list->has_own ? own_names(list)[at] : list->common);
    fl_kvindex_limbo(index, LIMBO_LIST, (uint64_t)(uintptr_t)list);
}

void fl_holders_remove(struct fl_kvindex *index, uint32_t node, int64_t at)
{
    uint64_t word = word_of(index, node);
    uint64_t name = fl_holders_name(index, node, at);
    if (!is_name_used(index, node, name, at))
        fl_table_remove(&index->by_name, fl_table_hash(&index->by_name, name), node);

    if (!is_list(word)) {
        set_word(index, node, single(NO_SLOT, 0, child_nodes_of(word)));
        return;
    }
    struct fl_holders *list = list_of(word);
    uint32_t slot = member_at(list, (uint32_t)at) & 0xffff;
    atomic_store_explicit(&list->member[at], LEFT, memory_order_seq_cst);
    sign(index, node, slot);
    list->live--;
    if (list->live == 1)
        collapse(index, node);
    else if (list->live * 4 < list->cap && list->cap > 16)
        publish_list(index, node, list_copy(index, node, list->live / 2, list->has_own));
}

bool fl_holders_rename(struct fl_kvindex *index, uint32_t node, int64_t at, uint64_t name)
{
    uint64_t hash = fl_table_hash(&index->by_name, name);
    uint64_t old = fl_holders_name(index, node, at);
    bool is_new_name = !is_name_used(index, node, name, -1);
    if (is_new_name && !fl_table_reserve(&index->by_name, hash))
        return false;
    if (!is_name_used(index, node, old, at))
        fl_table_remove(&index->by_name, fl_table_hash(&index->by_name, old), node);

    uint64_t word = word_of(index, node);
    if (!is_list(word)) {
        set_node_tag(index, node, name);
    } else {
        if (!word_has_own(word)) {
            /* The copy drops those that left: find the member again. */
            uint32_t slot = member_at(list_of(word), (uint32_t)at) & 0xffff;
            publish_list(index, node, list_copy(index, node, 0, true));
            at = fl_holders_find(index, node, slot);
        }
        own_names(list_of(word_of(index, node)))[at] = name;
    }
    if (is_new_name)
        fl_table_insert(&index->by_name, hash, node);
    return true;
}
