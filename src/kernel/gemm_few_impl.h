/* kernel/gemm_few_impl.h - the wide class for few rows and weights that are floats (F32 F16 BF16 E4M3): what one decode
 * row multiplies, or a handful.  The part that is the same for all instruction sets that have it.
 *
 * With many rows a panel is dequantised into scratch and multiplied from there.  For few rows that is most of the work,
 * so here weights stay in registers between memory and their product.  Chains are those of `wide`, so results are the
 * same bits.  A chain waits for its last sum: panels go side by side, so that there are enough chains.
 *
 * Before it is included these are defined, besides those of kernel/gemm_scales_impl.h:
 *
 *     FEW_LANES               rows of a panel in a GEMM_ROWS
 *     FEW_MAX_ROWS            rows of activations at a time
 *     FEW_SHAPES(X)           X(rows, panels side by side), 1, 2 or 4 panels: what registers have room for
 *     few_load(p), few_store(p, v)   FEW_LANES floats
 *     few_each(f)             the float f for every row
 *     few_fma(a, b, c)        a * b + c, rounded once
 *     few_bf16(p)             bf16 numbers, one for each row
 *     few_quad(out, p)        E4M3 codes of FEW_LANES rows x 4 inputs at p, times 2^-120: out[4]
 *     few_huge(scale)         is any of them 2^7 or more? */
#ifndef TERN_KERNEL_GEMM_FEW_IMPL_H
#define TERN_KERNEL_GEMM_FEW_IMPL_H

#include "kernel/gemm.h"
#include "kernel/panel.h"

#ifdef FEW_LANES

#include <string.h>

#define FEW_PARTS   (TERN_PANEL / FEW_LANES) /* vectors of a panel */
#define FEW_STREAMS 4
#define FEW_AHEAD   4096 /* bytes of prefetch */
#define FEW_INLINE  static inline __attribute__((always_inline))

/* What the loops need to know.  Behind the end of its codes a stream goes on in a panel of the next turn. */
struct few_walk {
    const float *x;
    size_t x_stride, k;
    size_t near_end, jump; /* bytes of codes without the last FEW_AHEAD; from there on what to add to prefetches */
};

FEW_INLINE void few_prefetch(const struct few_walk *w, const uint8_t *codes, size_t at)
{
    __builtin_prefetch(codes + at + (at < w->near_end ? FEW_AHEAD : w->jump));
}

/* Sums of [panel side by side][part of the panel][row of activations]. */
typedef GEMM_ROWS few_sums[FEW_STREAMS][FEW_PARTS][FEW_MAX_ROWS];

FEW_INLINE void few_zero(few_sums acc, int rows, int streams)
{
#pragma GCC unroll 4
    for (int s = 0; s < streams; s++)
#pragma GCC unroll 4
        for (int h = 0; h < FEW_PARTS; h++)
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++)
                acc[s][h][r] = ROWS_ZERO;
}

/* To out[panel side by side][row][16]. */
FEW_INLINE void few_keep(float *out, few_sums acc, int rows, int streams)
{
#pragma GCC unroll 4
    for (int s = 0; s < streams; s++)
#pragma GCC unroll 4
        for (int h = 0; h < FEW_PARTS; h++)
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++)
                few_store(out + (s * FEW_MAX_ROWS + r) * TERN_PANEL + h * FEW_LANES, acc[s][h][r]);
}

/* Weights that are floats as they lie. */
FEW_INLINE void few_floats(enum tern_codes codes, float *out, const struct tern_panel_view *v, const struct few_walk *w,
                           int rows, int streams)
{
    const size_t unit = tern_codes_unit(codes);
    few_sums acc;
    few_zero(acc, rows, streams);
    for (size_t k = 0; k < w->k; k++) {
#pragma GCC unroll 4
        for (int s = 0; s < streams; s++) {
            few_prefetch(w, v[s].codes, k * unit);
#pragma GCC unroll 4
            for (int h = 0; h < FEW_PARTS; h++) {
                const void *part = v[s].codes + k * unit + (size_t)h * unit / FEW_PARTS;
                GEMM_ROWS f = codes == TERN_CODES_F32   ? few_load(part)
                              : codes == TERN_CODES_F16 ? rows_half(part)
                                                        : few_bf16(part);
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++)
                    acc[s][h][r] = few_fma(f, few_each(w->x[(size_t)r * w->x_stride + k]), acc[s][h][r]);
            }
        }
    }
    few_keep(out, acc, rows, streams);
}

/* Block b of E4M3.  Codes come times 2^-120.  Scales are lifted by 2^120, which is exact, so that a weight is one
 * product, rounded once; huge ones are not, and codes are lifted in their place. */
FEW_INLINE void few_block(few_sums acc, const struct tern_panel_view *v, const struct few_walk *w, size_t b,
                          GEMM_ROWS scale[FEW_STREAMS][FEW_PARTS], bool huge, int rows, int streams)
{
#pragma GCC unroll 1
    for (size_t q = b * (TERN_BLOCK / 4); q < (b + 1) * (TERN_BLOCK / 4); q++) {
        const float *x = w->x + 4 * q;
#pragma GCC unroll 4
        for (int s = 0; s < streams; s++) {
            few_prefetch(w, v[s].codes, q * TERN_VEC);
#pragma GCC unroll 4
            for (int h = 0; h < FEW_PARTS; h++) {
                __asm__("" : "+r"(x)); /* or the compiler keeps activations for the next part, in sums' registers */
                GEMM_ROWS f[4];
                few_quad(f, v[s].codes + q * TERN_VEC + h * 4 * FEW_LANES);
#pragma GCC unroll 4
                for (size_t i = 0; i < 4; i++) {
                    f[i] = rows_product(huge ? rows_times(f[i], 0x1p120f) : f[i], scale[s][h]);
#pragma GCC unroll 8
                    for (int r = 0; r < rows; r++)
                        acc[s][h][r] = few_fma(f[i], few_each(x[(size_t)r * w->x_stride + i]), acc[s][h][r]);
                }
            }
        }
    }
}

FEW_INLINE void few_e4m3(float *out, const struct tern_panel_view *v, const struct few_walk *w, int rows, int streams)
{
    few_sums acc;
    few_zero(acc, rows, streams);
    for (size_t b = 0; b < w->k / TERN_BLOCK; b++) {
        GEMM_ROWS scale[FEW_STREAMS][FEW_PARTS], lifted[FEW_STREAMS][FEW_PARTS], minimum;
        const struct super super = super_scale(TERN_SCALES_G32, v, 0, 0);
        bool huge = false;
#pragma GCC unroll 4
        for (int s = 0; s < streams; s++)
#pragma GCC unroll 4
            for (int h = 0; h < FEW_PARTS; h++) {
                group_scale(TERN_SCALES_G32, &v[s], &super, 2 * b, (size_t)(h * FEW_LANES), &scale[s][h], &minimum);
                huge |= few_huge(scale[s][h]);
                lifted[s][h] = rows_times(scale[s][h], 0x1p120f);
            }
        if (huge)
            few_block(acc, v, w, b, scale, true, rows, streams);
        else
            few_block(acc, v, w, b, lifted, false, rows, streams);
    }
    few_keep(out, acc, rows, streams);
}

typedef void few_fn(float *out, const struct tern_panel_view *v, const struct few_walk *w);

#define FEW_FN(code, rows, streams)                                                                                    \
    static void few_##code##_##rows##_##streams(float *out, const struct tern_panel_view *v, const struct few_walk *w) \
    {                                                                                                                  \
        if (TERN_CODES_##code == TERN_CODES_E4M3)                                                                      \
            few_e4m3(out, v, w, rows, streams);                                                                        \
        else                                                                                                           \
            few_floats(TERN_CODES_##code, out, v, w, rows, streams);                                                   \
    }
#define FEW_FNS(rows, streams) \
    FEW_FN(F32, rows, streams) FEW_FN(F16, rows, streams) FEW_FN(BF16, rows, streams) FEW_FN(E4M3, rows, streams)
FEW_SHAPES(FEW_FNS)

static few_fn *few_find(enum tern_codes codes, int rows, int streams)
{
#define FEW_FOUND(n, s)                                        \
    if (rows == (n) && streams == (s))                         \
        return codes == TERN_CODES_F32    ? few_F32_##n##_##s  \
               : codes == TERN_CODES_F16  ? few_F16_##n##_##s  \
               : codes == TERN_CODES_BF16 ? few_BF16_##n##_##s \
                                          : few_E4M3_##n##_##s;
    FEW_SHAPES(FEW_FOUND)
#undef FEW_FOUND
    return NULL;
}

/* `wide` for 1 to FEW_MAX_ROWS rows and weights without an integer form. */
static void few_product(float *y, size_t y_stride, const float *x, size_t x_stride, int n_rows,
                        const struct tern_packed *w, int panel0, int panel1)
{
    const struct tern_panel_layout l = tern_panel_layout(w);
    const size_t bytes = tern_codes_unit(w->codes) * (size_t)(tern_codes_float(w->codes) ? w->k : w->k / TERN_BLOCK);
    float out[FEW_STREAMS * FEW_MAX_ROWS * TERN_PANEL] __attribute__((aligned(64)));
    for (int p = panel0, streams; p < panel1; p += streams) {
        struct tern_panel_view v[FEW_STREAMS];
        streams = FEW_STREAMS;
        while (streams > panel1 - p || !few_find(w->codes, n_rows, streams))
            streams /= 2;
        for (int s = 0; s < streams; s++)
            v[s] = tern_panel_view(w, &l, p + s);
        const struct few_walk walk = {x, x_stride, (size_t)w->k, bytes > FEW_AHEAD ? bytes - FEW_AHEAD : 0,
                                      (size_t)streams * w->panel_bytes + FEW_AHEAD - bytes};
        few_find(w->codes, n_rows, streams)(out, v, &walk);
        for (int i = 0; i < streams * n_rows; i++) {
            int s = i / n_rows, r = i % n_rows, n0 = (p + s) * TERN_PANEL;
            int cols = w->n - n0 < TERN_PANEL ? w->n - n0 : TERN_PANEL;
            memcpy(y + (size_t)r * y_stride + n0, out + (s * FEW_MAX_ROWS + r) * TERN_PANEL, (size_t)cols * sizeof *y);
        }
    }
}

#endif
#endif
