/* kernel/neon/attn_simd.h - pieces of attention on 128-bit vectors, in the order of operations that ref/attn.c defines.
 *
 * A "16-lane" value of the contract is four vectors here. */
#ifndef TERN_KERNEL_NEON_ATTN_SIMD_H
#define TERN_KERNEL_NEON_ATTN_SIMD_H

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include "kernel/attn_impl.h"

/* Four elements from index i of an array of f32 or f16. */
ATTN_INLINE float32x4_t load4(const void *p, size_t i, int half)
{
    if (half)
        return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)p + i)));
    return vld1q_f32((const float *)p + i);
}

/* 2^x for x <= 0, 0 below -126; the constants are derived in ref/attn.c. */
ATTN_INLINE float32x4_t exp2_nonpos(float32x4_t x)
{
    const float32x4_t magic = vdupq_n_f32(0x1.8p23f);
    float32x4_t shifted = vaddq_f32(x, magic);
    float32x4_t f = vsubq_f32(x, vsubq_f32(shifted, magic));
    float32x4_t p = vfmaq_f32(vdupq_n_f32(0x1.3ce8aap-7f), f, vdupq_n_f32(0x1.5bda36p-10f));
    p = vfmaq_f32(vdupq_n_f32(0x1.c6b6d8p-5f), f, p);
    p = vfmaq_f32(vdupq_n_f32(0x1.ebf9c2p-3f), f, p);
    p = vfmaq_f32(vdupq_n_f32(0x1.62e42ap-1f), f, p);
    p = vfmaq_f32(vdupq_n_f32(1.0f), f, p);
    uint32x4_t n = vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23);
    uint32x4_t r = vaddq_u32(vreinterpretq_u32_f32(p), n);
    return vreinterpretq_f32_u32(vbicq_u32(r, vcltq_f32(x, vdupq_n_f32(-126.0f))));
}

/* The second operand unless the first is greater: what plain C says about NaN. */
ATTN_INLINE float32x4_t larger(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

/* Sixteen lanes to one: i with i+8, then i+4, i+2, i+1. */
ATTN_INLINE float max16(const float32x4_t v[4])
{
    float32x4_t a = larger(larger(v[0], v[2]), larger(v[1], v[3]));
    a = larger(a, vextq_f32(a, a, 2));
    a = larger(a, vextq_f32(a, a, 1));
    return vgetq_lane_f32(a, 0);
}

#endif
