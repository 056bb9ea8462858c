/* kernel/avx512bf16/rough.h - functions whose results are rounded to bf16 at once: good to 2^-12 of a result, where
 * that rounding alone costs up to 2^-9. */
#ifndef TERN_AVX512BF16_ROUGH_H
#define TERN_AVX512BF16_ROUGH_H

#include <immintrin.h>
#include <stdbool.h>

/* 2^x, 0 outside `mask`.  The polynomial is the best one on [0, 1) for the relative error, 7.5e-5. */
static inline __m512 exp2_rough(__m512 x, __mmask16 mask)
{
    __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); /* x - floor(x) */
    __m512 p = _mm512_fmadd_ps(f, _mm512_set1_ps(0.07802455f), _mm512_set1_ps(0.22606719f));
    p = _mm512_fmadd_ps(f, p, _mm512_set1_ps(0.6958335f));
    p = _mm512_fmadd_ps(f, p, _mm512_set1_ps(0.99992526f));
    return _mm512_maskz_scalef_ps(mask, p, x);
}

/* gate * up / (1 + 2^t), t = -log2(e) * gate for SiLU; GELU is the same with another t, since 0.5 * (1 + tanh(u)) is
 * 1 / (1 + exp(-2u)).  No intermediate is subnormal, which would cost hundreds of cycles, nor infinite but by gate or
 * up; NaN stays NaN (the second operand of max and min wins), and a gate of -inf counts as -200. */
static inline __m512 gate_rough(__m512 gate, __m512 up, bool gelu)
{
    const __m512 one = _mm512_set1_ps(1.0f), linear = _mm512_set1_ps(-2.3022082f); /* -2 sqrt(2/pi) log2(e) */
    __m512 by = _mm512_set1_ps(-1.44269504f);
    gate = _mm512_max_ps(_mm512_set1_ps(-200.0f), gate);
    if (gelu)
        by = _mm512_fmadd_ps(_mm512_mul_ps(gate, gate), _mm512_set1_ps(-2.3022082f * 0.044715f), linear);
    __m512 t = _mm512_mul_ps(gate, by);
    t = _mm512_min_ps(_mm512_set1_ps(120.0f), _mm512_max_ps(_mm512_set1_ps(-120.0f), t));
    const __m512 part = _mm512_rcp14_ps(_mm512_add_ps(one, exp2_rough(t, 0xFFFF)));
    return _mm512_mul_ps(_mm512_mul_ps(gate, part), up);
}

#endif
