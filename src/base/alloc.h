/* SPDX-License-Identifier: Apache-2.0 */
/* Memory. Small allocations abort the process when memory is gone; an allocation whose size a peer
 * can influence is capped by its caller first and uses fl_try_alloc(), whose failure is an ordinary
 * error. Any thread. */
#ifndef FL_BASE_ALLOC_H
#define FL_BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

/* Never NULL. fl_alloc(0) gives a pointer that may be freed. */
void *fl_alloc(size_t n) __attribute__((malloc, alloc_size(1), returns_nonnull));
/* Zeroed; aborts when count * size overflows. */
void *fl_calloc(size_t count, size_t size)
    __attribute__((malloc, alloc_size(1, 2), returns_nonnull));
/* Grows or shrinks `p` (NULL allowed) to `count` elements; aborts on overflow. */
void *fl_realloc(void *p, size_t count, size_t size)
    __attribute__((alloc_size(2, 3), returns_nonnull, warn_unused_result));
/* A NUL-terminated copy. */
char *fl_strdup(const char *text) __attribute__((malloc, returns_nonnull));
char *fl_strndup(const void *p, size_t n) __attribute__((malloc, returns_nonnull));

/* NULL when memory is gone or fl_alloc_fail_at() says so. */
void *fl_try_alloc(size_t n) __attribute__((malloc, alloc_size(1), warn_unused_result));
void *fl_try_realloc(void *p, size_t count, size_t size)
    __attribute__((alloc_size(2, 3), warn_unused_result));

/* NULL allowed. Frees what any of the above gave. */
void fl_free(void *p);

/* Tests: the n-th fl_try_* call of this thread from now (1 = the next) fails, once; 0 is off. */
void fl_alloc_fail_at(uint64_t n);

#endif
