/* kernel/avx512/prompt_tile.h - what prompt.c and prompt8.c have in common: register tiles of eight rows by three
 * panels, and of one or four rows, for the last row of a prompt meets the head alone, and short prompts have few
 * (decision 074).
 *
 * To be included behind kernel/prompt_impl.h; behind it follows `tile`. */
#ifndef TERN_AVX512_PROMPT_TILE_H
#define TERN_AVX512_PROMPT_TILE_H

#include "kernel/avx512/gemm_block.h"
#include "kernel/prompt_impl.h"

#ifdef RANGE_STEPS

_Static_assert(TERN_BAND % TILE == 0, "register tiles do not cross bands");
_Static_assert(TILE == 8 && WIDTH == 3, "as the names of sums say");

/* Sums have names of their own, for an array of them would lie in memory.  A file says where codes of a row are
 * (ROW_CODES) and how their products are added (add_products). */
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define ROW_ZERO(r) __m512i d##r##0 = _mm512_setzero_si512(), d##r##1 = d##r##0, d##r##2 = d##r##0;
#define ROW_ADD(r)                                  \
    if (rows > r) {                                 \
        b = ROW_CODES(r);                           \
        d##r##0 = add_products(d##r##0, v0, b);     \
        if (panels > 1)                             \
            d##r##1 = add_products(d##r##1, v1, b); \
        if (panels > 2)                             \
            d##r##2 = add_products(d##r##2, v2, b); \
    }

/* chain[rows][WIDTH][16] += x . w; all but the pointers is constant. */
PROMPT_INLINE void tile(const struct operands *o, float *chain, int rows, int panels, int groups, bool minimum);

#define X(rows, panels, groups, minimum)                                                              \
    static void tile_##rows##_##panels##_##groups##_##minimum(const struct operands *o, float *chain) \
    {                                                                                                 \
        tile(o, chain, rows, panels, groups, minimum);                                                \
    }
#define PANEL_FNS(rows, panels) X(rows, panels, 1, 0) X(rows, panels, 1, 1) X(rows, panels, 2, 0) X(rows, panels, 2, 1)
#define TILE_FNS(rows)          PANEL_FNS(rows, 1) PANEL_FNS(rows, 2) PANEL_FNS(rows, 3)
TILE_FNS(1)
TILE_FNS(4)
TILE_FNS(8)
#undef X

PROMPT_INLINE int tile_rows(int r, int left)
{
    (void)r;
    return left == 1 ? 1 : left <= 4 ? 4 : TILE;
}

static tile_fn *tile_for(int rows, int panels, const struct tern_packed *w)
{
#define X(rows, panels, groups, minimum) tile_##rows##_##panels##_##groups##_##minimum,
    static tile_fn *const fns[] = {TILE_FNS(1) TILE_FNS(4) TILE_FNS(8)};
#undef X
    const int kind = (tern_scales_halves(w->scales) ? 2 : 0) + (tern_scales_minimum(w->scales) ? 1 : 0);
    return fns[((rows == 1 ? 0 : rows == 4 ? 3 : 6) + panels - 1) * 4 + kind];
}

/* What a block's sums are scaled by. */
ALWAYS void expand_scales(enum tern_scales scales, struct block *out, const struct tern_panel_view *v, int step)
{
    const struct super super = super_scale(scales, v, (size_t)step / (TERN_SUPER / TERN_BLOCK), 0);
    for (int half = 0; half < (tern_scales_halves(scales) ? 2 : 1); half++) {
        __m512 scale, minimum;
        group_scale(scales, v, &super, 2 * (size_t)step + (size_t)half, 0, &scale, &minimum);
        if (tern_scales_minus(scales))
            minimum = _mm512_xor_ps(minimum, _mm512_set1_ps(-0.0f));
        _mm512_store_ps(out->scale[half], scale);
        if (tern_scales_minimum(scales))
            _mm512_store_ps(out->minimum[half], minimum);
    }
}

/* The lanes of a panel of which `cols` columns exist. */
ALWAYS __mmask16 lanes_of(int cols)
{
    return (__mmask16)(cols >= TERN_PANEL ? 0xFFFFu : cols > 0 ? (1u << cols) - 1u : 0u);
}

PROMPT_INLINE void chain_from(float *chain, const float *y, int cols)
{
    _mm512_store_ps(chain, _mm512_maskz_loadu_ps(lanes_of(cols), y));
}

PROMPT_INLINE void chain_to(float *y, const float *chain, int cols, const float *scale)
{
    const __m512 acc = _mm512_load_ps(chain);
    _mm512_mask_storeu_ps(y, lanes_of(cols), scale ? _mm512_mul_ps(acc, _mm512_set1_ps(*scale)) : acc);
}

#endif
#endif
