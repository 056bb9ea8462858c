/* The running softmax with weights in bf16: what bf16 products read, without a detour over f32.
 *
 * Per 64 scores: 4 loads and maxima, then 4 times 7 instructions of exp2 and a half of rounding, storing and summing.
 * As the weights keep 8 bits, a polynomial of degree 3 does (degree 5 in attn.c). */
#include "kernel/avx512bf16/bf16.h"
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

/* The weights of one row below `top` to p; the sum of the rounded ones.  whole: all tokens count. */
ATTN_INLINE float weights_of(uint16_t *p, const float *s, size_t stride, int n_pages, int t0, int t1, float top,
                             const bool whole)
{
    const __m512i ones = _mm512_set1_epi16(0x3F80);
    const __m512 less = _mm512_set1_ps(top);
    __m512 sum = _mm512_setzero_ps();
    for (int page = 0; page < n_pages; page++, s += stride) {
        const uint64_t range = whole ? ~(uint64_t)0 : page_range(page, t0, t1);
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++, p += 2 * TERN_TILE) {
            __m512 a = exp2_rough(_mm512_sub_ps(_mm512_loadu_ps(s + 32 * j), less), (__mmask16)(range >> 32 * j));
            __m512 b =
                exp2_rough(_mm512_sub_ps(_mm512_loadu_ps(s + 32 * j + 16), less), (__mmask16)(range >> (32 * j + 16)));
            __m512bh both = _mm512_cvtne2ps_pbh(b, a);
            _mm512_store_si512(p, (__m512i)both);
            sum = _mm512_dpbf16_ps(sum, both, (__m512bh)ones);
        }
    }
    return _mm_cvtss_f32(sum16(sum));
}

/* Maxima of all rows, then weights, then what becomes of m and l for 16 rows at once: a row by itself is a chain of
 * some 200 cycles, of which a core sees less than two at a time. */
void tern_bf16_softmax(uint16_t *p, const float *s, size_t stride, int n_pages, int n_rows, const int *t0,
                       const int *t1, float *m, float *l, float *shrink)
{
    float top[TERN_BAND] __attribute__((aligned(64))), sum[TERN_BAND] __attribute__((aligned(64))) = {0};
    const int end = n_pages * TERN_PAGE;
    for (int r = 0; r < n_rows; r++) {
        const float *row = s + r * TERN_PAGE;
        const __m128 largest = t0[r] == 0 && t1[r] == end ? largest_score(row, stride, n_pages, 0, end)
                                                          : largest_score(row, stride, n_pages, t0[r], t1[r]);
        _mm_store_ss(&top[r], _mm_max_ss(_mm_load_ss(&m[r]), largest));
    }
    for (int r = 0; r < n_rows; r++) {
        const bool empty = t0[r] == t1[r] || top[r] == -INFINITY; /* nothing to see, now or before */
        const int from = empty ? 0 : t0[r], to = empty ? 0 : t1[r];
        uint16_t *row = p + r * TERN_TILE_DEPTH;
        sum[r] = from == 0 && to == end ? weights_of(row, s + r * TERN_PAGE, stride, n_pages, 0, end, top[r], true)
                                        : weights_of(row, s + r * TERN_PAGE, stride, n_pages, from, to, top[r], false);
    }
    for (int r = 0; r < n_rows; r += 16) {
        const __mmask16 rows = (__mmask16)(n_rows - r < 16 ? (1u << (n_rows - r)) - 1u : 0xFFFFu);
        const __m512 now = _mm512_load_ps(top + r), before = _mm512_maskz_loadu_ps(rows, m + r);
        const __mmask16 any = _mm512_cmp_ps_mask(now, _mm512_set1_ps(-INFINITY), _CMP_NEQ_UQ);
        const __m512 by =
            _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), any, exp2_nonpos(_mm512_sub_ps(before, now), 0xFFFF));
        const __m512 all = _mm512_mul_ps(_mm512_maskz_loadu_ps(rows, l + r), by);
        _mm512_mask_storeu_ps(l + r, rows, _mm512_add_ps(all, _mm512_load_ps(sum + r)));
        _mm512_mask_storeu_ps(m + r, rows, now);
        _mm512_mask_storeu_ps(shrink + r, rows, by);
    }
}
