/* base/fp16.h - scalar conversions between binary32 and smaller formats, exact and branch-light.
 *
 * Both narrowing conversions round to nearest, ties to even; NaN stays NaN, overflow becomes infinity.  They agree bit
 * for bit with the F16C and AVX-512 instructions that the vector kernels use. */
#ifndef TERN_BASE_FP16_H
#define TERN_BASE_FP16_H

#include <stdint.h>
#include <string.h>

static inline uint32_t tern_f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float tern_bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline float tern_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t mag = h & 0x7FFFu;
    if (mag >= 0x7C00u) /* infinity or NaN: keep the payload, quieten */
        return tern_bits_f32(sign | 0x7F800000u | (mag & 0x3FFu ? 0x400000u : 0) | ((mag & 0x3FFu) << 13));
    if (mag >= 0x0400u)
        return tern_bits_f32(sign | ((mag << 13) + 0x38000000u));
    return tern_bits_f32(sign | tern_f32_bits((float)mag * 0x1.0p-24f)); /* subnormal: exact product */
}

static inline uint16_t tern_f32_to_f16(float f)
{
    uint32_t u = tern_f32_bits(f);
    uint32_t sign = (u >> 16) & 0x8000u;
    uint32_t mag = u & 0x7FFFFFFFu;
    if (mag > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00u | ((mag >> 13) & 0x3FFu));
    if (mag >= 0x477FF000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7C00u);
    if (mag < 0x38800000u) { /* below 2^-14: adding 0.5 lets the FPU round at the subnormal's last bit */
        float r = tern_bits_f32(mag) + 0.5f;
        return (uint16_t)(sign | (tern_f32_bits(r) - 0x3F000000u));
    }
    mag += 0xFFFu + ((mag >> 13) & 1u);
    return (uint16_t)(sign | ((mag - 0x38000000u) >> 13));
}

static inline float tern_bf16_to_f32(uint16_t h)
{
    return tern_bits_f32((uint32_t)h << 16);
}

static inline uint16_t tern_f32_to_bf16(float f)
{
    uint32_t u = tern_f32_bits(f);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

/* E4M3 as in OCP's 8-bit formats: bias 7, no infinities; the two NaN come back as +-480. */
static inline float tern_e4m3_to_f32(uint8_t b)
{
    return tern_bits_f32((uint32_t)(b & 0x80u) << 24 | (uint32_t)(b & 0x7Fu) << 20) * 0x1p120f;
}

/* E8M0: 2^(b-127); the NaN (255) comes back as infinity. */
static inline float tern_e8m0_to_f32(uint8_t b)
{
    return tern_bits_f32(b ? (uint32_t)b << 23 : 0x00400000u);
}

#endif
