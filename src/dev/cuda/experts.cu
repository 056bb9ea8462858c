/* Experts: which a row goes to, and rows in order of experts. */
#include "dev/cuda/experts.h"
#include "dev/cuda/quantize.cuh"
#include "dev/cuda/tables.h"

#define MOST    1024 /* experts */
#define THREADS 128

/* Does number b at place i come before `best` at `at`?  Of equal ones, and where one is no number, the first does. */
__device__ static inline bool better(double b, int i, double best, int at)
{
    return i >= 0 && (at < 0 || b > best || (!(best > b) && i < at));
}

/* The best of score[0, n) that is not marked; of equal ones the first.  All threads of the block call and learn it. */
__device__ static inline int best_of(const double *score, const uint8_t *marked, int n)
{
    __shared__ double top[THREADS / 32];
    __shared__ int place[THREADS / 32];
    double best = 0;
    int at = -1;
    for (int e = threadIdx.x; e < n; e += THREADS)
        if (!marked[e] && (at < 0 || score[e] > best)) {
            best = score[e];
            at = e;
        }
    for (int step = 16; step; step /= 2) {
        const double b = __shfl_xor_sync(0xFFFFFFFFu, best, step);
        const int i = __shfl_xor_sync(0xFFFFFFFFu, at, step);
        if (better(b, i, best, at)) {
            best = b;
            at = i;
        }
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        top[threadIdx.x / 32] = best;
        place[threadIdx.x / 32] = at;
    }
    __syncthreads();
    best = top[0];
    at = place[0];
    for (int w = 1; w < THREADS / 32; w++)
        if (better(top[w], place[w], best, at)) {
            best = top[w];
            at = place[w];
        }
    return at;
}

__device__ static inline double block_sum(double v)
{
    __shared__ double part[THREADS / 32];
    for (int step = 16; step; step /= 2)
        v += __shfl_xor_sync(0xFFFFFFFFu, v, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int w = 0; w < THREADS / 32; w++)
        v += part[w];
    return v;
}

__device__ static inline double block_max(double v)
{
    __shared__ double part[THREADS / 32];
    for (int step = 16; step; step /= 2)
        v = fmax(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = v;
    __syncthreads();
    for (int w = 0; w < THREADS / 32; w++)
        v = fmax(v, part[w]);
    return v;
}

/* Experts of groups that do not compete are marked.  sum, used: [n_groups]. */
__device__ static inline void mark_lost(const tern_cuda_route_args &a, const double *choice, uint8_t *marked, double *sum,
                                        uint8_t *used)
{
    const int size = a.n_experts / a.n_groups;
    for (int g = threadIdx.x; g < a.n_groups; g += THREADS) {
        uint8_t *best = marked + g * size; /* its own experts' marks, cleared again */
        sum[g] = 0;
        used[g] = 0;
        for (int i = 0; i < a.group_best; i++) {
            int at = -1;
            for (int e = 0; e < size; e++)
                if (!best[e] && (at < 0 || choice[g * size + e] > choice[g * size + at]))
                    at = e;
            best[at] = 1;
        }
        for (int e = 0; e < size; e++) {
            sum[g] += best[e] ? choice[g * size + e] : 0;
            best[e] = 0;
        }
    }
    __syncthreads();
    for (int i = 0; i < a.n_groups_used; i++) {
        const int g = best_of(sum, used, a.n_groups);
        if (threadIdx.x == 0 && g >= 0)
            used[g] = 1;
        __syncthreads();
    }
    for (int e = threadIdx.x; e < a.n_experts; e += THREADS)
        marked[e] = !used[e / size];
    __syncthreads();
}

/* In double, so that neither the order of a sum nor an exponential decides between experts; the softmax's is yet to be
 * divided by the sum. */
__device__ static inline double score_of(int score, float logit, double top)
{
    const double x = logit;
    switch (score) {
    case TERN_CUDA_SCORE_SIGMOID:
        return 1 / (1 + exp(-x));
    case TERN_CUDA_SCORE_SQRT_SOFTPLUS:
        return sqrt(x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)));
    default:
        return exp(x - top);
    }
}

/* A number of 64 bits in the order of doubles; of no number, 1.  0 is behind all of them. */
__device__ static inline uint64_t order_of(double x)
{
    const uint64_t u = (uint64_t)__double_as_longlong(x == 0 ? 0.0 : x);
    return x != x ? 1 : u >> 63 ? ~u : u | (uint64_t)1 << 63;
}

/* The n_active best by choice that are not marked, of equal ones the first, by one warp, of which a lane has each 32nd
 * expert.  Fewer that are not marked: expert 0. */
template <int EACH> __device__ static inline void choose_best(const tern_cuda_route_args &a, const double *choice, const uint8_t *marked, int *chosen)
{
    const int lane = threadIdx.x % 32;
    uint64_t key[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int e = j * 32 + lane;
        key[j] = e < a.n_experts && !marked[e] ? order_of(choice[e]) : 0;
    }
    for (int i = 0; i < a.n_active; i++) {
        uint64_t best = 0;
        int at = 0;
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (key[j] > best) {
                best = key[j];
                at = j * 32 + lane;
            }
        const uint32_t upper = __reduce_max_sync(~0u, (uint32_t)(best >> 32));
        const uint32_t lower = __reduce_max_sync(~0u, (uint32_t)(best >> 32) == upper ? (uint32_t)best : 0);
        const bool mine = best && best == ((uint64_t)upper << 32 | lower);
        const uint32_t first = __reduce_min_sync(~0u, mine ? (uint32_t)at : ~0u);
        if (lane == 0)
            chosen[i] = first == ~0u ? 0 : (int)first;
#pragma unroll
        for (int j = 0; j < EACH; j++)
            key[j] = (uint32_t)(j * 32 + lane) == first ? 0 : key[j];
    }
}

/* Those, or the ones that the table names. */
__device__ static inline void choose(const tern_cuda_route_args &a, const double *choice, const uint8_t *marked, int *chosen)
{
    if (a.table) {
        const uint64_t token = (uint32_t)cuda_at<const tern_cuda_row>(a.rows)[blockIdx.x].token;
        for (int i = threadIdx.x; i < a.n_active; i += THREADS)
            chosen[i] = (int)cuda_at<const float>(a.table)[token * a.n_active + i];
    } else if (threadIdx.x < 32) {
        if (a.n_experts <= 128)
            choose_best<4>(a, choice, marked, chosen);
        else if (a.n_experts <= 256)
            choose_best<8>(a, choice, marked, chosen);
        else
            choose_best<MOST / 32>(a, choice, marked, chosen);
    }
    __syncthreads();
}

TERN_CUDA_KERNEL_BEGIN(route, tern_cuda_route_args, THREADS, 1)
{
    __shared__ double score[MOST], choice[MOST], sums[MOST];
    __shared__ uint8_t marked[MOST], used[MOST];
    __shared__ int chosen[MOST], sorted[MOST];
    cuda_wait();
    const float *logits = cuda_at<const float>(a.logits) + blockIdx.x * a.stride;
    const float *bias = cuda_at<const float>(a.bias), *factors = cuda_at<const float>(a.factors);
    double top = -INFINITY, sum = 0;
    for (int e = threadIdx.x; e < a.n_experts; e += THREADS)
        top = fmax(top, (double)logits[e]);
    top = block_max(top);
    for (int e = threadIdx.x; e < a.n_experts; e += THREADS) {
        score[e] = score_of(a.score, logits[e], top);
        sum += score[e];
    }
    sum = block_sum(sum);
    for (int e = threadIdx.x; e < a.n_experts; e += THREADS) {
        score[e] = a.score == TERN_CUDA_SCORE_SOFTMAX ? score[e] / sum : score[e];
        choice[e] = bias ? score[e] + (double)bias[e] : score[e];
        marked[e] = 0;
    }
    __syncthreads();
    if (a.n_groups > 1)
        mark_lost(a, choice, marked, sums, used);
    choose(a, choice, marked, chosen);
    for (int i = threadIdx.x; i < a.n_active; i += THREADS) {
        int rank = 0;
        for (int j = 0; j < a.n_active; j++)
            rank += chosen[j] < chosen[i];
        sorted[rank] = chosen[i];
    }
    __syncthreads();
    sum = 0;
    for (int i = 0; i < a.n_active; i++)
        sum += score[sorted[i]];
    const double factor = a.normalise ? (double)a.scale / (sum + 1e-20) : (double)a.scale;
    for (int i = threadIdx.x; i < a.n_active; i += THREADS) {
        const int e = sorted[i];
        cuda_at<int32_t>(a.ids)[blockIdx.x * a.n_active + i] = e;
        cuda_at<float>(a.weights)[blockIdx.x * a.n_active + i] =
            (float)(score[e] * factor * (factors ? (double)factors[e] : 1));
    }
}

/* f(pair, expert) of the pairs [from, end), 32 of them at a time, all lanes together; behind the end the expert is -1. */
template <class F> __device__ static inline void for_pairs(const int32_t *ids, int from, int end, const F &f)
{
    constexpr int AHEAD = 8; /* loads under way */
    for (int i = from + (int)threadIdx.x % 32; __any_sync(~0u, i < end); i += 32 * AHEAD) {
        int expert[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            expert[j] = i + 32 * j < end ? ids[i + 32 * j] : -1;
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            f(i + 32 * j, expert[j]);
    }
}

/* Of the lanes that have this one's expert: how many come before it, and in *all how many there are. */
__device__ static inline int before_of(int expert, int *all)
{
    const uint32_t same = __match_any_sync(~0u, expert);
    *all = __popc(same);
    return __popc(same & ((1u << threadIdx.x % 32) - 1));
}

/* Where each expert's pairs begin, of as many as `first` has of it, and its tiles; by one warp. */
__device__ static inline void place_groups(int2 *groups, int *first, int *tile, int n_experts)
{
    const int lane = threadIdx.x % 32;
    for (int e = lane, before = 0, tiles = 0; __any_sync(~0u, e < n_experts); e += 32) {
        const int here = e < n_experts ? first[e] : 0, own = (here + TERN_CUDA_TILE - 1) / TERN_CUDA_TILE;
        const int sum = cuda_sum_up_to(here), tile_sum = cuda_sum_up_to(own);
        if (e < n_experts) {
            first[e] = before + sum - here;
            tile[e] = tiles + tile_sum - own;
            groups[e] = make_int2(first[e], here);
        }
        before += __shfl_sync(~0u, sum, 31);
        tiles += __shfl_sync(~0u, tile_sum, 31);
    }
}

/* Each expert's tiles, and none behind the last expert's. */
__device__ static inline void put_tiles(const tern_cuda_sort &a, const int2 *groups, const int *tile)
{
    tern_cuda_tile *tiles = cuda_at<tern_cuda_tile>(a.tiles);
    const int last = a.n_experts - 1, end = tile[last] + (groups[last].y + TERN_CUDA_TILE - 1) / TERN_CUDA_TILE;
    for (int e = threadIdx.x; e < a.n_experts; e += TERN_CUDA_SORT)
        for (int i = 0; i < groups[e].y; i += TERN_CUDA_TILE)
            tiles[tile[e] + i / TERN_CUDA_TILE] = {e, groups[e].x + i, min(TERN_CUDA_TILE, groups[e].y - i), 0};
    for (int t = end + (int)threadIdx.x; t < a.n_tiles; t += TERN_CUDA_SORT)
        tiles[t] = {0, 0, 0, 0};
}

/* A warp has a piece of the pairs.  count[warp][expert]: how many of them, then where the next one goes. */
TERN_CUDA_KERNEL_BEGIN(sort_pairs, tern_cuda_sort, TERN_CUDA_SORT, 1)
{
    enum { WARPS = TERN_CUDA_SORT / 32 };
    __shared__ uint16_t count[WARPS][MOST];
    __shared__ int first[MOST], tile[MOST];
    cuda_wait();
    const int32_t *ids = cuda_at<const int32_t>(a.ids);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int piece = ((a.n_pairs + WARPS - 1) / WARPS + 31) / 32 * 32, from = warp * piece;
    const int end = from + piece < a.n_pairs ? from + piece : a.n_pairs;
    for (int e = lane; e < a.n_experts; e += 32)
        count[warp][e] = 0;
    __syncwarp();
    for_pairs(ids, from, end, [&](int, int expert) {
        int all;
        const int before = before_of(expert, &all);
        if (expert >= 0 && !before)
            count[warp][expert] += all;
        __syncwarp();
    });
    __syncthreads();
    for (int e = threadIdx.x; e < a.n_experts; e += TERN_CUDA_SORT) {
        int n = 0;
        for (int w = 0; w < WARPS; w++) {
            const int here = count[w][e];
            count[w][e] = n;
            n += here;
        }
        first[e] = n;
    }
    __syncthreads();
    if (warp == 0)
        place_groups(cuda_at<int2>(a.groups), first, tile, a.n_experts);
    __syncthreads();
    if (a.tiles)
        put_tiles(a, cuda_at<const int2>(a.groups), tile);
    for_pairs(ids, from, end, [&](int pair, int expert) {
        int all;
        const int before = before_of(expert, &all), next = expert >= 0 ? count[warp][expert] : 0;
        __syncwarp();
        if (expert >= 0) {
            const int place = first[expert] + next + before;
            cuda_at<int32_t>(a.row_of)[place] = pair;
            cuda_at<int32_t>(a.at)[pair] = place;
            if (a.tiles)
                cuda_at<int32_t>(a.slots)[place] = tile[expert] * TERN_CUDA_TILE + next + before;
            if (!before)
                count[warp][expert] = next + all;
        }
        __syncwarp();
    });
}

TERN_CUDA_KERNEL_BEGIN(gather, tern_cuda_gather, 256, 1)
{
    cuda_wait();
    const int place = blockIdx.x, i = blockIdx.y * 256 + threadIdx.x;
    if (i >= a.n)
        return;
    const int pair = a.row_of ? cuda_at<const int32_t>(a.row_of)[place] : place;
    const float x = cuda_at<const float>(a.x)[(uint64_t)(pair / a.n_active) * a.x_stride + i];
    cuda_at<float>(a.to)[(uint64_t)place * a.to_stride + i] =
        a.weights ? x * cuda_at<const float>(a.weights)[pair] : x;
}

TERN_CUDA_KERNEL_BEGIN(quantize_pairs, tern_cuda_quantize_pairs, 256, 1)
{
    cuda_wait();
    const int place = blockIdx.x, at = (blockIdx.y * 256 + threadIdx.x) * 4;
    const int pair = cuda_at<const int32_t>(a.row_of)[place], row = cuda_at<const int32_t>(a.slots)[place];
    const float *x = cuda_at<const float>(a.x) + (uint64_t)(pair / a.per_row) * a.stride;
    const bool real = at < a.k;
    const float4 v = real ? *reinterpret_cast<const float4 *>(x + at) : make_float4(0, 0, 0, 0);
    quantize_four(cuda_at<uint8_t>(a.to), a.row_bytes, TERN_CUDA_TILE, row, a.k, at / 32, at / 4 % 8, v, real);
}

TERN_CUDA_KERNEL_BEGIN(pairs_sum, tern_cuda_sum, 256, 1)
{
    cuda_wait();
    const int row = blockIdx.x, i = blockIdx.y * 256 + threadIdx.x;
    if (i >= a.n)
        return;
    float sum = 0;
    for (int j = 0; j < a.n_active; j++) {
        const int pair = row * a.n_active + j, place = a.at ? cuda_at<const int32_t>(a.at)[pair] : pair;
        float v = cuda_at<const float>(a.answers)[(uint64_t)place * a.stride + i];
        if (a.weights)
            v = __fmul_rn(v, cuda_at<const float>(a.weights)[pair]);
        sum = j ? sum + v : v;
    }
    cuda_at<float>(a.y)[(uint64_t)row * a.y_stride + i] = sum;
}
