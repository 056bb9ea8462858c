/* base/rng.h - small deterministic generators: same seed, same numbers, on every machine.
 *
 * tern_hash64 is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), used as a counter-based generator for
 * rotation signs; tern_rng is the SplitMix64 stream itself, used for sampling and tests. */
#ifndef TERN_BASE_RNG_H
#define TERN_BASE_RNG_H

#include <stdint.h>

static inline uint64_t tern_hash64(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

struct tern_rng {
    uint64_t state;
};

static inline uint64_t tern_rng_u64(struct tern_rng *r)
{
    uint64_t x = tern_hash64(r->state);
    r->state += 0x9E3779B97F4A7C15u;
    return x;
}

/* Uniform in [0, 1) with 53 random bits. */
static inline double tern_rng_f64(struct tern_rng *r)
{
    return (double)(tern_rng_u64(r) >> 11) * 0x1.0p-53;
}

#endif
