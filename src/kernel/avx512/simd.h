/* kernel/avx512/simd.h - 512-bit helpers for elementwise kernels: partial loads, the exponential, the logistic product.
 *
 * Partial loads and stores take the number of elements that exist, so that the last elements of a row go through the
 * same arithmetic as all others. */
#ifndef TERN_AVX512_SIMD_H
#define TERN_AVX512_SIMD_H

#include <immintrin.h>

static inline __mmask16 first_lanes(int n)
{
    unsigned lanes = n >= 16 ? 0xFFFFu : (1u << n) - 1u;
    return (__mmask16)lanes;
}

static inline __m512 load_part(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}

static inline void store_part(float *p, int n, __m512 v)
{
    _mm512_mask_storeu_ps(p, first_lanes(n), v);
}

/* 2^n for n in [-126, 127]. */
static inline __m512 power_of_two(__m512i n)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}

/* e^t as mantissa * 2^*n with the mantissa in about [0.7, 1.42], for t in [-87, 170]; about one unit in the last place.
 * t is reduced by multiples of ln 2 in two steps; what remains is at most 0.35, where the power series to the seventh
 * order is accurate to 1e-8.  NaN comes back as mantissa NaN with an arbitrary n. */
static inline __m512 exp_parts(__m512 t, __m512i *n)
{
    const __m512 log2e = _mm512_set1_ps(1.44269504f);
    const __m512 ln2_high = _mm512_set1_ps(0.693147182f), ln2_low = _mm512_set1_ps(-1.90465430e-9f);
    *n = _mm512_cvtps_epi32(_mm512_mul_ps(t, log2e));
    __m512 steps = _mm512_cvtepi32_ps(*n);
    __m512 r = _mm512_fnmadd_ps(steps, ln2_low, _mm512_fnmadd_ps(steps, ln2_high, t));
    __m512 p = _mm512_set1_ps(1.0f / 5040);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 720));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
}

/* gate / (1 + e^t) * up for any numbers.  Where e^t is huge, numerator and denominator are taken times 2^-n, so that
 * nothing overflows; the factor comes back in two halves around the product with `up`, so that nothing underflows
 * before the end.  The clamps keep NaN (the second operand of min and max wins), and turn -inf into a result of zero.
 */
static __attribute__((noinline, unused)) __m512 logistic_product_any(__m512 gate, __m512 t, __m512 up)
{
    const __m512i zero = _mm512_setzero_si512();
    __m512i n;
    gate = _mm512_max_ps(_mm512_set1_ps(-200.0f), gate);
    t = _mm512_min_ps(_mm512_set1_ps(170.0f), _mm512_max_ps(_mm512_set1_ps(-87.0f), t));
    __m512 e = exp_parts(t, &n);
    __m512i above = _mm512_min_epi32(_mm512_max_epi32(n, zero), _mm512_set1_epi32(250));
    __m512i below = _mm512_max_epi32(_mm512_min_epi32(n, zero), _mm512_set1_epi32(-126));
    __m512i half = _mm512_srli_epi32(above, 1);
    __m512 c1 = power_of_two(_mm512_sub_epi32(zero, half));
    __m512 c2 = power_of_two(_mm512_sub_epi32(half, above));
    __m512 one = _mm512_mul_ps(c1, c2);
    __m512 q = _mm512_div_ps(gate, _mm512_add_ps(one, _mm512_mul_ps(e, power_of_two(below))));
    return _mm512_mul_ps(_mm512_mul_ps(_mm512_mul_ps(q, c1), up), c2);
}

/* The same bits for less, where no lane has |t| > 80 or a result below 2^-100: powers of two then move nothing but
 * exponents, wherever they are multiplied by.  gate: at least .1 where t is above .3. */
static inline __m512 logistic_product(__m512 gate, __m512 t, __m512 up)
{
    __m512i n;
    const __m512 e = exp_parts(t, &n), size = _mm512_abs_ps(t);
    const __m512 q = _mm512_div_ps(gate, _mm512_add_ps(_mm512_set1_ps(1.0f), _mm512_mul_ps(e, power_of_two(n))));
    const __m512 y = _mm512_mul_ps(q, up);
    const __mmask16 small = _mm512_cmp_ps_mask(size, _mm512_set1_ps(80.0f), _CMP_LE_OQ);
    const __mmask16 plain = _mm512_mask_cmp_ps_mask(small, _mm512_abs_ps(y), _mm512_set1_ps(0x1p-100f), _CMP_GE_OQ);
    return __builtin_expect(plain == 0xFFFF, 1) ? y : logistic_product_any(gate, t, up);
}

static inline __m512 silu_product(__m512 gate, __m512 up)
{
    return logistic_product(gate, _mm512_xor_ps(gate, _mm512_set1_ps(-0.0f)), up);
}

/* 0.5 * (1 + tanh(u)) is 1 / (1 + exp(-2u)). */
static inline __m512 gelu_product(__m512 gate, __m512 up)
{
    const __m512 linear = _mm512_set1_ps(-1.5957691216f); /* -2 sqrt(2/pi) */
    const __m512 cubic = _mm512_set1_ps(-1.5957691216f * 0.044715f);
    return logistic_product(gate, _mm512_mul_ps(gate, _mm512_fmadd_ps(_mm512_mul_ps(gate, gate), cubic, linear)), up);
}

/* tanh(z) to about 2e-7 absolutely: (1 - e)/(1 + e) with e = exp(-2|z|). */
static inline __m512 tanh_vec(__m512 z)
{
    const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1.0f);
    __m512i n;
    __m512 t = _mm512_mul_ps(_mm512_set1_ps(-2.0f), _mm512_andnot_ps(sign, z));
    __m512 e = exp_parts(_mm512_max_ps(_mm512_set1_ps(-87.0f), t), &n);
    n = _mm512_max_epi32(_mm512_min_epi32(n, _mm512_setzero_si512()), _mm512_set1_epi32(-126));
    e = _mm512_mul_ps(e, power_of_two(n));
    __m512 y = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
    return _mm512_or_ps(y, _mm512_and_ps(sign, z));
}

#endif
