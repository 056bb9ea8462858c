/* kernel/avx512/attn_simd.h - pieces of attention on 512-bit vectors, in the order of operations that ref/attn.c
 * defines.  A "16-lane" value of the contract is one vector. */
#ifndef TERN_KERNEL_AVX512_ATTN_SIMD_H
#define TERN_KERNEL_AVX512_ATTN_SIMD_H

#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include "kernel/attn.h"
#include "kernel/attn_impl.h"

/* Sixteen elements from index i of an array of f32 or f16; with fewer than 16 lanes in `mask` the others are not read.
 */
ATTN_INLINE __m512 load16(const void *p, size_t i, int half, __mmask16 mask)
{
    if (half)
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, (const uint16_t *)p + i));
    return _mm512_maskz_loadu_ps(mask, (const float *)p + i);
}

/* 2^x for x <= 0, 0 below -126 and outside `mask`; the constants are derived in ref/attn.c. */
ATTN_INLINE __m512 exp2_nonpos(__m512 x, __mmask16 mask)
{
    const __m512 magic = _mm512_set1_ps(0x1.8p23f);
    __m512 shifted = _mm512_add_ps(x, magic);
    __m512 f = _mm512_sub_ps(x, _mm512_sub_ps(shifted, magic));
    __m512 p = _mm512_fmadd_ps(f, _mm512_set1_ps(0x1.5bda36p-10f), _mm512_set1_ps(0x1.3ce8aap-7f));
    p = _mm512_fmadd_ps(f, p, _mm512_set1_ps(0x1.c6b6d8p-5f));
    p = _mm512_fmadd_ps(f, p, _mm512_set1_ps(0x1.ebf9c2p-3f));
    p = _mm512_fmadd_ps(f, p, _mm512_set1_ps(0x1.62e42ap-1f));
    p = _mm512_fmadd_ps(f, p, _mm512_set1_ps(1.0f));
    __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    mask = _mm512_mask_cmp_ps_mask(mask, x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(mask, _mm512_castps_si512(p), n));
}

/* Bits [t0, t1) of the 64 tokens of a page. */
ATTN_INLINE uint64_t page_range(int page, int t0, int t1)
{
    t0 -= page * TERN_PAGE;
    t1 -= page * TERN_PAGE;
    if (t0 >= TERN_PAGE || t1 <= 0 || t0 >= t1)
        return 0;
    uint64_t below = t1 < TERN_PAGE ? ((uint64_t)1 << t1) - 1 : ~(uint64_t)0; /* a shift by 64 is not defined */
    return t0 > 0 ? below >> t0 << t0 : below;
}

/* Sixteen lanes to one: i with i+8, then i+4, i+2, i+1; the result is in lane 0. */
ATTN_INLINE __m128 max16(__m512 v)
{
    __m256 a = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_max_ss(b, _mm_movehdup_ps(b));
}

/* The largest of the scores that softmax counts, in lane 0; -inf where there are none. */
ATTN_INLINE __m128 largest_score(const float *s, size_t stride, int n_pages, int t0, int t1)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 tops[4] = {none, none, none, none};
    for (int page = 0; page < n_pages; page++) {
        const uint64_t range = page_range(page, t0, t1);
        const float *x = s + (size_t)page * stride;
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            tops[j] = _mm512_max_ps(tops[j], _mm512_mask_loadu_ps(none, (__mmask16)(range >> 16 * j), x + 16 * j));
    }
    return max16(_mm512_max_ps(_mm512_max_ps(tops[0], tops[1]), _mm512_max_ps(tops[2], tops[3])));
}

ATTN_INLINE __m128 sum16(__m512 v)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_add_ss(b, _mm_movehdup_ps(b));
}

#endif
