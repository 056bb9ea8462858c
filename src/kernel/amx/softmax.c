/* The running softmax with weights in bf16: what tiles multiply, without a detour over f32.
 *
 * Per 64 scores: 4 loads and maxima, then 4 times 7 instructions of exp2 and a half of rounding, storing and summing.
 * As the weights keep 8 bits, a polynomial of degree 3 does (degree 5 in attn.c). */
#include "kernel/amx/amx.h"
#include "kernel/avx512/attn_simd.h"

#include <math.h>

/* 2^x for x <= 0, 0 outside `mask` and, after rounding to bf16, below -126.  The polynomial is the best one on [0, 1)
 * for the relative error, 7.5e-5. */
static inline __m512 exp2_rough(__m512 x, __mmask16 mask)
{
    __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); /* x - floor(x) */
    __m512 p = _mm512_fmadd_ps(f, _mm512_set1_ps(0.07802455f), _mm512_set1_ps(0.22606719f));
    p = _mm512_fmadd_ps(f, p, _mm512_set1_ps(0.6958335f));
    p = _mm512_fmadd_ps(f, p, _mm512_set1_ps(0.99992526f));
    return _mm512_maskz_scalef_ps(mask, p, x);
}

float tern_amx_softmax(uint16_t *p, const float *s, size_t stride, int n_pages, int t0, int t1, float *m, float *l)
{
    const __m512i ones = _mm512_set1_epi16(0x3F80);
    __m512 sum = _mm512_setzero_ps();
    const __m128 m_old = _mm_load_ss(m), m_new = _mm_max_ss(m_old, largest_score(s, stride, n_pages, t0, t1));
    const bool empty = t0 == t1 || _mm_cvtss_f32(m_new) == -INFINITY; /* nothing to see, now or before */
    const __m512 top = _mm512_broadcastss_ps(m_new);
    for (int page = 0; page < n_pages; page++) {
        const uint64_t range = empty ? 0 : page_range(page, t0, t1);
        const float *x = s + (size_t)page * stride;
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++, p += 2 * TERN_TILE) {
            __m512 a = exp2_rough(_mm512_sub_ps(_mm512_loadu_ps(x + 32 * j), top), (__mmask16)(range >> 32 * j));
            __m512 b =
                exp2_rough(_mm512_sub_ps(_mm512_loadu_ps(x + 32 * j + 16), top), (__mmask16)(range >> (32 * j + 16)));
            __m512bh both = _mm512_cvtne2ps_pbh(b, a);
            _mm512_store_si512(p, (__m512i)both);
            sum = _mm512_dpbf16_ps(sum, both, (__m512bh)ones);
        }
    }
    if (empty)
        return 1;
    const float shrink = _mm512_cvtss_f32(exp2_nonpos(_mm512_castps128_ps512(_mm_sub_ss(m_old, m_new)), 1));
    *l = *l * shrink + _mm_cvtss_f32(sum16(sum));
    *m = _mm_cvtss_f32(m_new);
    return shrink;
}
