/* dev/cuda/attn/heads.cuh - what is done to heads before attention: norm, rotation, temper (dev/dev.h: heads).
 *
 * Kernels that do it with something else must leave the same bits, so sums and products of floats are written with their
 * rounding: a compiler would contract them in one kernel and not in another. */
#ifndef TERN_DEV_CUDA_ATTN_HEADS_CUH
#define TERN_DEV_CUDA_ATTN_HEADS_CUH

#include "dev/cuda/norm.cuh"
#include "dev/cuda/rows.h"

__device__ static inline float warp_sum(float v)
{
    for (int step = 16; step; step /= 2)
        v = __fadd_rn(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
    return v;
}

__device__ static __noinline__ float temper_of(float temper, int pos, int from, int span)
{
    const int times = (pos + from) / span;
    return (float)(1 + (double)temper * log1p((double)times));
}

/* x * by * w[i], w where there is one. */
__device__ static inline float normed(float x, float by, const float *w, int i)
{
    x = __fmul_rn(x, by);
    return w ? __fmul_rn(x, w[i]) : x;
}

/* A warp calls.  A lane keeps to its own numbers: pairs of the rotation, then what is not rotated. */
__device__ static inline void one_head(const tern_cuda_heads_args &a, const tern_cuda_heads_set &h, int row, int head,
                                       int lane)
{
    float *x = cuda_at<float>(h.x) + row * h.stride + (uint64_t)head * h.dim;
    const int half = h.cos ? h.n_rot / 2 : 0, items = h.dim - half;
    const float *w = cuda_at<const float>(h.norm_w), *cs = cuda_at<const float>(h.cos) + (uint64_t)row * half,
                *sn = cuda_at<const float>(h.sin) + (uint64_t)row * half;
    const int apart = h.interleaved ? 1 : half, step = h.interleaved ? 2 : 1;
    float squares = 0, by = 1, temper = 1;
    if (h.temper != 0)
        temper = temper_of(h.temper, cuda_at<const tern_cuda_row>(a.rows)[row].pos, h.temper_from, h.temper_span);
    const bool before = h.norm && !h.norm_after, after = h.norm && h.norm_after;
    if (before) {
        for (int i = lane; i < h.dim; i += 32)
            squares = __fmaf_rn(x[i], x[i], squares);
        by = norm_factor(warp_sum(squares), h.dim, h.eps);
        squares = 0;
    }
    for (int t = lane; t < items; t += 32) {
        const int i = t < half ? t * step : t + half, j = t < half ? i + apart : i;
        float p = x[i], q = x[j];
        if (before) {
            p = normed(p, by, w, i);
            q = normed(q, by, w, j);
        }
        if (t < half) {
            const float c = cs[t], n = h.inverse ? -sn[t] : sn[t], turned = __fmaf_rn(p, c, -__fmul_rn(q, n));
            q = __fmaf_rn(q, c, __fmul_rn(p, n));
            p = turned;
        }
        if (after)
            squares = __fmaf_rn(p, p, t < half ? __fmaf_rn(q, q, squares) : squares);
        x[i] = after ? p : __fmul_rn(p, temper);
        if (t < half)
            x[j] = after ? q : __fmul_rn(q, temper);
    }
    if (!after)
        return;
    by = norm_factor(warp_sum(squares), h.dim, h.eps);
    for (int t = lane; t < items; t += 32) {
        const int i = t < half ? t * step : t + half, j = i + apart;
        x[i] = __fmul_rn(normed(x[i], by, w, i), temper);
        if (t < half)
            x[j] = __fmul_rn(normed(x[j], by, w, j), temper);
    }
}

#endif
