#include "kernel/attn.h"

#include <math.h>
#include <stdbool.h>
#include "base/err.h"
#include "kernel/avx2/attn_simd.h"

/* Products in register tiles: `rows` query rows times `vecs` vectors of 8 tokens (scores) or 8 dims (values), at most
 * 12 accumulators.  An element is one chain from start to end, so neither the tile nor the chunk that carries it can
 * change its value: between chunks it rests in memory, exactly.
 *
 * f32 operands were decoded just now and lie in the cache: the whole inner length in one go.  f16 operands come from
 * DRAM: chunks of a few KB keep the reads sequential, however many tiles share them. */

#define MAX_ROWS    6
#define SCORE_CHUNK 16   /* dims, 2 KB of f16 keys */
#define ACCUM_CHUNK 4096 /* bytes of f16 values */

/* Calls `tile` with constant sizes.  Few rows take wide tiles, so that there are enough chains to hide the latency. */
#define TILES(tile, rows, vecs, ...)  \
    do {                              \
        switch ((rows)*16 + (vecs)) { \
        case 1 * 16 + 8:              \
            tile(__VA_ARGS__, 1, 8);  \
            break;                    \
        case 2 * 16 + 4:              \
            tile(__VA_ARGS__, 2, 4);  \
            break;                    \
        case 3 * 16 + 4:              \
            tile(__VA_ARGS__, 3, 4);  \
            break;                    \
        case 3 * 16 + 2:              \
            tile(__VA_ARGS__, 3, 2);  \
            break;                    \
        case 4 * 16 + 2:              \
            tile(__VA_ARGS__, 4, 2);  \
            break;                    \
        case 5 * 16 + 2:              \
            tile(__VA_ARGS__, 5, 2);  \
            break;                    \
        default:                      \
            tile(__VA_ARGS__, 6, 2);  \
            break;                    \
        }                             \
    } while (0)

/* Vectors a tile is wide when it takes its share of n rows. */
ATTN_INLINE int tile_vecs(int n_q)
{
    return n_q == 1 ? 8 : n_q <= 3 ? 4 : 2;
}

/* Rows of the next tile when n are left: as even as possible, at most six. */
ATTN_INLINE int tile_rows(int n)
{
    int n_tiles = (n + MAX_ROWS - 1) / MAX_ROWS;
    return (n + n_tiles - 1) / n_tiles;
}

/* One step of a tile asks for as many lines as it uses for the first time.  The lines are asked for in the order of
 * memory, not in the order of use: strided requests measure up to 40 % slower. */
ATTN_INLINE const char *fetch_lines(const char *p, int vecs)
{
    _mm_prefetch(p, _MM_HINT_T1);
    if (vecs == 8)
        _mm_prefetch(p + 64, _MM_HINT_T1);
    return p + (vecs == 8 ? 128 : vecs == 4 ? 64 : 32);
}

ATTN_INLINE void fma_column(__m256 acc[][8], const __m256 *a, __m256 b, int rows, int v)
{
#pragma GCC unroll 3
    for (int r = 0; r < rows; r++)
        acc[r][v] = _mm256_fmadd_ps(a[r], b, acc[r][v]);
}

ATTN_INLINE void fma_row(__m256 acc[][8], __m256 a, const __m256 *b, int r, int vecs)
{
#pragma GCC unroll 2
    for (int v = 0; v < vecs; v++)
        acc[r][v] = _mm256_fmadd_ps(a, b[v], acc[r][v]);
}

ATTN_INLINE void score_tile(float *s, const float *q, const void *k, int half, const char *fetch, int dim, int d0,
                            int d1, int rows, int vecs)
{
    __m256 acc[MAX_ROWS][8], a[3];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++)
            acc[r][v] = d0 ? _mm256_loadu_ps(s + r * TERN_PAGE + 8 * v) : _mm256_setzero_ps();

#pragma GCC unroll 8
    for (int d = d0; d < d1; d++) {
        size_t at = (size_t)d * TERN_PAGE;
        if (half)
            fetch = fetch_lines(fetch, vecs);
        if (vecs > rows) { /* whichever side has fewer vectors waits in registers: 16 have to do */
#pragma GCC unroll 3
            for (int r = 0; r < rows; r++)
                a[r] = _mm256_broadcast_ss(q + (size_t)r * (size_t)dim + d);
#pragma GCC unroll 8
            for (int v = 0; v < vecs; v++)
                fma_column(acc, a, load8(k, at + 8 * (size_t)v, half), rows, v);
        } else {
#pragma GCC unroll 2
            for (int v = 0; v < vecs; v++)
                a[v] = load8(k, at + 8 * (size_t)v, half);
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++)
                fma_row(acc, _mm256_broadcast_ss(q + (size_t)r * (size_t)dim + d), a, r, vecs);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++)
            _mm256_storeu_ps(s + r * TERN_PAGE + 8 * v, acc[r][v]);
}

static void score_f32(float *s, const float *q, const float *k, int dim, int n_q)
{
    TERN_DASSERT(dim % 8 == 0);
    const int vecs = tile_vecs(n_q);
    for (int t = 0; t < TERN_PAGE; t += 8 * vecs)
        for (int i = 0, rows; i < n_q; i += rows) {
            rows = tile_rows(n_q - i);
            float *si = s + (size_t)i * TERN_PAGE + t;
            const float *qi = q + (size_t)i * (size_t)dim;
            TILES(score_tile, rows, vecs, si, qi, k + t, 0, NULL, dim, 0, dim);
        }
}

static void score_f16(float *s, const float *q, const uint16_t *k, int dim, int n_q, const void *next)
{
    TERN_DASSERT(dim % 8 == 0);
    const int vecs = tile_vecs(n_q);
    for (int d0 = 0; d0 < dim; d0 += SCORE_CHUNK) {
        int d1 = d0 + SCORE_CHUNK < dim ? d0 + SCORE_CHUNK : dim;
        const char *fetch = attn_ahead(k, (size_t)d0 * TERN_PAGE * 2, (size_t)dim * TERN_PAGE * 2, next);
        for (int t = 0; t < TERN_PAGE; t += 8 * vecs)
            for (int i = 0, rows; i < n_q; i += rows) {
                rows = tile_rows(n_q - i);
                float *si = s + (size_t)i * TERN_PAGE + t;
                const float *qi = q + (size_t)i * (size_t)dim;
                TILES(score_tile, rows, vecs, si, qi, k + t, 1, fetch, dim, d0, d1);
                if (i == 0)
                    fetch += (d1 - d0) * 16 * vecs;
            }
    }
}

ATTN_INLINE void accum_tile(float *o, const float *p, const void *v, const float *shrink, int half, const char *fetch,
                            int dim, int t0, int t1, int rows, int vecs)
{
    __m256 acc[MAX_ROWS][8], a[3];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int j = 0; j < vecs; j++)
            acc[r][j] = _mm256_mul_ps(_mm256_loadu_ps(o + (size_t)r * (size_t)dim + 8 * j),
                                      _mm256_set1_ps(shrink ? shrink[r] : 1.0f));

#pragma GCC unroll 8
    for (int t = t0; t < t1; t++) {
        size_t at = (size_t)t * (size_t)dim;
        if (half)
            fetch = fetch_lines(fetch, vecs);
        if (vecs > rows) {
#pragma GCC unroll 3
            for (int r = 0; r < rows; r++)
                a[r] = _mm256_broadcast_ss(p + r * TERN_PAGE + t);
#pragma GCC unroll 8
            for (int j = 0; j < vecs; j++)
                fma_column(acc, a, load8(v, at + 8 * (size_t)j, half), rows, j);
        } else {
#pragma GCC unroll 2
            for (int j = 0; j < vecs; j++)
                a[j] = load8(v, at + 8 * (size_t)j, half);
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++)
                fma_row(acc, _mm256_broadcast_ss(p + r * TERN_PAGE + t), a, r, vecs);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int j = 0; j < vecs; j++)
            _mm256_storeu_ps(o + (size_t)r * (size_t)dim + 8 * j, acc[r][j]);
}

/* The last dims, where no whole tile fits: one vector at a time. */
ATTN_INLINE void accum_edge(float *o, const float *p, const void *v, const float *shrink, int half, int dim, int d,
                            int t0, int t1, int n_q)
{
    for (; d < dim; d += 8)
        for (int i = 0; i < n_q; i++) {
            float *oi = o + (size_t)i * (size_t)dim + d;
            __m256 acc = _mm256_mul_ps(_mm256_loadu_ps(oi), _mm256_set1_ps(shrink ? shrink[i] : 1.0f));
            for (int t = t0; t < t1; t++)
                acc = _mm256_fmadd_ps(_mm256_broadcast_ss(p + i * TERN_PAGE + t),
                                      load8(v, (size_t)t * (size_t)dim + (size_t)d, half), acc);
            _mm256_storeu_ps(oi, acc);
        }
}

static void accum_f32(float *o, const float *p, const float *v, const float *shrink, int dim, int n_tok, int n_q)
{
    TERN_DASSERT(dim % 8 == 0 && n_tok >= 0 && n_tok <= TERN_PAGE);
    const int vecs = tile_vecs(n_q);
    int d = 0;
    for (; d + 8 * vecs <= dim; d += 8 * vecs)
        for (int i = 0, rows; i < n_q; i += rows) {
            rows = tile_rows(n_q - i);
            float *oi = o + (size_t)i * (size_t)dim + d;
            const float *pi = p + (size_t)i * TERN_PAGE, *si = shrink ? shrink + i : NULL;
            TILES(accum_tile, rows, vecs, oi, pi, v + d, si, 0, NULL, dim, 0, n_tok);
        }
    accum_edge(o, p, v, shrink, 0, dim, d, 0, n_tok, n_q);
}

static void accum_f16(float *o, const float *p, const uint16_t *v, const float *shrink, int dim, int n_tok, int n_q,
                      const void *next)
{
    TERN_DASSERT(dim % 8 == 0 && n_tok >= 0 && n_tok <= TERN_PAGE);
    const int vecs = tile_vecs(n_q);
    const int step = ACCUM_CHUNK / 2 / dim > 4 ? ACCUM_CHUNK / 2 / dim : 4;
    int t0 = 0;
    do { /* once even for no token: o still shrinks */
        int t1 = t0 + step < n_tok ? t0 + step : n_tok, d = 0;
        const size_t token = (size_t)dim * 2;
        const char *fetch = attn_ahead(v, (size_t)t0 * token, (size_t)n_tok * token, next);
        for (; d + 8 * vecs <= dim; d += 8 * vecs)
            for (int i = 0, rows; i < n_q; i += rows) {
                rows = tile_rows(n_q - i);
                float *oi = o + (size_t)i * (size_t)dim + d;
                const float *pi = p + (size_t)i * TERN_PAGE, *si = shrink ? shrink + i : NULL;
                TILES(accum_tile, rows, vecs, oi, pi, v + d, si, 1, fetch, dim, t0, t1);
                if (i == 0)
                    fetch += (t1 - t0) * 16 * vecs;
            }
        accum_edge(o, p, v, shrink, 1, dim, d, t0, t1, n_q);
        shrink = NULL;
        t0 = t1;
    } while (t0 < n_tok);
}

ATTN_INLINE __m256 in_range(int base, int t0, int t1)
{
    __m256i t = _mm256_add_epi32(_mm256_set1_epi32(base), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(t1), t);
    return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(t0), t), below));
}

/* Scores of a page, -inf where they do not count; `masked`: not all 64 tokens do. */
ATTN_INLINE void load_page(__m256 x[8], const float *s, int masked, int t0, int t1)
{
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        x[j] = _mm256_loadu_ps(s + 8 * j);
        if (masked)
            x[j] = _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), x[j], in_range(8 * j, t0, t1));
    }
}

ATTN_INLINE void page_max(__m256 top[2], const float *s, int masked, int t0, int t1)
{
    __m256 x[8], lo = _mm256_set1_ps(-INFINITY), hi = lo;
    load_page(x, s, masked, t0, t1);
#pragma GCC unroll 4
    for (int j = 0; j < 8; j += 2) {
        lo = _mm256_max_ps(lo, x[j]);
        hi = _mm256_max_ps(hi, x[j + 1]);
    }
    top[0] = _mm256_max_ps(top[0], lo);
    top[1] = _mm256_max_ps(top[1], hi);
}

/* s = exp2(s - top) where it counts, 0 elsewhere; sum: of its 16 lanes. */
ATTN_INLINE void page_exp(float *s, __m256 top, __m256 sum[2], int masked, int t0, int t1)
{
    __m256 x[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        x[j] = exp2_nonpos(_mm256_sub_ps(_mm256_loadu_ps(s + 8 * j), top));
        if (masked)
            x[j] = _mm256_and_ps(x[j], in_range(8 * j, t0, t1));
        _mm256_storeu_ps(s + 8 * j, x[j]);
    }
    sum[0] = x[0];
    sum[1] = x[1];
#pragma GCC unroll 3
    for (int j = 2; j < 8; j += 2) {
        sum[0] = _mm256_add_ps(sum[0], x[j]);
        sum[1] = _mm256_add_ps(sum[1], x[j + 1]);
    }
}

static void clear_pages(float *s, size_t stride, int n_pages)
{
    for (int page = 0; page < n_pages; page++)
        for (int j = 0; j < 8; j++)
            _mm256_storeu_ps(s + (size_t)page * stride + 8 * j, _mm256_setzero_ps());
}

static float softmax(float *s, size_t stride, int n_pages, int t0, int t1, float *m, float *l)
{
    TERN_DASSERT(n_pages <= TERN_SOFTMAX_PAGES && t0 >= 0 && t0 <= t1 && t1 <= n_pages * TERN_PAGE);
    __m256 top[2] = {_mm256_set1_ps(-INFINITY), _mm256_set1_ps(-INFINITY)}, sum[2] = {0}, page_sum[2];
    for (int page = 0; page < n_pages; page++) {
        const int lo = t0 - page * TERN_PAGE, hi = t1 - page * TERN_PAGE;
        if (lo <= 0 && hi >= TERN_PAGE)
            page_max(top, s + (size_t)page * stride, 0, 0, TERN_PAGE);
        else
            page_max(top, s + (size_t)page * stride, 1, lo, hi);
    }
    const __m128 m_old = _mm_load_ss(m), m_new = _mm_max_ss(m_old, max16(top[0], top[1]));
    if (t0 == t1 || _mm_cvtss_f32(m_new) == -INFINITY) { /* nothing to see, now or before */
        clear_pages(s, stride, n_pages);
        return 1;
    }
    const __m128 diff = _mm_sub_ss(m_old, m_new);
    const float shrink = _mm256_cvtss_f32(exp2_nonpos(_mm256_castps128_ps256(diff)));
    for (int page = 0; page < n_pages; page++) {
        const int lo = t0 - page * TERN_PAGE, hi = t1 - page * TERN_PAGE;
        float *at = s + (size_t)page * stride;
        if (lo <= 0 && hi >= TERN_PAGE)
            page_exp(at, _mm256_broadcastss_ps(m_new), page_sum, 0, 0, TERN_PAGE);
        else
            page_exp(at, _mm256_broadcastss_ps(m_new), page_sum, 1, lo, hi);
        sum[0] = _mm256_add_ps(sum[0], page_sum[0]);
        sum[1] = _mm256_add_ps(sum[1], page_sum[1]);
    }
    *l = *l * shrink + _mm_cvtss_f32(sum16(sum[0], sum[1]));
    *m = _mm_cvtss_f32(m_new);
    return shrink;
}

static void f16_to_f32(float *y, const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        _mm256_storeu_ps(y + i, load8(x, i, 1));
        _mm256_storeu_ps(y + i + 8, load8(x, i + 8, 1));
    }
}

static void f32_to_f16(uint16_t *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 8)
        _mm_storeu_si128((__m128i *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
}

void tern_attn_init_avx2(struct tern_attn_kernels *k)
{
    k->score_f32 = score_f32;
    k->score_f16 = score_f16;
    k->softmax = softmax;
    k->accum_f32 = accum_f32;
    k->accum_f16 = accum_f16;
    k->f16_to_f32 = f16_to_f32;
    k->f32_to_f16 = f32_to_f16;
}
