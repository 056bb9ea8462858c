#include "kernel/neon/gemm.h"
#include "kernel/neon/gemm_block.h"

#include <string.h>

/* ---- quantize ---- */

/* Bits of the largest |x| among 32; unsigned order keeps NaN on top. */
ALWAYS uint32_t max_bits(const float32x4_t x[8])
{
    uint32x4_t m = vdupq_n_u32(0);
    for (int i = 0; i < 8; i++)
        m = vmaxq_u32(m, vreinterpretq_u32_f32(vabsq_f32(x[i])));
    return vmaxvq_u32(m);
}

/* A block as codes, and its scale for codes up to `most` times as large as it. */
ALWAYS float block_codes(int32x4_t c[8], const float *x, float most)
{
    float32x4_t v[8];
    for (int i = 0; i < 8; i++)
        v[i] = vld1q_f32(x + 4 * i);
    float amax = tern_bits_f32(max_bits(v)), inv = most / amax;
    if (inv > 3.4028234664e38f) /* amax too small to invert: the block counts as zero */
        inv = 0;
    for (int i = 0; i < 8; i++)
        c[i] = vcvtnq_s32_f32(vmulq_n_f32(v[i], inv));
    return amax / most;
}

/* Sixteen codes as bytes to q; their sum. */
ALWAYS int32_t store_codes(int8_t *q, const int32x4_t c[4])
{
    int16x8_t lo = vcombine_s16(vmovn_s32(c[0]), vmovn_s32(c[1]));
    int16x8_t hi = vcombine_s16(vmovn_s32(c[2]), vmovn_s32(c[3]));
    vst1q_s8(q, vcombine_s8(vmovn_s16(lo), vmovn_s16(hi)));
    return vaddvq_s16(vaddq_s16(lo, hi));
}

static void quantize(int8_t *q, float *scale, int32_t *sum16, const float *x, int k)
{
    for (int b = 0; b < k / TERN_BLOCK; b++) {
        int32x4_t c[8];
        scale[b] = block_codes(c, x + b * TERN_BLOCK, 127.0f);
        for (int h = 0; h < 2; h++)
            sum16[2 * b + h] = store_codes(q + b * TERN_BLOCK + 16 * h, c + 4 * h);
    }
}

static void quantize16(int8_t *high, int8_t *low, float *scale, int32_t *sum16, const float *x, int k)
{
    for (int b = 0; b < k / TERN_BLOCK; b++) {
        int32x4_t c[8], h[8], l[8];
        scale[b] = block_codes(c, x + b * TERN_BLOCK, 32512.0f);
        for (int i = 0; i < 8; i++) {
            h[i] = vshrq_n_s32(vaddq_s32(c[i], vdupq_n_s32(128)), 8);
            l[i] = vmaxq_s32(vsubq_s32(c[i], vshlq_n_s32(h[i], 8)), vdupq_n_s32(-127));
        }
        for (int g = 0; g < 2; g++) {
            const int at = b * TERN_BLOCK + 16 * g;
            const int32_t sum = 256 * store_codes(high + at, h + 4 * g);
            sum16[2 * b + g] = sum + store_codes(low + at, l + 4 * g);
        }
    }
}

/* ---- dequantisation ---- */

/* One block as f32, out[32][16]. */
ALWAYS void expand_block(enum tern_codes codes, enum tern_scales scales, float *out, const struct tern_panel_view *v,
                         size_t b, int zero)
{
    const uint8_t *block = v->codes + b * tern_codes_unit(codes);
    const struct super super = super_scale(scales, v, b / 8, 0);
    const int8x16_t table = code_table(codes, v);
    struct rows16 scale, minimum;
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++) {
        if (q == 0 || (q == 4 && tern_scales_halves(scales)))
            group_scale(scales, v, &super, 2 * b + (size_t)q / 4, 0, &scale, &minimum);
#pragma GCC unroll 4
        for (int h = 0; h < 4; h++) {
            int8x16_t c = quad_codes(codes, table, block, q, h);
            if (!tern_codes_signed(codes) && codes != TERN_CODES_E4M3 && tern_scales_zero(scales))
                c = vsubq_s8(c, vdupq_n_s8((int8_t)zero));
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                int32x4_t top = vreinterpretq_s32_s8(c) << (24 - 8 * i);
                float32x4_t f =
                    codes == TERN_CODES_E4M3 ? e4m3x4(vreinterpretq_u32_s32(top)) : vcvtq_f32_s32(top >> 24);
                if (codes == TERN_CODES_S8 && scales == TERN_SCALES_G32M)
                    f = vsubq_f32(f, vdupq_n_f32((float)zero));
                /* One fused operation rounds exactly once, as the contract wants. */
                f = tern_scales_plus(scales)    ? vfmaq_f32(minimum.v[h], scale.v[h], f)
                    : tern_scales_minus(scales) ? vfmaq_f32(vnegq_f32(minimum.v[h]), scale.v[h], f)
                                                : vmulq_f32(scale.v[h], f);
                vst1q_f32(out + (4 * q + i) * TERN_PANEL + 4 * h, f);
            }
        }
    }
}

static void expand_float(float *out, enum tern_codes codes, const uint8_t *p, int n)
{
    const uint16_t *u = (const uint16_t *)(const void *)p;
    for (size_t i = 0; i < (size_t)n * TERN_PANEL; i += 4)
        vst1q_f32(out + i,
                  codes == TERN_CODES_F16 ? half4(u + i) : vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(u + i), 16)));
}

void tern_gemm_expand_neon(float *out, const struct tern_packed *w, const struct tern_panel_layout *l, int panel,
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
        tern_gemm_expand_neon(tile, w, &l, row / TERN_PANEL, k0, n);
        for (int i = 0; i < n; i++)
            out[k0 + i] = tile[i * TERN_PANEL + j];
    }
}

void tern_gemm_init_neon(struct tern_gemm_kernels *k)
{
    k->quantize = quantize;
    k->wide = tern_gemm_wide_neon;
    k->quantize16 = quantize16;
    k->narrow = tern_gemm_narrow_neon;
    k->narrow16 = tern_gemm_narrow16_neon;
    k->row = row;
}
