/* The wide class: panels are dequantised into scratch for a range of K, then a register tile of 6 rows x 16 outputs
 * runs over it.
 *
 * Blocking: DEPTH inputs of a panel are 16 KB, which stays in L1 while rows stream past it.  Many rows are taken
 * ROWS at a time, so that their DEPTH inputs stay in L2 together with the PANELS dequantised panels, and every panel is
 * dequantised once.  Between ranges of K the chains rest in y, which does not round. */
#include "kernel/avx2/gemm_block.h"
#include "kernel/avx2/gemm.h"

#include <string.h>

#define DEPTH  256
#define PANELS (TERN_GEMM_SCRATCH / (DEPTH * TERN_PANEL))
#define ROWS   96
#define TILE   6

struct range {
    float *y;
    size_t y_stride;
    const float *x; /* at the first input of the range */
    size_t x_stride;
    int depth;
    bool first; /* chains start here */
};

/* rows x panels*16 outputs from row r0 on; rows * panels <= 6, both constant. */
ALWAYS void tile(const struct range *g, float *y, size_t y_stride, int r0, const float *const w[2], int rows,
                 int panels)
{
    __m256 acc[TILE][4];
    const float *x = g->x + (size_t)r0 * g->x_stride;
    const size_t xs = g->x_stride;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int c = 0; c < 2 * panels; c++)
            acc[r][c] = g->first ? _mm256_setzero_ps() : _mm256_loadu_ps(y + (size_t)r * y_stride + 8 * c);
    }
#pragma GCC unroll 2
    for (int k = 0; k < g->depth; k++) {
        __m256 v[4];
#pragma GCC unroll 8
        for (int c = 0; c < 2 * panels; c++)
            v[c] = _mm256_load_ps(w[c / 2] + k * TERN_PANEL + c % 2 * 8);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            __m256 b = _mm256_broadcast_ss(x + (size_t)r * xs + k);
#pragma GCC unroll 8
            for (int c = 0; c < 2 * panels; c++)
                acc[r][c] = _mm256_fmadd_ps(v[c], b, acc[r][c]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int c = 0; c < 2 * panels; c++)
            _mm256_storeu_ps(y + (size_t)r * y_stride + 8 * c, acc[r][c]);
    }
}

static __attribute__((noinline)) void tile_6x1(const struct range *g, float *y, size_t y_stride, int r0,
                                               const float *const w[2])
{
    tile(g, y, y_stride, r0, w, 6, 1);
}

static void tile_any(const struct range *g, float *y, size_t y_stride, int r0, const float *const w[2], int rows,
                     int panels)
{
    switch (rows * 10 + panels) {
    case 61:
        tile_6x1(g, y, y_stride, r0, w);
        break;
#define X(r, p)                            \
    case r * 10 + p:                       \
        tile(g, y, y_stride, r0, w, r, p); \
        break;
        X(5, 1) X(4, 1) X(3, 1) X(2, 1) X(1, 1) X(3, 2) X(2, 2) X(1, 2)
#undef X
    }
}

/* As tile_any for columns [n0, n0 + 16*panels) of y, of which only those below n exist. */
static void tile_at(const struct range *g, int r0, int rows, const float *const w[2], int panels, int n0, int n)
{
    float *y = g->y + (size_t)r0 * g->y_stride + n0;
    int cols = n - n0;
    if (cols >= panels * TERN_PANEL) {
        tile_any(g, y, g->y_stride, r0, w, rows, panels);
        return;
    }
    float edge[TILE * 2 * TERN_PANEL];
    size_t bytes = (size_t)cols * sizeof *y, stride = 2 * TERN_PANEL;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        memset(edge + (size_t)r * stride, 0, stride * sizeof *y);
        if (!g->first)
            memcpy(edge + (size_t)r * stride, y + (size_t)r * g->y_stride, bytes);
    }
    tile_any(g, edge, stride, r0, w, rows, panels);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        memcpy(y + (size_t)r * g->y_stride, edge + (size_t)r * stride, bytes);
}

/* All rows times `panels` dequantised panels. */
static void multiply(const struct range *g, int n_rows, const float *const *w, int panels, int n0, int n)
{
    for (int r0 = 0; r0 < n_rows; r0 += ROWS) {
        int r1 = n_rows - r0 < ROWS ? n_rows : r0 + ROWS, full = r0 + (r1 - r0) / TILE * TILE;
        for (int p = 0; p < panels; p++) {
            for (int r = r0; r < full; r += TILE)
                tile_at(g, r, TILE, w + p, 1, n0 + p * TERN_PANEL, n);
        }
        /* What is left over has too few chains to hide the latency of an addition, unless panels go in pairs. */
        int rest = r1 - full, wide = rest <= 3 ? 2 : 1;
        for (int p = 0; rest && p < panels; p += wide) {
            int both = p + wide <= panels ? wide : 1;
            tile_at(g, full, rest, w + p, both, n0 + p * TERN_PANEL, n);
        }
    }
}

void tern_gemm_wide_avx2(float *y, size_t y_stride, const float *x, size_t x_stride, int n_rows,
                         const struct tern_packed *w, int panel0, int panel1, float *scratch)
{
    if (n_rows <= TERN_FEW_ROWS && !tern_codes_integer(w->codes)) {
        tern_gemm_few_avx2(y, y_stride, x, x_stride, n_rows, w, panel0, panel1);
        return;
    }
    struct tern_panel_layout l = tern_panel_layout(w);
    const float *panels[PANELS + 1];
    /* With few rows there is nothing to reuse later, and two panels stay in L1. */
    int group = n_rows > ROWS ? PANELS : 2;
    for (int p0 = panel0; p0 < panel1; p0 += group) {
        int count = panel1 - p0 < group ? panel1 - p0 : group;
        for (int k0 = 0; k0 < w->k; k0 += DEPTH) {
            int depth = w->k - k0 < DEPTH ? w->k - k0 : DEPTH;
            for (int p = 0; p < count; p++) {
                if (w->codes == TERN_CODES_F32) {
                    const uint8_t *data = w->data + (size_t)(p0 + p) * w->panel_bytes + (size_t)k0 * 64;
                    panels[p] = (const float *)(const void *)data;
                    continue;
                }
                float *out = scratch + (size_t)p * DEPTH * TERN_PANEL;
                tern_gemm_expand_avx2(out, w, &l, p0 + p, k0, depth);
                panels[p] = out;
            }
            panels[count] = panels[count - 1]; /* never multiplied; a pair may look at it */
            struct range g = {y, y_stride, x + k0, x_stride, depth, k0 == 0};
            multiply(&g, n_rows, panels, count, p0 * TERN_PANEL, w->n);
        }
    }
}
