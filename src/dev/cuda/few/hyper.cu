/* Operations of DeepSeek-V4 on one row at a time.  What is summed is summed in an order that the row's length alone
 * decides. */
#include "dev/cuda/few/hyper.h"
#include "dev/cuda/grid.cuh"
#include "dev/cuda/kernel.cuh"

TERN_CUDA_KERNEL_BEGIN(clamp, tern_cuda_clamp_args, 256, 1)
{
    const int first = blockIdx.y * TERN_CUDA_CLAMP + threadIdx.x;
    float *gate = cuda_at<float>(a.gate) + blockIdx.x * a.gate_stride;
    float *up = cuda_at<float>(a.up) + blockIdx.x * a.up_stride;
    cuda_wait();
#pragma unroll
    for (int j = 0; j < TERN_CUDA_CLAMP; j += 256) {
        const int i = first + j;
        if (i >= a.n)
            continue;
        const float g = gate[i], u = up[i];
        gate[i] = g > a.limit ? a.limit : g; /* NaN stays */
        up[i] = u > a.limit ? a.limit : u < -a.limit ? -a.limit : u;
    }
}

TERN_CUDA_KERNEL_BEGIN(grid, tern_cuda_grid_args, 32 * TERN_CUDA_GRID_WARPS, 1)
{
    extern __shared__ __align__(16) float shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, unit = blockIdx.x * TERN_CUDA_GRID_WARPS + warp;
    const int row = unit / a.n_heads, head = unit % a.n_heads;
    float *x = cuda_at<float>(a.x) + row * a.stride + (uint64_t)head * a.dim, *own = shared + warp * a.dim;
    cuda_wait();
    if (row >= a.n_rows)
        return;
    for (int i = lane; i < a.dim; i += 32)
        own[i] = x[i];
    if (a.fp4)
        grid_fp4(own, a.dim, lane);
    else
        grid_fp8(own, a.dim, lane);
    for (int i = lane; i < a.dim; i += 32)
        x[i] = own[i];
}

/* ---- residual streams that mix ----------------------------------------------------------------------------------- */

#define STREAMS 8 /* TERN_MAX_STREAMS */
#define WARPS   (TERN_CUDA_HYPER_THREADS / 32)

__device__ static inline double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* 1 / sqrt(mean square + eps), known to all threads of the block. */
__device__ static inline double inverse_root(const float *x, int n, float eps)
{
    __shared__ double part[WARPS];
    double sum = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < n; i += TERN_CUDA_HYPER_THREADS)
        sum += (double)x[i] * (double)x[i];
    for (int step = 16; step; step /= 2)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = part[threadIdx.x % WARPS];
    for (int step = WARPS / 2; step; step /= 2)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
    return 1 / sqrt(sum / n + (double)eps);
}

/* The n numbers from p on, `step` apart. */
__device__ static inline double sum_of(const double *p, int n, int step)
{
    double x[STREAMS];
#pragma unroll
    for (int k = 0; k < STREAMS; k++)
        x[k] = k < n ? p[k * step] : 0;
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

/* c[0, n) = what each lane has of it, elements lane and lane + 32, when all lanes have read what they need. */
__device__ static inline void put_two(double *c, const double y[2], int n, int lane)
{
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (lane + 32 * i < n)
            c[lane + 32 * i] = y[i];
    __syncwarp();
}

/* The warp's matrix c[n][n], of which a lane has elements lane and lane + 32: each divided by the sum of its row, or of
 * its column, and `least`; then plus `plus`. */
__device__ static inline void divide(double *c, int n, bool rows, double least, double plus, int lane)
{
    double y[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int e = lane + 32 * i;
        if (e < n * n)
            y[i] = c[e] / (least + sum_of(rows ? c + e / n * n : c + e % n, n, rows ? 1 : n)) + plus;
    }
    put_two(c, y, n * n, lane);
}

/* One warp: m[n][n] becomes the softmax of rows, of which rows and columns are divided by their sums by turns, columns
 * first and last. */
__device__ static inline void make_stochastic(const tern_cuda_hyper_args &a, float *m, double root, int lane)
{
    __shared__ double c[STREAMS * STREAMS];
    const int n = a.n;
    const double scale = cuda_at<const float>(a.scale)[2], eps = a.eps;
    const float *base = cuda_at<const float>(a.base) + 2 * n;
    double y[2];
    for (int e = lane; e < n * n; e += 32)
        c[e] = (double)m[e] * root * scale + (double)base[e];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int e = lane + 32 * i;
        if (e >= n * n)
            continue;
        double most = c[e / n * n];
        for (int k = 1; k < n; k++)
            most = fmax(most, c[e / n * n + k]);
        y[i] = exp(c[e] - most);
    }
    put_two(c, y, n * n, lane);
    divide(c, n, true, 0, eps, lane);
    divide(c, n, false, eps, 0, lane);
    for (int i = 1; i < a.iterations; i++) {
        divide(c, n, true, eps, 0, lane);
        divide(c, n, false, eps, 0, lane);
    }
    for (int e = lane; e < n * n; e += 32)
        m[e] = (float)c[e];
}

/* Block (row).  The first warp makes the weights that the streams are read by; then the last one the matrix, beside the
 * other warps' sums. */
TERN_CUDA_KERNEL_BEGIN(hyper_read, tern_cuda_hyper_args, TERN_CUDA_HYPER_THREADS, 1)
{
    __shared__ float pre[STREAMS];
    const int n = a.n, t = threadIdx.x;
    const float *streams = cuda_at<const float>(a.streams) + blockIdx.x * a.stream_stride;
    const float *base = cuda_at<const float>(a.base), *scale = cuda_at<const float>(a.scale);
    float *m = cuda_at<float>(a.m) + blockIdx.x * a.m_stride, *x = cuda_at<float>(a.x) + blockIdx.x * a.x_stride;
    cuda_wait();
    const double root = inverse_root(streams, n * a.dim, a.norm_eps);
    if (t < n || (t < 2 * n && a.iterations)) {
        const double y = sigmoid((double)m[t] * root * (double)scale[t / n] + (double)base[t]);
        m[t] = t < n ? (float)(y + (double)a.eps) : (float)(2 * y);
        if (t < n)
            pre[t] = m[t];
    }
    __syncthreads();
    if (t / 32 == WARPS - 1 && a.iterations)
        make_stochastic(a, m + 2 * n, root, t % 32);
    float w[STREAMS];
#pragma unroll
    for (int j = 0; j < STREAMS; j++)
        w[j] = j < n ? pre[j] : 0;
    for (int i = t; i < a.dim; i += TERN_CUDA_HYPER_THREADS) {
        float sum = __fmul_rn(w[0], streams[i]);
#pragma unroll
        for (int j = 1; j < STREAMS; j++)
            if (j < n)
                sum = __fmaf_rn(w[j], streams[j * a.dim + i], sum);
        x[i] = sum;
    }
}

/* Block (row, dims).  A thread has read its dim of all streams before it writes any. */
TERN_CUDA_KERNEL_BEGIN(hyper_write, tern_cuda_hyper_args, TERN_CUDA_HYPER_COLUMNS, 1)
{
    __shared__ float w[STREAMS * (STREAMS + 1)]; /* of what is added, then the matrix */
    const int n = a.n, i = blockIdx.y * TERN_CUDA_HYPER_COLUMNS + threadIdx.x;
    float *streams = cuda_at<float>(a.streams) + blockIdx.x * a.stream_stride, old[STREAMS];
    const float *x = cuda_at<const float>(a.x) + blockIdx.x * a.x_stride;
    cuda_wait();
    if (threadIdx.x < n * (n + 1))
        w[threadIdx.x] = cuda_at<const float>(a.m)[blockIdx.x * a.m_stride + n + threadIdx.x];
    __syncthreads();
    if (i >= a.dim)
        return;
    const float added = x[i];
#pragma unroll
    for (int j = 0; j < STREAMS; j++)
        old[j] = j < n ? streams[j * a.dim + i] : 0;
    for (int k = 0; k < n; k++) {
        float sum = __fmul_rn(w[k], added);
#pragma unroll
        for (int j = 0; j < STREAMS; j++)
            if (j < n)
                sum = __fmaf_rn(w[n + j * n + k], old[j], sum);
        streams[k * a.dim + i] = sum;
    }
}
