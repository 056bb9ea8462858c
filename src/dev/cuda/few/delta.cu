/* Layers with a recurrent state: the convolution, then the gated delta rule.  Channels never meet in the first, columns
 * of a head never in the second; both run through a job's rows in order, so a prompt may be cut anywhere. */
#include "dev/cuda/few/delta.h"
#include "dev/cuda/kernel.cuh"
#include "kernel/delta.h"

__device__ static inline float *state_at(const tern_cuda_delta_args &a, const tern_cuda_job &j, uint32_t block)
{
    const tern_cuda_blocks b = cuda_at<const tern_cuda_cache>(a.t.caches)[j.cache].states;
    return cuda_at<float>(b.p + block * b.bytes + cuda_at<const uint64_t>(a.state_off)[j.cache]);
}

/* Block (128 channels, job); a thread keeps the last rows of its channel. */
TERN_CUDA_KERNEL_BEGIN(delta_conv, tern_cuda_delta_args, 128, 1)
{
    const int c = blockIdx.x * 128 + threadIdx.x, keep = a.width - 1;
    cuda_wait();
    if (c >= a.channels)
        return;
    const tern_cuda_job j = cuda_at<const tern_cuda_job>(a.t.jobs)[blockIdx.y];
    const tern_cuda_mark *marks = cuda_at<const tern_cuda_mark>(a.t.marks) + j.marks;
    float *state = state_at(a, j, j.state), *x = cuda_at<float>(a.x) + j.row0 * a.stride + c;
    float last[TERN_DELTA_WIDTH], w[TERN_DELTA_WIDTH]; /* the newest at the end */
#pragma unroll
    for (int i = 0; i < TERN_DELTA_WIDTH; i++) {
        const int at = i - (TERN_DELTA_WIDTH - a.width);
        last[i] = at > 0 ? state[(uint64_t)(at - 1) * a.channels + c] : 0; /* moves down with the first row */
        w[i] = at >= 0 ? cuda_at<const float>(a.conv)[(uint64_t)at * a.channels + c] : 0;
    }
    int mark = 0;
    for (int r = 0; r < j.n_rows; r++) {
#pragma unroll
        for (int i = 0; i + 1 < TERN_DELTA_WIDTH; i++)
            last[i] = last[i + 1];
        last[TERN_DELTA_WIDTH - 1] = x[r * a.stride];
        float sum = 0;
        bool begun = false;
#pragma unroll
        for (int i = 0; i < TERN_DELTA_WIDTH; i++)
            if (i >= TERN_DELTA_WIDTH - a.width) {
                sum = begun ? __fmaf_rn(w[i], last[i], sum) : __fmul_rn(w[i], last[i]);
                begun = true;
            }
        x[r * a.stride] = sum == -INFINITY ? -0.0f : sum / (1.0f + expf(-sum));
        for (; mark < j.n_marks && marks[mark].at == r + 1; mark++) {
            float *to = state_at(a, j, marks[mark].block);
#pragma unroll
            for (int i = 0; i < TERN_DELTA_WIDTH; i++)
                if (i >= TERN_DELTA_WIDTH - keep)
                    to[(uint64_t)(i - (TERN_DELTA_WIDTH - keep)) * a.channels + c] = last[i];
        }
    }
#pragma unroll
    for (int i = 0; i < TERN_DELTA_WIDTH; i++)
        if (i >= TERN_DELTA_WIDTH - keep)
            state[(uint64_t)(i - (TERN_DELTA_WIDTH - keep)) * a.channels + c] = last[i];
}

/* Block (row): a warp for each head of queries and keys, then the gates. */
TERN_CUDA_KERNEL_BEGIN(delta_gates, tern_cuda_delta_args, 256, 1)
{
    const int lane = threadIdx.x % 32;
    cuda_wait();
    float *x = cuda_at<float>(a.x) + blockIdx.x * a.stride;
    const double length = 1 / sqrt((double)a.dk);
    for (int h = threadIdx.x / 32; h < 2 * a.n_k; h += 8) {
        float *head = x + (uint64_t)h * a.dk, squares = 0;
        for (int i = lane; i < a.dk; i += 32)
            squares += head[i] * head[i];
        for (int step = 16; step; step /= 2)
            squares += __shfl_xor_sync(0xFFFFFFFFu, squares, step);
        const float by = 1.0f / sqrtf(squares / (float)a.dk + 1e-6f / (float)a.dk);
        const float scale = (float)(h < a.n_k ? length * length : length);
        for (int i = lane; i < a.dk; i += 32)
            head[i] = head[i] * by * scale;
    }
    for (int h = threadIdx.x; h < a.n_v; h += 256) {
        float *decay = cuda_at<float>(a.decay) + blockIdx.x * a.gate_stride + h;
        float *beta = cuda_at<float>(a.beta) + blockIdx.x * a.gate_stride + h;
        const double t = (double)*decay + (double)cuda_at<const float>(a.dt)[h];
        const double softplus = t > 0 ? t + log1p(exp(-t)) : log1p(exp(t));
        *decay = (float)exp((double)cuda_at<const float>(a.a)[h] * softplus);
        *beta = (float)(1 / (1 + exp(-(double)*beta)));
    }
}

/* Block (16 columns of a value head, job): 16 threads share a column, each with every 16th of its dk numbers, so that
 * element n of all threads is 1 KiB of state in one piece. */
template <int PER> __device__ static inline void scan(const tern_cuda_delta_args &a)
{
    __shared__ float part[2][3][8][16];
    const int t = threadIdx.x, c = t % 16, slice = t / 16, warp = t / 32, n = a.dk / 16;
    const int per_head = a.dv / 16, h = blockIdx.x / per_head;
    const int hk = a.grouped ? h / (a.n_v / a.n_k) : h % a.n_k;
    cuda_wait();
    const tern_cuda_job j = cuda_at<const tern_cuda_job>(a.t.jobs)[blockIdx.y];
    const tern_cuda_mark *marks = cuda_at<const tern_cuda_mark>(a.t.marks) + j.marks;
    const uint64_t at = (uint64_t)a.channels * (a.width - 1) + (uint64_t)blockIdx.x * a.dk * 16 + t;
    float *state = state_at(a, j, j.state) + at;
    float s[PER];
#pragma unroll
    for (int i = 0; i < PER; i++)
        s[i] = i < n ? state[i * 256] : 0;
    int mark = 0;
    for (int r = 0; r < j.n_rows; r++) {
        const uint64_t row = j.row0 + r;
        const float *x = cuda_at<const float>(a.x) + row * a.stride;
        const float *q = x + (uint64_t)hk * a.dk + slice, *k = x + (uint64_t)(a.n_k + hk) * a.dk + slice;
        const float v = x[2 * (uint64_t)a.n_k * a.dk + blockIdx.x * 16 + c];
        const float decay = cuda_at<const float>(a.decay)[row * a.gate_stride + h];
        const float beta = cuda_at<const float>(a.beta)[row * a.gate_stride + h];
        float ks[PER], m = 0, o = 0, qk = 0;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            ks[i] = 0;
            if (i < n) {
                const float qi = q[i * 16];
                ks[i] = k[i * 16];
                s[i] *= decay;
                m = __fmaf_rn(ks[i], s[i], m);
                o = __fmaf_rn(qi, s[i], o);
                qk = __fmaf_rn(qi, ks[i], qk);
            }
        }
        m += __shfl_xor_sync(0xFFFFFFFFu, m, 16);
        o += __shfl_xor_sync(0xFFFFFFFFu, o, 16);
        qk += __shfl_xor_sync(0xFFFFFFFFu, qk, 16);
        float(*to)[8][16] = part[r % 2];
        if (t % 32 < 16) {
            to[0][warp][c] = m;
            to[1][warp][c] = o;
            to[2][warp][c] = qk;
        }
        __syncthreads();
        m = o = qk = 0;
#pragma unroll
        for (int w = 0; w < 8; w++) {
            m += to[0][w][c];
            o += to[1][w][c];
            qk += to[2][w][c];
        }
        const float d = beta * (v - m);
#pragma unroll
        for (int i = 0; i < PER; i++)
            s[i] = __fmaf_rn(ks[i], d, s[i]);
        if (slice == 0)
            cuda_at<float>(a.out)[row * a.out_stride + blockIdx.x * 16 + c] = __fmaf_rn(qk, d, o);
        for (; mark < j.n_marks && marks[mark].at == r + 1; mark++) {
            float *copy = state_at(a, j, marks[mark].block) + at;
#pragma unroll
            for (int i = 0; i < PER; i++)
                if (i < n)
                    copy[i * 256] = s[i];
        }
    }
#pragma unroll
    for (int i = 0; i < PER; i++)
        if (i < n)
            state[i * 256] = s[i];
}

TERN_CUDA_KERNEL_BEGIN(delta_scan, tern_cuda_delta_args, 256, 1)
{
    if (a.dk <= 128)
        scan<8>(a);
    else if (a.dk <= 256)
        scan<16>(a);
    else
        scan<64>(a);
}
