/* SPDX-License-Identifier: Apache-2.0 */
/* What loops share about a rule, and the selectors that use it (gateway.md 10, 11).
 *
 * A pick by round robin costs one atomic add and one look at the endpoint while all is well. Only
 * when some endpoint is inactive, avoided or behind a breaker does it walk the list. */
#include <assert.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "rules/rules.h"

#define BREAKER_FAILURES 5    /* gateway.md 11.3 */
#define BREAKER_OPEN_MS 30000 /* gateway.md 11.3 */
#define AVOID_MS 1000         /* gateway.md 11.4 */
#define CAREFUL_FOREVER UINT64_MAX
/* Half-open breakers whose one trial other loops may take from under a single selection; after that
 * many it gives up, as with no usable endpoint. */
#define TRIAL_RACES 8

enum { SEL_WRR = 2, SEL_LEAST = 4 };

/* ---- blocks ---- */

static void *alloc_lines(size_t n)
{
    /* Whole cache lines, so that two blocks never share one. */
    size_t rounded = (n + 63) / 64 * 64;
    void *p = aligned_alloc(64, rounded);
    if (p == NULL)
        abort(); /* as fl_alloc(): small, and not of a peer's choosing */
    memset(p, 0, rounded);
    return p;
}

struct fl_rule_live *fl_rule_live_new(void)
{
    struct fl_rule_live *live = alloc_lines(sizeof(*live));
    live->refs = 1;
    pthread_mutex_init(&live->lock, NULL);
    return live;
}

void fl_rule_live_unref(struct fl_rule_live *live)
{
    if (live == NULL || --live->refs > 0)
        return;
    pthread_mutex_destroy(&live->lock);
    free(live);
}

struct fl_endpoint_live *fl_endpoint_live_new(uint32_t loops)
{
    struct fl_endpoint_live *live = alloc_lines(sizeof(*live) + loops * sizeof(live->counts[0]));
    live->refs = 1;
    live->loops = loops;
    return live;
}

void fl_endpoint_live_unref(struct fl_endpoint_live *live)
{
    if (live != NULL && --live->refs == 0)
        free(live);
}

void fl_endpoint_counts(const struct fl_endpoint_live *live, uint64_t *requests, uint64_t *bytes)
{
    *requests = *bytes = 0;
    for (uint32_t i = 0; i < live->loops; i++) {
        *requests += atomic_load_explicit(&live->counts[i].requests, memory_order_relaxed);
        *bytes += atomic_load_explicit(&live->counts[i].bytes, memory_order_relaxed);
    }
}

static void add_own(_Atomic uint64_t *value, uint64_t n)
{
    /* One writer: load and store need not be one operation. */
    uint64_t old = atomic_load_explicit(value, memory_order_relaxed);
    atomic_store_explicit(value, old + n, memory_order_relaxed);
}

void fl_rule_count(const struct fl_rule *rule, uint32_t endpoint, uint32_t loop, uint64_t requests,
                   uint64_t bytes)
{
    struct fl_endpoint_live *live = rule->endpoints[endpoint].live;
    assert(loop < live->loops);
    add_own(&live->counts[loop].requests, requests);
    add_own(&live->counts[loop].bytes, bytes);
}

/* ---- states ---- */

static bool is_tripped(const struct fl_rule *rule, const struct fl_endpoint_live *live)
{
    return rule->cb_enable &&
           atomic_load_explicit(&live->failures, memory_order_relaxed) >= BREAKER_FAILURES;
}

static bool is_open(const struct fl_rule *rule, const struct fl_endpoint_live *live,
                    uint64_t now_ms)
{
    return is_tripped(rule, live) &&
           now_ms < atomic_load_explicit(&live->open_until_ms, memory_order_relaxed);
}

static bool is_avoided(const struct fl_endpoint_live *live, uint64_t now_ms)
{
    return now_ms < atomic_load_explicit(&live->avoid_until_ms, memory_order_relaxed);
}

bool fl_rule_is_usable(const struct fl_rule *rule, uint32_t endpoint, uint64_t now_ms)
{
    const struct fl_endpoint_live *live = rule->endpoints[endpoint].live;
    return rule->endpoints[endpoint].weight > 0 &&
           !atomic_load_explicit(&live->is_inactive, memory_order_relaxed) &&
           !is_open(rule, live, now_ms);
}

/* A half-open breaker lets one request through: whoever moves the deadline first. If that request
 * never reports, the next trial comes when the moved deadline has passed. */
static bool claim(const struct fl_rule *rule, uint32_t endpoint, uint64_t now_ms)
{
    struct fl_endpoint_live *live = rule->endpoints[endpoint].live;
    if (!is_tripped(rule, live))
        return true;
    uint64_t until = atomic_load_explicit(&live->open_until_ms, memory_order_relaxed);
    return now_ms >= until &&
           atomic_compare_exchange_strong(&live->open_until_ms, &until, now_ms + BREAKER_OPEN_MS);
}

static void be_careful_until(struct fl_rule_live *live, uint64_t until_ms)
{
    uint64_t old = atomic_load_explicit(&live->careful_until_ms, memory_order_relaxed);
    while (old < until_ms &&
           !atomic_compare_exchange_weak(&live->careful_until_ms, &old, until_ms)) {
    }
}

void fl_rule_connect_failed(const struct fl_rule *rule, uint32_t endpoint, uint64_t now_ms)
{
    struct fl_endpoint_live *live = rule->endpoints[endpoint].live;
    atomic_store_explicit(&live->avoid_until_ms, now_ms + AVOID_MS, memory_order_relaxed);
    uint32_t failures = atomic_load_explicit(&live->failures, memory_order_relaxed);
    while (failures < BREAKER_FAILURES &&
           !atomic_compare_exchange_weak(&live->failures, &failures, failures + 1)) {
    }
    if (failures + 1 < BREAKER_FAILURES || !rule->cb_enable) {
        be_careful_until(rule->live, now_ms + AVOID_MS);
        return;
    }
    atomic_store_explicit(&live->open_until_ms, now_ms + BREAKER_OPEN_MS, memory_order_relaxed);
    /* Until it closes, which a selector finds out; see settle(). */
    be_careful_until(rule->live, CAREFUL_FOREVER);
}

void fl_rule_connect_worked(const struct fl_rule *rule, uint32_t endpoint)
{
    struct fl_endpoint_live *live = rule->endpoints[endpoint].live;
    /* Every request comes here: the line is written only when there is something to change. */
    if (atomic_load_explicit(&live->failures, memory_order_relaxed) != 0)
        atomic_store_explicit(&live->failures, 0, memory_order_relaxed);
    if (atomic_load_explicit(&live->avoid_until_ms, memory_order_relaxed) != 0)
        atomic_store_explicit(&live->avoid_until_ms, 0, memory_order_relaxed);
}

bool fl_rule_set_active(const struct fl_rule *rule, uint32_t endpoint, bool is_active)
{
    struct fl_endpoint_live *live = rule->endpoints[endpoint].live;
    bool was_inactive = atomic_exchange(&live->is_inactive, !is_active);
    if (was_inactive != is_active)
        return false;
    if (is_active)
        atomic_fetch_sub(&rule->live->inactive, 1);
    else
        atomic_fetch_add(&rule->live->inactive, 1);
    return true;
}

/* ---- choosing ---- */

/* One question to the list: which endpoints come into play, at which level. */
struct choice {
    const struct fl_rule *rule;
    const uint32_t *members; /* primaries or backups */
    uint32_t count;
    bool avoided; /* those that are last choice instead of the others */
    uint32_t tried[FL_RULE_MAX_TRIED + TRIAL_RACES];
    uint32_t tried_count;
    uint64_t now_ms;
};

static bool is_candidate(const struct choice *choice, uint32_t endpoint)
{
    for (uint32_t i = 0; i < choice->tried_count; i++) {
        if (choice->tried[i] == endpoint)
            return false;
    }
    return fl_rule_is_usable(choice->rule, endpoint, choice->now_ms) &&
           is_avoided(choice->rule->endpoints[endpoint].live, choice->now_ms) == choice->avoided;
}

static uint32_t by_turn(const struct choice *choice, uint64_t turn)
{
    uint32_t usable = 0;
    for (uint32_t i = 0; i < choice->count; i++)
        usable += is_candidate(choice, choice->members[i]);
    if (usable == 0)
        return FL_RULE_NO_ENDPOINT;
    uint32_t wanted = (uint32_t)(turn % usable);
    uint32_t last = FL_RULE_NO_ENDPOINT;
    for (uint32_t i = 0; i < choice->count; i++) {
        if (!is_candidate(choice, choice->members[i]))
            continue;
        last = choice->members[i];
        if (wanted-- == 0)
            break;
    }
    return last; /* NO_ENDPOINT only if all changed meanwhile */
}

/* gateway.md 10.2; under the lock. */
static uint32_t by_smooth_weight(const struct choice *choice)
{
    const struct fl_rule_endpoint *endpoints = choice->rule->endpoints;
    uint32_t best = FL_RULE_NO_ENDPOINT;
    int64_t total = 0;
    for (uint32_t i = 0; i < choice->count; i++) {
        uint32_t at = choice->members[i];
        if (!is_candidate(choice, at))
            continue;
        endpoints[at].live->wrr_current += (int64_t)endpoints[at].weight;
        total += (int64_t)endpoints[at].weight;
        if (best == FL_RULE_NO_ENDPOINT ||
            endpoints[at].live->wrr_current > endpoints[best].live->wrr_current)
            best = at;
    }
    if (best != FL_RULE_NO_ENDPOINT)
        endpoints[best].live->wrr_current -= total;
    return best;
}

/* gateway.md 10, sel 4; under the lock. */
static uint32_t by_least_in_flight(const struct choice *choice)
{
    const struct fl_rule_endpoint *endpoints = choice->rule->endpoints;
    uint32_t best = FL_RULE_NO_ENDPOINT;
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < choice->count; i++) {
        uint32_t at = choice->members[i];
        if (!is_candidate(choice, at))
            continue;
        uint32_t load = atomic_load_explicit(&endpoints[at].live->in_flight, memory_order_relaxed);
        if (best == FL_RULE_NO_ENDPOINT || load < least) {
            best = at;
            least = load;
        }
    }
    if (best != FL_RULE_NO_ENDPOINT)
        fl_rule_take(choice->rule, best);
    return best;
}

static uint32_t choose_at_level(const struct choice *choice, uint64_t turn)
{
    uint32_t best;
    if (choice->rule->sel != SEL_WRR && choice->rule->sel != SEL_LEAST)
        return by_turn(choice, turn);
    pthread_mutex_lock(&choice->rule->live->lock);
    best = choice->rule->sel == SEL_WRR ? by_smooth_weight(choice) : by_least_in_flight(choice);
    pthread_mutex_unlock(&choice->rule->live->lock);
    return best;
}

/* Primaries before backups, and within each those whose last connect failed come last. */
static uint32_t choose(struct choice *choice, uint64_t turn)
{
    const struct fl_rule *rule = choice->rule;
    for (int level = 0; level < 4; level++) {
        choice->members = level < 2 ? rule->primaries : rule->backups;
        choice->count = level < 2 ? rule->primary_count : rule->backup_count;
        choice->avoided = level % 2 == 1;
        uint32_t best = choose_at_level(choice, turn);
        if (best != FL_RULE_NO_ENDPOINT)
            return best;
    }
    return FL_RULE_NO_ENDPOINT;
}

/* Every breaker is closed: no need to walk any more once the last avoidance is over. A breaker that
 * trips at this very moment is seen all the same, since the fast path looks at the endpoint it
 * takes. */
static void settle(const struct fl_rule *rule, uint64_t now_ms)
{
    uint64_t forever = CAREFUL_FOREVER;
    if (atomic_load_explicit(&rule->live->careful_until_ms, memory_order_relaxed) != forever)
        return;
    for (uint32_t i = 0; i < rule->endpoint_count; i++) {
        if (is_tripped(rule, rule->endpoints[i].live))
            return;
    }
    atomic_compare_exchange_strong(&rule->live->careful_until_ms, &forever, now_ms + AVOID_MS);
}

static bool is_all_well(const struct fl_rule *rule, uint64_t now_ms)
{
    return atomic_load_explicit(&rule->live->inactive, memory_order_relaxed) == 0 &&
           now_ms >= atomic_load_explicit(&rule->live->careful_until_ms, memory_order_relaxed);
}

uint32_t fl_rule_select(const struct fl_rule *rule, const uint32_t *tried, uint32_t tried_count,
                        uint64_t now_ms)
{
    struct choice choice = {.rule = rule, .now_ms = now_ms, .tried_count = tried_count};
    uint64_t turn = 0;
    assert(tried_count <= FL_RULE_MAX_TRIED);
    for (uint32_t i = 0; i < tried_count; i++)
        choice.tried[i] = tried[i];
    if (rule->sel != SEL_WRR && rule->sel != SEL_LEAST) {
        turn = atomic_fetch_add_explicit(&rule->live->round_robin, 1, memory_order_relaxed);
        if (tried_count == 0 && rule->primary_count > 0 && is_all_well(rule, now_ms)) {
            uint32_t at = rule->primaries[turn % rule->primary_count];
            if (fl_rule_is_usable(rule, at, now_ms) && !is_tripped(rule, rule->endpoints[at].live))
                return at;
        }
    }
    settle(rule, now_ms);
    for (int race = 0; race < TRIAL_RACES; race++) {
        uint32_t best = choose(&choice, turn);
        if (best == FL_RULE_NO_ENDPOINT || claim(rule, best, now_ms))
            return best;
        /* Another loop took the trial between our look and our claim. */
        fl_rule_done(rule, best);
        choice.tried[choice.tried_count++] = best;
    }
    return FL_RULE_NO_ENDPOINT;
}

void fl_rule_take(const struct fl_rule *rule, uint32_t endpoint)
{
    if (rule->sel == SEL_LEAST)
        atomic_fetch_add_explicit(&rule->endpoints[endpoint].live->in_flight, 1,
                                  memory_order_relaxed);
}

void fl_rule_done(const struct fl_rule *rule, uint32_t endpoint)
{
    if (rule->sel != SEL_LEAST)
        return;
    uint32_t before = atomic_fetch_sub_explicit(&rule->endpoints[endpoint].live->in_flight, 1,
                                                memory_order_relaxed);
    assert(before > 0);
    (void)before;
}

uint32_t fl_rule_find_endpoint(const struct fl_rule *rule, struct fl_bytes address)
{
    struct fl_rule_endpoint wanted = {0};
    uint16_t port;
    struct fl_bytes host;
    /* The usual spelling first: an EPP names what it was given. */
    for (uint32_t i = 0; i < rule->endpoint_count; i++) {
        if (fl_bytes_eq(rule->endpoints[i].address, address))
            return i;
    }
    if (!fl_rule_split_host_port(address, &host, &port) || !fl_rule_ip_parse(host, &wanted.ip))
        return FL_RULE_NO_ENDPOINT;
    wanted.port = port;
    return fl_rule_index_of(rule, &wanted);
}
