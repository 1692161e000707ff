/* SPDX-License-Identifier: Apache-2.0 */
#include "discovery/worker_id.h"

struct sip {
    uint64_t v0, v1, v2, v3;
};

static uint64_t rotate(uint64_t x, unsigned bits)
{
    return x << bits | x >> (64 - bits);
}

static void round_of(struct sip *s)
{
    s->v0 += s->v1;
    s->v1 = rotate(s->v1, 13) ^ s->v0;
    s->v0 = rotate(s->v0, 32);
    s->v2 += s->v3;
    s->v3 = rotate(s->v3, 16) ^ s->v2;
    s->v0 += s->v3;
    s->v3 = rotate(s->v3, 21) ^ s->v0;
    s->v2 += s->v1;
    s->v1 = rotate(s->v1, 17) ^ s->v2;
    s->v2 = rotate(s->v2, 32);
}

static void absorb(struct sip *s, uint64_t word)
{
    s->v3 ^= word;
    round_of(s);
    s->v0 ^= word;
}

uint64_t fl_worker_hash(struct fl_bytes name)
{
    /* SipHash's initial state with key (0, 0). */
    struct sip s = {UINT64_C(0x736f6d6570736575), UINT64_C(0x646f72616e646f6d),
                    UINT64_C(0x6c7967656e657261), UINT64_C(0x7465646279746573)};
    size_t length = name.n + 1;
    uint64_t word = 0;

    for (size_t i = 0; i < length; i++) {
        uint64_t byte = i < name.n ? name.p[i] : 0xff;
        word |= byte << (8 * (i % 8));
        if (i % 8 == 7) {
            absorb(&s, word);
            word = 0;
        }
    }
    absorb(&s, word | (uint64_t)(length & 0xff) << 56);
    s.v2 ^= 0xff;
    round_of(&s);
    round_of(&s);
    round_of(&s);
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

uint64_t fl_worker_id(struct fl_bytes name)
{
    return fl_worker_hash(name) & UINT64_C(0x001fffffffffffff);
}
