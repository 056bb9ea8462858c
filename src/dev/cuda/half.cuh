/* dev/cuda/half.cuh - products of prompt rows on tensor cores: rows as 16-bit floats, a row with a scale, and which of
 * several products a column is of (products.h: struct tern_cuda_half, struct tern_cuda_gemm). */
#ifndef TERN_DEV_CUDA_HALF_CUH
#define TERN_DEV_CUDA_HALF_CUH

#include <cuda_fp16.h>
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

template <int THREADS> __device__ static inline float block_most(float v)
{
    return of_block<THREADS>(v, [](float a, float b) { return fmaxf(a, b); });
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
