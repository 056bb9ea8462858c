#include "kernel/attn.h"

#include <math.h>
#include "base/err.h"
#include "kernel/avx2/attn_simd.h"

/* Products in register tiles: `rows` query rows times `vecs` vectors of 8 tokens (scores) or 8 dims (values), at most
 * 12 accumulators.  An element is one chain from start to end, so neither the tile nor the chunk that carries it can
 * change its value: between chunks it rests in memory, exactly.
 *
 * f32 operands were decoded just now and lie in the L2 cache: the whole inner length in one go.  f16 operands come
 * from DRAM: chunks of a few KB keep the reads sequential, however many tiles share them. */

#define MAX_ROWS    6
#define SCORE_CHUNK 16   /* dims, 2 KB of f16 keys */
#define ACCUM_CHUNK 4096 /* bytes of f16 values */
#define AHEAD       2048 /* bytes from the line in use to the line asked for */

#define UNROLL(n) _Pragma(#n)

ATTN_INLINE void score_tile(float *s, const float *q, const void *k, int half, int dim, int d0, int d1, int rows,
                            int vecs)
{
    __m256 acc[MAX_ROWS][8], b[8];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++)
            acc[r][v] = d0 ? _mm256_loadu_ps(s + r * TERN_PAGE + 8 * v) : _mm256_setzero_ps();
#pragma GCC unroll 1
    for (int d = d0; d < d1; d++) {
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++)
            b[v] = load8(k, (size_t)d * TERN_PAGE + 8 * (size_t)v, half);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            __m256 a = _mm256_broadcast_ss(q + (size_t)r * (size_t)dim + d);
#pragma GCC unroll 8
            for (int v = 0; v < vecs; v++)
                acc[r][v] = _mm256_fmadd_ps(a, b[v], acc[r][v]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++)
            _mm256_storeu_ps(s + r * TERN_PAGE + 8 * v, acc[r][v]);
}

/* All tokens of dims [d0, d1).  Few rows take wide tiles, so that there are enough chains to hide the latency. */
ATTN_INLINE void score_rows(float *s, const float *q, const void *k, int half, int dim, int d0, int d1, int n_q)
{
    const int vecs = n_q == 1 ? 8 : n_q <= 3 ? 4 : 2;
    const int n_blocks = (n_q + MAX_ROWS - 1) / MAX_ROWS;
    for (int t = 0; t < TERN_PAGE; t += 8 * vecs) {
        const char *kt = (const char *)k + (size_t)t * (half ? 2 : 4);
        for (int b = 0, i = 0; b < n_blocks; b++) {
            int rows = (n_q - i + n_blocks - b - 1) / (n_blocks - b);
            float *si = s + (size_t)i * TERN_PAGE + t;
            const float *qi = q + (size_t)i * (size_t)dim;
            i += rows;
            if (vecs == 8)
                score_tile(si, qi, kt, half, dim, d0, d1, 1, 8);
            else if (vecs == 4 && rows == 2)
                score_tile(si, qi, kt, half, dim, d0, d1, 2, 4);
            else if (vecs == 4)
                score_tile(si, qi, kt, half, dim, d0, d1, 3, 4);
            else if (rows == 4)
                score_tile(si, qi, kt, half, dim, d0, d1, 4, 2);
            else if (rows == 5)
                score_tile(si, qi, kt, half, dim, d0, d1, 5, 2);
            else
                score_tile(si, qi, kt, half, dim, d0, d1, 6, 2);
        }
    }
}
