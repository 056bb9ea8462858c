/* kernel/neon/gemm_block.h - reading one block of a packed panel: its 16 rows are four vectors of four rows.
 *
 * Everything is forced inline with constant `codes` and `scales`, so every format gets its own straight-line loop. */
#ifndef TERN_NEON_GEMM_BLOCK_H
#define TERN_NEON_GEMM_BLOCK_H

#include <arm_neon.h>
#include "kernel/gemm.h"
#include "kernel/panel.h"

#define ALWAYS static inline __attribute__((always_inline))

/* One number for each of the 16 rows. */
struct rows16 {
    float32x4_t v[4];
};

ALWAYS float32x4_t half4(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

ALWAYS struct rows16 half16(const uint16_t *p)
{
    struct rows16 r;
#pragma GCC unroll 4
    for (int h = 0; h < 4; h++)
        r.v[h] = half4(p + 4 * h);
    return r;
}

ALWAYS struct rows16 from16(int16x8_t lo, int16x8_t hi)
{
    struct rows16 r = {{
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))),
        vcvtq_f32_s32(vmovl_s16(vget_high_s16(lo))),
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))),
        vcvtq_f32_s32(vmovl_s16(vget_high_s16(hi))),
    }};
    return r;
}

ALWAYS struct rows16 product16(struct rows16 a, struct rows16 b)
{
#pragma GCC unroll 4
    for (int h = 0; h < 4; h++)
        a.v[h] = vmulq_f32(a.v[h], b.v[h]);
    return a;
}

ALWAYS struct rows16 times16(struct rows16 a, float f)
{
#pragma GCC unroll 4
    for (int h = 0; h < 4; h++)
        a.v[h] = vmulq_n_f32(a.v[h], f);
    return a;
}

ALWAYS struct rows16 bytes16(uint8x16_t b)
{
    return from16(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(b))), vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(b))));
}

ALWAYS struct rows16 signed16(const uint8_t *p)
{
    int8x16_t b = vreinterpretq_s8_u8(vld1q_u8(p));
    return from16(vmovl_s8(vget_low_s8(b)), vmovl_s8(vget_high_s8(b)));
}

/* E4M3 as the top byte of each lane, the rest arbitrary. */
ALWAYS float32x4_t e4m3x4(uint32x4_t top)
{
    uint32x4_t mag = vandq_u32(top, vdupq_n_u32(0x7F000000)) >> 4, sign = vandq_u32(top, vdupq_n_u32(0x80000000u));
    return vmulq_n_f32(vreinterpretq_f32_u32(vorrq_u32(mag, sign)), 0x1p120f);
}

/* Sixteen numbers of a region of the G kinds from place `at` on. */
ALWAYS struct rows16 numbers16(enum tern_number type, const uint16_t *region, size_t at)
{
    const uint8_t *p = (const uint8_t *)region + at * tern_number_bytes(type);
    struct rows16 r;
    if (type == TERN_NUMBER_F16)
        return half16((const uint16_t *)(const void *)p);
    if (type == TERN_NUMBER_ZERO)
        return bytes16(vld1q_u8(p));
#pragma GCC unroll 4
    for (int h = 0; h < 4; h++) {
        if (type == TERN_NUMBER_F32) {
            r.v[h] = vld1q_f32((const float *)(const void *)p + 4 * h);
        } else if (type == TERN_NUMBER_BF16) {
            uint16x4_t u = vld1_u16((const uint16_t *)(const void *)p + 4 * h);
            r.v[h] = vreinterpretq_f32_u32(vshll_n_u16(u, 16));
        } else {
            uint32x4_t b = {p[4 * h], p[4 * h + 1], p[4 * h + 2], p[4 * h + 3]};
            r.v[h] = type == TERN_NUMBER_E4M3 ? e4m3x4(b << 24)
                                              : vreinterpretq_f32_u32(vmaxq_u32(b << 23, vdupq_n_u32(0x00400000)));
        }
    }
    return r;
}

#define GEMM_ROWS    struct rows16
#define ROWS_ZERO    ((struct rows16){0})
#define rows_half    half16
#define rows_u8(p)   bytes16(vld1q_u8(p))
#define rows_i8      signed16
#define rows_low(p)  bytes16(vandq_u8(vld1q_u8(p), vdupq_n_u8(15)))
#define rows_high(p) bytes16(vld1q_u8(p) >> 4)
#define rows_number  numbers16
#define rows_product product16
#define rows_times   times16
#include "kernel/gemm_scales_impl.h"

/* minimum * times + acc with the sign that the format gives the minimum. */
ALWAYS float32x4_t plus_minimum(enum tern_scales scales, float32x4_t minimum, float32x4_t times, float32x4_t acc)
{
    return tern_scales_minus(scales) ? vfmsq_f32(acc, minimum, times) : vfmaq_f32(acc, minimum, times);
}

/* Bytes shifted left by a constant that may be negative. */
ALWAYS uint8x16_t shift8(uint8x16_t v, int left)
{
    return left >= 0 ? v << left : v >> -left;
}

ALWAYS int8x16_t code_table(enum tern_codes codes, const struct tern_panel_view *v)
{
    return tern_codes_table(codes) ? vld1q_s8(v->table) : vdupq_n_s8(0);
}

/* Code bytes of quad `q` (0..7) for rows 4*h ..; q is constant after unrolling.  table: code_table. */
ALWAYS int8x16_t quad_codes(enum tern_codes codes, int8x16_t table, const uint8_t *block, int q, int h)
{
    if (codes == TERN_CODES_S8 || codes == TERN_CODES_E4M3)
        return vreinterpretq_s8_u8(vld1q_u8(block + q * TERN_VEC + 16 * h));
    uint8x16_t c;
    if (codes == TERN_CODES_U2 || codes == TERN_CODES_U3 || codes == TERN_CODES_T3) {
        c = vandq_u8(shift8(vld1q_u8(block + q / 4 * TERN_VEC + 16 * h), -2 * (q % 4)), vdupq_n_u8(3));
        if (codes != TERN_CODES_U2) {
            uint8x16_t high = vld1q_u8(block + 2 * TERN_VEC + 16 * h);
            c = vorrq_u8(c, vandq_u8(shift8(high, 2 - q), vdupq_n_u8(4)));
        }
    } else {
        c = vld1q_u8(block + q % 4 * TERN_VEC + 16 * h);
        c = q < 4 ? vandq_u8(c, vdupq_n_u8(15)) : c >> 4;
    }
    if (codes == TERN_CODES_U5) {
        uint8x16_t high = vld1q_u8(block + 4 * TERN_VEC + 16 * h);
        c = vorrq_u8(c, vandq_u8(shift8(high, 4 - q), vdupq_n_u8(16)));
    } else if (codes == TERN_CODES_U6) {
        uint8x16_t high = vld1q_u8(block + (4 + q / 4) * TERN_VEC + 16 * h);
        c = vorrq_u8(c, vandq_u8(shift8(high, 4 - 2 * (q % 4)), vdupq_n_u8(48)));
    }
    return tern_codes_table(codes) ? vqtbl1q_s8(table, c) : vreinterpretq_s8_u8(c);
}

#endif
