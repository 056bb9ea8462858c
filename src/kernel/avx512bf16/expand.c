/* Weights from the packed layout into tiles.  A vector of the layout is one input of 16 rows, and a row of a tile is
 * two inputs of 16 rows, so nothing has to be transposed: two dequantised vectors are rounded together and interleaved.
 */
#include "kernel/avx512bf16/bf16.h"
#include "kernel/avx512bf16/round.h"
#include "kernel/avx512/gemm_block.h"

ALWAYS void expand_codes(enum tern_codes codes, enum tern_scales scales, uint16_t *tile, const struct tern_packed *w,
                         const struct tern_panel_layout *l, int panel, int step)
{
    const struct tern_panel_view v = tern_panel_view(w, l, panel);
    const int zero = w->zero;
    struct block_scales s;
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++) {
        __m512 f[4];
        quad_weights(codes, scales, &v, (size_t)step, q, zero, &s, f);
        tile_store_pair(tile + 2 * q * 32, f[0], f[1]);
        tile_store_pair(tile + (2 * q + 1) * 32, f[2], f[3]);
    }
}

/* Input i of a panel of float codes; zeros behind the last. */
ALWAYS __m512 float_input(enum tern_codes codes, const uint8_t *p, int i, int k)
{
    if (i >= k)
        return _mm512_setzero_ps();
    if (codes == TERN_CODES_F32)
        return _mm512_load_ps(p + (size_t)i * 64);
    p += (size_t)i * 32;
    if (codes == TERN_CODES_F16)
        return half16((const uint16_t *)(const void *)p);
    __m256i u = _mm256_load_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(u), 16));
}

ALWAYS void expand_floats(enum tern_codes codes, uint16_t *tile, const struct tern_packed *w, int panel, int step)
{
    const uint8_t *p = w->data + (size_t)panel * w->panel_bytes;
    const int k = w->k;
    for (int j = 0, i = step * TERN_TILE_DEPTH; j < TERN_TILE_DEPTH / 2; j++, i += 2)
        tile_store_pair(tile + j * 32, float_input(codes, p, i, k), float_input(codes, p, i + 1, k));
}

#define X(c, s)                                                                                                  \
    static void expand_##c##_##s(uint16_t *tile, const struct tern_packed *w, const struct tern_panel_layout *l, \
                                 int panel, int step)                                                            \
    {                                                                                                            \
        expand_codes(TERN_CODES_##c, TERN_SCALES_##s, tile, w, l, panel, step);                                  \
    }
TERN_QUANT_KINDS(X)
#undef X

#define X(c)                                                                                                          \
    static void expand_##c(uint16_t *tile, const struct tern_packed *w, const struct tern_panel_layout *l, int panel, \
                           int step)                                                                                  \
    {                                                                                                                 \
        (void)l;                                                                                                      \
        expand_floats(TERN_CODES_##c, tile, w, panel, step);                                                          \
    }
X(F32)
X(F16)
X(BF16)
#undef X

tern_bf16_expand *tern_bf16_expander(const struct tern_packed *w)
{
#define X(c, s)                                                     \
    if (w->codes == TERN_CODES_##c && w->scales == TERN_SCALES_##s) \
        return expand_##c##_##s;
    TERN_QUANT_KINDS(X)
#undef X
    return w->codes == TERN_CODES_F32 ? expand_F32 : w->codes == TERN_CODES_F16 ? expand_F16 : expand_BF16;
}
