/* kernel/vec.h - elementwise work on rows of activations.  Rows are 64-byte aligned; lengths are arbitrary. */
#ifndef TERN_KERNEL_VEC_H
#define TERN_KERNEL_VEC_H

#include <stdint.h>

struct tern_vec_kernels {
    /* y = x / sqrt(mean(x^2) + eps) * w  (w NULL: no weight).  y may be x.  Sum of squares in f32 by 16 lanes (lane
     * i takes elements i mod 16, fma, ascending), lanes added pairwise (0+8, 1+9 ...; 0+4 ...; 0+2; 0+1): bit-equal on
     * all levels.  The mean is sum / (float)n; 1/sqrt is 1.0f / sqrtf(mean + eps); then one product with x, then one
     * with w.  A sum that overflows f32 gives zeros. */
    void (*rmsnorm)(float *y, const float *x, const float *w, int n, float eps);

    /* y = a + b; y may be a or b. */
    void (*add)(float *y, const float *a, const float *b, int n);

    /* y = x * s; y may be x. */
    void (*scale)(float *y, const float *x, float s, int n);

    /* y = gate/(1+exp(-gate)) * up.  y may be gate or up.  |error| <= 4e-7 * |result| + 1e-30; NaN in, NaN out;
     * gate = -inf gives -0 or NaN free 0.  An element's result never depends on its position. */
    void (*silu_mul)(float *y, const float *gate, const float *up, int n);

    /* y = 0.5*gate*(1+tanh(sqrt(2/pi)*(gate+0.044715*gate^3))) * up, same budget plus 3e-7 * |gate * up|. */
    void (*gelu_mul)(float *y, const float *gate, const float *up, int n);

    /* y = 1/(1+exp(-gate)) * up, same budget; gate = -inf gives 0. */
    void (*sigmoid_mul)(float *y, const float *gate, const float *up, int n);

    /* Rotates one head in place: pairs (x[i], x[i+n_rot/2]) or, if interleaved, (x[2i], x[2i+1]), i < n_rot/2:
     * (a, b) -> (a*c - b*s, b*c + a*s), each as one product and one fma: fma(a, c, -(b*s)), fma(b, c, a*s).
     * cos, sin: [n_rot/2].  Elements from n_rot on are untouched.  Bit-equal on all levels. */
    void (*rope)(float *x, const float *cos, const float *sin, int n_rot, int interleaved);

    /* y = cap * tanh(x / cap), |error| <= 1e-6 * cap.  y may be x. */
    void (*softcap)(float *y, const float *x, float cap, int n);
};

void tern_vec_init_ref(struct tern_vec_kernels *k);
void tern_vec_init_avx2(struct tern_vec_kernels *k);
void tern_vec_init_avx512(struct tern_vec_kernels *k);
void tern_vec_init_neon(struct tern_vec_kernels *k);

#endif
