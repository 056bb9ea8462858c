/* dev/cuda/attn/last.cuh - partial results of decode rows become answers in the kernel that makes them: by the block of
 * threads that comes last of those with the same q rows.  Which one that is changes no sum. */
#ifndef TERN_DEV_CUDA_ATTN_LAST_CUH
#define TERN_DEV_CUDA_ATTN_LAST_CUH

#include "dev/cuda/attn/block.cuh"
#include "dev/cuda/quantize.cuh"

#define LAST_AT_ONCE 16 /* ranges whose numbers are asked for together */

/* Ranges of closed pages that q row i has: the first, and how many. */
__device__ static inline int ranges_of(const block_rows &b, int pos, int &first)
{
    const int pages = tern_cuda_range_pages(b.a->l.window, b.pos0), page0 = oldest_seen(b.a->l, pos) / 64;
    first = page0 / pages;
    return page0 < b.raw0 ? (b.raw0 - 1) / pages - first + 1 : 0;
}

/* All threads of a block call, once their part of the partial results is written.  True in one block: in the last of
 * those that have a range, or what is raw, of these q rows. */
__device__ static inline bool comes_last(const block_rows &b)
{
    __shared__ int last;
    __syncthreads();
    if (threadIdx.x == 0) {
        int first;
        const int all = ranges_of(b, b.pos0, first) + 1;
        unsigned *arrived = cuda_at<unsigned>(b.a->arrived) + (uint64_t)(b.row0 - b.a->row0) * b.a->n_heads + b.head0;
        __threadfence();
        last = (int)atomicAdd(arrived, 1u) == all - 1;
        if (last) /* for the next step */
            *arrived = 0;
        __threadfence();
    }
    __syncthreads();
    return last;
}

/* Ranges of q row i in ascending order into x, numbers 2 lane and 2 lane + 1 of each 64: their softmax's reference, and its
 * sum.  weight: [TERN_CUDA_RANGES] of the warp's. */
template <int D>
__device__ static inline float2 merge_ranges(const block_rows &b, int i, int first, int n, float *weight, float2 *x)
{
    const int lane = threadIdx.x % 32;
    float m[2], s[2], most = -INFINITY, sum = 0;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const float *part = part_at(b, i, (first + lane + 32 * j) % TERN_CUDA_RANGES) + D;
        const float2 v = lane + 32 * j < n ? __ldcg(reinterpret_cast<const float2 *>(part)) : make_float2(-INFINITY, 0);
        m[j] = v.x;
        s[j] = v.y;
        most = fmaxf(most, v.x);
    }
    for (int width = 16; width; width /= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, width));
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const float w = m[j] == -INFINITY ? 0 : exp2f(__fsub_rn(m[j], most));
        if (lane + 32 * j < TERN_CUDA_RANGES)
            weight[lane + 32 * j] = w;
        sum = w == 0 ? sum : __fmaf_rn(w, s[j], sum);
    }
    for (int width = 16; width; width /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, width));
    __syncwarp();
#pragma unroll 1
    for (int from = 0; from < n; from += LAST_AT_ONCE) {
        float2 v[LAST_AT_ONCE][D / 64];
#pragma unroll
        for (int j = 0; j < LAST_AT_ONCE; j++)
#pragma unroll
            for (int h = 0; h < D / 64; h++) {
                const float *part = part_at(b, i, (first + from + j) % TERN_CUDA_RANGES) + 64 * h + 2 * lane;
                v[j][h] = from + j < n ? __ldcg(reinterpret_cast<const float2 *>(part)) : make_float2(0, 0);
            }
#pragma unroll
        for (int j = 0; j < LAST_AT_ONCE; j++) {
            const float w = from + j < n ? weight[from + j] : 0;
#pragma unroll
            for (int h = 0; h < D / 64; h++)
                if (w != 0) {
                    x[h].x = __fmaf_rn(w, v[j][h].x, x[h].x);
                    x[h].y = __fmaf_rn(w, v[j][h].y, x[h].y);
                }
        }
    }
    return make_float2(most, sum);
}

/* What conditioning takes from all scores of q row i. */
template <int D> __device__ static inline float shift_of(const block_rows &b, int i)
{
    const int lane = threadIdx.x % 32;
    const float *q = query_of(b, i, D), *mean = cuda_at<const float>(b.cond->mean);
    float shift = 0;
    for (int e = lane; e < D; e += 32)
        shift = __fmaf_rn(__fmul_rn(q[e], b.a->q_scale), mean[e], shift);
    for (int width = 16; width; width /= 2)
        shift = __fadd_rn(shift, __shfl_xor_sync(~0u, shift, width));
    return shift;
}

/* The answers of the block's q rows, a warp for each: ranges, back to the model's domain, then what was raw.  All threads
 * call; room: (D + TERN_CUDA_RANGES) floats for each warp. */
template <int D, int WARPS> __device__ __noinline__ static void put_answers(const block_rows &b, float *room)
{
    constexpr int H = D / 64;
    const tern_cuda_attn_args &a = *b.a;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *x = room + warp * (D + TERN_CUDA_RANGES), *weight = x + D;
    for (int i = warp; i < b.n_q; i += WARPS) {
        int first;
        const int n = ranges_of(b, row_pos(b, i), first);
        const float *raw = part_at(b, i, TERN_CUDA_RANGES);
        float2 o[H], coded[H];
#pragma unroll
        for (int h = 0; h < H; h++) {
            o[h] = __ldcg(reinterpret_cast<const float2 *>(raw + 64 * h + 2 * lane));
            coded[h] = make_float2(0, 0);
        }
        const float2 own = __ldcg(reinterpret_cast<const float2 *>(raw + D));
        float all = own.y;
        if (n) {
            float2 head = merge_ranges<D>(b, i, first, n, weight, coded);
            if (b.cond && a.cap <= 0)
                head.x = __fadd_rn(head.x, shift_of<D>(b, i));
#pragma unroll
            for (int h = 0; h < H; h++)
                *reinterpret_cast<float2 *>(x + 64 * h + 2 * lane) = coded[h];
            __syncwarp();
            if (a.l.v.rotated)
                rotate_row(a.l.v, x, true, lane);
            if (head.x != -INFINITY) {
                const float most = fmaxf(head.x, own.x), by = exp2f(__fsub_rn(head.x, most)),
                            by_own = exp2f(__fsub_rn(own.x, most));
                all = __fmaf_rn(by, head.y, __fmul_rn(by_own, own.y));
#pragma unroll
                for (int h = 0; h < H; h++) {
                    const float2 v = *reinterpret_cast<const float2 *>(x + 64 * h + 2 * lane);
                    o[h].x = by == 0 ? __fmul_rn(by_own, o[h].x) : __fmaf_rn(by, v.x, __fmul_rn(by_own, o[h].x));
                    o[h].y = by == 0 ? __fmul_rn(by_own, o[h].y) : __fmaf_rn(by, v.y, __fmul_rn(by_own, o[h].y));
                }
            }
            __syncwarp();
        }
        const uint64_t row = b.row0 + i / b.heads, at = (uint64_t)(b.head0 + i % b.heads) * D;
        float *out = cuda_at<float>(a.out) + row * a.out_stride + at;
#pragma unroll
        for (int h = 0; h < H; h++) {
            const float2 v = make_float2(__fadd_rn(__fdiv_rn(o[h].x, all), 0.0f), __fadd_rn(__fdiv_rn(o[h].y, all), 0.0f));
            *reinterpret_cast<float2 *>(out + 64 * h + 2 * lane) = v;
            *reinterpret_cast<float2 *>(x + 64 * h + 2 * lane) = v;
        }
        __syncwarp();
        if (a.q8) {
            const bool real = lane * 4 < D;
            const float *four = x + (real ? lane * 4 : 0);
            quantize_four(cuda_at<uint8_t>(a.q8), a.q8_bytes, a.q8_lanes, (int)row, a.n_heads * D,
                          (int)at / 32 + lane / 8, lane % 8, make_float4(four[0], four[1], four[2], four[3]), real);
        }
        __syncwarp();
    }
}

#endif
