/* kernel/neon/simd.h - 128-bit helpers for elementwise kernels: partial loads, the exponential, the logistic product.
 *
 * Partial loads and stores take the number of elements that exist (a negative or zero count touches nothing), so that
 * the last elements of a row go through the same arithmetic as all others.  Elements that do not exist are 0. */
#ifndef TERN_NEON_SIMD_H
#define TERN_NEON_SIMD_H

#include <arm_neon.h>
#include <string.h>

static inline float32x4_t load_part(const float *p, int n)
{
    if (n >= 4)
        return vld1q_f32(p);
    float v[4] = {0};
    if (n > 0)
        memcpy(v, p, (size_t)n * sizeof *v);
    return vld1q_f32(v);
}

static inline void store_part(float *p, int n, float32x4_t v)
{
    if (n >= 4) {
        vst1q_f32(p, v);
    } else if (n > 0) {
        float last[4];
        vst1q_f32(last, v);
        memcpy(p, last, (size_t)n * sizeof *last);
    }
}

/* Sixteen lanes to one: i with i+8, then i+4, i+2, i+1. */
static inline float add_lanes16(const float32x4_t lane[4])
{
    float32x4_t s = vaddq_f32(vaddq_f32(lane[0], lane[2]), vaddq_f32(lane[1], lane[3]));
    float32x2_t h = vadd_f32(vget_low_f32(s), vget_high_f32(s));
    return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}

/* Sum of squares by 16 lanes, lane i taking elements i mod 16. */
static inline float square_sum16(const float *x, int n)
{
    float32x4_t lane[4];
    for (int j = 0; j < 4; j++)
        lane[j] = vdupq_n_f32(0);
    for (int i = 0; i < n; i += 16) {
        for (int j = 0; j < 4; j++) { /* lanes without an element add +0, which changes nothing */
            float32x4_t v = load_part(x + i + 4 * j, n - i - 4 * j);
            lane[j] = vfmaq_f32(lane[j], v, v);
        }
    }
    return add_lanes16(lane);
}

/* 2^n for n in [-126, 127]. */
static inline float32x4_t power_of_two(int32x4_t n)
{
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}

/* e^t as mantissa * 2^*n with the mantissa in about [0.7, 1.42], for t in [-87, 170]; about one unit in the last place.
 * t is reduced by multiples of ln 2 in two steps; what remains is at most 0.35, where the power series to the seventh
 * order is accurate to 1e-8.  NaN comes back as mantissa NaN. */
static inline float32x4_t exp_parts(float32x4_t t, int32x4_t *n)
{
    *n = vcvtnq_s32_f32(vmulq_n_f32(t, 1.44269504f));
    float32x4_t steps = vcvtq_f32_s32(*n);
    float32x4_t r = vfmsq_n_f32(vfmsq_n_f32(t, steps, 0.693147182f), steps, -1.90465430e-9f);
    float32x4_t p = vdupq_n_f32(1.0f / 5040);
    p = vfmaq_f32(vdupq_n_f32(1.0f / 720), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f / 120), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f / 24), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f / 6), p, r);
    p = vfmaq_f32(vdupq_n_f32(0.5f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
    return vfmaq_f32(vdupq_n_f32(1.0f), p, r);
}

/* gate / (1 + e^t) * up.  Where e^t is huge, numerator and denominator are taken times 2^-n, so that nothing overflows;
 * the factor comes back in two halves around the product with `up`, so that nothing underflows before the end.
 * The clamps keep NaN, and turn -inf into a result of zero. */
static inline float32x4_t logistic_product(float32x4_t gate, float32x4_t t, float32x4_t up)
{
    const int32x4_t zero = vdupq_n_s32(0);
    int32x4_t n;
    gate = vmaxq_f32(gate, vdupq_n_f32(-200.0f));
    t = vminq_f32(vmaxq_f32(t, vdupq_n_f32(-87.0f)), vdupq_n_f32(170.0f));
    float32x4_t e = exp_parts(t, &n);
    int32x4_t above = vminq_s32(vmaxq_s32(n, zero), vdupq_n_s32(250));
    int32x4_t below = vmaxq_s32(vminq_s32(n, zero), vdupq_n_s32(-126));
    int32x4_t half = vshrq_n_s32(above, 1);
    float32x4_t c1 = power_of_two(vsubq_s32(zero, half)), c2 = power_of_two(vsubq_s32(half, above));
    float32x4_t one = vmulq_f32(c1, c2);
    float32x4_t q = vdivq_f32(gate, vaddq_f32(one, vmulq_f32(e, power_of_two(below))));
    return vmulq_f32(vmulq_f32(vmulq_f32(q, c1), up), c2);
}

/* tanh(z) to about 2e-7 absolutely: (1 - e)/(1 + e) with e = exp(-2|z|). */
static inline float32x4_t tanh_vec(float32x4_t z)
{
    const float32x4_t one = vdupq_n_f32(1.0f);
    int32x4_t n;
    float32x4_t t = vmulq_n_f32(vabsq_f32(z), -2.0f);
    float32x4_t e = exp_parts(vmaxq_f32(t, vdupq_n_f32(-87.0f)), &n);
    e = vmulq_f32(e, power_of_two(vmaxq_s32(vminq_s32(n, vdupq_n_s32(0)), vdupq_n_s32(-126))));
    float32x4_t y = vdivq_f32(vsubq_f32(one, e), vaddq_f32(one, e));
    return vbslq_f32(vdupq_n_u32(0x80000000u), z, y);
}

#endif
