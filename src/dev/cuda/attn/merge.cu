/* Partial results of a decode row's query head become its answer: ranges of closed pages in ascending order, back to the
 * model's domain, then what was raw.  Four warps for each row and head. */
#include "dev/cuda/attn/block.cuh"
#include "dev/cuda/attn/columns.cuh"
#include "dev/cuda/quantize.cuh"

#define WARPS 4 /* each has every fourth range, a lane D / 32 neighbouring dims of it */
#define EACH  (TERN_CUDA_RANGES / WARPS)
static_assert(TERN_CUDA_RANGES % WARPS == 0, "each warp has as many");

#define REHEARSE 512 /* blocks that a card holds at once, and of which each rehearses */

/* The weights of all ranges, range r that of lane r % 32; and what they are weighed by. */
struct range_weights {
    float w[2], most, sum;
};

__device__ static inline range_weights weigh_ranges(const block_rows &b, int i, int first, int n, int lane)
{
    const int dim = b.a->l.v.dim;
    range_weights o = {{0, 0}, -INFINITY, 0};
    float m[2], s[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const float *part = part_at(b, i, (first + lane + 32 * j) % TERN_CUDA_RANGES);
        const bool real = lane + 32 * j < n;
        m[j] = real ? part[dim] : -INFINITY;
        s[j] = real ? part[dim + 1] : 0;
        o.most = fmaxf(o.most, m[j]);
    }
    for (int width = 16; width; width /= 2)
        o.most = fmaxf(o.most, __shfl_xor_sync(~0u, o.most, width));
#pragma unroll
    for (int j = 0; j < 2; j++) {
        o.w[j] = m[j] == -INFINITY ? 0 : exp2f(m[j] - o.most);
        o.sum += o.w[j] == 0 ? 0 : o.w[j] * s[j];
    }
    for (int width = 16; width; width /= 2)
        o.sum += __shfl_xor_sync(~0u, o.sum, width);
    return o;
}

/* Ranges that q row i sees: how many, and the number of the first. */
__device__ static inline int ranges_seen(const block_rows &b, int i, int &first)
{
    const tern_cuda_layer &l = b.a->l;
    const int log2_pages = range_shift(tern_cuda_range_pages(&l, b.pos0)), page0 = oldest_seen(l, row_pos(b, i)) / 64;
    first = page0 >> log2_pages;
    return page0 < b.raw0 ? (b.raw0 - 1 >> log2_pages) - first + 1 : 0;
}

/* What the mean of conditioned keys adds to the scores of q row i: who has made its columns has left it there. */
template <int D> __device__ static inline float shift_of(const block_rows &b, int i, int lane)
{
    const tern_cuda_attn_args &a = *b.a;
    float x[D / 32];
    if (a.columns)
        return cuda_at<const query_columns<D>>(a.columns)[(b.row0 + row_of(b, i)) * a.n_heads + head_of(b, i)].shift;
    load_query<D>(x, query_of(b, i, D), a.q_scale, lane);
    return mean_score<D>(x, b.cond, lane);
}

template <int N> __device__ static inline void load_dims(float x[N], const float *from)
{
#pragma unroll
    for (int j = 0; j < N; j += 2) {
        const float2 two = *reinterpret_cast<const float2 *>(from + j);
        x[j] = two.x;
        x[j + 1] = two.y;
    }
}

/* Dims 128 k + 4 lane and on of what lanes have, N neighbours each; of 64 dims the first half of the lanes gets some. */
template <int N> __device__ static inline float4 four_dims(const float x[N], int k, int lane)
{
    if constexpr (N == 4) {
        return make_float4(x[0], x[1], x[2], x[3]);
    } else {
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int from = (128 * k + lane * 4 + j) / N % 32;
            const float low = __shfl_sync(~0u, x[j % N], from), high = __shfl_sync(~0u, x[(4 + j) % N], from);
            v[j] = N > 4 && lane % 2 ? high : low;
        }
        return make_float4(v[0], v[1], v[2], v[3]);
    }
}

/* real: false in a rehearsal, before the kernel has waited: nothing is read but tables, and nothing written. */
template <int D>
__device__ static inline void merge_row(const block_rows &b, int i, const float sign[D / 32], float others[WARPS][D], bool real)
{
    constexpr int N = D / 32;
    const tern_cuda_attn_args &a = *b.a;
    const tern_cuda_layer &l = a.l;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = lane * N;
    int first;
    const int n = ranges_seen(b, i, first), there = real ? n : 0;
    const float *raw = part_at(b, i, TERN_CUDA_RANGES);
    float raw_o[N] = {}, raw_m = 0, raw_l = 1, x[N] = {}, shift = 0;
    if (warp == 0 && real) {
        load_dims<N>(raw_o, raw + d);
        raw_m = raw[D];
        raw_l = raw[D + 1];
    }
    range_weights by = {};
    if (n) {
        float o[EACH][N]; /* all on their way before any is waited for */
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (warp + WARPS * j < there)
                load_dims<N>(o[j], part_at(b, i, (first + warp + WARPS * j) % TERN_CUDA_RANGES) + d);
        by = weigh_ranges(b, i, first, there, lane);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int range = warp + WARPS * j;
            const float w = __shfl_sync(~0u, by.w[WARPS * j / 32], range % 32);
#pragma unroll
            for (int c = 0; c < N; c++)
                if (range < there && w != 0)
                    x[c] = fmaf(w, o[j][c], x[c]);
        }
#pragma unroll
        for (int c = 0; c < N; c++)
            others[warp][d + c] = x[c];
        if (warp == 0 && real && b.cond && a.cap <= 0)
            shift = shift_of<D>(b, i, lane);
        __syncthreads();
    }
    if (warp)
        return;
    float all = raw_l;
    if (n) {
#pragma unroll
        for (int c = 0; c < N; c++)
            x[c] = __fadd_rn(__fadd_rn(x[c], others[1][d + c]), __fadd_rn(others[2][d + c], others[3][d + c]));
        if (l.v.rotated)
            turn_back<N>(x, l.v.norm, sign, lane);
    }
    float coded = 0, own = 1;
    if (n && by.most + shift != -INFINITY) {
        const float most = fmaxf(by.most + shift, raw_m);
        coded = exp2f(by.most + shift - most);
        own = exp2f(raw_m - most);
        all = fmaf(coded, by.sum, own * all);
    }
#pragma unroll
    for (int c = 0; c < N; c++) {
        const float value = coded == 0 ? own * raw_o[c] : fmaf(coded, x[c], own * raw_o[c]);
        x[c] = value / all + 0.0f;
    }
    const uint64_t row = b.row0 + row_of(b, i), at = (uint64_t)head_of(b, i) * D;
#pragma unroll
    for (int k = 0; k < (D + 127) / 128; k++) {
        const int dim = 128 * k + lane * 4;
        const float4 v = four_dims<N>(x, k, lane);
        const bool put = real && dim < D;
        if (put)
            *reinterpret_cast<float4 *>(cuda_at<float>(a.out) + row * a.out_stride + at + dim) = v;
        if (a.q8)
            quantize_four(cuda_at<uint8_t>(a.q8), a.q8_bytes, a.q8_lanes, (int)row, a.n_heads * D, (int)(at + dim) / 32, lane % 8,
                          v, put);
    }
}

template <int D> __device__ static void merge(const tern_cuda_attn_args &a)
{
    __shared__ float others[2][WARPS][D];
    const int i = blockIdx.z, lane = threadIdx.x % 32;
    cuda_start_next();
    block_rows b;
    const bool there = find_rows(b, a, blockIdx.x, blockIdx.y) && i < b.n_q;
    float sign[D / 32]; /* tables and constants were there before the step's first kernel */
    load_signs<D / 32>(sign, a.l.v, lane);
    if (!there) {
        cuda_wait();
        return;
    }
    /* Blocks that have no place before others end wait for nothing, and rehearse nothing. */
#pragma unroll 1
    for (int real = gridDim.x * gridDim.y * gridDim.z > REHEARSE; real < 2; real++) {
        if (real)
            cuda_wait();
        merge_row<D>(b, i, sign, others[real], real);
    }
}

TERN_CUDA_KERNEL_BEGIN(attn_merge_64, tern_cuda_attn_args, 32 * WARPS, 1)
{
    merge<64>(a);
}

TERN_CUDA_KERNEL_BEGIN(attn_merge_128, tern_cuda_attn_args, 32 * WARPS, 1)
{
    merge<128>(a);
}

TERN_CUDA_KERNEL_BEGIN(attn_merge_256, tern_cuda_attn_args, 32 * WARPS, 1)
{
    merge<256>(a);
}

/* ---- heads of any size (attn/any.cu) ------------------------------------------------------------------------------ */

/* What the mean of conditioned keys adds to the scores of a query. */
__device__ static inline float any_shift(const block_rows &b, int i, int lane)
{
    const int dim = b.a->l.k.dim;
    const float *q = query_of(b, i, dim), *mean = cuda_at<const float>(b.cond->mean);
    float sum = 0;
    for (int d = lane; d < dim; d += 32)
        sum = fmaf(q[d] * b.a->q_scale, mean[d], sum);
    for (int width = 16; width; width /= 2)
        sum += __shfl_xor_sync(~0u, sum, width);
    return sum;
}

/* A head is in shared memory, which a warp turns back; then a thread has four neighbouring dims. */
TERN_CUDA_KERNEL_BEGIN(attn_merge_any, tern_cuda_attn_args, 32 * WARPS, 1)
{
    __shared__ float w[64];
    __shared__ __align__(16) float x[4 * 32 * WARPS];
    const int i = blockIdx.z, lane = threadIdx.x % 32, dim = a.l.v.dim, d = 4 * threadIdx.x;
    block_rows b;
    cuda_wait();
    if (!find_rows(b, a, blockIdx.x, blockIdx.y) || i >= b.n_q)
        return;
    int first;
    const int n = ranges_seen(b, i, first);
    const float *raw = part_at(b, i, TERN_CUDA_RANGES);
    const range_weights by = weigh_ranges(b, i, first, n, lane);
    const float shift = n && b.cond && a.cap <= 0 ? any_shift(b, i, lane) : 0;
    if (threadIdx.x < 32) {
        w[lane] = by.w[0];
        w[lane + 32] = by.w[1];
    }
    __syncthreads();
#pragma unroll 1
    for (int at = 2 * threadIdx.x; at < dim; at += 2 * 32 * WARPS) {
        float2 sum = make_float2(0, 0), part[16]; /* all on their way before any is waited for */
#pragma unroll 1
        for (int from = 0; from < n; from += 16) {
#pragma unroll
            for (int r = 0; r < 16; r++)
                if (from + r < n)
                    part[r] = *reinterpret_cast<const float2 *>(part_at(b, i, (first + from + r) % TERN_CUDA_RANGES) + at);
#pragma unroll
            for (int r = 0; r < 16; r++)
                if (w[from + r] != 0) /* 0 where there is no range */
                    sum = make_float2(fmaf(w[from + r], part[r].x, sum.x), fmaf(w[from + r], part[r].y, sum.y));
        }
        *reinterpret_cast<float2 *>(x + at) = sum;
    }
    __syncthreads();
    if (n && a.l.v.rotated && threadIdx.x < 32)
        rotate_row(a.l.v, x, true, lane);
    __syncthreads();
    float coded = 0, own = 1, all = raw[dim + 1];
    if (n && by.most + shift != -INFINITY) {
        const float most = fmaxf(by.most + shift, raw[dim]);
        coded = exp2f(by.most + shift - most);
        own = exp2f(raw[dim] - most);
        all = fmaf(coded, by.sum, own * all);
    }
    float four[4] = {};
    const bool real = d < dim;
    for (int c = 0; real && c < 4; c++)
        four[c] = (coded == 0 ? own * raw[d + c] : fmaf(coded, x[d + c], own * raw[d + c])) / all + 0.0f;
    const float4 v = make_float4(four[0], four[1], four[2], four[3]);
    const uint64_t row = b.row0 + row_of(b, i), at = (uint64_t)head_of(b, i) * dim + d;
    if (real)
        *reinterpret_cast<float4 *>(cuda_at<float>(a.out) + row * a.out_stride + at) = v;
    if (a.q8)
        quantize_four(cuda_at<uint8_t>(a.q8), a.q8_bytes, a.q8_lanes, (int)row, a.n_heads * dim, (int)at / 32, lane % 8, v, real);
}
