/* kernel/avx2/prompt_tile.h - what prompt.c and prompt8.c have in common: register tiles of six rows by one panel, and
 * after them of four, so that a band of 32 is four of the one and two of the other.
 *
 * To be included behind kernel/prompt_impl.h. */
#ifndef TERN_AVX2_PROMPT_TILE_H
#define TERN_AVX2_PROMPT_TILE_H

#include "kernel/avx2/gemm_block.h"
#include "kernel/avx2/simd.h"
#include "kernel/prompt_impl.h"

#ifdef RANGE_STEPS

/* Loops are of short instructions: with offsets of four bytes Zen 3 took 1.34 instead of 1.6 `vpmaddwd` in a cycle.
 * So pointers stand in the middle of what they reach, and the compiler may not make them into others. */
#define OPAQUE_PTR(p) __asm__("" : "+r"(p))
#define OPAQUE_VEC(v) __asm__("" : "+x"(v))

/* Sums have names of their own, for an array of them would lie in memory. */
#define EACH_ROW(X, i) X(0, i) X(1, i) X(2, i) X(3, i) X(4, i) X(5, i)

PROMPT_INLINE int tile_rows(int r, int left)
{
    const int most = r % TERN_BAND < 4 * TILE ? TILE : 4;
    return left >= most ? most : (left + 1) / 2 * 2;
}
_Static_assert(4 * TILE + 2 * 4 == TERN_BAND, "register tiles do not cross bands");

/* Scales of one half of a panel's outputs. */
ALWAYS void expand_scales(enum tern_scales scales, struct block *out, const struct tern_panel_view *v, int step, int h)
{
    const struct super super = super_scale(scales, v, (size_t)step / (TERN_SUPER / TERN_BLOCK), (size_t)(8 * h));
    for (int half = 0; half < (tern_scales_halves(scales) ? 2 : 1); half++) {
        __m256 scale, minimum;
        group_scale(scales, v, &super, 2 * (size_t)step + (size_t)half, (size_t)(8 * h), &scale, &minimum);
        if (tern_scales_minus(scales))
            minimum = _mm256_xor_ps(minimum, _mm256_set1_ps(-0.0f));
        _mm256_store_ps(out->scale[half] + 8 * h, scale);
        if (tern_scales_minimum(scales))
            _mm256_store_ps(out->minimum[half] + 8 * h, minimum);
    }
}

/* Sixteen numbers into registers, where they stay. */
ALWAYS void load_factors(__m256 out[2], const float *p)
{
    out[0] = _mm256_load_ps(p);
    out[1] = _mm256_load_ps(p + 8);
    OPAQUE_VEC(out[0]);
    OPAQUE_VEC(out[1]);
}

PROMPT_INLINE void chain_from(float *chain, const float *y, int cols)
{
    _mm256_store_ps(chain, load_part(y, cols));
    _mm256_store_ps(chain + 8, load_part(y + 8, cols - 8));
}

PROMPT_INLINE void chain_to(float *y, const float *chain, int cols, const float *scale)
{
    __m256 low = _mm256_load_ps(chain), high = _mm256_load_ps(chain + 8);
    if (scale) {
        low = _mm256_mul_ps(low, _mm256_broadcast_ss(scale));
        high = _mm256_mul_ps(high, _mm256_broadcast_ss(scale));
    }
    store_part(y, cols, low);
    store_part(y + 8, cols - 8, high);
}

#endif
#endif
