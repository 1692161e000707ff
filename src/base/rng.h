/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers that can be repeated: splitmix64 for mixing and seeding, xoshiro256** for streams.
 * Not for secrets (ids that must not be guessed come from the system, fl_random_bytes). */
#ifndef FL_BASE_RNG_H
#define FL_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

/* The splitmix64 finaliser (performance.md section 2): a bijection on 64 bits. */
static inline uint64_t fl_mix64(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return x;
}

/* splitmix64: advances *state by the golden gamma and returns the mixed value. */
static inline uint64_t fl_splitmix64(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return fl_mix64(*state);
}

struct fl_rng {
    uint64_t s[4];
};

void fl_rng_seed(struct fl_rng *rng, uint64_t seed); /* four splitmix64 outputs */
uint64_t fl_rng_u64(struct fl_rng *rng);
/* Unbiased in [0, n), n > 0 (Lemire's method). */
uint64_t fl_rng_below(struct fl_rng *rng, uint64_t n);
/* In [0, 1), 53 bits. */
double fl_rng_double(struct fl_rng *rng);

/* From getrandom(2); aborts if the kernel has none. Any thread. */
void fl_random_bytes(void *out, size_t n);

#define FL_UUID_TEXT 37
/* A random UUIDv4 (RFC 9562), lower case, NUL-terminated. */
void fl_uuid4(char out[FL_UUID_TEXT]);

#endif
