/* kernel/gemm.h - products of activations with packed weights.
 *
 * Y[row][n] = sum over k of X[row][k] * W[n][k].  Weights are packed once at load (codec/weight_*.c) into panels of 16
 * consecutive output rows, so that a vector holds the same k of 16 outputs and no horizontal sum is ever needed.
 *
 * Four arithmetic classes, chosen by the role of the row and by the machine, never by the size of the batch:
 *   wide    prompt rows.  f32 activations times exactly dequantised f32 weights; every output element is ONE chain
 *           acc = fma(w[k], x[k], acc), k ascending from acc = +0.  All levels are bit-equal.
 *   int16   prompt rows on machines with VNNI and without tiles, unless f32 is asked for: see tern_prompt_kernels.
 *   bf16    prompt rows on machines with tiles, unless f32 is asked for: see tern_bf16_kernels.
 *   narrow  decode rows.  Activations quantised to int8 per 32; per block of 32 (16 where scales are that close) an
 *           exact integer dot, then one chain in f32 (see `narrow`).  All levels are bit-equal.
 * Floats (F32 F16 BF16 E4M3) have no integer form: their narrow product is the wide chain. */
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
    return (struct tern_q8_row){p, (const void *)scale, (const void *)sum16};
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

    /* The exactly dequantised row `row` of w into out[0..k): the weights that `wide` multiplies. */
    void (*row)(float *out, const struct tern_packed *w, int row);
};

#define TERN_GEMM_SCRATCH (64 * 1024) /* floats of scratch that `wide` may use */

/* ---- prompt rows in bf16 ----------------------------------------------------------------------------------------- */

#define TERN_TILE_ROWS  16  /* rows of a tile */
#define TERN_TILE_DEPTH 32  /* inputs of a tile */
#define TERN_TILE       512 /* bf16 values of a tile */
#define TERN_BAND       32  /* rows of activations that are packed together: two tiles */

/* Packed activations: bands of 32 rows, tern_bf16_band values apart; a band is [k/32 rounded up][2 tiles][16 rows][32
 * inputs].  Rows and inputs that do not exist are zeros inside a tile; a second tile without rows is left unwritten. */
static inline size_t tern_bf16_band(int k)
{
    return ((size_t)k + TERN_TILE_DEPTH - 1) / TERN_TILE_DEPTH * 2 * TERN_TILE;
}

/* The bf16 class: activations and exactly dequantised weights, both rounded to bf16 (nearest even; what is smaller than
 * 2^-126 counts as zero).  Every output is one chain over the inputs, ascending from acc = +0, rounded to nearest even,
 * with subnormal numbers as zeros:
 *     on tiles (amx): over tiles of 32 inputs; even = sum of w[i]*x[i] over the even inputs of the tile, odd = over the
 *     odd ones, each one f32 fma chain; acc = acc + (even + odd)
 *     without (avx512bf16): over pairs of inputs, acc = acc + the two products, in the order that the processor's
 *     VDPBF16PS has
 * checkasm holds it to an error budget only.  Promised: an output depends on its row of x, its row of w and the machine,
 * and on nothing else - not on n_rows, the place of the row, panel0, panel1.
 *
 * All NULL on levels below avx512bf16. */
struct tern_bf16_kernels {
    /* One band: rows 0..n_rows-1 (1..32) of k floats, x_stride floats apart.  out: 64-byte aligned. */
    void (*pack)(uint16_t *out, const float *x, size_t x_stride, int n_rows, int k);

    /* Small products, for attention.  m: [k][n] f32, rounded into tern_bf16_right(k, n) values, 64-byte aligned.  A
     * taller matrix is packed piece by piece, k rows (a multiple of 32) at a time, into out + tern_bf16_band(rows
     * before): `pairs` is the distance between pairs of panels, tern_bf16_band(all rows), or tern_bf16_band(k). */
    void (*pack_right)(uint16_t *out, size_t pairs, const float *m, int k, int n);

    /* y[r*y_stride + j] = x . m for rows r < n_rows, columns j < n; with shrink y*shrink[r] (rounded) + x . m.  x as
     * pack, m as pack_right leave them.  The chain above, from +0 or from y*shrink; nothing but its row of x and its
     * column of m matters for an output.  Only between begin and end, which enclose what one thread does in a row;
     * products of prompt rows stay outside. */
    void (*multiply)(float *y, size_t y_stride, const float *shrink, const uint16_t *x, int n_rows, const uint16_t *m,
                     int k, int n);
    void (*begin)(void);
    void (*end)(void);

    /* The softmax of attn.h for ONE query row on its way into `multiply`: s stays as it is, and the weights go to p,
     * rounded to bf16, where `pack` puts a row of 64*n_pages inputs (p: the first of the row in its band).  *l grows by
     * the sum of the rounded weights, in an order that t0, t1 and n_pages do not change.  exp2: |relative error| <=
     * 1e-4 before rounding; the return value as there. */
    float (*softmax)(uint16_t *p, const float *s, size_t stride, int n_pages, int t0, int t1, float *m, float *l);
};

static inline size_t tern_bf16_right(int k, int n)
{
    return ((size_t)n + 2 * TERN_PANEL - 1) / (2 * TERN_PANEL) * tern_bf16_band(k);
}

/* ---- products of prompt rows in a class of the machine's own ------------------------------------------------------- */

/* Prompt rows are packed once for all products that read them, and multiplied from there.  All NULL: prompt rows are in
 * the wide class.
 *
 * The int16 class (avx512).  A row of x has one scale = amax / 32767 (f32; of a row with an infinity or NaN it is NaN) and
 * codes q = x * (32767 / amax) rounded to nearest even, 0 where that quotient is not finite.  For each group of 32
 * (K16M, K16, G16: 16) inputs, ascending, starting from acc = +0:
 *     dot = sum (c - zero)*q over the group, isum = sum q (integers, exact; zero is 0 where the kind has none)
 *     acc = fma((float)dot, sw, acc);   kinds with a minimum: acc = fma(mw, (float)isum, acc)
 *     sw, mw as in `narrow`;            y = acc * scale at the end
 * Bit-equal on all levels that have it.  Float codes stay in the wide class.
 *
 * The bf16 class is that of struct tern_bf16_kernels. */
struct tern_prompt_kernels {
    /* One band: rows 0..n_rows-1 (1..32) of k floats, x_stride floats apart.  out: band(k) values, 64-byte aligned. */
    void (*pack)(uint16_t *out, const float *x, size_t x_stride, int n_rows, int k);

    /* y as in `wide`; x: bands of all n_rows, 64-byte aligned, band(w->k) values apart; scratch: TERN_PROMPT_SCRATCH
     * bytes, 64-byte aligned, private to the caller's thread.  An output depends on its row of x, its row of w and the
     * class alone - not on n_rows, the place of the row, panel0, panel1. */
    void (*product)(float *y, size_t y_stride, const uint16_t *x, int n_rows, const struct tern_packed *w, int panel0,
                    int panel1, void *scratch);

    size_t (*band)(int k);
    bool floats; /* takes float codes, too */
};

#define TERN_PROMPT_SCRATCH (1152 * 1024)

/* Packed rows of the int16 class: [32] f32 scales, then for each 32 inputs [32 rows][32] codes, inputs 1 and 2 of every
 * four exchanged, and [2 halves][32 rows] f32 sums of codes. */
#define TERN_I16_STEP (TERN_BAND * TERN_TILE_DEPTH + 4 * TERN_BAND) /* values for 32 inputs */
static inline size_t tern_i16_band(int k)
{
    return 2 * TERN_BAND + ((size_t)k + TERN_TILE_DEPTH - 1) / TERN_TILE_DEPTH * TERN_I16_STEP;
}

void tern_prompt_init_ref(struct tern_prompt_kernels *k); /* int16; for comparison, no level has it by itself */
void tern_prompt_init_avx512(struct tern_prompt_kernels *k);
void tern_prompt_init_amx(struct tern_prompt_kernels *k);
void tern_bf16_init_avx512bf16(struct tern_bf16_kernels *k);
void tern_bf16_init_amx(struct tern_bf16_kernels *k);

void tern_gemm_init_ref(struct tern_gemm_kernels *k);
void tern_gemm_init_avx2(struct tern_gemm_kernels *k);
void tern_gemm_init_avx512(struct tern_gemm_kernels *k);
void tern_gemm_init_neon(struct tern_gemm_kernels *k);

#endif
