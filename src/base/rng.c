/* SPDX-License-Identifier: Apache-2.0 */
#include "base/rng.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/types.h>

__extension__ typedef unsigned __int128 uint128;

static uint64_t rotate_left(uint64_t x, unsigned n)
{
    return (x << n) | (x >> (64 - n));
}

void fl_rng_seed(struct fl_rng *rng, uint64_t seed)
{
    for (unsigned i = 0; i < 4; i++)
        rng->s[i] = fl_splitmix64(&seed);
}

/* xoshiro256** of Blackman and Vigna. */
uint64_t fl_rng_u64(struct fl_rng *rng)
{
    uint64_t *s = rng->s;
    uint64_t result = rotate_left(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

uint64_t fl_rng_below(struct fl_rng *rng, uint64_t n)
{
    assert(n > 0);
    /* The high half of a 64 x 64 product is the answer; the 2^64 % n smallest low halves would be
     * one too many for some answers and are drawn again. */
    uint128 product = (uint128)fl_rng_u64(rng) * n;
    if ((uint64_t)product < n) {
        uint64_t surplus = (0 - n) % n;
        while ((uint64_t)product < surplus)
            product = (uint128)fl_rng_u64(rng) * n;
    }
    return (uint64_t)(product >> 64);
}

double fl_rng_double(struct fl_rng *rng)
{
    return (double)(fl_rng_u64(rng) >> 11) * 0x1.0p-53;
}

void fl_random_bytes(void *out, size_t n)
{
    uint8_t *to = out;
    while (n > 0) {
        ssize_t got = getrandom(to, n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            /* Going on with guessable ids would be worse than not starting. */
            perror("fairlead: getrandom");
            abort();
        }
        to += got;
        n -= (size_t)got;
    }
}

void fl_uuid4(char out[FL_UUID_TEXT])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t raw[16];

    fl_random_bytes(raw, sizeof(raw));
    raw[6] = (uint8_t)((raw[6] & 0x0f) | 0x40); /* RFC 9562 5.4: version 4 */
    raw[8] = (uint8_t)((raw[8] & 0x3f) | 0x80); /* RFC 9562 4.1: variant 10 */
    size_t at = 0;
    for (unsigned i = 0; i < sizeof(raw); i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            out[at++] = '-';
        out[at++] = digits[raw[i] >> 4];
        out[at++] = digits[raw[i] & 0x0f];
    }
    out[at] = 0;
}
