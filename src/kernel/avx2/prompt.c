/* The int16 class with vectors of eight: `dot_pairs` multiplies 16-bit pairs and adds
 * (dot.h); around it kernel/prompt_impl.h.
 *
 * A register tile is six rows by one panel, two vectors: twelve sums, two vectors of weights, a broadcast pair and a
 * product are all sixteen registers.  A band of 32 rows is four such tiles and two of four rows.
 *
 * Counts for 32 inputs of six rows: 192 `vpmaddwd` on two ports, 180 `vpaddd` beside them on the other two, 12
 * conversions and 12 multiply-adds (24 with a minimum): 99 cycles (102) for 3,072 products.  32 in a cycle are the
 * limit, twice that of f32.  Weights: some 100 instructions per 512, against 16 cycles per row.  With AVX-VNNI the
 * additions go, and the limit stays. */
#include "kernel/avx2/dot.h"
#include "kernel/avx2/gemm_block.h"
#include "kernel/avx2/simd.h"

#define TILE        6
#define WIDTH       1
#define RANGE_STEPS 18 /* 23 KB */
#define PANELS      16
#define ROWS        64
#include "kernel/prompt_impl.h"
#include "kernel/avx2/prompt_tile.h"

#include <math.h>

/* ---- activations ---- */

/* Bits of the largest |x|, those of a NaN where there is one. */
static uint32_t top_of(const float *x, int k)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < k; i += 8)
        top = _mm256_max_epu32(top, _mm256_and_si256(_mm256_castps_si256(load_part(x + i, k - i)), magnitude));
    __m128i t = _mm_max_epu32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    t = _mm_max_epu32(t, _mm_shuffle_epi32(t, 0x4E));
    t = _mm_max_epu32(t, _mm_shuffle_epi32(t, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(t);
}

/* Codes of 16 inputs, of which n exist, in their order. */
ALWAYS __m256i sixteen_codes(const float *x, int n, __m256 inv)
{
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(load_part(x, n), inv));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(load_part(x + 8, n - 8), inv));
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
}

static void pack_row(uint16_t *out, const float *x, int r, int k)
{
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    const __m256i one = _mm256_set1_epi16(1);
    const uint32_t top = top_of(x, k);
    const bool finite = top < 0x7F800000u;
    const float amax = finite ? tern_bits_f32(top) : NAN, scale = amax / 32767.0f;
    const float inv = finite && isfinite(32767.0f / amax) ? 32767.0f / amax : 0;
    memcpy(out + 2 * r, &scale, sizeof scale);
    out += 2 * TERN_BAND;
    for (int i = 0; i < k; i += TERN_TILE_DEPTH, out += TERN_I16_STEP) {
        __m256i a = _mm256_setzero_si256(), b = a;
        if (inv != 0) {
            a = sixteen_codes(x + i, k - i, _mm256_set1_ps(inv));
            b = sixteen_codes(x + i + 16, k - i - 16, _mm256_set1_ps(inv));
        }
        _mm256_store_si256((__m256i *)(void *)(out + r * TERN_TILE_DEPTH), _mm256_shuffle_epi8(a, order));
        _mm256_store_si256((__m256i *)(void *)(out + r * TERN_TILE_DEPTH + 16), _mm256_shuffle_epi8(b, order));
        __m256i sums = _mm256_hadd_epi32(_mm256_madd_epi16(a, one), _mm256_madd_epi16(b, one)); /* a a b b a a b b */
        sums = _mm256_hadd_epi32(sums, sums);
        const __m128 f =
            _mm_cvtepi32_ps(_mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1)));
        _mm_store_ss((float *)(void *)(out + TERN_BAND * TERN_TILE_DEPTH + 2 * r), f);
        _mm_store_ss((float *)(void *)(out + TERN_BAND * TERN_TILE_DEPTH + 2 * (TERN_BAND + r)), _mm_movehdup_ps(f));
    }
}

static void pack(uint16_t *out, const float *x, size_t x_stride, int n_rows, int k)
{
    for (int r = 0; r < n_rows; r++)
        pack_row(out, x + (size_t)r * x_stride, r, k);
    if (n_rows % 2) /* register tiles read that row, and nobody looks at what comes of it */
        for (int i = 0; i < k; i += TERN_TILE_DEPTH)
            memset(out + 2 * TERN_BAND + (size_t)(i / TERN_TILE_DEPTH) * TERN_I16_STEP + n_rows * TERN_TILE_DEPTH, 0,
                   TERN_TILE_DEPTH * sizeof *out);
}

/* ---- weights ---- */

ALWAYS void expand_half(enum tern_codes codes, enum tern_scales scales, struct block *out,
                        const struct tern_panel_view *v, int minus, int step, int h)
{
    const uint8_t *block = v->codes + (size_t)step * tern_codes_unit(codes);
    const __m256i table = code_table(codes, v), low = _mm256_set1_epi16(0xFF), zero = _mm256_set1_epi16((short)minus);
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++) {
        const __m256i c = quad_codes(codes, table, block, q, h);
        __m256i even, odd;
        if (tern_codes_signed(codes)) {
            even = _mm256_srai_epi16(_mm256_slli_epi16(c, 8), 8);
            odd = _mm256_srai_epi16(c, 8);
        } else {
            even = _mm256_and_si256(c, low);
            odd = _mm256_srli_epi16(c, 8);
        }
        if (tern_scales_zero(scales)) {
            even = _mm256_sub_epi16(even, zero);
            odd = _mm256_sub_epi16(odd, zero);
        }
        _mm256_store_si256((__m256i *)(void *)out->pairs[2 * q][8 * h], even);
        _mm256_store_si256((__m256i *)(void *)out->pairs[2 * q + 1][8 * h], odd);
    }
    expand_scales(scales, out, v, step, h);
}

PROMPT_INLINE void expand(enum tern_codes codes, enum tern_scales scales, struct block *out,
                          const struct tern_panel_view *v, int zero, int step)
{
    expand_half(codes, scales, out, v, zero, step, 0);
    expand_half(codes, scales, out, v, zero, step, 1);
}

/* ---- products ---- */

ALWAYS __m256i two_codes(const uint16_t *p)
{
    int32_t both;
    memcpy(&both, p, sizeof both);
    return _mm256_set1_epi32(both);
}

/* isum[r] of a group: of all 32 inputs the sum of both halves' sums. */
ALWAYS void sums_of(float *isum, const uint16_t *sums, int g, int rows, int groups)
{
#pragma GCC unroll 3
    for (int r = 0; r < rows; r += 2) {
        __m128d both = _mm_load_sd((const double *)(const void *)(sums + 2 * (g * TERN_BAND + r)));
        if (groups == 1)
            both = _mm_castps_pd(
                _mm_add_ps(_mm_castpd_ps(both),
                           _mm_castpd_ps(_mm_load_sd((const double *)(const void *)(sums + 2 * (TERN_BAND + r))))));
        _mm_store_sd((double *)(void *)(isum + r), both);
    }
}

/* Scales and minimums of a group, kept in registers. */
struct factors {
    __m256 scale[2], minimum[2];
};

/* The chains of one row: += its sums of a group. */
ALWAYS void add_group(const struct factors *f, float *chain, const float *isum, bool minimum, __m256i dot0,
                      __m256i dot1)
{
    __m256 a = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot0), f->scale[0], _mm256_load_ps(chain));
    __m256 b = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot1), f->scale[1], _mm256_load_ps(chain + 8));
    if (minimum) {
        const __m256 sum = _mm256_broadcast_ss(isum);
        a = _mm256_fmadd_ps(f->minimum[0], sum, a);
        b = _mm256_fmadd_ps(f->minimum[1], sum, b);
    }
    _mm256_store_ps(chain, a);
    _mm256_store_ps(chain + 8, b);
}

#define ROW_CODES(r, i) \
    two_codes(r < 4 ? low + (r - 2) * TERN_TILE_DEPTH + 2 * (i) : high + (r - 4) * TERN_TILE_DEPTH + 2 * (i))
#define ROW_FIRST(r, i)                     \
    if (r < rows) {                         \
        b = ROW_CODES(r, i);                \
        d##r##0 = _mm256_madd_epi16(v0, b); \
        d##r##1 = _mm256_madd_epi16(v1, b); \
    }
#define ROW_ADD(r, i)                        \
    if (r < rows) {                          \
        b = ROW_CODES(r, i);                 \
        d##r##0 = dot_pairs(d##r##0, v0, b); \
        d##r##1 = dot_pairs(d##r##1, v1, b); \
    }
#define PAIR(EACH, i)                     \
    {                                     \
        v0 = load_i256(pairs[i - 2]);     \
        v1 = load_i256(pairs[i - 2] + 8); \
        EACH_ROW(EACH, i)                 \
    }
#define FOUR_PAIRS(FIRST) PAIR(FIRST, 0) PAIR(ROW_ADD, 1) PAIR(ROW_ADD, 2) PAIR(ROW_ADD, 3)
#define ROW_END(r, i)                                                                                                 \
    if (r < rows)                                                                                                     \
        add_group(&f, r < 4 ? chain_low + (r - 2) * TERN_PANEL : chain_high + (r - 4) * TERN_PANEL, sum + r, minimum, \
                  d##r##0, d##r##1);
_Static_assert(TILE == 6 && WIDTH == 1, "as the names say");

/* chain[rows][16] += x . w for one group of the inputs of a block; what is not a pointer is constant, but g. */
ALWAYS void group_tile(const struct block *w, const uint16_t *x, const uint16_t *sums, float *chain, int g, int rows,
                       int groups, bool minimum)
{
    const int first = g * TERN_TILE_DEPTH / 4;
    const int16_t(*pairs)[TERN_PANEL][2] = w->pairs + first + 2;
    const uint16_t *low = x + 2 * TERN_TILE_DEPTH + 2 * first, *high = low + 2 * TERN_TILE_DEPTH;
    __m256i b, v0, v1, d00, d01, d10, d11, d20, d21, d30, d31, d40, d41, d50, d51;
    float isum[TILE] __attribute__((aligned(8)));
    float *chain_low = chain + 2 * TERN_PANEL, *chain_high = chain + 4 * TERN_PANEL;
    const float *sum = isum;
    OPAQUE_PTR(chain_low);
    OPAQUE_PTR(chain_high);
    OPAQUE_PTR(pairs);
    OPAQUE_PTR(low);
    OPAQUE_PTR(high);
    if (minimum)
        sums_of(isum, sums, g, rows, groups);
    OPAQUE_PTR(sum);
    FOUR_PAIRS(ROW_FIRST)
    for (int left = TERN_TILE_DEPTH / 2 / groups - 4; left; left -= 4) {
        pairs += 4;
        low += 8;
        high += 8;
        OPAQUE_PTR(pairs);
        OPAQUE_PTR(low);
        OPAQUE_PTR(high);
        FOUR_PAIRS(ROW_ADD)
    }
    struct factors f;
    load_factors(f.scale, w->scale[g]);
    if (minimum)
        load_factors(f.minimum, w->minimum[g]);
    EACH_ROW(ROW_END, 0)
    __asm__ volatile("" ::: "memory"); /* or chains are kept in registers as well, which there are none for */
}

#define X(rows, groups, minimum)                                                           \
    static void tile_##rows##_##groups##_##minimum(const struct operands *o, float *chain) \
    {                                                                                      \
        const uint16_t *x = o->x, *sums = o->sums;                                         \
        for (int s = 0; s < o->steps; s++, x += TERN_I16_STEP, sums += TERN_I16_STEP)      \
            for (int g = 0; g < groups; g++)                                               \
                group_tile(o->w + s, x, sums, chain, g, rows, groups, minimum);            \
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

void TERN_AT_LEVEL(tern_prompt_init)(struct tern_prompt_kernels *k)
{
    *k = (struct tern_prompt_kernels){pack, product, band, false, WIDTH, NULL};
}
