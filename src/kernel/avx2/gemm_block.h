/* kernel/avx2/gemm_block.h - reading one block of a packed panel with 256-bit vectors: 8 of its 16 rows at a time.
 *
 * Everything is forced inline with constant `codes` and `scales`, so every format gets its own straight-line loop. */
#ifndef TERN_AVX2_GEMM_BLOCK_H
#define TERN_AVX2_GEMM_BLOCK_H

#include <immintrin.h>
#include "kernel/gemm.h"
#include "kernel/panel.h"

#define ALWAYS static inline __attribute__((always_inline))

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

/* E4M3 as the top byte of each lane, the rest arbitrary. */
ALWAYS __m256 e4m3x8(__m256i top)
{
    __m256i mag = _mm256_srli_epi32(_mm256_and_si256(top, _mm256_set1_epi32(0x7F000000)), 4);
    __m256i sign = _mm256_and_si256(top, _mm256_set1_epi32((int)0x80000000u));
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(mag, sign)), _mm256_set1_ps(0x1p120f));
}

/* Eight numbers of a region of the G kinds from place `at` on. */
ALWAYS __m256 numbers8(enum tern_number type, const uint16_t *region, size_t at)
{
    const uint8_t *p = (const uint8_t *)region + at * tern_number_bytes(type);
    if (type == TERN_NUMBER_F32)
        return _mm256_load_ps((const float *)(const void *)p);
    if (type <= TERN_NUMBER_BF16) {
        __m128i h = _mm_load_si128((const __m128i *)(const void *)p);
        return type == TERN_NUMBER_F16 ? _mm256_cvtph_ps(h)
                                       : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
    }
    __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    if (type == TERN_NUMBER_E4M3)
        return e4m3x8(_mm256_slli_epi32(b, 24));
    if (type == TERN_NUMBER_E8M0)
        return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_slli_epi32(b, 23), _mm256_set1_epi32(0x00400000)));
    return _mm256_cvtepi32_ps(b);
}

ALWAYS __m256 low8(const uint8_t *p)
{
    __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    return _mm256_cvtepi32_ps(_mm256_and_si256(b, _mm256_set1_epi32(15)));
}

ALWAYS __m256 high8(const uint8_t *p)
{
    __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    return _mm256_cvtepi32_ps(_mm256_srli_epi32(b, 4));
}

#define GEMM_ROWS          __m256
#define ROWS_ZERO          _mm256_setzero_ps()
#define rows_half          half8
#define rows_u8            u8x8
#define rows_i8            i8x8
#define rows_low           low8
#define rows_high          high8
#define rows_number        numbers8
#define rows_product(a, b) _mm256_mul_ps(a, b)
#define rows_times(a, f)   _mm256_mul_ps(a, _mm256_set1_ps(f))
#include "kernel/gemm_scales_impl.h"

/* minimum * times + acc with the sign that the format gives the minimum. */
ALWAYS __m256 plus_minimum(enum tern_scales scales, __m256 minimum, __m256 times, __m256 acc)
{
    return tern_scales_minus(scales) ? _mm256_fnmadd_ps(minimum, times, acc) : _mm256_fmadd_ps(minimum, times, acc);
}

/* Shifts 16-bit lanes left by a constant that may be negative; callers mask what crosses bytes. */
ALWAYS __m256i shift16(__m256i v, int left)
{
    return left >= 0 ? _mm256_slli_epi16(v, left) : _mm256_srli_epi16(v, -left);
}

ALWAYS __m256i code_table(enum tern_codes codes, const struct tern_panel_view *v)
{
    if (!tern_codes_table(codes))
        return _mm256_setzero_si256();
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)v->table));
}

/* Code bytes of quad `q` (0..7) for rows 8*h ..; q is constant after unrolling.  table: code_table. */
ALWAYS __m256i quad_codes(enum tern_codes codes, __m256i table, const uint8_t *block, int q, int h)
{
    if (codes == TERN_CODES_S8 || codes == TERN_CODES_E4M3)
        return load_i256(block + q * TERN_VEC + 32 * h);
    __m256i c;
    if (codes == TERN_CODES_U2 || codes == TERN_CODES_U3 || codes == TERN_CODES_T3) {
        c = load_i256(block + q / 4 * TERN_VEC + 32 * h);
        c = _mm256_and_si256(shift16(c, -2 * (q % 4)), _mm256_set1_epi8(3));
        if (codes != TERN_CODES_U2) {
            __m256i high = load_i256(block + 2 * TERN_VEC + 32 * h);
            c = _mm256_or_si256(c, _mm256_and_si256(shift16(high, 2 - q), _mm256_set1_epi8(4)));
        }
    } else {
        c = load_i256(block + q % 4 * TERN_VEC + 32 * h);
        c = _mm256_and_si256(shift16(c, q < 4 ? 0 : -4), _mm256_set1_epi8(15));
    }
    if (codes == TERN_CODES_U5) {
        __m256i high = load_i256(block + 4 * TERN_VEC + 32 * h);
        c = _mm256_or_si256(c, _mm256_and_si256(shift16(high, 4 - q), _mm256_set1_epi8(16)));
    } else if (codes == TERN_CODES_U6) {
        __m256i high = load_i256(block + (4 + q / 4) * TERN_VEC + 32 * h);
        c = _mm256_or_si256(c, _mm256_and_si256(shift16(high, 4 - 2 * (q % 4)), _mm256_set1_epi8(48)));
    }
    return tern_codes_table(codes) ? _mm256_shuffle_epi8(table, c) : c;
}

#endif
