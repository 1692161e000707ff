/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <string.h>

#include "codec/json.h"
#include "codec/json_scan.h"

/* Both passes see the same members: the first only measures, so that the buffer grows once and a
 * failure leaves it as it was. */
struct splice {
    struct fl_bytes key, value;
    size_t members;
    size_t hits;
    size_t replaced_bytes; /* of the old values */
    const uint8_t *from;   /* what is not copied yet */
    uint8_t *to;           /* NULL in the measuring pass */
};

static uint8_t *put(uint8_t *to, struct fl_bytes bytes)
{
    memcpy(to, bytes.p, bytes.n);
    return to + bytes.n;
}

static int on_member(void *owner, const struct fl_json_member *member)
{
    struct splice *s = owner;

    s->members++;
    if (!fl_json_raw_eq(member->key, s->key))
        return 0;
    s->hits++;
    s->replaced_bytes += member->value.n;
    if (s->to != NULL) {
        s->to = put(s->to, fl_bytes(s->from, (size_t)(member->value.p - s->from)));
        s->to = put(s->to, s->value);
        s->from = member->value.p + member->value.n;
    }
    return 0;
}

static void replace(struct splice *s, struct fl_bytes text)
{
    s->from = text.p;
    int rc = fl_json_scan_members(text, on_member, s);
    assert(rc == 0); /* the measuring pass read the same text */
    (void)rc;
    s->to = put(s->to, fl_bytes(s->from, (size_t)(text.p + text.n - s->from)));
}

static void insert(struct splice *s, struct fl_bytes text)
{
    const uint8_t *brace = memchr(text.p, '{', text.n); /* blanks only before it */

    assert(brace != NULL);
    brace++;
    s->to = put(s->to, fl_bytes(text.p, (size_t)(brace - text.p)));
    *s->to++ = '"';
    s->to = put(s->to, s->key);
    *s->to++ = '"';
    *s->to++ = ':';
    s->to = put(s->to, s->value);
    if (s->members > 0)
        *s->to++ = ',';
    s->to = put(s->to, fl_bytes(brace, (size_t)(text.p + text.n - brace)));
}

int fl_json_splice_member(struct fl_buf *out, struct fl_bytes text, struct fl_bytes key,
                          struct fl_bytes value)
{
    struct splice s = {.key = key, .value = value};

    /* The key is a constant of ours and is written as it is. */
    assert(key.n > 0 && fl_json_skip_plain(key.p, key.p + key.n) == key.p + key.n);
    int rc = fl_json_check(value);
    if (rc < 0)
        return rc;
    rc = fl_json_scan_members(text, on_member, &s);
    if (rc < 0)
        return rc;

    size_t n = text.n;
    if (s.hits > 0)
        n = n - s.replaced_bytes + s.hits * value.n;
    else
        n += key.n + 3 + value.n + (s.members > 0 ? 1 : 0);
    uint8_t *first = fl_buf_reserve(out, n);
    if (first == NULL)
        return out->max_bytes != 0 && fl_buf_size(out) + n > out->max_bytes ? FL_ELIMIT : FL_ENOMEM;
    s.to = first;
    if (s.hits > 0)
        replace(&s, text);
    else
        insert(&s, text);
    assert((size_t)(s.to - first) == n);
    fl_buf_commit(out, n);
    return 0;
}
