/* Partial results of a decode row's query head become its answer: ranges of closed pages in ascending order, back to the
 * model's domain, then what was raw.  A block of threads for each row and head. */
#include "dev/cuda/attn/block.cuh"
#include "dev/cuda/quantize.cuh"

#define SPLIT 4 /* threads of a dim: each has every fourth range */

template <int D> __device__ static void merge(const tern_cuda_attn_args &a)
{
    constexpr int MOST = (TERN_CUDA_RANGES + SPLIT - 1) / SPLIT;
    __shared__ float x[SPLIT][D], weight[TERN_CUDA_RANGES], head[4];
    const tern_cuda_layer &l = a.l;
    const int d = threadIdx.x % D, split = threadIdx.x / D, i = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    block_rows b;
    const bool real = find_rows(b, a, blockIdx.x / a.n_blocks, blockIdx.x % a.n_blocks, blockIdx.y) && i < b.n_q;
    float sign[D / 32]; /* tables and constants were there before the step's first kernel */
    load_signs<D / 32>(sign, l.v, lane);
    cuda_wait();
    if (!real)
        return;
    const int pages = tern_cuda_range_pages(l.window, b.pos0), page0 = oldest_seen(l, row_pos(b, i)) / 64;
    const int first = page0 / pages, n = page0 < b.raw0 ? (b.raw0 - 1) / pages - first + 1 : 0;
    float o[MOST];
#pragma unroll
    for (int j = 0; j < MOST; j++) {
        const int range = split + SPLIT * j;
        o[j] = range < n ? part_at(b, i, (first + range) % TERN_CUDA_RANGES)[d] : 0;
    }
    const float *raw = part_at(b, i, TERN_CUDA_RANGES);
    const float raw_o = raw[d];
    if (warp == 0 && n) {
        float m[2], s[2], most = -INFINITY, sum = 0;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float *part = part_at(b, i, (first + lane + 32 * j) % TERN_CUDA_RANGES);
            const bool real = lane + 32 * j < n;
            m[j] = real ? part[D] : -INFINITY;
            s[j] = real ? part[D + 1] : 0;
            most = fmaxf(most, m[j]);
        }
        for (int width = 16; width; width /= 2)
            most = fmaxf(most, __shfl_xor_sync(~0u, most, width));
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float w = m[j] == -INFINITY ? 0 : exp2f(m[j] - most);
            if (lane + 32 * j < TERN_CUDA_RANGES)
                weight[lane + 32 * j] = w;
            sum += w == 0 ? 0 : w * s[j];
        }
        for (int width = 16; width; width /= 2)
            sum += __shfl_xor_sync(~0u, sum, width);
        float shift = 0;
        if (b.cond && a.cap <= 0) {
            const float *q = query_of(b, i, D), *mean = cuda_at<const float>(b.cond->mean);
            for (int e = lane; e < D; e += 32)
                shift += q[e] * a.q_scale * mean[e];
            for (int width = 16; width; width /= 2)
                shift += __shfl_xor_sync(~0u, shift, width);
        }
        if (lane == 0) {
            head[0] = most + shift;
            head[1] = sum;
        }
    }
    __syncthreads();
    if (n) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < MOST; j++)
            if (split + SPLIT * j < n && weight[split + SPLIT * j] != 0)
                sum = fmaf(weight[split + SPLIT * j], o[j], sum);
        x[split][d] = sum;
        __syncthreads();
        if (warp == 0) {
            float four[D / 32]; /* neighbours */
#pragma unroll
            for (int j = 0; j < D / 32; j++) {
                const int e = lane * (D / 32) + j;
                four[j] = __fadd_rn(__fadd_rn(x[0][e], x[1][e]), __fadd_rn(x[2][e], x[3][e]));
            }
            if (l.v.rotated)
                turn_back<D / 32>(four, l.v.norm, sign, lane);
#pragma unroll
            for (int j = 0; j < D / 32; j++)
                x[0][lane * (D / 32) + j] = four[j];
        }
        __syncthreads();
    }
    if (split)
        return;
    float value = raw_o, all = raw[D + 1];
    if (n && head[0] != -INFINITY) {
        const float most = fmaxf(head[0], raw[D]), coded = exp2f(head[0] - most), own = exp2f(raw[D] - most);
        value = coded == 0 ? own * raw_o : fmaf(coded, x[0][d], own * raw_o);
        all = fmaf(coded, head[1], own * all);
    }
    value = value / all + 0.0f;
    const uint64_t row = b.row0 + row_of(b, i), at = (uint64_t)head_of(b, i) * D;
    cuda_at<float>(a.out)[row * a.out_stride + at + d] = value;
    if (!a.q8)
        return;
    x[1][d] = value; /* 32 of them are of one warp */
    __syncwarp();
    const float *four = &x[1][d / 32 * 32 + lane % 8 * 4];
    float4 v = make_float4(0, 0, 0, 0);
    if (lane < 8)
        v = make_float4(four[0], four[1], four[2], four[3]);
    quantize_four(cuda_at<uint8_t>(a.q8), a.q8_bytes, a.q8_lanes, (int)row, a.n_heads * D, (int)(at + d) / 32, lane % 8, v,
                  lane < 8);
}

TERN_CUDA_KERNEL_BEGIN(attn_merge_64, tern_cuda_attn_args, 64 * SPLIT, 1)
{
    merge<64>(a);
}

TERN_CUDA_KERNEL_BEGIN(attn_merge_128, tern_cuda_attn_args, 128 * SPLIT, 1)
{
    merge<128>(a);
}
