/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Only fl_alloc_fail_at() sets it, so production threads see a constant 0. */
static _Thread_local uint64_t fail_countdown;

static _Noreturn void out_of_memory(void)
{
    static const char line[] = "fairlead: out of memory\n";
    /* Nothing that allocates may run here, and nobody is left to tell if the write fails. */
    ssize_t written = write(STDERR_FILENO, line, sizeof(line) - 1);
    (void)written;
    abort();
}

/* What malloc is asked for: never 0, whose result the standard leaves open. */
static size_t at_least_one(size_t n)
{
    return n == 0 ? 1 : n;
}

static bool is_made_to_fail(void)
{
    return fail_countdown > 0 && --fail_countdown == 0;
}

void *fl_alloc(size_t n)
{
    void *p = malloc(at_least_one(n));
    if (p == NULL)
        out_of_memory();
    return p;
}

void *fl_calloc(size_t count, size_t size)
{
    void *p = calloc(at_least_one(count), at_least_one(size));
    if (p == NULL)
        out_of_memory();
    return p;
}

void *fl_realloc(void *p, size_t count, size_t size)
{
    size_t n;
    if (__builtin_mul_overflow(count, size, &n))
        out_of_memory();
    void *grown = realloc(p, at_least_one(n));
    if (grown == NULL)
        out_of_memory();
    return grown;
}

char *fl_strdup(const char *text)
{
    return fl_strndup(text, strlen(text));
}

char *fl_strndup(const void *p, size_t n)
{
    if (n == SIZE_MAX)
        out_of_memory();
    char *copy = fl_alloc(n + 1);
    if (n > 0)
        memcpy(copy, p, n);
    copy[n] = 0;
    return copy;
}

void *fl_try_alloc(size_t n)
{
    return is_made_to_fail() ? NULL : malloc(at_least_one(n));
}

void *fl_try_realloc(void *p, size_t count, size_t size)
{
    size_t n;
    if (is_made_to_fail() || __builtin_mul_overflow(count, size, &n))
        return NULL;
    return realloc(p, at_least_one(n));
}

void fl_free(void *p)
{
    free(p);
}

void fl_alloc_fail_at(uint64_t n)
{
    fail_countdown = n;
}
