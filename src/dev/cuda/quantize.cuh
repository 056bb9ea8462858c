/* dev/cuda/quantize.cuh - decode rows as int8, 32 inputs to a scale, as the quantize of kernel/gemm.h. */
#ifndef TERN_DEV_CUDA_QUANTIZE_CUH
#define TERN_DEV_CUDA_QUANTIZE_CUH

#include "dev/cuda/kernel.cuh"

/* Row `row` of q8 (products.h: tern_cuda_quantize).  Eight threads side by side hold the 32 numbers of block b, four
 * each: thread i those from 4 i on.  All of a warp call. */
__device__ static inline void quantize_four(uint8_t *q8, uint64_t row_bytes, int lanes, int row, int k, int b, int i,
                                            float4 v, bool real)
{
    float top = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
    /* fmaxf drops NaN, which must not be lost */
    float odd = (v.x - v.x) + (v.y - v.y) + (v.z - v.z) + (v.w - v.w);
    for (int step = 1; step < 8; step *= 2) {
        top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, step));
        odd += __shfl_xor_sync(0xFFFFFFFFu, odd, step);
    }
    float inv = __fdiv_rn(127.0f, top);
    if (isinf(inv))
        inv = 0;
    const int q0 = __float2int_rn(__fmul_rn(v.x, inv)), q1 = __float2int_rn(__fmul_rn(v.y, inv)),
              q2 = __float2int_rn(__fmul_rn(v.z, inv)), q3 = __float2int_rn(__fmul_rn(v.w, inv));
    int sum = q0 + q1 + q2 + q3;
    for (int step = 1; step < 8; step *= 2)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
    if (!real)
        return;
    const int lane = row % lanes;
    q8 += (row - lane) * row_bytes;
    reinterpret_cast<uint32_t *>(q8)[(b * lanes + lane) * 8 + i % 4 * 2 + i / 4] =
        (uint32_t)(q0 & 255) | (uint32_t)(q1 & 255) << 8 | (uint32_t)(q2 & 255) << 16 | (uint32_t)(q3 & 255) << 24;
    if (i == 0) {
        const float scale = __fdiv_rn(top, 127.0f) + odd; /* odd: 0, or not finite */
        float *scales = reinterpret_cast<float *>(q8 + lanes * k);
        scales[b * lanes + lane] = scale;
        scales[(k / 32 + b) * lanes + lane] = __fmul_rn(scale, (float)sum);
    }
}

#endif
