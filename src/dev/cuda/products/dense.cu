/* Weights as prompt rows are multiplied by them: written out, in 16-bit floats for the tensor cores or in 32 bits.
 *
 * A matrix is read once and written at two to four times its size, which is all the work there is: lanes read pieces of
 * 16 bytes that lie side by side, and write whole sectors of 32. */
#include "dev/cuda/products/panel.cuh"

/* ---- in 32 bits -------------------------------------------------------------------------------------------------- */

/* Inputs [16 half, 16 half + 16) of a row. */
__device__ static inline void half_block(float out[16], const tern_cuda_matrix &w, const uint8_t *panel, int half, int row)
{
    if (half * 16 >= w.k) {
        for (int i = 0; i < 16; i++)
            out[i] = 0;
    } else if (codes_float(w.codes)) {
        for (int i = 0; i < 16; i++)
            out[i] = half * 16 + i < w.k ? float_weight(w.codes, panel, half * 16 + i, row) : 0.0f;
    } else {
        float s, m;
        group_scale(w.scales, w, panel, half, row, s, m);
        const uint8_t *block = panel + (uint64_t)(half / 2) * codes_unit(w.codes);
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const uint32_t c = quad_codes(w.codes, w.table, block, half % 2 * 4 + q, row);
#pragma unroll
            for (int i = 0; i < 4; i++)
                out[q * 4 + i] = weight_of(w.codes, w.scales, w.zero, c >> (8 * i) & 255, s, m);
        }
    }
}

/* Block (512 inputs, panel, matrix).  A pitch that is no multiple of 16: rows for the host, nothing behind k. */
TERN_CUDA_KERNEL_BEGIN(dense, tern_cuda_dense_args, 256, 1)
{
    const int lane = threadIdx.x % 32, block = (blockIdx.x * 8 + threadIdx.x / 32) * 2, panel = a.row0 / 16 + blockIdx.y;
    const int row = panel * 16 + lane / 2, at = row - a.row0;
    cuda_wait();
    if (row < a.row0 || at >= a.n_rows || row >= a.w.n)
        return;
    const uint8_t *p = cuda_at<const uint8_t>(a.w.p) + blockIdx.z * a.matrix_bytes + (uint64_t)panel * a.w.panel_bytes;
    float *to = cuda_at<float>(a.to) + blockIdx.z * a.to_matrix + (uint64_t)at * a.pitch;
    for (int b = block; b < block + 2; b++) {
        const int half = b * 2 + lane % 2, end = a.pitch % 16 ? a.w.k : (int)a.pitch;
        if (half * 16 >= end)
            return;
        float out[16];
        half_block(out, a.w, p, half, lane / 2);
        if (a.pitch % 16 == 0) {
#pragma unroll
            for (int i = 0; i < 16; i += 4)
                *reinterpret_cast<float4 *>(to + half * 16 + i) = make_float4(out[i], out[i + 1], out[i + 2], out[i + 3]);
            continue;
        }
        for (int i = 0; i < 16 && half * 16 + i < end; i++)
            to[half * 16 + i] = out[i];
    }
}

/* ---- in 16 bits -------------------------------------------------------------------------------------------------- */

__device__ static inline uint32_t two_numbers(float lo, float hi)
{
    const __half2 two = __floats2half2_rn(fminf(fmaxf(lo, -65504.0f), 65504.0f), fminf(fmaxf(hi, -65504.0f), 65504.0f));
    return *reinterpret_cast<const uint32_t *>(&two);
}

/* Row r of a panel's 16, where it is one of those that are asked for; else NULL. */
__device__ static inline __half *row_of(const tern_cuda_dense_args &a, int panel, int r)
{
    const int row = panel * 16 + r, at = row - a.row0;
    return row < a.row0 || at >= a.n_rows || row >= a.w.n
               ? nullptr
               : cuda_at<__half>(a.to) + blockIdx.z * a.to_matrix + (uint64_t)at * a.pitch;
}

__device__ static inline const uint8_t *panel_of(const tern_cuda_dense_args &a, int panel)
{
    return cuda_at<const uint8_t>(a.w.p) + blockIdx.z * a.matrix_bytes + (uint64_t)panel * a.w.panel_bytes;
}

__device__ static inline uint2 four_halves(const uint8_t *p, int at)
{
    return *reinterpret_cast<const uint2 *>(p + 2 * at);
}

__device__ static inline uint32_t four_bytes(const uint8_t *p, int at)
{
    return *reinterpret_cast<const uint32_t *>(p + at);
}

__device__ static inline float half_number(const uint2 &four, int r)
{
    return half_bits((r / 2 ? four.y : four.x) >> 16 * (r % 2) & 0xFFFF);
}

/* group_scale of rows 4g .. 4g + 3. */
template <int S>
__device__ static inline void four_scales(const tern_cuda_matrix &w, const uint8_t *panel, int half, int g, float s[4],
                                          float m[4])
{
    constexpr bool k32 = S == TERN_SCALES_K32 || S == TERN_SCALES_K32S, k16 = S == TERN_SCALES_K16 || S == TERN_SCALES_K16M,
                   pair = S == TERN_SCALES_F16M || S == TERN_SCALES_K32 || S == TERN_SCALES_K16M;
    if (S != TERN_SCALES_F16 && S != TERN_SCALES_F16M && !k32 && !k16) {
#pragma unroll
        for (int r = 0; r < 4; r++)
            group_scale(S, w, panel, half, 4 * g + r, s[r], m[r]);
        return;
    }
    const int block = half / 2 * 16 + 4 * g, at = k32 || k16 ? half / 16 * 16 + 4 * g : block;
    const uint2 d = four_halves(panel + w.d, at), n = pair ? four_halves(panel + w.m, at) : make_uint2(0, 0);
    const uint32_t small = k32 ? four_bytes(panel + w.a, block) : k16 ? four_bytes(panel + w.a, half * 16 + 4 * g) : 0,
                   less = S == TERN_SCALES_K32 ? four_bytes(panel + w.b, block) : 0;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const float f = half_number(d, r), f2 = pair ? half_number(n, r) : 0;
        const uint32_t c = small >> 8 * r & 255;
        m[r] = 0;
        if (S == TERN_SCALES_K32) {
            s[r] = __fmul_rn(f, (float)c);
            m[r] = -__fmul_rn(f2, (float)(less >> 8 * r & 255));
        } else if (S == TERN_SCALES_K16M) {
            s[r] = __fmul_rn(f, (float)(c & 15));
            m[r] = -__fmul_rn(f2, (float)(c >> 4));
        } else if (k32 || k16) {
            s[r] = __fmul_rn(__fmul_rn(f, w.unit), (float)(int8_t)c);
        } else {
            s[r] = f;
            m[r] = f2;
        }
    }
}

#define BLOCKS 4 /* a lane's: every second of a warp's */

/* Block (2,048 inputs, panel, matrix).  A lane has quads t and t + 4 of rows 4g .. 4g + 3 of every second block. */
template <int C, int S> __device__ static inline void dense_codes(const tern_cuda_dense_args &a)
{
    const int lane = threadIdx.x % 32, g = lane % 4, t = lane / 4 % 4, panel = a.row0 / 16 + blockIdx.y;
    const int first = (blockIdx.x * 8 + threadIdx.x / 32) * (2 * BLOCKS) + lane / 16, blocks = a.w.k / 32;
    const uint8_t *p = panel_of(a, panel);
    piece<C, uint4> code[BLOCKS];
    float s[BLOCKS][kind_halves(S) ? 2 : 1][4], m[BLOCKS][kind_halves(S) ? 2 : 1][4];
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) { /* weights are there before the step is */
        const int b = min(first + 2 * i, blocks - 1);
        load_piece<C>(code[i], p + (uint64_t)b * codes_unit(C), t, g);
#pragma unroll
        for (int h = 0; h < (kind_halves(S) ? 2 : 1); h++)
            four_scales<S>(a.w, p, 2 * b + h, g, s[i][h], m[i][h]);
    }
    cuda_wait();
#pragma unroll
    for (int r = 0; r < 4; r++) {
        __half *to = row_of(a, panel, 4 * g + r);
        if (!to)
            continue;
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            const int b = first + 2 * i;
            uint32_t c[2];
            expand<C>(code[i], t, r, a.w.table, c[0], c[1]);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int group = kind_halves(S) ? h : 0;
                float v[4];
#pragma unroll
                for (int n = 0; n < 4; n++)
                    v[n] = b < blocks ? weight_of(C, S, a.w.zero, c[h] >> 8 * n & 255, s[i][group][r], m[i][group][r]) : 0;
                if (b * 32 < (int)a.pitch)
                    *reinterpret_cast<uint2 *>(to + b * 32 + h * 16 + 4 * t) =
                        make_uint2(two_numbers(v[0], v[1]), two_numbers(v[2], v[3]));
            }
        }
    }
}

/* Two neighbouring rows' numbers of one input. */
template <int C> __device__ static inline float2 two_rows(const uint8_t *panel, int input, int g)
{
    if (C == TERN_CODES_F32)
        return reinterpret_cast<const float2 *>(panel)[input * 8 + g];
    const uint32_t two = reinterpret_cast<const uint32_t *>(panel)[input * 8 + g];
    return C == TERN_CODES_F16 ? make_float2(half_bits(two & 0xFFFF), half_bits(two >> 16))
                               : make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xFFFF0000u));
}

/* Block (256 inputs, panel, matrix).  A lane has eight inputs of rows 2g and 2g + 1. */
template <int C> __device__ static inline void dense_floats(const tern_cuda_dense_args &a)
{
    const int lane = threadIdx.x % 32, g = lane % 8, panel = a.row0 / 16 + blockIdx.y;
    const int first = (blockIdx.x * 8 + threadIdx.x / 32) * 32 + lane / 8 * 8;
    const uint8_t *p = panel_of(a, panel);
    float2 v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) /* weights are there before the step is */
        v[i] = first + i < a.w.k ? two_rows<C>(p, first + i, g) : make_float2(0, 0);
    cuda_wait();
    if (first >= (int)a.pitch)
        return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        __half *to = row_of(a, panel, 2 * g + r);
        uint32_t out[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[i] = r ? two_numbers(v[2 * i].y, v[2 * i + 1].y) : two_numbers(v[2 * i].x, v[2 * i + 1].x);
        if (to)
            *reinterpret_cast<uint4 *>(to + first) = make_uint4(out[0], out[1], out[2], out[3]);
    }
}

#define DENSE_FLOATS(c)                                                      \
    TERN_CUDA_KERNEL_BEGIN(dense_##c, tern_cuda_dense_args, 256, 1)          \
    {                                                                        \
        dense_floats<TERN_CODES_##c>(a);                                     \
    }
DENSE_FLOATS(F32)
DENSE_FLOATS(F16)
DENSE_FLOATS(BF16)

#define DENSE_CODES(c, s)                                                    \
    TERN_CUDA_KERNEL_BEGIN(dense_##c##_##s, tern_cuda_dense_args, 256, 1)    \
    {                                                                        \
        dense_codes<TERN_CODES_##c, TERN_SCALES_##s>(a);                     \
    }
TERN_QUANT_KINDS(DENSE_CODES)
