/* SPDX-License-Identifier: Apache-2.0 */
/* performance.md (c): tokens to local and sequence hashes, block sizes 16 to 512, prompts of 1 k to
 * 128 k tokens; SHA-256 beside the library's one-shot.
 *
 *   bench_hash [--full]
 *
 * Floors: XXH3, inlined as ours is, called back to back on pieces of the block length, and on 16
 * bytes; for SHA-256 the digest of the same message with nothing around it. Time is this thread's
 * CPU time; the better of five rounds counts on both sides, in one run. Lines are `name value
 * unit`; exit 1 if a value fails. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wundef"
#include <xxhash.h> /* the packaged library, to compare with; ours is inlined in codec/hash.c */
#pragma GCC diagnostic pop

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/rng.h"
#include "codec/hash.h"
#include "kvindex/hash.h"

#define TOKENS_MAX 131072u
#define ROUNDS 5

static double cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

struct bench {
    bool has_failed;
    double slice_ns;
    double slack; /* a smoke test fails only beyond 1.5 times the failing value */
    uint32_t *tokens;
    uint64_t *local, *seq;
    uint64_t sum; /* keeps the work */
};

struct job {
    struct bench *bench;
    uint32_t block_tokens, token_count;
    struct fl_sha256 *sha;
};

/* ns a call of `work`, the best of some rounds. */
static double time_of(const struct job *job, void (*work)(const struct job *job))
{
    double best = 1e18;
    for (int round = 0; round < ROUNDS; round++) {
        double begin = cpu_ns(), elapsed = 0, calls = 0;
        while (elapsed < job->bench->slice_ns / ROUNDS) {
            work(job);
            calls++;
            elapsed = cpu_ns() - begin;
        }
        if (elapsed / calls < best)
            best = elapsed / calls;
    }
    return best;
}

static void floor_blocks(const struct job *job)
{
    const uint8_t *data = (const uint8_t *)job->bench->tokens;
    size_t piece = job->block_tokens * sizeof(uint32_t);
    for (size_t at = 0; at + piece <= job->token_count * sizeof(uint32_t); at += piece)
        job->bench->sum += fl_xxh3(fl_bytes(data + at, piece), FL_BLOCK_SEED);
}

static void library_blocks(const struct job *job)
{
    const uint8_t *data = (const uint8_t *)job->bench->tokens;
    size_t piece = job->block_tokens * sizeof(uint32_t);
    for (size_t at = 0; at + piece <= job->token_count * sizeof(uint32_t); at += piece)
        job->bench->sum += XXH3_64bits_withSeed(data + at, piece, FL_BLOCK_SEED);
}

static void floor_pairs(const struct job *job)
{
    uint64_t before = 1;
    for (size_t i = 0; i < job->token_count / job->block_tokens; i++)
        before = fl_xxh3_pair(before, i, FL_BLOCK_SEED);
    job->bench->sum += before;
}

static void hash_local(const struct job *job)
{
    struct fl_block_space space = {job->block_tokens, false, FL_BLOCK_SEED};
    fl_block_local_hashes(&space, job->bench->tokens, job->token_count, job->bench->local);
}

static void hash_both(const struct job *job)
{
    struct fl_block_space space = {job->block_tokens, false, FL_BLOCK_SEED};
    fl_block_hashes(&space, job->bench->tokens, job->token_count, job->bench->local,
                    job->bench->seq);
}

static void hash_seq_only(const struct job *job)
{
    struct fl_block_space space = {job->block_tokens, false, FL_BLOCK_SEED};
    fl_block_hashes(&space, job->bench->tokens, job->token_count, NULL, job->bench->seq);
}

static void judge(struct bench *bench, const char *name, double value, double goal, double fails)
{
    const char *verdict = value >= goal ? "goal met" : value >= fails ? "goal missed" : "FAILS";
    printf("%-40s %12.2f x floor (goal >= %.2f, fails < %.2f: %s)\n", name, value, goal, fails,
           verdict);
    bench->has_failed |= value < fails / bench->slack;
}

static void run_row(struct bench *bench, uint32_t block_tokens, uint32_t token_count)
{
    struct job job = {bench, block_tokens, token_count, NULL};
    char name[96], line[128];
    snprintf(name, sizeof(name), "c_b%u_t%uk", block_tokens, token_count / 1024);
    time_of(&job, hash_both); /* warm-up */
    double block = time_of(&job, floor_blocks), pair = time_of(&job, floor_pairs);
    double local = time_of(&job, hash_local), both = time_of(&job, hash_both);
    double seq_only = time_of(&job, hash_seq_only), library = time_of(&job, library_blocks);

    snprintf(line, sizeof(line), "%s_local", name);
    printf("%-40s %12.2f M tokens/s\n", line, token_count * 1e3 / local);
    snprintf(line, sizeof(line), "%s_local_bytes", name);
    printf("%-40s %12.2f GB/s\n", line, token_count * 4.0 / local);
    snprintf(line, sizeof(line), "%s_local_and_sequence", name);
    printf("%-40s %12.2f M tokens/s\n", line, token_count * 1e3 / both);
    snprintf(line, sizeof(line), "%s_sequence_only", name);
    printf("%-40s %12.2f M tokens/s\n", line, token_count * 1e3 / seq_only);
    snprintf(line, sizeof(line), "%s_local_vs_packaged_library", name);
    printf("%-40s %12.2f x\n", line, library / local);
    snprintf(line, sizeof(line), "%s_local_vs_floor", name);
    judge(bench, line, block / local, 0.90, 0.60);
    snprintf(line, sizeof(line), "%s_both_vs_floors", name);
    judge(bench, line, (block + pair) / both, 0.80, 0.50);
}

/* A chain of digests over blocks, as a mode of that kind would make it: 32 bytes of the one before
 * and the block's tokens. The floor digests a message of the same length at once. */
static void sha_chain(const struct job *job)
{
    uint8_t before[FL_SHA256_BYTES] = {0};
    const uint8_t *data = (const uint8_t *)job->bench->tokens;
    size_t piece = job->block_tokens * sizeof(uint32_t);
    for (size_t at = 0; at + piece <= job->token_count * sizeof(uint32_t); at += piece) {
        fl_sha256_start(job->sha);
        fl_sha256_add(job->sha, fl_bytes(before, sizeof(before)));
        fl_sha256_add(job->sha, fl_bytes(data + at, piece));
        fl_sha256_finish(job->sha, before);
    }
    job->bench->sum += before[0];
}

static void sha_floor(const struct job *job)
{
    uint8_t digest[FL_SHA256_BYTES];
    const uint8_t *data = (const uint8_t *)job->bench->tokens;
    size_t piece = job->block_tokens * sizeof(uint32_t) + FL_SHA256_BYTES;
    size_t step = job->block_tokens * sizeof(uint32_t);
    for (size_t at = 0; at + piece <= job->token_count * sizeof(uint32_t); at += step) {
        fl_sha256_of(job->sha, fl_bytes(data + at, piece), digest);
        job->bench->sum += digest[0];
    }
}

static void run_sha(struct bench *bench)
{
    struct job job = {bench, 16, 10240, fl_sha256_new()};
    if (job.sha == NULL)
        abort();
    double floor = time_of(&job, sha_floor), chain = time_of(&job, sha_chain);
    printf("%-40s %12.2f us\n", "c_sha256_10k_tokens", chain / 1e3);
    judge(bench, "c_sha256_chain_vs_one_shot", floor / chain, 0.80, 0.50);
    fl_sha256_free(job.sha);
}

int main(int argc, char **argv)
{
    static const uint32_t blocks[] = {16, 32, 64, 128, 512};
    static const uint32_t counts[] = {1024, 32768, TOKENS_MAX};
    bool is_full = argc > 1 && strcmp(argv[1], "--full") == 0;
    struct bench bench = {.slice_ns = is_full ? 2e8 : 2e7, .slack = is_full ? 1 : 1.5};
    struct fl_rng rng;
    fl_rng_seed(&rng, 42);
    bench.tokens = fl_alloc(TOKENS_MAX * sizeof(*bench.tokens));
    bench.local = fl_alloc(TOKENS_MAX * sizeof(*bench.local));
    bench.seq = fl_alloc(TOKENS_MAX * sizeof(*bench.seq));
    for (uint32_t i = 0; i < TOKENS_MAX; i++)
        bench.tokens[i] = (uint32_t)fl_rng_below(&rng, 128256);

    printf("# bench_hash: seed 42, %s\n", is_full ? "full" : "quick: smoke, no claims");
    for (size_t b = 0; b < FL_ARRAY_LEN(blocks); b++)
        for (size_t c = 0; c < FL_ARRAY_LEN(counts); c++)
            run_row(&bench, blocks[b], counts[c]);
    run_sha(&bench);
    fl_free(bench.tokens);
    fl_free(bench.local);
    fl_free(bench.seq);
    return bench.has_failed ? 1 : 0;
}
