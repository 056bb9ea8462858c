/* The narrow class on VNNI: unsigned codes times signed activations, four at a time straight into 32-bit lanes, up to
 * eight rows on the same loaded weights.
 *
 * A dot product starts from -zero * isum, which is where the formula of kernel/gemm.h puts the zero point.  Signed
 * weights become unsigned by adding 128 (flipping the top bit), which moves their zero point by 128 here. */
#include "kernel/avx512/gemm_block.h"
#include "kernel/avx512/gemm.h"

#include <string.h>

#define MAX_ROWS 8
#define AHEAD    8 /* blocks of prefetch */
#define STREAMS  4

ALWAYS __m512i quad_of(const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, 4);
    return _mm512_set1_epi32(four);
}

/* Dot products of one block minus zero points: [activation row][half of the block's inputs, where scales tell them
 * apart]. */
typedef __m512i block_dot[MAX_ROWS][2];

ALWAYS void block_dots(enum tern_codes codes, enum tern_scales scales, const struct tern_panel_view *v, size_t b,
                       const struct tern_q8_row *x, int rows, int zero, block_dot dot)
{
    const int groups = tern_scales_halves(scales) ? 2 : 1;
    const uint8_t *block = v->codes + b * tern_codes_unit(codes);
    const __m512i table = code_table(codes, v);
    const bool moved = tern_scales_zero(scales);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        int32_t first = x[r].sum16[2 * b], second = x[r].sum16[2 * b + 1];
        if (groups == 1)
            first += second;
        dot[r][0] = moved ? _mm512_set1_epi32(-zero * first) : _mm512_setzero_si512();
        dot[r][1] = moved ? _mm512_set1_epi32(-zero * second) : _mm512_setzero_si512();
    }
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++) {
        __m512i c = quad_codes(codes, table, block, q);
        if (tern_codes_signed(codes))
            c = _mm512_xor_si512(c, _mm512_set1_epi8((char)0x80));
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            __m512i *d = &dot[r][groups == 2 ? q / 4 : 0];
            *d = _mm512_dpbusd_epi32(*d, c, quad_of(x[r].q + b * TERN_BLOCK + (size_t)(4 * q)));
        }
    }
}

/* One block's share of the chains out[row][16]. */
ALWAYS void add_block(enum tern_scales scales, const struct tern_panel_view *v, size_t b, const struct tern_q8_row *x,
                      int rows, block_dot dot, float *out)
{
    const int groups = tern_scales_halves(scales) ? 2 : 1;
    const struct super super = super_scale(scales, v, b / (TERN_SUPER / TERN_BLOCK), 0);
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++) {
        __m512 scale, minimum;
        group_scale(scales, v, &super, 2 * b + (size_t)g, 0, &scale, &minimum);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            float sx = x[r].scale[b];
            __m512 acc = _mm512_load_ps(out + r * TERN_PANEL);
            acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][g]), _mm512_mul_ps(scale, _mm512_set1_ps(sx)), acc);
            if (tern_scales_minimum(scales)) {
                int32_t sum = x[r].sum16[2 * b + (size_t)g];
                if (groups == 1)
                    sum += x[r].sum16[2 * b + 1];
                acc = plus_minimum(scales, minimum, _mm512_set1_ps(sx * (float)sum), acc);
            }
            _mm512_store_ps(out + r * TERN_PANEL, acc);
        }
    }
}

/* What the loops need to know about a matrix. */
struct walk {
    size_t blocks, panel_bytes;
    int zero, streams;
};

/* `streams` panels times `rows` activation rows.  Several panels are read side by side because the memory system serves
 * a few distant sequences better than one; the chains wait in out[stream][row][16] meanwhile. */
ALWAYS void panel_dots(enum tern_codes codes, enum tern_scales scales, float *out, const struct tern_panel_view *v,
                       const struct walk *w, const struct tern_q8_row *rows_in, int rows)
{
    const size_t blocks = w->blocks, panel_bytes = w->panel_bytes;
    const int zero = w->zero + (tern_codes_signed(codes) ? 128 : 0), streams = w->streams;
    struct tern_q8_row x[MAX_ROWS]; /* a copy that stores to `out` cannot touch */
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        x[r] = rows_in[r];
    memset(out, 0, (size_t)streams * MAX_ROWS * TERN_PANEL * sizeof *out);
    for (size_t b = 0; b < blocks; b++) {
#pragma GCC unroll 1
        for (int s = 0; s < streams; s++) {
            block_dot dot;
            tern_prefetch_block(codes, scales, &v[s], b, AHEAD, blocks, panel_bytes);
            block_dots(codes, scales, &v[s], b, x, rows, zero, dot);
            add_block(scales, &v[s], b, x, rows, dot, out + s * MAX_ROWS * TERN_PANEL);
        }
    }
}

typedef void panel_fn(float *out, const struct tern_panel_view *v, const struct walk *w, const struct tern_q8_row *x);

#define ROWS_FN(c, s, n)                                                                                 \
    static void panel_##c##_##s##_##n(float *out, const struct tern_panel_view *v, const struct walk *w, \
                                      const struct tern_q8_row *x)                                       \
    {                                                                                                    \
        panel_dots(TERN_CODES_##c, TERN_SCALES_##s, out, v, w, x, n);                                    \
    }
#define KIND_FNS(c, s) \
    ROWS_FN(c, s, 1)   \
    ROWS_FN(c, s, 2)   \
    ROWS_FN(c, s, 3) ROWS_FN(c, s, 4) ROWS_FN(c, s, 5) ROWS_FN(c, s, 6) ROWS_FN(c, s, 7) ROWS_FN(c, s, 8)
TERN_NARROW_KINDS(KIND_FNS)

static panel_fn *const *panel_fns(const struct tern_packed *w)
{
#define KIND_ROW(c, s)                                                                                 \
    if (w->codes == TERN_CODES_##c && w->scales == TERN_SCALES_##s) {                                  \
        static panel_fn *const fns[] = {panel_##c##_##s##_1, panel_##c##_##s##_2, panel_##c##_##s##_3, \
                                        panel_##c##_##s##_4, panel_##c##_##s##_5, panel_##c##_##s##_6, \
                                        panel_##c##_##s##_7, panel_##c##_##s##_8};                     \
        return fns;                                                                                    \
    }
    TERN_NARROW_KINDS(KIND_ROW)
    return NULL;
}

void tern_gemm_narrow_avx512(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows,
                             const struct tern_packed *w, int panel0, int panel1)
{
    struct tern_panel_layout l = tern_panel_layout(w);
    panel_fn *const *fns = panel_fns(w);
    float out[STREAMS * MAX_ROWS * TERN_PANEL] __attribute__((aligned(64)));
    struct walk walk = {(size_t)w->k / TERN_BLOCK, w->panel_bytes, w->zero, 0};
    int step = (panel1 - panel0 + STREAMS - 1) / STREAMS;
    for (int p0 = panel0; p0 < panel0 + step; p0++) {
        struct tern_panel_view v[STREAMS];
        walk.streams = 0;
        for (int p = p0; p < panel1; p += step)
            v[walk.streams++] = tern_panel_view(w, &l, p);
        for (int r0 = 0; r0 < n_rows; r0 += MAX_ROWS) {
            int rows = n_rows - r0 < MAX_ROWS ? n_rows - r0 : MAX_ROWS;
            fns[rows - 1](out, v, &walk, x + r0);
            for (int i = 0; i < walk.streams * rows; i++) {
                int s = i / rows, r = i % rows, n0 = (p0 + s * step) * TERN_PANEL;
                int cols = w->n - n0 < TERN_PANEL ? w->n - n0 : TERN_PANEL;
                memcpy(y + (size_t)(r0 + r) * y_stride + n0, out + (s * MAX_ROWS + r) * TERN_PANEL,
                       (size_t)cols * sizeof *y);
            }
        }
    }
}
