/* kernel/kvq.h - attention on the codes of one page: 64 tokens of one KV head, never expanded.
 *
 * One page order for every instruction set and for GPUs.  Contracted items (dims for keys, tokens for values) come in
 * sets of 32; lanes (tokens for keys, dims for values) in groups of 16.  A set of one lane is `bits` 32-bit words; 64
 * consecutive bytes are one word of 16 consecutive lanes: one AVX-512 vector, "lane = token" (keys), "lane = dim"
 * (values).
 *
 *   item i (0..31) of a set lies in
 *     8 bits: word i/4, byte i%4                      (signed)
 *     4 bits: word i/8, nibble i%8
 *     3 bits: i < 24: word i/8, low three bits of nibble i%8;   i >= 24: bit b of the code is bit 3 of nibble i-24 of
 *             word b (three spare bits of three words carry eight more codes)
 *     2 bits: word i/16, bits 2*(i%16) and up
 *
 *   keys   [2 halves of 32 tokens][dim/32 sets][2 groups of 16 tokens][bits words][16 lanes]
 *   values [2 halves of 32 tokens = sets][dim/16 groups of 16 dims][bits words][16 lanes]
 *   both sides: 64*dim*bits/8 bytes, 64-byte aligned, followed by at least 64 readable bytes
 *
 *   headers: u16[n_blocks][64], one per token and block of TERN_KVQ_BLOCK dims (one block when dim <= 128):
 *     bits 4..15 = f16 bits of the scale >> 3 (positive; so f = f16(header >> 4 << 3)); bits 0..3 are the start state
 * of trellis codes, 0 here.  value = f * unit * table[code], where 8-bit codes are their own table.
 *
 * Scheme constants come in struct tern_kvq_table: table entries are int8 in [-127, 127]. */
#ifndef TERN_KERNEL_KVQ_H
#define TERN_KERNEL_KVQ_H

#include <stddef.h>
#include <stdint.h>

#define TERN_KVQ_BLOCK   128 /* dims that share one scale */
#define TERN_KVQ_MAX_DIM 512

struct tern_kvq_table {
    int bits;         /* 8, 4, 3 or 2 */
    float unit;       /* value of table entry 1 at scale 1 */
    int8_t entry[16]; /* [2^bits], unused for 8 bits */
};

/* A query head ready for the codes: int8, quantised per block of 128 dims (amax/127), dims in item order. */
struct tern_kvq_query {
    const int8_t *q;    /* [n_q][dim], 64-byte aligned, permuted by prep */
    const float *scale; /* [n_q][n_blocks], includes amax/127 and the table's unit */
    const int32_t *sum; /* [n_q][n_blocks] sum of q over the block */
};

struct tern_kvq_kernels {
    /* Walsh-Hadamard transform with signs: y = H (x * sign) / sqrt(dim), in place; dim a power of two, 32..512.
     * Butterflies by stride 1, 2, 4 ... (a+b, a-b), then one product with 1/sqrt(dim) rounded to f32.  sign: [dim] +-1.
     * `inverse` first transforms and scales, then multiplies by sign.  Bit-equal on all levels. */
    void (*rotate)(float *x, const float *sign, int dim, int inverse);

    /* Quantises n_q rotated (or raw, for 8-bit keys) query heads for `score` with a table of `bits` bits. */
    void (*prep)(int8_t *q, float *scale, int32_t *sum, const float *x, const struct tern_kvq_table *tab, int dim,
                 int n_q);

    /* s[i*64 + t] = sum over blocks b of f_t,b * scale_i,b * (integer dot of the codes' entries with q_i over block b):
     * integer dots are exact, float part in block order, product f*scale rounded first, then fma from +0: bit-equal on
     * all levels.  All 64 tokens are scored.  n_q 1..16. */
    void (*score)(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                  const struct tern_kvq_table *tab, int dim, int n_q);

    /* o[i*dim + d] = o*shrink_i + sum over t of p[i*64+t] * f_t * unit * entry(code).  Per row i and block: w_t =
     * p_t*f_t; weights are quantised to integers over the page (largest w -> full range); `budget` below; o, p as in
     * attn.h. |error| <= 1/250 * max_t(w_t) * unit * sqrt(sum of entries^2 over the tokens) per element, typically a
     * tenth. Rows with all p = 0 only shrink.  Equal results for any n_q; levels are bit-equal. */
    void (*accum)(float *o, const float *p, const uint8_t *v, const uint16_t *head, const float *shrink,
                  const struct tern_kvq_table *tab, int dim, int n_q);

    /* Decodes a whole page for prompt rows: keys to out[dim][64], values to out[64][dim], exactly f * unit * entry with
     * (f*unit) rounded first.  Bit-equal on all levels. */
    void (*decode_k)(float *out, const uint8_t *k, const uint16_t *head, const struct tern_kvq_table *tab, int dim);
    void (*decode_v)(float *out, const uint8_t *v, const uint16_t *head, const struct tern_kvq_table *tab, int dim);

    /* Encodes n rotated vectors x[n][dim] (n <= 64): codes[n][dim] (one byte each, symbol, or int8 for 8 bits) and
     * headers head[b*64 + t].  Per block: rms r (f32, 16-lane order of vec.h), nearest entry by midpoints of y/r, then
     * the scale: `matched` (keys: |y|/|entries|) or least squares (values: <y,e>/<e,e>), rounded to the 12-bit header.
     * A zero or non-finite block gets header 0 and the middle code.  Bit-equal on all levels. */
    void (*encode)(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab, int matched,
                   int dim, int n);

    /* Puts codes[64][dim] into page order. */
    void (*pack_k)(uint8_t *k, const uint8_t *codes, int bits, int dim);
    void (*pack_v)(uint8_t *v, const uint8_t *codes, int bits, int dim);
};

void tern_kvq_init_ref(struct tern_kvq_kernels *k);
void tern_kvq_init_avx2(struct tern_kvq_kernels *k);
void tern_kvq_init_avx512(struct tern_kvq_kernels *k);

#endif
