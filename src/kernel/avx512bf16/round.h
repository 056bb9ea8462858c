/* kernel/avx512bf16/round.h - rows of tiles, rounded to bf16 by the instructions of AVX512_BF16: nearest even, what is
 * smaller than 2^-126 as zero. */
#ifndef TERN_AVX512BF16_ROUND_H
#define TERN_AVX512BF16_ROUND_H

#include <immintrin.h>
#include "kernel/prompt.h"

#define TILE_ROUNDING

/* One row of a tile of activations: x[0..n), n in 1..32, rounded to bf16; zeros behind. */
static inline void tile_round(uint16_t *out, const float *x, int n)
{
    const __mmask16 low = (__mmask16)(n >= 16 ? 0xFFFFu : (1u << n) - 1u);
    const __mmask16 high = (__mmask16)(n >= 16 ? (1u << (n - 16)) - 1u : 0u);
    __m512 a = _mm512_maskz_loadu_ps(low, x), b = _mm512_maskz_loadu_ps(high, x + 16);
    _mm512_store_si512(out, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

/* One row of a tile of weights: two inputs of 16 outputs. */
static inline void tile_store_pair(uint16_t *out, __m512 even, __m512 odd)
{
    const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                                6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    _mm512_store_si512(out, _mm512_permutexvar_epi16(interleave, both));
}

/* The same from n (1..16) floats each; NULL: zeros. */
static inline void tile_pair(uint16_t *out, const float *even, const float *odd, int n)
{
    const __mmask16 lanes = (__mmask16)(0xFFFFu >> (16 - n));
    __m512 a = even ? _mm512_maskz_loadu_ps(lanes, even) : _mm512_setzero_ps();
    __m512 b = odd ? _mm512_maskz_loadu_ps(lanes, odd) : _mm512_setzero_ps();
    tile_store_pair(out, a, b);
}

#endif
