#include "kernel/attn.h"

#include <math.h>
#include "base/err.h"
#include "kernel/neon/attn_simd.h"
#include "kernel/neon/simd.h"

/* Products in register tiles: `rows` query rows times `vecs` vectors of 4 tokens (scores) or 4 dims (values), 16
 * accumulators but with three rows.  An element is one chain from start to end, so neither the tile nor the chunk that
 * carries it can change its value: between chunks it rests in memory, exactly.
 *
 * f32 operands were decoded just now and lie in the cache: the whole inner length in one go.  f16 operands come from
 * DRAM: chunks of a few KB keep the reads sequential, however many tiles share them. */

#define MAX_ROWS    4
#define MAX_VECS    16
#define SCORE_CHUNK 16   /* dims, 2 KB of f16 keys */
#define ACCUM_CHUNK 4096 /* bytes of f16 values */

/* Calls `tile` with constant sizes.  Few rows take wide tiles, so that there are enough chains to hide the latency. */
#define TILES(tile, rows, vecs, ...)  \
    do {                              \
        switch ((rows)*32 + (vecs)) { \
        case 1 * 32 + 16:             \
            tile(__VA_ARGS__, 1, 16); \
            break;                    \
        case 2 * 32 + 8:              \
            tile(__VA_ARGS__, 2, 8);  \
            break;                    \
        case 2 * 32 + 4:              \
            tile(__VA_ARGS__, 2, 4);  \
            break;                    \
        case 3 * 32 + 4:              \
            tile(__VA_ARGS__, 3, 4);  \
            break;                    \
        default:                      \
            tile(__VA_ARGS__, 4, 4);  \
            break;                    \
        }                             \
    } while (0)

/* Vectors a tile is wide when it takes its share of n rows. */
ATTN_INLINE int tile_vecs(int n_q)
{
    return n_q == 1 ? 16 : n_q == 2 ? 8 : 4;
}

/* Rows of the next tile when n are left: as even as possible, at most four, and never one alone beside others. */
ATTN_INLINE int tile_rows(int n)
{
    int n_tiles = (n + MAX_ROWS - 1) / MAX_ROWS;
    return (n + n_tiles - 1) / n_tiles;
}

ATTN_INLINE void fetch_lines(const char *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(p + i);
}

/* s[row][4 * vecs tokens] over dims [d0, d1). */
ATTN_INLINE void score_tile(float *s, const float *q, const void *k, int half, int dim, int d0, int d1, int rows,
                            int vecs)
{
    float32x4_t acc[MAX_ROWS][MAX_VECS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++)
            acc[r][v] = d0 ? vld1q_f32(s + r * TERN_PAGE + 4 * v) : vdupq_n_f32(0);

#pragma GCC unroll 2
    for (int d = d0; d < d1; d++)
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++) {
            float32x4_t b = load4(k, (size_t)d * TERN_PAGE + 4 * (size_t)v, half);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                acc[r][v] = vfmaq_n_f32(acc[r][v], b, q[(size_t)r * (size_t)dim + (size_t)d]);
        }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++)
            vst1q_f32(s + r * TERN_PAGE + 4 * v, acc[r][v]);
}

ATTN_INLINE void score(float *s, const float *q, const void *k, int half, int dim, int n_q, int chunk, const void *next)
{
    TERN_DASSERT(dim % 8 == 0);
    const int vecs = tile_vecs(n_q);
    const size_t line = (size_t)TERN_PAGE * (half ? 2 : 4);
    for (int d0 = 0; d0 < dim; d0 += chunk) {
        const int d1 = d0 + chunk < dim ? d0 + chunk : dim;
        if (half)
            fetch_lines(attn_ahead(k, (size_t)d0 * line, (size_t)dim * line, next), (size_t)(d1 - d0) * line);
        for (int t = 0; t < TERN_PAGE; t += 4 * vecs)
            for (int i = 0, rows; i < n_q; i += rows) {
                rows = tile_rows(n_q - i);
                float *si = s + (size_t)i * TERN_PAGE + t;
                const float *qi = q + (size_t)i * (size_t)dim;
                const char *kt = (const char *)k + (size_t)t * (line / TERN_PAGE);
                TILES(score_tile, rows, vecs, si, qi, kt, half, dim, d0, d1);
            }
    }
}

static void score_f32(float *s, const float *q, const float *k, int dim, int n_q)
{
    score(s, q, k, 0, dim, n_q, dim, NULL);
}

static void score_f16(float *s, const float *q, const uint16_t *k, int dim, int n_q, const void *next)
{
    score(s, q, k, 1, dim, n_q, SCORE_CHUNK, next);
}

/* o[row][4 * vecs dims] over tokens [t0, t1). */
ATTN_INLINE void accum_tile(float *o, const float *p, const void *v, const float *shrink, int half, int dim, int t0,
                            int t1, int rows, int vecs)
{
    float32x4_t acc[MAX_ROWS][MAX_VECS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int j = 0; j < vecs; j++)
            acc[r][j] = vmulq_n_f32(vld1q_f32(o + (size_t)r * (size_t)dim + 4 * j), shrink ? shrink[r] : 1.0f);

#pragma GCC unroll 2
    for (int t = t0; t < t1; t++)
#pragma GCC unroll 16
        for (int j = 0; j < vecs; j++) {
            float32x4_t b = load4(v, (size_t)t * (size_t)dim + 4 * (size_t)j, half);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                acc[r][j] = vfmaq_n_f32(acc[r][j], b, p[r * TERN_PAGE + t]);
        }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int j = 0; j < vecs; j++)
            vst1q_f32(o + (size_t)r * (size_t)dim + 4 * j, acc[r][j]);
}

/* The last dims, where no whole tile fits: eight of one row at a time. */
ATTN_INLINE void accum_edge(float *o, const float *p, const void *v, const float *shrink, int half, int dim, int t0,
                            int t1, int d, int n_q)
{
    const size_t element = half ? 2 : 4;
    for (; d < dim; d += 8)
        for (int i = 0; i < n_q; i++)
            accum_tile(o + (size_t)i * (size_t)dim + d, p + (size_t)i * TERN_PAGE,
                       (const char *)v + (size_t)d * element, shrink ? shrink + i : NULL, half, dim, t0, t1, 1, 2);
}

ATTN_INLINE void accum(float *o, const float *p, const void *v, const float *shrink, int half, int dim, int n_tok,
                       int n_q, int chunk, const void *next)
{
    TERN_DASSERT(dim % 8 == 0 && n_tok >= 0 && n_tok <= TERN_PAGE);
    const int vecs = tile_vecs(n_q);
    const size_t element = half ? 2 : 4, token = (size_t)dim * element;
    int t0 = 0;
    do { /* once even for no token: o still shrinks */
        const int t1 = t0 + chunk < n_tok ? t0 + chunk : n_tok;
        int d = 0;
        if (half)
            fetch_lines(attn_ahead(v, (size_t)t0 * token, (size_t)n_tok * token, next), (size_t)(t1 - t0) * token);
        for (; d + 4 * vecs <= dim; d += 4 * vecs)
            for (int i = 0, rows; i < n_q; i += rows) {
                rows = tile_rows(n_q - i);
                float *oi = o + (size_t)i * (size_t)dim + d;
                const float *pi = p + (size_t)i * TERN_PAGE, *si = shrink ? shrink + i : NULL;
                const char *vd = (const char *)v + (size_t)d * element;
                TILES(accum_tile, rows, vecs, oi, pi, vd, si, half, dim, t0, t1);
            }
        accum_edge(o, p, v, shrink, half, dim, t0, t1, d, n_q);
        shrink = NULL;
        t0 = t1;
    } while (t0 < n_tok);
}

static void accum_f32(float *o, const float *p, const float *v, const float *shrink, int dim, int n_tok, int n_q)
{
    accum(o, p, v, shrink, 0, dim, n_tok, n_q, TERN_PAGE, NULL);
}

static void accum_f16(float *o, const float *p, const uint16_t *v, const float *shrink, int dim, int n_tok, int n_q,
                      const void *next)
{
    const int chunk = ACCUM_CHUNK / 2 / dim > 4 ? ACCUM_CHUNK / 2 / dim : 4;
    accum(o, p, v, shrink, 1, dim, n_tok, n_q, chunk, next);
}

/* ---- softmax ---- */

/* Tokens base .. base+3 that lie in [t0, t1). */
ATTN_INLINE uint32x4_t in_range(int base, int t0, int t1)
{
    static const int32_t first[4] = {0, 1, 2, 3};
    int32x4_t t = vaddq_s32(vdupq_n_s32(base), vld1q_s32(first));
    return vandq_u32(vcgeq_s32(t, vdupq_n_s32(t0)), vcltq_s32(t, vdupq_n_s32(t1)));
}

/* Tokens [t0, t1) of a page count; `masked`: those are not all 64. */
ATTN_INLINE void page_max(float32x4_t top[4], const float *s, int masked, int t0, int t1)
{
#pragma GCC unroll 16
    for (int j = 0; j < 16; j++) {
        float32x4_t x = vld1q_f32(s + 4 * j);
        if (masked)
            x = vbslq_f32(in_range(4 * j, t0, t1), x, vdupq_n_f32(-INFINITY));
        top[j % 4] = larger(top[j % 4], x);
    }
}

/* s = exp2(s - top) where it counts, 0 elsewhere; the page's 16 lanes are added to sum. */
ATTN_INLINE void page_exp(float *s, float top, float32x4_t sum[4], int masked, int t0, int t1)
{
    float32x4_t page[4];
#pragma GCC unroll 16
    for (int j = 0; j < 16; j++) {
        float32x4_t x = exp2_nonpos(vsubq_f32(vld1q_f32(s + 4 * j), vdupq_n_f32(top)));
        if (masked)
            x = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), in_range(4 * j, t0, t1)));
        vst1q_f32(s + 4 * j, x);
        page[j % 4] = j < 4 ? x : vaddq_f32(page[j % 4], x);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++)
        sum[j] = vaddq_f32(sum[j], page[j]);
}

static void clear_pages(float *s, size_t stride, int n_pages)
{
    for (int page = 0; page < n_pages; page++)
        memset(s + (size_t)page * stride, 0, TERN_PAGE * sizeof *s);
}

static float softmax(float *s, size_t stride, int n_pages, int t0, int t1, float *m, float *l)
{
    TERN_DASSERT(n_pages <= TERN_SOFTMAX_PAGES && t0 >= 0 && t0 <= t1 && t1 <= n_pages * TERN_PAGE);
    float32x4_t top[4], sum[4];
    for (int j = 0; j < 4; j++) {
        top[j] = vdupq_n_f32(-INFINITY);
        sum[j] = vdupq_n_f32(0);
    }
    for (int page = 0; page < n_pages; page++) {
        const int lo = t0 - page * TERN_PAGE, hi = t1 - page * TERN_PAGE;
        if (lo <= 0 && hi >= TERN_PAGE)
            page_max(top, s + (size_t)page * stride, 0, 0, TERN_PAGE);
        else
            page_max(top, s + (size_t)page * stride, 1, lo, hi);
    }
    const float highest = max16(top), m_new = *m > highest ? *m : highest;
    if (t0 == t1 || m_new == -INFINITY) { /* nothing to see, now or before */
        clear_pages(s, stride, n_pages);
        return 1;
    }
    const float shrink = vgetq_lane_f32(exp2_nonpos(vdupq_n_f32(*m - m_new)), 0);
    for (int page = 0; page < n_pages; page++) {
        const int lo = t0 - page * TERN_PAGE, hi = t1 - page * TERN_PAGE;
        if (lo <= 0 && hi >= TERN_PAGE)
            page_exp(s + (size_t)page * stride, m_new, sum, 0, 0, TERN_PAGE);
        else
            page_exp(s + (size_t)page * stride, m_new, sum, 1, lo, hi);
    }
    *l = *l * shrink + add_lanes16(sum);
    *m = m_new;
    return shrink;
}

/* ---- conversions ---- */

static void f16_to_f32(float *y, const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i += 4)
        vst1q_f32(y + i, load4(x, i, 1));
}

static void f32_to_f16(uint16_t *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 4)
        vst1_u16(y + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
}

void tern_attn_init_neon(struct tern_attn_kernels *k)
{
    k->score_f32 = score_f32;
    k->score_f16 = score_f16;
    k->softmax = softmax;
    k->accum_f32 = accum_f32;
    k->accum_f16 = accum_f16;
    k->f16_to_f32 = f16_to_f32;
    k->f32_to_f16 = f32_to_f16;
}
