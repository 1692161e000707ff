/* SPDX-License-Identifier: Apache-2.0 */
/* Lookups: how many leading blocks of a prompt does each rank hold?
 *
 * Candidates are the holders of block 0. For a rank without holes, holding block i means holding
 * all before it, so what is searched for is only where candidates drop out:
 *
 *     block    0 ........ lo ........ probe probe probe ........ hi ........ n-1
 *     holders  all        all         all   some  some           none
 *
 * The last block is asked first: a full match ends there. Otherwise an interval (all hold `lo`,
 * none holds `hi`) is cut by up to PROBES probes that are fetched together, the candidates are
 * partitioned in place by where they drop out, and each part goes on with its own, smaller
 * interval. Candidates with holes are walked block by block instead.
 *
 * Whether all of a group hold a node is usually answered by comparing two 64-bit set signatures;
 * the members are looked at only when they differ. Beside a running writer every answer is based on
 * memberships that were seen, hence never too much, and a rank that holds its blocks during the
 * whole lookup passes every probe, hence never too little. */
#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "kvindex/impl.h"

/* Probes of one cut. The fewer, the more rounds of waiting; the more, the longer a round: 7 is the
 * best for many blocks, while few blocks are probed all at once. */
#define PROBES 7
#define PROBES_MAX 15
#define WALK_AHEAD 8 /* blocks fetched ahead on a walk */
#define NESTED_MAX                                                                                 \
    128 /* pairs compared one by one before marking members in a bitmap is cheaper                 \
         */
#define FRAMES_MAX                                                                                 \
    160 /* each of at most 11 rounds leaves up to PROBES + 1 parts behind, the last 16 */

struct candidate {
    uint32_t slot;
    uint32_t blocks;
    uint64_t signature; /* of its slot */
};

struct frame {
    uint32_t from, to; /* candidates */
    uint32_t lo, hi;   /* positions: all hold lo, none holds hi */
    uint64_t deeper; /* signature of the other candidates that hold hi, and so everything before */
};

struct fl_kvindex_scratch {
    uint64_t marks[FL_KVINDEX_RANKS_MAX / 64 + 1]; /* all zero between uses */
    struct frame frames[FRAMES_MAX];
    uint32_t candidate_cap;
    struct candidate *candidate;
};

struct lookup {
    const struct fl_kvindex *index;
    const uint64_t *seq;
    struct fl_kvindex_scratch *scratch;
    struct candidate *candidate;
    uint32_t frame_count;
};

void fl_kvindex_matches_fini(struct fl_kvindex_matches *matches)
{
    if (matches->scratch != NULL)
        fl_free(matches->scratch->candidate);
    fl_free(matches->scratch);
    fl_free(matches->at);
    *matches = (struct fl_kvindex_matches){0};
}

/* ---- probes ---- */

static uint64_t hash_at(const struct lookup *lookup, uint32_t position)
{
    return fl_table_hash(&lookup->index->by_seq, lookup->seq[position]);
}

static uint64_t holders_of(const struct fl_kvindex *index, uint32_t node)
{
    return atomic_load_explicit(&node_at(index, node)->holders, memory_order_seq_cst);
}

/* The bucket is here by now: fetch the node it most likely names. */
static void prefetch_node(const struct lookup *lookup, uint64_t hash)
{
    uint32_t node = fl_table_first(&lookup->index->by_seq, hash);
    if (node != NO_NODE)
        __builtin_prefetch(node_at(lookup->index, node));
}

/* Who holds a block, as one probe sees it. */
struct seen {
    uint64_t word; /* holders; those of nobody if the block is unknown */
    uint64_t tag;  /* of a list: its signature */
};

static struct seen probe(const struct lookup *lookup, uint32_t position, uint64_t hash)
{
    uint32_t node = find_seq(lookup->index, hash, lookup->seq[position]);
    if (node == NO_NODE)
        return (struct seen){NO_SLOT, 0};
    uint64_t word = holders_of(lookup->index, node);
    return (struct seen){word, tag_of(lookup->index, node)};
}

/* ---- sets ---- */

static void swap(struct candidate *a, struct candidate *b)
{
    struct candidate was = *a;
    *a = *b;
    *b = was;
}

static uint64_t signature_of(const struct candidate *candidate, uint32_t count)
{
    uint64_t signature = 0;
    for (uint32_t i = 0; i < count; i++)
        signature ^= candidate[i].signature;
    return signature;
}

static uint32_t member_slot(const struct fl_holders *list, uint32_t i)
{
    return atomic_load_explicit(&list->member[i], memory_order_relaxed) & 0xffff;
}

static uint32_t used_of(const struct fl_holders *list)
{
    return atomic_load_explicit(&list->used, memory_order_acquire);
}

static uint32_t keep_by_comparing(struct candidate *candidate, uint32_t count,
                                  const struct fl_holders *list, uint32_t used)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < used; j++)
            if (member_slot(list, j) == candidate[i].slot) {
                swap(&candidate[kept++], &candidate[i]);
                break;
            }
    return kept;
}

static uint32_t keep_by_marking(struct candidate *candidate, uint32_t count,
                                const struct fl_holders *list, uint32_t used, uint64_t *marks)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++)
        marks[candidate[i].slot / 64] |= UINT64_C(1) << candidate[i].slot % 64;
    /* Clearing the mark of each member leaves marked those that are no members. */
    for (uint32_t j = 0; j < used; j++) {
        uint32_t slot = member_slot(list, j);
        marks[slot / 64] &= ~(UINT64_C(1) << slot % 64);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bit = UINT64_C(1) << candidate[i].slot % 64;
        if ((marks[candidate[i].slot / 64] & bit) == 0)
            swap(&candidate[kept++], &candidate[i]);
        else
            marks[candidate[i].slot / 64] &= ~bit;
    }
    return kept;
}

/* Moves those of the `count` candidates that hold the node to the front; returns how many. `deeper`
 * is the signature of candidates outside this group that are known to hold it too: when they and
 * the group are all its holders, nobody has dropped out, and no member needs to be looked at. */
static uint32_t keep_holders(const struct lookup *lookup, struct candidate *candidate,
                             uint32_t count, uint64_t deeper, struct seen seen)
{
    if (!is_list(seen.word)) {
        for (uint32_t i = 0; i < count; i++)
            if (candidate[i].slot == slot_of(seen.word)) {
                swap(&candidate[0], &candidate[i]);
                return 1;
            }
        return 0;
    }
    if (seen.tag == (signature_of(candidate, count) ^ deeper))
        return count;
    const struct fl_holders *list = list_of(seen.word);
    uint32_t used = used_of(list);
    return (uint64_t)count * used <= NESTED_MAX
               ? keep_by_comparing(candidate, count, list, used)
               : keep_by_marking(candidate, count, list, used, lookup->scratch->marks);
}

/* ---- where candidates drop out ---- */

static void settle(struct candidate *candidate, uint32_t count, uint32_t blocks)
{
    for (uint32_t i = 0; i < count; i++)
        candidate[i].blocks = blocks;
}

static void push(struct lookup *lookup, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi,
                 uint64_t deeper)
{
    if (from == to)
        return;
    assert(lo < hi);
    if (hi - lo == 1) {
        settle(lookup->candidate + from, to - from, hi);
        return;
    }
    assert(lookup->frame_count < FRAMES_MAX);
    lookup->scratch->frames[lookup->frame_count++] = (struct frame){from, to, lo, hi, deeper};
}

/* Positions between lo and hi that a cut asks for: all if they are few. Returns how many. */
static uint32_t plan_cut(uint32_t lo, uint32_t hi, uint32_t *position)
{
    uint32_t inside = hi - lo - 1;
    if (inside <= PROBES_MAX) {
        for (uint32_t i = 0; i < inside; i++)
            position[i] = lo + 1 + i;
        return inside;
    }
    for (uint32_t i = 0; i < PROBES; i++)
        position[i] = lo + (uint32_t)((uint64_t)(inside + 1) * (i + 1) / (PROBES + 1));
    return PROBES;
}

/* Begins to fetch what the first cut will ask for. */
static void prefetch_cut(const struct lookup *lookup, uint32_t lo, uint32_t hi)
{
    uint32_t position[PROBES_MAX];
    uint32_t count = plan_cut(lo, hi, position);
    for (uint32_t i = 0; i < count; i++)
        fl_table_prefetch(&lookup->index->by_seq, hash_at(lookup, position[i]));
}

/* Cuts one interval. */
static void cut(struct lookup *lookup, struct frame frame)
{
    uint32_t position[PROBES_MAX];
    uint64_t hash[PROBES_MAX];
    struct seen seen[PROBES_MAX];
    uint32_t count = plan_cut(frame.lo, frame.hi, position);

    for (uint32_t i = 0; i < count; i++) {
        hash[i] = hash_at(lookup, position[i]);
        fl_table_prefetch(&lookup->index->by_seq, hash[i]);
    }
    for (uint32_t i = 0; i < count; i++)
        prefetch_node(lookup, hash[i]);
    for (uint32_t i = 0; i < count; i++)
        seen[i] = probe(lookup, position[i], hash[i]);

    uint32_t lo = frame.lo, to = frame.to;
    for (uint32_t i = 0; i < count && frame.from < to; i++) {
        struct candidate *group = lookup->candidate + frame.from;
        uint32_t kept = keep_holders(lookup, group, to - frame.from, frame.deeper, seen[i]);
        if (frame.from + kept < to)
            push(lookup, frame.from + kept, to, lo, position[i],
                 frame.deeper ^ signature_of(group, kept));
        to = frame.from + kept;
        lo = position[i];
    }
    push(lookup, frame.from, to, lo, frame.hi, frame.deeper);
}

/* Candidates [from, to) hold block 0 and have no holes; `last` is what the last block's probe saw.
 */
static void search(struct lookup *lookup, uint32_t from, uint32_t to, uint32_t count,
                   struct seen last)
{
    struct candidate *group = lookup->candidate + from;
    /* They were seen holding block 0: of a single block nobody can drop out, whatever has changed
     * since its probe. */
    uint32_t kept = count == 1 ? to - from : keep_holders(lookup, group, to - from, 0, last);
    settle(group, kept, count);
    if (from + kept < to)
        push(lookup, from + kept, to, 0, count - 1, signature_of(group, kept));
    while (lookup->frame_count > 0)
        cut(lookup, lookup->scratch->frames[--lookup->frame_count]);
}

/* The same for candidates with holes: block by block. */
static void walk(struct lookup *lookup, uint32_t from, uint32_t to, uint32_t count)
{
    for (uint32_t i = 1; i < count && from < to; i++) {
        uint32_t ahead = i == 1 ? 1 : i + WALK_AHEAD - 1;
        for (; ahead < i + WALK_AHEAD && ahead < count; ahead++)
            fl_table_prefetch(&lookup->index->by_seq, hash_at(lookup, ahead));
        struct seen seen = probe(lookup, i, hash_at(lookup, i));
        uint32_t kept = keep_holders(lookup, lookup->candidate + from, to - from, 0, seen);
        settle(lookup->candidate + from + kept, to - from - kept, i);
        to = from + kept;
    }
    settle(lookup->candidate + from, to - from, count);
}

/* ---- the whole ---- */

static enum slot_state state_of(const struct fl_kvindex *index, uint32_t slot)
{
    return (enum slot_state)atomic_load_explicit(&index->slots[slot].state, memory_order_seq_cst);
}

static struct candidate *ensure_candidates(struct fl_kvindex_scratch *scratch, uint32_t count)
{
    if (count > scratch->candidate_cap) {
        scratch->candidate_cap = count + count / 2;
        scratch->candidate =
            fl_realloc(scratch->candidate, scratch->candidate_cap, sizeof(*scratch->candidate));
    }
    return scratch->candidate;
}

/* The holders of block 0, dead ones included, each once. */
static uint32_t collect(struct lookup *lookup, uint64_t word)
{
    uint32_t count = 0;
    if (!is_list(word)) {
        lookup->candidate = ensure_candidates(lookup->scratch, 1);
        if (slot_of(word) != NO_SLOT)
            lookup->candidate[count++] =
                (struct candidate){slot_of(word), 0, slot_signature(slot_of(word))};
        return count;
    }
    const struct fl_holders *list = list_of(word);
    uint32_t used = used_of(list);
    uint64_t *marks = lookup->scratch->marks;
    lookup->candidate = ensure_candidates(lookup->scratch, used);
    for (uint32_t i = 0; i < used; i++) {
        uint32_t slot = member_slot(list, i);
        uint64_t bit = UINT64_C(1) << slot % 64;
        /* One that leaves and comes back while we read stands in two places. */
        if (slot == NO_SLOT || (marks[slot / 64] & bit) != 0)
            continue;
        marks[slot / 64] |= bit;
        lookup->candidate[count++] = (struct candidate){slot, 0, slot_signature(slot)};
    }
    for (uint32_t i = 0; i < count; i++)
        marks[lookup->candidate[i].slot / 64] = 0;
    return count;
}

/* Drops the dead; puts those without holes first. Returns how many are left, *whole of them so. */
static uint32_t sort_by_state(struct lookup *lookup, uint32_t count, uint32_t *whole)
{
    struct candidate *candidate = lookup->candidate;
    uint32_t alive = 0;
    *whole = 0;
    for (uint32_t i = 0; i < count; i++) {
        enum slot_state state = state_of(lookup->index, candidate[i].slot);
        if (state != SLOT_LIVE && state != SLOT_HOLED)
            continue;
        swap(&candidate[alive], &candidate[i]);
        if (state == SLOT_LIVE)
            swap(&candidate[(*whole)++], &candidate[alive]);
        alive++;
    }
    return alive;
}

static void report(const struct lookup *lookup, uint32_t count, struct fl_kvindex_matches *matches)
{
    if (count > matches->cap) {
        matches->cap = count + count / 2;
        matches->at = fl_realloc(matches->at, matches->cap, sizeof(*matches->at));
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct slot *slot = &lookup->index->slots[lookup->candidate[i].slot];
        matches->at[i] = (struct fl_kvindex_match){
            .worker_id = atomic_load_explicit(&slot->worker_id, memory_order_relaxed),
            .dp_rank = atomic_load_explicit(&slot->dp_rank, memory_order_relaxed),
            .row = atomic_load_explicit(&slot->row, memory_order_relaxed),
            .blocks = {[FL_TIER_DEVICE] = lookup->candidate[i].blocks},
        };
    }
    matches->count = count;
}

void fl_kvindex_lookup_inside(const struct fl_kvindex *index, const uint64_t *seq, size_t count,
                              struct fl_kvindex_matches *matches)
{
    matches->count = 0;
    if (count == 0)
        return;
    if (matches->scratch == NULL)
        matches->scratch = fl_calloc(1, sizeof(*matches->scratch));

    struct lookup lookup = {.index = index, .seq = seq, .scratch = matches->scratch};
    uint32_t blocks = count < UINT32_MAX ? (uint32_t)count : UINT32_MAX;
    uint64_t first = hash_at(&lookup, 0), last = hash_at(&lookup, blocks - 1);
    fl_table_prefetch(&index->by_seq, first);
    fl_table_prefetch(&index->by_seq, last);

    struct seen seen = probe(&lookup, 0, first);
    if (seen.word == NO_SLOT)
        return;
    if (is_list(seen.word))
        __builtin_prefetch(list_of(seen.word));
    struct seen end = blocks > 1 ? probe(&lookup, blocks - 1, last) : seen;
    /* Unless the last block has the first one's holders, some drop out between: while their list is
     * on its way, so is what will be asked for then. */
    if (is_list(seen.word) ? seen.tag != end.tag : slot_of(seen.word) != slot_of(end.word))
        prefetch_cut(&lookup, 0, blocks - 1);
    uint32_t whole;
    uint32_t found = sort_by_state(&lookup, collect(&lookup, seen.word), &whole);
    if (whole > 0)
        search(&lookup, 0, whole, blocks, end);
    if (whole < found)
        walk(&lookup, whole, found, blocks);
    report(&lookup, found, matches);
}

void fl_kvindex_lookup(const struct fl_kvindex *index, const uint64_t *seq, size_t count,
                       struct fl_kvindex_matches *matches)
{
    fl_epoch_enter(index->epoch);
    fl_kvindex_lookup_inside(index, seq, count, matches);
    fl_epoch_leave(index->epoch);
}
