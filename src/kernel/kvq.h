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
 *          dim % 32 == 16: then in each half [bits words][16 lanes], one set for the last 16 dims of both groups:
 *          items 0..15 are those of lane's token in the first group, items 16..31 of its token in the second
 *   values [2 halves of 32 tokens = sets][dim/16 groups of 16 dims][bits words][16 lanes]
 *   both sides: 64*dim*bits/8 bytes, 64-byte aligned; the kernels read nothing behind them
 *
 *   headers: u16[n_blocks][64], one per token and block of TERN_KVQ_BLOCK dims, 64-byte aligned (one block when
 *     dim <= 128; a last block may be short): bits 4..15 = f16 bits of the scale >> 3 (positive; so
 *     f = f16(header >> 4 << 3)); bits 0..3 are the start state of trellis codes, 0 for others.
 *     value = f * unit * entry; a scalar code's entry is entry[code] (8-bit codes are their own table).
 *
 * Trellis codes: the symbols s_0, s_1 .. of one token and block are a chain; with A = entry, entries are
 *
 *     4 bits: A[s_i] + B[s_i-1]
 *     3 bits: A[s_i] + B[s_i-1] + C[s_i-2]
 *     2 bits: A[4 s_i-1 + s_i] + B[4 s_i-3 + s_i-2]
 *
 *   and the start state says what stands before s_0:
 *     4 bits: s_-1;   3 bits: s_-1 in bits 0..2, s_-2 (0 or 1) in bit 3;
 *     2 bits: s_-1 in bits 0..1, s_-2 in bits 2..3, s_-3 = 0
 *   Chains run against memory order, so what stands before a vector of codes is the vector decoded next to it:
 *     keys: byte column 0, the lowest bytes of all words of the block from the last word in memory to the first;
 *       then columns 1, 2, 3.  At 3 bits the gathered codes of items 24..31 are a fourth word of each set.  Of a
 *       shared set, the first half of the words belongs to the tokens of the first group, the rest to the others.
 *       Inside a byte the low nibble comes first, at 2 bits the high pair.
 *     values: lane 0 of all groups of 16 dims of the block from the last group in memory to the first; then
 *       lanes 1 to 15.
 *
 * dim is a multiple of 16, at most 512.  Any bytes are a valid page: kernels never fault on codes or headers, though a
 * header of infinity or NaN, which encode never writes, makes results non-finite or arbitrary.
 *
 * Scheme constants come in struct tern_kvq_table: table entries are int8 in [-127, 127].  Trellis codes: every sum that
 * an entry can be lies in [-127, 127], and every single table entry and (3 bits) A + B in [-80, 80]. */
#ifndef TERN_KERNEL_KVQ_H
#define TERN_KERNEL_KVQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/fp16.h"

#define TERN_KVQ_BLOCK    128 /* dims that share one scale */
#define TERN_KVQ_MAX_DIM  512
#define TERN_KVQ_MAX_Q    16            /* query heads in one call */
#define TERN_KVQ_HEAD_MAX (0xF7Fu << 4) /* header of the largest finite scale, 65280 */
#define TERN_KVQ_TINY     0x1.0p-100f   /* blocks and weights below this count as zero */
#define TERN_KVQ_SCRATCH  (640 * 1024)  /* bytes that encode may ask for */

struct tern_kvq_table {
    int bits;         /* 8, 4, 3 or 2 */
    bool trellis;     /* 4, 3 or 2 bits: entries depend on the symbols before, through b and c */
    int n_prescale;   /* trellis: scales that encode tries, 1 or 2 */
    float unit;       /* value of table entry 1 at scale 1; 8 bits: 1/127, so that f is the largest magnitude */
    int8_t entry[16]; /* [2^bits], ascending, none 0; unused for 8 bits; trellis: table A, any order */
    int8_t b[16];     /* trellis: table B */
    int8_t c[16];     /* 3-bit trellis: table C, [8] */
};

static inline int tern_kvq_blocks(int dim)
{
    return (dim + TERN_KVQ_BLOCK - 1) / TERN_KVQ_BLOCK;
}

static inline float tern_kvq_scale(uint16_t head)
{
    return tern_f16_to_f32((uint16_t)(head >> 4 << 3));
}

/* Integer steps of the weights that `accum` multiplies with codes: one unsigned byte, but where codes carry eight bits
 * themselves 15 bits. */
static inline float tern_kvq_full(int bits)
{
    return bits == 8 ? 32767.0f : 255.0f;
}

/* Header of a positive scale: to f16, then to 7 mantissa bits, halves up.  Relative error at most 2^-8 + 2^-11 (two
 * roundings) in the normal range of f16, absolute 2^-22 + 2^-25 below it; saturates at 65280. */
static inline uint16_t tern_kvq_head_near(float f)
{
    uint32_t u = ((uint32_t)tern_f32_to_f16(f) + 4) >> 3 << 4;
    return (uint16_t)(u < TERN_KVQ_HEAD_MAX ? u : TERN_KVQ_HEAD_MAX);
}

/* Header of the smallest scale that is >= f, f finite and positive; saturates at 65280. */
static inline uint16_t tern_kvq_head_up(float f)
{
    uint32_t u;
    if (f >= 65280.0f)
        return TERN_KVQ_HEAD_MAX;
    if (f >= 0x1.0p-14f) { /* f32 cut to 7 mantissa bits, upwards, with the exponent's bias of f16 */
        u = ((tern_f32_bits(f) + 0xFFFFu) >> 16) - (112u << 7);
    } else { /* f16 subnormals: multiples of 2^-21 */
        float g = f * 0x1.0p21f;
        u = (uint32_t)g;
        u += (float)u < g;
    }
    return (uint16_t)(u << 4);
}

/* A query head ready for the codes.  The bytes of q stand in the order in which a page word yields its codes when it is
 * shifted right by one code at a time and every byte's lowest code is taken: 8 bits: as they are; 4 and 3 bits: each 8
 * dims as 0 2 4 6 1 3 5 7; 2 bits: each 16 dims as 0 4 8 12 1 5 9 13 2 6 10 14 3 7 11 15. */
struct tern_kvq_query {
    const int8_t *q;    /* [n_q][dim], 64-byte aligned, in [-127, 127] */
    const float *scale; /* [n_q][n_blocks], includes amax/127 and the table's unit */
    const int32_t *sum; /* [n_q][n_blocks] sum of q over the block */
};

struct tern_kvq_kernels {
    /* Rotation, orthonormal, in place: signs, then a Walsh-Hadamard transform H / sqrt(P) of every run of P dims, P the
     * largest power of two in dim, then where dim = m * P the m-point DCT-II across the runs (kernel/kvq_mix_impl.h).
     * dim a multiple of 16 up to 512 with m = 1, 3, 5 or 7.  Butterflies by stride 1, 2, 4 ... (a+b, a-b), then one
     * product with 1/sqrt(P) rounded to f32.  sign: [dim] +-1.  `inverse`: the transposed steps in reverse order.  x,
     * sign 64-byte aligned.  Bit-equal on all levels. */
    void (*rotate)(float *x, const float *sign, int dim, int inverse);

    /* Quantises n_q rotated (or raw, for 8-bit keys) query heads x[n_q][dim] for `score` with table `tab`, per block of
     * 128 dims: amax = max|x|; scale = (amax / 127) * unit; q = x * (127 / amax) rounded to nearest even, all 0 when
     * amax is below TERN_KVQ_TINY or not finite.  An infinity or NaN in x makes scale (and so every score of the
     * head) non-finite.  Any n_q.  Bit-equal on all levels. */
    void (*prep)(int8_t *q, float *scale, int32_t *sum, const float *x, const struct tern_kvq_table *tab, int dim,
                 int n_q);

    /* s[i*64 + t] = sum over blocks b of f_t,b * scale_i,b * (integer dot of the codes' entries with q_i over block b):
     * integer dots are exact, float part in block order, product f*scale rounded first, then fma from +0: bit-equal on
     * all levels.  All 64 tokens are scored.  s 64-byte aligned.  n_q 1..16.  next: a side of a page that
     * the caller reads after k, or NULL: a hint, any address will do. */
    void (*score)(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                  const struct tern_kvq_table *tab, int dim, int n_q, const void *next);

    /* o[i*dim + d] = o*shrink_i + sum over t of p[i*64+t] * f_t * unit * entry(code); p >= 0, [n_q][64]; shrink NULL
     * means 1; o, p 64-byte aligned; n_q 1..16; next: as for score.  Weights become integers over the page, per row
     * and block, with full = tern_kvq_full(bits) steps, 255 or for 8-bit codes 32767:
     *     w_t = p_t * f_t;  m = max(0, max w_t);  inv = m >= TERN_KVQ_TINY ? full / m : 0
     *     W_t = w_t * inv, at most full (NaN too) and at least 0, rounded to nearest even
     *     o   = fma((float)(sum of W_t * entry), (m * unit) / full, o * shrink)
     * The integer sum is exact.  So |error| <= m * unit * (sum of |entry|) * (.5 / full) + 2 ulp of each term.  In
     * energy the weights add to a page of normal data at most 64/12 * (m/full)^2 per dim, reached when one token has
     * nearly all the weight: 1.6 % of the error of t4 codes there, .02 % with equal weights (docs/kv-page.md); of 8-bit
     * codes 1e-4.  A row's result does not depend on n_q.  Bit-equal on all levels. */
    void (*accum)(float *o, const float *p, const uint8_t *v, const uint16_t *head, const float *shrink,
                  const struct tern_kvq_table *tab, int dim, int n_q, const void *next);

    /* Decodes a whole page for prompt rows: keys to out[dim][64], values to out[64][dim], exactly f * unit * entry with
     * (f*unit) rounded first.  out 64-byte aligned.  Bit-equal on all levels. */
    void (*decode_k)(float *out, const uint8_t *k, const uint16_t *head, const struct tern_kvq_table *tab, int dim);
    void (*decode_v)(float *out, const uint8_t *v, const uint16_t *head, const struct tern_kvq_table *tab, int dim);

    /* Encodes n rotated vectors x[n][dim] (0 <= n <= 64): codes[n][dim] (one byte each, symbol, or int8 for 8 bits) and
     * headers head[b*64 + t]; other headers are left alone.  x, codes 64-byte aligned.  `key`: keys or values.
     * scratch: TERN_KVQ_SCRATCH bytes, 64-byte aligned.  Per block of n_b dims:
     *     ss = sum y^2, r = sqrt(ss / n_b), z = y * (1 / r); symbol = number of k with z > mid_k, where
     *     mid_k = (0.5 * (entry_k + entry_k+1)) * unit
     *     keys (norm kept): f = sqrt(ss / ee) / unit;   values (least squares): f = (ye / ee) / unit
     *     with ye = sum y*e, ee = sum e^2 (exact); the header is tern_kvq_head_near(f)
     * ss and ye are f32 sums in the 16-lane fma order of vec.h rmsnorm.  A block whose ss is below TERN_KVQ_TINY or not
     * finite gets header 0 and the middle code 2^(bits-1).
     *
     * Trellis codes, with the factor k = 1 and, where n_prescale is 2, with one more: .92 if ye * (1 / r) of the first
     * path is above ee * (1.01 * unit), else 1.1:
     *     X_i = y * (((1 / r) * k) * (128 / unit)), to nearest even, kept in [-16256, 16256]; i along the chain
     *     An entry is u + w; w is its summand with the oldest symbol e (B, at 3 bits C).  The path taken has the
     *     least sum of h(X_i, u) + h(X_i, w) + u*w, where h(X, v) = -(((X - 64 v) * v + 64) >> 7).
     *     Step: the metric of a state (its last 1, 2 or 3 symbols) is the least of metric + h(X, w) + u*w over e,
     *     the smaller e in a tie, plus h(X, u).  Then the least metric is subtracted, and metrics above 12000
     *     become 12000, so that every sum fits 16 bits.  All metrics begin with 0, but only starts that a header
     *     can hold count.  The path ends in the state of least metric, the lower one (newest symbol on top) in a
     *     tie.
     *     f as above, but by the norm also where ye <= 0; ye is one f32 fma chain from +0, from the last of the
     *     chain to the first.  The k of the largest fu * (2 ye - fu * ee) is kept, the first in a tie, where
     *     fu = (scale of the header) * unit.
     *
     * 8 bits (`key` ignored): amax = max|y|; the header is tern_kvq_head_up(amax); code = y * (127 / f) rounded to
     * nearest even, kept in [-127, 127].  amax 0 or a non-finite y: header 0, codes 0.  Without saturation (amax <=
     * 65280) |error| <= f/254 * (1 + 2^-13), f <= amax * (1 + 2^-7) + 2^-21.
     *
     * Bit-equal on all levels. */
    void (*encode)(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab, int key, int dim,
                   int n, void *scratch);

    /* Puts codes[64][dim] (each below 2^bits) into page order. */
    void (*pack_k)(uint8_t *k, const uint8_t *codes, int bits, int dim);
    void (*pack_v)(uint8_t *v, const uint8_t *codes, int bits, int dim);
};

void tern_kvq_init_ref(struct tern_kvq_kernels *k);
void tern_kvq_init_avx2(struct tern_kvq_kernels *k);
void tern_kvq_init_avxvnni(struct tern_kvq_kernels *k);
void tern_kvq_init_avx512(struct tern_kvq_kernels *k);
void tern_kvq_init_neon(struct tern_kvq_kernels *k);

#endif
