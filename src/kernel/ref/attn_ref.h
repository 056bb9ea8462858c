/* ref/attn_ref.h - what the softmaxes of plain C share. */
#ifndef TERN_REF_ATTN_REF_H
#define TERN_REF_ATTN_REF_H

#include <math.h>
#include "base/fp16.h"

/* 2^x for x <= 0 (0 below -126).  x = n + f with |f| <= 1/2; 2^f is a minimax polynomial of degree 5 held to p(0) = 1,
 * relative error 9.4e-8 before rounding; n goes straight into the exponent.  Adding 1.5 * 2^23 rounds to the nearest
 * integer and leaves it in the low bits. */
static inline float exp2_nonpos(float x)
{
    float shifted = x + 0x1.8p23f;
    float f = x - (shifted - 0x1.8p23f);
    float p = fmaf(f, 0x1.5bda36p-10f, 0x1.3ce8aap-7f);
    p = fmaf(f, p, 0x1.c6b6d8p-5f);
    p = fmaf(f, p, 0x1.ebf9c2p-3f);
    p = fmaf(f, p, 0x1.62e42ap-1f);
    p = fmaf(f, p, 1.0f);
    float r = tern_bits_f32(tern_f32_bits(p) + (tern_f32_bits(shifted) << 23));
    return x < -126.0f ? 0.0f : r;
}

/* The larger one as the vector instruction picks it: the second operand unless the first is greater. */
static inline float max_f32(float a, float b)
{
    return a > b ? a : b;
}

/* Sixteen lanes to one, i with i+8, then i+4, i+2, i+1. */
static inline float max_lanes(float lane[16])
{
    for (int half = 8; half >= 1; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] = max_f32(lane[i], lane[i + half]);
    return lane[0];
}

static inline float sum_lanes(float lane[16])
{
    for (int half = 8; half >= 1; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

#endif
