/* The int16 class on VNNI: `vpdpwssd` adds the products of two 16-bit pairs to each of 16 integers; around it
 * kernel/prompt_impl.h.
 *
 * A register tile is 8 rows by three panels: 24 integer sums, and per pair of inputs three loads and eight broadcasts
 * for 24 products.
 *
 * Counts for 32 inputs of a register tile: 384 products, one per cycle; 24 conversions, 24 multiply-adds (48 with a
 * minimum), 24 loads and stores of chains.  Weights: some 45 instructions per 512, against 16 products per row. */
#include "kernel/avx512/gemm_block.h"

#define TILE        8
#define WIDTH       3
#define RANGE_STEPS 18 /* 23 KB for each three panels */
#define PANELS      24
#define ROWS        128
#include "kernel/prompt_impl.h"
#include "kernel/avx512/prompt_tile.h"

#include <math.h>

/* ---- activations ---- */

/* Bits of the largest |x|, those of a NaN where there is one. */
static uint32_t top_of(const float *x, int k)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    __m512i top = _mm512_setzero_si512();
    for (int i = 0; i < k; i += 16) {
        const __mmask16 lanes = (__mmask16)(k - i >= 16 ? 0xFFFFu : (1u << (k - i)) - 1u);
        top = _mm512_max_epu32(top, _mm512_and_si512(_mm512_maskz_loadu_epi32(lanes, x + i), magnitude));
    }
    return _mm512_reduce_max_epu32(top);
}

ALWAYS __m512i sixteen_codes(const float *x, int n, __m512 inv)
{
    const __mmask16 lanes = (__mmask16)(n >= 16 ? 0xFFFFu : n > 0 ? (1u << n) - 1u : 0u);
    return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x), inv));
}

static void pack_row(uint16_t *out, const float *x, int r, int k)
{
    const __m512i order = _mm512_set_epi16(31, 29, 30, 28, 27, 25, 26, 24, 23, 21, 22, 20, 19, 17, 18, 16, 15, 13, 14,
                                           12, 11, 9, 10, 8, 7, 5, 6, 4, 3, 1, 2, 0);
    const uint32_t top = top_of(x, k);
    const bool finite = top < 0x7F800000u;
    const float amax = finite ? tern_bits_f32(top) : NAN, scale = amax / 32767.0f;
    const float inv = finite && isfinite(32767.0f / amax) ? 32767.0f / amax : 0;
    memcpy(out + 2 * r, &scale, sizeof scale);
    out += 2 * TERN_BAND;
    for (int i = 0; i < k; i += TERN_TILE_DEPTH, out += TERN_I16_STEP) {
        __m512i a = _mm512_setzero_si512(), b = a;
        if (inv != 0) {
            a = sixteen_codes(x + i, k - i, _mm512_set1_ps(inv));
            b = sixteen_codes(x + i + 16, k - i - 16, _mm512_set1_ps(inv));
        }
        const __m512i both =
            _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(a)), _mm512_cvtepi32_epi16(b), 1);
        const float sums[2] = {(float)_mm512_reduce_add_epi32(a), (float)_mm512_reduce_add_epi32(b)};
        _mm512_store_si512(out + r * TERN_TILE_DEPTH, _mm512_permutexvar_epi16(order, both));
        memcpy(out + TERN_BAND * TERN_TILE_DEPTH + 2 * r, &sums[0], sizeof sums[0]);
        memcpy(out + TERN_BAND * TERN_TILE_DEPTH + 2 * (TERN_BAND + r), &sums[1], sizeof sums[1]);
    }
}

static void pack(uint16_t *out, const float *x, size_t x_stride, int n_rows, int k)
{
    for (int r = 0; r < n_rows; r++)
        pack_row(out, x + (size_t)r * x_stride, r, k);
    for (int r = n_rows; r % TILE; r++) /* register tiles read them, and nobody looks at what comes of it */
        for (int i = 0; i < k; i += TERN_TILE_DEPTH)
            memset(out + 2 * TERN_BAND + (size_t)(i / TERN_TILE_DEPTH) * TERN_I16_STEP + r * TERN_TILE_DEPTH, 0,
                   TERN_TILE_DEPTH * sizeof *out);
}

/* ---- weights ---- */

PROMPT_INLINE void expand(enum tern_codes codes, enum tern_scales scales, struct block *out,
                          const struct tern_panel_view *v, int minus, int step)
{
    const uint8_t *block = v->codes + (size_t)step * tern_codes_unit(codes);
    const __m512i table = code_table(codes, v), low = _mm512_set1_epi16(0xFF);
    const __m512i zero = _mm512_set1_epi16((short)minus);
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++) {
        const __m512i c = quad_codes(codes, table, block, q);
        __m512i even, odd;
        if (tern_codes_signed(codes)) {
            even = _mm512_srai_epi16(_mm512_slli_epi16(c, 8), 8);
            odd = _mm512_srai_epi16(c, 8);
        } else {
            even = _mm512_and_si512(c, low);
            odd = _mm512_srli_epi16(c, 8);
        }
        if (tern_scales_zero(scales)) {
            even = _mm512_sub_epi16(even, zero);
            odd = _mm512_sub_epi16(odd, zero);
        }
        _mm512_store_si512(out->pairs[2 * q], even);
        _mm512_store_si512(out->pairs[2 * q + 1], odd);
    }
    expand_scales(scales, out, v, step);
}

/* ---- products ---- */

/* The chains of one row: += its sums of a group. */
ALWAYS void add_group(const struct block *const w[WIDTH], float *chain, const uint16_t *sums, int r, int g, int panels,
                      int groups, bool minimum, const __m512i dot[WIDTH])
{
    const float second = groups == 1 ? float_at(sums + 2 * (TERN_BAND + r)) : 0;
    const __m512 isum = _mm512_set1_ps(float_at(sums + 2 * (g * TERN_BAND + r)) + second);
#pragma GCC unroll 3
    for (int p = 0; p < panels; p++) {
        float *at = chain + (r * WIDTH + p) * TERN_PANEL;
        __m512 acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[p]), _mm512_load_ps(w[p]->scale[g]), _mm512_load_ps(at));
        if (minimum)
            acc = _mm512_fmadd_ps(_mm512_load_ps(w[p]->minimum[g]), isum, acc);
        _mm512_store_ps(at, acc);
    }
}

/* sum += w * x, pairs of 16 bits.  As an instruction, because gcc 12 copies every sum of the intrinsic, and then has
 * too few registers for 24 of them. */
ALWAYS __m512i add_products(__m512i sum, __m512i w, __m512i x)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
    return sum;
}

#define ROW_CODES(r) four_bytes(x + r * TERN_TILE_DEPTH + 2 * i)
#define ROW_END(r)                                                     \
    if (rows > r) {                                                    \
        const __m512i dot[WIDTH] = {d##r##0, d##r##1, d##r##2};        \
        add_group(w, chain, sums, r, g, panels, groups, minimum, dot); \
    }

/* chain[rows][WIDTH][16] += x . w for one group of the inputs of a block; what is not a pointer is constant, but g. */
ALWAYS void group_tile(const struct block *const w[WIDTH], const uint16_t *x, const uint16_t *sums, float *chain, int g,
                       int rows, int panels, int groups, bool minimum)
{
    const __m512i zero = _mm512_setzero_si512();
    const int first = g * TERN_TILE_DEPTH / 4, end = first + TERN_TILE_DEPTH / 2 / groups;
    EACH_ROW(ROW_ZERO)
    for (int i = first; i < end; i++) {
        const __m512i v0 = load_i512(w[0]->pairs[i]);
        const __m512i v1 = panels > 1 ? load_i512(w[1]->pairs[i]) : zero;
        const __m512i v2 = panels > 2 ? load_i512(w[2]->pairs[i]) : zero;
        __m512i b;
        EACH_ROW(ROW_ADD)
    }
    EACH_ROW(ROW_END)
    __asm__ volatile("" ::: "memory"); /* or chains are kept in registers as well, which there are none for */
}

PROMPT_INLINE void tile(const struct operands *o, float *chain, int rows, int panels, int groups, bool minimum)
{
    const uint16_t *x = o->x, *sums = o->sums;
    for (int s = 0; s < o->steps; s++, x += TERN_I16_STEP, sums += TERN_I16_STEP) {
        const struct block *const w[WIDTH] = {o->w + s, o->w + s + o->steps, o->w + s + 2 * o->steps};
        for (int g = 0; g < groups; g++)
            group_tile(w, x, sums, chain, g, rows, panels, groups, minimum);
    }
}

void tern_prompt_init_avx512(struct tern_prompt_kernels *k)
{
    *k = (struct tern_prompt_kernels){pack, product, band, false, WIDTH, NULL};
}
