/* kernel/avx2/prompt8_tile.h - what prompt8.c and avxvnni/prompt8.c have in common: all but the products.
 *
 * To be included behind avx2/prompt_tile.h; RAISED is what `expand` adds to signed codes. */
#ifndef TERN_AVX2_PROMPT8_TILE_H
#define TERN_AVX2_PROMPT8_TILE_H

#include "kernel/avx2/prompt_tile.h"

#ifdef RANGE_STEPS

PROMPT_INLINE void expand(enum tern_codes codes, enum tern_scales scales, struct block *out,
                          const struct tern_panel_view *v, int zero, int step)
{
    const uint8_t *block = v->codes + (size_t)step * tern_codes_unit(codes);
    const __m256i table = code_table(codes, v), top = _mm256_set1_epi8((char)RAISED);
    (void)zero; /* of all 32 inputs at once, in group_tile */
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            const __m256i c = quad_codes(codes, table, block, q, h);
            _mm256_store_si256((__m256i *)(void *)(out->quads[q] + 32 * h),
                               tern_codes_signed(codes) ? _mm256_xor_si256(c, top) : c);
        }
    }
    expand_scales(scales, out, v, step, 0);
    expand_scales(scales, out, v, step, 1);
}

ALWAYS __m256i four_codes(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

/* What a group's sums are scaled by: of the weights, kept in registers, and of the rows. */
struct factors {
    __m256 scale[2], minimum[2];
    const float *x, *product; /* of the rows: scales, and times their sums */
    const int32_t *zero;      /* zero points times their sums; NULL: there are none */
};

/* The chains of one row: += its sums of a group.  Zero points leave here and not where sums begin, which would wait
 * for them (decision 074). */
ALWAYS void add_group(const struct factors *f, float *chain, int r, bool minimum, __m256i dot0, __m256i dot1)
{
    const __m256 sx = _mm256_broadcast_ss(f->x + r);
    if (f->zero) {
        const __m256i zero = _mm256_set1_epi32(f->zero[r]);
        dot0 = _mm256_sub_epi32(dot0, zero);
        dot1 = _mm256_sub_epi32(dot1, zero);
    }
    __m256 a = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot0), _mm256_mul_ps(f->scale[0], sx), _mm256_load_ps(chain));
    __m256 b = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot1), _mm256_mul_ps(f->scale[1], sx), _mm256_load_ps(chain + 8));
    if (minimum) {
        const __m256 product = _mm256_broadcast_ss(f->product + r);
        a = _mm256_fmadd_ps(f->minimum[0], product, a);
        b = _mm256_fmadd_ps(f->minimum[1], product, b);
    }
    _mm256_store_ps(chain, a);
    _mm256_store_ps(chain + 8, b);
}

/* zero * isum of up to six rows. */
ALWAYS void zero_sums(int32_t *out, const int32_t *isum, int zero, int rows)
{
#pragma GCC unroll 3
    for (int r = 0; r < rows; r += 2) {
        const __m128i two = _mm_loadl_epi64((const __m128i *)(const void *)(isum + r));
        _mm_storel_epi64((__m128i *)(void *)(out + r), _mm_mullo_epi32(two, _mm_set1_epi32(zero)));
    }
}

#endif
#endif
