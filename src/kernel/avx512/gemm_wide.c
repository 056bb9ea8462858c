/* The wide class: panels are dequantised into scratch for a range of K, then a register tile of 12 rows x 32 outputs
 * (two panels) runs over it.
 *
 * Blocking: DEPTH inputs of two panels are 16 KB, which stays in L1 while rows stream past them.  Many rows are taken
 * ROWS at a time, so that their DEPTH inputs stay in L2 together with the PANELS dequantised panels, and every panel is
 * dequantised once.  Between ranges of K the chains rest in y, which does not round. */
#include "kernel/avx512/gemm_block.h"
#include "kernel/avx512/gemm.h"

#include <string.h>

#define DEPTH  128
#define PANELS (TERN_GEMM_SCRATCH / (DEPTH * TERN_PANEL))
#define ROWS   96
#define TILE   12

struct range {
    float *y;
    size_t y_stride;
    const float *x; /* at the first input of the range */
    size_t x_stride;
    int depth;
    bool first; /* chains start here */
};

/* rows x panels*16 outputs from row r0 on; rows <= 12 and panels <= 2, both constant. */
ALWAYS void tile(const struct range *g, float *y, size_t y_stride, int r0, const float *const w[2], int rows,
                 int panels)
{
    __m512 acc[TILE][2];
    const float *x = g->x + (size_t)r0 * g->x_stride;
    const size_t xs = g->x_stride;
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++)
            acc[r][p] = g->first ? _mm512_setzero_ps() : _mm512_loadu_ps(y + (size_t)r * y_stride + 16 * p);
    }
    for (int k = 0; k < g->depth; k++) {
        __m512 v[2];
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++)
            v[p] = _mm512_load_ps(w[p] + k * TERN_PANEL);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            __m512 b = _mm512_set1_ps(x[(size_t)r * xs + (size_t)k]);
#pragma GCC unroll 2
            for (int p = 0; p < panels; p++)
                acc[r][p] = _mm512_fmadd_ps(v[p], b, acc[r][p]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++)
            _mm512_storeu_ps(y + (size_t)r * y_stride + 16 * p, acc[r][p]);
    }
}

typedef void tile_fn(const struct range *g, float *y, size_t y_stride, int r0, const float *const w[2]);

#define TILE_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#define X(n)                                                                                                    \
    static void tile_##n##_1(const struct range *g, float *y, size_t y_stride, int r0, const float *const w[2]) \
    {                                                                                                           \
        tile(g, y, y_stride, r0, w, n, 1);                                                                      \
    }                                                                                                           \
    static void tile_##n##_2(const struct range *g, float *y, size_t y_stride, int r0, const float *const w[2]) \
    {                                                                                                           \
        tile(g, y, y_stride, r0, w, n, 2);                                                                      \
    }
TILE_ROWS(X)
#undef X

static tile_fn *const tiles[TILE][2] = {
#define X(n) {tile_##n##_1, tile_##n##_2},
    TILE_ROWS(X)
#undef X
};

/* Up to 12 rows times one or two panels, for columns [n0, n0 + 16*panels) of y, of which only those below n exist. */
static void tile_at(const struct range *g, int r0, int rows, const float *const w[2], int panels, int n0, int n)
{
    tile_fn *fn = tiles[rows - 1][panels - 1];
    float *y = g->y + (size_t)r0 * g->y_stride + n0;
    int cols = n - n0;
    if (cols >= panels * TERN_PANEL) {
        fn(g, y, g->y_stride, r0, w);
        return;
    }
    float edge[TILE * 2 * TERN_PANEL];
    size_t bytes = (size_t)cols * sizeof *y, stride = 2 * TERN_PANEL;
    for (int r = 0; r < rows; r++) {
        memset(edge + (size_t)r * stride, 0, stride * sizeof *y);
        if (!g->first)
            memcpy(edge + (size_t)r * stride, y + (size_t)r * g->y_stride, bytes);
    }
    fn(g, edge, stride, r0, w);
    for (int r = 0; r < rows; r++)
        memcpy(y + (size_t)r * g->y_stride, edge + (size_t)r * stride, bytes);
}

/* All rows times `panels` dequantised panels. */
static void multiply(const struct range *g, int n_rows, const float *const *w, int panels, int n0, int n)
{
    for (int r0 = 0; r0 < n_rows; r0 += ROWS) {
        int r1 = n_rows - r0 < ROWS ? n_rows : r0 + ROWS;
        for (int p = 0; p < panels; p += 2) {
            int both = p + 2 <= panels ? 2 : 1;
            for (int r = r0; r < r1; r += TILE)
                tile_at(g, r, r1 - r < TILE ? r1 - r : TILE, w + p, both, n0 + p * TERN_PANEL, n);
        }
    }
}

void tern_gemm_wide_avx512(float *y, size_t y_stride, const float *x, size_t x_stride, int n_rows,
                           const struct tern_packed *w, int panel0, int panel1, float *scratch)
{
    if (n_rows <= TERN_FEW_ROWS && !tern_codes_integer(w->codes)) {
        tern_gemm_few_avx512(y, y_stride, x, x_stride, n_rows, w, panel0, panel1);
        return;
    }
    struct tern_panel_layout l = tern_panel_layout(w);
    const float *panels[PANELS];
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
                tern_gemm_expand_avx512(out, w, &l, p0 + p, k0, depth);
                panels[p] = out;
            }
            struct range g = {y, y_stride, x + k0, x_stride, depth, k0 == 0};
            multiply(&g, n_rows, panels, count, p0 * TERN_PANEL, w->n);
        }
    }
}
