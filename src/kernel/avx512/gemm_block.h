/* kernel/avx512/gemm_block.h - reading one block of a packed panel with 512-bit vectors: a lane is one of its 16 rows.
 *
 * Everything is forced inline with constant `codes` and `scales`, so every format gets its own straight-line loop. */
#ifndef TERN_AVX512_GEMM_BLOCK_H
#define TERN_AVX512_GEMM_BLOCK_H

#include <immintrin.h>
#include <string.h>
#include "kernel/gemm.h"
#include "kernel/panel.h"

#define ALWAYS static inline __attribute__((always_inline))

ALWAYS __m512i load_i512(const void *p)
{
    return _mm512_load_si512(p);
}

/* Four bytes from anywhere into every lane. */
ALWAYS __m512i four_bytes(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

ALWAYS __m512 half16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)p));
}

ALWAYS __m512 u8x16(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(const void *)p)));
}

ALWAYS __m512 i8x16(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)(const void *)p)));
}

/* E4M3 as the top byte of each lane, the rest arbitrary. */
ALWAYS __m512 e4m3x16(__m512i top)
{
    __m512i mag = _mm512_srli_epi32(_mm512_and_si512(top, _mm512_set1_epi32(0x7F000000)), 4);
    __m512i sign = _mm512_and_si512(top, _mm512_set1_epi32((int)0x80000000u));
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_or_si512(mag, sign)), _mm512_set1_ps(0x1p120f));
}

/* Sixteen numbers of a region of the G kinds from place `at` on. */
ALWAYS __m512 numbers16(enum tern_number type, const uint16_t *region, size_t at)
{
    const uint8_t *p = (const uint8_t *)region + at * tern_number_bytes(type);
    if (type == TERN_NUMBER_F32)
        return _mm512_load_ps(p);
    if (type == TERN_NUMBER_F16)
        return half16((const uint16_t *)(const void *)p);
    if (type == TERN_NUMBER_BF16) {
        __m256i h = _mm256_load_si256((const __m256i *)(const void *)p);
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
    }
    __m512i b = _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(const void *)p));
    if (type == TERN_NUMBER_E4M3)
        return e4m3x16(_mm512_slli_epi32(b, 24));
    if (type == TERN_NUMBER_E8M0)
        return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_slli_epi32(b, 23), _mm512_set1_epi32(0x00400000)));
    return _mm512_cvtepi32_ps(b);
}

ALWAYS __m512 low16(const uint8_t *p)
{
    __m512i b = _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(const void *)p));
    return _mm512_cvtepi32_ps(_mm512_and_si512(b, _mm512_set1_epi32(15)));
}

ALWAYS __m512 high16(const uint8_t *p)
{
    __m512i b = _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(const void *)p));
    return _mm512_cvtepi32_ps(_mm512_srli_epi32(b, 4));
}

#define GEMM_ROWS          __m512
#define ROWS_ZERO          _mm512_setzero_ps()
#define rows_half          half16
#define rows_u8            u8x16
#define rows_i8            i8x16
#define rows_low           low16
#define rows_high          high16
#define rows_number        numbers16
#define rows_product(a, b) _mm512_mul_ps(a, b)
#define rows_times(a, f)   _mm512_mul_ps(a, _mm512_set1_ps(f))
#include "kernel/gemm_scales_impl.h"

/* minimum * times + acc with the sign that the format gives the minimum. */
ALWAYS __m512 plus_minimum(enum tern_scales scales, __m512 minimum, __m512 times, __m512 acc)
{
    return tern_scales_minus(scales) ? _mm512_fnmadd_ps(minimum, times, acc) : _mm512_fmadd_ps(minimum, times, acc);
}

/* Shifts 16-bit lanes left by a constant that may be negative; callers mask what crosses bytes. */
ALWAYS __m512i shift16(__m512i v, int left)
{
    return left >= 0 ? _mm512_slli_epi16(v, (unsigned)left) : _mm512_srli_epi16(v, (unsigned)-left);
}

ALWAYS __m512i code_table(enum tern_codes codes, const struct tern_panel_view *v)
{
    if (!tern_codes_table(codes))
        return _mm512_setzero_si512();
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)v->table));
}

/* Code bytes of quad `q` (0..7); q is constant after unrolling.  table: code_table. */
ALWAYS __m512i quad_codes(enum tern_codes codes, __m512i table, const uint8_t *block, int q)
{
    if (codes == TERN_CODES_S8 || codes == TERN_CODES_E4M3)
        return load_i512(block + q * TERN_VEC);
    __m512i c;
    if (codes == TERN_CODES_U2 || codes == TERN_CODES_U3 || codes == TERN_CODES_T3) {
        c = load_i512(block + q / 4 * TERN_VEC);
        c = _mm512_and_si512(shift16(c, -2 * (q % 4)), _mm512_set1_epi8(3));
        if (codes != TERN_CODES_U2) {
            __m512i high = load_i512(block + 2 * TERN_VEC);
            c = _mm512_or_si512(c, _mm512_and_si512(shift16(high, 2 - q), _mm512_set1_epi8(4)));
        }
    } else {
        c = load_i512(block + q % 4 * TERN_VEC);
        c = _mm512_and_si512(shift16(c, q < 4 ? 0 : -4), _mm512_set1_epi8(15));
    }
    if (codes == TERN_CODES_U5) {
        __m512i high = load_i512(block + 4 * TERN_VEC);
        c = _mm512_or_si512(c, _mm512_and_si512(shift16(high, 4 - q), _mm512_set1_epi8(16)));
    } else if (codes == TERN_CODES_U6) {
        __m512i high = load_i512(block + (4 + q / 4) * TERN_VEC);
        c = _mm512_or_si512(c, _mm512_and_si512(shift16(high, 4 - 2 * (q % 4)), _mm512_set1_epi8(48)));
    }
    return tern_codes_table(codes) ? _mm512_shuffle_epi8(table, c) : c;
}

/* Scales while the quads of a block are read in order. */
struct block_scales {
    __m512 scale, minimum;
};

/* Codes that have at most 16 values: numbers of up to four bits, and places in the table of T4. */
ALWAYS bool nibble_codes(enum tern_codes codes)
{
    return codes == TERN_CODES_U2 || codes == TERN_CODES_U3 || codes == TERN_CODES_U4 || codes == TERN_CODES_T4;
}

/* Those of quad q as floats, one vector of 16 rows for each of its four inputs.  Only the low four bits of a lane
 * choose among 16 values, so codes of four bits are not taken apart first. */
ALWAYS void nibble_floats(enum tern_codes codes, enum tern_scales scales, const struct tern_panel_view *v,
                          const uint8_t *block, int q, int zero, __m512 out[4])
{
    const bool nibbles = codes == TERN_CODES_U4 || codes == TERN_CODES_T4;
    const __m512i c =
        nibbles ? load_i512(block + q % 4 * TERN_VEC) : quad_codes(codes, _mm512_setzero_si512(), block, q);
    __m512i values = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    if (codes == TERN_CODES_T4)
        values = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)v->table));
    else if (tern_scales_zero(scales))
        values = _mm512_sub_epi32(values, _mm512_set1_epi32(zero));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512i which = _mm512_srli_epi32(c, (nibbles && q >= 4 ? 4u : 0u) + 8u * (unsigned)i);
        out[i] = _mm512_permutexvar_ps(which, _mm512_cvtepi32_ps(values));
    }
}

/* Any codes of quad q as floats, less `zero` where the kind has one. */
ALWAYS void quad_floats(enum tern_codes codes, enum tern_scales scales, const struct tern_panel_view *v,
                        const uint8_t *block, int q, int zero, __m512 out[4])
{
    if (nibble_codes(codes)) {
        nibble_floats(codes, scales, v, block, q, zero, out);
        return;
    }
    __m512i c = quad_codes(codes, code_table(codes, v), block, q);
    if (!tern_codes_signed(codes) && codes != TERN_CODES_E4M3 && tern_scales_zero(scales))
        c = _mm512_sub_epi8(c, _mm512_set1_epi8((char)zero));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512i top = _mm512_slli_epi32(c, 24u - 8u * (unsigned)i);
        out[i] = codes == TERN_CODES_E4M3 ? e4m3x16(top) : _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24));
        if (codes == TERN_CODES_S8 && scales == TERN_SCALES_G32M)
            out[i] = _mm512_sub_ps(out[i], _mm512_set1_ps((float)zero));
    }
}

/* The exact weights of quad q of block b, one vector of 16 rows for each of its four inputs. */
ALWAYS void quad_weights(enum tern_codes codes, enum tern_scales scales, const struct tern_panel_view *v, size_t b,
                         int q, int zero, struct block_scales *s, __m512 out[4])
{
    if (q == 0 || (q == 4 && tern_scales_halves(scales))) {
        const struct super super = super_scale(scales, v, b / (TERN_SUPER / TERN_BLOCK), 0);
        group_scale(scales, v, &super, 2 * b + (size_t)q / 4, 0, &s->scale, &s->minimum);
    }
    quad_floats(codes, scales, v, v->codes + b * tern_codes_unit(codes), q, zero, out);
    /* One fused operation rounds exactly once, as the contract wants. */
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        out[i] = tern_scales_plus(scales)    ? _mm512_fmadd_ps(s->scale, out[i], s->minimum)
                 : tern_scales_minus(scales) ? _mm512_fmsub_ps(s->scale, out[i], s->minimum)
                                             : _mm512_mul_ps(s->scale, out[i]);
}

#endif
