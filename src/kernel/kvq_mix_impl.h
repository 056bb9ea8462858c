/* kernel/kvq_mix_impl.h - the odd factor of a rotation.
 *
 * A head of m * P dims, P a power of two and m = 3, 5 or 7, is rotated by Walsh-Hadamard transforms of its m runs of P
 * dims and then by the m-point DCT-II (orthonormal) across the runs: dim c of every run takes part in one.  Included by
 * the rotation of each level, so that all compile the same operations: one product, then fma in ascending order. */
#ifndef TERN_KERNEL_KVQ_MIX_IMPL_H
#define TERN_KERNEL_KVQ_MIX_IMPL_H

#include <math.h>

/* [frequency][run] */
static const float kvq_dct3[9] = {
    0.577350269f,  0.577350269f, 0.577350269f,  0.707106781f, 4.99959962e-17f,
    -0.707106781f, 0.40824829f,  -0.816496581f, 0.40824829f,
};
static const float kvq_dct5[25] = {
    0.447213595f,    0.447213595f,  0.447213595f,  0.447213595f,     0.447213595f,  0.601500955f,  0.371748034f,
    3.87267321e-17f, -0.371748034f, -0.601500955f, 0.511667274f,     -0.195439508f, -0.632455532f, -0.195439508f,
    0.511667274f,    0.371748034f,  -0.601500955f, -1.16180196e-16f, 0.601500955f,  -0.371748034f, 0.195439508f,
    -0.511667274f,   0.632455532f,  -0.511667274f, 0.195439508f,
};
static const float kvq_dct7[49] = {
    0.377964473f, 0.377964473f,  0.377964473f,  0.377964473f,     0.377964473f,  0.377964473f,  0.377964473f,
    0.521120889f, 0.417906506f,  0.231920614f,  3.27300624e-17f,  -0.231920614f, -0.417906506f, -0.521120889f,
    0.481588117f, 0.118942442f,  -0.333269318f, -0.534522484f,    -0.333269318f, 0.118942442f,  0.481588117f,
    0.417906506f, -0.231920614f, -0.521120889f, -9.81901873e-17f, 0.521120889f,  0.231920614f,  -0.417906506f,
    0.333269318f, -0.481588117f, -0.118942442f, 0.534522484f,     -0.118942442f, -0.481588117f, 0.333269318f,
    0.231920614f, -0.521120889f, 0.417906506f,  1.63650312e-16f,  -0.417906506f, 0.521120889f,  -0.231920614f,
    0.118942442f, -0.333269318f, 0.481588117f,  -0.534522484f,    0.481588117f,  -0.333269318f, 0.118942442f,
};

static inline const float *kvq_dct(int m)
{
    return m == 3 ? kvq_dct3 : m == 5 ? kvq_dct5 : kvq_dct7;
}

/* Dims of one run: the largest power of two in dim. */
static inline int kvq_run(int dim)
{
    return dim & -dim;
}

/* 1/sqrt of a run's dims, a power of two from 16 to 512, without a root and a division. */
static inline float kvq_run_norm(int dim)
{
    return dim == 16    ? 0.25f
           : dim == 32  ? 0.176776695f
           : dim == 64  ? 0.125f
           : dim == 128 ? 0.0883883476f
           : dim == 256 ? 0.0625f
                        : 0.0441941738f;
}

/* In place; inverse: the transposed matrix. */
static inline void kvq_mix(float *x, int dim, int inverse)
{
    const int p = kvq_run(dim), m = dim / p;
    const float *dct = kvq_dct(m);
    for (int c = 0; c < p; c += 8) {
        float in[7][8], out[8];
        for (int r = 0; r < m; r++)
            for (int j = 0; j < 8; j++)
                in[r][j] = x[r * p + c + j];
        for (int f = 0; f < m; f++) {
            const float *w = inverse ? dct + f : dct + f * m;
            const int step = inverse ? m : 1;
            for (int j = 0; j < 8; j++)
                out[j] = in[0][j] * w[0];
            for (int r = 1; r < m; r++)
                for (int j = 0; j < 8; j++)
                    out[j] = fmaf(in[r][j], w[r * step], out[j]);
            for (int j = 0; j < 8; j++)
                x[f * p + c + j] = out[j];
        }
    }
}

/* The whole rotation; rotate_run is the level's own transform of one run, signs included. */
static inline void kvq_rotate(float *x, const float *sign, int dim, int inverse,
                              void (*rotate_run)(float *x, const float *sign, int dim, int inverse))
{
    const int p = kvq_run(dim);
    if (inverse && p < dim)
        kvq_mix(x, dim, inverse);
    for (int i = 0; i < dim; i += p)
        rotate_run(x + i, sign + i, p, inverse);
    if (!inverse && p < dim)
        kvq_mix(x, dim, inverse);
}

#endif
