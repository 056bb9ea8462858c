/* kernel/avx2/gemm_block.h - reading one block of a packed panel with 256-bit vectors: 8 of its 16 rows at a time.
 *
 * Everything is forced inline with constant `codes` and `scales`, so every format gets its own straight-line loop. */
#ifndef TERN_AVX2_GEMM_BLOCK_H
#define TERN_AVX2_GEMM_BLOCK_H

#include <immintrin.h>
#include "kernel/gemm.h"
#include "kernel/pack.h"

#define ALWAYS static inline __attribute__((always_inline))

/* X(codes, scales): the combinations that exist. */
#define TERN_QUANT_KINDS(X) \
    X(U4, F16)              \
    X(U4, F16M)             \
    X(U4, K32)              \
    X(U5, F16)              \
    X(U5, F16M)             \
    X(U5, K32)              \
    X(U6, K16)              \
    X(S8, F16)

ALWAYS __m256i load_i256(const void *p)
{
    return _mm256_load_si256(p);
}

ALWAYS __m256 half8(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)p));
}

ALWAYS __m256 u8x8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

ALWAYS __m256 i8x8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

/* Does the format add a minimum? */
ALWAYS bool has_minimum(enum tern_scales scales)
{
    return scales == TERN_SCALES_F16M || scales == TERN_SCALES_K32;
}

/* Scales of 256 inputs of rows 8*h .. 8*h+7 (K32, K16): what group_scale needs beside the scales of smaller groups. */
struct super {
    __m256 d, m;
};

ALWAYS struct super super_scale(enum tern_scales scales, const struct tern_panel_view *v, size_t super, int h)
{
    size_t at = super * TERN_PANEL + 8 * (size_t)h;
    struct super s = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    if (scales == TERN_SCALES_K32 || scales == TERN_SCALES_K16)
        s.d = half8(v->d + at);
    if (scales == TERN_SCALES_K32)
        s.m = half8(v->m + at);
    return s;
}

/* Scale and minimum of rows 8*h .. 8*h+7 for the 16 inputs number `half`; products as in kernel/gemm.h.  The minimum of
 * F16M is to be added, that of K32 subtracted: see plus_minimum. */
ALWAYS void group_scale(enum tern_scales scales, const struct tern_panel_view *v, struct super super, size_t half,
                        int h, __m256 *scale, __m256 *minimum)
{
    size_t block = half / 2 * TERN_PANEL + 8 * (size_t)h;
    *minimum = _mm256_setzero_ps();
    if (scales == TERN_SCALES_F16) {
        *scale = half8(v->d + block);
    } else if (scales == TERN_SCALES_F16M) {
        *scale = half8(v->d + block);
        *minimum = half8(v->m + block);
    } else if (scales == TERN_SCALES_K32) {
        *scale = _mm256_mul_ps(super.d, u8x8(v->a + block));
        *minimum = _mm256_mul_ps(super.m, u8x8(v->b + block));
    } else {
        *scale = _mm256_mul_ps(super.d, i8x8(v->a + half * TERN_PANEL + 8 * (size_t)h));
    }
}

/* minimum * times + acc with the sign that the format gives the minimum. */
ALWAYS __m256 plus_minimum(enum tern_scales scales, __m256 minimum, __m256 times, __m256 acc)
{
    return scales == TERN_SCALES_K32 ? _mm256_fnmadd_ps(minimum, times, acc) : _mm256_fmadd_ps(minimum, times, acc);
}

/* Shifts 16-bit lanes left by a constant that may be negative; callers mask what crosses bytes. */
ALWAYS __m256i shift16(__m256i v, int left)
{
    return left >= 0 ? _mm256_slli_epi16(v, left) : _mm256_srli_epi16(v, -left);
}

/* Code bytes of quad `q` (0..7) for rows 8*h ..; q is constant after unrolling. */
ALWAYS __m256i quad_codes(enum tern_codes codes, const uint8_t *block, int q, int h)
{
    if (codes == TERN_CODES_S8)
        return load_i256(block + q * TERN_VEC + 32 * h);
    __m256i c = load_i256(block + q % 4 * TERN_VEC + 32 * h);
    c = _mm256_and_si256(shift16(c, q < 4 ? 0 : -4), _mm256_set1_epi8(15));
    if (codes == TERN_CODES_U5) {
        __m256i high = load_i256(block + 4 * TERN_VEC + 32 * h);
        c = _mm256_or_si256(c, _mm256_and_si256(shift16(high, 4 - q), _mm256_set1_epi8(16)));
    } else if (codes == TERN_CODES_U6) {
        __m256i high = load_i256(block + (4 + q / 4) * TERN_VEC + 32 * h);
        c = _mm256_or_si256(c, _mm256_and_si256(shift16(high, 4 - 2 * (q % 4)), _mm256_set1_epi8(48)));
    }
    return c;
}

#endif
