/* dev/cuda/panel.cuh - reading panels of packed weights (kernel/pack.h) on a card. */
#ifndef TERN_DEV_CUDA_PANEL_CUH
#define TERN_DEV_CUDA_PANEL_CUH

#include <cuda_fp16.h>
#include "dev/cuda/kernel.cuh"
#include "dev/cuda/products.h"
#include "kernel/pack.h"

__device__ static inline float half_bits(uint32_t h)
{
    return __half2float(__ushort_as_half((unsigned short)h));
}

__device__ static inline float e4m3_bits(uint32_t b)
{
    return __uint_as_float((b & 0x80u) << 24 | (b & 0x7Fu) << 20) * 0x1p120f;
}

/* A number of the G kinds' regions; of ZERO the byte itself. */
__device__ static inline float number_at(int type, const uint8_t *p, uint32_t i)
{
    switch (type) {
    case TERN_NUMBER_F32:
        return reinterpret_cast<const float *>(p)[i];
    case TERN_NUMBER_F16:
        return half_bits(reinterpret_cast<const uint16_t *>(p)[i]);
    case TERN_NUMBER_BF16:
        return __uint_as_float((uint32_t) reinterpret_cast<const uint16_t *>(p)[i] << 16);
    case TERN_NUMBER_E8M0:
        return __uint_as_float(p[i] ? (uint32_t)p[i] << 23 : 0x00400000u);
    case TERN_NUMBER_E4M3:
        return e4m3_bits(p[i]);
    default:
        return (float)p[i];
    }
}

/* Scale and added minimum of half block `half` (16 inputs) of row `row`: tern_group_scale of kernel/panel.h. */
__device__ static inline void group_scale(int scales, const tern_cuda_matrix &w, const uint8_t *panel, uint32_t half,
                                          uint32_t row, float &scale, float &minimum)
{
    const uint8_t *d = panel + w.d, *m = panel + w.m, *a = panel + w.a, *b = panel + w.b;
    const uint16_t *dh = reinterpret_cast<const uint16_t *>(d), *mh = reinterpret_cast<const uint16_t *>(m);
    const uint32_t block = half / 2 * 16 + row, at = half * 16 + row, super = half / 16 * 16 + row;
    const uint32_t group = (half >> w.shift) * 16 + row;
    scale = 1;
    minimum = 0;
    switch (scales) {
    case TERN_SCALES_F16:
        scale = half_bits(dh[block]);
        break;
    case TERN_SCALES_F16M:
        scale = half_bits(dh[block]);
        minimum = half_bits(mh[block]);
        break;
    case TERN_SCALES_K32:
        scale = half_bits(dh[super]) * (float)a[block];
        minimum = -(half_bits(mh[super]) * (float)b[block]);
        break;
    case TERN_SCALES_K16M:
        scale = half_bits(dh[super]) * (float)(a[at] & 15);
        minimum = -(half_bits(mh[super]) * (float)(a[at] >> 4));
        break;
    case TERN_SCALES_K32S:
        scale = half_bits(dh[super]) * w.unit * (float)(int8_t)a[block];
        break;
    case TERN_SCALES_K16:
        scale = half_bits(dh[super]) * w.unit * (float)(int8_t)a[at];
        break;
    case TERN_SCALES_G16:
        scale = number_at(w.d_type, d, group) * reinterpret_cast<const float *>(m)[row];
        break;
    case TERN_SCALES_G32:
        scale = number_at(w.d_type, d, group) * w.unit;
        break;
    case TERN_SCALES_G32M:
        scale = number_at(w.d_type, d, group);
        minimum = number_at(w.m_type, m, group);
        if (w.m_type == TERN_NUMBER_ZERO)
            minimum = -(scale * minimum);
        break;
    }
}

/* Four bytes, each a place (0..15) in a table of signed bytes: the table's values. */
__device__ static inline uint32_t from_table(const int8_t *table, uint32_t places)
{
    const uint32_t *t = reinterpret_cast<const uint32_t *>(table);
    /* prmt looks at three bits of a nibble: both halves of the table, then bit 3 chooses. */
    const uint32_t packed = (places & 7) | (places >> 4 & 0x70) | (places >> 8 & 0x700) | (places >> 12 & 0x7000);
    const uint32_t low = __byte_perm(t[0], t[1], packed), high = __byte_perm(t[2], t[3], packed);
    const uint32_t mask = (places >> 3 & 0x01010101u) * 0xFFu;
    return (high & mask) | (low & ~mask);
}

/* The codes of 4 consecutive inputs (quad q of a block of 32) of one row, a byte each; of tables the values. */
__device__ static inline uint32_t quad_codes(int codes, const int8_t *table, const uint8_t *block, int q, int row)
{
    const uint32_t *w = reinterpret_cast<const uint32_t *>(block) + row;
    uint32_t c;
    if (codes == TERN_CODES_S8 || codes == TERN_CODES_E4M3)
        return w[q * 16];
    if (codes == TERN_CODES_U2 || codes == TERN_CODES_U3 || codes == TERN_CODES_T3) {
        c = w[q / 4 * 16] >> (q % 4 * 2) & 0x03030303u;
        if (codes != TERN_CODES_U2)
            c |= (w[2 * 16] >> q & 0x01010101u) << 2;
        return codes == TERN_CODES_T3 ? from_table(table, c) : c;
    }
    c = w[q % 4 * 16] >> (q / 4 * 4) & 0x0F0F0F0Fu;
    if (codes == TERN_CODES_U5)
        c |= (w[4 * 16] >> q & 0x01010101u) << 4;
    else if (codes == TERN_CODES_U6)
        c |= (w[(4 + q / 4) * 16] >> (q % 4 * 2) & 0x03030303u) << 4;
    return codes == TERN_CODES_T4 ? from_table(table, c) : c;
}

/* The kinds' properties (kernel/pack.h), for both sides of a card. */
__host__ __device__ constexpr bool kind_signed(int codes)
{
    return codes >= TERN_CODES_S8;
}
__host__ __device__ constexpr bool kind_halves(int scales)
{
    return scales == TERN_SCALES_K16M || scales == TERN_SCALES_K16 || scales == TERN_SCALES_G16;
}
__host__ __device__ constexpr bool kind_minimum(int scales)
{
    return scales == TERN_SCALES_K32 || scales == TERN_SCALES_K16M || scales == TERN_SCALES_F16M ||
           scales == TERN_SCALES_G32M;
}
/* Is the number of inputs a multiple of 256? */
__host__ __device__ constexpr bool kind_whole(int scales)
{
    return scales >= TERN_SCALES_K32 && scales <= TERN_SCALES_K16;
}
__host__ __device__ constexpr bool kind_zero(int scales)
{
    return scales != TERN_SCALES_K32 && scales != TERN_SCALES_K16M && scales != TERN_SCALES_F16M;
}

/* w = s * (c - zero) or s * c + m: brackets are rounded, then w, once (kernel/gemm.h). */
__device__ static inline float weight_of(int codes, int scales, int zero, uint32_t byte, float s, float m)
{
    float c = codes == TERN_CODES_E4M3 ? e4m3_bits(byte) : kind_signed(codes) ? (float)(int8_t)byte : (float)byte;
    if (kind_zero(scales))
        c -= (float)zero;
    return kind_minimum(scales) ? __fmaf_rn(s, c, m) : __fmul_rn(s, c);
}

/* Input i of row `row` of a panel of float codes. */
__device__ static inline float float_weight(int codes, const uint8_t *panel, uint32_t i, uint32_t row)
{
    const uint32_t at = i * 16 + row;
    if (codes == TERN_CODES_F32)
        return reinterpret_cast<const float *>(panel)[at];
    const uint32_t h = reinterpret_cast<const uint16_t *>(panel)[at];
    return codes == TERN_CODES_F16 ? half_bits(h) : __uint_as_float(h << 16);
}

__device__ static inline bool codes_float(int codes)
{
    return codes <= TERN_CODES_BF16;
}

__host__ __device__ constexpr uint32_t codes_unit(int codes)
{
    return (uint32_t)(codes <= TERN_CODES_BF16                             ? (codes == TERN_CODES_F32 ? 64 : 32)
                      : codes == TERN_CODES_U2                             ? 128
                      : codes == TERN_CODES_U3 || codes == TERN_CODES_T3   ? 192
                      : codes == TERN_CODES_U4 || codes == TERN_CODES_T4   ? 256
                      : codes == TERN_CODES_U5                             ? 320
                      : codes == TERN_CODES_U6                             ? 384
                                                                           : 512);
}

#endif
