/* kernel/neon/gemm_block.h - reading one block of a packed panel: its 16 rows are four vectors of four rows.
 *
 * Everything is forced inline with constant `codes` and `scales`, so every format gets its own straight-line loop. */
#ifndef TERN_NEON_GEMM_BLOCK_H
#define TERN_NEON_GEMM_BLOCK_H

#include <arm_neon.h>
#include "kernel/gemm.h"
#include "kernel/pack.h"

#define ALWAYS static inline __attribute__((always_inline))

/* X(codes, scales): the combinations that exist. */
#define TERN_QUANT_KINDS(X) \
    X(U4, F16)              \
    X(U4, F16M)             \
    X(U4, K32)              \
    X(U5, F16)              \
    X(U5, F16M)             \
    X(U5, K32)              \
    X(U6, K16)              \
    X(S8, F16)

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

/* d times 16 unsigned bytes, times 16 signed ones: exact. */
ALWAYS struct rows16 times_u8(struct rows16 d, const uint8_t *p)
{
    uint8x16_t b = vld1q_u8(p);
    struct rows16 f =
        from16(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(b))), vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(b))));
#pragma GCC unroll 4
    for (int h = 0; h < 4; h++)
        d.v[h] = vmulq_f32(d.v[h], f.v[h]);
    return d;
}

ALWAYS struct rows16 times_s8(struct rows16 d, const uint8_t *p)
{
    int8x16_t b = vreinterpretq_s8_u8(vld1q_u8(p));
    struct rows16 f = from16(vmovl_s8(vget_low_s8(b)), vmovl_s8(vget_high_s8(b)));
#pragma GCC unroll 4
    for (int h = 0; h < 4; h++)
        d.v[h] = vmulq_f32(d.v[h], f.v[h]);
    return d;
}

/* Does the format add a minimum? */
ALWAYS bool has_minimum(enum tern_scales scales)
{
    return scales == TERN_SCALES_F16M || scales == TERN_SCALES_K32;
}

/* Scales of 256 inputs (K32, K16): what group_scale needs beside the scales of smaller groups. */
struct super {
    struct rows16 d, m;
};

ALWAYS struct super super_scale(enum tern_scales scales, const struct tern_panel_view *v, size_t super)
{
    struct super s = {0};
    if (scales == TERN_SCALES_K32 || scales == TERN_SCALES_K16)
        s.d = half16(v->d + super * TERN_PANEL);
    if (scales == TERN_SCALES_K32)
        s.m = half16(v->m + super * TERN_PANEL);
    return s;
}

/* Scale and minimum for the 16 inputs number `half`; products as in kernel/gemm.h.  The minimum of F16M is to be added,
 * that of K32 subtracted: see plus_minimum. */
ALWAYS void group_scale(enum tern_scales scales, const struct tern_panel_view *v, const struct super *super,
                        size_t half, struct rows16 *scale, struct rows16 *minimum)
{
    size_t block = half / 2 * TERN_PANEL;
    if (scales == TERN_SCALES_F16 || scales == TERN_SCALES_F16M)
        *scale = half16(v->d + block);
    else if (scales == TERN_SCALES_K32)
        *scale = times_u8(super->d, v->a + block);
    else
        *scale = times_s8(super->d, v->a + half * TERN_PANEL);
    if (scales == TERN_SCALES_F16M)
        *minimum = half16(v->m + block);
    else if (scales == TERN_SCALES_K32)
        *minimum = times_u8(super->m, v->b + block);
}

/* minimum * times + acc with the sign that the format gives the minimum. */
ALWAYS float32x4_t plus_minimum(enum tern_scales scales, float32x4_t minimum, float32x4_t times, float32x4_t acc)
{
    return scales == TERN_SCALES_K32 ? vfmsq_f32(acc, minimum, times) : vfmaq_f32(acc, minimum, times);
}

/* Bytes shifted left by a constant that may be negative. */
ALWAYS uint8x16_t shift8(uint8x16_t v, int left)
{
    return left >= 0 ? v << left : v >> -left;
}

/* Code bytes of quad `q` (0..7) for rows 4*h ..; q is constant after unrolling. */
ALWAYS int8x16_t quad_codes(enum tern_codes codes, const uint8_t *block, int q, int h)
{
    if (codes == TERN_CODES_S8)
        return vreinterpretq_s8_u8(vld1q_u8(block + q * TERN_VEC + 16 * h));
    uint8x16_t c = vld1q_u8(block + q % 4 * TERN_VEC + 16 * h);
    c = q < 4 ? vandq_u8(c, vdupq_n_u8(15)) : c >> 4;
    if (codes == TERN_CODES_U5) {
        uint8x16_t high = vld1q_u8(block + 4 * TERN_VEC + 16 * h);
        c = vorrq_u8(c, vandq_u8(shift8(high, 4 - q), vdupq_n_u8(16)));
    } else if (codes == TERN_CODES_U6) {
        uint8x16_t high = vld1q_u8(block + (4 + q / 4) * TERN_VEC + 16 * h);
        c = vorrq_u8(c, vandq_u8(shift8(high, 4 - 2 * (q % 4)), vdupq_n_u8(48)));
    }
    return vreinterpretq_s8_u8(c);
}

#endif
