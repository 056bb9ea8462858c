/* kernel/prompt.h - prompt rows in the arithmetic class that the machine is fastest in (gemm.h has the list). */
#ifndef TERN_KERNEL_PROMPT_H
#define TERN_KERNEL_PROMPT_H

#include "kernel/gemm.h"

#define TERN_TILE_ROWS  16  /* rows of a tile */
#define TERN_TILE_DEPTH 32  /* inputs of a tile */
#define TERN_TILE       512 /* bf16 values of a tile */
#define TERN_BAND       32  /* rows of activations that are packed together: two tiles */

/* ---- products of prompt rows in a class of the machine's own ----------------------------------------------------- */

/* Prompt rows are packed once for all products that read them, and multiplied from there.  All NULL: prompt rows are in
 * the wide class.
 *
 * The int16 class (avx2, avxvnni, avx512).  A row of x has one scale = amax / 32767 (f32; of a row with an infinity or
 * NaN it is NaN) and codes q = x * (32767 / amax) rounded to nearest even, 0 where that quotient is not finite.  For
 * each group of 32 (K16M, K16, G16: 16) inputs, ascending, starting from acc = +0: dot = sum (c - zero)*q over the
 * group, isum = sum q (integers, exact; zero is 0 where the kind has none) acc = fma((float)dot, sw, acc);   kinds with
 * a minimum: acc = fma(mw, (float)isum, acc) sw, mw as in `narrow`;            y = acc * scale at the end Bit-equal on
 * all levels that have it.  Float codes stay in the wide class.
 *
 * The bf16 class is that of struct tern_bf16_kernels.
 *
 * The int8 class, which has a table of its own on every level: `quantize` and `narrow` of gemm.h, bit for bit.  What a
 * level does not have is made of its narrow kernels (prompt8.c).  Float codes stay in the wide class. */
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
    int panels;  /* that go together: ranges of panels are best cut at multiples of it */

    /* What `pack` makes of act(x . gate) * (x . up), the inputs [16*panel0, 16*panel1) of its bands: product, then
     * silu_mul or gelu_mul of vec.h at the level in use, then pack, bit for bit, without rows of floats in between.
     * gate, up: of one shape, n a multiple of 32; panel0, panel1: even.  x, scratch, and what a result depends on: as
     * in product.  NULL: this class has no such kernel. */
    void (*gated)(uint16_t *out, const uint16_t *x, int n_rows, const struct tern_packed *gate,
                  const struct tern_packed *up, bool gelu, int panel0, int panel1, void *scratch);
};

#define TERN_PROMPT_SCRATCH (576 * 1024)

/* Packed rows of the int16 class: [32] f32 scales, then for each 32 inputs [32 rows][32] codes, inputs 1 and 2 of every
 * four exchanged, and [2 halves][32 rows] f32 sums of codes. */
#define TERN_I16_STEP (TERN_BAND * TERN_TILE_DEPTH + 4 * TERN_BAND) /* values for 32 inputs */
static inline size_t tern_i16_band(int k)
{
    return 2 * TERN_BAND + ((size_t)k + TERN_TILE_DEPTH - 1) / TERN_TILE_DEPTH * TERN_I16_STEP;
}

void tern_prompt_init_ref(struct tern_prompt_kernels *k); /* int16; for comparison, no level has it by itself */
void tern_prompt_init_avx2(struct tern_prompt_kernels *k);
void tern_prompt_init_avxvnni(struct tern_prompt_kernels *k);
void tern_prompt_init_avx512(struct tern_prompt_kernels *k);
void tern_prompt_init_amx(struct tern_prompt_kernels *k);
void tern_prompt8_init(struct tern_prompt_kernels *k); /* int8, of the narrow kernels in use */
void tern_prompt8_init_avx2(struct tern_prompt_kernels *k);
void tern_prompt8_init_avxvnni(struct tern_prompt_kernels *k);
void tern_prompt8_init_avx512(struct tern_prompt_kernels *k);

/* ---- prompt rows in bf16 ----------------------------------------------------------------------------------------- */

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
 * checkasm holds it to an error budget only.  Promised: an output depends on its row of x, its row of w and the
 * machine, and on nothing else - not on n_rows, the place of the row, panel0, panel1.
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

    /* Scores of a band: s[j*stride + 64*r + t] = x . keys of page j, for rows r < n_rows, at most 32, pages j < n_pages
     * and tokens t < 64, each as `multiply` would have it, bit for bit.  keys: [k][64] of a page as pack_right leaves
     * them, pages tern_bf16_right(k, 64) values apart. */
    void (*score)(float *s, size_t stride, const uint16_t *x, int n_rows, const uint16_t *keys, int k, int n_pages);

    /* The softmax of attn.h for rows r < n_rows, at most 32, of a band on its way into `multiply`: s stays as it is,
     * row r at s + 64*r, and the weights go to p + 32*r, rounded to bf16, where `pack` puts a row of 64*n_pages inputs
     * (p: the first row's place in its band).  l[r] grows by the sum of the rounded weights, in an order that t0, t1
     * and n_pages do not change.  exp2: |relative error| <= 1e-4 before rounding; shrink[r]: what softmax of attn.h
     * returns.  A row's results depend on nothing but itself. */
    void (*softmax)(uint16_t *p, const float *s, size_t stride, int n_pages, int n_rows, const int *t0, const int *t1,
                    float *m, float *l, float *shrink);
};

static inline size_t tern_bf16_right(int k, int n)
{
    return ((size_t)n + 2 * TERN_PANEL - 1) / (2 * TERN_PANEL) * tern_bf16_band(k);
}

void tern_bf16_init_avx512bf16(struct tern_bf16_kernels *k);
void tern_bf16_init_amx(struct tern_bf16_kernels *k);

#endif
