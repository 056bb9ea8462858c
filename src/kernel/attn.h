/* kernel/attn.h - attention inside one page of 64 tokens, on float keys and values.
 *
 * A page holds keys as [dim][64 tokens] and values as [64 tokens][dim], so that a vector is 16 tokens (keys) or 16
 * dims (values) and no horizontal sum is needed.  Raw pages (f16 or f32) are attended directly; coded pages are either
 * attended on their codes (kernel/kvq.h, decode rows) or decoded into a small f32 scratch once for many prompt rows.
 *
 * Scores are in log2 units: the caller folds softmax_scale * log2(e) into q.  The running softmax of one query row is
 * (m, l, o[dim]); pages are visited in ascending order.  Every function computes each query row on its own: the result
 * for a row does not depend on n_q or on the row's place, bit for bit. */
#ifndef TERN_KERNEL_ATTN_H
#define TERN_KERNEL_ATTN_H

#include <stddef.h>
#include <stdint.h>

#define TERN_PAGE          64 /* tokens in a page */
#define TERN_SOFTMAX_PAGES 4  /* pages in one call of softmax */

struct tern_attn_kernels {
    /* s[i*64 + t] = sum over d of q[i*dim + d] * k[d*64 + t], one fma chain, d ascending from +0, all 64 tokens.
     * q: [n_q][dim] f32; k: [dim][64], 64-byte aligned; s: [n_q][64], 64-byte aligned.  dim a multiple of 8.
     * Bit-equal on all levels, and score_f16 equals score_f32 on converted keys.  next: what the caller reads after k,
     * or NULL: a hint, asked for towards the end of k; any address will do. */
    void (*score_f32)(float *s, const float *q, const float *k, int dim, int n_q);
    void (*score_f16)(float *s, const float *q, const uint16_t *k, int dim, int n_q, const void *next);

    /* 1 to TERN_SOFTMAX_PAGES pages of the running softmax for ONE query row; the scores of page j are s[j*stride ..
     * +64).  Tokens [t0, t1) of the pages count, 0 <= t0 <= t1 <= 64 * n_pages.
     * Out: s = exp2(s - m_new) inside [t0, t1), exactly 0 outside (whatever was there, NaN included).  *m becomes
     * max(*m, max s); the return value is exp2(m_old - m_new), the factor by which o (and *l, done here) shrink:
     * exactly 1 when m did not change, 0 when m_old was -inf.  *l += sum of the new s: each page summed by 16 lanes
     * (lane t mod 16, ascending), the lanes of the pages added in ascending order, then lanes pairwise as in vec.h
     * rmsnorm.  Empty range: returns 1, s all 0. exp2: |relative error| <= 3e-7 for arguments in [-126, 0], 0 below
     * -150; the same value for the same argument on every lane.  s 64-byte aligned, stride a multiple of 16. */
    float (*softmax)(float *s, size_t stride, int n_pages, int t0, int t1, float *m, float *l);

    /* o[i*dim + d] = fma chain over t ascending: o = fma(p[i*64 + t], v[t*dim + d], o), t < n_tok, starting from
     * o*shrink[i] (rounded).  shrink NULL means 1.  v: [n_tok][dim]; p: [n_q][64].  dim a multiple of 8.  Bit-equal on
     * all levels, accum_f16 equals accum_f32 on converted values.  Zero p with finite v leaves o unchanged.  next: as
     * for score_f16. */
    void (*accum_f32)(float *o, const float *p, const float *v, const float *shrink, int dim, int n_tok, int n_q);
    void (*accum_f16)(float *o, const float *p, const uint16_t *v, const float *shrink, int dim, int n_tok, int n_q,
                      const void *next);

    /* n values, 64-byte aligned, n a multiple of 16; exact / round to nearest even. */
    void (*f16_to_f32)(float *y, const uint16_t *x, size_t n);
    void (*f32_to_f16)(uint16_t *y, const float *x, size_t n);
};

void tern_attn_init_ref(struct tern_attn_kernels *k);
void tern_attn_init_avx2(struct tern_attn_kernels *k);
void tern_attn_init_avx512(struct tern_attn_kernels *k);
void tern_attn_init_neon(struct tern_attn_kernels *k);

#endif
