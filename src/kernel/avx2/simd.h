/* kernel/avx2/simd.h - 256-bit helpers for elementwise kernels: partial loads, the exponential, the logistic product.
 *
 * Partial loads and stores take the number of elements that exist (a negative or zero count touches nothing), so that
 * the last elements of a row go through the same arithmetic as all others. */
#ifndef TERN_AVX2_SIMD_H
#define TERN_AVX2_SIMD_H

#include <immintrin.h>

static inline __m256i first_lanes(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline __m256 load_part(const float *p, int n)
{
    return n >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, first_lanes(n));
}

static inline void store_part(float *p, int n, __m256 v)
{
    if (n >= 8)
        _mm256_storeu_ps(p, v);
    else
        _mm256_maskstore_ps(p, first_lanes(n), v);
}

/* 2^n for n in [-126, 127]. */
static inline __m256 power_of_two(__m256i n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* e^t as mantissa * 2^*n with the mantissa in about [0.7, 1.42], for t in [-87, 170]; about one unit in the last place.
 * t is reduced by multiples of ln 2 in two steps; what remains is at most 0.35, where the power series to the seventh
 * order is accurate to 1e-8.  NaN comes back as mantissa NaN with an arbitrary n. */
static inline __m256 exp_parts(__m256 t, __m256i *n)
{
    const __m256 log2e = _mm256_set1_ps(1.44269504f);
    const __m256 ln2_high = _mm256_set1_ps(0.693147182f), ln2_low = _mm256_set1_ps(-1.90465430e-9f);
    *n = _mm256_cvtps_epi32(_mm256_mul_ps(t, log2e));
    __m256 steps = _mm256_cvtepi32_ps(*n);
    __m256 r = _mm256_fnmadd_ps(steps, ln2_low, _mm256_fnmadd_ps(steps, ln2_high, t));
    __m256 p = _mm256_set1_ps(1.0f / 5040);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    return _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
}

/* gate / (1 + e^t) * up.  Where e^t is huge, numerator and denominator are taken times 2^-n, so that nothing overflows;
 * the factor comes back in two halves around the product with `up`, so that nothing underflows before the end.
 * The clamps keep NaN (the second operand of min and max wins), and turn -inf into a result of zero. */
static inline __m256 logistic_product(__m256 gate, __m256 t, __m256 up)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i n;
    gate = _mm256_max_ps(_mm256_set1_ps(-200.0f), gate);
    t = _mm256_min_ps(_mm256_set1_ps(170.0f), _mm256_max_ps(_mm256_set1_ps(-87.0f), t));
    __m256 e = exp_parts(t, &n);
    __m256i above = _mm256_min_epi32(_mm256_max_epi32(n, zero), _mm256_set1_epi32(250));
    __m256i below = _mm256_max_epi32(_mm256_min_epi32(n, zero), _mm256_set1_epi32(-126));
    __m256i half = _mm256_srli_epi32(above, 1);
    __m256 c1 = power_of_two(_mm256_sub_epi32(zero, half));
    __m256 c2 = power_of_two(_mm256_sub_epi32(half, above));
    __m256 one = _mm256_mul_ps(c1, c2);
    __m256 q = _mm256_div_ps(gate, _mm256_add_ps(one, _mm256_mul_ps(e, power_of_two(below))));
    return _mm256_mul_ps(_mm256_mul_ps(_mm256_mul_ps(q, c1), up), c2);
}

/* tanh(z) to about 2e-7 absolutely: (1 - e)/(1 + e) with e = exp(-2|z|). */
static inline __m256 tanh_vec(__m256 z)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    __m256i n;
    __m256 t = _mm256_mul_ps(_mm256_set1_ps(-2.0f), _mm256_andnot_ps(sign, z));
    __m256 e = exp_parts(_mm256_max_ps(_mm256_set1_ps(-87.0f), t), &n);
    n = _mm256_max_epi32(_mm256_min_epi32(n, _mm256_setzero_si256()), _mm256_set1_epi32(-126));
    e = _mm256_mul_ps(e, power_of_two(n));
    __m256 y = _mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e));
    return _mm256_or_ps(y, _mm256_and_ps(sign, z));
}

#endif
