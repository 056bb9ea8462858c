/* dev/cuda/grid.cuh - numbers rounded to the grids of few bits of dev/args.h (enum tern_grid), by one warp, in shared
 * memory, in place; bit for bit what the processor does (dev/cpu/grid.c), so products and sums are written with their
 * rounding.  A call begins and ends with __syncwarp(): any lane may have written x, and any may read it then. */
#ifndef TERN_DEV_CUDA_GRID_CUH
#define TERN_DEV_CUDA_GRID_CUH

#include "dev/cuda/kernel.cuh"

/* Nearest, to even, of floats with `bits` bits of mantissa whose exponents end at `low`: adding and taking away a
 * number so large that what lies below the step is rounded off.  NaN stays. */
__device__ static inline float grid_round(float x, int bits, int low, float top)
{
    if (!(x <= top && x >= -top))
        return x > top ? top : x < -top ? -top : x;
    const int exponent = max((int)(__float_as_uint(x) >> 23 & 255) - 127, low);
    const float magic = __uint_as_float((uint32_t)(exponent - bits + 23 + 127) << 23 | 0x400000u);
    return __fsub_rn(__fadd_rn(x, magic), magic);
}

/* The groups of x, 32 or 64 numbers each.  `least` is what the largest of a group counts at least; top = (1 +
 * fraction / 2^23) * 2^exponent.  NaN does not count for the largest. */
template <int GROUP>
__device__ static inline void grid_groups(float *x, int n, int bits, int low, uint32_t top, float least, int lane)
{
    for (int at = 0; at < n; at += GROUP) {
        float largest = least;
        for (int i = at + lane; i < at + GROUP && i < n; i += 32)
            largest = fmaxf(largest, fabsf(x[i]));
#pragma unroll
        for (int step = 16; step; step /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
        /* The smallest power of two s with largest <= top * s: fractions above top's carry into the exponent. */
        const uint32_t u = __float_as_uint(largest), carry = 0x7FFFFFu - (top & 0x7FFFFFu);
        const uint32_t power = u < 0x7F800000u ? ((u + carry) >> 23) - (top >> 23) + 127 : 255;
        const float s = __uint_as_float(power << 23), inverse = power < 255 ? __uint_as_float((254 - power) << 23) : 0;
        for (int i = at + lane; i < at + GROUP && i < n; i += 32)
            x[i] = __fmul_rn(grid_round(__fmul_rn(x[i], inverse), bits, low, __uint_as_float(top)), s);
    }
    __syncwarp();
}

/* E4M3 in groups of 64 numbers. */
__device__ static inline void grid_fp8(float *x, int n, int lane)
{
    __syncwarp();
    grid_groups<64>(x, n, 3, -6, 0x43E00000u /* 448 */, 1e-4f, lane);
}

/* A Hadamard transform of all n numbers, a power of two (kernel/kvq.h: rotate, where no sign is turned), then E2M1 in
 * groups of 32. */
__device__ static inline void grid_fp4(float *x, int n, int lane)
{
    int steps = 0;
    __syncwarp();
    for (int stride = 1; stride < n; stride *= 2, steps++) {
        for (int i = lane; i < n / 2; i += 32) {
            const int j = (i & -stride) * 2 + (i & (stride - 1));
            const float a = x[j], b = x[j + stride];
            x[j] = __fadd_rn(a, b);
            x[j + stride] = __fsub_rn(a, b);
        }
        __syncwarp();
    }
    /* 1 / sqrt(n) */
    const float norm = __fmul_rn(__uint_as_float((uint32_t)(127 - (steps + 1) / 2) << 23), steps % 2 ? 1.41421356f : 1);
    for (int i = lane; i < n; i += 32)
        x[i] = __fmul_rn(x[i], norm);
    __syncwarp();
    grid_groups<32>(x, n, 1, 0, 0x40C00000u /* 6 */, 6 * 1.17549435e-38f, lane);
}

#endif
