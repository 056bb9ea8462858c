/* The narrow class on VNNI: unsigned codes times signed activations, four at a time straight into 32-bit lanes, up to
 * eight rows on the same loaded weights.
 *
 * A dot product starts from -zero * isum, which is where the formula of kernel/gemm.h puts the zero point.  Signed
 * weights become unsigned by adding 128 (flipping the top bit), which moves their zero point by 128 here. */
#include "kernel/avx512/gemm_block.h"
#include "kernel/avx512/gemm.h"

#include <string.h>

#define MAX_ROWS 8

/* Where the activations of a block are, of up to eight rows that lie s1 bytes apart.  Every address is one of four
 * distances (s1, s3 = 3*s1, ...) on top of three pointers, which an instruction adds up for nothing; 24 pointers would
 * have to be fetched again and again. */
struct activations {
    const char *q, *scale, *sum; /* of row 0 */
    ptrdiff_t s1, s3, s5, s7;
};

ALWAYS const char *of_row(const char *p, const struct activations *x, int r)
{
    switch (r) {
    case 0:
        return p;
    case 1:
        return p + x->s1;
    case 2:
        return p + 2 * x->s1;
    case 3:
        return p + x->s3;
    case 4:
        return p + 4 * x->s1;
    case 5:
        return p + x->s5;
    case 6:
        return p + 2 * x->s3;
    default:
        return p + x->s7;
    }
}

ALWAYS __m512 one_float(const char *p)
{
    return _mm512_castsi512_ps(four_bytes(p));
}

/* Dot products of one block minus zero points: [activation row][half of the block's inputs, where scales tell them
 * apart]. */
typedef __m512i block_dot[MAX_ROWS][2];

/* A dot starts from -zero times the sum of the activations, which fits 16 bits; so does zero, and a product of 16-bit
 * pairs takes both from where they are. */
ALWAYS void block_dots(enum tern_codes codes, enum tern_scales scales, const struct tern_panel_view *v, size_t b,
                       const struct activations *x, int rows, int columns, int zero, block_dot dot)
{
    const int groups = tern_scales_halves(scales) ? 2 : 1;
    const uint8_t *block = v->codes + b * tern_codes_unit(codes);
    const __m512i table = code_table(codes, v), minus_zero = _mm512_set1_epi32((uint16_t)-zero);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        dot[r][0] = dot[r][1] = _mm512_setzero_si512();
        if (!tern_scales_zero(scales) || columns == 2)
            continue;
        __m512i first = four_bytes(of_row(x->sum, x, r)), second = four_bytes(of_row(x->sum, x, r) + 4);
        dot[r][0] = _mm512_dpwssd_epi32(dot[r][0], minus_zero, first);
        dot[r][groups - 1] = _mm512_dpwssd_epi32(dot[r][groups - 1], minus_zero, second);
    }
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++) {
        __m512i c = quad_codes(codes, table, block, q);
        if (tern_codes_signed(codes))
            c = _mm512_xor_si512(c, _mm512_set1_epi8((char)0x80));
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            __m512i *d = &dot[r][groups == 2 ? q / 4 : 0];
            *d = _mm512_dpbusd_epi32(*d, c, four_bytes(of_row(x->q, x, r) + 4 * q));
        }
    }
}

/* The dot of a row of 16 bits.  Its sums are beyond 16 bits, so that the zero point has to wait until here. */
ALWAYS __m512i both_columns(enum tern_scales scales, __m512i high, __m512i low, const char *sums, int groups, int zero)
{
    __m512i dot = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
    if (!tern_scales_zero(scales))
        return dot;
    int32_t sum[2] = {0, 0};
    memcpy(sum, sums, 4);
    if (groups == 1)
        memcpy(sum + 1, sums + 4, 4);
    return _mm512_sub_epi32(dot, _mm512_set1_epi32(zero * (sum[0] + sum[1])));
}

/* One block's share of the chains, those of a row of 16 bits where its first column stands. */
ALWAYS void add_block(enum tern_scales scales, const struct tern_panel_view *v, size_t b, const struct activations *x,
                      int rows, int columns, int zero, block_dot dot, __m512 acc[MAX_ROWS])
{
    const int groups = tern_scales_halves(scales) ? 2 : 1;
    const struct super super = super_scale(scales, v, b / (TERN_SUPER / TERN_BLOCK), 0);
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++) {
        __m512 scale, minimum;
        group_scale(scales, v, &super, 2 * b + (size_t)g, 0, &scale, &minimum);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r += columns) {
            __m512 sx = one_float(of_row(x->scale, x, r));
            if (columns == 2)
                dot[r][g] = both_columns(scales, dot[r][g], dot[r + 1][g], of_row(x->sum, x, r) + 4 * g, groups, zero);
            acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][g]), _mm512_mul_ps(scale, sx), acc[r]);
            if (tern_scales_minimum(scales)) {
                __m512i sum = four_bytes(of_row(x->sum, x, r) + 4 * g);
                if (groups == 1)
                    sum = _mm512_add_epi32(sum, four_bytes(of_row(x->sum, x, r) + 4));
                acc[r] = plus_minimum(scales, minimum, _mm512_mul_ps(sx, _mm512_cvtepi32_ps(sum)), acc[r]);
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
 * memory. */
ALWAYS void panel_dots(enum tern_codes codes, enum tern_scales scales, float *out, const struct tern_panel_view *v,
                       const struct walk *w, const struct tern_q8_row *row, int rows, int columns)
{
    const size_t blocks = w->blocks, panel_bytes = w->panel_bytes;
    const struct tern_ahead ahead = w->ahead;
    const int zero = w->zero + (tern_codes_signed(codes) ? 128 : 0);
    const ptrdiff_t s1 = rows > 1 ? row[1].q - row[0].q : 0;
    struct activations x = {
        (const char *)row->q, (const char *)row->scale, (const char *)row->sum16, s1, 3 * s1, 5 * s1, 7 * s1};
    __m512 acc[MAX_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        acc[r] = _mm512_setzero_ps();
#pragma GCC unroll 1
    for (size_t b = 0; b < blocks; b++) {
        block_dot dot;
        if (rows > 2) /* or the compiler keeps a pointer for each row */
            __asm__("" : "+r"(x.s1), "+r"(x.s3), "+r"(x.s5), "+r"(x.s7));
        tern_prefetch_block(codes, scales, v, b, &ahead, blocks, panel_bytes);
        block_dots(codes, scales, v, b, &x, rows, columns, zero, dot);
        add_block(scales, v, b, &x, rows, columns, zero, dot, acc);
        x.q += TERN_BLOCK;
        x.scale += sizeof(float);
        x.sum += 2 * sizeof(int32_t);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r += columns)
        _mm512_store_ps(out + r / columns * TERN_PANEL, acc[r]);
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
    ROWS_FN(c, s, 3, 1) \
    ROWS_FN(c, s, 4, 1) \
    ROWS_FN(c, s, 5, 1) \
    ROWS_FN(c, s, 6, 1) \
    ROWS_FN(c, s, 7, 1) \
    ROWS_FN(c, s, 8, 1) \
    ROWS_FN(c, s, 2, 2) ROWS_FN(c, s, 4, 2) ROWS_FN(c, s, 6, 2) ROWS_FN(c, s, 8, 2)
TERN_NARROW_KINDS(KIND_FNS)

/* By rows of one column, less 1; behind them by rows of two. */
static panel_fn *const *panel_fns(const struct tern_packed *w, int columns)
{
#define KIND_ROW(c, s)                                                                                        \
    if (w->codes == TERN_CODES_##c && w->scales == TERN_SCALES_##s) {                                         \
        static panel_fn *const fns[] = {panel_##c##_##s##_1_1, panel_##c##_##s##_2_1, panel_##c##_##s##_3_1,  \
                                        panel_##c##_##s##_4_1, panel_##c##_##s##_5_1, panel_##c##_##s##_6_1,  \
                                        panel_##c##_##s##_7_1, panel_##c##_##s##_8_1, panel_##c##_##s##_2_2,  \
                                        panel_##c##_##s##_4_2, panel_##c##_##s##_6_2, panel_##c##_##s##_8_2}; \
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
    const struct walk walk = {(size_t)w->k / TERN_BLOCK, w->panel_bytes, w->zero, tern_ahead_of(w)};
    const int most = MAX_ROWS / columns;
    for (int p = panel0; p < panel1; p++) {
        const struct tern_panel_view v = tern_panel_view(w, &l, p);
        const int n0 = p * TERN_PANEL, cols = w->n - n0 < TERN_PANEL ? w->n - n0 : TERN_PANEL;
        for (int r0 = 0; r0 < n_rows; r0 += most) {
            const int rows = n_rows - r0 < most ? n_rows - r0 : most;
            fns[rows - 1](out, &v, &walk, x + r0 * columns);
            for (int r = 0; r < rows; r++)
                memcpy(y + (size_t)(r0 + r) * y_stride + n0, out + r * TERN_PANEL, (size_t)cols * sizeof *y);
        }
    }
}

void tern_gemm_narrow_avx512(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows,
                             const struct tern_packed *w, int panel0, int panel1)
{
    products(y, y_stride, x, n_rows, w, panel0, panel1, 1);
}

void tern_gemm_narrow16_avx512(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows,
                               const struct tern_packed *w, int panel0, int panel1)
{
    products(y, y_stride, x, n_rows, w, panel0, panel1, 2);
}
