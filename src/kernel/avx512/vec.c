#include <math.h>
#include "kernel/avx512/simd.h"
#include "kernel/vec.h"

/* ---- rmsnorm ---- */

/* Sum of squares by 16 lanes, then pairwise: the order is part of the contract.  Lanes without an element add +0, which
 * changes nothing. */
static float square_sum(const float *x, int n)
{
    __m512 s = _mm512_setzero_ps();
    for (int i = 0; i < n; i += 16) {
        __m512 a = load_part(x + i, n - i);
        s = _mm512_fmadd_ps(a, a, s);
    }
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

static void rmsnorm(float *y, const float *x, const float *w, int n, float eps)
{
    __m512 r = _mm512_set1_ps(1.0f / sqrtf(square_sum(x, n) / (float)n + eps));
    for (int i = 0; i < n; i += 16) {
        __m512 v = _mm512_mul_ps(load_part(x + i, n - i), r);
        if (w)
            v = _mm512_mul_ps(v, load_part(w + i, n - i));
        store_part(y + i, n - i, v);
    }
}

/* ---- sums and products ---- */

static void add(float *y, const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i += 16)
        store_part(y + i, n - i, _mm512_add_ps(load_part(a + i, n - i), load_part(b + i, n - i)));
}

static void scale(float *y, const float *x, float s, int n)
{
    __m512 v = _mm512_set1_ps(s);
    for (int i = 0; i < n; i += 16)
        store_part(y + i, n - i, _mm512_mul_ps(load_part(x + i, n - i), v));
}

/* ---- activations ---- */

static void silu_mul(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i += 16)
        store_part(y + i, n - i, silu_product(load_part(gate + i, n - i), load_part(up + i, n - i)));
}

static void gelu_mul(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i += 16)
        store_part(y + i, n - i, gelu_product(load_part(gate + i, n - i), load_part(up + i, n - i)));
}

static void sigmoid_mul(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i += 16) {
        __m512 t = _mm512_xor_ps(load_part(gate + i, n - i), _mm512_set1_ps(-0.0f));
        store_part(y + i, n - i, logistic_product(_mm512_set1_ps(1.0f), t, load_part(up + i, n - i)));
    }
}

static void softcap(float *y, const float *x, float cap, int n)
{
    __m512 c = _mm512_set1_ps(cap);
    for (int i = 0; i < n; i += 16)
        store_part(y + i, n - i, _mm512_mul_ps(c, tanh_vec(_mm512_div_ps(load_part(x + i, n - i), c))));
}

/* ---- rope ---- */

static void rope_halves(float *x, const float *cos, const float *sin, int half)
{
    for (int i = 0; i < half; i += 16) {
        int n = half - i;
        __m512 a = load_part(x + i, n), b = load_part(x + half + i, n);
        __m512 c = load_part(cos + i, n), s = load_part(sin + i, n);
        store_part(x + i, n, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        store_part(x + half + i, n, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
}

/* Eight values, each twice: the two members of a pair share an angle. */
static __m512 load_twice(const float *p, int n)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(twice, load_part(p, n < 8 ? n : 8));
}

static void rope_pairs(float *x, const float *cos, const float *sin, int half)
{
    for (int i = 0; i < half; i += 8) {
        int n = half - i;
        __m512 v = load_part(x + 2 * i, 2 * n), swapped = _mm512_permute_ps(v, _MM_SHUFFLE(2, 3, 0, 1));
        __m512 t = _mm512_mul_ps(swapped, load_twice(sin + i, n));
        /* Even lanes subtract b*s, odd lanes add a*s. */
        store_part(x + 2 * i, 2 * n, _mm512_fmaddsub_ps(v, load_twice(cos + i, n), t));
    }
}

static void rope(float *x, const float *cos, const float *sin, int n_rot, int interleaved)
{
    if (interleaved)
        rope_pairs(x, cos, sin, n_rot / 2);
    else
        rope_halves(x, cos, sin, n_rot / 2);
}

void tern_vec_init_avx512(struct tern_vec_kernels *k)
{
    k->rmsnorm = rmsnorm;
    k->add = add;
    k->scale = scale;
    k->silu_mul = silu_mul;
    k->gelu_mul = gelu_mul;
    k->sigmoid_mul = sigmoid_mul;
    k->rope = rope;
    k->softcap = softcap;
}
