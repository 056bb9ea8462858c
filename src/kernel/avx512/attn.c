#include "kernel/attn.h"

#include <math.h>
#include <stdbool.h>
#include "base/err.h"
#include "kernel/avx512/attn_simd.h"

/* Register tiles as in avx2/attn.c, with 32 registers: up to six query rows times all 64 tokens (scores) or 64 dims
 * (values), 24 accumulators.  f16 operands come from DRAM: chunks of a few KB, read in order, the lines 8 KB ahead
 * asked for on the way: into L2, which waits for more lines at a time than L1 can (decision 043). */

#define MAX_ROWS    6
#define SCORE_CHUNK 32   /* dims, 4 KB of f16 keys */
#define ACCUM_CHUNK 4096 /* bytes of f16 values */
#define ALL         ((__mmask16)0xFFFF)

#define TILES(tile, rows, vecs, ...)      \
    do {                                  \
        switch (rows) {                   \
        case 1:                           \
            tile(__VA_ARGS__, 1, (vecs)); \
            break;                        \
        case 2:                           \
            tile(__VA_ARGS__, 2, (vecs)); \
            break;                        \
        case 3:                           \
            tile(__VA_ARGS__, 3, (vecs)); \
            break;                        \
        case 4:                           \
            tile(__VA_ARGS__, 4, (vecs)); \
            break;                        \
        case 5:                           \
            tile(__VA_ARGS__, 5, (vecs)); \
            break;                        \
        default:                          \
            tile(__VA_ARGS__, 6, (vecs)); \
            break;                        \
        }                                 \
    } while (0)

/* Rows of the next tile when n are left: as even as possible, at most six. */
ATTN_INLINE int tile_rows(int n)
{
    int n_tiles = (n + MAX_ROWS - 1) / MAX_ROWS;
    return (n + n_tiles - 1) / n_tiles;
}

ATTN_INLINE void fma_row(__m512 acc[][4], __m512 a, const __m512 *b, int r, int vecs)
{
#pragma GCC unroll 4
    for (int v = 0; v < vecs; v++)
        acc[r][v] = _mm512_fmadd_ps(a, b[v], acc[r][v]);
}

ATTN_INLINE void score_tile(float *s, const float *q, const void *k, int half, const char *fetch, int dim, int d0,
                            int d1, int rows, int vecs)
{
    __m512 acc[MAX_ROWS][4], b[4];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            acc[r][v] = d0 ? _mm512_loadu_ps(s + r * TERN_PAGE + 16 * v) : _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int d = d0; d < d1; d++) {
        size_t at = (size_t)d * TERN_PAGE;
        if (half) {
            _mm_prefetch(fetch, _MM_HINT_T1);
            _mm_prefetch(fetch + 64, _MM_HINT_T1);
            fetch += 128;
        }
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            b[v] = load16(k, at + 16 * (size_t)v, half, ALL);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
            fma_row(acc, _mm512_set1_ps(q[(size_t)r * (size_t)dim + (size_t)d]), b, r, vecs);
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            _mm512_storeu_ps(s + r * TERN_PAGE + 16 * v, acc[r][v]);
}

static void score_f32(float *s, const float *q, const float *k, int dim, int n_q)
{
    TERN_DASSERT(dim % 8 == 0);
    for (int i = 0, rows; i < n_q; i += rows) {
        rows = tile_rows(n_q - i);
        float *si = s + (size_t)i * TERN_PAGE;
        const float *qi = q + (size_t)i * (size_t)dim;
        TILES(score_tile, rows, 4, si, qi, k, 0, NULL, dim, 0, dim);
    }
}

static void score_f16(float *s, const float *q, const uint16_t *k, int dim, int n_q, const void *next)
{
    TERN_DASSERT(dim % 8 == 0);
    for (int d0 = 0; d0 < dim; d0 += SCORE_CHUNK) {
        int d1 = d0 + SCORE_CHUNK < dim ? d0 + SCORE_CHUNK : dim;
        const char *fetch = attn_ahead(k, (size_t)d0 * TERN_PAGE * 2, (size_t)dim * TERN_PAGE * 2, next);
        for (int i = 0, rows; i < n_q; i += rows) {
            rows = tile_rows(n_q - i);
            float *si = s + (size_t)i * TERN_PAGE;
            const float *qi = q + (size_t)i * (size_t)dim;
            TILES(score_tile, rows, 4, si, qi, k, 1, fetch, dim, d0, d1);
        }
    }
}

/* `mask` counts for tiles of one vector only: the last dims. */
ATTN_INLINE void accum_tile(float *o, const float *p, const void *v, const float *shrink, int half, const char *fetch,
                            int dim, int t0, int t1, __mmask16 mask, int rows, int vecs)
{
    __m512 acc[MAX_ROWS][4], b[4];
    const __mmask16 lanes = vecs == 1 ? mask : ALL;
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        const __m512 factor = _mm512_set1_ps(shrink ? shrink[r] : 1.0f);
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            acc[r][j] = _mm512_mul_ps(factor, _mm512_maskz_loadu_ps(lanes, o + (size_t)r * (size_t)dim + 16 * j));
    }
#pragma GCC unroll 4
    for (int t = t0; t < t1; t++) {
        size_t at = (size_t)t * (size_t)dim;
        if (half) {
            _mm_prefetch(fetch, _MM_HINT_T1);
            if (vecs == 4)
                _mm_prefetch(fetch + 64, _MM_HINT_T1);
            fetch += 32 * vecs;
        }
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            b[j] = load16(v, at + 16 * (size_t)j, half, lanes);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
            fma_row(acc, _mm512_set1_ps(p[r * TERN_PAGE + t]), b, r, vecs);
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            _mm512_mask_storeu_ps(o + (size_t)r * (size_t)dim + 16 * j, lanes, acc[r][j]);
}

/* Tokens [t0, t1) for all rows; `half` is a constant in both callers. */
ATTN_INLINE void accum_chunk(float *o, const float *p, const void *v, const float *shrink, int half, const char *fetch,
                             int dim, int t0, int t1, int n_q)
{
    const size_t elem = half ? 2 : 4;
    for (int d = 0, step; d < dim; d += step) {
        step = dim - d >= 64 ? 64 : 16;
        const __mmask16 mask = dim - d >= 16 ? ALL : (__mmask16)0xFF;
        const char *vd = (const char *)v + (size_t)d * elem;
        for (int i = 0, rows; i < n_q; i += rows) {
            rows = tile_rows(n_q - i);
            float *oi = o + (size_t)i * (size_t)dim + d;
            const float *pi = p + (size_t)i * TERN_PAGE, *si = shrink ? shrink + i : NULL;
            if (step == 64)
                TILES(accum_tile, rows, 4, oi, pi, vd, si, half, fetch, dim, t0, t1, ALL);
            else
                TILES(accum_tile, rows, 1, oi, pi, vd, si, half, fetch, dim, t0, t1, mask);
        }
        if (half)
            fetch += (size_t)(t1 - t0) * 2 * (size_t)step;
    }
}

static void accum_f32(float *o, const float *p, const float *v, const float *shrink, int dim, int n_tok, int n_q)
{
    TERN_DASSERT(dim % 8 == 0 && n_tok >= 0 && n_tok <= TERN_PAGE);
    accum_chunk(o, p, v, shrink, 0, NULL, dim, 0, n_tok, n_q);
}

static void accum_f16(float *o, const float *p, const uint16_t *v, const float *shrink, int dim, int n_tok, int n_q,
                      const void *next)
{
    TERN_DASSERT(dim % 8 == 0 && n_tok >= 0 && n_tok <= TERN_PAGE);
    const int step = ACCUM_CHUNK / 2 / dim > 4 ? ACCUM_CHUNK / 2 / dim : 4;
    int t0 = 0;
    do { /* once even for no token: o still shrinks */
        int t1 = t0 + step < n_tok ? t0 + step : n_tok;
        const size_t token = (size_t)dim * 2;
        const char *fetch = attn_ahead(v, (size_t)t0 * token, (size_t)n_tok * token, next);
        accum_chunk(o, p, v, shrink, 1, fetch, dim, t0, t1, n_q);
        shrink = NULL;
        t0 = t1;
    } while (t0 < n_tok);
}

static void clear_pages(float *s, size_t stride, int n_pages)
{
    for (int page = 0; page < n_pages; page++)
        for (int j = 0; j < 4; j++)
            _mm512_storeu_ps(s + (size_t)page * stride + 16 * j, _mm512_setzero_ps());
}

static float softmax(float *s, size_t stride, int n_pages, int t0, int t1, float *m, float *l)
{
    TERN_DASSERT(n_pages <= TERN_SOFTMAX_PAGES && t0 >= 0 && t0 <= t1 && t1 <= n_pages * TERN_PAGE);
    __m512 sum = _mm512_setzero_ps();
    const __m128 m_old = _mm_load_ss(m), m_new = _mm_max_ss(m_old, largest_score(s, stride, n_pages, t0, t1));
    if (t0 == t1 || _mm_cvtss_f32(m_new) == -INFINITY) { /* nothing to see, now or before */
        clear_pages(s, stride, n_pages);
        return 1;
    }
    const float shrink = _mm512_cvtss_f32(exp2_nonpos(_mm512_castps128_ps512(_mm_sub_ss(m_old, m_new)), 1));
    const __m512 top = _mm512_broadcastss_ps(m_new);
    for (int page = 0; page < n_pages; page++) {
        const uint64_t range = page_range(page, t0, t1);
        float *at = s + (size_t)page * stride;
        __m512 x[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            x[j] = exp2_nonpos(_mm512_sub_ps(_mm512_loadu_ps(at + 16 * j), top), (__mmask16)(range >> 16 * j));
            _mm512_storeu_ps(at + 16 * j, x[j]);
        }
        __m512 page_sum = _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(x[0], x[1]), x[2]), x[3]);
        sum = _mm512_add_ps(sum, page_sum);
    }
    *l = *l * shrink + _mm_cvtss_f32(sum16(sum));
    *m = _mm_cvtss_f32(m_new);
    return shrink;
}

static void f16_to_f32(float *y, const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i += 16)
        _mm512_storeu_ps(y + i, load16(x, i, 1, ALL));
}

static void f32_to_f16(uint16_t *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 16)
        _mm256_storeu_si256((__m256i *)(y + i), _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
}

void tern_attn_init_avx512(struct tern_attn_kernels *k)
{
    k->score_f32 = score_f32;
    k->score_f16 = score_f16;
    k->softmax = softmax;
    k->accum_f32 = accum_f32;
    k->accum_f16 = accum_f16;
    k->f16_to_f32 = f16_to_f32;
    k->f32_to_f16 = f32_to_f16;
}
