/* The narrow class with vectors of eight: bytes of codes times bytes of activations,
 * up to four rows at a time on the same loaded weights (dot.h).
 *
 * AVX2: a block's dot product is gathered in 16-bit lanes as long as nothing can overflow: a maddubs of codes up to C
 * and activations up to 127 gives at most 2*127*C, so eight of them fit for codes up to four bits, four for five-bit
 * and two for six-bit ones.  Signed weights lend their sign to the activations, which leaves room for one.
 *
 * AVX-VNNI: unsigned codes times signed activations go straight into 32-bit lanes.  Signed weights become unsigned by
 * adding 128 (flipping the top bit), which moves their zero point by 128 here. */
#include "kernel/avx2/dot.h"
#include "kernel/avx2/gemm.h"
#include "kernel/avx2/gemm_block.h"

#include <string.h>

#define MAX_ROWS 4
#define VISIT    (TERN_SUPER / TERN_BLOCK) /* blocks that share the scales of the K kinds */

#ifdef __AVXVNNI__
#define RAISED 128 /* what signed codes are raised by */
#else
#define RAISED 0
#endif

ALWAYS __m256i quad_of(const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, 4);
    return _mm256_set1_epi32(four);
}

/* Left alone, the compiler turns the 16-bit sums into trees, which takes more vectors than there are registers.  This
 * statement makes it forget where a value came from. */
#define OPAQUE_VEC(v) __asm__("" : "+x"(v))

/* Dot products of one block: [activation row][half of the panel's rows][half of the block's inputs, where scales tell
 * them apart]. */
typedef __m256i block_dot[MAX_ROWS][2][2];

#ifdef __AVXVNNI__
ALWAYS void block_dots(enum tern_codes codes, enum tern_scales scales, const struct tern_panel_view *v, size_t b,
                       const struct tern_q8_row *x, int rows, block_dot dot)
{
    const __m256i table = code_table(codes, v);
    const uint8_t *block = v->codes + b * tern_codes_unit(codes);
    const int per_group = tern_scales_halves(scales) ? 4 : 8;
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++) {
        __m256i c[2] = {quad_codes(codes, table, block, q, 0), quad_codes(codes, table, block, q, 1)};
        if (tern_codes_signed(codes)) {
            c[0] = _mm256_xor_si256(c[0], _mm256_set1_epi8((char)RAISED));
            c[1] = _mm256_xor_si256(c[1], _mm256_set1_epi8((char)RAISED));
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const __m256i act = quad_of(x[r].q + b * TERN_BLOCK + 4 * q);
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                __m256i *d = &dot[r][h][q / per_group];
                *d = dot_quads(q % per_group ? *d : _mm256_setzero_si256(), c[h], act);
            }
        }
    }
}
#else
ALWAYS void block_dots(enum tern_codes codes, enum tern_scales scales, const struct tern_panel_view *v, size_t b,
                       const struct tern_q8_row *x, int rows, block_dot dot)
{
    const __m256i one = _mm256_set1_epi16(1), table = code_table(codes, v);
    const uint8_t *block = v->codes + b * tern_codes_unit(codes);
    const size_t at = b * TERN_BLOCK;
    const int per_group = tern_scales_halves(scales) ? 4 : 8;
    /* Quads whose 16-bit sums may be added up: all of a group, four, two or one. */
    const int run = tern_codes_signed(codes) ? 1 : codes == TERN_CODES_U6 ? 2 : codes == TERN_CODES_U5 ? 4 : per_group;
    __m256i sum[MAX_ROWS][2];
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++) {
        __m256i c[2] = {quad_codes(codes, table, block, q, 0), quad_codes(codes, table, block, q, 1)};
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            __m256i act = quad_of(x[r].q + at + 4 * q);
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                __m256i *d = &dot[r][h][q / per_group];
                __m256i t = tern_codes_signed(codes)
                                ? _mm256_maddubs_epi16(_mm256_abs_epi8(c[h]), _mm256_sign_epi8(act, c[h]))
                                : _mm256_maddubs_epi16(c[h], act);
                sum[r][h] = q % run ? _mm256_add_epi16(sum[r][h], t) : t;
                OPAQUE_VEC(sum[r][h]);
                if (q % run == run - 1) {
                    t = _mm256_madd_epi16(sum[r][h], one);
                    *d = q % per_group == run - 1 ? t : _mm256_add_epi32(*d, t);
                }
            }
        }
    }
}
#endif

/* One block's share of the chains; of a row of 16 bits, two of x, where the first stands. */
ALWAYS void add_block(enum tern_scales scales, const struct tern_panel_view *v, const struct super super[2], size_t b,
                      const struct tern_q8_row *x, int rows, int columns, int zero, block_dot dot,
                      __m256 acc[MAX_ROWS][2])
{
    const int groups = tern_scales_halves(scales) ? 2 : 1;
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++) {
        __m256 scale[2], minimum[2];
        group_scale(scales, v, &super[0], 2 * b + (size_t)g, 0, &scale[0], &minimum[0]);
        group_scale(scales, v, &super[1], 2 * b + (size_t)g, 8, &scale[1], &minimum[1]);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r += columns) {
            float sx = x[r].scale[b];
            int32_t isum = x[r].sum16[2 * b + (size_t)g];
            if (groups == 1)
                isum += x[r].sum16[2 * b + 1];
            __m256 sx8 = _mm256_set1_ps(sx), sum8 = _mm256_set1_ps(sx * (float)isum);
            __m256i zero8 = _mm256_set1_epi32((int32_t)((uint32_t)zero * (uint32_t)isum));
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                __m256i d = dot[r][h][g];
                if (columns == 2)
                    d = _mm256_add_epi32(_mm256_slli_epi32(d, 8), dot[r + 1][h][g]);
                if (tern_scales_zero(scales)) /* as those of all signed codes have */
                    d = _mm256_sub_epi32(d, zero8);
                acc[r][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(d), _mm256_mul_ps(scale[h], sx8), acc[r][h]);
                if (tern_scales_minimum(scales))
                    acc[r][h] = plus_minimum(scales, minimum[h], sum8, acc[r][h]);
            }
        }
    }
}

/* What the loops need to know about a matrix. */
struct walk {
    size_t blocks, panel_bytes;
    int zero;
    struct tern_ahead ahead;
};

/* One panel times `rows` rows of x, out[row][16]: with two columns every other of them.  Panels follow one another in
 * memory, and one sequence is what the processors that stop at AVX2 read best: several side by side took 3 to 20 %
 * longer. */
ALWAYS void panel_dots(enum tern_codes codes, enum tern_scales scales, float *out, const struct tern_panel_view *v,
                       const struct walk *w, const struct tern_q8_row *rows_in, int rows, int columns)
{
    const size_t blocks = w->blocks, panel_bytes = w->panel_bytes;
    const int zero = w->zero + RAISED * tern_codes_signed(codes);
    const struct tern_ahead ahead = w->ahead;
    struct tern_q8_row x[MAX_ROWS]; /* a copy that stores to `out` cannot touch */
    __m256 acc[MAX_ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        x[r] = rows_in[r];
        acc[r][0] = acc[r][1] = _mm256_setzero_ps();
    }
    for (size_t b0 = 0; b0 < blocks; b0 += VISIT) {
        const struct super super[2] = {super_scale(scales, v, b0 / VISIT, 0), super_scale(scales, v, b0 / VISIT, 8)};
        const size_t b1 = b0 + VISIT < blocks ? b0 + VISIT : blocks;
#pragma GCC unroll 1
        for (size_t b = b0; b < b1; b++) {
            block_dot dot;
            tern_prefetch_block(codes, scales, v, b, &ahead, blocks, panel_bytes);
            block_dots(codes, scales, v, b, x, rows, dot);
            add_block(scales, v, super, b, x, rows, columns, zero, dot, acc);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r += columns) {
        _mm256_store_ps(out + r / columns * TERN_PANEL, acc[r][0]);
        _mm256_store_ps(out + r / columns * TERN_PANEL + 8, acc[r][1]);
    }
}

typedef void panel_fn(float *out, const struct tern_panel_view *v, const struct walk *w, const struct tern_q8_row *x);

#define ROWS_FN(c, s, n, columns)                                                                                    \
    static void panel_##c##_##s##_##n##_##columns(float *out, const struct tern_panel_view *v, const struct walk *w, \
                                                  const struct tern_q8_row *x)                                       \
    {                                                                                                                \
        panel_dots(TERN_CODES_##c, TERN_SCALES_##s, out, v, w, x, n, columns);                                       \
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

/* Rows of a panel's outputs to where they belong; the last panel may have fewer than 16. */
static void give(float *y, size_t y_stride, const float *out, int rows, int cols)
{
    for (int r = 0; r < rows; r++) {
        if (cols == TERN_PANEL)
            memcpy(y + (size_t)r * y_stride, out + r * TERN_PANEL, TERN_PANEL * sizeof *y);
        else
            memcpy(y + (size_t)r * y_stride, out + r * TERN_PANEL, (size_t)cols * sizeof *y);
    }
}

ALWAYS void products(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows, const struct tern_packed *w,
                     int panel0, int panel1, int columns)
{
    struct tern_panel_layout l = tern_panel_layout(w);
    panel_fn *const *fns = panel_fns(w, columns);
    float out[MAX_ROWS * TERN_PANEL] __attribute__((aligned(64)));
    const struct walk walk = {(size_t)w->k / TERN_BLOCK, w->panel_bytes, w->zero, tern_ahead_of(w)};
    const int most = MAX_ROWS / columns;
    for (int p = panel0; p < panel1; p++) {
        const struct tern_panel_view v = tern_panel_view(w, &l, p);
        const int n0 = p * TERN_PANEL, cols = w->n - n0 < TERN_PANEL ? w->n - n0 : TERN_PANEL;
        for (int r0 = 0; r0 < n_rows; r0 += most) {
            int rows = n_rows - r0 < most ? n_rows - r0 : most;
            fns[rows - 1](out, &v, &walk, x + r0 * columns);
            give(y + (size_t)r0 * y_stride + n0, y_stride, out, rows, cols);
        }
    }
}

void TERN_AT_LEVEL(tern_gemm_narrow)(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows,
                                     const struct tern_packed *w, int panel0, int panel1)
{
    products(y, y_stride, x, n_rows, w, panel0, panel1, 1);
}

void TERN_AT_LEVEL(tern_gemm_narrow16)(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows,
                                       const struct tern_packed *w, int panel0, int panel1)
{
    products(y, y_stride, x, n_rows, w, panel0, panel1, 2);
}
