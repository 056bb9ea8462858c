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

/* What a lane has of a head, to be loaded before any of it is used: pairs of the rotation, then what is not rotated, 32 N dims
 * at a time, `from` on. */
struct head_place {
    float *x;
    const float *w, *cos, *sin;
    int half, items, apart, step;

    __device__ head_place(const tern_cuda_heads_set &h, int row, int head)
        : x(cuda_at<float>(h.x) + row * h.stride + (uint64_t)head * h.dim), w(cuda_at<const float>(h.norm_w)),
          half(h.cos ? h.n_rot / 2 : 0), items(h.dim - half), apart(h.interleaved ? 1 : half), step(h.interleaved ? 2 : 1)
    {
        cos = cuda_at<const float>(h.cos) + (uint64_t)row * half;
        sin = cuda_at<const float>(h.sin) + (uint64_t)row * half;
    }
    __device__ int first(int t) const
    {
        return t < half ? t * step : t + half;
    }
    __device__ int second(int t) const
    {
        return t < half ? t * step + apart : t + half;
    }
};

template <int N> struct head_words {
    float p[N], q[N], c[N], s[N]; /* neighbours of a rotation, the second one is the first where none is turned; its turn */

    __device__ void load(const head_place &h, int from)
    {
#pragma unroll
        for (int k = 0; k < N; k++) {
            const int t = from + 32 * k;
            p[k] = t < h.items ? h.x[h.first(t)] : 0;
            q[k] = t < h.half ? h.x[h.second(t)] : p[k];
            c[k] = t < h.half ? h.cos[t] : 1;
            s[k] = t < h.half ? h.sin[t] : 0;
        }
    }
    /* y: where the head goes; squares: of what is written, added up. */
    __device__ void turn(const head_place &h, float *y, int from, bool normed_before, float by, bool inverse, float temper,
                         float &squares) const
    {
#pragma unroll
        for (int k = 0; k < N; k++) {
            const int t = from + 32 * k;
            if (t >= h.items)
                continue;
            const int i = h.first(t), j = h.second(t);
            float a = p[k], b = q[k];
            if (normed_before) {
                a = normed(a, by, h.w, i);
                b = normed(b, by, h.w, j);
            }
            if (t < h.half) {
                const float n = inverse ? -s[k] : s[k], turned = __fmaf_rn(a, c[k], -__fmul_rn(b, n));
                b = __fmaf_rn(b, c[k], __fmul_rn(a, n));
                a = turned;
            }
            squares = __fmaf_rn(a, a, t < h.half ? __fmaf_rn(b, b, squares) : squares);
            y[i] = __fmul_rn(a, temper);
            if (t < h.half)
                y[j] = __fmul_rn(b, temper);
        }
    }
};

/* Sum of a lane's squares. */
template <int N> __device__ static inline float head_squares(const float *x, int dim, int from, float squares)
{
    float v[N];
#pragma unroll
    for (int k = 0; k < N; k++)
        v[k] = from + 32 * k < dim ? x[from + 32 * k] : 0;
#pragma unroll
    for (int k = 0; k < N; k++)
        squares = __fmaf_rn(v[k], v[k], squares);
    return squares;
}

/* What is left where a head is normed behind its rotation, or nothing. */
__device__ static inline void norm_turned(const tern_cuda_heads_set &h, const head_place &at, float *y, float squares, float temper,
                                          int lane)
{
    if (!h.norm || !h.norm_after)
        return;
    const float by = norm_factor(warp_sum(squares), h.dim, h.eps);
    for (int t = lane; t < at.items; t += 32) {
        const int i = at.first(t), j = at.second(t);
        y[i] = __fmul_rn(normed(y[i], by, at.w, i), temper);
        if (t < at.half)
            y[j] = __fmul_rn(normed(y[j], by, at.w, j), temper);
    }
}

__device__ static inline float temper_of_row(const tern_cuda_heads_args &a, const tern_cuda_heads_set &h, int row)
{
    return h.temper != 0 ? temper_of(h.temper, cuda_at<const tern_cuda_row>(a.rows)[row].pos, h.temper_from, h.temper_span) : 1;
}

/* A warp calls.  A lane keeps to its own numbers. */
__device__ static inline void one_head(const tern_cuda_heads_args &a, const tern_cuda_heads_set &h, int row, int head,
                                       int lane)
{
    constexpr int N = 4;
    const head_place at(h, row, head);
    const bool before = h.norm && !h.norm_after, after = h.norm && h.norm_after;
    const float temper = temper_of_row(a, h, row);
    float squares = 0, by = 1;
    if (before) {
        for (int i = lane; i < h.dim; i += 32 * N)
            squares = head_squares<N>(at.x, h.dim, i, squares);
        by = norm_factor(warp_sum(squares), h.dim, h.eps);
    }
    squares = 0;
    for (int t = lane; t < at.items; t += 32 * N) {
        head_words<N> words;
        words.load(at, t);
        words.turn(at, at.x, t, before, by, h.inverse, after ? 1 : temper, squares);
    }
    norm_turned(h, at, at.x, squares, temper, lane);
}

/* The same of a head of up to 128 dims, in two steps: what it needs is on its way, and where it goes. */
struct own_head {
    head_place at;
    head_words<4> words;
    float x[4];
    bool before;

    __device__ own_head(const tern_cuda_heads_set &h, int row, int head, int lane) : at(h, row, head), before(h.norm && !h.norm_after)
    {
        words.load(at, lane);
#pragma unroll
        for (int k = 0; k < 4; k++)
            x[k] = before && lane + 32 * k < h.dim ? at.x[lane + 32 * k] : 0;
    }
    __device__ void finish(const tern_cuda_heads_args &a, const tern_cuda_heads_set &h, int row, float *to, int lane) const
    {
        const float temper = temper_of_row(a, h, row);
        float squares = 0, by = 1;
        if (before) {
#pragma unroll
            for (int k = 0; k < 4; k++)
                squares = __fmaf_rn(x[k], x[k], squares);
            by = norm_factor(warp_sum(squares), h.dim, h.eps);
        }
        squares = 0;
        words.turn(at, to, lane, before, by, h.inverse, h.norm && h.norm_after ? 1 : temper, squares);
        norm_turned(h, at, to, squares, temper, lane);
    }
};

#endif
