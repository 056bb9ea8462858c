/* kernel/neon/kvq_floats.h - scales, sums in the order of the contract, and bytes: what page kernels do besides codes.
 */
#ifndef TERN_NEON_KVQ_FLOATS_H
#define TERN_NEON_KVQ_FLOATS_H

#include <arm_neon.h>
#include "kernel/kvq_impl.h"

/* Four bytes from anywhere into every lane. */
KVQ_INLINE uint8x16_t kvq_broadcast4(const void *p)
{
    uint32_t four;
    memcpy(&four, p, 4);
    return vreinterpretq_u8_u32(vdupq_n_u32(four));
}

/* Sixteen items into the order of the prepared query. */
KVQ_INLINE uint8x16_t kvq_order(uint8x16_t items, const int bits)
{
    static const uint8_t pairs[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    static const uint8_t nibbles[16] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
    return bits == 8 ? items : vqtbl1q_u8(items, vld1q_u8(bits == 2 ? pairs : nibbles));
}

/* Scales of four headers. */
KVQ_INLINE float32x4_t kvq_scales(const uint16_t *head)
{
    uint16x4_t h = vshl_n_u16(vshr_n_u16(vld1_u16(head), 4), 3);
    return vcvt_f32_f16(vreinterpret_f16_u16(h));
}

/* Sixteen small integers to bytes, in order (saturating to int8). */
KVQ_INLINE int8x16_t kvq_bytes(const int32x4_t c[4])
{
    int16x8_t lo = vcombine_s16(vqmovn_s32(c[0]), vqmovn_s32(c[1]));
    int16x8_t hi = vcombine_s16(vqmovn_s32(c[2]), vqmovn_s32(c[3]));
    return vcombine_s8(vqmovn_s16(lo), vqmovn_s16(hi));
}

/* Sixteen bytes as floats. */
KVQ_INLINE void kvq_floats(float32x4_t f[4], int8x16_t b)
{
    int16x8_t lo = vmovl_s8(vget_low_s8(b)), hi = vmovl_s8(vget_high_s8(b));
    f[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo)));
    f[1] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(lo)));
    f[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi)));
    f[3] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(hi)));
}

/* Largest magnitude as bits; infinity and NaN compare above everything. */
KVQ_INLINE uint32_t kvq_top(const float *x, int n)
{
    uint32x4_t top = vdupq_n_u32(0);
    for (int i = 0; i < n; i += 4)
        top = vmaxq_u32(top, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i))));
    return vmaxvq_u32(top);
}

void tern_kvq_prep_neon(int8_t *q, float *scale, int32_t *sum, const float *x, const struct tern_kvq_table *tab,
                        int dim, int n_q);
void tern_kvq_score_neon(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                         const struct tern_kvq_table *tab, int dim, int n_q, const void *next);
void tern_kvq_accum_neon(float *o, const float *p, const uint8_t *v, const uint16_t *head, const float *shrink,
                         const struct tern_kvq_table *tab, int dim, int n_q, const void *next);
void tern_kvq_rotate_neon(float *x, const float *sign, int dim, int inverse);
void tern_kvq_encode_neon(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab, int key,
                          int dim, int n, void *scratch);
void tern_kvq_encode_trellis_neon(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab,
                                  int key, int dim, int n, void *scratch);
void tern_kvq_pack_k_neon(uint8_t *k, const uint8_t *codes, int bits, int dim);
void tern_kvq_pack_v_neon(uint8_t *v, const uint8_t *codes, int bits, int dim);

#endif
