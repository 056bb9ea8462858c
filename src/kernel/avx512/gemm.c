#include "kernel/avx512/gemm_block.h"
#include "kernel/avx512/gemm.h"

#include <string.h>

/* ---- quantize ---- */

/* What the lanes add up to, modulo 2^32: of a block with NaN or infinities they are anything. */
static int32_t lane_sum(__m512i v)
{
    __m256i a = _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xB1)));
}

/* A block's scale for codes up to `most` times as large as it, and what its values are multiplied by. */
static float block_scale(const __m512 v[2], float most, float *inv)
{
    const __m512i mag = _mm512_set1_epi32(0x7FFFFFFF);
    /* Largest |x| by its bits; unsigned order keeps NaN on top. */
    __m512i top = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(v[0]), mag),
                                   _mm512_and_si512(_mm512_castps_si512(v[1]), mag));
    float amax = tern_bits_f32(_mm512_reduce_max_epu32(top));
    *inv = most / amax;
    if (*inv > 3.4028234664e38f) /* amax too small to invert: the block counts as zero */
        *inv = 0;
    return amax / most;
}

static void store_bytes(int8_t *to, __m512i c)
{
    _mm_storeu_si128((__m128i *)(void *)to, _mm512_cvtsepi32_epi8(c));
}

void tern_gemm_quantize_avx512(int8_t *q, float *scale, int32_t *sum16, const float *x, int k)
{
    for (int b = 0; b < k / TERN_BLOCK; b++) {
        __m512 v[2] = {_mm512_loadu_ps(x + b * TERN_BLOCK), _mm512_loadu_ps(x + b * TERN_BLOCK + 16)};
        float inv;
        scale[b] = block_scale(v, 127.0f, &inv);
        for (int i = 0; i < 2; i++) {
            __m512i c = _mm512_cvtps_epi32(_mm512_mul_ps(v[i], _mm512_set1_ps(inv)));
            store_bytes(q + b * TERN_BLOCK + 16 * i, c);
            sum16[2 * b + i] = lane_sum(c);
        }
    }
}

static void quantize16(int8_t *high, int8_t *low, float *scale, int32_t *sum16, const float *x, int k)
{
    for (int b = 0; b < k / TERN_BLOCK; b++) {
        __m512 v[2] = {_mm512_loadu_ps(x + b * TERN_BLOCK), _mm512_loadu_ps(x + b * TERN_BLOCK + 16)};
        float inv;
        scale[b] = block_scale(v, 32512.0f, &inv);
        for (int i = 0; i < 2; i++) {
            __m512i c = _mm512_cvtps_epi32(_mm512_mul_ps(v[i], _mm512_set1_ps(inv)));
            __m512i h = _mm512_srai_epi32(_mm512_add_epi32(c, _mm512_set1_epi32(128)), 8);
            __m512i h256 = _mm512_slli_epi32(h, 8);
            __m512i l = _mm512_max_epi32(_mm512_sub_epi32(c, h256), _mm512_set1_epi32(-127));
            store_bytes(high + b * TERN_BLOCK + 16 * i, h);
            store_bytes(low + b * TERN_BLOCK + 16 * i, l);
            sum16[2 * b + i] = lane_sum(_mm512_add_epi32(h256, l));
        }
    }
}

/* ---- dequantisation ---- */

/* One block as f32, out[32][16]. */
ALWAYS void expand_block(enum tern_codes codes, enum tern_scales scales, float *out, const struct tern_panel_view *v,
                         size_t b, int zero)
{
    struct block_scales s;
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++) {
        __m512 f[4];
        quad_weights(codes, scales, v, b, q, zero, &s, f);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            _mm512_store_ps(out + (4 * q + i) * TERN_PANEL, f[i]);
    }
}

static void expand_float(float *out, enum tern_codes codes, const uint8_t *p, int n)
{
    for (int i = 0; i < n; i++, out += TERN_PANEL) {
        __m256i u = _mm256_load_si256((const __m256i *)(const void *)(p + 32 * (size_t)i));
        __m512 f = codes == TERN_CODES_F16 ? _mm512_cvtph_ps(u)
                                           : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(u), 16));
        _mm512_store_ps(out, f);
    }
}

void tern_gemm_expand_avx512(float *out, const struct tern_packed *w, const struct tern_panel_layout *l, int panel,
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
        tern_gemm_expand_avx512(tile, w, &l, row / TERN_PANEL, k0, n);
        for (int i = 0; i < n; i++)
            out[k0 + i] = tile[i * TERN_PANEL + j];
    }
}

void tern_gemm_init_avx512(struct tern_gemm_kernels *k)
{
    k->quantize = tern_gemm_quantize_avx512;
    k->wide = tern_gemm_wide_avx512;
    k->quantize16 = quantize16;
    k->narrow = tern_gemm_narrow_avx512;
    k->narrow16 = tern_gemm_narrow16_avx512;
    k->row = row;
}
