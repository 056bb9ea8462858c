/* The int8 class of prompt.h on AVX2: `vpmaddubsw` multiplies unsigned codes by signed activations, and pairs of
 * products are added up in 16 bits as long as nothing can overflow (gemm_narrow.c): a run of eight quads for codes up
 * to four bits, four for five bits, two for six.  Signed codes lend their sign to the activations, and a run is one
 * quad. Around it kernel/prompt_impl.h.
 *
 * Register tiles are those of prompt.c.  Runs before the last one of a group wait in memory.  Counts for 32 inputs of
 * six rows, four-bit codes: 96 `vpmaddubsw`, 84 additions, 12 `vpmaddwd`, 12 each of conversions, products of scales,
 * and multiply-adds (24 with a minimum): 57 cycles (60) at four in each, for 3,072 products. */
#include "kernel/avx2/gemm.h"
#include "kernel/avx2/gemm_block.h"
#include "kernel/avx2/simd.h"

#define PROMPT_INT8 tern_gemm_quantize_avx2
#define TILE        6
#define PAD         2
#define RAISED      0
#define WIDTH       1
#define RANGE_STEPS 24 /* 18 KB */
#define PANELS      16
#define ROWS        64
#include "kernel/prompt_impl.h"
#include "kernel/avx2/prompt_tile.h"
#include "kernel/avx2/prompt8_tile.h"

static const int16_t ones[16] __attribute__((aligned(32))) = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

/* The first products of a run: of unsigned codes w, or where a run is one quad of the size w of the codes at c. */
ALWAYS __m256i first_quads(int run, __m256i w, __m256i x, const uint8_t *c)
{
    if (run > 1)
        return _mm256_maddubs_epi16(w, x);
    return _mm256_madd_epi16(_mm256_maddubs_epi16(w, _mm256_sign_epi8(x, load_i256(c))), load_i256(ones));
}

/* And those that are added to them.  As instructions for the reason that prompt.c has. */
ALWAYS __m256i add_quads(int run, __m256i sum, __m256i w, __m256i x, const uint8_t *c)
{
    __m256i t;
    if (run > 1)
        __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(t) : "x"(w), "x"(x));
    else
        __asm__("vpsignb %4, %3, %1\n\tvpmaddubsw %1, %2, %1\n\tvpmaddwd %5, %1, %1\n\tvpaddd %1, %0, %0"
                : "+x"(sum), "=&x"(t)
                : "x"(w), "x"(x), "m"(*(const __m256i *)(const void *)c), "m"(*(const __m256i *)(const void *)ones));
    return sum;
}

/* The sum of a run as 32-bit integers, with what earlier runs left behind. */
ALWAYS __m256i end_run(int run, __m256i sum, bool more, const __m256i *rest)
{
    if (run > 1)
        sum = _mm256_madd_epi16(sum, load_i256(ones));
    return more ? _mm256_add_epi32(sum, load_i256(rest)) : sum;
}

#define ROW_CODES(r, i) four_codes(q + (r - 4) * TERN_BLOCK + 4 * (i))
#define ROW_FIRST(r, i)                                       \
    if (r < rows) {                                           \
        b = ROW_CODES(r, i);                                  \
        d##r##0 = first_quads(run, v0, b, quads[i - 2]);      \
        d##r##1 = first_quads(run, v1, b, quads[i - 2] + 32); \
    }
#define ROW_ADD(r, i)                                                \
    if (r < rows) {                                                  \
        b = ROW_CODES(r, i);                                         \
        d##r##0 = add_quads(run, d##r##0, v0, b, quads[i - 2]);      \
        d##r##1 = add_quads(run, d##r##1, v1, b, quads[i - 2] + 32); \
    }
#define QUAD(EACH, i)                      \
    {                                      \
        v0 = load_i256(quads[i - 2]);      \
        v1 = load_i256(quads[i - 2] + 32); \
        if (run == 1) {                    \
            v0 = _mm256_abs_epi8(v0);      \
            v1 = _mm256_abs_epi8(v1);      \
        }                                  \
        EACH_ROW(EACH, i)                  \
    }
#define ROW_REST(r, more)                                      \
    if (r < rows) {                                            \
        rest[r][0] = end_run(run, d##r##0, more, &rest[r][0]); \
        rest[r][1] = end_run(run, d##r##1, more, &rest[r][1]); \
    }
#define ROW_END(r, more)                                                                                        \
    if (r < rows)                                                                                               \
        add_group(&f, r < 4 ? chain_low + (r - 2) * TERN_PANEL : chain_high + (r - 4) * TERN_PANEL, r, minimum, \
                  end_run(run, d##r##0, more, &rest[r][0]), end_run(run, d##r##1, more, &rest[r][1]));
#define NEXT_FOUR      \
    quads += 4;        \
    q += 16;           \
    OPAQUE_PTR(quads); \
    OPAQUE_PTR(q);
_Static_assert(TILE == 6 && WIDTH == 1, "as the names say");

/* chain[rows][16] += x . w for one group of the inputs of a block; what is not a pointer is constant, but g, row and
 * zero.  less: are there zero points? */
ALWAYS void group_tile(const struct block *w, const struct step *x, int row, int zero, float *chain, int g, int rows,
                       int run, int groups, bool less, bool minimum)
{
    const uint8_t(*quads)[TERN_VEC] = w->quads + 4 * g + 2;
    const int8_t *q = x->q[row] + 16 * g + 4 * TERN_BLOCK;
    float *chain_low = chain + 2 * TERN_PANEL, *chain_high = chain + 4 * TERN_PANEL;
    const int sum = groups == 1 ? 2 : g;
    int32_t zeros[TILE] __attribute__((aligned(8)));
    __m256i rest[TILE][2], b, v0, v1, d00, d01, d10, d11, d20, d21, d30, d31, d40, d41, d50, d51;
    struct factors f = {.x = x->scale + row, .product = x->product[sum] + row, .zero = less ? zeros : NULL};
    if (less)
        zero_sums(zeros, x->isum[sum] + row, zero, rows);
    OPAQUE_PTR(quads);
    OPAQUE_PTR(q);
    OPAQUE_PTR(chain_low);
    OPAQUE_PTR(chain_high);
    OPAQUE_PTR(f.x);
    OPAQUE_PTR(f.product);
    if (run == 2) {
        QUAD(ROW_FIRST, 0)
        QUAD(ROW_ADD, 1)
        EACH_ROW(ROW_REST, false)
        QUAD(ROW_FIRST, 2)
        QUAD(ROW_ADD, 3)
    } else {
        QUAD(ROW_FIRST, 0)
        QUAD(ROW_ADD, 1)
        QUAD(ROW_ADD, 2)
        QUAD(ROW_ADD, 3)
    }
    if (groups == 1) {
        if (run == 2 || run == 4)
            EACH_ROW(ROW_REST, run == 2)
        NEXT_FOUR
        if (run == 2) {
            QUAD(ROW_FIRST, 0)
            QUAD(ROW_ADD, 1)
            EACH_ROW(ROW_REST, true)
            QUAD(ROW_FIRST, 2)
            QUAD(ROW_ADD, 3)
        } else {
            if (run == 4)
                QUAD(ROW_FIRST, 0)
            else
                QUAD(ROW_ADD, 0)
            QUAD(ROW_ADD, 1)
            QUAD(ROW_ADD, 2)
            QUAD(ROW_ADD, 3)
        }
    }
    load_factors(f.scale, w->scale[g]);
    if (minimum)
        load_factors(f.minimum, w->minimum[g]);
    EACH_ROW(ROW_END, run == 2 || (run == 4 && groups == 1))
    __asm__ volatile("" ::: "memory"); /* or chains are kept in registers as well, which there are none for */
}

#define X(rows, run, groups, less, minimum)                                                                  \
    static void tile_##rows##_##run##_##groups##_##less##_##minimum(const struct operands *o, float *chain)  \
    {                                                                                                        \
        for (int s = 0; s < o->steps; s++)                                                                   \
            for (int g = 0; g < groups; g++)                                                                 \
                group_tile(o->w + s, o->x + s, o->row, o->zero, chain, g, rows, run, groups, less, minimum); \
    }
/* Quads of a run, groups of a block, whether there is a zero point, and a minimum: those that a kind of weights has. */
#define TILES(rows)     \
    X(rows, 8, 1, 1, 0) \
    X(rows, 8, 1, 0, 1) \
    X(rows, 8, 1, 1, 1) \
    X(rows, 4, 1, 1, 0) \
    X(rows, 4, 1, 0, 1) \
    X(rows, 4, 1, 1, 1) \
    X(rows, 4, 2, 1, 0) \
    X(rows, 4, 2, 0, 1) \
    X(rows, 2, 1, 1, 1) \
    X(rows, 2, 2, 1, 0) \
    X(rows, 1, 1, 1, 0) \
    X(rows, 1, 1, 1, 1) \
    X(rows, 1, 2, 1, 0)
TILES(2)
TILES(4)
TILES(6)
#undef X

static tile_fn *tile_for(int rows, int panels, const struct tern_packed *w)
{
    const int groups = tern_scales_halves(w->scales) ? 2 : 1;
    const bool less = tern_scales_zero(w->scales), minimum = tern_scales_minimum(w->scales);
    int run = w->codes == TERN_CODES_U5 || groups == 2 ? 4 : 8;
    run = tern_codes_signed(w->codes) ? 1 : w->codes == TERN_CODES_U6 ? 2 : run;
    (void)panels; /* one */
#define X(r, n, g, l, m)                                                   \
    if (rows == r && run == n && groups == g && less == l && minimum == m) \
        return tile_##r##_##n##_##g##_##l##_##m;
    TILES(6)
    TILES(4)
    TILES(2)
#undef X
    return NULL;
}

void tern_prompt8_init_avx2(struct tern_prompt_kernels *k)
{
    *k = (struct tern_prompt_kernels){pack, product, band, false, WIDTH, NULL};
}
