/* SPDX-License-Identifier: Apache-2.0 */
/* The naive twin of the index: lists that are searched from end to end, so that it cannot be wrong.
 * Written from selection.md 12.2, not from the index. One external name per block and rank, the
 * newest given, as kvindex.h promises. */
#ifndef TESTS_KVINDEX_TWIN_H
#define TESTS_KVINDEX_TWIN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/error.h"
#include "kvindex/hash.h"
#include "kvindex/kvindex.h"

struct twin_block {
    uint64_t name, seq;
};

struct twin_rank {
    uint64_t worker_id;
    uint32_t dp_rank;
    bool is_known; /* to the index */
    struct twin_block *blocks;
    size_t count, cap;
};

/* Who is whose parent, for every block ever stored. */
struct twin_link {
    uint64_t seq, parent; /* 0: root */
};

struct twin {
    struct twin_rank *ranks;
    size_t rank_count;
    struct twin_link *links;
    size_t link_count, link_cap;
};

static inline size_t twin_by_name(const struct twin_rank *rank, uint64_t name)
{
    for (size_t i = 0; i < rank->count; i++)
        if (rank->blocks[i].name == name)
            return i;
    return SIZE_MAX;
}

static inline size_t twin_by_seq(const struct twin_rank *rank, uint64_t seq)
{
    for (size_t i = 0; i < rank->count; i++)
        if (rank->blocks[i].seq == seq)
            return i;
    return SIZE_MAX;
}

static inline void twin_drop(struct twin_rank *rank, size_t at)
{
    rank->blocks[at] = rank->blocks[--rank->count];
}

static inline void twin_link(struct twin *twin, uint64_t seq, uint64_t parent)
{
    for (size_t i = 0; i < twin->link_count; i++)
        if (twin->links[i].seq == seq)
            return;
    if (twin->link_count == twin->link_cap) {
        twin->link_cap = twin->link_cap * 2 + 64;
        twin->links = realloc(twin->links, twin->link_cap * sizeof(*twin->links));
    }
    twin->links[twin->link_count++] = (struct twin_link){seq, parent};
}

static inline void twin_store_block(struct twin_rank *rank, uint64_t name, uint64_t seq,
                                    struct fl_kvindex_stored *done)
{
    size_t named = twin_by_name(rank, name);
    if (named != SIZE_MAX && rank->blocks[named].seq == seq) {
        done->repeated++;
        return;
    }
    if (named != SIZE_MAX) {
        twin_drop(rank, named);
        done->moved++;
    }
    size_t held = twin_by_seq(rank, seq);
    if (held != SIZE_MAX) {
        rank->blocks[held].name = name;
        done->repeated++;
        return;
    }
    if (rank->count == rank->cap) {
        rank->cap = rank->cap * 2 + 16;
        rank->blocks = realloc(rank->blocks, rank->cap * sizeof(*rank->blocks));
    }
    rank->blocks[rank->count++] = (struct twin_block){name, seq};
    done->added++;
}

static inline int twin_store(struct twin *twin, struct twin_rank *rank,
                             const struct fl_kvindex_store *event, struct fl_kvindex_stored *done)
{
    *done = (struct fl_kvindex_stored){0};
    for (size_t i = 0; i < event->count; i++) {
        if (event->has_parent && event->external[i] == event->parent)
            return FL_EBAD_REQUEST;
        for (size_t j = 0; j < i; j++)
            if (event->external[i] == event->external[j])
                return FL_EBAD_REQUEST;
    }
    uint64_t before = 0;
    if (event->has_parent) {
        size_t at = twin_by_name(rank, event->parent);
        if (at == SIZE_MAX)
            return FL_ENOT_FOUND;
        before = rank->blocks[at].seq;
    }
    for (size_t i = 0; i < event->count; i++) {
        bool is_root = i == 0 && !event->has_parent;
        uint64_t seq = is_root ? event->local[0] : fl_block_chain(before, event->local[i]);
        twin_link(twin, seq, is_root ? 0 : before);
        twin_store_block(rank, event->external[i], seq, done);
        before = seq;
    }
    return 0;
}

static inline size_t twin_remove(struct twin_rank *rank, const uint64_t *external, size_t count)
{
    size_t removed = 0;
    for (size_t i = 0; i < count; i++) {
        size_t at = twin_by_name(rank, external[i]);
        if (at == SIZE_MAX)
            continue;
        twin_drop(rank, at);
        removed++;
    }
    return removed;
}

static inline uint32_t twin_depth(const struct twin_rank *rank, const uint64_t *seq, size_t count)
{
    uint32_t depth = 0;
    while (depth < count && twin_by_seq(rank, seq[depth]) != SIZE_MAX)
        depth++;
    return depth;
}

static inline bool twin_marks(const struct twin *twin, uint8_t *is_needed, uint64_t seq)
{
    for (size_t i = 0; i < twin->link_count; i++)
        if (twin->links[i].seq == seq) {
            if (is_needed[i])
                return false;
            is_needed[i] = 1;
            return twin->links[i].parent != 0 ? twin_marks(twin, is_needed, twin->links[i].parent)
                                              : true;
        }
    abort(); /* a block that was never stored */
}

/* I12: blocks that somebody holds, and their ancestors. */
static inline uint64_t twin_nodes(const struct twin *twin)
{
    uint8_t *is_needed = calloc(twin->link_count + 1, 1);
    uint64_t nodes = 0;
    for (size_t r = 0; r < twin->rank_count; r++)
        for (size_t b = 0; b < twin->ranks[r].count; b++)
            twin_marks(twin, is_needed, twin->ranks[r].blocks[b].seq);
    for (size_t i = 0; i < twin->link_count; i++)
        nodes += is_needed[i];
    free(is_needed);
    return nodes;
}

static inline void twin_free(struct twin *twin)
{
    for (size_t r = 0; r < twin->rank_count; r++)
        free(twin->ranks[r].blocks);
    free(twin->ranks);
    free(twin->links);
}

#endif
