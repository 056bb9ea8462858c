/* dev/cuda/norm.cuh - the norm of rows.  Roundings are written out: kernels that do the same must answer the same. */
#ifndef TERN_DEV_CUDA_NORM_CUH
#define TERN_DEV_CUDA_NORM_CUH

#include "dev/cuda/kernel.cuh"

/* sum + the squares of v. */
__device__ static inline float norm_squares(float sum, float4 v)
{
    return __fadd_rn(sum, __fadd_rn(__fmaf_rn(v.y, v.y, __fmul_rn(v.x, v.x)), __fmaf_rn(v.w, v.w, __fmul_rn(v.z, v.z))));
}

/* What a row of n numbers is multiplied by, of the sum of its squares. */
__device__ static inline float norm_factor(float squares, int n, float eps)
{
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, (float)n), eps)));
}

__device__ static inline float4 norm_times(float4 v, float by, float4 w)
{
    return make_float4(__fmul_rn(__fmul_rn(v.x, by), w.x), __fmul_rn(__fmul_rn(v.y, by), w.y),
                       __fmul_rn(__fmul_rn(v.z, by), w.z), __fmul_rn(__fmul_rn(v.w, by), w.w));
}

#endif
