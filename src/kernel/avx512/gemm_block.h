/* kernel/avx512/gemm_block.h - reading one block of a packed panel with 512-bit vectors: a lane is one of its 16 rows.
 *
 * Everything is forced inline with constant `codes` and `scales`, so every format gets its own straight-line loop. */
#ifndef TERN_AVX512_GEMM_BLOCK_H
#define TERN_AVX512_GEMM_BLOCK_H

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

ALWAYS __m512i load_i512(const void *p)
{
    return _mm512_load_si512(p);
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

/* Does the format add a minimum? */
ALWAYS bool has_minimum(enum tern_scales scales)
{
    return scales == TERN_SCALES_F16M || scales == TERN_SCALES_K32;
}

/* Scales of 256 inputs (K32, K16): what group_scale needs beside the scales of smaller groups. */
struct super {
    __m512 d, m;
};

ALWAYS struct super super_scale(enum tern_scales scales, const struct tern_panel_view *v, size_t super)
{
    struct super s = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    if (scales == TERN_SCALES_K32 || scales == TERN_SCALES_K16)
        s.d = half16(v->d + super * TERN_PANEL);
    if (scales == TERN_SCALES_K32)
        s.m = half16(v->m + super * TERN_PANEL);
    return s;
}

/* Scale and minimum of the 16 inputs number `half`; products as in kernel/gemm.h.  The minimum of F16M is to be added,
 * that of K32 subtracted: see plus_minimum. */
ALWAYS void group_scale(enum tern_scales scales, const struct tern_panel_view *v, struct super super, size_t half,
                        __m512 *scale, __m512 *minimum)
{
    size_t block = half / 2 * TERN_PANEL;
    *minimum = _mm512_setzero_ps();
    if (scales == TERN_SCALES_F16) {
        *scale = half16(v->d + block);
    } else if (scales == TERN_SCALES_F16M) {
        *scale = half16(v->d + block);
        *minimum = half16(v->m + block);
    } else if (scales == TERN_SCALES_K32) {
        *scale = _mm512_mul_ps(super.d, u8x16(v->a + block));
        *minimum = _mm512_mul_ps(super.m, u8x16(v->b + block));
    } else {
        *scale = _mm512_mul_ps(super.d, i8x16(v->a + half * TERN_PANEL));
    }
}

/* minimum * times + acc with the sign that the format gives the minimum. */
ALWAYS __m512 plus_minimum(enum tern_scales scales, __m512 minimum, __m512 times, __m512 acc)
{
    return scales == TERN_SCALES_K32 ? _mm512_fnmadd_ps(minimum, times, acc) : _mm512_fmadd_ps(minimum, times, acc);
}

/* Shifts 16-bit lanes left by a constant that may be negative; callers mask what crosses bytes. */
ALWAYS __m512i shift16(__m512i v, int left)
{
    return left >= 0 ? _mm512_slli_epi16(v, (unsigned)left) : _mm512_srli_epi16(v, (unsigned)-left);
}

/* Code bytes of quad `q` (0..7); q is constant after unrolling. */
ALWAYS __m512i quad_codes(enum tern_codes codes, const uint8_t *block, int q)
{
    if (codes == TERN_CODES_S8)
        return load_i512(block + q * TERN_VEC);
    __m512i c = load_i512(block + q % 4 * TERN_VEC);
    c = _mm512_and_si512(shift16(c, q < 4 ? 0 : -4), _mm512_set1_epi8(15));
    if (codes == TERN_CODES_U5) {
        __m512i high = load_i512(block + 4 * TERN_VEC);
        c = _mm512_or_si512(c, _mm512_and_si512(shift16(high, 4 - q), _mm512_set1_epi8(16)));
    } else if (codes == TERN_CODES_U6) {
        __m512i high = load_i512(block + (4 + q / 4) * TERN_VEC);
        c = _mm512_or_si512(c, _mm512_and_si512(shift16(high, 4 - 2 * (q % 4)), _mm512_set1_epi8(48)));
    }
    return c;
}

/* Scales while the quads of a block are read in order. */
struct block_scales {
    __m512 scale, minimum;
};

/* The exact weights of quad q of block b, one vector of 16 rows for each of its four inputs. */
ALWAYS void quad_weights(enum tern_codes codes, enum tern_scales scales, const struct tern_panel_view *v, size_t b,
                         int q, int zero, struct block_scales *s, __m512 out[4])
{
    if (q == 0 || (q == 4 && scales == TERN_SCALES_K16))
        group_scale(scales, v, super_scale(scales, v, b / (TERN_SUPER / TERN_BLOCK)), 2 * b + (size_t)q / 4, &s->scale,
                    &s->minimum);
    __m512i c = quad_codes(codes, v->codes + b * tern_codes_unit(codes), q);
    if (codes != TERN_CODES_S8 && !has_minimum(scales))
        c = _mm512_sub_epi8(c, _mm512_set1_epi8((char)zero));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512 f = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(c, 24u - 8u * (unsigned)i), 24));
        /* scale * code is exact, so one fused operation rounds exactly once, as the contract wants. */
        out[i] = scales == TERN_SCALES_F16M  ? _mm512_fmadd_ps(s->scale, f, s->minimum)
                 : scales == TERN_SCALES_K32 ? _mm512_fmsub_ps(s->scale, f, s->minimum)
                                             : _mm512_mul_ps(s->scale, f);
    }
}

#endif
