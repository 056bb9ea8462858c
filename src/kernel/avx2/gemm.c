#include "kernel/avx2/gemm_block.h"
#include "kernel/avx2/gemm.h"

#include <string.h>

/* ---- quantize ---- */

/* Bits of the largest |x| among 32; unsigned order keeps NaN on top. */
ALWAYS uint32_t max_bits(const __m256 x[4])
{
    const __m256i mag = _mm256_set1_epi32(0x7FFFFFFF);
    __m256i m = _mm256_and_si256(_mm256_castps_si256(x[0]), mag);
    for (int i = 1; i < 4; i++)
        m = _mm256_max_epu32(m, _mm256_and_si256(_mm256_castps_si256(x[i]), mag));
    __m128i n = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    n = _mm_max_epu32(n, _mm_shuffle_epi32(n, _MM_SHUFFLE(1, 0, 3, 2)));
    n = _mm_max_epu32(n, _mm_shuffle_epi32(n, _MM_SHUFFLE(2, 3, 0, 1)));
    return (uint32_t)_mm_cvtsi128_si32(n);
}

/* A block, its scale for codes up to `most` times as large as it, and its values as codes. */
ALWAYS float block_codes(__m256i c[4], const float *x, float most)
{
    __m256 v[4];
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_loadu_ps(x + 8 * i);
    float amax = tern_bits_f32(max_bits(v)), inv = most / amax;
    if (inv > 3.4028234664e38f) /* amax too small to invert: the block counts as zero */
        inv = 0;
    for (int i = 0; i < 4; i++)
        c[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(inv)));
    return amax / most;
}

/* 32 codes as bytes to q, their sums over 16 in the lowest lanes of both halves. */
ALWAYS __m256i store_codes(int8_t *q, const __m256i c[4])
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7), one8 = _mm256_set1_epi8(1);
    __m256i p = _mm256_packs_epi16(_mm256_packs_epi32(c[0], c[1]), _mm256_packs_epi32(c[2], c[3]));
    p = _mm256_permutevar8x32_epi32(p, order);
    _mm256_storeu_si256((__m256i *)(void *)q, p);
    /* Sums of four, then of all four lanes of a 128-bit half = 16 consecutive codes. */
    __m256i s = _mm256_madd_epi16(_mm256_maddubs_epi16(one8, p), _mm256_set1_epi16(1));
    s = _mm256_hadd_epi32(s, s);
    return _mm256_hadd_epi32(s, s);
}

ALWAYS void store_sums(int32_t sum16[2], __m256i s)
{
    sum16[0] = _mm256_cvtsi256_si32(s);
    sum16[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(s, 1));
}

void tern_gemm_quantize_avx2(int8_t *q, float *scale, int32_t *sum16, const float *x, int k)
{
    for (int b = 0; b < k / TERN_BLOCK; b++) {
        __m256i c[4];
        scale[b] = block_codes(c, x + b * TERN_BLOCK, 127.0f);
        store_sums(sum16 + 2 * b, store_codes(q + b * TERN_BLOCK, c));
    }
}

static void quantize16(int8_t *high, int8_t *low, float *scale, int32_t *sum16, const float *x, int k)
{
    for (int b = 0; b < k / TERN_BLOCK; b++) {
        __m256i c[4], h[4], l[4];
        scale[b] = block_codes(c, x + b * TERN_BLOCK, 32512.0f);
        for (int i = 0; i < 4; i++) {
            h[i] = _mm256_srai_epi32(_mm256_add_epi32(c[i], _mm256_set1_epi32(128)), 8);
            l[i] = _mm256_max_epi32(_mm256_sub_epi32(c[i], _mm256_slli_epi32(h[i], 8)), _mm256_set1_epi32(-127));
        }
        __m256i sum = _mm256_slli_epi32(store_codes(high + b * TERN_BLOCK, h), 8);
        store_sums(sum16 + 2 * b, _mm256_add_epi32(sum, store_codes(low + b * TERN_BLOCK, l)));
    }
}

/* ---- dequantisation ---- */

/* One block as f32, out[32][16]. */
ALWAYS void expand_block(enum tern_codes codes, enum tern_scales scales, float *out, const struct tern_panel_view *v,
                         size_t b, int zero)
{
    const uint8_t *block = v->codes + b * tern_codes_unit(codes);
    const __m256i table = code_table(codes, v);
    for (int h = 0; h < 2; h++) {
        struct super super = super_scale(scales, v, b / 8, 8 * (size_t)h);
        __m256 scale, minimum;
#pragma GCC unroll 8
        for (int q = 0; q < 8; q++) {
            if (q == 0 || (q == 4 && tern_scales_halves(scales)))
                group_scale(scales, v, &super, 2 * b + (size_t)q / 4, 8 * (size_t)h, &scale, &minimum);
            __m256i c = quad_codes(codes, table, block, q, h);
            if (!tern_codes_signed(codes) && codes != TERN_CODES_E4M3 && tern_scales_zero(scales))
                c = _mm256_sub_epi8(c, _mm256_set1_epi8((char)zero));
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                __m256i top = _mm256_slli_epi32(c, 24 - 8 * i);
                __m256 f = codes == TERN_CODES_E4M3 ? e4m3x8(top) : _mm256_cvtepi32_ps(_mm256_srai_epi32(top, 24));
                if (codes == TERN_CODES_S8 && scales == TERN_SCALES_G32M)
                    f = _mm256_sub_ps(f, _mm256_set1_ps((float)zero));
                /* One fused operation rounds exactly once, as the contract wants. */
                f = tern_scales_plus(scales)    ? _mm256_fmadd_ps(scale, f, minimum)
                    : tern_scales_minus(scales) ? _mm256_fmsub_ps(scale, f, minimum)
                                                : _mm256_mul_ps(scale, f);
                _mm256_store_ps(out + (4 * q + i) * TERN_PANEL + 8 * h, f);
            }
        }
    }
}

static void expand_float(float *out, enum tern_codes codes, const uint8_t *p, int n)
{
    for (int i = 0; i < 2 * n; i++, out += 8) {
        __m128i u = _mm_load_si128((const __m128i *)(const void *)(p + 16 * (size_t)i));
        __m256 f = codes == TERN_CODES_F16 ? _mm256_cvtph_ps(u)
                                           : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(u), 16));
        _mm256_store_ps(out, f);
    }
}

void tern_gemm_expand_avx2(float *out, const struct tern_packed *w, const struct tern_panel_layout *l, int panel,
                           int k0, int n)
{
    struct tern_panel_view v = tern_panel_view(w, l, panel);
    if (w->codes == TERN_CODES_F32) {
        memcpy(out, v.codes + (size_t)k0 * 64, (size_t)n * 64);
    } else if (tern_codes_float(w->codes)) {
        expand_float(out, w->codes, v.codes + (size_t)k0 * 32, n);
    }
#define X(c, s)                                                                                                      \
    else if (w->codes == TERN_CODES_##c && w->scales == TERN_SCALES_##s)                                             \
    {                                                                                                                \
        for (int i = 0; i < n; i += TERN_BLOCK)                                                                      \
            expand_block(TERN_CODES_##c, TERN_SCALES_##s, out + i * TERN_PANEL, &v, (size_t)(k0 + i) / 32, w->zero); \
    }
    TERN_QUANT_KINDS(X)
#undef X
}

static void row(float *out, const struct tern_packed *w, int row)
{
    struct tern_panel_layout l = tern_panel_layout(w);
    float tile[4 * TERN_BLOCK * TERN_PANEL] __attribute__((aligned(64)));
    int step = 4 * TERN_BLOCK, j = row % TERN_PANEL;
    for (int k0 = 0; k0 < w->k; k0 += step) {
        int n = w->k - k0 < step ? w->k - k0 : step;
        tern_gemm_expand_avx2(tile, w, &l, row / TERN_PANEL, k0, n);
        for (int i = 0; i < n; i++)
            out[k0 + i] = tile[i * TERN_PANEL + j];
    }
}

void tern_gemm_init_avx2(struct tern_gemm_kernels *k)
{
    k->quantize = tern_gemm_quantize_avx2;
    k->wide = tern_gemm_wide_avx2;
    k->quantize16 = quantize16;
    k->narrow = tern_gemm_narrow_avx2;
    k->narrow16 = tern_gemm_narrow16_avx2;
    k->row = row;
}
