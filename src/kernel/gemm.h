/* kernel/gemm.h - products of activations with packed weights.
 *
 * Y[row][n] = sum over k of X[row][k] * W[n][k].  Weights are packed once at load (codec/weight_*.c) into panels of 16
 * consecutive output rows, so that a vector holds the same k of 16 outputs and no horizontal sum is ever needed.
 *
 * Two arithmetic classes, chosen by the role of the row and never by the size of the batch:
 *   wide    prompt rows.  f32 activations times exactly dequantised f32 weights; every output element is ONE chain
 *           acc = fma(w[k], x[k], acc), k ascending from acc = +0.  All levels are bit-equal.
 *   narrow  decode rows.  Activations quantised to int8 per 32; per block of 32 (16 for six-bit weights) an exact
 *           integer dot, then one chain in f32 (see `narrow`).  All levels are bit-equal.
 * Float weights (F32 F16 BF16) have no integer form: their narrow product is the wide chain. */
#ifndef TERN_KERNEL_GEMM_H
#define TERN_KERNEL_GEMM_H

#include <stddef.h>
#include <stdint.h>

#define TERN_PANEL 16 /* output rows in a panel */

enum tern_codes {
    TERN_CODES_F32,
    TERN_CODES_F16,
    TERN_CODES_BF16,
    TERN_CODES_U4,
    TERN_CODES_U5,
    TERN_CODES_U6,
    TERN_CODES_S8
};

/* How a weight comes back from its code c:
 *   NONE   float codes
 *   F16    w = d * (c - zero)               d: f16 per row and 32 k
 *   F16M   w = d * c + m                    d, m: f16 per row and 32 k; f32 product, then one rounded addition
 *   K32    w = (d*a) * c - (dmin*b)         d, dmin: f16 per row and 256 k; a, b: u8 per row and 32 k
 *   K16    w = (d*s) * (c - zero)           d: f16 per row and 256 k; s: i8 per row and 16 k
 * Products in brackets are exact in f32. */
enum tern_scales { TERN_SCALES_NONE, TERN_SCALES_F16, TERN_SCALES_F16M, TERN_SCALES_K32, TERN_SCALES_K16 };

/* A packed matrix [n, k].  Panels lie one after another, panel_bytes apart, 64-byte aligned; rows beyond n in the last
 * panel are zero weights.  The layout inside a panel is documented in kernel/pack.h. */
struct tern_packed {
    enum tern_codes codes;
    enum tern_scales scales;
    int zero; /* subtracted from unsigned codes where the formula says so */
    int n;    /* output rows */
    int k;    /* inputs; a multiple of 32 (256 for K32, K16; any for float codes) */
    size_t panel_bytes;
    const uint8_t *data;
};

/* One row of activations for the narrow class.  q: [k] int8; scale: [k/32]; sum16: [k/16] sums of q over 16. */
struct tern_q8_row {
    const int8_t *q;      /* 64-byte aligned */
    const float *scale;   /* 64-byte aligned */
    const int32_t *sum16; /* 64-byte aligned */
};

struct tern_gemm_kernels {
    /* Quantises x[0..k), k a multiple of 32, per block of 32: amax = max|x|; scale = amax/127 (f32 division);
     * q = x * (127/amax) rounded to nearest even; all q are 0 where 127/amax is not finite (amax 0 or below 4e-37).
     * A block that holds an infinity or NaN gets unspecified codes and a scale that is not finite, so that every
     * product with it is not finite either.  q, scale, sum16: 64-byte aligned.  Bit-equal on all levels. */
    void (*quantize)(int8_t *q, float *scale, int32_t *sum16, const float *x, int k);

    /* y[r*y_stride + 16*p + j] for rows r in [0, n_rows), panels p in [panel0, panel1), j < 16 (writes only columns
     * < w->n).  x: n_rows rows of w->k floats, x_stride floats apart.  scratch: at least tern_gemm_scratch floats,
     * 64-byte aligned, private to the caller's thread.  The wide chain above. */
    void (*wide)(float *y, size_t y_stride, const float *x, size_t x_stride, int n_rows, const struct tern_packed *w,
                 int panel0, int panel1, float *scratch);

    /* As `wide` for quantised rows.  For each group g of 32 (K16: 16) inputs, ascending, starting from acc = +0:
     *     dot = sum c*q over the group (integers, exact);  isum = sum q over the group
     *     F16, K16:  acc = fma((float)(dot - zero*isum), sw*sx, acc)            sw: f32 scale of the weight group
     *     F16M, K32: acc = fma((float)dot, sw*sx, acc); acc = fma(mw, sx*(float)isum, acc)    mw: m, or -(dmin*b)
     * sx is the activation block's scale; sw*sx and sx*isum are rounded f32 products.
     * Not for float codes. */
    void (*narrow)(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows, const struct tern_packed *w,
                   int panel0, int panel1);

    /* The exactly dequantised row `row` of w into out[0..k): the weights that `wide` multiplies. */
    void (*row)(float *out, const struct tern_packed *w, int row);
};

#define TERN_GEMM_SCRATCH (64 * 1024) /* floats of scratch that `wide` may use */

void tern_gemm_init_ref(struct tern_gemm_kernels *k);
void tern_gemm_init_avx2(struct tern_gemm_kernels *k);
void tern_gemm_init_avx512(struct tern_gemm_kernels *k);
void tern_gemm_init_neon(struct tern_gemm_kernels *k);

#endif
