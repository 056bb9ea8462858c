/* kernel/avx2/attn_simd.h - pieces of attention on 256-bit vectors, in the order of operations that ref/attn.c defines.
 *
 * A "16-lane" value of the contract is a pair of vectors here: lanes 0..7 and 8..15. */
#ifndef TERN_KERNEL_AVX2_ATTN_SIMD_H
#define TERN_KERNEL_AVX2_ATTN_SIMD_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include "kernel/attn_impl.h"

/* Eight elements from index i of an array of f32 or f16. */
ATTN_INLINE __m256 load8(const void *p, size_t i, int half)
{
    if (half)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)p + i)));
    return _mm256_loadu_ps((const float *)p + i);
}

/* 2^x for x <= 0, 0 below -126; the constants are derived in ref/attn.c. */
ATTN_INLINE __m256 exp2_nonpos(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(0x1.8p23f);
    __m256 shifted = _mm256_add_ps(x, magic);
    __m256 f = _mm256_sub_ps(x, _mm256_sub_ps(shifted, magic));
    __m256 p = _mm256_fmadd_ps(f, _mm256_set1_ps(0x1.5bda36p-10f), _mm256_set1_ps(0x1.3ce8aap-7f));
    p = _mm256_fmadd_ps(f, p, _mm256_set1_ps(0x1.c6b6d8p-5f));
    p = _mm256_fmadd_ps(f, p, _mm256_set1_ps(0x1.ebf9c2p-3f));
    p = _mm256_fmadd_ps(f, p, _mm256_set1_ps(0x1.62e42ap-1f));
    p = _mm256_fmadd_ps(f, p, _mm256_set1_ps(1.0f));
    __m256i n = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    __m256 r = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), n));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_LT_OQ), r);
}

/* Sixteen lanes to one: i with i+8, then i+4, i+2, i+1; the result is in lane 0. */
ATTN_INLINE __m128 max16(__m256 lo, __m256 hi)
{
    __m256 a = _mm256_max_ps(lo, hi);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_max_ss(b, _mm_movehdup_ps(b));
}

ATTN_INLINE __m128 sum16(__m256 lo, __m256 hi)
{
    __m256 a = _mm256_add_ps(lo, hi);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_add_ss(b, _mm_movehdup_ps(b));
}

#endif
