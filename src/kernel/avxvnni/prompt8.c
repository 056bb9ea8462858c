/* The int8 class of prompt.h on AVX-VNNI: `vpdpbusd` adds four products of unsigned and signed bytes to each of eight
 * integers.  Around it kernel/prompt_impl.h.
 *
 * Codes become unsigned bytes (signed ones plus 128, which moves the zero point).  Register tiles are those of
 * avx2/prompt.c.  -zero * isum joins at the end, as in avx512/prompt8.c.  Counts for 32 inputs of six rows: 96
 * `vpdpbusd`, 12 each of additions, conversions, products of scales, and multiply-adds (24 with a minimum): 48 cycles
 * at two in each, for 3,072 products. */
#include "kernel/avx2/dot.h"
#include "kernel/avx2/gemm.h"
#include "kernel/avx2/gemm_block.h"
#include "kernel/avx2/simd.h"

#define PROMPT_INT8 tern_gemm_quantize_avx2
#define TILE        6
#define PAD         2
#define RAISED      128
#define WIDTH       1
#define RANGE_STEPS 24 /* 18 KB */
#define PANELS      16
#define ROWS        64
#include "kernel/prompt_impl.h"
#include "kernel/avx2/prompt_tile.h"

/* ---- weights ---- */

PROMPT_INLINE void expand(enum tern_codes codes, enum tern_scales scales, struct block *out,
                          const struct tern_panel_view *v, int zero, int step)
{
    const uint8_t *block = v->codes + (size_t)step * tern_codes_unit(codes);
    const __m256i table = code_table(codes, v), top = _mm256_set1_epi8((char)RAISED);
    (void)zero; /* of all 32 inputs at once, in group_tile */
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            const __m256i c = quad_codes(codes, table, block, q, h);
            _mm256_store_si256((__m256i *)(void *)(out->quads[q] + 32 * h),
                               tern_codes_signed(codes) ? _mm256_xor_si256(c, top) : c);
        }
    }
    expand_scales(scales, out, v, step, 0);
    expand_scales(scales, out, v, step, 1);
}

/* ---- products ---- */

ALWAYS __m256i four_codes(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

/* What a group's sums are scaled by: of the weights, kept in registers, and of the rows. */
struct factors {
    __m256 scale[2], minimum[2];
    const float *x, *product; /* of the rows: scales, and times their sums */
    const int32_t *shift;     /* -zero * isum */
};

/* The chains of one row: += its sums of a group, less the zero points'. */
ALWAYS void add_group(const struct factors *f, float *chain, int r, bool minimum, __m256i dot0, __m256i dot1)
{
    const __m256 sx = _mm256_broadcast_ss(f->x + r);
    const __m256i shift = _mm256_set1_epi32(f->shift[r]);
    dot0 = _mm256_add_epi32(dot0, shift);
    dot1 = _mm256_add_epi32(dot1, shift);
    __m256 a = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot0), _mm256_mul_ps(f->scale[0], sx), _mm256_load_ps(chain));
    __m256 b = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot1), _mm256_mul_ps(f->scale[1], sx), _mm256_load_ps(chain + 8));
    if (minimum) {
        const __m256 product = _mm256_broadcast_ss(f->product + r);
        a = _mm256_fmadd_ps(f->minimum[0], product, a);
        b = _mm256_fmadd_ps(f->minimum[1], product, b);
    }
    _mm256_store_ps(chain, a);
    _mm256_store_ps(chain + 8, b);
}

/* -zero * isum of up to six rows. */
ALWAYS void shifts(int32_t *out, const int32_t *isum, int zero, int rows)
{
#pragma GCC unroll 3
    for (int r = 0; r < rows; r += 2) {
        const __m128i two = _mm_loadl_epi64((const __m128i *)(const void *)(isum + r));
        _mm_storel_epi64((__m128i *)(void *)(out + r), _mm_mullo_epi32(two, _mm_set1_epi32(-zero)));
    }
}

#define ROW_ZERO(r, i) \
    if (r < rows)      \
        d##r##0 = d##r##1 = _mm256_setzero_si256();
#define ROW_ADD(r, i)                                       \
    if (r < rows) {                                         \
        b = four_codes(q + (r - 4) * TERN_BLOCK + 4 * (i)); \
        d##r##0 = dot_quads(d##r##0, v0, b);                \
        d##r##1 = dot_quads(d##r##1, v1, b);                \
    }
#define QUAD(i)                            \
    {                                      \
        v0 = load_i256(quads[i - 2]);      \
        v1 = load_i256(quads[i - 2] + 32); \
        EACH_ROW(ROW_ADD, i)               \
    }
#define ROW_END(r, i)                                                                                           \
    if (r < rows)                                                                                               \
        add_group(&f, r < 4 ? chain_low + (r - 2) * TERN_PANEL : chain_high + (r - 4) * TERN_PANEL, r, minimum, \
                  d##r##0, d##r##1);
_Static_assert(TILE == 6 && WIDTH == 1, "as the names say");

/* chain[rows][16] += x . w for one group of the inputs of a block; what is not a pointer is constant, but g, row and
 * zero. */
ALWAYS void group_tile(const struct block *w, const struct step *x, int row, int zero, float *chain, int g, int rows,
                       int groups, bool minimum)
{
    const uint8_t(*quads)[TERN_VEC] = w->quads + 4 * g + 2;
    const int8_t *q = x->q[row] + 16 * g + 4 * TERN_BLOCK;
    float *chain_low = chain + 2 * TERN_PANEL, *chain_high = chain + 4 * TERN_PANEL;
    const int sum = groups == 1 ? 2 : g;
    int32_t shift[TILE] __attribute__((aligned(8)));
    __m256i b, v0, v1, d00, d01, d10, d11, d20, d21, d30, d31, d40, d41, d50, d51;
    struct factors f = {.x = x->scale + row, .product = x->product[sum] + row, .shift = shift};
    shifts(shift, x->isum[sum] + row, zero, rows);
    __asm__ volatile("" ::: "memory"); /* or the compiler permutes them out of a register */
    OPAQUE_PTR(quads);
    OPAQUE_PTR(q);
    OPAQUE_PTR(chain_low);
    OPAQUE_PTR(chain_high);
    OPAQUE_PTR(f.x);
    OPAQUE_PTR(f.product);
    EACH_ROW(ROW_ZERO, 0)
    for (int left = 2 / groups; left; left--) {
        QUAD(0)
        QUAD(1)
        QUAD(2)
        QUAD(3)
        quads += 4;
        q += 16;
        OPAQUE_PTR(quads);
        OPAQUE_PTR(q);
    }
    load_factors(f.scale, w->scale[g]);
    if (minimum)
        load_factors(f.minimum, w->minimum[g]);
    EACH_ROW(ROW_END, 0)
    __asm__ volatile("" ::: "memory"); /* or chains are kept in registers as well, which there are none for */
}

#define X(rows, groups, minimum)                                                                  \
    static void tile_##rows##_##groups##_##minimum(const struct operands *o, float *chain)        \
    {                                                                                             \
        for (int s = 0; s < o->steps; s++)                                                        \
            for (int g = 0; g < groups; g++)                                                      \
                group_tile(o->w + s, o->x + s, o->row, o->zero, chain, g, rows, groups, minimum); \
    }
#define ROWS_FNS(rows) X(rows, 1, 0) X(rows, 1, 1) X(rows, 2, 0) X(rows, 2, 1)
ROWS_FNS(2)
ROWS_FNS(4)
ROWS_FNS(6)
#undef X

static tile_fn *tile_for(int rows, int panels, const struct tern_packed *w)
{
#define X(rows, groups, minimum) tile_##rows##_##groups##_##minimum,
    static tile_fn *const fns[] = {ROWS_FNS(2) ROWS_FNS(4) ROWS_FNS(6)};
#undef X
    (void)panels; /* one */
    return fns[(rows / 2 - 1) * 4 + (tern_scales_halves(w->scales) ? 2 : 0) + (tern_scales_minimum(w->scales) ? 1 : 0)];
}

void tern_prompt8_init_avxvnni(struct tern_prompt_kernels *k)
{
    *k = (struct tern_prompt_kernels){pack, product, band, false, WIDTH, NULL};
}
