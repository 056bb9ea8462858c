/* The int8 class of prompt.h on VNNI: `vpdpbusd` adds four products of unsigned and signed bytes to each of 16
 * integers.
 *
 * As in prompt.c, but a quad of four inputs stays one vector: codes become unsigned bytes (signed ones plus 128, which
 * moves the zero point), and rows stream past three panels in L1.  A register tile is 8 rows by three panels.  A dot
 * and -zero * isum make one integer, as in gemm_narrow.c, so that a row's bits are those of that kernel; here the
 * second joins at the end: sums that begin with it wait for eight broadcasts (decision 074).
 *
 * Counts for 32 inputs of a register tile: 192 products, one or two per cycle; 24 products of scales and 24
 * multiply-adds (48 with a minimum) on the same ports, 24 conversions, additions, loads and stores of chains beside
 * them. */
#include "kernel/avx512/gemm.h"
#include "kernel/avx512/gemm_block.h"

#define PROMPT_INT8 tern_gemm_quantize_avx512
#define TILE        8
#define PAD         8
#define RAISED      128
#define WIDTH       3
#define RANGE_STEPS 18 /* 41 KB of three panels */
#define PANELS      24
#define ROWS        128
#include "kernel/prompt_impl.h"
#include "kernel/avx512/prompt_tile.h"

/* ---- weights ---- */

PROMPT_INLINE void expand(enum tern_codes codes, enum tern_scales scales, struct block *out,
                          const struct tern_panel_view *v, int zero, int step)
{
    const uint8_t *block = v->codes + (size_t)step * tern_codes_unit(codes);
    const __m512i table = code_table(codes, v), top = _mm512_set1_epi8((char)0x80);
    (void)zero; /* of all 32 inputs at once, in group_tile */
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++) {
        const __m512i c = quad_codes(codes, table, block, q);
        _mm512_store_si512(out->quads[q], tern_codes_signed(codes) ? _mm512_xor_si512(c, top) : c);
    }
    expand_scales(scales, out, v, step);
}

/* ---- products ---- */

/* The chains of one row: += its sums of a group. */
ALWAYS void add_group(const struct block *const w[WIDTH], float *chain, const struct step *x, int row, int shift, int g,
                      int sum, int panels, bool minimum, const __m512i dot[WIDTH])
{
    const __m512 sx = _mm512_set1_ps(x->scale[row]), isum = _mm512_set1_ps(minimum ? x->product[sum][row] : 0);
    const __m512i by = _mm512_set1_epi32(shift);
#pragma GCC unroll 3
    for (int p = 0; p < panels; p++) {
        float *at = chain + p * TERN_PANEL;
        const __m512 scale = _mm512_mul_ps(_mm512_load_ps(w[p]->scale[g]), sx);
        __m512 acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(dot[p], by)), scale, _mm512_load_ps(at));
        if (minimum)
            acc = _mm512_fmadd_ps(_mm512_load_ps(w[p]->minimum[g]), isum, acc);
        _mm512_store_ps(at, acc);
    }
}

/* sum += w * x, four bytes at a time.  As an instruction for the reason that prompt.c has. */
ALWAYS __m512i add_products(__m512i sum, __m512i w, __m512i x)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
    return sum;
}

#define ROW_CODES(r) four_bytes(q + r * TERN_BLOCK + 4 * i)
#define ROW_END(r)                                                                                                  \
    if (rows > r) {                                                                                                 \
        const __m512i dot[WIDTH] = {d##r##0, d##r##1, d##r##2};                                                     \
        add_group(w, chain + r * WIDTH * TERN_PANEL, x, row + r, shift[r], g, groups == 1 ? 2 : g, panels, minimum, \
                  dot);                                                                                             \
    }

/* chain[rows][WIDTH][16] += x . w for one group of the inputs of a block; rows, panels, groups and minimum are
 * constant. */
ALWAYS void group_tile(const struct block *const w[WIDTH], const struct step *x, int row, int zero, float *chain, int g,
                       int rows, int panels, int groups, bool minimum)
{
    int32_t shift[TILE] __attribute__((aligned(32))); /* -zero * isum */
    const __m256i isum = _mm256_load_si256((const __m256i *)(const void *)(x->isum[groups == 1 ? 2 : g] + row));
    _mm256_store_si256((__m256i *)(void *)shift, _mm256_mullo_epi32(isum, _mm256_set1_epi32(-zero)));
    __asm__ volatile("" ::: "memory"); /* or the compiler permutes them out of a register, on ports of products */
    const int first = g * TERN_BLOCK / 8, end = first + TERN_BLOCK / 4 / groups;
    const int8_t *q = x->q[row];
    EACH_ROW(ROW_ZERO)
    for (int i = first; i < end; i++) {
        const __m512i v0 = load_i512(w[0]->quads[i]);
        const __m512i v1 = panels > 1 ? load_i512(w[1]->quads[i]) : v0;
        const __m512i v2 = panels > 2 ? load_i512(w[2]->quads[i]) : v0;
        __m512i b;
        EACH_ROW(ROW_ADD)
    }
    EACH_ROW(ROW_END)
    __asm__ volatile("" ::: "memory"); /* or chains are kept in registers as well, which there are none for */
}

PROMPT_INLINE void tile(const struct operands *o, float *chain, int rows, int panels, int groups, bool minimum)
{
    for (int s = 0; s < o->steps; s++) {
        const struct block *const w[WIDTH] = {o->w + s, o->w + s + o->steps, o->w + s + 2 * o->steps};
        for (int g = 0; g < groups; g++)
            group_tile(w, o->x + s, o->row, o->zero, chain, g, rows, panels, groups, minimum);
    }
}

void tern_prompt8_init_avx512(struct tern_prompt_kernels *k)
{
    *k = (struct tern_prompt_kernels){pack, product, band, false, WIDTH, NULL};
}
