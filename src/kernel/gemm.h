/* kernel/gemm.h - products of activations with packed weights.
 *
 * Y[row][n] = sum over k of X[row][k] * W[n][k].  Weights are packed once at load (codec/weight_*.c) into panels of 16
 * consecutive output rows, so that a vector holds the same k of 16 outputs and no horizontal sum is ever needed.
 *
 * Four arithmetic classes, chosen by the role of the row and by the machine, never by the size of the batch:
 *   wide    prompt rows.  f32 activations times exactly dequantised f32 weights; every output element is ONE chain
 *           acc = fma(w[k], x[k], acc), k ascending from acc = +0.  All levels are bit-equal.
 *   int16   prompt rows on machines with AVX2 and without tiles, unless f32 is asked for: see tern_prompt_kernels.
 *   bf16    prompt rows on machines with tiles, unless f32 is asked for: see tern_bf16_kernels.
 *   narrow  decode rows.  Activations quantised to int8 per 32; per block of 32 (16 where scales are that close) an
 *           exact integer dot, then one chain in f32 (see `narrow`).  All levels are bit-equal.  Prompt rows, too,
 *           where int8 is asked for.  Where 16 bits are asked for decode rows, a row is two: see `narrow16`.
 * Floats (F32 F16 BF16 E4M3) have no integer form: their narrow product is the wide chain, for few rows without scratch
 * (kernel/gemm_few_impl.h). */
#ifndef TERN_KERNEL_GEMM_H
#define TERN_KERNEL_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TERN_PANEL 16 /* output rows in a panel */
#define TERN_TABLE 16 /* values of a table of codes */

/* Float codes, then codes that need a scale: E4M3 (eight-bit floats), unsigned integers of 2 to 6 bits, signed bytes,
 * and codes of 3 and 4 bits whose values, signed bytes, stand in a table. */
enum tern_codes {
    TERN_CODES_F32,
    TERN_CODES_F16,
    TERN_CODES_BF16,
    TERN_CODES_E4M3,
    TERN_CODES_U2,
    TERN_CODES_U3,
    TERN_CODES_U4,
    TERN_CODES_U5,
    TERN_CODES_U6,
    TERN_CODES_S8,
    TERN_CODES_T3,
    TERN_CODES_T4
};

/* How a weight comes back from its code c (of T3, T4: the table's value):
 *   NONE   float codes
 *   F16    w = d * (c - zero)               d: f16 per row and 32 k
 *   F16M   w = d * c + m                    d, m: f16 per row and 32 k
 *   K32    w = (d*a) * c - (dmin*b)         d, dmin: f16 per row and 256 k; a, b: u8 per row and 32 k
 *   K16M   w = (d*a) * c - (dmin*b)         d, dmin: f16 per row and 256 k; a, b: four bits per row and 16 k
 *   K32S   w = (d*unit*s) * c               d: f16 per row and 256 k; s: i8 per row and 32 k
 *   K16    w = (d*unit*s) * (c - zero)      d: f16 per row and 256 k; s: i8 per row and 16 k
 *   G16    w = (d*u) * (c - zero)           d: d_type per row and 16 k; u: f32 per row
 *   G32    w = (d*unit) * (c - zero)        d: d_type per row and `group` k
 *   G32M   w = d * (c - zero) + m           d: d_type, m: m_type per row and `group` k
 * What stands in brackets is rounded to f32, and so is w, once; in all but G16 brackets are exact. */
enum tern_scales {
    TERN_SCALES_NONE,
    TERN_SCALES_F16,
    TERN_SCALES_F16M,
    TERN_SCALES_K32,
    TERN_SCALES_K16M,
    TERN_SCALES_K32S,
    TERN_SCALES_K16,
    TERN_SCALES_G16,
    TERN_SCALES_G32,
    TERN_SCALES_G32M
};

/* What the scales of the G kinds are.  ZERO, for m alone: a byte z that means m = -(d*z), exact. */
enum tern_number {
    TERN_NUMBER_F32,
    TERN_NUMBER_F16,
    TERN_NUMBER_BF16,
    TERN_NUMBER_E8M0,
    TERN_NUMBER_E4M3,
    TERN_NUMBER_ZERO
};

/* A packed matrix [n, k].  Panels lie one after another, panel_bytes apart, 64-byte aligned; rows beyond n in the last
 * panel are zero weights.  The layout inside a panel is documented in kernel/pack.h. */
struct tern_packed {
    enum tern_codes codes;
    enum tern_scales scales;
    int zero;                        /* subtracted from codes where the formula says so; -128..32 */
    int group;                       /* G kinds: inputs that share d (and m): 16 of G16, else 32, 64 or 128 */
    enum tern_number d_type, m_type; /* G kinds */
    float unit;                      /* a power of two: K32S, K16, G32 */
    int8_t table[TERN_TABLE];        /* T3 (the first 8 values), T4 */
    int n;                           /* output rows */
    int k;                           /* inputs; a multiple of 32 (256 for the K kinds, any for float codes) */
    size_t panel_bytes;
    const uint8_t *data;
};

/* Have the codes an integer form, and so a narrow product of their own? */
static inline bool tern_codes_integer(enum tern_codes codes)
{
    return codes > TERN_CODES_E4M3;
}

/* One row of activations for the narrow class.  q: [k] int8; scale: [k/32]; sum16: [k/16] sums of q over 16.  The rows
 * of one call lie equally far apart: from each to the next, q, scale and sum16 move by the same number of bytes. */
struct tern_q8_row {
    const int8_t *q;      /* 64-byte aligned */
    const float *scale;   /* 64-byte aligned */
    const int32_t *sum16; /* 64-byte aligned */
};

/* Such a row in one piece: its bytes, a multiple of 64, and its places in them (p: 64-byte aligned). */
static inline size_t tern_q8_bytes(size_t k)
{
    return (k + 63) / 64 * 64 + (k / 32 + 15) / 16 * 64 + (k / 16 + 15) / 16 * 64;
}

static inline struct tern_q8_row tern_q8_at(const void *p, size_t k)
{
    const char *scale = (const char *)p + (k + 63) / 64 * 64, *sum16 = scale + (k / 32 + 15) / 16 * 64;
    return (struct tern_q8_row){(const int8_t *)p, (const float *)(const void *)scale,
                                (const int32_t *)(const void *)sum16};
}

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

    /* As `wide` for quantised rows.  For each group g of 32 (K16M, K16, G16: 16) inputs, ascending, starting from
     * acc = +0:
     *     dot = sum c*q over the group (integers, exact);  isum = sum q over the group
     *     acc = fma((float)(dot - zero*isum), sw*sx, acc)                   sw: f32 scale of the weight group
     *     kinds with a minimum: acc = fma(mw, sx*(float)isum, acc)          mw: m, or -(dmin*b)
     * sx is the activation block's scale; sw*sx and sx*isum are rounded f32 products.
     * Not for float codes. */
    void (*narrow)(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows, const struct tern_packed *w,
                   int panel0, int panel1);

    /* As `quantize` with 16 bits, in two columns of bytes: scale = amax/32512; v = x * (32512/amax) rounded to nearest
     * even; high = (v + 128) >> 8, low = max(v - 256*high, -127).  sum16: sums of 256*high + low. */
    void (*quantize16)(int8_t *high, int8_t *low, float *scale, int32_t *sum16, const float *x, int k);

    /* As `narrow` for rows of 16 bits, each two of x: high codes, scale and sum16 are those of the first, low codes the
     * q of the second.  Weights' codes times 256*high + low are one exact integer dot, and isum is the sum of that. */
    void (*narrow16)(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows, const struct tern_packed *w,
                     int panel0, int panel1);

    /* The exactly dequantised row `row` of w into out[0..k): the weights that `wide` multiplies. */
    void (*row)(float *out, const struct tern_packed *w, int row);
};

#define TERN_GEMM_SCRATCH (64 * 1024) /* floats of scratch that `wide` may use */

void tern_gemm_init_ref(struct tern_gemm_kernels *k);
void tern_gemm_init_avx2(struct tern_gemm_kernels *k);
void tern_gemm_init_avxvnni(struct tern_gemm_kernels *k);
void tern_gemm_init_avx512(struct tern_gemm_kernels *k);
void tern_gemm_init_neon(struct tern_gemm_kernels *k);

#endif
