/* dev/cuda/products/panel.cuh - reading panels of packed weights (kernel/pack.h) on a card, and products with their codes. */
#ifndef TERN_DEV_CUDA_PANEL_CUH
#define TERN_DEV_CUDA_PANEL_CUH

#include <cuda_fp16.h>
#include "dev/cuda/kernel.cuh"
#include "dev/cuda/products/products.h"
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

/* __byte_perm, which clears what prmt does not look at first. */
__device__ static inline uint32_t choose_bytes(uint32_t a, uint32_t b, uint32_t by)
{
    uint32_t out;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(by));
    return out;
}

/* Eight places of four bits, two to a byte: the values of two words, those of each byte side by side.  Nibbles are what
 * prmt chooses by: of each half of the table, then which half it is. */
__device__ static inline void from_table_8(uint32_t v[2], const int8_t *table, uint32_t places)
{
    const uint32_t *t = reinterpret_cast<const uint32_t *>(table);
    const uint32_t at = places & 0x77777777u, half = (places >> 1 & 0x44444444u) | 0x32103210u;
#pragma unroll
    for (int i = 0; i < 2; i++)
        v[i] = choose_bytes(choose_bytes(t[0], t[1], at >> 16 * i), choose_bytes(t[2], t[3], at >> 16 * i), half >> 16 * i);
}

/* Neighbours of two words put apart, and words of inputs as from_table_8 has those of places. */
__device__ static inline void put_apart(uint32_t &lower, uint32_t &upper, const uint32_t v[2])
{
    lower = __byte_perm(v[0], v[1], 0x6420);
    upper = __byte_perm(v[0], v[1], 0x7531);
}

__device__ static inline void put_together(uint32_t v[2], uint32_t lower, uint32_t upper)
{
    v[0] = __byte_perm(lower, upper, 0x5140);
    v[1] = __byte_perm(lower, upper, 0x7362);
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

/* ---- codes times int8 activations: exact dots on tensor cores, and the floats that they become ----------------------
 *
 * A lane (g, t) = (lane / 4, lane % 4) has rows 2g and 2g + 1 of a panel and columns 2t and 2t + 1. */

#define START      12582912.0f /* 1.5 * 2^23 */
#define START_BITS 0x4B400000u

/* ---- codes ------------------------------------------------------------------------------------------------------- */

__host__ __device__ constexpr bool codes_bytes(int codes)
{
    return codes == TERN_CODES_S8 || codes == TERN_CODES_E4M3;
}

template <int C> __host__ __device__ constexpr int pieces()
{
    return C == TERN_CODES_U4 || C == TERN_CODES_T4                        ? 1
           : C == TERN_CODES_U5 || codes_bytes(C) || C == TERN_CODES_U2 ? 2
                                                                        : 3;
}

/* What lane (g, t) reads of a block: quads t and t + 4 of rows 2g and 2g + 1; of uint4 rows 4g .. 4g + 3. */
template <int C, class V = uint2> struct piece {
    V v[pieces<C>()];
};

template <int C, class V> __device__ static inline void load_piece(piece<C, V> &p, const uint8_t *block, int t, int g)
{
    constexpr int line = 64 / (int)sizeof(V); /* a word of each of the panel's rows */
    const V *at = reinterpret_cast<const V *>(block) + g;
    if (C == TERN_CODES_U2 || C == TERN_CODES_U3 || C == TERN_CODES_T3) {
#pragma unroll
        for (int i = 0; i < pieces<C>(); i++)
            p.v[i] = at[line * i];
        return;
    }
    p.v[0] = at[line * t];
    if (codes_bytes(C))
        p.v[pieces<C>() > 1] = at[line * (t + 4)];
    if (C == TERN_CODES_U5 || C == TERN_CODES_U6)
        p.v[pieces<C>() > 1] = at[line * 4];
    if (C == TERN_CODES_U6)
        p.v[pieces<C>() - 1] = at[line * 5];
}

__device__ static inline uint32_t word(const uint2 &v, int r)
{
    return r ? v.y : v.x;
}

__device__ static inline uint32_t word(const uint4 &v, int r)
{
    return r == 0 ? v.x : r == 1 ? v.y : r == 2 ? v.z : v.w;
}

/* Codes of row r of the lane's: quad j in low, quad j + 4 in high. */
template <int C, class V>
__device__ static inline void expand(const piece<C, V> &p, int j, int r, const int8_t *table, uint32_t &low,
                                     uint32_t &high)
{
    constexpr bool small = C == TERN_CODES_U2 || C == TERN_CODES_U3 || C == TERN_CODES_T3;
    const uint32_t w = word(p.v[0], r);
    if (codes_bytes(C)) {
        low = w;
        high = word(p.v[pieces<C>() > 1], r);
    } else if (small) {
        low = w >> (2 * j) & 0x03030303u;
        high = word(p.v[pieces<C>() > 1], r) >> (2 * j) & 0x03030303u;
        if (C != TERN_CODES_U2) {
            const uint32_t h = word(p.v[pieces<C>() - 1], r) >> j;
            low |= (h & 0x01010101u) << 2;
            high |= (h >> 4 & 0x01010101u) << 2;
        }
    } else {
        low = w & 0x0F0F0F0Fu;
        high = w >> 4 & 0x0F0F0F0Fu;
        if (C == TERN_CODES_U5) {
            const uint32_t h = word(p.v[pieces<C>() - 1], r) >> j;
            low |= (h & 0x01010101u) << 4;
            high |= (h >> 4 & 0x01010101u) << 4;
        } else if (C == TERN_CODES_U6) {
            low |= (word(p.v[pieces<C>() > 1], r) >> (2 * j) & 0x03030303u) << 4;
            high |= (word(p.v[pieces<C>() - 1], r) >> (2 * j) & 0x03030303u) << 4;
        }
    }
    if (C == TERN_CODES_T3) {
        low = from_table(table, low);
        high = from_table(table, high);
    } else if (C == TERN_CODES_T4) {
        uint32_t v[2];
        from_table_8(v, table, w);
        put_apart(low, high, v);
    }
}

/* ---- scales ------------------------------------------------------------------------------------------------------ */

/* Scales of so few bits that their product with any number below 2^24 that is a power of two, or 1.5 of one, is exact. */
template <int S> __device__ constexpr bool scales_short()
{
    return S == TERN_SCALES_F16 || S == TERN_SCALES_F16M || S == TERN_SCALES_K32;
}

/* Minima that are multiplied by a unit's sums of activations on tensor cores: those that 11 bits hold. */
template <int S> __device__ constexpr bool minima_by_unit()
{
    return S == TERN_SCALES_F16M || S == TERN_SCALES_K32;
}

/* Of rows 2g and 2g + 1 and one block: scale and added minimum, of each half block where halves have their own. */
struct two_scales {
    float s[2][2], m[2][2]; /* [row][half] */
    float start[2];         /* -START * s of scales_short */
};

/* What has to be read for the scales of two neighbouring blocks, as it lies. */
template <int S> struct raw_scales {
    uint32_t d[2], a[4];
    uint32_t dm; /* dmin of K16M */
};

/* Where the scales of a unit (8 blocks, 256 inputs) lie: in a panel, or where a copy of them does. */
struct scales_at {
    const uint8_t *d, *m, *a, *b;
};

__device__ static inline uint32_t two_halves(const uint8_t *p, int at)
{
    return *reinterpret_cast<const uint32_t *>(p + 2 * at);
}

__device__ static inline uint32_t two_bytes(const uint8_t *p, int at)
{
    return *reinterpret_cast<const uint16_t *>(p + at);
}

/* b: the first block of the unit's, even. */
template <int S> __device__ static inline void load_scales(raw_scales<S> &o, const scales_at &at, int b, int g)
{
    const int row = 2 * g;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (S == TERN_SCALES_F16 || S == TERN_SCALES_F16M)
            o.d[i] = two_halves(at.d, (b + i) * 16 + row);
        if (S == TERN_SCALES_K32 || S == TERN_SCALES_K32S)
            o.a[i] = two_bytes(at.a, (b + i) * 16 + row);
        if (S == TERN_SCALES_K16 || S == TERN_SCALES_K16M) {
            o.a[2 * i] = two_bytes(at.a, 2 * (b + i) * 16 + row);
            o.a[2 * i + 1] = two_bytes(at.a, (2 * (b + i) + 1) * 16 + row);
        }
    }
    if (S == TERN_SCALES_K32 || S == TERN_SCALES_K32S || S == TERN_SCALES_K16 || S == TERN_SCALES_K16M)
        o.d[0] = two_halves(at.d, row);
    if (S == TERN_SCALES_K16M)
        o.dm = two_halves(at.m, row);
}

__device__ static inline float half_of(uint32_t two, int r)
{
    return half_bits(two >> 16 * r & 0xFFFF);
}

/* 2^23 + byte i of a word: a float whose last bits it is. */
__device__ static inline float float_of_byte(uint32_t word, int i)
{
    return __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7540 + i));
}

/* Of block b + i of those that were loaded. */
template <int S>
__device__ static inline void make_scales(two_scales &o, const raw_scales<S> &v, const tern_cuda_matrix &w, int i)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (S == TERN_SCALES_F16 || S == TERN_SCALES_F16M) {
            o.s[r][0] = half_of(v.d[i], r);
        } else if (S == TERN_SCALES_K32) {
            const float d = half_of(v.d[0], r);
            o.s[r][0] = __fmaf_rn(float_of_byte(v.a[i], r), d, __fmul_rn(d, -0x1p23f));
        } else if (S == TERN_SCALES_K32S) {
            o.s[r][0] = __fmul_rn(__fmul_rn(half_of(v.d[0], r), w.unit), (float)(int8_t)(v.a[i] >> 8 * r));
        } else if (S == TERN_SCALES_K16 || S == TERN_SCALES_K16M) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t a = v.a[2 * i + h] >> 8 * r & 255;
                if (S == TERN_SCALES_K16) {
                    o.s[r][h] = __fmul_rn(__fmul_rn(half_of(v.d[0], r), w.unit), (float)(int8_t)a);
                } else {
                    o.s[r][h] = __fmul_rn(half_of(v.d[0], r), (float)(a & 15));
                    o.m[r][h] = -__fmul_rn(half_of(v.dm, r), (float)(a >> 4));
                }
            }
        }
        if (scales_short<S>())
            o.start[r] = __fmul_rn(o.s[r][0], -START);
    }
}

/* The G kinds, whose scales are numbers of a type, for groups of inputs. */
template <int S> __host__ __device__ constexpr bool by_group()
{
    return S >= TERN_SCALES_G16;
}

/* Numbers i and i + 1 of a region, i even: number_at. */
__device__ static inline float2 two_numbers(int type, const uint8_t *p, int i)
{
    if (type == TERN_NUMBER_F32)
        return reinterpret_cast<const float2 *>(p)[i / 2];
    if (type == TERN_NUMBER_F16 || type == TERN_NUMBER_BF16) {
        const uint32_t two = two_halves(p, i);
        return type == TERN_NUMBER_F16 ? make_float2(half_of(two, 0), half_of(two, 1))
                                       : make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xFFFF0000u));
    }
    const uint32_t two = two_bytes(p, i), lo = two & 255, hi = two >> 8;
    if (type == TERN_NUMBER_E8M0)
        return make_float2(__uint_as_float(lo ? lo << 23 : 0x00400000u), __uint_as_float(hi ? hi << 23 : 0x00400000u));
    return type == TERN_NUMBER_E4M3 ? make_float2(e4m3_bits(lo), e4m3_bits(hi)) : make_float2((float)lo, (float)hi);
}

/* Scales and minima of block b of a unit whose scales lie at `at`: group_scale of rows 2g and 2g + 1. */
template <int S>
__device__ static inline void group_scales(two_scales &o, const tern_cuda_matrix &w, const scales_at &at, int b, int g)
{
#pragma unroll
    for (int h = 0; h < (kind_halves(S) ? 2 : 1); h++) {
        const int place = ((2 * b + h) >> w.shift) * 16 + 2 * g;
        const float2 d = two_numbers(w.d_type, at.d, place);
        float2 m = make_float2(w.unit, w.unit);
        if (S == TERN_SCALES_G16)
            m = reinterpret_cast<const float2 *>(at.m)[g];
        if (S == TERN_SCALES_G32M) {
            m = two_numbers(w.m_type, at.m, place);
            if (w.m_type == TERN_NUMBER_ZERO)
                m = make_float2(-__fmul_rn(d.x, m.x), -__fmul_rn(d.y, m.y));
            o.m[0][h] = m.x;
            o.m[1][h] = m.y;
        }
        o.s[0][h] = S == TERN_SCALES_G32M ? d.x : __fmul_rn(d.x, m.x);
        o.s[1][h] = S == TERN_SCALES_G32M ? d.y : __fmul_rn(d.y, m.y);
    }
}

/* Of block j of a unit. */
template <int S>
__device__ static inline void scales_of(two_scales &o, const tern_cuda_matrix &w, const scales_at &at, int j, int g)
{
    if (by_group<S>()) {
        group_scales<S>(o, w, at, j, g);
        return;
    }
    raw_scales<S> raw;
    load_scales<S>(raw, at, j / 2 * 2, g);
    make_scales<S>(o, raw, w, j % 2);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Integer tensor cores: 16 rows by 8 columns; all inputs of a block, or half of them. */
__device__ static inline void multiply_block_from(int d[4], const int c[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                                  uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

__device__ static inline void multiply_block(int c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                             uint32_t b1)
{
    multiply_block_from(c, c, a0, a1, a2, a3, b0, b1);
}

__device__ static inline void multiply_half(int c[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

/* Floats of 11 bits (what is behind is not looked at): 16 rows by 8 columns, of 8 inputs. */
__device__ static inline void multiply_floats(float c[4], const float a[4], float b0, float b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

/* The dots of two rows and two columns: of a block, or of its halves; and the columns' sums, where minima want them.
 * They begin at the bits of START, so that with less than 2^22 added they are the bits of the float START + dot. */
template <int S> struct dots {
    int c[kind_halves(S) ? 2 : 1][4], sum[kind_halves(S) && kind_minimum(S) ? 2 : 1][4];
};

__device__ static inline void start_at(int c[4])
{
    c[0] = c[1] = c[2] = c[3] = (int)START_BITS;
}

__device__ static inline float dot_of(int c)
{
    return __fsub_rn(__uint_as_float((uint32_t)c), START);
}

/* What does not come of codes: zero points, sums of the columns. */
template <int S> __device__ static inline void start_dots(dots<S> &d, int zero, uint32_t b0, uint32_t b1)
{
#pragma unroll
    for (int h = 0; h < (kind_halves(S) ? 2 : 1); h++)
        start_at(d.c[h]);
    for (int left = kind_zero(S) ? -zero : 0; left;) { /* 128 takes two */
        const int part = min(left, 127);
        const uint32_t z = (uint32_t)(part & 255) * 0x01010101u;
        left -= part;
        if (kind_halves(S)) {
            multiply_half(d.c[0], z, z, b0);
            multiply_half(d.c[kind_halves(S)], z, z, b1);
        } else {
            multiply_block(d.c[0], z, z, z, z, b0, b1);
        }
    }
    if (kind_halves(S) && kind_minimum(S)) {
        const uint32_t one = 0x01010101u;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int *sum = d.sum[kind_halves(S) && kind_minimum(S) ? h : 0];
            start_at(sum);
            multiply_half(sum, one, one, h ? b1 : b0);
        }
    }
}

/* Codes of a block as a lane gives them to the tensor cores: quads t and t + 4 of rows 2g and 2g + 1. */
struct block_codes {
    uint32_t low[2], high[2];
};

template <int C> __device__ static inline void expand_block(block_codes &x, const piece<C> &p, int t, const int8_t *table)
{
#pragma unroll
    for (int r = 0; r < 2; r++)
        expand<C>(p, t, r, table, x.low[r], x.high[r]);
}

/* A dot does not depend on its inputs' order: of one row, where low and high quads meet in one, they can stay together. */
template <int C, int S> __host__ __device__ constexpr bool quads_together()
{
    return C == TERN_CODES_T4 && !kind_halves(S);
}

/* together: b0 and b1 are. */
template <int C, int S, bool TOGETHER = false>
__device__ static inline void add_dots(dots<S> &d, const piece<C> &p, int t, const int8_t *table, uint32_t b0,
                                       uint32_t b1)
{
    block_codes x;
    if (TOGETHER) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t v[2];
            from_table_8(v, table, word(p.v[0], r));
            x.low[r] = v[0];
            x.high[r] = v[1];
        }
    } else {
        expand_block<C>(x, p, t, table);
    }
    if (kind_halves(S)) {
        multiply_half(d.c[0], x.low[0], x.low[1], b0);
        multiply_half(d.c[kind_halves(S)], x.high[0], x.high[1], b1);
    } else {
        multiply_block(d.c[0], x.low[0], x.low[1], x.high[0], x.high[1], b0, b1);
    }
}

/* d = from + the dots, where several panels begin with what the columns' start is. */
template <int S>
__device__ static inline void dots_from(dots<S> &d, const dots<S> &from, const block_codes &x, uint32_t b0, uint32_t b1)
{
    if (!kind_halves(S)) {
        multiply_block_from(d.c[0], from.c[0], x.low[0], x.low[1], x.high[0], x.high[1], b0, b1);
        return;
    }
    d = from;
    multiply_half(d.c[0], x.low[0], x.low[1], b0);
    multiply_half(d.c[kind_halves(S)], x.high[0], x.high[1], b1);
}

/* acc + the part of row r and column i of a block whose activations have the scale x and the scaled sum sum.  A sum of
 * minima_by_unit is not looked at. */
template <int S>
__device__ static inline float add_part(float acc, const dots<S> &d, const two_scales &sc, int r, int i, float x,
                                        float sum)
{
    if (kind_halves(S)) {
        float part = __fmaf_rn(dot_of(d.c[kind_halves(S)][2 * r + i]), sc.s[r][1],
                               __fmul_rn(dot_of(d.c[0][2 * r + i]), sc.s[r][0]));
        if (kind_minimum(S))
            part = __fmaf_rn(dot_of(d.sum[kind_halves(S) && kind_minimum(S)][2 * r + i]), sc.m[r][1],
                             __fmaf_rn(dot_of(d.sum[0][2 * r + i]), sc.m[r][0], part));
        return __fmaf_rn(part, x, acc);
    }
    if (scales_short<S>()) /* dot * scale, rounded once */
        return __fmaf_rn(__fmaf_rn(__uint_as_float((uint32_t)d.c[0][2 * r + i]), sc.s[r][0], sc.start[r]), x, acc);
    acc = __fmaf_rn(dot_of(d.c[0][2 * r + i]), __fmul_rn(sc.s[r][0], x), acc);
    return kind_minimum(S) ? __fmaf_rn(sc.m[r][0], sum, acc) : acc;
}

/* Minima of a unit: of rows 2g and 2g + 1, blocks t and t + 4, and what their rows' sums are multiplied by. */
struct unit_minima {
    float m[4], by[2];
};

template <int S> __device__ static inline void make_minima(unit_minima &o, const scales_at &at, int t, int g)
{
    const uint32_t d = S == TERN_SCALES_K32 ? two_halves(at.m, 2 * g) : 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int place = (t + 4 * h) * 16 + 2 * g;
        const uint32_t two = S == TERN_SCALES_K32 ? two_bytes(at.b, place) : two_halves(at.m, place);
#pragma unroll
        for (int r = 0; r < 2; r++)
            o.m[2 * h + r] = S == TERN_SCALES_K32
                                 ? __fsub_rn(float_of_byte(two, r), 0x1p23f)
                                 : half_of(two, r);
        o.by[h] = S == TERN_SCALES_K32 ? -half_of(d, h) : 1.0f;
    }
}

/* The sums of the lane's column, of blocks t and t + 4, times the minima: for rows 2g and 2g + 1, columns 2t and 2t + 1.
 * A sum is two numbers of 11 bits. */
__device__ static inline void multiply_minima(float c[4], const unit_minima &m, float sum0, float sum1)
{
    const float high0 = __uint_as_float(__float_as_uint(sum0) & 0xFFFFE000u),
                high1 = __uint_as_float(__float_as_uint(sum1) & 0xFFFFE000u);
    c[0] = c[1] = c[2] = c[3] = 0;
    multiply_floats(c, m.m, __fsub_rn(sum0, high0), __fsub_rn(sum1, high1));
    multiply_floats(c, m.m, high0, high1);
}

#endif
