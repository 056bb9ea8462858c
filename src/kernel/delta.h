/* kernel/delta.h - the gated delta rule: a state that every token reads, decays and writes, in place of keys and
 * values.
 *
 * A head's state is a matrix [dk][dv].  It lies in blocks of TERN_DELTA_COLS columns, [dv / 16][dk][16], because a
 * column never meets another: a block stays in the first cache while many tokens pass over it, and blocks are what
 * threads divide. */
#ifndef TERN_KERNEL_DELTA_H
#define TERN_KERNEL_DELTA_H

#include <stddef.h>

#define TERN_DELTA_COLS  16
#define TERN_DELTA_WIDTH 8 /* longest convolution */

/* One head's tokens, in order. */
struct tern_delta_rows {
    int n_rows, dk;
    const float *q, *k, *v; /* row r at + r * stride: [dk], [dk], [16]; v and stride 64-byte aligned */
    size_t stride;
    const float *gate; /* row r at + r * gate_stride: decay */
    const float *beta; /* likewise */
    size_t gate_stride;
    float *out; /* row r at + r * out_stride: [16], 64-byte aligned */
    size_t out_stride;
};

struct tern_delta_kernels {
    /* For each row, s [dk][16] (64-byte aligned), every column by itself:
     *   s *= decay;  d = beta * (v - k^T s);  s += k d;  out = q^T s
     * as  t = s[i] * decay, m[i % 4] = fma(k[i], t, m[i % 4]), i ascending from m = 0;
     *     d = beta * (v - ((m[0] + m[2]) + (m[1] + m[3])));
     *     s[i] = fma(k[i], d, t), o[i % 4] = fma(q[i], s[i], o[i % 4]), out = (o[0] + o[2]) + (o[1] + o[3]).
     * Bit-equal on all levels.  dk is a multiple of 4. */
    void (*scan)(float *s, const struct tern_delta_rows *r);

    /* y[c] = silu(sum of w[j * w_stride + c] * x[j][c], j < width), c < n: one row of a causal convolution, x[width-1]
     * being its own input and y perhaps the same.  The sum is one product and then fma, j ascending; silu as
     * vec.silu_mul with up = 1: |error| <= 4e-7 * |result| + 1e-30 beside that of the sum. */
    void (*conv)(float *y, const float *const *x, const float *w, size_t w_stride, int width, int n);
};

void tern_delta_init_ref(struct tern_delta_kernels *k);
void tern_delta_init_avx2(struct tern_delta_kernels *k);
void tern_delta_init_avx512(struct tern_delta_kernels *k);
void tern_delta_init_neon(struct tern_delta_kernels *k);

#endif
