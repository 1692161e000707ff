/* SPDX-License-Identifier: Apache-2.0 */
#include "selection/active.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"

#define FIRST_BUCKETS 1024
#define SLAB_PIECE 65536
#define INLINE_RANKS 2

struct holding {
    uint32_t rank;
    uint32_t refs; /* bookings of the rank that end here + children the rank holds */
};

struct fl_segment {
    struct fl_active_node head; /* hash of position `from` */
    struct fl_segment *parent, *children;
    struct fl_segment *next, **prev; /* among siblings */
    struct fl_prompt_blocks *prompt;
    uint32_t from, to;
    uint32_t child_count, ends;
    uint32_t rank_count, rank_cap;
    struct holding *ranks; /* no order; own_ranks, or slab memory */
    struct holding own_ranks[INLINE_RANKS];
};

/* ---- prompts ---- */

static uint32_t checkpoint_count(uint32_t count)
{
    return count == 0 ? 0 : (count - 1) / FL_ACTIVE_STRIDE;
}

struct fl_prompt_blocks *fl_prompt_blocks_new(const uint64_t *hashes, size_t count)
{
    assert(count <= UINT32_MAX);
    uint32_t n = (uint32_t)count;
    size_t hash_bytes = count * sizeof(uint64_t);
    size_t node_bytes = checkpoint_count(n) * sizeof(struct fl_active_node);
    struct fl_prompt_blocks *prompt = fl_try_alloc(sizeof *prompt + hash_bytes + node_bytes);
    if (prompt == NULL)
        return NULL;
    *prompt = (struct fl_prompt_blocks){.count = n};
    if (count > 0)
        memcpy(prompt->hashes, hashes, hash_bytes);
    prompt->checkpoints = (struct fl_active_node *)(void *)(prompt->hashes + count);
    for (uint32_t i = 0; i < checkpoint_count(n); i++)
        prompt->checkpoints[i] =
            (struct fl_active_node){.hash = hashes[(size_t)(i + 1) * FL_ACTIVE_STRIDE]};
    return prompt;
}

void fl_prompt_blocks_free(struct fl_prompt_blocks *list)
{
    while (list != NULL) {
        struct fl_prompt_blocks *next = list->next_garbage;
        fl_free(list);
        list = next;
    }
}

static void prompt_unref(struct fl_prompt_blocks *prompt, struct fl_prompt_blocks **garbage)
{
    assert(prompt->refs > 0);
    if (--prompt->refs > 0)
        return;
    prompt->next_garbage = *garbage;
    *garbage = prompt;
}

/* ---- hash table ---- */

static uint32_t bucket_of(const struct fl_active *active, uint64_t hash, uint32_t bucket_count)
{
    return (uint32_t)fl_mix64(hash ^ active->seed) & (bucket_count - 1);
}

static void node_link(struct fl_active_node **bucket, struct fl_active_node *node)
{
    node->next = *bucket;
    node->prev = bucket;
    if (node->next != NULL)
        node->next->prev = &node->next;
    *bucket = node;
}

static void node_insert(struct fl_active *active, struct fl_active_node *node,
                        struct fl_segment *segment)
{
    node->segment = segment;
    node_link(&active->buckets[bucket_of(active, node->hash, active->bucket_count)], node);
    active->node_count++;
    active->inserts++;
}

static void node_remove(struct fl_active *active, struct fl_active_node *node)
{
    *node->prev = node->next;
    if (node->next != NULL)
        node->next->prev = node->prev;
    node->prev = NULL;
    active->node_count--;
}

/* `node` stands for the same position with the same hash from now on. */
static void node_replace(struct fl_active_node *old, struct fl_active_node *node,
                         struct fl_segment *segment)
{
    node->hash = old->hash;
    node->segment = segment;
    node->next = old->next;
    node->prev = old->prev;
    *node->prev = node;
    if (node->next != NULL)
        node->next->prev = &node->next;
    old->prev = NULL;
}

static struct fl_segment *chain_find(const struct fl_active_node *node, uint64_t hash,
                                     uint32_t position)
{
    for (; node != NULL; node = node->next) {
        struct fl_segment *segment = node->segment;
        /* The position is compared too: only hashes made by us are sure to name one. */
        if (node->hash == hash && position >= segment->from && position < segment->to)
            return segment;
    }
    return NULL;
}

/* The segment that covers `position` of a prompt with `hash` there. `position` is a segment's
 * first, or a multiple of the stride. */
static struct fl_segment *find(const struct fl_active *active, uint64_t hash, uint32_t position)
{
    uint32_t bucket = bucket_of(active, hash, active->bucket_count);
    struct fl_segment *segment = chain_find(active->buckets[bucket], hash, position);
    if (segment == NULL && active->old_buckets != NULL) {
        bucket = bucket_of(active, hash, active->old_bucket_count);
        segment = chain_find(active->old_buckets[bucket], hash, position);
    }
    return segment;
}

/* Moves `count` buckets of the old table. */
static void move_buckets(struct fl_active *active, uint32_t count)
{
    if (active->old_buckets == NULL)
        return;
    for (; count > 0 && active->moved < active->old_bucket_count; count--, active->moved++) {
        struct fl_active_node *node = active->old_buckets[active->moved];
        active->old_buckets[active->moved] = NULL;
        while (node != NULL) {
            struct fl_active_node *next = node->next;
            node_link(&active->buckets[bucket_of(active, node->hash, active->bucket_count)], node);
            node = next;
        }
    }
    if (active->moved == active->old_bucket_count) {
        /* Freeing is for later: as a piece of the slab it is of use meanwhile. */
        fl_slab_donate(&active->slab, active->old_buckets,
                       (size_t)active->old_bucket_count * sizeof(struct fl_active_node *));
        active->old_buckets = NULL;
    }
}

void fl_active_init(struct fl_active *active)
{
    *active = (struct fl_active){
        .buckets = fl_calloc(FIRST_BUCKETS, sizeof(struct fl_active_node *)),
        .bucket_count = FIRST_BUCKETS,
    };
    fl_random_bytes(&active->seed, sizeof active->seed);
}

void fl_active_fini(struct fl_active *active)
{
    assert(active->segment_count == 0);
    fl_slab_fini(&active->slab);
    fl_free(active->buckets);
    fl_free(active->old_buckets);
    *active = (struct fl_active){0};
}

struct fl_active_wish fl_active_wants(const struct fl_active *active)
{
    struct fl_active_wish wish = {0};
    if (fl_slab_room(&active->slab) < SLAB_PIECE / 2)
        wish.slab_bytes = SLAB_PIECE;
    if (active->node_count > active->bucket_count && active->old_buckets == NULL)
        wish.buckets = 2 * active->bucket_count;
    return wish;
}

void fl_active_donate(struct fl_active *active, void *slab, size_t slab_bytes,
                      struct fl_active_node **buckets, uint32_t bucket_count)
{
    if (slab != NULL)
        fl_slab_donate(&active->slab, slab, slab_bytes);
    if (buckets == NULL)
        return;
    if (active->old_buckets != NULL || bucket_count <= active->bucket_count) {
        /* Two threads saw the same wish; the second table serves as memory. */
        fl_slab_donate(&active->slab, buckets,
                       (size_t)bucket_count * sizeof(struct fl_active_node *));
        return;
    }
    active->old_buckets = active->buckets;
    active->old_bucket_count = active->bucket_count;
    active->moved = 0;
    active->buckets = buckets;
    active->bucket_count = bucket_count;
}

/* ---- matching ---- */

/* The first position in [from, to) where the segment's hashes and `hashes` differ, `to` if none
 * does. */
static uint32_t first_difference(const struct fl_segment *segment, const uint64_t *hashes,
                                 uint32_t from, uint32_t to)
{
    const uint64_t *own = segment->prompt->hashes;
    if (from == to || own[to - 1] == hashes[to - 1])
        return to;
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        if (own[middle] == hashes[middle])
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* The segment that covers the deepest checkpoint of the prompt beyond `after`, NULL if none is
 * active. A checkpoint is active only if those before it are, hence a binary search. */
static struct fl_segment *deepest_checkpoint(const struct fl_active *active, const uint64_t *hashes,
                                             uint32_t count, uint32_t after)
{
    struct fl_segment *deepest = NULL;
    uint32_t low = after / FL_ACTIVE_STRIDE;        /* active, or behind us */
    uint32_t high = (count - 1) / FL_ACTIVE_STRIDE; /* the last there is */
    uint32_t probe = high;                          /* a repeated prompt is there as a whole */
    while (low < high) {
        uint32_t position = probe * FL_ACTIVE_STRIDE;
        struct fl_segment *segment = find(active, hashes[position], position);
        if (segment != NULL) {
            deepest = segment;
            low = probe;
        } else {
            high = probe - 1;
        }
        probe = low + (high - low + 1) / 2;
    }
    return deepest;
}

struct fl_active_match fl_active_match(const struct fl_active *active, const uint64_t *hashes,
                                       size_t count)
{
    struct fl_active_match match = {0};
    uint32_t n = (uint32_t)count;
    struct fl_segment *at = n > 0 ? find(active, hashes[0], 0) : NULL;
    if (at == NULL || at->from != 0)
        return match;

    match.root = at;
    bool has_jumped = false;
    for (uint32_t known = 0;; known = at->from) {
        uint32_t end = at->to < n ? at->to : n;
        match.segment = at;
        match.shared = first_difference(at, hashes, known, end);
        if (match.shared <= at->from) {
            /* Only hashes that are no chain (an HTTP caller's) lead into a segment and differ at
             * once. */
            match.shared = at->from;
            match.segment = at->parent;
            return match;
        }
        if (match.shared < at->to || at->to == n)
            return match;

        struct fl_segment *next = NULL;
        if (!has_jumped)
            next = deepest_checkpoint(active, hashes, n, at->to);
        has_jumped = true;
        if (next == NULL || next->to <= at->to) {
            next = find(active, hashes[at->to], at->to);
            if (next == NULL || next->parent != at)
                return match;
        }
        at = next;
    }
}

uint32_t fl_active_ranks(const struct fl_active_match *match, uint32_t *by_rank, uint32_t *ranks)
{
    uint32_t seen = 0;
    const struct fl_segment *segment = match->segment;
    if (segment == NULL)
        return 0;

    /* Holders only grow towards the root, so there is nothing new once all of the root's were seen.
     */
    uint32_t all = match->root->rank_count;
    for (; segment != NULL && seen < all; segment = segment->parent) {
        if (segment->rank_count == seen)
            continue;
        uint32_t shared = segment->to < match->shared ? segment->to : match->shared;
        for (uint32_t i = 0; i < segment->rank_count; i++) {
            uint32_t rank = segment->ranks[i].rank;
            if (by_rank[rank] != 0)
                continue;
            by_rank[rank] = shared;
            ranks[seen++] = rank;
        }
    }
    return seen;
}

/* ---- segments ---- */

static struct fl_segment *segment_new(struct fl_active *active, struct fl_prompt_blocks *prompt,
                                      uint32_t from, uint32_t to)
{
    struct fl_segment *segment = fl_slab_alloc(&active->slab, sizeof *segment);
    *segment = (struct fl_segment){
        .head = {.hash = prompt->hashes[from]},
        .prompt = prompt,
        .from = from,
        .to = to,
        .rank_cap = INLINE_RANKS,
    };
    segment->ranks = segment->own_ranks;
    prompt->refs++;
    active->segment_count++;
    return segment;
}

static void segment_delete(struct fl_active *active, struct fl_segment *segment,
                           struct fl_prompt_blocks **garbage)
{
    assert(segment->head.prev == NULL);
    if (segment->ranks != segment->own_ranks)
        fl_slab_free(&active->slab, segment->ranks, segment->rank_cap * sizeof(struct holding));
    prompt_unref(segment->prompt, garbage);
    active->segment_count--;
    fl_slab_free(&active->slab, segment, sizeof *segment);
}

static void segment_link(struct fl_active *active, struct fl_segment *parent,
                         struct fl_segment *segment)
{
    struct fl_segment **list = parent != NULL ? &parent->children : &active->roots;
    segment->parent = parent;
    segment->prev = list;
    segment->next = *list;
    if (segment->next != NULL)
        segment->next->prev = &segment->next;
    *list = segment;
    if (parent != NULL)
        parent->child_count++;
}

static void segment_unlink(struct fl_segment *segment)
{
    *segment->prev = segment->next;
    if (segment->next != NULL)
        segment->next->prev = segment->prev;
    if (segment->parent != NULL)
        segment->parent->child_count--;
}

/* Checkpoints of the segment are numbers [first, end) of its prompt's nodes. */
static uint32_t checkpoints_first(const struct fl_segment *segment)
{
    return segment->from / FL_ACTIVE_STRIDE; /* of position FL_ACTIVE_STRIDE * (i + 1) > from */
}

static uint32_t checkpoints_end(const struct fl_segment *segment)
{
    return (segment->to - 1) / FL_ACTIVE_STRIDE;
}

static bool is_checkpoint(uint32_t position)
{
    return position > 0 && position % FL_ACTIVE_STRIDE == 0;
}

static struct fl_active_node *checkpoint_at(struct fl_prompt_blocks *prompt, uint32_t position)
{
    return &prompt->checkpoints[position / FL_ACTIVE_STRIDE - 1];
}

static void checkpoints_insert(struct fl_active *active, struct fl_segment *segment)
{
    struct fl_active_node *nodes = segment->prompt->checkpoints;
    uint32_t end = checkpoints_end(segment);
    /* The buckets lie anywhere in memory but are known: ask for all before using the first. */
    for (uint32_t i = checkpoints_first(segment); i < end; i++)
        __builtin_prefetch(&active->buckets[bucket_of(active, nodes[i].hash, active->bucket_count)],
                           1);
    for (uint32_t i = checkpoints_first(segment); i < end; i++)
        node_insert(active, &nodes[i], segment);
}

static void checkpoints_remove(struct fl_active *active, struct fl_segment *segment)
{
    struct fl_active_node *nodes = segment->prompt->checkpoints;
    uint32_t end = checkpoints_end(segment);
    for (uint32_t i = checkpoints_first(segment); i < end; i++) {
        __builtin_prefetch(nodes[i].prev, 1);
        __builtin_prefetch(nodes[i].next, 1);
    }
    for (uint32_t i = checkpoints_first(segment); i < end; i++)
        node_remove(active, &nodes[i]);
}

/* ---- ranks of a segment ---- */

static struct holding *holding_find(const struct fl_segment *segment, uint32_t rank)
{
    for (uint32_t i = 0; i < segment->rank_count; i++)
        if (segment->ranks[i].rank == rank)
            return &segment->ranks[i];
    return NULL;
}

static void holdings_reserve(struct fl_active *active, struct fl_segment *segment, uint32_t count)
{
    if (count <= segment->rank_cap)
        return;
    uint32_t cap = segment->rank_cap;
    while (cap < count)
        cap *= 2;
    struct holding *ranks = fl_slab_alloc(&active->slab, cap * sizeof *ranks);
    memcpy(ranks, segment->ranks, segment->rank_count * sizeof *ranks);
    if (segment->ranks != segment->own_ranks)
        fl_slab_free(&active->slab, segment->ranks, segment->rank_cap * sizeof *ranks);
    segment->ranks = ranks;
    segment->rank_cap = cap;
}

/* `rank` holds `segment` once more: its booking ends there, or a child is new to it. Returns the
 * blocks that are new to the rank. */
static uint32_t hold(struct fl_active *active, struct fl_segment *segment, uint32_t rank)
{
    uint32_t grown = 0;
    for (; segment != NULL; segment = segment->parent) {
        struct holding *holding = holding_find(segment, rank);
        if (holding != NULL) {
            holding->refs++;
            break;
        }
        holdings_reserve(active, segment, segment->rank_count + 1);
        segment->ranks[segment->rank_count++] = (struct holding){.rank = rank, .refs = 1};
        grown += segment->to - segment->from;
    }
    return grown;
}

static uint32_t release(struct fl_segment *segment, uint32_t rank)
{
    uint32_t shrunk = 0;
    for (; segment != NULL; segment = segment->parent) {
        struct holding *holding = holding_find(segment, rank);
        assert(holding != NULL && holding->refs > 0);
        if (--holding->refs > 0)
            break;
        *holding = segment->ranks[--segment->rank_count];
        shrunk += segment->to - segment->from;
    }
    return shrunk;
}

/* ---- the shape of the forest ---- */

/* Cuts `lower` at `position`; it keeps its children, its bookings and its ranks, and the new
 * segment before it, which is returned, has the same ranks through it. */
static struct fl_segment *split(struct fl_active *active, struct fl_segment *lower,
                                uint32_t position)
{
    assert(position > lower->from && position < lower->to);
    struct fl_segment *upper = segment_new(active, lower->prompt, lower->from, position);
    holdings_reserve(active, upper, lower->rank_count);
    for (uint32_t i = 0; i < lower->rank_count; i++)
        upper->ranks[i] = (struct holding){.rank = lower->ranks[i].rank, .refs = 1};
    upper->rank_count = lower->rank_count;

    struct fl_segment *parent = lower->parent;
    segment_unlink(lower);
    segment_link(active, parent, upper);
    segment_link(active, upper, lower);

    node_replace(&lower->head, &upper->head, upper);
    struct fl_active_node *nodes = upper->prompt->checkpoints;
    for (uint32_t i = checkpoints_first(upper); i < checkpoints_end(upper); i++)
        nodes[i].segment = upper;

    lower->from = position;
    if (is_checkpoint(position)) {
        node_replace(checkpoint_at(lower->prompt, position), &lower->head, lower);
    } else {
        lower->head.hash = lower->prompt->hashes[position];
        node_insert(active, &lower->head, lower);
    }
    return upper;
}

/* Joins `upper`, where nothing ends, with its only child, which survives. */
static void merge(struct fl_active *active, struct fl_segment *upper,
                  struct fl_prompt_blocks **garbage)
{
    struct fl_segment *lower = upper->children;
    assert(upper->ends == 0 && upper->child_count == 1 && lower->from == upper->to);

    if (is_checkpoint(lower->from))
        node_replace(&lower->head, checkpoint_at(lower->prompt, lower->from), lower);
    else
        node_remove(active, &lower->head);
    node_replace(&upper->head, &lower->head, lower);
    struct fl_active_node *from = upper->prompt->checkpoints;
    struct fl_active_node *to = lower->prompt->checkpoints;
    for (uint32_t i = checkpoints_first(upper); i < checkpoints_end(upper); i++) {
        if (from == to)
            to[i].segment = lower;
        else
            node_replace(&from[i], &to[i], lower);
    }
    lower->from = upper->from;

    struct fl_segment *parent = upper->parent;
    segment_unlink(lower);
    segment_unlink(upper);
    segment_link(active, parent, lower);
    segment_delete(active, upper, garbage);
}

static void drop(struct fl_active *active, struct fl_segment *segment,
                 struct fl_prompt_blocks **garbage)
{
    assert(segment->ends == 0 && segment->child_count == 0 && segment->rank_count == 0);
    checkpoints_remove(active, segment);
    node_remove(active, &segment->head);
    segment_unlink(segment);
    segment_delete(active, segment, garbage);
}

/* ---- booking ---- */

/* Enough that a growing table has moved before it is due to grow again: a booking adds at most its
 * inserts, and the table grows when it holds as many nodes as buckets. */
static void keep_growing(struct fl_active *active, uint64_t inserts_before)
{
    move_buckets(active, 8 + 2 * (uint32_t)(active->inserts - inserts_before));
}

uint32_t fl_active_book(struct fl_active *active, struct fl_prompt_blocks *prompt, uint32_t rank,
                        struct fl_active_match match, struct fl_active_hold *held)
{
    assert(prompt->count > 0 && prompt->refs == 0);
    uint64_t inserts = active->inserts;
    struct fl_segment *end = match.segment;
    prompt->refs = 1;
    if (end != NULL && match.shared < end->to)
        end = split(active, end, match.shared);
    if (match.shared < prompt->count) {
        struct fl_segment *parent = end;
        end = segment_new(active, prompt, match.shared, prompt->count);
        segment_link(active, parent, end);
        node_insert(active, &end->head, end);
        checkpoints_insert(active, end);
    }
    assert(end != NULL); /* the prompt has a block, so it ends somewhere */
    end->ends++;
    *held = (struct fl_active_hold){.prompt = prompt, .end = end};
    uint32_t grown = hold(active, end, rank);
    keep_growing(active, inserts);
    return grown;
}

uint32_t fl_active_free(struct fl_active *active, struct fl_active_hold *held, uint32_t rank,
                        struct fl_prompt_blocks **garbage)
{
    struct fl_segment *segment = held->end;
    if (segment == NULL)
        return 0;

    uint32_t shrunk = release(segment, rank);
    segment->ends--;
    while (segment != NULL && segment->ends == 0 && segment->child_count == 0) {
        struct fl_segment *parent = segment->parent;
        drop(active, segment, garbage);
        segment = parent;
    }
    if (segment != NULL && segment->ends == 0 && segment->child_count == 1)
        merge(active, segment, garbage);
    prompt_unref(held->prompt, garbage);
    *held = (struct fl_active_hold){0};
    keep_growing(active, active->inserts);
    return shrunk;
}

uint32_t fl_active_unshared(const struct fl_active_hold *held, uint32_t rank)
{
    uint32_t blocks = 0;
    for (const struct fl_segment *segment = held->end; segment != NULL; segment = segment->parent) {
        if (holding_find(segment, rank)->refs != 1)
            break;
        blocks += segment->to - segment->from;
    }
    return blocks;
}

/* ---- check ---- */

static uint32_t check_ranks(const struct fl_segment *segment)
{
    uint32_t through = 0;
    for (uint32_t i = 0; i < segment->rank_count; i++) {
        uint32_t from_children = 0;
        for (const struct fl_segment *c = segment->children; c != NULL; c = c->next)
            from_children += holding_find(c, segment->ranks[i].rank) != NULL;
        assert(segment->ranks[i].refs >= from_children);
        through += segment->ranks[i].refs - from_children;
        for (uint32_t j = 0; j < i; j++)
            assert(segment->ranks[j].rank != segment->ranks[i].rank);
    }
    return through;
}

static uint32_t check_segment(const struct fl_active *active, const struct fl_segment *segment)
{
    const struct fl_prompt_blocks *prompt = segment->prompt;
    assert(segment->from < segment->to && segment->to <= prompt->count);
    assert(segment->from == (segment->parent != NULL ? segment->parent->to : 0));
    assert(segment->ends > 0 || segment->child_count >= 2);
    assert(segment->rank_count > 0 && segment->rank_count <= segment->rank_cap);
    assert(check_ranks(segment) == segment->ends);
    assert(find(active, prompt->hashes[segment->from], segment->from) == segment);
    for (uint32_t i = checkpoints_first(segment); i < checkpoints_end(segment); i++) {
        uint32_t position = (i + 1) * FL_ACTIVE_STRIDE;
        assert(prompt->checkpoints[i].prev != NULL && prompt->checkpoints[i].segment == segment);
        assert(find(active, prompt->hashes[position], position) == segment);
    }
    uint32_t children = 0;
    for (const struct fl_segment *c = segment->children; c != NULL; c = c->next) {
        assert(c->parent == segment);
        for (uint32_t i = 0; i < c->rank_count; i++)
            assert(holding_find(segment, c->ranks[i].rank) != NULL);
        children++;
    }
    assert(children == segment->child_count);
    return 1 + checkpoints_end(segment) - checkpoints_first(segment);
}

void fl_active_check(const struct fl_active *active)
{
    uint32_t segments = 0, nodes = 0;
    const struct fl_segment *at = active->roots;
    while (at != NULL) { /* preorder */
        nodes += check_segment(active, at);
        segments++;
        if (at->children != NULL) {
            at = at->children;
            continue;
        }
        while (at != NULL && at->next == NULL)
            at = at->parent;
        if (at != NULL)
            at = at->next;
    }
    assert(segments == active->segment_count);
    assert(nodes == active->node_count);
}
