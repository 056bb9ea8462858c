/* dev/cuda/four.cuh - four numbers of a row at a time; what is behind its end is 0, and not written. */
#ifndef TERN_DEV_CUDA_FOUR_CUH
#define TERN_DEV_CUDA_FOUR_CUH

#include "dev/cuda/kernel.cuh"

__device__ static inline float4 load_four(const float *p, int i, int n)
{
    if (i + 4 <= n)
        return *reinterpret_cast<const float4 *>(p + i);
    return make_float4(i < n ? p[i] : 0, i + 1 < n ? p[i + 1] : 0, i + 2 < n ? p[i + 2] : 0, 0);
}

__device__ static inline void store_four(float *p, int i, int n, float4 v)
{
    if (i + 4 <= n) {
        *reinterpret_cast<float4 *>(p + i) = v;
        return;
    }
    if (i < n)
        p[i] = v.x;
    if (i + 1 < n)
        p[i + 1] = v.y;
    if (i + 2 < n)
        p[i + 2] = v.z;
}

#endif
