/* kernel/attn16.h - attention of prompt rows in 16-bit integers, on pages of codes (kvq.h).
 *
 * The entries of a page are bytes, so the dots of queries in 16 bits with the codes as they are, and of weights in 16
 * bits with the values as they are, are exact integers.  What is a float around them has one order, so every function
 * is bit-equal on all levels that have it, plain C included, and computes each query row on its own.
 *
 * Pages are met in groups of up to TERN_SOFTMAX_PAGES that the caller aligns.  Scores are in log2 units, and (m, l, o)
 * is the running softmax of a row, as in attn.h.
 *
 * Item order: two items that are multiplied together, dims of a query or tokens of weights, stand side by side, and a
 * page word yields items by fours of its bytes.  So each run of 4*n items, n codes in a byte (8 bits: 1, 4 and 3: 2, 2
 * bits: 4), goes as 0, 2n, 1, 2n+1, 2, 2n+2 ... 2n-1, 4n-1. */
#ifndef TERN_KERNEL_ATTN16_H
#define TERN_KERNEL_ATTN16_H

#include "kernel/attn.h"
#include "kernel/kvq.h"

#define TERN_ATTN16_FULL  32767.0f /* of 16-bit queries and weights */
#define TERN_ATTN16_LEAST -100.0f  /* exponents below it count as it: products with any scale stay normal numbers */

/* dim: a multiple of 16 up to 512.  Pointers 64-byte aligned, those to rows of queries, scores, weights and sums by
 * their first; blocks are those of kvq.h.  All NULL on levels that compute such attention in f32. */
struct tern_attn16_kernels {
    /* n_q query rows x[n_q][dim] to q[n_q][dim] in item order and scale[n_q][n_blocks], per block: amax = max|x|;
     * scale = (amax / 32767) * unit; q = x * (32767 / amax) rounded to nearest even, all 0 when amax is below
     * TERN_KVQ_TINY or not finite.  An infinity or NaN in x makes scale non-finite. */
    void (*pack)(int16_t *q, float *scale, const float *x, const struct tern_kvq_table *tab, int dim, int n_q);

    /* A page of keys: entries, pairs of dims in item order as [4 groups of 16 tokens][dim/2][16][2], and the scales of
     * its headers, f[n_blocks][64]. */
    void (*expand_k)(int16_t *out, float *f, const uint8_t *k, const uint16_t *head, const struct tern_kvq_table *tab,
                     int dim);
    /* Page `page` of a group of n_pages of values: entries, pairs of tokens in item order as
     * [dim/16][n_pages*32][16 dims][2], scales f[n_blocks][n_pages*64].  out, f: of the group. */
    void (*expand_v)(int16_t *out, float *f, const uint8_t *v, const uint16_t *head, const struct tern_kvq_table *tab,
                     int dim, int page, int n_pages);

    /* s[i*64 + t] = chain over the blocks, ascending from +0: s = fma((float)dot, f_t * scale_i, s), the product
     * rounded first.  All 64 tokens. */
    void (*score)(float *s, const int16_t *q, const float *scale, const int16_t *k, const float *f, int dim, int n_q);

    /* 1 to TERN_SOFTMAX_PAGES pages of the running softmax for ONE query row; the scores of page j are s[j*stride ..
     * +64), and tokens [t0, t1) of the pages count.  s is left with anything.
     *     m' = max(m, max s);  p = exp2(max(s - m', TERN_ATTN16_LEAST)) inside [t0, t1), exactly 0 outside (whatever
     *     was there, NaN included);  shrink = exp2(m - m') as attn.h has it, returned;  l = l * shrink + sum of p, by
     *     16 lanes (lane t mod 16, ascending over all pages), lanes pairwise as in vec.h rmsnorm;
     *     per block: x = p * f_t;  top = max(0, max x);  inv = top >= TERN_KVQ_TINY ? 32767 / top : 0
     *     w = x * inv rounded to nearest even, in item order;  unit = (top * tab->unit) / 32767
     * w[n_blocks][n_pages*64], unit[n_blocks]; f as expand_v leaves it; tab: of the values.  exp2 of p: |relative
     * error| <= 4e-6, and 1 at 0.  An empty range, or one with nothing above -inf: returns 1, w and unit 0.  A NaN
     * among the scores makes *l NaN and w arbitrary.  s: stride a multiple of 16. */
    float (*softmax)(int16_t *w, float *unit, float *s, size_t stride, const float *f, const struct tern_kvq_table *tab,
                     int dim, int n_pages, int t0, int t1, float *m, float *l);

    /* o[i*dim + d] = fma((float)dot, unit_i, o * shrink_i), the dot over all tokens of the group in the block of d;
     * w[n_q][n_blocks][n_pages*64], unit[n_q][n_blocks]; v as expand_v leaves it. */
    void (*accum)(float *o, const int16_t *w, const float *unit, const float *shrink, const int16_t *v, int dim,
                  int n_pages, int n_q);
};

/* The largest integers that come of it fit 32 bits. */
_Static_assert((int64_t)TERN_KVQ_BLOCK * 128 * 32767 <= INT32_MAX &&
                   (int64_t)TERN_SOFTMAX_PAGES * TERN_PAGE * 128 * 32767 <= INT32_MAX,
               "exact sums");

/* Item that stands at place i. */
static inline int tern_attn16_item(int i, int bits)
{
    const int run = bits == 8 ? 4 : bits == 2 ? 16 : 8;
    return i - i % run + i % run / 2 + i % 2 * run / 2;
}

void tern_attn16_init_ref(struct tern_attn16_kernels *k); /* for comparison, no level has it by itself */
void tern_attn16_init_avx2(struct tern_attn16_kernels *k);
void tern_attn16_init_avxvnni(struct tern_attn16_kernels *k);
void tern_attn16_init_avx512(struct tern_attn16_kernels *k);

#endif
