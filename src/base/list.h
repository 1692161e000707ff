/* SPDX-License-Identifier: Apache-2.0 */
/* Doubly linked circular list whose links live inside their owners. A head is a link without an
 * owner. A link that is in no list is alone: it points to itself, and unlinking it does nothing.
 * Every operation is O(1). Not thread-safe. */
#ifndef FL_BASE_LIST_H
#define FL_BASE_LIST_H

#include <stdbool.h>

#include "base/bytes.h"

struct fl_link {
    struct fl_link *next, *prev;
};

static inline void fl_link_init(struct fl_link *link)
{
    link->next = link->prev = link;
}

static inline bool fl_link_is_alone(const struct fl_link *link)
{
    return link->next == link;
}

static inline void fl_link_unlink(struct fl_link *link)
{
    link->next->prev = link->prev;
    link->prev->next = link->next;
    fl_link_init(link);
}

/* `link` must be alone. */
static inline void fl_link_insert_before(struct fl_link *at, struct fl_link *link)
{
    link->prev = at->prev;
    link->next = at;
    at->prev->next = link;
    at->prev = link;
}

static inline void fl_link_push_tail(struct fl_link *head, struct fl_link *link)
{
    fl_link_insert_before(head, link);
}

static inline void fl_link_push_head(struct fl_link *head, struct fl_link *link)
{
    fl_link_insert_before(head->next, link);
}

/* Takes the first link off `head`, or NULL. */
static inline struct fl_link *fl_link_pop_head(struct fl_link *head)
{
    if (fl_link_is_alone(head))
        return NULL;
    struct fl_link *link = head->next;
    fl_link_unlink(link);
    return link;
}

/* Moves everything of `from` to the tail of `to`; `from` is empty then. */
static inline void fl_link_splice_tail(struct fl_link *to, struct fl_link *from)
{
    if (fl_link_is_alone(from))
        return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    fl_link_init(from);
}

/* Walks from first to last; the body may unlink or free `link`'s owner. */
#define FL_LINK_FOREACH(link, head)                                                                \
    for (struct fl_link *link = (head)->next, *link##_next = link->next; link != (head);           \
         link = link##_next, link##_next = link->next)

#endif
