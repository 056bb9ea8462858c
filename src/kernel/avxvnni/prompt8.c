/* The int8 class of prompt.h on AVX-VNNI: `vpdpbusd` adds four products of unsigned and signed bytes to each of eight
 * integers.  Around it kernel/prompt_impl.h.
 *
 * Codes become unsigned bytes (signed ones plus 128, which moves the zero point).  Register tiles are those of
 * avx2/prompt.c.  Zero points leave at the end, as in avx512/prompt8.c.  Counts for 32 inputs of six rows: 96
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
#include "kernel/avx2/prompt8_tile.h"

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
    int32_t zeros[TILE] __attribute__((aligned(8)));
    __m256i b, v0, v1, d00, d01, d10, d11, d20, d21, d30, d31, d40, d41, d50, d51;
    struct factors f = {.x = x->scale + row, .product = x->product[sum] + row, .zero = zeros};
    zero_sums(zeros, x->isum[sum] + row, zero, rows);
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
