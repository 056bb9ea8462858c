/* The wide class: panels are dequantised into scratch for a range of K, then a register tile of 4 rows x 16 outputs
 * runs over it: 16 chains, and four inputs of a row in one register, so that every product takes its factor by lane.
 *
 * Blocking: DEPTH inputs of a panel are 16 KB, which stays in L1 while rows stream past it.  Many rows are taken
 * ROWS at a time, so that their DEPTH inputs stay in L2 together with the PANELS dequantised panels, and every panel is
 * dequantised once.  Between ranges of K the chains rest in y, which does not round. */
#include "kernel/neon/gemm.h"
#include "kernel/neon/gemm_block.h"

#include <string.h>

#define DEPTH  256
#define PANELS (TERN_GEMM_SCRATCH / (DEPTH * TERN_PANEL))
#define ROWS   96
#define TILE   4

struct range {
    float *y;
    size_t y_stride;
    const float *x; /* at the first input of the range */
    size_t x_stride;
    int depth;
    bool first; /* chains start here */
};

/* acc += weights of one input * element `lane` of each row's x. */
ALWAYS void step(float32x4_t acc[TILE][4], const float *w, const float32x4_t *x, int lane, int rows)
{
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        float32x4_t v = vld1q_f32(w + 4 * c);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            acc[r][c] = vfmaq_n_f32(acc[r][c], v, x[r][lane]);
    }
}

/* rows x 16 outputs, `rows` constant; x: the first row. */
ALWAYS void tile(const struct range *g, float *y, size_t y_stride, const float *x, const float *w, int rows)
{
    const size_t xs = g->x_stride;
    float32x4_t acc[TILE][4], v[TILE];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++)
            acc[r][c] = g->first ? vdupq_n_f32(0) : vld1q_f32(y + (size_t)r * y_stride + 4 * c);
    }
    int k = 0;
    for (; k + 4 <= g->depth; k += 4) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            v[r] = vld1q_f32(x + (size_t)r * xs + k);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            step(acc, w + (k + i) * TERN_PANEL, v, i, rows);
    }
    for (; k < g->depth; k++) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            v[r] = vld1q_dup_f32(x + (size_t)r * xs + k);
        step(acc, w + k * TERN_PANEL, v, 0, rows);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++)
            vst1q_f32(y + (size_t)r * y_stride + 4 * c, acc[r][c]);
    }
}

static void tile_any(const struct range *g, float *y, size_t y_stride, const float *x, const float *w, int rows)
{
    switch (rows) {
    case 1:
        tile(g, y, y_stride, x, w, 1);
        break;
    case 2:
        tile(g, y, y_stride, x, w, 2);
        break;
    case 3:
        tile(g, y, y_stride, x, w, 3);
        break;
    default:
        tile(g, y, y_stride, x, w, 4);
        break;
    }
}

/* As tile_any for rows from r0 and columns from n0 on of y, of which only `cols` exist. */
static void tile_at(const struct range *g, int r0, int rows, const float *w, int n0, int cols)
{
    float *y = g->y + (size_t)r0 * g->y_stride + n0;
    const float *x = g->x + (size_t)r0 * g->x_stride;
    if (cols >= TERN_PANEL) {
        tile_any(g, y, g->y_stride, x, w, rows);
        return;
    }
    float edge[TILE * TERN_PANEL] = {0};
    size_t bytes = (size_t)cols * sizeof *y;
    for (int r = 0; r < rows && !g->first; r++)
        memcpy(edge + r * TERN_PANEL, y + (size_t)r * g->y_stride, bytes);
    tile_any(g, edge, TERN_PANEL, x, w, rows);
    for (int r = 0; r < rows; r++)
        memcpy(y + (size_t)r * g->y_stride, edge + r * TERN_PANEL, bytes);
}

void tern_gemm_wide_neon(float *y, size_t y_stride, const float *x, size_t x_stride, int n_rows,
                         const struct tern_packed *w, int panel0, int panel1, float *scratch)
{
    struct tern_panel_layout l = tern_panel_layout(w);
    const float *panels[PANELS];
    int group = n_rows > ROWS ? PANELS : 1; /* with few rows there is nothing to reuse later */
    for (int p0 = panel0; p0 < panel1; p0 += group) {
        int count = panel1 - p0 < group ? panel1 - p0 : group;
        for (int k0 = 0; k0 < w->k; k0 += DEPTH) {
            struct range g = {y, y_stride, x + k0, x_stride, w->k - k0 < DEPTH ? w->k - k0 : DEPTH, k0 == 0};
            for (int p = 0; p < count; p++) {
                float *out = scratch + (size_t)p * DEPTH * TERN_PANEL;
                panels[p] = out;
                if (w->codes == TERN_CODES_F32)
                    panels[p] = (const float *)(const void *)(w->data + (size_t)(p0 + p) * w->panel_bytes) +
                                (size_t)k0 * TERN_PANEL;
                else
                    tern_gemm_expand_neon(out, w, &l, p0 + p, k0, g.depth);
            }
            for (int r0 = 0; r0 < n_rows; r0 += ROWS) {
                int r1 = n_rows - r0 < ROWS ? n_rows : r0 + ROWS;
                for (int p = 0; p < count; p++) {
                    int n0 = (p0 + p) * TERN_PANEL;
                    for (int r = r0; r < r1; r += TILE)
                        tile_at(&g, r, r1 - r < TILE ? r1 - r : TILE, panels[p], n0, w->n - n0);
                }
            }
        }
    }
}
