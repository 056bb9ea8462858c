/* dev/cuda/half.cuh - products of prompt rows on tensor cores: rows as 16-bit floats, a row with a scale, and which of
 * several products a column is of (products.h: struct tern_cuda_half, struct tern_cuda_gemm). */
#ifndef TERN_DEV_CUDA_HALF_CUH
#define TERN_DEV_CUDA_HALF_CUH

#include <cuda_fp16.h>
#include "dev/cuda/four.cuh"
#include "dev/cuda/kernel.cuh"
#include "dev/cuda/products/products.h"

/* Of a row whose largest magnitude is top: its numbers are multiplied by 2^-e, and the largest one lies in
 * [2^13, 2^14). */
__device__ static inline int half_exponent(float top)
{
    const int e = (int)(__float_as_uint(top) >> 23) - 127 - 13;
    return top == 0 || e > 110 ? 0 : e < -100 ? -100 : e;
}

__device__ static inline float most_of(float top, float4 v)
{
    return fmaxf(top, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
}

__device__ static inline void store_halves(__half *to, float4 v, float by)
{
    const __half2 lo = __floats2half2_rn(v.x * by, v.y * by), hi = __floats2half2_rn(v.z * by, v.w * by);
    uint2 out;
    out.x = *reinterpret_cast<const uint32_t *>(&lo);
    out.y = *reinterpret_cast<const uint32_t *>(&hi);
    *reinterpret_cast<uint2 *>(to) = out;
}

/* One number of all threads' v, put together by op in an order that is always the same. */
template <int THREADS, class OP> __device__ static inline float of_block(float v, const OP &op)
{
    __shared__ float part[THREADS / 32];
    for (int step = 16; step; step /= 2)
        v = op(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[threadIdx.x % (THREADS / 32)];
    for (int step = THREADS / 64; step; step /= 2)
        v = op(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
    return v;
}

/* A row of n numbers in 16 bits, by all threads: each has kept its first fours, KEPT of them, 0 behind n; rest(i) tells the
 * others.  to: half, pitch and scale. */
template <int THREADS, int KEPT, class ARGS, class REST>
__device__ static inline void halve_row(const ARGS &to, int row, int n, const float4 kept[KEPT], const REST &rest)
{
    const int first = threadIdx.x * 4, pitch = (int)to.pitch;
    __half *out = cuda_at<__half>(to.half) + row * to.pitch;
    float top = 0;
#pragma unroll
    for (int j = 0; j < KEPT; j++)
        top = most_of(top, kept[j]);
    for (int i = first + KEPT * THREADS * 4; i < n; i += THREADS * 4)
        top = most_of(top, rest(i));
    const int e = half_exponent(of_block<THREADS>(top, [](float a, float b) { return fmaxf(a, b); }));
    const float by = exp2f((float)-e);
    if (threadIdx.x == 0)
        cuda_at<float>(to.scale)[row] = exp2f((float)e);
#pragma unroll
    for (int j = 0; j < KEPT; j++)
        if (first + j * THREADS * 4 < pitch)
            store_halves(out + first + j * THREADS * 4, kept[j], by);
    for (int i = first + KEPT * THREADS * 4; i < pitch; i += THREADS * 4)
        store_halves(out + i, rest(i), by);
}

/* The product that columns from `col` on are of. */
__device__ static inline tern_cuda_gemm_out out_of(const tern_cuda_gemm &a, int col)
{
    int i = 0;
    while (i + 1 < a.n_out && col >= a.out[i + 1].first)
        i++;
    return a.out[i];
}

#endif
