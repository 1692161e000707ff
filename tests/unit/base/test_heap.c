/* SPDX-License-Identifier: Apache-2.0 */
/* heap, and the list it shares its style with. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/heap.h"
#include "base/list.h"
#include "base/rng.h"

struct item {
    struct fl_heap_node node;
    uint64_t key;
};

static struct item *item_of(struct fl_heap_node *node)
{
    return node == NULL ? NULL : FL_CONTAINER_OF(node, struct item, node);
}

static bool is_before(const struct fl_heap_node *a, const struct fl_heap_node *b)
{
    const struct item *x =
        (const struct item *)(const void *)((const char *)a - offsetof(struct item, node));
    const struct item *y =
        (const struct item *)(const void *)((const char *)b - offsetof(struct item, node));
    return x->key < y->key;
}

enum { ITEMS = 200 };

static uint64_t least_key(const struct item *items)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < ITEMS; i++) {
        if (items[i].node.index != 0 && items[i].key < least)
            least = items[i].key;
    }
    return least;
}

static void random_use_matches_a_scan(void **state)
{
    (void)state;
    const uint64_t seed = 31;
    struct fl_rng rng;
    struct fl_heap heap;
    struct item items[ITEMS] = {0};
    size_t count = 0;

    fl_rng_seed(&rng, seed);
    fl_heap_init(&heap, is_before);
    for (unsigned step = 0; step < 50000; step++) {
        struct item *item = &items[fl_rng_below(&rng, ITEMS)];
        bool inside = item->node.index != 0;
        switch (fl_rng_below(&rng, 5)) {
        case 0:
        case 1:
            if (!inside) {
                item->key = fl_rng_below(&rng, 100); /* equal keys are common */
                fl_heap_push(&heap, &item->node);
                count++;
            }
            break;
        case 2:
            fl_heap_remove(&heap, &item->node);
            count -= inside;
            assert_int_equal(item->node.index, 0);
            break;
        case 3:
            if (inside) {
                item->key = fl_rng_below(&rng, 100);
                fl_heap_update(&heap, &item->node);
            }
            break;
        default: {
            uint64_t least = least_key(items);
            struct item *first = item_of(fl_heap_pop(&heap));
            assert_int_equal(first != NULL, count > 0);
            count -= first != NULL;
            if (first != NULL && (first->key != least || first->node.index != 0))
                fail_msg("seed %u step %u", (unsigned)seed, step);
            break;
        }
        }
        assert_int_equal(heap.count, count);
        fl_heap_check(&heap);
        struct item *first = item_of(fl_heap_peek(&heap));
        if (first != NULL && first->key != least_key(items))
            fail_msg("seed %u step %u", (unsigned)seed, step);
    }
    fl_heap_fini(&heap);
    fl_heap_fini(&heap);
}

static void an_empty_heap_has_no_first(void **state)
{
    (void)state;
    struct fl_heap heap;
    struct item item = {0};
    fl_heap_init(&heap, is_before);
    assert_null(fl_heap_peek(&heap));
    assert_null(fl_heap_pop(&heap));
    fl_heap_remove(&heap, &item.node); /* in no heap */
    fl_heap_push(&heap, &item.node);
    fl_heap_remove(&heap, &item.node);
    assert_null(fl_heap_peek(&heap));
    fl_heap_fini(&heap);
}

/* ---- list ---- */

struct member {
    int number;
    struct fl_link link;
};

static void expect_numbers(const struct fl_link *head, const char *digits)
{
    size_t at = 0;
    FL_LINK_FOREACH(link, (struct fl_link *)(uintptr_t)head)
    {
        assert_int_equal(FL_CONTAINER_OF(link, struct member, link)->number, digits[at] - '0');
        at++;
    }
    assert_int_equal(digits[at], 0);
}

static void links_move_between_lists(void **state)
{
    (void)state;
    struct fl_link a, b;
    struct member members[5];
    fl_link_init(&a);
    fl_link_init(&b);
    for (int i = 0; i < 5; i++) {
        members[i].number = i;
        fl_link_init(&members[i].link);
    }
    assert_null(fl_link_pop_head(&a));
    fl_link_push_tail(&a, &members[1].link);
    fl_link_push_tail(&a, &members[2].link);
    fl_link_push_head(&a, &members[0].link);
    expect_numbers(&a, "012");
    fl_link_insert_before(&members[2].link, &members[4].link);
    expect_numbers(&a, "0142");
    fl_link_unlink(&members[4].link);
    fl_link_unlink(&members[4].link); /* alone: nothing happens */
    fl_link_push_tail(&b, &members[3].link);
    fl_link_splice_tail(&b, &a);
    expect_numbers(&b, "3012");
    assert_true(fl_link_is_alone(&a));
    fl_link_splice_tail(&b, &a); /* of nothing */
    expect_numbers(&b, "3012");
    assert_ptr_equal(fl_link_pop_head(&b), &members[3].link);
    assert_true(fl_link_is_alone(&members[3].link));
    FL_LINK_FOREACH(link, &b)
    {
        fl_link_unlink(link); /* the walk has its next already */
    }
    assert_true(fl_link_is_alone(&b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_use_matches_a_scan),
        cmocka_unit_test(an_empty_heap_has_no_first),
        cmocka_unit_test(links_move_between_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
