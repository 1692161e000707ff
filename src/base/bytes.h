/* SPDX-License-Identifier: Apache-2.0 */
/* Views of bytes somebody else owns, and the small things one does with them.
 *
 * Bytes from outside are never NUL-terminated and may hold NUL. {NULL, 0} is the absent value; an
 * empty but present value has p != NULL. Nothing here allocates; all functions are pure. */
#ifndef FL_BASE_BYTES_H
#define FL_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct fl_bytes {
    const uint8_t *p;
    size_t n;
};

/* A view of a string literal, without its NUL. */
#define FL_BYTES(literal) ((struct fl_bytes){(const uint8_t *)(literal), sizeof(literal) - 1})

#define FL_ARRAY_LEN(array) (sizeof(array) / sizeof((array)[0]))

/* The struct of type `type` whose member `member` is `ptr`. */
#define FL_CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/* For printf("%.*s", FL_FMT(bytes)). */
#define FL_FMT(bytes) (int)(bytes).n, (const char *)(bytes).p

static inline struct fl_bytes fl_bytes(const void *p, size_t n)
{
    return (struct fl_bytes){(const uint8_t *)p, n};
}

/* `text` may be NULL: absent. */
static inline struct fl_bytes fl_bytes_of(const char *text)
{
    return (struct fl_bytes){(const uint8_t *)text, text == NULL ? 0 : strlen(text)};
}

static inline bool fl_bytes_is_absent(struct fl_bytes b)
{
    return b.p == NULL;
}

static inline bool fl_bytes_eq(struct fl_bytes a, struct fl_bytes b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

/* The first `n` bytes (all, if there are fewer). */
static inline struct fl_bytes fl_bytes_head(struct fl_bytes b, size_t n)
{
    return (struct fl_bytes){b.p, n < b.n ? n : b.n};
}

/* What follows the first `n` bytes (empty, if there are fewer). */
static inline struct fl_bytes fl_bytes_skip(struct fl_bytes b, size_t n)
{
    if (n >= b.n)
        return b.n == 0 ? b : (struct fl_bytes){b.p + b.n, 0};
    return (struct fl_bytes){b.p + n, b.n - n};
}

/* ASCII letters compare without case; other bytes exactly. Locale plays no part. */
bool fl_bytes_eq_nocase(struct fl_bytes a, struct fl_bytes b);

/* Like memcmp, a shorter prefix first. */
int fl_bytes_cmp(struct fl_bytes a, struct fl_bytes b);

bool fl_bytes_has_prefix(struct fl_bytes b, struct fl_bytes prefix);
bool fl_bytes_has_suffix(struct fl_bytes b, struct fl_bytes suffix);

/* Index of the first `byte`, or b.n. */
size_t fl_bytes_index(struct fl_bytes b, uint8_t byte);

/* Index of the first `needle`, or b.n. An empty needle is found at 0. */
size_t fl_bytes_find(struct fl_bytes b, struct fl_bytes needle);

/* Without blanks and tabs at both ends. */
struct fl_bytes fl_bytes_trim(struct fl_bytes b);

/* Takes the next item of a list off `*rest`: bytes up to the next `separator`, which is dropped.
 * False when `*rest` is absent; an empty list has one empty item. */
bool fl_bytes_next(struct fl_bytes *rest, uint8_t separator, struct fl_bytes *item);

/* Whole `b` as 1*DIGIT, no sign, no blank. Otherwise, or above `max`, false and *value untouched.
 */
bool fl_bytes_to_u64(struct fl_bytes b, uint64_t max, uint64_t *value);

/* True if `b` is valid UTF-8 (RFC 3629: no overlong form, no surrogate, at most U+10FFFF). */
bool fl_bytes_is_utf8(struct fl_bytes b);

/* Copies `b` and a NUL into `out` if both fit into `room` and `b` holds no NUL. */
bool fl_bytes_to_cstr(struct fl_bytes b, char *out, size_t room);

#endif
