/* The narrow class: sdot takes four codes of each of four rows and one lane of activations, up to four activation rows
 * at a time on the same loaded weights. */
#include "kernel/neon/dot.h"
#include "kernel/neon/gemm.h"
#include "kernel/neon/gemm_block.h"

#include <string.h>

#define MAX_ROWS 4
#define VISIT    (TERN_SUPER / TERN_BLOCK) /* blocks that share the scales of the K kinds */

/* Block b's share of the chains acc[activation row][four rows of the panel]; of a row of 16 bits, two of x, where the
 * first stands. */
ALWAYS void add_block(enum tern_codes codes, enum tern_scales scales, const struct tern_panel_view *v,
                      const struct super *super, size_t b, const struct tern_q8_row *x, int rows, int columns, int zero,
                      float32x4_t acc[MAX_ROWS][4])
{
    const int groups = tern_scales_halves(scales) ? 2 : 1, per_group = 8 / groups;
    const uint8_t *block = v->codes + b * tern_codes_unit(codes);
    const int8x16_t table = code_table(codes, v);
    int8x16_t a[MAX_ROWS][2];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        a[r][0] = vld1q_s8(x[r].q + b * TERN_BLOCK);
        a[r][1] = vld1q_s8(x[r].q + b * TERN_BLOCK + 16);
    }
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++) {
        struct rows16 scale, minimum;
        int32_t isum[MAX_ROWS];
        group_scale(scales, v, super, 2 * b + (size_t)g, 0, &scale, &minimum);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r += columns)
            isum[r] = x[r].sum16[2 * b + (size_t)g] + (groups == 1 ? x[r].sum16[2 * b + 1] : 0);
#pragma GCC unroll 4
        for (int h = 0; h < 4; h++) {
            int32x4_t d[MAX_ROWS];
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) /* the zero point of a row of 16 bits stands in its second column */
                d[r] = vdupq_n_s32(
                    tern_scales_zero(scales) && r % columns == columns - 1 ? -zero * isum[r + 1 - columns] : 0);
#pragma GCC unroll 8
            for (int q = g * per_group; q < (g + 1) * per_group; q++) {
                int8x16_t c = quad_codes(codes, table, block, q, h);
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++)
                    d[r] = dot_lane(d[r], c, a[r][q / 4], q % 4);
            }
#pragma GCC unroll 4
            for (int r = 0; r < rows; r += columns) {
                float sx = x[r].scale[b];
                if (columns == 2)
                    d[r] = vaddq_s32(vshlq_n_s32(d[r], 8), d[r + 1]);
                acc[r][h] = vfmaq_f32(acc[r][h], vcvtq_f32_s32(d[r]), vmulq_n_f32(scale.v[h], sx));
                if (tern_scales_minimum(scales))
                    acc[r][h] = plus_minimum(scales, minimum.v[h], vdupq_n_f32(sx * (float)isum[r]), acc[r][h]);
            }
        }
    }
}

/* One panel times `rows` rows of x, out[row][16]: with two columns every other of them. */
ALWAYS void panel_dots(enum tern_codes codes, enum tern_scales scales, float *out, const struct tern_panel_view *v,
                       size_t blocks, int zero, const struct tern_q8_row *rows_in, int rows, int columns)
{
    struct tern_q8_row x[MAX_ROWS]; /* a copy that stores to `out` cannot touch */
    float32x4_t acc[MAX_ROWS][4];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        x[r] = rows_in[r];
#pragma GCC unroll 4
        for (int h = 0; h < 4; h++)
            acc[r][h] = vdupq_n_f32(0);
    }
    for (size_t b0 = 0; b0 < blocks; b0 += VISIT) {
        const struct super super = super_scale(scales, v, b0 / VISIT, 0);
        const size_t b1 = b0 + VISIT < blocks ? b0 + VISIT : blocks;
#pragma GCC unroll 1
        for (size_t b = b0; b < b1; b++)
            add_block(codes, scales, v, &super, b, x, rows, columns, zero, acc);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r += columns) {
#pragma GCC unroll 4
        for (int h = 0; h < 4; h++)
            vst1q_f32(out + r / columns * TERN_PANEL + 4 * h, acc[r][h]);
    }
}

typedef void panel_fn(float *out, const struct tern_panel_view *v, size_t blocks, int zero,
                      const struct tern_q8_row *x);

#define ROWS_FN(c, s, n, columns)                                                                             \
    static void panel_##c##_##s##_##n##_##columns(float *out, const struct tern_panel_view *v, size_t blocks, \
                                                  int zero, const struct tern_q8_row *x)                      \
    {                                                                                                         \
        panel_dots(TERN_CODES_##c, TERN_SCALES_##s, out, v, blocks, zero, x, n, columns);                     \
    }
#define KIND_FNS(c, s)  \
    ROWS_FN(c, s, 1, 1) \
    ROWS_FN(c, s, 2, 1) \
    ROWS_FN(c, s, 3, 1) ROWS_FN(c, s, 4, 1) ROWS_FN(c, s, 2, 2) ROWS_FN(c, s, 4, 2)
TERN_NARROW_KINDS(KIND_FNS)

/* By rows of one column, less 1; behind them by rows of two. */
static panel_fn *const *panel_fns(const struct tern_packed *w, int columns)
{
#define KIND_ROW(c, s)                                                                                        \
    if (w->codes == TERN_CODES_##c && w->scales == TERN_SCALES_##s) {                                         \
        static panel_fn *const fns[] = {panel_##c##_##s##_1_1, panel_##c##_##s##_2_1, panel_##c##_##s##_3_1,  \
                                        panel_##c##_##s##_4_1, panel_##c##_##s##_2_2, panel_##c##_##s##_4_2}; \
        return fns + (columns == 2 ? MAX_ROWS : 0);                                                           \
    }
    TERN_NARROW_KINDS(KIND_ROW)
    return NULL;
}

ALWAYS void products(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows, const struct tern_packed *w,
                     int panel0, int panel1, int columns)
{
    struct tern_panel_layout l = tern_panel_layout(w);
    panel_fn *const *fns = panel_fns(w, columns);
    float out[MAX_ROWS * TERN_PANEL] __attribute__((aligned(64)));
    const int most = MAX_ROWS / columns;
    for (int p = panel0; p < panel1; p++) {
        struct tern_panel_view v = tern_panel_view(w, &l, p);
        int n0 = p * TERN_PANEL, cols = w->n - n0 < TERN_PANEL ? w->n - n0 : TERN_PANEL;
        for (int r0 = 0; r0 < n_rows; r0 += most) {
            int rows = n_rows - r0 < most ? n_rows - r0 : most;
            fns[rows - 1](out, &v, (size_t)w->k / TERN_BLOCK, w->zero, x + r0 * columns);
            for (int r = 0; r < rows; r++)
                memcpy(y + (size_t)(r0 + r) * y_stride + n0, out + r * TERN_PANEL, (size_t)cols * sizeof *y);
        }
    }
}

void tern_gemm_narrow_neon(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows,
                           const struct tern_packed *w, int panel0, int panel1)
{
    products(y, y_stride, x, n_rows, w, panel0, panel1, 1);
}

void tern_gemm_narrow16_neon(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows,
                             const struct tern_packed *w, int panel0, int panel1)
{
    products(y, y_stride, x, n_rows, w, panel0, panel1, 2);
}
