/* neon/kvq_trellis.c - the trellis encoder (kernel/kvq_trellis_impl.h), 16 vectors at once. */
#include "kernel/neon/kvq_simd.h"
#include "kernel/neon/simd.h"

#define TRELLIS_LANES   8
#define TRELLIS_WIDE    (2 * TRELLIS_LANES)
#define TRELLIS_AT_ONCE 8
#define vec_keep(v)     __asm__("" : "+w"(v))
typedef int16x8_t vec __attribute__((may_alias));
typedef uint16x8_t lane_set;
typedef float32x4_t floats __attribute__((may_alias));

KVQ_INLINE vec vec_set(int i)
{
    return vdupq_n_s16((int16_t)i);
}

KVQ_INLINE vec vec_add(vec a, vec b)
{
    return vaddq_s16(a, b);
}

KVQ_INLINE vec vec_sub(vec a, vec b)
{
    return vsubq_s16(a, b);
}

KVQ_INLINE vec vec_mul(vec a, vec b)
{
    return vmulq_s16(a, b);
}

KVQ_INLINE vec vec_adds(vec a, vec b)
{
    return vqaddq_s16(a, b);
}

KVQ_INLINE vec vec_min(vec a, vec b)
{
    return vminq_s16(a, b);
}

/* sqrdmulh rounds 2ab / 2^16, which is the same. */
KVQ_INLINE vec vec_mulhrs(vec a, vec b)
{
    return vqrdmulhq_s16(a, b);
}

KVQ_INLINE vec vec_and(vec a, vec b)
{
    return vandq_s16(a, b);
}

KVQ_INLINE vec vec_or(vec a, vec b)
{
    return vorrq_s16(a, b);
}

KVQ_INLINE vec vec_shl(vec a, const int n)
{
    return a << n;
}

KVQ_INLINE vec vec_shr(vec a, const int n)
{
    return vreinterpretq_s16_u16(vreinterpretq_u16_s16(a) >> n);
}

KVQ_INLINE lane_set vec_equal(vec a, vec b)
{
    return vceqq_s16(a, b);
}

KVQ_INLINE lane_set vec_less(vec a, vec b)
{
    return vcltq_s16(a, b);
}

KVQ_INLINE vec vec_choose(lane_set set, vec yes, vec no)
{
    return vbslq_s16(set, yes, no);
}

KVQ_INLINE vec vec_table(const int8_t *t)
{
    return vreinterpretq_s16_s8(vld1q_s8(t));
}

KVQ_INLINE vec vec_look_up(vec table, vec i)
{
    return vmovl_s8(vqtbl1_s8(vreinterpretq_s8_s16(table), vreinterpret_u8_s8(vmovn_s16(i))));
}

KVQ_INLINE int16x4_t on_grid(const float *y, const float *scale)
{
    float32x4_t x = vminnmq_f32(vmulq_f32(vld1q_f32(y), vld1q_f32(scale)), vdupq_n_f32(16256.0f));
    return vmovn_s32(vcvtnq_s32_f32(vmaxnmq_f32(x, vdupq_n_f32(-16256.0f))));
}

KVQ_INLINE vec vec_on_grid(const float *y, const float *scale)
{
    return vcombine_s16(on_grid(y, scale), on_grid(y + 4, scale + 4));
}

KVQ_INLINE floats vec_floats(vec v, const int j)
{
    return vcvtq_f32_s32(vmovl_s16(j ? vget_high_s16(v) : vget_low_s16(v)));
}

KVQ_INLINE floats floats_fma(floats a, floats b, floats c)
{
    return vfmaq_f32(c, a, b);
}

KVQ_INLINE void store_bytes(uint8_t *to, vec v)
{
    vst1_u8(to, vreinterpret_u8_s8(vmovn_s16(v)));
}

KVQ_INLINE void choose_bytes(uint8_t *to, const uint8_t *from, const uint8_t *set)
{
    vst1_u8(to, vbsl_u8(vld1_u8(set), vld1_u8(from), vld1_u8(to)));
}

KVQ_INLINE void turn_floats(float *to, const float *const *row, int i)
{
    const float32x4x2_t a = vtrnq_f32(vld1q_f32(row[0] + i), vld1q_f32(row[1] + i));
    const float32x4x2_t b = vtrnq_f32(vld1q_f32(row[2] + i), vld1q_f32(row[3] + i));
    KVQ_UNROLL for (int c = 0; c < 2; c++)
    {
        vst1q_f32(to + c * TRELLIS_WIDE, vcombine_f32(vget_low_f32(a.val[c]), vget_low_f32(b.val[c])));
        vst1q_f32(to + (c + 2) * TRELLIS_WIDE, vcombine_f32(vget_high_f32(a.val[c]), vget_high_f32(b.val[c])));
    }
}

/* A transpose of 8 x 8 bytes in either half of the registers: dims 0 to 7 in the low halves, 8 to 15 in the high ones.
 */
KVQ_INLINE void turn_bytes(uint8_t *to, size_t stride, const uint8_t *from, int n)
{
    uint8x16_t v[8], u[8];
    KVQ_UNROLL for (int c = 0; c < 8; c++) v[c] =
        vcombine_u8(vld1_u8(from + c * TRELLIS_WIDE), vld1_u8(from + (c + 8) * TRELLIS_WIDE));
    KVQ_UNROLL for (int step = 1; step < 8; step *= 2)
    {
        KVQ_UNROLL for (int c = 0; c < 8; c++) u[c] = v[c];
        KVQ_UNROLL for (int c = 0; c < 8; c++)
        {
            const int pair = c & ~step, odd = c & step;
            const uint8x16_t a = u[pair], b = u[pair | step];
            if (step == 1)
                v[c] = odd ? vtrn2q_u8(a, b) : vtrn1q_u8(a, b);
            else if (step == 2)
                v[c] = vreinterpretq_u8_u16(odd ? vtrn2q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b))
                                                : vtrn1q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
            else
                v[c] = vreinterpretq_u8_u32(odd ? vtrn2q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b))
                                                : vtrn1q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
        }
    }
    KVQ_UNROLL for (int r = 0; r < 8; r++)
    {
        if (r < n)
            vst1q_u8(to + (size_t)r * stride, v[r]);
    }
}

KVQ_INLINE float kvq_energy(const float *y, int n)
{
    return square_sum16(y, n);
}

#include "kernel/kvq_trellis_impl.h"

void tern_kvq_encode_trellis_neon(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab,
                                  int key, int dim, int n, void *scratch)
{
    encode_trellis(codes, head, x, tab, key, dim, n, scratch);
}
